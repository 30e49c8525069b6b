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

impl TargetSpec {
    /// The word of `--nemesis`.
    pub fn name(&self) -> &str {
        match self {
            TargetSpec::Holder => "holder",
            TargetSpec::AnyWorker => "any-worker",
            TargetSpec::AnyLockNode => "any-lock-node",
            TargetSpec::Leader => "leader",
            TargetSpec::Group(group) => group.name(),
            TargetSpec::Node(node) => node.as_str(),
        }
    }
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

impl OneWay {
    /// The word of `--nemesis`.
    pub fn name(self) -> &'static str {
        match self {
            OneWay::In => "in",
            OneWay::Out => "out",
            OneWay::Either => "one-way",
        }
    }
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

impl Peers {
    /// The word of `--nemesis`.
    pub fn name(self) -> &'static str {
        match self {
            Peers::LockNodes => "lock-nodes",
            Peers::Workers => "workers",
            Peers::Resource => "resource",
        }
    }
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
            TargetSpec::AnyLockNode | TargetSpec::Leader | TargetSpec::Group(_) => Some(self.target.name()),
            TargetSpec::Node(node) => lock_nodes.contains(node).then_some(node.as_str()),
            TargetSpec::Holder | TargetSpec::AnyWorker => None,
        }
    }

    /// Returns whether the fault is placed at a protocol point. A violation under a placed fault proves that the
    /// violation is possible, and says nothing about its probability.
    pub fn is_placed(&self) -> bool {
        matches!(self.trigger, Trigger::Point(_))
    }

    /// Returns the specification as a word of `--nemesis` that names the target even if it is the default.
    pub(crate) fn written(&self) -> String {
        let LinkSpec { way, with, is_reject } = &self.links;
        let mut words = vec![self.kind.name(), self.target.name()];
        words.extend(with.iter().map(|peers| peers.name()));
        words.extend(way.map(OneWay::name));
        words.extend(is_reject.then_some("reject"));
        let when = match self.trigger {
            Trigger::Random => String::new(),
            Trigger::At(at) => format!("@{at:?}"),
            Trigger::Point(point) => format!("@{point}"),
        };
        let lasting = self.lasting.map(|lasting| format!("+{lasting:?}")).unwrap_or_default();
        format!("{}{when}{lasting}", words.join(":"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_lock_nodes_is_known_by_its_word() {
        for (text, word) in [
            ("pause:leader", Some("leader")),
            ("kill:rolling", Some("rolling")),
            ("clock", Some("any-lock-node")),
            ("pause:redis-1", Some("redis-1")),
            ("pause", None),
            ("pause:any-worker", None),
            ("pause:resource", None),
        ] {
            let spec: FaultSpec = text.parse().unwrap();
            assert_eq!(spec.lock_node(&["redis-1".into()]), word, "{text}");
        }
    }
}
