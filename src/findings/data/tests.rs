use super::*;
use crate::{
    report::{TestCase, TestResult},
    suite::fixtures::run,
};

#[test]
fn a_run_that_could_not_be_measured_is_left_out_of_a_span() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = Data::read(dir.path(), "suites/kleppmann.toml".as_ref()).unwrap();
    let mut granted = run("K1", 0);
    let evidence = "evidence.check_to_write_ms";
    let figures = [("measures.acquire_p50_ms", 4.0), ("lock.stale_holder", 2.0), (evidence, 4.0)];
    granted.facts.figures = figures.map(|(path, value)| (path.to_owned(), value)).into();
    let mut inconclusive = CaseRun { outcome: Outcome::Inconclusive, ..run("K1", 1) };
    inconclusive.facts.figures.insert(evidence.to_owned(), 0.5);
    data.runs.insert("docker".to_owned(), vec![granted, inconclusive]);
    let least = |path| data.figure("K1", path, "docker").unwrap().min;
    assert_eq!(least("measures.acquire_p50_ms"), 4.0);
    assert_eq!(least("lock.stale_holder"), 0.0);
    assert_eq!(least(evidence), 4.0, "the other run says nothing about the claim");
}

#[test]
fn a_run_that_was_not_made_is_left_out_of_a_span() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = Data::read(dir.path(), "suites/kleppmann.toml".as_ref()).unwrap();
    let mut made = run("K1", 0);
    made.facts.figures.insert("lock.stale_holder".to_owned(), 2.0);
    let failed = CaseRun { outcome: Outcome::Infrastructure, ..run("K1", 1) };
    data.runs.insert("docker".to_owned(), vec![made, failed]);
    assert_eq!(data.figure("K1", "lock.stale_holder", "docker").unwrap().min, 2.0);
}

#[test]
fn a_lease_overlap_is_not_as_long_as_the_act_of_a_stale_holder() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = Data::read(dir.path(), "suites/kleppmann.toml".as_ref()).unwrap();
    let mut both = run("E4", 0);
    let windows = r#"[{"kind":"stale-holder","causes":["pause"],"overlap_ms":9000.0,"staleness_ms":9500.0},
                      {"kind":"lease-overlap","causes":["pause"],"overlap_ms":200.0},
                      {"kind":"lease-overlap","causes":["pause"],"overlap_ms":700.0}]"#;
    both.facts.windows = serde_json::from_str(windows).unwrap();
    let mut stale = run("E4", 1);
    stale.facts.windows = both.facts.windows[..1].to_vec();
    data.runs.insert("docker".to_owned(), vec![both, stale]);
    let claim = data.claim("E4", "docker").unwrap();
    assert_eq!(claim.overlap.unwrap().max, 9000.0);
    let leases = claim.lease_overlap.unwrap();
    assert_eq!((leases.min, leases.max), (700.0, 700.0), "the other run has none");
}

#[test]
fn a_run_that_was_not_made_is_told_with_its_errors() {
    let errors = vec!["no engine".to_owned(), "no memory".to_owned()];
    let tests = vec![TestCase::new("run", TestResult::Error, errors)];
    let failed = CaseRun { outcome: Outcome::Infrastructure, tests, ..run("K1", 1) };
    assert_eq!(otherwise(&failed).why, "no engine; no memory");
    let missed = CaseRun { misses: vec!["found upheld".to_owned()], ..failed };
    assert_eq!(otherwise(&missed).why, "found upheld");
}

#[test]
fn only_consecutive_seeds_are_a_range() {
    for (of_runs, expected) in [
        (&[4][..], "4"),
        (&[2, 1, 3][..], "1–3"),
        (&[1, 3][..], "1, 3"),
        (&[1, 1, 3][..], "1, 1, 3"),
        (&[7, 7][..], "7, 7"),
    ] {
        let runs: Vec<CaseRun> = of_runs.iter().map(|seed| CaseRun { seed: *seed, ..run("K1", 0) }).collect();
        assert_eq!(seeds(&runs.iter().collect::<Vec<_>>()), expected);
    }
}

#[test]
fn the_seeds_of_every_case_are_told_once() {
    let runs = [("K1", 1), ("K2", 5), ("K3", 1), ("K1", 2), ("K2", 6), ("K3", 2)];
    let runs = runs.map(|(case, seed)| CaseRun { seed, ..run(case, 0) });
    assert_eq!(all_seeds(&runs.iter().collect::<Vec<_>>()), "1–2 or 5–6");
}

#[test]
fn the_origin_of_a_curve_names_its_servers() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["dose-pause-docker.json", "dose-pause-sim.json"] {
        std::fs::copy(std::path::Path::new("docs/findings/data").join(name), dir.path().join(name)).unwrap();
    }
    let data = Data::read(dir.path(), "suites/kleppmann.toml".as_ref()).unwrap();
    let of = |cluster| data.dose_origin("pause", cluster).unwrap();
    assert!(of("docker").contains("of each point; redis 7.0.15; "), "{}", of("docker"));
    assert!(!of("sim").contains("redis"), "{}", of("sim"));
}
