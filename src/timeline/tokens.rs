//! Tokens over time: all of them or a part, and those that went back or were given twice.

use std::collections::{HashMap, VecDeque};

use history::{Key, Mode, Stamp, Token};

/// The most tokens that are kept; beyond that, every second one goes.
pub const TOKENS: usize = 4_000;
/// The most tokens that went back that are kept, each with the token of the other hold.
const BACKWARDS: u64 = 1_000;
/// The newest holds of a key and a mode with which a new hold is compared. A hold that is later than none of them is
/// not called a hold whose token went back.
const COMPARED: usize = 256;

/// The token of one hold.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenPoint {
    /// The `acquire` ok.
    pub at: Stamp,
    /// The key.
    pub key: Key,
    /// The token.
    pub token: Token,
    /// The mode of the hold.
    pub mode: Mode,
    /// The latest stamp at which the client knew that it did not hold the lock.
    pub granted_after: Stamp,
    /// True if an earlier hold of the key that excludes this one had a larger token, or the same one. The rules are
    /// those of the property `tokens`: stamps prove which of two holds is later, and readers share a key. Of two holds
    /// with one token, whose order the stamps do not prove, the one that was acquired last is marked.
    pub is_back: bool,
}

/// The holds of a key and a mode with which a new hold is compared, in the order of their stamps.
#[derive(Debug, Default)]
struct Compared {
    /// The holds that had the largest token until then.
    rising: VecDeque<TokenPoint>,
    /// The newest holds.
    newest: VecDeque<TokenPoint>,
}

/// The holds with which a new hold is compared.
#[derive(Debug, Default)]
struct Others(HashMap<Key, [Compared; Mode::ALL.len()]>);

impl Others {
    /// Returns the hold with the largest token of all holds that a new hold is later than and conflicts with, if its
    /// token is not smaller. Otherwise a hold that conflicts with the new one and has the same token, in any order.
    fn at_odds(&self, new: &TokenPoint) -> Option<&TokenPoint> {
        let of_key = self.0.get(&new.key)?;
        let (mode, granted_after) = (new.mode, new.granted_after);
        let against = || Mode::ALL.into_iter().zip(of_key).filter(move |(of, _)| of.conflicts(mode));
        let earlier = against().filter_map(|(_, compared)| {
            // Equal stamps are concurrent.
            let earlier = compared.rising.partition_point(|other| other.at < granted_after);
            compared.rising.get(earlier.checked_sub(1)?)
        });
        let largest = earlier.max_by_key(|other| other.token).filter(|other| other.token >= new.token);
        largest.or_else(|| {
            let mut unordered = against().flat_map(|(_, compared)| {
                compared.newest.iter().rev().take_while(move |other| other.at >= granted_after)
            });
            unordered.find(|other| other.token == new.token)
        })
    }

    fn add(&mut self, new: &TokenPoint) {
        let Compared { rising, newest } = &mut self.0.entry(new.key.clone()).or_default()[new.mode as usize];
        let place = newest.partition_point(|other| other.at <= new.at);
        newest.insert(place, new.clone());
        if newest.len() > COMPARED {
            newest.pop_front();
        }
        let place = rising.partition_point(|other| other.at <= new.at);
        if place > 0 && rising[place - 1].token >= new.token {
            return;
        }
        let smaller = rising.iter().skip(place).take_while(|other| other.token <= new.token).count();
        rising.drain(place..place + smaller);
        rising.insert(place, new.clone());
        if rising.len() > COMPARED {
            rising.pop_front();
        }
    }
}

/// The tokens of a run.
#[derive(Debug)]
pub struct Finished {
    /// The tokens that are kept, by the time of acquisition.
    pub tokens: Vec<TokenPoint>,
    /// The number of all tokens that went back, kept or not.
    pub back: u64,
    /// The number of tokens that are left out.
    pub left_out: u64,
}

/// Collects the tokens of holds.
#[derive(Debug, Default)]
pub struct Tokens {
    kept: Vec<TokenPoint>,
    /// Tokens that went back, each after the token of the other hold.
    backwards: Vec<TokenPoint>,
    /// Tokens that went back, those that are left out among them.
    count: u64,
    others: Others,
    stride: u64,
    /// The other tokens.
    seen: u64,
}

impl Tokens {
    /// Adds the token of the next hold of the record.
    pub fn add(&mut self, mut point: TokenPoint) {
        let other = self.others.at_odds(&point).cloned();
        // Of two holds that share a token, the stamps of all holds decide later which one is marked.
        point.is_back = other.as_ref().is_some_and(|other| other.at < point.granted_after);
        self.others.add(&point);
        if let Some(other) = other {
            self.count += 1;
            if self.count <= BACKWARDS {
                // The other token belongs to the picture.
                self.backwards.extend([other, point]);
            }
            return;
        }
        self.stride = self.stride.max(1);
        self.seen += 1;
        if !self.seen.is_multiple_of(self.stride) {
            return;
        }
        self.kept.push(point);
        if self.kept.len() > TOKENS {
            self.stride *= 2;
            let mut n = 0;
            self.kept.retain(|_| {
                n += 1;
                n % 2 == 0
            });
        }
    }

    /// Ends the collection.
    pub fn finish(self) -> Finished {
        let mut tokens = self.kept;
        tokens.extend(self.backwards);
        tokens.sort_by(|a, b| (a.at, &a.key, a.token).cmp(&(b.at, &b.key, b.token)));
        // A token that was left out above may be here as the other one of a token that went back.
        tokens.dedup();
        let left_out = (self.seen + self.count).saturating_sub(tokens.len() as u64);
        // In the record, the events of two processes may be in another order than their stamps.
        let mut others = Others::default();
        for point in &mut tokens {
            let is_back = others.at_odds(point).is_some();
            point.is_back |= is_back;
            others.add(point);
        }
        let drawn = tokens.iter().filter(|point| point.is_back).count() as u64;
        Finished { tokens, back: drawn + self.count.saturating_sub(BACKWARDS), left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hold: the stamp at which its client last knew that it did not hold the key, its acquisition, token and mode.
    type Hold = (u64, u64, u64, Mode);

    fn finished(holds: impl IntoIterator<Item = Hold>) -> Finished {
        let mut tokens = Tokens::default();
        for (granted_after, at, token, mode) in holds {
            let (granted_after, at, token) = (Stamp(granted_after), Stamp(at), Token(token));
            tokens.add(TokenPoint { at, key: Key::new("k0"), token, mode, granted_after, is_back: false });
        }
        tokens.finish()
    }

    /// The tokens that went back.
    fn back(holds: &[Hold]) -> Vec<u64> {
        let Finished { tokens, back, .. } = finished(holds.iter().copied());
        let tokens: Vec<u64> = tokens.iter().filter(|point| point.is_back).map(|point| point.token.0).collect();
        assert_eq!(back, tokens.len() as u64);
        tokens
    }

    #[test]
    fn tokens_that_went_back_are_counted_where_they_are_not_kept() {
        let count = 3 * BACKWARDS;
        // Each token is smaller than that of the hold before.
        let falling = (0..=count).map(|n| (20 * n + 1, 20 * n + 10, 10_000 - n, Mode::Write));
        let Finished { tokens, back, left_out } = finished(falling);
        assert_eq!(back, count);
        assert_eq!(tokens.iter().filter(|point| point.is_back).count() as u64, BACKWARDS);
        assert_eq!(tokens.len() as u64 + left_out, count + 1);
    }

    #[test]
    fn a_token_that_is_drawn_is_not_left_out() {
        // Every second token is kept. The last one that grew is not, and is drawn beside the one that went back.
        let count = TOKENS as u64 + 3;
        let hold = |n: u64, token| (20 * n + 1, 20 * n + 10, token, Mode::Write);
        let Finished { tokens, left_out, .. } = finished((1..=count).map(|n| hold(n, n)).chain([hold(count + 1, 1)]));
        assert!(tokens.iter().any(|point| point.token == Token(count)));
        assert_eq!(tokens.len() as u64 + left_out, count + 1);
    }

    #[test]
    fn only_a_later_hold_that_excludes_the_earlier_one_needs_a_larger_token() {
        use Mode::{IntentRead, IntentWrite, Read, Write};
        let first = |mode| (0, 10, 42, mode);
        assert_eq!(back(&[first(Write), (11, 20, 41, Write)]), [41]);
        assert_eq!(back(&[first(Write), (11, 20, 42, Write)]), [42]);
        assert_eq!(back(&[first(Write), (10, 20, 41, Write)]), [0; 0], "the stamps do not say which one is later");
        assert_eq!(back(&[first(Read), (5, 20, 41, Read)]), [0; 0], "two readers share the key");
        assert_eq!(back(&[first(Read), (11, 20, 41, Read), (21, 30, 41, Write)]), [41], "the writer excludes both");
        assert_eq!(back(&[first(IntentWrite), (11, 20, 41, IntentRead), (21, 30, 43, Write)]), [0; 0]);
    }

    #[test]
    fn a_token_goes_back_behind_the_newest_of_many_holds() {
        // There are more holds than are compared, each with a larger token than the hold before.
        let count = 2 * COMPARED as u64;
        let hold = |n: u64, token| (20 * n + 1, 20 * n + 10, token, Mode::Write);
        let mut holds: Vec<Hold> = (1..=count).map(|n| hold(n, n)).collect();
        holds.push(hold(count + 1, count - 1));
        assert_eq!(back(&holds), [count - 1]);
    }

    #[test]
    fn the_order_of_the_record_need_not_be_that_of_the_stamps() {
        assert_eq!(back(&[(11, 20, 41, Mode::Write), (0, 10, 42, Mode::Write)]), [41]);
        assert_eq!(back(&[(10, 20, 42, Mode::Write), (0, 10, 42, Mode::Write)]), [42]);
    }

    #[test]
    fn a_token_of_two_holds_is_marked_in_any_order() {
        use Mode::{Read, Write};
        assert_eq!(back(&[(0, 10, 42, Write), (10, 20, 42, Write)]), [42]);
        assert_eq!(back(&[(0, 10, 42, Read), (10, 20, 42, Write)]), [42], "the writer excludes the reader");
        assert_eq!(back(&[(0, 10, 42, Read), (10, 20, 42, Read)]), [0; 0], "two readers may share a token");
        assert_eq!(back(&[(0, 10, 50, Write), (0, 12, 42, Write), (10, 20, 42, Write)]), [42]);
    }
}
