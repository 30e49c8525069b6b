//! Attempts that overlap, and that may have refused each other.

use history::{ClientId, Event, HoldId, Key, Mode, Outcome, Promise};

use super::{FailureReason, HistoryBuilder, NodeAnswer, judged, ms};

/// An attempt of worker 1 or 2 that every node refused.
fn refused(builder: &mut HistoryBuilder, id: u64, worker: u32, from: u64, to: u64) {
    let no = HistoryBuilder::answers(&[(1, NodeAnswer::Refused), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
    builder.try_to_acquire(id, worker, from).acquire_failed(id, to, FailureReason::Held, no);
}

/// Attempts of two workers that overlap, every 500 ms.
fn contended(builder: &mut HistoryBuilder, from: u64, to: u64) {
    for at in (from..=to).step_by(500) {
        refused(builder, at, 1, at, at + 20);
        refused(builder, at + 1, 2, at + 10, at + 30);
    }
}

#[test]
fn attempts_that_overlap_may_refuse_each_other() {
    // Nobody has ever had the key.
    let stuck = |is_of_one_server: bool, is_of_program: bool, last: u64| {
        let mut s = HistoryBuilder::new();
        contended(&mut s, 20_000, last);
        if is_of_one_server {
            s.plan.lock_nodes.truncate(1);
        }
        if is_of_program {
            s.by_program();
        }
        judged(&s).1.len()
    };
    // They would have got the key within a lease and the slack, if it was free.
    for (last, expected) in [(20_000, 0), (22_500, 0), (23_000, 1)] {
        for (is_of_one_server, is_of_program) in [(false, false), (false, true), (true, false), (true, true)] {
            let found = stuck(is_of_one_server, is_of_program, last);
            assert_eq!(found, expected, "{is_of_one_server} {is_of_program}, until {last}");
        }
    }
}

#[test]
fn attempts_that_meet_at_one_stamp_overlap() {
    // The names of the workers, and so the order of the events at the stamp, decide nothing.
    for (first, second) in [(1, 2), (2, 1)] {
        let mut s = HistoryBuilder::new();
        refused(&mut s, 1, first, 20_000, 20_010);
        refused(&mut s, 2, second, 20_010, 20_020);
        assert_eq!(judged(&s).1, [], "{first} before {second}");
        // One ms apart they are two attempts.
        let mut s = HistoryBuilder::new();
        refused(&mut s, 1, first, 20_000, 20_009);
        refused(&mut s, 2, second, 20_010, 20_020);
        assert_eq!(judged(&s).1.len(), 1, "{first} before {second}");
    }
    // Neither do two attempts of one client overlap.
    let mut s = HistoryBuilder::new();
    refused(&mut s, 1, 1, 20_000, 20_010);
    refused(&mut s, 2, 1, 20_010, 20_020);
    assert_eq!(judged(&s).1.len(), 1);
}

#[test]
fn attempts_that_meet_again_and_again_hide_no_dead_key() {
    // Two clients of one worker try by turns: at each refusal the other one sends its attempt. Their contention begins
    // at 20,000, so the refusal of attempt 8, sent at 23,500, is one too many. The last attempt is not refused.
    for (last, expected) in [(7, 0), (11, 1)] {
        let mut s = HistoryBuilder::new();
        s.plan.workload.clients_per_worker = 2;
        for n in 1..=last {
            let (client, attempt, sent) = (ClientId(1 - n as u32 % 2), HoldId(n), 19_500 + 500 * n);
            let (key, intended, mode, above) = (Key::from("k0"), ms(sent), Mode::Write, None);
            s.event("worker-1", sent, Event::Acquire { client, attempt, key, intended, mode, above });
            let why = if n == last { FailureReason::Error } else { FailureReason::Held };
            let (outcome, answers) = (Outcome::Failed, Vec::new());
            s.event("worker-1", sent + 500, Event::AcquireFailed { attempt, outcome, why, detail: None, answers });
        }
        assert_eq!(judged(&s).1.len(), expected, "{last} attempts");
    }
}

#[test]
fn nobody_knows_who_held_a_key_before_the_record() {
    // The record starts at 0. A hold of before is over after a lease, and the key must be had a lease and 1 s later.
    for (at, expected) in [(5_000, 0), (5_001, 1)] {
        let mut s = HistoryBuilder::new();
        refused(&mut s, 1, 1, at, at + 10);
        assert_eq!(judged(&s).1.len(), expected, "at {at}");
    }
}

#[test]
fn a_later_hold_and_the_end_of_its_process_end_a_hold_that_nobody_released() {
    let stuck = |end: &dyn Fn(&mut HistoryBuilder), last| {
        let mut s = HistoryBuilder::new();
        s.plan.servers.promise = Promise::Session;
        s.acquire(1, 1, 0, 10, 41);
        end(&mut s);
        refused(&mut s, last, 2, last, last + 10);
        judged(&s).1.len()
    };
    let excluded = |s: &mut HistoryBuilder| {
        s.acquire(2, 2, 3_000, 3_010, 42).release(2, 3_100);
    };
    let taken_again = |s: &mut HistoryBuilder| {
        s.acquire(2, 1, 3_000, 3_010, 42).release(2, 3_100);
    };
    let finished = |s: &mut HistoryBuilder| {
        s.unfinished.push("worker-1");
        s.event("worker-1", 3_100, Event::Finished);
    };
    assert_eq!(stuck(&|_| {}, 50_000), 0);
    for end in [&excluded as &dyn Fn(&mut HistoryBuilder), &taken_again, &finished] {
        assert_eq!((stuck(end, 8_100), stuck(end, 8_101)), (0, 1));
    }
    // A later event shows that the hold went on.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41);
    excluded(&mut s);
    refused(&mut s, 9_000, 2, 9_000, 9_010);
    s.event("worker-1", 9_500, Event::Work { hold: HoldId(1), planned_ns: 1 });
    assert_eq!(judged(&s).1, []);
}

#[test]
fn what_attempts_have_left_behind_is_over_after_a_lease() {
    let stuck = |alone, is_quiet: bool| {
        let mut s = HistoryBuilder::new();
        s.plan.workload.keys = 2;
        contended(&mut s, 20_000, 20_000);
        if is_quiet {
            // Both workers go on with k1, so nobody has, or tries to get, k0.
            s.acquire(20_002, 1, 20_100, 20_110, 41).with_key(20_002, "k1").release(20_002, 20_120);
            s.acquire(20_003, 2, 20_200, 20_210, 42).with_key(20_003, "k1").release(20_003, 20_220);
        }
        refused(&mut s, alone, 1, alone, alone + 10);
        judged(&s).1.len()
    };
    for is_quiet in [false, true] {
        assert_eq!(stuck(22_030, is_quiet), 0, "quiet: {is_quiet}");
        assert_eq!(stuck(22_031, is_quiet), 1, "nobody overlaps this attempt, and 2 s have passed: {is_quiet}");
        // An attempt that overlaps no other one proves it at once.
        assert_eq!(stuck(19_000, is_quiet), 1, "quiet: {is_quiet}");
    }
}

#[test]
fn a_contention_that_goes_on_lets_nobody_keep_the_key_for_longer() {
    // A 0–10, released 50: free from 2,050 on.
    for (last, expected) in [(4_600, 0), (5_100, 1)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50);
        contended(&mut s, 100, last);
        assert_eq!(judged(&s).1.len(), expected, "until {last}");
    }
    // A contention before a hold says nothing of a later one.
    let mut s = HistoryBuilder::new();
    contended(&mut s, 100, 100);
    s.acquire(1, 1, 1_000, 1_010, 41).release(1, 1_050);
    contended(&mut s, 20_000, 20_000);
    assert_eq!(judged(&s).1, []);
}

#[test]
fn a_report_of_delayed_packets_concerns_only_keys_with_findings() {
    // 5,000 clients try to get a key each while 50,000 reports come.
    let clients = 5_000;
    let mut s = HistoryBuilder::new();
    s.plan.workload.clients_per_worker = clients;
    for n in 0..clients {
        let (client, attempt, key) = (ClientId(n), HoldId(u64::from(n) + 1), Key::numbered(n));
        let (intended, mode) = (ms(10), Mode::Write);
        s.event("worker-1", 10, Event::Acquire { client, attempt, key, intended, mode, above: None });
    }
    for at in (0..50_000).map(|n| 100 + n / 50) {
        s.packets_delayed(1, "worker-1", "redis-1", at, at + 1);
    }
    assert_eq!(judged(&s).1, []);
}
