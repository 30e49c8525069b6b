//! One line of a record: what a client asked, or what it got.

use super::edn::Edn;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventKind {
    Invoke,
    /// The operation took place.
    Ok,
    /// The operation did not take place.
    Fail,
    /// Nobody knows.
    Info,
}

/// An event of the record of others.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) line: usize,
    pub(super) client: String,
    pub(super) kind: EventKind,
    /// The name of the operation: `read`.
    pub(super) function: String,
    pub(super) value: Edn,
    /// The object, where the record names it apart from the value.
    pub(super) key: Option<Edn>,
    /// True for a line of etcd's log: there a read of nil and a refused compare-and-set say something about the value.
    pub(super) is_of_log: bool,
}

impl EventKind {
    /// A kind by its keyword.
    pub(super) fn named(name: &str) -> Option<EventKind> {
        Some(match name {
            "invoke" => EventKind::Invoke,
            "ok" => EventKind::Ok,
            "fail" => EventKind::Fail,
            "info" => EventKind::Info,
            _ => return None,
        })
    }
}
