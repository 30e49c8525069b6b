//! The harness against itself, as far as a test can wait for it: `make accept` has all seeds of all tables.

use serde_json::Value;

use crate::support::ran;

/// The rows of one table. The self-test says that all of them are right.
fn rows(table: &str, flags: &[&str]) -> impl Fn(&str) -> Vec<Value> {
    let said = ran(&[&["selftest", "--short", "--format", "json", "--table", table], flags].concat()).exits(0).stdout;
    let told: Value = serde_json::from_str(&said).unwrap();
    move |name| told[name].as_array().unwrap_or_else(|| panic!("no table {name}")).clone()
}

/// Tests that take so long that `cargo test` leaves them to `make test`.
mod searches {
    use super::*;

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn every_hunted_bug_is_caught_and_its_twin_is_not() {
        let bugs = rows("planted", &[])("planted_bugs");
        assert!(bugs.len() >= 70, "{} bugs", bugs.len());
        for bug in &bugs {
            assert!(bug["seeds"].as_u64().is_some_and(|seeds| seeds > 0), "{bug}");
            assert!(
                bug["twins"].as_u64() >= bug["seeds"].as_u64() && bug["twins_shown"] == Value::Array(vec![]),
                "{bug}"
            );
        }
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn no_alarm_about_a_correct_lock_is_false() {
        let rows = rows("locks", &["--seeds", "20"]);
        let quiet = rows("no_faults");
        assert!(quiet.len() >= 14, "{} locks", quiet.len());
        for lock in &quiet {
            assert!(lock["runs"] == 20 && lock["alarms"] == Value::Array(vec![]), "{lock}");
            assert!(lock["upheld"].as_u64() > Some(15), "{lock}");
        }
        let faulty = rows("all_faults");
        assert_eq!(faulty.len(), quiet.len());
        for lock in &faulty {
            assert!(lock["alarms"].as_u64() > Some(0) && lock["unconfirmed"] == Value::Array(vec![]), "{lock}");
            assert!(lock["overlaps"].as_u64() > Some(0) && lock["unexplained"] == Value::Array(vec![]), "{lock}");
        }
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn two_kinds_of_faults_at_once_are_judged_as_they_were() {
        for (lock, count) in [("redlock without", 66), ("etcd, revision", 165)] {
            let pairs = rows("pairs", &["--only", lock])("pairs");
            let [pairs] = pairs.as_slice() else { panic!("{pairs:?}") };
            assert!(pairs["pairs"] == count && pairs["runs"] == count, "{pairs}");
            assert!(pairs["overlaps"].as_u64() > Some(50), "{pairs}");
            assert!(pairs["is_right"] == true && pairs["wrong_pairs"] == Value::Array(vec![]), "{pairs}");
        }
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn a_swarm_that_knows_no_bug_finds_some_at_once() {
        let swarm = rows("swarm", &["--schedules", "10"])("swarm");
        let found = swarm.iter().filter(|row| row["median"].as_u64().is_some()).count();
        assert!(found * 3 > swarm.len(), "a swarm of 10 schedules finds {found} of {} bugs", swarm.len());
    }
}
