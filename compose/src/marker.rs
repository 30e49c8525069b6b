//! A marker in the data of a server: the marker is gone if the server has lost its data.

use std::{net::SocketAddrV4, time::Duration};

use agent::protocol::{MarkerStep, TargetAnswer, TargetRequest};
use history::NodeName;
use nemesis::ClusterError;
use tokio::time::timeout;

use crate::{
    error::explain,
    file::Service,
    health::run_in,
    reach::{DockerCluster, REDIS_PORT, TOLD_WITHIN, failed},
    redis,
    running::Member,
};

/// The time limit of a command in a container, which is busy with a restart.
const FILE_WITHIN: Duration = Duration::from_secs(10);

/// Returns whether the marker of a server is a key. Replicas of a Redis copy its keys, and a marker among them.
fn is_key(service: &Service) -> bool {
    service.role == redis::ROLE && !service.has_copies
}

impl DockerCluster<'_> {
    /// Leaves the marker of this run in the data of a server, or takes it away. Returns whether the marker is or was
    /// there; none for a node whose data directory is unknown. The marker of a Redis is a key: the agent asks the
    /// server over the network of the run, which takes about a millisecond and no command in the container. The marker
    /// of another server, and of a Redis with replicas, is a file in its data directory.
    pub(crate) async fn marker(&self, node: &NodeName, step: MarkerStep) -> Result<Option<bool>, ClusterError> {
        let doing = match step {
            MarkerStep::Leave => "leaving a marker in its data",
            MarkerStep::Take => "looking for the marker in its data",
        };
        let member = self.member(node, doing)?;
        let Some(service) = member.server() else { return Ok(None) };
        if is_key(service) {
            return self.marker_key(node, step, doing).await.map(Some);
        }
        let Some(data) = &service.data else { return Ok(None) };
        let path = format!("{data}/harness-marker");
        self.marker_file(member, &path, step).await.map(Some).map_err(|why| failed(node, doing, why))
    }

    async fn marker_key(&self, node: &NodeName, step: MarkerStep, doing: &'static str) -> Result<bool, ClusterError> {
        let at = SocketAddrV4::new(self.address(node, doing)?, REDIS_PORT);
        // No client uses this key: the clients' keys are `k…` and `fence:…`.
        let key = format!("harness-marker:{}", self.running.run());
        let timeout_ms = TOLD_WITHIN.as_millis() as u64;
        match self.target(node, TargetRequest::RedisMarker { at, key, step, timeout_ms }).await? {
            TargetAnswer::RedisMarker(is_there) => Ok(is_there),
            other => Err(failed(node, doing, format!("the agent answered {other:?}"))),
        }
    }

    async fn marker_file(&self, member: &Member, path: &str, step: MarkerStep) -> Result<bool, String> {
        let script = match step {
            MarkerStep::Leave => format!("touch {path} && echo there"),
            MarkerStep::Take => format!("if [ -e {path} ]; then rm {path} && echo there; else echo gone; fi"),
        };
        let command = ["sh", "-c", &script];
        let asked = timeout(FILE_WITHIN, run_in(self.running.engine(), &member.container(), &command)).await;
        let done = asked.map_err(|_| format!("no answer within {FILE_WITHIN:?}"))?;
        let done = done.map_err(|error| explain(&error))?;
        match (done.code, done.stdout.trim()) {
            (0, "there") => Ok(true),
            (0, "gone") => Ok(false),
            _ => Err(format!("`{path}`: {} {}", done.stdout.trim(), done.stderr.trim())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ComposeFile;

    #[test]
    fn the_marker_is_a_key_only_where_no_other_server_brings_keys_back() {
        for (backend, expected) in [("redis", true), ("redlock", true), ("redis-replicated", false), ("etcd", false)] {
            let services = ComposeFile::builtin(backend).unwrap().services;
            assert!(services.iter().all(|service| is_key(service) == expected), "{backend}");
            // A file need not have the command that finds the leader.
            let mut without = services.into_iter().map(|service| Service { leader: None, ..service });
            assert!(without.all(|service| is_key(&service) == expected), "{backend}, without a leader");
        }
    }
}
