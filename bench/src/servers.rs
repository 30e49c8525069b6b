//! Servers on loopback, for one measurement.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail, ensure};
use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, kill},
    },
    unistd::Pid,
};

#[path = "../../tests/shared/postgres_binary.rs"]
mod postgres_binary;

use postgres_binary::postgres;

/// The time that a server has to answer its first PING.
const UP_WITHIN: Duration = Duration::from_secs(10);
/// The time within which a Postgres server ends by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// ZooKeeper of Debian's packages, and of the published image.
const ZOOKEEPER: &str =
    "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-jdk14.jar:/apache-zookeeper-3.8.0-bin/lib/*";

/// One server. It is killed when this value is dropped, or when the measuring process ends.
pub struct Server {
    /// `127.0.0.1:PORT`.
    pub address: String,
    child: Child,
    /// The signal at which the server ends by itself, if SIGKILL would leave something behind.
    ends_by: Option<Signal>,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Starts a Redis server without persistence on a free port, and waits until the server answers.
    ///
    /// # Errors
    /// There is no `redis-server` on the path, or it does not answer within [`UP_WITHIN`].
    pub fn start() -> anyhow::Result<Server> {
        let (port, dir) = (free_port()?, tempfile::tempdir()?);
        let mut command = Command::new(binary());
        command
            .arg0("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(dir.path());
        let child = spawned(&mut command, "`redis-server`; install Redis (Debian: redis-server)")?;
        let server = Server { address: format!("127.0.0.1:{port}"), child, ends_by: None, _dir: dir };
        server.wait_until_up(|| server.ask("PING\r\n").is_ok_and(|answer| answer.starts_with("+PONG")))?;
        Ok(server)
    }

    /// Starts a cluster of one etcd member on free ports, and waits until the member answers. `program` is etcd's.
    ///
    /// # Errors
    /// `program` cannot be started, or it does not answer within [`UP_WITHIN`].
    pub fn start_etcd(program: &str, quota_bytes: u64) -> anyhow::Result<Server> {
        let (clients, peers, dir) = (free_port()?, free_port()?, tempfile::tempdir()?);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new(program);
        command
            .arg("--data-dir")
            .arg(dir.path())
            .args(["--name", "bench", "--listen-client-urls", &url(clients), "--advertise-client-urls", &url(clients)])
            .args(["--listen-peer-urls", &url(peers), "--initial-advertise-peer-urls", &url(peers)])
            .args(["--initial-cluster", &format!("bench={}", url(peers))])
            .args(["--quota-backend-bytes", &quota_bytes.to_string()])
            // As in compose/etcd.yaml: etcd 3.4 refuses to run on ARM without it.
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .stderr(Stdio::null());
        let child = spawned(&mut command, "etcd; install it (Debian: etcd-server), or name its program with --etcd")?;
        let server = Server { address: format!("127.0.0.1:{clients}"), child, ends_by: None, _dir: dir };
        let is_up = || server.ask("GET /health HTTP/1.0\r\n\r\n").is_ok_and(|answer| answer.contains("true"));
        server.wait_until_up(is_up)?;
        Ok(server)
    }

    /// Starts a Postgres server with its usual settings, which sync every commit, on a free port, and waits until the
    /// server answers.
    ///
    /// # Errors
    /// Postgres is not installed, makes no data directory, or does not answer within [`UP_WITHIN`].
    pub fn start_postgres() -> anyhow::Result<Server> {
        let missing = || anyhow!("Postgres is not installed (Debian: postgresql)");
        let (port, dir) = (free_port()?, tempfile::tempdir()?);
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            let given = Command::new("chown").arg("postgres:postgres").arg(dir.path()).status()?;
            ensure!(given.success(), "cannot give {} to the user postgres", dir.path().display());
        }
        let data = dir.path().join("pg");
        let mut initdb = postgres("initdb").ok_or_else(missing)?;
        initdb.arg("--pgdata").arg(&data).args(["--username=postgres", "--auth=trust", "--locale=C", "--no-sync"]);
        ensure!(initdb.status()?.success(), "initdb failed");
        let mut command = postgres("postgres").ok_or_else(missing)?;
        if is_root {
            // A change of the user clears the signal that `spawned` asks for.
            let program = command.get_args().last().map(ToOwned::to_owned).ok_or_else(missing)?;
            command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=KILL"]).arg(program);
            command.stderr(Stdio::null()).current_dir("/");
        }
        command.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        command.arg("-c").arg(format!("unix_socket_directories={}", dir.path().display()));
        let child = spawned(&mut command, "Postgres")?;
        let server = Server { address: format!("127.0.0.1:{port}"), child, ends_by: Some(Signal::SIGQUIT), _dir: dir };
        server.wait_until_up(|| {
            let asked = postgres("pg_isready").map(|mut asking| {
                asking
                    .args(["--quiet", "--host=127.0.0.1", "--username=postgres", "--port", &port.to_string()])
                    .status()
            });
            matches!(asked, Some(Ok(status)) if status.success())
        })?;
        Ok(server)
    }

    /// Starts a ZooKeeper server on a free port, and waits until the server answers.
    ///
    /// # Errors
    /// There is no Java or no ZooKeeper, or it does not answer within [`UP_WITHIN`].
    pub fn start_zookeeper() -> anyhow::Result<Server> {
        let (port, dir) = (free_port()?, tempfile::tempdir()?);
        let settings = dir.path().join("zoo.cfg");
        let lines = [
            "tickTime=200".to_owned(),
            "maxSessionTimeout=600000".to_owned(),
            format!("dataDir={}", dir.path().display()),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            "maxClientCnxns=0".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=srvr".to_owned(),
        ];
        std::fs::write(&settings, lines.join("\n"))?;
        let mut command = Command::new("java");
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-cp", ZOOKEEPER]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&settings).stderr(Stdio::null());
        let what = "ZooKeeper; install it (Debian: libzookeeper-java and openjdk-17-jre-headless)";
        let child = spawned(&mut command, what)?;
        let server = Server { address: format!("127.0.0.1:{port}"), child, ends_by: None, _dir: dir };
        server.wait_until_up(|| server.ask("srvr\n").is_ok_and(|answer| answer.contains("Mode:"))).context(what)?;
        Ok(server)
    }

    fn wait_until_up(&self, is_up: impl Fn() -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        while !is_up() {
            if began.elapsed() > UP_WITHIN {
                bail!("the server on {} does not answer within {UP_WITHIN:?}", self.address);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Freezes the server, or lets it go on.
    pub fn freeze(&self, frozen: bool) -> anyhow::Result<()> {
        self.signal(if frozen { Signal::SIGSTOP } else { Signal::SIGCONT })
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    /// Sends one inline command, and returns what the server says within a second.
    fn ask(&self, command: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = [0; 512];
        let length = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    /// The number of keys with an expiry: locks that nobody has released.
    ///
    /// # Errors
    /// The server gives no keyspace statistics.
    pub fn leased_keys(&self) -> anyhow::Result<u64> {
        let info = self.ask("INFO keyspace\r\n")?;
        ensure!(info.contains("# Keyspace"), "{}: INFO keyspace answers {info:?}", self.address);
        let Some((_, after)) = info.split_once("expires=") else { return Ok(0) };
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    }
}

/// Returns a port that is free now.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts a server that dies with this process.
fn spawned(command: &mut Command, what: &str) -> anyhow::Result<Child> {
    command.stdout(Stdio::null());
    // SAFETY: prctl is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
    command.spawn().with_context(|| format!("cannot start {what}"))
}

/// The server, or a tool of Redis that is the same binary: it is a server when it is called `redis-server`.
fn binary() -> &'static str {
    let is_there = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    if is_there.is_ok_and(|status| status.success()) { "redis-server" } else { "redis-check-rdb" }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.ends_by.is_some_and(|signal| self.signal(signal).is_ok()) {
            let began = Instant::now();
            while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && began.elapsed() < ENDS_WITHIN {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // The process may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
