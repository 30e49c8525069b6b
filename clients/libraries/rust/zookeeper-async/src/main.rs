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

use serve::{Facts, Failure, Library, Moment, Server};
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};
use zookeeper_async::{
    WatchedEvent, ZkState, ZooKeeper,
    recipes::shared_lock::{LockGuard, lock},
};

struct Shared {
    runtime: Runtime,
    servers: String,
    lease: Duration,
}

struct Lock {
    session: Arc<ZooKeeper>,
    guard: Arc<LockGuard>,
    seen: Arc<Seen>,
}

/// The states of the session that the library has reported.
#[derive(Default)]
struct Seen {
    is_connected: AtomicBool,
    is_over: AtomicBool,
}

impl Seen {
    /// Notes a state. `NotConnected` is the library's word for a session that has expired. The library then begins a
    /// new session by itself, which has no node of the lock.
    #[expect(deprecated, reason = "the library calls this state unused, and reports it all the same")]
    fn state(&self, state: ZkState) {
        self.is_connected.store(state == ZkState::Connected, Ordering::Relaxed);
        self.is_over.fetch_or(matches!(state, ZkState::Closed | ZkState::NotConnected), Ordering::Relaxed);
    }

    fn require_session(&self) -> Result<(), Failure> {
        if self.is_over.load(Ordering::Relaxed) { Err(Failure::lost("the session is over")) } else { Ok(()) }
    }
}

impl Library for Shared {
    type Lock = Lock;

    fn open(servers: &[Server], lease: Duration) -> Result<Shared, Box<dyn Error>> {
        let servers: Vec<String> = servers.iter().map(|server| format!("{}:{}", server.host, server.port)).collect();
        Ok(Shared { runtime: Runtime::new()?, servers: servers.join(","), lease })
    }

    fn acquire(&mut self, key: &str, _: &str, lease: Duration) -> Result<(Lock, Facts), Failure> {
        let asked = Moment::now();
        let attempt = async {
            let session = ZooKeeper::connect(&self.servers, lease, |_: WatchedEvent| ()).await;
            let session = Arc::new(session.map_err(Failure::error)?);
            let seen = Arc::new(Seen::default());
            let listened = seen.clone();
            session.add_listener(move |state| listened.state(state));
            // The library tells nobody about the first connection. A request proves it.
            let alive_at = asked.elapsed();
            session.exists("/", false).await.map_err(Failure::error)?;
            seen.state(ZkState::Connected);
            // A task of its own, because the recipe may panic.
            let locking = tokio::spawn(lock(session.clone(), format!("/locks/{key}")));
            match timeout(lease / 4, locking).await {
                Ok(Ok(Ok(guard))) => Ok((Lock { session, guard, seen }, Facts::of_session_alive_at(alive_at, lease))),
                Ok(Ok(Err(e))) => Err(Failure::error(e)),
                Ok(Err(panicked)) => {
                    // A user's program would have ended, and its session with it.
                    let _ = session.close().await;
                    Err(Failure::error(panicked))
                }
                Err(elapsed) => {
                    let was_connected = seen.is_connected.load(Ordering::Relaxed);
                    let closed = session.close().await;
                    Err(if was_connected && closed.is_ok() {
                        Failure::held(elapsed)
                    } else {
                        Failure::timeout(elapsed)
                    })
                }
            }
        };
        let limited = async { timeout(lease * 3 / 4, attempt).await };
        self.runtime.block_on(limited).unwrap_or_else(|_| Err(Failure::timeout("no answer from ZooKeeper")))
    }

    fn renew(&mut self, lock: &mut Lock, lease: Duration) -> Result<Facts, Failure> {
        lock.seen.require_session()?;
        if !lock.seen.is_connected.load(Ordering::Relaxed) {
            return Err(Failure::error("not connected"));
        }
        // Nobody knows when the last sign of life was, so this request gives one.
        let alive = self.runtime.block_on(async { timeout(lease * 3 / 4, lock.session.exists("/", false)).await });
        alive.map_err(Failure::timeout)?.map_err(Failure::error)?;
        // A new session may have answered.
        lock.seen.require_session()?;
        Ok(Facts::of_session(self.lease))
    }

    fn release(&mut self, lock: Lock) -> Result<(), Failure> {
        let Lock { session, guard, .. } = lock;
        self.runtime.spawn(async move {
            // A drop of the guard deletes the node in the background, so the session must last a little longer.
            drop(guard);
            sleep(Duration::from_secs(1)).await;
            let _ = session.close().await;
        });
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    serve::serve::<Shared>()
}

#[cfg(test)]
mod tests {
    use super::{Ordering, Seen, ZkState};

    #[test]
    #[expect(deprecated, reason = "as in `Seen::state`")]
    fn a_lock_is_lost_although_a_new_session_is_connected() {
        let seen = Seen::default();
        for (state, has_session) in [
            (ZkState::Connected, true),
            (ZkState::Connecting, true),
            (ZkState::Connected, true),
            (ZkState::Connecting, true),
            // The old session has expired.
            (ZkState::NotConnected, false),
            (ZkState::Connecting, false),
            (ZkState::Connected, false),
        ] {
            seen.state(state);
            assert_eq!(seen.require_session().is_ok(), has_session);
        }
        assert!(seen.is_connected.load(Ordering::Relaxed));
    }
}
