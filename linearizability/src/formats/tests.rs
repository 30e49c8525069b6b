use crate::{Asked, Format, History, ModelKind, Verdict, check, read};

mod calls;
mod locks;
mod reasons;
mod search;
mod values;

fn judged(format: Format, text: &str, asked: Asked) -> (History, Verdict) {
    let (history, options) = read(format, text.as_bytes(), asked).unwrap();
    let verdict = check(&history, &options);
    (history, verdict)
}

fn edn(text: &str, model: ModelKind) -> Verdict {
    judged(Format::JepsenEdn, text, Asked { model: Some(model), initial: None }).1
}

fn log(lines: &[&str]) -> Verdict {
    let lines: Vec<String> = lines.iter().map(|line| format!("INFO  jepsen.util - {line}\n")).collect();
    judged(Format::PorcupineLog, &lines.concat(), Asked::default()).1
}

fn is_wrong(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::NotLinearizable(_))
}

fn refused(format: Format, text: &str) -> String {
    read(format, text.as_bytes(), Asked::default()).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn every_form_of_an_operation_is_read_alike() {
    for text in [
        "{:process 0, :type :invoke, :f :write, :value 1}\n{:process 0, :type :ok, :f :write, :value 1}",
        "[{:process 0 :type :invoke :f :write :value 1} ; a comment\n {:process 0 :type :ok :f :write :value 1}]",
        "({:process 0 :type :invoke :f :write :value 1} #_ {:left :out} {:process 0 :type :ok :f :write :value 1})",
        "[0 :invoke :write 1] [0 :ok :write nil]",
        "[[0 :invoke :write 1] [0 :ok :write nil]]",
        "#jepsen.history.Op{:process 0, :type :invoke, :f :write, :value 1, :time 3, :index 0}\n\
         #jepsen.history.Op{:process 0, :type :ok, :f :write, :value 1, :time 4, :index 1}",
    ] {
        let (history, verdict) = judged(Format::JepsenEdn, text, Asked::default());
        assert_eq!((history.count(), verdict), ((1, 0), Verdict::Linearizable), "{text}");
    }
    let text = "{:process :nemesis, :type :info, :f :start}\n[0 :invoke :read nil]\n[0 :ok :read 3]";
    let (history, verdict) = judged(Format::JepsenEdn, text, Asked { initial: Some("3"), model: None });
    assert_eq!((history.ignored, verdict), (1, Verdict::Linearizable));
}

#[test]
fn an_operation_without_an_answer_takes_effect_once_at_any_later_time_or_never() {
    let read = |values: &[&str]| {
        let reads = values.iter().map(|value| format!("[1 :invoke :read nil] [1 :ok :read {value}]\n"));
        edn(
            &("[0 :invoke :write 1]\n[2 :invoke :write 0] [2 :ok :write 0]\n".to_owned() + &reads.collect::<String>()),
            ModelKind::CasRegister,
        )
    };
    assert_eq!(read(&["0", "0"]), Verdict::Linearizable);
    assert_eq!(read(&["0", "1", "1"]), Verdict::Linearizable);
    assert!(is_wrong(&read(&["1", "0"])));
    // `:info` says the same as nothing; `:fail` says that it did not happen.
    for (end, is_seen) in [("[0 :info :write 1]", true), ("[0 :fail :write 1]", false), ("[0 :invoke :read nil]", true)]
    {
        let text = format!("[0 :invoke :write 1] {end} [1 :invoke :read nil] [1 :ok :read 1]");
        assert_eq!(is_wrong(&edn(&text, ModelKind::Register)), !is_seen, "{end}");
    }
}

#[test]
fn a_read_of_nothing_and_a_refusal_mean_what_their_format_says() {
    let text = "[0 :invoke :write 1] [0 :ok :write 1] [0 :invoke :read nil] [0 :ok :read nil]";
    assert_eq!(edn(text, ModelKind::Register), Verdict::Linearizable);
    let written = ["0\t:invoke\t:write\t1", "0\t:ok\t:write\t1"];
    assert!(is_wrong(&log(&[written[0], written[1], "0\t:invoke\t:read\tnil", "0\t:ok\t:read\tnil"])));
    let text = "[0 :invoke :write 1] [0 :ok :write 1] [0 :invoke :cas [1 2]] [0 :fail :cas [1 2]]";
    assert_eq!(edn(text, ModelKind::CasRegister), Verdict::Linearizable);
    assert!(is_wrong(&log(&[written[0], written[1], "0\t:invoke\t:cas\t[1 2]", "0\t:fail\t:cas\t[1 2]"])));
    // A reason may stand in the place of the value.
    assert_eq!(log(&["0\t:invoke\t:cas\t[1 2]", "0\t:info\t:cas\t:timed-out"]), log(&["0\t:invoke\t:cas\t[1 2]"]));
}

#[test]
fn a_line_of_edn_in_a_log_says_what_edn_says() {
    let judged_log = |text: &str| judged(Format::PorcupineLog, text, Asked::default()).1;
    let line = |kind: &str, rest: &str| format!("{{:process 0, :type :{kind}, {rest}}}\n");
    let written = line("invoke", ":f :write, :value 1") + &line("ok", ":f :write, :value 1");
    for (call, kind, answer) in [
        (":f :cas, :value [1 2]", "fail", ":f :cas, :value [1 2], :error :timed-out"),
        (":f :read, :value nil", "ok", ":f :read, :value nil"),
    ] {
        let text = written.clone() + &line("invoke", call) + &line(kind, answer);
        assert_eq!(judged_log(&text), Verdict::Linearizable, "{text}");
        assert_eq!(judged_log(&text), judged(Format::JepsenEdn, &text, Asked::default()).1, "{text}");
    }
    let absent = line("invoke", ":f :get, :key 0, :value nil") + &line("ok", ":f :get, :key 0, :value nil");
    let put = line("invoke", ":f :put, :key 0, :value 1") + &line("ok", ":f :put, :key 0, :value 1");
    assert!(is_wrong(&judged_log(&(put + &absent))));
}

#[test]
fn locks_know_their_owners_and_tokens_or_not() {
    let by_others = "[0 :invoke :acquire nil] [0 :ok :acquire nil] [1 :invoke :release nil] [1 :ok :release nil]";
    assert_eq!(edn(by_others, ModelKind::Mutex), Verdict::Linearizable);
    assert!(is_wrong(&edn(by_others, ModelKind::OwnerMutex)));
    let tokens = |first: i64, second: i64| {
        let hold = |token| {
            format!(
                "[0 :invoke :acquire nil] [0 :ok :acquire {{:fence {token}}}] [0 :invoke :release nil] \
                 [0 :ok :release nil]"
            )
        };
        edn(&(hold(first) + &hold(second)), ModelKind::FencedMutex)
    };
    assert_eq!(tokens(3, 4), Verdict::Linearizable);
    assert!(is_wrong(&tokens(3, 3)) && is_wrong(&tokens(4, 3)));
    // A client that goes on as another process is still the owner.
    let named = "[0 :invoke :acquire {:client \"a\"}] [0 :ok :acquire nil] [7 :invoke :release {:client \"a\"}] \
                 [7 :ok :release nil]";
    assert_eq!(edn(named, ModelKind::OwnerMutex), Verdict::Linearizable);
    let two = "[0 :invoke :acquire nil] [0 :ok :acquire nil] [1 :invoke :acquire nil] [1 :ok :acquire nil]";
    let (history, verdict) =
        judged(Format::JepsenEdn, two, Asked { model: Some(ModelKind::OwnerMutex), initial: None });
    let Verdict::NotLinearizable(conflict) = verdict else { panic!("{verdict:?}") };
    assert_eq!(
        conflict.words(&history),
        "two clients held the lock at the same time: `acquire` of process 0 (lines 1 and 1) and `acquire` of process 1 \
         (lines 1 and 1)"
    );
}

#[test]
fn keys_are_judged_apart_whatever_names_them() {
    let text = |key: &str| {
        format!(
            "{{:process 0, :type :invoke, :f :append, :key \"0\", :value \"a\"}}
             {{:process 0, :type :ok, :f :append, :key \"0\", :value \"a\"}}
             {{:process 0, :type :invoke, :f :get, :key \"{key}\", :value nil}}
             {{:process 0, :type :ok, :f :get, :key \"{key}\", :value \"\"}}"
        )
    };
    assert_eq!(edn(&text("1"), ModelKind::Kv), Verdict::Linearizable);
    assert!(is_wrong(&edn(&text("0"), ModelKind::Kv)));
    let pairs = "[0 :invoke :write [:x 1]] [0 :ok :write [:x 1]] [0 :invoke :cas [:x [1 2]]] [0 :ok :cas [:x [1 2]]] \
                 [0 :invoke :read [:x nil]] [0 :ok :read [:x 2]]";
    assert_eq!(edn(pairs, ModelKind::Kv), Verdict::Linearizable);
    let other = "[0 :invoke :read [:x nil]] [0 :ok :read [:y 2]]";
    let asked = Asked { model: Some(ModelKind::Kv), initial: None };
    let error = read(Format::JepsenEdn, other.as_bytes(), asked).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "line 1: the key is not that of the call in line 1");
}

#[test]
fn a_file_that_is_no_history_is_refused_with_its_line() {
    for (text, why) in [
        ("[0 :ok :read 1]", "line 1: process 0 gets an answer, but it has no open call"),
        ("\n[0 :invoke :read nil]\n[0 :ok :write 1]", "line 3: process 0 gets an answer to `:write`"),
        ("[0 :invoke :write 1]\n[0 :ok :write 2]", "line 2: the answer says `:write 2`, but the call in line 1 `1`"),
        ("[0 :invoke :txn []]\n[0 :ok :txn []]", "line 1: `:f :txn` is not of a register"),
        ("[0 :begin :read nil]", "line 1: `:type :begin` is none of :invoke, :ok, :fail and :info"),
        ("{:process 0, :type :invoke}", "line 1: an operation has no `:f`"),
        ("{:process 0.5, :type :invoke, :f :read}", "line 1: `:process 0.5` is no number"),
        ("[nil :invoke :read nil]", "line 1: `:process nil` is no number, name or keyword"),
        ("[0 :invoke :read nil] [\"0\" :ok :read 1]", "line 1: process \"0\" gets an answer, but it has no open call"),
        ("{:process 0, :process 1, :type :invoke, :f :read}", "line 1: a map has the key `:process` twice"),
        ("[0 :invoke :write #{1 2 1}]", "line 1: a set has `1` twice"),
        (r#"[0 :invoke :write "\ud83d"]"#, "line 1: a string has half of a character after `\\u`"),
        (r#"[0 :invoke :write "\u12"]"#, "line 1: expected four hexadecimal digits after `\\u`"),
        ("[{:process 0, :type :invoke, :f :read}", "line 1: the file ends, but the `[` of line 1 is open"),
        ("[] x", "line 1: something follows the end of the history"),
        ("{:process 0 :type}", "line 1: a map has a key without a value"),
        ("{:process \"a", "line 1: the file ends inside a string"),
        (")", "line 1: `)` closes nothing"),
        ("[0 :invoke :cas 3] [0 :ok :cas 3]", "line 1: `:cas 3` is no pair of values"),
        (&"[".repeat(40), "line 1: more than 32 forms inside one another"),
    ] {
        let said = refused(Format::JepsenEdn, text);
        assert!(said.starts_with(why), "{text}: {said}");
    }
    for (text, why) in [
        (
            "INFO jepsen.util - 0 :invoke :read nil\nelse\n",
            "line 2: expected `INFO jepsen.util - PROCESS TYPE F VALUE`",
        ),
        ("INFO jepsen.util - 0 :invoke :read\n", "line 1: expected an operation"),
        ("{:process 0", "line 1: the file ends inside an operation"),
    ] {
        let said = refused(Format::PorcupineLog, text);
        assert!(said.starts_with(why), "{text}: {said}");
    }
    let asked = Asked { model: Some(ModelKind::Mutex), initial: Some("1") };
    assert!(read(Format::JepsenEdn, "".as_bytes(), asked).is_err());
}

#[test]
fn an_empty_history_says_nothing() {
    let verdict = |text: &str, initial: Option<&str>| {
        judged(Format::JepsenEdn, text, Asked { model: Some(ModelKind::Register), initial }).1
    };
    for text in ["", "[]", "; nothing\n"] {
        assert_eq!(verdict(text, None), Verdict::Inconclusive("the history has no operation".to_owned()), "{text}");
    }
    for text in [
        "{:process :nemesis, :type :info, :f :start}",
        "[0 :invoke :write 1] [1 :invoke :read nil]",
        "[0 :invoke :write 1] [0 :info :write 1]",
        "[0 :invoke :write 1] [0 :fail :write 1]",
    ] {
        let reason = "no operation has an answer that can be judged".to_owned();
        assert_eq!(verdict(text, None), Verdict::Inconclusive(reason), "{text}");
    }
    let read = "[0 :invoke :read nil] [0 :ok :read nil]";
    assert_eq!(verdict(read, None), Verdict::Linearizable, "nil is the value at the start");
    assert!(matches!(verdict(read, Some("1")), Verdict::Inconclusive(_)), "the read says nothing");
}

#[test]
fn a_register_may_get_its_first_value_again() {
    let call = |function: &str, value: u32| format!("[0 :invoke :{function} {value}] [0 :ok :{function} {value}]\n");
    for (initial, written, read, is_right) in
        [(Some("1"), &[2, 1][..], 1, true), (None, &[2, 1, 2][..], 2, true), (None, &[2, 1, 2][..], 1, false)]
    {
        let written: String = written.iter().map(|value| call("write", *value)).collect();
        let asked = Asked { model: Some(ModelKind::Register), initial };
        let (_, verdict) = judged(Format::JepsenEdn, &(written + &call("read", read)), asked);
        assert_eq!((verdict == Verdict::Linearizable, is_wrong(&verdict)), (is_right, !is_right), "{verdict:?}");
    }
}

/// Jepsen gives each crashed call a new process, but a mutex has no owners.
#[test]
fn crashed_calls_on_a_mutex_are_only_counted() {
    let crashed: String = (100..130).map(|process| format!("[{process} :invoke :acquire nil]\n")).collect();
    for (releases, is_right) in [(30, true), (31, false)] {
        let text = crashed.clone() + &"[0 :invoke :release nil] [0 :ok :release nil]\n".repeat(releases);
        let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), Asked::default()).unwrap();
        options.steps = 100_000;
        let verdict = check(&history, &options);
        assert_eq!((verdict == Verdict::Linearizable, is_wrong(&verdict)), (is_right, !is_right), "{verdict:?}");
    }
}

#[test]
fn a_process_that_names_its_client_once_is_that_client() {
    let start = "[0 :invoke :acquire 100] [0 :ok :acquire {:client \"c0\", :fence 1}]\n";
    let release = "[0 :invoke :release 101] [0 :info :release 101]\n";
    let other = "[1 :invoke :acquire 102] [1 :ok :acquire {:client \"c1\", :fence 2}]";
    for model in [ModelKind::OwnerMutex, ModelKind::FencedMutex] {
        assert_eq!(edn(&[start, release, other].concat(), model), Verdict::Linearizable, "{model:?}");
        assert!(is_wrong(&edn(&[start, other].concat(), model)), "{model:?}");
    }
}

#[test]
fn a_process_that_names_no_client_can_be_any() {
    let acquire = "[0 :invoke :acquire 100] [0 :info :acquire 100]\n";
    let release = "[5 :invoke :release 101] [5 :ok :release {:client \"c0\"}]\n";
    for model in [ModelKind::OwnerMutex, ModelKind::FencedMutex] {
        assert_eq!(edn(&[acquire, release].concat(), model), Verdict::Linearizable, "{model:?}");
        // It acquired once.
        assert!(is_wrong(&edn(&[acquire, release, release].concat(), model)), "{model:?}");
    }
    // Several operations of the process need one owner, but the search may have taken them for those of two.
    let held = "[0 :invoke :acquire nil] [0 :ok :acquire {:fence 1}] \
                [5 :invoke :release nil] [5 :ok :release {:client 5}] \
                [6 :invoke :acquire nil] [6 :ok :acquire {:client 6, :fence 2}] \
                [0 :invoke :release nil] [0 :ok :release nil]";
    for model in [ModelKind::OwnerMutex, ModelKind::FencedMutex] {
        let verdict = edn(held, model);
        let Verdict::Inconclusive(reason) = verdict else { panic!("{verdict:?}") };
        assert!(reason.contains("not that of process 0"), "{reason}");
    }
    assert_eq!(edn(held, ModelKind::Mutex), Verdict::Linearizable);
    let repeated = held.replace(":fence 2", ":fence 1");
    assert!(is_wrong(&edn(&repeated, ModelKind::FencedMutex)), "the token repeats");
}

/// Client c releases the hold of process 0, which is its own.
#[test]
fn a_hold_without_an_owner_ends_with_the_release_of_any() {
    let text = "[0 :invoke :acquire nil] [0 :ok :acquire nil]
                [1 :invoke :acquire {:client c}] [1 :info :acquire nil]
                [2 :invoke :release {:client c}] [2 :ok :release nil]
                [3 :invoke :acquire {:client d}] [3 :ok :acquire nil]";
    assert_eq!(edn(text, ModelKind::OwnerMutex), Verdict::Linearizable);
}

#[test]
fn a_process_that_names_two_clients_can_be_any() {
    let hold = |client: &str, releaser: &str| {
        format!(
            "[0 :invoke :acquire nil] [0 :ok :acquire {{:client {client}}}] \
             [0 :invoke :release nil] [0 :ok :release {releaser}]\n"
        )
    };
    let last = hold("a", "{:client a}") + &hold("b", "nil");
    let first = hold("a", "nil") + &hold("b", "{:client b}");
    for text in [last, first] {
        assert_eq!(edn(&text, ModelKind::OwnerMutex), Verdict::Linearizable, "{text}");
    }
}

#[test]
fn a_client_that_calls_twice_at_the_same_time_is_judged_right() {
    let by = |process: u32, kind: &str, function: &str, client: &str| {
        format!("[{process} :{kind} :{function} {{:client \"{client}\"}}]\n")
    };
    let (a, b) =
        (|process, kind, function| by(process, kind, function, "a"), |kind, function| by(2, kind, function, "b"));
    let call = a(0, "invoke", "acquire");
    let release = a(1, "invoke", "release") + &a(1, "ok", "release");
    let answer = a(0, "ok", "acquire");
    let other = b("invoke", "acquire") + &b("ok", "acquire");
    let end = b("invoke", "release") + &b("ok", "release");
    let judge = |parts: &[&str]| edn(&parts.concat(), ModelKind::OwnerMutex);
    assert_eq!(judge(&[&call, &release, &other, &answer]), Verdict::Linearizable);
    assert!(is_wrong(&judge(&[&other, &call, &release, &end, &answer])));
}

#[test]
fn a_keyword_is_a_client_unless_it_is_the_nemesis() {
    let text = "[:reader :invoke :read nil] [:nemesis :info :start nil] [:reader :ok :read 7]";
    let (history, verdict) = judged(Format::JepsenEdn, text, Asked::default());
    assert!(is_wrong(&verdict) && history.ignored == 1, "{verdict:?}");
}

#[test]
fn a_pair_that_names_a_key_is_of_a_store() {
    let written = "[0 :invoke :write [1 5]] [0 :ok :write [1 5]] [0 :invoke :write [2 6]] [0 :ok :write [2 6]]\n";
    let read = "[1 :invoke :read [1 nil]] [1 :ok :read [1 5]]\n";
    let cas = "[0 :invoke :cas [1 [5 7]]] [0 :ok :cas [1 [5 7]]]\n";
    for text in [[written, read].concat(), [written, cas].concat()] {
        let (history, verdict) = judged(Format::JepsenEdn, &text, Asked::default());
        assert_eq!((history.objects.len(), verdict), (2, Verdict::Linearizable), "{text}");
    }
    let plain = "[1 :invoke :read nil] [1 :ok :read [2 6]]\n";
    for other in [read, cas] {
        let said = refused(Format::JepsenEdn, &[written, other, plain].concat());
        assert!(said.contains("line 2: the call names a key") && said.contains("line 3 names none"), "{said}");
    }
    // The values of a register can be lists too.
    let lists = "[0 :invoke :cas [nil [1 2]]] [0 :ok :cas nil] [0 :invoke :cas [[1 2] [1 3]]] [0 :ok :cas nil]";
    assert_eq!(edn(lists, ModelKind::CasRegister), Verdict::Linearizable);
    assert_eq!(judged(Format::JepsenEdn, lists, Asked::default()).1, Verdict::Linearizable);
    assert_eq!(judged(Format::JepsenEdn, &[written, plain].concat(), Asked::default()).1, Verdict::Linearizable);
}

#[test]
fn values_are_equal_if_edn_says_so() {
    let are_equal = |one: &str, other: &str| {
        let text = format!("[0 :invoke :write {one}] [0 :ok :write nil] [0 :invoke :read nil] [0 :ok :read {other}]");
        edn(&text, ModelKind::Register) == Verdict::Linearizable
    };
    for (one, other) in [
        ("#{1 2}", "#{2 1}"),
        ("{:a 1 :b [2]}", "{:b (2), :a 1}"),
        (r#""\u0041""#, r#""A""#),
        (r#""\ud83d\ude00""#, "\"😀\""),
        (r"[\a\b]", r"[\a \b]"),
        (r"[\( \\]", r"[\(\\]"),
        ("5N", "+5"),
        ("99999999999999999999N", "+99999999999999999999"),
        ("##Inf", "##Inf"),
        ("-0", "0"),
        (r#""\t\n""#, "\"\t\n\""),
    ] {
        assert!(are_equal(one, other), "{one} {other}");
    }
    for (one, other) in [
        ("#{1}", "[1]"),
        (r#""\b""#, r#""\\b""#),
        (r#""\f""#, r#""f""#),
        (r#"#inst "x""#, r#""x""#),
        (r#"#inst "x""#, r#"#inst "y""#),
        ("##Inf", "##-Inf"),
        ("5NN", "5"),
        ("-99999999999999999999", "99999999999999999999"),
        ("1.0", "1.00"),
        ("1", r#""1""#),
        (":a", "a"),
        (":a", r#"":a""#),
        (r"\a", "a"),
        ("[1 [2]]", "[[1] 2]"),
        ("#{1 [2]}", "#{1 #{2}}"),
    ] {
        assert!(!are_equal(one, other), "{one} {other}");
    }
}

#[test]
fn a_string_and_a_number_with_its_text_are_two_values_of_a_store() {
    let store = |calls: &[(&str, &str)], answer: &str| {
        let call = |(function, value): &(&str, &str)| {
            format!("[0 :invoke :{function} [:x {value}]] [0 :ok :{function} [:x {value}]]\n")
        };
        let text = calls.iter().map(call).collect::<String>();
        let asked = Asked { model: Some(ModelKind::Kv), initial: None };
        judged(Format::JepsenEdn, &(text + &format!("[0 :invoke :read [:x nil]] [0 :ok :read [:x {answer}]]")), asked)
    };
    for (form, string) in [("1", r#""1""#), (":a", r#"":a""#), ("[1]", r#""[1]""#)] {
        for (written, other) in [(form, string), (string, form)] {
            assert_eq!(store(&[("write", written)], written).1, Verdict::Linearizable);
            assert!(is_wrong(&store(&[("write", written)], other).1), "{written} was read as {other}");
        }
    }
    assert_eq!(store(&[("append", r#""1""#)], r#""1""#).1, Verdict::Linearizable);
    assert!(is_wrong(&store(&[("append", r#""1""#)], "1").1), "an append of strings makes a string");
    // Two ways lead to one text: strings alone, and a number with them.
    let strings = [("write", r#""1""#), ("append", r#""2""#)];
    let mixed = [("write", "1"), ("append", r#""2""#)];
    for (calls, can_be_number) in [
        (strings.to_vec(), false),
        (mixed.to_vec(), true),
        (vec![("write", r#""1""#), ("append", "2")], true),
        (vec![("write", "1"), ("append", "2")], true),
        ([mixed, strings].concat(), false),
        ([strings, mixed].concat(), true),
    ] {
        assert_eq!(store(&calls, r#""12""#).1, Verdict::Linearizable, "{calls:?}");
        assert_eq!(is_wrong(&store(&calls, "12").1), !can_be_number, "{calls:?}");
        let longer = [&calls[..], &[("append", r#""3""#)]].concat();
        assert_eq!(is_wrong(&store(&longer, "123").1), !can_be_number, "{longer:?}");
        let replaced = [&calls[..], &[("cas", "[12 4]")]].concat();
        assert_eq!(is_wrong(&store(&replaced, "4").1), !can_be_number, "{replaced:?}");
    }
    let (history, verdict) = store(&[("write", r#""1""#), ("write", "1")], r#""1""#);
    let Verdict::NotLinearizable(conflict) = verdict else { panic!("{verdict:?}") };
    let words = conflict.words(&history);
    assert!(words.contains(r#"`read "1"` of process 0"#) && words.ends_with("states: 1"), "{words}");
}

#[test]
fn a_message_shows_no_control_character_of_the_file() {
    let text = "{:process \u{1b}c, :type :invoke, :f :read}";
    assert!(refused(Format::JepsenEdn, text).contains(r"`:process \u{1b}c` is no number"));
    let text = "[0 :invoke :put [\u{1b}k \"b\nlinearizable\"]] [0 :ok :put [\u{1b}k \"b\nlinearizable\"]] \
                [0 :invoke :put [\u{1b}k \"a\nlinearizable\"]] [0 :ok :put [\u{1b}k \"a\nlinearizable\"]] \
                [:p\u{1b} :invoke :get [\u{1b}k nil]] [:p\u{1b} :ok :get [\u{1b}k \"b\nlinearizable\"]]";
    let (history, verdict) = judged(Format::JepsenEdn, text, Asked::default());
    let Verdict::NotLinearizable(conflict) = verdict else { panic!("{verdict:?}") };
    let words = conflict.words(&history) + &history.values.words(conflict.object);
    assert!(!words.contains(char::is_control), "{words}");
    assert!(words.contains(r"`read b\nlinearizable` of process :p\u{1b} "), "{words}");
    assert!(words.ends_with(r"states: a\nlinearizable\u{1b}k"), "{words}");
}

#[test]
fn a_mark_of_utf_8_is_no_part_of_the_file() {
    let text = "\u{feff}[0 :invoke :read nil] [0 :ok :read 1]";
    assert!(is_wrong(&edn(text, ModelKind::Register)));
    let text = "\u{feff}INFO  jepsen.util - 0\t:invoke\t:read\tnil\nINFO  jepsen.util - 0\t:ok\t:read\t1\n";
    assert!(is_wrong(&judged(Format::PorcupineLog, text, Asked::default()).1));
}

#[test]
fn an_empty_line_ends_no_log() {
    let text = "INFO  jepsen.util - 0\t:invoke\t:read\tnil\n\nINFO  jepsen.util - 0\t:ok\t:read\t1\n";
    assert!(is_wrong(&judged(Format::PorcupineLog, text, Asked::default()).1));
}

#[test]
fn a_reason_in_a_log_is_any_text() {
    for kind in ["info", "fail"] {
        for reason in ["", "\t1 gone; retry", "\t:timed-out", "\t1 :timed out", "\t(not closed"] {
            let end = format!("0\t:{kind}\t:write\t{reason}");
            let verdict = log(&["0\t:invoke\t:write\t1", &end, "1\t:invoke\t:read\tnil", "1\t:ok\t:read\t1"]);
            assert_eq!(is_wrong(&verdict), kind == "fail", "{end}");
        }
    }
}
