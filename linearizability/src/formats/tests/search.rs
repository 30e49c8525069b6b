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
    let mut text = String::new();
    for process in 0..40 {
        text += &format!("[{process} :invoke :cas [{} {}]]\n", process % 7, (process * 5 + 1) % 7);
    }
    for process in 0..40 {
        text += &format!("[{process} :ok :cas nil]\n");
    }
    text += "[50 :invoke :read nil] [50 :ok :read 99]";
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
    let heavy = each("invoke") + &each("ok") + "[50 :invoke :read [:a nil]] [50 :ok :read [:a 99]]\n";
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
