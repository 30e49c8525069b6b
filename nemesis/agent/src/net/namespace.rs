//! A target's network namespace.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    thread,
};

use nix::sched::{CloneFlags, setns};

use super::error::NetError;

/// A target's network namespace. Stays open, so that a fault is healed in the namespace where it was injected, even if
/// the process has ended and its pid has been reused.
#[derive(Debug)]
pub struct Namespace {
    pid: i32,
    file: File,
    id: (u64, u64),
}

impl Namespace {
    /// Opens the namespace of process `pid`.
    pub fn of(pid: i32) -> Result<Namespace, NetError> {
        let open = || -> io::Result<Namespace> {
            let file = File::open(format!("/proc/{pid}/ns/net"))?;
            let meta = file.metadata()?;
            Ok(Namespace { pid, id: (meta.dev(), meta.ino()), file })
        };
        open().map_err(|source| NetError::Namespace { pid, source })
    }

    /// Returns the process whose namespace this is.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns device and inode, which identify the namespace while it is open.
    pub(super) fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Returns whether this is the network of the host: of the first process, as the agent sees the host's processes.
    /// False if the agent may not inspect that process.
    pub(super) fn is_of_host(&self) -> bool {
        fs::metadata("/proc/1/ns/net").is_ok_and(|first| (first.dev(), first.ino()) == self.id)
    }

    /// Runs `work` inside the namespace, on a new thread, and waits for the result. A thread that enters a namespace
    /// stays in it; so do the sockets and child processes that it creates.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetError> {
        let entered = thread::scope(|scope| {
            let inside = || setns(&self.file, CloneFlags::CLONE_NEWNET).map(|()| work());
            match scope.spawn(inside).join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        entered.map_err(|errno| NetError::Namespace { pid: self.pid, source: errno.into() })
    }
}
