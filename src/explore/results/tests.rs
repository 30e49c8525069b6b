use std::time::Duration;

use serde_json::json;

use super::*;

fn head(number: u32, of: u32) -> Head {
    Head { build: "b".into(), flags: "f".into(), first_seed: 0, seeds: 20, shard: Shard { number, of } }
}

fn exploration(holds: u64, attempts: u64) -> Results {
    let tally = Tally {
        schedules: 10,
        holds,
        attempts,
        messages: 27_000_000,
        lasted: Duration::from_secs(115_000),
        ..Tally::default()
    };
    Results::new(head(1, 1), tally, 5.0, Vec::new(), false)
}

fn class(kind: &str, causes: &[&str], count: u64, seed: u64, is_offered: bool) -> ClassResults {
    let reduced = ReducedResults {
        seed,
        faults: 2,
        fewest: 1,
        simulations: 9,
        held: if is_offered { 99 } else { 3 },
        variations: 100,
        is_offered,
        saved: None,
        plan: "schema = 1\n".into(),
        story: "  a story\n".into(),
        verdicts: json!({}),
    };
    ClassResults {
        property: "lock".into(),
        kind: kind.into(),
        causes: causes.iter().map(|cause| cause.parse().unwrap()).collect(),
        count,
        first_seed: Some(seed),
        reduced: Some(reduced),
        not_again: None,
        inevitable: None,
        chart: Some(format!("  a chart of seed {seed}\n")),
    }
}

/// Shard `number` of two, with these findings.
fn part(number: u32, classes: Vec<ClassResults>) -> (PathBuf, Results) {
    let tally = Tally { schedules: 10, holds: 340, attempts: 1_210, inconclusive: 1, ..Tally::default() };
    let tally = Tally { why_inconclusive: Some((u64::from(number), "little".into())), ..tally };
    (format!("{number}.json").into(), Results::new(head(number, 2), tally, 5.0, classes, false))
}

fn join(parts: Vec<(PathBuf, Results)>) -> Result<Results, String> {
    Results::joined(parts).map_err(|e| e.to_string())
}

#[test]
fn the_last_line_has_all_figures() {
    assert_eq!(
        exploration(340, 1_210).last_line(),
        "10 schedules, 0 findings in 0 classes · 2 schedules/s · 5.4M messages/s · 23,000 virtual s/s · means: \
         34 holds, 121 attempts a schedule"
    );
}

#[test]
fn one_of_a_kind_is_not_called_several() {
    let mut tally = Tally { schedules: 1, ..Tally::default() };
    tally.add_error(SeedError { seed: 4, why: "it stands still".into() });
    let one = Results::new(head(1, 1), tally, 5.0, vec![class("stale-holder", &["pause"], 1, 3, true)], false);
    let text = one.text();
    assert!(text.starts_with("1 schedule ended with an error and was not judged; the first is seed 4"), "{text}");
    assert!(text.contains("\n1 schedule, 1 finding in 1 class · "), "{text}");
}

#[test]
fn errors_are_told_and_only_a_violation_comes_before_them_in_the_exit_code() {
    let mut tally = Tally { schedules: 10, ..Tally::default() };
    let of = |tally: &Tally, classes| Results::new(head(1, 1), tally.clone(), 5.0, classes, false);
    assert_eq!(of(&tally, Vec::new()).exit(), Exit::Ok);
    tally.add_error(SeedError { seed: 9, why: "no model of it".into() });
    tally.add_error(SeedError { seed: 4, why: "it stands still".into() });
    let one = of(&tally, Vec::new());
    assert_eq!(one.exit(), Exit::Failed);
    assert!(one.text().starts_with("2 schedules ended with an error and were not judged; the first is seed 4: it st"));
    assert_eq!((one.failed, one.first_error.map(|error| error.seed)), (2, Some(4)));
    let violated = of(&tally, vec![class("stale-holder", &["pause"], 1, 3, true)]);
    assert_eq!(violated.exit(), Exit::Violated);
    let (found, counted) =
        (violated.findings_text(), "lock stale-holder pause: in 1 of 10 schedules, first with seed 3");
    assert!(found.starts_with(counted), "only schedules that were judged can show a violation: {found}");
    let undecided = Tally { schedules: 10, inconclusive: 10, ..Tally::default() };
    assert_eq!(of(&undecided, Vec::new()).exit(), Exit::Inconclusive);
}

#[test]
fn schedules_in_which_little_happens_are_no_measure() {
    assert!(!exploration(340, 1_210).text().contains("too little"));
    assert!(exploration(299, 1_210).text().contains("too little"));
    assert!(exploration(340, 999).text().contains("too little"));
}

#[test]
fn numbers_are_grouped() {
    let table = [(0.0, "0"), (999.6, "1,000"), (2_310.0, "2,310"), (999_999.0, "999,999"), (5.43e6, "5.4M")];
    for (n, expected) in table {
        assert_eq!(short(n), expected);
    }
}

#[test]
fn the_findings_of_shards_are_counted_together() {
    let pause = |count, seed, is_offered| class("stale-holder", &["pause"], count, seed, is_offered);
    let odd = class("lease-overlap", &["unexplained"], 1, 17, false);
    let clock = class("lease-overlap", &["clock"], 4, 3, false);
    let two = part(2, vec![pause(5, 11, true), odd]);
    let all = join(vec![two, part(1, vec![clock, pause(2, 6, false)])]).unwrap();
    let told = |class: &ClassResults| class.text(20).lines().next().unwrap().to_owned();
    assert_eq!(
        all.classes.iter().map(told).collect::<Vec<_>>(),
        [
            "lock lease-overlap unexplained: in 1 of 20 schedules, first with seed 17",
            "lock lease-overlap clock: in 4 of 20 schedules, first with seed 3",
            "lock stale-holder pause: in 7 of 20 schedules, first with seed 6",
        ]
    );
    let stale = all.classes[2].text(20);
    assert!(stale.contains("seed 11 reduced to 2 faults by 9 simulations (1 suffice"), "an offered plan: {stale}");
    assert!(stale.contains("a chart of seed 11"), "{stale}");
    assert_eq!((all.schedules, all.findings, all.inconclusive, all.head.shard), (20, 12, 2, Shard::WHOLE));
    assert!(all.text().starts_with("2 inconclusive; the first is seed 1: little"), "{}", all.text());
    assert_eq!((all.means.holds, all.is_measure, all.took_s), (34.0, true, 10.0));
    // Of two plans that are not offered, that of the smaller seed stays.
    let all = join(vec![part(1, vec![pause(2, 6, false)]), part(2, vec![pause(5, 11, false)])]).unwrap();
    assert_eq!(all.classes[0].reduced.as_ref().map(|reduced| reduced.seed), Some(6));
}

#[test]
fn the_errors_and_the_ended_budget_of_any_shard_are_those_of_the_whole() {
    let of = |number, (failed, is_cut_short): (&[u64], bool)| {
        let (path, mut results) = part(number, Vec::new());
        let first_error = failed.first().map(|seed| SeedError { seed: *seed, why: "no model of it".into() });
        (results.failed, results.first_error) = (failed.len() as u64, first_error);
        results.is_cut_short = is_cut_short;
        (path, results)
    };
    for (first, second, expected) in [
        ((&[][..], false), (&[14, 17][..], true), (2, Some(14), true)),
        ((&[3, 4, 6][..], true), (&[14][..], false), (4, Some(3), true)),
        ((&[3][..], false), (&[][..], false), (1, Some(3), false)),
    ] {
        let all = join(vec![of(1, first), of(2, second)]).unwrap();
        let seed = all.first_error.as_ref().map(|error| error.seed);
        assert_eq!((all.failed, seed, all.is_cut_short), expected);
        assert_eq!(all.exit(), Exit::Failed, "{expected:?}");
    }
}

#[test]
fn merged_shards_tell_the_first_plan_that_did_not_violate_again() {
    let pause = |seed: Option<u64>| {
        let not_again = seed.map(|seed| SeedError { seed, why: "the same plan did not give it again".into() });
        ClassResults { not_again, ..class("stale-holder", &["pause"], 1, 3, false) }
    };
    for (first, second, told) in [(Some(4), None, 4), (None, Some(12), 12), (Some(4), Some(12), 4)] {
        let all = join(vec![part(1, vec![pause(first)]), part(2, vec![pause(second)])]).unwrap();
        let text = all.classes[0].text(20);
        assert!(text.contains(&format!("not reduced: seed {told}: the same plan")), "{text}");
    }
}

#[test]
fn shards_that_do_not_fit_are_refused() {
    type Change = fn(&mut Head);
    let changes: [(Change, &str); 6] = [
        (|head| head.shard.number = 1, "shard 1/2 is given twice: 1.json and 2.json"),
        (|head| head.build = "c".into(), "1.json and 2.json come from different builds"),
        (|head| head.flags = "g".into(), "different flags"),
        (|head| head.seeds = 21, "--seeds"),
        (|head| head.first_seed = 1, "--seed "),
        (|head| head.shard.of = 3, "1/2 and 2/3"),
    ];
    for (change, words) in changes {
        let mut two = part(2, Vec::new());
        change(&mut two.1.head);
        let error = join(vec![part(1, Vec::new()), two]).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let error = join(vec![part(2, Vec::new())]).unwrap_err();
    assert!(error.contains("no results of shard 1/2; there are only: 2.json"), "{error}");
}

#[test]
fn a_file_that_is_no_result_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("explore.json");
    let good = serde_json::to_value(exploration(340, 1_210)).unwrap();
    std::fs::write(&path, good.to_string()).unwrap();
    assert_eq!(Results::read(&path).unwrap(), exploration(340, 1_210));
    let with = |key: &str, value: Value| {
        let mut changed = good.clone();
        changed[key] = value;
        changed.to_string()
    };
    for (text, words) in [
        (good.to_string()[..40].to_owned(), "no results of `harness explore"),
        (with("schema", json!(1)), "schema 1; this version of the harness reads schema 2"),
        (with("more", json!(1)), "unknown field `more`"),
        (with("failed", Value::Null), "no results"),
        ("{}".to_owned(), "schema null"),
        ("[]".to_owned(), "schema null"),
        (String::new(), "no results"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let error = Results::read(&path).unwrap_err().to_string();
        assert!(error.contains("explore.json") && error.contains(words), "{text}: {error}");
    }
    assert!(Results::read(&dir.path().join("none.json")).unwrap_err().to_string().contains("none.json"));
}

#[test]
fn the_command_that_runs_a_saved_plan_is_one_for_a_shell() {
    let mut found = class("stale-holder", &["pause"], 1, 7, true);
    found.reduced.as_mut().unwrap().saved = Some("my plans/a.toml".into());
    let text = found.text(10);
    let command = text.lines().find_map(|line| line.trim().strip_prefix("run this plan: ")).unwrap();
    assert_eq!(shlex::split(command).unwrap(), ["harness", "run", "my plans/a.toml"]);
}
