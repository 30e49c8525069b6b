//! Kills of workers and of the resource.

use history::{FaultKind, FaultPhase, Role};

use super::{HistoryBuilder, found_at_5105, judged, refused, started};

/// Kills worker 1 at 4,000. Its next process has started at 5,105, if its record was not lost. A second kill was
/// requested at 5,100, and this process is dead by 5,120.
fn killed_at_its_start(is_recorded: bool) -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 50);
    for (id, at) in [(1, 4_000), (2, 5_100)] {
        let requested = FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None };
        for (after, phase) in [(0, requested), (20, FaultPhase::Injected), (1_000, FaultPhase::Healed)] {
            s.fault(id, FaultKind::Kill, "worker-1", at + after, phase);
        }
    }
    s.unfinished.push("worker-1");
    if is_recorded {
        s.event("worker-1#2", 5_105, started(Role::Worker)).unfinished.push("worker-1#2");
    }
    s.event("worker-1#3", 6_200, started(Role::Worker));
    s
}

#[test]
fn a_process_that_starts_while_its_kill_is_under_way_dies_by_it() {
    // The record lacks its attempt, or has nothing of the process: the lease of that attempt may last until 7,120.
    for is_recorded in [true, false] {
        let mut s = killed_at_its_start(is_recorded);
        refused(&mut s, 5_200, 7_100);
        s.acquire(9_000, 2, 7_150, 7_155, 43).release(9_000, 7_160);
        assert_eq!(judged(&s).1, [], "recorded: {is_recorded}");
    }
    // The hold ends with its process. So its key must be free at 8,120.
    for (last, is_stuck) in [(8_100, false), (12_000, true)] {
        let mut s = killed_at_its_start(true);
        s.acquire_in("worker-1#2", 2, 0, 5_108, 5_112, 42);
        refused(&mut s, 5_200, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn a_kill_of_the_resource_takes_back_nothing() {
    let mut s = found_at_5105();
    s.kill(1, "resource", 5_104).lose_end("resource", 5_103);
    assert_eq!(judged(&s).1.len(), 1);
}
