//! Removes from our binary what no process needs to run: symbols and debug information. A debug build of 140 MB is
//! then 45 MB, and is uploaded to each container of a run.

/// Returns the part of a 64-bit ELF file that the kernel loads, without the table of sections. Any other content is
/// returned as it is.
///
/// The kernel and the dynamic loader read only the program headers and what they name. Linkers put sections that are
/// not loaded behind them, so the file can end there.
pub(crate) fn stripped(mut file: Vec<u8>) -> Vec<u8> {
    if let Some(end) = loaded_end(&file) {
        file.truncate(end);
        for field in [SECTION_OFFSET, SECTION_COUNT, SECTION_NAMES] {
            file[field].fill(0);
        }
    }
    file
}

/// Fields of the file header: <https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html>.
const SECTION_OFFSET: std::ops::Range<usize> = 0x28..0x30;
const SECTION_COUNT: std::ops::Range<usize> = 0x3C..0x3E;
const SECTION_NAMES: std::ops::Range<usize> = 0x3E..0x40;
const HEADER: usize = 0x40;

/// The end of the last part that a program header names; none if the file is no 64-bit ELF file of this byte order, or
/// is shorter than its headers say.
fn loaded_end(file: &[u8]) -> Option<usize> {
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
    (end <= file.len()).then_some(end)
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
        let small = stripped(content.clone());
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
        for file in [b"#!/bin/sh\n".to_vec(), Vec::new(), header, b"\x7fELF\x02\x01".to_vec()] {
            assert_eq!(stripped(file.clone()), file);
        }
    }
}
