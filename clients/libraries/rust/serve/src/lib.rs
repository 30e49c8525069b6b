//! The loop of the client programs of the Rust libraries: requests on standard input, answers on standard output.

use std::{
    collections::HashMap,
    error::Error,
    fmt::Display,
    io::{BufRead, Write},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment on the raw clock, which no clock fault changes. A fault may make `Instant` jump.
#[derive(Debug, Clone, Copy)]
pub struct Moment(Duration);

impl Moment {
    pub fn now() -> Moment {
        let now = clock_gettime(ClockId::MonotonicRaw);
        Moment(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    pub fn elapsed(self) -> Duration {
        Moment::now().0.saturating_sub(self.0)
    }
}

/// A lock server.
#[derive(Debug, Clone, Deserialize)]
pub struct Server {
    pub host: String,
    pub port: u16,
}

/// What a library tells its user about a lock.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Facts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

impl Facts {
    /// The facts of a lock that lives with a session, which gave a sign of life that was sent after the request. The
    /// session lives for its whole timeout after the sign, so three fifths are certain.
    pub fn of_session(timeout: Duration) -> Facts {
        Facts::of_session_alive_at(Duration::ZERO, timeout)
    }

    /// The same, if the session gave a sign of life that was sent this long after the request.
    pub fn of_session_alive_at(since_request: Duration, timeout: Duration) -> Facts {
        let lease = since_request + timeout * 3 / 5;
        Facts { lease_ms: u64::try_from(lease.as_millis()).ok(), ..Facts::default() }
    }
}

/// The reason why a request was not done, or may not have been.
#[derive(Debug, Serialize)]
pub struct Failure {
    error: &'static str,
    detail: String,
}

impl Failure {
    fn new(error: &'static str, detail: impl Display) -> Failure {
        Failure { error, detail: detail.to_string() }
    }

    /// The library says that another client has the lock.
    pub fn held(detail: impl Display) -> Failure {
        Failure::new("held", detail)
    }

    /// The library says that the lock is no longer this client's.
    pub fn lost(detail: impl Display) -> Failure {
        Failure::new("lost", detail)
    }

    /// The library has no such operation.
    pub fn unsupported(detail: impl Display) -> Failure {
        Failure::new("unsupported", detail)
    }

    /// No server answered in time.
    pub fn timeout(detail: impl Display) -> Failure {
        Failure::new("timeout", detail)
    }

    /// Any other error.
    pub fn error(detail: impl Display) -> Failure {
        Failure::new("error", detail)
    }
}

/// The operations of one library.
pub trait Library: Sized {
    /// One acquisition.
    type Lock;

    /// Connects to the servers.
    fn open(servers: &[Server], lease: Duration) -> Result<Self, Box<dyn Error>>;

    /// Makes one attempt.
    fn acquire(&mut self, key: &str, owner: &str, lease: Duration) -> Result<(Self::Lock, Facts), Failure>;

    /// Lets the lock last, or asks a library that renews by itself whether it still has the lock.
    fn renew(&mut self, lock: &mut Self::Lock, lease: Duration) -> Result<Facts, Failure>;

    /// Gives the lock back.
    fn release(&mut self, lock: Self::Lock) -> Result<(), Failure>;
}

#[derive(Deserialize)]
struct Numbered {
    id: u64,
    #[serde(flatten)]
    request: Request,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
enum Request {
    Init {
        servers: Vec<Server>,
        lease_ms: u64,
    },
    Acquire {
        key: String,
        owner: String,
        lease_ms: u64,
    },
    Renew {
        owner: String,
        lease_ms: u64,
    },
    Release {
        owner: String,
    },
    Cancel {
        owner: String,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Serialize)]
struct Answer {
    id: u64,
    ok: bool,
    #[serde(flatten)]
    facts: Option<Facts>,
    #[serde(flatten)]
    failure: Option<Failure>,
}

/// Answers requests until the end of the input.
///
/// # Errors
/// A line is no request, or an answer cannot be written.
pub fn serve<L: Library>() -> Result<(), Box<dyn Error>> {
    let mut library = None;
    let mut locks = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let Numbered { id, request } = serde_json::from_str(&line?)?;
        let done = answer::<L>(&mut library, &mut locks, request);
        let answer = match done {
            Ok(facts) => Answer { id, ok: true, facts: Some(facts), failure: None },
            Err(failure) => Answer { id, ok: false, facts: None, failure: Some(failure) },
        };
        let mut output = std::io::stdout().lock();
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    // The threads of a library must not keep the program from ending.
    std::process::exit(0)
}

fn answer<L: Library>(
    library: &mut Option<L>,
    locks: &mut HashMap<String, L::Lock>,
    request: Request,
) -> Result<Facts, Failure> {
    let Some(opened) = library else {
        let Request::Init { servers, lease_ms } = request else {
            return Err(Failure::unsupported("the first request must be `init`"));
        };
        *library = Some(L::open(&servers, Duration::from_millis(lease_ms)).map_err(Failure::error)?);
        return Ok(Facts::default());
    };
    let lost = || Failure::lost("this process has no such lock");
    match request {
        Request::Acquire { key, owner, lease_ms } => {
            let (lock, facts) = opened.acquire(&key, &owner, Duration::from_millis(lease_ms))?;
            locks.insert(owner, lock);
            Ok(facts)
        }
        Request::Renew { owner, lease_ms } => {
            opened.renew(locks.get_mut(&owner).ok_or_else(lost)?, Duration::from_millis(lease_ms))
        }
        Request::Release { owner } => opened.release(locks.remove(&owner).ok_or_else(lost)?).map(|()| Facts::default()),
        // An attempt that got nothing has left nothing that its user could remove.
        Request::Cancel { owner } => {
            locks.remove(&owner).map_or(Ok(()), |lock| opened.release(lock)).map(|()| Facts::default())
        }
        Request::Init { .. } | Request::Unknown => Err(Failure::unsupported("unknown request")),
    }
}
