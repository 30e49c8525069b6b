//! The two programs that apply rules: `nft` and `iptables-nft-restore`. Each reads its rules from standard input and
//! applies all of them or none.

use std::{
    io::{self, Write},
    process::{Command, Output, Stdio},
};

use super::{error::NetError, namespace::Namespace};

/// Applies `rules` with `nft`.
pub(super) fn nft(namespace: &Namespace, rules: &str) -> Result<(), NetError> {
    apply(namespace, "nft", "nftables", &["-f", "-"], rules)
}

/// Applies `rules` with iptables, in the format of `iptables-save`. Other rules stay. `iptables-nft` writes nftables
/// rules too, but with the target `NFQUEUE`, which `nft` cannot write on kernels without `NFT_QUEUE`.
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
        // A program that ends before it has read its rules reports that by its exit status.
        let _ = stdin.write_all(rules.as_bytes());
    }
    child.wait_with_output()
}
