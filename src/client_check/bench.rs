//! The two processes of a program that is checked, and the requests of the checks.

use std::time::Duration;

use history::drift;
use locks::{
    BootClock, Clock,
    program::{Answer, Broken, Done, ErrorCode, ProgramCommand, ProgramProcess, ProgramServer, Request, answer_within},
    validity::promise_end,
};

use super::LEASE_MAX;

/// The time in which a program must answer `init`.
const INIT_WITHIN: Duration = Duration::from_secs(10);
/// The end of an expectation that rests on no promise.
pub const FOREVER: Duration = Duration::MAX;

/// The reason why a check has not passed.
#[derive(Debug)]
pub enum Problem {
    /// The program does not do what the protocol says.
    Wrong(String),
    /// An answer came too late to decide.
    Late(String),
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Problem::Wrong(problem)
    }
}

/// Two processes of the program, as two clients.
pub struct Bench {
    command: ProgramCommand,
    pub servers: Vec<ProgramServer>,
    pub lease: Duration,
    keys: u32,
    owners: u32,
    pub first: Option<ProgramProcess>,
    second: Option<ProgramProcess>,
    /// The time at which the last answer was read.
    answered: Duration,
}

/// One of the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    First,
    Second,
}

use Who::{First, Second};

/// The key and the owner of an attempt.
pub struct Attempt {
    pub key: String,
    pub owner: String,
}

/// An attempt that was granted.
pub struct Grant {
    pub attempt: Attempt,
    pub done: Done,
    /// The end of its promise.
    pub until: Duration,
}

impl Bench {
    pub fn new(command: ProgramCommand, servers: Vec<ProgramServer>, lease: Duration) -> Bench {
        let answered = BootClock.now();
        Bench { command, servers, lease, keys: 0, owners: 0, first: None, second: None, answered }
    }

    pub fn slot(&mut self, who: Who) -> &mut Option<ProgramProcess> {
        match who {
            First => &mut self.first,
            Second => &mut self.second,
        }
    }

    pub async fn started(&self, servers: &[ProgramServer]) -> Result<(ProgramProcess, Answer), Broken> {
        let mut process = ProgramProcess::start(&self.command)?;
        let init = Request::Init { servers: servers.to_vec(), lease_ms: self.lease_ms() };
        let id = process.send(&init);
        let answer = process.answer(&init, id, INIT_WITHIN, &BootClock).await?;
        Ok((process, answer))
    }

    /// Makes sure that both processes run: a check may have broken one.
    pub async fn both(&mut self) -> Result<(), Broken> {
        for who in [First, Second] {
            if self.slot(who).is_none() {
                let (process, answer) = self.started(&self.servers.clone()).await?;
                if let Answer::Failed { error, detail } = answer {
                    return Err(Broken::NoInit { error: error.name(), detail });
                }
                *self.slot(who) = Some(process);
            }
        }
        Ok(())
    }

    pub fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// A key that no check and no other call has used.
    pub fn fresh_key(&mut self) -> String {
        self.keys += 1;
        format!("harness-check-{}-{}", std::process::id(), self.keys)
    }

    pub fn attempt(&mut self, key: &str) -> Attempt {
        self.owners += 1;
        Attempt { key: key.to_owned(), owner: format!("check-{}-{}", std::process::id(), self.owners) }
    }

    /// Sends a request and reads the answer. A process that broke the protocol is gone.
    pub async fn ask(&mut self, who: Who, request: Request) -> Result<Answer, String> {
        let within = answer_within(self.lease);
        let Some(process) = self.slot(who) else { return Err("the program does not run".into()) };
        let id = process.send(&request);
        let answer = process.answer(&request, id, within, &BootClock).await;
        self.answered = BootClock.now();
        answer.map_err(|broken| {
            *self.slot(who) = None;
            broken.to_string()
        })
    }

    /// The problem of the last answer of a process, with its line.
    pub fn wrong(&mut self, who: Who, expected: &str) -> String {
        let Some(process) = self.slot(who) else { return format!("expected {expected}") };
        let (number, line) = process.last_line();
        format!("expected {expected}; line {number} of the program's standard output: {line}")
    }

    /// The problem of the last answer of a process, if the expectation rests on a promise that ends at `until`. An
    /// answer that was read later decides nothing, because the servers may have given it after the end. Neither does
    /// `timeout`, because the servers gave no answer.
    pub fn unexpected(&mut self, who: Who, answer: &Answer, expected: &str, until: Duration) -> Problem {
        let problem = self.wrong(who, expected);
        if self.answered >= until {
            return Problem::Late(format!("{problem}, read after the promise of the holder had ended"));
        }
        if is_timeout(answer) { Problem::Late(problem) } else { Problem::Wrong(problem) }
    }

    /// Makes an attempt. Returns the answer instead if the lock is not granted.
    pub async fn tries(&mut self, who: Who, key: &str) -> Result<Result<Grant, Answer>, String> {
        let (attempt, lease_ms, sent) = (self.attempt(key), self.lease_ms(), BootClock.now());
        let (key, owner) = (attempt.key.clone(), attempt.owner.clone());
        Ok(match self.ask(who, Request::Acquire { key, owner, lease_ms }).await? {
            Answer::Done(done) => Ok(Grant { attempt, done, until: promise_end(sent, self.promised(done)) }),
            failed @ Answer::Failed { .. } => Err(failed),
        })
    }

    pub async fn releases(&mut self, who: Who, attempt: &Attempt) -> Result<Answer, String> {
        self.ask(who, Request::Release { key: attempt.key.clone(), owner: attempt.owner.clone() }).await
    }

    /// Acquires a lock that must be free.
    pub async fn must_acquire(&mut self, who: Who, key: &str, when: &str) -> Result<Grant, Problem> {
        let tried = self.tries(who, key).await?;
        tried.map_err(|answer| self.unexpected(who, &answer, &format!("`\"ok\":true` of `acquire` {when}"), FOREVER))
    }

    /// Tries to acquire a lock that another client holds.
    pub async fn must_be_held(&mut self, who: Who, hold: &Grant, when: &str) -> Result<(), Problem> {
        let expected = format!("the error `held` of `acquire` {when}");
        match self.tries(who, &hold.attempt.key).await? {
            Err(Answer::Failed { error: ErrorCode::Held, .. }) => Ok(()),
            Err(answer) => Err(self.unexpected(who, &answer, &expected, hold.until)),
            Ok(Grant { attempt, done, .. }) => {
                let is_proof = self.answered < hold.until;
                let two = if is_proof { ": two clients would hold the lock" } else { "" };
                let problem = self.unexpected(who, &Answer::Done(done), &format!("{expected}{two}"), hold.until);
                self.releases(who, &attempt).await?;
                Err(problem)
            }
        }
    }

    pub async fn must_release(&mut self, who: Who, hold: &Grant) -> Result<(), Problem> {
        match self.releases(who, &hold.attempt).await? {
            Answer::Done(_) => Ok(()),
            answer => Err(self.unexpected(who, &answer, "`\"ok\":true` of `release` by the holder", hold.until)),
        }
    }

    /// Returns the lease that an answer promises.
    pub fn promised(&self, done: Done) -> Duration {
        done.lease_ms.map_or(self.lease, Duration::from_millis)
    }

    /// Returns the time after which the lock that the first process has just acquired must be free.
    pub fn lasts(&mut self, done: Done) -> Result<Duration, String> {
        let lease = self.promised(done).max(self.lease);
        if lease <= LEASE_MAX {
            return Ok(lease);
        }
        let longest = LEASE_MAX.as_millis();
        Err(self.wrong(First, &format!("`lease_ms` of at most {longest}: this check waits for the end of the lease")))
    }

    /// Checks that a program relies on its lock no longer than the lease of its answer promises.
    pub fn must_end_with_lease(&mut self, who: Who, done: Done) -> Result<(), String> {
        let lease = self.promised(done);
        let longest = lease.saturating_sub(drift(lease)).as_millis();
        if done.valid_ms.is_none_or(|valid| u128::from(valid) <= longest) {
            return Ok(());
        }
        let expected = format!(
            "`valid_ms` of at most {longest}: the lease of {} ms less 1 % and 2 ms, because clocks drift. Otherwise \
             each hold is an overclaim",
            lease.as_millis()
        );
        Err(self.wrong(who, &expected))
    }
}

/// Returns whether the program got no answer from its servers in time.
pub fn is_timeout(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed { error: ErrorCode::Timeout, .. })
}
