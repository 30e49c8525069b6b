//! The running cluster.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bollard::models::ContainerState;
use futures::future::try_join_all;
use history::NodeName;
use tokio::time::Instant;

use crate::{
    Engine,
    changes::OwnChanges,
    container::{Place, Recipe, Runs, logs},
    error::{Error, explain, status},
    file::Service,
    health::{self, run_in},
    process::{Outlet, Process},
    sweep::{self, Swept},
};

/// A running cluster: the [`nemesis::Cluster`] on real containers.
///
/// A drop ends the standard input of the processes, so the agent ends, and the next sweep may remove the cluster.
/// Before a drop, call [`Running::down`], or [`crate::take_down`] with the run's id.
#[derive(Debug)]
pub struct Running {
    place: Place,
    members: BTreeMap<NodeName, Member>,
    /// None after the cluster was taken down, so that the queue ends.
    outlet: Mutex<Option<Outlet>>,
    high_water: Arc<AtomicUsize>,
}

/// One node.
#[derive(Debug)]
pub(crate) struct Member {
    /// The id of the node's container. A server that loses its data gets a new container.
    container: Mutex<String>,
    pub recipe: Recipe,
    /// The output of earlier containers of this node.
    former_logs: Mutex<Vec<u8>>,
    /// The current process; none while a process is being started.
    process: Mutex<Option<Process>>,
    /// Held while the node's state changes, so that two faults of one node follow each other.
    pub control: tokio::sync::Mutex<Control>,
}

/// The state of a node that faults have changed.
#[derive(Debug)]
pub(crate) struct Control {
    /// Time of the last freeze or thaw.
    pub toggled: Option<Instant>,
    /// Number of starts.
    pub starts: u32,
    /// Changes of ours that the engine has not reported yet.
    pub own: OwnChanges,
    /// True if the container is in the run's network, as far as reported.
    pub is_connected: bool,
    /// True while a fault of ours stops the node by a signal.
    pub is_stopped: bool,
}

impl Member {
    pub(crate) fn new(container: String, recipe: Recipe, process: Option<Process>) -> Self {
        Self {
            container: Mutex::new(container),
            recipe,
            former_logs: Mutex::default(),
            process: Mutex::new(process),
            control: tokio::sync::Mutex::new(Control {
                toggled: None,
                starts: 1,
                own: OwnChanges::default(),
                is_connected: true,
                is_stopped: false,
            }),
        }
    }

    pub(crate) fn process(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.process)
    }

    pub(crate) fn container(&self) -> String {
        lock(&self.container).clone()
    }

    /// Returns the server on this node; none if the node runs one of our own processes.
    pub(crate) fn server(&self) -> Option<&Service> {
        match &self.recipe.node.runs {
            Runs::Server(service) => Some(service),
            Runs::Own(_) | Runs::Reaching(_) => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    pub(crate) fn new(place: Place, members: BTreeMap<NodeName, Member>, outlet: Outlet) -> Self {
        let high_water = outlet.high_water();
        Self { place, members, outlet: Mutex::new(Some(outlet)), high_water }
    }

    /// Returns the run's id.
    pub fn run(&self) -> &str {
        &self.place.run
    }

    /// Returns all nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.members.keys()
    }

    /// Returns all nodes with their members, by name.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&NodeName, &Member)> {
        self.members.iter()
    }

    /// Returns the backend's servers, by name, each with its role.
    pub fn server_nodes(&self) -> impl Iterator<Item = (&NodeName, &str)> {
        let servers = self.members.iter().filter(|(_, member)| member.server().is_some());
        servers.map(|(node, member)| (node, member.recipe.node.role.as_str()))
    }

    /// Returns the nodes' addresses on the run's network, and the addresses of servers outside of it. A node keeps its
    /// address when it restarts. Nodes find each other by name.
    pub fn addresses(&self) -> impl Iterator<Item = (&NodeName, Ipv4Addr)> {
        let members = self.members.iter().map(|(node, member)| (node, member.recipe.address));
        members.chain(self.place.own_servers.iter().map(|(node, server)| (node, *server.at.ip())))
    }

    /// Returns the address of a server that exists already; none, if `node` is a node of the run.
    pub(crate) fn own_server(&self, node: &NodeName) -> Option<SocketAddrV4> {
        self.place.own_servers.get(node).map(|server| server.at)
    }

    /// Returns the content ids of the images (`sha256:…`), by role.
    pub fn images(&self) -> BTreeMap<String, String> {
        let image = |member: &Member| (member.recipe.node.role.clone(), member.recipe.image.id.clone());
        self.members.values().map(image).collect()
    }

    /// Returns the largest number of lines that have waited in the queue. At 65,536, the queue's capacity, a sender
    /// waits, and so does the process behind it.
    pub fn high_water(&self) -> usize {
        self.high_water.load(Ordering::Relaxed)
    }

    /// Queues `line`, without an end of line, for the standard input of the process on `node`, and returns at once. A
    /// frozen process reads the line when it resumes.
    ///
    /// # Errors
    /// The node has no process of ours, or the process takes no more input. The caller does not learn whether the
    /// process read the line.
    pub fn send(&self, node: &NodeName, line: String) -> Result<(), Error> {
        debug_assert!(!line.contains('\n'), "one line at a time");
        let member = self.own(node)?;
        let sent = member.process().as_ref().is_some_and(|process| process.send(line));
        if sent { Ok(()) } else { Err(Error::InputClosed { node: node.clone() }) }
    }

    /// Ends the standard input of the process on `node` after the queued lines. The process then finishes and exits.
    ///
    /// # Errors
    /// The node has no process of ours.
    pub fn close_input(&self, node: &NodeName) -> Result<(), Error> {
        if let Some(process) = self.own(node)?.process().as_mut() {
            process.close_input();
        }
        Ok(())
    }

    /// Runs a command on `node`, without a shell, and returns its standard output. The engine refuses this on a frozen
    /// node.
    ///
    /// # Errors
    /// The command cannot be run, or its exit code is not 0.
    pub async fn exec(&self, node: &NodeName, command: &[&str]) -> Result<String, Error> {
        let member = self.member(node)?;
        let doing = || format!("{node}: running `{}`", command.join(" "));
        let done = run_in(self.engine(), &member.container(), command).await.map_err(|e| Error::engine(doing(), &e))?;
        if done.code == 0 {
            return Ok(done.stdout);
        }
        let output = format!("{} {}", done.stdout.trim(), done.stderr.trim()).trim().to_owned();
        Err(Error::Command { node: node.clone(), command: command.join(" "), code: done.code, output })
    }

    /// Returns all output of a server since its first start.
    ///
    /// # Errors
    /// `node` is not a server, or the engine does not return its output.
    pub async fn logs(&self, node: &NodeName) -> Result<Vec<u8>, Error> {
        let member = self.member(node)?;
        if member.server().is_none() {
            return Err(self.no_such(node, "server", |member| member.server().is_some()));
        }
        let mut all = lock(&member.former_logs).clone();
        all.extend(
            self.log(member).await.map_err(|why| Error::Engine { doing: format!("{node}: reading its log"), why })?,
        );
        Ok(all)
    }

    async fn log(&self, member: &Member) -> Result<Vec<u8>, String> {
        logs(self.engine(), &member.container(), None).await
    }

    /// Replaces a server's container by a new container with the same address and without data. The new container is
    /// not started.
    pub(crate) async fn replace(&self, member: &Member, control: &mut Control) -> Result<(), String> {
        let log = self.log(member).await?;
        lock(&member.former_logs).extend(log);
        let former = member.container();
        sweep::remove_container(self.engine(), &former).await.map_err(|error| explain(&error))?;
        let created = self.place.create(&member.recipe).await.map_err(|error| error.to_string())?;
        *lock(&member.container) = created;
        // Reports about the former container may still come. They are of no member any more, so they explain nothing.
        (control.own.died, control.own.started) = (0, 0);
        Ok(())
    }

    /// Returns the pid, on the engine's host, of the first process in the node's container; none if the container does
    /// not run, or is just being replaced by a new one.
    pub(crate) async fn pid(&self, member: &Member) -> Result<Option<i32>, String> {
        let inspected = match self.engine().docker().inspect_container(&member.container(), None).await {
            Err(error) if status(&error) == Some(404) => return Ok(None),
            inspected => inspected.map_err(|error| explain(&error))?,
        };
        let pid = inspected.state.and_then(|state| state.pid).unwrap_or(0);
        Ok(i32::try_from(pid).ok().filter(|pid| *pid > 0))
    }

    /// Takes the cluster down: its containers, the agent last, then the network. With `keep` the servers and the
    /// network stay. The queue ends after the processes' last output. A second call does nothing. Returns the removed
    /// objects.
    ///
    /// # Errors
    /// The engine does not list the objects, or does not remove one of them. If a container is not removed, the agent
    /// and other containers may be left too.
    pub async fn down(&self) -> Result<Swept, Error> {
        lock(&self.outlet).take();
        sweep::remove_run(self.engine(), &self.place.run, self.place.keep).await
    }

    /// Returns whether [`Running::down`] was called.
    pub fn is_down(&self) -> bool {
        self.outlet().is_none()
    }

    /// Returns an error if a process has already ended, for example because the image cannot run our binary.
    pub(crate) async fn refuse_ended(&self) -> Result<(), Error> {
        let looks = self.members.iter().map(|(node, member)| async move {
            if member.server().is_some() {
                return health::refuse_ended(self.engine(), &member.container(), node).await;
            }
            let state = self.state(member).await.map_err(|why| Error::Start { node: node.clone(), why })?;
            if state.running == Some(true) {
                return Ok(());
            }
            let process = member.process().take();
            let log = match process {
                Some(process) => process.last_words(Duration::from_secs(2)).await,
                None => String::new(),
            };
            Err(Error::Exited { node: node.clone(), code: state.exit_code.unwrap_or(-1), log })
        });
        try_join_all(looks).await.map(drop)
    }

    /// Asks the engine for the state of a node's container.
    pub(crate) async fn state(&self, member: &Member) -> Result<ContainerState, String> {
        let inspected = self.engine().docker().inspect_container(&member.container(), None).await;
        Ok(inspected.map_err(|error| explain(&error))?.state.unwrap_or_default())
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.place.engine
    }

    pub(crate) fn outlet(&self) -> Option<Outlet> {
        lock(&self.outlet).clone()
    }

    pub(crate) fn member(&self, node: &NodeName) -> Result<&Member, Error> {
        self.members.get(node).ok_or_else(|| self.no_such(node, "node", |_| true))
    }

    fn own(&self, node: &NodeName) -> Result<&Member, Error> {
        let member = self.members.get(node).filter(|member| member.server().is_none());
        member.ok_or_else(|| self.no_such(node, "process of ours", |member| member.server().is_none()))
    }

    fn no_such(&self, node: &NodeName, wanted: &'static str, like: impl Fn(&Member) -> bool) -> Error {
        let known: Vec<_> =
            self.members.iter().filter(|(_, member)| like(member)).map(|(node, _)| node.as_str()).collect();
        Error::NoSuchNode { node: node.clone(), wanted, known: known.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ComposeFile, changes::Change, container::Node, fake_engine, image::Image};

    #[tokio::test]
    async fn what_was_done_to_a_former_container_explains_nothing_of_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let answer = |request: &str| match request {
            r if r.starts_with("DELETE ") => fake_engine::DONE.to_owned(),
            r if r.contains("/logs?") => fake_engine::json(""),
            _ => fake_engine::json(r#"{"Id":"new","Warnings":[]}"#),
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let running = fake_engine::running(&engine).await;
        let member = running.member(&NodeName::new("worker-1")).unwrap();
        let mut control = member.control.lock().await;
        (control.own.died, control.own.started) = (1, 1);
        running.replace(member, &mut control).await.unwrap();
        assert_eq!(member.container(), "new");
        assert!(!control.own.explain(Change::Died) && !control.own.explain(Change::Started));
    }

    #[tokio::test]
    async fn the_log_of_a_server_has_the_output_of_all_its_containers() {
        let (dir, created) = (tempfile::tempdir().unwrap(), AtomicUsize::new(1));
        let answer = move |request: &str| match request {
            r if r.starts_with("DELETE ") => fake_engine::DONE.to_owned(),
            r if r.contains("/containers/create") => {
                let number = created.fetch_add(1, Ordering::Relaxed) + 1;
                fake_engine::json(&format!(r#"{{"Id":"c{number}","Warnings":[]}}"#))
            }
            // Each container has written its id to its standard output, which is stream 1.
            r => {
                let container = r.split('/').nth(3).unwrap_or_default();
                fake_engine::json(&format!("\u{1}\0\0\0\0\0\0\u{3}{container}\n"))
            }
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let name = NodeName::new("redis-1");
        let service = ComposeFile::builtin("redis").unwrap().services.remove(0);
        let node = Node { name: name.clone(), role: "redis".to_owned(), runs: Runs::Server(Box::new(service)) };
        let (id, entrypoint, arguments) = ("sha256:redis".to_owned(), Vec::new(), Vec::new());
        let image = Image { id, volumes: Vec::new(), entrypoint, arguments };
        let recipe = Recipe { node, image, address: Ipv4Addr::LOCALHOST };
        let members = BTreeMap::from([(name.clone(), Member::new("c1".to_owned(), recipe, None))]);
        let running = Running::new(fake_engine::place(&engine).await, members, Outlet::new(1).0);
        let member = running.member(&name).unwrap();
        let mut control = member.control.lock().await;
        for _ in 0..2 {
            running.replace(member, &mut control).await.unwrap();
        }
        assert_eq!(String::from_utf8(running.logs(&name).await.unwrap()).unwrap(), "c1\nc2\nc3\n");
    }

    #[tokio::test]
    async fn a_node_whose_container_is_replaced_has_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let answer = fake_engine::GONE;
        let engine = fake_engine::start(&dir, move |_| (Duration::ZERO, answer.to_owned())).await;
        let running = fake_engine::running(&engine).await;
        let member = running.member(&NodeName::new("worker-1")).unwrap();
        assert_eq!(running.pid(member).await, Ok(None));
    }
}
