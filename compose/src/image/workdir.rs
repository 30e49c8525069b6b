//! The temporary directory of an image build, which ends with the build: at once if the build is dropped, and by the
//! next build or `harness clean` if the harness was killed.
//!
//! A build's processes have a lock file as their standard input. So the lock of a build is free exactly when all its
//! processes have ended, however they ended.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use super::turn;
use crate::error::Error;

/// Arguments of `unshare` with which a user acts as root over the user's subordinate ids.
pub(super) const AS_ROOT: [&str; 3] = ["--user", "--map-root-user", "--map-auto"];
/// Begin of the names of builds' directories. The lock file has the same name with `.lock`.
const PREFIX: &str = "harness-build-";
const LOCK: &str = ".lock";
/// Time for killed processes to end. A process that waits for its disk ends only after that.
const END_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A build. A drop kills its processes and removes its directory. This takes half a second, and blocks: the caller is
/// at its end.
#[derive(Debug)]
pub(super) struct Build {
    dir: PathBuf,
    lock: Option<File>,
    group: Option<Pid>,
}

impl Build {
    /// Makes the directory of a build in `temporary`.
    pub(super) fn new(temporary: &Path) -> io::Result<Self> {
        for number in 0.. {
            let dir = temporary.join(format!("{PREFIX}{}-{number}", std::process::id()));
            let lock = match OpenOptions::new().create_new(true).read(true).write(true).open(lock_of(&dir)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                lock => lock?,
            };
            // Somebody who removes dead builds may have been faster, and have locked or removed the new file.
            if lock.try_lock().is_err() || lock.metadata()?.nlink() == 0 {
                continue;
            }
            fs::create_dir(&dir)?;
            return Ok(Self { dir, lock: Some(lock), group: None });
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The standard input of the build's processes: an empty file.
    pub(super) fn input(&self) -> io::Result<Stdio> {
        self.lock.as_ref().map_or(Ok(Stdio::null()), |lock| Ok(lock.try_clone()?.into()))
    }

    /// The process group of the build has started.
    pub(super) fn started(&mut self, group: Option<u32>) {
        self.group = group.and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    }

    /// All processes of the build have ended.
    pub(super) fn ended(&mut self) {
        self.group = None;
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        if let Some(group) = self.group
            && let Err(error) = killpg(group, Signal::SIGKILL)
        {
            tracing::debug!(%error, "the builder had already ended");
        }
        self.lock = None;
        let tries = END_WITHIN.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..tries {
            match remove(&self.dir) {
                Ok(true) => return,
                Ok(false) => std::thread::sleep(LOOK_EVERY),
                Err(error) => return tracing::warn!("{error}; `harness clean` removes the rest of the image build"),
            }
        }
        tracing::warn!("processes of the image build in {} do not end", self.dir.display());
    }
}

/// Removes what image builds of killed processes have left in the temporary directory, and returns their directories.
///
/// # Errors
/// A directory cannot be removed. All others are removed.
pub async fn remove_dead_builds() -> Result<Vec<PathBuf>, Error> {
    let removing = tokio::task::spawn_blocking(|| remove_dead(&std::env::temp_dir())).await;
    removing.map_err(io::Error::other).and_then(|removed| removed).map_err(|source| Error::DeadBuild { source })
}

/// Removes what dead builds have left in `temporary`, and returns their directories.
///
/// # Errors
/// A directory cannot be removed. All others are removed.
fn remove_dead(temporary: &Path) -> io::Result<Vec<PathBuf>> {
    turn::remove_dead(temporary)?;
    let (mut removed, mut failure) = (Vec::new(), None);
    for entry in fs::read_dir(temporary)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(LOCK).filter(|name| name.starts_with(PREFIX)) else { continue };
        let dir = temporary.join(name);
        match remove(&dir) {
            Ok(true) => removed.push(dir),
            Ok(false) => {}
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(removed), Err)
}

/// Removes the directory of a build if all its processes have ended. Returns false if they have not, or if the build is
/// another user's.
fn remove(dir: &Path) -> io::Result<bool> {
    let named =
        |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what} {}: {error}", dir.display()));
    let lock = match OpenOptions::new().read(true).write(true).open(lock_of(dir)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(false);
        }
        lock => lock?,
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(named("locking", error)),
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| named("looking for mounts in", error))?;
    if let Some(mount) = mount_below(&mounts, dir) {
        // The content may be the host's own devices.
        let error = io::Error::other(format!("{mount} is mounted; unmount it: sudo umount --recursive {mount}"));
        return Err(named("removing", error));
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            remove_mapped(dir).map_err(|error| named("removing", error))?;
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named("removing", error)),
        _ => {}
    }
    fs::remove_file(lock_of(dir)).map_err(|error| named("removing the lock of", error))?;
    Ok(true)
}

/// Removes files that belong to the subordinate ids of this user.
fn remove_mapped(dir: &Path) -> io::Result<()> {
    let mut command = Command::new("unshare");
    command.args(AS_ROOT).args(["rm", "-rf", "--one-file-system", "--"]).arg(dir);
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(io::Error::other(said)) }
}

fn lock_of(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(LOCK);
    name.into()
}

/// Returns the first mount point in `dir`, from the text of `/proc/self/mountinfo`.
fn mount_below<'a>(mountinfo: &'a str, dir: &Path) -> Option<&'a str> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.into_iter().find(|point| Path::new(point).starts_with(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_build_is_removed_and_a_live_one_is_not() {
        let temporary = tempfile::tempdir().unwrap();
        let live = Build::new(temporary.path()).unwrap();
        fs::create_dir(live.dir().join("proc")).unwrap();
        // A killed harness leaves directory and lock file.
        let dead = temporary.path().join("harness-build-1-0");
        fs::create_dir_all(dead.join("usr/bin")).unwrap();
        fs::write(dead.join("usr/bin/sh"), "x").unwrap();
        fs::write(lock_of(&dead), "").unwrap();
        fs::create_dir(temporary.path().join("harness-build-notes")).unwrap();
        assert_eq!(remove_dead(temporary.path()).unwrap(), [dead]);
        assert!(live.dir().join("proc").exists());
        drop(live);
        let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["harness-build-notes"]);
    }

    #[test]
    fn a_dead_build_that_cannot_be_removed_keeps_no_other_one() {
        let temporary = tempfile::tempdir().unwrap();
        // The system lists the directories in any order.
        for n in 0..4 {
            fs::create_dir(temporary.path().join(format!("harness-build-{n}-0{LOCK}"))).unwrap();
            let dead = temporary.path().join(format!("harness-build-{n}-1"));
            fs::create_dir(&dead).unwrap();
            fs::write(lock_of(&dead), "").unwrap();
        }
        remove_dead(temporary.path()).unwrap_err();
        let left = fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| name.to_string_lossy().ends_with(&format!("-0{LOCK}"))));
    }

    #[test]
    fn a_directory_with_a_mount_is_left() {
        let text =
            "29 1 0:5 / /dev rw - devtmpfs dev rw\n63 29 0:5 / /tmp/harness-build-1-0/m/dev rw - devtmpfs dev rw\n";
        let below = |dir: &str| mount_below(text, Path::new(dir));
        assert_eq!(below("/tmp/harness-build-1-0"), Some("/tmp/harness-build-1-0/m/dev"));
        assert_eq!(below("/tmp/harness-build-1"), None);
    }
}
