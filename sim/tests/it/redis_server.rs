//! A real Redis server, started here and stopped here.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{process::Child, sync::Arc, time::Duration};

use history::Persistence;
use locks::{Node, connect_redis};
use tempfile::TempDir;

use crate::{
    real::{PATIENCE, free_port},
    redis_binary::redis_server,
    say::left_out,
};

/// One server, and the directory of its data.
pub struct Server {
    port: u16,
    child: Child,
    dir: TempDir,
    persistence: Persistence,
}

impl Server {
    /// Starts one, or says loudly that there is none to start.
    pub async fn start(persistence: Persistence) -> Option<Self> {
        if redis_server().is_none() {
            assert!(std::env::var_os("CI").is_none(), "no redis-server on the path (scripts/setup installs one)");
            left_out("no redis-server on the path, the model was not held against a real one");
            return None;
        }
        loop {
            let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
            let mut server = Self { port, child: spawn(port, &dir, persistence), dir, persistence };
            if server.wait_until_up().await {
                return Some(server);
            }
        }
    }

    /// Returns whether the server came up. Another process may have taken the port first.
    async fn wait_until_up(&mut self) -> bool {
        let up = async {
            loop {
                if self.persistence_info().await.is_ok_and(|info| says(&info, "loading:0")) {
                    return true;
                }
                if self.child.try_wait().unwrap().is_some() {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, up).await.expect("a server that answers")
    }

    async fn persistence_info(&self) -> redis::RedisResult<String> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("INFO").arg("persistence").query_async(&mut connection).await
    }

    /// Waits until the kernel has all that was answered: while an fsync runs, `everysec` puts off its writes.
    pub async fn written(&self) {
        let written = async {
            loop {
                let info = self.persistence_info().await.unwrap();
                if says(&info, "aof_enabled:0") || says(&info, "aof_buffer_length:0") {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, written).await.expect("a buffer that is written");
    }

    /// Waits until a snapshot has all that was answered.
    pub async fn saved(&self) {
        let saved = async {
            while !says(&self.persistence_info().await.unwrap(), "rdb_changes_since_last_save:0") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Persistence::SNAPSHOT_EVERY + PATIENCE, saved).await.expect("a snapshot");
    }

    pub fn connect(&self) -> Arc<dyn Node> {
        connect_redis("redis", &format!("127.0.0.1:{}", self.port))
    }

    /// SIGKILL, and a new process over the same directory.
    pub async fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.port, &self.dir, self.persistence);
        assert!(self.wait_until_up().await);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(port: u16, dir: &TempDir, persistence: Persistence) -> Child {
    let (appendonly, appendfsync) = match persistence {
        Persistence::No | Persistence::Snapshot => ("no", "everysec"),
        Persistence::Everysec => ("yes", "everysec"),
        Persistence::Always => ("yes", "always"),
    };
    let save = match persistence {
        Persistence::Snapshot => format!("{} 1", Persistence::SNAPSHOT_EVERY.as_secs()),
        _ => String::new(),
    };
    redis_server()
        .expect("it was there before")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", &save])
        .args(["--appendonly", appendonly, "--appendfsync", appendfsync])
        .current_dir(dir.path())
        .spawn()
        .unwrap()
}

/// Returns whether a whole line equals `wanted`: `async_loading:0` must not count as `loading:0`.
fn says(info: &str, wanted: &str) -> bool {
    info.lines().any(|line| line == wanted)
}
