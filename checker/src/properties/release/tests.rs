use history::{Event, FailureReason, FaultKind, FaultPhase};

use super::*;
use crate::history_builder::{HistoryBuilder, count, redis_replicated, verdict};
use crate::properties::Property;

fn unsafe_releases(builder: &HistoryBuilder) -> u64 {
    let v = builder.verdicts();
    let n = count(&v, "release.unsafe_releases");
    assert_eq!(verdict(&v, "release") == Verdict::Violated, n > 0);
    n
}

fn on(node: u64, answer: NodeAnswer) -> Answers {
    HistoryBuilder::answers(&[(node, answer)])
}

#[test]
fn a_release_that_only_touches_what_is_owned_is_safe() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 50);
    builder.acquire(3, 1, 60, 70, 43).acquire(4, 2, 3_000, 3_010, 44).release_refused(3, 3_020).release(4, 3_030);
    assert_eq!(unsafe_releases(&builder), 0);
}

#[test]
fn a_release_done_after_another_attempt_was_granted_is_unsafe() {
    // Hold 1 ran out, hold 2 was granted, then hold 1's release was done on node 1.
    for (invoked, expected) in [(2_110, 0), (2_111, 1)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42);
        // Hold 2 lets go at once, so that only the order of the grants can tell.
        builder.release(2, 2_110).release_on(1, invoked, 2_200, on(1, NodeAnswer::Done));
        assert_eq!(unsafe_releases(&builder), expected, "invoked at {invoked}");
    }
}

#[test]
fn an_attempt_that_came_out_after_the_other_was_sent_may_own_the_key() {
    for (sent, expected) in [(10, 0), (11, 3)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, sent, 30, 42).release(1, 50).release(2, 100);
        assert_eq!(unsafe_releases(&builder), expected, "sent at {sent}");
    }
}

#[test]
fn an_undo_done_inside_another_attempts_possession_is_unsafe() {
    let refused =
        HistoryBuilder::answers(&[(1, NodeAnswer::Refused), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
    // Possession of hold 1: from 10 to its release at 100.
    for (invoked, answered, expected) in [(10, 50, 0), (11, 50, 1), (11, 99, 1), (11, 100, 0), (110, 120, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 100);
        builder.try_to_acquire(2, 2, 5).acquire_failed(2, 9, FailureReason::Held, refused.clone());
        builder.undo(2, invoked, answered, on(2, NodeAnswer::Done));
        assert_eq!(unsafe_releases(&builder), expected, "undo from {invoked} to {answered}");
    }
}

#[test]
fn an_undo_is_judged_though_it_is_told_before_its_attempt_has_come_out() {
    for (refusing, expected) in [(1, 1), (2, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 100).try_to_acquire(2, 2, 12);
        builder.undo(2, 20, 30, on(1, NodeAnswer::Done));
        builder.acquire_failed(2, 30, FailureReason::Held, on(refusing, NodeAnswer::Refused));
        assert_eq!(unsafe_releases(&builder), expected, "refused by node {refusing}");
    }
}

#[test]
fn possession_ends_with_the_lease() {
    for (answered, expected) in [(1_977, 1), (1_978, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 5);
        builder.acquire_failed(2, 9, FailureReason::Held, on(2, NodeAnswer::Refused));
        builder.undo(2, 20, answered, on(2, NodeAnswer::Done));
        assert_eq!(unsafe_releases(&builder), expected, "answered at {answered}");
    }
}

#[test]
fn an_undo_after_the_failure_ends_what_its_attempt_owns() {
    // Node 1 grants attempt 1 and refuses hold 2. The renewal of hold 2 takes the key on node 1 too.
    for (is_undone, expected) in [(true, 0), (false, 1)] {
        let (granted, refused) = (NodeAnswer::Granted, NodeAnswer::Refused);
        let answers = HistoryBuilder::answers(&[(1, refused), (2, granted), (3, granted)]);
        let mut builder = HistoryBuilder::new();
        builder.try_to_acquire(1, 1, 0).acquire_failed(1, 10, FailureReason::Held, on(1, granted));
        if is_undone {
            builder.undo(1, 20, 30, on(1, NodeAnswer::Done));
        }
        builder.acquire_on(2, 2, 2, 2, 12, Some(42), answers).renew(2, 100, 110).give_up(2, 200);
        assert_eq!(unsafe_releases(&builder), expected, "undone: {is_undone}");
    }
}

#[test]
fn a_dead_client_owns_its_key_until_the_lease_is_over() {
    // Node 1 grants attempt 1, whose worker is killed before the undo. The node then does the undo of attempt 2.
    for (sent, expected) in [(200, 1), (3_000, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.try_to_acquire(1, 1, 0).acquire_failed(1, 10, FailureReason::Held, on(1, NodeAnswer::Granted));
        builder.kill(1, "worker-1", 20).try_to_acquire(2, 2, sent);
        builder.acquire_failed(2, sent + 10, FailureReason::Held, on(1, NodeAnswer::Refused));
        builder.undo(2, sent + 20, sent + 30, on(1, NodeAnswer::Done));
        assert_eq!(unsafe_releases(&builder), expected, "sent at {sent}");
    }
}

#[test]
fn a_request_that_takes_the_key_of_two_owners_counts_once() {
    // Holds 2 and 3 were granted by node 3 after hold 1 had run out, and before hold 1 was released there.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).release(2, 2_120);
    builder.acquire(3, 2, 2_200, 2_210, 43).release_on(1, 2_300, 2_310, on(3, NodeAnswer::Done)).release(3, 2_400);
    assert_eq!(unsafe_releases(&builder), 1);
    assert_eq!(count(&builder.verdicts(), "release.faults"), 2, "each owner is named");
}

#[test]
fn a_renewal_done_on_a_node_that_another_attempt_owns_is_unsafe() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).renew(1, 2_120, 2_130).release(2, 2_200);
    builder.give_up(1, 2_210);
    assert_eq!(unsafe_releases(&builder), 3);
}

#[test]
fn a_node_that_was_killed_may_have_given_the_key_to_anybody() {
    // Each node does the renewal of hold 1, which is answered at 2,130. A later kill excuses nothing.
    for (killed, expected) in [(50, 2), (2_129, 2), (2_130, 3)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).renew(1, 2_120, 2_130).release(2, 2_200);
        builder.fault(1, FaultKind::Kill, "redis-1", killed, FaultPhase::Requested { asked_ns: 1, hold: None });
        builder.give_up(1, 2_210);
        assert_eq!(unsafe_releases(&builder), expected, "killed at {killed}");
    }
}

#[test]
fn a_fault_that_was_never_on_drops_no_finding() {
    // Each node does the renewal of hold 1, which is answered at 2,130. The fault of node 1 is called unproved.
    for (kind, is_replicated, dropped) in [(FaultKind::Kill, false, 1), (FaultKind::Pause, true, 3)] {
        for is_injected in [false, true] {
            let mut builder = HistoryBuilder::new();
            if is_replicated {
                builder.plan.servers = redis_replicated();
            }
            builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).renew(1, 2_120, 2_130).release(2, 2_200);
            builder.give_up(1, 2_210);
            builder.fault(1, kind, "redis-1", 50, FaultPhase::Requested { asked_ns: 1, hold: None });
            if is_injected {
                builder.fault(1, kind, "redis-1", 60, FaultPhase::Injected);
            }
            let why = "the engine refused".to_owned();
            builder.fault(1, kind, "redis-1", 70, FaultPhase::Unproved { why });
            let expected = if is_injected { 3 - dropped } else { 3 };
            assert_eq!(unsafe_releases(&builder), expected, "{kind}, injected: {is_injected}");
        }
    }
}

#[test]
fn a_node_that_had_started_again_before_both_attempts_has_lost_neither() {
    for (healed, expected) in [(1_999, 3), (2_000, 2)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 2_000, 2_010, 41).acquire(2, 2, 4_100, 4_110, 42).renew(1, 4_120, 4_130);
        builder.release(2, 4_200).give_up(1, 4_210);
        builder.fault(1, FaultKind::Kill, "redis-1", 50, FaultPhase::Requested { asked_ns: 1, hold: None });
        builder.fault(1, FaultKind::Kill, "redis-1", healed, FaultPhase::Healed);
        assert_eq!(unsafe_releases(&builder), expected, "healed at {healed}");
    }
}

#[test]
fn a_fault_of_a_replica_may_have_moved_every_key() {
    // Each node does the renewal of hold 1. The fault of node 1 is over before both attempts.
    for (kind, is_replicated, expected) in [
        (FaultKind::Kill, false, 3),
        (FaultKind::Kill, true, 0),
        (FaultKind::Pause, false, 3),
        (FaultKind::Pause, true, 0),
        (FaultKind::Clock, true, 3),
    ] {
        let mut builder = HistoryBuilder::new();
        if is_replicated {
            builder.plan.servers = redis_replicated();
        }
        builder.acquire(1, 1, 2_000, 2_010, 41).acquire(2, 2, 4_100, 4_110, 42).renew(1, 4_120, 4_130);
        builder.release(2, 4_200).give_up(1, 4_210);
        builder.fault(1, kind, "redis-1", 50, FaultPhase::Requested { asked_ns: 1, hold: None });
        builder.fault(1, kind, "redis-1", 100, FaultPhase::Healed);
        assert_eq!(unsafe_releases(&builder), expected, "{kind}, replicated: {is_replicated}");
    }
}

#[test]
fn a_clock_that_was_right_again_before_both_attempts_ends_no_possession() {
    let refused =
        HistoryBuilder::answers(&[(1, NodeAnswer::Refused), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
    for (healed, expected) in [(1_999, 1), (2_000, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 2_000, 2_010, 41).release(1, 2_100);
        builder.try_to_acquire(2, 2, 2_005).acquire_failed(2, 2_009, FailureReason::Held, refused.clone());
        builder.undo(2, 2_011, 2_050, on(1, NodeAnswer::Done));
        builder.fault(1, FaultKind::Clock, "redis-1", 50, FaultPhase::Requested { asked_ns: 1, hold: None });
        builder.fault(1, FaultKind::Clock, "redis-1", healed, FaultPhase::Healed);
        assert_eq!(unsafe_releases(&builder), expected, "healed at {healed}");
    }
}

#[test]
fn a_step_of_the_hosts_clock_drops_no_finding_of_another_time() {
    let refused =
        HistoryBuilder::answers(&[(1, NodeAnswer::Refused), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
    // The first attempt is sent at 2,000, and the undo is answered at 2,050. A clock that is set back ends no lease
    // early.
    for (from, to, wall_s, expected) in [
        (1_000, 2_000, 60, 1),
        (1_000, 2_001, 60, 0),
        (1_000, 2_001, -60, 1),
        (2_049, 3_000, 60, 0),
        (2_050, 3_000, 60, 1),
    ] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 2_000, 2_010, 41).release(1, 2_100);
        builder.try_to_acquire(2, 2, 2_005).acquire_failed(2, 2_009, FailureReason::Held, refused.clone());
        builder.undo(2, 2_011, 2_050, on(1, NodeAnswer::Done));
        for (at, wall_ns) in [(from, 0), (to, wall_s * 1_000_000_000)] {
            builder.event("worker-1", at, Event::Clocks { wall_ns, boot_ns: 0 });
        }
        assert_eq!(unsafe_releases(&builder), expected, "the clock stepped by {wall_s} s between {from} and {to}");
    }
}

#[test]
fn the_faults_name_node_owner_and_events() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42);
    builder.release_on(1, 2_150, 2_160, on(3, NodeAnswer::Done)).release(2, 2_200);
    let v = builder.verdicts();
    let Some(Property::Release(found)) = v.properties.get("release") else { panic!() };
    let fault = &found.faults[0];
    assert_eq!((fault.node.as_str(), fault.attempt, fault.owner), ("redis-3", HoldId(1), HoldId(2)));
    let records = builder.records();
    let is = |i: usize| &records[usize::try_from(fault.witness[i]).unwrap()].event;
    assert!(matches!(is(0), Event::Acquired { attempt: HoldId(2), .. }));
    assert!(matches!(is(1), Event::Release { hold: HoldId(1) }));
    assert!(matches!(is(2), Event::Released { hold: HoldId(1), .. }));
}

#[test]
fn a_second_release_is_judged_like_the_first() {
    for (answer, expected) in [(NodeAnswer::Done, 1), (NodeAnswer::Refused, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42);
        builder.release_on(1, 50, 60, on(1, answer)).release(2, 80).try_to_acquire(3, 1, 100);
        assert_eq!(unsafe_releases(&builder), expected, "{answer:?}");
        assert_eq!(builder.verdicts().reasons, Vec::<String>::new(), "the record is whole");
    }
}

#[test]
fn a_release_is_judged_though_its_client_went_on_without_the_answer() {
    // Hold 1 ran out, and hold 2 was granted. Node 1 does the release of hold 1. Its answer comes before or after the
    // release of the client's next hold. It is forgotten if another answer of the client is late too.
    let cases = [(2_120, 2_402, 1), (2_500, 2_402, 1), (2_700, 2_402, 1), (2_700, 2_650, 0)];
    for (answered, next_answered, expected) in cases {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).release_refused(2, 2_200);
        builder.release_on(1, 2_111, answered, on(1, NodeAnswer::Done));
        builder.acquire(3, 1, 2_300, 2_310, 43).release_on(3, 2_400, next_answered, on(1, NodeAnswer::Done));
        builder.acquire(4, 1, 2_550, 2_560, 44).release(4, 2_600);
        assert_eq!(unsafe_releases(&builder), expected, "answered at {answered}, the next one at {next_answered}");
        assert_eq!(builder.verdicts().reasons, Vec::<String>::new(), "the record is whole");
    }
}

#[test]
fn the_releases_of_a_program_are_not_judged() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).release(1, 20);
    assert_eq!(verdict(&builder.verdicts(), "release"), Verdict::Upheld);
    assert_eq!(verdict(&builder.by_program().verdicts(), "release"), Verdict::NotApplicable);
}

#[test]
fn a_reader_releases_its_own_part_of_a_key_that_another_reader_owns() {
    for (mode, expected) in [(Mode::Read, 0), (Mode::Write, 3)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 20, 30, 42).release(1, 100).release(2, 110);
        builder.in_mode(1, mode).in_mode(2, mode);
        assert_eq!(unsafe_releases(&builder), expected, "{mode}");
    }
}

#[test]
fn a_late_release_of_a_reader_takes_nothing_from_a_writer() {
    // Hold 1 ran out, hold 2 was granted for writing, then hold 1's release was done on each node.
    for (mode, expected) in [(Mode::Read, 0), (Mode::Write, 3)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).release(1, 2_150).release(2, 2_200);
        builder.in_mode(1, mode);
        assert_eq!(unsafe_releases(&builder), expected, "{mode}, released late");
    }
}

#[test]
fn without_the_answers_of_the_servers_releases_are_not_judged() {
    let acquired = |builder: &mut HistoryBuilder, answers| {
        builder.acquire_on(1, 1, 0, 0, 10, Some(41), answers).release_on(1, 20, 25, Vec::new());
    };
    let mut builder = HistoryBuilder::new();
    acquired(&mut builder, Vec::new());
    assert_eq!(verdict(&builder.verdicts(), "release"), Verdict::NotApplicable);
    let mut builder = HistoryBuilder::new();
    acquired(&mut builder, on(1, NodeAnswer::Granted));
    assert_eq!(verdict(&builder.verdicts(), "release"), Verdict::Upheld);
    assert_eq!(verdict(&HistoryBuilder::new().verdicts(), "release"), Verdict::Upheld, "nothing is left unsaid");
}

#[test]
fn a_store_that_answers_as_a_whole_is_not_judged() {
    let answered = |name: &str| {
        let mut builder = HistoryBuilder::new();
        let all = |answer| vec![(NodeName::from(name), answer)];
        builder.acquire_on(1, 1, 0, 0, 10, Some(41), all(NodeAnswer::Granted));
        builder.release_on(1, 20, 25, all(NodeAnswer::Done));
        verdict(&builder.verdicts(), "release")
    };
    assert_eq!([answered("etcd"), answered("redis-1")], [Verdict::NotApplicable, Verdict::Upheld]);
}

#[test]
fn a_kill_may_lose_a_release_that_a_log_put_off() {
    // Hold 1 is released at 20; hold 2 owns the key from 110 on. Node 1 is killed, and then has the key of hold 1
    // again.
    let unsafe_on_node_1 = |persistence, killed: u64, unsynced: Option<u32>| {
        let mut s = HistoryBuilder::new();
        s.plan.models = Some(history::Models { persistence, ..history::Models::default() });
        s.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 100, 110, 42).release(2, 900);
        s.release_on(1, 700, 710, on(1, NodeAnswer::Done));
        let kill = history::Fault::new(history::fault::Kill {}, std::time::Duration::from_secs(1));
        s.inject(1, kill, "redis-1", killed + 5, 600);
        if let Some(fsyncs) = unsynced {
            s.fault(1, FaultKind::Kill, "redis-1", killed + 1, FaultPhase::Unsynced { fsyncs });
        }
        unsafe_releases(&s)
    };
    use Persistence::{Always, Everysec};
    for (persistence, killed, unsynced, expected) in [
        (Everysec, 500, Some(1), 0), // an fsync was pending
        (Everysec, 500, None, 0),    // the server did not say
        (Everysec, 500, Some(0), 1), // all that it had confirmed was in its log
        (Everysec, 110, Some(0), 0), // the grant of hold 2 may have been confirmed after that
        (Everysec, 111, Some(0), 1),
        (Always, 500, None, 1),
    ] {
        let found = unsafe_on_node_1(persistence, killed, unsynced);
        assert_eq!(found, expected, "{persistence:?}, killed at {killed}, {unsynced:?} pending");
    }
}

#[test]
fn a_request_of_an_old_attempt_meets_each_of_the_last_owners() {
    // Hold 1 ran out. Worker 2 has the holds 2 to 9, the last one from 2,910 on. The release of hold 1 leaves before
    // that, at 2,850, and is answered after that.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41);
    for n in 2..=9 {
        let at = 2_000 + 100 * n;
        builder.acquire(n, 2, at, at + 10, 40 + n).release(n, at + 20);
    }
    builder.release_on(1, 2_850, 2_950, on(1, NodeAnswer::Done));
    assert_eq!(unsafe_releases(&builder), 1);
    assert_eq!(count(&builder.verdicts(), "release.faults"), 7, "the owners are the holds 2 to 8");
}

#[test]
fn a_renewal_extends_possession_on_the_nodes_that_did_it() {
    // The promise ends at 1,978, and at 2,978 on the nodes that renewed.
    for (node, answered, expected) in [(1, 2_977, 1), (1, 2_978, 0), (3, 2_500, 0)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41);
        let answers = HistoryBuilder::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::Done), (3, NodeAnswer::None)]);
        let hold = HoldId(1);
        builder.event("worker-1", 1_000, Event::Renew { hold });
        builder.event("worker-1", 1_010, Event::Renewed { hold, lease_ns: 2_000_000_000, answers });
        builder.try_to_acquire(2, 2, 2_100);
        builder.acquire_failed(2, 2_110, FailureReason::Held, on(node, NodeAnswer::Refused));
        builder.undo(2, 2_150, answered, on(node, NodeAnswer::Done));
        assert_eq!(unsafe_releases(&builder), expected, "node {node}, answered at {answered}");
    }
}
