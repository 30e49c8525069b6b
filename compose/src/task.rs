//! One process of ours at the end of a run: it runs in the run's network to its end.

use std::{collections::HashMap, time::Duration};

use bollard::{
    errors::Error as EngineError,
    models::{ContainerCreateBody, HostConfig, Mount, MountVolumeOptions},
    query_parameters::{KillContainerOptions, ListContainersOptions},
};
use history::NodeName;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Engine,
    bring_up::WORKER_ROLE,
    container::{own_host, own_process},
    error::{Error, status},
    names,
    own_server::OwnServer,
    process::{Outlet, Process, What, exit_code},
    running::Running,
    sweep,
};

/// The number of lines of output that are read.
const LINES: usize = 1_000;
/// Time within which a killed worker must be gone.
const KILLED_WITHIN: Duration = Duration::from_secs(10);
/// Time within which the container of an interrupted call must be gone, and the time between two tries.
const FREED_WITHIN: Duration = Duration::from_secs(10);
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// A process of ours, and what it needs.
#[derive(Debug)]
pub struct Task<'a> {
    /// The process's name, for messages.
    pub name: &'a str,
    /// The command.
    pub command: Vec<String>,
    /// The line on its standard input.
    pub input: String,
    /// The longest time that the process may take.
    pub within: Duration,
}

/// The end of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskEnd {
    /// The exit code; none, if the process did not end in time, or the engine does not report a code.
    pub code: Option<i64>,
    /// True if the process did not end in time.
    pub is_late: bool,
    /// Its output.
    pub stdout: String,
    /// Its messages.
    pub stderr: String,
}

/// Kills the workers of a run, and then runs a process in the network of the run, and in the image of its workers. An
/// earlier call may have been dropped.
///
/// # Errors
/// The engine refuses something, for example because somebody has removed the network.
pub async fn run_last(running: &Running, task: Task<'_>) -> Result<TaskEnd, Error> {
    let engine = running.engine();
    kill_workers(engine, running.run()).await?;
    let image = running.images().remove(WORKER_ROLE).unwrap_or_default();
    let failed = |e| Error::engine(format!("{}: creating its container", task.name), &e);
    let name = names::of_node(running.run(), task.name);
    let container = create(engine, &name, &body(running, &task, image)).await.map_err(failed)?;
    let ended = run(engine, &container, &task).await;
    let removed = sweep::remove_container(engine, &container).await;
    let ended = ended?;
    removed.map_err(|e| Error::engine(format!("{}: removing its container", task.name), &e))?;
    Ok(ended)
}

/// Creates a container, and returns its id. Removes a container of this name that an interrupted call has left.
async fn create(engine: &Engine, name: &str, body: &ContainerCreateBody) -> Result<String, EngineError> {
    let began = Instant::now();
    loop {
        match engine.create_container(name.to_owned(), body.clone()).await {
            Err(error) if status(&error) == Some(409) && began.elapsed() < FREED_WITHIN => {
                // The next creation shows whether the name is free.
                drop(sweep::remove_container(engine, name).await);
                sleep(TRY_AGAIN).await;
            }
            created => return created,
        }
    }
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
                What::Lost { why } | What::BrokenOff { why } => return add(&mut end.stderr, why.as_bytes()),
            }
        }
    };
    let is_late = timeout(task.within, reading).await.is_err();
    Ok(TaskEnd { is_late, ..end })
}

/// Kills the workers, so that no request of theirs comes after the task.
async fn kill_workers(engine: &Engine, run: &str) -> Result<(), Error> {
    let failed = |e| Error::engine(format!("killing the workers of run {run}"), &e);
    let labels = vec![sweep::label_of(run), format!("{}={WORKER_ROLE}", sweep::ROLE_LABEL)];
    let filters = Some(HashMap::from([("label".to_owned(), labels)]));
    let options = ListContainersOptions { all: true, filters, ..Default::default() };
    let workers = engine.docker().list_containers(Some(options)).await.map_err(failed)?;
    for id in workers.into_iter().filter_map(|worker| worker.id) {
        let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
        match engine.docker().kill_container(&id, Some(options)).await {
            // The worker had ended, or was removed.
            Err(error) if matches!(status(&error), Some(404 | 409)) => {}
            other => other.map_err(failed)?,
        }
        drop(timeout(KILLED_WITHIN, exit_code(engine, &id)).await);
    }
    Ok(())
}

fn body(running: &Running, task: &Task<'_>, image: String) -> ContainerCreateBody {
    let (place, labels) = (running.place(), Some(sweep::labels(running.run(), false)));
    // If somebody has removed the volume, the engine makes an empty one: it must have the label of the run too.
    let volume_options = Some(MountVolumeOptions { labels: labels.clone(), ..Default::default() });
    let host = HostConfig {
        network_mode: Some(place.network.clone()),
        mounts: Some(vec![Mount { volume_options, ..place.binary.mount(false) }]),
        extra_hosts: OwnServer::hosts(place.own_servers.values()),
        ..Default::default()
    };
    let base =
        ContainerCreateBody { image: Some(image), hostname: Some(task.name.to_owned()), labels, ..Default::default() };
    own_process(&task.command, own_host(false, host), base)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::fake_engine::{self, DONE, FAILED, GONE, REFUSED};

    const CREATED: &str = r#"{"Id":"new","Warnings":[]}"#;

    fn task() -> Task<'static> {
        Task { name: "remove-keys", command: Vec::new(), input: String::new(), within: Duration::ZERO }
    }

    #[tokio::test]
    async fn workers_that_somebody_has_removed_do_not_end_the_task() {
        let dir = tempfile::tempdir().unwrap();
        let answer = move |request: &str| match request.starts_with("GET /v1.41/containers/json") {
            true => fake_engine::json("[]"),
            false => GONE.to_owned(),
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let running = fake_engine::running(&engine).await;
        let task = task();
        let host = body(&running, &task, String::new()).host_config.unwrap();
        assert_eq!(host.extra_hosts, Some(vec!["staging:10.0.0.1".to_owned()]), "the addresses of the run");
        let error = run_last(&running, task).await.unwrap_err().to_string();
        assert!(error.starts_with("remove-keys: creating its container: "), "{error}");
    }

    #[tokio::test]
    async fn a_container_that_an_interrupted_call_has_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let answer = move |request: &str| {
            let mut seen = seen.lock().unwrap();
            seen.push(request.split('?').next().unwrap_or_default().to_owned());
            match (request.starts_with("DELETE"), seen.len()) {
                (true, _) => DONE.to_owned(),
                (false, 1) => REFUSED.to_owned(),
                (false, _) => fake_engine::json(CREATED),
            }
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        assert_eq!(create(&engine, "left", &ContainerCreateBody::default()).await.unwrap(), "new");
        let create = "POST /v1.41/containers/create";
        assert_eq!(*requests.lock().unwrap(), [create, "DELETE /v1.41/containers/left", create]);
    }

    #[tokio::test]
    async fn a_worker_that_has_ended_already_does_not_end_the_task() {
        let kills = ["w1", "w2"].map(|worker| format!("POST /v1.41/containers/{worker}/kill"));
        for (killed, goes_on) in [(DONE, true), (REFUSED, true), (GONE, true), (FAILED, false)] {
            let dir = tempfile::tempdir().unwrap();
            let requests = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&requests);
            let answer = move |request: &str| match request {
                r if r.contains("/kill") => {
                    seen.lock().unwrap().push(r.split('?').next().unwrap_or_default().to_owned());
                    killed.to_owned()
                }
                r if r.contains("/wait") => fake_engine::json(r#"{"StatusCode":137}"#),
                _ => fake_engine::json(r#"[{"Id":"w1"},{"Id":"w2"}]"#),
            };
            let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
            assert_eq!(kill_workers(&engine, "r-1").await.is_ok(), goes_on, "{killed}");
            let expected = if goes_on { &kills[..] } else { &kills[..1] };
            assert_eq!(*requests.lock().unwrap(), expected, "{killed}");
        }
    }

    #[tokio::test]
    async fn a_task_that_cannot_be_started_leaves_no_container() {
        let dir = tempfile::tempdir().unwrap();
        let removed = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&removed);
        let answer = move |request: &str| match request {
            r if r.starts_with("GET /v1.41/containers/json") => fake_engine::json("[]"),
            r if r.starts_with("POST /v1.41/containers/create") => fake_engine::json(CREATED),
            r if r.starts_with("DELETE ") => {
                seen.lock().unwrap().push(r.split('?').next().unwrap_or_default().to_owned());
                DONE.to_owned()
            }
            _ => GONE.to_owned(),
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let running = fake_engine::running(&engine).await;
        let error = run_last(&running, task()).await.unwrap_err().to_string();
        assert!(error.starts_with("remove-keys: starting its container: "), "{error}");
        assert_eq!(*removed.lock().unwrap(), ["DELETE /v1.41/containers/new"]);
    }
}
