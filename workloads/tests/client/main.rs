//! Tests of a client, over doubles of its ports: its actions and its records.

mod doubles;
mod records;
mod several;

use std::{
    future::{pending, ready},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use futures::FutureExt;
use history::{ClientId, ClientKind, Event, HoldId, Mode, Outcome, Point, Stamp};
use locks::{Clock, Hold, NodeAnswer, Owner, Reentrant, Reply, Round, Watch, validity};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use resource::{ClientError, WriteAnswer};
use workloads::{
    attempt::{Attempt, Recording},
    client::Ended,
    generate::Section,
    points::Points,
};

use doubles::{
    Double, Silent, SilentAt, World, client, not_sent, of_locks, of_parent, refused, run, section, timed_out, written,
};

#[test]
fn every_invocation_is_on_record_before_its_request_leaves() {
    let world = Arc::new(World::default());
    section(&world, ClientKind::Unchecked, written, Arc::default());
    let expected = [
        "acquire",
        "[acquire]",
        "acquired",
        "read",
        "[read]",
        "read-ok",
        "work",
        "write",
        "[write]",
        "write-ok",
        "release",
        "[release]",
        "released",
    ];
    assert_eq!(world.log(), expected);
}

#[test]
fn the_stamps_of_a_hold_are_those_of_its_request_and_answer() {
    let (now_ms, request_ms) = (AtomicU64::new(1_000), AtomicU64::new(30));
    let world = Arc::new(World { now_ms, request_ms, ..World::default() });
    section(&world, ClientKind::Unchecked, written, Arc::default());
    let (events, stamps) = (world.events.lock().unwrap(), world.stamps.lock().unwrap());
    let acquired = events.iter().zip(stamps.iter()).find_map(|(event, at)| match event {
        Event::Acquired { granted_after, .. } => Some([*granted_after, *at]),
        _ => None,
    });
    assert_eq!(acquired, Some([1_000, 1_030].map(|ms: u64| Stamp(ms * 1_000_000))));
}

#[test]
fn operations_under_a_hold_are_numbered_from_one() {
    let world = Arc::new(World::default());
    let section = Section { writes: 2, ..of_locks(&["k0"]) };
    run(&client(&world, ClientKind::Unchecked, written, Arc::default()), &section);
    let events = world.events.lock().unwrap();
    let numbers = events.iter().filter_map(|e| match e {
        Event::Read { op, .. } | Event::Write { op, .. } => Some(op.0),
        _ => None,
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn only_a_client_with_a_time_to_cancel_abandons_a_silent_lock() {
    for (cancel_ms, ended, log) in
        [(None, None, "acquire"), (Some(200), Some(Ended::Dropped), "acquire [cancel] acquire-failed")]
    {
        let world = Arc::new(World::default());
        let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
        client.lock = Arc::new(Silent(world.clone()));
        client.workload.cancel = cancel_ms.map(Duration::from_millis);
        assert_eq!((run(&client, &of_locks(&["k0"])), world.log().join(" ")), (ended, log.to_owned()));
    }
}

#[test]
fn a_client_that_holds_a_lock_waits_for_the_next_one_no_longer_than_its_patience() {
    // The client works for 100 ms under the first lock, and not at all under a parent. A retry comes after 50 ms.
    for (is_below, cancel_ms, patience_ms, ended_ms, attempts) in [
        (false, None, Some(500), 600, 1),
        (false, Some(10_000), Some(500), 600, 1),
        (false, Some(200), Some(500), 600, 3),
        // Nobody renews the hold of the parent, so half of its lease is left for the work.
        (true, None, None, 1_000, 1),
        (true, None, Some(3_000), 1_000, 1),
        (true, Some(10_000), Some(500), 500, 1),
    ] {
        let world = Arc::new(World::default());
        let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
        let section = if is_below { of_parent(&mut client) } else { of_locks(&["k0", "k1"]) };
        client.lock = Arc::new(SilentAt { key: "k1", silent: Silent(world.clone()), lock: client.lock.clone() });
        client.workload.cancel = cancel_ms.map(Duration::from_millis);
        client.workload.patience = patience_ms.map(Duration::from_millis);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let ended = client.section(&section, Stamp(0), &mut rng, &|| false, &|| Box::pin(pending())).now_or_never();
        let said = format!("{is_below}, {cancel_ms:?}, {patience_ms:?}");
        assert_eq!((ended, world.now_ms.load(Ordering::Relaxed)), (Some(Ended::Dropped), ended_ms), "{said}");
        let cancels = world.log().iter().filter(|said| *said == "[cancel]").count();
        assert_eq!(cancels, attempts, "{said}");
        assert_eq!(world.log().last().map(String::as_str), Some("released"), "{said}");
    }
}

#[test]
fn a_checking_client_writes_until_its_deadline_and_not_after_it() {
    // The promise ends after 1,978 ms, whatever the deadline is; the work takes 100 ms.
    for (deadline_ms, freeze_ms, writes) in [
        (None, 0, true),
        (None, 1_800, true),
        (None, 1_900, false),
        (Some(500), 350, true),
        (Some(500), 400, false),
        (Some(3_000), 1_800, true),
        (Some(3_000), 1_900, false),
    ] {
        let world = Arc::new(World { freeze_ms: AtomicU64::new(freeze_ms), ..World::default() });
        let mut client = client(&world, ClientKind::Checking, written, Arc::default());
        client.workload.deadline = deadline_ms.map(Duration::from_millis);
        assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Done));
        let has = |name: &str| world.log().iter().any(|said| said == name);
        assert_eq!((has("[write]"), has("loss-noticed")), (writes, !writes), "{deadline_ms:?}, {freeze_ms}");
    }
}

#[test]
fn a_checking_client_that_was_frozen_past_its_deadline_does_not_write() {
    let world = Arc::new(World::default());
    world.freeze_ms.store(3_000, Ordering::Relaxed);
    section(&world, ClientKind::Checking, written, Arc::default());
    let log = world.log();
    assert!(!log.contains(&"[write]".to_owned()), "{log:?}");
    assert_eq!(log[log.len() - 5..], ["check", "loss-noticed", "release", "[release]", "released"]);
    let unchecked = Arc::new(World::default());
    unchecked.freeze_ms.store(3_000, Ordering::Relaxed);
    section(&unchecked, ClientKind::Unchecked, written, Arc::default());
    assert!(unchecked.log().contains(&"[write]".to_owned()), "an unchecked one does");
}

#[test]
fn after_a_write_that_may_still_arrive_the_hold_is_kept() {
    let world = Arc::new(World::default());
    section(&world, ClientKind::Unchecked, timed_out, Arc::default());
    let log = world.log();
    assert_eq!(log[log.len() - 3..], ["[write]", "access-failed", "gave-up"]);
    let events = world.events.lock().unwrap();
    let failed = events.iter().find_map(|e| match e {
        Event::AccessFailed { outcome, .. } => Some(*outcome),
        _ => None,
    });
    assert_eq!(failed, Some(Outcome::Indeterminate));
}

#[test]
fn a_write_that_may_still_arrive_is_the_last_of_its_section() {
    let world = Arc::new(World::default());
    let client = client(&world, ClientKind::Unchecked, timed_out, Arc::default());
    assert_eq!(run(&client, &of_locks(&["k0", "k1"])), Some(Ended::Done));
    let log = world.log();
    assert_eq!(log[log.len() - 3..], ["[write]", "access-failed", "gave-up"]);
    assert_eq!(log.iter().filter(|said| *said == "acquire").count(), 1, "{log:?}");
}

#[test]
fn after_a_write_that_never_left_the_hold_is_released() {
    let world = Arc::new(World { resend_ms: AtomicU64::new(50), ..World::default() });
    section(&world, ClientKind::Unchecked, not_sent, Arc::default());
    let log = world.log();
    assert_eq!(log[log.len() - 5..], ["[write]", "access-failed", "release", "[release]", "released"]);
    assert!(!log.contains(&"resend".to_owned()), "{log:?}");
}

#[test]
fn after_a_read_without_an_answer_the_hold_is_released() {
    let world = Arc::new(World { loses_reads: true, ..World::default() });
    section(&world, ClientKind::Unchecked, written, Arc::default());
    let log = world.log();
    let expected = ["read", "[read]", "access-failed", "release", "[release]", "released"];
    assert_eq!(log[log.len() - expected.len()..], expected);
}

/// The first copy of a write gets no answer, every later copy cannot be sent.
fn refused_after_a_timeout() -> Result<WriteAnswer, ClientError> {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    match COPIES.fetch_add(1, Ordering::Relaxed) {
        0 => timed_out(),
        _ => not_sent(),
    }
}

#[test]
fn a_copy_that_failed_does_not_take_back_a_copy_that_may_arrive() {
    let world = Arc::new(World::default());
    world.resend_ms.store(50, Ordering::Relaxed);
    section(&world, ClientKind::Unchecked, refused_after_a_timeout, Arc::default());
    let events = world.events.lock().unwrap();
    let outcomes: Vec<_> = events
        .iter()
        .filter_map(|e| match e {
            Event::AccessFailed { outcome, .. } => Some(*outcome),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, [Outcome::Indeterminate]);
    assert!(events.iter().any(|e| matches!(e, Event::GaveUp { .. })), "the hold is not released");
}

#[test]
fn completions_record_what_each_arm_answered() {
    let world = Arc::new(World::default());
    section(&world, ClientKind::Unchecked, refused, Arc::default());
    let events = world.events.lock().unwrap();
    let of = |name: &str| {
        let event = events.iter().map(|e| serde_json::to_value(e).unwrap()).find(|e| e["event"] == name);
        event.unwrap()["arms"].to_string()
    };
    assert_eq!(
        (of("read-ok"), of("write-ok")),
        (r#"[["off",5,3]]"#.into(), r#"[["off",false,9],["off",true,9]]"#.into())
    );
}

#[test]
fn only_an_armed_client_announces_its_point_and_waits_no_longer_than_its_bound() {
    let world = Arc::new(World::default());
    let points = Arc::new(Points::default());
    points.arm(ClientId(3), Point::BeforeWrite, Duration::from_millis(700));
    points.arm(ClientId(4), Point::AfterRead, Duration::from_millis(700));
    section(&world, ClientKind::Unchecked, written, points.clone());
    let log = world.log();
    let at = log.iter().position(|e| e == "at-point").unwrap();
    assert_eq!(log[at - 1..at + 4], ["work", "at-point", "left-point", "write", "[write]"]);
    assert!(world.now_ms.load(Ordering::Relaxed) >= 800, "100 ms of work and the bound");
    assert_eq!(log.iter().filter(|e| *e == "at-point").count(), 1, "the other client's arming is not its own");
    // It was armed for one passage.
    let again = Arc::new(World::default());
    section(&again, ClientKind::Unchecked, written, points);
    assert!(!again.log().contains(&"at-point".to_owned()));
}

#[test]
fn an_armed_client_waits_at_each_of_its_points() {
    for (point, next) in [
        (Point::BeforeAcquire, "acquire"),
        (Point::AfterSend, "acquired"),
        (Point::AfterAcquire, "read"),
        (Point::AfterRead, "work"),
        (Point::AfterCheck, "write"),
        (Point::BeforeWrite, "write"),
        (Point::BeforeRelease, "release"),
    ] {
        let (world, points) = (Arc::new(World::default()), Arc::new(Points::default()));
        points.arm(ClientId(3), point, Duration::from_millis(10));
        section(&world, ClientKind::Checking, written, points);
        let log = world.log();
        assert!(log.windows(3).any(|three| three == ["at-point", "left-point", next]), "{point:?}: {log:?}");
    }
}

#[test]
fn a_parent_is_kept_while_a_write_below_it_may_arrive() {
    let world = Arc::new(World::default());
    let mut client = client(&world, ClientKind::Unchecked, timed_out, Arc::default());
    let section = of_parent(&mut client);
    assert_eq!(run(&client, &section), Some(Ended::Done));
    let log = world.log();
    assert_eq!(log[log.len() - 4..], ["[write]", "access-failed", "gave-up", "gave-up"]);
}

#[test]
fn a_checking_client_writes_nothing_below_a_parent_that_it_has_lost() {
    let world = Arc::new(World { last_sleep_ms: AtomicU64::new(900), lost: Some("k0"), ..World::default() });
    let points = Arc::new(Points::default());
    let mut client = client(&world, ClientKind::Checking, written, points.clone());
    let section = of_parent(&mut client);
    client.workload.renew = Some(Duration::from_millis(500));
    // The child is read, then both holds are renewed, then the client goes on.
    points.arm(ClientId(3), Point::AfterRead, Duration::from_secs(10));
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (give_up, end) = (|| true, || -> Reply<()> { Box::pin(pending()) });
    let mut running = pin!(client.section(&section, Stamp(0), &mut rng, &give_up, &end));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(running.as_mut().poll(&mut cx).is_pending(), "the client waits at its point");
    points.go(ClientId(3));
    assert!(running.as_mut().poll(&mut cx).is_ready());
    let log = world.log();
    assert_eq!(log.iter().filter(|said| *said == "renewed").count(), 1, "the child's hold: {log:?}");
    assert_eq!(log.iter().filter(|said| *said == "loss-noticed").count(), 2, "{log:?}");
    assert!(!log.contains(&"[write]".to_owned()), "{log:?}");
}

#[test]
fn a_renewal_that_shortens_nothing_records_its_own_lease() {
    let world = Arc::new(World { last_sleep_ms: AtomicU64::new(900), ..World::default() });
    let points = Arc::new(Points::default());
    let mut client = client(&world, ClientKind::Unchecked, written, points.clone());
    client.workload.renew = Some(Duration::from_millis(500));
    client.workload.renew_for = Some(Duration::from_millis(100));
    points.arm(ClientId(3), Point::BeforeWrite, Duration::from_secs(10));
    assert_eq!(run(&client, &of_locks(&["k0"])), None, "the client waits at its point");
    let events = world.events.lock().unwrap();
    let leases = events.iter().filter_map(|event| match event {
        Event::Renewed { lease_ns, .. } => Some(*lease_ns),
        _ => None,
    });
    assert_eq!(leases.collect::<Vec<_>>(), [100_000_000]);
}

#[test]
fn an_attempt_that_is_cancelled_at_its_point_leaves_the_point() {
    let world = Arc::new(World { last_sleep_ms: AtomicU64::new(900), ..World::default() });
    let points = Arc::new(Points::default());
    let mut client = client(&world, ClientKind::Unchecked, written, points.clone());
    client.workload.cancel = Some(Duration::from_millis(200));
    points.arm(ClientId(3), Point::AfterSend, Duration::from_secs(10));
    assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Dropped));
    assert_eq!(world.log()[..4], ["acquire", "[acquire]", "at-point", "left-point"]);
    assert!(!points.is_armed(ClientId(3), Point::AfterSend));
}

#[test]
fn a_section_makes_as_many_attempts_as_its_script_allows() {
    let world = Arc::new(World { is_held: true, ..World::default() });
    let client = client(&world, ClientKind::Unchecked, written, Arc::default());
    let section = Section { attempts: Some(3), ..of_locks(&["k0"]) };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let ended = client.section(&section, Stamp(0), &mut rng, &|| false, &|| Box::pin(pending())).now_or_never();
    assert_eq!(ended, Some(Ended::Dropped));
    assert_eq!(world.log().iter().filter(|said| *said == "acquire").count(), 3);
}

/// A clock whose reader is frozen for a second after each reading.
struct Freezing(Arc<World>);

impl Clock for Freezing {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.now_ms.fetch_add(1_000, Ordering::Relaxed))
    }

    fn sleep_until(&self, _: Duration) -> Reply<()> {
        Box::pin(ready(()))
    }

    fn wall(&self) -> Duration {
        self.now()
    }
}

#[test]
fn a_client_that_freezes_between_two_clocks_carries_no_late_deadline() {
    let world = Arc::new(World { has_deadlines: true, ..World::default() });
    let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
    client.recording.clock = Arc::new(Freezing(world.clone()));
    assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Done));
    // The request for the lock leaves at 0, and both clocks show the same.
    let end_us = u64::try_from(validity::promise_end(Duration::ZERO, client.lease).as_micros()).unwrap();
    let deadlines = world.deadlines.lock().unwrap();
    assert!(matches!(deadlines[..], [Some(deadline_us)] if deadline_us <= end_us), "{deadlines:?}");
}

/// An attempt that has not begun.
fn attempt(world: &Arc<World>) -> Attempt {
    let double = || Arc::new(Double(world.clone()));
    let recording = Recording { journal: double(), clock: double(), points: Arc::default() };
    Attempt::new(recording, ClientId(3), HoldId::of(2, 1), "k0".into(), Stamp(0), Mode::Write, None)
}

/// A hold that such an attempt gives.
fn hold() -> Hold {
    let (key, owner, lease) = (locks::Key::new("k0"), Owner::new("a"), Duration::from_secs(2));
    let (sent, valid_until) = (Duration::ZERO, lease);
    Hold { key, owner, token: None, lease, sent, valid_until, answers: Vec::new() }
}

#[test]
fn in_a_queue_a_hold_is_granted_after_the_last_look_that_saw_another_client() {
    let world = Arc::new(World::default());
    let attempt = attempt(&world);
    attempt.sending(Round::Acquire);
    for is_behind in [true, true, false] {
        world.now_ms.fetch_add(10, Ordering::Relaxed);
        attempt.looking();
        world.now_ms.fetch_add(1, Ordering::Relaxed);
        if is_behind {
            attempt.behind();
        }
    }
    attempt.answered(Round::Acquire);
    attempt.acquired(&hold());
    let events = world.events.lock().unwrap();
    let Some(Event::Acquired { granted_after, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!(*granted_after, Stamp(21_000_000));
}

#[test]
fn every_answer_of_a_node_is_recorded_as_it_was() {
    let said = [NodeAnswer::Granted, NodeAnswer::Done, NodeAnswer::Refused, NodeAnswer::Late, NodeAnswer::None];
    let world = Arc::new(World::default());
    let answers = said.map(|answer| ("redis-1".into(), answer)).to_vec();
    let (reason, outcome) = (locks::FailureReason::Validity, locks::Outcome::Failed);
    attempt(&world).failed(&locks::Failure { reason, outcome, answers });
    let events = world.events.lock().unwrap();
    let [Event::AcquireFailed { answers, .. }] = &events[..] else { panic!("another event") };
    let recorded: Vec<String> = answers.iter().map(|(_, answer)| format!("{answer:?}")).collect();
    assert_eq!(recorded, said.map(|answer| format!("{answer:?}")));
}

#[test]
fn the_detail_of_a_failed_attempt_is_short() {
    let world = Arc::new(World::default());
    let reason = locks::FailureReason::Error("ä".repeat(1 << 20));
    let failure = locks::Failure { reason, outcome: locks::Outcome::Indeterminate, answers: Vec::new() };
    attempt(&world).failed(&failure);
    let events = world.events.lock().unwrap();
    let [Event::AcquireFailed { detail: Some(detail), .. }] = &events[..] else { panic!("another event") };
    assert_eq!((detail.chars().count(), detail.ends_with('…')), (1_001, true));
}

/// A clock that goes on by 1.5 s at each reading.
#[derive(Default)]
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1_500, Ordering::Relaxed))
    }

    fn sleep_until(&self, _: Duration) -> Reply<()> {
        unreachable!("a re-entry waits for nothing")
    }
}

#[test]
fn a_hold_that_lapses_between_re_entries_is_left_and_released() {
    let world = Arc::new(World::default());
    let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
    client.workload.reenter = 3;
    // The hold of 2 s has lapsed at the third re-entry.
    client.lock = Arc::new(Reentrant::new(client.lock.clone(), Arc::new(Hasty::default())));
    assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Done));
    let expected = "work reentered reentered loss-noticed left left release [release] released left";
    let log = world.log();
    assert_eq!(log[log.len() - 10..].join(" "), expected);
}

#[test]
fn a_release_that_failed_is_followed_by_no_release_too_many() {
    let world = Arc::new(World { loses_releases: true, ..World::default() });
    let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
    client.workload.reenter = 1;
    client.lock = Arc::new(Reentrant::new(client.lock.clone(), Arc::new(Double(world.clone()))));
    assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Done));
    let log = world.log();
    assert_eq!(log[log.len() - 4..], ["write-ok", "release", "[release]", "release-failed"]);
}
