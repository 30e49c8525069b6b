//! Bugs in one decision of Redlock.

use std::{borrow::Cow, sync::Arc, time::Duration};

use super::steps::PlantedStep;
use crate::{
    hold::{Failure, NodeAnswer},
    ports::{Clock, Lock, Node, NodeError, Reply, Round, Step, StepAnswer},
    redlock::{Decisions, Redlock},
    round::RoundOutcome,
    servers::{CannotBuild, Servers, TokenSource},
    validity,
};

/// Builds the lock with the decisions `D`.
pub(super) fn deciding<D: Decisions + Default + 'static>(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    Ok(Arc::new(Redlock::deciding(servers.nodes("redlock")?, clock, tokens, Box::new(D::default()))))
}

/// The correct decisions, for bugs around the algorithm.
#[derive(Default)]
pub(super) struct AsIntended;

impl Decisions for AsIntended {}

/// Decisions that replace one step of the algorithm.
macro_rules! sends_instead {
    ($bug:ident, $($step:pat => $instead:expr),+) => {
        #[derive(Default)]
        pub(super) struct $bug;

        impl Decisions for $bug {
            fn step(&self, round: Round, step: Step) -> Step {
                match (round, step) {
                    $($step => $instead.into(),)+
                    (_, step) => step,
                }
            }
        }
    };
}

sends_instead!(ForgetsNx, (_, Step::Acquire(key, owner, lease) | Step::AcquireUncounted(key, owner, lease)) =>
    PlantedStep::Overwrite(key, owner, lease));
sends_instead!(AcquiresAgain, (_, Step::Acquire(key, owner, lease)) => PlantedStep::AcquireAgain(key, owner, lease));
sends_instead!(NoLease, (_, Step::Acquire(key, owner, _) | Step::AcquireUncounted(key, owner, _)) =>
    PlantedStep::AcquireForever(key, owner));
sends_instead!(LeaseInSeconds,
    (_, Step::Acquire(key, owner, lease)) => Step::Acquire(key, owner, whole_seconds(lease)),
    (_, Step::AcquireUncounted(key, owner, lease)) => Step::AcquireUncounted(key, owner, whole_seconds(lease)),
    (_, Step::Extend(key, owner, lease)) => Step::Extend(key, owner, whole_seconds(lease)));
sends_instead!(TakesNoToken, (_, Step::Acquire(key, owner, lease)) => Step::AcquireUncounted(key, owner, lease));
sends_instead!(ReleaseUnchecked, (Round::Release, Step::Release(key, _)) => PlantedStep::RemoveAny(key));
sends_instead!(UndoUnchecked, (Round::Undo, Step::Release(key, _)) => PlantedStep::RemoveAny(key));
sends_instead!(RenewsAnyOwner, (_, Step::Extend(key, _, lease)) => PlantedStep::ExtendAny(key, lease));
sends_instead!(RenewalShortens, (_, Step::Extend(key, owner, lease)) => PlantedStep::SetExpiry(key, owner, lease));
sends_instead!(WriteBackAnyOwner, (_, Step::RaiseFence(key, _, token)) => PlantedStep::RaiseAny(key, token));
sends_instead!(WriteBackLowers, (_, Step::RaiseFence(key, owner, token)) => PlantedStep::SetFence(key, owner, token));

/// The lease that a client asks for in seconds.
fn whole_seconds(lease: Duration) -> Duration {
    Duration::from_secs(lease.as_secs().max(1))
}

#[derive(Default)]
pub(super) struct HalfMajority;

impl Decisions for HalfMajority {
    fn majority(&self, _round: Round, nodes: usize) -> usize {
        nodes / 2
    }
}

#[derive(Default)]
pub(super) struct RenewsWithOne;

impl Decisions for RenewsWithOne {
    fn majority(&self, round: Round, nodes: usize) -> usize {
        if round == Round::Renew { 1 } else { validity::majority(nodes) }
    }
}

#[derive(Default)]
pub(super) struct WritesBackWithOne;

impl Decisions for WritesBackWithOne {
    fn majority(&self, round: Round, nodes: usize) -> usize {
        if round == Round::WriteBack { 1 } else { validity::majority(nodes) }
    }
}

#[derive(Default)]
pub(super) struct IgnoresFailedRenewal;

impl Decisions for IgnoresFailedRenewal {
    fn outcome(&self, round: Round, outcome: RoundOutcome) -> RoundOutcome {
        if round == Round::Renew { RoundOutcome::Majority } else { outcome }
    }
}

#[derive(Default)]
pub(super) struct ValidityFromAnswer;

impl Decisions for ValidityFromAnswer {
    fn counted_from(&self, _sent: Duration, clock: &dyn Clock) -> Duration {
        clock.now()
    }
}

#[derive(Default)]
pub(super) struct WallClock;

impl Decisions for WallClock {
    fn sent_at(&self, clock: &dyn Clock) -> Duration {
        clock.wall()
    }

    fn counted_from(&self, sent: Duration, clock: &dyn Clock) -> Duration {
        clock.now().saturating_sub(clock.wall().saturating_sub(sent))
    }
}

#[derive(Default)]
pub(super) struct NoValidity;

impl Decisions for NoValidity {
    fn is_valid(&self, _round: Round, _now: Duration, _end: Duration) -> bool {
        true
    }
}

#[derive(Default)]
pub(super) struct ValidityBeforeWriteBack;

impl Decisions for ValidityBeforeWriteBack {
    fn is_valid(&self, round: Round, now: Duration, end: Duration) -> bool {
        round == Round::WriteBack || now < end
    }
}

#[derive(Default)]
pub(super) struct RenewsExpired;

impl Decisions for RenewsExpired {
    fn step(&self, _round: Round, step: Step) -> Step {
        match step {
            Step::Extend(key, owner, lease) => PlantedStep::ExtendOrSet(key, owner, lease).into(),
            step => step,
        }
    }

    fn may_renew(&self, _now: Duration, _end: Duration) -> bool {
        true
    }
}

#[derive(Default)]
pub(super) struct UndoesGrantedOnly;

impl Decisions for UndoesGrantedOnly {
    fn undone_on<'a>(&self, nodes: &'a [Arc<dyn Node>], failure: &Failure) -> Cow<'a, [Arc<dyn Node>]> {
        let granted = |answer| matches!(answer, NodeAnswer::Granted | NodeAnswer::Late);
        (nodes.iter().zip(&failure.answers))
            .map(|(node, (_, answer))| if granted(*answer) { node.clone() } else { left_out(node) })
            .collect()
    }
}

/// The node as one to which the client sends nothing.
fn left_out(node: &Arc<dyn Node>) -> Arc<dyn Node> {
    Arc::new(LeftOut(node.name().to_owned()))
}

struct LeftOut(String);

impl Node for LeftOut {
    fn name(&self) -> &str {
        &self.0
    }

    fn send(&self, _step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        Box::pin(std::future::ready(Err(NodeError::Definite("nothing was sent".to_owned()))))
    }
}
