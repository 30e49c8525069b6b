//! Bugs of the reentrant lock.

use std::sync::Arc;

use crate::{
    ports::{Clock, Lock},
    reentrant::{Correct, Decisions, Reentrant},
};

/// Makes a lock reentrant for one client.
pub(super) type Reenter = fn(Arc<dyn Lock>, Arc<dyn Clock>) -> Arc<dyn Lock>;

/// Makes a lock reentrant with the decisions `D`.
pub(super) fn reentering<D: Decisions + Default + 'static>(
    lock: Arc<dyn Lock>,
    clock: Arc<dyn Clock>,
) -> Arc<dyn Lock> {
    Arc::new(Reentrant::deciding(lock, clock, Box::new(D::default())))
}

/// The correct reentrant lock, for bugs elsewhere.
pub(super) fn correctly(lock: Arc<dyn Lock>, clock: Arc<dyn Clock>) -> Arc<dyn Lock> {
    Arc::new(Reentrant::deciding(lock, clock, Box::new(Correct)))
}

/// Frees the key when an inner acquisition is released.
#[derive(Default)]
pub(super) struct InnerReleaseFrees;

impl Decisions for InnerReleaseFrees {
    fn frees_at_once(&self) -> bool {
        true
    }
}

/// Believes in a new lease after a re-entry, for which no request was sent.
#[derive(Default)]
pub(super) struct ReentryRenews;

impl Decisions for ReentryRenews {
    fn believes_anew(&self) -> bool {
        true
    }
}
