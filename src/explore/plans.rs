//! What is explored: one plan for every seed, all alike but for what the seed draws.

use std::collections::BTreeMap;

use anyhow::anyhow;
use history::{Activity, ClusterKind, Comparison, NodeName, Plan, Workload};
use nemesis::{Draw, Wish};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use workloads::backend;

use crate::{
    cli::{ExploreArgs, FenceArg},
    exit::Unusable,
    scenario::{PlanFile, arms, models, resource_bug, tokens, usage, with_clients},
};

/// Everything that the flags decide.
#[derive(Debug, Clone)]
pub struct Space {
    base: Plan,
    wishes: Vec<Wish>,
    /// The backend as the user named it.
    pub backend: String,
    /// A planted bug of the resource.
    pub resource_bug: Option<String>,
}

impl Space {
    /// Resolves flags. What is wrong with them is found here, and not at some seed.
    pub fn from_flags(args: &ExploreArgs) -> anyhow::Result<Space> {
        let (backend, _) = backend::named(&args.backend).map_err(|e| usage("backend", e))?;
        let wishes = nemesis::parse(&args.nemesis).map_err(|e| Unusable(e.to_string()))?;
        let tokens = tokens(args.tokens.as_deref(), backend)?;
        let fence = match args.fence {
            FenceArg::Default => Comparison::Default,
            FenceArg::Strict => Comparison::Strict,
        };
        let resource_bug = resource_bug(args.resource.as_deref(), args.seed)?;
        let base = Plan {
            schema: 1,
            seed: args.seed,
            cluster: ClusterKind::Sim,
            backend: backend.name.to_owned(),
            tokens,
            time: args.time,
            lease: args.lease,
            arms: arms(args.arms.as_deref(), tokens, fence)?,
            fence,
            lock_nodes: backend.lock_nodes(),
            workload: with_clients(load(args), &args.clients),
            activity: Activity::default(),
            nemesis: args.nemesis.split(',').map(|w| w.trim().to_owned()).filter(|w| w != "none").collect(),
            models: models(&args.models),
            waits: Vec::new(),
            schedule: Vec::new(),
        };
        base.validate().map_err(|e| usage(e.field, e.problem))?;
        let space = Space { base, wishes, backend: args.backend.clone(), resource_bug };
        if args.seeds == 0 {
            return Err(usage("seeds", "there must be at least one"));
        }
        let last = args.seed.checked_add(args.seeds - 1).ok_or_else(|| usage("seeds", "more than there are seeds"))?;
        for seed in [args.seed, last] {
            space.plan(seed).map_err(|e| Unusable(format!("{e:#}")))?;
        }
        Ok(space)
    }

    /// The plan of a seed, its schedule drawn.
    ///
    /// # Errors
    /// A target that does not exist, or a fault that is not possible.
    pub fn plan(&self, seed: u64) -> anyhow::Result<Plan> {
        let mut plan = Plan { seed, ..self.base.clone() };
        let workers: Vec<NodeName> = plan.workers().collect();
        let of = Draw {
            wishes: &self.wishes,
            time: plan.time,
            lease: plan.lease,
            workers: &workers,
            lock_nodes: &self.base.lock_nodes,
        };
        plan.schedule = nemesis::draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).map_err(|e| anyhow!("{e}"))?;
        plan.validate().map_err(|e| anyhow!("--{}: {}", e.field, e.problem))?;
        Ok(plan)
    }

    /// A plan as `harness run` reads it.
    pub fn file(&self, run: String, plan: Plan) -> PlanFile {
        PlanFile {
            run,
            backend: self.backend.clone(),
            resource_bug: self.resource_bug.clone(),
            compose: None,
            images: BTreeMap::new(),
            plan,
        }
    }
}

fn load(args: &ExploreArgs) -> Workload {
    Workload {
        workers: args.workers,
        clients_per_worker: args.clients_per_worker,
        keys: args.keys,
        rate_per_s: args.rate,
        work: args.work,
        retry_delay: args.retry_delay,
        ..Workload::default()
    }
}
