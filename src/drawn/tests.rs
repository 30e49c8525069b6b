use std::time::Duration;

use super::*;

/// The plan of `--backend redlock` with these faults and this seed.
pub fn planned(words: &str, seed: u64) -> Plan {
    let mut made = crate::scenario::Scenario::of("redlock").unwrap();
    made.faults = nemesis::parse(words).unwrap();
    made.base.nemesis = words.split(',').filter(|word| *word != "none").map(str::to_owned).collect();
    made.plan(seed).unwrap()
}

#[test]
fn each_random_fault_has_a_random_time_and_no_placed_fault_has_one() {
    let times = |words: &str| {
        let plan = planned(words, 1);
        let random = random_times(&plan);
        assert!(!random.is_empty() && random.len() == plan.schedule.len(), "{words}");
        random
    };
    for words in ["amnesia", "partition:any-lock-node", "partition:holder", "kill:rolling+500ms", "pause,amnesia"] {
        assert!(times(words).iter().all(|is_random| *is_random), "{words}");
    }
    for words in ["pause@before-write", "amnesia:redis-2@5s", "kill:rolling@2s+500ms"] {
        assert!(!times(words).contains(&true), "{words}");
    }
    let mixed = times("amnesia:redis-2@5s,partition:redis-1");
    assert!(mixed.len() > 1 && !mixed[0] && !mixed[1..].contains(&false), "{mixed:?}");
}

#[test]
fn a_time_that_somebody_has_changed_is_not_random() {
    let mut plan = planned("amnesia", 1);
    plan.schedule[0].when = When::At(Duration::from_millis(1));
    assert!(!random_times(&plan).contains(&true), "{:?}", plan.schedule);
}

#[test]
fn no_text_of_the_nemesis_ends_a_report() {
    let day = Duration::from_secs(24 * 3_600);
    let plan = Plan { time: day, ..planned("amnesia:redis-1@1s", 1) };
    let many = vec!["amnesia".to_owned(); 500];
    for nemesis in [
        vec!["pause+18446744073709551615s".to_owned()],
        vec!["amnesia:redis-1+18446744073709551615s".to_owned()],
        vec!["clock:redis-1@18446744073709551615s".to_owned()],
        vec!["pause@before-write+100years".to_owned()],
        many,
        vec!["not a word".to_owned()],
    ] {
        let plan = Plan { nemesis, ..plan.clone() };
        assert!(!is_drawn(&plan) && random_times(&plan) == [false], "{:?}", &plan.nemesis[..1]);
    }
}

#[test]
fn a_changed_plan_of_a_day_costs_few_draws() {
    let day = |seed| {
        let plan = planned("amnesia,powerloss", seed);
        Plan { time: Duration::from_secs(24 * 3_600), schedule: Vec::new(), ..plan }
    };
    let drawn = |seed| drawn_from(&day(seed), seed, |_| true).unwrap();
    let runs = |run: u64| Plan { seed: 300 + run, schedule: drawn(300), ..day(1) };
    // With every seed of a long row, a changed plan of a day would take seconds.
    assert_eq!([0, 4, 5].map(|run| drawing_seed(&runs(run))), [Some(300), Some(300), None]);
}
