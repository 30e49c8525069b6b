//! Shards of a suite, joined to the table of one call; red runs; files for other programs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::support::{Ran, harness, ran};

const KLEPPMANN: &str = "suites/kleppmann.toml";
const FAULTS: &str = "suites/faults.toml";

fn suite(suites: &[&str], runs: &Path, args: &[&str]) -> Ran {
    let sim = ["--cluster", "sim", "--runs"];
    harness().arg("suite").args(suites).args(sim).arg(runs).args(args).output().unwrap().into()
}

fn merge(dirs: &[PathBuf], args: &[&str]) -> Ran {
    harness().arg("merge").args(dirs).args(args).output().unwrap().into()
}

/// The table without the lines of single runs, and without the time that the runs took.
fn table(stdout: &str) -> String {
    let start = stdout.find("\nsuite ").or(stdout.find("\nrow ")).unwrap_or_else(|| panic!("no table: {stdout}"));
    let is_time = |line: &&str| line.contains(" runs came out as expected, in ");
    let without_time = |line: &str| line.split(", in ").next().unwrap().to_owned();
    let lines = stdout[start..].lines().map(|line| if is_time(&line) { without_time(line) } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

/// The names of the rows in the record of a directory, without those of other shards.
fn rows_made(dir: &Path) -> Vec<String> {
    let records = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let records = records.filter(|path| path.extension().is_some_and(|e| e == "jsonl"));
    let lines = records
        .flat_map(|path| fs::read_to_string(path).unwrap().lines().skip(1).map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| serde_json::from_str::<Value>(&line).unwrap()["case"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn shards_joined_give_the_table_of_one_call() {
    let dir = tempfile::tempdir().unwrap();
    let whole = suite(&[KLEPPMANN, FAULTS], &dir.path().join("whole"), &["--repeat", "2"]).exits(0);
    let shards: Vec<PathBuf> = (1..=3).map(|n| dir.path().join(n.to_string())).collect();
    let mut names = Vec::new();
    for (n, runs) in (1..).zip(&shards) {
        // The last shard is named as Kubernetes counts.
        let shard =
            if n < 3 { ["--shard".to_owned(), format!("{n}/3")] } else { ["--shard-index", "2/3"].map(str::to_owned) };
        // The order of the files and a directory of their own change nothing.
        suite(&[KLEPPMANN, FAULTS], runs, &["--repeat", "2", &shard[0], &shard[1]]).exits(0);
        names.extend(rows_made(runs));
    }
    let all = rows_made(&dir.path().join("whole"));
    assert_eq!(names.len(), all.len(), "no row is in two shards");
    assert_eq!(names.iter().collect::<BTreeSet<_>>(), all.iter().collect::<BTreeSet<_>>());
    let reversed: Vec<PathBuf> = shards.iter().rev().cloned().collect();
    let merged = merge(&reversed, &[]).exits(0);
    assert_eq!(table(&merged.stdout), table(&whole.stdout));
    // The results of one call are shard 1 of 1.
    let alone = merge(&[dir.path().join("whole")], &[]).exits(0);
    assert_eq!(table(&alone.stdout), table(&whole.stdout));
}

#[test]
fn shards_that_do_not_fit_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two, other] = ["one", "two", "other"].map(|name| dir.path().join(name));
    suite(&[FAULTS], &one, &["--only", "pause,kill", "--shard", "1/2"]).exits(0);
    suite(&[FAULTS], &other, &["--only", "pause,stop", "--shard", "2/2"]).exits(0);
    merge(std::slice::from_ref(&one), &[]).exits(64).says(&["no results of shard 2/2", "suite-faults-sim-1of2.jsonl"]);
    merge(&[one.clone(), other], &[]).exits(64).says(&["--only", "a difference: the row"]);
    suite(&[FAULTS], &two, &["--only", "pause,kill", "--shard", "2/2"]).exits(0);
    merge(&[one.clone(), two.clone(), one.clone()], &[]).exits(0);
    // If the value of --junit is forgotten, the first shard is the file.
    let first = one.join("suite-faults-sim-1of2.jsonl");
    let junit = ["--junit", first.to_str().unwrap()];
    for results in [vec![two.clone()], vec![one.clone(), two.clone()]] {
        merge(&results, &junit).exits(64).says(&["--junit", "1of2.jsonl has something else"]);
    }
    merge(&[one.clone(), two.clone()], &[]).exits(0);
    // A shard that has left nothing is missed, even if the others are complete.
    let with_nothing = [one.clone(), two.clone(), dir.path().to_owned()];
    merge(&with_nothing, &[]).exits(64).says(&["no results of a suite", "--runs"]);
    let copy = two.join("suite-copy.jsonl");
    fs::copy(two.join("suite-faults-sim-2of2.jsonl"), &copy).unwrap();
    merge(&[one.clone(), two.clone()], &[]).exits(64).says(&["2/2 is given twice", "suite-copy.jsonl"]);
    let text = fs::read_to_string(&copy).unwrap();
    fs::remove_file(&copy).unwrap();
    let at = text.find("\"build\":\"").unwrap() + 9;
    let another = format!("{}0123456789abcdef{}", &text[..at], &text[at + 16..]);
    fs::write(two.join("suite-faults-sim-2of2.jsonl"), another).unwrap();
    merge(&[one.clone(), two], &[]).exits(64).says(&["different builds", "same binary"]);
    merge(&[dir.path().join("nowhere")], &[]).exits(64).says(&["nowhere"]);
    merge(&[dir.path().to_owned()], &[]).exits(64).says(&["no results of a suite", "--runs"]);
    merge(&[PathBuf::from(FAULTS)], &[]).exits(64).says(&["faults.toml, line 1", "no head"]);
}

#[test]
fn a_shard_that_cannot_be_is_refused() {
    for (shard, words) in [("0/8", "count from 1"), ("9/8", "no shard 9 of 8"), ("a/b", "NUMBER/COUNT")] {
        ran(&["suite", FAULTS, "--cluster", "sim", "--shard", shard]).exits(64).says(&[words, "2/8"]);
    }
    ran(&["suite", FAULTS, "--cluster", "sim", "--shard-index", "8/8"]).exits(64).says(&["index of 8 shards is 7"]);
    ran(&["suite", FAULTS, "--shard-index", "0/8", "--shard", "1/8"]).exits(64).says(&["--shard-index"]);
    let dir = tempfile::tempdir().unwrap();
    let args = ["--only", "pause", "--shard", "2/2"];
    suite(&[FAULTS], dir.path(), &args).exits(0).says(&["shard 2/2 has no row"]);
}

/// A suite of three rows, of which the second comes out better than it should, and the third cannot be run at all.
fn red(dir: &Path) -> String {
    let row = |id: &str, more: &str, expect: &str| {
        format!(
            "[[row]]\nid = \"{id}\"\nclaim = \"<{id}> | a\"\nby = \"b\"\nwitness = []\n\
             run = \"--nemesis none --time 20s {more}\"\nexpect = \"{expect}\"\n"
        )
    };
    let rows = [
        row("good", "", "lock=upheld"),
        row("better", "", "lock=violated,off.data.lost_updates>=1"),
        row("unmade", "--backend buggy:stamps-late", "lock=upheld"),
        row("last", "", "lock=upheld"),
    ];
    let path = dir.join("red.toml");
    fs::write(&path, format!("schema = 1\n{}", rows.concat())).unwrap();
    path.display().to_string()
}

#[test]
fn a_red_run_ends_the_suite_unless_it_keeps_going() {
    let dir = tempfile::tempdir().unwrap();
    let (red, runs) = (red(dir.path()), dir.path().join("runs"));
    let ran = suite(&[&red], &runs, &[]).exits(1).says(&["2 runs are left out", "--keep-going"]);
    assert!(ran.stdout.contains("better") && ran.stdout.contains("NOT AS EXPECTED"), "{}", ran.stdout);
    assert!(ran.stdout.contains("expected lock=violated, found upheld"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 of 4 runs came out as expected"), "{}", ran.stdout);
    assert!(ran.stdout.contains("2 not made"), "{}", ran.stdout);
    let ran = suite(&[&red], &runs, &["--keep-going", "--resume"]).exits(1).says(&["second try"]);
    assert!(ran.stdout.contains("2 of 4 runs came out as expected"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 infrastructure"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("not made"), "{}", ran.stdout);
    // A run that could not be made is tried again; a red one has its verdict.
    let ran = suite(&[&red], &runs, &["--resume"]).exits(1);
    assert_eq!(ran.stdout.matches("try 1 failed").count(), 1, "{}", ran.stdout);
    assert_eq!(ran.stdout.matches("good ").count(), 1, "{}", ran.stdout);
    suite(&[&red], &runs, &["--only", "unmade,last", "--keep-going"]).exits(3);
}

#[test]
fn every_property_of_every_run_is_a_test_case() {
    let dir = tempfile::tempdir().unwrap();
    let (red, runs, xml) = (red(dir.path()), dir.path().join("runs"), dir.path().join("new/junit.xml"));
    let summary = dir.path().join("summary.md");
    let mut command = harness();
    command.args(["suite", &red, "--cluster", "sim", "--keep-going", "--junit"]).arg(&xml).arg("--runs").arg(&runs);
    let ran = Ran::from(command.env("GITHUB_STEP_SUMMARY", &summary).output().unwrap()).exits(1);
    let text = fs::read_to_string(&xml).unwrap();
    for words in [
        r#"name="red (sim)""#,
        r#"<testcase name="lock" classname="red.good""#,
        r#"<testcase name="off.data" classname="red.better""#,
        r#"<failure message="expected lock=violated, found upheld" type="not as expected">"#,
        r#"<testcase name="run" classname="red.unmade""#,
        r#"type="infrastructure""#,
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains(r#"failures="2" errors="1""#), "{text}");
    let annotations: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("::error title=")).collect();
    assert_eq!(annotations.len(), 2, "{}", ran.stderr);
    assert!(annotations[0].starts_with("::error title=red better%2C run 1%3A NOT AS EXPECTED::"), "{annotations:?}");
    let table = fs::read_to_string(&summary).unwrap();
    assert!(table.contains("| better | **0 of 1** | &lt;better&gt; \\| a |"), "{table}");
    // The merged file has the same test cases.
    let merged = dir.path().join("merged.xml");
    merge(&[runs], &["--junit", &merged.display().to_string()]).exits(1);
    assert_eq!(fs::read_to_string(&merged).unwrap(), text);
}

#[test]
fn an_inconclusive_run_is_skipped_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = red(dir.path());
    let text = fs::read_to_string(&path).unwrap().replace("witness = []", "witness = [\"tokens-behind\"]");
    fs::write(&path, text).unwrap();
    let xml = dir.path().join("junit.xml");
    suite(&[&path], &dir.path().join("runs"), &["--only", "better", "--junit", &xml.display().to_string()]).exits(2);
    let text = fs::read_to_string(&xml).unwrap();
    assert!(text.contains(r#"<skipped message="not seen: counters behind"/>"#), "{text}");
    assert!(text.contains(r#"failures="0" errors="0""#), "{text}");
    let nowhere = dir.path().join("s.toml/junit.xml");
    fs::write(dir.path().join("s.toml"), "").unwrap();
    let said = suite(&[&path], &dir.path().join("none"), &["--junit", &nowhere.display().to_string()]).exits(3);
    assert!(said.stderr.contains("--junit") && !dir.path().join("none").exists(), "{}", said.stderr);
}
