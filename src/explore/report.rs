//! Prints an exploration.

use std::{fmt::Write, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{
    finding::Class,
    inevitable::Inevitability,
    reduce::{Reduced, VARIATIONS},
    sweep::{Occurrences, Tally},
};
use crate::report::story;

/// The least activity of a schedule, on average, for which the rate of schedules is a measure of speed.
const HOLDS_MIN: f64 = 30.0;
const ATTEMPTS_MIN: f64 = 100.0;

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
    /// The plan as `plan.toml`.
    pub toml: String,
    /// The probability of the violation over the time of its run, if it was drawn.
    pub inevitability: Option<Inevitability>,
    /// The file with the plan, if it was written.
    pub saved: Option<PathBuf>,
}

/// The result of an exploration.
pub struct Exploration {
    /// The counts of all schedules.
    pub tally: Tally,
    /// The time that the schedules took, without the reductions.
    pub took: Duration,
    /// The findings by class.
    pub findings: Vec<Finding>,
    /// True if the budget of time ended before the reductions.
    pub is_cut_short: bool,
}

impl Exploration {
    /// Returns the last lines for people. Each finding is printed before, as soon as it is reduced.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Some((seed, why)) = &self.tally.why_inconclusive {
            let n = self.tally.inconclusive;
            let _ = writeln!(out, "{n} inconclusive; the first is seed {seed}: {why}");
        }
        if let Some(error) = &self.tally.first_error {
            let n = self.tally.failed;
            let _ = writeln!(out, "{n} schedules ended with an error and were not judged; the first is {error}");
        }
        if self.is_cut_short {
            let _ = writeln!(out, "the --budget ended: with more time the plans may become smaller");
        }
        let _ = writeln!(out, "{}", self.last_line());
        if !self.is_measure() {
            let _ = writeln!(
                out,
                "too little happens in a schedule for its rate to be a measure: {HOLDS_MIN} holds and {ATTEMPTS_MIN} \
                 attempts are needed; try a shorter --work or more --time"
            );
        }
        out
    }

    fn a_schedule(&self, sum: u64) -> f64 {
        sum as f64 / self.tally.schedules.max(1) as f64
    }

    fn is_measure(&self) -> bool {
        self.a_schedule(self.tally.holds) >= HOLDS_MIN && self.a_schedule(self.tally.attempts) >= ATTEMPTS_MIN
    }

    fn a_second(&self, sum: f64) -> f64 {
        sum / self.took.as_secs_f64().max(1e-9)
    }

    /// `100000 schedules, 12 findings in 4 classes · 2,310 schedules/s · …`
    fn last_line(&self) -> String {
        let t = &self.tally;
        format!(
            "{} schedules, {} findings in {} classes · {} schedules/s · {} messages/s · {} virtual s/s · means: {:.0} \
             holds, {:.0} attempts a schedule",
            t.schedules,
            t.findings(),
            t.classes.len(),
            short(self.a_second(t.schedules as f64)),
            short(self.a_second(t.messages as f64)),
            short(self.a_second(t.lasted.as_secs_f64())),
            self.a_schedule(t.holds),
            self.a_schedule(t.attempts),
        )
    }

    /// Returns the result for programs.
    pub fn json(&self) -> Value {
        let t = &self.tally;
        json!({
            "schema": 1,
            "schedules": t.schedules,
            "findings": t.findings(),
            "inconclusive": t.inconclusive,
            "failed": t.failed,
            "first_error": t.first_error.as_ref().map(|e| json!({"seed": e.seed, "why": e.why})),
            "classes": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
            "means": {"holds": self.a_schedule(t.holds), "attempts": self.a_schedule(t.attempts)},
            "is_measure": self.is_measure(),
            "is_cut_short": self.is_cut_short,
            "took_s": self.took.as_secs_f64(),
            "schedules_per_s": self.a_second(t.schedules as f64),
            "messages_per_s": self.a_second(t.messages as f64),
            "virtual_s_per_s": self.a_second(t.lasted.as_secs_f64()),
        })
    }
}

impl Finding {
    /// Returns the finding for people. `schedules` is the number of all schedules.
    pub fn text(&self, schedules: u64) -> String {
        let mut text = String::new();
        let out = &mut text;
        let Occurrences { count, seeds } = &self.occurrences;
        let first = seeds.first().copied().unwrap_or(self.seed);
        let _ = writeln!(out, "{}: in {count} of {schedules} schedules, first with seed {first}", self.class);
        let Some(reduced) = &self.reduced else {
            let _ = writeln!(out, "  not reduced, because --limit is 0\n");
            return text;
        };
        self.tell_story(out, reduced);
        let (faults, simulations) = (reduced.plan.schedule.len(), reduced.simulations);
        let faults = if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") };
        let _ = write!(out, "\n  seed {} reduced to {faults} by {simulations} simulations", self.seed);
        let fewest = reduced.exact.schedule.len();
        if fewest < reduced.plan.schedule.len() {
            let _ = write!(out, " ({fewest} suffice at exact times)");
        }
        out.push('\n');
        let violating = format!(
            "{} of {VARIATIONS} variations violate too (times changed by up to 50 ms, other seeds)",
            reduced.violating
        );
        if !reduced.is_offered() {
            let _ = writeln!(out, "  not offered: only {violating}");
        } else if let Some(path) = &self.saved {
            let _ = writeln!(out, "  {violating}\n  run this plan: harness run {}", path.display());
        } else {
            let _ = writeln!(out, "  {violating}\n  plan.toml (--save DIR writes it):\n");
            self.toml.lines().for_each(|line| {
                let _ = writeln!(out, "{}", format!("    {line}").trim_end());
            });
        }
        if let Some(inevitability) = &self.inevitability {
            let _ = write!(out, "\n{}", inevitability.text(&self.violation(), self.seed));
        }
        out.push('\n');
        text
    }

    /// Returns the property and the kind, without the causes.
    pub fn violation(&self) -> String {
        Class { causes: Vec::new(), ..self.class.clone() }.to_string()
    }

    /// The first story of the class; for a property without stories, its counts and evidence.
    fn tell_story(&self, out: &mut String, reduced: &Reduced) {
        let Some(property) = reduced.trial.verdicts.properties.get(&self.class.property) else { return };
        let report = property.report();
        if let Some(told) = report.stories().iter().find(|told| self.class.contains(&told.violation)) {
            story(out, told);
            return;
        }
        let _ = writeln!(out, "\n  {}: {}", self.class.property, report.figures());
        for line in report.reasons().iter().chain(&report.evidence()) {
            let _ = writeln!(out, "    {line}");
        }
    }

    fn json(&self) -> Value {
        let reduced = self.reduced.as_ref().map(|r| {
            json!({
                "seed": self.seed,
                "faults": r.plan.schedule.len(),
                "fewest": r.exact.schedule.len(),
                "simulations": r.simulations,
                "held": r.violating,
                "variations": VARIATIONS,
                "is_offered": r.is_offered(),
                "saved": self.saved,
                "plan": self.toml,
                "verdicts": r.trial.verdicts,
            })
        });
        json!({
            "property": self.class.property,
            "kind": self.class.kind,
            "causes": self.class.causes,
            "count": self.occurrences.count,
            "first_seed": self.occurrences.seeds.first(),
            "reduced": reduced,
            "inevitable": self.inevitability.as_ref().map(Inevitability::json),
        })
    }
}

/// `2,310`, `5.4M`.
pub fn short(n: f64) -> String {
    if n >= 1e6 {
        return format!("{:.1}M", n / 1e6);
    }
    let digits = format!("{n:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{exit::Exit, explore::sweep::SeedError};

    fn exploration(holds: u64, attempts: u64) -> Exploration {
        let tally = Tally {
            schedules: 10,
            holds,
            attempts,
            messages: 27_000_000,
            lasted: Duration::from_secs(115_000),
            ..Tally::default()
        };
        Exploration { tally, took: Duration::from_secs(5), findings: Vec::new(), is_cut_short: false }
    }

    #[test]
    fn the_last_line_has_all_figures() {
        assert_eq!(
            exploration(340, 1_210).last_line(),
            "10 schedules, 0 findings in 0 classes · 2 schedules/s · 5.4M messages/s · 23,000 virtual s/s · means: \
             34 holds, 121 attempts a schedule"
        );
    }

    #[test]
    fn errors_are_told_and_only_a_violation_comes_before_them_in_the_exit_code() {
        let mut one = exploration(340, 1_210);
        assert_eq!(one.exit(), Exit::Ok);
        one.tally.add_error(SeedError { seed: 9, why: "no model of it".into() });
        one.tally.add_error(SeedError { seed: 4, why: "it stands still".into() });
        assert_eq!(one.exit(), Exit::Failed);
        assert!(
            one.text().starts_with("2 schedules ended with an error and were not judged; the first is seed 4: it st")
        );
        assert_eq!((one.json()["failed"].as_u64(), one.json()["first_error"]["seed"].as_u64()), (Some(2), Some(4)));
        let found = Occurrences { count: 1, seeds: vec![3] };
        one.tally.classes.insert(crate::explore::fixtures::class("pause"), found);
        assert_eq!(one.exit(), Exit::Violated);
    }

    #[test]
    fn schedules_in_which_little_happens_are_no_measure() {
        assert!(!exploration(340, 1_210).text().contains("too little"));
        assert!(exploration(299, 1_210).text().contains("too little"));
        assert!(exploration(340, 999).text().contains("too little"));
    }

    #[test]
    fn numbers_are_grouped() {
        let table = [(0.0, "0"), (999.6, "1,000"), (2_310.0, "2,310"), (999_999.0, "999,999"), (5.43e6, "5.4M")];
        for (n, expected) in table {
            assert_eq!(short(n), expected);
        }
    }
}
