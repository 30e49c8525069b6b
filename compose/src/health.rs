//! Runs healthchecks inside the servers' containers, while the cluster starts.

use std::time::Duration;

use bollard::{
    container::LogOutput,
    errors::Error as EngineError,
    exec::{CreateExecOptions, StartExecResults},
};
use futures::StreamExt;
use history::NodeName;
use tokio::time::{interval, timeout};

use crate::{
    Engine,
    container::logs,
    error::{Error, explain},
    file::Service,
    steps::{SLOW, Steps},
};

/// Time within which a server must answer. Three Java servers that start together on two busy cores have needed more
/// than 30 s.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
/// The times of a wait for a server.
#[derive(Debug, Clone, Copy)]
struct Times {
    healthy_within: Duration,
    /// Time from which a step of the engine is slow.
    slow: Duration,
}

const TIMES: Times = Times { healthy_within: HEALTHY_WITHIN, slow: SLOW };

/// Pause between two healthchecks. One costs 130 ms of processor time, so a shorter pause delays the start.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Number of a server's last lines that a message quotes.
const LOG_LINES: usize = 20;

/// The result of a command inside a container.
#[derive(Debug)]
pub(crate) struct Done {
    pub code: i64,
    pub stdout: String,
    pub stderr: String,
}

/// The reason why a command in a container has no result.
#[derive(Debug)]
enum NotDone {
    /// The engine refused a step.
    Engine(EngineError),
    /// The command was started and did not end in time.
    Late,
}

/// Runs a command inside a container, without a shell.
pub(crate) async fn run_in(engine: &Engine, container: &str, command: &[&str]) -> Result<Done, EngineError> {
    match run_timed(engine, container, command, Duration::MAX, &Steps::default()).await {
        Ok(done) => Ok(done),
        Err(NotDone::Engine(error)) => Err(error),
        Err(NotDone::Late) => Err(EngineError::RequestTimeoutError),
    }
}

/// As [`run_in`], but the command must end within `limit`. The limit begins when the engine has started the command.
async fn run_timed(
    engine: &Engine,
    container: &str,
    command: &[&str],
    limit: Duration,
    steps: &Steps,
) -> Result<Done, NotDone> {
    let options = CreateExecOptions {
        cmd: Some(command.to_vec()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        ..Default::default()
    };
    let docker = engine.docker();
    let exec = steps.time("preparing a healthcheck", docker.create_exec(container, options)).await;
    let exec = exec.map_err(NotDone::Engine)?;
    let started = steps.time("starting a healthcheck", docker.start_exec(&exec.id, None)).await;
    let mut reading = std::pin::pin!(output_of(started.map_err(NotDone::Engine)?));
    // The engine answers before it starts the command.
    steps.begin("starting a healthcheck");
    let mut is_late = false;
    let (stdout, stderr) = loop {
        if let Ok(output) = timeout(limit, reading.as_mut()).await {
            if is_late {
                steps.end()
            } else {
                steps.forget()
            }
            break output.map_err(NotDone::Engine)?;
        }
        let state = docker.inspect_exec(&exec.id).await.map_err(NotDone::Engine)?;
        if state.pid.unwrap_or(0) > 0 {
            steps.forget();
            return Err(NotDone::Late);
        }
        is_late = true;
    };
    // The output can end before the engine knows the exit code. Only another request shows when the engine knows it.
    let mut asking = interval(Duration::from_millis(10));
    let code = loop {
        asking.tick().await;
        let state = docker.inspect_exec(&exec.id).await.map_err(NotDone::Engine)?;
        if state.running != Some(true) {
            break state.exit_code.unwrap_or(-1);
        }
    };
    Ok(Done { code, stdout, stderr })
}

/// Reads standard output and standard error of a command to their ends.
async fn output_of(started: StartExecResults) -> Result<(String, String), EngineError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    if let StartExecResults::Attached { mut output, .. } = started {
        while let Some(chunk) = output.next().await {
            match chunk? {
                LogOutput::StdErr { message } => stderr.extend_from_slice(&message),
                // The engine reports without a frame header why it could not run the command.
                LogOutput::StdOut { message } | LogOutput::Console { message } => stdout.extend_from_slice(&message),
                LogOutput::StdIn { .. } => {}
            }
        }
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(stdout), text(stderr)))
}

/// Waits until the server's healthcheck has passed.
///
/// # Errors
/// The server ended before, or did not answer in time, or the engine was too slow to ask it.
pub(crate) async fn wait_until_healthy(
    engine: &Engine,
    container: &str,
    service: &Service,
    steps: &Steps,
) -> Result<(), Error> {
    wait_for(engine, container, service, steps, TIMES).await
}

async fn wait_for(
    engine: &Engine,
    container: &str,
    service: &Service,
    steps: &Steps,
    Times { healthy_within, slow }: Times,
) -> Result<(), Error> {
    let node = &service.name;
    let (mut last, mut refusals) = ("it was never run".to_owned(), 0);
    let former = steps.total();
    let looking = async {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            last = match look_once(engine, container, service, steps).await {
                Ok(()) => return Ok(()),
                Err(NotPassed::Server(why)) => {
                    refusals += 1;
                    why
                }
                Err(NotPassed::Engine(why)) => why,
            };
            tracing::debug!(%node, last, "does not answer yet");
            steps.time("looking whether it runs", refuse_ended(engine, container, node)).await?;
        }
    };
    if let Ok(result) = timeout(healthy_within, looking).await {
        return result;
    }
    let node = node.clone();
    let slow = steps.slower_than(slow);
    // The server is blamed only if it had its time.
    if let Some((step, took)) = slow
        && (refusals == 0 || steps.total() - former > healthy_within / 2)
    {
        return Err(Error::SlowEngine { node, step, took, within: healthy_within });
    }
    let log = last_lines(engine, container).await;
    Err(Error::Unhealthy { node, within: healthy_within, last, slow, log })
}

/// The reason why a healthcheck did not pass.
enum NotPassed {
    /// The server did not answer as it should.
    Server(String),
    /// The engine did not run the healthcheck.
    Engine(String),
}

async fn look_once(engine: &Engine, container: &str, service: &Service, steps: &Steps) -> Result<(), NotPassed> {
    let command: Vec<&str> = service.health_test.iter().map(String::as_str).collect();
    match run_timed(engine, container, &command, service.health_timeout, steps).await {
        Ok(done) if done.code == 0 => Ok(()),
        Ok(done) => {
            let said = format!("{} {}", done.stdout.trim(), done.stderr.trim());
            Err(NotPassed::Server(format!("exit code {}: {}", done.code, said.trim())))
        }
        Err(NotDone::Late) => {
            Err(NotPassed::Server(format!("no end within {} ms", service.health_timeout.as_millis())))
        }
        Err(NotDone::Engine(error)) => Err(NotPassed::Engine(explain(&error))),
    }
}

/// Returns whether the server passes its healthcheck now.
pub(crate) async fn passes(engine: &Engine, container: &str, service: &Service) -> bool {
    passes_in_time(engine, container, service).await == Some(true)
}

/// Returns whether the server passes its healthcheck; none, if the check does not end in time. A server that says no at
/// once is not slow, and nor is an engine that refuses to run the check. The time includes the start of the check,
/// which uses the container's processor time too.
pub(crate) async fn passes_in_time(engine: &Engine, container: &str, service: &Service) -> Option<bool> {
    let command: Vec<&str> = service.health_test.iter().map(String::as_str).collect();
    let done = timeout(service.health_timeout, run_in(engine, container, &command)).await;
    done.ok().map(|done| done.is_ok_and(|done| done.code == 0))
}

/// Returns an error if the container does not run.
pub(crate) async fn refuse_ended(engine: &Engine, container: &str, node: &NodeName) -> Result<(), Error> {
    let inspected = engine.docker().inspect_container(container, None).await;
    let state = inspected.map_err(|e| Error::engine(format!("{node}: looking whether it runs"), &e))?.state;
    let state = state.unwrap_or_default();
    if state.running == Some(true) {
        return Ok(());
    }
    let log = last_lines(engine, container).await;
    Err(Error::Exited { node: node.clone(), code: state.exit_code.unwrap_or(-1), log })
}

async fn last_lines(engine: &Engine, container: &str) -> String {
    match logs(engine, container, Some(LOG_LINES)).await {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(why) => format!("(they cannot be read: {why})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ComposeFile, fake_engine};

    /// The engine's answers to one healthcheck that ends with `code`. The engine needs `delay` before it starts it.
    fn answers(delay: Duration, code: i64) -> impl Fn(&str) -> (Duration, String) + Send + Sync + 'static {
        let now = Duration::ZERO;
        move |request| match request {
            r if r.ends_with("/containers/c/exec") => (now, fake_engine::json(r#"{"Id":"e"}"#)),
            r if r.ends_with("/exec/e/start") => {
                (delay, "HTTP/1.1 101 UPGRADED\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n".to_owned())
            }
            r if r.ends_with("/exec/e/json") => {
                (now, fake_engine::json(&format!(r#"{{"Running":false,"ExitCode":{code},"Pid":0}}"#)))
            }
            r if r.ends_with("/containers/c/json") => (now, fake_engine::json(r#"{"State":{"Running":true}}"#)),
            r => (now, if r.contains("/logs") { fake_engine::json("") } else { panic!("{r}") }),
        }
    }

    /// The result within 3 s. A paused clock would advance whenever the fake engine's socket is waited for.
    async fn waited(delay: Duration, code: i64, slow: Duration) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake_engine::start(&dir, answers(delay, code)).await;
        let mut redis = ComposeFile::builtin("redis").unwrap().services.remove(0);
        redis.health_timeout = Duration::from_millis(50);
        let times = Times { healthy_within: Duration::from_secs(3), slow };
        let result = wait_for(&engine, "c", &redis, &Steps::default(), times).await;
        result.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_slow_engine_is_blamed_and_not_the_server() {
        let slow = Duration::from_millis(200);
        // A second is longer than the timeout of the healthcheck itself.
        assert_eq!(waited(Duration::from_secs(1), 0, slow).await, Ok(()));
        let said = waited(Duration::from_millis(1_700), 1, slow).await.unwrap_err();
        for words in ["the Docker engine was too slow", "redis-1", "starting a healthcheck took ", "of 3 s"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let said = waited(Duration::from_secs(60), 0, slow).await.unwrap_err();
        assert!(said.contains("too slow") && said.contains("of 3 s"), "{said}");
    }

    #[tokio::test]
    async fn a_healthcheck_that_does_not_end_has_not_passed() {
        let dir = tempfile::tempdir().unwrap();
        let answer = |request: &str| match request {
            r if r.ends_with("/exec/e/start") => {
                let head = "HTTP/1.1 101 UPGRADED\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n";
                format!("{head}{}", fake_engine::OPEN)
            }
            r if r.ends_with("/exec/e/json") => fake_engine::json(r#"{"Running":true,"Pid":7}"#),
            _ => fake_engine::json(r#"{"Id":"e"}"#),
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let mut redis = ComposeFile::builtin("redis").unwrap().services.remove(0);
        redis.health_timeout = Duration::from_millis(50);
        let looked = look_once(&engine, "c", &redis, &Steps::default()).await;
        assert!(matches!(looked, Err(NotPassed::Server(why)) if why == "no end within 50 ms"));
    }

    #[tokio::test]
    async fn an_engine_that_refuses_every_healthcheck_is_blamed() {
        let dir = tempfile::tempdir().unwrap();
        // Each refusal is a slow step. All steps together take less than half of the time.
        let answer = |request: &str| match request {
            r if r.ends_with("/containers/c/exec") => (Duration::from_millis(20), fake_engine::FAILED.to_owned()),
            r if r.contains("/logs") => (Duration::ZERO, fake_engine::json("")),
            _ => (Duration::ZERO, fake_engine::json(r#"{"State":{"Running":true}}"#)),
        };
        let engine = fake_engine::start(&dir, answer).await;
        let redis = ComposeFile::builtin("redis").unwrap().services.remove(0);
        let times = Times { healthy_within: Duration::from_millis(190), slow: Duration::from_millis(10) };
        let waited = wait_for(&engine, "c", &redis, &Steps::default(), times).await;
        assert!(matches!(waited, Err(Error::SlowEngine { .. })), "{waited:?}");
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_blamed() {
        let said = waited(Duration::from_millis(100), 1, Duration::from_secs(2)).await.unwrap_err();
        assert!(said.contains("redis-1: its healthcheck did not pass within 3 s") && !said.contains("slow"), "{said}");
    }
}
