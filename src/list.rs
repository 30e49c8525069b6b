//! `harness list`: everything that a run can have, or the recorded runs.

use std::{cmp::Reverse, path::Path};

use history::{ClusterKind, FaultKind};
use serde::Serialize;
use serde_json::{Value, json};
use workloads::backend::Backend;

use crate::{
    cli::{Format, ListArgs},
    exit::{Exit, Unusable, usage},
    plan_file::PlanFile,
    report::print,
    run_dir::RunDir,
    similar::similar,
};

/// Stands for the faults of a run without faults.
const NO_FAULTS: &str = "none";
/// Stands for the verdict of a run that was not judged.
const NOT_JUDGED: &str = "not-judged";

/// `harness list`
pub fn list(args: &ListArgs) -> anyhow::Result<Exit> {
    if let Some(backend) = &args.backend {
        Backend::named(backend).map_err(|e| usage("backend", e))?;
    }
    if let Some(kind) = &args.nemesis {
        let known = || FaultKind::ALL.map(FaultKind::name).into_iter().chain([NO_FAULTS]);
        if !known().any(|name| name == kind) {
            let near = similar(kind, known());
            return Err(usage("nemesis", format!("`{kind}` is no kind of fault; `harness list` shows them{near}")));
        }
    }
    match &args.runs {
        Some(runs) => list_runs(runs, args),
        None if args.has_filter() => Err(usage("runs", "filters choose among recorded runs: add --runs")),
        None => list_possible(args.format),
    }
}

fn list_possible(format: Format) -> anyhow::Result<Exit> {
    use compose::{BUILTIN, ComposeFile};
    use history::{Arm, Point};
    let faults = FaultKind::ALL.map(FaultKind::name);
    let points = Point::ALL.map(Point::name);
    let arms = Arm::ALL.map(Arm::name);
    let built = |(name, _): &(&'static str, _)| Ok((*name, ComposeFile::builtin(name)?));
    let backends = BUILTIN.iter().map(built).collect::<anyhow::Result<Vec<_>>>()?;
    if format == Format::Json {
        let about =
            |(name, file): (&str, ComposeFile)| json!({"name": name, "about": file.about, "tokens": file.facts.tokens});
        let backends: Vec<_> = backends.into_iter().map(about).collect();
        let all = json!({"backends": backends, "faults": faults, "points": points, "arms": arms});
        print(&format!("{all}\n"))?;
        return Ok(Exit::Ok);
    }
    let mut text = "backends\n".to_owned();
    for (name, file) in backends {
        let tokens: Vec<_> = file.facts.tokens.iter().map(ToString::to_string).collect();
        text += &format!("  {name:<16} {} (tokens: {})\n", file.about, tokens.join(", "));
    }
    text += "faults\n";
    for fault in FaultKind::ALL {
        text += &format!("  {fault:<16} {}\n", fault.about().summary);
    }
    text += &format!("points     {}\n", points.join(", "));
    text += &format!("arms       {}\n", arms.join(", "));
    print(&text)?;
    Ok(Exit::Ok)
}

/// One recorded run, as far as its files can be read.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Listed {
    /// The name of its directory.
    run: String,
    /// Start of the run: date and time in UTC, RFC 3339. None for a directory with another name.
    started: Option<String>,
    backend: Option<String>,
    /// The kinds of faults, each once, sorted; `none` without faults.
    nemesis: Option<Vec<String>>,
    cluster: Option<ClusterKind>,
    seed: Option<u64>,
    /// Number of double-holder windows.
    windows: Option<u64>,
    /// `upheld`, `violated` or `inconclusive`. None if the run was not judged.
    verdict: Option<String>,
    /// True if the run came out as expected. None without an expectation.
    as_expected: Option<bool>,
}

impl Listed {
    fn read(dir: &RunDir, run: String) -> Listed {
        let plan = PlanFile::read(&dir.plan()).ok();
        let verdict = std::fs::read_to_string(dir.verdict()).ok();
        let verdict: Value = verdict.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let nemesis = plan.as_ref().map(|file| {
            let mut kinds: Vec<String> = file.plan.schedule.iter().map(|step| step.fault.kind().to_string()).collect();
            kinds.sort();
            kinds.dedup();
            if kinds.is_empty() { vec![NO_FAULTS.to_owned()] } else { kinds }
        });
        Listed {
            started: started(&run),
            run,
            nemesis,
            backend: plan.as_ref().map(|file| file.backend.clone()),
            cluster: plan.as_ref().map(|file| file.plan.cluster),
            seed: plan.as_ref().map(|file| file.plan.seed),
            windows: verdict["properties"]["lock"]["windows"].as_array().map(|windows| windows.len() as u64),
            verdict: verdict["verdict"].as_str().map(str::to_owned),
            as_expected: verdict["as_expected"].as_bool(),
        }
    }

    fn row(&self) -> [String; 9] {
        let or = |text: Option<String>, other: &str| text.unwrap_or_else(|| other.to_owned());
        let started = self.started.as_ref().map(|text| text.replace('T', " ").replace('Z', ""));
        [
            or(started, "?"),
            or(self.backend.clone(), "?"),
            or(self.nemesis.as_ref().map(|kinds| kinds.join(",")), "?"),
            or(self.cluster.map(|cluster| cluster.name().to_owned()), "?"),
            or(self.seed.map(|seed| seed.to_string()), "?"),
            or(self.windows.map(|windows| windows.to_string()), "–"),
            or(self.verdict.clone(), NOT_JUDGED),
            match self.as_expected {
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None => "–".to_owned(),
            },
            self.run.clone(),
        ]
    }

    fn passes(&self, args: &ListArgs) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|it| Some(it) == found);
        let has = |kind: &String| self.nemesis.as_ref().is_some_and(|kinds| kinds.contains(kind));
        is(&args.backend, self.backend.as_deref())
            && is(&args.verdict, Some(self.verdict.as_deref().unwrap_or(NOT_JUDGED)))
            && args.nemesis.as_ref().is_none_or(has)
            && args.cluster.is_none_or(|cluster| Some(cluster) == self.cluster)
            && !(args.unexpected && self.as_expected != Some(false))
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

const HEAD: [&str; 9] =
    ["started (UTC)", "backend", "nemesis", "cluster", "seed", "windows", "verdict", "as expected", "run"];

fn list_runs(runs: &Path, args: &ListArgs) -> anyhow::Result<Exit> {
    let entries = std::fs::read_dir(runs).map_err(|e| Unusable(format!("{}: {e}", runs.display())))?;
    let mut all: Vec<Listed> = entries
        .flatten()
        .filter(|entry| entry.path().join("plan.toml").is_file() && !entry.path().is_symlink())
        .map(|entry| Listed::read(&RunDir::at(&entry.path()), entry.file_name().to_string_lossy().into_owned()))
        .filter(|listed| listed.passes(args))
        .collect();
    all.sort_by(|one, other| Reverse(&one.run).cmp(&Reverse(&other.run)));
    all.truncate(args.last.unwrap_or(usize::MAX));
    match args.format {
        Format::Json => {
            let lines = all.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
            print(&lines.into_iter().map(|line| line + "\n").collect::<String>())?;
        }
        Format::Text => print(&table(&all))?,
    }
    Ok(Exit::Ok)
}

/// Returns the runs as aligned columns under a head.
fn table(all: &[Listed]) -> String {
    let rows: Vec<[String; 9]> = std::iter::once(HEAD.map(str::to_owned)).chain(all.iter().map(Listed::row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
