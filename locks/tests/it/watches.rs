//! Watches that write down what they see, and one that freezes the client.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use locks::{Clock, Node, NodeAnswer, NodeError, Reply, Round, Step, StepAnswer, Watch};

use crate::cluster::ClientClock;

/// Everything that happened, in order.
pub type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, what: String) {
    log.lock().unwrap().push(what);
}

/// Writes each callback down.
#[derive(Default)]
pub struct Noting(pub Log);

impl Watch for Noting {
    fn sending(&self, round: Round) {
        note(&self.0, format!("sending {round:?}"));
    }

    fn sent(&self, round: Round) -> Reply<()> {
        note(&self.0, format!("sent {round:?}"));
        Box::pin(std::future::ready(()))
    }

    fn answered(&self, round: Round) {
        note(&self.0, format!("answered {round:?}"));
    }

    fn undoing(&self) {
        note(&self.0, "undoing".into());
    }

    fn undone(&self, answers: &[(locks::NodeName, NodeAnswer)]) {
        note(&self.0, format!("undone {:?}", answers.iter().map(|(_, answer)| *answer).collect::<Vec<_>>()));
    }
}

/// Writes each reading down.
pub struct NotingClock(pub Log, pub Arc<ClientClock>);

impl Clock for NotingClock {
    fn now(&self) -> Duration {
        note(&self.0, "clock".into());
        self.1.now()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        self.1.sleep_until(at)
    }
}

/// Writes each step down when it is queued.
pub struct NotingNode(pub Log, pub Arc<dyn Node>);

impl Node for NotingNode {
    fn name(&self) -> &str {
        self.1.name()
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        note(&self.0, format!("queued on {}", self.name()));
        self.1.send(step)
    }
}

/// Freezes the client for `time` when the requests of `round` have left, until all answers have arrived.
pub struct FreezeAfterSend {
    pub round: Round,
    pub clock: Arc<ClientClock>,
    pub time: Duration,
}

impl Watch for FreezeAfterSend {
    fn sent(&self, round: Round) -> Reply<()> {
        if round == self.round {
            self.clock.jump(self.time);
        }
        Box::pin(std::future::ready(()))
    }
}
