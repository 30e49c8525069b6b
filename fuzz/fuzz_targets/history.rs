//! A history from a file: it is refused with an error, or judged. Judging twice gives the same verdicts. The fast
//! reader of lines reads nothing that serde does not read in the same way.

#![no_main]

use std::{fs, path::PathBuf};

use history::{Reader, Record};
use libfuzzer_sys::fuzz_target;

fn path() -> PathBuf {
    PathBuf::from(format!("/dev/shm/harness-fuzz-{}.jsonl", std::process::id()))
}

fuzz_target!(|bytes: &[u8]| {
    let path = path();
    fs::write(&path, bytes).expect("shared memory can be written");
    // A file that begins as gzip does is refused here.
    let Ok(mut reader) = Reader::open(&path) else { return };
    let mut records: Vec<Record> = Vec::new();
    let is_readable = reader.by_ref().all(|record| record.map(|record| records.push(record)).is_ok());
    let tail = reader.tail();
    fs::remove_file(&path).expect("it was there");
    // A checksum would be one more field for serde.
    if !records.is_empty() && !bytes.windows(8).any(|part| part == b",\"crc\":\"") {
        for (line, record) in bytes.split(|byte| *byte == b'\n').zip(&records) {
            assert_eq!(serde_json::from_slice::<Record>(line).as_ref().ok(), Some(record));
        }
    }
    if is_readable {
        let verdicts = checker::check(records.clone(), tail);
        let again = checker::check(records, tail);
        assert_eq!(serde_json::to_string(&verdicts).unwrap(), serde_json::to_string(&again).unwrap());
    }
});
