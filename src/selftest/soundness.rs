//! Correct locks: without faults nothing may be alarmed; with all of them every alarm must be true, and what is true must be alarmed.

use std::{collections::BTreeMap, time::Duration};

use checker::{Property, Verdict, Verdicts};
use history::{ClockChange, Fault, LeaseClock, Models, Persistence, Plan, Tokens, WhichClock};
use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

use super::{
    oracle::{Compared, compare},
    seeds::{Seeds, across},
    shape::{Shape, busy, ms},
    trial::{Under, judged, witnessed},
};

/// A correct lock with one kind of tokens that is sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sound {
    /// The lock.
    pub backend: &'static str,
    /// Its tokens.
    pub tokens: Tokens,
}

const fn sound(backend: &'static str, tokens: Tokens) -> Sound {
    Sound { backend, tokens }
}

/// All of them.
pub const SOUND: [Sound; 7] = [
    sound("redis", Tokens::Counter),
    sound("redis", Tokens::None),
    sound("redlock", Tokens::TwoPhase),
    sound("redlock", Tokens::None),
    sound("etcd", Tokens::Revision),
    sound("etcd", Tokens::None),
    sound("etcd-server-lock", Tokens::Revision),
];

impl std::fmt::Display for Sound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&match self.tokens {
            Tokens::None => format!("{} without tokens", self.backend),
            tokens => format!("{}, {tokens}", self.backend),
        })
    }
}

/// Draws what the tables vary from seed to seed, and nothing of the run: that has streams of its own.
fn source(seed: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(1 << 60);
    rng
}

/// A workload of some kind.
fn workload(Sound { backend, tokens }: Sound, seed: u64, rng: &mut ChaCha8Rng) -> Shape {
    let mut shape = busy(backend, seed).tokens(tokens).workers(rng.random_range(2..=5));
    let lease = if backend.starts_with("etcd") { ms(2_000) } else { ms(rng.random_range(300..=1_500)) };
    shape = shape.lease(lease).rate(rng.random_range(8.0..=25.0)).keys(*[1, 1, 1, 2].choose(rng).unwrap_or(&1));
    if rng.random_ratio(1, 4) {
        shape = shape.clients(2);
    }
    if rng.random_ratio(1, 3) {
        shape = shape.renew(lease / rng.random_range(3..=5));
        if rng.random_ratio(1, 3) {
            shape = shape.renew_for(lease.mul_f64(rng.random_range(0.5..=1.5)));
        }
    }
    if rng.random_ratio(1, 3) {
        shape = shape.writes(rng.random_range(2..=3));
    }
    if rng.random_ratio(1, 3) {
        shape = shape.checking();
    }
    if rng.random_ratio(1, 4) {
        shape = shape.cancel(ms(rng.random_range(30..=600)));
    }
    if rng.random_ratio(1, 4) {
        shape = shape.resend(ms(rng.random_range(50..=500)));
    }
    if tokens != Tokens::None && shape.is_for_one_write() && rng.random_ratio(1, 4) {
        shape = shape.strict();
    }
    shape
}

/// Work that is over well before the lease: nobody does anything wrong.
pub fn quiet_plan(sound: Sound, seed: u64) -> Result<Plan, String> {
    let mut rng = source(seed);
    let shape = workload(sound, seed, &mut rng).time(Duration::from_secs(6));
    let mut plan = shape.work(ms(5), ms(25)).plan()?;
    if sound.backend == "etcd-server-lock" {
        // Its clients do not see that they wait.
        plan.activity.refused = 0;
    }
    Ok(plan)
}

/// Whether nothing was alarmed on correct locks without faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quiet {
    /// The lock.
    pub sound: Sound,
    /// Runs.
    pub runs: u64,
    /// Runs in which all was upheld.
    pub upheld: u64,
    /// Runs that say nothing, by the reason.
    pub inconclusive: BTreeMap<String, u64>,
    /// Seeds with an alarm, and what it was.
    pub alarms: Vec<(u64, String)>,
}

impl Quiet {
    /// Runs `seeds` of them.
    ///
    /// # Errors
    /// A seed that cannot be simulated.
    pub fn of(sound: Sound, seeds: Seeds) -> Result<Quiet, String> {
        let run = |seed| judged(&quiet_plan(sound, seed)?, Under::correct(sound.backend)).map(|v| summary(&v));
        let mut quiet =
            Quiet { sound, runs: seeds.count, upheld: 0, inconclusive: BTreeMap::new(), alarms: Vec::new() };
        for (seed, (verdict, why)) in across(seeds, &run)? {
            match verdict {
                Verdict::Violated => quiet.alarms.push((seed, why)),
                Verdict::Inconclusive => *quiet.inconclusive.entry(why).or_default() += 1,
                _ => quiet.upheld += 1,
            }
        }
        Ok(quiet)
    }

    /// Whether all is as it must be.
    pub fn is_right(&self) -> bool {
        self.alarms.is_empty() && self.upheld > 0
    }
}

/// The verdict on a run, and why it is no better.
fn summary(verdicts: &Verdicts) -> (Verdict, String) {
    let of = |verdict: Verdict| {
        let bad = verdicts.properties.iter().filter(move |(_, p)| p.verdict() == verdict);
        bad.map(|(name, p)| format!("{name}: {}", why(name, p)))
    };
    let why = match verdicts.verdict {
        Verdict::Violated => of(Verdict::Violated).next(),
        Verdict::Inconclusive => verdicts.reasons.iter().cloned().chain(of(Verdict::Inconclusive)).next(),
        _ => None,
    };
    (verdicts.verdict, why.unwrap_or_default())
}

/// In words, without the numbers that differ from run to run.
fn why(name: &str, property: &Property) -> String {
    match (name, property) {
        ("activity", Property::Activity(_)) => "too little happened".into(),
        (_, Property::Lock(lock)) if !lock.windows.is_empty() => lock.windows[0].headline.clone(),
        _ => property.reasons().first().cloned().unwrap_or_else(|| format!("{property:?}")),
    }
}

/// Faults that make sense on a backend, as `--nemesis` names them.
fn kinds(backend: &str) -> &'static [&'static str] {
    match backend {
        // Its members have their data from each other.
        "etcd" | "etcd-server-lock" => &[
            "pause",
            "pause:any-worker",
            "pause:any-lock-node",
            "stop",
            "stop:any-lock-node",
            "slow",
            "slow:any-lock-node",
            "slow:resource",
            "kill",
            "kill:any-worker",
            "kill:any-lock-node",
            "clock",
            "clock:any-worker",
            "partition",
            "partition:any-worker",
            "delay",
            "delay:any-worker",
            "loss",
            "loss:any-worker",
            "reorder",
            "reorder:any-worker",
            "kill:resource",
            "delay:resource",
            "loss:resource",
            "reorder:resource",
        ],
        _ => &[
            "pause",
            "pause:any-worker",
            "pause:any-lock-node",
            "stop",
            "stop:any-lock-node",
            "slow",
            "slow:any-lock-node",
            "slow:resource",
            "kill",
            "kill:any-worker",
            "kill:any-lock-node",
            "amnesia",
            "powerloss",
            "clock",
            "clock:any-worker",
            "partition",
            "partition:any-worker",
            "delay",
            "delay:any-worker",
            "loss",
            "loss:any-worker",
            "reorder",
            "reorder:any-worker",
            "kill:resource",
            "delay:resource",
            "loss:resource",
            "reorder:resource",
        ],
    }
}

/// One to four of them at random, models and clocks of some kind, and work that a lease does not always outlast.
pub fn faulty_plan(sound: Sound, seed: u64) -> Result<Plan, String> {
    let mut rng = source(seed);
    let shape =
        workload(sound, seed, &mut rng).time(Duration::from_secs(8)).work(ms(10), ms(rng.random_range(60..=200)));
    let count = rng.random_range(1..=4);
    let wishes: Vec<&str> = kinds(sound.backend).choose_multiple(&mut rng, count).copied().collect();
    let models = Models {
        lease_clock: *[LeaseClock::Both, LeaseClock::Monotonic].choose(&mut rng).unwrap_or(&LeaseClock::Both),
        revokes_on_resume: rng.random_ratio(1, 2),
        lock_checks_key: sound.backend == "etcd-server-lock" && rng.random_ratio(1, 2),
        persistence: *[Persistence::No, Persistence::Everysec, Persistence::Always]
            .choose(&mut rng)
            .unwrap_or(&Persistence::No),
    };
    let mut plan = shape.models(models).faults(&wishes.join(",")).plan()?;
    for step in &mut plan.schedule {
        if let Fault::Clock { clock, change, lasting } = &mut step.fault {
            vary(clock, change, *lasting, &mut rng);
        }
    }
    plan.validate().map_err(|e| format!("{}: {}", e.field, e.problem))?;
    Ok(plan)
}

/// Drawn clock faults are jumps of the wall clock; here they are of any kind.
fn vary(clock: &mut WhichClock, change: &mut ClockChange, lasting: Duration, rng: &mut ChaCha8Rng) {
    match (rng.random_range(0..6), *change) {
        (0 | 1, _) => *change = ClockChange::DriftPpm(rng.random_range(-400_000..=400_000)),
        (2, ClockChange::JumpMs(by_ms)) => {
            // There and back at least once.
            let longest_ms = (lasting.as_millis() as u64 / 2).clamp(10, 200);
            *change = ClockChange::Strobe { by_ms, every_ms: rng.random_range(10..=longest_ms) }
        }
        _ => {}
    }
    let is_forward = !matches!(change, ClockChange::JumpMs(..=0) | ClockChange::Strobe { .. });
    if is_forward {
        let all = [WhichClock::Wall, WhichClock::Monotonic, WhichClock::Both];
        *clock = *all.choose(rng).unwrap_or(&WhichClock::Wall);
    }
}

/// What the checker says under faults, beside the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faulty {
    /// The lock.
    pub sound: Sound,
    /// Runs.
    pub runs: u64,
    /// All of them together.
    pub compared: Compared,
    /// Seeds of which something is listed.
    pub wrong: Vec<u64>,
}

impl Faulty {
    /// Of true overlaps, so many in a hundred must be reported, but for those of which the checker says that it cannot decide them.
    const REPORTED_PERCENT: u64 = 99;

    /// Runs `seeds` of them.
    ///
    /// # Errors
    /// A seed that cannot be simulated.
    pub fn of(sound: Sound, seeds: Seeds) -> Result<Faulty, String> {
        let run = |seed| {
            let plan = faulty_plan(sound, seed)?;
            let (verdicts, truth) = witnessed(&plan, Under::correct(sound.backend))?;
            Ok(compare(&plan, &truth, &verdicts))
        };
        let (mut all, mut wrong) = (Compared::default(), Vec::new());
        for (seed, one) in across(seeds, &run)? {
            let seeded = |what: String| format!("seed {seed}: {what}");
            if [&one.unconfirmed, &one.missed, &one.unexplained].into_iter().any(|found| !found.is_empty()) {
                wrong.push(seed);
            }
            all.alarms += one.alarms;
            all.overlaps += one.overlaps;
            all.undecided += one.undecided;
            all.unconfirmed.extend(one.unconfirmed.into_iter().map(seeded));
            all.unexplained.extend(one.unexplained.into_iter().map(seeded));
            all.missed.extend(one.missed.into_iter().map(seeded));
        }
        Ok(Faulty { sound, runs: seeds.count, compared: all, wrong })
    }

    /// Whether all is as it must be.
    pub fn is_right(&self) -> bool {
        let Compared { overlaps, missed, unconfirmed, .. } = &self.compared;
        let told = overlaps - missed.len() as u64;
        unconfirmed.is_empty() && *overlaps > 0 && told * 100 >= overlaps * Self::REPORTED_PERCENT
    }
}
