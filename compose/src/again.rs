//! Injects the active faults of links and clocks of a node again after a restart: the node has new processes and a new
//! network.

use std::time::Duration;

use agent::protocol::{ClockAnswer, ClockRequest, ClocksAhead, PacketRequest};
use history::{ClockChange, NodeName, WhichClock};
use nemesis::ClusterError;
use tokio::time::sleep;

use crate::reach::{DockerCluster, failed};

const DOING: &str = "injecting its faults again after its restart";
/// The engine reports a start shortly before the container's process loads its program, which has right clocks. So the
/// clocks are read after this time, and set again if they are right, at most so often.
const LOADED_AFTER: Duration = Duration::from_millis(50);
const TRIES_MAX: u32 = 20;
/// A strobe leaves the clock right half of the time, so its clock is read again after these times, which differ: a fast
/// strobe could be in its right half at each reading of equal distance.
const STROBE_AGAIN_MS: [u64; 7] = [3, 7, 11, 17, 23, 31, 41];
/// The interval and the number of looks for the next process of a node: somebody may take some seconds to start the
/// node again.
const START_LOOK: Duration = Duration::from_millis(100);
const START_LOOKS: u32 = 50;

impl DockerCluster<'_> {
    /// Injects the active faults of `node` again if the node has restarted since. For a restart that no fault of the
    /// plan caused, too. If the node ends meanwhile, its next start injects the faults.
    ///
    /// # Errors
    /// The process of the node goes on, and a fault could not be injected again.
    pub async fn again(&self, node: &NodeName) -> Result<(), ClusterError> {
        let member = self.member(node, DOING)?;
        let _alone = member.control.lock().await;
        let Some(pid) = self.pid_if_up(node, DOING).await? else { return Ok(()) };
        match self.again_alone(node, DOING).await {
            // Somebody may have started the node once more. The engine reports that start, too.
            Err(_) if self.has_ended(&[(node, pid)]).await? => Ok(()),
            done => done.map(drop),
        }
    }

    /// As [`DockerCluster::again`], for a caller that holds the lock of the node. Returns the pid of the node.
    pub(crate) async fn again_alone(&self, node: &NodeName, doing: &'static str) -> Result<i32, ClusterError> {
        let pid = self.pid(node, doing).await?;
        let (links, clocks) = {
            let on = self.on();
            let links = on.links.iter().filter(|(_, link)| link.node == *node && link.pid != pid);
            let links: Vec<_> = links.map(|(fault, link)| (*fault, link.what.clone())).collect();
            (links, on.clocks.get(node).filter(|set| set.pid != pid).map(|set| set.changes.clone()))
        };
        for (fault, what) in links {
            self.packets(node, PacketRequest::Inject { fault, pid, what }).await?;
            if let Some(link) = self.on().links.get_mut(&fault) {
                link.pid = pid;
            }
        }
        if let Some(changes) = clocks {
            self.set_clocks_again(node, pid, &changes).await?;
            if let Some(set) = self.on().clocks.get_mut(node) {
                set.pid = pid;
            }
        }
        Ok(pid)
    }

    /// Does something with the process of `node`, when the active faults of the node are on it. If the process ends
    /// before that is done, does it with the next process: somebody may restart the node during a fault. For a caller
    /// that holds the lock of the node.
    ///
    /// # Errors
    /// The error of a process that goes on; or the node has no process for some seconds.
    pub(crate) async fn with_process<T, F>(
        &self,
        node: &NodeName,
        doing: &'static str,
        act: impl Fn(i32) -> F + Send,
    ) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, ClusterError>> + Send,
    {
        for _ in 0..START_LOOKS {
            let Some(pid) = self.pid_if_up(node, doing).await? else {
                sleep(START_LOOK).await;
                continue;
            };
            let done = match self.again_alone(node, doing).await {
                Ok(now) if now == pid => act(pid).await,
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            match done {
                Err(_) if self.has_ended(&[(node, pid)]).await? => {}
                done => return done,
            }
        }
        Err(failed(node, doing, "it has no process"))
    }

    /// Changes a clock of the processes of `node`. A jump is not taken back from a right clock, which would be wrong
    /// afterwards: a server whose container begins with a script may have loaded its program after the jump.
    pub(crate) async fn change_clock(
        &self,
        node: &NodeName,
        pid: i32,
        clock: WhichClock,
        change: ClockChange,
    ) -> Result<(), ClusterError> {
        if self.takes_back(node, change)
            && let ClockAnswer::Ahead(ClocksAhead { wall_ns: 0, .. }) =
                self.clocks(node, ClockRequest::Ahead { pid }).await?
        {
            return Ok(());
        }
        self.clocks(node, ClockRequest::Change { pid, clock, change }).await.map(drop)
    }

    /// Returns whether the change takes back a jump of `node`.
    fn takes_back(&self, node: &NodeName, change: ClockChange) -> bool {
        let ClockChange::JumpMs(by) = change else { return false };
        let is_jump = |(_, on): &(WhichClock, ClockChange)| *on == ClockChange::JumpMs(-by);
        self.on().clocks.get(node).is_some_and(|set| set.changes.iter().any(is_jump))
    }

    async fn set_clocks_again(
        &self,
        node: &NodeName,
        pid: i32,
        changes: &[(WhichClock, ClockChange)],
    ) -> Result<(), ClusterError> {
        for _ in 0..TRIES_MAX {
            for &(clock, change) in changes {
                self.clocks(node, ClockRequest::Change { pid, clock, change }).await?;
            }
            sleep(LOADED_AFTER).await;
            if changes.is_empty() || self.are_changed(node, pid, changes).await? {
                return Ok(());
            }
        }
        Err(failed(node, DOING, "the clocks of its new process stay right"))
    }

    /// Returns whether the process of `node` reads a clock that is not right.
    async fn are_changed(
        &self,
        node: &NodeName,
        pid: i32,
        changes: &[(WhichClock, ClockChange)],
    ) -> Result<bool, ClusterError> {
        let right = ClockAnswer::Ahead(ClocksAhead::default());
        let is_strobe = changes.iter().any(|(_, change)| matches!(change, ClockChange::Strobe { .. }));
        let mut again = STROBE_AGAIN_MS.iter().filter(|_| is_strobe);
        loop {
            if self.clocks(node, ClockRequest::Ahead { pid }).await? != right {
                return Ok(true);
            }
            let Some(&after_ms) = again.next() else { return Ok(false) };
            sleep(Duration::from_millis(after_ms)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use agent::protocol::{Answer, Links, Order, PacketFault, PacketTally};
    use history::{CutMode, Direction, Fault, FaultId, fault::Partition};
    use nemesis::{Cluster, Data, Doing};
    use parking_lot::Mutex;
    use tokio::time::{Instant, pause};

    use super::*;
    use crate::{
        fake_engine,
        reach::{AgentPort, LinkFault, SetClocks},
    };

    /// An agent that changes the wall clock of one process.
    #[derive(Default)]
    struct Double(Mutex<Vec<(Instant, ClockChange)>>);

    impl AgentPort for Double {
        fn order<'a>(&'a self, _: &'a NodeName, order: Order) -> Doing<'a, Answer> {
            let mut changes = self.0.lock();
            let answer = match order {
                Order::Clocks(ClockRequest::Change { pid, change, .. }) => {
                    changes.push((Instant::now(), change));
                    ClockAnswer::Done { pids: vec![pid] }
                }
                Order::Clocks(ClockRequest::Ahead { .. }) => {
                    let wall_ms = match changes.last() {
                        Some((_, ClockChange::JumpMs(by_ms))) => *by_ms,
                        Some((since, ClockChange::Strobe { by_ms, every_ms }))
                            if since.elapsed().as_millis() / u128::from(*every_ms) % 2 == 0 =>
                        {
                            *by_ms
                        }
                        _ => 0,
                    };
                    ClockAnswer::Ahead(ClocksAhead { wall_ns: wall_ms * 1_000_000, ..ClocksAhead::default() })
                }
                other => unreachable!("{other:?}"),
            };
            Box::pin(std::future::ready(Ok(Answer::Clocks(answer))))
        }
    }

    /// An agent that finds no process.
    struct Blind;

    impl AgentPort for Blind {
        fn order<'a>(&'a self, node: &'a NodeName, _: Order) -> Doing<'a, Answer> {
            Box::pin(std::future::ready(Err(failed(node, DOING, "no such process"))))
        }
    }

    #[tokio::test]
    async fn a_node_that_restarts_once_more_meanwhile_is_no_error() {
        // The pid at each look of the engine. The last one stays.
        for (pids, is_over) in [(vec![7, 7, 8], true), (vec![7, 7, 0], true), (vec![0], true), (vec![7], false)] {
            let (dir, looks) = (tempfile::tempdir().unwrap(), AtomicUsize::new(0));
            let seen = pids.clone();
            let answer = move |_: &str| {
                let pid = seen[looks.fetch_add(1, Ordering::Relaxed).min(seen.len() - 1)];
                (Duration::ZERO, fake_engine::json(&format!(r#"{{"State":{{"Pid":{pid}}}}}"#)))
            };
            let engine = fake_engine::start(&dir, answer).await;
            let running = fake_engine::running(&engine).await;
            let cluster = DockerCluster::new(&running, &Blind, 1);
            let node = NodeName::new("worker-1");
            let changes = vec![(WhichClock::Wall, ClockChange::JumpMs(500))];
            cluster.on().clocks.insert(node.clone(), SetClocks { changes, pid: 6 });
            assert_eq!(cluster.again(&node).await.is_ok(), is_over, "{pids:?}");
        }
    }

    #[tokio::test]
    async fn the_clocks_of_a_new_process_are_set_once() {
        let dir = tempfile::tempdir().unwrap();
        let running = fake_engine::all_running(&dir).await;
        let (agent, node) = (Double::default(), NodeName::new("worker-1"));
        let cluster = DockerCluster::new(&running, &agent, 1);
        let changes = vec![(WhichClock::Wall, ClockChange::JumpMs(500))];
        cluster.on().clocks.insert(node.clone(), SetClocks { changes, pid: 6 });
        for _ in 0..2 {
            cluster.again(&node).await.unwrap();
        }
        assert_eq!(agent.0.lock().len(), 1, "a second jump would add to the first one");
    }

    #[tokio::test]
    async fn a_jump_is_not_taken_back_from_a_process_that_has_right_clocks() {
        let dir = tempfile::tempdir().unwrap();
        let running = fake_engine::all_running(&dir).await;
        let (jump, back) = (ClockChange::JumpMs(500), ClockChange::JumpMs(-500));
        // The process was started again, and has loaded its program after the jump, or not.
        for (on_process, expected) in [(Vec::new(), Vec::new()), (vec![jump], vec![jump, back])] {
            let (agent, node) = (Double::default(), NodeName::new("worker-1"));
            let cluster = DockerCluster::new(&running, &agent, 1);
            let changes = vec![(WhichClock::Wall, jump)];
            cluster.on().clocks.insert(node.clone(), SetClocks { changes, pid: 7 });
            agent.0.lock().extend(on_process.into_iter().map(|change| (Instant::now(), change)));
            cluster.set_clock(&node, WhichClock::Wall, back).await.unwrap();
            let made: Vec<ClockChange> = agent.0.lock().iter().map(|(_, change)| *change).collect();
            assert_eq!(made, expected);
            assert!(cluster.on().clocks[&node].changes.is_empty(), "the fault is off");
        }
    }

    /// An agent that notes the faults of links that it is to inject, each with its process.
    #[derive(Default)]
    struct Injector(Mutex<Vec<(FaultId, i32)>>);

    impl AgentPort for Injector {
        fn order<'a>(&'a self, _: &'a NodeName, order: Order) -> Doing<'a, Answer> {
            if let Order::Packets(PacketRequest::Inject { fault, pid, .. }) = order {
                self.0.lock().push((fault, pid));
            }
            Box::pin(std::future::ready(Ok(Answer::Packets(PacketTally::default()))))
        }
    }

    #[tokio::test]
    async fn a_node_that_starts_gets_the_faults_of_links_that_are_on_and_no_healed_one() {
        let dir = tempfile::tempdir().unwrap();
        let running = fake_engine::all_running(&dir).await;
        let (agent, node) = (Injector::default(), NodeName::new("worker-1"));
        let cluster = DockerCluster::new(&running, &agent, 1);
        for fault in [FaultId(1), FaultId(2)] {
            let what = PacketFault::Partition { links: Links::default(), cut: CutMode::Drop };
            cluster.on().links.insert(fault, LinkFault { node: node.clone(), what, pid: 6 });
        }
        cluster.heal_links(&node, FaultId(1)).await.unwrap();
        cluster.start(&node, Data::Kept).await.unwrap();
        assert_eq!(*agent.0.lock(), [(FaultId(2), 7)]);
    }

    #[tokio::test]
    async fn a_strobe_in_its_second_half_is_on() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake_engine::start(&dir, |_| (Duration::ZERO, String::new())).await;
        let running = fake_engine::running(&engine).await;
        pause();
        for every_ms in [10, 26, 30, 40, 50, 100] {
            let agent = Double::default();
            let strobe = ClockChange::Strobe { by_ms: 4_000, every_ms };
            let cluster = DockerCluster::new(&running, &agent, 1);
            cluster.set_clocks_again(&"worker-1".into(), 7, &[(WhichClock::Wall, strobe)]).await.unwrap();
            assert_eq!(agent.0.lock().len(), 1, "every {every_ms} ms: it is not changed again");
        }
    }

    #[tokio::test]
    async fn a_fault_of_links_waits_for_a_node_that_somebody_restarts() {
        let (dir, looks) = (tempfile::tempdir().unwrap(), AtomicUsize::new(0));
        let answer = move |_: &str| {
            let pid = if looks.fetch_add(1, Ordering::Relaxed) == 0 { 0 } else { 7 };
            (Duration::ZERO, fake_engine::json(&format!(r#"{{"State":{{"Running":true,"Pid":{pid}}}}}"#)))
        };
        let engine = fake_engine::start(&dir, answer).await;
        let running = fake_engine::running(&engine).await;
        let (agent, node) = (Injector::default(), NodeName::new("worker-1"));
        let cluster = DockerCluster::new(&running, &agent, 1);
        let cut = Fault::new(Partition { cut: CutMode::Drop }, Duration::from_secs(1));
        let cut = cut.on_links(Direction::Both, Vec::new());
        cluster.inject_links(&node, FaultId(1), &cut).await.unwrap();
        assert_eq!(*agent.0.lock(), [(FaultId(1), 7)]);
    }
}
