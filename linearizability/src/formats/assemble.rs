//! Events into operations: each answer to its call.

use rustc_hash::FxHashMap;

use super::{
    edn::Edn,
    event::{Event, EventKind},
    format::FormatError,
};
use crate::{
    model::ModelKind,
    operation::{Action, Client, History, Operation, Value, Values},
    text::shortened,
};

/// The model that the operations of a file are of.
pub(super) fn model_of(events: &[Event]) -> Result<ModelKind, FormatError> {
    let has = |names: &[&str]| events.iter().any(|event| names.contains(&event.function.as_str()));
    if has(&["acquire", "release"]) {
        return Ok(ModelKind::Mutex);
    }
    if has(&["get", "put", "append"]) || events.iter().any(|event| event.key.is_some()) {
        return Ok(ModelKind::Kv);
    }
    let first = |is_named: bool| events.iter().find(|event| names_key(event) == Some(is_named));
    match (first(true), first(false)) {
        (Some(named), Some(plain)) => Err(wrong(
            named,
            format!(
                "the call names a key, as calls of a kv do, but the call of line {} names none: give the model \
                 (`--model`)",
                plain.line
            ),
        )),
        (Some(_), None) => Ok(ModelKind::Kv),
        (None, _) if has(&["cas"]) => Ok(ModelKind::CasRegister),
        (None, _) => Ok(ModelKind::Register),
    }
}

/// Returns whether the value of a call is `[key value]`, as `jepsen.independent` writes it. `None` if it can also be
/// the value of a register.
fn names_key(event: &Event) -> Option<bool> {
    if event.kind != EventKind::Invoke {
        return None;
    }
    match (event.function.as_str(), event.value.untagged()) {
        ("read", Edn::Nil) => Some(false),
        // A read of a register is not called with a value.
        ("read", Edn::List(items)) => matches!(items.as_slice(), [_, Edn::Nil]).then_some(true),
        ("cas", Edn::List(items)) => match items.as_slice() {
            // From nothing or from a list to a list: perhaps the values of a register.
            [Edn::Nil | Edn::List(_), Edn::List(_)] => None,
            [_, Edn::List(values)] if values.len() == 2 => Some(true),
            // The key, and two values: a register has no key.
            [_, _, _] => Some(true),
            _ => Some(false),
        },
        _ => None,
    }
}

/// Returns whether the value of a call on a lock is `[key nil]` or `[key {…}]`, as `jepsen.independent` writes it. The
/// value of one lock is neither.
fn names_lock(event: &Event) -> bool {
    match event.value.untagged() {
        Edn::List(items) => matches!(items.as_slice(), [_, Edn::Nil | Edn::Map(_)]),
        _ => false,
    }
}

/// Returns whether values are `[key value]`, unless an event has `:key`. A call that names no object beside others that
/// do would look like one on an object of its own.
fn have_keys(events: &[Event], model: ModelKind) -> Result<bool, FormatError> {
    let have_keys = values_have_keys(events, model)?;
    let first = |has_key: bool| {
        let mut calls = events.iter().filter(|event| event.kind == EventKind::Invoke);
        calls.find(|event| event.key.is_some() == has_key)
    };
    match (first(true), first(false)) {
        (Some(named), Some(plain)) if !have_keys => {
            Err(wrong(plain, format!("the call names no key, but that of line {} has `:key`", named.line)))
        }
        _ => Ok(have_keys),
    }
}

/// Returns whether values are `[key value]`: those of a key-value store are, and those of several registers or locks.
/// Keys of one history that were taken for one lock would look like holds that overlap, and for one register, like
/// values from nowhere.
fn values_have_keys(events: &[Event], model: ModelKind) -> Result<bool, FormatError> {
    if !model.is_lock() {
        let reads = |is_named: bool| {
            let mut reads = events.iter().filter(|event| event.function == "read" && event.key.is_none());
            reads.any(|event| names_key(event) == Some(is_named))
        };
        // Only reads tell: a compare-and-set of a register may replace a number by a list of two.
        return Ok(model == ModelKind::Kv || (reads(true) && !reads(false)));
    }
    let first = |is_named: bool| {
        let mut calls = events.iter().filter(|event| event.kind == EventKind::Invoke && event.key.is_none());
        calls.find(|event| names_lock(event) == is_named)
    };
    match (first(true), first(false)) {
        (Some(named), Some(plain)) => Err(wrong(
            named,
            format!("the call names a lock, `[key value]`, but the call of line {} names none", plain.line),
        )),
        (named, _) => Ok(named.is_some()),
    }
}

/// The value of a form. The strings of a key-value store are their contents, so that texts can be added to them.
pub(super) fn interned(values: &mut Values, model: ModelKind, form: &Edn) -> Value {
    match form {
        Edn::Nil => Value::ABSENT,
        Edn::Text(text) if model == ModelKind::Kv => values.value(text),
        form => values.form(&form.to_string()),
    }
}

/// A call that has no answer yet.
struct Pending {
    event: Event,
    position: u64,
}

/// The answer's word on an operation.
enum Answer<'a> {
    Ok(&'a Event),
    Unknown,
    /// It did not take place. True if the answer repeats the values of the call, and says no other reason.
    Refused(bool),
}

/// A client as the record names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Owner {
    /// `:client` of the value of an operation.
    Named(String),
    Process(String),
}

pub(super) struct Assembler {
    model: ModelKind,
    /// True if values are `[key value]`, unless an event has `:key`.
    has_keys: bool,
    /// The line of the first append.
    append: Option<usize>,
    history: History,
    clients: FxHashMap<Owner, Client>,
    /// The owner that a process names; `None` if it names several.
    named: FxHashMap<String, Option<Client>>,
    objects: FxHashMap<Value, usize>,
    pending: FxHashMap<String, Pending>,
    /// The value of a call of a read whose answer was another value, and its line.
    question: Option<(usize, Edn)>,
}

impl Assembler {
    pub(super) fn new(model: ModelKind, events: &[Event]) -> Result<Assembler, FormatError> {
        let has_keys = have_keys(events, model)?;
        let append = events.iter().find(|event| event.function == "append").map(|event| event.line);
        let (history, clients, named, objects, pending, question) = Default::default();
        Ok(Assembler { model, has_keys, append, history, clients, named, objects, pending, question })
    }

    pub(super) fn add(&mut self, event: &Event) -> Result<(), FormatError> {
        let position = self.history.lines.len() as u64;
        self.history.lines.push(event.line);
        self.note_owner(event);
        let earlier = self.pending.remove(&event.client);
        if event.kind == EventKind::Invoke {
            // A client that goes on had no answer to its last call.
            if let Some(earlier) = earlier {
                self.operation(&earlier, Answer::Unknown, None)?;
            }
            self.pending.insert(event.client.clone(), Pending { event: event.clone(), position });
            return Ok(());
        }
        let Some(call) = earlier else {
            return match event.kind {
                // A client that has nothing open may tell that it crashed.
                EventKind::Info => Ok(()),
                _ => Err(wrong(
                    event,
                    format!("process {} gets an answer, but it has no open call", shortened(&event.client)),
                )),
            };
        };
        match event.kind {
            EventKind::Info => self.operation(&call, Answer::Unknown, None),
            _ if call.event.function != event.function => Err(wrong(
                event,
                format!(
                    "process {} gets an answer to `:{}`, but its open call of line {} is `:{}`",
                    shortened(&event.client),
                    shortened(&event.function),
                    call.event.line,
                    shortened(&call.event.function)
                ),
            )),
            EventKind::Fail => {
                let repeats = event.value == call.event.value;
                self.operation(&call, Answer::Refused(repeats), Some(position))
            }
            EventKind::Ok | EventKind::Invoke => self.operation(&call, Answer::Ok(event), Some(position)),
        }
    }

    /// Adds an operation, if its answer says something.
    fn operation(&mut self, call: &Pending, answer: Answer, answered: Option<u64>) -> Result<(), FormatError> {
        let (object, asked) = self.object(&call.event, &call.event.value)?;
        let got = match answer {
            Answer::Ok(event) => {
                let (other, got) = if self.is_without_key(&call.event, event) {
                    (object, event.value.clone())
                } else {
                    self.object(event, &event.value)?
                };
                let is_other = other != object && !(self.key_is_left_out(event));
                if is_other {
                    return Err(wrong(event, format!("the key is not that of the call in line {}", call.event.line)));
                }
                Some((event, got))
            }
            _ => None,
        };
        let Some(action) = self.action(call, &asked, got.as_ref().map(|(event, got)| (*event, got)), &answer)? else {
            self.history.silent += 1;
            self.history.nil_reads += usize::from(got.is_some());
            return Ok(());
        };
        let named = got.as_ref().and_then(|(_, got)| self.owner(got)).or_else(|| self.owner(&asked));
        let client = self.client(named.unwrap_or_else(|| Owner::Process(call.event.client.clone())));
        let place = *self.objects.entry(object).or_insert_with(|| {
            self.history.objects.push((object, Vec::new()));
            self.history.objects.len() - 1
        });
        let operation = Operation { client, action, call: call.position, answer: answered };
        self.history.objects[place].1.push(operation);
        Ok(())
    }

    /// The object of an operation, and its value without the name of the object.
    fn object(&mut self, event: &Event, value: &Edn) -> Result<(Value, Edn), FormatError> {
        if let Some(key) = &event.key {
            return Ok((self.history.values.name(&key.to_string()), value.clone()));
        }
        if !self.has_keys {
            return Ok((Value::ABSENT, value.clone()));
        }
        match (value.untagged(), event.function.as_str()) {
            (Edn::List(items), _) if items.len() == 2 => {
                Ok((self.history.values.name(&items[0].to_string()), items[1].clone()))
            }
            // `[key from to]` is `[key [from to]]`.
            (Edn::List(items), "cas") if items.len() == 3 => {
                Ok((self.history.values.name(&items[0].to_string()), Edn::List(items[1..].to_vec())))
            }
            _ => Err(wrong(event, "the operation names no key: expected `:key`, or `:value [key value]`".to_owned())),
        }
    }

    /// Returns whether an answer in a file of `[key value]` certainly has no key: its call has `:key`, or it only says
    /// that a change was made. A list after a call with `:key` is no key and its value if it repeats the list of the
    /// change, as the answer to a compare-and-set does.
    fn is_without_key(&self, call: &Event, answer: &Event) -> bool {
        let is_change = !matches!(call.function.as_str(), "read" | "get");
        let is_list = matches!(answer.value.untagged(), Edn::List(_));
        let is_of_call = call.key.is_some() && (!is_list || (is_change && answer.value == call.value));
        self.has_keys && answer.key.is_none() && (is_of_call || (is_change && answer.value == Edn::Nil))
    }

    fn key_is_left_out(&self, event: &Event) -> bool {
        !self.has_keys && event.key.is_none()
    }

    fn action(
        &mut self,
        call: &Pending,
        asked: &Edn,
        got: Option<(&Event, &Edn)>,
        answer: &Answer,
    ) -> Result<Option<Action>, FormatError> {
        let (model, function) = (self.model, call.event.function.as_str());
        let unchanged = |got: Option<(&Event, &Edn)>| match got {
            Some((event, got)) if *got != Edn::Nil && got != asked => Err(wrong(
                event,
                format!(
                    "the answer says `:{function} {}`, but the call in line {} `{}`",
                    got.words(),
                    call.event.line,
                    asked.words()
                ),
            )),
            _ => Ok(()),
        };
        let is_refused = matches!(answer, Answer::Refused(_));
        let has_values = !model.is_lock();
        let action = match function {
            "read" | "get" if has_values => {
                let Some((event, got)) = got else { return Ok(None) };
                self.note_question(call, asked, event, got)?;
                // A store of lists, as in Elle's histories: no text is a list, so each read would be a false alarm.
                if let Some(append) = self.append.filter(|_| got.is_collection()) {
                    let got = got.words();
                    return Err(wrong(event, format!("the answer is `{got}`, but line {append} appends to a text")));
                }
                // As in Knossos, a read without a value says nothing; in a log of etcd's it says that the key is
                // absent.
                let is_silent = function == "read" && !call.event.is_of_log;
                if *got == Edn::Nil && is_silent {
                    return Ok(None);
                }
                Action::Read(interned(&mut self.history.values, model, got))
            }
            "write" | "put" if has_values => {
                unchanged(got)?;
                Action::Write(interned(&mut self.history.values, model, asked))
            }
            "append" if model == ModelKind::Kv => {
                unchanged(got)?;
                Action::Append(interned(&mut self.history.values, model, asked))
            }
            "cas" if matches!(model, ModelKind::CasRegister | ModelKind::Kv) => {
                unchanged(got)?;
                let pair = match asked.untagged() {
                    Edn::List(pair) => pair.as_slice(),
                    _ => &[],
                };
                let [from, to] = pair else {
                    return Err(wrong(&call.event, format!("`:cas {}` is no pair of values", asked.words())));
                };
                let mut value = |form: &Edn| interned(&mut self.history.values, model, form);
                let (from, to) = (value(from), value(to));
                if is_refused {
                    // In a log of etcd's a refusal without a reason is an answer about the value. In Jepsen it says
                    // only that nothing was done.
                    let is_answer = call.event.is_of_log && matches!(answer, Answer::Refused(true));
                    return Ok(is_answer.then_some(Action::CasRefused(from)));
                }
                Action::Cas(from, to)
            }
            "acquire" if model.is_lock() => Action::Acquire(self.token(call, got)?),
            "release" if model.is_lock() => Action::Release,
            other => {
                let known = match model {
                    ModelKind::Register => ":read and :write",
                    ModelKind::CasRegister => ":read, :write and :cas",
                    ModelKind::Kv => ":get, :put, :append, :read, :write and :cas",
                    _ => ":acquire and :release",
                };
                let other = shortened(other);
                return Err(wrong(&call.event, format!("`:f :{other}` is not of a {}: {known} are", model.name())));
            }
        };
        Ok((!is_refused).then_some(action))
    }

    /// Refuses reads whose calls ask for something: transactions, as in Jepsen's `long-fork`, and keys in the place of
    /// values. Such a file would be judged as one register. The same value in all calls asks for nothing: some clients
    /// write `0` there. A history that Knossos has completed repeats the answer in the call.
    fn note_question(&mut self, call: &Pending, asked: &Edn, event: &Event, got: &Edn) -> Result<(), FormatError> {
        if *asked == Edn::Nil || *got == Edn::Nil || asked == got {
            return Ok(());
        }
        let line = call.event.line;
        let (first, known) = self.question.get_or_insert_with(|| (line, asked.clone()));
        let problem = if asked.is_collection() {
            format!("the answer is `{}`, but the read of line {line} was called with `{}`", got.words(), asked.words())
        } else if *known != *asked {
            format!(
                "the read of line {line} was called with `{}`, and that of line {first} with `{}`",
                asked.words(),
                known.words()
            )
        } else {
            return Ok(());
        };
        let expected = "expected a call with `nil`; a key is `:key`, or `:value [key nil]`";
        Err(wrong(event, format!("{problem}: {expected}")))
    }

    /// The fencing token of an acquisition: a number, or `:fence` of a map.
    fn token(&self, call: &Pending, got: Option<(&Event, &Edn)>) -> Result<Option<i64>, FormatError> {
        if self.model != ModelKind::FencedMutex {
            return Ok(None);
        }
        let Some((event, got)) = got else { return Ok(None) };
        match got.get("fence").unwrap_or(got).untagged() {
            Edn::Int(token) => Ok(Some(*token)),
            other => Err(wrong(
                event,
                format!(
                    "the acquisition of line {} got no fencing token, a number: `{}`",
                    call.event.line,
                    other.words()
                ),
            )),
        }
    }

    /// The owner of the lock: `:client` of the value.
    fn owner(&self, value: &Edn) -> Option<Owner> {
        let name = value.get("client").filter(|name| self.model.is_lock() && **name != Edn::Nil)?;
        Some(Owner::Named(name.to_string()))
    }

    /// Keeps the owner that the process of an event names.
    fn note_owner(&mut self, event: &Event) {
        let value = match event.value.untagged() {
            Edn::List(items) if self.has_keys && event.key.is_none() && items.len() == 2 => &items[1],
            value => value,
        };
        let Some(owner) = self.owner(value) else { return };
        let client = self.client(owner);
        let known = self.named.entry(event.client.clone()).or_insert(Some(client));
        *known = known.filter(|known| *known == client);
    }

    fn client(&mut self, owner: Owner) -> Client {
        if let Some(known) = self.clients.get(&owner) {
            return *known;
        }
        let client = Client(self.history.clients.len() as u32);
        let (Owner::Named(name) | Owner::Process(name)) = &owner;
        self.history.clients.push(name.as_str().into());
        if matches!(owner, Owner::Named(_)) {
            self.history.named.insert(client);
        }
        self.clients.insert(owner, client);
        client
    }

    /// Gives an operation without `:client` the owner that its process names elsewhere: in suites of Jepsen, often only
    /// the answer `:ok` has `:client`. A process that names no owner, or several, while others name theirs, can be any
    /// owner. If nobody names an owner, each process is one.
    fn name_owners(&mut self) {
        if self.named.is_empty() {
            return;
        }
        let mut owners: Vec<Client> = (0..self.history.clients.len() as u32).map(Client).collect();
        for (owner, client) in &self.clients {
            let Owner::Process(process) = owner else { continue };
            match self.named.get(process) {
                Some(Some(named)) => owners[client.0 as usize] = *named,
                _ => {
                    self.history.unnamed.insert(*client);
                }
            }
        }
        let operations = self.history.objects.iter_mut().flat_map(|(_, operations)| operations);
        operations.for_each(|operation| operation.client = owners[operation.client.0 as usize]);
    }

    /// The history. A call without an answer is an operation that may have taken place.
    pub(super) fn finish(mut self) -> Result<History, FormatError> {
        let mut open: Vec<Pending> = self.pending.drain().map(|(_, pending)| pending).collect();
        open.sort_unstable_by_key(|pending| pending.position);
        open.iter().try_for_each(|call| self.operation(call, Answer::Unknown, None))?;
        self.name_owners();
        let mut history = self.history;
        history
            .objects
            .iter_mut()
            .for_each(|(_, operations)| operations.sort_unstable_by_key(|operation| operation.call));
        Ok(history)
    }
}

fn wrong(event: &Event, problem: String) -> FormatError {
    FormatError::Line { line: event.line, problem }
}
