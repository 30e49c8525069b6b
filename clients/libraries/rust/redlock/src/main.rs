//! The client program of the crate redlock: `RedLock`, on all Redis servers.

use std::{error::Error, time::Duration};

use redlock::{Lock, RedLock};
use serve::{Facts, Failure, Library, Server};

/// The longest time of the protocol. The library's validity can be far longer.
const TIME_MS_MAX: u64 = 10_000_000_000;

/// A lock borrows its manager, which lives as long as the program.
struct Redlock(&'static RedLock);

impl Library for Redlock {
    type Lock = Lock<'static>;

    fn open(servers: &[Server], _: Duration) -> Result<Redlock, Box<dyn Error>> {
        let nodes = servers.iter().map(|server| format!("redis://{}:{}/", server.host, server.port)).collect();
        let mut manager = RedLock::new::<String>(nodes);
        manager.set_retry(1, 200);
        Ok(Redlock(Box::leak(Box::new(manager))))
    }

    fn acquire(&mut self, key: &str, _: &str, lease: Duration) -> Result<(Lock<'static>, Facts), Failure> {
        match self.0.lock(key.as_bytes(), lease.as_millis() as usize) {
            Ok(Some(lock)) => {
                let valid_ms = (lock.validity_time as u64).min(TIME_MS_MAX);
                Ok((lock, Facts { valid_ms: Some(valid_ms), ..Facts::default() }))
            }
            Ok(None) => Err(Failure::held("lock returned None")),
            Err(e) => Err(Failure::error(e)),
        }
    }

    fn renew(&mut self, _: &mut Lock<'static>, _: Duration) -> Result<Facts, Failure> {
        Err(Failure::unsupported("the library cannot extend a lock"))
    }

    fn release(&mut self, lock: Lock<'static>) -> Result<(), Failure> {
        self.0.unlock(&lock);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    serve::serve::<Redlock>()
}
