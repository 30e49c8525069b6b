//! The commands run, check, clean and list.

use std::{collections::BTreeMap, fs::DirEntry, path::Path};

use anyhow::Context;
use compose::Engine;
use history::ClusterKind;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    cli::{CheckArgs, CleanArgs, ClusterArg, Format, ListArgs, RunArgs},
    exit::{Exit, Unusable},
    expect::{Comparison, Expectation, compare},
    explore::finding::{Class, classes},
    judge::{Judged, judge},
    report::{heading, print, summary, versions},
    run_dir::RunDir,
    runner::{Runner, runtime},
    scenario,
};

fn expectation(text: Option<&str>) -> anyhow::Result<Option<Expectation>> {
    Ok(text.map(str::parse).transpose()?)
}

/// `harness run`
pub fn run(args: RunArgs) -> anyhow::Result<Exit> {
    let expectation = expectation(args.expect.as_deref())?;
    let runtime = runtime()?;
    let cluster = scenario::cluster(&args, || runtime.block_on(Engine::connect()).is_ok())?;
    if let Some(times) = args.repeat {
        return repeat(&args, cluster, &runtime, expectation.as_ref(), times.get());
    }
    let (dir, judged) = once(&args, cluster, &runtime)?;
    report(judged, expectation.as_ref(), args.format, Some(&dir))
}

fn once(args: &RunArgs, cluster: ClusterKind, runtime: &Runtime) -> anyhow::Result<(RunDir, Judged)> {
    let runner = Runner {
        runs: args.runs.clone(),
        keep: args.keep,
        prints_heading: args.format == Format::Text && args.repeat.is_none(),
        says_simulated: args.cluster != Some(ClusterArg::Sim) && args.plan.is_none(),
    };
    runner.run(&scenario::resolve(args, cluster)?, runtime)
}

/// `harness run PLAN --repeat N`: makes N runs, and counts the expected or violated ones.
fn repeat(
    args: &RunArgs,
    cluster: ClusterKind,
    runtime: &Runtime,
    expectation: Option<&Expectation>,
    times: u32,
) -> anyhow::Result<Exit> {
    let (mut count, mut found) = (0, BTreeMap::<Class, u32>::new());
    for n in 1..=times {
        let (dir, mut judged) = once(args, cluster, runtime).with_context(|| format!("run {n} of {times}"))?;
        let (compared, ..) = reports(&mut judged, expectation, Some(&dir))?;
        let verdict = judged.verdicts.verdict;
        count += u32::from(compared.as_expected.unwrap_or(verdict == checker::Verdict::Violated));
        classes(&judged.verdicts).into_iter().for_each(|class| *found.entry(class).or_default() += 1);
        let as_expected = match compared.as_expected {
            Some(true) => "as expected",
            Some(false) => "NOT as expected",
            None => "",
        };
        let run = dir.path().display().to_string();
        print(&match args.format {
            Format::Text => format!("{n:>4}  {verdict:<13} {as_expected:<16} {run}\n"),
            Format::Json => {
                format!("{}\n", json!({"run": run, "verdict": verdict, "as_expected": compared.as_expected}))
            }
        });
    }
    if args.format == Format::Text {
        // Violated runs may be violated in different ways.
        found.iter().for_each(|(class, count)| print(&format!("      {class}: {count} of {times}\n")));
    }
    let what = if expectation.is_some() { "came out as expected" } else { "were violated" };
    print(&match args.format {
        Format::Text => format!("{count} of {times} runs {what}\n"),
        Format::Json => format!("{}\n", json!({"runs": times, "count": count})),
    });
    Ok(if count == times { Exit::Ok } else { Exit::Violated })
}

/// Prints the report of a run, and writes it into the run directory if there is one. A run that has just ended and an
/// old run get the same report.
fn report(
    mut judged: Judged,
    expectation: Option<&Expectation>,
    format: Format,
    dir: Option<&RunDir>,
) -> anyhow::Result<Exit> {
    let (compared, json, text) = reports(&mut judged, expectation, dir)?;
    match format {
        Format::Text => print(&text),
        Format::Json => print(&(json + "\n")),
    }
    Ok(compared.exit)
}

/// Compares a run with its expectation, and writes its reports into its directory.
pub fn save(mut judged: Judged, expectation: Option<&Expectation>, dir: &RunDir) -> anyhow::Result<()> {
    reports(&mut judged, expectation, Some(dir)).map(drop)
}

/// Compares a run with its expectation, and writes its reports. Returns the comparison, the JSON and the text.
fn reports(
    judged: &mut Judged,
    expectation: Option<&Expectation>,
    dir: Option<&RunDir>,
) -> anyhow::Result<(Comparison, String, String)> {
    let compared = compare(expectation, &judged.verdicts);
    judged.verdicts.as_expected = compared.as_expected;
    let json = serde_json::to_string_pretty(&judged.verdicts).context("writing the verdicts as JSON")?;
    let text = summary(judged, &compared);
    if let Some(dir) = dir {
        dir.write(&dir.verdict(), json.clone() + "\n")?;
        let heading = heading(&judged.plan, &versions(&judged.servers), dir.path());
        dir.write(&dir.report(), format!("```\n{heading}\n{text}```\n"))?;
    }
    Ok((compared, json, text))
}

/// `harness check`
pub fn check(args: &CheckArgs) -> anyhow::Result<Exit> {
    let expectation = expectation(args.expect.as_deref())?;
    let unusable = |problem: &str| Unusable(format!("{}: {problem}", args.run.display()));
    if !args.run.exists() {
        return Err(unusable("no such run; `harness list --runs` shows the runs").into());
    }
    let dir = args.run.is_dir().then(|| RunDir::at(&args.run));
    let history = dir.as_ref().map_or_else(|| args.run.clone(), RunDir::history);
    if !history.exists() {
        return Err(unusable("no history.jsonl and no history.jsonl.zst in it; expected a run directory").into());
    }
    let judged = judge(&history)?;
    if args.format == Format::Text {
        print(&(heading(&judged.plan, &versions(&judged.servers), &args.run) + "\n"));
    }
    report(judged, expectation.as_ref(), args.format, dir.as_ref())
}

/// `harness clean`
pub fn clean(args: &CleanArgs) -> anyhow::Result<Exit> {
    runtime()?.block_on(async {
        let engine = Engine::connect().await?;
        let mut swept = compose::sweep(&engine).await?;
        if args.kept {
            let kept = compose::clean_kept(&engine, None).await?;
            swept.containers += kept.containers;
            swept.networks += kept.networks;
            swept.volumes += kept.volumes;
            swept.runs.extend(kept.runs);
            swept.stuck.extend(kept.stuck);
        }
        let (containers, networks, volumes, runs) = (swept.containers, swept.networks, swept.volumes, swept.runs.len());
        print(&format!("removed {containers} containers, {networks} networks, {volumes} volumes of {runs} runs\n"));
        if !swept.stuck.is_empty() {
            let stuck = swept.stuck.join(", ");
            let why = "the engine still counts endpoints of these empty networks, and keeps them until it restarts";
            print(&format!("{why}: {stuck}\n"));
        }
        Ok(Exit::Ok)
    })
}

/// `harness list`
pub fn list(args: &ListArgs) -> anyhow::Result<Exit> {
    match &args.runs {
        Some(runs) => list_runs(runs, args.format),
        None => list_possible(args.format),
    }
}

fn list_possible(format: Format) -> anyhow::Result<Exit> {
    use compose::{BUILTIN, ComposeFile};
    use history::{Arm, FaultKind, Point};
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
        print(&format!("{all}\n"));
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
    print(&text);
    Ok(Exit::Ok)
}

fn list_runs(runs: &Path, format: Format) -> anyhow::Result<Exit> {
    let entries = std::fs::read_dir(runs).map_err(|e| Unusable(format!("{}: {e}", runs.display())))?;
    let is_run = |entry: &DirEntry| entry.path().join("plan.toml").is_file() && !entry.path().is_symlink();
    let mut entries: Vec<_> = entries.flatten().filter(is_run).collect();
    entries.sort_by_key(DirEntry::file_name);
    for entry in entries {
        let verdict = std::fs::read_to_string(RunDir::at(&entry.path()).verdict()).ok();
        let verdict = verdict.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
        let verdict = verdict.as_ref().and_then(|v| v["verdict"].as_str()).unwrap_or("not judged");
        let name = entry.file_name().to_string_lossy().into_owned();
        match format {
            Format::Json => print(&format!("{}\n", json!({"run": name, "verdict": verdict}))),
            Format::Text => print(&format!("{name:<48} {verdict}\n")),
        }
    }
    Ok(Exit::Ok)
}
