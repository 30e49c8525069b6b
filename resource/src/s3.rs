//! The resource in one object of an object store: this process decides by the rule, over the state that it has just
//! read, and the decision happens exactly if a conditional put replaces that state.
//!
//! An object store cannot compare a token. Its only condition is the version of an object. So each request is:
//!
//! 1. A read of the object `state`, with its ETag.
//! 2. The rule decides. [`Moment::Decided`] writes the admission: its stamp is never too late, because nothing has been
//!    sent yet.
//! 3. A put of the new state with `If-Match: <ETag>`. The answer leaves when the store has acknowledged the put.
//!
//! A kill between 2 and 3 leaves an admission that never became durable, as with the resource's own store. The next
//! process first replaces the object by one with a larger number of openings. From then on the condition of a put that
//! the killed process has sent cannot hold. The number of the last decision in the replaced object is the last durable
//! one, and the checker undoes the admissions above it.
//!
//! # A lost answer
//!
//! The process reads the object again. If the object has the number of the decision, the put was applied. If the object
//! is the one from which the decision was made, the same put is sent again: all copies have one content and one
//! condition, and the first one that is applied makes the condition of the others false. Nobody else writes the object;
//! the process stops if it finds anything else.
//!
//! # Operations that arrive again
//!
//! The object has only the last operation. Before the next decision, this operation gets an object of its own, in which
//! a later process finds it. The state would otherwise grow with each operation.

mod bucket;
mod content;
mod plain_http;

use std::collections::BTreeMap;
use std::time::Duration;

use history::{HoldId, OpId};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use self::bucket::{Bucket, Condition, ETag, Put};
use self::content::{Content, STATE, operation_name};
use crate::admission::Admission;
use crate::asked::{Asked, Asker, Failure, Opened};
use crate::decide::{DecidedOperation, Refusal, check};
use crate::moment::{Moment, Observer, Undecided, WallClock, read_clock};
use crate::policy::Policy;
use crate::request::Request;
use crate::store::StoreError;

/// The time from a lost answer to the next request.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest time until the server of a new run answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The most copies of one put whose condition did not hold, while the object is still the one of the condition. A store
/// that goes on so does not compare the tags that it gives.
const REFUSALS_MAX: u32 = 100;

/// Opens the object in the store at `address` (`host:port`), and starts the task that asks the store.
pub(crate) async fn open(
    address: String,
    policy: Policy,
    clock: WallClock,
    observer: Observer,
) -> Result<Opened, StoreError> {
    let failed = |what: String| StoreError::S3 { address: address.clone(), what };
    let bucket = Bucket::at(&address).map_err(|error| failed(error.to_string()))?;
    let until = Instant::now() + START_TIMEOUT;
    let opened = loop {
        match first_put(&bucket, &policy).await {
            Ok(Some(opened)) => break opened,
            Err(Failure::Wrong(what)) => return Err(failed(what)),
            Err(Failure::Lost(what)) if Instant::now() >= until => return Err(failed(what)),
            Ok(None) if Instant::now() >= until => return Err(failed("other clients write the object".to_owned())),
            Ok(None) | Err(Failure::Lost(_)) => sleep(RETRY_DELAY).await,
        }
    };
    let (asker, requests) = Asker::new();
    let (ended, end) = oneshot::channel();
    let (opening, durable) = (opened.opening, opened.durable);
    let mut asking = Asking { bucket, policy, clock, observer, opening, kept: None, formers: BTreeMap::new() };
    tokio::spawn(async move {
        let served = asking.serve(requests).await;
        // Nobody waits for the end after a shutdown.
        let _ = ended.send(served.map_err(|what| StoreError::S3 { address, what }));
    });
    Ok(Opened { asker, durable, end })
}

/// Creates the object, or replaces it by the next opening. Returns none if another put came first, perhaps one of an
/// earlier process.
async fn first_put(bucket: &Bucket, policy: &Policy) -> Result<Option<Content>, Failure> {
    let (content, condition) = match bucket.get(STATE).await? {
        None => {
            bucket.create().await?;
            (Content::new(policy), Condition::Missing)
        }
        Some((bytes, tag)) => {
            let found: Content = read(&bytes)?;
            let asked = policy.to_string();
            if found.policy != asked {
                let stored = found.policy;
                let problem = "use the same policy, or an empty store";
                return Err(Failure::Wrong(format!(
                    "the object was written with the policy '{stored}', and is opened with '{asked}': {problem}"
                )));
            }
            (found.reopened(), Condition::Is(tag))
        }
    };
    Ok(match bucket.put(STATE, written(&content)?, &condition).await? {
        Put::Done => Some(content),
        Put::Refused => None,
    })
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::Wrong(format!("an object cannot be read: {error}")))
}

fn written(content: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(content).map_err(|error| Failure::Wrong(format!("a state cannot be written: {error}")))
}

/// Asks the store.
struct Asking {
    bucket: Bucket,
    policy: Policy,
    clock: WallClock,
    observer: Observer,
    /// The number of this process's opening.
    opening: u64,
    /// The operation that got its own object last.
    kept: Option<(HoldId, OpId)>,
    /// The operations that this process has decided or found.
    formers: BTreeMap<(HoldId, OpId), DecidedOperation>,
}

impl Asking {
    /// Serves until all connections are gone, or until nothing can be decided any more; the error says why.
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

    async fn decide(&mut self, request: &mut Request) -> Result<Result<Admission, Refusal>, String> {
        let (before, tag) = self.state().await?;
        self.keep_latest(&before).await?;
        let former = self.former(request, &before).await?;
        read_clock(self.clock, request);
        let (admission, after) = match before.decide(&self.policy, request, former) {
            Ok(decided) => decided,
            Err(refusal) => return Ok(Err(refusal)),
        };
        (self.observer)(Moment::Decided(&admission));
        let Some(after) = after else { return Ok(Ok(admission)) };
        self.replace(&tag, &after).await?;
        if let Some((id, operation)) = after.latest_operation() {
            self.formers.insert(id, operation.clone());
        }
        Ok(Ok(admission))
    }

    /// Reads the object until the store answers.
    async fn state(&mut self) -> Result<(Content, ETag), String> {
        let bucket = &self.bucket;
        let Some((bytes, tag)) = until_answered("a read", || bucket.get(STATE)).await? else {
            return Err("the object with the state is gone".to_owned());
        };
        let content: Content = said(read(&bytes))?;
        if content.opening != self.opening {
            return Err("another process has opened the object".to_owned());
        }
        Ok((content, tag))
    }

    /// Gives the last operation an object of its own, once.
    async fn keep_latest(&mut self, content: &Content) -> Result<(), String> {
        let Some((id, operation)) = content.latest_operation() else { return Ok(()) };
        if self.kept != Some(id) {
            let (name, bytes) = (operation_name(id), said(written(operation))?);
            let bucket = &self.bucket;
            let put = || bucket.put(&name, bytes.clone(), &Condition::Always);
            until_answered("a put", put).await?;
            self.kept = Some(id);
        }
        Ok(())
    }

    /// Returns the operation of `request`, if it has been decided. An earlier process may have decided it.
    async fn former(&mut self, request: &Request, content: &Content) -> Result<Option<DecidedOperation>, String> {
        let Some(id) = request.hold.zip(request.op) else { return Ok(None) };
        if let Some(former) = self.formers.get(&id) {
            return Ok(Some(former.clone()));
        }
        if content.durable.is_none() {
            return Ok(None);
        }
        let name = operation_name(id);
        let bucket = &self.bucket;
        let found = until_answered("a read", || bucket.get(&name)).await?;
        let former: Option<DecidedOperation> = said(found.map(|(bytes, _)| read(&bytes)).transpose())?;
        if let Some(former) = &former {
            self.formers.insert(id, former.clone());
        }
        Ok(former)
    }

    /// Replaces the object of `tag` by `after`, and returns when the store has `after`.
    async fn replace(&mut self, tag: &ETag, after: &Content) -> Result<(), String> {
        let bytes = said(written(after))?;
        let mut refusals = 0;
        loop {
            match self.bucket.put(STATE, bytes.clone(), &Condition::Is(tag.clone())).await {
                Ok(Put::Done) => return Ok(()),
                Ok(Put::Refused) => refusals += 1,
                Err(Failure::Wrong(what)) => return Err(what),
                Err(Failure::Lost(why)) => {
                    tracing::warn!(why, "the object store did not answer a put");
                    sleep(RETRY_DELAY).await;
                }
            }
            let (found, now) = self.state().await?;
            if found.last == after.last {
                return Ok(());
            }
            if now != *tag {
                return Err(format!("another client wrote the object: its last number is {}", found.last));
            }
            if refusals == REFUSALS_MAX {
                return Err(format!("{refusals} puts on condition were refused, although the object has the tag"));
            }
        }
    }
}

/// Repeats a request that may be repeated, until the store answers.
async fn until_answered<T, F: Future<Output = Result<T, Failure>>>(
    what: &str,
    request: impl Fn() -> F,
) -> Result<T, String> {
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(Failure::Wrong(what)) => return Err(what),
            Err(Failure::Lost(why)) => {
                tracing::warn!(why, "the object store did not answer {what}");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

fn said<T>(result: Result<T, Failure>) -> Result<T, String> {
    result.map_err(|failure| match failure {
        Failure::Lost(what) | Failure::Wrong(what) => what,
    })
}
