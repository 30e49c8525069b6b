//! Judges a history that is made by hand, and prints the verdicts: `cargo run -p lock-checker --example judge`.
//!
//! The lock grants a key to a second client while the first client still holds it.

use history::{Event, Record, Stamp, Tail};
use serde_json::{Value, json};

const MS: u64 = 1_000_000;

/// The plan: two clients, one key, a lease of two seconds.
fn plan() -> Value {
    json!({
        "schema": 1, "seed": 0, "cluster": "docker", "backend": "my-lock", "tokens": "none", "time": "10s",
        "lease": "2s", "arms": ["off"], "lock_nodes": ["my-lock"],
        "servers": {
            "topology": "one-store", "promise": "lease", "lease_clock": "monotonic", "amnesia": "forgets-locks",
            "kill_forgets": false, "shows_waiting": true, "tokens": ["none"], "port": 1
        },
        "workload": { "workers": 2 },
        "activity": { "holds": 2, "clients": 2, "refused": 0 }
    })
}

fn acquire(client: u32, attempt: u64, ms: u64) -> Value {
    json!({ "event": "acquire", "client": client, "attempt": attempt, "key": "k0", "intended": ms * MS })
}

fn acquired(attempt: u64, sent_ms: u64) -> Value {
    json!({ "event": "acquired", "attempt": attempt, "lease_ns": 2_000 * MS, "granted_after": sent_ms * MS })
}

/// The history: process, time in milliseconds, event.
fn history() -> Vec<(&'static str, u64, Value)> {
    let started = |role| json!({ "event": "started", "role": role, "boot_id": "one machine", "time_namespace": 0 });
    let finished = || json!({ "event": "finished" });
    vec![
        ("controller", 0, json!({ "event": "plan", "run": "two-holders", "plan": plan() })),
        ("worker-1", 1, started("worker")),
        ("worker-2", 1, started("worker")),
        ("resource", 1, started("resource")),
        ("agent", 1, started("agent")),
        ("worker-1", 100, acquire(0, 1, 100)),
        ("worker-1", 105, acquired(1, 100)),
        ("worker-2", 300, acquire(1, 2, 300)),
        ("worker-2", 305, acquired(2, 300)),
        ("worker-1", 1_000, json!({ "event": "release", "hold": 1 })),
        ("worker-1", 1_005, json!({ "event": "released", "hold": 1, "removed": true })),
        ("worker-1", 2_000, finished()),
        ("worker-2", 2_000, finished()),
        ("resource", 2_000, finished()),
        ("agent", 2_000, finished()),
        ("controller", 0, json!({ "event": "end" })),
    ]
}

fn main() -> serde_json::Result<()> {
    let mut records: Vec<Record> = Vec::new();
    for (process, ms, event) in history() {
        let event: Event = serde_json::from_value(event)?;
        let n = records.iter().filter(|record| record.process.as_str() == process).count() as u64;
        records.push(Record { seq: records.len() as u64, process: process.into(), n, at: Stamp(ms * MS), event });
    }
    let verdicts = checker::check(records, Tail::Whole);
    println!("verdict: {}", verdicts.verdict.name());
    for (name, property) in verdicts.properties.iter() {
        println!("  {name:<10} {:<9} {}", property.report().shown_verdict(), property.report().figures());
    }
    for story in verdicts.lock().iter().flat_map(|lock| checker::Report::stories(*lock)) {
        println!("\n  {}", story.headline);
        for line in story.lines {
            println!("    {:.3} s  {:<9} {}", line.at_ms / 1e3, line.who, line.what);
        }
        println!("  {}", story.closing);
    }
    assert_eq!(verdicts.verdict, checker::Verdict::Violated);
    Ok(())
}
