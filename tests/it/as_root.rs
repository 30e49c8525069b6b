//! Tests that only root may run: they read the memory of the servers' processes, or interfere with these processes.
//! `make test` leaves these tests out for other users, and says so.

mod unplanned;

use std::{fs, process::Command, time::Duration};

use serde_json::Value;

use crate::{
    going::{Going, all_proved},
    support::{docker, may_sweep},
    vdso::vdso,
};

#[test]
#[ignore = "needs a Docker engine"]
fn a_wall_clock_that_jumps_strobes_or_drifts_is_the_hosts_again_when_it_is_healed() {
    let _guard = may_sweep();
    let strobe =
        r#"kind = "clock", clock = "wall", for = "10s", change = { strobe = { by-ms = 4000, every-ms = 150 } }"#;
    let jump = r#"kind = "clock", clock = "wall", for = "10s", change = { jump-ms = -3000 }"#;
    let drift = r#"kind = "clock", clock = "wall", for = "10s", change = { drift-ppm = 200000 }"#;
    let faults = [(strobe, "redis-1", "2s"), (jump, "redis-2", "2s"), (drift, "redis-3", "2s")];
    let mut run = Going::start("25s", &faults, &[]);
    for (id, (_, node, _)) in (1..).zip(faults) {
        run.until(id, "injected");
        assert_ne!(vdso(run.pid(node)), vdso(std::process::id()), "{node}");
    }
    assert_eq!(vdso(run.pid("redis-4")), vdso(std::process::id()), "nobody has touched it");
    for (id, (_, node, _)) in (1..).zip(faults) {
        run.until(id, "heal-proved");
        assert_eq!(vdso(run.pid(node)), vdso(std::process::id()), "{node}");
    }
    let run = run.interrupted();
    all_proved(&run, &["clock"]);
    // The history has the answers of the servers: both places of the strobe, the jump, and a gain of two seconds.
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let told: Vec<(i64, i64)> = (history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()))
        .filter_map(|event| {
            let [least, most] = ["least_ns", "most_ns"].map(|bound| &event["answer"]["target"]["redis-time"][bound]);
            Some((least.as_i64()? / 1_000_000, most.as_i64()? / 1_000_000))
        })
        .collect();
    // A clock that drifts is read up to 1.5 s late on a busy machine, and gains 300 ms more meanwhile. A late answer
    // has bounds that are farther apart, at most about 1 s: the bounds of a clock without a drift are far from 2 s.
    for (from_ms, to_ms) in [(4_000, 4_000), (0, 0), (-3_000, -3_000), (2_000, 2_300)] {
        let agrees = |(least, most): &(i64, i64)| *least < to_ms + 200 && from_ms - 200 < *most;
        assert!(told.iter().any(agrees), "{from_ms} to {to_ms} ms: {told:?}");
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_server_that_somebody_restarts_during_a_fault_has_the_fault_again() {
    let _guard = may_sweep();
    let jump = r#"kind = "clock", clock = "wall", for = "20s", change = { jump-ms = 3000 }"#;
    let cut = r#"kind = "partition", for = "20s""#;
    let mut run = Going::start("40s", &[(jump, "redis-1", "1s"), (cut, "redis-2", "1s")], &[]);
    for (id, node) in [(1, "redis-1"), (2, "redis-2")] {
        run.until(id, "injected");
        docker(&["restart", "-t", "0", &run.container(node)]);
    }
    // A process that has just started is set within a second, on a busy machine too.
    let has_come = |is_on: &dyn Fn() -> bool| {
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            is_on()
        })
    };
    // While the engine starts it again, it has no process.
    let is_set = || {
        let pid = run.pid("redis-1");
        fs::exists(format!("/proc/{pid}/mem")).is_ok_and(|runs| runs) && vdso(pid) != vdso(std::process::id())
    };
    assert!(has_come(&is_set), "its new process has right clocks");
    let (second, third) = (run.container("redis-2"), run.container("redis-3"));
    let answers =
        || Command::new("docker").args(["exec", &second, "redis-cli", "ping"]).output().unwrap().status.success();
    assert!(has_come(&answers), "it does not start again");
    let reached = || {
        let ping = ["exec", &third, "timeout", "0.3", "redis-cli", "-h", "redis-2", "ping"];
        Command::new("docker").args(ping).output().unwrap().status.success()
    };
    assert!(has_come(&|| !reached()), "its new network has its links");
    for id in [1, 2] {
        run.until(id, "heal-proved");
    }
    assert_eq!(vdso(run.pid("redis-1")), vdso(std::process::id()));
    assert!(has_come(&reached), "its links are cut after the heal");
    all_proved(&run.interrupted(), &["clock", "partition"]);
}

#[test]
#[ignore = "needs a Docker engine"]
fn servers_that_are_kept_have_the_original_code_of_their_clocks_also_where_a_monotonic_one_had_jumped() {
    let _guard = may_sweep();
    let jump = r#"kind = "clock", clock = "both", for = "1s", change = { jump-ms = 3000 }"#;
    let mut run = Going::start("12s", &[(jump, "redis-1", "1s")], &["--keep"]);
    run.until(1, "heal-proved");
    assert_ne!(vdso(run.pid("redis-1")), vdso(std::process::id()), "a monotonic clock never goes back in a run");
    run.child.wait().unwrap();
    assert_eq!(vdso(run.pid("redis-1")), vdso(std::process::id()));
    // By its own label: others may have kept something too.
    let label = format!("label=harness.run={}", run.latest().unwrap().file_name().unwrap().to_str().unwrap());
    for (list, remove) in [(&["ps", "-aq"][..], &["rm", "-fv"][..]), (&["network", "ls", "-q"], &["network", "rm"])] {
        let listed = Command::new("docker").args(list).args(["--filter", &label]).output().unwrap();
        let ids = String::from_utf8(listed.stdout).unwrap();
        assert!(Command::new("docker").args(remove).args(ids.lines()).output().unwrap().status.success(), "{ids}");
    }
    assert_eq!(crate::support::left_of(&run.latest().unwrap()), Vec::<String>::new());
}
