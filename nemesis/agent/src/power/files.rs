//! The file system: every call goes on to the directory below, and every change goes through the logs first.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use nix::{
    fcntl::{AT_FDCWD, FallocateFlags, RenameFlags as Renaming},
    sys::{
        stat::{UtimensatFlags, utimensat},
        time::TimeSpec,
    },
};

use super::{
    table::{Table, attributes, descriptor, hold},
    undo::UndoLogs,
};

/// How long the kernel may use attributes and names. All changes come through this file system.
const TTL: Duration = Duration::from_secs(1);
const GENERATION: Generation = Generation(0);

/// The file system over one directory.
#[derive(Debug)]
pub(super) struct Files {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    table: Table,
    open: HashMap<u64, File>,
    listed: HashMap<u64, Vec<Entry>>,
    last: u64,
    logs: UndoLogs,
}

/// An entry of a directory.
type Entry = (u64, FileType, OsString);

impl Files {
    pub(super) fn new(below: File, logs: UndoLogs) -> Self {
        let (open, listed) = (HashMap::new(), HashMap::new());
        Self { state: Mutex::new(State { table: Table::new(below), open, listed, last: 0, logs }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn attributes(&self, number: INodeNo) -> io::Result<FileAttr> {
        let of = attributes(&fs::metadata(self.table.path(number)?)?);
        // The root has a number of its own.
        Ok(FileAttr { ino: number, ..of })
    }

    fn next_handle(&mut self) -> FileHandle {
        self.last += 1;
        FileHandle(self.last)
    }

    fn opened(&mut self, file: File) -> FileHandle {
        let handle = self.next_handle();
        self.open.insert(handle.0, file);
        handle
    }

    fn handle(&self, handle: FileHandle) -> io::Result<&File> {
        self.open.get(&handle.0).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn write(&mut self, handle: FileHandle, at: u64, data: &[u8], flags: OpenFlags) -> io::Result<u32> {
        let file = self.open.get(&handle.0).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let path = descriptor(file);
        self.logs.before(&path, file, at, at + data.len() as u64)?;
        file.write_all_at(data, at)?;
        // `O_SYNC` contains `O_DSYNC`.
        if flags.0 & libc::O_DSYNC != 0 {
            self.logs.synced(&path)?;
        }
        u32::try_from(data.len()).map_err(io::Error::other)
    }

    fn set_length(&mut self, path: &Path, length: u64) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        self.logs.before(path, &file, length, u64::MAX)?;
        file.set_len(length)
    }

    fn allocate(&mut self, handle: FileHandle, at: u64, length: u64, mode: i32) -> io::Result<()> {
        let file = self.open.get(&handle.0).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let (from, to) = (i64::try_from(at), i64::try_from(length));
        let (from, to) = (from.map_err(io::Error::other)?, to.map_err(io::Error::other)?);
        // Without a flag nothing is overwritten, but the file may become longer.
        let overwritten = if mode == 0 { at } else { u64::MAX };
        self.logs.before(&descriptor(file), file, at, overwritten)?;
        Ok(nix::fcntl::fallocate(file, FallocateFlags::from_bits_retain(mode), from, to)?)
    }

    /// Calls `act`, which may take a file's name away. A file without a name needs no log any more.
    fn take_name(&mut self, name: &Path, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let former = hold(name).ok();
        act()?;
        match former {
            Some(file) if file.metadata()?.nlink() == 0 => self.logs.synced(&descriptor(&file)),
            _ => Ok(()),
        }
    }

    fn create(&mut self, by: &Request, path: &Path, mode: u32) -> io::Result<(FileAttr, FileHandle)> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).mode(mode).open(path)?;
        lchown(path, Some(by.uid()), Some(by.gid()))?;
        let attributes = self.table.learn(path)?;
        Ok((attributes, self.opened(file)))
    }

    fn list(&self, number: INodeNo) -> io::Result<Vec<Entry>> {
        use std::os::unix::fs::DirEntryExt;
        let dots = [".", ".."].map(|name| (number.0, FileType::Directory, name.into()));
        let mut all = Vec::from(dots);
        for entry in fs::read_dir(self.table.path(number)?)? {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            all.push((entry.ino(), kind, entry.file_name()));
        }
        Ok(all)
    }
}

fn time_spec(time: Option<TimeOrNow>) -> TimeSpec {
    match time {
        None => TimeSpec::UTIME_OMIT,
        Some(TimeOrNow::Now) => TimeSpec::UTIME_NOW,
        Some(TimeOrNow::SpecificTime(at)) => match at.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => TimeSpec::from_duration(since),
            // The nanoseconds count forward also before 1970.
            Err(before) => {
                let before = before.duration();
                let (whole, part) = (before.as_secs().cast_signed(), i64::from(before.subsec_nanos()));
                if part == 0 { TimeSpec::new(-whole, 0) } else { TimeSpec::new(-whole - 1, 1_000_000_000 - part) }
            }
        },
    }
}

/// Answers with nothing, or with an error.
fn answer(reply: ReplyEmpty, done: io::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from(error)),
    }
}

fn answer_entry(reply: ReplyEntry, done: io::Result<FileAttr>) {
    match done {
        Ok(attributes) => reply.entry(&TTL, &attributes, GENERATION),
        Err(error) => reply.error(Errno::from(error)),
    }
}

fn answer_attributes(reply: ReplyAttr, done: io::Result<FileAttr>) {
    match done {
        Ok(attributes) => reply.attr(&TTL, &attributes),
        Err(error) => reply.error(Errno::from(error)),
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.state();
        let found = state.table.path(parent).and_then(|dir| state.table.learn(&dir.join(name)));
        answer_entry(reply, found);
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.state().table.forget(number, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer_attributes(reply, self.state().attributes(number));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.state();
        let mut change = || {
            let path = state.table.path(number)?;
            if let Some(mode) = mode {
                fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777))?;
            }
            if uid.is_some() || gid.is_some() {
                std::os::unix::fs::chown(&path, uid, gid)?;
            }
            if let Some(length) = size {
                state.set_length(&path, length)?;
            }
            if accessed.is_some() || modified.is_some() {
                let (accessed, modified) = (time_spec(accessed), time_spec(modified));
                utimensat(AT_FDCWD, &path, &accessed, &modified, UtimensatFlags::FollowSymlink)?;
            }
            state.attributes(number)
        };
        answer_attributes(reply, change());
    }

    fn mkdir(&self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mut state = self.state();
        let mut make = || {
            let path = state.table.path(parent)?.join(name);
            fs::DirBuilder::new().mode(mode & !umask).create(&path)?;
            lchown(&path, Some(by.uid()), Some(by.gid()))?;
            state.table.learn(&path)
        };
        answer_entry(reply, make());
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.state();
        let name = state.table.path(parent).map(|dir| dir.join(name));
        answer(reply, name.and_then(|name| state.take_name(&name, || fs::remove_file(&name))));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.state().table.path(parent).and_then(|dir| fs::remove_dir(dir.join(name))));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.state();
        let mut rename = || {
            let (from, to) = (state.table.path(parent)?.join(name), state.table.path(new_parent)?.join(new_name));
            let flags = Renaming::from_bits_retain(flags.bits());
            state.take_name(&to, || Ok(nix::fcntl::renameat2(AT_FDCWD, &from, AT_FDCWD, &to, flags)?))
        };
        answer(reply, rename());
    }

    fn link(&self, _: &Request, number: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        use nix::{fcntl::AtFlags, unistd::linkat};
        let mut state = self.state();
        let mut link = || {
            let to = state.table.path(new_parent)?.join(new_name);
            linkat(AT_FDCWD, &state.table.path(number)?, AT_FDCWD, &to, AtFlags::AT_SYMLINK_FOLLOW)?;
            state.table.learn(&to)
        };
        answer_entry(reply, link());
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mut state = self.state();
        // A file that is written is read too, to save its old pages. The kernel gives the place of each write, so
        // O_APPEND is left out.
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let path = state.table.path(number);
        match path.and_then(|path| OpenOptions::new().read(true).write(writes).open(path)) {
            Ok(file) => reply.opened(state.opened(file), FopenFlags::empty()),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn create(&self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        let mut state = self.state();
        let path = state.table.path(parent).map(|dir| dir.join(name));
        match path.and_then(|path| state.create(by, &path, mode & !umask)) {
            Ok((attributes, handle)) => reply.created(&TTL, &attributes, GENERATION, handle, FopenFlags::empty()),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        at: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.state();
        let read = || -> io::Result<Vec<u8>> {
            let file = state.handle(handle)?;
            let mut content = vec![0; size as usize];
            let mut length = 0;
            while length < content.len() {
                match file.read_at(&mut content[length..], at + length as u64)? {
                    0 => break,
                    bytes => length += bytes,
                }
            }
            content.truncate(length);
            Ok(content)
        };
        match read() {
            Ok(content) => reply.data(&content),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        at: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.state().write(handle, at, data, flags) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // A close syncs nothing.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.state().open.remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.state();
        let path = state.handle(handle).map(descriptor);
        answer(reply, path.and_then(|path| state.logs.synced(&path)));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Names are durable at once.
        reply.ok();
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(self.state().next_handle(), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut state = self.state();
        if offset == 0 {
            match state.list(number) {
                Ok(all) => drop(state.listed.insert(handle.0, all)),
                Err(error) => return reply.error(Errno::from(error)),
            }
        }
        // The list stays the same until it is read again from its start, so a removal moves no entry.
        let all = state.listed.get(&handle.0).into_iter().flatten();
        for (at, (number, kind, name)) in (1..).zip(all).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(INodeNo(*number), at, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.state().listed.remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        let state = self.state();
        let found = state.table.path(number).and_then(|path| Ok(nix::sys::statvfs::statvfs(&path)?));
        match found {
            Ok(of) => reply.statfs(
                of.blocks(),
                of.blocks_free(),
                of.blocks_available(),
                of.files(),
                of.files_free(),
                u32::try_from(of.block_size()).unwrap_or(u32::MAX),
                u32::try_from(of.name_max()).unwrap_or(u32::MAX),
                u32::try_from(of.fragment_size()).unwrap_or(u32::MAX),
            ),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        at: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.state().allocate(handle, at, length, mode));
    }
}

#[cfg(test)]
mod tests;
