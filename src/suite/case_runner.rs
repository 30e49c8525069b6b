//! Makes the runs of a suite, each with its own seed. A run that the harness could not make is tried once more.

use std::{path::PathBuf, time::Instant};

use checker::Checker;
use history::{ClusterKind, Record, Tail};

use super::{
    facts::RunFacts,
    file::Case,
    judgement::judge,
    results::{CaseRun, Outcome},
};
use crate::{
    exit::Exit,
    judge::Judged,
    made_by,
    plan_file::PlanFile,
    report::{Terminal, TestCase, TestResult, versions},
    run_dir::RunDir,
    runner::{Runner, Runtime},
};

/// The number of tries for each run. An engine may hiccup once; what fails twice needs a look.
const TRIES: usize = 2;

/// Runs the cases of a suite.
pub struct CaseRunner<'a> {
    /// The directory of the run directories.
    pub runs: PathBuf,
    /// The cluster of every run.
    pub cluster: ClusterKind,
    /// For the engine.
    pub runtime: &'a Runtime,
    /// For the error of a first try.
    pub terminal: &'a Terminal,
}

impl CaseRunner<'_> {
    /// Makes run `n` of a case, with its own seed.
    ///
    /// # Errors
    /// The user interrupted, or the plan cannot be used. Other errors are the outcome of the run.
    pub fn one(&self, case: &Case, n: u32) -> anyhow::Result<CaseRun> {
        #[expect(clippy::disallowed_methods, reason = "the time that a person waited; orders nothing")]
        let began = Instant::now();
        let again = |error: &str| {
            self.terminal.progress(&format!("{}, run {}: {error}; second try", case.name, n + 1));
        };
        let (done, errors) = tried(|| self.attempt(case, n), || self.runtime.is_interrupted(), again)?;
        let done = match done {
            Some(done) => done,
            None => failed(case, n, &errors)?,
        };
        Ok(CaseRun { n, errors, took_s: began.elapsed().as_secs_f64(), ..done })
    }

    /// Judges a run again that another build of the harness made. None if its history is not there any more, or cannot
    /// be read.
    pub fn again(&self, case: &Case, recorded: &CaseRun) -> anyhow::Result<Option<CaseRun>> {
        let dir = RunDir::at(&self.runs.join(&recorded.run));
        if recorded.run.is_empty() || !dir.history().is_file() {
            return Ok(None);
        }
        let Ok(mut judged) = crate::judge::judge(&dir.history()) else { return Ok(None) };
        judged.made_by = made_by::read(&dir, judged.made_by.as_ref()).or(judged.made_by);
        let file = PlanFile { run: recorded.run.clone(), plan: judged.plan.clone(), ..case.file.clone() };
        let done = self.judged(case, &file, judged, &dir)?;
        Ok(Some(CaseRun { n: recorded.n, errors: recorded.errors.clone(), took_s: recorded.took_s, ..done }))
    }

    fn attempt(&self, case: &Case, n: u32) -> anyhow::Result<CaseRun> {
        let mut file = case.file.clone().ready()?;
        file.plan.seed += u64::from(n);
        match self.cluster {
            ClusterKind::Docker => self.recorded(case, &file),
            ClusterKind::Sim => self.simulated(case, &file),
        }
    }

    fn runner(&self) -> Runner {
        Runner::new(self.runs.clone())
    }

    fn recorded(&self, case: &Case, file: &PlanFile) -> anyhow::Result<CaseRun> {
        let (dir, judged) = self.runner().run(file, self.runtime)?;
        self.judged(case, file, judged, &dir)
    }

    fn judged(&self, case: &Case, file: &PlanFile, judged: Judged, dir: &RunDir) -> anyhow::Result<CaseRun> {
        let records = history::Reader::open(&dir.history())?.collect::<Result<Vec<Record>, _>>()?;
        let made_by = judged.made_by.as_ref();
        let done = judge(case, file, &records, &judged.verdicts, made_by, versions(&judged.servers))?;
        crate::command::save(judged, case.expectation.as_ref().map(|(e, _)| e), dir)?;
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
        let verdicts = checker.finish(Tail::Whole);
        let mut done = judge(case, file, &records, &verdicts, None, servers.unwrap_or_default())?;
        if done.outcome == Outcome::AsExpected {
            done.run = String::new();
        } else {
            let (dir, judged) = self.runner().run(file, self.runtime)?;
            crate::command::save(judged, case.expectation.as_ref().map(|(e, _)| e), &dir)?;
        }
        Ok(done)
    }
}

/// Tries to make a run. Returns the run, or none if no try has made the run, and the errors of the failed tries. After
/// a signal there is no second try, because the user wants no more runs.
///
/// # Errors
/// The user interrupted, or the plan cannot be used.
fn tried<T>(
    mut attempt: impl FnMut() -> anyhow::Result<T>,
    is_interrupted: impl Fn() -> bool,
    again: impl Fn(&str),
) -> anyhow::Result<(Option<T>, Vec<String>)> {
    let mut errors = Vec::new();
    loop {
        let error = match attempt() {
            Ok(done) => return Ok((Some(done), errors)),
            Err(error) if Exit::of(&error) != Exit::Failed || is_interrupted() => return Err(error),
            Err(error) => format!("{error:#}"),
        };
        errors.push(error.clone());
        if errors.len() == TRIES {
            return Ok((None, errors));
        }
        again(&error);
    }
}

/// Returns the record of a run that the harness could not make.
fn failed(case: &Case, n: u32, errors: &[String]) -> anyhow::Result<CaseRun> {
    Ok(CaseRun {
        case: case.name.clone(),
        n,
        seed: case.file.plan.seed + u64::from(n),
        fingerprint: case.fingerprint()?,
        outcome: Outcome::Infrastructure,
        missing: Vec::new(),
        misses: Vec::new(),
        errors: Vec::new(),
        seen: "the harness could not make the run".to_owned(),
        servers: String::new(),
        run: String::new(),
        took_s: 0.0,
        facts: RunFacts::default(),
        tests: vec![TestCase::new("run", TestResult::Error, errors.to_vec())],
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn after_a_signal_no_second_try_is_made() {
        // The number of the try during which the signal comes, and the number of tries.
        for (signal, expected) in [(1, 1), (2, 2), (3, 2)] {
            let tries = Cell::new(0);
            let attempt = || -> anyhow::Result<()> {
                tries.set(tries.get() + 1);
                Err(anyhow!("interrupted; not everything could be removed"))
            };
            let ended = tried(attempt, || tries.get() >= signal, |_| ());
            assert_eq!((tries.get(), ended.is_err()), (expected, signal <= expected));
        }
    }
}
