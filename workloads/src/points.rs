//! Protocol points: places in a client's work where an armed client reports and waits.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::{FutureExt, future::select};
use history::{ClientId, Event, HoldId, Point};
use locks::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ports::Journal;

/// The armed clients and their points. A client that is not armed passes every point without an event.
#[derive(Debug, Default)]
pub struct Points {
    armed: Mutex<BTreeMap<ClientId, Arming>>,
    waiting: Mutex<BTreeMap<ClientId, Waiting>>,
    /// The number of armings so far.
    armings: AtomicU64,
    changed: Notify,
}

/// The point of an armed client. Each arming has its own ticket: a client that is armed again before it has noticed its
/// release waits for the former ticket only.
#[derive(Debug, Clone, Copy)]
struct Arming {
    ticket: u64,
    point: Point,
    bound: Duration,
}

/// A client that waits at its point.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: u64,
    hold: HoldId,
    point: Point,
}

impl Points {
    /// Arms a client: at its next passage of `point` the client waits, at most for `bound` by its own clock.
    pub fn arm(&self, client: ClientId, point: Point, bound: Duration) {
        let ticket = self.armings.fetch_add(1, Ordering::Relaxed);
        self.armed.lock().insert(client, Arming { ticket, point, bound });
    }

    /// Disarms a client, and releases the client if it waits.
    pub fn go(&self, client: ClientId) {
        self.armed.lock().remove(&client);
        self.changed.notify_waiters();
    }

    /// Disarms all clients, and releases those that wait.
    pub fn go_all(&self) {
        self.armed.lock().clear();
        self.changed.notify_waiters();
    }

    /// Returns whether a client would wait at `point` now.
    pub fn is_armed(&self, client: ClientId, point: Point) -> bool {
        self.armed.lock().get(&client).is_some_and(|armed| armed.point == point)
    }

    fn has_ticket(&self, client: ClientId, ticket: u64) -> bool {
        self.armed.lock().get(&client).is_some_and(|armed| armed.ticket == ticket)
    }

    /// Lets a client pass `point`: the client waits there if it is armed. A caller that drops the future must call
    /// [`Points::leave`].
    pub async fn pass(&self, journal: &dyn Journal, clock: &dyn Clock, client: ClientId, hold: HoldId, point: Point) {
        let armed = self.armed.lock().get(&client).copied().filter(|armed| armed.point == point);
        let Some(Arming { ticket, bound, .. }) = armed else { return };
        journal.record(Event::AtPoint { client, hold, point });
        self.waiting.lock().insert(client, Waiting { ticket, hold, point });
        let released = async {
            loop {
                let changed = self.changed.notified();
                if !self.has_ticket(client, ticket) {
                    return;
                }
                changed.await;
            }
        };
        let timer = clock.sleep_until(clock.now() + bound);
        select(std::pin::pin!(released), timer).map(|_| ()).await;
        self.leave(journal, client);
    }

    /// Ends the wait of a client, if it waits, and disarms the client. The release counts even if the bound has expired
    /// too.
    ///
    /// A drop of the wait does not do this by itself, because the waits of a killed process are dropped too, and a
    /// killed process records nothing.
    pub fn leave(&self, journal: &dyn Journal, client: ClientId) {
        let Some(Waiting { ticket, hold, point }) = self.waiting.lock().remove(&client) else { return };
        let released = !self.has_ticket(client, ticket);
        self.armed.lock().retain(|_, armed| armed.ticket != ticket);
        journal.record(Event::LeftPoint { client, hold, point, released });
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use history::Stamp;
    use locks::Reply;

    use super::*;

    /// Keeps the events. Its clock stands still, so no bound expires.
    #[derive(Default)]
    struct Double(Mutex<Vec<Event>>);

    impl Journal for Double {
        fn now(&self) -> Stamp {
            Stamp(0)
        }

        fn record(&self, event: Event) -> Stamp {
            self.0.lock().push(event);
            Stamp(0)
        }

        fn record_at(&self, _: Stamp, event: Event) {
            self.record(event);
        }
    }

    impl Clock for Double {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep_until(&self, _: Duration) -> Reply<()> {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn a_client_that_is_armed_again_at_once_is_released() {
        let (client, hold, bound) = (ClientId(3), HoldId(1), Duration::from_secs(1));
        for next in [Point::BeforeWrite, Point::AfterAcquire] {
            let (points, double) = (Points::default(), Double::default());
            points.arm(client, Point::AfterAcquire, bound);
            let mut passing = pin!(points.pass(&double, &double, client, hold, Point::AfterAcquire));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(passing.as_mut().poll(&mut cx).is_pending());
            points.go(client);
            points.arm(client, next, bound);
            assert!(passing.as_mut().poll(&mut cx).is_ready());
            let left = Event::LeftPoint { client, hold, point: Point::AfterAcquire, released: true };
            assert_eq!(double.0.lock().last(), Some(&left));
            assert!(points.is_armed(client, next), "the second arming stays");
        }
    }

    #[test]
    fn the_stop_releases_every_client_at_its_point() {
        let (points, double) = (Points::default(), Double::default());
        let (clients, point) = ([3, 4].map(ClientId), Point::AfterAcquire);
        clients.iter().for_each(|client| points.arm(*client, point, Duration::from_secs(1)));
        let mut passing = clients.map(|client| Box::pin(points.pass(&double, &double, client, HoldId(1), point)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(passing.iter_mut().all(|passing| passing.as_mut().poll(&mut cx).is_pending()));
        points.go_all();
        assert!(passing.iter_mut().all(|passing| passing.as_mut().poll(&mut cx).is_ready()));
    }

    #[test]
    fn a_client_that_gives_up_its_wait_is_disarmed() {
        let (client, hold, point) = (ClientId(3), HoldId(1), Point::AfterSend);
        for released in [false, true] {
            let (points, double) = (Points::default(), Double::default());
            points.arm(client, point, Duration::from_secs(1));
            let mut passing = Box::pin(points.pass(&double, &double, client, hold, point));
            assert!(passing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            if released {
                points.go(client);
            }
            drop(passing);
            points.leave(&double, client);
            assert!(!points.is_armed(client, point));
            assert_eq!(double.0.lock().last(), Some(&Event::LeftPoint { client, hold, point, released }));
            points.leave(&double, client);
            assert_eq!(double.0.lock().len(), 2, "the client leaves once");
        }
    }
}
