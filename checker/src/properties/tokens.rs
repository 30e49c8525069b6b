//! Property 2: a later hold has a larger token, and no two holds of a key that conflict share one. Two holds that do
//! not conflict, such as those of two readers, may have tokens in any order, and may share one.
//!
//! A new hold is compared with the largest token of all holds that it is later than, which a running maximum gives.
//! This comparison reaches back no further than the oldest attempt that is still open: no later success can know so
//! little. Pairs of holds that share a token are counted over the whole run, whether or not the stamps order the two
//! holds.

use std::collections::{BTreeSet, VecDeque, hash_map};

use history::{Arm, Event, HoldId, Key, Plan, Stamp, Token, Tokens as Source};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    by_mode::ByMode,
    facts::Facts,
    holds::{Attempt, EventRef},
    judge::{Ending, Judge},
    merge::Entry,
    report::{Report, Violation, counted, plural},
    rules,
    run::Run,
    verdict::Verdict,
};

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

/// The tokens that holds of a key had: a bit for each token, so that a long run needs little memory.
#[derive(Default)]
struct Given {
    /// By the token divided by 64.
    bits: FxHashMap<u64, u64>,
    /// The number of holds of each token that more than one hold had.
    again: FxHashMap<Token, u64>,
}

impl Given {
    /// The number of holds that had this token.
    fn holds(&self, token: Token) -> u64 {
        match self.bits.get(&(token.0 / 64)) {
            Some(bits) if bits & (1 << (token.0 % 64)) != 0 => self.again.get(&token).copied().unwrap_or(1),
            _ => 0,
        }
    }

    /// Adds the token of one more hold.
    fn add(&mut self, token: Token) {
        let (bits, bit) = (self.bits.entry(token.0 / 64).or_default(), 1 << (token.0 % 64));
        if *bits & bit == 0 {
            *bits |= bit;
        } else {
            *self.again.entry(token).or_insert(1) += 1;
        }
    }
}

#[derive(Default)]
struct TokenKey {
    /// Open attempts by the stamp at which they were sent.
    open: BTreeSet<(Stamp, HoldId)>,
    by_mode: ByMode<OfMode>,
    /// The newest ones.
    recent: VecDeque<Token>,
}

/// The holds of a key in one mode.
#[derive(Default)]
struct OfMode {
    /// Holds in the order of acquisition: each, and the one with the largest token up to it.
    holders: VecDeque<(Holder, Holder)>,
    by_token: FxHashMap<Token, Vec<Holder>>,
    given: Given,
}

/// Violations that are listed.
const LISTED: usize = 20;
/// Tokens that are shown before the first of them, and in all.
const BEFORE: usize = 8;
const SHOWN: usize = 24;

/// Judges tokens.
#[derive(Default)]
pub(crate) struct Tokens {
    keys: Vec<TokenKey>,
    backwards: u64,
    shared: u64,
    missing: u64,
    faults: Vec<TokenFault>,
    /// Tokens of the key of the first fault, in the order of acquisition, from a few before it on.
    sequence: Option<(usize, Vec<Token>)>,
}

impl Tokens {
    fn key(&mut self, key: usize) -> &mut TokenKey {
        if self.keys.len() <= key {
            self.keys.resize_with(key + 1, TokenKey::default);
        }
        &mut self.keys[key]
    }

    fn acquired(&mut self, run: &Run, hold: &Attempt, granted_after: Stamp, new: Holder) {
        let key = self.key(hold.key);
        let others = || key.by_mode.against(hold.mode);
        let largest = others().filter_map(|others| others.largest_before(granted_after)).max_by_key(|h| h.token);
        let largest = largest.filter(|h| rules::goes_back(new.token, h.token));
        let twins = others().filter_map(|others| others.by_token.get(&new.token)).flatten();
        let twins: Vec<Holder> = twins.filter(|h| largest.is_none_or(|l| l.hold != h.hold)).copied().collect();
        // The number of pairs does not depend on the order in which holds of one stamp come.
        let shared = others().map(|others| others.given.holds(new.token)).sum::<u64>();
        let oldest = key.open.first().map_or(new.ok.at, |(sent, _)| *sent);
        key.by_mode.of(hold.mode).insert(new, oldest);
        self.show(hold.key, new.token, largest.is_some() || shared > 0);
        self.backwards += u64::from(largest.is_some());
        self.shared += shared;
        for other in largest.into_iter().chain(twins) {
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
                let recent = &mut self.key(key).recent;
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

impl OfMode {
    /// The hold with the largest token of all holds that a hold is later than.
    fn largest_before(&self, granted_after: Stamp) -> Option<Holder> {
        let earlier = self.holders.partition_point(|(h, _)| rules::is_later(granted_after, h.ok.at));
        earlier.checked_sub(1).map(|i| self.holders[i].1)
    }

    /// Adds a hold. No open attempt was sent before `oldest`.
    fn insert(&mut self, new: Holder, oldest: Stamp) {
        self.given.add(new.token);
        let largest = match self.holders.back() {
            Some((_, largest)) if largest.token >= new.token => *largest,
            _ => new,
        };
        self.holders.push_back((new, largest));
        self.by_token.entry(new.token).or_default().push(new);
        // The newest of those that every open attempt is later than carries the maximum of them all.
        while self.holders.get(1).is_some_and(|(h, _)| rules::is_later(oldest, h.ok.at)) {
            let Some((gone, _)) = self.holders.pop_front() else { break };
            if let hash_map::Entry::Occupied(mut of_token) = self.by_token.entry(gone.token) {
                of_token.get_mut().retain(|h| h.hold != gone.hold);
                if of_token.get().is_empty() {
                    of_token.remove();
                }
            }
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
                    self.key(attempt.key).open.insert((attempt.sent.at, *id));
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
        if let Some(key) = self.keys.get_mut(attempt.key) {
            key.open.remove(&(attempt.sent.at, attempt.id));
        }
    }

    fn finish(self, run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let is_violated = self.backwards + self.shared + self.missing > 0;
        let verdict = match run.plan.tokens {
            Source::None => Verdict::NotApplicable,
            _ => Verdict::judged(is_violated, !ending.is_whole),
        };
        let missing = format!("{} holds have no token, and the plan says that the lock makes them", self.missing);
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
