//! `harness doctor`, without an engine and with one.

use serde_json::Value;

use crate::support::{Ran, harness, left_of, may_sweep};

/// Returns the outcome of each finding.
fn outcomes(ran: &Ran) -> Vec<(String, String)> {
    let all: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}", ran.stdout));
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    let findings = all["findings"].as_array().unwrap();
    findings.iter().map(|finding| (text(finding, "name"), text(finding, "outcome"))).collect()
}

#[test]
fn without_an_engine_the_doctor_says_how_to_get_one_and_tries_no_fault() {
    let doctor = |format: &str| -> Ran {
        let args = ["doctor", "--format", format];
        harness().args(args).env("DOCKER_HOST", "unix:///nowhere/docker.sock").output().unwrap().into()
    };
    let ran = doctor("text").exits(3);
    for word in ["FAILS      Docker engine", "/nowhere/docker.sock", "mend: ", "not tried  pause"] {
        assert!(ran.stdout.contains(word), "`{word}` is missing in:\n{}", ran.stdout);
    }
    let found = outcomes(&doctor("json").exits(3));
    assert!(found.contains(&("Docker engine".into(), "fails".into())), "{found:?}");
    assert!(found.contains(&("binary".into(), "works".into())), "{found:?}");
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_doctor_tries_every_fault_on_real_servers() {
    let _guard = may_sweep();
    let dir = tempfile::tempdir().unwrap();
    let ran: Ran = harness().args(["doctor", "--format", "json", "--runs"]).arg(dir.path()).output().unwrap().into();
    let ran = ran.exits(0);
    let found = outcomes(&ran);
    assert_eq!(found.iter().filter(|(_, outcome)| outcome == "not-tried").count(), 0, "{found:?}");
    assert!(found.contains(&("powerloss".into(), "works".into())), "{found:?}");
    assert!(found.contains(&("clock".into(), "works".into())), "{found:?}");
    let run = dir.path().join("latest").canonicalize().unwrap();
    assert_eq!(left_of(&run), Vec::<String>::new());
}
