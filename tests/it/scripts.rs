//! The Makefile and the scripts, with programs of a test in the place of those that install, build and run.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{say::left_out, support::Ran};

/// A directory with programs. Those in `bin` are on the path of a command.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Stage {
        Stage(tempfile::tempdir().unwrap())
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    /// Writes a script for `sh`.
    fn program(&self, below: &str, script: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Puts programs of this machine on the path.
    fn links(&self, names: &[&str]) {
        fs::create_dir_all(self.path("bin")).unwrap();
        for name in names {
            symlink(installed(name).unwrap_or_else(|| panic!("no {name}")), self.path("bin").join(name)).unwrap();
        }
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap_or_default()
    }
}

/// A program on the path of this process.
fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

#[test]
fn make_finds_the_harness_by_a_compiler_that_it_has_just_installed() {
    let Some(make) = installed("make") else {
        assert!(std::env::var_os("CI").is_none(), "no make on the path");
        left_out("no make on the path, the Makefile was not tried");
        return;
    };
    for (target, script, expected) in [
        ("test", "with-images", "target/some-machine/debug/harness\n"),
        ("accept", "accept", "target/some-machine/release/harness\n"),
    ] {
        let stage = Stage::new();
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile"), stage.path("Makefile")).unwrap();
        // Without the programs of this machine's Rust.
        stage.links(&["sh", "sed", "id", "cat", "cut", "sha256sum", "chmod"]);
        stage.program("bin/cargo", "");
        stage.program("scripts/check-aarch64", "");
        stage.program(
            "scripts/setup",
            "printf '#!/bin/sh\\necho host: some-machine\\n' > bin/rustc; chmod +x bin/rustc",
        );
        // The rest of the recipe is of no interest.
        stage.program(&format!("scripts/{script}"), "echo \"$1\" > told; exit 1");
        let mut command = Command::new(&make);
        command.arg(target).current_dir(stage.path("")).env("PATH", stage.path("bin"));
        // The tests may be run by another make.
        for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEFILES"] {
            command.env_remove(variable);
        }
        let ran = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(stage.read("told"), expected, "{target}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}

/// A script of this repository, with the programs of the stage before those of this machine.
fn script(stage: &Stage, name: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(stage.path("bin")).chain(std::env::split_paths(&paths));
    // Every table names the commit and the compiler.
    stage.program("bin/git", "echo 0123456789");
    stage.program("bin/rustc", "echo rustc 1.0.0");
    fs::create_dir_all(stage.path("tmp")).unwrap();
    let mut command = Command::new("bash");
    command.arg(root.join("scripts").join(name)).current_dir(root).stdin(Stdio::null());
    command.env("PATH", std::env::join_paths(paths).unwrap()).env("TMPDIR", stage.path("tmp"));
    command
}

#[test]
fn an_interrupted_copy_of_the_harness_is_not_used_by_a_later_call() {
    let stage = Stage::new();
    stage.program("harness", "exit 0");
    // The disk is full, or a signal ends the copying.
    stage.program("bin/cp", "head -c 3 \"$1\" > \"$2\"; chmod +x \"$2\"; exit 1");
    let mut accept = script(&stage, "accept");
    accept.args([stage.path("harness"), stage.path("kept"), stage.path("out")]);
    Ran::from(accept.output().unwrap()).exits(1);
    assert!(stage.path("kept/commit").exists(), "the copying has begun");
    assert!(!stage.path("kept/harness").exists());
}

#[test]
fn nothing_is_counted_if_an_image_or_the_version_of_its_servers_is_missing() {
    for (harness, code) in [("echo 'no Docker engine answers' >&2; exit 3", 3), ("exit 0", 0)] {
        let stage = Stage::new();
        stage.program("harness", harness);
        let mut accept = script(&stage, "accept");
        accept.args([stage.path("harness"), stage.path("kept"), stage.path("out")]);
        let image = format!("image-redlock: exit {code}");
        Ran::from(accept.output().unwrap()).exits(3).says(&[&image, "nothing was counted"]);
        assert!(!stage.path("kept/image-redlock.code").exists(), "a later call tries it again");
        assert!(!stage.path("kept/real.jobs").exists());
    }
}

/// Runs `accept-kills` for ten kills, over an engine and a harness that are scripts of the test.
fn ten_kills(stage: &Stage, docker: &str, harness: &str) -> Ran {
    stage.program("harness", harness);
    stage.program("bin/docker", docker);
    stage.program("bin/cargo", "echo '500 kills lost none'");
    stage.program("bin/sleep", &format!("exec {} 0.05", installed("sleep").unwrap().display()));
    let mut kills = script(stage, "accept-kills");
    kills.args([stage.path("harness"), stage.path("kept"), stage.path("table.md")]).env("ACCEPT_KILLS", "10");
    Ran::from(kills.output().unwrap())
}

#[test]
fn kills_of_runs_that_could_not_be_made_are_no_evidence() {
    let stage = Stage::new();
    // Each run ends by itself, and no object of a run is found.
    let ran = ten_kills(&stage, "exit 0", "echo 'no Docker engine answers' >&2; exit 3").exits(1);
    let table = stage.read("table.md");
    assert!(table.contains("| 0 of 1 batches of ten left no container"), "{table}{}", ran.stderr);
    assert!(table.contains("of batch 1 was not made (exit code 3)"), "{table}");
}

#[test]
fn an_engine_that_lists_nothing_because_it_fails_is_not_clean() {
    ten_kills(&Stage::new(), "exit 1", "exit 0").exits(3).says(&["cannot list the objects", "`docker ps -a` failed"]);
    // The engine answers before the first kill, and never again.
    let stage = Stage::new();
    let calls = stage.path("calls");
    let docker = format!("echo call >>{0}; [ \"$(wc -l <{0})\" -le 3 ]", calls.display());
    let ran = ten_kills(&stage, &docker, "exit 0").exits(1);
    let table = stage.read("table.md");
    assert!(table.contains("| 0 of 1 batches of ten left no container"), "{table}{}", ran.stderr);
    assert!(table.contains("otherwise: 1: unknown: `docker ps -a` failed"), "{table}");
}

#[test]
fn a_batch_of_kills_that_ended_before_its_look_is_not_clean() {
    let stage = Stage::new();
    // The first run ends the shell that makes the batch.
    let ran = ten_kills(&stage, "exit 0", "case $* in *partition*) kill -KILL $PPID ;; esac").exits(1);
    let table = stage.read("table.md");
    assert!(table.contains("| 0 of 1 batches of ten left no container"), "{table}{}", ran.stderr);
    assert!(table.contains("otherwise: 1: it ended before it had looked"), "{table}");
}

/// Runs one row of `accept-runs` once, with a script in the place of the harness.
fn one_row(row: &str, harness: &str) -> Ran {
    let stage = Stage::new();
    stage.program("harness", harness);
    let mut runs = script(&stage, "accept-runs");
    runs.args([stage.path("harness"), stage.path("kept"), stage.path("table.md")]);
    Ran::from(runs.env("ACCEPT_ROWS", row).env("ACCEPT_REPEAT", "1").output().unwrap())
}

#[test]
fn a_counted_run_that_could_not_be_made_is_not_as_expected() {
    // Row 5a expects no verdict, row 2 does.
    for (row, code, expected) in [("5a", 0, 0), ("5a", 1, 0), ("5a", 3, 1), ("2", 0, 0), ("2", 2, 1), ("2", 3, 1)] {
        let ran = one_row(row, &format!("exit {code}")).exits(expected);
        assert!(ran.stderr.contains(&format!("seed 1000: exit {code}, no windows")), "{row}: {}", ran.stderr);
    }
    one_row("5a 77", "exit 0").exits(64).says(&["no row 77"]);
}

#[test]
fn a_digest_of_a_test_that_failed_is_no_digest() {
    for (code, expected) in [(0, 0), (101, 1)] {
        let stage = Stage::new();
        stage.program("bin/cargo", &format!("echo 'digest of 200 histories: 1'; exit {code}"));
        Ran::from(script(&stage, "same-history").output().unwrap()).exits(expected);
    }
}

/// The harness of `accept-sim`: a search saves plans, whose runs are violated. CLASS is the count of amnesia.
const REPLAYED: &str = "\
case $1 in
explore)
    for dir do :; done
    mkdir -p \"$dir\"
    touch \"$dir/lock-stale-holder-$5-1.toml\" \"$dir/lock-lease-overlap-$5-1.toml\" ;;
run)
    case $4 in
    *-pause-1.toml) echo '      lock stale-holder pause: 2 of 2' ;;
    *-clock-1.toml) echo '      lock lease-overlap clock: 2 of 2' ;;
    *) echo '      CLASS' ;;
    esac
    echo '2 of 2 runs were violated'
    exit 1 ;;
esac";
/// Valgrind with 1,000 instructions a message.
const COUNTED: &str = "\
while [ $# -gt 0 ]; do
    case $1 in --log-file=*) log=${1#*=} ;; --seeds) n=$2 ;; --save) dir=$2 ;; esac
    shift
done
echo \"Collected : ${n}000\" > \"$log\"
mkdir -p \"$dir\"
echo \"  \\\"messages\\\": $n\" > \"$dir/explore.json\"";

#[test]
fn only_runs_that_show_the_finding_of_a_plan_are_its_replays() {
    for (class, expected) in [
        ("lock lease-overlap amnesia: 2 of 2", 0),
        ("lock lease-overlap amnesia: 1 of 2", 1),
        ("tokens repeated: 2 of 2", 1),
    ] {
        let stage = Stage::new();
        fs::create_dir(stage.path("kept")).unwrap();
        stage.program("harness", &REPLAYED.replace("CLASS", class));
        stage.program("bin/valgrind", COUNTED);
        stage.program("bin/cargo", "echo 'digest of 200 histories: 1'");
        let mut counts = script(&stage, "accept-sim");
        counts.args([stage.path("harness"), stage.path("kept"), stage.path("table.md")]);
        let ran = Ran::from(counts.env("ACCEPT_REPLAYS", "2").output().unwrap()).exits(expected);
        assert!(ran.stdout.contains(class), "{}", ran.stdout);
    }
}
