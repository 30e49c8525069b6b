//! [`nemesis::Cluster`] on real containers: the freezer, signals, quotas, and starting again.

use std::time::Duration;

use bollard::{
    errors::Error as EngineError,
    models::ContainerUpdateBody,
    query_parameters::{KillContainerOptions, StartContainerOptions},
};
use history::NodeName;
use nemesis::{Cluster, ClusterError, Data, Doing};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    error::{explain, status},
    health, leader,
    process::{Process, exit_code},
    redis::Counters,
    running::{Control, Member, Running},
};

/// Freezing and thawing closer together than this confuse the engine: it holds a frozen container for a running one.
const TOGGLE_DISTANCE: Duration = Duration::from_millis(50);
/// The kernel gives a quota of processor time anew in each period of so many microseconds, and takes 1 ms as the smallest quota.
const PERIOD_US: i64 = 100_000;
/// As much as it wants.
const NO_QUOTA: i64 = -1;
/// How long the engine may take to agree that a node is frozen, thawed or dead. Single calls were seen to take 1.5 s.
const AGREE_WITHIN: Duration = Duration::from_secs(10);
/// How long the last lines of a killed process may wait for the queue before it is started again.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

impl Cluster for Running {
    fn freeze<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "freezing" };
            let member = act.member()?;
            let mut control = member.control.lock().await;
            if act.inspect(member).await?.paused == Some(true) {
                return Err(act.failed("it is frozen already"));
            }
            act.toggle(member, &mut control, true).await
        })
    }

    fn thaw<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "thawing" };
            let member = act.member()?;
            let mut control = member.control.lock().await;
            if act.inspect(member).await?.paused != Some(true) {
                return Ok(());
            }
            act.toggle(member, &mut control, false).await
        })
    }

    fn stop<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move { Act { running: self, node, doing: "stopping" }.signal("SIGSTOP").await })
    }

    fn go_on<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move { Act { running: self, node, doing: "letting it go on" }.signal("SIGCONT").await })
    }

    fn slow_down<'a>(&'a self, node: &'a NodeName, percent: u8) -> Doing<'a, ()> {
        let act = Act { running: self, node, doing: "slowing it down" };
        Box::pin(async move { act.quota(PERIOD_US * i64::from(percent) / 100).await })
    }

    fn speed_up<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move { Act { running: self, node, doing: "taking its quota off" }.quota(NO_QUOTA).await })
    }

    fn answer_time<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<Duration>> {
        Box::pin(async move {
            let asked = Instant::now();
            Ok(self.answers(node).await?.then(|| asked.elapsed()))
        })
    }

    fn is_frozen<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "looking whether it is frozen" };
            Ok(act.inspect(act.member()?).await?.paused == Some(true))
        })
    }

    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "killing" };
            let member = act.member()?;
            let _alone = member.control.lock().await;
            act.kill(member).await
        })
    }

    fn start<'a>(&'a self, node: &'a NodeName, data: Data) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "starting" };
            let member = act.member()?;
            let mut control = member.control.lock().await;
            if act.inspect(member).await?.running == Some(true) {
                return Ok(());
            }
            match data {
                Data::Kept => {}
                Data::Synced => return Err(act.failed("its kernel keeps what was not synced, too")),
                Data::Lost if member.server().is_none() => return Err(act.failed("only a server loses its data")),
                Data::Lost => self.replace(member).await.map_err(|why| act.failed(why))?,
            }
            act.start(member, &mut control).await
        })
    }

    fn start_with_counters<'a>(&'a self, node: &'a NodeName, of: &'a [NodeName]) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "starting it with the counters of others" };
            let member = act.member()?;
            let mut control = member.control.lock().await;
            if act.inspect(member).await?.running == Some(true) {
                return Ok(());
            }
            let (mut largest, mut like) = (Counters::new(), None);
            for other in of {
                let from = self.member(other).map_err(|error| act.failed(error.to_string()))?;
                let found = self.counters_of(from).await.map_err(|why| act.failed(format!("{other}: {why}")))?;
                for (key, counter) in found {
                    let at_least = largest.entry(key).or_insert(counter);
                    *at_least = counter.max(*at_least);
                }
                like = Some(from);
            }
            self.replace(member).await.map_err(|why| act.failed(why))?;
            if let Some(like) = like {
                self.leave_snapshot(member, like, &largest).await.map_err(|why| act.failed(why))?;
            }
            act.start(member, &mut control).await?;
            act.has_counters(member, &largest).await
        })
    }

    fn pending_fsyncs<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<u32>> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "asking what it has not synced yet" };
            let member = act.member()?;
            self.pending_fsyncs_of(member).await.map_err(|why| act.failed(why))
        })
    }

    fn is_running<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "looking whether it runs" };
            Ok(act.inspect(act.member()?).await?.running == Some(true))
        })
    }

    fn leader(&self) -> Doing<'_, Option<NodeName>> {
        Box::pin(async move { Ok(leader::ask(self).await) })
    }

    fn answers<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move {
            let act = Act { running: self, node, doing: "asking whether it answers" };
            let member = act.member()?;
            let service = member.server().ok_or_else(|| act.failed("it is no server"))?;
            // The engine refuses to run anything in a container that is frozen or down.
            Ok(health::look_once(self.engine(), &member.container(), service).await.is_ok())
        })
    }
}

/// One thing that is done to one node.
struct Act<'a> {
    running: &'a Running,
    node: &'a NodeName,
    doing: &'static str,
}

impl<'a> Act<'a> {
    fn failed(&self, why: impl Into<String>) -> ClusterError {
        ClusterError { node: self.node.clone(), doing: self.doing, why: why.into() }
    }

    fn member(&self) -> Result<&'a Member, ClusterError> {
        self.running.member(self.node).map_err(|error| self.failed(error.to_string()))
    }

    async fn inspect(&self, member: &Member) -> Result<bollard::models::ContainerState, ClusterError> {
        self.running.state(member).await.map_err(|why| self.failed(why))
    }

    /// Freezes or thaws until the engine agrees that it is so. Its errors are believed only where its own
    /// inspection says the same: it was seen to call a container running that it had frozen, and not paused one
    /// that it held for paused.
    async fn toggle(&self, member: &Member, control: &mut Control, freeze: bool) -> Result<(), ClusterError> {
        let docker = self.running.engine().docker();
        let mut last = String::new();
        let trying = async {
            loop {
                if let Some(toggled) = control.toggled {
                    sleep_until(toggled + TOGGLE_DISTANCE).await;
                }
                let call = if freeze {
                    docker.pause_container(&member.container()).await
                } else {
                    docker.unpause_container(&member.container()).await
                };
                control.toggled = Some(Instant::now());
                if let Err(error) = call {
                    last = explain(&error);
                    tracing::debug!(node = %self.node, doing = self.doing, last, "trying again");
                }
                let state = self.inspect(member).await?;
                if state.running != Some(true) {
                    return Err(self.failed("it does not run"));
                }
                if state.paused == Some(freeze) {
                    return Ok(());
                }
            }
        };
        timeout(AGREE_WITHIN, trying).await.unwrap_or_else(|_| {
            Err(self.failed(format!(
                "the engine did not agree within {} s; its last error: {last}",
                AGREE_WITHIN.as_secs()
            )))
        })
    }

    /// Sends a signal to the first process, which runs.
    async fn signal(&self, signal: &str) -> Result<(), ClusterError> {
        let member = self.member()?;
        let _alone = member.control.lock().await;
        let options = KillContainerOptions { signal: signal.to_owned() };
        let sent = self.running.engine().docker().kill_container(&member.container(), Some(options)).await;
        sent.map_err(|error| self.failed(explain(&error)))
    }

    /// Gives the container so many microseconds of processor time a period.
    async fn quota(&self, quota_us: i64) -> Result<(), ClusterError> {
        let member = self.member()?;
        let _alone = member.control.lock().await;
        let body = ContainerUpdateBody { cpu_period: Some(PERIOD_US), cpu_quota: Some(quota_us), ..Default::default() };
        let updated = self.running.engine().docker().update_container(&member.container(), body).await;
        updated.map_err(|error| self.failed(explain(&error)))
    }

    async fn kill(&self, member: &Member) -> Result<(), ClusterError> {
        let engine = self.running.engine();
        let killing = async {
            let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
            match engine.docker().kill_container(&member.container(), Some(options)).await {
                Ok(()) => {}
                // It does not run: that is what was wanted.
                Err(error) if status(&error) == Some(409) => {}
                Err(error) => return Err(self.failed(explain(&error))),
            }
            loop {
                exit_code(engine, &member.container()).await;
                if self.inspect(member).await?.running != Some(true) {
                    return Ok(());
                }
                sleep(TOGGLE_DISTANCE).await;
            }
        };
        timeout(AGREE_WITHIN, killing)
            .await
            .unwrap_or_else(|_| Err(self.failed(format!("it still runs after {} s", AGREE_WITHIN.as_secs()))))
    }

    /// Whether a server that has just been started has at least these counters.
    async fn has_counters(&self, member: &Member, wanted: &Counters) -> Result<(), ClusterError> {
        let mut last = Err("it was never asked".to_owned());
        let asking = async {
            loop {
                last = self.running.counters_of(member).await;
                if last.is_ok() {
                    break;
                }
                sleep(TOGGLE_DISTANCE).await;
            }
        };
        // One that does not answer in time is told about by the proof that it is back.
        drop(timeout(AGREE_WITHIN, asking).await);
        let Ok(found) = last else { return Ok(()) };
        match wanted.iter().find(|(key, counter)| found.get(*key).is_none_or(|found| found < counter)) {
            None => Ok(()),
            Some((key, counter)) => Err(self.failed(format!(
                "expected {key} to be {counter} at least, found {:?}: it did not load the snapshot that was put there; its command may name another \
                 file (`dbfilename`), or an append-only file",
                found.get(key)
            ))),
        }
    }

    async fn start(&self, member: &Member, control: &mut Control) -> Result<(), ClusterError> {
        let engine = self.running.engine();
        if member.server().is_some() {
            let started = engine.docker().start_container(&member.container(), None::<StartContainerOptions>).await;
            return started.map_err(|error: EngineError| self.failed(explain(&error)));
        }
        let Some(outlet) = self.running.outlet() else {
            return Err(self.failed("the cluster was taken down"));
        };
        // The last words of the old process come before the first of the new one.
        let old = member.process().take();
        if let Some(mut old) = old
            && !old.has_ended(DRAIN_WITHIN).await
        {
            *member.process() = Some(old);
            return Err(self.failed("what its last process said is not being read"));
        }
        let incarnation = control.starts + 1;
        let process = Process::launch(engine, &member.container(), self.node, incarnation, &outlet).await;
        let process = process.map_err(|error| self.failed(explain(&error)))?;
        control.starts = incarnation;
        *member.process() = Some(process);
        Ok(())
    }
}
