//! Operations, and the history that they form.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::text::shortened;

/// A value that was written or read: an index into the values of its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);

impl Value {
    /// No value: what a key contains that nobody has written.
    pub const ABSENT: Value = Value(0);

    /// The index, for a state of a model.
    pub(crate) fn index(self) -> u32 {
        self.0
    }

    pub(crate) fn of_index(index: u32) -> Value {
        Value(index)
    }
}

/// All different values of a history, in the order in which they were first seen.
#[derive(Debug, Clone)]
pub struct Values {
    texts: Vec<Box<str>>,
    /// Strings, by their content.
    strings: FxHashMap<Box<str>, Value>,
    /// All other forms, such as numbers, as they are written.
    forms: FxHashMap<Box<str>, Value>,
    /// Names of objects, as they are written. No operation has one as its value.
    names: FxHashMap<Box<str>, Value>,
}

impl Default for Values {
    fn default() -> Values {
        let (strings, forms, names) = Default::default();
        Values { texts: vec!["nil".into()], strings, forms, names }
    }
}

impl Values {
    /// The value of a string; equal texts are equal values. `nil` as a text is a value like any other: use
    /// [`Value::ABSENT`] for none.
    pub fn value(&mut self, text: &str) -> Value {
        known_or_new(&mut self.strings, &mut self.texts, text)
    }

    /// The value of a form that is no string, such as a number, as it is written. A string with the same text is
    /// another value.
    pub fn form(&mut self, text: &str) -> Value {
        known_or_new(&mut self.forms, &mut self.texts, text)
    }

    /// The name of an object, as it is written.
    pub(crate) fn name(&mut self, text: &str) -> Value {
        known_or_new(&mut self.names, &mut self.texts, text)
    }

    /// Returns whether the value is a string. No value counts as an empty string.
    pub(crate) fn is_string(&self, value: Value) -> bool {
        value == Value::ABSENT || self.strings.get(self.text(value)) == Some(&value)
    }

    /// The text of a value.
    pub fn text(&self, value: Value) -> &str {
        &self.texts[value.0 as usize]
    }

    /// The value as a message shows it: a long text by its beginning, and control characters escaped. A string has
    /// quotes if another form, or no value at all, has the same text.
    pub fn words(&self, value: Value) -> String {
        let text = self.text(value);
        if value != Value::ABSENT && self.is_string(value) { self.string_words(text) } else { shortened(text) }
    }

    /// The words of a string.
    pub(crate) fn string_words(&self, text: &str) -> String {
        let is_another = text == self.text(Value::ABSENT) || self.forms.contains_key(text);
        if is_another { shortened(&format!("{text:?}")) } else { shortened(text) }
    }
}

/// The value of a text: the known one, or a new one.
fn known_or_new(known: &mut FxHashMap<Box<str>, Value>, texts: &mut Vec<Box<str>>, text: &str) -> Value {
    if let Some(value) = known.get(text) {
        return *value;
    }
    let value = Value(u32::try_from(texts.len()).expect("a history has fewer than 2³² different values"));
    texts.push(text.into());
    known.insert(text.into(), value);
    value
}

/// The client of an operation: an index that two operations share if the same client made both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(pub u32);

/// An operation with its answer. An answer that says nothing about the object makes no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read this value.
    Read(Value),
    /// Wrote this value.
    Write(Value),
    /// Replaced the first value by the second one.
    Cas(Value, Value),
    /// A compare-and-set that was refused because the object had another value than this.
    CasRefused(Value),
    /// Added a text to the end of the value.
    Append(Value),
    /// Acquired the lock, with this fencing token if one was given.
    Acquire(Option<i64>),
    /// Released the lock.
    Release,
}

impl Action {
    /// Returns whether the operation changes nothing, whatever the object contains.
    pub(crate) fn is_observation(&self) -> bool {
        matches!(self, Action::Read(_) | Action::CasRefused(_))
    }
}

/// One operation of one client on one object.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// The client that made it.
    pub client: Client,
    /// The call.
    pub action: Action,
    /// Position of the call in the history. No two positions of a history are equal.
    pub call: u64,
    /// Position of the answer, after the call. `None`: nobody knows whether the operation took place; it can take place
    /// at any time after its call, or never.
    pub answer: Option<u64>,
}

/// Operations on objects that do not influence one another.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The operations on each object, in the order of their calls. A history of one object has one entry, whose name is
    /// [`Value::ABSENT`].
    pub objects: Vec<(Value, Vec<Operation>)>,
    /// The texts of the values.
    pub values: Values,
    /// Clients by their index, as their record names them.
    pub clients: Vec<Box<str>>,
    /// Clients that the record names apart from their processes. All others are processes.
    pub named: BTreeSet<Client>,
    /// Clients whose operations on a lock can be of any owner: the record names owners, but not theirs.
    pub unnamed: BTreeSet<Client>,
    /// The line of each position, if the history was read from a file.
    pub lines: Vec<usize>,
    /// Number of operations whose answers say nothing about an object: those that did not take place, reads without a
    /// value. Any order allows them.
    pub silent: usize,
    /// Number of those among them that are reads without a value.
    pub nil_reads: usize,
    /// Lines of the record that are no operation of a client but of a fault injector.
    pub ignored: usize,
}

impl History {
    /// Number of operations whose answer can be judged, and of those that nobody knows the answer of.
    pub fn count(&self) -> (usize, usize) {
        let all = || self.objects.iter().flat_map(|(_, operations)| operations);
        let open = all().filter(|operation| operation.answer.is_none()).count();
        (all().count() - open, open)
    }

    /// The operation in words, with its lines: `line 3 to 7: process 2 wrote 4`.
    pub fn words(&self, operation: &Operation) -> String {
        let line = |position: u64| self.lines.get(position as usize);
        let place = match (line(operation.call), operation.answer.map(line)) {
            (Some(call), Some(Some(answer))) => format!(" (lines {call} and {answer})"),
            (Some(call), _) => format!(" (line {call}, without an answer)"),
            (None, _) => String::new(),
        };
        let text = |value: Value| self.values.words(value);
        let what = match operation.action {
            Action::Read(value) => format!("read {}", text(value)),
            Action::Write(value) => format!("write {}", text(value)),
            Action::Cas(from, to) => format!("cas {} {}", text(from), text(to)),
            Action::CasRefused(from) => format!("refused cas from {}", text(from)),
            Action::Append(value) => format!("append {}", text(value)),
            Action::Acquire(Some(token)) => format!("acquire with token {token}"),
            Action::Acquire(None) => "acquire".to_owned(),
            Action::Release => "release".to_owned(),
        };
        format!("`{what}` of {}{place}", self.client_words(operation.client))
    }

    /// The client in words: `process 3`, or `client "a"`.
    pub(crate) fn client_words(&self, client: Client) -> String {
        let noun = if self.named.contains(&client) { "client" } else { "process" };
        format!("{noun} {}", shortened(&self.clients[client.0 as usize]))
    }
}
