//! Suites: every row of the claims in the simulation, some rows on real servers, refused suites, and `--resume`.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Ran, harness, may_sweep, ran, signalled};

const KLEPPMANN: &str = "suites/kleppmann.toml";

fn suite(runs: &Path, args: &[&str]) -> Ran {
    harness().arg("suite").args(args).arg("--runs").arg(runs).output().unwrap().into()
}

#[test]
fn every_row_comes_out_as_expected_in_the_simulation() {
    let runs = tempfile::tempdir().unwrap();
    let args = [KLEPPMANN, "--cluster", "sim", "--repeat", "10", "--format", "json"];
    let ran = suite(runs.path(), &args).exits(0);
    let done: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert!(done.len() >= 250, "{}", done.len());
    assert!(done.iter().all(|done| done["outcome"] == "as-expected" && done["missing"] == serde_json::json!([])));
}

/// The row comes out as expected on real servers, and so does its twin if it has one.
fn claim(row: &str, runs: u32) {
    let _guard = may_sweep();
    let dir = tempfile::tempdir().unwrap();
    let ran = suite(dir.path(), &[KLEPPMANN, "--only", row]);
    eprintln!("{}{}", ran.stderr, ran.stdout);
    let expected = format!("{runs} of {runs} runs came out as expected");
    assert!(ran.exits(0).stdout.contains(&expected), "{expected}");
}

#[test]
#[ignore = "needs a Docker engine"]
fn claim_k3_comes_out_as_expected_on_real_servers() {
    claim("K3", 1);
}

#[test]
#[ignore = "needs a Docker engine"]
fn claim_k4b_always_keeps_a_lock_without_power_on_real_servers() {
    claim("K4b-power-always", 1);
}

/// A suite of one row in a directory of its own: K1 with other words.
fn row(change: impl Fn(&str) -> String) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy("suites/kleppmann/k1.toml", dir.path().join("k1.toml")).unwrap();
    let text = "schema = 1\n[[row]]\nid = \"K1\"\nclaim = \"c\"\nby = \"b\"\nplan = \"k1.toml\"\n\
        witness = [\"proved:pause\"]\nexpect = \"lock=violated\"\n";
    fs::write(dir.path().join("s.toml"), change(text)).unwrap();
    dir
}

fn one(dir: &tempfile::TempDir, more: &[&str]) -> Ran {
    let path = dir.path().join("s.toml").display().to_string();
    suite(&dir.path().join("runs"), &[&[path.as_str(), "--cluster", "sim"], more].concat())
}

#[test]
fn a_suite_that_cannot_be_understood_is_refused_before_anything_runs() {
    for (from, to, words) in [
        ("schema = 1", "schema = 2", "schema 2 is unknown"),
        ("claim", "clame", "clame"),
        ("proved:pause", "proved:puase", "witness `proved:puase`"),
        ("proved:pause", "proved:clock", "no fault `clock`"),
        ("proved:pause", "granted-again:redis-9", "`redis-9` is no lock node"),
        ("proved:pause", "quorums:1,9", "from 1 to 5"),
        ("proved:pause", "lock.windws>=1", "similar words: lock.windows"),
        ("proved:pause", "tokens-behnd", "similar words: tokens-behind"),
        ("proved:pause", "check-to-write<1s", "expected `<=` or `>=`, and a duration"),
        ("proved:pause", "check-to-write<=1x", "expected a duration"),
        ("proved:pause", "check-to-write<=1s", "the clients of the plan do not check"),
        ("lock=violated", "lock=borken", "borken"),
        ("lock=violated", "lokc=violated", "similar words: lock"),
        ("lock=violated", "lock=violated,lock=upheld", "exclude each other"),
        ("witness", "clusters = [\"docker\"]\nwitness", "no row runs on --cluster sim"),
        ("k1.toml", "k9.toml", "k9.toml"),
        (
            "witness =",
            "set = { \"plan.time\" = \"4s\", \"plan.lease\" = \"1s\" }\nwitness =",
            "longer than the whole fault phase",
        ),
        (
            "witness =",
            "twin = { field = \"plan.lease\", value = \"2s\", expect = \"lock=upheld\" }\nwitness =",
            "already",
        ),
    ] {
        let dir = row(|text| text.replace(from, to));
        one(&dir, &[]).exits(64).says(&[words]);
        assert!(!dir.path().join("runs").exists(), "{words}");
    }
    let dir = row(str::to_owned);
    one(&dir, &["--only", "K9"]).exits(64).says(&["no row `K9`", "K1"]);
    let elsewhere = row(|text| text.replace("witness", "clusters = [\"docker\"]\nwitness"));
    one(&elsewhere, &["--only", "K1"]).exits(64).says(&["row `K1`", "--cluster sim"]);
}

#[test]
fn a_row_whose_last_seed_is_too_large_is_refused_before_its_first_run() {
    let dir = row(|text| text.replace("witness =", "set = { \"plan.seed\" = 9007199254740992 }\nwitness ="));
    one(&dir, &["--repeat", "2", "--keep-going"]).exits(64).says(&["row K1 of suite s", "2^53", "plan.seed"]);
    assert!(!dir.path().join("runs").exists());
}

#[test]
fn without_its_witness_a_row_says_nothing_and_a_wrong_expectation_is_told() {
    let dir = row(|text| text.replace("proved:pause", "tokens-behind"));
    let ran = one(&dir, &[]).exits(2);
    assert!(ran.stdout.contains("not seen: counters behind"), "{}", ran.stdout);
    // A user can look at a run that did not come out as expected.
    let is_written = |dir: &tempfile::TempDir| dir.path().join("runs/latest/verdict.json").exists();
    assert!(is_written(&dir));
    let dir = row(|text| text.replace("lock=violated", "lock=upheld"));
    let ran = one(&dir, &[]).exits(1);
    assert!(ran.stdout.contains("expected lock=upheld, found violated"), "{}", ran.stdout);
    assert!(is_written(&dir));
    let dir = row(|text| text.replace("witness", "causes = [\"clock\"]\nwitness"));
    let ran = one(&dir, &[]).exits(1);
    assert!(ran.stdout.contains("expected the cause clock, found pause"), "{}", ran.stdout);
}

#[test]
fn a_twin_is_named_by_the_field_in_which_its_plan_differs() {
    let twin = "twin = { field = \"plan.seed\", value = 77, expect = \"lock=violated\" }\nwitness =";
    let dir = row(|text| text.replace("witness =", twin));
    let said = one(&dir, &[]).exits(0).stdout;
    assert!(said.contains("the plan of K1, but plan.seed = 77 instead of "), "{said}");
    assert_eq!(said.matches(" c\n").count(), 1, "the twin does not repeat the claim: {said}");
}

#[test]
fn an_interrupted_suite_keeps_the_runs_that_it_has_recorded() {
    let dir = row(str::to_owned);
    let mut command = harness();
    command.arg("suite").arg(dir.path().join("s.toml")).args(["--cluster", "sim", "--repeat", "20", "--runs"]);
    command.arg(dir.path().join("runs")).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The first run is recorded before the line of the second run is printed.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.by_ref().filter(|line| line.contains("K1 ")).take(2).count(), 2);
    assert_eq!(signalled(&mut child, Signal::SIGTERM), Some(130));
    // A last line without its end is no run.
    let recorded = fs::read_to_string(dir.path().join("runs/suite-s-sim.jsonl")).unwrap().matches('\n').count() - 1;
    assert!((1..20).contains(&recorded), "{recorded}");
    let ran = one(&dir, &["--repeat", "20", "--resume"]).exits(0);
    assert_eq!(ran.stdout.matches("K1 ").count(), 20 - recorded + 1, "the other runs, and the table: {}", ran.stdout);
    assert!(ran.stdout.contains("20 of 20 runs"), "{}", ran.stdout);
}

#[test]
fn a_suite_goes_on_where_it_was_cut_off() {
    let dir = row(str::to_owned);
    // A job that is started again may have been cut off before its first run.
    one(&dir, &["--repeat", "3", "--resume"]).exits(0).says(&["begins anew"]);
    let state = dir.path().join("runs/suite-s-sim.jsonl");
    let text = fs::read_to_string(&state).unwrap();
    // Two runs are done, and the line of the third was cut.
    fs::write(&state, &text[..text.len() - 20]).unwrap();
    let ran = one(&dir, &["--repeat", "3", "--resume"]).exits(0);
    assert_eq!(ran.stdout.matches("K1 ").count(), 2, "one run and its line in the table: {}", ran.stdout);
    assert!(ran.stdout.contains("3 of 3 runs"), "{}", ran.stdout);
    let again = fs::read_to_string(&state).unwrap();
    assert_eq!(again.lines().count(), 4, "the rows, and three runs");
    // Another expectation has not been tried.
    let suite = fs::read_to_string(dir.path().join("s.toml")).unwrap();
    fs::write(dir.path().join("s.toml"), suite.replace("lock=violated", "lock=violated,lock.unexplained=0")).unwrap();
    let ran = one(&dir, &["--repeat", "3", "--resume"]).exits(0);
    assert_eq!(ran.stdout.matches("K1 ").count(), 4, "{}", ran.stdout);
}

#[test]
fn a_second_suite_in_one_directory_is_refused_until_the_first_has_ended() {
    let dir = row(str::to_owned);
    let record = dir.path().join("runs/suite-s-sim.jsonl");
    let suite = dir.path().join("s.toml");
    let mut first = harness();
    first.arg("suite").arg(suite).args(["--cluster", "sim", "--repeat", "1000000", "--runs"]);
    let mut first = first.arg(dir.path().join("runs")).stdout(Stdio::null()).spawn().unwrap();
    while !fs::read_to_string(&record).is_ok_and(|text| text.contains('\n')) {
        assert_eq!(first.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(20));
    }
    let junit = dir.path().join("junit.xml");
    fs::write(&junit, "<testsuites/>").unwrap();
    for more in [&["--junit", junit.to_str().unwrap()][..], &["--resume"]] {
        one(&dir, more).exits(3).says(&[&format!("another `harness suite` (process {})", first.id()), "--runs"]);
    }
    assert!(junit.exists(), "the file may be that of the first suite");
    // A killed process leaves the file, but no lock.
    first.kill().unwrap();
    first.wait().unwrap();
    let done = fs::read_to_string(&record).unwrap();
    assert!(done.lines().all(|line| line.starts_with('{')), "the record of the first suite is as it was: {done}");
    one(&dir, &[]).exits(0);
}

#[test]
fn a_record_that_is_not_continued_is_kept() {
    let dir = row(|text| text.to_owned());
    one(&dir, &[]).exits(0);
    let state = dir.path().join("runs/suite-s-sim.jsonl");
    let first = fs::read_to_string(&state).unwrap();
    one(&dir, &["--repeat", "2"]).exits(0);
    assert_eq!(fs::read_to_string(state.with_extension("jsonl.older")).unwrap(), first);
    assert_ne!(fs::read_to_string(&state).unwrap(), first);
}

/// A record with the runs of another build.
fn of_another_build(record: &str) -> String {
    let at = record.find("\"build\":\"").unwrap() + 9;
    format!("{}0123456789abcdef{}", &record[..at], &record[at + 16..])
}

#[test]
fn runs_of_another_build_are_judged_again_or_made_again() {
    // A run that is not as expected has a history, also in the simulation.
    let dir = row(|text| text.replace("lock=violated", "lock=upheld"));
    one(&dir, &[]).exits(1);
    let state = dir.path().join("runs/suite-s-sim.jsonl");
    let another = of_another_build(&fs::read_to_string(&state).unwrap());
    // The run was made in its second try.
    let another = another.replacen("\"seen\":", "\"errors\":[\"no engine\"],\"seen\":", 1);
    fs::write(&state, &another).unwrap();
    let runs = || fs::read_dir(dir.path().join("runs")).unwrap().count();
    let before = runs();
    let ran = one(&dir, &["--resume"]).exits(1).says(&["another build", "made 1 runs of", "1 are judged again"]);
    assert!(ran.stdout.contains("1 infrastructure: the harness made the run after a failed try"), "{}", ran.stdout);
    let kept = state.with_extension("jsonl.older");
    assert_eq!(fs::read_to_string(&kept).unwrap(), another, "nothing of the record is lost");
    assert_eq!(runs(), before + 1, "no run was made");
    assert!(fs::read_to_string(&state).unwrap().lines().count() == 2);
    // Without its history, the run is made again.
    fs::write(&state, &another).unwrap();
    for entry in fs::read_dir(dir.path().join("runs")).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.is_symlink() {
            fs::remove_file(entry.join("history.jsonl")).unwrap();
        }
    }
    one(&dir, &["--resume"]).exits(1).says(&["0 are judged again"]);
    assert_eq!(runs(), before + 2, "the run was made again");
}

#[test]
fn a_run_of_an_older_plan_is_not_judged_again() {
    let dir = row(|text| text.replace("lock=violated", "lock=upheld"));
    one(&dir, &[]).exits(1);
    let state = dir.path().join("runs/suite-s-sim.jsonl");
    let another = of_another_build(&fs::read_to_string(&state).unwrap());
    fs::write(&state, another).unwrap();
    let suite = dir.path().join("s.toml");
    let text = fs::read_to_string(&suite).unwrap();
    fs::write(&suite, text.replace("witness =", "set = { \"plan.seed\" = 77 }\nwitness =")).unwrap();
    one(&dir, &["--resume"]).exits(1).says(&["made 1 runs of", "0 are judged again"]);
}

#[test]
fn a_damaged_record_leaves_the_records_of_other_suites_as_they_are() {
    let dir = row(str::to_owned);
    fs::copy(dir.path().join("s.toml"), dir.path().join("t.toml")).unwrap();
    let other = dir.path().join("t.toml").display().to_string();
    one(&dir, &[&other]).exits(0);
    let [first, second] = ["s", "t"].map(|name| dir.path().join(format!("runs/suite-{name}-sim.jsonl")));
    let [of_first, of_second] = [&first, &second].map(|record| fs::read_to_string(record).unwrap());
    let of_first = of_another_build(&of_first);
    fs::write(&first, &of_first).unwrap();
    fs::write(&second, of_second.replacen('\n', "\n{}\n", 1)).unwrap();
    one(&dir, &[&other, "--resume"]).exits(64).says(&["suite-t-sim.jsonl, line 2", "--resume"]);
    assert_eq!(fs::read_to_string(&first).unwrap(), of_first);
}

#[test]
fn a_suite_that_ends_early_leaves_no_older_junit() {
    let dir = row(str::to_owned);
    let (junit, record) = (dir.path().join("out/junit.xml"), dir.path().join("runs/suite-s-sim.jsonl"));
    let flags = ["--junit", junit.to_str().unwrap()];
    for _ in 0..2 {
        one(&dir, &flags).exits(0);
        assert!(fs::read_to_string(&junit).unwrap().contains("<testcase"));
    }
    let recorded = fs::read_to_string(&record).unwrap();
    fs::write(&record, recorded.replacen('\n', "\n{}\n", 1)).unwrap();
    one(&dir, &[&flags[..], &["--resume"]].concat()).exits(64).says(&["line 2"]);
    assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 0);
    // A directory is no file.
    one(&dir, &["--junit", dir.path().to_str().unwrap()]).exits(3).says(&["--junit: writing"]);
    // If the value of the flag is forgotten, the next word is the file.
    let suite = dir.path().join("s.toml");
    one(&dir, &["--junit", suite.to_str().unwrap()]).exits(64).says(&["--junit", "s.toml has something else"]);
    assert!(suite.exists());
}

#[test]
fn a_junit_file_that_cannot_be_written_hides_no_results() {
    let dir = row(str::to_owned);
    // The suite makes its own record there after it has cleared the file.
    let record = dir.path().join("runs/suite-s-sim.jsonl");
    let flags = ["--junit", record.to_str().unwrap()];
    let ran = one(&dir, &flags).exits(64).says(&["--junit", "suite-s-sim.jsonl has something else"]);
    assert!(ran.stdout.contains("1 of 1 runs came out as expected"), "{}", ran.stdout);
}

#[test]
fn a_row_without_an_expectation_may_violate_only_the_lock() {
    let without = |text: &str| text.replace("expect = \"lock=violated\"\n", "");
    one(&row(without), &[]).exits(0);
    let backwards =
        |text: &str| without(text).replace("witness =", "set = { \"resource_bug\" = \"admits-stale\" }\nwitness =");
    let ran = one(&row(backwards), &[]).exits(1);
    assert!(ran.stdout.contains("found violated"), "{}", ran.stdout);
}

#[test]
fn a_run_that_judges_too_little_is_not_green_without_an_expectation() {
    let busy = "set = { \"plan.activity.holds\" = 1000 }\nwitness =";
    let idle = |text: &str| text.replace("expect = \"lock=violated\"\n", "").replace("witness =", busy);
    let ran = one(&row(idle), &[]).exits(2);
    assert!(ran.stdout.contains("expected activity=upheld, found inconclusive"), "{}", ran.stdout);
}

#[test]
fn a_violation_without_its_witness_is_inconclusive_and_told() {
    let both = |text: &str| text.replace("proved:pause", "tokens-behind").replace("lock=violated", "lock=upheld");
    let ran = one(&row(both), &[]).exits(2);
    for words in ["expected lock=upheld, found violated", "not seen: counters behind"] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
}

/// A suite with one row of these flags.
fn flags(flags: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = format!("schema = 1\n[[row]]\nid = \"a\"\nclaim = \"c\"\nby = \"b\"\nwitness = []\nrun = \"{flags}\"\n");
    fs::write(dir.path().join("s.toml"), text).unwrap();
    dir
}

#[test]
fn flags_that_a_row_cannot_have_are_refused() {
    for (given, words) in [
        ("--nemesis none --expect lock=upheld", ["--expect", "the key `expect`"]),
        ("--nemesis none --cluster sim", ["--cluster", "the key `clusters`"]),
        ("--nemesis none --keep", ["--keep", "always removed"]),
        ("--nemesis none --compose redis.yaml", ["--compose", "only Docker"]),
        ("--nemesis none --image redis=x", ["--image", "only Docker"]),
        ("--nemesis none --images-only", ["--images-only", "give the flag to `harness run`"]),
        ("plan.toml", ["PLAN", "the key `plan`"]),
    ] {
        let dir = flags(given);
        let suite = dir.path().join("s.toml").display().to_string();
        ran(&["suite", &suite, "--cluster", "sim", "--runs", "/nonexistent"]).exits(64).says(&words);
    }
}

#[test]
fn a_rows_own_servers_are_read_beside_the_suite() {
    let dir = flags("--backend redis --nemesis none --compose mine.yaml");
    let suite = dir.path().join("s.toml").display().to_string();
    let docker = ["suite", &suite, "--cluster", "docker", "--runs", "/dev/null/runs"];
    let path = dir.path().join("mine.yaml").display().to_string();
    ran(&docker).exits(64).says(&[&path]);
    fs::write(dir.path().join("mine.yaml"), "services:\n  a:\n    imagge: x\n").unwrap();
    ran(&docker).exits(64).says(&[&path, "imagge"]);
}

#[test]
fn a_suite_says_where_its_verdicts_come_from() {
    ran(&["suite", KLEPPMANN, "--cluster", "auto"]).exits(64).says(&["docker or sim"]);
    let mut command = harness();
    let dir = tempfile::tempdir().unwrap();
    command.args(["suite", KLEPPMANN, "--runs"]).arg(dir.path()).env("DOCKER_HOST", "tcp://127.0.0.1:1");
    // Nobody must take an older file for the results of a call without an engine.
    let junit = dir.path().join("junit.xml");
    fs::write(&junit, "<testsuites/>").unwrap();
    Ran::from(command.arg("--junit").arg(&junit).output().unwrap()).exits(3);
    assert!(!junit.exists());
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn claim_k1_comes_out_as_expected_on_real_servers() {
        claim("K1", 1);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn claim_k4_comes_out_as_expected_on_real_servers() {
        claim("K4", 1);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn claim_k5_comes_out_as_expected_on_real_servers() {
        claim("K5", 2);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn claim_e1_comes_out_as_expected_on_real_servers() {
        claim("E1", 1);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn claim_f1_comes_out_as_expected_on_real_servers() {
        claim("F1", 1);
    }
}
