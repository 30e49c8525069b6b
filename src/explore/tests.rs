use std::time::Duration;

use clap::Parser;
use history::{NodeName, Target, Tokens, When};

use super::*;
use crate::{
    cli::{Cli, Command},
    explore::fixtures::{class, cut, fired, paused_at, plan},
};

#[test]
fn sets_of_causes_and_causes_of_one_set_give_other_file_names() {
    let name = |causes: &[&str]| {
        let causes = causes.iter().map(|set| set.parse().unwrap()).collect();
        file_name(&Class { property: "lock".into(), kind: "lease-overlap", causes }, 23)
    };
    assert_eq!(name(&["amnesia+clock"]), "lock-lease-overlap-amnesia-clock-23");
    assert_eq!(name(&["amnesia", "clock"]), "lock-lease-overlap-amnesia-or-clock-23");
}

#[test]
fn results_that_cannot_be_written_leave_nothing_beside() {
    let dir = tempfile::tempdir().unwrap();
    // A directory cannot be replaced by a file.
    std::fs::create_dir(dir.path().join("explore.json")).unwrap();
    let failed = write(dir.path(), "explore.json".to_owned(), "{}").unwrap_err().to_string();
    assert!(failed.starts_with("writing ") && failed.ends_with("explore.json"), "{failed}");
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["explore.json"]);
}

#[test]
fn a_panic_for_a_changed_plan_does_not_end_the_reduction() {
    let cuts = |plan: &Plan, node: &str| {
        let target = Target::Node(NodeName::new(node));
        plan.schedule.iter().any(|step| step.target == target)
    };
    let judge = judge(|plan| {
        assert!(cuts(plan, "redis-4"), "a bug that shows itself without this fault");
        let classes = cuts(plan, "redis-5").then(|| class("pause"));
        Ok::<_, String>(Trial { fired: fired(plan), ..fixtures::trial(classes) })
    });
    let mut all = plan();
    all.time = Duration::from_secs(20);
    all.schedule = (1..=6).map(|id| paused_at(id, When::AfterHeal(Duration::from_millis(300)), 700)).collect();
    all.schedule.extend([cut(7, "redis-4", &["worker-3"], 1_200), cut(8, "redis-5", &["worker-3"], 1_200)]);
    for jobs in [1, 3] {
        let reduced = reduce(&all, &class("pause"), Limits { jobs, deadline: None }, &judge).unwrap();
        assert_eq!(reduced.plan.schedule.len(), 2, "{:?}", reduced.plan.schedule);
    }
}

#[test]
fn a_plan_that_does_not_violate_again_is_a_finding_without_a_reduction() {
    let scenario = Scenario::of("redlock").unwrap();
    // Without faults, no client is ever stale.
    let source = Source { scenario, swarm: None, plans: BTreeMap::from([(7, plan())]) };
    let seen = Occurrences { count: 1, seeds: vec![7] };
    let finding = source.finding(&class("pause"), &seen, 1, Limits::default()).unwrap();
    assert!(finding.reduced.is_none());
    let text = finding.results().unwrap().text(10);
    assert!(text.starts_with("lock stale-holder pause: in 1 of 10 schedules, first with seed 7\n"), "{text}");
    assert!(text.contains("\n  not reduced: seed 7: the same plan did not give"), "{text}");
    let unreduced = source.finding(&class("pause"), &seen, 0, Limits::default()).unwrap();
    assert!(unreduced.results().unwrap().text(10).contains("--limit is 0"));
}

#[test]
fn a_budget_that_ends_after_a_reduction_has_not_cut_it_short() {
    let scenario = Scenario::of("redlock").unwrap();
    let source = Source { scenario, swarm: None, plans: BTreeMap::from([(7, plan())]) };
    let seen = Occurrences { count: 1, seeds: vec![7] };
    let cut_short = |limit, deadline| {
        let limits = Limits { deadline, jobs: 1 };
        source.finding(&class("pause"), &seen, limit, limits).unwrap().is_cut_short
    };
    let (over, later) = (Instant::now(), Instant::now() + Duration::from_secs(3_600));
    assert!(cut_short(1, Some(over)));
    // The chart is drawn after this, and takes no time of the budget.
    assert!(!cut_short(1, Some(later)) && !cut_short(1, None));
    assert!(!cut_short(0, Some(over)), "nothing is minimized");
}

/// The source of the plans of `harness explore` with these flags.
fn source(flags: &str) -> Source {
    let words = format!("harness explore {flags}");
    let Command::Explore(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else { panic!("{words}") };
    Source::of(&args).unwrap()
}

#[test]
fn an_exploration_whose_faults_never_fit_is_refused() {
    let of = |flags: &str| {
        let words = format!("harness explore {flags}");
        let Command::Explore(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else { panic!("{words}") };
        Source::of(&args).map(drop).map_err(|error| error.to_string())
    };
    // Five pauses, one after the other, are longer than the run.
    let refused = of("--nemesis pause:rolling").unwrap_err();
    assert!(refused.starts_with("--nemesis: with seed 0 no fault fits into the fault phase of 8.2s"), "{refused}");
    for flags in ["--nemesis pause:rolling+100ms --time 20s", "--nemesis none"] {
        assert_eq!(of(flags), Ok(()), "{flags}");
    }
}

#[test]
fn a_swarm_keeps_the_plans_that_are_minimized() {
    let mut source = source("--swarm --backend buggy:forgets-nx@redis");
    let tally = source.tally(Seeds { first: 0, count: 3, kept: 1, jobs: 1 }, &|_| ()).unwrap();
    assert!(!tally.classes.is_empty());
    for (class, seen) in &tally.classes {
        let plan = &source.plans[&seen.seeds[0]];
        assert!(source.scenario.simulated(plan).unwrap().classes.contains(class), "{class}");
    }
}

#[test]
fn a_swarm_has_the_tokens_that_the_flags_name() {
    let tokens = |flags: &str| {
        let swarm = source(flags).swarm.unwrap();
        (0..8).map(|seed| swarm.plan(seed).unwrap().tokens).collect::<Vec<_>>()
    };
    assert_eq!(tokens("--swarm --tokens majority-max"), [Tokens::MajorityMax; 8]);
    assert!(!tokens("--swarm").contains(&Tokens::MajorityMax), "by default, the source is sound");
}

#[test]
fn a_swarm_of_named_tokens_is_another_exploration() {
    let head = |flags: &str| {
        let words = format!("harness explore --swarm --backend redis{flags}");
        let Command::Explore(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else { panic!("{words}") };
        let source = Source::of(&args).unwrap();
        (source.head(&args).unwrap().flags, source.swarm.unwrap().plan(0).unwrap())
    };
    let (any, plan) = head("");
    let (named, same) = head(&format!(" --tokens {}", plan.tokens));
    assert_eq!(same, plan, "the first seed does not tell the two apart");
    assert_ne!(named, any);
}
