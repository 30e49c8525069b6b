//! What is printed of an exploration.

use std::{fmt::Write, path::PathBuf, time::Duration};

use checker::Property;
use serde_json::{Value, json};

use super::{
    finding::Class,
    reduce::{Reduced, VARIATIONS},
    scan::{Found, Tally},
};
use crate::report::{figures, story};

/// Means below which a figure of schedules a second says nothing: they would be schedules in which little happens.
const HOLDS_MIN: f64 = 30.0;
const ATTEMPTS_MIN: f64 = 100.0;

/// One class, as it is shown.
pub struct Shown {
    /// Which.
    pub class: Class,
    /// How often.
    pub found: Found,
    /// The seed that was reduced, and to what; the first that is offered, or the first of all.
    pub seed: u64,
    /// What it was reduced to.
    pub reduced: Option<Reduced>,
    /// The plan as `plan.toml`.
    pub toml: String,
    /// Where that was written.
    pub saved: Option<PathBuf>,
}

/// All of it.
pub struct Exploration {
    /// What was counted.
    pub tally: Tally,
    /// How long the counting took.
    pub took: Duration,
    /// The classes.
    pub shown: Vec<Shown>,
}

impl Exploration {
    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for shown in &self.shown {
            shown.tell(&mut out);
        }
        if let Some((seed, why)) = &self.tally.why_inconclusive {
            let n = self.tally.inconclusive;
            let _ = writeln!(out, "{n} inconclusive; the first is seed {seed}: {why}");
        }
        let _ = writeln!(out, "{}", self.last_line());
        if !self.is_measure() {
            let _ = writeln!(
                out,
                "too little happens in a schedule for its rate to be a measure: {HOLDS_MIN} holds and {ATTEMPTS_MIN} attempts are needed; try a shorter --work or more --time"
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
            "{} schedules, {} findings in {} classes · {} schedules/s · {} messages/s · {} virtual s/s · means: {:.0} holds, {:.0} attempts a schedule",
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

    /// For programs.
    pub fn json(&self) -> Value {
        let t = &self.tally;
        json!({
            "schema": 1,
            "schedules": t.schedules,
            "findings": t.findings(),
            "inconclusive": t.inconclusive,
            "classes": self.shown.iter().map(Shown::json).collect::<Vec<_>>(),
            "means": {"holds": self.a_schedule(t.holds), "attempts": self.a_schedule(t.attempts)},
            "is_measure": self.is_measure(),
            "took_s": self.took.as_secs_f64(),
            "schedules_per_s": self.a_second(t.schedules as f64),
            "messages_per_s": self.a_second(t.messages as f64),
            "virtual_s_per_s": self.a_second(t.lasted.as_secs_f64()),
        })
    }
}

impl Shown {
    fn tell(&self, out: &mut String) {
        let Found { count, seeds } = &self.found;
        let first = seeds.first().copied().unwrap_or(self.seed);
        let _ = writeln!(out, "{}: {count} of the schedules, the first is seed {first}", self.class);
        let Some(reduced) = &self.reduced else {
            let _ = writeln!(out, "  not reduced; --limit says how many are\n");
            return;
        };
        self.tell_story(out, reduced);
        let (faults, simulations) = (reduced.plan.schedule.len(), reduced.simulations);
        let faults = if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") };
        let _ = write!(out, "\n  seed {} reduced to {faults} by {simulations} simulations", self.seed);
        if reduced.fewest < reduced.plan.schedule.len() {
            let _ = write!(out, " ({} are enough at their very moments)", reduced.fewest);
        }
        out.push('\n');
        let held = format!("{} of {VARIATIONS} variations by ± 50 ms and with other seeds violate too", reduced.held);
        if !reduced.is_offered() {
            let _ = writeln!(out, "  not offered: only {held}");
        } else if let Some(path) = &self.saved {
            let _ = writeln!(out, "  {held}: harness run {}", path.display());
        } else {
            let _ = writeln!(out, "  {held}; plan.toml (--save DIR writes it):\n");
            self.toml.lines().for_each(|line| {
                let _ = writeln!(out, "{}", format!("    {line}").trim_end());
            });
        }
        out.push('\n');
    }

    /// The first window of the class; for a property that has none, what was counted.
    fn tell_story(&self, out: &mut String, reduced: &Reduced) {
        let verdicts = &reduced.trial.verdicts;
        let windows = verdicts.lock().filter(|_| self.class.property == "lock").map_or(&[][..], |l| &l.windows);
        let is_it = |w: &&checker::Window| w.kind.name() == self.class.kind && self.class.is_by(&w.causes);
        if let Some(window) = windows.iter().find(is_it) {
            story(out, window);
            return;
        }
        let Some(property) = verdicts.properties.get(&self.class.property) else { return };
        let _ = writeln!(out, "\n  {}: {}", self.class.property, figures(property));
        property.reasons().iter().for_each(|reason| {
            let _ = writeln!(out, "    {reason}");
        });
        match property {
            Property::Lock(lock) => {
                for dead in lock.dead_claims.iter().take(1) {
                    let (at, late) = (dead.at_ms / 1e3, dead.late_ms);
                    let _ = writeln!(
                        out,
                        "    {at:>8.3} s  {}  acquired {} {late:.1} ms after its promise had ended",
                        dead.worker, dead.key
                    );
                }
            }
            Property::Tokens(tokens) => {
                for fault in tokens.faults.iter().take(1) {
                    let pairs: Vec<_> = fault.holds.iter().zip(&fault.tokens).collect();
                    let told: Vec<_> =
                        pairs.iter().map(|(hold, token)| format!("hold {hold} with token {token}")).collect();
                    let _ = writeln!(out, "    {}: {}", fault.key, told.join(", then "));
                }
            }
            _ => {}
        }
    }

    fn json(&self) -> Value {
        let reduced = self.reduced.as_ref().map(|r| {
            json!({
                "seed": self.seed,
                "faults": r.plan.schedule.len(),
                "fewest": r.fewest,
                "simulations": r.simulations,
                "held": r.held,
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
            "count": self.found.count,
            "first_seed": self.found.seeds.first(),
            "reduced": reduced,
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

    fn exploration(holds: u64, attempts: u64) -> Exploration {
        let tally = Tally {
            schedules: 10,
            holds,
            attempts,
            messages: 27_000_000,
            lasted: Duration::from_secs(115_000),
            ..Tally::default()
        };
        Exploration { tally, took: Duration::from_secs(5), shown: Vec::new() }
    }

    #[test]
    fn the_last_line_has_all_figures() {
        assert_eq!(
            exploration(340, 1_210).last_line(),
            "10 schedules, 0 findings in 0 classes · 2 schedules/s · 5.4M messages/s · 23,000 virtual s/s · means: 34 holds, 121 attempts a schedule"
        );
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
