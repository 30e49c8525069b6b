//! The summary of a hold, which outlives the hold.

use history::{ClientId, HoldId, Mode, Stamp, Token};

use crate::holds::{Attempt, EventRef, Grant, Span};

/// The facts about a hold that windows need after the hold is closed.
#[derive(Debug, Clone)]
pub(crate) struct HoldSummary {
    pub id: HoldId,
    pub key: usize,
    pub client: ClientId,
    pub process: usize,
    pub mode: Mode,
    pub sent: EventRef,
    pub ok: EventRef,
    pub token: Option<Token>,
    /// The promise end at the time of this summary, and the request that the promise counts from.
    pub promise: Stamp,
    pub promised_by: EventRef,
    /// The stamps between which the nodes granted the lease, and the earliest true end of the lease without renewals.
    pub granted: Span,
    pub lease_until: Stamp,
    /// True if the service granted the lock after the attempt's key was gone.
    pub is_without_key: bool,
    pub gave_up: Option<EventRef>,
}

impl HoldSummary {
    pub fn of(hold: &Attempt, grant: &Grant) -> Self {
        HoldSummary {
            id: hold.id,
            key: hold.key,
            client: hold.client,
            process: hold.process,
            mode: hold.mode,
            sent: hold.sent,
            ok: grant.ok,
            token: grant.token,
            promise: hold.promise,
            promised_by: hold.promised_by,
            granted: (grant.promised_from, grant.ok.at),
            lease_until: grant.promised_from.plus(grant.lease),
            is_without_key: hold.is_without_key,
            gave_up: hold.gave_up,
        }
    }

    /// As [`Attempt::relies_since`].
    pub fn relies_since(&self) -> Stamp {
        self.sent.at.min(self.granted.0)
    }
}
