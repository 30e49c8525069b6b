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
/// How much longer the final reads may take for each key: one read follows the other, and each waits for a disk, or for
/// a store that writes the state of all keys.
const FINAL_READ: Duration = Duration::from_millis(250);

/// Returns how long the controller waits for the final reads of so many keys.
pub fn final_reads_within(keys: usize) -> Duration {
    SLOW_ANSWERS + FINAL_READ * keys as u32
}

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
        let held = self.plan.longest_lease() * 2 + self.plan.workload.work.to;
        let patience = held + SLOW_ANSWERS + longest_silence(self.plan);
        self.until(Phase::Drain, patience, &workers, Progress::Drained).await?;

        // One worker reads all keys.
        self.begin(Phase::FinalReads);
        let mut keys: Vec<Key> = self.plan.workload.keys().take(FINAL_READS_MAX).collect();
        let patience = final_reads_within(keys.len());
        for worker in &workers {
            self.processes.finish(worker, std::mem::take(&mut keys)).await?;
        }
        self.until(Phase::FinalReads, patience, &workers, Progress::Finished).await?;

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

#[cfg(test)]
mod tests {
    use std::{
        future::{poll_fn, ready},
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        task::{Context, Poll, Wake, Waker},
    };

    use history::{ClientId, Event, Fault, FaultId, Point, Role, Stamp, Step, Target, Until, When, Workload, fault};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        Control, Doing,
        double::{Double, sees, starts},
        waits::tests,
    };

    /// True if a future was woken.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Processes that report at once, but for two reports. Notes the commands, and the connection of worker-1.
    #[derive(Default)]
    struct Slow {
        live_view: LiveView,
        now: Mutex<Duration>,
        /// The ends of all waits so far.
        ends: Mutex<Vec<Duration>>,
        /// The reports that are still to come, with their times.
        coming: Mutex<Vec<(Duration, String, Event)>>,
        said: Mutex<Vec<String>>,
        /// The time from the start of the second process of worker-1 until it is connected.
        connects_after: Duration,
        /// The time from the command to stop until a worker has ended its critical sections.
        drains_after: Duration,
        /// The time that the final reads take.
        reads_for: Duration,
    }

    fn done<'a>() -> Doing<'a, ()> {
        Box::pin(ready(Ok(())))
    }

    impl Slow {
        fn reports_later(&self, process: &str, after: Duration, event: Event) {
            let at = *self.now.lock() + after;
            self.ends.lock().push(at);
            self.coming.lock().push((at, process.to_owned(), event));
        }

        fn reports(&self, process: &str, event: Event) {
            sees(&self.live_view, process, Stamp(1), event);
        }

        fn passes(&self) {
            let now = *self.now.lock();
            let next = self.ends.lock().iter().copied().filter(|end| *end > now).min().expect("nothing is to come");
            *self.now.lock() = next;
            let coming = std::mem::take(&mut *self.coming.lock());
            let (due, later): (Vec<_>, Vec<_>) = coming.into_iter().partition(|(at, ..)| *at <= next);
            *self.coming.lock() = later;
            for (_, process, event) in due {
                if matches!(event, Event::Ready { .. }) {
                    self.said.lock().push(format!("{process} is connected"));
                }
                self.reports(&process, event);
            }
        }

        /// Takes a run to its end.
        fn run(&self, plan: &Plan) -> Result<(), ControllerError> {
            let (cluster, live_view, woken) = (Double(()), &self.live_view, Arc::<Woken>::default());
            let controller = Controller { plan, cluster: &cluster, processes: self, live_view, on_phase: &|_| {} };
            let mut running = pin!(controller.run());
            let waker = Waker::from(woken.clone());
            loop {
                if let Poll::Ready(ended) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return ended;
                }
                if !woken.0.swap(false, Ordering::Relaxed) {
                    self.passes();
                }
            }
        }
    }

    impl Control for Slow {
        fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp> {
            unreachable!("{event:?}")
        }

        fn arm<'a>(&'a self, _: ClientId, _: Point, _: Duration) -> Doing<'a, ()> {
            unreachable!("no client waits")
        }

        fn let_go<'a>(&'a self, _: ClientId) -> Doing<'a, ()> {
            unreachable!("no client waits")
        }

        fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
            let end = *self.now.lock() + lasting;
            self.ends.lock().push(end);
            Box::pin(poll_fn(move |_| match *self.now.lock() >= end {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }))
        }
    }

    impl Processes for Slow {
        fn connect(&self) -> Doing<'_, ()> {
            for process in ["resource", "agent", "worker-1", "worker-2"] {
                starts(&self.live_view, process, Stamp(1));
            }
            for worker in ["worker-1", "worker-2"] {
                self.reports(worker, Event::Ready { servers: Vec::new() });
            }
            done()
        }

        fn begin(&self) -> Doing<'_, ()> {
            // Worker-1 is killed, and started again.
            self.reports("controller", Event::ProcessEnded { ended: "worker-1".into(), code: Some(137) });
            let event = Event::Started { role: Role::Worker, boot_id: "b".into(), time_namespace: 1 };
            self.reports("worker-1#2", event);
            self.reports_later("worker-1#2", self.connects_after, Event::Ready { servers: Vec::new() });
            done()
        }

        fn stop<'a>(&'a self, worker: &'a NodeName) -> Doing<'a, ()> {
            self.said.lock().push(format!("stop {worker}"));
            let process = self.live_view.look(|view| view.process(worker)).expect("a process");
            let event = Event::Sections { offered: 0, done: 0, dropped: 0 };
            self.reports_later(process.as_str(), self.drains_after, event);
            done()
        }

        fn finish<'a>(&'a self, node: &'a NodeName, keys: Vec<Key>) -> Doing<'a, ()> {
            let keys: Vec<&str> = keys.iter().map(Key::as_str).collect();
            self.said.lock().push(format!("finish {node} [{}]", keys.join(" ")));
            let process = self.live_view.look(|view| view.process(node)).expect("a process");
            if keys.is_empty() || self.reads_for.is_zero() {
                self.reports(process.as_str(), Event::Finished);
            } else {
                self.reports_later(process.as_str(), self.reads_for, Event::Finished);
            }
            done()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn plan(schedule: Vec<Step>) -> Plan {
        let workload = Workload { workers: 2, keys: 3, ..Workload::default() };
        let waits = [(); 2].map(|()| (Until::Time, Duration::ZERO));
        Plan { schedule, workload, waits: Vec::new(), ..tests::plan(waits) }
    }

    #[test]
    fn the_processes_of_a_run_end_one_after_the_other() {
        let plan = plan(Vec::new());
        let slow = Slow { connects_after: plan.time + 5 * SECOND, drains_after: SECOND, ..Slow::default() };
        slow.run(&plan).unwrap();
        let said = [
            "worker-1#2 is connected",
            "stop worker-1",
            "stop worker-2",
            "finish worker-1 [k0 k1 k2]",
            "finish worker-2 []",
            "finish resource []",
            "finish agent []",
        ];
        assert_eq!(*slow.said.lock(), said);
    }

    #[test]
    fn a_late_phase_names_only_the_workers_that_have_not_reported() {
        let plan = plan(Vec::new());
        let slow = Slow { connects_after: plan.time + CONNECT + SECOND, ..Slow::default() };
        let late = slow.run(&plan).unwrap_err();
        let ControllerError::Late { phase, missing, .. } = &late else { panic!("{late}") };
        assert_eq!((*phase, missing.as_str()), (Phase::Drain, "worker-1"), "worker-2 is connected");
    }

    #[test]
    fn the_drain_is_longer_than_two_of_the_longest_leases() {
        // Two leases, at most 0.2 s of work, and 90 s. A renewal asks for a lease of its own, and the servers may grant
        // more than a client asks for.
        let drains = |renew_for: Option<u64>, [least_s, step_s]: [u32; 2], drains_after| {
            let mut plan = plan(Vec::new());
            plan.workload.renew_for = renew_for.map(Duration::from_secs);
            (plan.servers.least_lease, plan.servers.lease_step) = (least_s * SECOND, step_s * SECOND);
            Slow { drains_after, ..Slow::default() }.run(&plan)
        };
        let ms = Duration::from_millis;
        for (renew_for, granted, lease_s) in [
            (None, [0, 0], 2),
            (Some(1), [0, 0], 2),
            (Some(60), [0, 0], 60),
            (None, [50, 0], 50),
            (Some(60), [50, 0], 60),
            (Some(60), [0, 45], 90),
        ] {
            let longest = SECOND * 2 * lease_s + ms(200) + SLOW_ANSWERS;
            drains(renew_for, granted, longest - ms(1)).unwrap();
            let late = drains(renew_for, granted, longest + ms(1)).unwrap_err();
            let ControllerError::Late { phase, within, .. } = &late else { panic!("{late}") };
            assert_eq!((*phase, *within), (Phase::Drain, longest));
        }
    }

    #[test]
    fn the_final_reads_may_take_longer_for_more_keys() {
        let reads = |keys: u32, reads_for| {
            let mut plan = plan(Vec::new());
            plan.workload.keys = keys;
            Slow { drains_after: SECOND, reads_for, ..Slow::default() }.run(&plan)
        };
        let ms = Duration::from_millis(1);
        // No more keys are read than the most.
        for (keys, seconds) in [(4, 91), (1_000, 340), (2_000, 340)] {
            let longest = SECOND * seconds;
            reads(keys, longest - ms).unwrap();
            let late = reads(keys, longest + ms).unwrap_err();
            let ControllerError::Late { phase, within, missing } = &late else { panic!("{late}") };
            assert_eq!((*phase, *within, missing.as_str()), (Phase::FinalReads, longest, "worker-1"));
        }
    }

    #[test]
    fn the_drain_is_longer_than_any_silence_of_a_connection() {
        // No connection is silent for more than two minutes. Without a fault, a worker may take about 95 s.
        for (cuts_s, drains_s, is_in_time) in [
            (vec![], 100, false),
            (vec![10], 100, true),
            (vec![300], 210, true),
            (vec![300], 220, false),
            // The longest of them counts.
            (vec![20, 1], 110, true),
            (vec![1, 20], 110, true),
            (vec![10, 10], 110, false),
        ] {
            let step = |(cut_s, id): (&u32, u32)| {
                let fault = Fault::new(fault::Partition::default(), *cut_s * SECOND);
                // The fault phase ends first.
                let (target, when) = (Target::Node("redis-1".into()), When::At(600 * SECOND));
                Step { id: FaultId(id), fault, target, when }
            };
            let schedule = cuts_s.iter().zip(1..).map(step).collect();
            let slow = Slow { drains_after: drains_s * SECOND, ..Slow::default() };
            match slow.run(&plan(schedule)) {
                Ok(()) => assert!(is_in_time, "cuts of {cuts_s:?} s"),
                Err(error) => assert!(!is_in_time && error.to_string().contains("worker-1, worker-2"), "{error}"),
            }
        }
    }
}
