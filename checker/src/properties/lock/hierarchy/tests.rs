use std::time::Duration;

use history::{ClientId, ClockChange, Event, Fault, HoldId, Key, Mode, Point, ProcessName, Stamp, WhichClock, fault};

use super::across_levels;
use crate::{
    entry::Entry,
    history_builder::{HistoryBuilder, count, etcd, plan, verdict},
    holds::{Attempt, EventRef},
    properties::WindowKind,
    run::Run,
    verdict::Verdict,
};

/// Worker 1 holds the parent, if it takes an intention, and the child; worker 2 holds the parent meanwhile.
fn child_and_parent(intention: Option<Mode>, child: Mode, parent: Mode) -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    if let Some(mode) = intention {
        builder.acquire(1, 1, 0, 5, 40).in_mode(1, mode);
    }
    builder.acquire(2, 1, 6, 10, 41).of_child(2, intention.map(|_| 1)).in_mode(2, child);
    builder.acquire(3, 2, 15, 20, 42).in_mode(3, parent).release(2, 50);
    if intention.is_some() {
        builder.release(1, 53);
    }
    builder.release(3, 60);
    builder
}

#[test]
fn a_child_without_an_intention_is_compared_with_the_parent() {
    for child in [Mode::Read, Mode::Write] {
        for parent in Mode::ALL {
            let is_conflict = parent == Mode::Write || parent.below().is_some() && child == Mode::Write;
            let overlaps = count(&child_and_parent(None, child, parent).verdicts(), "lock.lease_overlap");
            assert_eq!(overlaps, u64::from(is_conflict), "{child} of the child, {parent} of the parent");
        }
    }
}

#[test]
fn a_hold_of_the_parent_that_ends_first_is_compared_with_each_child() {
    let keys = |builder: &HistoryBuilder| {
        builder.lock().windows.iter().map(|w| (w.key.as_str().to_owned(), w.overlap_ms)).collect::<Vec<_>>()
    };
    for child in [Mode::Read, Mode::Write] {
        for parent in Mode::ALL {
            let is_conflict = parent == Mode::Write || parent.below().is_some() && child == Mode::Write;
            let mut builder = HistoryBuilder::new();
            builder.acquire(2, 1, 6, 10, 41).of_child(2, None).in_mode(2, child);
            builder.acquire(3, 2, 15, 20, 42).in_mode(3, parent).release(3, 50).release(2, 60);
            let expected = is_conflict.then(|| ("k1".to_owned(), 30.0));
            assert_eq!(keys(&builder), Vec::from_iter(expected), "{child} of the child, {parent} of the parent");
        }
    }
    // The client of the child holds the parent, so the two holds of the parent are compared.
    let mut builder = parent_and_child();
    builder.acquire(3, 2, 15, 20, 42).in_mode(3, Mode::Read).release(3, 50).release(2, 60).release(1, 70);
    assert_eq!(keys(&builder), [("k0".to_owned(), 30.0)]);
}

#[test]
fn a_window_of_two_keys_names_both() {
    let window = child_and_parent(None, Mode::Write, Mode::Write).window();
    assert_eq!((window.kind, window.key.as_str(), window.overlap_ms), (WindowKind::LeaseOverlap, "k1", 30.0));
    assert_eq!(window.headline, "k1: worker-1 (k1, writer) and worker-2 (k0, writer) were both entitled for 0.03 s");
    assert_eq!(window.story[0].what, "acquired k1 as writer, token 41, entitled until 1.984 s");
}

#[test]
fn places_in_the_queues_of_two_keys_order_nothing() {
    // The attempts were under way together, so the stamps do not order the grants either.
    for places in [[7, 8], [8, 7]] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(2, 1, 6, 10, 41).with_place(places[0]).of_child(2, None);
        builder.acquire(3, 2, 5, 20, 42).with_place(places[1]).release(2, 50).release(3, 60);
        assert_eq!(builder.window().holds, [HoldId(2), HoldId(3)], "in the order of success: {places:?}");
    }
}

#[test]
fn under_an_intention_the_modes_of_the_parent_decide() {
    for (parent, key) in [(Mode::IntentRead, None), (Mode::Read, Some("k0")), (Mode::Write, Some("k0"))] {
        let lock = child_and_parent(Some(Mode::IntentWrite), Mode::Write, parent).lock();
        assert_eq!(lock.windows.iter().map(|w| w.key.as_str()).collect::<Vec<_>>(), Vec::from_iter(key), "{parent}");
    }
}

#[test]
fn an_intention_that_is_too_weak_is_none() {
    let lock = child_and_parent(Some(Mode::IntentRead), Mode::Write, Mode::Read).lock();
    assert_eq!(lock.windows.iter().map(|w| w.key.as_str()).collect::<Vec<_>>(), ["k1"]);
    let upheld = child_and_parent(Some(Mode::IntentRead), Mode::Read, Mode::Read).verdicts();
    assert_eq!(verdict(&upheld, "lock"), Verdict::Upheld);
}

/// Worker 1 holds the parent with an intention to write, hold 1, and the child, hold 2. The promise of the parent ends
/// at 1,978.
fn parent_and_child() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 5, 40).in_mode(1, Mode::IntentWrite).acquire(2, 1, 6, 10, 41).of_child(2, Some(1));
    builder
}

/// The child's key was never granted to another client, so only the hold of the parent shows that the write is stale.
#[test]
fn an_act_under_a_child_is_an_act_under_its_parent() {
    let mut builder = parent_and_child();
    builder.read(2, 1, 20, 22).work(2, 24, 100).pause(1, "worker-1", 100, 5_100);
    builder.acquire(3, 2, 2_000, 2_051, 42).read(3, 1, 2_060, 2_062).write(3, 2, 2_200, 2_210).release(3, 2_220);
    builder.write(2, 2, 5_101, 5_102).release_refused(2, 5_110).release_refused(1, 5_120);
    let window = builder.window();
    assert_eq!((window.kind, window.key.as_str()), (WindowKind::StaleHolder, "k0"));
    assert_eq!((window.holds, window.writes), (vec![HoldId(1), HoldId(3)], 1));
    assert_eq!(builder.causes(), ["pause"]);
    let verdicts = builder.verdicts();
    assert_eq!((count(&verdicts, "off.data.lost_updates"), count(&verdicts, "off.data.stale_accepted")), (1, 1));
    assert_eq!(verdict(&verdicts, "resource"), Verdict::Upheld, "the parent's holder may act on the child's data");
}

#[test]
fn a_check_under_a_child_is_a_check_under_its_parent() {
    // The promise of the parent ends at 1,978, and that of the child at 2,978.
    let parent = vec![HoldId(1)];
    for (at, expected) in [(1_978, (Vec::new(), Verdict::Upheld)), (1_979, (parent, Verdict::Violated))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 5, 40).in_mode(1, Mode::IntentWrite);
        builder.acquire(2, 1, 1_000, 1_010, 41).of_child(2, Some(1)).check(2, at).release(2, 1_985).release(1, 1_990);
        let lock = builder.lock();
        let overclaims: Vec<HoldId> = lock.overclaims.iter().map(|overclaim| overclaim.hold).collect();
        assert_eq!((overclaims, lock.verdict), expected, "a check at {at}");
    }
}

#[test]
fn a_wait_at_a_point_under_a_child_ends_under_its_parent_too() {
    // Without the pause the client would have written at 162. The wait was planned until it was released.
    for (released, expected) in [(150, "pause"), (5_100, "overrun")] {
        let mut builder = parent_and_child();
        builder.at_point(2, 50, 5_101).point_released(0, released).pause(1, "worker-1", 160, 5_100);
        builder.acquire(3, 2, 2_000, 2_051, 42).release(3, 2_220).write(2, 1, 5_102, 5_104);
        builder.release_refused(2, 5_110).release_refused(1, 5_120);
        assert_eq!(builder.window().holds, [HoldId(1), HoldId(3)]);
        assert_eq!(builder.causes(), [expected], "released at {released}");
    }
}

#[test]
fn the_wait_for_a_child_outlasts_the_lease_of_its_parent() {
    // The client waits for the child from 6 to 400, and works for 1,700.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 5, 40).in_mode(1, Mode::IntentWrite).acquire(2, 1, 6, 400, 41).of_child(2, Some(1));
    builder.work(2, 400, 1_700).acquire(3, 2, 2_000, 2_010, 42).release(3, 2_050).write(2, 1, 2_100, 2_102);
    builder.release_refused(2, 2_110).release_refused(1, 2_120);
    assert_eq!(builder.window().holds, [HoldId(1), HoldId(3)]);
    assert_eq!(builder.causes(), ["overrun"]);
}

#[test]
fn a_store_that_delays_the_attempt_at_a_child_makes_acts_under_its_parent_late() {
    // The client waits for the child from 6 to 1,890, and works for 100.
    for (from, to, expected) in [(10, 1_880, "pause"), (1_900, 1_990, "overrun")] {
        let mut b = HistoryBuilder::new();
        b.plan.servers = etcd();
        b.acquire(1, 1, 0, 5, 40).in_mode(1, Mode::IntentWrite).acquire(2, 1, 6, 1_890, 41).of_child(2, Some(1));
        b.work(2, 1_891, 100).acquire(3, 2, 2_000, 2_010, 42).release(3, 2_050).write(2, 1, 1_995, 2_012);
        b.release_refused(2, 2_110).release_refused(1, 2_120).pause(1, "redis-1", from, to);
        assert_eq!(b.window().holds, [HoldId(1), HoldId(3)]);
        assert_eq!(b.causes(), [expected], "paused from {from} to {to}");
    }
}

#[test]
fn a_client_that_was_released_from_a_point_may_have_released_the_parent() {
    // The record of worker 1 ends at the point, at 40. It was dead by 120.
    for (released, expected) in [(None, (Verdict::Violated, 1)), (Some(60), (Verdict::Inconclusive, 0))] {
        let mut builder = parent_and_child();
        builder.at_point(2, 40, 300).kill(1, "worker-1", 100).lose_end("worker-1", 41);
        if let Some(at) = released {
            builder.point_released(0, at);
        }
        let lock = builder.acquire(3, 2, 500, 510, 42).release(3, 600).lock();
        assert_eq!((lock.verdict, lock.cut_short), expected, "released at {released:?}");
    }
}

#[test]
fn a_hold_above_that_the_client_does_not_have_is_refused() {
    let mut of_another_client = HistoryBuilder::new();
    of_another_client.acquire(3, 2, 0, 5, 40).acquire(2, 1, 6, 10, 41).release(2, 50).release(3, 60);
    for mut builder in [of_another_client, child_and_parent(Some(Mode::IntentWrite), Mode::Write, Mode::Read)] {
        let verdicts = builder.of_child(2, Some(3)).verdicts();
        let is_told = |reason: &String| reason.contains("attempt 2 is made under hold 3");
        assert!(verdicts.reasons.iter().any(is_told), "{:?}", verdicts.reasons);
    }
}

#[test]
fn an_attempt_that_is_made_under_itself_is_refused() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(2, 1, 6, 10, 41).write(2, 1, 20, 22).release(2, 50).of_child(2, Some(2));
    let verdicts = builder.verdicts();
    let is_told = |reason: &String| reason.contains("attempt 2 is made under hold 2");
    assert!(verdicts.reasons.iter().any(is_told), "{:?}", verdicts.reasons);
}

#[test]
fn a_wait_before_the_attempt_at_a_child_is_planned_under_the_parent() {
    let (client, hold, point) = (ClientId(0), HoldId(2), Point::BeforeAcquire);
    // While the controller keeps the client at the point, and after that.
    for (left, expected) in [(2_100, "overrun"), (100, "unexplained")] {
        let mut b = HistoryBuilder::new();
        b.acquire(1, 1, 0, 5, 40).in_mode(1, Mode::IntentWrite);
        b.event("worker-1", 10, Event::AtPoint { client, hold, point });
        b.event("agent", left, Event::PointReleased { client, point });
        b.event("worker-1", 2_100, Event::LeftPoint { client, hold, point, released: true });
        b.acquire(2, 1, 2_101, 2_105, 41).of_child(2, Some(1));
        b.acquire(3, 2, 2_000, 2_010, 42).release(3, 2_050).write(2, 1, 2_110, 2_112);
        b.release_refused(2, 2_120).release_refused(1, 2_130);
        assert_eq!(b.window().holds, [HoldId(1), HoldId(3)]);
        assert_eq!(b.causes(), [expected], "the wait is planned until {left}");
    }
}

#[test]
fn the_renewed_lease_of_a_child_counts_against_its_parent() {
    for (by, expected) in [(1, "unexplained"), (1_489, "unexplained"), (1_490, "clock")] {
        let mut b = HistoryBuilder::new();
        b.plan.servers = etcd();
        b.acquire(2, 1, 6, 10, 41).of_child(2, None).renew(2, 1_000, 1_010).renew(2, 2_000, 2_010);
        b.acquire(3, 2, 2_500, 2_510, 42).release(3, 2_600).release(2, 2_700);
        let jump = fault::Clock { clock: WhichClock::Both, change: ClockChange::JumpMs(by) };
        b.inject(1, Fault::new(jump, Duration::from_secs(1)), "redis-1", 2_200, 3_000);
        assert_eq!(b.causes(), [expected], "by {by} ms");
    }
}

#[test]
fn an_intention_on_the_parent_visits_no_child() {
    let mut plan = plan();
    (plan.workload.keys, plan.workload.hierarchy) = (50_001, 0.5);
    let mut run = Run::new(plan);
    let parent = run.parent.unwrap();
    run.add_process(0, |_| ProcessName::from("worker-1"));
    for n in 1..=50_000_u32 {
        let (client, attempt, key, at) = (ClientId(n), HoldId(n.into()), Key::numbered(n), Stamp(n.into()));
        let event = Event::Acquire { client, attempt, key, intended: at, mode: Mode::Write, above: None };
        run.apply(&Entry { at, seq: n.into(), process: 0, event, is_undone: false });
    }
    let sent = EventRef { at: Stamp(100_000), seq: 100_000 };
    for mode in [Mode::IntentRead, Mode::IntentWrite] {
        let hold = Attempt::new(HoldId(100_000), parent, mode, ClientId(0), 0, sent);
        for _ in 0..20_000 {
            assert_eq!(across_levels(&run, &hold).count(), 0);
        }
    }
}
