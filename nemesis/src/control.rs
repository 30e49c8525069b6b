//! The port through which the nemesis asks things of the run's own processes.

use std::time::Duration;

use history::{ClientId, Event, Point, Stamp};

use crate::Doing;

/// What the nemesis needs of the run besides the cluster.
pub trait Control: Send + Sync {
    /// Has the agent stamp `event`, and returns that stamp when the record has come back: whatever is done after this
    /// call happens after it. Stamps of anybody else would not bracket the fault.
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp>;
    /// Arms `client` for `point`: at its next passage it announces the point and waits there, at most `bound`.
    fn arm<'a>(&'a self, client: ClientId, point: Point, bound: Duration) -> Doing<'a, ()>;
    /// Lets `client` go on from the point where it waits, and disarms it.
    fn let_go<'a>(&'a self, client: ClientId) -> Doing<'a, ()>;
    /// Waits, by the controller's clock. Nothing is proved by it.
    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()>;
}
