//! The client program of zookeeper-async's recipe `shared_lock`. Its `lock` waits, and an attempt that is given up
//! leaves its node behind until its session ends. So each attempt has a session of its own.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serve::{Facts, Failure, Library, Server};
use tokio::{runtime::Runtime, time::timeout};
use zookeeper_async::{
    WatchedEvent, Watcher, ZkState, ZooKeeper,
    recipes::shared_lock::{LockGuard, lock},
};

struct Shared {
    runtime: Runtime,
    servers: String,
}

struct Lock {
    session: Arc<ZooKeeper>,
    guard: Arc<LockGuard>,
    is_connected: Arc<AtomicBool>,
}

struct Ignore;

impl Watcher for Ignore {
    fn handle(&self, _: WatchedEvent) {}
}

impl Library for Shared {
    type Lock = Lock;

    fn open(servers: &[Server], _: Duration) -> Result<Shared, Box<dyn Error>> {
        let servers: Vec<String> = servers.iter().map(|server| format!("{}:{}", server.host, server.port)).collect();
        Ok(Shared { runtime: Runtime::new()?, servers: servers.join(",") })
    }

    fn acquire(&mut self, key: &str, _: &str, lease: Duration) -> Result<(Lock, Facts), Failure> {
        let attempt = async {
            let session = ZooKeeper::connect(&self.servers, lease, Ignore).await.map_err(Failure::error)?;
            let session = Arc::new(session);
            let is_connected = Arc::new(AtomicBool::new(true));
            let listened = is_connected.clone();
            session.add_listener(move |state| listened.store(state == ZkState::Connected, Ordering::Relaxed));
            // A task of its own, because the recipe may panic.
            let locking = tokio::spawn(lock(session.clone(), format!("/locks/{key}")));
            match timeout(lease / 4, locking).await {
                Ok(Ok(Ok(guard))) => Ok((Lock { session, guard, is_connected }, Facts::default())),
                Ok(Ok(Err(e))) => Err(Failure::error(e)),
                Ok(Err(panicked)) => {
                    // A user's program would have ended, and its session with it.
                    let _ = session.close().await;
                    Err(Failure::error(panicked))
                }
                Err(_) => match session.close().await {
                    Ok(()) => Err(Failure::held("the lock was not granted in time")),
                    Err(e) => Err(Failure::timeout(e)),
                },
            }
        };
        let limited = async { timeout(lease * 3 / 4, attempt).await };
        self.runtime.block_on(limited).unwrap_or_else(|_| Err(Failure::timeout("no answer from ZooKeeper")))
    }

    fn renew(&mut self, lock: &mut Lock, _: Duration) -> Result<Facts, Failure> {
        if lock.is_connected.load(Ordering::Relaxed) {
            Ok(Facts::default())
        } else {
            Err(Failure::lost("the session was not connected at one time"))
        }
    }

    fn release(&mut self, lock: Lock) -> Result<(), Failure> {
        self.runtime.block_on(async {
            // A drop of the guard deletes the node in the background; the end of the session deletes it for certain.
            drop(lock.guard);
            match timeout(Duration::from_millis(500), lock.session.close()).await {
                Ok(closed) => closed.map_err(Failure::error),
                Err(e) => Err(Failure::timeout(e)),
            }
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    serve::serve::<Shared>()
}
