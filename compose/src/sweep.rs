//! Removing what runs have left, found by label; never anything of a run that is alive.

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

/// Label of everything that belongs to a run; its value is the run's id.
const RUN_LABEL: &str = "harness.run";
/// Label of what `--keep` leaves.
const KEEP_LABEL: &str = "harness.keep";
pub(crate) const NODE_LABEL: &str = "harness.node";
pub(crate) const ROLE_LABEL: &str = "harness.role";
/// Role of the container whose running means that its run is alive.
pub(crate) const AGENT_ROLE: &str = "agent";

/// A run is alive while its newest object is younger than this, whatever its agent does: it may be coming up.
const YOUNG_S: i64 = 10;
/// How many removals are under way at once.
const AT_ONCE: usize = 16;
/// How long one object may refuse to be removed (a network, while another sweep removes its containers).
const REMOVE_WITHIN: Duration = Duration::from_secs(15);
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long a network without a container may refuse to be removed: the engine has lost count of its endpoints then (20.10 was seen to, where many
/// containers ended at once on a busy machine), and only its own restart removes the network.
const ENDPOINTS_GONE_WITHIN: Duration = Duration::from_secs(3);
/// [`take_down`] believes that nothing is left when two looks this far apart found nothing.
const SECOND_LOOK: Duration = Duration::from_millis(200);
const TAKE_DOWN_WITHIN: Duration = Duration::from_secs(60);

/// The labels that a run's objects carry from the moment they are created.
pub(crate) fn labels(run: &str, keep: bool) -> HashMap<String, String> {
    let mut labels = HashMap::from([(RUN_LABEL.to_owned(), run.to_owned())]);
    if keep {
        labels.insert(KEEP_LABEL.to_owned(), "true".to_owned());
    }
    labels
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many containers.
    pub containers: usize,
    /// How many networks.
    pub networks: usize,
    /// How many volumes.
    pub volumes: usize,
    /// The runs that had left them.
    pub runs: BTreeSet<String>,
    /// Names of networks that hold nothing, and that the engine does not remove before it is started again.
    pub stuck: Vec<String>,
}

impl Swept {
    /// Whether there was nothing to remove, or nothing that can be.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Removes what runs that are not alive have left, except what was kept on purpose. Safe while other runs, or
/// other sweeps, are under way.
///
/// # Errors
/// If the engine does not answer, or does not remove something.
pub async fn sweep(engine: &Engine) -> Result<Swept, Error> {
    let objects = list(engine, None).await?;
    if objects.is_empty() {
        return Ok(Swept::default());
    }
    remove(engine, dead(objects, engine.now_s().await?, false)).await
}

/// Removes what runs that are not alive were told to keep: all of them, or one.
///
/// # Errors
/// As [`sweep`].
pub async fn clean_kept(engine: &Engine, run: Option<&str>) -> Result<Swept, Error> {
    let objects = list(engine, run).await?;
    remove(engine, dead(objects, engine.now_s().await?, true)).await
}

/// Removes everything that carries the label of `run`, kept or not, in whatever state it is. May be called at any
/// time, also while [`crate::up`] was dropped in the middle: a request that was under way then may still make
/// something, so it looks until two looks in a row have found nothing.
///
/// # Errors
/// If the engine does not answer, or something is still there after a minute.
pub async fn take_down(engine: &Engine, run: &str) -> Result<(), Error> {
    let removing = async {
        let mut empty_looks = 0;
        while empty_looks < 2 {
            if remove_run(engine, run, false).await?.is_empty() {
                empty_looks += 1;
            } else {
                empty_looks = 0;
            }
            if empty_looks == 1 {
                sleep(SECOND_LOOK).await;
            }
        }
        Ok(())
    };
    timeout(TAKE_DOWN_WITHIN, removing).await.unwrap_or_else(|_| {
        Err(Error::Engine {
            doing: format!("removing what run {run} has made"),
            why: format!("it keeps appearing for {} s", TAKE_DOWN_WITHIN.as_secs()),
        })
    })
}

/// Removes what a run has made, all of it or all but what is kept, as far as one look sees it.
pub(crate) async fn remove_run(engine: &Engine, run: &str, but_kept: bool) -> Result<Swept, Error> {
    let mut objects = list(engine, Some(run)).await?;
    objects.retain(|object| !(but_kept && object.kept));
    remove(engine, objects).await
}

/// Whether anything of `run` exists.
pub(crate) async fn exists(engine: &Engine, run: &str) -> Result<bool, Error> {
    Ok(!list(engine, Some(run)).await?.is_empty())
}

/// Something in the engine that belongs to a run. The order is the order of removal: a network and a volume cannot
/// go before the containers that use them.
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
    /// By the engine's clock.
    created_s: i64,
    /// Whether it is an agent that runs, or is frozen.
    anchor: bool,
}

/// The objects of runs that are not alive, those that were kept or the others.
fn dead(objects: Vec<Object>, now_s: i64, kept: bool) -> Vec<Object> {
    let mut alive = BTreeMap::<String, bool>::new();
    for object in &objects {
        let young = now_s - object.created_s < YOUNG_S;
        *alive.entry(object.run.clone()).or_default() |= object.anchor || young;
    }
    objects.into_iter().filter(|object| !alive[&object.run] && object.kept == kept).collect()
}

/// Everything that carries the label of `run`, or of any run.
async fn list(engine: &Engine, run: Option<&str>) -> Result<Vec<Object>, Error> {
    let label = run.map_or_else(|| RUN_LABEL.to_owned(), |run| format!("{RUN_LABEL}={run}"));
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
        let runs = matches!(container.state, Some(State::RUNNING | State::PAUSED));
        let anchor = runs && labels.get(ROLE_LABEL).is_some_and(|role| role == AGENT_ROLE);
        object(Kind::Container, container.id, &labels, container.created, anchor)
    });
    let networks = networks.into_iter().map(|network| {
        let created_s = network.created.as_deref().and_then(unix_seconds);
        object(Kind::Network, network.id, &network.labels.unwrap_or_default(), created_s, false)
    });
    let volumes = volumes.volumes.unwrap_or_default().into_iter().map(|volume| {
        let created_s = volume.created_at.as_deref().and_then(unix_seconds);
        object(Kind::Volume, Some(volume.name), &volume.labels, created_s, false)
    });
    Ok(containers.chain(networks).chain(volumes).flatten().collect())
}

/// An object whose age the engine does not tell is as old as can be: a run that comes up has others.
fn object(
    kind: Kind,
    id: Option<String>,
    labels: &HashMap<String, String>,
    created_s: Option<i64>,
    anchor: bool,
) -> Option<Object> {
    let run = labels.get(RUN_LABEL)?.clone();
    Some(Object {
        kind,
        id: id?,
        run,
        kept: labels.contains_key(KEEP_LABEL),
        created_s: created_s.unwrap_or(0),
        anchor,
    })
}

/// Removes the objects, those of one kind at once. Goes on where one fails, and returns the first failure.
async fn remove(engine: &Engine, mut objects: Vec<Object>) -> Result<Swept, Error> {
    let (mut swept, mut failure) = (Swept::default(), None);
    for kind in [Kind::Container, Kind::Network, Kind::Volume] {
        let (those, others) = objects.into_iter().partition::<Vec<_>, _>(|object| object.kind == kind);
        objects = others;
        let removals = stream::iter(those).map(async |object| remove_one(engine, object).await);
        let removed: Vec<_> = removals.buffer_unordered(AT_ONCE).collect().await;
        let count = removed.iter().filter(|result| matches!(result, Ok((Removed::ByUs, _)))).count();
        for (how, object) in removed.iter().flatten() {
            match how {
                Removed::ByUs | Removed::ByOthers => drop(swept.runs.insert(object.run.clone())),
                Removed::NotBefore => swept.stuck.push(object.id.clone()),
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

/// Removes a container, running or not, with its volumes: an image may declare some that carry no label.
pub(crate) async fn remove_container(engine: &Engine, id: &str) -> Result<(), bollard::errors::Error> {
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    engine.docker().remove_container(id, Some(options)).await
}

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    ByUs,
    ByOthers,
    /// Not before the engine is started again: a network that holds nothing.
    NotBefore,
}

/// Whether a network is known to hold no container.
async fn is_empty(engine: &Engine, network: &str) -> bool {
    let found = engine.docker().inspect_network(network, None).await;
    found.is_ok_and(|network| network.containers.unwrap_or_default().is_empty())
}

/// Removes one object, whatever else happens to it meanwhile.
async fn remove_one(engine: &Engine, object: Object) -> Result<(Removed, Object), Error> {
    let how = remove_somehow(engine, &object).await?;
    Ok((how, object))
}

async fn remove_somehow(engine: &Engine, object: &Object) -> Result<Removed, Error> {
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
                    Some(403) if began.elapsed() > ENDPOINTS_GONE_WITHIN && is_empty(engine, id).await => {
                        tracing::debug!(run, id, "the engine has lost count of its endpoints");
                        return Ok(Removed::NotBefore);
                    }
                    // In use, or being removed by somebody else: it is gone in a moment, and nothing tells when.
                    Some(403 | 409 | 500) => last = crate::error::explain(&error),
                    _ => return Err(Error::engine(doing(), &error)),
                },
            }
            sleep(TRY_AGAIN).await;
        }
    };
    match timeout(REMOVE_WITHIN, removing).await {
        Ok(result) => result,
        Err(_) => Err(Error::Engine { doing: doing(), why: last }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: i64 = 1_000_000;

    fn thing(run: &str, id: &str, age_s: i64) -> Object {
        Object {
            kind: Kind::Container,
            id: id.to_owned(),
            run: run.to_owned(),
            kept: false,
            created_s: NOW_S - age_s,
            anchor: false,
        }
    }

    fn ids(objects: &[Object], kept: bool) -> Vec<String> {
        dead(objects.to_vec(), NOW_S, kept).into_iter().map(|object| object.id).collect()
    }

    #[test]
    fn a_run_whose_agent_runs_keeps_everything_however_old() {
        let agent = Object { anchor: true, ..thing("a", "agent", 90_000) };
        assert!(ids(&[agent, thing("a", "server", 90_000)], false).is_empty());
    }

    #[test]
    fn a_run_without_agent_is_dead_once_its_newest_object_is_ten_seconds_old() {
        let objects = |newest| [thing("a", "old", 500), Object { kind: Kind::Network, ..thing("a", "new", newest) }];
        assert!(ids(&objects(0), false).is_empty());
        assert!(ids(&objects(9), false).is_empty());
        assert_eq!(ids(&objects(10), false), ["old", "new"]);
        // An object of the future: the engine's clock was set back.
        assert!(ids(&objects(-50), false).is_empty());
    }

    #[test]
    fn runs_do_not_keep_each_other_alive() {
        let agent = Object { anchor: true, ..thing("a", "agent", 50) };
        assert_eq!(ids(&[agent, thing("b", "left", 50), thing("c", "young", 1)], false), ["left"]);
    }

    #[test]
    fn what_is_kept_is_removed_only_on_request_and_never_from_a_run_that_is_alive() {
        let kept = |run, id| Object { kept: true, ..thing(run, id, 50) };
        let agent = Object { anchor: true, ..thing("b", "agent", 50) };
        let objects = [kept("a", "a-server"), thing("a", "a-worker", 50), kept("b", "b-server"), agent];
        assert_eq!(ids(&objects, false), ["a-worker"]);
        assert_eq!(ids(&objects, true), ["a-server"]);
    }
}
