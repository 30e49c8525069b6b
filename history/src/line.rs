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
    process: Option<ProcessName>,
    /// By the place in a list of answers.
    nodes: Vec<NodeName>,
}

/// Reads a line without its newline and its checksum. `None`: serde must read it.
pub(crate) fn parse(line: &[u8], names: &mut Names) -> Option<Record> {
    let mut rest = Rest { bytes: line, nodes: &mut names.nodes };
    let seq = rest.after(b"{\"seq\":")?.number()?;
    let process = rest.after(b",\"process\":")?.text()?;
    let known = names.process.as_ref().filter(|known| known.as_str().as_bytes() == process);
    let process = match known {
        Some(known) => known.clone(),
        None => names.process.insert(ProcessName::from(str::from_utf8(process).ok()?)).clone(),
    };
    let Report { n, at, event } = rest.after(b",")?.report()?;
    Some(Record { seq, process, n, at, event })
}

/// Reads a line of a process without its newline. `None`: serde must read it.
pub(crate) fn parse_report(line: &[u8], names: &mut Names) -> Option<Report> {
    Rest { bytes: line, nodes: &mut names.nodes }.after(b"{")?.report()
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

/// The bytes of a line that were not read yet.
struct Rest<'a> {
    bytes: &'a [u8],
    nodes: &'a mut Vec<NodeName>,
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
        let is_last = |byte: &u8| *byte == b'"' || *byte == b'\\' || !(b' '..=b'~').contains(byte);
        let end = text.iter().position(is_last)?;
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
        if let Some(known) = self.nodes.get(place).filter(|known| known.as_str().as_bytes() == text) {
            return Some(known.clone());
        }
        let node = NodeName::from(str::from_utf8(text).ok()?);
        match self.nodes.get_mut(place) {
            Some(known) => known.clone_from(&node),
            None if place < NODES => self.nodes.push(node.clone()),
            None => {}
        }
        Some(node)
    }

    fn answers(&mut self) -> Option<Answers> {
        let mut place = 0;
        self.after(b",\"answers\":")?.list(|rest| {
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

#[cfg(test)]
mod tests;
