//! The stalls and faults that may be causes: those that are told late, very many of them, and slow clocks.

use history::{
    ClockChange, Direction, Event, FailureReason, Fault, FaultKind, HoldId, Outcome, ResourceKind, StallCause,
    WhichClock, fault,
};

use super::{HistoryBuilder, builder, delay, etcd, ms, partition};

#[test]
fn a_stall_of_the_resource_that_is_told_when_the_hold_has_closed_explains_it() {
    // The client has released another hold when the stall is told.
    for (process, expected) in [("resource", "stall"), ("worker-3", "unexplained")] {
        let mut s = builder();
        s.plan.workload.workers = 3;
        s.write(1, 1, 100, 2_502).release_refused(1, 2_503).acquire(3, 1, 2_510, 2_520, 43).release(3, 2_530);
        s.event(process, 2_600, Event::Stall { from: ms(90), to: ms(2_500), late: StallCause::Write });
        assert_eq!(s.causes(), [expected], "{process} stalled");
    }
}

#[test]
fn a_stall_of_a_restarted_resource_explains_an_act_that_waited() {
    // The write leaves at 2,100. Nobody planned the stall, which the second process of the resource tells.
    let mut s = HistoryBuilder::new();
    s.kill(1, "resource", 50).event("resource#2", 1_251, Event::Recovered { durable: 0 });
    s.acquire(1, 1, 2_000, 2_010, 41).acquire(2, 2, 4_000, 4_010, 42).release(2, 4_020);
    s.write(1, 1, 2_100, 4_502).stall("resource#2", 2_090, 4_500);
    assert_eq!(s.causes(), ["stall"]);
}

#[test]
fn a_request_waits_for_the_store_behind_the_resource() {
    // The promise ends at 1,978. The write is under way 1,021-2,100.
    let waits = |resource| {
        let mut s = builder();
        s.plan.resource = resource;
        if resource == ResourceKind::Etcd {
            s.plan.servers = etcd();
        }
        s.work(1, 20, 1_000).write(1, 1, 1_021, 2_100);
        s
    };
    for (resource, expected) in [
        (ResourceKind::Service, "unexplained"),
        (ResourceKind::Postgres, "delay"),
        (ResourceKind::S3, "delay"),
        (ResourceKind::Etcd, "unexplained"),
    ] {
        for (from, to) in [("resource", "resource-store"), ("resource-store", "resource")] {
            let mut s = waits(resource);
            s.inject(7, delay(1_000), "resource", 1_000, 2_090).packets_delayed(7, from, to, 1_030, 2_095);
            assert_eq!(s.causes(), [expected], "{resource:?}, {from} to {to}");
        }
    }
    for (resource, cut, paused) in
        [(ResourceKind::Service, "unexplained", "unexplained"), (ResourceKind::Etcd, "partition", "pause")]
    {
        let mut s = waits(resource);
        let links = partition().on_links(Direction::Both, vec!["redis-1".into()]);
        s.inject(7, links, "resource", 1_000, 2_090);
        assert_eq!(s.causes(), [cut], "{resource:?}");
        let mut s = waits(resource);
        s.pause(7, "redis-1", 1_000, 2_090);
        assert_eq!(s.causes(), [paused], "{resource:?}");
    }
    for (resource, expected) in [(ResourceKind::Service, "unexplained"), (ResourceKind::Postgres, "pause")] {
        let mut s = waits(resource);
        s.unplanned(7, FaultKind::Pause, "resource-store", (1_000, 1_040), 2_090);
        assert_eq!(s.causes(), [expected], "{resource:?}");
    }
}

#[test]
fn very_many_suspects_are_tried_all_together() {
    // Without the pauses of 170 ms each, the write would arrive at 210, and with any ten of them at 1,910.
    let mut s = builder();
    for id in 1..=11 {
        let from = 180 * u64::from(id) - 80;
        s.pause(id, "worker-1", from, from + 170);
    }
    s.write(1, 1, 2_071, 2_080);
    assert_eq!(s.causes(), [["pause"; 11].join("+")]);
}

#[test]
fn the_last_of_very_many_suspects_is_tried_too() {
    for pauses in [32, 200] {
        let mut s = HistoryBuilder::renewing(600);
        s.acquire(1, 1, 0, 10, 41).work(1, 20, 5_000);
        for sent in (600..=3_600).step_by(600) {
            s.renew(1, sent, sent + 5);
        }
        for id in 1..=pauses {
            let from = 15 * u64::from(id) + 20;
            s.pause(id, "worker-1", from, from + 12);
        }
        s.pause(pauses + 1, "worker-1", 4_000, 8_000);
        s.acquire(2, 2, 5_600, 5_610, 42).release(2, 5_620).write(1, 1, 8_001, 8_002);
        let causes = s.causes();
        assert!(
            causes.iter().all(|cause| cause.split('+').all(|one| one == "pause")) && causes.len() == 1,
            "{causes:?}"
        );
    }
}

#[test]
fn a_kill_that_the_engine_refused_explains_nothing() {
    // If worker 1 reads before the heal, at 106, the checker has the end of the entitlement by then.
    for (told, is_seen) in [(150, false), (5_300, false), (5_300, true)] {
        let mut s = builder();
        if is_seen {
            s.read(1, 2, 104, 106);
        }
        s.kill_refused(1, "worker-1", 100, told).pause(2, "worker-1", 200, 5_200).write(1, 1, 5_201, 5_202);
        assert_eq!(s.causes(), ["pause"], "told at {told}, seen: {is_seen}");
    }
}

#[test]
fn a_slow_clock_makes_work_longer_by_what_it_lost() {
    let slow = |clock, ppm| {
        let change = ClockChange::DriftPpm(ppm);
        Fault::new(fault::Clock { clock, change }, std::time::Duration::from_secs(1))
    };
    // The promise ends at 1,978. The client plans work 20-1,520, and sends its write at 2,377. The fault is on from 5
    // before `from` on. A clock that is slow by a quarter from 320 on shows the end of the work at 1,920. It has lost
    // 400 by then, without which the write is in time.
    for (clock, ppm, node, from, expected) in [
        (WhichClock::Monotonic, -250_000, "worker-1", 325, "clock"),
        (WhichClock::Both, -250_000, "worker-1", 325, "clock"),
        (WhichClock::Monotonic, -250_000, "worker-1", 326, "unexplained"),
        (WhichClock::Monotonic, 250_000, "worker-1", 325, "unexplained"),
        (WhichClock::Wall, -250_000, "worker-1", 325, "unexplained"),
        (WhichClock::Monotonic, -250_000, "worker-2", 325, "unexplained"),
    ] {
        let mut s = builder();
        s.work(1, 20, 1_500).write(1, 1, 2_377, 2_378).inject(1, slow(clock, ppm), node, from, 3_000);
        assert_eq!(s.causes(), [expected], "{clock:?} by {ppm} ppm of {node} from {from}");
    }
    // The time that two clock faults lost adds up. The first one loses 252, and the second one 189 until the clock
    // shows the end of the work, at 1,961. Each of the two would have been enough.
    for (from, expected) in [(105, "clock"), (106, "unexplained")] {
        let mut s = builder();
        let slow = || slow(WhichClock::Monotonic, -250_000);
        s.work(1, 20, 1_500).write(1, 1, 2_418, 2_419);
        s.inject(1, slow(), "worker-1", from, 1_103).inject(2, slow(), "worker-1", 1_210, 2_203);
        assert_eq!(s.causes(), [expected], "the first one from {from}");
    }
}

#[test]
fn what_a_slow_clock_loses_after_the_work_makes_no_act_late() {
    // The clock is slow by a fifth, and shows the end of the work 20-1,520 at 1,895. So without the pause 1,800-2,600
    // the write is in time, although the clock has lost 516 by 2,602.
    let change = ClockChange::DriftPpm(-200_000);
    let slow = fault::Clock { clock: WhichClock::Monotonic, change };
    let mut s = builder();
    s.work(1, 20, 1_500).write(1, 1, 2_602, 2_603).pause(2, "worker-1", 1_800, 2_600);
    s.inject(1, Fault::new(slow, std::time::Duration::from_secs(3)), "worker-1", 20, 3_000);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_partition_that_nobody_planned_explains_what_a_planned_one_does() {
    // The renewals of 800 and 1,600 fail: without an answer, or at the stamp of their request.
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::NoMajority);
    for (node, expected) in [("redis-1", "partition"), ("worker-1", "partition"), ("worker-2", "unexplained")] {
        for lasted in [40, 0] {
            let mut s = HistoryBuilder::renewing(800);
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 0, 10, 41);
            for sent in [800, 1_600] {
                s.event("worker-1", sent, Event::Renew { hold });
                s.event("worker-1", sent + lasted, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
            }
            s.unplanned(7, FaultKind::Partition, node, (100, 150), 1_990);
            s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).write(1, 1, 2_051, 2_052);
            assert_eq!(s.causes(), [expected], "{node}, {lasted} ms");
        }
    }
    // The write is under way 1,021-2,100.
    for (node, expected) in [("resource", "partition"), ("redis-1", "unexplained")] {
        let mut s = builder();
        s.work(1, 20, 1_000).write(1, 1, 1_021, 2_100);
        s.unplanned(7, FaultKind::Partition, node, (1_000, 1_040), 1_900);
        assert_eq!(s.causes(), [expected], "{node}");
    }
}

#[test]
fn pauses_of_another_time_cost_an_act_no_time_for_each_pair() {
    // 8,000 pauses of worker 1 in which nobody has a hold, and then twenty holds of it that act after a pause.
    let (others, holds) = (8_000, 20);
    let mut s = HistoryBuilder::new();
    for id in 1..=others {
        let from = 10 * u64::from(id);
        s.pause(id, "worker-1", from, from + 8);
    }
    for n in 0..holds {
        let (at, hold) = (100_000 + 5_000 * u64::from(n), 2 * u64::from(n) + 1);
        s.acquire(hold, 1, at, at + 10, hold).acquire(hold + 1, 2, at + 2_000, at + 2_010, hold + 1);
        s.release(hold + 1, at + 2_020).pause(others + 1 + n, "worker-1", at + 100, at + 2_500);
        s.write(hold, 1, at + 2_501, at + 2_502);
    }
    let windows = s.lock().windows;
    let causes: Vec<String> = windows.iter().flat_map(|window| &window.causes).map(ToString::to_string).collect();
    assert_eq!(causes, vec!["pause"; holds as usize]);
}
