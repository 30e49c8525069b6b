//! `harness explore`: many schedules in the simulation, and the least that shows each kind of violation among them.
//!
//! What is found does not depend on the machine or on the number of threads: seeds are tried one by one, findings counted by class, and the first of
//! each reduced by a search that draws nothing but from the plan's seed.

pub mod finding;
mod firmer;
mod held;
mod jitter;
mod moves;
mod plans;
mod reduce;
mod report;
mod scan;
#[cfg(test)]
mod scene;
pub mod trial;

use std::{path::Path, thread};

use anyhow::{Context, anyhow};
use history::Plan;
use tokio::time::Instant;

use self::{
    finding::{Class, in_order},
    plans::Space,
    reduce::{Reduced, reduce},
    report::{Exploration, Shown, short},
    scan::{Found, Seeds, each, scan},
    trial::{Trial, trial},
};
use crate::{
    cli::{ExploreArgs, Format},
    exit::Exit,
    report::{Terminal, print},
};

/// `harness explore`
pub fn explore(args: &ExploreArgs) -> anyhow::Result<Exit> {
    let space = Space::from_flags(args)?;
    let jobs = args.jobs.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let terminal = Terminal::new(|_| String::new(), false);
    let seeds = Seeds { first: args.seed, count: args.seeds, kept: args.limit.max(1), jobs };
    let began = Instant::now();
    let tell = |done: u64| {
        let rate = short(done as f64 / began.elapsed().as_secs_f64().max(1e-3));
        terminal.progress(&format!("{done} of {} schedules, {rate} a second", args.seeds));
    };
    let tally = scan(seeds, &|seed| space.tried(seed), &tell)?;
    let took = began.elapsed();

    let classes: Vec<(Class, Found)> = tally.classes.clone().into_iter().collect();
    let shown = each(jobs, &classes, &|(class, found)| {
        if args.limit > 0 {
            terminal.progress(&format!("reducing {class}"));
        }
        space.shown(class, found, args.limit)
    });
    let mut shown = shown.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    // What nothing explains comes first.
    shown.sort_by_key(|s| !s.class.is_unexplained());
    if let Some(dir) = &args.save {
        for one in &mut shown {
            one.save(dir)?;
        }
    }
    let exploration = Exploration { tally, took, shown };
    match args.format {
        Format::Text => print(&exploration.text()),
        Format::Json => print(&format!("{:#}\n", exploration.json())),
    }
    Ok(exploration.exit())
}

impl Exploration {
    fn exit(&self) -> Exit {
        if self.tally.findings() > 0 {
            Exit::Violated
        } else if self.tally.inconclusive == self.tally.schedules {
            Exit::Inconclusive
        } else {
            Exit::Ok
        }
    }
}

impl Class {
    fn is_by(&self, causes: &[String]) -> bool {
        in_order(causes) == self.causes
    }

    fn is_unexplained(&self) -> bool {
        self.causes.iter().any(|cause| cause == "unexplained")
    }
}

impl Space {
    fn simulated(&self, plan: &Plan) -> Result<Trial, sim::SimError> {
        trial(plan, &self.backend, self.resource_bug.as_deref())
    }

    fn tried(&self, seed: u64) -> Result<Trial, String> {
        let plan = self.plan(seed).map_err(|e| format!("{e:#}"))?;
        self.simulated(&plan).map_err(|e| e.to_string())
    }

    /// Reduces the first findings of a class until one can be offered.
    fn shown(&self, class: &Class, found: &Found, limit: usize) -> anyhow::Result<Shown> {
        let mut best: Option<(u64, Reduced)> = None;
        for seed in found.seeds.iter().copied().take(limit) {
            let reduced = reduce(&self.plan(seed)?, class, &|plan| self.simulated(plan).ok()).ok_or_else(|| {
                anyhow!("seed {seed}: `{class}` was not seen again: the same plan was not the same run")
            })?;
            let is_offered = reduced.is_offered();
            if is_offered || best.is_none() {
                best = Some((seed, reduced));
            }
            if is_offered {
                break;
            }
        }
        let (seed, reduced) = best
            .map_or((found.seeds.first().copied().unwrap_or_default(), None), |(seed, reduced)| (seed, Some(reduced)));
        let toml = match &reduced {
            Some(reduced) => self.file(file_name(class, seed), reduced.plan.clone()).to_toml()?,
            None => String::new(),
        };
        Ok(Shown { class: class.clone(), found: found.clone(), seed, reduced, toml, saved: None })
    }
}

impl Shown {
    /// Writes the plan, if it is offered.
    fn save(&mut self, dir: &Path) -> anyhow::Result<()> {
        if !self.reduced.as_ref().is_some_and(Reduced::is_offered) {
            return Ok(());
        }
        let path = dir.join(file_name(&self.class, self.seed) + ".toml");
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&path, &self.toml))
            .with_context(|| format!("writing {}", path.display()))?;
        self.saved = Some(path);
        Ok(())
    }
}

/// `lock-stale-holder-pause-17`
fn file_name(class: &Class, seed: u64) -> String {
    let words = format!("{class} {seed}");
    words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect::<Vec<_>>().join("-")
}
