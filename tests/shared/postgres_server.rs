//! A real Postgres server, started here and stopped here; test binaries take this file by its path.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    postgres_binary::postgres,
    real::{PATIENCE, free_port},
    say::left_out,
};

/// The time within which a server ends by itself.
const QUITS_WITHIN: Duration = Duration::from_secs(10);

/// One server, and the directory of its data.
pub struct Server {
    port: u16,
    child: Child,
    dir: TempDir,
}

impl Server {
    /// Starts one, or says loudly that there is none to start.
    pub async fn start() -> Option<Self> {
        let Some(mut initdb) = postgres("initdb") else {
            assert!(std::env::var_os("CI").is_none(), "no Postgres (scripts/setup installs one)");
            left_out("no Postgres in /usr/lib/postgresql, nothing was tried on a real one");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        if nix::unistd::geteuid().is_root() {
            assert!(Command::new("chown").arg("postgres:postgres").arg(dir.path()).status().unwrap().success());
        }
        let made = initdb
            .arg("--pgdata")
            .arg(dir.path().join("pg"))
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .status();
        assert!(made.unwrap().success(), "initdb failed");
        let port = free_port();
        let mut server = Self { port, child: spawn(port, &dir), dir };
        server.wait_until_up().await;
        Some(server)
    }

    /// Waits until the server accepts clients. A server that ends is started again: another process may have taken its
    /// port, or the last processes of a killed server may still use its memory.
    async fn wait_until_up(&mut self) {
        let up = async {
            while !self.is_ready() {
                if self.child.try_wait().unwrap().is_some() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    self.child = spawn(self.port, &self.dir);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, up).await.expect("a server that answers");
    }

    fn is_ready(&self) -> bool {
        let mut asking = postgres("pg_isready").expect("it was there before");
        asking.args(["--quiet", "--host=127.0.0.1", "--username=postgres", "--port", &self.port.to_string()]);
        asking.status().unwrap().success()
    }

    /// The address of the server: `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// SIGKILL, and a new process over the same directory.
    pub async fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.port, &self.dir);
        self.wait_until_up().await;
    }
}

/// A server that SIGKILL ends leaves its shared memory behind, so the server is asked to end by itself first.
impl Drop for Server {
    fn drop(&mut self) {
        kill(self.pid(), Signal::SIGQUIT).ok();
        let begun = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && begun.elapsed() < QUITS_WITHIN {
            thread::sleep(Duration::from_millis(10));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts the server. A SIGKILL loses nothing that the kernel has, so the server need not sync.
fn spawn(port: u16, dir: &TempDir) -> Child {
    let (port, sockets) = (port.to_string(), format!("unix_socket_directories={}", dir.path().display()));
    postgres("postgres")
        .expect("it was there before")
        .arg("-D")
        .arg(dir.path().join("pg"))
        .args(["-p", &port, "-c", &sockets])
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=16MB"])
        .spawn()
        .unwrap()
}
