//! ZooKeeper: a znode and a list, over one session of the same library, and the lock of that library.

use std::time::{Duration, Instant};

use anyhow::Context;
use harness_bench::{pinned::Pins, servers::Server};
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use crate::{Args, LEASE, OTHER, Row, acquire, cycle, ours, times};

const RAW: &str = "/raw";
const CRATE: &str = "/crate";

pub async fn measure(args: &Args, pins: &Pins) -> anyhow::Result<()> {
    let server = pins.start(Server::start_zookeeper)?;
    let client = Client::connector().with_session_timeout(LEASE).connect(&server.address).await?;
    client.mkdir(RAW, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    let lock = ours("zookeeper", &server.address).await?;
    let session = lock.session().context("zookeeper has sessions")?;
    // A session lasts as long as one of its holds.
    let (_kept, _) = acquire(&*session, OTHER, 0).await?;
    let [mut both, mut of_crate, mut own, mut in_session] = [
        "ZooKeeper: create a znode, then list the children",
        "ZooKeeper: the lock of the crate zookeeper-client",
        "zookeeper, acquire p50 µs",
        "zookeeper in a session, acquire p50 µs",
    ]
    .map(Row::new);
    let mut number = 0;
    for round in 0..=args.rounds {
        times(args, round, &mut both, async || create_and_list(&client).await).await?;
        times(args, round, &mut of_crate, async || lock_of_crate(&client).await).await?;
        times(args, round, &mut own, async || cycle(&*lock, &mut number).await).await?;
        times(args, round, &mut in_session, async || cycle(&*session, &mut number).await).await?;
    }
    both.print(&both);
    of_crate.print(&both);
    own.print(&of_crate);
    in_session.print(&of_crate);
    in_session.print(&both);
    Ok(())
}

/// One request after the other, as the recipe of ZooKeeper's documentation has it. Then removes the znode.
async fn create_and_list(client: &Client) -> anyhow::Result<Duration> {
    let (prefix, options) = (format!("{RAW}/k-"), CreateMode::EphemeralSequential.with_acls(Acls::anyone_all()));
    let began = Instant::now();
    let (_, sequence) = client.create(&prefix, b"", &options).await?;
    client.list_children(RAW).await?;
    let took = began.elapsed();
    client.delete(&format!("{prefix}{sequence}"), None).await?;
    Ok(took)
}

async fn lock_of_crate(client: &Client) -> anyhow::Result<Duration> {
    let options = LockOptions::new(Acls::anyone_all());
    let options = options.with_ancestor_options(CreateMode::Persistent.with_acls(Acls::anyone_all()))?;
    let prefix = LockPrefix::new_curator(CRATE, "lock-")?;
    let began = Instant::now();
    let held = client.lock(prefix, b"", options).await?;
    let took = began.elapsed();
    client.delete(held.lock_path(), None).await?;
    // Dropping it would remove the znode once more, in the background.
    std::mem::forget(held);
    Ok(took)
}
