//! A record of a correct lock without faults.

use std::{cmp::Reverse, collections::BinaryHeap, path::Path};

use anyhow::Context;
use history::{
    Arm, ArmDecision, ArmReadAnswer, ArmWriteAnswer, ClientId, Event, HoldId, Key, Mode, NodeAnswer, NodeName, OpId,
    Plan, ProcessName, Record, RequestKind, Role, Stamp, Token, Writer,
};

const WORKERS: u32 = 4;
const ARMS: [Arm; 3] = [Arm::Off, Arm::Writes, Arm::Reads];
const LEASE_NS: u64 = 2_000_000_000;
/// The shortest time between two events of a client.
const STEP: u64 = 100_000;
/// The time for each client between two events of it: together they make 200,000 events in a second.
const STEP_OF_EACH: u64 = 5_000;
/// The time between two watermarks of a process.
const BEAT: u64 = 100_000_000;

/// One process of the record.
struct Process {
    name: ProcessName,
    n: u64,
    beat: u64,
}

struct Recorder {
    writer: Writer,
    seq: u64,
    now: u64,
    processes: Vec<Process>,
}

impl Recorder {
    fn add(&mut self, process: usize, event: Event) -> anyhow::Result<()> {
        let Process { name, n, .. } = &mut self.processes[process];
        let at = Stamp(if process == CONTROLLER { 0 } else { self.now });
        let record = Record { seq: self.seq, process: name.clone(), n: *n, at, event };
        (self.seq, *n) = (self.seq + 1, *n + 1);
        Ok(self.writer.append(&record)?)
    }

    /// Lets every process that was silent say that it has reported everything.
    fn beat(&mut self) -> anyhow::Result<()> {
        for process in CONTROLLER + 1..self.processes.len() {
            if self.now >= self.processes[process].beat + BEAT {
                self.processes[process].beat = self.now;
                self.add(process, Event::Watermark)?;
            }
        }
        Ok(())
    }
}

/// The events of a critical section.
const STEPS: u32 = 11;

const CONTROLLER: usize = 0;
const AGENT: usize = 1;
const RESOURCE: usize = 2;

/// A client on its way through its critical sections.
struct Client {
    process: usize,
    sections: u64,
    key: u32,
    hold: HoldId,
    step: u32,
    number: u64,
    /// When the attempt was sent.
    sent: u64,
}

impl Client {
    fn new(process: usize, key: u32) -> Client {
        Client { process, sections: 0, key, hold: HoldId(0), step: 0, number: 0, sent: 0 }
    }
}

#[derive(Default, Clone, Copy)]
struct State {
    token: u64,
    version: u64,
    value: u64,
}

/// Writes about `events` events, and returns their number.
pub fn write(path: &Path, events: u64, keys: u32, clients: u32) -> anyhow::Result<u64> {
    let names = ["controller".to_owned(), "agent".to_owned(), "resource".to_owned()];
    let workers = (1..=WORKERS).map(|n| format!("worker-{n}"));
    let processes = names.into_iter().chain(workers).map(|name| Process { name: name.as_str().into(), n: 0, beat: 0 });
    let mut to = Recorder { writer: Writer::create(path)?, seq: 0, now: 1_000_000, processes: processes.collect() };
    let plan = Box::new(plan_of(keys, clients)?);
    to.add(CONTROLLER, Event::Plan { run: "generated".into(), plan, made_by: None })?;
    for process in AGENT..to.processes.len() {
        to.now += 1_000;
        let role = match process {
            AGENT => Role::Agent,
            RESOURCE => Role::Resource,
            _ => Role::Worker,
        };
        to.add(process, Event::Started { role, boot_id: "one".into(), time_namespace: 1 })?;
    }
    let holds = sections(&mut to, events, keys, clients)?;
    for process in RESOURCE + 1..to.processes.len() {
        to.now += 1_000;
        let own = holds[process - RESOURCE - 1];
        to.add(process, Event::Sections { offered: own, done: own, dropped: 0 })?;
        to.add(process, Event::Finished)?;
    }
    to.now += 1_000;
    to.add(RESOURCE, Event::Finished)?;
    to.add(AGENT, Event::Finished)?;
    for process in AGENT..to.processes.len() {
        let ended = to.processes[process].name.clone();
        to.add(CONTROLLER, Event::ProcessEnded { ended, code: None })?;
    }
    to.add(CONTROLLER, Event::End)?;
    to.writer.flush()?;
    Ok(to.seq)
}

/// The events that a worker reports of one critical section.
pub fn section() -> Vec<Event> {
    let (mut client, mut state, mut number) = (Client::new(RESOURCE + 1, 0), State::default(), 0);
    client.hold = HoldId::of(0, 1);
    let mut of_worker = Vec::new();
    while client.step < STEPS {
        let at = (1_000_000 + u64::from(client.step) * STEP, STEP);
        let (process, event) = event(&mut client, 0, &mut state, &Key::from("k0"), &mut number, at);
        client.step += 1;
        of_worker.extend((process != RESOURCE).then_some(event));
    }
    of_worker
}

/// All critical sections; returns how many each worker had.
fn sections(to: &mut Recorder, events: u64, keys: u32, clients: u32) -> anyhow::Result<[u64; WORKERS as usize]> {
    let mut all: Vec<Client> =
        (0..clients).map(|client| Client::new(RESOURCE + 1 + (client % WORKERS) as usize, client % keys)).collect();
    let mut states = vec![State::default(); keys as usize];
    let names: Vec<Key> = (0..keys).map(|key| Key::from(format!("k{key}").as_str())).collect();
    let (mut made, mut holds, mut number) = ([0; WORKERS as usize], [0; WORKERS as usize], 0);
    // One key is passed from client to client. With more keys than clients, each client has keys of its own.
    let at_once = if keys < clients { 1 } else { clients };
    let step = STEP.max(STEP_OF_EACH * u64::from(at_once));
    let mut due: BinaryHeap<Reverse<(u64, u32)>> =
        (0..at_once).map(|client| Reverse((to.now + u64::from(client) * 997, client))).collect();
    while let Some(Reverse((at, client))) = due.pop() {
        to.now = to.now.max(at) + 1;
        to.beat()?;
        let id = client;
        let client = &mut all[id as usize];
        if client.step == 0 {
            if to.seq >= events {
                continue;
            }
            let worker = client.process - RESOURCE - 1;
            made[worker] += 1;
            client.hold = HoldId::of(worker as u32, made[worker]);
        }
        let state = &mut states[client.key as usize];
        let (process, event) = event(client, id, state, &names[client.key as usize], &mut number, (to.now, step));
        to.add(process, event)?;
        client.step += 1;
        let next = if client.step == STEPS {
            (client.step, client.sections) = (0, client.sections + 1);
            holds[client.process - RESOURCE - 1] += 1;
            // Each client goes round its own keys: every one of them has one client.
            let next = client.key + clients;
            client.key = if next < keys { next } else { id % keys };
            if at_once == 1 { (id + 1) % clients } else { id }
        } else {
            id
        };
        due.push(Reverse((to.now + step, next)));
    }
    Ok(holds)
}

/// The event of the client's present step, and the process that reports it.
fn event(
    client: &mut Client,
    id: u32,
    state: &mut State,
    key: &Key,
    number: &mut u64,
    (now, step): (u64, u64),
) -> (usize, Event) {
    let (hold, key, process) = (client.hold, key.clone(), client.process);
    let answers = |answer| (1..=5).map(|n| (NodeName::from(format!("redis-{n}").as_str()), answer)).collect();
    let token = Some(Token(state.token + u64::from(client.step < 2)));
    let event = match client.step {
        0 => {
            client.sent = now;
            Event::Acquire {
                client: ClientId(id),
                attempt: hold,
                key,
                intended: Stamp(now),
                mode: Mode::Write,
                above: None,
            }
        }
        1 => {
            state.token += 1;
            Event::Acquired {
                attempt: hold,
                token,
                lease_ns: LEASE_NS,
                granted_after: Stamp(client.sent),
                promised_from: None,
                place: None,
                valid_ns: LEASE_NS - LEASE_NS / 100 - 2_000_000 - 2 * (now - client.sent),
                answers: answers(NodeAnswer::Granted),
            }
        }
        2 => Event::Read { hold, op: OpId(1) },
        6 => Event::Write { hold, op: OpId(2) },
        3 | 7 => {
            *number += 1;
            client.number = *number;
            let is_write = client.step == 7;
            let base = is_write.then_some(state.version);
            if is_write {
                (state.version, state.value) = (*number, state.value + 1);
            }
            let decision = |arm: Arm| ArmDecision {
                arm,
                admitted: true,
                seen: seen(arm, *state, is_write),
                base,
                version: state.version,
                value: state.value,
            };
            let event = Event::Admission {
                number: *number,
                key,
                kind: if is_write { RequestKind::Write } else { RequestKind::Read },
                hold: Some(hold),
                op: Some(OpId(1 + u64::from(is_write))),
                token,
                deadline: None,
                repeat: false,
                arms: ARMS.map(decision).to_vec(),
            };
            return (RESOURCE, event);
        }
        4 => {
            let answer = |arm| {
                let seen = match arm {
                    Arm::Reads => token,
                    arm => seen(arm, *state, false),
                };
                ArmReadAnswer { arm, version: state.version, seen }
            };
            Event::ReadOk { hold, op: OpId(1), number: client.number, arms: Some(ARMS.map(answer).to_vec()) }
        }
        5 => Event::Work { hold, planned_ns: step / 2 },
        8 => {
            // `seen` is the token before the write, which registered its own.
            let answer = |arm| ArmWriteAnswer { arm, admitted: true, seen: seen(arm, *state, true) };
            let arms = Some(ARMS.map(answer).to_vec());
            let event = Event::WriteOk { hold, op: OpId(2), number: client.number, arms };
            return (process, event);
        }
        9 => Event::Release { hold },
        _ => Event::Released { hold, removed: true, answers: answers(NodeAnswer::Done) },
    };
    (process, event)
}

/// The largest token that an arm has registered before a request of the present hold.
fn seen(arm: Arm, state: State, is_write: bool) -> Option<Token> {
    let before = match arm {
        Arm::Off => return None,
        // The present hold's read has registered its token.
        Arm::Reads if is_write => state.token,
        _ => state.token - 1,
    };
    (before > 0).then_some(Token(before))
}

/// The plan of a record.
///
/// # Errors
/// The format of plans has changed, and this one is out of date.
pub fn plan_of(keys: u32, clients: u32) -> anyhow::Result<Plan> {
    let nodes: Vec<String> = (1..=5).map(|n| format!("redis-{n}")).collect();
    let plan = serde_json::json!({
        "schema": 1, "seed": 1, "cluster": "docker", "backend": "redlock", "tokens": "two-phase", "time": "10s",
        "lease": "2s", "arms": ["off", "writes", "reads"], "fence": "default", "lock_nodes": nodes,
        "servers": {
            "topology": "independent", "promise": "lease", "lease_clock": "wall", "amnesia": "forgets-locks",
            "kill_forgets": true, "shows_waiting": true, "has_leader": false,
            "tokens": ["two-phase", "two-phase-fast", "majority-max", "none"], "port": 6379
        },
        "workload": {
            "workers": WORKERS, "clients_per_worker": clients.div_ceil(WORKERS), "keys": keys, "rate_per_s": 100.0,
            "work": {"from": "50us", "to": "50us"}, "retry_delay": {"from": "50ms", "to": "150ms"},
            "client": "unchecked"
        },
        "activity": {"holds": 2, "clients": if keys < clients { 2 } else { 1 }, "refused": 0},
        "nemesis": [], "schedule": []
    });
    serde_json::from_value(plan).context("the plan of the record")
}
