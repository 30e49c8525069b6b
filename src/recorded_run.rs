//! The recorded runs of a directory, as far as their files can be read.

use std::{cmp::Reverse, path::Path};

use history::{ClusterKind, Plan};
use serde::Serialize;
use serde_json::Value;

use crate::{
    compare::scenario::{name, without_seed},
    exit::Unusable,
    plan_file::PlanFile,
    run_dir::RunDir,
};

/// Stands for the faults of a run without faults.
pub const NO_FAULTS: &str = "none";

/// One recorded run, as far as its files can be read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecordedRun {
    /// The name of its directory.
    pub run: String,
    /// Start of the run: date and time in UTC, RFC 3339. None for a directory with another name.
    pub started: Option<String>,
    /// The lock.
    pub backend: Option<String>,
    /// The scenario: the heading of its report without what is drawn from the seed.
    pub scenario: Option<String>,
    /// The plan of the scenario, without its seed. Runs with equal plans are runs of one scenario.
    #[serde(skip)]
    pub plan: Option<Plan>,
    /// The kinds of faults, each once, sorted; `none` without faults.
    pub nemesis: Option<Vec<String>>,
    /// The cluster.
    pub cluster: Option<ClusterKind>,
    /// The seed.
    pub seed: Option<u64>,
    /// Number of double-holder windows.
    pub windows: Option<u64>,
    /// `upheld`, `violated` or `inconclusive`. None if the run was not judged.
    pub verdict: Option<String>,
    /// True if the run came out as expected. None without an expectation.
    pub as_expected: Option<bool>,
}

impl RecordedRun {
    /// Reads the run in the directory `run` of `runs`.
    pub fn read(runs: &Path, run: &str) -> RecordedRun {
        let dir = RunDir::at(&runs.join(run));
        let plan = PlanFile::recorded(&dir.plan()).ok();
        let verdict = std::fs::read_to_string(dir.verdict()).ok();
        let verdict: Value = verdict.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let nemesis = plan.as_ref().map(|file| {
            let mut kinds: Vec<String> = file.plan.schedule.iter().map(|step| step.fault.kind().to_string()).collect();
            kinds.sort();
            kinds.dedup();
            if kinds.is_empty() { vec![NO_FAULTS.to_owned()] } else { kinds }
        });
        // The plan names the correct lock also if the run planted a bug.
        let scenario = plan.as_ref().map(PlanFile::named_plan);
        RecordedRun {
            started: started(run),
            run: run.to_owned(),
            scenario: scenario.as_ref().map(name),
            plan: scenario.as_ref().map(without_seed),
            nemesis,
            backend: plan.as_ref().map(|file| file.backend.clone()),
            cluster: plan.as_ref().map(|file| file.plan.cluster),
            seed: plan.as_ref().map(|file| file.plan.seed),
            windows: verdict["properties"]["lock"]["windows"].as_array().map(|windows| windows.len() as u64),
            verdict: verdict["verdict"].as_str().map(str::to_owned),
            as_expected: verdict["as_expected"].as_bool(),
        }
    }
}

/// Returns the time in the name of a run's directory (`20261123t143439-redlock-none-b2665ea8`), in RFC 3339.
fn started(run: &str) -> Option<String> {
    let (date, time) = run.split('-').next()?.split_once('t')?;
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(date, 8) || !digits(time, 6) {
        return None;
    }
    let (year, month, day) = (&date[..4], &date[4..6], &date[6..]);
    let (hour, minute, second) = (&time[..2], &time[2..4], &time[4..]);
    Some(format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"))
}

/// Returns the names of the recorded runs of a directory, the newest first. Links, such as `latest`, are none.
///
/// # Errors
/// The directory cannot be read.
pub fn recorded_runs(runs: &Path) -> Result<Vec<String>, Unusable> {
    let entries = std::fs::read_dir(runs).map_err(|e| Unusable(format!("{}: {e}", runs.display())))?;
    let is_run = |entry: &std::fs::DirEntry| entry.path().join("plan.toml").is_file() && !entry.path().is_symlink();
    let names = entries.flatten().filter(is_run).map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort_by(|one, other| Reverse(one).cmp(&Reverse(other)));
    Ok(names)
}
