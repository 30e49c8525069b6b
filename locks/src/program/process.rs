//! The process of a client program: requests go to its standard input, answers come from its standard output.

use std::{
    collections::BTreeSet,
    future::poll_fn,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, killpg},
    },
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use super::messages::{Answer, Request, parse, shortened};
use crate::ports::Clock;

/// The longest line of a program.
const LINE_MAX: usize = 64 * 1024;
/// Lines that may wait for the harness. Further lines wait in the pipe.
const LINES_MAX: usize = 64;
/// The part of an offending line that a message quotes.
const QUOTED_MAX: usize = 200;
/// The part of a complaint about a line that a message keeps. The parser repeats a field that it does not know, however
/// long the field is.
const PROBLEM_MAX: usize = 300;
/// The part of a program's standard error that this process passes on. The rest is read, so that the program does not
/// block, and dropped.
const STDERR_MAX: usize = 1024 * 1024;
/// How long a program that has closed its output may take to end.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
/// The time for the last words of a program that has ended.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);
/// The time for which an answer may still come when its time is over. After a freeze of both processes, the timer of
/// the worker is due before the program has run.
const GRACE: Duration = Duration::from_millis(100);

/// The command of a client program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramCommand {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The directory in which it runs; that of this process if absent.
    pub dir: Option<PathBuf>,
}

/// The reason why a program gave no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The program cannot be started.
    #[error("cannot start the program `{command}`: {why}")]
    NotStarted {
        /// The first word of the command.
        command: String,
        /// The reason.
        why: String,
    },
    /// No answer came in time.
    #[error("no answer to `{op}` (id {id}) within {within:?}")]
    NoAnswer {
        /// The request.
        op: &'static str,
        /// Its number.
        id: u64,
        /// The time.
        within: Duration,
    },
    /// A line is no answer.
    #[error("line {number} of the program's standard output is no answer: {problem}; the line: {line}")]
    Garbage {
        /// The number of the line since the start of the program, from 1.
        number: u64,
        /// The line, shortened.
        line: String,
        /// The complaint about it, shortened.
        problem: String,
    },
    /// The program has ended.
    #[error("the program ended with {how} after {lines} lines; its standard error may say why")]
    Ended {
        /// Its exit code or signal.
        how: String,
        /// The lines that it had written.
        lines: u64,
    },
    /// The program refused its first request.
    #[error("the program refused `init`: {error}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    NoInit {
        /// The code.
        error: &'static str,
        /// The program's own words.
        detail: String,
    },
}

/// One output of the program.
enum Said {
    Line(u64, Vec<u8>),
    TooLong(u64, Vec<u8>),
    Ended(u64, Option<ExitStatus>),
}

/// A running program. A drop kills it with all processes of its group.
pub struct ProgramProcess {
    input: Option<mpsc::UnboundedSender<String>>,
    output: mpsc::Receiver<Said>,
    group: Group,
    next: u64,
    /// Requests without an answer.
    pending: BTreeSet<u64>,
    /// The last answer, with the number of its line.
    last: (u64, String),
}

/// The program's own process group.
#[derive(Clone)]
struct Group {
    leader: Option<Pid>,
    has_ended: Arc<AtomicBool>,
}

impl Group {
    fn kill(&self) {
        // The group has the number of its first process, which may be given away once that process was waited for.
        if let Some(leader) = self.leader
            && !self.has_ended.swap(true, Ordering::Relaxed)
        {
            // The group is gone already: there is nothing left to kill.
            let _ = killpg(leader, Signal::SIGKILL);
        }
    }
}

impl Drop for ProgramProcess {
    fn drop(&mut self) {
        self.group.kill();
    }
}

impl ProgramProcess {
    /// Starts the program. It gets no request yet. Starting needs a Tokio runtime.
    ///
    /// # Errors
    /// [`Broken::NotStarted`]
    pub fn start(command: &ProgramCommand) -> Result<ProgramProcess, Broken> {
        let first = command.words.first().cloned().unwrap_or_default();
        let not_started = |why: String| Broken::NotStarted { command: first.clone(), why };
        let mut started = prepared(&first, command);
        let mut child = started.spawn().map_err(|e| not_started(e.to_string()))?;
        let leader = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let group = Group { leader, has_ended: Arc::default() };
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            group.kill();
            return Err(not_started("it has no pipes".into()));
        };
        let (input, requests) = mpsc::unbounded_channel();
        let (said, output) = mpsc::channel(LINES_MAX);
        tokio::spawn(write(stdin, requests));
        // Tokio writes in another thread: a log that nobody reads must not stop the worker's ticks.
        let passed_on = child.stderr.take().map(|stderr| tokio::spawn(pass_on(stderr, tokio::io::stderr())));
        tokio::spawn(read(child, stdout, said, group.clone(), passed_on));
        Ok(ProgramProcess {
            input: Some(input),
            output,
            group,
            next: 1,
            pending: BTreeSet::new(),
            last: (0, String::new()),
        })
    }

    /// Queues a request before it returns, and gives its number. Dropping the answer cancels nothing.
    pub fn send(&mut self, request: &Request) -> u64 {
        let id = self.next;
        self.next += 1;
        self.pending.insert(id);
        self.send_line(request.line(id));
        id
    }

    /// Queues any line. A program that has ended gets nothing; its end comes as the next output.
    pub fn send_line(&mut self, line: String) {
        if let Some(input) = &self.input {
            // The reader of the output reports that the program has ended.
            let _ = input.send(line);
        }
    }

    /// Ends the program's standard input after the queued requests.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits for the answer to a request. Answers to earlier requests, for which nobody waits any more, are skipped.
    /// The time counts anew from each of them: a program may handle one request after the other.
    ///
    /// # Errors
    /// [`Broken`]; the program cannot be relied on any more.
    pub async fn answer(
        &mut self,
        request: &Request,
        id: u64,
        within: Duration,
        clock: &dyn Clock,
    ) -> Result<Answer, Broken> {
        let mut timer = clock.sleep_until(clock.now().saturating_add(within));
        let mut has_grace = false;
        loop {
            let said = poll_fn(|cx| {
                loop {
                    // An answer that has arrived comes before the timer: after a freeze both are due.
                    if let Poll::Ready(said) = self.output.poll_recv(cx) {
                        return Poll::Ready(Some(said));
                    }
                    match timer.as_mut().poll(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(()) if has_grace => return Poll::Ready(None),
                        Poll::Ready(()) => {
                            has_grace = true;
                            timer = clock.sleep_until(clock.now().saturating_add(GRACE));
                        }
                    }
                }
            });
            let Some(said) = said.await else {
                return Err(Broken::NoAnswer { op: request.name(), id, within });
            };
            let (number, answer) = self.understood(said)?;
            if number == id {
                return Ok(answer);
            }
            (timer, has_grace) = (clock.sleep_until(clock.now().saturating_add(within)), false);
        }
    }

    /// Looks at everything that the program has said since its last answer.
    ///
    /// # Errors
    /// The program has ended, or wrote a line that is no answer.
    pub fn look(&mut self) -> Result<(), Broken> {
        loop {
            match self.output.try_recv() {
                Ok(said) => drop(self.understood(Some(said))?),
                Err(mpsc::error::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::error::TryRecvError::Disconnected) => return self.understood(None).map(drop),
            }
        }
    }

    /// Returns the last answer as the program wrote it, with the number of its line since the program's start.
    pub fn last_line(&self) -> (u64, &str) {
        (self.last.0, &self.last.1)
    }

    /// Waits until the program ends. Returns false if it does not, or if it was killed because it went on without its
    /// standard output.
    pub async fn has_ended(&mut self, within: Duration) -> bool {
        let ending = async {
            loop {
                match self.output.recv().await {
                    Some(Said::Ended(_, status)) => return status.is_some(),
                    Some(Said::Line(..) | Said::TooLong(..)) => {}
                    None => return false,
                }
            }
        };
        timeout(within, ending).await.unwrap_or(false)
    }

    fn understood(&mut self, said: Option<Said>) -> Result<(u64, Answer), Broken> {
        let (number, bytes) = match said {
            None => return Err(Broken::Ended { how: "its standard output closed".into(), lines: 0 }),
            Some(Said::Ended(lines, None)) => {
                return Err(Broken::Ended { how: "its standard output closed".into(), lines });
            }
            Some(Said::Ended(lines, Some(status))) => return Err(Broken::Ended { how: status.to_string(), lines }),
            Some(Said::TooLong(number, bytes)) => {
                return Err(garbage(number, &bytes, format!("expected at most {LINE_MAX} bytes on a line")));
            }
            Some(Said::Line(number, bytes)) => (number, bytes),
        };
        let text = std::str::from_utf8(&bytes).map_err(|e| garbage(number, &bytes, format!("expected UTF-8: {e}")))?;
        let (id, answer) = parse(text).map_err(|problem| garbage(number, &bytes, problem))?;
        if self.pending.remove(&id) {
            self.last = (number, text.to_owned());
            return Ok((id, answer));
        }
        let pending = self.pending.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let pending = if pending.is_empty() { "there is none".into() } else { format!("such as {pending}") };
        Err(garbage(number, &bytes, format!("expected the id of a request that waits for an answer ({pending})")))
    }
}

fn garbage(number: u64, line: &[u8], problem: String) -> Broken {
    let line = shortened(String::from_utf8_lossy(line).into_owned(), QUOTED_MAX);
    Broken::Garbage { number, line, problem: shortened(problem, PROBLEM_MAX) }
}

/// The command in a process group of its own, which ends with this process.
#[allow(unsafe_code)]
fn prepared(first: &str, command: &ProgramCommand) -> Command {
    let mut started = Command::new(first);
    started.args(command.words.iter().skip(1));
    if let Some(dir) = &command.dir {
        started.current_dir(dir);
    }
    started.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    started.process_group(0).kill_on_drop(true);
    // SAFETY: between fork and exec only the system call `prctl` is made, which is safe after a fork.
    unsafe {
        started.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
    }
    started
}

/// Writes queued lines until the queue is closed or the program is gone.
async fn write(mut stdin: ChildStdin, mut lines: mpsc::UnboundedReceiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        if stdin.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Passes whole lines of the program's standard error on to `own`, that of this process, up to [`STDERR_MAX`] bytes.
async fn pass_on(stderr: impl AsyncRead + Unpin, mut own: impl AsyncWrite + Unpin) {
    let (mut stderr, mut line, mut passed) = (BufReader::new(stderr), Vec::new(), 0);
    loop {
        line.clear();
        match (&mut stderr).take(LINE_MAX as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => {
                let _ = own.flush().await;
                return;
            }
            Ok(_) if passed > STDERR_MAX => {}
            Ok(read) => {
                passed += read;
                // Nobody reads the log: the program goes on all the same.
                let _ = own.write_all(&line).await;
                if passed > STDERR_MAX {
                    tracing::warn!("the program has written {passed} bytes to its standard error; the rest is dropped");
                }
            }
        }
    }
}

/// Reads lines until the program closes its output, then waits for its end, and for the end of its standard error.
async fn read(
    mut child: Child,
    stdout: ChildStdout,
    said: mpsc::Sender<Said>,
    group: Group,
    passed_on: Option<JoinHandle<()>>,
) {
    let mut stdout = BufReader::new(stdout);
    let mut lines = 0;
    loop {
        let line = tokio::select! {
            line = next_line(&mut stdout, lines + 1) => line,
            // Nobody listens: the process was dropped, and its group was killed.
            () = said.closed() => None,
        };
        let Some(line) = line else { break };
        lines += 1;
        if said.send(line).await.is_err() {
            break;
        }
    }
    let status = timeout(ENDS_WITHIN, child.wait()).await.ok().and_then(Result::ok);
    group.kill();
    if status.is_none() {
        // The group was killed, so this ends at once.
        let _ = child.wait().await;
    }
    if let Some(passed_on) = passed_on {
        // A process that left the group may keep the pipe open.
        let _ = timeout(LAST_WORDS_WITHIN, passed_on).await;
    }
    // Nobody may be interested any more.
    let _ = said.send(Said::Ended(lines, status)).await;
}

/// Reads one line without its end. The last line of a program may have no end.
async fn next_line(stdout: &mut BufReader<ChildStdout>, number: u64) -> Option<Said> {
    let mut line = Vec::new();
    loop {
        let chunk = stdout.fill_buf().await.ok()?;
        if chunk.is_empty() {
            return (!line.is_empty()).then_some(Said::Line(number, line));
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
        let read = end.map_or(chunk.len(), |end| end + 1);
        stdout.consume(read);
        if line.len() > LINE_MAX {
            return Some(Said::TooLong(number, line));
        }
        if end.is_some() {
            return Some(Said::Line(number, line));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_log_that_is_too_long_is_read_to_its_end() {
        let long = "a line of a log\n".repeat(STDERR_MAX / 8);
        let (mut log, mut passed) = (long.as_bytes(), Vec::<u8>::new());
        assert_eq!(pass_on(&mut log, &mut passed).now_or_never(), Some(()));
        assert!(log.is_empty(), "the program would block");
        assert!((STDERR_MAX..=STDERR_MAX + LINE_MAX).contains(&passed.len()), "{} bytes", passed.len());
    }
}
