//! Protocol points: places where a client that was armed for them announces itself and waits.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::{Either, select};
use history::{ClientId, Event, HoldId, Point};
use locks::Clock;
use tokio::sync::Notify;

use crate::ports::Journal;

/// Who is armed for what. A client that is not armed passes every point without a trace.
#[derive(Debug, Default)]
pub struct Points {
    armed: Mutex<BTreeMap<ClientId, (Point, Duration)>>,
    changed: Notify,
}

impl Points {
    fn armed(&self) -> MutexGuard<'_, BTreeMap<ClientId, (Point, Duration)>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms a client for its next passage of `point`; it waits there for at most `bound`, by its own clock.
    pub fn arm(&self, client: ClientId, point: Point, bound: Duration) {
        self.armed().insert(client, (point, bound));
    }

    /// Disarms a client, and lets it go on if it waits.
    pub fn go(&self, client: ClientId) {
        self.armed().remove(&client);
        self.changed.notify_waiters();
    }

    /// Disarms everybody, and lets go whoever waits.
    pub fn go_all(&self) {
        self.armed().clear();
        self.changed.notify_waiters();
    }

    /// Whether a client would wait at `point`, if it came there now.
    pub fn is_armed(&self, client: ClientId, point: Point) -> bool {
        self.armed().get(&client).is_some_and(|(armed, _)| *armed == point)
    }

    /// A client comes to `point`.
    pub async fn pass(&self, journal: &dyn Journal, clock: &dyn Clock, client: ClientId, hold: HoldId, point: Point) {
        let bound = match self.armed().get(&client) {
            Some((armed, bound)) if *armed == point => *bound,
            _ => return,
        };
        journal.record(Event::AtPoint { client, hold, point });
        let released = async {
            loop {
                let changed = self.changed.notified();
                if !self.armed().contains_key(&client) {
                    return;
                }
                changed.await;
            }
        };
        let timer = clock.sleep_until(clock.now() + bound);
        // `select` looks at the release first: one that has been read counts, though the bound has run out too.
        let released = matches!(select(std::pin::pin!(released), timer).await, Either::Left(_));
        self.armed().remove(&client);
        journal.record(Event::LeftPoint { client, hold, point, released });
    }
}
