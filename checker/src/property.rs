//! What is said of each property, and of each thing that was found: the parts of `verdict.json`.

use std::fmt;

use history::{ClientId, FaultId, HoldId, Key, NodeName, ProcessName, Token};
use serde::Serialize;

use crate::verdict::Verdict;

/// The kinds of double-holder windows; always apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowKind {
    /// A hold acted after its entitlement had ended and a later one had been acquired: Kleppmann's pause.
    StaleHolder,
    /// Two holds were entitled at once: the lock service broke its promise.
    LeaseOverlap,
}

impl WindowKind {
    /// Its name in `verdict.json`.
    pub fn name(self) -> &'static str {
        match self {
            WindowKind::StaleHolder => "stale-holder",
            WindowKind::LeaseOverlap => "lease-overlap",
        }
    }
}

impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One line of a story.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoryLine {
    /// Milliseconds since the run's start.
    pub at_ms: f64,
    /// `worker-1`, `worker-1/c7`, `nemesis`.
    pub who: String,
    /// What they did.
    pub what: String,
}

/// One double-holder window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Window {
    /// Which kind.
    pub kind: WindowKind,
    /// Of which key.
    pub key: Key,
    /// `stale-holder`: the stale hold, and the first later one. `lease-overlap`: both, in the order of acquisition.
    pub holds: Vec<HoldId>,
    /// Whose holds, in the same order.
    pub clients: Vec<ClientId>,
    /// On which workers, in the same order.
    pub workers: Vec<ProcessName>,
    /// What explains it; several if each alone does; `a+b` if only both do; `unexplained`.
    pub causes: Vec<String>,
    /// Milliseconds for which two were entitled (`lease-overlap`), or for which later holds were entitled between the
    /// end of the stale hold and its last act (`stale-holder`).
    pub overlap_ms: f64,
    /// `stale-holder`: milliseconds from the `acquire` ok of the first later hold to the last act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness_ms: Option<f64>,
    /// Stale acts that read.
    pub reads: u64,
    /// Stale acts that wrote.
    pub writes: u64,
    /// Whether both are attempts of one client.
    #[serde(rename = "self")]
    pub self_: bool,
    /// Sequence numbers of the events that prove it, in the order of their stamps.
    pub witness: Vec<u64>,
    /// Its first instant, in milliseconds since the run's start: the first stale act, or the start of the overlap.
    pub at_ms: f64,
    /// The story in one line.
    pub headline: String,
    /// The story.
    pub story: Vec<StoryLine>,
}

/// A hold that was claimed when its promise had ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeadClaim {
    /// Of which key.
    pub key: Key,
    /// Which hold.
    pub hold: HoldId,
    /// Whose.
    pub client: ClientId,
    /// On which worker.
    pub worker: ProcessName,
    /// When, in milliseconds since the run's start.
    pub at_ms: f64,
    /// How long after the promise end, in milliseconds; may be 0.
    pub late_ms: f64,
    /// The attempt and its success.
    pub witness: Vec<u64>,
}

/// Property 1: mutual exclusion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockVerdict {
    /// Violated by a window or a dead claim.
    pub verdict: Verdict,
    /// Windows that nothing explains.
    pub unexplained: u64,
    /// Windows of this kind.
    pub stale_holder: u64,
    /// Windows of this kind.
    pub lease_overlap: u64,
    /// Acts after their own entitlement's end of which the order of grants does not decide whether they were stale.
    pub undecided: u64,
    /// Deadline checks that passed after the promise end. Measured.
    pub overclaims: u64,
    /// Grants of the service whose key was gone when the client looked for it: its lease had ended, in the queue or while the client
    /// was frozen with the grant unread. Measured: whether the client acts on one is judged by its hold.
    pub without_key: u64,
    /// The longest overlap of a window, in milliseconds.
    pub overlap_ms_max: f64,
    /// The largest staleness of a window, in milliseconds.
    pub staleness_ms_max: f64,
    /// Dead claims.
    pub dead_claims: Vec<DeadClaim>,
    /// The windows: unexplained ones first, then by time.
    pub windows: Vec<Window>,
    /// Why it is inconclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// What to know about an upheld one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Two holds whose tokens are in the wrong order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenFault {
    /// Of which key.
    pub key: Key,
    /// The earlier hold (or the first of an unordered pair), and the other.
    pub holds: Vec<HoldId>,
    /// Their tokens, in the same order.
    pub tokens: Vec<Token>,
    /// Their acquisitions.
    pub witness: Vec<u64>,
}

/// Property 2: tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokensVerdict {
    /// `n/a` where the plan has no tokens.
    pub verdict: Verdict,
    /// Holds whose token is not larger than that of a hold they are later than.
    pub backwards: u64,
    /// Pairs of holds that are not ordered and share a token.
    pub shared: u64,
    /// Holds without a token.
    pub missing: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<TokenFault>,
    /// Tokens of the key of the first fault, in the order of acquisition: from a few before it to some after it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sequence: Vec<Token>,
    /// Why it is inconclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Property 3 on one arm: the fence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FenceVerdict {
    /// Violated by stale accepted, unjustified or false rejections.
    pub verdict: Verdict,
    /// Writes admitted after a later hold's first admitted operation on the arm.
    pub stale_accepted: u64,
    /// Justified refusals of a write of an earlier hold.
    pub stale_rejected: u64,
    /// Writes admitted after a later hold was acquired and before its first operation: no fence can see them.
    pub late: u64,
    /// Refusals and admissions that the registered tokens do not justify.
    pub unjustified: u64,
    /// Writes of a later hold that were refused for the token of an earlier one: the tokens went wrong.
    pub false_rejections: u64,
    /// Justified refusals between holds that are not ordered.
    pub undecided: u64,
    /// Strict comparison: refusals of a hold that had written already. Measured.
    pub repeats: u64,
    /// Reads that arrived after a later hold's first operation. Measured.
    pub stale_reads: u64,
    /// Sequence numbers of the admissions that violate it, the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub witness: Vec<u64>,
    /// Why it is inconclusive, or what went wrong beside it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Property 4 on one arm: the data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataVerdict {
    /// Judged where data binds the arm; elsewhere `measured`, unless the resource contradicts itself.
    pub verdict: Verdict,
    /// Admitted writes.
    pub updates: u64,
    /// Updates that the final value does not contain.
    pub lost_updates: u64,
    /// Admitted writes whose base was not the current version.
    pub overwrites: u64,
    /// Writes that the arm refused.
    pub refused: u64,
    /// On arms without a fence: writes admitted after a later hold's first operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_accepted: Option<u64>,
    /// On arms without a fence: writes admitted after a later hold was acquired and before its first operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    /// Writes decided against the arm's own rule, or made from a version that their hold was never told.
    pub unjustified: u64,
    /// Decisions whose version or counter is not the one that the checker computes.
    pub disagreements: u64,
    /// Sequence numbers of the admissions that violate it, the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub witness: Vec<u64>,
    /// Why it is inconclusive or violated, beyond the counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Property 5: the resource itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceVerdict {
    /// Violated by each of the counts that follow the first three.
    pub verdict: Verdict,
    /// Entries of its log, repeats among them. Measured.
    pub admissions: u64,
    /// How often it was started again over its store. Measured.
    pub restarts: u64,
    /// Admissions that had not reached the disk when it was killed; they are judged nowhere else. Measured.
    pub undone: u64,
    /// Numbers that went back, or that contradict real time: an operation that was answered before another was sent has the
    /// smaller one.
    pub misordered: u64,
    /// Answers to what was gone after a restart.
    pub acknowledged_lost: u64,
    /// Answers with another number than the operation has in the log.
    pub wrong_answers: u64,
    /// Operations that were decided again, and not answered as before.
    pub applied_twice: u64,
    /// Repeats that differ from the first answer.
    pub wrong_repeats: u64,
    /// How often the highest token of a key went back on an arm.
    pub tokens_forgotten: u64,
    /// Sequence numbers of the events that violate it, the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub witness: Vec<u64>,
    /// What each of them violates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

impl Default for ResourceVerdict {
    fn default() -> Self {
        ResourceVerdict {
            verdict: Verdict::Upheld,
            admissions: 0,
            restarts: 0,
            undone: 0,
            misordered: 0,
            acknowledged_lost: 0,
            wrong_answers: 0,
            applied_twice: 0,
            wrong_repeats: 0,
            tokens_forgotten: 0,
            witness: Vec::new(),
            reasons: Vec::new(),
        }
    }
}

/// A release, renewal or undo that took effect on a node where another attempt was the owner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnsafeRelease {
    /// Of which key.
    pub key: Key,
    /// On which node.
    pub node: NodeName,
    /// Whose request took effect.
    pub attempt: HoldId,
    /// Who owned the key there.
    pub owner: HoldId,
    /// The owner's success, the request, its answer.
    pub witness: Vec<u64>,
}

/// A node kept a key that everybody had let go of, within the lease of one that had.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Leftover {
    /// Which key.
    pub key: Key,
    /// On which node.
    pub node: NodeName,
    /// One of these has left it, the newest first.
    pub left_by: Vec<HoldId>,
    /// Which attempt the node refused for it.
    pub refused: HoldId,
    /// The newest release or undo among them, the refused attempt, its end.
    pub witness: Vec<u64>,
}

/// Property 6: safe release.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReleaseVerdict {
    /// Violated by one unsafe release, and by one key that was left behind.
    pub verdict: Verdict,
    /// How many there were: pairs of a request and a node.
    pub unsafe_releases: u64,
    /// How often a node refused an attempt though everybody had let go: pairs of an attempt and a node.
    pub left_behind: u64,
    /// The first unsafe releases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<UnsafeRelease>,
    /// The first keys that were left behind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// Why it is inconclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// A key that the kill of its holder blocked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Blocked {
    /// Which key.
    pub key: Key,
    /// Which hold was killed.
    pub hold: HoldId,
    /// By which fault.
    pub fault: FaultId,
    /// On which worker.
    pub worker: ProcessName,
    /// From the kill to the next acquisition, in milliseconds; null if there was none.
    pub blocked_ms: Option<f64>,
}

/// How somebody was kept from a key that nobody can have had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StuckKind {
    /// The attempt was refused as held.
    Refused,
    /// It waited in the queue, with nobody before it.
    Waiting,
}

/// An attempt that did not get a key though nobody can have had it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stuck {
    /// How.
    pub kind: StuckKind,
    /// Which key.
    pub key: Key,
    /// Which attempt shows it.
    pub attempt: HoldId,
    /// On which worker.
    pub worker: ProcessName,
    /// When it came out, in milliseconds since the run's start.
    pub at_ms: f64,
    /// For how long nobody can have had the key by then, in milliseconds.
    pub free_ms: f64,
    /// The attempt, its waiting, and how it came out.
    pub witness: Vec<u64>,
}

/// Property 7: a key that nobody can have had any more is acquired again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LivenessVerdict {
    /// Violated by one stuck attempt; `measured` if nothing could be judged.
    pub verdict: Verdict,
    /// Killed holders whose key was acquired again in time, and stuck attempts.
    pub judged: u64,
    /// Attempts that did not get a key though nobody can have had it.
    pub stuck: Vec<Stuck>,
    /// The longest blocking, in milliseconds.
    pub blocked_ms_max: f64,
    /// Each of them, by time.
    pub blocked: Vec<Blocked>,
}

/// Property 8: the run was not vacuous.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActivityVerdict {
    /// Upheld or inconclusive.
    pub verdict: Verdict,
    /// Holds.
    pub holds: u64,
    /// The most clients that had holds of one key.
    pub clients: u64,
    /// Attempts refused as held, or, in queue locks, waiting behind another.
    pub refused: u64,
    /// What is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// The verdict on one property.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Property {
    /// `lock`
    Lock(LockVerdict),
    /// `tokens`
    Tokens(TokensVerdict),
    /// `<arm>.fence`
    Fence(FenceVerdict),
    /// `<arm>.data`
    Data(DataVerdict),
    /// `resource`
    Resource(ResourceVerdict),
    /// `release`
    Release(ReleaseVerdict),
    /// `liveness`
    Liveness(LivenessVerdict),
    /// `activity`
    Activity(ActivityVerdict),
}

impl Property {
    /// Its verdict.
    pub fn verdict(&self) -> Verdict {
        match self {
            Property::Lock(p) => p.verdict,
            Property::Tokens(p) => p.verdict,
            Property::Fence(p) => p.verdict,
            Property::Data(p) => p.verdict,
            Property::Resource(p) => p.verdict,
            Property::Release(p) => p.verdict,
            Property::Liveness(p) => p.verdict,
            Property::Activity(p) => p.verdict,
        }
    }

    /// Why it is inconclusive, or what went wrong beyond its counts.
    pub fn reasons(&self) -> &[String] {
        match self {
            Property::Lock(p) => &p.reasons,
            Property::Tokens(p) => &p.reasons,
            Property::Fence(p) => &p.reasons,
            Property::Data(p) => &p.reasons,
            Property::Resource(p) => &p.reasons,
            Property::Release(p) => &p.reasons,
            Property::Liveness(_) => &[],
            Property::Activity(p) => &p.reasons,
        }
    }
}
