//! Records a run on Docker: lines of the run's own processes become records of the history.
//!
//! One task owns the history. The lines of each container come in the order in which its process wrote them. Each line
//! gets its number in the history before anybody acts on it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use anyhow::{Context, bail};
use compose::{Output, What};
use history::{Event, FaultPhase, MadeBy, NodeName, Plan, ProcessName, Report, Reports, Writer};
use nemesis::{Controller, LiveView, Progress};
use tokio::sync::mpsc;

use crate::{plan_file::PlanFile, processes::DockerProcesses, run_dir::RunDir};

/// The largest numbers of lines of standard error that are kept of a node, so that no process fills the disk: its first
/// ones, and its last ones, which tell why it has ended.
const STDERR_FIRST: usize = 9_000;
const STDERR_LAST: usize = 1_000;
/// The number of lines that a message quotes.
const QUOTED: usize = 5;
/// The largest number of records that wait for the writer.
const BATCH: usize = 512;

/// Records what the run's own processes report.
pub struct Recorder {
    recorder: nemesis::Recorder,
    writer: Writer,
    dir: RunDir,
    live_view: Arc<LiveView>,
    /// Nodes that a fault of the plan is about to kill.
    to_be_killed: BTreeSet<NodeName>,
    /// The number that the next line of a process must have.
    numbers: BTreeMap<ProcessName, u64>,
    reports: Reports,
    stderr: BTreeMap<NodeName, Stderr>,
}

/// The standard error of a node.
#[derive(Debug, Default)]
struct Stderr {
    first: Vec<String>,
    last: VecDeque<String>,
    /// The number of lines between `first` and `last` that were not kept.
    left_out: usize,
    /// The number of lines of the process that runs now.
    of_process: usize,
}

impl Stderr {
    fn push(&mut self, line: String) {
        self.of_process += 1;
        if self.first.len() < STDERR_FIRST {
            self.first.push(line);
            return;
        }
        if self.last.len() == STDERR_LAST {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(line);
    }

    /// Returns all lines that were kept.
    fn text(&self) -> String {
        let lines = if self.left_out == 1 { "line is" } else { "lines are" };
        let left_out = (self.left_out > 0).then(|| format!("({} {lines} left out here)", self.left_out));
        let lines = self.first.iter().chain(&left_out).chain(&self.last);
        lines.flat_map(|line| [line.as_str(), "\n"]).collect()
    }

    /// Returns the last lines of the process that runs now, for a message.
    fn quoted(&self) -> Vec<&str> {
        let backwards = self.first.iter().chain(&self.last).rev().take(QUOTED.min(self.of_process));
        let mut lines: Vec<&str> = backwards.map(String::as_str).collect();
        lines.reverse();
        lines
    }
}

impl Recorder {
    /// Begins the history in `dir` with the plan of `file`.
    pub fn new(dir: &RunDir, file: &PlanFile, made_by: MadeBy, live_view: Arc<LiveView>) -> anyhow::Result<Recorder> {
        let mut recorder = Recorder {
            recorder: nemesis::Recorder::new(&file.run, &file.plan, Some(made_by), BATCH),
            writer: Writer::create(&dir.history())?,
            dir: dir.clone(),
            live_view,
            to_be_killed: BTreeSet::new(),
            numbers: BTreeMap::new(),
            reports: Reports::default(),
            stderr: BTreeMap::new(),
        };
        recorder.flush()?;
        Ok(recorder)
    }

    /// Records the output of processes until the queue ends, or until a process ends that no fault has killed.
    pub async fn run(
        &mut self,
        queue: &mut mpsc::Receiver<Output>,
        processes: &DockerProcesses<'_>,
    ) -> anyhow::Result<()> {
        loop {
            self.written_first(refuse_overflow(queue))?;
            // The history on the disk is at most one batch behind.
            let output = match queue.try_recv() {
                Ok(output) => output,
                Err(_) => {
                    self.flush()?;
                    match queue.recv().await {
                        Some(output) => output,
                        None => return Ok(()),
                    }
                }
            };
            let recorded = self.record(output, processes);
            self.recorder.show(&self.live_view);
            if self.recorder.batched() >= BATCH {
                self.flush()?;
            }
            self.written_first(recorded)?;
        }
    }

    /// Completes the history: every process has finished.
    pub fn end(&mut self, plan: &Plan) -> anyhow::Result<()> {
        self.recorder.end(&self.live_view, Controller::nodes(plan));
        self.flush()
    }

    /// Writes each process's standard error into the run directory.
    pub fn write_logs(&self) -> anyhow::Result<()> {
        for (node, stderr) in &self.stderr {
            self.dir.write(&self.dir.log(node.as_str()), stderr.text())?;
        }
        Ok(())
    }

    /// Returns a result. Before an error, which ends the run, all records so far are written.
    fn written_first(&mut self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        if result.is_err() {
            self.flush()?;
        }
        result
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.recorder.show(&self.live_view);
        for record in self.recorder.drain() {
            self.writer.append(&record)?;
        }
        Ok(self.writer.flush()?)
    }

    fn record(&mut self, output: Output, processes: &DockerProcesses<'_>) -> anyhow::Result<()> {
        let Output { node, incarnation, what } = output;
        let process = ProcessName::of(&node, incarnation);
        match what {
            What::Stderr(line) => {
                self.stderr.entry(node).or_default().push(String::from_utf8_lossy(&line).into_owned());
                Ok(())
            }
            What::Ended { code } => self.record_end(&node, process, code),
            What::Lost { why } => self.refuse_loss(
                &node,
                format!(
                    "{process}: the connection to the engine was lost: {why}; if the engine is down, start it, then \
                     run `harness clean`"
                ),
            ),
            What::BrokenOff { why } => self.refuse_loss(
                &node,
                format!(
                    "the output of {process} broke off: {why}; the engine answers, and {process} still runs: if a \
                     proxy is in front of the engine, let it keep silent connections open"
                ),
            ),
            What::Line(line) => {
                let Report { n, at, event } = self.reports.read(&line).with_context(|| {
                    let text = String::from_utf8_lossy(&line);
                    format!("{process} wrote a line that is no event (docs/worker-protocol.md): `{text}`")
                })?;
                let expected = self.numbers.entry(process.clone()).or_default();
                if n != *expected {
                    bail!("{process} reported its event {n} instead of its event {expected}: events were lost");
                }
                *expected += 1;
                let record = self.recorder.record(process, n, at, event);
                note_kill(&mut self.to_be_killed, &record.event);
                processes.see(&node, incarnation, record)
            }
        }
    }

    /// Records the end of a process. An end that no fault of the plan explains is an error.
    fn record_end(&mut self, node: &NodeName, ended: ProcessName, code: Option<i64>) -> anyhow::Result<()> {
        if self.live_view.look(|view| view.progress(node)) == Some(Progress::Finished) {
            return Ok(());
        }
        self.recorder.record_own(Event::ProcessEnded { ended: ended.clone(), code });
        if self.to_be_killed.remove(node) {
            if let Some(stderr) = self.stderr.get_mut(node) {
                stderr.of_process = 0;
            }
            return Ok(());
        }
        let code = code.map_or("an unknown code".to_owned(), |c| format!("code {c}"));
        let stderr = match self.stderr.get(node).map(Stderr::quoted).as_deref() {
            None | Some([]) => "it wrote nothing to standard error".to_owned(),
            Some(lines) => format!("its last lines: {}", lines.join(" | ")),
        };
        bail!("{ended} ended with {code}, and no fault had killed it; {stderr}")
    }

    /// Ends the run if the engine, or the output of a process, is lost before the process has finished. The process may
    /// still run, so this is no end of the process, not even if a fault is about to kill it.
    fn refuse_loss(&self, node: &NodeName, problem: String) -> anyhow::Result<()> {
        if self.live_view.look(|view| view.progress(node)) == Some(Progress::Finished) {
            return Ok(());
        }
        bail!(problem)
    }
}

/// Notes the node that a fault of the plan is about to kill. A kill that is not proved explains no later end of the
/// node's process. Another fault of the node says nothing about its kill.
fn note_kill(to_be_killed: &mut BTreeSet<NodeName>, event: &Event) {
    match event {
        Event::Fault { kind, node, phase: FaultPhase::Requested { .. }, .. } if kind.kills() => {
            to_be_killed.insert(node.clone());
        }
        Event::Fault { kind, node, phase: FaultPhase::Unproved { .. }, .. } if kind.kills() => {
            to_be_killed.remove(node);
        }
        _ => {}
    }
}

/// Ends the run if the queue of the recorder is full. The processes would wait until it has room again, so the load on
/// the machine would change what they do.
fn refuse_overflow<T>(queue: &mpsc::Receiver<T>) -> anyhow::Result<()> {
    let (waiting, most) = (queue.len(), queue.max_capacity());
    if waiting == most {
        bail!(
            "the recorder is behind: {waiting} events wait, and its queue is full, so the processes would have to wait \
             too, and their stalls would be the machine's; give the run a lower --rate, fewer --workers, or more cores"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use history::{FaultId, FaultKind, Stamp};

    use super::*;
    use crate::{exit::Exit, made_by::Making, scenario::Scenario};

    fn recorder(dir: &RunDir) -> Recorder {
        let scenario = Scenario::of("redis").unwrap();
        let file = scenario.file("run".into(), scenario.base.clone());
        let made_by = Making::begin(&file, "").head();
        Recorder::new(dir, &file, made_by, Arc::new(LiveView::new())).unwrap()
    }

    #[test]
    fn a_planned_kill_explains_one_end_of_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = recorder(&RunDir::create(dir.path(), "run").unwrap());
        let worker = NodeName::new("worker-1");
        recorder.to_be_killed.insert(worker.clone());
        recorder.stderr.entry(worker.clone()).or_default().push("of the first process".to_owned());
        recorder.record_end(&worker, ProcessName::of(&worker, 1), Some(137)).unwrap();
        let refused = recorder.record_end(&worker, ProcessName::of(&worker, 2), Some(101)).unwrap_err().to_string();
        assert!(refused.contains("ended with code 101, and no fault had killed it"), "{refused}");
        assert!(refused.ends_with("it wrote nothing to standard error"), "{refused}");
    }

    #[test]
    fn the_last_lines_of_a_process_are_kept_however_much_it_has_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = RunDir::create(dir.path(), "run").unwrap();
        let mut recorder = recorder(&dir);
        let worker = NodeName::new("worker-1");
        let stderr = recorder.stderr.entry(worker.clone()).or_default();
        (0..STDERR_FIRST + STDERR_LAST + 7).for_each(|n| stderr.push(format!("line {n}")));
        stderr.push("the reason".to_owned());
        let refused = recorder.record_end(&worker, ProcessName::of(&worker, 1), Some(3)).unwrap_err().to_string();
        let last = STDERR_FIRST + STDERR_LAST + 6;
        assert!(refused.ends_with(&format!(" | line {last} | the reason")), "{refused}");
        recorder.write_logs().unwrap();
        let log = std::fs::read_to_string(dir.log("worker-1")).unwrap();
        assert!(log.starts_with("line 0\nline 1\n") && log.ends_with(&format!("line {last}\nthe reason\n")));
        let gap = format!("line {}\n(8 lines are left out here)\nline {}\n", STDERR_FIRST - 1, STDERR_FIRST + 8);
        assert!(log.contains(&gap));
    }

    #[test]
    fn only_a_kill_that_is_not_taken_back_explains_the_end_of_its_process() {
        let (requested, unproved) = (
            FaultPhase::Requested { asked_ns: 1, hold: None },
            FaultPhase::Unproved { why: "expected worker-1 to end".into() },
        );
        let (kill, pause) = (FaultKind::Kill, FaultKind::Pause);
        for (phases, is_explained) in [
            (vec![(kill, "worker-1", &requested)], true),
            (vec![(kill, "worker-2", &requested)], false),
            (vec![(pause, "worker-1", &requested)], false),
            (vec![(kill, "worker-1", &requested), (kill, "worker-1", &unproved)], false),
            (vec![(kill, "worker-1", &requested), (kill, "worker-2", &unproved)], true),
            // The proof of an earlier pause may end only now.
            (vec![(kill, "worker-1", &requested), (pause, "worker-1", &unproved)], true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut recorder = recorder(&RunDir::create(dir.path(), "run").unwrap());
            for (kind, node, phase) in &phases {
                let (fault, phase) = (FaultId(1), FaultPhase::clone(phase));
                let event = Event::Fault { fault, kind: *kind, node: NodeName::new(*node), phase };
                note_kill(&mut recorder.to_be_killed, &event);
            }
            let worker = NodeName::new("worker-1");
            let ended = recorder.record_end(&worker, ProcessName::of(&worker, 1), Some(137));
            assert_eq!(ended.is_ok(), is_explained, "{phases:?}");
        }
    }

    #[test]
    fn a_lost_engine_is_no_end_of_a_process() {
        let dir = tempfile::tempdir().unwrap();
        let dir = RunDir::create(dir.path(), "run").unwrap();
        let mut recorder = recorder(&dir);
        let worker = NodeName::new("worker-1");
        recorder.to_be_killed.insert(worker.clone());
        let refused = recorder.refuse_loss(&worker, "the engine is gone".to_owned()).unwrap_err();
        assert_eq!((Exit::of(&refused), refused.to_string().as_str()), (Exit::Failed, "the engine is gone"));
        recorder.flush().unwrap();
        let history = std::fs::read_to_string(dir.history()).unwrap();
        assert!(!history.contains("process-ended"), "{history}");
    }

    #[test]
    fn an_error_that_ends_the_run_leaves_no_record_unwritten() {
        let dir = tempfile::tempdir().unwrap();
        let dir = RunDir::create(dir.path(), "run").unwrap();
        let mut recorder = recorder(&dir);
        for (result, is_written) in [(Ok(()), false), (Err(anyhow::anyhow!("the recorder is behind")), true)] {
            let is_error = result.is_err();
            recorder.recorder.record("worker-1".into(), 0, Stamp(1), Event::Watermark);
            assert_eq!(recorder.written_first(result).is_err(), is_error);
            let history = std::fs::read_to_string(dir.history()).unwrap();
            assert_eq!(history.contains("watermark"), is_written, "{history}");
        }
    }

    #[test]
    fn a_full_queue_ends_the_run() {
        let (sender, mut queue) = mpsc::channel(2);
        sender.try_send(1).unwrap();
        refuse_overflow(&queue).unwrap();
        sender.try_send(2).unwrap();
        let said = refuse_overflow(&queue).unwrap_err().to_string();
        assert!(said.contains("2 events wait") && said.contains("--rate"), "{said}");
        queue.try_recv().unwrap();
        refuse_overflow(&queue).unwrap();
    }
}
