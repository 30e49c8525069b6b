//! Virtual time: one heap of events, processes that freeze and die, messages that take their time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use history::{
    ArmDecision, ClientId, Event, FaultId, HoldId, Key, NodeName, OpId, Point, ProcessName, RequestKind, Role,
    StallCause, Stamp, Token,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    arms::{Access, Decided, Resource},
    client::{Client, What},
    knobs::{Blow, Knobs, Spot},
    lock::{Ask, Node},
    truth::{Delays, Froze, TrueAct, Truth},
};

/// One unit of time. Coarse, so that equal stamps are common.
pub const UNIT_NS: u64 = 2_500_000;
/// The time of the clock at the start, in units.
const ZERO: u64 = 400;

/// The stamp of an instant.
pub fn stamp(at: u64) -> Stamp {
    Stamp((ZERO + at) * UNIT_NS)
}

/// A process of ours and what it reported.
#[derive(Debug)]
pub struct Process {
    pub name: ProcessName,
    pub alive: bool,
    pub reported: Vec<(u64, Event)>,
    /// From, to, by what.
    pub(super) freezes: Vec<(u64, u64, Froze)>,
    /// Up to when it has said when it did not run.
    pub(super) stalled: u64,
}

pub const AGENT: usize = 0;
pub const RESOURCE: usize = 1;

/// A request to the resource on its way.
#[derive(Debug, Clone)]
pub struct Sent {
    pub client: usize,
    pub epoch: u32,
    pub access: Access,
    pub at: u64,
    /// Its client has made another attempt since it released the hold.
    pub after_next: bool,
    pub delays: Delays,
    pub planned: u64,
    pub back: u64,
    pub lost: bool,
}

/// A request to a lock node on its way.
#[derive(Debug, Clone)]
pub struct Asked {
    pub client: usize,
    pub epoch: u32,
    pub attempt: u64,
    pub key: usize,
    pub ask: Ask,
    pub round: u32,
    pub back: u64,
    pub lost: bool,
}

#[derive(Debug, Clone)]
pub enum Happens {
    Client {
        client: usize,
        epoch: u32,
        what: What,
    },
    Node {
        node: usize,
        asked: Asked,
    },
    Resource(Sent),
    Agent(Event),
    Stalled {
        process: usize,
        from: u64,
        to: u64,
        late: StallCause,
    },
    /// The promise of this client's hold ends, and something is aimed at that instant.
    Ends {
        client: usize,
    },
    Frozen {
        process: usize,
        blow: Blow,
        len: u64,
    },
    Dies {
        worker: usize,
        fault: FaultId,
        len: u64,
    },
    Starts {
        worker: usize,
        fault: FaultId,
    },
    Clocks {
        process: usize,
        wall: i64,
        boot: i64,
    },
}

pub struct World {
    pub k: Knobs,
    pub rng: ChaCha8Rng,
    pub now: u64,
    heap: BinaryHeap<Reverse<(u64, u8, u32, usize)>>,
    /// By the last number of a heap entry: when it was due, and what it is.
    pending: Vec<Option<(u64, Happens)>>,
    pub processes: Vec<Process>,
    /// The process that each worker runs now.
    pub workers: Vec<usize>,
    attempts: Vec<u64>,
    pub clients: Vec<Client>,
    nodes: Vec<Node>,
    resource: Resource,
    pub truth: Truth,
    pub(super) fired: Vec<bool>,
    /// The faults that were requested.
    pub requested: BTreeMap<FaultId, bool>,
}

fn started(role: Role) -> Event {
    Event::Started { role, boot_id: "3f0c".into(), time_namespace: 4_026_531_834 }
}

impl World {
    /// Runs the world of `seed` to its end.
    pub fn run(seed: u64) -> World {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let k = Knobs::draw(&mut rng, seed);
        let mut world = World {
            rng,
            now: 0,
            heap: BinaryHeap::new(),
            pending: Vec::new(),
            processes: Vec::new(),
            workers: Vec::new(),
            attempts: Vec::new(),
            clients: (0..k.workers * k.per_worker).map(|c| Client::new(c, c / k.per_worker)).collect(),
            nodes: (0..k.nodes).map(|_| Node::default()).collect(),
            resource: Resource::default(),
            truth: Truth::default(),
            fired: vec![false; k.aims.len()],
            requested: BTreeMap::new(),
            k,
        };
        world.start();
        while let Some(Reverse((at, _, _, index))) = world.heap.pop() {
            world.now = at;
            if let Some((due, happens)) = world.pending[index].take() {
                world.dispatch(due, happens);
            }
        }
        world.finish();
        world
    }

    pub(super) fn process(&mut self, node: &str, incarnation: u32, role: Role) -> usize {
        let name = ProcessName::of(&NodeName::new(node), incarnation);
        self.processes.push(Process { name, alive: true, reported: Vec::new(), freezes: Vec::new(), stalled: 0 });
        self.attempts.push(0);
        let index = self.processes.len() - 1;
        self.emit(index, started(role));
        index
    }

    fn start(&mut self) {
        self.process("agent", 1, Role::Agent);
        self.process("resource", 1, Role::Resource);
        for w in 0..self.k.workers {
            let p = self.process(&format!("worker-{}", w + 1), 1, Role::Worker);
            self.workers.push(p);
        }
        let mut boot = 0;
        if let Some((suspended, units)) = self.k.clock_step {
            boot = self.rng.random_range(20..60);
            let by = (units * 1_000_000).cast_signed();
            let (wall, step) = if suspended { (by, by) } else { (by, 0) };
            let process = self.workers[0];
            self.push(0, Happens::Clocks { process, wall: 1_000, boot: 7 });
            self.push(boot, Happens::Clocks { process, wall: 1_000 + wall, boot: 7 + step });
        }
        if boot == 0 && self.rng.random_bool(0.1) {
            let process = self.workers[0];
            self.push(0, Happens::Clocks { process, wall: 1_000, boot: 7 });
            self.push(400, Happens::Clocks { process, wall: 1_200, boot: 7 });
        }
        for t in self.k.timed.clone() {
            let process = t.worker.map_or(RESOURCE, |w| self.workers[w]);
            self.push(t.from, Happens::Frozen { process, blow: t.blow, len: t.len });
        }
        for client in 0..self.clients.len() {
            let gap = self.between(self.k.gap);
            self.push(gap, Happens::Client { client, epoch: 0, what: What::Begin });
        }
    }

    /// Makes the final reads, and ends every process in good order.
    fn finish(&mut self) {
        self.now += 1;
        for key in 0..self.k.keys {
            let access = Access { key, write: false, hold: None, op: 0, token: None, base: Vec::new() };
            self.admit(&Sent {
                client: 0,
                epoch: 0,
                access,
                at: self.now,
                after_next: false,
                delays: Delays::new(),
                planned: 0,
                back: 0,
                lost: true,
            });
            for arm in self.k.arms.clone() {
                self.truth.counters.insert((key, arm), self.resource.value(key, arm));
            }
        }
        self.now += 1;
        for p in 0..self.processes.len() {
            if self.processes[p].alive {
                self.emit(p, Event::Finished);
            }
        }
    }

    /// Records a wait on the path of a hold that is neither planned nor caused by a freeze.
    pub fn blur(&mut self, process: usize, hold: u64, after: u64, length: u64) {
        if length > 0 {
            let from = self.now + after;
            self.truth.blurs.push((process, hold, from, from + length));
        }
    }

    /// Returns whether the record surely shows the causes of a hold's delays. No freeze may overlap an unplanned wait.
    pub fn is_sharp(&self, hold: u64) -> bool {
        let hit = |b: &&(usize, u64, u64, u64)| self.processes[b.0].freezes.iter().any(|f| f.0.max(b.2) < f.1.min(b.3));
        let mixed = |p: &Process| {
            p.freezes.iter().any(|f| f.2 == Froze::Stall) && p.freezes.iter().any(|f| f.2 != Froze::Stall)
        };
        let bracketed = self.k.slack > 0 && self.processes.iter().any(mixed);
        let of = |p: &usize| self.processes[*p].freezes.iter().map(|f| (*p, *f)).collect::<Vec<_>>();
        let all: Vec<_> = (0..self.processes.len()).collect::<Vec<_>>().iter().flat_map(of).collect();
        let meets = |(p, a): &(usize, (u64, u64, Froze)), (q, b): &(usize, (u64, u64, Froze))| {
            (p == q || *p == RESOURCE || *q == RESOURCE) && a.2 != b.2 && a.0.max(b.0) < a.1.min(b.1)
        };
        let doubled = all.iter().any(|a| all.iter().any(|b| meets(a, b)));
        self.k.unproved == 0.0
            && !bracketed
            && !doubled
            && !self.truth.blurs.iter().filter(|b| b.1 == hold).any(|b| hit(&b))
    }

    pub fn between(&mut self, (from, to): (u64, u64)) -> u64 {
        self.rng.random_range(from..=to)
    }

    pub fn delay(&mut self) -> u64 {
        self.between(self.k.delay)
    }

    pub fn dither(&mut self) -> u64 {
        self.rng.random_range(0..=self.k.dither)
    }

    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.rng.random_bool(p)
    }

    pub fn emit(&mut self, process: usize, event: Event) {
        self.processes[process].reported.push((self.now, event));
    }

    pub fn push(&mut self, after: u64, happens: Happens) {
        self.queue(self.now + after, self.now + after, happens);
    }

    fn queue(&mut self, due: u64, at: u64, happens: Happens) {
        // A process that runs again reads what has arrived before it looks at its timers.
        let class = match &happens {
            Happens::Client { what, .. } if what.is_timer() => 2,
            Happens::Client { .. } | Happens::Resource(_) => 1,
            _ => u8::from(self.rng.random_bool(0.5)),
        };
        let tie = self.rng.random();
        self.pending.push(Some((due, happens)));
        self.heap.push(Reverse((at, class, tie, self.pending.len() - 1)));
    }

    fn frozen_until(&self, process: usize) -> Option<u64> {
        let mut at = self.now;
        while let Some(f) = self.processes[process].freezes.iter().find(|f| f.0 <= at && at < f.1) {
            at = f.1;
        }
        (at > self.now).then_some(at)
    }

    /// Adds what delayed something that was due at `due` and runs now.
    pub fn charge(&self, process: usize, due: u64, delays: &mut Delays) {
        for unit in due..self.now {
            let covers = |f: &&(u64, u64, Froze)| f.0 <= unit && unit < f.1;
            if let Some(f) = self.processes[process].freezes.iter().filter(covers).min_by_key(|f| f.2) {
                *delays.entry(f.2).or_default() += 1;
            }
        }
    }

    pub fn worker_of(&self, client: usize) -> usize {
        client / self.k.per_worker
    }

    pub fn process_of(&self, client: usize) -> usize {
        self.workers[self.worker_of(client)]
    }

    pub fn new_attempt(&mut self, client: usize) -> u64 {
        let p = self.process_of(client);
        self.attempts[p] += 1;
        HoldId::of(u32::try_from(p).unwrap(), self.attempts[p]).0
    }

    fn dispatch(&mut self, due: u64, happens: Happens) {
        let host = match &happens {
            Happens::Client { client, epoch, .. } => {
                if self.clients[*client].epoch != *epoch {
                    return;
                }
                Some(self.process_of(*client))
            }
            Happens::Resource(_) => Some(RESOURCE),
            Happens::Stalled { process, .. } | Happens::Clocks { process, .. } => Some(*process),
            _ => None,
        };
        if let Some(until) = host.and_then(|p| self.frozen_until(p)) {
            return self.queue(due, until, happens);
        }
        match happens {
            Happens::Client { client, what, .. } => self.step(client, due, what),
            Happens::Node { node, asked } => self.node(node, asked),
            Happens::Resource(sent) => self.arrives(due, sent),
            Happens::Agent(event) => self.emit(AGENT, event),
            Happens::Stalled { process, from, to, late } => self.stalled(process, from, to, late),
            Happens::Ends { client } => self.spot(client, Spot::Ending),
            Happens::Frozen { process, blow, len } => self.freeze(process, blow, len, None),
            Happens::Dies { worker, fault, len } => self.dies(worker, fault, len),
            Happens::Starts { worker, fault } => self.starts(worker, fault),
            Happens::Clocks { process, wall, boot } => {
                if self.processes[process].alive {
                    self.emit(process, Event::Clocks { wall_ns: wall, boot_ns: boot });
                }
            }
        }
    }

    fn node(&mut self, node: usize, asked: Asked) {
        let said = self.nodes[node].handle(
            node,
            self.now,
            asked.ask,
            asked.attempt,
            asked.key,
            &self.k,
            &mut self.rng,
            &mut self.truth,
        );
        if !asked.lost {
            let Asked { client, epoch, attempt, ask, round, back, .. } = asked;
            if ask == Ask::Acquire {
                self.blur(self.process_of(client), attempt, 0, back);
            }
            self.push(back, Happens::Client { client, epoch, what: What::Said { attempt, ask, round, node, said } });
        }
    }

    fn arrives(&mut self, due: u64, mut sent: Sent) {
        self.charge(RESOURCE, due, &mut sent.delays);
        if sent.access.write && sent.access.token.is_none() && self.k.arms.iter().any(|a| a.fences()) {
            let Sent { client, epoch, access, back, .. } = sent;
            let what = What::TurnedAway { hold: access.hold.unwrap_or(0), op: access.op };
            return self.push(back, Happens::Client { client, epoch, what });
        }
        let (number, decided) = self.admit(&sent);
        if sent.lost {
            return;
        }
        let Sent { client, epoch, access, delays, back, .. } = sent;
        for process in [self.process_of(client), RESOURCE] {
            self.blur(process, access.hold.unwrap_or(0), 0, back);
        }
        let what = What::Answered { hold: access.hold.unwrap_or(0), op: access.op, number, decided, delays };
        self.push(back, Happens::Client { client, epoch, what });
    }

    fn admit(&mut self, sent: &Sent) -> (u64, Vec<Decided>) {
        let a = &sent.access;
        let (number, repeat, decided) = self.resource.apply(a, &self.k, &mut self.rng);
        let arms = self.k.arms.iter().zip(&decided);
        let arms = arms
            .map(|(&arm, d)| ArmDecision {
                arm,
                admitted: d.admitted,
                seen: d.seen.map(Token),
                base: d.base,
                version: d.version,
                value: d.value,
            })
            .collect();
        self.emit(
            RESOURCE,
            Event::Admission {
                number,
                key: Key::new(format!("k{}", a.key)),
                kind: if a.write { RequestKind::Write } else { RequestKind::Read },
                hold: a.hold.map(HoldId),
                op: a.hold.map(|_| OpId(a.op.into())),
                token: a.token.map(Token),
                deadline: None,
                repeat,
                arms,
            },
        );
        if let (Some(hold), false) = (a.hold, repeat) {
            let decided = self.k.arms.iter().zip(&decided).map(|(&arm, d)| (arm, d.admitted, d.right)).collect();
            self.truth.acts.push(TrueAct {
                number,
                at: self.now,
                hold,
                write: a.write,
                sent: sent.at,
                after_next: sent.after_next,
                delays: sent.delays.clone(),
                planned: sent.planned,
                decided,
            });
        }
        (number, decided)
    }

    /// Tells a client at a point to go on, after `wait`.
    pub fn release_point(&mut self, client: usize, point: Point, wait: u64) {
        let event = Event::PointReleased { client: ClientId(u32::try_from(client).unwrap()), point };
        self.push(wait, Happens::Agent(event));
    }
}
