//! The commands run and clean.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context;
use checker::Verdicts;
use compose::{Engine, STARTING_S, YOUNG_S};
use history::MadeBy;
use serde::Serialize;
use serde_json::json;

use crate::{
    cli::{CleanArgs, Format, RunArgs},
    exit::Exit,
    expect::{Comparison, Expectation, compare},
    explore::finding::{Class, classes},
    judge::Judged,
    plan_file::PlanFile,
    report::{TestedRun, html, junit, markdown, print, summary, test_cases, title},
    run_dir::RunDir,
    runner::{self, Runner, Runtime, runtime},
    scenario::{self, Chosen},
    timeline,
};

/// Parses `--expect`.
pub fn expectation(text: Option<&str>) -> anyhow::Result<Option<Expectation>> {
    Ok(text.map(str::parse).transpose()?)
}

/// `harness run`
pub fn run(args: RunArgs) -> anyhow::Result<Exit> {
    let expectation = expectation(args.expect.as_deref())?;
    let runtime = runtime()?;
    let no_engine = || match runtime.block_on(Engine::connect()) {
        Ok(_) => Ok(None),
        Err(compose::Error::NoEngine { host, why }) => Ok(Some(format!("no Docker engine answers at {host} ({why})"))),
        // A simulation must not take the place of an engine that is there and does not work.
        Err(other) => Err(other.into()),
    };
    let Chosen { cluster, simulated } = scenario::cluster(&args, no_engine)?;
    let file = scenario::resolve(&args, cluster)?;
    if args.images_only {
        return images(&args, &file, &runtime);
    }
    expectation.iter().try_for_each(|expectation| expectation.check(&file.plan))?;
    if let Some(times) = args.repeat {
        return repeat(&args, Chosen { cluster, simulated }, &runtime, expectation.as_ref(), times.get());
    }
    let (dir, mut judged) = once(&args, &file, simulated, &runtime)?;
    let report = Report::of(&mut judged, expectation.as_ref())?;
    // Printed first: a full disk must not hide the verdicts. Written also if nothing can be printed.
    let printed = report.print(args.format);
    report.write(&judged, &dir)?;
    printed?;
    Ok(report.exit())
}

/// `harness run --images-only`
fn images(args: &RunArgs, file: &PlanFile, runtime: &Runtime) -> anyhow::Result<Exit> {
    let images = runner::images(file, runtime)?;
    print(&match args.format {
        Format::Text => images.iter().map(|(role, id)| format!("{role:<16} {id}\n")).collect(),
        Format::Json => format!("{}\n", json!({"images": images})),
    })?;
    Ok(Exit::Ok)
}

fn once(
    args: &RunArgs,
    file: &PlanFile,
    simulated: Option<String>,
    runtime: &Runtime,
) -> anyhow::Result<(RunDir, Judged)> {
    let runner = Runner {
        runs: args.runs.clone(),
        keep: args.keep,
        prints_heading: args.format == Format::Text && args.repeat.is_none(),
        simulated,
    };
    runner.run(file, runtime)
}

/// `harness run --repeat N`: makes N runs, and counts the expected or violated ones.
fn repeat(
    args: &RunArgs,
    Chosen { cluster, mut simulated }: Chosen,
    runtime: &Runtime,
    expectation: Option<&Expectation>,
    times: u32,
) -> anyhow::Result<Exit> {
    let (mut count, mut found) = (0, BTreeMap::<Class, u32>::new());
    let mut exit = Exit::Ok;
    for n in 1..=times {
        // Each run has its own id.
        let file = scenario::resolve(args, cluster)?;
        let done = once(args, &file, simulated.take(), runtime);
        let (dir, mut judged) = done.with_context(|| format!("run {n} of {times}"))?;
        let report = Report::of(&mut judged, expectation)?;
        report.write(&judged, &dir)?;
        exit = exit.worse(report.exit());
        let compared = report.compared;
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
        })?;
    }
    if args.format == Format::Text {
        // Violated runs may be violated in different ways.
        found.iter().try_for_each(|(class, count)| print(&format!("      {class}: {count} of {times}\n")))?;
    }
    let what = if expectation.is_some() { "came out as expected" } else { "were violated" };
    print(&match args.format {
        Format::Text => format!("{count} of {times} runs {what}\n"),
        Format::Json => format!("{}\n", json!({"runs": times, "count": count})),
    })?;
    Ok(exit)
}

/// The report of a run. A run that has just ended and an old run get the same report.
pub struct Report {
    compared: Comparison,
    json: String,
    text: String,
}

impl Report {
    /// Compares a run with its expectation.
    pub fn of(judged: &mut Judged, expectation: Option<&Expectation>) -> anyhow::Result<Report> {
        /// `verdict.json`
        #[derive(Serialize)]
        struct Written<'a> {
            #[serde(flatten)]
            verdicts: &'a Verdicts,
            /// The expectation, so that `harness check` can compare the run with it again.
            #[serde(skip_serializing_if = "Option::is_none")]
            expect: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            made_by: Option<&'a MadeBy>,
        }
        let compared = compare(expectation, &judged.verdicts);
        judged.verdicts.as_expected = compared.as_expected;
        let expect = expectation.map(Expectation::text);
        let written = Written { verdicts: &judged.verdicts, expect, made_by: judged.made_by.as_ref() };
        let json = serde_json::to_string_pretty(&written).context("writing the verdicts as JSON")?;
        let text = summary(judged, &compared);
        Ok(Report { compared, json, text })
    }

    /// Prints the report.
    pub fn print(&self, format: Format) -> anyhow::Result<()> {
        match format {
            Format::Text => print(&self.text),
            Format::Json => print(&format!("{}\n", self.json)),
        }
    }

    /// Writes the report into the run directory.
    pub fn write(&self, judged: &Judged, dir: &RunDir) -> anyhow::Result<()> {
        dir.write(&dir.verdict(), format!("{}\n", self.json))?;
        dir.write(&dir.report(), markdown(judged, &self.compared))?;
        dir.write(&dir.junit(), self.junit(judged)?)?;
        let timeline = timeline::read(&dir.history(), &judged.verdicts)?;
        dir.write(&dir.page(), html(judged, &self.compared, &timeline)?)
    }

    fn junit(&self, judged: &Judged) -> anyhow::Result<String> {
        let (verdicts, compared) = (&judged.verdicts, &self.compared);
        let cases = test_cases(verdicts, &compared.misses, compared.exit);
        let took = judged.made_by.as_ref().and_then(|made_by| made_by.took_ms).unwrap_or_default();
        let class = format!("{} ({})", title(&judged.plan), verdicts.cluster);
        let run = TestedRun { class, number: None, took: Duration::from_millis(took), cases: &cases };
        junit(&[(verdicts.run.clone(), vec![run])])
    }

    /// The exit code of the run.
    pub fn exit(&self) -> Exit {
        self.compared.exit
    }
}

/// Compares a run with its expectation, and writes its report into its directory.
pub fn save(mut judged: Judged, expectation: Option<&Expectation>, dir: &RunDir) -> anyhow::Result<()> {
    Report::of(&mut judged, expectation)?.write(&judged, dir)
}

/// `harness clean`
pub fn clean(args: &CleanArgs) -> anyhow::Result<Exit> {
    runtime()?.block_on(async {
        let builds = compose::remove_dead_builds().await;
        if let Ok(builds @ [_, ..]) = builds.as_deref() {
            let builds = builds.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
            print(&format!("removed interrupted image builds: {builds}\n"))?;
        }
        let engine = Engine::connect().await?;
        let mut swept = compose::sweep(&engine).await?;
        if args.kept {
            swept.add(compose::clean_kept(&engine, None).await?);
        }
        let (containers, networks, volumes, runs) = (swept.containers, swept.networks, swept.volumes, swept.runs.len());
        print(&format!("removed {containers} containers, {networks} networks, {volumes} volumes of {runs} runs\n"))?;
        if !swept.spared.is_empty() {
            let spared = swept.spared.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let young = format!("younger than {YOUNG_S} s ({STARTING_S} s before their agent has started)");
            print(&format!("left runs that are alive, or {young}: {spared}\n"))?;
        }
        if let Some(stuck) = swept.stuck_networks() {
            print(&format!("{stuck}\n"))?;
        }
        builds?;
        Ok(Exit::Ok)
    })
}
