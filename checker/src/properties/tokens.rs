//! Property 2: a later hold has a larger token, and no two holds of a key that conflict share one. Two holds that do
//! not conflict, such as those of two readers, may have tokens in any order, and may share one.
//!
//! A new hold is compared with the largest token of all holds that it is later than, which a running maximum gives.
//! This comparison reaches back no further than the oldest attempt that is still open: no later success can know so
//! little. Pairs of holds that share a token are counted over the whole run, whether or not the stamps order the two
//! holds.

mod given;

use std::collections::{BTreeSet, VecDeque};

use history::{Arm, Event, HoldId, Key, Mode, Plan, Stamp, Token, Tokens as Source};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    by_mode::ByMode,
    entry::Entry,
    facts::Facts,
    holds::{Attempt, EventRef},
    judge::{Ending, Judge},
    per_key::PerKey,
    report::{Report, Violation, counted, plural},
    rules,
    run::Run,
    verdict::Verdict,
};

use given::Given;

/// Two holds whose tokens are in the wrong order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenFault {
    /// The key.
    pub key: Key,
    /// The earlier hold (or the first of an unordered pair), and the other.
    pub holds: Vec<HoldId>,
    /// Their tokens, in the same order.
    pub tokens: Vec<Token>,
    /// Their acquisitions.
    pub witness: Vec<u64>,
}

/// Property 2: tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokensVerdict {
    /// `n/a` where the plan has no tokens.
    pub verdict: Verdict,
    /// Holds whose token is not larger than that of a hold they are later than.
    pub backwards: u64,
    /// Pairs of holds of one key that share a token, ordered or not.
    pub shared: u64,
    /// Holds without a token.
    pub missing: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<TokenFault>,
    /// Tokens of the key of the first fault, in the order of acquisition: from a few before it to some after it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sequence: Vec<Token>,
    /// The reasons why the verdict is inconclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    hold: HoldId,
    token: Token,
    ok: EventRef,
}

/// The holds of a key that are earlier than every hold to come: a new hold is compared with the one of the largest
/// token.
#[derive(Default)]
struct TokenKey {
    by_mode: ByMode<Earlier>,
}

/// The earlier holds of a key in one mode.
#[derive(Default)]
struct Earlier {
    /// The one with the largest token.
    largest: Option<Holder>,
    given: Given,
}

/// The holds of a key that an open attempt need not be later than.
#[derive(Default)]
struct OpenKey {
    /// Open attempts by the stamp at which they were sent.
    open: BTreeSet<(Stamp, HoldId)>,
    /// Holds in the order of acquisition: each, and the one with the largest token up to it.
    by_mode: ByMode<VecDeque<(Holder, Holder)>>,
    /// The newest tokens.
    recent: VecDeque<Token>,
}

/// Violations that are listed.
const LISTED: usize = 20;
/// The newest holds of a key that are searched for one that shares a token, which is listed.
const SEARCHED: usize = 1_000;
/// Tokens that are shown before the first of them, and in all.
const BEFORE: usize = 8;
const SHOWN: usize = 24;

/// Judges tokens.
#[derive(Default)]
pub(crate) struct Tokens {
    keys: PerKey<TokenKey>,
    /// The keys that have an open attempt.
    open: FxHashMap<usize, OpenKey>,
    backwards: u64,
    shared: u64,
    missing: u64,
    faults: Vec<TokenFault>,
    /// Tokens of the key of the first fault, in the order of acquisition, from a few before it on.
    sequence: Option<(usize, Vec<Token>)>,
}

impl Tokens {
    /// The holds that matter to open attempts. The tokens that are shown begin with the largest earlier one.
    fn open_key(&mut self, key: usize) -> &mut OpenKey {
        self.open.entry(key).or_insert_with(|| {
            let earlier = self.keys.get(key).map(|key| key.by_mode.against(Mode::Write).filter_map(|of| of.largest));
            let largest = earlier.and_then(|earlier| earlier.reduce(larger));
            OpenKey { recent: largest.iter().map(|h| h.token).collect(), ..OpenKey::default() }
        })
    }

    fn acquired(&mut self, run: &Run, hold: &Attempt, granted_after: Stamp, new: Holder) {
        let key = self.keys.of(hold.key);
        let open = self.open.entry(hold.key).or_default();
        let earlier = key.by_mode.against(hold.mode).filter_map(|earlier| earlier.largest);
        let open_ones = open.by_mode.against(hold.mode).filter_map(|holders| largest_before(holders, granted_after));
        let largest = earlier.chain(open_ones).reduce(larger).filter(|h| rules::goes_back(new.token, h.token));
        // The number of pairs does not depend on the order in which holds of one stamp come.
        let shared = key.by_mode.against(hold.mode).map(|earlier| earlier.given.holds(new.token)).sum::<u64>();
        let mut faults: Vec<Holder> = largest.into_iter().collect();
        if shared > 0 && self.faults.len() < LISTED {
            let newest = |all: &VecDeque<_>| all.len().saturating_sub(SEARCHED);
            let newest = open.by_mode.against(hold.mode).flat_map(|all| all.iter().skip(newest(all))).map(|(h, _)| *h);
            let all = key.by_mode.against(hold.mode).filter_map(|earlier| earlier.largest).chain(newest);
            faults.extend(all.filter(|h| h.token == new.token && largest.is_none_or(|l| l.hold != h.hold)));
        }
        let oldest = open.open.first().map_or(new.ok.at, |(sent, _)| *sent);
        key.by_mode.of(hold.mode).given.add(new.token);
        insert(open.by_mode.of(hold.mode), new);
        key.by_mode.of(hold.mode).take_in(open.by_mode.of(hold.mode), oldest);
        // The tokens that are shown are those of the key of the first fault that is listed.
        self.show(hold.key, new.token, !faults.is_empty());
        self.backwards += u64::from(largest.is_some());
        self.shared += shared;
        for other in faults {
            if self.faults.len() < LISTED {
                let mut pair = [other, new];
                pair.sort_by_key(|h| (h.ok.at, h.hold));
                self.faults.push(TokenFault {
                    key: run.key(hold.key).clone(),
                    holds: pair.iter().map(|h| h.hold).collect(),
                    tokens: pair.iter().map(|h| h.token).collect(),
                    witness: pair.iter().map(|h| h.ok.seq).collect(),
                });
            }
        }
    }

    fn show(&mut self, key: usize, token: Token, is_wrong: bool) {
        match &mut self.sequence {
            Some((of, shown)) if *of == key && shown.len() < SHOWN => shown.push(token),
            Some(_) => {}
            None => {
                let recent = &mut self.open.entry(key).or_default().recent;
                if recent.len() == BEFORE {
                    recent.pop_front();
                }
                recent.push_back(token);
                if is_wrong {
                    self.sequence = Some((key, recent.iter().copied().collect()));
                }
            }
        }
    }
}

/// The one with the larger token; of two equal ones, the first.
fn larger(one: Holder, other: Holder) -> Holder {
    if other.token > one.token { other } else { one }
}

/// The hold with the largest token of all holds that a hold is later than.
fn largest_before(holders: &VecDeque<(Holder, Holder)>, granted_after: Stamp) -> Option<Holder> {
    let earlier = holders.partition_point(|(h, _)| rules::is_later(granted_after, h.ok.at));
    earlier.checked_sub(1).map(|i| holders[i].1)
}

/// Adds a hold.
fn insert(holders: &mut VecDeque<(Holder, Holder)>, new: Holder) {
    let largest = holders.back().map_or(new, |(_, largest)| larger(*largest, new));
    holders.push_back((new, largest));
}

impl Earlier {
    /// Takes in the holds that every open attempt is later than. No open attempt was sent before `oldest`.
    fn take_in(&mut self, holders: &mut VecDeque<(Holder, Holder)>, oldest: Stamp) {
        while let Some((hold, _)) = holders.front().copied().filter(|(h, _)| rules::is_later(oldest, h.ok.at)) {
            holders.pop_front();
            self.largest = Some(self.largest.map_or(hold, |largest| larger(largest, hold)));
        }
    }
}

impl Judge for Tokens {
    const NAME: &str = "tokens";
    const ABOUT: &str = "A later hold of a key has a larger fencing token than the holds that it conflicts \
        with, and no two of them share a token.";
    type Verdict = TokensVerdict;

    fn new(_plan: &Plan) -> Tokens {
        Tokens::default()
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        if run.plan.tokens == Source::None {
            return;
        }
        match &entry.event {
            Event::Acquire { attempt: id, .. } => {
                if let Some(attempt) = run.attempt(*id) {
                    self.open_key(attempt.key).open.insert((attempt.sent.at, *id));
                }
            }
            Event::AcquireFailed { attempt: id, .. } => {
                if let Some(attempt) = run.attempt(*id) {
                    self.on_attempt_closed(run, attempt);
                }
            }
            Event::Acquired { attempt: id, .. } => {
                let Some((hold, grant)) = run.attempt(*id).and_then(|h| Some((h, h.grant?))) else { return };
                match grant.token {
                    Some(token) => {
                        self.acquired(run, hold, grant.granted_after, Holder { hold: *id, token, ok: grant.ok });
                    }
                    None => self.missing += 1,
                }
                self.on_attempt_closed(run, hold);
            }
            _ => {}
        }
    }

    fn on_attempt_closed(&mut self, _run: &Run, attempt: &Attempt) {
        if let Some(key) = self.open.get_mut(&attempt.key) {
            key.open.remove(&(attempt.sent.at, attempt.id));
        }
    }

    fn on_key_quiet(&mut self, _run: &Run, key: usize) {
        let Some(mut open) = self.open.remove(&key) else { return };
        let of_key = self.keys.of(key);
        for mode in Mode::ALL {
            if open.by_mode.has(mode) {
                of_key.by_mode.of(mode).take_in(open.by_mode.of(mode), Stamp(u64::MAX));
            }
        }
    }

    fn finish(self, run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let is_violated = self.backwards + self.shared + self.missing > 0;
        let verdict = match run.plan.tokens {
            Source::None => Verdict::NotApplicable,
            _ => Verdict::judged(is_violated, !ending.is_whole),
        };
        let holds = plural(self.missing, "hold has", "holds have");
        let missing = format!("{holds} no token, and the plan says that the lock makes them");
        let tokens = TokensVerdict {
            verdict,
            backwards: self.backwards,
            shared: self.shared,
            missing: self.missing,
            faults: self.faults,
            sequence: self.sequence.map(|(_, shown)| shown).unwrap_or_default(),
            reasons: if self.missing > 0 { vec![missing] } else { Vec::new() },
        };
        vec![(None, tokens)]
    }
}

impl Report for TokensVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn figures(&self) -> String {
        let mut parts = Vec::new();
        if self.backwards > 0 {
            let holds = plural(self.backwards, "hold has", "holds have");
            parts.push(format!("{holds} a token that is not larger than that of an earlier hold"));
        }
        if self.shared > 0 {
            parts.push(plural(self.shared, "pair of holds shares a token", "pairs of holds share a token"));
        }
        if self.missing > 0 {
            parts.push(plural(self.missing, "hold without a token", "holds without a token"));
        }
        parts.join(", ")
    }

    fn notes(&self) -> Vec<String> {
        let Some(first) = self.faults.first() else { return Vec::new() };
        let shown: Vec<String> = self.sequence.iter().map(|token| token.0.to_string()).collect();
        vec![format!("of {}, in the order of acquisition: {}", first.key, shown.join(", "))]
    }

    fn violations(&self) -> Vec<Violation> {
        counted(&[(self.backwards, "backwards"), (self.shared, "shared"), (self.missing, "missing")])
    }

    fn evidence(&self) -> Vec<String> {
        let told = |fault: &TokenFault| {
            let pairs = fault.holds.iter().zip(&fault.tokens);
            let holds: Vec<_> = pairs.map(|(hold, token)| format!("hold {hold} with token {token}")).collect();
            format!("{}: {}", fault.key, holds.join(", then "))
        };
        self.faults.first().map(told).into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
