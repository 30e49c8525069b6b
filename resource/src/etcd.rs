//! The resource over the etcd cluster that also keeps the lock: one transaction decides each request, and this process
//! writes the admission log.
//!
//! Each arm is a nested transaction with its own condition. The arm `guard` compares the create revision of the hold's
//! own lock key: the token of a hold is this revision, and no other key ever has it. So a holder whose key is gone is
//! refused, without an order of tokens.
//!
//! # The log never lies
//!
//! Requests are sent one after the other. Every transaction replaces the number `n - 1` by `n`, and is applied only if
//! the number is still `n - 1`. So of all copies of a transaction whose answer was lost, exactly one is applied. The
//! outcome is read back: an arm has admitted the write number `n` exactly if its version is `n`. The log entry is
//! stamped before the first copy leaves, and written when the outcome is known.
//!
//! A kill of this process between the two would leave a decision without an entry, so plans with such a fault are
//! refused.

mod transaction;

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, Txn, TxnResponse};
use history::{Arm, HoldId, OpId, Version};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use self::transaction::{Snapshot, first_use, reading, writing};
use crate::admission::{Admission, ArmOutcome};
use crate::asked::{Asked, Asker, Failure, Opened};
use crate::decide::{DecidedOperation, Refusal, check};
use crate::moment::{Moment, Observer, Undecided, WallClock, read_clock};
use crate::policy::Policy;
use crate::request::{Action, Request};
use crate::store::StoreError;

/// The longest wait for one answer. A member may be frozen or cut off; the next request asks another member.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_000);
/// The time from a lost answer to the next request.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest time until the members of a new run answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the prefix of the lock keys of a key.
pub type LockKeys = fn(&history::Key) -> Vec<u8>;

/// Connects to the members at `addresses` (`host:port`), and starts the task that asks them.
pub(crate) async fn open(
    addresses: Vec<String>,
    policy: Policy,
    lock_keys: LockKeys,
    clock: WallClock,
    observer: Observer,
) -> Result<Opened, StoreError> {
    let failed = |what: String| StoreError::Etcd { addresses: addresses.join(", "), what };
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let options = ConnectOptions::new().with_connect_timeout(ANSWER_TIMEOUT).with_timeout(ANSWER_TIMEOUT);
    let client = Client::connect(&urls, Some(options)).await.map_err(|error| failed(error.to_string()))?;
    let mut asking = Asking { client, policy, lock_keys, clock, observer, formers: BTreeMap::new() };
    let until = Instant::now() + START_TIMEOUT;
    loop {
        match asking.send(transaction::first()).await {
            Ok(()) => break,
            Err(Failure::Lost(_)) if Instant::now() < until => sleep(RETRY_DELAY).await,
            Err(Failure::Lost(what) | Failure::Wrong(what)) => return Err(failed(what)),
        }
    }
    let (asker, requests) = Asker::new();
    let (ended, end) = oneshot::channel();
    tokio::spawn(async move {
        let served = asking.serve(requests).await;
        let failed = |what| StoreError::Etcd { addresses: addresses.join(", "), what };
        // Nobody waits for the end after a shutdown.
        let _ = ended.send(served.map_err(failed));
    });
    Ok(Opened { asker, durable: None, end })
}

struct Asking {
    client: Client,
    policy: Policy,
    lock_keys: LockKeys,
    clock: WallClock,
    observer: Observer,
    /// The decided operations. This process is never killed by a plan, so its memory is enough.
    formers: BTreeMap<(HoldId, OpId), DecidedOperation>,
}

impl Asking {
    /// Serves until all connections are gone, or until etcd refuses a transaction; the error says why.
    async fn serve(&mut self, mut requests: mpsc::Receiver<Asked>) -> Result<(), String> {
        while let Some(Asked { mut request, answer }) = requests.recv().await {
            let decided = match check(&self.policy, &request) {
                Err(refusal) => Err(refusal),
                Ok(()) => self.decide(&mut request).await?,
            };
            // The client may be gone.
            let _ = answer.send(decided.map_err(Undecided::Refused));
        }
        Ok(())
    }

    /// Asks until the outcome is known, or until etcd refuses a transaction.
    async fn decide(&mut self, request: &mut Request) -> Result<Result<Admission, Refusal>, String> {
        let id = request.hold.zip(request.op);
        if let Some((hold, op)) = id
            && let Some(former) = self.formers.get(&(hold, op))
        {
            if !former.request.is_same(request) {
                return Ok(Err(Refusal::OpReused { hold, op }));
            }
            let admission = Admission { repeat: true, ..former.admission.clone() };
            (self.observer)(Moment::Decided(&admission));
            return Ok(Ok(admission));
        }
        let before = loop {
            let found = self.snapshot(request).await?;
            if found.knows_key {
                break found;
            }
            lost(self.send(first_use(&self.policy, request)).await, "made no records of a key").await?;
        };
        let number = Version(before.last.0 + 1);
        (self.observer)(Moment::Asked);
        // Every copy of the transaction carries this time, and one copy is applied.
        read_clock(self.clock, request);
        let after = loop {
            // A lost answer and a copy that came too late are both answered by the next reading.
            let sent = self.send(writing(&self.policy, request, &before, number)).await;
            lost(sent, "did not answer a transaction").await?;
            let found = self.snapshot(request).await?;
            if found.last == number {
                break found;
            }
        };
        let outcome = |arm: &Arm| outcome(*arm, request, &before, &after, number);
        let arms = self.policy.arms().iter().map(outcome).collect();
        let admission = Admission::decided(number, request, arms);
        (self.observer)(Moment::Decided(&admission));
        if let Some(id) = id {
            self.formers.insert(id, DecidedOperation { request: request.clone(), admission: admission.clone() });
        }
        Ok(Ok(admission))
    }

    /// Reads the state of the request's key, until a member answers.
    async fn snapshot(&mut self, request: &Request) -> Result<Snapshot, String> {
        loop {
            let reading = reading(&self.policy, request, (self.lock_keys)(&request.key));
            let answer = self.client_txn(reading).await;
            if let Some(answer) = lost(answer, "did not answer a reading").await? {
                return Snapshot::new(&self.policy, request, &answer);
            }
        }
    }

    async fn send(&mut self, transaction: Txn) -> Result<(), Failure> {
        self.client_txn(transaction).await.map(drop)
    }

    async fn client_txn(&mut self, transaction: Txn) -> Result<TxnResponse, Failure> {
        match timeout(ANSWER_TIMEOUT, self.client.txn(transaction)).await {
            Ok(answer) => answer.map_err(failure),
            Err(elapsed) => Err(Failure::Lost(elapsed.to_string())),
        }
    }
}

/// Waits a moment after an answer that was lost, and returns none. A refusal is an error.
async fn lost<T>(answer: Result<T, Failure>, what: &str) -> Result<Option<T>, String> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Failure::Wrong(why)) => Err(why),
        Err(Failure::Lost(why)) => {
            tracing::warn!(why, "etcd {what}");
            sleep(RETRY_DELAY).await;
            Ok(None)
        }
    }
}

/// Tells a definite error from one after which the transaction may have been applied, or may succeed later.
fn failure(error: Error) -> Failure {
    let is_definite = match &error {
        Error::GRpcStatus(status) => match status.code() {
            // No time makes room: this process asks for no compaction.
            Code::ResourceExhausted => status.message().contains("database space exceeded"),
            Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => true,
            _ => false,
        },
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::Utf8Error(_) => true,
        _ => false,
    };
    if is_definite { Failure::Wrong(error.to_string()) } else { Failure::Lost(error.to_string()) }
}

/// Returns the outcome of the request `number` on `arm`, by the states before and after it.
fn outcome(arm: Arm, request: &Request, before: &Snapshot, after: &Snapshot, number: Version) -> ArmOutcome {
    let (was, is) = (&before.arms[&arm], &after.arms[&arm]);
    let base = match &request.action {
        Action::Read => None,
        Action::Write(arms) => arms[&arm].base,
    };
    ArmOutcome {
        arm,
        admitted: request.action == Action::Read || is.version == number,
        seen: was.fence,
        registered: was.fence != is.fence,
        base,
        version: is.version,
        value: is.value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn only_an_error_that_would_come_again_is_definite() {
        for (code, message, is_definite) in [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", true),
            (Code::ResourceExhausted, "etcdserver: too many requests", false),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", true),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", true),
            (Code::Unavailable, "etcdserver: no leader", false),
            (Code::Unavailable, "etcdserver: request timed out", false),
            (Code::DeadlineExceeded, "context deadline exceeded", false),
            (Code::Cancelled, "operation was canceled", false),
            (Code::Unknown, "transport error", false),
            (Code::Internal, "stream ended", false),
        ] {
            let told = failure(Error::from(Status::new(code, message)));
            assert_eq!(matches!(told, Failure::Wrong(_)), is_definite, "{told:?}");
        }
    }
}
