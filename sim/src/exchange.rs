//! A request and its response as one allocation, because most packets are requests and responses. Two closures and a
//! channel would be three allocations.

use std::sync::Arc;

/// A request and its response.
pub(crate) trait Exchange<W>: Send + Sync {
    /// Handles the arrival of the request at the server, then of the response at the client.
    fn arrive(self: Arc<Self>, world: &Arc<W>);

    /// Tells the client that no response will come.
    fn lost(&self);
}

/// A request or a response on its way. A message that is dropped is lost.
pub(crate) struct Message<W>(Option<Arc<dyn Exchange<W>>>);

impl<W> Message<W> {
    pub fn new(exchange: Arc<dyn Exchange<W>>) -> Self {
        Message(Some(exchange))
    }

    /// Handles the arrival.
    pub fn arrive(mut self, world: &Arc<W>) {
        if let Some(exchange) = self.0.take() {
            exchange.arrive(world);
        }
    }
}

impl<W> Drop for Message<W> {
    fn drop(&mut self) {
        if let Some(exchange) = &self.0 {
            exchange.lost();
        }
    }
}
