//! The properties of one small world, drawn from a seed. Families of worlds ensure that no kind of history is rare.

use history::{Arm, FaultId, Mode, Point};
use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

use super::families::FAMILIES;

/// A place in a critical section at which a blow is aimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    AcquireSent,
    Claimed,
    ReadSent,
    Working,
    WriteSent,
    /// The promise of the hold ends.
    Ending,
}

/// The blow that strikes a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    Pause(FaultId),
    Stall,
    Kill(FaultId),
}

/// A blow to the worker of a client, in one of its critical sections.
#[derive(Debug, Clone)]
pub struct Aim {
    pub client: usize,
    pub section: usize,
    pub spot: Spot,
    pub blow: Blow,
    pub lag: u64,
    pub len: u64,
}

/// A blow to a process at an instant.
#[derive(Debug, Clone)]
pub struct Timed {
    /// A worker, or the resource.
    pub worker: Option<usize>,
    pub from: u64,
    pub blow: Blow,
    pub len: u64,
}

/// The source of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    None,
    /// The lock's counter: right.
    Counter,
    /// Each worker counts for itself.
    PerWorker,
    /// Sometimes the last token again.
    Repeats,
    /// The lock's counter, and sometimes no token.
    Forgotten,
}

/// The holds that report their place in the order of the lock's grants, as holds of a queue lock do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    None,
    Some,
    All,
}

/// A planted bug of an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArmBug {
    /// Compares as `token + 1 < seen`.
    OneTooLow,
    /// Refuses writes that it should admit, and admits writes that it should refuse.
    Inverted,
    /// Refuses some valid writes.
    Refuses,
    /// `reads` that does not register on reads.
    Forgets,
    /// Admits an equal token of another hold.
    AdmitsEqual,
    /// Does not compare tokens.
    AdmitsAll,
    /// `cas` without a comparison, `claim` without a check of the last reader.
    Blind,
    /// The counter jumps.
    Miscounts,
}

#[derive(Debug, Clone)]
pub struct Knobs {
    pub family: &'static str,
    pub seed: u64,
    pub workers: usize,
    pub per_worker: usize,
    pub keys: usize,
    pub nodes: usize,
    pub tokens: Tokens,
    pub places: Places,
    /// The modes of the attempts.
    pub modes: &'static [Mode],
    pub arms: Vec<Arm>,
    pub strict: bool,
    pub checking: bool,
    pub renew: Option<u64>,
    pub sections: usize,
    pub gap: (u64, u64),
    pub work: (u64, u64),
    /// Of each message, one way.
    pub delay: (u64, u64),
    /// Between two steps of a client.
    pub dither: u64,
    pub slow_acquire: f64,
    pub late_write: f64,
    pub late_by: (u64, u64),
    pub lost_answer: f64,
    pub duplicate: f64,
    pub two_writes: f64,
    /// Releases (else gives up) after an operation that may have happened.
    pub releases_anyway: f64,
    /// Writes twice with no answer in between: releases while the write is on its way.
    pub hurried: f64,
    /// Acts, or releases again, under a hold that it has released: before its next attempt, and after.
    pub after_release: f64,
    pub retries: u32,
    pub retry: (u64, u64),
    pub point: Option<(Point, u64)>,
    // Planted bugs.
    pub forgets_nx: f64,
    pub ends_early: f64,
    pub deletes_any: bool,
    /// Grants the key to a writer although readers own it.
    pub ignores_readers: bool,
    pub no_validity: bool,
    pub ignores_loss: bool,
    /// Takes its deadline to be a lease later than it is.
    pub lax_check: bool,
    /// Takes half of the nodes, rounded down, for a majority of them.
    pub accepts_minority: bool,
    /// Counts its deadline from the last answer.
    pub counts_from_answer: bool,
    /// Believes in a renewal that was answered after its deadline.
    pub revives: bool,
    pub arm_bugs: Vec<(Arm, ArmBug)>,
    pub aims: Vec<Aim>,
    pub timed: Vec<Timed>,
    /// Fault brackets may be wider than the freeze by so much.
    pub slack: u64,
    pub unproved: f64,
    pub missed: f64,
    /// The kernel was suspended (boottime moves), or the wall clock was set, between two samples.
    pub clock_step: Option<(bool, u64)>,
    pub activity: (u32, u32, u32),
}

impl Knobs {
    /// Returns whether the world has no planted bug and no blow.
    pub fn clean(&self) -> bool {
        self.forgets_nx == 0.0
            && self.ends_early == 0.0
            && !self.deletes_any
            && !self.ignores_readers
            && !self.no_validity
            && !self.ignores_loss
            && !self.accepts_minority
            && !self.counts_from_answer
            && !self.revives
            && self.arm_bugs.is_empty()
            && self.aims.is_empty()
            && self.timed.is_empty()
            && self.clock_step.is_none()
            && self.late_write == 0.0
            && self.work.1 <= 6
            && self.delay.1 <= 1
            && self.two_writes == 0.0
            && self.slow_acquire == 0.0
            && self.point.is_none()
            && self.lost_answer == 0.0
            && self.hurried == 0.0
            && self.after_release == 0.0
            && matches!(self.tokens, Tokens::Counter | Tokens::None)
    }

    /// The nodes that must grant the lock, in the opinion of a client.
    pub fn enough(&self) -> usize {
        if self.accepts_minority { self.nodes / 2 } else { self.nodes / 2 + 1 }
    }

    /// The mode of an attempt.
    pub fn mode_of(&self, attempt: u64) -> Mode {
        let drawn = attempt.wrapping_add(self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        self.modes[drawn as usize % self.modes.len()]
    }

    /// Faults in the plan.
    pub fn faults(&self) -> Vec<(FaultId, bool, u64, bool)> {
        let aims = self.aims.iter().map(|a| (a.blow, a.len, true));
        let timed = self.timed.iter().map(|t| (t.blow, t.len, false));
        let mut all: Vec<_> = aims
            .chain(timed)
            .filter_map(|(blow, len, aimed)| match blow {
                Blow::Pause(id) => Some((id, false, len, aimed)),
                Blow::Kill(id) => Some((id, true, len, aimed)),
                Blow::Stall => None,
            })
            .collect();
        all.sort_by_key(|f| f.0);
        all
    }

    fn base(rng: &mut ChaCha8Rng, seed: u64) -> Knobs {
        let tokens = if rng.random_bool(0.08) { Tokens::None } else { Tokens::Counter };
        let mut arms = vec![Arm::Off];
        if tokens != Tokens::None {
            arms.push(Arm::Writes);
        }
        let strict = tokens != Tokens::None && rng.random_bool(0.15);
        if tokens != Tokens::None && !strict {
            arms.push(Arm::Reads);
        }
        if rng.random_bool(0.6) {
            arms.push(Arm::Cas);
        }
        if !seed.is_multiple_of(3) {
            arms.push(Arm::Claim);
        }
        let exact = rng.random_bool(0.4);
        Knobs {
            family: "",
            seed,
            workers: rng.random_range(2..=3),
            per_worker: if rng.random_bool(0.2) { 2 } else { 1 },
            keys: if rng.random_bool(0.12) { 2 } else { 1 },
            nodes: 1,
            tokens,
            places: Places::None,
            // Drawn from the seed alone, so that the other worlds stay what they are.
            modes: match seed % 20 {
                4 => &[Mode::Read, Mode::Write],
                7 => &Mode::ALL,
                _ => &[Mode::Write],
            },
            arms,
            strict,
            checking: rng.random_bool(0.15),
            renew: if rng.random_bool(0.25) { Some(rng.random_range(5..=12)) } else { None },
            sections: rng.random_range(1..=2),
            gap: (0, rng.random_range(1..=14)),
            work: (0, rng.random_range(1..=8)),
            delay: if exact { (0, 0) } else { (0, rng.random_range(1..=3)) },
            dither: if exact { 0 } else { rng.random_range(0..=1) },
            slow_acquire: 0.0,
            late_write: 0.0,
            late_by: (0, 0),
            lost_answer: 0.0,
            duplicate: if rng.random_bool(0.1) { 0.3 } else { 0.0 },
            two_writes: if strict || rng.random_bool(0.2) { 0.5 } else { 0.0 },
            releases_anyway: 0.3,
            hurried: 0.0,
            after_release: if rng.random_bool(0.06) { 0.9 } else { 0.0 },
            retries: 4,
            retry: (2, 8),
            point: None,
            forgets_nx: 0.0,
            ends_early: 0.0,
            deletes_any: false,
            ignores_readers: seed % 20 == 4,
            no_validity: false,
            ignores_loss: rng.random_bool(0.3),
            lax_check: false,
            accepts_minority: false,
            counts_from_answer: false,
            revives: rng.random_bool(0.3),
            arm_bugs: Vec::new(),
            aims: Vec::new(),
            timed: Vec::new(),
            slack: if exact { 0 } else { rng.random_range(0..=1) },
            unproved: if rng.random_bool(0.04) { 0.7 } else { 0.0 },
            missed: if rng.random_bool(0.05) { 0.5 } else { 0.0 },
            clock_step: if rng.random_bool(0.03) {
                Some((rng.random_bool(0.5), rng.random_range(1..=40)))
            } else {
                None
            },
            activity: (rng.random_range(0..=2), rng.random_range(0..=2), u32::from(rng.random_bool(0.3))),
        }
    }

    pub(super) fn aim(&mut self, rng: &mut ChaCha8Rng, spot: Spot, blow: Blow, len: std::ops::RangeInclusive<u64>) {
        let client = rng.random_range(0..2);
        let lag = if matches!(spot, Spot::Claimed | Spot::ReadSent) { 0 } else { rng.random_range(0..=3) };
        self.aims.push(Aim { client, section: 0, spot, blow, lag, len: rng.random_range(len) });
    }

    /// Draws the world of `seed`.
    pub fn of(seed: u64) -> Knobs {
        Knobs::draw(&mut ChaCha8Rng::seed_from_u64(seed), seed)
    }

    /// Draws a world.
    pub fn draw(rng: &mut ChaCha8Rng, seed: u64) -> Knobs {
        let mut k = Knobs::base(rng, seed);
        k.family = FAMILIES.choose_weighted(rng, |f| f.1).map_or("calm", |f| f.0);
        k.shape(rng);
        // Only one node has one order of grants.
        k.places = match seed % 8 {
            0..=2 if k.nodes == 1 => Places::All,
            3 if k.nodes == 1 => Places::Some,
            _ => Places::None,
        };
        if rng.random_bool(0.04) {
            k.timed.push(Timed {
                worker: None,
                from: rng.random_range(0..30),
                blow: Blow::Stall,
                len: rng.random_range(3..=26),
            });
        }
        k
    }
}
