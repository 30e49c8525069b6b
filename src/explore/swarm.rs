//! Draws whole plans from seeds: the workload, the tokens, the models of the servers, and the faults.
//!
//! Each seed draws a random subset of all features first, and the numbers of these features then (swarm testing; Groce,
//! Zhang, Eide, Chen, Regehr: Swarm Testing, ISSTA 2012). A test with every feature at once finds less, because
//! features suppress each other: a client that is cut off never renews too late.
//!
//! A plan has only what is possible: every word and every step is offered to the checks of [`Plan::validate`] and of
//! [`Plan::check_points`], so that no list here has to know a backend or its faults by name.

mod faults;
mod mutation;
mod number;
pub mod search;
pub mod signal;
mod workload;

use anyhow::anyhow;
use compose::BUILTIN;
use history::{LeaseClock, Models, Persistence, Plan, Tokens, Topology};
use nemesis::FaultSpec;
use rand::{Rng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use workloads::backend::Backend;

use super::draws::Draws;
use crate::scenario::Scenario;

/// Draws plans for one backend.
#[derive(Debug, Clone)]
pub struct Swarm {
    base: Plan,
    /// The token sources to draw from.
    sources: Vec<Tokens>,
    /// The faults that these servers can have, as `--nemesis` names them.
    words: Vec<FaultSpec>,
}

impl Swarm {
    /// Makes a swarm for a backend, by its name in `--backend`. Without `tokens`, plans have any sound token source of
    /// the backend.
    ///
    /// # Errors
    /// No backend has this name, or the backend makes no such tokens.
    pub fn of(backend: &str, tokens: Option<Tokens>) -> anyhow::Result<Swarm> {
        let scenario = Scenario::of(backend)?;
        let client = Backend::named(backend)?;
        let is_meant = |one: &Tokens| tokens.map_or(one.is_sound(), |tokens| *one == tokens) && client.fits(*one);
        let sources: Vec<Tokens> = scenario.base.servers.tokens.iter().copied().filter(is_meant).collect();
        if sources.is_empty() {
            return Err(anyhow!("{} makes no such tokens", scenario.base.backend));
        }
        Ok(Swarm { words: faults::words(&scenario), base: scenario.base, sources })
    }

    /// Draws the plan of a seed.
    ///
    /// # Errors
    /// The plan cannot be run.
    pub fn plan(&self, seed: u64) -> anyhow::Result<Plan> {
        let mut rng = Draws::Plan.of(seed);
        let mut plan = workload::draw(self.start(seed, &mut rng), false, &mut rng);
        plan = workload::draw_capabilities(plan, false, &mut Draws::Capabilities.of(seed));
        self.set_models(&mut plan, &mut rng);
        faults::draw(&mut plan, &self.words, &mut rng)?;
        finished(plan)
    }

    /// Draws a plan that has something of `parent`, and something of the plan of `seed`.
    ///
    /// # Errors
    /// The plan of the seed cannot be run.
    pub fn mutant(&self, seed: u64, parent: &Plan) -> anyhow::Result<Plan> {
        Ok(mutation::mutant(parent, &self.plan(seed)?, &mut Draws::Mutation.of(seed)))
    }

    /// Draws a plan without faults, in which every hold is released long before its lease ends.
    ///
    /// # Errors
    /// The plan cannot be run.
    pub fn plan_without_faults(&self, seed: u64) -> anyhow::Result<Plan> {
        let mut rng = Draws::Plan.of(seed);
        let plan = workload::draw(self.start(seed, &mut rng), true, &mut rng);
        finished(workload::draw_capabilities(plan, true, &mut Draws::Capabilities.of(seed)))
    }

    fn start(&self, seed: u64, rng: &mut ChaCha8Rng) -> Plan {
        let tokens = *self.sources.choose(rng).unwrap_or(&self.base.tokens);
        Plan { seed, tokens, ..self.base.clone() }
    }

    /// Draws the switches of the models that these servers have.
    fn set_models(&self, plan: &mut Plan, rng: &mut ChaCha8Rng) {
        let mut models = Models::default();
        if plan.servers.topology == Topology::OneStore {
            models.revokes_on_resume = rng.random_ratio(1, 2);
            models.lock_checks_key = !plan.servers.shows_waiting && rng.random_ratio(1, 2);
            // A newer version of the same servers.
            if plan.servers.lease_clock == LeaseClock::Both && rng.random_ratio(1, 2) {
                plan.servers.lease_clock = LeaseClock::Monotonic;
            }
        }
        // Servers that forget nothing in a SIGKILL have no such setting.
        if plan.servers.has_persistence() {
            let all = [Persistence::No, Persistence::Snapshot, Persistence::Everysec, Persistence::Always];
            models.persistence = *all.choose(rng).unwrap_or(&Persistence::No);
        }
        plan.models = Some(models);
    }
}

fn finished(mut plan: Plan) -> anyhow::Result<Plan> {
    plan.nemesis = plan.kinds().iter().map(|kind| kind.name().to_owned()).collect();
    plan.validate().and_then(|()| plan.check_points()).map_err(|e| anyhow!("{}: {}", e.field, e.problem))?;
    Ok(plan)
}

/// A correct lock with a sound token source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CorrectLock {
    /// The lock, as `--backend` names it.
    pub backend: &'static str,
    /// The token source.
    pub tokens: Tokens,
}

impl CorrectLock {
    /// Lists the correct locks whose servers have a model, each with every sound token source.
    ///
    /// # Errors
    /// A built-in Compose file cannot be used.
    pub fn all() -> anyhow::Result<Vec<CorrectLock>> {
        let mut all = Vec::new();
        for (backend, _) in BUILTIN {
            let servers = Scenario::of(backend)?.base.servers;
            if servers.model().is_some() {
                let sources = servers.tokens.into_iter().filter(|tokens| tokens.is_sound());
                all.extend(sources.map(|tokens| CorrectLock { backend, tokens }));
            }
        }
        Ok(all)
    }
}

impl std::fmt::Display for CorrectLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&match self.tokens {
            Tokens::None => format!("{} without tokens", self.backend),
            tokens => format!("{}, {tokens}", self.backend),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use history::{Amnesia, Direction, FaultKind, Point, Step, Target, When};

    use super::*;

    const SEEDS: u64 = 150;

    fn plans(lock: CorrectLock) -> Vec<Plan> {
        let swarm = Swarm::of(lock.backend, Some(lock.tokens)).unwrap();
        (0..SEEDS).map(|seed| swarm.plan(seed).unwrap_or_else(|e| panic!("{lock}, seed {seed}: {e:#}"))).collect()
    }

    #[test]
    fn every_seed_has_one_plan_and_it_can_be_run() {
        for lock in CorrectLock::all().unwrap() {
            let all = plans(lock);
            assert_eq!(plans(lock), all, "{lock}");
            assert!(all.iter().all(|plan| plan.validate().is_ok() && plan.tokens == lock.tokens), "{lock}");
            assert!(all.iter().all(|plan| plan.too_long().is_none()), "{lock}");
        }
    }

    #[test]
    fn only_clients_that_write_back_have_faults_at_that_point() {
        for lock in CorrectLock::all().unwrap() {
            let all = plans(lock);
            assert!(all.iter().all(|plan| plan.check_points().is_ok()), "{lock}");
            let is_there = |step: &Step| step.when == When::AtPoint(Point::AfterWriteBack);
            let writes_back = matches!(lock.tokens, Tokens::TwoPhase | Tokens::TwoPhaseFast);
            assert_eq!(all.iter().any(|plan| plan.schedule.iter().any(is_there)), writes_back, "{lock}");
        }
    }

    #[test]
    fn a_swarm_has_every_fault_that_the_servers_can_have_and_no_other() {
        for lock in CorrectLock::all().unwrap() {
            let all = plans(lock);
            let kinds: BTreeSet<FaultKind> = all.iter().flat_map(Plan::kinds).collect();
            let may_lose_data = all[0].servers.amnesia != Amnesia::LosesMembership;
            let is_possible = |kind: &FaultKind| may_lose_data || *kind != FaultKind::Amnesia;
            assert_eq!(kinds, FaultKind::ALL.into_iter().filter(is_possible).collect(), "{lock}");
            let has_persistence = |plan: &Plan| plan.models.is_some_and(|m| m.persistence != Persistence::No);
            assert_eq!(all.iter().any(has_persistence), all[0].servers.has_persistence(), "{lock}");
        }
    }

    /// Counts the plans in which two steps are as `is_so` says.
    fn with_two_steps(plans: &[Plan], is_so: impl Fn(&Step, &Step) -> bool) -> usize {
        let has = |plan: &&Plan| {
            let pairs = plan
                .schedule
                .iter()
                .enumerate()
                .flat_map(|(n, one)| plan.schedule[n + 1..].iter().map(move |other| (one, other)));
            pairs.into_iter().any(|(one, other)| is_so(one, other))
        };
        plans.iter().filter(has).count()
    }

    #[test]
    fn planned_times_on_one_node_overlap_in_some_plans_and_in_others_not() {
        let all = plans(CorrectLock { backend: "redlock", tokens: Tokens::TwoPhase });
        let until = |step: &Step| if let When::At(at) = step.when { Some((at, at + step.fault.lasting)) } else { None };
        let meet = |one: &Step, other: &Step| {
            let (Some((a, b)), Some((c, d))) = (until(one), until(other)) else { return false };
            one.target == other.target && one.fault.kind() != other.fault.kind() && a < d && c < b
        };
        let count = with_two_steps(&all, meet) as u64;
        assert!((5..SEEDS / 2).contains(&count), "in {count} of {SEEDS} plans");
    }

    #[test]
    fn the_same_fault_hits_exactly_a_minority_in_some_plans() {
        let all = plans(CorrectLock { backend: "redlock", tokens: Tokens::TwoPhase });
        let is_minority = |plan: &&Plan| {
            plan.schedule.iter().any(|one| {
                let is_same = |step: &&Step| step.fault == one.fault && step.when == one.when;
                let is_node =
                    |step: &&Step| plan.lock_nodes.iter().any(|node| step.target == Target::Node(node.clone()));
                plan.schedule.iter().filter(is_same).filter(is_node).count() == 2
            })
        };
        let count = all.iter().filter(is_minority).count() as u64;
        assert!((5..SEEDS / 2).contains(&count), "in {count} of {SEEDS} plans");
    }

    #[test]
    fn each_part_of_a_workload_is_in_some_plans_and_missing_in_others() {
        type Has = fn(&Plan) -> bool;
        let parts: [(&str, Has); 11] = [
            ("renewals", |p| p.workload.renew.is_some()),
            ("renewed lease", |p| p.workload.renew_for.is_some()),
            ("cancels", |p| p.workload.cancel.is_some()),
            ("resends", |p| p.workload.resend.is_some()),
            ("deadline", |p| p.workload.deadline.is_some()),
            ("writes", |p| p.workload.writes > 1),
            ("keys", |p| p.workload.keys > 1),
            ("clients", |p| p.workload.clients_per_worker > 1),
            ("client kind", |p| p.workload.client == history::ClientKind::Checking),
            ("strict", |p| p.fence == history::Comparison::Strict),
            ("placed faults", |p| p.schedule.iter().any(|s| matches!(s.when, history::When::AtPoint(_)))),
        ];
        let all = plans(CorrectLock { backend: "redlock", tokens: Tokens::TwoPhase });
        for (name, has) in parts {
            let count = all.iter().filter(|plan| has(plan)).count() as u64;
            assert!((5..SEEDS - 5).contains(&count), "{name}: in {count} of {SEEDS} plans");
        }
    }

    #[test]
    fn placed_faults_of_links_have_every_direction() {
        let mut directions = Vec::new();
        for (backend, tokens) in [("redlock", Tokens::TwoPhase), ("redis", Tokens::Counter), ("etcd", Tokens::Revision)]
        {
            let all = plans(CorrectLock { backend, tokens });
            let placed = all.iter().flat_map(|plan| &plan.schedule).filter(|s| matches!(s.when, When::AtPoint(_)));
            directions.extend(placed.filter_map(|step| Some(step.fault.links.as_ref()?.direction)));
        }
        for direction in [Direction::Both, Direction::In, Direction::Out] {
            assert!(directions.contains(&direction), "{direction:?}");
        }
    }

    #[test]
    fn a_mutant_is_possible_and_has_its_own_random_streams() {
        let swarm = Swarm::of("redlock", None).unwrap();
        let parent = swarm.plan(1).unwrap();
        let mutants: Vec<Plan> = (100..200).map(|seed| swarm.mutant(seed, &parent).unwrap()).collect();
        assert!(mutants.iter().zip(100..).all(|(plan, seed)| plan.validate().is_ok() && plan.seed == seed));
        assert!(mutants.iter().all(|plan| plan.too_long().is_none()));
        assert!(mutants.iter().any(|plan| plan.schedule != parent.schedule));
        assert!(mutants.iter().any(|plan| plan.workload != parent.workload));
        assert!(mutants.iter().all(|plan| plan.lease == parent.lease && plan.tokens == parent.tokens));
    }

    #[test]
    fn correct_locks_are_those_with_a_model_each_with_its_sound_tokens() {
        let all = CorrectLock::all().unwrap();
        assert!(all.contains(&CorrectLock { backend: "etcd-server-lock", tokens: Tokens::None }));
        assert!(all.iter().all(|lock| lock.tokens != Tokens::MajorityMax));
        let missing = BUILTIN.iter().filter(|(name, _)| !all.iter().any(|lock| lock.backend == *name));
        for (name, _) in missing {
            assert_eq!(Scenario::of(name).unwrap().base.servers.model(), None, "{name}");
        }
    }
}
