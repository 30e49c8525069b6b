//! Values: those at the start, those of absent keys, and the keys themselves.

use super::{Asked, Format, ModelKind, Verdict, edn, is_wrong, judged};

#[test]
fn a_value_at_the_start_is_read_as_those_of_the_file_are() {
    for (model, initial, answer, is_right) in [
        (ModelKind::Kv, r#""a""#, r#""a""#, true),
        (ModelKind::Kv, r#""a""#, "a", false),
        (ModelKind::Kv, r#""\u0041""#, r#""A""#, true),
        (ModelKind::Kv, "1", "1", true),
        (ModelKind::Kv, "1", r#""1""#, false),
        (ModelKind::Kv, "nil", "nil", true),
        (ModelKind::Kv, "nil", r#""nil""#, false),
        (ModelKind::Kv, r#""""#, "nil", true),
        (ModelKind::Register, "nil", "nil", true),
        (ModelKind::Register, r#""a""#, r#""a""#, true),
        (ModelKind::Register, r#""a""#, "a", false),
        (ModelKind::Register, "#{2 1}", "#{1 2}", true),
    ] {
        let (format, text) = match model {
            // Each key has this value.
            ModelKind::Kv => (
                Format::JepsenEdn,
                format!(
                    "[0 :invoke :get [:x nil]] [0 :ok :get [:x {initial}]] \
                     [0 :invoke :get [:y nil]] [0 :ok :get [:y {answer}]]"
                ),
            ),
            // In a log, a read of nil is an answer.
            _ => (
                Format::PorcupineLog,
                format!("INFO jepsen.util - 0 :invoke :read nil\nINFO jepsen.util - 0 :ok :read {answer}\n"),
            ),
        };
        let (_, verdict) = judged(format, &text, Asked { model: Some(model), initial: Some(initial) });
        let found = (verdict == Verdict::Linearizable, is_wrong(&verdict));
        assert_eq!(found, (is_right, !is_right), "{model:?} {initial}: {text}, {verdict:?}");
    }
}

#[test]
fn a_get_of_nothing_says_that_the_key_is_absent_and_a_read_of_nothing_says_nothing() {
    let call = |function: &str, value: &str, answer: &str| {
        format!("[0 :invoke :{function} [:x {value}]] [0 :ok :{function} [:x {answer}]]\n")
    };
    let put = |value: &str| call("put", value, value);
    let (get, read) = (|answer: &str| call("get", "nil", answer), call("read", "nil", "nil"));
    for (calls, is_right) in [
        ([get("nil"), get("nil")], true),
        ([put("1"), get("nil")], false),
        ([put("1"), read.clone()], true),
        ([put("nil"), get(r#""""#)], true),
        ([put(r#""""#), get("nil")], true),
    ] {
        let verdict = edn(&calls.concat(), ModelKind::Kv);
        let found = (verdict == Verdict::Linearizable, is_wrong(&verdict));
        assert_eq!(found, (is_right, !is_right), "{calls:?}, {verdict:?}");
    }
    let (history, _) = judged(Format::JepsenEdn, &(put("1") + &read), Asked::default());
    assert_eq!((history.count(), history.silent, history.nil_reads), ((1, 0), 1, 1));
}

#[test]
fn keys_are_equal_if_edn_says_so() {
    for (one, other, are_equal) in [
        ("#{1 2}", "#{2 1}", true),
        ("[1 2]", "(1 2)", true),
        ("{:a 1, :b 2}", "{:b 2, :a 1}", true),
        ("5N", "+5", true),
        ("nil", "nil", true),
        ("1", r#""1""#, false),
        (":a", "a", false),
        (":a", r#"":a""#, false),
        ("[1]", "#{1}", false),
        ("nil", r#""nil""#, false),
    ] {
        let pair =
            |key: &str, kind: &str, function: &str, value: &str| format!("[0 :{kind} :{function} [{key} {value}]]\n");
        let map = |key: &str, kind: &str, function: &str, value: &str| {
            format!("{{:process 0, :type :{kind}, :f :{function}, :key {key}, :value {value}}}\n")
        };
        let text = |event: &dyn Fn(&str, &str, &str, &str) -> String| {
            let call = |key: &str, function: &str, value: &str, answer: &str| {
                event(key, "invoke", function, value) + &event(key, "ok", function, answer)
            };
            call(one, "put", "1", "1") + &call(other, "put", "2", "2") + &call(one, "get", "nil", "1")
        };
        for text in [text(&pair), text(&map)] {
            let (history, verdict) = judged(Format::JepsenEdn, &text, Asked::default());
            let found = (history.objects.len(), is_wrong(&verdict), verdict == Verdict::Linearizable);
            assert_eq!(found, (if are_equal { 1 } else { 2 }, are_equal, !are_equal), "{text}");
        }
    }
}

#[test]
fn a_cas_on_joined_values_may_be_refused_as_on_a_string_or_on_another_form() {
    let store = |first: &str, from: &str| {
        let calls = [
            (format!(":put [:x {first}]"), "ok"),
            (r#":append [:x "2"]"#.to_owned(), "ok"),
            (format!(":cas [:x [{from} 5]]"), "fail"),
        ];
        let call = |(call, end): &(String, &str)| {
            format!("INFO jepsen.util - 0 :invoke {call}\nINFO jepsen.util - 0 :{end} {call}\n")
        };
        let text: String = calls.iter().map(call).collect();
        judged(Format::PorcupineLog, &text, Asked { model: Some(ModelKind::Kv), initial: None }).1
    };
    for (first, from, is_right) in [
        ("1", "12", true),
        ("1", r#""12""#, true),
        (r#""1""#, "12", true),
        // Strings alone make a string, so this one must succeed.
        (r#""1""#, r#""12""#, false),
    ] {
        let verdict = store(first, from);
        assert_eq!((verdict == Verdict::Linearizable, is_wrong(&verdict)), (is_right, !is_right), "{first} {from}");
    }
}

#[test]
fn a_refused_cas_may_tell_an_absent_key_from_an_empty_text() {
    let store = |calls: &[(&str, &str)]| {
        let call = |(call, end): &(&str, &str)| {
            format!("INFO jepsen.util - 0 :invoke {call}\nINFO jepsen.util - 0 :{end} {call}\n")
        };
        let text: String = calls.iter().map(call).collect();
        judged(Format::PorcupineLog, &text, Asked { model: Some(ModelKind::Kv), initial: None }).1
    };
    let empty = (r#":put [:x ""]"#, "ok");
    let (from_text, from_nil) = ((r#":cas [:x ["" 5]]"#, "fail"), (":cas [:x [nil 5]]", "fail"));
    for (calls, is_right) in
        [(&[from_text][..], true), (&[empty, from_nil], true), (&[from_nil], false), (&[empty, from_text], false)]
    {
        let verdict = store(calls);
        assert_eq!((verdict == Verdict::Linearizable, is_wrong(&verdict)), (is_right, !is_right), "{calls:?}");
    }
}

#[test]
fn a_message_tells_the_text_nil_from_no_value() {
    let put = "[0 :invoke :put [:x nil]] [0 :ok :put [:x nil]]\n";
    let text = put.to_owned() + r#"[0 :invoke :get [:x nil]] [0 :ok :get [:x "nil"]]"#;
    let (history, verdict) = judged(Format::JepsenEdn, &text, Asked { model: Some(ModelKind::Kv), initial: None });
    let Verdict::NotLinearizable(conflict) = verdict else { panic!("{verdict:?}") };
    let words = conflict.words(&history);
    assert!(words.contains(r#"the value of `read "nil"` of process 0"#), "{words}");
}
