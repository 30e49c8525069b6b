//! The end of the time in which critical sections begin.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Becomes true once. Whoever waits for it is woken in the order in which they came, which a channel of Tokio's (`watch`) does not promise and a
/// simulation needs.
#[derive(Debug, Default)]
pub struct Over {
    is_over: AtomicBool,
    changed: Notify,
}

impl Over {
    /// It is over.
    pub fn set(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Whether it is.
    pub fn is_set(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Resolves when it is.
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
