//! Planted bugs, the violation that shows each bug, and the plans that provoke it.
//!
//! On each plan, the bug's correct twin must not show the same violation for another reason. If the violation is a
//! lease-overlap, no node forgets its data and no clock of a node jumps. If it is a stale holder, the clients check
//! their deadlines.

use std::time::Duration;

use history::{Direction, Fault, Models, NodeName, Persistence, Point, Tokens, WhichClock, fault};

use super::{
    build::{at, at_point, busy, cut, drift, jump, kill, ms, pause, slow},
    hunt::{Hunt, Planted, Shows},
};
use crate::scenario::Scenario;

const fn lock(bug: &'static str, on: &'static str, shows: Shows, scenario: fn() -> Scenario) -> Hunt {
    Hunt { planted: Planted::Lock { bug, on }, shows, scenario }
}

const fn resource(bug: &'static str, under: &'static str, shows: Shows, scenario: fn() -> Scenario) -> Hunt {
    Hunt { planted: Planted::Resource { bug, under }, shows, scenario }
}

/// The table.
#[rustfmt::skip]
pub const HUNTS: &[Hunt] = &[
    // The attempt.
    lock("forgets-nx", "redis", Shows::LeaseOverlap, || busy("redis")),
    lock("forgets-nx", "redlock", Shows::LeaseOverlap, || busy("redlock")),
    lock("no-lease", "redis", Shows::Liveness, || holders_die("redis")),
    lock("no-lease", "redlock", Shows::Liveness, || holders_die("redlock")),
    lock("lease-in-seconds", "redis", Shows::CutShort, || short_leases("redis")),
    lock("lease-in-seconds", "redlock", Shows::CutShort, || short_leases("redlock")),
    lock("half-majority", "redlock", Shows::MinorityClaim, || crowd("redlock")),
    lock("counts-late-answers", "redis", Shows::LeaseOverlap, || late_answers("redis")),
    lock("one-owner", "redlock", Shows::LeaseOverlap, || busy("redlock").workers(2).clients(3).rate(20.0)),
    lock("reenters", "memory", Shows::LeaseOverlap, || busy("memory").workers(2).clients(3).rate(20.0)),
    lock("stamps-late", "redis", Shows::SentEarly, || busy("redis")),
    lock("stamps-late", "redlock", Shows::SentEarly, || busy("redlock")),
    // The validity of the attempt.
    lock("no-validity", "redis", Shows::DeadClaim, || answers_at_the_end("redis")),
    lock("no-validity", "redlock", Shows::DeadClaim, slow_write_back),
    lock("validity-from-answer", "redis", Shows::Overclaim, || busy("redis")),
    // With tokens, nodes on which the lease has expired would refuse the write-back.
    lock("validity-from-answer", "redlock", Shows::DeadClaim, || frozen_while_asking().tokens(Tokens::None)),
    lock("validity-before-write-back", "redlock", Shows::DeadClaim, slow_write_back),
    lock("wall-clock", "redis", Shows::DeadClaim, || wall_clock_crawls("redis")),
    // Release and undo.
    lock("release-in-two-steps", "redis", Shows::LeaseOverlap, slow_release),
    lock("release-unchecked", "redis", Shows::Release, || overrun("redis")),
    lock("release-unchecked", "redlock", Shows::Release, || overrun("redlock")),
    lock("undo-unchecked", "redlock", Shows::Release, || crowd("redlock")),
    lock("undoes-granted-only", "redlock", Shows::Release, late_grants),
    // Renewal.
    lock("renews-with-one", "redlock", Shows::LeaseOverlap, cut_from_most),
    lock("renews-any-owner", "redis", Shows::Release, node_clock_jumps),
    lock("renews-expired", "redis", Shows::StaleHolder, frozen_before_work),
    lock("renewal-shortens", "redis", Shows::LeaseOverlap, || short_renewals("redis")),
    lock("ignores-failed-renewal", "redis", Shows::LeaseOverlap, || cut_off("redis")),
    lock("ignores-failed-renewal", "redlock", Shows::LeaseOverlap, || cut_off("redlock")),
    lock("releases-unrenewed", "redis", Shows::StaleHolder, late_renewals),
    // Tokens.
    lock("writes-back-with-one", "redlock", Shows::Tokens, split_quorums),
    lock("write-back-any-owner", "redlock", Shows::Tokens, node_lost_between_rounds),
    lock("write-back-lowers", "redlock", Shows::Tokens, patchy_links),
    Hunt { planted: Planted::MajorityMax, shows: Shows::Tokens, scenario: patchy_links },
    lock("token-before-nx", "redis", Shows::Tokens, tokens_on_the_way),
    lock("local-tokens", "redis", Shows::Tokens, || busy("redis")),
    lock("local-tokens", "redlock", Shows::Tokens, || busy("redlock")),
    lock("wall-tokens", "redis", Shows::Tokens, || busy("redis").faults("clock:any-worker")),
    lock("narrow-tokens", "redis", Shows::Tokens, || busy("redis")),
    lock("drops-counters", "redis", Shows::Tokens, node_restarts),
    lock("drops-counters", "redlock", Shows::Tokens, || nodes_restart().persistence(Persistence::Always)),
    // The resource.
    resource("compares-wrongly", "redis", Shows::Unjustified, || busy("redis")),
    resource("admits-stale", "redis", Shows::StaleAccepted, stale_writers),
    resource("refuses-at-random", "redis", Shows::Unjustified, || busy("redis").writes(4).rate(30.0)),
    resource("reads-do-not-register", "redis", Shows::StaleAccepted, hasty_writers),
    resource("equal-from-other-admitted", "buggy:local-tokens@redis", Shows::Unjustified, || busy("redis")),
    resource("forgets-tokens", "redis", Shows::Resource, resource_restarts),
    resource("applies-repeats", "redis", Shows::Resource, slow_resource),
    resource("strict-as-less", "redis", Shows::Unjustified, || busy("redis").strict().writes(3)),
    resource("compares-as-text", "redis", Shows::Unjustified, || busy("redis")),
    resource("checks-in-two-steps", "redis", Shows::Unjustified, hasty_writers),
    resource("one-token-for-all-keys", "redis", Shows::Unjustified, || busy("redis").keys(3)),
    resource("answers-before-durable", "redis", Shows::Resource, busy_resource_restarts),
    resource("forgets-operations", "redis", Shows::Resource, late_resends),
    resource("registers-one-read-in-two", "redis", Shows::Resource, || busy("redis")),
    resource("answers-refused", "redis", Shows::Resource, || busy("redis")),
    resource("answers-applied", "redis", Shows::Resource, stale_writers),
    // Queue locks.
    lock("no-confirm", "etcd", Shows::LeaseOverlap, || busy("etcd").workers(4).rate(20.0).faults("pause:any-worker")),
    lock("lost-wake-up", "etcd", Shows::Liveness, rarely_two),
    lock("wrong-predecessor", "etcd", Shows::LeaseOverlap, || busy("etcd").workers(5).rate(30.0)),
    lock("no-second-look", "etcd", Shows::LeaseOverlap, || busy("etcd").workers(5).rate(30.0).cancel(ms(90))),
    lock("release-by-name", "etcd", Shows::LeaseOverlap, || busy("etcd").workers(4).rate(20.0).faults("pause")),
    lock("keep-alive-zero", "etcd", Shows::LeaseOverlap, leader_jumps),
    lock("writer-ignores-readers", "etcd", Shows::LeaseOverlap, || busy("etcd").workers(5).rate(30.0).readers(0.7)),
    lock("reader-passes-writer", "etcd", Shows::LeaseOverlap, || busy("etcd").workers(5).rate(30.0).readers(0.7)),
    lock("skips-intention", "etcd", Shows::LeaseOverlap, family),
    lock("weak-intention", "etcd", Shows::LeaseOverlap, || family().readers(0.5)),
    lock("asks-again", "etcd", Shows::Fairness, || busy("etcd").workers(5).rate(30.0)),
    // The wrapper of reentrant holds.
    lock("inner-release-frees", "redis", Shows::Reentry, reenters),
    lock("inner-release-frees", "redlock", Shows::Reentry, || reenters_of("redlock")),
    lock("reentry-renews", "redis", Shows::Overclaim, reenters),
];

/// Clients acquire the key of their own hold again.
fn reenters() -> Scenario {
    reenters_of("redis")
}

fn reenters_of(backend: &str) -> Scenario {
    busy(backend).renew(ms(300)).with(|p| p.workload.reenter = 2)
}

/// Many clients try at once, and retry soon.
fn crowd(backend: &str) -> Scenario {
    busy(backend).workers(5).rate(40.0).retry(ms(1), ms(8)).work(ms(5), ms(20))
}

/// A parent and two children are wanted all the time.
fn family() -> Scenario {
    busy("etcd").workers(5).rate(30.0).keys(3).hierarchy(0.3)
}

/// Holders are killed. The other workers continue for longer than a lease plus the slack of the checker.
fn holders_die(backend: &str) -> Scenario {
    busy(backend).work(ms(50), ms(150)).time(Duration::from_secs(10)).faults("kill:holder@1s")
}

/// Holders are killed, and their lease is not a number of seconds.
fn short_leases(backend: &str) -> Scenario {
    busy(backend).lease(ms(1_900)).work(ms(50), ms(150)).faults("kill:holder@1s")
}

/// One worker's answers arrive after its timeout.
fn late_answers(backend: &str) -> Scenario {
    busy(backend).rate(20.0).step("redis-1", at(200), slow(&["worker-1"], ms(75), ms(7_000)))
}

/// One worker's requests reach two nodes late: the two nodes grant the lock after the other nodes have refused and the
/// holder has released. In between, no client sends a request for a while, and a lease has not expired.
fn late_grants() -> Scenario {
    let scenario = busy("redlock").lease(ms(5_000)).time(Duration::from_secs(60)).rate(4.0);
    ["redis-4", "redis-5"]
        .into_iter()
        .fold(scenario, |s, node| s.step(node, at(50), slow(&["worker-1"], ms(40), ms(59_000))))
}

/// Other workers acquire and release while an answer of the node is on its way to one worker.
fn tokens_on_the_way() -> Scenario {
    let scenario = busy("redis").rate(30.0).work(ms(2), ms(8));
    scenario.step("redis-1", at(100), slow(&["worker-1"], ms(20), ms(7_500)))
}

/// Answers arrive when the rest of the lease is shorter than the clock drift, and just before the request times out.
fn answers_at_the_end(backend: &str) -> Scenario {
    busy(backend).lease(ms(50)).step("redis-1", at(200), slow(&["worker-1"], ms(24), ms(7_000)))
}

/// As [`answers_at_the_end`], and the worker's wall clock runs slow.
fn wall_clock_crawls(backend: &str) -> Scenario {
    answers_at_the_end(backend).step("worker-1", at(300), drift(WhichClock::Wall, -400_000, ms(6_500)))
}

/// A worker is frozen for longer than a lease, after it has sent its requests and before it reads an answer.
fn frozen_while_asking() -> Scenario {
    let mut scenario = busy("redlock").workers(2).rate(4.0);
    for _ in 0..3 {
        scenario = scenario.step("worker-1", at_point(Point::AfterSend), pause(ms(1_500)));
    }
    scenario
}

/// Two rounds together take longer than the lease, although each round alone does not.
fn slow_write_back() -> Scenario {
    let scenario = busy("redlock").lease(ms(80));
    (1..=5).fold(scenario, |scenario, n| {
        scenario.step(&format!("redis-{n}"), at(200), slow(&["worker-1"], ms(20), ms(7_000)))
    })
}

/// One worker sends its releases just before the lease expires, and the releases are slow.
fn slow_release() -> Scenario {
    let scenario = busy("redis").lease(ms(2_000)).work(ms(1_500), ms(1_900)).rate(4.0).time(Duration::from_secs(20));
    scenario.step("redis-1", at(100), slow(&["worker-1"], ms(90), ms(19_000)))
}

/// The work outlasts the lease.
fn overrun(backend: &str) -> Scenario {
    busy(backend).lease(ms(300)).work(ms(250), ms(500)).rate(6.0)
}

/// Holders renew, but cannot reach a majority for longer than their lease.
fn cut_from_most() -> Scenario {
    let mut scenario = busy("redlock").work(ms(300), ms(2_500)).renew(ms(200)).rate(6.0);
    for n in 1..=4 {
        scenario = scenario.every(&format!("redis-{n}"), ms(2_500), &cut(&["worker-1"], ms(1_800)));
    }
    scenario
}

/// As [`cut_from_most`], but the holders can reach no node.
fn cut_off(backend: &str) -> Scenario {
    let scenario = busy(backend).work(ms(300), ms(2_500)).renew(ms(200)).rate(6.0);
    let nodes = scenario.base.lock_nodes.clone();
    let nodes: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    scenario.every("worker-1", ms(2_500), &cut(&nodes, ms(1_800)))
}

/// A renewal is answered late now and then, long before the lease is over.
fn late_renewals() -> Scenario {
    let scenario = busy("redis").work(ms(400), ms(700)).renew(ms(200)).rate(6.0);
    scenario.every("worker-1", ms(900), &cut(&["redis-1"], ms(150)))
}

/// The node's clock ends a lease early, and its holder renews when another client has the lock.
fn node_clock_jumps() -> Scenario {
    let scenario = busy("redis").work(ms(300), ms(900)).renew(ms(200)).rate(6.0);
    scenario.every("redis-1", ms(1_500), &jump(WhichClock::Wall, 1_500, ms(700)))
}

/// Checking clients are frozen for longer than their lease, before they work.
fn frozen_before_work() -> Scenario {
    let scenario = busy("redis").workers(2).work(ms(600), ms(900)).renew(ms(200)).rate(6.0).checking();
    let mut scenario = scenario.time(Duration::from_secs(15));
    for _ in 0..4 {
        scenario = scenario.step("worker-1", at_point(Point::AfterRead), pause(ms(2_600)));
    }
    scenario
}

/// Renewals ask for less time than the lease still has.
fn short_renewals(backend: &str) -> Scenario {
    busy(backend).work(ms(300), ms(700)).renew(ms(250)).renew_for(ms(100)).rate(6.0)
}

/// Every worker is sometimes cut off from some nodes, and its packets to some nodes are delayed.
fn patchy_links() -> Scenario {
    let scenario = busy("redlock").workers(5).rate(30.0).work(ms(5), ms(20)).retry(ms(5), ms(30));
    scenario.faults("partition,partition,delay+2s,delay+2s,pause:any-worker+300ms")
}

/// The only node is killed several times, and restarts with its data.
fn node_restarts() -> Scenario {
    busy("redis").persistence(Persistence::Always).faults("kill:any-lock-node+300ms")
}

/// Nodes are killed one after the other, and restart soon with their data.
fn nodes_restart() -> Scenario {
    (1..=5).fold(busy("redlock"), |scenario, n| {
        (1..=4).fold(scenario, |scenario, round| {
            scenario.step(&format!("redis-{n}"), at(1_500 * round + 250 * n), kill(ms(50)))
        })
    })
}

/// The quorums of two workers share only one node. While worker-2 holds that node, the attempts of worker-1 increase
/// the counters of nodes that worker-2 cannot reach. Sometimes no packet of worker-1 arrives at the shared node until
/// its lease has expired there.
fn split_quorums() -> Scenario {
    let long = ms(59_500);
    let scenario = busy("redlock").workers(2).time(Duration::from_secs(60)).rate(2.0).lease(ms(500));
    let mut scenario = scenario.work(ms(150), ms(300));
    for n in [1, 2] {
        scenario = scenario.step(&format!("redis-{n}"), at(50), cut(&["worker-2"], long));
    }
    for n in [4, 5] {
        scenario = scenario.step(&format!("redis-{n}"), at(50), cut(&["worker-1"], long));
    }
    scenario = scenario.step("worker-1", at(50), slow(&["redis-1", "redis-2", "redis-3"], ms(20), long));
    let (lasting, direction, cut) = (ms(600), Direction::In, history::CutMode::Drop);
    let unheard = Fault::new(fault::Partition { cut }, lasting).on_links(direction, vec!["worker-1".into()]);
    scenario.every("redis-3", ms(2_700), &unheard)
}

/// The quorums of two workers share only one node, whose clock jumps by a lease again and again. Worker-1 loses the key
/// on that node between its two rounds. Worker-2, which owns the two other nodes that worker-1 writes back to, gets it.
/// Both workers have the same token if the counter of that node was one behind.
fn node_lost_between_rounds() -> Scenario {
    let long = ms(19_000);
    let scenario = busy("redlock").workers(2).time(Duration::from_secs(20)).rate(40.0).work(ms(2), ms(10));
    // A node has one fault at a time: the delays of the node whose clock jumps are faults of the workers.
    let scenario = [
        ("redis-4", "worker-1", 30),
        ("redis-5", "worker-1", 30),
        ("redis-1", "worker-2", 45),
        ("redis-2", "worker-2", 45),
        ("worker-1", "redis-3", 20),
        ("worker-2", "redis-3", 40),
    ]
    .into_iter()
    .fold(scenario, |scenario, (node, from, by)| scenario.step(node, at(50), slow(&[from], ms(by), long)));
    scenario.every("redis-3", ms(100), &jump(WhichClock::Wall, 1_000, ms(20)))
}

/// Holders are frozen for longer than their lease, and then write. Their successors do not write at once.
fn stale_writers() -> Scenario {
    busy("redis").lease(ms(500)).work(ms(50), ms(300)).rate(10.0).faults("pause")
}

/// Holders are frozen until just after the end of their lease, and write when their successors have read and not
/// written.
fn hasty_writers() -> Scenario {
    busy("redis").lease(ms(500)).work(ms(150), ms(300)).rate(6.0).faults("pause+600ms")
}

/// Answers of the resource are so late that a restarted resource may get the same request again.
fn late_resends() -> Scenario {
    let scenario = busy("redis").resend(ms(60)).every("resource", ms(400), &kill(ms(40)));
    scenario.step("worker-1", at(100), slow(&["resource"], ms(120), ms(7_500)))
}

/// Two clients seldom meet, and give up in the end. A client that waits in vain must be alone with the key for long
/// enough.
fn rarely_two() -> Scenario {
    let scenario = busy("etcd").workers(2).rate(0.5).work(ms(5), ms(10)).cancel(ms(5_050));
    scenario.time(Duration::from_secs(1_000))
}

/// The resource is killed again and again, and restarts soon.
fn resource_restarts() -> Scenario {
    busy("redis").every("resource", ms(700), &kill(ms(100)))
}

/// Many short writes, while the resource is killed again and again.
fn busy_resource_restarts() -> Scenario {
    resource_restarts().rate(400.0).keys(40).clients(20).work(ms(1), ms(5))
}

/// Writes are sent again before their answer can have arrived.
fn slow_resource() -> Scenario {
    busy("redis").resend(ms(50)).step("resource", at(300), slow(&[], ms(60), ms(7_000)))
}

/// The leader's monotonic clock jumps, but not its wall clock. The leader renews leases no longer, and a lease expires
/// only when both clocks say so.
fn leader_jumps() -> Scenario {
    let scenario = busy("etcd").work(ms(500), ms(4_000)).renew(ms(400)).rate(6.0).models(Models::default());
    scenario.time(Duration::from_secs(12)).step("etcd-1", at(2_000), jump(WhichClock::Monotonic, 2_500, ms(500)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use checker::Verdict;

    use super::*;
    use crate::selftest::trial::{Subject, verdicts};

    #[test]
    fn every_planted_bug_is_hunted() {
        let known: BTreeSet<&str> =
            (locks::planted::PLANTED_BUGS.iter().map(|bug| bug.name)).chain(resource::PlantedBug::names()).collect();
        let hunted = HUNTS.iter().filter_map(|hunt| match hunt.planted {
            Planted::Lock { bug, .. } | Planted::Resource { bug, .. } => Some(bug),
            Planted::MajorityMax => None,
        });
        let hunted: BTreeSet<&str> = hunted.collect();
        assert_eq!(hunted, known);
    }

    /// Returns whether a property of a run is violated in which each client acquires its key again `times` times.
    fn is_violated(backend: &str, under: &str, property: &str, times: u32) -> bool {
        let plan = busy(under).renew(ms(300)).with(|p| p.workload.reenter = times).plan(3).unwrap();
        let judged = verdicts(&plan, Subject { backend, resource_bug: None }).unwrap();
        judged.properties.get(property).unwrap().verdict() == Verdict::Violated
    }

    #[test]
    fn bugs_of_reentry_are_caught_and_correct_locks_are_not() {
        for under in ["redis", "redlock"] {
            for times in [1, 3] {
                for (bug, property) in [("inner-release-frees", "reentry"), ("reentry-renews", "lock")] {
                    let violated = |backend: &str| is_violated(backend, under, property, times);
                    assert!(violated(&format!("buggy:{bug}@{under}")), "{bug}, {under}");
                    assert!(!violated(under), "{under}");
                }
            }
        }
    }

    #[test]
    fn every_hunt_has_plans_with_its_bug_and_without() {
        for hunt in HUNTS {
            for is_buggy in [false, true] {
                let plan = hunt.plan(3, is_buggy).unwrap_or_else(|e| panic!("{}: {e}", hunt.name()));
                assert_eq!(plan.seed, 3, "{}", hunt.name());
            }
        }
    }
}
