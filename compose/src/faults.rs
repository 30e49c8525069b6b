//! Faults of whole containers: the freezer, signals, quotas, and restarts.

use std::{pin::pin, time::Duration};

use bollard::{
    errors::Error as EngineError,
    models::ContainerUpdateBody,
    query_parameters::{KillContainerOptions, StartContainerOptions, StatsOptionsBuilder},
};
use futures::StreamExt;
use history::NodeName;
use nemesis::{ClusterError, Data};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    error::{explain, status},
    process::{Process, exit_code},
    redis::Counters,
    running::{Control, Member, Running},
};

/// The shortest time between a freeze and a thaw. With a shorter time, the engine reports a frozen container as
/// running.
const TOGGLE_DISTANCE: Duration = Duration::from_millis(50);
/// The period of a quota of processor time, in microseconds. The kernel's smallest quota is 1 ms.
pub(crate) const PERIOD_US: i64 = 100_000;
/// The value for no quota.
pub(crate) const NO_QUOTA: i64 = -1;
/// How long the engine may take to report a node as frozen, thawed or dead. Single calls were seen to take 1.5 s.
const AGREE_WITHIN: Duration = Duration::from_secs(10);
/// How long the last lines of a killed process may wait for the queue before the restart.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

impl Running {
    /// Starts a node again. The faults that the agent had injected are gone.
    pub(crate) async fn start_node(&self, node: &NodeName, data: Data) -> Result<(), ClusterError> {
        let act = Act { running: self, node, doing: "starting" };
        let member = act.member()?;
        let mut control = member.control.lock().await;
        if act.inspect(member).await?.running == Some(true) {
            return Ok(());
        }
        match data {
            Data::Kept => {}
            Data::Synced => self.order_power_loss(member).await.map_err(|why| act.failed(why))?,
            Data::Lost if member.server().is_none() => return Err(act.failed("only a server loses its data")),
            Data::Lost => self.replace(member, &mut control).await.map_err(|why| act.failed(why))?,
        }
        act.start(member, &mut control).await
    }

    /// Starts a lock node again, with nothing but counters: of each key, the largest counter among the nodes `of`.
    pub(crate) async fn start_node_with_counters(&self, node: &NodeName, of: &[NodeName]) -> Result<(), ClusterError> {
        let act = Act { running: self, node, doing: "starting it with the counters of other nodes" };
        let member = act.member()?;
        let mut control = member.control.lock().await;
        if act.inspect(member).await?.running == Some(true) {
            return Ok(());
        }
        let (mut largest, mut like) = (Counters::new(), None);
        for other in of {
            let from = self.member(other).map_err(|error| act.failed(error.to_string()))?;
            let found = self.counters_of(from).await.map_err(|why| act.failed(format!("{other}: {why}")))?;
            raise(&mut largest, found);
            like = Some(from);
        }
        self.replace(member, &mut control).await.map_err(|why| act.failed(why))?;
        if let Some(like) = like {
            self.leave_snapshot(member, like, &largest).await.map_err(|why| act.failed(why))?;
        }
        act.start(member, &mut control).await?;
        act.has_counters(member, &largest).await
    }
}

/// Takes in the counters of one more node. The largest of each counts: no token may be given twice.
fn raise(largest: &mut Counters, found: Counters) {
    for (key, counter) in found {
        let at_least = largest.entry(key).or_insert(counter);
        *at_least = counter.max(*at_least);
    }
}

/// Returns whether the engine may have done what the call asked for, although the call has no answer, or has failed in
/// the engine.
fn may_have_acted(error: &EngineError) -> bool {
    status(error).is_none_or(|code| code >= 500)
}

/// An operation on one node.
pub(crate) struct Act<'a> {
    pub(crate) running: &'a Running,
    pub(crate) node: &'a NodeName,
    pub(crate) doing: &'static str,
}

impl<'a> Act<'a> {
    pub(crate) fn failed(&self, why: impl Into<String>) -> ClusterError {
        ClusterError { node: self.node.clone(), doing: self.doing, why: why.into() }
    }

    pub(crate) fn member(&self) -> Result<&'a Member, ClusterError> {
        self.running.member(self.node).map_err(|error| self.failed(error.to_string()))
    }

    pub(crate) async fn inspect(&self, member: &Member) -> Result<bollard::models::ContainerState, ClusterError> {
        self.running.state(member).await.map_err(|why| self.failed(why))
    }

    /// Freezes or thaws the container until the engine reports the wanted state. An error counts only if the engine's
    /// inspection confirms the error: engines were seen to report a frozen container as running, and to refuse to thaw
    /// a container that they reported as paused.
    pub(crate) async fn toggle(
        &self,
        member: &Member,
        control: &mut Control,
        freeze: bool,
    ) -> Result<(), ClusterError> {
        let docker = self.running.engine().docker();
        let mut last = String::new();
        // True while a call has no answer, true as soon as the change is counted, and true as soon as a call that
        // failed may have made the change.
        let (mut is_open, mut is_counted, mut may_be_ours) = (false, false, false);
        let trying = async {
            loop {
                if let Some(toggled) = control.toggled {
                    sleep_until(toggled + TOGGLE_DISTANCE).await;
                }
                is_open = true;
                let call = if freeze {
                    docker.pause_container(&member.container()).await
                } else {
                    docker.unpause_container(&member.container()).await
                };
                is_open = false;
                control.toggled = Some(Instant::now());
                match call {
                    Ok(()) => {
                        *control.own.toggles(freeze) += 1;
                        is_counted = true;
                    }
                    Err(error) => {
                        may_be_ours |= may_have_acted(&error);
                        last = explain(&error);
                        tracing::debug!(node = %self.node, doing = self.doing, last, "trying again");
                    }
                }
                let state = self.inspect(member).await?;
                if state.running != Some(true) {
                    return Err(self.failed("it does not run"));
                }
                if state.paused == Some(freeze) {
                    // An engine can report an error for a change that it has made. If it refused every call, somebody
                    // else has made the change, and no report of ours will come.
                    *control.own.toggles(freeze) += u32::from(may_be_ours && !is_counted);
                    return Ok(());
                }
            }
        };
        let tried = timeout(AGREE_WITHIN, trying).await;
        // The engine may go on with a call for which nobody waits any more, and report its change later.
        *control.own.toggles(freeze) += u32::from(tried.is_err() && is_open && !is_counted);
        tried.unwrap_or_else(|_| {
            Err(self.failed(format!(
                "the engine did not agree within {} s; its last error: {last}",
                AGREE_WITHIN.as_secs()
            )))
        })
    }

    /// Stops the first process of the running container by a signal, or lets it go on.
    pub(crate) async fn set_stopped(&self, is_stopped: bool) -> Result<(), ClusterError> {
        let signal = if is_stopped { "SIGSTOP" } else { "SIGCONT" };
        let member = self.member()?;
        let mut control = member.control.lock().await;
        control.is_stopped = is_stopped;
        let options = KillContainerOptions { signal: signal.to_owned() };
        let sent = self.running.engine().docker().kill_container(&member.container(), Some(options)).await;
        if sent.as_ref().is_err_and(|error| !may_have_acted(error)) {
            control.is_stopped = false;
        }
        match sent {
            // The container does not run: somebody else has ended it during the stop, and no process is stopped.
            Err(error) if !is_stopped && status(&error) == Some(409) => Ok(()),
            sent => sent.map_err(|error| self.failed(explain(&error))),
        }
    }

    /// Sets the quota of the container, in microseconds of processor time for each period.
    pub(crate) async fn quota(&self, quota_us: i64) -> Result<(), ClusterError> {
        let member = self.member()?;
        let _alone = member.control.lock().await;
        let body = ContainerUpdateBody { cpu_period: Some(PERIOD_US), cpu_quota: Some(quota_us), ..Default::default() };
        let updated = self.running.engine().docker().update_container(&member.container(), body).await;
        updated.map_err(|error| self.failed(explain(&error)))
    }

    /// Returns the time for which the quota held the container back; none, if the engine does not say it.
    pub(crate) async fn held_back(&self) -> Result<Option<Duration>, ClusterError> {
        let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let stats = self.running.engine().docker().stats(&self.member()?.container(), Some(options));
        // Without the count, the time of an answer can still prove the fault.
        let said = pin!(stats).next().await.and_then(|said| {
            said.inspect_err(|error| tracing::debug!(node = %self.node, "no count of its quota: {}", explain(error)))
                .ok()
        });
        let throttled = said.and_then(|stats| stats.cpu_stats?.throttling_data?.throttled_time);
        Ok(throttled.map(Duration::from_nanos))
    }

    pub(crate) async fn kill(&self, member: &Member, control: &mut Control) -> Result<(), ClusterError> {
        let engine = self.running.engine();
        // True while the call has no answer.
        let mut is_open = true;
        let killing = async {
            let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
            let killed = engine.docker().kill_container(&member.container(), Some(options)).await;
            is_open = false;
            match killed {
                Ok(()) => control.own.died += 1,
                // The container does not run, so the kill has succeeded.
                Err(error) if status(&error) == Some(409) => {}
                Err(error) => {
                    // An engine can report an error for a kill that it has made.
                    let is_down = may_have_acted(&error)
                        && self.inspect(member).await.is_ok_and(|state| state.running != Some(true));
                    if !is_down {
                        return Err(self.failed(explain(&error)));
                    }
                    control.own.died += 1;
                }
            }
            loop {
                // The inspection decides.
                drop(exit_code(engine, &member.container()).await);
                if self.inspect(member).await?.running != Some(true) {
                    return Ok(());
                }
                sleep(TOGGLE_DISTANCE).await;
            }
        };
        let ended = timeout(AGREE_WITHIN, killing).await;
        // The engine may go on with a call for which nobody waits any more, and report the death later.
        control.own.died += u32::from(ended.is_err() && is_open);
        let within = AGREE_WITHIN.as_secs();
        ended.unwrap_or_else(|_| {
            Err(self.failed(match is_open {
                true => format!("the engine gave no answer within {within} s"),
                false => format!("it still runs after {within} s"),
            }))
        })
    }

    /// Checks that a server that was just started has at least these counters.
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
        // If the server does not answer in time, the proof of its restart reports the problem.
        drop(timeout(AGREE_WITHIN, asking).await);
        let Ok(found) = last else { return Ok(()) };
        match wanted.iter().find(|(key, counter)| found.get(*key).is_none_or(|found| found < counter)) {
            None => Ok(()),
            Some((key, counter)) => Err(self.failed(format!(
                "expected {key} to be {counter} at least, found {:?}: it did not load the snapshot \
                 that was put there; its command may name another file (`dbfilename`), or an append-only file",
                found.get(key)
            ))),
        }
    }

    async fn start(&self, member: &Member, control: &mut Control) -> Result<(), ClusterError> {
        let engine = self.running.engine();
        if member.server().is_some() {
            let started = engine.docker().start_container(&member.container(), None::<StartContainerOptions>).await;
            let Err(error) = started else {
                control.own.started += 1;
                return Ok(());
            };
            // An engine can report an error for a start that it has made.
            if may_have_acted(&error) && self.inspect(member).await.is_ok_and(|state| state.running == Some(true)) {
                control.own.started += 1;
                return Ok(());
            }
            return Err(self.failed(explain(&error)));
        }
        let Some(outlet) = self.running.outlet() else {
            return Err(self.failed("the cluster was taken down"));
        };
        // The history has the last lines of the old process before the first line of the new process.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{
        ComposeFile,
        changes::Change,
        container::Runs,
        fake_engine::{self, DONE, FAILED, REFUSED},
    };

    #[test]
    fn of_each_key_the_largest_counter_is_taken_over() {
        let counters = |k0, k1| Counters::from([("fence:k0".to_owned(), k0), ("fence:k1".to_owned(), k1)]);
        let mut largest = Counters::new();
        for found in [counters(4, 9), counters(7, 1), counters(5, 5)] {
            raise(&mut largest, found);
        }
        assert_eq!(largest, counters(7, 9));
    }

    #[tokio::test]
    async fn a_stop_that_was_refused_is_not_ours() {
        let replies = [(REFUSED, false, false), (FAILED, false, true), ("", false, true), (DONE, true, true)];
        for (reply, is_sent, is_ours) in replies {
            let dir = tempfile::tempdir().unwrap();
            let engine = fake_engine::start(&dir, move |_| (Duration::ZERO, reply.to_owned())).await;
            let (running, node) = (fake_engine::running(&engine).await, NodeName::new("worker-1"));
            let act = Act { running: &running, node: &node, doing: "stopping" };
            assert_eq!(act.set_stopped(true).await.is_ok(), is_sent, "{reply}");
            assert_eq!(act.member().unwrap().control.lock().await.is_stopped, is_ours, "{reply}");
        }
    }

    #[tokio::test]
    async fn a_stopped_node_that_somebody_has_killed_needs_no_resume() {
        for (reply, is_over) in [(DONE, true), (REFUSED, true), (FAILED, false)] {
            let dir = tempfile::tempdir().unwrap();
            let engine = fake_engine::start(&dir, move |_| (Duration::ZERO, reply.to_owned())).await;
            let (running, node) = (fake_engine::running(&engine).await, NodeName::new("worker-1"));
            let act = Act { running: &running, node: &node, doing: "resuming it" };
            assert_eq!(act.set_stopped(false).await.is_ok(), is_over, "{reply}");
        }
    }

    #[tokio::test]
    async fn a_kill_that_found_no_running_container_explains_no_death() {
        assert_eq!(killed(REFUSED, false).await, (true, 0));
        assert_eq!(killed(DONE, false).await, (true, 1));
    }

    #[tokio::test]
    async fn a_kill_that_was_refused_and_happened_is_ours() {
        for reply in [FAILED, ""] {
            assert_eq!(killed(reply, false).await, (true, 1), "{reply}");
            assert_eq!(killed(reply, true).await, (false, 0), "{reply}");
        }
    }

    /// Kills a node. `reply` is the engine's answer to the kill, after which the container runs or not. Returns whether
    /// the kill has succeeded, and the number of deaths that it explains.
    async fn killed(reply: &'static str, runs: bool) -> (bool, usize) {
        let dir = tempfile::tempdir().unwrap();
        let answer = move |request: &str| match request {
            r if r.contains("/kill") => reply.to_owned(),
            r if r.contains("/wait") => fake_engine::json(r#"{"StatusCode":137}"#),
            _ => fake_engine::json(&format!(r#"{{"State":{{"Running":{runs}}}}}"#)),
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let (running, node) = (fake_engine::running(&engine).await, NodeName::new("worker-1"));
        let act = Act { running: &running, node: &node, doing: "killing" };
        let member = act.member().unwrap();
        let mut control = member.control.lock().await;
        let is_killed = act.kill(member, &mut control).await.is_ok();
        (is_killed, (0..2).filter(|_| control.own.explain(Change::Died)).count())
    }

    /// A run whose engine answers when nobody waits for the answer any more.
    async fn answered_late(dir: &tempfile::TempDir) -> (Running, NodeName) {
        let engine = fake_engine::start(dir, |_| (2 * AGREE_WITHIN, DONE.to_owned())).await;
        (fake_engine::running(&engine).await, NodeName::new("worker-1"))
    }

    #[tokio::test]
    async fn a_kill_that_the_engine_has_not_answered_in_time_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let (running, node) = answered_late(&dir).await;
        let act = Act { running: &running, node: &node, doing: "killing" };
        let member = act.member().unwrap();
        let mut control = member.control.lock().await;
        tokio::time::pause();
        let error = act.kill(member, &mut control).await.unwrap_err();
        assert_eq!(error.why, "the engine gave no answer within 10 s", "nobody knows whether it still runs");
        assert!(control.own.explain(Change::Died) && !control.own.explain(Change::Died));
    }

    #[tokio::test]
    async fn a_start_that_was_refused_explains_no_later_start() {
        // The answer to the start, whether the container runs then, and the starts that are ours.
        for (reply, runs, starts) in [(DONE, true, 1), (REFUSED, true, 0), (FAILED, true, 1), (FAILED, false, 0)] {
            let dir = tempfile::tempdir().unwrap();
            let answer = move |request: &str| match request.contains("/start") {
                true => reply.to_owned(),
                false => fake_engine::json(&format!(r#"{{"State":{{"Running":{runs}}}}}"#)),
            };
            let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
            let (running, node) = (fake_engine::running(&engine).await, NodeName::new("worker-1"));
            let act = Act { running: &running, node: &node, doing: "starting" };
            let mut recipe = act.member().unwrap().recipe.clone();
            let redis = ComposeFile::builtin("redis").unwrap().services.remove(0);
            recipe.node.runs = Runs::Server(Box::new(redis));
            let server = Member::new("container".to_owned(), recipe, None);
            let mut control = server.control.lock().await;
            assert_eq!(act.start(&server, &mut control).await.is_ok(), starts == 1, "{reply}");
            let explained = (0..2).filter(|_| control.own.explain(Change::Started)).count();
            assert_eq!(explained, starts, "{reply}");
        }
    }

    #[tokio::test]
    async fn a_freeze_that_the_engine_has_not_answered_in_time_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let (running, node) = answered_late(&dir).await;
        let act = Act { running: &running, node: &node, doing: "freezing" };
        let member = act.member().unwrap();
        let mut control = member.control.lock().await;
        tokio::time::pause();
        act.toggle(member, &mut control, true).await.unwrap_err();
        assert!(control.own.explain(Change::Froze) && !control.own.explain(Change::Froze));
    }

    #[tokio::test]
    async fn a_freeze_that_happened_is_ours_unless_the_engine_refused_it() {
        // Each call of the engine, and whether the inspection after it shows a frozen container.
        for (calls, is_ours) in [
            (vec![(FAILED, true)], true),
            (vec![(FAILED, false), (FAILED, true)], true),
            (vec![(DONE, false), (FAILED, true)], true),
            // The second call finds the freeze of the first one.
            (vec![(FAILED, false), (REFUSED, true)], true),
            // Somebody else has frozen the container.
            (vec![(REFUSED, true)], false),
        ] {
            let (dir, made, told) = (tempfile::tempdir().unwrap(), AtomicUsize::new(0), calls.clone());
            let answer = move |request: &str| {
                if request.ends_with("/pause") {
                    return told[made.fetch_add(1, Ordering::Relaxed)].0.to_owned();
                }
                let (_, is_frozen) = told[made.load(Ordering::Relaxed) - 1];
                fake_engine::json(&format!(r#"{{"State":{{"Running":true,"Paused":{is_frozen}}}}}"#))
            };
            let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
            let (running, node) = (fake_engine::running(&engine).await, NodeName::new("worker-1"));
            let act = Act { running: &running, node: &node, doing: "freezing" };
            let member = act.member().unwrap();
            let mut control = member.control.lock().await;
            act.toggle(member, &mut control, true).await.unwrap();
            let explained = (0..2).filter(|_| control.own.explain(Change::Froze)).count();
            assert_eq!(explained, usize::from(is_ours), "{calls:?}");
        }
    }
}
