//! The names of the keys that a client created. Requests name a key by its revision, and etcd deletes by name.
//!
//! The list is a shortcut: a key that is not in it is found by its revision, with one request more. So a key may be
//! forgotten early, and must be forgotten some time: a client creates a key for each attempt.

use std::collections::BTreeMap;

use crate::{
    hold::Key,
    ports::{LeaseId, Revision},
};

/// The largest number of names. A client that gives a hold up never says that its key is gone.
const NAMES_MAX: usize = 4096;

/// The name of each key that is not known to be gone, and the lease of the key.
#[derive(Default)]
pub(super) struct Created(BTreeMap<(Key, Revision), (LeaseId, Vec<u8>)>);

impl Created {
    pub fn insert(&mut self, key: &Key, revision: Revision, lease: LeaseId, name: Vec<u8>) {
        self.0.insert((key.clone(), revision), (lease, name));
        if self.0.len() > NAMES_MAX
            && let Some(oldest) = self.0.keys().min_by_key(|(_, revision)| *revision).cloned()
        {
            self.0.remove(&oldest);
        }
    }

    pub fn name(&self, key: &Key, revision: Revision) -> Option<Vec<u8>> {
        self.0.get(&(key.clone(), revision)).map(|(_, name)| name.clone())
    }

    /// The key is gone.
    pub fn forget(&mut self, key: &Key, revision: Revision) {
        self.0.remove(&(key.clone(), revision));
    }

    /// The lease is gone, and its keys with it.
    pub fn forget_lease(&mut self, lease: LeaseId) {
        self.0.retain(|_, (of, _)| *of != lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_keys_that_nobody_removes_are_forgotten_the_oldest_first() {
        let mut created = Created::default();
        for revision in 1..=NAMES_MAX as i64 + 2 {
            created.insert(&Key::new("k0"), Revision(revision), LeaseId(revision), b"name".to_vec());
        }
        let known = [2, 3].map(|revision| created.name(&Key::new("k0"), Revision(revision)).is_some());
        assert_eq!((created.0.len(), known), (NAMES_MAX, [false, true]));
    }

    #[test]
    fn names_are_kept_until_their_key_or_their_lease_is_gone() {
        let (k0, k1) = (Key::new("k0"), Key::new("k1"));
        let mut created = Created::default();
        for (key, revision, lease) in [(&k0, 1, 7), (&k1, 2, 7), (&k0, 3, 8)] {
            created.insert(key, Revision(revision), LeaseId(lease), format!("name-{revision}").into_bytes());
        }
        created.forget(&k0, Revision(1));
        let name = |created: &Created, key, revision| created.name(key, Revision(revision));
        assert_eq!(name(&created, &k0, 1), None);
        assert_eq!(name(&created, &k1, 2), Some(b"name-2".to_vec()));
        created.forget_lease(LeaseId(7));
        assert_eq!((name(&created, &k1, 2), name(&created, &k0, 3)), (None, Some(b"name-3".to_vec())));
        created.forget_lease(LeaseId(8));
        assert!(created.0.is_empty());
    }
}
