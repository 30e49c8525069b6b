//! The table of the checker's mutants fits the sources: a mutant that no longer fits would never be caught.

use std::{fs, path::Path, process::Command};

use crate::say::left_out;

/// One edit of a mutant: the file, and what must be in it once.
fn edits(mutant: &toml::Table) -> Vec<(String, String)> {
    let of = |edit: &toml::Table| {
        let text = |field: &str| edit[field].as_str().expect("text").to_owned();
        (text("file"), text("from"))
    };
    match mutant.get("edits").and_then(|edits| edits.as_array()) {
        Some(edits) => edits.iter().map(|edit| of(edit.as_table().expect("a table"))).collect(),
        None => vec![of(mutant)],
    }
}

#[test]
fn every_mutant_of_the_checker_can_be_planted() {
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("checker");
    let table: toml::Table = fs::read_to_string(checker.join("mutants/mutants.toml")).unwrap().parse().unwrap();
    let mutants = table["mutant"].as_array().unwrap();
    assert!(mutants.len() >= 90, "{} mutants", mutants.len());
    for mutant in mutants.iter().map(|mutant| mutant.as_table().unwrap()) {
        for (file, from) in edits(mutant) {
            let source = fs::read_to_string(checker.join(&file)).unwrap_or_default();
            assert_eq!(source.matches(&from).count(), 1, "{}: {file} has not once {from:?}", mutant["name"]);
        }
    }
}

/// Loads the script and opens its log.
const OPEN_LOG: &str = "
import importlib.machinery, importlib.util, pathlib, sys
loader = importlib.machinery.SourceFileLoader('mutants', sys.argv[1])
script = importlib.util.module_from_spec(importlib.util.spec_from_loader('mutants', loader))
loader.exec_module(script)
script.Log(pathlib.Path(sys.argv[2]), '# of these sources')
";

#[test]
fn the_log_of_mutants_needs_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("target/mutants.log");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/mutants/run");
    // Without bytecode beside the script.
    match Command::new("python3").args(["-B", "-c", OPEN_LOG, script]).arg(&log).output() {
        Ok(ran) => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr)),
        Err(problem) => {
            assert!(std::env::var_os("CI").is_none(), "python3, which scripts/setup installs: {problem}");
            left_out("no python3 on the path, checker/mutants/run was not tried");
            return;
        }
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "# of these sources\n");
}
