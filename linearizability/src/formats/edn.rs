//! A reader for the part of EDN that histories are written in. It gives one form after the other, each with its line,
//! and its memory is bounded by one form.

use std::{collections::VecDeque, io::Read};

use super::format::FormatError;

/// Forms inside forms.
const DEPTH: usize = 32;
/// Characters of one form.
const LENGTH: usize = 16 << 20;

/// One form. Numbers with a fraction, symbols and characters are kept as text: no history needs them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Edn {
    Nil,
    Int(i64),
    Text(String),
    Keyword(String),
    Other(String),
    /// A vector, a list or a set.
    List(Vec<Edn>),
    Map(Vec<(Edn, Edn)>),
}

impl std::fmt::Display for Edn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Edn::Nil => f.write_str("nil"),
            Edn::Int(number) => write!(f, "{number}"),
            Edn::Text(text) => write!(f, "{text:?}"),
            Edn::Keyword(name) => write!(f, ":{name}"),
            Edn::Other(text) => f.write_str(text),
            Edn::List(items) => {
                f.write_str("[")?;
                for (n, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if n > 0 { " " } else { "" })?;
                }
                f.write_str("]")
            }
            Edn::Map(entries) => {
                f.write_str("{")?;
                for (n, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{}{key} {value}", if n > 0 { ", " } else { "" })?;
                }
                f.write_str("}")
            }
        }
    }
}

impl Edn {
    /// The value of a keyword in a map.
    pub(super) fn get(&self, name: &str) -> Option<&Edn> {
        let Edn::Map(entries) = self else { return None };
        let found = entries.iter().find(|(key, _)| matches!(key, Edn::Keyword(known) if known == name));
        found.map(|(_, value)| value)
    }
}

/// Reads the operations of a file: forms one after the other, or one vector or list of them.
pub(super) struct EdnReader<R: Read> {
    bytes: std::io::Bytes<std::io::BufReader<R>>,
    /// Bytes that were looked at and not taken, two at most.
    peeked: VecDeque<u8>,
    line: usize,
    /// Characters of the present form.
    length: usize,
    /// The closing bracket of the collection that all operations are in, and its line.
    around: Option<(u8, usize)>,
    is_started: bool,
}

impl<R: Read> EdnReader<R> {
    pub(super) fn new(file: R) -> EdnReader<R> {
        let bytes = std::io::BufReader::with_capacity(1 << 16, file).bytes();
        EdnReader { bytes, peeked: VecDeque::new(), line: 1, length: 0, around: None, is_started: false }
    }

    /// The next operation and its line.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Edn)>, FormatError> {
        self.length = 0;
        if !self.is_started {
            self.is_started = true;
            if let Some(first) = self.start()? {
                return Ok(Some(first));
            }
        }
        self.skip(0)?;
        let line = self.line;
        match (self.peek()?, self.around) {
            (None, None) => Ok(None),
            (None, Some((close, opened))) => {
                Err(self.wrong(format!("the file ends, but the `{}` of line {opened} is open", open_of(close))))
            }
            (Some(byte), Some((close, _))) if byte == close => {
                self.take()?;
                self.skip(0)?;
                match self.peek()? {
                    None => Ok(None),
                    Some(_) => Err(self.wrong("something follows the end of the history".to_owned())),
                }
            }
            (Some(_), _) => Ok(Some((line, self.form(0)?))),
        }
    }

    /// Opens the collection around all operations, if there is one. A file of tuples begins like a vector of maps, so
    /// its first operation is the result then.
    fn start(&mut self) -> Result<Option<(usize, Edn)>, FormatError> {
        self.skip(0)?;
        let line = self.line;
        let close = match self.peek()? {
            Some(b'[') => b']',
            Some(b'(') => b')',
            _ => return Ok(None),
        };
        self.take()?;
        self.skip(0)?;
        if matches!(self.peek()?, Some(b'{' | b'[' | b'(' | b'#' | b']' | b')') | None) {
            self.around = Some((close, line));
            return Ok(None);
        }
        Ok(Some((line, Edn::List(self.items(close, 1)?))))
    }

    fn form(&mut self, depth: usize) -> Result<Edn, FormatError> {
        if depth > DEPTH {
            return Err(self.wrong(format!("more than {DEPTH} forms inside one another")));
        }
        self.skip(depth)?;
        let Some(byte) = self.peek()? else { return Err(self.wrong("the file ends inside an operation".to_owned())) };
        match byte {
            b'[' | b'(' => {
                self.take()?;
                Ok(Edn::List(self.items(if byte == b'[' { b']' } else { b')' }, depth + 1)?))
            }
            b'{' => {
                self.take()?;
                self.map(depth + 1)
            }
            b'"' => self.text(),
            b'#' => {
                self.take()?;
                match self.peek()? {
                    Some(b'{') => {
                        self.take()?;
                        Ok(Edn::List(self.items(b'}', depth + 1)?))
                    }
                    // A tag, as in `#jepsen.history.Op{…}`: the form counts.
                    _ => {
                        self.token()?;
                        self.form(depth + 1)
                    }
                }
            }
            b']' | b')' | b'}' => Err(self.wrong(format!("`{}` closes nothing", char::from(byte)))),
            _ => {
                let token = self.token()?;
                Ok(match token.as_str() {
                    "nil" => Edn::Nil,
                    _ => match (token.strip_prefix(':'), token.trim_end_matches('N').parse()) {
                        (Some(keyword), _) => Edn::Keyword(keyword.to_owned()),
                        (None, Ok(number)) => Edn::Int(number),
                        (None, Err(_)) => Edn::Other(token),
                    },
                })
            }
        }
    }

    fn items(&mut self, close: u8, depth: usize) -> Result<Vec<Edn>, FormatError> {
        let mut items = Vec::new();
        loop {
            self.skip(depth)?;
            if self.peek()? == Some(close) {
                self.take()?;
                return Ok(items);
            }
            items.push(self.form(depth)?);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Edn, FormatError> {
        let items = self.items(b'}', depth)?;
        if items.len() % 2 != 0 {
            return Err(self.wrong("a map has a key without a value".to_owned()));
        }
        let mut entries = Vec::with_capacity(items.len() / 2);
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            entries.push((key, value));
        }
        Ok(Edn::Map(entries))
    }

    fn text(&mut self) -> Result<Edn, FormatError> {
        let mut text = Vec::new();
        self.take()?;
        loop {
            match self.take()? {
                None => return Err(self.wrong("the file ends inside a string".to_owned())),
                Some(b'"') => break,
                Some(b'\\') => match self.take()? {
                    Some(b'n') => text.push(b'\n'),
                    Some(b't') => text.push(b'\t'),
                    Some(b'r') => text.push(b'\r'),
                    Some(byte @ (b'"' | b'\\')) => text.push(byte),
                    // Others are kept as they are written: values are compared, not shown.
                    Some(byte) => text.extend([b'\\', byte]),
                    None => return Err(self.wrong("the file ends inside a string".to_owned())),
                },
                Some(byte) => text.push(byte),
            }
        }
        String::from_utf8(text).map(Edn::Text).map_err(|_| self.wrong("a string is not UTF-8".to_owned()))
    }

    /// Characters up to the end of a number, a name or a keyword.
    fn token(&mut self) -> Result<String, FormatError> {
        let mut token = Vec::new();
        while let Some(byte) = self.peek()? {
            let is_end = byte.is_ascii_whitespace() || b",[](){}\";".contains(&byte);
            // The character after a backslash belongs to it: `\(` is a character.
            if is_end && token != b"\\" {
                break;
            }
            token.push(byte);
            self.take()?;
        }
        if token.is_empty() {
            return Err(self.wrong("expected a form".to_owned()));
        }
        String::from_utf8(token).map_err(|_| self.wrong("a name is not UTF-8".to_owned()))
    }

    /// Skips spaces, commas, comments, and forms after `#_`.
    fn skip(&mut self, depth: usize) -> Result<(), FormatError> {
        while let Some(byte) = self.peek()? {
            match byte {
                b' ' | b',' | b'\n' | b'\r' | b'\t' => {
                    self.take()?;
                }
                b';' => while !matches!(self.take()?, Some(b'\n') | None) {},
                b'#' if self.ahead(1)? == Some(b'_') => {
                    self.take()?;
                    self.take()?;
                    self.form(depth + 1)?;
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn peek(&mut self) -> Result<Option<u8>, FormatError> {
        self.ahead(0)
    }

    /// The byte after `n` others.
    fn ahead(&mut self, n: usize) -> Result<Option<u8>, FormatError> {
        while self.peeked.len() <= n {
            match self.bytes.next().transpose().map_err(FormatError::Read)? {
                Some(byte) => self.peeked.push_back(byte),
                None => return Ok(None),
            }
        }
        Ok(Some(self.peeked[n]))
    }

    fn take(&mut self) -> Result<Option<u8>, FormatError> {
        self.peek()?;
        let byte = self.peeked.pop_front();
        if byte == Some(b'\n') {
            self.line += 1;
        }
        self.length += 1;
        if self.length > LENGTH {
            return Err(self.wrong(format!("an operation has more than {} MiB", LENGTH >> 20)));
        }
        Ok(byte)
    }

    fn wrong(&self, problem: String) -> FormatError {
        FormatError::Line { line: self.line, problem }
    }
}

fn open_of(close: u8) -> char {
    if close == b']' { '[' } else { '(' }
}

/// Reads one form from a text.
pub(super) fn one(text: &str, line: usize) -> Result<Edn, FormatError> {
    let mut reader = EdnReader::new(text.as_bytes());
    reader.line = line;
    let form = reader.form(0)?;
    reader.skip(0)?;
    match reader.peek()? {
        None => Ok(form),
        Some(_) => Err(reader.wrong("something follows the form".to_owned())),
    }
}
