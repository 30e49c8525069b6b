//! Removes from our binary what no process needs to run: symbols and debug information. A debug build of 140 MB is
//! then 45 MB, and is uploaded once for each run.

use std::{
    fs::File,
    io::{self, Read},
};

/// The part of a file in which the program headers must be.
const HEAD: u64 = 64 * 1024;

/// Reads the part of a 64-bit ELF file that the kernel loads, without the table of sections. Any other file is read as
/// it is.
///
/// The kernel and the dynamic loader read only the program headers and what they name. Linkers put sections that are
/// not loaded behind them, so the file can end there.
pub(crate) fn read_stripped(mut file: File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut content = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut content)?;
    match loaded_end(&content, length) {
        None => drop(file.read_to_end(&mut content)?),
        Some(end) => {
            let rest = end.saturating_sub(content.len());
            content.truncate(end);
            content.reserve_exact(rest);
            file.take(rest as u64).read_to_end(&mut content)?;
            for field in [SECTION_OFFSET, SECTION_COUNT, SECTION_NAMES] {
                content[field].fill(0);
            }
        }
    }
    Ok(content)
}

/// Fields of the file header: <https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html>.
const SECTION_OFFSET: std::ops::Range<usize> = 0x28..0x30;
const SECTION_COUNT: std::ops::Range<usize> = 0x3C..0x3E;
const SECTION_NAMES: std::ops::Range<usize> = 0x3E..0x40;
const HEADER: usize = 0x40;

/// The end of the last part that a program header names; none if the file is no 64-bit ELF file of this byte order, is
/// shorter than its headers say, or has its headers behind `file`, its first bytes.
fn loaded_end(file: &[u8], length: u64) -> Option<usize> {
    let long = |at: usize| usize::try_from(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?)).ok();
    let short = |at: usize| Some(usize::from(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?)));
    // The magic number, 64 bits, least significant byte first.
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, size, count) = (long(0x20)?, short(0x36)?, short(0x38)?);
    let mut end = HEADER.max(first.checked_add(size.checked_mul(count)?)?);
    for n in 0..count {
        let header = first + n * size;
        end = end.max(long(header + 0x08)?.checked_add(long(header + 0x20)?)?);
    }
    (end as u64 <= length).then_some(end)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, process::Command};

    use super::*;

    #[test]
    fn a_stripped_binary_is_smaller_and_runs_as_before() {
        let whole = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (path, content) = (dir.path().join("stripped"), fs::read(&whole).unwrap());
        let small = read_stripped(File::open(&whole).unwrap()).unwrap();
        assert!(small.len() < content.len() * 3 / 4, "{} of {} bytes", small.len(), content.len());
        fs::write(&path, small).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let listed = |binary: &std::path::Path| Command::new(binary).arg("--list").output().unwrap();
        let (before, after) = (listed(&whole), listed(&path));
        assert!(after.status.success() && !after.stdout.is_empty());
        assert_eq!(after.stdout, before.stdout);
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let header = [b"\x7fELF\x02\x01".as_slice(), &[0xff; 80]].concat();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for file in [b"#!/bin/sh\n".to_vec(), Vec::new(), header, b"\x7fELF\x02\x01".to_vec(), vec![7; 100_000]] {
            fs::write(&path, &file).unwrap();
            assert!(read_stripped(File::open(&path).unwrap()).unwrap() == file);
        }
    }
}
