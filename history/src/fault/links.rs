//! The links that a fault of links hits, and its effect on their packets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{names::NodeName, range::Range};

/// A delay that is shorter than this may as well be due to a busy link.
const DELAY_MIN: Duration = Duration::from_millis(1);
/// The longest delay: the agent refuses a longer one.
const DELAY_MAX: Duration = Duration::from_secs(3_600);

/// A direction of links, seen from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both directions.
    #[default]
    Both,
    /// Packets that the target sends.
    Out,
    /// Packets that are sent to the target.
    In,
}

impl Direction {
    /// Returns whether a fault on `target` affects packets from `from` to `to`.
    pub fn hits(self, target: &NodeName, from: &NodeName, to: &NodeName) -> bool {
        (self != Direction::In && from == target) || (self != Direction::Out && to == target)
    }
}

/// Links of a target.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Links {
    /// The direction.
    pub direction: Direction,
    /// The nodes at the other end; every node, if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<NodeName>,
}

impl Links {
    /// Returns whether packets from `from` to `to` travel over these links of `target`.
    pub fn hits(&self, target: &NodeName, from: &NodeName, to: &NodeName) -> bool {
        let other = if from == target { to } else { from };
        self.direction.hits(target, from, to) && (self.from.is_empty() || self.from.contains(other))
    }

    /// Returns whether these links and `other`, both of the same target, have a link in common.
    pub(crate) fn shares(&self, other: &Links) -> bool {
        let directions = [self.direction, other.direction];
        let is_same_way = directions[0] == directions[1] || directions.contains(&Direction::Both);
        let is_any = self.from.is_empty() || other.from.is_empty();
        is_same_way && (is_any || self.from.iter().any(|peer| other.from.contains(peer)))
    }
}

/// The way in which a partition cuts a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CutMode {
    /// Packets disappear without a reply, as with a broken cable.
    #[default]
    Drop,
    /// The sender gets a reply at once, and its connection ends, as with a firewall that rejects.
    Reject,
}

impl CutMode {
    /// Returns whether packets disappear without a reply.
    pub fn is_drop(&self) -> bool {
        *self == CutMode::Drop
    }
}

/// The effect of a fault on the packets of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEffect {
    /// No packet arrives.
    Cut(CutMode),
    /// So many packets in a hundred are lost.
    Lose(u8),
    /// Packets are late, and stay in order.
    Delay(LinkDelay),
    /// Packets are late, each by its own draw from this range, so that connections overtake each other.
    Reorder(Range),
}

impl LinkEffect {
    /// The delay of packets; none, if the effect is to drop packets.
    pub fn delay(self) -> Option<LinkDelay> {
        match self {
            LinkEffect::Cut(_) | LinkEffect::Lose(_) => None,
            LinkEffect::Delay(by) => Some(by),
            LinkEffect::Reorder(by) => Some(LinkDelay::Drawn(by)),
        }
    }
}

/// The delay of packets: in a plan a duration, or a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected a duration such as `20ms`, or a range { from = \"10ms\", to = \"50ms\" }")]
pub enum LinkDelay {
    /// The same delay for each packet.
    Fixed(#[serde(with = "crate::human::Text")] Duration),
    /// Drawn for each packet.
    Drawn(Range),
}

impl LinkDelay {
    /// The longest possible delay.
    pub fn longest(self) -> Duration {
        self.range().to
    }

    /// The shortest and the longest possible delay.
    pub fn range(self) -> Range {
        match self {
            LinkDelay::Fixed(by) => Range { from: by, to: by },
            LinkDelay::Drawn(by) => by,
        }
    }

    /// Refuses a delay that no probe could show, or that the agent refuses.
    pub(super) fn check(self) -> Result<(), String> {
        let Range { from, to } = self.range();
        if from > to {
            return Err("the range is upside down: its first end must not be the longer one".into());
        }
        if to < DELAY_MIN {
            return Err(format!(
                "a delay of {to:?} cannot be told from the usual delay of a link; expected {DELAY_MIN:?} or more"
            ));
        }
        if to > DELAY_MAX {
            return Err(format!("a delay of {to:?} is too long: expected {DELAY_MAX:?} at most"));
        }
        Ok(())
    }
}

impl From<Duration> for LinkDelay {
    fn from(by: Duration) -> LinkDelay {
        LinkDelay::Fixed(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_lasts_a_millisecond_to_an_hour() {
        let hour = Duration::from_secs(3_600);
        let (short, long) = (Duration::from_micros(999), hour + Duration::from_micros(1));
        for (to, is_possible) in [(short, false), (DELAY_MIN, true), (hour, true), (long, false)] {
            for delay in [LinkDelay::Fixed(to), LinkDelay::Drawn(Range { from: Duration::ZERO, to })] {
                assert_eq!(delay.check().is_ok(), is_possible, "{delay:?}");
            }
        }
    }
}
