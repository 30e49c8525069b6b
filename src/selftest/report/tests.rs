use std::collections::BTreeMap;

use clap::Args;
use history::Tokens;

use super::*;
use crate::{cli::SelftestArgs, selftest::oracle::Comparison};

/// A row in which every run is upheld.
fn upheld() -> WithoutFaults {
    let sound = CorrectLock { backend: "etcd", tokens: Tokens::None };
    let (inconclusive, alarms, failed) = (BTreeMap::new(), Vec::new(), Vec::new());
    WithoutFaults { sound, runs: 3, upheld: 3, inconclusive, alarms, failed }
}

#[test]
fn a_wrong_row_comes_before_a_run_without_a_verdict() {
    let failed = || vec![SeedError { seed: 2, why: "no model of it".into() }];
    let alarms = vec![(1, "release: violated".to_owned())];
    for (row, expected, why) in [
        (upheld(), Exit::Ok, "every run is upheld"),
        (WithoutFaults { failed: failed(), ..upheld() }, Exit::Failed, "one run ended with an error"),
        (WithoutFaults { failed: failed(), alarms, ..upheld() }, Exit::Violated, "another run has an alarm"),
        (WithoutFaults { upheld: 0, ..upheld() }, Exit::Violated, "the checker decides no run"),
    ] {
        let report = Report { quiet: vec![row], ..Report::default() };
        assert_eq!(report.exit(), expected, "{why}");
        assert_eq!(report.text().contains("\n1 row is wrong\n"), expected == Exit::Violated, "{why}");
    }
}

#[test]
fn a_twin_that_does_not_show_the_violation_is_not_called_upheld() {
    // The property may be violated in another way, or inconclusive.
    let (caught_at, is_given_away, twins_shown) = (Some(0), false, Vec::new());
    let bug = HuntResult { hunt: HUNTS[0], caught_at, is_given_away, twins: 7, twins_decided: 7, twins_shown };
    let text = |bug: &HuntResult| Report { bugs: vec![bug.clone()], ..Report::default() }.text();
    assert!(text(&bug).contains("  not shown in 7 ") && !text(&bug).contains("upheld"), "{}", text(&bug));
    let bug = HuntResult { twins_decided: 0, ..bug };
    assert!(text(&bug).contains("  not decided in 7 "), "{}", text(&bug));
}

#[test]
fn a_run_without_a_plan_keeps_no_other_plan_from_being_saved() {
    // No plan has the first of these seeds.
    let failed = [(1 << 53) + 1, 1].map(|seed| SeedError { seed, why: "an error".into() }).to_vec();
    let report = Report { quiet: vec![WithoutFaults { failed, ..upheld() }], ..Report::default() };
    let dir = tempfile::tempdir().unwrap();
    report.save(dir.path()).unwrap();
    let saved = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(saved.collect::<Vec<String>>(), ["quiet-etcd-none-1.toml"]);
}

#[test]
fn the_help_tells_how_many_plans_are_saved() {
    let alarms = (0..12).map(|seed| (seed, "release: violated".to_owned())).collect();
    let failed = (20..32).map(|seed| SeedError { seed, why: "an error".into() }).collect();
    let report = Report { quiet: vec![WithoutFaults { alarms, failed, ..upheld() }], ..Report::default() };
    let dir = tempfile::tempdir().unwrap();
    report.save(dir.path()).unwrap();
    assert_eq!(dir.path().read_dir().unwrap().count(), 2 * LISTED);
    let help = SelftestArgs::augment_args(clap::Command::new("selftest")).render_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains(&format!("the first {LISTED} wrong runs and the first {LISTED} that ended")), "{help}");
}

#[test]
fn a_pair_of_faults_whose_run_ended_with_an_error_is_told() {
    let error = SeedError { seed: 2, why: "no event is left".into() };
    for (failed, expected) in [(Vec::new(), Exit::Ok), (vec![error], Exit::Failed)] {
        let sound = upheld().sound;
        let compared = Comparison { overlaps: 3, ..Comparison::default() };
        let found = WithFaults { sound, runs: 10, compared, wrong: Vec::new(), failed };
        let pairs = vec![Pair { nemesis: "pause,kill".to_owned(), found }];
        let report = Report { pairs: vec![Pairs { sound, pairs, refused: Vec::new() }], ..Report::default() };
        assert_eq!(report.exit(), expected);
        let text = report.text();
        assert_eq!(text.contains("some runs ended with an error"), expected == Exit::Failed, "{text}");
    }
}

#[test]
fn the_swarm_may_miss_one_planted_bug_in_fifty() {
    let row = |found| SwarmResult { hunt: HUNTS[0], most: SCHEDULES, found: vec![found], failed: Vec::new() };
    let most = HUNTS.len() / 50;
    for (missed, expected) in [(most, Exit::Ok), (most + 1, Exit::Violated)] {
        let swarm = (0..HUNTS.len()).map(|n| row((n >= missed).then_some(7))).collect();
        let report = Report { swarm, ..Report::default() };
        assert_eq!(report.exit(), expected, "{missed} of {} bugs", HUNTS.len());
    }
}
