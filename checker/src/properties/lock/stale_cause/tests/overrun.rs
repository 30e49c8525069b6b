//! Acts that are late although nothing delayed them: by their planned waits, or by nothing that the record shows.

use std::time::Duration;

use history::{
    ClientId, ClockChange, Direction, Event, Fault, FaultId, HoldId, NodeAnswer, Point, Step, Target, Until, Wait,
    WaitId, When, WhichClock, fault,
};

use super::{HistoryBuilder, builder, delay, etcd, partition, read_ok, redlock};

#[test]
fn late_work_shorter_than_the_lease_is_no_overrun() {
    let mut s = builder();
    s.work(1, 20, 1_900).write(1, 1, 1_921, 2_502);
    assert_eq!(s.causes(), ["unexplained"], "the write was under way for 0.6 s");
    let mut s = builder();
    s.work(1, 20, 1_900).write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["unexplained"], "the client did nothing for 0.6 s");
}

/// The promise ends at 1,978. The steps without a planned wait: acquired after 10 ms, its answer 10 ms later, a read of
/// `read` ms, and a write that is under way for `write` ms.
fn short_steps(work: u64, read: u64, write: u64) -> Vec<String> {
    let mut s = builder();
    let back = 20 + read;
    s.read(1, 1, 20, 21).event("worker-1", back, read_ok(1, 1)).work(1, back, work);
    s.write(1, 2, back + work, back + work + write);
    s.acquire(3, 2, 2_021, 2_022, 43).release(3, 2_023);
    s.causes()
}

#[test]
fn steps_too_short_for_a_stall_are_ordinary_time() {
    let arrival = 2_030;
    for (work, read, expected) in [
        (1_980, 5, "overrun"),
        (1_924, 5, "overrun"), // 20 + 5 + 1,924 + 30 of the write
        (1_923, 5, "unexplained"),
        (1_899, 60, "overrun"), // 20 + 30 of the read + 1,899 + 30 of the write
        (1_898, 60, "unexplained"),
    ] {
        let write = arrival - 20 - read - work;
        assert_eq!(short_steps(work, read, write), [expected], "{work} ms of work, {read} read, {write} write");
    }
}

#[test]
fn waits_before_the_last_renewal_do_not_outlast_its_lease() {
    // The last renewal is sent at 1,210, so its promise ends at 3,188. The client gives up at 1,300.
    let renewed = || {
        let mut s = HistoryBuilder::renewing(600);
        s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).renew(1, 1_210, 1_215);
        s.acquire(2, 2, 3_200, 3_210, 42).release(2, 3_220);
        s
    };
    let mut s = renewed();
    s.work(1, 20, 1_270).write(1, 1, 1_291, 3_302).give_up(1, 1_300);
    assert_eq!(s.causes(), ["unexplained"], "80 ms of planned work came after the renewal");
}

#[test]
fn a_wait_at_a_point_outlasts_the_lease_as_work_does() {
    let mut s = builder();
    s.work(1, 20, 1_000).at_point(1, 1_020, 2_030).point_released(0, 2_025).write(1, 1, 2_031, 2_032);
    assert_eq!(s.causes(), ["overrun"]);
    let mut s = builder();
    s.work(1, 20, 1_000).at_point(1, 1_020, 2_030).point_released(0, 1_025).write(1, 1, 2_031, 2_032);
    assert_eq!(s.causes(), ["unexplained"], "the controller released the client after 5 ms");
    // The client waits before its write.
    let mut s = builder();
    s.work(1, 20, 1_000).at_point(1, 1_020, 2_030).write(1, 1, 2_031, 2_032);
    s.event("agent", 1_025, Event::PointReleased { client: ClientId(0), point: Point::AfterRead });
    assert_eq!(s.causes(), ["overrun"], "the controller released the client from another point");
}

#[test]
fn a_wait_at_a_point_is_planned_until_its_bound_at_most() {
    // The client reaches the point at 100, and is paused 120-5,100. Nobody releases it.
    let kill = || Fault::new(fault::Kill {}, Duration::from_secs(1));
    let slow = fault::Clock { clock: WhichClock::Monotonic, change: ClockChange::DriftPpm(-1) };
    let waits = |at_most: u64| {
        let mut s = builder();
        let (worker, until, at_most) = ("worker-1".into(), Until::AnotherWrote, Duration::from_millis(at_most));
        let (id, point, after) = (WaitId(1), Point::BeforeWrite, Duration::ZERO);
        s.plan.waits.push(Wait { id, worker, point, until, at_most, after });
        s.at_point(1, 100, 5_102).pause(1, "worker-1", 120, 5_100).write(1, 1, 5_103, 5_104);
        s
    };
    assert_eq!(waits(300).causes(), ["pause"]);
    assert_eq!(waits(5_000).causes(), ["overrun"]);
    // A fault at the point has a wait of its own, and a clock that was set measures the bound wrongly.
    let mut s = waits(300);
    let (target, when) = (Target::Node("worker-1".into()), When::AtPoint(Point::BeforeWrite));
    s.plan.schedule.push(Step { id: FaultId(2), fault: kill(), target, when });
    assert_eq!(s.causes(), ["overrun"]);
    let mut s = waits(300);
    assert_eq!(s.inject(2, Fault::new(slow, Duration::from_secs(1)), "worker-1", 20, 80).causes(), ["overrun"]);
}

#[test]
fn an_act_after_a_release_is_no_overrun() {
    // Sent before an early release, and on its way for 2 s.
    let mut s = builder();
    s.work(1, 20, 100).write(1, 1, 121, 2_130).event("worker-1", 122, Event::Release { hold: HoldId(1) });
    assert_eq!(s.causes(), ["unexplained"]);
    // Sent after the release that followed the work.
    let mut s = builder();
    s.work(1, 20, 2_000).event("worker-1", 2_021, Event::Release { hold: HoldId(1) }).write(1, 1, 2_025, 2_030);
    assert_eq!(s.causes(), ["unexplained"]);
}

/// An attempt that is answered after 400 ms, and 1,700 ms of work: 2,100 ms, and the promise ends at 1,978.
fn slow_attempt() -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 400, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_050);
    s.work(1, 400, 1_700).write(1, 1, 2_100, 2_102);
    s
}

#[test]
fn the_wait_in_the_queue_of_the_lock_outlasts_the_lease_too() {
    assert_eq!(slow_attempt().causes(), ["unexplained"]);
    let mut s = slow_attempt();
    s.event("worker-1", 5, Event::Behind { attempt: HoldId(1) });
    assert_eq!(s.causes(), ["overrun"]);
    let mut s = slow_attempt();
    s.plan.servers.shows_waiting = false;
    assert_eq!(s.causes(), ["overrun"], "the server answers when it grants the lock");
}

#[test]
fn an_attempt_that_waited_at_a_point_waits_in_the_queue_afterwards() {
    let mut s = slow_attempt();
    s.at_point(1, 1, 5).point_released(1, 4);
    assert_eq!(s.causes(), ["unexplained"]);
    s.plan.servers.shows_waiting = false;
    assert_eq!(s.causes(), ["overrun"]);
}

#[test]
fn an_attempt_waits_for_the_nodes_that_did_not_refuse_it() {
    let delayed = |second: NodeAnswer, late: &str| {
        let answers = [(1, NodeAnswer::Granted), (2, second), (3, NodeAnswer::Granted)];
        let mut s = HistoryBuilder::new();
        s.acquire_on(1, 1, 0, 0, 400, Some(41), HistoryBuilder::answers(&answers));
        s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_050).work(1, 400, 1_700).write(1, 1, 2_100, 2_102);
        s.inject(1, delay(390), late, 50, 500).packets_delayed(1, "worker-1", late, 5, 395);
        s.causes()
    };
    assert_eq!(delayed(NodeAnswer::Refused, "redis-1"), ["delay"]);
    assert_eq!(delayed(NodeAnswer::Refused, "redis-2"), ["unexplained"], "nobody waits for a refusal");
    assert_eq!(delayed(NodeAnswer::Granted, "redis-1"), ["unexplained"], "two other nodes are enough");
}

#[test]
fn packets_between_the_worker_and_a_lock_node_delay_the_attempt() {
    let delayed = |of: &[(u32, &str)], servers: history::ServerFacts, from: &str| {
        let mut s = slow_attempt();
        s.plan.servers = servers;
        for (fault, node) in of {
            s.inject(*fault, delay(390), node, 50, 500).packets_delayed(*fault, from, node, 5, 395);
        }
        s.causes()
    };
    assert_eq!(delayed(&[(1, "redis-1")], etcd(), "worker-1"), ["delay"]);
    assert_eq!(delayed(&[(1, "redis-1")], etcd(), "redis-2"), ["delay"], "members answer together");
    assert_eq!(delayed(&[(1, "redis-1")], etcd(), "worker-2"), ["unexplained"]);
    assert_eq!(delayed(&[(1, "redis-1")], redlock(), "worker-1"), ["unexplained"], "two other nodes are enough");
    assert_eq!(delayed(&[(1, "redis-1"), (2, "redis-2")], redlock(), "worker-1"), ["delay+delay"]);
    assert_eq!(delayed(&[(1, "redis-1"), (2, "redis-2")], redlock(), "redis-3"), ["unexplained"]);
}

#[test]
fn late_answers_of_lock_nodes_delay_the_attempt() {
    for (servers, nodes, expected) in
        [(etcd(), 1, "delay"), (redlock(), 1, "unexplained"), (redlock(), 2, "delay+delay")]
    {
        let mut s = slow_attempt();
        s.plan.servers = servers;
        for (fault, node) in [(1, "redis-1"), (2, "redis-2")].into_iter().take(nodes) {
            s.inject(fault, delay(390), node, 50, 500).packets_delayed(fault, node, "worker-1", 5, 395);
        }
        assert_eq!(s.causes(), [expected], "{nodes} nodes");
    }
}

#[test]
fn a_member_that_does_not_run_delays_the_attempt() {
    let lasting = Duration::from_millis(300);
    for (fault, from, to, expected) in [
        (Fault::new(fault::Pause {}, lasting), 10, 390, "pause"),
        (Fault::new(fault::Kill {}, lasting), 10, 90, "kill"), // its clients connect again after the restart
        (Fault::new(fault::Pause {}, lasting), 405, 1_900, "unexplained"),
    ] {
        let mut s = slow_attempt();
        s.plan.servers = etcd();
        s.inject(1, fault, "redis-1", from, to);
        assert_eq!(s.causes(), [expected], "{from} to {to}");
    }
}

#[test]
fn lock_nodes_delay_no_attempt_that_waits_at_a_point() {
    // The attempt waits at the point from 5 to `left`, and two of three nodes are paused 100-1,400. The client works
    // for 490.
    for (left, expected) in [(1_500, "overrun"), (20, "pause+pause")] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 1_505, 41).at_point(1, 5, left).point_released(0, left - 1);
        s.pause(1, "redis-1", 100, 1_400).pause(2, "redis-2", 100, 1_400);
        s.work(1, 1_506, 490).write(1, 1, 1_997, 2_002).acquire(2, 2, 1_985, 1_990, 42).release(2, 2_500);
        assert_eq!(s.causes(), [expected], "at the point until {left}");
    }
}

#[test]
fn a_client_connects_to_a_killed_server_again_after_the_restart() {
    // The fault is over at 95, and the attempt is answered at 400. Without these 305 ms the write would be in time.
    let lasting = Duration::from_millis(80);
    for fault in [Fault::new(fault::Kill {}, lasting), Fault::new(fault::Pause {}, lasting)] {
        let expected = if fault.kind().kills() { "kill" } else { "unexplained" };
        let mut s = slow_attempt();
        s.plan.lock_nodes.truncate(1);
        s.inject(1, fault, "redis-1", 10, 90);
        assert_eq!(s.causes(), [expected]);
    }
}

#[test]
fn a_loss_on_the_link_explains_only_what_nothing_else_does() {
    let loss = |to: &str| {
        let peers = vec![history::NodeName::from(to)];
        Fault::new(fault::Loss { percent: 30 }, Duration::from_secs(1)).on_links(Direction::Both, peers)
    };
    let slow_write = || {
        let mut s = builder();
        s.work(1, 20, 1_000).write(1, 1, 1_021, 2_100);
        s
    };
    let mut s = slow_write();
    assert_eq!(s.inject(1, loss("resource"), "worker-1", 1_000, 1_900).causes(), ["loss"]);
    let mut s = slow_write();
    assert_eq!(s.inject(1, loss("redis-1"), "worker-1", 1_000, 1_900).causes(), ["unexplained"]);
    let mut s = slow_write();
    s.inject(1, loss("resource"), "worker-1", 1_000, 1_900).pause(2, "resource", 1_025, 2_090);
    assert_eq!(s.causes(), ["pause"]);
    let mut s = slow_attempt();
    assert_eq!(s.inject(1, partition(), "redis-1", 10, 390).causes(), ["unexplained"], "two other nodes are enough");
    s.plan.servers = etcd();
    assert_eq!(s.causes(), ["partition"]);
}

/// A client with a hold of a parent acts on the data of all children, so it has many steps.
#[test]
fn the_steps_of_many_requests_are_all_known() {
    let mut s = builder();
    for read in 1..=400 {
        let at = 20 + u64::from(read);
        s.read(1, read, at, at);
    }
    s.work(1, 421, 1_570).write(1, 401, 1_991, 2_022);
    assert_eq!(s.causes(), ["overrun"]);
}
