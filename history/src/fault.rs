//! Faults as a plan has them: their kinds, and for each kind its parameters.
//!
//! A kind of fault is one struct in one file of this folder, behind the trait [`FaultParameters`], and one row in the
//! list `faults!` below. The length of a fault and the choice of links belong to [`Fault`], because kinds share them.
//! The crate `nemesis` has one file of the same name for each kind: drawing, injection, proof, heal.

use std::time::Duration;

use serde::Serialize;

use crate::{cluster::PlannedCluster, names::NodeName, target::Target};

mod clock;
mod delay;
mod flap;
mod kill;
mod links;
mod loss;
mod once;
mod parameter;
mod partition;
mod pause;
mod rules;
mod slow;
mod written;

pub use clock::{Clock, ClockChange};
pub use delay::{Delay, Reorder};
pub use flap::Flap;
pub use kill::{Amnesia, Kill, Powerloss};
pub use links::{CutMode, Direction, LinkDelay, LinkEffect, Links};
pub use loss::Loss;
pub use parameter::{ParameterVisitor, Quantity};
pub use partition::Partition;
pub use pause::{Pause, Stop};
pub use rules::{About, Data, FaultParameters, Harm};
pub use slow::Slow;

/// The shortest fault: two ticks of a target. A gap between ticks proves a freeze, so no proof distinguishes a shorter
/// fault from none.
const SHORTEST: Duration = Duration::from_millis(20);
/// The longest fault: as long as the longest run.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Makes the enums and the tables from the list of kinds.
macro_rules! faults {
    ($($kind:ident = $name:literal,)*) => {
        /// The kinds of faults.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub enum FaultKind {
            $(#[doc = concat!("`", $name, "`")] #[serde(rename = $name)] $kind,)*
        }

        /// The parameters of a fault, by kind.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        pub enum Parameters {
            $(#[doc = concat!("Of `", $name, "`.")] $kind($kind),)*
        }

        impl FaultKind {
            /// All kinds.
            pub const ALL: [FaultKind; [$(FaultKind::$kind),*].len()] = [$(FaultKind::$kind),*];

            /// The name in flags, plans and histories.
            pub fn name(self) -> &'static str {
                match self { $(FaultKind::$kind => $name,)* }
            }

            /// The facts that hold for every fault of this kind.
            pub fn about(self) -> About {
                match self { $(FaultKind::$kind => $kind::ABOUT,)* }
            }

            /// The schema of the parameters of this kind.
            #[cfg(test)]
            fn schema(self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                match self { $(FaultKind::$kind => <$kind as schemars::JsonSchema>::json_schema(generator),)* }
            }

            fn read(self, fields: serde_json::Value) -> Result<Parameters, serde_json::Error> {
                match self { $(FaultKind::$kind => serde_json::from_value(fields).map(Parameters::$kind),)* }
            }
        }

        $(impl From<$kind> for Parameters {
            fn from(parameters: $kind) -> Parameters {
                Parameters::$kind(parameters)
            }
        })*

        impl Parameters {
            fn kind(&self) -> FaultKind {
                match self { $(Parameters::$kind(_) => FaultKind::$kind,)* }
            }

            fn excludes(&self, other: &Parameters) -> bool {
                match (self, other) {
                    $((Parameters::$kind(one), Parameters::$kind(other)) => one.excludes(other),)*
                    _ => false,
                }
            }
        }

        /// Runs the same expression on the parameters of any kind.
        macro_rules! of_any_kind {
            ($of:expr, $parameters:ident => $do:expr) => {
                match $of { $(Parameters::$kind($parameters) => $do,)* }
            };
        }
    };
}

faults! {
    Pause = "pause",
    Stop = "stop",
    Slow = "slow",
    Kill = "kill",
    Amnesia = "amnesia",
    Powerloss = "powerloss",
    Clock = "clock",
    Partition = "partition",
    Delay = "delay",
    Loss = "loss",
    Reorder = "reorder",
    Flap = "flap",
}

impl FaultKind {
    /// The parameters of this kind, if each of them has a default.
    pub fn default_parameters(self) -> Option<Parameters> {
        self.read(serde_json::Map::new().into()).ok()
    }

    /// The verb in stories: "paused" in "paused worker-1".
    pub fn past_tense(self) -> &'static str {
        self.about().past_tense
    }

    /// The harm that the kind does.
    pub fn harm(self) -> Harm {
        self.about().harm
    }

    /// Returns whether the fault ends the process of its target. A new process takes its place.
    pub fn kills(self) -> bool {
        matches!(self.harm(), Harm::Kills(_))
    }

    /// Returns whether the target does nothing while the fault is on, and continues afterwards.
    pub fn freezes(self) -> bool {
        self.harm() == Harm::Freezes
    }

    /// Returns whether the target runs rarely or never while the fault is on. Ticks that are late meanwhile are due to
    /// the fault.
    pub fn takes_processor_time(self) -> bool {
        matches!(self.harm(), Harm::Freezes | Harm::Starves)
    }

    /// Returns whether the fault acts on the links of its target and leaves the process alone.
    pub fn is_of_links(self) -> bool {
        matches!(self.harm(), Harm::DropsPackets | Harm::DelaysPackets)
    }

    /// Returns whether the agent injects the fault from inside the target's container.
    pub fn needs_agent(self) -> bool {
        self.is_of_links() || self.harm() == Harm::SetsClock
    }
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A planned fault, counted from 1 in the order of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct FaultId(pub u32);

impl std::fmt::Display for FaultId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A fault: the parameters of its kind, its length and, for a fault of links, the links that it hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind, with the parameters that only this kind has.
    pub parameters: Parameters,
    /// The planned time from injection to heal: `for` in a plan, `back_after` if the fault kills.
    pub lasting: Duration,
    /// The links that a fault of links hits; absent for any other kind.
    pub links: Option<Links>,
}

impl Fault {
    /// A fault that lasts so long. A fault of links hits all links of its target, in both directions.
    pub fn new(parameters: impl Into<Parameters>, lasting: Duration) -> Fault {
        let parameters = parameters.into();
        let links = parameters.kind().is_of_links().then(Links::default);
        Fault { parameters, lasting, links }
    }

    /// Limits a fault of links to one direction, and to links with `from` unless `from` is empty.
    pub fn on_links(self, direction: Direction, from: Vec<NodeName>) -> Fault {
        Fault { links: self.links.map(|_| Links { direction, from }), ..self }
    }

    /// The kind.
    pub fn kind(&self) -> FaultKind {
        self.parameters.kind()
    }

    /// The parameters of a clock fault.
    pub fn clock(&self) -> Option<&Clock> {
        if let Parameters::Clock(clock) = &self.parameters { Some(clock) } else { None }
    }

    /// Refuses parameters that no cluster could carry out, and a length that no proof could show or no run should have.
    pub fn check(&self) -> Result<(), String> {
        if !(SHORTEST..=LONGEST).contains(&self.lasting) {
            return Err(format!("a length of {:?} is outside {SHORTEST:?} to 24h", self.lasting));
        }
        of_any_kind!(&self.parameters, parameters => parameters.check(self.lasting))
    }

    /// Refuses a target or a cluster on which this fault cannot happen.
    pub fn check_target(&self, cluster: &PlannedCluster<'_>, target: &Target) -> Result<(), String> {
        of_any_kind!(&self.parameters, parameters => parameters.check_target(cluster, target))
    }

    /// Shows each duration and each number of the fault to `visitor`, which may change it. The length comes first.
    pub fn visit(&mut self, visitor: &mut dyn ParameterVisitor) {
        let length = if self.kind().kills() { Quantity::Downtime } else { Quantity::Length };
        visitor.duration(length, &mut self.lasting);
        of_any_kind!(&mut self.parameters, parameters => parameters.visit(visitor));
    }

    /// The effect on packets, if this is a fault of links.
    pub fn link_effect(&self) -> Option<LinkEffect> {
        of_any_kind!(&self.parameters, parameters => parameters.link_effect())
    }

    /// The delay of packets, if this is a fault that delays packets.
    pub fn link_delay(&self) -> Option<LinkDelay> {
        self.link_effect().and_then(LinkEffect::delay)
    }

    /// The time for which the fault may be on. A delay stays on until its probes have come back, and they are late too:
    /// twice, if the delay hits both directions.
    pub fn may_last(&self) -> Duration {
        let round_trip = |delay: LinkDelay| delay.longest().saturating_mul(self.directions());
        self.link_delay().map_or(self.lasting, |delay| self.lasting.max(round_trip(delay)))
    }

    /// The number of directions in which a fault of links hits packets.
    pub(crate) fn directions(&self) -> u32 {
        if self.links.as_ref().is_some_and(|links| links.direction == Direction::Both) { 2 } else { 1 }
    }

    /// One line for a story: "paused worker-1 (frozen 5.0 s)". `lasted` is the proved length, if there is a proof.
    pub fn story(&self, node: &NodeName, lasted: Option<Duration>) -> String {
        let lasted = lasted.map_or_else(|| "not proved".into(), |lasted| format!("{:.1} s", lasted.as_secs_f64()));
        of_any_kind!(&self.parameters, parameters => parameters.story(node, &lasted))
    }

    /// Returns whether a fault of links on `target` hits packets from `from` to `to`.
    pub fn hits(&self, target: &NodeName, from: &NodeName, to: &NodeName) -> bool {
        self.links.as_ref().is_some_and(|links| links.hits(target, from, to))
    }

    /// Returns whether `other`, a fault of the same kind on the same target, cannot be on at the same time.
    pub(crate) fn excludes(&self, other: &Fault) -> bool {
        self.parameters.excludes(&other.parameters)
            && self.links.as_ref().zip(other.links.as_ref()).is_none_or(|(one, other)| one.shares(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_clocks_and_of_links_need_the_agent() {
        use FaultKind::{Clock, Delay, Flap, Loss, Partition, Reorder};
        let found: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|kind| kind.needs_agent()).collect();
        assert_eq!(found, [Clock, Partition, Delay, Loss, Reorder, Flap]);
    }
}
