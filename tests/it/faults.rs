//! Every fault on real servers, and what Redlock and etcd do under it.

use std::fs;

use serde_json::Value;

use crate::support::{RealRun, run};

/// Kinds, targets and phases of all faults of a run, in the order of its history.
fn phases(run: &RealRun) -> Vec<(String, String, String)> {
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let events = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    events
        .filter(|event| event["event"] == "fault")
        .map(|event| (text(&event, "kind"), text(&event, "node"), text(&event, "phase")))
        .collect()
}

/// Fails unless every one of `kinds` was injected, and each time proved and proved healed.
fn all_proved(run: &RealRun, kinds: &[&str]) {
    let phases = phases(run);
    let count = |kind: &str, phase: &str| phases.iter().filter(|(k, _, p)| k == kind && p == phase).count();
    for kind in kinds {
        let injected = count(kind, "injected");
        assert!(injected > 0, "no {kind} was injected");
        assert_eq!((count(kind, "proved"), count(kind, "heal-proved")), (injected, injected), "{kind}");
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn faults_of_packets_and_clocks_come_and_go_on_real_servers() {
    let nemesis = "partition@1s+1s,delay@3s+1s,loss@5s+2s,reorder@8s+2s,clock:any-worker@2s+4s,clock@11s+2s";
    let run = run(&["--nemesis", nemesis, "--time", "14s", "--seed", "3"]);
    all_proved(&run, &["partition", "delay", "loss", "reorder", "clock"]);
    // What was held is told, and nothing of ours is left.
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    assert!(history.contains("\"event\":\"held\""), "{}", run.ran.stderr);
    assert_eq!(crate::support::left_of(&run.latest()), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_paused_holder_of_etcd_acts_when_another_has_taken_over_and_the_revision_fences_it() {
    let expected = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
        off.data.lost_updates>=1,writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0";
    run(&["--backend", "etcd", "--nemesis", "pause", "--time", "20s", "--expect", expected]).exits(0);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_member_of_etcd_that_is_paused_or_killed_breaks_nothing() {
    let nemesis = "pause:etcd-1@2s+3s,kill:etcd-2@8s+1s";
    let expected = "lock=upheld,lock.windows=0,tokens=upheld,off.data.lost_updates=0";
    let run = run(&["--backend", "etcd", "--nemesis", nemesis, "--time", "13s", "--expect", expected]).exits(0);
    all_proved(&run, &["pause", "kill"]);
}
