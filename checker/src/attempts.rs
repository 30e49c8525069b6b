//! The attempts that a later event may concern, by their ids.

use std::cell::Cell;

use history::HoldId;
use rustc_hash::FxHashMap;

use crate::holds::Attempt;

/// All attempts that are not closed.
#[derive(Default)]
pub(crate) struct Attempts {
    places: FxHashMap<HoldId, usize>,
    /// Boxed, because attempts are large and leave as they are. A place without an attempt is in `free`.
    all: Vec<Option<Box<Attempt>>>,
    free: Vec<usize>,
    /// The place of the attempt that was asked for last. One event is about one attempt, and every judge asks for it.
    recent: Cell<usize>,
}

impl Attempts {
    fn place(&self, id: HoldId) -> Option<usize> {
        let place = *self.places.get(&id)?;
        self.recent.set(place);
        Some(place)
    }

    pub fn contains(&self, id: HoldId) -> bool {
        self.get(id).is_some()
    }

    #[inline]
    pub fn get(&self, id: HoldId) -> Option<&Attempt> {
        match self.all.get(self.recent.get()) {
            Some(Some(attempt)) if attempt.id == id => Some(attempt),
            _ => self.look_up(id),
        }
    }

    #[cold]
    fn look_up(&self, id: HoldId) -> Option<&Attempt> {
        self.all[self.place(id)?].as_deref()
    }

    pub fn get_mut(&mut self, id: HoldId) -> Option<&mut Attempt> {
        let recent = self.recent.get();
        let place = match self.all.get(recent) {
            Some(Some(attempt)) if attempt.id == id => recent,
            _ => self.place(id)?,
        };
        self.all[place].as_deref_mut()
    }

    /// Adds an attempt, in the place of an attempt with the same id.
    pub fn insert(&mut self, attempt: Box<Attempt>) {
        let place = self.place(attempt.id).or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.places.insert(attempt.id, place);
        self.recent.set(place);
        self.all[place] = Some(attempt);
    }

    pub fn remove(&mut self, id: HoldId) -> Option<Box<Attempt>> {
        let place = self.places.remove(&id)?;
        self.free.push(place);
        self.all[place].take()
    }

    /// All attempts; their order says nothing.
    pub fn iter(&self) -> impl Iterator<Item = &Attempt> {
        self.all.iter().flatten().map(|attempt| &**attempt)
    }
}

#[cfg(test)]
mod tests {
    use history::{ClientId, Mode, Stamp};

    use super::*;
    use crate::holds::EventRef;

    fn attempt(id: u64, key: usize) -> Box<Attempt> {
        let sent = EventRef { at: Stamp(id), seq: id };
        Box::new(Attempt::new(HoldId(id), key, Mode::Write, ClientId(0), 0, sent))
    }

    #[test]
    fn each_id_has_its_own_attempt_however_places_are_used_again() {
        let mut attempts = Attempts::default();
        for id in 1..=100 {
            attempts.insert(attempt(id, 0));
            assert_eq!(attempts.get(HoldId(id)).map(|a| a.id), Some(HoldId(id)));
            if id % 3 == 0 {
                let gone = HoldId(id - 1);
                assert_eq!(attempts.remove(gone).map(|a| a.id), Some(gone));
                assert!(attempts.get(gone).is_none() && !attempts.contains(gone) && attempts.remove(gone).is_none());
            }
        }
        let known: Vec<u64> = (1..=100).filter(|id| attempts.contains(HoldId(*id))).collect();
        assert_eq!(known, (1..=100).filter(|id| id % 3 != 2).collect::<Vec<_>>());
        assert!(known.iter().all(|id| attempts.get_mut(HoldId(*id)).is_some_and(|a| a.id == HoldId(*id))));
        assert_eq!(attempts.iter().count(), known.len());
        assert!(attempts.all.len() < 70, "places are used again: {}", attempts.all.len());
    }

    #[test]
    fn a_second_attempt_with_an_id_takes_the_place_of_the_first() {
        let mut attempts = Attempts::default();
        attempts.insert(attempt(7, 0));
        attempts.insert(attempt(8, 0));
        attempts.insert(attempt(7, 1));
        assert_eq!((attempts.get(HoldId(7)).map(|a| a.key), attempts.iter().count()), (Some(1), 2));
        assert!(attempts.remove(HoldId(7)).is_some() && attempts.get(HoldId(7)).is_none());
    }
}
