//! etcd: the lease and the transaction, over one connection of the same library.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp};
use harness_bench::{pinned::Pins, servers::Server};

use crate::{Args, KEY, LEASE, OTHER, Row, acquire, cycle, ours, times};

const QUOTA_BYTES: u64 = 1 << 30;

pub async fn measure(args: &Args, pins: &Pins) -> anyhow::Result<()> {
    let server = pins.start(|| Server::start_etcd(&args.etcd, QUOTA_BYTES))?;
    let mut raw = Raw { client: Client::connect([format!("http://{}", server.address)], None).await?, number: 0 };
    let lock = ours("etcd", &server.address).await?;
    let session = lock.session().context("etcd has sessions")?;
    // A session lasts as long as one of its holds.
    let (_kept, _) = acquire(&*session, OTHER, 0).await?;
    let lease = raw.grant().await?;

    let [mut create, mut both, mut own, mut in_session] = [
        "etcd: the transaction that creates a key",
        "etcd: a lease, then this transaction",
        "etcd, acquire p50 µs",
        "etcd in a session, acquire p50 µs",
    ]
    .map(Row::new);
    let mut number = 0;
    for round in 0..=args.rounds {
        times(args, round, &mut create, async || raw.create(lease).await).await?;
        times(args, round, &mut both, async || raw.lease_and_create().await).await?;
        times(args, round, &mut own, async || cycle(&*lock, &mut number).await).await?;
        times(args, round, &mut in_session, async || cycle(&*session, &mut number).await).await?;
    }
    create.print(&create);
    both.print(&create);
    own.print(&both);
    in_session.print(&create);
    Ok(())
}

/// The requests of a client, without the client.
struct Raw {
    client: Client,
    number: u64,
}

impl Raw {
    async fn grant(&mut self) -> anyhow::Result<i64> {
        let seconds = i64::try_from(LEASE.as_secs())?;
        Ok(self.client.lease_grant(seconds, None).await?.id())
    }

    /// Creates a key under the lease and reads the oldest key of its queue, as the client does. Then removes the key.
    async fn create(&mut self, lease: i64) -> anyhow::Result<Duration> {
        self.number += 1;
        let (queue, key) = (format!("raw-{KEY}/"), format!("raw-{KEY}/{}", self.number));
        let oldest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let oldest = TxnOp::get(queue, Some(oldest.with_keys_only().with_limit(1)));
        let put = TxnOp::put(key.clone(), "", Some(PutOptions::new().with_lease(lease)));
        let is_new = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let own = TxnOp::get(key.clone(), None);
        let txn = Txn::new().when([is_new]).and_then([put, oldest.clone()]).or_else([own, oldest]);
        let began = Instant::now();
        let done = self.client.txn(txn).await?;
        let took = began.elapsed();
        ensure!(done.succeeded(), "{key} was there");
        self.client.delete(key, None).await?;
        Ok(took)
    }

    async fn lease_and_create(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let lease = self.grant().await?;
        let granted = began.elapsed();
        let took = granted + self.create(lease).await?;
        // As after a release of the lock, whose client does not wait for this answer.
        let mut client = self.client.clone();
        tokio::spawn(async move { client.lease_revoke(lease).await });
        Ok(took)
    }
}
