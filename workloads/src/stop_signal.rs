//! The signal that no critical section begins any more.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A flag that is set once and can be awaited. Wakes its waiters in the order in which they came: the simulation needs
/// this order, and Tokio's `watch` channel does not promise any.
#[derive(Debug, Default)]
pub struct StopSignal {
    is_set: AtomicBool,
    changed: Notify,
}

impl StopSignal {
    /// Sets the signal and wakes all waiters.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Returns whether the signal is set.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Waits until the signal is set.
    pub async fn wait(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_set() {
                return;
            }
            changed.await;
        }
    }
}
