//! Prints the tables of a self-test.

use std::{fmt::Write, path::Path};

use anyhow::Context;
use history::Plan;
use serde_json::{Value, json};

use super::{
    bugs::HUNTS,
    hunt::HuntResult,
    pairs::{Pair, Pairs},
    soundness::{WithFaults, WithoutFaults, plan_with_faults, plan_without_faults},
    swarm_hunt::SwarmResult,
};
use crate::{
    exit::Exit,
    explore::{swarm::CorrectLock, sweep::SeedError},
    plan_file::PlanFile,
};

/// Default schedules of each swarm search.
pub const SCHEDULES: u64 = 20_000;
/// Failures that are listed per row.
const LISTED: usize = 10;

/// The five tables.
#[derive(Default)]
pub struct Report {
    /// Planted bugs.
    pub bugs: Vec<HuntResult>,
    /// Correct locks without faults.
    pub quiet: Vec<WithoutFaults>,
    /// Correct locks with all faults.
    pub faulty: Vec<WithFaults>,
    /// Correct locks with pairs of faults.
    pub pairs: Vec<Pairs>,
    /// Planted bugs that a swarm searches.
    pub swarm: Vec<SwarmResult>,
}

/// Names the figures of [`figures`].
const FIGURES: [&str; 4] = ["unconfirmed", "missed", "unexplained", "ended with an error"];

/// Counts unconfirmed alarms, missed overlaps, unexplained windows and errors.
fn figures<'p>(pairs: impl Iterator<Item = &'p Pair>) -> [u64; 4] {
    pairs.fold([0; 4], |sum, Pair { found: WithFaults { compared: c, failed, .. }, .. }| {
        let of = [c.unconfirmed.len(), c.missed.len(), c.unexplained.len(), failed.len()];
        std::array::from_fn(|n| sum[n] + of[n] as u64)
    })
}

fn mark(is_right: bool) -> &'static str {
    if is_right { "ok" } else { "WRONG" }
}

/// Lists the first lines.
fn list(out: &mut String, lines: impl ExactSizeIterator<Item = String>) {
    let more = lines.len().saturating_sub(LISTED);
    for line in lines.take(LISTED) {
        let _ = writeln!(out, "      {line}");
    }
    if more > 0 {
        let _ = writeln!(out, "      and {more} more");
    }
}

fn write(
    dir: &Path,
    run: String,
    backend: String,
    resource_bug: Option<&str>,
    plan: Result<Plan, String>,
) -> anyhow::Result<()> {
    // Without a plan, the run ended with that error, and its row tells it.
    let Ok(plan) = plan else { return Ok(()) };
    let path = dir.join(format!("{run}.toml"));
    let file = PlanFile::new(run, backend, resource_bug.map(str::to_owned), plan);
    std::fs::write(&path, file.to_toml()?).with_context(|| format!("writing {}", path.display()))
}

impl Report {
    /// The exit code: a wrong row comes before a run that could not be judged.
    pub fn exit(&self) -> Exit {
        match (self.is_right(), self.is_whole()) {
            (false, _) => Exit::Violated,
            (true, false) => Exit::Failed,
            (true, true) => Exit::Ok,
        }
    }

    /// Returns whether every row is right.
    fn is_right(&self) -> bool {
        self.bugs.iter().all(HuntResult::is_right)
            && self.quiet.iter().all(WithoutFaults::is_right)
            && self.faulty.iter().all(WithFaults::is_right)
            && self.pairs.iter().all(Pairs::is_right)
            && self.is_swarm_right()
    }

    /// Returns whether every run could be judged.
    fn is_whole(&self) -> bool {
        let of_locks = self.quiet.iter().map(|q| &q.failed).chain(self.faulty.iter().map(|f| &f.failed));
        let of_pairs = self.pairs.iter().flat_map(|row| &row.pairs).map(|pair| &pair.found.failed);
        of_locks.chain(of_pairs).chain(self.swarm.iter().map(|row| &row.failed)).all(Vec::is_empty)
    }

    /// Returns whether the swarm finds the planted bugs, but for one in fifty. Rows of a few bugs, or of short
    /// searches, are figures only.
    fn is_swarm_right(&self) -> bool {
        let found = self.swarm.iter().filter(|row| row.median().is_some()).count();
        let is_whole = self.swarm.len() == HUNTS.len() && self.swarm.iter().all(|row| row.most >= SCHEDULES);
        !is_whole || (self.swarm.len() - found) * 50 <= self.swarm.len()
    }

    /// Writes the plans of the first failures; of a bug that was never caught its first plan.
    ///
    /// # Errors
    /// A plan cannot be written.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        for bug in self.bugs.iter().filter(|b| !b.is_right()) {
            let is_never = bug.caught_at.is_none();
            let buggy = is_never.then_some(0).into_iter().map(|seed| (seed, true));
            for (seed, is_buggy) in bug.twins_shown.iter().take(LISTED).map(|seed| (*seed, false)).chain(buggy) {
                let (backend, resource_bug) = bug.hunt.under(is_buggy);
                let what = if is_buggy { "bug" } else { "twin" };
                let name = format!("{what}-{}-{seed}", bug.hunt.name().replace(", ", "-"));
                write(dir, name, backend, resource_bug, bug.hunt.plan(seed, is_buggy))?;
            }
        }
        for quiet in &self.quiet {
            let wrong = quiet.alarms.iter().map(|(seed, _)| seed).take(LISTED);
            for seed in wrong.chain(quiet.failed.iter().map(|e| &e.seed).take(LISTED)) {
                let name = format!("quiet-{}-{}-{seed}", quiet.sound.backend, quiet.sound.tokens);
                write(dir, name, quiet.sound.backend.into(), None, plan_without_faults(quiet.sound, *seed))?;
            }
        }
        for faulty in &self.faulty {
            for seed in faulty.wrong.iter().take(LISTED).chain(faulty.failed.iter().map(|e| &e.seed).take(LISTED)) {
                let name = format!("faulty-{}-{}-{seed}", faulty.sound.backend, faulty.sound.tokens);
                write(dir, name, faulty.sound.backend.into(), None, plan_with_faults(faulty.sound, *seed))?;
            }
        }
        for pair in self.pairs.iter().flat_map(|row| &row.pairs) {
            let WithFaults { sound: CorrectLock { backend, tokens }, wrong, failed, .. } = &pair.found;
            for seed in wrong.iter().take(LISTED).chain(failed.iter().map(|e| &e.seed).take(LISTED)) {
                let name = format!("pair-{backend}-{tokens}-{}-{seed}", pair.nemesis.replace([',', ':'], "-"));
                write(dir, name, (*backend).into(), None, pair.plan(*seed))?;
            }
        }
        Ok(())
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.tell_bugs(&mut out);
        self.tell_quiet(&mut out);
        self.tell_faulty(&mut out);
        self.tell_pairs(&mut out);
        self.tell_swarm(&mut out);
        let wrong = self.bugs.iter().filter(|b| !b.is_right()).count()
            + self.quiet.iter().filter(|q| !q.is_right()).count()
            + self.faulty.iter().filter(|f| !f.is_right()).count()
            + self.pairs.iter().filter(|row| !row.is_right()).count()
            + usize::from(!self.is_swarm_right());
        let _ = match wrong {
            0 => writeln!(out, "every row is right"),
            1 => writeln!(out, "1 row is wrong"),
            _ => writeln!(out, "{wrong} rows are wrong"),
        };
        if !self.is_whole() {
            let _ = writeln!(out, "some runs ended with an error, so the tables are not whole");
        }
        out
    }

    fn tell_bugs(&self, out: &mut String) {
        if self.bugs.is_empty() {
            return;
        }
        let caught = self.bugs.iter().filter(|b| b.caught_at.is_some()).count();
        let _ = writeln!(out, "planted bugs: {caught} of {} caught", self.bugs.len());
        let _ = writeln!(out, "  {:<37} {:<21} {:>5}  {:<21}", "bug", "shown by", "seeds", "correct twin");
        for bug in &self.bugs {
            let seeds = bug.caught_at.map_or_else(|| "never".to_owned(), |seed| (seed + 1).to_string());
            let twin = match bug.twins_shown.len() {
                0 if bug.twins_decided == 0 => format!("not decided in {}", bug.twins),
                0 => format!("not shown in {}", bug.twins),
                n => format!("shown in {n} of {}", bug.twins),
            };
            let (name, shows, mark) = (bug.hunt.name(), bug.hunt.shows.name(), mark(bug.is_right()));
            let _ = writeln!(out, "  {name:<37} {shows:<21} {seeds:>5}  {twin:<21} {mark}");
            if bug.is_given_away {
                let _ = writeln!(out, "      the history names the bug");
            }
            if !bug.twins_shown.is_empty() {
                list(out, bug.twins_shown.iter().map(|seed| format!("seed {seed}: the twin shows the violation too")));
            }
        }
        let _ = writeln!(out);
    }

    fn tell_quiet(&self, out: &mut String) {
        if self.quiet.is_empty() {
            return;
        }
        let _ = writeln!(out, "correct locks, no faults");
        let _ = writeln!(out, "  {:<22} {:>7} {:>7} {:>13} {:>7}", "lock", "runs", "upheld", "inconclusive", "alarms");
        for quiet in &self.quiet {
            let WithoutFaults { sound, runs, upheld, inconclusive, alarms, failed } = quiet;
            let (open, count, mark) = (inconclusive.values().sum::<u64>(), alarms.len(), mark(quiet.is_right()));
            let _ = writeln!(out, "  {sound:<22} {runs:>7} {upheld:>7} {open:>13} {count:>7}  {mark}");
            list(out, inconclusive.iter().map(|(why, n)| format!("{n} inconclusive: {why}")));
            list(out, alarms.iter().map(|(seed, what)| format!("seed {seed}: {what}")));
            list(out, failed.iter().map(|error| format!("ended with an error: {error}")));
        }
        let _ = writeln!(out);
    }

    fn tell_faulty(&self, out: &mut String) {
        if self.faulty.is_empty() {
            return;
        }
        let _ = writeln!(out, "correct locks, all faults, compared with the truth");
        let _ = writeln!(
            out,
            "  {:<22} {:>7} {:>7} {:>12} {:>9} {:>9} {:>10} {:>7} {:>12}",
            "lock", "runs", "alarms", "unconfirmed", "overlaps", "reported", "undecided", "missed", "unexplained"
        );
        for faulty in &self.faulty {
            let WithFaults { sound, runs, compared: c, .. } = faulty;
            let (unconfirmed, missed, unexplained) = (c.unconfirmed.len(), c.missed.len(), c.unexplained.len());
            let (alarms, overlaps, undecided, mark) = (c.alarms, c.overlaps, c.undecided, mark(faulty.is_right()));
            let reported = overlaps - undecided - missed as u64;
            let _ = writeln!(
                out,
                "  {sound:<22} {runs:>7} {alarms:>7} {unconfirmed:>12} {overlaps:>9} {reported:>9} {undecided:>10} \
                 {missed:>7} {unexplained:>12}  {mark}"
            );
            list(out, c.unconfirmed.iter().map(|what| format!("unconfirmed: {what}")));
            list(out, c.missed.iter().map(|what| format!("missed: {what}")));
            list(out, c.unexplained.iter().map(|what| format!("unexplained: {what}")));
            list(out, faulty.failed.iter().map(|error| format!("ended with an error: {error}")));
        }
        let _ = writeln!(out);
    }

    fn tell_pairs(&self, out: &mut String) {
        if self.pairs.is_empty() {
            return;
        }
        let _ = writeln!(out, "correct locks, pairs of faults, compared with the truth");
        let _ = writeln!(
            out,
            "  {:<22} {:>5} {:>6} {:>6} {:>11} {:>8} {:>8} {:>9} {:>6} {:>11} {:>6}",
            "lock",
            "pairs",
            "runs",
            "alarms",
            "unconfirmed",
            "overlaps",
            "reported",
            "undecided",
            "missed",
            "unexplained",
            "errors"
        );
        for row in &self.pairs {
            let [runs, alarms, overlaps, undecided] = [
                row.sum(|f| f.runs),
                row.sum(|f| f.compared.alarms),
                row.sum(|f| f.compared.overlaps),
                row.sum(|f| f.compared.undecided),
            ];
            let [unconfirmed, missed, unexplained, errors] = figures(row.pairs.iter());
            let (sound, count, mark) = (&row.sound, row.pairs.len(), mark(row.is_right()));
            let reported = overlaps - undecided - missed;
            let _ = writeln!(
                out,
                "  {sound:<22} {count:>5} {runs:>6} {alarms:>6} {unconfirmed:>11} {overlaps:>8} {reported:>8} \
                 {undecided:>9} {missed:>6} {unexplained:>11} {errors:>6}  {mark}"
            );
            for (kind, why) in &row.refused {
                let _ = writeln!(out, "      left out: {kind}: {why}");
            }
            for (pair, seed) in row.pairs.iter().filter_map(|pair| Some((pair, pair.first_wrong()?))) {
                let counts = figures([pair].into_iter()).into_iter().zip(FIGURES).filter(|(count, _)| *count > 0);
                let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
                let _ = writeln!(out, "      {}: {}", counts.join(", "), pair.command(seed));
            }
        }
        let _ = writeln!(out);
    }

    fn tell_swarm(&self, out: &mut String) {
        let Some(first) = self.swarm.first() else { return };
        let found = self.swarm.iter().filter(|row| row.median().is_some()).count();
        let (of, searches, most) = (self.swarm.len(), first.found.len(), first.most);
        let _ = writeln!(
            out,
            "planted bugs that a swarm finds: {found} of {of}, in the median of {searches} searches of up to {most} \
             schedules"
        );
        let _ = writeln!(out, "  {:<37} {:<21} {:>6}  each search", "bug", "shown by", "median");
        let shown = |found: Option<u64>| found.map_or_else(|| "-".to_owned(), |schedules| schedules.to_string());
        for row in &self.swarm {
            let (name, shows, median) = (row.hunt.name(), row.hunt.shows.name(), shown(row.median()));
            let each: Vec<String> = row.found.iter().map(|found| shown(*found)).collect();
            let _ = writeln!(out, "  {name:<37} {shows:<21} {median:>6}  {}", each.join(", "));
            list(out, row.failed.iter().map(|error| format!("ended with an error: {error}")));
        }
        let _ = writeln!(out);
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let failed = |errors: &[SeedError]| -> Vec<Value> {
            errors.iter().map(|error| json!({"seed": error.seed, "why": error.why})).collect()
        };
        let bugs = self.bugs.iter().map(|b| {
            json!({
                "bug": b.hunt.name(),
                "shown_by": b.hunt.shows.name(),
                "seeds": b.caught_at.map(|seed| seed + 1),
                "is_given_away": b.is_given_away,
                "twins": b.twins,
                "twins_decided": b.twins_decided,
                "twins_shown": b.twins_shown,
                "is_right": b.is_right(),
            })
        });
        let quiet = self.quiet.iter().map(|q| {
            json!({
                "lock": q.sound.to_string(),
                "runs": q.runs,
                "upheld": q.upheld,
                "inconclusive": q.inconclusive,
                "alarms": q.alarms,
                "failed": failed(&q.failed),
                "is_right": q.is_right(),
            })
        });
        let faulty = self.faulty.iter().map(|f| {
            json!({
                "lock": f.sound.to_string(),
                "runs": f.runs,
                "alarms": f.compared.alarms,
                "unconfirmed": f.compared.unconfirmed,
                "overlaps": f.compared.overlaps,
                "undecided": f.compared.undecided,
                "missed": f.compared.missed,
                "unexplained": f.compared.unexplained,
                "failed": failed(&f.failed),
                "is_right": f.is_right(),
            })
        });
        let of_pair = |pair: &Pair| {
            let (seed, c) = (pair.first_wrong()?, &pair.found.compared);
            Some(json!({
                "nemesis": pair.nemesis,
                "command": pair.command(seed),
                "unconfirmed": c.unconfirmed,
                "missed": c.missed,
                "unexplained": c.unexplained,
                "failed": failed(&pair.found.failed),
            }))
        };
        let pairs = self.pairs.iter().map(|row| {
            json!({
                "lock": row.sound.to_string(),
                "pairs": row.pairs.len(),
                "runs": row.sum(|f| f.runs),
                "alarms": row.sum(|f| f.compared.alarms),
                "overlaps": row.sum(|f| f.compared.overlaps),
                "undecided": row.sum(|f| f.compared.undecided),
                "wrong_pairs": row.pairs.iter().filter_map(of_pair).collect::<Vec<_>>(),
                "left_out": row.refused.iter().map(|(kind, why)| json!({"kind": kind, "why": why})).collect::<Vec<_>>(),
                "is_right": row.is_right(),
            })
        });
        let swarm = self.swarm.iter().map(|row| {
            json!({
                "bug": row.hunt.name(),
                "shown_by": row.hunt.shows.name(),
                "schedules": row.found,
                "median": row.median(),
                "most": row.most,
                "failed": failed(&row.failed),
            })
        });
        json!({
            "schema": 1,
            "is_right": self.is_right(),
            "planted_bugs": bugs.collect::<Vec<_>>(),
            "no_faults": quiet.collect::<Vec<_>>(),
            "all_faults": faulty.collect::<Vec<_>>(),
            "pairs": pairs.collect::<Vec<_>>(),
            "swarm": swarm.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests;
