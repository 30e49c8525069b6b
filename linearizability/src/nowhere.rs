//! Values that nobody can have written: a quick look before the search, which tries all orders of the operations that
//! overlap before it knows.

use rustc_hash::FxHashMap;

use crate::{
    operation::{Action, History, Operation, Value},
    reason::Reason,
};

/// Finds an answered operation that saw a value which neither the object had at the start nor an operation that was
/// called before the answer can have made. The operations are sorted by their calls. Appends make values of any text,
/// so a history with appends has no such operation here.
pub(crate) fn check(history: &History, operations: &[Operation], initial: Value) -> Result<(), Reason> {
    // A key without a value and one with an empty text can answer alike.
    let is_empty = |value: Value| value != Value::ABSENT && history.values.text(value).is_empty();
    let plain = |value: Value| if is_empty(value) { Value::ABSENT } else { value };
    let mut first_call: FxHashMap<Value, u64> = [(plain(initial), 0)].into_iter().collect();
    for operation in operations {
        let made = match operation.action {
            Action::Write(made) => made,
            // From a value to itself: it needs the value, and does not make it.
            Action::Cas(from, made) if from != made => made,
            Action::Append(_) => return Ok(()),
            _ => continue,
        };
        first_call.entry(plain(made)).or_insert(operation.call);
    }
    let is_from_nowhere = |operation: &Operation| {
        let (Action::Read(value) | Action::Cas(value, _)) = operation.action else { return false };
        let made = first_call.get(&plain(value));
        operation.answer.is_some_and(|answer| made.is_none_or(|call| answer < *call))
    };
    operations.iter().position(is_from_nowhere).map_or(Ok(()), |index| Err(Reason::FromNowhere(index)))
}
