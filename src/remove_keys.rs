//! Removes the keys of a run from servers that exist already.

use std::time::Duration;

use anyhow::anyhow;
use compose::{BINARY, Running, Task, TaskEnd};
use history::NodeName;
use locks::{ServerAddress, access::Access, own_servers::Removed};
use serde::{Deserialize, Serialize};
use workloads::backend::Backend;

use crate::{exit::usage, own_servers, plan_file::PlanFile, process::one_line, report::print};

/// The longest time in which the process of a removal starts, and its output is read.
const STARTED_WITHIN: Duration = Duration::from_secs(40);

/// The task of the hidden subcommand `remove-keys`: one line on its standard input.
#[derive(Serialize, Deserialize)]
struct Removal {
    client: String,
    servers: Vec<(String, String, Access)>,
    namespace: String,
    names: Vec<String>,
}

/// Removes the keys of a run from its servers, by a process in the run's network. The workers are killed before. Does
/// nothing if the cluster was never up, because then no worker has written a key, or if the cluster is down.
///
/// # Errors
/// Keys are left, or may be: the message names them.
pub async fn remove_keys(running: Option<&Running>, file: &PlanFile) -> anyhow::Result<()> {
    let Some(running) = running.filter(|running| file.plan.has_own_servers() && !running.is_down()) else {
        return Ok(());
    };
    let client = Backend::named(&file.backend).map_err(|e| usage("backend", e))?.name().to_owned();
    let namespace = file.namespace();
    let access = own_servers::with_schema(&file.access, &client, &namespace);
    let servers = own_servers::addresses(&file.plan).into_iter().map(|(name, address)| {
        let access = access.get(&name).cloned().unwrap_or_default();
        (name.to_string(), address, access)
    });
    let names = file.plan.workload.keys().map(|key| key.to_string()).collect();
    let removal = Removal { client, servers: servers.collect(), namespace, names };
    let left = |why: &str| {
        let servers = file.plan.own_servers.keys().map(NodeName::as_str).collect::<Vec<_>>().join(", ");
        anyhow!("keys that begin with `{}` may be left on {servers}: {why}; remove them yourself", removal.namespace)
    };
    let within = STARTED_WITHIN + locks::own_servers::longest(removal.names.len());
    let task = Task {
        name: "remove-keys",
        command: [BINARY, "remove-keys"].map(str::to_owned).to_vec(),
        input: serde_json::to_string(&removal).map_err(|error| left(&error.to_string()))?,
        within,
    };
    let end = compose::run_last(running, task).await.map_err(|error| left(&error.to_string()))?;
    if let Some(removed) = result(&end) {
        return removed;
    }
    let stderr = file.access.values().fold(end.stderr, |text, access| access.without_secrets(text));
    Err(left(&how_it_ended(&TaskEnd { stderr, ..end }, within)))
}

/// Returns the result that a removal has printed: an error names the keys that are left. None if the removal has
/// printed no result.
fn result(end: &TaskEnd) -> Option<anyhow::Result<()>> {
    let left: Vec<String> = serde_json::from_str(end.stdout.trim()).ok()?;
    Some(match left.as_slice() {
        [] => Ok(()),
        left => Err(anyhow!("keys may be left on your servers; remove them yourself: {}", left.join("; "))),
    })
}

/// Describes the end of a removal that has printed no result.
fn how_it_ended(TaskEnd { code, is_late, stderr, .. }: &TaskEnd, within: Duration) -> String {
    let end = match code {
        Some(code) => format!("ended with code {code}"),
        None if *is_late => format!("did not end within {} s", within.as_secs()),
        None => "ended with an unknown code".to_owned(),
    };
    let said = if stderr.trim().is_empty() { String::new() } else { format!(": {}", stderr.trim()) };
    format!("the process that removes them {end}{said}")
}

/// The hidden subcommand `remove-keys`: reads a removal from standard input, and prints what is left.
pub async fn remove_keys_here() -> anyhow::Result<()> {
    let Removal { client, servers, namespace, names } = one_line().await?;
    let servers: Vec<ServerAddress> =
        servers.into_iter().map(|(name, address, access)| ServerAddress { name, address, access }).collect();
    let Removed { left, .. } = locks::own_servers::remove(&client, &servers, &namespace, &names).await;
    print(&format!("{}\n", serde_json::to_string(&left)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_could_not_be_removed_are_told() {
        let printed = |stdout: &str| result(&TaskEnd { stdout: stdout.to_owned(), ..TaskEnd::default() });
        assert!(printed("[]\n").is_some_and(|removed| removed.is_ok()));
        let told = printed("[\"redis-1: lock:{k0}\",\"redis-2: refused\"]\n").unwrap().unwrap_err().to_string();
        assert!(told.contains("redis-1: lock:{k0}; redis-2: refused"), "{told}");
        assert!(printed("").is_none());
    }

    #[test]
    fn a_late_removal_is_told_from_one_that_ended() {
        let end = |code, is_late, stderr: &str| {
            let end = TaskEnd { code, is_late, stderr: stderr.to_owned(), ..TaskEnd::default() };
            how_it_ended(&end, STARTED_WITHIN)
        };
        assert_eq!(end(None, true, ""), "the process that removes them did not end within 40 s");
        assert_eq!(end(Some(3), false, "no\n"), "the process that removes them ended with code 3: no");
        assert_eq!(end(None, false, ""), "the process that removes them ended with an unknown code");
    }
}
