//! A cluster of a revisioned store: members that forward to a leader, a leader that needs a majority, elections.
//!
//! The state is one: what the leader applies is what all members have. Left out: raft's log, reads of a former leader, snapshots, and watches
//! that a member would have to replay.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use history::{Models, Stamp};
use locks::{Key, LeaseId, NodeError, Op, Owner, Reply, Seen, Store};
use tokio::sync::oneshot;

use crate::{
    executor::Process,
    local::{Local, lock},
    models::store::{LeaderView, StoreClocks, StoreModel},
    world::World,
};

/// How long a leader may be silent before another one is elected: etcd's default election timeout.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two looks of the members at the leader.
const LOOK: Duration = Duration::from_millis(100);
/// A client that waits longer for an answer asks another member the next time.
const IMPATIENT_AFTER: Duration = Duration::from_millis(500);

/// A request that has reached the leader, and whom it is from.
struct Asked {
    op: Op,
    worker: Process,
    member: Process,
    answered: oneshot::Sender<Seen>,
    /// By which name the truth knows who asks, if it is for a lease.
    grantee: Option<Owner>,
}

/// The cluster.
pub(crate) struct StoreCluster {
    model: StoreModel,
    leader: Process,
    leader_seen: Stamp,
    /// When it looked last for leases that had run out.
    expired: Stamp,
    /// Requests that wait for a key to go, and those that wait for a leader.
    waiting: Vec<Asked>,
    stalled: Vec<Asked>,
    /// What leaders knew when they were frozen.
    views: BTreeMap<Process, LeaderView>,
    /// Whose each lease is, for the truth, and how many were asked for.
    grantees: BTreeMap<LeaseId, Owner>,
    grants: u64,
}

impl StoreCluster {
    /// An empty store, led by its first member.
    pub fn new(models: Models, start: Stamp) -> StoreCluster {
        StoreCluster {
            model: StoreModel::new(models),
            leader: 0,
            leader_seen: start,
            expired: start,
            waiting: Vec::new(),
            stalled: Vec::new(),
            views: BTreeMap::new(),
            grantees: BTreeMap::new(),
            grants: 0,
        }
    }

    /// The truth: who has the oldest key of the queue. The name is that of whoever asked for its lease, and not the owner value of the key:
    /// an attempt asks for its lease in the instant in which it begins, and for the key when other clients of its worker may have begun
    /// attempts of theirs.
    pub fn holder(&self, key: &Key) -> Option<Owner> {
        self.grantees.get(&self.model.holder_lease(key)?).cloned()
    }

    /// A name for one who asks for a lease; no attempt draws such an owner value.
    fn grantee(&mut self) -> Owner {
        self.grants += 1;
        Owner::new(format!("grantee {}", self.grants))
    }

    fn apply(&mut self, asked: &Asked, now: StoreClocks) -> Option<Seen> {
        let seen = self.model.apply(&asked.op, now);
        if let (Some(grantee), Some(Seen::Leased(lease, _))) = (&asked.grantee, seen) {
            self.grantees.insert(lease, grantee.clone());
        }
        seen
    }
}

fn clocks(world: &World, node: Process) -> StoreClocks {
    StoreClocks { wall: world.wall(node), monotonic: world.monotonic(node) }
}

fn cluster(world: &World) -> Option<&Local<StoreCluster>> {
    world.servers.store.as_ref()
}

/// Whether `node` runs and reaches a majority of the members.
fn leads(world: &World, node: Process) -> bool {
    let reaches = |peer: Process| world.is_up(peer) && world.is_open(node, peer) && world.is_open(peer, node);
    let reached = (0..world.lock_nodes).filter(|peer| *peer == node || reaches(*peer)).count();
    world.is_up(node) && reached > world.lock_nodes / 2
}

/// The member that leads now; none between two leaders, or if the lock nodes are no store.
pub(crate) fn leader(world: &World) -> Option<Process> {
    let leader = lock(cluster(world)?).leader;
    leads(world, leader).then_some(leader)
}

/// Looks again and again: at leases that have run out, at a leader that is gone.
pub(crate) fn look_after(world: &Arc<World>) {
    let Some(store) = cluster(world) else { return };
    let now = world.executor.now();
    let leader = lock(store).leader;
    if leads(world, leader) {
        let mut store = lock(store);
        store.leader_seen = now;
        if now.since(store.expired) >= StoreModel::LOOKS_EVERY {
            store.expired = now;
            store.model.expire(clocks(world, leader));
        }
        drop(store);
        world.look_at_owners();
    } else if now.since(lock(store).leader_seen) >= ELECTION_TIMEOUT
        && let Some(elected) = (0..world.lock_nodes).find(|node| leads(world, *node))
    {
        let mut store = lock(store);
        (store.leader, store.leader_seen) = (elected, now);
        store.model.leader_changed(clocks(world, elected));
    }
    ask_again(world);
    world.executor.after(LOOK, Box::new(look_after));
}

/// Asks the leader again what could not be answered before.
fn ask_again(world: &Arc<World>) {
    let Some(store) = cluster(world) else { return };
    let (leader, asked) = {
        let mut store = lock(store);
        let mut asked = std::mem::take(&mut store.stalled);
        asked.append(&mut store.waiting);
        (store.leader, asked)
    };
    let leads = leads(world, leader);
    for asked in asked {
        if leads { apply(world, leader, asked) } else { lock(store).stalled.push(asked) }
    }
}

/// A request is at a member: at the leader it is applied, others pass it on.
fn arrived(world: &Arc<World>, node: Process, asked: Asked) {
    let Some(store) = cluster(world) else { return };
    let leader = lock(store).leader;
    if node != leader && world.is_connected(node, leader) {
        return world.send(node, leader, Box::new(move |world| arrived(world, leader, asked)));
    }
    if node != leader || !leads(world, leader) {
        return lock(store).stalled.push(asked);
    }
    let removes = matches!(asked.op, Op::Delete(..) | Op::DeleteAll(..) | Op::Revoke(..) | Op::Unlock(..));
    apply(world, leader, asked);
    if removes {
        ask_again(world);
    }
}

fn apply(world: &Arc<World>, leader: Process, asked: Asked) {
    let Some(store) = cluster(world) else { return };
    let seen = lock(store).apply(&asked, clocks(world, leader));
    world.look_at_owners();
    let Some(seen) = seen else { return lock(store).waiting.push(asked) };
    let Asked { worker, member, answered, .. } = asked;
    let answer = move |world: &Arc<World>| world.send(member, worker, Box::new(move |_| _ = answered.send(seen)));
    if member == leader {
        return answer(world);
    }
    world.send(leader, member, Box::new(answer));
}

/// A member was frozen: if it leads, it goes on knowing what it knows now.
pub(crate) fn frozen(world: &World, node: Process) {
    let Some(store) = cluster(world) else { return };
    let mut store = lock(store);
    if store.leader == node {
        let view = store.model.leader_view();
        store.views.insert(node, view);
    }
}

/// It goes on: a leader that does not know yet that it is one no more looks at its leases.
pub(crate) fn thawed(world: &Arc<World>, node: Process) {
    let Some(store) = cluster(world) else { return };
    let Some(view) = lock(store).views.remove(&node) else { return };
    let now = clocks(world, node);
    if lock(store).model.resumed(&view, now) {
        world.look_at_owners();
        ask_again(world);
    }
}

/// The store, as a worker sees it: through one member, and through another if that one does not answer.
pub(crate) struct RemoteStore {
    world: Arc<World>,
    worker: Process,
    member: Arc<AtomicUsize>,
}

impl RemoteStore {
    /// The store, through the member that the worker's number gives.
    pub fn new(world: Arc<World>, worker: Process) -> RemoteStore {
        let member = Arc::new(AtomicUsize::new(worker % world.lock_nodes.max(1)));
        RemoteStore { world, worker, member }
    }
}

impl Store for RemoteStore {
    fn name(&self) -> &str {
        &self.world.plan.backend
    }

    fn send(&self, op: Op) -> Reply<Result<Seen, NodeError>> {
        let (worker, members) = (self.worker, self.world.lock_nodes);
        let first = self.member.load(Relaxed);
        let member = (0..members).map(|n| (first + n) % members).find(|m| self.world.is_connected(worker, *m));
        let Some(member) = member else {
            return Box::pin(std::future::ready(Err(NodeError::Definite("not connected".into()))));
        };
        self.member.store(member, Relaxed);
        let grantee = match (&op, cluster(&self.world)) {
            (Op::Grant(_), Some(store)) => Some(lock(store).grantee()),
            _ => None,
        };
        self.world.asks(worker, grantee.as_ref());
        let (answered, answer) = oneshot::channel();
        let is_wait = matches!(op, Op::AwaitGone(..) | Op::Lock(..));
        let asked = Asked { op, worker, member, answered, grantee };
        self.world.send(worker, member, Box::new(move |world| arrived(world, member, asked)));
        let is_answered = Arc::new(AtomicBool::new(is_wait));
        if !is_wait {
            let (is_answered, current) = (is_answered.clone(), self.member.clone());
            let look = move |_: &Arc<World>| {
                if !is_answered.load(Relaxed) && current.load(Relaxed) == member {
                    current.store((member + 1) % members, Relaxed);
                }
            };
            self.world.executor.after(IMPATIENT_AFTER, Box::new(look));
        }
        Box::pin(async move {
            let answer = answer.await.map_err(|_| NodeError::Indeterminate("connection lost".into()));
            is_answered.store(true, Relaxed);
            answer
        })
    }
}
