//! `delay` and `reorder`: packets between the target and some nodes are late.

use std::time::Duration;

use history::{
    Range,
    fault::{Delay, Reorder},
};

use crate::{ClusterError, drawing::Drawing, driver::Driver, injection::Injection, links, spec::TargetSpec};

/// The longest delay of a drawn fault that reorders packets.
pub(crate) const REORDERED_WITHIN: Duration = Duration::from_millis(80);

/// The longest delay of a drawn fault. A kernel waits about two minutes for the answer to a probe.
const DRAWN_MAX: Duration = Duration::from_secs(60);

impl Driver for Delay {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;

    fn draw(drawing: &mut Drawing<'_>) -> (Delay, Duration) {
        let lasting = drawing.lasting(0.5..=2.5);
        let by = Duration::from_millis(drawing.leases_ms(0.2..=1.5));
        let by = match drawing.spec.lasting {
            // Packets that a client sends from its protocol point on arrive when the fault is over.
            _ if drawing.spec.is_placed() => lasting,
            // A probe and its answer are both late, and the fault stays on until a probe has come back.
            Some(lasting) => by.min(lasting / 2).min(DRAWN_MAX),
            None => by.min(DRAWN_MAX),
        };
        (Delay { by: by.into() }, lasting)
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        links::inject(injection).await
    }
}

impl Driver for Reorder {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;

    fn draw(drawing: &mut Drawing<'_>) -> (Reorder, Duration) {
        let lasting = drawing.lasting(0.5..=2.5);
        (Reorder { by: Range { from: Duration::ZERO, to: REORDERED_WITHIN } }, lasting)
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        links::inject(injection).await
    }
}
