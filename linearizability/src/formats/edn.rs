//! A reader for the part of EDN that histories are written in. It gives one form after the other, each with its line,
//! and its memory is bounded by one form.

use std::{collections::VecDeque, io::Read};

use super::format::FormatError;
use crate::text::shortened;

/// Forms inside forms.
const DEPTH: usize = 32;
/// Characters of one form.
const LENGTH: usize = 16 << 20;

/// One form. Forms that are equal in EDN are equal here: sets and maps are sorted. Exceptions are numbers with a
/// fraction, symbols and characters, which are kept as they are written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Edn {
    Nil,
    Int(i64),
    Text(String),
    Keyword(String),
    Other(String),
    /// A vector or a list.
    List(Vec<Edn>),
    /// Sorted, without duplicates.
    Set(Vec<Edn>),
    /// Sorted by the keys, which are all different.
    Map(Vec<(Edn, Edn)>),
    /// A tag, as in `#inst "2026-11-27"`, and its form.
    Tagged(String, Box<Edn>),
}

impl std::fmt::Display for Edn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Edn::Nil => f.write_str("nil"),
            Edn::Int(number) => write!(f, "{number}"),
            Edn::Text(text) => write!(f, "{text:?}"),
            Edn::Keyword(name) => write!(f, ":{name}"),
            Edn::Other(text) => f.write_str(text),
            Edn::List(items) | Edn::Set(items) => {
                let (open, close) = if matches!(self, Edn::Set(_)) { ("#{", "}") } else { ("[", "]") };
                f.write_str(open)?;
                for (n, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if n > 0 { " " } else { "" })?;
                }
                f.write_str(close)
            }
            Edn::Tagged(tag, form) => write!(f, "#{tag} {form}"),
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
        let Edn::Map(entries) = self.untagged() else { return None };
        let found = entries.iter().find(|(key, _)| matches!(key, Edn::Keyword(known) if known == name));
        found.map(|(_, value)| value)
    }

    /// The form without its tags. A record is a map: `#jepsen.history.Op{…}`.
    pub(super) fn untagged(&self) -> &Edn {
        match self {
            Edn::Tagged(_, form) => form.untagged(),
            form => form,
        }
    }

    /// Returns whether the form has other forms inside.
    pub(super) fn is_collection(&self) -> bool {
        matches!(self.untagged(), Edn::List(_) | Edn::Set(_) | Edn::Map(_))
    }

    /// The form as a message shows it.
    pub(super) fn words(&self) -> String {
        shortened(&self.to_string())
    }

    /// The form of a number, a name or a keyword.
    fn of_token(token: String) -> Edn {
        if token == "nil" {
            return Edn::Nil;
        }
        if let Some(keyword) = token.strip_prefix(':') {
            return Edn::Keyword(keyword.to_owned());
        }
        // `5N` is 5, and so for numbers beyond 64 bits.
        let number = token.strip_suffix('N').unwrap_or(&token);
        if let Ok(number) = number.parse() {
            return Edn::Int(number);
        }
        let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Edn::Other(number.strip_prefix('+').unwrap_or(number).to_owned());
        }
        Edn::Other(token)
    }
}

/// Reads the operations of a file: forms one after the other, or one vector or list of them.
pub(super) struct EdnReader<R: Read> {
    bytes: std::io::Bytes<std::io::BufReader<R>>,
    /// Bytes that were looked at and not taken, three at most.
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
        // The mark of UTF-8, which some editors write.
        if self.ahead(2)? == Some(0xbf) && self.peeked.iter().eq(b"\xef\xbb\xbf") {
            self.peeked.clear();
        }
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
                        let mut items = self.items(b'}', depth + 1)?;
                        items.sort_unstable();
                        if let Some(pair) = items.windows(2).find(|pair| pair[0] == pair[1]) {
                            return Err(self.wrong(format!("a set has `{}` twice", pair[0].words())));
                        }
                        Ok(Edn::Set(items))
                    }
                    // `##Inf`, `##-Inf`, `##NaN`
                    Some(b'#') => {
                        self.take()?;
                        Ok(Edn::Other(format!("##{}", self.token()?)))
                    }
                    _ => {
                        let tag = self.token()?;
                        Ok(Edn::Tagged(tag, Box::new(self.form(depth + 1)?)))
                    }
                }
            }
            b']' | b')' | b'}' => Err(self.wrong(format!("`{}` closes nothing", char::from(byte)))),
            _ => Ok(Edn::of_token(self.token()?)),
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
        entries.sort_unstable();
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(self.wrong(format!("a map has the key `{}` twice", pair[0].0.words())));
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
                    Some(b'b') => text.push(0x08),
                    Some(b'f') => text.push(0x0c),
                    Some(b'u') => text.extend(self.unicode()?.into_bytes()),
                    Some(byte @ (b'"' | b'\\')) => text.push(byte),
                    // Others are kept as they are written: EDN has none.
                    Some(byte) => text.extend([b'\\', byte]),
                    None => return Err(self.wrong("the file ends inside a string".to_owned())),
                },
                Some(byte) => text.push(byte),
            }
        }
        String::from_utf8(text).map(Edn::Text).map_err(|_| self.wrong("a string is not UTF-8".to_owned()))
    }

    /// The character of `\uXXXX`, after the `u`. One beyond 16 bits is written as two, as in Java.
    fn unicode(&mut self) -> Result<String, FormatError> {
        let mut units = vec![self.unit()?];
        let is_half = (0xd800..0xdc00).contains(&units[0]);
        if is_half && self.peek()? == Some(b'\\') && self.ahead(1)? == Some(b'u') {
            self.take()?;
            self.take()?;
            units.push(self.unit()?);
        }
        String::from_utf16(&units).map_err(|_| self.wrong("a string has half of a character after `\\u`".to_owned()))
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Result<u16, FormatError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.take()?.and_then(|byte| char::from(byte).to_digit(16));
            let digit = digit.ok_or_else(|| self.wrong("expected four hexadecimal digits after `\\u`".to_owned()))?;
            unit = (unit << 4) | digit as u16;
        }
        Ok(unit)
    }

    /// Characters up to the end of a number, a name or a keyword.
    fn token(&mut self) -> Result<String, FormatError> {
        let mut token = Vec::new();
        while let Some(byte) = self.peek()? {
            let is_end = byte.is_ascii_whitespace() || b",[](){}\";\\".contains(&byte);
            // A backslash begins a character, and the byte after it belongs to it: `\(`, and `\a\b` are two.
            let is_inside = token == b"\\" || (token.is_empty() && byte == b'\\');
            if is_end && !is_inside {
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

/// Reads the forms of a text, up to those that are enough. After these, the text can go on with anything.
pub(super) fn forms(text: &str, line: usize, are_enough: impl Fn(&[Edn]) -> bool) -> Result<Vec<Edn>, FormatError> {
    let mut reader = EdnReader::new(text.as_bytes());
    reader.line = line;
    let mut forms = Vec::new();
    while !are_enough(&forms) {
        reader.skip(0)?;
        if reader.peek()?.is_none() {
            break;
        }
        forms.push(reader.form(0)?);
    }
    Ok(forms)
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

#[cfg(test)]
mod tests;
