//! Histories as the test data of Porcupine has them: lines of Jepsen's log
//! (`INFO jepsen.util - 3 :invoke :cas [1 2]`, with tabs), or one operation in EDN a line.

use std::io::{BufRead, BufReader, Read};

use super::{
    edn,
    event::{Event, EventKind},
    format::FormatError,
    jepsen,
};

/// Characters of a line.
const LENGTH: u64 = 16 << 20;

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
        let text = std::str::from_utf8(&text).map_err(|_| wrong("a line is not UTF-8"))?.trim();
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
    let form = edn::one(&format!("[{rest}]"), line)?;
    let edn::Edn::List(items) = &form else { unreachable!("brackets were put around the line") };
    // Answers that are not known have the reason in the place of the value, or after it.
    let kind = items.get(1).and_then(|kind| match kind {
        edn::Edn::Keyword(name) => EventKind::named(name),
        _ => None,
    });
    if items.len() > 4 && kind.is_some_and(|kind| kind != EventKind::Invoke) {
        return jepsen::event(line, &edn::Edn::List(items[..4].to_vec()));
    }
    jepsen::event(line, &form)
}
