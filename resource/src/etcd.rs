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

use etcd_client::{Client, ConnectOptions, Error, Txn};
use history::{Arm, HoldId, OpId, Version};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use self::transaction::{Snapshot, first_use, reading, writing};
use crate::admission::{Admission, ArmOutcome};
use crate::asked::{Asked, Asker, Opened};
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
    let failed = |error: Error| StoreError::Etcd { addresses: addresses.join(", "), what: error.to_string() };
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let options = ConnectOptions::new().with_connect_timeout(ANSWER_TIMEOUT).with_timeout(ANSWER_TIMEOUT);
    let client = Client::connect(&urls, Some(options)).await.map_err(failed)?;
    let mut asking = Asking { client, policy, lock_keys, clock, observer, formers: BTreeMap::new() };
    let until = Instant::now() + START_TIMEOUT;
    while let Err(error) = asking.send(transaction::first()).await {
        if Instant::now() >= until {
            return Err(StoreError::Etcd { addresses: addresses.join(", "), what: error });
        }
        sleep(RETRY_DELAY).await;
    }
    let (asker, requests) = Asker::new();
    let (ended, end) = oneshot::channel();
    tokio::spawn(async move {
        asking.serve(requests).await;
        // Nobody waits for the end after a shutdown.
        let _ = ended.send(Ok(()));
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
    async fn serve(&mut self, mut requests: mpsc::Receiver<Asked>) {
        while let Some(Asked { mut request, answer }) = requests.recv().await {
            let decided = match check(&self.policy, &request) {
                Err(refusal) => Err(refusal),
                Ok(()) => self.decide(&mut request).await,
            };
            // The client may be gone.
            let _ = answer.send(decided.map_err(Undecided::Refused));
        }
    }

    /// Asks until the outcome is known.
    async fn decide(&mut self, request: &mut Request) -> Result<Admission, Refusal> {
        let id = request.hold.zip(request.op);
        if let Some((hold, op)) = id
            && let Some(former) = self.formers.get(&(hold, op))
        {
            if !former.request.is_same(request) {
                return Err(Refusal::OpReused { hold, op });
            }
            let admission = Admission { repeat: true, ..former.admission.clone() };
            (self.observer)(Moment::Decided(&admission));
            return Ok(admission);
        }
        let before = loop {
            let found = self.snapshot(request).await;
            if found.knows_key {
                break found;
            }
            if let Err(error) = self.send(first_use(&self.policy, request)).await {
                tracing::warn!(error, "etcd did not make the records of a key");
                sleep(RETRY_DELAY).await;
            }
        };
        let number = Version(before.last.0 + 1);
        (self.observer)(Moment::Asked);
        // Every copy of the transaction carries this time, and one copy is applied.
        read_clock(self.clock, request);
        let after = loop {
            // A lost answer and a copy that came too late are both answered by the next reading.
            if let Err(error) = self.send(writing(&self.policy, request, &before, number)).await {
                tracing::warn!(error, "etcd did not answer a transaction");
                sleep(RETRY_DELAY).await;
            }
            let found = self.snapshot(request).await;
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
        Ok(admission)
    }

    /// Reads the state of the request's key, until a member answers.
    async fn snapshot(&mut self, request: &Request) -> Snapshot {
        loop {
            let reading = reading(&self.policy, request, (self.lock_keys)(&request.key));
            match self.client_txn(reading).await.and_then(|answer| Snapshot::new(&self.policy, request, &answer)) {
                Ok(snapshot) => return snapshot,
                Err(error) => {
                    tracing::warn!(error, "etcd did not answer a reading");
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    async fn send(&mut self, transaction: Txn) -> Result<(), String> {
        self.client_txn(transaction).await.map(drop)
    }

    async fn client_txn(&mut self, transaction: Txn) -> Result<etcd_client::TxnResponse, String> {
        match timeout(ANSWER_TIMEOUT, self.client.txn(transaction)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(elapsed) => Err(elapsed.to_string()),
        }
    }
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
