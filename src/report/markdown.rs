//! `report.md`: the summary as Markdown, for a pull request or an issue.

use std::fmt::Write;

use checker::Story;
use clap::Parser;
use history::{MadeBy, Plan, Target};

use super::{
    summary::{all_stories, described, figures, left_out, notes, rows, versions},
    terminal::{code_of, is_command},
};
use crate::{
    cli::{Cli, Command},
    drawn::random_times,
    expect::Comparison,
    judge::Judged,
};

/// The most stories in the file. GitHub takes 65,536 characters in a comment, and a story has about 1,000.
const STORIES: usize = 20;

/// Returns the report of a run, as GitHub's Markdown.
pub fn markdown(judged: &Judged, compared: &Comparison) -> String {
    let (plan, verdicts) = (&judged.plan, &judged.verdicts);
    let mut out = format!("## {}: {}\n\n", text(&title(plan)), verdicts.verdict);
    let _ = writeln!(out, "{}\n", text(&described(plan, &versions(&judged.servers))));
    if let Some(placement) = placement(plan) {
        let _ = writeln!(out, "{placement}\n");
    }
    match compared.as_expected {
        Some(true) => out += "As expected.\n\n",
        Some(false) => out += "**Not as expected**:\n\n",
        None => {}
    }
    if compared.as_expected.is_some() {
        out += &list(compared.misses.iter().map(|miss| miss.text.as_str()));
    }
    let commands = again(judged);
    if !commands.is_empty() {
        let _ = writeln!(out, "To repeat the run:\n\n{}", code("sh", &commands));
    }
    let reasons: Vec<String> =
        verdicts.reasons.iter().map(|reason| format!("not judged to the end: {reason}")).collect();
    out += "| property | verdict | figures |\n| --- | --- | --- |\n";
    for row in rows(verdicts, compared) {
        let _ = writeln!(out, "| `{}` | {} | {} |", row.name, row.verdict, text(&row.figures));
    }
    out.push('\n');
    out += &list(reasons.iter().chain(&notes(verdicts)).map(String::as_str));
    let stories = all_stories(verdicts);
    stories.iter().take(STORIES).for_each(|told| story(&mut out, told));
    if stories.len() > STORIES {
        let _ = writeln!(out, "{} in `verdict.json`.\n", left_out(stories.len() - STORIES));
    }
    out += "All times count from the start of the run's first process. `harness explain WORD` defines a word.\n\n";
    out += &folded("Latencies, rates and faults", &code("text", &figures(judged)));
    if let Some(made_by) = &judged.made_by {
        let mut table = "| | |\n| --- | --- |\n".to_owned();
        for (name, value) in made_by.lines() {
            let _ = writeln!(table, "| {name} | {} |", text(&value));
        }
        out += &folded("How the run was made", &table);
    }
    out
}

/// Returns the backend and the faults: `redlock, pause`.
pub fn title(plan: &Plan) -> String {
    let kinds: Vec<_> = plan.kinds().into_iter().map(|kind| kind.name()).collect();
    let kinds = if kinds.is_empty() { "no faults".to_owned() } else { kinds.join(" and ") };
    format!("{}, {kinds}", plan.lock_name())
}

/// Says whether the faults of the plan are placed or random, and what that shows. None without faults.
pub fn placement(plan: &Plan) -> Option<&'static str> {
    let random = random_times(plan).into_iter().filter(|is_random| *is_random).count();
    match (plan.schedule.len(), random) {
        (0, _) => None,
        (_, 0) => Some("The faults were **placed** at exact moments: the run shows what is possible, not how often."),
        (all, random) if all == random && plan.schedule.iter().all(|step| step.target == Target::Holder) => Some(
            "The faults came at **random** times, each on the client that had the lock then, or on the next one to get \
             it: the run is one sample of how often this happens.",
        ),
        (all, random) if all == random => {
            Some("The faults came at **random** times: the run is one sample of how often this happens.")
        }
        _ => Some("Some faults were **placed** at exact moments, others came at **random** times."),
    }
}

/// Returns the commands that repeat the run: from its plan, and by the flags, the seed and the cluster of the first
/// run. They do not name the directory of the run, so that a report is the same wherever the directory is. Empty
/// for the record of another program, or of an older harness: nothing says that its plan lies beside the report.
pub fn again(judged: &Judged) -> String {
    let Some(made_by) = &judged.made_by else { return String::new() };
    let mut commands = "harness run plan.toml    # in the directory of this report".to_owned();
    if is_of_flags(&made_by.command) {
        let has_seed = made_by.command.iter().any(|word| word == "--seed" || word.starts_with("--seed="));
        let seed = if has_seed { String::new() } else { format!(" --seed {}", made_by.seed) };
        // The first word is the path of the program.
        let command = scenario_words(&made_by.command).split_off(1);
        let flags = MadeBy { command, ..made_by.clone() }.command_line();
        // Without the flag, the cluster depends on the machine, and on flags that are left out here.
        let _ = write!(commands, "\nharness {flags}{seed} --cluster {}", judged.plan.cluster.name());
    }
    commands
}

/// Returns whether the command is a run of the scenario that its flags describe, not of a plan.
fn is_of_flags(command: &[String]) -> bool {
    match Cli::try_parse_from(command) {
        Ok(Cli { command: Command::Run(args) }) => args.plan.is_none(),
        // The runs of other commands; and flags that this version does not know, so that it cannot repeat the run.
        _ => false,
    }
}

/// Leaves out the flags that do not change a run, and `--cluster`.
fn scenario_words(command: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    let mut left = command.iter();
    while let Some(word) = left.next() {
        let is_flag = |flag: &&str| word == *flag || word.strip_prefix(*flag).is_some_and(|rest| rest.starts_with('='));
        match ["--expect", "--runs", "--format", "--cluster", "--repeat"].into_iter().find(is_flag) {
            Some(flag) if word == flag => drop(left.next()),
            Some(_) => {}
            None if word == "--keep" => {}
            None => words.push(word.clone()),
        }
    }
    words
}

fn story(out: &mut String, story: &Story) {
    let mut table = "| time | who | event |\n| ---: | --- | --- |\n".to_owned();
    for line in &story.lines {
        let _ = writeln!(table, "| {:.3} s | {} | {} |", line.at_ms / 1e3, text(&line.who), text(&line.what));
    }
    let _ = writeln!(table, "\n{}", text(&story.closing));
    *out += &folded(&element(&story.headline), &table);
}

fn folded(summary: &str, content: &str) -> String {
    format!("<details><summary>{summary}</summary>\n\n{}\n\n</details>\n\n", content.trim_end())
}

fn list<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let list: String = lines.map(|line| format!("- {}\n", text(line))).collect();
    if list.is_empty() { list } else { list + "\n" }
}

/// A block of code, by indentation if the text contains a fence.
fn code(language: &str, text: &str) -> String {
    let text = text.trim_end();
    match text.contains("```") {
        true => text.lines().map(|line| format!("    {line}\n")).collect(),
        false => format!("```{language}\n{text}\n```\n"),
    }
}

/// Text from a run, so that none of it is markup: keys and errors may contain anything.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in element(text).chars() {
        if matches!(c, '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '~') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Text from a run in an element of HTML, where nothing is Markdown.
fn element(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '\n' | '\r' => out.push(' '),
            c if is_command(c) => out += &code_of(c),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{drawn::tests::planned, expect::compare, judge::judge, made_by::Making, plan_file::PlanFile};

    /// The facts about a run of this plan.
    fn made_by(plan: &Plan) -> MadeBy {
        let file = PlanFile::new(String::new(), plan.backend.clone(), None, plan.clone());
        Making::begin(&file, "").facts().clone()
    }

    fn report(expectation: Option<&str>) -> (Judged, String) {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let mut judged = judge(history.as_ref()).unwrap();
        judged.made_by = Some(made_by(&judged.plan));
        let expectation = expectation.map(|text| text.parse().unwrap());
        let compared = compare(expectation.as_ref(), &judged.verdicts);
        let report = markdown(&judged, &compared);
        (judged, report)
    }

    #[test]
    fn every_property_is_a_row_and_every_window_a_folded_story() {
        let (judged, report) = report(None);
        let rows = report.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, judged.verdicts.properties.iter().count(), "{report}");
        let stories = report.matches("<details><summary>k0: ").count();
        assert_eq!(stories, judged.verdicts.lock().unwrap().windows.len(), "{report}");
        assert_eq!(report.matches("<details>").count(), report.matches("</details>").count());
        assert!(
            report.contains("```sh\nharness run plan.toml    # in the directory of this report\n```\n"),
            "{report}"
        );
        assert!(report.starts_with("## ") && report.lines().next().unwrap().ends_with(": violated"), "{report}");
    }

    #[test]
    fn the_record_of_another_program_has_no_commands_that_repeat_it() {
        let mut judged = report(None).0;
        judged.made_by = None;
        let report = markdown(&judged, &compare(None, &judged.verdicts));
        assert!(!report.contains("repeat") && !report.contains("plan.toml"), "{report}");
    }

    #[test]
    fn random_faults_of_servers_are_not_called_placed() {
        let of = |words| placement(&planned(words, 1)).unwrap();
        for words in ["amnesia", "partition:any-lock-node", "pause,amnesia"] {
            assert!(of(words).starts_with("The faults came at **random** times"), "{words}");
        }
        assert!(of("amnesia:redis-2@5s").contains("**placed**"));
        let mixed = of("amnesia:redis-2@5s,partition:redis-1");
        assert!(mixed.contains("**placed**") && mixed.contains("**random**"), "{mixed}");
    }

    #[test]
    fn the_command_that_repeats_a_run_has_no_flags_that_change_nothing() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let command = words("harness run --expect lock=violated --nemesis pause --runs=/tmp/x --format json --seed 7");
        assert_eq!(scenario_words(&command), words("harness run --nemesis pause --seed 7"));
        for more in ["--keep", "--repeat 5", "--repeat=5"] {
            let command = words(&format!("harness run {more} --nemesis pause --seed 7"));
            assert_eq!(scenario_words(&command), words("harness run --nemesis pause --seed 7"), "{more}");
        }
    }

    #[test]
    fn a_plan_of_any_name_is_repeated_from_the_plan_alone() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for line in ["harness run p.toml", "harness run myplan --cluster sim", "harness run --repeat 5 myplan", ""] {
            assert!(!is_of_flags(&words(line)), "{line}");
        }
        for line in ["harness run --compose own.toml", "harness run --keep --nemesis pause", "/a/harness run"] {
            assert!(is_of_flags(&words(line)), "{line}");
        }
    }

    #[test]
    fn the_command_that_repeats_a_run_names_its_cluster() {
        let mut judged = report(None).0;
        let made_by = made_by(&judged.plan);
        for words in ["--nemesis pause --expect lock=violated", "--nemesis pause --cluster auto", "--cluster=docker"] {
            let command = format!("harness run {words} --seed 7").split(' ').map(str::to_owned).collect();
            judged.made_by = Some(MadeBy { command, ..made_by.clone() });
            let commands = again(&judged);
            let name = judged.plan.cluster.name();
            assert!(commands.ends_with(&format!(" --seed 7 --cluster {name}")), "{commands}");
            assert_eq!(commands.matches("--cluster").count(), 1, "{commands}");
        }
    }

    #[test]
    fn the_command_that_repeats_a_run_names_its_seed_once() {
        let mut judged = report(None).0;
        let made_by = MadeBy { seed: 7, ..made_by(&judged.plan) };
        for (words, repeated) in [
            ("--seed 7 --nemesis pause", "--seed 7 --nemesis pause"),
            ("--seed=7 --nemesis pause", "--seed=7 --nemesis pause"),
            ("--nemesis pause --seed=7", "--nemesis pause --seed=7"),
            ("--nemesis pause", "--nemesis pause --seed 7"),
        ] {
            let command = format!("harness run {words}").split(' ').map(str::to_owned).collect();
            judged.made_by = Some(MadeBy { command, ..made_by.clone() });
            let expected = format!("harness run {repeated} --cluster {}", judged.plan.cluster.name());
            assert_eq!(again(&judged).lines().next_back(), Some(expected.as_str()));
        }
    }

    #[test]
    fn a_missed_expectation_is_named() {
        assert!(report(Some("lock=violated")).1.contains("\nAs expected.\n"));
        let (_, report) = report(Some("lock=upheld"));
        assert!(report.contains("**Not as expected**:\n\n- ") && report.contains("lock"), "{report}");
    }

    #[test]
    fn text_of_a_run_is_no_markup() {
        let shown = text("<b>`k|0`</b>\n*x*");
        assert_eq!(shown, "&lt;b&gt;\\`k\\|0\\`&lt;/b&gt; \\*x\\*");
        assert!(code("text", "a\n```\nb").starts_with("    a\n"));
        assert_eq!(text("k0\u{202e}\u{1b}"), r"k0\\u202e\\u001b");
    }

    #[test]
    fn the_headline_of_a_story_has_no_signs_of_markdown() {
        let mut told = all_stories(&report(None).0.verdicts).swap_remove(0);
        told.headline = "my_key: <worker-1> acted".to_owned();
        let mut out = String::new();
        story(&mut out, &told);
        assert!(out.starts_with("<details><summary>my_key: &lt;worker-1&gt; acted</summary>"), "{out}");
    }
}
