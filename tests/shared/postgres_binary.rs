//! The Postgres programs that tests start by themselves; each of their binaries takes this file by its path.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// The versions of Debian's packages are below this directory.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A command that runs a program of the newest installed Postgres, if there is one. The programs refuse to run as root,
/// so root runs them as the user `postgres`.
pub fn postgres(program: &str) -> Option<Command> {
    let version = |dir: &Path| dir.file_name()?.to_str()?.parse::<u32>().ok();
    let dirs = std::fs::read_dir(VERSIONS).ok()?.filter_map(|dir| Some(dir.ok()?.path()));
    let (_, dir) = dirs.filter_map(|dir| Some((version(&dir)?, dir))).max()?;
    let path = dir.join("bin").join(program);
    if !path.exists() {
        return None;
    }
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(path);
        command
    } else {
        Command::new(path)
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    Some(command)
}
