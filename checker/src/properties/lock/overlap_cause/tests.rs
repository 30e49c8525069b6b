mod renewals;

use std::time::Duration;

use history::{
    ClockChange, CutMode, Direction, Event, Fault, FaultKind, FaultPhase, HoldId, LeaseClock, Models, NodeAnswer,
    Persistence, Promise, WhichClock, fault,
};

use crate::history_builder::{HistoryBuilder, etcd};

const SECOND: Duration = Duration::from_secs(1);

fn wall(by_ms: i64) -> Fault {
    Fault::new(fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(by_ms) }, SECOND)
}

fn clock(clock: WhichClock, change: ClockChange) -> Fault {
    Fault::new(fault::Clock { clock, change }, SECOND)
}

/// Cuts a node off from these nodes, or from all.
fn cut(from: &[&str]) -> Fault {
    let from = from.iter().map(|node| (*node).into()).collect();
    Fault::new(fault::Partition { cut: CutMode::Drop }, SECOND).on_links(Direction::Both, from)
}

fn amnesia() -> Fault {
    Fault::new(fault::Amnesia { counters_of: Vec::new() }, SECOND)
}

/// Hold 1 is granted between 0 and 10 and lasts until 2,000; hold 2 is acquired at 1,010. Both by nodes 1, 2 and 3
/// unless there are fewer.
fn overlap(nodes: usize) -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.plan.lock_nodes.truncate(nodes);
    s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_010, 42).release(2, 1_100).release_refused(1, 1_200);
    s
}

fn cause(s: &mut HistoryBuilder) -> String {
    s.causes().concat()
}

#[test]
fn a_node_that_forgot_explains_an_overlap_if_every_common_node_is_explained() {
    assert_eq!(cause(overlap(1).inject(1, amnesia(), "redis-1", 500, 600)), "amnesia");
    assert_eq!(cause(overlap(3).inject(1, amnesia(), "redis-1", 500, 600)), "unexplained");
    let mut s = overlap(3);
    s.inject(1, amnesia(), "redis-1", 500, 600).inject(2, wall(20_000), "redis-2", 300, 1_300);
    s.inject(3, amnesia(), "redis-3", 500, 600);
    assert_eq!(cause(&mut s), "amnesia+clock");
}

#[test]
fn an_unplanned_restart_explains_an_overlap_like_a_planned_one() {
    let restarted = |from: u64, over: u64| {
        let mut s = overlap(1);
        s.plan.servers.kill_forgets = true;
        s.unplanned(7, FaultKind::Kill, "redis-1", (from, over - 20), over);
        (cause(&mut s), s.window())
    };
    let (cause, window) = restarted(400, 600);
    assert_eq!(cause, "kill");
    let told = |who: &str| window.story.iter().any(|line| line.who == who && line.what.contains("redis-1"));
    assert!(told("unplanned") && !told("nemesis"), "{window:#?}");
    assert_eq!(restarted(1_020, 1_100).0, "unexplained", "it came after the overlap had begun");
}

#[test]
fn a_fault_before_the_attempt_or_after_the_other_success_explains_nothing() {
    // The fault takes effect at most 10 ms after its request.
    for (requested, is_cause) in [(90, false), (91, true), (101, true), (1_109, true), (1_110, false)] {
        let mut s = HistoryBuilder::new();
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
        s.inject(1, amnesia(), "redis-1", requested + 5, 1_400);
        assert_eq!(cause(&mut s) == "amnesia", is_cause, "requested at {requested}");
    }
}

#[test]
fn a_fault_that_was_not_proved_explains_nothing() {
    let mut s = overlap(1);
    s.fault(1, FaultKind::Amnesia, "redis-1", 500, FaultPhase::Requested { asked_ns: 1, hold: None });
    s.fault(1, FaultKind::Amnesia, "redis-1", 600, FaultPhase::Healed);
    assert_eq!(cause(&mut s), "unexplained");
}

#[test]
fn what_a_restart_forgets_depends_on_what_was_on_disk() {
    use Persistence::*;
    let (kill, power) = (Fault::new(fault::Kill {}, SECOND), Fault::new(fault::Powerloss {}, SECOND));
    for (fault, persistence, requested, expected) in [
        (kill.clone(), No, 500, "kill"),
        (kill.clone(), Everysec, 500, "unexplained"),
        (kill, Always, 500, "unexplained"),
        (power.clone(), No, 500, "powerloss"),
        (power.clone(), Everysec, 500, "powerloss"),
        (power.clone(), Everysec, 1_008, "powerloss"),
        (power, Always, 500, "unexplained"),
        (amnesia(), Always, 500, "amnesia"),
    ] {
        let mut s = overlap(1);
        s.plan.models = Some(Models { persistence, ..Models::default() });
        let kind = fault.kind();
        s.inject(1, fault, "redis-1", requested, 1_050);
        assert_eq!(cause(&mut s), expected, "{kind} with {persistence:?} at {requested}");
    }
    // A key survives a kill if the server confirmed the key at least two snapshot intervals before.
    for (requested, expected) in [(500, "kill"), (10_009, "kill"), (10_010, "unexplained")] {
        let mut s = HistoryBuilder::new();
        s.plan.models = Some(Models { persistence: Snapshot, ..Models::default() });
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 0, 10, 41)
            .with_lease(20_000)
            .acquire(2, 2, 10_100, 10_110, 42)
            .release(2, 10_200)
            .release_refused(1, 10_300);
        s.inject(1, Fault::new(fault::Kill {}, SECOND), "redis-1", requested + 5, 10_100);
        assert_eq!(cause(&mut s), expected, "killed at {requested}");
    }
    // A key survives a power loss if the server confirmed the key at least one second before.
    for (requested, expected) in [(1_009, "powerloss"), (1_010, "unexplained")] {
        let mut s = HistoryBuilder::new();
        s.plan.models = Some(Models { persistence: Everysec, ..Models::default() });
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
        s.inject(1, Fault::new(fault::Powerloss {}, SECOND), "redis-1", requested + 5, 1_100);
        assert_eq!(cause(&mut s), expected, "the power went at {requested}");
    }
}

#[test]
fn a_kill_loses_what_a_log_put_off_and_only_if_the_server_had_said_so() {
    // The node granted the key between 0 and 10.
    for (unsynced, asked_at, expected) in
        [(None, 500, "unexplained"), (Some(0), 500, "unexplained"), (Some(1), 500, "kill"), (Some(0), 5, "kill")]
    {
        let mut s = overlap(1);
        s.plan.models = Some(Models { persistence: Persistence::Everysec, ..Models::default() });
        s.inject(1, Fault::new(fault::Kill {}, SECOND), "redis-1", asked_at + 5, 1_050);
        if let Some(fsyncs) = unsynced {
            s.fault(1, FaultKind::Kill, "redis-1", asked_at + 1, FaultPhase::Unsynced { fsyncs });
        }
        assert_eq!(cause(&mut s), expected, "{unsynced:?}, asked at {asked_at}");
    }
}

#[test]
fn a_jump_explains_an_overlap_if_it_is_long_enough() {
    // At 1,010 by true time 990 of the lease were left.
    for (by, expected) in [(990, "clock"), (989, "unexplained"), (-5_000, "unexplained"), (20_000, "clock")] {
        assert_eq!(cause(overlap(1).inject(1, wall(by), "redis-1", 500, 1_500)), expected, "{by} ms");
    }
    let drift = |ppm| clock(WhichClock::Wall, ClockChange::DriftPpm(ppm));
    let mono = clock(WhichClock::Monotonic, ClockChange::JumpMs(20_000));
    assert_eq!(cause(overlap(1).inject(1, mono, "redis-1", 500, 1_500)), "unexplained");
    // The clock drifted at most from 0 (the request) to 1,010.
    for (ppm, expected) in [(500_000, "unexplained"), (-500_000, "unexplained"), (999_000, "clock")] {
        assert_eq!(cause(overlap(1).inject(1, drift(ppm), "redis-1", 5, 1_500)), expected, "{ppm} ppm");
    }
    // The heal at 700 takes the gain back, so the clock must have reached the end of the lease before.
    for (ppm, expected) in [(1_500_000, "unexplained"), (2_000_000, "clock")] {
        assert_eq!(cause(overlap(1).inject(1, drift(ppm), "redis-1", 5, 700)), expected, "{ppm} ppm, healed");
    }
}

#[test]
fn a_jump_counts_while_it_is_on_and_only_from_the_grant_on() {
    // Set back before the end: by then true time and jump had not reached the lease.
    assert_eq!(cause(overlap(1).inject(1, wall(1_200), "redis-1", 300, 700)), "unexplained");
    assert_eq!(cause(overlap(1).inject(1, wall(1_300), "redis-1", 300, 700)), "clock");
    // The clock was ahead when the node granted the lease, and was set back later: the lease lasts longer.
    let mut s = HistoryBuilder::new();
    s.plan.lock_nodes.truncate(1);
    s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
    s.inject(1, wall(20_000), "redis-1", 50, 700);
    assert_eq!(cause(&mut s), "unexplained");
    // The clock was behind, so the heal set it ahead.
    let mut s = HistoryBuilder::new();
    s.plan.lock_nodes.truncate(1);
    s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
    s.inject(1, wall(-20_000), "redis-1", 50, 700);
    assert_eq!(cause(&mut s), "clock");
}

#[test]
fn a_strobe_explains_an_overlap_by_its_amplitude_wherever_it_may_have_been() {
    let strobe = |by_ms| clock(WhichClock::Wall, ClockChange::Strobe { by_ms, every_ms: 100 });
    // At 1,010 by true time 990 of the lease were left; granted while it was back, and looked at while it was there.
    for (by, expected) in [(990, "clock"), (989, "unexplained"), (-20_000, "unexplained")] {
        assert_eq!(
            cause(overlap(1).inject(1, strobe(by), "redis-1", 500, 1_500)),
            expected,
            "{by} ms, from after the grant"
        );
    }
    let granted_while_on = |by| {
        let mut s = HistoryBuilder::new();
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
        cause(s.inject(1, strobe(by), "redis-1", 50, 700))
    };
    // At the grant the clock may have been set or set back. By 700, true time plus amplitude must have reached 2,100.
    for (by, expected) in [(1_396, "clock"), (1_300, "unexplained"), (-989, "unexplained"), (-990, "clock")] {
        assert_eq!(granted_while_on(by), expected, "{by} ms");
    }
    assert_eq!(cause(overlap(1).inject(1, strobe(20_000), "redis-1", 1_020, 1_500)), "unexplained", "it came too late");
}

#[test]
fn the_first_fault_after_which_the_key_was_gone_is_the_cause() {
    let mut s = overlap(1);
    s.inject(1, wall(500), "redis-1", 200, 1_500).inject(2, amnesia(), "redis-1", 300, 400);
    assert_eq!(cause(&mut s), "amnesia", "the jump was too small to matter");
    let mut s = overlap(1);
    s.inject(1, wall(20_000), "redis-1", 200, 1_500).inject(2, amnesia(), "redis-1", 300, 400);
    assert_eq!(cause(&mut s), "clock");
    let mut s = overlap(1);
    s.inject(1, wall(600), "redis-1", 200, 1_500).inject(2, wall(600), "redis-1", 300, 1_500);
    assert_eq!(cause(&mut s), "clock", "both together");
}

#[test]
fn only_nodes_count_that_had_granted_both_when_the_overlap_began() {
    let on = |nodes: &[u64], said| HistoryBuilder::answers(&nodes.iter().map(|n| (*n, said)).collect::<Vec<_>>());
    let lease_ns = 2_000_000_000;
    // Node 2 gets the second hold's delayed request after the first hold's lease, and renews that hold then.
    let mut s = HistoryBuilder::new();
    let granted = on(&[1], NodeAnswer::Granted);
    s.acquire(1, 1, 0, 10, 41).acquire_on(2, 2, 1_000, 1_000, 1_010, Some(42), granted);
    s.event("worker-2", 2_500, Event::Renew { hold: HoldId(2) });
    let answers = on(&[1, 2], NodeAnswer::Done);
    s.event("worker-2", 2_510, Event::Renewed { hold: HoldId(2), lease_ns, answers });
    s.release(2, 2_600).give_up(1, 2_700).inject(1, amnesia(), "redis-1", 500, 600);
    assert_eq!(cause(&mut s), "amnesia", "node 2 granted the second hold when the first one's lease was over");
    // Node 2 renews the first hold before or after the second one was acquired.
    for (renewed, expected) in [(999, "unexplained"), (1_011, "amnesia")] {
        let mut s = HistoryBuilder::new();
        let (granted, answers) = (on(&[1], NodeAnswer::Granted), on(&[1, 2], NodeAnswer::Done));
        s.acquire_on(1, 1, 0, 0, 10, Some(41), granted).acquire(2, 2, 1_000, 1_010, 42);
        s.event("worker-1", 900, Event::Renew { hold: HoldId(1) });
        s.event("worker-1", renewed, Event::Renewed { hold: HoldId(1), lease_ns, answers });
        s.release(2, 1_100).release_refused(1, 1_200).inject(1, amnesia(), "redis-1", 500, 600);
        assert_eq!(cause(&mut s), expected, "renewed at {renewed}");
    }
}

#[test]
fn if_the_order_of_the_grants_is_unknown_either_may_have_been_the_first() {
    // Hold 2 is acquired later. If its grant is from before the node forgot, the node gave hold 1 the key afterwards.
    for (granted_after, expected) in [(0, "amnesia"), (899, "amnesia"), (901, "unexplained")] {
        let mut s = HistoryBuilder::new();
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 100, 900, 41).acquire_knowing(2, 2, 0, granted_after, 1_010, 42);
        s.release(1, 1_100).release_refused(2, 1_200).inject(1, amnesia(), "redis-1", 20, 50);
        assert_eq!(cause(&mut s), expected, "granted after {granted_after}");
    }
}

#[test]
fn replicas_of_one_store_explain_it_alone() {
    let servers = etcd;
    let on = |lease_clock: WhichClock, models: Models, fault: Fault, from, to| {
        let mut s = overlap(3);
        (s.plan.servers, s.plan.models) =
            (history::ServerFacts { lease_clock: lease_clock.into(), ..servers() }, Some(models));
        s.inject(1, fault, "redis-2", from, to);
        cause(&mut s)
    };
    let jump = |which| clock(which, ClockChange::JumpMs(5_000));
    let models = Models::default();
    let etcd = |models: Models, fault: Fault, from, to| on(WhichClock::Both, models, fault, from, to);
    let mono = |fault: Fault, from, to| on(WhichClock::Monotonic, models, fault, from, to);
    assert_eq!(etcd(models, jump(WhichClock::Both), 500, 2_000), "clock");
    assert_eq!(etcd(models, clock(WhichClock::Both, ClockChange::JumpMs(500)), 500, 2_000), "unexplained");
    assert_eq!(etcd(models, jump(WhichClock::Wall), 500, 2_000), "unexplained");
    assert_eq!(etcd(models, jump(WhichClock::Monotonic), 500, 2_000), "unexplained");
    assert_eq!(mono(jump(WhichClock::Monotonic), 500, 2_000), "clock");
    assert_eq!(mono(jump(WhichClock::Wall), 500, 2_000), "unexplained");
    assert_eq!(etcd(models, amnesia(), 500, 600), "amnesia");
    assert_eq!(etcd(models, Fault::new(fault::Kill {}, SECOND), 500, 600), "unexplained");
    let revokes = Models { revokes_on_resume: true, ..models };
    let pause = Fault::new(fault::Pause {}, SECOND);
    assert_eq!(etcd(revokes, pause.clone(), 500, 900), "pause");
    // The agent resumes the node 5 ms earlier; the second hold was acquired at 1,010.
    assert_eq!(etcd(revokes, pause.clone(), 500, 1_014), "pause", "it may have gone on just before");
    assert_eq!(etcd(revokes, pause.clone(), 500, 1_015), "unexplained", "it was told to go on no earlier");
    assert_eq!(etcd(revokes, pause.clone(), 500, 1_100), "unexplained", "it had not gone on yet");
    assert_eq!(etcd(models, pause, 500, 900), "unexplained");
}

/// Hold 1 lasts until 2,000 by true time; a client of worker 2 takes its key over at 1,010.
fn taken_over(clock: WhichClock, by_ms: i64, node: &str, from: u64) -> String {
    let mut s = overlap(1);
    s.plan.servers.lease_clock = LeaseClock::Waiter;
    let change = ClockChange::JumpMs(by_ms);
    s.inject(1, Fault::new(fault::Clock { clock, change }, SECOND), node, from, 1_500);
    cause(&mut s)
}

#[test]
fn only_the_clock_of_the_client_that_waited_ends_a_lease_that_waiting_clients_measure() {
    assert_eq!(taken_over(WhichClock::Monotonic, 1_000, "worker-2", 500), "clock");
    assert_eq!(taken_over(WhichClock::Both, 1_000, "worker-2", 500), "clock");
    assert_eq!(taken_over(WhichClock::Wall, 60_000, "worker-2", 500), "unexplained", "it is not read");
    assert_eq!(taken_over(WhichClock::Both, 60_000, "redis-1", 500), "unexplained", "a server's clock plays no part");
    assert_eq!(taken_over(WhichClock::Both, 60_000, "worker-3", 500), "unexplained", "another client's clock");
    assert_eq!(taken_over(WhichClock::Monotonic, 900, "worker-2", 500), "unexplained", "the lease was not over");
    assert_eq!(taken_over(WhichClock::Monotonic, 60_000, "worker-2", 1_100), "unexplained", "it came too late");
}

#[test]
fn a_grant_without_a_key_is_explained_by_what_took_that_key() {
    // Hold 2 waits when the clock jumps; hold 1 comes after that, and has a key that stands.
    let granted = |is_without_key, from| {
        let mut s = HistoryBuilder::new();
        (s.plan.servers, s.plan.models) = (etcd(), Some(Models::default()));
        s.acquire(1, 1, 900, 910, 41);
        if is_without_key {
            s.event("worker-2", 1_009, Event::WithoutKey { attempt: HoldId(2) });
        }
        s.acquire_knowing(2, 2, 100, 920, 1_010, 42).release(2, 1_100).release(1, 1_200);
        s.inject(1, clock(WhichClock::Both, ClockChange::JumpMs(5_000)), "redis-2", from, 2_000);
        cause(&mut s)
    };
    assert_eq!(granted(true, 500), "clock");
    assert_eq!(granted(false, 500), "unexplained");
    assert_eq!(granted(true, 50), "unexplained", "its lease was given by the clock that had jumped");
    assert_eq!(granted(true, 1_020), "unexplained", "it had been granted the lock before that");
}

#[test]
fn an_event_of_any_node_explains_an_overlap_of_a_program() {
    assert_eq!(cause(overlap(3).by_program()), "unexplained");
    assert_eq!(cause(overlap(3).by_program().inject(1, amnesia(), "redis-2", 500, 600)), "amnesia");
    let before = overlap(3).by_program().inject(1, amnesia(), "redis-2", 1_200, 1_300).causes();
    assert_eq!(before.concat(), "unexplained", "the fault came after the overlap had begun");
    // The wall clock ends the lease of the last renewal, which every node may have done.
    for (by, expected) in [(900, "unexplained"), (1_500, "clock")] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).renew(1, 1_000, 1_010).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_100);
        assert_eq!(cause(s.by_program().inject(1, wall(by), "redis-2", 1_500, 1_600)), expected, "by {by} ms");
    }
}

#[test]
fn a_clock_ends_a_session_no_earlier_than_its_first_alarm() {
    let (long, jump) = (|| Duration::from_secs(60), |which| clock(which, ClockChange::JumpMs(5_000)));
    // The hold is promised for 2,000 from its attempt at 0, or from its renewal at 1,500. The key is gone
    // by the stamp `gone`.
    let session = |alarm: Duration, renewals: &[u64], gone: u64, fault: Fault| {
        let mut s = HistoryBuilder::renewing(500);
        s.plan.lock_nodes.truncate(1);
        (s.plan.servers.promise, s.plan.servers.first_alarm) = (Promise::Session, alarm);
        s.acquire(1, 1, 0, 10, 41);
        for sent in renewals {
            s.renew(1, *sent, sent + 10);
        }
        s.acquire(2, 2, gone - 5, gone, 42).release(2, gone + 100).release_refused(1, gone + 200);
        let from = renewals.last().map_or(700, |sent| sent + 100);
        cause(s.inject(1, fault, "redis-1", from, gone + 1_000))
    };
    // Without an alarm, the servers look at any time.
    assert_eq!(session(Duration::ZERO, &[], 1_010, jump(WhichClock::Wall)), "clock");
    // The alarm of the attempt comes at the end of the promise, unless a renewal extends the promise.
    assert_eq!(session(long(), &[], 1_010, jump(WhichClock::Wall)), "unexplained");
    assert_eq!(session(long(), &[], 1_010, jump(WhichClock::Both)), "unexplained");
    assert_eq!(session(long(), &[1_500], 1_999, jump(WhichClock::Wall)), "unexplained");
    assert_eq!(session(long(), &[1_500], 2_000, jump(WhichClock::Wall)), "clock");
    assert_eq!(session(long(), &[1_500], 2_000, jump(WhichClock::Monotonic)), "unexplained");
    for (by_ms, expected) in [(700, "unexplained"), (900, "clock")] {
        assert_eq!(session(long(), &[1_500], 2_700, wall(by_ms)), expected, "by {by_ms} ms");
    }
    // Another timer of the server fires first.
    assert_eq!(session(Duration::from_millis(900), &[], 899, jump(WhichClock::Wall)), "unexplained");
    assert_eq!(session(Duration::from_millis(900), &[], 900, jump(WhichClock::Wall)), "clock");
}

/// Hold 1 of node `by.0` from 30,010 on, and hold 2 of node `by.1` from 31,010 on.
fn of_primaries(by: (u64, u64)) -> HistoryBuilder {
    let on = |node| HistoryBuilder::answers(&[(node, NodeAnswer::Granted)]);
    let mut s = HistoryBuilder::new();
    s.plan.servers = crate::history_builder::redis_replicated();
    s.acquire_on(1, 1, 30_000, 30_000, 30_010, Some(41), on(by.0));
    s.acquire_on(2, 2, 31_000, 31_000, 31_010, Some(41), on(by.1)).release(2, 31_100).release_refused(1, 31_200);
    s
}

#[test]
fn a_fault_of_the_primary_explains_an_overlap_after_a_failover() {
    let all = [
        Fault::new(fault::Kill {}, SECOND),
        Fault::new(fault::Pause {}, SECOND),
        Fault::new(fault::Powerloss {}, SECOND),
        amnesia(),
        cut(&[]),
        cut(&["redis-2", "redis-3"]),
    ];
    for fault in all {
        let name = fault.kind().name();
        let mut s = of_primaries((1, 2));
        assert_eq!(cause(s.inject(1, fault, "redis-1", 30_500, 30_900)), name);
        let lock = s.lock();
        assert!(lock.minority_claims.is_empty(), "a primary grants by itself");
        let story = &lock.windows[0].story;
        assert!(story.iter().any(|line| line.who == "redis-2" && line.what.contains("granted")), "{story:?}");
    }
}

#[test]
fn an_overlap_of_two_primaries_without_a_fault_of_either_is_unexplained() {
    let pause = || Fault::new(fault::Pause {}, SECOND);
    assert_eq!(cause(&mut of_primaries((1, 2))), "unexplained");
    assert_eq!(cause(of_primaries((1, 2)).inject(1, pause(), "redis-2", 30_500, 30_900)), "unexplained", "a replica");
    assert_eq!(cause(of_primaries((1, 2)).inject(1, pause(), "redis-3", 30_500, 30_900)), "unexplained", "a replica");
    assert_eq!(cause(of_primaries((1, 2)).inject(1, cut(&["worker-1"]), "redis-1", 29_000, 32_000)), "unexplained");
    assert_eq!(cause(of_primaries((1, 2)).inject(1, pause(), "redis-1", 31_020, 31_500)), "unexplained", "too late");
    let clock = || wall(500);
    assert_eq!(cause(of_primaries((1, 2)).inject(1, clock(), "redis-1", 30_500, 30_900)), "unexplained", "too short");
    // The same node has granted both: no other was promoted in between.
    assert_eq!(cause(of_primaries((1, 1)).inject(1, pause(), "redis-1", 30_500, 30_900)), "unexplained");
    assert_eq!(cause(of_primaries((1, 1)).inject(1, amnesia(), "redis-1", 30_500, 30_900)), "amnesia");
}

#[test]
fn a_failover_there_and_back_explains_an_overlap_of_one_node() {
    let both = |first: &str, then: &str| {
        let (mut s, pause) = (of_primaries((1, 1)), || Fault::new(fault::Pause {}, SECOND));
        cause(s.inject(1, pause(), first, 30_100, 30_200).inject(2, pause(), then, 30_500, 30_900))
    };
    assert_eq!(both("redis-1", "redis-2"), "pause");
    assert_eq!(both("redis-2", "redis-1"), "unexplained", "the second fault promoted another node");
}

#[test]
fn a_primary_that_was_replaced_explains_an_overlap_until_it_is_demoted() {
    let pause = || Fault::new(fault::Pause {}, SECOND);
    // The agent resumes the node 5 ms later; the first hold was sent at 30,000.
    for (healed, expected) in [(11_996, "pause"), (11_995, "unexplained")] {
        assert_eq!(cause(of_primaries((1, 2)).inject(1, pause(), "redis-1", 9_000, healed)), expected, "{healed}");
        // The new primary was the first to grant, and the old one came back.
        assert_eq!(cause(of_primaries((2, 1)).inject(1, pause(), "redis-1", 9_000, healed)), expected, "{healed}");
    }
    let late = cause(of_primaries((2, 1)).inject(1, pause(), "redis-1", 30_500, 30_900));
    assert_eq!(late, "unexplained", "the second hold's node was a replica when the fault came");
}

#[test]
fn clocks_of_both_primaries_explain_an_overlap_and_a_process_fault_comes_before_a_cut() {
    for node in ["redis-1", "redis-2"] {
        assert_eq!(cause(of_primaries((1, 2)).inject(1, wall(5_000), node, 30_500, 30_900)), "clock", "{node}");
    }
    let mut s = of_primaries((1, 2));
    s.inject(1, cut(&["redis-2"]), "redis-1", 29_000, 32_000);
    s.inject(2, Fault::new(fault::Kill {}, SECOND), "redis-1", 30_500, 32_000);
    s.plan.models = Some(Models { persistence: Persistence::Always, ..Models::default() });
    assert_eq!(cause(&mut s), "kill");
}

#[test]
fn any_primary_may_have_granted_the_holds_of_a_program() {
    let pause = || Fault::new(fault::Pause {}, SECOND);
    assert_eq!(cause(of_primaries((1, 2)).by_program().inject(1, pause(), "redis-3", 30_500, 30_900)), "pause");
    assert_eq!(cause(of_primaries((1, 2)).by_program()), "unexplained");
}
