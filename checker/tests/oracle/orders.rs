//! The order in which the streams of processes reach the recorder, also of records that lost or changed something. It
//! must not matter where in the file the lines of a process are, nor where the controller tells the end of a process.

use history::{Event, ProcessName, Record, Tail};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{PART, asked, difference, lies, model, number, over};

/// Histories that are tried.
const HISTORIES: u64 = 8_000;

/// The same record in another order. The lines of a process stay in order, the plan stays first, and the end last. The
/// end of a process comes at any place after its lines.
fn reordered(records: &[Record], rng: &mut ChaCha8Rng) -> Vec<Record> {
    let mut streams: Vec<(ProcessName, Vec<Record>)> = Vec::new();
    let mut ends = Vec::new();
    let inner = &records[1..records.len() - 1];
    for record in inner {
        match &record.event {
            Event::ProcessEnded { .. } => ends.push(record.clone()),
            _ => match streams.iter_mut().find(|(name, _)| *name == record.process) {
                Some((_, stream)) => stream.push(record.clone()),
                None => streams.push((record.process.clone(), vec![record.clone()])),
            },
        }
    }
    // From behind, so that the next line of a stream is its last.
    streams.iter_mut().for_each(|(_, stream)| stream.reverse());
    let mut all = vec![records[0].clone()];
    while !streams.is_empty() || !ends.is_empty() {
        let has_ended = |end: &Record| match &end.event {
            Event::ProcessEnded { ended, .. } => streams.iter().all(|(name, _)| name != ended),
            _ => true,
        };
        let ready: Vec<usize> = (0..ends.len()).filter(|i| has_ended(&ends[*i])).collect();
        if !ready.is_empty() && (streams.is_empty() || rng.random_bool(0.1)) {
            all.push(ends.swap_remove(ready[rng.random_range(0..ready.len())]));
            continue;
        }
        let place = rng.random_range(0..streams.len());
        // Sometimes a stream reaches the recorder as a whole.
        let most = if rng.random_bool(0.02) { usize::MAX } else { rng.random_range(1..=6) };
        for _ in 0..most.min(streams[place].1.len()) {
            all.extend(streams[place].1.pop());
        }
        if streams[place].1.is_empty() {
            streams.swap_remove(place);
        }
    }
    all.push(records[records.len() - 1].clone());
    for (n, record) in (0..).zip(all.iter_mut().filter(|r| r.process.as_str() == "controller")) {
        record.n = n;
    }
    all
}

/// Loses the last events of processes that were killed, as the engine may.
fn lose_ends(records: &mut Vec<Record>, rng: &mut ChaCha8Rng) -> bool {
    let killed = records.iter().filter_map(|r| match &r.event {
        Event::ProcessEnded { ended, code: Some(137) } => Some(ended.clone()),
        _ => None,
    });
    let killed: Vec<_> = killed.collect();
    for process in &killed {
        let count = records.iter().filter(|r| r.process == *process).count() as u64;
        let lost = rng.random_range(0..=count.min(8));
        records.retain(|r| r.process != *process || r.n == 0 || r.n < count - lost);
    }
    !killed.is_empty()
}

#[test]
fn the_order_of_recording_changes_no_verdict_of_a_broken_record() {
    let counts = [(); 3].map(|()| std::sync::atomic::AtomicU64::new(0));
    let count = |of: usize| _ = counts[of].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    over(asked(HISTORIES), |seed, _| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut records = model::records(&model::World::run(seed), seed);
        let has_lost = lose_ends(&mut records, &mut rng);
        let lie = lies::lied(records.clone(), &mut rng).filter(|_| seed % 4 != 0);
        let records = lie.as_ref().map_or(records, |(_, records)| records.clone());
        let judged = |records: &[Record]| format!("{:#?}", checker::check(records.to_vec(), Tail::Whole));
        let first = judged(&records);
        for _ in 0..3 {
            let other = judged(&reordered(&records, &mut rng));
            let lie = lie.as_ref().map(|(lie, _)| lie);
            assert!(first == other, "seed {seed}, {lie:?}, {has_lost}:\n{}", difference(&first, &other));
        }
        if lie.is_some() {
            count(usize::from(has_lost));
        } else {
            count(2);
        }
    });
    if number("ORACLE_HISTORIES").is_none() {
        let counts = counts.map(std::sync::atomic::AtomicU64::into_inner);
        assert!(counts.iter().all(|n| *n > 400 / PART), "too few of a kind: {counts:?}");
    }
}
