//! The way from the connections to the task that asks a store outside this process.

use history::Version;
use tokio::sync::{mpsc, oneshot};

use crate::admission::Admission;
use crate::moment::Undecided;
use crate::request::Request;
use crate::store::{End, QUEUE_MAX};

/// A request that waits for its decision.
pub(crate) struct Asked {
    pub request: Request,
    pub answer: oneshot::Sender<Result<Admission, Undecided>>,
}

/// The queue of a task that asks a store. A task of its own: a client that goes away must not interrupt a transaction.
pub(crate) struct Asker(mpsc::Sender<Asked>);

/// The reason why a store outside this process gave no answer that decides.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No answer came, or the store cannot answer now. A change that was sent may have happened.
    Lost(String),
    /// The store refused the request, or answered nonsense. The same request would be refused again.
    Wrong(String),
}

/// A store that was opened.
pub(crate) struct Opened {
    pub asker: Asker,
    /// The largest committed number; none if the store is new.
    pub durable: Option<Version>,
    pub end: End,
}

impl Asker {
    /// Makes the queue of a task, and its other end.
    pub(crate) fn new() -> (Asker, mpsc::Receiver<Asked>) {
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        (Asker(queue), requests)
    }

    /// Lets the store decide `request`.
    pub(crate) async fn admit(&self, request: Request) -> Result<Admission, Undecided> {
        let (answer, decided) = oneshot::channel();
        self.0.try_send(Asked { request, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Undecided::Overloaded,
            mpsc::error::TrySendError::Closed(_) => Undecided::Broken,
        })?;
        decided.await.map_err(|_| Undecided::Broken)?
    }
}
