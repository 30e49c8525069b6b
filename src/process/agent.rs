//! The agent: anchor of the run. It stamps what the nemesis tells it, and ends when the controller does.

use std::sync::Arc;

use history::{Event, Role};
use serde::{Deserialize, Serialize};

use super::{journal::Journal, orders::Orders, ticks};

/// One command to the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentCommand {
    /// Report this event with a stamp of your own.
    Stamp {
        /// What.
        event: Box<Event>,
    },
    /// Say `finished`, and exit.
    Finish,
}

/// Runs until told to finish, or until standard input ends.
pub async fn agent() -> anyhow::Result<()> {
    let journal = Arc::new(Journal::begin(Role::Agent)?);
    tokio::select! {
        done = obey(&journal) => done,
        stopped = ticks::tick(journal.clone()) => Err(anyhow::Error::new(stopped).context("ticking")),
    }
}

async fn obey(journal: &Journal) -> anyhow::Result<()> {
    let mut orders = Orders::new();
    loop {
        match orders.next().await? {
            AgentCommand::Stamp { event } => journal.record(*event),
            AgentCommand::Finish => {
                journal.record(Event::Finished);
                std::process::exit(0)
            }
        };
    }
}
