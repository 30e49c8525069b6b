mod cycles;

use std::collections::{BTreeMap, BTreeSet};

use history::{Answers, Mode, NodeAnswer, Outcome, Tail};
use proptest::prelude::*;

use super::*;
use crate::{
    history_builder::{HistoryBuilder, ms},
    properties::{LivenessVerdict, Property},
    report::Report,
    verdict::Verdict,
    verdicts::Verdicts,
};

fn liveness(builder: &HistoryBuilder) -> LivenessVerdict {
    liveness_of(&builder.verdicts())
}

fn liveness_of(verdicts: &Verdicts) -> LivenessVerdict {
    match verdicts.properties.get("liveness") {
        Some(Property::Liveness(found)) => found.clone(),
        other => panic!("{other:?}"),
    }
}

fn ends(builder: &HistoryBuilder) -> Vec<(DeadlockEnd, f64)> {
    liveness(builder).deadlocks.iter().map(|found| (found.ended, found.lasted_ms)).collect()
}

/// Clients that take several keys each.
struct Clients(HistoryBuilder, u64);

impl Clients {
    fn new(workers: u32) -> Clients {
        let mut builder = HistoryBuilder::new();
        builder.plan.workload.workers = workers;
        builder.plan.workload.keys = 3;
        builder.plan.workload.locks_per_section = 2;
        Clients(builder, 2)
    }

    fn event(&mut self, worker: u32, at: u64, event: Event) -> &mut Clients {
        self.0.event(&format!("worker-{worker}"), at, event);
        self
    }

    fn tries(&mut self, worker: u32, attempt: u64, key: &str, at: u64) -> &mut Clients {
        let (client, attempt, key) = (ClientId(worker - 1), HoldId(attempt), Key::from(key));
        self.event(
            worker,
            at,
            Event::Acquire { client, attempt, key, intended: ms(at), mode: Mode::Write, above: None },
        )
    }

    fn gets(&mut self, worker: u32, attempt: u64, at: u64) -> &mut Clients {
        let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Granted), (2, NodeAnswer::Granted)]);
        let (attempt, lease_ns) = (HoldId(attempt), self.1 * 1_000_000_000);
        let acquired = Event::Acquired {
            attempt,
            token: None,
            lease_ns,
            granted_after: ms(at - 5),
            promised_from: None,
            place: None,
            valid_ns: 0,
            answers,
        };
        self.event(worker, at, acquired)
    }

    fn holds(&mut self, worker: u32, attempt: u64, key: &str, at: u64) -> &mut Clients {
        self.tries(worker, attempt, key, at - 5).gets(worker, attempt, at)
    }

    fn fails(&mut self, worker: u32, attempt: u64, why: FailureReason, at: u64) -> &mut Clients {
        let (attempt, outcome, answers) = (HoldId(attempt), Outcome::Failed, Answers::new());
        self.event(worker, at, Event::AcquireFailed { attempt, outcome, why, detail: None, answers })
    }

    fn releases(&mut self, worker: u32, hold: u64, at: u64) -> &mut Clients {
        let hold = HoldId(hold);
        self.event(worker, at, Event::Release { hold });
        self.event(worker, at + 2, Event::Released { hold, removed: true, answers: Answers::new() })
    }

    /// worker-1 holds k0 and waits for k1 from 200 on; worker-2 holds k1 and waits for k0 from 300 on.
    fn deadlocked() -> Clients {
        Clients::new(3).deadlock()
    }

    /// The holds of worker-1 and worker-2 are renewed every 500 ms before a time.
    fn renewed(&mut self, before: u64) -> &mut Clients {
        for (worker, hold) in [(1, HoldId(1)), (2, HoldId(2))] {
            for at in (500..before).step_by(500) {
                let (lease_ns, answers) = (self.1 * 1_000_000_000, Answers::new());
                self.event(worker, at, Event::Renew { hold });
                self.event(worker, at, Event::Renewed { hold, lease_ns, answers });
            }
        }
        self
    }

    fn deadlock(self) -> Clients {
        let mut s = self;
        s.holds(1, 1, "k0", 100).holds(2, 2, "k1", 110).tries(1, 3, "k1", 200).tries(2, 4, "k0", 300);
        s
    }
}

#[test]
fn two_clients_in_opposite_order_are_named_with_what_they_hold_and_wait_for() {
    let mut s = Clients::deadlocked();
    s.fails(2, 4, FailureReason::Deadlock, 1_310).releases(2, 2, 1_320).gets(1, 3, 1_330);
    let found = liveness(&s.0);
    assert_eq!((found.verdict, found.deadlocks_detected, found.deadlocks.len()), (Verdict::Upheld, 1, 1));
    assert_eq!(
        found.deadlocks[0].line(),
        "deadlock: worker-2 holds k1 and waits for k0; worker-1 holds k0 and waits for k1; for 1.01 s, then the \
         service detected it and ended the attempt of worker-2"
    );
    assert_eq!(found.deadlocks[0].witness.len(), 4);
}

#[test]
fn deadlocks_that_are_not_kept_are_counted_in_the_notes() {
    let mut s = Clients::deadlocked();
    s.fails(2, 4, FailureReason::Deadlock, 1_310).releases(2, 2, 1_320).gets(1, 3, 1_330);
    let one = liveness(&s.0);
    for (kept, all, told) in [
        (100, 150, "147 more deadlocks; verdict.json has 100 in all"),
        (5, 5, "2 more deadlocks; verdict.json has them"),
    ] {
        let deadlocks = vec![one.deadlocks[0].clone(); kept];
        let many = LivenessVerdict { deadlocks, deadlocks_detected: all, ..one.clone() };
        assert_eq!(many.notes()[3], format!("and {told}"));
    }
}

#[test]
fn the_ends_of_a_deadlock_are_told_apart() {
    // A client that is refused again and again gives up its wait, and releases.
    let mut s = Clients::deadlocked();
    for (i, at) in [400, 500, 600].into_iter().enumerate() {
        let id = 10 + i as u64;
        s.fails(2, if i == 0 { 4 } else { id - 1 }, FailureReason::Held, at).tries(2, id, "k0", at + 50);
    }
    s.fails(2, 12, FailureReason::Held, 700).releases(2, 2, 710).gets(1, 3, 720);
    assert_eq!(ends(&s.0), [(DeadlockEnd::TimedOut, 410.0)]);
    // The promise of worker-1 ends at 2,073; worker-2 gets the key some time later.
    let mut s = Clients::deadlocked();
    s.gets(2, 4, 2_090);
    assert_eq!(ends(&s.0), [(DeadlockEnd::LeaseEnded, 1_773.0)]);
    // The same, where a client gives up after that.
    let mut s = Clients::deadlocked();
    s.fails(1, 3, FailureReason::Cancelled, 2_500).releases(1, 1, 2_510);
    assert_eq!(ends(&s.0), [(DeadlockEnd::LeaseEnded, 1_773.0)]);
    let mut s = Clients::deadlocked();
    s.0.kill(1, "worker-1", 900);
    s.gets(2, 4, 2_090);
    assert_eq!(ends(&s.0), [(DeadlockEnd::Killed, 600.0)]);
}

/// A deadlock from 300 on under leases of so many seconds, renewed before a time. The record ends at a time.
fn lasting(lease: u64, renewed_before: u64, at: u64) -> Clients {
    let mut s = Clients::new(3);
    (s.1, s.0.plan.workload.renew) = (lease, Some(Duration::from_millis(500)));
    let mut s = s.deadlock();
    s.renewed(renewed_before).event(3, at, Event::Clocks { wall_ns: 0, boot_ns: 0 });
    s
}

#[test]
fn a_deadlock_that_does_not_end_violates_liveness() {
    // The clients renew their holds. The cycle must have ended by 3,300: a lease of 2 s, and 1 s.
    let found = liveness(&lasting(2, 3_301, 3_301).0);
    assert_eq!((found.verdict, found.deadlocks_unended), (Verdict::Violated, 1));
    assert_eq!((found.violations().len(), found.evidence()), (1, vec![found.deadlocks[0].line()]));
    // The record ends before a lease or a client's patience could have ended the cycle, or a lease will end it.
    let patient = |at| {
        let mut s = lasting(2, at, at);
        s.0.plan.workload.patience = Some(Duration::from_secs(3));
        s
    };
    let mut unrenewed = lasting(600, 0, 9_000);
    unrenewed.0.plan.workload.renew = None;
    for s in [lasting(2, 3_300, 3_300), patient(4_300), unrenewed] {
        let found = liveness(&s.0);
        assert_eq!((found.verdict, found.deadlocks_unended), (Verdict::Inconclusive, 0), "{found:?}");
        assert_eq!((found.deadlocks_cut_off, found.reasons.len()), (1, 1), "{found:?}");
    }
    assert_eq!(liveness(&patient(4_301).0).verdict, Verdict::Violated);
    // With a lease of 2 s the lease ends it, although the two clients do nothing more.
    let mut short = Clients::deadlocked();
    short.holds(3, 5, "k2", 3_000);
    let found = liveness(&short.0);
    assert_eq!((found.verdict, found.deadlocks_lease_ended), (Verdict::Upheld, 1));
}

#[test]
fn a_longer_lease_than_the_plan_has_may_end_a_deadlock() {
    // The plan has 2 s; the service grants 20 s. A lease that nobody renews ends after 20 s at the latest.
    for (renewed_before, at, verdict) in [
        (0, 9_000, Verdict::Inconclusive),
        (1_100, 9_000, Verdict::Inconclusive),
        (21_300, 21_300, Verdict::Inconclusive),
        (21_301, 21_301, Verdict::Violated),
    ] {
        let found = liveness(&lasting(20, renewed_before, at).0);
        assert_eq!(found.verdict, verdict, "renewed before {renewed_before}, until {at}");
    }
    // Only the renewal is for longer.
    let mut s = lasting(2, 0, 9_000);
    s.1 = 20;
    s.renewed(1_100);
    assert_eq!(liveness(&s.0).verdict, Verdict::Inconclusive);
    // The same renewals for 2 s: the lease ends the deadlock.
    let found = liveness(&lasting(2, 1_100, 9_000).0);
    assert_eq!((found.verdict, found.deadlocks_lease_ended), (Verdict::Upheld, 1));
}

#[test]
fn a_lease_that_ended_unseen_has_ended_its_deadlock() {
    // Both clients wait in a queue until the record ends, and only one of them renews. The hold of worker-1 is promised
    // until 2,073, and that of worker-2 until 2,083.
    for (renewing, lasted_ms) in [(1, 1_783.0), (2, 1_773.0)] {
        let mut s = Clients::new(3);
        s.0.plan.workload.renew = Some(Duration::from_millis(500));
        let mut s = s.deadlock();
        for at in (500..9_000).step_by(500) {
            let (hold, lease_ns, answers) = (HoldId(renewing), 2_000_000_000, Answers::new());
            s.event(renewing as u32, at, Event::Renew { hold });
            s.event(renewing as u32, at, Event::Renewed { hold, lease_ns, answers });
        }
        s.event(3, 9_000, Event::Clocks { wall_ns: 0, boot_ns: 0 });
        assert_eq!(ends(&s.0), [(DeadlockEnd::LeaseEnded, lasted_ms)], "worker-{renewing} renews");
        assert_eq!(liveness(&s.0).verdict, Verdict::Upheld);
    }
}

#[test]
fn a_deadlock_in_a_record_without_an_end_is_inconclusive() {
    let mut records = lasting(2, 9_000, 9_000).0.records();
    records.pop();
    let found = liveness_of(&crate::check(records, Tail::Whole));
    assert_eq!((found.verdict, found.deadlocks_unended), (Verdict::Inconclusive, 0));
    assert_eq!((found.deadlocks_cut_off, found.reasons.len()), (1, 1));
}

#[test]
fn a_stuck_attempt_does_not_prove_a_deadlock_beside_it() {
    // Nobody has had k2, and worker-3 is refused. The others wait for each other until the record ends.
    let mut s = lasting(2, 9_000, 9_000);
    s.tries(3, 9, "k2", 6_000).fails(3, 9, FailureReason::Held, 6_010);
    let mut records = s.0.records();
    assert_eq!(liveness_of(&crate::check(records.clone(), Tail::Whole)).violations().len(), 2);
    records.pop();
    let found = liveness_of(&crate::check(records, Tail::Whole));
    assert_eq!((found.verdict, found.stuck.len(), found.deadlocks_cut_off), (Verdict::Violated, 1, 1));
    assert_eq!((found.violations().len(), found.evidence()), (1, vec![found.stuck[0].line()]));
    assert_eq!((found.deadlocks[0].ended, found.reasons.len()), (DeadlockEnd::CutOff, 1));
}

#[test]
fn waits_without_a_cycle_are_no_deadlock() {
    // worker-2 waits for the key of worker-1, which releases it in the ordinary way.
    let mut s = Clients::new(3);
    s.holds(1, 1, "k0", 100).holds(2, 2, "k1", 110).tries(2, 4, "k0", 300).releases(1, 1, 500).gets(2, 4, 510);
    assert_eq!(ends(&s.0), []);
    // worker-1 waits for k1 only after worker-2 has released k1.
    let mut s = Clients::new(3);
    s.holds(1, 1, "k0", 100).holds(2, 2, "k1", 110).releases(2, 2, 150).tries(1, 3, "k1", 200).tries(2, 4, "k0", 300);
    s.gets(1, 3, 310).releases(1, 3, 400).releases(1, 1, 410).gets(2, 4, 420);
    assert_eq!(ends(&s.0), []);
    // The lease of worker-1's hold has ended, so worker-2 waits for nobody.
    let mut s = Clients::new(3);
    s.holds(1, 1, "k0", 100).holds(2, 2, "k1", 1_500).tries(1, 3, "k1", 1_600).tries(2, 4, "k0", 2_100);
    assert_eq!(ends(&s.0), []);
    // worker-1 does not know whether its write arrived: it keeps k0 for the lease, and wants k0 and then k1 again.
    let mut s = Clients::new(3);
    s.holds(1, 1, "k0", 100).event(1, 150, Event::GaveUp { hold: HoldId(1) }).tries(1, 3, "k0", 200);
    s.fails(1, 3, FailureReason::Held, 210).holds(2, 2, "k1", 250).tries(1, 4, "k1", 300).tries(2, 5, "k0", 400);
    s.gets(2, 5, 2_100).releases(2, 5, 2_110);
    assert_eq!(ends(&s.0), []);
    // Both orders are the same: nobody holds k1 and waits for k0.
    let mut s = Clients::new(3);
    s.holds(1, 1, "k0", 100).tries(2, 2, "k0", 110).tries(1, 3, "k1", 200).gets(1, 3, 205).releases(1, 3, 300);
    s.releases(1, 1, 310).gets(2, 2, 320);
    assert_eq!(ends(&s.0), []);
}

#[test]
fn a_client_that_does_not_try_again_waits_no_longer() {
    // Each client tries the key of the other once, and works on under its own key until the end.
    let tried_once = |between: u64, until| {
        let mut s = Clients::new(2);
        (s.1, s.0.plan.workload.renew) = (2, Some(Duration::from_millis(500)));
        s.renewed(until).holds(1, 1, "k0", 100).holds(2, 2, "k1", 150);
        s.tries(1, 3, "k1", 500).fails(1, 3, FailureReason::Held, 510);
        s.tries(2, 4, "k0", 510 + between).fails(2, 4, FailureReason::Held, 520 + between);
        s.event(1, until, Event::Work { hold: HoldId(1), planned_ns: 1 });
        s
    };
    // A client waits for 150 ms at most before it tries again, and 1 s more are allowed.
    let found = liveness(&tried_once(1_150, 9_000).0);
    assert_eq!((found.deadlocks_unended, found.deadlocks_timed_out, found.deadlocks.len()), (0, 1, 1), "{found:?}");
    assert_eq!((found.deadlocks[0].lasted_ms, found.deadlocks[0].from_ms), (0.0, 1_660.0), "the other waits no longer");
    assert_eq!(ends(&tried_once(1_151, 9_000).0), []);
    // A client that tries every 2 s may do so 5 s later again.
    let tries_rarely = |until: u64| {
        let mut s = tried_once(100, until);
        for (number, at) in (2_500..until).step_by(2_000).enumerate() {
            let id = 10 + 2 * number as u64;
            s.tries(1, id, "k1", at + 5).fails(1, id, FailureReason::Held, at + 15);
            s.tries(2, id + 1, "k0", at + 20).fails(2, id + 1, FailureReason::Held, at + 30);
        }
        s
    };
    let found = liveness(&tries_rarely(30_000).0);
    assert_eq!((found.verdict, found.deadlocks_unended), (Verdict::Violated, 1), "{:?}", found.deadlocks);
}

#[test]
fn longer_cycles_and_a_client_that_waits_for_itself_are_deadlocks() {
    let mut s = Clients::new(3);
    s.holds(1, 1, "k0", 100).holds(2, 2, "k1", 110).holds(3, 3, "k2", 120);
    s.tries(1, 4, "k1", 200).tries(2, 5, "k2", 300).tries(3, 6, "k0", 400);
    s.fails(3, 6, FailureReason::Cancelled, 900).releases(3, 3, 900);
    let found = liveness(&s.0).deadlocks;
    assert_eq!((found.len(), found[0].clients.len(), found[0].lasted_ms), (1, 3, 500.0));
    let mut s = Clients::new(3);
    s.holds(1, 1, "k0", 100).tries(1, 2, "k0", 200).fails(1, 2, FailureReason::Held, 250).releases(1, 1, 300);
    assert_eq!(ends(&s.0), [(DeadlockEnd::TimedOut, 100.0)]);
}

#[test]
fn the_same_clients_can_be_deadlocked_again() {
    let mut s = Clients::deadlocked();
    s.fails(2, 4, FailureReason::Cancelled, 400).releases(2, 2, 410).gets(1, 3, 420).releases(1, 3, 430);
    s.releases(1, 1, 440);
    s.holds(1, 21, "k0", 500).holds(2, 22, "k1", 510).tries(2, 23, "k0", 600).tries(1, 24, "k1", 650);
    s.fails(1, 24, FailureReason::Cancelled, 750).releases(1, 21, 750);
    assert_eq!(ends(&s.0), [(DeadlockEnd::TimedOut, 110.0), (DeadlockEnd::TimedOut, 100.0)]);
}

/// A lock service in which nothing expires, and its clients. It knows at each instant who waits for whom.
struct Service {
    record: Clients,
    at: u64,
    attempts: u64,
    /// Each client's holds, the oldest first.
    holds: BTreeMap<u32, Vec<(u64, u64)>>,
    waits: BTreeMap<u32, (u64, u64)>,
    /// The cycles that exist, each with the time at which it began.
    cycles: BTreeMap<BTreeSet<u32>, u64>,
    ended: Vec<(BTreeSet<u32>, u64, u64, DeadlockEnd)>,
}

impl Service {
    fn new() -> Service {
        let mut record = Clients::new(4);
        record.1 = 600;
        let (holds, waits, cycles, ended) = Default::default();
        Service { record, at: 100, attempts: 0, holds, waits, cycles, ended }
    }

    fn owner(&self, key: u64) -> Option<u32> {
        self.holds.iter().find(|(_, holds)| holds.iter().any(|(held, _)| *held == key)).map(|(client, _)| *client)
    }

    /// Compares the cycles with those before the last event.
    fn look(&mut self, ended: DeadlockEnd) {
        let next = |client: u32| self.waits.get(&client).and_then(|(key, _)| self.owner(*key));
        let mut found = BTreeSet::new();
        for first in 1..=4 {
            let mut path = vec![first];
            while let Some(client) = next(*path.last().unwrap()).filter(|client| !path[1..].contains(client)) {
                if client == first {
                    found.insert(path.iter().copied().collect::<BTreeSet<u32>>());
                    break;
                }
                path.push(client);
            }
        }
        let gone: Vec<_> = self.cycles.keys().filter(|cycle| !found.contains(*cycle)).cloned().collect();
        for cycle in gone {
            let from = self.cycles.remove(&cycle).unwrap();
            self.ended.push((cycle, from, self.at, ended));
        }
        for cycle in found {
            self.cycles.entry(cycle).or_insert(self.at);
        }
    }

    fn acts(&mut self, client: u32, key: u64, choice: u8) {
        self.at += 10;
        match self.waits.get(&client).copied() {
            Some((key, attempt)) if self.owner(key).is_none() => {
                self.record.gets(client, attempt, self.at);
                self.waits.remove(&client);
                self.holds.entry(client).or_default().push((key, attempt));
                self.look(DeadlockEnd::Unended);
            }
            // A client that is refused tries again.
            Some((key, attempt)) if choice < 4 => {
                self.record.fails(client, attempt, FailureReason::Held, self.at);
                self.at += 10;
                self.tries(client, key);
            }
            Some((_, attempt)) if choice < 6 => {
                let why = if choice == 4 { FailureReason::Cancelled } else { FailureReason::Deadlock };
                self.record.fails(client, attempt, why, self.at);
                if choice == 5 {
                    self.waits.remove(&client);
                    self.look(DeadlockEnd::Detected);
                }
                self.releases(client);
            }
            Some(_) => {}
            None if choice < 5 => {
                self.tries(client, key);
                self.look(DeadlockEnd::Unended);
            }
            None => self.releases(client),
        }
    }

    fn tries(&mut self, client: u32, key: u64) {
        self.attempts += 1;
        self.record.tries(client, self.attempts, &format!("k{key}"), self.at);
        self.waits.insert(client, (key, self.attempts));
    }

    fn releases(&mut self, client: u32) {
        for (_, hold) in self.holds.remove(&client).unwrap_or_default().into_iter().rev() {
            self.at += 10;
            self.record.releases(client, hold, self.at);
            self.waits.remove(&client);
            self.look(DeadlockEnd::TimedOut);
        }
        self.waits.remove(&client);
    }
}

proptest! {
    #[test]
    fn the_checker_finds_the_cycles_of_the_service(acts in prop::collection::vec((1..=4u32, 0..3u64, 0..8u8), 1..120)) {
        let mut service = Service::new();
        for (client, key, choice) in acts {
            service.acts(client, key, choice);
        }
        let Service { record, ended, cycles, .. } = service;
        let found = liveness(&record.0);
        let of = |(clients, from, to, end)| (from, to - from, clients, end);
        let mut known: Vec<_> = ended.into_iter().map(of).collect();
        known.sort_by_key(|(from, _, clients, _)| (*from, clients.clone()));
        let is_ended = |found: &&Deadlock| found.ended != DeadlockEnd::CutOff;
        let mut judged: Vec<_> = (found.deadlocks.iter().filter(is_ended))
            .map(|found| {
                let clients: BTreeSet<u32> = found.clients.iter().map(|client| client.client.0 + 1).collect();
                (found.from_ms.round() as u64, found.lasted_ms.round() as u64, clients, found.ended)
            })
            .collect();
        judged.sort_by_key(|(from, _, clients, _)| (*from, clients.clone()));
        prop_assert_eq!(judged.len().min(NAMED_MAX), known.len().min(NAMED_MAX));
        prop_assert_eq!(judged, known);
        prop_assert_eq!(found.deadlocks_cut_off, cycles.len() as u64);
    }
}

/// The legend's word for an end. The match fails to compile when an end is added.
fn word(end: DeadlockEnd) -> &'static str {
    match end {
        DeadlockEnd::Detected => "detected",
        DeadlockEnd::TimedOut => "timed-out",
        DeadlockEnd::LeaseEnded => "lease-ended",
        DeadlockEnd::Killed => "killed",
        DeadlockEnd::Unended => "unended",
        DeadlockEnd::CutOff => "cut-off",
    }
}

#[test]
fn every_end_is_defined_in_the_legend_by_the_word_of_the_verdict() {
    use DeadlockEnd::{CutOff, Detected, Killed, LeaseEnded, TimedOut, Unended};
    for end in [Detected, TimedOut, LeaseEnded, Killed, Unended, CutOff] {
        assert_eq!(serde_json::to_value(end).unwrap(), word(end));
        assert!(crate::explain(word(end)).is_some_and(|text| text.contains("deadlock")), "{end:?}");
        assert!(crate::explain("deadlock").unwrap().contains(word(end)), "{end:?}");
    }
}
