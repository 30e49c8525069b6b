//! Draws what fails: the kinds of faults, their targets, their times, and their numbers.
//!
//! A schedule has up to three parts. *Random faults* are those that `--nemesis` draws. A *series* is one fault of the
//! nodes of one role: once and for almost the whole run, or again and again in equal intervals. A *placed fault* comes
//! when a client reaches a protocol point.

use std::{collections::BTreeSet, mem::discriminant, time::Duration};

use history::{
    ClockChange, Direction, Fault, FaultId, FaultKind, Harm, NodeName, Plan, Point, Range, Step, Target, When,
    WhichClock,
    fault::{self, ParameterVisitor, Parameters, Quantity},
};
use nemesis::{Draw, FaultSpec, Group};
use rand::{Rng, seq::IndexedRandom};

use super::number::{count, length, scale};
use crate::scenario::Scenario;

/// A step of a series comes so long after the start.
const FIRST: Duration = Duration::from_millis(50);
/// The time that a fault of a server may need until it is proved healed, and the end of the run.
const PROVED: Duration = Duration::from_millis(500);
/// The most steps of one series.
const STEPS_MAX: u32 = 40;
/// The most pairs of a kind and a role that have series in one schedule.
const PAIRS_MAX: u32 = 5;
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
    let meet = rng.random_ratio(1, 2);
    let mut schedule = Schedule { plan, workers, meet, busy: Vec::new(), steps: Vec::new() };
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
///
/// Each harm is done by one kind in half of the schedules. If each kind were as probable as another, two kinds that do
/// different harm would seldom meet, because most kinds end processes or lose packets.
fn some_kinds(words: &[FaultSpec], rng: &mut impl Rng) -> Vec<FaultSpec> {
    let mut harms: Vec<Vec<FaultKind>> = Vec::new();
    for kind in kinds(words) {
        let is_same = |of: &&mut Vec<FaultKind>| discriminant(&of[0].harm()) == discriminant(&kind.harm());
        match harms.iter_mut().find(is_same) {
            Some(of) => of.push(kind),
            None => harms.push(vec![kind]),
        }
    }
    let mut some: BTreeSet<FaultKind> = BTreeSet::new();
    while some.is_empty() && !harms.is_empty() {
        let drawn: Vec<&Vec<FaultKind>> = harms.iter().filter(|_| rng.random_ratio(1, 2)).collect();
        some = drawn.into_iter().filter_map(|of| of.choose(rng).copied()).collect();
    }
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
    let mut schedule = Schedule { plan, workers, meet: true, busy: Vec::new(), steps: plan.schedule.clone() };
    for step in &plan.schedule {
        schedule.occupy(step);
    }
    for step in more.iter().filter(|step| !matches!(step.when, When::Healed(_))) {
        schedule.add(Step { id: schedule.next(), ..step.clone() });
    }
    schedule.steps
}

/// A time at which a node has a fault.
struct Busy {
    node: NodeName,
    kind: FaultKind,
    from: Duration,
    to: Duration,
}

struct Schedule<'a> {
    plan: &'a Plan,
    workers: Vec<NodeName>,
    /// True if planned times may overlap: of faults of different kinds on one node, and of faults of several workers.
    /// In the run such faults take turns, because a node has one fault at a time, and so have all workers together. The
    /// later fault then comes as soon as the earlier one is over.
    meet: bool,
    /// Times at which nodes have faults.
    busy: Vec<Busy>,
    steps: Vec<Step>,
}

impl Schedule<'_> {
    /// Draws random faults of some kinds.
    fn add_random(&mut self, words: &[FaultSpec], rng: &mut impl Rng) -> anyhow::Result<()> {
        let count = rng.random_range(1..=4);
        let specs: Vec<FaultSpec> = words.choose_multiple(rng, count).cloned().collect();
        let Plan { time, lease, lock_nodes, resource, .. } = self.plan;
        let (time, lease, resource) = (*time, *lease, *resource);
        let of = Draw { specs: &specs, time, lease, workers: &self.workers, lock_nodes, resource };
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
            character.change(&mut step.fault, self.plan, false);
            if follows_nothing || !self.add(step) {
                left_out.insert(id);
            }
        }
        Ok(())
    }

    /// Draws a series for each of some pairs of a kind and a role.
    fn add_series(&mut self, words: &[FaultSpec], rng: &mut impl Rng) {
        let kinds = kinds(words);
        let (shared, is_shared) = (Character::draw(rng), rng.random_ratio(1, 2));
        for _ in 0..rng.random_range(1..=PAIRS_MAX) {
            let (kind, nodes) = (*kinds.choose(rng).unwrap_or(&FaultKind::Pause), self.role(rng));
            let own = Character::draw(rng);
            self.add_pair(kind, &nodes, if is_shared { &shared } else { &own }, rng);
        }
    }

    /// Draws the nodes of a role: one worker or all workers, the resource, or lock nodes. Locks decide by counting
    /// their nodes, so exactly a minority and just a majority are roles of their own.
    fn role(&self, rng: &mut impl Rng) -> Vec<NodeName> {
        let count = self.plan.lock_nodes.len();
        let sizes = [1, count.saturating_sub(1) / 2, count / 2 + 1, count];
        match rng.random_range(0..5) {
            0 => self.workers.clone(),
            1 => self.workers.choose(rng).cloned().into_iter().collect(),
            2 => vec![NodeName::new("resource")],
            _ => {
                let size = sizes.choose(rng).copied().unwrap_or(count).max(1);
                self.plan.lock_nodes.choose_multiple(rng, size).cloned().collect()
            }
        }
    }

    /// Draws the same series for all of these nodes: one fault for almost the whole run, or one that comes again and
    /// again.
    fn add_pair(&mut self, kind: FaultKind, nodes: &[NodeName], character: &Character, rng: &mut impl Rng) {
        let Some(mut fault) = nodes.first().and_then(|node| self.fault(kind, node, rng)) else { return };
        // The target goes on while such a fault is on.
        let is_bearable = kind.is_of_links() || matches!(kind.harm(), Harm::SetsClock | Harm::Starves);
        let is_throughout = is_bearable && rng.random_ratio(1, 2);
        if is_throughout {
            fault.lasting = self.plan.time.saturating_sub(FIRST + PROVED).max(LENGTH_MIN);
        }
        character.change(&mut fault, self.plan, is_throughout);
        let (first, gap) = (length(rng, FIRST, self.plan.time / 2), length(rng, LENGTH_MIN, self.plan.time / 2));
        let (first, most) = if is_throughout { (FIRST, 1) } else { (first, count(rng, 1, STEPS_MAX)) };
        for node in nodes {
            let (mut at, mut left) = (first, most);
            while left > 0 && at + PROVED < self.plan.time {
                let target = Target::Node(node.clone());
                self.add(Step { id: self.next(), fault: fault.clone(), target, when: When::At(at) });
                (at, left) = (at + fault.lasting + gap, left - 1);
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
        Character::draw(rng).change(&mut fault, self.plan, false);
        for _ in 0..count(rng, 1, 6) {
            let target = Target::Node(worker.clone());
            self.add(Step { id: self.next(), fault: fault.clone(), target, when: When::AtPoint(point) });
        }
    }

    /// Draws a fault of `node`; none if a fault of this kind is impossible there.
    fn fault(&self, kind: FaultKind, node: &NodeName, rng: &mut impl Rng) -> Option<Fault> {
        let spec: FaultSpec = format!("{kind}:{node}@1ms").parse().ok()?;
        let Plan { time, lease, lock_nodes, resource, .. } = self.plan;
        let (time, lease, resource) = (*time, *lease, *resource);
        let of = Draw { specs: &[spec], time, lease, workers: &self.workers, lock_nodes, resource };
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

    /// Adds a step if the plan allows it, and if the target has no other fault at that time. A step of another plan may
    /// be too long for this one, whose lease and time are others.
    fn add(&mut self, step: Step) -> bool {
        let alone = Plan { schedule: vec![Step { when: known(step.when), ..step.clone() }], ..self.plan.clone() };
        if alone.validate().and_then(|()| alone.check_points()).is_err() || alone.too_long().is_some() {
            return false;
        }
        let (slot, kind) = (self.slot(&step.target), step.fault.kind());
        let is_free = match step.when {
            When::At(at) => {
                let until = at + step.fault.lasting + PROVED;
                let mut others = self.busy.iter().filter(|busy| busy.node == slot && busy.from < until && at < busy.to);
                // A process that ends, or has just started, proves no other fault.
                let may_meet = |busy: &Busy| self.meet && busy.kind != kind && !busy.kind.kills() && !kind.kills();
                others.all(may_meet) && !self.steps.iter().any(|other| step.excludes(other).is_some())
            }
            // The step waits until its target is free, which may be never.
            _ => !self.busy.iter().any(|busy| busy.node == slot && busy.to - busy.from > self.plan.time / 2),
        };
        if is_free {
            self.occupy(&step);
            self.steps.push(step);
        }
        is_free
    }

    fn occupy(&mut self, step: &Step) {
        if let When::At(at) = step.when {
            let (node, kind, to) = (self.slot(&step.target), step.fault.kind(), at + step.fault.lasting + PROVED);
            self.busy.push(Busy { node, kind, from: at, to });
        }
    }

    /// Returns the name under which `target` is in the list of busy nodes.
    fn slot(&self, target: &Target) -> NodeName {
        match target {
            Target::Node(node) if self.meet || !self.workers.contains(node) => node.clone(),
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
    /// A part of the lease, and a little more or less, where each order of magnitude of the difference is as probable
    /// as another: up to a tenth of the lease. Clients and servers decide much at such times: a request and its
    /// answer that are each late by half a lease arrive when the lease ends.
    OfLease(f64),
}

impl Size {
    fn draw(rng: &mut impl Rng) -> Size {
        if rng.random_ratio(1, 2) {
            return Size::Any(rng.random());
        }
        let part = *[0.25, 0.5, 1.0, 1.0, 2.0].choose(rng).unwrap_or(&1.0);
        let sign = if rng.random_ratio(1, 2) { 1.0 } else { -1.0 };
        Size::OfLease(part * (1.0 + sign * scale(rng, 0.002, 0.1)))
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

    /// Gives `fault` other numbers, if the result is possible. `keeps_length` leaves its length.
    fn change(&self, fault: &mut Fault, plan: &Plan, keeps_length: bool) {
        if self.is_usual {
            return;
        }
        let mut changed = fault.clone();
        changed.visit(&mut Redrawn { character: self, lease: plan.lease, lasting: fault.lasting, keeps_length });
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
    keeps_length: bool,
}

impl ParameterVisitor for Redrawn<'_> {
    fn duration(&mut self, of: Quantity, value: &mut Duration) {
        if of == Quantity::Delay {
            *value = self.character.delay.of(self.lease, DELAY_MIN);
        } else if !self.keeps_length {
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
