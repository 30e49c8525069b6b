//! Calls: their values, and the keys that they name.

use super::{Asked, Format, ModelKind, Verdict, edn, is_wrong, judged, refused};
use crate::formats::read;

/// A call and its answer, each on a line.
fn call(function: &str, asked: &str, answer: &str) -> String {
    format!("[0 :invoke :{function} {asked}]\n[0 :ok :{function} {answer}]\n")
}

/// The first two are of Jepsen's `long-fork`, and of a client that writes 0 where no value is known.
#[test]
fn reads_of_keys_or_transactions_are_refused() {
    let write = |value: &str| call("write", value, value);
    let read = |asked: &str, answer: &str| call("read", asked, answer);
    for (calls, why) in [
        (
            [write("[[:w 9 1]]"), read("[[:r 9 nil]]", "[[:r 9 1]]")],
            "line 4: the answer is `[[:r 9 1]]`, but the read of line 3 was called with `[[:r 9 nil]]`: expected",
        ),
        (
            [write("[1 5]"), read("[1 0]", "[1 5]")],
            "line 4: the answer is `[1 5]`, but the read of line 3 was called with `[1 0]`: expected",
        ),
        (
            [read(":a", "1"), read(":b", "2")],
            "line 4: the read of line 3 was called with `:b`, and that of line 1 with `:a`: expected",
        ),
    ] {
        let said = refused(Format::JepsenEdn, &calls.concat());
        assert!(said.starts_with(why), "{said}");
    }
}

#[test]
fn a_call_of_a_read_may_have_its_answer_or_a_constant() {
    let written = |value: &str| call("write", value, value);
    for reads in [
        [call("read", "1", "1"), written("2"), call("read", "2", "2")],
        [call("read", "[1]", "nil"), written("[2]"), call("read", "[2]", "[2]")],
        [call("read", "0", "1"), written("2"), call("read", "0", "2")],
        [call("read", "0", "1"), written("2"), call("read", "2", "2")],
    ] {
        let text = written("1") + &reads.concat();
        assert_eq!(edn(&text, ModelKind::Register), Verdict::Linearizable, "{text}");
    }
}

/// As `jepsen.independent` writes them: the model of such a suite is that of one key.
#[test]
fn registers_of_several_keys_are_judged_apart() {
    let written = call("write", "[1 5]", "[1 5]") + &call("write", "[2 6]", "[2 6]");
    let read_of_1 = |answer: &str| call("read", "[1 nil]", &format!("[1 {answer}]"));
    for model in [ModelKind::Register, ModelKind::CasRegister] {
        let asked = Asked { model: Some(model), initial: None };
        let (history, verdict) = judged(Format::JepsenEdn, &(written.clone() + &read_of_1("5")), asked);
        assert_eq!((history.objects.len(), verdict), (2, Verdict::Linearizable), "{model:?}");
        assert!(is_wrong(&edn(&(written.clone() + &read_of_1("6")), model)), "{model:?}");
        // A read of no key: the values of this register are lists, but its other read is called with a key.
        let plain = written.clone() + &call("read", "nil", "[2 6]") + &read_of_1("5");
        let said = read(Format::JepsenEdn, plain.as_bytes(), asked).map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with("line 8: the answer is `[1 5]`, but the read of line 7 was called"), "{said}");
    }
    let replaced = written + &call("cas", "[1 [5 7]]", "[1 [5 7]]") + &read_of_1("7");
    assert_eq!(edn(&replaced, ModelKind::CasRegister), Verdict::Linearizable);
}

#[test]
fn a_cas_may_have_its_key_before_its_two_values() {
    let cas = |value: &str| call("cas", value, value);
    let written = call("put", r#"["k" "a"]"#, r#"["k" "a"]"#);
    let read_of_k = |answer: &str| call("read", r#"["k" nil]"#, &format!(r#"["k" {answer}]"#));
    for replaced in [cas(r#"["k" "a" "b"]"#), cas(r#"["k" ["a" "b"]]"#)] {
        for (answer, is_right) in [(r#""b""#, true), (r#""a""#, false)] {
            let text = written.clone() + &replaced + &read_of_k(answer);
            let (history, verdict) = judged(Format::JepsenEdn, &text, Asked::default());
            let found = (history.objects.len(), verdict == Verdict::Linearizable, is_wrong(&verdict));
            assert_eq!(found, (1, is_right, !is_right), "{text}");
        }
    }
    // The key alone tells that the file is of a store.
    let text = cas("[1 nil 2]") + &cas("[3 nil 2]") + &cas("[1 2 3]");
    let (history, verdict) = judged(Format::JepsenEdn, &text, Asked::default());
    assert_eq!((history.objects.len(), verdict), (2, Verdict::Linearizable));
}

#[test]
fn a_call_that_changes_something_has_a_value() {
    let event = |kind: &str, rest: &str| format!("{{:process 0, :type :{kind}, {rest}}}\n");
    for function in ["write", "put", "append", "cas"] {
        for format in [Format::JepsenEdn, Format::PorcupineLog] {
            let said = refused(format, &event("invoke", &format!(":f :{function}, :key 1, :name 2")));
            assert_eq!(said, "line 1: an operation has no `:value`", "{function}");
        }
    }
    let written = event("invoke", ":f :write, :value nil") + &event("ok", ":f :write");
    let text = written + &event("invoke", ":f :read") + &event("ok", ":f :read, :value 1");
    assert!(is_wrong(&edn(&text, ModelKind::Register)));
}

#[test]
fn a_store_that_appends_to_lists_is_refused() {
    let append = |value: u32| call("append", &format!("[:x {value}]"), &format!("[:x {value}]"));
    for list in ["[1 2]", "(1 2)", "#{1 2}"] {
        let text = append(1) + &append(2) + &call("read", "[:x nil]", &format!("[:x {list}]"));
        let said = refused(Format::JepsenEdn, &text);
        assert!(said.starts_with("line 6: the answer is `"), "{said}");
        assert!(said.ends_with("`, but line 1 appends to a text"), "{said}");
    }
    // Without appends, the value is a list that somebody wrote.
    let text = call("put", "[:x [1 2]]", "[:x [1 2]]") + &call("get", "[:x nil]", "[:x [1 2]]");
    assert_eq!(edn(&text, ModelKind::Kv), Verdict::Linearizable);
}

/// A release without `:key` would be one of a lock that nobody holds, and a read that of a register of its own.
#[test]
fn a_call_without_a_key_beside_calls_with_keys_is_refused() {
    let text = |function: &str, asked: &str, key: &str, other: &str, other_key: &str| {
        let event = |kind: &str, function: &str, value: &str, key: &str| {
            format!("{{:process 0, :type :{kind}, :f :{function}, :value {value}{key}}}\n")
        };
        // An answer need not repeat the key.
        [
            event("invoke", function, asked, key),
            event("ok", function, asked, ""),
            event("invoke", other, "nil", other_key),
            event("ok", other, asked, ""),
        ]
        .concat()
    };
    for (model, function, asked, other) in [
        (ModelKind::Register, "write", "1", "read"),
        (ModelKind::CasRegister, "write", "1", "read"),
        (ModelKind::Mutex, "acquire", "nil", "release"),
        (ModelKind::OwnerMutex, "acquire", "nil", "release"),
    ] {
        let asked_model = Asked { model: Some(model), initial: None };
        for (key, other_key, why) in [
            (", :key 7", "", "line 3: the call names no key, but that of line 1 has `:key`"),
            ("", ", :key 7", "line 1: the call names no key, but that of line 3 has `:key`"),
        ] {
            let text = text(function, asked, key, other, other_key);
            let said = read(Format::JepsenEdn, text.as_bytes(), asked_model).map(|_| ()).unwrap_err().to_string();
            assert_eq!(said, why, "{model:?}: {text}");
        }
        for key in ["", ", :key 7"] {
            assert_eq!(edn(&text(function, asked, key, other, key), model), Verdict::Linearizable, "{model:?}{key}");
        }
    }
}

/// Answers of registers and locks need not repeat it either.
#[test]
fn an_answer_of_a_store_need_not_repeat_the_key() {
    let event =
        |kind: &str, function: &str, rest: &str| format!("{{:process 0, :type :{kind}, :f :{function}{rest}}}\n");
    let keyed = |function: &str, asked: &str, answer: &str| {
        event("invoke", function, &format!(", :key 1, :value {asked}")) + &event("ok", function, answer)
    };
    for written in [keyed("put", "5", ", :value 5"), keyed("put", "5", ""), call("put", "[1 5]", "nil")] {
        for (answer, is_right) in [(", :value 5", true), (", :value 6", false), ("", false)] {
            let text = written.clone() + &keyed("get", "nil", answer);
            let (history, verdict) = judged(Format::JepsenEdn, &text, Asked::default());
            let found = (history.objects.len(), verdict == Verdict::Linearizable, is_wrong(&verdict));
            assert_eq!(found, (1, is_right, !is_right), "{text}");
        }
    }
    // The pair of a compare-and-set is no key and its value.
    for (answer, is_right) in [("6", true), ("5", false)] {
        let swapped = keyed("put", "5", "") + &keyed("cas", "[5 6]", ", :value [5 6]");
        let text = swapped + &keyed("get", "nil", &format!(", :value {answer}"));
        let (history, verdict) = judged(Format::JepsenEdn, &text, Asked::default());
        let found = (history.objects.len(), verdict == Verdict::Linearizable, is_wrong(&verdict));
        assert_eq!(found, (1, is_right, !is_right), "{text}");
    }
    // Nobody knows whether this answer says that the key is absent.
    let said = refused(Format::JepsenEdn, &call("get", "[1 nil]", "nil"));
    assert!(said.starts_with("line 2: the operation names no key"), "{said}");
}
