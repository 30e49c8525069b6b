//! Contradictions inside one record. A record that contradicts itself is not judged at all: one of two lines is wrong,
//! and nobody knows which.

use history::{Event, HoldId, OpId, RequestKind};

use crate::{entry::Entry, holds::Attempt, operations, run::Run, subject::subject};

/// Returns the reason why this event cannot be true, if all earlier events are.
pub(crate) fn contradiction(run: &Run, entry: &Entry) -> Option<String> {
    match &entry.event {
        Event::Started { .. } if run.process(entry.process).is_running => {
            Some(format!("{} starts twice", run.process(entry.process).name))
        }
        Event::Stall { from, to, .. } if from > to || *to > entry.at => {
            Some("a stall ends before it begins, or after it is reported".into())
        }
        Event::Acquire { client, attempt, above, .. } => {
            let workload = &run.plan.workload;
            let clients = workload.workers.saturating_mul(workload.clients_per_worker);
            if client.0 >= clients {
                return Some(format!("an attempt of client {client}; the plan has {clients} clients, counted from 0"));
            }
            if run.attempt(*attempt).is_some() {
                return Some(format!("attempt {attempt} was made twice"));
            }
            if let Some(above) = above
                && !run.attempt(*above).is_some_and(|hold| hold.client == *client && hold.grant.is_some())
            {
                return Some(format!("attempt {attempt} is made under hold {above}, which its client does not have"));
            }
            let last = run.current.get(client).filter(|last| *last >= attempt)?;
            Some(format!("client {client} makes attempt {attempt} after attempt {last}; the numbers of a client grow"))
        }
        event => of_attempt(run, entry, event, subject(event)?),
    }
}

/// The contradictions of an event about an attempt that is known.
fn of_attempt(run: &Run, entry: &Entry, event: &Event, id: HoldId) -> Option<String> {
    let attempt: &Attempt = run.attempt(id)?;
    if attempt.process != entry.process {
        let (one, other) = (&run.process(entry.process).name, &run.process(attempt.process).name);
        return Some(format!("{one} reports an event of attempt {id}, which is an attempt of {other}"));
    }
    match event {
        Event::Acquired { .. } | Event::AcquireFailed { .. } if attempt.completed.is_some() => {
            Some(format!("attempt {id} ends twice"))
        }
        Event::Acquired { granted_after, .. } if *granted_after > entry.at => {
            Some(format!("hold {id}: its client says that it did not hold after it had been told that it does"))
        }
        Event::Acquired { promised_from: Some(from), .. } if *from > entry.at => {
            Some(format!("hold {id}: its promise counts from a request that was sent after it had been acquired"))
        }
        Event::Released { .. } | Event::ReleaseFailed { .. } if attempt.releasing.is_none() => {
            Some(format!("the release of hold {id} was answered, and none was sent"))
        }
        Event::Undone { .. } if attempt.undoing.is_none() => {
            Some(format!("the undo of attempt {id} was answered, and none was sent"))
        }
        Event::Read { op, .. } | Event::Write { op, .. } => {
            run.operations.invoked_as(id, *op)?;
            Some(format!("operation {op} of hold {id} is sent twice, and not as the same operation again"))
        }
        Event::Resend { op, .. } | Event::AccessFailed { op, .. } => {
            of_operation(run, id, *op, &[RequestKind::Read, RequestKind::Write])
        }
        Event::ReadOk { op, .. } => of_operation(run, id, *op, &[RequestKind::Read]),
        Event::WriteOk { op, .. } => of_operation(run, id, *op, &[RequestKind::Write]),
        _ => None,
    }
}

/// The contradiction of an event about an operation that must be of one of these kinds.
fn of_operation(run: &Run, id: HoldId, op: OpId, kinds: &[RequestKind]) -> Option<String> {
    match run.operations.invoked_as(id, op) {
        None => Some(format!("operation {op} of hold {id} is sent again or answered, and was never sent")),
        Some(kind) if !kinds.contains(&kind) => {
            Some(format!("operation {op} of hold {id} is a {}, and its answer is not", operations::name(kind)))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{ClientId, FailureReason, Outcome, Record, Role, StallCause, Stamp, Tail};

    use super::*;
    use crate::{
        check,
        history_builder::{HistoryBuilder, ms, started},
        verdict::Verdict,
    };

    /// Two holds that overlap: without a contradiction, `lock` is violated.
    fn overlapping() -> HistoryBuilder {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 15, 20, 42).release(1, 50).release(2, 60);
        builder
    }

    #[track_caller]
    fn is_refused(builder: &HistoryBuilder, why: &str) {
        let verdicts = builder.verdicts();
        let all = verdicts.properties.iter().map(|(_, property)| property.verdict());
        assert_eq!(all.filter(|verdict| *verdict == Verdict::Violated).count(), 0, "nothing is judged");
        assert_eq!(verdicts.verdict, Verdict::Inconclusive);
        assert!(verdicts.reasons.iter().any(|reason| reason.contains(why)), "{why}: {:?}", verdicts.reasons);
    }

    #[test]
    fn the_record_without_a_contradiction_is_judged() {
        assert_eq!(overlapping().verdicts().verdict, Verdict::Violated);
    }

    #[test]
    fn an_attempt_that_ends_twice_is_refused() {
        let mut builder = overlapping();
        builder.acquire_failed(1, 30, FailureReason::Held, Vec::new());
        is_refused(&builder, "attempt 1 ends twice");
    }

    #[test]
    fn a_number_that_is_used_twice_is_refused() {
        let mut builder = overlapping();
        builder
            .try_to_acquire(4, 1, 70)
            .acquire_failed(4, 75, FailureReason::Held, Vec::new())
            .try_to_acquire(3, 1, 80);
        is_refused(&builder, "client 0 makes attempt 3 after attempt 4");
        // An attempt without a hold is forgotten once its client has given it up.
        let mut builder = overlapping();
        builder.try_to_acquire(4, 1, 70).acquire_failed(4, 75, FailureReason::Held, Vec::new()).give_up(4, 76);
        builder.try_to_acquire(4, 1, 80);
        is_refused(&builder, "client 0 makes attempt 4 after attempt 4");
        let mut builder = overlapping();
        builder.try_to_acquire(2, 1, 55);
        is_refused(&builder, "attempt 2 was made twice");
    }

    #[test]
    fn events_of_an_attempt_from_another_process_are_refused() {
        let mut builder = overlapping();
        builder.event("worker-1", 40, Event::GaveUp { hold: HoldId(2) });
        is_refused(&builder, "worker-1 reports an event of attempt 2, which is an attempt of worker-2");
    }

    #[test]
    fn a_client_that_the_plan_does_not_have_is_refused() {
        let mut builder = overlapping();
        let (client, key) = (ClientId(77), "k0".into());
        builder.event(
            "worker-1",
            40,
            Event::Acquire {
                client,
                attempt: HoldId(9),
                key,
                intended: ms(40),
                mode: history::Mode::Write,
                above: None,
            },
        );
        is_refused(&builder, "an attempt of client 77; the plan has 2 clients");
    }

    #[test]
    fn answers_without_a_request_are_refused() {
        let mut builder = overlapping();
        builder.event("worker-1", 30, Event::Undone { attempt: HoldId(1), answers: Vec::new() });
        is_refused(&builder, "the undo of attempt 1 was answered, and none was sent");
        let mut builder = overlapping();
        builder.event("worker-1", 30, Event::Released { hold: HoldId(1), removed: true, answers: Vec::new() });
        is_refused(&builder, "the release of hold 1 was answered, and none was sent");
    }

    #[test]
    fn operations_that_no_client_can_have_are_refused() {
        let (hold, op) = (HoldId(1), OpId(1));
        let read = || Event::Read { hold, op };
        let write_ok = || Event::WriteOk { hold, op, number: 1, arms: None };
        let failed = || Event::AccessFailed { hold, op, outcome: Outcome::Failed, detail: String::new() };
        let never = "operation 1 of hold 1 is sent again or answered, and was never sent";
        let cases = [
            (vec![write_ok()], never),
            (vec![failed(), read()], never),
            (vec![Event::Resend { hold, op }], never),
            (vec![read(), read()], "operation 1 of hold 1 is sent twice"),
            (vec![read(), Event::Write { hold, op }], "operation 1 of hold 1 is sent twice"),
            (vec![read(), write_ok()], "operation 1 of hold 1 is a read, and its answer is not"),
        ];
        for (events, why) in cases {
            let mut builder = overlapping();
            for (at, event) in (25..).zip(events) {
                builder.event("worker-1", at, event);
            }
            is_refused(&builder, why);
        }
        let mut builder = overlapping();
        builder.event("worker-1", 25, read()).event("worker-1", 26, failed());
        assert_eq!(builder.verdicts().verdict, Verdict::Violated, "a read that failed contradicts nothing");
    }

    #[test]
    fn a_stall_that_ends_before_it_begins_is_refused() {
        for (from, is_wrong) in [(20, false), (21, true)] {
            let mut builder = overlapping();
            builder.event("worker-1", 30, Event::Stall { from: ms(from), to: ms(20), late: StallCause::Tick });
            if is_wrong {
                is_refused(&builder, "a stall ends before it begins, or after it is reported");
            } else {
                assert_eq!(builder.verdicts().verdict, Verdict::Violated);
            }
        }
    }

    #[test]
    fn stamps_from_the_future_are_refused() {
        let mut builder = overlapping();
        builder.event("worker-1", 30, Event::Stall { from: ms(10), to: ms(40), late: StallCause::Tick });
        is_refused(&builder, "a stall ends before it begins, or after it is reported");
        for (known, from, why) in [(15, 25, "was sent after it had been acquired"), (25, 15, "did not hold after")] {
            let mut builder = HistoryBuilder::new();
            builder.try_to_acquire(1, 1, 10);
            let acquired = Event::Acquired {
                attempt: HoldId(1),
                token: None,
                lease_ns: 2_000_000_000,
                granted_after: ms(known),
                promised_from: Some(ms(from)),
                place: None,
                valid_ns: 0,
                answers: Vec::new(),
            };
            builder.event("worker-1", 20, acquired);
            is_refused(&builder, why);
        }
    }

    #[test]
    fn a_process_that_starts_twice_is_refused() {
        let mut builder = overlapping();
        builder.event("worker-1", 40, started(Role::Worker));
        is_refused(&builder, "worker-1 starts twice");
    }

    /// Changes the records themselves, which the builder would not write.
    #[track_caller]
    fn is_refused_after(change: impl Fn(&mut Vec<Record>), why: &str) {
        let mut records = overlapping().records();
        change(&mut records);
        let verdicts = check(records, Tail::Whole);
        assert_eq!(verdicts.verdict, Verdict::Inconclusive, "{why}");
        assert!(verdicts.reasons.iter().any(|reason| reason.contains(why)), "{why}: {:?}", verdicts.reasons);
    }

    #[test]
    fn a_second_plan_is_refused() {
        is_refused_after(
            |records| {
                let mut again = records[0].clone();
                (again.seq, again.n) = (records[records.len() - 2].seq, 1);
                let last = records.len() - 1;
                records[last].n += 1;
                records.insert(last, again);
            },
            "the plan comes twice",
        );
    }

    #[test]
    fn a_second_plan_is_refused_whatever_its_number() {
        for (process, n) in [("controller", 1), ("spy", 0)] {
            is_refused_after(
                |records| {
                    let again = Record { seq: 0, n, process: process.into(), ..records[0].clone() };
                    records.insert(1, again);
                },
                if n == 1 { "the plan comes twice" } else { "spy reports an event that only the controller has" },
            );
        }
    }

    #[test]
    fn events_of_clients_from_the_controller_are_refused() {
        for place in [1, usize::MAX] {
            is_refused_after(
                |records| {
                    let hold = HoldId(1);
                    let of = Record { n: 1, process: "controller".into(), at: ms(0), ..records[0].clone() };
                    let last = records.len() - 1;
                    records[last].n = 2;
                    records.insert(place.min(last), Record { event: Event::Release { hold }, ..of });
                },
                "controller reports an event that the controller does not have",
            );
        }
    }

    #[test]
    fn a_process_that_does_not_start_is_refused() {
        is_refused_after(
            |records| {
                let event = Event::Watermark;
                records.insert(1, Record { seq: 1, n: 0, process: "spy".into(), at: ms(0), event });
            },
            "spy: it did not say first on which kernel it runs",
        );
    }

    #[test]
    fn a_stamp_without_a_later_one_is_refused() {
        is_refused_after(
            |records| {
                let last = records.iter().rposition(|r| r.process.as_str() == "worker-1").unwrap();
                records[last].at = Stamp(u64::MAX);
            },
            "worker-1: the stamp of its event",
        );
    }

    #[test]
    fn a_stamp_that_goes_back_shows_that_one_of_two_is_wrong() {
        is_refused_after(
            |records| {
                let acquired = records.iter().position(|r| matches!(r.event, Event::Acquired { .. })).unwrap();
                records[acquired].at = ms(3_600_000);
            },
            "goes back",
        );
    }

    #[test]
    fn an_event_that_comes_twice_is_refused() {
        is_refused_after(
            |records| {
                let acquired = records.iter().position(|r| matches!(r.event, Event::Acquired { .. })).unwrap();
                records.insert(acquired + 1, records[acquired].clone());
            },
            "comes twice",
        );
    }

    #[test]
    fn what_comes_after_the_end_is_refused() {
        is_refused_after(
            |records| {
                let again = records[3].clone();
                records.push(again);
            },
            "after the record of the end",
        );
    }

    #[test]
    fn a_process_whose_clock_is_an_hour_ahead_is_refused() {
        is_refused_after(
            |records| {
                for record in records.iter_mut().filter(|r| r.process.as_str() == "worker-2") {
                    record.at = record.at.plus(Duration::from_secs(3_600));
                }
            },
            "later than that of the agent",
        );
    }

    #[test]
    fn a_process_that_neither_finished_nor_ended_is_still_running() {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 20);
        let mut records = builder.records();
        records.retain(|r| !(matches!(r.event, Event::Finished) && r.process.as_str() == "worker-1"));
        let verdicts = check(records, Tail::Whole);
        assert_eq!(verdicts.verdict, Verdict::Inconclusive);
        assert_eq!(verdicts.reasons, ["worker-1: the record ends, and the process has not"]);
    }
}
