//! The open attempts and the holds of one key. Thousands of clients may contend for a key, so no event visits them all.

use history::{HoldId, Stamp};
use indexmap::{IndexMap, IndexSet};
use rustc_hash::FxBuildHasher;

use crate::holds::{Attempt, EventRef};

/// An attempt that has not ended, or a hold that is in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub id: HoldId,
    pub process: usize,
    pub sent: EventRef,
    pub is_hold: bool,
    pub behind: Option<EventRef>,
    /// When the first attempt was sent that overlaps this one: directly, or by a chain of attempts. The contention of
    /// the key may have begun earlier.
    pub meets: Option<Stamp>,
    /// True if a client program said that it has released the lock of the attempt, or does not have it.
    pub is_undone: bool,
}

impl Open {
    /// An attempt that was sent just now.
    pub fn of(attempt: &Attempt) -> Open {
        let Attempt { id, process, sent, .. } = *attempt;
        Open { id, process, sent, is_hold: false, behind: None, meets: None, is_undone: false }
    }
}

/// Attempts that have not ended, and holds that are in use. Their order depends on the events of the key only.
#[derive(Debug, Default)]
pub(crate) struct OpenAttempts {
    all: IndexMap<HoldId, Open, FxBuildHasher>,
    /// The holds among them.
    holds: IndexSet<HoldId, FxBuildHasher>,
    /// The other attempts in the order in which they were sent, and some that have ended.
    sent: Vec<HoldId>,
    /// Attempts whose id a later attempt has, too. Only a wrong record has such: the process of the first had ended.
    doubles: Vec<Open>,
}

/// Attempts that may have ended and are kept in the order of sending.
const SENT_MIN: usize = 16;

impl OpenAttempts {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.doubles.is_empty()
    }

    pub fn has_hold(&self) -> bool {
        !self.holds.is_empty() || self.doubles.iter().any(|open| open.is_hold)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Open> {
        self.all.values().chain(&self.doubles)
    }

    pub fn get(&self, id: HoldId) -> Option<&Open> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: HoldId) -> Option<&mut Open> {
        self.all.get_mut(&id)
    }

    /// The place of an attempt in the list.
    pub fn place(&self, id: HoldId) -> Option<usize> {
        self.all.get_index_of(&id)
    }

    /// Adds an attempt that was sent just now, or a hold.
    pub fn push(&mut self, open: Open) {
        if let Some(former) = self.all.insert(open.id, open) {
            self.holds.swap_remove(&former.id);
            self.doubles.push(former);
        }
        if open.is_hold {
            self.holds.insert(open.id);
        } else {
            self.sent.push(open.id);
            if self.sent.len() > SENT_MIN + 2 * self.all.len() {
                let all = &self.all;
                self.sent.retain(|id| waits(all, *id));
            }
        }
    }

    pub fn take(&mut self, id: HoldId) -> Option<Open> {
        let open = self.all.swap_remove(&id)?;
        if open.is_hold {
            self.holds.swap_remove(&id);
        }
        Some(open)
    }

    /// Removes the attempts for which this is true, and returns them.
    pub fn remove(&mut self, is_over: impl Fn(&Open) -> bool) -> Vec<Open> {
        let mut over = Vec::new();
        self.all.retain(|_, open| {
            let is_over = is_over(open);
            over.extend(is_over.then_some(*open));
            !is_over
        });
        for open in over.iter().filter(|open| open.is_hold) {
            self.holds.swap_remove(&open.id);
        }
        over.extend(self.doubles.extract_if(.., |open| is_over(open)));
        over
    }

    /// Removes the holds for which this is true, and returns them. Mostly there is none.
    pub fn remove_holds(&mut self, is_over: impl Fn(&Open) -> bool) -> Vec<Open> {
        if !self.holds.iter().any(|id| self.all.get(id).is_some_and(&is_over)) {
            return Vec::new();
        }
        self.remove(|open| open.is_hold && is_over(open))
    }

    /// Returns when the first attempt was sent that overlaps an attempt which is sent now: directly, or by a chain of
    /// attempts. All attempts that wait overlap it.
    ///
    /// Only the newest of them needs to be asked. It was sent while the others waited, so they overlap each other, and
    /// what it meets began no later than what any of them meets.
    pub fn met_by_next(&mut self) -> Option<Stamp> {
        while self.sent.pop_if(|id| !waits(&self.all, *id)).is_some() {}
        let newest = self.all.get_mut(self.sent.last()?)?;
        Some(*newest.meets.get_or_insert(newest.sent.at))
    }
}

/// Returns whether an attempt is open and no hold.
fn waits(all: &IndexMap<HoldId, Open, FxBuildHasher>, id: HoldId) -> bool {
    all.get(&id).is_some_and(|open| !open.is_hold)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{ClientId, Mode};
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::{
        holds::{Attempt, EventRef},
        properties::liveness::key_watch::KeyWatch,
    };

    fn attempt(id: u64) -> Attempt {
        let sent = EventRef { at: Stamp(id), seq: id };
        Attempt::new(HoldId(id), 0, Mode::Write, ClientId(0), 0, sent)
    }

    #[test]
    fn attempts_at_one_key_cost_no_time_for_each_pair() {
        let mut key = KeyWatch::default();
        (1..=100_000).for_each(|id| key.sent(&attempt(id), Stamp(id), Duration::ZERO));
        for id in 1..=100_000 {
            assert_eq!(key.take(HoldId(id)).and_then(|open| open.meets), Some(Stamp(1)), "attempt {id}");
        }
        assert!(key.open.is_empty());
    }

    #[test]
    fn an_attempt_stays_open_when_another_one_has_its_id() {
        let mut attempts = OpenAttempts::default();
        attempts.push(Open { is_hold: true, ..Open::of(&attempt(1)) });
        attempts.push(Open { process: 1, ..Open::of(&attempt(1)) });
        assert_eq!(attempts.iter().count(), 2);
        assert!(attempts.take(HoldId(1)).is_some_and(|open| open.process == 1));
        assert!(attempts.has_hold() && !attempts.is_empty());
        assert_eq!(attempts.remove(|open| open.process == 0).len(), 1);
        assert!(attempts.is_empty() && !attempts.has_hold());
    }

    #[test]
    fn an_attempt_meets_what_the_plain_list_of_all_attempts_says() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let (mut attempts, mut list) = (OpenAttempts::default(), Vec::<Open>::new());
        for id in 1..=20_000 {
            let waiting = list.iter_mut().filter(|open| !open.is_hold);
            let first = waiting.map(|open| *open.meets.get_or_insert(open.sent.at)).min();
            assert_eq!(attempts.met_by_next(), first, "attempt {id}");
            let new = Open { meets: first, ..Open::of(&attempt(id)) };
            list.push(new);
            attempts.push(new);
            while random.random_range(0..20) < list.len() {
                let place = random.random_range(0..list.len());
                let taken = attempts.take(list[place].id).unwrap();
                assert_eq!(taken.meets, list.swap_remove(place).meets);
                if !taken.is_hold && random.random_range(0..2) == 0 {
                    let hold = Open { is_hold: true, ..taken };
                    list.push(hold);
                    attempts.push(hold);
                }
            }
            let of = |open: &Open| (open.id, open.is_hold, open.meets);
            assert!(attempts.iter().map(of).eq(list.iter().map(of)), "after attempt {id}");
            assert_eq!(attempts.has_hold(), list.iter().any(|open| open.is_hold));
            if id % 1_000 == 0 {
                let is_over = |open: &Open| open.id.0.is_multiple_of(2);
                let expected: Vec<HoldId> = list.extract_if(.., |o| o.is_hold && is_over(o)).map(|o| o.id).collect();
                let over: Vec<HoldId> = attempts.remove_holds(is_over).iter().map(|open| open.id).collect();
                assert_eq!(over, expected);
            }
        }
        assert!(attempts.sent.len() < 80, "{}", attempts.sent.len());
    }
}
