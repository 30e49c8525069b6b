//! Property 7: a killed holder blocks its key for at most a lease, and no client waits for ever. The blocked time is
//! measured, and deadlocks are named.

mod blocked_keys;
mod deadlocks;
mod key_watch;
mod open_attempts;
mod stuck;

use std::time::Duration;

use history::{Arm, Event, FaultId, FaultPhase, HoldId, Key, Mode, Plan, ProcessName, Stamp};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    holds::{Attempt, EarlyEnd},
    judge::{Ending, Judge},
    report::{Report, Violation, counted, plural, seconds},
    rules,
    run::{Run, millis},
    verdict::Verdict,
};

pub use deadlocks::{Deadlock, DeadlockEnd};
pub use stuck::StuckAttempt;

use blocked_keys::BlockedKeys;
use deadlocks::Deadlocks;
use stuck::Found;

/// A key that the kill of its holder blocked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockedKey {
    /// The key.
    pub key: Key,
    /// The hold whose process was killed.
    pub hold: HoldId,
    /// The fault that killed the process.
    pub fault: FaultId,
    /// The worker.
    pub worker: ProcessName,
    /// From the kill to the next acquisition, in milliseconds; null if there was none.
    pub blocked_ms: Option<f64>,
}

/// Property 7: a key that no client can hold any more is acquired again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LivenessVerdict {
    /// Violated by one stuck attempt, or by a deadlock without an end; `measured` if nothing could be judged.
    pub verdict: Verdict,
    /// Killed holders whose key was acquired again in time, and stuck attempts.
    pub judged: u64,
    /// Attempts that did not get a key although no client can have held the key.
    pub stuck: Vec<StuckAttempt>,
    /// The longest blocking, in milliseconds.
    pub blocked_ms_max: f64,
    /// All keys that a kill blocked, by time.
    pub blocked: Vec<BlockedKey>,
    /// Cycles of clients that waited for each other: how many the service detected, how many ended because a client
    /// gave up its wait, because a lease ended, because a client was killed, how many did not end, and how many the
    /// end of the record cut off.
    pub deadlocks_detected: u64,
    #[allow(missing_docs)]
    pub deadlocks_timed_out: u64,
    #[allow(missing_docs)]
    pub deadlocks_lease_ended: u64,
    #[allow(missing_docs)]
    pub deadlocks_killed: u64,
    #[allow(missing_docs)]
    pub deadlocks_unended: u64,
    #[allow(missing_docs)]
    pub deadlocks_cut_off: u64,
    /// The first deadlocks, by time, and those without an end; no more than 100.
    pub deadlocks: Vec<Deadlock>,
    /// The reasons why the verdict is inconclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

struct Block {
    mode: Mode,
    killed: Stamp,
    lasted: Option<Duration>,
    blocked: BlockedKey,
}

/// Measures blocking.
#[derive(Default)]
pub(crate) struct Liveness {
    blocks: Vec<Block>,
    /// Blocks that nothing has ended yet, by key.
    waiting: FxHashMap<usize, Vec<usize>>,
    blocked_keys: BlockedKeys,
    deadlocks: Deadlocks,
}

impl Liveness {
    fn killed(&mut self, run: &Run, entry: &Entry) {
        let Event::Fault { fault, node, .. } = &entry.event else { return };
        for process in run.processes_on(node) {
            for hold in run.open_on(process) {
                let is_held = hold.grant.is_some_and(|grant| grant.ok.at < entry.at);
                if !is_held || hold.ended_by().is_none_or(|(_, early_end)| early_end != EarlyEnd::Kill(*fault)) {
                    continue;
                }
                self.waiting.entry(hold.key).or_default().push(self.blocks.len());
                self.blocks.push(Block {
                    mode: hold.mode,
                    killed: entry.at,
                    lasted: None,
                    blocked: BlockedKey {
                        key: run.key(hold.key).clone(),
                        hold: hold.id,
                        fault: *fault,
                        worker: run.process(process).name.clone(),
                        blocked_ms: None,
                    },
                });
            }
        }
    }

    /// A hold ends the blocking of a key by a hold that conflicts with it.
    fn acquired(&mut self, key: usize, mode: Mode, at: Stamp) {
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        waiting.retain(|&i| {
            let block = &mut self.blocks[i];
            let is_over = rules::conflict(mode, block.mode) && rules::is_unblocked(at, block.killed);
            if is_over {
                block.lasted = Some(at.since(block.killed));
            }
            !is_over
        });
    }
}

impl Judge for Liveness {
    const NAME: &str = "liveness";
    const ABOUT: &str = "A key that no client can hold any more can be acquired again, within the lease and 1 s. No \
        cycle of clients waits for ever; deadlocks are named.";
    type Verdict = LivenessVerdict;

    fn new(_plan: &Plan) -> Liveness {
        Liveness::default()
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        self.blocked_keys.on_event(run, entry);
        self.deadlocks.on_event(run, entry, self.blocked_keys.lease(), self.blocked_keys.quiet_since());
        match &entry.event {
            Event::Fault { kind, phase: FaultPhase::Requested { .. }, .. } if kind.kills() => self.killed(run, entry),
            Event::Acquired { attempt, .. } => {
                if let Some(hold) = run.attempt(*attempt) {
                    self.acquired(hold.key, hold.mode, entry.at);
                }
            }
            _ => {}
        }
    }

    fn on_use(&mut self, run: &Run, entry: &Entry) {
        self.blocked_keys.on_use(run, entry);
    }

    fn on_entitlement_end(&mut self, run: &Run, hold: &Attempt, end: Stamp) {
        self.deadlocks.on_entitlement_end(run, hold, end);
    }

    fn on_attempt_closed(&mut self, run: &Run, attempt: &Attempt) {
        self.deadlocks.on_attempt_closed(run, attempt);
    }

    fn on_key_quiet(&mut self, _run: &Run, key: usize) {
        self.blocked_keys.on_key_quiet(key);
    }

    fn finish(mut self, run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        self.blocks.retain(|block| run.has_killed(block.blocked.fault));
        self.blocks.sort_by_key(|block| (block.killed, block.blocked.hold));
        let bound = self.blocked_keys.bound();
        let in_time = self.blocks.iter().filter(|b| b.lasted.is_some_and(|lasted| lasted <= bound)).count() as u64;
        let Found { stuck, after_step, kept } = self.blocked_keys.found(run, ending.is_whole);
        let (deadlocks, count) = self.deadlocks.finish(run, ending.is_whole);
        let (unended, cut_off) = (count(DeadlockEnd::Unended), count(DeadlockEnd::CutOff));
        let ended = [DeadlockEnd::Detected, DeadlockEnd::TimedOut, DeadlockEnd::LeaseEnded, DeadlockEnd::Killed];
        let cycles: u64 = ended.into_iter().map(&count).sum();
        let judged = in_time + stuck.len() as u64 + cycles + unended;
        let undecided = cut_off + after_step + kept;
        let verdict = match judged + undecided {
            0 => Verdict::Measured,
            _ => Verdict::judged(!stuck.is_empty() || unended > 0, !ending.is_whole || undecided > 0),
        };
        let blocked: Vec<BlockedKey> = (self.blocks.into_iter())
            .map(|block| BlockedKey { blocked_ms: block.lasted.map(millis), ..block.blocked })
            .collect();
        let blocked_ms_max = blocked.iter().filter_map(|b| b.blocked_ms).fold(0.0, f64::max);
        let liveness = LivenessVerdict {
            verdict,
            judged,
            stuck,
            blocked_ms_max,
            blocked,
            deadlocks_detected: count(DeadlockEnd::Detected),
            deadlocks_timed_out: count(DeadlockEnd::TimedOut),
            deadlocks_lease_ended: count(DeadlockEnd::LeaseEnded),
            deadlocks_killed: count(DeadlockEnd::Killed),
            deadlocks_unended: unended,
            deadlocks_cut_off: cut_off,
            deadlocks,
            reasons: reasons(cut_off, after_step, kept),
        };
        vec![(None, liveness)]
    }
}

/// The reasons why the verdict is inconclusive.
fn reasons(cut_off: u64, after_step: u64, kept: u64) -> Vec<String> {
    let attempts = |count: u64| plural(count, "attempt", "attempts");
    let all = [
        (
            cut_off,
            format!(
                "clients waited for each other in {} until the run or its record ended: it is too short, or not whole, \
                 to say whether their waits would have ended",
                plural(cut_off, "cycle", "cycles")
            ),
        ),
        (
            after_step,
            format!(
                "{} did not get a key that nobody can have held, but the host's clock had stepped before: leases rest \
                 on it",
                attempts(after_step)
            ),
        ),
        (
            kept,
            format!(
                "{} did not get a key that a client program may have kept: its worker used the hold no longer, and the \
                 program did not say that it released the lock",
                attempts(kept)
            ),
        ),
    ];
    all.into_iter().filter(|(count, _)| *count > 0).map(|(_, why)| why).collect()
}

/// The number of stuck attempts, and of deadlocks, that the summary tells.
const SHOWN_MAX: usize = 3;

impl LivenessVerdict {
    /// The counts of deadlocks, each with the words for their end.
    fn ends(&self) -> [(u64, &'static str); 6] {
        [
            (self.deadlocks_detected, "detected by the service"),
            (self.deadlocks_timed_out, "ended because a client gave up"),
            (self.deadlocks_lease_ended, "ended with a lease"),
            (self.deadlocks_killed, "ended by a kill"),
            (self.deadlocks_unended, "without an end"),
            (self.deadlocks_cut_off, "cut off by the end of the run or record"),
        ]
    }

    /// The number of all deadlocks.
    fn deadlock_count(&self) -> u64 {
        self.ends().iter().map(|(count, _)| count).sum()
    }

    /// The deadlocks by their ends; none if there was none.
    fn deadlock_figures(&self) -> Option<String> {
        let (ends, all) = (self.ends(), self.deadlock_count());
        let told = ends.iter().filter(|(count, _)| *count > 0).map(|(count, end)| format!("{count} {end}"));
        let told = told.collect::<Vec<_>>().join(", ");
        (all > 0).then(|| format!("{}: {told}", plural(all, "deadlock", "deadlocks")))
    }
}

impl Report for LivenessVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn shown_verdict(&self) -> &'static str {
        let is_empty = self.verdict == Verdict::Measured && self.blocked.is_empty() && self.deadlocks.is_empty();
        if is_empty { Verdict::NotApplicable.name() } else { self.verdict.name() }
    }

    fn figures(&self) -> String {
        let count = self.stuck.len() as u64;
        let stuck = || format!("{} did not get a key that nobody can have held", plural(count, "attempt", "attempts"));
        let lasted = |b: &BlockedKey| b.blocked_ms.map_or_else(|| "to the end".into(), seconds);
        let blocked = || {
            let each: Vec<String> = self.blocked.iter().map(lasted).collect();
            let killed = plural(each.len() as u64, "killed holder", "killed holders");
            format!("{killed} blocked the key for {}", each.join(", "))
        };
        let stuck = (count > 0).then(stuck);
        let blocked = (!self.blocked.is_empty()).then(blocked);
        let all: Vec<String> = stuck.into_iter().chain(blocked).chain(self.deadlock_figures()).collect();
        if all.is_empty() { "no holder was killed".into() } else { all.join("; ") }
    }

    fn violations(&self) -> Vec<Violation> {
        counted(&[(self.stuck.len() as u64, ""), (self.deadlocks_unended, "deadlock")])
    }

    fn notes(&self) -> Vec<String> {
        let stuck = first(self.stuck.iter().map(StuckAttempt::line), self.stuck.len() as u64, "stuck attempts");
        let deadlocks = first(self.deadlocks.iter().map(Deadlock::line), self.deadlock_count(), "deadlocks");
        stuck.chain(deadlocks).collect()
    }

    fn evidence(&self) -> Vec<String> {
        let unended = self.deadlocks.iter().filter(|deadlock| deadlock.ended == DeadlockEnd::Unended);
        let stuck = self.stuck.iter().map(StuckAttempt::line).take(SHOWN_MAX);
        stuck.chain(unended.map(Deadlock::line).take(SHOWN_MAX)).collect()
    }
}

/// The first lines, and the number of the others. `all` counts those that are not kept too.
fn first(lines: impl ExactSizeIterator<Item = String>, all: u64, what: &str) -> impl Iterator<Item = String> {
    let kept = lines.len() as u64;
    let more = all.max(kept).saturating_sub(SHOWN_MAX as u64);
    let them = if kept < all { format!("{kept} in all") } else { "them".to_owned() };
    let more = (more > 0).then(|| format!("and {more} more {what}; verdict.json has {them}"));
    lines.take(SHOWN_MAX).chain(more)
}

#[cfg(test)]
mod tests;
