//! The first client of a worker: the client that waits at protocol points.
//!
//! A worker takes commands while it is connected. A worker that is down, or that has just been started, takes none.

use std::time::Duration;

use history::{ClientId, HoldId, NodeName, Plan, Point, ProcessName, Stamp};

use crate::{
    cluster::{ClusterError, Doing},
    control::Control,
    live_view::{LiveView, View},
};

/// How long after a failed command the end of the worker's process may be reported.
const END_REPORTED: Duration = Duration::from_secs(5);

/// The first client of a worker, and the ports to it.
pub(crate) struct FirstClient<'a> {
    pub id: ClientId,
    worker: &'a NodeName,
    control: &'a dyn Control,
    live_view: &'a LiveView,
}

impl<'a> FirstClient<'a> {
    /// Returns the first client of `worker`. Clients are numbered worker by worker.
    pub fn of(
        plan: &Plan,
        worker: &'a NodeName,
        control: &'a dyn Control,
        live_view: &'a LiveView,
    ) -> Result<FirstClient<'a>, ClusterError> {
        let number = worker.as_str().strip_prefix("worker-").and_then(|n| n.parse::<u32>().ok()).filter(|n| *n >= 1);
        let number = number.ok_or_else(|| ClusterError {
            node: worker.clone(),
            doing: "arming a client",
            why: "only workers have clients that could wait at a protocol point".into(),
        })?;
        let id = ClientId((number - 1) * plan.workload.clients_per_worker);
        Ok(FirstClient { id, worker, control, live_view })
    }

    /// Arms the client and waits until it reaches `point`. Returns its attempt or hold and the time of the arrival,
    /// which is not `former`. If the worker's process ends first, the client of the next process is armed.
    pub async fn arrives(
        &self,
        point: Point,
        bound: Duration,
        former: Option<(HoldId, Stamp)>,
    ) -> Result<(HoldId, Stamp), ClusterError> {
        let FirstClient { id, worker, control, live_view } = *self;
        loop {
            let process = live_view.until(|view| view.connected(worker)).await;
            if !self.is_done(&process, control.arm(id, point, bound)).await? {
                continue;
            }
            let arrived_or_ended = |view: &View| match view.arrived_at(id, point).filter(|new| Some(*new) != former) {
                Some(arrived) => Some(Some(arrived)),
                None => (!view.runs(worker, &process)).then_some(None),
            };
            if let Some(arrived) = live_view.until(arrived_or_ended).await {
                return Ok(arrived);
            }
        }
    }

    /// Releases the client from its point, and disarms it. A process that is not connected has no client to release.
    pub async fn let_go(&self) -> Result<(), ClusterError> {
        let Some(process) = self.live_view.look(|view| view.connected(self.worker)) else { return Ok(()) };
        self.is_done(&process, self.control.let_go(self.id)).await.map(drop)
    }

    /// Carries out a command to `process`. Returns false if the process has ended.
    async fn is_done(&self, process: &ProcessName, command: Doing<'_, ()>) -> Result<bool, ClusterError> {
        let Err(error) = command.await else { return Ok(true) };
        let ended = |view: &View| (!view.runs(self.worker, process)).then_some(());
        match self.live_view.within(self.control, END_REPORTED, ended).await {
            Some(()) => Ok(false),
            None => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{Until, Workload};

    use super::*;
    use crate::{double::Double, waits::tests};

    #[test]
    fn clients_are_numbered_worker_by_worker() {
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let plan = Plan { workload: Workload { clients_per_worker: 2, ..Workload::default() }, ..plan };
        let (double, live_view) = (Double(()), LiveView::new());
        let id = |worker: &str| FirstClient::of(&plan, &worker.into(), &double, &live_view).map(|client| client.id);
        assert_eq!(["worker-1", "worker-3"].map(id), [0, 4].map(|id| Ok(ClientId(id))));
        assert!(id("worker-0").is_err() && id("resource").is_err());
    }
}
