//! Planted bugs: lock clients that are wrong on purpose, to test the checker with. Only with the feature `planted`.
//!
//! Each planted bug is a correct client with one thing changed, and one row in [`PLANTED_BUGS`]:
//!
//! | the change | defined in |
//! | --- | --- |
//! | one decision of [`Redlock`](crate::Redlock) | `planted/redlock.rs` |
//! | the use of one node | `planted/nodes.rs` |
//! | the owner or the token of a hold | `planted/holds.rs` |
//! | one decision of the queue lock, or the use of its store | `planted/queue.rs` |
//! | the reentrant lock around a correct client | `planted/reentry.rs` |
//! | the way in which a client of the queue lock waits | `planted/requeue.rs` |
//! | the steps and requests that only planted bugs send | `planted/steps.rs`, `scripts.rs`, `key_state.rs` |

mod holds;
mod key_state;
mod nodes;
mod queue;
mod redlock;
mod reentry;
mod requeue;
pub(crate) mod scripts;
pub(crate) mod steps;

use std::sync::Arc;

pub use self::steps::{PlantedOp, PlantedStep};
use self::{
    holds::{
        LocalTokens, NarrowTokens, OneOwner, ReleasesUnrenewed, StampsLate, WallTokens, reenters, token_before_nx,
        with_holds,
    },
    nodes::{CountsLateAnswers, ReleaseInTwoSteps, over_nodes},
    queue::{
        KeepAliveZero, LostWakeUp, NoConfirm, NoSecondLook, ReaderPassesWriter, ReleaseByName, SkipsIntention,
        WeakIntention, WriterIgnoresReaders, WrongPredecessor, over_store, queue_deciding,
    },
    redlock::{
        AsIntended, ForgetsNx, HalfMajority, IgnoresFailedRenewal, LeaseInSeconds, NoLease, NoValidity,
        ReleaseUnchecked, RenewalShortens, RenewsAnyOwner, RenewsExpired, RenewsWithOne, UndoUnchecked,
        UndoesGrantedOnly, ValidityBeforeWriteBack, ValidityFromAnswer, WallClock, WriteBackAnyOwner, WriteBackLowers,
        WritesBackWithOne, deciding,
    },
    reentry::{InnerReleaseFrees, Reenter, ReentryRenews, correctly, reentering},
    requeue::asks_again,
};
use crate::{
    clients::{Build, Client},
    ports::{Clock, Lock},
    servers::{CannotBuild, Servers, TokenSource, listed},
};

/// A planted bug of a lock client.
#[derive(Debug, Clone, Copy)]
pub struct PlantedBug {
    /// The bug's name.
    pub name: &'static str,
    /// The bug's behaviour, in one line.
    pub about: &'static str,
    /// The clients in which the bug makes a difference. The first is the default.
    pub backends: &'static [&'static str],
    /// The token sources with which the bug makes a difference.
    pub tokens: &'static [TokenSource],
    build: Build,
    reenter: Reenter,
}

/// The bug of a simulated node, whose client is correct.
pub const DROPS_COUNTERS: &str = "drops-counters";

const REDIS: &[&str] = &["redis"];
const MEMORY_FIRST: &[&str] = &["memory", "redis"];
const REDLOCK: &[&str] = &["redlock"];
const REDIS_FIRST: &[&str] = &["redis", "redlock"];
const REDLOCK_FIRST: &[&str] = &["redlock", "redis"];
const ETCD: &[&str] = &["etcd"];

const ANY: &[TokenSource] = &[
    TokenSource::None,
    TokenSource::Counter,
    TokenSource::MajorityMax,
    TokenSource::TwoPhase,
    TokenSource::TwoPhaseFast,
];
const COUNTED: &[TokenSource] =
    &[TokenSource::Counter, TokenSource::MajorityMax, TokenSource::TwoPhase, TokenSource::TwoPhaseFast];
const TWO_PHASE: &[TokenSource] = &[TokenSource::TwoPhase, TokenSource::TwoPhaseFast];
const REVISION: &[TokenSource] = &[TokenSource::Revision];

const fn bug(
    name: &'static str,
    build: Build,
    backends: &'static [&'static str],
    tokens: &'static [TokenSource],
    about: &'static str,
) -> PlantedBug {
    PlantedBug { name, about, backends, tokens, build, reenter: correctly }
}

/// A bug of the reentrant lock around a correct client.
const fn of_reentry(name: &'static str, reenter: Reenter, about: &'static str) -> PlantedBug {
    PlantedBug { name, about, backends: REDIS_FIRST, tokens: ANY, build: deciding::<AsIntended>, reenter }
}

/// All planted bugs of lock clients.
#[rustfmt::skip]
pub const PLANTED_BUGS: &[PlantedBug] = &[
    // The attempt.
    bug("forgets-nx", deciding::<ForgetsNx>, REDIS_FIRST, ANY,
        "sets the key although another client holds it: SET without NX"),
    bug("no-lease", deciding::<NoLease>, REDIS_FIRST, ANY,
        "sets a key that never expires: SET NX without PX"),
    bug("lease-in-seconds", deciding::<LeaseInSeconds>, REDIS_FIRST, ANY,
        "asks for its lease in whole seconds, and believes in the rest of it too"),
    bug("half-majority", deciding::<HalfMajority>, REDLOCK, ANY,
        "takes n/2 nodes for a majority of n"),
    bug("counts-late-answers", over_nodes::<CountsLateAnswers>, REDIS_FIRST, ANY,
        "counts the late answer to an earlier attempt as the answer to the current attempt"),
    bug("one-owner", with_holds::<OneOwner>, REDIS_FIRST, ANY,
        "gives all attempts of a process one owner value"),
    bug("reenters", reenters, MEMORY_FIRST, COUNTED,
        "gives all attempts of a process one name, to which the server grants a key that the name has already"),
    bug("stamps-late", with_holds::<StampsLate>, REDIS_FIRST, ANY,
        "announces an attempt only when its answers have been read: the recorded promise is too long"),
    // The validity of its promise.
    bug("no-validity", deciding::<NoValidity>, REDIS_FIRST, ANY,
        "claims the hold however late it reads the answers: no validity check"),
    bug("validity-from-answer", deciding::<ValidityFromAnswer>, REDIS_FIRST, ANY,
        "counts the lease from the reading of the answers instead of the sending of the requests"),
    bug("validity-before-write-back", deciding::<ValidityBeforeWriteBack>, REDLOCK, TWO_PHASE,
        "does not check the validity again after the write-back"),
    bug("wall-clock", deciding::<WallClock>, REDIS_FIRST, ANY,
        "measures by the wall clock how much of the lease the answers have taken"),
    // Release and undo.
    bug("release-in-two-steps", over_nodes::<ReleaseInTwoSteps>, REDIS, ANY,
        "releases by GET and then DEL: the key may change hands in between"),
    bug("release-unchecked", deciding::<ReleaseUnchecked>, REDIS_FIRST, ANY,
        "releases the key without a check of its owner"),
    bug("undo-unchecked", deciding::<UndoUnchecked>, REDLOCK_FIRST, ANY,
        "undoes a failed attempt by removing the key without a check of its owner"),
    bug("undoes-granted-only", deciding::<UndoesGrantedOnly>, REDLOCK_FIRST, ANY,
        "undoes a failed attempt only on the nodes that are known to have granted it"),
    // Renewal.
    bug("renews-with-one", deciding::<RenewsWithOne>, REDLOCK, ANY,
        "counts a renewal that a single node did"),
    bug("renews-any-owner", deciding::<RenewsAnyOwner>, REDIS_FIRST, ANY,
        "renews the key without a check of its owner"),
    bug("renews-expired", deciding::<RenewsExpired>, REDIS_FIRST, ANY,
        "renews a hold that has lapsed: extends the key or sets it again, without a look at the clock"),
    bug("renewal-shortens", deciding::<RenewalShortens>, REDIS_FIRST, ANY,
        "sets the key's lease to that of the renewal although more time is left, and believes in the longer time"),
    bug("ignores-failed-renewal", deciding::<IgnoresFailedRenewal>, REDIS_FIRST, ANY,
        "takes every renewal for done, also a refused or unanswered one"),
    bug("releases-unrenewed", with_holds::<ReleasesUnrenewed>, REDIS_FIRST, ANY,
        "releases the key when a renewal fails, and lets its client go on acting"),
    // Tokens.
    bug("writes-back-with-one", deciding::<WritesBackWithOne>, REDLOCK, TWO_PHASE,
        "counts a write-back that a single node did"),
    bug("write-back-any-owner", deciding::<WriteBackAnyOwner>, REDLOCK, TWO_PHASE,
        "writes the token back without the condition on the owner"),
    bug("write-back-lowers", deciding::<WriteBackLowers>, REDLOCK, TWO_PHASE,
        "writes the token back without the condition on the counter"),
    bug("token-before-nx", token_before_nx, REDIS, COUNTED,
        "takes the token before it has the key: INCR, then SET NX"),
    bug("local-tokens", with_holds::<LocalTokens>, REDIS_FIRST, COUNTED,
        "takes tokens from a counter of the client's process"),
    bug("wall-tokens", with_holds::<WallTokens>, REDIS_FIRST, COUNTED,
        "takes tokens from the wall clock, in milliseconds"),
    bug("narrow-tokens", with_holds::<NarrowTokens>, REDIS_FIRST, COUNTED,
        "keeps tokens in 32 bits, in a lock that has been used 2^32 - 21 times"),
    bug(DROPS_COUNTERS, deciding::<AsIntended>, REDLOCK_FIRST, COUNTED,
        "a bug of simulated nodes: a node that restarts has its keys and has lost its counters"),
    // Queue locks. The confirming transaction would refuse most of these claims: a bug that it catches is planted
    // together with leaving the transaction out.
    bug("no-confirm", queue_deciding::<NoConfirm>, ETCD, REVISION,
        "is granted although its lease ran out in the queue: it relies on the revision of its key, which is gone"),
    bug("lost-wake-up", over_store::<LostWakeUp>, ETCD, REVISION,
        "waits for ever if its predecessor went between looking and listening: it hears only of later ends"),
    bug("wrong-predecessor", over_store::<WrongPredecessor>, ETCD, REVISION,
        "waits for the predecessor of its predecessor, and takes the end of that one for its turn"),
    bug("no-second-look", queue_deciding::<NoSecondLook>, ETCD, REVISION,
        "takes the end of its predecessor for its turn, although the predecessor may only have stopped waiting"),
    bug("release-by-name", queue_deciding::<ReleaseByName>, ETCD, REVISION,
        "releases by the name of the queue instead of the revision of its key: it removes every client's key"),
    bug("keep-alive-zero", over_store::<KeepAliveZero>, ETCD, REVISION,
        "takes a keep-alive for a success whose answer has a time of zero: there is no lease"),
    bug("writer-ignores-readers", queue_deciding::<WriterIgnoresReaders>, ETCD, REVISION,
        "takes its turn as a writer although older readers hold the key: it waits for writers only"),
    bug("reader-passes-writer", over_store::<ReaderPassesWriter>, ETCD, REVISION,
        "takes its turn as a reader although an older writer waits in the queue, and one before it holds the key"),
    bug("skips-intention", queue_deciding::<SkipsIntention>, ETCD, REVISION,
        "takes no intention on the parent before it writes a child: the holder of the parent does not exclude it"),
    bug("weak-intention", queue_deciding::<WeakIntention>, ETCD, REVISION,
        "takes the intention to read on the parent before it writes a child: a reader of the parent shares with it"),
    bug("asks-again", asks_again, ETCD, REVISION,
        "leaves the queue when it has waited for 120 ms, and asks again behind all others: a starved client"),
    // The reentrant lock.
    of_reentry("inner-release-frees", reentering::<InnerReleaseFrees>,
        "frees the key when its client releases an inner acquisition, with the outer one still open"),
    of_reentry("reentry-renews", reentering::<ReentryRenews>,
        "believes in a new lease when its client acquires the key again, although no request was sent"),
];

/// The reason why a bug cannot be planted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotPlant {
    /// No bug has this name.
    #[error("`{name}` is no planted bug; there are: {}", names().join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The bug makes no difference in this client.
    #[error("the planted bug `{bug}` changes nothing on `{backend}`; it is one of: {}", fits.join(", "))]
    Backend {
        /// The bug.
        bug: &'static str,
        /// The client that was asked for.
        backend: String,
        /// The clients in which the bug makes a difference.
        fits: &'static [&'static str],
    },
    /// The bug makes no difference with these tokens.
    #[error("the planted bug `{bug}` changes nothing with tokens `{tokens}`; it needs one of: {}", listed(fits))]
    Tokens {
        /// The bug.
        bug: &'static str,
        /// The token source that was asked for.
        tokens: TokenSource,
        /// The token sources with which the bug makes a difference.
        fits: &'static [TokenSource],
    },
    /// The correct client cannot be built either.
    #[error(transparent)]
    Client(#[from] CannotBuild),
}

fn names() -> Vec<&'static str> {
    PLANTED_BUGS.iter().map(|bug| bug.name).collect()
}

impl PlantedBug {
    /// Finds the bug of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<&'static PlantedBug, CannotPlant> {
        let found = PLANTED_BUGS.iter().find(|bug| bug.name == name);
        found.ok_or_else(|| CannotPlant::Unknown { name: name.to_owned() })
    }

    /// The client that this bug is planted in: the given one, or the bug's default.
    ///
    /// # Errors
    /// The bug makes no difference in the given client.
    pub fn backend(&self, given: Option<&str>) -> Result<&'static str, CannotPlant> {
        let Some(backend) = given else { return Ok(self.backends[0]) };
        let PlantedBug { name: bug, backends: fits, .. } = *self;
        let unfit = || CannotPlant::Backend { bug, backend: backend.to_owned(), fits };
        fits.iter().copied().find(|fit| *fit == backend).ok_or_else(unfit)
    }

    /// Makes a lock reentrant for one client, with this bug.
    pub fn reentrant(&self, lock: Arc<dyn Lock>, clock: Arc<dyn Clock>) -> Arc<dyn Lock> {
        (self.reenter)(lock, clock)
    }

    /// Builds `client` with this bug.
    ///
    /// # Errors
    /// The bug makes no difference in this client or with these tokens, or the correct client cannot be built either.
    pub fn build(
        &self,
        client: &Client,
        servers: Servers,
        tokens: TokenSource,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Lock>, CannotPlant> {
        self.backend(Some(client.name))?;
        (client.build)(servers.clone(), tokens, clock.clone())?;
        if !self.tokens.contains(&tokens) {
            return Err(CannotPlant::Tokens { bug: self.name, tokens, fits: self.tokens });
        }
        Ok((self.build)(servers, tokens, clock)?)
    }
}
