//! Starts the cluster of one run completely, or removes what was started.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::LazyLock,
};

use bollard::query_parameters::StartContainerOptions;
use bytes::Bytes;
use futures::future::try_join_all;
use history::NodeName;
use tokio::sync::mpsc;

use crate::{
    Engine, Progress,
    archive::{self, File},
    binary::{self, BinaryVolume},
    container::{Node, Place, Recipe, Runs},
    error::{Error, explain},
    file::{ComposeFile, Service},
    health::wait_until_healthy,
    image::{Image, Images, OWN_IMAGE, Wanted},
    names,
    network::Network,
    own_server::OwnServer,
    power,
    process::{Outlet, Output, Process},
    running::{Member, Running},
    steps::Steps,
    strip::read_stripped,
    sweep::{self, AGENT_NODE, AGENT_ROLE},
};

/// The role of the workers.
pub(crate) const WORKER_ROLE: &str = "worker";
/// Number of lines from our processes that may wait for the controller. Further lines wait in the processes' pipes.
const QUEUE_LINES: usize = 65_536;

/// The cluster that one run needs.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The run's id: at most 64 characters of a to z, 0 to 9 and -. Every object of the run carries the id as a label.
    pub run: String,
    /// The servers.
    pub servers: ComposeFile,
    /// The server that keeps the state of the resource; none if the resource keeps its state itself.
    pub resource_store: Option<Service>,
    /// Number of workers: `worker-1` to `worker-n`.
    pub workers: usize,
    /// Images that the user named, by role: the roles of the servers, `worker`, `resource`, `agent`.
    pub images: BTreeMap<String, String>,
    /// True if [`Running::down`] leaves servers and networks for [`crate::clean_kept`].
    pub keep: bool,
    /// The harness's binary, linked statically. In the containers of our own processes its path is [`crate::BINARY`].
    pub binary: PathBuf,
    /// The command of the resource: [`crate::BINARY`], `resource`.
    pub resource_args: Vec<String>,
    /// The command of each worker.
    pub worker_args: Vec<String>,
    /// Files that every worker gets before it starts, below this directory.
    pub worker_files: (String, Vec<File>),
    /// Debian packages of the image of the workers. Without any, workers run in the image of the resource.
    pub worker_packages: Vec<String>,
    /// The command of the agent.
    pub agent_args: Vec<String>,
    /// True if faults of packets or clocks require the agent to reach into other containers.
    pub reaches: bool,
    /// True if servers lose power: then a file system of ours lies over their data.
    pub loses_power: bool,
    /// The servers that exist already. `servers` has no services then.
    pub own_servers: BTreeMap<NodeName, OwnServer>,
}

/// Removes the leftovers of dead runs, finds the images, starts the cluster, and waits until every server has passed
/// its healthcheck. The agent starts first: while the agent runs, no sweep of another run removes this cluster.
///
/// Returns the cluster and the queue of all output of our own processes. A reader must empty the queue, because a full
/// queue blocks the processes. A process that ends later reports its end in the queue.
///
/// A dropped future leaves the objects that it has made: call [`crate::take_down`] then.
///
/// # Errors
/// The first problem that keeps a node from starting. All objects have been removed again.
pub async fn up(
    engine: &Engine,
    spec: &Spec,
    progress: Progress<'_>,
) -> Result<(Running, mpsc::Receiver<Output>), Error> {
    let (nodes, binary) = prepare(engine, spec, progress).await?;
    let started = start(engine, spec, nodes, binary, progress).await;
    if started.is_err() {
        match sweep::take_down(engine, &spec.run).await {
            Ok(swept) => swept.stuck_networks().iter().for_each(|stuck| progress(stuck)),
            Err(error) => {
                let clean = if spec.keep { "harness clean --kept" } else { "harness clean" };
                progress(&format!("could not remove what was started: {error}; `{clean}` will"));
            }
        }
    }
    started
}

/// As [`up`], but a failure leaves what was started: the caller tells the failure, and calls [`crate::take_down`].
///
/// # Errors
/// The first problem that keeps a node from starting.
pub async fn up_or_leave(
    engine: &Engine,
    spec: &Spec,
    progress: Progress<'_>,
) -> Result<(Running, mpsc::Receiver<Output>), Error> {
    let (nodes, binary) = prepare(engine, spec, progress).await?;
    start(engine, spec, nodes, binary, progress).await
}

/// Removes the leftovers of dead runs, and finds the images. Returns the nodes with their images, and the packed
/// binary.
async fn prepare(engine: &Engine, spec: &Spec, progress: Progress<'_>) -> Result<(Vec<(Node, Image)>, Bytes), Error> {
    spec.check()?;
    match sweep::sweep(engine).await {
        Ok(swept) => {
            if !swept.is_empty() {
                let runs = swept.runs.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                progress(&format!("removed what dead runs had left: {runs}"));
            }
            swept.stuck_networks().iter().for_each(|stuck| progress(stuck));
        }
        // The leftovers of other runs are no reason to refuse this run.
        Err(error) => progress(&format!("could not remove everything that dead runs have left: {error}")),
    }
    // From here on, a failure removes every object with this id, so the id must not belong to another run.
    if sweep::exists(engine, &spec.run).await? {
        return Err(Error::Spec(format!("run {} exists already in the engine at {}", spec.run, engine.host())));
    }
    let path = spec.binary.clone();
    let packing = tokio::task::spawn_blocking(move || binary::packed(&read_stripped(fs::File::open(path)?)?));
    let nodes = nodes_with_images(engine, spec, progress).await?;
    let packed = packing.await.unwrap_or_else(|ended| Err(std::io::Error::other(ended)));
    let binary = packed.map_err(|source| Error::Binary { path: spec.binary.clone(), source })?;
    Ok((nodes, binary))
}

/// Finds the images of a cluster, otherwise pulls or builds them, and starts nothing. Returns their ids by role.
///
/// # Errors
/// An image is neither there, nor can it be pulled or built.
pub async fn images(engine: &Engine, spec: &Spec, progress: Progress<'_>) -> Result<BTreeMap<String, String>, Error> {
    spec.check()?;
    let nodes = nodes_with_images(engine, spec, progress).await?;
    Ok(nodes.into_iter().map(|(node, image)| (node.role, image.id)).collect())
}

async fn nodes_with_images(engine: &Engine, spec: &Spec, progress: Progress<'_>) -> Result<Vec<(Node, Image)>, Error> {
    let mut images = Images::new(engine, &spec.images, progress);
    let mut nodes = Vec::new();
    for node in spec.nodes() {
        let image = images.get(&wanted(&node, spec)).await?;
        nodes.push((node, image));
    }
    Ok(nodes)
}

fn wanted<'a>(node: &'a Node, spec: &'a Spec) -> Wanted<'a> {
    match &node.runs {
        Runs::Server(service) => {
            let (packages, python) = (&service.packages, &service.python);
            let bare = packages.is_empty() && python.is_empty() && service.image == OWN_IMAGE;
            Wanted { role: &service.role, image: Some(&service.image), packages, python, bare }
        }
        Runs::Own(_) if node.role == WORKER_ROLE && !spec.worker_packages.is_empty() => {
            Wanted { role: WORKER_ROLE, image: None, packages: &spec.worker_packages, python: &[], bare: false }
        }
        Runs::Own(_) => Wanted { role: &node.role, image: Some(OWN_IMAGE), packages: &[], python: &[], bare: true },
        Runs::Reaching(_) => {
            Wanted { role: &node.role, image: None, packages: reach_packages(), python: &[], bare: false }
        }
    }
}

impl Spec {
    fn check(&self) -> Result<(), Error> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.run.is_empty() || self.run.len() > 64 || !self.run.chars().all(plain) {
            return Err(Error::Spec(format!("run id `{}`: expected a to z, 0 to 9 and -, at most 64", self.run)));
        }
        let roles: BTreeSet<&str> = ["agent", "resource", "worker"]
            .into_iter()
            .chain(self.all_servers().map(|service| service.role.as_str()))
            .collect();
        match self.images.keys().find(|role| !roles.contains(role.as_str())) {
            Some(role) => {
                let known = roles.into_iter().collect::<Vec<_>>().join(", ");
                Err(Error::Spec(format!(
                    "an image is named for role `{role}`, which this cluster does not have; it has: {known}"
                )))
            }
            None => Ok(()),
        }
    }

    /// Returns the lock nodes, and the store of the resource.
    fn all_servers(&self) -> impl Iterator<Item = &Service> {
        self.servers.services.iter().chain(&self.resource_store)
    }

    /// Returns all nodes, the agent first.
    fn nodes(&self) -> Vec<Node> {
        let own = |name: String, role: &str, command: &[String]| Node {
            name: NodeName::new(name),
            role: role.to_owned(),
            runs: Runs::Own(command.to_vec()),
        };
        let mut nodes = vec![own(AGENT_NODE.to_owned(), AGENT_ROLE, &self.agent_args)];
        if self.reaches {
            nodes[0].runs = Runs::Reaching(self.agent_args.clone());
        }
        nodes.extend(self.all_servers().map(|service| Node {
            name: service.name.clone(),
            role: service.role.clone(),
            runs: Runs::Server(Box::new(service.clone())),
        }));
        nodes.push(own("resource".to_owned(), "resource", &self.resource_args));
        nodes.extend((1..=self.workers).map(|number| own(format!("worker-{number}"), WORKER_ROLE, &self.worker_args)));
        nodes
    }
}

async fn start(
    engine: &Engine,
    spec: &Spec,
    nodes: Vec<(Node, Image)>,
    binary: Bytes,
    progress: Progress<'_>,
) -> Result<(Running, mpsc::Receiver<Output>), Error> {
    let labels = sweep::labels(&spec.run, spec.keep);
    let network = Network::create(engine, &names::of_run(&spec.run), &labels).await?;
    let addresses = network.addresses(nodes.len())?;
    let is_needed = spec.loses_power || spec.all_servers().any(|service| service.harness_binary);
    let volume = BinaryVolume::create(engine, &spec.run, spec.keep && is_needed).await?;
    let place = Place {
        engine: engine.clone(),
        run: spec.run.clone(),
        keep: spec.keep,
        network: network.id.clone(),
        binary: volume,
        loses_power: spec.loses_power,
        worker_files: files_of(spec)?,
        own_servers: spec.own_servers.clone(),
    };
    let (outlet, output) = Outlet::new(QUEUE_LINES);
    let mut members = BTreeMap::new();
    let recipe = |((node, image), address)| Recipe { node, image, address };
    let mut recipes = nodes.into_iter().zip(addresses).map(recipe);
    if let Some(agent) = recipes.next() {
        members.extend([start_one(&place, agent, Some(binary), &outlet, progress).await?]);
    }
    members.extend(try_join_all(recipes.map(|recipe| start_one(&place, recipe, None, &outlet, progress))).await?);
    let running = Running::new(place, members, outlet);
    running.refuse_ended().await?;
    Ok((running, output))
}

/// Packs the files of the workers; none if there are none.
fn files_of(spec: &Spec) -> Result<Option<Bytes>, Error> {
    let (dir, files) = &spec.worker_files;
    let packed = (!files.is_empty()).then(|| archive::of_files(dir, files)).transpose();
    packed.map_err(|error| Error::Spec(format!("packing the files of the workers: {error}")))
}

/// Packages of the agent's image if the agent reaches into other containers. No registry publishes this image, so each
/// machine builds it.
fn reach_packages() -> &'static [String] {
    static PACKAGES: LazyLock<Vec<String>> = LazyLock::new(|| ["iptables", "nftables"].map(str::to_owned).to_vec());
    &PACKAGES
}

/// Creates and starts one container. The container of the agent gets the binary for all. For a server, waits until the
/// server answers.
async fn start_one(
    place: &Place,
    recipe: Recipe,
    binary: Option<Bytes>,
    outlet: &Outlet,
    progress: Progress<'_>,
) -> Result<(NodeName, Member), Error> {
    let steps = Steps::default();
    let container = steps.time("creating its container", place.create(&recipe)).await?;
    if let Some(binary) = binary {
        steps.time("uploading the harness's binary", place.fill(&container, binary)).await?;
    }
    if let Some(files) = place.worker_files.as_ref().filter(|_| recipe.node.role == WORKER_ROLE) {
        let uploading =
            steps.time("uploading the files of the client program", place.upload(&container, "/", files.clone()));
        let doing = || format!("{}: uploading the files of the client program", recipe.node.name);
        uploading.await.map_err(|e| Error::engine(doing(), &e))?;
    }
    let node = recipe.node.name.clone();
    let failed = |error| Error::Start { node: node.clone(), why: explain(&error) };
    let process = match &recipe.node.runs {
        Runs::Server(service) => {
            let starting = place.engine.docker().start_container(&container, None::<StartContainerOptions>);
            let started = steps.time("starting its container", starting).await;
            started.map_err(|error| power::refused(&node, &error).unwrap_or_else(|| failed(error)))?;
            wait_until_healthy(&place.engine, &container, service, &steps).await?;
            None
        }
        Runs::Own(_) | Runs::Reaching(_) => {
            let launching = Process::launch(&place.engine, &container, &node, 1, outlet);
            Some(steps.time("starting its container", launching).await.map_err(failed)?)
        }
    };
    if let Some((step, took)) = steps.slow() {
        progress(&format!("{node}: the Docker engine is slow: {step} took {:.1} s", took.as_secs_f64()));
    }
    Ok((node, Member::new(container, recipe, process)))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    use super::*;
    use crate::fake_engine::{self, FAILED, json};

    fn spec() -> Spec {
        let command = |name: &str| vec![crate::BINARY.to_owned(), name.to_owned()];
        Spec {
            run: "r-1".to_owned(),
            servers: ComposeFile::builtin("redlock").unwrap(),
            resource_store: None,
            workers: 2,
            images: BTreeMap::new(),
            keep: false,
            binary: PathBuf::from("/nonexistent"),
            resource_args: command("resource"),
            worker_args: command("worker"),
            worker_files: (String::new(), Vec::new()),
            worker_packages: Vec::new(),
            agent_args: command("agent"),
            reaches: false,
            loses_power: false,
            own_servers: BTreeMap::new(),
        }
    }

    #[test]
    fn the_agent_comes_first_and_every_node_once() {
        let nodes: Vec<_> = spec().nodes().iter().map(|node| node.name.to_string()).collect();
        assert_eq!(
            nodes,
            ["agent", "redis-1", "redis-2", "redis-3", "redis-4", "redis-5", "resource", "worker-1", "worker-2"]
        );
    }

    #[tokio::test]
    async fn the_caller_learns_of_a_failed_start_before_anything_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let engine = fake_engine::start(&dir, move |request| {
            noted.lock().unwrap().push(request.to_owned());
            let reply = match request {
                r if r.ends_with("/info") => json(r#"{"SystemTime":"2026-11-29T12:00:00Z"}"#),
                r if r.ends_with("/networks/create") => FAILED.to_owned(),
                r if r.contains("/images/") => json(r#"{"Id":"sha256:1"}"#),
                r if r.contains("/volumes") => json(r#"{"Volumes":[]}"#),
                _ => json("[]"),
            };
            (Duration::ZERO, reply)
        })
        .await;
        let last = || asked.lock().unwrap().last().cloned().unwrap_or_default();
        let binary = dir.path().join("binary");
        fs::write(&binary, "binary").unwrap();
        let spec = Spec { binary, ..spec() };
        let error = up_or_leave(&engine, &spec, &|_| {}).await.unwrap_err().to_string();
        assert!(error.contains("creating the network"), "{error}");
        assert!(last().ends_with("/networks/create"), "{}", last());
        up(&engine, &spec, &|_| {}).await.unwrap_err();
        assert!(!last().ends_with("/networks/create"), "it looks for what is to be removed: {}", last());
    }

    #[test]
    fn a_run_id_that_is_no_label_and_an_image_for_nobody_are_refused() {
        assert!(spec().check().is_ok());
        for run in ["", "A", "a/b", "a b", &"x".repeat(65)] {
            let message = Spec { run: run.to_owned(), ..spec() }.check().unwrap_err().to_string();
            assert!(message.starts_with(&format!("run id `{run}`: expected")), "{message}");
        }
        let images = BTreeMap::from([("etcd".to_owned(), "etcd:3".to_owned())]);
        let message = Spec { images, ..spec() }.check().unwrap_err().to_string();
        assert!(message.contains("role `etcd`") && message.contains("agent, redis, resource, worker"), "{message}");
    }
}
