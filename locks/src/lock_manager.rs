//! The lock on several servers of ours: a client that has a majority of them holds the lock, and its token is the
//! largest counter of that majority.
//!
//! Textbooks call this a replicated lock manager. The servers know nothing of each other, so this is
//! [`Redlock`](crate::Redlock) over other servers, with the token source `majority-max`. Such tokens are **not
//! monotonic**: a later majority may share only servers whose counters are behind. The token source `two-phase` repairs
//! that ([`redlock`]), as long as no server restarts: a restart forgets locks and counters.

use std::sync::Arc;

use crate::{
    ports::{Clock, Lock},
    redlock,
    servers::{CannotBuild, Servers, TokenSource},
};

/// The token sources of this lock; the first is that of the textbook.
pub(crate) const TOKENS: &[TokenSource] = &[TokenSource::MajorityMax, TokenSource::TwoPhase, TokenSource::None];

/// Builds the lock over independent nodes.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    redlock::build_on_several("lock-manager", TOKENS, servers, tokens, clock)
}
