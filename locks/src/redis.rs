//! The lock on one server: [`Redlock`] on one node, of which that node is the majority.
//!
//! The token is the server's counter. The script that sets the key also counts: a token taken before the key was set
//! could be smaller than a token that is already in use.

use std::{sync::Arc, time::Duration};

use crate::{
    hold::{Hold, Key, Owner, Released, Renewed},
    ports::{Cleanup, Clock, Lock, Node, Operation, Watch},
    redlock::{self, Redlock},
    servers::{CannotBuild, Servers, TokenSource},
};

/// The lock on one server. See [the module](self).
pub struct Redis(Redlock);

/// Builds the lock over one node.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    redlock::build_on_one("redis", Redis::TOKENS, servers, tokens, clock)
}

impl Redis {
    /// The token sources of this lock; the first is the one to prefer.
    pub const TOKENS: &[TokenSource] = &[TokenSource::Counter, TokenSource::None];

    /// The lock on `node`, with the server's counter as the token.
    pub fn new(node: Arc<dyn Node>, clock: Arc<dyn Clock>) -> Self {
        Self(Redlock::on_one(node, clock, TokenSource::Counter))
    }

    /// The lock on `node` without tokens: the node keeps no counter.
    pub fn without_tokens(node: Arc<dyn Node>, clock: Arc<dyn Clock>) -> Self {
        Self(Redlock::on_one(node, clock, TokenSource::None))
    }

    /// Waits for each answer for `timeout`, instead of the timeout that follows from the lease.
    pub fn with_node_timeout(self, timeout: Duration) -> Self {
        Self(self.0.with_node_timeout(timeout))
    }
}

impl Lock for Redis {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        self.0.acquire(key, owner, lease, watch)
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        self.0.renew(hold, lease, watch)
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        self.0.release(hold, watch)
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        self.0.cancel(key, owner, lease, watch)
    }
}
