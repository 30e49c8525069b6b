//! `harness client check`: tries every message of the protocol on a client program, on this machine.

mod checks;

use std::{net::TcpListener, time::Duration};

use anyhow::Context;
use history::drift;
use locks::{
    BootClock, Clock,
    program::{Answer, Broken, Done, ErrorCode, ProgramCommand, ProgramProcess, ProgramServer, Request, answer_within},
};

use self::checks::Check;
use crate::{
    cli::{ClientArgs, ClientCheckArgs, ClientCommand},
    exit::{Exit, Interrupted, Unusable},
    program::words,
    report::print,
};

/// The time in which a program must answer `init`.
const INIT_WITHIN: Duration = Duration::from_secs(10);
/// The time in which a program must end at the end of its input.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// The time after a lease in which its key must be gone.
const EXPIRES_WITHIN: Duration = Duration::from_secs(1);
/// The longest lease for whose end a check waits, as long as that of a run.
const LEASE_MAX: Duration = Duration::from_secs(600);

/// The claim that a check proves; the problem, if it does not hold.
type Outcome = Result<String, String>;

/// `harness client`
pub fn client(args: &ClientArgs) -> anyhow::Result<Exit> {
    let ClientCommand::Check(args) = &args.command;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        tokio::select! {
            checked = check(args) => checked,
            // The end of the checks kills the programs: each has a process group of its own, which no Ctrl-C reaches.
            _ = tokio::signal::ctrl_c() => Err(Interrupted.into()),
        }
    })
}

async fn check(args: &ClientCheckArgs) -> anyhow::Result<Exit> {
    if args.lease < Duration::from_millis(50) || args.lease > LEASE_MAX {
        let lease = humantime::format_duration(args.lease);
        return Err(crate::exit::usage("lease", format!("{lease} is outside 50ms to 10m")));
    }
    let command = ProgramCommand { words: words(&args.program)?, dir: None };
    let server = |(name, address): &(String, String)| {
        let (host, port) = address.rsplit_once(':').unwrap_or_default();
        ProgramServer { name: name.clone(), host: host.to_owned(), port: port.parse().unwrap_or_default() }
    };
    let servers: Vec<ProgramServer> = args.server.iter().map(server).collect();
    let mut bench = Bench { command, servers, lease: args.lease, keys: 0, owners: 0, first: None, second: None };
    match bench.both().await {
        Ok(()) => say("init", &Ok("two processes of the program answered".into()))?,
        Err(Broken::NotStarted { command, why }) => {
            return Err(Unusable(format!("cannot start the program `{command}`: {why}")).into());
        }
        Err(broken) => {
            say("init", &Err(broken.to_string()))?;
            print("1 check failed; the other checks need `init`\n")?;
            return Ok(Exit::Violated);
        }
    }
    let mut failed = 0;
    for check in Check::ALL {
        let outcome = bench.run(check).await;
        failed += usize::from(outcome.is_err());
        say(check.name(), &outcome)?;
    }
    let all = Check::ALL.len() + 1;
    print(&match failed {
        0 => format!("all {all} checks passed\n"),
        failed => format!("{failed} of {all} checks failed; docs/client-protocol.md describes the messages\n"),
    })?;
    Ok(if failed == 0 { Exit::Ok } else { Exit::Violated })
}

fn say(name: &str, outcome: &Outcome) -> anyhow::Result<()> {
    print(&match outcome {
        Ok(claim) => format!("ok      {name}: {claim}\n"),
        Err(problem) => format!("FAILED  {name}: {problem}\n"),
    })
}

/// Two processes of the program, as two clients.
struct Bench {
    command: ProgramCommand,
    servers: Vec<ProgramServer>,
    lease: Duration,
    keys: u32,
    owners: u32,
    first: Option<ProgramProcess>,
    second: Option<ProgramProcess>,
}

/// One of the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    First,
    Second,
}

use Who::{First, Second};

/// The key and the owner of an attempt.
struct Attempt {
    key: String,
    owner: String,
}

impl Bench {
    fn slot(&mut self, who: Who) -> &mut Option<ProgramProcess> {
        match who {
            First => &mut self.first,
            Second => &mut self.second,
        }
    }

    async fn started(&self, servers: &[ProgramServer]) -> Result<(ProgramProcess, Answer), Broken> {
        let mut process = ProgramProcess::start(&self.command)?;
        let init = Request::Init { servers: servers.to_vec(), lease_ms: self.lease_ms() };
        let id = process.send(&init);
        let answer = process.answer(&init, id, INIT_WITHIN, &BootClock).await?;
        Ok((process, answer))
    }

    /// Makes sure that both processes run: a check may have broken one.
    async fn both(&mut self) -> Result<(), Broken> {
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

    async fn run(&mut self, check: Check) -> Outcome {
        self.both().await.map_err(|broken| format!("starting the program again: {broken}"))?;
        match check {
            Check::Acquire => self.acquire().await,
            Check::Held => self.held().await,
            Check::Renew => self.renew().await,
            Check::Release => self.release().await,
            Check::ForeignRelease => self.foreign_release().await,
            Check::Expiry => self.expiry().await,
            Check::LateRelease => self.late_release().await,
            Check::Cancel => self.cancel().await,
            Check::Unknown => self.unknown().await,
            Check::Timeout => self.timeout().await,
            Check::End => self.end().await,
        }
    }

    fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// A key that no check and no other call has used.
    fn fresh_key(&mut self) -> String {
        self.keys += 1;
        format!("harness-check-{}-{}", std::process::id(), self.keys)
    }

    fn attempt(&mut self, key: &str) -> Attempt {
        self.owners += 1;
        Attempt { key: key.to_owned(), owner: format!("check-{}-{}", std::process::id(), self.owners) }
    }

    /// Sends a request and reads the answer. A process that broke the protocol is gone.
    async fn ask(&mut self, who: Who, request: Request) -> Result<Answer, String> {
        let within = answer_within(self.lease);
        let Some(process) = self.slot(who) else { return Err("the program does not run".into()) };
        let id = process.send(&request);
        match process.answer(&request, id, within, &BootClock).await {
            Ok(answer) => Ok(answer),
            Err(broken) => {
                *self.slot(who) = None;
                Err(broken.to_string())
            }
        }
    }

    /// The problem of the last answer of a process, with its line.
    fn wrong(&mut self, who: Who, expected: &str) -> String {
        let Some(process) = self.slot(who) else { return format!("expected {expected}") };
        let (number, line) = process.last_line();
        format!("expected {expected}; line {number} of the program's standard output: {line}")
    }

    async fn acquires(&mut self, who: Who, attempt: &Attempt) -> Result<Answer, String> {
        let (key, owner, lease_ms) = (attempt.key.clone(), attempt.owner.clone(), self.lease_ms());
        self.ask(who, Request::Acquire { key, owner, lease_ms }).await
    }

    async fn releases(&mut self, who: Who, attempt: &Attempt) -> Result<Answer, String> {
        self.ask(who, Request::Release { key: attempt.key.clone(), owner: attempt.owner.clone() }).await
    }

    /// Acquires a lock that must be free.
    async fn must_acquire(&mut self, who: Who, key: &str, when: &str) -> Result<(Attempt, Done), String> {
        let attempt = self.attempt(key);
        match self.acquires(who, &attempt).await? {
            Answer::Done(done) => Ok((attempt, done)),
            Answer::Failed { .. } => Err(self.wrong(who, &format!("`\"ok\":true` of `acquire` {when}"))),
        }
    }

    /// Tries to acquire a lock that another client holds.
    async fn must_be_held(&mut self, who: Who, key: &str, when: &str) -> Result<(), String> {
        let attempt = self.attempt(key);
        match self.acquires(who, &attempt).await? {
            Answer::Failed { error: ErrorCode::Held, .. } => Ok(()),
            Answer::Failed { .. } => Err(self.wrong(who, &format!("the error `held` of `acquire` {when}"))),
            Answer::Done(_) => {
                let problem = format!("the error `held` of `acquire` {when}: two clients would hold the lock");
                let problem = self.wrong(who, &problem);
                self.releases(who, &attempt).await?;
                Err(problem)
            }
        }
    }

    /// Returns the lease that an answer promises.
    fn promised(&self, done: Done) -> Duration {
        done.lease_ms.map_or(self.lease, Duration::from_millis)
    }

    /// Returns the time after which the lock that the first process has just acquired must be free.
    fn lasts(&mut self, done: Done) -> Result<Duration, String> {
        let lease = self.promised(done).max(self.lease);
        if lease <= LEASE_MAX {
            return Ok(lease);
        }
        let longest = LEASE_MAX.as_millis();
        Err(self.wrong(First, &format!("`lease_ms` of at most {longest}: this check waits for the end of the lease")))
    }

    /// Checks that a program relies on its lock no longer than the lease of its answer promises.
    fn must_end_with_lease(&mut self, who: Who, done: Done) -> Result<(), String> {
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

    async fn must_release(&mut self, who: Who, attempt: &Attempt) -> Result<(), String> {
        match self.releases(who, attempt).await? {
            Answer::Done(_) => Ok(()),
            Answer::Failed { .. } => Err(self.wrong(who, "`\"ok\":true` of `release` by the holder")),
        }
    }

    async fn acquire(&mut self) -> Outcome {
        let key = self.fresh_key();
        let (attempt, one) = self.must_acquire(First, &key, "of a free lock").await?;
        self.must_end_with_lease(First, one)?;
        self.must_release(First, &attempt).await?;
        let (attempt, other) = self.must_acquire(Second, &key, "of a lock that was released").await?;
        self.must_end_with_lease(Second, other)?;
        if let (Some(one), Some(other)) = (one.token, other.token)
            && other <= one
        {
            return Err(self.wrong(Second, &format!("a token larger than {one}, that of the hold before")));
        }
        self.must_release(Second, &attempt).await?;
        if one.token.is_some() != other.token.is_some() {
            return Err(self.wrong(Second, "a token in both answers, or in neither"));
        }
        let token = if one.token.is_some() { "; tokens grow (run with --tokens own)" } else { "; no tokens" };
        Ok(format!("a free lock is acquired, released and acquired again{token}"))
    }

    async fn held(&mut self) -> Outcome {
        let key = self.fresh_key();
        let (attempt, _) = self.must_acquire(First, &key, "of a free lock").await?;
        let held = self.must_be_held(Second, &key, "while another client holds the lock").await;
        let released = self.must_release(First, &attempt).await;
        held.and(released).map(|()| "another client is refused while the lock is held".into())
    }

    async fn renew(&mut self) -> Outcome {
        let key = self.fresh_key();
        let (attempt, done) = self.must_acquire(First, &key, "of a free lock").await?;
        let sent = BootClock.now();
        self.lasts(done)?;
        // Servers may grant a shorter lease than was asked for.
        let lease = self.promised(done);
        BootClock.sleep_until(sent + lease / 2).await;
        let renew = Request::Renew { key: key.clone(), owner: attempt.owner.clone(), lease_ms: self.lease_ms() };
        match self.ask(First, renew).await? {
            Answer::Done(done) => {
                self.must_end_with_lease(First, done)?;
                BootClock.sleep_until(sent + lease + lease / 4).await;
                self.must_be_held(Second, &key, "after the first lease, because the holder renewed it").await?;
                self.releases(First, &attempt).await?;
                Ok("a renewed lock outlives its first lease".into())
            }
            Answer::Failed { error: ErrorCode::Unsupported, .. } => {
                self.must_release(First, &attempt).await?;
                Ok("unsupported (do not use --renew in runs)".into())
            }
            Answer::Failed { .. } => Err(self.wrong(First, "`\"ok\":true` of `renew` by the holder, or `unsupported`")),
        }
    }

    async fn release(&mut self) -> Outcome {
        let (key, other) = (self.fresh_key(), self.fresh_key());
        let (attempt, _) = self.must_acquire(First, &key, "of a free lock").await?;
        let (beside, _) = self.must_acquire(First, &other, "of a free lock by the holder of another lock").await?;
        self.must_release(First, &beside).await?;
        self.must_release(First, &attempt).await?;
        let (next, _) = self.must_acquire(Second, &key, "of a lock that was released").await?;
        // The answer may be ok or an error; the lock of the second client must stay.
        self.releases(First, &attempt).await?;
        let held = self.must_be_held(First, &key, "after the former holder has released the lock twice").await;
        let released = self.must_release(Second, &next).await;
        let claim = "the holder of two locks releases each; a second release of the former holder does nothing";
        held.and(released).map(|()| claim.into())
    }

    async fn foreign_release(&mut self) -> Outcome {
        let key = self.fresh_key();
        let (attempt, _) = self.must_acquire(First, &key, "of a free lock").await?;
        let stranger = self.attempt(&key);
        self.releases(Second, &stranger).await?;
        let held = self.must_be_held(Second, &key, "after a release by an owner that never had the lock").await;
        let released = self.must_release(First, &attempt).await;
        held.and(released).map(|()| "a release by an owner that never had the lock does nothing".into())
    }

    /// Lets the second client acquire a lock whose holder does nothing, after this lease. Returns whether the holder's
    /// process had to be killed for that.
    async fn outlived(&mut self, key: &str, lease: Duration) -> Result<(Attempt, bool), String> {
        let asked = BootClock.now();
        BootClock.sleep_until(asked + lease + EXPIRES_WITHIN).await;
        let attempt = self.attempt(key);
        if let Answer::Done(_) = self.acquires(Second, &attempt).await? {
            return Ok((attempt, false));
        }
        self.first = None;
        BootClock.sleep_until(BootClock.now() + lease + EXPIRES_WITHIN).await;
        let when = "after the lease of the holder, and after the holder's process was killed";
        Ok((self.must_acquire(Second, key, when).await?.0, true))
    }

    async fn expiry(&mut self) -> Outcome {
        let key = self.fresh_key();
        let sent = BootClock.now();
        let (_, done) = self.must_acquire(First, &key, "of a free lock").await?;
        let lease = self.lasts(done)?;
        BootClock.sleep_until(sent + self.promised(done) / 2).await;
        self.must_be_held(Second, &key, "in the middle of the lease").await?;
        let (attempt, by_session) = self.outlived(&key, lease).await?;
        self.must_release(Second, &attempt).await?;
        Ok(match by_session {
            false => "the lock of a silent holder is free after its lease".into(),
            true => "the lock is free when the holder's process has ended, not before: a session, not a lease".into(),
        })
    }

    async fn late_release(&mut self) -> Outcome {
        let key = self.fresh_key();
        let (late, done) = self.must_acquire(First, &key, "of a free lock").await?;
        let lease = self.lasts(done)?;
        let (attempt, by_session) = self.outlived(&key, lease).await?;
        if by_session {
            self.must_release(Second, &attempt).await?;
            return Ok("a session does not expire".into());
        }
        self.releases(First, &late).await?;
        let held = self.must_be_held(First, &key, "after a holder whose lease has ended released the lock").await;
        self.releases(Second, &attempt).await?;
        held.map(|()| "a release after the lease has ended does nothing".into())
    }

    async fn cancel(&mut self) -> Outcome {
        let key = self.fresh_key();
        let (attempt, _) = self.must_acquire(First, &key, "of a free lock").await?;
        let cancel = Request::Cancel { key: key.clone(), owner: attempt.owner };
        if let Answer::Failed { error: ErrorCode::Unsupported, .. } = self.ask(First, cancel).await? {
            return Ok("unsupported (do not use --cancel in runs)".into());
        }
        let (next, _) = self.must_acquire(Second, &key, "after the holder's attempt was cancelled").await?;
        self.must_release(Second, &next).await?;
        Ok("a cancelled attempt leaves the lock free".into())
    }

    async fn unknown(&mut self) -> Outcome {
        if let Answer::Done(_) = self.ask(First, Request::Unknown).await? {
            return Err(self.wrong(First, "an error such as `unsupported` of a request that the program does not know"));
        }
        let key = self.fresh_key();
        let (attempt, _) = self.must_acquire(First, &key, "after a request that the program does not know").await?;
        self.must_release(First, &attempt).await?;
        Ok("a request that the program does not know is refused, and the program goes on".into())
    }

    /// Lets the program ask servers that take its connection and never answer.
    async fn timeout(&mut self) -> Outcome {
        let silent = TcpListener::bind("127.0.0.1:0").and_then(|silent| Ok((silent.local_addr()?.port(), silent)));
        let (port, _silent) = silent.map_err(|e| format!("opening a port that never answers: {e}"))?;
        let servers = self.servers.iter();
        let servers: Vec<ProgramServer> =
            servers.map(|server| ProgramServer { host: "127.0.0.1".into(), port, ..server.clone() }).collect();
        let started = self.started(&servers).await;
        let (process, answer) = started.map_err(|broken| format!("servers that never answer: {broken}"))?;
        self.first = None;
        if let Answer::Failed { .. } = answer {
            return Ok("`init` is refused if no server answers".into());
        }
        self.first = Some(process);
        let key = self.fresh_key();
        let attempt = self.attempt(&key);
        let asked = self.acquires(First, &attempt).await;
        let answer = asked.map_err(|problem| format!("servers that never answer: {problem}"))?;
        let outcome = match answer {
            Answer::Failed { error: ErrorCode::Timeout | ErrorCode::Error, .. } => {
                Ok("`acquire` is indeterminate if no server answers".into())
            }
            _ => Err(self.wrong(First, "the error `timeout` or `error` of `acquire` if no server answers")),
        };
        self.first = None;
        outcome
    }

    async fn end(&mut self) -> Outcome {
        for who in [First, Second] {
            let Some(process) = self.slot(who) else { continue };
            process.close_input();
            if !process.has_ended(ENDS_WITHIN).await {
                *self.slot(who) = None;
                return Err(format!(
                    "expected the program to end within {ENDS_WITHIN:?} at the end of its input, and not to close its \
                     standard output before that"
                ));
            }
            *self.slot(who) = None;
        }
        Ok("the program ends when its standard input does".into())
    }
}
