//! An oracle that shares no code with the checker and judges the truth.
//!
//! `model` is a small world that knows when each grant, expiry and arrival really happened, and reports what real
//! processes would report. `soundness` holds every verdict against what happened; `literal` is the design's rules read
//! word by word, and says what the record can show: nothing less may be reported. `ORACLE_SEED=n` tells one history in
//! full, `ORACLE_HISTORIES=n` tries so many, `ORACLE_ALL=1` (`make test`) tries all, and without these a quarter is
//! tried.
#![allow(missing_docs)]

mod corpus;
mod expected;
mod extremes;
mod lies;
mod literal;
mod model;
mod orders;
mod planted;
mod reported;
mod shares;
mod soundness;

use history::Tail;
use model::World;
use shares::Shares;

/// Of so many histories, each of the other tests tries a part.
const HISTORIES: u64 = 100_000;
/// Histories that are compared with the truth.
const COMPARED: u64 = 40_000;
/// A plain `cargo test` tries one of so many histories.
const PART: u64 = 4;

/// Classes none of which may be rarer than this, in all histories and in a part of them.
const RAREST_PERCENT: f64 = 2.0;
const RAREST_PERCENT_OF_PART: f64 = 1.5;
const CLASSES: &[&str] = &[
    "verdict upheld",
    "verdict violated",
    "verdict inconclusive",
    "lock upheld",
    "lock violated",
    "lock inconclusive",
    "lock: stale-holder",
    "lock: stale-holder, pause",
    "lock: stale-holder, stall",
    "lock: stale-holder, pause+stall",
    "lock: stale-holder, kill",
    "lock: stale-holder, overrun",
    "lock: stale-holder, overclaim",
    "lock: stale-holder, unexplained",
    "lock: stale-holder, reads",
    "lock: lease-overlap",
    "lock: lease-overlap, unsafe-release",
    "lock: lease-overlap, unexplained",
    "lock: lease-overlap, host-clock",
    "lock: cut-short",
    "lock: dead-claim",
    "lock: minority-claim",
    "lock: undecided",
    "lock: overclaims",
    "tokens upheld",
    "tokens violated",
    "tokens n/a",
    "tokens: backwards",
    "tokens: shared",
    "tokens: missing",
    "writes.fence upheld",
    "writes.fence violated",
    "writes.fence: stale_accepted",
    "writes.fence: stale_rejected",
    "writes.fence: late",
    "writes.fence: unjustified",
    "writes.fence: false_rejections",
    "writes.fence: undecided",
    "writes.fence: repeats",
    "reads.fence upheld",
    "reads.fence violated",
    "reads.fence: stale_accepted",
    "reads.fence: stale_rejected",
    "reads.fence: late",
    "reads.fence: unjustified",
    "reads.fence: false_rejections",
    "reads.fence: undecided",
    "off.data measured",
    "off.data violated",
    "off.data: lost_updates",
    "off.data: stale_accepted",
    "off.data: late",
    "writes.data measured",
    "writes.data: lost_updates",
    "reads.data upheld",
    "reads.data violated",
    "reads.data: lost_updates",
    "cas.data upheld",
    "cas.data violated",
    "cas.data: lost_updates",
    "cas.data: unjustified",
    "claim.data upheld",
    "claim.data violated",
    "claim.data: unjustified",
    "resource upheld",
    "resource violated",
    "release upheld",
    "release violated",
    "activity upheld",
    "activity inconclusive",
    "liveness: blocked",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns how many of a test's histories to try.
fn asked(all: u64) -> u64 {
    number("ORACLE_HISTORIES").unwrap_or(if number("ORACLE_ALL").is_some() { all } else { all / PART })
}

/// Equal stamps leave open which later hold was the first.
fn forget_ties(literal: &expected::Judged, reported: &mut expected::Judged) {
    for (id, window) in &mut reported.lock.stale {
        if literal.lock.stale.get(id).is_some_and(|w| w.own.is_none()) {
            window.own = None;
        }
    }
}

/// Judges the history of one seed in all three ways.
fn one(seed: u64, shares: &mut Shares) {
    let world = World::run(seed);
    let records = model::records(&world, seed);
    let literal = literal::judge(&records);
    let (mut reported, json) = reported::judge(records, Tail::Whole);
    shares.count(&literal);
    forget_ties(&literal, &mut reported);
    let family = world.k.family;
    if literal != reported {
        let difference = difference(&format!("{literal:#?}"), &format!("{reported:#?}"));
        panic!("seed {seed} ({family}), literal judge (-) and checker (+):\n{difference}\n{json:#}");
    }
    let lies = soundness::lies(&world, &reported);
    assert!(lies.is_empty(), "seed {seed} ({family}): {lies:#?}\n{json:#}");
}

/// Lines that only one of two texts has, each with the name of what it is in.
fn difference(a: &str, b: &str) -> String {
    let (a, b): (Vec<_>, Vec<_>) = (a.lines().collect(), b.lines().collect());
    let mut same = vec![vec![0_u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            same[i][j] = if a[i] == b[j] { same[i + 1][j + 1] + 1 } else { same[i + 1][j].max(same[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut text, mut within) = (0, 0, String::new(), "");
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            if a[i].ends_with(['{', '(']) {
                within = a[i].trim();
            }
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && same[i + 1][j] >= same[i][j + 1]) {
            text += &format!("- {within} {}\n", a[i].trim());
            i += 1;
        } else {
            text += &format!("+ {within} {}\n", b[j].trim());
            j += 1;
        }
    }
    text
}

/// `each` over all seeds, on all cores.
fn over(seeds: u64, each: impl Fn(u64, &mut Shares) + Sync) -> Shares {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut all = Shares::default();
    std::thread::scope(|scope| {
        let slice = |core| {
            let each = &each;
            move || {
                let mut shares = Shares::default();
                (core..seeds).step_by(cores as usize).for_each(|seed| each(seed, &mut shares));
                shares
            }
        };
        let threads: Vec<_> = (0..cores).map(|core| scope.spawn(slice(core))).collect();
        for thread in threads {
            all.add(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    all
}

#[test]
fn what_is_reported_is_true_and_what_the_record_shows_is_reported() {
    if let Some(seed) = number("ORACLE_SEED") {
        let world = World::run(seed);
        for record in model::records(&world, seed) {
            println!("{}", serde_json::to_string(&record).unwrap());
        }
        return one(seed, &mut Shares::default());
    }
    let shares = over(asked(COMPARED), one);
    println!("{} histories:\n{}", shares.histories, shares.table());
    if shares.histories >= COMPARED / PART {
        let least = if shares.histories >= COMPARED { RAREST_PERCENT } else { RAREST_PERCENT_OF_PART };
        let rare: Vec<_> = CLASSES.iter().filter(|c| shares.percent(c) < least).collect();
        assert!(rare.is_empty(), "too rare to prove anything: {rare:?}");
    }
}

/// Processes report side by side: in which order their streams reach the recorder must not matter.
#[test]
fn the_order_of_recording_changes_no_verdict() {
    over(asked(HISTORIES / 20), |seed, _| {
        let world = World::run(seed);
        let first = reported::judge(model::records(&world, 1), Tail::Whole).0;
        for order in 2..4 {
            let other = reported::judge(model::records(&world, order), Tail::Whole).0;
            assert!(
                first == other,
                "seed {seed}, order {order}: {}",
                difference(&format!("{first:#?}"), &format!("{other:#?}"))
            );
        }
    });
}

/// Whatever is lost of a record, what is left says nothing that the whole would not: it says less.
#[test]
fn what_a_part_of_the_record_shows_the_whole_shows_too() {
    over(asked(HISTORIES / 10), |seed, _| {
        let world = World::run(seed);
        let mut records = model::records(&world, seed);
        let whole = reported::judge(records.clone(), Tail::Whole).0;
        let at = 1 + (seed as usize * 7_919) % (records.len() - 2);
        let mut lost = String::new();
        let tail = if seed % 2 == 0 {
            records.truncate(at);
            Tail::Cut
        } else {
            // Nobody can miss the last word of a process that was killed, and the controller's are not numbered by
            // events.
            let followed = |i: &usize| {
                let r = &records[*i];
                r.process.as_str() != "controller" && records.iter().any(|o| o.process == r.process && o.n == r.n + 1)
            };
            let gone = (at..records.len()).find(followed);
            lost = format!("{:?}", records.remove(gone.unwrap_or(1)));
            Tail::Whole
        };
        let part = reported::judge(records, tail).0;
        assert_ne!(part.verdict, "upheld", "seed {seed}, {lost}");
        if world.k.clock_step.is_some() {
            // A later sample of the host's clock excuses what nothing else explains.
            return;
        }
        let problem = withdrawn(&part, &whole);
        assert!(problem.is_none(), "seed {seed}: {problem:?}\n{part:#?}\n{whole:#?}");
    });
}

/// The engine may lose the last events of a process that is killed, and nothing in the record shows that.
#[test]
fn lost_last_events_of_a_killed_process_show_nothing_new() {
    let shortened = std::sync::atomic::AtomicU64::new(0);
    over(asked(HISTORIES / 4), |seed, _| {
        let world = World::run(seed);
        if world.k.clock_step.is_some() {
            return;
        }
        let mut records = model::records(&world, seed);
        let killed = records.iter().filter_map(|r| match &r.event {
            history::Event::ProcessEnded { ended, code: Some(137) } => Some(ended.clone()),
            _ => None,
        });
        let killed: Vec<_> = killed.collect();
        if killed.is_empty() {
            return;
        }
        let whole = reported::judge(records.clone(), Tail::Whole).0;
        for (process, turn) in killed.iter().zip(seed..) {
            let count = records.iter().filter(|r| r.process == *process).count() as u64;
            // Mostly a few events, sometimes nearly all.
            let lost = if turn % 4 == 0 { turn * 7_919 % count } else { 1 + turn % count.min(8) };
            records.retain(|r| r.process != *process || r.n == 0 || r.n < count - lost);
        }
        let part = reported::judge(records, Tail::Whole).0;
        let problem = withdrawn(&part, &whole);
        assert!(problem.is_none(), "seed {seed}: {problem:?}\n{part:#?}\n{whole:#?}");
        shortened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    if number("ORACLE_HISTORIES").is_none() {
        assert!(shortened.into_inner() > 1_000 / PART, "too few histories with a kill");
    }
}

/// Returns a finding that `part` reports and `whole` does not.
fn withdrawn(part: &expected::Judged, whole: &expected::Judged) -> Option<String> {
    for (id, window) in &part.lock.stale {
        let more = whole.lock.stale.get(id).is_some_and(|w| w.reads >= window.reads && w.writes >= window.writes);
        if !more {
            return Some(format!("stale-holder {id}"));
        }
    }
    for (pair, window) in &part.lock.overlaps {
        if whole.lock.overlaps.get(pair).is_none_or(|w| w.overlap < window.overlap) {
            return Some(format!("lease-overlap {pair:?}"));
        }
    }
    for ((killed, by), window) in &part.lock.cut_short {
        // The first grant inside the promise counts. A part may lack it, and show the next one.
        let more = |((hold, _), w): (&(u64, u64), &expected::Window)| hold == killed && w.overlap >= window.overlap;
        if !whole.lock.cut_short.iter().any(more) {
            return Some(format!("cut-short {killed} by {by}"));
        }
    }
    let violated = |j: &expected::Judged| {
        let fences = j.fence.iter().map(|(n, f)| (format!("{n}.fence"), f.verdict.clone()));
        let data = j.data.iter().map(|(n, d)| (format!("{n}.data"), d.verdict.clone()));
        let own = [
            ("lock", &j.lock.verdict),
            ("tokens", &j.tokens.verdict),
            ("release", &j.release.verdict),
            ("resource", &j.resource.verdict),
        ];
        let own = own.into_iter().map(|(n, v)| (n.to_owned(), v.clone()));
        own.chain(fences).chain(data).filter(|p| p.1 == "violated").map(|p| p.0).collect::<Vec<_>>()
    };
    let all = violated(whole);
    violated(part).into_iter().find(|property| !all.contains(property))
}
