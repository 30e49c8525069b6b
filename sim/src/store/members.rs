//! The members of the store in their world: they forward to a leader, the leader needs a majority, and there are
//! elections.

use std::{sync::Arc, time::Duration};

use locks::Op;

use super::{PendingRequest, StoreCluster};
use crate::{
    executor::Process,
    models::store::{StoreClocks, StoreModel},
    thread_bound::{ThreadBound, lock},
    world::World,
};

/// The silence of a leader after which another one is elected: etcd's default election timeout.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two of the members' checks of the leader.
const LOOK: Duration = Duration::from_millis(100);

fn clocks(world: &World, node: Process) -> StoreClocks {
    StoreClocks { wall: world.wall(node), monotonic: world.monotonic(node) }
}

pub(super) fn cluster(world: &World) -> Option<&ThreadBound<StoreCluster>> {
    world.servers.store.as_ref()
}

/// Returns whether `node` exchanges packets with `peer`, which runs.
fn reaches(world: &World, node: Process, peer: Process) -> bool {
    node == peer || world.is_up(peer) && world.is_open(node, peer) && world.is_open(peer, node)
}

/// Returns whether `node` can lead: it runs and reaches a majority of the members.
fn leads(world: &World, node: Process) -> bool {
    let reached = (0..world.lock_nodes).filter(|peer| reaches(world, node, *peer)).count();
    world.is_up(node) && reached > world.lock_nodes / 2
}

/// The leader now; none during an election, and none if the backend is no store.
pub(crate) fn leader(world: &World) -> Option<Process> {
    let (leader, is_lost) = {
        let store = lock(cluster(world)?);
        (store.leader, store.is_leader_lost)
    };
    (!is_lost && leads(world, leader)).then_some(leader)
}

/// Expires leases and elects leaders, repeatedly.
pub(crate) fn look_after(world: &Arc<World>) {
    let Some(store) = cluster(world) else { return };
    let now = world.executor.now();
    if let Some(leader) = leader(world) {
        let mut store = lock(store);
        store.leader_seen = now;
        if now.since(store.expired) >= StoreModel::LOOKS_EVERY {
            store.expired = now;
            store.expire(clocks(world, leader));
        }
        drop(store);
        world.look_at_owners();
    } else if now.since(lock(store).leader_seen) >= ELECTION_TIMEOUT
        && let Some(elected) = (0..world.lock_nodes).find(|node| leads(world, *node))
    {
        let mut store = lock(store);
        (store.leader, store.leader_seen, store.is_leader_lost) = (elected, now, false);
        store.model.leader_changed(clocks(world, elected));
    }
    ask_again(world);
    world.executor.after(LOOK, Box::new(look_after));
}

/// Gives the leader the waiting requests again, except those of members that do not reach the leader.
fn ask_again(world: &Arc<World>) {
    let Some(store) = cluster(world) else { return };
    let asked = {
        let mut store = lock(store);
        let mut asked = std::mem::take(&mut store.stalled);
        asked.append(&mut store.waiting);
        asked
    };
    let leader = leader(world);
    for asked in asked {
        match leader.filter(|leader| reaches(world, *leader, asked.member)) {
            Some(leader) => apply(world, leader, asked),
            None => lock(store).stalled.push(asked),
        }
    }
}

/// Handles a request at a member: the leader applies it, other members forward it.
pub(super) fn arrived(world: &Arc<World>, node: Process, asked: PendingRequest) {
    let Some(store) = cluster(world) else { return };
    let known = lock(store).leader;
    if node != known && world.is_connected(node, known) {
        return world.send(node, known, Box::new(move |world| arrived(world, known, asked)));
    }
    if leader(world) != Some(node) {
        return lock(store).stalled.push(asked);
    }
    let removes = matches!(asked.op, Op::Delete(..) | Op::Planted(_) | Op::Revoke(..) | Op::Unlock(..));
    apply(world, node, asked);
    if removes {
        ask_again(world);
    }
}

fn apply(world: &Arc<World>, leader: Process, asked: PendingRequest) {
    let Some(store) = cluster(world) else { return };
    let seen = lock(store).apply(&asked, clocks(world, leader));
    world.look_at_owners();
    let Some(seen) = seen else { return lock(store).waiting.push(asked) };
    let PendingRequest { worker, member, answered, .. } = asked;
    let answer = move |world: &Arc<World>| world.send(member, worker, Box::new(move |_| _ = answered.send(seen)));
    if member == leader {
        return answer(world);
    }
    // A member that has restarted connects to every leader: a new leader has no old connection with it.
    world.is_connected(leader, member);
    world.send(leader, member, Box::new(answer));
}

/// Notes what a leader knows as it is frozen. A leader that has restarted is none before the next election.
pub(crate) fn frozen(world: &World, node: Process) {
    let Some(store) = cluster(world) else { return };
    let mut store = lock(store);
    if store.leader == node && !store.is_leader_lost {
        let view = store.model.leader_view();
        store.views.insert(node, view);
    }
}

/// Lets a former leader expire leases by its old knowledge after its thaw, before it learns of the new leader.
pub(crate) fn thawed(world: &Arc<World>, node: Process) {
    let Some(store) = cluster(world) else { return };
    let Some(view) = lock(store).views.remove(&node) else { return };
    let now = clocks(world, node);
    if lock(store).model.resumed(&view, now) {
        world.look_at_owners();
        ask_again(world);
    }
}

/// Notes that a member was killed. Its memory is gone: the requests that waited there are lost, and if the member led,
/// no member leads until an election.
pub(crate) fn killed(world: &World, node: Process) {
    let Some(store) = cluster(world) else { return };
    let mut store = lock(store);
    store.views.remove(&node);
    store.is_leader_lost |= store.leader == node;
    // A request that is dropped tells its sender that no answer comes.
    store.stalled.retain(|asked| asked.member != node);
    store.waiting.retain(|asked| asked.member != node);
}

#[cfg(test)]
mod tests {
    use history::{CutMode, Direction, Fault, FaultId, Models, fault::Partition};
    use locks::StoreAnswer;
    use tokio::sync::oneshot::{self, error::TryRecvError};

    use super::*;
    use crate::world::tests::{ETCD, run_for, world};

    #[test]
    fn a_leader_that_was_killed_leads_only_after_an_election_whoever_else_is_killed() {
        let table: [(&[Process], bool); 5] =
            [(&[1, 2], false), (&[0, 0], true), (&[0, 1], true), (&[0, 1, 2], true), (&[2, 0], true)];
        for (kills, is_lost) in table {
            let world = world(3, ETCD);
            look_after(&world);
            for &member in kills {
                world.kill(member);
                killed(&world, member);
                world.start(member);
            }
            let meanwhile = (!is_lost).then_some(0);
            assert_eq!(leader(&world), meanwhile, "{kills:?}");
            run_for(&world, ELECTION_TIMEOUT - LOOK / 2);
            assert_eq!(leader(&world), meanwhile, "{kills:?}");
            run_for(&world, LOOK);
            assert_eq!(leader(&world), Some(0), "{kills:?}");
        }
    }

    #[test]
    fn a_request_that_waits_at_a_member_is_lost_with_it() {
        let world = world(3, ETCD);
        let asks = |member| {
            let (answered, answer) = oneshot::channel();
            let op = Op::Grant(ELECTION_TIMEOUT);
            (PendingRequest { op, worker: world.worker(0), member, answered, grantee: None }, answer)
        };
        let ((stalled, mut first), (waiting, mut second), (other, mut third)) = (asks(1), asks(1), asks(2));
        {
            let mut store = lock(cluster(&world).unwrap());
            store.stalled.extend([stalled, other]);
            store.waiting.push(waiting);
        }
        killed(&world, 1);
        assert_eq!((first.try_recv(), second.try_recv()), (Err(TryRecvError::Closed), Err(TryRecvError::Closed)));
        assert_eq!(third.try_recv(), Err(TryRecvError::Empty));
    }

    #[test]
    fn a_new_leader_answers_what_a_member_was_asked_after_its_restart() {
        let world = world(3, ETCD);
        look_after(&world);
        for member in [2, 0] {
            world.kill(member);
            killed(&world, member);
            if member != 0 {
                world.start(member);
            }
        }
        let (answered, mut answer) = oneshot::channel();
        let (op, worker) = (Op::Grant(ELECTION_TIMEOUT), world.worker(0));
        arrived(&world, 2, PendingRequest { op, worker, member: 2, answered, grantee: None });
        assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
        run_for(&world, ELECTION_TIMEOUT * 2);
        assert_eq!(leader(&world), Some(1));
        assert!(matches!(answer.try_recv(), Ok(StoreAnswer::Leased(..))));
    }

    #[test]
    fn a_leader_that_is_cut_off_in_one_direction_is_replaced() {
        for direction in [Direction::In, Direction::Out] {
            let world = world(3, ETCD);
            look_after(&world);
            let cut = Fault::new(Partition { cut: CutMode::Drop }, ELECTION_TIMEOUT).on_links(direction, Vec::new());
            world.inject_links(0, FaultId(1), &cut);
            assert_eq!(leader(&world), None, "{direction:?}");
            run_for(&world, ELECTION_TIMEOUT + LOOK / 2);
            assert_eq!(leader(&world), Some(1), "{direction:?}");
        }
    }

    #[test]
    fn only_a_leader_that_was_frozen_and_not_killed_revokes_by_its_old_knowledge() {
        let models = Models { revokes_on_resume: true, ..Models::default() };
        for (member, is_restarted, is_killed, is_left) in
            [(0, false, false, false), (1, false, false, true), (0, false, true, true), (0, true, false, true)]
        {
            let world = world(3, ETCD);
            let store = cluster(&world).unwrap();
            lock(store).model = StoreModel::new(&world.plan.servers, models);
            let apply = |op| lock(store).model.apply(&op, clocks(&world, 0));
            let Some(StoreAnswer::Leased(lease, granted)) = apply(Op::Grant(ELECTION_TIMEOUT)) else { panic!("none") };
            if is_restarted {
                killed(&world, member);
            }
            frozen(&world, member);
            run_for(&world, granted / 2);
            assert_eq!(apply(Op::KeepAlive(lease)), Some(StoreAnswer::Leased(lease, granted)));
            // By the old knowledge the lease has ended.
            run_for(&world, granted * 3 / 4);
            if is_killed {
                killed(&world, member);
            }
            thawed(&world, member);
            let case = format!("member {member}, restarted: {is_restarted}, killed: {is_killed}");
            assert_eq!(lock(store).model.has_lease(lease), is_left, "{case}");
        }
    }
}
