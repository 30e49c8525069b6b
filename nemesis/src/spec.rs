//! The specifications of faults that the words of `--nemesis` stand for.

use std::time::Duration;

use history::{FaultKind, NodeName, Point};

/// The target that a word of `--nemesis` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetSpec {
    /// The worker that holds the key.
    Holder,
    /// A worker that is drawn from the seed.
    AnyWorker,
    /// A lock node that is drawn from the seed.
    AnyLockNode,
    /// The leader of the lock nodes.
    Leader,
    /// A group of lock nodes or links.
    Group(Group),
    /// The node with this name.
    Node(NodeName),
}

/// A group of lock nodes, or of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// More than half of the lock nodes. As a group of links: the majority and half of the workers, cut off from the
    /// other lock nodes and workers.
    Majority,
    /// The largest group without which the other lock nodes are a majority. As a group of links: these lock nodes, cut
    /// off from all other lock nodes and all workers.
    Minority,
    /// Half of the lock nodes and half of the workers, cut off from the rest. With an odd number of lock nodes, the
    /// second half has one more.
    Halves,
    /// A ring: each lock node reaches its two neighbours, and each worker reaches one lock node and the neighbours of
    /// that lock node.
    Ring,
    /// Two halves of lock nodes and workers, and one lock node that both halves reach.
    Bridge,
    /// One lock node, cut off from all other lock nodes and all workers.
    Isolate,
    /// All lock nodes, one after the other.
    Rolling,
}

impl Group {
    /// All groups.
    pub const ALL: [Group; 7] =
        [Group::Majority, Group::Minority, Group::Halves, Group::Ring, Group::Bridge, Group::Isolate, Group::Rolling];

    /// The word of `--nemesis`.
    pub fn name(self) -> &'static str {
        match self {
            Group::Majority => "majority",
            Group::Minority => "minority",
            Group::Halves => "halves",
            Group::Ring => "ring",
            Group::Bridge => "bridge",
            Group::Isolate => "isolate",
            Group::Rolling => "rolling",
        }
    }

    /// Returns whether only faults of links can hit the group.
    pub fn is_of_links(self) -> bool {
        matches!(self, Group::Halves | Group::Ring | Group::Bridge | Group::Isolate)
    }
}

/// The direction that `--nemesis` names for a fault of links, seen from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneWay {
    /// Packets that are sent to the target.
    In,
    /// Packets that the target sends.
    Out,
    /// One of the two directions, drawn from the seed.
    Either,
}

/// The nodes at the other end of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// All lock nodes.
    LockNodes,
    /// All workers.
    Workers,
    /// The resource.
    Resource,
}

/// The links of the target that a word of `--nemesis` names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkSpec {
    /// The direction. If absent, the harness draws the direction of a random fault; other faults hit both directions.
    pub way: Option<OneWay>,
    /// The nodes at the other end. If empty, the harness draws them for a random fault; other faults hit all links.
    pub with: Vec<Peers>,
    /// True if the sender of a packet gets a reset, instead of no reply.
    pub is_reject: bool,
}

/// The time at which a fault is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Repeatedly, at times drawn from the seed.
    Random,
    /// Once, so long after the start of the run.
    At(Duration),
    /// Once, when a client reaches a protocol point.
    Point(Point),
}

/// A fault as one word of `--nemesis` specifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultSpec {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The target.
    pub target: TargetSpec,
    /// The links, for a fault of links.
    pub links: LinkSpec,
    /// The time of the injection.
    pub trigger: Trigger,
    /// The length of the fault; drawn, if absent.
    pub lasting: Option<Duration>,
}

/// A word of `--nemesis` is not a valid specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--nemesis: `{word}` in `{spec}`: {problem}")]
pub struct FaultSpecError {
    /// The whole specification.
    pub spec: String,
    /// The invalid part.
    pub word: String,
    /// The problem, and the expected text.
    pub problem: String,
}

impl FaultSpec {
    /// Returns the word of the target, if the target is one of the lock nodes, or a group of them.
    pub fn lock_node<'a>(&'a self, lock_nodes: &[NodeName]) -> Option<&'a str> {
        match &self.target {
            TargetSpec::AnyLockNode => Some("any-lock-node"),
            TargetSpec::Leader => Some("leader"),
            TargetSpec::Group(group) => Some(group.name()),
            TargetSpec::Node(node) => lock_nodes.contains(node).then_some(node.as_str()),
            TargetSpec::Holder | TargetSpec::AnyWorker => None,
        }
    }

    /// Returns whether the fault is placed at a protocol point. A violation under a placed fault proves that the
    /// violation is possible, and says nothing about its probability.
    pub fn is_placed(&self) -> bool {
        matches!(self.trigger, Trigger::Point(_))
    }
}
