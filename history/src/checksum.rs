//! The checksums of a history: each line ends with a checksum of itself and of all lines before it.
//!
//! A checksum for each line alone would find a changed line, but no line that was lost, added or moved. A running
//! checksum finds all of them, at the first line that does not continue the lines before it.

/// The end of a line: this, eight hexadecimal digits, and the quotation mark and brace of [`AFTER`].
const BEFORE: &[u8] = b",\"crc\":\"";
const DIGITS: usize = 8;
const AFTER: &[u8] = b"\"}";
const LEN: usize = BEFORE.len() + DIGITS + AFTER.len();

/// The length of a checksum and a newline.
pub const LINE_END: usize = LEN + 1;

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

    /// Adds a line to the running checksum if the line's own checksum is right. `before` is the line up to the
    /// checksum; `after` has the checksum, the newline, and maybe more. Otherwise returns false and changes nothing:
    /// [`Checksum::strip`] says more.
    #[inline]
    pub fn follows(&mut self, before: &[u8], after: &[u8]) -> bool {
        let Some((end, _)) = after.split_first_chunk::<LINE_END>() else { return false };
        let (start, end) = end.split_at(BEFORE.len());
        let (digits, end) = end.split_at(DIGITS);
        if start != BEFORE || end != b"\"}\n" {
            return false;
        }
        let mut sum = Checksum(self.0.clone());
        sum.0.update(before);
        sum.0.update(b"}");
        let is_right = digits == sum.digits();
        if is_right {
            *self = sum;
        }
        is_right
    }

    /// The eight hexadecimal digits, the highest first.
    fn digits(&self) -> [u8; DIGITS] {
        const EACH: u64 = 0x0101_0101_0101_0101;
        let sum = u64::from(self.0.clone().finalize().swap_bytes());
        // Each byte of the sum goes to two bytes, then each half of it to one of the two.
        let pairs = (sum | sum << 16) & 0x0000_ffff_0000_ffff;
        let bytes = (pairs | pairs << 8) & 0x00ff_00ff_00ff_00ff;
        let halves = (bytes >> 4 | bytes << 8) & (0x0f * EACH);
        let letters = ((halves + 6 * EACH) >> 4) & EACH;
        (halves + u64::from(b'0') * EACH + letters * u64::from(b'a' - b'9' - 1)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_those_of_the_standard_library() {
        for n in 0..100_000_u32 {
            let sum = n.wrapping_mul(0x9e37_79b9);
            let digits = Checksum(crc32fast::Hasher::new_with_initial(sum)).digits();
            assert_eq!(str::from_utf8(&digits).unwrap(), format!("{sum:08x}"));
        }
    }

    #[test]
    fn a_line_follows_only_with_its_own_checksum_and_end() {
        let mut written = Checksum::default();
        let [first, second] = ["{\"n\":1}", "{\"n\":2}"].map(|text| {
            let mut line = text.as_bytes().to_vec();
            written.add(&mut line);
            line.push(b'\n');
            line
        });
        let mut read = Checksum::default();
        let mut follows = |line: &[u8]| {
            let (before, after) = line.split_at(line.len() - LINE_END);
            read.follows(before, after)
        };
        assert!(!follows(&second), "the first line is missing");
        for place in 0..first.len() {
            let mut changed = first.clone();
            changed[place] ^= 1;
            assert!(!follows(&changed), "byte {place}");
        }
        assert!(follows(&first) && follows(&second));
    }
}
