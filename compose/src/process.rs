//! One process of ours in its container: what it says, line by line, and what it is told.

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
    time::timeout,
};

use crate::{Engine, lines::Lines};

/// After the engine has said that a process ended, its stream is read until it ends too, or until it is silent
/// for this long: some engines leave the streams of ended processes open.
const DRAIN_QUIET: Duration = Duration::from_millis(500);
/// How many of its last lines of standard error are kept for messages.
const TAIL_LINES: usize = 20;

/// Something that a process of ours said, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The node it runs on.
    pub node: NodeName,
    /// How often the node had been started when this process began, counted from 1.
    pub incarnation: u32,
    /// What happened.
    pub what: What,
}

/// What a process of ours did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A whole line of its standard output, without the end of line. What a killed process had begun and not ended
    /// is no line.
    Line(Bytes),
    /// A line of its standard error.
    Stderr(Bytes),
    /// It has ended; nothing of it comes after this. The code is its exit code (137 after SIGKILL), or nothing if the
    /// engine did not tell.
    Ended {
        /// Its exit code.
        code: Option<i64>,
    },
}

/// Where all processes put what they say: one bounded queue, so that a controller that falls behind slows them down
/// instead of filling its memory.
#[derive(Debug, Clone)]
pub(crate) struct Outlet {
    queue: mpsc::Sender<Output>,
    high_water: Arc<AtomicUsize>,
}

impl Outlet {
    /// A queue for `capacity` lines, and its other end.
    pub(crate) fn new(capacity: usize) -> (Self, mpsc::Receiver<Output>) {
        let (queue, receiver) = mpsc::channel(capacity);
        (Self { queue, high_water: Arc::default() }, receiver)
    }

    /// How full the queue has ever been, readable when the queue is gone.
    pub(crate) fn high_water(&self) -> Arc<AtomicUsize> {
        self.high_water.clone()
    }

    /// False once nobody listens any more.
    async fn put(&self, output: Output) -> bool {
        let alive = self.queue.send(output).await.is_ok();
        self.high_water.fetch_max(self.queue.max_capacity() - self.queue.capacity(), Ordering::Relaxed);
        alive
    }
}

/// A process of ours that was started, and may have ended since.
#[derive(Debug)]
pub(crate) struct Process {
    input: Option<mpsc::UnboundedSender<String>>,
    pump: JoinHandle<()>,
    tail: Tail,
}

impl Process {
    /// Attaches to a container that is not running and starts it; in this order, so that no early line is lost.
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
        // A frozen process takes 283 KB and then blocks its writer: each has a task of its own.
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

    /// Queues a line for its standard input. False if it takes no more.
    pub(crate) fn send(&self, line: String) -> bool {
        self.input.as_ref().is_some_and(|input| input.send(line).is_ok())
    }

    /// Ends its standard input, after what is queued.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits until everything it said, and its end, are in the queue. False if they are not by then.
    pub(crate) async fn has_ended(&mut self, within: Duration) -> bool {
        self.pump.is_finished() || timeout(within, &mut self.pump).await.is_ok()
    }

    /// The last lines of the standard error of a process that has ended.
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

/// Hands on what one process says, to its end.
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
        let mut code = None;
        let listened = loop {
            tokio::select! {
                // What was said comes before the end, whichever the engine tells first.
                biased;
                chunk = output.next() => match chunk {
                    Some(Ok(chunk)) => if !self.take(chunk).await { break false },
                    Some(Err(_)) | None => break true,
                },
                exit = &mut ended => {
                    code = Some(exit);
                    break self.drain(&mut output).await;
                }
            }
        };
        if !listened {
            return;
        }
        let code = match code {
            Some(code) => code,
            None => ended.await,
        };
        if let Some(rest) = self.stdout.rest() {
            tracing::warn!(node = %self.node, bytes = rest.len(), "ended in the middle of a line, which is dropped");
        }
        if let Some(rest) = self.stderr.rest() {
            self.put_stderr(rest).await;
        }
        self.put(What::Ended { code }).await;
    }

    /// Reads what is left. Lines that wait for a slow reader of the queue do not count as silence.
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
            // Neither is sent by a container without a terminal.
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

/// Waits until the container is not running; bollard makes an error of every exit code but 0. Nothing if the engine
/// does not tell.
pub(crate) async fn exit_code(engine: &Engine, container: &str) -> Option<i64> {
    loop {
        let options = WaitContainerOptions { condition: "not-running".to_owned() };
        match std::pin::pin!(engine.docker().wait_container(container, Some(options))).next().await {
            Some(Ok(answer)) => return Some(answer.status_code),
            Some(Err(EngineError::DockerContainerWaitError { code, .. })) => return Some(code),
            // An engine that answers only at the end: it still runs.
            Some(Err(EngineError::RequestTimeoutError)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}

/// Writes queued lines until the queue is closed or the process is gone, then ends its standard input.
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
