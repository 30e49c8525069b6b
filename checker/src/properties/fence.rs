//! Property 3: the fence, on the arms that decide by token. Everything is judged in the order of the admission log.

use std::cmp::Ordering;

use history::{Arm, ArmDecision, Comparison, Event, HoldId, Mode, Plan, RequestKind, Stamp, Token};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    holds::{Attempt, Grant},
    judge::{Ending, Judge},
    order::{Arms, OnArms, Order, Standing, Standings, bit},
    per_key::PerKey,
    report::{Report, Violation, counted, nonzero, plural},
    rules::{self, Refusal},
    run::Run,
    verdict::Verdict,
};

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
    /// Reasons for the verdict beyond the counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The admitted writes that were stale or late.
    #[serde(skip)]
    pub standings: Standings,
}

/// The largest token registered, and the hold that first brought it.
#[derive(Debug, Clone, Copy)]
struct LargestToken {
    token: Token,
    hold: HoldId,
    by: Bringer,
}

/// The knowledge of the hold that first brought a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bringer {
    /// The record knows its grant.
    Known(Mode),
    /// The clients' record contradicts the request that brought the token.
    Contradicted,
}

struct FencedArm {
    arm: Arm,
    seen: PerKey<Option<LargestToken>>,
    /// The grants of the holds that brought the largest tokens, by key. A hold that has none here was granted before
    /// every attempt for the key that is open.
    grants: FxHashMap<usize, Grant>,
    found: FenceVerdict,
}

/// Witnesses that are listed.
const LISTED: usize = 20;
/// Stands for the hold of a request that names none. No hold has this number.
const NOBODY: HoldId = HoldId(u64::MAX);

/// Judges the fence.
pub(crate) struct Fence {
    is_strict: bool,
    order: Order,
    arms: Vec<FencedArm>,
}

fn nothing() -> FenceVerdict {
    FenceVerdict {
        verdict: Verdict::Upheld,
        stale_accepted: 0,
        stale_rejected: 0,
        late: 0,
        unjustified: 0,
        false_rejections: 0,
        undecided: 0,
        repeats: 0,
        stale_reads: 0,
        witness: Vec::new(),
        reasons: Vec::new(),
        standings: Standings::default(),
    }
}

/// One request on one arm.
struct Request<'a> {
    seq: u64,
    at: Stamp,
    kind: RequestKind,
    token: Option<Token>,
    hold: &'a Attempt,
    grant: &'a Grant,
    is_strict: bool,
}

impl FencedArm {
    fn key(&mut self, key: usize) -> &mut Option<LargestToken> {
        self.seen.of(key)
    }

    fn see(&mut self, request: &Request, is_admitted: bool, standing: Standing) {
        let key = request.hold.key;
        let seen = *self.key(key);
        let refusal = match request.token {
            Some(token) => {
                rules::must_refuse(token, request.hold.id, seen.map(|s| (s.token, s.hold)), request.is_strict)
            }
            // Without a token nothing shows that the write is not stale.
            None => Refusal::Justified,
        };
        match (request.kind, is_admitted) {
            (RequestKind::Read, _) => {
                self.found.stale_reads += u64::from(standing == Standing::Stale);
                if self.arm == Arm::Reads {
                    self.register(key, request.token, request.hold.id, Some(*request.grant));
                }
            }
            (RequestKind::Write, true) => {
                self.admitted(request, refusal, standing);
                self.register(key, request.token, request.hold.id, Some(*request.grant));
            }
            (RequestKind::Write, false) => self.refused(request, refusal, seen),
        }
    }

    fn admitted(&mut self, request: &Request, refusal: Refusal, standing: Standing) {
        self.found.standings.add(request.seq, standing);
        self.found.late += u64::from(standing == Standing::Late);
        let is_stale = standing == Standing::Stale;
        let is_unjustified = refusal != Refusal::Unjustified;
        self.found.stale_accepted += u64::from(is_stale);
        self.found.unjustified += u64::from(is_unjustified);
        self.witness(request, is_stale || is_unjustified);
    }

    fn refused(&mut self, request: &Request, refusal: Refusal, seen: Option<LargestToken>) {
        let is_wrong = match (refusal, seen) {
            (Refusal::Repeat, _) => {
                self.found.repeats += 1;
                false
            }
            (Refusal::Justified, Some(by)) => match self.order_of(request, &by) {
                Some(Ordering::Less) => {
                    self.found.stale_rejected += 1;
                    false
                }
                Some(_) => {
                    self.found.false_rejections += 1;
                    true
                }
                None => {
                    self.found.undecided += 1;
                    false
                }
            },
            // A write that carries no token may be refused at any time.
            (Refusal::Justified, None) => false,
            (Refusal::Unjustified, _) => {
                self.found.unjustified += 1;
                true
            }
        };
        self.witness(request, is_wrong);
    }

    /// The order of a request's hold and of the hold that brought a token, if it is known.
    fn order_of(&self, request: &Request, brought: &LargestToken) -> Option<Ordering> {
        let Bringer::Known(mode) = brought.by else { return None };
        match self.grants.get(&request.hold.key) {
            Some(by) if by.is_later(request.grant) => Some(Ordering::Less),
            Some(by) if request.grant.is_later(by) => Some(Ordering::Greater),
            Some(_) => None,
            None => rules::conflict(mode, request.grant.mode).then_some(Ordering::Greater),
        }
    }

    /// An equal token of another hold registers nothing.
    fn register(&mut self, key: usize, token: Option<Token>, hold: HoldId, grant: Option<Grant>) {
        let seen = self.key(key);
        let Some(token) = token.filter(|token| seen.is_none_or(|largest| *token > largest.token)) else { return };
        let by = grant.map_or(Bringer::Contradicted, |grant| Bringer::Known(grant.mode));
        *seen = Some(LargestToken { token, hold, by });
        match grant {
            Some(grant) => _ = self.grants.insert(key, grant),
            None => _ = self.grants.remove(&key),
        }
    }

    fn witness(&mut self, request: &Request, is_wrong: bool) {
        if is_wrong && self.found.witness.len() < LISTED {
            self.found.witness.push(request.seq);
        }
    }
}

impl Fence {
    fn decided(&mut self, request: &Request, decisions: &[ArmDecision]) {
        let on_arm = |arm: Arm| decisions.iter().find(|decision| decision.arm == arm);
        let counts = |decision: &ArmDecision| request.kind == RequestKind::Read || decision.admitted;
        let counted = self.arms.iter().map(|arm| arm.arm).filter(|arm| on_arm(*arm).is_some_and(counts));
        let counted: Arms = counted.fold(0, |all, arm| all | bit(arm));
        let on = match counted {
            0 => OnArms::default(),
            _ => self.order.admitted(request.hold.key, request.kind, request.at, request.grant, counted),
        };
        for arm in &mut self.arms {
            if let Some(decision) = on_arm(arm.arm) {
                arm.see(request, decision.admitted, on.on(arm.arm));
            }
        }
    }
}

impl Judge for Fence {
    const NAME: &str = "fence";
    const ABOUT: &str = "An arm that checks tokens refuses the writes of a hold once the arm has registered a \
        later hold, and refuses no other write.";
    type Verdict = FenceVerdict;

    fn new(plan: &Plan) -> Fence {
        let arms = Arm::ALL.into_iter().filter(|arm| arm.fences() && plan.arms.contains(arm));
        let arms =
            arms.map(|arm| FencedArm { arm, seen: PerKey::default(), grants: FxHashMap::default(), found: nothing() });
        Fence { is_strict: plan.fence == Comparison::Strict, order: Order::default(), arms: arms.collect() }
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                if let Some((hold, grant)) = run.attempt(*attempt).and_then(|h| Some((h, h.grant.as_ref()?))) {
                    self.order.acquired(hold.key, grant);
                }
            }
            // Nobody knows which tokens the arms have registered.
            Event::Admission { .. } if run.is_log_broken => {}
            Event::Admission { key, kind, hold, token, arms, repeat: false, .. }
                if run.is_contradicted()
                    || hold.is_some_and(|id| run.attempt(id).is_none_or(|a| a.grant.is_none())) =>
            {
                // Nothing shows whose request it was, or which hold is later. The arm has its token all the same.
                let Some(key) = run.key_of(key) else { return };
                for arm in &mut self.arms {
                    let registers = |d: &ArmDecision| match kind {
                        RequestKind::Read => arm.arm == Arm::Reads,
                        RequestKind::Write => d.admitted,
                    };
                    if arms.iter().find(|d| d.arm == arm.arm).is_some_and(registers) {
                        arm.register(key, *token, hold.unwrap_or(NOBODY), None);
                    }
                }
            }
            Event::Admission { kind, hold: Some(id), token, arms, repeat: false, .. } => {
                let Some((hold, grant)) = run.attempt(*id).and_then(|h| Some((h, h.grant.as_ref()?))) else { return };
                let (kind, token, is_strict) = (*kind, *token, self.is_strict);
                let request = Request { seq: entry.seq, at: entry.at, kind, token, hold, grant, is_strict };
                self.decided(&request, arms);
            }
            _ => {}
        }
    }

    fn on_key_quiet(&mut self, _run: &Run, key: usize) {
        self.order.quiet(key);
        for arm in &mut self.arms {
            arm.grants.remove(&key);
        }
    }

    fn finish(self, _run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let verdict = |arm: FencedArm| {
            let mut found = arm.found;
            let is_violated = found.stale_accepted + found.unjustified + found.false_rejections > 0;
            found.verdict = Verdict::judged(is_violated, !ending.is_whole);
            if found.false_rejections > 0 {
                let writes = plural(found.false_rejections, "write was", "writes were");
                let why = format!("the tokens went wrong: {writes} refused for the token of an earlier hold");
                found.reasons.push(why);
            }
            (Some(arm.arm), found)
        };
        self.arms.into_iter().map(verdict).collect()
    }
}

impl Report for FenceVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn figures(&self) -> String {
        let rejected = plural(self.stale_rejected, "stale write rejected", "stale writes rejected");
        let counts = [
            (self.unjustified, "unjustified"),
            (
                self.false_rejections,
                if self.false_rejections == 1 { "rightful write refused" } else { "rightful writes refused" },
            ),
            (self.undecided, "undecided"),
            (self.repeats, if self.repeats == 1 { "repeat refused" } else { "repeats refused" }),
        ];
        let first = format!("{rejected}, {} accepted", self.stale_accepted);
        let mut text = std::iter::once(first).chain(nonzero(&counts)).collect::<Vec<_>>().join(", ");
        if self.late > 0 {
            let late = plural(self.late, "late write", "late writes");
            text += &format!("; {late} admitted, which a rule about tokens cannot see");
        }
        text
    }

    fn violations(&self) -> Vec<Violation> {
        counted(&[
            (self.stale_accepted, "stale-accepted"),
            (self.unjustified, "unjustified"),
            (self.false_rejections, "false-rejection"),
        ])
    }
}

#[cfg(test)]
mod tests;
