//! The world of a simulation: nodes with processes and clocks, and the recorder. `world/network.rs` is the network,
//! `world/run.rs` the event loop, `world/witness.rs` the witness of the truth.

mod network;
mod periodic;
mod run;
mod witness;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use history::{Event, NodeName, Plan, ProcessName, Record, Role, STALL_FROM, StallCause, Stamp};
use nemesis::{Controller, LiveView, Recorder};
use rand::Rng;
use rustc_hash::FxHashMap;
use workloads::stream::{Redraw, Stream};

use crate::{
    clock::{Clocks, START, duration},
    copies::Copies,
    executor::{Executor, Packet, Process},
    invocations::Invocations,
    link::Link,
    periodic_faults::PeriodicFaults,
    servers::Servers,
    thread_bound::{ThreadBound, lock},
    truth::TruthRecorder,
};

/// The number of records that are handed over at a time.
pub(crate) const BATCH: usize = 512;
/// The time between two watermarks of a process.
const WATERMARK: Duration = Duration::from_millis(500);
/// The time between the thaw of a process and its next tick.
const TICK: Duration = Duration::from_millis(10);

/// A node and the process that it runs.
pub(crate) struct Node {
    pub name: NodeName,
    /// The role of the run's own process; none for servers of the backend.
    pub role: Option<Role>,
    pub process: ProcessName,
    pub is_running: bool,
    pub frozen_since: Option<Stamp>,
    /// The wall clock of the node at its last kill.
    pub killed: Duration,
    /// The number of starts.
    pub incarnation: u32,
    /// Packets that arrived while the process was frozen.
    inbox: VecDeque<Packet<World>>,
    /// The number of the process's next event.
    next: u64,
    /// The requests that the process has announced in the record.
    invocations: Invocations,
    marked: Stamp,
}

/// The connection from one node to another, as the first one knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Connection {
    /// The incarnation of the other node that accepted the connection.
    incarnation: u32,
    is_lost: bool,
}

struct State {
    nodes: Vec<Node>,
    links: Vec<Link<Packet<World>>>,
    connections: Vec<Connection>,
    rng: Stream,
    recorder: Recorder,
    messages: u64,
    /// The first request that left before its invocation was recorded.
    sent_early: Option<String>,
}

/// The whole simulated cluster.
pub(crate) struct World {
    pub executor: Executor<World>,
    pub plan: Arc<Plan>,
    pub live_view: LiveView,
    /// The clocks of each process.
    pub clocks: Vec<ThreadBound<Clocks>>,
    periodic: Vec<ThreadBound<PeriodicFaults>>,
    /// The number of lock nodes. Nodes are numbered in the order lock nodes, workers, resource, agent.
    pub lock_nodes: usize,
    /// The number of workers.
    pub workers: usize,
    by_name: FxHashMap<NodeName, Process>,
    state: ThreadBound<State>,
    /// True if the nemesis has not seen all records.
    has_records: AtomicBool,
    is_batch_full: AtomicBool,
    /// The servers of the backend, and the resource, as models.
    pub servers: Servers,
    /// Draws other random numbers from an instant on, if asked for.
    pub redraw: Option<Redraw>,
    /// The requests to the resource that may still arrive.
    pub copies: Copies,
    /// Gathers the truth, if asked for.
    witness: Option<ThreadBound<TruthRecorder>>,
}

impl World {
    /// A world with the nodes of `plan`, none of them started.
    pub fn new(run: &str, plan: Arc<Plan>, servers: Servers, redraw: Option<Redraw>, is_witnessed: bool) -> Arc<World> {
        let (lock_nodes, workers) = (plan.lock_nodes.len(), plan.workload.workers as usize);
        let named = (plan.lock_nodes.iter().map(|name| (name.clone(), None)))
            .chain(plan.workers().map(|name| (name, Some(Role::Worker))))
            .chain([("resource".into(), Some(Role::Resource)), ("agent".into(), Some(Role::Agent))]);
        let nodes: Vec<Node> = named
            .map(|(name, role)| Node {
                process: ProcessName::of(&name, 1),
                name,
                role,
                is_running: false,
                frozen_since: None,
                killed: Duration::ZERO,
                incarnation: 0,
                inbox: VecDeque::new(),
                next: 0,
                invocations: Invocations::default(),
                marked: START,
            })
            .collect();
        let count = nodes.len();
        // Of nodes with one name, the first is meant.
        let named = nodes.iter().enumerate().rev();
        let by_name = named.map(|(process, node)| (node.name.clone(), process)).collect();
        // Links draw from their own stream, so that they change no draw of a client.
        let rng = Stream::new(plan.seed, u64::MAX, redraw);
        let state = State {
            nodes,
            links: (0..count * count).map(|_| Link::default()).collect(),
            connections: vec![Connection { incarnation: 1, is_lost: false }; count * count],
            rng,
            // The last step before a batch is handed over may record several events.
            recorder: Recorder::new(run, &plan, None, BATCH * 5 / 4),
            messages: 0,
            sent_early: None,
        };
        let copies = lock(&servers.resource).copies.clone();
        Arc::new(World {
            // One more for the controller.
            executor: Executor::new(count + 1, START),
            plan,
            live_view: LiveView::new(),
            clocks: (0..count).map(|_| ThreadBound::new(Clocks::right(START))).collect(),
            periodic: (0..count).map(|_| ThreadBound::default()).collect(),
            lock_nodes,
            workers,
            by_name,
            state: ThreadBound::new(state),
            // The plan.
            has_records: AtomicBool::new(true),
            is_batch_full: AtomicBool::new(false),
            servers,
            redraw,
            copies,
            witness: is_witnessed.then(ThreadBound::default),
        })
    }

    pub fn worker(&self, index: usize) -> Process {
        self.lock_nodes + index
    }

    pub fn resource(&self) -> Process {
        self.lock_nodes + self.workers
    }

    pub fn agent(&self) -> Process {
        self.resource() + 1
    }

    pub fn controller(&self) -> Process {
        self.agent() + 1
    }

    /// The node of this name.
    pub fn find(&self, name: &NodeName) -> Option<Process> {
        self.by_name.get(name).copied()
    }

    /// Reads the state of a node.
    pub fn node<T>(&self, node: Process, look: impl FnOnce(&Node) -> T) -> T {
        look(&lock(&self.state).nodes[node])
    }

    pub fn is_up(&self, node: Process) -> bool {
        self.node(node, |n| n.is_running && n.frozen_since.is_none())
    }

    pub fn messages(&self) -> u64 {
        lock(&self.state).messages
    }

    /// Draws a duration from the world's random source.
    pub fn draw(&self, range: std::ops::RangeInclusive<Duration>) -> Duration {
        let (from, to) = (range.start().as_nanos() as u64, range.end().as_nanos() as u64);
        Duration::from_nanos(lock(&self.state).rng.at(|| self.executor.now()).random_range(from..=to))
    }

    // ---- the record

    /// Records an event of one of the run's own processes, now.
    pub fn record(&self, process: Process, event: Event) -> Stamp {
        let at = self.executor.now();
        self.record_at(process, at, event);
        at
    }

    /// Records an event with a stamp that the process took earlier.
    pub fn record_at(&self, process: Process, at: Stamp, event: Event) {
        if let Some(witness) = &self.witness {
            lock(witness).see(process, at, &event, |witness, key| self.owners(witness, key));
        }
        let mut state = lock(&self.state);
        let node = &mut state.nodes[process];
        if let Some((hold, op)) = node.invocations.note(&event) {
            self.copies.completed(hold, op);
        }
        let (process, n) = (node.process.clone(), node.next);
        node.next += 1;
        state.recorder.record(process, n, at, event);
        self.has_records.store(true, Relaxed);
    }

    /// Notes that a request leaves `process`, which must have recorded its invocation.
    pub fn leaves(
        &self,
        process: Process,
        is_recorded: impl FnOnce(&Invocations) -> bool,
        name: impl FnOnce() -> String,
    ) {
        let mut state = lock(&self.state);
        let State { nodes, sent_early, .. } = &mut *state;
        if !is_recorded(&nodes[process].invocations) {
            sent_early.get_or_insert_with(|| {
                let (process, at) = (&nodes[process].process, self.executor.now().since(START));
                format!("{process} sent {} at {at:?}, and had not recorded the invocation", name())
            });
        }
    }

    /// The first request that left before its invocation was recorded.
    pub fn sent_early(&self) -> Option<String> {
        lock(&self.state).sent_early.clone()
    }

    /// Records an event of the controller.
    pub fn record_own(&self, event: Event) {
        lock(&self.state).recorder.record_own(event);
        self.has_records.store(true, Relaxed);
    }

    /// Completes the history.
    pub fn end(&self) {
        lock(&self.state).recorder.end(&self.live_view, Controller::nodes(&self.plan));
        self.has_records.store(true, Relaxed);
    }

    /// Shows the nemesis the records that it has not seen.
    #[inline]
    pub fn show(&self) {
        if self.has_records.load(Relaxed) {
            self.show_new();
        }
    }

    #[inline(never)]
    fn show_new(&self) {
        self.has_records.store(false, Relaxed);
        // A fault that is woken by a record runs later, so nothing is recorded meanwhile.
        let mut state = lock(&self.state);
        state.recorder.show(&self.live_view);
        self.is_batch_full.store(state.recorder.batched() >= BATCH, Relaxed);
    }

    /// Returns whether the nemesis has seen so many records that they should be handed over.
    ///
    /// Batches are large, because the reader has as much code as the simulation: with small ones, the two evict each
    /// other's code from the processor's caches.
    pub fn is_batch_full(&self) -> bool {
        self.is_batch_full.load(Relaxed)
    }

    /// Hands the batch of records to `reader`; the nemesis has seen them.
    pub fn hand_over(&self, reader: &mut dyn FnMut(Record)) {
        self.is_batch_full.store(false, Relaxed);
        lock(&self.state).recorder.drain().for_each(reader);
    }

    // ---- processes

    /// Starts the node's process, for the first time or again.
    pub fn start(self: &Arc<Self>, node: Process) {
        let now = self.executor.now();
        let (role, incarnation) = {
            let mut state = lock(&self.state);
            let n = &mut state.nodes[node];
            n.incarnation += 1;
            n.is_running = true;
            n.process = ProcessName::of(&n.name, n.incarnation);
            (n.next, n.marked) = (0, now);
            n.invocations = Invocations::default();
            let (role, incarnation) = (n.role, n.incarnation);
            let count = state.nodes.len();
            // The node makes new connections, to the process that runs on the other side.
            for other in 0..count {
                let incarnation = state.nodes[other].incarnation.max(1);
                state.connections[node * count + other] = Connection { incarnation, is_lost: false };
            }
            if role == Some(Role::Worker) {
                // Responses come back over the connections that the worker makes.
                for other in 0..count {
                    state.connections[other * count + node] =
                        Connection { incarnation: state.nodes[node].incarnation, is_lost: false };
                }
            }
            (role, incarnation)
        };
        *lock(&self.clocks[node]) = Clocks::right(START);
        self.servers.starts(node, self.wall(node));
        self.end_periodic_faults(node);
        if let Some(role) = role {
            self.record(node, Event::Started { role, boot_id: "simulated".into(), time_namespace: 0 });
            self.mark_later(node, incarnation, WATERMARK);
        }
    }

    fn mark_later(self: &Arc<Self>, node: Process, incarnation: u32, after: Duration) {
        let mark = move |world: &Arc<World>| {
            if world.node(node, |n| n.is_running && n.incarnation == incarnation) {
                if world.node(node, |n| n.frozen_since.is_none()) {
                    world.record(node, Event::Watermark);
                }
                world.mark_later(node, incarnation, WATERMARK);
            }
        };
        self.executor.after(after, Box::new(mark));
    }

    /// Freezes the node's process.
    pub fn freeze(&self, node: Process) {
        let now = self.executor.now();
        lock(&self.state).nodes[node].frozen_since.get_or_insert(now);
        self.executor.freeze(node);
    }

    /// Thaws the process, which first records a stall, then handles the packets that have arrived.
    pub fn thaw(self: &Arc<Self>, node: Process) {
        let now = self.executor.now();
        let (since, inbox, is_ours) = {
            let mut state = lock(&self.state);
            let n = &mut state.nodes[node];
            let Some(since) = n.frozen_since.take() else { return };
            (since, std::mem::take(&mut n.inbox), n.role.is_some())
        };
        if is_ours {
            if now.since(since) >= STALL_FROM {
                self.record(node, Event::Stall { from: since, to: now, late: StallCause::Tick });
            }
            let tick = move |world: &Arc<World>| {
                if world.is_up(node) {
                    world.record(node, Event::Watermark);
                }
            };
            self.executor.after(TICK, Box::new(tick));
        }
        for packet in inbox {
            packet.payload.arrive(self);
        }
        self.executor.thaw(node);
    }

    /// Ends the process after its last event.
    pub fn retire(&self, node: Process) {
        lock(&self.state).nodes[node].is_running = false;
    }

    /// Kills the process. Its connections are reset, which every reachable node learns at once.
    pub fn kill(self: &Arc<Self>, node: Process) {
        self.executor.kill(node);
        if let Some(witness) = &self.witness {
            lock(witness).killed(node, self.executor.now());
        }
        if node == self.resource() {
            lock(&self.servers.resource).killed(self.executor.now());
        }
        let killed = self.wall(node);
        let ended = {
            let mut state = lock(&self.state);
            let count = state.nodes.len();
            let n = &mut state.nodes[node];
            n.killed = killed;
            n.is_running = false;
            n.frozen_since = None;
            n.inbox.clear();
            // The clients have ended with their process.
            n.invocations.ops().iter().for_each(|(hold, op)| self.copies.completed(*hold, *op));
            let ended = n.role.map(|_| n.process.clone());
            for other in 0..count {
                state.links[node * count + other].reset();
                if !state.links[node * count + other].is_cut() {
                    state.connections[other * count + node].is_lost = true;
                }
            }
            ended
        };
        if let Some(ended) = ended {
            self.record_own(Event::ProcessEnded { ended, code: Some(137) });
        }
    }

    // ---- clocks

    /// The wall clock of a node.
    pub fn wall(&self, node: Process) -> Duration {
        duration(lock(&self.clocks[node]).wall.shows_ns(self.executor.now()))
    }

    /// The clock of an independent node on which its leases run.
    pub fn lease_clock(&self, node: Process) -> Duration {
        match self.servers.is_in_memory {
            true => self.monotonic(node),
            false => self.wall(node),
        }
    }

    /// The monotonic clock of a node.
    pub fn monotonic(&self, node: Process) -> Duration {
        duration(lock(&self.clocks[node]).monotonic.shows_ns(self.executor.now()))
    }
}

#[cfg(test)]
pub(crate) mod tests;
