//! Conducting one run: bring up, start, faults, heal, finish, take down. Commands go down from here, events come up to here.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use compose::{Engine, Reached, Spec};
use history::{ClientId, Key, NodeName, Plan};
use nemesis::{Nemesis, Scene};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use workloads::{
    backend,
    protocol::{Command, Configuration},
};

use crate::{
    control::Processes,
    process::{AgentCommand, ResourceCommand},
    pump::{Answers, Call, Progress, Pump, Stamps},
    report::{Terminal, versions},
    run_dir::RunDir,
    scenario::PlanFile,
};

/// How long processes may take to start and to connect, on a machine that is busy with other runs.
const CONNECT: Duration = Duration::from_secs(30);
/// How many keys are read in the end: the admission log has them all, this only shows that it can be believed.
const LOOK_AT_MAX: u32 = 1_000;

/// Conducts the run. Whatever comes of it, the caller takes the cluster down.
pub async fn conduct(
    engine: &Engine,
    file: &PlanFile,
    dir: &RunDir,
    keep: bool,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    let scene = Arc::new(Scene::new());
    let stamps: Stamps = Arc::new(Mutex::default());
    let orders = Answers::default();
    let (mut pump, mut calls) = Pump::begin(dir, &file.run, &file.plan, scene.clone(), stamps.clone(), orders.clone())?;
    let spec = spec(file, keep)?;
    terminal.progress("bringing the cluster up");
    let began = Instant::now();
    let (cluster, mut events) = compose::up(engine, &spec, &|what| terminal.progress(what)).await?;
    terminal.progress(&format!("up and answering after {:.1} s", began.elapsed().as_secs_f64()));

    let processes = Processes { cluster: &cluster, stamps, orders, plan: &file.plan, terminal };
    let conductor = Conductor { file, keep, processes, scene: &scene, progress: pump.progress(), terminal };
    let conducted = {
        let mut pumping = std::pin::pin!(pump.run(&mut events));
        let mut conducting = std::pin::pin!(conductor.conduct(&mut calls));
        tokio::select! {
            // The pump ends by itself only when something is wrong, or when every process has finished.
            pumped = &mut pumping => match pumped {
                Ok(()) => conducting.await,
                Err(error) => Err(error),
            },
            conducted = &mut conducting => match conducted {
                Ok(()) => pumping.await,
                Err(error) => Err(error),
            },
        }
    };
    if conducted.is_ok() {
        pump.end()?;
    }
    pump.write_logs()?;
    for node in &file.plan.lock_nodes {
        let log = cluster.logs(node).await.unwrap_or_else(|e| format!("{e}\n").into_bytes());
        dir.write(&dir.log(node.as_str()), log)?;
    }
    conducted?;
    let high_water = cluster.high_water();
    terminal.progress(&format!("recorded, {high_water} events in the queue at most; taking the cluster down"));
    let began = Instant::now();
    cluster.down().await?;
    terminal.progress(&format!("down after {:.1} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// What the engine has to start.
fn spec(file: &PlanFile, keep: bool) -> anyhow::Result<Spec> {
    let own = |args: &[&str]| args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
    let arms: Vec<_> = file.plan.arms.iter().map(|a| a.name()).collect();
    let mut resource_args = own(&["/harness", "resource", "--arms", &arms.join(",")]);
    if file.plan.fence == history::Comparison::Strict {
        resource_args.push("--strict".into());
    }
    if let Some(bug) = &file.resource_bug {
        resource_args.extend(own(&["--buggy", bug, "--seed", &file.plan.seed.to_string()]));
    }
    Ok(Spec {
        run: file.run.clone(),
        servers: file.servers()?,
        workers: file.plan.workload.workers as usize,
        images: file.images.clone(),
        keep,
        binary: binary()?,
        resource_args,
        worker_args: own(&["/harness", "worker"]),
        agent_args: own(&["/harness", "agent"]),
        reaches: file.plan.schedule.iter().any(|step| step.fault.kind().reaches_in()),
    })
}

/// This very binary: it must run in any container, so it must need nothing that a container may lack.
fn binary() -> anyhow::Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64", target_feature = "crt-static")) {
        bail!(
            "this harness was not built as a static binary for x86-64 Linux, so it cannot run inside containers; build it with `cargo build` in its repository"
        );
    }
    std::env::current_exe().context("finding the harness's own binary")
}

struct Conductor<'a> {
    file: &'a PlanFile,
    /// Whether the servers outlive the run.
    keep: bool,
    processes: Processes<'a>,
    scene: &'a Scene,
    progress: watch::Receiver<Progress>,
    terminal: &'a Terminal,
}

impl Conductor<'_> {
    fn plan(&self) -> &Plan {
        &self.file.plan
    }

    /// Waits until the processes have come as far as `enough` says.
    async fn until(
        &self,
        within: Duration,
        what: &str,
        enough: impl Fn(&Progress) -> Result<(), String>,
    ) -> anyhow::Result<()> {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(|p| enough(p).is_ok());
        let missing = match tokio::time::timeout(within, reached).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => "the recorder has ended".to_owned(),
            Err(_) => enough(&self.progress.borrow()).err().unwrap_or_default(),
        };
        Err(anyhow!("{what}: not within {} s: {missing}", within.as_secs()))
    }

    fn all(nodes: &[NodeName], reached: impl Fn(&NodeName) -> bool) -> Result<(), String> {
        let missing: Vec<_> = nodes.iter().filter(|n| !reached(n)).map(NodeName::as_str).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("still waiting for {}", missing.join(", "))) }
    }

    async fn conduct(&self, calls: &mut mpsc::UnboundedReceiver<Call>) -> anyhow::Result<()> {
        let (begun, begin) = watch::channel(false);
        let staff = std::pin::pin!(self.staff(calls, begin));
        let acts = std::pin::pin!(self.acts(&begun));
        tokio::select! {
            failed = staff => failed,
            done = acts => done,
        }
    }

    /// Configures every worker that starts, and starts every one that is connected: also those that come back after a kill.
    async fn staff(
        &self,
        calls: &mut mpsc::UnboundedReceiver<Call>,
        mut begin: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        // The first process of a worker has the worker's number, so that what it offers comes from the plan alone; those that come after
        // kills get the numbers that follow.
        let mut fresh: BTreeSet<NodeName> = self.plan().workers().collect();
        let mut next = self.plan().workload.workers;
        let mut early = Vec::new();
        loop {
            tokio::select! {
                call = calls.recv() => match call {
                    None => bail!("the recorder has ended"),
                    Some(Call::Configure(node)) => {
                        let mut configuration = self.configuration(&node)?;
                        if !fresh.remove(&node) {
                            configuration.process = next;
                            next += 1;
                        }
                        self.processes.send(&node, &Command::Configure(Box::new(configuration)))?;
                    }
                    Some(Call::Start(node)) if *begin.borrow() => self.processes.send(&node, &Command::Start)?,
                    Some(Call::Start(node)) => early.push(node),
                },
                Ok(()) = begin.changed() => {
                    for node in early.drain(..) {
                        self.processes.send(&node, &Command::Start)?;
                    }
                }
            }
        }
    }

    fn configuration(&self, node: &NodeName) -> anyhow::Result<Configuration> {
        let index = node.as_str().strip_prefix("worker-").and_then(|n| n.parse::<u32>().ok()).filter(|n| *n > 0);
        let index = index.with_context(|| format!("{node} is no worker"))? - 1;
        let plan = self.plan().clone();
        let (backend, _) = backend::named(&self.file.backend)?;
        Ok(Configuration {
            process: index,
            first_client: ClientId(index * plan.workload.clients_per_worker),
            backend: self.file.backend.clone(),
            lock_nodes: plan.lock_nodes.iter().map(|n| (n.clone(), format!("{n}:{}", backend.port))).collect(),
            resource: format!("http://resource:{}", crate::process::RESOURCE_PORT),
            plan,
        })
    }

    /// The acts of a run, one after the other.
    async fn acts(&self, begun: &watch::Sender<bool>) -> anyhow::Result<()> {
        let plan = self.plan();
        let workers: Vec<_> = plan.workers().collect();
        let (resource, agent) = (NodeName::new("resource"), NodeName::new("agent"));
        let ours: Vec<_> = workers.iter().cloned().chain([resource.clone(), agent.clone()]).collect();

        self.until(CONNECT, "starting our processes", |p| Self::all(&ours, |n| p.started.contains_key(n))).await?;
        self.until(CONNECT, "connecting the workers", |p| Self::all(&workers, |n| p.ready.contains(n))).await?;
        let cluster = Reached::new(self.processes.cluster, &self.processes);
        // A fault that cannot be done must not look like one that did nothing: the run ends before anything was measured.
        cluster.is_able(plan).await?;
        self.terminal.begins(&versions(&self.progress.borrow().servers));
        begun.send_replace(true);

        self.terminal.progress(&format!("fault phase: {}", humantime::format_duration(plan.time)));
        let (over, phase) = watch::channel(false);
        let nodes = self.processes.cluster.addresses().map(|(node, address)| (node.clone(), address)).collect();
        self.processes.send(&agent, &AgentCommand::Know { nodes })?;
        let nemesis = Nemesis { cluster: &cluster, control: &self.processes, scene: self.scene, over: phase };
        let time = async {
            tokio::time::sleep(plan.time).await;
            over.send_replace(true);
        };
        let (injected, ()) = tokio::join!(nemesis.run(plan), time);
        injected?;

        // Everything is healed: a worker that was killed is back, one that was frozen runs.
        self.terminal.progress("healed; letting the workers finish");
        self.until(CONNECT, "reconnecting the workers", |p| Self::all(&workers, |n| p.ready.contains(n))).await?;
        for worker in &workers {
            self.processes.send(worker, &Command::Stop)?;
        }
        // The last section may have begun just now: it waits for a dead holder, works, and waits for slow answers.
        let patience = plan.lease * 2 + plan.workload.work.to + Duration::from_secs(90);
        self.until(patience, "finishing the work", |p| Self::all(&workers, |n| p.drained.contains(n))).await?;
        let keys = (0..plan.workload.keys.min(LOOK_AT_MAX)).map(|k| Key::new(format!("k{k}"))).collect();
        let mut look_at = Some(keys);
        for worker in &workers {
            self.processes.send(worker, &Command::Finish { look_at: look_at.take().unwrap_or_default() })?;
        }
        self.until(CONNECT, "the final reads", |p| Self::all(&workers, |n| p.finished.contains(n))).await?;
        self.processes.send(&resource, &ResourceCommand::Finish)?;
        self.until(CONNECT, "ending the resource", |p| {
            Self::all(std::slice::from_ref(&resource), |n| p.finished.contains(n))
        })
        .await?;
        if self.keep {
            cluster.restore_clocks().await.context("making the clocks of the servers that stay right")?;
        }
        self.processes.send(&agent, &AgentCommand::Finish)?;
        self.until(CONNECT, "ending the agent", |p| Self::all(std::slice::from_ref(&agent), |n| p.finished.contains(n)))
            .await
    }
}
