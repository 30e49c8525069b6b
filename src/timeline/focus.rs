//! The part of a run that must be drawn whole: everything near a window, and every write that was stale or late.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use checker::{Property, Verdicts, Window, WindowKind, joined};
use history::{Arm, HoldId};

use super::model::{Standing, WindowSpan};

/// The most windows whose surroundings are drawn whole.
const WINDOWS: usize = 300;

/// Spans and events that must be drawn whole.
#[derive(Debug, Default)]
pub struct Focus {
    /// All windows.
    pub windows: Vec<WindowSpan>,
    holds: HashSet<HoldId>,
    standings: HashMap<(u64, Arm), Standing>,
    /// Disjoint spans in milliseconds, in order.
    spans: Vec<(f64, f64)>,
}

fn span(window: &Window) -> WindowSpan {
    let times = || window.story.iter().map(|line| line.at_ms);
    let first = times().fold(window.at_ms, f64::min);
    let length = match window.kind {
        WindowKind::StaleHolder => None,
        WindowKind::LeaseOverlap => Some(window.overlap_ms),
        WindowKind::CutShort => window.cut_ms,
    };
    let last = times().fold(window.at_ms, f64::max);
    // A stale hold's last act is the last line of its story; the later hold was acquired `staleness` before.
    let (from_ms, to_ms) = match length {
        Some(length) => (window.at_ms, window.at_ms + length),
        None => (last - window.staleness_ms.unwrap_or_default(), last),
    };
    WindowSpan {
        kind: window.kind.name(),
        key: window.key.clone(),
        holds: window.holds.clone(),
        from_ms,
        to_ms,
        story_ms: (first, last.max(to_ms)),
        headline: window.headline.clone(),
        causes: joined(&window.causes, ", "),
    }
}

impl Focus {
    /// The focus of a run with these verdicts.
    pub fn of(verdicts: &Verdicts) -> Focus {
        let windows: Vec<WindowSpan> = verdicts.lock().map_or(&[][..], |lock| &lock.windows).iter().map(span).collect();
        let holds = windows.iter().flat_map(|window| window.holds.iter().copied()).collect();
        let mut spans: Vec<(f64, f64)> = windows.iter().take(WINDOWS).map(|window| window.story_ms).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut merged: Vec<(f64, f64)> = Vec::new();
        for (from, to) in spans {
            match merged.last_mut().filter(|last| last.1 >= from) {
                Some(last) => last.1 = last.1.max(to),
                None => merged.push((from, to)),
            }
        }
        let mut standings = HashMap::new();
        for (name, property) in verdicts.properties.iter() {
            let found = match property {
                Property::Fence(fence) => &fence.standings,
                Property::Data(data) => &data.standings,
                _ => continue,
            };
            let Some(arm) = name.split('.').next().and_then(|arm| arm.parse::<Arm>().ok()) else { continue };
            standings.extend(found.stale.iter().map(|seq| ((*seq, arm), Standing::Stale)));
            standings.extend(found.late.iter().map(|seq| ((*seq, arm), Standing::Late)));
        }
        Focus { windows, holds, standings, spans: merged }
    }

    /// True if the hold is one of a window.
    pub fn has(&self, hold: HoldId) -> bool {
        self.holds.contains(&hold)
    }

    /// The checker's finding about an admission.
    pub fn standing(&self, seq: u64, arm: Arm) -> Standing {
        self.standings.get(&(seq, arm)).copied().unwrap_or_default()
    }

    /// True if the span, in milliseconds, is nearer than `margin` to a window.
    pub fn is_near(&self, (from, to): (f64, f64), margin: Duration) -> bool {
        let margin = margin.as_secs_f64() * 1e3;
        let next = self.spans.partition_point(|span| span.1 + margin < from);
        self.spans.get(next).is_some_and(|span| span.0 - margin <= to)
    }
}
