use std::path::Path;

use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

use super::{Names, parse, parse_report};
use crate::{Record, Report, Reports, checksum::Checksum};

/// The lines of recorded runs, without checksums.
fn recorded() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/findings/data");
    let mut lines = Vec::new();
    for case in ["K1", "K2", "E4", "F1"] {
        let text = std::fs::read(dir.join(format!("{case}-docker.history.jsonl"))).unwrap();
        let mut checksum = Checksum::default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let mut line = line.to_vec();
            checksum.strip(&mut line);
            lines.push(line);
        }
    }
    lines
}

/// Lines of events that the recorded runs do not have, or not in this form.
/// All follow `{"seq":1,"process":"w","n":2,"at":3,"event":`.
const OTHERS: [&str; 8] = [
    r#""acquire","client":4294967295,"attempt":1,"key":"k","intended":0,"mode":"read-intent-write","above":7}"#,
    concat!(
        r#""acquired","attempt":1,"token":null,"lease_ns":1,"granted_after":2,"promised_from":3,"place":4,"#,
        r#""valid_ns":5,"answers":[]}"#
    ),
    r#""behind","attempt":7}"#,
    r#""undone","attempt":7,"answers":[["redis-1","late"]]}"#,
    r#""gave-up","hold":9999999999999999999}"#,
    r#""check","hold":7,"passed":false}"#,
    r#""renewed","hold":7,"lease_ns":5,"answers":[["redis-1","done"]]}"#,
    concat!(
        r#""admission","number":1,"key":"k","kind":"write","repeat":true,"arms":[{"arm":"guard","#,
        r#""admitted":false,"seen":1,"base":2,"version":3,"value":4}]}"#
    ),
];

fn others() -> Vec<Vec<u8>> {
    OTHERS.map(|event| format!(r#"{{"seq":1,"process":"w","n":2,"at":3,"event":{event}"#).into_bytes()).to_vec()
}

/// The result that serde makes of a line.
fn by_serde(line: &[u8]) -> Option<Record> {
    serde_json::from_slice(line).ok()
}

#[test]
fn most_lines_of_a_run_are_read_by_position_and_all_as_serde_reads_them() {
    let lines = recorded();
    let (mut by_position, mut names) = (0, Names::default());
    for line in lines.iter().chain(&others()) {
        let text = String::from_utf8_lossy(line);
        if let Some(record) = parse(line, &mut names) {
            by_position += 1;
            assert_eq!(Some(record), by_serde(line), "{text}");
        } else {
            let is_usual = [",\"event\":\"read\"", ",\"event\":\"admission\"", ",\"event\":\"acquired\""];
            assert!(!is_usual.iter().any(|usual| text.contains(usual)), "left to serde: {text}");
        }
    }
    for line in others() {
        assert!(parse(&line, &mut Names::default()).is_some(), "{}", String::from_utf8_lossy(&line));
    }
    assert!(by_position * 10 >= lines.len() * 8, "{by_position} of {}", lines.len());
}

/// The line of the process, of which the recorder made this record.
fn report_of(line: &[u8]) -> Vec<u8> {
    let n = line.windows(5).position(|bytes| bytes == b",\"n\":").expect("a record has the number of its process");
    [b"{", &line[n + 1..]].concat()
}

#[test]
fn the_lines_of_processes_are_read_as_serde_reads_them() {
    let (mut by_position, mut all, mut reports) = (0, 0, Reports::default());
    for line in recorded().iter().chain(&others()).skip(1) {
        let (record, line) = (by_serde(line).unwrap(), report_of(line));
        let Record { n, at, event, .. } = record;
        assert_eq!(reports.read(&line).unwrap(), Report { n, at, event }, "{}", String::from_utf8_lossy(&line));
        all += 1;
        by_position += usize::from(parse_report(&line, &mut Names::default()).is_some());
    }
    assert!(by_position * 10 >= all * 8, "{by_position} of {all}");
    assert!(reports.read(br#"{"n":0,"at":1,"event":"watermark"} "#).is_ok(), "JSON may have spaces");
    assert!(reports.read(br#"{"n":0,"at":1,"event":"watermark"}}"#).is_err());
}

/// Returns whether a line is read by position, and compares it then with the result of serde.
#[track_caller]
fn is_by_position(line: &str, names: &mut Names) -> bool {
    let record = parse(line.as_bytes(), names);
    assert!(record.is_none() || record == by_serde(line.as_bytes()), "{line}: {record:?}");
    record.is_some()
}

#[test]
fn numbers_of_up_to_19_digits_are_read_by_position() {
    let mut names = Names::default();
    for digits in 0..25 {
        for (first, is_number) in [("9", true), ("1", true), ("0", digits == 1), ("-", false), ("+", false)] {
            let number = &format!("{first}234567890123456789012345")[..digits];
            for after in ["", ".0", "e1", "x", " "] {
                let number = format!("{number}{after}");
                let expected = is_number && (1..=19).contains(&digits) && after.is_empty();
                for line in [
                    format!(r#"{{"seq":{number},"process":"w","n":2,"at":3,"event":"watermark"}}"#),
                    format!(r#"{{"seq":1,"process":"w","n":2,"at":{number},"event":"watermark"}}"#),
                    format!(r#"{{"seq":1,"process":"w","n":2,"at":3,"event":"renew","hold":{number}}}"#),
                    format!(r#"{{"seq":1,"process":"w","n":2,"at":3,"event":"read","hold":{number},"op":{number}}}"#),
                ] {
                    assert_eq!(is_by_position(&line, &mut names), expected, "{line}");
                }
            }
        }
    }
}

#[test]
fn a_known_name_is_no_other_name() {
    let mut names = Names::default();
    let all = [
        "",
        "w",
        "ww",
        "worker-1",
        "worker-11",
        "worker-1#2",
        "fifteen bytes 1",
        "sixteen bytes 11",
        "longer than that 1",
        "longer than that 2",
    ];
    for name in all.iter().cycle().take(3 * all.len()) {
        for key in ["k0", "k1", name] {
            let line = |process: &str, key: &str| {
                format!(
                    concat!(
                        r#"{{"seq":1,"process":"{}","n":2,"at":3,"event":"acquire","client":0,"attempt":1,"key":"{}","#,
                        r#""intended":0}}"#
                    ),
                    process, key
                )
            };
            assert!(is_by_position(&line(name, key), &mut names));
            for bad in ["\0", "\n", "\\", "\\u0041", "\u{e9}", "\u{7f}"] {
                let bad = format!("{name}{bad}");
                assert!(!is_by_position(&line(&bad, key), &mut names), "{bad:?}");
                assert!(!is_by_position(&line(name, &bad), &mut names), "{bad:?}");
            }
        }
    }
}

/// More names than have a place.
#[test]
fn names_replace_one_another() {
    let mut names = Names::default();
    for n in (0..2_000).chain(0..2_000) {
        let line = format!(r#"{{"seq":1,"process":"worker-{n}","n":2,"at":3,"event":"watermark"}}"#);
        assert!(is_by_position(&line, &mut names));
    }
}

#[test]
fn words_that_only_begin_like_known_ones_are_left_to_serde() {
    let mut names = Names::default();
    let of = |event: &str| format!(r#"{{"seq":1,"process":"w","n":2,"at":3,"event":{event}}}"#);
    for event in [
        r#""rea","hold":1,"op":1"#,
        r#""reads","hold":1,"op":1"#,
        r#""read" ,"hold":1,"op":1"#,
        r#""read","hold" :1,"op":1"#,
        r#""watermark2""#,
        r#""watermark","hold":1"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[["of",0,null]]"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[["offs",0,null]]"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[["off",0,null],]"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[,["off",0,null]]"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[["off",0,nul]]"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[["off",0,null,1]]"#,
        r#""write-ok","hold":1,"op":1,"number":1,"arms":[["writes",tru,1]]"#,
        r#""write-ok","hold":1,"op":1,"number":1,"arms":[["writes",1,1]]"#,
        r#""admission","number":1,"key":"k","kind":"reads","arms":[]"#,
        r#""admission","number":1,"key":"k","kind":"writ","arms":[]"#,
        r#""admission","number":1,"key":"k","kind":"read","op":1,"hold":1,"arms":[]"#,
        r#""admission","number":1,"key":"k","kind":"write","hold":1,"op":2,"repeat":null,"arms":[]"#,
        r#""admission","number":1,"key":"k","kind":"read","arms":[{"arm":"off","admitted":1,"version":1,"value":1}]"#,
        r#""admission","number":1,"key":"k","kind":"read","arms":[{"arm":"off","version":1,"value":1}]"#,
    ] {
        assert!(!is_by_position(&of(event), &mut names), "{event}");
    }
    for event in [
        r#""read-ok","hold":1,"op":1,"number":1"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[]"#,
        r#""read-ok","hold":1,"op":1,"number":1,"arms":[["cas",0,null],["off",12345678,123456789]]"#,
        r#""write-ok","hold":1,"op":1,"number":1,"arms":[["deadline",false,0],["reads",true,null]]"#,
        r#""admission","number":1,"key":"k","kind":"read","arms":[]"#,
        r#""admission","number":1,"key":"k","kind":"write","hold":1,"op":2,"repeat":false,"arms":[]"#,
        r#""admission","number":1,"key":"k","kind":"write","hold":1,"op":2,"token":3,"repeat":true,"arms":[]"#,
        r#""released","hold":1,"removed":false,"answers":[]"#,
        r#""released","hold":1,"removed":true,"answers":[]"#,
        r#""check","hold":1,"passed":true"#,
    ] {
        assert!(is_by_position(&of(event), &mut names), "{event}");
    }
}

#[test]
fn each_failure_and_each_answer_of_a_node_is_read_as_serde_reads_it() {
    let mut names = Names::default();
    let read_by_position = ["held", "validity", "no-majority", "lost", "cancelled"].map(|why| (why, true));
    let others = ["error", "deadlock", "held "].map(|why| (why, false));
    for (why, expected) in read_by_position.into_iter().chain(others) {
        for outcome in ["failed", "indeterminate"] {
            for answer in ["granted", "done", "refused", "late", "none"] {
                let line = format!(
                    concat!(
                        r#"{{"seq":1,"process":"w","n":2,"at":3,"event":"acquire-failed","attempt":1,"#,
                        r#""outcome":"{}","why":"{}","answers":[["redis-1","{}"]]}}"#
                    ),
                    outcome, why, answer
                );
                assert_eq!(is_by_position(&line, &mut names), expected, "{line}");
            }
        }
    }
}

/// Each line is changed by a few bytes that JSON and the types care about.
#[test]
fn a_changed_line_is_read_as_serde_reads_it_or_left_to_serde() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut lines = recorded();
    lines.extend(others());
    let (mut accepted, mut left, mut names) = (0, 0, Names::default());
    for _ in 0..60_000 {
        let mut line = lines.choose(&mut rng).unwrap().clone();
        if line.len() > 2_000 {
            continue;
        }
        for _ in 0..rng.random_range(1..=3) {
            let place = rng.random_range(0..line.len());
            match rng.random_range(0..4) {
                0 => line[place] = *b"0123456789\",:[]{}\\eE.-+ nulltrue\x7f\xc3".choose(&mut rng).unwrap(),
                1 => line.insert(place, *b"0123456789\",:[]{}\\eE.-+ ".choose(&mut rng).unwrap()),
                2 => {
                    line.remove(place);
                }
                _ => {
                    let end = (place + rng.random_range(1..30)).min(line.len());
                    let copy = line[place..end].to_vec();
                    line.splice(place..place, copy);
                }
            }
        }
        match parse(&line, &mut names) {
            Some(record) => {
                accepted += 1;
                assert_eq!(Some(record), by_serde(&line), "{}", String::from_utf8_lossy(&line));
            }
            None => left += 1,
        }
    }
    assert!(accepted > 1_000 && left > 1_000, "{accepted} read by position, {left} left to serde");
}
