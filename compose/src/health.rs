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
};

/// Time within which a server must answer. Three Java servers that start together on two busy cores have needed more
/// than 30 s.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
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

/// Runs a command inside a container, without a shell.
pub(crate) async fn run_in(engine: &Engine, container: &str, command: &[&str]) -> Result<Done, EngineError> {
    let options = CreateExecOptions {
        cmd: Some(command.to_vec()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        ..Default::default()
    };
    let exec = engine.docker().create_exec(container, options).await?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    if let StartExecResults::Attached { mut output, .. } = engine.docker().start_exec(&exec.id, None).await? {
        while let Some(chunk) = output.next().await {
            match chunk? {
                LogOutput::StdErr { message } => stderr.extend_from_slice(&message),
                // The engine reports without a frame header why it could not run the command.
                LogOutput::StdOut { message } | LogOutput::Console { message } => stdout.extend_from_slice(&message),
                LogOutput::StdIn { .. } => {}
            }
        }
    }
    // The output can end before the engine knows the exit code. Only another request shows when the engine knows it.
    let mut asking = interval(Duration::from_millis(10));
    let code = loop {
        asking.tick().await;
        let state = engine.docker().inspect_exec(&exec.id).await?;
        if state.running != Some(true) {
            break state.exit_code.unwrap_or(-1);
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Done { code, stdout: text(stdout), stderr: text(stderr) })
}

/// Waits until the server's healthcheck has passed.
///
/// # Errors
/// The server ended before, or did not answer in time.
pub(crate) async fn wait_until_healthy(engine: &Engine, container: &str, service: &Service) -> Result<(), Error> {
    let node = &service.name;
    let mut last = "it was never run".to_owned();
    let looking = async {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            last = match look_once(engine, container, service).await {
                Ok(()) => return Ok(()),
                Err(why) => why,
            };
            tracing::debug!(%node, last, "does not answer yet");
            refuse_ended(engine, container, node).await?;
        }
    };
    match timeout(HEALTHY_WITHIN, looking).await {
        Ok(result) => result,
        Err(_) => {
            let log = last_lines(engine, container).await;
            Err(Error::Unhealthy { node: node.clone(), within: HEALTHY_WITHIN, last, log })
        }
    }
}

/// Runs the healthcheck once. The error says why the healthcheck did not pass.
pub(crate) async fn look_once(engine: &Engine, container: &str, service: &Service) -> Result<(), String> {
    let command: Vec<&str> = service.health_test.iter().map(String::as_str).collect();
    match timeout(service.health_timeout, run_in(engine, container, &command)).await {
        Ok(Ok(done)) if done.code == 0 => Ok(()),
        Ok(Ok(done)) => {
            Err(format!("exit code {}: {}", done.code, format!("{} {}", done.stdout.trim(), done.stderr.trim()).trim()))
        }
        Ok(Err(error)) => Err(explain(&error)),
        Err(_) => Err(format!("no end within {} ms", service.health_timeout.as_millis())),
    }
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
