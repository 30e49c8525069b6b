//! The truth about the run, by the world's only clock. The checker never sees the truth.

use std::collections::BTreeMap;

use history::{Arm, FaultId, Mode};

use super::lock::{LEASE, exclude};

/// The cause of a freeze of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Froze {
    Pause(FaultId),
    Stall,
}

/// How much each freeze really delayed a path.
pub type Delays = BTreeMap<Froze, u64>;

/// An attempt on one node that was granted there.
#[derive(Debug, Clone)]
pub struct Grant {
    pub node: usize,
    pub key: usize,
    pub attempt: u64,
    pub at: u64,
    /// Until when the node owes it to the attempt.
    pub owed: u64,
    /// When its owner gave it back.
    pub returned: Option<u64>,
}

impl Grant {
    /// Until when the node must not grant the key to anybody else.
    pub fn end(&self) -> u64 {
        self.returned.map_or(self.owed, |r| r.min(self.owed))
    }
}

/// A hold, as it really was.
#[derive(Debug, Clone)]
pub struct TrueHold {
    pub client: usize,
    pub key: usize,
    pub mode: Mode,
    pub sent: u64,
    pub claimed: u64,
    /// The nodes that had granted it, as far as its client knew.
    pub granted: usize,
    /// Until when its client believed in it then, and the instants of its checks that passed.
    pub deadline: u64,
    pub checks: Vec<u64>,
    pub token: Option<u64>,
    /// When it ended: release sent, loss noticed, worker about to be killed.
    pub over: Option<u64>,
    pub killed: bool,
    /// When its client released it, and what had delayed that.
    pub used: Option<(u64, Delays)>,
    /// Renewals that were answered in time: sent, answered.
    pub renewals: Vec<(u64, u64)>,
}

impl TrueHold {
    /// Returns whether two holds really exclude each other.
    pub fn excludes(&self, other: &TrueHold) -> bool {
        self.key == other.key && exclude(self.mode, other.mode)
    }
}

/// An act, where it happened.
#[derive(Debug, Clone)]
pub struct TrueAct {
    pub number: u64,
    pub at: u64,
    pub hold: u64,
    pub write: bool,
    /// When its client sent it, and whether the client had made another attempt after it had released the hold.
    pub sent: u64,
    pub after_next: bool,
    pub delays: Delays,
    /// How long its client was to wait under the hold before it.
    pub planned: u64,
    /// An arm each: admitted, and whether that was right.
    pub decided: Vec<(Arm, bool, bool)>,
}

#[derive(Debug, Default)]
pub struct Truth {
    pub grants: Vec<Grant>,
    /// Keys taken from their owners: node, robber, when.
    pub robberies: Vec<(usize, u64, u64)>,
    pub holds: BTreeMap<u64, TrueHold>,
    pub acts: Vec<TrueAct>,
    /// Waits that nothing on record tells from frozen time: process, hold, from, to.
    pub blurs: Vec<(usize, u64, u64, u64)>,
    /// The counters at the end, key and arm each.
    pub counters: BTreeMap<(usize, Arm), u64>,
}

impl Truth {
    pub fn granted(&mut self, node: usize, key: usize, attempt: u64, at: u64) {
        self.grants.push(Grant { node, key, attempt, at, owed: at + LEASE, returned: None });
    }

    fn grant(&mut self, node: usize, attempt: u64) -> Option<&mut Grant> {
        self.grants.iter_mut().rev().find(|g| g.node == node && g.attempt == attempt)
    }

    pub fn extended(&mut self, node: usize, attempt: u64, at: u64) {
        if let Some(g) = self.grant(node, attempt) {
            g.owed = g.owed.max(at + LEASE);
        }
    }

    pub fn released(&mut self, node: usize, attempt: u64, at: u64) {
        if let Some(g) = self.grant(node, attempt) {
            g.returned = Some(at);
        }
    }

    pub fn robbed(&mut self, node: usize, attempt: u64, at: u64) {
        self.robberies.push((node, attempt, at));
        // Its own key is not there any more either.
        if let Some(g) = self.grant(node, attempt) {
            g.returned.get_or_insert(at);
        }
    }

    pub fn over(&mut self, attempt: u64, at: u64) {
        if let Some(hold) = self.holds.get_mut(&attempt) {
            hold.over.get_or_insert(at);
        }
    }

    pub fn checked(&mut self, attempt: u64, at: u64) {
        if let Some(hold) = self.holds.get_mut(&attempt) {
            hold.checks.push(at);
        }
    }

    pub fn used(&mut self, attempt: u64, at: u64, delays: &Delays) {
        self.over(attempt, at);
        if let Some(hold) = self.holds.get_mut(&attempt) {
            hold.used.get_or_insert((at, delays.clone()));
        }
    }

    /// By which of all grants `enough` nodes had granted an attempt. They are in the order in which they were
    /// made, those of one instant too.
    pub fn granted_by(&self, attempt: u64, enough: usize) -> Option<usize> {
        let own = self.grants.iter().enumerate().filter(|(_, g)| g.attempt == attempt);
        own.map(|(i, _)| i).nth(enough - 1)
    }
}
