//! A suite file: rows, each a claim, the plan that tries it, what must be seen, and what must come out.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Parser;
use history::ClusterKind;
use serde::Deserialize;

use super::witness::Witness;
use crate::{
    cli::{Cli, Command},
    exit::Unusable,
    expect::Expectation,
    scenario::{PlanFile, from_flags},
};

/// A suite, as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteFile {
    /// Version of this format: 1.
    pub schema: u32,
    /// Its rows.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// One claim.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name in the table: `K1`.
    pub id: String,
    /// What is claimed.
    pub claim: String,
    /// Who claimed it.
    pub by: String,
    /// The plan, beside the suite file.
    #[serde(default)]
    pub plan: Option<PathBuf>,
    /// Flags of `harness run`, in place of a plan: `--nemesis delay:redis-2@2s+2s --time 6s`.
    #[serde(default)]
    pub run: Option<String>,
    /// Fields of the plan that are otherwise in this row, by their paths into the plan file, as in [`Twin::field`]: rows that differ in little share a plan.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
    /// What must be seen in the history for the run to say anything.
    pub witness: Vec<String>,
    /// What must come out, as behind `--expect`. If left out, all that counts is that the witnesses are seen.
    #[serde(default)]
    pub expect: Option<String>,
    /// Causes that every window must have, exactly these.
    #[serde(default)]
    pub causes: Option<Vec<String>>,
    /// Where it can be tried, if not everywhere: a container's kernel keeps what a machine without power would have lost.
    #[serde(default)]
    pub clusters: Vec<ClusterKind>,
    /// Servers that the expectation holds for: the run's versions must begin with one of these. All, if left out.
    #[serde(default)]
    pub holds_for: Vec<String>,
    /// The same plan with one field changed.
    #[serde(default)]
    pub twin: Option<Twin>,
}

/// The same plan with one field changed: what the field is worth.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Twin {
    /// The field, as a path into the plan file: `plan.tokens`, `plan.schedule.5.fault.back_after` (steps and waits by their number).
    pub field: String,
    /// Its value in the twin run.
    pub value: toml::Value,
    /// What must come out.
    pub expect: String,
    /// What must be seen; that of the row, if left out.
    #[serde(default)]
    pub witness: Option<Vec<String>>,
    /// Causes that every window must have.
    #[serde(default)]
    pub causes: Option<Vec<String>>,
}

/// A run that a suite makes: a row, or the twin of one.
#[derive(Debug, Clone)]
pub struct Case {
    /// `K4`, `K4 twin`.
    pub name: String,
    /// What is claimed.
    pub claim: String,
    /// Who claimed it.
    pub by: String,
    /// The plan file; its seed is that of the first run.
    pub file: PlanFile,
    /// What must be seen.
    pub witnesses: Vec<Witness>,
    /// What must come out, and as text.
    pub expectation: Option<(Expectation, String)>,
    /// Causes that every window must have.
    pub causes: Option<Vec<String>>,
    /// Servers that this holds for.
    pub holds_for: Vec<String>,
}

/// Reads a suite: every row's plan, twin and words are looked at before anything runs.
///
/// # Errors
/// What cannot be understood, and in which row.
pub fn read(path: &Path, cluster: ClusterKind, only: &[String]) -> anyhow::Result<Vec<Case>> {
    let wrong = |problem: String| Unusable(format!("suite {}: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let suite: SuiteFile = toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if suite.schema != 1 {
        return Err(wrong(format!("schema {} is unknown; this version reads schema 1", suite.schema)).into());
    }
    let mut ids: Vec<&str> = suite.rows.iter().map(|row| row.id.as_str()).collect();
    if let Some(unknown) = only.iter().find(|id| !ids.contains(&id.as_str())) {
        return Err(wrong(format!("--only: there is no row `{unknown}`; there are: {}", ids.join(", "))).into());
    }
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(wrong(format!("two rows are called {}", twice[0])).into());
    }
    let base = path.parent().unwrap_or(Path::new("."));
    let chosen = suite.rows.iter().filter(|row| only.is_empty() || only.contains(&row.id));
    let mut cases = Vec::new();
    for row in chosen.filter(|row| row.clusters.is_empty() || row.clusters.contains(&cluster)) {
        cases.extend(row.cases(base, cluster).map_err(|e| e.context(format!("row {} of {}", row.id, path.display())))?);
    }
    Ok(cases)
}

impl Row {
    /// The plan file as text, and where it comes from.
    fn text(&self, base: &Path, cluster: ClusterKind) -> anyhow::Result<(String, String)> {
        match (&self.plan, &self.run) {
            (Some(plan), None) => {
                let origin = base.join(plan).display().to_string();
                let text = std::fs::read_to_string(&origin).map_err(|e| Unusable(format!("plan {origin}: {e}")))?;
                Ok((origin, text))
            }
            (None, Some(flags)) => {
                let words = ["harness", "run", "--seed", "1"].into_iter().chain(flags.split_whitespace());
                let cli = Cli::try_parse_from(words).map_err(|e| Unusable(format!("run `{flags}`: {e}")))?;
                let Command::Run(args) = cli.command else { unreachable!("`run` is its first word") };
                Ok((format!("run {flags}"), from_flags(&args, cluster)?.to_toml()?))
            }
            _ => Err(Unusable("expected either `plan` or `run`".into()).into()),
        }
    }

    fn cases(&self, base: &Path, cluster: ClusterKind) -> anyhow::Result<Vec<Case>> {
        let case = |name: String, file, witness: &[String], expect: Option<&String>, causes: &Option<Vec<String>>| {
            let witnesses = witness.iter().map(|text| text.parse()).collect::<Result<_, Unusable>>()?;
            let (claim, by, holds_for) = (self.claim.clone(), self.by.clone(), self.holds_for.clone());
            let expectation = expect.map(|text| Ok::<_, Unusable>((text.parse()?, text.clone()))).transpose()?;
            Ok::<_, anyhow::Error>(Case {
                name,
                claim,
                by,
                file,
                witnesses,
                expectation,
                causes: causes.clone(),
                holds_for,
            })
        };
        let (origin, mut text) = self.text(base, cluster)?;
        for (field, value) in &self.set {
            text = changed(&text, field, value).map_err(|e| Unusable(format!("set: {e}")))?;
        }
        let plan = PlanFile::parse(&text, &origin, Some(cluster))?;
        let mut cases = vec![case(self.id.clone(), plan, &self.witness, self.expect.as_ref(), &self.causes)?];
        if let Some(twin) = &self.twin {
            let changed = changed(&text, &twin.field, &twin.value).map_err(|e| Unusable(format!("twin: {e}")))?;
            let plan = PlanFile::parse(&changed, &format!("{origin} (twin)"), Some(cluster))?;
            let witness = twin.witness.as_ref().unwrap_or(&self.witness);
            cases.push(case(format!("{} twin", self.id), plan, witness, Some(&twin.expect), &twin.causes)?);
        }
        Ok(cases)
    }
}

impl Case {
    /// Whether what is expected is known of these servers. Models are known as what they are models of.
    pub fn is_about(&self, servers: &str, cluster: ClusterKind) -> bool {
        let holds_for = &self.holds_for;
        cluster == ClusterKind::Sim || holds_for.is_empty() || holds_for.iter().any(|of| servers.starts_with(of))
    }
}

/// `text` with one field of another value.
fn changed(text: &str, path: &str, value: &toml::Value) -> Result<String, String> {
    let mut document: toml::Value = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut words: Vec<&str> = path.split('.').collect();
    let last = words.pop().unwrap_or_default();
    let mut at = &mut document;
    for word in words {
        at = match at {
            toml::Value::Table(table) => table.get_mut(word),
            toml::Value::Array(items) => {
                let number = word.parse::<i64>().ok();
                items.iter_mut().find(|item| item.get("id").and_then(toml::Value::as_integer) == number)
            }
            _ => None,
        }
        .ok_or_else(|| format!("`{path}`: the plan has no `{word}` there"))?;
    }
    let table = at.as_table_mut().ok_or_else(|| format!("`{path}`: expected a table above `{last}`"))?;
    if table.insert(last.to_owned(), value.clone()).as_ref() == Some(value) {
        return Err(format!("`{path}` is {value} already: nothing would differ"));
    }
    toml::to_string(&document).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "run = \"x\"\n[plan]\nlease = \"2s\"\n[[plan.schedule]]\nid = 5\nfault = { back_after = \"1s\" }\n";

    #[test]
    fn a_twin_differs_in_one_field() {
        let twin = changed(TEXT, "plan.schedule.5.fault.back_after", &"7s".into()).unwrap();
        let (one, other): (toml::Table, toml::Table) = (toml::from_str(TEXT).unwrap(), toml::from_str(&twin).unwrap());
        assert_ne!(one, other);
        assert!(twin.contains("back_after = \"7s\"") && twin.contains("lease = \"2s\""), "{twin}");
        assert!(changed(TEXT, "plan.tokens", &"none".into()).unwrap().contains("tokens = \"none\""));
    }

    #[test]
    fn a_twin_that_changes_nothing_or_aims_at_nothing_is_refused() {
        for (path, value, words) in
            [("plan.lease", "2s", "already"), ("plan.schedule.6.fault.kind", "x", "`6`"), ("run.x", "y", "a table")]
        {
            assert!(changed(TEXT, path, &value.into()).unwrap_err().contains(words), "{path}");
        }
    }
}
