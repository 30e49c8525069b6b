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
