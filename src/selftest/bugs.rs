//! Every planted bug, what must show it, and the plans on which it wakes.
//!
//! A plan is chosen so that the correct twin does not show the same for a reason of its own: where a lease-overlap is asked for, nothing is
//! forgotten by a node and no clock of one jumps; where a stale holder is, its clients check their deadlines.

use std::time::Duration;

use history::{Direction, Fault, Models, Persistence, Point, Tokens, WhichClock};

use super::{
    hunt::{Hunt, Planted, Shows},
    shape::{Shape, at, at_point, busy, cut, drift, jump, kill, ms, pause, slow},
};

const fn lock(bug: &'static str, on: &'static str, shows: Shows, wakes: fn(u64) -> Shape) -> Hunt {
    Hunt { planted: Planted::Lock { bug, on }, shows, wakes }
}

const fn resource(bug: &'static str, under: &'static str, shows: Shows, wakes: fn(u64) -> Shape) -> Hunt {
    Hunt { planted: Planted::Resource { bug, under }, shows, wakes }
}

/// The table.
#[rustfmt::skip]
pub const HUNTS: &[Hunt] = &[
    // The attempt.
    lock("forgets-nx", "redis", Shows::LeaseOverlap, |seed| busy("redis", seed)),
    lock("forgets-nx", "redlock", Shows::LeaseOverlap, |seed| busy("redlock", seed)),
    lock("no-lease", "redis", Shows::Liveness, |seed| holders_die("redis", seed)),
    lock("no-lease", "redlock", Shows::Liveness, |seed| holders_die("redlock", seed)),
    lock("half-majority", "redlock", Shows::LeaseOverlap, |seed| crowd("redlock", seed)),
    lock("counts-late-answers", "redis", Shows::LeaseOverlap, |seed| late_answers("redis", seed)),
    lock("one-owner", "redlock", Shows::LeaseOverlap, |seed| busy("redlock", seed).workers(2).clients(3).rate(20.0)),
    // Its validity.
    lock("no-validity", "redis", Shows::DeadClaim, |seed| answers_at_the_end("redis", seed)),
    lock("no-validity", "redlock", Shows::DeadClaim, slow_write_back),
    lock("validity-from-answer", "redis", Shows::DeadClaim, |seed| answers_at_the_end("redis", seed)),
    // Its write-back would be refused by nodes on which the lease has run out.
    lock("validity-from-answer", "redlock", Shows::DeadClaim, |seed| frozen_while_asking(seed).tokens(Tokens::None)),
    lock("validity-before-write-back", "redlock", Shows::DeadClaim, slow_write_back),
    lock("wall-clock", "redis", Shows::DeadClaim, |seed| wall_clock_crawls("redis", seed)),
    // Release and undo.
    lock("release-in-two-steps", "redis", Shows::LeaseOverlap, slow_release),
    lock("release-unchecked", "redis", Shows::Release, |seed| overrun("redis", seed)),
    lock("release-unchecked", "redlock", Shows::Release, |seed| overrun("redlock", seed)),
    lock("undo-unchecked", "redlock", Shows::Release, |seed| crowd("redlock", seed)),
    lock("undoes-granted-only", "redlock", Shows::Release, late_grants),
    // Renewal.
    lock("renews-with-one", "redlock", Shows::LeaseOverlap, cut_from_most),
    lock("renews-any-owner", "redis", Shows::Release, node_clock_jumps),
    lock("renews-expired", "redis", Shows::StaleHolder, frozen_before_work),
    lock("renewal-shortens", "redis", Shows::LeaseOverlap, |seed| short_renewals("redis", seed)),
    lock("ignores-failed-renewal", "redis", Shows::LeaseOverlap, |seed| cut_off("redis", seed)),
    lock("ignores-failed-renewal", "redlock", Shows::LeaseOverlap, |seed| cut_off("redlock", seed)),
    // Tokens.
    lock("writes-back-with-one", "redlock", Shows::Tokens, split_quorums),
    lock("write-back-any-owner", "redlock", Shows::Tokens, node_lost_between_rounds),
    lock("write-back-lowers", "redlock", Shows::Tokens, patchy_links),
    Hunt { planted: Planted::MajorityMax, shows: Shows::Tokens, wakes: patchy_links },
    lock("token-before-nx", "redis", Shows::Tokens, tokens_on_the_way),
    lock("local-tokens", "redis", Shows::Tokens, |seed| busy("redis", seed)),
    lock("local-tokens", "redlock", Shows::Tokens, |seed| busy("redlock", seed)),
    lock("wall-tokens", "redis", Shows::Tokens, |seed| busy("redis", seed).faults("clock:any-worker")),
    lock("narrow-tokens", "redis", Shows::Tokens, |seed| busy("redis", seed)),
    lock("drops-counters", "redis", Shows::Tokens, |seed| busy("redis", seed).persistence(Persistence::Always).faults("kill:any-lock-node+300ms")),
    lock("drops-counters", "redlock", Shows::Tokens, |seed| nodes_restart(seed).persistence(Persistence::Always)),
    // The resource.
    resource("compares-wrongly", "redis", Shows::Unjustified, |seed| busy("redis", seed)),
    resource("admits-stale", "redis", Shows::StaleAccepted, stale_writers),
    resource("refuses-at-random", "redis", Shows::Unjustified, |seed| busy("redis", seed).writes(4).rate(30.0)),
    resource("reads-do-not-register", "redis", Shows::StaleAccepted, hasty_writers),
    resource("equal-from-other-admitted", "buggy:local-tokens@redis", Shows::Unjustified, |seed| busy("redis", seed)),
    resource("forgets-tokens", "redis", Shows::Resource, resource_restarts),
    resource("applies-repeats", "redis", Shows::Resource, slow_resource),
    resource("strict-as-less", "redis", Shows::Unjustified, |seed| busy("redis", seed).strict().writes(3)),
    resource("compares-as-text", "redis", Shows::Unjustified, |seed| busy("redis", seed)),
    resource("checks-in-two-steps", "redis", Shows::Unjustified, hasty_writers),
    resource("one-token-for-all-keys", "redis", Shows::Unjustified, |seed| busy("redis", seed).keys(3)),
    resource("answers-before-durable", "redis", Shows::Resource, |seed| resource_restarts(seed).rate(400.0).keys(40).clients(20).work(ms(1), ms(5))),
    resource("forgets-operations", "redis", Shows::Resource, late_resends),
    // Queue locks.
    lock("no-confirm", "etcd", Shows::LeaseOverlap, |seed| busy("etcd", seed).workers(4).rate(20.0).faults("pause:any-worker")),
    lock("lost-wake-up", "etcd", Shows::Liveness, rarely_two),
    lock("wrong-predecessor", "etcd", Shows::LeaseOverlap, |seed| busy("etcd", seed).workers(5).rate(30.0)),
    lock("no-second-look", "etcd", Shows::LeaseOverlap, |seed| busy("etcd", seed).workers(5).rate(30.0).cancel(ms(90))),
    lock("release-by-name", "etcd", Shows::LeaseOverlap, |seed| busy("etcd", seed).workers(4).rate(20.0).faults("pause")),
    lock("keep-alive-zero", "etcd", Shows::LeaseOverlap, leader_jumps),
];

/// Planted bugs that no row hunts, and why.
pub const UNHUNTED: &[(&str, &str)] = &[];

/// Many at once, who come back soon.
fn crowd(backend: &str, seed: u64) -> Shape {
    busy(backend, seed).workers(5).rate(40.0).retry(ms(1), ms(8)).work(ms(5), ms(20))
}

/// Holders are killed, and the others stay for longer than a lease and what a checker allows beside it.
fn holders_die(backend: &str, seed: u64) -> Shape {
    busy(backend, seed).work(ms(50), ms(150)).time(Duration::from_secs(10)).faults("kill:holder@1s")
}

/// One worker's answers come when it waits for them no more.
fn late_answers(backend: &str, seed: u64) -> Shape {
    busy(backend, seed).rate(20.0).step("redis-1", at(200), slow(&["worker-1"], ms(75), ms(7_000)))
}

/// Two nodes hear one worker late: they grant it when the others have refused, and the holder has let go. There is time in between in which
/// nobody has asked for anything for a while, and a lease is not over.
fn late_grants(seed: u64) -> Shape {
    let shape = busy("redlock", seed).lease(ms(5_000)).time(Duration::from_secs(60)).rate(4.0);
    ["redis-4", "redis-5"]
        .into_iter()
        .fold(shape, |s, node| s.step(node, at(50), slow(&["worker-1"], ms(40), ms(59_000))))
}

/// Others acquire and release while an answer of the node is on its way to one worker.
fn tokens_on_the_way(seed: u64) -> Shape {
    let shape = busy("redis", seed).rate(30.0).work(ms(2), ms(8));
    shape.step("redis-1", at(100), slow(&["worker-1"], ms(20), ms(7_500)))
}

/// Answers come when less of the lease is left than clocks may differ by, and just before the node counts as silent.
fn answers_at_the_end(backend: &str, seed: u64) -> Shape {
    busy(backend, seed).lease(ms(50)).step("redis-1", at(200), slow(&["worker-1"], ms(24), ms(7_000)))
}

/// The same, and the worker's wall clock crawls.
fn wall_clock_crawls(backend: &str, seed: u64) -> Shape {
    answers_at_the_end(backend, seed).step("worker-1", at(300), drift(WhichClock::Wall, -400_000, ms(6_500)))
}

/// Frozen for longer than a lease, with requests under way and no answer read.
fn frozen_while_asking(seed: u64) -> Shape {
    let mut shape = busy("redlock", seed).workers(2).rate(4.0);
    for _ in 0..3 {
        shape = shape.step("worker-1", at_point(Point::AfterSend), pause(ms(1_500)));
    }
    shape
}

/// Two rounds together take longer than the lease, each of them does not.
fn slow_write_back(seed: u64) -> Shape {
    let shape = busy("redlock", seed).lease(ms(80));
    (1..=5).fold(shape, |shape, n| shape.step(&format!("redis-{n}"), at(200), slow(&["worker-1"], ms(20), ms(7_000))))
}

/// The releases of one worker are sent when the lease is nearly over, and need a while.
fn slow_release(seed: u64) -> Shape {
    let shape = busy("redis", seed).lease(ms(2_000)).work(ms(1_500), ms(1_900)).rate(4.0).time(Duration::from_secs(20));
    shape.step("redis-1", at(100), slow(&["worker-1"], ms(90), ms(19_000)))
}

/// The work outlasts the lease.
fn overrun(backend: &str, seed: u64) -> Shape {
    busy(backend, seed).lease(ms(300)).work(ms(250), ms(500)).rate(6.0)
}

/// Holders that renew, and do not reach a majority for longer than their lease.
fn cut_from_most(seed: u64) -> Shape {
    let mut shape = busy("redlock", seed).work(ms(300), ms(2_500)).renew(ms(200)).rate(6.0);
    for n in 1..=4 {
        shape = shape.every(&format!("redis-{n}"), ms(2_500), &cut(&["worker-1"], ms(1_800)));
    }
    shape
}

/// The same, from all nodes.
fn cut_off(backend: &str, seed: u64) -> Shape {
    let shape = busy(backend, seed).work(ms(300), ms(2_500)).renew(ms(200)).rate(6.0);
    shape.every("worker-1", ms(2_500), &cut(&["redis-1", "redis-2", "redis-3", "redis-4", "redis-5"], ms(1_800)))
}

/// The node's clock lets a lease run out early, and its holder renews when another one has it.
fn node_clock_jumps(seed: u64) -> Shape {
    let shape = busy("redis", seed).work(ms(300), ms(900)).renew(ms(200)).rate(6.0);
    shape.every("redis-1", ms(1_500), &jump(WhichClock::Wall, 1_500, ms(700)))
}

/// Checking clients, frozen before they work for longer than their lease.
fn frozen_before_work(seed: u64) -> Shape {
    let shape = busy("redis", seed).workers(2).work(ms(600), ms(900)).renew(ms(200)).rate(6.0).checking();
    let mut shape = shape.time(Duration::from_secs(15));
    for _ in 0..4 {
        shape = shape.step("worker-1", at_point(Point::AfterRead), pause(ms(2_600)));
    }
    shape
}

/// Renewals that ask for less than is left.
fn short_renewals(backend: &str, seed: u64) -> Shape {
    busy(backend, seed).work(ms(300), ms(700)).renew(ms(250)).renew_for(ms(100)).rate(6.0)
}

/// Every worker is cut off from some nodes now and then, and reaches some late.
fn patchy_links(seed: u64) -> Shape {
    let shape = busy("redlock", seed).workers(5).rate(30.0).work(ms(5), ms(20)).retry(ms(5), ms(30));
    shape.faults("partition,partition,delay+2s,delay+2s,pause:any-worker+300ms")
}

/// Nodes are killed one after the other, soon back, and have their data.
fn nodes_restart(seed: u64) -> Shape {
    (1..=5).fold(busy("redlock", seed), |shape, n| {
        (1..=4).fold(shape, |shape, round| shape.step(&format!("redis-{n}"), at(1_500 * round + 250 * n), kill(ms(50))))
    })
}

/// The quorums of two workers share one node alone. While worker-2 holds that one, the attempts of worker-1 count on nodes that worker-2 does
/// not reach; and now and then nothing more of worker-1 arrives on the shared node until its lease has run out there.
fn split_quorums(seed: u64) -> Shape {
    let long = ms(59_500);
    let shape = busy("redlock", seed).workers(2).time(Duration::from_secs(60)).rate(2.0).lease(ms(500));
    let mut shape = shape.work(ms(150), ms(300));
    for n in [1, 2] {
        shape = shape.step(&format!("redis-{n}"), at(50), cut(&["worker-2"], long));
    }
    for n in [4, 5] {
        shape = shape.step(&format!("redis-{n}"), at(50), cut(&["worker-1"], long));
    }
    shape = shape.step("worker-1", at(50), slow(&["redis-1", "redis-2", "redis-3"], ms(20), long));
    let (lasting, direction, cut) = (ms(600), Direction::In, history::Cut::Drop);
    let unheard = Fault::Partition { lasting, direction, from: vec!["worker-1".into()], cut };
    shape.every("redis-3", ms(2_700), &unheard)
}

/// The quorums of two workers share one node alone, whose clock jumps by a lease again and again: worker-1 loses it between its two rounds,
/// and worker-2, which owns the two others that worker-1 writes back to, is granted it. Both have the same token where that node was one
/// behind.
fn node_lost_between_rounds(seed: u64) -> Shape {
    let long = ms(19_000);
    let shape = busy("redlock", seed).workers(2).time(Duration::from_secs(20)).rate(40.0).work(ms(2), ms(10));
    // One fault of a node at a time: what the jumping one is slow to is said of the workers.
    let shape = [
        ("redis-4", "worker-1", 30),
        ("redis-5", "worker-1", 30),
        ("redis-1", "worker-2", 45),
        ("redis-2", "worker-2", 45),
        ("worker-1", "redis-3", 20),
        ("worker-2", "redis-3", 40),
    ]
    .into_iter()
    .fold(shape, |shape, (node, from, by)| shape.step(node, at(50), slow(&[from], ms(by), long)));
    shape.every("redis-3", ms(100), &jump(WhichClock::Wall, 1_000, ms(20)))
}

/// Holders that are frozen for longer than their lease, and then write; their successors do not write at once.
fn stale_writers(seed: u64) -> Shape {
    busy("redis", seed).lease(ms(500)).work(ms(50), ms(300)).rate(10.0).faults("pause")
}

/// Holders are frozen until just after the end of their lease, and write when their successors have read and not written.
fn hasty_writers(seed: u64) -> Shape {
    busy("redis", seed).lease(ms(500)).work(ms(150), ms(300)).rate(6.0).faults("pause+600ms")
}

/// Answers of the resource are so long on their way that it may be another process that gets the same request again.
fn late_resends(seed: u64) -> Shape {
    let shape = busy("redis", seed).resend(ms(60)).every("resource", ms(400), &kill(ms(40)));
    shape.step("worker-1", at(100), slow(&["resource"], ms(120), ms(7_500)))
}

/// Two that seldom meet, and give up in the end: who waits in vain must be alone with the key for long enough.
fn rarely_two(seed: u64) -> Shape {
    let shape = busy("etcd", seed).workers(2).rate(0.5).work(ms(5), ms(10)).cancel(ms(5_050));
    shape.time(Duration::from_secs(1_000))
}

/// The resource is killed again and again, and soon back.
fn resource_restarts(seed: u64) -> Shape {
    busy("redis", seed).every("resource", ms(700), &kill(ms(100)))
}

/// Writes are sent again before their answer can have come.
fn slow_resource(seed: u64) -> Shape {
    busy("redis", seed).resend(ms(50)).step("resource", at(300), slow(&[], ms(60), ms(7_000)))
}

/// The leader's monotonic clock jumps, but not its wall clock: leases are renewed no more, and run out only when both say so.
fn leader_jumps(seed: u64) -> Shape {
    let shape = busy("etcd", seed).work(ms(500), ms(4_000)).renew(ms(400)).rate(6.0).models(Models::default());
    shape.time(Duration::from_secs(12)).step("etcd-1", at(2_000), jump(WhichClock::Monotonic, 2_500, ms(500)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_planted_bug_is_hunted_or_it_is_said_why_not() {
        let known: BTreeSet<&str> = (locks::BUGGY.iter().map(|bug| bug.name))
            .chain(locks::etcd::BUGGY.iter().map(|(name, _)| *name))
            .chain(resource::Planted::names())
            .collect();
        let hunted = HUNTS.iter().filter_map(|hunt| match hunt.planted {
            Planted::Lock { bug, .. } | Planted::Resource { bug, .. } => Some(bug),
            Planted::MajorityMax => None,
        });
        let hunted: BTreeSet<&str> = hunted.collect();
        let unhunted: BTreeSet<&str> = UNHUNTED.iter().map(|(name, _)| *name).collect();
        assert!(hunted.is_disjoint(&unhunted));
        assert_eq!(hunted.union(&unhunted).copied().collect::<BTreeSet<_>>(), known);
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
