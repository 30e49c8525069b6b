//! The claim of a run in a few sentences, for readers who do not know the words of the verdicts.

use checker::{Cause, Verdict, Verdicts, Window, WindowKind};
use history::{Arm, ClientKind, FaultKind, RequestKind};

use super::{
    arms::lost_updates,
    picture::{fault_span, name},
};
use crate::timeline::{FaultSpan, Hold, Timeline, worst_first};

const KEPT: &str = "The lock service kept its promise: it gave the lock to the next client after the lease had ended.";

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
    let faults = match verdicts.facts.faults_proved {
        0 => "no fault".to_owned(),
        n => plural(n, "proved fault", "proved faults"),
    };
    match verdicts.verdict {
        Verdict::Violated => format!("The run violates {}. The table below has the figures.", violated.join(", ")),
        Verdict::Upheld => format!(
            "No client used the lock after another client had taken it: {holds}, {faults}. \
             The run is no proof that the lock is safe."
        ),
        _ => format!("The run decides nothing about the lock: {holds}, {faults}. The reasons are below."),
    }
}

/// Returns the lesson of the window that the claim tells of, for readers who ask who is to blame.
pub fn lesson(verdicts: &Verdicts, client: ClientKind, worst: Option<usize>) -> Option<String> {
    let window = &verdicts.lock()?.windows[worst?];
    let is_by = |cause| window.causes.iter().any(|set| set.is(cause));
    let text = match window.kind {
        WindowKind::StaleHolder if is_by(Cause::Unexplained) => return None,
        WindowKind::StaleHolder if is_by(Cause::Overclaim) => {
            "The client is wrong here: it trusted the lock for longer than the service had promised.".to_owned()
        }
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
        WindowKind::LeaseOverlap | WindowKind::CutShort => {
            "The lock service broke its promise: it gave the lock away before the first lease had ended.".to_owned()
        }
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
            let acted = if window.writes > 0 { "wrote" } else { "read" };
            let frozen = hold(0).and_then(|hold| frozen(timeline, hold));
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
            let length = seconds(window.overlap_ms);
            sentences.push(format!("{first} and {second} both had a valid lease of the lock for {length}."));
        }
        WindowKind::CutShort => {
            let length = seconds(window.cut_ms.unwrap_or_default());
            sentences.push(format!("{second} got the lock {length} before the lease of {first} ended."));
        }
    }
    if needs_cause {
        sentences.push(cause(timeline, index));
    }
    sentences.extend(hold(0).and_then(|hold| fence(timeline, hold, index)));
    if let Some((lost, updates)) = lost_updates(verdicts, Arm::Off) {
        sentences.push(format!(
            "The same requests also went to a copy of the resource without a fence: it lost {lost} of {}.",
            plural(updates, "update", "updates")
        ));
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences.join(" ")
}

/// The freeze or the stall of the hold's worker that outlasted the entitlement: words and length.
fn frozen(timeline: &Timeline, hold: &Hold) -> Option<(&'static str, String)> {
    let end = timeline.ms(hold.entitled_until());
    let covers = |(from, to): (f64, f64)| (from <= end && to >= end).then(|| seconds(to - from));
    let is_freeze = |fault: &&FaultSpan| matches!(fault.kind, FaultKind::Pause | FaultKind::Stop);
    let node = hold.process.node();
    let paused = (timeline.faults.iter().filter(is_freeze).filter(|fault| fault.node == node))
        .find_map(|fault| covers(fault_span(timeline, fault)?));
    let stalled = (timeline.stalls.iter().filter(|stall| stall.process == hold.process))
        .find_map(|stall| covers((timeline.ms(stall.from), timeline.ms(stall.to))));
    paused.map(|lasted| ("was frozen", lasted)).or(stalled.map(|lasted| ("did not run", lasted)))
}

/// One sentence on the cause of a window.
fn cause(timeline: &Timeline, index: usize) -> String {
    let Some(window) = timeline.windows.get(index) else { return String::new() };
    let causes: Vec<&str> = window.causes.split([',', '+', ' ']).filter(|cause| !cause.is_empty()).collect();
    let (from, to) = window.story_ms;
    for kind in &causes {
        let is_near = |fault: &&FaultSpan| {
            fault.kind.name() == *kind && fault_span(timeline, fault).is_some_and(|span| span.1 >= from && span.0 <= to)
        };
        let mut nodes: Vec<String> =
            timeline.faults.iter().filter(is_near).map(|fault| fault.node.to_string()).collect();
        nodes.sort();
        nodes.dedup();
        if let Some(fault) = timeline.faults.iter().find(|fault| fault.kind.name() == *kind)
            && !nodes.is_empty()
        {
            return format!("The cause: the run {} {}.", fault.kind.past_tense(), nodes.join(", "));
        }
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
    let is_old_write = |act: &&crate::timeline::Act| act.kind == RequestKind::Write && timeline.ms(act.at) >= from;
    let act = stale.acts.iter().find(is_old_write)?;
    let of = |arm: Arm| act.decisions.iter().find(|decision| decision.arm == arm);
    let fence = of(Arm::Writes).or(of(Arm::Reads))?;
    Some(match fence.admitted {
        false => "The fence refused this write, because it had seen a newer token.".to_owned(),
        true => "The fence admitted this write.".to_owned(),
    })
}
