//! The figures that are compared: those of the literal judge and those of the checker.

use std::collections::{BTreeMap, BTreeSet};

/// One double-holder window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Window {
    /// In nanoseconds, as all lengths here.
    pub overlap: u64,
    pub staleness: Option<u64>,
    pub reads: u64,
    pub writes: u64,
    /// `None` if equal stamps leave open which hold is the first later hold.
    pub own: Option<bool>,
    pub causes: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lock {
    pub verdict: String,
    pub unexplained: u64,
    pub undecided: u64,
    /// How far each overclaim went past the promise end, and the checks that passed after it, by hold.
    pub overclaims: BTreeMap<u64, (u64, u64)>,
    /// The nodes that had granted each hold that no majority had granted.
    pub minority_claims: BTreeMap<u64, u64>,
    /// The lateness of each dead claim, by hold.
    pub dead_claims: BTreeMap<u64, u64>,
    /// The stale-holder windows, by the stale hold.
    pub stale: BTreeMap<u64, Window>,
    /// The lease-overlap windows, by the pair of holds, smaller id first.
    pub overlaps: BTreeMap<(u64, u64), Window>,
    /// The promises that were cut short, by the killed hold and the first hold that was granted inside. Their length is
    /// what was left of the promise.
    pub cut_short: BTreeMap<(u64, u64), Window>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tokens {
    pub verdict: String,
    pub backwards: u64,
    pub shared: u64,
    pub missing: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fence {
    pub verdict: String,
    pub stale_accepted: u64,
    pub stale_rejected: u64,
    pub late: u64,
    pub unjustified: u64,
    pub false_rejections: u64,
    pub undecided: u64,
    pub repeats: u64,
    pub stale_reads: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Data {
    pub verdict: String,
    pub updates: u64,
    pub lost_updates: u64,
    pub overwrites: u64,
    pub refused: u64,
    /// Only where the fence does not bind.
    pub stale_accepted: Option<u64>,
    pub late: Option<u64>,
    pub unjustified: u64,
    pub disagreements: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resource {
    pub verdict: String,
    pub unrecorded_answers: u64,
    pub contradictions: u64,
    pub misordered: u64,
    pub wrong_answers: u64,
    pub applied_twice: u64,
    pub wrong_repeats: u64,
    pub wrong_arms: u64,
    pub wrong_refusals: u64,
    pub tokens_forgotten: u64,
    pub wrong_tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Release {
    pub verdict: String,
    pub unsafe_releases: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Activity {
    pub verdict: String,
    pub holds: u64,
    pub clients: u64,
    pub refused: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fairness {
    /// Attempts and holds, by client.
    pub clients: BTreeMap<u64, (u64, u64)>,
    /// The holds that overtook an attempt, by attempt.
    pub overtaken: BTreeMap<u64, BTreeSet<u64>>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Judged {
    pub verdict: String,
    pub lock: Lock,
    pub tokens: Tokens,
    pub fence: BTreeMap<String, Fence>,
    pub data: BTreeMap<String, Data>,
    pub resource: Resource,
    pub release: Release,
    /// Killed hold: for how long its key was blocked.
    pub blocked: BTreeMap<u64, Option<u64>>,
    pub activity: Activity,
    pub fairness: Fairness,
}

/// Worst wins.
pub fn judged(violated: bool, inconclusive: bool) -> String {
    match (violated, inconclusive) {
        (true, _) => "violated",
        (false, true) => "inconclusive",
        (false, false) => "upheld",
    }
    .to_owned()
}
