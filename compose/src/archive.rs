//! Archives for uploads to containers.

use std::{collections::BTreeSet, path::Path};

use bytes::Bytes;

/// A file for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path, relative to the directory in which the archive is unpacked.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// Its content.
    pub content: Vec<u8>,
}

/// Packs files below `dir`, with all directories above them: the engine would choose their permissions.
pub(crate) fn of_files(dir: &str, files: &[File]) -> std::io::Result<Bytes> {
    let mut builder = tar::Builder::new(Vec::new());
    let paths: Vec<_> = files.iter().map(|file| Path::new(dir.trim_start_matches('/')).join(&file.path)).collect();
    let above: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    for above in above.into_iter().filter(|above| !above.as_os_str().is_empty()) {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o755);
        header.set_entry_type(tar::EntryType::Directory);
        builder.append_data(&mut header, above, std::io::empty())?;
    }
    for (path, file) in paths.iter().zip(files) {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.content.len() as u64);
        header.set_mode(file.mode);
        header.set_entry_type(tar::EntryType::Regular);
        builder.append_data(&mut header, path, &file.content[..])?;
    }
    builder.into_inner().map(Bytes::from)
}

/// Packs one file into an archive. The path is relative to the directory in which the archive is unpacked.
pub(crate) fn of_file(path: &str, mode: u32, content: &[u8]) -> std::io::Result<Bytes> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_entry_type(tar::EntryType::Regular);
    let mut builder = tar::Builder::new(Vec::with_capacity(content.len() + 4096));
    builder.append_data(&mut header, path, content)?;
    builder.into_inner().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_with_the_directories_above_them() {
        let file = |path: &str| File { path: path.into(), mode: 0o755, content: b"x".to_vec() };
        let packed = of_files("/opt/client", &[file("a.sh"), file("lib/b.py")]).unwrap();
        let mut archive = tar::Archive::new(&packed[..]);
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let paths: Vec<String> = entries.map(|entry| entry.path().unwrap().display().to_string()).collect();
        assert_eq!(paths, ["opt", "opt/client", "opt/client/lib", "opt/client/a.sh", "opt/client/lib/b.py"]);
    }
}
