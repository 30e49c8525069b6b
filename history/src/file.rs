//! The history file: JSON lines, one event on each line. The reader also reads `.zst`.
//!
//! The writer gives each line a checksum. A history whose first line has none was written by hand, and needs none.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use memchr::memmem;
use serde::de::DeserializeSeed;

use crate::{
    Event, ProcessName, Record,
    checksum::{self, Checksum, Found},
    line,
    plan::sizes::{PLAN_BYTES_MAX, PLAN_VALUES, has_more_values},
    record::Line,
};

/// The longest line after the plan, in bytes.
const LINE: u64 = 16 << 20;

/// The most values of a line, counted as commas and opening brackets. An event of a run has some dozens. A parsed value
/// can take a hundred times as much memory as its text.
const VALUES: usize = 100_000;

/// A compressed history is refused when it decompresses to more than so many times its own size. Histories of the
/// harness shrink 4 to 12 times; only a file that was made to fill a reader's memory or time comes near the bound.
const SHRINKS_AT_MOST: u64 = 1_000;

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
    /// The compressed file cannot be decompressed.
    #[error(
        "{}: decompressing it fails after line {line}: {problem}. It is no zstd file, or a damaged one: restore it, or \
         take `.zst` from its name if it is not compressed",
        path.display()
    )]
    Compressed {
        /// The file.
        path: PathBuf,
        /// The last line that could be read, counted from 1; 0 if there is none.
        line: u64,
        /// The error of the decoder.
        problem: String,
    },
    /// The file is compressed more than any history can be.
    #[error(
        "{}: decompresses to more than {} times its own size, as no history does; if you trust the file, decompress \
         it with `unzstd`, and give the result",
        path.display(), SHRINKS_AT_MOST
    )]
    Inflated {
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
    input: BufReader<Box<dyn Read + Send>>,
    line: u64,
    text: Vec<u8>,
    /// The length of the present line, in bytes.
    length: usize,
    /// The number of bytes that may still come, decompressed.
    left: u64,
    tail: Tail,
    checksum: Checksum,
    /// True if the first line has a checksum.
    has_checksums: bool,
    names: line::Names,
}

impl Reader {
    /// Opens a history; decompresses a file whose name ends in `.zst`.
    pub fn open(path: &Path) -> Result<Reader, HistoryError> {
        let io = |source| HistoryError::Io { path: path.into(), doing: "opening the history", source };
        let file = File::open(path).map_err(io)?;
        let mut left = u64::MAX;
        let input: Box<dyn Read + Send> = if is_zstd(path) {
            let metadata = file.metadata().map_err(io)?;
            // Nobody knows the size of a pipe.
            if metadata.is_file() {
                left = metadata.len().saturating_mul(SHRINKS_AT_MOST);
            }
            Box::new(zstd::Decoder::new(file).map_err(io)?)
        } else {
            Box::new(file)
        };
        let mut input = BufReader::with_capacity(1 << 16, input);
        let path = path.to_owned();
        // A damaged compressed file is reported when its lines are read.
        if input.fill_buf().is_ok_and(|start| start.starts_with(&GZIP)) {
            return Err(HistoryError::Gzip { path });
        }
        let (checksum, has_checksums) = (Checksum::default(), false);
        let (text, length, tail, names) = (Vec::new(), 0, Tail::Whole, line::Names::default());
        Ok(Reader { path, input, line: 0, text, length, left, tail, checksum, has_checksums, names })
    }

    /// Returns what the restarted processes of the resource found on disk: the name of each process, and the largest
    /// number ([`Event::Recovered`]). A checker that knows it from the start keeps no admission until a restart says
    /// whether it was undone. `None`: the history has no end, so a later restart may be missing. Only these lines and
    /// the last one are parsed, and no checksum is compared.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn recoveries(path: &Path) -> Result<Option<Vec<(ProcessName, u64)>>, HistoryError> {
        let mut reader = Reader::open(path)?;
        let finder = memmem::Finder::new(b"\"recovered\"");
        let (mut found, mut last) = (Vec::new(), Vec::new());
        while reader.next_line()? {
            if finder.find(&reader.text).is_some()
                && let Some(record) = parse_unchecked(&mut reader.text)
                && let Event::Recovered { durable } = record.event
            {
                found.push((record.process, durable));
            }
            std::mem::swap(&mut reader.text, &mut last);
        }
        let last = parse_unchecked(&mut last).map(|record| record.event);
        Ok((reader.tail == Tail::Whole && last == Some(Event::End)).then_some(found))
    }

    /// Returns the end of the history; known after `next` has returned `None`.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// The length of the present line, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Reads the next line into `text`, without its newline. False at the end of the file.
    fn next_line(&mut self) -> Result<bool, HistoryError> {
        self.text.clear();
        self.line += 1;
        let longest = if self.line == 1 { PLAN_BYTES_MAX } else { LINE };
        match read_line(&mut self.input, &mut self.text, longest) {
            Ok(()) if self.text.is_empty() => return Ok(false),
            Ok(()) => {}
            // A compressed file that was cut short ends like this.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                self.tail = Tail::Cut;
                return Ok(false);
            }
            // The system has a number for each of its own errors, and the decoder has none.
            Err(error) if is_zstd(&self.path) && error.raw_os_error().is_none() => {
                let (path, line, problem) = (self.path.clone(), self.line - 1, error.to_string());
                return Err(HistoryError::Compressed { path, line, problem });
            }
            Err(source) => {
                return Err(HistoryError::Io { path: self.path.clone(), doing: "reading the history", source });
            }
        }
        self.length = self.text.len();
        let length = self.length as u64;
        let Some(left) = self.left.checked_sub(length) else {
            return Err(HistoryError::Inflated { path: self.path.clone() });
        };
        self.left = left;
        if self.text.pop() != Some(b'\n') {
            // Without more bytes the line is cut, as any other.
            if length == longest && !self.input.fill_buf().is_ok_and(<[u8]>::is_empty) {
                return Err(self.wrong_line(format!("it is longer than {} MiB", longest >> 20)));
            }
            self.tail = Tail::Cut;
            return Ok(false);
        }
        let is_plan = self.line == 1 && memmem::find(&self.text, b"\"plan\"").is_some();
        let most = if is_plan { PLAN_VALUES } else { VALUES };
        if has_more_values(&self.text, most) {
            return Err(self.wrong_line(format!("it has more than {most} values")));
        }
        Ok(true)
    }

    /// The error of a line that is wrong as a whole.
    fn wrong_line(&self, problem: String) -> HistoryError {
        HistoryError::Line { path: self.path.clone(), line: self.line, column: 0, problem }
    }

    fn read(&mut self) -> Result<Option<Record>, HistoryError> {
        if !self.next_line()? {
            return Ok(None);
        }
        self.verify()?;
        if let Some(record) = line::parse(&self.text, &mut self.names) {
            return Ok(Some(record));
        }
        // UTF-8 is checked once for a line, and not for each string. If it is wrong, the parser names the column.
        let place = self.line - 1;
        let parsed = match str::from_utf8(&self.text) {
            Ok(text) => parse(&mut serde_json::Deserializer::from_str(text), place),
            Err(_) => parse(&mut serde_json::Deserializer::from_slice(&self.text), place),
        };
        parsed.map(Some).map_err(|e| HistoryError::Line {
            path: self.path.clone(),
            line: self.line,
            column: e.column(),
            problem: problem(&self.text, &e),
        })
    }
}

fn is_zstd(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "zst")
}

/// Reads up to the end of a line, or up to `longest` bytes.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>, longest: u64) -> io::Result<()> {
    loop {
        let bytes = match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let most = bytes.len().min((longest - line.len() as u64) as usize);
        let end = memchr::memchr(b'\n', &bytes[..most]);
        let read = end.map_or(most, |end| end + 1);
        line.extend_from_slice(&bytes[..read]);
        input.consume(read);
        if end.is_some() || read == 0 {
            return Ok(());
        }
    }
}

impl Reader {
    /// Consumes the line that was read in place, if a right checksum and a newline follow after `length` bytes.
    /// Otherwise returns false and changes nothing: the line must be copied, and serde or an error may follow.
    ///
    /// The newline is the first one: no line that is read by position has one before its checksum.
    #[inline(always)]
    fn ends_after(&mut self, length: usize) -> bool {
        let (before, after) = self.input.buffer().split_at(length);
        let length = length + checksum::LINE_END;
        if length as u64 > self.left || !self.checksum.follows(before, after) {
            return false;
        }
        self.input.consume(length);
        self.left -= length as u64;
        self.length = length;
        self.line += 1;
        true
    }

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

/// The reason why a line cannot be parsed: the parser's message without its line and column, which count within the
/// line of the file.
fn problem(line: &[u8], e: &serde_json::Error) -> String {
    if line.trim_ascii().is_empty() {
        return "the line is empty".to_owned();
    }
    let (message, place) = (e.to_string(), format!(" at line {} column {}", e.line(), e.column()));
    if message.starts_with("unknown field `crc`") {
        return "its checksum is not the last field, or is not written `,\"crc\":\"…\"}` without spaces".to_owned();
    }
    message.strip_suffix(&place).unwrap_or(&message).to_owned()
}

/// Parses a line without comparing its checksum, which is removed. `None`: the line is no record.
fn parse_unchecked(line: &mut Vec<u8>) -> Option<Record> {
    Checksum::default().strip(line);
    parse(&mut serde_json::Deserializer::from_slice(line), 0).ok()
}

/// Parses a line. `place` is the number of a record that does not give its own.
fn parse<'de, R: serde_json::de::Read<'de>>(
    line: &mut serde_json::Deserializer<R>,
    place: u64,
) -> serde_json::Result<Record> {
    let record = Line { place: Some(place) }.deserialize(&mut *line)?;
    line.end().map(|()| record)
}

impl Iterator for Reader {
    type Item = Result<Record, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        // The first line says whether the others have checksums. Without bytes, no line is read in place.
        let bytes = if self.has_checksums && self.tail == Tail::Whole { self.input.buffer() } else { &[] };
        let mut after = bytes;
        // One variable for the results of both ways, so that a record is copied once.
        let mut record = line::start(&mut after, &mut self.names);
        let length = bytes.len() - after.len();
        if record.is_none() || !self.ends_after(length) {
            record = if self.tail == Tail::Whole { self.read().transpose() } else { None };
        }
        record
    }
}

#[cfg(test)]
mod tests;
