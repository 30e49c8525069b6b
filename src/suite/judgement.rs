//! Judges a run of a case: the evidence, the expected verdicts, the causes, the servers.

use checker::{CauseSet, Property, Verdict, Verdicts, Window, canonical, joined};
use history::{MadeBy, Record};

use super::{
    evidence::Evidence,
    facts::RunFacts,
    file::Case,
    results::{CaseRun, Outcome},
    table,
};
use crate::{
    exit::Exit,
    expect::{Miss, compare},
    plan_file::PlanFile,
    report::{TestCase, TestResult, test_cases},
};

/// Returns whether windows that have a cause are all that violates the property. A dead claim, an overclaim and a
/// minority claim violate the lock without any window, and no cause excuses them.
fn is_explained(property: &Property) -> bool {
    let Property::Lock(lock) = property else { return false };
    let has_claims = !lock.dead_claims.is_empty() || !lock.overclaims.is_empty() || !lock.minority_claims.is_empty();
    !lock.windows.is_empty() && lock.unexplained == 0 && !has_claims
}

/// Judges a run of a row without an expectation. A fault alone may make two clients hold the lock, by windows that have
/// a cause. It may violate nothing else, and everything must be judged.
fn unexpected(verdicts: &Verdicts) -> (Vec<Miss>, Exit) {
    let mut misses = Vec::new();
    let mut exit = if verdicts.reasons.is_empty() { Exit::Ok } else { Exit::Inconclusive };
    for (name, property) in verdicts.properties.iter() {
        let found = property.verdict();
        match found {
            Verdict::Violated if !is_explained(property) => exit = Exit::Violated,
            Verdict::Inconclusive if exit != Exit::Violated => exit = Exit::Inconclusive,
            Verdict::Inconclusive => {}
            _ => continue,
        }
        misses.push(Miss { path: name.to_owned(), text: format!("expected {name}=upheld, found {found}") });
    }
    (misses, exit)
}

/// Returns a miss for the first window with other causes than the row expects. The order of the causes does not count:
/// the checker lists them in the order of nodes and faults, which chance decides.
fn other_cause(windows: &[Window], expected: &[CauseSet]) -> Option<Miss> {
    let expected = canonical(expected);
    let found = windows.iter().map(|window| canonical(&window.causes)).find(|found| *found != expected)?;
    let (expected, found) = (joined(&expected, " and "), joined(&found, " and "));
    Some(Miss { path: "lock.causes".into(), text: format!("expected the cause {expected}, found {found}") })
}

/// Judges a run of a case.
pub fn judge(
    case: &Case,
    file: &PlanFile,
    records: &[Record],
    verdicts: &Verdicts,
    made_by: Option<&MadeBy>,
    servers: String,
) -> anyhow::Result<CaseRun> {
    let evidence = Evidence::of(&file.plan, records.iter());
    let missing: Vec<String> =
        case.witnesses.iter().filter(|w| !evidence.has(w, verdicts)).map(ToString::to_string).collect();
    let (mut misses, exit) = match &case.expectation {
        Some((expectation, _)) => {
            let compared = compare(Some(expectation), verdicts);
            (compared.misses, compared.exit)
        }
        None => unexpected(verdicts),
    };
    let windows = verdicts.lock().map_or(&[][..], |lock| &lock.windows);
    misses.extend(case.causes.as_ref().and_then(|causes| other_cause(windows, causes)));
    let is_known = case.is_about(&servers, file.plan.cluster);
    // Without its witness a run says nothing, not even by a violation: a pause that lasts longer than planned, for
    // example, violates what a shorter one must uphold. The misses are shown all the same.
    let outcome = match (missing.is_empty() && is_known, misses.is_empty() && exit == Exit::Ok) {
        (true, true) => Outcome::AsExpected,
        (true, false) if exit != Exit::Inconclusive => Outcome::NotAsExpected,
        _ => Outcome::Inconclusive,
    };
    let exit = if outcome == Outcome::Inconclusive { Exit::Inconclusive } else { exit };
    let mut tests = test_cases(verdicts, &misses, exit);
    let unseen = missing.iter().map(|witness| format!("not seen: {witness}")).collect();
    tests.push(TestCase::new("witness", TestResult::Skipped, unseen));
    let mut misses: Vec<String> = misses.into_iter().map(|miss| miss.text).collect();
    if !is_known {
        let other = format!("expected {}, this is {servers}", case.holds_for.join(" or "));
        tests.push(TestCase::new("servers", TestResult::Skipped, vec![other.clone()]));
        misses.push(other);
    }
    Ok(CaseRun {
        case: case.name.clone(),
        n: 0,
        seed: file.plan.seed,
        fingerprint: case.fingerprint()?,
        outcome,
        missing,
        misses,
        errors: Vec::new(),
        seen: table::figures(verdicts),
        servers,
        run: file.run.clone(),
        took_s: 0.0,
        facts: RunFacts::of(records, &evidence, verdicts, made_by),
        tests,
    })
}

#[cfg(test)]
mod tests {
    use history::{Event, Tail};

    use super::*;

    fn records_of(name: &str) -> Vec<Record> {
        let path = format!("{}/checker/tests/corpus/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        history::Reader::open(path.as_ref()).unwrap().map(Result::unwrap).collect()
    }

    fn verdicts_of(name: &str) -> Verdicts {
        checker::check(records_of(name), Tail::Whole)
    }

    fn lock_of(name: &str) -> Property {
        verdicts_of(name).properties.get("lock").unwrap().clone()
    }

    #[test]
    fn a_window_with_a_cause_excuses_no_claim() {
        let windows = lock_of("kleppmann-pause");
        assert!(is_explained(&windows));
        for claim in ["dead-claim", "deadline-from-answer", "minority-claim"] {
            let (Property::Lock(mut both), Property::Lock(claimed)) = (windows.clone(), lock_of(claim)) else {
                panic!("{claim}")
            };
            both.dead_claims = claimed.dead_claims;
            both.overclaims = claimed.overclaims;
            both.minority_claims = claimed.minority_claims;
            assert!(!is_explained(&Property::Lock(both)), "{claim}");
        }
    }

    #[test]
    fn a_record_that_was_not_judged_to_its_end_is_not_green() {
        let mut verdicts = verdicts_of("kleppmann-pause");
        assert_eq!(unexpected(&verdicts), (Vec::new(), Exit::Ok));
        verdicts.reasons.push("worker-1 ended before it had finished".to_owned());
        assert_eq!(unexpected(&verdicts).1, Exit::Inconclusive);
    }

    #[test]
    fn a_violation_counts_before_a_later_inconclusive_property() {
        let mut records = records_of("dead-claim");
        let Event::Plan { plan, .. } = &mut records[0].event else { panic!("a history begins with its plan") };
        plan.activity.holds = 1_000;
        let (misses, exit) = unexpected(&checker::check(records, Tail::Whole));
        let ends = [misses.first(), misses.last()].map(|miss| miss.map(|miss| miss.path.as_str()));
        assert_eq!((ends, exit), ([Some("lock"), Some("activity")], Exit::Violated));
    }

    #[test]
    fn every_window_must_have_the_expected_causes() {
        let verdicts = verdicts_of("kleppmann-pause");
        let first = verdicts.lock().unwrap().windows[0].clone();
        let expected = first.causes.clone();
        assert_eq!(other_cause(&[first.clone(), first.clone()], &expected), None);
        let second = Window { causes: vec!["kill".parse().unwrap()], ..first.clone() };
        let miss = other_cause(&[first, second], &expected).unwrap();
        assert_eq!(miss.text, "expected the cause pause, found kill");
    }

    #[test]
    fn causes_are_compared_without_their_order() {
        let verdicts = verdicts_of("kleppmann-pause");
        let first = verdicts.lock().unwrap().windows[0].clone();
        let sets = |words: &[&str]| words.iter().map(|set| set.parse().unwrap()).collect::<Vec<CauseSet>>();
        let window = |words: &[&str]| Window { causes: sets(words), ..first.clone() };
        let both = ["clock+amnesia", "amnesia+clock"];
        for (found, expected) in [(&both[..1], &both[1..]), (&["pause", "kill"], &["kill", "pause"])] {
            assert_eq!(other_cause(&[window(found)], &sets(expected)), None, "{expected:?}, found {found:?}");
        }
        let miss = other_cause(&[window(&["clock"])], &sets(&["clock+amnesia"])).unwrap();
        assert_eq!(miss.text, "expected the cause amnesia+clock, found clock");
    }

    #[test]
    fn a_run_is_as_expected_only_with_its_causes_its_witness_and_its_servers() {
        let (records, verdicts) = (records_of("kleppmann-pause"), verdicts_of("kleppmann-pause"));
        let Event::Plan { plan, .. } = &records[0].event else { panic!("a history begins with its plan") };
        let file = PlanFile::new("run".into(), "redis".into(), None, (**plan).clone());
        let (seen, unseen) = ("lock.windows>=1", "lock.windows>=2");
        let other_cause = "expected the cause kill, found pause";
        let other_servers = "expected redis 8, this is redis 7.0.15";
        for (cause, witness, servers, outcome, misses) in [
            ("pause", seen, "redis 7", Outcome::AsExpected, &[][..]),
            ("kill", seen, "redis 7", Outcome::NotAsExpected, &[other_cause][..]),
            ("pause", unseen, "redis 7", Outcome::Inconclusive, &[][..]),
            ("kill", unseen, "redis 7", Outcome::Inconclusive, &[other_cause][..]),
            ("pause", seen, "redis 8", Outcome::Inconclusive, &[other_servers][..]),
            ("kill", seen, "redis 8", Outcome::Inconclusive, &[other_cause, other_servers][..]),
        ] {
            let case = Case {
                name: "K1".to_owned(),
                claim: "c".to_owned(),
                by: "b".to_owned(),
                file: file.clone(),
                witnesses: vec![witness.parse().unwrap()],
                expectation: None,
                causes: Some(vec![cause.parse().unwrap()]),
                holds_for: vec![servers.to_owned()],
            };
            let run = judge(&case, &file, &records, &verdicts, None, "redis 7.0.15".to_owned()).unwrap();
            assert_eq!(run.outcome, outcome, "{cause}, {witness}, {servers}");
            assert_eq!(run.misses, misses, "{cause}, {witness}, {servers}");
            let has_failed = run.tests.iter().any(|test| test.result == TestResult::Failed);
            assert_eq!(has_failed, outcome == Outcome::NotAsExpected, "{cause}, {witness}, {servers}");
        }
    }
}
