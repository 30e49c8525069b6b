//! Property 2: a later hold has a larger token, and no two holds of a key share one.
//!
//! A new hold is compared with the largest token of all holds that it is later than, which a running maximum gives, and
//! with every hold that it is not ordered with. Both reach back no further than the oldest attempt that is still open:
//! no later success can know so little.

use std::collections::{BTreeSet, VecDeque, hash_map};

use history::{Event, HoldId, Stamp, Token, Tokens as Source};
use rustc_hash::FxHashMap;

use crate::{
    holds::{Attempt, Mark},
    judge::{Ending, Judge},
    merge::Entry,
    property::{Property, TokenFault, TokensVerdict},
    rules,
    run::Run,
    verdict::{Facts, Verdict},
};

#[derive(Debug, Clone, Copy)]
struct Holder {
    hold: HoldId,
    token: Token,
    ok: Mark,
}

#[derive(Default)]
struct TokenKey {
    /// Open attempts by the stamp at which they were sent.
    open: BTreeSet<(Stamp, HoldId)>,
    /// Holds in the order of acquisition: each, and the one with the largest token up to it.
    holders: VecDeque<(Holder, Holder)>,
    by_token: FxHashMap<Token, Vec<Holder>>,
    /// The newest ones.
    recent: VecDeque<Token>,
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
        let earlier = key.holders.partition_point(|(h, _)| rules::is_later(granted_after, h.ok.at));
        let largest = earlier.checked_sub(1).map(|i| key.holders[i].1).filter(|h| rules::goes_back(new.token, h.token));
        // Pairs are counted: how many there are does not depend on the order in which holds of one stamp come.
        let twins = key.by_token.get(&new.token).into_iter().flatten();
        let twins: Vec<Holder> = twins.filter(|h| !rules::is_later(granted_after, h.ok.at)).copied().collect();
        key.insert(new);
        self.show(hold.key, new.token, largest.is_some() || !twins.is_empty());
        self.backwards += u64::from(largest.is_some());
        self.shared += twins.len() as u64;
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

impl TokenKey {
    fn insert(&mut self, new: Holder) {
        let largest = match self.holders.back() {
            Some((_, largest)) if largest.token >= new.token => *largest,
            _ => new,
        };
        self.holders.push_back((new, largest));
        self.by_token.entry(new.token).or_default().push(new);
        let oldest = self.open.first().map_or(new.ok.at, |(sent, _)| *sent);
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
    fn see(&mut self, run: &Run, entry: &Entry) {
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
                    self.closed(run, attempt);
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
                self.closed(run, hold);
            }
            _ => {}
        }
    }

    fn closed(&mut self, _run: &Run, attempt: &Attempt) {
        if let Some(key) = self.keys.get_mut(attempt.key) {
            key.open.remove(&(attempt.sent.at, attempt.id));
        }
    }

    fn verdicts(self: Box<Self>, run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(String, Property)> {
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
        vec![("tokens".into(), Property::Tokens(tokens))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::{Scene, count, plan, verdict};

    fn judged(scene: &Scene) -> (Verdict, u64, u64) {
        let v = scene.verdicts();
        (verdict(&v, "tokens"), count(&v, "tokens.backwards"), count(&v, "tokens.shared"))
    }

    #[test]
    fn a_later_hold_needs_a_larger_token() {
        for (token, expected) in
            [(42, (Verdict::Upheld, 0, 0)), (41, (Verdict::Violated, 1, 0)), (40, (Verdict::Violated, 1, 0))]
        {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, token).release(2, 50);
            assert_eq!(judged(&scene), expected, "token {token}");
        }
    }

    #[test]
    fn unordered_holds_may_have_their_tokens_either_way_and_share_none() {
        for (granted_after, token, expected) in [
            (10, 40, (Verdict::Upheld, 0, 0)), // at the other's ok: not ordered
            (10, 41, (Verdict::Violated, 0, 1)),
            (11, 40, (Verdict::Violated, 1, 0)),
        ] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).release(1, 20).acquire_knowing(2, 2, 5, granted_after, 40, token);
            assert_eq!(judged(&scene), expected, "granted after {granted_after}, token {token}");
        }
    }

    #[test]
    fn a_token_is_compared_with_the_largest_of_all_earlier_holds() {
        let mut scene = Scene::new();
        for (i, token) in [5, 9, 10, 11, 3].into_iter().enumerate() {
            let (hold, at) = (i as u64 + 1, i as u64 * 100);
            scene.acquire(hold, 1, at, at + 10, token).release(hold, at + 20);
        }
        let v = scene.verdicts();
        let Some(Property::Tokens(tokens)) = v.properties.get("tokens") else { panic!() };
        assert_eq!((tokens.backwards, tokens.faults[0].holds.clone()), (1, vec![HoldId(4), HoldId(5)]));
        assert_eq!(tokens.faults[0].tokens, [Token(11), Token(3)]);
        assert_eq!(tokens.faults[0].witness.len(), 2);
    }

    #[test]
    fn an_open_attempt_keeps_the_holds_that_it_may_not_be_later_than() {
        let mut scene = Scene::new();
        scene.plan.workload.workers = 3;
        scene.try_to_acquire(99, 3, 5);
        for i in 0..50 {
            scene.acquire(i + 1, 1, i * 20, i * 20 + 5, i + 100).release(i + 1, i * 20 + 10);
        }
        // Sent before all of them, and it shares the token of the second.
        let granted = Scene::answers(&[(1, history::NodeAnswer::Granted)]);
        scene.event(
            "worker-3",
            1_100,
            Event::Acquired {
                attempt: HoldId(99),
                token: Some(Token(101)),
                lease_ns: 2_000_000_000,
                granted_after: crate::scene::ms(5),
                promised_from: None,
                place: None,
                valid_ns: 0,
                answers: granted,
            },
        );
        assert_eq!(judged(&scene), (Verdict::Violated, 0, 1));
    }

    #[test]
    fn how_many_pairs_share_a_token_does_not_depend_on_which_of_one_stamp_comes_first() {
        // Two are acquired at 50; the third neither is later than one nor shares with the other.
        for (open, sent_then) in [(1, 2), (2, 1)] {
            let mut scene = Scene::new();
            scene.plan.workload.workers = 3;
            scene.acquire(1, 3, 0, 30, 41).release(1, 35);
            scene.acquire(2, open, 30, 50, 41).acquire(3, sent_then, 50, 50, 41).release(2, 60).release(3, 60);
            assert_eq!(judged(&scene), (Verdict::Violated, 1, 2), "worker {open} was sent first");
        }
    }

    #[test]
    fn without_tokens_the_property_does_not_apply() {
        let mut plan = plan();
        plan.tokens = Source::None;
        plan.arms = vec![history::Arm::Off];
        let mut scene = Scene::with(plan);
        scene.acquire_on(1, 1, 0, 0, 10, None, Vec::new()).release(1, 20);
        assert_eq!(judged(&scene).0, Verdict::NotApplicable);
        scene.plan = crate::scene::plan();
        assert_eq!(judged(&scene).0, Verdict::Violated, "the plan has tokens, and the hold has none");
    }
}
