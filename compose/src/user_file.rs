//! Reads files that a user names. Such a name may be that of a device without an end, or of a pipe without a writer.

use std::{
    fs::File,
    io::{Error, ErrorKind, Read},
    path::Path,
};

/// The most bytes of a Compose file, and of a suite.
pub const TEXT_MAX: u64 = 16 << 20;

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// The file cannot be read, is no regular file, or is larger.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    // Before the file is opened, because opening a pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Error::other("expected a regular file, and this is a directory, a pipe or a device"));
    }
    read_up_to(path, limit)
}

/// Reads a regular file with at most 16 MiB of text.
///
/// # Errors
/// As [`read_file`], or the file is no UTF-8.
pub fn read_text_file(path: &Path) -> Result<String, Error> {
    text(read_file(path, TEXT_MAX)?)
}

/// Reads at most `limit` bytes of text from a file of any kind, such as `/dev/stdin`.
///
/// # Errors
/// The file cannot be read, is larger, or is no UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String, Error> {
    text(read_up_to(path, limit)?)
}

fn read_up_to(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let mut content = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(Error::other(format!("larger than {} MiB, which is the most", limit >> 20)));
    }
    Ok(content)
}

fn text(content: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(content).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_an_end_is_refused() {
        let zero = Path::new("/dev/zero");
        assert!(read_file(zero, 1).unwrap_err().to_string().contains("expected a regular file"));
        assert!(read_text_file(zero).unwrap_err().to_string().contains("expected a regular file"));
        assert_eq!(read_text(zero, 16 << 20).unwrap_err().to_string(), "larger than 16 MiB, which is the most");
        assert_eq!(read_text(Path::new("/dev/null"), 1).unwrap(), "");
    }

    #[test]
    fn a_pipe_without_a_writer_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read_text_file(&pipe).unwrap_err().to_string().contains("a pipe"));
    }

    #[test]
    fn a_link_to_a_file_is_read_as_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_text_file(&link).unwrap(), "text");
    }

    #[test]
    fn a_file_of_the_largest_size_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_file(&path, 4).unwrap(), b"four");
        assert!(read_file(&path, 3).unwrap_err().to_string().starts_with("larger than"));
    }
}
