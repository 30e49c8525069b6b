//! The format of a suite file, and its rows: the own rows, each once for every backend or client of its list, and the
//! rows of the included files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use checker::CauseSet;
use compose::BUILTIN;
use history::ClusterKind;
use serde::Deserialize;
use workloads::backend::Backend;

use crate::{exit::Unusable, plan_file::has_key, scenario::Scenario, similar::similar};

/// Stands for every backend, or every client of the suite file, in the list of a row.
const ALL: &str = "all";

/// A suite as its author wrote it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteFile {
    /// Version of this format: 1.
    pub schema: u32,
    /// The paths of suite files whose rows come before the own rows, relative to this file.
    #[serde(default)]
    pub include: Vec<PathBuf>,
    /// The clients that rows name in [`Row::clients`].
    #[serde(rename = "client", default)]
    pub clients: Vec<ListedClient>,
    /// The rows.
    #[serde(rename = "row", default)]
    pub rows: Vec<Row>,
}

/// A lock client that rows of the same file name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedClient {
    /// The name in [`Row::clients`], and in the names of the rows: `redis-py`.
    pub name: String,
    /// The flags of `harness run` that choose it: `--backend redis --client 'python3 lock.py'`.
    pub run: String,
}

/// One claim.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The name in the table: `K1`.
    pub id: String,
    /// The claim.
    pub claim: String,
    /// The author of the claim.
    pub by: String,
    /// The path of the plan, relative to the suite file.
    #[serde(default)]
    pub plan: Option<PathBuf>,
    /// Flags of `harness run`, in place of a plan: `--nemesis delay:redis-2@2s+2s --time 6s`.
    #[serde(default)]
    pub run: Option<String>,
    /// The row is made once for each of these backends: names as in `--backend`, or `all`.
    #[serde(default)]
    pub backends: Option<Vec<String>>,
    /// The row is made once for each of these clients of the file, or for `all` of them.
    #[serde(default)]
    pub clients: Option<Vec<String>>,
    /// The backends or clients that a list `all` leaves out.
    #[serde(default)]
    pub except: Vec<String>,
    /// Fields of the plan to replace in this row, by their paths as in [`Twin::field`]. So rows can share a plan.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
    /// The evidence that the history must contain; otherwise the run is inconclusive.
    pub witness: Vec<String>,
    /// The expected verdicts, as for `--expect`. Without them a run may violate nothing but the lock, and that only by
    /// windows that have a cause.
    #[serde(default)]
    pub expect: Option<String>,
    /// The exact causes of every window.
    #[serde(default)]
    pub causes: Option<Vec<CauseSet>>,
    /// The clusters that can run the row; all if left out. A container cannot lose power, for example.
    #[serde(default)]
    pub clusters: Vec<ClusterKind>,
    /// The servers that the expectation is about: the version must begin with one of these. All if left out.
    #[serde(default)]
    pub holds_for: Vec<String>,
    /// The same plan with one changed field.
    #[serde(default)]
    pub twin: Option<Twin>,
    /// The file of the row: that of the suite, or an included one.
    #[serde(skip)]
    pub file: PathBuf,
    /// The id of the row whose list of backends or clients this row comes from.
    #[serde(skip)]
    pub group: Option<String>,
    /// The backend of a row that comes from a list of backends. The simulation leaves the row out if it has no model of
    /// the servers, and other runs do so if this build has no client of the backend.
    #[serde(skip)]
    pub listed_backend: Option<String>,
}

/// The same plan with one changed field, which shows the effect of the field.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Twin {
    /// The path of the field in the plan file: `plan.tokens`, `plan.schedule.5.fault.back_after`. Steps and waits are
    /// named by their ids.
    pub field: String,
    /// The value in the twin's plan.
    pub value: toml::Value,
    /// The expected verdicts.
    pub expect: String,
    /// The evidence; that of the row if left out.
    #[serde(default)]
    pub witness: Option<Vec<String>>,
    /// The exact causes of every window.
    #[serde(default)]
    pub causes: Option<Vec<CauseSet>>,
}

/// Reads a suite file, and the files that it includes. The result has rows only: no includes, and no lists of backends
/// or clients.
///
/// # Errors
/// A file cannot be read or parsed, a file includes itself, or two rows or twins have one name.
pub fn read(path: &Path) -> Result<SuiteFile, Unusable> {
    let text = compose::read_text(path, compose::TEXT_MAX).map_err(|e| wrong(path, e))?;
    parse(&text, path)
}

/// Parses the text of a suite file that comes from `path`, as [`read`] does.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str, path: &Path) -> Result<SuiteFile, Unusable> {
    let suite = with_included(text, path, &mut Vec::new())?;
    have_names_of_their_own(&suite.rows, path)?;
    Ok(suite)
}

/// Refuses a second row or twin of one name: the runs of both would be counted as runs of one.
fn have_names_of_their_own(rows: &[Row], path: &Path) -> Result<(), Unusable> {
    let mut named: Vec<(String, &Row)> = rows.iter().map(|row| (row.id.clone(), row)).collect();
    named.extend(rows.iter().filter(|row| row.twin.is_some()).map(|row| (row.twin_name(), row)));
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    let Some([(name, one), (_, other)]) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) else { return Ok(()) };
    let twin = if one.id == other.id { "" } else { ", and one of them is the twin of another row" };
    let (first, second) = (one.file.display(), other.file.display());
    let files = if one.file == other.file { String::new() } else { format!(": one in {first}, the other in {second}") };
    Err(wrong(path, format!("two rows are called {name}{twin}{files}")))
}

/// `above` are the files whose includes led to this file.
fn with_included(text: &str, path: &Path, above: &mut Vec<PathBuf>) -> Result<SuiteFile, Unusable> {
    let suite: SuiteFile =
        toml::from_str(text).map_err(|e| match has_key(text, "plan") && has_key(text, "backend") {
            true => wrong(path, format!("this is a plan; `harness run {}` runs it", path.display())),
            false => wrong(path, e),
        })?;
    if suite.schema != 1 {
        return Err(wrong(path, format!("schema {} is unknown; this version reads schema 1", suite.schema)));
    }
    let base = path.parent().unwrap_or(Path::new("."));
    above.push(path.canonicalize().unwrap_or(path.to_owned()));
    let mut rows = Vec::new();
    for file in suite.include {
        let included = base.join(&file);
        let of_file = |problem: String| wrong(path, format!("include `{}`: {problem}", file.display()));
        let canonical = included.canonicalize().map_err(|e| of_file(format!("{}: {e}", included.display())))?;
        if above.contains(&canonical) {
            return Err(of_file("the file includes itself, directly or through others".to_owned()));
        }
        let text = compose::read_text(&included, compose::TEXT_MAX).map_err(|e| of_file(e.to_string()))?;
        rows.extend(with_included(&text, &included, above)?.rows);
    }
    above.pop();
    for row in suite.rows {
        let of_row = |problem: &str| wrong(path, format!("row {}: {problem}", row.id));
        let row = Row { file: path.to_owned(), ..row.clone() };
        rows.extend(row.for_each_listed(&suite.clients).map_err(|problem| of_row(&problem))?);
    }
    Ok(SuiteFile { include: Vec::new(), clients: Vec::new(), rows, ..suite })
}

/// Names the suite file of a problem.
pub fn wrong(path: &Path, problem: impl std::fmt::Display) -> Unusable {
    Unusable(format!("suite {}: {problem}", path.display()))
}

impl Row {
    /// Returns the row once for each backend or client of its list, with names such as `pause/etcd`.
    fn for_each_listed(self, clients: &[ListedClient]) -> Result<Vec<Row>, String> {
        let (key, listed, flags_of) = match (&self.backends, &self.clients) {
            (None, None) if self.except.is_empty() => return Ok(vec![self]),
            (None, None) => return Err("`except` needs `backends` or `clients`".into()),
            (Some(_), Some(_)) => return Err("`backends` and `clients` exclude each other".into()),
            (Some(listed), None) => ("backends", listed, None),
            (None, Some(listed)) => ("clients", listed, Some(clients)),
        };
        let Some(flags) = &self.run else {
            return Err(format!("`{key}` needs `run`; a plan has one backend of its own"));
        };
        if listed.is_empty() {
            return Err(format!("`{key}` is empty; expected names of {key}, or [\"all\"]"));
        }
        let has_all = listed.iter().any(|name| name == ALL);
        if has_all && listed.len() > 1 {
            return Err(format!("`{key}` has \"all\" and other names; expected only one of both"));
        }
        let all: Vec<&str> = match flags_of {
            None => BUILTIN.iter().map(|(name, _)| *name).collect(),
            Some(clients) => clients.iter().map(|client| client.name.as_str()).collect(),
        };
        if let Some(name) = self.except.iter().find(|name| !has_all || !all.contains(&name.as_str())) {
            return Err(format!("`except` names `{name}`, which the row's list does not have; it is for [\"all\"]"));
        }
        let is_left = |name: &&str| !self.except.iter().any(|out| out == name);
        let names = if has_all { all.clone() } else { listed.iter().map(String::as_str).collect::<Vec<_>>() };
        let names: Vec<&str> = names.into_iter().filter(is_left).collect();
        let for_one = |name: &&str| {
            let first = match flags_of {
                None => format!("--backend {name}"),
                Some(clients) => {
                    clients.iter().find(|client| client.name == *name).map(|c| c.run.clone()).ok_or_else(|| {
                        format!("no `[[client]]` has the name `{name}`{}", similar(name, all.iter().copied()))
                    })?
                }
            };
            Ok(Row {
                id: format!("{}/{name}", self.id),
                group: Some(self.id.clone()),
                run: Some(format!("{first} {flags}")),
                backends: None,
                clients: None,
                except: Vec::new(),
                listed_backend: flags_of.is_none().then(|| (*name).to_owned()),
                ..self.clone()
            })
        };
        names.iter().map(for_one).collect()
    }

    /// Returns the name of the row's twin.
    pub fn twin_name(&self) -> String {
        format!("{} twin", self.id)
    }

    /// Returns whether `only` names the row, or the row whose list of backends it comes from.
    pub fn is_named(&self, only: &str) -> bool {
        self.id == only || self.group.as_deref() == Some(only)
    }

    /// Returns whether the row runs on a cluster. Of a list of backends, those without a model are not simulated, and
    /// those without a client in this build run on no real servers.
    pub fn runs_on(&self, cluster: ClusterKind) -> bool {
        // The reader of the row's flags refuses an unknown backend.
        let has_no_model = |name: &String| Scenario::of(name).is_ok_and(|of| of.base.servers.model().is_none());
        let can = match cluster {
            ClusterKind::Sim => !self.listed_backend.as_ref().is_some_and(has_no_model),
            ClusterKind::Docker => self.missing_feature().is_none(),
        };
        can && (self.clusters.is_empty() || self.clusters.contains(&cluster))
    }

    /// Returns the cargo feature without which this build cannot run the row on real servers; none if nothing is
    /// missing.
    pub fn missing_feature(&self) -> Option<&'static str> {
        #[derive(Deserialize)]
        struct Outline {
            backend: String,
        }
        // The reader of the whole plan reports what is wrong with it.
        let of_plan = |plan: &PathBuf| {
            let text = compose::read_text(&self.file.with_file_name(plan), history::PLAN_BYTES_MAX).ok()?;
            toml::from_str::<Outline>(&text).ok().map(|plan| plan.backend)
        };
        let backend = self.listed_backend.clone().or_else(|| of_plan(self.plan.as_ref()?))?;
        Backend::named(&backend).ok()?.missing_feature()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn row(id: &str, more: &str) -> String {
        format!("[[row]]\nid = \"{id}\"\nclaim = \"c\"\nby = \"b\"\nwitness = []\n{more}\n")
    }

    fn ids(suite: &SuiteFile) -> Vec<&str> {
        suite.rows.iter().map(|row| row.id.as_str()).collect()
    }

    #[test]
    fn included_rows_come_first_and_keep_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        let inner = format!("schema = 1\n{}", row("a", "plan = \"a.toml\""));
        fs::write(dir.path().join("below/inner.toml"), inner).unwrap();
        let outer = format!("schema = 1\ninclude = [\"below/inner.toml\"]\n{}", row("b", "plan = \"b.toml\""));
        let suite = parse(&outer, &dir.path().join("outer.toml")).unwrap();
        assert_eq!(ids(&suite), ["a", "b"]);
        assert_eq!(suite.rows[0].file, dir.path().join("below/inner.toml"));
        assert_eq!(suite.rows[1].file, dir.path().join("outer.toml"));
    }

    #[test]
    fn includes_that_cannot_be_followed_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("one.toml"), "schema = 1\ninclude = [\"two.toml\"]\n").unwrap();
        fs::write(at("two.toml"), "schema = 1\ninclude = [\"one.toml\"]\n").unwrap();
        fs::write(at("a.toml"), format!("schema = 1\n{}", row("a", "run = \"--nemesis none\""))).unwrap();
        fs::write(at("old.toml"), "schema = 9\n").unwrap();
        let again = format!("schema = 1\ninclude = [\"a.toml\"]\n{}", row("a", "run = \"\""));
        for (text, words) in [
            ("schema = 1\ninclude = [\"one.toml\"]\n", "include `one.toml`: the file includes itself"),
            ("schema = 1\ninclude = [\"none.toml\"]\n", "include `none.toml`"),
            ("schema = 1\ninclude = [\"old.toml\"]\n", "old.toml: schema 9"),
            ("schema = 1\ninclude = [\"a.toml\", \"a.toml\"]\n", "two rows are called a"),
            (&again, "one in "),
        ] {
            let error = parse(text, &at("one.toml")).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn a_suite_without_an_end_is_refused() {
        let refused = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(refused.starts_with("suite /dev/zero: larger than 16 MiB"), "{refused}");
        let including = "schema = 1\ninclude = [\"/dev/zero\"]\n";
        let refused = parse(including, Path::new("s.toml")).unwrap_err().to_string();
        assert!(refused.contains("include `/dev/zero`: larger than 16 MiB"), "{refused}");
    }

    #[test]
    fn a_row_cannot_have_the_name_of_a_twin() {
        let twin = "run = \"\"\n[row.twin]\nfield = \"plan.lease\"\nvalue = \"3s\"\nexpect = \"lock=upheld\"";
        let suite = |id: &str| {
            let text = format!("schema = 1\n{}{}", row("p", twin), row(id, "run = \"\""));
            parse(&text, Path::new("s.toml")).map(|suite| suite.rows.len()).map_err(|e| e.to_string())
        };
        assert_eq!(suite("p-twin"), Ok(2));
        let problem = "two rows are called p twin, and one of them is the twin of another row";
        assert_eq!(suite("p twin"), Err(format!("suite s.toml: {problem}")));
    }

    #[test]
    fn a_row_is_made_once_for_each_of_its_backends() {
        let suite = |more: &str| parse(&format!("schema = 1\n{}", row("p", more)), Path::new("s.toml"));
        let two = suite("backends = [\"redis\", \"etcd\"]\nrun = \"--nemesis pause\"").unwrap();
        assert_eq!(ids(&two), ["p/redis", "p/etcd"]);
        assert_eq!(two.rows[1].run.as_deref(), Some("--backend etcd --nemesis pause"));
        assert!(two.rows[0].is_named("p") && two.rows[0].is_named("p/redis") && !two.rows[0].is_named("p/etcd"));
        let all = suite("backends = [\"all\"]\nrun = \"--nemesis pause\"").unwrap();
        assert_eq!(all.rows.len(), BUILTIN.len());
        let but = suite("backends = [\"all\"]\nexcept = [\"redis\"]\nrun = \"--nemesis pause\"").unwrap();
        assert_eq!(ids(&but), ids(&all).into_iter().filter(|id| *id != "p/redis").collect::<Vec<_>>());
        let on = |cluster| all.rows.iter().filter(|row| row.runs_on(cluster)).count();
        let is_built = |name: &str| Backend::named(name).unwrap().missing_feature().is_none();
        assert_eq!(on(ClusterKind::Docker), BUILTIN.iter().filter(|(name, _)| is_built(name)).count());
        assert!((1..BUILTIN.len()).contains(&on(ClusterKind::Sim)), "ZooKeeper has no model");
        let real = suite("backends = [\"redis\"]\nclusters = [\"docker\"]\nrun = \"\"").unwrap();
        assert!(real.rows[0].runs_on(ClusterKind::Docker) && !real.rows[0].runs_on(ClusterKind::Sim));
        for (more, words) in [
            ("backends = []\nrun = \"\"", "is empty"),
            ("backends = [\"all\", \"etcd\"]\nrun = \"\"", "only one of both"),
            ("backends = [\"etcd\"]\nplan = \"p.toml\"", "needs `run`"),
            ("backends = [\"etcd\"]\nexcept = [\"redis\"]\nrun = \"\"", "it is for [\"all\"]"),
            ("backends = [\"all\"]\nexcept = [\"etcd9\"]\nrun = \"\"", "`except` names `etcd9`"),
            ("except = [\"etcd\"]\nrun = \"\"", "`except` needs"),
            ("backends = [\"etcd\", \"etcd\"]\nrun = \"\"", "two rows are called p/etcd"),
        ] {
            let error = suite(more).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn a_row_is_made_once_for_each_of_its_clients() {
        let clients = "[[client]]\nname = \"one\"\nrun = \"--backend redis\"\n\
            [[client]]\nname = \"two\"\nrun = \"--backend etcd --tokens none\"\n";
        let suite = |more: &str| parse(&format!("schema = 1\n{clients}{}", row("p", more)), Path::new("s.toml"));
        let all = suite("clients = [\"all\"]\nrun = \"--nemesis pause\"").unwrap();
        assert_eq!(ids(&all), ["p/one", "p/two"]);
        assert_eq!(all.rows[1].run.as_deref(), Some("--backend etcd --tokens none --nemesis pause"));
        assert!(all.rows[0].is_named("p"));
        // The name of a client is no backend, which could lack a model.
        assert!(all.rows.iter().all(|row| row.runs_on(ClusterKind::Sim)));
        assert_eq!(ids(&suite("clients = [\"two\"]\nrun = \"\"").unwrap()), ["p/two"]);
        for (more, words) in [
            ("clients = [\"on\"]\nrun = \"\"", "no `[[client]]` has the name `on`"),
            ("clients = [\"one\"]\nbackends = [\"etcd\"]\nrun = \"\"", "exclude each other"),
            ("clients = [\"one\"]\nplan = \"p.toml\"", "needs `run`"),
        ] {
            let error = suite(more).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
