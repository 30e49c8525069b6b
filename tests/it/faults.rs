//! Every fault on real servers, and what Redlock and etcd do under it.

use std::fs;

use serde_json::Value;

use crate::{
    going::{Going, all_proved, phases},
    support::{RealRun, may_sweep, run},
};

#[test]
#[ignore = "needs a Docker engine"]
fn faults_of_packets_and_clocks_come_and_go_on_real_servers() {
    let nemesis = "partition@1s+1s,delay@3s+1s,loss@5s+2s,reorder@8s+2s,clock:any-worker@2s+4s,clock@11s+2s,\
                   amnesia:redis-5@13s+500ms";
    let run = run(&["--nemesis", nemesis, "--time", "14s", "--seed", "3"]);
    all_proved(&run, &["partition", "delay", "loss", "reorder", "clock", "amnesia"]);
    // The history has the delayed packets and the marker key of the amnesia, and nothing of ours is left.
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let marker: Vec<bool> = (history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()))
        .filter_map(|event| event["answer"]["target"]["redis-marker"].as_bool())
        .collect();
    assert_eq!(marker, [true, false], "written before the fault, and gone after it");
    assert!(history.contains("\"event\":\"packets-delayed\""), "{}", run.ran.stderr);
    assert_eq!(crate::support::left_of(&run.latest()), Vec::<String>::new());
}

/// Fails if two faults of the run were on at the same time.
fn none_overlap(run: &RealRun) {
    let mut on: Option<(String, String)> = None;
    for (kind, node, phase) in phases(run) {
        match phase.as_str() {
            "injected" => assert_eq!(on.replace((kind, node)), None, "the fault before was still on"),
            "healed" => assert_eq!(on.take(), Some((kind, node))),
            _ => {}
        }
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn every_fault_of_a_member_of_etcd_is_proved_and_healed_while_a_majority_stays() {
    // A slow member runs its healthcheck twice before the fault and once during it, for up to 4 s: the heal is late.
    let nemesis = "partition:etcd-1@2s+2s,delay:etcd-2@6s+2s,loss:etcd-3@10s+2s,reorder:etcd-1@14s+2s,\
                   slow:etcd-2@18s+4s,stop:etcd-3@27s+2s";
    let expected = "lock=upheld,lock.windows=0,tokens=upheld,off.data.lost_updates=0";
    let run = run(&["--backend", "etcd", "--lease", "8s", "--nemesis", nemesis, "--time", "31s", "--expect", expected])
        .exits(0);
    let kinds = ["partition", "delay", "loss", "reorder", "slow", "stop"];
    all_proved(&run, &kinds);
    let phases = phases(&run);
    assert_eq!(phases.iter().filter(|(.., phase)| phase == "injected").count(), kinds.len());
    assert!(!phases.iter().any(|(.., phase)| phase == "unproved"), "{phases:?}");
    none_overlap(&run);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_stopped_process_is_stopped_by_a_signal_and_goes_on_and_nobody_else_is() {
    let _guard = may_sweep();
    let stop = r#"kind = "stop", for = "10s""#;
    let mut run = Going::start("25s", &[(stop, "worker-1", "1s"), (stop, "redis-1", "1s")], &[]);
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "injected");
        assert!(run.is_stopped(node), "{node}");
        assert_eq!(run.inspect(node, "{{.State.Paused}}"), "false", "not by the freezer");
    }
    assert!(!run.is_stopped("worker-2") && !run.is_stopped("redis-2"));
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "heal-proved");
        assert!(!run.is_stopped(node), "{node}");
    }
    assert!(!run.history().contains("unplanned"), "nobody else has stopped them");
    let run = run.ends();
    all_proved(&run, &["stop"]);
    assert_eq!(crate::support::left_of(&run.latest()), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_slow_node_has_a_quota_and_shows_it_and_none_when_it_is_healed() {
    let _guard = may_sweep();
    let slow = r#"kind = "slow", for = "10s""#;
    let mut run = Going::start("25s", &[(slow, "worker-1", "1s"), (slow, "redis-1", "1s")], &[]);
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "injected");
        // 1 % of each 100 ms.
        assert_eq!(run.inspect(node, "{{.HostConfig.CpuQuota}}/{{.HostConfig.CpuPeriod}}"), "1000/100000", "{node}");
    }
    assert_eq!(run.inspect("redis-2", "{{.HostConfig.CpuQuota}}"), "0");
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "heal-proved");
        assert_eq!(run.inspect(node, "{{.HostConfig.CpuQuota}}"), "-1", "{node}");
    }
    all_proved(&run.interrupted(), &["slow"]);
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_member_of_etcd_that_is_paused_or_killed_or_loses_power_breaks_nothing() {
        let nemesis = "pause:etcd-1@2s+3s,kill:etcd-2@8s+1s,powerloss:etcd-3@13s+1s";
        let expected = "lock=upheld,lock.windows=0,tokens=upheld,off.data.lost_updates=0";
        let run =
            run(&["--backend", "etcd", "--lease", "8s", "--nemesis", nemesis, "--time", "17s", "--expect", expected])
                .exits(0);
        all_proved(&run, &["pause", "kill", "powerloss"]);
    }
}
