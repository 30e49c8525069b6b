use history::{FaultKind, HoldId, Role, Tail};

use super::*;
use crate::{
    check,
    history_builder::{HistoryBuilder, count, ms, number, started, verdict},
    verdict::Verdict,
    verdicts::Verdicts,
};

/// Two holds that overlap from 20 to 50, and quiet afterwards.
fn overlapping() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 15, 20, 42).release(1, 50).release(2, 60);
    builder.acquire(3, 1, 1_000, 1_010, 43).release(3, 1_020);
    builder
}

fn judge(records: Vec<Record>) -> (Verdict, u64, Vec<String>) {
    let v = check(records, Tail::Whole);
    (verdict(&v, "lock"), count(&v, "lock.windows"), v.reasons)
}

fn feed(merge: &mut Merge, record: Record) {
    if let Some(process) = merge.see(&record) {
        let Record { at, seq, event, .. } = record;
        merge.keep(Entry { at, seq, process, event, is_undone: false });
    }
}

fn quiet() -> Vec<Record> {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 60, 70, 42).release(2, 80);
    builder.records()
}

#[test]
fn a_whole_record_has_no_reasons() {
    assert_eq!(judge(quiet()), (Verdict::Upheld, 0, vec![]));
}

#[test]
fn a_gap_stops_the_judgement_at_the_last_event_before_it() {
    let mut records = overlapping().records();
    let lost = |r: &Record| r.process.as_str() == "worker-2" && matches!(r.event, Event::Acquired { .. });
    records.retain(|r| !lost(r));
    let v = check(records, Tail::Whole);
    assert_eq!((verdict(&v, "lock"), count(&v, "lock.windows")), (Verdict::Inconclusive, 0));
    assert_eq!(v.reasons, ["worker-2: its event 2 is missing, 3 follows"]);
    assert_eq!(v.facts.judged_until_ms, 15.0);
}

#[test]
fn a_release_that_the_record_lost_makes_no_window() {
    // Hold 1 was released at 50, and hold 2 acquired at 70. After the gap the next event of worker-1 comes at 1,000.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 60, 70, 42).release(2, 80);
    builder.acquire(3, 1, 1_000, 1_010, 43).release(3, 1_020);
    let mut records = builder.records();
    let is_lost =
        |event: &Event| matches!(event, Event::Release { hold: HoldId(1) } | Event::Released { hold: HoldId(1), .. });
    records.retain(|r| !is_lost(&r.event));
    let v = check(records, Tail::Whole);
    assert_eq!((verdict(&v, "lock"), count(&v, "lock.windows")), (Verdict::Inconclusive, 0), "{:?}", v.reasons);
    assert_eq!(v.facts.judged_until_ms, 10.0);
}

#[test]
fn the_earlier_of_two_gaps_stops_the_judgement() {
    // The holds 1 and 3 overlap between the gaps: that of worker-2 after 5, and that of worker-1 after 1,000.
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.workers = 3;
    builder.acquire(2, 2, 5, 10, 40).release(2, 20).acquire(1, 1, 100, 110, 41).acquire(3, 3, 115, 120, 42);
    builder.release(1, 150).release(3, 160).acquire(4, 1, 1_000, 1_010, 43).release(4, 1_020);
    for first in ["worker-1", "worker-2"] {
        let mut records = builder.records();
        records.retain(|r| !(matches!(r.event, Event::Acquired { .. }) && [ms(10), ms(1_010)].contains(&r.at)));
        records.sort_by_key(|r| match r.event {
            Event::Plan { .. } => 0,
            Event::End => 3,
            _ => 1 + u8::from(r.process.as_str() != first),
        });
        let (verdict, windows, reasons) = judge(records);
        assert_eq!((verdict, windows, reasons.len()), (Verdict::Inconclusive, 0, 2), "{first}: {reasons:?}");
    }
}

#[test]
fn a_violation_before_a_gap_stands() {
    let mut records = overlapping().records();
    let lost = records.iter().position(|r| r.at == ms(1_010)).unwrap();
    records.remove(lost);
    let (verdict, windows, reasons) = judge(records);
    assert_eq!((verdict, windows, reasons.len()), (Verdict::Violated, 1, 1));
}

#[test]
fn a_stamp_that_goes_back_stops_the_judgement() {
    let mut records = quiet();
    let i = records.iter().rposition(|r| r.process.as_str() == "worker-1").unwrap();
    records[i].at = ms(1);
    let (verdict, _, reasons) = judge(records);
    assert_eq!(verdict, Verdict::Inconclusive);
    assert!(reasons[0].contains("goes back"), "{reasons:?}");
}

#[test]
fn stamps_of_two_kernels_are_not_judged_at_all() {
    for (boot, namespace) in [("two", 1), ("one", 2)] {
        let mut records = overlapping().records();
        let first = records.iter_mut().find(|r| r.process.as_str() == "resource").unwrap();
        first.event = Event::Started { role: Role::Resource, boot_id: boot.into(), time_namespace: namespace };
        let (verdict, windows, reasons) = judge(records);
        assert_eq!((verdict, windows), (Verdict::Inconclusive, 0));
        assert!(reasons[0].contains("cannot be compared"), "{reasons:?}");
    }
}

#[test]
fn a_record_without_its_end_is_judged_up_to_the_horizon() {
    let mut records = overlapping().records();
    let cut = records.iter().position(|r| r.at >= ms(1_000)).unwrap();
    records.truncate(cut);
    let is_idle = |r: &Record| matches!(r.process.as_str(), "resource" | "agent");
    // The resource and the agent have said nothing yet, so nothing is final.
    let v = check(records.clone(), Tail::Cut);
    assert_eq!((verdict(&v, "lock"), count(&v, "lock.windows"), v.reasons.len()), (Verdict::Inconclusive, 0, 2));
    for (i, process) in ["resource", "agent"].into_iter().enumerate() {
        let n = records.iter().filter(|r| is_idle(r) && r.process.as_str() == process).count() as u64;
        let seq = (records.len() + i) as u64;
        records.push(Record { seq, process: process.into(), n, at: ms(55), event: Event::Watermark });
    }
    let v = check(records, Tail::Cut);
    assert_eq!((verdict(&v, "lock"), count(&v, "lock.windows")), (Verdict::Violated, 1));
    assert_eq!(v.facts.judged_until_ms, 52.0, "worker-1's last word");
}

#[test]
fn a_process_that_ends_unfinished_and_unkilled_makes_the_run_inconclusive() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50);
    builder.unfinished = vec!["worker-2"];
    let (verdict, _, reasons) = judge(builder.records());
    assert_eq!(
        (verdict, reasons.as_slice()),
        (Verdict::Inconclusive, &["worker-2 ended before it had finished, and no fault killed it".to_string()][..],)
    );
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50).kill(1, "worker-2", 100);
    assert_eq!(judge(builder.records()).2, Vec::<String>::new());
}

#[test]
fn the_first_process_that_has_not_ended_stops_the_judgement() {
    // One worker holds the key from 50 on, and its record ends at 100. The other one acquires the key at 130.
    for (holder, other) in [(1, 2), (2, 1)] {
        // The end of a process may be told, though it has not finished.
        for is_told in [false, true] {
            let mut builder = HistoryBuilder::new();
            builder.acquire(1, holder, 40, 50, 41).acquire(2, other, 110, 130, 42);
            for (worker, last) in [(holder, 100), (other, 500)] {
                builder.event(&format!("worker-{worker}"), last, Event::Watermark);
            }
            if is_told {
                builder.unfinished = vec!["worker-1", "worker-2"];
            }
            let mut records = builder.records();
            let is_of_worker = |r: &Record| r.process.as_str().starts_with("worker");
            records.retain(|r| !(is_of_worker(r) && matches!(r.event, Event::Finished)));
            let v = check(records, Tail::Whole);
            let found = (verdict(&v, "lock"), count(&v, "lock.windows"), v.reasons.len());
            assert_eq!(found, (Verdict::Inconclusive, 0, 2), "worker-{holder} first, told: {is_told}");
            assert_eq!(v.facts.judged_until_ms, 100.0, "worker-{holder} first, told: {is_told}");
        }
    }
}

#[test]
fn a_process_that_starts_before_judged_events_makes_the_run_inconclusive() {
    // The other processes have finished at 82, so all of their events have been judged.
    let late = "nothing is judged: worker-1#2 started before events that had been judged".to_string();
    for (at, expected) in [(82, (Verdict::Inconclusive, 0, vec![late])), (83, (Verdict::Upheld, 0, Vec::new()))] {
        let mut records = quiet();
        let end = records.pop().unwrap();
        for (n, at, event) in [(0, at, started(Role::Worker)), (1, 90, Event::Finished)] {
            let (seq, process) = (records.len() as u64, "worker-1#2".into());
            records.push(Record { seq, process, n, at: ms(at), event });
        }
        records.push(Record { seq: records.len() as u64, ..end });
        assert_eq!(judge(records), expected, "started at {at}");
    }
}

#[test]
fn a_request_of_a_process_that_comes_late_in_the_file_is_no_contradiction_of_the_log() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 60, 70, 42).write(2, 1, 71, 72).release(2, 80);
    let mut records = builder.records();
    if let Event::Plan { plan, .. } = &mut records[0].event {
        (plan.workload.workers, plan.workload.clients_per_worker) = (1, 2);
    }
    // The lines of this process come after those of all others, and the plan does not say that it will start.
    let end = records.pop().unwrap();
    let (late, mut moved): (Vec<_>, Vec<_>) = records.into_iter().partition(|r| r.process.as_str() == "worker-2");
    moved.extend(late.into_iter().map(|r| Record { process: "worker-1#2".into(), ..r }));
    moved.push(end);
    let found = check(moved, Tail::Whole);
    assert_eq!(found.verdict, Verdict::Inconclusive, "{:?}", found.reasons);
}

#[test]
fn a_planned_process_that_never_starts_makes_the_run_inconclusive() {
    let records: Vec<_> = quiet().into_iter().filter(|r| r.process.as_str() != "agent").collect();
    assert_eq!(judge(records).2, ["agent never started"]);
}

#[test]
fn a_gap_in_the_admission_log_makes_the_run_inconclusive() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).write(1, 2, 13, 14).release(1, 50);
    let mut records = builder.records();
    for record in &mut records {
        if let Event::Admission { number, .. } = &mut record.event {
            *number += u64::from(*number == 2);
        }
    }
    assert_eq!(judge(records).2, ["the admission log goes from number 1 to write 3"]);
}

#[test]
fn a_history_without_a_plan_is_inconclusive() {
    let records: Vec<_> = quiet().into_iter().skip(1).collect();
    let v: Verdicts = check(records, Tail::Whole);
    assert_eq!((v.verdict, v.reasons.len()), (Verdict::Inconclusive, 1));
}

#[test]
fn a_successor_holds_the_horizon_of_the_process_that_was_killed() {
    let mut merge = Merge::default();
    let event = |process: &str, at, event| (ProcessName::from(process), ms(at), event);
    let kill = Event::Fault {
        fault: history::FaultId(1),
        kind: FaultKind::Kill,
        node: "worker-1".into(),
        phase: FaultPhase::Requested { asked_ns: 1, hold: None },
    };
    let ended = Event::ProcessEnded { ended: "worker-1".into(), code: None };
    let records = number(vec![
        event("worker-1", 1, started(Role::Worker)),
        event("agent", 2, started(Role::Agent)),
        event("agent", 50, kill),
        event("controller", 0, ended),
        event("agent", 500, Event::Watermark),
        event("worker-1#2", 100, started(Role::Worker)),
        event("worker-1#2", 600, Event::Watermark),
    ]);
    let mut popped = Vec::new();
    for (i, record) in records.into_iter().enumerate() {
        feed(&mut merge, record);
        while let Some(next) = merge.next() {
            if let Next::Entry(process) = next {
                popped.extend(merge.first(process).map(|entry| (i, entry.at)));
                merge.taken(process);
            }
        }
    }
    // After the kill nothing is final until the successor has started.
    let expected = [(5, ms(2)), (5, ms(50)), (6, ms(100))];
    assert_eq!(popped.iter().filter(|(_, at)| *at > ms(1)).copied().collect::<Vec<_>>(), expected);
}

/// A worker that was killed, with a watermark at 900, and a request at 500 that nobody invoked.
fn killed_after_an_unknown_request() -> Vec<Record> {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 20, 30).release(1, 50);
    builder.write(1, 7, 100, 500).drop_invocation(1, 7).event("worker-1", 900, Event::Watermark);
    for process in ["worker-2", "resource", "agent"] {
        builder.event(process, 300, Event::Watermark);
    }
    let kill = history::Fault::new(history::fault::Kill {}, std::time::Duration::from_secs(1));
    builder.plan_fault(1, kill, "worker-1");
    builder.kill(1, "worker-1", 950).lose_end("worker-1", 940);
    builder.records()
}

#[test]
fn a_process_is_cut_at_its_last_stamp_wherever_its_end_is_told() {
    let records = killed_after_an_unknown_request();
    let is_end = |r: &Record| matches!(&r.event, Event::ProcessEnded { ended, .. } if ended.as_str() == "worker-1");
    let of_worker = |r: &Record| r.process.as_str() == "worker-1";
    // The end is told before anything has been judged; when all lines of the worker have been, and no later ones of
    // others; and last.
    for early in [0, 300, u64::MAX] {
        let rank = |r: &Record| match r.event {
            Event::Plan { .. } => 0,
            Event::End => 5,
            _ if of_worker(r) => 1,
            _ if is_end(r) => 3,
            _ if r.process.as_str() == "controller" => 4,
            _ if r.at <= ms(early.min(u64::MAX / 2_000_000)) => 2,
            _ => 4,
        };
        let mut moved = records.clone();
        moved.sort_by_key(rank);
        let mut n = 0;
        for record in moved.iter_mut().filter(|r| r.process.as_str() == "controller") {
            (record.n, n) = (n, n + 1);
        }
        let found = check(moved, Tail::Whole);
        assert_eq!(count(&found, "resource.contradictions"), 1, "{early}: {:?}", found.reasons);
    }
}

#[test]
fn a_restart_that_nobody_planned_and_that_undoes_admissions_leaves_nothing_to_judge() {
    for durable in [1, 2] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).write(1, 1, 20, 30).write(1, 2, 40, 50).release(1, 60);
        builder.lose_end("resource", 70);
        builder.event("resource#2", 100, started(Role::Resource));
        builder.event("resource#2", 101, Event::Recovered { durable });
        let records = builder.records();
        let restart: Vec<_> = records.iter().filter(|r| r.process.as_str() == "resource#2").cloned().collect();
        // The restart is told when nothing has been judged, or when even later events have.
        for is_early in [true, false] {
            let mut moved = records.clone();
            moved.retain(|r| r.process.as_str() != "resource#2");
            let place = if is_early { 5 } else { moved.len() - 1 };
            moved.splice(place..place, restart.clone());
            let found = check(moved, Tail::Whole);
            let says = |problem: &str| found.reasons.iter().any(|why| why.contains(problem));
            let is_undone = says("admissions that it had reported are undone");
            let is_late = says("resource#2 started before events that had been judged");
            assert_eq!((is_undone, is_late), (is_early && durable == 1, !is_early), "{durable}: {:?}", found.reasons);
            assert_eq!(found.verdict == Verdict::Inconclusive, is_undone || is_late, "{durable} {is_early}");
        }
    }
}

#[test]
fn a_process_that_the_plan_lacks_is_named_beside_the_one_that_never_started() {
    let mut records = quiet();
    for record in records.iter_mut().filter(|r| r.process.as_str() == "worker-2") {
        record.process = "worker2".into();
    }
    let (verdict, _, reasons) = judge(records);
    assert_eq!(verdict, Verdict::Inconclusive);
    let expected = "worker-2 never started; there are events of worker2, which the plan does not have";
    assert!(reasons.iter().any(|reason| reason == expected), "{reasons:?}");
}

#[test]
fn a_stream_holds_the_horizon_once() {
    let mut merge = Merge::default();
    let again = |n| Record { seq: n, process: "worker-1".into(), n, at: ms(1), event: started(Role::Worker) };
    (0..100).for_each(|n| feed(&mut merge, again(n)));
    assert_eq!(merge.holding.len(), 1);
}

#[test]
fn more_processes_than_can_be_judged_are_refused() {
    let mut records = quiet();
    let end = records.pop().unwrap();
    for i in 0..PROCESSES_MAX {
        let (process, at) = (ProcessName::new(format!("other#{i}")), ms(90));
        records.push(Record { seq: records.len() as u64, process, n: 0, at, event: started(Role::Worker) });
    }
    records.push(Record { seq: records.len() as u64, ..end });
    let (verdict, _, reasons) = judge(records);
    assert_eq!(verdict, Verdict::Inconclusive);
    assert!(reasons.iter().any(|reason| reason.contains("it is of more than 10000 processes")), "{reasons:?}");

    let mut records = quiet();
    if let Event::Plan { plan, .. } = &mut records[0].event {
        plan.workload.workers = u32::MAX;
    }
    let (_, _, reasons) = judge(records);
    assert!(reasons.iter().any(|reason| reason.contains("the plan has 4294967295 workers")), "{reasons:?}");
}

#[test]
fn an_answer_of_the_agent_is_not_kept() {
    let mut merge = Merge::default();
    let events = [started(Role::Agent), Event::OrderDone { order: 1, answer: None, failed: None }, Event::Finished];
    for (n, event) in (0..).zip(events) {
        feed(&mut merge, Record { seq: n, process: "agent".into(), n, at: Stamp(n), event });
    }
    assert_eq!(merge.streams.iter().map(|stream| stream.queue.len()).collect::<Vec<_>>(), [2]);
}

#[test]
fn each_kill_excuses_the_end_of_one_process() {
    // Both processes of worker-2 end before they have finished.
    let why = "worker-2#2 ended before it had finished, and no fault killed it".to_string();
    for (is_killed_again, expected) in [(false, vec![why]), (true, Vec::new())] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 50).kill(1, "worker-2", 100).unfinished.push("worker-2#2");
        if is_killed_again {
            let requested = FaultPhase::Requested { asked_ns: 1, hold: None };
            builder.fault(2, FaultKind::Kill, "worker-2", 1_500, requested);
        }
        assert_eq!(judge(builder.records()).2, expected, "killed again: {is_killed_again}");
    }
}

#[test]
fn events_of_a_process_after_its_end_make_the_run_inconclusive() {
    let mut records = quiet();
    let end = records.pop().unwrap();
    let n = records.iter().filter(|r| r.process.as_str() == "worker-1").count() as u64;
    let (seq, process) = (records.len() as u64, "worker-1".into());
    records.push(Record { seq, process, n, at: ms(90), event: Event::Watermark });
    records.push(Record { seq: seq + 1, ..end });
    let (verdict, windows, reasons) = judge(records);
    assert_eq!((verdict, windows, reasons.len()), (Verdict::Inconclusive, 0, 1), "{reasons:?}");
    assert!(reasons[0].contains("worker-1: there are events after its end"), "{reasons:?}");
}

#[test]
fn a_release_after_the_end_of_its_process_makes_no_window() {
    let mut events: Vec<_> = quiet().into_iter().map(|r| (r.process, r.at, r.event)).collect();
    let is_of_worker = |(name, ..): &(ProcessName, Stamp, Event)| name.as_str() == "worker-1";
    let finished = events.iter().position(|e| is_of_worker(e) && e.2 == Event::Finished).unwrap();
    let (name, ..) = events.remove(finished);
    let release = events.iter().position(|e| is_of_worker(e) && matches!(e.2, Event::Release { .. })).unwrap();
    events.insert(release, (name, ms(50), Event::Finished));
    let (verdict, windows, reasons) = judge(number(events));
    assert_eq!((verdict, windows), (Verdict::Inconclusive, 0), "{reasons:?}");
}

#[test]
fn many_recoveries_are_looked_up_soon() {
    const COUNT: u64 = 200_000;
    let record = |n, event| Record { seq: n, process: "resource".into(), n, at: Stamp(n), event };
    let mut merge = Merge::default();
    merge.know_recoveries((1..=COUNT).map(|durable| ("resource".into(), durable)).collect());
    merge.see(&record(0, started(Role::Resource)));
    for durable in 1..=COUNT {
        merge.see(&record(durable, Event::Recovered { durable }));
    }
    assert_eq!(merge.unjudgeable(), None);
}

#[test]
fn a_process_visits_no_restart_of_which_the_merge_was_told() {
    let restarts = (2..=100_000_u32).map(|n| (ProcessName::new(format!("resource#{n}")), u64::from(n)));
    let mut merge = Merge::default();
    merge.know_recoveries(restarts.collect());
    for n in 1..=5_000_u32 {
        let stream = merge.stream(&ProcessName::new(format!("resource#{n}"))).unwrap();
        assert_eq!(merge.streams[stream].durable, u64::from(n) + 1, "after start {n}");
    }
    // A later restart may have found less.
    let mut merge = Merge::default();
    let found = [("resource#4", 9), ("resource#2", 5), ("resource#3", 3), ("other#5", 1)];
    merge.know_recoveries(found.map(|(name, durable)| (name.into(), durable)).to_vec());
    let of_start = |merge: &mut Merge, name: &str| {
        let stream = merge.stream(&name.into()).unwrap();
        merge.streams[stream].durable
    };
    let durable = ["resource", "resource#2", "resource#3", "resource#4"].map(|name| of_start(&mut merge, name));
    assert_eq!(durable, [3, 3, 9, u64::MAX]);
}
