//! Tells the program the commit that it is built from.

use std::{path::Path, process::Command};

/// The files and directories that the program is made of.
const SOURCES: [&str; 12] = [
    "build.rs",
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "checker",
    "compose",
    "history",
    "locks",
    "nemesis",
    "resource",
    "sim",
    "workloads",
];

/// Returns the output of git, or nothing: outside of a repository, or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(arguments).output().ok().filter(|done| done.status.success())?;
    String::from_utf8(done.stdout).ok().map(|text| text.trim().to_owned())
}

fn main() {
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let has_changes = |arguments: &[&str]| git(arguments).is_some_and(|changes| !changes.is_empty());
    // A new file of the sources is compiled, although git does not know it yet.
    let untracked = ["ls-files", "--others", "--exclude-standard", "--"];
    let is_changed = has_changes(&["status", "--porcelain", "--untracked-files=no"])
        || has_changes(&[&untracked[..], &SOURCES[..]].concat());
    println!("cargo::rustc-env=HARNESS_COMMIT={commit}");
    println!("cargo::rustc-env=HARNESS_CHANGED={is_changed}");
    // The log changes with each commit and each checkout, and the index with what is staged.
    for file in ["logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
}
