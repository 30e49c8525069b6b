//! Windows that a step of the host's clock explains.

use history::{Event, HoldId, NodeAnswer};

use super::{HistoryBuilder, Verdict, etcd};

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
    let excused = ("host-clock".to_owned(), Verdict::Inconclusive);
    assert_eq!(found(0, 100, 700), excused);
    assert_eq!(found(900, 100, 700), excused, "equal stamps order nothing");
    let stands = ("unexplained".to_owned(), Verdict::Violated);
    assert_eq!(found(901, 100, 700), stands, "hold 1 was granted first, and the step came before its attempt");
    assert_eq!(found(901, 910, 1_400), excused);
    assert_eq!(found(0, 1_500, 1_900), stands, "both had been granted by then");
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

/// A step explains nothing from before a renewal by all nodes; it may explain that node 3 had lost the key by then.
fn only_the_first_stands() -> [(String, Verdict); 3] {
    let excused = || ("host-clock".to_owned(), Verdict::Inconclusive);
    [("unexplained".to_owned(), Verdict::Violated), excused(), excused()]
}

#[test]
fn a_step_before_a_renewal_that_every_node_did_explains_no_overlap() {
    // Hold 2 is granted inside both promises.
    let found = stepped_before_a_renewal(|s| {
        s.acquire(2, 2, 1_500, 1_510, 42).release(2, 1_600).release_refused(1, 1_700);
    });
    assert_eq!(found, only_the_first_stands());
}

#[test]
fn a_step_before_a_renewal_that_every_node_did_explains_no_stale_act() {
    // The promise of hold 1 ends at 2,978. Its write arrives at 3,100, and no fault explains that.
    let found = stepped_before_a_renewal(|s| {
        s.acquire(2, 2, 3_000, 3_010, 42).release(2, 3_200).write(1, 1, 3_099, 3_100).release_refused(1, 3_150);
    });
    assert_eq!(found, only_the_first_stands());
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
