//! A Redis primary and its replicas, as one client knows them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::ports::Node;

/// A Redis primary and its replicas, connected, and the primary as far as this client knows.
pub struct Replication {
    nodes: Vec<Arc<dyn Node>>,
    primary: AtomicUsize,
    look: Notify,
}

impl Replication {
    /// The servers, of which the one with this number is the primary.
    pub(crate) fn new(nodes: Vec<Arc<dyn Node>>, primary: usize) -> Replication {
        Replication { nodes, primary: AtomicUsize::new(primary), look: Notify::new() }
    }

    /// The primary.
    pub(crate) fn primary(&self) -> Arc<dyn Node> {
        self.nodes[self.primary.load(Ordering::SeqCst)].clone()
    }

    /// Notes that the server with this number is the primary.
    pub(crate) fn follow(&self, primary: usize) {
        if self.primary.swap(primary, Ordering::SeqCst) != primary {
            tracing::debug!(primary = self.nodes[primary].name(), "the sentinels name another primary");
        }
    }

    /// Asks for the primary at once.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// Waits until somebody asks for the primary.
    pub(crate) async fn is_asked_to_look(&self) {
        self.look.notified().await;
    }
}
