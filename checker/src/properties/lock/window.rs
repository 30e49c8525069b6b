//! Windows as they are reported.

use std::fmt;

use history::{ClientId, HoldId, Key, ProcessName, Stamp};
use serde::Serialize;

use crate::{
    cause::{CauseSet, canonical, joined},
    hold_summary::HoldSummary,
    holds::Attempt,
    judge::Ending,
    report::{Story, StoryLine, Violation, instant, seconds},
    run::{Run, millis},
};

use super::{
    evidence::{HoldWatch, Overlap},
    overlap_cause, stale_cause, story,
};

/// The kinds of double-holder windows; always apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowKind {
    /// A hold acted after its entitlement had ended and a later one had been acquired: Kleppmann's pause.
    StaleHolder,
    /// Two holds were entitled at once: the lock service broke its promise.
    LeaseOverlap,
    /// The service granted the key inside its promise to a hold whose process was killed: it broke its promise, and
    /// nobody was left to suffer.
    CutShort,
}

impl WindowKind {
    /// Returns the kind's name in `verdict.json`.
    pub fn name(self) -> &'static str {
        match self {
            WindowKind::StaleHolder => "stale-holder",
            WindowKind::LeaseOverlap => "lease-overlap",
            WindowKind::CutShort => "cut-short",
        }
    }
}

impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One double-holder window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Window {
    /// The kind.
    pub kind: WindowKind,
    /// The key.
    pub key: Key,
    /// `stale-holder`: the stale hold, and the first later one. `lease-overlap`: both, in the order of acquisition.
    /// `cut-short`: the hold of the killed process, and the first that was granted inside its promise.
    pub holds: Vec<HoldId>,
    /// The clients of the holds, in the same order.
    pub clients: Vec<ClientId>,
    /// The workers of the holds, in the same order.
    pub workers: Vec<ProcessName>,
    /// The sets of causes that explain the window; each set suffices.
    pub causes: Vec<CauseSet>,
    /// Milliseconds for which two holds were entitled (`lease-overlap`), or for which later holds were entitled between
    /// the end of the stale hold and its last act (`stale-holder`).
    pub overlap_ms: f64,
    /// `stale-holder`: milliseconds from the `acquire` ok of the first later hold to the last act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness_ms: Option<f64>,
    /// `cut-short`: milliseconds from the second hold's `acquire` ok to the end of the promise to the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_ms: Option<f64>,
    /// Stale acts that read.
    pub reads: u64,
    /// Stale acts that wrote.
    pub writes: u64,
    /// True if both holds are attempts of one client.
    #[serde(rename = "self")]
    pub self_: bool,
    /// Sequence numbers of the events that prove the window, in the order of their stamps.
    pub witness: Vec<u64>,
    /// The window's first instant, in milliseconds since the run's start: the first stale act, or the start of the
    /// overlap.
    pub at_ms: f64,
    /// `stale-holder`: the last stale act, in milliseconds since the run's start. The story may end later, with the
    /// first write of the later hold, and it tells of the first stale acts only.
    #[serde(skip)]
    pub last_act_ms: Option<f64>,
    /// The story in one line.
    pub headline: String,
    /// The story.
    pub story: Vec<StoryLine>,
    /// The overlap in words, with the instants that it is measured between.
    #[serde(skip)]
    pub measured: String,
}

impl Window {
    /// The class of the violation.
    pub fn violation(&self) -> Violation {
        Violation { kind: self.kind.name(), causes: canonical(&self.causes) }
    }

    /// The window as a story.
    pub fn told(&self) -> Story {
        let of_one_client = if self.self_ { ", both of one client" } else { "" };
        let (kind, causes, measured) = (self.kind, joined(&self.causes, ", "), &self.measured);
        Story {
            violation: self.violation(),
            headline: self.headline.clone(),
            lines: self.story.clone(),
            closing: format!("{kind}{of_one_client}, cause: {causes}; {measured}"),
        }
    }
}

/// The window of a stale hold; none if none of its acts was stale. `overclaimed` is the hold's first overclaim.
pub(crate) fn stale(run: &Run, hold: &Attempt, watch: &HoldWatch, overclaimed: Option<Stamp>) -> Option<Window> {
    let (stale, later, grant) = (watch.stale.as_ref()?, watch.first_later.as_ref()?, hold.grant?);
    let own = HoldSummary::of(hold, &grant);
    let staleness = stale.last.at.since(later.ok.at);
    let mut witness = vec![own.promised_by, own.ok, later.ok, stale.last];
    witness.extend(hold.ended_by().map(|(mark, _)| mark));
    witness.sort_unstable();
    witness.dedup();
    let causes = stale_cause::of_acts(run, hold, &stale.acts, overclaimed);
    Some(Window {
        kind: WindowKind::StaleHolder,
        key: run.key(hold.key).clone(),
        overlap_ms: millis(stale.overlap),
        staleness_ms: Some(millis(staleness)),
        reads: stale.reads,
        writes: stale.writes,
        witness: witness.iter().map(|mark| mark.seq).collect(),
        at_ms: run.ms(stale.acts.first()?.mark.at),
        last_act_ms: Some(run.ms(stale.last.at)),
        headline: story::stale_headline(run, hold.key, &own, later, staleness),
        story: story::of_stale(run, hold, &own, watch),
        measured: format!(
            "overlap {}: later holds were entitled for this long between {} (the end of this entitlement) and {} (its \
             last act)",
            seconds(millis(stale.overlap)),
            instant(run.ms(hold.end())),
            instant(run.ms(stale.last.at))
        ),
        causes,
        ..both(run, [&own, later])
    })
}

/// The window of two entitlements that intersect.
pub(crate) fn overlap(run: &Run, found: &Overlap, ending: &Ending) -> Window {
    let [first, second] = found.holds.each_ref().map(|entitled| &entitled.hold);
    let mut witness = vec![first.promised_by, first.ok, second.promised_by, second.ok];
    witness.sort_unstable();
    witness.dedup();
    Window {
        kind: WindowKind::LeaseOverlap,
        key: run.key(found.key).clone(),
        causes: vec![overlap_cause::of_overlap(run, found, ending)],
        overlap_ms: millis(found.length),
        witness: witness.iter().map(|mark| mark.seq).collect(),
        at_ms: run.ms(found.from),
        headline: story::overlap_headline(run, found),
        story: story::of_overlap(run, found, ending),
        measured: format!(
            "overlap {}, from {} to {}",
            seconds(millis(found.length)),
            instant(run.ms(found.from)),
            instant(run.ms(found.from.plus(found.length)))
        ),
        ..both(run, [first, second])
    }
}

/// The window of a promise to a killed client that the service cut short.
pub(crate) fn cut_short(run: &Run, found: &Overlap, ending: &Ending) -> Window {
    let left = found.length;
    Window {
        kind: WindowKind::CutShort,
        overlap_ms: 0.0,
        cut_ms: Some(millis(left)),
        headline: story::cut_short_headline(run, found),
        measured: format!(
            "{} of the promise were left at {}; its client had been killed",
            seconds(millis(left)),
            instant(run.ms(found.from))
        ),
        ..overlap(run, found, ending)
    }
}

/// A window with the facts about its two holds; the other fields are empty.
fn both(run: &Run, holds: [&HoldSummary; 2]) -> Window {
    Window {
        kind: WindowKind::LeaseOverlap,
        key: history::Key::from(""),
        holds: holds.iter().map(|h| h.id).collect(),
        clients: holds.iter().map(|h| h.client).collect(),
        workers: holds.iter().map(|h| run.process(h.process).name.clone()).collect(),
        causes: Vec::new(),
        overlap_ms: 0.0,
        staleness_ms: None,
        cut_ms: None,
        reads: 0,
        writes: 0,
        self_: holds[0].client == holds[1].client,
        witness: Vec::new(),
        at_ms: 0.0,
        last_act_ms: None,
        headline: String::new(),
        story: Vec::new(),
        measured: String::new(),
    }
}
