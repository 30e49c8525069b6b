//! A window, as a story that a person can follow.

use std::time::Duration;

use history::{ClockChange, Fault, Stamp, fault};

use crate::{
    failover::DEMOTED_WITHIN,
    faults::FaultRecord,
    hold_summary::HoldSummary,
    holds::{Attempt, EarlyEnd, EventRef, Nodes, Span},
    judge::Ending,
    report::StoryLine,
    run::Run,
};

use super::evidence::{HoldWatch, Overlap, StaleAct};

fn seconds(d: Duration) -> String {
    format!("{:.2} s", d.as_secs_f64())
}

/// The client of a hold, and its part if one of the two holds of the window is not a writer's: "worker-1 (reader)". The
/// key too, if the holds are of two keys: "worker-1 (k0, reader)".
fn named(run: &Run, hold: &HoldSummary, other: &HoldSummary) -> String {
    let who = run.who(hold.process, hold.client);
    if hold.key != other.key {
        return format!("{who} ({}, {})", run.key(hold.key), hold.mode.who());
    }
    if hold.mode.is_write() && other.mode.is_write() { who } else { format!("{who} ({})", hold.mode.who()) }
}

/// "k0: worker-1 acted 3.05 s after worker-2 took over".
pub(crate) fn stale_headline(
    run: &Run,
    key: usize,
    own: &HoldSummary,
    later: &HoldSummary,
    staleness: Duration,
) -> String {
    let (key, who, after) = (run.key(key), named(run, own, later), seconds(staleness));
    if own.client == later.client {
        return format!("{key}: {who} acted under an old hold {after} after it had acquired a new one");
    }
    format!("{key}: {who} acted {after} after {} took over", named(run, later, own))
}

fn both_named(run: &Run, overlap: &Overlap) -> [String; 2] {
    let [a, b] = overlap.holds.each_ref().map(|entitled| &entitled.hold);
    [named(run, a, b), named(run, b, a)]
}

/// "k0: worker-1 and worker-2 were both entitled for 0.52 s".
pub(crate) fn overlap_headline(run: &Run, overlap: &Overlap) -> String {
    let [a, b] = both_named(run, overlap);
    if overlap.length.is_zero() {
        let [own, other] = if overlap.holds[0].hold.ok.at == overlap.from { [a, b] } else { [b, a] };
        return format!("{}: {own} acquired while {other} was entitled; the hold ended at once", run.key(overlap.key));
    }
    format!("{}: {a} and {b} were both entitled for {}", run.key(overlap.key), seconds(overlap.length))
}

/// "k0: worker-2 acquired 0.52 s before the end of the promise to worker-1, which was killed".
pub(crate) fn cut_short_headline(run: &Run, cut: &Overlap) -> String {
    let [killed, other] = both_named(run, cut);
    let (key, left) = (run.key(cut.key), seconds(cut.length));
    format!("{key}: {other} acquired {left} before the end of the promise to {killed}, which was killed")
}

/// One line on a fault. For a fault that the plan does not have, the default parameters of its kind are used.
fn told(line: &FaultRecord, fault: Option<&Fault>) -> String {
    let lasted = line.proved.map(|(from, to)| to.since(from));
    let of_kind = || Some(Fault::new(line.kind.default_parameters()?, lasted.unwrap_or_default()));
    match fault.cloned().or_else(of_kind) {
        Some(fault) => fault.story(&line.node, lasted),
        None => format!("{} {}", line.kind.past_tense(), line.node),
    }
}

/// Lines of a story, to be put in order.
struct Lines<'a> {
    run: &'a Run,
    /// True if one of the holds is not a writer's, and if the holds are of two keys.
    has_modes: bool,
    has_keys: bool,
    lines: Vec<(Stamp, String, String)>,
}

impl<'a> Lines<'a> {
    fn new(run: &'a Run, holds: [&HoldSummary; 2]) -> Self {
        let has_keys = holds[0].key != holds[1].key;
        let has_modes = has_keys || holds.iter().any(|hold| !hold.mode.is_write());
        Lines { run, has_modes, has_keys, lines: Vec::new() }
    }

    fn say(&mut self, at: Stamp, who: impl Into<String>, what: impl Into<String>) {
        self.lines.push((at, who.into(), what.into()));
    }

    fn at(&self, stamp: Stamp) -> String {
        format!("{:.3} s", self.run.ms(stamp) / 1e3)
    }

    fn acquired(&mut self, hold: &HoldSummary, promise: Option<Stamp>) {
        let token = hold.token.map(|t| format!(", token {t}")).unwrap_or_default();
        let until = promise.map(|end| format!(", entitled until {}", self.at(end))).unwrap_or_default();
        let key = if self.has_keys { format!(" {}", self.run.key(hold.key)) } else { String::new() };
        let part = if self.has_modes { format!(" as {}", hold.mode.who()) } else { String::new() };
        self.say(hold.ok.at, self.run.who(hold.process, hold.client), format!("acquired{key}{part}{token}{until}"));
    }

    /// Faults that hit a node between two instants. A fault that was never on did nothing.
    fn faults(&mut self, node: &history::NodeName, from: Stamp, to: Stamp) {
        let run = self.run;
        for (id, line) in run.faults.iter().filter(|(_, line)| line.node == *node) {
            let Some((requested, healed)) = line.bracket().filter(|_| line.may_have_been_on()) else { continue };
            if healed < from || requested > to {
                continue;
            }
            // If the target shows when it stopped, that stamp counts; the request came some milliseconds before.
            let at = line.proved.map_or(requested, |(from, _)| from.max(requested));
            let step = run.plan.step(id);
            let who = if line.is_unplanned { "unplanned" } else { "nemesis" };
            self.say(at, who, told(line, step.map(|step| &step.fault)));
            let is_set_back = matches!(
                step.and_then(|step| step.fault.clock()),
                Some(fault::Clock { clock, change: ClockChange::JumpMs(_) | ClockChange::DriftPpm(_) })
                    if clock.is_wall()
            );
            if let Some(at) = line.heal_requested.filter(|at| is_set_back && *at <= to) {
                self.say(at, "nemesis", format!("set the wall clock of {node} back"));
            }
        }
    }

    /// The relevant stalls that no pause explains. A story leaves out the other stalls, so that it stays short.
    fn stalls(&mut self, who: &str, node: &history::NodeName, stalls: &[(Stamp, Stamp)], from: Stamp, to: Stamp) {
        let run = self.run;
        let is_short = |d: Duration| d < run.plan.lease / 10;
        let pauses = |stall: Span| run.faults.pauses_on(node, stall);
        let told: Vec<_> = (stalls.iter())
            .filter(|s| s.1 > from && s.0 < to && !is_short(s.1.since(s.0)))
            .filter(|s| !pauses(**s).iter().any(|p| crate::rules::overlap(**s, *p).is_some()))
            .take(5)
            .collect();
        for stall in told {
            self.say(stall.0, who, format!("stalled for {}: no fault did it", seconds(stall.1.since(stall.0))));
        }
    }

    fn gave_up(&mut self, mark: Option<EventRef>, until: Stamp, who: &str) {
        if let Some(mark) = mark.filter(|mark| mark.at <= until) {
            self.say(mark.at, who, "gave the hold up: its write may still arrive");
        }
    }

    fn ended(&mut self, hold: &Attempt, who: &str) {
        let Some((mark, early_end)) = hold.ended_by() else { return };
        let what = match early_end {
            EarlyEnd::Release => "began to release",
            EarlyEnd::Loss => "noticed that the hold was lost",
            EarlyEnd::Kill(_) => return,
        };
        self.say(mark.at, who, what);
    }

    fn acts(&mut self, who: &str, acts: &[StaleAct]) {
        for act in acts {
            self.say(act.mark.at, who, act.note.what());
        }
    }

    fn told(mut self) -> Vec<StoryLine> {
        self.lines.sort_by_key(|line| line.0);
        let run = self.run;
        self.lines.into_iter().map(|(at, who, what)| StoryLine { at_ms: run.ms(at), who, what }).collect()
    }
}

/// The story of a stale hold: its promise, the faults, the later hold, and the stale acts.
pub(crate) fn of_stale(run: &Run, hold: &Attempt, own: &HoldSummary, watch: &HoldWatch) -> Vec<StoryLine> {
    let (Some(stale), Some(later), Some(grant)) = (&watch.stale, &watch.first_later, hold.grant) else {
        return Vec::new();
    };
    let mut lines = Lines::new(run, [own, later]);
    let since = hold.relies_since();
    let (who, node) = (run.who(hold.process, hold.client), &run.process(hold.process).node);
    lines.acquired(own, Some(grant.first_promise));
    if let Some(ok) = hold.renewed {
        let until = lines.at(hold.promise);
        lines.say(ok.at, &who, format!("renewed for the last time, entitled until {until}"));
    }
    lines.faults(node, since, stale.last.at);
    lines.stalls(&who, node, &hold.stalls, since, stale.last.at);
    let resource = history::NodeName::from("resource");
    lines.faults(&resource, since, stale.last.at);
    if run.plan.workload.renew.is_some() {
        // These faults may have prevented renewals.
        run.plan.lock_nodes.iter().for_each(|node| lines.faults(node, since, stale.last.at));
    }
    lines.stalls("resource", &resource, &run.resource_stalls(hold), since, stale.last.at);
    lines.gave_up(hold.gave_up, stale.last.at, &who);
    lines.ended(hold, &who);
    lines.acquired(later, None);
    if let Some((EventRef { at, .. }, note)) = &watch.later_write {
        lines.say(*at, run.who(later.process, later.client), note.what());
    }
    lines.acts(&who, &stale.acts);
    lines.told()
}

/// The story of two holds at once.
pub(crate) fn of_overlap(run: &Run, overlap: &Overlap, ending: &Ending) -> Vec<StoryLine> {
    let both = overlap.holds[0].nodes & overlap.holds[1].nodes;
    let [first, second] = overlap.holds.each_ref().map(|entitled| &entitled.hold);
    let mut lines = Lines::new(run, [first, second]);
    // Two primaries are the point of such a story.
    for entitled in overlap.holds.iter().filter(|_| run.plan.is_replicated()) {
        let who = run.who(entitled.hold.process, entitled.hold.client);
        for node in run.lock_nodes(entitled.nodes) {
            lines.say(entitled.hold.ok.at, node.as_str(), format!("granted the lock to {who}"));
        }
    }
    lines.acquired(first, Some(first.promise));
    lines.acquired(second, Some(second.promise));
    for hold in [first, second] {
        // The fault that killed a client belongs to the story.
        if let Some((killed, EarlyEnd::Kill(_))) =
            run.process(hold.process).killed.filter(|(k, _)| k.at <= second.ok.at)
        {
            lines.say(killed.at, "nemesis", format!("killed {}", run.process(hold.process).node));
        }
        lines.gave_up(hold.gave_up, overlap.from.plus(overlap.length), &run.who(hold.process, hold.client));
    }
    let has_replicas = run.plan.has_replicas();
    // A primary that was replaced may grant locks until long after its fault.
    let before = if run.plan.is_replicated() { DEMOTED_WITHIN } else { Duration::ZERO };
    for node in run.lock_nodes(if has_replicas { Nodes::MAX } else { both }) {
        lines.faults(node, first.relies_since().minus(before), second.ok.at);
    }
    let removed = ending.taken_from(first.id).filter(|u| u.answered.at <= second.ok.at);
    for found in removed.take(5) {
        let node = &run.plan.lock_nodes[found.node];
        let what = format!("did what attempt {} asked, though hold {} owned the key", found.attempt, found.owner);
        lines.say(found.answered.at, node.as_str(), what);
    }
    lines.told()
}

#[cfg(test)]
mod tests;
