//! The Makefile and the scripts, with programs of a test in the place of those that install, build and run.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::Ran;

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
        return eprintln!("SKIPPED: no make on the path, the Makefile was not tried");
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
fn kills_of_runs_that_could_not_be_made_are_no_evidence() {
    let stage = Stage::new();
    // No engine answers, so each run ends by itself, and no object of a run is found.
    stage.program("harness", "echo 'no Docker engine answers' >&2; exit 3");
    stage.program("bin/docker", "exit 1");
    stage.program("bin/cargo", "echo '500 kills lost none'");
    stage.program("bin/sleep", &format!("exec {} 0.05", installed("sleep").unwrap().display()));
    let mut kills = script(&stage, "accept-kills");
    kills.args([stage.path("harness"), stage.path("kept"), stage.path("table.md")]).env("ACCEPT_KILLS", "10");
    let ran = Ran::from(kills.output().unwrap()).exits(1);
    let table = stage.read("table.md");
    assert!(table.contains("| 0 of 1 batches of ten left no container"), "{table}{}", ran.stderr);
    assert!(table.contains("of batch 1 was not made (exit code 3)"), "{table}");
}
