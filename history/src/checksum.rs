//! The checksums of a history: each line ends with a checksum of itself and of all lines before it.
//!
//! A checksum for each line alone would find a changed line, but no line that was lost, added or moved. A running
//! checksum finds all of them, at the first line that does not continue the lines before it.

/// The end of a line: this, eight hexadecimal digits, and the quotation mark and brace of [`AFTER`].
const BEFORE: &[u8] = b",\"crc\":\"";
const DIGITS: usize = 8;
const AFTER: &[u8] = b"\"}";
const LEN: usize = BEFORE.len() + DIGITS + AFTER.len();

/// The running checksum of a history: CRC-32 (IEEE 802.3) over its lines without newlines and without checksums.
#[derive(Debug, Default)]
pub struct Checksum(crc32fast::Hasher);

/// The checksum that [`Checksum::strip`] found at the end of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The line continues the lines before it.
    Right,
    /// The line, or the lines before it, are not those that were written.
    Wrong,
    /// The line has no checksum.
    None,
}

impl Checksum {
    /// Adds the checksum to `line`, a JSON object that has fields.
    pub fn add(&mut self, line: &mut Vec<u8>) {
        self.0.update(line);
        let digits = self.digits();
        line.truncate(line.len() - 1);
        line.extend_from_slice(BEFORE);
        line.extend_from_slice(&digits);
        line.extend_from_slice(AFTER);
    }

    /// Removes the checksum from `line` and compares it.
    pub fn strip(&mut self, line: &mut Vec<u8>) -> Found {
        let Some(start) = line.len().checked_sub(LEN) else { return Found::None };
        let end = &line[start..];
        if !end.starts_with(BEFORE) || !end.ends_with(AFTER) {
            return Found::None;
        }
        let mut digits = [0; DIGITS];
        digits.copy_from_slice(&end[BEFORE.len()..][..DIGITS]);
        line.truncate(start);
        line.push(b'}');
        self.0.update(line);
        if digits == self.digits() { Found::Right } else { Found::Wrong }
    }

    fn digits(&self) -> [u8; DIGITS] {
        let sum = self.0.clone().finalize();
        std::array::from_fn(|n| b"0123456789abcdef"[(sum >> (28 - 4 * n)) as usize & 15])
    }
}
