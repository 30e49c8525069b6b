//! Histories as the test data of Porcupine has them: lines of Jepsen's log
//! (`INFO jepsen.util - 3 :invoke :cas [1 2]`, with tabs), or one operation in EDN a line.

use std::io::{BufRead, BufReader, Read};

use super::{
    edn::{self, Edn},
    event::{Event, EventKind},
    format::FormatError,
    jepsen,
};

/// Characters of a line.
const LENGTH: u64 = 16 << 20;
/// A name after a line, which the reader finds unless something at the end of the line hides it.
const MARK: &str = "end-of-line";

/// All events of a file, and the number of lines that are no operation.
pub(super) fn read(file: impl Read) -> Result<(Vec<Event>, usize), FormatError> {
    let mut file = BufReader::new(file);
    let (mut events, mut ignored) = (Vec::new(), 0);
    let mut text = Vec::new();
    for line in 1.. {
        let wrong = |problem: &str| FormatError::Line { line, problem: problem.to_owned() };
        text.clear();
        if file.by_ref().take(LENGTH).read_until(b'\n', &mut text).map_err(FormatError::Read)? == 0 {
            break;
        }
        if text.len() as u64 == LENGTH {
            return Err(wrong(&format!("a line has {} MiB or more", LENGTH >> 20)));
        }
        let text = std::str::from_utf8(&text).map_err(|_| wrong("a line is not UTF-8"))?;
        // The mark of UTF-8, which some editors write.
        let text = text.strip_prefix('\u{feff}').filter(|_| line == 1).unwrap_or(text).trim();
        let event = if text.starts_with('{') {
            jepsen::event(line, &edn::one(text, line)?)?
        } else if text.is_empty() {
            continue;
        } else {
            let rest = logged(text).ok_or_else(|| {
                wrong("expected `INFO jepsen.util - PROCESS TYPE F VALUE`, or an operation in EDN: `{:process …}`")
            })?;
            logged_event(rest, line)?
        };
        match event {
            Some(event) => events.push(event),
            None => ignored += 1,
        }
    }
    Ok((events, ignored))
}

/// The values that the logger was given.
fn logged(text: &str) -> Option<&str> {
    let (level, rest) = text.split_once(char::is_whitespace)?;
    let (logger, rest) = rest.trim_start().split_once(" - ")?;
    (level == "INFO" && logger.trim() == "jepsen.util").then(|| rest.trim_start())
}

fn logged_event(rest: &str, line: usize) -> Result<Option<Event>, FormatError> {
    let kind = |forms: &[Edn]| match forms.get(1) {
        Some(Edn::Keyword(name)) => EventKind::named(name),
        _ => None,
    };
    // An operation that failed, or that nobody knows the answer of, has a text for people in the place of the value, or
    // after it.
    let has_reason = |forms: &[Edn]| matches!(kind(forms), Some(EventKind::Fail | EventKind::Info));
    let mut forms = edn::forms(rest, line, |forms| forms.len() == 3 && has_reason(forms))?;
    if has_reason(&forms) {
        // A compare-and-set that was refused repeats its values. Any text in their place, or after them, is a reason,
        // also a comment of EDN, which hides the mark.
        let all = edn::forms(&format!("{rest} {MARK}"), line, |forms| forms.len() == 6).unwrap_or_default();
        let is_whole = all.len() == 5 && all[4] == Edn::Other(MARK.to_owned());
        let values = all.into_iter().nth(3).filter(|form| is_whole && matches!(form, Edn::List(_)));
        forms.resize(3, Edn::Nil);
        forms.push(values.unwrap_or(Edn::Nil));
    } else if kind(&forms) == Some(EventKind::Ok) {
        forms.truncate(4);
    }
    let event = jepsen::event(line, &Edn::List(forms))?;
    Ok(event.map(|event| Event { is_of_log: true, ..event }))
}
