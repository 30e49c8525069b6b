//! One run on Docker: brings the cluster up, lets the controller take the run to its end, takes the cluster down.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use anyhow::bail;
use compose::{BINARY, DockerCluster, Engine, File, OwnServer, ResourceStore, Running, STORE_ROLE, Spec};
use history::{FaultKind, MadeBy, NodeName, Plan};
use nemesis::{Controller, ControllerError, LiveView};
use tokio::time::Instant;

use crate::{
    agent::Agent, exit::Unusable, own_servers, plan_file::PlanFile, processes::DockerProcesses, program,
    recorder::Recorder, remove_keys::remove_keys, report::Terminal, run_dir::RunDir, unplanned::UnplannedFaults,
};

/// The parts of a run that its caller needs, also if a signal ends the run.
#[derive(Debug, Default)]
pub struct Left {
    /// The cluster, when it is up. While the cluster is there, its agent runs, and no sweep removes it.
    pub cluster: Option<Running>,
    /// The reason why the run has failed, while its logs are read.
    pub failure: Option<anyhow::Error>,
}

/// Runs the plan of `file`, and returns the ids of the images by role. If that fails, the caller takes the cluster
/// down.
pub async fn run(
    engine: &Engine,
    file: &PlanFile,
    dir: &RunDir,
    made_by: MadeBy,
    keep: bool,
    terminal: &Terminal,
    left: &mut Left,
) -> anyhow::Result<BTreeMap<String, String>> {
    let live_view = Arc::new(LiveView::new());
    let files = program::files(file)?;
    program::keep(&files, dir)?;
    let own = own_servers::resolve(&file.plan).await?;
    let spec = spec(file, files, own, keep)?;
    terminal.progress("bringing the cluster up");
    let began = Instant::now();
    let (running, mut queue) = compose::up_or_leave(engine, &spec, &|what| terminal.progress(what)).await?;
    let running = &*left.cluster.insert(running);
    // The head of the history names the images, which are known only now.
    let made_by = MadeBy { images: running.images(), ..made_by };
    let mut recorder = Recorder::new(dir, file, made_by, live_view.clone())?;
    terminal.progress(&format!("up and answering after {:.1} s", began.elapsed().as_secs_f64()));

    let agent = Agent::new(running);
    let cluster = DockerCluster::new(running, &agent, file.plan.seed);
    let processes = DockerProcesses::new(file, running, &cluster, &agent, keep, terminal);
    let controller = Controller {
        plan: &file.plan,
        cluster: &cluster,
        processes: &processes,
        live_view: &live_view,
        on_phase: &|phase| terminal.progress(&phase.to_string()),
    };
    let mut unplanned = UnplannedFaults::new(&file.plan);
    let ended = tokio::select! {
        // The recorder ends by itself only when something is wrong.
        recorded = recorder.run(&mut queue, &processes) => {
            recorded.and_then(|()| bail!("the cluster was taken down during the run"))
        }
        // So does the watch for faults that nobody planned.
        watched = unplanned.record(running, &cluster, &processes) => watched,
        ended = run_if_able(cluster.is_able(&file.plan), controller.run()) => ended,
    };
    match ended {
        Ok(()) => recorder.end(&file.plan)?,
        Err(failure) => left.failure = Some(failure),
    }
    recorder.write_logs()?;
    // Servers that exist already keep their logs to themselves.
    let own = file.plan.lock_nodes.iter().filter(|_| !file.plan.has_own_servers());
    let store = file.plan.resource.has_own_server().then(|| NodeName::new(STORE_ROLE));
    for node in own.chain(&store) {
        let log = running.logs(node).await.unwrap_or_else(|e| format!("{e}\n").into_bytes());
        dir.write(&dir.log(node.as_str()), log)?;
    }
    if let Some(failure) = left.failure.take() {
        return Err(failure);
    }
    let high_water = running.high_water();
    terminal.progress(&format!("recorded, {high_water} events in the queue at most; taking the cluster down"));
    if let Err(keys) = remove_keys(Some(running), file).await {
        terminal.warn(&format!("{keys:#}"));
    }
    let began = Instant::now();
    let swept = running.down().await?;
    swept.stuck_networks().iter().for_each(|stuck| terminal.warn(stuck));
    terminal.progress(&format!("down after {:.1} s", began.elapsed().as_secs_f64()));
    Ok(running.images())
}

/// Takes a run to its end, if its faults are possible. A fault that cannot be injected must not look like a fault
/// without effect, so all faults are tried before anything is measured. The error keeps its type, because `doctor`
/// leaves out the fault that the error names.
async fn run_if_able(
    tried: impl Future<Output = Result<(), compose::Error>>,
    run: impl Future<Output = Result<(), ControllerError>>,
) -> anyhow::Result<()> {
    tried.await?;
    Ok(run.await?)
}

/// Finds, pulls or builds the images of the plan's run, and starts nothing. Returns their ids by role.
pub async fn images(engine: &Engine, file: &PlanFile, terminal: &Terminal) -> anyhow::Result<BTreeMap<String, String>> {
    let own = own_servers::resolve(&file.plan).await?;
    let spec = spec(file, program::files(file)?, own, false)?;
    Ok(compose::images(engine, &spec, &|what| terminal.progress(what)).await?)
}

/// The containers of the run.
fn spec(
    file: &PlanFile,
    files: Vec<File>,
    own_servers: BTreeMap<NodeName, OwnServer>,
    keep: bool,
) -> anyhow::Result<Spec> {
    check_machine(&file.plan, std::env::consts::ARCH)?;
    let store = ResourceStore::of(file.plan.resource)?;
    let resource_args = resource_args(file, store.as_ref());
    Ok(Spec {
        run: file.run.clone(),
        servers: file.servers()?,
        resource_store: store.map(|store| store.service),
        workers: file.plan.workload.workers as usize,
        images: file.images.clone(),
        keep,
        binary: binary()?,
        resource_args,
        worker_args: owned(&[BINARY, "worker"]),
        agent_args: owned(&[BINARY, "agent"]),
        reaches: file.plan.schedule.iter().any(|step| step.fault.kind().needs_agent()),
        loses_power: file.loses_power(),
        own_servers,
        worker_files: (history::Program::DIR.to_owned(), files),
        worker_packages: file.client_packages.clone(),
    })
}

/// The command of the resource, over a store of its own if it has one.
fn resource_args(file: &PlanFile, store: Option<&ResourceStore>) -> Vec<String> {
    let arms: Vec<_> = file.plan.arms.iter().map(|a| a.name()).collect();
    let mut args = owned(&[BINARY, "resource", "--arms", &arms.join(",")]);
    if file.plan.fence == history::Comparison::Strict {
        args.push("--strict".into());
    }
    if let Some(bug) = &file.resource_bug {
        args.extend(owned(&["--buggy", bug, "--seed", &file.plan.seed.to_string()]));
    }
    let at = match store {
        Some(store) => Some(store.address()),
        None if file.plan.resource.is_service() => None,
        // The lock nodes decide.
        None => {
            let nodes = file.plan.lock_nodes.iter().map(|node| format!("{node}:{}", file.plan.servers.port));
            Some(nodes.collect::<Vec<_>>().join(","))
        }
    };
    if let Some(at) = at {
        args.extend(owned(&[&format!("--{}", file.plan.resource.name()), &at]));
    }
    args
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The machine on which the agent can set clocks.
pub const SETS_CLOCKS: &str = "x86_64";

/// Refuses faults that the agent cannot inject on this machine.
///
/// # Errors
///
/// The plan moves clocks, and the machine is no x86-64.
fn check_machine(plan: &Plan, machine: &str) -> Result<(), Unusable> {
    let moves_clocks = plan.schedule.iter().any(|step| step.fault.kind() == FaultKind::Clock);
    if moves_clocks && machine != SETS_CLOCKS {
        return Err(Unusable(format!(
            "the plan has the fault `clock`: on real servers it needs an x86-64 machine, and this one is {machine}; \
             leave it out, or simulate it with --cluster sim"
        )));
    }
    Ok(())
}

/// The path of this very binary, which stays readable if a new build has taken the place of its file. The binary must
/// run in any container, so it must be static.
pub fn binary() -> anyhow::Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_feature = "crt-static")) {
        bail!(
            "this harness was not built as a static binary for Linux, so it cannot run inside containers; \
             build it with `cargo build` in its repository"
        );
    }
    Ok(crate::fingerprint::OWN_BINARY.into())
}

#[cfg(test)]
mod tests {
    use std::{future::ready, path::Path};

    use futures::executor::block_on;
    use history::{Comparison, ResourceKind};

    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_fault_that_the_machine_cannot_have_ends_the_run_by_name() {
        let (kind, ability, why) = (FaultKind::Partition, "rules of nftables", "no nft here".to_owned());
        let unable = compose::Error::Unable { node: "redis-1".into(), kind, ability, why };
        let error = block_on(run_if_able(ready(Err(unable)), ready(Ok(())))).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(compose::Error::Unable { kind: FaultKind::Partition, .. })));
    }

    #[test]
    fn the_resource_gets_comparison_and_bug_of_the_plan() {
        let scenario = Scenario::of("redis").unwrap();
        let args = |fence, bug: Option<&str>| {
            let plan = Plan { fence, ..scenario.base.clone() };
            let file = PlanFile { resource_bug: bug.map(str::to_owned), ..scenario.file(String::new(), plan) };
            resource_args(&file, None)[1..].join(" ")
        };
        let usual = "resource --arms off,writes,reads";
        assert_eq!(args(Comparison::Default, None), usual);
        assert_eq!(args(Comparison::Strict, None), format!("{usual} --strict"));
        let planted = format!("{usual} --buggy admits-stale --seed 0");
        assert_eq!(args(Comparison::Default, Some("admits-stale")), planted);
    }

    #[test]
    fn a_resource_on_the_lock_nodes_knows_all_of_them() {
        let scenario = Scenario::of("etcd").unwrap();
        let plan = Plan { resource: ResourceKind::Etcd, ..scenario.base.clone() };
        let args = resource_args(&scenario.file(String::new(), plan), None);
        assert_eq!(args[args.len() - 2..], ["--etcd", "etcd-1:2379,etcd-2:2379,etcd-3:2379"]);
    }

    #[test]
    fn a_fault_of_clocks_is_refused_by_name_on_other_machines() {
        let plan = |name: &str| PlanFile::read(&Path::new("suites/kleppmann").join(name)).unwrap().plan;
        let refused = check_machine(&plan("e2-both.toml"), "aarch64").unwrap_err().to_string();
        assert!(refused.contains("`clock`") && refused.contains("aarch64"), "{refused}");
        assert!(check_machine(&plan("e2-both.toml"), "x86_64").is_ok());
        assert!(check_machine(&plan("c1-pause.toml"), "aarch64").is_ok());
    }
}
