//! Histories judged by hand: `tests/corpus/<name>.jsonl`, and beside each what must be said of it, by JSON pointer into
//! the properties (`/lock/windows/0/causes`).
//!
//! They are told with `Tale`, at true sizes: a lease of 2 s, stamps in milliseconds. After a change of a tale, `cargo
//! test -p lock-checker --test oracle -- --ignored write_the_corpus` writes the files anew; the expectations are
//! written by hand.

mod claims;
mod resource;

use std::{collections::BTreeMap, fs, path::PathBuf};

use history::{
    ArmReadAnswer, ArmWriteAnswer, ClientId, Event, FailureReason, FaultId, FaultKind, FaultPhase, HoldId, Key, Mode,
    NodeAnswer, NodeName, OpId, Outcome, ProcessName, Reader, Record, RequestKind, Role, StallCause, Stamp, Tail,
    Token,
};
use serde_json::Value;

use crate::{model, reported};

/// Returns the directory of the corpus.
pub(crate) fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// A history that is written event by event.
struct Tale {
    plan: history::Plan,
    told: Vec<(u64, String, Event)>,
    number: u64,
    /// Processes that are killed, and never finish.
    killed: Vec<&'static str>,
}

/// The facts about one Redis server.
const SERVERS: &str = "servers = { topology = \"independent\", promise = \"lease\", lease_clock = \"wall\", \
    amnesia = \"forgets-locks\", kill_forgets = true, shows_waiting = true, has_leader = false, \
    tokens = [\"counter\", \"none\"], port = 6379 }\n";

const START_MS: u64 = 10_000;

/// A hold: who, its id, its token.
#[derive(Clone, Copy)]
struct Holder {
    worker: &'static str,
    client: u32,
    id: u64,
    token: u64,
}

const A: Holder = Holder { worker: "worker-1", client: 0, id: 1, token: 41 };
const B: Holder = Holder { worker: "worker-2", client: 1, id: 1_000_000_001, token: 42 };
const C: Holder = Holder { worker: "worker-3", client: 2, id: 2_000_000_001, token: 43 };

/// The decisions of the arms `off` and `writes`: whether the arm admitted the request, and its version and value
/// afterwards.
type Arms = [(bool, u64, u64); 2];

impl Tale {
    fn new(pause_ms: Option<u64>) -> Tale {
        let schedule = match pause_ms {
            Some(ms) => format!(
                "[[schedule]]\nid = 1\ntarget = {{ node = \"worker-1\" }}\nwhen = {{ after-heal = \"100ms\" }}\n\
                 fault = {{ kind = \"pause\", for = \"{ms}ms\" }}\n"
            ),
            None => "schedule = []\n".into(),
        };
        let (list, tables) = if pause_ms.is_some() { ("", schedule.as_str()) } else { (schedule.as_str(), "") };
        let text = format!(
            "schema = 1\nseed = 42\ncluster = \"docker\"\nbackend = \"redis\"\ntokens = \"counter\"\ntime = \"30s\"\n\
             lease = \"2s\"\narms = [\"off\", \"writes\"]\nfence = \"default\"\nlock_nodes = [\"redis\"]\n\
             {SERVERS}nemesis = []\n{list}[workload]\nworkers = 3\nclients_per_worker = 1\nkeys = 1\nrate_per_s = 3.0\n\
             work = {{ from = \"100ms\", to = \"200ms\" }}\nretry_delay = {{ from = \"50ms\", to = \"150ms\" }}\n\
             client = \"unchecked\"\n[activity]\nholds = 0\nclients = 0\nrefused = 0\n{tables}"
        );
        let plan = history::Plan::from_toml(&text).expect("the plan of a tale is valid");
        let mut tale = Tale { plan, told: Vec::new(), number: 0, killed: Vec::new() };
        for (process, role) in [("agent", Role::Agent), ("resource", Role::Resource)] {
            tale.started(process, role);
        }
        for worker in ["worker-1", "worker-2", "worker-3"] {
            tale.started(worker, Role::Worker);
        }
        tale
    }

    fn started(&mut self, process: &str, role: Role) {
        let started = Event::Started { role, boot_id: "3f0c".into(), time_namespace: 4_026_531_834 };
        self.at(0, process, started);
    }

    fn at(&mut self, ms: u64, process: &str, event: Event) -> &mut Self {
        self.told.push((ms, process.into(), event));
        self
    }

    fn acquire(&mut self, ms: u64, h: Holder) -> &mut Self {
        let (client, attempt, key) = (ClientId(h.client), HoldId(h.id), Key::from("k0"));
        let intended = stamp(ms);
        self.at(ms, h.worker, Event::Acquire { client, attempt, key, intended, mode: Mode::Write, above: None })
    }

    fn acquired(&mut self, sent: u64, ms: u64, h: Holder) -> &mut Self {
        let answers = vec![(NodeName::from("redis"), NodeAnswer::Granted)];
        let acquired = Event::Acquired {
            attempt: HoldId(h.id),
            token: Some(Token(h.token)),
            lease_ns: 2_000_000_000,
            granted_after: stamp(sent),
            promised_from: None,
            place: None,
            valid_ns: (sent + 1_978).saturating_sub(ms) * 1_000_000,
            answers,
        };
        self.acquire(sent, h).at(ms, h.worker, acquired)
    }

    fn held(&mut self, sent: u64, ms: u64, h: Holder) -> &mut Self {
        let answers = vec![(NodeName::from("redis"), NodeAnswer::Refused)];
        let (attempt, outcome, why) = (HoldId(h.id), Outcome::Failed, FailureReason::Held);
        self.acquire(sent, h).at(ms, h.worker, Event::AcquireFailed { attempt, outcome, why, detail: None, answers })
    }

    /// A read or write: sent, decided, answered.
    fn access(
        &mut self,
        h: Holder,
        op: u32,
        ms: [u64; 3],
        base: Option<u64>,
        seen: Option<u64>,
        arms: Arms,
    ) -> &mut Self {
        self.number += 1;
        let (number, hold, op) = (self.number, HoldId(h.id), OpId(op.into()));
        let write = base.is_some();
        let decision = |(arm, (admitted, version, value)): (history::Arm, (bool, u64, u64))| history::ArmDecision {
            arm,
            admitted,
            seen: seen.filter(|_| arm.fences()).map(Token),
            base,
            version,
            value,
        };
        let admission = Event::Admission {
            number,
            key: Key::from("k0"),
            kind: if write { RequestKind::Write } else { RequestKind::Read },
            hold: Some(hold),
            op: Some(op),
            token: Some(Token(h.token)),
            deadline: None,
            repeat: false,
            arms: [history::Arm::Off, history::Arm::Writes].into_iter().zip(arms).map(decision).collect(),
        };
        let both = [history::Arm::Off, history::Arm::Writes].into_iter().zip(arms);
        let shown = |arm: history::Arm| seen.filter(|_| arm.fences()).map(Token);
        let (sent, answered) = if write {
            let told = |(arm, (admitted, ..)): (_, (_, u64, u64))| ArmWriteAnswer { arm, admitted, seen: shown(arm) };
            let arms = Some(both.map(told).collect());
            (Event::Write { hold, op }, Event::WriteOk { hold, op, number, arms })
        } else {
            let told = |(arm, (_, version, _)): (_, (bool, _, u64))| ArmReadAnswer { arm, version, seen: shown(arm) };
            let arms = Some(both.map(told).collect());
            (Event::Read { hold, op }, Event::ReadOk { hold, op, number, arms })
        };
        self.at(ms[0], h.worker, sent).at(ms[1], "resource", admission).at(ms[2], h.worker, answered)
    }

    fn work(&mut self, ms: u64, h: Holder, planned_ms: u64) -> &mut Self {
        self.at(ms, h.worker, Event::Work { hold: HoldId(h.id), planned_ns: planned_ms * 1_000_000 })
    }

    fn release(&mut self, sent: u64, ms: u64, h: Holder, said: NodeAnswer) -> &mut Self {
        let hold = HoldId(h.id);
        let released =
            Event::Released { hold, removed: said == NodeAnswer::Done, answers: vec![(NodeName::from("redis"), said)] };
        self.at(sent, h.worker, Event::Release { hold }).at(ms, h.worker, released)
    }

    fn pause(&mut self, from: u64, to: u64, worker: &str) -> &mut Self {
        let fault = |phase| Event::Fault { fault: FaultId(1), kind: FaultKind::Pause, node: worker.into(), phase };
        let (from_stamp, to_stamp) = (stamp(from), stamp(to));
        let asked_ns = (to - from) * 1_000_000;
        self.at(from - 8, "agent", fault(FaultPhase::Requested { asked_ns, hold: None }))
            .at(from + 14, "agent", fault(FaultPhase::Injected))
            .at(to - 9, "agent", fault(FaultPhase::HealRequested))
            .at(to + 11, "agent", fault(FaultPhase::Healed))
            .at(to + 20, "agent", fault(FaultPhase::Proved { from: from_stamp, to: to_stamp }))
            .at(to + 21, "agent", fault(FaultPhase::HealProved))
            .at(to, worker, Event::Stall { from: from_stamp, to: to_stamp, late: StallCause::Tick })
    }

    /// Idle processes say that they are there, unless they are frozen.
    fn with_watermarks(mut self) -> Tale {
        let last = self.told.iter().map(|t| t.0).max().unwrap_or(0);
        for process in ["agent", "resource", "worker-1", "worker-2", "worker-3"] {
            let frozen = |ms| process == "worker-1" && (2_100..7_100).contains(&ms);
            for ms in (0..=last + 40).step_by(100).filter(|ms| !frozen(*ms)) {
                self.at(ms, process, Event::Watermark);
            }
        }
        self
    }

    /// All of it in the order of the stamps, with a beginning and an end.
    fn records(mut self) -> Vec<Record> {
        let last = self.told.iter().map(|t| t.0).max().unwrap_or(0) + 50;
        let processes: BTreeMap<String, ()> = self.told.iter().map(|t| (t.1.clone(), ())).collect();
        self.told.sort_by_key(|t| t.0);
        let controller = || ProcessName::from("controller");
        let plan = Event::Plan { run: "corpus".into(), plan: Box::new(self.plan), made_by: None };
        let mut all = vec![(controller(), Stamp(0), plan)];
        all.extend(self.told.into_iter().map(|(ms, p, e)| (ProcessName::new(p), stamp(ms), e)));
        let finished = processes.keys().filter(|p| !self.killed.contains(&p.as_str()));
        all.extend(finished.map(|p| (ProcessName::new(p), stamp(last), Event::Finished)));
        all.extend(
            processes
                .keys()
                .map(|p| (controller(), Stamp(0), Event::ProcessEnded { ended: ProcessName::new(p), code: Some(0) })),
        );
        all.push((controller(), Stamp(0), Event::End));
        model::number(all)
    }
}

fn stamp(ms: u64) -> Stamp {
    Stamp((START_MS + ms) * 1_000_000)
}

/// Kleppmann's pause, as the design tells it.
fn pause() -> Tale {
    let mut t = Tale::new(Some(5_000));
    t.acquired(2_001, 2_013, A)
        .access(A, 1, [2_014, 2_015, 2_016], None, None, [(true, 0, 0), (true, 0, 0)])
        .work(2_016, A, 150)
        .pause(2_100, 7_100, "worker-1")
        .held(2_600, 2_601, Holder { id: B.id - 1, ..B })
        .acquired(4_050, 4_051, B)
        .access(B, 1, [4_052, 4_053, 4_054], None, None, [(true, 0, 0), (true, 0, 0)])
        .work(4_054, B, 155)
        .access(B, 2, [4_209, 4_210, 4_211], Some(0), None, [(true, 3, 1), (true, 3, 1)])
        .release(4_212, 4_213, B, NodeAnswer::Done)
        .access(A, 2, [7_101, 7_102, 7_103], Some(0), Some(42), [(true, 4, 1), (false, 3, 1)])
        .release(7_104, 7_105, A, NodeAnswer::Refused);
    t
}

/// The same, and something after it.
fn told_on() -> Tale {
    let mut t = pause();
    t.acquired(7_300, 7_301, C).release(7_400, 7_401, C, NodeAnswer::Done);
    t.with_watermarks()
}

/// Two holds, one after the other.
fn calm() -> Tale {
    let mut t = Tale::new(None);
    t.acquired(100, 102, A)
        .access(A, 1, [103, 104, 105], None, None, [(true, 0, 0), (true, 0, 0)])
        .held(110, 111, Holder { id: B.id - 1, ..B })
        .work(105, A, 150)
        .access(A, 2, [255, 256, 257], Some(0), None, [(true, 2, 1), (true, 2, 1)])
        .release(258, 259, A, NodeAnswer::Done)
        .acquired(300, 301, B)
        .access(B, 1, [302, 303, 304], None, Some(41), [(true, 2, 1), (true, 2, 1)])
        .work(304, B, 100)
        .access(B, 2, [404, 405, 406], Some(2), Some(41), [(true, 4, 2), (true, 4, 2)])
        .release(407, 408, B, NodeAnswer::Done);
    t
}

/// Nothing is frozen: the work takes longer than the lease.
fn overrun() -> Tale {
    let mut t = Tale::new(None);
    t.acquired(100, 102, A)
        .access(A, 1, [103, 104, 105], None, None, [(true, 0, 0), (true, 0, 0)])
        .work(105, A, 2_500)
        .acquired(2_150, 2_151, B)
        .access(B, 1, [2_152, 2_153, 2_154], None, None, [(true, 0, 0), (true, 0, 0)])
        .access(A, 2, [2_605, 2_606, 2_607], Some(0), None, [(true, 3, 1), (true, 3, 1)])
        .release(2_608, 2_609, A, NodeAnswer::Refused)
        .access(B, 2, [2_700, 2_701, 2_702], Some(0), Some(41), [(true, 4, 1), (true, 4, 1)])
        .release(2_703, 2_704, B, NodeAnswer::Done);
    t
}

/// The work ends 278 ms before the promise does. The write is under way for 500 ms, and nothing in the record says why.
fn slow_write() -> Tale {
    let mut t = Tale::new(None);
    t.acquired(100, 102, A)
        .access(A, 1, [103, 104, 105], None, None, [(true, 0, 0), (true, 0, 0)])
        .work(105, A, 1_695)
        .acquired(2_150, 2_151, B)
        .access(B, 1, [2_152, 2_153, 2_154], None, None, [(true, 0, 0), (true, 0, 0)])
        .access(A, 2, [1_800, 2_300, 2_301], Some(0), None, [(true, 3, 1), (true, 3, 1)])
        .release(2_302, 2_303, A, NodeAnswer::Refused)
        .release(2_400, 2_401, B, NodeAnswer::Done);
    t
}

/// The lock grants the key twice while a third worker is paused: that pause explains nothing.
fn forgets_nx() -> Tale {
    let mut t = Tale::new(Some(3_000));
    t.acquired(500, 501, A)
        .pause(400, 3_400, "worker-3")
        .acquired(600, 602, B)
        .access(A, 1, [700, 701, 702], None, None, [(true, 0, 0), (true, 0, 0)])
        .access(B, 1, [703, 704, 705], None, None, [(true, 0, 0), (true, 0, 0)])
        .access(A, 2, [800, 801, 802], Some(0), None, [(true, 3, 1), (true, 3, 1)])
        .access(B, 2, [803, 804, 805], Some(0), Some(41), [(true, 4, 1), (true, 4, 1)])
        .release(900, 901, A, NodeAnswer::Refused)
        .release(1_000, 1_001, B, NodeAnswer::Done);
    t
}

/// A client without the validity check claims what had run out before it read the answer.
fn dead_claim() -> Tale {
    let mut t = Tale::new(Some(2_200));
    t.acquired(1_000, 3_205, A)
        .pause(1_005, 3_205, "worker-1")
        .access(A, 1, [3_206, 3_207, 3_208], None, None, [(true, 0, 0), (true, 0, 0)])
        .access(A, 2, [3_300, 3_301, 3_302], Some(0), None, [(true, 2, 1), (true, 2, 1)])
        .release(3_303, 3_304, A, NodeAnswer::Refused);
    t
}

/// A's release deletes B's key, and C is let in.
fn unsafe_release() -> Tale {
    let mut t = Tale::new(Some(2_500));
    t.acquired(1_000, 1_001, A)
        .pause(1_100, 3_600, "worker-1")
        .acquired(3_100, 3_101, B)
        .access(B, 1, [3_102, 3_103, 3_104], None, None, [(true, 0, 0), (true, 0, 0)])
        .release(3_601, 3_602, A, NodeAnswer::Done)
        .acquired(3_650, 3_651, C)
        .access(C, 1, [3_652, 3_653, 3_654], None, None, [(true, 0, 0), (true, 0, 0)])
        .access(B, 2, [3_700, 3_701, 3_702], Some(0), None, [(true, 3, 1), (true, 3, 1)])
        .access(C, 2, [3_800, 3_801, 3_802], Some(0), Some(42), [(true, 4, 1), (true, 4, 1)])
        .release(3_803, 3_804, B, NodeAnswer::Refused)
        .release(3_805, 3_806, C, NodeAnswer::Done);
    t
}

/// Two holds with one token, and an arm that compares by `<` where `≤` is due.
fn equal_tokens() -> Tale {
    let mut t = Tale::new(None);
    let b = Holder { token: 41, ..B };
    t.acquired(100, 101, A)
        .access(A, 1, [102, 103, 104], None, None, [(true, 0, 0), (true, 0, 0)])
        .access(A, 2, [202, 203, 204], Some(0), None, [(true, 2, 1), (true, 2, 1)])
        .release(205, 206, A, NodeAnswer::Done)
        .acquired(300, 301, b)
        .access(b, 1, [302, 303, 304], None, Some(41), [(true, 2, 1), (true, 2, 1)])
        .access(b, 2, [402, 403, 404], Some(2), Some(41), [(true, 4, 2), (true, 4, 2)])
        .release(405, 406, b, NodeAnswer::Done);
    t
}

/// A write gets no answer, and its client gives up. The key is granted to another client inside the promise.
fn given_up() -> Tale {
    let mut t = Tale::new(None);
    let (hold, op, outcome) = (HoldId(A.id), OpId(2), Outcome::Indeterminate);
    t.acquired(100, 102, A)
        .access(A, 1, [103, 104, 105], None, None, [(true, 0, 0), (true, 0, 0)])
        .at(300, A.worker, Event::Write { hold, op })
        .at(800, A.worker, Event::AccessFailed { hold, op, outcome, detail: "no answer".into() })
        .at(801, A.worker, Event::GaveUp { hold })
        .acquired(900, 902, B)
        .access(B, 1, [903, 904, 905], None, Some(41), [(true, 0, 0), (true, 0, 0)])
        .release(1_000, 1_001, B, NodeAnswer::Done);
    t
}

fn tales() -> Vec<(&'static str, Vec<Record>)> {
    let mut lost = pause().records();
    lost.remove(lost.len() / 2);
    vec![
        ("kleppmann-pause", pause().records()),
        ("none", calm().records()),
        ("overrun", overrun().records()),
        ("slow-write", slow_write().records()),
        ("forgets-nx", forgets_nx().records()),
        ("dead-claim", dead_claim().records()),
        ("unsafe-release", unsafe_release().records()),
        ("equal-tokens", equal_tokens().records()),
        ("given-up", given_up().records()),
        ("used-after-release", claims::used_after_release().records()),
        ("used-after-next-attempt", claims::used_after_next_attempt().records()),
        ("deadline-from-answer", claims::deadline_from_answer().records()),
        ("checked-too-late", claims::checked_too_late().records()),
        ("cut-short", claims::cut_short(None).records()),
        ("cut-short-released", claims::cut_short(Some(2_510)).records()),
        ("killed-at-once", claims::killed_at_once().records()),
        ("minority-claim", claims::minority_claim().records()),
        ("checked-by-slow-clock", claims::checked_by_slow_clock().records()),
        ("event-lost", lost),
        ("truncated", told_on().records()),
        ("truncated-early", told_on().records()),
        ("answers-unrecorded", resource::answers_unrecorded().records()),
        ("answers-refused", resource::answers_refused().records()),
        ("answers-applied", resource::answers_applied().records()),
        ("before-invocation", resource::before_invocation().records()),
        ("after-failed", resource::after_failed().records()),
        ("foreign-token", resource::foreign_token().records()),
        ("arm-missing", resource::arm_missing().records()),
        ("arm-twice", resource::arm_twice().records()),
        ("off-refuses", resource::off_refuses().records()),
        ("token-of-nobody", resource::token_of_nobody().records()),
    ]
}

#[test]
#[ignore = "writes tests/corpus anew"]
fn write_the_corpus() {
    for (name, records) in tales() {
        let lines = records.iter().map(|r| serde_json::to_string(r).unwrap() + "\n");
        let mut text: String = lines.collect();
        let cut = match name {
            // In the middle of a line, after the stale write was decided and everybody had been heard of once more.
            "truncated" => text.rfind("\"event\":\"released\"").map(|at| at + 10),
            "truncated-early" => Some(text.len() / 3),
            _ => None,
        };
        text.truncate(cut.unwrap_or(text.len()));
        fs::write(directory().join(format!("{name}.jsonl")), text).unwrap();
    }
}

#[test]
fn the_corpus_is_judged_as_by_hand() {
    let mut judged = 0;
    for entry in fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jsonl") {
            continue;
        }
        let mut reader = Reader::open(&path).unwrap();
        let records: Vec<_> = reader.by_ref().map(|r| r.expect("every whole line is an event")).collect();
        let (_, json) = reported::judge(records, reader.tail());
        let expected = fs::read(path.with_extension("expected.json"));
        let expected: BTreeMap<String, Value> =
            serde_json::from_slice(&expected.expect("each history has an expectation")).unwrap();
        for (pointer, value) in expected {
            let found = json.pointer(&pointer).or_else(|| json["properties"].pointer(&pointer));
            assert_eq!(found, Some(&value), "{}: {pointer} in {json:#}", path.display());
        }
        judged += 1;
    }
    assert_eq!(judged, tales().len(), "each tale has its file");
}

/// Reading half a line is no reason to lose what came before it.
#[test]
fn a_cut_line_is_a_cut_tail() {
    let mut reader = Reader::open(&directory().join("truncated.jsonl")).unwrap();
    assert!(reader.by_ref().all(|r| r.is_ok()) && reader.tail() == Tail::Cut);
}
