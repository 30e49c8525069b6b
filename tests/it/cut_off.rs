//! A run that loses its controller, its agent or its engine while every kind of fault is on leaves nothing behind, and
//! never touches the host.

use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    say::left_out,
    support::{harness, left_of, may_sweep, ran},
};

/// One of each kind, on nodes of their own, for longer than the test waits.
const ALL: &str = "pause:worker-1@500ms+100s,partition:redis-1@500ms+100s,delay:redis-2@500ms+100s,\
    clock:redis-3@500ms+100s,\
    loss:redis-4@500ms+100s,kill:redis-5@500ms+100s,reorder:resource@500ms+100s";
const KINDS: usize = 7;

/// Starts a run over the engine at `docker`, and waits until all its faults are on.
fn all_on(dir: &Path, docker: Option<&Path>) -> (Child, PathBuf) {
    let mut command = harness();
    command
        .args(["run", "--cluster", "docker", "--nemesis", ALL, "--workers", "2", "--time", "120s", "--runs"])
        .arg(dir);
    if let Some(socket) = docker {
        command.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    }
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..900 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(child.try_wait().unwrap(), None, "the run ended before its faults were on");
        let Ok(history) = fs::read_to_string(dir.join("latest/history.jsonl")) else { continue };
        if history.matches("\"phase\":\"injected\"").count() == KINDS {
            return (child, dir.join("latest").canonicalize().unwrap());
        }
    }
    child.kill().unwrap();
    panic!("not all faults came on");
}

/// Cleans until nothing is left: a run is alive while its newest object is younger than 10 s.
fn nothing_after_clean(run_dir: &Path) {
    for _ in 0..30 {
        {
            let _guard = may_sweep();
            ran(&["clean"]).exits(0);
        }
        if left_of(run_dir).is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(left_of(run_dir), Vec::<String>::new());
}

/// The tables of the host's own packet rules, and every line among them with a name of ours: a table of the host may
/// have been there before.
fn rules() -> String {
    if !nix::unistd::geteuid().is_root() {
        left_out("only root can list the packet rules of the host");
        return String::new();
    }
    let listing = Command::new("nft").args(["--stateless", "list", "ruleset"]).output();
    let listed = listing.expect("nft, which scripts/setup installs");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let counts = |line: &&str| line.starts_with("table ") || line.to_lowercase().contains("harness");
    listed.lines().filter(counts).collect::<Vec<_>>().join("\n")
}

/// How far the wall clock is ahead of the raw clock, which no fault moves. Milliseconds.
fn wall_ms() -> i64 {
    let read = |clock| nix::time::clock_gettime(clock).unwrap();
    let (wall, raw) = (read(nix::time::ClockId::CLOCK_REALTIME), read(nix::time::ClockId::CLOCK_MONOTONIC_RAW));
    (wall.tv_sec() - raw.tv_sec()) * 1_000 + (wall.tv_nsec() - raw.tv_nsec()) / 1_000_000
}

fn host_is_as_before(before: (String, i64)) {
    assert_eq!(rules(), before.0);
    assert!((wall_ms() - before.1).abs() < 500, "the host's clock was moved by {} ms", wall_ms() - before.1);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_controller_that_dies_while_all_faults_are_on_leaves_nothing_after_clean() {
    let (dir, before) = (tempfile::tempdir().unwrap(), (rules(), wall_ms()));
    let (mut child, run_dir) = {
        let _guard = may_sweep();
        all_on(dir.path(), None)
    };
    host_is_as_before(before.clone());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(left_of(&run_dir), Vec::<String>::new(), "SIGKILL gives nobody a chance to clean up");
    nothing_after_clean(&run_dir);
    host_is_as_before(before);
    // What it recorded is readable up to its last whole event, and never upheld.
    let code = ran(&["check", run_dir.to_str().unwrap()]).code;
    assert!(matches!(code, Some(1 | 2)), "{code:?}");
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_run_whose_agent_dies_while_all_faults_are_on_ends_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let _guard = may_sweep();
    let (mut child, run_dir) = all_on(dir.path(), None);
    let run = run_dir.file_name().unwrap().to_str().unwrap();
    let filters = [format!("label=harness.run={run}"), "label=harness.node=agent".to_owned()];
    let agent =
        Command::new("docker").args(["ps", "-q", "--filter", &filters[0], "--filter", &filters[1]]).output().unwrap();
    let agent = String::from_utf8(agent.stdout).unwrap();
    assert_eq!(agent.lines().count(), 1, "{agent}");
    assert!(Command::new("docker").args(["kill", agent.trim()]).stdout(Stdio::null()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(left_of(&run_dir), Vec::<String>::new());
}

/// The engine's socket behind another one, which can be cut.
struct Engine {
    socket: PathBuf,
    open: Arc<Mutex<Option<Vec<UnixStream>>>>,
}

impl Engine {
    fn behind(socket: PathBuf) -> Engine {
        let listener = UnixListener::bind(&socket).unwrap();
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let all = open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let engine = UnixStream::connect("/var/run/docker.sock").unwrap();
                let mut open = all.lock().unwrap();
                let Some(open) = open.as_mut() else { return };
                open.extend([client.try_clone().unwrap(), engine.try_clone().unwrap()]);
                for (mut from, mut to) in [(client.try_clone().unwrap(), engine.try_clone().unwrap()), (engine, client)]
                {
                    std::thread::spawn(move || {
                        let mut buffer = vec![0; 64 * 1_024];
                        while let Ok(n @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Engine { socket, open }
    }

    fn cut(&self) {
        let open = self.open.lock().unwrap().take().unwrap();
        fs::remove_file(&self.socket).unwrap();
        for stream in open {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_run_that_loses_its_engine_while_all_faults_are_on_leaves_nothing_after_clean() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::behind(dir.path().join("engine.sock"));
    let (mut child, run_dir) = {
        let _guard = may_sweep();
        all_on(dir.path(), Some(&engine.socket))
    };
    engine.cut();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    nothing_after_clean(&run_dir);
}
