//! The resource in one object of an S3 server.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::support::{RealRun, may_sweep, ran, run};

#[test]
#[ignore = "needs a Docker engine"]
fn a_conditional_put_refuses_a_holder_that_was_paused() {
    let expected = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
        writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0,\
        resource=upheld,off.data.lost_updates>=1,reads.data.lost_updates=0,cas.data.lost_updates=0";
    let flags = ["--backend", "redis", "--resource", "s3", "--arms", "off,writes,reads,cas"];
    let load = ["--nemesis", "pause@before-write+6s", "--time", "10s", "--workers", "2", "--rate", "8"];
    let done = run(&[&flags[..], &load, &["--expect", expected]].concat()).exits(0);
    assert!(done.ran.stdout.contains("resource s3"), "{}", done.ran.stdout);
}

/// Runs the writers of `s3_writers.py` in the store's container, which `--keep` has kept.
fn writers(run: &RealRun, port: &str, rounds: &str) -> Output {
    let id = run.latest().file_name().unwrap().to_str().unwrap().to_owned();
    let filters = [format!("label=harness.run={id}"), "label=harness.node=resource-store".to_owned()];
    let listed = Command::new("docker").args(["ps", "-q", "--filter", &filters[0], "--filter", &filters[1]]).output();
    let container = String::from_utf8(listed.unwrap().stdout).unwrap();
    let script = fs::File::open("tests/it/s3_writers.py").unwrap();
    let mut exec = Command::new("docker");
    exec.args(["exec", "-i", container.trim(), "python3", "-", port, rounds]).stdin(Stdio::from(script));
    exec.output().unwrap()
}

fn results(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "needs a Docker engine"]
fn one_put_passes_a_condition_in_the_store_and_two_in_motos_own_server() {
    let flags = ["--backend", "redis", "--resource", "s3", "--workers", "2", "--time", "14s", "--rate", "8"];
    let kept = run(&[&flags[..], &["--keep"]].concat());
    let (store, moto) = (writers(&kept, "9000", "60"), writers(&kept, "0", "600"));
    {
        let _guard = may_sweep();
        ran(&["clean", "--kept"]).exits(0);
    }
    let (store, moto) = (results(&store), results(&moto));
    eprintln!("the store: {store}, moto's own server: {moto}");
    for condition in ["If-Match", "If-None-Match"] {
        assert_eq!(store[condition], serde_json::json!({"rounds": 60, "most": 1}), "{condition}");
        // Without this the rounds of the store would prove nothing.
        assert!(moto[condition]["most"].as_u64().unwrap() > 1, "{condition}: {moto}");
    }
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_killed_resource_goes_on_over_its_object() {
        let expected = "lock=upheld,resource=upheld,resource.restarts=1,off.data.lost_updates=0";
        let flags = ["--backend", "redis", "--resource", "s3", "--nemesis", "kill:resource@3s+1s"];
        // A client waits for the resource for longer than a short lease. One that does not know whether its write
        // arrived keeps its key for the lease; so there are more keys.
        let load = ["--time", "8s", "--rate", "20", "--lease", "15s", "--keys", "4"];
        run(&[&flags[..], &load, &["--expect", expected]].concat()).exits(0);
    }
}
