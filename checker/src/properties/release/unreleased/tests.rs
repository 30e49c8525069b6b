use history::{Range, fault};

use super::*;
use crate::{
    history_builder::{HistoryBuilder, count, ms, verdict},
    properties::Property,
    verdict::Verdict,
};

fn on(node: u64, answer: NodeAnswer) -> Answers {
    HistoryBuilder::answers(&[(node, answer)])
}

fn left_behind(builder: &HistoryBuilder) -> u64 {
    let v = builder.verdicts();
    let n = count(&v, "release.left_behind");
    assert_eq!(verdict(&v, "release") == Verdict::Violated, n > 0);
    n
}

/// Node 1 refuses attempt 1, which is then undone. Node 3 answers the undo only if `told` is given. Node 3 refuses
/// attempt 2.
fn builder(sent: u64, told: Option<NodeAnswer>) -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.try_to_acquire(1, 1, 10_000).undo(1, 10_010, 10_020, on(3, told.unwrap_or(NodeAnswer::None)));
    builder.acquire_failed(1, 10_020, FailureReason::Held, on(1, NodeAnswer::Refused));
    builder.try_to_acquire(2, 2, sent).acquire_failed(2, sent + 10, FailureReason::Held, on(3, NodeAnswer::Refused));
    builder
}

#[test]
fn a_node_that_keeps_the_key_of_an_attempt_that_was_undone_violates_it() {
    // The undo has arrived by 11,010, and the lease of 2,000 has expired by 13,010.
    for (sent, expected) in [(11_010, 0), (11_011, 1), (13_010, 1), (13_011, 0)] {
        assert_eq!(left_behind(&builder(sent, None)), expected, "sent at {sent}");
    }
}

#[test]
fn one_key_that_was_left_behind_is_told_as_one() {
    let verdicts = builder(11_011, None).verdicts();
    let Some(Property::Release(found)) = verdicts.properties.get("release") else { panic!("{verdicts:?}") };
    let told = "a node refused an attempt for a key that everybody had let go of: 1 time";
    assert_eq!(found.reasons, [told]);
}

#[test]
fn every_delay_of_the_plan_may_delay_one_request() {
    // The undo of 10,010 may take 1 s, and 1 s and 2 s more. So it has arrived by 14,010, and a lease that the attempt
    // was granted meanwhile has expired by 16,010.
    let (lasting, second) = (Duration::from_secs(9), Duration::from_secs(1));
    let drawn = Range { from: second / 2, to: second * 2 };
    for (sent, expected) in [(14_010, 0), (14_011, 1), (16_010, 1), (16_011, 0)] {
        let mut builder = builder(sent, None);
        builder.plan_fault(1, Fault::new(fault::Delay { by: second.into() }, lasting), "redis-3");
        builder.plan_fault(2, Fault::new(fault::Reorder { by: drawn }, lasting), "redis-3");
        builder.plan_fault(3, Fault::new(fault::Pause {}, lasting), "redis-3");
        assert_eq!(left_behind(&builder), expected, "sent at {sent}");
    }
}

#[test]
fn a_node_that_has_answered_has_no_key_of_it() {
    for (told, expected) in [(NodeAnswer::None, 1), (NodeAnswer::Done, 0), (NodeAnswer::Refused, 0)] {
        assert_eq!(left_behind(&builder(11_500, Some(told))), expected, "{told:?}");
    }
}

#[test]
fn a_node_that_answers_after_the_next_release_has_no_key_either() {
    for (told, expected) in [(NodeAnswer::None, 1), (NodeAnswer::Done, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 10_000, 10_010, 41).release_on(1, 10_020, 10_200, on(3, told));
        builder.acquire(2, 1, 10_030, 10_040, 42).release(2, 10_050);
        let refused = on(3, NodeAnswer::Refused);
        builder.try_to_acquire(3, 2, 11_100).acquire_failed(3, 11_110, FailureReason::Held, refused);
        assert_eq!(left_behind(&builder), expected, "{told:?}");
    }
}

#[test]
fn a_fault_that_is_noticed_late_takes_back_keys_that_were_left_behind() {
    for (since, expected) in [(11_510, 0), (11_511, 1)] {
        let mut builder = builder(11_500, None);
        builder.unplanned(1, history::FaultKind::Partition, "redis-3", (since, 11_600), 11_700);
        assert_eq!(left_behind(&builder), expected, "since {since}");
    }
}

#[test]
fn a_key_counts_as_left_behind_within_a_lease_that_a_renewal_made_longer() {
    for (lease_ms, expected) in [(2_000, 0), (20_000, 1)] {
        let mut builder = HistoryBuilder::new();
        let renewed = Event::Renewed { hold: HoldId(1), lease_ns: lease_ms * 1_000_000, answers: Vec::new() };
        builder.acquire(1, 1, 0, 10, 41).event("worker-1", 20, Event::Renew { hold: HoldId(1) });
        builder.event("worker-1", 30, renewed).release(1, 40);
        builder.try_to_acquire(2, 1, 30_000).undo(2, 30_010, 30_020, on(3, NodeAnswer::None));
        builder.acquire_failed(2, 30_020, FailureReason::Held, on(1, NodeAnswer::Refused));
        let refused = on(3, NodeAnswer::Refused);
        builder.try_to_acquire(3, 2, 40_000).acquire_failed(3, 40_010, FailureReason::Held, refused);
        assert_eq!(left_behind(&builder), expected, "renewed for {lease_ms} ms");
    }
}

#[test]
fn whoever_else_may_have_the_key_there_excuses_the_node() {
    let mut with_other = builder(11_500, None);
    with_other.plan.workload.workers = 3;
    assert_eq!(left_behind(with_other.try_to_acquire(3, 3, 11_505)), 0, "sent while the other was under way");
    let mut with_other = builder(11_500, None);
    with_other.plan.workload.workers = 3;
    assert_eq!(left_behind(with_other.try_to_acquire(3, 3, 11_511)), 1, "sent after it");
    let mut with_holder = builder(11_500, None);
    with_holder.plan.workload.workers = 3;
    assert_eq!(left_behind(with_holder.acquire(3, 3, 10_100, 10_110, 41).release(3, 10_500)), 0, "just released");
}

#[test]
fn a_killed_worker_may_not_have_sent_its_undo() {
    // The undo was stamped at 10,010, and its worker is killed at 10,030. So nothing is judged soon afterwards.
    let mut builder = builder(11_500, None);
    builder.kill(1, "worker-1", 10_030);
    assert_eq!(left_behind(&builder), 0);
}

#[test]
fn a_node_that_refused_a_hold_has_no_key_of_it() {
    // Node 3 refuses hold 2 and attempt 3. Only attempt 1, if it was made, may have left a key there.
    for (is_made, expected) in [(false, vec![]), (true, vec![vec![HoldId(1)]])] {
        let mut builder = HistoryBuilder::new();
        if is_made {
            builder.try_to_acquire(1, 1, 10_000).undo(1, 10_010, 10_020, on(3, NodeAnswer::None));
            builder.acquire_failed(1, 10_020, FailureReason::Held, on(1, NodeAnswer::Refused));
        }
        let (granted, refused, done) = (NodeAnswer::Granted, NodeAnswer::Refused, NodeAnswer::Done);
        let answers = HistoryBuilder::answers(&[(1, granted), (2, granted), (3, refused)]);
        builder.acquire_on(2, 2, 10_100, 10_100, 10_110, Some(42), answers);
        builder.release_on(2, 10_200, 10_210, HistoryBuilder::answers(&[(1, done), (2, done)]));
        builder.try_to_acquire(3, 1, 11_500).acquire_failed(3, 11_510, FailureReason::Held, on(3, refused));
        let verdicts = builder.verdicts();
        let Some(Property::Release(found)) = verdicts.properties.get("release") else { panic!() };
        let left_by: Vec<Vec<HoldId>> = found.leftovers.iter().map(|leftover| leftover.left_by.clone()).collect();
        assert_eq!(left_by, expected, "attempt 1 was made: {is_made}");
    }
}

#[test]
fn a_hold_from_before_the_record_may_have_the_key() {
    // Attempt 2 is sent at 11,500. Before it, a lease and the way of a request must be in the record.
    for (start, expected) in [(8_500, 0), (8_499, 1)] {
        let mut records = builder(11_500, None).records();
        let started = records.iter_mut().filter(|record| matches!(record.event, Event::Started { .. }));
        started.for_each(|record| record.at = ms(start));
        let verdicts = crate::check(records, history::Tail::Whole);
        assert_eq!(count(&verdicts, "release.left_behind"), expected, "the record starts at {start}");
    }
}

#[test]
fn a_failed_attempt_that_was_not_undone_may_have_the_key() {
    // Attempt 3 fails at 10,510, and its client does not undo it. If node 3 had granted it, node 3 has its key. Its
    // client need not have read the answer of node 3, because the refusals of the others decided.
    for (answer, expected) in [(NodeAnswer::Granted, 0), (NodeAnswer::None, 0), (NodeAnswer::Refused, 1)] {
        let mut builder = builder(11_600, None);
        builder.plan.workload.workers = 3;
        let refused = NodeAnswer::Refused;
        let answers = HistoryBuilder::answers(&[(1, refused), (2, refused), (3, answer)]);
        builder.try_to_acquire(3, 3, 10_500).acquire_failed(3, 10_510, FailureReason::Held, answers);
        assert_eq!(left_behind(&builder), expected, "{answer:?}");
    }
}

#[test]
fn a_long_stall_of_any_process_takes_back_what_was_found_meanwhile() {
    // Attempt 2 is sent at 11,500 and refused at 11,510. Before it, a lease and the way of a request must be quiet.
    for (from, to, expected) in [
        (11_510, 12_010, 0),
        (11_511, 12_011, 1),
        (11_400, 11_899, 1), // too short to matter
        (11_400, 11_900, 0),
        (7_000, 8_499, 1),
        (7_000, 8_500, 0),
    ] {
        let mut builder = builder(11_500, None);
        builder.stall("worker-1", from, to);
        assert_eq!(left_behind(&builder), expected, "stalled from {from} to {to}");
    }
}

#[test]
fn a_step_of_the_hosts_clock_may_have_kept_a_key_longer() {
    // The clock is set back by 1 s. A lease that was granted before, and the way of its request, may last until 4 s
    // after the step. Attempt 2 is sent at 11,500 and refused at 11,510. A clock that is set forward makes no lease
    // longer.
    let (back, forward) = ([1_000_000_000, 0], [0, 3_600_000_000_000]);
    for (from, to, wall, expected) in [
        (7_000, 7_499, back, 1),
        (7_000, 7_500, back, 0),
        (11_510, 11_600, back, 0),
        (11_511, 11_600, back, 1),
        (7_000, 7_500, forward, 1),
    ] {
        let mut builder = builder(11_500, None);
        for (at, wall_ns) in [from, to].into_iter().zip(wall) {
            builder.event("worker-1", at, Event::Clocks { wall_ns, boot_ns: 0 });
        }
        assert_eq!(left_behind(&builder), expected, "from {from} to {to}, clock {wall:?}");
    }
}

#[test]
fn a_lease_lasts_longer_by_all_steps_back_that_it_met() {
    // Both workers report the same readings of the wall clock, in seconds. Attempt 2 is sent at 11,500 and refused at
    // 11,510. A lease from before a step of 1 s, and the way of its request, may last until 4 s after the step, or
    // until 5 s after the step if the lease met another such step later.
    for (readings, expected) in [
        (&[(5_000, 2), (6_499, 1), (7_000, 0)][..], 1),
        (&[(5_000, 2), (6_500, 1), (7_000, 0)], 0),
        // The second step came after the refusal.
        (&[(5_000, 1), (6_500, 0), (11_511, 0), (11_600, -1)], 1),
        // A lease from before the first step was over before the second one, and a later lease met only that one.
        (&[(1_000, 2), (1_500, 1), (6_500, 1), (7_499, 0)], 1),
        (&[(1_000, 2), (1_500, 1), (6_500, 1), (7_500, 0)], 0),
        // A lease from before a step back by 7 s, and the way of its request, may last until attempt 2 is sent. A later
        // step forward takes its time from the lease again, if it surely came before attempt 2 could need the lease.
        (&[(1_000, 7), (1_500, 0)], 0),
        (&[(1_000, 8), (1_500, 0), (2_000, 0), (2_500, 1)], 0),
        (&[(1_000, 8), (1_500, 0), (2_000, 0), (2_500, 2)], 1),
        (&[(1_000, 7), (1_500, 0), (8_000, 0), (8_500, 7)], 1),
        (&[(1_000, 7), (1_500, 0), (8_000, 0), (8_501, 7)], 0),
        // This step forward came before the one back.
        (&[(500, 0), (900, 7), (1_000, 7), (1_500, 0)], 0),
    ] {
        let mut builder = builder(11_500, None);
        for (at, wall_s) in readings {
            for worker in ["worker-1", "worker-2"] {
                builder.event(worker, *at, Event::Clocks { wall_ns: wall_s * 1_000_000_000, boot_ns: 0 });
            }
        }
        assert_eq!(left_behind(&builder), expected, "{readings:?}");
    }
}

#[test]
fn a_planned_fault_suspends_the_judgement_until_a_lease_after_its_heal() {
    // The heal is proved 20 ms after the fault has ended. Attempt 2 is sent at 11,500.
    let lasting = Duration::from_secs(1);
    let pause = Fault::new(fault::Pause {}, lasting);
    let delay = Fault::new(fault::Delay { by: Duration::from_millis(100).into() }, lasting);
    for (fault, node, to, expected) in [
        (&pause, "redis-3", 8_479, 1),
        (&pause, "redis-3", 8_480, 0),
        (&pause, "worker-2", 8_480, 0),
        (&delay, "redis-3", 8_480, 1), // it only makes the way of a request longer
    ] {
        let mut builder = builder(11_500, None);
        builder.inject(1, fault.clone(), node, 8_000, to);
        assert_eq!(left_behind(&builder), expected, "{fault:?} of {node} until {to}");
    }
}

#[test]
fn a_stall_visits_only_the_findings_that_it_withdraws() {
    let mut keys = UnreleasedKeys::default();
    let found = |n: u64| {
        let (key, node, left_by, witness) = ("k0".into(), "redis-1".into(), Vec::new(), Vec::new());
        let unreleased = UnreleasedKey { key, node, left_by, refused: HoldId(n), witness };
        ((Stamp(0), Stamp(n)), unreleased)
    };
    keys.found.extend((0..100_000).map(found));
    for n in (50_000..100_000).rev() {
        keys.withdraw(Stamp(n));
    }
    let kept: Vec<u64> = keys.found.iter().map(|(_, unreleased)| unreleased.refused.0).collect();
    assert_eq!(kept, (0..50_000).collect::<Vec<_>>());
}
