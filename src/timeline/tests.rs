use std::path::PathBuf;

use history::{HoldId, Record, RequestKind, Token};

use crate::judge::judge;

use super::*;

fn corpus(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus")).join(format!("{name}.jsonl"))
}

fn timeline(name: &str) -> Timeline {
    let path = corpus(name);
    read(&path, &judge(&path).unwrap().verdicts).unwrap()
}

#[test]
fn the_pause_has_its_holds_its_fault_and_its_stale_write() {
    let timeline = timeline("kleppmann-pause");
    let lanes: Vec<&str> = timeline.lanes.iter().map(|lane| &*lane.name).collect();
    assert_eq!(lanes, ["worker-1", "worker-2"]);
    let [paused, next] = [1, 1_000_000_001].map(|id| timeline.hold(HoldId(id)).unwrap());
    assert_eq!([paused.token, next.token], [Some(Token(41)), Some(Token(42))]);
    // 2.001 s + 2 s − (1 % + 2 ms).
    assert_eq!(timeline.ms(paused.entitled_until()), 3_979.0);
    assert!(paused.is_wrong && next.is_wrong);
    let write = paused.acts.iter().find(|act| act.kind == RequestKind::Write).unwrap();
    assert_eq!(timeline.ms(write.at), 7_102.0);
    let standings: Vec<_> = write.decisions.iter().map(|d| (d.arm, d.admitted, d.standing)).collect();
    assert_eq!(standings, [(Arm::Off, true, Standing::Stale), (Arm::Writes, false, Standing::Current)]);
    let fault = &timeline.faults[0];
    assert_eq!(fault.proved.map(|(from, to)| (timeline.ms(from), timeline.ms(to))), Some((2_100.0, 7_100.0)));
    let window = &timeline.windows[0];
    assert_eq!((window.from_ms, window.to_ms), (4_051.0, 7_102.0));
    assert_eq!(timeline.values, [(Arm::Off, 1), (Arm::Writes, 1)]);
}

#[test]
fn the_zero_is_the_zero_of_the_stories() {
    for name in ["kleppmann-pause", "unsafe-release", "overrun", "given-up"] {
        let verdicts = judge(&corpus(name)).unwrap().verdicts;
        let timeline = read(&corpus(name), &verdicts).unwrap();
        for window in &verdicts.lock().unwrap().windows {
            let acquired = timeline.hold(window.holds[0]).map(|hold| timeline.ms(hold.acquired)).unwrap();
            assert!(window.story.iter().any(|line| (line.at_ms - acquired).abs() < 1e-6), "{name}");
        }
    }
}

#[test]
fn every_history_of_the_corpus_has_a_timeline_with_all_its_windows() {
    let mut seen = 0;
    for entry in std::fs::read_dir(corpus("x").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "jsonl") {
            let Ok(judged) = judge(&path) else { continue };
            let timeline = read(&path, &judged.verdicts).unwrap();
            let windows = judged.verdicts.lock().map_or(0, |lock| lock.windows.len());
            assert_eq!(timeline.windows.len(), windows);
            assert!(timeline.windows.iter().all(|window| window.from_ms <= window.to_ms), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

/// The sections of one client, one after the other, each with a read and a write.
fn long(sections: u64) -> Vec<Record> {
    let text = std::fs::read_to_string(corpus("kleppmann-pause")).unwrap();
    let mut records: Vec<Record> = text.lines().take(6).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut add = |process: &str, at: u64, event: String| {
        let line = format!(r#"{{"seq":0,"process":"{process}","n":0,"at":{at},"event":{event}}}"#);
        records.push(serde_json::from_str(&line).unwrap());
    };
    for id in 1..=sections {
        let at = 11_000_000_000 + id * 10_000_000;
        let acquire = format!(r#""acquire","client":0,"attempt":{id},"key":"k0","intended":{at}"#);
        add("worker-1", at, acquire);
        let acquired = format!(
            r#""acquired","attempt":{id},"token":{id},"lease_ns":2000000000,"granted_after":{at},"valid_ns":1,{}"#,
            r#""answers":[]"#
        );
        add("worker-1", at + 1_000_000, acquired);
        add("worker-1", at + 3_000_000, format!(r#""release","hold":{id}"#));
        add("worker-1", at + 4_000_000, format!(r#""released","hold":{id},"removed":true,"answers":[]"#));
    }
    records
}

#[test]
fn a_long_run_is_counted_where_it_is_not_drawn() {
    let sections = 20_000;
    let mut builder = Builder::new(&checker::check(long(3), history::Tail::Whole));
    long(sections).iter().for_each(|record| builder.add(record));
    let timeline = builder.finish();
    assert!(timeline.holds.len() <= 4_000, "{}", timeline.holds.len());
    assert_eq!(timeline.holds.len() as u64 + timeline.left_out.holds, sections);
    let counted: u32 = timeline.lanes[0].left_out.iter().sum();
    assert_eq!(u64::from(counted), timeline.left_out.holds);
    assert_eq!(timeline.series.buckets.iter().map(|bucket| bucket.acquired).sum::<u64>(), sections);
}
