//! Histories as Jepsen and Knossos write them: operations in EDN.

use std::io::Read;

use super::{
    edn::{Edn, EdnReader},
    event::{Event, EventKind},
    format::FormatError,
};
use crate::text::shortened;

/// All events of a file, and the number of operations of no client.
pub(super) fn read(file: impl Read) -> Result<(Vec<Event>, usize), FormatError> {
    let mut reader = EdnReader::new(file);
    let (mut events, mut ignored) = (Vec::new(), 0);
    while let Some((line, form)) = reader.next()? {
        match event(line, &form)? {
            Some(event) => events.push(event),
            None => ignored += 1,
        }
    }
    Ok((events, ignored))
}

/// The event of an operation: a map, or `[process type f value]`. `None`: it is of no client, but of a fault injector.
pub(super) fn event(line: usize, form: &Edn) -> Result<Option<Event>, FormatError> {
    let wrong = |problem: String| FormatError::Line { line, problem };
    let missing = |name: &str| wrong(format!("an operation has no `:{name}`"));
    let form = form.untagged();
    let (process, kind, function, value, key) = match form {
        Edn::Map(_) => (
            form.get("process").ok_or_else(|| missing("process"))?,
            form.get("type").ok_or_else(|| missing("type"))?,
            form.get("f").ok_or_else(|| missing("f"))?,
            form.get("value").cloned().unwrap_or(Edn::Nil),
            form.get("key").cloned(),
        ),
        Edn::List(items) => match items.as_slice() {
            [process, kind, function, value] => (process, kind, function, value.clone(), None),
            _ => return Err(wrong("expected an operation, `[process type f value]` or a map".to_owned())),
        },
        other => return Err(wrong(format!("expected an operation, found `{}`", other.words()))),
    };
    let client = match process {
        Edn::Keyword(name) if name == "nemesis" => return Ok(None),
        // As it is written, so that `0` and `"0"` are two clients.
        Edn::Int(_) | Edn::Text(_) | Edn::Keyword(_) => process.to_string(),
        other => return Err(wrong(format!("`:process {}` is no number, name or keyword", other.words()))),
    };
    let keyword = |form: &Edn, name: &str| match form {
        Edn::Keyword(keyword) => Ok(keyword.clone()),
        other => Err(wrong(format!("`:{name} {}` is no keyword", other.words()))),
    };
    let kind = keyword(kind, "type")?;
    let kind = EventKind::named(&kind)
        .ok_or_else(|| wrong(format!("`:type :{}` is none of :invoke, :ok, :fail and :info", shortened(&kind))))?;
    let function = keyword(function, "f")?;
    // A file that names its values otherwise would have no value that a read could contradict.
    let is_change = matches!(function.as_str(), "write" | "put" | "append" | "cas");
    if is_change && kind == EventKind::Invoke && matches!(form, Edn::Map(_)) && form.get("value").is_none() {
        return Err(missing("value"));
    }
    Ok(Some(Event { line, client, kind, function, value, key, is_of_log: false }))
}
