use std::path::{Path, PathBuf};

use checker::Figure;
use serde_json::{Value, json};

use super::*;
use crate::{
    expect::compare,
    judge::judge,
    made_by::Making,
    plan_file::PlanFile,
    timeline::{
        read,
        tests::{Sections, built, long},
    },
};

fn page(name: &str) -> (Judged, View, String) {
    let corpus = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus"));
    of(&corpus.join(format!("{name}.jsonl")))
}

fn of(history: &Path) -> (Judged, View, String) {
    let judged = judge(history).unwrap();
    let compared = compare(None, &judged.verdicts);
    let timeline = read(history, &judged.verdicts).unwrap();
    let view = view(&judged, &compared, &timeline).unwrap();
    let html = html(&judged, &compared, &timeline).unwrap();
    (judged, view, html)
}

#[test]
fn the_first_screen_tells_the_pause() {
    let (_, view, html) = page("kleppmann-pause");
    let claim = &view.claim;
    assert!(claim.starts_with("worker-1 was frozen for 5.00 s until its lease had ended, and it wrote "), "{claim}");
    assert!(claim.contains(" after worker-2 had taken the lock. The fence refused this write"), "{claim}");
    assert!(html.contains("<svg class=\"pic\"") && html.contains("Every lock with a lease allows this"));
}

/// The pause, where the second holder writes for the first time after the write of the first holder. So the fence
/// admits both.
fn pause_with_a_later_first_write() -> String {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
    let text = std::fs::read_to_string(corpus).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The write of the second holder, its decision, the answer, the release and its answer.
    let mut second: Vec<Value> = lines.drain(22..=26).collect();
    for (n, line) in second.iter_mut().enumerate() {
        line["at"] = json!(17_106_000_000_u64 + 1_000_000 * n as u64);
    }
    let decided = |number: u64, seen: Option<u64>| {
        let mut writes = json!({"arm": "writes", "admitted": true, "base": 0, "version": number, "value": 1});
        if let Some(seen) = seen {
            writes["seen"] = json!(seen);
        }
        json!([{"arm": "off", "admitted": true, "base": 0, "version": number, "value": 1}, writes])
    };
    // The write of the first holder, its decision and the answer.
    let first = lines.iter().position(|line| line["event"] == "write").unwrap();
    for (decision, number, seen) in [(&mut lines[first + 1], 3, None), (&mut second[1], 4, Some(41))] {
        (decision["n"], decision["number"], decision["arms"]) = (json!(number), json!(number), decided(number, seen));
    }
    for (answer, number, seen) in [(&mut lines[first + 2], 3, None), (&mut second[2], 4, Some(41))] {
        (answer["number"], answer["arms"]) = (json!(number), json!([["off", true, null], ["writes", true, seen]]));
    }
    let healed = lines.iter().position(|line| line["phase"] == "healed").unwrap();
    second.into_iter().enumerate().for_each(|(n, line)| lines.insert(healed + n, line));
    lines.iter_mut().enumerate().for_each(|(seq, line)| line["seq"] = json!(seq));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_window_is_drawn_until_its_stale_write_even_if_the_next_holder_writes_later() {
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("history.jsonl");
    std::fs::write(&history, pause_with_a_later_first_write()).unwrap();
    let (judged, view, html) = of(&history);
    assert_eq!(judged.verdicts.reasons, [""; 0]);
    let window = &data(&html)["windows"][0];
    assert_eq!((&window["from"], &window["to"]), (&json!(4051), &json!(7102)), "{window}");
    assert_eq!(window["story"][1], 7107, "the story ends with the write of the second holder");
    assert!(view.claim.contains("The fence admitted this write."), "{}", view.claim);
    assert!(view.picture.unwrap().contains("class=\"sent late\""));
}

#[test]
fn the_page_counts_the_windows_whose_stories_are_left_out() {
    let double = |client| Sections { client, count: 60, at: client, key: "k0" };
    let records = long(&[double(0), double(1)]);
    let (mut judged, ..) = page("kleppmann-pause");
    judged.verdicts = checker::check(records.clone(), history::Tail::Whole);
    let (compared, timeline) = (compare(None, &judged.verdicts), built(&records));
    // The story of the worst window comes first, before those that are counted.
    let left = judged.verdicts.lock().unwrap().windows.len() - 1 - STORIES;
    assert!(left > 0 && view(&judged, &compared, &timeline).unwrap().stories.len() == STORIES, "{left}");
    let html = html(&judged, &compared, &timeline).unwrap();
    assert!(html.contains(&format!("<p>{left} more windows are in verdict.json.</p>")), "{left}: {html}");
}

#[test]
fn only_a_run_of_the_harness_has_commands_that_repeat_it() {
    let (mut judged, view, html) = page("kleppmann-pause");
    assert!(view.again.is_empty() && !html.contains("Repeat"), "{html}");
    let plan = judged.plan.clone();
    let file = PlanFile::new(String::new(), plan.backend.clone(), None, plan);
    judged.made_by = Some(Making::begin(&file, "").facts().clone());
    let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
    let timeline = read(history.as_ref(), &judged.verdicts).unwrap();
    let html = super::html(&judged, &compare(None, &judged.verdicts), &timeline).unwrap();
    assert!(html.contains("<p>Repeat the run:</p>\n<pre>harness run plan.toml"), "{html}");
}

#[test]
fn the_rule_of_a_fence_tells_of_equal_tokens() {
    let (mut judged, _, html) = page("kleppmann-pause");
    let strict = "refuses a write whose token is not larger than that of an earlier write";
    let default = "had a larger token, or if a write of another hold had the same token";
    assert!(!html.contains(strict) && html.contains(default), "{html}");
    judged.plan.fence = history::Comparison::Strict;
    let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
    let timeline = read(history.as_ref(), &judged.verdicts).unwrap();
    let html = super::html(&judged, &compare(None, &judged.verdicts), &timeline).unwrap();
    assert!(html.contains(strict) && !html.contains(default), "{html}");
}

#[test]
fn the_lesson_of_an_overrun_is_a_check_or_a_renewal() {
    let lesson = page("overrun").1.lesson.unwrap();
    assert!(lesson.contains("took longer than the lease") && !lesson.contains("would not help"), "{lesson}");
    assert!(page("kleppmann-pause").1.lesson.unwrap().contains("a check would not help"));
}

#[test]
fn the_figures_are_those_of_the_verdicts() {
    for name in ["kleppmann-pause", "unsafe-release", "overrun", "given-up", "cut-short"] {
        let (judged, view, html) = page(name);
        let count = |path: &str| match judged.verdicts.lookup(path) {
            Some(Figure::Count(n)) => n as u64,
            other => panic!("{name}: {path}: {other:?}"),
        };
        for arm in &view.arms {
            let shown = serde_json::to_value(arm).unwrap();
            let arm = shown["name"].as_str().unwrap();
            assert_eq!(shown["lost"], count(&format!("{arm}.data.lost_updates")), "{name}");
            assert_eq!(shown["updates"], count(&format!("{arm}.data.updates")), "{name}");
            assert_eq!(shown["refused"], count(&format!("{arm}.data.refused")), "{name}");
            let of = if judged.verdicts.properties.get(&format!("{arm}.fence")).is_some() { "fence" } else { "data" };
            assert_eq!(shown["stale"], count(&format!("{arm}.{of}.stale_accepted")), "{name}");
        }
        let tile = |label: &str| view.tiles.iter().find(|t| t.label.contains(label)).map(|t| t.count.clone());
        assert_eq!(tile("a client got the lock"), Some(count("facts.holds").to_string()), "{name}");
        let cut = count("lock.cut_short");
        assert_eq!(tile("two holders of the lock"), Some((count("lock.windows") - cut).to_string()), "{name}");
        assert_eq!(tile("given away too early"), (cut > 0).then(|| cut.to_string()), "{name}");
        let data = data(&html);
        assert_eq!(data["windows"].as_array().unwrap().len() as u64, count("lock.windows"), "{name}");
        let rows = html.matches("<th scope=\"row\" title=").count();
        assert_eq!(rows, judged.verdicts.properties.iter().count(), "{name}");
    }
}

fn data(html: &str) -> Value {
    let data = html.split("type=\"application/json\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn a_promise_that_was_cut_short_is_not_called_two_holders() {
    let cut_short = ("cut-short", "cut-short", "given away too early");
    for (name, kind, told) in [cut_short, ("kleppmann-pause", "stale-holder", "two holders")] {
        let (_, _, html) = page(name);
        let window = &data(&html)["windows"][0];
        assert_eq!((&window["kind"], &window["told"]), (&json!(kind), &json!(told)), "{window}");
    }
    assert!(SCRIPT.contains("[w.told, ") && !SCRIPT.contains("[\"two holders\""));
}

#[test]
fn the_axis_of_tokens_is_not_rounded() {
    // 4,294,967,301 and 4,294,967,340 of ZooKeeper are 4,295,000,000 with four digits.
    assert!(SCRIPT.contains("title: \"Tokens\", unit: \"\", isWhole: true,"));
    assert!(SCRIPT.contains("plot.isWhole ? tick : Number(tick.toPrecision(4))"));
}

#[test]
fn the_points_of_a_clock_are_not_the_arguments_of_one_call() {
    // Of 3,000 strobes, each of 400 jumps, there are 2,406,000 points. A browser takes about 100,000 arguments.
    assert!(SCRIPT.contains("row.points.reduce(") && !SCRIPT.contains("(...row.points"));
}

#[test]
fn a_heal_before_the_first_attempt_is_not_denied() {
    assert!(SCRIPT.contains("plots[3].note = R.length === 0 ? withoutPair :"));
    let early = "const withoutPair = DATA.healed > 0 ? \"No client had asked for a key when a fault was healed.\" :";
    assert!(SCRIPT.contains(early));
    assert_eq!(data(&page("kleppmann-pause").2)["healed"], 1);
}

#[test]
fn a_heal_after_the_judged_part_is_not_called_early() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
    let text = std::fs::read_to_string(corpus).unwrap();
    // The record of worker-1 ends with its freeze, and the other processes report the heal.
    let is_kept = |line: &&str| !line.contains("\"process\":\"worker-1\"") || !line.contains("\"at\":17");
    let lines: Vec<&str> = text.lines().take_while(|line| !line.contains("process-ended")).filter(is_kept).collect();
    let mut numbered = Vec::new();
    for (seq, line) in lines.into_iter().enumerate() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["seq"] = json!(seq);
        numbered.push(format!("{line}\n"));
    }
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("history.jsonl");
    std::fs::write(&history, numbered.concat()).unwrap();
    let data = data(&of(&history).2);
    assert_eq!((&data["healed"], &data["recovery"]), (&json!(0), &json!([])));
    assert!(data["faults"][0]["off"].is_number(), "{}", data["faults"]);
    assert!(SCRIPT.contains("hasHeal ? \"The part of the record that is judged has no heal of a fault.\" :"));
}

#[test]
fn recoveries_are_those_of_the_verdict_and_clock_faults_have_their_change() {
    let (mut recoveries, mut clocks) = (0, 0);
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jsonl") || judge(&path).is_err() {
            continue;
        }
        let (judged, _, html) = of(&path);
        let data = data(&html);
        let Some(Property::Recovery(found)) = judged.verdicts.properties.get("recovery") else { panic!("{path:?}") };
        let points = data["recovery"].as_array().unwrap();
        let longest = points.iter().filter_map(|point| point[1].as_f64()).reduce(f64::max);
        let is_close = |(a, b): (f64, f64)| (a - b).abs() < 1e-3;
        assert!(longest.zip(found.longest_ms).is_none_or(is_close) && longest.is_some() == found.longest_ms.is_some());
        let open = points.iter().filter(|point| point[1].is_null()).count() as u64;
        assert_eq!(open, found.unrecovered, "{path:?}");
        recoveries += points.len();
        for fault in data["faults"].as_array().unwrap() {
            assert_eq!(fault["kind"] == "clock", fault["clock"].is_object(), "{path:?}: {fault}");
            clocks += usize::from(fault["clock"].is_object());
        }
    }
    assert!(recoveries > 10 && clocks > 0, "{recoveries} recoveries, {clocks} clock faults");
}

#[test]
fn the_page_is_the_same_twice_and_loads_nothing() {
    let (_, _, html) = page("kleppmann-pause");
    assert_eq!(html, page("kleppmann-pause").2);
    for part in ["src=", "@import", "url(http", "href=\"http", "<link"] {
        assert!(!html.contains(part), "{part}");
    }
}

#[test]
fn text_of_a_history_is_no_markup_of_the_page() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
    let evil = "</script><img src=x onerror=alert(1)>";
    let text = std::fs::read_to_string(path).unwrap().replace("\"k0\"", &format!("\"{evil}\""));
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("history.jsonl");
    std::fs::write(&history, text).unwrap();
    let (_, view, html) = of(&history);
    assert!(view.worst.unwrap().headline.contains(evil));
    assert!(!html.contains("<img") && html.matches("</script>").count() == 2);
}
