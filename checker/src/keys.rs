//! The keys of a run, numbered from 0 on in the order of their first appearance.

use std::cell::Cell;

use history::Key;
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

/// All keys.
#[derive(Default)]
pub(crate) struct Keys {
    names: IndexSet<Key, FxBuildHasher>,
    /// The key that was asked for last. One event is about one key, and every judge asks for it.
    recent: Cell<usize>,
}

impl Keys {
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The number of a key, if it has appeared.
    pub fn number(&self, name: &Key) -> Option<usize> {
        let recent = self.recent.get();
        if self.names.get_index(recent).is_some_and(|known| known == name) {
            return Some(recent);
        }
        let number = self.names.get_index_of(name)?;
        self.recent.set(number);
        Some(number)
    }

    /// The number of a key, which may be new.
    pub fn intern(&mut self, name: &Key) -> usize {
        self.number(name).unwrap_or_else(|| self.names.insert_full(name.clone()).0)
    }

    pub fn name(&self, number: usize) -> &Key {
        &self.names[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_number() {
        let mut keys = Keys::default();
        let names = ["a", "b", "a", "c", "c", "b", "a"].map(Key::from);
        let numbers = names.each_ref().map(|name| keys.intern(name));
        assert_eq!((numbers, keys.len()), ([0, 1, 0, 2, 2, 1, 0], 3));
        assert!(names.iter().zip(numbers).all(|(name, n)| keys.name(n) == name && keys.number(name) == Some(n)));
        assert_eq!(keys.number(&Key::from("d")), None);
    }
}
