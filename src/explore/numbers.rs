//! One walk over the durations and numbers of a plan. Simplifying, rounding and shaking a plan are visitors of the
//! walk.

use std::time::Duration;

use history::{
    Plan, Range, When,
    fault::{LinkDelay, ParameterVisitor, Quantity},
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One millisecond in the unit of the walk: durations are visited in nanoseconds.
pub const MS: i64 = 1_000_000;
/// The largest shift of a time or a length in a shaken plan.
const SHAKE_MS: i64 = 50;
/// The engine needs this long between a fault and its heal.
const LENGTH_MIN: i64 = 50 * MS;

/// The meaning of a number in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Length of the run.
    Time,
    /// Lease of the lock.
    Lease,
    /// Work between read and write.
    Work,
    /// Delay before the next attempt.
    RetryDelay,
    /// Critical sections per 1,000 seconds.
    Rate,
    /// Interval of renewals, repeated writes or abandoned attempts.
    Interval,
    /// Earliest start of a planned wait.
    WaitStart,
    /// Longest duration of a planned wait.
    WaitLimit,
    /// Time of a step after the start of the run.
    At,
    /// Time of a step after the heal of the step before it.
    Gap,
    /// A number of a fault. Jumps and periods of clocks are visited in nanoseconds too.
    Fault(Quantity),
}

impl Meaning {
    /// Returns whether the number is a time or a duration.
    pub fn is_time(self) -> bool {
        !matches!(self, Meaning::Rate | Meaning::Fault(Quantity::Percent | Quantity::DriftPpm))
    }

    /// Returns whether the number is the length of a fault.
    pub fn is_length(self) -> bool {
        matches!(self, Meaning::Fault(Quantity::Length | Quantity::Downtime))
    }
}

/// The place of a number in a plan. The two ends of a range have one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The meaning of the number.
    pub of: Meaning,
    /// The index of its interval, wait or step.
    pub index: usize,
}

struct Walk<'a> {
    visitor: &'a mut dyn FnMut(Place, &mut i64),
    index: usize,
}

impl Walk<'_> {
    fn number(&mut self, of: Meaning, value: &mut i64) {
        (self.visitor)(Place { of, index: self.index }, value);
    }

    fn duration(&mut self, of: Meaning, value: &mut Duration) {
        let before = value.as_nanos() as i64;
        let mut after = before;
        self.number(of, &mut after);
        if after != before {
            *value = Duration::from_nanos(after.max(0) as u64);
        }
    }

    fn range(&mut self, of: Meaning, value: &mut Range) {
        self.duration(of, &mut value.from);
        self.duration(of, &mut value.to);
    }
}

impl ParameterVisitor for Walk<'_> {
    fn duration(&mut self, of: Quantity, value: &mut Duration) {
        Walk::duration(self, Meaning::Fault(of), value);
    }

    fn number(&mut self, of: Quantity, value: &mut i64) {
        let unit = if matches!(of, Quantity::JumpMs | Quantity::PeriodMs) { MS } else { 1 };
        let mut scaled = *value * unit;
        Walk::number(self, Meaning::Fault(of), &mut scaled);
        *value = scaled / unit;
    }

    /// Visits the longer end only: packets that are all late by the same time do not overtake each other.
    fn range(&mut self, of: Quantity, value: &mut Range) {
        Walk::duration(self, Meaning::Fault(of), &mut value.to);
    }

    fn delay(&mut self, value: &mut LinkDelay) {
        let mut range = value.range();
        Walk::range(self, Meaning::Fault(Quantity::Delay), &mut range);
        *value = if range.from == range.to { LinkDelay::Fixed(range.to) } else { LinkDelay::Drawn(range) };
    }
}

/// Shows every duration and number of a plan to `visitor`, which may change it, and returns the changed plan.
pub fn visited(plan: &Plan, mut visitor: impl FnMut(Place, &mut i64)) -> Plan {
    let mut plan = plan.clone();
    let mut walk = Walk { visitor: &mut visitor, index: 0 };
    walk.duration(Meaning::Time, &mut plan.time);
    walk.duration(Meaning::Lease, &mut plan.lease);
    let w = &mut plan.workload;
    walk.range(Meaning::Work, &mut w.work);
    walk.range(Meaning::RetryDelay, &mut w.retry_delay);
    let before = (w.rate_per_s * 1e3).round() as i64;
    let mut rate = before;
    walk.number(Meaning::Rate, &mut rate);
    if rate != before {
        w.rate_per_s = rate as f64 / 1e3;
    }
    let intervals = [&mut w.renew, &mut w.renew_for, &mut w.resend, &mut w.cancel];
    for (index, interval) in intervals.into_iter().enumerate() {
        walk.index = index;
        interval.iter_mut().for_each(|interval| walk.duration(Meaning::Interval, interval));
    }
    for (index, wait) in plan.waits.iter_mut().enumerate() {
        walk.index = index;
        walk.duration(Meaning::WaitStart, &mut wait.after);
        walk.duration(Meaning::WaitLimit, &mut wait.at_most);
    }
    for (index, step) in plan.schedule.iter_mut().enumerate() {
        walk.index = index;
        step.fault.visit(&mut walk);
        match &mut step.when {
            When::At(at) => walk.duration(Meaning::At, at),
            When::AfterHeal(gap) => walk.duration(Meaning::Gap, gap),
            When::AtPoint(_) | When::WhileWaits(_) | When::Healed(_) => {}
        }
    }
    plan
}

/// Lists the numbers of a plan: the place, and the ends of the range, which are equal for a single number.
pub fn numbers(plan: &Plan) -> Vec<(Place, i64, i64)> {
    let mut all: Vec<(Place, i64, i64)> = Vec::new();
    visited(plan, |place, n| match all.last_mut() {
        Some((last, _, to)) if *last == place => *to = *n,
        _ => all.push((place, *n, *n)),
    });
    all
}

/// Makes one plan for each number and each of its `alternatives`.
pub fn replaced(plan: &Plan, alternatives: impl Fn(Place, i64, i64) -> Vec<i64>) -> Vec<Plan> {
    let set = |place: Place, value: i64| {
        visited(plan, |at, n| {
            if at == place {
                *n = value
            }
        })
    };
    let of = |(place, from, to)| alternatives(place, from, to).into_iter().map(move |value| set(place, value));
    numbers(plan).into_iter().flat_map(of).collect()
}

/// Shakes a plan: moves every time and every length by up to 50 ms, and gives the plan another seed.
pub fn shaken(plan: &Plan, variation: u64) -> Plan {
    let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
    rng.set_stream(variation + 1);
    let seed = rng.random_range(0..Plan::SEED_MAX);
    let latest = plan.time.as_nanos() as i64 - MS;
    let shake = |place: Place, n: &mut i64| match place.of {
        Meaning::At | Meaning::WaitStart => *n = (*n + shift(&mut rng)).clamp(0, latest.max(0)),
        Meaning::Gap => *n = (*n + shift(&mut rng)).max(0),
        of if of.is_length() || of == Meaning::WaitLimit => *n = (*n + shift(&mut rng)).max(LENGTH_MIN),
        _ => {}
    };
    Plan { seed, ..visited(plan, shake) }
}

fn shift(rng: &mut impl Rng) -> i64 {
    rng.random_range(-SHAKE_MS..=SHAKE_MS) * MS
}

/// Grains of durations, from the roundest on.
const GRAINS: [i64; 7] = [1_000 * MS, 500 * MS, 100 * MS, 50 * MS, 10 * MS, 5 * MS, MS];

/// Lists the values that are rounder than the number `from`, or simpler than the range `from..to`; the roundest first.
pub fn rounder(place: Place, from: i64, to: i64) -> Vec<i64> {
    let middle = (from + to) / 2;
    let mut values = match place.of {
        Meaning::Rate => {
            let is_rounder = |rate: &i64| *rate != middle && (middle % 1_000 != 0 || *rate < middle);
            [1, 2, 5, 10, 20, 50, 100].map(|rate| rate * 1_000).into_iter().filter(is_rounder).collect()
        }
        Meaning::Fault(Quantity::Percent) => neighbours(middle, &[10]),
        Meaning::Fault(Quantity::DriftPpm) => neighbours(middle, &[100_000, 10_000]),
        _ => neighbours(middle, &GRAINS),
    };
    if from != to {
        values.extend([to, from, middle]);
    }
    values
}

/// Lists the multiples of each grain next to `n`, the nearer one first. None of them is 0 or `n`.
fn neighbours(n: i64, grains: &[i64]) -> Vec<i64> {
    let mut round = Vec::new();
    for grain in grains.iter().take_while(|grain| n % **grain != 0) {
        let below = n.div_euclid(*grain) * grain;
        let above = below + grain;
        let nearest_first = if n - below < above - n { [below, above] } else { [above, below] };
        round.extend(nearest_first.into_iter().filter(|value| *value != 0));
    }
    let mut seen = std::collections::BTreeSet::new();
    round.retain(|value| seen.insert(*value));
    round
}

#[cfg(test)]
mod tests {
    use history::Point;

    use super::*;
    use crate::explore::fixtures::{paused_at, plan};

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_walk_that_changes_nothing_gives_the_same_plan() {
        let mut plan = plan();
        plan.workload.rate_per_s = 10.0 / 3.0;
        plan.schedule = vec![paused_at(1, When::At(Duration::from_nanos(1_411_000_007)), 1_500)];
        assert_eq!(visited(&plan, |_, _| ()), plan);
    }

    #[test]
    fn every_time_moves_by_at_most_fifty_milliseconds_and_points_stay() {
        let mut plan = plan();
        plan.schedule = vec![
            paused_at(1, When::At(ms(2_000)), 1_500),
            paused_at(2, When::AfterHeal(ms(10)), 60),
            paused_at(3, When::AtPoint(Point::BeforeWrite), 1_500),
            paused_at(4, When::At(plan.time - ms(1)), 1_500),
        ];
        let mut seeds = std::collections::BTreeSet::new();
        for n in 0..200 {
            let other = shaken(&plan, n);
            assert_eq!(other.validate(), Ok(()));
            seeds.insert(other.seed);
            for (step, was) in other.schedule.iter().zip(&plan.schedule) {
                assert!(step.fault.lasting.abs_diff(was.fault.lasting) <= ms(50));
                assert!(step.fault.lasting >= ms(50));
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
        assert_eq!(shaken(&plan, 3), shaken(&plan, 3));
        assert_ne!(shaken(&plan, 3).schedule, shaken(&plan, 4).schedule);
    }

    #[test]
    fn rounder_numbers_are_near_and_never_nothing() {
        let of = |from: i64, to: i64| -> Vec<i64> {
            let place = Place { of: Meaning::Work, index: 0 };
            rounder(place, from * MS, to * MS).into_iter().map(|n| n / MS).collect()
        };
        assert_eq!(of(1_340, 1_340)[..4], [1_000, 2_000, 1_500, 1_300]);
        assert!(of(2_000, 2_000).is_empty());
        assert_eq!(of(30, 30), [1_000, 500, 100, 50]);
        assert_eq!(of(-1_340, -1_340)[..2], [-1_000, -2_000]);
        assert!(of(20, 60).iter().all(|n| *n != 0));
    }

    #[test]
    fn a_range_is_replaced_by_one_value() {
        let plans = replaced(&plan(), |place, from, to| match place.of {
            Meaning::Work => rounder(place, from, to),
            _ => Vec::new(),
        });
        assert!(!plans.is_empty());
        assert!(plans.iter().all(|p| p.workload.work.from == p.workload.work.to));
    }
}
