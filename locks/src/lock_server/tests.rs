use super::*;
use crate::hold::Token;

const S: Duration = Duration::from_secs(1);

fn asked(server: &mut LockServer, line: &str, now: Duration) -> String {
    String::from_utf8(in_one_line(&server.answer(line.as_bytes(), now))).unwrap().trim_end().to_owned()
}

#[test]
fn requests_and_answers_have_the_documented_form() {
    let mut server = LockServer::default();
    for (line, said) in [
        (r#"{"step":{"acquire":["k0","a",2000]}}"#, r#"{"answer":{"granted":1}}"#),
        (r#"{"step":{"acquire":["k0","b",2000]}}"#, r#"{"answer":"refused"}"#),
        (r#"{"step":{"extend":["k0","a",2000]}}"#, r#"{"answer":"done"}"#),
        (r#"{"step":{"extend":["k0","b",2000]}}"#, r#"{"answer":"refused"}"#),
        (r#"{"step":{"raise-fence":["k0","a",1]}}"#, r#"{"answer":"done"}"#),
        (r#"{"step":{"raise-fence":["k0","a",7]}}"#, r#"{"answer":"done"}"#),
        (r#"{"step":{"raise-fence":["k0","a",6]}}"#, r#"{"answer":"refused"}"#),
        (r#"{"step":{"raise-fence":["k0","b",9]}}"#, r#"{"answer":"refused"}"#),
        (r#"{"step":{"release":["k0","b"]}}"#, r#"{"answer":"refused"}"#),
        (r#"{"step":{"release":["k0","a"]}}"#, r#"{"answer":"done"}"#),
        (r#"{"step":{"acquire":["k0","b",2000]}}"#, r#"{"answer":{"granted":8}}"#),
        (r#"{"step":{"acquire-uncounted":["k1","b",2000]}}"#, r#"{"answer":"done"}"#),
        (r#""version""#, concat!(r#"{"version":""#, env!("CARGO_PKG_VERSION"), r#""}"#)),
    ] {
        assert_eq!(asked(&mut server, line, S), said, "{line}");
    }
    assert_eq!(server.owner(&Key::new("k0"), 3 * S), Some(&Owner::new("b")));
    assert_eq!(server.owner(&Key::new("k0"), 4 * S), None);
}

#[test]
fn an_extension_lets_a_lease_run_longer_and_never_shorter() {
    let (mut server, key, ms) = (LockServer::default(), Key::new("k0"), Duration::from_millis(1));
    for (line, now) in [
        (r#"{"step":{"acquire":["k0","a",2000]}}"#, S),
        (r#"{"step":{"extend":["k0","a",2000]}}"#, 2 * S),
        (r#"{"step":{"extend":["k0","a",10]}}"#, 3 * S),
    ] {
        asked(&mut server, line, now);
    }
    assert_eq!(server.owner(&key, 4 * S), Some(&Owner::new("a")));
    assert_eq!(server.owner(&key, 4 * S + ms), None);
}

#[test]
fn a_wrong_line_gets_an_error_and_changes_nothing() {
    let mut server = LockServer::default();
    asked(&mut server, r#"{"step":{"acquire":["k0","a",2000]}}"#, S);
    let before = server.clone();
    let too_large = format!(r#"{{"step":{{"raise-fence":["k0","a",{}]}}}}"#, COUNTER_MAX + 1);
    for (line, why) in [
        ("", "EOF"),
        ("GET / HTTP/1.1", "expected"),
        (r#"{"step":{"steal":["k0","a"]}}"#, "unknown variant `steal`"),
        (r#"{"step":{"acquire":["k0","a",-1]}}"#, "invalid value"),
        (r#"{"step":{"acquire":["k0"]}}"#, "invalid length"),
        (r#"{"step":{"release":["k0","a"]}} x"#, "trailing characters"),
        (too_large.as_str(), "larger than"),
    ] {
        let Answer::Error(said) = server.answer(line.as_bytes(), S) else { panic!("{line}") };
        assert!(said.contains(why), "{line}: {said}");
    }
    assert!(matches!(server.answer(&[0xff, 0xfe], S), Answer::Error(_)));
    assert_eq!(server, before);
}

#[test]
fn no_answer_is_longer_than_a_line() {
    let mut server = LockServer::default();
    for word in ["x".repeat(LINE_MAX - 20), r"\u0001".repeat((LINE_MAX - 20) / 6)] {
        let line = format!(r#"{{"step":{{"{word}":0}}}}"#);
        assert!(line.len() <= LINE_MAX, "{}", line.len());
        let said = asked(&mut server, &line, S);
        assert!(said.len() <= LINE_MAX && said.contains("expected a request such as"), "{} bytes: {said}", said.len());
    }
}

#[test]
fn a_step_about_an_unknown_key_takes_no_place() {
    let mut server = LockServer::default();
    for line in [r#"{"step":{"release":["k0","a"]}}"#, r#"{"step":{"extend":["k1","a",1]}}"#] {
        assert_eq!(asked(&mut server, line, S), r#"{"answer":"refused"}"#);
    }
    assert_eq!(server, LockServer::default());
}

#[test]
fn the_largest_lease_and_the_largest_counter_break_nothing() {
    let mut server = LockServer::default();
    let longest = format!(r#"{{"step":{{"acquire":["k0","a",{}]}}}}"#, u64::MAX);
    assert_eq!(asked(&mut server, &longest, Duration::MAX), r#"{"answer":{"granted":1}}"#);
    let key = Key::new("k0");
    let largest = format!(r#"{{"step":{{"raise-fence":["k0","a",{COUNTER_MAX}]}}}}"#);
    assert_eq!(asked(&mut server, &largest, Duration::MAX), r#"{"answer":"done"}"#);
    server.apply(&Step::RaiseFence(key.clone(), Owner::new("a"), Token(u64::MAX)), Duration::MAX);
    server.apply(&Step::Release(key.clone(), Owner::new("a")), Duration::MAX);
    let granted = server.apply(&Step::Acquire(key, Owner::new("b"), S), Duration::MAX);
    assert_eq!(granted, StepAnswer::Granted(Token(u64::MAX)));
}

#[test]
fn a_full_server_still_serves_the_keys_that_it_has() {
    let mut server = LockServer::default();
    for number in 0..KEYS_MAX {
        server.apply(&Step::Acquire(Key::new(format!("k{number}")), Owner::new("a"), S), S);
    }
    let Answer::Error(why) = server.answer(br#"{"step":{"acquire":["one-more","a",1]}}"#, S) else { panic!() };
    assert!(why.contains("until its restart"), "{why}");
    assert_eq!(asked(&mut server, r#"{"step":{"release":["k7","a"]}}"#, S), r#"{"answer":"done"}"#);
}

#[test]
fn an_answer_to_another_step_makes_no_sense() {
    let (key, owner) = (Key::new("k0"), Owner::new("a"));
    let (acquire, release) = (Step::Acquire(key.clone(), owner.clone(), S), Step::Release(key, owner));
    let granted = || Answer::Answer(StepAnswer::Granted(Token(1)));
    assert_eq!(granted().to(&acquire), Ok(StepAnswer::Granted(Token(1))));
    for (answer, step) in [(granted(), &release), (Answer::Answer(StepAnswer::Done), &acquire)] {
        assert!(matches!(answer.to(step), Err(NodeError::Indeterminate(_))));
    }
    let refused = Answer::Error("full".into()).to(&acquire);
    assert_eq!(refused, Err(NodeError::Definite("full".into())));
}

#[tokio::test]
async fn lines_are_read_one_by_one_and_a_long_one_is_skipped() {
    let (fits, long) = ("a".repeat(LINE_MAX), "b".repeat(5 * LINE_MAX));
    let text = format!("{fits}\n{long}\n\nlast\nno end");
    let (mut reading, mut line, mut read) = (BufReader::with_capacity(64, text.as_bytes()), Vec::new(), Vec::new());
    while let Some(is_whole) = next_line(&mut reading, &mut line).await.unwrap() {
        read.push(is_whole.then(|| String::from_utf8(line.clone()).unwrap()));
    }
    assert_eq!(read, [Some(fits), None, Some(String::new()), Some("last".to_owned())]);
}
