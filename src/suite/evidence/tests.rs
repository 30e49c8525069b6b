mod at_once;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use history::{Answers, OpId, Outcome};

use super::*;
use crate::plan_file::PlanFile;

/// K4b of the suite: two workers of one client, Redlock, a lease of 6 s.
fn plan() -> Plan {
    let text = include_str!("../../../suites/kleppmann/k4b-everysec.toml");
    PlanFile::parse(text, "k4b-everysec.toml", None).unwrap().plan
}

fn ms(ms: u64) -> Stamp {
    Stamp(ms * 1_000_000)
}

fn at(at_ms: u64, event: Event) -> Record {
    static SEQ: AtomicU64 = AtomicU64::new(0);
    Record { seq: SEQ.fetch_add(1, Relaxed), process: "agent".into(), n: 0, at: ms(at_ms), event }
}

fn granted(by: &[&str]) -> Answers {
    by.iter().map(|node| ((*node).into(), NodeAnswer::Granted)).collect()
}

fn acquire(hold: u64, client: u32, sent: u64) -> Record {
    acquire_in(hold, client, sent, "k0", Mode::Write)
}

fn acquire_in(hold: u64, client: u32, sent: u64, key: &str, mode: Mode) -> Record {
    let (client, attempt) = (ClientId(client), HoldId(hold));
    at(sent, Event::Acquire { client, attempt, key: key.into(), intended: ms(sent), mode, above: None })
}

fn acquired(hold: u64, ok: u64, token: u64, by: &[&str]) -> Record {
    let acquired = Event::Acquired {
        attempt: HoldId(hold),
        token: Some(Token(token)),
        lease_ns: 6_000_000_000,
        granted_after: ms(ok),
        promised_from: None,
        place: None,
        valid_ns: 1,
        answers: granted(by),
    };
    at(ok, acquired)
}

fn failed(attempt: u64, at_ms: u64, by: &[&str]) -> Record {
    let (attempt, outcome, why) = (HoldId(attempt), Outcome::Indeterminate, FailureReason::NoMajority);
    at(at_ms, Event::AcquireFailed { attempt, outcome, why, detail: None, answers: granted(by) })
}

fn fault(kind: FaultKind, node: &str, at_ms: u64, phase: FaultPhase) -> Record {
    at(at_ms, Event::Fault { fault: FaultId(1), kind, node: node.into(), phase })
}

fn killed(at_ms: u64, fsyncs: Option<u32>) -> Vec<Record> {
    let requested = fault(FaultKind::Kill, "redis-3", at_ms, FaultPhase::Requested { asked_ns: 1, hold: None });
    let said = fsyncs.map(|fsyncs| fault(FaultKind::Kill, "redis-3", at_ms + 100, FaultPhase::Unsynced { fsyncs }));
    [Some(requested), said].into_iter().flatten().collect()
}

fn is_seen(witness: &str, records: &[Record]) -> bool {
    let evidence = Evidence::of(&plan(), records.iter());
    evidence.has(&witness.parse().unwrap(), &checker::check(std::iter::empty(), history::Tail::Whole))
}

const FIRST: [&str; 3] = ["redis-1", "redis-2", "redis-3"];
const LAST: [&str; 3] = ["redis-3", "redis-4", "redis-5"];

#[test]
fn a_node_was_flushed_if_it_said_so_after_it_had_granted() {
    let hold = [acquire(1, 0, 1_000), acquired(1, 1_010, 5, &FIRST)];
    for (at_ms, fsyncs, expected) in
        [(2_000, Some(0), true), (2_000, Some(1), false), (2_000, None, false), (1_005, Some(0), false)]
    {
        let records = [&hold[..], &killed(at_ms, fsyncs)].concat();
        assert_eq!(is_seen("flushed:redis-3", &records), expected, "killed at {at_ms}, {fsyncs:?}");
        assert!(!is_seen("flushed:redis-2", &records), "it was not killed");
    }
    // A kill with a pending fsync may lose data, even if a later kill loses nothing.
    let mut second = killed(4_000, Some(0));
    for record in &mut second {
        let Event::Fault { fault, .. } = &mut record.event else { panic!("a kill is a fault") };
        *fault = FaultId(2);
    }
    for (fsyncs, expected) in [(0, true), (1, false)] {
        let records = [&hold[..], &killed(2_000, Some(fsyncs)), &second].concat();
        assert_eq!(is_seen("flushed:redis-3", &records), expected, "{fsyncs} at the first kill");
    }
}

#[test]
fn every_fault_of_a_kind_must_be_proved() {
    let proved = fault(FaultKind::Pause, "worker-1", 2_000, FaultPhase::Proved { from: ms(1_000), to: ms(2_000) });
    let unproved = |kind| fault(kind, "worker-2", 3_000, FaultPhase::Unproved { why: "no stall".into() });
    for (records, expected, why) in [
        (vec![proved.clone()], true, "the only one is proved"),
        (vec![proved.clone(), unproved(FaultKind::Pause)], false, "another pause is not proved"),
        (vec![proved.clone(), unproved(FaultKind::Kill)], true, "a kill is no pause"),
        (vec![unproved(FaultKind::Pause)], false, "none is proved"),
    ] {
        assert_eq!(is_seen("proved:pause", &records), expected, "{why}");
    }
}

#[test]
fn a_node_was_restored_if_no_counter_from_nothing_could_make_the_token() {
    let later = |token, by: &[&str]| vec![acquire(11, 1, 4_000), acquired(11, 4_010, token, by)];
    let before = vec![acquire(1, 0, 1_000), acquired(1, 1_010, 30, &FIRST)];
    let tried = vec![acquire(10, 1, 3_000), failed(10, 3_500, &["redis-4", "redis-5"])];
    for (records, expected, why) in [
        (later(27, &LAST), true, "27 of one attempt"),
        (later(2, &LAST), false, "one failed attempt and its own could have made it"),
        (later(3, &LAST), true, "and no more"),
        (later(27, &["redis-2", "redis-3", "redis-4"]), false, "redis-2 had it written back"),
        (later(27, &["redis-1", "redis-4", "redis-5"]), false, "redis-3 had no part in it"),
    ] {
        let records = [before.clone(), killed(2_000, None), tried.clone(), records].concat();
        assert_eq!(is_seen("restored:redis-3", &records), expected, "{why}");
    }
    let unharmed = [before, tried, later(27, &LAST)].concat();
    assert!(!is_seen("restored:redis-3", &unharmed), "nobody killed it");
}

/// worker-1 holds until it releases; worker-2 waits behind worker-1 and is frozen.
fn queue(behind: Option<u64>, frozen: (u64, u64), released: u64) -> Vec<Record> {
    let behind = behind.map(|ms| at(ms, Event::Behind { attempt: HoldId(2) }));
    let (from, to) = (ms(frozen.0), ms(frozen.1));
    let mut records = vec![acquire(1, 0, 1_000), acquired(1, 1_010, 1, &FIRST), acquire(2, 1, 1_500)];
    records.extend(behind);
    records.push(at(released, Event::Release { hold: HoldId(1) }));
    records.push(fault(FaultKind::Pause, "worker-2", frozen.1 + 10, FaultPhase::Proved { from, to }));
    records
}

#[test]
fn a_client_was_frozen_in_the_queue_for_a_lease_before_its_turn() {
    // A lease of 6 s, and a second in which the server looks at leases.
    for (behind, frozen, released, expected, why) in [
        (Some(1_520), (2_000, 12_000), 9_000, true, "a lease and a second later"),
        (Some(1_520), (2_000, 12_000), 8_999, false, "its lease may still stand"),
        (Some(1_520), (2_000, 8_900), 9_000, false, "it went on before its turn"),
        (Some(2_100), (2_000, 12_000), 10_000, false, "it was not in the queue yet"),
        (None, (1_601, 12_000), 9_000, true, "the server keeps the queue"),
        (None, (1_600, 12_000), 9_000, false, "its request may not have come"),
    ] {
        assert_eq!(is_seen("frozen-in-queue", &queue(behind, frozen, released)), expected, "{why}");
    }
    // An attempt that arrives later and releases is not ahead of the waiting attempt.
    let mut records = queue(Some(1_520), (2_000, 12_000), 3_000);
    records.extend([acquire(3, 0, 4_000), acquired(3, 4_010, 2, &FIRST)]);
    records.push(at(10_000, Event::Release { hold: HoldId(3) }));
    assert!(!is_seen("frozen-in-queue", &records), "its turn came at 3 s");
}

fn admitted(hold: u64, op: Option<u64>, repeat: bool, at_ms: u64) -> Record {
    let (kind, hold, op) = (RequestKind::Write, Some(HoldId(hold)), op.map(OpId));
    let (key, arms) = ("k0".into(), Vec::new());
    at(at_ms, Event::Admission { number: 1, key, kind, hold, op, token: None, deadline: None, repeat, arms })
}

#[test]
fn the_time_from_check_to_write_counts_from_the_last_check_to_the_first_arrival() {
    let check = |at_ms, passed| at(at_ms, Event::Check { hold: HoldId(1), passed });
    let write = |at_ms, op| at(at_ms, Event::Write { hold: HoldId(1), op: OpId(op) });
    let hold = [acquire(1, 0, 1_000), acquired(1, 1_010, 5, &FIRST)];
    let once = vec![check(2_000, true), check(2_500, true), write(2_600, 7), admitted(1, Some(7), false, 4_300)];
    let repeated = [once.clone(), vec![admitted(1, Some(7), true, 9_000)]].concat();
    let twice = [once.clone(), vec![check(5_000, true), write(5_001, 8), admitted(1, Some(8), false, 7_000)]].concat();
    let late_check = [once.clone(), vec![check(4_000, true)]].concat();
    // The log of the resource may come first in the record.
    let log_first = [vec![admitted(1, Some(7), false, 4_300)], once[..3].to_vec()].concat();
    // Each hold numbers its operations anew.
    let next = vec![
        acquire(2, 1, 4_000),
        acquired(2, 4_010, 6, &LAST),
        at(4_100, Event::Check { hold: HoldId(2), passed: true }),
        at(4_200, Event::Write { hold: HoldId(2), op: OpId(7) }),
        admitted(2, Some(7), false, 4_250),
    ];
    let both = [once[..3].to_vec(), next, once[3..].to_vec()].concat();
    for (records, longest, why) in [
        (both, 1_800, "another hold has an operation of the same number"),
        (once.clone(), 1_800, "from the second check"),
        (repeated, 1_800, "the repeat of a request is no arrival"),
        (twice, 2_000, "the longest of two"),
        (late_check, 1_800, "a check after the write was sent"),
        (log_first, 1_800, "the order of the record does not matter"),
    ] {
        let records = [hold.to_vec(), records].concat();
        for (witness, expected) in [
            (format!("check-to-write<={longest}ms"), true),
            (format!("check-to-write<={}ms", longest - 1), false),
            (format!("check-to-write>={longest}ms"), true),
            (format!("check-to-write>={}ms", longest + 1), false),
        ] {
            assert_eq!(is_seen(&witness, &records), expected, "{witness}: {why}");
        }
    }
    let none = [hold.to_vec(), vec![check(2_000, false)], once[2..].to_vec()].concat();
    for witness in ["check-to-write<=9s", "check-to-write>=0s"] {
        assert!(!is_seen(witness, &none), "{witness}: no check passed");
    }
}

#[test]
fn a_write_after_the_deadline_counts_from_the_attempt() {
    for (arrived, expected) in [(7_000, false), (7_001, true)] {
        let records = [acquire(1, 0, 1_000), acquired(1, 1_010, 5, &FIRST), admitted(1, None, false, arrived)];
        assert_eq!(is_seen("write-after-deadline", &records), expected, "at {arrived} ms");
    }
}

/// A request that each of these arms admitted or refused.
fn decided(number: u64, kind: RequestKind, of: (u64, &str, u64), arms: &[(Arm, bool)], at_ms: u64) -> Record {
    let (hold, key, token) = (Some(HoldId(of.0)), of.1.into(), Some(Token(of.2)));
    let decision = |(arm, admitted): &(Arm, bool)| {
        let (arm, admitted) = (*arm, *admitted);
        ArmDecision { arm, admitted, seen: None, base: None, version: 0, value: 0 }
    };
    let (op, deadline, repeat, arms) = (None, None, false, arms.iter().map(decision).collect());
    at(at_ms, Event::Admission { number, key, kind, hold, op, token, deadline, repeat, arms })
}

#[test]
fn a_write_after_a_restart_counts_below_a_token_registered_before() {
    use RequestKind::{Read, Write};
    let hold = |id: u64, key: &str, sent: u64| {
        [acquire_in(id, id as u32, sent, key, Mode::Write), acquired(id, sent + 10, id, &FIRST)]
    };
    let holds = [hold(1, "k0", 500), hold(2, "k0", 3_000), hold(3, "k1", 3_000)].concat();
    let admits = [(Arm::Off, true), (Arm::Writes, true), (Arm::Reads, true)];
    let refuses = [(Arm::Off, true), (Arm::Writes, false), (Arm::Reads, false)];
    let first = decided(1, Write, (1, "k0", 1), &admits, 1_000);
    let restart = |at_ms, durable| at(at_ms, Event::Recovered { durable });
    let last = decided(3, Write, (1, "k0", 1), &refuses, 8_000);
    let larger = |kind, arms: &[(Arm, bool)]| decided(2, kind, (2, "k0", 2), arms, 3_500);
    for (between, expected, why) in [
        (vec![larger(Write, &admits), restart(5_000, 2)], true, "it was registered"),
        (vec![larger(Read, &admits), restart(5_000, 2)], true, "the arm `reads` registers reads"),
        (vec![larger(Read, &admits[..2]), restart(5_000, 2)], false, "no other arm does"),
        (vec![larger(Write, &admits[..1]), restart(5_000, 2)], false, "the arm `off` registers nothing"),
        (vec![larger(Write, &refuses), restart(5_000, 2)], false, "what is refused is not registered"),
        (vec![larger(Write, &admits), restart(5_000, 1)], false, "the kill undid it"),
        (vec![larger(Write, &admits), restart(5_000, 1), restart(6_000, 9)], false, "the first of two kills undid it"),
        (vec![larger(Write, &admits), restart(5_000, 2), restart(6_000, 9)], true, "it outlived two restarts"),
        (vec![larger(Write, &admits), restart(5_000, 2), restart(9_000, 9)], true, "the second restart was later"),
        (vec![larger(Write, &admits), restart(3_200, 1)], false, "the restart was before it"),
        (vec![larger(Write, &admits), restart(9_000, 3)], false, "the restart was after the write"),
        (vec![larger(Write, &admits)], false, "no restart"),
        (vec![restart(2_000, 1)], false, "the later holder sent nothing"),
        (vec![decided(2, Write, (3, "k1", 3), &admits, 3_500), restart(5_000, 2)], false, "of another key"),
    ] {
        let records = [holds.clone(), vec![at(0, Event::Recovered { durable: 0 }), first.clone()], between];
        let records = [records.concat(), vec![last.clone()]].concat();
        assert_eq!(is_seen("write-after-restart", &records), expected, "{why}");
    }
}

#[test]
fn a_write_that_a_restart_undid_is_no_evidence() {
    let check = |at_ms| at(at_ms, Event::Check { hold: HoldId(1), passed: true });
    let hold = |id: u64, sent: u64| [acquire(id, id as u32, sent), acquired(id, sent + 10, id, &FIRST)];
    let write = |number, hold: u64, at_ms| {
        let mut record = decided(number, RequestKind::Write, (hold, "k0", hold), &[(Arm::Off, true)], at_ms);
        if let Event::Admission { op, .. } = &mut record.event {
            *op = Some(OpId(1));
        }
        record
    };
    let sent = at(2_010, Event::Write { hold: HoldId(1), op: OpId(1) });
    let records = [hold(1, 1_000), [check(2_000), sent], hold(2, 8_000)].concat();
    for (durable, tried, before, why) in [
        (2, true, true, "both writes were on the disk"),
        (1, false, false, "the stale write was not"),
        (0, false, false, "neither write was"),
    ] {
        let writes = [write(1, 2, 8_500), write(2, 1, 9_000), at(9_500, Event::Recovered { durable })];
        let records = [&records[..], &writes[..]].concat();
        for (witness, expected) in [
            ("stale-write-tried", tried),
            ("write-after-deadline", tried),
            ("check-to-write>=7s", tried),
            ("write-before-stale-arrival", before),
        ] {
            assert_eq!(is_seen(witness, &records), expected, "{witness}: {why}");
        }
    }
    // The later holder's write was not on the disk, and the stale write comes after the restart.
    let writes = [write(1, 2, 8_500), at(8_700, Event::Recovered { durable: 0 }), write(9, 1, 9_000)];
    let records = [&records[..], &writes[..]].concat();
    assert!(is_seen("stale-write-tried", &records) && !is_seen("write-before-stale-arrival", &records));
}

#[test]
fn a_later_hold_counts_only_if_it_excludes_the_earlier_one() {
    use Mode::{Read, Write};
    let struck = FaultPhase::Proved { from: ms(1_500), to: ms(1_600) };
    for (one, key, other, expected) in
        [(Write, "k0", Write, true), (Read, "k0", Write, true), (Read, "k0", Read, false), (Write, "k1", Write, false)]
    {
        let records = [
            acquire_in(1, 0, 1_000, "k0", one),
            acquired(1, 1_010, 7, &FIRST),
            fault(FaultKind::Kill, "redis-3", 1_700, struck.clone()),
            acquire_in(2, 1, 2_000, key, other),
            acquired(2, 2_010, 6, &LAST),
            admitted(2, None, false, 3_000),
            admitted(1, None, false, 4_000),
        ];
        for witness in ["stale-write-tried", "write-before-stale-arrival", "tokens-behind", "granted-again:redis-3"] {
            assert_eq!(is_seen(witness, &records), expected, "{witness}: {one}, then {other} of {key}");
        }
    }
}

#[test]
fn tokens_are_compared_with_the_last_hold_of_the_key() {
    let hold = |id: u64, key: &str, token: u64| {
        [acquire_in(id, id as u32, id * 1_000, key, Mode::Write), acquired(id, id * 1_000 + 10, token, &FIRST)]
    };
    for (last, expected) in [(Some(8), false), (Some(6), true), (None, false)] {
        let mut records = [hold(1, "k0", 7), hold(2, "k1", 9), hold(3, "k0", 0)].concat();
        let Event::Acquired { token, .. } = &mut records[5].event else { panic!("the last hold is acquired") };
        *token = last.map(Token);
        assert_eq!(is_seen("tokens-behind", &records), expected, "{last:?} after 7, and 9 of another key");
    }
}

#[test]
fn a_node_granted_again_within_a_lease_of_a_hold_that_was_not_released_and_after_a_fault_of_its_own() {
    use FaultKind::{Delay, Kill, Partition};
    for (released, (kind, node, began), ok, expected, why) in [
        (None, (Kill, "redis-3", 1_500), 2_010, true, "nobody released the first hold"),
        (Some(2_010), (Kill, "redis-3", 1_500), 2_010, false, "the first hold was released by then"),
        (Some(2_011), (Kill, "redis-3", 1_500), 2_010, true, "the first hold was released later"),
        (None, (Kill, "redis-3", 1_500), 6_999, true, "within a lease of 6 s"),
        (None, (Kill, "redis-3", 1_500), 7_000, false, "the lease was over"),
        (None, (Kill, "redis-3", 999), 2_010, false, "the fault began before the first attempt"),
        (None, (Kill, "redis-3", 1_000), 2_010, true, "the fault began with the first attempt"),
        (None, (Kill, "redis-3", 2_010), 2_010, true, "the fault began with the second hold"),
        (None, (Kill, "redis-3", 2_011), 2_010, false, "the fault began after the second hold"),
        (None, (Kill, "redis-4", 1_500), 2_010, false, "a fault of another node"),
        (None, (Partition, "redis-3", 1_500), 2_010, false, "the links were cut, and the node kept everything"),
        (None, (Delay, "redis-3", 1_500), 2_010, false, "the links were slow, and the node kept everything"),
    ] {
        let proved = FaultPhase::Proved { from: ms(began), to: ms(began + 100) };
        let mut records = vec![acquire(1, 0, 1_000), acquired(1, 1_010, 7, &FIRST)];
        records.extend(released.map(|at_ms| at(at_ms, Event::Release { hold: HoldId(1) })));
        records.extend([fault(kind, node, began, proved), acquire(2, 1, ok - 10), acquired(2, ok, 8, &LAST)]);
        assert_eq!(is_seen("granted-again:redis-3", &records), expected, "{why}");
    }
}

#[test]
fn a_node_was_struck_between_its_grant_and_the_end_of_an_attempt_of_another_client() {
    use FaultKind::{Kill, Partition};
    for (kind, began, client, expected, why) in [
        (Kill, 1_500, 1, true, "before the second attempt"),
        (Kill, 2_500, 1, true, "at the end of the second attempt"),
        (Kill, 2_501, 1, false, "after the second attempt"),
        (Kill, 999, 1, false, "before the node had granted"),
        (Kill, 1_500, 0, false, "the holder itself tried again"),
        (Partition, 1_500, 1, false, "the links were cut, and the node kept everything"),
    ] {
        let proved = FaultPhase::Proved { from: ms(began), to: ms(began + 100) };
        let records = [
            acquire(1, 0, 1_000),
            acquired(1, 1_010, 7, &FIRST),
            fault(kind, "redis-3", began, proved),
            acquire(2, client, 2_000),
            failed(2, 2_500, &["redis-4"]),
        ];
        assert_eq!(is_seen("granted-and-struck:redis-3", &records), expected, "{why}");
        assert!(!is_seen("granted-and-struck:redis-4", &records), "it granted no hold");
    }
}

#[test]
fn every_fault_of_a_kind_must_be_proved_healed() {
    use FaultKind::{Clock, Pause};
    let injected = |kind| fault(kind, "redis-1", 1_000, FaultPhase::Injected);
    let healed = |kind| fault(kind, "redis-1", 2_000, FaultPhase::HealProved);
    for (records, expected, why) in [
        (vec![injected(Clock), healed(Clock)], true, "the only one is healed"),
        (vec![injected(Clock), healed(Clock), injected(Clock)], false, "the second one is not healed"),
        (vec![injected(Clock), healed(Clock), injected(Pause)], true, "a pause is no change of a clock"),
        (vec![injected(Clock), healed(Pause)], false, "the heal of a pause"),
        (vec![injected(Pause), healed(Pause)], false, "no clock was changed"),
    ] {
        assert_eq!(is_seen("healed:clock", &records), expected, "{why}");
    }
}

#[test]
fn a_renewal_failed_by_the_faults_only_if_one_was_on() {
    let renewal_failed = |at_ms| {
        let (hold, outcome, why) = (HoldId(1), Outcome::Failed, FailureReason::NoMajority);
        at(at_ms, Event::RenewFailed { hold, outcome, why, answers: granted(&[]) })
    };
    let injected = |at_ms| fault(FaultKind::Kill, "redis-3", at_ms, FaultPhase::Injected);
    for (records, expected, why) in [
        (vec![injected(1_000), renewal_failed(1_001)], true, "under the fault"),
        (vec![renewal_failed(1_001), injected(1_000)], true, "the order of the record does not matter"),
        (vec![injected(3_000), renewal_failed(1_001), injected(1_000)], true, "under the first fault"),
        (vec![renewal_failed(999), injected(1_000)], false, "before the fault"),
        (vec![renewal_failed(999)], false, "no fault came"),
    ] {
        assert_eq!(is_seen("renewal-failed", &records), expected, "{why}");
    }
    let calm = Plan { schedule: Vec::new(), ..plan() };
    let evidence = Evidence::of(&calm, [renewal_failed(999)].iter());
    let verdicts = checker::check(std::iter::empty(), history::Tail::Whole);
    assert!(evidence.has(&"renewal-failed".parse().unwrap(), &verdicts), "the plan has no faults");
}

#[test]
fn a_quorum_is_exactly_the_nodes_that_granted_a_hold() {
    let first = [acquire(1, 0, 1_000), acquired(1, 1_010, 7, &FIRST)];
    let held = |by: &[&str]| acquired(2, 2_010, 8, by);
    for (second, expected, why) in [
        (held(&LAST), true, "both quorums granted"),
        (held(&["redis-2", "redis-3", "redis-4", "redis-5"]), false, "one node more granted"),
        (held(&LAST[..2]), false, "one node less granted"),
        (held(&FIRST), false, "the first quorum granted both holds"),
        (failed(2, 2_010, &LAST), false, "the grants became no hold"),
    ] {
        let records = [first.to_vec(), vec![acquire(2, 1, 2_000), second]].concat();
        assert_eq!(is_seen("quorums:1,2,3/3,4,5", &records), expected, "{why}");
    }
}

#[test]
fn a_grant_is_refused_by_its_validity_only_if_a_majority_granted_it_too_late() {
    use FailureReason::{NoMajority, Validity};
    use history::Point::{AfterSend, BeforeWrite};
    for (point, why_failed, at_ms, by, expected, why) in [
        (AfterSend, Validity, 7_001, &FIRST[..], true, "the lease of 6 s was over"),
        (AfterSend, Validity, 7_000, &FIRST[..], false, "the lease was not over"),
        (AfterSend, Validity, 7_001, &FIRST[..2], false, "two of five nodes granted"),
        (AfterSend, NoMajority, 7_001, &FIRST[..], false, "it failed for another reason"),
        (BeforeWrite, Validity, 7_001, &FIRST[..], false, "the client was at another point"),
    ] {
        let (attempt, outcome, answers) = (HoldId(1), Outcome::Failed, granted(by));
        let records = [
            acquire(1, 0, 1_000),
            at(1_001, Event::AtPoint { client: ClientId(0), hold: attempt, point }),
            at(at_ms, Event::AcquireFailed { attempt, outcome, why: why_failed, detail: None, answers }),
        ];
        assert_eq!(is_seen("refused-by-validity:after-send", &records), expected, "{why}");
    }
}

#[test]
fn a_write_is_stale_after_another_client_has_acquired_and_its_write_counts_before() {
    // The second client acquires at 2,010 ms and writes at 3,000 ms.
    for (second, arrived, is_stale, is_after_write) in [
        (1, 2_010, false, false),
        (1, 2_011, true, false),
        (1, 3_000, true, false),
        (1, 3_001, true, true),
        (0, 3_001, false, false),
    ] {
        let records = [
            acquire(1, 0, 1_000),
            acquired(1, 1_010, 7, &FIRST),
            acquire(2, second, 2_000),
            acquired(2, 2_010, 8, &LAST),
            admitted(2, None, false, 3_000),
            admitted(1, None, false, arrived),
        ];
        let found = ["stale-write-tried", "write-before-stale-arrival"].map(|witness| is_seen(witness, &records));
        assert_eq!(found, [is_stale, is_after_write], "of client {second}, arrived at {arrived}");
    }
}
