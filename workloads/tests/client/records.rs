//! Tests of the records of one attempt and its hold: their stamps, and the loss of the hold.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use history::{ClientKind, Event, Stamp};
use locks::{FailureReason, Round, Watch};
use workloads::client::Ended;

use super::{
    Freezing, attempt,
    doubles::{World, client, of_locks, run, written},
    hold,
};

#[test]
fn a_hold_is_granted_after_the_first_request_and_recorded_at_the_last_answer() {
    let world = Arc::new(World::default());
    let attempt = attempt(&world);
    for round in [Round::Acquire, Round::WriteBack] {
        world.now_ms.fetch_add(10, Ordering::Relaxed);
        attempt.sending(round);
        world.now_ms.fetch_add(10, Ordering::Relaxed);
        attempt.answered(round);
    }
    world.now_ms.fetch_add(10, Ordering::Relaxed);
    attempt.acquired(&hold());
    let events = world.events.lock().unwrap();
    let Some(Event::Acquired { granted_after, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!(*granted_after, Stamp(10_000_000));
    assert_eq!(world.stamps.lock().unwrap().last(), Some(&Stamp(40_000_000)));
}

#[test]
fn a_promise_rests_on_the_last_request_that_was_answered() {
    for (answered, expected_ms) in [(0, None), (1, Some(10)), (2, Some(20))] {
        let world = Arc::new(World::default());
        let attempt = attempt(&world);
        for request in 1..=3 {
            world.now_ms.fetch_add(10, Ordering::Relaxed);
            attempt.promising();
            if request <= answered {
                attempt.promised();
            }
        }
        attempt.acquired(&hold());
        let events = world.events.lock().unwrap();
        let Some(Event::Acquired { promised_from, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(*promised_from, expected_ms.map(|ms: u64| Stamp(ms * 1_000_000)), "{answered} answers");
    }
}

#[test]
fn a_renewal_that_finds_no_hold_or_comes_too_late_loses_the_hold() {
    for (reason, is_lost) in [
        (FailureReason::Lost, true),
        (FailureReason::Validity, true),
        (FailureReason::Held, false),
        (FailureReason::NoMajority, false),
        (FailureReason::Cancelled, false),
        (FailureReason::Deadlock, false),
        (FailureReason::Error("no answer".into()), false),
    ] {
        let failure = locks::Failure { reason, outcome: locks::Outcome::Failed, answers: Vec::new() };
        let renewed = attempt(&Arc::new(World::default())).renewed(Err(&failure));
        assert_eq!(renewed, Err(is_lost), "{:?}", failure.reason);
    }
}

#[test]
fn a_check_is_stamped_before_its_clock_is_read() {
    let world = Arc::new(World::default());
    let mut client = client(&world, ClientKind::Checking, written, Arc::default());
    client.recording.clock = Arc::new(Freezing(world.clone()));
    assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Done));
    let (events, stamps) = (world.events.lock().unwrap(), world.stamps.lock().unwrap());
    let at = |is: fn(&Event) -> bool| stamps[events.iter().position(is).unwrap()];
    let [work, check] = [at(|e| matches!(e, Event::Work { .. })), at(|e| matches!(e, Event::Check { .. }))];
    // The work reads the clock once, for its sleep.
    assert_eq!(check.since(work), Duration::from_secs(1));
}
