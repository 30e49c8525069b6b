//! Work on many bytes of a line at once, as one number whose lowest byte is the first.

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x80 * EACH;

/// The values of the bytes, if they are digits; then those that are no digits, as their high bits. After the first of
/// them, others may be set too.
#[inline(always)]
fn digits(bytes: u64) -> (u64, u64) {
    let values = bytes ^ (u64::from(b'0') * EACH);
    // Only a byte that is no digit can carry into the bytes after it.
    (values, (values.wrapping_add((0x80 - 10) * EACH) | values) & HIGH)
}

/// The number that eight digits have, given their values.
#[inline(always)]
fn number(values: u64) -> u64 {
    // Pairs of digits, then fours, then all eight. Each factor adds a part to that before it, times 10, 100 or 10,000.
    let pairs = (values.wrapping_mul(1 + (10 << 8)) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(1 + (100 << 16)) >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(1 + (10_000 << 32)) >> 32
}

/// A number of one to seven digits that does not begin with a zero, and the number of its digits.
#[inline(always)]
pub fn short_number(bytes: u64) -> Option<(u64, usize)> {
    let (values, others) = digits(bytes);
    if !(b'1'..=b'9').contains(&(bytes as u8)) || others == 0 {
        return None;
    }
    // 8 bits for each digit, and 7. The shift puts zeros before the digits.
    let end = others.trailing_zeros();
    Some((number(values << ((71 - end) % 64)), end as usize / 8))
}

/// A number of eight to fifteen digits that does not begin with a zero, and the number of its digits.
#[inline(always)]
pub fn long_number(bytes: u128) -> Option<(u64, usize)> {
    const TENS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    let (first, second) = (bytes as u64, (bytes >> 64) as u64);
    let (high, others) = digits(first);
    let (low, end) = digits(second);
    let end = end.trailing_zeros();
    if others != 0 || end == 64 || first as u8 == b'0' {
        return None;
    }
    let digits = end as usize / 8;
    // Two shifts, because 64 bits are too many for one.
    Some((number(high) * TENS[digits] + number(low << 1 << (70 - end)), 8 + digits))
}

/// The number of bytes before the first quotation mark.
#[inline(always)]
pub fn before_quote(bytes: u64) -> usize {
    let others = bytes ^ (u64::from(b'"') * EACH);
    let marks = others.wrapping_sub(EACH) & !others & HIGH;
    marks.trailing_zeros() as usize / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pairs of bytes, at each place, between digits.
    fn all() -> impl Iterator<Item = [u8; 8]> {
        (0..=u16::MAX).flat_map(|pair| {
            (0..7).map(move |place| {
                let mut bytes = *b"12345678";
                bytes[place..place + 2].copy_from_slice(&pair.to_le_bytes());
                bytes
            })
        })
    }

    #[test]
    fn a_word_ends_before_the_first_quotation_mark() {
        for bytes in all() {
            let count = bytes.iter().position(|byte| *byte == b'"').unwrap_or(8);
            assert_eq!(before_quote(u64::from_le_bytes(bytes)), count, "{bytes:?}");
        }
    }

    #[test]
    fn a_number_does_not_begin_with_zero() {
        for bytes in all() {
            let count = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(8);
            let number = str::from_utf8(&bytes[..count]).unwrap().parse().ok();
            let number = number.filter(|_| bytes[0] != b'0');
            let expected = number.map(|number| (number, count)).filter(|_| count < 8);
            let word = u64::from_le_bytes(bytes);
            assert_eq!(short_number(word), expected, "{bytes:?}");
            let sixteen = |first: u64, second: u64| u128::from(first) | u128::from(second) << 64;
            let expected = number.map(|number| (number * 100 + 34, 10)).filter(|_| count == 8);
            assert_eq!(long_number(sixteen(word, u64::from_le_bytes(*b"34,\"ab\":"))), expected, "{bytes:?}");
            let digits = str::from_utf8(&bytes[..count]).unwrap();
            let expected = format!("12345678{digits}").parse().ok().map(|number| (number, 8 + count));
            let expected = expected.filter(|_| count < 8);
            assert_eq!(long_number(sixteen(u64::from_le_bytes(*b"12345678"), word)), expected, "{bytes:?}");
        }
    }
}
