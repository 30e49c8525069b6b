//! The harness against itself, as far as a test can wait for it.

use serde_json::Value;

use crate::support::ran;

#[test]
fn every_hunted_bug_is_caught_and_no_alarm_is_false() {
    let ran = ran(&["selftest", "--short", "--format", "json"]).exits(0);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = |table: &str| told[table].as_array().unwrap_or_else(|| panic!("no table {table}")).clone();

    let bugs = rows("planted_bugs");
    assert!(bugs.len() >= 50, "{} bugs", bugs.len());
    for bug in &bugs {
        assert!(bug["seeds"].as_u64().is_some_and(|seeds| seeds > 0), "{bug}");
        assert!(bug["twins"].as_u64() >= bug["seeds"].as_u64() && bug["twins_shown"] == Value::Array(vec![]), "{bug}");
    }
    let quiet = rows("no_faults");
    assert!(quiet.len() >= 8, "{} locks", quiet.len());
    for lock in &quiet {
        assert!(lock["runs"] == 200 && lock["alarms"] == Value::Array(vec![]), "{lock}");
        assert!(lock["upheld"].as_u64() > Some(150), "{lock}");
    }
    let faulty = rows("all_faults");
    assert_eq!(faulty.len(), quiet.len());
    for lock in &faulty {
        assert!(lock["alarms"].as_u64() > Some(0) && lock["unconfirmed"] == Value::Array(vec![]), "{lock}");
        assert!(lock["overlaps"].as_u64() > Some(10), "{lock}");
    }
    let pairs = rows("pairs");
    assert_eq!(pairs.len(), quiet.len());
    for lock in &pairs {
        let (count, name) = (lock["pairs"].as_u64().unwrap(), lock["lock"].as_str().unwrap());
        assert_eq!(count, if name.starts_with("etcd") { 165 } else { 66 }, "{lock}");
        assert!(lock["runs"] == count && lock["overlaps"].as_u64() > Some(50), "{lock}");
        assert!(lock["is_right"] == true && lock["wrong_pairs"] == Value::Array(vec![]), "{lock}");
    }
    let swarm = rows("swarm");
    assert_eq!(swarm.len(), bugs.len());
    let found = swarm.iter().filter(|row| row["median"].as_u64().is_some()).count();
    assert!(found * 2 > swarm.len(), "a swarm of 100 schedules finds {found} of {} bugs", swarm.len());
}
