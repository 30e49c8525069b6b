use std::path::PathBuf;

use history::{HoldId, Record, RequestKind, Token};

use crate::judge::judge;

use super::*;

fn corpus(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus")).join(format!("{name}.jsonl"))
}

fn records(name: &str) -> Vec<Record> {
    let text = std::fs::read_to_string(corpus(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
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
fn the_values_are_the_sums_of_the_last_counters_of_all_keys() {
    let records = records("kleppmann-pause");
    let is_write = |record: &&Record| matches!(record.event, Event::Admission { kind: RequestKind::Write, .. });
    let write = records.iter().rfind(is_write).unwrap();
    let mut builder = Builder::new(&checker::check(records.clone(), history::Tail::Whole));
    records.iter().for_each(|record| builder.add(record));
    // An earlier admission may come later in the file.
    for (of_key, at, counters) in [("k1", 8, [6, 2]), ("k1", 10, [7, 5]), ("k1", 9, [3, 3]), ("k0", 1, [0, 0])] {
        let mut later = write.clone();
        if let Event::Admission { number, key, hold, arms, .. } = &mut later.event {
            (*number, *key, *hold) = (at, of_key.into(), None);
            arms.iter_mut().zip(counters).for_each(|(decision, counter)| decision.value = counter);
        }
        builder.add(&later);
    }
    // The counters of the key of the history are 1 and 1.
    assert_eq!(builder.finish().values, [(Arm::Off, 8), (Arm::Writes, 6)]);
}

#[test]
fn a_request_that_a_restart_undid_is_left_out() {
    let records = records("kleppmann-pause");
    let numbers = records.iter().filter_map(|record| match record.event {
        Event::Admission { number, .. } => Some(number),
        _ => None,
    });
    let last = numbers.max().unwrap();
    let verdicts = checker::check(records.clone(), history::Tail::Whole);
    let left_out = |recoveries: &[(&str, u64)]| {
        let mut builder = Builder::new(&verdicts);
        builder.know_recoveries(recoveries.iter().map(|(process, durable)| ((*process).into(), *durable)).collect());
        records.iter().for_each(|record| builder.add(record));
        last - builder.finish().left_out.acts_of_run
    };
    let none = left_out(&[]);
    for (recoveries, expected) in [
        (&[("resource#2", last)][..], 0),
        (&[("resource#2", last - 1)][..], 1),
        (&[("resource#3", last - 2), ("resource#2", last)][..], 2),
        (&[("resource", 0)][..], 0),
    ] {
        assert_eq!(left_out(recoveries) - none, expected, "{recoveries:?}");
    }
}

#[test]
fn restarts_are_known_also_from_a_history_without_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let restarts = concat!(
        r#"{"process":"resource#2","n":0,"at":5,"event":"recovered","durable":42}"#,
        "\n",
        r#"{"process":"resource#3","n":0,"at":6,"event":"recovered","durable":7}"#,
        "\n",
    );
    let end = "{\"process\":\"controller\",\"n\":1,\"at\":0,\"event\":\"end\"}\n";
    let expected = vec![(ProcessName::from("resource#2"), 42), (ProcessName::from("resource#3"), 7)];
    for rest in ["", end] {
        std::fs::write(&path, [restarts, rest].concat()).unwrap();
        assert_eq!(recoveries(&path).unwrap(), expected, "{rest}");
    }
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
fn the_zero_is_the_earliest_start_in_any_order_of_the_file() {
    let mut records = records("kleppmann-pause");
    let starts = records.iter_mut().filter(|record| matches!(record.event, Event::Started { .. }));
    for (record, at) in starts.zip([10, 9, 11, 12, 12]) {
        record.at = Stamp(at);
    }
    assert_eq!(built(&records).zero, Stamp(9));
}

#[test]
fn a_renewal_that_is_answered_too_late_extends_no_promise() {
    let records = records("kleppmann-pause");
    let verdicts = checker::check(records.clone(), history::Tail::Whole);
    let ms = |ms: u64| Stamp(10_000_000_000 + ms * 1_000_000);
    // The promise ends after 3.979 s.
    for (answered, expected) in [(3_978, (5_478, 1)), (3_979, (3_979, 0)), (4_500, (3_979, 0))] {
        let mut builder = Builder::new(&verdicts);
        let hold = HoldId(1);
        let renewed = Event::Renewed { hold, lease_ns: 2_000_000_000, answers: Vec::new() };
        for record in &records {
            builder.add(record);
            if matches!(record.event, Event::Acquired { attempt, .. } if attempt == hold) {
                for (at, event) in [(3_500, Event::Renew { hold }), (answered, renewed.clone())] {
                    builder.add(&Record { at: ms(at), event, ..record.clone() });
                }
            }
        }
        let timeline = builder.finish();
        let hold = timeline.hold(hold).unwrap();
        assert_eq!((hold.promise_end, hold.renewed), (ms(expected.0), expected.1), "answered after {answered} ms");
    }
}

#[test]
fn a_promise_counts_from_the_stamp_that_its_grant_names() {
    let mut records = records("kleppmann-pause");
    let end = |records: &[Record]| {
        let timeline = built(records);
        timeline.ms(timeline.hold(HoldId(1)).unwrap().promise_end)
    };
    // The client sent its attempt at 2.001 s.
    assert_eq!(end(&records), 3_979.0);
    for record in &mut records {
        if let Event::Acquired { attempt: HoldId(1), promised_from, .. } = &mut record.event {
            // Its lease began later: it had to wait in a queue.
            *promised_from = Some(Stamp(12_011_000_000));
        }
    }
    assert_eq!(end(&records), 3_989.0);
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

#[test]
fn a_kill_ends_a_hold_as_it_does_for_the_checker() {
    let mut records = records("killed-at-once");
    let end = |records: &[Record]| {
        let timeline = built(records);
        let hold = timeline.hold(HoldId(1_000_000_001)).unwrap();
        (hold.killed, hold.entitled_until())
    };
    // The kill was requested at the stamp at which worker-2 acquired.
    let at = Stamp(12_500_000_000);
    assert_eq!(end(&records), (Some(at), at));
    // A client that gives its hold up is entitled until the kill all the same.
    let gave_up = Event::GaveUp { hold: HoldId(1_000_000_001) };
    records.insert(14, Record { seq: 14, process: "worker-2".into(), n: 3, at, event: gave_up });
    assert_eq!(end(&records), (Some(at), at));
    // A client that acquires before it dies has a hold that ends as it begins.
    let later = Stamp(12_505_000_000);
    let is_acquired = |r: &&mut Record| matches!(r.event, Event::Acquired { attempt: HoldId(1_000_000_001), .. });
    records.iter_mut().find(is_acquired).unwrap().at = later;
    assert_eq!(end(&records), (Some(later), later));
}

#[test]
fn a_promise_outlasts_the_hold_that_its_client_gave_up() {
    let timeline = timeline("given-up");
    let hold = timeline.hold(HoldId(1)).unwrap();
    let [gave_up, end] = [hold.gave_up.unwrap(), hold.entitled_until()].map(|at| timeline.ms(at));
    // The client sent its attempt at 100 ms, for a lease of 2 s.
    assert_eq!((gave_up, end), (801.0, 2_078.0));
}

/// The sections of a client, one after the other. `at` is the time of the first, in milliseconds.
pub struct Sections {
    pub client: u64,
    pub count: u64,
    pub at: u64,
    pub key: &'static str,
}

/// The history of these sections, in the order of time.
pub fn long(all: &[Sections]) -> Vec<Record> {
    let text = std::fs::read_to_string(corpus("kleppmann-pause")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let parsed = |line: &&str| serde_json::from_str::<Record>(line).unwrap();
    // The plan and the starts; the ends of the processes and of the run.
    let mut records: Vec<Record> = lines[..6].iter().map(parsed).collect();
    let ends = lines[lines.len() - 6..].iter().map(parsed);
    let mut lines = Vec::new();
    for Sections { client, count, at, key } in all {
        for id in 1..=*count {
            let at = 11_000_000_000 + (at + id * 10) * 1_000_000;
            let (token, hold) = (2 * id + client, client * 1_000_000_000 + id);
            let granted = r#""lease_ns":2000000000,"valid_ns":1,"answers":[["redis","granted"]]"#;
            let acquired = format!(r#""acquired","attempt":{hold},"token":{token},"granted_after":{at},{granted}"#);
            let events = [
                (0, format!(r#""acquire","client":{client},"attempt":{hold},"key":"{key}","intended":{at}"#)),
                (1, acquired),
                (6, format!(r#""release","hold":{hold}"#)),
                (7, format!(r#""released","hold":{hold},"removed":true,"answers":[]"#)),
            ];
            for (after, event) in events {
                lines.push((at + after * 1_000_000, client, event));
            }
        }
    }
    lines.sort_by_key(|(at, client, _)| (*at, *client));
    let last = lines.last().map_or(0, |(at, ..)| *at);
    let lines = lines.into_iter().map(|(at, client, event)| (at, format!("worker-{}", client + 1), event));
    let names = ["agent", "resource", "worker-1", "worker-2", "worker-3"];
    let finished = names.map(|name| (last, name.to_owned(), r#""finished""#.to_owned()));
    let mut numbers: HashMap<String, u64> = HashMap::new();
    for (at, process, event) in lines.chain(finished) {
        let (seq, n) = (records.len(), numbers.entry(process.clone()).or_default());
        *n += 1;
        let line = format!(r#"{{"seq":{seq},"process":"{process}","n":{n},"at":{at},"event":{event}}}"#);
        records.push(serde_json::from_str(&line).unwrap());
    }
    records.extend(ends);
    records
}

/// The timeline of a whole history.
pub fn built(records: &[Record]) -> Timeline {
    let mut builder = Builder::new(&checker::check(records.to_vec(), history::Tail::Whole));
    records.iter().for_each(|record| builder.add(record));
    builder.finish()
}

#[test]
fn a_long_run_is_counted_where_it_is_not_drawn() {
    let count = 20_000;
    let timeline = built(&long(&[Sections { client: 0, count, at: 0, key: "k0" }]));
    assert!(timeline.holds.len() <= 4_000, "{}", timeline.holds.len());
    assert_eq!(timeline.holds.len() as u64 + timeline.left_out.holds, count);
    let counted: u32 = timeline.lanes[0].left_out.iter().sum();
    assert_eq!(u64::from(counted), timeline.left_out.holds);
    assert_eq!(timeline.series.buckets.iter().map(|bucket| bucket.acquired).sum::<u64>(), count);
}

#[test]
fn no_hold_of_a_window_is_left_out_for_holds_of_other_keys() {
    let double = |client| Sections { client, count: 1_000, at: 150_000 + client, key: "k0" };
    let timeline = built(&long(&[Sections { client: 0, count: 20_000, at: 0, key: "k1" }, double(1), double(2)]));
    assert!(timeline.windows.len() >= 1_000, "{}", timeline.windows.len());
    let holds = timeline.windows.iter().flat_map(|window| &window.holds);
    assert_eq!(holds.filter(|id| timeline.hold(**id).is_none()).count(), 0);
    assert_eq!((timeline.left_out.wrong_holds, timeline.left_out.near_holds), (0, 0));
    assert!(timeline.left_out.holds > 15_000, "{}", timeline.left_out.holds);
}

#[test]
fn of_too_many_windows_the_worst_are_drawn() {
    let double = |client| Sections { client, count: 4_000, at: client, key: "k0" };
    let records = long(&[double(0), double(1)]);
    let verdicts = checker::check(records.clone(), history::Tail::Whole);
    let windows = &verdicts.lock().unwrap().windows;
    let timeline = built(&records);
    let worst = worst_first(windows);
    let is_drawn = |window: &usize| windows[*window].holds.iter().all(|id| timeline.hold(*id).is_some());
    assert!(worst[..2_000].iter().all(is_drawn));
    assert!(!worst.iter().all(is_drawn));
    assert_eq!(timeline.holds.len(), holds::WRONG);
    assert_eq!(timeline.left_out.wrong_holds + timeline.left_out.near_holds, timeline.left_out.holds);
    assert_eq!(timeline.left_out.holds, 8_000 - holds::WRONG as u64);
}

#[test]
fn too_many_requests_are_counted_and_the_stale_write_is_kept() {
    let mut records = records("kleppmann-pause");
    let mut builder = Builder::new(&checker::check(records.clone(), history::Tail::Whole));
    let read = records.iter().position(|record| matches!(record.event, Event::Admission { .. })).unwrap();
    let act = records[read].clone();
    (0..100).for_each(|_| records.insert(read, act.clone()));
    records.iter().for_each(|record| builder.add(record));
    let timeline = builder.finish();
    let drawn: usize = timeline.holds.iter().map(|hold| hold.acts.len()).sum();
    assert_eq!(timeline.left_out.acts_of_run, 104);
    assert!(timeline.left_out.holds == 0 && drawn < 70, "{drawn}");
    let last = timeline.hold(HoldId(1)).unwrap().acts.last().unwrap();
    assert_eq!((last.kind, timeline.ms(last.at)), (RequestKind::Write, 7_102.0));
}

#[test]
fn the_repeated_answer_to_a_resend_is_no_request() {
    let records = records("kleppmann-pause");
    let is_write = |record: &Record| matches!(record.event, Event::Admission { kind: RequestKind::Write, .. });
    let write = records.iter().position(is_write).unwrap();
    let mut again = records[write].clone();
    if let Event::Admission { repeat, .. } = &mut again.event {
        *repeat = true;
    }
    let mut builder = Builder::new(&checker::check(records.clone(), history::Tail::Whole));
    records[..=write].iter().chain([&again]).chain(&records[write + 1..]).for_each(|record| builder.add(record));
    let counts = |timeline: &Timeline| {
        let drawn: Vec<usize> = timeline.holds.iter().map(|hold| hold.acts.len()).collect();
        (timeline.left_out.acts_of_run, drawn)
    };
    assert_eq!(counts(&builder.finish()), counts(&built(&records)));
}
