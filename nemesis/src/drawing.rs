//! The input for drawing a schedule, and the source of each fault's parameters.

use std::time::Duration;

use history::{NodeName, ResourceKind};
use rand::{Rng, RngCore};

use crate::spec::FaultSpec;

/// The input for drawing a schedule.
#[derive(Debug, Clone)]
pub struct Draw<'a> {
    /// The specifications.
    pub specs: &'a [FaultSpec],
    /// The length of the fault phase.
    pub time: Duration,
    /// The length of a lease, the unit of most drawn lengths.
    pub lease: Duration,
    /// The names of the workers.
    pub workers: &'a [NodeName],
    /// The names of the lock nodes.
    pub lock_nodes: &'a [NodeName],
    /// The store of the resource, which may be the lock nodes themselves.
    pub resource: ResourceKind,
}

/// The source of a fault's parameters.
pub(crate) struct Drawing<'a> {
    pub rng: &'a mut dyn RngCore,
    pub spec: &'a FaultSpec,
    pub of: &'a Draw<'a>,
}

impl Drawing<'_> {
    /// Draws a length from a range in leases. The result is in milliseconds.
    pub fn leases_ms(&mut self, range: std::ops::RangeInclusive<f64>) -> u64 {
        let lease_ms = self.of.lease.as_millis() as f64;
        (lease_ms * self.rng.random_range(range)).round() as u64
    }

    /// Returns the length that `--nemesis` gives; otherwise a drawn number of leases. Draws in either case, so that a
    /// given length does not change later draws.
    pub fn lasting(&mut self, range: std::ops::RangeInclusive<f64>) -> Duration {
        let drawn = Duration::from_millis(self.leases_ms(range));
        self.spec.lasting.unwrap_or(drawn)
    }
}
