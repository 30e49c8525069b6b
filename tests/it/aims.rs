//! Whom faults hit, which links they cut, and when: on real servers, in the simulation, and where they are refused.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use crate::support::{RealRun, assert_caused_by, harness, ran, run};

/// The events of a recorded run.
fn events(run: &Path) -> Vec<Value> {
    let history = fs::read_to_string(run.join("history.jsonl")).unwrap();
    history.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of this phase of faults, in their order.
fn faults(events: &[Value], phase: &str) -> Vec<Value> {
    events.iter().filter(|e| e["event"] == "fault" && e["phase"] == phase).cloned().collect()
}

fn nodes(faults: &[Value]) -> BTreeSet<String> {
    faults.iter().map(|fault| fault["node"].as_str().unwrap().to_owned()).collect()
}

fn at_ms(event: &Value) -> u64 {
    event["at"].as_u64().unwrap() / 1_000_000
}

/// Fails unless every fault was injected, proved and proved healed.
#[track_caller]
fn all_proved(events: &[Value], count: usize) {
    for phase in ["injected", "proved", "heal-proved"] {
        assert_eq!(faults(events, phase).len(), count, "{phase}");
    }
}

/// A simulated run; the events of its history.
fn simulated(args: &[&str]) -> (tempfile::TempDir, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = harness();
    command.args(["run", "--cluster", "sim"]).args(args).arg("--runs").arg(dir.path());
    let output = command.output().unwrap();
    assert!(matches!(output.status.code(), Some(0..=2)), "{}", String::from_utf8_lossy(&output.stderr));
    let events = events(&dir.path().join("latest"));
    (dir, events)
}

/// Between the fault and the client that waits for it at its point.
fn waited_ms(events: &[Value]) -> u64 {
    let released = events.iter().find(|e| e["event"] == "point-released").unwrap();
    at_ms(released) - at_ms(&faults(events, "injected")[0])
}

const STALE_BY_DELAY: &str = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
    writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0";

#[test]
fn a_simulated_write_that_is_late_on_its_way_is_that_of_a_stale_holder_and_the_cause_is_the_delay() {
    let (dir, events) = simulated(&["suites/kleppmann/k2.toml", "--expect", STALE_BY_DELAY]);
    all_proved(&events, 1);
    let verdict: Value =
        serde_json::from_str(&fs::read_to_string(dir.path().join("latest/verdict.json")).unwrap()).unwrap();
    assert_eq!(verdict["as_expected"], true, "{verdict}");
    assert_eq!(verdict["properties"]["lock"]["windows"][0]["causes"], json!(["delay"]));
    // The same from flags: what the client sends from its point on comes when the fault is over.
    let (_, events) = simulated(&["--nemesis", "delay:worker-1@before-write+4s", "--seed", "3"]);
    all_proved(&events, 1);
}

#[test]
fn a_simulated_leader_is_found_when_the_fault_fires_and_another_one_when_it_has_moved() {
    let nemesis = "pause:leader@2s+3s,kill:leader@8s+1s,clock:leader@14s+1s";
    let (_dir, events) = simulated(&["--backend", "etcd", "--nemesis", nemesis, "--time", "18s", "--seed", "1"]);
    all_proved(&events, 3);
    let hit: Vec<String> = faults(&events, "injected").iter().map(|f| f["node"].as_str().unwrap().to_owned()).collect();
    assert!(hit[0] == "etcd-1" && hit[1] != "etcd-1" && hit[2] != hit[1], "{hit:?}");
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_leader_of_etcd_is_whom_its_servers_name() {
    let nemesis = "pause:leader@2s+4s,kill:leader@10s+1s";
    let run = run(&["--backend", "etcd", "--nemesis", nemesis, "--time", "16s"]);
    let events = events(&run.latest());
    all_proved(&events, 2);
    // The log of each member says whom it saw lead.
    let hit = faults(&events, "injected");
    let log = fs::read_to_string(run.latest().join("logs").join(format!("{}.log", hit[0]["node"].as_str().unwrap())))
        .unwrap();
    assert!(log.contains("became leader"), "the first one that was paused led before");
    assert_ne!(hit[0]["node"], hit[1]["node"], "another one led after its pause of four election timeouts");
}

#[test]
fn a_simulated_majority_goes_down_together_and_a_rolling_restart_leaves_all_others_up() {
    let flags = |nemesis| simulated(&["--nemesis", nemesis, "--time", "20s", "--seed", "2"]).1;
    let events = flags("kill:majority@5s+1s");
    all_proved(&events, 3);
    let (injected, healed) = (faults(&events, "injected"), faults(&events, "heal-requested"));
    assert!(injected.iter().all(|one| healed.iter().all(|other| at_ms(one) < at_ms(other))), "down at the same time");

    let events = flags("kill:rolling@2s+1s");
    all_proved(&events, 5);
    let (requested, answers) = (faults(&events, "requested"), faults(&events, "heal-proved"));
    assert_eq!(nodes(&requested).len(), 5);
    for (before, next) in answers.iter().zip(&requested[1..]) {
        assert!(at_ms(before) <= at_ms(next), "each answers before the next goes down");
    }
}

#[test]
fn simulated_groups_are_cut_and_whoever_reaches_no_majority_gets_no_lock() {
    for (nemesis, steps) in [
        ("partition:majority@5s+5s", 5),
        ("partition:halves@5s+5s", 5),
        ("partition:minority@5s+5s", 2),
        ("partition:isolate@5s+5s", 1),
        ("partition:ring@5s+5s", 5),
        ("partition:bridge@5s+5s", 4),
        ("delay:bridge:workers@5s+2s", 4),
    ] {
        let (_dir, events) = simulated(&["--nemesis", nemesis, "--time", "20s", "--seed", "5"]);
        all_proved(&events, steps);
        let from = at_ms(&faults(&events, "injected").pop().unwrap());
        let to = at_ms(&faults(&events, "heal-requested")[0]);
        let acquired = events.iter().filter(|e| e["event"] == "acquired");
        // What was sent before is answered.
        let inside = acquired.filter(|e| (from + 200..to).contains(&at_ms(e)));
        let workers: BTreeSet<_> = inside.map(|e| e["process"].as_str().unwrap().to_owned()).collect();
        match nemesis.split([':', '@']).nth(1) {
            // Three of five workers stand with the majority.
            Some("majority") => assert!((1..=3).contains(&workers.len()), "{workers:?}"),
            Some("halves") => assert!((1..=2).contains(&workers.len()), "the larger half has two workers: {workers:?}"),
            _ => assert!(!workers.is_empty(), "{nemesis}: everybody reaches a majority"),
        }
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn partitions_of_groups_one_way_and_with_resets_come_and_go_on_real_servers() {
    let nemesis = "partition:bridge@1s+2s,partition:majority:in@6s+2s,partition:redis-3:reject@11s+2s,\
        partition:worker-1:resource:out@15s+1s";
    let run = run(&["--nemesis", nemesis, "--time", "19s"]);
    let events = events(&run.latest());
    all_proved(&events, 4 + 5 + 1 + 1);
}

#[test]
fn a_simulated_partition_that_rejects_tells_clients_at_once_where_one_that_drops_leaves_them_waiting() {
    let longest_ms = |nemesis: &str| {
        let (_dir, events) = simulated(&["--backend", "redis", "--nemesis", nemesis, "--time", "12s", "--seed", "4"]);
        all_proved(&events, 1);
        let (from, to) = (at_ms(&faults(&events, "injected")[0]), at_ms(&faults(&events, "heal-requested")[0]));
        let failed = events.iter().filter(|e| e["event"] == "acquire-failed" && (from..to).contains(&at_ms(e)));
        let sent =
            |e: &Value| events.iter().find(|s| s["event"] == "acquire" && s["attempt"] == e["attempt"]).map(at_ms);
        let took = failed.filter_map(|e| Some(at_ms(e) - sent(e).filter(|sent| *sent > from)?));
        (took.clone().count(), took.max())
    };
    let (count, longest) = longest_ms("partition:redis-1:reject@5s+3s");
    assert!(count >= 5 && longest.unwrap() < 50, "{count} attempts failed, the slowest after {longest:?} ms");
    let (_, waited) = longest_ms("partition:redis-1@5s+3s");
    assert!(waited.is_none_or(|waited| waited > 100), "{waited:?}");
}

#[test]
fn what_cannot_be_is_refused_when_the_plan_is_made_by_the_word_that_asks_for_it() {
    for (args, words) in [
        (&["--nemesis", "pause:leader"][..], &["`leader`", "redlock", "elect no leader"][..]),
        (&["--nemesis", "kill:ring@5s"], &["`ring`", "only links"]),
        (
            &["--nemesis", "partition:bridge@5s", "--backend", "redis"],
            &["`bridge`", "3 lock nodes at least; there are 1"],
        ),
        (&["--nemesis", "partition:ring:resource@5s"], &["`ring`", "no place in a ring"]),
        (&["--nemesis", "pause:worker-1:out@5s"], &["`out`", "leaves links alone"]),
        (&["--nemesis", "loss:redis-1:reject@5s"], &["`reject`", "only a partition rejects"]),
        (&["--nemesis", "partition:worker-1:workers@5s"], &["`worker-1`", "exchanges nothing"]),
        (
            &["--nemesis", "kill:redis-1@5s+3s,pause:redis-1@6s+3s"],
            &["fault 1 (kill)", "fault 2 (pause)", "redis-1 from 6s to 8s"],
        ),
    ] {
        ran(&[&["run", "--cluster", "sim", "--seed", "1"], args].concat()).exits(64).says(words);
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_agent_that_lacks_what_a_fault_needs_is_found_out_before_anything_is_measured() {
    // The image of our own processes has neither nft nor iptables. The first run of a machine makes it.
    run(&["--backend", "redis", "--workers", "1", "--time", "1s"]).exits(2);
    let lacking = |nemesis: &str, words: &[&str]| -> RealRun {
        let run = run(&["--nemesis", nemesis, "--time", "5s", "--image", "agent=harness-debian/own:bookworm"]).exits(3);
        for word in words {
            assert!(run.ran.stderr.contains(word), "{word}");
        }
        assert!(events(&run.latest()).iter().all(|e| e["event"] != "acquire"), "no worker was started");
        run
    };
    lacking("partition:redis-2@1s+1s", &["redis-2", "a partition of it", "nftables", "--image agent="]);
    lacking("delay:worker-1@1s+1s", &["worker-1", "a delay of it", "iptables", "--image agent="]);
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_write_that_is_late_on_an_established_connection_is_that_of_a_stale_holder_with_nobody_paused() {
        let run = run(&["suites/kleppmann/k2.toml", "--expect", STALE_BY_DELAY]).exits(0);
        assert_caused_by(&run.property("lock")["windows"][0], "delay");
        let events = events(&run.latest());
        all_proved(&events, 1);
        // The proof takes as long as packets are late: 4 s. The client did not wait for it.
        assert!(waited_ms(&events) < 500, "{} ms", waited_ms(&events));
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_rolling_restart_of_etcd_goes_from_member_to_member_and_breaks_nothing() {
        let expected = "lock=upheld,lock.windows=0,tokens=upheld";
        let flags = [
            "--backend",
            "etcd",
            "--lease",
            "8s",
            "--nemesis",
            "kill:rolling@2s+500ms",
            "--time",
            "25s",
            "--expect",
            expected,
        ];
        let run = run(&flags).exits(0);
        let events = events(&run.latest());
        all_proved(&events, 3);
        let (requested, answers) = (faults(&events, "requested"), faults(&events, "heal-proved"));
        assert_eq!(nodes(&requested).len(), 3);
        assert!(answers.iter().zip(&requested[1..]).all(|(before, next)| at_ms(before) <= at_ms(next)));
    }
}
