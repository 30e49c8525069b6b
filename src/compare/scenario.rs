//! The scenario of a run: its plan without the seed, and without all that the seed decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use history::{Plan, When};
use serde_json::Value;

use crate::{drawn::is_drawn, fingerprint, report::scenario};

/// The most characters of a value in a name. A longer value is shown by its fingerprint.
const VALUE_MAX: usize = 60;

/// Returns the plan without its seed, which is equal for all runs of one scenario. The words of `--nemesis` stand for
/// the faults that the seed has drawn. Other faults stand for themselves: a suite or a hand may have changed them after
/// the draw.
pub fn without_seed(plan: &Plan) -> Plan {
    let mut scenario = Plan { seed: 0, ..plan.clone() };
    if is_drawn(plan) {
        scenario.schedule.clear();
    } else {
        // With the words, a plan whose faults were taken out would look like one whose faults are drawn.
        scenario.nemesis.clear();
    }
    // Two versions of a client program are compared like two versions of a server.
    for file in scenario.program.iter_mut().flat_map(|program| &mut program.files) {
        file.sha256.clear();
    }
    scenario
}

/// Returns the heading of a plan's scenario.
pub fn name(plan: &Plan) -> String {
    let mut plan = plan.clone();
    // The drawn times of one run are not those of its scenario.
    if is_drawn(&plan) && plan.nemesis.iter().all(|word| !word.contains('@')) {
        plan.schedule.iter_mut().for_each(|step| step.when = When::AfterHeal(Duration::ZERO));
    }
    scenario(&plan)
}

/// Adds to each scenario's name the fields in which its plan differs from the other plans of that name. A heading has
/// only some fields of a plan.
pub fn tell_apart<'a>(scenarios: impl Iterator<Item = (&'a mut String, &'a Plan)>) {
    let mut by_name: BTreeMap<String, Vec<(&mut String, &Plan)>> = BTreeMap::new();
    for (name, plan) in scenarios {
        by_name.entry(name.clone()).or_default().push((name, plan));
    }
    for same in by_name.into_values() {
        let plans: Vec<BTreeMap<String, String>> = same.iter().map(|(_, plan)| fields(plan)).collect();
        let differs = |field: &&String| plans.iter().any(|plan| plan.get(*field) != plans[0].get(*field));
        let different: BTreeSet<&String> = plans.iter().flat_map(BTreeMap::keys).filter(differs).collect();
        for ((name, _), plan) in same.into_iter().zip(&plans) {
            for field in &different {
                let value = plan.get(*field).map_or("not set", String::as_str);
                *name += &format!(" · {field} {value}");
            }
        }
    }
}

/// Returns the fields of a plan by their paths, as `plan.toml` names them: `workload.keys`.
fn fields(plan: &Plan) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    if let Ok(plan) = serde_json::to_value(plan) {
        add("", &plan, &mut fields);
    }
    fields
}

fn add(path: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                add(&path, member, fields);
            }
            return;
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let is_long = text.chars().count() > VALUE_MAX;
    fields.insert(path.to_owned(), if is_long { fingerprint::of([text.as_str()]) } else { text });
}

#[cfg(test)]
mod tests {
    use history::{ClockChange, Fault, Program, ProgramFile, Step, WhichClock, fault::Clock};

    use super::*;
    use crate::drawn::tests::planned;

    #[test]
    fn seeds_of_one_scenario_have_one_plan() {
        // Faults of workers, of servers, and of both; words with and without details.
        for words in ["pause", "amnesia", "pause,amnesia", "pause:any-worker@5s", "kill:any-lock-node+1s"] {
            let (one, other) = (planned(words, 1), planned(words, 2));
            assert_ne!(one.schedule, other.schedule, "{words}");
            assert_eq!(without_seed(&one), without_seed(&other), "{words}");
        }
        assert_ne!(without_seed(&planned("pause+2s", 1)), without_seed(&planned("pause+3s", 1)));
    }

    #[test]
    fn a_changed_fault_makes_another_scenario() {
        let changed = |words: &str, change: &dyn Fn(&mut Vec<Step>)| {
            let drawn = planned(words, 1);
            let mut changed = drawn.clone();
            change(&mut changed.schedule);
            assert_ne!(without_seed(&changed), without_seed(&drawn), "{words}");
            // The fault stays as it is, whatever the seed.
            let other_seed = Plan { seed: 2, ..changed.clone() };
            assert_eq!(without_seed(&changed), without_seed(&other_seed), "{words}");
        };
        let drift = Clock { clock: WhichClock::Wall, change: ClockChange::DriftPpm(200_000) };
        changed("clock:redis-2@1500ms+2s", &|steps| steps[0].fault = Fault::new(drift.clone(), Duration::from_secs(2)));
        changed("pause", &|steps| steps[0].fault.lasting += Duration::from_secs(1));
        changed("pause", &|steps| steps.clear());
        changed("amnesia", &|steps| drop(steps.pop()));
    }

    #[test]
    fn the_runs_of_a_row_are_one_scenario() {
        // A suite gives each run the next seed, and the faults of the first run.
        for words in ["pause", "amnesia", "kill:any-lock-node+1s"] {
            let first = planned(words, 1);
            let fifth = Plan { seed: 5, ..first.clone() };
            assert_eq!(without_seed(&first), without_seed(&fifth), "{words}");
            assert_eq!(name(&first), name(&fifth), "{words}");
        }
    }

    #[test]
    fn versions_of_a_client_program_are_one_scenario() {
        let plan = |names: [&str; 2], versions: [&str; 2]| {
            let file = |(name, sha256): (&str, &str)| ProgramFile { name: name.to_owned(), sha256: sha256.to_owned() };
            let files = names.into_iter().zip(versions).map(file).collect();
            let program = Program { command: vec!["./lock".to_owned()], files };
            without_seed(&Plan { program: Some(program), ..planned("none", 1) })
        };
        let names = ["lock", "lib/keys.py"];
        let first = plan(names, ["1", "1"]);
        for versions in [["2", "1"], ["1", "2"], ["2", "2"]] {
            assert_eq!(plan(names, versions), first, "{versions:?}");
        }
        assert_ne!(plan(["lock", "lib/leases.py"], ["1", "1"]), first);
    }

    #[test]
    fn faults_placed_by_hand_belong_to_the_scenario() {
        let placed = |at: &str, seed| {
            let plan = planned(&format!("pause:worker-1@{at}+3s"), 1);
            Plan { seed, nemesis: vec!["pause".to_owned()], ..plan }
        };
        assert_eq!(without_seed(&placed("5s", 1)), without_seed(&placed("5s", 2)));
        assert_ne!(without_seed(&placed("5s", 1)), without_seed(&placed("6s", 1)));
    }

    #[test]
    fn a_name_has_no_drawn_times() {
        assert!(name(&planned("amnesia", 1)).contains("amnesia at random times"));
        assert!(name(&planned("pause:worker-1@5s", 1)).contains("pause at 5s"));
    }

    #[test]
    fn scenarios_of_one_heading_are_told_apart() {
        let scenario = |keys, words| {
            let mut plan = planned(words, 1);
            plan.workload.keys = keys;
            (name(&plan), without_seed(&plan))
        };
        let mut all = [scenario(1, "pause"), scenario(3, "pause"), scenario(1, "stop")];
        let other = all[2].0.clone();
        assert_eq!(all[0].0, all[1].0);
        tell_apart(all.iter_mut().map(|(name, plan)| (name, &*plan)));
        assert!(all[0].0.ends_with(" · workload.keys 1"), "{}", all[0].0);
        assert!(all[1].0.ends_with(" · workload.keys 3"), "{}", all[1].0);
        assert_eq!(all[2].0, other);
    }

    #[test]
    fn long_values_are_told_apart_by_their_ends_and_fill_no_name() {
        for (length, is_shown) in [(59, true), (60, true), (61, false), (200, false)] {
            let plan = |end: &str| {
                // The field is a list of one name: `["xx1"]`.
                let node = format!("{}{end}", "x".repeat(length - 5));
                Plan { lock_nodes: vec![node.as_str().into()], ..planned("none", 1) }
            };
            let mut all = ["1", "2"].map(|end| ("a".to_owned(), plan(end)));
            tell_apart(all.iter_mut().map(|(name, plan)| (name, &*plan)));
            let [(one, plan), (other, _)] = &all;
            let value = serde_json::to_string(&plan.lock_nodes).unwrap();
            assert_eq!((value.len(), one.ends_with(&value)), (length, is_shown), "{one}");
            let shown = one.strip_prefix("a · lock_nodes ").unwrap();
            assert!(one != other && shown.len() <= VALUE_MAX, "{one}, {other}");
        }
    }
}
