//! `plan.toml`: a plan, and the facts that only Docker and the simulation need to run it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Context;
use compose::{ComposeFile, STORE_ROLE};
use history::{ClusterKind, FaultKind, NodeName, PLAN_BYTES_MAX, Persistence, Plan, PlanError, ServerFacts};
use locks::access::Access;
use rand::{TryRngCore, rand_core::OsRng};
use serde::{Deserialize, Serialize};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};
use workloads::backend::Backend;

use crate::{
    exit::{Unusable, usage},
    own_servers,
    run_dir::RunDir,
};

/// The most characters of the nemesis in the id of a run. An id has at most 64.
const NEMESIS_MAX: usize = 16;
/// The roles of our own processes.
const OWN_ROLES: [&str; 3] = ["worker", "resource", "agent"];

/// A plan as `harness run` reads and writes it. Planted bugs are named here only: the history names the correct backend
/// and resource, so that no checker can read the answer from the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// Id of the run; a plan that is run again gets a new id.
    pub run: String,
    /// The backend as the user named it: `redlock`, `buggy:forgets-nx`.
    pub backend: String,
    /// A planted bug of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_bug: Option<String>,
    /// The user's own Compose file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compose: Option<PathBuf>,
    /// Debian packages of the image of the workers, for a client program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_packages: Vec<String>,
    /// The directory with the files of the client program, if the plan comes from the directory of a run.
    #[serde(skip)]
    pub kept_files: Option<PathBuf>,
    /// The access to servers that exist already. It is never written.
    #[serde(skip)]
    pub access: BTreeMap<NodeName, Access>,
    /// Images by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// The plan.
    pub plan: Plan,
}

impl PlanFile {
    /// Wraps a plan that needs neither images nor a Compose file of the user's own.
    pub fn new(run: String, backend: String, resource_bug: Option<String>, plan: Plan) -> PlanFile {
        let (compose, images, kept_files, access) = (None, BTreeMap::new(), None, BTreeMap::new());
        PlanFile { run, backend, resource_bug, compose, images, client_packages: Vec::new(), kept_files, access, plan }
    }

    /// Reads a saved plan, to run it.
    pub fn read(path: &Path) -> anyhow::Result<PlanFile> {
        PlanFile::recorded(path)?.with_effect(&path.display().to_string())
    }

    /// Reads the plan of a run. An earlier version may have made the run from a plan that is refused now.
    pub fn recorded(path: &Path) -> anyhow::Result<PlanFile> {
        let origin = path.display().to_string();
        if path.is_dir() {
            let plan = RunDir::at(path).plan();
            let problem = format!("expected a file, and this is a directory; the plan of a run is {}", plan.display());
            return Err(Unusable(format!("plan {origin}: {problem}")).into());
        }
        let text = compose::read_text(path, PLAN_BYTES_MAX).map_err(|e| Unusable(format!("plan {origin}: {e}")))?;
        let file = PlanFile::parse_recorded(&text, &origin, None)?;
        let kept_files = Some(RunDir::at(path.parent().unwrap_or(Path::new("."))).client());
        Ok(PlanFile { kept_files, ..file })
    }

    /// Parses a plan that comes from `origin`. The plan is for `cluster`, or for the cluster that it names.
    pub fn parse(text: &str, origin: &str, cluster: Option<ClusterKind>) -> anyhow::Result<PlanFile> {
        PlanFile::parse_recorded(text, origin, cluster)?.with_effect(origin)
    }

    fn parse_recorded(text: &str, origin: &str, cluster: Option<ClusterKind>) -> anyhow::Result<PlanFile> {
        let wrong = |problem: String| Unusable(format!("plan {origin}: {problem}"));
        Plan::check_toml(text).map_err(wrong)?;
        // The parsed text takes many times its size, so a text is parsed once.
        let servers;
        let mut parsed = DeTable::parse(text).map_err(|e| wrong(e.to_string()))?;
        let is_suite = parsed.get_ref().contains_key("row") || parsed.get_ref().contains_key("include");
        if let Some(missing) = missing_servers(parsed.get_ref()).map_err(|e| wrong(format!("{e:#}")))? {
            servers = missing;
            let servers = DeTable::parse(&servers).context("reading the facts about the servers")?;
            add_servers(parsed.get_mut(), servers);
        }
        let mut file = PlanFile::deserialize(toml::Deserializer::from(parsed)).map_err(|mut e| {
            // An error names the line in the file.
            e.set_input(Some(text));
            wrong(if is_suite { format!("this is a suite; `harness suite {origin}` runs it") } else { e.to_string() })
        })?;
        let backend = Backend::named(&file.backend).map_err(|e| wrong(format!("backend: {e}")))?;
        if backend.name() != file.plan.backend {
            let (tested, named) = (backend.name(), &file.plan.backend);
            let problem = format!("`{}` tests {tested}, and plan.backend is `{named}`", file.backend);
            return Err(wrong(format!("backend: {problem}; expected `{tested}` there, without a planted bug")).into());
        }
        backend.check(&file.plan).map_err(|e| wrong(format!("{}: {e}", e.field)))?;
        let count = file.plan.lock_nodes.len();
        if count > 1 && needs_one_server(&backend)? {
            return Err(wrong(format!("lock_nodes: backend {} needs one, found {count}", backend.name())).into());
        }
        if !file.plan.possible_tokens().contains(&file.plan.tokens) {
            return Err(wrong(format!("{} does not make tokens `{}`", file.plan.lock_name(), file.plan.tokens)).into());
        }
        file.plan.cluster = cluster.unwrap_or(file.plan.cluster);
        file.plan.validate().map_err(|e| wrong(e.to_string()))?;
        Ok(file)
    }

    /// Refuses a plan that comes from `origin` and has a part without effect. The record of its run can still be
    /// judged.
    fn with_effect(self, origin: &str) -> anyhow::Result<PlanFile> {
        let wrong = |problem: String| Unusable(format!("plan {origin}: {problem}"));
        let workload = &self.plan.workload;
        if workload.renew_for.is_some() && workload.renew.is_none() {
            let problem = "clients without `renew` never renew, so the servers grant no such lease";
            return Err(wrong(format!("renew_for: {problem}; add `renew`, or leave `renew_for` out")).into());
        }
        if let Some(bug) = &self.resource_bug {
            resource::PlantedBug::from_name(bug, 0).map_err(|e| wrong(format!("resource_bug: {e}")))?;
            if !self.plan.resource.is_service() {
                let problem =
                    format!("`{}` decides in place of the service that has the bug", self.plan.resource.name());
                return Err(wrong(format!("resource_bug: {problem}; leave it out, or change plan.resource")).into());
            }
        }
        self.plan.check_points().map_err(|e| wrong(e.to_string()))?;
        Ok(self)
    }

    /// Writes the plan as TOML.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        toml::to_string(self).context("writing the plan as TOML")
    }

    /// Returns the plan with the lock as the user named it, and with a planted bug of the resource. The plan itself
    /// names the correct ones.
    pub fn named_plan(&self) -> Plan {
        let bug = self.resource_bug.as_ref().map(|bug| format!(", resource buggy:{bug}")).unwrap_or_default();
        Plan { backend: format!("{}{bug}", self.backend), ..self.plan.clone() }
    }

    /// Returns the servers of the run, with the persistence that the plan asks for.
    pub fn servers(&self) -> anyhow::Result<ComposeFile> {
        let mut servers = servers(self.compose.as_deref(), &self.backend)?;
        if self.plan.has_own_servers() {
            servers.services.clear();
            return Ok(servers);
        }
        persist(&mut servers, self.plan.models.unwrap_or_default().persistence)?;
        if self.plan.cluster == ClusterKind::Docker && self.loses_power() {
            have_data(&servers)?;
        }
        Ok(servers)
    }

    /// Returns the text before each key of the run; empty, if the run starts its servers.
    pub fn namespace(&self) -> String {
        own_servers::namespace(&self.run, &self.plan)
    }

    /// Returns true if a client or the resource has a planted bug.
    pub fn plants_a_bug(&self) -> bool {
        self.resource_bug.is_some() || self.backend.starts_with("buggy:")
    }

    /// Returns true if a server of the run loses power.
    pub fn loses_power(&self) -> bool {
        self.plan.schedule.iter().any(|step| step.fault.kind() == FaultKind::Powerloss)
    }

    /// Returns the simulation of the plan, without redraws and without the truth.
    pub fn setup(&self) -> sim::Setup<'_> {
        sim::Setup {
            run: &self.run,
            plan: &self.plan,
            backend: &self.backend,
            resource_bug: self.resource_bug.as_deref(),
            redraw: None,
            with_truth: false,
        }
    }

    /// Completes a plan before its run: the plan gets its own id, and on Docker the lock nodes of its servers.
    pub fn ready(mut self) -> anyhow::Result<PlanFile> {
        is_capable(&self.plan, &self.backend)?;
        match self.plan.cluster {
            ClusterKind::Sim => {
                is_modelled(&self.plan)?;
                self.compose = None;
            }
            ClusterKind::Docker => {
                is_built(&self.plan, &self.backend)?;
                self.fit_servers()?;
            }
        }
        self.run = self.new_id();
        self.can_be_read_again()?;
        Ok(self)
    }

    /// Refuses a plan whose run could not be judged, or not be run again: its file, or the first line of its history,
    /// would be longer than the readers accept.
    fn can_be_read_again(&self) -> anyhow::Result<()> {
        let refused = |e: PlanError| usage(e.field, e.problem);
        self.plan.check_line().map_err(refused)?;
        let text = self.to_toml()?;
        let is_readable = text.len() as u64 <= PLAN_BYTES_MAX && Plan::check_toml(&text).is_ok();
        if is_readable { Ok(()) } else { Err(refused(self.plan.too_large())) }
    }

    fn fit_own_servers(&mut self) -> anyhow::Result<()> {
        if let Some(role) = self.images.keys().find(|role| !OWN_ROLES.contains(&role.as_str())) {
            let problem = format!("the run starts no `{role}`; expected one of: {}", OWN_ROLES.join(", "));
            return Err(usage("image", problem));
        }
        if self.access.is_empty() {
            self.access = own_servers::find_access(&self.backend, &self.plan)?;
        }
        Ok(())
    }

    fn fit_servers(&mut self) -> anyhow::Result<()> {
        let origin = self.compose.as_ref().map_or_else(|| "plan.servers".into(), |own| own.display().to_string());
        fit_client(&self.plan, &self.backend).map_err(|problem| Unusable(format!("{origin}: {problem}")))?;
        if self.plan.has_own_servers() {
            return self.fit_own_servers();
        }
        let servers = self.servers()?;
        self.plan.lock_nodes = servers.services.iter().map(|s| s.name.clone()).collect();
        let backend = Backend::named(&self.backend).map_err(|e| usage("backend", e))?;
        let found = servers.services.len();
        if found != 1 && needs_one_server(&backend)? {
            let problem = format!("{}: backend {} needs one service, found {found}", servers.origin, backend.name());
            return Err(Unusable(problem).into());
        }
        // A plan that is run again keeps its tokens, and `--compose` may name servers that make others.
        if !self.plan.possible_tokens().contains(&self.plan.tokens) {
            let (tokens, lock) = (self.plan.tokens, self.plan.lock_name());
            let problem = format!("on these servers {lock} does not make the plan's `{tokens}`");
            return Err(usage("tokens", format!("{}: {problem}", servers.origin)));
        }
        let needs_leader = self.plan.schedule.iter().any(|step| step.target == history::Target::Leader);
        if needs_leader && !servers.facts.has_leader {
            let problem = "x-harness has no `leader`, the command that succeeds on the leader";
            return Err(usage("nemesis", format!("`leader`: {}: {problem}", servers.origin)));
        }
        let of_servers = servers.services.iter().map(|s| s.role.as_str());
        let of_store = self.plan.resource.has_own_server().then_some(STORE_ROLE);
        let mut roles: Vec<&str> = of_servers.chain(OWN_ROLES).chain(of_store).collect();
        if let Some(unknown) = self.images.keys().find(|role| !roles.contains(&role.as_str())) {
            roles.dedup();
            let roles = roles.join(", ");
            return Err(usage("image", format!("`{unknown}` is no role of this cluster; expected one of: {roles}")));
        }
        // The faults of the plan may name other lock nodes than the servers have.
        self.plan.validate().map_err(|e| usage(e.field, e.problem))
    }

    /// Makes an id for people and for Docker's labels. The random part separates two runs of the same second.
    fn new_id(&self) -> String {
        #[expect(clippy::disallowed_methods, reason = "names a directory, orders nothing")]
        let now = std::time::SystemTime::now();
        let time = humantime::format_rfc3339_seconds(now).to_string().replace([':', '-'], "").to_lowercase();
        // A plan may have any text here.
        let nemesis = self.plan.nemesis.first().map_or("none", |w| w.split([':', '@', '+']).next().unwrap_or("none"));
        let is_plain = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-';
        let nemesis: String = nemesis.to_lowercase().chars().filter(is_plain).take(NEMESIS_MAX).collect();
        let suffix = OsRng.try_next_u32().unwrap_or_else(|_| std::process::id());
        format!("{}-{}-{nemesis}-{suffix:08x}", time.trim_end_matches('z'), self.plan.backend)
    }
}

/// Returns whether the text is TOML with this key on its first level.
pub fn has_key(text: &str, key: &str) -> bool {
    toml::from_str::<toml::Table>(text).is_ok_and(|table| table.contains_key(key))
}

/// Returns the table `plan.servers` for a plan that was written without it, from the Compose file of the plan's
/// backend.
fn missing_servers(file: &DeTable<'_>) -> anyhow::Result<Option<String>> {
    let text = |key: &str| file.get(key).map(|value| value.get_ref().as_str());
    let plan = file.get("plan").and_then(|plan| plan.get_ref().as_table());
    // The reader of the whole file reports what is wrong with it.
    let (Some(Some(backend)), Some(plan)) = (text("backend"), plan) else { return Ok(None) };
    let compose = match text("compose") {
        Some(Some(path)) => Some(Path::new(path)),
        Some(None) => return Ok(None),
        None => None,
    };
    if plan.contains_key("servers") {
        return Ok(None);
    }
    Ok(Some(toml::to_string(&servers(compose, backend)?.facts)?))
}

/// Adds the table `plan.servers` to a parsed plan file.
fn add_servers<'t>(file: &mut DeTable<'t>, servers: Spanned<DeTable<'t>>) {
    if let Some(DeValue::Table(plan)) = file.get_mut("plan").map(Spanned::get_mut) {
        let table = Spanned::new(servers.span(), DeValue::Table(servers.into_inner()));
        plan.insert(Spanned::new(0..0, "servers".into()), table);
    }
}

/// Refuses a simulated plan whose servers have no model.
pub fn is_modelled(plan: &Plan) -> anyhow::Result<()> {
    if plan.cluster == ClusterKind::Sim && plan.servers.model().is_none() {
        let problem = "the simulation has no model of the servers of";
        return Err(usage(
            "backend",
            format!("{problem} `{}`; only `harness run --cluster docker` has them", plan.backend),
        ));
    }
    Ok(())
}

/// Refuses a plan that needs a capability which its lock lacks, or with whose tokens its planted bug changes nothing.
pub fn is_capable(plan: &Plan, backend: &str) -> anyhow::Result<()> {
    let backend = Backend::named(backend).map_err(|e| usage("backend", e))?;
    backend.check_tokens(plan.tokens).map_err(|e| usage("tokens", e))?;
    backend.check(plan).map_err(|e| usage(e.field, e.to_string()))
}

/// Refuses a plan for real servers to which the client of its backend cannot connect in this build.
pub fn is_built(plan: &Plan, backend: &str) -> anyhow::Result<()> {
    let missing = Backend::named(backend).map_err(|e| usage("backend", e))?.missing_feature();
    match missing.filter(|_| plan.cluster == ClusterKind::Docker && plan.program.is_none()) {
        Some(feature) => Err(usage("backend", not_in_this_build(backend, feature))),
        None => Ok(()),
    }
}

fn not_in_this_build(backend: &str, feature: &str) -> String {
    format!(
        "the client of `{backend}` is not in this build; build the harness with `cargo build --features {feature}`, or \
         test a program of your own on these servers with `--client`"
    )
}

/// Reads the servers of a backend, or those of the user's own Compose file.
pub fn servers(own: Option<&Path>, backend: &str) -> anyhow::Result<ComposeFile> {
    match own {
        Some(path) => Ok(ComposeFile::read(path)?),
        None => {
            let backend = Backend::named(backend).map_err(|e| usage("backend", e))?;
            Ok(ComposeFile::builtin(backend.name())?)
        }
    }
}

/// Refuses facts about servers that contradict the algorithm of their client: the checker would judge another lock. A
/// client program may have any algorithm.
fn fit_client(plan: &Plan, backend: &str) -> Result<(), String> {
    if plan.program.is_some() {
        return Ok(());
    }
    let own = servers(None, backend).map_err(|e| e.to_string())?.facts;
    let text = |facts: &ServerFacts| serde_json::to_value(facts).map_err(|e| e.to_string());
    let (own, found) = (text(&own)?, text(&plan.servers)?);
    let differs = |fact: &&str| match *fact {
        // The servers may end leases by any clock of their own.
        "lease_clock" => (own[*fact] == "waiter") != (found[*fact] == "waiter"),
        _ => own[*fact] != found[*fact],
    };
    match ["topology", "promise", "lease_clock", "shows_waiting"].into_iter().find(|fact| differs(fact)) {
        Some(fact) => {
            let (expected, found) = (&own[fact], &found[fact]);
            Err(format!("`{fact}` is {found}, and the client of `{}` needs {expected}", plan.backend))
        }
        None => Ok(()),
    }
}

/// Returns whether the client of a backend takes one server and no more.
fn needs_one_server(backend: &Backend) -> anyhow::Result<bool> {
    Ok(ComposeFile::builtin(backend.name())?.services.len() == 1)
}

/// Refuses servers whose data directory is unknown.
fn have_data(servers: &ComposeFile) -> anyhow::Result<()> {
    let Some(service) = servers.services.iter().find(|service| service.data.is_none()) else { return Ok(()) };
    let (origin, name) = (&servers.origin, &service.name);
    let problem = format!("expected `data` in the x-harness of {name}: the directory of the server's data");
    Err(Unusable(format!("{origin}: powerloss: {problem}")).into())
}

/// Sets the persistence of Redis, as arguments of its server.
fn persist(servers: &mut ComposeFile, persistence: Persistence) -> anyhow::Result<()> {
    let (word, value, more) = match persistence {
        Persistence::No => return Ok(()),
        Persistence::Snapshot => ("--save", format!("{} 1", Persistence::SNAPSHOT_EVERY.as_secs()), None),
        Persistence::Everysec => ("--appendonly", "yes".to_owned(), Some("everysec")),
        Persistence::Always => ("--appendonly", "yes".to_owned(), Some("always")),
    };
    for service in &mut servers.services {
        let at = service.command.iter().position(|w| w == word);
        let Some(argument) = at.and_then(|at| service.command.get_mut(at + 1)) else {
            let (origin, name) = (&servers.origin, &service.name);
            let problem = format!("expected a Redis whose command has a value after `{word}`; that of {name} has none");
            return Err(Unusable(format!("{origin}: persistence: {problem}")).into());
        };
        argument.clone_from(&value);
        service.command.extend(more.iter().flat_map(|sync| ["--appendfsync".into(), (*sync).to_owned()]));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
