//! The memory of another process.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt,
};

use super::error::ClockError;

/// The memory of a process in `/proc`. A write reaches read-only code too, in a copy that only this process has.
#[derive(Debug)]
pub(super) struct Memory {
    pid: i32,
    file: File,
}

impl Memory {
    /// Opens the memory of a process, and finds its vDSO.
    pub fn of_vdso(pid: i32) -> Result<(Memory, Range<u64>), ClockError> {
        let failed = |what| move |source| ClockError::from_io(pid, what, source);
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(failed("read the mappings"))?;
        if maps.is_empty() {
            return Err(ClockError::Gone { pid });
        }
        let mapped = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(mapped).ok_or_else(|| {
            ClockError::Impossible { pid, why: "it has no vDSO (was the kernel started with vdso=0?)".into() }
        })?;
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        Ok((Memory { pid, file: file.map_err(failed("write to the memory"))? }, mapped))
    }

    /// Reads a range.
    pub fn read(&self, at: Range<u64>) -> Result<Vec<u8>, ClockError> {
        let mut bytes = vec![0; (at.end - at.start) as usize];
        self.file.read_exact_at(&mut bytes, at.start).map_err(|source| self.failed("read the memory", source))?;
        Ok(bytes)
    }

    /// Reads a range as far as it is mapped.
    pub fn read_mapped(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = self.file.read_at(&mut bytes, at).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// Writes despite the protection of the page.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), ClockError> {
        self.file.write_all_at(bytes, at).map_err(|source| match source.raw_os_error() {
            // The result of `proc_mem.force_override=never`.
            Some(libc::EIO | libc::EFAULT) => ClockError::Impossible {
                pid: self.pid,
                why: "the kernel does not let anybody write to code (proc_mem.force_override=never?): start it without"
                    .into(),
            },
            _ => self.failed("write to the memory", source),
        })
    }

    /// Returns the error for a process that has ended and has no memory left.
    fn failed(&self, what: &'static str, source: io::Error) -> ClockError {
        if matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero) {
            return ClockError::Gone { pid: self.pid };
        }
        ClockError::from_io(self.pid, what, source)
    }
}

/// Returns whether a process has memory: it has not ended.
pub(super) fn is_there(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| !maps.is_empty())
}

fn mapped(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}
