//! Activation witnesses: what must be seen in a history for a run to say anything about a claim.
//!
//! A witness is a clause over the verdicts (`writes.fence.late>=1`, as behind `--expect`), or one of the words of [`Witness`].

use std::{collections::BTreeMap, str::FromStr};

use checker::Verdicts;
use history::{
    ClientId, Event, FaultKind, FaultPhase, HoldId, NodeAnswer, NodeName, Plan, Record, RequestKind, Stamp, Token, Why,
};

use crate::{exit::Unusable, expect::Expectation};

/// What must be seen.
#[derive(Debug, Clone, PartialEq)]
pub enum Witness {
    /// A clause over the verdicts.
    Figure(Expectation, String),
    /// `write-before-stale-arrival`: a write arrived under a hold, after a write under a hold that was acquired later.
    WriteBeforeStaleArrival,
    /// `stale-write-tried`: a write arrived under a hold after another client had acquired.
    StaleWriteTried,
    /// `granted-again:redis-3`: the node granted a second hold less than a lease after the attempt of the first one was sent, which had not been
    /// released by then; a fault of the node is proved between.
    GrantedAgain(NodeName),
    /// `granted-and-struck:redis-3`: the node granted a hold and was struck, proved, before another client's attempt came to an end there.
    Struck(NodeName),
    /// `tokens-behind`: a hold has a smaller token than one that was acquired before it: the counters that it was made from are behind.
    TokensBehind,
    /// `quorums:1,2,3/3,4,5`: holds were granted by exactly these lock nodes, by their place in the plan.
    Quorums(Vec<Vec<usize>>),
    /// `refused-by-validity:after-send`: a majority granted an attempt whose client was frozen at this point, and it was refused by validity.
    RefusedByValidity(history::Point),
    /// `frozen-in-queue`: a client was frozen while it waited for a lock, from a lease before the hold ahead of it was released until after that.
    FrozenInQueue,
    /// `flushed:redis-3`: the node was killed, and each time had synced all that it had answered, by its own word.
    Flushed(NodeName),
    /// `write-after-restart`: after a restart of the resource a write arrived under a hold, whose token is smaller than one registered before.
    WriteAfterRestart,
    /// `renewal-failed`: a renewal was not done.
    RenewalFailed,
    /// `healed:clock`: every fault of that kind is proved healed, and there is one.
    Healed(FaultKind),
    /// `proved:clock`: every fault of that kind is proved, and there is one.
    Proved(FaultKind),
}

const WORDS: &str = "write-before-stale-arrival, stale-write-tried, granted-again:NODE, granted-and-struck:NODE, tokens-behind, \
    quorums:1,2,3/3,4,5, refused-by-validity:POINT, frozen-in-queue, flushed:NODE, write-after-restart, renewal-failed, proved:KIND, healed:KIND, or a clause such as `lock.windows>=1`";

impl FromStr for Witness {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Witness, Unusable> {
        let wrong = || Unusable(format!("witness `{text}`: expected one of: {WORDS}"));
        if text.contains(['=', '<', '>']) {
            return Ok(Witness::Figure(text.parse()?, text.to_owned()));
        }
        let (word, of) = text.split_once(':').map_or((text, None), |(word, of)| (word, Some(of)));
        Ok(match (word, of) {
            ("write-before-stale-arrival", None) => Witness::WriteBeforeStaleArrival,
            ("stale-write-tried", None) => Witness::StaleWriteTried,
            ("granted-again", Some(node)) => Witness::GrantedAgain(node.into()),
            ("granted-and-struck", Some(node)) => Witness::Struck(node.into()),
            ("tokens-behind", None) => Witness::TokensBehind,
            ("quorums", Some(of)) => {
                let quorum = |text: &str| text.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>();
                Witness::Quorums(of.split('/').map(quorum).collect::<Result<_, _>>().map_err(|_| wrong())?)
            }
            ("refused-by-validity", Some(at)) => {
                let point = history::Point::ALL.into_iter().find(|p| p.name() == at).ok_or_else(wrong)?;
                Witness::RefusedByValidity(point)
            }
            ("frozen-in-queue", None) => Witness::FrozenInQueue,
            ("flushed", Some(node)) => Witness::Flushed(node.into()),
            ("write-after-restart", None) => Witness::WriteAfterRestart,
            ("renewal-failed", None) => Witness::RenewalFailed,
            ("proved" | "healed", Some(kind)) => {
                let kind = FaultKind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(wrong)?;
                if word == "proved" { Witness::Proved(kind) } else { Witness::Healed(kind) }
            }
            _ => return Err(wrong()),
        })
    }
}

impl std::fmt::Display for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Witness::Figure(_, text) => f.write_str(text),
            Witness::WriteBeforeStaleArrival => f.write_str("a later hold's write before the stale arrival"),
            Witness::StaleWriteTried => f.write_str("a stale write tried"),
            Witness::GrantedAgain(node) => write!(f, "{node} granted twice within a lease"),
            Witness::Struck(node) => write!(f, "{node} granted, was struck, was asked again"),
            Witness::TokensBehind => f.write_str("counters behind"),
            Witness::Quorums(all) => write!(f, "{} quorums", all.len()),
            Witness::RefusedByValidity(point) => write!(f, "granted, frozen {point}, refused by validity"),
            Witness::FrozenInQueue => f.write_str("frozen in the queue for a lease when its turn came"),
            Witness::Flushed(node) => write!(f, "{node} had synced all before it was killed"),
            Witness::WriteAfterRestart => f.write_str("a stale write after the restart"),
            Witness::RenewalFailed => f.write_str("a renewal that failed"),
            Witness::Healed(kind) => write!(f, "every {kind} proved healed"),
            Witness::Proved(kind) => write!(f, "every {kind} proved"),
        }
    }
}

/// An attempt, as far as witnesses ask.
#[derive(Debug, Clone)]
struct Attempt {
    id: HoldId,
    client: ClientId,
    sent: Stamp,
    acquired: Option<(Stamp, Option<Token>)>,
    failed: Option<(Stamp, Why)>,
    released: Option<Stamp>,
    yes: Vec<NodeName>,
    points: Vec<history::Point>,
}

/// What a history tells of all that.
#[derive(Debug)]
pub struct Seen {
    plan: Plan,
    attempts: BTreeMap<HoldId, Attempt>,
    /// Writes in the order in which they arrived, and when the resource had been started again.
    writes: Vec<(HoldId, Stamp)>,
    recovered: Vec<Stamp>,
    proved: Vec<(FaultKind, NodeName, Stamp, Stamp)>,
    unproved: Vec<FaultKind>,
    /// How many fsyncs were due when a server was about to be killed.
    unsynced: Vec<(NodeName, u32)>,
    has_renewal_failed: bool,
    injected: Vec<FaultKind>,
    healed: Vec<FaultKind>,
}

impl Seen {
    /// Reads a whole history.
    pub fn of<'r>(plan: &Plan, records: impl Iterator<Item = &'r Record>) -> Seen {
        let (attempts, writes, recovered) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (proved, unproved, unsynced) = (Vec::new(), Vec::new(), Vec::new());
        let (injected, healed) = (Vec::new(), Vec::new());
        let plan = plan.clone();
        let has_renewal_failed = false;
        let mut seen = Seen {
            plan,
            attempts,
            writes,
            recovered,
            proved,
            unproved,
            unsynced,
            has_renewal_failed,
            injected,
            healed,
        };
        for record in records {
            seen.see(record);
        }
        // Records of different processes come as they came; what happened when is in their stamps.
        seen.writes.sort_by_key(|(_, at)| *at);
        seen
    }

    fn see(&mut self, record: &Record) {
        let at = record.at;
        let yes = |answers: &history::Answers| -> Vec<NodeName> {
            let is_yes =
                |answer: &NodeAnswer| matches!(answer, NodeAnswer::Granted | NodeAnswer::Done | NodeAnswer::Late);
            answers.iter().filter(|(_, answer)| is_yes(answer)).map(|(node, _)| node.clone()).collect()
        };
        match &record.event {
            Event::Acquire { client, attempt, .. } => {
                let (acquired, failed, released) = (None, None, None);
                let (yes, points) = (Vec::new(), Vec::new());
                let new = Attempt { id: *attempt, client: *client, sent: at, acquired, failed, released, yes, points };
                self.attempts.insert(*attempt, new);
            }
            Event::Acquired { attempt, token, answers, .. } => self.change(*attempt, |a| {
                (a.acquired, a.yes) = (Some((at, *token)), yes(answers));
            }),
            Event::AcquireFailed { attempt, why, answers, .. } => self.change(*attempt, |a| {
                (a.failed, a.yes) = (Some((at, *why)), yes(answers));
            }),
            Event::Release { hold } => self.change(*hold, |a| a.released = Some(at)),
            Event::AtPoint { hold, point, .. } => self.change(*hold, |a| a.points.push(*point)),
            Event::Admission { kind: RequestKind::Write, hold: Some(hold), repeat: false, .. } => {
                self.writes.push((*hold, at));
            }
            Event::Recovered { .. } => self.recovered.push(at),
            Event::Fault { kind, node, phase: FaultPhase::Proved { from, to }, .. } => {
                self.proved.push((*kind, node.clone(), *from, *to));
            }
            Event::Fault { node, phase: FaultPhase::Unsynced { fsyncs }, .. } => {
                self.unsynced.push((node.clone(), *fsyncs));
            }
            Event::RenewFailed { .. } => self.has_renewal_failed = true,
            Event::Fault { kind, phase: FaultPhase::Injected, .. } => self.injected.push(*kind),
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

    fn acquired(&self, id: HoldId) -> Option<(Stamp, Option<Token>)> {
        self.attempts.get(&id).and_then(|a| a.acquired)
    }

    /// Whether it was seen.
    pub fn has(&self, witness: &Witness, verdicts: &Verdicts) -> bool {
        match witness {
            Witness::Figure(clauses, _) => clauses.is_met(verdicts),
            Witness::WriteBeforeStaleArrival => self.stale_writes().any(|(hold, arrived)| {
                let since = self.acquired(hold);
                let later = |(id, at): &(HoldId, Stamp)| *at < arrived && self.acquired(*id) > since;
                self.writes.iter().any(later)
            }),
            Witness::StaleWriteTried => self.stale_writes().next().is_some(),
            Witness::GrantedAgain(node) => self.granted_again(node),
            Witness::Struck(node) => self.struck(node),
            Witness::TokensBehind => {
                let mut held: Vec<_> = self.attempts.values().filter_map(|a| a.acquired).collect();
                held.sort_by_key(|(at, _)| *at);
                held.windows(2).any(|pair| pair[1].1 < pair[0].1)
            }
            Witness::Quorums(all) => all.iter().all(|quorum| {
                let nodes: Vec<_> = quorum.iter().filter_map(|n| self.plan.lock_nodes.get(n.wrapping_sub(1))).collect();
                let is_it = |a: &Attempt| a.yes.len() == nodes.len() && nodes.iter().all(|node| a.yes.contains(node));
                self.attempts.values().any(|a| a.acquired.is_some() && is_it(a))
            }),
            Witness::RefusedByValidity(point) => self.attempts.values().any(|a| {
                let majority = self.plan.lock_nodes.len() / 2 + 1;
                let late = a.failed.is_some_and(|(at, why)| why == Why::Validity && at.since(a.sent) > self.plan.lease);
                late && a.yes.len() >= majority && a.points.contains(point)
            }),
            Witness::FrozenInQueue => self.frozen_in_queue(),
            Witness::Flushed(node) => {
                let of_node: Vec<u32> = self.unsynced.iter().filter(|(of, _)| of == node).map(|(_, n)| *n).collect();
                !of_node.is_empty() && of_node.iter().all(|fsyncs| *fsyncs == 0)
            }
            Witness::WriteAfterRestart => self.stale_writes().any(|(_, arrived)| {
                // The restart lies between the registered token and this write.
                let first = self.writes.first().map(|(_, at)| *at);
                self.recovered.iter().any(|at| Some(*at) > first && *at < arrived)
            }),
            Witness::RenewalFailed => self.has_renewal_failed,
            Witness::Healed(kind) => {
                let count = |of: &[FaultKind]| of.iter().filter(|k| *k == kind).count();
                count(&self.injected) > 0 && count(&self.healed) == count(&self.injected)
            }
            Witness::Proved(kind) => self.proved.iter().any(|(k, ..)| k == kind) && !self.unproved.contains(kind),
        }
    }

    /// Writes that arrived when a hold that was acquired later, by another client, had been acquired.
    fn stale_writes(&self) -> impl Iterator<Item = (HoldId, Stamp)> + '_ {
        self.writes.iter().copied().filter(|(hold, arrived)| {
            let Some(own) = self.attempts.get(hold) else { return false };
            let later = |a: &Attempt| {
                a.client != own.client
                    && a.acquired.is_some_and(|(at, _)| Some((at, None)) > own.acquired && at < *arrived)
            };
            self.attempts.values().any(later)
        })
    }

    fn granted_again(&self, node: &NodeName) -> bool {
        let granted: Vec<_> = self.attempts.values().filter(|a| a.acquired.is_some() && a.yes.contains(node)).collect();
        granted.iter().any(|first| {
            granted.iter().any(|second| {
                let (Some((ok, _)), Some((held, _))) = (second.acquired, first.acquired) else { return false };
                let within = first.id != second.id && held < ok && ok.since(first.sent) < self.plan.lease;
                let is_held = first.released.is_none_or(|at| at > ok);
                within && is_held && self.strikes(node, first.sent, ok)
            })
        })
    }

    fn frozen_in_queue(&self) -> bool {
        let released: Vec<Stamp> = self.attempts.values().filter_map(|a| a.released).collect();
        self.attempts.values().any(|waiting| {
            let ended = waiting.acquired.map(|(at, _)| at).or(waiting.failed.map(|(at, _)| at));
            let Some(ended) = ended else { return false };
            let worker = waiting.client.0 / self.plan.workload.clients_per_worker;
            let worker = self.plan.workers().nth(worker as usize);
            let frozen = self.proved.iter().filter(|(kind, node, ..)| kind.freezes() && Some(node) == worker.as_ref());
            frozen.into_iter().any(|(_, _, from, to)| {
                let is_its_turn = |at: &&Stamp| **at >= from.plus(self.plan.lease) && *at < to && **at < ended;
                *from >= waiting.sent && released.iter().any(|at| is_its_turn(&at))
            })
        })
    }

    fn struck(&self, node: &NodeName) -> bool {
        let held = self.attempts.values().filter(|a| a.acquired.is_some() && a.yes.contains(node));
        held.into_iter().any(|first| {
            let ended = |a: &Attempt| a.acquired.map(|(at, _)| at).or(a.failed.map(|(at, _)| at));
            let others = self.attempts.values().filter(|a| a.client != first.client);
            others.filter_map(ended).any(|at| self.strikes(node, first.sent, at))
        })
    }

    /// Whether a fault of the node itself (not of its links) is proved to have begun in this time.
    fn strikes(&self, node: &NodeName, from: Stamp, to: Stamp) -> bool {
        self.proved
            .iter()
            .any(|(kind, on, began, _)| !kind.is_of_links() && on == node && *began >= from && *began <= to)
    }
}
