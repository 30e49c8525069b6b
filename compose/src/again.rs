//! Injects the active faults of links and clocks of a node again after a restart: the node has new processes and a new
//! network.

use std::time::Duration;

use agent::protocol::{ClockAnswer, ClockRequest, ClocksAhead, PacketRequest};
use history::{ClockChange, NodeName, WhichClock};
use nemesis::ClusterError;
use tokio::time::sleep;

use crate::reach::{DockerCluster, failed};

const DOING: &str = "injecting its faults again after its restart";
/// The engine reports a start shortly before the container's process loads its program, which has right clocks. So the
/// clocks are read after this time, and set again if they are right, at most so often.
const LOADED_AFTER: Duration = Duration::from_millis(50);
const TRIES_MAX: u32 = 20;

impl DockerCluster<'_> {
    /// Injects the active faults of `node` again if the node has restarted since. For a restart that no fault of the
    /// plan caused, too.
    ///
    /// # Errors
    /// The node runs, and a fault could not be injected again.
    pub async fn again(&self, node: &NodeName) -> Result<(), ClusterError> {
        let member = self.member(node, DOING)?;
        let _alone = member.control.lock().await;
        let done = self.again_alone(node, DOING).await;
        match self.pid_if_up(node, DOING).await? {
            // The next start injects the faults.
            None => Ok(()),
            Some(_) => done.map(drop),
        }
    }

    /// As [`DockerCluster::again`], for a caller that holds the lock of the node. Returns the pid of the node.
    pub(crate) async fn again_alone(&self, node: &NodeName, doing: &'static str) -> Result<i32, ClusterError> {
        let pid = self.pid(node, doing).await?;
        let (links, clocks) = {
            let on = self.on();
            let links = on.links.iter().filter(|(_, link)| link.node == *node && link.pid != pid);
            let links: Vec<_> = links.map(|(fault, link)| (*fault, link.what.clone())).collect();
            (links, on.clocks.get(node).filter(|set| set.pid != pid).map(|set| set.changes.clone()))
        };
        for (fault, what) in links {
            self.packets(node, PacketRequest::Inject { fault, pid, what }).await?;
            if let Some(link) = self.on().links.get_mut(&fault) {
                link.pid = pid;
            }
        }
        if let Some(changes) = clocks {
            self.set_clocks_again(node, pid, &changes).await?;
            if let Some(set) = self.on().clocks.get_mut(node) {
                set.pid = pid;
            }
        }
        Ok(pid)
    }

    async fn set_clocks_again(
        &self,
        node: &NodeName,
        pid: i32,
        changes: &[(WhichClock, ClockChange)],
    ) -> Result<(), ClusterError> {
        for _ in 0..TRIES_MAX {
            for &(clock, change) in changes {
                self.clocks(node, ClockRequest::Change { pid, clock, change }).await?;
            }
            sleep(LOADED_AFTER).await;
            let right = ClockAnswer::Ahead(ClocksAhead::default());
            if changes.is_empty() || self.clocks(node, ClockRequest::Ahead { pid }).await? != right {
                return Ok(());
            }
        }
        Err(failed(node, DOING, "the clocks of its new process stay right"))
    }
}
