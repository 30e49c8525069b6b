mod earlier_request;
mod host_clock;
mod told;

use history::{FaultKind, FaultPhase, Mode, NodeAnswer};

use super::*;
use crate::history_builder::{HistoryBuilder, count, etcd, plan, redis_replicated, verdict};

/// Worker 1 holds from 10 to its promise end at 1,978; worker 2 holds from 2,010 on.
fn two_holds() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42);
    builder
}

#[test]
fn kleppmanns_pause_is_a_window_with_its_story() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 22).work(1, 24, 100).pause(1, "worker-1", 100, 5_100);
    builder.acquire(2, 2, 2_000, 2_051, 42).read(2, 1, 2_060, 2_062).write(2, 2, 2_200, 2_210).release(2, 2_220);
    builder.write(1, 2, 5_101, 5_102).release_refused(1, 5_110);
    let verdicts = builder.verdicts();
    insta::assert_snapshot!(serde_json::to_string_pretty(&verdicts).unwrap());
}

#[test]
fn the_first_later_hold_and_the_last_act_give_the_lengths() {
    let mut builder = two_holds();
    builder.release(2, 2_100).acquire(3, 2, 2_200, 2_210, 43);
    builder.read(1, 1, 2_050, 2_060).write(1, 2, 2_300, 2_310).release_refused(1, 2_400).release(3, 2_500);
    let window = builder.window();
    assert_eq!((window.kind, window.reads, window.writes), (WindowKind::StaleHolder, 1, 1));
    assert_eq!(window.holds, [HoldId(1), HoldId(2)]);
    assert_eq!(window.staleness_ms, Some(300.0));
    // 2,010 to 2,100 and 2,210 to 2,310.
    assert_eq!((window.overlap_ms, window.at_ms), (190.0, 2_060.0));
}

#[test]
fn an_act_is_stale_against_a_later_hold_that_has_been_released() {
    let mut builder = two_holds();
    builder.release(2, 2_050).write(1, 1, 1_900, 2_100).release_refused(1, 2_110);
    let window = builder.window();
    assert_eq!((window.overlap_ms, window.staleness_ms), (40.0, Some(90.0)));
}

#[test]
fn a_window_may_have_no_overlap() {
    let mut builder = HistoryBuilder::new();
    // The later hold is a dead claim: it was entitled at no instant.
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 100, 2_100, 42);
    builder.write(1, 1, 1_900, 2_200).release_refused(1, 2_210);
    let window = builder.window();
    assert_eq!((window.overlap_ms, window.staleness_ms), (0.0, Some(100.0)));
}

#[test]
fn acts_at_the_boundaries_are_not_stale() {
    // (arrival, acquire ok of the later hold) and whether the act is stale.
    for (arrival, later, is_stale) in [
        (1_978, 1_977, false), // at the promise end
        (1_979, 1_978, true),
        (1_979, 1_979, false), // at the later ok
        (1_979, 1_980, false),
    ] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_900, later, 42).write(1, 1, 1_800, arrival);
        let lock = builder.lock();
        assert_eq!(lock.stale_holder == 1, is_stale, "arrival {arrival}, later hold at {later}");
    }
}

#[test]
fn an_act_before_the_end_of_a_renewed_promise_is_not_stale() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).renew(1, 1_000, 1_010);
    builder.acquire(2, 2, 2_500, 2_510, 42).write(1, 1, 2_900, 2_978);
    let lock = builder.lock();
    assert_eq!((lock.stale_holder, lock.lease_overlap), (0, 1), "it is the lock that broke its promise");
    assert_eq!(lock.windows[0].overlap_ms, 468.0);
}

#[test]
fn a_renewal_that_comes_too_late_ends_the_entitlement_for_good() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).renew(1, 1_900, 1_978).acquire(2, 2, 2_000, 2_010, 42).write(1, 1, 2_050, 2_060);
    let lock = builder.lock();
    assert_eq!((lock.stale_holder, lock.lease_overlap), (1, 0));
}

#[test]
fn release_and_loss_end_the_entitlement() {
    for end in [Event::Release { hold: HoldId(1) }, Event::LossNoticed { hold: HoldId(1) }] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).write(1, 1, 50, 250).event("worker-1", 100, end);
        builder.acquire(2, 2, 110, 120, 42);
        let window = builder.window();
        assert_eq!((window.kind, window.overlap_ms), (WindowKind::StaleHolder, 130.0));
    }
}

#[test]
fn giving_up_does_not_end_the_entitlement() {
    // The key was granted to another client inside the promise: the lock service broke its promise.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 50, 250).give_up(1, 100).acquire(2, 2, 110, 120, 42).release(2, 300);
    let window = builder.window();
    assert_eq!((window.kind, window.overlap_ms), (WindowKind::LeaseOverlap, 180.0));
    assert!(window.story.iter().any(|line| line.what.starts_with("gave the hold up")), "{:#?}", window.story);
    // Another hold of the client changes nothing, and a kill ends the entitlement.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).give_up(1, 100).acquire(3, 1, 120, 130, 42).kill(1, "worker-1", 150);
    let lock = builder.lock();
    assert_eq!((lock.lease_overlap, lock.windows[0].overlap_ms, lock.windows[0].self_), (1, 20.0, true));
    // After the promise has ended, the act is stale.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 50, 2_100).give_up(1, 100).acquire(2, 2, 2_000, 2_010, 42);
    assert_eq!(builder.window().kind, WindowKind::StaleHolder);
}

#[test]
fn entitlements_that_only_touch_do_not_overlap() {
    for (ok, overlap) in [(99, Some(1.0)), (100, None), (101, None)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 100).acquire(2, 2, 20, ok, 42).release(2, 200);
        let lock = builder.lock();
        assert_eq!(lock.windows.first().map(|w| w.overlap_ms), overlap, "acquired at {ok}");
    }
}

#[test]
fn every_pair_that_overlaps_is_a_window_of_its_own() {
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.workers = 3;
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 15, 20, 42).acquire(3, 3, 25, 30, 43);
    builder.release(2, 50).release(1, 60).release(3, 80);
    let lock = builder.lock();
    let pairs: Vec<_> = lock.windows.iter().map(|w| (w.holds.clone(), w.overlap_ms)).collect();
    let hold = |a, b| vec![HoldId(a), HoldId(b)];
    assert_eq!(pairs, [(hold(1, 2), 30.0), (hold(1, 3), 30.0), (hold(2, 3), 20.0)]);
    assert_eq!((lock.verdict, lock.unexplained), (Verdict::Violated, 3));
}

#[test]
fn an_act_of_unordered_holds_is_undecided() {
    let mut builder = HistoryBuilder::new();
    // Worker 2's attempt was under way when worker 1 acquired: the stamps do not order the grants.
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 5, 1_990, 42).write(1, 1, 1_900, 2_000);
    let lock = builder.lock();
    assert_eq!((lock.undecided, lock.windows.len(), lock.dead_claims.len()), (1, 0, 1));
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire_knowing(2, 2, 5, 10, 1_900, 42).write(1, 1, 1_970, 2_000);
    builder.give_up(2, 1_970);
    let lock = builder.lock();
    assert_eq!((lock.undecided, lock.stale_holder), (1, 0), "granted_after at the other's ok orders nothing");
}

#[test]
fn an_undecided_act_makes_the_lock_inconclusive() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 5, 60, 42).release(2, 80);
    builder.write(1, 1, 40, 70);
    let lock = builder.lock();
    assert_eq!((lock.undecided, lock.verdict), (1, Verdict::Inconclusive));
    assert!(lock.reasons[0].contains("order of grants"), "{:?}", lock.reasons);
}

#[test]
fn granted_after_orders_attempts_that_waited() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50).acquire_knowing(2, 2, 5, 52, 60, 42).release(2, 80);
    builder.write(1, 1, 40, 70);
    assert_eq!(builder.window().staleness_ms, Some(10.0));
}

#[test]
fn the_queue_of_the_service_orders_what_stamps_leave_open() {
    // Worker 2's attempt was sent before worker 1 acquired, and never saw another attempt before it.
    let held = |first: Option<u64>, second: Option<u64>| {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41);
        first.map(|place| builder.with_place(place).plan.seed);
        builder.release(1, 50).acquire(2, 2, 5, 60, 42);
        second.map(|place| builder.with_place(place).plan.seed);
        builder.release(2, 80).write(1, 1, 40, 70);
        let lock = builder.lock();
        (lock.stale_holder, lock.undecided)
    };
    assert_eq!(held(Some(7), Some(8)), (1, 0));
    assert_eq!(held(Some(8), Some(7)), (0, 0), "it was granted before");
    assert_eq!(held(Some(7), None), (0, 1));
    assert_eq!(held(None, Some(8)), (0, 1));
}

#[test]
fn a_later_hold_may_be_heard_of_before_an_earlier_one() {
    let mut builder = HistoryBuilder::new();
    // Worker 2 was first in the queue, and slow to read that: its lease had run out, and worker 1 had taken over.
    builder.acquire(1, 1, 1, 20, 42).with_place(8).release(1, 70).acquire(2, 2, 0, 30, 41).with_place(7);
    builder.write(2, 1, 35, 60).release(2, 40);
    let lock = builder.lock();
    let stale = lock.windows.iter().find(|w| w.kind == WindowKind::StaleHolder).unwrap();
    assert_eq!((stale.holds.as_slice(), stale.staleness_ms), (&[HoldId(2), HoldId(1)][..], Some(40.0)));
    assert_eq!(stale.overlap_ms, 20.0);
    let both = lock.windows.iter().find(|w| w.kind == WindowKind::LeaseOverlap).unwrap();
    assert_eq!((both.holds.as_slice(), both.at_ms), (&[HoldId(2), HoldId(1)][..], 30.0), "in the order of grants");
    assert_eq!(lock.undecided, 0);
}

#[test]
fn a_later_hold_is_kept_for_an_earlier_one_however_many_there_were_before() {
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.workers = 4;
    for i in 1..=15 {
        builder.acquire(i, 3, i * 10, i * 10 + 2, i).with_place(i).release(i, i * 10 + 4);
    }
    // As above, and a third worker takes over before worker 2 is heard of. A fourth one waits since 1,022.
    builder.acquire(51, 1, 1_001, 1_020, 42).with_place(28).release(51, 1_023).try_to_acquire(53, 4, 1_022);
    builder.acquire(52, 3, 1_024, 1_026, 43).with_place(29).release(52, 1_028);
    builder.acquire(50, 2, 1_000, 1_030, 41).with_place(27).write(50, 1, 1_035, 1_060).release(50, 1_040);
    let lock = builder.lock();
    let overwritten = lock.windows.iter().any(|w| w.holds == [HoldId(50), HoldId(51)]);
    assert!(overwritten, "{:?}", lock.windows);
}

#[test]
fn where_the_queue_contradicts_the_stamps_these_stand() {
    let mut builder = HistoryBuilder::new();
    // The store has lost its state, and counts from the start.
    builder.acquire(1, 1, 0, 10, 41).with_place(100).release(1, 50).acquire(2, 2, 55, 60, 42).with_place(1);
    builder.write(2, 1, 90, 120).release(2, 100).write(1, 1, 40, 130);
    let lock = builder.lock();
    assert_eq!((lock.stale_holder, lock.windows[0].holds[0], lock.undecided), (1, HoldId(1), 0));
}

#[test]
fn a_window_between_attempts_of_one_client_is_its_own_fault() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 20, 300).release(1, 100).acquire(2, 1, 110, 120, 42);
    builder.release(2, 400);
    let window = builder.window();
    assert!(window.self_);
    assert!(window.headline.contains("old hold"), "{}", window.headline);
    // A worker may have two clients.
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.clients_per_worker = 2;
    builder.acquire_in("worker-1", 1, 0, 0, 10, 41).acquire_in("worker-1", 2, 1, 100, 110, 42);
    let window = builder.release(2, 200).release(1, 300).window();
    assert!(!window.self_ && !window.told().closing.contains("one client"), "{window:#?}");
}

#[test]
fn a_killed_holds_entitlement_ends_before_the_kill() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 90, 400).kill(1, "worker-1", 100).acquire(2, 2, 200, 210, 42);
    builder.release(2, 500);
    let lock = builder.lock();
    // The promise went on: the lock service cut it short.
    assert_eq!((lock.stale_holder, lock.lease_overlap, lock.cut_short), (1, 0, 1));
    let window = lock.windows.iter().find(|w| w.kind == WindowKind::StaleHolder).unwrap();
    assert_eq!(window.overlap_ms, 190.0);
    assert_eq!(window.causes, [Cause::Fault(FaultKind::Kill).into()]);
}

#[test]
fn a_hold_acquired_after_the_kill_was_requested_is_entitled_at_no_instant() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 90, 110, 41).kill(1, "worker-1", 100).acquire(2, 2, 112, 115, 42).release(2, 200);
    let lock = builder.lock();
    assert_eq!((lock.stale_holder, lock.lease_overlap, lock.cut_short, lock.dead_claims.len()), (0, 0, 1, 0));
}

/// A client that is killed as it acquires is entitled at no instant. The service granted it the key all the same.
#[test]
fn a_grant_to_a_dying_client_inside_an_entitlement_is_an_overlap() {
    let killed_at = |killed: u64, end: u64| {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 500, 510, 42).kill(1, "worker-2", killed);
        builder.release(1, end).lock()
    };
    for killed in [505, 510] {
        let window = &killed_at(killed, 600).windows[0];
        assert_eq!((window.kind, window.overlap_ms), (WindowKind::LeaseOverlap, 0.0));
        assert_eq!(window.headline, "k0: worker-2 acquired while worker-1 was entitled; the hold ended at once");
        assert_eq!(killed_at(killed, 510).verdict, Verdict::Upheld, "the release has the stamp of the grant");
    }
    assert_eq!(killed_at(511, 600).windows[0].overlap_ms, 1.0);
}

#[test]
fn a_dead_claim_of_a_killed_client_overlaps_nothing() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 2_500, 41).acquire(2, 2, 2_100, 2_110, 42).kill(1, "worker-1", 2_500);
    let lock = builder.release(2, 2_600).lock();
    assert_eq!((lock.lease_overlap, lock.dead_claims.len()), (0, 1));
}

#[test]
fn a_kill_does_not_end_holds_of_the_process_that_comes_after() {
    let mut builder = HistoryBuilder::new();
    builder.kill(1, "worker-1", 100).acquire_in("worker-1#2", 1, 0, 1_400, 1_410, 41);
    builder.acquire(2, 2, 1_500, 1_510, 42).release(2, 1_600).release(1, 1_700);
    let window = builder.window();
    assert_eq!((window.overlap_ms, window.workers[0].as_str()), (90.0, "worker-1#2"));
}

#[test]
fn a_repeat_is_not_an_act() {
    let mut builder = two_holds();
    builder.write(1, 1, 100, 200).arrives_again(1, 1, 2_080).release_refused(1, 2_090);
    let verdicts = builder.verdicts();
    assert_eq!(verdicts.reasons, Vec::<String>::new());
    assert_eq!((count(&verdicts, "lock.windows"), count(&verdicts, "off.data.updates")), (0, 1));
}

#[test]
fn a_fault_that_was_not_proved_makes_an_unviolated_lock_inconclusive() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 50);
    let why = "worker-1 went on ticking".to_string();
    builder.fault(1, FaultKind::Pause, "worker-1", 20, FaultPhase::Requested { asked_ns: 1, hold: None });
    builder.fault(1, FaultKind::Pause, "worker-1", 40, FaultPhase::Unproved { why });
    let verdicts = builder.verdicts();
    assert_eq!(verdict(&verdicts, "lock"), Verdict::Inconclusive);
    let reasons = &verdicts.lock().unwrap().reasons;
    assert_eq!(reasons, &["the pause of worker-1 was not proved: worker-1 went on ticking"]);
    assert_eq!(verdict(&verdicts, "activity"), Verdict::Inconclusive);
}

#[test]
fn a_pause_shorter_than_the_lease_leaves_a_note() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 20, 520).write(1, 1, 530, 540).release(1, 550);
    let lock = builder.lock();
    assert_eq!(lock.verdict, Verdict::Upheld);
    assert_eq!(lock.notes, ["no pause outlasted the lease: the longest was 0.500 s, the lease is 2.000 s"]);
}

#[test]
fn a_control_run_with_a_long_stall_is_inconclusive() {
    for (to, expected) in [(600, Verdict::Upheld), (601, Verdict::Inconclusive)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 50).stall("worker-2", 100, to);
        assert_eq!(builder.lock().verdict, expected, "stalled until {to}");
    }
}

#[test]
fn a_step_of_the_hosts_clock_excuses_only_what_it_explains() {
    let clocks = |wall_ns| Event::Clocks { wall_ns, boot_ns: 0 };
    let mut builder = HistoryBuilder::new();
    builder.event("worker-1", 5, clocks(0)).event("worker-1", 1_005, clocks(60_000_000_000));
    builder.acquire(1, 1, 10, 20, 41);
    assert_eq!(builder.lock().verdict, Verdict::Inconclusive);
    // The key expired early by the wall clock: an overlap that the step explains.
    builder.acquire(2, 2, 1_100, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
    let lock = builder.lock();
    assert_eq!(
        (lock.windows[0].causes.as_slice(), lock.verdict),
        (&[Cause::HostClock.into()][..], Verdict::Inconclusive)
    );
    // Another overlap, after the step, stands.
    builder.acquire(3, 1, 3_000, 3_010, 43).acquire(4, 2, 3_100, 3_110, 44).release(4, 3_200).release_refused(3, 3_300);
    let lock = builder.lock();
    assert_eq!((lock.lease_overlap, lock.unexplained, lock.verdict), (2, 1, Verdict::Violated));
    // An overlap before the step is not explained by the step.
    let mut builder = HistoryBuilder::new();
    builder.event("worker-1", 3_000, clocks(0)).event("worker-1", 4_000, clocks(60_000_000_000));
    builder.acquire(1, 1, 10, 20, 41).acquire(2, 2, 1_100, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
    let lock = builder.lock();
    assert_eq!((lock.unexplained, lock.verdict), (1, Verdict::Violated));
}

#[test]
fn a_window_that_a_step_of_the_hosts_clock_explains_only_in_part_stands() {
    // The pause made the first write late. Nothing but the step explains the second one.
    let mut builder = two_holds();
    builder.release(2, 2_100).pause(1, "worker-1", 100, 5_100).write(1, 1, 5_101, 5_102).write(1, 2, 5_103, 9_000);
    for (at, wall_ns) in [(6_000, 0), (7_000, 60_000_000_000)] {
        builder.event("worker-2", at, Event::Clocks { wall_ns, boot_ns: 0 });
    }
    let lock = builder.release_refused(1, 9_010).lock();
    assert_eq!((lock.windows.len(), lock.windows[0].writes, lock.verdict), (1, 2, Verdict::Violated));
    assert_eq!(lock.windows[0].causes, [Cause::Fault(FaultKind::Pause).into(), Cause::HostClock.into()]);
}

/// Worker 3's hold has run out; worker 1 holds; worker 3 releases without asking whose key it is, and these nodes
/// remove it; worker 2 gets it.
fn unsafely_released_on(nodes: &[u64]) -> HistoryBuilder {
    let done: Vec<_> = nodes.iter().map(|node| (*node, NodeAnswer::Done)).collect();
    let done = HistoryBuilder::answers(&done);
    let mut builder = HistoryBuilder::with(plan());
    builder.plan.workload.workers = 3;
    builder.acquire(1, 3, 0, 10, 41).acquire(2, 1, 2_100, 2_110, 42).release_on(1, 2_200, 2_210, done);
    builder.acquire(3, 2, 2_300, 2_310, 43).release(3, 2_400).release_refused(2, 2_500);
    builder
}

#[test]
fn an_unsafe_release_on_one_node_does_not_explain_the_others() {
    for (nodes, cause) in [(&[1, 2, 3][..], Cause::UnsafeRelease), (&[1], Cause::Unexplained)] {
        let window = unsafely_released_on(nodes).window();
        assert_eq!((window.kind, window.causes), (WindowKind::LeaseOverlap, vec![cause.into()]), "done on {nodes:?}");
    }
}

#[test]
fn an_overlap_after_an_unsafe_release_is_explained_by_it() {
    let verdicts = unsafely_released_on(&[1, 2, 3]).verdicts();
    let window = &verdicts.lock().unwrap().windows[0];
    assert_eq!((window.kind, window.causes.as_slice()), (WindowKind::LeaseOverlap, &[Cause::UnsafeRelease.into()][..]));
    assert_eq!(verdict(&verdicts, "release"), Verdict::Violated);
    assert!(window.story.iter().any(|line| line.who == "redis-1"), "{:#?}", window.story);
}

#[test]
fn later_holds_that_overlap_each_other_count_once() {
    let mut builder = two_holds();
    builder.plan.workload.workers = 3;
    builder.acquire(3, 3, 2_020, 2_030, 43).release(2, 2_050).release(3, 2_070);
    builder.write(1, 1, 1_900, 2_060).write(1, 2, 2_061, 2_100).release_refused(1, 2_110);
    let lock = builder.lock();
    let stale = lock.windows.iter().find(|w| w.kind == WindowKind::StaleHolder).unwrap();
    assert_eq!((stale.overlap_ms, stale.writes), (60.0, 2));
}

#[test]
fn an_overlap_counts_every_later_hold_however_many_there_were() {
    let mut builder = HistoryBuilder::new();
    // The promise ends at 1,978. 200 later holds are entitled for 10 ms each before the act.
    builder.acquire(1, 1, 0, 10, 41).write(1, 1, 1_900, 6_010);
    for i in 0..200 {
        let (hold, at) = (10 + i, 2_000 + 20 * i);
        builder.acquire(hold, 2, at, at + 5, 100 + i).release(hold, at + 15);
    }
    assert_eq!(builder.window().overlap_ms, 2_000.0);
}

#[test]
fn holds_overlap_only_if_their_modes_conflict() {
    for one in Mode::ALL {
        for other in Mode::ALL {
            let mut builder = HistoryBuilder::new();
            builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 20, 30, 42).release(1, 100).release(2, 110);
            builder.in_mode(1, one).in_mode(2, other);
            let overlaps = u64::from(one.conflicts(other));
            assert_eq!(count(&builder.verdicts(), "lock.lease_overlap"), overlaps, "{one} and {other}");
        }
    }
}

#[test]
fn a_stale_reader_is_told_apart_from_the_writer_that_took_over() {
    let mut builder = two_holds();
    builder.read(1, 1, 2_050, 2_060).release_refused(1, 2_400).release(2, 2_500).in_mode(1, Mode::Read);
    let window = builder.window();
    assert_eq!((window.kind, window.reads, window.writes), (WindowKind::StaleHolder, 1, 0));
    assert_eq!(window.headline, "k0: worker-1 (reader) acted 0.05 s after worker-2 (writer) took over");
    assert!(window.story.iter().any(|line| line.what.starts_with("acquired as writer, token 42")), "{window:?}");
    // Another reader takes nothing over.
    builder.in_mode(2, Mode::Read);
    assert_eq!(verdict(&builder.verdicts(), "lock"), Verdict::Upheld);
}

#[test]
fn an_act_is_undecided_only_beside_an_unordered_hold_that_conflicts() {
    for (mode, undecided) in [(Mode::Write, 1), (Mode::Read, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 5, 30, 42).release(1, 40).release(2, 50);
        builder.read(1, 1, 35, 60).in_mode(1, Mode::Read).in_mode(2, mode);
        assert_eq!(count(&builder.verdicts(), "lock.undecided"), undecided, "{mode}");
    }
}

#[test]
fn a_fault_without_any_proof_leaves_the_lock_undecided() {
    use history::{FaultKind, FaultPhase};
    let unproved = FaultPhase::Unproved { why: "it went on".into() };
    for (proof, expected) in [
        (vec![], Verdict::Inconclusive),
        (vec![FaultPhase::MissedTarget], Verdict::Upheld),
        (vec![FaultPhase::Proved { from: Stamp(100_000_000), to: Stamp(200_000_000) }], Verdict::Upheld),
        // The fault may have been on, though its hold had ended.
        (vec![unproved, FaultPhase::MissedTarget], Verdict::Inconclusive),
    ] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 60, 70, 42).release(2, 80);
        let phases = [FaultPhase::Requested { asked_ns: 100_000_000, hold: None }, FaultPhase::Injected];
        let phases =
            phases.into_iter().chain([FaultPhase::Healed]).chain(proof.clone()).chain([FaultPhase::HealProved]);
        for (i, phase) in phases.enumerate() {
            builder.fault(1, FaultKind::Pause, "redis-1", 100 + 50 * i as u64, phase);
        }
        assert_eq!(verdict(&builder.verdicts(), "lock"), expected, "{proof:?}");
    }
}
