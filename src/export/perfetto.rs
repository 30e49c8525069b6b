//! Perfetto: Chrome's JSON trace events. A process for each node, a thread for each client.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    time::Duration,
};

use history::{Arm, ArmWriteAnswer, ClientId, Event, FaultId, FaultPhase, HoldId, NodeName, OpId, Record, Stamp};
use serde_json::{Map, Value, json};

use super::{
    ordered::Item,
    rows::{name, outcome_name, reason_name},
    source::{Holds, Source},
};

/// The thread for a process as a whole. The thread of a client is its number plus 1.
const WHOLE: u64 = 0;

/// An access that has no answer yet.
struct Access {
    op: OpId,
    is_write: bool,
    from: Stamp,
}

/// An attempt, and the hold that came from it.
struct Span {
    node: NodeName,
    from: Stamp,
    is_held: bool,
    access: Option<Access>,
    /// The arrows from the hold, with their starts.
    flows: Vec<u64>,
}

/// A fault, as far as it is known.
#[derive(Default)]
struct FaultSpan {
    kind: &'static str,
    node: String,
    from: Option<Stamp>,
    to: Option<Stamp>,
    is_injected: bool,
    args: Map<String, Value>,
}

/// Writes the trace.
///
/// # Errors
/// The history cannot be read again, or the output cannot be written.
pub fn write(source: &Source, output: &mut dyn Write) -> anyhow::Result<()> {
    let mut trace = Trace {
        source,
        output,
        is_first: true,
        pids: BTreeMap::new(),
        threads: BTreeSet::new(),
        holds: Holds::default(),
        spans: BTreeMap::new(),
        faults: BTreeMap::new(),
        flows: 0,
        writes: BTreeMap::new(),
        last: source.zero,
    };
    write!(trace.output, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{},", json!({"run": source.run}))?;
    writeln!(trace.output, "\"traceEvents\":[")?;
    trace.windows()?;
    for node in &source.plan.lock_nodes {
        trace.pid(node.as_str())?;
    }
    for item in source.ordered()? {
        match item? {
            Item::Record(record) => {
                trace.last = trace.last.max(record.at);
                trace.holds.apply(&record.event);
                trace.record(&record)?;
            }
            Item::Gone(process, at) => trace.gone(&process.node(), at)?,
        }
    }
    trace.faults()?;
    writeln!(trace.output, "\n]}}")?;
    Ok(())
}

struct Trace<'a> {
    source: &'a Source,
    output: &'a mut dyn Write,
    is_first: bool,
    /// The processes of the trace, by node.
    pids: BTreeMap<String, u64>,
    /// The threads that have a name.
    threads: BTreeSet<(u64, u64)>,
    holds: Holds,
    spans: BTreeMap<HoldId, Span>,
    faults: BTreeMap<FaultId, FaultSpan>,
    flows: u64,
    /// The arrows of writes that the resource has not decided yet.
    writes: BTreeMap<(HoldId, OpId), u64>,
    last: Stamp,
}

impl Trace<'_> {
    fn event(&mut self, event: &Value) -> anyhow::Result<()> {
        self.output.write_all(if self.is_first { b"" } else { b",\n" })?;
        self.is_first = false;
        // The error of `serde_json` hides its cause, and the end of a pipe is no error.
        Ok(serde_json::to_writer(&mut *self.output, event).map_err(std::io::Error::from)?)
    }

    /// Microseconds since the run's start.
    fn us(&self, at: Stamp) -> f64 {
        self.source.ns(at) as f64 / 1e3
    }

    /// Microseconds from one stamp to another.
    fn length(from: Stamp, to: Stamp) -> f64 {
        to.since(from).as_nanos() as f64 / 1e3
    }

    fn pid(&mut self, node: &str) -> anyhow::Result<u64> {
        if let Some(pid) = self.pids.get(node) {
            return Ok(*pid);
        }
        let pid = self.pids.len() as u64 + 1;
        self.pids.insert(node.to_owned(), pid);
        self.event(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": node}}))?;
        Ok(pid)
    }

    fn thread(&mut self, node: &str, tid: u64, name: &str) -> anyhow::Result<(u64, u64)> {
        let thread = (self.pid(node)?, tid);
        if self.threads.insert(thread) {
            let (pid, args) = (thread.0, json!({"name": name}));
            self.event(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}))?;
        }
        Ok(thread)
    }

    fn client(&mut self, node: &NodeName, client: ClientId) -> anyhow::Result<(u64, u64)> {
        self.thread(node.as_str(), u64::from(client.0) + 1, &format!("client {client}"))
    }

    fn slice(&mut self, on: (u64, u64), name: &str, span: (Stamp, Stamp), args: Value) -> anyhow::Result<()> {
        let (ts, dur) = (self.us(span.0), Self::length(span.0, span.1));
        self.event(&json!({"ph": "X", "name": name, "pid": on.0, "tid": on.1, "ts": ts, "dur": dur, "args": args}))
    }

    fn instant(&mut self, on: (u64, u64), name: &str, at: Stamp, args: Value) -> anyhow::Result<()> {
        let ts = self.us(at);
        self.event(&json!({"ph": "i", "s": "t", "name": name, "pid": on.0, "tid": on.1, "ts": ts, "args": args}))
    }

    /// One point of an arrow: its start `s`, a step `t`, or its end `f`.
    fn flow(&mut self, on: (u64, u64), ph: &str, id: u64, at: Stamp) -> anyhow::Result<()> {
        let (ts, name) = (self.us(at), "hold to write");
        let (pid, tid) = on;
        let flow =
            json!({"ph": ph, "cat": "flow", "name": name, "id": id, "pid": pid, "tid": tid, "ts": ts, "bp": "e"});
        self.event(&flow)
    }

    /// The double-holder windows of the verdict, on a track of their own.
    fn windows(&mut self) -> anyhow::Result<()> {
        let Some(lock) = self.source.verdicts.properties.get("lock") else { return Ok(()) };
        let verdict = serde_json::to_value(lock)?;
        let windows = verdict["windows"].as_array().cloned().unwrap_or_default();
        for window in windows {
            let (pid, tid) = self.thread("windows", WHOLE, "double-holder windows")?;
            let (kind, ts) = (&window["kind"], window["at_ms"].as_f64().unwrap_or_default() * 1e3);
            let mut args = window.clone();
            if let Some(args) = args.as_object_mut() {
                args.remove("story");
            }
            let event = json!({"ph": "i", "s": "p", "name": kind, "pid": pid, "tid": tid, "ts": ts, "args": args});
            self.event(&event)?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Record) -> anyhow::Result<()> {
        let (at, node) = (record.at, record.process.node());
        match &record.event {
            Event::Fault { fault, kind, node, phase } => {
                self.fault(*fault, kind.name(), node, phase, at);
                return Ok(());
            }
            Event::Stall { from, to, .. } => {
                let on = self.thread(node.as_str(), WHOLE, "process")?;
                return self.slice(on, "stall", (*from, *to), json!({"seq": record.seq}));
            }
            Event::Admission { .. } => return self.admission(record),
            _ => {}
        }
        let Some(id) = record.event.attempt() else { return Ok(()) };
        let Some((client, token)) = self.holds.get(id).map(|hold| (hold.client, hold.token)) else { return Ok(()) };
        let on = self.client(&node, client)?;
        let args = json!({"hold": id, "seq": record.seq});
        match &record.event {
            Event::Acquire { .. } => {
                let span = Span { node, from: at, is_held: false, access: None, flows: Vec::new() };
                self.spans.insert(id, span);
                Ok(())
            }
            Event::Acquired { .. } => {
                self.attempt(on, id, at, "ok", "")?;
                let span = Span { node, from: at, is_held: true, access: None, flows: Vec::new() };
                self.spans.insert(id, span);
                Ok(())
            }
            Event::AcquireFailed { outcome, why, .. } => {
                self.attempt(on, id, at, outcome_name(*outcome), reason_name(*why))
            }
            Event::Release { .. } | Event::GaveUp { .. } => {
                let end = name(&record.event).unwrap_or_default();
                self.hold_ends(on, id, at, end, token.map(|token| token.0))?;
                self.instant(on, end, at, args)
            }
            Event::Read { op, .. } | Event::Write { op, .. } => {
                let is_write = matches!(record.event, Event::Write { .. });
                if let Some(span) = self.spans.get_mut(&id) {
                    span.access = Some(Access { op: *op, is_write, from: at });
                }
                if is_write {
                    self.flows += 1;
                    let flow = self.flows;
                    self.writes.insert((id, *op), flow);
                    if let Some(span) = self.spans.get_mut(&id) {
                        span.flows.push(flow);
                    }
                }
                Ok(())
            }
            Event::ReadOk { number, .. } => self.answered(on, id, at, json!({"number": number})),
            Event::WriteOk { number, arms, .. } => {
                let arms: Map<String, Value> = arms.iter().flatten().map(answered).collect();
                self.answered(on, id, at, json!({"number": number, "arms": arms}))
            }
            Event::AccessFailed { outcome, detail, .. } => {
                self.answered(on, id, at, json!({"outcome": outcome, "detail": detail}))
            }
            event => match name(event) {
                Some(name) => self.instant(on, name, at, args),
                None => Ok(()),
            },
        }
    }

    fn attempt(&mut self, on: (u64, u64), id: HoldId, at: Stamp, outcome: &str, why: &str) -> anyhow::Result<()> {
        let Some(span) = self.spans.remove(&id) else { return Ok(()) };
        let key = self.holds.get(id).map(|hold| hold.key.clone());
        let args = json!({"attempt": id, "key": key, "outcome": outcome, "why": why});
        self.slice(on, "acquire", (span.from, at), args)
    }

    fn hold_ends(
        &mut self,
        on: (u64, u64),
        id: HoldId,
        at: Stamp,
        end: &str,
        token: Option<u64>,
    ) -> anyhow::Result<()> {
        let Some(span) = self.spans.remove(&id) else { return Ok(()) };
        let Some(key) = self.holds.get(id).map(|hold| hold.key.clone()) else { return Ok(()) };
        if !span.is_held {
            return self.slice(on, "acquire", (span.from, at), json!({"attempt": id, "key": key, "outcome": end}));
        }
        let args = json!({"hold": id, "key": key, "token": token, "end": end});
        self.slice(on, &format!("hold {key}"), (span.from, at), args)?;
        for flow in span.flows {
            self.flow(on, "s", flow, span.from)?;
        }
        Ok(())
    }

    /// Writes the slice of an access that was answered.
    fn answered(&mut self, on: (u64, u64), id: HoldId, at: Stamp, args: Value) -> anyhow::Result<()> {
        let Some(access) = self.spans.get_mut(&id).and_then(|span| span.access.take()) else { return Ok(()) };
        self.slice(on, if access.is_write { "write" } else { "read" }, (access.from, at), args)?;
        // An arrow of a write that the resource decides later steps here all the same.
        match self.writes.get(&(id, access.op)).copied() {
            Some(flow) if access.is_write => self.flow(on, "t", flow, access.from),
            _ => Ok(()),
        }
    }

    /// The decision of the resource, to which the arrow of its write leads.
    fn admission(&mut self, record: &Record) -> anyhow::Result<()> {
        let Event::Admission { number, key, kind, hold, op, token, deadline, repeat, arms } = &record.event else {
            return Ok(());
        };
        let on = self.thread(record.process.node().as_str(), WHOLE + 1, "decisions")?;
        let decided: Map<String, Value> = arms.iter().map(|arm| told(arm.arm, arm.admitted)).collect();
        let args = json!({
            "number": number, "key": key, "hold": hold, "op": op, "token": token, "deadline": deadline,
            "repeat": repeat, "arms": decided, "seq": record.seq,
        });
        let name = serde_json::to_value(kind)?;
        // An arrow needs a slice with a length; the decision itself is one instant.
        let span = (record.at, record.at.plus(Duration::from_micros(1)));
        self.slice(on, name.as_str().unwrap_or_default(), span, args)?;
        if let (Some(hold), Some(op), false) = (hold, op, repeat)
            && let Some(flow) = self.writes.get(&(*hold, *op)).copied()
        {
            self.flow(on, "f", flow, record.at)?;
        }
        Ok(())
    }

    fn fault(&mut self, id: FaultId, kind: &'static str, node: &NodeName, phase: &FaultPhase, at: Stamp) {
        let fault = self.faults.entry(id).or_default();
        fault.kind = kind;
        fault.node = node.to_string();
        match phase {
            FaultPhase::Requested { asked_ns, .. } => {
                fault.from = Some(at);
                fault.args.insert("asked_ms".into(), json!(*asked_ns as f64 / 1e6));
            }
            FaultPhase::Unplanned { since } => fault.from = Some(*since),
            FaultPhase::Injected => fault.is_injected = true,
            FaultPhase::Healed => fault.to = Some(at),
            FaultPhase::UnplannedOver { since } => fault.to = Some(*since),
            FaultPhase::Proved { from, to } => {
                let proved = [*from, *to].map(|at| self.source.ns(at) as f64 / 1e6);
                fault.args.insert("proved_ms".into(), json!(proved));
            }
            FaultPhase::Unproved { why } => {
                fault.args.insert("unproved".into(), json!(why));
                // A fault that found no process was never on, and has no heal.
                fault.to = fault.to.or((!fault.is_injected).then_some(at));
            }
            FaultPhase::MissedTarget => drop(fault.args.insert("missed_target".into(), json!(true))),
            _ => {}
        }
    }

    /// Faults may overlap on a node, so they are slices of their own track: nestable asynchronous events.
    fn faults(&mut self) -> anyhow::Result<()> {
        for (id, fault) in std::mem::take(&mut self.faults) {
            let Some(from) = fault.from else { continue };
            let (pid, to) = (self.pid(&fault.node)?, fault.to.unwrap_or(self.last).max(from));
            let (from, to, name) = (self.us(from), self.us(to), fault.kind);
            let begin = json!({
                "ph": "b", "cat": "fault", "id": id, "name": name, "pid": pid, "tid": WHOLE, "ts": from,
                "args": fault.args,
            });
            self.event(&begin)?;
            let end = json!({"ph": "e", "cat": "fault", "id": id, "name": name, "pid": pid, "tid": WHOLE, "ts": to});
            self.event(&end)?;
        }
        Ok(())
    }

    /// Ends what a process that is gone has left open.
    fn gone(&mut self, node: &NodeName, at: Stamp) -> anyhow::Result<()> {
        let left = self.spans.iter().filter(|(_, span)| span.node == *node);
        let left: Vec<HoldId> = left.map(|(id, _)| *id).collect();
        for id in left {
            let Some((client, token)) = self.holds.get(id).map(|hold| (hold.client, hold.token)) else { continue };
            let on = self.client(node, client)?;
            self.answered(on, id, at, json!({"outcome": "no answer"}))?;
            self.hold_ends(on, id, at, "process ended", token.map(|token| token.0))?;
        }
        Ok(())
    }
}

fn told(arm: Arm, admitted: bool) -> (String, Value) {
    (arm.name().to_owned(), json!(if admitted { "admitted" } else { "refused" }))
}

fn answered(answer: &ArmWriteAnswer) -> (String, Value) {
    told(answer.arm, answer.admitted)
}
