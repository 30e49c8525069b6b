//! The ports of a client: where it records, and what it protects. (The lock and the clock are ports of `locks`.)

use std::{collections::BTreeMap, future::Future, pin::Pin};

use history::{Event, Stamp};
use resource::{Arm, ClientError, HoldId, Key, OpId, ReadAnswer, Token, Version, WriteAnswer};

/// Where events go.
pub trait Journal: Send + Sync {
    /// The run's clock now.
    fn now(&self) -> Stamp;
    /// Stamps `event` and writes it; when this returns it is written out.
    fn record(&self, event: Event) -> Stamp;
    /// Writes `event` with a stamp that was taken before. Nothing may be awaited between the two: a process's stamps never go back.
    fn record_at(&self, at: Stamp, event: Event);
}

/// An access on its way.
pub type Access<'a, T> = Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send + 'a>>;

/// Who accesses what.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The protected key.
    pub key: Key,
    /// Under which hold.
    pub hold: HoldId,
    /// Which operation of it.
    pub op: OpId,
    /// With which token.
    pub token: Option<Token>,
}

/// The protected resource.
pub trait Resource: Send + Sync {
    /// Reads all arms, and registers the token where reads do that.
    fn read<'a>(&'a self, caller: &Caller) -> Access<'a, ReadAnswer>;
    /// Reads all arms without a hold and without a token: what is left in the end.
    fn look<'a>(&'a self, key: &Key) -> Access<'a, ReadAnswer>;
    /// Prepares a write of all arms. Its bytes leave when the access is first polled, and that is the first thing it does.
    fn write<'a>(&'a self, caller: &Caller, values: &BTreeMap<Arm, (Version, String)>) -> Access<'a, WriteAnswer>;
}

impl Resource for resource::Client {
    fn read<'a>(&'a self, caller: &Caller) -> Access<'a, ReadAnswer> {
        let Caller { key, hold, op, token } = caller.clone();
        Box::pin(async move { resource::Client::read(self, &key, token, Some(hold), Some(op)).await })
    }

    fn look<'a>(&'a self, key: &Key) -> Access<'a, ReadAnswer> {
        let key = key.clone();
        Box::pin(async move { resource::Client::read(self, &key, None, None, None).await })
    }

    fn write<'a>(&'a self, caller: &Caller, values: &BTreeMap<Arm, (Version, String)>) -> Access<'a, WriteAnswer> {
        match self.prepare_write(&caller.key, caller.token, Some(caller.hold), Some(caller.op), values) {
            Ok(prepared) => Box::pin(prepared.send()),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}
