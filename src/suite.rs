//! `harness suite`: claims, each tried by a plan of its own.
//!
//! A case comes out as expected only if its activation witness was seen: a run in which the thing that the claim is about never happened says
//! nothing, whatever its verdicts are.

mod done;
mod file;
mod seen;
mod table;
mod witness;

use std::time::Instant;

use anyhow::Context;
use checker::{Checker, Verdicts};
use compose::Engine;
use history::{ClusterKind, Record, Tail};
use tokio::runtime::Runtime;

use crate::{
    cli::{ClusterArg, Format, SuiteArgs},
    exit::{Exit, Unusable},
    expect::compare,
    record::{Recorder, runtime},
    report::{print, versions},
    scenario::{PlanFile, named},
};

pub use done::{Done, Outcome};
use done::{State, fingerprint};
use file::Case;
use seen::Seen;

/// `harness suite`
pub fn suite(args: &SuiteArgs) -> anyhow::Result<Exit> {
    let cluster = match args.cluster {
        ClusterArg::Docker => ClusterKind::Docker,
        ClusterArg::Sim => ClusterKind::Sim,
        ClusterArg::Auto => {
            let problem = "--cluster: a suite says where its verdicts come from: expected docker or sim";
            return Err(Unusable(problem.into()).into());
        }
    };
    let cases = file::read(&args.suite, cluster, &args.only)?;
    let runtime = runtime()?;
    if cluster == ClusterKind::Docker {
        // A broken engine is never a verdict.
        runtime.block_on(Engine::connect())?;
    }
    let mut state = State::open(&args.runs, &args.suite, cluster, args.resume)?;
    let runner = Runner { args, cluster, runtime: &runtime };
    let times = args.repeat.get();
    for n in 0..times {
        for case in &cases {
            let print_of = fingerprint(case)?;
            if state.has(&case.name, n, &print_of) {
                continue;
            }
            let done = runner.one(case, n).with_context(|| format!("{}, run {} of {times}", case.name, n + 1))?;
            if args.format == Format::Text {
                print(&table::line(case, &done));
            }
            state.add(done)?;
        }
    }
    let (table, exit) = table::table(&cases, &state, times);
    match args.format {
        Format::Text => print(&table),
        Format::Json => print(&(serde_json::to_string_pretty(&state.of(&cases, times))? + "\n")),
    }
    Ok(exit)
}

struct Runner<'a> {
    args: &'a SuiteArgs,
    cluster: ClusterKind,
    runtime: &'a Runtime,
}

impl Runner<'_> {
    /// One run of a case, with a seed of its own.
    fn one(&self, case: &Case, n: u32) -> anyhow::Result<Done> {
        let mut file = named(case.file.clone())?;
        file.plan.seed += u64::from(n);
        #[expect(clippy::disallowed_methods, reason = "how long a person waited; nothing is ordered by it")]
        let began = Instant::now();
        let mut done = match self.cluster {
            ClusterKind::Docker => self.recorded(case, &file)?,
            ClusterKind::Sim => self.simulated(case, &file)?,
        };
        (done.n, done.took_s) = (n, began.elapsed().as_secs_f64());
        done.fingerprint = fingerprint(case)?;
        Ok(done)
    }

    fn recorder(&self) -> Recorder {
        Recorder { runs: self.args.runs.clone(), keep: false, is_shown: false, is_instead: false }
    }

    fn recorded(&self, case: &Case, file: &PlanFile) -> anyhow::Result<Done> {
        let (dir, judged) = self.recorder().once(file, self.runtime)?;
        let records = history::Reader::open(&dir.history())?.collect::<Result<Vec<Record>, _>>()?;
        let done = judge(case, file, &records, &judged.verdicts, judged.versions.clone());
        crate::command::save(judged, case.expectation.as_ref().map(|(e, _)| e), &dir)?;
        Ok(done)
    }

    /// Nothing is written of a simulation but what did not come out as expected: the same plan is the same run again.
    fn simulated(&self, case: &Case, file: &PlanFile) -> anyhow::Result<Done> {
        let (mut records, mut checker) = (Vec::new(), Checker::new());
        let setup = sim::Setup {
            run: &file.run,
            plan: &file.plan,
            backend: &file.backend,
            resource_bug: file.resource_bug.as_deref(),
            with_truth: false,
        };
        sim::simulate(&setup, &mut |record| {
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
            let (dir, judged) = self.recorder().once(file, self.runtime)?;
            crate::command::save(judged, case.expectation.as_ref().map(|(e, _)| e), &dir)?;
        }
        Ok(done)
    }
}

/// What came of a run.
fn judge(case: &Case, file: &PlanFile, records: &[Record], verdicts: &Verdicts, servers: String) -> Done {
    let seen = Seen::of(&file.plan, records.iter());
    let missing: Vec<String> =
        case.witnesses.iter().filter(|w| !seen.has(w, verdicts)).map(ToString::to_string).collect();
    let (mut misses, exit) = match &case.expectation {
        Some((expectation, _)) => {
            let compared = compare(Some(expectation), verdicts);
            (compared.misses, compared.exit)
        }
        None => (Vec::new(), Exit::Ok),
    };
    let found: Vec<&[String]> = verdicts.lock().iter().flat_map(|l| &l.windows).map(|w| w.causes.as_slice()).collect();
    if let Some(causes) = &case.causes
        && let Some(other) = found.iter().find(|found| *found != causes)
    {
        misses.push(format!("expected the cause {}, found {}", causes.join(" and "), other.join(" and ")));
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
    Done {
        case: case.name.clone(),
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
