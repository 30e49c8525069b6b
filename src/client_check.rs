//! `harness client check`: tries every message of the protocol on a client program, on this machine.

mod bench;
mod checks;
#[cfg(test)]
mod tests;

use std::{net::TcpListener, time::Duration};

use anyhow::Context;
use locks::{
    BootClock, Clock,
    program::{Answer, Broken, ErrorCode, ProgramCommand, ProgramServer, Request},
    validity::promise_end,
};

use self::{
    bench::{
        Bench, FOREVER, Grant, Problem,
        Who::{First, Second},
        is_timeout,
    },
    checks::Check,
};
use crate::{
    cli::{ClientArgs, ClientCheckArgs, ClientCommand},
    exit::{Exit, Interrupted, Unusable},
    program::words,
    report::print,
    signals::signalled,
};

/// The time in which a program must end at the end of its input. On a busy machine an end takes seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// The time after a lease in which its key must be gone.
const EXPIRES_WITHIN: Duration = Duration::from_secs(1);
/// The longest lease for whose end a check waits, as long as that of a run.
const LEASE_MAX: Duration = Duration::from_secs(600);
/// How often a check is made whose answers come too late to decide.
const TRIES_MAX: u32 = 3;

/// The claim that a check proves; the problem, if it does not hold.
type Outcome = Result<String, Problem>;

/// `harness client`
pub fn client(args: &ClientArgs) -> anyhow::Result<Exit> {
    let ClientCommand::Check(args) = &args.command;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        tokio::select! {
            // Listens before the first program starts.
            biased;
            // The end of the checks kills the programs: each has a process group of its own, which no signal reaches.
            come = signalled() => come.and_then(|()| Err(Interrupted.into())),
            checked = check(args) => checked,
        }
    })
}

async fn check(args: &ClientCheckArgs) -> anyhow::Result<Exit> {
    if args.lease < Duration::from_millis(50) || args.lease > LEASE_MAX {
        let lease = humantime::format_duration(args.lease);
        return Err(crate::exit::usage("lease", format!("{lease} is outside 50ms to 10m")));
    }
    let is_twice = |n: usize| args.server[..n].iter().any(|(name, _)| *name == args.server[n].0);
    if let Some(twice) = (0..args.server.len()).find(|n| is_twice(*n)) {
        let problem = "is given twice; each server has a name of its own";
        return Err(crate::exit::usage("server", format!("`{}` {problem}", args.server[twice].0)));
    }
    let command = ProgramCommand { words: words(&args.program)?, dir: None };
    let servers: Vec<ProgramServer> = args.server.iter().map(server).collect();
    let mut bench = Bench::new(command, servers, args.lease);
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
        let outcome = bench.decided(check).await;
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

/// Returns a server of `--server`, as the program gets it in `init`.
fn server((name, address): &(String, String)) -> ProgramServer {
    let (host, port) = address.rsplit_once(':').unwrap_or_default();
    // The brackets of an IPv6 address belong to the notation HOST:PORT, and a program gets the two parts.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ProgramServer { name: name.clone(), host: host.to_owned(), port: port.parse().unwrap_or_default() }
}

fn say(name: &str, outcome: &Result<String, String>) -> anyhow::Result<()> {
    print(&match outcome {
        Ok(claim) => format!("ok      {name}: {claim}\n"),
        Err(problem) => format!("FAILED  {name}: {problem}\n"),
    })
}

impl Bench {
    /// Makes a check. Makes it again if its answers come too late to decide.
    async fn decided(&mut self, check: Check) -> Result<String, String> {
        let mut last = String::new();
        for _ in 0..TRIES_MAX {
            match self.run(check).await {
                Ok(claim) => return Ok(claim),
                Err(Problem::Wrong(problem)) => return Err(problem),
                Err(Problem::Late(problem)) => last = problem,
            }
        }
        let lease = humantime::format_duration(self.lease);
        Err(format!(
            "the machine is too slow for a lease of {lease}, or a server does not answer: in each of {TRIES_MAX} tries \
             an answer came too late to decide. The last one: {last}. Try a longer `--lease`"
        ))
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

    async fn acquire(&mut self) -> Outcome {
        let key = self.fresh_key();
        let one = self.must_acquire(First, &key, "of a free lock").await?;
        self.must_end_with_lease(First, one.done)?;
        self.must_release(First, &one).await?;
        let other = self.must_acquire(Second, &key, "of a lock that was released").await?;
        self.must_end_with_lease(Second, other.done)?;
        let tokens = (one.done.token, other.done.token);
        if let (Some(one), Some(other)) = tokens
            && other <= one
        {
            return Err(self.wrong(Second, &format!("a token larger than {one}, that of the hold before")).into());
        }
        self.must_release(Second, &other).await?;
        if tokens.0.is_some() != tokens.1.is_some() {
            return Err(self.wrong(Second, "a token in both answers, or in neither").into());
        }
        let token = if tokens.0.is_some() { "; tokens grow (run with --tokens own)" } else { "; no tokens" };
        Ok(format!("a free lock is acquired, released and acquired again{token}"))
    }

    async fn held(&mut self) -> Outcome {
        let key = self.fresh_key();
        let hold = self.must_acquire(First, &key, "of a free lock").await?;
        let held = self.must_be_held(Second, &hold, "while another client holds the lock").await;
        let released = self.must_release(First, &hold).await;
        held.and(released).map(|()| "another client is refused while the lock is held".into())
    }

    async fn renew(&mut self) -> Outcome {
        let key = self.fresh_key();
        let mut hold = self.must_acquire(First, &key, "of a free lock").await?;
        let acquired = BootClock.now();
        self.lasts(hold.done)?;
        // Servers may grant a shorter lease than was asked for.
        let lease = self.promised(hold.done);
        BootClock.sleep_until(acquired + lease / 2).await;
        let owner = hold.attempt.owner.clone();
        let renew = Request::Renew { key, owner, lease_ms: self.lease_ms() };
        let sent = BootClock.now();
        match self.ask(First, renew).await? {
            Answer::Done(done) => {
                self.must_end_with_lease(First, done)?;
                hold.until = promise_end(sent, self.promised(done));
                BootClock.sleep_until(acquired + lease + lease / 4).await;
                self.must_be_held(Second, &hold, "after the first lease, because the holder renewed it").await?;
                self.releases(First, &hold.attempt).await?;
                Ok("a renewed lock outlives its first lease".into())
            }
            Answer::Failed { error: ErrorCode::Unsupported, .. } => {
                self.must_release(First, &hold).await?;
                Ok("unsupported (do not use --renew in runs)".into())
            }
            answer => {
                let expected = "`\"ok\":true` of `renew` by the holder, or `unsupported`";
                Err(self.unexpected(First, &answer, expected, hold.until))
            }
        }
    }

    async fn release(&mut self) -> Outcome {
        let (key, other) = (self.fresh_key(), self.fresh_key());
        let hold = self.must_acquire(First, &key, "of a free lock").await?;
        let beside = self.must_acquire(First, &other, "of a free lock by the holder of another lock").await?;
        self.must_release(First, &beside).await?;
        self.must_release(First, &hold).await?;
        let next = self.must_acquire(Second, &key, "of a lock that was released").await?;
        // The answer may be ok or an error; the lock of the second client must stay.
        self.releases(First, &hold.attempt).await?;
        let held = self.must_be_held(First, &next, "after the former holder has released the lock twice").await;
        let released = self.must_release(Second, &next).await;
        let claim = "the holder of two locks releases each; a second release of the former holder does nothing";
        held.and(released).map(|()| claim.into())
    }

    async fn foreign_release(&mut self) -> Outcome {
        let key = self.fresh_key();
        let hold = self.must_acquire(First, &key, "of a free lock").await?;
        let stranger = self.attempt(&key);
        self.releases(Second, &stranger).await?;
        let held = self.must_be_held(Second, &hold, "after a release by an owner that never had the lock").await;
        let released = self.must_release(First, &hold).await;
        held.and(released).map(|()| "a release by an owner that never had the lock does nothing".into())
    }

    /// Lets the second client acquire a lock whose holder does nothing, after this lease. Returns whether the holder's
    /// process had to be killed for that.
    async fn outlived(&mut self, key: &str, lease: Duration) -> Result<(Grant, bool), Problem> {
        let asked = BootClock.now();
        BootClock.sleep_until(asked + lease + EXPIRES_WITHIN).await;
        match self.tries(Second, key).await? {
            Ok(grant) => return Ok((grant, false)),
            Err(answer) if is_timeout(&answer) => {
                let expected = "an answer of the servers to `acquire` after the lease of the holder";
                return Err(self.unexpected(Second, &answer, expected, FOREVER));
            }
            Err(_) => {}
        }
        self.first = None;
        BootClock.sleep_until(BootClock.now() + lease + EXPIRES_WITHIN).await;
        let when = "after the lease of the holder, and after the holder's process was killed";
        Ok((self.must_acquire(Second, key, when).await?, true))
    }

    async fn expiry(&mut self) -> Outcome {
        let key = self.fresh_key();
        let sent = BootClock.now();
        let hold = self.must_acquire(First, &key, "of a free lock").await?;
        let lease = self.lasts(hold.done)?;
        BootClock.sleep_until(sent + self.promised(hold.done) / 2).await;
        self.must_be_held(Second, &hold, "in the middle of the lease").await?;
        let (next, by_session) = self.outlived(&key, lease).await?;
        self.must_release(Second, &next).await?;
        Ok(match by_session {
            false => "the lock of a silent holder is free after its lease".into(),
            true => "the lock is free when the holder's process has ended, not before: a session, not a lease".into(),
        })
    }

    async fn late_release(&mut self) -> Outcome {
        let key = self.fresh_key();
        let late = self.must_acquire(First, &key, "of a free lock").await?;
        let lease = self.lasts(late.done)?;
        let (next, by_session) = self.outlived(&key, lease).await?;
        if by_session {
            self.must_release(Second, &next).await?;
            return Ok("a session does not expire".into());
        }
        self.releases(First, &late.attempt).await?;
        let held = self.must_be_held(First, &next, "after a holder whose lease has ended released the lock").await;
        self.releases(Second, &next.attempt).await?;
        held.map(|()| "a release after the lease has ended does nothing".into())
    }

    async fn cancel(&mut self) -> Outcome {
        let key = self.fresh_key();
        let hold = self.must_acquire(First, &key, "of a free lock").await?;
        let cancel = Request::Cancel { key: key.clone(), owner: hold.attempt.owner };
        match self.ask(First, cancel).await? {
            Answer::Failed { error: ErrorCode::Unsupported, .. } => {
                return Ok("unsupported (do not use --cancel in runs)".into());
            }
            answer if is_timeout(&answer) => {
                let expected = "an answer of the servers to `cancel` by the holder";
                return Err(self.unexpected(First, &answer, expected, FOREVER));
            }
            _ => {}
        }
        let next = self.must_acquire(Second, &key, "after the holder's attempt was cancelled").await?;
        self.must_release(Second, &next).await?;
        Ok("a cancelled attempt leaves the lock free".into())
    }

    async fn unknown(&mut self) -> Outcome {
        if let Answer::Done(_) = self.ask(First, Request::Unknown).await? {
            let expected = "an error such as `unsupported` of a request that the program does not know";
            return Err(self.wrong(First, expected).into());
        }
        let key = self.fresh_key();
        let hold = self.must_acquire(First, &key, "after a request that the program does not know").await?;
        self.must_release(First, &hold).await?;
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
        let tried = self.tries(First, &key).await;
        let outcome = match tried.map_err(|problem| format!("servers that never answer: {problem}"))? {
            Err(Answer::Failed { error: ErrorCode::Timeout | ErrorCode::Error, .. }) => {
                Ok("`acquire` is indeterminate if no server answers".into())
            }
            _ => Err(self.wrong(First, "the error `timeout` or `error` of `acquire` if no server answers").into()),
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
                )
                .into());
            }
            *self.slot(who) = None;
        }
        Ok("the program ends when its standard input does".into())
    }
}
