use clap::Parser;
use history::Persistence;

use super::*;
use crate::cli::{Cli, Command};

/// Redlock with these faults, in a run of this length.
fn scenario(words: &str, time: Duration, lease: Duration) -> Scenario {
    let mut scenario = Scenario::of("redlock").unwrap();
    scenario.faults = nemesis::parse(words).unwrap();
    (scenario.base.time, scenario.base.lease) = (time, lease);
    scenario
}

#[test]
fn a_drawn_fault_of_a_lock_node_may_be_longer_than_its_run() {
    let second = Duration::from_secs(1);
    for (words, time, lease) in [("clock", second * 5, second * 2), ("pause@before-write", second * 2, second)] {
        let scenario = scenario(words, time, lease);
        let plans: Vec<Plan> = (0..100).map(|seed| scenario.plan(seed).unwrap()).collect();
        assert!(plans.iter().all(|plan| fits_its_run(plan).is_ok()), "{words}");
        let is_longer = |plan: &Plan| plan.schedule.iter().any(|step| step.fault.lasting > time);
        assert!(plans.iter().any(is_longer), "{words}");
    }
}

#[test]
fn a_day_of_random_faults_of_lock_nodes_is_a_valid_plan() {
    let day = Duration::from_secs(24 * 3_600);
    for words in ["amnesia,powerloss", "amnesia,powerloss,clock"] {
        let plan = scenario(words, day, Duration::from_secs(2)).plan(1).unwrap();
        assert!(plan.schedule.len() > 100_000, "{}", plan.schedule.len());
        assert_eq!(plan.check_line(), Ok(()));
    }
}

#[test]
fn a_fault_at_a_point_to_which_no_client_comes_is_refused() {
    let plan = |backend: &str| {
        let mut scenario = Scenario::of(backend).unwrap();
        scenario.faults = nemesis::parse("pause@after-write-back").unwrap();
        scenario.plan(1).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(plan("redlock"), Ok(()));
    let refused = plan("redis").unwrap_err();
    assert!(refused.starts_with("--nemesis: fault 1 (pause): only with tokens `two-phase`"), "{refused}");
}

/// The refusal of `harness run` with these flags, in the simulation.
fn refusal(flags: &str) -> Option<String> {
    let parsed = Cli::try_parse_from(format!("harness run --cluster sim --seed 1 {flags}").split(' ')).unwrap();
    let Command::Run(args) = parsed.command else { panic!("{flags}") };
    resolve(&args, ClusterKind::Sim).err().map(|error| error.to_string())
}

#[test]
fn a_planted_bug_that_changes_nothing_with_the_tokens_is_refused() {
    let of = |tokens: &str| refusal(&format!("--backend buggy:write-back-any-owner --tokens {tokens}"));
    assert_eq!(of("two-phase"), None);
    let refused = of("none").unwrap();
    let words = "--tokens: the planted bug `write-back-any-owner` changes nothing with tokens `none`";
    assert!(refused.starts_with(words), "{refused}");
}

#[test]
fn a_run_whose_faults_do_not_fit_is_refused() {
    let refused = refusal("--nemesis pause:rolling --time 10s").unwrap();
    assert!(refused.starts_with("--nemesis: with seed 1 no fault fits into the fault phase of 10s"), "{refused}");
    for nemesis in ["none", "pause", "pause:rolling,pause", "pause:rolling@5s", "pause:rolling+100ms --time 20s"] {
        let time = if nemesis.contains("--time") { "" } else { " --time 10s" };
        assert_eq!(refusal(&format!("--nemesis {nemesis}{time}")), None, "{nemesis}");
    }
}

/// The plan of `harness run` with these flags, in the simulation.
fn simulated(flags: &str) -> Plan {
    let parsed = Cli::try_parse_from(format!("harness run --cluster sim --seed 1 {flags}").split(' ')).unwrap();
    let Command::Run(args) = parsed.command else { panic!("{flags}") };
    resolve(&args, ClusterKind::Sim).unwrap().plan
}

#[test]
fn each_switch_of_the_models_counts_without_the_others() {
    let of = |flags: &str| simulated(&format!("--nemesis none {flags}")).models;
    for (flags, models) in [
        ("--backend etcd --revokes-on-resume", Models { revokes_on_resume: true, ..Models::default() }),
        ("--backend etcd-server-lock --lock-checks-key", Models { lock_checks_key: true, ..Models::default() }),
        ("--backend redis --persistence always", Models { persistence: Persistence::Always, ..Models::default() }),
    ] {
        assert_eq!(of(flags), Some(models), "{flags}");
    }
    assert_eq!(of("--backend etcd-server-lock"), None);
}

#[test]
fn a_run_says_nothing_unless_two_clients_have_held_the_lock() {
    for nemesis in ["none", "pause", "pause@before-write", "pause:worker-1@1s"] {
        for backend in ["redis", "etcd-server-lock"] {
            let plan = simulated(&format!("--backend {backend} --nemesis {nemesis}"));
            assert!(plan.activity.clients >= 2, "{backend} {nemesis}");
        }
    }
}

#[test]
fn a_run_is_short_only_if_every_fault_is_placed_at_a_protocol_point() {
    let long = (Duration::from_secs(30), Activity::default());
    let short = (Duration::from_secs(12), Activity { holds: 2, clients: 2, refused: 1 });
    for (nemesis, expected) in [
        ("none", long),
        ("pause", long),
        ("pause:worker-1@1s", long),
        ("pause@before-write", short),
        ("pause@before-write,pause@after-send", short),
        ("pause@before-write,amnesia", long),
        ("amnesia,pause@before-write", long),
    ] {
        let plan = simulated(&format!("--nemesis {nemesis}"));
        assert_eq!((plan.time, plan.activity), expected, "{nemesis}");
    }
    for nemesis in ["pause", "pause@before-write"] {
        let plan = simulated(&format!("--time 9s --nemesis {nemesis}"));
        assert_eq!(plan.time, Duration::from_secs(9), "{nemesis}");
    }
}
