//! Running the binary.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// The binary under test.
pub fn harness() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.stdin(Stdio::null());
    // The tables of tests are no results of a job that runs the tests.
    command.env_remove("GITHUB_STEP_SUMMARY");
    command
}

/// What a run of the binary gave.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Fails with everything that was printed unless the exit code is `code`.
    #[track_caller]
    pub fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Fails unless standard error contains each of `words`.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Ran {
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is missing in:\n{}", self.stderr);
        }
        self
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs the binary to its end.
pub fn ran(args: &[&str]) -> Ran {
    harness().args(args).output().unwrap().into()
}

/// Sends a signal to the binary, and returns its exit code. Fails if the binary does not end within 10 s.
#[track_caller]
pub fn signalled(child: &mut Child, signal: Signal) -> Option<i32> {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    for _ in 0..1_000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("the process goes on after {signal}");
}

/// Whoever starts a run removes first what dead runs have left, also those of other tests.
static SWEEPS: RwLock<()> = RwLock::new(());

/// Held by whoever may remove what dead runs have left.
pub fn may_sweep() -> RwLockReadGuard<'static, ()> {
    SWEEPS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test in which nobody else may: it starts its runs by [`run_alone`].
pub fn nobody_else_sweeps() -> RwLockWriteGuard<'static, ()> {
    SWEEPS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Fails unless a window has this cause, and no other but a stall: the machine itself may stall a process at any time.
#[track_caller]
pub fn assert_caused_by(window: &Value, cause: &str) {
    let causes: Vec<&str> = window["causes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(causes.contains(&cause) && causes.iter().all(|found| [cause, "stall"].contains(found)), "{window}");
}

/// A run on real servers, in a directory of its own.
pub struct RealRun {
    pub dir: tempfile::TempDir,
    pub ran: Ran,
}

/// `harness run` with these flags; standard error is shown, as evidence of what went on.
///
/// The seed is 1000 unless a flag or a plan names one: chance is then left to the servers alone.
pub fn run(args: &[&str]) -> RealRun {
    let _guard = may_sweep();
    run_now(args)
}

/// The same in a test that has made sure that [`nobody_else_sweeps`].
pub fn run_alone(_guard: &RwLockWriteGuard<'_, ()>, args: &[&str]) -> RealRun {
    run_now(args)
}

fn run_now(args: &[&str]) -> RealRun {
    let dir = tempfile::tempdir().unwrap();
    let mut command = harness();
    command.args(["run", "--cluster", "docker"]).args(args);
    if !args.contains(&"--seed") && !args.iter().any(|arg| arg.ends_with(".toml")) {
        command.args(["--seed", "1000"]);
    }
    let output = command.arg("--runs").arg(dir.path()).output().unwrap();
    let ran = Ran::from(output);
    eprintln!("harness run {}\n{}{}", args.join(" "), ran.stderr, ran.stdout);
    RealRun { dir, ran }
}

impl RealRun {
    /// The directory of the run.
    pub fn latest(&self) -> PathBuf {
        self.dir.path().join("latest").canonicalize().unwrap()
    }

    /// The verdicts.
    pub fn verdict(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.latest().join("verdict.json")).unwrap()).unwrap()
    }

    /// One property of them.
    pub fn property(&self, name: &str) -> Value {
        self.verdict()["properties"][name].clone()
    }

    /// Fails unless the run came out with this exit code and left nothing in the engine.
    #[track_caller]
    pub fn exits(self, code: i32) -> RealRun {
        assert_eq!(self.ran.code, Some(code), "{}", self.ran.stderr);
        if self.dir.path().join("latest").exists() {
            assert_eq!(left_of(&self.latest()), Vec::<String>::new());
            let history = std::fs::read_to_string(self.latest().join("history.jsonl")).unwrap_or_default();
            let unplanned = history.lines().filter(|line| line.contains("\"phase\":\"unplanned\""));
            assert_eq!(unplanned.collect::<Vec<_>>(), Vec::<&str>::new(), "only the plan's faults happened");
        }
        self
    }
}

/// Runs a command of the engine, and gives what it printed.
pub fn docker(args: &[&str]) -> String {
    let output = Command::new("docker").args(args).output().unwrap();
    assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The container of a node.
pub fn container(run: &str, node: &str) -> String {
    let (run, node) = (format!("label=harness.run={run}"), format!("label=harness.node={node}"));
    docker(&["ps", "-q", "--filter", &run, "--filter", &node])
}

/// Containers, networks and volumes that still carry the label of the run in `dir`, each with its kind.
///
/// Engine 20.10 was seen to lose count of a network's endpoints when many containers end at once. It then keeps the
/// empty network until its own restart, whoever asks for the removal. Such a network counts as removed.
pub fn left_of(dir: &Path) -> Vec<String> {
    let run = dir.file_name().unwrap().to_str().unwrap();
    let filter = format!("label=harness.run={run}");
    let listed = |args: &[&str]| {
        let ids = docker(&[args, &["-q", "--filter", &filter]].concat());
        ids.lines().map(|id| format!("{} {id}", args[0])).collect::<Vec<_>>()
    };
    let mut networks = listed(&["network", "ls"]);
    networks.retain(|network| remains(network.trim_start_matches("network ")));
    [listed(&["ps", "-a"]), networks, listed(&["volume", "ls"])].concat()
}

/// Returns false for a network that is gone meanwhile, and for one without any container that the engine refuses to
/// remove.
fn remains(network: &str) -> bool {
    let asked = |args: &[&str]| Command::new("docker").args(args).output().unwrap();
    let containers = asked(&["network", "inspect", "--format", "{{len .Containers}}", network]);
    if !containers.status.success() {
        return false;
    }
    // Containers that do not run are not among those of a network.
    let stopped = docker(&["ps", "-aq", "--filter", &format!("network={network}")]);
    if containers.stdout.trim_ascii() != b"0" || !stopped.is_empty() {
        return true;
    }
    let removal = asked(&["network", "rm", network]);
    let refusal = String::from_utf8_lossy(&removal.stderr).into_owned();
    let stuck = !removal.status.success() && refusal.contains("active endpoints");
    if stuck {
        eprintln!("the engine keeps an empty network until its restart: {refusal}");
    }
    !stuck
}
