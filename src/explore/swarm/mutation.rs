//! Changes a plan that showed something new: mixes it with a fresh plan.

use history::{FaultId, Plan, Step, When};
use rand::{Rng, seq::IndexedRandom};

use super::{faults::joined, workload::give_patience};

/// Returns a plan with some of the workload and some of the faults of `parent`, and the rest of `fresh`. Its random
/// streams are those of `fresh`.
pub fn mutant(parent: &Plan, fresh: &Plan, rng: &mut impl Rng) -> Plan {
    let again = Plan { seed: fresh.seed, ..parent.clone() };
    let mut plan = again.clone();
    if rng.random_ratio(1, 2) {
        mix_workload(&mut plan, fresh, rng);
    }
    match rng.random_range(0..4) {
        0 => {}
        1 => plan.schedule = kept(&plan.schedule, rng),
        2 => {
            plan.schedule = kept(&plan.schedule, rng);
            plan.schedule = joined(&plan, &fresh.schedule);
        }
        _ => plan.schedule = shifted(&plan, rng),
    }
    plan.nemesis = plan.kinds().iter().map(|kind| kind.name().to_owned()).collect();
    // A step may name a worker that the plan no longer has.
    if plan.validate().is_ok() { plan } else { again }
}

/// Takes some parts of the workload from `fresh`. Parts that depend on each other go together.
fn mix_workload(plan: &mut Plan, fresh: &Plan, rng: &mut impl Rng) {
    let (mine, theirs) = (&mut plan.workload, &fresh.workload);
    let parts: [fn(&mut history::Workload, &history::Workload); 8] = [
        |mine, theirs| mine.clients_per_worker = theirs.clients_per_worker,
        |mine, theirs| mine.keys = theirs.keys,
        |mine, theirs| mine.work = theirs.work,
        |mine, theirs| mine.retry_delay = theirs.retry_delay,
        |mine, theirs| mine.client = theirs.client,
        |mine, theirs| mine.cancel = theirs.cancel,
        |mine, theirs| mine.resend = theirs.resend,
        |mine, theirs| (mine.renew, mine.renew_for) = (theirs.renew, theirs.renew_for),
    ];
    let count = rng.random_range(1..=3);
    parts.choose_multiple(rng, count).for_each(|take| take(mine, theirs));
    give_patience(plan, plan.lease);
}

/// Leaves out some steps, and the steps that wait for their heal.
fn kept(schedule: &[Step], rng: &mut impl Rng) -> Vec<Step> {
    let mut kept: Vec<Step> = Vec::new();
    for step in schedule {
        let has_cause = |before: FaultId| kept.iter().any(|other| other.id == before);
        let is_possible = !matches!(step.when, When::Healed(before) if !has_cause(before));
        if is_possible && rng.random_ratio(3, 4) {
            kept.push(step.clone());
        }
    }
    kept
}

/// Moves all steps with times together, or each by itself, by up to a lease.
fn shifted(plan: &Plan, rng: &mut impl Rng) -> Vec<Step> {
    let (together, is_together) = (rng.random_range(-1.0..=1.0), rng.random_ratio(1, 2));
    let mut schedule = plan.schedule.clone();
    for step in &mut schedule {
        if let When::At(at) = &mut step.when {
            let by = if is_together { together } else { rng.random_range(-1.0..=1.0) };
            let moved = at.as_secs_f64() + by * plan.lease.as_secs_f64();
            *at = std::time::Duration::from_millis((moved.max(0.01) * 1e3) as u64).min(plan.time * 9 / 10);
        }
    }
    schedule
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::explore::fixtures::{paused_at, plan};

    #[test]
    fn no_mutant_waits_for_another_lock_for_ever() {
        let (mut parent, mut fresh) = (plan(), plan());
        (parent.workload.keys, parent.workload.locks_per_section, parent.workload.opposite) = (2, 2, true);
        fresh.workload.renew = Some(parent.lease / 4);
        fresh.workload.keys = 2;
        let mut renewed = 0;
        for seed in 0..200 {
            let mut mixed = parent.clone();
            mix_workload(&mut mixed, &fresh, &mut ChaCha8Rng::seed_from_u64(seed));
            renewed += u32::from(mixed.workload.renew.is_some());
            assert_eq!(mixed.workload.patience, mixed.workload.renew.map(|_| mixed.lease), "{seed}");
        }
        assert!(renewed > 0);
    }

    #[test]
    fn a_mutant_takes_over_no_fault_that_is_longer_than_its_run() {
        // The fresh plan may have another lease and another time.
        let (plan, at) = (plan(), When::At(std::time::Duration::from_secs(1)));
        for (lasting_ms, is_taken) in [(10_000, true), (10_001, false)] {
            let schedule = joined(&plan, &[paused_at(1, at, lasting_ms)]);
            assert_eq!(schedule.len(), usize::from(is_taken), "{lasting_ms}");
        }
    }
}
