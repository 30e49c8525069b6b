//! The history file: JSON lines, one event on each line. The reader also reads `.zst`.
//!
//! The writer gives each line a checksum. A history whose first line has none was written by hand, and needs none.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use crate::{
    Record,
    checksum::{Checksum, Found},
};

/// The first bytes of a file that gzip has compressed (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

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
    /// The history is not the one that was written.
    #[error(
        "{}: line {line}: {problem}. The history is damaged and gives no verdict; restore the file",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Counted from 1: the first line that does not fit.
        line: u64,
        /// The damage.
        problem: &'static str,
    },
    /// The file is compressed in a way that the reader does not know.
    #[error(
        "{}: compressed by gzip; expected a history (.jsonl), or one compressed by zstd (.jsonl.zst); decompress it \
         with `gunzip` first",
        path.display()
    )]
    Gzip {
        /// The file.
        path: PathBuf,
    },
}

impl HistoryError {
    /// Returns whether the content of the file is wrong, rather than its use impossible.
    pub fn is_in_the_file(&self) -> bool {
        !matches!(self, HistoryError::Io { .. })
    }
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
    checksum: Checksum,
    line: Vec<u8>,
}

impl Writer {
    /// Creates a history; the file must not exist.
    pub fn create(path: &Path) -> Result<Writer, HistoryError> {
        let file = File::options().write(true).create_new(true).open(path).map_err(|source| HistoryError::Io {
            path: path.into(),
            doing: "creating the history",
            source,
        })?;
        let file = BufWriter::with_capacity(1 << 16, file);
        Ok(Writer { path: path.into(), file, checksum: Checksum::default(), line: Vec::new() })
    }

    /// Appends `record`, which may stay in a buffer until [`Writer::flush`].
    pub fn append(&mut self, record: &Record) -> Result<(), HistoryError> {
        let io = |source| HistoryError::Io { path: self.path.clone(), doing: "appending to the history", source };
        self.line.clear();
        serde_json::to_writer(&mut self.line, record).map_err(|e| io(e.into()))?;
        self.checksum.add(&mut self.line);
        self.line.push(b'\n');
        self.file.write_all(&self.line).map_err(io)
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
    checksum: Checksum,
    /// True if the first line has a checksum.
    has_checksums: bool,
}

impl Reader {
    /// Opens a history; decompresses a file whose name ends in `.zst`.
    pub fn open(path: &Path) -> Result<Reader, HistoryError> {
        let io = |source| HistoryError::Io { path: path.into(), doing: "opening the history", source };
        let file = File::open(path).map_err(io)?;
        let mut input: Box<dyn BufRead> = if path.extension().is_some_and(|e| e == "zst") {
            Box::new(BufReader::new(zstd::Decoder::new(file).map_err(io)?))
        } else {
            Box::new(BufReader::with_capacity(1 << 16, file))
        };
        let path = path.to_owned();
        // A damaged compressed file is reported when its lines are read.
        if input.fill_buf().is_ok_and(|start| start.starts_with(&GZIP)) {
            return Err(HistoryError::Gzip { path });
        }
        let (checksum, has_checksums) = (Checksum::default(), false);
        Ok(Reader { path, input, line: 0, text: Vec::new(), tail: Tail::Whole, checksum, has_checksums })
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
        if self.text.pop() != Some(b'\n') {
            self.tail = Tail::Cut;
            return Ok(None);
        }
        self.verify()?;
        // UTF-8 is checked once for a line, and not for each string. If it is wrong, the parser names the column.
        let parsed = match str::from_utf8(&self.text) {
            Ok(text) => serde_json::from_str(text),
            Err(_) => serde_json::from_slice(&self.text),
        };
        parsed.map(Some).map_err(|e| HistoryError::Line {
            path: self.path.clone(),
            line: self.line,
            column: e.column(),
            problem: e.to_string(),
        })
    }
}

impl Reader {
    /// Checks and removes the checksum of the present line.
    fn verify(&mut self) -> Result<(), HistoryError> {
        let found = self.checksum.strip(&mut self.text);
        if self.line == 1 {
            self.has_checksums = found != Found::None;
        }
        let problem = match (found, self.has_checksums) {
            (Found::Right, true) | (Found::None, false) => return Ok(()),
            (Found::Wrong, true) => {
                "its checksum is wrong: this line was changed, or a line before it was lost, added or moved"
            }
            (Found::None, true) => "it has no checksum, but line 1 has one: this line was changed or added",
            (_, false) => "it has a checksum, but line 1 has none: line 1 was changed or added",
        };
        Err(HistoryError::Damaged { path: self.path.clone(), line: self.line, problem })
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
mod tests;
