//! The part of a run that is drawn first: windows, writes that were stale or late, and everything near a window.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use checker::{Property, Verdicts, Window, WindowKind, joined};
use history::{Arm, HoldId, Key};

use super::model::{Standing, WindowSpan};

/// A hold's place in the order in which holds are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A hold of a window; 0 is the worst window.
    Window(usize),
    /// A hold with a stale or late write.
    Wrong,
    /// A hold on the key of a window, and near that window.
    Near(usize),
    /// Any other hold.
    Ordinary,
}

/// Milliseconds near one or more windows of a key.
#[derive(Debug)]
struct Near {
    from: f64,
    to: f64,
    /// The place of the worst of these windows.
    place: usize,
}

/// Holds, spans and writes that are drawn first.
#[derive(Debug, Default)]
pub struct Focus {
    /// All windows.
    pub windows: Vec<WindowSpan>,
    /// The places of the windows to which a hold belongs: the worst one.
    places: HashMap<HoldId, usize>,
    standings: HashMap<(u64, Arm), Standing>,
    /// Disjoint spans, in order.
    near: BTreeMap<Key, Vec<Near>>,
}

/// Returns the indices of the windows, the one that tells most first: the one with the longest time in which a client
/// did not know.
pub fn worst_first(windows: &[Window]) -> Vec<usize> {
    let rank = |window: &Window| {
        let kind = match window.kind {
            WindowKind::StaleHolder => 2,
            WindowKind::LeaseOverlap => 1,
            WindowKind::CutShort => 0,
        };
        let length = window.staleness_ms.or(window.cut_ms).unwrap_or(window.overlap_ms);
        ((window.writes > 0, kind), length)
    };
    let mut order: Vec<usize> = (0..windows.len()).collect();
    // The sort is stable: of two windows that tell as much, the first one.
    order.sort_by(|a, b| {
        let [(a, length), (b, other)] = [*a, *b].map(|index| rank(&windows[index]));
        b.cmp(&a).then(other.total_cmp(&length))
    });
    order
}

fn span(window: &Window) -> WindowSpan {
    let times = || window.story.iter().map(|line| line.at_ms);
    let first = times().fold(window.at_ms, f64::min);
    let last = times().fold(window.at_ms, f64::max);
    let (from_ms, to_ms) = match window.kind {
        WindowKind::StaleHolder => {
            // The later hold was acquired `staleness` before the last stale act.
            let last_act = window.last_act_ms.unwrap_or(window.at_ms);
            (last_act - window.staleness_ms.unwrap_or_default(), last_act)
        }
        WindowKind::LeaseOverlap => (window.at_ms, window.at_ms + window.overlap_ms),
        WindowKind::CutShort => (window.at_ms, window.at_ms + window.cut_ms.unwrap_or_default()),
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
        let found = verdicts.lock().map_or(&[][..], |lock| &lock.windows);
        let windows: Vec<WindowSpan> = found.iter().map(span).collect();
        let mut places = HashMap::new();
        let mut near: BTreeMap<Key, Vec<Near>> = BTreeMap::new();
        for (place, index) in worst_first(found).into_iter().enumerate() {
            let window = &windows[index];
            for hold in &window.holds {
                places.entry(*hold).or_insert(place);
            }
            let (from, to) = window.story_ms;
            near.entry(window.key.clone()).or_default().push(Near { from, to, place });
        }
        near.values_mut().for_each(merge);
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
        Focus { windows, places, standings, near }
    }

    /// The checker's finding about an admission.
    pub fn standing(&self, seq: u64, arm: Arm) -> Standing {
        self.standings.get(&(seq, arm)).copied().unwrap_or_default()
    }

    /// True if the hold is one of a window.
    pub fn has(&self, hold: HoldId) -> bool {
        self.places.contains_key(&hold)
    }

    /// The rank of a hold without wrong writes. `span` is in milliseconds; `margin` is the distance that is still near.
    pub fn rank(&self, hold: HoldId, key: &Key, (from, to): (f64, f64), margin: Duration) -> Rank {
        if let Some(place) = self.places.get(&hold) {
            return Rank::Window(*place);
        }
        let margin = margin.as_secs_f64() * 1e3;
        let spans = self.near.get(key).map_or(&[][..], |spans| spans);
        let next = spans.partition_point(|span| span.to + margin < from);
        let near = spans[next..].iter().take_while(|span| span.from - margin <= to);
        near.map(|span| span.place).min().map_or(Rank::Ordinary, Rank::Near)
    }
}

/// Sorts spans, and joins those that touch.
fn merge(spans: &mut Vec<Near>) {
    spans.sort_by(|a, b| a.from.total_cmp(&b.from));
    spans.dedup_by(|next, last| {
        let touches = last.to >= next.from;
        if touches {
            last.to = last.to.max(next.to);
            last.place = last.place.min(next.place);
        }
        touches
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge;

    #[test]
    fn a_stale_holders_window_ends_with_its_last_act_and_its_story_later() {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let judged = judge(history.as_ref()).unwrap();
        let mut window = judged.verdicts.lock().unwrap().windows[0].clone();
        // The later holder writes for the first time after the stale act.
        let mut line = window.story.last().unwrap().clone();
        line.at_ms = 8_000.0;
        window.story.push(line);
        let span = span(&window);
        assert_eq!((span.from_ms, span.to_ms, span.story_ms.1), (4_051.0, 7_102.0, 8_000.0));
    }

    #[test]
    fn windows_with_stale_writes_come_first_then_stale_holders_then_the_longest() {
        use WindowKind::{CutShort, LeaseOverlap, StaleHolder};
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let window = judge(history.as_ref()).unwrap().verdicts.lock().unwrap().windows[0].clone();
        let of = |kind: WindowKind, writes, overlap_ms, length| {
            let staleness_ms = (kind == StaleHolder).then_some(length);
            let cut_ms = (kind == CutShort).then_some(length);
            Window { kind, writes, overlap_ms, staleness_ms, cut_ms, ..window.clone() }
        };
        let windows = [
            of(CutShort, 0, 1.0, 900.0),
            of(LeaseOverlap, 0, 500.0, 0.0),
            // Its staleness counts, and not its overlap.
            of(StaleHolder, 0, 9_000.0, 100.0),
            of(CutShort, 5, 1.0, 50.0),
            of(StaleHolder, 0, 1.0, 200.0),
            of(LeaseOverlap, 0, 500.0, 0.0),
            of(LeaseOverlap, 1, 5.0, 0.0),
            of(CutShort, 0, 2.0, 800.0),
        ];
        assert_eq!(worst_first(&windows), [6, 3, 4, 2, 1, 5, 0, 7]);
    }

    #[test]
    fn a_hold_is_near_a_window_of_its_key_up_to_the_margin_on_either_side() {
        let (key, other): (Key, Key) = ("k0".into(), "k1".into());
        let spans = [(1_000.0, 2_000.0, 3), (4_000.0, 4_500.0, 1)];
        let spans = spans.map(|(from, to, place)| Near { from, to, place }).into();
        let focus = Focus { near: BTreeMap::from([(key.clone(), spans)]), ..Focus::default() };
        for (key, span, expected) in [
            (&key, (100.0, 749.0), Rank::Ordinary),
            (&key, (100.0, 750.0), Rank::Near(3)),
            (&other, (100.0, 750.0), Rank::Ordinary),
            (&key, (2_250.0, 2_300.0), Rank::Near(3)),
            (&key, (2_251.0, 2_300.0), Rank::Ordinary),
            (&key, (1_500.0, 3_750.0), Rank::Near(1)),
            (&key, (4_751.0, 9_000.0), Rank::Ordinary),
        ] {
            assert_eq!(focus.rank(HoldId(1), key, span, Duration::from_millis(250)), expected, "{span:?}");
        }
    }

    #[test]
    fn a_window_inside_a_longer_one_does_not_end_it() {
        let key: Key = "k0".into();
        let spans = [(1_000.0, 9_000.0, 1), (2_000.0, 3_000.0, 0)];
        let mut spans: Vec<Near> = spans.map(|(from, to, place)| Near { from, to, place }).into();
        merge(&mut spans);
        let focus = Focus { near: BTreeMap::from([(key.clone(), spans)]), ..Focus::default() };
        let rank = |span| focus.rank(HoldId(1), &key, span, Duration::ZERO);
        assert_eq!([(8_000.0, 8_100.0), (9_001.0, 9_100.0)].map(rank), [Rank::Near(0), Rank::Ordinary]);
    }
}
