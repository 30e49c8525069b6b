//! Families of worlds: what makes each of them, and how many there are of each, so that no class of verdict is rare.

use history::{Arm, FaultId, Point};
use rand::{Rng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

use super::knobs::{Aim, ArmBug, Blow, Knobs, Spot, Timed, Tokens};

/// Kinds of worlds, and how many of a hundred are such.
pub(super) const FAMILIES: &[(&str, u32)] = &[
    ("calm", 3),
    ("pause", 14),
    ("stall", 4),
    ("two freezes", 9),
    ("overrun", 7),
    ("late write", 4),
    ("kill", 15),
    ("renewals", 7),
    ("forgets nx", 6),
    ("ends early", 5),
    ("cut short", 7),
    ("host clock", 7),
    ("deletes any", 8),
    ("no validity check", 8),
    ("bad tokens", 12),
    ("bad arm", 20),
    ("counts from answer", 4),
    ("slow acquire", 12),
    ("three nodes", 8),
    ("placed", 4),
];

/// Spots at which a freeze delays an act.
const ON_PATH: [Spot; 4] = [Spot::Claimed, Spot::Working, Spot::Working, Spot::ReadSent];

impl Knobs {
    /// Many clients that do not give up: a client acquires the lock whenever that is possible.
    fn crowd(&mut self, rng: &mut ChaCha8Rng) {
        self.workers = 3;
        self.gap = (0, rng.random_range(1..=6));
        self.retries = 12;
        self.retry = (1, 4);
        self.keys = 1;
        self.checking = false;
    }

    fn with_tokens(&mut self, tokens: Tokens) {
        if self.tokens == Tokens::None {
            self.arms.insert(1, Arm::Writes);
        }
        self.tokens = tokens;
    }

    /// Gives a world what makes its family.
    pub(super) fn shape(&mut self, rng: &mut ChaCha8Rng) {
        let fault = FaultId(1);
        let pause_or_stall = if rng.random_bool(0.5) { Blow::Pause(fault) } else { Blow::Stall };
        let spot = *ON_PATH.choose(rng).unwrap();
        let rarely = rng.random_bool(0.3);
        match self.family {
            "pause" => {
                let spot = if rng.random_bool(0.4) { Spot::Claimed } else { spot };
                self.aim(rng, spot, Blow::Pause(fault), 5..=45);
                if rng.random_bool(0.5) {
                    // Whoever takes over does not come to its first operation soon.
                    self.crowd(rng);
                    self.timed.clear();
                    let client = 1 - self.aims[0].client;
                    let len = rng.random_range(8..=19);
                    self.aims[0].len = rng.random_range(22..=32);
                    self.aims.push(Aim { client, section: 0, spot: Spot::Claimed, blow: Blow::Stall, lag: 0, len });
                }
            }
            "stall" => {
                self.aim(rng, spot, Blow::Stall, 5..=45);
                if rarely {
                    self.aim(rng, Spot::Claimed, Blow::Pause(fault), 1..=3);
                }
            }
            "two freezes" => self.two_freezes(rng),
            "overrun" => {
                self.work = (14, 38);
                self.renew = self.renew.filter(|_| rarely);
                self.lax_check = rng.random_bool(0.6);
                self.checking |= self.lax_check;
                if rng.random_bool(0.4) {
                    self.aim(rng, spot, Blow::Pause(fault), 1..=20);
                }
            }
            "late write" => {
                self.late_write = 0.5;
                self.late_by = (8, 34);
                if rng.random_bool(0.4) {
                    self.aim(rng, Spot::WriteSent, Blow::Stall, 3..=20);
                }
            }
            "kill" => {
                self.crowd(rng);
                self.renew = if rng.random_bool(0.8) { Some(rng.random_range(5..=12)) } else { None };
                (self.work, self.delay) = ((0, 6), (0, 1));
                (self.late_write, self.late_by) = (0.9, (10, 55));
                let at = if rng.random_bool(0.85) { Spot::WriteSent } else { Spot::Working };
                self.aim(rng, at, Blow::Kill(fault), 4..=20);
                self.aims[0].lag = rng.random_range(0..=1);
                if rng.random_bool(0.15) {
                    // Just when the promise ends: neither ends the entitlement before the other.
                    (self.renew, self.work, self.aims[0].spot) = (None, (17, 30), Spot::Ending);
                }
            }
            "renewals" => {
                self.renew = Some(rng.random_range(4..=16));
                self.work = (8, 34);
                self.checking = rng.random_bool(0.4);
                if rng.random_bool(0.8) {
                    self.aim(rng, Spot::Working, pause_or_stall, 6..=40);
                    self.aims[0].lag = rng.random_range(0..=16);
                }
                self.lost_answer = if rarely { 0.15 } else { 0.0 };
            }
            "placed" => {
                let point = *Point::ALL[1..].choose(rng).unwrap();
                self.checking |= point == Point::AfterCheck;
                self.point = Some((point, rng.random_range(0..=26)));
                if rng.random_bool(0.5) {
                    self.aim(rng, Spot::Working, Blow::Pause(fault), 10..=40);
                }
                if rng.random_bool(0.4) {
                    let (from, len) = (rng.random_range(0..24), rng.random_range(3..=26));
                    self.timed.push(Timed { worker: None, from, blow: Blow::Stall, len });
                }
            }
            _ => self.plant(rng, pause_or_stall, rarely),
        }
    }

    /// Plants what is wrong with the lock, the clients, the tokens or the arms of a world.
    fn plant(&mut self, rng: &mut ChaCha8Rng, pause_or_stall: Blow, rarely: bool) {
        let fault = FaultId(1);
        match self.family {
            "forgets nx" => {
                self.forgets_nx = 0.5;
                self.workers = 3;
                self.timed.push(Timed {
                    worker: Some(2),
                    from: rng.random_range(0..20),
                    blow: pause_or_stall,
                    len: rng.random_range(5..=30),
                });
                if rarely && self.arms.contains(&Arm::Cas) {
                    self.arm_bugs.push((Arm::Cas, ArmBug::Blind));
                }
            }
            "ends early" => {
                self.ends_early = 0.6;
                self.work = (2, 12);
                if rng.random_bool(0.7) {
                    // Refused renewals that nobody minds.
                    self.crowd(rng);
                    (self.renew, self.ignores_loss) = (Some(rng.random_range(5..=12)), true);
                    self.work = (16, 26);
                }
            }
            "cut short" => {
                // The lease is shorter than promised, and its holder is killed.
                self.crowd(rng);
                self.ends_early = 0.8;
                self.work = (2, 12);
                let spot = if rng.random_bool(0.7) { Spot::Working } else { Spot::WriteSent };
                self.aim(rng, spot, Blow::Kill(fault), 4..=20);
                self.deletes_any = rarely;
            }
            "host clock" => {
                // Keys run out early because the host's clock went on without the record's.
                self.crowd(rng);
                self.ends_early = 0.9;
                (self.work, self.sections) = ((2, 12), 1);
                // A key that ends early has less than 15 units of its lease left when another client gets it.
                self.clock_step = Some((rng.random_bool(0.5), rng.random_range(16..=40)));
            }
            "deletes any" => {
                self.crowd(rng);
                self.deletes_any = true;
                self.work = (4, 16);
                self.aim(rng, Spot::Working, pause_or_stall, 10..=32);
            }
            "no validity check" => {
                self.no_validity = true;
                self.aim(rng, Spot::AcquireSent, pause_or_stall, 17..=36);
                self.aims[0].lag = 0;
            }
            "counts from answer" => {
                self.counts_from_answer = true;
                self.delay.1 = self.delay.1.max(2);
                if rng.random_bool(0.6) {
                    self.crowd(rng);
                    self.aim(rng, Spot::Working, pause_or_stall, 16..=40);
                }
                self.checking = rng.random_bool(0.4);
            }
            "bad tokens" => {
                let bad = [Tokens::PerWorker, Tokens::Repeats, Tokens::Forgotten];
                self.with_tokens(*bad.choose(rng).unwrap());
                self.sections = rng.random_range(1..=3);
                if rng.random_bool(0.4) {
                    self.aim(rng, Spot::Working, Blow::Pause(fault), 15..=40);
                }
            }
            "bad arm" => self.bad_arm(rng),
            "slow acquire" => {
                self.slow_acquire = 0.5;
                self.hurried = 0.5;
                (self.late_write, self.late_by) = (0.6, (2, 12));
                self.no_validity = rarely;
                (self.gap, self.work) = ((0, 3), (0, 4));
                if rng.random_bool(0.8) {
                    self.with_tokens(if rng.random_bool(0.5) { Tokens::Repeats } else { Tokens::PerWorker });
                }
            }
            "three nodes" => {
                self.nodes = 3;
                self.accepts_minority = rng.random_bool(0.6);
                self.tokens = Tokens::None;
                self.arms = vec![Arm::Off, Arm::Cas];
                self.delay = (0, 3);
                self.deletes_any = rng.random_bool(0.4);
                self.forgets_nx = if rarely { 0.5 } else { 0.0 };
                self.lost_answer = 0.1;
                self.aim(rng, Spot::Working, Blow::Pause(fault), 8..=40);
            }
            _ => {
                self.ignores_loss = false;
                self.work = (0, 3);
                self.clock_step = None;
            }
        }
    }

    /// Two freezes of one hold, none of which is long enough alone; sometimes three.
    fn two_freezes(&mut self, rng: &mut ChaCha8Rng) {
        self.crowd(rng);
        self.renew = None;
        self.per_worker = 1;
        (self.work, self.delay, self.dither) = ((1, 3), (0, self.delay.1.min(1)), 0);
        let client = rng.random_range(0..2);
        let (pause, again) = (Blow::Pause(FaultId(1)), Blow::Pause(FaultId(2)));
        let blows = *[[pause, Blow::Stall], [Blow::Stall, pause], [pause, again]]
            .choose_weighted(rng, |b| if b[1] == again { 1 } else { 3 })
            .unwrap();
        let three = rng.random_bool(0.15);
        for (spot, blow) in [Spot::Claimed, Spot::Working].into_iter().zip(blows) {
            let len = if three { rng.random_range(6..=9) } else { rng.random_range(10..=14) };
            self.aims.push(Aim { client, section: 0, spot, blow, lag: 0, len });
        }
        if three {
            let len = rng.random_range(6..=9);
            self.aims.push(Aim { client, section: 0, spot: Spot::AcquireSent, blow: Blow::Stall, lag: 0, len });
        }
    }

    /// Arms with planted bugs, and stale clients that make the bugs visible.
    fn bad_arm(&mut self, rng: &mut ChaCha8Rng) {
        if rng.random_bool(0.7) {
            self.crowd(rng);
        }
        self.with_tokens(if rng.random_bool(0.3) { Tokens::Repeats } else { Tokens::Counter });
        for &arm in &self.arms {
            let bugs: &[ArmBug] = match arm {
                Arm::Deadline | Arm::Guard => unreachable!("the model has no wall clocks and no store"),
                Arm::Off => &[ArmBug::Miscounts, ArmBug::Refuses],
                Arm::Cas | Arm::Claim => &[ArmBug::Blind, ArmBug::Blind, ArmBug::Refuses],
                Arm::Writes => {
                    &[ArmBug::OneTooLow, ArmBug::Inverted, ArmBug::Refuses, ArmBug::AdmitsEqual, ArmBug::AdmitsAll]
                }
                Arm::Reads => &[
                    ArmBug::OneTooLow,
                    ArmBug::Forgets,
                    ArmBug::Refuses,
                    ArmBug::AdmitsEqual,
                    ArmBug::AdmitsAll,
                    ArmBug::AdmitsAll,
                ],
            };
            if rng.random_bool(if arm == Arm::Off { 0.4 } else { 0.85 }) {
                self.arm_bugs.push((arm, *bugs.choose(rng).unwrap()));
            }
        }
        self.renew = None;
        self.aim(rng, Spot::Working, Blow::Pause(FaultId(1)), 22..=45);
        self.aims[0].lag = 0;
    }
}
