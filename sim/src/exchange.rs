//! A request and its answer as one thing that goes there and back: most packets are that. It is allocated once, for both ways and for
//! whoever waits, where closures and a channel are allocated one by one.

use std::sync::Arc;

/// A request that is on its way, or its answer.
pub(crate) trait Exchange<W>: Send + Sync {
    /// It has come to where it was sent.
    fn arrive(self: Arc<Self>, world: &Arc<W>);

    /// It will not come.
    fn lost(&self);
}

/// One way of an exchange. Dropping it loses it.
pub(crate) struct Leg<W>(Option<Arc<dyn Exchange<W>>>);

impl<W> Leg<W> {
    pub fn new(exchange: Arc<dyn Exchange<W>>) -> Self {
        Leg(Some(exchange))
    }

    /// It has come to where it was sent.
    pub fn arrive(mut self, world: &Arc<W>) {
        if let Some(exchange) = self.0.take() {
            exchange.arrive(world);
        }
    }
}

impl<W> Drop for Leg<W> {
    fn drop(&mut self) {
        if let Some(exchange) = &self.0 {
            exchange.lost();
        }
    }
}
