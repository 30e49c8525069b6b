//! The lock on one server: the same client as [`Redlock`] over one node, of which that node is the majority.
//!
//! The token is the server's counter, taken in the script that sets the key: a token taken before the key was set
//! could be smaller than one that is already in use.

use std::{sync::Arc, time::Duration};

use crate::{
    hold::{Hold, Key, Owner, Released, Renewed},
    ports::{Clock, Doing, Lock, Node, Undoing, Watch},
    redlock::{Redlock, Tokens},
};

/// The lock on one server.
pub struct Redis(Redlock);

impl Redis {
    /// The lock on `node`, with the server's counter as the token.
    pub fn new(node: Arc<dyn Node>, clock: Arc<dyn Clock>) -> Self {
        // One node's largest counter is its counter.
        Self(Redlock::new(vec![node], clock, Tokens::MajorityMax))
    }

    /// The same without tokens: no counter is kept.
    pub fn without_tokens(node: Arc<dyn Node>, clock: Arc<dyn Clock>) -> Self {
        Self(Redlock::new(vec![node], clock, Tokens::None))
    }

    /// Waits for an answer for `timeout`, instead of the time that follows from the lease.
    pub fn with_node_timeout(self, timeout: Duration) -> Self {
        Self(self.0.with_node_timeout(timeout))
    }
}

impl Lock for Redis {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Hold> {
        self.0.acquire(key, owner, lease, watch)
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Renewed> {
        self.0.renew(hold, lease, watch)
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Undoing<'a> {
        self.0.cancel(key, owner, lease, watch)
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Doing<'a, Released> {
        self.0.release(hold, watch)
    }
}
