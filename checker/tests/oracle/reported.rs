//! The checker's verdicts, read from `verdict.json` as users read them, in the form of the comparison.

use std::collections::BTreeMap;

use history::{Record, Tail};
use serde_json::Value;

use crate::expected::{Activity, Data, Fairness, Fence, Judged, Lock, Release, Resource, Tokens, Window};

fn text(v: &Value) -> String {
    v["verdict"].as_str().expect("every property has a verdict").to_owned()
}

fn count(v: &Value, field: &str) -> u64 {
    v[field].as_u64().unwrap_or_else(|| panic!("{field} is a count in {v}"))
}

/// Milliseconds to nanoseconds.
fn length(v: &Value) -> u64 {
    let ms = v.as_f64().expect("a length is a number");
    format!("{:.0}", ms * 1e6).parse().expect("a length is not negative")
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

/// Judges `records` and gives the figures, and the JSON that they came from.
pub fn judge(records: Vec<Record>, tail: Tail) -> (Judged, Value) {
    let verdicts = checker::check(records, tail);
    let json = serde_json::to_value(&verdicts).expect("verdicts are JSON");
    (read(&json), json)
}

/// Reads the figures from `verdict.json`.
pub fn read(json: &Value) -> Judged {
    let properties = json["properties"].as_object().expect("properties are a map");
    let mut j = Judged { verdict: text(json), ..Judged::default() };
    for (name, v) in properties {
        match name.as_str() {
            "lock" => j.lock = lock(v),
            "tokens" => {
                j.tokens = Tokens {
                    verdict: text(v),
                    backwards: count(v, "backwards"),
                    shared: count(v, "shared"),
                    missing: count(v, "missing"),
                }
            }
            "release" => j.release = Release { verdict: text(v), unsafe_releases: count(v, "unsafe_releases") },
            "resource" => {
                j.resource = Resource {
                    verdict: text(v),
                    unrecorded_answers: count(v, "unrecorded_answers"),
                    contradictions: count(v, "contradictions"),
                    misordered: count(v, "misordered"),
                    wrong_answers: count(v, "wrong_answers"),
                    applied_twice: count(v, "applied_twice"),
                    wrong_repeats: count(v, "wrong_repeats"),
                    wrong_arms: count(v, "wrong_arms"),
                    wrong_refusals: count(v, "wrong_refusals"),
                    tokens_forgotten: count(v, "tokens_forgotten"),
                    wrong_tokens: count(v, "wrong_tokens"),
                }
            }
            "liveness" => {
                let one = |b: &Value| (count(b, "hold"), b["blocked_ms"].as_f64().map(|_| length(&b["blocked_ms"])));
                j.blocked = list(&v["blocked"]).iter().map(one).collect();
            }
            "activity" => {
                j.activity = Activity {
                    verdict: text(v),
                    holds: count(v, "holds"),
                    clients: count(v, "clients"),
                    refused: count(v, "refused"),
                }
            }
            "fairness" => {
                let one = |c: &Value| (count(c, "client"), (count(c, "attempts"), count(c, "holds")));
                let by = |o: &Value| list(&o["by"]).iter().filter_map(Value::as_u64).collect();
                j.fairness = Fairness {
                    clients: list(&v["clients"]).iter().map(one).collect(),
                    overtaken: list(&v["overtaken"]).iter().map(|o| (count(o, "attempt"), by(o))).collect(),
                };
            }
            // A figure, which nothing requires.
            "recovery" => {}
            other => match other.rsplit_once('.') {
                Some((arm, "fence")) => drop(j.fence.insert(arm.to_owned(), fence(v))),
                Some((arm, "data")) => drop(j.data.insert(arm.to_owned(), data(v))),
                _ => panic!("a property called {other}"),
            },
        }
    }
    j
}

fn lock(v: &Value) -> Lock {
    let mut lock = Lock {
        verdict: text(v),
        unexplained: count(v, "unexplained"),
        undecided: count(v, "undecided"),
        overclaims: list(&v["overclaims"])
            .iter()
            .map(|o| (count(o, "hold"), (length(&o["past_ms"]), count(o, "checks"))))
            .collect(),
        minority_claims: list(&v["minority_claims"]).iter().map(|m| (count(m, "hold"), count(m, "granted"))).collect(),
        dead_claims: list(&v["dead_claims"]).iter().map(|d| (count(d, "hold"), length(&d["late_ms"]))).collect(),
        stale: BTreeMap::new(),
        overlaps: BTreeMap::new(),
        cut_short: BTreeMap::new(),
    };
    for w in list(&v["windows"]) {
        let holds: Vec<u64> = list(&w["holds"]).iter().filter_map(Value::as_u64).collect();
        let window = Window {
            overlap: length(w.get("cut_ms").unwrap_or(&w["overlap_ms"])),
            staleness: w["staleness_ms"].as_f64().map(|_| length(&w["staleness_ms"])),
            reads: count(w, "reads"),
            writes: count(w, "writes"),
            own: w["self"].as_bool(),
            causes: list(&w["causes"]).iter().filter_map(|c| c.as_str().map(str::to_owned)).collect(),
        };
        let double = match w["kind"].as_str() {
            Some("stale-holder") => lock.stale.insert(holds[0], window),
            Some("cut-short") => lock.cut_short.insert((holds[0], holds[1]), window),
            _ => lock.overlaps.insert((holds[0].min(holds[1]), holds[0].max(holds[1])), window),
        };
        assert!(double.is_none(), "a window is reported once: {w}");
    }
    lock
}

fn fence(v: &Value) -> Fence {
    Fence {
        verdict: text(v),
        stale_accepted: count(v, "stale_accepted"),
        stale_rejected: count(v, "stale_rejected"),
        late: count(v, "late"),
        unjustified: count(v, "unjustified"),
        false_rejections: count(v, "false_rejections"),
        undecided: count(v, "undecided"),
        repeats: count(v, "repeats"),
        stale_reads: count(v, "stale_reads"),
    }
}

fn data(v: &Value) -> Data {
    Data {
        verdict: text(v),
        updates: count(v, "updates"),
        lost_updates: count(v, "lost_updates"),
        overwrites: count(v, "overwrites"),
        refused: count(v, "refused"),
        stale_accepted: v["stale_accepted"].as_u64(),
        late: v["late"].as_u64(),
        unjustified: count(v, "unjustified"),
        disagreements: count(v, "disagreements"),
    }
}
