use history::Mode;

use super::*;
use crate::history_builder::HistoryBuilder;
use crate::properties::Property;

fn data(builder: &HistoryBuilder, arm: &str) -> DataVerdict {
    match builder.verdicts().properties.get(&format!("{arm}.data")) {
        Some(Property::Data(data)) => data.clone(),
        other => panic!("{other:?}"),
    }
}

/// Hold 1 reads, a later hold writes, and the write of hold 1 arrives after that.
fn lost_update() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).release(1, 20);
    builder.acquire(2, 2, 30, 40, 42).read(2, 1, 41, 42).write(2, 2, 50, 60).release(2, 100);
    builder.write(1, 2, 15, 70);
    builder
}

#[test]
fn an_update_that_the_final_value_does_not_contain_is_lost() {
    let builder = lost_update();
    let off = data(&builder, "off");
    assert_eq!((off.verdict, off.updates, off.lost_updates, off.overwrites), (Verdict::Measured, 2, 1, 1));
    assert_eq!((off.stale_accepted, off.late), (Some(1), Some(0)));
    for arm in ["writes", "reads", "cas"] {
        let found = data(&builder, arm);
        assert_eq!((found.updates, found.lost_updates, found.refused), (1, 0, 1), "{arm}");
    }
    assert_eq!(data(&builder, "reads").verdict, Verdict::Upheld);
    assert_eq!(data(&builder, "writes").verdict, Verdict::Measured);
}

#[test]
fn fencing_writes_alone_loses_a_late_update() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).release(1, 20);
    builder.acquire(2, 2, 30, 40, 42).read(2, 1, 41, 42).write(2, 2, 50, 60).release(2, 100);
    builder.write(1, 2, 15, 45);
    assert_eq!(data(&builder, "writes").lost_updates, 1);
    let reads = data(&builder, "reads");
    assert_eq!((reads.lost_updates, reads.refused, reads.verdict), (0, 1, Verdict::Upheld));
}

#[test]
fn a_chain_of_overwrites_loses_every_update_that_it_leaves_behind() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).release(1, 20).acquire(2, 2, 30, 40, 42);
    // 2 over 0, 3 over 2, 4 over 3; then 5 over what hold 1 had read: 0.
    builder.write(2, 1, 50, 60).write(2, 2, 61, 62).write(2, 3, 63, 64).release(2, 100).write(1, 2, 15, 70);
    let off = data(&builder, "off");
    assert_eq!((off.updates, off.lost_updates, off.overwrites), (4, 3, 1));
}

#[test]
fn a_binding_arm_that_loses_an_update_is_violated() {
    let mut builder = lost_update();
    builder.alter_decisions(|number, arms| {
        if number == 4 {
            let off = arms[0].clone();
            arms.iter_mut().for_each(|d| {
                *d = ArmDecision { arm: d.arm, seen: d.seen, ..off.clone() };
            });
        }
    });
    for (arm, verdict) in [
        ("off", Verdict::Measured),
        ("writes", Verdict::Measured),
        ("reads", Verdict::Violated),
        ("cas", Verdict::Violated),
    ] {
        let found = data(&builder, arm);
        assert_eq!((found.lost_updates, found.verdict), (1, verdict), "{arm}");
    }
    assert_eq!(data(&builder, "cas").unjustified, 1, "the base was not current");
}

#[test]
fn cas_refuses_nothing_that_was_made_from_the_current_version() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).release(1, 20);
    builder.alter_decisions(|_, arms| {
        arms.iter_mut().filter(|d| d.arm == Arm::Cas).for_each(|d| {
            (d.admitted, d.version, d.value) = (false, 0, 0);
        });
    });
    let cas = data(&builder, "cas");
    assert_eq!((cas.verdict, cas.unjustified, cas.refused), (Verdict::Violated, 1, 1));
}

#[test]
fn a_counter_that_disagrees_with_the_depth_violates_every_arm() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).release(1, 20);
    builder.alter_decisions(|_, arms| arms.iter_mut().for_each(|d| d.value += 1));
    for arm in ["off", "reads"] {
        let found = data(&builder, arm);
        assert_eq!((found.verdict, found.disagreements), (Verdict::Violated, 1), "{arm}");
    }
}

#[test]
fn claim_admits_the_writes_of_the_hold_that_read_last_and_no_other() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).acquire(2, 2, 30, 40, 42);
    // A hold that writes without having read claims nothing. The first hold may still write until the second reads.
    builder.write(2, 1, 41, 42).write(1, 2, 43, 44).read(2, 2, 45, 46).write(1, 3, 47, 48).write(2, 3, 49, 50);
    let claim = data(&builder, "claim");
    assert_eq!((claim.verdict, claim.updates, claim.refused), (Verdict::Upheld, 2, 2));
    assert_eq!((claim.lost_updates, claim.unjustified, claim.stale_accepted), (0, 0, Some(0)));
    for (number, is_unjustified) in [(2, true), (3, true), (5, true), (6, true), (4, false)] {
        builder.alter_decisions(move |n, arms| {
            arms.iter_mut().filter(|d| n == number && d.arm == Arm::Claim).for_each(|d| d.admitted = !d.admitted);
        });
        let found = data(&builder, "claim").unjustified;
        assert_eq!(found > 0, is_unjustified, "#{number} was decided the other way round: {found}");
    }
}

#[test]
fn a_final_read_claims_nothing() {
    // Read #2 belongs to no hold. So hold 1 is still the one that read last.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).read(1, 2, 13, 14).write(1, 3, 15, 16).release(1, 20);
    builder.alter_requests(|event| {
        if let Event::Admission { number: 2, hold, op, token, .. } = event {
            (*hold, *op, *token) = (None, None, None);
        }
    });
    let claim = data(&builder, "claim");
    assert_eq!((claim.verdict, claim.updates, claim.unjustified), (Verdict::Upheld, 1, 0), "{claim:?}");
}

#[test]
fn deadline_admits_a_write_until_its_deadline_and_not_later() {
    for (deadline, admitted, unjustified) in [
        (Some((50, 50)), true, 0),
        (Some((50, 51)), true, 1),
        (Some((50, 51)), false, 0),
        (Some((50, 50)), false, 1),
        (None, true, 1),
    ] {
        let mut builder = HistoryBuilder::new();
        builder.plan.arms.push(Arm::Deadline);
        builder.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).write(1, 2, 13, 14).release(1, 20);
        builder.alter_requests(move |event| {
            if let Event::Admission { deadline: carried, kind: RequestKind::Write, arms, .. } = event {
                *carried = deadline.map(|(until_us, read_us)| Deadline { until_us, read_us });
                arms.iter_mut().filter(|d| d.arm == Arm::Deadline).for_each(|d| d.admitted = admitted);
            }
        });
        assert_eq!(data(&builder, "deadline").unjustified, unjustified, "{deadline:?}, admitted: {admitted}");
    }
}

#[test]
fn a_base_that_the_hold_was_never_told_is_unjustified() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write_over(1, 1, 12, 77).release(1, 20);
    let off = data(&builder, "off");
    assert_eq!((off.verdict, off.unjustified), (Verdict::Violated, 1));
    assert!(off.reasons[0].contains("#77"), "{:?}", off.reasons);
}

#[test]
fn a_lost_update_is_a_violation_only_where_data_binds_the_arm() {
    for (arm, kinds) in [("off", &["unjustified"][..]), ("reads", &["lost-update", "unjustified"])] {
        let found = DataVerdict { lost_updates: 1, unjustified: 1, ..data(&lost_update(), arm) };
        let of_run: Vec<&str> = found.violations().into_iter().map(|violation| violation.kind).collect();
        assert_eq!(of_run, kinds, "{arm}");
    }
}

#[test]
fn every_version_that_a_hold_was_told_may_be_a_base() {
    // Over version 1, when the hold had been told of version 2 as well.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).write(1, 2, 13, 14).write_over(1, 3, 16, 1).release(1, 20);
    let off = data(&builder, "off");
    assert_eq!((off.verdict, off.unjustified, off.disagreements), (Verdict::Measured, 0, 0), "{:?}", off.reasons);
    assert_eq!((off.updates, off.lost_updates), (3, 1));
}

#[test]
fn a_hold_is_not_told_what_a_hold_before_it_was_told() {
    // Hold 1 has version 1 as its own. It is closed when hold 3 begins, and version 2 is current then.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).release(1, 20);
    builder.acquire(2, 1, 30, 40, 42).write(2, 1, 41, 42).release(2, 50);
    builder.acquire(3, 1, 60, 70, 43).write_over(3, 1, 72, 1).release(3, 80);
    let off = data(&builder, "off");
    assert_eq!((off.verdict, off.unjustified, off.updates), (Verdict::Violated, 1, 3));
    assert_eq!(off.reasons, ["write #3 was made from #1, of which hold 3 was never told"]);
}

#[test]
fn a_write_may_be_late_under_its_child_alone() {
    // The clients hold the parent by intentions, which do not exclude each other.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 5, 40).in_mode(1, Mode::IntentWrite).acquire(2, 1, 6, 10, 41).of_child(2, Some(1));
    s.write(2, 1, 15, 70).release(2, 20).release(1, 25);
    s.acquire(3, 2, 30, 35, 42).in_mode(3, Mode::IntentWrite).acquire(4, 2, 36, 40, 43).of_child(4, Some(3));
    let off = data(s.release(4, 100).release(3, 110), "off");
    assert_eq!((off.late, off.stale_accepted), (Some(1), Some(0)));
}

/// A write under a hold whose reads were forgotten: its client had released it, and another hold since.
#[test]
fn a_write_under_a_forgotten_hold_says_nothing_about_the_arm() {
    let judged = |is_forgotten: bool| {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).write(1, 1, 20, 21).release(1, 30);
        s.acquire(2, 1, 40, 50, 42).read(2, 1, 52, 53).release(2, 60);
        if is_forgotten {
            s.acquire(4, 1, 70, 80, 43).release(4, 90);
        }
        s.acquire(5, 2, 100, 110, 44).write(5, 1, 120, 121).release(5, 130);
        s.write_over(2, 2, 140, 1);
        s.verdicts()
    };
    let verdicts = judged(false);
    assert_eq!(verdicts.reasons, Vec::<String>::new());
    let verdicts = judged(true);
    assert!(verdicts.reasons.concat().contains("released another hold since"), "{:?}", verdicts.reasons);
    let violated = verdicts.properties.iter().filter(|(_, property)| property.verdict() == Verdict::Violated);
    let violated: Vec<_> = violated.map(|(name, property)| (name, property.reasons())).collect();
    assert_eq!((violated, verdicts.verdict), (Vec::new(), Verdict::Inconclusive));
}

#[test]
fn a_read_under_a_lost_attempt_claims_the_key_all_the_same() {
    // Of worker 1 the record has nothing. Its read comes first, so the write of hold 2 is refused by `claim`.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).read(1, 1, 70, 75).kill(1, "worker-1", 80).lose_end("worker-1", 0);
    s.acquire(2, 2, 2_100, 2_110, 42).write(2, 1, 2_120, 2_130).release(2, 2_200);
    for arm in ["off", "writes", "reads", "cas", "claim"] {
        let found = data(&s, arm);
        assert_eq!((found.unjustified, found.disagreements), (0, 0), "{arm}: {found:?}");
    }
}

#[test]
fn an_attempt_that_had_not_acquired_was_told_what_it_read() {
    let mut b = HistoryBuilder::new();
    b.acquire(2, 2, 0, 5, 40).write(2, 1, 6, 7).release(2, 8);
    b.acquire(3, 2, 12, 14, 42).write(3, 1, 15, 25).release(3, 26);
    b.acquire(1, 1, 9, 31, 41).read(1, 1, 20, 21).write(1, 2, 35, 36).release(1, 40);
    let found = data(&b, "off");
    assert_eq!((found.verdict, found.unjustified), (Verdict::Measured, 0));
}
