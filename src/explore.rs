//! `harness explore`: simulates many seeds, and minimizes each kind of violation that they show to a short plan.
//!
//! The findings depend neither on the machine nor on the number of threads, unless the budget of time ends: the search
//! draws nothing but from the plan's seed.

mod draws;
pub mod finding;
#[cfg(test)]
mod fixtures;
mod hold_and_wait;
mod inevitable;
mod numbers;
mod reduce;
mod report;
pub mod results;
mod simplify;
mod strengthen;
pub mod swarm;
pub mod sweep;
pub mod trial;

use std::{
    collections::BTreeMap,
    fmt::Display,
    ops::ControlFlow,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Context;
use history::{ClusterKind, Plan, Record};
use tokio::time::Instant;

use self::{
    finding::Class,
    inevitable::inevitability,
    reduce::{Limits, Reduced, reduce},
    report::Finding,
    results::{Head, Results, short},
    swarm::{Swarm, search::search, signal::Watch},
    sweep::{Occurrences, SeedError, Seeds, Tally, caught, each, sweep},
    trial::{Trial, trial, watched},
};
use crate::{
    cli::{ExploreArgs, Format, MergeArgs, ProgramArgs},
    exit::{Exit, usage},
    fingerprint,
    report::{Terminal, print},
    run_dir::{RunDir, can_be_written},
    scenario::Scenario,
};

/// The number of a swarm's schedules between two lines of progress.
const PROGRESS_EVERY: u64 = 1_024;

/// `harness explore`
pub fn explore(args: &ExploreArgs) -> anyhow::Result<Exit> {
    let mut source = Source::of(args)?;
    args.save.iter().try_for_each(|dir| can_be_written(dir))?;
    let (first, count) = args.range()?;
    // Before the search: meanwhile the binary may be replaced.
    let head = source.head(args)?;
    let jobs = args.jobs.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let terminal = Terminal::new(|_| String::new(), false);
    let seeds = Seeds { first, count, kept: args.limit.max(1), jobs };
    let began = Instant::now();
    let progress = |done: u64| {
        let rate = short(done as f64 / began.elapsed().as_secs_f64().max(1e-3));
        terminal.progress(&format!("{done} of {count} schedules, {rate} a second"));
    };
    let tally = source.tally(seeds, &progress)?;
    let (took, judged) = (began.elapsed(), tally.schedules);

    let mut classes: Vec<(Class, Occurrences)> = tally.classes.clone().into_iter().collect();
    // Unexplained violations come first.
    classes.sort_by_key(|(class, _)| !class.is_unexplained());
    // A budget that no clock can reach never ends.
    let limits = Limits { deadline: Instant::now().checked_add(args.budget), jobs: jobs / classes.len().max(1) };
    let made = each(jobs, &classes, &|(class, occurrences)| {
        if args.limit > 0 {
            terminal.progress(&format!("minimizing {class}"));
        }
        let mut finding = source.finding(class, occurrences, args.limit, limits)?;
        source.add_inevitability(&mut finding, args.redraws, limits.jobs)?;
        let saved = args.save.as_ref().map_or(Ok(()), |dir| finding.save(dir));
        let results = finding.results()?;
        let printed = if args.format == Format::Text { print(&results.text(judged)) } else { Ok(()) };
        Ok(((results, finding.is_cut_short), saved.and(printed)))
    });
    let made = made.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    // A plan that cannot be written, or a full output, must not take the other findings with it.
    let (findings, mut saved): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    if let (Some(error), Some(dir)) = (&tally.first_error, &args.save) {
        saved.push(source.save_failed(error.seed, dir));
    }
    let is_cut_short = findings.iter().any(|(_, is_cut_short)| *is_cut_short);
    let findings = findings.into_iter().map(|(results, _)| results).collect();
    let results = Results::new(head, tally, took.as_secs_f64(), findings, is_cut_short);
    let json = serde_json::to_string_pretty(&results)? + "\n";
    saved.push(match args.format {
        Format::Text => print(&results.text()),
        Format::Json => print(&json),
    });
    if let Some(dir) = &args.save {
        write(dir, results.file_name(), &json)?;
    }
    saved.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(results.exit())
}

/// Makes the judge of a reduction. A panic is a bug of the harness, which only a changed plan has shown: the plan
/// counts as one that cannot be simulated, and the search goes on.
fn judge<E: Display>(simulate: impl Fn(&Plan) -> Result<Trial, E> + Sync) -> impl Fn(&Plan) -> Option<Trial> + Sync {
    move |plan: &Plan| caught(|| simulate(plan).map_err(|e| e.to_string())).ok()
}

/// Returns whether a file in a directory of saved plans has the results of an exploration, by its name.
pub fn is_results(name: &str) -> bool {
    name == "explore.json" || name.starts_with("explore-") && name.ends_with(".json")
}

/// Joins and prints the results of the shards of an exploration.
pub fn merge(args: &MergeArgs, files: Vec<PathBuf>) -> anyhow::Result<Exit> {
    let part = |path: PathBuf| Results::read(&path).map(|results| (path, results));
    let results = Results::joined(files.into_iter().map(part).collect::<Result<_, _>>()?)?;
    match args.format {
        Format::Text => {
            print(&results.findings_text())?;
            print(&results.text())?;
        }
        Format::Json => print(&(serde_json::to_string_pretty(&results)? + "\n"))?,
    }
    Ok(results.exit())
}

impl ExploreArgs {
    fn first_seed(&self) -> u64 {
        self.scenario.seed.unwrap_or_default()
    }

    /// The first seed of the shard, and the number of its seeds.
    fn range(&self) -> anyhow::Result<(u64, u64)> {
        let shard = self.shard.get();
        if self.seeds < u64::from(shard.of) {
            let problem = format!("more shards than seeds: {} shards, --seeds {}", shard.of, self.seeds);
            return Err(usage(self.shard.flag(), problem));
        }
        Ok(shard.seeds(self.first_seed(), self.seeds))
    }
}

/// The source of an exploration's plans.
struct Source {
    /// The backend, and without a swarm all flags.
    scenario: Scenario,
    swarm: Option<Swarm>,
    /// The plans of a swarm's findings, by seed: a plan depends on the plans before it.
    plans: BTreeMap<u64, Plan>,
}

impl Source {
    /// Resolves the flags. The first and the last seed show early whether every plan can be run.
    fn of(args: &ExploreArgs) -> anyhow::Result<Source> {
        if args.seeds == 0 {
            return Err(usage("seeds", "there must be at least one"));
        }
        let scenario = Scenario::from_flags(&args.scenario, &ProgramArgs::default(), ClusterKind::Sim, None)?;
        let first = args.first_seed();
        let last = first.checked_add(args.seeds - 1).ok_or_else(|| usage("seeds", "more than there are seeds"))?;
        let tokens = args.scenario.tokens.as_ref().map(|_| scenario.base.tokens);
        let swarm = if args.swarm { Some(Swarm::of(&scenario.backend, tokens)?) } else { None };
        let plan = |seed| swarm.as_ref().map_or_else(|| scenario.plan(seed), |swarm| swarm.plan(seed));
        let (first, last) = (plan(first)?, plan(last)?);
        // Another seed may draw faults that are short enough.
        if swarm.is_none() && last.schedule.is_empty() {
            scenario.has_its_faults(&first)?;
        }
        Ok(Source { scenario, swarm, plans: BTreeMap::new() })
    }

    /// The origin of the results.
    fn head(&self, args: &ExploreArgs) -> anyhow::Result<Head> {
        let first_seed = args.first_seed();
        let scenario = &self.scenario;
        let plan = self.swarm.as_ref().map_or_else(|| scenario.plan(first_seed), |swarm| swarm.plan(first_seed))?;
        let plan = scenario.file(String::new(), plan).to_toml()?;
        // The plan of one seed does not tell from which tokens a swarm draws.
        let tokens = args.scenario.tokens.as_ref().filter(|_| args.swarm);
        let search = format!("{:?}", (args.swarm, tokens, args.limit, args.redraws));
        let flags = fingerprint::of([plan.as_str(), &search]);
        Ok(Head { build: fingerprint::build()?, flags, first_seed, seeds: args.seeds, shard: args.shard.get() })
    }

    /// Simulates all seeds. `progress` gets the number of finished seeds now and then.
    fn tally(&mut self, seeds: Seeds, progress: &dyn Fn(u64)) -> Result<Tally, SeedError> {
        let Some(swarm) = &self.swarm else { return Ok(sweep(seeds, &|seed| self.scenario.tried(seed), progress)) };
        let judge = |plan: &Plan| {
            let mut watch = Watch::default();
            let (backend, bug) = (&self.scenario.backend, self.scenario.resource_bug.as_deref());
            let trial = watched(plan, backend, bug, None, |record| watch.see(record)).map_err(|e| e.to_string())?;
            Ok((trial, watch.signal()))
        };
        let (mut tally, mut plans) = (Tally::default(), BTreeMap::new());
        search(swarm, seeds, &judge, &mut |seed, plan, trial| {
            let is_needed = match trial {
                Ok(trial) => {
                    let classes = trial.classes.clone();
                    tally.add(seed, trial);
                    classes.iter().any(|class| tally.classes[class].seeds.len() <= seeds.kept)
                }
                Err(why) => {
                    tally.add_error(SeedError { seed, why });
                    tally.failed == 1
                }
            };
            if is_needed {
                plans.insert(seed, plan);
            }
            let done = tally.schedules + tally.failed;
            if done.is_multiple_of(PROGRESS_EVERY) {
                progress(done);
            }
            ControlFlow::Continue(())
        })?;
        self.plans = plans;
        Ok(tally)
    }

    fn plan(&self, seed: u64) -> anyhow::Result<Plan> {
        self.plans.get(&seed).map_or_else(|| self.scenario.plan(seed), |plan| Ok(plan.clone()))
    }

    /// Reduces up to `limit` seeds of a class, until a reduced plan is robust. Keeps the first one otherwise.
    fn finding(&self, class: &Class, seen: &Occurrences, limit: usize, limits: Limits) -> anyhow::Result<Finding> {
        let (mut best, mut not_again) = (None::<(u64, Reduced)>, None);
        for seed in seen.seeds.iter().copied().take(limit) {
            let judge = judge(|plan| self.scenario.simulated(plan));
            let Some(reduced) = reduce(&self.plan(seed)?, class, limits, &judge) else {
                let why = format!("the same plan did not give `{class}` again, which is a bug of the harness");
                not_again.get_or_insert(SeedError { seed, why });
                continue;
            };
            let is_offered = reduced.is_offered();
            if is_offered || best.is_none() {
                best = Some((seed, reduced));
            }
            if is_offered || limits.is_over() {
                break;
            }
        }
        let is_cut_short = limit > 0 && limits.is_over();
        let (class, occurrences) = (class.clone(), seen.clone());
        let Some((seed, reduced)) = best else {
            let seed = seen.seeds.first().copied().unwrap_or_default();
            return Ok(Finding {
                class,
                occurrences,
                seed,
                reduced: None,
                not_again,
                is_cut_short,
                toml: String::new(),
                inevitability: None,
                saved: None,
            });
        };
        let toml = self.scenario.file(file_name(&class, seed), reduced.plan.clone()).to_toml()?;
        let (reduced, inevitability, saved) = (Some(reduced), None, None);
        Ok(Finding { class, occurrences, seed, reduced, not_again, is_cut_short, toml, inevitability, saved })
    }

    /// Writes the plan of a schedule that ended with an error.
    fn save_failed(&self, seed: u64, dir: &Path) -> anyhow::Result<()> {
        // Without a swarm, the error may be that the flags give no plan for this seed.
        let Ok(plan) = self.plan(seed) else { return Ok(()) };
        let name = format!("failed-{seed}");
        let toml = self.scenario.file(name.clone(), plan).to_toml()?;
        write(dir, format!("{name}.toml"), &toml).map(|_| ())
    }

    /// Draws when the violation of a reduced finding became inevitable.
    fn add_inevitability(&self, finding: &mut Finding, redraws: u32, jobs: usize) -> anyhow::Result<()> {
        let Some(reduced) = finding.reduced.as_ref().filter(|_| redraws > 0) else { return Ok(()) };
        let Scenario { backend, resource_bug, .. } = &self.scenario;
        let run = |plan: &Plan, redraw, watch: &mut dyn FnMut(&Record)| {
            caught(|| watched(plan, backend, resource_bug.as_deref(), redraw, watch).map_err(|e| e.to_string())).ok()
        };
        finding.inevitability = inevitability(&reduced.exact, &finding.class, redraws, jobs, &run);
        if let Some(inevitability) = &mut finding.inevitability {
            let name = file_name(&finding.class, finding.seed) + "-exact";
            inevitability.toml = self.scenario.file(name, inevitability.plan.clone()).to_toml()?;
        }
        Ok(())
    }
}

impl Scenario {
    fn simulated(&self, plan: &Plan) -> Result<Trial, sim::SimError> {
        trial(plan, &self.backend, self.resource_bug.as_deref())
    }

    fn tried(&self, seed: u64) -> Result<Trial, String> {
        let plan = self.plan(seed).map_err(|e| format!("{e:#}"))?;
        self.simulated(&plan).map_err(|e| e.to_string())
    }
}

impl Finding {
    /// Writes the plan if it is robust, and in any case when the violation became inevitable and in which plan.
    fn save(&mut self, dir: &Path) -> anyhow::Result<()> {
        let name = file_name(&self.class, self.seed);
        if self.reduced.as_ref().is_some_and(Reduced::is_offered) {
            self.saved = Some(write(dir, format!("{name}.toml"), &self.toml)?);
        }
        if let Some(inevitability) = &self.inevitability {
            write(dir, format!("{name}-exact.toml"), &inevitability.toml)?;
            write(dir, format!("{name}-inevitable.txt"), &inevitability.text(&self.violation(), self.seed))?;
        }
        Ok(())
    }
}

fn write(dir: &Path, name: String, text: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    // All at once: `merge` must not find half of it.
    RunDir::at(dir).write(&path, text)?;
    Ok(path)
}

/// Makes a name such as `lock-stale-holder-pause-17`. Causes that explain a violation only together are joined by `-`,
/// and other sets of causes by `-or-`, so that no two classes have one name.
fn file_name(class: &Class, seed: u64) -> String {
    let words = format!("{class} {seed}").replace(", ", " or ");
    words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests;
