//! The timeline as JSON for the page's script: times in milliseconds since the start of the run's first process.
//!
//! Holds and requests are arrays, because a page may have thousands of them. `page.js` names their fields.

use std::collections::BTreeMap;

use checker::{Property, Recovered, Verdicts, WindowKind};
use history::{ClockChange, Key, RequestKind, Stamp};
use serde::Serialize;
use serde_json::{Value, json};

use crate::timeline::{Act, Decision, FaultSpan, Hold, Standing, Timeline};

/// The most requests in the page. If there are more, only holds that are wrong keep theirs.
const ACTS: usize = 40_000;
/// The most recoveries in the page. If there are more, the longest ones.
const RECOVERIES: usize = 4_000;

/// Milliseconds with three digits: a microsecond is finer than every picture.
#[derive(Debug, Clone, Copy)]
struct Ms(f64);

impl Serialize for Ms {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let rounded = (self.0 * 1e3).round() / 1e3;
        // A whole number is shorter without its fraction.
        if rounded.fract() == 0.0 { s.serialize_i64(rounded as i64) } else { s.serialize_f64(rounded) }
    }
}

/// Places of keys in the list of keys.
struct Keys<'a>(BTreeMap<&'a Key, usize>);

impl<'a> Keys<'a> {
    fn of(timeline: &'a Timeline) -> Keys<'a> {
        let held = timeline.holds.iter().map(|hold| &hold.key);
        let keys = held.chain(timeline.windows.iter().map(|window| &window.key));
        let keys = keys.chain(timeline.series.tokens.iter().map(|point| &point.key));
        let mut places: BTreeMap<&Key, usize> = keys.map(|key| (key, 0)).collect();
        places.values_mut().enumerate().for_each(|(n, place)| *place = n);
        Keys(places)
    }

    fn place(&self, key: &Key) -> usize {
        self.0.get(key).copied().unwrap_or_default()
    }
}

/// Returns the data of the page as text that may be part of a script element. The page shows the window `worst` first.
pub fn script(timeline: &Timeline, verdicts: &Verdicts, worst: Option<usize>) -> serde_json::Result<String> {
    let mut data = data(timeline, worst);
    let (shown, left, healed) = recoveries(timeline, verdicts);
    data["recovery"] = shown;
    data["healed"] = healed.into();
    data["left"]["recovery"] = left.into();
    Ok(inert(&serde_json::to_string(&data)?))
}

/// The recoveries by the time of the heal, the number of those that are left out, and the number of healed faults.
fn recoveries(timeline: &Timeline, verdicts: &Verdicts) -> (Value, usize, u64) {
    let (mut pairs, healed): (Vec<Recovered>, u64) = match verdicts.properties.get("recovery") {
        Some(Property::Recovery(found)) => (found.pairs.clone(), found.healed),
        _ => (Vec::new(), 0),
    };
    let all = pairs.len();
    if all > RECOVERIES {
        // No recovery at all is the longest.
        pairs.sort_by_key(|pair| std::cmp::Reverse((pair.lasted.is_none(), pair.lasted)));
        pairs.truncate(RECOVERIES);
        pairs.sort_by_key(|pair| (pair.healed, pair.fault, pair.lasted));
    }
    let point = |pair: &Recovered| {
        let lasted = pair.lasted.map(|lasted| Ms(lasted.as_secs_f64() * 1e3));
        json!([Ms(timeline.ms(pair.healed)), lasted, pair.fault.0])
    };
    (pairs.iter().map(point).collect(), all - pairs.len(), healed)
}

/// The change of a clock, if the fault is one: in milliseconds, or in parts per million.
fn clock(fault: &FaultSpan) -> Value {
    let Some(clock) = fault.planned.as_ref().and_then(|planned| planned.clock()) else { return Value::Null };
    let (wall, monotonic) = (clock.clock.is_wall(), clock.clock.is_monotonic());
    match clock.change {
        ClockChange::JumpMs(by) => json!({"wall": wall, "monotonic": monotonic, "jump": by}),
        ClockChange::DriftPpm(ppm) => json!({"wall": wall, "monotonic": monotonic, "ppm": ppm}),
        ClockChange::Strobe { by_ms, every_ms } => {
            json!({"wall": wall, "monotonic": monotonic, "jump": by_ms, "every": every_ms})
        }
    }
}

/// JSON that cannot end a script element or begin a comment: `<`, `>` and `&` only occur in strings of JSON.
fn inert(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => out += "\\u003c",
            '>' => out += "\\u003e",
            '&' => out += "\\u0026",
            '\u{2028}' => out += "\\u2028",
            '\u{2029}' => out += "\\u2029",
            c => out.push(c),
        }
    }
    out
}

fn data(timeline: &Timeline, worst: Option<usize>) -> Value {
    let keys = Keys::of(timeline);
    let at = |stamp: Stamp| Ms(timeline.ms(stamp));
    let some = |stamp: Option<Stamp>| stamp.map(at);
    let acts: usize = timeline.holds.iter().map(|hold| hold.acts.len()).sum();
    let is_full = acts > ACTS;
    let lane_of: BTreeMap<_, usize> = timeline.lanes.iter().enumerate().map(|(n, lane)| (lane.client, n)).collect();
    let holds: Vec<Value> = (timeline.holds.iter())
        .map(|hold| {
            let lane = lane_of.get(&hold.client).copied().unwrap_or_default();
            let shown = if is_full && !hold.is_wrong { &[][..] } else { &hold.acts };
            held(timeline, hold, lane, keys.place(&hold.key), shown)
        })
        .collect();
    let acts_shown = holds.iter().map(|hold| hold[16].as_array().map_or(0, Vec::len)).sum::<usize>();
    let windows: Vec<Value> = (timeline.windows.iter())
        .map(|w| {
            let (from, to) = (Ms(w.from_ms), Ms(w.to_ms));
            let story = [Ms(w.story_ms.0), Ms(w.story_ms.1)];
            let holds: Vec<String> = w.holds.iter().map(|hold| hold.0.to_string()).collect();
            // Nobody was left to act under a hold that was cut short.
            let is_cut = w.kind == WindowKind::CutShort.name();
            let told = if is_cut { "given away too early" } else { "two holders" };
            json!({"kind": w.kind, "told": told, "key": keys.place(&w.key), "holds": holds, "from": from, "to": to,
                   "story": story, "headline": w.headline, "causes": w.causes})
        })
        .collect();
    let faults: Vec<Value> = (timeline.faults.iter())
        .map(|f| {
            let lasted = f.injected.zip(f.healed).map(|(on, off)| off.since(on));
            let what = f.planned.as_ref().map(|planned| planned.story(&f.node, lasted));
            json!({"id": f.id.0, "kind": f.kind.name(), "node": f.node, "what": what, "clock": clock(f),
                   "asked": some(f.requested),
                   "on": some(f.injected), "heal": some(f.heal_requested), "off": some(f.healed),
                   "over": some(f.heal_proved), "proved": f.proved.map(|(from, to)| [at(from), at(to)]),
                   "why": f.unproved, "missed": f.is_missed, "unplanned": f.is_unplanned})
        })
        .collect();
    let lanes: Vec<Value> = (timeline.lanes.iter())
        .map(|lane| json!({"name": lane.name, "node": lane.worker, "left": lane.left_out}))
        .collect();
    let stalls: Vec<Value> = (timeline.stalls.iter())
        .map(|s| json!([s.process.node(), at(s.from), at(s.to), s.process.to_string()]))
        .collect();
    let clocks: Vec<Value> = (timeline.clocks.iter())
        .map(|c| json!([c.process.to_string(), at(c.at), Ms(c.wall_ms), Ms(c.boot_ms)]))
        .collect();
    let left = &timeline.left_out;
    json!({
        "until": at(timeline.until), "worst": worst,
        "keys": keys.0.keys().map(ToString::to_string).collect::<Vec<_>>(),
        "lanes": lanes, "holds": holds, "windows": windows, "faults": faults, "stalls": stalls, "clocks": clocks,
        "series": series(timeline, &keys),
        "left": {"all": left.holds_of_run, "holds": left.holds, "wrong": left.wrong_holds, "near": left.near_holds,
                 "faults": left.faults, "stalls": left.stalls, "clocks": left.clocks,
                 "acts": left.acts_of_run - acts_shown as u64, "tokens": timeline.series.tokens_left_out},
    })
}

fn held(timeline: &Timeline, hold: &Hold, lane: usize, key: usize, acts: &[Act]) -> Value {
    let at = |stamp: Stamp| Ms(timeline.ms(stamp));
    let some = |stamp: Option<Stamp>| stamp.map(at);
    let acts: Vec<Value> = (acts.iter())
        .map(|act| {
            let kind = if act.kind == RequestKind::Write { "w" } else { "r" };
            let decisions: Vec<Value> = act.decisions.iter().map(decided).collect();
            json!([act.seq, at(act.at), kind, decisions])
        })
        .collect();
    let removed = hold.released.map(|(_, removed)| u8::from(removed));
    json!([
        hold.id.0.to_string(),
        lane,
        key,
        hold.seq,
        hold.token.map(|token| token.0.to_string()),
        at(hold.intended),
        at(hold.acquired),
        at(hold.entitled_until()),
        at(hold.used_until()),
        at(hold.promise_end),
        some(hold.release),
        removed,
        some(hold.lost),
        some(hold.gave_up),
        some(hold.killed),
        u8::from(hold.is_wrong),
        acts,
        hold.renewed,
    ])
}

/// One letter for the decision of an arm, and the largest token that the arm had seen.
fn decided(decision: &Decision) -> Value {
    let word = match (decision.admitted, decision.standing) {
        (false, _) => "x",
        (true, Standing::Current) => "a",
        (true, Standing::Late) => "l",
        (true, Standing::Stale) => "s",
    };
    match decision.seen.filter(|_| !decision.admitted) {
        Some(seen) => json!([decision.arm.name(), word, seen.0.to_string()]),
        None => json!([decision.arm.name(), word]),
    }
}

fn series(timeline: &Timeline, keys: &Keys<'_>) -> Value {
    let series = &timeline.series;
    let all = |of: fn(&crate::timeline::Bucket) -> u64| series.buckets.iter().map(of).collect::<Vec<_>>();
    let quantile = |q: f64| series.buckets.iter().map(|bucket| bucket.latency_ms(q).map(Ms)).collect::<Vec<_>>();
    let tokens: Vec<Value> = (series.tokens.iter())
        .map(|point| {
            let (at, key) = (Ms(timeline.ms(point.at)), keys.place(&point.key));
            json!([at, key, point.token.0 as f64, u8::from(point.is_back)])
        })
        .collect();
    json!({
        "from": Ms(timeline.ms(series.from)), "width": Ms(series.width.as_secs_f64() * 1e3),
        "due": all(|b| b.due), "served": all(|b| b.served), "attempts": all(|b| b.attempts),
        "failed": all(|b| b.failed), "acquired": all(|b| b.acquired),
        "p50": quantile(0.5), "p99": quantile(0.99), "tokens": tokens, "back": series.tokens_back,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{judge::judge, timeline::read};

    #[test]
    fn no_text_of_a_run_can_end_the_script_element() {
        let json = inert(&serde_json::to_string("</script><!--<script>&\u{2028}").unwrap());
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        let read: String = serde_json::from_str(&json).unwrap();
        assert_eq!(read, "</script><!--<script>&\u{2028}");
    }
    #[test]
    fn requests_that_a_hold_lacks_are_left_out() {
        let history = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl"));
        let mut timeline = read(history, &judge(history).unwrap().verdicts).unwrap();
        let left = |timeline: &Timeline| data(timeline, None)["left"]["acts"].clone();
        assert_eq!(left(&timeline), 0);
        timeline.holds[0].acts.pop();
        assert_eq!(left(&timeline), 1);
    }
}
