//! Operations as Jepsen has them: each has an invocation and at most one completion, by a process that does one
//! operation at a time. Jepsen's EDN and Porcupine's log are two spellings of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use history::{ClientId, Event, FaultPhase, HoldId, Key, OpId, Outcome, RequestKind, Stamp};

use super::{
    ordered::Item,
    source::{Holds, Source},
};
use crate::cli::JepsenModel;

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The operation begins.
    Invoke,
    /// It happened.
    Ok,
    /// It did not happen.
    Fail,
    /// It may have happened, at any time from its invocation on. Its process does nothing more.
    Info,
}

/// The process of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Process {
    /// A client, or what took its place after an operation without a known end.
    Client(u64),
    /// The nemesis.
    Nemesis,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub process: Process,
    pub f: String,
    /// In EDN.
    pub value: String,
    pub at: Stamp,
    /// True if the operation certainly did not happen, for example because the arm refused it. Known from its
    /// invocation on.
    pub is_void: bool,
}

/// The hold or attempt of an operation, and its access if it is one.
type Subject = (HoldId, Option<OpId>);

/// An operation that has begun.
struct Open {
    of: Subject,
    f: &'static str,
    value: String,
    is_void: bool,
}

/// A section as a transaction.
#[derive(Default)]
struct Transaction {
    /// The versions that its reads returned, by operation.
    read: HashMap<OpId, u64>,
    ended: usize,
    is_unclear: bool,
}

/// Turns the records of a run into operations of one model.
pub struct Operations<'a> {
    source: &'a Source,
    model: JepsenModel,
    key: Option<&'a Key>,
    holds: Holds,
    /// The number of processes: a client's next process has a number that is so much larger, as in Jepsen.
    count: u64,
    /// The present process of each client.
    processes: HashMap<ClientId, u64>,
    open: BTreeMap<u64, Open>,
    transactions: HashMap<HoldId, Transaction>,
    /// The holds that are in use, with their workers' nodes (`mutex`).
    used: BTreeMap<HoldId, String>,
    /// The holds whose last access has begun, and has no answer on record (`mutex`).
    unanswered: HashSet<HoldId>,
    /// The versions of writes that the resource never decided.
    invented: HashMap<(HoldId, OpId), u128>,
    /// The last version that a hold read.
    bases: HashMap<HoldId, u64>,
    /// The entries of the present stamp.
    batch: Vec<Entry>,
    last: Stamp,
}

/// Gives `emit` all entries of a run, in order.
///
/// # Errors
/// The history cannot be read again, or `emit` fails.
pub fn each(
    source: &Source,
    model: JepsenModel,
    key: Option<&Key>,
    mut emit: impl FnMut(&Entry) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let workload = &source.plan.workload;
    let clients = u64::from(workload.workers) * u64::from(workload.clients_per_worker);
    let mut operations = Operations {
        source,
        model,
        key,
        holds: Holds::default(),
        count: clients + 1,
        processes: HashMap::new(),
        open: BTreeMap::new(),
        transactions: HashMap::new(),
        used: BTreeMap::new(),
        unanswered: HashSet::new(),
        invented: HashMap::new(),
        bases: HashMap::new(),
        batch: Vec::new(),
        last: source.zero,
    };
    if model == JepsenModel::CasRegister {
        // The models begin without a value, and the resource with version 0.
        for kind in [Kind::Invoke, Kind::Ok] {
            operations.entry(kind, Process::Client(clients), "write", "0".to_owned(), false);
        }
    }
    for item in source.ordered()? {
        let item = item?;
        let (Item::Record(history::Record { at, .. }) | Item::Gone(_, at)) = &item;
        if *at > operations.last {
            operations.settle(&mut emit)?;
            operations.last = *at;
        }
        match item {
            Item::Record(record) => {
                operations.holds.apply(&record.event);
                operations.apply(&record.event, record.process.node().as_str());
            }
            Item::Gone(process, _) => operations.gone(process.node().as_str()),
        }
    }
    let unended: Vec<u64> = operations.open.keys().copied().collect();
    unended.into_iter().for_each(|process| operations.end(process, Kind::Info, None));
    operations.settle(&mut emit)
}

impl Operations<'_> {
    fn entry(&mut self, kind: Kind, process: Process, f: impl Into<String>, value: String, is_void: bool) {
        self.batch.push(Entry { kind, process, f: f.into(), value, at: self.last, is_void });
    }

    /// Hands the entries of a stamp over. Equal stamps are concurrent: nothing ends before another process begins.
    fn settle(&mut self, emit: &mut impl FnMut(&Entry) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let (mut seen, mut first, mut rest) = (HashSet::new(), Vec::new(), Vec::new());
        for entry in &self.batch {
            let is_first = seen.insert(&entry.process) && entry.kind == Kind::Invoke;
            (if is_first { &mut first } else { &mut rest }).push(entry);
        }
        first.into_iter().chain(rest).try_for_each(emit)?;
        self.batch.clear();
        Ok(())
    }

    fn process(&self, client: ClientId) -> u64 {
        self.processes.get(&client).copied().unwrap_or(u64::from(client.0))
    }

    fn begin(&mut self, client: ClientId, of: Subject, f: &'static str, value: String, is_void: bool) {
        let process = self.process(client);
        if self.open.contains_key(&process) {
            // The client went on without the end of its last operation.
            self.end(process, Kind::Info, None);
        }
        let process = self.process(client);
        self.entry(Kind::Invoke, Process::Client(process), f, value.clone(), is_void);
        self.open.insert(process, Open { of, f, value, is_void });
    }

    /// Ends the operation of a process, if it has one.
    fn end(&mut self, process: u64, kind: Kind, value: Option<String>) {
        let Some(open) = self.open.remove(&process) else { return };
        let value = value.unwrap_or(open.value);
        self.entry(kind, Process::Client(process), open.f, value, open.is_void);
        if kind == Kind::Info {
            let client = ClientId((process % self.count) as u32);
            self.processes.insert(client, process + self.count);
        }
    }

    /// Ends an operation of a client. It is `:info` already if its client has begun another one since.
    fn end_of(&mut self, client: ClientId, of: Subject, kind: Kind, value: Option<String>) {
        let process = self.process(client);
        if self.open.get(&process).is_some_and(|open| open.of == of) {
            self.end(process, kind, value);
        }
    }

    fn apply(&mut self, event: &Event, node: &str) {
        if let Event::Fault { kind, node, phase, .. } = event {
            return self.fault(kind.name(), node.as_str(), phase);
        }
        let Some(id) = event.attempt() else { return };
        let Some(hold) = self.holds.get(id) else { return };
        if self.key.is_some_and(|key| hold.key != *key) {
            return;
        }
        let (client, key) = (hold.client, hold.key.clone());
        match self.model {
            JepsenModel::Mutex => self.mutex(event, id, client, node),
            JepsenModel::CasRegister => self.register(event, id, client),
            JepsenModel::RwRegister => self.transaction(event, id, client, &key),
        }
    }

    /// Jepsen writes both the beginning and the end of what the nemesis does as `:info`.
    fn fault(&mut self, kind: &str, node: &str, phase: &FaultPhase) {
        let what = match phase {
            FaultPhase::Requested { .. } | FaultPhase::Injected => "start",
            FaultPhase::HealRequested | FaultPhase::Healed => "stop",
            _ => return,
        };
        self.entry(Kind::Info, Process::Nemesis, format!("{what}-{kind}"), format!("[{}]", string(node)), false);
    }

    /// All processes of the node's clients have ended: operations without an end have none.
    fn gone(&mut self, node: &str) {
        let left = self.used.iter().filter(|(_, worker)| *worker == node);
        let left: Vec<HoldId> = left.map(|(id, _)| *id).collect();
        self.abandon(left);
    }

    /// Nobody knows when these holds end.
    fn abandon(&mut self, left: Vec<HoldId>) {
        for id in left {
            if let Some(client) = self.holds.get(id).map(|hold| hold.client) {
                self.used.remove(&id);
                self.begin(client, (id, None), "release", "nil".to_owned(), false);
                self.end_of(client, (id, None), Kind::Info, None);
            }
        }
    }

    fn mutex(&mut self, event: &Event, id: HoldId, client: ClientId, node: &str) {
        let (nil, of) = (|| "nil".to_owned(), (id, None));
        match event {
            Event::Acquire { .. } => {
                // A client that asks for the key again has left a hold whose last access has no answer on record. The
                // client goes on using a hold under which it acts later.
                let is_own = |id: &HoldId| self.holds.get(*id).is_some_and(|hold| hold.client == client);
                let has_left = |id: &&HoldId| self.unanswered.contains(*id) && is_own(id);
                let left: Vec<HoldId> = self.used.keys().filter(has_left).copied().collect();
                self.abandon(left);
                self.begin(client, of, "acquire", nil(), false);
            }
            Event::AcquireFailed { outcome, .. } => self.end_of(client, of, ended(*outcome), None),
            Event::Acquired { .. } => {
                self.end_of(client, of, Kind::Ok, None);
                self.used.insert(id, node.to_owned());
                self.release_after(id, client, None);
            }
            Event::Read { op, .. } | Event::Write { op, .. } if self.is_last_and_unanswered(id, *op) => {
                self.unanswered.insert(id);
            }
            Event::ReadOk { op, .. } | Event::WriteOk { op, .. } | Event::AccessFailed { op, .. } => {
                self.release_after(id, client, Some(*op));
            }
            // The lease may have ended before: nobody knows when the lock became free.
            Event::Release { .. } | Event::GaveUp { .. } if self.used.remove(&id).is_some() => {
                self.begin(client, of, "release", nil(), false);
                if matches!(event, Event::GaveUp { .. }) {
                    self.end_of(client, of, Kind::Info, None);
                }
            }
            Event::Released { .. } => self.end_of(client, of, Kind::Ok, None),
            Event::ReleaseFailed { .. } | Event::GaveUp { .. } => self.end_of(client, of, Kind::Info, None),
            _ => {}
        }
    }

    /// The use of a hold ends with its last access, so its release begins there. `op` is the access that has ended.
    fn release_after(&mut self, id: HoldId, client: ClientId, op: Option<OpId>) {
        if self.last_access(id) == op && self.used.remove(&id).is_some() {
            self.begin(client, (id, None), "release", "nil".to_owned(), false);
        }
    }

    fn last_access(&self, id: HoldId) -> Option<OpId> {
        self.source.sections.get(&id).and_then(|section| section.last()).map(|(op, _)| *op)
    }

    fn is_last_and_unanswered(&self, id: HoldId, op: OpId) -> bool {
        self.source.unanswered.contains(&(id, op)) && self.last_access(id) == Some(op)
    }

    fn register(&mut self, event: &Event, id: HoldId, client: ClientId) {
        match event {
            Event::Read { op, .. } => self.begin(client, (id, Some(*op)), "read", "nil".to_owned(), false),
            Event::ReadOk { op, .. } => {
                let version = self.version_read(event, id, *op);
                self.bases.insert(id, version);
                self.end_of(client, (id, Some(*op)), Kind::Ok, Some(version.to_string()));
            }
            Event::Write { op, .. } => {
                let decision = self.source.decisions.get(&(id, *op));
                let base = decision.and_then(|decision| decision.base).or(self.bases.get(&id).copied());
                let is_refused = decision.is_some_and(|decision| !decision.admitted);
                let is_void = is_refused || self.source.failed.contains(&(id, *op));
                let value = format!("[{} {}]", base.unwrap_or_default(), self.version_written(id, *op));
                self.begin(client, (id, Some(*op)), "cas", value, is_void);
            }
            Event::WriteOk { op, .. } => {
                let is_refused = self.source.decisions.get(&(id, *op)).is_some_and(|decision| !decision.admitted);
                self.end_of(client, (id, Some(*op)), if is_refused { Kind::Fail } else { Kind::Ok }, None);
            }
            Event::AccessFailed { op, outcome, .. } => {
                let section = self.source.sections.get(&id);
                let is_read = section.is_some_and(|section| section.contains(&(*op, RequestKind::Read)));
                // A read changes nothing, so a read without an answer has not happened.
                self.end_of(client, (id, Some(*op)), if is_read { Kind::Fail } else { ended(*outcome) }, None);
            }
            _ => {}
        }
    }

    fn transaction(&mut self, event: &Event, id: HoldId, client: ClientId, key: &Key) {
        match event {
            Event::Read { .. } | Event::Write { .. } if !self.transactions.contains_key(&id) => {
                let value = self.told(id, key, &HashMap::new());
                self.transactions.insert(id, Transaction::default());
                self.begin(client, (id, None), "txn", value, false);
            }
            Event::ReadOk { op, .. } => {
                let version = self.version_read(event, id, *op);
                if let Some(transaction) = self.transactions.get_mut(&id) {
                    transaction.read.insert(*op, version);
                }
                self.access_ended(id, client, key, false);
            }
            Event::WriteOk { .. } => self.access_ended(id, client, key, false),
            Event::AccessFailed { .. } => self.access_ended(id, client, key, true),
            _ => {}
        }
    }

    fn access_ended(&mut self, id: HoldId, client: ClientId, key: &Key, is_unclear: bool) {
        let Some(section) = self.source.sections.get(&id) else { return };
        let Some(transaction) = self.transactions.get_mut(&id) else { return };
        transaction.ended += 1;
        transaction.is_unclear |= is_unclear;
        if transaction.ended < section.len() {
            return;
        }
        let Some(transaction) = self.transactions.remove(&id) else { return };
        let writes = section.iter().filter(|(_, kind)| *kind == RequestKind::Write);
        let admitted = |op: &OpId| self.source.decisions.get(&(id, *op)).is_none_or(|decision| decision.admitted);
        let (refused, written): (Vec<&OpId>, Vec<_>) = writes.map(|(op, _)| op).partition(|op| !admitted(op));
        let kind = match (written.is_empty(), refused.is_empty()) {
            (true, false) => Kind::Fail,
            (true, true) if transaction.is_unclear => Kind::Fail,
            _ if transaction.is_unclear || !refused.is_empty() => Kind::Info,
            _ => Kind::Ok,
        };
        let value = (kind == Kind::Ok).then(|| self.told(id, key, &transaction.read));
        self.end_of(client, (id, None), kind, value);
    }

    /// The accesses of a section, with the versions that its reads are known to have returned.
    fn told(&mut self, id: HoldId, key: &Key, read: &HashMap<OpId, u64>) -> String {
        let section = self.source.sections.get(&id).cloned().unwrap_or_default();
        let name = string(key.as_str());
        let micro = |(op, kind): (OpId, RequestKind)| match kind {
            // Elle's registers begin as nil.
            RequestKind::Read => match read.get(&op) {
                Some(version) if *version > 0 => format!("[:r {name} {version}]"),
                _ => format!("[:r {name} nil]"),
            },
            RequestKind::Write => format!("[:w {name} {}]", self.version_written(id, op)),
        };
        format!("[{}]", section.into_iter().map(micro).collect::<Vec<_>>().join(" "))
    }

    /// The version that the arm's read returned. Older histories do not have the answer, but the decision.
    fn version_read(&self, event: &Event, id: HoldId, op: OpId) -> u64 {
        let Event::ReadOk { arms, .. } = event else { return 0 };
        let answer = arms.iter().flatten().find(|answer| answer.arm == self.source.arm);
        let decided = || self.source.decisions.get(&(id, op)).map(|decision| decision.version);
        answer.map(|answer| answer.version).or_else(decided).unwrap_or_default()
    }

    /// The version of a write. A write that the resource never decided gets a number that no other write has.
    fn version_written(&mut self, id: HoldId, op: OpId) -> u128 {
        if let Some(decision) = self.source.decisions.get(&(id, op)) {
            return decision.number.into();
        }
        let next = u128::from(self.source.largest) + 1 + self.invented.len() as u128;
        *self.invented.entry((id, op)).or_insert(next)
    }
}

fn ended(outcome: Outcome) -> Kind {
    match outcome {
        Outcome::Failed => Kind::Fail,
        Outcome::Indeterminate => Kind::Info,
    }
}

/// Returns a text as a string of EDN. Its escapes are those of Clojure's reader, and not those of Rust.
fn string(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_string_of_edn() {
        assert_eq!(string("k0"), r#""k0""#);
        assert_eq!(string("a\u{1b}[31m\"\\\nü\u{200b}"), "\"a\\u001b[31m\\\"\\\\\\u000aü\u{200b}\"");
    }
}
