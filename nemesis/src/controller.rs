//! The controller: takes a run through its phases, on Docker and in the simulation alike.

use std::{fmt, time::Duration};

use futures::future::try_join;
use history::{Harm, Key, NodeName, Plan};
use tokio::sync::watch;

use crate::{Cluster, ClusterError, LiveView, Nemesis, NemesisError, Processes, Progress};

/// How long processes may take to connect or to end, on a machine that is busy with other runs.
const CONNECT: Duration = Duration::from_secs(30);
/// How much longer than the work the workers may take: workers wait for dead holders and for slow answers.
const SLOW_ANSWERS: Duration = Duration::from_secs(90);
/// The longest time between two retransmissions of a lost packet: Linux's `TCP_RTO_MAX`.
const RETRANSMIT_MAX: Duration = Duration::from_secs(120);
/// How many keys are read in the end. The admission log has all writes; these reads show that the log can be believed.
const FINAL_READS_MAX: usize = 1_000;

/// A phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The workers connect to the lock nodes and to the resource.
    Connect,
    /// The workers work and the nemesis injects faults, for so long.
    Faults(Duration),
    /// Everything is healed, and the workers end their critical sections.
    Drain,
    /// A worker reads the keys from the resource.
    FinalReads,
    /// Resource and agent end.
    End,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Connect => f.write_str("connecting the workers"),
            Phase::Faults(time) => write!(f, "fault phase: {}", humantime::format_duration(*time)),
            Phase::Drain => f.write_str("healed; letting the workers finish"),
            Phase::FinalReads => f.write_str("final reads"),
            Phase::End => f.write_str("ending the resource and the agent"),
        }
    }
}

/// A run could not be taken to its end.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The nemesis could not inject or heal a fault.
    #[error(transparent)]
    Nemesis(#[from] NemesisError),
    /// A command did not reach its process.
    #[error(transparent)]
    Command(#[from] ClusterError),
    /// Processes did not report in time.
    #[error("{phase}: not within {} s: still waiting for {missing}", within.as_secs())]
    Late {
        /// The phase of the run.
        phase: Phase,
        /// The time that the phase may take.
        within: Duration,
        /// The nodes that have not reported.
        missing: String,
    },
}

/// Takes a run, whose cluster is up, through its phases.
pub struct Controller<'a> {
    /// The plan of the run.
    pub plan: &'a Plan,
    /// The cluster, for the nemesis.
    pub cluster: &'a dyn Cluster,
    /// The run's own processes.
    pub processes: &'a dyn Processes,
    /// The live view of the run's events.
    pub live_view: &'a LiveView,
    /// The callback that is called at the beginning of each phase.
    pub on_phase: &'a (dyn Fn(Phase) + Sync),
}

impl Controller<'_> {
    /// The nodes of the run's own processes, in the order in which they end.
    pub fn nodes(plan: &Plan) -> impl Iterator<Item = NodeName> + '_ {
        plan.workers().chain(["resource", "agent"].map(NodeName::new))
    }

    /// Takes the run to its end, when every process has finished.
    ///
    /// # Errors
    /// A fault could not be injected or healed, or a process did not report in time.
    pub async fn run(&self) -> Result<(), ControllerError> {
        let workers: Vec<NodeName> = self.plan.workers().collect();
        let others = ["resource", "agent"].map(NodeName::new);

        self.begin(Phase::Connect);
        self.processes.connect().await?;
        self.until(Phase::Connect, CONNECT, &others, Progress::Started).await?;
        self.until(Phase::Connect, CONNECT, &workers, Progress::Connected).await?;
        self.processes.begin().await?;

        self.begin(Phase::Faults(self.plan.time));
        self.inject_faults().await?;

        // A killed worker was started again, but need not be connected yet.
        self.begin(Phase::Drain);
        self.until(Phase::Drain, CONNECT, &workers, Progress::Connected).await?;
        for worker in &workers {
            self.processes.stop(worker).await?;
        }
        // The last critical section may just have begun: it waits for a dead holder, works, and waits for slow answers.
        let patience = self.plan.lease * 2 + self.plan.workload.work.to + SLOW_ANSWERS + longest_silence(self.plan);
        self.until(Phase::Drain, patience, &workers, Progress::Drained).await?;

        // One worker reads all keys.
        self.begin(Phase::FinalReads);
        let mut keys: Vec<Key> = self.plan.workload.keys().take(FINAL_READS_MAX).collect();
        for worker in &workers {
            self.processes.finish(worker, std::mem::take(&mut keys)).await?;
        }
        self.until(Phase::FinalReads, SLOW_ANSWERS, &workers, Progress::Finished).await?;

        // The agent ends last: it stamps what happens to the others.
        self.begin(Phase::End);
        for node in &others {
            self.processes.finish(node, Vec::new()).await?;
            self.until(Phase::End, CONNECT, std::slice::from_ref(node), Progress::Finished).await?;
        }
        Ok(())
    }

    fn begin(&self, phase: Phase) {
        (self.on_phase)(phase);
    }

    /// Injects the plan's faults, and heals them, until the time of the plan is over, or a fault has failed and all
    /// other faults are healed.
    async fn inject_faults(&self) -> Result<(), ControllerError> {
        let (over, phase) = watch::channel(false);
        let nemesis =
            Nemesis { cluster: self.cluster, control: self.processes, live_view: self.live_view, over: phase };
        let time = async {
            let slept = self.processes.sleep(self.plan.time).await;
            over.send_replace(true);
            Ok::<_, NemesisError>(slept)
        };
        // After an error of the nemesis the rest of the time would show nothing.
        let ((), slept) = try_join(nemesis.run(self.plan), time).await?;
        Ok(slept?)
    }

    /// Waits until the processes on `nodes` have come as far as `progress`.
    async fn until(
        &self,
        phase: Phase,
        within: Duration,
        nodes: &[NodeName],
        progress: Progress,
    ) -> Result<(), ControllerError> {
        // Progress is not lost while the controller waits, so each look goes on where the last one ended.
        let mut missing = nodes;
        let reached = |view: &crate::View| {
            while let [node, others @ ..] = missing {
                if view.progress(node) < Some(progress) {
                    return None;
                }
                missing = others;
            }
            Some(())
        };
        if self.live_view.within(self.processes, within, reached).await.is_some() {
            return Ok(());
        }
        let is_missing = |node: &&NodeName| self.live_view.look(|view| view.progress(node)) < Some(progress);
        let missing: Vec<_> = nodes.iter().filter(is_missing).map(NodeName::as_str).collect();
        Err(ControllerError::Late { phase, within, missing: missing.join(", ") })
    }
}

/// Returns how long a connection may be silent after the last fault of the plan. TCP doubles its retransmission timeout
/// each time, so a packet that was lost all the time is sent again at most that time later.
fn longest_silence(plan: &Plan) -> Duration {
    let cuts = plan.schedule.iter().filter(|step| step.fault.kind().harm() == Harm::DropsPackets);
    cuts.map(|step| step.fault.lasting.min(RETRANSMIT_MAX)).max().unwrap_or_default()
}
