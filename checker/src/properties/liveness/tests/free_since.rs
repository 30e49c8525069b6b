//! The time since which no client can have had a key.

use std::time::Duration;

use history::{Event, FaultId, NodeName};

use super::{
    ClockChange, FailureReason, Fault, HistoryBuilder, LeaseClock, WhichClock, fault, found_at_5105, judged, ms,
    refused,
};

#[test]
fn an_attempt_whose_end_is_unreported_may_have_had_the_key() {
    // Worker 2 is refused too late: at 5,100. Worker 3 tries at 150, and makes its next attempt at 5,200.
    for (is_reported, is_stuck) in [(true, true), (false, false)] {
        let mut s = found_at_5105();
        s.plan.workload.workers = 3;
        s.try_to_acquire(2, 3, 150);
        if is_reported {
            s.acquire_failed(2, 160, FailureReason::Held, Vec::new());
        }
        s.acquire(3, 3, 5_200, 5_210, 42).release(3, 5_220);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "the end of attempt 2 is reported: {is_reported}");
    }
}

#[test]
fn a_hold_presumed_over_lasts_for_a_lease_after_its_renewal() {
    // Worker 1 takes k1, but renews its hold of k0, at last at 8,505. So k0 is free from 10,505 on.
    for (last, is_stuck) in [(13_500, false), (13_600, true)] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.keys = 2;
        s.acquire(1, 1, 0, 10, 41).acquire(2, 1, 600, 610, 42).with_key(2, "k1").release(2, 700);
        for at in (500..=8_500).step_by(500) {
            s.renew(1, at, at + 5);
        }
        refused(&mut s, 100, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn a_hold_of_a_parent_is_in_use_while_its_client_takes_a_child() {
    // Worker 1 takes k1, neither renews its hold of k0 nor releases it, and finishes after the last refusal.
    for (hierarchy, is_stuck) in [(0.0, true), (0.5, false)] {
        let mut s = HistoryBuilder::new();
        (s.plan.workload.keys, s.plan.workload.hierarchy) = (2, hierarchy);
        s.acquire(1, 1, 0, 10, 41).acquire(2, 1, 600, 610, 42).with_key(2, "k1").release(2, 700);
        refused(&mut s, 100, 8_900);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "the share of the parent is {hierarchy}");
    }
}

#[test]
fn the_judgement_begins_again_when_delayed_packets_arrive() {
    // The key is free from 2,050 on. The last packet arrives at 4,900, so a client must have the key by 7,900.
    for (last, is_stuck) in [(7_900, false), (8_000, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        refused(&mut s, 100, last);
        s.packets_delayed(1, "redis-1", "worker-2", 4_000, 4_900);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn a_process_that_measures_leases_looks_anew_after_each_hold() {
    // Worker 1 releases its holds at 50 and at 9,050. Worker 2 looks at the first one, and at 20,005 at the second one.
    for (last, is_stuck) in [(23_000, false), (23_100, true)] {
        let mut s = HistoryBuilder::new();
        s.plan.servers.lease_clock = LeaseClock::Waiter;
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        refused(&mut s, 3_000, 3_000);
        s.acquire(2, 1, 9_000, 9_010, 42).release(2, 9_050);
        refused(&mut s, 20_000, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn a_longer_lease_that_is_told_late_hides_no_later_refusal() {
    for (last, is_stuck) in [(41_000, false), (41_100, true)] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.keys = 2;
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        refused(&mut s, 100, last);
        s.acquire(50_000, 1, 46_000, 46_010, 42).with_lease(20_000).with_key(50_000, "k1").release(50_000, 46_020);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn a_look_before_the_end_of_a_disturbance_does_not_count() {
    // Worker 1 is dead by 2,020. Worker 2 looks at 2,105, and its clock loses 1 s from 2,500 on. It looks again at
    // 4,605, so it must have the key by 15,605: a lease and 1 s later.
    let slow = fault::Clock { clock: WhichClock::Monotonic, change: ClockChange::DriftPpm(-500_000) };
    let slow = Fault::new(slow, Duration::from_secs(2));
    for (last, is_stuck) in [(13_200, false), (15_600, false), (15_700, true)] {
        let mut s = HistoryBuilder::new();
        (s.plan.servers.lease_clock, s.plan.lease) = (LeaseClock::Waiter, Duration::from_secs(10));
        s.acquire(1, 1, 1_700, 1_710, 41).with_lease(10_000).kill(1, "worker-1", 2_000);
        refused(&mut s, 2_100, 2_100);
        refused(&mut s, 4_600, last);
        s.inject(2, slow.clone(), "worker-2", 2_500, 4_500);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn refusals_between_the_first_and_the_newest_count() {
    // Worker 2 is refused from 5,100 to 60,000, once every 100 ms. A report of delayed packets takes the first refusal
    // back, and worker 3, which may have had the key since 59,000, the newest.
    for (had_since, is_stuck) in [(59_000, true), (5_050, false)] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.workers = 3;
        s.acquire(1, 1, 0, 10, 41).release(1, 50).acquire_knowing(9_000, 3, 90, had_since, 60_500, 42);
        refused(&mut s, 100, 60_000);
        let (fault, from, to) = (FaultId(1), NodeName::from("redis-1"), NodeName::from("worker-2"));
        let (since, until) = (ms(5_100), ms(5_200));
        s.release(9_000, 60_510).event("agent", 60_200, Event::PacketsDelayed { fault, from, to, since, until });
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "worker 3 may have had the key since {had_since}");
    }
}
