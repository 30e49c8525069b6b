//! Tests of a critical section that takes several locks.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use history::{ClientKind, Stamp};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use resource::{ClientError, WriteAnswer};
use workloads::{client::Ended, generate::Section};

use super::doubles::{Silent, SilentAt, World, client, of_locks, run, timed_out, written};

#[test]
fn only_a_client_that_holds_a_lock_gives_up_because_of_a_cycle() {
    // The client works for 100 ms under k0. A retry comes after 50 ms.
    for (keys, attempts, ended_ms) in [(&["k0", "k1"][..], 2, 100), (&["k1"][..], 3, 100)] {
        let world = Arc::new(World { has_cycle: true, ..World::default() });
        let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
        client.lock = Arc::new(SilentAt { key: "k1", silent: Silent(world.clone()), lock: client.lock.clone() });
        client.workload.patience = Some(Duration::from_secs(10));
        let section = Section { attempts: Some(3), ..of_locks(keys) };
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let ended = client.section(&section, Stamp(0), &mut rng, &|| false, &|| Box::pin(pending())).now_or_never();
        assert_eq!((ended, world.now_ms.load(Ordering::Relaxed)), (Some(Ended::Dropped), ended_ms), "{keys:?}");
        assert_eq!(world.log().iter().filter(|said| *said == "acquire").count(), attempts, "{keys:?}");
    }
}

/// The first write is answered, and no later one.
fn answered_once() -> Result<WriteAnswer, ClientError> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    match WRITES.fetch_add(1, Ordering::Relaxed) {
        0 => written(),
        _ => timed_out(),
    }
}

#[test]
fn a_write_that_may_still_arrive_keeps_no_lock_but_its_own() {
    let world = Arc::new(World::default());
    let client = client(&world, ClientKind::Unchecked, answered_once, Arc::default());
    assert_eq!(run(&client, &of_locks(&["k0", "k1"])), Some(Ended::Done));
    let log = world.log();
    let expected = ["[write]", "access-failed", "gave-up", "release", "[release]", "released"];
    assert_eq!(log[log.len() - expected.len()..], expected);
}
