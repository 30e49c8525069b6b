//! Looks for activation witnesses in a history.

use std::{collections::BTreeMap, time::Duration};

use checker::Verdicts;
use history::{
    Arm, ArmDecision, ClientId, Event, FailureReason, FaultId, FaultKind, FaultPhase, HoldId, Key, Mode, NodeAnswer,
    NodeName, OpId, Plan, Record, RequestKind, Stamp, Token,
};

use super::witness::Witness;

/// The longest time by which a server ends a lease too late: etcd checks leases twice a second.
const LEASES_SEEN_WITHIN: Duration = Duration::from_secs(1);

/// The longest time that a request needs to reach its server.
const ASKED_WITHIN: Duration = Duration::from_millis(100);

/// The facts of an attempt that witnesses need.
#[derive(Debug, Clone)]
struct Attempt {
    id: HoldId,
    client: ClientId,
    key: Key,
    mode: Mode,
    /// The end of its promise.
    until: Stamp,
    sent: Stamp,
    /// The sending of the renewal that is under way.
    renewing: Option<Stamp>,
    /// The time at which the client saw that it had to wait.
    behind: Option<Stamp>,
    acquired: Option<(Stamp, Option<Token>)>,
    failed: Option<(Stamp, FailureReason)>,
    released: Option<Stamp>,
    /// The time at which the client noticed that it had lost the hold.
    lost: Option<Stamp>,
    yes: Vec<NodeName>,
    points: Vec<history::Point>,
    /// The last check of the deadline that passed.
    checked: Option<Stamp>,
}

impl Attempt {
    /// Returns whether a correct lock grants only one of the two at a time: they want one key, in modes that conflict.
    fn excludes(&self, other: &Attempt) -> bool {
        self.key == other.key && self.mode.conflicts(other.mode)
    }
}

/// A token that an arm of the resource registered.
#[derive(Debug)]
struct Registered {
    key: Key,
    token: Token,
    /// The number of the request in the resource's log.
    number: u64,
    at: Stamp,
}

/// A write that the resource decided.
#[derive(Debug)]
struct Decided {
    hold: HoldId,
    op: Option<OpId>,
    /// The number of the write in the resource's log.
    number: u64,
    at: Stamp,
}

/// The facts of a history that witnesses need.
#[derive(Debug)]
pub struct Evidence {
    plan: Plan,
    attempts: BTreeMap<HoldId, Attempt>,
    /// The writes in the order of the record, while the history is read: a restart that comes later may undo one.
    decided: Vec<Decided>,
    /// Writes in the order of their arrival.
    writes: Vec<(HoldId, Stamp)>,
    /// The operations of the writes that arrived, in the order of the record.
    arrived: Vec<((HoldId, OpId), Stamp)>,
    /// The last check before each write was sent.
    checked: BTreeMap<(HoldId, OpId), Stamp>,
    /// The tokens that some arm registered, in the order of the record.
    registered: Vec<Registered>,
    /// The starts of the resource, each with the largest number on its disk.
    recovered: Vec<(Stamp, u64)>,
    proved: Vec<(FaultKind, NodeName, Stamp, Stamp)>,
    unproved: Vec<FaultKind>,
    /// Kills: the time of the request, and the number of pending fsyncs if the server told it.
    killed: Vec<(FaultId, NodeName, Stamp, Option<u32>)>,
    /// The last failure of a renewal.
    renewal_failed: Option<Stamp>,
    injected: Vec<FaultKind>,
    /// The time from which the first fault was on.
    first_injected: Option<Stamp>,
    healed: Vec<FaultKind>,
}

impl Evidence {
    /// Reads a whole history.
    pub fn of<'r>(plan: &Plan, records: impl Iterator<Item = &'r Record>) -> Evidence {
        let (attempts, decided, writes) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (registered, recovered) = (Vec::new(), Vec::new());
        let (proved, unproved, killed) = (Vec::new(), Vec::new(), Vec::new());
        let (injected, healed) = (Vec::new(), Vec::new());
        let plan = plan.clone();
        let (renewal_failed, first_injected) = (None, None);
        let (arrived, checked) = (Vec::new(), BTreeMap::new());
        let mut evidence = Evidence {
            plan,
            attempts,
            decided,
            writes,
            arrived,
            checked,
            registered,
            recovered,
            proved,
            unproved,
            killed,
            renewal_failed,
            injected,
            first_injected,
            healed,
        };
        for record in records {
            evidence.add(record);
        }
        for Decided { hold, op, number, at } in std::mem::take(&mut evidence.decided) {
            if evidence.outlives_restarts(number, at) {
                evidence.writes.push((hold, at));
                evidence.arrived.extend(op.map(|op| ((hold, op), at)));
            }
        }
        // Records of different processes are not in order; their stamps are.
        evidence.writes.sort_by_key(|(_, at)| *at);
        evidence
    }

    fn add(&mut self, record: &Record) {
        let at = record.at;
        let yes = |answers: &history::Answers| -> Vec<NodeName> {
            let is_yes =
                |answer: &NodeAnswer| matches!(answer, NodeAnswer::Granted | NodeAnswer::Done | NodeAnswer::Late);
            answers.iter().filter(|(_, answer)| is_yes(answer)).map(|(node, _)| node.clone()).collect()
        };
        match &record.event {
            Event::Acquire { client, attempt, key, mode, .. } => {
                let (acquired, failed, released, lost, behind) = (None, None, None, None, None);
                let (renewing, yes, points, checked) = (None, Vec::new(), Vec::new(), None);
                let (id, client, key, mode, sent, until) = (*attempt, *client, key.clone(), *mode, at, at);
                let new = Attempt {
                    id,
                    client,
                    key,
                    mode,
                    until,
                    sent,
                    renewing,
                    behind,
                    acquired,
                    failed,
                    released,
                    lost,
                    yes,
                    points,
                    checked,
                };
                self.attempts.insert(id, new);
            }
            Event::Acquired { attempt, token, answers, promised_from, lease_ns, .. } => self.change(*attempt, |a| {
                (a.acquired, a.yes) = (Some((at, *token)), yes(answers));
                a.until = checker::promise_end(promised_from.unwrap_or(a.sent), Duration::from_nanos(*lease_ns));
            }),
            Event::Renew { hold } => self.change(*hold, |a| a.renewing = Some(at)),
            Event::Renewed { hold, lease_ns, .. } => self.change(*hold, |a| {
                let Some(sent) = a.renewing.take() else { return };
                if checker::is_renewed_in_time(at, a.until) {
                    a.until = a.until.max(checker::promise_end(sent, Duration::from_nanos(*lease_ns)));
                }
            }),
            Event::AcquireFailed { attempt, why, answers, .. } => self.change(*attempt, |a| {
                (a.failed, a.yes) = (Some((at, *why)), yes(answers));
            }),
            Event::Release { hold } => self.change(*hold, |a| a.released = Some(at)),
            Event::LossNoticed { hold } => self.change(*hold, |a| a.lost = Some(at)),
            Event::AtPoint { hold, point, .. } => self.change(*hold, |a| a.points.push(*point)),
            Event::Check { hold, passed: true } => self.change(*hold, |a| a.checked = Some(at)),
            Event::Write { hold, op } => {
                let checked = self.attempts.get(hold).and_then(|a| a.checked);
                self.checked.extend(checked.map(|at| ((*hold, *op), at)));
            }
            Event::Admission { number, key, kind, hold, op, token, repeat: false, arms, .. } => {
                let registers = |decision: &ArmDecision| match kind {
                    RequestKind::Read => decision.arm == Arm::Reads,
                    RequestKind::Write => decision.arm.fences() && decision.admitted,
                };
                if let Some(token) = token.filter(|_| arms.iter().any(registers)) {
                    self.registered.push(Registered { key: key.clone(), token, number: *number, at });
                }
                if let (RequestKind::Write, Some(hold)) = (kind, hold) {
                    self.decided.push(Decided { hold: *hold, op: *op, number: *number, at });
                }
            }
            Event::Recovered { durable } => self.recovered.push((at, *durable)),
            Event::Fault { kind, node, phase: FaultPhase::Proved { from, to }, .. } => {
                self.proved.push((*kind, node.clone(), *from, *to));
            }
            Event::Fault { fault, kind, node, phase: FaultPhase::Requested { .. }, .. } if kind.kills() => {
                self.killed.push((*fault, node.clone(), at, None));
            }
            Event::Fault { fault, phase: FaultPhase::Unsynced { fsyncs }, .. } => {
                let asked = self.killed.iter_mut().filter(|(of, ..)| of == fault);
                asked.for_each(|(.., said)| *said = Some(*fsyncs));
            }
            Event::Behind { attempt } => self.change(*attempt, |a| {
                a.behind.get_or_insert(at);
            }),
            Event::RenewFailed { hold, .. } => {
                self.renewal_failed = self.renewal_failed.max(Some(at));
                self.change(*hold, |a| a.renewing = None);
            }
            Event::Fault { kind, phase: FaultPhase::Injected, .. } => {
                self.injected.push(*kind);
                self.first_injected = Some(self.first_injected.map_or(at, |first| first.min(at)));
            }
            Event::Fault { kind, phase: FaultPhase::HealProved, .. } => self.healed.push(*kind),
            Event::Fault { kind, phase: FaultPhase::Unproved { .. }, .. } => self.unproved.push(*kind),
            _ => {}
        }
    }

    fn change(&mut self, id: HoldId, change: impl FnOnce(&mut Attempt)) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            change(attempt);
        }
    }

    /// Returns whether two holds of a key were entitled at once, in these modes.
    fn were_at_once(&self, one: Mode, other: Mode) -> bool {
        let entitled = |a: &Attempt| {
            let (from, worker) = (a.acquired?.0, self.plan.worker_of(a.client));
            let kills = self.killed.iter().filter(|(_, node, at, _)| *node == worker && *at > from);
            let ends = kills.map(|(_, _, at, _)| *at).chain(a.released).chain(a.lost);
            Some((from, ends.fold(a.until, Stamp::min)))
        };
        let holds: Vec<_> = self.attempts.values().filter_map(|a| Some((a, entitled(a)?))).collect();
        let in_mode = |mode| holds.iter().filter(move |(a, _)| a.mode == mode);
        in_mode(one).any(|(a, (from, to))| {
            let mut others = in_mode(other).filter(|(b, _)| b.id != a.id && b.key == a.key);
            others.any(|(_, (since, until))| from.max(since) < to.min(until))
        })
    }

    /// Returns whether the history contains the evidence.
    pub fn has(&self, witness: &Witness, verdicts: &Verdicts) -> bool {
        match witness {
            Witness::Figure(clauses, _) => clauses.is_met(verdicts),
            Witness::WriteBeforeStaleArrival => self.stale_writes().any(|(hold, arrived)| {
                let Some(own) = self.attempts.get(&hold) else { return false };
                let is_later = |a: &Attempt| a.excludes(own) && a.acquired > own.acquired;
                let later = |(id, at): &(HoldId, Stamp)| *at < arrived && self.attempts.get(id).is_some_and(is_later);
                self.writes.iter().any(later)
            }),
            Witness::AtOnce(one, other) => self.were_at_once(*one, *other),
            Witness::StaleWriteTried => self.stale_writes().next().is_some(),
            Witness::GrantedAgain(node) => self.granted_again(node),
            Witness::Struck(node) => self.had_fault(node),
            Witness::TokensBehind => self.tokens_behind(),
            Witness::Quorums(all) => all.iter().all(|quorum| {
                let nodes: Vec<_> = quorum.iter().filter_map(|n| self.plan.lock_nodes.get(n.wrapping_sub(1))).collect();
                let is_it = |a: &Attempt| a.yes.len() == nodes.len() && nodes.iter().all(|node| a.yes.contains(node));
                self.attempts.values().any(|a| a.acquired.is_some() && is_it(a))
            }),
            Witness::RefusedByValidity(point) => self.attempts.values().any(|a| {
                let majority = self.plan.lock_nodes.len() / 2 + 1;
                let late = a
                    .failed
                    .is_some_and(|(at, why)| why == FailureReason::Validity && at.since(a.sent) > self.plan.lease);
                late && a.yes.len() >= majority && a.points.contains(point)
            }),
            Witness::FrozenInQueue => self.frozen_in_queue(),
            Witness::Flushed(node) => self.flushed(node),
            Witness::Restored(node) => self.restored(node),
            Witness::WriteAfterDeadline => self.writes.iter().any(|(hold, arrived)| {
                let over = self.attempts.get(hold).map(|a| a.sent.plus(self.plan.deadline()));
                over.is_some_and(|over| *arrived > over)
            }),
            Witness::CheckToWrite(bound) => self.check_to_write().is_some_and(|time| bound.is_kept(time)),
            Witness::WriteAfterRestart => self.stale_writes().any(|(hold, arrived)| {
                let own = self.attempts.get(&hold).and_then(|own| Some((&own.key, own.acquired?.1?)));
                own.is_some_and(|(key, token)| {
                    let mut larger = self.registered.iter().filter(|of| of.key == *key && of.token > token);
                    larger.any(|of| self.restarted_with(of, arrived))
                })
            }),
            Witness::RenewalFailed => self.renewal_failed.is_some_and(|failed| {
                // An earlier failure says nothing about the faults of the plan.
                self.plan.schedule.is_empty() || self.first_injected.is_some_and(|injected| injected < failed)
            }),
            Witness::Healed(kind) => {
                let count = |of: &[FaultKind]| of.iter().filter(|k| *k == kind).count();
                count(&self.injected) > 0 && count(&self.healed) == count(&self.injected)
            }
            Witness::Proved(kind) => self.proved.iter().any(|(k, ..)| k == kind) && !self.unproved.contains(kind),
        }
    }

    /// The longest time from the last check of a deadline before a write to the arrival of the write. None if no write
    /// arrived after a check.
    pub fn check_to_write(&self) -> Option<Duration> {
        let of_write = |(of, arrived): &((HoldId, OpId), Stamp)| self.checked.get(of).map(|at| arrived.since(*at));
        self.arrived.iter().filter_map(of_write).max()
    }

    /// Returns the writes that arrived after another client had acquired a later hold that excludes theirs.
    fn stale_writes(&self) -> impl Iterator<Item = (HoldId, Stamp)> + '_ {
        self.writes.iter().copied().filter(|(hold, arrived)| {
            let Some(own) = self.attempts.get(hold) else { return false };
            let later = |a: &Attempt| {
                a.client != own.client
                    && a.excludes(own)
                    && a.acquired.is_some_and(|(at, _)| Some((at, None)) > own.acquired && at < *arrived)
            };
            self.attempts.values().any(later)
        })
    }

    /// The starts of the resource after a decision.
    fn restarts_after(&self, decided: Stamp) -> impl Iterator<Item = &(Stamp, u64)> {
        self.recovered.iter().filter(move |(at, _)| decided < *at)
    }

    /// Returns whether no later restart undid a decision. A kill undoes what has not reached the disk.
    fn outlives_restarts(&self, number: u64, decided: Stamp) -> bool {
        self.restarts_after(decided).all(|(_, durable)| number <= *durable)
    }

    /// Returns whether the resource had the token on its disk when it restarted, before this time.
    fn restarted_with(&self, of: &Registered, before: Stamp) -> bool {
        self.outlives_restarts(of.number, of.at) && self.restarts_after(of.at).any(|(at, _)| *at < before)
    }

    /// Returns whether a hold has a smaller token than the last hold before it that excludes it.
    fn tokens_behind(&self) -> bool {
        let mut held: Vec<(&Attempt, Stamp, Option<Token>)> =
            self.attempts.values().filter_map(|a| a.acquired.map(|(at, token)| (a, at, token))).collect();
        held.sort_by_key(|(_, at, _)| *at);
        held.iter().enumerate().any(|(n, (own, _, token))| {
            let before = held[..n].iter().rev().find(|(a, ..)| a.excludes(own));
            // An absent token compares as the smallest, and says nothing about counters.
            token.is_some() && before.is_some_and(|(_, _, before)| token < before)
        })
    }

    fn granted_again(&self, node: &NodeName) -> bool {
        let granted: Vec<_> = self.attempts.values().filter(|a| a.acquired.is_some() && a.yes.contains(node)).collect();
        granted.iter().any(|first| {
            granted.iter().any(|second| {
                let (Some((ok, _)), Some((held, _))) = (second.acquired, first.acquired) else { return false };
                let is_same_lock = first.id != second.id && first.excludes(second);
                let within = is_same_lock && held < ok && ok.since(first.sent) < self.plan.lease;
                let is_held = first.released.is_none_or(|at| at > ok);
                within && is_held && self.has_fault_between(node, first.sent, ok)
            })
        })
    }

    fn frozen_in_queue(&self) -> bool {
        self.attempts.values().any(|waiting| {
            // If the server keeps the queue, the client knows only when it sent its request.
            let behind = waiting.behind.unwrap_or(waiting.sent.plus(ASKED_WITHIN));
            let ahead = self.attempts.values().filter(|a| a.key == waiting.key && a.id != waiting.id);
            let ahead = ahead.filter(|a| a.acquired.is_some_and(|(at, _)| at < behind)).filter_map(|a| a.released);
            // The turn comes when the last hold ahead is released.
            let Some(turn) = ahead.max().filter(|at| *at > behind) else { return false };
            let worker = self.plan.worker_of(waiting.client);
            self.proved.iter().any(|(kind, node, from, to)| {
                let lost = from.plus(self.plan.lease).plus(LEASES_SEEN_WITHIN);
                kind.freezes() && *node == worker && *from > behind && lost <= turn && turn < *to
            })
        })
    }

    fn flushed(&self, node: &NodeName) -> bool {
        let of_node: Vec<_> = self.killed.iter().filter(|(_, of, ..)| of == node).collect();
        let has_granted = |before: Stamp| {
            let by_node = self.attempts.values().filter(|a| a.yes.contains(node));
            by_node.filter_map(|a| a.acquired).any(|(at, _)| at < before)
        };
        !of_node.is_empty() && of_node.iter().all(|(_, _, asked, said)| *said == Some(0) && has_granted(*asked))
    }

    fn restored(&self, node: &NodeName) -> bool {
        let killed: Vec<Stamp> = self.killed.iter().filter(|(_, of, ..)| of == node).map(|(_, _, at, _)| *at).collect();
        let granted = self.attempts.values().filter(|a| a.yes.contains(node));
        granted.into_iter().any(|a| {
            let Some((_, Some(token))) = a.acquired else { return false };
            let others: Vec<&NodeName> = a.yes.iter().filter(|other| *other != node).collect();
            let shares = |b: &&Attempt| b.id != a.id && b.yes.iter().any(|of| others.contains(&of));
            // A hold writes its token back, so the counters of its majority may be larger.
            let is_clean = !self.attempts.values().filter(shares).any(|b| b.acquired.is_some());
            // Each attempt counts at most once on a node.
            let is_kept = |killed: &Stamp| {
                let counts = |b: &&Attempt| b.sent > *killed || b.client == a.client || shares(b);
                a.sent > *killed && token.0 > self.attempts.values().filter(counts).count() as u64
            };
            is_clean && killed.iter().any(is_kept)
        })
    }

    fn had_fault(&self, node: &NodeName) -> bool {
        let held = self.attempts.values().filter(|a| a.acquired.is_some() && a.yes.contains(node));
        held.into_iter().any(|first| {
            let ended = |a: &Attempt| a.acquired.map(|(at, _)| at).or(a.failed.map(|(at, _)| at));
            let others = self.attempts.values().filter(|a| a.client != first.client);
            others.filter_map(ended).any(|at| self.has_fault_between(node, first.sent, at))
        })
    }

    /// Returns whether a fault of the node itself, not of its links, is proved to begin in this time.
    fn has_fault_between(&self, node: &NodeName, from: Stamp, to: Stamp) -> bool {
        self.proved
            .iter()
            .any(|(kind, on, began, _)| !kind.is_of_links() && on == node && *began >= from && *began <= to)
    }
}

#[cfg(test)]
mod tests;
