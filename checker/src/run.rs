//! The state that all judges share: the plan, the processes, and every attempt that a later event may concern.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use history::{
    Answers, ClientId, FaultId, FaultKind, HoldId, Key, NodeAnswer, NodeName, Plan, Point, ProcessName, Stamp,
};
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::{
    attempts::Attempts,
    clock_steps::ClockSteps,
    faults::{FaultRecord, Faults, Stalls},
    holds::{Attempt, EarlyEnd, EventRef, Nodes, Span},
    keys::Keys,
    operations::{Arrival, Operations},
    resource_stalls::ResourceStalls,
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
    /// The last stamp of a process that ended without a finish. The process may have done more before its death: the
    /// engine may lose the end of its output.
    pub cut_at: Option<Stamp>,
    /// The attempts of the process that are not closed.
    pub open: IndexSet<HoldId, FxBuildHasher>,
    /// The stalls of about the last lease: the promise of a later attempt may rest on a request from before them.
    pub stalls: VecDeque<Span>,
}

impl Process {
    /// Returns whether events of the process may be lost: it was killed, or its record has ended without a finish. The
    /// record may end before the request of the kill.
    pub fn is_cut(&self) -> bool {
        self.killed.is_some() || self.cut_at.is_some()
    }

    /// Gives an attempt of the process the stalls since an instant that were reported before the attempt was sent.
    pub fn stalled_since(&self, since: Stamp, attempt: &mut Attempt) {
        if since >= attempt.sent.at {
            return;
        }
        let is_new = |stall: &&Span| stall.1 > since && !attempt.stalls.contains(stall);
        let earlier: Vec<Span> = self.stalls.iter().filter(is_new).copied().collect();
        attempt.stalls.splice(0..0, earlier);
    }
}

/// The attempts of a key that are not closed. Only few keys have one at a time, so only these are kept.
#[derive(Debug, Default)]
pub(crate) struct KeyAttempts {
    /// All of them.
    pub known: FxHashSet<HoldId>,
    /// The holds that are entitled, as far as is known.
    pub live: Vec<HoldId>,
}

/// Attempts and keys that no later event can concern.
#[derive(Default)]
pub(crate) struct Closed {
    #[expect(clippy::vec_box, reason = "they come from the map as they are; an attempt is large")]
    pub attempts: Vec<Box<Attempt>>,
    /// Keys without an attempt that is not closed.
    pub keys: Vec<usize>,
}

/// The shared state of a sweep.
pub(crate) struct Run {
    pub plan: Plan,
    /// Stamp of the first `started`: times in stories count from it.
    pub start: Option<Stamp>,
    /// The stamp of the last event.
    pub now: Stamp,
    pub first_operation: Option<Stamp>,
    pub holds: u64,
    pub faults: Faults,
    pub stalls: Stalls,
    pub clock_steps: ClockSteps,
    pub of_resource: ResourceStalls,
    pub processes: Vec<Process>,
    /// The processes of each node, by the number of their start.
    pub of_node: FxHashMap<NodeName, Vec<(u32, usize)>>,
    pub attempts: Attempts,
    pub keys: Keys,
    /// By key.
    pub busy: FxHashMap<usize, KeyAttempts>,
    /// The parent of all other keys, if they form a hierarchy. A hold of it may act on their data.
    pub parent: Option<usize>,
    /// The last attempt of each client.
    pub current: FxHashMap<ClientId, HoldId>,
    /// The hold under which each client waits at a point, or waited last.
    pub at_point: FxHashMap<ClientId, HoldId>,
    /// The hold that each client has used up last. One hold for each client stays known. So acts and releases after the
    /// client's own release are judged, and the memory does not grow with the history.
    pub used_up: FxHashMap<ClientId, HoldId>,
    /// Attempts that may have closed at this stamp.
    pub closing: Vec<HoldId>,
    pub operations: Operations,
    pub last_number: u64,
    /// True if the resource was started again and has decided nothing since. Its numbers may then skip.
    pub is_recovered: bool,
    /// True while a restarted process of the resource has neither told what it found on disk nor decided anything. An
    /// answer that comes meanwhile is one of the process before.
    pub is_opening: bool,
    /// Numbers that a restart found on disk and that the log does not have: above the first, up to the second.
    pub unlogged: Vec<(u64, u64)>,
    /// True if the record lacks admissions, or has judged some that a restart undid. Nobody knows the state of the arms
    /// from then on.
    pub is_log_broken: bool,
    pub reasons: BTreeSet<String>,
}

impl Run {
    pub fn new(plan: Plan) -> Self {
        let mut run = Run {
            plan,
            start: None,
            now: Stamp(0),
            first_operation: None,
            holds: 0,
            faults: Faults::default(),
            stalls: Stalls::default(),
            clock_steps: ClockSteps::default(),
            of_resource: ResourceStalls::default(),
            processes: Vec::new(),
            of_node: FxHashMap::default(),
            attempts: Attempts::default(),
            keys: Keys::default(),
            busy: FxHashMap::default(),
            parent: None,
            current: FxHashMap::default(),
            at_point: FxHashMap::default(),
            used_up: FxHashMap::default(),
            closing: Vec::new(),
            operations: Operations::default(),
            last_number: 0,
            is_recovered: false,
            is_opening: false,
            unlogged: Vec::new(),
            is_log_broken: false,
            reasons: BTreeSet::new(),
        };
        if let Some(parent) = run.plan.workload.parent() {
            run.parent = Some(run.intern(&parent));
        }
        run
    }

    /// Returns the index of a key.
    pub fn intern(&mut self, key: &Key) -> usize {
        self.keys.intern(key)
    }

    // ---- queries of the judges

    pub fn attempt(&self, id: HoldId) -> Option<&Attempt> {
        self.attempts.get(id)
    }

    pub fn key(&self, key: usize) -> &Key {
        self.keys.name(key)
    }

    /// Returns whether an attempt of the key is open.
    pub fn is_busy(&self, key: usize) -> bool {
        self.busy.contains_key(&key)
    }

    /// The attempts of the key that are not closed; their order says nothing.
    pub fn attempts_of(&self, key: usize) -> impl Iterator<Item = &Attempt> {
        self.busy.get(&key).into_iter().flat_map(|key| &key.known).filter_map(|id| self.attempt(*id))
    }

    pub fn key_of(&self, name: &Key) -> Option<usize> {
        self.keys.number(name)
    }

    /// The holds of the key that are entitled, as far as is known.
    pub fn live(&self, key: usize) -> impl Iterator<Item = &Attempt> {
        self.busy.get(&key).into_iter().flat_map(|key| &key.live).filter_map(|id| self.attempt(*id))
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

    /// Returns the stamp before which the record surely shows all that the client of a hold did with it. The last
    /// events of a process that was killed may be lost. But a client in a planned wait does nothing before its end, and
    /// a client that has let go of the hold, or given it up, does nothing more.
    pub fn known_until(&self, hold: &Attempt) -> Stamp {
        let process = &self.processes[hold.process];
        let Some(last) = process.cut_at.filter(|_| hold.let_go.is_none() && hold.gave_up.is_none()) else {
            return Stamp(u64::MAX);
        };
        // A process that ended by itself may have ended in the wait, and its session with it. A clock that was set may
        // have ended the wait too early. A client that renews may notice the loss of its hold while it waits.
        let waits_since = hold.timeline.last().map_or(Stamp(0), |(begun, _)| begun.at);
        let is_set = self.may_be_set(&process.node, waits_since);
        let may_act = is_set || process.killed.is_none() || self.plan.workload.renew.is_some();
        let bound = |point| self.bounds_at(&process.node, point).min().unwrap_or(Duration::MAX);
        last.max(if may_act { Stamp(0) } else { hold.idle_until(bound) })
    }

    /// Returns whether a fault may have set a clock of a node since a stamp. Once it is healed, and the heal is proved,
    /// the clock runs as it should, and measures later waits rightly.
    pub fn may_be_set(&self, node: &NodeName, since: Stamp) -> bool {
        let is_over = |line: &FaultRecord| line.is_heal_proved && line.healed.is_some_and(|healed| healed < since);
        self.faults.iter().any(|(_, line)| line.kind == FaultKind::Clock && line.node == *node && !is_over(line))
    }

    /// The bounds of the planned waits of a worker's client at a point: the client ends a wait by itself after that.
    /// The controller tells the client whole milliseconds, and leaves the rest out.
    pub fn bounds_at<'a>(&'a self, worker: &'a NodeName, point: Point) -> impl Iterator<Item = Duration> + 'a {
        let waits = self.plan.waits.iter().filter(move |wait| wait.worker == *worker && wait.point == point);
        waits.map(|wait| Duration::from_millis(wait.at_most.as_millis() as u64))
    }

    /// Returns the last stamp of a process that was dead by `dead`, if its clients may have made attempts of which the
    /// record has nothing. A client in a planned wait under its hold makes none.
    pub fn unknown_since(&self, process: usize, dead: Stamp) -> Option<Stamp> {
        let last = self.processes[process].cut_at.filter(|last| *last <= dead)?;
        let clients = self.plan.workload.clients_per_worker as usize;
        let is_busy = |hold: &&Attempt| hold.grant.is_some() && !hold.is_used_up && self.known_until(hold) > dead;
        let busy: BTreeSet<ClientId> = self.open_on(process).filter(is_busy).map(|hold| hold.client).collect();
        (busy.len() < clients).then_some(last)
    }

    /// Returns the stamp by which a killed process was dead.
    pub fn dead_by(&self, kill: FaultId) -> Stamp {
        self.faults.get(kill).and_then(|line| line.injected).unwrap_or(Stamp(u64::MAX))
    }

    /// Notes that a process did not run for a time.
    pub fn stalled(&mut self, process: usize, span: Span) {
        let longest = self.plan.longest_lease();
        let Process { name, node, open, stalls, .. } = &mut self.processes[process];
        self.stalls.stalled(name, span, &self.faults.pauses_on(node, span));
        stalls.push_back(span);
        while stalls.front().is_some_and(|first| first.1.plus(longest) < span.1) {
            stalls.pop_front();
        }
        if node.as_str() == "resource" {
            self.of_resource.add(span, self.attempts.iter().map(|attempt| attempt.resource_stalls_before));
        } else {
            for id in open.iter() {
                if let Some(attempt) = self.attempts.get_mut(*id) {
                    attempt.stalls.push(span);
                }
            }
        }
    }

    /// The spans in which the resource did not run, of those that were reported since an attempt was sent.
    pub fn resource_stalls(&self, attempt: &Attempt) -> Vec<Span> {
        let closed = attempt.resource_stalls.clone();
        closed.unwrap_or_else(|| self.of_resource.after(attempt.resource_stalls_before).collect())
    }

    /// Notes that a kill was healed, or called unproved. A kill that was never injected, and whose process goes on, has
    /// killed nothing: the holds of the process are judged as those of any other, and another kill may end the process.
    /// The heal follows the refusal at once; the agent waits for seconds before it calls the kill unproved. An
    /// entitlement whose end was reported meanwhile has ended all the same.
    pub fn survived(&mut self, kill: FaultId) {
        if self.faults.get(kill).is_none_or(|line| line.injected.is_some() || line.proved.is_some()) {
            return;
        }
        let is_by_kill = |(_, early_end): &mut (EventRef, EarlyEnd)| *early_end == EarlyEnd::Kill(kill);
        let Run { processes, attempts, .. } = self;
        for process in processes.iter_mut().filter(|process| process.cut_at.is_none()) {
            if process.killed.take_if(is_by_kill).is_none() {
                continue;
            }
            for id in &process.open {
                if let Some(hold) = attempts.get_mut(*id).filter(|hold| !hold.is_retired) {
                    hold.early_end.take_if(is_by_kill);
                }
            }
        }
    }

    /// Returns whether a kill has ended a process, or may have.
    pub fn has_killed(&self, kill: FaultId) -> bool {
        let mut killed = self.processes.iter().filter_map(|process| process.killed);
        killed.any(|(_, early_end)| early_end == EarlyEnd::Kill(kill))
    }

    /// The processes that run, or ran, on a node.
    pub fn processes_on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = usize> + 'a {
        self.of_node.get(node).into_iter().flatten().map(|(_, process)| *process)
    }

    /// The process of a node that was started last, of those that have reported an event.
    pub fn newest_on(&self, node: &NodeName) -> Option<usize> {
        newest(&self.processes, self.of_node.get(node)?)
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
        let mut open: Vec<_> = self.attempts.iter().collect();
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

/// Of the processes of a node, by the number of their start: the last one that has reported an event.
pub(crate) fn newest(processes: &[Process], of_node: &[(u32, usize)]) -> Option<usize> {
    let mut by_age = of_node.iter().rev().map(|(_, process)| *process);
    by_age.find(|process| processes[*process].is_running)
}

/// A duration in milliseconds, as verdicts give lengths.
pub(crate) fn millis(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history_builder::state;

    #[test]
    fn an_attempt_that_closes_costs_nothing_for_the_open_ones_of_its_process() {
        let others = 50_000;
        let mut run = state::with_worker();
        let mut closed = Closed::default();
        let mut tries = |run: &mut Run, client: u32, id: u64| {
            state::sends(run, client, id, Key::from("k0"));
            run.settle(&mut closed);
            closed.attempts.drain(..).count()
        };
        for client in 1..=others {
            assert_eq!(tries(&mut run, client, client.into()), 0);
        }
        // Each attempt of this client is the newest one, and closes when the next one begins.
        let closed: usize = (1..=50_000).map(|n| tries(&mut run, 0, u64::from(others) + n)).sum();
        assert_eq!((closed, run.open_on(0).count()), (49_999, 50_001));
    }
}
