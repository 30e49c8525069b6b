//! A directory that forgets what was not synced when its machine loses power.
//!
//! A FUSE file system lies over the data directory of a server, inside the server's container. It passes everything on
//! to the directory below. Before the first change of a page since the last sync of its file, it saves the old page in
//! a log. A sync of a file (`fsync`, `fdatasync`) removes the file's log. A SIGKILL of the container keeps the
//! directory and the logs, as a kernel does that outlives its processes. A loss of power is a SIGKILL, and a start that
//! first puts the saved pages and the lengths back ([`roll_back`]).
//!
//! Names are durable at once: a file that was created, renamed or removed stays so. Only the content and the length of
//! files are lost. A file that was created and never synced is there, empty. The directory below is not synced itself,
//! so a sync costs less than on a disk. The idea is that of LazyFS (Ramos et al., VLDB 2024,
//! <https://doi.org/10.14778/3681954.3681980>).

mod canary;
mod files;
mod table;
mod undo;

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use serde::{Deserialize, Serialize};

pub use canary::Canary;
use files::Files;
pub use undo::RolledBack;
use undo::UndoLogs;

/// Name of the file system in `/proc/mounts`.
pub const FS_NAME: &str = "harness-power";

/// A directory, and the place of its logs.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The directory whose unsynced data can be lost.
    pub data: &'a Path,
    /// The directory of the logs.
    pub logs: &'a Path,
}

/// Name of the file in the directory of the state that orders the next start to roll back.
pub const ORDER: &str = "lose";

/// The report of a start after a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerReport {
    /// The unsynced data that was lost.
    pub rolled_back: RolledBack,
    /// The proof.
    pub canary: Canary,
}

/// Puts a FUSE file system over the directory, calls `mounted`, and serves until the end of the process or the mount.
///
/// # Errors
/// The directory cannot be opened, `/dev/fuse` is missing, or the mount is refused (it needs `CAP_SYS_ADMIN`).
pub fn serve(place: Place<'_>, mounted: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    fs::create_dir_all(place.data)?;
    fs::create_dir_all(place.logs)?;
    // Opened before the mount, so this is the directory below.
    let below = File::open(place.data)?;
    let files = Files::new(below, UndoLogs::open(place.logs)?);
    let mut config = fuser::Config::default();
    config.mount_options = vec![fuser::MountOption::FSName(FS_NAME.to_owned()), fuser::MountOption::DefaultPermissions];
    config.acl = fuser::SessionACL::All;
    let session = fuser::Session::new(files, place.data, &config)?;
    let serving = session.spawn()?;
    mounted()?;
    serving.join()
}

/// Puts every file of the directory back to its last sync. The file system must not be mounted. A call that was
/// interrupted can be repeated.
///
/// # Errors
/// A file or a log cannot be read or written.
pub fn roll_back(place: Place<'_>) -> io::Result<RolledBack> {
    let mut done = RolledBack::default();
    if place.logs.exists() {
        undo::roll_back(place.data, place.logs, &mut done)?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
