//! Notes on an upheld lock, and the order of the windows of a violated one.

use std::time::Duration;

use history::{Fault, fault};

use super::{HistoryBuilder, LockVerdict, Verdict};
use crate::report::Report;

fn notes(builder: &HistoryBuilder) -> Vec<String> {
    let lock = builder.lock();
    assert_eq!(lock.verdict, Verdict::Upheld, "{lock:#?}");
    lock.notes
}

#[test]
fn a_run_whose_faults_kept_no_hold_beyond_its_lease_leaves_a_note() {
    let untested = "no hold outlived its lease: the faults did not put the lock to the test";
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 50);
    assert_eq!(notes(&s), Vec::<String>::new(), "no fault was seen to work");
    let kill = Fault::new(fault::Kill {}, Duration::from_secs(1));
    assert_eq!(notes(s.inject(1, kill, "redis-1", 100, 300)), [untested]);
    // The longest of several pauses is told, unless it is as long as the lease.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 20, 520).pause(2, "worker-1", 600, 900).release(1, 950);
    let shorter = "no pause outlasted the lease: the longest was 0.500 s, the lease is 2.000 s";
    assert_eq!(notes(&s), [shorter]);
    assert_eq!(notes(s.pause(3, "worker-2", 1_000, 3_000)), [untested]);
    // The promise ended while the client was paused, and nobody came after it.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 20, 2_500).release_refused(1, 2_501);
    assert_eq!(notes(&s), Vec::<String>::new(), "the hold outlived its lease");
}

#[test]
fn one_undecided_act_is_told_as_one() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 5, 60, 42).release(2, 80).write(1, 1, 40, 70);
    let lock = s.lock();
    assert_eq!(lock.figures(), "1 act or grant undecided");
    assert!(lock.reasons[0].starts_with("1 act came after its own end, and"), "{:?}", lock.reasons);
    // A grant during the promise to a killed client counts too, and is no act.
    assert_eq!(LockVerdict { undecided: 2, ..lock }.figures(), "2 acts or grants undecided");
}

#[test]
fn unexplained_windows_come_first_and_then_those_that_came_first() {
    let mut s = HistoryBuilder::new();
    // The pause explains the first window. Nothing explains the two overlaps after it.
    s.acquire(1, 1, 0, 10, 41).work(1, 20, 100).pause(1, "worker-1", 100, 2_500).write(1, 1, 2_501, 2_502);
    s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).release_refused(1, 2_510);
    for (hold, at) in [(5, 4_000), (3, 3_000)] {
        s.acquire(hold, 1, at, at + 10, hold + 40).acquire(hold + 1, 2, at + 100, at + 110, hold + 41);
        s.release(hold + 1, at + 200).release_refused(hold, at + 300);
    }
    let verdicts = s.verdicts();
    let lock = verdicts.lock().unwrap();
    let found: Vec<_> = lock.windows.iter().map(|w| (w.at_ms, w.causes[0].to_string())).collect();
    let cause = |at, cause: &str| (at, cause.to_owned());
    assert_eq!(found, [cause(3_110.0, "unexplained"), cause(4_110.0, "unexplained"), cause(2_502.0, "pause")]);
    assert_eq!((lock.unexplained, lock.lease_overlap, lock.stale_holder), (2, 2, 1));
    assert_eq!(verdicts.facts.first_window_after_ms, Some(2_502.0), "the first in time");
}
