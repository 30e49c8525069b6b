//! Archives for uploads to containers.

use bytes::Bytes;

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
