//! Windows as they are reported.

use crate::{
    cause, expiry,
    holds::Attempt,
    judge::Ending,
    lock::{Brief, Overlap, Watch, millis},
    property::{Window, WindowKind},
    run::Run,
    story,
};

/// The window of a stale hold; none if none of its acts was stale.
pub(crate) fn stale(run: &Run, hold: &Attempt, watch: &Watch) -> Option<Window> {
    let (stale, later, grant) = (watch.stale.as_ref()?, watch.first_later.as_ref()?, hold.grant?);
    let own = Brief::of(hold, &grant);
    let staleness = stale.last.at.since(later.ok.at);
    let mut witness = vec![own.promised_by, own.ok, later.ok, stale.last];
    witness.extend(hold.ended_by().map(|(mark, _)| mark));
    witness.sort_unstable();
    witness.dedup();
    let causes = cause::of_acts(run, hold, &stale.acts);
    Some(Window {
        kind: WindowKind::StaleHolder,
        key: run.key(hold.key).clone(),
        overlap_ms: millis(stale.overlap),
        staleness_ms: Some(millis(staleness)),
        reads: stale.reads,
        writes: stale.writes,
        witness: witness.iter().map(|mark| mark.seq).collect(),
        at_ms: run.ms(stale.acts.first()?.mark.at),
        headline: story::stale_headline(run, hold.key, &own, later, staleness),
        story: story::of_stale(run, hold, &own, watch),
        causes,
        ..both(run, [&own, later])
    })
}

/// The window of two entitlements that intersect.
pub(crate) fn overlap(run: &Run, found: &Overlap, ending: &Ending) -> Window {
    let [first, second] = &found.holds;
    let mut witness = vec![first.promised_by, first.ok, second.promised_by, second.ok];
    witness.sort_unstable();
    witness.dedup();
    Window {
        kind: WindowKind::LeaseOverlap,
        key: run.key(found.key).clone(),
        causes: vec![expiry::of_overlap(run, found, ending)],
        overlap_ms: millis(found.length),
        witness: witness.iter().map(|mark| mark.seq).collect(),
        at_ms: run.ms(found.from),
        headline: story::overlap_headline(run, found),
        story: story::of_overlap(run, found, ending),
        ..both(run, [first, second])
    }
}

/// What a window says of its two holds; the rest is empty.
fn both(run: &Run, holds: [&Brief; 2]) -> Window {
    Window {
        kind: WindowKind::LeaseOverlap,
        key: history::Key::from(""),
        holds: holds.iter().map(|h| h.id).collect(),
        clients: holds.iter().map(|h| h.client).collect(),
        workers: holds.iter().map(|h| run.process(h.process).name.clone()).collect(),
        causes: Vec::new(),
        overlap_ms: 0.0,
        staleness_ms: None,
        reads: 0,
        writes: 0,
        self_: holds[0].client == holds[1].client,
        witness: Vec::new(),
        at_ms: 0.0,
        headline: String::new(),
        story: Vec::new(),
    }
}
