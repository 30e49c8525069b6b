//! Tells the program the commit that it is built from.

use std::{path::Path, process::Command};

/// Returns the output of git, or nothing: outside of a repository, or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(arguments).output().ok().filter(|done| done.status.success())?;
    String::from_utf8(done.stdout).ok().map(|text| text.trim().to_owned())
}

fn main() {
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    println!("cargo::rustc-env=HARNESS_COMMIT={commit}");
    println!("cargo::rustc-env=HARNESS_CHANGED={is_changed}");
    // The log changes with each commit and each checkout, and the index with what is staged.
    for file in ["logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    for source in ["build.rs", "Cargo.toml", "Cargo.lock", "src", "checker", "compose", "history", "locks", "nemesis"] {
        println!("cargo::rerun-if-changed={source}");
    }
    for source in ["resource", "sim", "workloads"] {
        println!("cargo::rerun-if-changed={source}");
    }
}
