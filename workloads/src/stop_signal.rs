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

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn every_waiter_gets_the_time_of_the_first_stop() {
        let (signal, mut cx) = (StopSignal::default(), Context::from_waker(Waker::noop()));
        let mut one = pin!(signal.wait());
        let mut other = pin!(signal.wait());
        assert!(one.as_mut().poll(&mut cx).is_pending() && other.as_mut().poll(&mut cx).is_pending());
        signal.set(Stamp(5));
        signal.set(Stamp(6));
        for waiter in [&mut one, &mut other] {
            assert_eq!(waiter.as_mut().poll(&mut cx), Poll::Ready(Stamp(5)));
        }
    }
}
