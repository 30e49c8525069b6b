//! From what the user wrote to a plan: every default filled in, everything drawn.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use compose::ComposeFile;
use history::{
    Activity, Arm, ClientKind, ClusterKind, Comparison, LeaseClock, Models, NodeName, Persistence, Plan, Tokens,
    Workload,
};
use nemesis::{Draw, Wish};
use rand::{SeedableRng, TryRngCore, rand_core::OsRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use workloads::backend::{self, Backend};

use crate::{
    cli::{ClientArg, ClientArgs, ClusterArg, FenceArg, LeaseClockArg, ModelArgs, PersistenceArg, RunArgs},
    exit::Unusable,
};

/// `plan.toml`: the plan, and what only Docker has to know. Planted bugs stand here and nowhere else: the history names the correct
/// backend and resource, so that no checker can read the answer from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// Id of the run; a plan that is run again gets a new one.
    pub run: String,
    /// The backend as the user named it: `redlock`, `buggy:forgets-nx`.
    pub backend: String,
    /// A planted bug of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_bug: Option<String>,
    /// A Compose file of the user's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compose: Option<PathBuf>,
    /// Images by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// The plan.
    pub plan: Plan,
}

impl PlanFile {
    /// Reads a plan that was saved.
    pub fn read(path: &Path) -> anyhow::Result<PlanFile> {
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| Unusable(format!("plan {origin}: {e}")))?;
        PlanFile::parse(&text, &origin, None)
    }

    /// Reads a plan from text that comes from `origin`, for the cluster that it names, or for `cluster`.
    pub fn parse(text: &str, origin: &str, cluster: Option<ClusterKind>) -> anyhow::Result<PlanFile> {
        let wrong = |problem: String| Unusable(format!("plan {origin}: {problem}"));
        let mut file: PlanFile = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        let (backend, _) = backend::named(&file.backend).map_err(|e| wrong(format!("backend: {e}")))?;
        if !backend.tokens.contains(&file.plan.tokens) {
            return Err(wrong(format!("{} does not make tokens `{}`", backend.name, file.plan.tokens)).into());
        }
        file.plan.cluster = cluster.unwrap_or(file.plan.cluster);
        file.plan.validate().map_err(|e| wrong(e.to_string()))?;
        Ok(file)
    }

    /// As TOML.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        toml::to_string(self).context("writing the plan as TOML")
    }

    /// The servers: the user's own Compose file, or the backend's.
    pub fn servers(&self) -> anyhow::Result<ComposeFile> {
        let mut servers = servers(self.compose.as_deref(), &self.backend)?;
        persist(&mut servers, self.plan.models.unwrap_or_default().persistence)?;
        Ok(servers)
    }
}

pub fn usage(flag: &str, problem: impl std::fmt::Display) -> anyhow::Error {
    Unusable(format!("--{flag}: {problem}")).into()
}

fn servers(own: Option<&Path>, backend: &str) -> anyhow::Result<ComposeFile> {
    match own {
        Some(path) => Ok(ComposeFile::read(path)?),
        None => {
            let (backend, _) = backend::named(backend).map_err(|e| usage("backend", e))?;
            Ok(ComposeFile::builtin(backend.name)?)
        }
    }
}

/// Redis with the persistence that the plan asks for, as arguments of its server.
fn persist(servers: &mut ComposeFile, asked: Persistence) -> anyhow::Result<()> {
    let (word, value, more) = match asked {
        Persistence::No => return Ok(()),
        Persistence::Snapshot => ("--save", format!("{} 1", Persistence::SNAPSHOT_EVERY.as_secs()), None),
        Persistence::Everysec => ("--appendonly", "yes".to_owned(), Some("everysec")),
        Persistence::Always => ("--appendonly", "yes".to_owned(), Some("always")),
    };
    for service in &mut servers.services {
        let at = service.command.iter().position(|w| w == word);
        let Some(former) = at.and_then(|at| service.command.get_mut(at + 1)) else {
            let (origin, name) = (&servers.origin, &service.name);
            let problem = format!("expected a Redis whose command has a word after `{word}`; that of {name} has none");
            return Err(Unusable(format!("{origin}: persistence: {problem}")).into());
        };
        former.clone_from(&value);
        service.command.extend(more.iter().flat_map(|sync| ["--appendfsync".into(), (*sync).to_owned()]));
    }
    Ok(())
}

/// Where a run takes place. `has_engine` is asked only if that decides.
pub fn cluster(args: &RunArgs, has_engine: impl FnOnce() -> bool) -> anyhow::Result<ClusterKind> {
    let asked = match (args.cluster, &args.plan) {
        (Some(ClusterArg::Docker), _) => return Ok(ClusterKind::Docker),
        (Some(ClusterArg::Sim), _) => return Ok(ClusterKind::Sim),
        (Some(ClusterArg::Auto), _) => ClusterArg::Auto,
        (None, Some(path)) => return Ok(PlanFile::read(path)?.plan.cluster),
        // A broken engine must never look like a verdict that was expected.
        (None, None) if args.expect.is_some() => ClusterArg::Docker,
        (None, None) => ClusterArg::Auto,
    };
    Ok(if asked == ClusterArg::Docker || has_engine() { ClusterKind::Docker } else { ClusterKind::Sim })
}

/// Resolves flags, or reads the plan that they name.
pub fn resolve(args: &RunArgs, cluster: ClusterKind) -> anyhow::Result<PlanFile> {
    if cluster == ClusterKind::Sim {
        for (flag, is_given) in
            [("compose", args.compose.is_some()), ("image", !args.image.is_empty()), ("keep", args.keep)]
        {
            if is_given {
                return Err(usage(
                    flag,
                    "only Docker understands it, and this run is simulated; add `--cluster docker`",
                ));
            }
        }
    }
    let mut file = match &args.plan {
        Some(path) => PlanFile::read(path)?,
        None => from_flags(args, cluster)?,
    };
    file.plan.cluster = cluster;
    file.plan.validate().map_err(|e| usage(e.field, e.problem))?;
    if let Some(own) = &args.compose {
        file.compose = Some(own.clone());
    }
    file.images.extend(args.image.iter().cloned());
    named(file)
}

/// A plan that can be run: the lock nodes are those of its servers, and it has a name of its own.
pub fn named(mut file: PlanFile) -> anyhow::Result<PlanFile> {
    if file.plan.cluster == ClusterKind::Sim {
        file.compose = None;
        file.run = run_id(&file);
        return Ok(file);
    }
    let servers = file.servers()?;
    file.plan.lock_nodes = servers.services.iter().map(|s| s.name.clone()).collect();
    let (backend, _) = backend::named(&file.backend).map_err(|e| usage("backend", e))?;
    if backend.name == "redis" && file.plan.lock_nodes.len() != 1 {
        let found = file.plan.lock_nodes.len();
        return Err(Unusable(format!("{}: backend redis needs one service, found {found}", servers.origin)).into());
    }
    let needs_leader = file.plan.schedule.iter().any(|step| step.target == history::Target::Leader);
    if let Some(service) = servers.services.iter().find(|s| needs_leader && s.leader.is_empty()) {
        let (name, origin) = (&service.name, &servers.origin);
        let problem = "has no `leader` in its x-harness, the command that tells whether it leads";
        return Err(usage("nemesis", format!("`leader`: {origin}: service `{name}` {problem}")));
    }
    let roles: Vec<&str> =
        servers.services.iter().map(|s| s.role.as_str()).chain(["worker", "resource", "agent"]).collect();
    if let Some(unknown) = file.images.keys().find(|role| !roles.contains(&role.as_str())) {
        return Err(usage("image", format!("`{unknown}` is no role of this cluster; there are: {}", known(roles))));
    }
    file.run = run_id(&file);
    Ok(file)
}

fn known(mut roles: Vec<&str>) -> String {
    roles.dedup();
    roles.join(", ")
}

pub fn from_flags(args: &RunArgs, cluster: ClusterKind) -> anyhow::Result<PlanFile> {
    if cluster == ClusterKind::Docker
        && let Some(flag) = model_flag(&args.models)
    {
        return Err(usage(flag, "only models have this switch, and this run has real servers; add `--cluster sim`"));
    }
    let (backend, _) = backend::named(&args.backend).map_err(|e| usage("backend", e))?;
    let wishes = nemesis::parse(&args.nemesis).map_err(|e| Unusable(e.to_string()))?;
    let placed = !wishes.is_empty() && wishes.iter().all(Wish::is_placed);
    let tokens = tokens(args.tokens.as_deref(), backend)?;
    let fence = match args.fence {
        FenceArg::Default => Comparison::Default,
        FenceArg::Strict => Comparison::Strict,
    };
    let seed = match args.seed {
        Some(seed) => seed,
        None => u64::from(OsRng.try_next_u32().context("drawing a seed")?),
    };
    let workload = Workload {
        workers: args.workers,
        clients_per_worker: args.clients_per_worker,
        keys: args.keys,
        rate_per_s: args.rate,
        work: args.work,
        retry_delay: args.retry_delay,
        ..Workload::default()
    };
    let mut plan = Plan {
        schema: 1,
        seed,
        cluster,
        backend: backend.name.to_owned(),
        tokens,
        time: args.time.unwrap_or(Duration::from_secs(if placed { 12 } else { 30 })),
        lease: args.lease,
        arms: arms(args.arms.as_deref(), tokens, fence)?,
        fence,
        lock_nodes: match cluster {
            ClusterKind::Docker => {
                let servers = servers(args.compose.as_deref(), &args.backend)?;
                servers.services.iter().map(|s| s.name.clone()).collect()
            }
            ClusterKind::Sim => backend.lock_nodes(),
        },
        workload: with_clients(workload, &args.clients),
        activity: activity(backend, placed),
        nemesis: args.nemesis.split(',').map(|w| w.trim().to_owned()).filter(|w| w != "none").collect(),
        models: models(&args.models),
        waits: Vec::new(),
        schedule: Vec::new(),
    };
    plan.validate().map_err(|e| usage(e.field, e.problem))?;
    let workers: Vec<NodeName> = plan.workers().collect();
    let lock_nodes = plan.lock_nodes.clone();
    let of = Draw { wishes: &wishes, time: plan.time, lease: plan.lease, workers: &workers, lock_nodes: &lock_nodes };
    plan.schedule = nemesis::draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).map_err(|e| Unusable(e.to_string()))?;
    plan.validate().map_err(|e| usage(e.field, e.problem))?;
    let resource_bug = resource_bug(args.resource.as_deref(), seed)?;
    Ok(PlanFile {
        run: String::new(),
        backend: args.backend.clone(),
        resource_bug,
        compose: None,
        images: BTreeMap::new(),
        plan,
    })
}

/// `workload` with what clients do under a hold.
pub fn with_clients(workload: Workload, args: &ClientArgs) -> Workload {
    let client = match args.client {
        ClientArg::Unchecked => ClientKind::Unchecked,
        ClientArg::Checking => ClientKind::Checking,
    };
    let ClientArgs { renew, renew_for, writes, resend, cancel, .. } = *args;
    Workload { client, renew, renew_for, writes, resend, cancel, ..workload }
}

/// What must happen at least.
fn activity(backend: &Backend, placed: bool) -> Activity {
    // Two clients and one placed fault need not make twenty holds to show what they are there to show.
    let usual = if placed { Activity { holds: 2, clients: 2, refused: 1 } } else { Activity::default() };
    if backend.shows_waiting() { usual } else { Activity { refused: 0, ..usual } }
}

/// Switches of the models; none, if no flag names one.
pub fn models(args: &ModelArgs) -> Option<Models> {
    if model_flag(args).is_none() && args.persistence.is_none() {
        return None;
    }
    let lease_clock = match args.lease_clock {
        Some(LeaseClockArg::Both) | None => LeaseClock::Both,
        Some(LeaseClockArg::Monotonic) => LeaseClock::Monotonic,
    };
    let persistence = match args.persistence {
        Some(PersistenceArg::No) | None => Persistence::No,
        Some(PersistenceArg::Snapshot) => Persistence::Snapshot,
        Some(PersistenceArg::Everysec) => Persistence::Everysec,
        Some(PersistenceArg::Always) => Persistence::Always,
    };
    let ModelArgs { revokes_on_resume, lock_checks_key, .. } = *args;
    Some(Models { lease_clock, revokes_on_resume, lock_checks_key, persistence })
}

/// A flag that names a switch which only a model has, if there is one.
fn model_flag(args: &ModelArgs) -> Option<&'static str> {
    let given = [
        ("lease-clock", args.lease_clock.is_some()),
        ("revokes-on-resume", args.revokes_on_resume),
        ("lock-checks-key", args.lock_checks_key),
    ];
    given.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
}

/// What `--tokens` names, of those that the backend makes.
pub fn tokens(asked: Option<&str>, backend: &Backend) -> anyhow::Result<Tokens> {
    let Some(text) = asked else { return Ok(backend.tokens[0]) };
    backend.tokens.iter().copied().find(|t| t.to_string() == text).ok_or_else(|| {
        let known: Vec<_> = backend.tokens.iter().map(Tokens::to_string).collect();
        usage("tokens", format!("`{text}` is not made by {}; it makes: {}", backend.name, known.join(", ")))
    })
}

/// What `--arms` names; as many of the usual ones as tokens and fence allow, if it is not given.
pub fn arms(asked: Option<&[String]>, tokens: Tokens, fence: Comparison) -> anyhow::Result<Vec<Arm>> {
    let Some(names) = asked else {
        let possible = |arm: &Arm| {
            *arm != Arm::Cas
                && *arm != Arm::Claim
                && !(arm.fences() && tokens == Tokens::None)
                && !(*arm == Arm::Reads && fence == Comparison::Strict)
        };
        return Ok(Arm::ALL.into_iter().filter(possible).collect());
    };
    let mut arms = Vec::new();
    for name in names {
        let arm = Arm::ALL.into_iter().find(|a| a.name() == name.trim()).ok_or_else(|| {
            usage("arms", format!("`{name}` is no arm; there are: {}", Arm::ALL.map(Arm::name).join(", ")))
        })?;
        if !arms.contains(&arm) {
            arms.push(arm);
        }
    }
    arms.sort();
    Ok(arms)
}

/// The planted bug that `--resource` names.
pub fn resource_bug(asked: Option<&str>, seed: u64) -> anyhow::Result<Option<String>> {
    let Some(text) = asked else { return Ok(None) };
    let bug = text.strip_prefix("buggy:").ok_or_else(|| usage("resource", "expected `buggy:NAME`"))?;
    resource::Planted::from_name(bug, seed).map_err(|e| usage("resource", e))?;
    Ok(Some(bug.to_owned()))
}

/// A name for people and for Docker's labels. The random part keeps two runs of one second apart, on one machine or on two.
fn run_id(file: &PlanFile) -> String {
    #[expect(clippy::disallowed_methods, reason = "names a directory, orders nothing")]
    let now = std::time::SystemTime::now();
    let time = humantime::format_rfc3339_seconds(now).to_string().replace([':', '-'], "").to_lowercase();
    let nemesis = file.plan.nemesis.first().map_or("none", |w| w.split([':', '@', '+']).next().unwrap_or("none"));
    let suffix = OsRng.try_next_u32().unwrap_or_else(|_| std::process::id());
    format!("{}-{}-{nemesis}-{suffix:08x}", time.trim_end_matches('z'), file.plan.backend)
}
