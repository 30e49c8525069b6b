use std::time::Duration;

use history::{ClockChange, Event, Fault, FaultKind, FaultPhase, HoldId, Token, WhichClock, fault};

use super::OverclaimedBy;
use crate::{
    cause::Cause,
    history_builder::{HistoryBuilder, etcd, ms, redis_replicated},
    properties::WindowKind,
    verdict::Verdict,
};

fn drift(clock: WhichClock, ppm: i32) -> Fault {
    Fault::new(fault::Clock { clock, change: ClockChange::DriftPpm(ppm) }, Duration::from_secs(1))
}

#[test]
fn a_claim_at_or_after_the_promise_end_is_dead() {
    for (ok, is_dead) in [(1_977, false), (1_978, true), (2_500, true)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, ok, 41).release(1, ok + 1);
        let lock = builder.lock();
        assert_eq!((lock.dead_claims.len() == 1, lock.overclaims.len()), (is_dead, 0), "acquired at {ok}");
        assert_eq!(lock.verdict == Verdict::Violated, is_dead);
    }
}

#[test]
fn a_clock_that_ran_slow_explains_a_dead_claim_and_an_overclaim() {
    // 22 ms too late. The clock was off for 210 ms at most.
    for (fault, node, is_explained) in [
        (drift(WhichClock::Monotonic, -200_000), "worker-1", true),
        (drift(WhichClock::Both, -200_000), "worker-1", true),
        (drift(WhichClock::Monotonic, -100_000), "worker-1", false),
        (drift(WhichClock::Monotonic, 200_000), "worker-1", false),
        (drift(WhichClock::Wall, -200_000), "worker-1", false),
        (drift(WhichClock::Monotonic, -200_000), "worker-2", false),
    ] {
        let expected = if is_explained { (0, 1) } else { (1, 0) };
        let mut dead = HistoryBuilder::new();
        dead.acquire(1, 1, 0, 2_000, 41).release(1, 2_001);
        let mut checked = HistoryBuilder::new();
        checked.acquire(1, 1, 0, 10, 41).check(1, 2_000).release(1, 2_001);
        let mut believed = HistoryBuilder::new();
        believed.acquire(1, 1, 0, 500, 41).believing(1_500).release(1, 2_001);
        for mut builder in [dead, checked, believed] {
            let lock = builder.inject(1, fault.clone(), node, 100, 300).lock();
            let claims = lock.dead_claims.len() + lock.overclaims.len();
            assert_eq!((claims as u64, lock.explained_claims), expected, "{fault:?} of {node}");
            assert_eq!(lock.verdict == Verdict::Violated, !is_explained);
        }
    }
}

#[test]
fn what_a_clock_lost_in_several_faults_adds_up() {
    // 22 ms too late. Each fault was on for 210 ms at most, and took 21 ms at most.
    for (second, expected) in [("worker-1", (0, 1, Verdict::Upheld)), ("worker-2", (1, 0, Verdict::Violated))] {
        let (slow, mut builder) = (|| drift(WhichClock::Monotonic, -100_000), HistoryBuilder::new());
        builder.acquire(1, 1, 0, 2_000, 41).release(1, 2_001);
        builder.inject(1, slow(), "worker-1", 100, 300).inject(2, slow(), second, 400, 600);
        let lock = builder.lock();
        assert_eq!((lock.dead_claims.len(), lock.explained_claims, lock.verdict), expected, "and a clock of {second}");
    }
}

#[test]
fn a_clock_that_was_not_proved_slow_explains_no_claim() {
    // If the fault was on, the clock lost 42 ms, and the claim is 22 ms too late.
    for (is_proved, expected) in [(true, (0, 1, Verdict::Upheld)), (false, (1, 0, Verdict::Violated))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 2_000, 41).release(1, 2_001);
        builder.plan_fault(1, drift(WhichClock::Monotonic, -200_000), "worker-1");
        let shown = match is_proved {
            true => FaultPhase::Proved { from: ms(100), to: ms(300) },
            false => FaultPhase::Unproved { why: "its clock ran as before".into() },
        };
        let requested = FaultPhase::Requested { asked_ns: 200_000_000, hold: None };
        let phases = [(95, requested), (105, FaultPhase::Injected), (305, FaultPhase::Healed), (310, shown)];
        for (at, phase) in phases.into_iter().chain([(320, FaultPhase::HealProved)]) {
            builder.fault(1, FaultKind::Clock, "worker-1", at, phase);
        }
        let lock = builder.lock();
        assert_eq!((lock.dead_claims.len(), lock.explained_claims, lock.verdict), expected, "proved: {is_proved}");
    }
}

#[test]
fn a_clock_explains_only_what_it_lost_since_the_promise_began() {
    let mut builder = HistoryBuilder::new();
    builder.inject(1, drift(WhichClock::Monotonic, -200_000), "worker-1", 100, 300);
    builder.acquire(1, 1, 320, 330, 41).check(1, 2_310).release(1, 2_320);
    assert_eq!((builder.lock().overclaims.len(), builder.lock().explained_claims), (1, 0));
    // The promise counts from a renewal that was sent when the clock was right again.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).renew(1, 400, 410).inject(
        1,
        drift(WhichClock::Both, -200_000),
        "worker-1",
        100,
        300,
    );
    builder.check(1, 2_390).release(1, 2_391);
    assert_eq!(builder.lock().overclaims.len(), 1);
}

#[test]
fn a_deadline_after_the_promise_end_is_an_overclaim() {
    for (valid, past) in [(0, None), (1_968, None), (1_969, Some(1.0)), (2_000, Some(32.0))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).believing(valid).release(1, 100);
        let lock = builder.lock();
        assert_eq!(lock.overclaims.first().map(|o| o.past_ms), past, "valid for {valid} ms");
        assert_eq!(lock.verdict == Verdict::Violated, past.is_some());
    }
    // The deadline of a claim that is dead already has passed: the client does not say when.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 2_100, 41).believing(0).release(1, 2_101);
    assert_eq!((builder.lock().dead_claims.len(), builder.lock().overclaims.len()), (1, 0));
}

#[test]
fn a_check_that_passes_after_the_promise_end_is_an_overclaim() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).check(1, 1_978).release(1, 1_980);
    assert_eq!(builder.lock().verdict, Verdict::Upheld);
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).check(1, 1_978).check(1, 1_979).check(1, 1_985).release(1, 1_990);
    let lock = builder.lock();
    let found: Vec<_> = lock.overclaims.iter().map(|o| (o.hold, o.by, o.past_ms, o.checks)).collect();
    assert_eq!(found, [(HoldId(1), OverclaimedBy::Check, 1.0, 2)]);
    assert_eq!(lock.verdict, Verdict::Violated);
}

#[test]
fn a_check_after_a_renewal_that_was_answered_is_none() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).renew(1, 1_000, 1_010).check(1, 2_978).release(1, 2_980);
    assert_eq!(builder.lock().verdict, Verdict::Upheld);
    // A renewal that was answered too late extends nothing.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).renew(1, 1_900, 1_978).check(1, 1_979).release(1, 1_980);
    assert_eq!(builder.lock().overclaims.len(), 1);
}

#[test]
fn a_slow_clock_that_let_a_renewal_come_too_late_explains_the_checks_after_it() {
    let mut builder = HistoryBuilder::new();
    // The renewal was answered 32 ms after the promise end. The clock had lost 40 ms.
    builder.acquire(1, 1, 0, 10, 41).renew(1, 1_900, 2_010).inject(
        1,
        drift(WhichClock::Both, -200_000),
        "worker-1",
        100,
        300,
    );
    builder.check(1, 3_000).release(1, 3_001);
    let lock = builder.lock();
    assert_eq!((lock.overclaims.len(), lock.explained_claims, lock.verdict), (0, 1, Verdict::Upheld));
    // Without the renewal, the clock would have had to lose a second.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).inject(1, drift(WhichClock::Both, -200_000), "worker-1", 100, 300);
    builder.check(1, 3_000).release(1, 3_001);
    assert_eq!(builder.lock().overclaims.len(), 1);
}

#[test]
fn of_two_renewals_that_came_too_late_the_first_one_counts() {
    // The clock had lost 42 ms at most. The first renewal is answered 42 or 43 ms after the promise end, and the second
    // one 622 ms.
    for (ok, expected) in [(2_020, (0, 2, Verdict::Upheld)), (2_021, (1, 0, Verdict::Violated))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).renew(1, 1_900, ok).renew(1, 2_500, 2_600).check(1, 3_000);
        let (hold, token) = (HoldId(1), Some(Token(41)));
        builder.event("worker-1", 3_001, Event::Reentered { hold, count: 2, token, valid_ns: 1 });
        builder.inject(1, drift(WhichClock::Both, -200_000), "worker-1", 100, 300).release(1, 3_002);
        let lock = builder.lock();
        assert_eq!((lock.overclaims.len(), lock.explained_claims, lock.verdict), expected, "answered at {ok}");
    }
}

#[test]
fn a_renewal_that_came_too_late_explains_a_belief_only_until_it_ends_itself() {
    // A clock that had lost 42 ms let the renewal, which was sent at 1,900, come 32 ms after the promise end. The
    // client took it for done, so it believed in its hold until 3,878.
    let late = || {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).renew(1, 1_900, 2_010);
        builder.inject(1, drift(WhichClock::Both, -200_000), "worker-1", 100, 300);
        builder
    };
    let judged = |builder: &mut HistoryBuilder| {
        let lock = builder.release(1, 9_100).lock();
        (lock.overclaims.len(), lock.explained_claims, lock.verdict)
    };
    for (check, expected) in [(3_878, (0, 1, Verdict::Upheld)), (3_879, (1, 0, Verdict::Violated))] {
        assert_eq!(judged(late().check(1, check)), expected, "a check at {check}");
    }
    // The clock loses another 22 ms after the renewal.
    for (check, expected) in [(3_900, (0, 1, Verdict::Upheld)), (3_901, (1, 0, Verdict::Violated))] {
        let mut builder = late();
        builder.inject(2, drift(WhichClock::Both, -200_000), "worker-1", 3_000, 3_100);
        assert_eq!(judged(builder.check(1, check)), expected, "a check at {check}");
    }
    // A renewal after that end is late once more.
    for (ok, expected) in [(3_877, (0, 1, Verdict::Upheld)), (3_878, (1, 0, Verdict::Violated))] {
        assert_eq!(judged(late().renew(1, 3_800, ok).check(1, 4_000)), expected, "renewed at {ok}");
    }
}

#[test]
fn an_overclaim_is_the_cause_of_the_acts_after_it() {
    // Paused for longer than the lease, with a deadline 5 ms too late: an unchecked client writes all the same.
    let paused = |valid| {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).believing(valid).read(1, 1, 20, 22).work(1, 24, 100);
        builder.pause(1, "worker-1", 100, 5_100).acquire(2, 2, 2_000, 2_051, 42).release(2, 2_220);
        builder.write(1, 2, 5_101, 5_102).release_refused(1, 5_110).window()
    };
    assert_eq!(paused(1_968).causes, [Cause::Fault(history::FaultKind::Pause).into()]);
    assert_eq!(paused(1_973).causes, [Cause::Overclaim.into()]);
    // Acts before the check that passed too late have causes of their own.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).work(1, 12, 2_000).read(1, 1, 2_012, 2_060).acquire(2, 2, 2_000, 2_010, 42);
    builder.check(1, 2_070).write(1, 2, 2_071, 2_080).release_refused(1, 2_090).release(2, 2_100);
    let window = builder.window();
    assert_eq!((window.kind, window.reads, window.writes), (WindowKind::StaleHolder, 1, 1));
    assert_eq!(window.causes, [Cause::Overrun.into(), Cause::Overclaim.into()]);
}

#[test]
fn only_checks_that_passed_count() {
    let mut builder = HistoryBuilder::new();
    let failed = Event::Check { hold: HoldId(1), passed: false };
    builder.acquire(1, 1, 0, 10, 41).event("worker-1", 2_000, failed).release_refused(1, 2_001);
    assert_eq!(builder.lock().verdict, Verdict::Upheld);
}

#[test]
fn a_hold_that_a_minority_granted_violates_the_lock() {
    use history::NodeAnswer::{Done, Granted, Late, None, Refused};
    for (said, granted) in [
        ([Granted, Granted, Granted], Option::None),
        ([Granted, None, Granted], Option::None),
        ([Late, Done, Refused], Option::None),
        ([Granted, None, Refused], Some(1)),
        ([Refused, None, None], Some(0)),
    ] {
        let mut builder = HistoryBuilder::new();
        let answers = HistoryBuilder::answers(&[(1, said[0]), (2, said[1]), (3, said[2])]);
        builder.acquire_on(1, 1, 0, 0, 10, Some(41), answers).release(1, 20);
        let lock = builder.lock();
        let found: Vec<_> = lock.minority_claims.iter().map(|m| (m.granted, m.nodes)).collect();
        assert_eq!(found, granted.map(|granted| (granted, 3)).into_iter().collect::<Vec<_>>(), "{said:?}");
        assert_eq!(lock.verdict == Verdict::Violated, granted.is_some());
    }
}

#[test]
fn the_answer_of_a_store_is_that_of_all_its_members() {
    use history::{NodeAnswer, NodeName};
    for (name, said, is_minority) in [
        ("store", NodeAnswer::Granted, false),
        ("store", NodeAnswer::Refused, true),
        ("redis-1", NodeAnswer::Granted, true),
    ] {
        let mut builder = HistoryBuilder::new();
        builder.acquire_on(1, 1, 0, 0, 10, Some(41), vec![(NodeName::from(name), said)]).release(1, 20);
        assert_eq!(builder.lock().minority_claims.len() == 1, is_minority, "{name} {said:?}");
    }
    // A store that has decided is no minority, even if the record has the answer of one member only.
    let mut builder = HistoryBuilder::new();
    builder.plan.servers.topology = history::Topology::OneStore;
    builder.acquire_on(1, 1, 0, 0, 10, Some(41), HistoryBuilder::answers(&[(1, NodeAnswer::Granted)])).release(1, 20);
    assert_eq!(builder.lock().minority_claims.len(), 0);
    // Of a hold without any answer nothing is known.
    let mut builder = HistoryBuilder::new();
    builder.acquire_on(1, 1, 0, 0, 10, Some(41), Vec::new()).release(1, 20);
    assert_eq!(builder.lock().minority_claims.len(), 0);
}

#[test]
fn a_claim_that_no_replica_has_granted_is_one_of_a_minority() {
    use history::NodeAnswer::{Granted, None, Refused};
    for (servers, name) in [(etcd(), "one store"), (redis_replicated(), "a primary")] {
        for (said, expected) in [
            ([Granted, None, None], vec![]),
            ([None, None, Granted], vec![]),
            ([Refused, None, None], vec![(0, 3)]),
            ([None, None, None], vec![(0, 3)]),
        ] {
            let mut builder = HistoryBuilder::new();
            builder.plan.servers = servers.clone();
            let answers = HistoryBuilder::answers(&[(1, said[0]), (2, said[1]), (3, said[2])]);
            let lock = builder.acquire_on(1, 1, 0, 0, 10, Some(41), answers).release(1, 20).lock();
            let found: Vec<_> = lock.minority_claims.iter().map(|m| (m.granted, m.nodes)).collect();
            assert_eq!(found, expected, "{name}: {said:?}");
            assert_eq!(lock.verdict == Verdict::Violated, !expected.is_empty(), "{name}: {said:?}");
        }
    }
}

#[test]
fn no_step_of_the_hosts_clock_explains_a_claim() {
    // Clients measure deadlines by CLOCK_BOOTTIME. A step of the wall clock does not change it, and it never runs
    // slower than the clock of the stamps: while the machine sleeps, only the stamps stand still.
    let second: i64 = 1_000_000_000;
    for (wall_ns, boot_ns) in [(5 * second, 0), (-5 * second, 0), (5 * second, 5 * second)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 2_000, 41).release(1, 2_001);
        builder.event("worker-1", 5, Event::Clocks { wall_ns: 0, boot_ns: 0 });
        builder.event("worker-1", 1_005, Event::Clocks { wall_ns, boot_ns });
        let lock = builder.lock();
        assert_eq!((lock.dead_claims.len(), lock.verdict), (1, Verdict::Violated), "{wall_ns} and {boot_ns}");
    }
}
