//! The reentrant lock: the count, the token, the deadline, and releases that are too many.

use std::{
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use locks::{
    Cleanup, Clock, FailureReason, Hold, Key, Lock, Mode, Operation, Outcome, Owner, Redlock, Reentrant, Released,
    Renewed, Reply, TokenSource, Unwatched, Watch,
};

use crate::cluster::{ClientClock, FakeNode, LEASE, MS, key, nodes, owner, ports};

struct Held {
    nodes: [Arc<FakeNode>; 5],
    clock: Arc<ClientClock>,
    lock: Reentrant,
    outer: Hold,
}

/// A hold that was acquired once.
async fn held() -> Held {
    let nodes = nodes::<5>(5 * MS);
    let clock = ClientClock::new();
    let inner = Arc::new(Redlock::new(ports(&nodes), clock.clone(), TokenSource::TwoPhase).unwrap());
    let lock = Reentrant::new(inner, clock.clone());
    let outer = lock.acquire(&key(), owner("a"), LEASE, &Unwatched).await.unwrap();
    Held { nodes, clock, lock, outer }
}

/// Notes the counts of acquisitions and releases that send nothing.
#[derive(Default)]
struct Counts(Mutex<Vec<(&'static str, u32)>>);

impl Watch for Counts {
    fn reentered(&self, _hold: &Hold, count: u32) {
        self.0.lock().unwrap().push(("reentered", count));
    }

    fn left(&self, count: u32) {
        self.0.lock().unwrap().push(("left", count));
    }
}

#[tokio::test(start_paused = true)]
async fn an_inner_acquisition_keeps_token_and_deadline_and_asks_no_node() {
    let Held { nodes, lock, outer, .. } = held().await;
    tokio::time::sleep(LEASE / 2).await;
    let (before, counts) = (nodes[0].expires(), Counts::default());
    let inner = lock.acquire(&key(), owner("b"), LEASE, &counts).await.unwrap();
    assert_eq!(inner, outer, "owner, token and deadline are those of the hold");
    assert_eq!(nodes[0].expires(), before);
    assert_eq!(*counts.0.lock().unwrap(), [("reentered", 2)]);
}

#[tokio::test(start_paused = true)]
async fn the_key_is_free_after_as_many_releases_and_one_more_changes_nothing() {
    let Held { nodes, clock, lock, outer } = held().await;
    let counts = Counts::default();
    for _ in 0..2 {
        lock.acquire(&key(), owner("b"), LEASE, &counts).await.unwrap();
    }
    for _ in 0..2 {
        assert!(!lock.release(&outer, &counts).await.unwrap().removed);
        assert!(nodes[0].expires().is_some());
    }
    assert!(lock.release(&outer, &counts).await.unwrap().removed);
    assert_eq!(nodes[0].expires(), None);

    // Another client holds the key now; the release too many does not touch its hold.
    let other = Redlock::new(ports(&nodes), clock.clone(), TokenSource::TwoPhase).unwrap();
    other.acquire(&key(), owner("c"), LEASE, &Unwatched).await.unwrap();
    assert!(!lock.release(&outer, &counts).await.unwrap().removed);
    assert!(nodes[0].expires().is_some());
    let told = [("reentered", 2), ("reentered", 3), ("left", 2), ("left", 1), ("left", 0)];
    assert_eq!(*counts.0.lock().unwrap(), told);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_of_the_outer_hold_counts_for_inner_acquisitions() {
    let Held { lock, mut outer, .. } = held().await;
    tokio::time::sleep(LEASE / 2).await;
    lock.renew(&mut outer, LEASE, &Unwatched).await.unwrap();
    let inner = lock.acquire(&key(), owner("b"), LEASE, &Unwatched).await.unwrap();
    assert_eq!(inner.valid_until, outer.valid_until);
}

#[tokio::test(start_paused = true)]
async fn a_hold_cannot_be_entered_again_in_another_mode() {
    let (Held { nodes, lock, outer, .. }, counts) = (held().await, Counts::default());
    let refused = lock.acquire_in(Mode::Read, &key(), owner("b"), LEASE, &counts).await.unwrap_err();
    assert_eq!(refused.outcome, Outcome::Failed);
    assert!(counts.0.lock().unwrap().is_empty());
    assert!(lock.release(&outer, &counts).await.unwrap().removed, "the refusal is no acquisition");
    assert_eq!(nodes[0].owner(), None);
}

#[tokio::test(start_paused = true)]
async fn a_late_release_of_an_earlier_hold_leaves_the_present_one() {
    let (Held { nodes, lock, outer, .. }, counts) = (held().await, Counts::default());
    assert!(lock.release(&outer, &counts).await.unwrap().removed);
    let present = lock.acquire(&key(), owner("b"), LEASE, &counts).await.unwrap();
    assert!(!lock.release(&outer, &counts).await.unwrap().removed);
    lock.acquire(&key(), owner("c"), LEASE, &counts).await.unwrap();
    assert_eq!(*counts.0.lock().unwrap(), [("left", 0), ("reentered", 2)]);
    assert!(!lock.release(&present, &counts).await.unwrap().removed);
    assert!(lock.release(&present, &counts).await.unwrap().removed);
    assert_eq!(nodes[0].owner(), None);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_has_lapsed_cannot_be_entered_again() {
    let Held { lock, outer, .. } = held().await;
    tokio::time::sleep(LEASE).await;
    let failure = lock.acquire(&key(), owner("b"), LEASE, &Unwatched).await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Validity);
    assert!(!lock.release(&outer, &Unwatched).await.unwrap().removed, "the nodes have let the key go");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_renewal_found_lost_cannot_be_entered_again() {
    let (Held { nodes, lock, mut outer, .. }, counts) = (held().await, Counts::default());
    nodes.iter().for_each(|node| node.give_to("c"));
    let failure = lock.renew(&mut outer, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Lost);
    let failure = lock.acquire(&key(), owner("b"), LEASE, &counts).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(counts.0.lock().unwrap().is_empty());
    assert!(!lock.release(&outer, &Unwatched).await.unwrap().removed, "the failure is no acquisition");
    assert_eq!(nodes[0].owner(), Some(owner("c")));
}

/// A hold whose release had no answer in time. The nodes do the release afterwards.
async fn unreleased(counts: &Counts) -> Held {
    let held = held().await;
    held.nodes.iter().for_each(|node| node.freeze());
    let failure = held.lock.release(&held.outer, counts).await.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Indeterminate);
    held.nodes.iter().for_each(|node| node.thaw());
    tokio::time::sleep(20 * MS).await;
    held
}

#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_sent_again() {
    let counts = Counts::default();
    let Held { nodes, lock, outer, .. } = unreleased(&counts).await;
    assert_eq!(nodes[0].releases_done(), 1);
    for left in [0, 1] {
        assert!(!lock.release(&outer, &counts).await.unwrap().removed, "the key is gone since the first release");
        assert_eq!(nodes[0].releases_done(), 2, "only the release that failed is sent again");
        assert_eq!(counts.0.lock().unwrap().len(), left);
    }
    assert_eq!(*counts.0.lock().unwrap(), [("left", 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_release_failed_cannot_be_entered_again() {
    let counts = Counts::default();
    let Held { nodes, lock, .. } = unreleased(&counts).await;
    let next = lock.acquire(&key(), owner("b"), LEASE, &counts).await.unwrap();
    assert_eq!((next.owner, nodes[0].owner()), (owner("b"), Some(owner("b"))));
    assert!(counts.0.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_given_up_cannot_be_entered_again() {
    let (Held { nodes, lock, outer, .. }, counts) = (held().await, Counts::default());
    lock.gave_up(&outer);
    let failure = lock.acquire(&key(), owner("b"), LEASE, &counts).await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Held, "the servers keep the key until its lease ends");
    assert_eq!(nodes[0].owner(), Some(owner("a")));
    assert!(counts.0.lock().unwrap().is_empty());
}

/// A lock with a queue and with intentions. It gives one hold to all, and notes the holds that were given up and the
/// attempts that were cancelled.
struct Below {
    hold: Hold,
    told: Mutex<Vec<(&'static str, Owner)>>,
}

impl Lock for Below {
    fn acquire<'a>(&'a self, _: &'a Key, _: Owner, _: Duration, _: &'a dyn Watch) -> Operation<'a, Hold> {
        Box::pin(ready(Ok(self.hold.clone())))
    }

    fn intention(&self, mode: Mode) -> Option<Mode> {
        Some(mode.intention())
    }

    fn waits(&self) -> bool {
        true
    }

    fn renew<'a>(&'a self, _: &'a mut Hold, _: Duration, _: &'a dyn Watch) -> Operation<'a, Renewed> {
        unreachable!("no hold is renewed")
    }

    fn release<'a>(&'a self, _: &'a Hold, _: &'a dyn Watch) -> Operation<'a, Released> {
        unreachable!("no hold is released")
    }

    fn gave_up(&self, hold: &Hold) {
        self.told.lock().unwrap().push(("given up", hold.owner.clone()));
    }

    fn cancel<'a>(&'a self, _: &'a Key, owner: &'a Owner, _: Duration, _: &'a dyn Watch) -> Cleanup<'a> {
        self.told.lock().unwrap().push(("cancelled", owner.clone()));
        Box::pin(ready(()))
    }
}

#[tokio::test(start_paused = true)]
async fn the_lock_below_is_told_which_hold_was_given_up_and_which_attempt_was_cancelled() {
    let Held { clock, outer: hold, .. } = held().await;
    let below = Arc::new(Below { hold: hold.clone(), told: Mutex::default() });
    let lock = Reentrant::new(below.clone(), clock);
    for _ in 0..2 {
        lock.acquire(&key(), owner("a"), LEASE, &Unwatched).await.unwrap();
    }
    lock.gave_up(&hold);
    lock.cancel(&key(), &owner("b"), LEASE, &Unwatched).await;
    assert_eq!(*below.told.lock().unwrap(), [("given up", owner("a")), ("cancelled", owner("b"))]);
    assert!(lock.waits());
    assert_eq!(lock.intention(Mode::Read), Some(Mode::IntentRead));
}

/// A client that is frozen as it announces a re-entry: from then on its clock shows the end of time.
#[derive(Default)]
struct FrozenOnEntry(AtomicBool);

impl Watch for FrozenOnEntry {
    fn reentering(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Clock for FrozenOnEntry {
    fn now(&self) -> Duration {
        if self.0.load(Ordering::Relaxed) { Duration::MAX } else { Duration::ZERO }
    }

    fn sleep_until(&self, _: Duration) -> Reply<()> {
        unreachable!("a re-entry waits for nothing")
    }
}

#[tokio::test(start_paused = true)]
async fn a_re_entry_is_announced_before_the_clock_is_read() {
    let below = Arc::new(Below { hold: held().await.outer, told: Mutex::default() });
    let frozen = Arc::new(FrozenOnEntry::default());
    let lock = Reentrant::new(below, frozen.clone());
    lock.acquire(&key(), owner("a"), LEASE, &Unwatched).await.unwrap();
    assert!(lock.acquire(&key(), owner("b"), LEASE, &Unwatched).await.is_ok());
    let failure = lock.acquire(&key(), owner("b"), LEASE, &*frozen).await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Validity);
}
