//! Decisions that a restart of the resource undid.

use std::time::Duration;

use history::{Event, Fault, FaultKind, FaultPhase, HoldId, OpId, Record, Role, Tail, fault};

use super::{Verdict, check, count, judged, ok, quiet, restarted, started, verdict};

#[test]
fn an_answer_to_an_undone_decision_is_lost_though_another_one_followed() {
    // The write is #4, which is not on disk at the kill. Another copy of it is decided as #5.
    for (answered, lost) in [(4, 1), (5, 0)] {
        let mut s = quiet();
        s.write(2, 2, 98, 99).event("worker-2", 1_305, Event::Resend { hold: HoldId(2), op: OpId(2) });
        restarted(&mut s, 3)
            .forget(4, 3)
            .decided_again(2, 2, 1_310)
            .event("worker-2", 1_320, ok(2, 2, answered))
            .release(2, 1_330);
        let found = judged(&s);
        assert_eq!((found.acknowledged_lost, found.wrong_answers), (lost, 0), "answered as #{answered}: {found:?}");
    }
}

#[test]
fn an_undone_decision_counts_once_however_many_copies_had_its_answer() {
    for copies in 0..3 {
        let mut s = quiet();
        s.write(2, 2, 44, 45);
        (0..copies).for_each(|n| _ = s.arrives_again(2, 2, 50 + n));
        let found = judged(restarted(&mut s, 3).release(2, 1_330));
        assert_eq!((found.undone, found.restarts), (1, 1), "{copies} copies: {found:?}");
    }
}

#[test]
fn a_repeat_of_a_decision_that_the_record_lost_is_no_wrong_repeat() {
    // The write is #4, which is on disk. The record has lost the line, and the client sends the write again.
    let mut s = quiet();
    s.write(2, 2, 97, 98).event("worker-2", 1_305, Event::Resend { hold: HoldId(2), op: OpId(2) });
    restarted(&mut s, 4).arrives_again(2, 2, 1_310).event("worker-2", 1_320, ok(2, 2, 4)).release(2, 1_330);
    let mut records = s.lose_end("resource", 50).records();
    records.retain(|r| !matches!(r.event, Event::Admission { number: 4, repeat: false, .. }));
    let found = check(records, Tail::Whole);
    assert_eq!((count(&found, "resource.wrong_repeats"), verdict(&found, "resource")), (0, Verdict::Inconclusive));
}

#[test]
fn an_answer_may_come_while_the_next_process_opens_the_store() {
    // The write is #4, which is on disk, and the record has lost the line. Its client is slow to read the answer. The
    // next process of the resource starts at 1,200, and tells at 1,301 what it found.
    for answered in [1_199, 1_200, 1_300, 1_301, 1_302] {
        let mut s = quiet();
        s.write(2, 2, 97, 98).event("worker-2", answered, ok(2, 2, 4));
        restarted(&mut s, 4).release(2, 1_330);
        let mut records = s.lose_end("resource", 50).records();
        records.retain(|r| !matches!(r.event, Event::Admission { number: 4, .. }));
        let found = check(records, Tail::Whole);
        let counts = (count(&found, "resource.contradictions"), verdict(&found, "resource"));
        assert_eq!(counts, (0, Verdict::Inconclusive), "answered at {answered}");
    }
}

#[test]
fn an_answered_decision_that_is_not_on_disk_is_lost_though_the_record_has_no_line_of_it() {
    // The write is answered as #4, and the record has lost the line of the log.
    for (durable, expected) in [(4, (0, Verdict::Inconclusive)), (3, (1, Verdict::Violated))] {
        for answered in [99, 101, 1_199, 1_200, 1_300] {
            let mut s = quiet();
            s.write(2, 2, 97, 98).event("worker-2", answered, ok(2, 2, 4));
            restarted(&mut s, durable).release(2, 1_330);
            let mut records = s.lose_end("resource", 50).records();
            records.retain(|r| !matches!(r.event, Event::Admission { number: 4, .. }));
            let found = check(records, Tail::Whole);
            let lost = (count(&found, "resource.acknowledged_lost"), verdict(&found, "resource"));
            assert_eq!(lost, expected, "{durable} were on disk, answered at {answered}");
            assert_eq!(count(&found, "resource.contradictions"), 0);
        }
    }
}

#[test]
fn the_last_process_of_the_resource_is_the_last_one_wherever_its_lines_are() {
    let mut s = quiet();
    restarted(&mut s, 3);
    s.plan_fault(2, Fault::new(fault::Kill {}, Duration::from_secs(1)), "resource");
    let requested = FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None };
    for (at, phase) in [(2_000, requested), (2_020, FaultPhase::Injected), (3_000, FaultPhase::Healed)] {
        s.fault(2, FaultKind::Kill, "resource", at, phase);
    }
    s.event("resource#2", 2_021, Event::Watermark).unfinished.push("resource#2");
    s.event("resource#3", 3_200, started(Role::Resource));
    s.event("resource#3", 3_201, Event::Recovered { durable: 3 });
    s.event("worker-2", 3_300, Event::Write { hold: HoldId(2), op: OpId(2) }).event("worker-2", 3_310, ok(2, 2, 4));
    let records = s.records();
    let of_third = |record: &Record| record.process.as_str() == "resource#3";
    let (third, mut others): (Vec<_>, Vec<_>) = records.iter().cloned().partition(of_third);
    others.splice(1..1, third);
    for records in [records, others] {
        let found = check(records, Tail::Whole);
        assert_eq!(verdict(&found, "resource"), Verdict::Violated);
    }
}
