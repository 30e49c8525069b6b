//! Causes of windows of holds whose last renewal was delayed.

use history::{
    ClockChange, CutMode, Direction, Event, FailureReason, Fault, FaultKind, FaultPhase, HoldId, LeaseClock,
    NodeAnswer, NodeName, Outcome, Promise, ServerFacts, WhichClock, fault,
};

use super::{HistoryBuilder, delay, etcd, lost_early, lost_early_of, partition, redis_replicated, redlock, stale};

/// A hold that renews each 600 ms; its last renewal that counts is sent at 610. Its client is paused, sends a renewal
/// afterwards, and begins its next attempt before that is answered. Packets that `fault` delays at node 2 until 2,400
/// arrive at `delivered`.
fn paused(servers: ServerFacts, fault: Fault, delivered: u64) -> Vec<String> {
    let mut s = HistoryBuilder::renewing(600);
    s.plan.servers = servers;
    s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).acquire(2, 2, 2_700, 2_710, 42).release(2, 2_720);
    s.work(1, 620, 500).pause(1, "worker-1", 700, 2_490).event("worker-1", 2_500, Event::Renew { hold: HoldId(1) });
    s.work(1, 2_501, 500).write(1, 1, 3_001, 3_002).release_refused(1, 3_003).try_to_acquire(3, 1, 3_100);
    s.inject(2, fault, "redis-2", 1_000, 2_400).packets_delayed(2, "redis-1", "redis-2", 2_300, delivered);
    s.causes()
}

#[test]
fn packets_that_a_delay_still_holds_back_after_its_heal_make_a_renewal_late() {
    assert_eq!(paused(etcd(), delay(500), 2_800), ["pause+delay"]);
    assert_eq!(paused(etcd(), delay(100), 2_450), ["unexplained"], "all had arrived when the renewal was sent");
}

#[test]
fn a_delay_between_the_members_of_a_store_makes_a_renewal_late() {
    let by = std::time::Duration::from_millis(500);
    let peers = vec![NodeName::from("redis-1")];
    let fault = Fault::new(fault::Delay { by: by.into() }, by).on_links(Direction::Both, peers);
    assert_eq!(paused(etcd(), fault.clone(), 2_800), ["pause+delay"]);
    assert_eq!(paused(redlock(), fault, 2_800), ["unexplained"], "independent servers do not wait for each other");
}

#[test]
fn renewals_are_due_at_fixed_times_from_the_attempt_on() {
    // The first is due at 300 and sent when the client is told, the next ones at 600 and 900.
    let mut s = HistoryBuilder::renewing(300);
    s.acquire(1, 1, 0, 500, 41).renew(1, 500, 505).renew(1, 600, 605).renew(1, 900, 905);
    s.acquire(2, 2, 2_890, 2_900, 42).release(2, 2_960);
    s.work(1, 1_100, 100).pause(1, "worker-1", 1_150, 2_950).write(1, 1, 2_951, 2_952);
    assert_eq!(s.causes(), ["pause"], "the client had no time to renew at 1,100");
}

#[test]
fn a_renewal_that_was_delayed_past_the_lease_and_refused_then_is_explained_by_the_delay() {
    let refused = |at: u64| {
        let (hold, outcome) = (HoldId(1), Outcome::Failed);
        let answers = [1, 2, 3].map(|node| (node, NodeAnswer::Refused));
        let answers = HistoryBuilder::answers(&answers);
        let mut s = HistoryBuilder::renewing(600);
        s.plan.servers = etcd();
        s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).acquire(2, 2, 2_700, 2_710, 42).release(2, 2_720);
        s.work(1, 620, 500).pause(1, "worker-1", 700, 2_490).event("worker-1", 2_500, Event::Renew { hold });
        s.event("worker-1", at, Event::RenewFailed { hold, outcome, why: FailureReason::Lost, answers });
        s.work(1, at + 1, 300).write(1, 1, at + 301, at + 302).release_refused(1, 3_203);
        s.inject(2, delay(500), "redis-2", 1_000, 2_550);
        s.causes()
    };
    assert_eq!(refused(2_600), ["pause+delay"]);
    assert_eq!(refused(2_560), ["unexplained"], "the lease was on when the store refused");
}

#[test]
fn a_renewal_that_succeeded_clears_the_failures_before_it() {
    // Without the renewal of 1,900, the promise would have ended at 1,978 because of the partition.
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::NoMajority);
    let mut s = HistoryBuilder::renewing(600);
    s.acquire(1, 1, 0, 10, 41);
    for sent in [600, 1_200, 1_800] {
        s.event("worker-1", sent, Event::Renew { hold });
        s.event("worker-1", sent + 40, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
    }
    s.renew(1, 1_900, 1_905).inject(1, partition(), "worker-1", 500, 1_860).pause(2, "worker-1", 2_000, 5_000);
    s.acquire(2, 2, 4_000, 4_010, 42).release(2, 4_020).write(1, 1, 5_001, 5_002);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_renewal_that_is_answered_too_late_clears_no_failures() {
    // The promise ends at 1,978 because of the partition. The renewal of 1,900 is answered after that.
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::NoMajority);
    let mut s = HistoryBuilder::renewing(600);
    s.plan.lock_nodes.truncate(1);
    s.acquire(1, 1, 0, 10, 41);
    for sent in [600, 1_200, 1_800] {
        s.event("worker-1", sent, Event::Renew { hold });
        s.event("worker-1", sent + 40, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
    }
    s.renew(1, 1_900, 1_985).inject(1, partition(), "redis-1", 500, 1_860);
    s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).write(1, 1, 2_051, 2_052);
    assert_eq!(s.causes(), ["partition"]);
}

#[test]
fn a_renewal_lasts_as_long_as_the_server_said_and_not_as_the_client_asked() {
    let mut s = HistoryBuilder::renewing(600);
    s.plan.workload.renew_for = Some(std::time::Duration::from_secs(10));
    s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).acquire(2, 2, 2_700, 2_710, 42).release(2, 2_720);
    s.work(1, 620, 500).pause(1, "worker-1", 700, 2_800).write(1, 1, 2_801, 2_802);
    assert_eq!(s.causes(), ["pause"]);
}

#[test]
fn a_store_refuses_renewals_by_its_monotonic_clock_alone() {
    let refused = |clock, by| {
        let mut s = lost_early();
        s.plan.servers = etcd();
        let change = ClockChange::JumpMs(by);
        let lasting = std::time::Duration::from_millis(300);
        s.inject(1, Fault::new(fault::Clock { clock, change }, lasting), "redis-1", 500, 1_500);
        stale(&s)
    };
    assert_eq!(etcd().lease_clock, LeaseClock::Both);
    assert_eq!(refused(WhichClock::Monotonic, 1_385), ["clock"]); // 2,100 - 715
    assert_eq!(refused(WhichClock::Monotonic, 1_384), ["unexplained"]);
    assert_eq!(refused(WhichClock::Wall, 5_000), ["unexplained"]);
}

#[test]
fn a_node_that_looks_when_a_timer_fires_refuses_a_renewal_no_earlier() {
    // The timer fires at 2,000, which is the end of the first lease. The renewal at 995 leaves it as it is.
    for (refused, expected) in [(1_999, "unexplained"), (2_000, "clock")] {
        let mut s = HistoryBuilder::renewing(990);
        s.plan.lock_nodes.truncate(1);
        s.plan.servers.first_alarm = std::time::Duration::from_secs(60);
        let (hold, outcome, why) = (HoldId(1), Outcome::Failed, FailureReason::Lost);
        let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Refused)]);
        s.acquire(1, 1, 0, 10, 41).work(1, 20, 2_360).renew(1, 995, 1_000);
        s.event("worker-1", 1_985, Event::Renew { hold });
        s.event("worker-1", refused, Event::RenewFailed { hold, outcome, why, answers });
        s.event("worker-1", refused, Event::LossNoticed { hold });
        s.acquire(2, 2, 1_950, 1_960, 42).release(2, 2_420).write(1, 1, 2_381, 2_382).release_refused(1, 2_460);
        let jump = fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(5_000) };
        s.inject(1, Fault::new(jump, std::time::Duration::from_secs(1)), "redis-1", 1_200, 2_600);
        assert_eq!(stale(&s), [expected], "refused at {refused}");
    }
}

#[test]
fn a_clock_that_jumps_forward_makes_a_renewal_early_and_its_loss_too() {
    let lost = |clock, why| {
        let (hold, outcome) = (HoldId(1), Outcome::Failed);
        let answers = HistoryBuilder::answers(&[(1, NodeAnswer::None)]);
        let mut s = HistoryBuilder::renewing(600);
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 100, 110, 41).work(1, 120, 400);
        if why == FailureReason::Lost {
            s.event("worker-1", 125, Event::Renew { hold });
        }
        s.event("worker-1", 130, Event::RenewFailed { hold, outcome, why, answers });
        s.event("worker-1", 130, Event::LossNoticed { hold });
        s.acquire(2, 2, 200, 210, 42).release(2, 600).write(1, 1, 521, 522).release_refused(1, 700);
        let change = ClockChange::JumpMs(3_000);
        s.inject(
            1,
            Fault::new(fault::Clock { clock, change }, std::time::Duration::from_secs(1)),
            "worker-1",
            111,
            900,
        );
        stale(&s)
    };
    assert_eq!(lost(WhichClock::Monotonic, FailureReason::Validity), ["clock"]);
    assert_eq!(lost(WhichClock::Monotonic, FailureReason::Lost), ["unexplained"], "a node said so");
    assert_eq!(lost(WhichClock::Wall, FailureReason::Validity), ["unexplained"], "leases count by the other clock");
}

#[test]
fn a_replica_refuses_no_renewal() {
    let refused = |node: &str, from, to| {
        let mut s = lost_early_of(&[1]);
        s.plan.lock_nodes = ["redis-1", "redis-2", "redis-3"].map(NodeName::from).to_vec();
        s.plan.servers = redis_replicated();
        let pause = Fault::new(fault::Pause {}, std::time::Duration::from_millis(100));
        s.inject(1, pause, node, from, to);
        stale(&s)
    };
    assert_eq!(refused("redis-1", 500, 600), ["pause"], "another node may have been promoted");
    assert_eq!(refused("redis-2", 500, 600), ["unexplained"]);
    assert_eq!(refused("redis-2", 705, 800), ["unexplained"], "the primary answered by itself");
}

#[test]
fn nodes_of_which_only_several_together_break_a_renewal_are_joined() {
    let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
    let millis = std::time::Duration::from_millis;
    let amnesia = || Fault::new(fault::Amnesia { counters_of: Vec::new() }, millis(100));
    let jump = Fault::new(fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(5_000) }, millis(300));
    let builder = || {
        let mut s = HistoryBuilder::renewing(600);
        let (hold, outcome, why) = (HoldId(1), Outcome::Failed, FailureReason::Lost);
        s.acquire(1, 1, 0, 10, 41).event("worker-1", 610, Event::Renew { hold });
        s.event("worker-1", 615, Event::RenewFailed { hold, outcome, why, answers: answers.clone() });
        s.event("worker-1", 615, Event::LossNoticed { hold });
        s.acquire(2, 2, 620, 630, 42).release(2, 1_050).write(1, 1, 1_021, 1_022).release_refused(1, 1_100);
        s
    };
    let mut s = builder();
    s.inject(1, amnesia(), "redis-2", 300, 400).inject(2, jump, "redis-3", 350, 900);
    assert_eq!(stale(&s), ["amnesia+clock"]);
    // Of node 3 nobody knows: it may have refused in any case, and then one more was enough.
    let mut s = builder();
    s.inject(1, amnesia(), "redis-2", 300, 400);
    assert_eq!(stale(&s), ["amnesia"]);
}

#[test]
fn a_renewal_that_failed_at_once_is_explained_by_a_partition_around_it() {
    let second = std::time::Duration::from_secs(1);
    let refuse = || Fault::new(fault::Partition { cut: CutMode::Reject }, second).on_links(Direction::Both, Vec::new());
    let loss = || Fault::new(fault::Loss { percent: 90 }, second).on_links(Direction::Both, Vec::new());
    let pause = || Fault::new(fault::Pause {}, second);
    // The renewals from 1,210 to 2,410 fail at the stamp of their request. A fault is on from 5 before to 5 after.
    for (fault, node, from, to, is_cause) in [
        (refuse(), "redis-1", 1_100, 3_000, true),
        (partition(), "redis-1", 1_100, 3_000, true),
        (refuse(), "worker-1", 1_100, 3_000, true),
        (refuse(), "worker-2", 1_100, 3_000, false),
        (refuse(), "redis-1", 1_214, 3_000, true),
        (refuse(), "redis-1", 1_215, 3_000, false), // the first renewal and the fault are concurrent
        (refuse(), "redis-1", 1_100, 2_406, true),
        (refuse(), "redis-1", 1_100, 2_405, false), // and the last one
        (delay(300), "redis-1", 1_100, 3_000, false),
        (loss(), "redis-1", 1_100, 3_000, false),
        (pause(), "redis-1", 1_100, 3_000, false),
    ] {
        let mut s = HistoryBuilder::renewing(600);
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).work(1, 620, 2_600);
        let (hold, outcome, why) = (HoldId(1), Outcome::Failed, FailureReason::Error);
        for at in [1_210, 1_810, 2_410] {
            let answers = HistoryBuilder::answers(&[(1, NodeAnswer::None)]);
            s.event("worker-1", at, Event::Renew { hold });
            s.event("worker-1", at, Event::RenewFailed { hold, outcome, why, answers });
        }
        s.acquire(2, 2, 2_700, 2_710, 42).release(2, 2_720).write(1, 1, 3_221, 3_222).release_refused(1, 3_223);
        let kind = fault.kind();
        s.inject(1, fault, node, from, to);
        let expected = if is_cause { kind.name() } else { "unexplained" };
        assert_eq!(s.causes(), [expected], "{kind} of {node} from {from} to {to}");
    }
}

#[test]
fn a_session_that_a_heal_has_reset_is_lost_at_the_next_renewal() {
    // The cut is on from 395 to 505, so connections may be silent until 1,015. The renewal of 1,100 finds the session
    // lost, and the next holder has the key since 1,120.
    for (promise, reset, expected) in [
        (Promise::Session, Some(1_000), "partition"),
        (Promise::Session, None, "unexplained"),
        (Promise::Lease, Some(1_000), "unexplained"),
    ] {
        let (hold, outcome, why) = (HoldId(1), Outcome::Failed, FailureReason::Lost);
        let answers = HistoryBuilder::answers(&[(1, NodeAnswer::None)]);
        let mut s = HistoryBuilder::renewing(1_100);
        s.plan.lock_nodes.truncate(1);
        s.plan.servers.promise = promise;
        s.acquire(1, 1, 0, 10, 41).work(1, 20, 1_400).event("worker-1", 1_100, Event::Renew { hold });
        s.event("worker-1", 1_101, Event::RenewFailed { hold, outcome, why, answers });
        s.event("worker-1", 1_101, Event::LossNoticed { hold });
        s.acquire(2, 2, 1_110, 1_120, 42).release(2, 1_500).write(1, 1, 1_421, 1_422).release_refused(1, 1_510);
        s.inject(1, partition(), "redis-1", 400, 500);
        if let Some(at) = reset {
            s.fault(1, FaultKind::Partition, "redis-1", at, FaultPhase::ConnectionsReset { count: 1 });
        }
        assert_eq!(stale(&s), [expected], "{promise:?}, reset at {reset:?}");
    }
}

#[test]
fn replicas_that_elect_a_leader_after_a_pause_leave_renewals_without_an_answer() {
    // The renewals from 1,600 on get no answer. The pause is healed 5 after `to`, and the replicas may elect a leader
    // for 2 s then: until 2,801, or 2,800. Sentinels replace no replica, and redis-1 is their primary.
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::Error);
    for (servers, granted_by, node, to, expected) in [
        (etcd(), 3, "redis-2", 796, "pause"),
        (etcd(), 3, "redis-2", 795, "unexplained"),
        (redlock(), 3, "redis-2", 796, "unexplained"),
        (redis_replicated(), 1, "redis-1", 796, "pause"),
        (redis_replicated(), 1, "redis-2", 796, "unexplained"),
    ] {
        let mut s = HistoryBuilder::renewing(600);
        s.plan.servers = servers;
        let granted: Vec<_> = (1..=granted_by).map(|node| (node, NodeAnswer::Granted)).collect();
        s.acquire_on(1, 1, 1_000, 1_000, 1_010, Some(41), HistoryBuilder::answers(&granted));
        for sent in [1_600, 2_200, 2_800] {
            s.event("worker-1", sent, Event::Renew { hold });
            s.event("worker-1", sent + 100, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
        }
        s.inject(1, Fault::new(fault::Pause {}, std::time::Duration::from_millis(100)), node, 700, to);
        s.acquire(2, 2, 3_000, 3_010, 42).release(2, 3_020).write(1, 1, 3_051, 3_052);
        assert_eq!(stale(&s), [expected], "{node} is paused until {to}");
    }
}

#[test]
fn members_that_did_not_hear_their_leader_elect_another_one_after_the_fault() {
    // The renewals from 11,600 on get no answer. The fault is on from 5 before `from` until 5 after `to`. After a cut,
    // connections may be silent for as long again and 400 more. The members may elect a leader for 2 s then: until
    // 12,801, or earlier.
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::Error);
    let of_worker = || partition().on_links(Direction::Both, vec![NodeName::from("worker-1")]);
    for (servers, fault, from, to, expected) in [
        (etcd(), delay(800), 9_700, 10_796, "delay"),
        (etcd(), delay(800), 9_700, 10_795, "unexplained"),
        (etcd(), delay(799), 9_700, 10_796, "unexplained"),
        (etcd(), delay(800), 10_006, 10_796, "delay"),
        (etcd(), delay(800), 10_007, 10_796, "unexplained"), // it is on for 799
        (etcd(), partition(), 9_700, 10_043, "partition"),
        (etcd(), partition(), 9_700, 10_042, "unexplained"),
        (etcd(), partition(), 10_006, 10_196, "partition"),
        (etcd(), partition(), 10_008, 10_197, "unexplained"), // connections are silent for 798
        (etcd(), of_worker(), 9_700, 10_043, "unexplained"),
        (redlock(), delay(800), 9_700, 10_796, "unexplained"),
    ] {
        let (mut s, kind) = (HistoryBuilder::renewing(600), fault.kind());
        s.plan.servers = servers;
        s.acquire(1, 1, 11_000, 11_010, 41);
        for sent in [11_600, 12_200, 12_800] {
            s.event("worker-1", sent, Event::Renew { hold });
            s.event("worker-1", sent + 100, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
        }
        s.inject(1, fault, "redis-2", from, to);
        s.acquire(2, 2, 13_000, 13_010, 42).release(2, 13_020).write(1, 1, 13_051, 13_052);
        assert_eq!(stale(&s), [expected], "{kind} from {from} to {to}");
    }
}

#[test]
fn every_renewal_that_failed_inside_the_promise_counts() {
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::NoMajority);
    let mut s = HistoryBuilder::renewing(100);
    s.plan.lock_nodes.truncate(1);
    s.acquire(1, 1, 0, 10, 41);
    for sent in (100..2_000).step_by(100) {
        s.event("worker-1", sent, Event::Renew { hold });
        s.event("worker-1", sent + 40, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
    }
    s.inject(1, partition(), "redis-1", 50, 1_990);
    s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).write(1, 1, 2_051, 2_052);
    assert_eq!(s.causes(), ["partition"]);
}

#[test]
fn a_cut_that_follows_another_one_silences_connections_for_as_long_as_both() {
    // The renewals of 800 and 1,600 get no answer. The first cut begins at 100, and the second one with its heal at
    // 505. The second one is healed at `to` + 5, and its connections are silent for as long again as both, and 400.
    let of = |worker: &str| partition().on_links(Direction::Both, vec![NodeName::from(worker)]);
    for (first, second, node, to, expected) in [
        (partition(), partition(), "redis-1", 646, "partition"),
        (partition(), partition(), "redis-1", 645, "unexplained"), // silent until 1,600
        (partition(), partition(), "worker-2", 646, "unexplained"),
        (of("worker-1"), of("worker-1"), "redis-1", 646, "partition"),
        (of("worker-2"), of("worker-1"), "redis-1", 646, "unexplained"),
    ] {
        let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::NoMajority);
        let mut s = HistoryBuilder::renewing(800);
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 0, 10, 41);
        for sent in [800, 1_600] {
            s.event("worker-1", sent, Event::Renew { hold });
            s.event("worker-1", sent + 40, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
        }
        s.inject(1, first, node, 105, 500).inject(2, second, "redis-1", 510, to);
        s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).write(1, 1, 2_051, 2_052);
        assert_eq!(s.causes(), [expected], "the first cut is of {node}, and the second one is healed after {to}");
    }
}

#[test]
fn a_kill_before_a_renewal_that_the_node_did_explains_no_later_failure() {
    // The renewal at 610 is done, and those from 1,210 on get no answer. The kill is healed 5 after `to`.
    let killed = |servers, to: u64| {
        let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::NoMajority);
        let mut s = HistoryBuilder::renewing(600);
        s.plan.servers = servers;
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615);
        for sent in [1_210, 1_810, 2_410] {
            s.event("worker-1", sent, Event::Renew { hold });
            s.event("worker-1", sent + 40, Event::RenewFailed { hold, outcome, why, answers: Vec::new() });
        }
        s.acquire(2, 2, 2_600, 2_610, 42).release(2, 2_620).write(1, 1, 2_651, 2_652);
        s.inject(1, Fault::new(fault::Kill {}, std::time::Duration::from_millis(500)), "redis-1", 100, to);
        s.causes()
    };
    assert_eq!(killed(redlock(), 606), ["kill"]);
    assert_eq!(killed(redlock(), 605), ["unexplained"], "the connection of the renewal is one after the restart");
    assert_eq!(killed(etcd(), 605), ["kill"], "the next renewal may go to another member");
}

#[test]
fn a_clock_that_was_moved_before_the_last_renewal_stops_none_after_it() {
    // The last renewal is sent at 1,210, and the client sends no other. The clock fault is healed 5 after `to`.
    for (change, to, expected) in [
        (ClockChange::JumpMs(100), 1_206, "clock"),
        (ClockChange::JumpMs(100), 1_205, "unexplained"),
        (ClockChange::DriftPpm(-100_000), 1_206, "clock"),
        (ClockChange::DriftPpm(-100_000), 1_205, "unexplained"),
    ] {
        let mut s = HistoryBuilder::renewing(600);
        s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).renew(1, 1_210, 1_215);
        s.acquire(2, 2, 3_200, 3_210, 42).release(2, 3_220).write(1, 1, 3_251, 3_252);
        let moved = fault::Clock { clock: WhichClock::Monotonic, change };
        s.inject(1, Fault::new(moved, std::time::Duration::from_secs(1)), "worker-1", 100, to);
        assert_eq!(s.causes(), [expected], "{change:?} until {to}");
    }
}
