//! Removes the keys of a run from servers that exist already.

use std::time::Duration;

use anyhow::anyhow;
use compose::{BINARY, Running, Task};
use history::NodeName;
use locks::{ServerAddress, access::Access, own_servers::Removed};
use serde::{Deserialize, Serialize};
use workloads::backend::Backend;

use crate::{exit::usage, own_servers, plan_file::PlanFile, process::one_line, report::print};

/// The longest time of a removal: two rounds, and 10 s in each of them for servers that do not answer.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);

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
    let task = Task {
        name: "remove-keys",
        command: [BINARY, "remove-keys"].map(str::to_owned).to_vec(),
        input: serde_json::to_string(&removal).map_err(|error| left(&error.to_string()))?,
        within: REMOVED_WITHIN,
    };
    let end = compose::run_last(running, task).await.map_err(|error| left(&error.to_string()))?;
    let Ok(removed) = serde_json::from_str::<Vec<String>>(end.stdout.trim()) else {
        let said = file.access.values().fold(end.stderr, |text, access| access.without_secrets(text));
        return Err(left(&format!("the process that removes them ended with code {:?}: {}", end.code, said.trim())));
    };
    match removed.as_slice() {
        [] => Ok(()),
        removed => Err(anyhow!("keys may be left on your servers; remove them yourself: {}", removed.join("; "))),
    }
}

/// The hidden subcommand `remove-keys`: reads a removal from standard input, and prints what is left.
pub async fn remove_keys_here() -> anyhow::Result<()> {
    let Removal { client, servers, namespace, names } = one_line().await?;
    let servers: Vec<ServerAddress> =
        servers.into_iter().map(|(name, address, access)| ServerAddress { name, address, access }).collect();
    let Removed { left, .. } = locks::own_servers::remove(&client, &servers, &namespace, &names).await;
    print(&format!("{}\n", serde_json::to_string(&left)?))
}
