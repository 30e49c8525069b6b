//! The summary: the verdict table, the stories, the measures.

use std::{fmt::Write, path::Path};

use checker::{DataVerdict, FenceVerdict, LockVerdict, Property, ResourceVerdict, Verdict, Verdicts, Window};
use history::{FaultKind, NodeName, Plan, Target, When};

use crate::{expect::Comparison, judge::Judged};

/// Times of faults that the heading names one by one.
const TIMES_SHOWN: usize = 3;
/// Stories that are told in full; the others are in `verdict.json`.
const STORIES: usize = 3;

/// `redlock · pause, random, of the holder · lease 2s · 5 workers · 30s · seed 42 · docker, redis 7.0.15`, and where the run is.
pub fn heading(plan: &Plan, versions: &str, dir: &Path) -> String {
    let lock = match plan.tokens {
        history::Tokens::TwoPhase | history::Tokens::Counter => plan.backend.clone(),
        other => format!("{}, tokens {other}", plan.backend),
    };
    let mut extras = String::new();
    if plan.workload.client == history::ClientKind::Checking {
        extras += " · checking clients";
    }
    if let Some(renew) = plan.workload.renew {
        let _ = write!(extras, " · renewed every {}", humantime::format_duration(renew));
    }
    format!(
        "{lock} · {} · lease {}{extras} · {} workers · {} · seed {} · {}, {versions} · {}",
        faults(plan),
        humantime::format_duration(plan.lease),
        plan.workload.workers,
        humantime::format_duration(plan.time),
        plan.seed,
        plan.cluster.name(),
        dir.display()
    )
}

/// `redis 7.0.15`, or each version where they differ.
pub fn versions(servers: &[(NodeName, String)]) -> String {
    let mut versions: Vec<&str> = servers.iter().map(|(_, v)| v.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let kind = servers.first().and_then(|(node, _)| node.as_str().split('-').next()).unwrap_or_default();
    match versions.as_slice() {
        [] => "no server answered".into(),
        _ => format!("{kind} {}", versions.join(" and ")),
    }
}

fn faults(plan: &Plan) -> String {
    if plan.schedule.is_empty() {
        return "no faults".into();
    }
    let kinds: Vec<_> = plan.kinds().into_iter().map(FaultKind::name).collect();
    let mut when = Vec::new();
    let timed = plan.schedule.iter().filter(|step| matches!(step.when, When::At(_))).count();
    for step in &plan.schedule {
        let how = match step.when {
            When::AfterHeal(_) => "random".to_owned(),
            When::At(_) if timed > TIMES_SHOWN => format!("timed at {timed} moments"),
            When::At(at) => format!("timed at {}", humantime::format_duration(at)),
            When::Healed(_) => "one after the other".to_owned(),
            When::AtPoint(point) => format!("placed {point}"),
            When::WhileWaits(wait) => match plan.wait(wait) {
                Some(wait) => format!("placed while {} waits {}", wait.worker, wait.point),
                None => "placed".to_owned(),
            },
        };
        if !when.contains(&how) {
            when.push(how);
        }
    }
    let mut whom: Vec<&str> = plan
        .schedule
        .iter()
        .map(|step| match &step.target {
            Target::Holder => "the holder",
            Target::Leader => "the leader",
            Target::Node(node) => node.as_str(),
        })
        .collect();
    whom.sort_unstable();
    whom.dedup();
    format!("{}, {}, of {}", kinds.join(" and "), when.join(" and "), whom.join(", "))
}

/// Everything that is printed after a run.
pub fn summary(judged: &Judged, compared: &Comparison) -> String {
    let verdicts = &judged.verdicts;
    let mut out = String::new();
    for reason in &verdicts.reasons {
        let _ = writeln!(out, "  not judged to the end: {reason}");
    }
    table(&mut out, verdicts);
    notes(&mut out, verdicts);
    if let Some(lock) = verdicts.lock() {
        stories(&mut out, lock);
    }
    out.push('\n');
    out += &judged.measures.lines(judged.plan.time);
    facts(&mut out, verdicts);
    let _ = writeln!(out, "\n  verdict: {}", verdicts.verdict);
    match compared.as_expected {
        Some(true) => out += "  as expected\n",
        Some(false) => out += "  NOT as expected\n",
        None => {}
    }
    if compared.as_expected.is_some() {
        for miss in &compared.misses {
            let _ = writeln!(out, "    {miss}");
        }
    }
    out
}

fn table(out: &mut String, verdicts: &Verdicts) {
    let mut arm_before = "";
    for (name, property) in verdicts.properties.iter() {
        let (left, right) = name.split_once('.').unwrap_or((name, ""));
        let shown = if !right.is_empty() && left == arm_before { "" } else { left };
        arm_before = left;
        let figures = figures(property);
        let verdict = property.verdict().to_string();
        let verdict = if property.verdict() == Verdict::Violated { "VIOLATED".to_owned() } else { verdict };
        let _ = writeln!(out, "  {}", format!("{shown:<9}{right:<7}{verdict:<13} {figures}").trim_end());
    }
}

fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// What was counted of a property, in a line.
pub fn figures(property: &Property) -> String {
    match property {
        Property::Lock(lock) => lock_figures(lock),
        Property::Tokens(t) => {
            let parts = [(t.backwards, "went back"), (t.shared, "shared"), (t.missing, "missing")];
            let parts: Vec<_> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
            parts.join(", ")
        }
        Property::Fence(fence) => fence_figures(fence),
        Property::Data(data) => data_figures(data),
        Property::Resource(r) => resource_figures(r),
        Property::Release(r) if r.unsafe_releases > 0 => plural(r.unsafe_releases, "unsafe release", "unsafe releases"),
        Property::Release(r) if r.left_behind > 0 => plural(r.left_behind, "key left behind", "keys left behind"),
        Property::Release(_) => String::new(),
        Property::Liveness(l) => match l.blocked.len() as u64 {
            0 => "no holder was killed".into(),
            n => {
                let each: Vec<_> = l
                    .blocked
                    .iter()
                    .map(|b| b.blocked_ms.map_or("to the end".to_owned(), |ms| format!("{:.2} s", ms / 1e3)))
                    .collect();
                format!("{} blocked the key for {}", plural(n, "killed holder", "killed holders"), each.join(", "))
            }
        },
        Property::Activity(a) => {
            format!("{} holds by {} clients, {} attempts refused as held", a.holds, a.clients, a.refused)
        }
    }
}

fn resource_figures(resource: &ResourceVerdict) -> String {
    let mut parts = vec![plural(resource.admissions, "admission", "admissions")];
    if resource.restarts > 0 {
        parts.push(format!("{}, {} undone", plural(resource.restarts, "restart", "restarts"), resource.undone));
    }
    let wrong = [
        (resource.misordered, "out of order"),
        (resource.acknowledged_lost, "answered and lost"),
        (resource.wrong_answers, "answered wrongly"),
        (resource.applied_twice, "applied twice"),
        (resource.wrong_repeats, "repeated wrongly"),
        (resource.tokens_forgotten, "tokens forgotten"),
    ];
    parts.extend(wrong.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    parts.join(", ")
}

fn lock_figures(lock: &LockVerdict) -> String {
    let mut parts = Vec::new();
    if lock.unexplained > 0 {
        parts.push(format!("{} UNEXPLAINED", lock.unexplained));
    }
    if lock.stale_holder > 0 {
        parts.push(plural(lock.stale_holder, "stale-holder window", "stale-holder windows"));
    }
    if lock.lease_overlap > 0 {
        parts.push(plural(lock.lease_overlap, "lease-overlap window", "lease-overlap windows"));
    }
    if lock.stale_holder + lock.lease_overlap > 0 {
        parts.push(format!("longest overlap {}", seconds(lock.overlap_ms_max)));
        if lock.stale_holder > 0 {
            parts.push(format!("staleness up to {}", seconds(lock.staleness_ms_max)));
        }
        let mut causes: Vec<&str> = lock.windows.iter().flat_map(|w| w.causes.iter().map(String::as_str)).collect();
        causes.sort_unstable();
        causes.dedup();
        parts.push(format!("cause: {}", causes.join(", ")));
    }
    if !lock.dead_claims.is_empty() {
        parts.push(plural(lock.dead_claims.len() as u64, "dead claim", "dead claims"));
    }
    if lock.undecided > 0 {
        parts.push(format!("{} acts undecided", lock.undecided));
    }
    if lock.overclaims > 0 {
        parts.push(plural(lock.overclaims, "overclaim", "overclaims"));
    }
    if lock.without_key > 0 {
        parts.push(plural(lock.without_key, "grant without a key", "grants without a key"));
    }
    if parts.is_empty() { "no window".into() } else { parts.join(", ") }
}

fn fence_figures(fence: &FenceVerdict) -> String {
    let rejected = plural(fence.stale_rejected, "stale write rejected", "stale writes rejected");
    let mut text = format!("{rejected}, {} accepted", fence.stale_accepted);
    let parts = [
        (fence.unjustified, "unjustified"),
        (fence.false_rejections, "rightful writes refused"),
        (fence.undecided, "undecided"),
        (fence.repeats, "repeats refused"),
    ];
    for (n, what) in parts.iter().filter(|(n, _)| *n > 0) {
        let _ = write!(text, ", {n} {what}");
    }
    text
}

fn data_figures(data: &DataVerdict) -> String {
    let mut text = plural(data.lost_updates, "lost update", "lost updates");
    let _ = write!(text, " of {}", data.updates);
    if let Some(stale) = data.stale_accepted.filter(|n| *n > 0) {
        let _ = write!(text, "; {}", plural(stale, "stale write accepted", "stale writes accepted"));
    }
    if let Some(late) = data.late.filter(|n| *n > 0) {
        let _ = write!(text, "; {}", plural(late, "late write", "late writes"));
    }
    let parts = [(data.unjustified, "unjustified"), (data.disagreements, "where the counter disagrees")];
    for (n, what) in parts.iter().filter(|(n, _)| *n > 0) {
        let _ = write!(text, "; {n} {what}");
    }
    text
}

fn seconds(ms: f64) -> String {
    format!("{:.2} s", ms / 1e3)
}

fn notes(out: &mut String, verdicts: &Verdicts) {
    for (name, property) in verdicts.properties.iter() {
        for reason in property.reasons() {
            let _ = writeln!(out, "  {name}: {reason}");
        }
    }
    if let Some(Property::Tokens(tokens)) = verdicts.properties.get("tokens")
        && let Some(first) = tokens.faults.first()
    {
        let shown: Vec<String> = tokens.sequence.iter().map(|token| token.0.to_string()).collect();
        let _ = writeln!(out, "  tokens: of {}, in the order of acquisition: {}", first.key, shown.join(", "));
    }
    for note in verdicts.lock().map_or(&[][..], |l| &l.notes) {
        let _ = writeln!(out, "  lock: {note}");
    }
}

fn stories(out: &mut String, lock: &LockVerdict) {
    for window in lock.windows.iter().take(STORIES) {
        story(out, window);
    }
    let untold = lock.windows.len().saturating_sub(STORIES) as u64;
    if untold > 0 {
        let _ = writeln!(out, "\n  … and {}; verdict.json has them", plural(untold, "window more", "windows more"));
    }
}

/// A window as a story that a person can follow.
pub fn story(out: &mut String, window: &Window) {
    let _ = writeln!(out, "\n  {}", window.headline);
    let width = window.story.iter().map(|line| line.who.len()).max().unwrap_or(0).max(8);
    for line in &window.story {
        let _ = writeln!(out, "    {:>8.3} s  {:<width$}  {}", line.at_ms / 1e3, line.who, line.what);
    }
    let causes = window.causes.join(", ");
    let mark = if window.self_ { ", both of one client" } else { "" };
    let _ = writeln!(out, "    {}{mark}, cause: {causes}; overlap {}", window.kind, seconds(window.overlap_ms));
}

fn facts(out: &mut String, verdicts: &Verdicts) {
    let facts = &verdicts.facts;
    if facts.faults_requested > 0 {
        let _ = writeln!(
            out,
            "  faults              {} requested, {} proved, {} not proved, {} missed their target",
            facts.faults_requested, facts.faults_proved, facts.faults_unproved, facts.missed_target
        );
    }
    if let Some(after) = facts.first_window_after_ms {
        let _ = writeln!(out, "  first window        {} after the first operation", seconds(after));
    }
    match &facts.longest_stall {
        Some(stall) => {
            let _ = writeln!(out, "  longest stall       {:.0} ms, {}, planned by nobody", stall.ms, stall.process);
        }
        None => out.push_str("  longest stall       none\n"),
    }
}
