//! The recorded runs that the findings are made from.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Context;
use checker::WindowKind;
use history::{ClusterKind, MadeBy};
use serde::{Serialize, de::DeserializeOwned};

use super::{matrix::Matrix, picture::Picture, tokens::TokenLine};
use crate::{
    dose::{Measurement, Series},
    exit::Unusable,
    report::versions,
    similar::similar,
    statistics::quantile,
    suite::{Case, CaseRun, Outcome, Results, read_suite},
};

/// All recorded runs: `claims-CLUSTER.jsonl` has the records of a suite, one after the other; `dose-OF-CLUSTER.json`
/// has the output of `harness dose --format json`; `table-NAME-CLUSTER.jsonl` has the records of another suite, for a
/// table; `CASE-CLUSTER.history.jsonl` is the history of one run, to draw its worst window.
#[derive(Debug, Clone)]
pub struct Data {
    runs: BTreeMap<String, Vec<CaseRun>>,
    doses: Vec<Series>,
    pictures: Vec<Picture>,
    tables: Vec<Matrix>,
    cases: Vec<Case>,
    /// The fingerprints of the cases, by cluster and name.
    fingerprints: BTreeMap<(&'static str, String), String>,
    /// The directory of the suite, where the suites of the tables are too.
    suites: PathBuf,
}

/// The smallest, the middle and the largest of some numbers, and their sum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Span {
    min: f64,
    median: f64,
    max: f64,
    sum: f64,
}

/// A run that did not come out as expected.
#[derive(Debug, Clone, Serialize)]
struct Otherwise {
    case: String,
    seed: u64,
    /// Missing evidence, and expectations that were not met; or the errors of a run that was not made.
    why: String,
}

/// The runs of one case on one cluster, for a template.
#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    claim: String,
    by: String,
    /// `etcd 3.4.23`
    servers: String,
    /// Number of runs.
    n: usize,
    /// Runs that came out as expected.
    k: usize,
    /// `5 of 5`
    count: String,
    /// `1–5`
    seeds: String,
    /// Double-holder windows of all runs.
    windows: usize,
    /// The longest overlap of each run with a window, of any kind, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<Span>,
    /// The longest lease-overlap of each run that has one, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_overlap: Option<Span>,
    /// The longest staleness of each run with a stale holder, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    staleness: Option<Span>,
    /// The sequences of tokens that were seen, each once: `4, 5, 2`.
    tokens: Vec<String>,
    otherwise: Vec<Otherwise>,
}

/// The runs of all cases on one cluster, for a template.
#[derive(Debug, Clone, Serialize)]
pub struct Total {
    n: usize,
    k: usize,
    count: String,
    /// Number of cases.
    cases: usize,
    otherwise: Vec<Otherwise>,
}

/// The origin of the runs on one cluster, for a template.
#[derive(Debug, Clone, Serialize)]
pub struct Origin {
    /// `etcd 3.4.23, redis 7.0.15`
    servers: String,
    /// All facts in one sentence.
    words: String,
}

/// One point of a dose–response curve, for a template.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// `5 of 5`
    count: String,
    share: f64,
    from: f64,
    to: f64,
    left_out: u64,
    /// Medians in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    staleness: Option<f64>,
}

impl Span {
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Span> {
        let values: Vec<f64> = values.into_iter().collect();
        let at = |share| quantile(&values, share);
        Some(Span { min: at(0.0)?, median: at(0.5)?, max: at(1.0)?, sum: values.iter().sum() })
    }
}

fn otherwise(run: &CaseRun) -> Otherwise {
    let missing = run.missing.iter().map(|missing| format!("not seen: {missing}"));
    let mut why: Vec<String> = missing.chain(run.misses.iter().cloned()).collect();
    // The errors of a run that was not made, and the end of a record, are in its test cases only.
    if why.is_empty() {
        why.extend(run.tests.iter().flat_map(|test| test.why.iter().cloned()));
    }
    Otherwise { case: run.case.clone(), seed: run.seed, why: why.join("; ") }
}

fn is_expected(run: &&CaseRun) -> bool {
    run.outcome == Outcome::AsExpected
}

/// `1–5`, or a list if the seeds are not consecutive.
fn seeds(runs: &[&CaseRun]) -> String {
    let mut seeds: Vec<u64> = runs.iter().map(|run| run.seed).collect();
    seeds.sort_unstable();
    match (seeds.first(), seeds.last()) {
        (Some(first), Some(last)) if seeds.len() > 1 && seeds.windows(2).all(|two| two[1] - two[0] == 1) => {
            format!("{first}–{last}")
        }
        _ => seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// The seeds of each case; several lists if the cases differ.
fn all_seeds(runs: &[&CaseRun]) -> String {
    let mut by_case: BTreeMap<&str, Vec<&CaseRun>> = BTreeMap::new();
    for run in runs {
        by_case.entry(&run.case).or_default().push(run);
    }
    one_of(by_case.values().map(|runs| seeds(runs))).join(" or ")
}

/// The case and the cluster in the name of a history: `K1-docker.history.jsonl`.
fn history_of(path: &Path) -> Option<(String, String)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".history.jsonl")?;
    let (case, cluster) = name.rsplit_once('-')?;
    Some((case.to_owned(), cluster.to_owned()))
}

fn one_of<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort();
    values.dedup();
    values
}

/// The versions of the servers of some runs, each once.
fn servers<'a>(runs: impl IntoIterator<Item = &'a CaseRun>) -> String {
    let all = runs.into_iter().flat_map(|run| run.servers.split(", "));
    one_of(all.filter(|server| !server.is_empty())).join(", ")
}

impl Data {
    /// Reads all files of the directory, and the plans of the suite.
    ///
    /// # Errors
    /// A file cannot be read, has another name or another content, or a run of the data is no case of the suite.
    pub fn read(dir: &Path, suite: &Path) -> anyhow::Result<Data> {
        let (mut cases, mut fingerprints) = (Vec::<Case>::new(), BTreeMap::new());
        for cluster in [ClusterKind::Docker, ClusterKind::Sim] {
            for case in read_suite(&[PathBuf::from(suite)], cluster, &[])?.into_iter().flat_map(|suite| suite.cases) {
                fingerprints.insert((cluster.name(), case.name.clone()), case.fingerprint()?);
                if !cases.iter().any(|known| known.name == case.name) {
                    cases.push(case);
                }
            }
        }
        let (runs, doses, pictures, tables) = Default::default();
        let suites = suite.parent().unwrap_or(Path::new("")).to_owned();
        let mut data = Data { runs, doses, pictures, tables, cases, fingerprints, suites };
        let entries = std::fs::read_dir(dir).map_err(|e| Unusable(format!("{}: {e}", dir.display())))?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.with_context(|| format!("listing {}", dir.display()))?.path());
        }
        // Histories are last: they are of runs that the other files record.
        paths.sort_by_key(|path| (history_of(path).is_some(), path.clone()));
        for path in paths {
            data.add(&path)?;
        }
        Ok(data)
    }

    fn add(&mut self, path: &Path) -> anyhow::Result<()> {
        let wrong = |problem: String| Unusable(format!("{}: {problem}", path.display()));
        if let Some((case, cluster)) = history_of(path) {
            let runs = self.recorded(&cluster).map_err(wrong)?;
            self.pictures.push(Picture::read(path, &case, runs)?);
            return Ok(());
        }
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(cluster) = name.strip_prefix("claims-").and_then(|name| name.strip_suffix(".jsonl")) {
            let results = Results::parse_all(&text, path)?;
            let runs: Vec<CaseRun> = results.into_iter().flat_map(|results| results.runs).collect();
            for run in &runs {
                self.check(run, cluster).map_err(&wrong)?;
            }
            self.runs.insert(cluster.to_owned(), runs);
        } else if let Some(table) = name.strip_prefix("table-").and_then(|name| name.strip_suffix(".jsonl")) {
            let results = Results::parse_all(&text, path)?;
            let runs = results.into_iter().flat_map(|results| results.runs).collect();
            self.tables.push(Matrix { name: table.to_owned(), runs });
        } else if name.starts_with("dose-") && name.ends_with(".json") {
            self.doses.push(parse(&text).map_err(wrong)?);
        } else {
            let expected = "expected claims-CLUSTER.jsonl, table-NAME-CLUSTER.jsonl, dose-OF-CLUSTER.json or \
                            CASE-CLUSTER.history.jsonl";
            return Err(wrong(expected.to_owned()).into());
        }
        Ok(())
    }

    /// Refuses a run that was made with another plan, or judged by other expectations, than the suite has now.
    fn check(&self, run: &CaseRun, cluster: &str) -> Result<(), String> {
        let present = self.fingerprints.iter().find(|((of, name), _)| (*of, name) == (cluster, &run.case));
        match present {
            Some((_, present)) if *present == run.fingerprint => Ok(()),
            Some(_) => Err(format!(
                "run {} of {} was made with another plan, or with other expectations, than the suite has now; make \
                 the runs of this row again",
                run.n + 1,
                run.case
            )),
            None => Err(format!("`{}` is no case of the suite on {cluster}", run.case)),
        }
    }

    /// The pictures of single runs.
    pub fn pictures(&self) -> &[Picture] {
        &self.pictures
    }

    /// The picture of a run of the case.
    pub fn picture(&self, case: &str) -> Result<&Picture, String> {
        let found = self.pictures.iter().find(|picture| picture.case == case);
        found.ok_or_else(|| format!("the data has no history of a run of {case}"))
    }

    /// The dose–response curves, in the order of their files.
    pub fn doses(&self) -> &[Series] {
        &self.doses
    }

    /// The planned run of a case.
    pub fn case(&self, name: &str) -> Result<&Case, String> {
        let names = || self.cases.iter().map(|case| case.name.as_str());
        let found = self.cases.iter().find(|case| case.name == name);
        found.ok_or_else(|| format!("the suite has no case `{name}`{}", similar(name, names())))
    }

    fn recorded(&self, cluster: &str) -> Result<&[CaseRun], String> {
        let runs = self.runs.get(cluster).filter(|runs| !runs.is_empty());
        runs.map(Vec::as_slice).ok_or_else(|| format!("the data has no runs in claims-{cluster}.jsonl"))
    }

    fn runs(&self, name: &str, cluster: &str) -> Result<Vec<&CaseRun>, String> {
        self.case(name)?;
        let runs: Vec<&CaseRun> = self.recorded(cluster)?.iter().filter(|run| run.case == name).collect();
        if runs.is_empty() { Err(format!("claims-{cluster}.jsonl has no run of {name}")) } else { Ok(runs) }
    }

    /// The runs of a case.
    pub fn claim(&self, name: &str, cluster: &str) -> Result<Claim, String> {
        let (case, runs) = (self.case(name)?, self.runs(name, cluster)?);
        let windows = || runs.iter().map(|run| &run.facts.windows).filter(|windows| !windows.is_empty());
        let longest = |values: Vec<f64>| values.into_iter().reduce(f64::max);
        let overlaps = windows().filter_map(|w| longest(w.iter().map(|w| w.overlap_ms).collect()));
        let lease_overlaps = windows().filter_map(|windows| {
            let of_leases = windows.iter().filter(|window| window.kind == WindowKind::LeaseOverlap.name());
            longest(of_leases.map(|window| window.overlap_ms).collect())
        });
        let staleness = windows().filter_map(|w| longest(w.iter().filter_map(|w| w.staleness_ms).collect()));
        let joined = |tokens: &[u64]| tokens.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let k = runs.iter().copied().filter(is_expected).count();
        Ok(Claim {
            claim: case.claim.clone(),
            by: case.by.clone(),
            servers: servers(runs.iter().copied()),
            n: runs.len(),
            k,
            count: format!("{k} of {}", runs.len()),
            seeds: seeds(&runs),
            windows: windows().map(Vec::len).sum(),
            overlap: Span::of(overlaps),
            lease_overlap: Span::of(lease_overlaps),
            staleness: Span::of(staleness),
            tokens: one_of(runs.iter().map(|run| joined(&run.facts.tokens)).filter(|tokens| !tokens.is_empty())),
            otherwise: runs.iter().filter(|run| !is_expected(run)).map(|run| otherwise(run)).collect(),
        })
    }

    /// The tokens of the first run of a case that came out as expected.
    pub fn tokens(&self, name: &str, cluster: &str) -> Result<TokenLine, String> {
        let plan = &self.case(name)?.file.plan;
        let runs = self.runs(name, cluster)?;
        let run = runs.iter().find(|run| is_expected(run) && !run.facts.tokens.is_empty());
        let run = run.ok_or_else(|| format!("no run of {name} that came out as expected has tokens"))?;
        let kind = plan.tokens.to_string();
        Ok(TokenLine { kind, seed: run.seed, tokens: run.facts.tokens.clone() })
    }

    /// One number of `verdict.json` over the runs of a case: `lock.lease_overlap`; or one that was measured
    /// (`measures.…`), over the runs that have it. Evidence (`evidence.…`) counts if the run came out as expected.
    pub fn figure(&self, name: &str, path: &str, cluster: &str) -> Result<Span, String> {
        // A record leaves out zeros, so a path that no run has is a mistake.
        let is_known = |run: &CaseRun| run.facts.figures.contains_key(path);
        if !self.runs.values().flatten().any(is_known) {
            let known = one_of(self.runs.values().flatten().flat_map(|run| run.facts.figures.keys()));
            return Err(format!(
                "no run has a figure `{path}`{}",
                similar(path, known.into_iter().map(String::as_str))
            ));
        }
        let runs = self.runs(name, cluster)?;
        let is_evidence = path.starts_with("evidence.");
        let counted = runs.iter().filter(|run| !is_evidence || is_expected(run));
        let values = counted.filter_map(|run| run.figure(path));
        Span::of(values).ok_or_else(|| format!("no run of {name} has a figure `{path}`"))
    }

    /// The runs of all cases.
    pub fn total(&self, cluster: &str) -> Result<Total, String> {
        let runs = self.recorded(cluster)?;
        let k = runs.iter().filter(is_expected).count();
        Ok(Total {
            n: runs.len(),
            k,
            count: format!("{k} of {}", runs.len()),
            cases: one_of(runs.iter().map(|run| &run.case)).len(),
            otherwise: runs.iter().filter(|run| !is_expected(run)).map(otherwise).collect(),
        })
    }

    /// The table of another suite, as Markdown.
    pub fn table(&self, name: &str, faults: &str, cluster: &str) -> Result<String, String> {
        self.matrix(name, cluster)?.outcomes(faults)
    }

    /// The table of one figure of another suite, as Markdown.
    pub fn figure_table(&self, name: &str, figure: &str, faults: &str, cluster: &str) -> Result<String, String> {
        self.matrix(name, cluster)?.figures(figure, faults)
    }

    /// The origin of the runs of a table. All are of one build.
    pub fn table_origin(&self, name: &str, cluster: &str) -> Result<Origin, String> {
        let runs: Vec<&CaseRun> = self.matrix(name, cluster)?.runs.iter().collect();
        let made: Vec<_> = runs.iter().filter_map(|run| run.facts.made_by.as_ref()).collect();
        let servers = servers(runs.iter().copied());
        let words = origin_words(&made, &servers, &format!("seeds {} of each scenario", all_seeds(&runs)))
            .map_err(|problem| format!("table-{name}-{cluster}.jsonl {problem}"))?;
        Ok(Origin { words, servers })
    }

    /// The sentence about the rows of a table that the suite `NAME.toml` has changed since the runs; empty without such
    /// a row.
    ///
    /// # Errors
    /// The data has no such table, or there is no such suite.
    pub fn table_changes(&self, name: &str, cluster: &str) -> Result<String, String> {
        let matrix = self.matrix(name, cluster)?;
        let suite = self.suites.join(format!("{name}.toml"));
        let kind = if cluster == ClusterKind::Sim.name() { ClusterKind::Sim } else { ClusterKind::Docker };
        let mut present = BTreeMap::new();
        let suites = read_suite(&[suite], kind, &[]).map_err(|e| format!("{e:#}"))?;
        for case in suites.into_iter().flat_map(|suite| suite.cases) {
            let fingerprint = case.fingerprint().map_err(|e| format!("{e:#}"))?;
            present.insert(case.name, fingerprint);
        }
        Ok(matrix.changes(&present))
    }

    fn matrix(&self, name: &str, cluster: &str) -> Result<&Matrix, String> {
        let found = self.tables.iter().find(|table| table.name == format!("{name}-{cluster}"));
        found.ok_or_else(|| format!("the data has no table-{name}-{cluster}.jsonl"))
    }

    /// The origin of the runs on real servers. All are of one build.
    pub fn origin(&self, cluster: &str) -> Result<Origin, String> {
        let runs = self.recorded(cluster)?;
        let made: Vec<_> = runs.iter().filter_map(|run| run.facts.made_by.as_ref()).collect();
        let servers = servers(runs);
        let all: Vec<&CaseRun> = runs.iter().collect();
        let words = origin_words(&made, &servers, &format!("seeds {} of each scenario", all_seeds(&all)))
            .map_err(|problem| format!("claims-{cluster}.jsonl {problem}"))?;
        Ok(Origin { words, servers })
    }

    /// The origin of one curve.
    pub fn dose_origin(&self, of: &str, cluster: &str) -> Result<String, String> {
        let series = self.series(of, cluster)?;
        let older = || format!("dose-{of}-{cluster}.json does not say how its runs were made; make them again");
        let made_by = series.made_by.as_ref().ok_or_else(older)?;
        let servers = if made_by.servers.is_empty() { String::new() } else { versions(&made_by.servers) };
        let seeds = format!("seeds from {} on of each point", series.seed);
        origin_words(&[made_by], &servers, &seeds)
    }

    /// One curve.
    pub fn series(&self, of: &str, cluster: &str) -> Result<&Series, String> {
        let found = self.doses.iter().find(|series| (series.of.as_str(), series.cluster.as_str()) == (of, cluster));
        found.ok_or_else(|| format!("the data has no dose-{of}-{cluster}.json"))
    }

    /// One point of a curve.
    pub fn point(&self, of: &str, cluster: &str, ratio: f64) -> Result<Point, String> {
        let points = &self.series(of, cluster)?.points;
        let is_it = |point: &&Measurement| (point.ratio - ratio).abs() < 1e-9;
        let point = points.iter().find(is_it).ok_or_else(|| {
            let ratios: Vec<String> = points.iter().map(|point| point.ratio.to_string()).collect();
            format!("dose-{of}-{cluster}.json has no point at {ratio} leases; it has {}", ratios.join(", "))
        })?;
        let (share, from, to) = point.share();
        Ok(Point {
            count: format!("{} of {}", point.windows, point.runs),
            share,
            from,
            to,
            left_out: point.left_out,
            overlap: quantile(&point.overlap_ms, 0.5),
            staleness: quantile(&point.staleness_ms, 0.5),
        })
    }
}

/// Tells the origin of runs in one sentence. All must be of one build.
fn origin_words(made: &[&MadeBy], servers: &str, seeds: &str) -> Result<String, String> {
    let lines_of = |made: &MadeBy| made.lines().into_iter().collect::<BTreeMap<String, String>>();
    let builds = one_of(made.iter().filter_map(|made| lines_of(made).remove("made by")));
    let (Some(first), [made_by]) = (made.first(), &builds[..]) else {
        return Err(format!("has runs of {} builds; expected one", builds.len()));
    };
    let days = one_of(made.iter().filter_map(|made| made.started.split('T').next()));
    let date = match &days[..] {
        [first, .., last] => format!("{first} to {last}"),
        days => days.concat(),
    };
    let mut lines = lines_of(first);
    let parts = [Some(seeds.to_owned()), Some(servers.to_owned()), lines.remove("host"), lines.remove("engine")];
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    Ok(format!("Runs of {date}, made by {made_by}; {}.", parts.join("; ")))
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests;
