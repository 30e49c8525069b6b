//! Kills of workers and of the resource.

use std::time::Duration;

use history::{FailureReason, FaultKind, FaultPhase, Mode, Role};

use super::{HistoryBuilder, Property, behind, blocked, etcd, found_at_5105, judged, refused, started};

/// Kills worker 1 at 4,000. Its next process has started at 5,105, if its record was not lost. A second kill was
/// requested at 5,100, and this process is dead by 5,120.
fn killed_at_its_start(is_recorded: bool) -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 50);
    for (id, at) in [(1, 4_000), (2, 5_100)] {
        let requested = FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None };
        for (after, phase) in [(0, requested), (20, FaultPhase::Injected), (1_000, FaultPhase::Healed)] {
            s.fault(id, FaultKind::Kill, "worker-1", at + after, phase);
        }
    }
    s.unfinished.push("worker-1");
    if is_recorded {
        s.event("worker-1#2", 5_105, started(Role::Worker)).unfinished.push("worker-1#2");
    }
    s.event("worker-1#3", 6_200, started(Role::Worker));
    s
}

#[test]
fn a_process_that_starts_while_its_kill_is_under_way_dies_by_it() {
    // The record lacks its attempt, or has nothing of the process: the lease of that attempt may last until 7,120.
    for is_recorded in [true, false] {
        let mut s = killed_at_its_start(is_recorded);
        refused(&mut s, 5_200, 7_100);
        s.acquire(9_000, 2, 7_150, 7_155, 43).release(9_000, 7_160);
        assert_eq!(judged(&s).1, [], "recorded: {is_recorded}");
    }
    // The hold ends with its process. So its key must be free at 8,120.
    for (last, is_stuck) in [(8_100, false), (12_000, true)] {
        let mut s = killed_at_its_start(true);
        s.acquire_in("worker-1#2", 2, 0, 5_108, 5_112, 42);
        refused(&mut s, 5_200, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn an_attempt_under_way_at_a_kill_may_hold_the_key() {
    // Worker 2 is refused too late: at 5,100. Worker 1 is killed at 5,200, and may have tried since 150.
    for (is_trying, is_stuck) in [(false, true), (true, false)] {
        let mut s = found_at_5105();
        if is_trying {
            s.try_to_acquire(2, 1, 150);
        }
        s.kill(1, "worker-1", 5_200);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "an attempt is under way: {is_trying}");
    }
}

#[test]
fn an_ordinary_hold_makes_a_quiet_key_forget_a_kill() {
    // Worker 1 tries, and is dead by 120: k0 is free from 2,120 on, and a client must have it within 1 s. Worker 2
    // releases k0 at 3,020, and goes on with k1: k0 is free from 5,020 on, and must be had within a lease and 1 s.
    for (is_held, from, last, is_stuck) in [
        (false, 2_200, 3_100, false),
        (false, 2_200, 3_200, true),
        (true, 6_000, 8_000, false),
        (true, 6_000, 8_100, true),
    ] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.keys = 2;
        s.try_to_acquire(1, 1, 50).kill(1, "worker-1", 100);
        if is_held {
            s.acquire(2, 2, 3_000, 3_010, 42).release(2, 3_020);
            s.acquire(3, 2, 3_100, 3_110, 43).with_key(3, "k1").release(3, 3_120);
        }
        refused(&mut s, from, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "held after the kill: {is_held}, refused until {last}");
    }
}

#[test]
fn the_longest_blocking_counts_although_a_shorter_one_follows() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100).acquire(2, 2, 4_000, 4_010, 42).kill(2, "worker-2", 4_100);
    s.acquire_in("worker-1#2", 3, 0, 6_200, 6_210, 43).release(3, 6_220);
    assert_eq!(blocked(&s), [Some(3_910.0), Some(2_110.0)]);
    let verdicts = s.verdicts();
    let Some(Property::Liveness(found)) = verdicts.properties.get("liveness") else { panic!() };
    assert_eq!(found.blocked_ms_max, 3_910.0);
}

#[test]
fn a_kill_of_the_resource_takes_back_nothing() {
    let mut s = found_at_5105();
    s.kill(1, "resource", 5_104).lose_end("resource", 5_103);
    assert_eq!(judged(&s).1.len(), 1);
}

#[test]
fn a_reader_ends_no_blocking_by_a_reader_that_was_killed() {
    // Worker 1 reads, and is killed at 100. Hold 2 is acquired at 310, and hold 3, which writes, at 2,110.
    for (mode, blocked_ms) in [(Mode::Read, 2_010.0), (Mode::Write, 210.0)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).in_mode(1, Mode::Read).kill(1, "worker-1", 100);
        s.acquire(2, 2, 300, 310, 42).in_mode(2, mode).release(2, 320);
        s.acquire(3, 2, 2_100, 2_110, 43).release(3, 2_120);
        assert_eq!(blocked(&s), [Some(blocked_ms)], "{mode} at 310");
    }
}

#[test]
fn an_attempt_that_the_record_lost_may_hold_a_key_that_nobody_had_tried() {
    // The record has nothing of worker 1 after 52, and it is dead by 4,020: an attempt of its last moments may hold k1
    // until 6,020, and 1 s longer. Worker 2 tries k1 for the first time at 4,100.
    for (last, is_stuck) in [(7_000, false), (7_100, true)] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.keys = 2;
        s.acquire(1, 1, 0, 10, 41).release(1, 50).kill(1, "worker-1", 4_000).lose_end("worker-1", 60);
        refused(&mut s, 4_100, last);
        s.of_key(2, "k1");
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn servers_may_grant_a_longer_lease_than_the_plan_asks_for() {
    // etcd grants 2 s. Worker 1 is dead by 120, and its attempt may have the key until 2,120.
    for (last, is_stuck) in [(2_300, false), (5_120, false), (5_121, true)] {
        let mut s = HistoryBuilder::new();
        (s.plan.servers, s.plan.lease) = (etcd(), Duration::from_millis(500));
        s.try_to_acquire(1, 1, 50).kill(1, "worker-1", 100).try_to_acquire(2, 2, 60);
        behind(&mut s, 2, "worker-2", 70);
        s.acquire_failed(2, last, FailureReason::Cancelled, Vec::new());
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "waits until {last}");
    }
}

#[test]
fn a_kill_that_the_engine_refused_blocks_no_key() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).kill_refused(1, "worker-1", 100, 150).release(1, 300);
    assert!(blocked(s.acquire(2, 2, 400, 410, 42).release(2, 420)).is_empty());
}

#[test]
fn a_request_of_a_dead_client_may_be_done_when_its_server_runs_again() {
    // Worker 1 is dead by 2,020, so k0 is free from 4,020 on. A server that was frozen until 3,500 may have done the
    // last request of worker 1 only then: its lease may last until 5,500. So a client must have k0 by 7,020, not by
    // 5,020.
    for (from, to, last, is_stuck) in [
        (1_900, 3_500, 5_500, false),
        (1_900, 3_500, 7_000, false),
        (1_900, 3_500, 7_100, true),
        (900, 1_100, 5_000, false),
        (900, 1_100, 5_100, true),
    ] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 1_700, 1_710, 41).kill(1, "worker-1", 2_000).pause(2, "redis-1", from, to);
        refused(&mut s, 4_100, last);
        assert_eq!(judged(&s).1.len() == 1, is_stuck, "frozen until {to}, refused until {last}");
    }
}
