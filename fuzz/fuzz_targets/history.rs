//! A history from a file: it is refused with an error, or judged. Judging twice gives the same verdicts. The fast
//! reader of lines reads nothing that serde does not read in the same way, and the same from lines with checksums.

#![no_main]

use std::{fs, path::PathBuf};

use history::{Reader, Record, Tail};
use libfuzzer_sys::fuzz_target;

fn path() -> PathBuf {
    PathBuf::from(format!("/dev/shm/harness-fuzz-{}.jsonl", std::process::id()))
}

/// The records of a file up to the first error, whether there was no error, and the end. None for a file that begins
/// as gzip does.
fn read(bytes: &[u8]) -> Option<(Vec<Record>, bool, Tail)> {
    let path = path();
    fs::write(&path, bytes).expect("shared memory can be written");
    let mut reader = Reader::open(&path).ok()?;
    let mut records: Vec<Record> = Vec::new();
    let is_readable = reader.by_ref().all(|record| record.map(|record| records.push(record)).is_ok());
    fs::remove_file(&path).expect("it was there");
    Some((records, is_readable, reader.tail()))
}

/// The same lines with right checksums, which the reader reads in another way.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let (mut sum, mut all) = (crc32fast::Hasher::new(), Vec::new());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(object) = line.strip_suffix(b"}\n") else { return all };
        sum.update(&line[..line.len() - 1]);
        all.extend_from_slice(object);
        all.extend_from_slice(format!(",\"crc\":\"{:08x}\"}}\n", sum.clone().finalize()).as_bytes());
    }
    all
}

fuzz_target!(|bytes: &[u8]| {
    let Some((records, is_readable, tail)) = read(bytes) else { return };
    // A checksum would be one more field for serde.
    if !records.is_empty() && !bytes.windows(8).any(|part| part == b",\"crc\":\"") {
        for (place, (line, record)) in bytes.split(|byte| *byte == b'\n').zip(&records).enumerate() {
            let by_serde = serde_json::from_slice::<Record>(line).or_else(|_| {
                // The reader gives a line without a number that of its place.
                let fields = line.trim_ascii_start().strip_prefix(b"{").unwrap_or_default();
                serde_json::from_slice(&[format!("{{\"seq\":{place},").as_bytes(), fields].concat())
            });
            assert_eq!(by_serde.as_ref().ok(), Some(record));
        }
        let checked = with_checksums(bytes);
        let lines = checked.iter().filter(|byte| **byte == b'\n').count();
        let (again, ..) = read(&checked).expect("it does not begin as gzip does");
        assert_eq!(again, records[..records.len().min(lines)]);
    }
    if is_readable {
        let verdicts = checker::check(records.clone(), tail);
        let again = checker::check(records, tail);
        assert_eq!(serde_json::to_string(&verdicts).unwrap(), serde_json::to_string(&again).unwrap());
    }
});
