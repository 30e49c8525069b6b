use std::time::Duration;

use history::{Fault, FaultKind, ProcessName, fault};
use proptest::prelude::*;

use super::*;
use crate::history_builder::{HistoryBuilder, count};
use crate::{Figure, Property, WindowKind, check};

/// One hold of a random history. All times are coarse, so that equal stamps are common.
#[derive(Debug, Clone)]
struct Doing {
    worker: u32,
    sent: u64,
    knew: u64,
    took: u64,
    token: u64,
    read: Option<(u64, u64)>,
    write: Option<(u64, u64)>,
    release: Option<u64>,
}

fn doing() -> impl Strategy<Value = Doing> {
    let request = || prop::option::of((0u64..8, 0u64..12));
    let release = prop::option::of(0u64..12);
    (1u32..=3, 0u64..40, 0u64..4, 0u64..6, 1u64..9, request(), request(), release).prop_map(
        |(worker, sent, knew, took, token, read, write, release)| Doing {
            worker,
            sent,
            knew: knew.min(took),
            took,
            token,
            read,
            write,
            release,
        },
    )
}

/// `mirrored` swaps the names of the first and the last worker.
fn builder(doings: &[Doing], pause: Option<(u32, u64, u64)>, mirrored: bool) -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.workers = 3;
    let name = |worker: u32| if mirrored { 4 - worker } else { worker };
    // The numbers of a client's attempts grow.
    let mut doings: Vec<&Doing> = doings.iter().collect();
    doings.sort_by_key(|d| d.sent);
    for (i, d) in doings.into_iter().enumerate() {
        let (hold, worker, unit) = (i as u64 + 1, name(d.worker), 100);
        let ok = d.sent + d.took;
        builder.acquire_knowing(hold, worker, d.sent * unit, (d.sent + d.knew) * unit, ok * unit, d.token);
        if let Some((sent, takes)) = d.read {
            builder.read(hold, 1, (ok + sent) * unit, (ok + sent + takes) * unit);
        }
        if let Some((sent, takes)) = d.write {
            builder.write(hold, 2, (ok + sent) * unit, (ok + sent + takes) * unit);
        }
        if let Some(after) = d.release {
            builder.release_refused(hold, (ok + after) * unit);
        }
    }
    if let Some((worker, from, length)) = pause {
        let node = format!("worker-{}", name(worker));
        builder.pause(1, &node, (from + 1) * 100, (from + 1 + length) * 100);
    }
    builder
}

fn doings() -> impl Strategy<Value = Vec<Doing>> {
    prop::collection::vec(doing(), 1..7)
}

fn pauses() -> impl Strategy<Value = Option<(u32, u64, u64)>> {
    prop::option::of((1u32..=3, 0u64..20, 1u64..30))
}

/// Puts the streams of the processes together as `picks` says; the plan stays first and the end last.
fn interleaved(records: &[Record], picks: &[usize]) -> Vec<Record> {
    let mut streams: Vec<(ProcessName, Vec<Record>)> = Vec::new();
    for record in &records[1..records.len() - 1] {
        match streams.iter_mut().find(|(name, _)| *name == record.process) {
            Some((_, stream)) => stream.push(record.clone()),
            None => streams.push((record.process.clone(), vec![record.clone()])),
        }
    }
    let mut streams: Vec<_> = streams.into_iter().map(|(_, stream)| stream.into_iter().peekable()).collect();
    let mut all = vec![records[0].clone()];
    let mut picks = picks.iter().cycle();
    while streams.iter_mut().any(|s| s.peek().is_some()) {
        streams.retain_mut(|s| s.peek().is_some());
        let i = picks.next().copied().unwrap_or(0) % streams.len();
        all.extend(streams[i].next());
    }
    all.push(records[records.len() - 1].clone());
    all
}

const COUNTS: &[&str] = &[
    "lock.stale_holder",
    "lock.lease_overlap",
    "lock.undecided",
    "lock.unexplained",
    "lock.dead_claims",
    "tokens.backwards",
    "tokens.shared",
    "release.unsafe_releases",
    "release.left_behind",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_do_not_depend_on_how_the_streams_interleave(
        doings in doings(),
        pause in pauses(),
        picks in prop::collection::vec(0usize..64, 1..200),
    ) {
        let records = builder(&doings, pause, false).records();
        let expected = check(records.clone(), Tail::Whole);
        prop_assert_eq!(check(interleaved(&records, &picks), Tail::Whole), expected);
    }

    #[test]
    fn names_of_workers_decide_nothing_between_equal_stamps(doings in doings(), pause in pauses()) {
        let (one, other) = (builder(&doings, pause, false).verdicts(), builder(&doings, pause, true).verdicts());
        for path in COUNTS {
            prop_assert_eq!(one.lookup(path), other.lookup(path), "{}", path);
        }
        let lengths = |v: &Verdicts| {
            let windows = v.lock().map(|lock| lock.windows.clone()).unwrap_or_default();
            let mut lengths: Vec<_> = windows
                .into_iter()
                .map(|w| {
                    let (overlap, staleness) = (w.overlap_ms.to_bits(), w.staleness_ms.map(f64::to_bits));
                    (w.kind, w.holds[0].min(w.holds[1]), w.causes, overlap, staleness)
                })
                .collect();
            lengths.sort();
            lengths
        };
        // The first of two later holds that were acquired at one instant is the same by length, not by name.
        let of_kind = |v: &Verdicts, kind| lengths(v).into_iter().filter(move |w| w.0 == kind);
        let only_overlaps = |v: &Verdicts| of_kind(v, WindowKind::LeaseOverlap).collect::<Vec<_>>();
        let only_stale = |v: &Verdicts| {
            of_kind(v, WindowKind::StaleHolder).map(|w| (w.3, w.4, w.2)).collect::<Vec<_>>()
        };
        prop_assert_eq!(only_overlaps(&one), only_overlaps(&other));
        let (mut a, mut b) = (only_stale(&one), only_stale(&other));
        a.sort();
        b.sort();
        prop_assert_eq!(a, b);
    }

    #[test]
    fn a_violation_is_never_withdrawn_by_more_events(doings in doings(), pause in pauses(), at in 0usize..200) {
        let records = builder(&doings, pause, false).records();
        let whole = check(records.clone(), Tail::Whole);
        let mut part = check(records.into_iter().take(at + 1), Tail::Cut);
        part.properties.0.retain(|(_, property)| property.verdict() == Verdict::Violated);
        for (name, _) in part.properties.iter() {
            let verdict = whole.properties.get(name).map(Property::verdict);
            prop_assert_eq!(verdict, Some(Verdict::Violated), "{}", name);
        }
        for window in part.lock().map(|lock| lock.windows.as_slice()).unwrap_or_default() {
            let windows = &whole.lock().unwrap().windows;
            let same = windows.iter().find(|w| w.kind == window.kind && w.holds == window.holds);
            prop_assert!(same.is_some_and(|w| w.overlap_ms >= window.overlap_ms), "{:?}", window);
        }
    }
}

#[test]
fn every_count_and_list_can_be_looked_up() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 2, 11, 12).acquire(2, 2, 2_000, 2_010, 42);
    builder.write(2, 1, 2_020, 2_030).release(2, 2_040).write(1, 1, 1_900, 2_100).release_refused(1, 2_110);
    let v = builder.verdicts();
    assert_eq!(v.lookup("lock"), Some(Figure::Verdict(Verdict::Violated)));
    assert_eq!(v.lookup("verdict"), Some(Figure::Verdict(Verdict::Violated)));
    assert_eq!(v.lookup("off.data"), Some(Figure::Verdict(Verdict::Measured)));
    for (path, n) in [
        ("lock.windows", 1),
        ("lock.stale_holder", 1),
        ("lock.unexplained", 1),
        ("lock.dead_claims", 0),
        ("off.data.lost_updates", 1),
        ("writes.fence.stale_rejected", 1),
        ("liveness.blocked", 0),
        ("facts.holds", 2),
    ] {
        assert_eq!(count(&v, path), n, "{path}");
    }
    assert_eq!(v.lookup("lock.nothing"), None);
    assert_eq!(v.lookup("nothing.data"), None);
}

#[test]
fn a_stamp_with_a_pending_decision_is_not_complete() {
    // The plan kills the resource, which may undo the decision of 12, and the record has neither a restart nor an end.
    let (hold, op, number) = (history::HoldId(1), history::OpId(1), 1);
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).release(1, 20);
    builder.event("worker-1", 12, Event::ReadOk { hold, op, number, arms: None });
    builder.plan_fault(1, Fault::new(fault::Kill {}, Duration::from_secs(1)), "resource");
    for process in ["worker-2", "resource", "agent"] {
        builder.event(process, 30, Event::Watermark);
    }
    let mut records = builder.records();
    records.retain(|r| !matches!(r.event, Event::End | Event::Finished));
    let v = check(records, Tail::Cut);
    assert_eq!((count(&v, "resource.contradictions"), v.facts.judged_until_ms), (0, 12.0), "{:?}", v.reasons);
    assert_eq!(v.lookup("resource"), Some(Figure::Verdict(Verdict::Inconclusive)));
}

#[test]
fn a_lost_request_does_not_make_memory_grow_with_the_history() {
    let mut builder = HistoryBuilder::new();
    // A killed worker's write never arrives, and the other worker goes on and on.
    builder.acquire(1, 1, 0, 10, 1).event(
        "worker-1",
        50,
        Event::Write { hold: history::HoldId(1), op: history::OpId(1) },
    );
    builder.kill(1, "worker-1", 100);
    for i in 0..2_000 {
        let at = 3_000 + i * 10;
        builder.acquire(i + 10, 2, at, at + 1, i + 10).write(i + 10, 1, at + 2, at + 3).release(i + 10, at + 4);
    }
    let mut records = builder.records();
    records.pop();
    let ended = records.iter().position(|r| matches!(r.event, Event::ProcessEnded { .. })).unwrap();
    let ended = records.remove(ended);
    records.insert(10, ended);
    let mut checker = Checker::new();
    let mut most = 0;
    for record in records {
        checker.feed(record);
        most = most.max(checker.sweep.as_ref().unwrap().run.still_open().len());
    }
    assert!(most < 5, "{most} attempts were open at once");
    let open = checker.sweep.as_ref().unwrap().run.still_open();
    assert_eq!(open[0].id.0, 1, "the write that never arrived is waited for");
}

#[test]
fn acts_under_old_holds_do_not_make_memory_grow_with_the_history() {
    let mut builder = HistoryBuilder::new();
    for i in 1..1_000 {
        let at = i * 20;
        builder.acquire(i, 1, at, at + 1, i).write(i, 1, at + 2, at + 3).release(i, at + 4);
        // Under the last released hold, with a renewal that is never answered, and under an older hold.
        builder.write(i, 2, at + 8, at + 9);
        builder.event("worker-1", at + 22, Event::Renew { hold: history::HoldId(i) });
        if i > 10 {
            builder.write(i - 10, 3, at + 10, at + 11);
        }
    }
    let mut checker = Checker::new();
    let (mut attempts, mut operations) = (0, 0);
    for record in builder.records() {
        checker.feed(record);
        let run = &checker.sweep.as_ref().unwrap().run;
        (attempts, operations) = (attempts.max(run.still_open().len()), operations.max(run.operations.len()));
    }
    assert!(attempts < 4, "{attempts} attempts were open at once");
    assert!(operations < 8, "{operations} operations were kept at once");
}

#[test]
fn a_control_run_with_an_unplanned_fault_is_inconclusive() {
    let judged = |is_hit: bool, is_planned: bool| {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 50);
        if is_hit {
            builder.unplanned(7, FaultKind::Partition, "redis-3", (100, 150), 400);
        }
        if is_planned {
            builder.pause(1, "worker-2", 500, 600);
            builder.plan_fault(1, Fault::new(fault::Pause {}, Duration::from_millis(100)), "worker-2");
        }
        builder.verdicts()
    };
    assert_eq!(judged(false, false).reasons, Vec::<String>::new());
    let hit = judged(true, false);
    assert!(hit.reasons.concat().contains("unplanned partition of redis-3"), "{:?}", hit.reasons);
    assert_eq!(hit.verdict, Verdict::Inconclusive);
    let unplanned = &hit.facts.unplanned_faults[0];
    assert_eq!((unplanned.from_ms, unplanned.to_ms, hit.facts.faults_requested), (150.0, Some(400.0), 0));
    assert_eq!(judged(true, true).reasons, Vec::<String>::new(), "a fault among others is a cause, and no more");
}

#[test]
fn a_decided_operation_of_an_attempt_that_had_not_acquired_makes_the_run_inconclusive() {
    // The write is decided at 30. At that stamp the attempt may have acquired before it.
    let why = "the resource decided an operation of attempt 1, which had not acquired".to_owned();
    for (acquired, expected) in [(30, Vec::new()), (31, vec![why])] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, acquired, 41).write(1, 1, 20, 30).release(1, 50);
        assert_eq!(builder.verdicts().reasons, expected, "acquired at {acquired}");
    }
}
