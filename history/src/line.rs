//! A fast reader for lines as the writer of this crate makes them.
//!
//! Most lines of a history are a dozen kinds of event, with their fields in the order of the types and without spaces.
//! Such a line is read from left to right, by position. Anything else is left to serde: another order of the fields, a
//! rare event, an escape in a name, a number that is no whole number. A line that is read here gives the same record as
//! serde gives (`tests.rs` compares the two).

use crate::{
    Answers, Arm, ArmDecision, ArmReadAnswer, ArmWriteAnswer, ClientId, Event, FailureReason, HoldId, Key, Mode,
    NodeAnswer, NodeName, OpId, Outcome, ProcessName, Record, Report, RequestKind, Stamp, Token,
};

/// Names that were read before. Most lines have the names of earlier lines, and a copy costs less than a new name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By the place in a list of answers.
    nodes: Vec<NodeName>,
    /// Lists of answers, with their text. Most answers are those of an earlier line.
    answers: Vec<(Vec<u8>, Answers)>,
    /// The list that the next new one replaces.
    oldest: usize,
}

/// Reads a line without its newline and its checksum. `None`: serde must read it.
pub(crate) fn parse(line: &[u8], names: &mut Names) -> Option<Record> {
    let mut rest = Rest { bytes: line, names };
    let seq = rest.after(b"{\"seq\":")?.number()?;
    let process = ProcessName::from(rest.after(b",\"process\":")?.name()?);
    let Report { n, at, event } = rest.after(b",")?.report()?;
    Some(Record { seq, process, n, at, event })
}

/// Reads a line of a process without its newline. `None`: serde must read it.
pub(crate) fn parse_report(line: &[u8], names: &mut Names) -> Option<Report> {
    Rest { bytes: line, names }.after(b"{")?.report()
}

/// The fields of an event, in the order of the type.
fn event_of(name: &[u8], rest: &mut Rest) -> Option<Event> {
    Some(match name {
        b"watermark" => Event::Watermark,
        b"acquire" => Event::Acquire {
            client: ClientId(u32::try_from(rest.after(b",\"client\":")?.number()?).ok()?),
            attempt: rest.attempt()?,
            key: Key::from(rest.after(b",\"key\":")?.name()?),
            intended: Stamp(rest.after(b",\"intended\":")?.number()?),
            mode: match rest.after(b",\"mode\":") {
                Some(rest) => rest.word(|word| Mode::ALL.into_iter().find(|mode| mode.name().as_bytes() == word))?,
                None => Mode::default(),
            },
            above: rest.optional(b",\"above\":")?.map(HoldId),
        },
        b"write-back" => Event::WriteBack { attempt: rest.attempt()? },
        b"behind" => Event::Behind { attempt: rest.attempt()? },
        b"undo" => Event::Undo { attempt: rest.attempt()? },
        b"undone" => Event::Undone { attempt: rest.attempt()?, answers: rest.answers()? },
        b"acquired" => Event::Acquired {
            attempt: rest.attempt()?,
            token: rest.after(b",\"token\":")?.token()?,
            lease_ns: rest.after(b",\"lease_ns\":")?.number()?,
            granted_after: Stamp(rest.after(b",\"granted_after\":")?.number()?),
            promised_from: rest.optional(b",\"promised_from\":")?.map(Stamp),
            place: rest.optional(b",\"place\":")?,
            valid_ns: rest.after(b",\"valid_ns\":")?.number()?,
            answers: rest.answers()?,
        },
        b"acquire-failed" => {
            let (attempt, (outcome, why)) = (rest.attempt()?, rest.failure()?);
            Event::AcquireFailed { attempt, outcome, why, detail: None, answers: rest.answers()? }
        }
        b"renew" => Event::Renew { hold: rest.hold()? },
        b"renewed" => Event::Renewed {
            hold: rest.hold()?,
            lease_ns: rest.after(b",\"lease_ns\":")?.number()?,
            answers: rest.answers()?,
        },
        b"release" => Event::Release { hold: rest.hold()? },
        b"released" => Event::Released {
            hold: rest.hold()?,
            removed: rest.after(b",\"removed\":")?.truth()?,
            answers: rest.answers()?,
        },
        b"gave-up" => Event::GaveUp { hold: rest.hold()? },
        b"read" => Event::Read { hold: rest.hold()?, op: rest.op()? },
        b"read-ok" => Event::ReadOk {
            hold: rest.hold()?,
            op: rest.op()?,
            number: rest.after(b",\"number\":")?.number()?,
            arms: rest.answers_of_arms(Rest::number, |arm, version, seen| ArmReadAnswer { arm, version, seen })?,
        },
        b"work" => Event::Work { hold: rest.hold()?, planned_ns: rest.after(b",\"planned_ns\":")?.number()? },
        b"check" => Event::Check { hold: rest.hold()?, passed: rest.after(b",\"passed\":")?.truth()? },
        b"write" => Event::Write { hold: rest.hold()?, op: rest.op()? },
        b"write-ok" => Event::WriteOk {
            hold: rest.hold()?,
            op: rest.op()?,
            number: rest.after(b",\"number\":")?.number()?,
            arms: rest.answers_of_arms(Rest::truth, |arm, admitted, seen| ArmWriteAnswer { arm, admitted, seen })?,
        },
        b"admission" => Event::Admission {
            number: rest.after(b",\"number\":")?.number()?,
            key: Key::from(rest.after(b",\"key\":")?.name()?),
            kind: rest.after(b",\"kind\":")?.word(|word| match word {
                b"read" => Some(RequestKind::Read),
                b"write" => Some(RequestKind::Write),
                _ => None,
            })?,
            hold: rest.optional(b",\"hold\":")?.map(HoldId),
            op: rest.optional(b",\"op\":")?.map(OpId),
            token: rest.optional(b",\"token\":")?.map(Token),
            deadline: None,
            repeat: match rest.after(b",\"repeat\":") {
                Some(rest) => rest.truth()?,
                None => false,
            },
            arms: rest.after(b",\"arms\":")?.list(decision)?,
        },
        _ => return None,
    })
}

fn decision(rest: &mut Rest) -> Option<ArmDecision> {
    let decision = ArmDecision {
        arm: rest.after(b"{\"arm\":")?.arm()?,
        admitted: rest.after(b",\"admitted\":")?.truth()?,
        seen: rest.optional(b",\"seen\":")?.map(Token),
        base: rest.optional(b",\"base\":")?,
        version: rest.after(b",\"version\":")?.number()?,
        value: rest.after(b",\"value\":")?.number()?,
    };
    rest.after(b"}")?;
    Some(decision)
}

/// The most places of a list of answers of which the name is kept.
const NODES: usize = 16;

/// The most lists of answers that are kept, and the longest text of one.
const LISTS: usize = 4;
const LIST_BYTES: usize = 512;

const TENS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Returns whether a byte of a text stands for itself.
fn is_plain(byte: u8) -> bool {
    byte != b'"' && byte != b'\\' && (b' '..=b'~').contains(&byte)
}

/// The bytes of a line that were not read yet.
struct Rest<'a> {
    bytes: &'a [u8],
    names: &'a mut Names,
}

impl<'a> Rest<'a> {
    /// The fields that a record has from its process, to the end of the line.
    fn report(&mut self) -> Option<Report> {
        let n = self.after(b"\"n\":")?.number()?;
        let at = Stamp(self.after(b",\"at\":")?.number()?);
        let event = self.after(b",\"event\":")?.text()?;
        let event = event_of(event, self)?;
        (self.bytes == b"}").then_some(Report { n, at, event })
    }

    /// The rest after these bytes, if it begins with them.
    #[inline]
    fn after<const N: usize>(&mut self, bytes: &[u8; N]) -> Option<&mut Self> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        if first != bytes {
            return None;
        }
        self.bytes = rest;
        Some(self)
    }

    /// A whole number without a sign, a fraction or zeros before it.
    #[inline]
    fn number(&mut self) -> Option<u64> {
        let (mut digits, mut number) = (0, 0_u64);
        while let Some(eight) = self.bytes.get(digits..).and_then(<[u8]>::first_chunk) {
            let (found, value) = eight_bytes::digits(*eight);
            number = number.wrapping_mul(TENS[found]).wrapping_add(value);
            digits += found;
            if found < 8 {
                break;
            }
        }
        // The end of a line has fewer bytes.
        while let Some(byte) = self.bytes.get(digits).filter(|byte| byte.is_ascii_digit()) {
            number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            digits += 1;
        }
        // 19 digits always fit. A number of more digits is rare; serde says whether it fits.
        if !(1..=19).contains(&digits) || (digits > 1 && self.bytes[0] == b'0') {
            return None;
        }
        self.bytes = &self.bytes[digits..];
        Some(number)
    }

    /// A number after these bytes, if they are next.
    #[expect(clippy::option_option, reason = "the outer one is for a line that serde must read")]
    #[inline]
    fn optional<const N: usize>(&mut self, bytes: &[u8; N]) -> Option<Option<u64>> {
        match self.after(bytes) {
            Some(rest) => rest.number().map(Some),
            None => Some(None),
        }
    }

    /// The answers of the arms, if they are next: of each its name, a `word` for the kind of request, and the token.
    #[expect(clippy::option_option, reason = "the outer one is for a line that serde must read")]
    #[inline]
    fn answers_of_arms<W, A>(
        &mut self,
        word: impl Fn(&mut Self) -> Option<W>,
        answer: impl Fn(Arm, W, Option<Token>) -> A,
    ) -> Option<Option<Vec<A>>> {
        let Some(rest) = self.after(b",\"arms\":") else { return Some(None) };
        let all = rest.list(|rest| {
            let arm = rest.after(b"[")?.arm()?;
            let word = word(rest.after(b",")?)?;
            let seen = rest.after(b",")?.token()?;
            rest.after(b"]")?;
            Some(answer(arm, word, seen))
        })?;
        Some(Some(all))
    }

    /// The bytes between quotation marks: printable ASCII without escapes.
    #[inline]
    fn text(&mut self) -> Option<&'a [u8]> {
        let text = self.bytes.strip_prefix(b"\"")?;
        let mut end = 0;
        while let Some(eight) = text.get(end..).and_then(<[u8]>::first_chunk) {
            let plain = eight_bytes::plain(*eight);
            end += plain;
            if plain < 8 {
                break;
            }
        }
        // The end of a line has fewer bytes.
        end += text[end..].iter().position(|byte| !is_plain(*byte))?;
        let (text, rest) = text.split_at(end);
        self.bytes = rest.strip_prefix(b"\"")?;
        Some(text)
    }

    fn name(&mut self) -> Option<&'a str> {
        str::from_utf8(self.text()?).ok()
    }

    /// A word of a list.
    fn word<T>(&mut self, of: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        of(self.text()?)
    }

    fn truth(&mut self) -> Option<bool> {
        if self.after(b"true").is_some() {
            return Some(true);
        }
        self.after(b"false").map(|_| false)
    }

    /// A token, or `null`.
    #[expect(clippy::option_option, reason = "the outer one is for a line that serde must read")]
    fn token(&mut self) -> Option<Option<Token>> {
        if self.after(b"null").is_some() {
            return Some(None);
        }
        self.number().map(|token| Some(Token(token)))
    }

    fn attempt(&mut self) -> Option<HoldId> {
        self.after(b",\"attempt\":")?.number().map(HoldId)
    }

    fn hold(&mut self) -> Option<HoldId> {
        self.after(b",\"hold\":")?.number().map(HoldId)
    }

    fn op(&mut self) -> Option<OpId> {
        self.after(b",\"op\":")?.number().map(OpId)
    }

    fn arm(&mut self) -> Option<Arm> {
        self.word(|word| {
            Some(match word {
                b"off" => Arm::Off,
                b"writes" => Arm::Writes,
                b"reads" => Arm::Reads,
                other => return Arm::ALL.into_iter().find(|arm| arm.name().as_bytes() == other),
            })
        })
    }

    fn failure(&mut self) -> Option<(Outcome, FailureReason)> {
        let outcome = self.after(b",\"outcome\":")?.word(|word| match word {
            b"failed" => Some(Outcome::Failed),
            b"indeterminate" => Some(Outcome::Indeterminate),
            _ => None,
        })?;
        let why = self.after(b",\"why\":")?.word(|word| match word {
            b"held" => Some(FailureReason::Held),
            b"validity" => Some(FailureReason::Validity),
            b"no-majority" => Some(FailureReason::NoMajority),
            b"lost" => Some(FailureReason::Lost),
            b"cancelled" => Some(FailureReason::Cancelled),
            _ => None,
        })?;
        Some((outcome, why))
    }

    /// The name of a node, at a place in a list of answers.
    fn node(&mut self, place: usize) -> Option<NodeName> {
        let text = self.text()?;
        let nodes = &mut self.names.nodes;
        if let Some(known) = nodes.get(place).filter(|known| known.as_str().as_bytes() == text) {
            return Some(known.clone());
        }
        let node = NodeName::from(str::from_utf8(text).ok()?);
        match nodes.get_mut(place) {
            Some(known) => known.clone_from(&node),
            None if place < NODES => nodes.push(node.clone()),
            None => {}
        }
        Some(node)
    }

    fn answers(&mut self) -> Option<Answers> {
        let start = self.after(b",\"answers\":")?.bytes;
        if let Some((text, known)) = self.names.answers.iter().find(|(text, _)| start.starts_with(text)) {
            self.bytes = &start[text.len()..];
            return Some(known.clone());
        }
        let answers = self.new_answers()?;
        let text = &start[..start.len() - self.bytes.len()];
        if text.len() <= LIST_BYTES {
            let Names { answers: known, oldest, .. } = &mut *self.names;
            let new = (text.to_vec(), answers.clone());
            match known.get_mut(*oldest) {
                Some(old) => *old = new,
                None => known.push(new),
            }
            *oldest = (*oldest + 1) % LISTS;
        }
        Some(answers)
    }

    fn new_answers(&mut self) -> Option<Answers> {
        let mut place = 0;
        self.list(|rest| {
            let node = rest.after(b"[")?.node(place)?;
            place += 1;
            let answer = rest.after(b",")?.word(|word| match word {
                b"granted" => Some(NodeAnswer::Granted),
                b"done" => Some(NodeAnswer::Done),
                b"refused" => Some(NodeAnswer::Refused),
                b"late" => Some(NodeAnswer::Late),
                b"none" => Some(NodeAnswer::None),
                _ => None,
            })?;
            rest.after(b"]")?;
            Some((node, answer))
        })
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.after(b"[")?;
        if self.after(b"]").is_some() {
            return Some(Vec::new());
        }
        // The usual lists have three to five items.
        let mut items = Vec::with_capacity(5);
        loop {
            items.push(item(self)?);
            if self.after(b",").is_none() {
                self.after(b"]")?;
                return Some(items);
            }
        }
    }
}

/// Work on eight bytes of a line at once, as one number whose lowest byte is the first.
mod eight_bytes {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;

    /// The number of digits with which the bytes begin, and their value.
    #[inline]
    pub fn digits(bytes: [u8; 8]) -> (usize, u64) {
        let values = u64::from_le_bytes(bytes) ^ (u64::from(b'0') * EACH);
        // The high bit of a byte that is no digit is set. Only such a byte can carry into the bytes after it.
        let others = (values.wrapping_add((0x80 - 10) * EACH) | values) & HIGH;
        let count = others.trailing_zeros() / 8;
        let Some(values) = values.checked_shl(64 - 8 * count) else { return (0, 0) };
        // Pairs of digits, then fours, then all eight.
        let pairs = values.wrapping_mul(10).wrapping_add(values >> 8) & 0x00ff_00ff_00ff_00ff;
        let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
        let eight = fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff;
        (count as usize, eight)
    }

    /// The number of bytes at the start that stand for themselves in a text.
    #[inline]
    pub fn plain(bytes: [u8; 8]) -> usize {
        let word = u64::from_le_bytes(bytes);
        // The high bit of a byte below `n` is set. After the first such byte, others may be set too.
        let below = |word: u64, n: u64| word.wrapping_sub(n * EACH) & !word;
        let equal = |byte: u8| below(word ^ (u64::from(byte) * EACH), 1);
        let others = below(word, u64::from(b' ')) | equal(b'"') | equal(b'\\') | equal(0x7f) | word;
        ((others & HIGH).trailing_zeros() / 8) as usize
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::line::is_plain;

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
        fn digits_are_those_before_the_first_other_byte() {
            for bytes in all() {
                let count = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(8);
                let text = str::from_utf8(&bytes[..count]).unwrap();
                assert_eq!(digits(bytes), (count, text.parse().unwrap_or(0)), "{bytes:?}");
            }
        }

        #[test]
        fn plain_bytes_are_those_before_the_first_other_byte() {
            for bytes in all() {
                let count = bytes.iter().position(|byte| !is_plain(*byte)).unwrap_or(8);
                assert_eq!(plain(bytes), count, "{bytes:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
