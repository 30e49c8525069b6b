//! Removes the leftovers of runs, which are found by label. Objects of a live run are never removed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use bollard::{
    errors::Error as EngineError,
    models::ContainerSummaryStateEnum as State,
    query_parameters::{
        ListContainersOptions, ListNetworksOptions, ListVolumesOptions, RemoveContainerOptions, RemoveVolumeOptions,
    },
};
use futures::{StreamExt, stream};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Engine,
    engine::unix_seconds,
    error::{Error, status},
};

/// Label of every object of a run. Its value is the run's id.
const RUN_LABEL: &str = "harness.run";
/// Label of the objects that `--keep` leaves.
const KEEP_LABEL: &str = "harness.keep";
pub(crate) const NODE_LABEL: &str = "harness.node";
pub(crate) const ROLE_LABEL: &str = "harness.role";
/// Role of the container that runs as long as its run is alive.
pub(crate) const AGENT_ROLE: &str = "agent";
/// Name of the node of that container. No service of a Compose file has this name.
pub(crate) const AGENT_NODE: &str = "agent";

/// Age of a run's newest object up to which the run counts as alive, because the run may be starting.
pub const YOUNG_S: i64 = 10;
/// The same for a run without a container, and for a run whose agent is created and not started. Meanwhile the agent is
/// created, or the harness's binary is uploaded, and no newer object appears. The engine may be busy, or behind a slow
/// link.
pub const STARTING_S: i64 = 60;
/// Number of removals at the same time. Of the containers of one run only one is removed at a time: engine 20.10 can
/// deadlock when several endpoints leave a network together (moby#46661), and for twelve containers this costs 0.1 s.
const AT_ONCE: usize = 16;
/// Time for which one object may refuse its removal, such as a network while another sweep removes its containers. A
/// busy engine was seen to need more than 15 s for a container.
const REMOVE_WITHIN: Duration = Duration::from_secs(60);
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Time for which a network without a container may refuse its removal. Engine 20.10 was seen to lose count of such a
/// network's endpoints when many containers ended at once. Then only a restart of the engine removes the network.
const ENDPOINTS_GONE_WITHIN: Duration = Duration::from_secs(3);
/// Time for which a volume may be in use after the removal of all containers that were listed.
const LATE_CONTAINER: Duration = Duration::from_secs(1);
/// Time between two inspections. [`take_down`] ends when two inspections found nothing.
const SECOND_LOOK: Duration = Duration::from_millis(200);
/// Most inspections of [`take_down`].
const INSPECTIONS_MAX: u32 = 100;

/// The labels of a run's objects, set when the objects are created.
pub(crate) fn labels(run: &str, keep: bool) -> HashMap<String, String> {
    let mut labels = HashMap::from([(RUN_LABEL.to_owned(), run.to_owned())]);
    if keep {
        labels.insert(KEEP_LABEL.to_owned(), "true".to_owned());
    }
    labels
}

/// The objects that a sweep removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of containers.
    pub containers: usize,
    /// Number of networks.
    pub networks: usize,
    /// Number of volumes.
    pub volumes: usize,
    /// The runs that had left the objects.
    pub runs: BTreeSet<String>,
    /// The runs whose objects were left because the run is alive or may be starting.
    pub spared: BTreeSet<String>,
    /// Ids of empty networks that the engine removes only after its restart.
    pub stuck: BTreeSet<String>,
}

impl Swept {
    /// Returns whether the sweep found nothing to remove.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds the objects of another sweep.
    pub fn add(&mut self, other: Swept) {
        self.containers += other.containers;
        self.networks += other.networks;
        self.volumes += other.volumes;
        self.runs.extend(other.runs);
        self.spared.extend(other.spared);
        self.stuck.extend(other.stuck);
    }

    /// Returns a message about the networks that the engine does not remove; none, if there are none.
    pub fn stuck_networks(&self) -> Option<String> {
        let why = "the engine still counts endpoints of these empty networks, and keeps them until it restarts";
        let networks = self.stuck.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        (!networks.is_empty()).then(|| format!("{why}: {networks}"))
    }
}

/// Removes the leftovers of dead runs, except objects that were kept on purpose. Other runs and other sweeps may be
/// active at the same time.
///
/// # Errors
/// The engine does not answer, or does not remove an object.
pub async fn sweep(engine: &Engine) -> Result<Swept, Error> {
    // Before the list: a slow answer must not make a run older than it was when its objects were listed.
    let now_s = engine.now_s().await?;
    let objects = list(engine, None).await?;
    let spared = alive(&objects, now_s);
    let swept = remove(engine, dead(objects, now_s, false)).await?;
    Ok(Swept { spared, ..swept })
}

/// Removes the kept objects of dead runs: of all such runs, or of one.
///
/// # Errors
/// As [`sweep`].
pub async fn clean_kept(engine: &Engine, run: Option<&str>) -> Result<Swept, Error> {
    let now_s = engine.now_s().await?;
    remove(engine, dead(list(engine, run).await?, now_s, true)).await
}

/// Removes every object with the label of `run`, kept or not, in any state. May be called at any time, also after
/// [`crate::up`] was dropped. First waits for the requests of `engine` that create objects, because a drop does not end
/// them. The engine may still finish an earlier request, so this repeats until two inspections in a row have found
/// nothing.
///
/// # Errors
/// The engine does not answer, one object refuses its removal for a minute, or new objects keep appearing.
pub async fn take_down(engine: &Engine, run: &str) -> Result<Swept, Error> {
    take_down_by_looks(engine, run, SECOND_LOOK).await
}

/// As [`take_down`], with another time between two inspections.
async fn take_down_by_looks(engine: &Engine, run: &str, look_after: Duration) -> Result<Swept, Error> {
    engine.created().await;
    let (mut swept, mut empty_looks) = (Swept::default(), 0);
    // The first inspections find all objects. A busy engine may need a minute for a few of them, so the limit is on
    // inspections; each removal has a time limit of its own.
    for _ in 0..INSPECTIONS_MAX {
        let found = remove_run(engine, run, false).await?;
        empty_looks = if found.is_empty() { empty_looks + 1 } else { 0 };
        swept.add(found);
        if empty_looks == 2 {
            return Ok(swept);
        }
        sleep(look_after).await;
    }
    let why = format!("inspection {INSPECTIONS_MAX} still finds objects; they keep appearing");
    Err(Error::Engine { doing: format!("removing what run {run} has made"), why })
}

/// Removes the objects of a run that one inspection finds: all objects, or all that are not kept.
pub(crate) async fn remove_run(engine: &Engine, run: &str, but_kept: bool) -> Result<Swept, Error> {
    let mut objects = list(engine, Some(run)).await?;
    objects.retain(|object| !(but_kept && object.kept));
    remove(engine, objects).await
}

/// Returns whether any object of `run` exists.
pub(crate) async fn exists(engine: &Engine, run: &str) -> Result<bool, Error> {
    Ok(!list(engine, Some(run)).await?.is_empty())
}

/// An object of a run in the engine. The order of the variants is the order of removal: networks and volumes can be
/// removed only after their containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Container,
    Network,
    Volume,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    kind: Kind,
    id: String,
    run: String,
    kept: bool,
    /// Time of creation by the engine's clock.
    created_s: i64,
    agent: Agent,
}

/// The part of an object in the life of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agent {
    /// An agent that runs or is frozen: the run is alive.
    Runs,
    /// An agent that was not started yet.
    IsCreated,
    /// Any other object.
    No,
}

/// Returns the runs that are alive or may be starting.
fn alive(objects: &[Object], now_s: i64) -> BTreeSet<String> {
    let containers = objects.iter().filter(|object| object.kind == Kind::Container);
    let has_container: BTreeSet<&str> = containers.map(|object| object.run.as_str()).collect();
    let is_alive = |object: &&Object| {
        let is_starting = object.agent == Agent::IsCreated || !has_container.contains(object.run.as_str());
        let young_s = if is_starting { STARTING_S } else { YOUNG_S };
        object.agent == Agent::Runs || now_s - object.created_s < young_s
    };
    objects.iter().filter(is_alive).map(|object| object.run.clone()).collect()
}

/// Returns the objects of dead runs: the kept objects, or the others.
fn dead(objects: Vec<Object>, now_s: i64, kept: bool) -> Vec<Object> {
    let alive = alive(&objects, now_s);
    objects.into_iter().filter(|object| !alive.contains(&object.run) && object.kept == kept).collect()
}

/// The label that all objects of a run carry, as a filter.
pub(crate) fn label_of(run: &str) -> String {
    format!("{RUN_LABEL}={run}")
}

/// Returns all objects with the label of `run`, or of any run.
async fn list(engine: &Engine, run: Option<&str>) -> Result<Vec<Object>, Error> {
    let label = run.map_or_else(|| RUN_LABEL.to_owned(), label_of);
    let filters = Some(HashMap::from([("label".to_owned(), vec![label])]));
    let docker = engine.docker();
    let failed = |e: EngineError| Error::engine("listing what runs have made", &e);
    let containers = ListContainersOptions { all: true, filters: filters.clone(), ..Default::default() };
    let networks = ListNetworksOptions { filters: filters.clone() };
    let (containers, networks, volumes) = tokio::try_join!(
        docker.list_containers(Some(containers)),
        docker.list_networks(Some(networks)),
        docker.list_volumes(Some(ListVolumesOptions { filters })),
    )
    .map_err(failed)?;
    let containers = containers.into_iter().map(|container| {
        let labels = container.labels.unwrap_or_default();
        // A Compose file chooses the roles of its servers, but no server has the name of the agent.
        let is_agent = labels.get(NODE_LABEL).is_some_and(|node| node == AGENT_NODE);
        let agent = match container.state {
            Some(State::RUNNING | State::PAUSED) if is_agent => Agent::Runs,
            Some(State::CREATED) if is_agent => Agent::IsCreated,
            _ => Agent::No,
        };
        object(Kind::Container, container.id, &labels, container.created, agent)
    });
    let networks = networks.into_iter().map(|network| {
        let created_s = network.created.as_deref().and_then(unix_seconds);
        object(Kind::Network, network.id, &network.labels.unwrap_or_default(), created_s, Agent::No)
    });
    let volumes = volumes.volumes.unwrap_or_default().into_iter().map(|volume| {
        let created_s = volume.created_at.as_deref().and_then(unix_seconds);
        object(Kind::Volume, Some(volume.name), &volume.labels, created_s, Agent::No)
    });
    Ok(containers.chain(networks).chain(volumes).flatten().collect())
}

/// An object without a known age counts as old. A run that is starting has other objects.
fn object(
    kind: Kind,
    id: Option<String>,
    labels: &HashMap<String, String>,
    created_s: Option<i64>,
    agent: Agent,
) -> Option<Object> {
    let run = labels.get(RUN_LABEL)?.clone();
    Some(Object { kind, id: id?, run, kept: labels.contains_key(KEEP_LABEL), created_s: created_s.unwrap_or(0), agent })
}

/// Removes the objects, one kind after the other. Continues after a failure, and returns the first failure; but of a
/// run one of whose containers could not be removed, the containers after it are left.
async fn remove(engine: &Engine, mut objects: Vec<Object>) -> Result<Swept, Error> {
    let (mut swept, mut failure) = (Swept::default(), None);
    let of_containers = |object: &Object| (object.kind == Kind::Container).then(|| object.run.clone());
    let had_containers: BTreeSet<String> = objects.iter().filter_map(of_containers).collect();
    for kind in [Kind::Container, Kind::Network, Kind::Volume] {
        let (those, others) = objects.into_iter().partition::<Vec<_>, _>(|object| object.kind == kind);
        objects = others;
        let removals = stream::iter(in_turn(kind, those)).map(async |objects| {
            let mut removed = Vec::with_capacity(objects.len());
            for object in objects {
                // Only containers that were removed just now can have endpoints that are still going away.
                let just_now = had_containers.contains(&object.run);
                let patience = if just_now { ENDPOINTS_GONE_WITHIN } else { Duration::ZERO };
                removed.push(remove_one(engine, object, patience).await);
                if removed.last().is_some_and(Result::is_err) {
                    break;
                }
            }
            removed
        });
        let removed: Vec<_> = removals.buffer_unordered(AT_ONCE).collect().await;
        let removed: Vec<_> = removed.into_iter().flatten().collect();
        let count = removed.iter().filter(|result| matches!(result, Ok((Removed::ByUs, _)))).count();
        for (how, object) in removed.iter().flatten() {
            match how {
                Removed::ByUs | Removed::ByOthers | Removed::InUse => drop(swept.runs.insert(object.run.clone())),
                Removed::NotBefore => drop(swept.stuck.insert(object.id.clone())),
            }
        }
        match kind {
            Kind::Container => swept.containers = count,
            Kind::Network => swept.networks = count,
            Kind::Volume => swept.volumes = count,
        }
        failure = failure.or(removed.into_iter().find_map(Result::err));
    }
    failure.map_or(Ok(swept), Err)
}

/// Returns the objects in lists. The objects of a list have to be removed one after the other.
fn in_turn(kind: Kind, mut objects: Vec<Object>) -> Vec<Vec<Object>> {
    // The agent goes last: the sweep of another run does not touch a run whose agent runs.
    objects.sort_by_key(|object| object.agent != Agent::No);
    if kind != Kind::Container {
        return objects.into_iter().map(|object| vec![object]).collect();
    }
    let mut by_run: BTreeMap<String, Vec<Object>> = BTreeMap::new();
    for object in objects {
        by_run.entry(object.run.clone()).or_default().push(object);
    }
    by_run.into_values().collect()
}

/// Removes a container, running or not, with its volumes, because an image may declare volumes without a label.
pub(crate) async fn remove_container(engine: &Engine, id: &str) -> Result<(), bollard::errors::Error> {
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    engine.docker().remove_container(id, Some(options)).await
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    ByUs,
    ByOthers,
    /// The object is an empty network that the engine removes only after its restart.
    NotBefore,
    /// The object is a volume of a container that was not there when the objects were listed: its creation had begun.
    InUse,
}

/// Returns whether a network is known to hold no container.
async fn is_empty(engine: &Engine, network: &str) -> bool {
    let found = engine.docker().inspect_network(network, None).await;
    found.is_ok_and(|network| network.containers.unwrap_or_default().is_empty())
}

/// Removes one object, even if another sweep removes it at the same time.
async fn remove_one(engine: &Engine, object: Object, patience: Duration) -> Result<(Removed, Object), Error> {
    let how = remove_somehow(engine, &object, patience).await?;
    Ok((how, object))
}

async fn remove_somehow(engine: &Engine, object: &Object, patience: Duration) -> Result<Removed, Error> {
    let Object { kind, id, run, .. } = object;
    let doing = || format!("removing the {} {id} of run {run}", format!("{kind:?}").to_lowercase());
    let (mut last, began) = (String::new(), Instant::now());
    let removing = async {
        loop {
            let result = match kind {
                Kind::Container => remove_container(engine, id).await,
                Kind::Network => engine.docker().remove_network(id).await,
                Kind::Volume => engine.docker().remove_volume(id, Some(RemoveVolumeOptions { force: true })).await,
            };
            match result {
                Ok(()) => return Ok(Removed::ByUs),
                Err(error) => match status(&error) {
                    Some(404) => return Ok(Removed::ByOthers),
                    Some(403) if began.elapsed() >= patience && is_empty(engine, id).await => {
                        tracing::debug!(run, id, "the engine has lost count of its endpoints");
                        return Ok(Removed::NotBefore);
                    }
                    Some(409) if *kind == Kind::Volume && began.elapsed() >= LATE_CONTAINER => {
                        return Ok(Removed::InUse);
                    }
                    // The object is in use, or another sweep removes it. No event shows its end, so this tries again.
                    Some(403 | 409 | 500) => last = crate::error::explain(&error),
                    _ => return Err(Error::engine(doing(), &error)),
                },
            }
            sleep(TRY_AGAIN).await;
        }
    };
    match timeout(REMOVE_WITHIN, removing).await {
        Ok(result) => result,
        Err(_) => {
            let within = REMOVE_WITHIN.as_secs();
            let why = if last.is_empty() { format!("nothing within {within} s; it may be busy") } else { last };
            Err(Error::Engine { doing: doing(), why })
        }
    }
}

#[cfg(test)]
mod tests;
