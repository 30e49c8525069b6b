//! A finding as data, and as text.

use std::{fmt::Write, path::PathBuf};

use super::{
    finding::Class,
    inevitable::Inevitability,
    reduce::{Reduced, VARIATIONS},
    results::{ClassResults, ReducedResults},
    sweep::{Occurrences, SeedError},
};
use crate::report::story;

/// The findings of one class.
pub struct Finding {
    /// The class.
    pub class: Class,
    /// The schedules with such a violation.
    pub occurrences: Occurrences,
    /// The reduced seed: the first one with a robust plan, or the first one.
    pub seed: u64,
    /// The result of the reduction.
    pub reduced: Option<Reduced>,
    /// The first seed whose plan did not give the violation again, and so was not reduced.
    pub not_again: Option<SeedError>,
    /// True if the budget of time ended before the reduction. The chart that follows is not part of the budget.
    pub is_cut_short: bool,
    /// The plan as `plan.toml`.
    pub toml: String,
    /// The probability of the violation over the time of its run, if it was drawn.
    pub inevitability: Option<Inevitability>,
    /// The file with the plan, if it was written.
    pub saved: Option<PathBuf>,
}

impl Finding {
    /// Returns the finding as data.
    pub fn results(&self) -> anyhow::Result<ClassResults> {
        let reduced = self.reduced.as_ref().map(|reduced| {
            Ok::<_, serde_json::Error>(ReducedResults {
                seed: self.seed,
                faults: reduced.plan.schedule.len(),
                fewest: reduced.exact.schedule.len(),
                simulations: reduced.simulations,
                held: reduced.violating,
                variations: VARIATIONS,
                is_offered: reduced.is_offered(),
                saved: self.saved.clone(),
                plan: self.toml.clone(),
                story: self.story(reduced),
                verdicts: serde_json::to_value(&reduced.trial.verdicts)?,
            })
        });
        Ok(ClassResults {
            property: self.class.property.clone(),
            kind: self.class.kind.to_owned(),
            causes: self.class.causes.clone(),
            count: self.occurrences.count,
            first_seed: self.occurrences.seeds.first().copied(),
            reduced: reduced.transpose()?,
            not_again: self.not_again.clone(),
            inevitable: self.inevitability.as_ref().map(Inevitability::json),
            chart: self.inevitability.as_ref().map(|inevitability| inevitability.text(&self.violation(), self.seed)),
        })
    }

    /// Returns the property and the kind, without the causes.
    pub fn violation(&self) -> String {
        Class { causes: Vec::new(), ..self.class.clone() }.to_string()
    }

    /// The first story of the class; for a property without stories, its counts and evidence.
    fn story(&self, reduced: &Reduced) -> String {
        let mut out = String::new();
        let Some(property) = reduced.trial.verdicts.properties.get(&self.class.property) else { return out };
        let report = property.report();
        if let Some(told) = report.stories().iter().find(|told| self.class.contains(&told.violation)) {
            story(&mut out, told);
            return out;
        }
        let _ = writeln!(out, "\n  {}: {}", self.class.property, report.figures());
        for line in report.reasons().iter().chain(&report.evidence()) {
            let _ = writeln!(out, "    {line}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        explore::{
            fixtures::{class, plan, trial},
            trial::Trial,
        },
        judge::judge,
    };

    /// The story of a finding of this class in the run with the pause.
    fn story_of(class: Class) -> String {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let verdicts = judge(history.as_ref()).unwrap().verdicts;
        let trial = Trial { verdicts, ..trial([class.clone()]) };
        let reduced = Reduced { plan: plan(), trial, exact: plan(), violating: 0, simulations: 0 };
        let finding = Finding {
            class,
            occurrences: Occurrences { count: 1, seeds: vec![7] },
            seed: 7,
            reduced: Some(reduced),
            not_again: None,
            is_cut_short: false,
            toml: String::new(),
            inevitability: None,
            saved: None,
        };
        finding.results().unwrap().reduced.unwrap().story
    }

    #[test]
    fn a_finding_never_tells_the_story_of_another_class() {
        let of_pause = "acquired, token 41";
        let told = story_of(class("pause"));
        assert!(told.contains(of_pause), "{told}");
        let dead_claim = Class { kind: "dead-claim", causes: Vec::new(), ..class("pause") };
        for other in [class("kill"), Class { kind: "lease-overlap", ..class("pause") }, dead_claim] {
            let told = story_of(other.clone());
            assert!(told.starts_with("\n  lock: 1 stale-holder window") && !told.contains(of_pause), "{other}: {told}");
        }
    }
}
