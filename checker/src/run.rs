//! What all judges share: the plan, the processes, and every attempt that something may still be said of.

use std::collections::BTreeSet;

use history::{Answers, ClientId, HoldId, Key, NodeAnswer, NodeName, OpId, Plan, ProcessName, Stamp};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    faults::{Faults, Stalls},
    holds::{Attempt, Ender, Mark, Nodes},
};

/// One process of the run.
#[derive(Debug)]
pub(crate) struct Process {
    pub name: ProcessName,
    pub node: NodeName,
    /// It has said something: a kill that was requested before that meant another one of its node.
    pub is_running: bool,
    /// The first kill that was requested while it ran.
    pub killed: Option<(Mark, Ender)>,
    /// Its attempts that are not closed.
    pub open: Vec<HoldId>,
}

/// One key.
#[derive(Debug)]
pub(crate) struct KeyLine {
    pub name: Key,
    /// Holds that are entitled, as far as is known.
    pub live: Vec<HoldId>,
}

/// Attempts of which nothing more can be said.
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
    /// Boxed: they are large, and are moved when they come and go.
    pub attempts: FxHashMap<HoldId, Box<Attempt>>,
    pub keys: Vec<KeyLine>,
    pub key_index: FxHashMap<Key, usize>,
    /// The last attempt of each client.
    pub current: FxHashMap<ClientId, HoldId>,
    /// Attempts that may have closed at this stamp.
    pub closing: Vec<HoldId>,
    /// Operations that were answered at this stamp.
    pub answered: Vec<(HoldId, OpId)>,
    pub last_number: u64,
    /// The resource was started again, and has not decided anything since: its numbers go on further up.
    pub is_recovered: bool,
    /// Operations whose decision was undone and has not been made again.
    pub undone: FxHashSet<(HoldId, OpId)>,
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
            closing: Vec::new(),
            answered: Vec::new(),
            last_number: 0,
            is_recovered: false,
            undone: FxHashSet::default(),
            reasons: BTreeSet::new(),
        }
    }

    // ---- what judges ask

    pub fn attempt(&self, id: HoldId) -> Option<&Attempt> {
        self.attempts.get(&id).map(|attempt| &**attempt)
    }

    pub fn key(&self, key: usize) -> &Key {
        &self.keys[key].name
    }

    pub fn key_of(&self, name: &Key) -> Option<usize> {
        self.key_index.get(name).copied()
    }

    /// Holds of the key that are entitled, as far as has been noticed.
    pub fn live(&self, key: usize) -> impl Iterator<Item = &Attempt> {
        self.keys[key].live.iter().filter_map(|id| self.attempt(*id))
    }

    pub fn process(&self, process: usize) -> &Process {
        &self.processes[process]
    }

    pub fn open_on(&self, process: usize) -> impl Iterator<Item = &Attempt> {
        self.processes[process].open.iter().filter_map(|id| self.attempt(*id))
    }

    /// Processes that run, or ran, on a node.
    pub fn processes_on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = usize> + 'a {
        (0..self.processes.len()).filter(move |&p| self.processes[p].node == *node)
    }

    /// Who a client is in stories: its worker, and its own number where a worker has several.
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
        // Locks tell the answers in the order of the plan; nothing but the time that the search takes rests on it.
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
