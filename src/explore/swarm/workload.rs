//! Draws what the clients do, and how fast.

use std::time::Duration;

use history::{Activity, Arm, ClientKind, Comparison, Plan, Promise, Range, Tokens};
use locks::{Capability, Client};
use rand::Rng;

use super::number::{count, length, scale};

/// Bounds of drawn leases. Servers may grant longer ones only.
const LEASE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(6));
/// The shortest run.
const TIME_MIN: Duration = Duration::from_secs(2);
/// Most runs are small, because a simulation takes as long as much happens. One of so many is large.
const LARGE_ONE_IN: u32 = 16;
/// The longest delay before another attempt.
const RETRY_MAX: Duration = Duration::from_millis(200);
/// Bounds of the load: the part of the time for which holds would last if no client had to wait.
const LOAD: (f64, f64) = (0.1, 4.0);
/// Clients meet in a calm workload too.
const CALM_LOAD_MIN: f64 = 0.5;
/// Bounds of the critical sections that are offered in a second.
const RATE: (f64, f64) = (0.5, 400.0);
/// The shortest interval of a client that a plan may have.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Bounds of a run. The smallest of its three bounds decides how long the run is.
struct Size {
    /// The longest fault phase.
    time: Duration,
    /// Critical sections that are offered.
    sections: (f64, f64),
    /// Attempts of all clients, if every client tried without end.
    attempts: (f64, f64),
}

const SMALL: Size = Size { time: Duration::from_secs(30), sections: (15.0, 120.0), attempts: (100.0, 1_000.0) };
const LARGE: Size = Size { time: Duration::from_secs(300), sections: (100.0, 1_000.0), attempts: (1_000.0, 4_000.0) };

/// Draws the lease, the length of the run and the workload of `plan`. In a calm workload every hold is released long
/// before its lease ends.
pub fn draw(mut plan: Plan, is_calm: bool, rng: &mut impl Rng) -> Plan {
    let least = LEASE.0.max(plan.servers.least_lease);
    // Much is decided where a number is as small as it can be.
    let asked = if rng.random_ratio(1, 4) { least } else { length(rng, least, LEASE.1.max(least)) };
    plan.lease = plan.servers.granted(asked);
    let lease = plan.lease;
    let ms = Duration::from_millis;
    let w = &mut plan.workload;
    w.workers = rng.random_range(2..=5);
    w.clients_per_worker = if rng.random_ratio(1, 4) { count(rng, 2, 20) } else { 1 };
    w.keys = if rng.random_ratio(1, 3) { count(rng, 2, 40) } else { 1 };
    if rng.random_ratio(1, 2) {
        w.renew = Some(length(rng, INTERVAL_MIN.max(lease / 8), (lease / 2).max(INTERVAL_MIN)));
        w.renew_for = rng.random_ratio(1, 3).then(|| length(rng, (lease / 4).max(INTERVAL_MIN), lease * 2));
    }
    if rng.random_ratio(1, 2) {
        w.writes = count(rng, 2, 4);
    }
    let calm = lease / 8 / w.writes;
    // Without renewals a hold that outlasts its lease shows nothing new.
    let (from, to) = match w.renew {
        _ if is_calm => (ms(1), calm),
        Some(_) => (lease / 8, lease * 4 / w.writes),
        None => (ms(1), lease.mul_f64(1.2)),
    };
    w.work = range(rng, from, to);
    w.work.to = w.work.to.min(to.max(from));
    w.retry_delay = range(rng, ms(1), RETRY_MAX);
    if rng.random_ratio(1, 3) {
        w.client = ClientKind::Checking;
    }
    w.cancel = rng.random_ratio(1, 3).then(|| length(rng, INTERVAL_MIN, lease * 3));
    w.resend = rng.random_ratio(1, 3).then(|| length(rng, INTERVAL_MIN, ms(800)));
    w.deadline = rng.random_ratio(1, 6).then(|| length(rng, (lease / 4).max(INTERVAL_MIN), lease));
    let least_load = if is_calm { CALM_LOAD_MIN } else { LOAD.0 };
    set_rate_and_time(&mut plan, least_load, rng);
    if plan.tokens != Tokens::None && plan.workload.writes == 1 && rng.random_ratio(1, 3) {
        plan.fence = Comparison::Strict;
    }
    let (tokens, fence) = (plan.tokens, plan.fence);
    let is_possible = |arm: &Arm| match arm {
        Arm::Reads => tokens != Tokens::None && fence != Comparison::Strict,
        // The simulation has no resource over the store of the lock.
        Arm::Guard => false,
        arm => tokens != Tokens::None || !arm.fences(),
    };
    plan.arms = Arm::ALL.into_iter().filter(is_possible).collect();
    // A run is judged for violations. A few holds are enough for one.
    let refused = u32::from(plan.servers.shows_waiting);
    plan.activity = Activity { holds: 2, clients: 2, refused };
    let shares = Client::named(&plan.backend).is_some_and(|client| client.has(Capability::ReadWrite));
    if shares && rng.random_ratio(1, 3) {
        plan.workload.readers = rng.random_range(1..=9) as f64 / 10.0;
    }
    plan
}

/// Draws what a critical section takes beyond one key once: its key again, several keys, a session for all, a parent of
/// keys. A feature that this lock lacks, or that the rest of the plan excludes, is left out.
pub fn draw_capabilities(mut plan: Plan, is_calm: bool, rng: &mut impl Rng) -> Plan {
    let client = Client::named(&plan.backend);
    let has = |capability| client.is_some_and(|client| client.has(capability));
    let lease = plan.lease;
    // All numbers are drawn in any case, so that one feature does not change the others.
    let (reenters, times) = (rng.random_ratio(1, 5), rng.random_range(1..=3));
    if reenters && has(Capability::Reentrant) {
        offer(&mut plan, |plan| plan.workload.reenter = times);
    }
    let (shares, parent) = (rng.random_ratio(1, 5), rng.random_range(1..=9));
    if shares && has(Capability::Hierarchical) {
        offer(&mut plan, |plan| {
            plan.workload.hierarchy = f64::from(parent) / 10.0;
            plan.arms.retain(|arm| !arm.fences());
        });
    }
    // Clients that hold one lock and wait for another keep the first one for as long as they wait.
    let (takes_more, locks) = (rng.random_ratio(1, 3) && !is_calm, rng.random_range(2..=3));
    let (opposite, patience) = (rng.random_ratio(1, 2), length(rng, INTERVAL_MIN, lease * 2));
    let has_patience = rng.random_ratio(1, 2);
    if takes_more {
        offer(&mut plan, |plan| {
            let w = &mut plan.workload;
            w.locks_per_section = locks.min(w.keys);
            w.opposite = opposite;
            w.patience = has_patience.then_some(patience);
        });
    }
    if rng.random_ratio(1, 4) && has(Capability::Sessions) {
        offer(&mut plan, |plan| plan.workload.session = true);
    }
    give_patience(&mut plan, patience);
    plan
}

/// Gives clients patience if they would otherwise wait for each other until the end of the run. A correct lock does
/// not end such a deadlock, unless it detects it.
pub(super) fn give_patience(plan: &mut Plan, patience: Duration) {
    let w = &plan.workload;
    let is_kept = w.renew.is_some() || w.session || plan.servers.promise == Promise::Session;
    if w.opposite && w.patience.is_none() && is_kept {
        offer(plan, |plan| plan.workload.patience = Some(patience));
    }
}

/// Changes the plan if the result is possible.
fn offer(plan: &mut Plan, change: impl FnOnce(&mut Plan)) {
    let mut changed = plan.clone();
    change(&mut changed);
    if changed.validate().is_ok() {
        *plan = changed;
    }
}

/// Draws how much the keys are wanted, and how long the run is.
fn set_rate_and_time(plan: &mut Plan, least_load: f64, rng: &mut impl Rng) {
    let w = &mut plan.workload;
    let hold_s = (w.work.from + w.work.to).as_secs_f64() / 2.0 * f64::from(w.writes);
    let load = scale(rng, least_load, LOAD.1);
    w.rate_per_s = (load * f64::from(w.keys) / hold_s).clamp(RATE.0, RATE.1);
    w.rate_per_s = (w.rate_per_s * 10.0).round() / 10.0;
    let size = if rng.random_ratio(1, LARGE_ONE_IN) { LARGE } else { SMALL };
    let sections_s = scale(rng, size.sections.0, size.sections.1) / w.rate_per_s;
    let clients = f64::from(w.workers * w.clients_per_worker);
    let attempts = scale(rng, size.attempts.0, size.attempts.1);
    let retry_s = (w.retry_delay.from + w.retry_delay.to).as_secs_f64() / 2.0;
    let time_s = sections_s.min(attempts * retry_s / clients);
    let time = Duration::from_millis((time_s * 1e3).round() as u64).clamp(TIME_MIN.max(plan.lease * 3), size.time);
    // The bounds count in the shortest run too.
    let rate = attempts.max(size.sections.1) / time.as_secs_f64();
    w.rate_per_s = w.rate_per_s.min((rate * 10.0).round() / 10.0).max(RATE.0);
    let slower = (time.as_secs_f64() / (attempts * retry_s / clients)).max(1.0);
    let slowed = |delay: Duration| Duration::from_millis((delay.as_secs_f64() * slower * 1e3) as u64).max(delay);
    w.retry_delay = Range { from: slowed(w.retry_delay.from), to: slowed(w.retry_delay.to) };
    plan.time = time;
}

/// Draws a range of durations: a fixed one, or one whose ends differ by up to a factor of eight.
fn range(rng: &mut impl Rng, from: Duration, to: Duration) -> Range {
    let shortest = length(rng, from, to);
    let factor = if rng.random_ratio(1, 4) { 1.0 } else { scale(rng, 1.0, 8.0) };
    Range { from: shortest, to: Duration::from_millis((shortest.as_secs_f64() * factor * 1e3) as u64).max(shortest) }
}
