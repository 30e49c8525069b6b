use history::{FailureReason, HoldId, Outcome, Topology};

use super::*;
use crate::{
    history_builder::{HistoryBuilder, ms, state},
    properties::Property,
};

fn fairness(builder: &HistoryBuilder) -> FairnessVerdict {
    assert_eq!(builder.verdicts().reasons, Vec::<String>::new());
    match builder.verdicts().properties.get("fairness") {
        Some(Property::Fairness(found)) => found.clone(),
        other => panic!("{other:?}"),
    }
}

/// Hold 1 is released at 200. Attempt 2 waits from 30 on. Hold 3 is asked for at 50, and granted at 210.
fn queue() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 200);
    builder.try_to_acquire(2, 2, 20).event("worker-2", 30, Event::Behind { attempt: HoldId(2) });
    builder.acquire(3, 1, 50, 210, 43).release(3, 220);
    builder
}

/// Attempt 2 is granted at 260, after a last look at 240 that saw another client ahead.
fn then_granted(builder: &mut HistoryBuilder, place: Option<u64>) {
    let acquired = Event::Acquired {
        attempt: HoldId(2),
        token: None,
        lease_ns: 2_000_000_000,
        granted_after: ms(240),
        promised_from: None,
        place,
        valid_ns: 1_000_000_000,
        answers: Vec::new(),
    };
    builder.event("worker-2", 260, acquired);
}

#[test]
fn a_later_attempt_that_is_granted_first_overtakes() {
    let mut builder = queue();
    then_granted(&mut builder, Some(2));
    let found = fairness(&builder);
    assert_eq!((found.verdict, found.waited, found.overtaken.len()), (Verdict::Violated, 1, 1));
    assert_eq!((found.overtaken[0].attempt, &*found.overtaken[0].by), (HoldId(2), &[HoldId(3)][..]));
    assert_eq!((found.overtaken[0].since_ms, found.overtaken[0].until_ms), (30.0, 240.0));
}

#[test]
fn an_attempt_whose_key_was_not_confirmed_may_have_lost_its_place() {
    let mut builder = queue();
    then_granted(&mut builder, None);
    assert_eq!(fairness(&builder).verdict, Verdict::Upheld);
}

#[test]
fn an_undo_that_removes_the_key_proves_that_the_attempt_was_in_the_queue() {
    // A session without a queue of keys may have got its lock only when the undo came.
    for (topology, answer, verdict) in [
        (Topology::OneStore, NodeAnswer::Done, Verdict::Violated),
        (Topology::OneStore, NodeAnswer::Refused, Verdict::Upheld),
        (Topology::Independent, NodeAnswer::Done, Verdict::Upheld),
    ] {
        let mut builder = queue();
        builder.plan.servers.topology = topology;
        builder.undo(2, 300, 310, HistoryBuilder::answers(&[(1, answer)]));
        builder.acquire_failed(2, 320, FailureReason::Cancelled, Vec::new());
        assert_eq!(fairness(&builder).verdict, verdict, "{topology:?} {answer:?}");
    }
}

#[test]
fn an_attempt_that_was_undone_before_the_grant_was_not_overtaken() {
    let mut builder = queue();
    builder.plan.servers.topology = Topology::OneStore;
    builder.undo(2, 205, 300, HistoryBuilder::answers(&[(1, NodeAnswer::Done)]));
    builder.acquire_failed(2, 320, FailureReason::Cancelled, Vec::new());
    assert_eq!(fairness(&builder).verdict, Verdict::Upheld);
}

#[test]
fn the_first_of_two_undos_may_have_removed_the_key() {
    // The client breaks the first undo off, and sends the second one at 300. The hold that came later is granted at
    // 210.
    for (first, verdict) in [(205, Verdict::Upheld), (210, Verdict::Upheld), (211, Verdict::Violated)] {
        let mut builder = queue();
        builder.plan.servers.topology = Topology::OneStore;
        builder.event("worker-2", first, Event::Undo { attempt: HoldId(2) });
        builder.undo(2, 300, 310, HistoryBuilder::answers(&[(1, NodeAnswer::Done)]));
        builder.acquire_failed(2, 320, FailureReason::Cancelled, Vec::new());
        assert_eq!(fairness(&builder).verdict, verdict, "first undo at {first}");
    }
}

#[test]
fn a_hold_that_was_asked_for_before_the_attempt_waited_does_not_overtake() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 200);
    builder.try_to_acquire(2, 2, 20).event("worker-2", 60, Event::Behind { attempt: HoldId(2) });
    builder.acquire(3, 1, 50, 210, 43).release(3, 220);
    then_granted(&mut builder, Some(2));
    assert_eq!(fairness(&builder).verdict, Verdict::Upheld);
}

#[test]
fn a_larger_place_that_is_granted_first_overtakes_without_a_look_at_the_queue() {
    for (place, verdict) in [(44, 1), (42, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.try_to_acquire(9, 2, 1).event("worker-2", 5, Event::Behind { attempt: HoldId(9) });
        builder.acquire(1, 1, 0, 10, 41).with_place(place).release(1, 20);
        builder.acquire_knowing(12, 2, 6, 30, 40, 43).with_place(43);
        assert_eq!(fairness(&builder).overtaken.len(), verdict, "place {place}");
    }
}

#[test]
fn where_places_contradict_the_stamps_nobody_was_overtaken() {
    // Hold 1 was acquired at 10 with place 100. Then the store lost its state, and hold 12 has place 3.
    for (sent, overtaken) in [(30, 0), (10, 0), (9, 1)] {
        let mut builder = HistoryBuilder::new();
        builder.try_to_acquire(9, 2, 1).event("worker-2", 5, Event::Behind { attempt: HoldId(9) });
        builder.acquire(1, 1, 0, 10, 41).with_place(100).release(1, 20);
        builder.acquire_knowing(12, 2, sent, 30, 40, 43).with_place(3);
        assert_eq!(fairness(&builder).overtaken.len(), overtaken, "sent at {sent}");
    }
}

#[test]
fn each_client_is_counted_with_its_attempts_holds_and_longest_wait() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 900);
    builder.try_to_acquire(2, 2, 100).acquire_failed(2, 110, FailureReason::Held, Vec::new());
    builder.try_to_acquire(3, 2, 200).acquire_failed(3, 210, FailureReason::Held, Vec::new());
    let found = fairness(&builder);
    assert_eq!(found.verdict, Verdict::Measured, "no lock with a queue");
    let counts: Vec<_> = found.clients.iter().map(|c| (c.attempts, c.holds, c.longest_wait_ms)).collect();
    // The second client still waits for the section of its last attempt when the record ends, at 902.
    assert_eq!(counts, [(1, 1, 10.0), (2, 0, 702.0)]);
    assert_eq!(found.jain, Some(0.5));
    assert!(found.figures().contains("2 clients with 0 to 1 holds, Jain's index 0.50"), "{}", found.figures());
}

#[test]
fn a_client_with_far_fewer_holds_than_another_is_named() {
    let mut builder = HistoryBuilder::new();
    for n in 0..11 {
        builder.acquire(n + 1, 1, 100 * n, 100 * n + 10, n + 41).release(n + 1, 100 * n + 20);
    }
    builder.try_to_acquire(50, 2, 100).acquire_failed(50, 110, FailureReason::Held, Vec::new());
    let figures = fairness(&builder).figures();
    assert!(figures.ends_with("worker-2 got only 0 holds in 1 attempt"), "{figures}");
}

#[test]
fn a_client_of_a_worker_that_has_several_is_named_with_its_number() {
    // Client 0 of worker 1 has all holds. Client 1 of the same worker has none.
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.clients_per_worker = 2;
    for n in 0..11 {
        builder.acquire(n + 1, 1, 100 * n, 100 * n + 10, n + 41).release(n + 1, 100 * n + 20);
    }
    let (client, attempt, key, mode) = (ClientId(1), HoldId(50), Key::from("k0"), Mode::Write);
    builder.event("worker-1", 100, Event::Acquire { client, attempt, key, intended: ms(100), mode, above: None });
    let (outcome, why) = (Outcome::Failed, FailureReason::Held);
    let failed = Event::AcquireFailed { attempt, outcome, why, detail: None, answers: Vec::new() };
    builder.event("worker-1", 110, failed);
    let figures = fairness(&builder).figures();
    assert!(figures.ends_with("worker-1/c1 got only 0 holds in 1 attempt"), "{figures}");
}

#[test]
fn a_reader_may_pass_a_reader_and_no_writer() {
    for (mode, verdict) in [(Mode::Read, Verdict::Upheld), (Mode::Write, Verdict::Violated)] {
        let mut builder = queue();
        then_granted(&mut builder, Some(2));
        builder.in_mode(3, Mode::Read).in_mode(2, mode);
        assert_eq!(fairness(&builder).verdict, verdict, "{mode} in the queue");
    }
}

#[test]
fn the_wait_for_an_abandoned_section_counts() {
    // The client waits for 300 ms in vain, and for 10 ms for its next section.
    let mut builder = HistoryBuilder::new();
    builder.try_to_acquire(1, 2, 100).acquire_failed(1, 400, FailureReason::Held, Vec::new());
    builder.acquire(2, 2, 500, 510, 41).release(2, 520);
    assert_eq!(fairness(&builder).longest_wait_ms, 300.0);
}

#[test]
fn a_hold_overtakes_before_any_attempt_reports_that_it_waits() {
    // Attempt 2 was sent at 5 and reports at 15. Hold 1 got the key at 10, although its place is larger.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).with_place(44).release(1, 20);
    builder.try_to_acquire(2, 2, 5).event("worker-2", 15, Event::Behind { attempt: HoldId(2) });
    then_granted(&mut builder, Some(43));
    let found = fairness(&builder);
    assert_eq!((found.verdict, found.overtaken.len()), (Verdict::Violated, 1));
}

#[test]
fn many_holds_during_an_undo_hide_no_overtaking() {
    // Hold 3 overtakes attempt 2 before its undo, which is sent at 65 and answered at 500. All others come later.
    let mut builder = HistoryBuilder::new();
    builder.plan.servers.topology = Topology::OneStore;
    builder.acquire(1, 1, 0, 10, 41).release(1, 40);
    builder.try_to_acquire(2, 2, 20).event("worker-2", 30, Event::Behind { attempt: HoldId(2) });
    for n in 0..=KEPT_MIN as u64 {
        let at = 50 + 20 * n;
        builder.acquire(3 + n, 1, at, at + 5, 43 + n).release(3 + n, at + 10);
    }
    builder.undo(2, 65, 500, HistoryBuilder::answers(&[(1, NodeAnswer::Done)]));
    builder.acquire_failed(2, 510, FailureReason::Cancelled, Vec::new());
    let found = fairness(&builder);
    let [overtaken] = found.overtaken.as_slice() else { panic!("{found:?}") };
    assert_eq!((overtaken.attempt, &*overtaken.by), (HoldId(2), &[HoldId(3)][..]));
}

#[test]
fn equal_stamps_overtake_nobody() {
    // Attempt 2 waits from 30 on, and saw another client ahead at 240.
    for (sent, ok, overtaken) in [(30, 239, 0), (31, 239, 1), (31, 240, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 20);
        builder.try_to_acquire(2, 2, 20).event("worker-2", 30, Event::Behind { attempt: HoldId(2) });
        builder.acquire(3, 1, sent, ok, 43).release(3, 250);
        then_granted(&mut builder, Some(2));
        assert_eq!(fairness(&builder).overtaken.len(), overtaken, "sent at {sent}, acquired at {ok}");
    }
}

#[test]
fn the_wait_for_a_section_counts_from_its_first_attempt() {
    // Attempt 1 is for the section that was due at 100. Attempt 2 is for the same one, or for the next one.
    for (due, longest) in [(100, 160.0), (200, 60.0)] {
        let mut builder = HistoryBuilder::new();
        builder.try_to_acquire(1, 2, 100).acquire_failed(1, 110, FailureReason::Held, Vec::new());
        builder.try_to_acquire(2, 2, 200);
        then_granted(&mut builder, None);
        builder.alter_requests(move |event| {
            if let Event::Acquire { attempt: HoldId(2), intended, .. } = event {
                *intended = ms(due);
            }
        });
        assert_eq!(fairness(&builder).longest_wait_ms, longest, "due at {due}");
    }
}

#[test]
fn a_client_waits_no_longer_than_its_process_runs() {
    // Worker 2 waits from 100 on, and is killed at 300: its last event comes at 321, and the last of the record later.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 900).try_to_acquire(2, 2, 100).kill(1, "worker-2", 300);
    assert_eq!(fairness(&builder).longest_wait_ms, 221.0);
    // Its next process begins another section.
    builder.acquire_in("worker-2#2", 3, 1, 1_700, 1_710, 43).release(3, 1_720);
    let found = fairness(&builder);
    let waits: Vec<f64> = found.clients.iter().map(|client| client.longest_wait_ms).collect();
    assert_eq!(waits, [10.0, 221.0]);
}

#[test]
fn a_client_whose_process_has_finished_waits_no_longer() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 900);
    builder.try_to_acquire(2, 2, 100).acquire_failed(2, 110, FailureReason::Held, Vec::new());
    let mut records = builder.records();
    let is_finish = |record: &&mut history::Record| matches!(record.event, Event::Finished);
    let finish = records.iter_mut().filter(is_finish).find(|record| record.process.as_str() == "worker-2").unwrap();
    finish.at = ms(500);
    let verdicts = crate::check(records, history::Tail::Whole);
    let Some(Property::Fairness(found)) = verdicts.properties.get("fairness") else { panic!("{verdicts:?}") };
    assert_eq!(found.longest_wait_ms, 400.0);
}

#[test]
fn a_client_that_still_waits_when_the_record_ends_has_waited_until_then() {
    // Worker 2 waits from 100 on. The last event comes at 902.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 900).try_to_acquire(2, 2, 100);
    let found = fairness(&builder);
    let waits: Vec<f64> = found.clients.iter().map(|client| client.longest_wait_ms).collect();
    assert_eq!((waits.as_slice(), found.longest_wait_ms), (&[10.0, 802.0][..], 802.0));
}

#[test]
fn an_acquisition_visits_no_attempt_at_another_key() {
    let mut run = state::with_worker();
    (1..=60_000).for_each(|n| state::sends(&mut run, n, n.into(), Key::numbered(n)));
    let key = run.intern(&Key::from("k0"));
    let mut fairness = Fairness::default();
    for n in 100_000..200_000 {
        fairness.acquired(&run, &state::queued(n, key));
    }
    assert_eq!(fairness.overtaken, []);
    assert!(fairness.grants[&key].holds.len() <= KEPT_MIN);
}
