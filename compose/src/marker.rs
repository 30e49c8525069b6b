//! A marker key on a Redis: the key is gone if the server has lost its data.

use std::net::SocketAddrV4;

use agent::protocol::{MarkerStep, TargetAnswer, TargetRequest};
use history::NodeName;
use nemesis::ClusterError;

use crate::{
    reach::{DockerCluster, REDIS_PORT, TOLD_WITHIN, failed},
    redis,
};

impl DockerCluster<'_> {
    /// Leaves the marker of this run on a Redis, or takes it away. Returns whether the marker is or was there; none for
    /// all other nodes. The agent asks the server over the network of the run, which takes about a millisecond and no
    /// command in the container.
    pub(crate) async fn marker(&self, node: &NodeName, step: MarkerStep) -> Result<Option<bool>, ClusterError> {
        let doing = match step {
            MarkerStep::Leave => "leaving a marker key on it",
            MarkerStep::Take => "looking for the marker key on it",
        };
        if self.member(node, doing)?.server().is_none_or(|service| service.role != redis::ROLE) {
            return Ok(None);
        }
        let at = SocketAddrV4::new(self.address(node, doing)?, REDIS_PORT);
        // No client uses this key: the clients' keys are `k…` and `fence:…`.
        let key = format!("harness-marker:{}", self.running.run());
        let timeout_ms = TOLD_WITHIN.as_millis() as u64;
        match self.target(node, TargetRequest::RedisMarker { at, key, step, timeout_ms }).await? {
            TargetAnswer::RedisMarker(is_there) => Ok(Some(is_there)),
            other => Err(failed(node, doing, format!("the agent answered {other:?}"))),
        }
    }
}
