//! Numbers at the ends of their types overflow nothing. Each number of small histories becomes such a number, one at a
//! time.

use std::fs;

use history::{Reader, Record, Tail};
use serde_json::Value;

use crate::corpus;

const EXTREMES: [u64; 4] = [u64::MAX, i64::MAX as u64, u32::MAX as u64, 0];

/// Calls `on` with each number of a value, by its pointer.
fn numbers(value: &Value, at: &str, on: &mut impl FnMut(String)) {
    match value {
        Value::Number(_) => on(at.to_owned()),
        Value::Array(all) => all.iter().enumerate().for_each(|(i, one)| numbers(one, &format!("{at}/{i}"), on)),
        Value::Object(all) => all.iter().for_each(|(name, one)| numbers(one, &format!("{at}/{name}"), on)),
        _ => {}
    }
}

#[test]
fn the_largest_numbers_overflow_nothing() {
    let mut judged = 0;
    let mut files: Vec<_> = fs::read_dir(corpus::directory()).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "jsonl"));
    files.sort();
    for file in &files {
        // Some files end with a cut line.
        let records: Vec<Record> = Reader::open(file).unwrap().map_while(Result::ok).collect();
        for (i, record) in records.iter().enumerate() {
            let line = serde_json::to_value(record).unwrap();
            let mut places = Vec::new();
            numbers(&line, "", &mut |at| places.push(at));
            for place in places {
                for extreme in EXTREMES {
                    let mut changed = line.clone();
                    *changed.pointer_mut(&place).unwrap() = extreme.into();
                    // Some fields are smaller numbers.
                    let Ok(record) = serde_json::from_value::<Record>(changed) else { continue };
                    let mut changed = records.clone();
                    changed[i] = record;
                    checker::check(changed, Tail::Whole);
                    judged += 1;
                }
            }
        }
    }
    assert!(judged > 5_000, "{judged} histories");
}
