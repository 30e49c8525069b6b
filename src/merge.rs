//! `harness merge`: finds the results of shards, of suites or of an exploration.

use std::path::{Path, PathBuf};

use crate::{
    cli::MergeArgs,
    exit::{Exit, Unusable, usage},
    explore, suite,
};

/// `harness merge`
pub fn merge(args: &MergeArgs) -> anyhow::Result<Exit> {
    let (explorations, suites): (Vec<_>, Vec<_>) =
        files(&args.results)?.into_iter().partition(|path| is_exploration(path));
    let (Some(exploration), suite) = (explorations.first(), suites.first()) else { return suite::merge(args, suites) };
    if let Some(suite) = suite {
        let (one, other) = (exploration.display(), suite.display());
        return Err(Unusable(format!("{one} is of `explore`, {other} of a suite: join them in two calls")).into());
    }
    if args.junit.is_some() {
        return Err(usage("junit", "an exploration has no expectations, so it has no test cases"));
    }
    explore::merge(args, explorations)
}

fn is_exploration(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Finds the results in directories; a file is taken as it is.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Unusable> {
    let mut found = Vec::new();
    for path in paths {
        let wrong = |e: std::io::Error| Unusable(format!("{}: {e}", path.display()));
        if !path.is_dir() {
            found.push(path.canonicalize().map_err(wrong)?);
            continue;
        }
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(wrong)?;
        let is_results = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            suite::is_results(&name) || explore::is_results(&name)
        };
        let mut of_dir: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_results).collect();
        if of_dir.is_empty() {
            let problem = "no results of a suite or of `explore` in it; expected the --runs directory of `harness \
                           suite`, with a file suite-NAME-CLUSTER.jsonl, or the --save directory of `harness explore`, \
                           with a file explore.json";
            return Err(Unusable(format!("{}: {problem}", path.display())));
        }
        of_dir.sort();
        found.extend(of_dir.into_iter().map(|path| path.canonicalize().unwrap_or(path)));
    }
    // One file under two names is the same results.
    let mut once = Vec::new();
    for path in found {
        if !once.contains(&path) {
            once.push(path);
        }
    }
    Ok(once)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_file_with_several_paths_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let [runs, link] = ["runs", "link"].map(|name| dir.path().join(name));
        fs::create_dir(&runs).unwrap();
        symlink(&runs, &link).unwrap();
        let name = "suite-s-sim.jsonl";
        fs::write(runs.join(name), "").unwrap();
        let real = [runs.join(name).canonicalize().unwrap()];
        for paths in [[link.clone(), runs.join(name)], [link.join(name), runs.clone()], [link.clone(), runs.clone()]] {
            assert_eq!(files(&paths).unwrap(), real, "{paths:?}");
        }
    }
}
