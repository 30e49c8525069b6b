//! `harness suite`: runs a plan for each claim, and compares the verdicts with the expectation.
//!
//! A case is as expected only if the history contains its activation witnesses: a run in which the claimed situation
//! never occurred says nothing, whatever its verdicts are.

mod evidence;
mod field;
mod file;
mod suite_record;
mod table;
mod witness;

use std::time::Instant;

use anyhow::Context;
use checker::{CauseSet, Checker, Property, Verdict, Verdicts, joined};
use compose::Engine;
use history::{ClusterKind, Record, Tail};
use tokio::runtime::Runtime;

use crate::{
    cli::{Format, SuiteArgs},
    exit::Exit,
    expect::compare,
    plan_file::PlanFile,
    report::{print, versions},
    runner::{Runner, runtime},
};

use evidence::Evidence;
use file::Case;
#[cfg(fuzzing)]
pub use file::parse;
pub use suite_record::{CaseRun, Outcome};
use suite_record::{SuiteRecord, fingerprint};

/// `harness suite`
pub fn suite(args: &SuiteArgs) -> anyhow::Result<Exit> {
    let cluster = args.cluster;
    let cases = file::read(&args.suite, cluster, &args.only)?;
    let runtime = runtime()?;
    if cluster == ClusterKind::Docker {
        // A broken engine must not give a verdict.
        runtime.block_on(Engine::connect())?;
    }
    let mut state = SuiteRecord::open(&args.runs, &args.suite, cluster, args.resume)?;
    let runner = CaseRunner { args, cluster, runtime: &runtime };
    let times = args.repeat.get();
    for n in 0..times {
        for case in &cases {
            let print_of = fingerprint(case)?;
            if state.has(&case.name, n, &print_of) {
                continue;
            }
            let done = runner.one(case, n).with_context(|| format!("{}, run {} of {times}", case.name, n + 1))?;
            if args.format == Format::Text {
                print(&table::line(case, &done))?;
            }
            state.add(done)?;
        }
    }
    let (table, exit) = table::table(&cases, &state, times);
    match args.format {
        Format::Text => print(&table)?,
        Format::Json => print(&(serde_json::to_string_pretty(&state.of(&cases, times))? + "\n"))?,
    }
    Ok(exit)
}

/// Runs the cases of a suite.
struct CaseRunner<'a> {
    args: &'a SuiteArgs,
    cluster: ClusterKind,
    runtime: &'a Runtime,
}

impl CaseRunner<'_> {
    /// Runs a case once, with its own seed.
    fn one(&self, case: &Case, n: u32) -> anyhow::Result<CaseRun> {
        let mut file = case.file.clone().ready()?;
        file.plan.seed += u64::from(n);
        #[expect(clippy::disallowed_methods, reason = "the time that a person waited; orders nothing")]
        let began = Instant::now();
        let mut done = match self.cluster {
            ClusterKind::Docker => self.recorded(case, &file)?,
            ClusterKind::Sim => self.simulated(case, &file)?,
        };
        (done.n, done.took_s) = (n, began.elapsed().as_secs_f64());
        done.fingerprint = fingerprint(case)?;
        Ok(done)
    }

    fn runner(&self) -> Runner {
        Runner::new(self.args.runs.clone())
    }

    fn recorded(&self, case: &Case, file: &PlanFile) -> anyhow::Result<CaseRun> {
        let (dir, judged) = self.runner().run(file, self.runtime)?;
        let records = history::Reader::open(&dir.history())?.collect::<Result<Vec<Record>, _>>()?;
        let done = judge(case, file, &records, &judged.verdicts, versions(&judged.servers));
        crate::command::save(judged, case.expectation.as_ref().map(|(e, _)| e), &dir)?;
        Ok(done)
    }

    /// Writes a simulated run only if it is not as expected: the same plan gives the same run again.
    fn simulated(&self, case: &Case, file: &PlanFile) -> anyhow::Result<CaseRun> {
        let (mut records, mut checker) = (Vec::new(), Checker::new());
        sim::simulate(&file.setup(), &mut |record| {
            checker.feed(record.clone());
            records.push(record);
        })?;
        let servers = records.iter().find_map(|record| match &record.event {
            history::Event::Ready { servers } => Some(versions(servers)),
            _ => None,
        });
        let mut done = judge(case, file, &records, &checker.finish(Tail::Whole), servers.unwrap_or_default());
        if done.outcome == Outcome::AsExpected {
            done.run = String::new();
        } else {
            let (dir, judged) = self.runner().run(file, self.runtime)?;
            crate::command::save(judged, case.expectation.as_ref().map(|(e, _)| e), &dir)?;
        }
        Ok(done)
    }
}

/// Judges a run of a row without an expectation. A fault alone may make two clients hold the lock, by windows that have
/// a cause. It may violate nothing else.
fn unexpected(verdicts: &Verdicts) -> (Vec<String>, Exit) {
    let is_explained = |property: &Property| match property {
        Property::Lock(lock) => !lock.windows.is_empty() && lock.unexplained == 0,
        _ => false,
    };
    let violated = verdicts.properties.iter().filter(|(_, property)| property.verdict() == Verdict::Violated);
    let misses = violated
        .filter(|(_, property)| !is_explained(property))
        .map(|(name, _)| format!("expected {name}=upheld, found violated"));
    let misses: Vec<String> = misses.collect();
    let exit = if misses.is_empty() { Exit::Ok } else { Exit::Violated };
    (misses, exit)
}

/// Judges a run of a case.
fn judge(case: &Case, file: &PlanFile, records: &[Record], verdicts: &Verdicts, servers: String) -> CaseRun {
    let evidence = Evidence::of(&file.plan, records.iter());
    let missing: Vec<String> =
        case.witnesses.iter().filter(|w| !evidence.has(w, verdicts)).map(ToString::to_string).collect();
    let (mut misses, exit) = match &case.expectation {
        Some((expectation, _)) => {
            let compared = compare(Some(expectation), verdicts);
            (compared.misses, compared.exit)
        }
        None => unexpected(verdicts),
    };
    let found: Vec<&[CauseSet]> =
        verdicts.lock().iter().flat_map(|l| &l.windows).map(|w| w.causes.as_slice()).collect();
    if let Some(causes) = &case.causes
        && let Some(other) = found.iter().find(|found| *found != causes)
    {
        misses.push(format!("expected the cause {}, found {}", joined(causes, " and "), joined(*other, " and ")));
    }
    let is_known = case.is_about(&servers, file.plan.cluster);
    let outcome = match (missing.is_empty() && is_known, misses.is_empty() && exit == Exit::Ok) {
        (true, true) => Outcome::AsExpected,
        (true, false) if exit != Exit::Inconclusive => Outcome::NotAsExpected,
        _ => Outcome::Inconclusive,
    };
    if !is_known {
        misses.push(format!("expected {}, this is {servers}", case.holds_for.join(" or ")));
    }
    CaseRun {
        case: case.name.clone(),
        build: String::new(),
        n: 0,
        seed: file.plan.seed,
        fingerprint: String::new(),
        outcome,
        missing,
        misses,
        seen: table::figures(verdicts),
        servers,
        run: file.run.clone(),
        took_s: 0.0,
    }
}
