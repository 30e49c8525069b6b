//! The server that tests start by themselves; each of their binaries takes this file by its path.

use std::{
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

/// A command that starts a Redis server, where there is one. Debian's redis-tools has it under the name of a tool,
/// which acts as what it is called.
pub fn redis_server() -> Option<Command> {
    ["redis-server", "redis-check-rdb"].into_iter().find_map(|binary| {
        let named = || {
            let mut command = Command::new(binary);
            command.arg0("redis-server").stdout(Stdio::null());
            command
        };
        named().arg("--version").status().is_ok_and(|status| status.success()).then(named)
    })
}
