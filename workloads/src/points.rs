//! Protocol points: places in a client's work where an armed client reports and waits.

use std::{collections::BTreeMap, time::Duration};

use futures::future::{Either, select};
use history::{ClientId, Event, HoldId, Point};
use locks::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ports::Journal;

/// The armed clients and their points. A client that is not armed passes every point without an event.
#[derive(Debug, Default)]
pub struct Points {
    armed: Mutex<BTreeMap<ClientId, (Point, Duration)>>,
    changed: Notify,
}

impl Points {
    /// Arms a client: at its next passage of `point` the client waits, at most for `bound` by its own clock.
    pub fn arm(&self, client: ClientId, point: Point, bound: Duration) {
        self.armed.lock().insert(client, (point, bound));
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
        self.armed.lock().get(&client).is_some_and(|(armed, _)| *armed == point)
    }

    /// Lets a client pass `point`: the client waits there if it is armed.
    pub async fn pass(&self, journal: &dyn Journal, clock: &dyn Clock, client: ClientId, hold: HoldId, point: Point) {
        let bound = match self.armed.lock().get(&client) {
            Some((armed, bound)) if *armed == point => *bound,
            _ => return,
        };
        journal.record(Event::AtPoint { client, hold, point });
        let released = async {
            loop {
                let changed = self.changed.notified();
                if !self.armed.lock().contains_key(&client) {
                    return;
                }
                changed.await;
            }
        };
        let timer = clock.sleep_until(clock.now() + bound);
        // `select` polls the release first: a release counts even if the bound has expired too.
        let released = matches!(select(std::pin::pin!(released), timer).await, Either::Left(_));
        self.armed.lock().remove(&client);
        journal.record(Event::LeftPoint { client, hold, point, released });
    }
}
