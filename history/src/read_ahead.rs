//! Reading ahead: one thread parses the lines of a history while the caller judges the records before them.

use std::{
    panic::resume_unwind,
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    vec,
};

use crate::{
    Record,
    file::{HistoryError, Reader, Tail},
};

/// The records of one message between the threads. A record alone would cost more to send than to parse.
const BATCH: usize = 256;
/// A batch also ends with the line that makes it longer than so many bytes. A line may have many megabytes.
const BATCH_BYTES: usize = 1 << 20;
/// The batches that may wait for the caller. With the limits of a batch they bound the memory.
const BATCHES: usize = 8;

type Batch = Vec<Result<Record, HistoryError>>;

/// Reads the records of a history in order, as [`Reader`] does, on a thread of its own. The thread ends with the
/// history, or soon after this value is dropped.
pub struct ReadAhead {
    batches: Receiver<Batch>,
    batch: vec::IntoIter<Result<Record, HistoryError>>,
    /// Ends with the end of the history. None after that.
    thread: Option<JoinHandle<Tail>>,
    tail: Tail,
}

impl ReadAhead {
    /// Opens a history; decompresses a file whose name ends in `.zst`.
    ///
    /// # Errors
    /// The file cannot be opened, or the system gives no thread.
    pub fn open(path: &Path) -> Result<ReadAhead, HistoryError> {
        let reader = Reader::open(path)?;
        let (sender, batches) = sync_channel(BATCHES);
        let started = thread::Builder::new().name("history".into()).spawn(|| read(reader, sender));
        let doing = "starting a thread that reads the history";
        let thread = started.map_err(|source| HistoryError::Io { path: path.into(), doing, source })?;
        Ok(ReadAhead { batches, batch: Vec::new().into_iter(), thread: Some(thread), tail: Tail::Whole })
    }

    /// Returns the end of the history; known after `next` has returned `None`.
    pub fn tail(&self) -> Tail {
        self.tail
    }
}

fn read(mut reader: Reader, batches: SyncSender<Batch>) -> Tail {
    loop {
        let (mut batch, mut bytes) = (Batch::new(), 0);
        while batch.len() < BATCH
            && bytes <= BATCH_BYTES
            && let Some(record) = reader.next()
        {
            bytes += reader.length();
            batch.push(record);
        }
        // Without a receiver, nobody wants the rest.
        if batch.is_empty() || batches.send(batch).is_err() {
            return reader.tail();
        }
    }
}

impl Iterator for ReadAhead {
    type Item = Result<Record, HistoryError>;

    /// # Panics
    /// The reading has panicked.
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.batch.next() {
            return Some(record);
        }
        if let Ok(batch) = self.batches.recv() {
            self.batch = batch.into_iter();
            return self.batch.next();
        }
        if let Some(thread) = self.thread.take() {
            self.tail = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Lines without checksums: the first `whole` are records, then comes `rest`.
    fn file(dir: &Path, whole: usize, rest: &str) -> std::path::PathBuf {
        let mut text = String::new();
        for n in 0..whole {
            writeln!(text, r#"{{"seq":{n},"process":"worker-1","n":{n},"at":{n},"event":"watermark"}}"#).unwrap();
        }
        let path = dir.join("history.jsonl");
        std::fs::write(&path, text + rest).unwrap();
        path
    }

    fn shown(record: Result<Record, HistoryError>) -> Result<Record, String> {
        record.map_err(|e| e.to_string())
    }

    #[test]
    fn it_reads_as_the_reader_does() {
        let dir = tempfile::tempdir().unwrap();
        for whole in [0, 1, BATCH - 1, BATCH, BATCH + 1, 20 * BATCH] {
            for rest in ["", "{\"seq\":", "no record\n{}\n"] {
                let path = file(dir.path(), whole, rest);
                let mut reader = Reader::open(&path).unwrap();
                let mut ahead = ReadAhead::open(&path).unwrap();
                let expected: Vec<_> = reader.by_ref().map(shown).collect();
                assert_eq!(ahead.by_ref().map(shown).collect::<Vec<_>>(), expected);
                assert_eq!(expected.iter().filter(|record| record.is_ok()).count(), whole);
                assert_eq!(ahead.tail(), reader.tail());
                assert!(ahead.next().is_none());
            }
        }
    }

    #[test]
    fn a_batch_ends_at_its_most_records_or_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("batches.jsonl");
        // JSON may have spaces. The second of the long lines makes a batch too long.
        for (lines, spaces, expected) in [(BATCH + 1, 0, vec![BATCH, 1]), (5, BATCH_BYTES / 2, vec![2, 2, 1])] {
            let line =
                format!("{}{}\n", r#"{"process":"worker-1","n":0,"at":0,"event":"watermark"}"#, " ".repeat(spaces));
            std::fs::write(&path, line.repeat(lines)).unwrap();
            let (sender, batches) = sync_channel(lines);
            assert_eq!(read(Reader::open(&path).unwrap(), sender), Tail::Whole);
            assert_eq!(batches.iter().map(|batch| batch.len()).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_caller_that_stops_early_ends_the_thread() {
        let dir = tempfile::tempdir().unwrap();
        let mut ahead = ReadAhead::open(&file(dir.path(), 100 * BATCH, "")).unwrap();
        assert!(ahead.next().is_some());
        let ReadAhead { batches, thread, .. } = ahead;
        drop(batches);
        assert_eq!(thread.unwrap().join().unwrap(), Tail::Whole);
    }

    #[test]
    #[should_panic(expected = "the reader is broken")]
    fn a_panic_while_reading_is_no_end_of_the_history() {
        let (sender, batches) = sync_channel(BATCHES);
        drop(sender);
        let thread = Some(thread::spawn(|| -> Tail { panic!("the reader is broken") }));
        let mut ahead = ReadAhead { batches, batch: Vec::new().into_iter(), thread, tail: Tail::Whole };
        assert!(ahead.next().is_none());
    }

    #[test]
    fn a_file_that_is_not_there_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ReadAhead::open(&dir.path().join("none")).is_err());
    }
}
