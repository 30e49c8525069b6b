//! The run's own processes on Docker: the commands of the controller and of the nemesis, as lines on standard input.

use std::time::Duration;

use anyhow::Context;
use compose::{DockerCluster, Running};
use history::{ClientId, Event, FaultPhase, Key, NodeName, Plan, Point, Record, Role, Stamp};
use nemesis::{ClusterError, Control, Doing, Processes};
use parking_lot::Mutex;
use workloads::protocol::{Command, Configuration};

use crate::{
    agent::Agent,
    host_clock::HostClock,
    own_servers,
    plan_file::PlanFile,
    process::{RESOURCE_PORT, ResourceCommand},
    report::{Terminal, versions},
    standard_input::send,
    versions::Versions,
};

/// Workers, resource and agent of a running cluster.
pub struct DockerProcesses<'a> {
    file: &'a PlanFile,
    running: &'a Running,
    cluster: &'a DockerCluster<'a>,
    agent: &'a Agent<'a>,
    /// True if the servers outlive the run.
    keep: bool,
    terminal: &'a Terminal,
    workers: Mutex<Workers>,
    host_clock: HostClock,
}

struct Workers {
    /// The number of the next process that is started after a kill.
    next: u32,
    have_begun: bool,
    servers: Versions,
}

impl<'a> DockerProcesses<'a> {
    /// The processes of `running`.
    pub fn new(
        file: &'a PlanFile,
        running: &'a Running,
        cluster: &'a DockerCluster<'a>,
        agent: &'a Agent<'a>,
        keep: bool,
        terminal: &'a Terminal,
    ) -> DockerProcesses<'a> {
        let workers = Workers { next: file.plan.workload.workers, have_begun: false, servers: Versions::default() };
        DockerProcesses {
            file,
            running,
            cluster,
            agent,
            keep,
            terminal,
            workers: Mutex::new(workers),
            host_clock: HostClock::default(),
        }
    }

    fn plan(&self) -> &Plan {
        &self.file.plan
    }

    fn send(&self, node: &NodeName, command: &Command) -> Result<(), ClusterError> {
        send(self.running, node, command)
    }

    /// The wall clock of the containers' kernel, as the agent samples it.
    pub fn host_clock(&self) -> &HostClock {
        &self.host_clock
    }

    /// Takes an event that the process on `node` has reported. A worker that was started again is configured, and
    /// begins.
    pub fn see(&self, node: &NodeName, incarnation: u32, record: &Record) -> anyhow::Result<()> {
        match &record.event {
            Event::Started { role: Role::Worker, .. } if incarnation > 1 => {
                let process = {
                    let mut workers = self.workers.lock();
                    workers.next += 1;
                    workers.next - 1
                };
                self.configure(node, Some(process))?;
            }
            Event::Ready { servers } => {
                let have_begun = {
                    let mut workers = self.workers.lock();
                    workers.servers.add(servers);
                    workers.have_begun
                };
                if have_begun {
                    self.send(node, &Command::Start)?;
                }
            }
            Event::Clocks { wall_ns, .. } if node.as_str() == "agent" => self.host_clock.sample(*wall_ns),
            _ => self.agent.see(record)?,
        }
        Ok(())
    }

    fn configure(&self, node: &NodeName, process: Option<u32>) -> anyhow::Result<()> {
        let configuration = configuration(self.file, node, process)?;
        Ok(self.send(node, &Command::Configure(Box::new(configuration)))?)
    }
}

/// Returns the configuration of a process of the worker on `node`. The first process has the worker's own number, so
/// that the offered work depends on the plan alone. Each process has the worker's clients.
fn configuration(file: &PlanFile, node: &NodeName, process: Option<u32>) -> anyhow::Result<Configuration> {
    let index = file.plan.workers().position(|worker| worker == *node);
    let index = index.with_context(|| format!("{node} is no worker"))? as u32;
    let (plan, namespace) = (file.plan.clone(), file.namespace());
    Ok(Configuration {
        process: process.unwrap_or(index),
        first_client: ClientId(index * plan.workload.clients_per_worker),
        backend: file.backend.clone(),
        lock_nodes: own_servers::addresses(&plan),
        access: own_servers::with_schema(&file.access, &file.backend, &namespace),
        namespace,
        resource: format!("http://resource:{RESOURCE_PORT}"),
        plan,
    })
}

/// A line about a fault for people who watch the run.
fn news(event: &Event) -> Option<String> {
    let Event::Fault { fault, kind, node, phase } = event else { return None };
    let what = match phase {
        FaultPhase::Requested { asked_ns, .. } => format!("for {:.1} s", *asked_ns as f64 / 1e9),
        FaultPhase::Unproved { why } => format!("NOT PROVED: {why}"),
        FaultPhase::Unplanned { .. } => "began, and NOBODY PLANNED IT".into(),
        FaultPhase::UnplannedOver { .. } => "is over (unplanned)".into(),
        FaultPhase::MissedTarget => "missed its target: the hold had been released".into(),
        _ => return None,
    };
    Some(format!("fault {}: {kind} {node} {what}", fault.0))
}

fn done<'a>(result: Result<(), ClusterError>) -> Doing<'a, ()> {
    Box::pin(std::future::ready(result))
}

impl Control for DockerProcesses<'_> {
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp> {
        if let Some(news) = news(&event) {
            self.terminal.progress(&news);
        }
        Box::pin(self.agent.stamp(event))
    }

    fn arm<'a>(&'a self, client: ClientId, point: Point, bound: Duration) -> Doing<'a, ()> {
        let bound_ms = bound.as_millis() as u64;
        done(self.send(&self.plan().worker_of(client), &Command::Arm { client, point, bound_ms }))
    }

    fn let_go<'a>(&'a self, client: ClientId) -> Doing<'a, ()> {
        done(self.send(&self.plan().worker_of(client), &Command::Go { client }))
    }

    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
        let sleep = tokio::time::sleep(lasting);
        Box::pin(async move {
            sleep.await;
            Ok(())
        })
    }
}

impl Processes for DockerProcesses<'_> {
    fn connect(&self) -> Doing<'_, ()> {
        let failed = |node, e: anyhow::Error| ClusterError { node, doing: "configuring", why: format!("{e:#}") };
        let mut workers = self.plan().workers();
        done(workers.try_for_each(|worker| self.configure(&worker, None).map_err(|e| failed(worker, e))))
    }

    fn begin(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            self.agent.know(self.running.addresses().map(|(node, address)| (node.clone(), address)).collect())?;
            {
                let mut workers = self.workers.lock();
                workers.have_begun = true;
                self.terminal.begins(&versions(&workers.servers.of(self.plan())));
            }
            self.plan().workers().try_for_each(|worker| self.send(&worker, &Command::Start))
        })
    }

    fn stop<'a>(&'a self, worker: &'a NodeName) -> Doing<'a, ()> {
        done(self.send(worker, &Command::Stop))
    }

    fn finish<'a>(&'a self, node: &'a NodeName, keys: Vec<Key>) -> Doing<'a, ()> {
        Box::pin(async move {
            match node.as_str() {
                "resource" => send(self.running, node, &ResourceCommand::Finish),
                "agent" => {
                    if self.keep {
                        self.cluster.restore_clocks().await?;
                    }
                    self.agent.finish()
                }
                _ => self.send(node, &Command::Finish { final_reads: keys }),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_restarted_worker_keeps_its_clients() {
        let scenario = Scenario::of("redlock").unwrap();
        let mut file = scenario.file("run".into(), scenario.base.clone());
        let w = &mut file.plan.workload;
        (w.workers, w.clients_per_worker) = (3, 2);
        let worker = NodeName::new("worker-2");
        for (process, number) in [(None, 1), (Some(3), 3), (Some(4), 4)] {
            let made = configuration(&file, &worker, process).unwrap();
            assert_eq!((made.process, made.first_client, made.node()), (number, ClientId(2), worker.clone()));
        }
    }
}
