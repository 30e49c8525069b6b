use super::*;
use crate::{ClientId, Event, HoldId, Stamp};

fn written(dir: &Path) -> PathBuf {
    let path = dir.join("history.jsonl");
    let mut writer = Writer::create(&path).unwrap();
    for n in 0..3 {
        let event = Event::Acquire {
            client: ClientId(0),
            attempt: HoldId::of(1, n),
            key: "k0".into(),
            intended: Stamp(5),
            mode: crate::Mode::Write,
            above: None,
        };
        writer.append(&Record { seq: n, process: "worker-1".into(), n, at: Stamp(10 + n), event }).unwrap();
    }
    writer.flush().unwrap();
    path
}

#[test]
fn what_is_written_is_read_back_compressed_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    let plain: Vec<_> = Reader::open(&path).unwrap().map(Result::unwrap).collect();
    assert_eq!(plain.iter().map(|r| r.seq).collect::<Vec<_>>(), [0, 1, 2]);
    let packed = dir.path().join("history.jsonl.zst");
    std::fs::write(&packed, zstd::encode_all(File::open(&path).unwrap(), 3).unwrap()).unwrap();
    let mut reader = Reader::open(&packed).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).collect::<Vec<_>>(), plain);
    assert_eq!(reader.tail(), Tail::Whole);
}

#[test]
fn a_history_cut_anywhere_is_readable_up_to_its_last_whole_event() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    let whole = std::fs::read(&path).unwrap();
    let packed = zstd::encode_all(whole.as_slice(), 3).unwrap();
    for cut in 0..whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let lines = reader.by_ref().map(Result::unwrap).count();
        assert_eq!(lines, whole[..cut].iter().filter(|b| **b == b'\n').count());
        assert_eq!(reader.tail() == Tail::Cut, cut > 0 && whole[cut - 1] != b'\n');
    }
    let path = dir.path().join("cut.zst");
    std::fs::write(&path, &packed[..packed.len() - 5]).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    assert!(reader.by_ref().all(|r| r.is_ok()));
    assert_eq!(reader.tail(), Tail::Cut);
}

#[test]
fn a_small_file_that_decompresses_to_a_huge_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read(written(dir.path())).unwrap();
    let mut line = text.split(|byte| *byte == b'\n').next().unwrap().to_vec();
    Checksum::default().strip(&mut line);
    line.push(b'\n');
    let packed = zstd::encode_all(line.repeat(200_000).as_slice(), 3).unwrap();
    let path = dir.path().join("bomb.zst");
    std::fs::write(&path, &packed).unwrap();
    let mut read = 0;
    let error = Reader::open(&path).unwrap().inspect(|_| read += 1).find_map(Result::err).unwrap();
    assert!(error.is_in_the_file() && error.to_string().contains("1000 times"), "{error}");
    // The last one is the error.
    assert_eq!(read - 1, packed.len() * 1_000 / line.len());
}

#[test]
fn the_bound_on_decompression_counts_lines_that_are_read_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut reader = Reader::open(&written(dir.path())).unwrap();
    reader.left = lines()[..2].concat().len() as u64;
    assert!(reader.by_ref().take(2).all(|record| record.is_ok()));
    assert!(matches!(reader.next(), Some(Err(HistoryError::Inflated { .. }))));
}

#[test]
fn a_read_that_a_signal_interrupts_is_tried_again() {
    struct Interrupted<'a> {
        text: &'a [u8],
        is_interrupted: bool,
    }
    impl Read for Interrupted<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.is_interrupted = !self.is_interrupted;
            if self.is_interrupted { Err(io::ErrorKind::Interrupted.into()) } else { self.text.read(to) }
        }
    }
    let (mut line, text) = (Vec::new(), b"first\nsecond\n");
    let mut input = BufReader::new(Interrupted { text, is_interrupted: false });
    read_line(&mut input, &mut line, LINE).unwrap();
    assert_eq!(line, b"first\n");
}

#[test]
fn a_history_that_exists_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    let before = std::fs::read(&path).unwrap();
    let error = Writer::create(&path).err().unwrap();
    assert!(matches!(&error, HistoryError::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_full_disk_is_an_error_of_the_writer() {
    let path = PathBuf::from("/dev/full");
    let file = BufWriter::with_capacity(1 << 10, File::options().write(true).open(&path).unwrap());
    let mut writer = Writer { path, file, checksum: Checksum::default(), line: Vec::new() };
    let record = Record { seq: 0, process: "worker-1".into(), n: 0, at: Stamp(1), event: Event::Watermark };
    writer.append(&record).unwrap();
    assert!(writer.flush().is_err_and(|error| error.to_string().contains("/dev/full")));
    let process = "w".repeat(1 << 10).as_str().into();
    assert!(writer.append(&Record { process, ..record }).is_err(), "a line that is longer than the buffer");
}

#[test]
fn a_broken_line_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    std::fs::write(&path, "{\"seq\":0,\"process\":\"worker-1\",\"n\":0,\"at\":0,\"event\":\"acquires\"}\n").unwrap();
    let error = Reader::open(&path).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("line 1") && error.contains("acquires"), "{error}");
}

/// The lines of a history of three events.
fn lines() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read(written(dir.path())).unwrap();
    text.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect()
}

/// Reads these lines: the first error, or the number of events.
fn read(lines: &[Vec<u8>]) -> Result<usize, HistoryError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    std::fs::write(&path, lines.concat()).unwrap();
    Reader::open(&path)?.try_fold(0, |count, record| record.map(|_| count + 1))
}

#[track_caller]
fn is_damaged(lines: &[Vec<u8>], expected: u64) {
    match read(lines) {
        Err(HistoryError::Damaged { line, .. }) => assert_eq!(line, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flipped_bit_is_found_in_its_line() {
    let lines = lines();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let whole = lines.concat();
    let records: Vec<Record> = {
        std::fs::write(&path, &whole).unwrap();
        Reader::open(&path).unwrap().map(Result::unwrap).collect()
    };
    for bit in 0..whole.len() * 8 {
        let mut text = whole.clone();
        text[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &text).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let read: Result<Vec<_>, _> = reader.by_ref().collect();
        let line = whole[..bit / 8].iter().filter(|b| **b == b'\n').count() as u64 + 1;
        match read {
            Err(HistoryError::Damaged { line: found, .. } | HistoryError::Line { line: found, .. }) => {
                assert_eq!(found, line, "bit {bit}");
            }
            Ok(read) => {
                assert!(bit / 8 == whole.len() - 1 && reader.tail() == Tail::Cut, "bit {bit} changed unnoticed");
                assert_eq!(read, records[..2]);
            }
            Err(other) => panic!("bit {bit}: {other}"),
        }
    }
}

/// Lines of many lengths, so that the buffer ends at each part of a line; some are longer than the buffer.
#[test]
fn lines_are_read_wherever_the_buffer_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let mut writer = Writer::create(&path).unwrap();
    let mut records = Vec::new();
    for n in 0..3_000_u64 {
        let length = if n % 1_000 == 999 { 70_000 } else { n as usize % 613 };
        let event = Event::Acquire {
            client: ClientId(0),
            attempt: HoldId::of(1, n),
            key: "k".repeat(length).as_str().into(),
            intended: Stamp(n * n),
            mode: crate::Mode::Write,
            above: None,
        };
        records.push(Record { seq: n, process: "worker-1".into(), n, at: Stamp(10 + n), event });
        writer.append(records.last().unwrap()).unwrap();
    }
    writer.flush().unwrap();
    let read: Vec<Record> = Reader::open(&path).unwrap().map(Result::unwrap).collect();
    assert!(read == records);
    let packed = dir.path().join("history.jsonl.zst");
    std::fs::write(&packed, zstd::encode_all(File::open(&path).unwrap(), 3).unwrap()).unwrap();
    assert!(Reader::open(&packed).unwrap().map(Result::unwrap).eq(read));
}

#[test]
fn lost_added_exchanged_and_moved_lines_are_found() {
    let whole = lines();
    let [one, two, three] = &whole[..] else { panic!("{whole:?}") };
    assert_eq!(read(&whole).unwrap(), 3);
    is_damaged(&[two.clone(), three.clone()], 1);
    is_damaged(&[one.clone(), three.clone()], 2);
    is_damaged(&[one.clone(), one.clone(), two.clone(), three.clone()], 2);
    is_damaged(&[one.clone(), three.clone(), two.clone()], 2);
    let edited = String::from_utf8(two.clone()).unwrap().replace("k0", "k1").into_bytes();
    is_damaged(&[one.clone(), edited, three.clone()], 2);
    let mut zeros = two.clone();
    let end = zeros.len() - "\"}\n".len();
    zeros[end - 8..end].fill(b'0');
    is_damaged(&[one.clone(), zeros, three.clone()], 2);
    // The same line of another history, which has a right checksum there.
    let mut another = Checksum::default();
    let mut line = two[..two.len() - 1].to_vec();
    another.strip(&mut line);
    let mut another = Checksum::default();
    another.add(&mut b"{\"seq\":9}".to_vec());
    another.add(&mut line);
    line.push(b'\n');
    is_damaged(&[one.clone(), line, three.clone()], 2);
}

#[test]
fn a_history_written_by_hand_needs_no_checksums() {
    let bare = |line: &Vec<u8>| {
        let mut line = line[..line.len() - 1].to_vec();
        Checksum::default().strip(&mut line);
        line.push(b'\n');
        line
    };
    let whole = lines();
    let by_hand: Vec<_> = whole.iter().map(bare).collect();
    assert_eq!(read(&by_hand).unwrap(), 3);
    is_damaged(&[whole[0].clone(), by_hand[1].clone()], 2);
    is_damaged(&[by_hand[0].clone(), whole[1].clone()], 2);
}

#[test]
fn the_checksum_is_crc_32_as_other_programs_compute_it() {
    // The check value of CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms is that of `123456789`.
    let mut line = b"123456789".to_vec();
    Checksum::default().add(&mut line);
    assert_eq!(line, b"12345678,\"crc\":\"cbf43926\"}");
}

#[test]
fn a_file_compressed_by_gzip_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl.gz");
    std::fs::write(&path, [0x1f, 0x8b, 8, 0]).unwrap();
    let error = Reader::open(&path).err().unwrap();
    assert!(error.is_in_the_file(), "{error}");
    let error = error.to_string();
    assert!(error.contains("gzip") && error.contains("gunzip") && error.contains(".zst"), "{error}");
}

#[test]
fn a_line_without_its_number_has_that_of_its_place() {
    let event = |n: u64| format!("{{\"process\":\"worker-1\",\"n\":{n},\"at\":5,\"event\":\"watermark\"}}\n");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    std::fs::write(&path, [0, 1, 2].map(event).concat()).unwrap();
    let numbers: Vec<u64> = Reader::open(&path).unwrap().map(|record| record.unwrap().seq).collect();
    assert_eq!(numbers, [0, 1, 2]);
    std::fs::write(&path, event(0).replace("}\n", "} {}\n")).unwrap();
    let error = Reader::open(&path).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains(": trailing characters; expected"), "{error}");
}

#[test]
fn a_line_in_any_form_keeps_its_own_number() {
    let event = |n: u64| {
        let [usual, spaced] = ["", " "].map(|space| {
            format!("{{\"seq\":{space}{n},\"process\":\"worker-1\",\"n\":{n},\"at\":5,\"event\":\"watermark\"}}\n")
        });
        [usual, spaced].concat()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("excerpt.jsonl");
    std::fs::write(&path, [7, 9].map(event).concat()).unwrap();
    let numbers: Vec<u64> = Reader::open(&path).unwrap().map(|record| record.unwrap().seq).collect();
    assert_eq!(numbers, [7, 7, 9, 9]);
}

#[test]
fn answers_and_the_belief_of_a_client_may_be_absent() {
    let of = |event: &str| format!("{{\"process\":\"worker-1\",\"n\":0,\"at\":5,\"event\":{event}}}\n");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let events = [
        r#""acquired","attempt":1,"lease_ns":2000000000,"granted_after":4"#,
        r#""acquire-failed","attempt":1,"outcome":"failed","why":"held""#,
        r#""undone","attempt":1"#,
        r#""renewed","hold":1,"lease_ns":2000000000"#,
        r#""renew-failed","hold":1,"outcome":"failed","why":"lost""#,
        r#""released","hold":1,"removed":true"#,
        r#""release-failed","hold":1,"outcome":"indeterminate","why":"error""#,
    ];
    std::fs::write(&path, events.map(of).concat()).unwrap();
    let read: Vec<Event> = Reader::open(&path).unwrap().map(|record| record.unwrap().event).collect();
    assert_eq!(read.len(), events.len());
    assert!(matches!(&read[0], Event::Acquired { token: None, valid_ns: 0, answers, .. } if answers.is_empty()));
}

#[test]
fn what_restarted_processes_found_is_read_alone() {
    let dir = tempfile::tempdir().unwrap();
    let restarted = dir.path().join("restarted.jsonl");
    let mut writer = Writer::create(&restarted).unwrap();
    let (key, found) = (crate::Key::from("recovered"), |durable| Event::Recovered { durable });
    let (client, attempt, mode) = (ClientId(0), HoldId(1), crate::Mode::Write);
    let other = Event::Acquire { client, attempt, key, intended: Stamp(5), mode, above: None };
    let events =
        [("resource#2", other), ("resource#2", found(42)), ("resource#3", found(7)), ("controller", Event::End)];
    for (n, (process, event)) in events.into_iter().enumerate() {
        let n = n as u64;
        writer.append(&Record { seq: n, process: process.into(), n, at: Stamp(10), event }).unwrap();
    }
    writer.flush().unwrap();
    let expected = Some(vec![(ProcessName::from("resource#2"), 42), (ProcessName::from("resource#3"), 7)]);
    assert_eq!(Reader::recoveries(&restarted).unwrap(), expected);
    // Other programs write blanks and any order of the fields, and no checksums.
    let foreign = [
        r#"{"process": "resource#2", "n": 0, "at": 5, "event": "recovered", "durable": 42}"#,
        r#"{"process": "resource#2", "n": 1, "event": "recovered", and no event}"#,
        r#"{"durable": 7, "event" : "recovered", "at": 6, "n": 0, "process": "resource#3"}"#,
        r#"{"process": "controller", "n": 1, "at": 0, "event": "end"}"#,
    ];
    let path = dir.path().join("foreign.jsonl");
    std::fs::write(&path, foreign.map(|line| format!("{line}\n")).concat()).unwrap();
    assert_eq!(Reader::recoveries(&path).unwrap(), expected);
}

#[test]
fn restarts_are_not_known_from_a_history_without_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let recovered = "{\"process\":\"resource#2\",\"n\":0,\"at\":5,\"event\":\"recovered\",\"durable\":42}\n";
    let end = "{\"process\":\"controller\",\"n\":1,\"at\":0,\"event\":\"end\"}\n";
    for (lines, is_known) in [
        ([recovered, end, ""], true),
        ([end, "", ""], true),
        (["", "", ""], false),
        ([recovered, "", ""], false),
        // The last line is cut.
        ([recovered, &end[..end.len() - 1], ""], false),
        ([recovered, end, "{"], false),
        ([end, recovered, ""], false),
    ] {
        std::fs::write(&path, lines.concat()).unwrap();
        assert_eq!(Reader::recoveries(&path).unwrap().is_some(), is_known, "{lines:?}");
    }
}

#[test]
fn a_damaged_compressed_file_is_a_mistake_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read(written(dir.path())).unwrap();
    let mut packed = zstd::encode_all(text.repeat(1_000).as_slice(), 3).unwrap();
    let middle = packed.len() / 2;
    packed[middle..middle + 10].fill(0xff);
    for (name, bytes) in [("damaged.zst", packed.as_slice()), ("plain.zst", text.as_slice())] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = Reader::open(&path).unwrap().find_map(Result::err).unwrap();
        assert!(matches!(error, HistoryError::Compressed { .. }) && error.is_in_the_file(), "{error}");
        assert!(error.to_string().contains("It is no zstd file, or a damaged one"), "{error}");
    }
}

#[test]
fn a_directory_is_no_mistake_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["history.jsonl", "history.jsonl.zst"] {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let error = Reader::open(&path).and_then(|mut reader| reader.next().transpose()).unwrap_err();
        assert!(!error.is_in_the_file(), "{error}");
    }
}

#[test]
fn an_empty_line_and_a_checksum_in_another_form_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.jsonl");
    let line = r#"{"process":"worker-1","n":0,"at":1,"event":"watermark"}"#;
    let spaced = r#"{"process": "worker-1", "n": 0, "at": 1, "event": "watermark", "crc": "0a1b2c3d"}"#;
    for (text, problem) in [(format!("{line}\n\n{line}\n"), "the line is empty"), (format!("{spaced}\n"), "checksum")] {
        std::fs::write(&path, text).unwrap();
        let error = Reader::open(&path).unwrap().find_map(Result::err).unwrap();
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn a_last_line_that_is_cut_at_the_longest_length_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.jsonl");
    let first = "{\"process\":\"agent\",\"n\":0,\"at\":1,\"event\":\"watermark\"}\n";
    for (before, longest) in [("", PLAN_BYTES_MAX), (first, LINE)] {
        let longest = usize::try_from(longest).unwrap();
        for (length, is_cut) in [(longest, true), (longest + 1, false)] {
            std::fs::write(&path, [before.as_bytes(), &vec![b'x'; length]].concat()).unwrap();
            let mut reader = Reader::open(&path).unwrap();
            assert!(before.is_empty() || reader.next().is_some_and(|record| record.is_ok()));
            assert_eq!(reader.next().is_none(), is_cut);
            assert_eq!(reader.tail() == Tail::Cut, is_cut);
        }
    }
}

#[test]
fn a_line_of_too_many_values_is_refused_before_it_is_parsed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("answers.jsonl");
    let first = r#"{"process":"agent","n":0,"at":1,"event":"watermark"}"#;
    for (values, is_read) in [(VALUES - 20, true), (VALUES, false)] {
        let answer = format!(r#""event":"order-done","order":1,"answer":[{}0]"#, "0,".repeat(values));
        std::fs::write(&path, format!("{first}\n{{\"process\":\"agent\",\"n\":1,\"at\":1,{answer}}}\n")).unwrap();
        let second = Reader::open(&path).unwrap().nth(1).unwrap();
        assert_eq!(second.is_ok(), is_read, "{values}");
        let words = "line 2, column 0: it has more than 100000 values";
        assert!(second.err().is_none_or(|error| error.to_string().contains(words)));
    }
}

#[test]
fn a_first_line_that_is_no_plan_has_no_more_values_than_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("first.jsonl");
    let zeros = "0,".repeat(VALUES);
    let answer = format!(r#""event":"order-done","order":1,"answer":[{zeros}0]"#);
    let plan = format!(r#""event":"plan","run":"x","plan":[{zeros}0]"#);
    for (event, is_counted) in [(answer, true), (plan, false)] {
        std::fs::write(&path, format!("{{\"process\":\"agent\",\"n\":0,\"at\":1,{event}}}\n")).unwrap();
        let error = Reader::open(&path).unwrap().find_map(Result::err).unwrap().to_string();
        assert_eq!(error.contains("line 1, column 0: it has more than 100000 values"), is_counted, "{error}");
    }
}
