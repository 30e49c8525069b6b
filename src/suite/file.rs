//! The suite file: rows, each with a claim, a plan, the evidence that the plan needs, and the expected verdicts.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use checker::{CauseSet, joined};
use clap::Parser;
use history::{ClusterKind, PLAN_BYTES_MAX};

use super::{
    field::{differences, replaced, set},
    rows::{self, Row, SuiteFile, Twin, wrong},
    witness::Witness,
};
use crate::{
    cli::{Cli, Command},
    exit::Unusable,
    expect::Expectation,
    fingerprint,
    plan_file::PlanFile,
    scenario::{fits_its_run, of_row},
    similar::similar,
};

/// A planned run of a suite: a row, or the twin of a row.
#[derive(Debug, Clone)]
pub struct Case {
    /// `K4`, `K4 twin`.
    pub name: String,
    /// The claim; of a twin the fields in which its plan differs from the row's plan.
    pub claim: String,
    /// The author of the claim.
    pub by: String,
    /// The plan file, with the seed of the first run.
    pub file: PlanFile,
    /// The evidence that the history must contain.
    pub witnesses: Vec<Witness>,
    /// The expected verdicts, parsed and as text.
    pub expectation: Option<(Expectation, String)>,
    /// The exact causes of every window.
    pub causes: Option<Vec<CauseSet>>,
    /// The servers that the expectation is about.
    pub holds_for: Vec<String>,
}

/// The rows of a suite that a call has chosen.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The name of the file without `.toml`.
    pub name: String,
    /// The chosen rows, and their twins.
    pub cases: Vec<Case>,
}

/// Reads suites. Every plan and every word is checked before the first run.
///
/// # Errors
/// The first mistake, with its row; a row of `only` that no suite has; two suites of one name, or without rows.
pub fn read(paths: &[PathBuf], cluster: ClusterKind, only: &[String]) -> anyhow::Result<Vec<Suite>> {
    let files = paths.iter().map(|path| rows::read(path)).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<&str> = files.iter().flat_map(SuiteFile::ids).collect();
    if let Some(unknown) = only.iter().find(|only| !files.iter().any(|file| file.has(only))) {
        let near = similar(unknown, ids.iter().copied());
        let all = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let problem = format!("--only: there is no row `{unknown}`{near}; there are: {}", ids.join(", "));
        return Err(Unusable(format!("suite {all}: {problem}")).into());
    }
    let mut suites: Vec<Suite> = Vec::new();
    for (path, file) in paths.iter().zip(&files) {
        // A file of several may have none of the rows of `only`.
        if !only.is_empty() && paths.len() > 1 && !only.iter().any(|only| file.has(only)) {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if suites.iter().any(|suite| suite.name == name) {
            return Err(
                wrong(path, format!("two suites are called `{name}`; run one of them in a call of its own")).into()
            );
        }
        suites.push(Suite { name, cases: file.cases(path, cluster, only)? });
    }
    Ok(suites)
}

/// Parses the text of a suite that comes from `path`, and all plans and words of its rows.
#[cfg(fuzzing)]
pub fn parse(text: &str, path: &Path, cluster: ClusterKind) -> anyhow::Result<Vec<Case>> {
    rows::parse(text, path)?.cases(path, cluster, &[])
}

impl SuiteFile {
    fn ids(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.id.as_str())
    }

    fn has(&self, only: &str) -> bool {
        self.rows.iter().any(|row| row.is_named(only))
    }

    /// Returns the cases of the rows that `only` names (if empty: of all rows) and that run on `cluster`.
    fn cases(&self, path: &Path, cluster: ClusterKind, only: &[String]) -> anyhow::Result<Vec<Case>> {
        for id in only {
            let mut named = self.rows.iter().filter(|row| row.is_named(id)).peekable();
            let missing = named.peek().filter(|_| cluster == ClusterKind::Docker).and_then(|row| row.missing_feature());
            if named.peek().is_some() && !named.any(|row| row.runs_on(cluster)) {
                let why = match missing {
                    Some(feature) => format!("needs a harness that was built with `--features {feature}`"),
                    None => format!("does not run on --cluster {}", cluster.name()),
                };
                return Err(wrong(path, format!("--only: row `{id}` {why}")).into());
            }
        }
        let chosen = self.rows.iter().filter(|row| only.is_empty() || only.iter().any(|only| row.is_named(only)));
        let features: Vec<_> = chosen.clone().filter_map(Row::missing_feature).collect();
        if let Some(feature) = features.first().filter(|_| cluster == ClusterKind::Docker) {
            let (file, rows) = (path.display(), features.len());
            tracing::warn!("{file}: {rows} rows are left out, because this harness was built without `{feature}`");
        }
        let mut cases = Vec::new();
        for row in chosen.filter(|row| row.runs_on(cluster)) {
            let of_row = || format!("row {} of {}", row.id, row.file.display());
            cases.extend(row.cases(cluster).map_err(|e| e.context(of_row()))?);
        }
        if cases.is_empty() {
            return Err(wrong(path, format!("no row runs on --cluster {}", cluster.name())).into());
        }
        Ok(cases)
    }
}

impl Row {
    /// Returns the origin and the text of the plan file.
    fn text(&self, cluster: ClusterKind) -> anyhow::Result<(String, String)> {
        match (&self.plan, &self.run) {
            (Some(plan), None) => {
                let origin = self.file.parent().unwrap_or(Path::new(".")).join(plan).display().to_string();
                let text = compose::read_text(origin.as_ref(), PLAN_BYTES_MAX)
                    .map_err(|e| Unusable(format!("plan {origin}: {e}")))?;
                Ok((origin, text))
            }
            (None, Some(flags)) => {
                let Some(flags_of_row) = shlex::split(flags) else {
                    return Err(Unusable(format!("run `{flags}`: a quote is not closed")).into());
                };
                let words = ["harness", "run"].map(str::to_owned).into_iter().chain(flags_of_row);
                let cli = Cli::try_parse_from(words).map_err(|e| Unusable(format!("run `{flags}`: {e}")))?;
                let Command::Run(args) = cli.command else { unreachable!("`run` is its first word") };
                let dir = self.file.parent().unwrap_or(Path::new("."));
                Ok((format!("run {flags}"), of_row(&args, cluster, dir)?.to_toml()?))
            }
            _ => Err(Unusable("expected either `plan` or `run`".into()).into()),
        }
    }

    /// Parses a plan file of the row. The flags of a row have been checked for faults that are longer than the run.
    fn parse(&self, text: &str, origin: &str, cluster: ClusterKind) -> anyhow::Result<PlanFile> {
        let file = PlanFile::parse(text, origin, Some(cluster))?;
        if self.plan.is_some() {
            fits_its_run(&file.plan)?;
        }
        Ok(file)
    }

    fn cases(&self, cluster: ClusterKind) -> anyhow::Result<Vec<Case>> {
        let (origin, unchanged) = self.text(cluster)?;
        let mut text = unchanged.clone();
        for (field, value) in &self.set {
            // Of a list of backends, some may have this value by default.
            let changed = match self.group {
                Some(_) => set(&text, field, value).map(|(text, _)| text),
                None => replaced(&text, field, value),
            };
            text = changed.map_err(|e| Unusable(format!("set: {e}")))?;
        }
        // An error names lines of the changed text, which are not those of the file.
        let origin_of_row = if self.set.is_empty() { origin.clone() } else { format!("{origin} (with `set`)") };
        let file = self.parse(&text, &origin_of_row, cluster)?;
        // Another way to write a value, or a default that the plan leaves out, makes another text and no other plan.
        if self.group.is_none() && !self.set.is_empty() {
            let is_same = PlanFile::parse(&unchanged, &origin, Some(cluster)).is_ok_and(|before| before == file);
            if is_same {
                return Err(Unusable("set: the plan stays as it is: nothing would differ".into()).into());
            }
        }
        let of_row = Case {
            name: self.id.clone(),
            claim: self.claim.clone(),
            by: self.by.clone(),
            file,
            witnesses: witnesses(&self.witness)?,
            expectation: self.expect.as_deref().map(expectation).transpose()?,
            causes: self.causes.clone(),
            holds_for: self.holds_for.clone(),
        };
        of_row.check()?;
        let Some(twin) = &self.twin else { return Ok(vec![of_row]) };
        let twin_text = replaced(&text, &twin.field, &twin.value).map_err(|e| Unusable(format!("twin: {e}")))?;
        let of_twin = Case {
            name: self.twin_name(),
            claim: format!("the plan of {}, but {}", self.id, differences(&text, &twin_text).join(", ")),
            file: self.parse(&twin_text, &format!("{origin_of_row} (twin)"), cluster)?,
            witnesses: twin.witness.as_deref().map_or(Ok(of_row.witnesses.clone()), witnesses)?,
            expectation: Some(expectation(&twin.expect)?),
            causes: twin.causes.clone(),
            ..of_row.clone()
        };
        if of_twin.file == of_row.file {
            let Twin { field, value, .. } = twin;
            let problem = format!("`{field}` = {value} leaves the plan of the row as it is: nothing would differ");
            return Err(Unusable(format!("twin: {problem}")).into());
        }
        of_twin.check()?;
        Ok(vec![of_row, of_twin])
    }
}

fn witnesses(words: &[String]) -> Result<Vec<Witness>, Unusable> {
    words.iter().map(|word| word.parse()).collect()
}

fn expectation(text: &str) -> Result<(Expectation, String), Unusable> {
    Ok((text.parse()?, text.to_owned()))
}

impl Case {
    /// Checks that the plan can be run on its cluster, and that its run has every figure, node and fault that the row
    /// names.
    fn check(&self) -> Result<(), Unusable> {
        let named = |e: Unusable| Unusable(format!("{}: {e}", self.name));
        // Such an error later would end the call, and leave out all further rows.
        self.file.clone().ready().map_err(|e| named(Unusable(format!("{e:#}"))))?;
        let plan = &self.file.plan;
        self.witnesses.iter().try_for_each(|witness| witness.check(plan)).map_err(named)?;
        self.expectation.iter().try_for_each(|(expectation, _)| expectation.check(plan)).map_err(named)
    }

    /// Returns the fingerprint of the plan, of what it expects, of the servers for which it expects that, and of the
    /// user's own Compose file.
    pub fn fingerprint(&self) -> anyhow::Result<String> {
        let mut file = self.file.clone();
        // The token sources that a client could use as well decide nothing.
        file.plan.servers.tokens = vec![file.plan.tokens];
        let mut expected = format!("{:?}{:?}{:?}", self.expectation, self.witnesses, self.causes);
        if !self.holds_for.is_empty() {
            expected += &format!("{:?}", self.holds_for);
        }
        let servers = match &self.file.compose {
            Some(own) => {
                compose::read_text(own, compose::TEXT_MAX).map_err(|e| Unusable(format!("{}: {e}", own.display())))?
            }
            None => return Ok(fingerprint::of([file.to_toml()?.as_str(), &expected])),
        };
        Ok(fingerprint::of([file.to_toml()?.as_str(), &expected, &servers]))
    }

    /// Returns the time that a run is planned to take, with about the time in which containers start and end.
    pub fn planned(&self) -> Duration {
        const CONTAINERS: Duration = Duration::from_secs(10);
        self.file.plan.time + CONTAINERS
    }

    /// Returns the expected verdicts and causes, in words.
    pub fn expected(&self) -> String {
        let causes = self.causes.as_ref().filter(|causes| !causes.is_empty());
        let causes = causes.map(|causes| format!("; cause {}", joined(causes, " and "))).unwrap_or_default();
        let expected = self.expectation.as_ref().map_or("its witness".to_owned(), |(_, text)| text.replace(',', ", "));
        format!("{expected}{causes}")
    }

    /// Returns whether the expectation is about these servers. The models of the simulation count as the servers they
    /// model.
    pub fn is_about(&self, servers: &str, cluster: ClusterKind) -> bool {
        let holds_for = &self.holds_for;
        cluster == ClusterKind::Sim || holds_for.is_empty() || holds_for.iter().any(|of| servers.starts_with(of))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario::Scenario;

    /// Reads a suite whose only row has a lease of 2 s, and these keys.
    fn read(keys: &str) -> Result<Vec<Case>, String> {
        let row = "id = \"A\"\nclaim = \"c\"\nby = \"b\"\nwitness = [\"facts.holds>=1\"]\n\
                   run = \"--nemesis none --lease 2s --time 6s\"";
        let path = Path::new("s.toml");
        let suite = rows::parse(&format!("schema = 1\n[[row]]\n{row}\n{keys}\n"), path).unwrap();
        suite.cases(path, ClusterKind::Sim, &[]).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn a_row_whose_plan_has_no_end_is_refused() {
        let row = "id = \"A\"\nclaim = \"c\"\nby = \"b\"\nwitness = []\nplan = \"/dev/zero\"";
        let suite = rows::parse(&format!("schema = 1\n[[row]]\n{row}\n"), Path::new("s.toml")).unwrap();
        let refused = format!("{:#}", suite.cases(Path::new("s.toml"), ClusterKind::Sim, &[]).unwrap_err());
        assert!(refused.contains("row A of s.toml: plan /dev/zero: larger than 64 MiB"), "{refused}");
    }

    #[test]
    fn an_unknown_backend_of_a_list_is_refused_on_both_clusters() {
        let row = "id = \"A\"\nclaim = \"c\"\nby = \"b\"\nwitness = []\nrun = \"--time 6s\"";
        let list = "backends = [\"redis\", \"redlok\"]";
        let suite = rows::parse(&format!("schema = 1\n[[row]]\n{row}\n{list}\n"), Path::new("s.toml")).unwrap();
        for cluster in [ClusterKind::Docker, ClusterKind::Sim] {
            let refused = format!("{:#}", suite.cases(Path::new("s.toml"), cluster, &[]).unwrap_err());
            let is_named = refused.contains("row A/redlok of s.toml") && refused.contains("`redlok` is no backend");
            assert!(is_named, "{cluster:?}: {refused}");
        }
    }

    #[test]
    fn a_value_that_is_only_written_in_another_way_is_refused() {
        let count = |keys: &str| read(keys).map(|cases| cases.len());
        let twin = |lease: &str| {
            count(&format!("[row.twin]\nfield = \"plan.lease\"\nvalue = \"{lease}\"\nexpect = \"lock=upheld\""))
        };
        let set = |lease: &str| count(&format!("set = {{ \"plan.lease\" = \"{lease}\" }}"));
        for refused in [twin("2000ms"), set("2000ms")] {
            let problem = refused.unwrap_err();
            assert!(problem.contains("nothing would differ"), "{problem}");
        }
        assert_eq!((twin("3s"), set("3s")), (Ok(2), Ok(1)));
    }

    #[test]
    fn an_error_in_a_changed_plan_does_not_name_the_plan_of_the_file() {
        let set = "set = { \"plan.leese\" = \"3s\" }";
        let twin = "[row.twin]\nfield = \"plan.leese\"\nvalue = \"3s\"\nexpect = \"lock=upheld\"";
        for (keys, whose) in [(set, "--time 6s (with `set`): "), (twin, "--time 6s (twin): ")] {
            let refused = read(keys).unwrap_err();
            assert!(refused.contains(whose) && refused.contains("leese"), "{refused}");
        }
    }

    #[test]
    fn a_twin_cannot_name_what_its_plan_does_not_have() {
        let twin =
            |more: &str| read(&format!("[row.twin]\nfield = \"plan.lease\"\nvalue = \"3s\"\n{more}")).unwrap_err();
        let problem = twin("expect = \"lock=upheld\"\nwitness = [\"proved:clock\"]");
        assert!(problem.contains("A twin: ") && problem.contains("the plan has no fault `clock`"), "{problem}");
        let problem = twin("expect = \"lock.windws>=1\"");
        assert!(problem.contains("lock.windows"), "{problem}");
    }

    #[test]
    fn a_row_that_its_cluster_cannot_run_is_refused_before_the_first_run() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Scenario::of("dynamodb").unwrap();
        let plan = plan.file(String::new(), plan.base.clone()).to_toml().unwrap();
        std::fs::write(dir.path().join("unmodelled.toml"), plan).unwrap();
        let path = dir.path().join("s.toml");
        for (row, cluster, words) in [
            ("run = \"--nemesis none --image rediss=redis:7\"", ClusterKind::Docker, "`rediss` is no role"),
            ("plan = \"unmodelled.toml\"", ClusterKind::Sim, "the simulation has no model of the servers"),
        ] {
            let row = format!("id = \"B\"\nclaim = \"c\"\nby = \"b\"\nwitness = []\n{row}");
            let suite = rows::parse(&format!("schema = 1\n[[row]]\n{row}\n"), &path).unwrap();
            let refused = format!("{:#}", suite.cases(&path, cluster, &[]).unwrap_err());
            assert!(refused.contains("row B of ") && refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn everything_that_decides_the_outcome_of_a_row_changes_its_fingerprint() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own.yaml");
        let row = read("").unwrap().remove(0);
        let changed = |change: &dyn Fn(&mut Case)| {
            let mut case = row.clone();
            change(&mut case);
            case.fingerprint().unwrap()
        };
        let with_own = |text: &str| {
            std::fs::write(&own, text).unwrap();
            changed(&|case| case.file.compose = Some(own.clone()))
        };
        let fingerprints = BTreeSet::from([
            changed(&|_| ()),
            changed(&|case| case.file.plan.seed += 1),
            changed(&|case| case.expectation = Some(expectation("lock=upheld").unwrap())),
            changed(&|case| case.witnesses.clear()),
            changed(&|case| case.causes = Some(vec!["pause".parse().unwrap()])),
            changed(&|case| case.holds_for = vec!["redis 7".into()]),
            with_own("services: {}\n"),
            with_own("services: {}\n# changed\n"),
        ]);
        assert_eq!(fingerprints.len(), 8);
        assert!(fingerprints.contains(&changed(&|_| ())));
        // A new token source of the same client changes no run.
        assert!(fingerprints.contains(&changed(&|case| case.file.plan.servers.tokens.push(history::Tokens::Own))));
    }
}
