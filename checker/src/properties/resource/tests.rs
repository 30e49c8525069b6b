mod restarts;

use history::fault;
use history::{Fault, HoldId, OpId};

use super::*;
use crate::properties::Property;
use crate::{
    check,
    history_builder::{HistoryBuilder, count, started, verdict},
};

fn judged(builder: &HistoryBuilder) -> ResourceVerdict {
    match builder.verdicts().properties.get("resource") {
        Some(Property::Resource(found)) => {
            assert_eq!(found.verdict == Verdict::Violated, !found.witness.is_empty());
            found.clone()
        }
        other => panic!("{other:?}"),
    }
}

fn read_ok(hold: u64, op: u32, number: u64) -> Event {
    Event::ReadOk { hold: HoldId(hold), op: OpId(op.into()), number, arms: None }
}

fn ok(hold: u64, op: u32, number: u64) -> Event {
    Event::WriteOk { hold: HoldId(hold), op: OpId(op.into()), number, arms: None }
}

/// Hold 1 reads, writes, and is answered; so is hold 2.
fn quiet() -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).event("worker-1", 13, read_ok(1, 1, 1));
    s.write(1, 2, 14, 15).event("worker-1", 16, ok(1, 2, 2)).release(1, 20);
    s.acquire(2, 2, 30, 40, 42).read(2, 1, 41, 42).event("worker-2", 43, read_ok(2, 1, 3));
    s
}

/// The resource is killed at 100; what it had decided beyond `durable` is undone.
fn restarted(s: &mut HistoryBuilder, durable: u64) -> &mut HistoryBuilder {
    let fault = Fault::new(fault::Kill {}, std::time::Duration::from_secs(1));
    s.plan_fault(1, fault, "resource").kill(1, "resource", 100);
    s.event("resource#2", 1_301, Event::Recovered { durable })
}

#[test]
fn a_resource_that_decides_in_order_and_answers_so_is_upheld() {
    let found = judged(quiet().arrives_again(2, 1, 50).release(2, 60));
    assert_eq!((found.verdict, found.admissions, found.restarts), (Verdict::Upheld, 4, 0));
}

#[test]
fn a_store_that_is_opened_for_the_first_time_is_no_restart() {
    let mut s = HistoryBuilder::new();
    s.event("resource", 5, Event::Recovered { durable: 0 }).acquire(1, 1, 10, 20, 41).release(1, 30);
    let found = judged(&s);
    assert_eq!((found.verdict, found.restarts, found.undone), (Verdict::Upheld, 0, 0));
}

#[test]
fn an_order_that_contradicts_real_time_is_found() {
    // The write of hold 2 is sent after that of hold 1 was answered, and decided before it, by the numbers.
    for (answered, expected) in [(49, 1), (50, 0), (51, 0)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 30, 40, 42).write(1, 1, 41, 42).write(2, 1, 50, 52);
        s.event("worker-1", answered, ok(1, 1, 1)).renumber(&[(1, 2), (2, 1)]);
        let found = judged(&s);
        assert!(found.misordered >= expected, "answered at {answered}: {found:?}");
        // One finding is about the log itself, because its order goes back in every case.
        assert_eq!(found.misordered, 1 + expected, "answered at {answered}");
    }
}

#[test]
fn an_answer_that_the_log_does_not_have_is_found() {
    let found = judged(quiet().write(2, 2, 44, 45).event("worker-2", 46, ok(2, 2, 7)));
    assert_eq!((found.wrong_answers, found.verdict), (1, Verdict::Violated));
}

#[test]
fn an_answer_may_have_the_stamp_of_its_decision() {
    let found = judged(quiet().write(2, 2, 44, 45).event("worker-2", 45, ok(2, 2, 4)));
    assert_eq!(found.verdict, Verdict::Upheld);
}

#[test]
fn an_operation_that_is_decided_twice_is_found() {
    let mut s = quiet();
    s.write(2, 2, 44, 45).decided_again(2, 2, 50);
    assert_eq!(judged(&s).applied_twice, 1);
}

#[test]
fn a_repeat_that_is_not_the_former_answer_is_found() {
    let mut s = quiet();
    s.write(2, 2, 44, 45).arrives_again(2, 2, 50);
    assert_eq!(judged(&s).wrong_repeats, 0);
    s.alter_repeats(|_, arms| arms[0].value += 1);
    assert_eq!(judged(&s).wrong_repeats, 1);
    s.alter_repeats(|_, arms| arms[0].base = Some(9));
    assert_eq!(judged(&s).wrong_repeats, 1, "only the base is another");
    // The largest number there is is another answer than none.
    s.alter_decisions(|_, arms| arms[0].seen = None);
    s.alter_repeats(|_, arms| {
        assert_eq!((arms[0].arm, arms[0].seen), (Arm::Off, None));
        arms[0].seen = Some(Token(u64::MAX));
    });
    assert_eq!(judged(&s).wrong_repeats, 1);
}

#[test]
fn an_arm_shows_the_token_that_it_has_registered() {
    for (number, arm, token, forgotten, wrong) in [
        (3, Arm::Writes, None, 1, 0),            // the write of hold 1 registered a token
        (3, Arm::Writes, Some(Token(40)), 1, 0), // went back
        (3, Arm::Writes, Some(Token(41)), 0, 0),
        (3, Arm::Writes, Some(Token(42)), 0, 1), // the read of hold 2 registers nothing on this arm
        (3, Arm::Reads, None, 1, 0),
        (2, Arm::Reads, None, 0, 1),            // the read of hold 1 was not registered
        (1, Arm::Writes, Some(Token(1)), 0, 1), // a token of nobody; the read of hold 1 shows it again
        (3, Arm::Off, Some(Token(7)), 0, 0),    // an arm without a fence
    ] {
        let mut s = quiet();
        s.alter_decisions(move |n, arms| {
            arms.iter_mut().filter(|d| n == number && d.arm == arm).for_each(|d| d.seen = token);
        });
        let found = judged(&s);
        let counts = (found.tokens_forgotten, found.wrong_tokens);
        let again = u64::from(number == 1);
        assert_eq!(counts, (forgotten + again, wrong), "#{number} on {arm} saw {token:?}: {:?}", found.reasons);
    }
}

#[test]
fn a_token_that_an_arm_has_lost_is_forgotten_once() {
    // The reads #3 and #4 come after the write that registered 41 on `writes`.
    let mut s = quiet();
    s.read(2, 2, 44, 45).alter_decisions(|n, arms| {
        arms.iter_mut().filter(|d| n >= 3 && d.arm == Arm::Writes).for_each(|d| d.seen = None);
    });
    let found = judged(&s);
    assert_eq!((found.tokens_forgotten, found.wrong_tokens), (1, 0), "{:?}", found.reasons);
}

#[test]
fn what_was_not_on_disk_is_undone_for_everybody_and_may_be_decided_again() {
    let mut s = quiet();
    s.write(2, 2, 98, 99).event("worker-2", 1_305, Event::Resend { hold: HoldId(2), op: OpId(2) });
    restarted(&mut s, 3)
        .forget(4, 3)
        .decided_again(2, 2, 1_310)
        .event("worker-2", 1_320, ok(2, 2, 5))
        .release(2, 1_330);
    let v = s.verdicts();
    assert_eq!(v.reasons, Vec::<String>::new());
    let found = judged(&s);
    assert_eq!((found.verdict, found.undone, found.restarts), (Verdict::Upheld, 1, 1), "{found:?}");
    for arm in ["off", "writes", "reads", "cas", "claim"] {
        assert_eq!(count(&v, &format!("{arm}.data.updates")), 2, "{arm}");
        assert_eq!(count(&v, &format!("{arm}.data.lost_updates")), 0, "{arm}");
        assert_eq!(count(&v, &format!("{arm}.data.disagreements")), 0, "{arm}");
    }
    assert_eq!(verdict(&v, "writes.fence"), Verdict::Upheld);
}

#[test]
fn what_was_answered_before_it_was_on_disk_is_found() {
    for (durable, expected) in [(3, 0), (2, 1), (0, 3)] {
        let mut s = quiet();
        restarted(&mut s, durable).release(2, 1_330);
        let found = judged(&s);
        assert_eq!(
            (found.acknowledged_lost, found.undone),
            (expected, 3 - durable),
            "{durable} were on disk: {found:?}"
        );
    }
}

#[test]
fn a_lost_decision_may_have_been_answered_at_its_own_stamp() {
    let mut s = quiet();
    s.write(2, 2, 44, 45).event("worker-2", 45, ok(2, 2, 4));
    let found = judged(restarted(&mut s, 3).release(2, 1_330));
    assert_eq!((found.undone, found.acknowledged_lost, found.contradictions), (1, 1, 0), "{found:?}");
}

#[test]
fn a_resource_that_forgets_its_tokens_when_it_is_restarted_is_found() {
    for (seen, expected) in [(None, 2), (Some(Token(41)), 1), (Some(Token(42)), 0)] {
        let mut s = quiet();
        // The read of hold 2 had registered 42 on `reads`, the write of hold 1 had registered 41 on `writes`.
        restarted(&mut s, 3).read(2, 2, 1_300, 1_310).release(2, 1_330).alter_decisions(move |number, arms| {
            arms.iter_mut().filter(|d| number == 4 && d.arm.fences()).for_each(|d| d.seen = seen);
        });
        let found = judged(&s);
        assert_eq!(found.tokens_forgotten, expected, "{seen:?}: {:?}", found.reasons);
    }
}

#[test]
fn admissions_are_held_back_until_their_fate_is_known() {
    let mut s = quiet();
    restarted(&mut s, 3).release(2, 1_330);
    let mut records = s.records();
    records.retain(|r| !matches!(r.event, Event::End | Event::Finished | Event::ProcessEnded { .. }));
    records.retain(|r| r.process.as_str() != "resource#2");
    let v = crate::check(records, history::Tail::Cut);
    assert_eq!(count(&v, "resource.admissions"), 0);
    assert_eq!(v.facts.judged_until_ms, 12.0, "the first of them");
}

/// Changes the answer to operation 2 of hold 1, a write that every arm admits.
fn answered(alter: impl Fn(&mut Vec<history::ArmWriteAnswer>) + 'static) -> ResourceVerdict {
    judged(quiet().alter_requests(move |event| {
        if let Event::WriteOk { hold: HoldId(1), arms: Some(arms), .. } = event {
            alter(arms);
        }
    }))
}

#[test]
fn an_answer_is_compared_with_the_log_arm_by_arm() {
    assert_eq!(answered(|_| {}).verdict, Verdict::Upheld);
    let writes = |arms: &mut Vec<history::ArmWriteAnswer>| arms.iter().position(|a| a.arm == Arm::Writes).unwrap();
    for (found, why) in [
        (answered(move |arms| arms.iter_mut().for_each(|a| a.admitted = false)), "off answered refused"),
        (
            answered(move |arms| {
                let i = writes(arms);
                arms[i].seen = Some(Token(9))
            }),
            "writes answered 9",
        ),
        (
            answered(move |arms| {
                let i = writes(arms);
                arms.remove(i);
            }),
            "leaves out writes",
        ),
        (
            answered(move |arms| {
                let i = writes(arms);
                arms.push(arms[i])
            }),
            "writes was answered twice",
        ),
    ] {
        assert_eq!((found.wrong_answers, found.verdict), (1, Verdict::Violated), "{why}");
        assert!(found.reasons[0].contains(why), "{why}: {:?}", found.reasons);
    }
}

#[test]
fn a_refused_write_that_is_answered_as_applied_is_found() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42).write(2, 1, 2_011, 2_012).release(2, 2_013);
    s.write(1, 2, 2_014, 2_015).event("worker-1", 2_016, ok(1, 2, 2)).release_refused(1, 2_017);
    assert_eq!(judged(&s).verdict, Verdict::Upheld);
    s.alter_requests(|event| {
        if let Event::WriteOk { op: OpId(2), arms: Some(arms), .. } = event {
            arms.iter_mut().for_each(|a| a.admitted = true);
        }
    });
    let found = judged(&s);
    assert_eq!(found.wrong_answers, 1);
    assert!(found.reasons[0].contains("the log has refused"), "{:?}", found.reasons);
}

#[test]
fn a_read_is_answered_with_the_state_after_it() {
    let read = |alter: fn(&mut history::ArmReadAnswer)| {
        judged(quiet().alter_requests(move |event| {
            if let Event::ReadOk { hold: HoldId(2), arms: Some(arms), .. } = event {
                arms.iter_mut().for_each(alter);
            }
        }))
    };
    assert_eq!(read(|_| {}).wrong_answers, 0);
    // Before it, `reads` had 41; the token of the read is 42.
    let before = read(|a| a.seen = a.seen.map(|_| Token(41)));
    assert!(before.reasons[0].contains("reads answered 41 as its highest token"), "{:?}", before.reasons);
    assert!(read(|a| a.version -= 1).reasons[0].contains("answered with version 1, and the log has 2"));
}

#[test]
fn answers_that_were_not_recorded_decide_nothing() {
    let found = judged(quiet().alter_requests(|event| {
        if let Event::WriteOk { arms, .. } = event {
            *arms = None;
        }
    }));
    assert_eq!((found.verdict, found.unrecorded_answers, found.wrong_answers), (Verdict::Inconclusive, 1, 0));
    assert!(found.reasons[0].starts_with("1 answer of the resource is not recorded arm"), "{:?}", found.reasons);
}

#[test]
fn every_arm_of_the_plan_is_decided_exactly_once() {
    for (alter, expected) in [
        ((|_| {}) as fn(&mut Vec<ArmDecision>), 0),
        (|arms| _ = arms.remove(0), 1),
        (|arms| arms.push(arms[0].clone()), 1),
        (|arms| arms[0].arm = Arm::Writes, 1),
        (|arms| arms.swap(0, 1), 0),
    ] {
        let found = judged(quiet().alter_decisions(move |n, arms| {
            if n == 2 {
                alter(arms)
            }
        }));
        assert_eq!(found.wrong_arms, expected, "{:?}", found.reasons);
    }
}

#[test]
fn off_and_reads_of_any_arm_never_refuse() {
    for (number, arm, expected) in [(2, Arm::Off, 1), (2, Arm::Writes, 0), (1, Arm::Writes, 1), (3, Arm::Claim, 1)] {
        let found = judged(quiet().alter_decisions(move |n, arms| {
            arms.iter_mut().filter(|d| n == number && d.arm == arm).for_each(|d| d.admitted = false);
        }));
        assert_eq!(found.wrong_refusals, expected, "#{number} on {arm}: {:?}", found.reasons);
    }
}

/// The contradictions of a record, and whether the lock was judged all the same.
fn contradicted(s: &HistoryBuilder) -> (u64, Verdict) {
    let (found, lock) = (judged(s), s.lock());
    let words = "log and record contradict each other";
    assert_eq!(found.contradictions > 0, found.reasons.iter().any(|r| r.starts_with(words)), "{:?}", found.reasons);
    (found.contradictions, lock.verdict)
}

#[test]
fn an_admission_lies_between_its_invocation_and_its_answer() {
    for (sent, arrival, answer, expected) in [
        (44, 45, 46, 0),
        (45, 45, 45, 0), // equal stamps are concurrent
        (46, 45, 47, 1), // decided before it was sent
        (44, 47, 46, 1), // answered before it was decided
    ] {
        let mut s = quiet();
        s.write(2, 2, sent, arrival).event("worker-2", answer, ok(2, 2, 4)).release(2, 60);
        let lock = if expected > 0 { Verdict::Inconclusive } else { Verdict::Upheld };
        assert_eq!(contradicted(&s), (expected, lock), "{sent}, {arrival}, {answer}");
    }
}

#[test]
fn an_admission_belongs_to_an_operation_that_a_client_invoked() {
    let of_write = |alter: fn(&mut Event)| {
        let mut s = quiet();
        s.write(2, 2, 44, 45).release(2, 60).alter_requests(move |event| {
            if matches!(event, Event::Admission { number: 4, .. }) {
                alter(event);
            }
        });
        contradicted(&s)
    };
    let nothing = (1, Verdict::Inconclusive);
    assert_eq!(of_write(|_| {}), (0, Verdict::Upheld));
    for alter in [
        (|e| {
            if let Event::Admission { hold, .. } = e {
                *hold = Some(HoldId(9))
            }
        }) as fn(&mut Event),
        |e| {
            if let Event::Admission { hold, op, .. } = e {
                (*hold, *op) = (None, None)
            }
        },
        |e| {
            if let Event::Admission { op, .. } = e {
                *op = Some(OpId(7))
            }
        },
        |e| {
            if let Event::Admission { op, .. } = e {
                *op = None
            }
        },
        |e| {
            if let Event::Admission { kind, .. } = e {
                *kind = RequestKind::Read
            }
        },
        |e| {
            if let Event::Admission { token, .. } = e {
                *token = Some(Token(41))
            }
        },
        |e| {
            if let Event::Admission { token, .. } = e {
                *token = None
            }
        },
        |e| {
            if let Event::Admission { key, .. } = e {
                *key = "k1".into()
            }
        },
    ] {
        assert_eq!(of_write(alter), nothing);
    }
}

#[test]
fn an_admission_that_is_nobodys_is_not_blamed_on_the_lock() {
    // Hold 1 is over and hold 2 acquired, when the log has a request of hold 1.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).write(2, 1, 50, 51).release(2, 60);
    assert_eq!(contradicted(&s), (0, Verdict::Upheld));
    s.alter_requests(|event| {
        if let Event::Admission { hold, token, .. } = event {
            (*hold, *token) = (Some(HoldId(1)), Some(Token(41)));
        }
    });
    assert_eq!((contradicted(&s), s.lock().windows), ((1, Verdict::Inconclusive), Vec::new()));
    // Nor does it count as a late write of hold 1, which never read the version that it is made from.
    s.alter_decisions(|_, arms| arms.iter_mut().for_each(|d| d.base = Some(9)));
    let v = s.verdicts();
    assert_eq!((count(&v, "off.data.late"), verdict(&v, "off.data")), (0, Verdict::Measured));
}

#[test]
fn an_operation_that_failed_is_never_decided() {
    let failed = |arrival, at| {
        let mut s = quiet();
        let (hold, op, outcome) = (HoldId(2), OpId(2), history::Outcome::Failed);
        let failed = Event::AccessFailed { hold, op, outcome, detail: "refused".into() };
        s.write(2, 2, 44, arrival).event("worker-2", at, failed).release(2, 60);
        let (contradictions, lock) = contradicted(&s);
        (contradictions, judged(&s).wrong_answers, lock)
    };
    // The resource decided it, and said that it had not; at equal stamps too.
    assert_eq!(failed(45, 46), (0, 1, Verdict::Upheld));
    assert_eq!(failed(45, 45), (0, 1, Verdict::Upheld));
    assert_eq!(failed(47, 46), (1, 0, Verdict::Inconclusive));
}

#[test]
fn the_last_words_of_a_killed_process_may_be_lost() {
    // The invocation of a request that arrives after the request of the kill, or before it, is not on record.
    for arrival in [70, 55] {
        let mut s = quiet();
        s.write(2, 2, 50, arrival).kill(1, "worker-2", 60).release(1, 80);
        let fault = Fault::new(fault::Kill {}, std::time::Duration::from_secs(1));
        s.plan_fault(1, fault, "worker-2").drop_invocation(2, 2).lose_end("worker-2", 50);
        let v = s.verdicts();
        assert_eq!(judged(&s).verdict, Verdict::Inconclusive, "arrives at {arrival}: {v:?}");
        assert!(v.reasons.iter().any(|reason| reason.contains("the record does not know")), "{:?}", v.reasons);
    }
    // An answer of the killed resource, whose last admission is not on record.
    for answered in [101, 99] {
        let mut s = quiet();
        s.write(2, 2, 97, 98).event("worker-2", answered, ok(2, 2, 4));
        restarted(&mut s, 4).release(2, 1_330).drop_admission(4).lose_end("resource", 50);
        let v = s.verdicts();
        assert_eq!(judged(&s).verdict, Verdict::Inconclusive, "answered at {answered}: {v:?}");
        assert!(v.reasons.iter().any(|reason| reason.contains("was answered as #4")), "{:?}", v.reasons);
    }
}

#[test]
fn what_a_restart_found_may_be_known_from_the_start() {
    for durable in 0..=4 {
        let mut s = quiet();
        restarted(&mut s, durable);
        let records = s.records();
        let knowing = |known: u64| {
            let mut checker = crate::Checker::new();
            for record in records.clone() {
                let is_plan = matches!(record.event, Event::Plan { .. });
                checker.feed(record);
                if is_plan {
                    assert!(checker.asks_for_recoveries());
                    checker.know_recoveries(vec![("resource#2".into(), known)]);
                }
            }
            serde_json::to_value(checker.finish(history::Tail::Whole)).unwrap()
        };
        let plain = crate::check(records.clone(), history::Tail::Whole);
        assert_eq!(knowing(durable), serde_json::to_value(plain).unwrap(), "durable {durable}");
        let other = knowing(durable + 1);
        assert!(other["reasons"].to_string().contains("was not known before"), "{other}");
    }
}
