//! `loss`: some of the packets between the target and some nodes are lost.

use std::time::Duration;

use history::fault::Loss;
use rand::Rng;

use crate::{ClusterError, drawing::Drawing, driver::Driver, injection::Injection, links, spec::TargetSpec};

/// The share of packets that a drawn fault loses: some packets are lost twice, and most requests of clients are still
/// answered.
pub(crate) const LOST_PERCENT: std::ops::RangeInclusive<u8> = 10..=40;

impl Driver for Loss {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;

    fn draw(drawing: &mut Drawing<'_>) -> (Loss, Duration) {
        let lasting = drawing.lasting(0.5..=2.5);
        (Loss { percent: drawing.rng.random_range(LOST_PERCENT) }, lasting)
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        links::inject(injection).await
    }
}
