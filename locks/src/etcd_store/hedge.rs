//! A request to one member after another, of which the first answer counts.

use std::sync::{Arc, atomic::Ordering};

use etcd_client::Error;
use tokio::{task::JoinSet, time};

use super::{Cluster, GIVE_UP_AFTER, HEDGE_AFTER};
use crate::{
    hold::Key,
    ports::{NodeError, Op, Reply, Revision, StoreAnswer},
};

/// The requests to members that have not answered.
type Copies = JoinSet<(usize, Result<StoreAnswer, Error>)>;

impl Cluster {
    /// Asks one member after another, until one has answered.
    pub(super) async fn ask(self: &Arc<Self>, op: Op) -> Result<StoreAnswer, NodeError> {
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.members.len());
        let mut asked = Copies::new();
        let mut order = (0..count).map(|n| (first + n) % count);
        let mut failed = String::from("not asked");
        let asking = async {
            loop {
                match order.next() {
                    Some(member) => {
                        let (cluster, op) = (self.clone(), op.clone());
                        asked.spawn(async move { (member, cluster.ask_member(member, &op).await) });
                    }
                    None if asked.is_empty() => return Err(NodeError::Indeterminate(failed)),
                    None => {}
                }
                let has_next = order.len() > 0;
                tokio::select! {
                    Some(Ok((member, said))) = asked.join_next() => match said {
                        Ok(seen) => {
                            self.preferred.store(member, Ordering::Relaxed);
                            let is_copied = count - order.len() > 1;
                            return self.decided(&op, seen, member, is_copied, std::mem::take(&mut asked));
                        }
                        Err(error) => failed = format!("{}: {error}", self.members[member].server.name),
                    },
                    () = time::sleep(HEDGE_AFTER), if has_next => {}
                }
            }
        };
        let said = time::timeout(GIVE_UP_AFTER, asking).await;
        said.unwrap_or_else(|_| Err(NodeError::Indeterminate(format!("no answer within {GIVE_UP_AFTER:?}"))))
    }

    /// Takes the first answer. Other members may have been asked too.
    fn decided(
        self: &Arc<Self>,
        op: &Op,
        seen: StoreAnswer,
        member: usize,
        is_copied: bool,
        copies: Copies,
    ) -> Result<StoreAnswer, NodeError> {
        match (op, seen) {
            (Op::Delete(..) | Op::Revoke(_), StoreAnswer::Gone) if is_copied => {
                let name = &self.members[member].server.name;
                Err(NodeError::Indeterminate(format!("{name}: gone, perhaps by the request to another member")))
            }
            (Op::Create(key, ..), StoreAnswer::At(created) | StoreAnswer::First(created)) if !copies.is_empty() => {
                tokio::spawn(self.clone().delete_copies(copies, key.clone(), created));
                Ok(seen)
            }
            _ => Ok(seen),
        }
    }

    /// Another member may do its copy of a creation after the key was deleted, and so create the key again. Nobody
    /// would delete that one as long as other holds have its lease. Awaits the copies, and deletes such a key. If the
    /// answer to the copy is lost, or comes later than [`GIVE_UP_AFTER`], the key stays until its lease ends.
    fn delete_copies(self: Arc<Self>, mut copies: Copies, key: Key, created: Revision) -> Reply<()> {
        Box::pin(async move {
            let deleting = async {
                while let Some(copy) = copies.join_next().await {
                    if let Ok((_, Ok(StoreAnswer::At(again) | StoreAnswer::First(again)))) = copy
                        && again != created
                    {
                        // If this fails, the key goes with its lease.
                        let _ = self.ask(Op::Delete(key.clone(), again)).await;
                    }
                }
            };
            let _ = time::timeout(GIVE_UP_AFTER, deleting).await;
        })
    }
}
