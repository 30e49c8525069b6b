//! The pump: takes what our processes say, makes records of it, shows them to the nemesis and to whoever waits for one.
//!
//! One task owns the history. Lines come up from containers in the order in which each process wrote them; here they get their number
//! and are appended before anybody acts on them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, bail};
use compose::{Output, What};
use history::{Event, FaultPhase, NodeName, Plan, ProcessName, Record, Role, Stamp, Writer};
use nemesis::Scene;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot, watch};

use crate::run_dir::RunDir;

/// How many lines of standard error are kept of each process: a process that floods it must not fill the disk.
const STDERR_LINES: usize = 10_000;

/// One line of a process: `docs/worker-protocol.md`.
#[derive(Deserialize)]
struct Line {
    n: u64,
    at: Stamp,
    #[serde(flatten)]
    event: Event,
}

/// How far the processes of the run have come. Watched by the conductor.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Roles of the processes that have started, by node.
    pub started: BTreeMap<NodeName, Role>,
    /// Workers whose newest process is connected.
    pub ready: BTreeSet<NodeName>,
    /// Workers whose newest process has ended its critical sections.
    pub drained: BTreeSet<NodeName>,
    /// Nodes whose newest process has said `finished`.
    pub finished: BTreeSet<NodeName>,
    /// Versions of the servers, as they gave them.
    pub servers: Vec<(NodeName, String)>,
}

/// Something the conductor must do at once about a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// A process of this worker has started, and knows nothing yet.
    Configure(NodeName),
    /// It is connected.
    Start(NodeName),
}

/// Agents answer in the order in which they were asked.
pub type Stamps = Arc<Mutex<VecDeque<oneshot::Sender<Stamp>>>>;

/// What agents answer to orders, by their numbers.
#[derive(Clone, Default)]
pub struct Answers(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    last: u64,
    orders: BTreeMap<u64, oneshot::Sender<Answered>>,
}

/// What was measured, or why it could not be.
type Answered = Result<serde_json::Value, String>;

impl Answers {
    /// A number for an order, and its answer to come.
    pub fn expect(&self) -> (u64, oneshot::Receiver<Answered>) {
        let (answered, answer) = oneshot::channel();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.last += 1;
        let number = waiting.last;
        waiting.orders.insert(number, answered);
        (number, answer)
    }

    fn answered(&self, number: u64, said: Answered) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).orders.remove(&number);
        // Nobody may wait any more: the nemesis was stopped in between.
        waiting.map(|waiting| waiting.send(said));
    }
}

/// The pump's state.
pub struct Pump {
    writer: Writer,
    own: u64,
    dir: RunDir,
    scene: Arc<Scene>,
    stamps: Stamps,
    answers: Answers,
    progress: watch::Sender<Progress>,
    calls: mpsc::UnboundedSender<Call>,
    to_be_killed: BTreeSet<NodeName>,
    numbers: BTreeMap<ProcessName, u64>,
    stderr: BTreeMap<NodeName, Vec<String>>,
}

const CONTROLLER: &str = "controller";

impl Pump {
    /// Begins the history with the plan. Beside the pump: calls to the conductor.
    pub fn begin(
        dir: &RunDir,
        run: &str,
        plan: &Plan,
        scene: Arc<Scene>,
        stamps: Stamps,
        answers: Answers,
    ) -> anyhow::Result<(Pump, mpsc::UnboundedReceiver<Call>)> {
        let writer = Writer::create(&dir.history())?;
        let (calls, called) = mpsc::unbounded_channel();
        let mut pump = Pump {
            writer,
            own: 0,
            dir: dir.clone(),
            scene,
            stamps,
            answers,
            progress: watch::Sender::default(),
            calls,
            to_be_killed: BTreeSet::new(),
            numbers: BTreeMap::new(),
            stderr: BTreeMap::new(),
        };
        pump.own(Event::Plan { run: run.to_owned(), plan: Box::new(plan.clone()) })?;
        pump.writer.flush()?;
        Ok((pump, called))
    }

    /// How far the processes have come.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// An event of the controller's own; its stamp orders nothing and is 0.
    fn own(&mut self, event: Event) -> anyhow::Result<Record> {
        let record = self.writer.append(CONTROLLER.into(), self.own, Stamp(0), event)?;
        self.own += 1;
        self.scene.see(&record);
        Ok(record)
    }

    /// Takes events until every process has ended, or one ends that should not.
    pub async fn run(&mut self, events: &mut mpsc::Receiver<Output>) -> anyhow::Result<()> {
        loop {
            // Whatever waits for more has been written by then: a history is at most as far behind as one batch.
            let output = match events.try_recv() {
                Ok(output) => output,
                Err(_) => {
                    self.writer.flush()?;
                    match events.recv().await {
                        Some(output) => output,
                        None => return Ok(()),
                    }
                }
            };
            self.take(output)?;
            let progress = self.progress.borrow();
            if !progress.started.is_empty() && progress.started.keys().all(|n| progress.finished.contains(n)) {
                drop(progress);
                return Ok(self.writer.flush()?);
            }
        }
    }

    /// Ends the history: it is whole.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let finished: Vec<_> = self.progress.borrow().finished.iter().cloned().collect();
        for node in finished {
            if let Some(ended) = self.scene.look(|view| view.process(&node)) {
                // Their last word was `finished`; whether they also exited, nobody waited to see.
                self.own(Event::ProcessEnded { ended, code: None })?;
            }
        }
        self.own(Event::End)?;
        Ok(self.writer.flush()?)
    }

    /// What a process said on standard error, for messages and logs.
    pub fn write_logs(&self) -> anyhow::Result<()> {
        for (node, lines) in &self.stderr {
            self.dir.write(&self.dir.log(node.as_str()), lines.join("\n") + "\n")?;
        }
        Ok(())
    }

    fn take(&mut self, output: Output) -> anyhow::Result<()> {
        let process = ProcessName::of(&output.node, output.incarnation);
        match output.what {
            What::Stderr(line) => {
                let lines = self.stderr.entry(output.node).or_default();
                if lines.len() < STDERR_LINES {
                    lines.push(String::from_utf8_lossy(&line).into_owned());
                }
            }
            What::Ended { code } => self.ended(&output.node, process, code)?,
            What::Line(line) => {
                let Line { n, at, event } = serde_json::from_slice(&line).with_context(|| {
                    let text = String::from_utf8_lossy(&line);
                    format!("{process} wrote a line that is no event (docs/worker-protocol.md): `{text}`")
                })?;
                let expected = self.numbers.entry(process.clone()).or_default();
                if n != *expected {
                    bail!("{process} reported its event {n} where {expected} was due: something of the record is lost");
                }
                *expected += 1;
                let record = self.writer.append(process, n, at, event)?;
                self.scene.see(&record);
                self.note(&output.node, &record)?;
            }
        }
        Ok(())
    }

    fn ended(&mut self, node: &NodeName, ended: ProcessName, code: Option<i64>) -> anyhow::Result<()> {
        if self.progress.borrow().finished.contains(node) {
            return Ok(());
        }
        self.own(Event::ProcessEnded { ended: ended.clone(), code })?;
        self.progress.send_modify(|p| {
            p.ready.remove(node);
        });
        if self.to_be_killed.remove(node) {
            return Ok(());
        }
        self.writer.flush()?;
        let code = code.map_or("an unknown code".to_owned(), |c| format!("code {c}"));
        let said = match self.stderr.get(node).map(|lines| lines.as_slice()) {
            None | Some([]) => "it said nothing on standard error".to_owned(),
            Some(lines) => format!("its last words: {}", lines[lines.len().saturating_sub(5)..].join(" | ")),
        };
        bail!("{ended} ended with {code}, and no fault had killed it; {said}")
    }

    /// Tells whom it concerns.
    fn note(&mut self, node: &NodeName, record: &Record) -> anyhow::Result<()> {
        match &record.event {
            Event::Started { role, .. } => {
                let role = *role;
                self.progress.send_modify(|p| {
                    p.started.insert(node.clone(), role);
                    p.ready.remove(node);
                    p.drained.remove(node);
                });
                if role == Role::Worker {
                    let _ = self.calls.send(Call::Configure(node.clone()));
                }
            }
            Event::Ready { servers } => {
                self.progress.send_modify(|p| {
                    p.ready.insert(node.clone());
                    p.servers.clone_from(servers);
                });
                let _ = self.calls.send(Call::Start(node.clone()));
            }
            Event::Sections { .. } => self.progress.send_modify(|p| {
                p.drained.insert(node.clone());
            }),
            Event::Finished => self.progress.send_modify(|p| {
                p.finished.insert(node.clone());
            }),
            Event::Fault { kind, node: target, phase, .. } => {
                match phase {
                    FaultPhase::Requested { .. } if kind.kills() => {
                        self.to_be_killed.insert(target.clone());
                    }
                    FaultPhase::Unproved { .. } => {
                        self.to_be_killed.remove(target);
                    }
                    _ => {}
                }
                self.stamped(record.at)?;
            }
            Event::PointReleased { .. } => self.stamped(record.at)?,
            Event::Obeyed { order, answer, failed } => {
                let nothing = || "the agent gave neither an answer nor a reason".to_owned();
                let said = answer.as_deref().cloned().ok_or_else(|| failed.clone().unwrap_or_else(nothing));
                self.answers.answered(*order, said);
            }
            _ => {}
        }
        Ok(())
    }

    fn stamped(&self, at: Stamp) -> anyhow::Result<()> {
        let waiting = self.stamps.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match waiting {
            // Nobody may wait any more: the nemesis was stopped in between.
            Some(waiting) => {
                let _ = waiting.send(at);
                Ok(())
            }
            None => bail!("the agent stamped an event that nobody had asked for"),
        }
    }
}
