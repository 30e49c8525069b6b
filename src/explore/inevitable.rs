//! Finds the instant at which a violation became inevitable.
//!
//! The run is simulated again and again. Up to an instant each of these runs has the same random numbers, and from that
//! instant on other ones: latencies, losses, critical sections, delays before another attempt. The part of these
//! redraws that show the violation again is the probability of the violation at that instant. (Antithesis draws the
//! same picture for its findings.)
//!
//! The plan has the fewest faults that suffice with the finding's own seed, at their exact times. The plan that is
//! offered for real servers violates whatever is drawn, so that nothing could be seen in it.

mod chart;
mod moments;

use std::{cell::Cell, time::Duration};

use history::{Event, Plan, Record, Stamp};
use rand::RngCore;
use sim::Redraw;

pub use self::moments::Moment;
use super::{draws::Draws, finding::Class, sweep::each, trial::Trial};

/// The instants of the chart.
pub const INSTANTS: u32 = 24;
/// Moments of the history that are shown before the instant from which the violation is inevitable, and after it.
const BEFORE: usize = 3;
const AFTER: usize = 2;

/// Simulates a plan with other random numbers from an instant on, and gives every record to the watcher. None if the
/// plan cannot be simulated.
pub type Run<'a> = dyn Fn(&Plan, Option<Redraw>, &mut dyn FnMut(&Record)) -> Option<Trial> + Sync + 'a;

/// The redraws from one instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant {
    /// The instant, from the start of the run.
    pub at: Duration,
    /// The number of redraws that violate.
    pub violating: u32,
}

/// The probability of a violation over the time of its run.
#[derive(Debug, Clone, PartialEq)]
pub struct Inevitability {
    /// The plan of the run.
    pub plan: Plan,
    /// The number of redraws from each instant on.
    pub redraws: u32,
    /// The instants in order, from the start to the end of the violation's story, or to the end of the run.
    pub instants: Vec<Instant>,
    /// The instant from which at least half of the redraws violate.
    pub probable_from: Option<Duration>,
    /// The instant from which all redraws violate.
    pub certain_from: Option<Duration>,
    /// The moments of the history around that instant.
    pub around: Vec<Moment>,
    /// The plan as `plan.toml`.
    pub toml: String,
}

/// Draws the probability of a violation of `class` over the run of `plan`, which shows it. `jobs` is the number of
/// threads, on which the result does not depend. None if the plan does not show the violation.
pub fn inevitability(plan: &Plan, class: &Class, redraws: u32, jobs: usize, run: &Run) -> Option<Inevitability> {
    let history = History::of(plan, class, run)?;
    let mut seeds = Draws::Redraws.of(plan.seed);
    let seeds: Vec<u64> = (0..redraws).map(|_| seeds.next_u64()).collect();
    let search = Search { plan, class, seeds, jobs: jobs.max(1), run };
    // A redraw from the start on changes what was drawn before the first process started, too.
    let of = |n: u32| if n == 0 { Stamp(0) } else { history.start.plus(history.length * n / (INSTANTS - 1)) };
    let stamps: Vec<Stamp> = (0..INSTANTS).map(of).collect();
    let violating: Vec<u32> = stamps.iter().map(|at| search.violating(*at, None)).collect();
    let from = |least: u32| {
        let Some(last) = violating.iter().rposition(|violating| *violating < least) else {
            return stamps.first().copied();
        };
        let until = *stamps.get(last + 1)?;
        let from = stamps[last];
        // The draws of an event belong to the instant of the event: each event may decide before its draws, or by them.
        let around = history.stamps.iter().flat_map(|at| [*at, at.plus(Duration::from_nanos(1))]);
        let within: Vec<Stamp> = around.filter(|at| from < *at && *at < until).collect();
        let fails = within.partition_point(|at| search.violating(*at, Some(least)) < least);
        Some(within.get(fails).copied().unwrap_or(until))
    };
    let (probable, certain) = (from(redraws.div_ceil(2)), from(redraws));
    let since_start = |at: Stamp| at.since(history.start);
    Some(Inevitability {
        plan: plan.clone(),
        redraws,
        instants: stamps.iter().zip(violating).map(|(at, n)| Instant { at: since_start(*at), violating: n }).collect(),
        probable_from: probable.map(since_start),
        certain_from: certain.map(since_start),
        around: certain.map_or_else(Vec::new, |at| moments::around(&history.moments, since_start(at), BEFORE, AFTER)),
        toml: String::new(),
    })
}

/// The run without a redraw.
struct History {
    start: Stamp,
    /// The time from the start to the end of the violation's story, or to the end of the run.
    length: Duration,
    /// The instants of the records: between two of them little is drawn.
    stamps: Vec<Stamp>,
    moments: Vec<Moment>,
}

impl History {
    fn of(plan: &Plan, class: &Class, run: &Run) -> Option<History> {
        let (mut start, mut stamps, mut moments) = (None, Vec::new(), moments::Moments::default());
        let trial = run(plan, None, &mut |record| {
            if let Event::Started { .. } = record.event {
                start.get_or_insert(record.at);
            }
            // Stamps of the controller are 0.
            if let Some(start) = start.filter(|start| *start <= record.at) {
                stamps.push(record.at);
                moments.see(record, record.at.since(start));
            }
        })?;
        let start = start?;
        stamps.sort_unstable();
        stamps.dedup();
        let property = trial.verdicts.properties.get(&class.property);
        let stories = property.map(|property| property.report().stories()).unwrap_or_default();
        let story = stories.iter().find(|story| class.contains(&story.violation));
        let ends_ms = story.and_then(|story| story.lines.last()).map(|line| line.at_ms);
        let last = stamps.last().map_or(Duration::ZERO, |last| last.since(start));
        let length = ends_ms.map_or(last, |ms| Duration::from_secs_f64(ms.max(0.0) / 1e3)).min(last);
        trial.classes.contains(class).then_some(History { start, length, stamps, moments: moments.told })
    }
}

struct Search<'a> {
    plan: &'a Plan,
    class: &'a Class,
    seeds: Vec<u64>,
    jobs: usize,
    run: &'a Run<'a>,
}

impl Search<'_> {
    /// Counts the redraws that violate. With `least` it stops as soon as it is known whether that many do.
    fn violating(&self, from: Stamp, least: Option<u32>) -> u32 {
        let (count, done) = (Cell::new(0), Cell::new(0));
        let is_known = || {
            least
                .is_some_and(|least| count.get() >= least || self.seeds.len() as u32 - done.get() + count.get() < least)
        };
        for batch in self.seeds.chunks(self.jobs) {
            let violates = each(self.jobs, batch, &|seed| self.violates(Redraw { from, seed: *seed }));
            count.set(count.get() + violates.into_iter().filter(|violates| *violates).count() as u32);
            done.set(done.get() + batch.len() as u32);
            if is_known() {
                break;
            }
        }
        count.get()
    }

    /// Returns whether a redraw shows a violation of the same property and of the same kind, for whatever cause. A
    /// redraw that cannot be simulated shows nothing.
    fn violates(&self, redraw: Redraw) -> bool {
        let is_same = |class: &Class| (&class.property, class.kind) == (&self.class.property, self.class.kind);
        (self.run)(self.plan, Some(redraw), &mut |_| ()).is_some_and(|trial| trial.classes.iter().any(is_same))
    }
}

#[cfg(test)]
mod tests;
