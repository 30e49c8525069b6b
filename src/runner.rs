//! Runs a plan, on Docker or in the simulation, from its run directory to its verdicts.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, path::PathBuf};

use anyhow::{Context, anyhow};
use compose::{Engine, STARTING_S, Swept};
use futures::FutureExt;
use history::{ClusterKind, Event, MadeBy, Writer};
use locks::planted::DROPS_COUNTERS;
use workloads::backend::Backend;

use crate::{
    docker,
    exit::{Exit, Interrupted},
    judge::{Judged, judge},
    made_by::Making,
    plan_file::PlanFile,
    remove_keys::remove_keys,
    report::{Terminal, heading, versions},
    run_dir::RunDir,
    signals::{Signals, Stop},
};

/// The runtime of the commands that use a Docker engine. While the runtime exists, Ctrl-C, SIGTERM and SIGHUP end the
/// process at once, unless a run first has to take its cluster down.
#[derive(Debug)]
pub struct Runtime {
    tokio: tokio::runtime::Runtime,
    signals: Signals,
}

impl Runtime {
    /// Runs `doing` to its end.
    pub fn block_on<T>(&self, doing: impl Future<Output = T>) -> T {
        self.tokio.block_on(doing)
    }

    /// Returns whether the user has interrupted the command.
    pub fn is_interrupted(&self) -> bool {
        self.signals.has_come()
    }
}

/// Makes the runtime of the commands that use a Docker engine.
///
/// # Errors
/// The system gives no threads, or no handlers for signals.
pub fn runtime() -> anyhow::Result<Runtime> {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let signals = tokio.block_on(async { Signals::listen() })?;
    Ok(Runtime { tokio, signals })
}

/// Runs plans, each in a run directory of its own.
#[derive(Debug, Clone)]
pub struct Runner {
    /// The directory of the run directories.
    pub runs: PathBuf,
    /// Leaves servers and network after the run.
    pub keep: bool,
    /// Prints the heading as soon as the servers' versions are known.
    pub prints_heading: bool,
    /// The reason why the simulation replaces a Docker engine. It is printed.
    pub simulated: Option<String>,
}

impl Runner {
    /// A runner that prints nothing but progress.
    pub fn new(runs: PathBuf) -> Runner {
        Runner { runs, keep: false, prints_heading: false, simulated: None }
    }

    /// Runs a plan and judges its history.
    ///
    /// # Errors
    /// The run could not be taken to its end or recorded. The history up to that point stays in the run directory.
    pub fn run(&self, file: &PlanFile, runtime: &Runtime) -> anyhow::Result<(RunDir, Judged)> {
        let (dir, mut making) = match file.plan.cluster {
            ClusterKind::Docker => runtime.block_on(self.run_on_docker(file, &runtime.signals))?,
            ClusterKind::Sim => self.simulate(file)?,
        };
        let mut judged = judge(&dir.history())?;
        making.end(&judged.servers);
        judged.made_by = Some(making.facts().clone());
        making.write(&dir)?;
        Ok((dir, judged))
    }

    fn begin(&self, file: &PlanFile) -> anyhow::Result<(RunDir, Making, Terminal)> {
        let dir = RunDir::create(&self.runs, &file.run)?;
        let plan_text = file.to_toml()?;
        let making = Making::begin(file, &plan_text);
        dir.write(&dir.plan(), plan_text)?;
        making.write(&dir)?;
        let (plan, shown) = (file.plan.clone(), dir.path().to_owned());
        let terminal = Terminal::new(move |versions| heading(&plan, versions, &shown), self.prints_heading);
        Ok((dir, making, terminal))
    }

    fn simulate(&self, file: &PlanFile) -> anyhow::Result<(RunDir, Making)> {
        let (dir, making, terminal) = self.begin(file)?;
        if let Some(why) = &self.simulated {
            terminal.progress(&format!("{why}: this is a simulation, with models in the place of servers"));
            terminal.progress("for real servers, start Docker and add `--cluster docker`");
        }
        let mut writer = Writer::create(&dir.history())?;
        let mut recording = Ok(());
        let mut is_begun = false;
        let simulated = sim::simulate(&file.setup(), &mut |mut record| {
            if let Event::Plan { made_by, .. } = &mut record.event {
                *made_by = Some(Box::new(making.head()));
            }
            if let Event::Ready { servers } = &record.event
                && !std::mem::replace(&mut is_begun, true)
            {
                terminal.begins(&versions(servers));
            }
            if recording.is_ok() {
                recording = writer.append(&record);
            }
        });
        recording.and_then(|()| writer.flush())?;
        simulated.with_context(|| format!("the history up to here is in {}", dir.path().display()))?;
        Ok((dir, making))
    }

    /// Runs a plan on Docker. Afterwards nothing of the run is left in the engine, whatever its outcome.
    async fn run_on_docker(&self, file: &PlanFile, signals: &Signals) -> anyhow::Result<(RunDir, Making)> {
        // An engine that does not answer must not hide a signal that came at the end of an earlier run.
        if signals.has_come() {
            return Err(Interrupted.into());
        }
        let engine = Engine::connect().await?;
        let (dir, mut making, terminal) = self.begin(file)?;
        if let Some(warning) = without_effect(file) {
            terminal.warn(warning);
        }
        making.on(engine.facts().await?);
        making.write(&dir)?;
        let run = |stop| self.up_and_down(&engine, file, &dir, making.head(), &terminal, stop);
        let images = signals.awaited_by(run).await?;
        making.with(images);
        Ok((dir, making))
    }

    /// Runs a plan on a cluster of its own, and takes the cluster down, also after a panic or a signal. Returns the ids
    /// of the images by role.
    async fn up_and_down(
        &self,
        engine: &Engine,
        file: &PlanFile,
        dir: &RunDir,
        made_by: MadeBy,
        terminal: &Terminal,
        mut stop: Stop,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        // Kept until everything is removed: when the cluster is dropped, its agent ends, and another run may remove it.
        let mut left = docker::Left::default();
        let run = docker::run(engine, file, dir, made_by, self.keep, terminal, &mut left);
        let run = AssertUnwindSafe(run).catch_unwind();
        let ended = tokio::select! {
            ended = run => Some(ended),
            () = stop.signalled() => None,
        };
        let failure = match ended {
            Some(Ok(Ok(images))) => return Ok(images),
            // Reading the logs of a failed run may fail, too.
            Some(Ok(Err(error))) => Some(left.failure.take().unwrap_or(error)),
            // The panic's message is on standard error already.
            Some(Err(_panic)) => Some(anyhow!("the harness panicked, which is a bug of the harness")),
            // The run may have failed before the signal.
            None => left.failure.take(),
        };
        let failure = failure.map(|error| match dir.history().exists() {
            true => error.context(format!("the history up to here is in {}", dir.path().display())),
            false => error,
        });
        // Before the removal, which may take long or be given up.
        failure.iter().for_each(|failure| terminal.progress(&format!("the run has failed: {failure:#}")));
        terminal.progress("taking the cluster down");
        let taking_down = async {
            // Before the network is gone, and after the workers are.
            let removed = remove_keys(left.cluster.as_ref(), file).await;
            (removed, compose::take_down(engine, &file.run).await)
        };
        let go_on = || terminal.progress("the cluster is still being taken down; Ctrl-C once more leaves what is left");
        let (removed, taken_down) = tokio::select! {
            // A removal that has ended is not given up.
            biased;
            taken_down = taking_down => taken_down,
            () = stop.signalled_twice(go_on) => {
                terminal.progress(&format!(
                    "interrupted again: objects of run {} stay in the engine; run `{}` after {STARTING_S} s to remove \
                     them",
                    file.run,
                    clean(self.keep)
                ));
                if file.plan.has_own_servers() {
                    let keys = format!("keys that begin with `{}`", file.namespace());
                    terminal.warn(&format!("{keys} may be left on your servers; remove them yourself"));
                }
                std::process::exit(Exit::Interrupted as i32)
            }
        };
        let (warnings, error) = not_finished(failure, removed, taken_down, self.keep);
        warnings.iter().for_each(|warning| terminal.warn(warning));
        Err(error)
    }
}

/// Returns a warning if a plan for real servers sets a switch that only the simulation reads, or has a planted bug that
/// only its nodes have. Plans of `explore` may have both, so they are not refused. The checker reads
/// `revokes_on_resume` after each run.
fn without_effect(file: &PlanFile) -> Option<&'static str> {
    let PlanFile { backend, plan, .. } = file;
    if plan.cluster != ClusterKind::Docker {
        return None;
    }
    if plan.models.unwrap_or_default().lock_checks_key {
        return Some(
            "`lock_checks_key` of the plan has no effect on real servers: only the simulation reads it. The Lock \
             service of etcd checks the key from 3.5 on",
        );
    }
    let bug = Backend::named(backend).ok().and_then(|backend| backend.bug);
    bug.is_some_and(|bug| bug.name == DROPS_COUNTERS).then_some(
        "the planted bug `drops-counters` has no effect on real servers: only the nodes of the simulation have it. \
         The lock of this run is correct",
    )
}

/// Returns the command that removes what a run has left. A run with `--keep` marks its servers as kept from the start.
fn clean(keep: bool) -> &'static str {
    if keep { "harness clean --kept" } else { "harness clean" }
}

/// Returns the messages about what is left of a run that did not reach its end, and the error of that run. Without a
/// failure, the user has interrupted the run: then the first message is part of the error. `keep`: the run had
/// `--keep`.
fn not_finished(
    failure: Option<anyhow::Error>,
    removed: anyhow::Result<()>,
    taken_down: Result<Swept, compose::Error>,
    keep: bool,
) -> (Vec<String>, anyhow::Error) {
    let stuck = taken_down.as_ref().ok().and_then(Swept::stuck_networks);
    let objects = taken_down
        .err()
        .map(|left| format!("not everything could be removed: {left}; run `{}` to remove it", clean(keep)));
    let keys = removed.err().map(|left| format!("{left:#}"));
    let mut left: Vec<String> = objects.into_iter().chain(keys).collect();
    let error = match failure {
        Some(error) => error,
        None if left.is_empty() => Interrupted.into(),
        None => anyhow!("interrupted; {}", left.remove(0)),
    };
    left.extend(stuck);
    (left, error)
}

/// Finds, pulls or builds the images of the plan's run, and starts nothing. Returns their ids by role.
///
/// # Errors
/// An image is neither there, nor can it be pulled or built, or the user interrupts.
pub fn images(file: &PlanFile, runtime: &Runtime) -> anyhow::Result<BTreeMap<String, String>> {
    let terminal = Terminal::new(|_| String::new(), false);
    runtime.block_on(async {
        let engine = Engine::connect().await?;
        let found = |mut stop: Stop| async move {
            tokio::select! {
                images = docker::images(&engine, file, &terminal) => images,
                // A build that is dropped removes what it has made.
                () = stop.signalled() => Err(Interrupted.into()),
            }
        };
        runtime.signals.awaited_by(found).await
    })
}

#[cfg(test)]
mod tests {
    use history::{Models, Plan};

    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn keys_that_are_left_are_told_even_if_the_cluster_is_left_too() {
        let keys = "keys may be left on redis-1";
        let left = || Err(compose::Error::Engine { doing: "removing".to_owned(), why: "no answer".to_owned() });
        let objects = "not everything could be removed: removing: the Docker engine says: no answer; run `harness \
                       clean` to remove it";
        let (warnings, error) = not_finished(None, Err(anyhow!(keys)), left(), false);
        assert_eq!((warnings, error.to_string()), (vec![keys.to_owned()], format!("interrupted; {objects}")));
        assert_eq!(Exit::of(&error), Exit::Failed, "something is left");
        let (warnings, error) = not_finished(Some(anyhow!("a worker ended")), Err(anyhow!(keys)), left(), false);
        assert_eq!((warnings, error.to_string()), (vec![objects.into(), keys.into()], "a worker ended".to_owned()));
        let (warnings, error) = not_finished(None, Err(anyhow!(keys)), Ok(Swept::default()), false);
        assert_eq!((warnings, error.to_string()), (Vec::new(), format!("interrupted; {keys}")));
        let (warnings, error) = not_finished(None, Ok(()), Ok(Swept::default()), false);
        assert!(warnings.is_empty() && error.is::<Interrupted>());
    }

    #[test]
    fn networks_that_the_engine_keeps_are_told() {
        for failure in [None, Some(anyhow!("a worker ended"))] {
            let swept = Swept { stuck: ["4f2a".to_owned()].into(), ..Swept::default() };
            let (warnings, _) = not_finished(failure, Ok(()), Ok(swept), false);
            assert!(warnings.len() == 1 && warnings[0].contains("4f2a"), "{warnings:?}");
        }
    }

    #[test]
    fn a_switch_of_the_models_gets_a_warning_on_real_servers() {
        for (cluster, is_warned) in [(ClusterKind::Docker, true), (ClusterKind::Sim, false)] {
            let scenario = Scenario::of("etcd-server-lock").unwrap();
            let mut file = scenario.file(String::new(), Plan { cluster, ..scenario.base.clone() });
            // It tells the checker which servers these are.
            file.plan.models = Some(Models { revokes_on_resume: true, ..Models::default() });
            assert_eq!(without_effect(&file), None);
            file.plan.models = Some(Models { lock_checks_key: true, ..Models::default() });
            assert_eq!(without_effect(&file).is_some(), is_warned);
        }
    }

    #[test]
    fn a_planted_bug_of_simulated_nodes_gets_a_warning_on_real_servers() {
        for (backend, cluster, is_warned) in [
            ("buggy:drops-counters", ClusterKind::Docker, true),
            ("buggy:drops-counters@redis", ClusterKind::Docker, true),
            ("buggy:drops-counters", ClusterKind::Sim, false),
            ("buggy:local-tokens", ClusterKind::Docker, false),
            ("redlock", ClusterKind::Docker, false),
        ] {
            let scenario = Scenario::of(backend).unwrap();
            let file = scenario.file(String::new(), Plan { cluster, ..scenario.base.clone() });
            assert_eq!(without_effect(&file).is_some(), is_warned, "{backend}, {cluster:?}");
        }
    }

    #[test]
    fn servers_with_the_mark_of_kept_ones_need_their_own_command() {
        for (keep, command) in [(false, "run `harness clean` to"), (true, "run `harness clean --kept` to")] {
            let left = Err(compose::Error::Engine { doing: "removing".to_owned(), why: "no answer".to_owned() });
            let (_, error) = not_finished(None, Ok(()), left, keep);
            assert!(error.to_string().contains(command), "{error}");
        }
    }
}
