//! Causes of windows of holds that their client gave up, or whose process ended.

use std::time::Duration;

use history::{Event, FailureReason, Fault, HoldId, NodeAnswer, OpId, Outcome, fault};

use super::{HistoryBuilder, delay, partition, stale};
use crate::verdict::Verdict;

/// A hold that renews each 600 ms. Its last renewal that counts is sent at 610, so its promise ends at 2,588.
fn renewing() -> HistoryBuilder {
    let mut s = HistoryBuilder::renewing(600);
    s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).acquire(2, 2, 2_700, 2_710, 42).release(2, 2_720);
    s
}

#[test]
fn renewals_end_when_the_client_gives_up() {
    let mut s = renewing();
    s.write(1, 1, 700, 2_900).give_up(1, 900);
    assert_eq!(s.causes(), ["unexplained"], "no fault delayed the write");
}

#[test]
fn a_renewal_under_way_when_the_client_gives_up_does_not_count() {
    let mut s = renewing();
    s.write(1, 1, 700, 2_900).event("worker-1", 1_210, Event::Renew { hold: HoldId(1) }).give_up(1, 1_215);
    // The client begins its next attempt: it waits no longer for an answer.
    s.try_to_acquire(3, 1, 1_300);
    assert_eq!(s.causes(), ["unexplained"]);
}

#[test]
fn a_frozen_resource_explains_a_late_write_although_the_last_renewal_was_under_way() {
    // The pause cannot have kept the renewal of 1,210 from a lock node. In a replay it must not count all the same:
    // with it, the promise would end at 3,178, after the write.
    let mut s = renewing();
    s.write(1, 1, 700, 2_900).pause(1, "resource", 705, 2_890);
    s.event("worker-1", 1_210, Event::Renew { hold: HoldId(1) }).give_up(1, 1_215).try_to_acquire(3, 1, 1_300);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_delay_that_left_the_last_renewal_unanswered_is_a_cause() {
    let mut s = renewing();
    s.write(1, 1, 700, 2_900).event("worker-1", 1_210, Event::Renew { hold: HoldId(1) }).give_up(1, 1_215);
    s.inject(1, delay(500), "redis-2", 1_200, 1_700);
    assert_eq!(s.causes(), ["delay"]);
}

#[test]
fn an_unanswered_renewal_stays_known_when_the_client_releases_its_other_lock() {
    // The client holds k1 too, and releases both: k0 first.
    let mut s = renewing();
    s.acquire(3, 1, 20, 30, 43).with_key(3, "k1");
    s.write(1, 1, 700, 2_900).event("worker-1", 1_210, Event::Renew { hold: HoldId(1) });
    s.release(1, 2_901).release(3, 2_902);
    s.inject(1, partition(), "redis-2", 1_200, 2_950).inject(2, partition(), "redis-3", 1_200, 2_950);
    assert_eq!(s.causes(), ["partition"]);
}

#[test]
fn a_delayed_write_of_a_hold_that_was_given_up_has_its_cause() {
    let mut s = renewing();
    s.write(1, 1, 700, 2_900).give_up(1, 900);
    s.inject(1, delay(2_200), "worker-1", 690, 2_950).packets_delayed(1, "worker-1", "resource", 701, 2_899);
    assert_eq!(s.causes(), ["delay"]);
}

#[test]
fn a_delayed_read_of_a_hold_that_was_released_without_its_answer_has_its_cause() {
    // The client waits for the answer from 20 to 1,020, and releases. The read arrives at 2,500.
    let released = || {
        let mut s = HistoryBuilder::new();
        let (hold, op, outcome) = (HoldId(1), OpId(1), Outcome::Indeterminate);
        s.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 2_500);
        s.event("worker-1", 1_020, Event::AccessFailed { hold, op, outcome, detail: "no answer".into() });
        s.release(1, 1_021).acquire(2, 2, 1_100, 1_110, 42).release(2, 2_600);
        s
    };
    assert_eq!(released().causes(), ["unexplained"]);
    assert_eq!(released().pause(1, "resource", 30, 2_490).causes(), ["pause"]);
    let mut s = released();
    s.inject(1, delay(2_480), "worker-1", 15, 2_600).packets_delayed(1, "worker-1", "resource", 21, 2_499);
    assert_eq!(s.causes(), ["delay"]);
}

#[test]
fn a_write_that_would_have_arrived_before_the_kill_is_late_by_its_delay_too() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).write(1, 1, 90, 400).kill(1, "worker-1", 100).acquire(2, 2, 200, 210, 42);
    s.release(2, 500);
    assert_eq!(stale(&s), ["kill"], "nothing delayed the write");
    s.inject(2, delay(300), "worker-1", 80, 450).packets_delayed(2, "worker-1", "resource", 91, 399);
    assert_eq!(stale(&s), ["kill+delay"]);
}

#[test]
fn a_write_that_would_have_arrived_before_the_loss_is_late_by_its_delay_too() {
    // The node forgets the lock at 1,000 and refuses a renewal. Without the delay the write would arrive at 702.
    let (hold, outcome, why) = (HoldId(1), Outcome::Failed, FailureReason::Lost);
    let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Refused)]);
    let mut s = HistoryBuilder::renewing(600);
    s.plan.lock_nodes.truncate(1);
    s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).write(1, 1, 700, 2_900);
    s.event("worker-1", 1_210, Event::Renew { hold });
    s.event("worker-1", 1_415, Event::RenewFailed { hold, outcome, why, answers });
    s.event("worker-1", 1_415, Event::LossNoticed { hold });
    s.acquire(2, 2, 1_500, 1_510, 42).release(2, 3_000).release_refused(1, 2_950);
    s.inject(1, Fault::new(fault::Amnesia::default(), Duration::from_millis(100)), "redis-1", 1_000, 1_100);
    s.inject(2, delay(2_200), "worker-1", 690, 2_950).packets_delayed(2, "worker-1", "resource", 701, 2_899);
    assert_eq!(s.causes(), ["amnesia+delay"]);
}

#[test]
fn a_proved_freeze_needs_no_stall_by_a_process_that_was_killed_before_it_went_on() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
    s.inject(1, Fault::new(fault::Pause {}, Duration::from_secs(1)), "worker-1", 100, 2_500).write(1, 1, 99, 2_502);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_write_that_timed_out_when_its_client_went_on_was_late_by_the_freeze() {
    // The client goes on at 2,800, its time for an answer is over, and the request leaves all the same.
    for renews in [true, false] {
        let mut s = if renews { renewing() } else { HistoryBuilder::new() };
        if !renews {
            s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_700, 2_710, 42).release(2, 2_720);
        }
        s.pause(1, "worker-1", 701, 2_800).write(1, 1, 700, 2_803).give_up(1, 2_801);
        assert_eq!(s.causes(), ["pause"], "renews: {renews}");
    }
}

#[test]
fn a_client_that_acts_after_its_own_release_is_stale_and_no_fault_explains_it() {
    for (acquired, is_stale) in [(150, true), (250, false)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 100).write(1, 1, 200, 202);
        s.acquire(2, 2, acquired - 10, acquired, 42).release(2, 300).try_to_acquire(3, 1, 400);
        let lock = s.lock();
        assert_eq!(lock.stale_holder, u64::from(is_stale), "the next client at {acquired}");
        assert_eq!(s.verdicts().reasons, Vec::<String>::new(), "the record is whole");
        if is_stale {
            assert_eq!(s.causes(), ["unexplained"]);
        }
    }
}

#[test]
fn an_act_under_the_last_released_hold_is_judged_after_the_next_attempt() {
    let judged = |acquires_again: bool, sent: u64| {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 100).acquire(2, 2, 150, 160, 42).release(2, 200);
        s.try_to_acquire(3, 1, 300).write(1, 1, sent, sent + 2);
        if acquires_again {
            s.acquire_failed(3, 400, FailureReason::Held, Vec::new()).acquire(5, 1, 410, 420, 43).release(5, 600);
        }
        s
    };
    for (acquires_again, sent) in [(false, 350), (true, 500), (true, 600)] {
        let s = judged(acquires_again, sent);
        assert_eq!((s.lock().stale_holder, s.causes()), (1, vec!["unexplained".to_owned()]), "sent at {sent}");
        assert_eq!(s.verdicts().reasons, Vec::<String>::new(), "the record is whole");
        assert_eq!(s.verdicts().properties.get("resource").map(|p| p.verdict()), Some(Verdict::Upheld));
    }
    let older = judged(true, 601);
    assert_eq!(older.lock().stale_holder, 0);
    let older = older.verdicts();
    assert_eq!(older.verdict, Verdict::Inconclusive);
    assert!(older.reasons.concat().contains("released another hold since"), "{:?}", older.reasons);
}
