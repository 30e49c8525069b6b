//! The part of a line that was not read yet, and the values that are read from its start.
//!
//! All but the rare paths are inlined into one function for a line, so that the place in the line stays in registers.

use super::{at_once, known::Known};
use crate::{
    Arm, ArmDecision, ArmReadAnswer, ArmWriteAnswer, FailureReason, HoldId, NodeAnswer, OpId, Outcome, RequestKind,
    Token,
};

/// Most runs have three to five arms.
const ARMS: usize = 5;

/// The bytes of a line that were not read yet. After a failed read they mean nothing: serde reads the line.
pub(super) struct Rest<'a>(pub &'a [u8]);

/// A number, and the bytes after it. Meant for numbers of eight digits or more.
#[inline(always)]
fn long_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    if let Some(sixteen) = bytes.first_chunk()
        && let Some((number, digits)) = at_once::long_number(u128::from_le_bytes(*sixteen))
    {
        return Some((number, bytes.get(digits..)?));
    }
    any_number(bytes)
}

#[inline(never)]
fn number_that_is_not_short(bytes: &[u8]) -> Option<(u64, &[u8])> {
    long_number(bytes)
}

/// A number of any length, and the bytes after it.
#[inline(never)]
fn any_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    if let [b'0', rest @ ..] = bytes
        && !rest.first().is_some_and(u8::is_ascii_digit)
    {
        return Some((0, rest));
    }
    let digits = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len());
    // 19 digits always fit. A number of more digits is rare; serde says whether it fits.
    if !(1..=19).contains(&digits) || bytes[0] == b'0' {
        return None;
    }
    let (number, rest) = bytes.split_at(digits);
    Some((number.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')), rest))
}

/// The decisions of the arms, and the bytes after the list.
#[inline(never)]
pub(super) fn decisions(bytes: &[u8]) -> Option<(Vec<ArmDecision>, &[u8])> {
    let (mut rest, mut all) = (Rest(bytes), Vec::with_capacity(ARMS));
    while rest.item(all.is_empty())? {
        all.push(ArmDecision {
            arm: rest.after(b"{\"arm\":\"")?.arm()?,
            admitted: rest.after(b",\"admitted\":")?.truth()?,
            seen: rest.optional(b",\"seen\":")?.map(Token),
            base: rest.optional(b",\"base\":")?,
            version: rest.after(b",\"version\":")?.number()?,
            value: rest.after(b",\"value\":")?.number()?,
        });
        rest.after(b"}")?;
    }
    Some((all, rest.0))
}

/// The answers of the arms to a read, and the bytes after the list.
#[inline(never)]
pub(super) fn read_answers(bytes: &[u8]) -> Option<(Vec<ArmReadAnswer>, &[u8])> {
    answers_of_arms(bytes, Rest::number, |arm, version, seen| ArmReadAnswer { arm, version, seen })
}

/// The answers of the arms to a write, and the bytes after the list.
#[inline(never)]
pub(super) fn write_answers(bytes: &[u8]) -> Option<(Vec<ArmWriteAnswer>, &[u8])> {
    answers_of_arms(bytes, Rest::truth, |arm, admitted, seen| ArmWriteAnswer { arm, admitted, seen })
}

/// Answers of arms, each with its arm, a value that depends on the kind of request, and the token.
#[inline(always)]
fn answers_of_arms<'a, V, A>(
    bytes: &'a [u8],
    value: impl Fn(&mut Rest<'a>) -> Option<V>,
    answer: impl Fn(Arm, V, Option<Token>) -> A,
) -> Option<(Vec<A>, &'a [u8])> {
    let (mut rest, mut all) = (Rest(bytes), Vec::with_capacity(ARMS));
    while rest.item(all.is_empty())? {
        let arm = rest.after(b"[\"")?.arm()?;
        let value = value(rest.after(b",")?)?;
        let seen = rest.after(b",")?.token()?;
        rest.after(b"]")?;
        all.push(answer(arm, value, seen));
    }
    Some((all, rest.0))
}

impl<'a> Rest<'a> {
    /// The rest after these bytes, if it begins with them.
    #[inline(always)]
    pub fn after<const N: usize>(&mut self, bytes: &[u8; N]) -> Option<&mut Self> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        // Slices: arrays would be compared as one number, which is read byte by byte.
        if first[..] != bytes[..] {
            return None;
        }
        self.0 = rest;
        Some(self)
    }

    /// Returns whether the line goes on with these bytes, and reads them.
    #[inline(always)]
    pub fn found<const N: usize>(&mut self, bytes: &[u8; N]) -> bool {
        self.after(bytes).is_some()
    }

    /// A part of the line that a function reads, which returns the bytes after that part too.
    #[inline(always)]
    pub fn take<T>(&mut self, read: impl FnOnce(&'a [u8]) -> Option<(T, &'a [u8])>) -> Option<T> {
        let (part, rest) = read(self.0)?;
        self.0 = rest;
        Some(part)
    }

    /// A name, mostly one of those that are known, up to its quotation mark.
    #[inline(always)]
    pub fn name<T: Clone + for<'s> From<&'s str>, const PLACES: usize>(
        &mut self,
        known: &mut Known<T, PLACES>,
    ) -> Option<T> {
        let (name, length) = known.read(self.0)?;
        self.0 = self.0.get(length..)?;
        Some(name.clone())
    }

    /// A whole number without a sign, a fraction or zeros before it.
    #[inline(always)]
    pub fn number(&mut self) -> Option<u64> {
        match self.short_number() {
            None => self.take(number_that_is_not_short),
            number => number,
        }
    }

    /// A number of one to seven digits. `None`, and nothing is read: another number, or none.
    #[inline(always)]
    fn short_number(&mut self) -> Option<u64> {
        let (number, digits) = at_once::short_number(u64::from_le_bytes(*self.0.first_chunk()?))?;
        self.0 = self.0.get(digits..)?;
        Some(number)
    }

    /// A number that mostly has eight digits or more.
    #[inline(always)]
    pub fn long_number(&mut self) -> Option<u64> {
        // Not `take`: the function must be inlined.
        let (number, rest) = long_number(self.0)?;
        self.0 = rest;
        Some(number)
    }

    /// The number of a hold: short for the first process of a run, and of ten digits for the next ones.
    #[inline(always)]
    pub fn hold(&mut self) -> Option<HoldId> {
        match self.short_number() {
            None => self.long_number().map(HoldId),
            number => number.map(HoldId),
        }
    }

    /// A number after these bytes, if they are next.
    #[expect(clippy::option_option, reason = "the outer one is for a line that serde must read")]
    #[inline(always)]
    pub fn optional<const N: usize>(&mut self, bytes: &[u8; N]) -> Option<Option<u64>> {
        match self.after(bytes) {
            Some(rest) => rest.number().map(Some),
            None => Some(None),
        }
    }

    /// The bytes up to the next quotation mark, to be compared with known words. Reads that mark too.
    #[inline(always)]
    pub fn word(&mut self) -> Option<&'a [u8]> {
        let (text, mut end) = (self.0, 0);
        let end = loop {
            let Some(eight) = text.get(end..)?.first_chunk() else {
                // The end of a line has fewer bytes.
                break end + text[end..].iter().position(|byte| *byte == b'"')?;
            };
            let before = at_once::before_quote(u64::from_le_bytes(*eight));
            end += before;
            if before < 8 {
                break end;
            }
        };
        self.0 = text.get(end + 1..)?;
        text.get(..end)
    }

    #[inline(always)]
    pub fn truth(&mut self) -> Option<bool> {
        if self.found(b"true") {
            return Some(true);
        }
        self.after(b"false").map(|_| false)
    }

    /// A token, or `null`.
    #[expect(clippy::option_option, reason = "the outer one is for a line that serde must read")]
    #[inline(always)]
    pub fn token(&mut self) -> Option<Option<Token>> {
        if self.found(b"null") {
            return Some(None);
        }
        self.number().map(|token| Some(Token(token)))
    }

    #[inline(always)]
    pub fn op(&mut self) -> Option<OpId> {
        self.after(b",\"op\":")?.number().map(OpId)
    }

    #[inline(always)]
    pub fn kind(&mut self) -> Option<RequestKind> {
        if self.found(b"read\"") {
            return Some(RequestKind::Read);
        }
        self.found(b"write\"").then_some(RequestKind::Write)
    }

    /// The arms of the usual runs are compared with the line, one after the other.
    #[inline(always)]
    pub fn arm(&mut self) -> Option<Arm> {
        if self.found(b"off\"") {
            Some(Arm::Off)
        } else if self.found(b"writes\"") {
            Some(Arm::Writes)
        } else if self.found(b"reads\"") {
            Some(Arm::Reads)
        } else {
            let word = self.word()?;
            Arm::ALL.into_iter().find(|arm| arm.name().as_bytes() == word)
        }
    }

    #[inline(always)]
    pub fn failure(&mut self) -> Option<(Outcome, FailureReason)> {
        let outcome = match self.after(b",\"outcome\":\"")?.word()? {
            b"failed" => Outcome::Failed,
            b"indeterminate" => Outcome::Indeterminate,
            _ => return None,
        };
        let why = match self.after(b",\"why\":\"")?.word()? {
            b"held" => FailureReason::Held,
            b"validity" => FailureReason::Validity,
            b"no-majority" => FailureReason::NoMajority,
            b"lost" => FailureReason::Lost,
            b"cancelled" => FailureReason::Cancelled,
            _ => return None,
        };
        Some((outcome, why))
    }

    #[inline(always)]
    pub fn node_answer(&mut self) -> Option<NodeAnswer> {
        Some(match self.word()? {
            b"granted" => NodeAnswer::Granted,
            b"done" => NodeAnswer::Done,
            b"refused" => NodeAnswer::Refused,
            b"late" => NodeAnswer::Late,
            b"none" => NodeAnswer::None,
            _ => return None,
        })
    }

    /// Returns whether a list has another item. `is_first` is true at the start of the list.
    #[inline(always)]
    pub fn item(&mut self, is_first: bool) -> Option<bool> {
        if is_first {
            return Some(self.after(b"[")?.after(b"]").is_none());
        }
        Some(self.found(b",") || self.after(b"]").map(|_| false)?)
    }
}
