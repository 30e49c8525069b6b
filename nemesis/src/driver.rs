//! The list of faults, and the trait that each kind implements in its file.

use std::time::Duration;

use history::{
    Fault, FaultKind,
    fault::{
        Amnesia, Clock, Delay, FaultParameters, Flap, Kill, Loss, Parameters, Partition, Pause, Powerloss, Reorder,
        Slow, Stop,
    },
};

use crate::{cluster::ClusterError, drawing::Drawing, injection::Injection, spec::TargetSpec};

/// One kind of fault: drawing from the seed, injection, proof, heal, and the proof of the heal.
///
/// `history` has the other half of the kind, [`FaultParameters`]: its parameters, and the targets that are possible.
pub(crate) trait Driver: FaultParameters + Sized {
    /// The target if `--nemesis` names none.
    const DEFAULT_TARGET: TargetSpec;
    /// True if one cause may hit several machines at about the same time, as a power failure does.
    const IS_SHARED: bool = false;

    /// Draws the parameters and the length. The order of the draws is part of the seed's meaning.
    fn draw(drawing: &mut Drawing<'_>) -> (Self, Duration);

    /// Carries the fault out, from its request to the proof of its heal, and records each phase.
    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError>;
}

macro_rules! faults {
    ($($kind:ident,)*) => {
        /// Returns the target of a fault of this kind if `--nemesis` names none.
        pub(crate) fn default_target(kind: FaultKind) -> TargetSpec {
            match kind { $(FaultKind::$kind => <$kind as Driver>::DEFAULT_TARGET,)* }
        }

        /// Returns whether one cause may hit several machines at about the same time.
        pub(crate) fn is_shared(kind: FaultKind) -> bool {
            match kind { $(FaultKind::$kind => <$kind as Driver>::IS_SHARED,)* }
        }

        /// Draws a fault. A fault of links hits all links of its target until the caller chooses some.
        pub(crate) fn draw(drawing: &mut Drawing<'_>) -> Fault {
            match drawing.spec.kind {
                $(FaultKind::$kind => {
                    let (parameters, lasting) = <$kind as Driver>::draw(drawing);
                    Fault::new(parameters, lasting)
                })*
            }
        }

        /// Carries a fault out, from its request to the proof of its heal.
        pub(crate) async fn inject(injection: &Injection<'_>) -> Result<(), ClusterError> {
            match &injection.step.fault.parameters {
                $(Parameters::$kind(parameters) => Driver::inject(parameters, injection).await,)*
            }
        }
    };
}

faults! {
    Pause,
    Stop,
    Slow,
    Kill,
    Amnesia,
    Powerloss,
    Clock,
    Partition,
    Delay,
    Loss,
    Reorder,
    Flap,
}
