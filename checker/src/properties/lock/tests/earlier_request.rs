//! Promises that rest on a request before the attempt, as in a session of etcd.

use std::time::Duration;

use history::{ClockChange, Event, Fault, Models, WhichClock, fault};

use super::{HistoryBuilder, etcd};

const SECOND: Duration = Duration::from_secs(1);

/// Worker 1's attempt is sent at 1,100 and relies on the request of 1,020, so its promise ends at 2,998. Worker 2
/// acquires at 2,010.
fn overlap() -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.plan.servers = etcd();
    s.plan.models = Some(Models { revokes_on_resume: true, ..Models::default() });
    s.acquire_promised(1, 1, 1_100, 1_020, 1_110, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_100);
    s.release_refused(1, 2_200);
    s
}

#[test]
fn a_fault_since_the_request_may_have_ended_the_lease() {
    assert_eq!(overlap().causes(), ["unexplained"]);
    let ahead = fault::Clock { clock: WhichClock::Both, change: ClockChange::JumpMs(1_100) };
    // The pause and the restart are over when the attempt is sent. The clock stays ahead.
    for (fault, cause, ends) in [
        (Fault::new(ahead, SECOND), "clock", [2_500, 2_500]),
        (Fault::new(fault::Amnesia::default(), SECOND), "amnesia", [1_010, 1_090]),
        (Fault::new(fault::Pause {}, SECOND), "pause", [1_010, 1_090]),
    ] {
        for (from, to, expected) in [(900, ends[0], "unexplained"), (1_030, ends[1], cause)] {
            let mut s = overlap();
            s.inject(1, fault.clone(), "redis-1", from, to);
            assert_eq!(s.causes(), [expected], "{cause} from {from} to {to}");
        }
    }
}

#[test]
fn a_step_of_the_hosts_clock_since_the_request_may_have_ended_the_lease() {
    let clocks = |wall_ns| Event::Clocks { wall_ns, boot_ns: 0 };
    for (from, to, expected) in [(900, 1_010, "unexplained"), (1_030, 1_090, "host-clock")] {
        let mut s = overlap();
        s.event("worker-2", from, clocks(0)).event("worker-2", to, clocks(60_000_000_000));
        assert_eq!(s.causes(), [expected], "a step from {from} to {to}");
    }
}

/// Worker 1's attempt is sent at `sent`, 10 ms before its answer, and relies on the request of 0, so its promise ends
/// at 1,978. It works for `work` from 10 ms after its answer on. Its write arrives at `arrival`, 2 ms after it was
/// sent. Worker 2 holds from 1,990 on.
fn late(sent: u64, work: u64, arrival: u64) -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    let ok = sent + 10;
    s.acquire_promised(1, 1, sent, 0, ok, 41).believing(1_978 - ok);
    s.work(1, ok + 10, work).write(1, 1, arrival - 2, arrival);
    s.acquire(2, 2, 1_985, 1_990, 42).release(2, 2_500).release_refused(1, 2_600);
    s
}

#[test]
fn the_time_since_the_request_counts_as_planned() {
    // 100 ms, 20 ms of the attempt, the work, and 2 ms of the write; before the write, what no record shows.
    assert_eq!(late(100, 1_880, 2_002).causes(), ["overrun"]);
    assert_eq!(late(100, 1_857, 1_995).causes(), ["overrun"], "1,995 ms");
    assert_eq!(late(100, 1_000, 2_002).causes(), ["unexplained"], "0.9 s of it are not known");
}

#[test]
fn a_pause_between_the_request_and_the_attempt_makes_an_act_late() {
    for (from, to, expected) in [(20, 1_880, "pause"), (20, 30, "overrun")] {
        // The client had read its clock before the pause, and believed that the request was recent.
        let mut s = late(1_890, 88, 2_000);
        s.pause(1, "worker-1", from, to);
        assert_eq!(s.causes(), [expected], "paused from {from} to {to}");
    }
}

#[test]
fn a_stall_before_such_an_attempt_makes_an_act_late() {
    for (from, to, expected) in [(20, 1_880, "stall"), (20, 30, "overrun")] {
        // The process reports the stall 5 ms after it, and sends the attempt at 1,890.
        let mut s = late(1_890, 88, 2_000);
        s.stall("worker-1", from, to);
        assert_eq!(s.causes(), [expected], "stalled from {from} to {to}");
    }
}

#[test]
fn a_fault_of_the_servers_before_such_an_attempt_does_not_delay_it() {
    // The fault is over when the attempt is sent, at 100. The client has taken these 100 ms off its lease.
    for fault in [Fault::new(fault::Pause {}, SECOND), Fault::new(fault::Kill {}, SECOND)] {
        let mut s = late(100, 1_880, 2_002);
        s.plan.servers = etcd();
        s.inject(1, fault.clone(), "redis-1", 10, 80);
        assert_eq!(s.causes(), ["overrun"], "{fault:?}");
    }
}
