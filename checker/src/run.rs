//! The state that all judges share: the plan, the processes, and every attempt that a later event may concern.

use std::{collections::BTreeSet, time::Duration};

use history::{Answers, ClientId, HoldId, Key, NodeAnswer, NodeName, Plan, ProcessName, Stamp};
use rustc_hash::FxHashMap;

use crate::{
    faults::{Faults, Stalls},
    holds::{Attempt, EarlyEnd, EventRef, Nodes},
    operations::{Arrival, Operations},
};

/// One process of the run.
#[derive(Debug)]
pub(crate) struct Process {
    pub name: ProcessName,
    pub node: NodeName,
    /// True if the process has reported an event. A kill that was requested before meant another process of the node.
    pub is_running: bool,
    /// The number of the process, by which it names its attempts; known from its first attempt on.
    pub number: Option<u64>,
    /// The first kill that was requested while the process ran.
    pub killed: Option<(EventRef, EarlyEnd)>,
    /// The attempts of the process that are not closed.
    pub open: Vec<HoldId>,
}

/// One key.
#[derive(Debug)]
pub(crate) struct KeyHolds {
    pub name: Key,
    /// The holds that are entitled, as far as is known.
    pub live: Vec<HoldId>,
}

/// Attempts that no later event can concern.
pub(crate) type Closed = Vec<Box<Attempt>>;

/// The shared state of a sweep.
pub(crate) struct Run {
    pub plan: Plan,
    /// Stamp of the first `started`: times in stories count from it.
    pub start: Option<Stamp>,
    pub first_operation: Option<Stamp>,
    pub holds: u64,
    pub faults: Faults,
    pub stalls: Stalls,
    pub processes: Vec<Process>,
    /// Boxed, because attempts are large and move when the map changes.
    pub attempts: FxHashMap<HoldId, Box<Attempt>>,
    pub keys: Vec<KeyHolds>,
    pub key_index: FxHashMap<Key, usize>,
    /// The last attempt of each client.
    pub current: FxHashMap<ClientId, HoldId>,
    /// The hold that each client has used up last. One hold for each client stays known. So acts and releases after the
    /// client's own release are judged, and the memory does not grow with the history.
    pub used_up: FxHashMap<ClientId, HoldId>,
    /// Attempts that may have closed at this stamp.
    pub closing: Vec<HoldId>,
    pub operations: Operations,
    pub last_number: u64,
    /// True if the resource was started again and has decided nothing since. Its numbers may then skip.
    pub is_recovered: bool,
    /// Numbers that a restart found on disk and that the log does not have: above the first, up to the second.
    pub unlogged: Vec<(u64, u64)>,
    pub reasons: BTreeSet<String>,
}

impl Run {
    pub fn new(plan: Plan) -> Self {
        Run {
            plan,
            start: None,
            first_operation: None,
            holds: 0,
            faults: Faults::default(),
            stalls: Stalls::default(),
            processes: Vec::new(),
            attempts: FxHashMap::default(),
            keys: Vec::new(),
            key_index: FxHashMap::default(),
            current: FxHashMap::default(),
            used_up: FxHashMap::default(),
            closing: Vec::new(),
            operations: Operations::default(),
            last_number: 0,
            is_recovered: false,
            unlogged: Vec::new(),
            reasons: BTreeSet::new(),
        }
    }

    // ---- queries of the judges

    pub fn attempt(&self, id: HoldId) -> Option<&Attempt> {
        self.attempts.get(&id).map(|attempt| &**attempt)
    }

    pub fn key(&self, key: usize) -> &Key {
        &self.keys[key].name
    }

    pub fn key_of(&self, name: &Key) -> Option<usize> {
        self.key_index.get(name).copied()
    }

    /// The holds of the key that are entitled, as far as is known.
    pub fn live(&self, key: usize) -> impl Iterator<Item = &Attempt> {
        self.keys[key].live.iter().filter_map(|id| self.attempt(*id))
    }

    /// Returns whether the record of the clients contradicts the last admission: then no rule about the lock or the
    /// fences may rest on it.
    pub fn is_contradicted(&self) -> bool {
        self.operations.arrival() == Arrival::Contradicted
    }

    /// Returns whether the last admission is the first arrival of a request: an act.
    pub fn is_act(&self) -> bool {
        self.operations.arrival() == Arrival::Act
    }

    pub fn process(&self, process: usize) -> &Process {
        &self.processes[process]
    }

    pub fn open_on(&self, process: usize) -> impl Iterator<Item = &Attempt> {
        self.processes[process].open.iter().filter_map(|id| self.attempt(*id))
    }

    /// The processes that run, or ran, on a node.
    pub fn processes_on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = usize> + 'a {
        (0..self.processes.len()).filter(move |&p| self.processes[p].node == *node)
    }

    /// The name of a client in stories: its worker, and its own number where a worker has several clients.
    pub fn who(&self, process: usize, client: ClientId) -> String {
        let name = &self.processes[process].name;
        if self.plan.workload.clients_per_worker > 1 { format!("{name}/c{client}") } else { name.to_string() }
    }

    /// Milliseconds since the run's start.
    pub fn ms(&self, at: Stamp) -> f64 {
        let start = self.start.unwrap_or_default();
        (at.0 as f64 - start.0 as f64) / 1e6
    }

    /// Attempts that are still open at the end of the record, in a fixed order.
    pub fn still_open(&self) -> Vec<&Attempt> {
        let mut open: Vec<_> = self.attempts.values().map(|attempt| &**attempt).collect();
        open.sort_unstable_by_key(|attempt| attempt.id);
        open
    }

    pub fn reasons(&self) -> &BTreeSet<String> {
        &self.reasons
    }

    pub fn lock_nodes(&self, nodes: Nodes) -> impl Iterator<Item = &NodeName> {
        self.plan.lock_nodes.iter().enumerate().filter(move |(i, _)| *i < 64 && nodes & (1 << i) != 0).map(|(_, n)| n)
    }

    /// The nodes that gave one of these answers.
    pub fn nodes(&self, answers: &Answers, wanted: &[NodeAnswer]) -> Nodes {
        let nodes = &self.plan.lock_nodes;
        // Locks report the answers in the order of the plan. The order affects only the time of the search.
        let place = |i: usize, name: &NodeName| {
            if nodes.get(i) == Some(name) { Some(i) } else { nodes.iter().position(|n| n == name) }
        };
        let mut all = 0;
        for (i, (name, answer)) in answers.iter().enumerate() {
            if wanted.contains(answer)
                && let Some(node) = place(i, name).filter(|node| *node < 64)
            {
                all |= 1 << node;
            }
        }
        all
    }
}

/// A duration in milliseconds, as verdicts give lengths.
pub(crate) fn millis(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e6
}
