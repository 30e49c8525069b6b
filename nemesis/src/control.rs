//! The port through which the nemesis commands the run's own processes.

use std::time::Duration;

use history::{ClientId, Event, Point, Stamp};

use crate::Doing;

/// The operations of the nemesis on the run's own processes.
pub trait Control: Send + Sync {
    /// Has the agent stamp `event`, and returns the stamp when the record has arrived. Every later action of the
    /// nemesis happens after the stamp, so two stamps enclose a fault. Stamps of other processes would not.
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp>;
    /// Arms `client` for `point`: the next time the client reaches the point, it announces the point and waits there,
    /// for at most `bound`.
    fn arm<'a>(&'a self, client: ClientId, point: Point, bound: Duration) -> Doing<'a, ()>;
    /// Releases `client` from the point at which it waits, and disarms the client.
    fn let_go<'a>(&'a self, client: ClientId) -> Doing<'a, ()>;
    /// Waits by the controller's clock, from the call on. The wait proves nothing about the target.
    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()>;
}
