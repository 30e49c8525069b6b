//! Why the clocks of a process cannot be moved.

use std::io;

use thiserror::Error;

/// Why the clocks of a process cannot be moved, or be told.
#[derive(Debug, Error)]
pub enum ClockError {
    /// It has ended.
    #[error("process {pid} has ended: name one that runs")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// The kernel does not let this process trace that one.
    #[error(
        "not permitted to {what} process {pid} ({source}): the agent needs SYS_PTRACE and SYS_ADMIN and the host's pid namespace, and \
         nobody else (a debugger, strace) may trace the process"
    )]
    NotPermitted {
        /// The process.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It has no vDSO that this code could replace.
    #[error("the clocks of process {pid} cannot be moved: {why}")]
    Impossible {
        /// The process.
        pid: i32,
        /// What is in the way, and what to do.
        why: String,
    },
    /// It could not be stopped at a place where its code may be changed.
    #[error("process {pid} could not be stopped: {why}")]
    Busy {
        /// The process.
        pid: i32,
        /// What was waited for, and what to do.
        why: String,
    },
    /// No clock can be moved like this.
    #[error("the clock cannot be moved like this: {why}")]
    Refused {
        /// What to ask for instead.
        why: String,
    },
    /// Something else failed.
    #[error("cannot {what} of process {pid}: {source}")]
    Io {
        /// The process.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ClockError {
    /// What a failed call on a process means.
    pub(super) fn from_io(pid: i32, what: &'static str, source: io::Error) -> ClockError {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => ClockError::Gone { pid },
            Some(libc::EPERM | libc::EACCES) => ClockError::NotPermitted { pid, what, source },
            _ => ClockError::Io { pid, what, source },
        }
    }
}
