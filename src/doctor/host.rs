//! The machine itself: binary, tools, disk and memory.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use nix::sys::statvfs::statvfs;

use super::finding::{Finding, Outcome};

const GIB: u64 = 1 << 30;

/// Returns the findings that need no engine.
pub fn findings(runs: &Path) -> Vec<Finding> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |tool: &str| is_in(&path, tool);
    let missing = |tools: &[&str]| -> Vec<String> {
        tools.iter().filter(|tool| !has(tool)).map(|tool| (*tool).to_owned()).collect()
    };
    let mut builder = missing(&["mmdebstrap"]);
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    builder.extend((!Path::new(keyring).is_file()).then(|| keyring.to_owned()));
    let to_build = "sudo apt-get install mmdebstrap debian-archive-keyring";
    let to_test = "sudo apt-get install nftables iptables iproute2";
    vec![
        binary(),
        tools("image builder", builder, "images when no registry can be reached, and `--client-packages`", to_build),
        tools("network tools", missing(&["nft", "iptables-nft-restore", "ip"]), "`make test` as root", to_test),
        disk("disk of runs", runs, GIB),
        disk("temporary disk", &std::env::temp_dir(), GIB),
        memory(fs::read_to_string("/proc/meminfo").unwrap_or_default().as_str()),
    ]
}

/// Returns whether a directory of `path`, or one of those that only root has in its path, has the tool.
fn is_in(path: &OsStr, tool: &str) -> bool {
    let of_root = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(path).chain(of_root).any(|dir| dir.join(tool).is_file())
}

fn binary() -> Finding {
    match crate::docker::binary() {
        Ok(path) => {
            let path = fs::read_link(&path).unwrap_or(path);
            Finding::works("binary", path.display().to_string())
        }
        Err(error) => Finding::fails("binary", format!("{error:#}"), "cargo build"),
    }
}

fn tools(name: &str, missing: Vec<String>, needed_for: &'static str, mend: &str) -> Finding {
    if missing.is_empty() {
        return Finding::works(name, "found");
    }
    let why = format!("not found: {}", missing.join(", "));
    Finding { name: name.to_owned(), outcome: Outcome::Optional { why, needed_for, mend: mend.to_owned() } }
}

/// Checks the space where `dir` is, or will be.
fn disk(name: &str, dir: &Path, needed: u64) -> Finding {
    let is_there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("."));
    match statvfs(is_there) {
        Ok(found) => {
            let free = found.blocks_available() * found.fragment_size();
            let text = format!("{:.1} GiB free for {}", free as f64 / GIB as f64, dir.display());
            let mend = format!("make {:.0} GiB of space there, or name another directory", needed as f64 / GIB as f64);
            if free >= needed { Finding::works(name, text) } else { Finding::fails(name, text, mend) }
        }
        Err(error) => Finding::fails(name, format!("{}: {error}", is_there.display()), "name another directory"),
    }
}

/// Checks the memory that five servers, five workers and the checker need.
fn memory(meminfo: &str) -> Finding {
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    match kib {
        Some(kib) if kib << 10 >= GIB => Finding::works("memory", format!("{:.1} GiB available", gib(kib))),
        Some(kib) => Finding::fails("memory", format!("{:.1} GiB available", gib(kib)), "end other programs"),
        None => Finding::not_tried("memory", "/proc/meminfo has no MemAvailable"),
    }
}

fn gib(kib: u64) -> f64 {
    kib as f64 / (GIB >> 10) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_failure(finding: &Finding) -> bool {
        matches!(finding.outcome, Outcome::Fails { .. })
    }

    #[test]
    fn a_disk_or_memory_that_is_too_small_fails() {
        assert!(!is_failure(&disk("disk", Path::new("no/such/directory"), 1)));
        assert!(is_failure(&disk("disk", Path::new("."), u64::MAX)));
        assert!(!is_failure(&memory("MemTotal: 9 kB\nMemAvailable:    2097152 kB\n")));
        assert!(is_failure(&memory("MemAvailable:    1000 kB\n")));
        assert!(matches!(memory("").outcome, Outcome::NotTried { .. }));
    }

    #[test]
    fn a_tool_of_root_is_found_although_a_user_has_its_directory_not_in_the_path() {
        let path = OsStr::new("/usr/local/bin:/usr/bin:/bin");
        // Every Debian machine has it in /sbin.
        assert!(is_in(path, "ldconfig"));
        assert!(!is_in(path, "no-such-tool"));
    }

    #[test]
    fn missing_tools_are_named_with_their_use_and_a_command() {
        let finding = tools("image builder", vec!["mmdebstrap".into()], "images", "sudo apt-get install mmdebstrap");
        let text = finding.text();
        for word in ["optional", "mmdebstrap", "needed only for images", "mend: sudo apt-get install"] {
            assert!(text.contains(word), "{text}");
        }
    }
}
