//! `stop`: SIGSTOP to the first process of the target, and SIGCONT after a while.
//!
//! Possible on workers, lock nodes and the resource. Unlike the freezer it leaves the rest of the container alone: what is run in there meanwhile
//! runs, so that the healthcheck of a server reaches the connections that its kernel accepts, and waits. Our processes and the servers are
//! each the first process of their container, and the only one that matters. Proved as a pause is.

use std::time::Duration;

use crate::{
    ClusterError,
    pause::{Still, hold_still},
    run::Site,
};

pub(crate) async fn stop(site: &Site<'_>, lasting: Duration) -> Result<(), ClusterError> {
    hold_still(site, Still::Stopped, lasting).await
}
