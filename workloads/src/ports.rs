//! The ports of a client: the journal and the protected resource. (`locks` defines the ports for the lock and the
//! clock.)

use std::{collections::BTreeMap, future::Future, pin::Pin};

use history::{Arm, Event, HoldId, Key, OpId, Stamp, Token, Version};
use resource::{ClientError, ReadAnswer, WriteAnswer};

/// Stamps and writes events.
pub trait Journal: Send + Sync {
    /// Returns the current time of the run's clock.
    fn now(&self) -> Stamp;
    /// Stamps `event` and writes it out before the return.
    fn record(&self, event: Event) -> Stamp;
    /// Writes `event` with an earlier stamp. The caller must not await between the stamp and this call, because the
    /// stamps of a process never go back.
    fn record_at(&self, at: Stamp, event: Event);
}

/// A request to the resource that awaits its answer.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send + 'a>>;

/// One operation on the protected state under a hold.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The protected key.
    pub key: Key,
    /// The hold.
    pub hold: HoldId,
    /// The operation's number.
    pub op: OpId,
    /// The hold's fencing token.
    pub token: Option<Token>,
    /// The end of the client's belief, by its wall clock, for a resource with the arm `deadline`.
    pub deadline_us: Option<u64>,
}

/// The protected resource.
pub trait Resource: Send + Sync {
    /// Reads all arms. The arm `reads` registers the token.
    fn read<'a>(&'a self, operation: &Operation) -> Pending<'a, ReadAnswer>;
    /// Reads all arms at the end of a run, without a hold and without a token.
    fn final_read<'a>(&'a self, key: &Key) -> Pending<'a, ReadAnswer>;
    /// Prepares a write of all arms. Sending its bytes is the first thing that the returned future does.
    fn write<'a>(
        &'a self,
        operation: &Operation,
        values: &BTreeMap<Arm, (Version, String)>,
    ) -> Pending<'a, WriteAnswer>;
}

impl Resource for resource::Client {
    fn read<'a>(&'a self, operation: &Operation) -> Pending<'a, ReadAnswer> {
        let Operation { key, hold, op, token, .. } = operation.clone();
        Box::pin(async move { resource::Client::read(self, &key, token, Some(hold), Some(op)).await })
    }

    fn final_read<'a>(&'a self, key: &Key) -> Pending<'a, ReadAnswer> {
        let key = key.clone();
        Box::pin(async move { resource::Client::read(self, &key, None, None, None).await })
    }

    fn write<'a>(
        &'a self,
        operation: &Operation,
        values: &BTreeMap<Arm, (Version, String)>,
    ) -> Pending<'a, WriteAnswer> {
        let Operation { key, hold, op, token, deadline_us } = operation;
        match self.prepare_write(key, *token, Some(*hold), Some(*op), *deadline_us, values) {
            Ok(prepared) => Box::pin(prepared.send()),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}
