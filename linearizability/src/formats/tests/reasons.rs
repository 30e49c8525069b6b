//! The words of a verdict name the operations that show it.

use super::{Asked, Format, ModelKind, Verdict, is_wrong, judged, log};

/// The reason why a history is not linearizable.
fn reason(text: &str, model: ModelKind, initial: Option<&str>) -> String {
    let (history, verdict) = judged(Format::JepsenEdn, text, Asked { model: Some(model), initial });
    let Verdict::NotLinearizable(conflict) = verdict else { panic!("{text}: {verdict:?}") };
    conflict.words(&history)
}

/// A call and its answer, each on a line.
fn call(process: u32, function: &str, kind: &str, value: &str) -> String {
    format!("[{process} :invoke :{function} {value}]\n[{process} :{kind} :{function} {value}]\n")
}

#[test]
fn a_reason_is_told_with_the_operations_that_show_it() {
    let read = |value: &str| format!("[1 :invoke :read nil]\n[1 :ok :read {value}]\n");
    let write = |value: &str| call(0, "write", "ok", value);
    for (calls, from, to, between) in [
        // The value 2 lies inside the time of the value 1.
        (
            vec![write("1"), read("1"), write("2"), read("1"), read("1")],
            "`write 1` of process 0 (lines 1 and 2)",
            "`read 1` of process 1 (lines 9 and 10)",
            "`write 2` of process 0 (lines 5 and 6)",
        ),
        // The times of the values 1 and 2 overlap.
        (
            vec![write("1"), write("2"), read("1"), read("2")],
            "`write 1` of process 0 (lines 1 and 2)",
            "`read 1` of process 1 (lines 5 and 6)",
            "`write 2` of process 0 (lines 3 and 4) and `read 2` of process 1 (lines 7 and 8)",
        ),
        // The register had the value 0 at the start, which no operation wrote.
        (
            vec![write("1"), read("0")],
            "the start",
            "`read 0` of process 1 (lines 3 and 4)",
            "`write 1` of process 0 (lines 1 and 2)",
        ),
    ] {
        let had = format!("the register had one value from {from} to {to}");
        let words = format!("{had}, but between the two it must have had another: {between}");
        assert_eq!(reason(&calls.concat(), ModelKind::Register, Some("0")), words);
    }
    let hold = call(2, "acquire", "ok", "nil") + &call(2, "release", "ok", "nil");
    let held = call(0, "acquire", "ok", "nil");
    let release = call(1, "acquire", "info", "nil") + &call(1, "release", "ok", "nil");
    assert_eq!(
        reason(&[hold, held, release].concat(), ModelKind::OwnerMutex, None),
        "`release` of process 1 (lines 9 and 10) was answered, but another client held the lock all the time: \
         `acquire` of process 0 (lines 5 and 6)"
    );
}

/// Process 0 is client 5, and process 5 is client 0.
#[test]
fn a_reason_tells_named_clients_apart_from_processes() {
    let acquire = |process: u32, client: &str, token: u32| {
        let event = |kind: &str| format!("[{process} :{kind} :acquire {{{client}:fence {token}}}]\n");
        event("invoke") + &event("ok")
    };
    let named = acquire(0, ":client 5, ", 1) + &acquire(5, ":client 0, ", 2);
    assert_eq!(
        reason(&named, ModelKind::OwnerMutex, None),
        "two clients held the lock at the same time: `acquire` of client 5 (lines 1 and 2) and `acquire` of client 0 \
         (lines 3 and 4)"
    );
    let unnamed = acquire(0, "", 1) + &acquire(5, "", 2);
    for (text, second, holder) in [(named, "client 0", "client 5"), (unnamed, "process 5", "process 0")] {
        assert_eq!(
            reason(&text, ModelKind::FencedMutex, None),
            format!(
                "no order of the operations up to the answer of `acquire with token 2` of {second} (lines 3 and 4) \
                 explains it; without it, orders end in these states: held by {holder}"
            )
        );
    }
}

/// The key 1 is no value, so the string needs no quotes. The value 1 makes them necessary.
#[test]
fn a_string_has_quotes_if_another_value_has_its_text() {
    let store = |key: &str, written: &str| {
        let text = format!("[0 :invoke :get [{key} nil]] [0 :ok :get [{key} \"1\"]]");
        let put = |value: &str| call(0, "put", "ok", &format!("[{key} {value}]"));
        // The value was there before, so that only the order contradicts the answer.
        reason(&(put("\"1\"") + &put(written) + &text), ModelKind::Kv, None)
    };
    for (key, written, read, state) in [
        ("1", r#""2""#, "`read 1` ", "states: 2"),
        ("2", r#""2""#, "`read 1` ", "states: 2"),
        ("2", "1", r#"`read "1"` "#, "states: 1"),
        ("1", "2", "`read 1` ", "states: 2"),
    ] {
        let words = store(key, written);
        assert!(words.contains(read) && words.ends_with(state), "{words}");
    }
}

#[test]
fn a_cas_that_failed_for_a_reason_says_nothing_about_the_value() {
    let before = ["0\t:invoke\t:write\t1", "0\t:ok\t:write\t1", "0\t:invoke\t:cas\t[1 2]"];
    for (end, is_right) in [
        ("[1 2]", false),
        ("[1 2]\tanother value", true),
        ("[1 2]\t:connection-refused", true),
        ("[1 2]\t; connection refused", true),
        ("[1 2]\t#_", true),
        (":connection-refused", true),
        ("[not leader]", true),
        ("(not closed", true),
        ("", true),
    ] {
        let end = format!("0\t:fail\t:cas\t{end}");
        let verdict = log(&[before[0], before[1], before[2], &end]);
        assert_eq!((verdict == Verdict::Linearizable, is_wrong(&verdict)), (is_right, !is_right), "{end}");
    }
}
