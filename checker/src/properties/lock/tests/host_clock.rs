//! Windows that a step of the host's clock explains.

use std::time::Duration;

use history::{ClockChange, Event, Fault, HoldId, NodeAnswer, WhichClock, fault};

use super::{HistoryBuilder, Verdict, etcd, redis_replicated};

/// The host's clock steps between these two stamps.
fn step(s: &mut HistoryBuilder, from: u64, to: u64) {
    for (at, wall_ns) in [(from, 0), (to, 60_000_000_000)] {
        s.event("worker-2", at, Event::Clocks { wall_ns, boot_ns: 0 });
    }
}

#[test]
fn a_step_explains_an_overlap_whichever_hold_was_granted_first() {
    // Hold 2 is sent at 0, and its client is slow to read the answer. If hold 2 was granted first, the step ended its
    // lease, and the service granted hold 1 after that.
    let found = |granted_after: u64, from: u64, to: u64| {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 800, 900, 41).acquire_knowing(2, 2, 0, granted_after, 1_500, 42);
        s.release(1, 1_990).release_refused(2, 2_100);
        step(&mut s, from, to);
        (s.causes().concat(), s.lock().verdict)
    };
    assert_eq!(found(0, 100, 700), excused());
    assert_eq!(found(900, 100, 700), excused(), "equal stamps order nothing");
    assert_eq!(found(901, 100, 700), stands(), "hold 1 was granted first, and the step came before its attempt");
    assert_eq!(found(901, 910, 1_400), excused());
    assert_eq!(found(0, 1_500, 1_900), stands(), "both had been granted by then");
}

/// All nodes grant hold 1. Nodes 1 and 2 renew it at 1,000, and node 3 answers the renewal as each case says. The step
/// of the clock comes between 100 and a stamp. Returns the causes of the window that `then` makes, and the verdict.
fn stepped_before_a_renewal(then: impl Fn(&mut HistoryBuilder)) -> [(String, Verdict); 3] {
    [(NodeAnswer::Done, 1_000), (NodeAnswer::Done, 1_001), (NodeAnswer::None, 1_000)].map(|(third, to)| {
        let (hold, lease_ns) = (HoldId(1), 2_000_000_000);
        let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::Done), (3, third)]);
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).event("worker-1", 1_000, Event::Renew { hold });
        s.event("worker-1", 1_010, Event::Renewed { hold, lease_ns, answers });
        then(&mut s);
        step(&mut s, 100, to);
        (s.causes().concat(), s.lock().verdict)
    })
}

fn stands() -> (String, Verdict) {
    ("unexplained".to_owned(), Verdict::Violated)
}

fn excused() -> (String, Verdict) {
    ("host-clock".to_owned(), Verdict::Inconclusive)
}

#[test]
fn a_step_before_a_renewal_explains_no_node_that_did_it() {
    // Hold 2 is granted inside both promises. The step may explain that node 3 had lost the key before the renewal, but
    // not how nodes 1 and 2 lost it.
    let overlaps = |s: &mut HistoryBuilder| {
        s.acquire(2, 2, 1_500, 1_510, 42).release(2, 1_600).release_refused(1, 1_700);
    };
    assert_eq!(stepped_before_a_renewal(overlaps), [stands(), excused(), stands()]);
    // Nodes 1 and 2 restart empty after the renewal, so only node 3 needs the step.
    let found = stepped_before_a_renewal(|s| {
        overlaps(s);
        for (id, node) in [(1, "redis-1"), (2, "redis-2")] {
            s.inject(id, Fault::new(fault::Amnesia::default(), Duration::from_secs(1)), node, 1_100, 1_400);
        }
    });
    assert_eq!(found, [stands(), excused(), excused()]);
}

#[test]
fn a_step_before_a_renewal_that_every_node_did_explains_no_stale_act() {
    // The promise of hold 1 ends at 2,978. Its write arrives at 3,100, and no fault explains that.
    let found = stepped_before_a_renewal(|s| {
        s.acquire(2, 2, 3_000, 3_010, 42).release(2, 3_200).write(1, 1, 3_099, 3_100).release_refused(1, 3_150);
    });
    // The step may explain that node 3 had lost the key before the renewal.
    assert_eq!(found, [stands(), excused(), excused()]);
}

#[test]
fn a_step_explains_a_grant_whose_own_key_was_gone() {
    // Hold 2 waits in the queue when the clock steps. Hold 1 comes after that, and has a key that stands.
    for (is_without_key, expected) in [(true, "host-clock"), (false, "unexplained")] {
        let mut s = HistoryBuilder::new();
        s.plan.servers = etcd();
        s.acquire(1, 1, 900, 910, 41);
        if is_without_key {
            s.event("worker-2", 1_009, Event::WithoutKey { attempt: HoldId(2) });
        }
        s.acquire_knowing(2, 2, 100, 920, 1_010, 42).release(2, 1_100).release(1, 1_200);
        step(&mut s, 500, 600);
        assert_eq!(s.causes(), [expected], "without its key: {is_without_key}");
    }
}

#[test]
fn a_clock_that_was_set_back_ends_no_lease_early() {
    // Hold 2 is granted inside the promise of hold 1. The wall clock steps between 100 and 200; while the host is
    // suspended, the other clock goes on, too.
    for (wall_s, boot_s, is_replicated, expected) in
        [(60, 0, false, excused()), (-60, 0, false, stands()), (-60, 60, false, excused()), (-60, 0, true, excused())]
    {
        let mut s = HistoryBuilder::new();
        if is_replicated {
            s.plan.servers = redis_replicated();
        }
        s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_010, 42).release(2, 1_100).release_refused(1, 1_200);
        for (at, wall_s, boot_s) in [(100, 0, 0), (200, wall_s, boot_s)] {
            let (wall_ns, boot_ns) = (wall_s * 1_000_000_000, boot_s * 1_000_000_000);
            s.event("worker-2", at, Event::Clocks { wall_ns, boot_ns });
        }
        let found = (s.causes().concat(), s.lock().verdict);
        assert_eq!(found, expected, "wall {wall_s} s, boot {boot_s} s, replicated: {is_replicated}");
    }
}

#[test]
fn a_step_ends_a_lease_no_more_than_its_size_too_early() {
    // Hold 2 is acquired at 1,010. The promise of hold 1 ends at 1,978; with the renewal, at 2,478.
    let found = |is_renewed: bool, steps: &[(&str, u64, i64)], alter: &dyn Fn(&mut HistoryBuilder)| {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_010, 42).release(2, 1_100);
        if is_renewed {
            s.renew(1, 500, 510);
        }
        s.release_refused(1, 1_200);
        for (process, at, wall_ms) in steps {
            s.event(process, *at, Event::Clocks { wall_ns: wall_ms * 1_000_000, boot_ns: 0 });
        }
        alter(&mut s);
        (s.causes().concat(), s.lock().verdict)
    };
    for (is_renewed, needed) in [(false, 968), (true, 1_468)] {
        for (by, expected) in [(20, stands()), (needed - 1, stands()), (needed, excused())] {
            let steps = [("worker-2", 600, 0), ("worker-2", 700, by)];
            assert_eq!(found(is_renewed, &steps, &|_| {}), expected, "by {by} ms, renewed: {is_renewed}");
        }
    }
    // Two steps count together, and one that two processes saw counts once.
    let twice = [("worker-2", 600, 0), ("worker-2", 700, 484), ("worker-2", 800, 968)];
    assert_eq!(found(false, &twice, &|_| {}), excused());
    let seen_twice = [("worker-2", 600, 0), ("worker-2", 700, 484), ("worker-1", 600, 0), ("worker-1", 700, 484)];
    assert_eq!(found(false, &seen_twice, &|_| {}), stands());
    // Of replicas and of client programs too little is known.
    let small = [("worker-2", 600, 0), ("worker-2", 700, 20)];
    let replicated = |s: &mut HistoryBuilder| s.plan.servers = redis_replicated();
    let by_program = |s: &mut HistoryBuilder| {
        s.by_program();
    };
    assert_eq!(found(false, &small, &replicated), excused());
    assert_eq!(found(false, &small, &by_program), excused());
    // Nor is it known how a step and a clock fault add up.
    let jump = fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(500) };
    let jump = Fault::new(jump, Duration::from_secs(1));
    let is_set = |s: &mut HistoryBuilder| {
        s.inject(1, jump.clone(), "redis-1", 50, 1_100);
    };
    assert_eq!(found(false, &small, &is_set), excused());
}

#[test]
fn a_clock_that_was_set_back_makes_no_client_act_late() {
    // The promise of hold 1 ends at 1,978. Its write arrives at 2,100, and no fault explains that. The wall clock steps
    // between 100 and 200. A client program may measure its lease by the wall clock.
    for (wall_s, has_program, expected) in
        [(60, false, excused()), (-60, false, stands()), (60, true, excused()), (-60, true, excused())]
    {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_200);
        s.write(1, 1, 2_099, 2_100).release_refused(1, 2_150);
        for (at, wall_ns) in [(100, 0), (200, wall_s * 1_000_000_000)] {
            s.event("worker-2", at, Event::Clocks { wall_ns, boot_ns: 0 });
        }
        if has_program {
            s.by_program();
        }
        let found = (s.causes().concat(), s.lock().verdict);
        assert_eq!(found, expected, "wall {wall_s} s, with a program: {has_program}");
    }
}
