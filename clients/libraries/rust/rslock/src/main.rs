//! The client program of rslock: `LockManager`, on all Redis servers.

use std::{error::Error, time::Duration};

use rslock::{Lock, LockError, LockManager};
use serve::{Facts, Failure, Library, Server};
use tokio::runtime::Runtime;

struct Rslock {
    runtime: Runtime,
    manager: LockManager,
}

fn facts(lock: &Lock) -> Facts {
    Facts { valid_ms: Some(lock.validity_time as u64), ..Facts::default() }
}

impl Library for Rslock {
    type Lock = Lock;

    fn open(servers: &[Server], _: Duration) -> Result<Rslock, Box<dyn Error>> {
        let nodes = servers.iter().map(|server| format!("redis://{}:{}/", server.host, server.port)).collect();
        let mut manager = LockManager::new::<String>(nodes);
        manager.set_retry(1, Duration::from_millis(200));
        Ok(Rslock { runtime: Runtime::new()?, manager })
    }

    fn acquire(&mut self, key: &str, _: &str, lease: Duration) -> Result<(Lock, Facts), Failure> {
        match self.runtime.block_on(self.manager.lock(key, lease)) {
            Ok(lock) => {
                let facts = facts(&lock);
                Ok((lock, facts))
            }
            Err(e @ LockError::Unavailable) => Err(Failure::held(e)),
            Err(e) => Err(Failure::error(e)),
        }
    }

    fn renew(&mut self, lock: &mut Lock, lease: Duration) -> Result<Facts, Failure> {
        match self.runtime.block_on(self.manager.extend(lock, lease)) {
            Ok(extended) => {
                *lock = extended;
                Ok(facts(lock))
            }
            Err(e @ LockError::Unavailable) => Err(Failure::lost(e)),
            Err(e) => Err(Failure::error(e)),
        }
    }

    fn release(&mut self, lock: Lock) -> Result<(), Failure> {
        self.runtime.block_on(lock.release());
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    serve::serve::<Rslock>()
}
