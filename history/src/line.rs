//! A fast reader for lines as the writer of this crate makes them.
//!
//! Most lines of a history are a dozen kinds of event, with their fields in the order of the types and without spaces.
//! Such a line is read from left to right, by position. Anything else is left to serde: another order of the fields, a
//! rare event, an escape in a name, a number that is no whole number. A line that is read here gives the same record as
//! serde gives (`tests.rs` compares the two).

mod at_once;
mod known;
mod names;
mod rest;

pub(crate) use names::Names;

use std::convert::Infallible;

use crate::{Answers, ClientId, Event, HoldId, Mode, OpId, ProcessName, Record, Report, Stamp, Token};
use rest::{Rest, decisions, read_answers, write_answers};

/// Reads a line without its newline and its checksum. `None`: serde must read it.
pub(crate) fn parse(mut line: &[u8], names: &mut Names) -> Option<Record> {
    let record = start::<Infallible>(&mut line, names)?.ok()?;
    (line == b"}").then_some(record)
}

/// Reads a record from the start of a line, without the brace at its end. Leaves the bytes after the record in `line`;
/// no newline is before them. `None`: serde must read the line.
///
/// Never returns an error: the result has the form that the caller returns, so that the record is not copied again.
#[inline(always)]
pub(crate) fn start<E>(line: &mut &[u8], names: &mut Names) -> Option<Result<Record, E>> {
    let mut rest = Rest(line);
    let seq = rest.after(br#"{"seq":"#)?.number()?;
    let process = rest.after(br#","process":""#)?.name(&mut names.processes)?;
    let n = rest.after(br#","n":"#)?.number()?;
    let at = Stamp(rest.after(br#","at":"#)?.long_number()?);
    event_of(rest, names, Head { line, seq, process, n, at })
}

/// Reads a line of a process without its newline. `None`: serde must read it.
pub(crate) fn parse_report(mut line: &[u8], names: &mut Names) -> Option<Report> {
    let mut rest = Rest(line);
    let n = rest.after(br#"{"n":"#)?.number()?;
    let at = Stamp(rest.after(br#","at":"#)?.long_number()?);
    let head = Head { line: &mut line, seq: 0, process: ProcessName::new(""), n, at };
    let Record { n, at, event, .. } = event_of::<Infallible>(rest, names, head)?.ok()?;
    (line == b"}").then_some(Report { n, at, event })
}

/// The fields of a record before its event, and the place for the bytes after the record.
struct Head<'a, 'l> {
    line: &'l mut &'a [u8],
    seq: u64,
    process: ProcessName,
    n: u64,
    at: Stamp,
}

impl<'a> Head<'a, '_> {
    /// The record. Each kind of event has a call of its own: so the event is written into the record at once, and not
    /// copied.
    #[inline(always)]
    fn with<E>(self, event: Event, rest: Rest<'a>) -> Option<Result<Record, E>> {
        let Head { line, seq, process, n, at } = self;
        *line = rest.0;
        Some(Ok(Record { seq, process, n, at, event }))
    }
}

/// The answers of the nodes.
#[inline(always)]
fn answers(rest: &mut Rest, names: &mut Names) -> Option<Answers> {
    rest.after(br#","answers":"#)?.take(|bytes| names.answers(bytes))
}

/// Reads an event, its fields in the order of the type.
#[inline(always)]
fn event_of<'a, E>(mut rest: Rest<'a>, names: &mut Names, head: Head<'a, '_>) -> Option<Result<Record, E>> {
    match *rest.after(br#","event":""#)?.0.first()? {
        b'w' if rest.found(br#"work","hold":"#) => {
            let event = Event::Work { hold: rest.hold()?, planned_ns: rest.after(br#","planned_ns":"#)?.number()? };
            head.with(event, rest)
        }
        b'w' if rest.found(br#"write","hold":"#) => {
            let event = Event::Write { hold: rest.hold()?, op: rest.op()? };
            head.with(event, rest)
        }
        b'w' if rest.found(br#"write-ok","hold":"#) => {
            let event = Event::WriteOk {
                hold: rest.hold()?,
                op: rest.op()?,
                number: rest.after(br#","number":"#)?.number()?,
                arms: match rest.after(br#","arms":"#) {
                    Some(rest) => Some(rest.take(write_answers)?),
                    None => None,
                },
            };
            head.with(event, rest)
        }
        b'w' if rest.found(br#"write-back","attempt":"#) => {
            let event = Event::WriteBack { attempt: rest.hold()? };
            head.with(event, rest)
        }
        b'w' if rest.found(br#"watermark""#) => head.with(Event::Watermark, rest),
        b'r' if rest.found(br#"read","hold":"#) => {
            let event = Event::Read { hold: rest.hold()?, op: rest.op()? };
            head.with(event, rest)
        }
        b'r' if rest.found(br#"read-ok","hold":"#) => {
            let event = Event::ReadOk {
                hold: rest.hold()?,
                op: rest.op()?,
                number: rest.after(br#","number":"#)?.number()?,
                arms: match rest.after(br#","arms":"#) {
                    Some(rest) => Some(rest.take(read_answers)?),
                    None => None,
                },
            };
            head.with(event, rest)
        }
        b'r' if rest.found(br#"release","hold":"#) => {
            let event = Event::Release { hold: rest.hold()? };
            head.with(event, rest)
        }
        b'r' if rest.found(br#"released","hold":"#) => {
            let event = Event::Released {
                hold: rest.hold()?,
                removed: rest.after(br#","removed":"#)?.truth()?,
                answers: answers(&mut rest, names)?,
            };
            head.with(event, rest)
        }
        b'r' if rest.found(br#"renew","hold":"#) => {
            let event = Event::Renew { hold: rest.hold()? };
            head.with(event, rest)
        }
        b'r' if rest.found(br#"renewed","hold":"#) => {
            let event = Event::Renewed {
                hold: rest.hold()?,
                lease_ns: rest.after(br#","lease_ns":"#)?.long_number()?,
                answers: answers(&mut rest, names)?,
            };
            head.with(event, rest)
        }
        b'a' if rest.found(br#"admission","number":"#) => {
            let event = Event::Admission {
                number: rest.number()?,
                key: rest.after(br#","key":""#)?.name(&mut names.keys)?,
                kind: rest.after(br#","kind":""#)?.kind()?,
                hold: match rest.after(br#","hold":"#) {
                    Some(rest) => Some(rest.hold()?),
                    None => None,
                },
                op: rest.optional(br#","op":"#)?.map(OpId),
                token: rest.optional(br#","token":"#)?.map(Token),
                deadline: None,
                repeat: match rest.after(br#","repeat":"#) {
                    Some(rest) => rest.truth()?,
                    None => false,
                },
                arms: rest.after(br#","arms":"#)?.take(decisions)?,
            };
            head.with(event, rest)
        }
        b'a' if rest.found(br#"acquire","client":"#) => {
            let event = Event::Acquire {
                client: ClientId(u32::try_from(rest.number()?).ok()?),
                attempt: rest.after(br#","attempt":"#)?.hold()?,
                key: rest.after(br#","key":""#)?.name(&mut names.keys)?,
                intended: Stamp(rest.after(br#","intended":"#)?.long_number()?),
                mode: match rest.after(br#","mode":""#) {
                    Some(rest) => {
                        let word = rest.word()?;
                        Mode::ALL.into_iter().find(|mode| mode.name().as_bytes() == word)?
                    }
                    None => Mode::default(),
                },
                above: rest.optional(br#","above":"#)?.map(HoldId),
            };
            head.with(event, rest)
        }
        b'a' if rest.found(br#"acquired","attempt":"#) => {
            let event = Event::Acquired {
                attempt: rest.hold()?,
                token: rest.after(br#","token":"#)?.token()?,
                lease_ns: rest.after(br#","lease_ns":"#)?.long_number()?,
                granted_after: Stamp(rest.after(br#","granted_after":"#)?.long_number()?),
                promised_from: rest.optional(br#","promised_from":"#)?.map(Stamp),
                place: rest.optional(br#","place":"#)?,
                valid_ns: rest.after(br#","valid_ns":"#)?.long_number()?,
                answers: answers(&mut rest, names)?,
            };
            head.with(event, rest)
        }
        b'a' if rest.found(br#"acquire-failed","attempt":"#) => {
            let (attempt, (outcome, why)) = (rest.hold()?, rest.failure()?);
            let event =
                Event::AcquireFailed { attempt, outcome, why, detail: None, answers: answers(&mut rest, names)? };
            head.with(event, rest)
        }
        b'b' if rest.found(br#"behind","attempt":"#) => {
            let event = Event::Behind { attempt: rest.hold()? };
            head.with(event, rest)
        }
        b'c' if rest.found(br#"check","hold":"#) => {
            let event = Event::Check { hold: rest.hold()?, passed: rest.after(br#","passed":"#)?.truth()? };
            head.with(event, rest)
        }
        b'g' if rest.found(br#"gave-up","hold":"#) => {
            let event = Event::GaveUp { hold: rest.hold()? };
            head.with(event, rest)
        }
        b'u' if rest.found(br#"undo","attempt":"#) => {
            let event = Event::Undo { attempt: rest.hold()? };
            head.with(event, rest)
        }
        b'u' if rest.found(br#"undone","attempt":"#) => {
            let event = Event::Undone { attempt: rest.hold()?, answers: answers(&mut rest, names)? };
            head.with(event, rest)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
