//! `partition`: the target is cut off from some nodes.

use std::time::Duration;

use history::{CutMode, fault::Partition};

use crate::{ClusterError, drawing::Drawing, driver::Driver, injection::Injection, links, spec::TargetSpec};

impl Driver for Partition {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;

    fn draw(drawing: &mut Drawing<'_>) -> (Partition, Duration) {
        let lasting = drawing.lasting(0.5..=2.5);
        let cut = if drawing.spec.links.is_reject { CutMode::Reject } else { CutMode::Drop };
        (Partition { cut }, lasting)
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        links::inject(injection).await
    }
}
