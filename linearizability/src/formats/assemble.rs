//! Events into operations: each answer to its call.

use rustc_hash::FxHashMap;

use super::{
    edn::Edn,
    event::{Event, EventKind},
    format::{Format, FormatError},
};
use crate::{
    model::ModelKind,
    operation::{Action, Client, History, Operation, Value, Values},
};

/// The model that the operations of a file are of.
pub(super) fn model_of(events: &[Event]) -> ModelKind {
    let has = |names: &[&str]| events.iter().any(|event| names.contains(&event.function.as_str()));
    if has(&["acquire", "release"]) {
        ModelKind::Mutex
    } else if has(&["get", "put", "append"]) || events.iter().any(|event| event.key.is_some()) {
        ModelKind::Kv
    } else if has(&["cas"]) {
        ModelKind::CasRegister
    } else {
        ModelKind::Register
    }
}

/// The value of a form. The strings of a key-value store are their contents, so that texts can be added to them.
pub(super) fn interned(values: &mut Values, model: ModelKind, form: &Edn) -> Value {
    match form {
        Edn::Nil => Value::ABSENT,
        Edn::Text(text) if model == ModelKind::Kv => values.value(text),
        form => values.value(&form.to_string()),
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
    Refused,
}

pub(super) struct Assembler {
    format: Format,
    model: ModelKind,
    history: History,
    clients: FxHashMap<String, Client>,
    objects: FxHashMap<Value, usize>,
    pending: FxHashMap<String, Pending>,
}

impl Assembler {
    pub(super) fn new(format: Format, model: ModelKind) -> Assembler {
        let (history, clients, objects, pending) = Default::default();
        Assembler { format, model, history, clients, objects, pending }
    }

    pub(super) fn add(&mut self, event: &Event) -> Result<(), FormatError> {
        let position = self.history.lines.len() as u64;
        self.history.lines.push(event.line);
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
                _ => Err(wrong(event, format!("process {} gets an answer, but it has no open call", event.client))),
            };
        };
        match event.kind {
            EventKind::Info => self.operation(&call, Answer::Unknown, None),
            _ if call.event.function != event.function => Err(wrong(
                event,
                format!(
                    "process {} gets an answer to `:{}`, but its open call of line {} is `:{}`",
                    event.client, event.function, call.event.line, call.event.function
                ),
            )),
            EventKind::Fail => self.operation(&call, Answer::Refused, Some(position)),
            EventKind::Ok | EventKind::Invoke => self.operation(&call, Answer::Ok(event), Some(position)),
        }
    }

    /// Adds an operation, if its answer says something.
    fn operation(&mut self, call: &Pending, answer: Answer, answered: Option<u64>) -> Result<(), FormatError> {
        let (object, asked) = self.object(&call.event, &call.event.value)?;
        let got = match answer {
            Answer::Ok(event) => {
                let (other, got) = self.object(event, &event.value)?;
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
            return Ok(());
        };
        let name = self.owner(&call.event, got.as_ref().map(|(_, got)| got), &asked);
        let client = self.client(name);
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
            return Ok((self.history.values.value(&key.to_string()), value.clone()));
        }
        if self.model != ModelKind::Kv {
            return Ok((Value::ABSENT, value.clone()));
        }
        match value {
            Edn::List(items) if items.len() == 2 => {
                Ok((self.history.values.value(&items[0].to_string()), items[1].clone()))
            }
            _ => Err(wrong(event, "the operation names no key: expected `:key`, or `:value [key value]`".to_owned())),
        }
    }

    fn key_is_left_out(&self, event: &Event) -> bool {
        self.model != ModelKind::Kv && event.key.is_none()
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
                format!("the answer says `:{function} {got}`, but the call in line {} `{asked}`", call.event.line),
            )),
            _ => Ok(()),
        };
        let is_refused = matches!(answer, Answer::Refused);
        let has_values = !model.is_lock();
        let action = match function {
            "read" | "get" if has_values => {
                let Some((_, got)) = got else { return Ok(None) };
                // As in Knossos, a read without a value says nothing; in a log of etcd's it says that the key is
                // absent.
                let is_silent = function == "read" && self.format == Format::JepsenEdn;
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
                let Edn::List(pair) = asked else {
                    return Err(wrong(&call.event, format!("`:cas {asked}` is no pair of values")));
                };
                let [from, to] = pair.as_slice() else {
                    return Err(wrong(&call.event, format!("`:cas {asked}` is no pair of values")));
                };
                let mut value = |form: &Edn| interned(&mut self.history.values, model, form);
                let (from, to) = (value(from), value(to));
                if is_refused {
                    // In a log of etcd's a refusal is an answer about the value. In Jepsen it says only that nothing
                    // was done.
                    let is_answer = self.format == Format::PorcupineLog;
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
                return Err(wrong(&call.event, format!("`:f :{other}` is not of a {}: {known} are", model.name())));
            }
        };
        Ok((!is_refused).then_some(action))
    }

    /// The fencing token of an acquisition: a number, or `:fence` of a map.
    fn token(&self, call: &Pending, got: Option<(&Event, &Edn)>) -> Result<Option<i64>, FormatError> {
        if self.model != ModelKind::FencedMutex {
            return Ok(None);
        }
        let Some((event, got)) = got else { return Ok(None) };
        match got.get("fence").unwrap_or(got) {
            Edn::Int(token) => Ok(Some(*token)),
            other => Err(wrong(
                event,
                format!("the acquisition of line {} got no fencing token, a number: `{other}`", call.event.line),
            )),
        }
    }

    /// The owner of the lock: `:client` of the value, or the process.
    fn owner(&self, event: &Event, got: Option<&Edn>, asked: &Edn) -> String {
        let named = |form: &Edn| form.get("client").map(Edn::to_string);
        let is_lock = self.model.is_lock();
        let name = got.and_then(named).or_else(|| named(asked)).filter(|_| is_lock);
        name.unwrap_or_else(|| event.client.clone())
    }

    fn client(&mut self, name: String) -> Client {
        if let Some(known) = self.clients.get(&name) {
            return *known;
        }
        let client = Client(self.history.clients.len() as u32);
        self.history.clients.push(name.as_str().into());
        self.clients.insert(name, client);
        client
    }

    /// The history. A call without an answer is an operation that may have taken place.
    pub(super) fn finish(mut self) -> Result<History, FormatError> {
        let mut open: Vec<Pending> = self.pending.drain().map(|(_, pending)| pending).collect();
        open.sort_unstable_by_key(|pending| pending.position);
        open.iter().try_for_each(|call| self.operation(call, Answer::Unknown, None))?;
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
