//! The cluster on a real engine. `cargo test -p compose -- --ignored`; the first time it builds images, where no
//! registry can be reached.

mod dns;
mod no_agent;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Mutex,
    time::Duration,
};

use bollard::{
    Docker,
    models::ContainerConfig,
    query_parameters::{
        CommitContainerOptions, DownloadFromContainerOptions, ListContainersOptions, ListNetworksOptions,
        ListVolumesOptions, RemoveImageOptions,
    },
};
use compose::{BINARY, ComposeFile, Engine, Error, Output, Running, Spec, What, clean_kept, sweep, take_down, up};
use futures::StreamExt;
use history::NodeName;
use nemesis::Cluster;
use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, sleep, timeout},
};

use self::no_agent::faults;

/// The tests share two cores and one engine, and one of them gives figures: one at a time.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn echo_binary() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    test.parent().and_then(|deps| deps.parent()).expect("target/…/deps").join("examples/echo")
}

fn spec(name: &str, backend: &str, workers: usize) -> Spec {
    let command = || vec![BINARY.to_owned(), "echo".to_owned()];
    Spec {
        run: format!("test-{name}-{}", std::process::id()),
        servers: ComposeFile::builtin(backend).expect("built in"),
        resource_store: None,
        workers,
        images: BTreeMap::new(),
        keep: false,
        binary: echo_binary(),
        resource_args: command(),
        worker_args: command(),
        worker_files: (String::new(), Vec::new()),
        worker_packages: Vec::new(),
        agent_args: command(),
        reaches: false,
        loses_power: false,
        own_servers: BTreeMap::new(),
    }
}

async fn engine() -> Engine {
    Engine::connect().await.unwrap_or_else(|error| panic!("{error}"))
}

async fn bring_up(engine: &Engine, spec: &Spec) -> (Running, Receiver<Output>) {
    up(engine, spec, &|line| eprintln!("{line}")).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Everything that carries the label of `run`.
async fn left(run: &str) -> Vec<String> {
    let docker = Docker::connect_with_defaults().expect("an engine");
    let filters = Some(HashMap::from([("label".to_owned(), vec![format!("harness.run={run}")])]));
    let containers = ListContainersOptions { all: true, filters: filters.clone(), ..Default::default() };
    let containers = docker.list_containers(Some(containers)).await.expect("containers");
    let networks =
        docker.list_networks(Some(ListNetworksOptions { filters: filters.clone() })).await.expect("networks");
    let volumes = docker.list_volumes(Some(ListVolumesOptions { filters })).await.expect("volumes");
    let containers = containers.into_iter().map(|container| container.names.unwrap_or_default().concat());
    let networks = networks.into_iter().map(|network| network.name.unwrap_or_default());
    let volumes = volumes.volumes.unwrap_or_default().into_iter().map(|volume| volume.name);
    containers.chain(networks).chain(volumes).collect()
}

/// Reads the queue until `wanted` says what it was after.
async fn read<T>(output: &mut Receiver<Output>, mut wanted: impl FnMut(&Output) -> Option<T>) -> T {
    let reading = async {
        loop {
            let next = output.recv().await.expect("the queue goes on");
            if let Some(found) = wanted(&next) {
                return found;
            }
        }
    };
    timeout(LONG, reading).await.expect("it comes in time")
}

fn line_of(output: &Output, node: &NodeName) -> Option<String> {
    match &output.what {
        What::Line(line) if output.node == *node => Some(String::from_utf8(line.to_vec()).expect("text")),
        _ => None,
    }
}

async fn echoes(running: &Running, output: &mut Receiver<Output>, node: &NodeName, text: &str) {
    running.send(node, text.to_owned()).expect("it takes input");
    read(output, |next| line_of(next, node).filter(|line| *line == format!("echo {text}"))).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn a_cluster_comes_up_with_every_node_answering_and_goes_down_without_a_trace() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (engine, spec) = (engine().await, spec("whole", "redlock", 5));
    let began = Instant::now();
    let (running, mut output) = bring_up(&engine, &spec).await;
    eprintln!("up and answering after {:?} (with images, if they had to be built)", began.elapsed());

    let servers: Vec<_> = running.server_nodes().map(|(node, role)| format!("{node} {role}")).collect();
    assert_eq!(servers, ["redis-1 redis", "redis-2 redis", "redis-3 redis", "redis-4 redis", "redis-5 redis"]);
    let first = NodeName::new("redis-1");
    for (node, address) in running.addresses() {
        let found = running.exec(&first, &["getent", "hosts", node.as_str()]).await.expect("every node has its name");
        assert_eq!(found.split_whitespace().next(), Some(address.to_string().as_str()), "{node}");
    }
    for (node, _) in running.server_nodes() {
        let answer = running.exec(&first, &["redis-cli", "-h", node.as_str(), "ping"]).await.expect("it answers");
        assert_eq!(answer.trim(), "PONG", "{node}");
        let log = running.logs(node).await.expect("it has a log");
        assert!(String::from_utf8_lossy(&log).contains("Ready to accept connections"), "{node}");
    }
    for node in ["agent", "resource", "worker-1", "worker-5"].map(NodeName::new) {
        echoes(&running, &mut output, &node, "héllo").await;
        assert!(matches!(running.logs(&node).await, Err(Error::NoSuchNode { .. })), "{node} is no server");
    }
    let error = running.exec(&first, &["redis-cli", "--no-such-option"]).await.expect_err("it fails").to_string();
    assert!(error.starts_with("redis-1: `redis-cli --no-such-option` exited with 1"), "{error}");
    assert!(running.high_water() > 0);

    running.close_input(&NodeName::new("worker-2")).expect("it has an input");
    let code = read(&mut output, |next| match next.what {
        What::Ended { code } if next.node.as_str() == "worker-2" => Some(code),
        _ => None,
    });
    assert_eq!(code.await, Some(0));

    let began = Instant::now();
    running.down().await.unwrap_or_else(|error| panic!("{error}"));
    eprintln!("down after {:?}", began.elapsed());
    assert_eq!(left(&spec.run).await, Vec::<String>::new());
    while timeout(LONG, output.recv()).await.expect("the queue ends").is_some() {}
    running.down().await.expect("once more does nothing");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn one_run_after_another_under_one_name_leaves_nothing_to_the_next() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (engine, spec) = (engine().await, spec("figures", "redlock", 5));
    for _ in 0..3 {
        let began = Instant::now();
        let (running, _output) = bring_up(&engine, &spec).await;
        let up_after = began.elapsed();
        let began = Instant::now();
        running.down().await.expect("down");
        eprintln!("12 containers: up {up_after:?}, down {:?}", began.elapsed());
        assert_eq!(left(&spec.run).await, Vec::<String>::new());
    }
}

/// Numbers and stamps (ms) of the next `count` ticks of `node`.
async fn ticks(output: &mut Receiver<Output>, node: &NodeName, count: usize) -> Vec<(u64, i64)> {
    let mut seen = Vec::new();
    read(output, |next| {
        let line = line_of(next, node)?;
        let mut words = line.strip_prefix("tick ")?.split(' ').map(|word| word.parse::<i64>().expect("a number"));
        seen.push((words.next()?.unsigned_abs(), words.next()?));
        (seen.len() == count).then_some(())
    })
    .await;
    seen
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn a_frozen_worker_stands_still_by_its_own_clock_and_loses_nothing() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (engine, spec) = (engine().await, spec("freeze", "redis", 1));
    let (running, mut output) = bring_up(&engine, &spec).await;
    let worker = NodeName::new("worker-1");

    faults(&running).freeze(&worker).await.expect("it freezes");
    assert!(faults(&running).is_frozen(&worker).await.expect("the engine knows"));
    assert!(faults(&running).is_running(&worker).await.expect("the engine knows"), "frozen is not dead");
    let error = faults(&running).freeze(&worker).await.expect_err("it is frozen").to_string();
    assert_eq!(error, "worker-1: freezing: it is frozen already");
    running.send(&worker, "told while frozen".to_owned()).expect("it waits in the queue");
    sleep(Duration::from_millis(500)).await;
    faults(&running).thaw(&worker).await.expect("it thaws");
    assert!(!faults(&running).is_frozen(&worker).await.expect("the engine knows"));
    faults(&running).thaw(&worker).await.expect("it was not frozen: nothing to do");

    let seen = Mutex::new(Vec::new());
    read(&mut output, |next| {
        let line = line_of(next, &worker)?;
        seen.lock().expect("one thread").push(line.clone());
        (line == "echo told while frozen").then_some(())
    })
    .await;
    let seen = seen.into_inner().expect("one thread");
    let mut ticks: Vec<(u64, i64)> = seen
        .iter()
        .filter_map(|line| line.strip_prefix("tick ")?.split_once(' '))
        .map(|(number, at)| (number.parse().expect("a number"), at.parse().expect("a number")))
        .collect();
    ticks.extend(self::ticks(&mut output, &worker, 3).await);
    assert!(ticks.windows(2).all(|two| two[1].0 == two[0].0 + 1), "no tick is lost: {ticks:?}");
    let gap_ms = ticks.windows(2).map(|two| two[1].1 - two[0].1).max().expect("ticks");
    assert!(gap_ms >= 450, "it was frozen for 500 ms and stood still for {gap_ms}");

    // As close together as the engine bears.
    for _ in 0..10 {
        faults(&running).freeze(&worker).await.expect("it freezes");
        faults(&running).thaw(&worker).await.expect("it thaws");
    }
    echoes(&running, &mut output, &worker, "alive").await;

    // A dead node cannot be frozen, and says so; a frozen one can be killed.
    faults(&running).freeze(&worker).await.expect("it freezes");
    faults(&running).kill(&worker).await.expect("it dies");
    assert!(!faults(&running).is_running(&worker).await.expect("the engine knows"));
    assert!(faults(&running).freeze(&worker).await.is_err());
    faults(&running).thaw(&worker).await.expect("it is not frozen: nothing to do");
    running.down().await.expect("down");
    assert_eq!(left(&spec.run).await, Vec::<String>::new());
}

/// What the flooding process had written to its end: the number of its last line, from its file.
async fn last_written(run: &str, node: &str) -> u64 {
    let docker = Docker::connect_with_defaults().expect("an engine");
    let options = DownloadFromContainerOptions { path: "/written".to_owned() };
    let mut stream = std::pin::pin!(docker.download_from_container(&format!("harness-{run}-{node}"), Some(options)));
    let mut archive = Vec::new();
    while let Some(chunk) = stream.next().await {
        archive.extend_from_slice(&chunk.expect("a chunk"));
    }
    let mut archive = tar::Archive::new(archive.as_slice());
    let mut file = archive.entries().expect("an archive").next().expect("a file").expect("a file");
    let mut number = [0; 8];
    std::io::Read::read_exact(&mut file, &mut number).expect("a number");
    u64::from_le_bytes(number)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn every_line_written_before_a_kill_arrives_and_a_restart_is_a_new_incarnation() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let spec = Spec { worker_args: vec![BINARY.to_owned(), "flood".to_owned()], ..spec("kill", "redis", 1) };
    let (running, mut output) = bring_up(&engine, &spec).await;
    let worker = NodeName::new("worker-1");
    for incarnation in 1..=3 {
        // The queue is read meanwhile, as the controller does.
        let next_number = std::cell::Cell::new(0u64);
        let reading = read(&mut output, |next| {
            if next.node != worker {
                return None;
            }
            assert_eq!(next.incarnation, incarnation, "nothing of another process in between");
            if let What::Ended { code } = next.what {
                return Some((next_number.get(), code));
            }
            let line = line_of(next, &worker)?;
            assert_eq!(line, format!("line {}", next_number.get()), "whole, and in order");
            next_number.set(next_number.get() + 1);
            None
        });
        let killing = async {
            let began = Instant::now();
            while next_number.get() < 1_000 && began.elapsed() < LONG {
                sleep(Duration::from_millis(5)).await;
            }
            faults(&running).kill(&worker).await.expect("it dies");
            faults(&running).kill(&worker).await.expect("it is dead: nothing to do");
        };
        let ((arrived, code), ()) = tokio::join!(reading, killing);
        assert_eq!(code, Some(137));
        let written = last_written(&spec.run, "worker-1").await + 1;
        assert!(arrived >= written && arrived >= 1_000, "{written} lines were written, {arrived} arrived");
        faults(&running).start(&worker, history::fault::Data::Kept).await.expect("it starts again");
        faults(&running).start(&worker, history::fault::Data::Kept).await.expect("it runs: nothing to do");
        assert!(faults(&running).is_running(&worker).await.expect("the engine knows"));
    }

    // A server comes back at its address, and without what it remembered.
    let server = NodeName::new("redis-1");
    running.exec(&server, &["redis-cli", "set", "k", "v"]).await.expect("it answers");
    faults(&running).kill(&server).await.expect("it dies");
    faults(&running).start(&server, history::fault::Data::Kept).await.expect("it starts again");
    let asking = async {
        while running.exec(&server, &["redis-cli", "ping"]).await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
        running.exec(&server, &["redis-cli", "exists", "k"]).await.expect("it answers")
    };
    assert_eq!(timeout(LONG, asking).await.expect("it answers again").trim(), "0");
    let address = running.addresses().find(|(node, _)| **node == server).map(|(_, address)| address.to_string());
    let found = running.exec(&server, &["getent", "hosts", "redis-1"]).await.expect("it has its name");
    assert_eq!(found.split_whitespace().next().map(str::to_owned), address);
    running.down().await.expect("down");
    assert_eq!(left(&spec.run).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn a_node_that_does_not_start_is_named_with_its_last_words_and_nothing_is_left() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let quiet: compose::Progress = &|_| {};

    let base = spec("fails", "redis", 1);
    let failing = Spec { worker_args: command(&[BINARY, "fail"]), ..base.clone() };
    match up(&engine, &failing, quiet).await {
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with("worker-1: exited with code 3"), "{error}");
            assert!(error.ends_with("last lines of worker-1:\n    this is how it fails"), "{error}");
        }
        // It ended a moment after it had been looked at.
        Ok((running, mut output)) => {
            let words = read(&mut output, |next| match &next.what {
                What::Stderr(line) => Some(line.clone()),
                _ => None,
            });
            assert_eq!(words.await, "this is how it fails");
            let code = read(&mut output, |next| match next.what {
                What::Ended { code } => Some(code),
                _ => None,
            });
            assert_eq!(code.await, Some(3));
            running.down().await.expect("down");
        }
    }
    assert_eq!(left(&base.run).await, Vec::<String>::new());

    let failing = Spec { resource_args: command(&["/no/such/program"]), ..base.clone() };
    let error = up(&engine, &failing, quiet).await.expect_err("there is no such program").to_string();
    assert!(error.starts_with("resource: its container does not start: ") && error.contains("/no/such"), "{error}");
    assert_eq!(left(&base.run).await, Vec::<String>::new());

    let mut failing = base.clone();
    failing.servers.services[0].command = command(&["redis-server", "--no-such-directive", "1"]);
    let error = up(&engine, &failing, quiet).await.expect_err("the server refuses its command").to_string();
    assert!(error.starts_with("redis-1: exited with code 1") && error.contains("no-such-directive"), "{error}");
    assert_eq!(left(&base.run).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn an_image_that_cannot_be_had_is_an_error_and_never_another_image() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let quiet: compose::Progress = &|_| {};
    let base = spec("images", "redis", 1);

    let images = BTreeMap::from([("redis".to_owned(), "harness.invalid/no/such:image".to_owned())]);
    let error = up(&engine, &Spec { images, ..base.clone() }, quiet).await.expect_err("there is no such image");
    assert!(matches!(&error, Error::ImageNotFound { role, .. } if role == "redis"), "{error}");

    let mut unbuildable = base.clone();
    unbuildable.servers.services[0].image = "harness.invalid/no/such:image".to_owned();
    unbuildable.servers.services[0].packages = Vec::new();
    let error = up(&engine, &unbuildable, quiet).await.expect_err("nothing says how to build it");
    assert!(matches!(&error, Error::NotBuildable { role, .. } if role == "redis"), "{error}");

    let mut failing = base.clone();
    failing.servers.services[0].image = "harness.invalid/no/such:image".to_owned();
    failing.servers.services[0].role = "compose-test".to_owned();
    failing.servers.services[0].packages = vec!["no-such-package-for-harness".to_owned()];
    let error = up(&engine, &failing, quiet).await.expect_err("there is no such package");
    assert!(matches!(&error, Error::Build { .. }), "{error}");
    assert!(error.to_string().contains("no-such-package-for-harness"), "the builder's own words: {error}");
    let docker = Docker::connect_with_defaults().expect("an engine");
    let image = "harness-debian/compose-test-no-such-package-for-harness:bookworm";
    assert!(docker.inspect_image(image).await.is_err(), "nor half of an image");
    assert_eq!(left(&base.run).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn an_image_named_for_a_role_is_used_and_its_volumes_go_with_the_run() {
    const NAME: &str = "harness-compose-test";
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let docker = Docker::connect_with_defaults().expect("an engine");

    // The image of a server, with a volume added, as the official one has it.
    let base = spec("volumes", "redis", 1);
    let (running, _output) = bring_up(&engine, &base).await;
    let options = CommitContainerOptions {
        container: Some(format!("harness-{}-redis-1", base.run)),
        repo: Some(NAME.to_owned()),
        tag: Some("volume".to_owned()),
        changes: Some("VOLUME /data".to_owned()),
        ..Default::default()
    };
    docker.commit_container(options, ContainerConfig::default()).await.expect("an image");
    running.down().await.expect("down");

    let images = BTreeMap::from([("redis".to_owned(), format!("{NAME}:volume"))]);
    let (running, _output) = bring_up(&engine, &Spec { images, ..base.clone() }).await;
    // Agent, server, resource, worker, network, the volume of the binary, and the one under a name of the engine's.
    let there = left(&base.run).await;
    assert_eq!(there.len(), 7, "{there:?}");
    running.down().await.expect("down");
    let rest = left(&base.run).await;
    docker.remove_image(&format!("{NAME}:volume"), None::<RemoveImageOptions>, None).await.expect("it goes");
    assert_eq!(rest, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn two_runs_at_the_same_time_do_not_touch_each_other() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let (one, two) = (spec("one", "redis", 1), spec("two", "redis", 1));
    let ((first, mut heard), (second, _)) = tokio::join!(bring_up(&engine, &one), bring_up(&engine, &two));
    let error = up(&engine, &one, &|_| {}).await.expect_err("this run exists");
    assert!(error.to_string().contains("exists already"), "{error}");
    second.down().await.expect("down");
    assert_eq!(left(&two.run).await, Vec::<String>::new());
    // Beyond the age at which only its agent keeps a run alive.
    sleep(Duration::from_secs(11)).await;
    sweep(&engine).await.expect("a sweep");
    echoes(&first, &mut heard, &NodeName::new("worker-1"), "still here").await;
    let server = NodeName::new("redis-1");
    assert_eq!(first.exec(&server, &["redis-cli", "ping"]).await.expect("it answers").trim(), "PONG");
    first.down().await.expect("down");
    assert_eq!(left(&one.run).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn what_a_dead_controller_leaves_is_swept_and_what_it_kept_is_not() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let spec = Spec { keep: true, ..spec("dead", "redis", 1) };
    // A controller of its own: when its runtime goes, so do its connections, as when it is killed.
    let controller = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let dying = spec.clone();
    let brought_up = controller.spawn(async move {
        let engine = Engine::connect().await.expect("an engine");
        bring_up(&engine, &dying).await
    });
    let cluster = brought_up.await.expect("it comes up");
    controller.shutdown_background();
    std::mem::forget(cluster);

    let sweeping = async {
        loop {
            sweep(&engine).await.expect("a sweep");
            let rest = left(&spec.run).await;
            if !rest
                .iter()
                .any(|name| name.contains("-agent") || name.contains("-worker") || name.contains("-resource"))
            {
                return rest;
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    let began = Instant::now();
    let rest = timeout(LONG, sweeping).await.expect("a run without agent is dead after 10 s");
    eprintln!("swept {:?} after the controller died", began.elapsed());
    assert_eq!(rest.len(), 2, "server and network are kept: {rest:?}");
    let swept = clean_kept(&engine, Some(&spec.run)).await.expect("a sweep");
    assert_eq!((swept.containers, swept.networks), (1, 1));
    assert_eq!(left(&spec.run).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn an_aborted_start_is_taken_down_wherever_it_was() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (engine, spec) = (engine().await, spec("abort", "redlock", 2));
    let mut aborted = 0;
    for after_ms in [20, 100, 200, 350, 600, 1000] {
        let limit = Duration::from_millis(after_ms);
        aborted += usize::from(timeout(limit, up(&engine, &spec, &|_| {})).await.is_err());
        take_down(&engine, &spec.run).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(left(&spec.run).await, Vec::<String>::new(), "aborted after {after_ms} ms");
    }
    assert!(aborted > 0, "none was aborted");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(left(&spec.run).await, Vec::<String>::new(), "nothing appeared later");
}
