//! A client program for `harness run --client` (docs/client-protocol.md): a lock on one Redis server, in Rust. To test
//! a lock of your own, write it into the methods of `Attempt`. Build: `cargo build --example redis_lock`

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// An attempt to acquire the lock of `key`. No two attempts have the same owner.
struct Attempt<'a> {
    key: &'a str,
    owner: &'a str,
}

impl Attempt<'_> {
    /// Makes one attempt, and returns the fencing token.
    fn acquire(&self, server: &mut Server, lease_ms: u64) -> Result<u64, Failure> {
        let script = "if redis.call('set',KEYS[1],ARGV[1],'nx','px',ARGV[2]) then \
                      return redis.call('incr','fence:'..KEYS[1]) end return 0";
        self.eval(server, script, lease_ms)?.ok_or_else(|| Failure::new("held", "another client holds the lock"))
    }

    /// Lets the lock last for `lease_ms` from now on.
    fn renew(&self, server: &mut Server, lease_ms: u64) -> Result<(), Failure> {
        self.if_owner(server, "'pexpire',KEYS[1],ARGV[2]", lease_ms)
    }

    /// Gives the lock back.
    fn release(&self, server: &mut Server) -> Result<(), Failure> {
        self.if_owner(server, "'del',KEYS[1]", 0)
    }

    fn if_owner(&self, server: &mut Server, call: &str, lease_ms: u64) -> Result<(), Failure> {
        let script = format!("if redis.call('get',KEYS[1])==ARGV[1] then return redis.call({call}) end return 0");
        let changed = self.eval(server, &script, lease_ms)?;
        changed.map(|_| ()).ok_or_else(|| Failure::new("lost", "the lock is no longer this attempt's"))
    }

    /// Runs a script on the server. An answer of 0 is `None`.
    fn eval(&self, server: &mut Server, script: &str, lease_ms: u64) -> Result<Option<u64>, Failure> {
        let number = server.ask(&["EVAL", script, "1", self.key, self.owner, &lease_ms.to_string()])?;
        Ok((number > 0).then_some(number))
    }
}

/// A failed request. The codes `held`, `lost`, `refused` and `unsupported` mean that it certainly did nothing.
#[derive(Serialize)]
struct Failure {
    error: &'static str,
    detail: String,
}

impl Failure {
    fn new(error: &'static str, detail: impl ToString) -> Failure {
        Failure { error, detail: detail.to_string() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        Failure::new(if is_late { "timeout" } else { "error" }, error)
    }
}

/// The server, and the connection to it if one is open.
struct Server {
    address: String,
    patience: Duration,
    connection: Option<BufReader<TcpStream>>,
}

impl Server {
    fn ask(&mut self, words: &[&str]) -> Result<u64, Failure> {
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => self.open().map_err(|error| Failure::new("refused", error))?,
        };
        // If this fails, the connection is dropped: a late answer must not be taken for the next one.
        let number = round_trip(&mut connection, words)?;
        self.connection = Some(connection);
        Ok(number)
    }

    fn open(&self) -> io::Result<BufReader<TcpStream>> {
        let address = self.address.to_socket_addrs()?.next().ok_or(ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&address, self.patience)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    }
}

fn round_trip(connection: &mut BufReader<TcpStream>, words: &[&str]) -> io::Result<u64> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    connection.get_mut().write_all(command.as_bytes())?;
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let number = line.strip_prefix(':').and_then(|number| number.trim_end().parse().ok());
    number.ok_or_else(|| io::Error::other(format!("the server answered {line:?}")))
}

#[derive(Deserialize)]
struct Request {
    id: u64,
    op: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    lease_ms: u64,
    #[serde(default)]
    servers: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    host: String,
    port: u16,
}

#[derive(Serialize)]
struct Answer {
    id: u64,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(flatten)]
    failure: Option<Failure>,
}

fn done(server: &mut Server, request: &Request) -> Result<Option<u64>, Failure> {
    let attempt = Attempt { key: &request.key, owner: &request.owner };
    match request.op.as_str() {
        "init" => {
            let Some(first) = request.servers.first() else { return Err(Failure::new("refused", "no server")) };
            server.address = format!("{}:{}", first.host, first.port);
            // A request must be answered within one lease.
            server.patience = Duration::from_millis(request.lease_ms / 4);
        }
        "acquire" => return attempt.acquire(server, request.lease_ms).map(Some),
        "renew" => attempt.renew(server, request.lease_ms)?,
        "release" | "cancel" => attempt.release(server)?,
        _ => return Err(Failure::new("unsupported", "unknown request")),
    }
    Ok(None)
}

fn main() -> io::Result<()> {
    let mut server = Server { address: String::new(), patience: Duration::from_secs(1), connection: None };
    for line in io::stdin().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = match done(&mut server, &request) {
            Ok(token) => Answer { id: request.id, ok: true, token, failure: None },
            Err(failure) => Answer { id: request.id, ok: false, token: None, failure: Some(failure) },
        };
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}
