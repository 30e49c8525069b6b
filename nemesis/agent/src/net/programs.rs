//! The two programs that write rules: `nft` and `iptables-nft-restore`, each with its rules on standard input, all or nothing.

use std::{
    io::{self, Write},
    process::{Command, Output, Stdio},
};

use super::{Namespace, NetError};

/// Gives `rules` to `nft`.
pub(super) fn nft(namespace: &Namespace, rules: &str) -> Result<(), NetError> {
    apply(namespace, "nft", "nftables", &["-f", "-"], rules)
}

/// Gives `rules` to iptables, in the form of `iptables-save`. What they do not name stays as it is. It goes by way of nftables as
/// well: what it writes are nftables rules with the target `NFQUEUE`, which `nft` itself cannot write on kernels without `NFT_QUEUE`.
pub(super) fn iptables(namespace: &Namespace, rules: &str) -> Result<(), NetError> {
    apply(namespace, "iptables-nft-restore", "iptables", &["--noflush", "--wait"], rules)
}

fn apply(
    namespace: &Namespace,
    program: &'static str,
    package: &'static str,
    arguments: &[&str],
    rules: &str,
) -> Result<(), NetError> {
    let pid = namespace.pid();
    let output = namespace.enter(|| feed(program, arguments, rules))?.map_err(|source| NetError::NoProgram {
        program,
        package,
        pid,
        source,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let said = if said.is_empty() { output.status.to_string() } else { said };
    Err(NetError::Refused { program, pid, rules: rules.trim().replace('\n', "; "), said })
}

fn feed(program: &str, arguments: &[&str], rules: &str) -> io::Result<Output> {
    // Not every image has /usr/sbin in its PATH.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without having read them says so by its status.
        let _ = stdin.write_all(rules.as_bytes());
    }
    child.wait_with_output()
}
