//! Names that were read before. Most lines have the names of earlier lines, and a copy costs less than a new name.

/// Names that were read before, each at a place that the start of its text gives. A new name replaces the one there.
/// After these places, a power of two, comes one for the last name that was too long.
#[derive(Debug)]
pub(super) struct Known<T, const PLACES: usize>(Vec<Option<Kept<T>>>);

#[derive(Debug)]
struct Kept<T> {
    /// The text with its quotation mark, which ends it: no other text is equal.
    text: u128,
    /// The bits of the text in the sixteen bytes with which it begins.
    bits: u128,
    /// The number of bytes of the text.
    length: usize,
    name: T,
}

impl<T, const PLACES: usize> Default for Known<T, PLACES> {
    fn default() -> Self {
        Known(Vec::new())
    }
}

/// The place of a name. Depends on ten bytes: if the name is shorter, then on the start of the field after it too.
#[inline(always)]
fn place<const PLACES: usize>(text: u128) -> usize {
    let ten = text as u64 ^ ((text >> 64) as u64) << 48;
    // The multiplier is 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4). Only the highest bits of the
    // product depend on all bytes.
    (ten.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2())) as usize
}

/// The bytes before the next quotation mark, if they are printable ASCII without escapes.
fn text(bytes: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| *byte != b'"' && *byte != b'\\' && (b' '..=b'~').contains(byte);
    let end = bytes.iter().position(|byte| !is_plain(byte))?;
    let (text, rest) = bytes.split_at(end);
    str::from_utf8(text).ok().filter(|_| rest[0] == b'"')
}

impl<T: for<'s> From<&'s str>, const PLACES: usize> Known<T, PLACES> {
    /// The name up to the next quotation mark, and the number of bytes with that mark.
    #[inline(always)]
    pub fn read(&mut self, bytes: &[u8]) -> Option<(&T, usize)> {
        if let Some(sixteen) = bytes.first_chunk()
            && let sixteen = u128::from_le_bytes(*sixteen)
            && let place = place::<PLACES>(sixteen)
            && let Some(Some(known)) = self.0.get(place)
            && sixteen & known.bits == known.text
        {
            // A second look, because the first one cannot last over the call below.
            return self.0[place].as_ref().map(|known| (&known.name, known.length));
        }
        self.new_name(bytes)
    }

    #[inline(never)]
    fn new_name(&mut self, bytes: &[u8]) -> Option<(&T, usize)> {
        let name = text(bytes)?;
        let (length, name) = (name.len() + 1, T::from(name));
        if self.0.is_empty() {
            self.0.resize_with(PLACES + 1, || None);
        }
        let (place, text, bits) = match bytes.first_chunk().map(|sixteen| u128::from_le_bytes(*sixteen)) {
            Some(sixteen) if length <= 16 => {
                let bits = u128::MAX >> (128 - 8 * length);
                (place::<PLACES>(sixteen), sixteen & bits, bits)
            }
            // No bytes are equal to this text.
            _ => (PLACES, 1, 0),
        };
        let known = self.0[place].insert(Kept { text, bits, length, name });
        Some((&known.name, length))
    }
}
