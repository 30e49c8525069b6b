//! `harness list`: everything that a run can have, or the recorded runs.

use std::path::Path;

use history::FaultKind;
use locks::{CLIENTS, Capability, Client};
use serde_json::json;
use workloads::backend::Backend;

use crate::{
    cli::{Format, ListArgs},
    exit::{Exit, usage},
    recorded_run::{NO_FAULTS, RecordedRun, recorded_runs},
    report::print,
    similar::similar,
};

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
        let about = |(name, file): (&str, ComposeFile)| {
            let client = Backend::named(name).ok().map(|backend| backend.client);
            let needs = client.and_then(Client::missing_feature);
            let capabilities = client.map(|client| client.capabilities).unwrap_or_default();
            let capabilities: Vec<&str> = capabilities.iter().map(|capability| capability.name()).collect();
            json!({
                "name": name, "about": file.about, "tokens": file.facts.tokens, "capabilities": capabilities,
                "needs_feature": needs,
            })
        };
        let backends: Vec<_> = backends.into_iter().map(about).collect();
        let capabilities = Capability::ALL.map(Capability::name);
        let all = json!({
            "backends": backends, "capabilities": capabilities, "faults": faults, "points": points, "arms": arms,
        });
        print(&format!("{all}\n"))?;
        return Ok(Exit::Ok);
    }
    let mut text = "backends\n".to_owned();
    let width = backends.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, file) in backends {
        let tokens: Vec<_> = file.facts.tokens.iter().map(ToString::to_string).collect();
        let missing = Backend::named(name).ok().and_then(|backend| backend.missing_feature());
        let missing = missing.map(|feature| format!("; not in this build: needs `cargo build --features {feature}`"));
        let (tokens, missing) = (tokens.join(", "), missing.unwrap_or_default());
        text += &format!("  {name:<width$} {} (tokens: {tokens}){missing}\n", file.about);
    }
    text += "capabilities\n";
    for capability in Capability::ALL {
        let clients = CLIENTS.iter().filter(|client| client.has(capability)).map(|client| client.name);
        let clients = clients.collect::<Vec<_>>().join(", ");
        text += &format!("  {capability:<18} {}\n", if clients.is_empty() { "–" } else { &clients });
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

fn row(run: &RecordedRun) -> [String; 9] {
    let or = |text: Option<String>, other: &str| text.unwrap_or_else(|| other.to_owned());
    let started = run.started.as_ref().map(|text| text.replace('T', " ").replace('Z', ""));
    [
        or(started, "?"),
        or(run.backend.clone(), "?"),
        or(run.nemesis.as_ref().map(|kinds| kinds.join(",")), "?"),
        or(run.cluster.map(|cluster| cluster.name().to_owned()), "?"),
        or(run.seed.map(|seed| seed.to_string()), "?"),
        or(run.windows.map(|windows| windows.to_string()), "–"),
        or(run.verdict.clone(), NOT_JUDGED),
        match run.as_expected {
            Some(true) => "yes".to_owned(),
            Some(false) => "NO".to_owned(),
            None => "–".to_owned(),
        },
        run.run.clone(),
    ]
}

fn passes(run: &RecordedRun, args: &ListArgs) -> bool {
    let is = |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|it| Some(it) == found);
    let has = |kind: &String| run.nemesis.as_ref().is_some_and(|kinds| kinds.contains(kind));
    is(&args.backend, run.backend.as_deref())
        && is(&args.verdict, Some(run.verdict.as_deref().unwrap_or(NOT_JUDGED)))
        && args.nemesis.as_ref().is_none_or(has)
        && args.cluster.is_none_or(|cluster| Some(cluster) == run.cluster)
        && !(args.unexpected && run.as_expected != Some(false))
}

const HEAD: [&str; 9] =
    ["started (UTC)", "backend", "nemesis", "cluster", "seed", "windows", "verdict", "as expected", "run"];

fn list_runs(runs: &Path, args: &ListArgs) -> anyhow::Result<Exit> {
    let names = recorded_runs(runs)?;
    let read = names.iter().map(|name| RecordedRun::read(runs, name));
    let mut all: Vec<RecordedRun> = read.filter(|run| passes(run, args)).collect();
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
fn table(all: &[RecordedRun]) -> String {
    let rows: Vec<[String; 9]> = std::iter::once(HEAD.map(str::to_owned)).chain(all.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
