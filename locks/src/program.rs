//! The lock of a client program: a process in any language that speaks JSON lines (`docs/client-protocol.md`).
//!
//! The program decides everything about the lock. The harness starts it, numbers its requests, and records them around
//! the program: an invocation before the request is queued, a completion after its answer was read.
//!
//! A program that breaks the protocol cannot be relied on any more: it writes a line that is no answer, it ends, or it
//! does not answer in time. The request is then indeterminate, the program is killed, and a new one is started.
//!
//! The end of the program may end its locks, if they live with a session. So a program that is only late is not killed
//! before the last promise of its holds has ended: the harness must not cause the overlap that it looks for.
//!
//! # Validity
//!
//! The lease counts from the sending of the request, as for every lock. A program may say for how long it relies on
//! the lock (`valid_ms`). The harness counts this time from the sending of the request, too: the program computed it
//! later, so the harness never believes longer than the program. A program that says nothing is believed until the
//! promise ends. Its `acquire` is taken as it comes: whoever uses such a lock has no means to notice that the answer
//! came too late.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Mutex, MutexGuard};

use crate::{
    clock::RawClock,
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, NodeAnswers, Outcome, Owner, Released, Renewed, Token},
    ports::{Cleanup, Clock, Lock, Operation, Round, Watch},
    servers::{ServerAddress, TokenSource},
    validity,
};

mod messages;
mod process;

pub use messages::{Answer, Done, ErrorCode, ProgramServer, Request, shortened};
pub use process::{Broken, ProgramCommand, ProgramProcess};

/// The name of the program in answers. It is no lock node: the answers of the nodes are known to the program alone.
const NAME: &str = "program";
/// The time in which a program must answer `init`.
const INIT_WITHIN: Duration = Duration::from_secs(10);
/// The longest time for which the harness waits for an answer because of a promise, unless the lease of the run is
/// longer. A program may name any lease, and a run waits about 90 s for its last answers.
const PROMISE_WAIT_MAX: Duration = Duration::from_secs(60);

/// The time in which a program must answer a request: one lease, but at least 1 s and at most 10 s. In a run the
/// harness waits until the last promise of the program ends, if that is later.
pub fn answer_within(lease: Duration) -> Duration {
    lease.clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// The lock of one client program. See [the module](self). It serves one client.
pub struct Program {
    command: ProgramCommand,
    init: Request,
    /// The lease of `init`.
    lease: Duration,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
    promise_wait_max: Duration,
    process: Mutex<Option<ProgramProcess>>,
    restarts: AtomicU64,
    granted: parking_lot::Mutex<Granted>,
}

/// The holds that the running program has granted. Times are those of [`RawClock`]: no clock fault shortens them.
#[derive(Default)]
struct Granted {
    /// The latest end of the lease of each hold, until the hold is released or given up.
    ends: BTreeMap<Owner, Duration>,
    /// The latest end of the lease of a hold that was given up: the client relies on the promise to its end.
    given_up: Duration,
}

impl Granted {
    /// Returns the latest end of a lease.
    fn latest(&self) -> Duration {
        self.ends.values().copied().fold(self.given_up, Duration::max)
    }

    /// Returns what is left of the lease of a hold, rounded up to milliseconds; zero of a hold that is not known.
    fn left(&self, owner: &Owner) -> Duration {
        let left = |end: &Duration| Duration::from_millis(millis(end.saturating_sub(RawClock.now())) + 1);
        self.ends.get(owner).map_or(Duration::ZERO, left)
    }

    /// Notes a renewal. A renewal shortens no lease.
    fn renewed(&mut self, owner: &Owner, end: Duration) {
        if let Some(known) = self.ends.get_mut(owner) {
            *known = end.max(*known);
        }
    }

    /// Notes the request to release a hold, which ends the promise.
    fn releasing(&mut self, owner: &Owner) {
        if let Some(known) = self.ends.get_mut(owner) {
            *known = Duration::ZERO;
        }
    }

    fn gave_up(&mut self, owner: &Owner) {
        let end = self.ends.remove(owner).unwrap_or_default();
        self.given_up = end.max(self.given_up);
    }
}

impl Program {
    /// The token sources of this lock.
    pub const TOKENS: &[TokenSource] = &[TokenSource::None, TokenSource::Own];

    /// The lock of the program of this command. Nothing is started yet.
    ///
    /// # Errors
    /// The address of a server is not `host:port`.
    pub fn new(
        command: ProgramCommand,
        servers: &[ServerAddress],
        lease: Duration,
        tokens: TokenSource,
        clock: Arc<dyn Clock>,
    ) -> Result<Program, String> {
        let servers = servers.iter().map(server).collect::<Result<_, _>>()?;
        let init = Request::Init { servers, lease_ms: millis(lease) };
        let promise_wait_max = lease.max(PROMISE_WAIT_MAX);
        let (process, restarts, granted) = (Mutex::default(), AtomicU64::new(0), parking_lot::Mutex::default());
        Ok(Program { command, init, lease, tokens, clock, promise_wait_max, process, restarts, granted })
    }

    /// Starts the program and waits for its answer to `init`.
    ///
    /// # Errors
    /// The program cannot be started, or does not answer as it must.
    pub async fn start(&self) -> Result<(), Broken> {
        let mut slot = self.process.lock().await;
        *slot = Some(self.started().await?);
        Ok(())
    }

    /// The number of restarts after the program broke the protocol.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    async fn started(&self) -> Result<ProgramProcess, Broken> {
        let mut process = ProgramProcess::start(&self.command)?;
        let id = process.send(&self.init);
        match process.answer(&self.init, id, INIT_WITHIN, &RawClock).await? {
            Answer::Done(_) => Ok(process),
            Answer::Failed { error, detail } => Err(Broken::NoInit { error: error.name(), detail }),
        }
    }

    /// Makes sure that a program waits for a request.
    async fn ready(&self) -> Slot<'_> {
        let asked = RawClock.now();
        let mut process = self.process.lock().await;
        let problem = match process.as_mut().map(ProgramProcess::look) {
            Some(Ok(())) => None,
            Some(Err(broken)) => {
                *process = None;
                Some(broken)
            }
            None => None,
        };
        let problem = match *process {
            Some(_) => None,
            None => self.restart(&mut process, problem).await,
        };
        Slot { process, problem, asked }
    }

    /// Starts a new program in the place of one that broke the protocol. Returns why that was not possible.
    async fn restart(&self, process: &mut Option<ProgramProcess>, why: Option<Broken>) -> Option<Broken> {
        *process = None;
        *self.granted.lock() = Granted::default();
        let number = self.restarts.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(why) = why {
            tracing::error!(restarts = number, "{why}; the program is started again");
        }
        match self.started().await {
            Ok(started) => {
                *process = Some(started);
                None
            }
            Err(broken) => {
                tracing::error!("{broken}");
                Some(broken)
            }
        }
    }

    /// Returns the time until the last lease of the running program has ended, in whole milliseconds.
    fn still_promised(&self) -> Duration {
        let left = self.granted.lock().latest().saturating_sub(RawClock.now());
        Duration::from_millis(millis(left.min(self.promise_wait_max)) + 1)
    }

    /// Announces a request about a hold, sends it, and reads its answer. The request is announced before a program is
    /// started for it, so that an operation that is given up meanwhile is in the record. The promise of a renewal then
    /// counts from before the start.
    async fn ask_anew(
        &self,
        request: &Request,
        lease: Duration,
        round: Round,
        watch: &dyn Watch,
    ) -> (Slot<'_>, Duration, Result<Done, Failure>) {
        let sent = self.clock.now();
        watch.sending(round);
        let mut slot = self.ready().await;
        let done = self.exchange(&mut slot, request, lease, round, watch).await;
        (slot, sent, done)
    }

    /// Sends a request that was announced, and reads its answer.
    async fn exchange(
        &self,
        slot: &mut Slot<'_>,
        request: &Request,
        lease: Duration,
        round: Round,
        watch: &dyn Watch,
    ) -> Result<Done, Failure> {
        let Some(process) = slot.process.as_mut() else {
            let why = slot.problem.as_ref().map_or_else(|| "the program does not run".into(), ToString::to_string);
            return Err(failure(FailureReason::Error(why), Outcome::Failed, NodeAnswer::None));
        };
        let id = process.send(request);
        watch.sent(round).await;
        // The program knows the lease of `init`. The servers may have granted the hold of the request a shorter one.
        let within = answer_within(lease.max(self.lease)).max(self.still_promised());
        match process.answer(request, id, within, &RawClock).await {
            Ok(Answer::Done(done)) => {
                watch.answered(round);
                Ok(done)
            }
            Ok(Answer::Failed { error, detail }) => {
                watch.answered(round);
                Err(refused(request, error, detail))
            }
            Err(broken) => {
                let why = broken.to_string();
                // The restart belongs to this operation: the next one must find a program that waits for it.
                slot.problem = self.restart(&mut slot.process, Some(broken)).await;
                let why = match &slot.problem {
                    None => format!("{why}; the program was started again (restart {})", self.restarts()),
                    Some(problem) => format!("{why}; starting the program again failed: {problem}"),
                };
                Err(failure(FailureReason::Error(why), Outcome::Indeterminate, NodeAnswer::None))
            }
        }
    }

    /// Announces an attempt before a program is started for it, as for other requests. But its promise counts from the
    /// request to the program: a program promises nothing before. Otherwise a start that takes a lease would make a
    /// dead claim of each hold.
    async fn attempt(&self, key: &Key, owner: Owner, lease: Duration, watch: &dyn Watch) -> Result<Hold, Failure> {
        let request =
            Request::Acquire { key: key.as_str().into(), owner: owner.as_str().into(), lease_ms: millis(lease) };
        watch.sending(Round::Acquire);
        let mut slot = self.ready().await;
        // The program gets the request only now: before, it may have been started anew, or have answered another one.
        let sent = self.clock.now();
        watch.promising();
        slot.asked = RawClock.now();
        let done = self.exchange(&mut slot, &request, lease, Round::Acquire, watch).await?;
        let lease = done.lease_ms.map_or(lease, Duration::from_millis);
        let valid_until = valid_until(sent, lease, done);
        if done.valid_ms.is_some() && self.clock.now() >= valid_until {
            self.undo(&mut slot, release(key, &owner), lease, watch).await;
            return Err(failure(FailureReason::Validity, Outcome::Failed, NodeAnswer::Late));
        }
        watch.promised();
        self.granted.lock().ends.insert(owner.clone(), slot.asked.saturating_add(lease));
        let token = done.token.map(Token).filter(|_| self.tokens != TokenSource::None);
        let answers = answered(NodeAnswer::Granted);
        Ok(Hold { key: key.clone(), owner, token, lease, sent, valid_until, answers })
    }

    async fn undo(&self, slot: &mut Slot<'_>, request: Request, lease: Duration, watch: &dyn Watch) {
        watch.undoing();
        watch.sending(Round::Undo);
        let undone = self.exchange(slot, &request, lease, Round::Undo, watch).await;
        watch.undone(&match undone {
            Ok(_) => answered(NodeAnswer::Done),
            Err(failure) => failure.answers,
        });
    }

    /// The failure of a request about a hold. A program that was started again knows nothing of the hold, so its `lost`
    /// says nothing about the lock.
    fn of_hold(&self, hold: &Hold, failed: Failure) -> Failure {
        if failed.reason != FailureReason::Lost || self.granted.lock().ends.contains_key(&hold.owner) {
            return failed;
        }
        let why = "the program was started again since it acquired the lock, and does not know the hold".to_owned();
        failure(FailureReason::Error(why), Outcome::Indeterminate, NodeAnswer::None)
    }

    /// Like every renewal, it revives no hold that has lapsed. It shortens a hold only if the program says so, by
    /// `lease_ms` or by `valid_ms`.
    async fn extend(&self, hold: &mut Hold, lease: Duration, watch: &dyn Watch) -> Result<Renewed, Failure> {
        if self.clock.now() >= hold.valid_until {
            return Err(failure(FailureReason::Validity, Outcome::Failed, NodeAnswer::None));
        }
        // The program may let the lock last for exactly this time, and no renewal shortens a promise.
        let lease = lease.max(self.granted.lock().left(&hold.owner));
        let (key, owner) = (hold.key.as_str().into(), hold.owner.as_str().into());
        let request = Request::Renew { key, owner, lease_ms: millis(lease) };
        let (slot, sent, done) = self.ask_anew(&request, lease, Round::Renew, watch).await;
        let done = done.map_err(|failed| self.of_hold(hold, failed))?;
        let lease = done.lease_ms.map_or(lease, Duration::from_millis);
        let valid_until = valid_until(sent, lease, done);
        if self.clock.now() >= valid_until.min(hold.valid_until) {
            return Err(failure(FailureReason::Validity, Outcome::Failed, NodeAnswer::Late));
        }
        self.granted.lock().renewed(&hold.owner, slot.asked.saturating_add(lease));
        if valid_until > hold.valid_until || done.lease_ms.is_some() || done.valid_ms.is_some() {
            (hold.sent, hold.lease, hold.valid_until) = (sent, lease, valid_until);
        }
        Ok(Renewed { valid_until: hold.valid_until, answers: answered(NodeAnswer::Done) })
    }

    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let request = release(&hold.key, &hold.owner);
        self.granted.lock().releasing(&hold.owner);
        let (_slot, _, done) = self.ask_anew(&request, hold.lease, Round::Release, watch).await;
        let done = done.map_err(|failed| self.of_hold(hold, failed));
        self.granted.lock().ends.remove(&hold.owner);
        match done {
            Ok(_) => Ok(Released { removed: true, answers: answered(NodeAnswer::Done) }),
            Err(Failure { reason: FailureReason::Lost, answers, .. }) => Ok(Released { removed: false, answers }),
            Err(failure) => Err(failure),
        }
    }
}

/// The program, for one operation. Dropping an operation leaves its request with the program, whose late answer is
/// skipped.
struct Slot<'a> {
    process: MutexGuard<'a, Option<ProgramProcess>>,
    /// Why there is none.
    problem: Option<Broken>,
    /// The time by [`RawClock`] at which the operation asked for it, or later: that of the request to the program.
    asked: Duration,
}

impl Lock for Program {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        Box::pin(self.attempt(key, owner, lease, watch))
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(self.extend(hold, lease, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    fn gave_up(&self, hold: &Hold) {
        self.granted.lock().gave_up(&hold.owner);
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(async move {
            let mut slot = self.ready().await;
            let request = Request::Cancel { key: key.as_str().into(), owner: owner.as_str().into() };
            self.undo(&mut slot, request, lease, watch).await;
        })
    }
}

/// Splits `host:port`.
fn server(server: &ServerAddress) -> Result<ProgramServer, String> {
    let split = server.address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = split.filter(|(host, _)| !host.is_empty()) else {
        return Err(format!("`{}`: expected the address of {} as host:port", server.address, server.name));
    };
    Ok(ProgramServer { name: server.name.clone(), host: host.to_owned(), port })
}

fn release(key: &Key, owner: &Owner) -> Request {
    Request::Release { key: key.as_str().into(), owner: owner.as_str().into() }
}

fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}

/// The end of the client's belief.
fn valid_until(sent: Duration, lease: Duration, done: Done) -> Duration {
    let own = done.valid_ms.map(|valid| sent.saturating_add(Duration::from_millis(valid)));
    own.unwrap_or_else(|| validity::promise_end(sent, lease))
}

fn answered(answer: NodeAnswer) -> NodeAnswers {
    vec![(NAME.into(), answer)]
}

fn failure(reason: FailureReason, outcome: Outcome, answer: NodeAnswer) -> Failure {
    Failure { reason, outcome, answers: answered(answer) }
}

/// The failure of a request that the program did not do.
fn refused(request: &Request, error: ErrorCode, detail: String) -> Failure {
    let outcome = if error.is_definite() { Outcome::Failed } else { Outcome::Indeterminate };
    match error {
        ErrorCode::Held => failure(FailureReason::Held, outcome, NodeAnswer::Refused),
        ErrorCode::Lost => failure(FailureReason::Lost, outcome, NodeAnswer::Refused),
        ErrorCode::Refused | ErrorCode::Unsupported | ErrorCode::Timeout | ErrorCode::Error => {
            let gap = if detail.is_empty() { "" } else { ": " };
            let why = format!("the program answered `{}` to `{}`{gap}{detail}", error.name(), request.name());
            failure(FailureReason::Error(why), outcome, NodeAnswer::None)
        }
    }
}

#[cfg(test)]
mod tests;
