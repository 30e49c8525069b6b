//! Errors of clock changes.

use std::io;

use thiserror::Error;

/// The reason why the clocks of a process cannot be changed or read.
#[derive(Debug, Error)]
pub enum ClockError {
    /// The process has ended.
    #[error("process {pid} has ended: name one that runs")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// The kernel does not let this process trace that one.
    #[error(
        "not permitted to {what} process {pid} ({source}): the agent needs SYS_PTRACE and SYS_ADMIN and \
         the host's pid namespace, and \
         nobody else (a debugger, strace) may trace the process"
    )]
    NotPermitted {
        /// The process.
        pid: i32,
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process has no vDSO that the agent can replace.
    #[error("the clocks of process {pid} cannot be moved: {why}")]
    Impossible {
        /// The process.
        pid: i32,
        /// The obstacle, and the remedy.
        why: String,
    },
    /// The process could not be stopped at a safe place.
    #[error("process {pid} could not be stopped: {why}")]
    Busy {
        /// The process.
        pid: i32,
        /// The awaited condition, and the remedy.
        why: String,
    },
    /// The change is impossible.
    #[error("the clock cannot be moved like this: {why}")]
    Refused {
        /// A possible change.
        why: String,
    },
    /// Something else failed.
    #[error("cannot {what} of process {pid}: {source}")]
    Io {
        /// The process.
        pid: i32,
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl ClockError {
    /// Classifies a failed call on a process.
    pub(super) fn from_io(pid: i32, what: &'static str, source: io::Error) -> ClockError {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => ClockError::Gone { pid },
            Some(libc::EPERM | libc::EACCES) => ClockError::NotPermitted { pid, what, source },
            _ => ClockError::Io { pid, what, source },
        }
    }
}
