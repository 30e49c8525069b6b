//! One of our own processes in its container: its input and its output, line by line.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bollard::{
    container::{AttachContainerResults, LogOutput},
    errors::Error as EngineError,
    query_parameters::{AttachContainerOptions, StartContainerOptions, WaitContainerOptions},
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use history::NodeName;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Engine,
    error::{explain, status},
    lines::Lines,
};

/// Longest silence of an output stream after the process has ended. Some engines leave the streams of ended processes
/// open, so the stream is not read longer than this.
const DRAIN_QUIET: Duration = Duration::from_millis(500);
/// Time within which the engine reports the end of a process whose output stream broke off. An engine closes the
/// streams of an ended process first. Single calls were seen to take 1.5 s.
const END_WITHIN: Duration = Duration::from_secs(3);
/// Number of failures in a row after which the connection to the engine is lost, and the time between two tries.
const FAILURES_MAX: u32 = 3;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Time after which the engine is asked whether a process still runs. The connection to an engine may be lost without
/// an error, and the request for the end of a process then waits for ever.
const LOOK_AFTER: Duration = Duration::from_secs(60);
/// Time within which an engine must tell the state of a container after a request without an answer. On a busy machine
/// an engine takes seconds.
const STATE_WITHIN: Duration = Duration::from_secs(20);
/// Number of the last lines of standard error that are kept for messages.
const TAIL_LINES: usize = 20;

/// One line of output of one of our own processes, or the end of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The process's node.
    pub node: NodeName,
    /// Number of starts of the node up to this process, counted from 1.
    pub incarnation: u32,
    /// The output.
    pub what: What,
}

/// An output or the end of one of our own processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A whole line of standard output, without the end of line. The unfinished last line of a killed process is no
    /// line.
    Line(Bytes),
    /// A line of its standard error.
    Stderr(Bytes),
    /// The end of the process; no output follows. The code is the exit code (137 after SIGKILL), or nothing if the
    /// engine does not know the container any more.
    Ended {
        /// The exit code.
        code: Option<i64>,
    },
    /// The connection to the engine was lost; no output follows. The process may still run.
    Lost {
        /// The error of the connection.
        why: String,
    },
    /// The output broke off; no output follows. The engine answers, and says that the process still runs.
    BrokenOff {
        /// The error of the output's stream.
        why: String,
    },
}

impl What {
    /// The last report on a process, from the result of [`exit_code`].
    fn of_end(exit: Result<Option<i64>, String>) -> Self {
        exit.map_or_else(|why| What::Lost { why }, |code| What::Ended { code })
    }
}

/// The queue for the output of all processes. The queue is bounded, so that a slow controller does not fill its memory.
/// A full queue makes the processes wait; its receiver can see that ([`mpsc::Receiver::len`]) and end the run.
#[derive(Debug, Clone)]
pub(crate) struct Outlet {
    queue: mpsc::Sender<Output>,
    high_water: Arc<AtomicUsize>,
}

impl Outlet {
    /// Makes a queue for `capacity` lines, and its receiver.
    pub(crate) fn new(capacity: usize) -> (Self, mpsc::Receiver<Output>) {
        let (queue, receiver) = mpsc::channel(capacity);
        (Self { queue, high_water: Arc::default() }, receiver)
    }

    /// The largest number of lines that the queue has held. The number can be read after the queue is gone.
    pub(crate) fn high_water(&self) -> Arc<AtomicUsize> {
        self.high_water.clone()
    }

    /// Queues an output. Returns false if nobody receives any more.
    async fn put(&self, output: Output) -> bool {
        let alive = self.queue.send(output).await.is_ok();
        self.high_water.fetch_max(self.queue.max_capacity() - self.queue.capacity(), Ordering::Relaxed);
        alive
    }
}

/// One of our own processes that was started, and may have ended since.
#[derive(Debug)]
pub(crate) struct Process {
    input: Option<mpsc::UnboundedSender<String>>,
    pump: JoinHandle<()>,
    tail: Tail,
}

impl Process {
    /// Attaches to a container that does not run, and starts it. In this order no early line is lost.
    pub(crate) async fn launch(
        engine: &Engine,
        container: &str,
        node: &NodeName,
        incarnation: u32,
        outlet: &Outlet,
    ) -> Result<Self, EngineError> {
        let options =
            AttachContainerOptions { stream: true, stdin: true, stdout: true, stderr: true, ..Default::default() };
        let AttachContainerResults { output, input } =
            engine.docker().attach_container(container, Some(options)).await?;
        engine.docker().start_container(container, None::<StartContainerOptions>).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        // A frozen process takes 283 KB and then blocks its writer, so each process has its own writer task.
        tokio::spawn(write(node.clone(), input, receiver));
        let tail = Tail::default();
        let pump = Pump {
            node: node.clone(),
            incarnation,
            outlet: outlet.clone(),
            stdout: Lines::default(),
            stderr: Lines::default(),
            tail: tail.clone(),
        };
        let pump = tokio::spawn(pump.run(engine.clone(), container.to_owned(), output));
        Ok(Self { input: Some(sender), pump, tail })
    }

    /// Queues a line for standard input. Returns false if the process takes no more input.
    pub(crate) fn send(&self, line: String) -> bool {
        self.input.as_ref().is_some_and(|input| input.send(line).is_ok())
    }

    /// Ends standard input after the queued lines.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits until all output and the end of the process are in the queue. Returns false if that did not happen in
    /// time.
    pub(crate) async fn has_ended(&mut self, within: Duration) -> bool {
        self.pump.is_finished() || timeout(within, &mut self.pump).await.is_ok()
    }

    /// Returns the last lines of standard error of a process that has ended.
    pub(crate) async fn last_words(mut self, within: Duration) -> String {
        self.has_ended(within).await;
        self.tail.text()
    }
}

/// The last lines of standard error.
#[derive(Debug, Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<Bytes>>>);

impl Tail {
    fn push(&self, line: Bytes) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect::<Vec<_>>().join("\n")
    }
}

type OutputStream = Pin<Box<dyn Stream<Item = Result<LogOutput, EngineError>> + Send>>;

/// Forwards the output of one process until its end.
struct Pump {
    node: NodeName,
    incarnation: u32,
    outlet: Outlet,
    stdout: Lines,
    stderr: Lines,
    tail: Tail,
}

impl Pump {
    async fn run(mut self, engine: Engine, container: String, mut output: OutputStream) {
        let mut ended = std::pin::pin!(exit_code(&engine, &container));
        let (mut end, mut broken) = (None, None);
        let listened = loop {
            tokio::select! {
                // The output comes before the end in the queue, even if the engine reports the end first.
                biased;
                chunk = output.next() => match chunk {
                    Some(Ok(chunk)) => if !self.take(chunk).await { break false },
                    Some(Err(error)) => {
                        broken = Some(explain(&error));
                        break true;
                    }
                    None => break true,
                },
                exit = &mut ended => {
                    end = Some(What::of_end(exit));
                    break self.drain(&mut output).await;
                }
            }
        };
        if !listened {
            return;
        }
        if let Some(why) = broken {
            // Without its output, a process that goes on is as lost as without the engine.
            end = match timeout(END_WITHIN, &mut ended).await {
                Ok(exit) => Some(What::of_end(exit)),
                Err(_) => runs(&engine, &container).await.then_some(What::BrokenOff { why }),
            };
        }
        let end = match end {
            Some(end) => end,
            None => What::of_end(ended.await),
        };
        if let Some(rest) = self.stdout.rest() {
            tracing::warn!(node = %self.node, bytes = rest.len(), "ended in the middle of a line, which is dropped");
        }
        if let Some(rest) = self.stderr.rest() {
            self.put_stderr(rest).await;
        }
        self.put(end).await;
    }

    /// Reads the rest of the stream. Time in which lines wait for a slow reader of the queue is no silence.
    async fn drain(&mut self, output: &mut OutputStream) -> bool {
        while let Ok(Some(Ok(chunk))) = timeout(DRAIN_QUIET, output.next()).await {
            if !self.take(chunk).await {
                return false;
            }
        }
        true
    }

    async fn take(&mut self, chunk: LogOutput) -> bool {
        match chunk {
            LogOutput::StdOut { message } => {
                self.stdout.push(message);
                while let Some(line) = self.stdout.next() {
                    if !self.put(What::Line(line)).await {
                        return false;
                    }
                }
            }
            LogOutput::StdErr { message } => {
                self.stderr.push(message);
                while let Some(line) = self.stderr.next() {
                    if !self.put_stderr(line).await {
                        return false;
                    }
                }
            }
            // A container without a terminal sends neither of these.
            LogOutput::StdIn { .. } | LogOutput::Console { .. } => {}
        }
        true
    }

    async fn put_stderr(&self, line: Bytes) -> bool {
        self.tail.push(line.clone());
        self.put(What::Stderr(line)).await
    }

    async fn put(&self, what: What) -> bool {
        self.outlet.put(Output { node: self.node.clone(), incarnation: self.incarnation, what }).await
    }
}

/// Waits until the container has ended, and returns the exit code, or nothing if the engine does not know the container
/// any more. bollard returns an error for every exit code but 0.
///
/// A request that breaks off is made again: a proxy in front of the engine may end requests that wait for long.
///
/// # Errors
/// The connection to the engine was lost, so the container may still run.
pub(crate) async fn exit_code(engine: &Engine, container: &str) -> Result<Option<i64>, String> {
    exit_code_by_looks(engine, container, LOOK_AFTER).await
}

/// As [`exit_code`], with another time after which a silent engine is asked whether the container still runs.
async fn exit_code_by_looks(engine: &Engine, container: &str, look_after: Duration) -> Result<Option<i64>, String> {
    let mut failures = 0;
    loop {
        let options = WaitContainerOptions { condition: "not-running".to_owned() };
        let mut waiting = std::pin::pin!(engine.docker().wait_container(container, Some(options)));
        let why = match timeout(look_after, waiting.next()).await {
            Ok(Some(Ok(answer))) => return Ok(Some(answer.status_code)),
            Ok(Some(Err(EngineError::DockerContainerWaitError { code, .. }))) => return Ok(Some(code)),
            Ok(Some(Err(error))) if status(&error) == Some(404) => return Ok(None),
            Ok(Some(Err(error))) => explain(&error),
            Ok(None) => "the engine ended its answer".to_owned(),
            // The container still runs, or the connection is gone without an error.
            Err(_) => "the engine does not answer any more".to_owned(),
        };
        match timeout(STATE_WITHIN, engine.docker().inspect_container(container, None)).await {
            Ok(Ok(found)) => {
                let state = found.state.unwrap_or_default();
                if state.running == Some(false) {
                    return Ok(state.exit_code);
                }
                failures = 0;
            }
            Ok(Err(error)) if status(&error) == Some(404) => return Ok(None),
            _ => failures += 1,
        }
        if failures == FAILURES_MAX {
            return Err(why);
        }
        tracing::debug!(container, why, "waiting for its end again");
        sleep(TRY_AGAIN_AFTER).await;
    }
}

/// Returns whether the engine says that a container runs.
async fn runs(engine: &Engine, container: &str) -> bool {
    let inspected = timeout(STATE_WITHIN, engine.docker().inspect_container(container, None)).await;
    let state = inspected.ok().and_then(Result::ok).and_then(|found| found.state);
    state.is_some_and(|state| state.running == Some(true))
}

/// Writes queued lines until the queue is closed or the process is gone, then ends standard input.
async fn write(node: NodeName, mut input: Pin<Box<dyn AsyncWrite + Send>>, mut lines: mpsc::UnboundedReceiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        let written = async {
            input.write_all(line.as_bytes()).await?;
            input.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!(%node, %error, "its input is gone");
            return;
        }
    }
    if let Err(error) = input.shutdown().await {
        tracing::debug!(%node, %error, "its input was gone before it was closed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicUsize};

    use futures::stream;

    use super::*;
    use crate::fake_engine::{self, GONE};

    #[tokio::test]
    async fn a_lost_connection_is_no_end_of_the_process() {
        let exits = |reply: &str| {
            let reply = reply.to_owned();
            async move {
                let dir = tempfile::tempdir().unwrap();
                let engine = fake_engine::start(&dir, move |_| (Duration::ZERO, reply.clone())).await;
                exit_code(&engine, "c").await
            }
        };
        assert_eq!(exits(&fake_engine::json(r#"{"StatusCode":0}"#)).await, Ok(Some(0)));
        assert_eq!(exits(&fake_engine::json(r#"{"StatusCode":137}"#)).await, Ok(Some(137)));
        assert_eq!(exits(GONE).await, Ok(None));
        assert!(exits("").await.is_err(), "the engine has closed the connection");
    }

    #[tokio::test]
    async fn a_wait_that_breaks_off_is_asked_again() {
        let state = |state: &str| fake_engine::json(&format!(r#"{{"State":{state}}}"#));
        let (lost, runs) = (String::new(), state(r#"{"Running":true}"#));
        for (inspected, end) in [
            // More failures than an engine that is lost may have, but not one after the other.
            (vec![lost.clone(), lost.clone(), runs, lost], Some(7)),
            (vec![state(r#"{"Running":false,"ExitCode":137}"#)], Some(137)),
            (vec![GONE.to_owned()], None),
        ] {
            let (dir, waits, looks) = (tempfile::tempdir().unwrap(), AtomicU32::new(0), AtomicUsize::new(0));
            let answer = move |request: &str| {
                if !request.contains("/wait") {
                    return inspected[looks.fetch_add(1, Ordering::Relaxed)].clone();
                }
                let is_broken = waits.fetch_add(1, Ordering::Relaxed) <= FAILURES_MAX;
                if is_broken { String::new() } else { fake_engine::json(r#"{"StatusCode":7}"#) }
            };
            let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
            assert_eq!(exit_code(&engine, "c").await, Ok(end));
        }
    }

    #[tokio::test]
    async fn a_silent_engine_is_asked_whether_the_process_still_runs() {
        let look_after = Duration::from_millis(50);
        for (inspected, end) in [
            (fake_engine::json(r#"{"State":{"Running":false,"ExitCode":137}}"#), Ok(Some(137))),
            (String::new(), Err("the engine does not answer any more".to_owned())),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let answer = move |request: &str| match request.contains("/wait") {
                true => (END_WITHIN * 60, String::new()),
                false => (Duration::ZERO, inspected.clone()),
            };
            let engine = fake_engine::start(&dir, answer).await;
            let ended = timeout(END_WITHIN, exit_code_by_looks(&engine, "c", look_after)).await;
            assert_eq!(ended.expect("a look at the container"), end);
        }
    }

    /// The outputs of a process with this output. The engine answers a wait for its end that late.
    async fn outputs(ends_after: Duration, output: OutputStream) -> Vec<What> {
        let dir = tempfile::tempdir().unwrap();
        let answer = move |request: &str| match request.contains("/wait") {
            true => (ends_after, fake_engine::json(r#"{"StatusCode":137}"#)),
            false => (Duration::ZERO, fake_engine::json(r#"{"State":{"Running":true}}"#)),
        };
        let engine = fake_engine::start(&dir, answer).await;
        let (outlet, mut queue) = Outlet::new(10);
        let (stdout, stderr, tail) = (Lines::default(), Lines::default(), Tail::default());
        let pump = Pump { node: NodeName::new("worker-1"), incarnation: 1, outlet, stdout, stderr, tail };
        timeout(END_WITHIN * 3, pump.run(engine, "c".to_owned(), output)).await.unwrap();
        let mut all = Vec::new();
        while let Some(output) = queue.recv().await {
            all.push(output.what);
        }
        all
    }

    fn stdout(text: &'static str) -> Result<LogOutput, EngineError> {
        Ok(LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) })
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_while_the_process_runs_is_told_at_once() {
        // One line, then an error.
        let broken = || -> OutputStream {
            let error = EngineError::from(std::io::Error::other("reset by a proxy"));
            Box::pin(stream::iter([stdout("{}\n"), Err(error)]))
        };
        let line = What::Line(Bytes::from_static(b"{}"));
        let why = "reset by a proxy".to_owned();
        assert_eq!(outputs(END_WITHIN * 60, broken()).await, [line.clone(), What::BrokenOff { why }]);
        // The streams of an ended process may break off shortly before the engine reports the end.
        assert_eq!(outputs(END_WITHIN / 10, broken()).await, [line, What::Ended { code: Some(137) }]);
    }

    #[tokio::test]
    async fn the_whole_lines_of_a_process_come_before_its_end_although_reported_later() {
        let late = async {
            sleep(DRAIN_QUIET / 10).await;
            stdout("{}\n{\"cut")
        };
        let line = What::Line(Bytes::from_static(b"{}"));
        let ended = What::Ended { code: Some(137) };
        assert_eq!(outputs(Duration::ZERO, Box::pin(stream::once(late))).await, [line, ended]);
    }

    #[test]
    fn the_last_lines_of_standard_error_are_kept() {
        let tail = Tail::default();
        (1..=TAIL_LINES + 2).for_each(|n| tail.push(Bytes::from(n.to_string())));
        assert_eq!(tail.text(), (3..=TAIL_LINES + 2).map(|n| n.to_string()).collect::<Vec<_>>().join("\n"));
    }
}
