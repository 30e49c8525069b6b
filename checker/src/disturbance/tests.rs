use std::time::Duration;

use history::{ClockChange, CutMode, FailureReason, Fault, FaultKind, FaultPhase, NodeAnswer, WhichClock, fault};

use crate::history_builder::{HistoryBuilder, count, ms, redis_replicated};

const SECOND: Duration = Duration::from_secs(1);

/// Returns whether an attempt that is sent at a stamp and refused counts as stuck. Nobody holds the key, which was
/// released at 50. So only a disturbance less than 3 s ago (a lease and the slack) can excuse the refusal.
fn is_stuck(s: &mut HistoryBuilder, at: u64) -> bool {
    let no = HistoryBuilder::answers(&[(1, NodeAnswer::Refused), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
    s.acquire(1, 1, 0, 10, 41).release(1, 50);
    s.try_to_acquire(2, 2, at).acquire_failed(2, at + 5, FailureReason::Held, no);
    count(&s.verdicts(), "liveness.stuck") == 1
}

#[test]
fn a_fault_disturbs_until_its_heal_is_proved() {
    // Healed at 5,000, and proved healed at 6,000.
    for (at, expected) in [(9_000, false), (9_001, true)] {
        let (mut s, kind, node) = (HistoryBuilder::new(), FaultKind::Pause, "redis-1");
        s.fault(1, kind, node, 4_000, FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None });
        s.fault(1, kind, node, 4_010, FaultPhase::Injected).fault(1, kind, node, 5_000, FaultPhase::Healed);
        s.fault(1, kind, node, 5_010, FaultPhase::Proved { from: ms(4_005), to: ms(4_995) });
        s.fault(1, kind, node, 6_000, FaultPhase::HealProved);
        assert_eq!(is_stuck(&mut s, at), expected, "sent at {at}");
    }
}

#[test]
fn a_fault_whose_heal_is_not_proved_goes_on_disturbing() {
    // Healed at 5,000.
    for (proved, at, expected) in [(None, 20_000, false), (Some(9_500), 9_001, false), (Some(5_010), 9_001, true)] {
        let (mut s, kind, node) = (HistoryBuilder::new(), FaultKind::Pause, "redis-1");
        s.fault(1, kind, node, 4_000, FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None });
        s.fault(1, kind, node, 4_010, FaultPhase::Injected).fault(1, kind, node, 5_000, FaultPhase::Healed);
        s.fault(1, kind, node, 5_005, FaultPhase::Proved { from: ms(4_005), to: ms(4_995) });
        if let Some(at) = proved {
            s.fault(1, kind, node, at, FaultPhase::HealProved);
        }
        assert_eq!(is_stuck(&mut s, at), expected, "proved at {proved:?}, sent at {at}");
    }
}

#[test]
fn a_second_cut_prolongs_the_silence_of_the_first() {
    // The first cut from 995 to 4,005 may silence connections until 7,415. The second one ends at 5,205: a packet that
    // was lost at 995 is sent again by 5,205 + 4,210 + 400.
    for (at, expected) in [(12_815, false), (12_816, true)] {
        let cut = Fault::new(fault::Partition { cut: CutMode::Drop }, SECOND);
        let mut s = HistoryBuilder::new();
        s.inject(1, cut.clone(), "redis-1", 1_000, 4_000).inject(2, cut, "redis-1", 5_000, 5_200);
        assert_eq!(is_stuck(&mut s, at), expected, "sent at {at}");
    }
}

#[test]
fn a_clock_that_is_wrong_for_long_prolongs_no_silence() {
    // The clock is wrong from 995 to 10,005. A cut from 8,995 to 9,505 silences connections until 10,415.
    for (at, expected) in [(13_415, false), (13_416, true)] {
        let clock = fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(1) };
        let cut = Fault::new(fault::Partition { cut: CutMode::Drop }, SECOND);
        let mut s = HistoryBuilder::new();
        s.inject(1, Fault::new(clock, SECOND), "redis-1", 1_000, 10_000).inject(2, cut, "redis-2", 9_000, 9_500);
        assert_eq!(is_stuck(&mut s, at), expected, "sent at {at}");
    }
}

#[test]
fn a_primary_that_was_replaced_disturbs_until_it_is_demoted() {
    // Healed at 5,005. The node may grant locks as a primary for 18 s more.
    for (at, expected) in [(26_005, false), (26_006, true)] {
        let mut s = HistoryBuilder::new();
        s.plan.servers = redis_replicated();
        s.inject(1, Fault::new(fault::Kill {}, SECOND), "redis-1", 4_000, 5_000);
        assert_eq!(is_stuck(&mut s, at), expected, "sent at {at}");
    }
}

#[test]
fn a_fault_that_was_never_injected_disturbs_until_it_is_called_unproved() {
    for (at, expected) in [(8_000, false), (8_001, true)] {
        let (mut s, kind, node) = (HistoryBuilder::new(), FaultKind::Pause, "redis-1");
        s.fault(1, kind, node, 4_000, FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None });
        s.fault(1, kind, node, 5_000, FaultPhase::Unproved { why: String::new() });
        assert_eq!(is_stuck(&mut s, at), expected, "sent at {at}");
    }
}

#[test]
fn a_fault_of_a_worker_replaces_no_primary() {
    // The heal is proved at 5,020.
    for (at, expected) in [(8_020, false), (8_021, true)] {
        let mut s = HistoryBuilder::new();
        s.plan.servers = redis_replicated();
        s.inject(1, Fault::new(fault::Pause {}, SECOND), "worker-1", 4_000, 5_000);
        assert_eq!(is_stuck(&mut s, at), expected, "sent at {at}");
    }
}

#[test]
fn a_stall_of_the_machine_may_end_in_an_election() {
    // Worker 1 stalls until 5,000. After a pause of the worker alone, whose heal is proved at 5,020, nobody elects.
    for (has_leader, is_planned, quiet) in [(false, false, 5_000), (true, false, 7_000), (true, true, 5_020)] {
        for (at, expected) in [(quiet + 3_000, false), (quiet + 3_001, true)] {
            let mut s = HistoryBuilder::new();
            s.plan.servers.has_leader = has_leader;
            if is_planned {
                s.pause(1, "worker-1", 4_000, 5_000);
            } else {
                s.stall("worker-1", 4_000, 5_000);
            }
            assert_eq!(is_stuck(&mut s, at), expected, "leader: {has_leader}, planned: {is_planned}, sent at {at}");
        }
    }
}
