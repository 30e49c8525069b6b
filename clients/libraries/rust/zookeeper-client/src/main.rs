//! The client program of zookeeper-client's `Client::lock`, with one session for this client.

use std::{error::Error, time::Duration};

use serve::{Facts, Failure, Library, Moment, Server};
use tokio::{runtime::Runtime, time::timeout};
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient, SessionState};

struct ZooKeeper {
    runtime: Runtime,
    servers: String,
    lease: Duration,
    client: Client,
}

fn connect(runtime: &Runtime, servers: &str, lease: Duration) -> Result<Client, zookeeper_client::Error> {
    runtime.block_on(Client::connector().with_session_timeout(lease).connect(servers))
}

async fn lock(client: &Client, directory: &str, owner: &str) -> Result<OwnedLockClient, zookeeper_client::Error> {
    let prefix = LockPrefix::new_curator(directory, "lock-")?;
    let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
    Ok(client.lock(prefix, owner.as_bytes(), options).await?.into_owned())
}

impl Library for ZooKeeper {
    type Lock = OwnedLockClient;

    fn open(servers: &[Server], lease: Duration) -> Result<ZooKeeper, Box<dyn Error>> {
        let servers: Vec<String> = servers.iter().map(|server| format!("{}:{}", server.host, server.port)).collect();
        let (runtime, servers) = (Runtime::new()?, servers.join(","));
        let client = connect(&runtime, &servers, lease)?;
        Ok(ZooKeeper { runtime, servers, lease, client })
    }

    fn acquire(&mut self, key: &str, owner: &str, lease: Duration) -> Result<(OwnedLockClient, Facts), Failure> {
        let (asked, mut alive_at) = (Moment::now(), Duration::ZERO);
        if self.client.state().is_terminated() {
            self.client = connect(&self.runtime, &self.servers, self.lease).map_err(Failure::error)?;
            // Nobody knows when in this time the new session began. A request proves that it lives.
            alive_at = asked.elapsed();
            self.runtime.block_on(self.client.check_stat("/")).map_err(Failure::error)?;
        }
        let directory = format!("/locks/{key}");
        let attempt = lock(&self.client, &directory, owner);
        // "A timed lock is easy to construct with `select!` and `sleep`."
        match self.runtime.block_on(async { timeout(lease / 4, attempt).await }) {
            Ok(Ok(lock)) => Ok((lock, Facts::of_session_alive_at(alive_at, lease))),
            Ok(Err(e)) => Err(Failure::error(e)),
            Err(e) if self.client.state() == SessionState::SyncConnected => Err(Failure::held(e)),
            Err(e) => Err(Failure::timeout(e)),
        }
    }

    fn renew(&mut self, lock: &mut OwnedLockClient, lease: Duration) -> Result<Facts, Failure> {
        match lock.client().state() {
            SessionState::SyncConnected => {}
            SessionState::Disconnected => return Err(Failure::error("Disconnected")),
            state => return Err(Failure::lost(state)),
        }
        // Nobody knows when the last sign of life was, so this request gives one.
        let alive = self.runtime.block_on(async { timeout(lease * 3 / 4, lock.client().check_stat("/")).await });
        alive.map_err(Failure::timeout)?.map_err(Failure::error)?;
        Ok(Facts::of_session(self.lease))
    }

    fn release(&mut self, lock: OwnedLockClient) -> Result<(), Failure> {
        // A drop deletes the node in the background.
        let _entered = self.runtime.enter();
        drop(lock);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    serve::serve::<ZooKeeper>()
}
