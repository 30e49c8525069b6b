use history::ArmDecision;

use super::*;
use crate::history_builder::{HistoryBuilder, plan};
use crate::properties::Property;

fn fence(builder: &HistoryBuilder, arm: &str) -> FenceVerdict {
    match builder.verdicts().properties.get(&format!("{arm}.fence")) {
        Some(Property::Fence(fence)) => fence.clone(),
        other => panic!("{other:?}"),
    }
}

/// Hold 1 (token 41) and the later hold 2 (token 42), whose write is admission 1.
fn two_holds() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).write(2, 1, 50, 60).release(2, 100);
    builder
}

fn admit(arms: &mut [ArmDecision], arm: Arm, admitted: bool) {
    arms.iter_mut().filter(|d| d.arm == arm).for_each(|d| d.admitted = admitted);
}

#[test]
fn a_refused_write_of_an_earlier_hold_is_a_stale_one_rejected() {
    let mut builder = two_holds();
    builder.write(1, 1, 15, 70);
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.stale_rejected, found.stale_accepted), (Verdict::Upheld, 1, 0));
}

#[test]
fn a_refusal_between_holds_that_only_the_queue_orders_is_decided_by_it() {
    let refused = |places: Option<[u64; 2]>| {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41);
        places.map(|places| builder.with_place(places[0]).plan.seed);
        builder.release(1, 20).acquire(2, 2, 5, 40, 42);
        places.map(|places| builder.with_place(places[1]).plan.seed);
        builder.write(2, 1, 50, 60).release(2, 100).write(1, 1, 15, 70);
        let found = fence(&builder, "writes");
        (found.stale_rejected, found.false_rejections, found.undecided)
    };
    assert_eq!(refused(None), (0, 0, 1));
    assert_eq!(refused(Some([7, 8])), (1, 0, 0));
    assert_eq!(refused(Some([8, 7])), (0, 1, 0));
}

#[test]
fn an_admitted_write_is_stale_if_only_the_queue_says_so() {
    // The other way round the second one came before, and late.
    for (places, expected) in [([7, 8], (1, 0)), ([8, 7], (0, 1))] {
        let mut builder = HistoryBuilder::new();
        builder
            .acquire(1, 1, 0, 10, 41)
            .with_place(places[0])
            .release(1, 20)
            .acquire(2, 2, 5, 40, 42)
            .with_place(places[1]);
        builder.write(2, 1, 50, 60).release(2, 100).write(1, 1, 15, 70);
        builder.alter_decisions(|number, arms| admit(arms, Arm::Writes, number > 0));
        let found = fence(&builder, "writes");
        assert_eq!((found.stale_accepted, found.late), expected, "{places:?}");
    }
    // Acquired, and nothing done yet.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).with_place(7).release(1, 20).acquire(2, 2, 5, 40, 42).with_place(8);
    builder.write(1, 1, 15, 70).release(2, 100);
    assert_eq!(fence(&builder, "writes").late, 1);
}

#[test]
fn a_stale_write_that_is_admitted_violates_the_fence() {
    let mut builder = two_holds();
    builder.write(1, 1, 15, 70).alter_decisions(|number, arms| admit(arms, Arm::Writes, number > 0));
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.stale_accepted, found.unjustified), (Verdict::Violated, 1, 1));
    assert_eq!(found.witness.len(), 1);
    assert_eq!(fence(&builder, "reads").verdict, Verdict::Upheld);
}

#[test]
fn a_write_before_the_later_holds_first_operation_is_late_and_nobodys_fault() {
    let mut builder = two_holds();
    builder.write(1, 1, 15, 45);
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.late, found.stale_accepted), (Verdict::Upheld, 1, 0));
    // At the later hold's ok it is not even late.
    let mut builder = two_holds();
    builder.write(1, 1, 15, 40);
    assert_eq!(fence(&builder, "writes").late, 0);
}

#[test]
fn a_read_registers_on_reads_and_not_on_writes() {
    let mut builder = two_holds();
    builder.read(2, 2, 41, 42).write(1, 1, 15, 45);
    assert_eq!(fence(&builder, "writes").late, 1);
    let reads = fence(&builder, "reads");
    assert_eq!((reads.late, reads.stale_rejected, reads.verdict), (0, 1, Verdict::Upheld));
}

#[test]
fn stale_reads_are_counted_only() {
    let mut builder = two_holds();
    builder.read(1, 1, 15, 70);
    for arm in ["writes", "reads"] {
        let found = fence(&builder, arm);
        assert_eq!((found.stale_reads, found.verdict), (1, Verdict::Upheld), "{arm}");
    }
}

#[test]
fn a_refusal_that_nothing_registered_justifies_is_unjustified() {
    let mut builder = two_holds();
    builder.alter_decisions(|number, arms| admit(arms, Arm::Writes, number != 1));
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.unjustified), (Verdict::Violated, 1));
}

#[test]
fn a_refused_write_registers_nothing() {
    let mut builder = two_holds();
    // The write of hold 2 is refused, so that of hold 1 must be admitted.
    builder.write(1, 1, 15, 70).alter_decisions(|number, arms| admit(arms, Arm::Writes, number == 2));
    let found = fence(&builder, "writes");
    assert_eq!((found.unjustified, found.late, found.stale_accepted), (1, 1, 0));
}

#[test]
fn a_later_hold_refused_for_an_earlier_ones_token_is_a_false_rejection() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 43).write(1, 1, 12, 14).release(1, 20);
    builder.acquire(2, 2, 30, 40, 42).write(2, 1, 50, 60).release(2, 100);
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.false_rejections), (Verdict::Violated, 1));
    assert_eq!(found.reasons, ["the tokens went wrong: 1 write was refused for the token of an earlier hold"]);
    builder.acquire(3, 1, 120, 130, 42).write(3, 1, 140, 150).release(3, 160);
    let found = fence(&builder, "writes");
    assert_eq!(found.reasons, ["the tokens went wrong: 2 writes were refused for the token of an earlier hold"]);
}

#[test]
fn a_hold_is_later_than_all_before_its_key_was_quiet() {
    // The client of hold 1 has released another lock since, so no attempt for k0 is open at 45. Two readers exclude
    // each other at no time.
    for (mode, expected) in [(Mode::Write, (Verdict::Violated, 1, 0)), (Mode::Read, (Verdict::Upheld, 0, 1))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 43).write(1, 1, 12, 14).release(1, 20);
        builder.acquire(3, 1, 30, 40, 44).with_key(3, "k1").release(3, 45);
        builder.acquire(2, 2, 60, 70, 42).write(2, 1, 80, 90).release(2, 100);
        let found = fence(builder.in_mode(1, mode).in_mode(2, mode), "writes");
        assert_eq!((found.verdict, found.false_rejections, found.undecided), expected, "{mode}");
    }
}

#[test]
fn a_refusal_between_unordered_holds_is_undecided() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 43).write(1, 1, 12, 14).release(1, 20);
    builder.acquire_knowing(2, 2, 5, 10, 40, 42).write(2, 1, 50, 60).release(2, 100);
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.undecided, found.false_rejections), (Verdict::Upheld, 1, 0));
}

#[test]
fn an_equal_token_belongs_to_the_hold_that_brought_it_first() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 42).release(1, 20).acquire(2, 2, 30, 40, 42);
    builder.write(1, 1, 12, 14).write(2, 1, 50, 60).write(1, 2, 15, 70).release(2, 100);
    let found = fence(&builder, "writes");
    // Hold 2 is refused for hold 1's token; hold 1 may go on.
    assert_eq!((found.false_rejections, found.late, found.unjustified), (1, 1, 0));
}

#[test]
fn in_strict_mode_a_second_write_of_a_hold_is_a_repeat() {
    let mut plan = plan();
    plan.fence = Comparison::Strict;
    plan.arms = vec![Arm::Off, Arm::Writes];
    let mut builder = HistoryBuilder::with(plan);
    builder.acquire(1, 1, 0, 10, 42).write(1, 1, 12, 14).write(1, 2, 15, 16).release(1, 20);
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.repeats, found.unjustified), (Verdict::Upheld, 1, 0));
    assert!(found.figures().ends_with(", 1 repeat refused"), "{}", found.figures());
    builder.alter_decisions(|_, arms| admit(arms, Arm::Writes, true));
    assert_eq!(fence(&builder, "writes").unjustified, 1, "strict refuses it");
}

#[test]
fn the_log_decides_between_requests_of_one_stamp() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 100);
    builder.write(2, 1, 50, 60).write(1, 1, 15, 60);
    assert_eq!(fence(&builder, "writes").stale_rejected, 1);
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 100);
    builder.write(1, 1, 15, 60).write(2, 1, 50, 60);
    assert_eq!(fence(&builder, "writes").late, 1);
}

#[test]
fn an_arm_has_the_token_of_a_hold_that_is_not_judged_any_more() {
    let mut builder = HistoryBuilder::new();
    // The client of hold 1 has released another hold since, so nothing is known of hold 1.
    builder.acquire(1, 1, 0, 10, 43).release(1, 20).acquire(3, 1, 30, 40, 41).release(3, 45);
    builder.acquire(4, 2, 50, 60, 42).write(1, 1, 64, 65).write(4, 1, 69, 70).release(4, 100);
    let found = fence(&builder, "writes");
    assert_eq!((found.verdict, found.undecided, found.unjustified), (Verdict::Inconclusive, 1, 0));
}

#[test]
fn a_write_without_a_token_is_never_admitted_rightly() {
    for (is_admitted, verdict) in [(true, Verdict::Violated), (false, Verdict::Upheld)] {
        let granted = HistoryBuilder::answers(&[1, 2, 3].map(|node| (node, history::NodeAnswer::Granted)));
        let mut builder = HistoryBuilder::new();
        builder.acquire_on(1, 1, 0, 0, 10, None, granted).write(1, 1, 15, 20).release(1, 30);
        builder.alter_decisions(move |_, arms| admit(arms, Arm::Writes, is_admitted));
        let found = fence(&builder, "writes");
        assert_eq!((found.verdict, found.unjustified), (verdict, u64::from(is_admitted)));
    }
}

#[test]
fn an_arm_has_the_token_of_a_write_that_names_no_hold() {
    let mut b = HistoryBuilder::new();
    b.acquire(1, 1, 0, 10, 50).write(1, 1, 12, 14).release(1, 20);
    b.acquire(2, 2, 30, 40, 42).write(2, 1, 50, 60).release(2, 100);
    b.alter_requests(|event| {
        if let Event::Admission { number: 1, hold, op, .. } = event {
            (*hold, *op) = (None, None);
        }
    });
    let found = fence(&b, "writes");
    assert_eq!((found.verdict, found.unjustified, found.undecided), (Verdict::Inconclusive, 0, 1));
}

/// Token 42 is registered by admission 2, which the record has only if `has_it`. Then the resource is started again,
/// and refuses a write with token 41.
fn restarted(is_planned: bool, has_it: bool, durable: u64) -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).write(1, 1, 12, 14).acquire(2, 2, 30, 40, 42).write(2, 1, 50, 60);
    s.write(1, 2, 1_400, 1_410).release(1, 1_420).release(2, 1_420);
    if is_planned {
        let kill = history::Fault::new(history::fault::Kill {}, std::time::Duration::from_secs(1));
        s.plan_fault(1, kill, "resource").kill(1, "resource", 100);
    } else {
        s.event("resource#2", 1_300, crate::history_builder::started(history::Role::Resource));
        s.unplanned(1, history::FaultKind::Kill, "resource", (90, 120), 1_350);
        s.unfinished.push("resource");
    }
    s.event("resource#2", 1_301, Event::Recovered { durable });
    if !has_it {
        s.drop_admission(2);
    }
    s
}

#[test]
fn after_a_restart_that_found_unknown_admissions_no_refusal_is_unjustified() {
    for is_planned in [true, false] {
        let v = restarted(is_planned, false, 2).verdicts();
        for property in ["writes.fence", "reads.fence", "resource", "off.data", "cas.data", "claim.data"] {
            let wrong = v.properties.get(property).is_some_and(|p| p.verdict() == Verdict::Violated);
            assert!(!wrong, "{property}, planned: {is_planned}: {:?}", v.properties.get(property));
        }
        assert!(!v.reasons.is_empty(), "planned: {is_planned}");
    }
    assert_eq!(fence(&restarted(true, true, 2), "writes").stale_rejected, 1, "if the record has it, all is judged");
}

#[test]
fn an_unplanned_restart_may_undo_what_has_been_judged() {
    // Admission 2 was not on disk: the arm has forgotten token 42, and rightly admits the write with 41.
    let mut s = restarted(false, true, 1);
    s.forget(2, 1);
    // By the time at which the new process reports that, the admission has been judged.
    for process in ["worker-1", "worker-2", "agent"] {
        s.event(process, 1_299, Event::Watermark);
    }
    let mut records = s.records();
    let ended = records.iter().position(|r| matches!(r.event, Event::ProcessEnded { .. })).unwrap();
    let ended = records.remove(ended);
    let started = records.iter().position(|r| r.process.as_str() == "resource#2").unwrap();
    records.insert(started, ended);
    let v = crate::check(records, history::Tail::Whole);
    // The two holds overlap, so `lock` is violated.
    for (property, found) in v.properties.iter().filter(|(property, _)| *property != "lock") {
        assert!(found.verdict() != Verdict::Violated, "{property}: {found:?}");
    }
    assert!(!v.reasons.is_empty());
}

#[test]
fn an_arm_has_the_token_of_an_attempt_that_had_not_acquired() {
    let mut b = HistoryBuilder::new();
    b.acquire(1, 1, 0, 31, 50).write(1, 1, 20, 30).release(1, 33);
    b.acquire(2, 2, 5, 40, 42).write(2, 1, 44, 45).release(2, 50);
    let found = fence(&b, "writes");
    assert_eq!((found.verdict, found.unjustified), (Verdict::Inconclusive, 0));
}
