//! `harness suite`: runs a plan for each claim, and compares the verdicts with the expectation.
//!
//! A case is as expected only if the history contains its activation witnesses: a run in which the claimed situation
//! never occurred says nothing, whatever its verdicts are.

mod case_runner;
mod counts;
mod evidence;
mod facts;
mod field;
mod file;
#[cfg(test)]
pub(crate) mod fixtures;
mod github;
mod judgement;
mod junit_file;
mod merge;
mod output;
mod progress;
mod results;
mod rows;
#[cfg(test)]
mod shipped;
mod suite_record;
mod table;
mod witness;

use std::collections::BTreeSet;

use anyhow::Context;
use compose::Engine;
use history::{ClusterKind, Plan};

use crate::{
    cli::{Format, SuiteArgs},
    exit::{Exit, usage},
    fingerprint,
    report::{Terminal, print},
    runner::runtime,
};

use case_runner::CaseRunner;
use file::Suite;
#[cfg(fuzzing)]
pub use file::parse;
pub use file::{Case, read as read_suite};
pub use merge::{is_results, merge};
use output::Output;
use progress::Progress;
pub use results::{CaseRun, Outcome, Results};
use results::{Head, RowFacts};
use suite_record::{EarlierRecord, SuiteRecord, lock};

/// `harness suite`
pub fn suite(args: &SuiteArgs) -> anyhow::Result<Exit> {
    let cluster = args.cluster;
    let suites = file::read(&args.suites, cluster, &args.only)?;
    seeds_fit(&suites, args.repeat.get())?;
    let mut output = Output::new(args.format, args.junit.clone())?;
    // Held as long as the suites run.
    let _lock = lock(&args.runs)?;
    // Not before: the file may be that of the suite that has the lock. Not later: without an engine, no file is left.
    output.clear()?;
    let runtime = runtime()?;
    if cluster == ClusterKind::Docker {
        // A broken engine must not give a verdict.
        runtime.block_on(Engine::connect())?;
    }
    let terminal = Terminal::new(|_| String::new(), false);
    // All records are read before the first one is replaced.
    let earlier =
        suites.iter().enumerate().map(|(place, suite)| read(args, place, suite)).collect::<anyhow::Result<Vec<_>>>()?;
    let has_none = |of: &EarlierRecord| of.results().all().is_empty() && of.older().is_empty();
    if args.resume && earlier.iter().all(has_none) {
        terminal.progress(&format!("--resume: no runs are recorded in {}: the suite begins anew", args.runs.display()));
    }
    let runner = CaseRunner { runs: args.runs.clone(), cluster, runtime: &runtime, terminal: &terminal };
    let continued = suites.iter().zip(earlier).map(|(suite, earlier)| continued(suite, earlier, &runner));
    let mut records = continued.collect::<anyhow::Result<Vec<_>>>()?;
    let todo = todo(args, &suites, &records);
    if todo.is_empty() && records.iter().all(|record| record.results().planned() == 0) {
        terminal.progress(&format!("shard {} has no row: there are more shards than rows", args.shard.get()));
    }
    let mut progress = Progress::new(&todo.iter().map(|todo| todo.case.planned()).collect::<Vec<_>>());
    let mut printed = Ok(());
    for (made, &Todo { suite, case, n }) in todo.iter().enumerate() {
        let of = || format!("{}, run {} of {}", case.name, n + 1, args.repeat);
        let done = records[suite].with_earlier_tries(runner.one(case, n).with_context(of)?);
        let (line, progressed) = (table::line(&done), progress.add(&done, case.planned()));
        let is_red = matches!(done.outcome, Outcome::NotAsExpected | Outcome::Infrastructure);
        // Recorded first: a full output must not take the run with it.
        records[suite].add(done)?;
        if args.format == Format::Text {
            printed = print(&line);
        }
        // Nobody would see the other runs. The files still get those that were made.
        if printed.is_err() {
            break;
        }
        if let Some(line) = progressed {
            terminal.progress(&line);
        }
        let left = todo.len() - made - 1;
        if is_red && !args.keep_going && left > 0 {
            let (runs, them) = if left == 1 { ("run is", "it") } else { ("runs are", "them") };
            terminal.progress(&format!("{left} {runs} left out after this one; --keep-going makes {them} too"));
            break;
        }
    }
    let results: Vec<&Results> = records.iter().map(SuiteRecord::results).collect();
    let exit = output.write(&results)?;
    printed.map(|()| exit)
}

/// Refuses `count` seeds from `--seed` on of which no plan may have the last one.
///
/// # Errors
/// The seeds pass the largest seed of a plan.
pub fn can_be_seeds(first: u64, count: u64) -> anyhow::Result<()> {
    if first.saturating_add(count.saturating_sub(1)) <= Plan::SEED_MAX {
        return Ok(());
    }
    let problem = "pass 2^53, the largest seed of a plan; give a smaller first seed, or fewer --seeds";
    Err(usage("seed", format!("{count} seeds from {first} on {problem}")))
}

/// Refuses a row whose last run would have a seed that no plan may have.
fn seeds_fit(suites: &[Suite], repeat: u32) -> anyhow::Result<()> {
    let cases = suites.iter().flat_map(|suite| suite.cases.iter().map(move |case| (suite, case)));
    for (Suite { name, .. }, case) in cases {
        let seed = case.file.plan.seed;
        if seed.saturating_add(u64::from(repeat) - 1) > Plan::SEED_MAX {
            let row = format!("row {} of suite {name} has the seed {seed}", case.name);
            let problem = "its last run would pass 2^53, the largest seed; give the row a smaller `plan.seed`";
            return Err(usage("repeat", format!("{row}: {problem}")));
        }
    }
    Ok(())
}

/// Judges the runs of another build again, from their histories, and then replaces the record. A run without a history
/// is made again.
fn continued(suite: &Suite, earlier: EarlierRecord, runner: &CaseRunner<'_>) -> anyhow::Result<SuiteRecord> {
    let head = &earlier.results().head;
    let mut again: Vec<CaseRun> = Vec::new();
    for run in earlier.older() {
        // A row whose plan or expectation has changed has another fingerprint.
        let is_its_row = |row: &&RowFacts| row.case == run.case && row.fingerprint == run.fingerprint;
        let Some(row) = head.rows.iter().find(is_its_row) else { continue };
        let Some(case) = suite.cases.iter().find(|case| case.name == row.case) else { continue };
        again.extend(runner.again(case, run).with_context(|| format!("judging {} again", run.run))?);
    }
    if !earlier.older().is_empty() {
        let (all, judged) = (earlier.older().len(), again.len());
        runner.terminal.progress(&format!(
            "--resume: another build of the harness made {all} runs of {}: {judged} are judged again from their \
             histories, the others are made again",
            head.suite
        ));
    }
    earlier.replace(again)
}

fn read(args: &SuiteArgs, place: usize, suite: &Suite) -> anyhow::Result<EarlierRecord> {
    let head = Head::of(suite, place, args.cluster, &fingerprint::build()?, args.repeat.get(), args.shard.get())?;
    EarlierRecord::read(&args.runs, head, args.resume)
}

/// A run that is to be made.
struct Todo<'a> {
    /// The position of the suite.
    suite: usize,
    case: &'a Case,
    n: u32,
}

/// Returns the runs of the shard that are not recorded yet: the first run of every row, then the second runs.
fn todo<'a>(args: &SuiteArgs, suites: &'a [Suite], records: &[SuiteRecord]) -> Vec<Todo<'a>> {
    let mut todo = Vec::new();
    // By suite and row: the runs that are recorded.
    let recorded = |record: &SuiteRecord| -> Vec<BTreeSet<u32>> {
        record.results().head.rows.iter().map(|row| record.numbers_of(row)).collect()
    };
    let recorded: Vec<Vec<BTreeSet<u32>>> = records.iter().map(recorded).collect();
    for n in 0..args.repeat.get() {
        for (suite, (of, record)) in suites.iter().zip(records).enumerate() {
            let head = &record.results().head;
            let rows = of.cases.iter().zip(&head.rows).zip(&recorded[suite]);
            let open = rows.filter(|((_, row), recorded)| head.has(row) && !recorded.contains(&n));
            todo.extend(open.map(|((case, _), _)| Todo { suite, case, n }));
        }
    }
    todo
}
