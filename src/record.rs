//! One run, from its plan to its verdicts.

use std::{panic::AssertUnwindSafe, path::PathBuf};

use anyhow::{Context, anyhow};
use compose::Engine;
use futures::FutureExt;
use history::{ClusterKind, Event, Record, Writer};
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{
    conduct::conduct,
    exit::{Exit, Interrupted},
    judge::{Judged, judge},
    report::{Terminal, heading, versions},
    run_dir::RunDir,
    scenario::PlanFile,
};

/// The runtime of commands that reach an engine.
pub fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")
}

/// Where runs are recorded, and what is told meanwhile.
#[derive(Debug, Clone)]
pub struct Recorder {
    /// Directory of the run directories.
    pub runs: PathBuf,
    /// Leave servers and network when the run is over.
    pub keep: bool,
    /// Print the heading as soon as the servers' versions are known.
    pub is_shown: bool,
    /// Say that the simulation stands in for an engine that does not answer.
    pub is_instead: bool,
}

impl Recorder {
    /// Records and judges.
    ///
    /// # Errors
    /// The run could not be carried out or recorded; what was recorded stays.
    pub fn once(&self, file: &PlanFile, runtime: &Runtime) -> anyhow::Result<(RunDir, Judged)> {
        let dir = match file.plan.cluster {
            ClusterKind::Docker => runtime.block_on(self.recorded(file))?,
            ClusterKind::Sim => self.simulated(file)?,
        };
        // From here on nothing has to be taken down: a signal ends the judging at once.
        let waiting = runtime.spawn(async {
            if let Ok(mut stop) = Stop::listen() {
                stop.asked().await;
                std::process::exit(Exit::Interrupted as i32);
            }
        });
        let judged = judge(&dir.history());
        // The next run has something to take down.
        waiting.abort();
        Ok((dir, judged?))
    }

    fn begun(&self, file: &PlanFile) -> anyhow::Result<(RunDir, Terminal)> {
        let dir = RunDir::create(&self.runs, &file.run)?;
        dir.write(&dir.plan(), file.to_toml()?)?;
        let (plan, shown) = (file.plan.clone(), dir.path().to_owned());
        let terminal = Terminal::new(move |versions| heading(&plan, versions, &shown), self.is_shown);
        Ok((dir, terminal))
    }

    /// Simulates a run, and records it in the same way.
    fn simulated(&self, file: &PlanFile) -> anyhow::Result<RunDir> {
        let (dir, terminal) = self.begun(file)?;
        if self.is_instead {
            terminal.progress("no Docker engine answers: this is a simulation, with models in the place of servers");
            terminal.progress("to see it on real servers, start Docker and add `--cluster docker`");
        }
        let mut writer = Writer::create(&dir.history())?;
        let mut recording = Ok(());
        let mut is_begun = false;
        let setup = sim::Setup {
            run: &file.run,
            plan: &file.plan,
            backend: &file.backend,
            resource_bug: file.resource_bug.as_deref(),
            with_truth: false,
        };
        let simulated = sim::simulate(&setup, &mut |record| {
            if let Event::Ready { servers } = &record.event
                && !std::mem::replace(&mut is_begun, true)
            {
                terminal.begins(&versions(servers));
            }
            if recording.is_ok() {
                let Record { process, n, at, event, .. } = record;
                recording = writer.append(process, n, at, event).map(drop);
            }
        });
        recording.and_then(|()| writer.flush())?;
        simulated.with_context(|| format!("what was recorded is in {}", dir.path().display()))?;
        Ok(dir)
    }

    /// Records a run. However that ends, nothing of it is left in the engine.
    async fn recorded(&self, file: &PlanFile) -> anyhow::Result<RunDir> {
        let engine = Engine::connect().await?;
        let (dir, terminal) = self.begun(file)?;
        let mut stop = Stop::listen()?;

        // A panic is caught here, a signal drops the run where it stands; then everything is taken down.
        let conducted = AssertUnwindSafe(conduct(&engine, file, &dir, self.keep, &terminal)).catch_unwind();
        let ended = tokio::select! {
            ended = conducted => Some(ended),
            () = stop.asked() => None,
        };
        if matches!(ended, Some(Ok(Ok(())))) {
            return Ok(dir);
        }
        terminal.progress("taking the cluster down");
        let taken_down = tokio::select! {
            taken_down = compose::take_down(&engine, &file.run) => taken_down,
            // Asked twice: whoever cannot wait leaves the rest to `harness clean`.
            () = stop.asked() => std::process::exit(Exit::Interrupted as i32),
        };
        if let Err(left) = &taken_down {
            terminal.progress(&format!("not everything could be removed: {left}; `harness clean` will"));
        }
        match ended {
            None => {
                taken_down?;
                Err(Interrupted.into())
            }
            // What it was stands on standard error already.
            Some(Err(_panic)) => Err(anyhow!("the harness panicked, which is a bug of its own")),
            Some(Ok(ended)) => {
                ended.with_context(|| format!("what was recorded is in {}", dir.path().display()))?;
                Ok(dir)
            }
        }
    }
}

/// Whoever asks this process to stop: Ctrl-C, SIGTERM, the end of its terminal.
struct Stop(Vec<Signal>);

impl Stop {
    fn listen() -> anyhow::Result<Stop> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Ok(Stop(kinds.into_iter().map(signal).collect::<Result<_, _>>().context("listening for signals")?))
    }

    async fn asked(&mut self) {
        futures::future::select_all(self.0.iter_mut().map(|s| Box::pin(s.recv()))).await;
    }
}
