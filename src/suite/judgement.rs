//! Judges a run of a case: the evidence, the expected verdicts, the causes, the servers.

use checker::{CauseSet, Property, Verdict, Verdicts, joined};
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
    let found: Vec<&[CauseSet]> =
        verdicts.lock().iter().flat_map(|l| &l.windows).map(|w| w.causes.as_slice()).collect();
    if let Some(causes) = &case.causes
        && let Some(other) = found.iter().find(|found| *found != causes)
    {
        let text = format!("expected the cause {}, found {}", joined(causes, " and "), joined(*other, " and "));
        misses.push(Miss { path: "lock".into(), text });
    }
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
    use history::Tail;

    use super::*;

    fn lock_of(name: &str) -> Property {
        let path = format!("{}/checker/tests/corpus/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let records: Vec<Record> = history::Reader::open(path.as_ref()).unwrap().map(Result::unwrap).collect();
        checker::check(records, Tail::Whole).properties.get("lock").unwrap().clone()
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
}
