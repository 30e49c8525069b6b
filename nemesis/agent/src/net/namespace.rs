//! A target's network namespace, and how work gets done in it.

use std::{fs::File, io, os::unix::fs::MetadataExt, thread};

use nix::sched::{CloneFlags, setns};

use super::NetError;

/// A target's network namespace. It is held open, so what was put into it is undone in the very same one, even if the process is gone
/// and its number belongs to another by then.
#[derive(Debug)]
pub struct Namespace {
    pid: i32,
    file: File,
    id: (u64, u64),
}

impl Namespace {
    /// The one that process `pid` is in now.
    pub fn of(pid: i32) -> Result<Namespace, NetError> {
        let open = || -> io::Result<Namespace> {
            let file = File::open(format!("/proc/{pid}/ns/net"))?;
            let meta = file.metadata()?;
            Ok(Namespace { pid, id: (meta.dev(), meta.ino()), file })
        };
        open().map_err(|source| NetError::Namespace { pid, source })
    }

    /// The process by which it was found.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Device and inode: the same for all processes that share it, and no other's while it is held open.
    pub(super) fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Does `work` inside, on a thread of its own, and waits for it: a thread enters a namespace for good, and sockets and child
    /// processes stay in the one where they were made.
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
