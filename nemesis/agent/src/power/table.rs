//! The files that the kernel knows by number, each with a descriptor that stays valid when the file is renamed.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fuser::{FileAttr, FileType, INodeNo};

/// The numbers of files, and their descriptors.
#[derive(Debug)]
pub(super) struct Table {
    known: HashMap<u64, Known>,
}

#[derive(Debug)]
struct Known {
    file: File,
    /// Number of look-ups that the kernel has not forgotten.
    lookups: u64,
}

impl Table {
    /// Makes a table of the root directory alone.
    pub(super) fn new(root: File) -> Self {
        Self { known: HashMap::from([(INodeNo::ROOT.0, Known { file: root, lookups: 1 })]) }
    }

    /// Returns a path that leads to the file, whatever its name is.
    pub(super) fn path(&self, number: INodeNo) -> io::Result<PathBuf> {
        let known = self.known.get(&number.0).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))?;
        Ok(descriptor(&known.file))
    }

    /// Takes in a file that the kernel has looked up. Returns its attributes.
    pub(super) fn learn(&mut self, path: &Path) -> io::Result<FileAttr> {
        let file = hold(path)?;
        let attributes = attributes(&file.metadata()?);
        let known = self.known.entry(attributes.ino.0).or_insert(Known { file, lookups: 0 });
        known.lookups += 1;
        Ok(attributes)
    }

    /// Drops `lookups` look-ups of a file.
    pub(super) fn forget(&mut self, number: INodeNo, lookups: u64) {
        if number == INodeNo::ROOT {
            return;
        }
        if let std::collections::hash_map::Entry::Occupied(mut known) = self.known.entry(number.0) {
            known.get_mut().lookups = known.get().lookups.saturating_sub(lookups);
            if known.get().lookups == 0 {
                known.remove();
            }
        }
    }
}

/// Opens a file of any kind, only to name it.
pub(super) fn hold(path: &Path) -> io::Result<File> {
    let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_CLOEXEC;
    Ok(File::from(nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())?))
}

/// Returns the path of an open file in `/proc`.
pub(super) fn descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Converts the attributes of a file of the directory below.
pub(super) fn attributes(of: &Metadata) -> FileAttr {
    let at = |seconds: i64, ns: i64| {
        // The nanoseconds count forward also before 1970.
        let (whole, part) = (Duration::from_secs(seconds.unsigned_abs()), Duration::from_nanos(ns.unsigned_abs()));
        (if seconds < 0 { SystemTime::UNIX_EPOCH - whole } else { SystemTime::UNIX_EPOCH + whole }) + part
    };
    FileAttr {
        ino: INodeNo(of.ino()),
        size: of.size(),
        blocks: of.blocks(),
        atime: at(of.atime(), of.atime_nsec()),
        mtime: at(of.mtime(), of.mtime_nsec()),
        ctime: at(of.ctime(), of.ctime_nsec()),
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::from_std(of.file_type()).unwrap_or(FileType::RegularFile),
        perm: (of.mode() & 0o7777) as u16,
        nlink: of.nlink() as u32,
        uid: of.uid(),
        gid: of.gid(),
        rdev: of.rdev() as u32,
        blksize: of.blksize() as u32,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_known_under_any_name_until_each_of_its_look_ups_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "content").unwrap();
        let mut table = Table::new(hold(dir.path()).unwrap());
        let [number, ..] = [(); 4].map(|()| table.learn(&path).unwrap().ino);
        fs::rename(&path, dir.path().join("renamed")).unwrap();
        for (forgotten, is_known) in [(1, true), (2, true), (1, false)] {
            table.forget(number, forgotten);
            assert_eq!(table.path(number).is_ok(), is_known, "{forgotten} more");
            if is_known {
                assert_eq!(fs::read(table.path(number).unwrap()).unwrap(), b"content");
            }
        }
        assert_eq!(table.path(number).unwrap_err().raw_os_error(), Some(libc::ESTALE));
        table.forget(INodeNo::ROOT, 1);
        assert!(table.path(INodeNo::ROOT).is_ok());
    }
}
