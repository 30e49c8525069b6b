//! A history from a file: it is refused with an error, or judged. Judging twice gives the same verdicts.

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
    if is_readable {
        let verdicts = checker::check(records.clone(), tail);
        let again = checker::check(records, tail);
        assert_eq!(serde_json::to_string(&verdicts).unwrap(), serde_json::to_string(&again).unwrap());
    }
});
