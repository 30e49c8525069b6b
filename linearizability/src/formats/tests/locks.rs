//! Locks: their owners, holds and tokens.

use super::{Asked, Format, ModelKind, Verdict, edn, is_wrong, read};

const OWNED: [ModelKind; 2] = [ModelKind::OwnerMutex, ModelKind::FencedMutex];

/// A call with its answer.
fn call(process: u32, function: &str, kind: &str, answer: &str) -> String {
    format!("[{process} :invoke :{function} nil] [{process} :{kind} :{function} {answer}]\n")
}

/// Compares the verdict on calls one after the other.
fn expect(calls: &[String], model: ModelKind, is_right: bool) {
    let verdict = edn(&calls.concat(), model);
    let found = (verdict == Verdict::Linearizable, is_wrong(&verdict));
    assert_eq!(found, (is_right, !is_right), "{model:?}, {verdict:?}:\n{}", calls.concat());
}

/// Each lock alone has an order, but process 0 is two clients in it.
#[test]
fn a_process_that_can_be_any_client_is_one_client_on_all_locks() {
    // A process that names no client acquires, another one releases.
    let hold = |process: u32, releaser: u32, key: &str| {
        let event = |process: u32, kind: &str, function: &str, value: &str| {
            format!("{{:process {process}, :type :{kind}, :f :{function}, :key {key}, :value {value}}}\n")
        };
        [
            event(process, "invoke", "acquire", "nil"),
            event(process, "ok", "acquire", "{:fence 1}"),
            event(releaser, "invoke", "release", "nil"),
            event(releaser, "ok", "release", &format!("{{:client c{releaser}}}")),
        ]
        .concat()
    };
    let of_one = [hold(1, 5, "a"), hold(0, 6, "b"), hold(0, 7, "c")];
    for model in OWNED {
        let Verdict::Inconclusive(reason) = edn(&of_one.concat(), model) else { panic!("{model:?}") };
        assert!(reason.contains("not that of process 0,"), "{reason}");
        expect(&of_one[..2], model, true);
    }
    expect(&of_one, ModelKind::Mutex, true);
}

/// Process 0 may be the client of process 5, which holds the lock.
#[test]
fn a_process_that_can_be_any_client_may_release_the_hold_of_another_process() {
    let held = |client: &str| call(5, "acquire", "ok", client);
    let rest = [call(0, "acquire", "info", "nil"), call(0, "release", "ok", "nil")].concat();
    let verdict = edn(&(held("{:client c}") + &rest), ModelKind::OwnerMutex);
    let Verdict::Inconclusive(reason) = verdict else { panic!("{verdict:?}") };
    assert!(reason.contains("not that of process 0,"), "{reason}");
    expect(&[held("nil"), rest], ModelKind::OwnerMutex, false);
}

/// Process 0 and process 1 crashed, and one of them has had the lock.
#[test]
fn of_two_clients_that_crashed_either_may_hold_the_lock() {
    let crashed = |process: u32| call(process, "acquire", "info", "nil");
    for (releaser, is_right) in [(0, true), (1, true), (2, false)] {
        let calls = [crashed(0), crashed(1), call(releaser, "release", "ok", "nil")];
        for model in OWNED {
            expect(&calls, model, is_right);
        }
    }
}

/// As `jepsen.independent` writes them: the key stands before each value.
#[test]
fn locks_of_several_keys_are_judged_apart() {
    let acquire = |process: u32, value: &str, answer: &str| {
        format!("[{process} :invoke :acquire {value}] [{process} :ok :acquire {answer}]\n")
    };
    for value in ["nil", "{:client nil}"] {
        let (one, other) = (format!("[:a {value}]"), format!("[:b {value}]"));
        for model in [ModelKind::Mutex, ModelKind::OwnerMutex] {
            expect(&[acquire(0, &one, &one), acquire(1, &other, &other)], model, true);
            expect(&[acquire(0, &one, &one), acquire(1, &one, &one)], model, false);
        }
        let tokens = [acquire(0, &one, "[:a {:fence 7}]"), acquire(1, &other, "[:b 7]")];
        expect(&tokens, ModelKind::FencedMutex, true);
        let mixed = acquire(0, &one, &one) + &acquire(1, "nil", "nil");
        let said = read(Format::JepsenEdn, mixed.as_bytes(), Asked::default()).map(|_| ()).unwrap_err().to_string();
        assert_eq!(said, "line 1: the call names a lock, `[key value]`, but the call of line 2 names none");
    }
}

#[test]
fn a_client_is_found_beside_the_key_of_its_lock() {
    let released = |answer: &str, releaser: &str| {
        [
            format!("[0 :invoke :acquire [:a nil]] [0 :ok :acquire [:a {answer}]]\n"),
            format!("[7 :invoke :release [:a {{:client {releaser}}}]] [7 :ok :release [:a nil]]\n"),
        ]
    };
    expect(&released("{:client c}", "c"), ModelKind::OwnerMutex, true);
    expect(&released("{:client c}", "d"), ModelKind::OwnerMutex, false);
    // Only the answer of process 0 names its client, and its release does not.
    let once = "[0 :invoke :acquire [:a nil]] [0 :ok :acquire [:a {:client c}]]
                [0 :invoke :release [:a nil]] [0 :info :release [:a nil]]
                [1 :invoke :acquire [:a nil]] [1 :ok :acquire [:a {:client d}]]";
    assert_eq!(edn(once, ModelKind::OwnerMutex), Verdict::Linearizable);
}

#[test]
fn a_client_of_nil_is_no_name() {
    for (releaser, is_right) in [(0, true), (1, false)] {
        let calls = [(0, "acquire"), (releaser, "release")];
        expect(&calls.map(|(process, f)| call(process, f, "ok", "{:client nil}")), ModelKind::OwnerMutex, is_right);
    }
}

/// Calls that the holds of the lock decide, and others that only the search does.
#[test]
fn an_owner_releases_each_hold_once_and_may_ask_again() {
    let step = |letter: char| match letter {
        'A' => call(0, "acquire", "ok", "nil"),
        'a' => call(0, "acquire", "info", "nil"),
        'R' => call(0, "release", "ok", "nil"),
        'r' => call(0, "release", "info", "nil"),
        _ => call(1, "acquire", "ok", "nil"),
    };
    for (letters, is_right) in [
        ("AR", true),
        ("ARR", false),
        ("aR", true),
        ("aRR", false),
        ("aaRR", true),
        ("aaRRR", false),
        ("AA", false),
        ("AaRo", true),
        ("Aao", false),
        ("ArA", true),
        ("ArAA", false),
        ("ArARo", true),
        ("ArRo", true),
        ("arAo", true),
        ("arAoo", false),
    ] {
        let calls: Vec<String> = letters.chars().map(step).collect();
        expect(&calls, ModelKind::OwnerMutex, is_right);
    }
}

#[test]
fn a_call_on_a_lock_that_was_refused_did_not_take_place() {
    let held = call(0, "acquire", "ok", "{:fence 1}");
    let next = call(1, "acquire", "ok", "{:fence 2}");
    for model in [ModelKind::Mutex, ModelKind::OwnerMutex, ModelKind::FencedMutex] {
        expect(&[held.clone(), call(1, "acquire", "fail", "nil")], model, true);
        expect(&[call(1, "acquire", "fail", "nil"), call(1, "release", "ok", "nil")], model, false);
        for (kind, is_right) in [("ok", true), ("info", true), ("fail", false)] {
            expect(&[held.clone(), call(0, "release", kind, "nil"), next.clone()], model, is_right);
        }
    }
}

#[test]
fn a_token_is_the_answer_or_its_fence_and_each_acquisition_has_one() {
    let hold =
        |process: u32, answer: &str| call(process, "acquire", "ok", answer) + &call(process, "release", "ok", "nil");
    for (first, second, is_right) in [
        ("7", "8", true),
        ("7", "7", false),
        ("8", "7", false),
        ("{:fence 7}", "8", true),
        ("8", "{:fence 7}", false),
        ("-2", "-1", true),
        ("-1", "-2", false),
    ] {
        expect(&[hold(0, first), hold(1, second)], ModelKind::FencedMutex, is_right);
        expect(&[hold(0, first), hold(1, second)], ModelKind::OwnerMutex, true);
    }
    for answer in ["nil", "{:client 0}", "\"7\""] {
        let asked = Asked { model: Some(ModelKind::FencedMutex), initial: None };
        let said = read(Format::JepsenEdn, hold(0, answer).as_bytes(), asked).map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with("line 1: the acquisition of line 1 got no fencing token"), "{said}");
    }
}

/// Tokens of a lock are whole numbers that grow, also those of acquisitions whose answer was lost.
#[test]
fn a_lost_token_needs_a_number_between_its_neighbours() {
    let hold = |process: u32, kind: &str, answer: &str| {
        call(process, "acquire", kind, answer) + &call(process, "release", "ok", "nil")
    };
    let lost = hold(2, "info", "nil");
    for (first, second, least_wrong) in [("8", "7", 0), ("7", "7", 0), ("7", "8", 1), ("7", "9", 2), ("-2", "1", 3)] {
        for count in 0..4 {
            let calls = [hold(0, "ok", first), lost.repeat(count), hold(1, "ok", second)];
            expect(&calls, ModelKind::FencedMutex, count < least_wrong);
            expect(&calls, ModelKind::OwnerMutex, true);
        }
    }
    // Nobody knows the number before the first one, nor one after the last.
    expect(&[lost.repeat(3), hold(0, "ok", "0"), lost.repeat(3)], ModelKind::FencedMutex, true);
    let largest = i64::MAX.to_string();
    expect(&[hold(0, "ok", &largest), lost.repeat(3)], ModelKind::FencedMutex, true);
    // The answer to the release was lost too, so the lock need not have been acquired.
    let nothing = call(2, "acquire", "info", "nil") + &call(2, "release", "info", "nil");
    expect(&[hold(0, "ok", "7"), nothing, hold(1, "ok", "8")], ModelKind::FencedMutex, true);
}
