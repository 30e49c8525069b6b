mod giving_up;
mod overrun;
mod renewals;
mod suspects;

use history::{
    ClockChange, Direction, Event, FailureReason, Fault, FaultKind, FaultPhase, HoldId, NodeAnswer, OpId, Outcome,
    StallCause, WhichClock, fault,
};

use crate::cause::Cause;
use crate::history_builder::{HistoryBuilder, etcd, ms, redis_replicated, redlock};

fn delay(by: u64) -> Fault {
    let (lasting, by) = (std::time::Duration::from_secs(1), std::time::Duration::from_millis(by));
    Fault::new(fault::Delay { by: by.into() }, lasting).on_links(Direction::Both, Vec::new())
}

fn partition() -> Fault {
    let (lasting, direction, cut) = (std::time::Duration::from_secs(1), Direction::Both, history::CutMode::Drop);
    Fault::new(fault::Partition { cut }, lasting).on_links(direction, Vec::new())
}

fn read_ok(hold: u64, number: u64) -> Event {
    Event::ReadOk { hold: HoldId(hold), op: OpId(1), number, arms: None }
}

/// A hold of worker 1 whose promise ends at 1,978, acquired at 10, and a later one of worker 2.
fn builder() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
    builder
}

#[test]
fn a_pause_that_alone_makes_the_act_late_is_the_cause() {
    let mut s = builder();
    s.work(1, 20, 100).pause(1, "worker-1", 100, 2_500).write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_stop_and_a_slow_process_are_causes_by_their_own_names_and_only_for_ticks_that_were_late() {
    let lasting = std::time::Duration::from_secs(3);
    for (fault, name) in
        [(Fault::new(fault::Stop {}, lasting), "stop"), (Fault::new(fault::Slow { percent: 2 }, lasting), "slow")]
    {
        let mut s = builder();
        s.work(1, 20, 100).inject(1, fault.clone(), "worker-1", 100, 2_500);
        s.stall("worker-1", 100, 1_250).stall("worker-1", 1_260, 2_500).write(1, 1, 2_501, 2_502);
        assert_eq!(s.causes(), [name]);
        // The process recorded no late tick, so the fault is no cause: the planned work alone outlasts the lease.
        let mut s = builder();
        s.work(1, 20, 2_400).inject(1, fault.clone(), "worker-1", 100, 2_500).write(1, 1, 2_421, 2_422);
        assert_eq!(s.causes(), ["overrun"]);
        let mut s = builder();
        s.work(1, 20, 100)
            .inject(1, fault, "worker-1", 100, 500)
            .stall("worker-1", 600, 2_500)
            .write(1, 1, 2_501, 2_502);
        assert_eq!(s.causes(), ["stall"], "it came after the heal");
    }
}

#[test]
fn frozen_time_that_no_pause_brackets_is_a_stall() {
    let mut s = builder();
    s.work(1, 20, 100).stall("worker-1", 100, 2_500).write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["stall"]);
}

#[test]
fn a_stall_that_is_reported_after_the_hold_has_closed_still_explains_it() {
    let mut s = builder();
    let event = Event::Stall { from: ms(100), to: ms(2_500), late: StallCause::Write };
    s.work(1, 20, 100).write(1, 1, 2_501, 2_502).release_refused(1, 2_503);
    // The client has released another hold since, so the first one is closed.
    s.acquire(3, 1, 2_550, 2_560, 43).release(3, 2_570).event("worker-1", 2_600, event);
    assert_eq!(s.causes(), ["stall"]);
}

#[test]
fn a_pause_that_was_not_proved_explains_nothing() {
    let mut s = builder();
    s.fault(1, FaultKind::Pause, "worker-1", 95, FaultPhase::Requested { asked_ns: 1, hold: None });
    s.fault(1, FaultKind::Pause, "worker-1", 2_500, FaultPhase::Healed);
    s.fault(1, FaultKind::Pause, "worker-1", 2_510, FaultPhase::Unproved { why: "it ticked".into() });
    s.stall("worker-1", 100, 2_500).write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["stall"]);
}

#[test]
fn work_that_outlasts_the_lease_by_itself_is_an_overrun() {
    let mut s = builder();
    s.work(1, 20, 2_400).write(1, 1, 2_421, 2_422);
    assert_eq!(s.causes(), ["overrun"]);
    // A pause that only adds to it changes nothing.
    let mut s = builder();
    s.work(1, 20, 2_400).pause(1, "worker-1", 2_400, 3_000).write(1, 1, 3_001, 3_002);
    assert_eq!(s.causes(), ["overrun"]);
}

#[test]
fn a_pause_inside_a_planned_wait_does_not_make_the_act_late() {
    let mut s = builder();
    s.work(1, 20, 2_400).pause(1, "worker-1", 100, 2_300).write(1, 1, 2_421, 2_422);
    assert_eq!(s.causes(), ["overrun"]);
}

#[test]
fn where_only_two_together_suffice_they_are_joined() {
    let mut s = builder();
    s.pause(1, "worker-1", 100, 1_300).stall("worker-1", 1_400, 2_600).write(1, 1, 2_601, 2_602);
    assert_eq!(s.causes(), ["pause+stall"]);
}

#[test]
fn the_smallest_set_that_suffices_is_the_cause() {
    // 800 ms and the pauses. Three of 0.5 s are too long, and so are one of 0.5 s and the one of 1 s.
    let mut s = builder();
    s.pause(1, "worker-1", 100, 600).pause(2, "worker-1", 700, 1_200).pause(3, "worker-1", 1_300, 1_800);
    s.pause(4, "worker-1", 1_900, 2_900).write(1, 1, 3_299, 3_300);
    assert_eq!(s.causes(), ["pause+pause"]);
}

#[test]
fn each_that_suffices_alone_is_listed() {
    let mut s = builder();
    s.pause(1, "worker-1", 100, 2_200).stall("worker-1", 2_300, 4_600).write(1, 1, 4_601, 4_602);
    assert_eq!(s.causes(), ["pause", "stall"]);
    let mut s = builder();
    s.pause(1, "worker-1", 100, 2_200).pause(2, "worker-1", 2_300, 4_600).write(1, 1, 4_601, 4_602);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_pause_of_the_resource_delays_a_request_that_is_under_way() {
    let mut s = builder();
    s.write(1, 1, 100, 2_502).pause(1, "resource", 90, 2_500);
    assert_eq!(s.causes(), ["pause"]);
    // Not one that is over when the request leaves.
    let mut s = builder();
    s.pause(1, "resource", 20, 2_400).write(1, 1, 2_450, 2_502);
    assert_eq!(s.causes(), ["unexplained"]);
}

#[test]
fn waiting_at_a_point_is_planned_until_it_is_released() {
    let mut s = builder();
    s.at_point(1, 100, 2_500).pause(1, "worker-1", 120, 2_495).point_released(0, 130).write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["pause"]);
    let mut s = builder();
    s.at_point(1, 100, 2_500).pause(1, "worker-1", 120, 2_400).point_released(0, 2_490).write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["overrun"]);
    let mut s = builder();
    s.at_point(1, 100, 2_500).pause(1, "worker-1", 120, 2_400).write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["overrun"], "nobody released it: all of the wait was planned");
}

#[test]
fn a_pause_of_another_worker_is_no_cause() {
    let mut s = builder();
    s.pause(1, "worker-2", 2_100, 4_000).work(1, 20, 2_400).write(1, 1, 2_421, 2_422);
    assert_eq!(s.causes(), ["overrun"]);
    let mut s = HistoryBuilder::new();
    s.plan.workload.workers = 3;
    s.acquire(1, 1, 0, 10, 41).pause(1, "worker-3", 20, 4_000).acquire(2, 2, 100, 110, 42).release(2, 200);
    s.release(1, 300);
    assert_eq!(s.causes(), ["unexplained"]);
}

#[test]
fn a_pause_that_keeps_renewals_from_leaving_is_the_cause_even_inside_a_planned_wait() {
    let mut s = HistoryBuilder::renewing(600);
    s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).work(1, 20, 5_000).pause(1, "worker-1", 1_000, 4_500);
    s.renew_refused(1, 4_501, 4_505).acquire(2, 2, 3_000, 3_010, 42).release(2, 3_020).write(1, 1, 5_021, 5_022);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_pause_between_two_renewals_is_no_cause() {
    // The renewals stopped by themselves.
    let mut s = HistoryBuilder::renewing(600);
    s.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 100, 500).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
    s.write(1, 1, 2_501, 2_502);
    let lock = s.lock();
    assert_eq!((lock.windows[0].causes.as_slice(), lock.unexplained), (&[Cause::Unexplained.into()][..], 1));
}

#[test]
fn two_pauses_that_keep_renewals_back_together_are_joined() {
    let mut s = HistoryBuilder::renewing(600);
    // Between them the renewal that was due did not come out.
    s.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 500, 1_700).stall("worker-1", 1_700, 2_650);
    s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).write(1, 1, 2_701, 2_702);
    assert_eq!(s.causes(), ["pause+stall"]);
}

#[test]
fn a_renewal_refused_inside_the_promise_by_nobodys_fault_explains_nothing() {
    let mut s = HistoryBuilder::renewing(600);
    s.acquire(1, 1, 0, 10, 41).renew_refused(1, 610, 615).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
    s.write(1, 1, 2_501, 2_502);
    assert_eq!(s.causes(), ["unexplained"]);
}

#[test]
fn frozen_time_before_a_planned_wait_is_over_delays_nothing() {
    let mut s = builder();
    // The first freeze ends before the work was due; only the second one delays the write.
    s.work(1, 20, 1_900).pause(1, "worker-1", 100, 1_800).stall("worker-1", 1_900, 2_400).write(1, 1, 2_401, 2_402);
    assert_eq!(s.causes(), ["stall"]);
}

#[test]
fn a_packet_that_was_held_back_delays_the_request_that_it_carried() {
    let mut s = builder();
    s.write(1, 1, 100, 2_502)
        .inject(1, delay(2_400), "worker-1", 90, 2_600)
        .packets_delayed(1, "worker-1", "resource", 101, 2_501);
    assert_eq!(s.causes(), ["delay"]);
    // The answers of others do not hold up a write on its way.
    let mut s = builder();
    s.write(1, 1, 100, 2_502)
        .inject(1, delay(2_400), "resource", 90, 2_600)
        .packets_delayed(1, "resource", "worker-1", 101, 2_501);
    assert_eq!(s.causes(), ["unexplained"]);
    // But that of its own read held up what came after it.
    let mut s = builder();
    s.read(1, 1, 50, 51).event("worker-1", 2_501, read_ok(1, 1)).write(1, 2, 2_502, 2_503);
    s.inject(1, partition(), "resource", 45, 2_500).packets_delayed(1, "resource", "worker-1", 51, 2_500);
    assert_eq!(s.causes(), ["partition"]);
    // Nor those of another worker.
    let mut s = builder();
    s.write(1, 1, 100, 2_502)
        .inject(1, delay(2_400), "worker-2", 90, 2_600)
        .packets_delayed(1, "worker-2", "resource", 101, 2_501);
    assert_eq!(s.causes(), ["unexplained"]);
}

#[test]
fn a_restart_of_the_resource_delays_a_request_until_it_is_sent_again() {
    let mut s = builder();
    s.write(1, 1, 100, 2_702).event("worker-1", 2_700, Event::Resend { hold: HoldId(1), op: OpId(1) });
    s.kill(1, "resource", 50);
    assert_eq!(s.causes(), ["kill"]);
}

/// A hold that renews each 600 ms, whose second renewal two of three nodes did not do: it takes the hold to be lost and
/// writes at 3,002 all the same.
fn refused_renewal() -> HistoryBuilder {
    let mut s = HistoryBuilder::renewing(600);
    let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::None), (3, NodeAnswer::Refused)]);
    s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).work(1, 20, 2_900).event(
        "worker-1",
        1_220,
        Event::Renew { hold: HoldId(1) },
    );
    let failed = Event::RenewFailed { hold: HoldId(1), outcome: Outcome::Failed, why: FailureReason::Lost, answers };
    s.event("worker-1", 1_420, failed).acquire(2, 2, 2_650, 2_660, 42).release(2, 2_670).write(1, 1, 3_001, 3_002);
    s
}

#[test]
fn a_fault_of_a_node_that_did_not_do_a_renewal_is_the_cause() {
    assert_eq!(refused_renewal().causes(), ["unexplained"]);
    let millis = std::time::Duration::from_millis;
    let pause = Fault::new(fault::Pause {}, millis(300));
    let kill = Fault::new(fault::Kill {}, millis(300));
    let amnesia = Fault::new(fault::Amnesia { counters_of: Vec::new() }, millis(100));
    let clock = Fault::new(fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(5_000) }, millis(300));
    for (fault, node, from, to, is_cause) in [
        (pause.clone(), "redis-2", 1_200, 1_500, true),
        (pause.clone(), "redis-1", 1_200, 1_500, false), // it did the renewal
        (pause, "redis-2", 700, 1_100, false),           // it was over
        (kill, "redis-2", 700, 1_100, true),             // the connection was broken all the same
        (amnesia.clone(), "redis-3", 700, 800, true),
        (amnesia, "redis-1", 700, 800, false),
        (clock, "redis-3", 700, 1_000, true),
        (partition(), "redis-2", 1_200, 1_500, true),
        (partition(), "redis-2", 700, 1_100, true), // its connections may still have been silent
        (partition(), "redis-2", 100, 200, false),
        (partition(), "worker-1", 1_200, 1_500, true),
        (partition(), "worker-2", 1_200, 1_500, false),
        (partition(), "redis-1", 1_200, 1_500, false),
        (delay(300), "redis-2", 700, 1_100, false),
        (delay(300), "redis-2", 1_200, 1_500, true),
    ] {
        let mut s = refused_renewal();
        let kind = fault.kind();
        s.inject(1, fault, node, from, to);
        let expected = if is_cause { kind.name() } else { "unexplained" };
        assert_eq!(s.causes(), [expected], "{kind} of {node} from {from}");
    }
}

/// One node; a renewal at 610 is refused, the client notices the loss and acts all the same, long before the first
/// promise ends.
fn lost_early() -> HistoryBuilder {
    lost_early_of(&[1, 2, 3])
}

/// The same, of a hold that these nodes have granted.
fn lost_early_of(nodes: &[u64]) -> HistoryBuilder {
    let granted: Vec<_> = nodes.iter().map(|node| (*node, NodeAnswer::Granted)).collect();
    let granted = HistoryBuilder::answers(&granted);
    let mut s = HistoryBuilder::renewing(600);
    s.plan.lock_nodes.truncate(1);
    let (hold, outcome, why) = (HoldId(1), Outcome::Failed, FailureReason::Lost);
    let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Refused)]);
    s.acquire_on(1, 1, 100, 100, 110, Some(41), granted);
    s.event("worker-1", 710, Event::Renew { hold }).work(1, 120, 900);
    s.event("worker-1", 715, Event::RenewFailed { hold, outcome, why, answers });
    s.event("worker-1", 715, Event::LossNoticed { hold });
    s.acquire(2, 2, 650, 660, 42).release(2, 1_050).write(1, 1, 1_021, 1_022).release_refused(1, 1_100);
    s
}

fn stale(s: &HistoryBuilder) -> Vec<String> {
    let lock = s.lock();
    let stale = lock.windows.iter().find(|w| w.kind == crate::WindowKind::StaleHolder).unwrap();
    stale.causes.iter().map(ToString::to_string).collect()
}

#[test]
fn what_made_a_node_refuse_a_renewal_made_the_client_lose_the_hold() {
    assert_eq!(stale(&lost_early()), ["unexplained"]);
    let millis = std::time::Duration::from_millis;
    let amnesia = Fault::new(fault::Amnesia { counters_of: Vec::new() }, millis(100));
    let jump = |by| Fault::new(fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(by) }, millis(300));
    for (fault, node, from, to, is_cause) in [
        (amnesia.clone(), "redis-1", 500, 600, true),
        (amnesia.clone(), "redis-1", 800, 900, false), // it had refused before
        (amnesia.clone(), "redis-1", 40, 60, false),   // it was over when the attempt was sent
        (amnesia, "redis-2", 500, 600, false),         // of nobody's
        (jump(1_385), "redis-1", 500, 1_500, true),    // 2,100 - 715
        (jump(1_384), "redis-1", 500, 1_500, false),   // the lease still ran by that clock
        (jump(-5_000), "redis-1", 500, 1_500, false),
        (jump(-5_000), "redis-1", 50, 600, true), // that it was set back was a jump ahead
        (Fault::new(fault::Pause {}, millis(100)), "redis-1", 700, 800, false), // one that refuses runs
        (partition(), "redis-1", 700, 800, false), // and is reached
        (Fault::new(fault::Kill {}, millis(100)), "redis-1", 500, 600, false), // all was on disk
    ] {
        let mut s = lost_early();
        s.plan.models = Some(history::Models { persistence: history::Persistence::Always, ..Default::default() });
        let kind = fault.kind();
        s.inject(1, fault.clone(), node, from, to);
        let expected = if is_cause { kind.name() } else { "unexplained" };
        assert_eq!(stale(&s), [expected], "{fault:?} of {node} from {from}");
    }
}

#[test]
fn a_store_that_revoked_a_lease_by_itself_made_its_client_lose_the_hold() {
    let lost = |revokes_on_resume, to| {
        let mut s = lost_early();
        s.plan.servers = etcd();
        s.plan.models = Some(history::Models { revokes_on_resume, ..history::Models::default() });
        s.inject(1, Fault::new(fault::Pause {}, std::time::Duration::from_millis(100)), "redis-1", 300, to);
        stale(&s)
    };
    assert_eq!(lost(true, 600), ["pause"]);
    assert_eq!(lost(false, 600), ["unexplained"]);
    assert_eq!(lost(true, 900), ["unexplained"], "it had not gone on yet");
}

#[test]
fn a_store_whose_clock_has_jumped_may_leave_renewals_without_an_answer() {
    let stuck = |servers: history::ServerFacts, (clock, by_ms), from, to| {
        let mut s = HistoryBuilder::renewing(600);
        s.plan.servers = servers;
        s.plan.lock_nodes.truncate(1);
        let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::Error);
        s.acquire(1, 1, 0, 10, 41).work(1, 20, 2_080);
        for (sent, at) in [(610, 1_205), (1_210, 1_805)] {
            s.event("worker-1", sent, Event::Renew { hold });
            s.event("worker-1", at, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
        }
        s.acquire(2, 2, 2_030, 2_040, 42).release(2, 2_050).write(1, 1, 2_101, 2_102);
        let change = ClockChange::JumpMs(by_ms);
        let lasting = std::time::Duration::from_millis(to - from);
        s.inject(1, Fault::new(fault::Clock { clock, change }, lasting), "redis-1", from, to);
        stale(&s)
    };
    let jump = (WhichClock::Monotonic, 60_000);
    assert_eq!(stuck(etcd(), jump, 500, 1_900), ["clock"]);
    // The jump of a monotonic clock stays. It reaches the end of the lease if it is 795 or more: 2,000 - 1,205.
    assert_eq!(stuck(etcd(), jump, 100, 500), ["clock"]);
    assert_eq!(stuck(etcd(), (WhichClock::Monotonic, 795), 100, 500), ["clock"]);
    assert_eq!(stuck(etcd(), (WhichClock::Monotonic, 794), 100, 500), ["unexplained"]);
    assert_eq!(stuck(etcd(), (WhichClock::Monotonic, 794), 100, 1_900), ["clock"], "it was on");
    assert_eq!(stuck(etcd(), (WhichClock::Wall, 60_000), 100, 500), ["unexplained"], "it was over");
    assert_eq!(stuck(redlock(), jump, 500, 1_900), ["unexplained"], "a Redis node answers by no clock");
}

#[test]
fn what_broke_a_renewal_is_no_cause_if_the_next_one_would_have_come_in_time() {
    // Cut off for one renewal, and then frozen: the next one would have come at 1,800.
    let mut s = HistoryBuilder::renewing(600);
    let failed = Event::RenewFailed {
        hold: HoldId(1),
        outcome: Outcome::Indeterminate,
        why: FailureReason::NoMajority,
        answers: Vec::new(),
    };
    s.acquire(1, 1, 0, 10, 41).renew(1, 605, 610).event("worker-1", 1_210, Event::Renew { hold: HoldId(1) });
    s.event("worker-1", 1_410, failed)
        .inject(1, partition(), "redis-2", 1_100, 1_500)
        .pause(2, "worker-1", 1_500, 4_000);
    s.acquire(2, 2, 3_500, 3_510, 42).release(2, 3_520).write(1, 1, 4_021, 4_022);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn what_broke_one_renewal_is_no_cause_if_the_next_one_came_about() {
    let mut s = HistoryBuilder::renewing(600);
    let failed = Event::RenewFailed {
        hold: HoldId(1),
        outcome: Outcome::Indeterminate,
        why: FailureReason::NoMajority,
        answers: Vec::new(),
    };
    s.acquire(1, 1, 0, 10, 41).event("worker-1", 610, Event::Renew { hold: HoldId(1) }).event("worker-1", 810, failed);
    s.inject(1, partition(), "redis-2", 600, 900)
        .renew(1, 1_200, 1_205)
        .work(1, 20, 4_000)
        .acquire(2, 2, 3_500, 3_510, 42);
    s.release(2, 3_520).write(1, 1, 4_021, 4_022);
    assert_eq!(s.causes(), ["unexplained"]);
}

#[test]
fn a_check_that_a_slow_clock_let_pass_is_due_to_the_clock() {
    let slow = |clock| {
        Fault::new(
            fault::Clock { clock, change: ClockChange::DriftPpm(-500_000) },
            std::time::Duration::from_millis(3_000),
        )
    };
    let checked = || {
        let mut s = builder();
        s.plan.workload.client = history::ClientKind::Checking;
        s.work(1, 20, 2_300).check(1, 2_330).write(1, 1, 2_331, 2_332);
        s
    };
    assert_eq!(checked().causes(), ["overclaim"]);
    assert_eq!(checked().inject(1, slow(WhichClock::Monotonic), "worker-1", 50, 3_000).causes(), ["clock"]);
    assert_eq!(checked().inject(1, slow(WhichClock::Wall), "worker-1", 50, 3_000).causes(), ["overclaim"]);
    assert_eq!(checked().inject(1, slow(WhichClock::Monotonic), "worker-2", 50, 3_000).causes(), ["overclaim"]);
    // If the check was in time, the pause after the check is the cause.
    let mut s = builder();
    s.work(1, 20, 100).check(1, 130).pause(1, "worker-1", 140, 2_330).write(1, 1, 2_331, 2_332);
    s.inject(2, slow(WhichClock::Monotonic), "worker-1", 50, 3_000);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_lease_that_was_kept_alive_in_the_queue_promises_from_its_last_renewal() {
    let mut s = HistoryBuilder::new();
    // The client waited in the queue for 5 s and was frozen meanwhile. Its work alone then outlasts the lease.
    s.acquire_promised(1, 1, 0, 4_900, 5_000, 41).stall("worker-1", 1_000, 4_000).work(1, 5_010, 1_950);
    s.acquire(2, 2, 6_900, 6_910, 42).release(2, 6_920).write(1, 1, 6_961, 6_962);
    let window = s.window();
    assert_eq!((window.causes, window.staleness_ms), (vec![Cause::Overrun.into()], Some(52.0)));
    // Promise end: 6,878.
    let mut s = HistoryBuilder::new();
    s.acquire_promised(1, 1, 0, 4_900, 5_000, 41).acquire(2, 2, 6_860, 6_877, 42).release(2, 6_920).give_up(1, 6_990);
    let window = s.window();
    assert_eq!((window.kind, window.overlap_ms), (crate::WindowKind::LeaseOverlap, 1.0));
}

#[test]
fn a_renewal_promises_what_it_asked_for() {
    // For 0.4 s, every 0.3 s: two that failed are enough to lose the lease before the cut was over.
    let mut s = HistoryBuilder::renewing(300);
    s.plan.workload.renew_for = Some(std::time::Duration::from_millis(400));
    let failed = || Event::RenewFailed {
        hold: HoldId(1),
        outcome: Outcome::Indeterminate,
        why: FailureReason::NoMajority,
        answers: Vec::new(),
    };
    s.acquire(1, 1, 0, 10, 41);
    let answers = || HistoryBuilder::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::Done), (3, NodeAnswer::Done)]);
    let renewed = || Event::Renewed { hold: HoldId(1), lease_ns: 400_000_000, answers: answers() };
    for at in [310, 610, 910, 1_210, 1_510] {
        s.event("worker-1", at, Event::Renew { hold: HoldId(1) }).event("worker-1", at + 5, renewed());
    }
    for at in [1_810, 2_110] {
        s.event("worker-1", at, Event::Renew { hold: HoldId(1) }).event("worker-1", at + 100, failed());
    }
    s.inject(1, partition(), "worker-1", 1_700, 2_900).packets_delayed(1, "worker-1", "resource", 1_720, 3_020);
    s.acquire(2, 2, 2_200, 2_210, 42)
        .release(2, 2_300)
        .work(1, 20, 1_700)
        .write(1, 1, 1_720, 3_021)
        .release_refused(1, 3_022);
    assert_eq!(s.causes(), ["partition"]);
}
