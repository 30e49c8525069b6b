//! The same plan gives the same history, byte for byte: here twice in one build; `scripts/same-history` compares a
//! debug and a release build by the digest that this prints.

use std::hash::{DefaultHasher, Hasher};

use crate::plans::{history, plan};

const SEEDS: u64 = 200;

fn text(backend: &str, nemesis: &str, seed: u64) -> String {
    let lines = history(&plan(backend, nemesis, seed), backend).into_iter();
    lines.map(|record| serde_json::to_string(&record).unwrap() + "\n").collect()
}

#[test]
fn the_same_plan_gives_the_same_history_byte_for_byte() {
    let mut digest = DefaultHasher::new();
    for seed in 0..SEEDS {
        let (backend, nemesis) = match seed % 3 {
            0 => ("redlock", "pause,clock,partition,amnesia,delay,slow:any-lock-node"),
            1 => ("redis", "kill,pause,powerloss,delay:any-worker,stop,slow"),
            _ => ("etcd", "pause,kill,clock,partition,pause:any-lock-node,stop:any-lock-node,slow"),
        };
        let first = text(backend, nemesis, seed);
        assert!(first == text(backend, nemesis, seed), "{backend} {nemesis} {seed}");
        digest.write(first.as_bytes());
    }
    println!("digest of {SEEDS} histories: {:016x}", digest.finish());
    assert_ne!(text("redlock", "pause", 1), text("redlock", "pause", 2));
}
