mod contention;
mod deaths;
mod free_since;
mod programs;
mod waiters;

use history::{
    ClockChange, FailureReason, Fault, HoldId, LeaseClock, NodeAnswer, Promise, Topology, WhichClock, fault,
};

use super::{stuck::StuckKind, *};
use crate::history_builder::{HistoryBuilder, etcd, ms, started};
use crate::{check, properties::Property};

fn blocked(builder: &HistoryBuilder) -> Vec<Option<f64>> {
    match builder.verdicts().properties.get("liveness") {
        Some(Property::Liveness(found)) => found.blocked.iter().map(|b| b.blocked_ms).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_is_blocked_from_the_kill_of_its_holder_to_the_next_acquisition() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
    assert_eq!(blocked(&builder), [Some(1_910.0)]);
}

#[test]
fn a_key_that_nobody_acquires_again_stays_blocked() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
    assert_eq!(blocked(&builder), [None]);
}

#[test]
fn a_kill_of_a_worker_without_a_hold_blocks_nothing() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50).kill(1, "worker-1", 100).acquire(2, 2, 2_000, 2_010, 42);
    assert_eq!(blocked(&builder), []);
}

fn judged(builder: &HistoryBuilder) -> (Verdict, Vec<(StuckKind, u64)>) {
    match builder.verdicts().properties.get("liveness") {
        Some(Property::Liveness(found)) => {
            (found.verdict, found.stuck.iter().map(|stuck| (stuck.kind, stuck.attempt.0)).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Worker 2 tries every 100 ms from one time to another, and is refused at once.
fn refused(builder: &mut HistoryBuilder, from: u64, to: u64) {
    for (i, at) in (from..=to).step_by(100).enumerate() {
        let no =
            HistoryBuilder::answers(&[(1, NodeAnswer::Refused), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
        let id = from + 100 + i as u64;
        builder.try_to_acquire(id, 2, at).acquire_failed(id, at + 5, FailureReason::Held, no);
    }
}

#[test]
fn a_process_that_measures_leases_itself_counts_from_its_own_first_look() {
    // Killed between 100 and 120; worker 2 looks for the first time at 9,005, and then all the time.
    let stuck_at = |last| {
        let mut s = HistoryBuilder::new();
        s.plan.servers.lease_clock = LeaseClock::Waiter;
        s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
        refused(&mut s, 9_000, last);
        judged(&s).1.len()
    };
    assert_eq!(stuck_at(12_000), 0, "a lease of 2 s and the slack of 1 s are not over since the look");
    assert_eq!(stuck_at(12_100), 1);
}

fn behind(builder: &mut HistoryBuilder, attempt: u64, worker: &str, at: u64) {
    builder.event(worker, at, Event::Behind { attempt: HoldId(attempt) });
}

#[test]
fn a_key_that_is_acquired_again_in_time_after_a_kill_upholds_it() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
    refused(&mut s, 200, 2_000);
    s.acquire(3_000, 2, 2_100, 2_110, 42).release(3_000, 2_120);
    assert_eq!(judged(&s), (Verdict::Upheld, vec![]));
    // Nobody tried: that it took longer says nothing.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100).acquire(2, 2, 9_000, 9_010, 42).release(2, 9_020);
    assert_eq!(judged(&s), (Verdict::Measured, vec![]));
}

#[test]
fn a_key_that_outlives_the_lease_of_a_dead_holder_violates_it() {
    // Killed between 100 and 120: the lease is over at 2,120, and the slack at 3,120.
    for (last, expected) in [(3_120, None), (3_121, Some(1_006.0))] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
        refused(&mut s, 200, 3_000);
        refused(&mut s, last, last);
        let v = s.verdicts();
        let Some(Property::Liveness(found)) = v.properties.get("liveness") else { panic!() };
        assert_eq!(found.stuck.first().map(|stuck| stuck.free_ms), expected, "refused at {last}");
        assert_eq!(found.verdict == Verdict::Violated, expected.is_some());
    }
}

#[test]
fn a_stuck_attempt_is_told_in_figures_notes_and_evidence() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
    refused(&mut s, 3_121, 3_121);
    let v = s.verdicts();
    let Some(Property::Liveness(found)) = v.properties.get("liveness") else { panic!() };
    let stuck = "1 attempt did not get a key that nobody can have held";
    assert_eq!(found.figures(), format!("{stuck}; 1 killed holder blocked the key for to the end"));
    let line = "k0: worker-2 was refused at 3.126 s; no client can have held the key in the 1.01 s before";
    assert_eq!((found.notes(), found.evidence()), (vec![line.to_owned()], vec![line.to_owned()]));
    // The summary tells the first attempts and deadlocks.
    let many = LivenessVerdict { stuck: vec![found.stuck[0].clone(); 5], ..found.clone() };
    assert_eq!((many.notes().len(), many.evidence().len()), (4, 3));
    assert_eq!(many.notes()[3], "and 2 more stuck attempts; verdict.json has them");
}

#[test]
fn a_lease_from_a_clock_that_was_ahead_outlives_a_dead_holder_for_longer() {
    let jump = fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(1_500) };
    let jump = Fault::new(jump, Duration::from_secs(1));
    // Killed at 4,100: the lease is over at 6,120, and the slack at 7,120.
    for (from, to, is_stuck) in [(3_000, 4_500, false), (3_000, 4_050, false), (100, 1_000, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 4_000, 4_010, 41).kill(1, "worker-1", 4_100);
        refused(&mut s, 4_200, 7_100);
        refused(&mut s, 7_121, 7_121);
        s.inject(2, jump.clone(), "redis-1", from, to);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "ahead from {from} to {to}");
    }
}

#[test]
fn a_drift_that_was_healed_late_gained_all_that_time() {
    // Planned for 1 s, and on from 995 to 8,005: the clock was ahead by 3,505. The key must be had by 14,510.
    let drift = fault::Clock { clock: WhichClock::Wall, change: ClockChange::DriftPpm(500_000) };
    let drift = Fault::new(drift, Duration::from_secs(1));
    for (last, is_stuck) in [(14_500, false), (14_600, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 7_900, 7_910, 41).kill(1, "worker-1", 8_600);
        refused(&mut s, 11_700, last);
        s.inject(2, drift.clone(), "redis-1", 1_000, 8_000);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn an_election_after_a_fault_suspends_the_judgement() {
    let kill = Fault::new(fault::Kill {}, Duration::from_secs(1));
    // Healed at 5,000: the key must be had within a lease and the slack, or with a leader within two seconds more.
    let (alone, store) = (Topology::Independent, Topology::OneStore);
    for (topology, has_leader, to, is_stuck) in [
        (alone, false, 8_100, true),
        (alone, true, 10_000, false),
        (alone, true, 10_100, true),
        (store, false, 10_000, false),
        (store, false, 10_100, true),
    ] {
        let mut s = HistoryBuilder::new();
        (s.plan.servers.topology, s.plan.servers.has_leader) = (topology, has_leader);
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        refused(&mut s, 4_000, to);
        s.inject(1, kill.clone(), "redis-1", 4_000, 5_000);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "{topology:?}, leader: {has_leader}, until {to}");
    }
}

#[test]
fn a_key_that_nobody_can_hold_any_more_and_that_nobody_gets_violates_it() {
    // Released at 50: the key is free from 2,050 on, even if the release failed. A client must have it by 5,050.
    for (to, is_stuck) in [(5_000, false), (5_100, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        refused(&mut s, 100, to);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "tried until {to}");
    }
}

#[test]
fn whatever_may_hold_the_key_suspends_the_judgement() {
    let stuck = || {
        let mut s = HistoryBuilder::new();
        s.plan.workload.workers = 3;
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        refused(&mut s, 100, 5_100);
        s
    };
    assert_eq!(judged(&stuck()).1.len(), 1);
    // A hold that is in use, one that came out of an attempt under way, one that may have come of it.
    assert_eq!(judged(stuck().acquire(2, 3, 2_000, 2_010, 42)).1, []);
    assert_eq!(judged(stuck().acquire(2, 3, 5_000, 5_500, 42)).1, []);
    assert_eq!(judged(stuck().acquire_knowing(2, 3, 2_000, 5_106, 5_500, 42)).1.len(), 1, "it saw another until then");
    assert_eq!(judged(stuck().try_to_acquire(2, 3, 5_000)).1, []);
    let why = FailureReason::NoMajority;
    assert_eq!(judged(stuck().try_to_acquire(2, 3, 3_000).acquire_failed(2, 3_500, why, Vec::new())).1, []);
    assert_eq!(judged(stuck().try_to_acquire(2, 3, 6_000).acquire_failed(2, 6_500, why, Vec::new())).1.len(), 1);
    // One node had granted it to an attempt that was refused by the others.
    let partly =
        HistoryBuilder::answers(&[(1, NodeAnswer::Granted), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
    assert_eq!(judged(stuck().try_to_acquire(2, 3, 3_000).acquire_failed(2, 3_500, FailureReason::Held, partly)).1, []);
}

#[test]
fn faults_of_locks_links_and_clocks_suspend_the_judgement() {
    let lasting = Duration::from_secs(1);
    let jump = |by| Fault::new(fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(by) }, lasting);
    let pause = Fault::new(fault::Pause {}, lasting);
    let kill = Fault::new(fault::Kill {}, lasting);
    // Free from 2,050 on; tried until 8,100.
    for (fault, node, from, to, is_stuck) in [
        (pause.clone(), "redis-1", 1_000, 1_100, true),
        (pause.clone(), "redis-1", 5_000, 5_150, false), // quiet from 5,170 on: must be had by 8,170
        (pause.clone(), "worker-1", 5_000, 5_150, false),
        (kill.clone(), "redis-1", 5_000, 5_150, false),
        (kill, "resource", 5_000, 5_150, true),
        (jump(2_000), "redis-1", 1_000, 2_000, true), // what was granted meanwhile lasts until 4,005 + 2,000
        (jump(4_000), "redis-1", 1_000, 2_000, false),
        (jump(4_000), "worker-1", 1_000, 2_000, true),
    ] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        // Before a fault that comes late, nobody tries.
        refused(&mut s, if from > 2_000 { from } else { 100 }, 8_100);
        let kind = fault.kind();
        s.inject(1, fault, node, from, to);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "{kind} of {node} from {from}");
    }
}

#[test]
fn a_waiter_that_nobody_precedes_any_more_violates_it() {
    let queue = |ok| {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50).acquire_knowing(2, 2, 20, 45, ok, 42).release(2, ok + 10);
        behind(&mut s, 2, "worker-2", 25);
        s
    };
    // Free from 2,050 on at the latest.
    assert_eq!(judged(&queue(5_050)).1, []);
    assert_eq!(judged(&queue(5_051)).1, [(StuckKind::Waiting, 2)]);
    // The attempt gives up, or waits to the end.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 20).release(1, 50);
    behind(&mut s, 2, "worker-2", 25);
    s.event("worker-1", 5_051, Event::Clocks { wall_ns: 0, boot_ns: 0 });
    assert_eq!(judged(&s).1, [(StuckKind::Waiting, 2)]);
    s.acquire_failed(2, 5_060, FailureReason::Cancelled, Vec::new());
    assert_eq!(judged(&s).1, [(StuckKind::Waiting, 2)]);
}

#[test]
fn a_connection_that_was_silent_after_the_heal_takes_back_what_was_found_meanwhile() {
    for (silent_until, is_stuck) in [(5_900, false), (2_000, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 20).release(1, 50);
        behind(&mut s, 2, "worker-2", 25);
        s.acquire_failed(2, 5_051, FailureReason::Cancelled, Vec::new());
        s.packets_delayed(1, "redis-1", "worker-2", 40, silent_until);
        assert_eq!(!judged(&s).1.is_empty(), is_stuck, "silent until {silent_until}");
    }
}

#[test]
fn two_waiters_that_give_up_do_not_hide_that_one_of_them_was_first() {
    for (given_up, is_stuck) in [(5_050, false), (5_051, true)] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.workers = 3;
        s.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 20).try_to_acquire(3, 3, 30).release(1, 50);
        behind(&mut s, 2, "worker-2", 25);
        behind(&mut s, 3, "worker-3", 35);
        s.acquire_failed(2, given_up, FailureReason::Cancelled, Vec::new());
        s.acquire_failed(3, given_up + 9, FailureReason::Cancelled, Vec::new());
        assert_eq!(!judged(&s).1.is_empty(), is_stuck, "given up at {given_up}");
    }
}

#[test]
fn a_waiter_behind_a_holder_or_a_dead_waiter_waits_rightly() {
    let mut s = HistoryBuilder::new();
    s.plan.workload.workers = 3;
    s.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 3, 20);
    behind(&mut s, 2, "worker-3", 25);
    behind(&mut s, 3, "worker-2", 35);
    // The one before it is killed at 4,000, and its key is there until 6,020.
    s.release(1, 2_500).kill(1, "worker-3", 4_000).acquire_knowing(3, 2, 30, 40, 6_030, 42).release(3, 6_040);
    assert_eq!(judged(&s).1, []);
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).work(1, 30, 9_000);
    behind(&mut s, 2, "worker-2", 25);
    s.release(1, 9_040).acquire_knowing(2, 2, 20, 9_035, 9_050, 42).release(2, 9_060);
    assert_eq!(judged(&s).1, []);
}

#[test]
fn an_attempt_that_the_record_lost_may_hold_the_key() {
    // Worker 1 released the key at 50, and its record ends then or at its death. It is killed at 4,000 and dead by
    // 4,020: an attempt of its last moments may hold the key until 6,020, and 1 s longer.
    for (lost_from, last, is_stuck) in [(60, 7_000, false), (60, 7_100, true), (9_999, 5_100, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50).kill(1, "worker-1", 4_000).lose_end("worker-1", lost_from);
        refused(&mut s, 3_000, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "lost from {lost_from}, refused until {last}");
    }
}

#[test]
fn a_second_kill_takes_back_nothing_of_before() {
    // The record of worker 1 ends at 52, so an attempt of its last moments may have had the key until 3,020. Worker 2
    // is refused for too long after 4,020. Then the next process of worker 1 is killed too.
    for is_planned in [true, false] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        if is_planned {
            s.kill(1, "worker-1", 1_000).lose_end("worker-1", 900);
        } else {
            s.unplanned(1, history::FaultKind::Kill, "worker-1", (990, 1_020), 2_300).unfinished.push("worker-1");
            s.event("worker-1#2", 2_200, started(history::Role::Worker));
        }
        refused(&mut s, 5_100, 8_000);
        assert_eq!(judged(&s).1.len(), 1, "the first death was planned: {is_planned}");
        let kill = |s: &mut HistoryBuilder, at: u64, phase: FaultPhase| {
            s.fault(2, history::FaultKind::Kill, "worker-1", at, phase);
        };
        kill(&mut s, 9_000, FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None });
        kill(&mut s, 9_020, FaultPhase::Injected);
        kill(&mut s, 10_000, FaultPhase::Healed);
        s.unfinished.push("worker-1#2");
        s.event("worker-1#2", 8_990, Event::Watermark);
        s.event("worker-1#3", 10_200, started(history::Role::Worker));
        assert_eq!(judged(&s).1.len(), 1, "the first death was planned: {is_planned}");
    }
}

#[test]
fn a_client_in_a_planned_wait_made_no_attempt_before_it_was_killed() {
    // Worker 1 works on k0 until its death. So no attempt of its last moments holds k1.
    for (planned, is_stuck) in [(4_001, true), (4_000, false)] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.keys = 2;
        s.acquire(1, 1, 0, 10, 41).work(1, 20, planned).kill(1, "worker-1", 4_000).lose_end("worker-1", 30);
        refused(&mut s, 3_000, 5_100);
        s.of_key(2, "k1");
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "planned for {planned}");
    }
}

#[test]
fn a_worker_that_died_unplanned_may_have_made_a_last_attempt() {
    // Its death is noticed at 4,020.
    for (last, is_stuck) in [(7_000, false), (7_100, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        s.unplanned(1, history::FaultKind::Kill, "worker-1", (3_990, 4_020), 5_350).unfinished.push("worker-1");
        s.event("worker-1#2", 5_300, started(history::Role::Worker));
        refused(&mut s, 3_000, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

/// Worker 1 released the key at 50, and worker 2 is refused too late: at 5,100.
fn found_at_5105() -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 50);
    refused(&mut s, 100, 5_100);
    s
}

#[test]
fn a_long_stall_of_any_process_takes_back_stuck_attempts() {
    for (process, from, to, is_stuck) in [
        ("worker-1", 4_600, 5_100, false),
        ("worker-1", 4_601, 5_100, true),  // too short to matter
        ("worker-1", 4_500, 5_094, false), // reported at 5,099: the judgement begins again
        ("worker-1", 5_106, 6_000, true),
        ("resource", 4_000, 6_000, false),
    ] {
        let mut s = found_at_5105();
        s.stall(process, from, to);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "{process} stalled from {from} to {to}");
    }
}

#[test]
fn a_waiter_that_could_not_read_its_answer_waited_rightly() {
    // It stalled for 499 ms, and for nearly all of the time.
    for (from, is_stuck) in [(4_551, true), (40, false)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50).acquire_knowing(2, 2, 20, 45, 5_060, 42).release(2, 5_070);
        behind(&mut s, 2, "worker-2", 25);
        s.stall("worker-2", from, 5_050);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "stalled from {from}");
    }
}

#[test]
fn a_fault_that_is_noticed_late_takes_back_what_was_found_since_it_began() {
    for (since, is_stuck) in [(5_105, false), (5_106, true)] {
        let mut s = found_at_5105();
        s.unplanned(1, history::FaultKind::Partition, "redis-1", (since, 5_200), 5_300);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "since {since}");
    }
}

#[test]
fn a_stall_before_a_cut_that_nobody_planned_ends_the_judgement_for_a_while_only() {
    // Back at 5,300: silent for as long as the cut was, and 400 ms more. Then a lease and the slack.
    let mut s = found_at_5105();
    s.stall("worker-1", 4_600, 5_150);
    s.unplanned(1, history::FaultKind::Partition, "redis-1", (5_105, 5_200), 5_300);
    refused(&mut s, 9_000, 9_000);
    assert_eq!(judged(&s).1.len(), 1);
}

#[test]
fn a_renewal_that_was_answered_with_a_longer_lease_blocks_the_key_for_longer() {
    for (lease_ms, is_stuck) in [(2_000, true), (20_000, false)] {
        let mut s = HistoryBuilder::new();
        let renewed = Event::Renewed { hold: HoldId(1), lease_ns: lease_ms * 1_000_000, answers: Vec::new() };
        s.acquire(1, 1, 0, 10, 41).event("worker-1", 500, Event::Renew { hold: HoldId(1) });
        s.event("worker-1", 510, renewed).kill(1, "worker-1", 1_000);
        refused(&mut s, 1_100, 9_000);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "renewed for {lease_ms} ms");
    }
}

#[test]
fn nothing_is_found_after_a_step_of_the_hosts_clock() {
    for (sampled, is_stuck) in [(500, false), (5_110, true)] {
        let mut s = found_at_5105();
        s.event("worker-1", sampled, Event::Clocks { wall_ns: 0, boot_ns: 0 });
        s.event("worker-1", sampled + 1_000, Event::Clocks { wall_ns: -10_000_000_000, boot_ns: 0 });
        let verdict = if is_stuck { Verdict::Violated } else { Verdict::Inconclusive };
        assert_eq!((judged(&s).0, judged(&s).1.len() == 1), (verdict, is_stuck), "sampled at {sampled}");
    }
}

#[test]
fn a_hold_that_is_renewed_is_in_use_though_its_client_took_another_key() {
    for (promise, is_renewed, is_stuck) in
        [(Promise::Lease, true, false), (Promise::Lease, false, true), (Promise::Session, false, false)]
    {
        let mut s = HistoryBuilder::new();
        (s.plan.workload.keys, s.plan.servers.promise) = (2, promise);
        s.acquire(1, 1, 0, 10, 41).acquire(2, 1, 600, 610, 42).with_key(2, "k1").release(2, 700);
        if is_renewed {
            for at in (500..=8_500).step_by(500) {
                s.renew(1, at, at + 5);
            }
            s.release(1, 9_100);
        }
        refused(&mut s, 100, 8_900);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "{promise:?}, renewed: {is_renewed}");
    }
}

#[test]
fn a_record_that_was_cut_does_not_presume_that_a_hold_is_over() {
    let mut s = HistoryBuilder::new();
    s.plan.workload.keys = 2;
    s.acquire(1, 1, 0, 10, 41).acquire(2, 1, 600, 610, 42).with_key(2, "k1").release(2, 700);
    refused(&mut s, 100, 8_900);
    let stuck = |records: Vec<history::Record>| {
        let verdicts = check(records, history::Tail::Whole);
        let Some(Property::Liveness(found)) = verdicts.properties.get("liveness") else { panic!() };
        found.stuck.len()
    };
    let mut records = s.records();
    assert_eq!(stuck(records.clone()), 1);
    records.pop();
    assert_eq!(stuck(records), 0, "a later event may be one of hold 1");
}

#[test]
fn a_fault_that_was_never_injected_suspends_nothing_after_it_was_called_unproved() {
    for (is_injected, is_stuck) in [(false, true), (true, false)] {
        let mut s = HistoryBuilder::new();
        let kind = history::FaultKind::Pause;
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        s.fault(1, kind, "worker-1", 60, FaultPhase::Requested { asked_ns: 1_000_000, hold: None });
        if is_injected {
            s.fault(1, kind, "worker-1", 70, FaultPhase::Injected);
        }
        s.fault(1, kind, "worker-1", 80, FaultPhase::Unproved { why: String::new() });
        refused(&mut s, 100, 5_100);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "injected: {is_injected}");
    }
}
