//! The world: nodes with processes and clocks, and the record of what happens. What they send each other is in `world/network.rs`.

mod network;
mod rhythm;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use history::{Event, HoldId, NodeName, Plan, ProcessName, Record, Role, StallCause, Stamp};
use locks::Owner;
use nemesis::Scene;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::rhythm::Rhythm;
use crate::{
    clock::{Clocks, duration},
    executor::{Executor, Packet, Process},
    link::Link,
    local::{Local, lock},
    servers::Servers,
    truth::{Act, Truth, Witness},
};

/// The first stamp of a run: not 0, which is the controller's.
pub(crate) const START: Stamp = Stamp(1_000_000_000);
/// Between two watermarks of a process.
const WATERMARK: Duration = Duration::from_millis(500);
/// A process that goes on ticks after so long.
const TICK: Duration = Duration::from_millis(10);
/// A process that did not run for so long says so.
const STALL_FROM: Duration = Duration::from_millis(30);

/// A node and the process that it runs.
pub(crate) struct Node {
    pub name: NodeName,
    /// What a process of ours is there for; none for servers of the backend.
    pub role: Option<Role>,
    pub process: ProcessName,
    pub is_running: bool,
    pub frozen_since: Option<Stamp>,
    /// What its wall clock showed when it was killed last.
    pub killed: Duration,
    /// How often it was started.
    pub incarnation: u32,
    /// Packets that arrived while it was frozen.
    inbox: VecDeque<Packet<World>>,
    /// Number of its process's next event.
    next: u64,
    marked: Stamp,
}

/// What one node knows of its connection to another.
#[derive(Debug, Clone, Copy, Default)]
struct Connection {
    /// The start of the other node that it goes to.
    incarnation: u32,
    is_lost: bool,
}

struct State {
    nodes: Vec<Node>,
    links: Vec<Link>,
    connections: Vec<Connection>,
    rng: ChaCha8Rng,
    seq: u64,
    controller_next: u64,
    /// Records that have not been told, and how many of them the nemesis has seen.
    outbox: Vec<Record>,
    seen: usize,
    messages: u64,
}

/// Everything.
pub(crate) struct World {
    pub executor: Executor<World>,
    pub plan: Arc<Plan>,
    pub scene: Scene,
    /// Of each process.
    pub clocks: Vec<Local<Clocks>>,
    rhythms: Vec<Local<Rhythm>>,
    /// Numbers of the nodes by kind: lock nodes, workers, resource, agent.
    pub lock_nodes: usize,
    pub workers: usize,
    state: Local<State>,
    has_records: AtomicBool,
    /// The servers of the backend, and the resource, as models.
    pub servers: Servers,
    /// What really happened, if anybody wants to know.
    witness: Option<Local<Witness>>,
}

impl World {
    /// The nodes of `plan`, none of them started.
    pub fn new(plan: Arc<Plan>, servers: Servers, is_witnessed: bool) -> Arc<World> {
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
                marked: START,
            })
            .collect();
        let count = nodes.len();
        let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
        // A stream of its own: what links draw changes nothing of what clients draw.
        rng.set_stream(u64::MAX);
        let state = State {
            nodes,
            links: (0..count * count).map(|_| Link::default()).collect(),
            connections: vec![Connection { incarnation: 1, is_lost: false }; count * count],
            rng,
            seq: 0,
            controller_next: 0,
            outbox: Vec::with_capacity(crate::TOLD_AT_ONCE * 5 / 4),
            seen: 0,
            messages: 0,
        };
        Arc::new(World {
            // One more for the controller.
            executor: Executor::new(count + 1, START),
            plan,
            scene: Scene::new(),
            clocks: (0..count).map(|_| Local::new(Clocks::right(START))).collect(),
            rhythms: (0..count).map(|_| Local::default()).collect(),
            lock_nodes,
            workers,
            state: Local::new(state),
            has_records: AtomicBool::new(false),
            servers,
            witness: is_witnessed.then(Local::default),
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
        lock(&self.state).nodes.iter().position(|node| node.name == *name)
    }

    /// Looks at a node.
    pub fn node<T>(&self, node: Process, look: impl FnOnce(&Node) -> T) -> T {
        look(&lock(&self.state).nodes[node])
    }

    pub fn is_up(&self, node: Process) -> bool {
        self.node(node, |n| n.is_running && n.frozen_since.is_none())
    }

    pub fn messages(&self) -> u64 {
        lock(&self.state).messages
    }

    /// Draws from the world's own source.
    pub fn draw(&self, range: std::ops::RangeInclusive<Duration>) -> Duration {
        let (from, to) = (range.start().as_nanos() as u64, range.end().as_nanos() as u64);
        Duration::from_nanos(lock(&self.state).rng.random_range(from..=to))
    }

    // ---- the record

    /// An event of a process of ours, now.
    pub fn record(&self, process: Process, event: Event) -> Stamp {
        let at = self.executor.now();
        self.record_at(process, at, event);
        at
    }

    /// An event of a process of ours, at a stamp that it took before.
    pub fn record_at(&self, process: Process, at: Stamp, event: Event) {
        if let Some(witness) = &self.witness {
            lock(witness).see(process, at, &event, |witness, key| self.owner(witness, key));
        }
        let mut state = lock(&self.state);
        let node = &mut state.nodes[process];
        let (process, n) = (node.process.clone(), node.next);
        node.next += 1;
        self.put(&mut state, process, n, at, event);
    }

    /// An event of the controller, whose stamps order nothing.
    pub fn own(&self, event: Event) {
        let mut state = lock(&self.state);
        let n = state.controller_next;
        state.controller_next += 1;
        self.put(&mut state, "controller".into(), n, Stamp(0), event);
    }

    fn put(&self, state: &mut State, process: ProcessName, n: u64, at: Stamp, event: Event) {
        let seq = state.seq;
        state.seq += 1;
        state.outbox.push(Record { seq, process, n, at, event });
        self.has_records.store(true, Relaxed);
    }

    /// Shows the nemesis what was recorded since the last time.
    pub fn look_on(&self) {
        if !self.has_records.load(Relaxed) {
            return;
        }
        self.has_records.store(false, Relaxed);
        // Whoever is woken by what it sees runs later, and so records nothing meanwhile.
        let mut state = lock(&self.state);
        let State { outbox, seen, .. } = &mut *state;
        outbox[*seen..].iter().for_each(|record| self.scene.see(record));
        *seen = outbox.len();
    }

    /// Tells what was recorded and not told yet, if it is `least` records or more; the nemesis has seen it.
    ///
    /// Many at a time, because whoever is told has as much code as the simulation: the two would drive each other out of the processor's
    /// caches at every record.
    pub fn tell(&self, least: usize, told: &mut dyn FnMut(Record)) {
        let mut records = {
            let mut state = lock(&self.state);
            if state.outbox.len() < least {
                return;
            }
            state.seen = 0;
            std::mem::take(&mut state.outbox)
        };
        records.drain(..).for_each(told);
        lock(&self.state).outbox = records;
    }

    // ---- the truth

    fn owner(&self, witness: &Witness, key: &history::Key) -> Option<HoldId> {
        let key = locks::Key::new(key.as_str());
        self.servers.owner(&key, |node| self.wall(node), |owner| witness.whose(owner))
    }

    /// A process asks for something that `owner` may come to own.
    pub fn asks(&self, process: Process, owner: Option<&Owner>) {
        if let (Some(witness), Some(owner)) = (&self.witness, owner) {
            lock(witness).asks(process, owner);
        }
    }

    /// A request arrives at the resource.
    pub fn acts(&self, hold: HoldId, key: &str, number: u64, is_write: bool) {
        if let Some(witness) = &self.witness {
            let key = history::Key::new(key);
            let mut witness = lock(witness);
            let owner = self.owner(&witness, &key);
            witness.truth.acts.push(Act { hold, key, number, at: self.executor.now(), is_write, owner });
        }
    }

    /// The resource was started again: what had a larger number than this never reached its disk.
    pub fn acts_undone(&self, durable: u64) {
        if let Some(witness) = &self.witness {
            lock(witness).truth.acts.retain(|act| act.number <= durable);
        }
    }

    /// A server has done something: who owns each key now?
    pub fn look_at_owners(&self) {
        let Some(witness) = &self.witness else { return };
        let now = self.executor.now();
        for key in (0..self.plan.workload.keys).map(|k| history::Key::new(format!("k{k}"))) {
            let mut witness = lock(witness);
            let owner = self.owner(&witness, &key);
            witness.owned(&key, now, owner);
        }
    }

    /// What was witnessed.
    pub fn truth(&self) -> Option<Truth> {
        self.witness.as_ref().map(|witness| lock(witness).truth.clone())
    }

    // ---- processes

    /// Starts the node's process, anew or for the first time.
    pub fn start(self: &Arc<Self>, node: Process) {
        let now = self.executor.now();
        let (role, incarnation) = {
            let mut state = lock(&self.state);
            let n = &mut state.nodes[node];
            n.incarnation += 1;
            n.is_running = true;
            n.process = ProcessName::of(&n.name, n.incarnation);
            (n.next, n.marked) = (0, now);
            let (role, incarnation) = (n.role, n.incarnation);
            let count = state.nodes.len();
            // Its own connections are new, and go to whatever runs on the other side.
            for other in 0..count {
                let incarnation = state.nodes[other].incarnation.max(1);
                state.connections[node * count + other] = Connection { incarnation, is_lost: false };
            }
            if role == Some(Role::Worker) {
                // Answers come back over the connections that it makes.
                for other in 0..count {
                    state.connections[other * count + node] =
                        Connection { incarnation: state.nodes[node].incarnation, is_lost: false };
                }
            }
            (role, incarnation)
        };
        *lock(&self.clocks[node]) = Clocks::right(START);
        self.quiet(node);
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

    /// Lets it go on: it notices first that it did not run, then takes what has arrived.
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
            packet.load.arrive(self);
        }
        self.executor.thaw(node);
    }

    /// Its process has said its last word, and exits.
    pub fn retire(&self, node: Process) {
        lock(&self.state).nodes[node].is_running = false;
    }

    /// Kills it: its connections are reset, which whoever can be reached learns at once.
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
            self.own(Event::ProcessEnded { ended, code: Some(137) });
        }
    }

    // ---- clocks

    /// What the wall clock of a node shows.
    pub fn wall(&self, node: Process) -> Duration {
        duration(lock(&self.clocks[node]).wall.shows_ns(self.executor.now()))
    }

    /// What its monotonic clock shows.
    pub fn monotonic(&self, node: Process) -> Duration {
        duration(lock(&self.clocks[node]).monotonic.shows_ns(self.executor.now()))
    }
}
