//! Resolves scenarios into plans. Every command that needs a plan makes it here.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::Context;
use compose::ComposeFile;
use history::{
    Activity, Arm, ClientKind, ClusterKind, Comparison, FaultId, Models, NodeName, Plan, ResourceKind, ServerFacts,
    Step, Tokens, Topology, When, Workload,
};
use nemesis::{Draw, FaultSpec};
use rand::{SeedableRng, TryRngCore, rand_core::OsRng};
use rand_chacha::ChaCha8Rng;
use workloads::backend::Backend;

use crate::{
    cli::{ClientFlag, ClusterArg, Format, ModelArgs, ProgramArgs, RunArgs, ScenarioArgs},
    exit::{Unusable, usage},
    own_servers,
    plan_file::{PlanFile, is_built, is_capable, is_modelled},
    program::program,
};

/// A run before a seed decides its faults. All defaults are filled in.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The plan that all seeds share. Its schedule holds the faults that are placed by hand.
    pub base: Plan,
    /// Faults whose times and targets each seed draws.
    pub faults: Vec<FaultSpec>,
    /// The backend as the user named it.
    pub backend: String,
    /// A planted bug of the resource.
    pub resource_bug: Option<String>,
}

impl Scenario {
    /// Describes a simulated run of a backend, by its name in `--backend`, with the usual workload and without faults.
    ///
    /// # Errors
    /// No backend has this name.
    pub fn of(name: &str) -> anyhow::Result<Scenario> {
        let backend = Backend::named(name).map_err(|e| usage("backend", e))?;
        let ComposeFile { facts, services, .. } = ComposeFile::builtin(backend.name())?;
        let tokens = facts.tokens[0];
        let base = Plan {
            schema: 1,
            seed: 0,
            cluster: ClusterKind::Sim,
            backend: backend.name().to_owned(),
            tokens,
            time: Duration::from_secs(30),
            lease: Duration::from_secs(2),
            arms: usual_arms(tokens, Comparison::Default),
            fence: Comparison::Default,
            resource: ResourceKind::Service,
            lock_nodes: services.into_iter().map(|service| service.name).collect(),
            servers: facts,
            workload: Workload::default(),
            activity: Activity::default(),
            nemesis: Vec::new(),
            models: None,
            own_servers: Default::default(),
            program: None,
            waits: Vec::new(),
            schedule: Vec::new(),
        };
        Ok(Scenario { base, faults: Vec::new(), backend: name.to_owned(), resource_bug: None })
    }

    /// Resolves flags. The servers are those of the backend's Compose file, or of `compose`.
    pub fn from_flags(
        args: &ScenarioArgs,
        own: &ProgramArgs,
        cluster: ClusterKind,
        compose: Option<&Path>,
    ) -> anyhow::Result<Scenario> {
        if cluster == ClusterKind::Docker
            && let Some(flag) = model_flag(&args.models)
        {
            let problem = "real servers have no such switch, only models have; add `--cluster sim`";
            return Err(usage(flag, problem));
        }
        let mut scenario = Scenario::of(&args.backend)?;
        scenario.faults = nemesis::parse(&args.nemesis).map_err(|e| Unusable(e.to_string()))?;
        let (resource, bug) = resource(args.resource.as_deref())?;
        scenario.resource_bug = bug;
        let is_placed = !scenario.faults.is_empty() && scenario.faults.iter().all(FaultSpec::is_placed);
        let plan = &mut scenario.base;
        plan.cluster = cluster;
        plan.resource = resource;
        if let Some(own) = compose {
            let own = ComposeFile::read(own)?;
            plan.lock_nodes = own.services.into_iter().map(|service| service.name).collect();
            plan.servers = own.facts;
        }
        if let Some(clock) = args.models.lease_clock {
            plan.servers.lease_clock = clock.into();
        }
        plan.program = program(&args.client, own)?;
        if plan.program.is_some() && scenario.backend.starts_with("buggy:") {
            let problem = "takes the place of the client in which the bug is planted";
            return Err(usage("client", format!("the program {problem}; use `--backend {}`", plan.backend)));
        }
        plan.tokens = tokens(args.tokens.as_deref(), plan)?;
        plan.fence = args.fence;
        // The tokens of a parent and of its children are not ordered.
        let compared = if args.hierarchy > 0.0 { Tokens::None } else { plan.tokens };
        plan.arms = arms(args.arms.as_deref(), compared, plan.fence)?;
        plan.time = args.time.unwrap_or(Duration::from_secs(if is_placed { 12 } else { 30 }));
        plan.lease = args.lease;
        plan.workload = workload(args);
        plan.activity = activity(&plan.servers, is_placed);
        plan.nemesis = args.nemesis.split(',').map(|w| w.trim().to_owned()).filter(|w| w != "none").collect();
        plan.models = models(args);
        plan.validate().map_err(|e| usage(e.field, e.problem))?;
        if let Some((flag, why)) = without_effect(args, plan) {
            return Err(usage(flag, format!("has no effect: {why}; leave the flag out")));
        }
        is_capable(plan, &scenario.backend)?;
        is_modelled(plan)?;
        is_built(plan, &scenario.backend)?;
        let mut given = scenario.faults.iter().filter_map(|fault| fault.lasting);
        if let Some(lasting) = given.find(|lasting| *lasting > plan.time) {
            return Err(longer_than_its_run("fault", lasting, plan.time));
        }
        Ok(scenario)
    }

    /// Replaces the servers by those of `--servers`.
    ///
    /// # Errors
    /// The flag cannot be parsed, or the scenario needs what only servers of the run can do.
    fn use_own_servers(&mut self, servers: &str, args: &RunArgs) -> anyhow::Result<()> {
        let (servers, _) = own_servers::of_flag(servers, &self.backend, &self.base)?;
        own_servers::use_in(&mut self.base, servers);
        if args.scenario.persistence.is_some() {
            return Err(usage("persistence", "only servers that the run starts have a persistence to choose"));
        }
        let refused = |fault: &FaultSpec| {
            let word = fault.lock_node(&self.base.lock_nodes)?;
            Some(usage("nemesis", format!("{}: `{word}`: {}", fault.kind, history::no_access(word))))
        };
        match self.faults.iter().find_map(refused) {
            Some(refused) => Err(refused),
            None => self.base.validate().map_err(|e| usage(e.field, e.problem)),
        }
    }

    /// Makes the plan of a seed: draws the faults, and checks that the plan can be run.
    ///
    /// # Errors
    /// The plan cannot be run, for example because a target does not exist.
    pub fn plan(&self, seed: u64) -> anyhow::Result<Plan> {
        let mut plan = Plan { seed, ..self.base.clone() };
        let workers: Vec<NodeName> = plan.workers().collect();
        let (time, lease, lock_nodes, resource) = (plan.time, plan.lease, &self.base.lock_nodes, plan.resource);
        let of = Draw { specs: &self.faults, time, lease, workers: &workers, lock_nodes, resource };
        let drawn = nemesis::draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).map_err(|e| Unusable(e.to_string()))?;
        let placed = plan.schedule.len() as u32;
        plan.schedule.extend(drawn.into_iter().map(|step| numbered_after(placed, step)));
        if plan.nemesis.is_empty() {
            plan.nemesis = plan.kinds().iter().map(|kind| kind.name().to_owned()).collect();
        }
        plan.validate().and_then(|()| plan.check_points()).map_err(|e| usage(e.field, e.problem))?;
        Ok(plan)
    }

    /// Refuses a plan of this scenario that has no fault although the flags name some. Its run would be a control run.
    ///
    /// # Errors
    /// The fault phase is too short for the faults that the seed has drawn.
    pub fn has_its_faults(&self, plan: &Plan) -> anyhow::Result<()> {
        if self.faults.is_empty() || !plan.schedule.is_empty() {
            return Ok(());
        }
        let problem = format!("with seed {} no fault fits into the fault phase of {:?}", plan.seed, plan.time);
        let remedy = "make --time longer, or give the faults a shorter length, as in `pause:rolling+500ms`";
        Err(usage("nemesis", format!("{problem}; {remedy}")))
    }

    /// Makes the plan file for one of the scenario's plans.
    pub fn file(&self, run: String, plan: Plan) -> PlanFile {
        PlanFile::new(run, self.backend.clone(), self.resource_bug.clone(), plan)
    }
}

fn numbered_after(placed: u32, mut step: Step) -> Step {
    step.id = FaultId(placed + step.id.0);
    if let When::Healed(before) = &mut step.when {
        *before = FaultId(placed + before.0);
    }
    step
}

/// The cluster of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    pub cluster: ClusterKind,
    /// The reason why the simulation replaces a Docker engine that nobody excluded.
    pub simulated: Option<String>,
}

/// Chooses the cluster of a run. `no_engine` is called only if the flags leave the choice open. It returns the reason
/// why no engine answers, or `None` if one answers.
pub fn cluster(args: &RunArgs, no_engine: impl FnOnce() -> anyhow::Result<Option<String>>) -> anyhow::Result<Chosen> {
    let known = |cluster| Ok(Chosen { cluster, simulated: None });
    let asked = match (args.cluster, &args.plan) {
        // A model must not take the place of servers that the user names, and has no images.
        (None | Some(ClusterArg::Auto), _) if args.servers.is_some() || args.images_only => ClusterArg::Docker,
        (Some(asked), _) => asked,
        (None, Some(path)) => return known(PlanFile::read(path)?.plan.cluster),
        // A broken engine must never look like an expected verdict.
        (None, None) if args.expect.is_some() => ClusterArg::Docker,
        (None, None) => ClusterArg::Auto,
    };
    match asked {
        ClusterArg::Docker => known(ClusterKind::Docker),
        ClusterArg::Sim => known(ClusterKind::Sim),
        ClusterArg::Auto => {
            let simulated = no_engine()?;
            let cluster = if simulated.is_some() { ClusterKind::Sim } else { ClusterKind::Docker };
            Ok(Chosen { cluster, simulated })
        }
    }
}

/// Makes the plan of `harness run`: from its flags, or from the plan file that the flags name.
pub fn resolve(args: &RunArgs, cluster: ClusterKind) -> anyhow::Result<PlanFile> {
    if let Some(flag) = flag_of_docker(args).filter(|_| cluster == ClusterKind::Sim) {
        return Err(usage(flag, "only Docker has this flag, and this run is simulated; add `--cluster docker`"));
    }
    let mut file = match &args.plan {
        Some(path) => {
            let file = PlanFile::read(path)?;
            fits_its_run(&file.plan)?;
            file
        }
        None => {
            let mut scenario = Scenario::from_flags(&args.scenario, &args.program, cluster, args.compose.as_deref())?;
            if let Some(servers) = &args.servers {
                scenario.use_own_servers(servers, args)?;
            }
            let plan = scenario.plan(seed(args.scenario.seed)?)?;
            scenario.has_its_faults(&plan)?;
            scenario.file(String::new(), plan)
        }
    };
    file.plan.cluster = cluster;
    if let Some(servers) = &args.servers {
        let (servers, access) = own_servers::of_flag(servers, &file.backend, &file.plan)?;
        own_servers::use_in(&mut file.plan, servers);
        file.access = access;
    }
    file.plan.validate().map_err(|e| usage(e.field, e.problem))?;
    own_servers(&mut file, args, args.compose.as_deref())?;
    file.ready()
}

/// The first flag that only Docker has.
fn flag_of_docker(args: &RunArgs) -> Option<&'static str> {
    let all = [
        ("servers", args.servers.is_some()),
        ("compose", args.compose.is_some()),
        ("image", !args.image.is_empty()),
        ("keep", args.keep),
        ("images-only", args.images_only),
    ];
    all.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
}

/// Puts the user's own servers and images into the plan file.
fn own_servers(file: &mut PlanFile, args: &RunArgs, compose: Option<&Path>) -> anyhow::Result<()> {
    if let Some(own) = compose {
        file.plan.servers = ComposeFile::read(own)?.facts;
        file.compose = Some(own.to_owned());
    }
    for (n, (role, image)) in args.image.iter().enumerate() {
        // An image of the flags replaces that of a plan, but no other one of the flags.
        if let Some((_, other)) = args.image[..n].iter().find(|(of, other)| of == role && other != image) {
            return Err(usage("image", format!("`{role}` has two images, {other} and {image}; leave one of them out")));
        }
        file.images.insert(role.clone(), image.clone());
    }
    let ProgramArgs { client_image, client_packages, .. } = &args.program;
    let own =
        client_image.as_ref().map(|_| "client-image").or((!client_packages.is_empty()).then_some("client-packages"));
    if let Some(flag) = own.filter(|_| file.images.contains_key("worker")) {
        return Err(usage(flag, "`--image worker=NAME` names the image of the workers too; leave one of them out"));
    }
    file.images.extend(client_image.iter().map(|image| ("worker".to_owned(), image.clone())));
    // One image for each set of packages, in whatever order they are named.
    file.client_packages.extend(client_packages.iter().collect::<BTreeSet<_>>().into_iter().cloned());
    Ok(())
}

/// Makes the plan of the flags that a row of a suite has. The row says the rest itself, so other flags are refused. A
/// Compose file is relative to `dir`.
pub fn of_row(args: &RunArgs, cluster: ClusterKind, dir: &Path) -> anyhow::Result<PlanFile> {
    let others = [
        ("PLAN", args.plan.is_some(), "use the key `plan` in place of `run`"),
        ("cluster", args.cluster.is_some(), "use the key `clusters`"),
        ("expect", args.expect.is_some(), "use the key `expect`"),
        ("repeat", args.repeat.is_some(), "give `--repeat` to `harness suite`"),
        ("keep", args.keep, "the servers of a suite are always removed"),
        ("servers", args.servers.is_some(), "a suite starts its servers; give the flag to `harness run`"),
        ("images-only", args.images_only, "a suite makes runs; give the flag to `harness run`"),
        ("format", args.format != Format::Text, "give `--format` to `harness suite`"),
        ("runs", args.runs != Path::new("runs"), "give `--runs` to `harness suite`"),
    ];
    if let Some((flag, _, instead)) = others.into_iter().find(|(_, is_given, _)| *is_given) {
        return Err(usage(flag, format!("a row has no such flag: {instead}")));
    }
    if let Some(flag) = flag_of_docker(args).filter(|_| cluster == ClusterKind::Sim) {
        return Err(usage(flag, "only Docker has this flag; add the key `clusters = [\"docker\"]` to the row"));
    }
    let compose = args.compose.as_ref().map(|own| dir.join(own));
    let scenario = Scenario::from_flags(&args.scenario, &args.program, cluster, compose.as_deref())?;
    // The seed of the first run; further runs take the next seeds.
    let plan = scenario.plan(args.scenario.seed.unwrap_or(1))?;
    scenario.has_its_faults(&plan)?;
    let mut file = scenario.file(String::new(), plan);
    own_servers(&mut file, args, compose.as_deref())?;
    Ok(file)
}

/// Refuses a plan that was written by hand, or changed, if a fault of it is longer than the run.
pub fn fits_its_run(plan: &Plan) -> anyhow::Result<()> {
    match plan.too_long() {
        Some(step) if step.fault.may_last() > step.fault.lasting => {
            Err(longer_than_its_run("delay", step.fault.may_last(), plan.time))
        }
        Some(step) => Err(longer_than_its_run("fault", step.fault.lasting, plan.time)),
        None => Ok(()),
    }
}

fn longer_than_its_run(part: &str, lasting: Duration, time: Duration) -> anyhow::Error {
    // A delay is on until a probe and its answer have come.
    let length = if part == "delay" { "with a round trip of" } else { "of" };
    let problem = "is longer than the whole fault phase";
    let remedy = format!("make the {part} shorter, or --time longer");
    usage("nemesis", format!("a {part} {length} {lasting:?} {problem} of {time:?}; {remedy}"))
}

/// Returns the first flag that changes nothing on these servers, and the reason.
fn without_effect(args: &ScenarioArgs, plan: &Plan) -> Option<(&'static str, String)> {
    let (models, backend) = (&args.models, &plan.backend);
    let is_store = plan.servers.topology == Topology::OneStore;
    let of_redis = match plan.servers.topology {
        Topology::Replicated => format!("the servers of `{backend}` read configuration files"),
        _ => format!("the servers of `{backend}` are not Redis"),
    };
    let of_store = format!("the servers of `{backend}` are no store with leases");
    let of_service = format!("`{backend}` does not use etcd's Lock service; use `--backend etcd-server-lock`");
    let checks_tokens = plan.arms.iter().any(|arm| arm.fences());
    let all = [
        ("persistence", args.persistence.is_some() && !plan.servers.has_persistence(), of_redis),
        ("lease-clock", models.lease_clock.is_some() && !is_store, of_store.clone()),
        ("revokes-on-resume", models.revokes_on_resume && !is_store, of_store),
        ("lock-checks-key", models.lock_checks_key && backend != "etcd-server-lock", of_service),
        ("fence", args.fence == Comparison::Strict && !checks_tokens, "no arm compares tokens".to_owned()),
    ];
    all.into_iter().find(|(_, is_given, _)| *is_given).map(|(flag, _, why)| (flag, why))
}

fn seed(given: Option<u64>) -> anyhow::Result<u64> {
    match given {
        Some(seed) => Ok(seed),
        None => Ok(u64::from(OsRng.try_next_u32().context("drawing a seed")?)),
    }
}

fn workload(args: &ScenarioArgs) -> Workload {
    Workload {
        workers: args.workers,
        clients_per_worker: args.clients_per_worker,
        keys: args.keys,
        rate_per_s: args.rate,
        work: args.work,
        retry_delay: args.retry_delay,
        client: match args.client {
            ClientFlag::Kind(kind) => kind,
            ClientFlag::Program(_) => ClientKind::Unchecked,
        },
        renew: args.renew,
        renew_for: args.renew_for,
        writes: args.writes,
        resend: args.resend,
        cancel: args.cancel,
        reenter: args.reenter,
        locks_per_section: args.locks_per_section,
        opposite: args.opposite,
        patience: args.patience,
        session: args.session,
        readers: args.readers,
        hierarchy: args.hierarchy,
        ..Workload::default()
    }
}

/// Returns the least activity that lets a run say anything.
fn activity(servers: &ServerFacts, is_placed: bool) -> Activity {
    // Two clients and one placed fault show their effect in fewer than twenty holds.
    let usual = if is_placed { Activity { holds: 2, clients: 2, refused: 1 } } else { Activity::default() };
    if servers.shows_waiting { usual } else { Activity { refused: 0, ..usual } }
}

/// Returns the switches of the models; none if no flag names one.
fn models(args: &ScenarioArgs) -> Option<Models> {
    let ModelArgs { revokes_on_resume, lock_checks_key, .. } = args.models;
    let is_usual = !revokes_on_resume && !lock_checks_key && args.persistence.is_none();
    let persistence = args.persistence.unwrap_or_default();
    (!is_usual).then_some(Models { revokes_on_resume, lock_checks_key, persistence })
}

/// Returns the first given flag that only models have.
fn model_flag(args: &ModelArgs) -> Option<&'static str> {
    let given = [
        ("lease-clock", args.lease_clock.is_some()),
        ("revokes-on-resume", args.revokes_on_resume),
        ("lock-checks-key", args.lock_checks_key),
    ];
    given.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
}

/// Returns the token source that `--tokens` names, or the backend's default.
fn tokens(name: Option<&str>, plan: &Plan) -> anyhow::Result<Tokens> {
    let possible = plan.possible_tokens();
    let Some(name) = name else { return Ok(possible[0]) };
    possible.iter().copied().find(|tokens| tokens.to_string() == name).ok_or_else(|| {
        let known: Vec<_> = possible.iter().map(Tokens::to_string).collect();
        usage("tokens", format!("{} does not make `{name}`; it makes: {}", plan.lock_name(), known.join(", ")))
    })
}

/// Returns the arms off, writes and reads, as far as tokens and comparison allow.
fn usual_arms(tokens: Tokens, fence: Comparison) -> Vec<Arm> {
    let is_possible = |arm: &Arm| match arm {
        Arm::Off => true,
        Arm::Writes => tokens != Tokens::None,
        Arm::Reads => tokens != Tokens::None && fence != Comparison::Strict,
        Arm::Cas | Arm::Claim | Arm::Deadline | Arm::Guard => false,
    };
    Arm::ALL.into_iter().filter(is_possible).collect()
}

/// Returns the arms that `--arms` names, in the order of every table.
fn arms(names: Option<&[String]>, tokens: Tokens, fence: Comparison) -> anyhow::Result<Vec<Arm>> {
    let Some(names) = names else { return Ok(usual_arms(tokens, fence)) };
    let named = |name: &String| {
        let found = Arm::ALL.into_iter().find(|arm| arm.name() == name.trim());
        let known = || Arm::ALL.map(Arm::name).join(", ");
        found.ok_or_else(|| usage("arms", format!("`{name}` is no arm; expected some of: {}", known())))
    };
    let mut arms = names.iter().map(named).collect::<anyhow::Result<Vec<Arm>>>()?;
    arms.sort();
    arms.dedup();
    Ok(arms)
}

/// Returns the store, or the planted bug of the service, that `--resource` names.
fn resource(text: Option<&str>) -> anyhow::Result<(ResourceKind, Option<String>)> {
    let Some(text) = text else { return Ok((ResourceKind::Service, None)) };
    if let Some(bug) = text.strip_prefix("buggy:") {
        resource::PlantedBug::from_name(bug, 0).map_err(|e| usage("resource", e))?;
        return Ok((ResourceKind::Service, Some(bug.to_owned())));
    }
    let found = ResourceKind::ALL.into_iter().find(|kind| kind.name() == text);
    let known = || ResourceKind::ALL.map(ResourceKind::name).join(", ");
    let kind =
        found.ok_or_else(|| usage("resource", format!("`{text}` is no resource; expected one of: {}", known())))?;
    Ok((kind, None))
}

#[cfg(test)]
mod tests;
