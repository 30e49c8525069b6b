//! Locks that are wrong on purpose: a checker that does not catch each of them is worth nothing.
//!
//! Each is the correct client with one thing changed. They are reached by name only: [`BUGGY`] says what each of them does, and on which
//! backends. What a bug changes in the algorithm is a method of `Flaw`, asked for by [`Redlock`] in one place each; what can be done
//! around the algorithm is done around it: to a node's answers in `nodes`, to a hold's owner and token in `holds`.

mod holds;
mod nodes;

use std::{borrow::Cow, sync::Arc, time::Duration};

use self::holds::Bent;
use crate::{
    hold::{Failure, NodeAnswer},
    ports::{Clock, Lock, Node, Round, Step},
    redlock::{Redlock, Tokens},
    round::{Asked, Decision},
    validity,
};

pub(crate) use self::holds::WallClock;

/// A planted bug.
#[derive(Debug, Clone, Copy)]
pub struct Bug {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The backends on which it makes a difference. The first is the one that is meant where none is named.
    pub backends: &'static [&'static str],
    /// The tokens with which it makes a difference.
    pub tokens: &'static [Tokens],
    flaw: Flaw,
}

/// What is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    ForgetsNx,
    NoLease,
    NoValidity,
    ValidityFromAnswer,
    ValidityBeforeWriteBack,
    WallClock,
    HalfMajority,
    CountsLateAnswers,
    OneOwner,
    ReleaseInTwoSteps,
    ReleaseUnchecked,
    UndoUnchecked,
    UndoesGrantedOnly,
    RenewsWithOne,
    RenewsAnyOwner,
    RenewsExpired,
    RenewalShortens,
    IgnoresFailedRenewal,
    WritesBackWithOne,
    WriteBackAnyOwner,
    WriteBackLowers,
    TokenBeforeNx,
    LocalTokens,
    WallTokens,
    NarrowTokens,
    DropsCounters,
}

const REDIS: &[&str] = &["redis"];
const REDLOCK: &[&str] = &["redlock"];
const REDIS_FIRST: &[&str] = &["redis", "redlock"];
const REDLOCK_FIRST: &[&str] = &["redlock", "redis"];

const ANY: &[Tokens] = &[Tokens::None, Tokens::MajorityMax, Tokens::TwoPhase];
const COUNTED: &[Tokens] = &[Tokens::MajorityMax, Tokens::TwoPhase];
const TWO_PHASE: &[Tokens] = &[Tokens::TwoPhase];

const fn bug(
    name: &'static str,
    flaw: Flaw,
    backends: &'static [&'static str],
    tokens: &'static [Tokens],
    about: &'static str,
) -> Bug {
    Bug { name, about, backends, tokens, flaw }
}

/// The planted bugs of the locks on Redis.
#[rustfmt::skip]
pub const BUGGY: &[Bug] = &[
    // The attempt.
    bug("forgets-nx", Flaw::ForgetsNx, REDIS_FIRST, ANY, "sets the key although somebody else holds it: SET without NX"),
    bug("no-lease", Flaw::NoLease, REDIS_FIRST, ANY, "sets a key that never runs out: SET NX without PX"),
    bug("half-majority", Flaw::HalfMajority, REDLOCK, ANY, "takes n/2 nodes for a majority of n"),
    bug("counts-late-answers", Flaw::CountsLateAnswers, REDIS_FIRST, ANY, "takes the answer that an earlier attempt no longer waited for as the answer to this one"),
    bug("one-owner", Flaw::OneOwner, REDIS_FIRST, ANY, "gives all attempts of a process one owner value"),
    // Its validity.
    bug("no-validity", Flaw::NoValidity, REDIS_FIRST, ANY, "claims the hold however late the answer is read: no validity check"),
    bug("validity-from-answer", Flaw::ValidityFromAnswer, REDIS_FIRST, ANY, "counts the lease from the reading of the answers, not from the sending"),
    bug("validity-before-write-back", Flaw::ValidityBeforeWriteBack, REDLOCK, TWO_PHASE, "does not look at the validity again after the write-back"),
    bug("wall-clock", Flaw::WallClock, REDIS_FIRST, ANY, "measures by the wall clock how much of the lease the answers have taken"),
    // Release and undo.
    bug("release-in-two-steps", Flaw::ReleaseInTwoSteps, REDIS, ANY, "releases by GET and then DEL: the key may change hands in between"),
    bug("release-unchecked", Flaw::ReleaseUnchecked, REDIS_FIRST, ANY, "releases the key whoever owns it"),
    bug("undo-unchecked", Flaw::UndoUnchecked, REDLOCK_FIRST, ANY, "undoes a failed attempt by removing the key whoever owns it"),
    bug("undoes-granted-only", Flaw::UndoesGrantedOnly, REDLOCK_FIRST, ANY, "undoes a failed attempt only on nodes that are known to have granted it"),
    // Renewal.
    bug("renews-with-one", Flaw::RenewsWithOne, REDLOCK, ANY, "counts a renewal that a single node did"),
    bug("renews-any-owner", Flaw::RenewsAnyOwner, REDIS_FIRST, ANY, "renews the key whoever owns it"),
    bug("renews-expired", Flaw::RenewsExpired, REDIS_FIRST, ANY, "brings a hold back that has lapsed: extends the key or sets it again, and does not look at the clock first"),
    bug("renewal-shortens", Flaw::RenewalShortens, REDIS_FIRST, ANY, "sets the lease of a renewal although more is left, and goes on believing in what was left"),
    bug("ignores-failed-renewal", Flaw::IgnoresFailedRenewal, REDIS_FIRST, ANY, "takes every renewal for done, refused and unanswered ones too"),
    // Tokens.
    bug("writes-back-with-one", Flaw::WritesBackWithOne, REDLOCK, TWO_PHASE, "counts a write-back that a single node did"),
    bug("write-back-any-owner", Flaw::WriteBackAnyOwner, REDLOCK, TWO_PHASE, "writes the token back without the condition on the owner"),
    bug("write-back-lowers", Flaw::WriteBackLowers, REDLOCK, TWO_PHASE, "writes the token back without the condition on the counter"),
    bug("token-before-nx", Flaw::TokenBeforeNx, REDIS, COUNTED, "takes the token before it has the key: INCR, then SET NX"),
    bug("local-tokens", Flaw::LocalTokens, REDIS_FIRST, COUNTED, "takes tokens from a counter of the client's process"),
    bug("wall-tokens", Flaw::WallTokens, REDIS_FIRST, COUNTED, "takes tokens from the wall clock, in milliseconds"),
    bug("narrow-tokens", Flaw::NarrowTokens, REDIS_FIRST, COUNTED, "keeps tokens in 32 bits, in a lock that has been used 2^32 - 21 times"),
    bug("drops-counters", Flaw::DropsCounters, REDLOCK_FIRST, COUNTED, "a bug of simulated nodes: one that starts again has its keys and has lost its counters"),
];

/// Why there is no such lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBuggy {
    /// No bug has this name.
    #[error("`{name}` is no planted bug; there are: {}", BUGGY.iter().map(|bug| bug.name).collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The bug makes no difference on this backend.
    #[error("the planted bug `{bug}` changes nothing on `{backend}`; it is one of: {}", fits.join(", "))]
    Backend {
        /// The bug.
        bug: &'static str,
        /// The backend that was asked for.
        backend: String,
        /// Where it makes a difference.
        fits: &'static [&'static str],
    },
    /// The bug makes no difference with these tokens.
    #[error("the planted bug `{bug}` changes nothing with tokens {tokens:?}; it needs one of: {fits:?}")]
    Tokens {
        /// The bug.
        bug: &'static str,
        /// The tokens that were asked for.
        tokens: Tokens,
        /// With which it makes a difference.
        fits: &'static [Tokens],
    },
}

impl Bug {
    /// The bug of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<&'static Bug, NotBuggy> {
        BUGGY.iter().find(|bug| bug.name == name).ok_or_else(|| NotBuggy::Unknown { name: name.to_owned() })
    }

    /// The backend that is meant: this one if the bug makes a difference on it, or where none is named the one of its own.
    ///
    /// # Errors
    /// It makes none on this backend.
    pub fn backend(&self, named: Option<&str>) -> Result<&'static str, NotBuggy> {
        let Some(backend) = named else { return Ok(self.backends[0]) };
        let Bug { name: bug, backends: fits, .. } = *self;
        let unfit = || NotBuggy::Backend { bug, backend: backend.to_owned(), fits };
        fits.iter().copied().find(|fit| *fit == backend).ok_or_else(unfit)
    }
}

/// The lock with the bug of this name: `redis` on one node, `redlock` on several.
///
/// # Errors
/// No bug has this name, or it makes no difference here.
///
/// # Panics
/// If there are no nodes.
pub fn buggy(
    name: &str,
    nodes: Vec<Arc<dyn Node>>,
    clock: Arc<dyn Clock>,
    tokens: Tokens,
) -> Result<Arc<dyn Lock>, NotBuggy> {
    let bug = Bug::named(name)?;
    bug.backend(Some(if nodes.len() == 1 { "redis" } else { "redlock" }))?;
    if !bug.tokens.contains(&tokens) {
        return Err(NotBuggy::Tokens { bug: bug.name, tokens, fits: bug.tokens });
    }
    let counter = (bug.flaw == Flaw::TokenBeforeNx).then(|| nodes[0].clone());
    let nodes = nodes.into_iter().map(|node| nodes::bent(bug.flaw, node)).collect();
    let lock = Redlock::new(nodes, clock.clone(), tokens).with_flaw(bug.flaw);
    Ok(Arc::new(Bent::new(lock, bug.flaw, clock, tokens, counter)))
}

/// What the algorithm asks a flaw.
impl Flaw {
    /// What is sent in `round` where the correct client sends `step`.
    pub(crate) fn step(self, round: Round, step: Step) -> Step {
        match (self, round, step) {
            (Flaw::ForgetsNx, _, Step::Acquire(key, owner, lease) | Step::AcquireUncounted(key, owner, lease)) => {
                Step::Overwrite(key, owner, lease)
            }
            (Flaw::NoLease, _, Step::Acquire(key, owner, _) | Step::AcquireUncounted(key, owner, _)) => {
                Step::AcquireForever(key, owner)
            }
            // The counter was asked before.
            (Flaw::TokenBeforeNx, _, Step::Acquire(key, owner, lease)) => Step::AcquireUncounted(key, owner, lease),
            (Flaw::ReleaseUnchecked, Round::Release, Step::Release(key, _))
            | (Flaw::UndoUnchecked, Round::Undo, Step::Release(key, _)) => Step::RemoveAny(key),
            (Flaw::RenewsAnyOwner, _, Step::Extend(key, _, lease)) => Step::ExtendAny(key, lease),
            (Flaw::RenewsExpired, _, Step::Extend(key, owner, lease)) => Step::ExtendOrSet(key, owner, lease),
            (Flaw::RenewalShortens, _, Step::Extend(key, owner, lease)) => Step::SetExpiry(key, owner, lease),
            (Flaw::WriteBackAnyOwner, _, Step::RaiseFence(key, _, token)) => Step::RaiseAny(key, token),
            (Flaw::WriteBackLowers, _, Step::RaiseFence(key, owner, token)) => Step::SetFence(key, owner, token),
            (_, _, step) => step,
        }
    }

    /// How many of so many nodes are enough in `round`.
    pub(crate) fn majority(self, round: Round, nodes: usize) -> usize {
        match (self, round) {
            (Flaw::HalfMajority, _) => nodes / 2,
            (Flaw::RenewsWithOne, Round::Renew) | (Flaw::WritesBackWithOne, Round::WriteBack) => 1,
            _ => validity::majority(nodes),
        }
    }

    /// What `round` comes to where it was rightly decided so.
    pub(crate) fn decision(self, round: Round, decided: Decision) -> Decision {
        if self == Flaw::IgnoresFailedRenewal && round == Round::Renew { Decision::Majority } else { decided }
    }

    /// From when on the lease that was asked for is counted.
    pub(crate) fn counted_from(self, asked: &Asked, clock: &dyn Clock) -> Duration {
        match self {
            Flaw::ValidityFromAnswer => clock.now(),
            // It was stamped by the wall clock; what has passed since is taken from there.
            Flaw::WallClock => clock.now().saturating_sub(clock.wall().saturating_sub(asked.sent)),
            _ => asked.sent,
        }
    }

    /// Whether the look at the clock after `round` is left out.
    pub(crate) fn skips_validity(self, round: Round) -> bool {
        self == Flaw::NoValidity || (self == Flaw::ValidityBeforeWriteBack && round == Round::WriteBack)
    }

    /// The nodes to which the undo goes after `failure`.
    pub(crate) fn undoes_on<'a>(self, nodes: &'a [Arc<dyn Node>], failure: &Failure) -> Cow<'a, [Arc<dyn Node>]> {
        let granted = |answer| matches!(answer, NodeAnswer::Granted | NodeAnswer::Late);
        match self {
            Flaw::UndoesGrantedOnly => (nodes.iter().zip(&failure.answers))
                .map(|(node, (_, answer))| if granted(*answer) { node.clone() } else { nodes::left_out(node) })
                .collect(),
            _ => nodes.into(),
        }
    }
}
