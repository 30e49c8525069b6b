//! Faults and when they fire, as a plan has them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{NodeName, Point, Range, WaitId};

/// A planned fault, counted from 1 in the order of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultId(pub u32);

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The container freezer.
    Pause,
    /// SIGSTOP to one process.
    Stop,
    /// Hardly any processor time is left to it.
    Slow,
    /// SIGKILL, and a new start with all data that the kernel had.
    Kill,
    /// SIGKILL, and a new start without any data.
    Amnesia,
    /// The machine lost power: a new start with the data that had been synced.
    Powerloss,
    /// A clock of a process goes wrong.
    Clock,
    /// Packets are dropped between some nodes.
    Partition,
    /// Packets between some nodes are late.
    Delay,
    /// Some of the packets between some nodes are lost, and sent again.
    Loss,
    /// Packets between some nodes overtake those of other connections.
    Reorder,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 11] = [
        FaultKind::Pause,
        FaultKind::Stop,
        FaultKind::Slow,
        FaultKind::Kill,
        FaultKind::Amnesia,
        FaultKind::Powerloss,
        FaultKind::Clock,
        FaultKind::Partition,
        FaultKind::Delay,
        FaultKind::Loss,
        FaultKind::Reorder,
    ];

    /// The name in flags, plans and histories.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Pause => "pause",
            FaultKind::Stop => "stop",
            FaultKind::Slow => "slow",
            FaultKind::Kill => "kill",
            FaultKind::Amnesia => "amnesia",
            FaultKind::Powerloss => "powerloss",
            FaultKind::Clock => "clock",
            FaultKind::Partition => "partition",
            FaultKind::Delay => "delay",
            FaultKind::Loss => "loss",
            FaultKind::Reorder => "reorder",
        }
    }

    /// What it did to its target, for stories: "paused worker-1".
    pub fn did(self) -> &'static str {
        match self {
            FaultKind::Pause => "paused",
            FaultKind::Stop => "stopped",
            FaultKind::Slow => "slowed",
            FaultKind::Kill => "killed",
            FaultKind::Amnesia => "restarted, empty,",
            FaultKind::Powerloss => "cut the power of",
            FaultKind::Clock => "moved the clock of",
            FaultKind::Partition => "cut off",
            FaultKind::Delay => "slowed the links of",
            FaultKind::Loss => "lost packets of",
            FaultKind::Reorder => "disordered the packets of",
        }
    }

    /// Whether it ends the process that it hits: another one takes its place.
    pub fn kills(self) -> bool {
        matches!(self, FaultKind::Kill | FaultKind::Amnesia | FaultKind::Powerloss)
    }

    /// Whether its target does nothing at all while it is on, and goes on with everything afterwards.
    pub fn freezes(self) -> bool {
        matches!(self, FaultKind::Pause | FaultKind::Stop)
    }

    /// Whether it keeps its target from running, all of the time or most of it: ticks that are late meanwhile are due to it.
    pub fn holds_up(self) -> bool {
        self.freezes() || self == FaultKind::Slow
    }

    /// Whether it is done from inside the target: to its packets, or to its memory.
    pub fn reaches_in(self) -> bool {
        self.is_of_links() || self == FaultKind::Clock
    }

    /// Whether it acts on the links of its target and leaves the process alone.
    pub fn is_of_links(self) -> bool {
        matches!(self, FaultKind::Partition | FaultKind::Delay | FaultKind::Loss | FaultKind::Reorder)
    }
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Which clock of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhichClock {
    /// `CLOCK_REALTIME`: Redis expires by it.
    Wall,
    /// `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` together: deadlines of our clients are measured by it.
    Monotonic,
    /// All of them.
    Both,
}

impl WhichClock {
    /// Whether the wall clock is among them.
    pub fn is_wall(self) -> bool {
        self != WhichClock::Monotonic
    }

    /// Whether the monotonic clock is among them.
    pub fn is_monotonic(self) -> bool {
        self != WhichClock::Wall
    }
}

/// What becomes of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockChange {
    /// It jumps by so many milliseconds; backwards if negative, which only the wall clock can. The jump of a wall clock is taken
    /// back when the fault is healed, that of a monotonic clock stays until the process restarts or the run ends.
    JumpMs(i64),
    /// It runs fast (or slow, if negative) by so many parts per million until the fault is healed; what it has gained stays.
    DriftPpm(i32),
    /// It jumps there and back again until the fault is healed, beginning with there; only the wall clock can. Healed, it is back.
    #[serde(rename_all = "kebab-case")]
    Strobe {
        /// How far it jumps, in milliseconds; backwards if negative.
        by_ms: i64,
        /// For how long it stays there, and then back, in milliseconds.
        every_ms: u64,
    },
}

/// Which direction of the links of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both.
    #[default]
    Both,
    /// What the target sends.
    Out,
    /// What is sent to the target.
    In,
}

impl Direction {
    /// Whether packets from `from` to `to` are hit, if `target` is the target.
    pub fn hits(self, target: &NodeName, from: &NodeName, to: &NodeName) -> bool {
        (self != Direction::In && from == target) || (self != Direction::Out && to == target)
    }
}

/// What becomes of packets that a partition cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// Nobody hears of them again, as with a broken cable.
    #[default]
    Drop,
    /// Their sender is told at once, and its connection is over: as with a firewall that rejects.
    Reject,
}

impl Cut {
    /// Whether packets are dropped.
    pub fn is_drop(&self) -> bool {
        *self == Cut::Drop
    }
}

/// By how much packets are late: in a plan a duration, or a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a duration such as `20ms`, or a range { from = \"10ms\", to = \"50ms\" }")]
pub enum Late {
    /// All by as much.
    Fixed(#[serde(with = "crate::plan::human")] Duration),
    /// Each by a draw of its own.
    Drawn(Range),
}

impl Late {
    /// The most that it can be.
    pub fn longest(self) -> Duration {
        match self {
            Late::Fixed(by) => by,
            Late::Drawn(by) => by.to,
        }
    }

    /// From the least to the most.
    pub fn range(self) -> Range {
        match self {
            Late::Fixed(by) => Range { from: by, to: by },
            Late::Drawn(by) => by,
        }
    }
}

impl From<Duration> for Late {
    fn from(by: Duration) -> Late {
        Late::Fixed(by)
    }
}

/// A fault with its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Freezes every process of the target.
    Pause {
        /// How long the target shall be frozen.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
    },
    /// Stops the first process of the target by a signal.
    Stop {
        /// How long it shall be stopped.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
    },
    /// Leaves hardly any processor time to the target.
    Slow {
        /// How long.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
        /// How many hundredths of one processor are left to it: 1 to 50.
        #[serde(default = "a_crawl")]
        percent: u8,
    },
    /// Kills every process of the target, and starts it again with its data.
    Kill {
        /// How long it stays down.
        #[serde(with = "crate::plan::human")]
        back_after: Duration,
    },
    /// Kills every process of the target, and starts it again empty.
    Amnesia {
        /// How long it stays down.
        #[serde(with = "crate::plan::human")]
        back_after: Duration,
        /// Before it accepts clients it takes over the largest counter of each key that these lock nodes have; none, if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        counters_of: Vec<NodeName>,
    },
    /// Kills every process of the target, and starts it again with the data that had been synced.
    Powerloss {
        /// How long it stays down.
        #[serde(with = "crate::plan::human")]
        back_after: Duration,
    },
    /// Moves a clock of the target.
    Clock {
        /// Which.
        clock: WhichClock,
        /// How.
        change: ClockChange,
        /// How long until it is healed.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
    },
    /// Cuts the target off from some nodes.
    Partition {
        /// How long.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
        /// Which way.
        #[serde(default)]
        direction: Direction,
        /// From whom; from everybody, if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        from: Vec<NodeName>,
        /// What becomes of the packets.
        #[serde(default, skip_serializing_if = "Cut::is_drop")]
        cut: Cut,
    },
    /// Makes packets between the target and some nodes late.
    Delay {
        /// How long the fault is on.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
        /// By how much each packet is late.
        by: Late,
        /// Which way.
        #[serde(default)]
        direction: Direction,
        /// Between the target and whom; everybody, if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        from: Vec<NodeName>,
    },
    /// Loses packets between the target and some nodes. What is lost is sent again; inside a connection that is delay.
    Loss {
        /// How long the fault is on.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
        /// How many of a hundred are lost, those that are sent again among them: 1 to 100.
        percent: u8,
        /// Which way.
        #[serde(default)]
        direction: Direction,
        /// Between the target and whom; everybody, if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        from: Vec<NodeName>,
    },
    /// Lets packets between the target and some nodes overtake those of other connections. Inside a connection they keep their order.
    Reorder {
        /// How long the fault is on.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
        /// By how much packets are late: each by a draw of its own.
        by: Range,
        /// Which way.
        #[serde(default)]
        direction: Direction,
        /// Between the target and whom; everybody, if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        from: Vec<NodeName>,
    },
}

/// What is left to a target that is slowed, in hundredths of a processor, where nobody says how much.
const fn a_crawl() -> u8 {
    Fault::A_CRAWL
}

impl Fault {
    /// What a [`Fault::Slow`] leaves to its target unless a plan says otherwise, in hundredths of one processor: the least that the kernel
    /// takes (1 ms in each period of 100 ms). With twice as much an ordinary worker is hardly ever held up.
    pub const A_CRAWL: u8 = 1;

    /// Its kind.
    pub fn kind(&self) -> FaultKind {
        match self {
            Fault::Pause { .. } => FaultKind::Pause,
            Fault::Stop { .. } => FaultKind::Stop,
            Fault::Slow { .. } => FaultKind::Slow,
            Fault::Kill { .. } => FaultKind::Kill,
            Fault::Amnesia { .. } => FaultKind::Amnesia,
            Fault::Powerloss { .. } => FaultKind::Powerloss,
            Fault::Clock { .. } => FaultKind::Clock,
            Fault::Partition { .. } => FaultKind::Partition,
            Fault::Delay { .. } => FaultKind::Delay,
            Fault::Loss { .. } => FaultKind::Loss,
            Fault::Reorder { .. } => FaultKind::Reorder,
        }
    }

    /// How long it is asked to last: from injection to heal.
    pub fn lasting(&self) -> Duration {
        match self {
            Fault::Kill { back_after } | Fault::Amnesia { back_after, .. } | Fault::Powerloss { back_after } => {
                *back_after
            }
            Fault::Pause { lasting }
            | Fault::Stop { lasting }
            | Fault::Slow { lasting, .. }
            | Fault::Clock { lasting, .. }
            | Fault::Partition { lasting, .. }
            | Fault::Delay { lasting, .. }
            | Fault::Loss { lasting, .. }
            | Fault::Reorder { lasting, .. } => *lasting,
        }
    }

    /// Of a fault of links: by how much it makes packets late on their way. None, if it drops them.
    pub fn late(&self) -> Option<Late> {
        match self {
            Fault::Delay { by, .. } => Some(*by),
            Fault::Reorder { by, .. } => Some(Late::Drawn(*by)),
            _ => None,
        }
    }

    /// Of a fault of links: which way, and between the target and whom.
    pub fn links_mut(&mut self) -> Option<(&mut Direction, &mut Vec<NodeName>)> {
        match self {
            Fault::Partition { direction, from, .. }
            | Fault::Delay { direction, from, .. }
            | Fault::Loss { direction, from, .. }
            | Fault::Reorder { direction, from, .. } => Some((direction, from)),
            _ => None,
        }
    }

    /// The same, to look at.
    pub fn links(&self) -> Option<(Direction, &[NodeName])> {
        match self {
            Fault::Partition { direction, from, .. }
            | Fault::Delay { direction, from, .. }
            | Fault::Loss { direction, from, .. }
            | Fault::Reorder { direction, from, .. } => Some((*direction, from)),
            _ => None,
        }
    }

    /// Whether a fault of links on `target` hits packets from `from` to `to`.
    pub fn hits(&self, target: &NodeName, from: &NodeName, to: &NodeName) -> bool {
        let Some((direction, others)) = self.links() else { return false };
        let other = if from == target { to } else { from };
        direction.hits(target, from, to) && (others.is_empty() || others.contains(other))
    }
}

/// Whom a fault hits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The worker of whoever holds a key when the fault fires.
    Holder,
    /// Whoever leads the lock nodes when the fault fires.
    Leader,
    /// A node by its name. "Any worker" becomes one of these when the schedule is drawn.
    Node(NodeName),
}

/// When a step fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum When {
    /// So long after the step before it was healed (or after the start of the run).
    AfterHeal(#[serde(with = "crate::plan::human")] Duration),
    /// So long after the start of the run.
    At(#[serde(with = "crate::plan::human")] Duration),
    /// When a client that was armed for it arrives at a protocol point and waits there.
    AtPoint(Point),
    /// When this fault is proved healed: at once.
    Healed(FaultId),
    /// While a client waits at a protocol point as planned, whoever is the target.
    WhileWaits(WaitId),
}

/// One step of a schedule: a fault, whom it hits, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its number.
    pub id: FaultId,
    /// What is done.
    pub fault: Fault,
    /// To whom.
    pub target: Target,
    /// When.
    pub when: When,
}
