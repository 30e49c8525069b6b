//! The client program of etcd-client's `LockClient`: the lock of the etcd server, with one lease for each attempt.

use std::{error::Error, time::Duration};

use etcd_client::{Client, LockOptions};
use serve::{Facts, Failure, Library, Server};
use tokio::{runtime::Runtime, time::timeout};

/// The code of gRPC for a lease that the server does not know.
const NOT_FOUND: i32 = 5;

struct Etcd {
    runtime: Runtime,
    client: Client,
}

struct Lock {
    key: Vec<u8>,
    lease: i64,
}

impl Etcd {
    /// One attempt. The server's lock waits, so an attempt that waits for longer than a tenth of the lease is given up.
    async fn lock(client: &mut Client, key: &str, lease: Duration) -> Result<(Lock, Facts), Failure> {
        // The server counts leases in whole seconds.
        let ttl = lease.as_millis().div_ceil(1000) as i64;
        let granted = client.lease_grant(ttl, None).await.map_err(Failure::error)?;
        let options = LockOptions::new().with_lease(granted.id());
        match timeout(lease / 10, client.lock(format!("/locks/{key}"), Some(options))).await {
            Ok(Ok(locked)) => {
                let token = locked.header().map(|header| header.revision());
                let facts = Facts { token, lease_ms: Some(granted.ttl() as u64 * 1000), ..Facts::default() };
                Ok((Lock { key: locked.key().to_vec(), lease: granted.id() }, facts))
            }
            Ok(Err(e)) => Err(Failure::error(e)),
            // Without its lease the attempt has nothing.
            Err(_) => match client.lease_revoke(granted.id()).await {
                Ok(_) => Err(Failure::held("the lock was not granted in time")),
                Err(e) => Err(Failure::timeout(e)),
            },
        }
    }

    async fn keep_alive(client: &mut Client, lease: i64) -> Result<Facts, Failure> {
        let (mut keeper, mut answers) = match client.lease_keep_alive(lease).await {
            // The library sends a keep-alive by itself, and makes an answer with a TTL of 0 this error.
            Err(e @ etcd_client::Error::LeaseKeepAliveError(_)) => return Err(Failure::lost(e)),
            opened => opened.map_err(Failure::error)?,
        };
        keeper.keep_alive().await.map_err(Failure::error)?;
        match answers.message().await.map_err(Failure::error)? {
            Some(answer) if answer.ttl() > 0 => {
                Ok(Facts { lease_ms: Some(answer.ttl() as u64 * 1000), ..Facts::default() })
            }
            _ => Err(Failure::lost("the lease has ended")),
        }
    }
}

/// Waits for a request no longer than the harness does. The library has no time limit unless it is given one.
fn within<T>(
    runtime: &Runtime,
    lease: Duration,
    request: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let limited = async { timeout(lease * 3 / 4, request).await };
    runtime.block_on(limited).unwrap_or_else(|_| Err(Failure::timeout("no answer from etcd")))
}

impl Library for Etcd {
    type Lock = Lock;

    fn open(servers: &[Server], _: Duration) -> Result<Etcd, Box<dyn Error>> {
        let runtime = Runtime::new()?;
        let endpoints: Vec<String> = servers.iter().map(|server| format!("{}:{}", server.host, server.port)).collect();
        let client = runtime.block_on(Client::connect(endpoints, None))?;
        Ok(Etcd { runtime, client })
    }

    fn acquire(&mut self, key: &str, _: &str, lease: Duration) -> Result<(Lock, Facts), Failure> {
        within(&self.runtime, lease, Etcd::lock(&mut self.client, key, lease))
    }

    fn renew(&mut self, lock: &mut Lock, lease: Duration) -> Result<Facts, Failure> {
        within(&self.runtime, lease, Etcd::keep_alive(&mut self.client, lock.lease))
    }

    fn release(&mut self, lock: Lock) -> Result<(), Failure> {
        let client = &mut self.client;
        within(&self.runtime, Duration::from_secs(1), async {
            client.unlock(lock.key).await.map_err(Failure::error)?;
            match client.lease_revoke(lock.lease).await {
                // The lease had ended, and the lock with it.
                Err(etcd_client::Error::GRpcStatus(status)) if i32::from(status.code()) == NOT_FOUND => {
                    Err(Failure::lost(status))
                }
                // The lock is released, even if its lease lives on.
                Ok(_) | Err(_) => Ok(()),
            }
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    serve::serve::<Etcd>()
}
