//! The loss of power of a server: the order to forget what was not synced, and the proof that it is gone.

use std::time::Duration;

use agent::power::{Canary, ORDER, PowerReport};
use tokio::time::timeout;

use crate::{
    archive,
    binary::BINARY,
    error::explain,
    health::run_in,
    power::STATE,
    running::{Member, Running},
};

const REPORTED_WITHIN: Duration = Duration::from_secs(5);

impl Running {
    /// Orders the next start of a stopped server to forget what was not synced.
    pub(crate) async fn order_power_loss(&self, member: &Member) -> Result<(), String> {
        if !self.place().loses_power || member.server().is_none() {
            return Err("no file system that forgets unsynced data lies over its data".into());
        }
        let archive = archive::of_file(ORDER, 0o644, b"").map_err(|error| error.to_string())?;
        self.place().upload(&member.container(), STATE, archive).await.map_err(|error| explain(&error))
    }

    /// Returns the reason why a server may have kept unsynced data in its last loss of power.
    pub(crate) async fn kept_unsynced(&self, member: &Member) -> Result<Option<String>, String> {
        let data = member.server().and_then(|service| service.data.as_deref()).unwrap_or_default();
        let command = [BINARY, "power", "--report", "--data", data, "--state", STATE];
        let asked = timeout(REPORTED_WITHIN, run_in(self.engine(), &member.container(), &command)).await;
        let done = asked.map_err(|_| format!("no answer within {} s", REPORTED_WITHIN.as_secs()))?;
        let done = done.map_err(|error| explain(&error))?;
        let report: PowerReport = serde_json::from_str(&done.stdout)
            .map_err(|error| format!("{error} in `{}{}`", done.stdout.trim(), done.stderr.trim()))?;
        tracing::debug!(?report, "a server is back after its loss of power");
        Ok(doubt(report.canary))
    }
}

/// Returns the reason why a loss of power is not proved by its canary file.
fn doubt(canary: Canary) -> Option<String> {
    match canary {
        Canary::LostUnsynced => None,
        Canary::Kept => Some("expected the unsynced line of the canary file to be gone; it was there".into()),
        Canary::Damaged => Some("expected the synced line of the canary file; it was gone".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_canary_that_lost_its_unsynced_line_alone_proves_a_loss_of_power() {
        assert_eq!(doubt(Canary::LostUnsynced), None);
        assert!([Canary::Kept, Canary::Damaged].map(doubt).iter().all(Option::is_some));
    }
}
