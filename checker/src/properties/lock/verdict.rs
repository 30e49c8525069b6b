//! The verdict on mutual exclusion, and its report.

use serde::Serialize;

use crate::{
    cause::{CauseSet, joined},
    report::{Report, Story, Violation, counted, plural, seconds},
    verdict::Verdict,
};

use super::{
    claims::{DeadClaim, MinorityClaim, Overclaim, OverclaimedBy},
    window::Window,
};

/// Property 1: mutual exclusion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockVerdict {
    /// Violated by a window, a dead claim, an overclaim or a minority claim.
    pub verdict: Verdict,
    /// Windows that nothing explains.
    pub unexplained: u64,
    /// Windows of this kind.
    pub stale_holder: u64,
    /// Windows of this kind.
    pub lease_overlap: u64,
    /// Windows of this kind.
    pub cut_short: u64,
    /// Acts after their own entitlement's end of which the order of grants does not decide whether they were stale, and
    /// grants during the promise to a killed client whose release the record may have lost.
    pub undecided: u64,
    /// Dead claims, and beliefs after the promise end, that a slow clock of the worker explains. They violate nothing.
    pub explained_claims: u64,
    /// Grants of the service whose key was gone when the client looked for it: its lease had ended, in the queue or
    /// while the client was frozen with the grant unread. Measured: whether the client acts on one is judged by its
    /// hold.
    pub without_key: u64,
    /// The longest overlap of a window, in milliseconds.
    pub overlap_ms_max: f64,
    /// The largest staleness of a window, in milliseconds.
    pub staleness_ms_max: f64,
    /// Dead claims.
    pub dead_claims: Vec<DeadClaim>,
    /// Overclaims: at most one of each hold.
    pub overclaims: Vec<Overclaim>,
    /// Holds that fewer nodes than a majority had granted.
    pub minority_claims: Vec<MinorityClaim>,
    /// The windows: unexplained ones first, then by time.
    pub windows: Vec<Window>,
    /// The reasons why the verdict is inconclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Notes on an upheld verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Report for LockVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn figures(&self) -> String {
        let mut parts = Vec::new();
        if self.unexplained > 0 {
            parts.push(format!("{} UNEXPLAINED", self.unexplained));
        }
        if self.stale_holder > 0 {
            parts.push(plural(self.stale_holder, "stale-holder window", "stale-holder windows"));
        }
        if self.lease_overlap > 0 {
            parts.push(plural(self.lease_overlap, "lease-overlap window", "lease-overlap windows"));
        }
        if self.cut_short > 0 {
            parts.push(plural(
                self.cut_short,
                "promise to a killed client cut short",
                "promises to killed clients cut short",
            ));
        }
        if !self.windows.is_empty() {
            let mut causes: Vec<&CauseSet> = self.windows.iter().flat_map(|w| &w.causes).collect();
            causes.sort_unstable();
            causes.dedup();
            parts.push(format!("cause: {}", joined(causes, ", ")));
            if self.stale_holder + self.lease_overlap > 0 {
                parts.push(format!("longest overlap {}", seconds(self.overlap_ms_max)));
            }
            if self.stale_holder > 0 {
                parts.push(format!("staleness up to {}", seconds(self.staleness_ms_max)));
            }
        }
        if !self.dead_claims.is_empty() {
            parts.push(plural(self.dead_claims.len() as u64, "dead claim", "dead claims"));
        }
        if !self.overclaims.is_empty() {
            parts.push(plural(self.overclaims.len() as u64, "overclaim", "overclaims"));
        }
        if !self.minority_claims.is_empty() {
            parts.push(plural(self.minority_claims.len() as u64, "minority claim", "minority claims"));
        }
        if self.undecided > 0 {
            parts.push(plural(self.undecided, "act or grant undecided", "acts or grants undecided"));
        }
        if self.explained_claims > 0 {
            let n = plural(self.explained_claims, "late claim", "late claims");
            parts.push(format!("{n} by a slow clock of the worker"));
        }
        if self.without_key > 0 {
            parts.push(plural(self.without_key, "grant without a key", "grants without a key"));
        }
        if parts.is_empty() { "no window".into() } else { parts.join("; ") }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn violations(&self) -> Vec<Violation> {
        let mut found = counted(&[
            (self.dead_claims.len() as u64, "dead-claim"),
            (self.overclaims.len() as u64, "overclaim"),
            (self.minority_claims.len() as u64, "minority-claim"),
        ]);
        found.extend(self.windows.iter().map(Window::violation));
        found
    }

    fn stories(&self) -> Vec<Story> {
        self.windows.iter().map(Window::told).collect()
    }

    fn evidence(&self) -> Vec<String> {
        let told = |claim: &DeadClaim| {
            let (at, worker, key, late) = (claim.at_ms / 1e3, &claim.worker, &claim.key, claim.late_ms);
            format!("{at:>8.3} s  {worker}  acquired {key} {late:.1} ms after its promise had ended")
        };
        let overclaimed = |claim: &Overclaim| {
            let (at, worker, key, past) = (claim.at_ms / 1e3, &claim.worker, &claim.key, claim.past_ms);
            let what = match claim.by {
                OverclaimedBy::Deadline => "acquired, with a deadline",
                OverclaimedBy::Check => "took its hold for valid",
                OverclaimedBy::Reentry => "acquired its hold again, and believed in it until",
            };
            format!("{at:>8.3} s  {worker}  {what} {past:.1} ms after the end of its promise for {key}")
        };
        let granted = |claim: &MinorityClaim| {
            let (at, worker, key, granted, of) =
                (claim.at_ms / 1e3, &claim.worker, &claim.key, claim.granted, claim.nodes);
            format!("{at:>8.3} s  {worker}  acquired {key} although only {granted} of {of} nodes had granted it")
        };
        let dead = self.dead_claims.first().map(told);
        let minority = self.minority_claims.first().map(granted);
        dead.into_iter().chain(self.overclaims.first().map(overclaimed)).chain(minority).collect()
    }
}
