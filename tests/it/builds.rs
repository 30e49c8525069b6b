//! Interrupted image builds leave neither processes nor mounts nor files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{Ran, harness, may_sweep};

/// Tenths of a second until packages are unpacked: ten minutes, because three of these builds may share two cores.
const LOOKS: u32 = 6_000;

/// Begins a run whose image nobody has, and waits until the builder has unpacked packages.
fn building(dir: &Path) -> Child {
    let compose = dir.join("servers.yaml");
    let redis = fs::read_to_string("compose/redis.yaml").unwrap();
    let redis = redis.replace("role: redis", "role: never-built").replace("redis:7.0.15-bookworm", "localhost/none:1");
    fs::write(&compose, redis).unwrap();
    fs::create_dir(temporary(dir)).unwrap();
    let mut command = harness();
    command.args(["run", "--cluster", "docker", "--backend", "redis", "--compose"]).arg(compose);
    command.arg("--runs").arg(dir.join("runs")).env("TMPDIR", temporary(dir));
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    for _ in 0..LOOKS {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(child.try_wait().unwrap(), None, "the run ended before its image was built");
        if unpacked(dir).is_some() {
            return child;
        }
    }
    child.kill().unwrap();
    panic!("no image was built");
}

fn temporary(dir: &Path) -> PathBuf {
    dir.join("tmp")
}

/// A program in the builder's new system.
fn unpacked(dir: &Path) -> Option<PathBuf> {
    let builds = fs::read_dir(temporary(dir)).ok()?.flatten();
    let systems = builds.flat_map(|build| fs::read_dir(build.path()).into_iter().flatten().flatten());
    systems.map(|system| system.path().join("usr/bin/dpkg")).find(|path| path.exists())
}

fn left(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(temporary(dir)).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Processes that the run has started, by their environment.
fn processes(dir: &Path) -> Vec<PathBuf> {
    let variable = format!("TMPDIR={}", dir.display());
    let has_it = |path: &PathBuf| {
        let text = fs::read(path.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&text).split('\0').any(|one| one.starts_with(&variable))
    };
    fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).filter(has_it).collect()
}

fn no_mounts(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(dir.to_str().unwrap()), "{mounts}");
}

fn end(child: &mut Child, signal: Signal) -> Option<i32> {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    child.wait().unwrap().code()
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_image_build_that_is_interrupted_leaves_nothing() {
    let _guard = may_sweep();
    let dir = tempfile::tempdir().unwrap();
    let mut run = building(dir.path());
    assert_eq!(end(&mut run, Signal::SIGINT), Some(130));
    assert_eq!(left(dir.path()), Vec::<PathBuf>::new());
    assert_eq!(processes(dir.path()), Vec::<PathBuf>::new());
    no_mounts(dir.path());
}

#[test]
#[ignore = "needs a Docker engine"]
fn clean_removes_the_image_build_of_a_killed_harness_and_no_other() {
    let _guard = may_sweep();
    let dir = tempfile::tempdir().unwrap();
    let clean = || -> Ran { harness().arg("clean").env("TMPDIR", temporary(dir.path())).output().unwrap().into() };
    let mut run = building(dir.path());
    // A build that goes on is left.
    assert!(!clean().exits(0).stdout.contains("image builds"));
    assert!(unpacked(dir.path()).is_some());
    end(&mut run, Signal::SIGKILL);
    // The kernel kills the processes of the build one after the other: within 30 s, also on a busy machine.
    for _ in 0..1_500 {
        if processes(dir.path()).is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(processes(dir.path()), Vec::<PathBuf>::new());
    no_mounts(dir.path());
    assert!(unpacked(dir.path()).is_some(), "a killed process removes nothing");
    let ran = clean().exits(0);
    assert!(ran.stdout.contains("removed interrupted image builds: "), "{}", ran.stdout);
    assert_eq!(left(dir.path()), Vec::<PathBuf>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn two_runs_that_need_the_same_image_build_it_once_and_start_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let compose = dir.path().join("servers.yaml");
    let redis = fs::read_to_string("compose/redis.yaml").unwrap();
    let role = format!("once-{}", std::process::id());
    // A plain system is built fastest. Nobody starts it.
    let packages = "packages: [redis-server, redis-tools]";
    assert!(redis.contains(packages));
    let redis = redis.replace(packages, "packages: [base-files]").replace("role: redis", &format!("role: {role}"));
    fs::write(&compose, redis.replace("redis:7.0.15-bookworm", "localhost/none:1")).unwrap();
    let begin = || {
        let mut command = harness();
        command.args(["run", "--images-only", "--backend", "redis", "--compose"]).arg(&compose);
        command.arg("--runs").arg(dir.path().join("runs")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let both = [begin(), begin()].map(|child| Ran::from(child.wait_with_output().unwrap()).exits(0));
    let image = format!("harness-debian/{role}-base-files:bookworm");
    let removed = std::process::Command::new("docker").args(["rmi", &image]).output().unwrap();
    let built = both.iter().filter(|ran| ran.stderr.contains(&format!("building image {image}"))).count();
    assert_eq!(built, 1, "{both:?}");
    let ids = both.each_ref().map(|ran| ran.stdout.lines().find(|line| line.starts_with(&role)).map(str::to_owned));
    assert!(ids[0].is_some() && ids[0] == ids[1], "{ids:?}");
    assert!(removed.status.success(), "{removed:?}");
    assert!(!dir.path().join("runs").exists(), "nothing was started");
}
