//! Draws what fails: the kinds of faults, their targets, their times, and their numbers.
//!
//! A schedule has up to three parts. *Random faults* are those that `--nemesis` draws. A *series* is one fault of one
//! node: once and for almost the whole run, or again and again in equal intervals. A *placed fault* comes when a client
//! reaches a protocol point.

use std::{collections::BTreeSet, time::Duration};

use history::{
    ClockChange, Direction, Fault, FaultId, FaultKind, NodeName, Plan, Point, Range, Step, Target, When, WhichClock,
    fault::{self, ParameterVisitor, Parameters, Quantity},
};
use nemesis::{Draw, FaultSpec, Group};
use rand::{
    Rng,
    seq::{IndexedRandom, SliceRandom},
};

use super::number::{count, length};
use crate::scenario::Scenario;

/// A step of a series comes so long after the start.
const FIRST: Duration = Duration::from_millis(50);
/// The time that a fault of a server may need until it is proved healed, and the end of the run.
const PROVED: Duration = Duration::from_millis(500);
/// The most steps of one series.
const STEPS_MAX: u32 = 40;
/// The most kinds of faults in one schedule.
const KINDS_MAX: usize = 4;
/// The shortest fault that an engine can inject and heal.
const LENGTH_MIN: Duration = Duration::from_millis(50);
/// The shortest delay, and the shortest jump of a clock.
const DELAY_MIN: Duration = Duration::from_millis(10);

/// Lists the words of `--nemesis` that are possible with these servers, without times.
pub fn words(scenario: &Scenario) -> Vec<FaultSpec> {
    let targets = ["holder", "any-worker", "any-lock-node", "leader", "resource"];
    let targets = targets.into_iter().chain(Group::ALL.map(Group::name));
    let all = targets.flat_map(|target| FaultKind::ALL.map(|kind| format!("{kind}:{target}")));
    let words = all.filter_map(|word| word.parse().ok());
    let alone = |word: &FaultSpec| Scenario { faults: vec![word.clone()], ..scenario.clone() };
    words.filter(|word| alone(word).plan(0).is_ok()).collect()
}

/// Draws the schedule of `plan`.
///
/// # Errors
/// A node of the plan has no name that `--nemesis` understands.
pub fn draw(plan: &mut Plan, words: &[FaultSpec], rng: &mut impl Rng) -> anyhow::Result<()> {
    let workers: Vec<NodeName> = plan.workers().collect();
    let [has_random, has_series, has_placed] = parts(rng);
    let words = &some_kinds(words, rng);
    let mut schedule = Schedule { plan, workers, busy: Vec::new(), steps: Vec::new() };
    // The most constant part comes first, because the other parts only fill what is free.
    if has_series {
        schedule.add_series(words, rng);
    }
    if has_placed {
        schedule.add_placed(words, rng);
    }
    if has_random {
        schedule.add_random(words, rng)?;
    }
    plan.schedule = schedule.steps;
    Ok(())
}

/// Chooses some kinds of faults, and returns their words. All parts of a schedule share the kinds, because two faults
/// do more than one only if both come often.
fn some_kinds(words: &[FaultSpec], rng: &mut impl Rng) -> Vec<FaultSpec> {
    let all = kinds(words);
    let count = rng.random_range(1..=KINDS_MAX);
    let some: BTreeSet<FaultKind> = all.choose_multiple(rng, count).copied().collect();
    words.iter().filter(|word| some.contains(&word.kind)).cloned().collect()
}

/// Chooses the parts of a schedule; at least one.
fn parts(rng: &mut impl Rng) -> [bool; 3] {
    loop {
        let parts = [(); 3].map(|()| rng.random_ratio(1, 2));
        if parts.contains(&true) {
            return parts;
        }
    }
}

/// Returns the schedule of `plan` with those of `more` that are possible beside it. Steps that wait for the heal of
/// another step are left out.
pub fn joined(plan: &Plan, more: &[Step]) -> Vec<Step> {
    let workers = plan.workers().collect();
    let mut schedule = Schedule { plan, workers, busy: Vec::new(), steps: plan.schedule.clone() };
    for step in &plan.schedule {
        schedule.occupy(step);
    }
    for step in more.iter().filter(|step| !matches!(step.when, When::Healed(_))) {
        schedule.add(Step { id: schedule.next(), ..step.clone() });
    }
    schedule.steps
}

struct Schedule<'a> {
    plan: &'a Plan,
    workers: Vec<NodeName>,
    /// Times at which nodes have faults. All workers together have one fault at a time.
    busy: Vec<(NodeName, Duration, Duration)>,
    steps: Vec<Step>,
}

impl Schedule<'_> {
    /// Draws random faults of some kinds.
    fn add_random(&mut self, words: &[FaultSpec], rng: &mut impl Rng) -> anyhow::Result<()> {
        let count = rng.random_range(1..=4);
        let specs: Vec<FaultSpec> = words.choose_multiple(rng, count).cloned().collect();
        let Plan { time, lease, lock_nodes, .. } = self.plan;
        let of = Draw { specs: &specs, time: *time, lease: *lease, workers: &self.workers, lock_nodes };
        // Some links cannot be cut with so few workers.
        let Ok(drawn) = nemesis::draw(rng, &of) else { return Ok(()) };
        let character = Character::draw(rng);
        let (first, mut left_out) = (self.steps.len() as u32, BTreeSet::new());
        for mut step in drawn {
            let id = FaultId(first + step.id.0);
            step.id = id;
            if let When::Healed(before) = &mut step.when {
                before.0 += first;
            }
            let follows_nothing = matches!(step.when, When::Healed(before) if left_out.contains(&before));
            character.change(&mut step.fault, self.plan);
            if follows_nothing || !self.add(step) {
                left_out.insert(id);
            }
        }
        Ok(())
    }

    /// Draws one series for each of some nodes: the same fault for all of them, or one for each.
    fn add_series(&mut self, words: &[FaultSpec], rng: &mut impl Rng) {
        let mut nodes = self.plan.lock_nodes.clone();
        nodes.extend(self.workers.choose(rng).cloned());
        nodes.push(NodeName::new("resource"));
        nodes.shuffle(rng);
        let some = rng.random_range(1..=nodes.len());
        let (is_same, kinds) = (rng.random_ratio(1, 2), kinds(words));
        let (character, mut kind) = (Character::draw(rng), *kinds.choose(rng).unwrap_or(&FaultKind::Pause));
        for node in nodes.into_iter().take(some) {
            if !is_same {
                kind = *kinds.choose(rng).unwrap_or(&kind);
            }
            let is_throughout = kind.is_of_links() && rng.random_ratio(1, 2);
            let Some(mut fault) = self.fault(kind, &node, rng) else { continue };
            character.change(&mut fault, self.plan);
            let (mut at, mut gap, mut left) = (FIRST, self.plan.time, 1);
            if is_throughout {
                fault.lasting = self.plan.time.saturating_sub(FIRST + PROVED).max(LENGTH_MIN);
            } else {
                at = length(rng, FIRST, self.plan.time / 2);
                gap = fault.lasting + length(rng, LENGTH_MIN, self.plan.time / 2);
                left = count(rng, 1, STEPS_MAX);
            }
            while left > 0 && at + PROVED < self.plan.time {
                let target = Target::Node(node.clone());
                self.add(Step { id: self.next(), fault: fault.clone(), target, when: When::At(at) });
                (at, left) = (at + gap, left - 1);
            }
        }
    }

    /// Draws faults that come when the first client of a worker reaches a protocol point.
    fn add_placed(&mut self, words: &[FaultSpec], rng: &mut impl Rng) {
        let kinds = kinds(words);
        let (Some(worker), Some(point)) = (self.workers.choose(rng).cloned(), Point::ALL.choose(rng).copied()) else {
            return;
        };
        let Some(mut fault) = kinds.choose(rng).and_then(|kind| self.fault(*kind, &worker, rng)) else { return };
        Character::draw(rng).change(&mut fault, self.plan);
        for _ in 0..count(rng, 1, 6) {
            let target = Target::Node(worker.clone());
            self.add(Step { id: self.next(), fault: fault.clone(), target, when: When::AtPoint(point) });
        }
    }

    /// Draws a fault of `node`; none if a fault of this kind is impossible there.
    fn fault(&self, kind: FaultKind, node: &NodeName, rng: &mut impl Rng) -> Option<Fault> {
        let spec: FaultSpec = format!("{kind}:{node}@1ms").parse().ok()?;
        let Plan { time, lease, lock_nodes, .. } = self.plan;
        let of = Draw { specs: &[spec], time: *time, lease: *lease, workers: &self.workers, lock_nodes };
        let fault = nemesis::draw(rng, &of).ok()?.into_iter().next()?.fault;
        if !kind.is_of_links() {
            return Some(fault);
        }
        let direction = *[Direction::Both, Direction::Both, Direction::In, Direction::Out].choose(rng)?;
        let peers: Vec<NodeName> = if self.workers.contains(node) {
            lock_nodes.iter().cloned().chain([NodeName::new("resource")]).collect()
        } else {
            self.workers.clone()
        };
        let some = rng.random_range(1..=peers.len());
        let from =
            if rng.random_ratio(1, 4) { Vec::new() } else { peers.choose_multiple(rng, some).cloned().collect() };
        Some(fault.on_links(direction, from))
    }

    fn next(&self) -> FaultId {
        FaultId(self.steps.iter().map(|step| step.id.0).max().unwrap_or(0) + 1)
    }

    /// Adds a step if the plan allows it, and if the target has no other fault at that time.
    fn add(&mut self, step: Step) -> bool {
        let alone = Plan { schedule: vec![Step { when: known(step.when), ..step.clone() }], ..self.plan.clone() };
        if alone.validate().is_err() {
            return false;
        }
        let slot = self.slot(&step.target);
        let is_free = match step.when {
            When::At(at) => {
                let until = at + step.fault.lasting + PROVED;
                !self.busy.iter().any(|(node, from, to)| *node == slot && *from < until && at < *to)
            }
            // The step waits until its target is free, which may be never.
            _ => !self.busy.iter().any(|(node, from, to)| *node == slot && *to - *from > self.plan.time / 2),
        };
        if is_free {
            self.occupy(&step);
            self.steps.push(step);
        }
        is_free
    }

    fn occupy(&mut self, step: &Step) {
        if let When::At(at) = step.when {
            self.busy.push((self.slot(&step.target), at, at + step.fault.lasting + PROVED));
        }
    }

    /// Returns the name under which `target` is in the list of busy nodes.
    fn slot(&self, target: &Target) -> NodeName {
        match target {
            Target::Node(node) if !self.workers.contains(node) => node.clone(),
            Target::Leader => NodeName::new("leader"),
            Target::Node(_) | Target::Holder => NodeName::new("workers"),
        }
    }
}

/// A time that a step can have without other steps.
fn known(when: When) -> When {
    if matches!(when, When::Healed(_)) { When::AfterHeal(Duration::ZERO) } else { when }
}

/// The kinds of faults among some words.
fn kinds(words: &[FaultSpec]) -> Vec<FaultKind> {
    words.iter().map(|word| word.kind).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The numbers of all faults of one part. Faults of one kind have the same numbers, as faults with one cause have.
struct Character {
    /// True if faults have the numbers that `--nemesis` draws.
    is_usual: bool,
    length: Size,
    delay: Size,
    jump: Size,
    /// The sign of a jump and of a drift.
    sign: i64,
    share: f64,
    change: u32,
    clock: WhichClock,
}

/// A duration relative to the lease.
#[derive(Debug, Clone, Copy)]
enum Size {
    /// Any: the place between the bounds, from 0 to 1, where each order of magnitude has the same width.
    Any(f64),
    /// A part of the lease, and a little more or less. Clients and servers decide much at such times: a request and its
    /// answer that are each late by half a lease arrive when the lease ends.
    OfLease(f64),
}

impl Size {
    fn draw(rng: &mut impl Rng) -> Size {
        if rng.random_ratio(1, 2) {
            return Size::Any(rng.random());
        }
        Size::OfLease(*[0.25, 0.5, 1.0, 1.0, 2.0].choose(rng).unwrap_or(&1.0) * rng.random_range(0.95..=1.05))
    }

    fn of(self, lease: Duration, least: Duration) -> Duration {
        let lease_ms = lease.as_secs_f64() * 1e3;
        let ms = match self {
            Size::Any(place) => between(place, least.as_secs_f64() * 1e3, lease_ms * 4.0),
            Size::OfLease(part) => lease_ms * part,
        };
        Duration::from_micros((ms * 1e3) as u64).max(least)
    }
}

impl Character {
    fn draw(rng: &mut impl Rng) -> Character {
        let clocks = [WhichClock::Wall, WhichClock::Wall, WhichClock::Monotonic, WhichClock::Both];
        Character {
            is_usual: rng.random_ratio(1, 4),
            length: Size::draw(rng),
            delay: Size::draw(rng),
            jump: Size::draw(rng),
            sign: if rng.random_ratio(1, 2) { 1 } else { -1 },
            share: rng.random(),
            change: rng.random_range(0..3),
            clock: *clocks.choose(rng).unwrap_or(&WhichClock::Wall),
        }
    }

    /// Gives `fault` other numbers, if the result is possible.
    fn change(&self, fault: &mut Fault, plan: &Plan) {
        if self.is_usual {
            return;
        }
        let mut changed = fault.clone();
        changed.visit(&mut Redrawn { character: self, lease: plan.lease, lasting: fault.lasting });
        if let Parameters::Clock(fault::Clock { clock, change }) = &mut changed.parameters {
            self.vary(clock, change, changed.lasting);
        }
        if changed.check().is_ok() {
            *fault = changed;
        }
    }

    /// Replaces a jump of the wall clock by a clock fault of any kind.
    fn vary(&self, clock: &mut WhichClock, change: &mut ClockChange, lasting: Duration) {
        match (self.change, *change) {
            (0, _) => *change = ClockChange::DriftPpm((self.share * 5e5) as i32 * self.sign as i32),
            (1, ClockChange::JumpMs(by_ms)) => {
                // The fault must last for two jumps.
                let longest_ms = (lasting.as_millis() as u64 / 2).clamp(10, 200);
                let every_ms = between(self.share, 10.0, longest_ms as f64) as u64;
                *change = ClockChange::Strobe { by_ms, every_ms }
            }
            _ => {}
        }
        if !matches!(change, ClockChange::JumpMs(..=0) | ClockChange::Strobe { .. }) {
            *clock = self.clock;
        }
    }
}

/// Returns the number at this place between two others, where each order of magnitude has the same width.
fn between(place: f64, from: f64, to: f64) -> f64 {
    (from.ln() + (to.max(from).ln() - from.ln()) * place).exp()
}

/// Redraws the numbers of a fault.
struct Redrawn<'a> {
    character: &'a Character,
    lease: Duration,
    lasting: Duration,
}

impl ParameterVisitor for Redrawn<'_> {
    fn duration(&mut self, of: Quantity, value: &mut Duration) {
        if of == Quantity::Delay {
            *value = self.character.delay.of(self.lease, DELAY_MIN);
        } else {
            *value = self.character.length.of(self.lease, LENGTH_MIN);
            self.lasting = *value;
        }
    }

    fn number(&mut self, of: Quantity, value: &mut i64) {
        let Character { jump, sign, share, .. } = self.character;
        *value = match of {
            Quantity::JumpMs => sign * jump.of(self.lease, DELAY_MIN).as_millis() as i64,
            Quantity::Percent => between(*share, 1.0, 100.0) as i64,
            Quantity::PeriodMs => between(*share, 10.0, self.lasting.as_secs_f64() * 5e2) as i64,
            _ => *value,
        };
    }

    /// Redraws the longer end only: packets that are all late by the same time do not overtake each other.
    fn range(&mut self, of: Quantity, value: &mut Range) {
        self.duration(of, &mut value.to);
        value.from = value.from.min(value.to);
    }
}
