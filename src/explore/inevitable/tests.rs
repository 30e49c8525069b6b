use std::sync::atomic::{AtomicU32, Ordering};

use history::When;

use super::*;
use crate::explore::{
    fixtures::{class, paused_at, plan, trial as made},
    trial::watched,
};

fn simulated(plan: &Plan, redraw: Option<Redraw>, watch: &mut dyn FnMut(&Record)) -> Option<Trial> {
    watched(plan, "redlock", None, redraw, watch).ok()
}

/// A plan that freezes worker-1 at a fixed time, with the first seed with which worker-1 holds the lock then.
fn frozen() -> (Plan, Class) {
    let of = |seed| {
        let schedule = vec![paused_at(1, When::At(Duration::from_secs(4)), 3_000)];
        let plan = Plan { seed, schedule, ..plan() };
        let found = simulated(&plan, None, &mut |_| ())?.classes;
        Some((plan, found.into_iter().find(|class| class.kind == "stale-holder")?))
    };
    (0..100).find_map(of).expect("one of the seeds violates")
}

#[test]
fn a_redraw_after_the_violation_violates_with_certainty() {
    let (plan, class) = frozen();
    let drawn = inevitability(&plan, &class, 16, 2, &simulated).unwrap();
    assert_eq!(drawn.instants.len(), INSTANTS as usize);
    assert_eq!(drawn.instants.last().unwrap().violating, 16);
    let (probable, certain) = (drawn.probable_from.unwrap(), drawn.certain_from.unwrap());
    assert!(probable <= certain && certain <= drawn.instants.last().unwrap().at, "{probable:?} {certain:?}");
    assert!(drawn.instants[0].violating < 16, "{:?}", drawn.instants);
    assert!(drawn.around.iter().any(|moment| moment.at_ms <= certain.as_secs_f64() * 1e3));
}

/// A simulation in words: one event each 10 ms, and a violation that is certain after the event at 420 ms, has a
/// probability of 3/4 from 200 ms on, and of 1/4 before.
fn model(_: &Plan, redraw: Option<Redraw>, watch: &mut dyn FnMut(&Record)) -> Option<Trial> {
    let start = Stamp(1_000_000_000);
    let at = |ms: u64| start.plus(Duration::from_millis(ms));
    for ms in (0..=1_000).step_by(10) {
        let (role, boot_id) = (history::Role::Worker, String::new());
        let event = if ms == 0 { Event::Started { role, boot_id, time_namespace: 0 } } else { Event::Watermark };
        watch(&Record { seq: ms, process: "worker-1".into(), n: ms, at: at(ms), event });
    }
    let is_violated = redraw.is_none_or(|redraw| match redraw.seed % 4 {
        _ if redraw.from > at(420) => true,
        0 => true,
        1 | 2 => redraw.from >= at(200),
        _ => false,
    });
    Some(made(is_violated.then(|| class("pause"))))
}

#[test]
fn the_instants_are_those_of_events() {
    for jobs in [1, 3] {
        let drawn = inevitability(&plan(), &class("pause"), 64, jobs, &model).unwrap();
        assert_eq!(drawn.probable_from, Some(Duration::from_millis(200)));
        assert_eq!(drawn.certain_from, Some(Duration::from_nanos(420_000_001)));
        let counts: Vec<u32> = drawn.instants.iter().map(|instant| instant.violating).collect();
        assert!(counts.is_sorted() && counts[0] > 0 && counts[0] < 32 && counts[23] == 64, "{counts:?}");
    }
}

#[test]
fn another_cause_is_the_same_violation_and_another_kind_or_property_is_not() {
    let simulations = AtomicU32::new(0);
    let other = |plan: &Plan, redraw: Option<Redraw>, watch: &mut dyn FnMut(&Record)| {
        simulations.fetch_add(1, Ordering::Relaxed);
        let trial = model(plan, None, watch)?;
        Some(if redraw.is_some() { made([class("kill")]) } else { trial })
    };
    let drawn = inevitability(&plan(), &class("pause"), 8, 2, &other).unwrap();
    assert_eq!((drawn.probable_from, drawn.certain_from), (Some(Duration::ZERO), Some(Duration::ZERO)));
    assert_eq!(simulations.into_inner(), 1 + 8 * INSTANTS);
    let kind = Class { kind: "lease-overlap", ..class("pause") };
    for another in [kind, Class { property: "tokens".into(), ..class("pause") }] {
        let never = |plan: &Plan, redraw: Option<Redraw>, watch: &mut dyn FnMut(&Record)| {
            let trial = model(plan, None, watch)?;
            Some(if redraw.is_some() { made([another.clone()]) } else { trial })
        };
        let drawn = inevitability(&plan(), &class("pause"), 8, 2, &never).unwrap();
        assert_eq!((drawn.probable_from, drawn.certain_from), (None, None), "{another}");
    }
}

#[test]
fn the_chart_names_the_event_that_decides() {
    let (plan, class) = frozen();
    let drawn = inevitability(&plan, &class, 8, 2, &simulated).unwrap();
    let text = drawn.text("lock stale-holder", 7);
    assert!(text.starts_with("  when it became inevitable: seed 7 with 1 fault at exact times\n"), "{text}");
    for words in [" of 8", "  probable (1/2) from ", "  inevitable from ", "  > ", "8 of 8  ########################\n"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn each_gap_of_the_chart_is_marked() {
    // One instant a second: the redraws violate, of eight.
    let violating = [1, 1, 1, 1, 8, 8, 8, 8];
    let instant = |(at, violating)| Instant { at: Duration::from_secs(at), violating };
    let drawn = Inevitability {
        plan: plan(),
        redraws: 8,
        instants: (0..).zip(violating).map(instant).collect(),
        probable_from: None,
        certain_from: None,
        around: Vec::new(),
        toml: String::new(),
    };
    let text = drawn.text("lock stale-holder", 7);
    let rows: Vec<&str> = text.lines().skip(3).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(rows[..6], ["0.000", "…", "3.000", "4.000", "…", "7.000"], "{text}");
}

#[test]
fn a_plan_violates_whatever_is_drawn_only_if_each_redraw_does() {
    for (first, is_said) in [(8, true), (7, false)] {
        let instant = |(at, violating)| Instant { at: Duration::from_secs(at), violating };
        let drawn = Inevitability {
            plan: plan(),
            redraws: 8,
            instants: (0..).zip([first, 8, 8]).map(instant).collect(),
            probable_from: Some(Duration::ZERO),
            certain_from: Some(Duration::ZERO),
            around: Vec::new(),
            toml: String::new(),
        };
        let text = drawn.text("lock stale-holder", 7);
        assert_eq!(text.contains("whatever is drawn\n"), is_said, "{text}");
        assert_eq!(text.contains("inevitable from 0.000 s on; "), !is_said, "{text}");
    }
}

#[test]
fn all_moments_at_the_instant_are_shown_and_some_around_it() {
    let moment = |s: u64| Moment { at_ms: s as f64 * 1e3, who: "worker-1".to_owned(), what: "acquired k0".to_owned() };
    let all: Vec<Moment> = [1, 2, 3, 4, 4, 4, 5, 6, 7].map(moment).to_vec();
    let around = |s: u64| moments::around(&all, Duration::from_secs(s), 2, 1);
    for (at, shown) in [(4, vec![2, 3, 4, 4, 4, 5]), (1, vec![1, 2]), (7, vec![5, 6, 7]), (8, vec![6, 7])] {
        assert_eq!(around(at), shown.into_iter().map(moment).collect::<Vec<_>>(), "{at} s");
    }
}
