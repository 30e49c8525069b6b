//! One build of an image at a time. Without it, runs that start together would all build the same image, and use one.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{libc::O_NOFOLLOW, unistd::geteuid};

/// The names of the lock files are `harness-turn-`, the user's number, `-`, the name of the image, `.lock`.
const PREFIX: &str = "harness-turn-";
const LOCK: &str = ".lock";
/// Time between two looks at a lock that another process has.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The right to build an image. A drop gives it to the next process, and so does the death of this one.
#[derive(Debug)]
pub(super) struct Turn {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl Turn {
    /// Waits until no other process of this user builds the image. `waits` is called once, if another one does.
    ///
    /// # Errors
    /// The lock file cannot be opened or locked.
    pub(super) async fn wait(temporary: &Path, image: &str, waits: impl FnOnce()) -> io::Result<Turn> {
        let image: String = image.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = temporary.join(format!("{PREFIX}{}-{image}{LOCK}", geteuid()));
        let mut waits = Some(waits);
        loop {
            if let Some(lock) = lock(&path)? {
                return Ok(Turn { path, _lock: lock });
            }
            if let Some(waits) = waits.take() {
                waits();
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Still locked: a process that has opened the file meanwhile sees that it is gone.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the lock of an image build stays");
        }
    }
}

/// Opens and locks the file. Returns none if another process has the lock, or has just removed the file.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    lock_open(options.create(true).truncate(false).write(true).custom_flags(O_NOFOLLOW).mode(0o600).open(path)?)
}

/// Locks the file. Returns none if another process has the lock, or has removed the file since it was opened.
fn lock_open(file: File) -> io::Result<Option<File>> {
    match file.try_lock() {
        Ok(()) => Ok((file.metadata()?.nlink() > 0).then_some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes the lock files that killed processes of this user have left.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn remove_dead(temporary: &Path) -> io::Result<()> {
    let own = format!("{PREFIX}{}-", geteuid());
    for entry in fs::read_dir(temporary)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(&own) || !name.ends_with(LOCK) {
            continue;
        }
        match lock(&entry.path()) {
            Ok(Some(lock)) => drop(Turn { path: entry.path(), _lock: lock }),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "the lock of an image build stays"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(temporary: &Path) -> usize {
        fs::read_dir(temporary).unwrap().count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_process_waits_for_the_first_and_no_file_is_left() {
        let temporary = tempfile::tempdir().unwrap();
        let at = temporary.path();
        let first = Turn::wait(at, "harness-debian/redis:bookworm", || panic!("nobody else")).await.unwrap();
        let other = Turn::wait(at, "harness-debian/etcd:bookworm", || panic!("another image")).await.unwrap();
        let mut has_waited = false;
        let second = Turn::wait(at, "harness-debian/redis:bookworm", || has_waited = true);
        tokio::select! {
            _ = second => panic!("two processes build one image"),
            () = tokio::time::sleep(LOOK_EVERY * 3) => {}
        }
        assert!(has_waited);
        remove_dead(at).unwrap();
        assert_eq!(files(at), 2, "the turns of living processes stay");
        drop((first, other));
        drop(Turn::wait(at, "harness-debian/redis:bookworm", || panic!("nobody has it now")).await.unwrap());
        assert_eq!(files(at), 0);
    }

    #[test]
    fn a_file_that_its_owner_has_removed_gives_nobody_the_turn() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("lock");
        let opened = File::create(&path).unwrap();
        drop(Turn { path: path.clone(), _lock: lock(&path).unwrap().unwrap() });
        assert!(lock_open(opened).unwrap().is_none());
        assert!(lock(&path).unwrap().is_some());
    }

    #[test]
    fn the_lock_of_a_killed_process_is_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let at = temporary.path();
        fs::write(at.join(format!("{PREFIX}{}-redis{LOCK}", geteuid())), "").unwrap();
        fs::write(at.join("harness-turn-notes"), "").unwrap();
        remove_dead(at).unwrap();
        assert_eq!(files(at), 1);
    }
}
