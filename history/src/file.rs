//! The history file: JSON lines, one event a line; `.zst` is read too.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use crate::{Event, ProcessName, Record, Stamp};

/// The history could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file itself.
    #[error("{}: {doing}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A line in the middle is not an event.
    #[error("{}: line {line}, column {column}: {problem}; expected one event as a JSON object a line", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1; 0 if the line as a whole is wrong.
        column: usize,
        /// What the parser said.
        problem: String,
    },
}

/// How a history ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// At a line end.
    Whole,
    /// In the middle of a line, which was left out: the writer was cut short.
    Cut,
}

/// Numbers events and appends them.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    next: u64,
}

impl Writer {
    /// Makes a new history; the file must not exist.
    pub fn create(path: &Path) -> Result<Writer, HistoryError> {
        let file = File::options().write(true).create_new(true).open(path).map_err(|source| HistoryError::Io {
            path: path.into(),
            doing: "creating the history",
            source,
        })?;
        Ok(Writer { path: path.into(), file: BufWriter::with_capacity(1 << 16, file), next: 0 })
    }

    /// Gives the event its number and appends it. What was appended may sit in a buffer until [`Writer::flush`].
    pub fn append(&mut self, process: ProcessName, n: u64, at: Stamp, event: Event) -> Result<Record, HistoryError> {
        let record = Record { seq: self.next, process, n, at, event };
        let io = |source| HistoryError::Io { path: self.path.clone(), doing: "appending to the history", source };
        serde_json::to_writer(&mut self.file, &record).map_err(|e| io(e.into()))?;
        self.file.write_all(b"\n").map_err(io)?;
        self.next += 1;
        Ok(record)
    }

    /// Hands everything to the kernel: from here on it survives the end of this process.
    pub fn flush(&mut self) -> Result<(), HistoryError> {
        self.file.flush().map_err(|source| HistoryError::Io {
            path: self.path.clone(),
            doing: "writing the history",
            source,
        })
    }
}

/// Reads a history, one record after the other.
pub struct Reader {
    path: PathBuf,
    input: Box<dyn BufRead>,
    line: u64,
    text: Vec<u8>,
    tail: Tail,
}

impl Reader {
    /// Opens a history; one whose name ends in `.zst` is decompressed.
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

    /// How the history ended; known once `next` gave `None`.
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
    use crate::{ClientId, HoldId};

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("history.jsonl");
        let mut writer = Writer::create(&path).unwrap();
        for n in 0..3 {
            let event =
                Event::Acquire { client: ClientId(0), attempt: HoldId::of(1, n), key: "k0".into(), intended: Stamp(5) };
            writer.append("worker-1".into(), n, Stamp(10 + n), event).unwrap();
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
