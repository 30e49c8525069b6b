//! The facts that windows are made of: stale acts, and pairs of holds that were entitled at the same time.

use std::time::Duration;

use history::{OpId, Stamp, drift};

use crate::{
    hold_summary::HoldSummary,
    holds::{EventRef, LastRenewal, NodeLease, Nodes},
    intervals::Intervals,
};

use super::note::RequestSummary;

/// One stale act.
#[derive(Debug)]
pub(crate) struct StaleAct {
    pub mark: EventRef,
    pub op: Option<OpId>,
    /// The stamp after which a step of the host's clock may have ended the hold's lease.
    pub had_since: Stamp,
    pub note: RequestSummary,
}

/// The stale acts of one hold.
#[derive(Debug)]
pub(crate) struct StaleActs {
    pub last: EventRef,
    pub reads: u64,
    pub writes: u64,
    /// The first stale act.
    pub acts: Vec<StaleAct>,
    pub overlap: Duration,
}

/// The most stale acts of a hold that a story explains one by one: a critical section has a handful.
pub(crate) const ACTS_MAX: usize = 16;

/// The facts about a hold that are collected until it can act no more.
#[derive(Debug, Default)]
pub(crate) struct HoldWatch {
    /// The later hold that was acquired first.
    pub first_later: Option<HoldSummary>,
    /// The first write of that later hold.
    pub later_write: Option<(EventRef, RequestSummary)>,
    /// The acquisition of the first hold that is neither later nor earlier.
    pub first_unordered: Option<Stamp>,
    /// The spans in which later holds were entitled after this hold's end.
    pub cover: Intervals,
    /// The number of the first entitlement that has ended and that is not in `cover` yet.
    pub taken: u64,
    pub stale: Option<StaleActs>,
}

/// The effect of a hold's renewals when another hold was acquired.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renewed {
    pub last: LastRenewal,
    /// Per node.
    pub leases: Vec<NodeLease>,
}

/// One of two holds that were entitled at once, as it was when the other one was acquired.
pub(crate) struct Entitled {
    pub hold: HoldSummary,
    /// The nodes that had granted the hold, or had renewed it.
    pub nodes: Nodes,
    /// As in [`Renewed`]. No nodes, and no leases, if the hold had not been renewed.
    last_renewal: LastRenewal,
    leases: Vec<NodeLease>,
}

/// Two holds that were entitled at once.
pub(crate) struct Overlap {
    pub key: usize,
    /// The two holds in the order of their grants if that is known, otherwise in the order of their success.
    pub holds: [Entitled; 2],
    /// True if the order of the two grants is known.
    pub is_ordered: bool,
    pub from: Stamp,
    pub length: Duration,
}

impl Entitled {
    pub fn new(hold: HoldSummary, granted_on: Nodes, renewed: Renewed) -> Entitled {
        let Renewed { last, leases } = renewed;
        Entitled { hold, nodes: granted_on | last.0, last_renewal: last, leases }
    }

    /// Returns the stamp after which an event came that explains how each of these nodes lost the hold's key. A node
    /// that did the last renewal had the key when the renewal was sent.
    pub fn had_since(&self, nodes: Nodes) -> Stamp {
        let ((done_on, sent), relies_since) = (self.last_renewal, self.hold.relies_since());
        let is_renewed = done_on != 0 && (nodes == 0 || nodes & done_on != 0);
        if is_renewed { sent.max(relies_since) } else { relies_since }
    }

    /// Returns the end of the promise on the node of these on which it lasts longest, as far as the last renewal shows
    /// it.
    pub fn promised_until(&self, nodes: Nodes) -> Stamp {
        let lease = self.hold.lease_until.since(self.hold.granted.0);
        let of_renewal = self.had_since(nodes).plus(lease).max(self.hold.lease_until);
        // The servers may have given another lease at a renewal.
        let is_asked = |node: &usize| nodes == 0 || nodes & (1 << node) != 0;
        let known = (0..self.leases.len()).filter(is_asked).map(|node| self.lease(node).until).max();
        of_renewal.min(known.unwrap_or(self.hold.lease_until)).minus(drift(lease))
    }

    /// Returns the hold's lease on a node.
    pub fn lease(&self, node: usize) -> NodeLease {
        match self.leases.get(node) {
            Some(lease) if lease.is_renewed => *lease,
            known => {
                let until = known.map_or(self.hold.lease_until, |lease| lease.until);
                NodeLease { told: self.hold.granted, until, is_renewed: false }
            }
        }
    }

    /// Returns the node on which the hold's lease lasted longest.
    pub fn longest(&self) -> usize {
        (0..self.leases.len()).max_by_key(|node| self.leases[*node].until).unwrap_or(0)
    }
}
