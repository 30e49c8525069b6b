//! Prints the probability of a violation over the time of its run.

use std::{fmt::Write, time::Duration};

use serde_json::{Value, json};

use super::{Inevitability, Instant};

/// Columns of a bar that all redraws fill.
const BAR: usize = 24;

impl Inevitability {
    /// Returns the chart for people. `violation` names the property and the kind, `seed` the seed of the finding.
    pub fn text(&self, violation: &str, seed: u64) -> String {
        let mut text = String::new();
        let out = &mut text;
        let (redraws, faults) = (self.redraws, plural(self.plan.schedule.len(), "fault"));
        let _ = writeln!(out, "  when it became inevitable: seed {seed} with {faults} at exact times");
        let _ = writeln!(out, "  this is a plan of its own: its times are not those of the window above");
        let _ = writeln!(
            out,
            "  from each instant on, randomness is drawn anew {redraws} times; this many runs show `{violation}`, for \
             whatever cause"
        );
        let mut is_left_out = false;
        for (n, Instant { at, violating }) in self.instants.iter().enumerate() {
            let is_same = |other: usize| self.instants.get(other).is_some_and(|other| other.violating == *violating);
            if n > 0 && is_same(n - 1) && is_same(n + 1) {
                if !std::mem::replace(&mut is_left_out, true) {
                    out.push_str("         …\n");
                }
                continue;
            }
            is_left_out = false;
            let bar = "#".repeat(*violating as usize * BAR / redraws.max(1) as usize);
            let row = format!("    {}  {violating:>3} of {redraws}  {bar}", seconds(*at));
            let _ = writeln!(out, "{}", row.trim_end());
        }
        let _ = match self.probable_from {
            Some(at) => writeln!(out, "  probable (1/2) from {:.3} s on", at.as_secs_f64()),
            None => writeln!(out, "  never probable (1/2)"),
        };
        let Some(at) = self.certain_from else {
            let _ = writeln!(out, "  never inevitable: from the last instant on, some redraws do not violate");
            return text;
        };
        // The first instant also draws anew what came before the start.
        if at.is_zero() && self.instants.first().is_some_and(|first| first.violating >= redraws) {
            let _ = writeln!(out, "  inevitable from the start on: the plan violates, whatever is drawn");
            return text;
        }
        let at_ms = at.as_secs_f64() * 1e3;
        let last = self.around.iter().rev().find(|moment| moment.at_ms <= at_ms);
        let what = last.map_or_else(|| "the start".to_owned(), |moment| format!("{} {}", moment.who, moment.what));
        let _ = writeln!(
            out,
            "  inevitable from {:.3} s on; the event there, perhaps not the cause: {what}",
            at.as_secs_f64()
        );
        let width = self.around.iter().map(|moment| moment.who.len()).max().unwrap_or(0).max(8);
        for moment in &self.around {
            let mark = if Some(moment) == last { '>' } else { ' ' };
            let when = seconds(Duration::from_secs_f64(moment.at_ms.max(0.0) / 1e3));
            let _ = writeln!(out, "  {mark} {when}  {:<width$}  {}", moment.who, moment.what);
        }
        text
    }

    /// Returns the chart for programs.
    pub fn json(&self) -> Value {
        let ms = |at: Duration| at.as_secs_f64() * 1e3;
        json!({
            "redraws": self.redraws,
            "instants": self.instants.iter().map(|instant| {
                json!({"at_ms": ms(instant.at), "violating": instant.violating})
            }).collect::<Vec<_>>(),
            "probable_from_ms": self.probable_from.map(ms),
            "inevitable_from_ms": self.certain_from.map(ms),
            "around": self.around,
            "plan": self.toml,
        })
    }
}

fn seconds(at: Duration) -> String {
    format!("{:>8.3} s", at.as_secs_f64())
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
