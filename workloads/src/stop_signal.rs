//! The signal that no critical section begins any more.

use std::sync::OnceLock;

use history::Stamp;
use tokio::sync::Notify;

/// The time of the stop, which is set once and can be awaited. Wakes its waiters in the order in which they came: the
/// simulation needs this order, and Tokio's `watch` channel does not promise any.
#[derive(Debug, Default)]
pub struct StopSignal {
    at: OnceLock<Stamp>,
    changed: Notify,
}

impl StopSignal {
    /// Sets the signal and wakes all waiters. A second stop does not change the time of the first one.
    pub fn set(&self, at: Stamp) {
        self.at.get_or_init(|| at);
        self.changed.notify_waiters();
    }

    /// Returns the time of the stop; none, if the signal is not set.
    pub fn at(&self) -> Option<Stamp> {
        self.at.get().copied()
    }

    /// Waits until the signal is set, and returns the time of the stop.
    pub async fn wait(&self) -> Stamp {
        loop {
            let changed = self.changed.notified();
            if let Some(at) = self.at() {
                return at;
            }
            changed.await;
        }
    }
}
