//! `report.html`: the run as one page that opens from a disk, without a network and without other files.

mod arms;
mod data;
mod picture;
mod words;

use anyhow::Context;
use checker::{Property, Verdict, Verdicts, WindowKind};
use history::Arm;
use minijinja::{Environment, UndefinedBehavior, context, value::Serde};
use serde::Serialize;

use super::{
    markdown::{again, placement, title},
    summary::{described, figures, left_out, notes, rows, versions},
};
use crate::{expect::Comparison, judge::Judged, measures, timeline::Timeline};

/// The most stories in the page.
const STORIES: usize = 50;

/// The script of the page, in a scope of its own.
const SCRIPT: &str = concat!(
    "(() => {\n",
    include_str!("html/page.js"),
    include_str!("html/charts.js"),
    include_str!("html/controls.js"),
    "})();"
);

/// A figure on the first screen.
#[derive(Debug, Serialize)]
struct Tile {
    count: String,
    label: String,
    is_bad: bool,
}

#[derive(Debug, Serialize)]
struct RowView {
    name: String,
    verdict: &'static str,
    figures: String,
    about: Option<String>,
}

#[derive(Debug, Serialize)]
struct StoryView {
    headline: String,
    lines: Vec<(String, String, String)>,
    closing: String,
    /// The number of the window in the page's data.
    window: Option<usize>,
}

#[derive(Debug, Serialize)]
struct View {
    title: String,
    verdict: &'static str,
    as_expected: Option<bool>,
    misses: Vec<String>,
    /// The violated properties in words: `mutual exclusion`.
    subject: String,
    claim: String,
    lesson: Option<String>,
    described: String,
    placement: Option<String>,
    /// The commands that repeat the run; none for a record that the harness did not make.
    again: Vec<String>,
    tiles: Vec<Tile>,
    picture: Option<String>,
    worst: Option<StoryView>,
    stories: Vec<StoryView>,
    /// The windows whose stories are left out, with their verb.
    stories_left: Option<String>,
    rows: Vec<RowView>,
    notes: Vec<String>,
    arms: Vec<arms::ArmRow>,
    figures: String,
    quantiles: Vec<(&'static str, String)>,
    made_by: Vec<(String, String)>,
    run: String,
    style: &'static str,
    script: &'static str,
    data: String,
}

/// Returns the page of a run.
///
/// # Errors
/// The page cannot be rendered: a bug of the harness.
pub fn html(judged: &Judged, compared: &Comparison, timeline: &Timeline) -> anyhow::Result<String> {
    let view = view(judged, compared, timeline).context("writing the timeline as JSON")?;
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // The name ends in .html, so every value is escaped unless the template says that the value is safe.
    let page = environment.render_named_str("page.html", include_str!("html/page.html"), context! { v => Serde(view) });
    page.context("rendering report.html")
}

fn view(judged: &Judged, compared: &Comparison, timeline: &Timeline) -> anyhow::Result<View> {
    let (plan, verdicts) = (&judged.plan, &judged.verdicts);
    let windows = verdicts.lock().map_or(&[][..], |lock| &lock.windows);
    let worst = words::worst(windows);
    let mut stories: Vec<StoryView> = Vec::new();
    for (n, window) in windows.iter().enumerate() {
        stories.push(story(&window.told(), Some(n)));
    }
    for (_, property) in verdicts.properties.iter().filter(|(name, _)| *name != "lock") {
        stories.extend(property.report().stories().iter().map(|told| story(told, None)));
    }
    let told_first = worst.map(|index| stories.remove(index));
    let stories_left = stories.len().saturating_sub(STORIES);
    stories.truncate(STORIES);
    let reasons = verdicts.reasons.iter().map(|reason| format!("not judged to the end: {reason}"));
    let row = |row: super::summary::Row<'_>| RowView {
        about: checker::explain(row.name.rsplit('.').next().unwrap_or(row.name)).map(|text| text.to_string()),
        name: row.name.to_owned(),
        verdict: row.verdict,
        figures: row.figures,
    };
    let quantile = |(name, q): (&'static str, f64)| Some((name, measures::shown(judged.measures.acquire_ms(q)?)));
    let is_shown = |(_, q): &(&str, f64)| measures::is_shown(*q, verdicts.facts.holds);
    let quantiles = [("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999), ("longest", 1.0)];
    let quantiles = quantiles.into_iter().filter(is_shown);
    Ok(View {
        title: title(plan),
        verdict: verdicts.verdict.name(),
        as_expected: compared.as_expected,
        misses: match compared.as_expected {
            Some(_) => compared.misses.iter().map(|miss| miss.text.clone()).collect(),
            None => Vec::new(),
        },
        subject: subject(verdicts),
        claim: words::claim(verdicts, timeline, worst),
        lesson: words::lesson(verdicts, timeline, plan.workload.client, worst),
        described: described(plan, &versions(&judged.servers)),
        placement: placement(plan).map(|text| text.replace("**", "")),
        again: again(judged).lines().map(str::to_owned).collect(),
        tiles: tiles(verdicts, timeline),
        picture: worst_window(verdicts, timeline).map(|(_, picture)| picture),
        worst: told_first,
        stories,
        stories_left: (stories_left > 0).then(|| left_out(stories_left)),
        rows: rows(verdicts, compared).into_iter().map(row).collect(),
        notes: reasons.chain(notes(verdicts)).collect(),
        arms: arms::arms(verdicts, timeline, plan.fence),
        figures: figures(judged),
        quantiles: quantiles.filter_map(quantile).collect(),
        made_by: judged.made_by.iter().flat_map(|made_by| made_by.lines()).collect(),
        run: verdicts.run.clone(),
        style: include_str!("html/page.css"),
        script: SCRIPT,
        data: data::script(timeline, verdicts, worst)?,
    })
}

/// Returns the headline of the worst window of a run, and its picture as an SVG file. None without a window that can be
/// drawn.
pub fn worst_window(verdicts: &Verdicts, timeline: &Timeline) -> Option<(String, String)> {
    let window = timeline.windows.get(words::worst(&verdicts.lock()?.windows)?)?;
    Some((window.headline.clone(), picture::picture(timeline, window)?))
}

/// Names the violated properties for readers who do not know their names yet.
fn subject(verdicts: &Verdicts) -> String {
    let violated = verdicts.properties.iter().filter(|(_, property)| property.verdict() == Verdict::Violated);
    let names = violated.map(|(name, _)| if name == "lock" { "mutual exclusion" } else { name });
    names.collect::<Vec<_>>().join(", ")
}

fn story(told: &checker::Story, window: Option<usize>) -> StoryView {
    StoryView {
        headline: told.headline.clone(),
        lines: (told.lines.iter())
            .map(|line| (format!("{:.3} s", line.at_ms / 1e3), line.who.clone(), line.what.clone()))
            .collect(),
        closing: told.closing.clone(),
        window,
    }
}

fn tiles(verdicts: &Verdicts, timeline: &Timeline) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let mut tile = |count: u64, one: &str, many: &str, is_bad: bool| {
        let label = if count == 1 { one } else { many };
        tiles.push(Tile { count: count.to_string(), label: label.to_owned(), is_bad: is_bad && count > 0 });
    };
    let facts = &verdicts.facts;
    tile(timeline.lanes.len() as u64, "client", "clients", false);
    tile(facts.holds, "time a client got the lock", "times a client got the lock", false);
    if facts.faults_requested > 0 {
        tile(facts.faults_proved, "fault, seen to work", "faults, seen to work", false);
    }
    if let Some(lock) = verdicts.lock() {
        let cut = lock.windows.iter().filter(|window| window.kind == WindowKind::CutShort).count() as u64;
        let two = lock.windows.len() as u64 - cut;
        tile(two, "time with two holders of the lock", "times with two holders of the lock", true);
        if cut > 0 {
            tile(cut, "time the lock was given away too early", "times the lock was given away too early", true);
        }
    }
    if let Some(Property::Fence(fence)) = verdicts.properties.get("writes.fence") {
        tile(fence.stale_rejected, "stale write refused by the fence", "stale writes refused by the fence", false);
    }
    if let Some((lost, _)) = arms::lost_updates(verdicts, Arm::Off) {
        tile(lost, "update lost without a fence", "updates lost without a fence", true);
    }
    tiles
}

#[cfg(test)]
mod tests;
