//! Steps of the host's clock, and what servers that measure time by this clock make of them.

use std::time::Duration;

use history::{Plan, ProcessName, Stamp};
use rustc_hash::FxHashMap;

use crate::{holds::Span, rules};

/// A step of a kernel clock that no fault injected.
#[derive(Debug, Clone)]
pub(crate) struct ClockStep {
    pub process: ProcessName,
    pub span: Span,
    pub moved: Duration,
    /// The time by which the wall clock was set back, and by which it was surely set forward; one of them is zero.
    set_back: Duration,
    set_forward: Duration,
    /// The time by which either clock was set forward, and true if that is more than clocks drift.
    ahead: Duration,
    is_forward: bool,
}

/// The most clock steps that are kept.
const STEPS_MAX: usize = 1_000;

/// The steps of the host's clock that the processes have seen.
#[derive(Debug, Default)]
pub(crate) struct ClockSteps {
    pub steps: Vec<ClockStep>,
    /// The last sample of each process: its stamp, the wall clock, and the clock since the boot.
    samples: FxHashMap<usize, (Stamp, i64, i64)>,
}

impl ClockSteps {
    /// Takes a sample of the clocks by a process.
    pub fn sampled(&mut self, process: usize, name: &ProcessName, at: Stamp, wall_ns: i64, boot_ns: i64) {
        let Some((last, wall, boot)) = self.samples.insert(process, (at, wall_ns, boot_ns)) else { return };
        let (moved_ns, elapsed) = (wall_ns.abs_diff(wall).max(boot_ns.abs_diff(boot)), at.since(last));
        if !rules::is_clock_step(moved_ns, elapsed) {
            return;
        }
        let gained = |now: i64, before: i64| if now > before { now.abs_diff(before) } else { 0 };
        let ahead = gained(wall_ns, wall).max(gained(boot_ns, boot));
        let (is_forward, ahead) = (rules::is_clock_step(ahead, elapsed), Duration::from_nanos(ahead));
        let (is_full, moved) = (self.steps.len() >= STEPS_MAX, Duration::from_nanos(moved_ns));
        let [set_back, set_forward] = [gained(wall, wall_ns), gained(wall_ns, wall)].map(Duration::from_nanos);
        match self.steps.last_mut().filter(|_| is_full) {
            // The last one that is kept stands for all that follow: it may excuse more, and never less.
            Some(kept) => {
                kept.span = (kept.span.0.min(last), kept.span.1.max(at));
                kept.moved = kept.moved.max(moved);
                kept.set_back += set_back;
                kept.set_forward = Duration::ZERO;
                kept.is_forward |= is_forward;
            }
            None => {
                let (process, span) = (name.clone(), (last, at));
                self.steps.push(ClockStep { process, span, moved, set_back, set_forward, ahead, is_forward });
            }
        }
    }

    /// Returns whether a clock stepped inside the span.
    pub fn stepped_within(&self, span: Span) -> bool {
        self.steps.iter().any(|step| rules::overlap(step.span, span).is_some())
    }

    /// Returns whether a clock stepped inside the span so that a server may have ended a lease early. A clock that was
    /// set back lets a lease last longer. But sentinels judge a primary by their clocks, in whatever direction these
    /// step.
    pub fn may_have_ended_leases(&self, plan: &Plan, span: Span) -> bool {
        let may_end = |step: &&ClockStep| step.is_forward || plan.is_replicated();
        self.steps.iter().filter(may_end).any(|step| rules::overlap(step.span, span).is_some())
    }

    /// Returns how far the host's clocks were set forward inside the span, by the process that saw most of it: a lease
    /// ends at most that much too early. Nobody knows if not all steps are kept.
    pub fn set_forward_within(&self, span: Span) -> Duration {
        if self.steps.len() >= STEPS_MAX {
            return Duration::MAX;
        }
        let is_met = |step: &&ClockStep| step.is_forward && rules::overlap(step.span, span).is_some();
        let mut by_process: FxHashMap<&ProcessName, Duration> = FxHashMap::default();
        for step in self.steps.iter().filter(is_met) {
            *by_process.entry(&step.process).or_default() += step.ahead;
        }
        by_process.into_values().max().unwrap_or_default()
    }

    /// Returns whether a lease as long as the span, which began before the span, may still run at its end, because the
    /// host's clock was set back. The same is true of any other time that a server measures by its wall clock. The time
    /// lasts longer by all steps back that it met, and less by the steps forward. A clock that was only set forward
    /// makes no time longer.
    pub fn may_have_put_off(&self, (from, to): Span) -> bool {
        let mut steps = self.steps.iter().rev().filter(|step| step.span.0 <= to);
        // Each process reports the same steps, the last one first here.
        let mut met: FxHashMap<&ProcessName, (Duration, Duration)> = FxHashMap::default();
        steps.any(|step| {
            let (longer, less) = met.entry(&step.process).or_default();
            *longer += step.set_back;
            if step.span.1 <= from {
                *less += step.set_forward;
            }
            !step.set_back.is_zero() && from <= step.span.1.plus(longer.saturating_sub(*less))
        })
    }
}
