//! The tokens that the holds of a key had, over the whole run: a bit for each token, so that a long run needs little
//! memory.

use history::Token;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The tokens that the holds of a key had.
///
/// Tokens that grow are appended, with at most a small step back, so most keys need one short list. Tokens that come in
/// any other order go into a map.
#[derive(Default)]
pub(super) struct Given {
    /// Bits of the tokens from 64 times the number on, in the order of the numbers. Most keys need one entry only.
    bits: SmallVec<[(u64, u64); 1]>,
    rest: Option<Box<Rest>>,
}

#[derive(Default)]
struct Rest {
    /// The same for tokens that did not come in order.
    bits: FxHashMap<u64, u64>,
    /// The number of holds of each token that more than one hold had.
    again: FxHashMap<Token, u64>,
}

/// The farthest step back that is inserted into the list.
const BACK_MAX: usize = 64;

impl Given {
    fn has(&self, token: Token) -> bool {
        let (block, bit) = (token.0 / 64, 1 << (token.0 % 64));
        let listed = self.bits.binary_search_by_key(&block, |(block, _)| *block).map_or(0, |i| self.bits[i].1);
        let others = self.rest.as_ref().and_then(|rest| rest.bits.get(&block)).copied().unwrap_or_default();
        (listed | others) & bit != 0
    }

    /// The number of holds that had this token.
    pub fn holds(&self, token: Token) -> u64 {
        if !self.has(token) {
            return 0;
        }
        self.rest.as_ref().and_then(|rest| rest.again.get(&token)).copied().unwrap_or(1)
    }

    /// Adds the token of one more hold.
    pub fn add(&mut self, token: Token) {
        let (block, bit) = (token.0 / 64, 1 << (token.0 % 64));
        if let Some((_, bits)) = self.bits.last_mut().filter(|(last, bits)| *last == block && *bits & bit == 0) {
            // Most tokens are near the last one, and new.
            *bits |= bit;
            return;
        }
        if self.has(token) {
            *self.rest.get_or_insert_default().again.entry(token).or_insert(1) += 1;
            return;
        }
        match self.bits.binary_search_by_key(&block, |(block, _)| *block) {
            Ok(i) => self.bits[i].1 |= bit,
            Err(i) if self.bits.len() - i <= BACK_MAX => {
                self.bits.insert(i, (block, bit));
            }
            Err(_) => *self.rest.get_or_insert_default().bits.entry(block).or_default() |= bit,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Tokens for the list and for the map: near the last one, and far from it.
    fn tokens() -> impl Strategy<Value = Vec<u64>> {
        let near = prop::collection::vec(0_u64..300, 0..60);
        let far = prop::collection::vec(prop_oneof![0_u64..300, 0_u64..1_000_000, Just(u64::MAX)], 0..400);
        prop_oneof![near, far]
    }

    proptest! {
        #[test]
        fn the_holds_of_each_token_are_counted(tokens in tokens()) {
            let (mut given, mut counts) = (Given::default(), HashMap::<u64, u64>::new());
            for token in tokens {
                prop_assert_eq!(given.holds(Token(token)), counts.get(&token).copied().unwrap_or_default());
                given.add(Token(token));
                *counts.entry(token).or_default() += 1;
                prop_assert_eq!(given.holds(Token(token)), counts[&token]);
            }
            for (token, holds) in counts {
                prop_assert_eq!(given.holds(Token(token)), holds);
            }
        }
    }
}
