//! The client programs of a worker: one process for each client, in the worker's own container.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::future::{Either, select, try_join_all};
use history::{NodeName, Program};
use locks::{
    Clock, Lock,
    program::{Broken, ProgramCommand},
};

use crate::{
    backend::{Backend, addresses, source},
    protocol::Configuration,
};

/// The locks of all clients, and the versions of the servers.
type Started = (Vec<Arc<dyn Lock>>, Vec<(NodeName, String)>);

/// The time in which the servers may tell their versions. They may be servers that the backend's own client does not
/// know, and nothing but the heading of a report needs the versions.
const VERSIONS_WITHIN: Duration = Duration::from_secs(2);

/// Starts the program once for each client. A process that `is_late` starts in the middle of a run, when servers may be
/// down or cut off: a program that does not start then is tried again by each of its attempts.
///
/// # Errors
/// At the beginning of a run, a program does not start.
pub(crate) async fn start(
    program: &Program,
    backend: Backend,
    configuration: &Configuration,
    is_late: bool,
    clock: &Arc<dyn Clock>,
) -> Result<Started, Box<dyn std::error::Error + Send + Sync>> {
    let Configuration { plan, .. } = configuration;
    let dir = (!program.files.is_empty()).then(|| PathBuf::from(Program::DIR));
    let command = ProgramCommand { words: program.command.clone(), dir };
    let servers = addresses(configuration);
    let of_client = |_| {
        let tokens = source(plan.tokens);
        locks::Program::new(command.clone(), &servers, plan.lease, tokens, clock.clone()).map(Arc::new)
    };
    let programs: Vec<Arc<locks::Program>> =
        (0..plan.workload.clients_per_worker).map(of_client).collect::<Result<_, _>>()?;
    let started = try_join_all(programs.iter().map(|program| program.start())).await;
    if !is_late {
        started.map_err(|broken| {
            let hint = match broken {
                Broken::NotStarted { .. } | Broken::Ended { .. } => {
                    "; the image of the workers must have what the program needs (--client-packages, --client-image)"
                }
                _ => "",
            };
            format!("--client `{}`: {broken}{hint}", program.text())
        })?;
    }
    let versions = std::pin::pin!(backend.connect(configuration, true));
    let timer = clock.sleep_until(clock.now() + VERSIONS_WITHIN);
    let versions = match select(versions, timer).await {
        Either::Left((Ok((_, versions)), _)) => versions,
        Either::Left((Err(_), _)) | Either::Right(_) => Vec::new(),
    };
    Ok((programs.into_iter().map(|program| program as Arc<dyn Lock>).collect(), versions))
}
