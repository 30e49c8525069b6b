//! One process of ours at the end of a run: it runs in the run's network to its end.

use std::{collections::HashMap, time::Duration};

use bollard::{
    models::{ContainerCreateBody, HostConfig},
    query_parameters::{CreateContainerOptions, KillContainerOptions, ListContainersOptions},
};
use history::NodeName;
use tokio::time::timeout;

use crate::{
    Engine,
    binary::BinaryVolume,
    bring_up::WORKER_ROLE,
    container::{own_host, own_process},
    error::{Error, status},
    names,
    own_server::OwnServer,
    process::{Outlet, Process, What, exit_code},
    sweep,
};

/// The number of lines of output that are read.
const LINES: usize = 1_000;
/// Time within which a killed worker must be gone.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// A process of ours, and what it needs.
#[derive(Debug)]
pub struct Task<'a> {
    /// The run in whose network the process runs.
    pub run: &'a str,
    /// The process's name, for messages.
    pub name: &'a str,
    /// The command.
    pub command: Vec<String>,
    /// The line on its standard input.
    pub input: String,
    /// The servers outside of the network.
    pub own_servers: Vec<OwnServer>,
    /// The longest time that the process may take.
    pub within: Duration,
}

/// The end of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskEnd {
    /// The exit code; none, if the process did not end in time, or the engine does not report a code.
    pub code: Option<i64>,
    /// Its output.
    pub stdout: String,
    /// Its messages.
    pub stderr: String,
}

/// Kills the workers of a run, and then runs a process in the run's network. May be called in any state of the run,
/// also after [`crate::up`] was dropped. Returns none if the run never had a worker.
///
/// # Errors
/// The engine refuses something.
pub async fn run_last(engine: &Engine, task: Task<'_>) -> Result<Option<TaskEnd>, Error> {
    let Some(image) = kill_workers(engine, task.run).await? else { return Ok(None) };
    let docker = engine.docker();
    let failed = |e| Error::engine(format!("{}: creating its container", task.name), &e);
    let name = names::of_node(task.run, task.name);
    let options = CreateContainerOptions { name: Some(name), ..Default::default() };
    let container = docker.create_container(Some(options), body(&task, image)).await.map_err(failed)?.id;
    let ended = run(engine, &container, &task).await;
    let removed = sweep::remove_container(engine, &container).await;
    let ended = ended?;
    removed.map_err(|e| Error::engine(format!("{}: removing its container", task.name), &e))?;
    Ok(Some(ended))
}

async fn run(engine: &Engine, container: &str, task: &Task<'_>) -> Result<TaskEnd, Error> {
    let (outlet, mut output) = Outlet::new(LINES);
    let node = NodeName::new(task.name);
    let launched = Process::launch(engine, container, &node, 1, &outlet).await;
    let process = launched.map_err(|e| Error::engine(format!("{node}: starting its container"), &e))?;
    process.send(task.input.clone());
    let mut end = TaskEnd::default();
    let reading = async {
        while let Some(output) = output.recv().await {
            let add = |text: &mut String, line: &[u8]| *text += &format!("{}\n", String::from_utf8_lossy(line));
            match output.what {
                What::Line(line) => add(&mut end.stdout, &line),
                What::Stderr(line) => add(&mut end.stderr, &line),
                What::Ended { code } => {
                    end.code = code;
                    return;
                }
            }
        }
    };
    // A process that is late has no exit code.
    drop(timeout(task.within, reading).await);
    Ok(end)
}

/// Kills the workers, so that no request of theirs comes after the task. Returns their image.
async fn kill_workers(engine: &Engine, run: &str) -> Result<Option<String>, Error> {
    let failed = |e| Error::engine(format!("killing the workers of run {run}"), &e);
    let labels = vec![sweep::label_of(run), format!("{}={WORKER_ROLE}", sweep::ROLE_LABEL)];
    let filters = Some(HashMap::from([("label".to_owned(), labels)]));
    let options = ListContainersOptions { all: true, filters, ..Default::default() };
    let workers = engine.docker().list_containers(Some(options)).await.map_err(failed)?;
    let mut image = None;
    for worker in workers {
        let Some(id) = worker.id else { continue };
        image = image.or(worker.image_id);
        let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
        match engine.docker().kill_container(&id, Some(options)).await {
            // The worker had ended, or was removed.
            Err(error) if matches!(status(&error), Some(404 | 409)) => {}
            other => other.map_err(failed)?,
        }
        drop(timeout(KILLED_WITHIN, exit_code(engine, &id)).await);
    }
    Ok(image)
}

fn body(task: &Task<'_>, image: String) -> ContainerCreateBody {
    let host = HostConfig {
        network_mode: Some(names::of_run(task.run)),
        mounts: Some(vec![BinaryVolume::of(task.run).mount(false)]),
        extra_hosts: OwnServer::hosts(task.own_servers.iter()),
        ..Default::default()
    };
    let base = ContainerCreateBody {
        image: Some(image),
        hostname: Some(task.name.to_owned()),
        labels: Some(sweep::labels(task.run, false)),
        ..Default::default()
    };
    own_process(&task.command, own_host(false, host), base)
}
