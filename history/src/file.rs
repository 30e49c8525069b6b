//! The history file: JSON lines, one event on each line. The reader also reads `.zst`.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use crate::Record;

/// The reason why the history could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file could not be used.
    #[error("{}: {doing}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A line before the last is not an event.
    #[error("{}: line {line}, column {column}: {problem}; expected one event as a JSON object a line", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1; 0 if the line as a whole is wrong.
        column: usize,
        /// The parser's error.
        problem: String,
    },
}

/// The end of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// At the end of a line.
    Whole,
    /// In the middle of a line, which is left out: the writer was interrupted.
    Cut,
}

/// Appends records to a history.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Writer {
    /// Creates a history; the file must not exist.
    pub fn create(path: &Path) -> Result<Writer, HistoryError> {
        let file = File::options().write(true).create_new(true).open(path).map_err(|source| HistoryError::Io {
            path: path.into(),
            doing: "creating the history",
            source,
        })?;
        Ok(Writer { path: path.into(), file: BufWriter::with_capacity(1 << 16, file) })
    }

    /// Appends `record`, which may stay in a buffer until [`Writer::flush`].
    pub fn append(&mut self, record: &Record) -> Result<(), HistoryError> {
        let io = |source| HistoryError::Io { path: self.path.clone(), doing: "appending to the history", source };
        serde_json::to_writer(&mut self.file, record).map_err(|e| io(e.into()))?;
        self.file.write_all(b"\n").map_err(io)
    }

    /// Hands all events to the kernel: from here on they survive the end of this process.
    pub fn flush(&mut self) -> Result<(), HistoryError> {
        self.file.flush().map_err(|source| HistoryError::Io {
            path: self.path.clone(),
            doing: "writing the history",
            source,
        })
    }
}

/// Reads the records of a history in order.
pub struct Reader {
    path: PathBuf,
    input: Box<dyn BufRead>,
    line: u64,
    text: Vec<u8>,
    tail: Tail,
}

impl Reader {
    /// Opens a history; decompresses a file whose name ends in `.zst`.
    pub fn open(path: &Path) -> Result<Reader, HistoryError> {
        let io = |source| HistoryError::Io { path: path.into(), doing: "opening the history", source };
        let file = File::open(path).map_err(io)?;
        let input: Box<dyn BufRead> = if path.extension().is_some_and(|e| e == "zst") {
            Box::new(BufReader::new(zstd::Decoder::new(file).map_err(io)?))
        } else {
            Box::new(BufReader::with_capacity(1 << 16, file))
        };
        Ok(Reader { path: path.into(), input, line: 0, text: Vec::new(), tail: Tail::Whole })
    }

    /// Returns the end of the history; known after `next` has returned `None`.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    fn read(&mut self) -> Result<Option<Record>, HistoryError> {
        self.text.clear();
        self.line += 1;
        match self.input.read_until(b'\n', &mut self.text) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            // A compressed file that was cut short ends like this.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                self.tail = Tail::Cut;
                return Ok(None);
            }
            Err(source) => {
                return Err(HistoryError::Io { path: self.path.clone(), doing: "reading the history", source });
            }
        }
        if self.text.last() != Some(&b'\n') {
            self.tail = Tail::Cut;
            return Ok(None);
        }
        serde_json::from_slice(&self.text).map(Some).map_err(|e| HistoryError::Line {
            path: self.path.clone(),
            line: self.line,
            column: e.column(),
            problem: e.to_string(),
        })
    }
}

impl Iterator for Reader {
    type Item = Result<Record, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.tail == Tail::Cut {
            return None;
        }
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientId, Event, HoldId, Stamp};

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("history.jsonl");
        let mut writer = Writer::create(&path).unwrap();
        for n in 0..3 {
            let event =
                Event::Acquire { client: ClientId(0), attempt: HoldId::of(1, n), key: "k0".into(), intended: Stamp(5) };
            writer.append(&Record { seq: n, process: "worker-1".into(), n, at: Stamp(10 + n), event }).unwrap();
        }
        writer.flush().unwrap();
        path
    }

    #[test]
    fn what_is_written_is_read_back_compressed_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let plain: Vec<_> = Reader::open(&path).unwrap().map(Result::unwrap).collect();
        assert_eq!(plain.iter().map(|r| r.seq).collect::<Vec<_>>(), [0, 1, 2]);
        let packed = dir.path().join("history.jsonl.zst");
        std::fs::write(&packed, zstd::encode_all(File::open(&path).unwrap(), 3).unwrap()).unwrap();
        let mut reader = Reader::open(&packed).unwrap();
        assert_eq!(reader.by_ref().map(Result::unwrap).collect::<Vec<_>>(), plain);
        assert_eq!(reader.tail(), Tail::Whole);
    }

    #[test]
    fn a_history_cut_anywhere_is_readable_up_to_its_last_whole_event() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let whole = std::fs::read(&path).unwrap();
        let packed = zstd::encode_all(whole.as_slice(), 3).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut reader = Reader::open(&path).unwrap();
            let lines = reader.by_ref().map(Result::unwrap).count();
            assert_eq!(lines, whole[..cut].iter().filter(|b| **b == b'\n').count());
            assert_eq!(reader.tail() == Tail::Cut, cut > 0 && whole[cut - 1] != b'\n');
        }
        let path = dir.path().join("cut.zst");
        std::fs::write(&path, &packed[..packed.len() - 5]).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        assert!(reader.by_ref().all(|r| r.is_ok()));
        assert_eq!(reader.tail(), Tail::Cut);
    }

    #[test]
    fn a_broken_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let text =
            std::fs::read_to_string(&path).unwrap().replacen("\"event\":\"acquire\"", "\"event\":\"acquires\"", 1);
        std::fs::write(&path, text).unwrap();
        let error = Reader::open(&path).unwrap().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("line 1") && error.contains("acquires"), "{error}");
    }
}
