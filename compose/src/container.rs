//! Creates and starts containers.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
};

use bollard::{
    body_stream,
    errors::Error as EngineError,
    models::{
        ContainerCreateBody, EndpointIpamConfig, EndpointSettings, HealthConfig, HostConfig, HostConfigLogConfig,
        Mount, MountType, MountVolumeOptions, NetworkingConfig,
    },
    query_parameters::{LogsOptions, UploadToContainerOptions},
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use history::NodeName;

use crate::{
    Engine,
    binary::{self, BinaryVolume},
    error::{Error, explain},
    file::{STORE_ROLE, Service},
    image::Image,
    names,
    own_server::OwnServer,
    power, sweep,
};

/// Capabilities of an agent that reaches into other containers: it enters their network namespaces, changes rules
/// there, and writes to the memory of their processes, also of processes of another user.
const REACH: [&str; 4] = ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "DAC_OVERRIDE"];
/// The bytes of an upload that are sent at a time.
const CHUNK: usize = 256 * 1024;

/// A container that is to be created.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub node: Node,
    pub image: Image,
    pub address: Ipv4Addr,
}

/// A node and its task.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub name: NodeName,
    pub role: String,
    pub runs: Runs,
}

/// The program that runs on a node.
#[derive(Debug, Clone)]
pub(crate) enum Runs {
    /// A server of the backend.
    Server(Box<Service>),
    /// The harness's own binary, with this command.
    Own(Vec<String>),
    /// The harness's own binary, with access to the processes and networks of other containers.
    Reaching(Vec<String>),
}

/// The properties that all containers of a run share.
#[derive(Debug)]
pub(crate) struct Place {
    pub engine: Engine,
    pub run: String,
    pub keep: bool,
    pub network: String,
    /// The volume with the harness's binary.
    pub binary: BinaryVolume,
    /// True if the servers' machines can lose power.
    pub loses_power: bool,
    /// Packed files that each worker gets before it starts.
    pub worker_files: Option<Bytes>,
    /// The servers that exist already.
    pub own_servers: BTreeMap<NodeName, OwnServer>,
}

impl Place {
    /// Creates the container with its labels. Returns the container's id.
    pub(crate) async fn create(&self, recipe: &Recipe) -> Result<String, Error> {
        let node = &recipe.node.name;
        let failed = |e| Error::engine(format!("{node}: creating its container"), &e);
        let name = names::of_node(&self.run, node.as_str());
        self.engine.create_container(name, self.body(recipe)).await.map_err(failed)
    }

    /// Fills the volume with the packed binary, through the container that may write to it. The container need not run.
    pub(crate) async fn fill(&self, container: &str, binary: Bytes) -> Result<(), Error> {
        let filled = self.upload(container, binary::DIR, binary).await;
        filled.map_err(|e| Error::engine("uploading the harness's binary", &e))
    }

    /// Unpacks an archive in a directory of a container. The container need not run.
    pub(crate) async fn upload(&self, container: &str, dir: &str, archive: Bytes) -> Result<(), EngineError> {
        let options = UploadToContainerOptions { path: dir.to_owned(), ..Default::default() };
        // A whole body would be copied once more for each upload under way.
        let chunks = (0..archive.len()).step_by(CHUNK);
        let chunks: Vec<Bytes> = chunks.map(|at| archive.slice(at..archive.len().min(at + CHUNK))).collect();
        self.engine.docker().upload_to_container(container, Some(options), body_stream(stream::iter(chunks))).await
    }

    fn body(&self, recipe: &Recipe) -> ContainerCreateBody {
        let keep = self.keep && matches!(recipe.node.runs, Runs::Server(_));
        let mut labels = sweep::labels(&self.run, keep);
        labels.insert(sweep::NODE_LABEL.to_owned(), recipe.node.name.to_string());
        labels.insert(sweep::ROLE_LABEL.to_owned(), recipe.node.role.clone());
        let mut mounts: Vec<_> = recipe.image.volumes.iter().map(|path| volume(path, &self.run, keep)).collect();
        // Only lock nodes lose power.
        let loses_power = self.loses_power && recipe.node.role != STORE_ROLE;
        let needs_binary = match &recipe.node.runs {
            Runs::Server(service) => loses_power || service.harness_binary,
            Runs::Own(_) | Runs::Reaching(_) => true,
        };
        if needs_binary {
            mounts.push(self.binary.mount(recipe.node.role == sweep::AGENT_ROLE));
        }
        let base = ContainerCreateBody {
            image: Some(recipe.image.id.clone()),
            hostname: Some(recipe.node.name.to_string()),
            labels: Some(labels),
            networking_config: Some(self.endpoint(recipe)),
            // Otherwise the engine would repeat the image's own healthcheck during the run.
            healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..Default::default() }),
            ..Default::default()
        };
        let host = HostConfig {
            network_mode: Some(self.network.clone()),
            mounts: Some(mounts),
            extra_hosts: OwnServer::hosts(self.own_servers.values()),
            ..Default::default()
        };
        match &recipe.node.runs {
            Runs::Server(service) => {
                let body = ContainerCreateBody {
                    entrypoint: (!service.entrypoint.is_empty()).then(|| service.entrypoint.clone()),
                    cmd: (!service.command.is_empty()).then(|| service.command.clone()),
                    env: Some(service.environment.iter().map(|(key, value)| format!("{key}={value}")).collect()),
                    host_config: Some(HostConfig { log_config: Some(log_driver("json-file")), ..host }),
                    ..base
                };
                if loses_power { power::over(body, service, &recipe.image) } else { body }
            }
            Runs::Own(command) | Runs::Reaching(command) => {
                own_process(command, own_host(matches!(recipe.node.runs, Runs::Reaching(_)), host), base)
            }
        }
    }

    fn endpoint(&self, recipe: &Recipe) -> NetworkingConfig {
        let endpoint = EndpointSettings {
            aliases: Some(vec![recipe.node.name.to_string()]),
            ipam_config: Some(EndpointIpamConfig {
                ipv4_address: Some(recipe.address.to_string()),
                ..Default::default()
            }),
            ..Default::default()
        };
        NetworkingConfig { endpoints_config: Some(HashMap::from([(self.network.clone(), endpoint)])) }
    }
}

/// A process of ours whose standard input and output are attached.
pub(crate) fn own_process(command: &[String], host: HostConfig, base: ContainerCreateBody) -> ContainerCreateBody {
    ContainerCreateBody {
        entrypoint: Some(command.to_vec()),
        open_stdin: Some(true),
        // Otherwise a process never sees the end of its input when the controller dies.
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        host_config: Some(host),
        ..base
    }
}

/// Returns the privileges of our process: none, or those that faults of packets and clocks need. Such faults act on
/// processes of other containers, by their pids on the host.
pub(crate) fn own_host(is_reaching: bool, host: HostConfig) -> HostConfig {
    let mut security = vec!["no-new-privileges".to_owned()];
    let host = HostConfig { log_config: Some(log_driver("none")), cap_drop: Some(vec!["ALL".to_owned()]), ..host };
    if !is_reaching {
        return HostConfig { security_opt: Some(security), ..host };
    }
    // The engine's own profile forbids tracing of processes outside the container, even with the capabilities.
    security.push("apparmor=unconfined".to_owned());
    HostConfig {
        cap_add: Some(REACH.map(str::to_owned).to_vec()),
        pid_mode: Some("host".to_owned()),
        security_opt: Some(security),
        ..host
    }
}

/// A volume that the image declares. The engine would create the volume without a label, so we create it ourselves.
fn volume(path: &str, run: &str, keep: bool) -> Mount {
    Mount {
        target: Some(path.to_owned()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(MountVolumeOptions { labels: Some(sweep::labels(run, keep)), ..Default::default() }),
        ..Default::default()
    }
}

fn log_driver(name: &str) -> HostConfigLogConfig {
    HostConfigLogConfig { typ: Some(name.to_owned()), ..Default::default() }
}

/// Reads the output of a server: the last `lines` lines, or all lines, of both streams in their order.
pub(crate) async fn logs(engine: &Engine, container: &str, lines: Option<usize>) -> Result<Vec<u8>, String> {
    let tail = lines.map_or_else(|| "all".to_owned(), |lines| lines.to_string());
    let options = LogsOptions { stdout: true, stderr: true, tail, ..Default::default() };
    let mut stream = std::pin::pin!(engine.docker().logs(container, Some(options)));
    let mut text = Vec::new();
    while let Some(chunk) = stream.next().await {
        text.extend_from_slice(&chunk.map_err(|error| explain(&error))?.into_bytes());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ComposeFile, fake_engine};

    #[tokio::test]
    async fn only_servers_are_kept_and_only_lock_nodes_lose_power() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake_engine::start(&dir, |_| (Duration::ZERO, String::new())).await;
        let place = Place { keep: true, loses_power: true, ..fake_engine::place(&engine).await };
        let service = ComposeFile::builtin("redis").unwrap().services.remove(0);
        let server = || Runs::Server(Box::new(service.clone()));
        let own = || vec![binary::BINARY.to_owned()];
        for (role, runs, is_kept, loses_power, has_binary) in [
            ("redis", server(), true, true, true),
            (STORE_ROLE, server(), true, false, false),
            ("worker", Runs::Own(own()), false, false, true),
            (sweep::AGENT_ROLE, Runs::Reaching(own()), false, false, true),
        ] {
            let (id, volumes) = ("sha256:1".to_owned(), vec!["/declared".to_owned()]);
            let image = Image { id, volumes, entrypoint: Vec::new(), arguments: Vec::new() };
            let node = Node { name: NodeName::new("node-1"), role: role.to_owned(), runs };
            let body = place.body(&Recipe { node, image, address: Ipv4Addr::LOCALHOST });
            let (labels, host) = (body.labels.unwrap(), body.host_config.unwrap());
            let of_run = sweep::labels(&place.run, true);
            assert_eq!(of_run.iter().all(|(label, value)| labels.get(label) == Some(value)), is_kept, "{role}");
            assert_eq!(host.devices.is_some(), loses_power, "{role}");
            let mounts = host.mounts.unwrap();
            let labels = mounts[0].volume_options.as_ref().and_then(|options| options.labels.clone());
            assert_eq!(labels, Some(sweep::labels(&place.run, is_kept)), "{role}");
            assert_eq!(mounts.len(), 1 + usize::from(has_binary), "{role}");
            let fills = role == sweep::AGENT_ROLE;
            assert!(mounts[1..].iter().all(|mount| mount.read_only == Some(!fills)), "{role}");
        }
    }
}
