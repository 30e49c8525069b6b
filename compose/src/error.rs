//! Reasons why a cluster cannot be started, reached or removed.

use std::{path::PathBuf, time::Duration};

use history::NodeName;

use crate::file::FileError;

/// Time within which an engine must begin an answer. Its calls take 25 ms, or seconds on a busy machine.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(60);

/// The harness cannot do its job with Docker. Each message says what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Compose file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// No engine answers.
    #[error(
        "no Docker engine answers at {host}: {why}; start it, make sure that you may use it, or set DOCKER_HOST to \
         one that answers (unix:// or tcp://); a run or a suite needs no engine with --cluster sim"
    )]
    NoEngine {
        /// The address.
        host: String,
        /// The engine's or the system's error.
        why: String,
    },
    /// This user may not use the engine.
    #[error(
        "you may not use the Docker engine at {host} (permission denied): add yourself to the group docker (`sudo \
         usermod -aG docker \"$USER\"`, then log in again), or run the harness as root"
    )]
    Forbidden {
        /// The address.
        host: String,
    },
    /// The engine refused a request.
    #[error("{doing}: the Docker engine says: {why}")]
    Engine {
        /// The request, as a gerund.
        doing: String,
        /// The engine's answer.
        why: String,
    },
    /// The caller's request is impossible.
    #[error("{0}")]
    Spec(String),
    /// The harness's own binary cannot be read.
    #[error("cannot read the binary to upload, {path}")]
    Binary {
        /// The binary's path.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The image that the user named is not available.
    #[error(
        "image {image}, named for role {role}: not found by the engine, and pulling it failed ({why}); check the name \
         (--image {role}=NAME), or try `docker pull {image}`, which also uses your login: the harness takes every \
         image that the engine has"
    )]
    ImageNotFound {
        /// The role.
        role: String,
        /// The image.
        image: String,
        /// The reason why the image was not pulled.
        why: String,
    },
    /// An image is missing, cannot be pulled, and cannot be built.
    #[error(
        "image {image} for role {role}: not found by the engine, pulling it failed ({why}), and the Compose file \
         names no Debian packages (x-harness: packages) to build it from; check the name in the Compose file, or try \
         `docker pull {image}`, which also uses your login: the harness takes every image that the engine has"
    )]
    NotBuildable {
        /// The role.
        role: String,
        /// The image.
        image: String,
        /// The reason why the image was not pulled.
        why: String,
    },
    /// The program that builds images is missing.
    #[error(
        "image {image}: not found by the engine, pulling it failed ({why}), and building it needs the program \
         mmdebstrap: install the package mmdebstrap, or load the image into the engine"
    )]
    NoBuilder {
        /// The image.
        image: String,
        /// The reason why the image was not pulled.
        why: String,
    },
    /// This user cannot build images.
    #[error(
        "image {image}: not found by the engine, pulling it failed ({why}), and this user cannot build it ({cannot}): \
         an image has files of several users, so give yourself subordinate ids (`sudo apt-get install uidmap && sudo \
         usermod --add-subuids 100000-165535 --add-subgids 100000-165535 \"$USER\"`), run the harness once as root, or \
         load the image into the engine"
    )]
    CannotBuild {
        /// The image.
        image: String,
        /// The reason why the image was not pulled.
        why: String,
        /// The reason why it cannot be built.
        cannot: String,
    },
    /// An image build of a killed process has left files that cannot be removed.
    #[error("cannot remove what an interrupted image build has left: {source}")]
    DeadBuild {
        /// The reason, with the directory.
        source: std::io::Error,
    },
    /// Building an image failed.
    #[error("building image {image} from Debian packages failed: {why}{}", quoted("mmdebstrap", .tail))]
    Build {
        /// The image.
        image: String,
        /// The step that failed.
        why: String,
        /// The builder's last lines.
        tail: String,
    },
    /// The engine refused to start a container.
    #[error("{node}: its container does not start: {why}")]
    Start {
        /// The node.
        node: NodeName,
        /// The engine's answer.
        why: String,
    },
    /// A container ended while the cluster was starting.
    #[error("{node}: exited with code {code} while the cluster was coming up{}", quoted(.node.as_str(), .log))]
    Exited {
        /// The node.
        node: NodeName,
        /// Its exit code.
        code: i64,
        /// Its last lines.
        log: String,
    },
    /// A server never passed its healthcheck.
    #[error(
        "{node}: its healthcheck did not pass within {} s; the last try: {last}{}{}", .within.as_secs(),
        and_slow(*.slow), quoted(.node.as_str(), .log)
    )]
    Unhealthy {
        /// The node.
        node: NodeName,
        /// Time for which the healthcheck was repeated.
        within: Duration,
        /// The result of the last healthcheck.
        last: String,
        /// The slowest step of the engine for this node, if it was slow.
        slow: Option<(&'static str, Duration)>,
        /// The server's last lines.
        log: String,
    },
    /// The engine was too slow to start or to ask a server.
    #[error(
        "{node}: the Docker engine was too slow: {step} took {:.1} s of {} s, so the server could not be asked; end \
         other work on the engine's machine, and try again", .took.as_secs_f64(), .within.as_secs()
    )]
    SlowEngine {
        /// The node.
        node: NodeName,
        /// The engine's slowest step.
        step: &'static str,
        /// Its duration.
        took: Duration,
        /// Time for all steps.
        within: Duration,
    },
    /// A command inside a container failed.
    #[error("{node}: `{command}` exited with {code}: {output}")]
    Command {
        /// The node.
        node: NodeName,
        /// The command.
        command: String,
        /// Its exit code.
        code: i64,
        /// The command's output.
        output: String,
    },
    /// No such node exists, or the node is of another kind.
    #[error("{node} is no {wanted} of this cluster; there are: {known}")]
    NoSuchNode {
        /// The node.
        node: NodeName,
        /// The expected kind: `node`, `server`, `process of ours`.
        wanted: &'static str,
        /// The existing nodes of this kind.
        known: String,
    },
    /// A fault of the plan cannot be injected into a node on this machine, or with this agent's image.
    #[error(
        "{node}: the plan has a {kind} of it, which needs {ability}, and that does not work here: {why}; mend that, \
         name another image for the \
         agent (--image agent=…), or leave the fault out"
    )]
    Unable {
        /// The node.
        node: NodeName,
        /// The fault.
        kind: history::FaultKind,
        /// The missing ability.
        ability: &'static str,
        /// The test of this ability, and its result.
        why: String,
    },
    /// The process that should receive a line has ended.
    #[error("{node}: its process takes no more input")]
    InputClosed {
        /// The node.
        node: NodeName,
    },
}

/// Formats the slowest step of the engine; nothing if no step was slow.
fn and_slow(slow: Option<(&'static str, Duration)>) -> String {
    slow.map(|(step, took)| format!("; the Docker engine was slow, too: {step} took {:.1} s", took.as_secs_f64()))
        .unwrap_or_default()
}

/// Formats the last lines of another program below a message; nothing if there are none.
fn quoted(who: &str, lines: &str) -> String {
    if lines.is_empty() {
        return String::new();
    }
    lines.lines().fold(format!("\n  last lines of {who}:"), |text, line| text + "\n    " + line)
}

impl Error {
    pub(crate) fn engine(doing: impl Into<String>, error: &bollard::errors::Error) -> Self {
        Self::Engine { doing: doing.into(), why: explain(error) }
    }
}

/// Returns the engine's own words if the engine answered, otherwise the whole chain of causes (bollard shows only the
/// outermost cause).
pub(crate) fn explain(error: &bollard::errors::Error) -> String {
    if let bollard::errors::Error::DockerResponseServerError { message, .. } = error {
        return message.trim().to_owned();
    }
    if let bollard::errors::Error::RequestTimeoutError = error {
        return format!("the engine gave no answer within {} s", CALL_LIMIT.as_secs());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// Returns the reason why no connection was made: the system's error, without those of the layers above it.
pub(crate) fn unconnected(error: &bollard::errors::Error) -> String {
    of_system(error).last().map_or_else(|| explain(error), ToString::to_string)
}

/// Returns whether the system refused this user the connection.
pub(crate) fn is_forbidden(error: &bollard::errors::Error) -> bool {
    of_system(error).any(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Returns whether the queue of the engine's socket was full: somebody listens, and takes no connection.
pub(crate) fn is_busy(error: &bollard::errors::Error) -> bool {
    of_system(error).any(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Returns the errors of the system among the causes.
fn of_system(error: &bollard::errors::Error) -> impl Iterator<Item = &std::io::Error> {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
}

/// Returns the HTTP status of the engine's answer.
pub(crate) fn status(error: &bollard::errors::Error) -> Option<u16> {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}
