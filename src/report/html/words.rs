//! The claim of a run in a few sentences, for readers who do not know the words of the verdicts.

use std::time::Duration;

use checker::{Cause, Verdict, Verdicts, Window, WindowKind};
use history::{Arm, ClientKind, FaultKind, RequestKind, Stamp};

use super::{
    arms::lost_updates,
    picture::{EarlyEnd, early_end, fault_span, is_other_worker, is_past_its_hold, name},
};
use crate::timeline::{Act, FaultSpan, Hold, Timeline, WindowSpan, worst_first};

const KEPT: &str = "The lock service kept its promise: it gave the lock to the next client after the lease had ended.";

const BROKEN: &str = "The lock service broke its promise: it gave the lock away before the first lease had ended.";

/// The index of the window that tells most.
pub fn worst(windows: &[Window]) -> Option<usize> {
    worst_first(windows).first().copied()
}

fn seconds(ms: f64) -> String {
    if ms < 1e3 { format!("{ms:.0} ms") } else { format!("{:.2} s", ms / 1e3) }
}

fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Returns the claim of the run. `worst` is the window that it tells of.
pub fn claim(verdicts: &Verdicts, timeline: &Timeline, worst: Option<usize>) -> String {
    let lock = verdicts.lock();
    if let Some((lock, index)) = lock.zip(worst) {
        return of_window(verdicts, timeline, &lock.windows[index], index);
    }
    let violated: Vec<&str> = (verdicts.properties.iter())
        .filter(|(_, property)| property.verdict() == Verdict::Violated)
        .map(|(name, _)| name)
        .collect();
    let holds = plural(verdicts.facts.holds, "hold", "holds");
    let facts = &verdicts.facts;
    let faults = faults(facts.faults_requested, facts.faults_proved, facts.unplanned_faults.len() as u64);
    match verdicts.verdict {
        Verdict::Violated => format!("The run violates {}. The table below has the figures.", violated.join(", ")),
        Verdict::Upheld => format!(
            "No client used the lock after another client had taken it: {holds}, {faults}. \
             The run is no proof that the lock is safe."
        ),
        _ => format!("The run proves nothing about the lock: {holds}, {faults}. The reasons are below."),
    }
}

/// The faults of a run in words, by their numbers.
fn faults(requested: u64, proved: u64, unplanned: u64) -> String {
    let planned = match (proved, requested) {
        (0, 0) => None,
        (0, _) => Some("no proved fault".to_owned()),
        (n, _) => Some(plural(n, "proved fault", "proved faults")),
    };
    let others = (unplanned > 0).then(|| plural(unplanned, "unplanned fault", "unplanned faults"));
    let all: Vec<String> = planned.into_iter().chain(others).collect();
    if all.is_empty() { "no fault".to_owned() } else { all.join(" and ") }
}

/// Returns the lesson of the window that the claim tells of, for readers who ask who is to blame.
pub fn lesson(verdicts: &Verdicts, timeline: &Timeline, client: ClientKind, worst: Option<usize>) -> Option<String> {
    let window = &verdicts.lock()?.windows[worst?];
    let hold = |n: usize| window.holds.get(n).and_then(|id| timeline.hold(*id));
    let early = hold(0).and_then(early_end);
    let is_broken = hold(0).zip(hold(1)).is_some_and(|(first, second)| second.acquired < first.entitled_until());
    let is_by = |cause| window.causes.iter().any(|set| set.is(cause));
    let text = match window.kind {
        WindowKind::StaleHolder if is_by(Cause::Unexplained) => return None,
        WindowKind::StaleHolder if is_by(Cause::Overclaim) => {
            "The client is wrong here: it trusted the lock for longer than the service had promised.".to_owned()
        }
        // The service may have given the lock away inside the lease: the record shows only that the client was told.
        WindowKind::StaleHolder if matches!(early, Some(EarlyEnd::Loss)) => {
            "The client had noticed that it had lost the lock, and still acted. A client can end its work at that \
             moment. Only the resource can refuse a write that has left by then, by a token that grows from holder to \
             holder."
                .to_owned()
        }
        // The service may have given the lock away inside the lease of the killed client, too.
        WindowKind::StaleHolder if matches!(early, Some(EarlyEnd::Kill | EarlyEnd::Release)) => {
            let ended = if matches!(early, Some(EarlyEnd::Kill)) { "was killed" } else { "released the lock" };
            format!(
                "The old holder {ended}, and a request that it had sent before still arrived. No client can call back \
                 a request that has left. Only the resource can refuse a write, by a token that grows from holder to \
                 holder."
            )
        }
        WindowKind::StaleHolder if is_broken => format!(
            "{BROKEN} The old holder also acted after the end of its lease. Only the resource can refuse such a write, \
             by a token that grows from holder to holder."
        ),
        WindowKind::StaleHolder if is_by(Cause::Overrun) => format!(
            "{KEPT} Nothing stopped the old holder: its work took longer than the lease. A client can renew its lease \
             while it works, or check its deadline just before each write. If a client is stopped after this check, \
             only the resource can refuse the write, by a token that grows from holder to holder."
        ),
        WindowKind::StaleHolder => {
            let check = match client {
                ClientKind::Checking => "The clients of this run check their deadline just before each write; ",
                ClientKind::Unchecked => {
                    "The clients of this run do not check their deadline, and a check would not help: "
                }
            };
            format!(
                "{KEPT} Every lock with a lease allows this. A client does not notice the end of its lease while it is \
                 stopped or cut off. {check}a client can be stopped, or its write be delayed, after the check. Only \
                 the resource can refuse the write, by a token that grows from holder to holder."
            )
        }
        WindowKind::LeaseOverlap | WindowKind::CutShort => BROKEN.to_owned(),
    };
    Some(text)
}

fn of_window(verdicts: &Verdicts, timeline: &Timeline, window: &Window, index: usize) -> String {
    let hold = |n: usize| window.holds.get(n).and_then(|id| timeline.hold(*id));
    let who = |n: usize| match hold(n) {
        Some(hold) => name(timeline, hold),
        None => window.workers.get(n).map(ToString::to_string).unwrap_or_default(),
    };
    let (first, second) = (who(0), who(1));
    let mut sentences = Vec::new();
    let mut needs_cause = true;
    match window.kind {
        WindowKind::StaleHolder => {
            let length = seconds(window.staleness_ms.unwrap_or_default());
            // The length is that of the last act, which may be a read after a write.
            let acted = match (window.reads, window.writes) {
                (_, 0) => "read",
                (0, _) => "wrote",
                _ => "acted",
            };
            let suffices = |cause| window.causes.iter().any(|set| set.is(cause));
            let frozen = hold(0).and_then(|hold| frozen(timeline, hold, suffices));
            needs_cause = frozen.is_none();
            let frozen = frozen.map(|(did, lasted)| format!("{did} for {} until its lease had ended, and it ", lasted));
            let taker = if first == second {
                "it had taken the lock again".to_owned()
            } else {
                format!("{second} had taken the lock")
            };
            sentences.push(format!("{first} {}{acted} {length} after {taker}.", frozen.unwrap_or_default()));
        }
        WindowKind::LeaseOverlap => {
            sentences.push(two_leases(window, [hold(0), hold(1)], [&first, &second]));
        }
        WindowKind::CutShort => {
            let length = seconds(window.cut_ms.unwrap_or_default());
            sentences.push(format!("{second} got the lock {length} before the lease of {first} ended."));
        }
    }
    if needs_cause {
        sentences.push(cause(timeline, index));
    }
    // Only the sentence on a stale holder tells of a write.
    if window.kind == WindowKind::StaleHolder && window.writes > 0 {
        sentences.extend(hold(0).and_then(|hold| fence(timeline, hold, index)));
    }
    if let Some((lost, updates)) = lost_updates(verdicts, Arm::Off) {
        sentences.push(format!(
            "The same requests also went to a copy of the resource without a fence: it lost {lost} of {}.",
            plural(updates, "update", "updates")
        ));
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences.join(" ")
}

/// The freeze or the stall of the hold's worker that outlasted the lease: words and length. None if it does not suffice
/// as a cause: a short stall may come just then by chance.
fn frozen(timeline: &Timeline, hold: &Hold, suffices: impl Fn(Cause) -> bool) -> Option<(&'static str, String)> {
    if early_end(hold).is_some() {
        return None;
    }
    let end = timeline.ms(hold.entitled_until());
    let covers = |(from, to): (f64, f64)| (from <= end && to >= end).then(|| seconds(to - from));
    let is_freeze = |fault: &&FaultSpan| {
        let is_kind = matches!(fault.kind, FaultKind::Pause | FaultKind::Stop);
        is_kind && fault.unproved.is_none() && suffices(Cause::Fault(fault.kind))
    };
    let node = hold.process.node();
    let paused = (timeline.faults.iter().filter(is_freeze).filter(|fault| fault.node == node))
        .find_map(|fault| covers(fault_span(timeline, fault)?));
    let stalled = (timeline.stalls.iter())
        .filter(|stall| stall.process == hold.process && suffices(Cause::Stall))
        .find_map(|stall| covers((timeline.ms(stall.from), timeline.ms(stall.to))));
    paused.map(|lasted| ("was frozen", lasted)).or(stalled.map(|lasted| ("did not run", lasted)))
}

/// One or two sentences on the two holders of a lease overlap.
fn two_leases(window: &Window, holds: [Option<&Hold>; 2], names: [&str; 2]) -> String {
    const SHORT: Duration = Duration::from_millis(1);
    let [first, second] = names;
    if window.overlap_ms >= SHORT.as_secs_f64() * 1e3 {
        return format!("{first} and {second} both had a valid lease of the lock for {}.", seconds(window.overlap_ms));
    }
    // The hold that was acquired last may have ended as it began.
    let last = match holds {
        [Some(first), Some(second)] if first.acquired >= second.acquired => 0,
        _ => 1,
    };
    let (own, other, hold) = (names[last], names[1 - last], holds[last]);
    let is_short = |end: Stamp| hold.is_some_and(|hold| end.since(hold.acquired) < SHORT);
    if window.overlap_ms > 0.0 && !hold.is_some_and(|hold| is_short(hold.entitled_until())) {
        return format!("{first} and {second} both had a valid lease of the lock for less than 1 ms.");
    }
    let end = match hold.and_then(|hold| hold.killed).is_some_and(is_short) {
        true => format!("{own} was killed at once"),
        false => format!("The hold of {own} ended at once"),
    };
    format!("{own} got the lock while {other} had a valid lease of it. {end}.")
}

/// The faults of one kind near a window, in words: "paused worker-1". None if the window has no such fault near it.
fn did(timeline: &Timeline, window: &WindowSpan, kind: &str) -> Option<String> {
    let kind = FaultKind::ALL.into_iter().find(|known| known.name() == kind)?;
    let (from, to) = window.story_ms;
    let is_near = |fault: &&FaultSpan| {
        let is_on = fault_span(timeline, fault).is_some_and(|span| span.1 >= from && span.0 <= to);
        fault.kind == kind && is_on && !is_other_worker(timeline, window, &fault.node)
    };
    let mut nodes: Vec<&str> = timeline.faults.iter().filter(is_near).map(|fault| fault.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let (last, others) = nodes.split_last()?;
    let all = if others.is_empty() { (*last).to_owned() } else { format!("{} and {last}", others.join(", ")) };
    Some(match kind {
        FaultKind::Amnesia => {
            format!("restarted {all} without {} data", if others.is_empty() { "its" } else { "their" })
        }
        kind => format!("{} {all}", kind.past_tense()),
    })
}

/// One sentence on the cause of a window.
fn cause(timeline: &Timeline, index: usize) -> String {
    let Some(window) = timeline.windows.get(index) else { return String::new() };
    // Each set of causes suffices; the causes of one set explain the window only together.
    let mut causes: Vec<&str> = window.causes.split(", ").next().unwrap_or_default().split('+').collect();
    causes.sort_unstable();
    // A cause occurs twice if two faults of its kind are needed.
    causes.dedup();
    let faults: Option<Vec<String>> = causes.iter().map(|kind| did(timeline, window, kind)).collect();
    if let Some(faults) = faults {
        return format!("The cause: the run {}.", faults.join(" and "));
    }
    match causes.as_slice() {
        ["unexplained"] => "Nothing in the record explains why: the lock itself may be wrong.".to_owned(),
        ["overclaim"] => {
            "The cause: the client relied on the lock for longer than the service had promised.".to_owned()
        }
        ["overrun"] => "The cause: the work took longer than the lease.".to_owned(),
        _ => format!("The cause: {}.", window.causes),
    }
}

/// One sentence on the decision of the fence about the old holder's write in a window.
fn fence(timeline: &Timeline, stale: &Hold, index: usize) -> Option<String> {
    let from = timeline.windows.get(index)?.from_ms;
    let is_old_write = |act: &&Act| act.kind == RequestKind::Write && is_past_its_hold(timeline, stale, act, from);
    let act = stale.acts.iter().find(is_old_write)?;
    let of = |arm: Arm| act.decisions.iter().find(|decision| decision.arm == arm);
    let fence = of(Arm::Writes).or(of(Arm::Reads))?;
    // A strict fence refuses the second write of a hold, too.
    let is_older = fence.seen.zip(act.token).is_some_and(|(seen, own)| seen > own);
    Some(match (fence.admitted, is_older) {
        (false, true) => "The fence refused this write, because it had seen a newer token.".to_owned(),
        (false, false) => "The fence refused this write.".to_owned(),
        (true, _) => "The fence admitted this write.".to_owned(),
    })
}

#[cfg(test)]
mod tests;
