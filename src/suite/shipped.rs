//! Tests of the suites in `suites/`: everything in them can be run, and the nightly suite leaves nothing out.

use std::{collections::BTreeSet, path::PathBuf};

use clap::Parser;
use compose::BUILTIN;
use history::{Arm, ClusterKind, FaultKind};
use workloads::backend::Backend;

use super::file::{Case, read};
use crate::{
    cli::{Cli, Command},
    scenario::Scenario,
};

/// Suites of client programs that `scripts/libraries` makes: they are not in the repository.
const MADE: [&str; 2] = ["libraries.toml", "templates.toml"];

fn cases(name: &str, cluster: ClusterKind) -> Vec<Case> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("suites").join(name);
    read(&[path], cluster, &[]).unwrap_or_else(|e| panic!("{name}: {e:#}")).remove(0).cases
}

/// Whether the servers of a backend can have a fault, by the checks of `harness run`.
fn is_possible(backend: &str, kind: FaultKind) -> bool {
    let cli = Cli::try_parse_from(["harness", "run", "--backend", backend, "--nemesis", kind.name()]).unwrap();
    let Command::Run(args) = cli.command else { unreachable!("`run` is its first word") };
    Scenario::from_flags(&args.scenario, &args.program, ClusterKind::Docker, None).and_then(|of| of.plan(1)).is_ok()
}

#[test]
fn every_shipped_suite_can_be_run() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("suites");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let suites: Vec<String> = files.filter(|name| name.ends_with(".toml") && !MADE.contains(&name.as_str())).collect();
    assert!(suites.len() >= 5, "{suites:?}");
    for (suite, cluster) in suites.iter().flat_map(|s| [(s, ClusterKind::Docker), (s, ClusterKind::Sim)]) {
        assert!(!cases(suite, cluster).is_empty());
    }
}

#[test]
fn every_suite_of_programs_that_are_made_first_can_be_run() {
    let suites = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("suites");
    let dir = tempfile::tempdir().unwrap();
    for (name, least) in MADE.into_iter().zip([150, 12]) {
        // The files of a program must be there, but its arguments need not be files.
        let text = std::fs::read_to_string(suites.join(name)).unwrap().replace("'target/", "'true target/");
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let cases = read(&[path], ClusterKind::Docker, &[]).unwrap_or_else(|e| panic!("{name}: {e:#}")).remove(0).cases;
        assert!(cases.len() >= least, "{name}: {}", cases.len());
        assert!(cases.iter().all(|case| case.file.plan.program.is_some()), "{name}");
    }
}

#[test]
fn the_nightly_suite_has_every_fault_that_a_backend_can_have() {
    let nightly = cases("nightly.toml", ClusterKind::Docker);
    let there: BTreeSet<(String, FaultKind)> = nightly
        .iter()
        .filter(|case| BUILTIN.iter().any(|(name, _)| *name == case.file.backend))
        .flat_map(|case| case.file.plan.kinds().into_iter().map(|kind| (case.file.backend.clone(), kind)))
        .collect();
    let all = BUILTIN.iter().flat_map(|(name, _)| FaultKind::ALL.map(|kind| ((*name).to_owned(), kind)));
    let possible: BTreeSet<(String, FaultKind)> = all.filter(|(name, kind)| is_possible(name, *kind)).collect();
    assert!(possible.len() > 60 && !possible.contains(&("etcd".to_owned(), FaultKind::Amnesia)), "{possible:?}");
    // Possible, but ZooKeeper often does not start again, so that no verdict can be expected (docs/backends.md).
    let is_tried =
        |(name, kind): &&(String, FaultKind)| !(name.starts_with("zookeeper") && *kind == FaultKind::Powerloss);
    assert_eq!(there, possible.iter().filter(is_tried).cloned().collect());
}

#[test]
fn the_nightly_suite_has_a_control_with_every_required_arm_on_every_backend() {
    // Fence or data binds these arms; `off` is what they are compared with.
    let bound = || Arm::ALL.into_iter().filter(|arm| arm.fences() || arm.keeps_data() || *arm == Arm::Off);
    let nightly = cases("nightly.toml", ClusterKind::Docker);
    let is_built = |name: &str| Backend::named(name).unwrap().missing_feature().is_none();
    for (backend, _) in BUILTIN.iter().filter(|(name, _)| is_built(name)) {
        let is_control = |case: &&Case| case.file.backend == *backend && case.file.plan.kinds().is_empty();
        let mut controls = nightly.iter().filter(is_control);
        assert!(controls.any(|case| bound().all(|arm| case.file.plan.arms.contains(&arm))), "{backend}");
    }
}
