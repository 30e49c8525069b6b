//! Jitter: a plan that only violates when every step comes at its microsecond shows nothing that real servers would show.

use std::time::Duration;

use history::{ClockChange, Fault, Plan, When};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How far each step is moved, at most, either way.
const JITTER_MS: i64 = 50;
/// The engine needs so long between a fault and its heal.
pub const LASTING_MIN: Duration = Duration::from_millis(50);
/// Seeds of plans stay below this: not every reader of JSON keeps larger numbers whole.
const SEED_MAX: u64 = 1 << 53;

/// The `n`-th variation of a plan: each time, gap and length moved by up to 50 ms, and another seed, so that the clients do other things
/// at other times.
pub fn jittered(plan: &Plan, n: u64) -> Plan {
    let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
    rng.set_stream(n + 1);
    let mut plan = plan.clone();
    plan.seed = rng.random_range(0..SEED_MAX);
    let latest = plan.time.saturating_sub(Duration::from_millis(1));
    for step in &mut plan.schedule {
        let (when, lasting) = (by(&mut rng), by(&mut rng));
        match &mut step.when {
            When::AfterHeal(gap) => *gap = moved(*gap, when),
            When::At(at) => *at = moved(*at, when).min(latest),
            When::AtPoint(_) | When::WhileWaits(_) | When::Healed(_) => {}
        }
        let length = lasting_mut(&mut step.fault);
        *length = moved(*length, lasting).max(LASTING_MIN);
    }
    for wait in &mut plan.waits {
        let (after, at_most) = (by(&mut rng), by(&mut rng));
        wait.after = moved(wait.after, after).min(latest);
        wait.at_most = moved(wait.at_most, at_most).max(LASTING_MIN);
    }
    plan
}

fn by(rng: &mut impl Rng) -> i64 {
    rng.random_range(-JITTER_MS..=JITTER_MS)
}

fn moved(d: Duration, by_ms: i64) -> Duration {
    let by = Duration::from_millis(by_ms.unsigned_abs());
    if by_ms < 0 { d.saturating_sub(by) } else { d + by }
}

/// How long a fault is asked to last.
pub fn lasting_mut(fault: &mut Fault) -> &mut Duration {
    match fault {
        Fault::Kill { back_after } | Fault::Amnesia { back_after, .. } | Fault::Powerloss { back_after } => back_after,
        Fault::Pause { lasting }
        | Fault::Stop { lasting }
        | Fault::Slow { lasting, .. }
        | Fault::Clock { lasting, .. }
        | Fault::Partition { lasting, .. }
        | Fault::Delay { lasting, .. }
        | Fault::Loss { lasting, .. }
        | Fault::Reorder { lasting, .. } => lasting,
    }
}

/// How far a jump of a clock goes, the jumps of a strobe included.
pub fn jump_mut(fault: &mut Fault) -> Option<&mut i64> {
    match fault {
        Fault::Clock { change: ClockChange::JumpMs(by) | ClockChange::Strobe { by_ms: by, .. }, .. } => Some(by),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use history::Point;

    use super::*;
    use crate::explore::scene::{paused_at, plan};

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn every_step_moves_by_at_most_fifty_milliseconds_and_points_stay() {
        let mut plan = plan();
        plan.schedule = vec![
            paused_at(1, When::At(ms(2_000)), 1_500),
            paused_at(2, When::AfterHeal(ms(10)), 60),
            paused_at(3, When::AtPoint(Point::BeforeWrite), 1_500),
            paused_at(4, When::At(plan.time - ms(1)), 1_500),
        ];
        let mut seeds = std::collections::BTreeSet::new();
        for n in 0..200 {
            let other = jittered(&plan, n);
            assert_eq!(other.validate(), Ok(()));
            seeds.insert(other.seed);
            for (step, was) in other.schedule.iter().zip(&plan.schedule) {
                assert!(step.fault.lasting().abs_diff(was.fault.lasting()) <= ms(50));
                assert!(step.fault.lasting() >= LASTING_MIN);
                match (step.when, was.when) {
                    (When::At(a), When::At(b)) | (When::AfterHeal(a), When::AfterHeal(b)) => {
                        assert!(a.abs_diff(b) <= ms(50));
                    }
                    (a, b) => assert_eq!(a, b),
                }
            }
        }
        assert_eq!(seeds.len(), 200, "each has a seed of its own");
    }

    #[test]
    fn a_variation_is_the_same_each_time() {
        let mut plan = plan();
        plan.schedule = vec![paused_at(1, When::At(ms(2_000)), 1_500)];
        assert_eq!(jittered(&plan, 3), jittered(&plan, 3));
        assert_ne!(jittered(&plan, 3).schedule, jittered(&plan, 4).schedule);
    }
}
