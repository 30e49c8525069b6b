//! The results of an exploration, or of a shard of one, as data: printed for people and for programs, written for
//! `merge`, and joined by it.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use checker::{Cause, CauseSet};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    finding::name,
    sweep::{SeedError, Tally},
};
use crate::{
    exit::{Exit, Unusable},
    shard::{Shard, complete},
};

/// The version of the form.
pub const SCHEMA: u32 = 2;
/// The least activity of a schedule, on average, for which the rate of schedules is a measure of speed.
const HOLDS_MIN: f64 = 30.0;
const ATTEMPTS_MIN: f64 = 100.0;

/// The facts that all shards of an exploration share, but for the number of the shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The fingerprint of the binary.
    pub build: String,
    /// The fingerprint of the flags that determine the findings of a seed.
    pub flags: String,
    /// The first seed of all shards.
    pub first_seed: u64,
    /// The number of seeds of all shards.
    pub seeds: u64,
    /// The shard of these results.
    pub shard: Shard,
}

/// The mean activity of a schedule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Means {
    /// Holds.
    pub holds: f64,
    /// Attempts.
    pub attempts: f64,
}

/// Sums over all schedules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sums {
    /// Holds.
    pub holds: u64,
    /// Attempts.
    pub attempts: u64,
    /// Messages.
    pub messages: u64,
    /// Virtual time, in seconds.
    pub virtual_s: f64,
}

/// The results of an exploration, or of a shard of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// The version of the form.
    pub schema: u32,
    /// The origin of the results.
    pub head: Head,
    /// Schedules that were judged.
    pub schedules: u64,
    /// Violations of all classes.
    pub findings: u64,
    /// Inconclusive schedules.
    pub inconclusive: u64,
    /// The first inconclusive seed, with its reason.
    pub first_inconclusive: Option<SeedError>,
    /// Schedules that ended with an error.
    pub failed: u64,
    /// The first seed that ended with an error.
    pub first_error: Option<SeedError>,
    /// The findings by class, unexplained ones first.
    pub classes: Vec<ClassResults>,
    /// Sums over all schedules.
    pub sums: Sums,
    /// The mean activity of a schedule.
    pub means: Means,
    /// True if the rate of schedules is a measure of speed.
    pub is_measure: bool,
    /// True if the budget of time ended before the reductions.
    pub is_cut_short: bool,
    /// The time that the schedules took, without the reductions; of several shards the sum.
    pub took_s: f64,
    /// Schedules in a second.
    pub schedules_per_s: f64,
    /// Messages in a second.
    pub messages_per_s: f64,
    /// Virtual seconds in a second.
    pub virtual_s_per_s: f64,
}

/// The findings of one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassResults {
    /// The property.
    pub property: String,
    /// The way of violation; may be empty.
    pub kind: String,
    /// The sets of causes.
    pub causes: Vec<CauseSet>,
    /// The number of schedules with such a violation.
    pub count: u64,
    /// The smallest seed of them.
    pub first_seed: Option<u64>,
    /// The result of the reduction.
    pub reduced: Option<ReducedResults>,
    /// The first seed whose plan did not give the violation again, and so was not reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_again: Option<SeedError>,
    /// The probability of the violation over the time of its run.
    pub inevitable: Option<Value>,
    /// The same as a chart of text.
    pub chart: Option<String>,
}

/// A reduced plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReducedResults {
    /// The reduced seed.
    pub seed: u64,
    /// The faults of the plan.
    pub faults: usize,
    /// The fewest faults that suffice, at exact times.
    pub fewest: usize,
    /// The simulations of the reduction.
    pub simulations: u32,
    /// The variations of the plan that violate too.
    pub held: u32,
    /// The variations that were tried.
    pub variations: u32,
    /// True if the plan is robust enough for real servers.
    pub is_offered: bool,
    /// The file of the plan, if it was written.
    pub saved: Option<PathBuf>,
    /// The plan as `plan.toml`.
    pub plan: String,
    /// The story of the violation.
    pub story: String,
    /// The verdicts of the plan's run.
    pub verdicts: Value,
}

impl Results {
    /// Puts the counts of schedules and the findings together.
    pub fn new(head: Head, tally: Tally, took_s: f64, classes: Vec<ClassResults>, is_cut_short: bool) -> Results {
        let Tally { holds, attempts, messages, lasted, .. } = tally;
        let results = Results {
            schema: SCHEMA,
            head,
            schedules: tally.schedules,
            findings: 0,
            inconclusive: tally.inconclusive,
            first_inconclusive: tally.why_inconclusive.map(|(seed, why)| SeedError { seed, why }),
            failed: tally.failed,
            first_error: tally.first_error,
            classes,
            sums: Sums { holds, attempts, messages, virtual_s: lasted.as_secs_f64() },
            means: Means::default(),
            is_measure: false,
            is_cut_short,
            took_s,
            schedules_per_s: 0.0,
            messages_per_s: 0.0,
            virtual_s_per_s: 0.0,
        };
        results.with_figures()
    }

    /// Computes the figures that follow from others.
    fn with_figures(mut self) -> Results {
        let a_schedule = |sum: u64| sum as f64 / self.schedules.max(1) as f64;
        let a_second = |sum: f64| sum / self.took_s.max(1e-9);
        self.means = Means { holds: a_schedule(self.sums.holds), attempts: a_schedule(self.sums.attempts) };
        self.is_measure = self.means.holds >= HOLDS_MIN && self.means.attempts >= ATTEMPTS_MIN;
        self.schedules_per_s = a_second(self.schedules as f64);
        self.messages_per_s = a_second(self.sums.messages as f64);
        self.virtual_s_per_s = a_second(self.sums.virtual_s);
        self.findings = self.classes.iter().map(|class| class.count).sum();
        self
    }

    /// A violation is one, whatever became of other schedules. Without a violation, a search with errors has not done
    /// its job.
    pub fn exit(&self) -> Exit {
        if self.findings > 0 {
            Exit::Violated
        } else if self.failed > 0 {
            Exit::Failed
        } else if self.inconclusive == self.schedules {
            Exit::Inconclusive
        } else {
            Exit::Ok
        }
    }

    /// The name of the file: `explore.json`, of a shard `explore-2of8.json`.
    pub fn file_name(&self) -> String {
        match self.head.shard {
            Shard::WHOLE => "explore.json".to_owned(),
            Shard { number, of } => format!("explore-{number}of{of}.json"),
        }
    }

    /// Reads a file of results. The saved plans are named if they lie beside it.
    pub fn read(path: &Path) -> Result<Results, Unusable> {
        let refused = |problem: String| Unusable(format!("{}: {problem}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| refused(e.to_string()))?;
        let not_one = |e| refused(format!("no results of `harness explore --save DIR` or `--format json`: {e}"));
        let value: Value = serde_json::from_str(&text).map_err(not_one)?;
        // Before the fields, which differ between versions.
        if value["schema"] != SCHEMA {
            let schema = &value["schema"];
            return Err(refused(format!("schema {schema}; this version of the harness reads schema {SCHEMA}")));
        }
        let mut results: Results = serde_json::from_value(value).map_err(not_one)?;
        let Shard { number, of } = results.head.shard;
        if number == 0 || number > of {
            return Err(refused(format!("there is no shard {number}/{of}")));
        }
        for reduced in results.classes.iter_mut().filter_map(|class| class.reduced.as_mut()) {
            let name = reduced.saved.as_deref().and_then(Path::file_name);
            // Without the file, the plan itself is printed.
            reduced.saved = name.map(|name| path.with_file_name(name)).filter(|plan| plan.is_file());
        }
        Ok(results)
    }

    /// Joins the results of all shards.
    pub fn joined(mut parts: Vec<(PathBuf, Results)>) -> Result<Results, Unusable> {
        parts.sort_by_key(|(_, part)| part.head.shard.number);
        for (path, part) in &parts[1..] {
            let (first_path, first) = &parts[0];
            let (a, b) = (&first.head, &part.head);
            let problem = if a.build != b.build {
                "come from different builds of the harness: run all shards with the same binary"
            } else if (a.first_seed, a.seeds) != (b.first_seed, b.seeds) {
                "have different --seed or --seeds"
            } else if a.flags != b.flags {
                "come from different flags; only --jobs, --budget, --save and --format may differ"
            } else {
                continue;
            };
            return Err(Unusable(format!("{} and {} {problem}", first_path.display(), path.display())));
        }
        let shards: Vec<_> = parts.iter().map(|(path, part)| (part.head.shard, path.as_path())).collect();
        complete("exploration", &shards)?;
        let (mut parts, mut classes) = (parts.into_iter().map(|(_, part)| part), BTreeMap::new());
        let mut all = parts.next().ok_or_else(|| Unusable("no exploration".to_owned()))?;
        all.head.shard = Shard::WHOLE;
        all.classes.drain(..).for_each(|class| ClassResults::add_to(&mut classes, class));
        for part in parts {
            all.schedules += part.schedules;
            all.inconclusive += part.inconclusive;
            all.failed += part.failed;
            // In the order of the shards, which is that of the seeds.
            all.first_inconclusive = all.first_inconclusive.or(part.first_inconclusive);
            all.first_error = all.first_error.or(part.first_error);
            all.sums.holds += part.sums.holds;
            all.sums.attempts += part.sums.attempts;
            all.sums.messages += part.sums.messages;
            all.sums.virtual_s += part.sums.virtual_s;
            all.took_s += part.took_s;
            all.is_cut_short |= part.is_cut_short;
            part.classes.into_iter().for_each(|class| ClassResults::add_to(&mut classes, class));
        }
        all.classes = classes.into_values().collect();
        all.classes.sort_by_key(|class| Reverse(class.is_unexplained()));
        Ok(all.with_figures())
    }

    /// Returns the findings for people. A schedule that ended with an error was not judged, so it is none of those that
    /// a finding is counted in.
    pub fn findings_text(&self) -> String {
        self.classes.iter().map(|class| class.text(self.schedules)).collect()
    }

    /// Returns the last lines for people. Each finding is printed before.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Some(SeedError { seed, why }) = &self.first_inconclusive {
            let _ = writeln!(out, "{} inconclusive; the first is seed {seed}: {why}", self.inconclusive);
        }
        if let Some(error) = &self.first_error {
            let n = plural(self.failed, "schedule", "schedules");
            let were = if self.failed == 1 { "was" } else { "were" };
            let _ = writeln!(out, "{n} ended with an error and {were} not judged; the first is {error}");
        }
        if self.is_cut_short {
            let _ = writeln!(out, "the --budget ended: with more time the plans may become smaller");
        }
        let _ = writeln!(out, "{}", self.last_line());
        if !self.is_measure {
            let _ = writeln!(
                out,
                "too little happens in a schedule for its rate to be a measure: {HOLDS_MIN} holds and {ATTEMPTS_MIN} \
                 attempts are needed; try a shorter --work or more --time"
            );
        }
        out
    }

    /// `100000 schedules, 12 findings in 4 classes · 2,310 schedules/s · …`
    fn last_line(&self) -> String {
        format!(
            "{}, {} in {} · {} schedules/s · {} messages/s · {} virtual s/s · means: {:.0} \
             holds, {:.0} attempts a schedule",
            plural(self.schedules, "schedule", "schedules"),
            plural(self.findings, "finding", "findings"),
            plural(self.classes.len() as u64, "class", "classes"),
            short(self.schedules_per_s),
            short(self.messages_per_s),
            short(self.virtual_s_per_s),
            self.means.holds,
            self.means.attempts,
        )
    }
}

impl ClassResults {
    fn is_unexplained(&self) -> bool {
        self.causes.iter().any(|cause| cause.is(Cause::Unexplained))
    }

    /// Adds the findings of a later shard to those of earlier ones. An offered plan is better than any other; of equal
    /// ones that of the smaller seed stays.
    fn add_to(classes: &mut BTreeMap<(String, String, Vec<CauseSet>), ClassResults>, other: ClassResults) {
        let key = (other.property.clone(), other.kind.clone(), other.causes.clone());
        let Some(class) = classes.get_mut(&key) else {
            classes.insert(key, other);
            return;
        };
        class.count += other.count;
        class.first_seed = class.first_seed.into_iter().chain(other.first_seed).min();
        class.not_again = class.not_again.take().or_else(|| other.not_again.clone());
        let is_offered = |class: &ClassResults| class.reduced.as_ref().is_some_and(|reduced| reduced.is_offered);
        if !is_offered(class) && (is_offered(&other) || class.reduced.is_none()) {
            (class.reduced, class.inevitable, class.chart) = (other.reduced, other.inevitable, other.chart);
        }
    }

    /// Returns the finding for people. `schedules` is the number of all schedules that were judged.
    pub fn text(&self, schedules: u64) -> String {
        let mut text = String::new();
        let out = &mut text;
        let (name, first) = (name(&self.property, &self.kind, &self.causes), self.first_seed.unwrap_or_default());
        let _ = writeln!(out, "{name}: in {} of {schedules} schedules, first with seed {first}", self.count);
        match (&self.reduced, &self.not_again) {
            (None, None) => out.push_str("  not reduced, because --limit is 0\n"),
            (_, Some(error)) => {
                let _ = writeln!(out, "  not reduced: {error}");
            }
            (Some(_), None) => {}
        }
        if let Some(reduced) = &self.reduced {
            reduced.tell(out);
        }
        if let Some(chart) = &self.chart {
            let _ = write!(out, "\n{chart}");
        }
        out.push('\n');
        text
    }
}

impl ReducedResults {
    fn tell(&self, out: &mut String) {
        let ReducedResults { seed, faults, fewest, simulations, held, variations, .. } = self;
        out.push_str(&self.story);
        let s = if *faults == 1 { "" } else { "s" };
        let _ = write!(out, "\n  seed {seed} reduced to {faults} fault{s} by {simulations} simulations");
        if fewest < faults {
            let _ = write!(out, " ({fewest} suffice at exact times)");
        }
        out.push('\n');
        let violating =
            format!("{held} of {variations} variations violate too (times changed by up to 50 ms, other seeds)");
        if !self.is_offered {
            let _ = writeln!(out, "  not offered: only {violating}");
        } else if let Some(path) = &self.saved {
            let path = path.display().to_string();
            let path = shlex::try_quote(&path).unwrap_or_else(|_| path.as_str().into());
            let _ = writeln!(out, "  {violating}\n  run this plan: harness run {path}");
        } else {
            let _ = writeln!(out, "  {violating}\n  plan.toml (--save DIR writes it):\n");
            for line in self.plan.lines() {
                let _ = writeln!(out, "{}", format!("    {line}").trim_end());
            }
        }
    }
}

fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
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
mod tests;
