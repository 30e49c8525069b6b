//! The same plan gives the same history, byte for byte.

use crate::plans::{history, plan};

fn text(backend: &str, nemesis: &str, seed: u64) -> String {
    let lines = history(&plan(backend, nemesis, seed), backend).into_iter();
    lines.map(|record| serde_json::to_string(&record).unwrap() + "\n").collect()
}

#[test]
fn the_same_plan_gives_the_same_history_byte_for_byte() {
    for seed in 0..50 {
        for (backend, nemesis) in [("redlock", "pause,clock,partition,amnesia,delay"), ("redis", "kill,pause,powerloss")] {
            assert!(text(backend, nemesis, seed) == text(backend, nemesis, seed), "{backend} {nemesis} {seed}");
        }
    }
    assert_ne!(text("redlock", "pause", 1), text("redlock", "pause", 2));
}
