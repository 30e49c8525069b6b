//! The search: its bounds, and the orders that it finds.

use super::{is_wrong, judged};
use crate::{
    check::{Verdict, check},
    formats::{Asked, Format, read},
    model::ModelKind,
};

/// Operations that are all open at the same time: the search must end within its memory.
#[test]
fn a_search_that_needs_too_much_is_inconclusive() {
    // Process 51 makes the value 5, which no other value leads to.
    let mut text = "[51 :invoke :write 5]\n".to_owned();
    for process in 0..40 {
        text += &format!("[{process} :invoke :cas [{} {}]]\n", process % 7, (process * 5 + 1) % 7);
    }
    for process in 0..40 {
        text += &format!("[{process} :ok :cas nil]\n");
    }
    text += "[50 :invoke :read nil] [50 :ok :read 0]";
    let asked = Asked { initial: Some("0"), model: None };
    let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
    options.memory = 1 << 20;
    let Verdict::Inconclusive(reason) = check(&history, &options) else { panic!("nobody can know this in 1 MiB") };
    assert!(reason.contains("more than 1 MiB"), "{reason}");
    options.steps = 1_000;
    let Verdict::Inconclusive(reason) = check(&history, &options) else {
        panic!("nobody can know this in 1,000 steps")
    };
    assert!(reason.contains("more than 1000 steps"), "{reason}");
}

/// The bound is one for the file: many objects do not make a check longer.
#[test]
fn all_objects_share_the_steps_of_a_search() {
    let object = |key: &str, process: u32| {
        let cas = |process: u32, from: u32, to: u32| {
            format!("[{process} :invoke :cas [{key} [{from} {to}]]] [{process} :ok :cas [{key} [{from} {to}]]]\n")
        };
        cas(process, 0, 1) + &cas(process + 1, 1, 2)
    };
    let judged = |text: &str, steps: u64| {
        let asked = Asked { initial: Some("0"), model: Some(ModelKind::Kv) };
        let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
        options.steps = steps;
        (history.objects.len(), check(&history, &options))
    };
    let (one, two) = (object(":a", 0), object(":a", 0) + &object(":b", 2));
    let least = (1..1_000).find(|steps| judged(&one, *steps).1 == Verdict::Linearizable).unwrap();
    let (objects, verdict) = judged(&two, least);
    let Verdict::Inconclusive(reason) = verdict else { panic!("the second object has no step left: {verdict:?}") };
    assert!(objects == 2 && reason.contains(&format!("more than {least} steps")), "{objects} objects, {reason}");
    assert_eq!(judged(&two, 4 * least).1, Verdict::Linearizable);
}

#[test]
fn a_key_that_needs_all_steps_hides_no_violation_of_another_key() {
    let cas = |from: u32, to: u32| format!(":cas [:a [{from} {to}]]]\n");
    let each = |kind: &str| {
        let one = |process: u32| format!("[{process} :{kind} {}", cas(process % 7, (process * 5 + 1) % 7));
        (0..40).map(one).collect::<String>()
    };
    let open = "[51 :invoke :write [:a 5]]\n".to_owned();
    let heavy = open + &each("invoke") + &each("ok") + "[50 :invoke :read [:a nil]] [50 :ok :read [:a 0]]\n";
    let wrong = "[60 :invoke :write [:b 1]] [60 :ok :write [:b 1]] [60 :invoke :read [:b nil]] [60 :ok :read [:b 2]]\n";
    let judged = |text: &str| {
        let asked = Asked { initial: Some("0"), model: Some(ModelKind::Kv) };
        let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
        options.steps = 20_000;
        check(&history, &options)
    };
    assert!(matches!(judged(&heavy), Verdict::Inconclusive(_)));
    assert!(is_wrong(&judged(&(heavy.clone() + wrong))), "the heavy key comes first");
    assert!(is_wrong(&judged(&(wrong.to_owned() + &heavy))), "the heavy key comes last");
    // A key that is right does not make up for a search that ended without a result.
    let right = wrong.replace("[:b 2]", "[:b 1]");
    for text in [heavy.clone() + &right, right.clone() + &heavy] {
        let asked = Asked { initial: Some("0"), model: Some(ModelKind::Kv) };
        let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
        options.memory = 4 << 10;
        assert!(matches!(check(&history, &options), Verdict::Inconclusive(_)));
    }
}

#[test]
fn long_values_of_appends_count_as_memory_of_the_search() {
    let append = format!(":append [:x \"{}\"]", "a".repeat(1_000));
    let text = format!("[0 :invoke {append}] [0 :ok {append}]\n").repeat(60);
    let asked = Asked { initial: None, model: Some(ModelKind::Kv) };
    let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
    assert_eq!(check(&history, &options), Verdict::Linearizable);
    options.memory = 1 << 20;
    assert!(matches!(check(&history, &options), Verdict::Inconclusive(_)));
}

/// The first two orders of the calls 0, 1 and 2 that the search tries use up the write of process 9.
#[test]
fn an_order_that_saves_an_unanswered_call_is_found() {
    let text = "[9 :invoke :write 1]
                [0 :invoke :write 2] [1 :invoke :write 4] [2 :invoke :cas [1 3]]
                [0 :ok :write 2] [1 :ok :write 4] [2 :ok :cas [1 3]]
                [3 :invoke :cas [1 5]] [3 :ok :cas [1 5]]";
    let asked = Asked { model: Some(ModelKind::CasRegister), initial: Some("1") };
    assert_eq!(judged(Format::JepsenEdn, text, asked).1, Verdict::Linearizable);
}

/// The write of process 9 overlaps all other calls, and is the last one in the order that the search finds.
#[test]
fn a_call_as_long_as_the_history_needs_little_memory() {
    let write = |n: u32| format!("[0 :invoke :write {0}] [0 :ok :write {0}]\n", n % 3);
    let writes: String = (0..1_000).map(write).collect();
    let text = format!("[9 :invoke :write 3]\n{writes}[9 :ok :write 3]");
    let asked = Asked { model: Some(ModelKind::CasRegister), initial: None };
    let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
    options.memory = 1 << 20;
    assert_eq!(check(&history, &options), Verdict::Linearizable);
}

/// The search leaves twelve configurations for each round, and needs all rounds to know that none has another order.
#[test]
fn a_violation_at_the_end_of_a_long_history_is_found_in_little_memory() {
    let each = |kind: &str| (1..4).map(|n| format!("[{n} :{kind} :write {n}]\n")).collect::<String>();
    let got = |value: u32| format!("[0 :invoke :read nil] [0 :ok :read {value}]\n");
    let round = each("invoke") + &each("ok") + &got(3);
    let judged = |text: &str| {
        let asked = Asked { model: Some(ModelKind::CasRegister), initial: None };
        let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
        options.memory = 256 << 10;
        check(&history, &options)
    };
    let rounds = round.repeat(300);
    assert_eq!(judged(&rounds), Verdict::Linearizable);
    let verdict = judged(&(rounds + &got(1)));
    assert!(is_wrong(&verdict), "{verdict:?}");
}

/// The calls of 40 processes overlap, and a search that tried their orders would end in its memory.
#[test]
fn a_value_from_nowhere_is_found_without_a_search() {
    let each = |kind: &str| {
        let one = |process: u32| format!("[{process} :{kind} :cas [{} {}]]\n", process % 7, (process + 1) % 7);
        (0..40).map(one).collect::<String>()
    };
    let overlapping = each("invoke") + &each("ok");
    let judged = |text: &str, steps: u64| {
        let asked = Asked { model: Some(ModelKind::CasRegister), initial: Some("0") };
        let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
        options.steps = steps;
        check(&history, &options)
    };
    for (end, is_wrong_at_once) in [
        ("[50 :invoke :read nil] [50 :ok :read 99]", true),
        ("[50 :invoke :cas [99 1]] [50 :ok :cas [99 1]]", true),
        ("[50 :invoke :cas [99 99]] [50 :ok :cas [99 99]]", true),
        ("[50 :invoke :read nil] [50 :ok :read 99] [51 :invoke :write 99]", true),
        // A call without an answer can have made the value.
        ("[51 :invoke :write 99] [50 :invoke :read nil] [50 :ok :read 99]", false),
        ("[51 :invoke :cas [1 99]] [50 :invoke :read nil] [50 :ok :read 99]", false),
    ] {
        assert_eq!(is_wrong(&judged(&(overlapping.clone() + end), 10)), is_wrong_at_once, "{end}");
    }
    // An absent key and an empty text answer alike.
    let empty = r#"[0 :invoke :cas [:x [nil 1]]] [0 :ok :cas [:x [nil 1]]] [0 :invoke :put [:x ""]] [0 :ok :put [:x ""]]
                   [0 :invoke :get [:x nil]] [0 :ok :get [:x nil]]"#;
    let asked = Asked { model: Some(ModelKind::Kv), initial: Some("\"\"") };
    assert_eq!(super::judged(Format::JepsenEdn, empty, asked).1, Verdict::Linearizable);
}

/// The parts need all orders of the six appends that overlap, each a long text; the whole history needs one of them.
#[test]
fn the_texts_of_a_search_that_ended_are_no_memory_of_the_next_one() {
    let put = |kind: &str, process: u32, function: &str, text: &str| {
        format!("[{process} :{kind} :{function} [:x \"{text}\"]]\n")
    };
    let one = |function: &str, text: &str| put("invoke", 0, function, text) + &put("ok", 0, function, text);
    let each = |kind: &str| (1..7).map(|n| put(kind, n, "append", &n.to_string())).collect::<String>();
    let overlapping = each("invoke") + &each("ok");
    let text = one("append", "0123456789").repeat(200) + &overlapping + &one("put", "a").repeat(1_000);
    let asked = Asked { model: Some(ModelKind::Kv), initial: None };
    let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
    options.memory = 1_200 << 10;
    assert_eq!(check(&history, &options), Verdict::Linearizable);
}

/// In each round the search first tries the order 1, 2, which the read contradicts, and then each of the open writes.
#[test]
fn many_writes_without_an_answer_cost_few_steps() {
    let open: String = (1_000..1_300).map(|n| format!("[{n} :invoke :write {n}]\n")).collect();
    let round = "[1 :invoke :write 1] [2 :invoke :write 2] [1 :ok :write 1] [2 :ok :write 2]
                 [3 :invoke :read nil] [3 :ok :read 1]\n";
    let text = open + &round.repeat(100);
    let asked = Asked { model: Some(ModelKind::CasRegister), initial: None };
    let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
    options.steps = 2_000_000;
    assert_eq!(check(&history, &options), Verdict::Linearizable);
}

/// Eighty configurations for each round are too many steps; one order needs five. So the parts come last.
#[test]
fn an_order_of_a_long_history_is_found_though_its_parts_need_too_many_steps() {
    let each = |kind: &str| (1..6).map(|n| format!("[{n} :{kind} :write {n}]\n")).collect::<String>();
    let text = (each("invoke") + &each("ok")).repeat(300);
    let asked = Asked { model: Some(ModelKind::CasRegister), initial: None };
    let (history, mut options) = read(Format::JepsenEdn, text.as_bytes(), asked).unwrap();
    (options.memory, options.steps) = (700 << 10, 300_000);
    assert_eq!(check(&history, &options), Verdict::Linearizable);
}
