//! The summary: the verdict table, the stories, the measures.

use std::{fmt::Write, path::Path};

use checker::{Story, Verdict, Verdicts};
use history::{FaultKind, NodeName, Plan, Target, When};

use super::terminal::in_a_line;
use crate::{drawn::random_times, expect::Comparison, judge::Judged};

/// The most times of faults that the heading names one by one.
const TIMES_SHOWN: usize = 3;
/// Columns of a story.
const WIDTH: usize = 116;
/// The least columns of what happened in a story, beside a long name.
const EVENT_LEAST: usize = 20;
/// The most stories that are printed; `verdict.json` contains all.
const STORIES: usize = 3;

/// `redlock · pause faults on the lock holder at random times · lease 2s · 5 workers · 30s · seed 42 · docker, redis
/// 7.0.15`, and where the run is.
pub fn heading(plan: &Plan, versions: &str, dir: &Path) -> String {
    format!("{} · {}", described(plan, versions), in_a_line(&dir.display().to_string()))
}

/// The heading without the run's directory.
pub fn described(plan: &Plan, versions: &str) -> String {
    let (lock, lease, length) = parts(plan);
    let (faults, cluster, seed) = (faults(plan), cluster(plan), plan.seed);
    in_a_line(&format!("{lock} · {faults} · {lease} · {length} · seed {seed} · {cluster}, {versions}")).into_owned()
}

/// The heading without all that differs between runs of one scenario: the seed, and the nodes that it draws.
pub fn scenario(plan: &Plan) -> String {
    let (lock, lease, length) = parts(plan);
    let kinds: Vec<_> = plan.kinds().into_iter().map(FaultKind::name).collect();
    let faults = match &kinds[..] {
        [] => "no faults".to_owned(),
        kinds => format!("{} {}", kinds.join(" and "), times(plan).join(" and ")),
    };
    format!("{lock} · {faults} · {lease} · {length} · {}", cluster(plan))
}

/// The cluster: real servers of the run or of the user, or models.
fn cluster(plan: &Plan) -> String {
    let own = if plan.has_own_servers() { ", servers that existed before" } else { "" };
    format!("{}{own}", plan.cluster.name())
}

/// The lock; the lease and the kind of client; the workers and the length.
fn parts(plan: &Plan) -> (String, String, String) {
    let lock = match plan.tokens {
        history::Tokens::TwoPhase | history::Tokens::Counter => plan.lock_name(),
        other => format!("{}, tokens {other}", plan.lock_name()),
    };
    let mut extras = String::new();
    if plan.workload.client == history::ClientKind::Checking {
        extras += " · checking clients";
    }
    if let Some(renew) = plan.workload.renew {
        let _ = write!(extras, " · renewed every {}", humantime::format_duration(renew));
    }
    if !plan.resource.is_service() {
        let _ = write!(extras, " · resource {}", plan.resource.name());
    }
    let workers = plural(plan.workload.workers.into(), "worker", "workers");
    (
        lock,
        format!("lease {}{extras}", humantime::format_duration(plan.lease)),
        format!("{workers} · {}", humantime::format_duration(plan.time)),
    )
}

/// `redis 7.0.15`, or each version where they differ.
pub fn versions(servers: &[(NodeName, String)]) -> String {
    let mut versions: Vec<&str> = servers.iter().map(|(_, v)| v.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let kind = servers.first().and_then(|(node, _)| node.as_str().split('-').next()).unwrap_or_default();
    match versions.as_slice() {
        [] => "servers not named".into(),
        _ => format!("{kind} {}", versions.join(" and ")),
    }
}

fn faults(plan: &Plan) -> String {
    if plan.schedule.is_empty() {
        return "no faults".into();
    }
    let kinds: Vec<_> = plan.kinds().into_iter().map(FaultKind::name).collect();
    let mut whom: Vec<&str> = plan
        .schedule
        .iter()
        .map(|step| match &step.target {
            Target::Holder => "the lock holder",
            Target::Leader => "the leader",
            Target::Node(node) => node.as_str(),
        })
        .collect();
    whom.sort_unstable();
    whom.dedup();
    format!("{} faults on {} {}", kinds.join(" and "), whom.join(", "), times(plan).join(" and "))
}

/// The times of the faults in words, each once.
fn times(plan: &Plan) -> Vec<String> {
    let mut when = Vec::new();
    let random = random_times(plan);
    let steps = || plan.schedule.iter().zip(random.iter().copied());
    let timed = steps().filter(|(step, is_random)| matches!(step.when, When::At(_)) && !is_random).count();
    for (step, is_random) in steps() {
        let how = match step.when {
            When::AfterHeal(_) => "at random times".to_owned(),
            When::At(_) if is_random => "at random times".to_owned(),
            When::At(_) if timed > TIMES_SHOWN => format!("at {timed} set times"),
            When::At(at) => format!("at {}", humantime::format_duration(at)),
            When::Healed(_) => "one after the other".to_owned(),
            When::AtPoint(point) => format!("at the point {point}"),
            When::WhileWaits(wait) => match plan.wait(wait) {
                Some(wait) => format!("while {} waits {}", wait.worker, wait.point),
                None => "during a wait".to_owned(),
            },
        };
        if !when.contains(&how) {
            when.push(how);
        }
    }
    when
}

/// The whole summary that is printed after a run.
pub fn summary(judged: &Judged, compared: &Comparison) -> String {
    let verdicts = &judged.verdicts;
    let mut out = String::new();
    for reason in &verdicts.reasons {
        let _ = writeln!(out, "  not judged to the end: {}", in_a_line(reason));
    }
    table(&mut out, verdicts, compared);
    notes(verdicts).iter().for_each(|line| _ = writeln!(out, "  {line}"));
    stories(&mut out, verdicts);
    let _ = writeln!(
        out,
        "\n  (all times count from the start of the run's first process; `harness explain WORD` defines a word)"
    );
    out.push('\n');
    out += &figures(judged);
    let _ = writeln!(out, "\n  verdict: {}", verdicts.verdict);
    match compared.as_expected {
        Some(true) => out += "  as expected\n",
        Some(false) => out += "  NOT as expected\n",
        None => {}
    }
    if compared.as_expected.is_some() {
        for miss in &compared.misses {
            let _ = writeln!(out, "    {}", in_a_line(&miss.to_string()));
        }
    }
    out
}

/// One property in the table of verdicts.
pub struct Row<'a> {
    /// The name: `lock`, `off.data`.
    pub name: &'a str,
    /// The verdict as a word.
    pub verdict: &'static str,
    /// The figures in one line.
    pub figures: String,
}

/// Returns the table of verdicts.
pub fn rows<'a>(verdicts: &'a Verdicts, compared: &Comparison) -> Vec<Row<'a>> {
    let row = |(name, property): (&'a str, &'a checker::Property)| {
        let report = property.report();
        let mut figures = in_a_line(&report.figures()).into_owned();
        if property.verdict() == Verdict::Violated && compared.expects(name, Verdict::Violated) {
            figures += " (as expected)";
        }
        Row { name, verdict: report.shown_verdict(), figures }
    };
    verdicts.properties.iter().map(row).collect()
}

fn table(out: &mut String, verdicts: &Verdicts, compared: &Comparison) {
    let mut arm_before = "";
    for Row { name, verdict, figures } in rows(verdicts, compared) {
        let (left, right) = name.split_once('.').unwrap_or((name, ""));
        let shown = if !right.is_empty() && left == arm_before { "" } else { left };
        arm_before = left;
        let _ = writeln!(out, "  {}", format!("{shown:<9}{right:<7}{verdict:<13} {figures}").trim_end());
    }
}

fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn seconds(ms: f64) -> String {
    format!("{:.2} s", ms / 1e3)
}

/// Returns the lines below the table: why a verdict is inconclusive, and what its figures do not say.
pub fn notes(verdicts: &Verdicts) -> Vec<String> {
    let lines = |(name, property): (&str, &checker::Property)| {
        let report = property.report();
        let notes = report.notes();
        report.reasons().iter().chain(&notes).map(|line| format!("{name}: {}", in_a_line(line))).collect::<Vec<_>>()
    };
    verdicts.properties.iter().flat_map(lines).collect()
}

/// Returns the stories of all violations.
pub fn all_stories(verdicts: &Verdicts) -> Vec<Story> {
    verdicts.properties.iter().flat_map(|(_, property)| property.report().stories()).collect()
}

/// Names windows whose stories a report leaves out, with their verb: `2 more windows are`.
pub fn left_out(windows: usize) -> String {
    plural(windows as u64, "more window is", "more windows are")
}

fn stories(out: &mut String, verdicts: &Verdicts) {
    let all = all_stories(verdicts);
    for told in all.iter().take(STORIES) {
        story(out, told);
    }
    let untold = all.len().saturating_sub(STORIES) as u64;
    if untold > 0 {
        let _ = writeln!(out, "\n  … and {}; verdict.json has them", plural(untold, "window more", "windows more"));
    }
}

/// A violation as a story that a person can follow.
pub fn story(out: &mut String, story: &Story) {
    let _ = writeln!(out, "\n  {}", in_a_line(&story.headline));
    let width = story.lines.iter().map(|line| in_a_line(&line.who).len()).max().unwrap_or(0).clamp(8, WIDTH);
    for line in &story.lines {
        let indent = 4 + 8 + 4 + width + 2;
        let columns = WIDTH.saturating_sub(indent).max(EVENT_LEAST);
        let what = wrapped(&in_a_line(&line.what), columns).join(&format!("\n{:indent$}  ", ""));
        let _ = writeln!(out, "    {:>8.3} s  {:<width$}  {what}", line.at_ms / 1e3, in_a_line(&line.who));
    }
    let _ = writeln!(out, "    {}", wrapped(&in_a_line(&story.closing), WIDTH - 4).join("\n      "));
}

/// The text in lines of at most `width` columns, broken between parts (` · `) if possible, otherwise between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for part in text.split_inclusive(" · ") {
        let fits = |word: &str, lines: &mut Vec<String>| {
            let last = lines.last_mut().expect("there is a line from the start");
            let is_fit = last.is_empty() || (last.chars().count() + word.trim_end().chars().count()) <= width;
            if is_fit {
                last.push_str(word);
            }
            is_fit
        };
        if part.trim_end().chars().count() <= width {
            if !fits(part, &mut lines) {
                lines.push(part.to_owned());
            }
            continue;
        }
        for word in part.split_inclusive(' ') {
            if !fits(word, &mut lines) {
                lines.push(word.to_owned());
            }
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Returns the measures and the facts of a run, a line each.
pub fn figures(judged: &Judged) -> String {
    let mut out = judged.measures.lines(judged.plan.time);
    facts(&mut out, &judged.verdicts);
    out
}

fn facts(out: &mut String, verdicts: &Verdicts) {
    let facts = &verdicts.facts;
    if facts.faults_requested > 0 {
        let mut parts = Vec::new();
        // A fault that missed its hold was proved too: it was on, but too late.
        let missed = match facts.missed_target {
            0 => String::new(),
            1 => " (1 of them after the client had released the lock)".to_owned(),
            n => format!(" ({n} of them after the client had released the lock)"),
        };
        if facts.faults_proved > 0 {
            parts.push(format!("{} proved{missed}", facts.faults_proved));
        }
        if facts.faults_unproved > 0 {
            parts.push(format!("{} not proved", facts.faults_unproved));
        }
        // The record ends between the request and the proof.
        let open = facts.faults_requested.saturating_sub(facts.faults_proved + facts.faults_unproved);
        if open > 0 {
            parts.push(format!("{open} without a result"));
        }
        let _ = writeln!(out, "  faults              {} requested: {}", facts.faults_requested, parts.join(", "));
    }
    for fault in &facts.unplanned_faults {
        let over = fault.to_ms.map_or("until the end".to_owned(), |to| format!("until {}", seconds(to)));
        let (kind, node) = (fault.kind, in_a_line(fault.node.as_str()));
        let _ = writeln!(out, "  unplanned fault     {kind} of {node}, from {} {over}", seconds(fault.from_ms));
    }
    if let (Some(first), Some(after)) = (facts.first_operation_ms, facts.first_window_after_ms) {
        let (at, first) = (seconds(first + after), seconds(first));
        let _ = writeln!(out, "  first window        at {at} (first attempt at {first})");
    }
    match &facts.longest_stall {
        Some(stall) => {
            let process = in_a_line(stall.process.as_str());
            let _ = writeln!(out, "  longest stall       {:.0} ms, {process}, unplanned", stall.ms);
        }
        None => out.push_str("  longest stall       none\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{drawn::tests::planned, expect::compare, judge::judge};

    fn judged() -> Judged {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        judge(history.as_ref()).unwrap()
    }

    fn told(expectation: Option<&str>) -> String {
        let judged = judged();
        let expectation = expectation.map(|text| text.parse().unwrap());
        let compared = compare(expectation.as_ref(), &judged.verdicts);
        summary(&judged, &compared)
    }

    #[test]
    fn no_line_of_a_summary_is_wider_than_a_story() {
        let text = told(None);
        for line in text.lines().filter(|line| line.starts_with("    ")) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn no_name_of_a_record_adds_a_line_to_the_summary() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let text = text.replace("\"k0\"", r#""k0\n  verdict: upheld\u202e""#);
        let dir = tempfile::tempdir().unwrap();
        let history = dir.path().join("history.jsonl");
        std::fs::write(&history, text).unwrap();
        let judged = judge(&history).unwrap();
        let told = summary(&judged, &compare(None, &judged.verdicts));
        let with = |start: &str| told.lines().filter(move |line| line.starts_with(start)).collect::<Vec<_>>();
        assert_eq!(with("  verdict:"), [format!("  verdict: {}", judged.verdicts.verdict)], "{told}");
        assert!(told.contains(r"k0\u000a  verdict: upheld\u202e"), "{told}");
        let described = described(&Plan { backend: "redis\n  verdict: upheld".into(), ..judged.plan }, "redis 7.0.15");
        assert_eq!(described.lines().count(), 1, "{described}");
    }

    #[test]
    fn one_window_that_is_left_out_is_not_called_several() {
        assert_eq!([1, 2].map(left_out), ["1 more window is", "2 more windows are"]);
    }

    #[test]
    fn one_worker_is_not_called_several() {
        let mut plan = judged().plan;
        assert!(described(&plan, "").contains(" · 3 workers · "), "{}", described(&plan, ""));
        plan.workload.workers = 1;
        assert!(described(&plan, "").contains(" · 1 worker · "), "{}", described(&plan, ""));
    }

    #[test]
    fn the_times_of_random_faults_are_called_random() {
        let of = |words| described(&planned(words, 1), "redis 7.0.15");
        assert!(of("amnesia").contains(" at random times · "), "{}", of("amnesia"));
        assert!(of("amnesia:redis-1@5s").contains("amnesia faults on redis-1 at 5s"), "{}", of("amnesia:redis-1@5s"));
        let mixed = of("amnesia:redis-1@5s,partition:redis-2");
        assert!(mixed.contains(" at 5s and at random times"), "{mixed}");
    }

    #[test]
    fn a_fault_whose_proof_is_not_on_record_has_no_result() {
        let mut verdicts = judged().verdicts;
        for (requested, proved, unproved, told) in [
            (1, 0, 0, "1 requested: 1 without a result\n"),
            (3, 1, 0, "3 requested: 1 proved, 2 without a result\n"),
            (1, 1, 0, "1 requested: 1 proved\n"),
            (2, 1, 1, "2 requested: 1 proved, 1 not proved\n"),
            (4, 1, 1, "4 requested: 1 proved, 1 not proved, 2 without a result\n"),
        ] {
            (verdicts.facts.faults_requested, verdicts.facts.faults_proved) = (requested, proved);
            verdicts.facts.faults_unproved = unproved;
            let mut out = String::new();
            facts(&mut out, &verdicts);
            assert!(out.contains(told), "{out}");
        }
    }

    #[test]
    fn a_story_about_a_long_name_has_all_its_words() {
        let verdicts = judged().verdicts;
        for length in [60, 120, 100_000] {
            let mut told = all_stories(&verdicts).swap_remove(0);
            told.lines.iter_mut().for_each(|line| line.who = "n".repeat(length));
            let mut out = String::new();
            story(&mut out, &told);
            let shown: Vec<&str> = out.split_whitespace().collect();
            let words = told.lines.iter().flat_map(|line| line.what.split_whitespace());
            assert!(words.clone().count() > 10 && words.clone().all(|word| shown.contains(&word)), "{out}");
        }
    }

    #[test]
    fn a_summary_says_which_violation_was_expected() {
        assert!(!told(None).contains("(as expected)"));
        let lock = |text: String| text.lines().find(|line| line.starts_with("  lock  ")).unwrap().to_owned();
        assert!(lock(told(Some("lock=violated"))).ends_with("(as expected)"));
    }

    #[test]
    fn text_is_wrapped_between_parts_and_otherwise_between_words() {
        assert_eq!(wrapped("one two · three four · five", 14), ["one two ·", "three four ·", "five"]);
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("short", 8), ["short"]);
    }
}
