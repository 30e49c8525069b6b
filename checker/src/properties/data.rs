//! Property 4: the data. An update is lost if the final value does not contain it.
//!
//! A write contains the updates of its base, and its own update: depth(w) = depth(base of w) + 1. Updates that are not
//! in the depth of the last write are lost. Depths are kept of the current version, and of versions that a hold has
//! read while its requests may still arrive: no other version can become a base.

use history::{Arm, ArmDecision, Deadline, Event, HoldId, Plan, RequestKind};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    holds::{Attempt, Grant},
    judge::{Ending, Judge},
    order::{Arms, OnArms, Order, Standing, Standings, bit},
    per_key::{CountsPerKey, PerKey},
    report::{Report, Violation, counted, nonzero, plural},
    run::Run,
    verdict::Verdict,
};

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
    /// Writes that break the arm's own rule, or whose base their hold had never read.
    pub unjustified: u64,
    /// Decisions whose version or counter is not the one that the checker computes.
    pub disagreements: u64,
    /// Sequence numbers of the admissions that violate it, the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub witness: Vec<u64>,
    /// Reasons for the verdict beyond the counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// On arms without a fence: the admitted writes that were stale or late.
    #[serde(skip)]
    pub standings: Standings,
    /// True if data binds the arm, so that a lost update violates the property.
    #[serde(skip)]
    pub is_binding: bool,
}

/// One key on one arm.
#[derive(Debug, Clone, Copy)]
struct KeyState {
    version: u64,
    depth: u64,
    updates: u64,
}

/// The state of each key.
#[derive(Default)]
struct KeyStates(CountsPerKey<3>);

impl KeyStates {
    fn of(&self, key: usize) -> KeyState {
        let [version, depth, updates] = self.0.get(key);
        KeyState { version, depth, updates }
    }

    fn set(&mut self, key: usize, KeyState { version, depth, updates }: KeyState) {
        self.0.set(key, [version, depth, updates]);
    }

    fn lost_updates(&self) -> u64 {
        self.0.iter().map(|[_, depth, updates]| updates.saturating_sub(depth)).sum()
    }
}

/// A version that a hold has read, on one arm.
#[derive(Debug, Clone, Copy)]
struct ReadVersion {
    version: u64,
    depth: u64,
}

struct DataArm {
    arm: Arm,
    keys: KeyStates,
    /// By key, the hold that read last; the arm `claim` accepts its writes only. Kept on that arm alone.
    claims: PerKey<Option<HoldId>>,
    found: DataVerdict,
}

/// The versions that the requests of each hold have read, on each arm.
#[derive(Default)]
struct ReadVersions {
    of: FxHashMap<HoldId, Vec<Vec<ReadVersion>>>,
    /// Emptied lists, for the next hold.
    spare: Vec<Vec<Vec<ReadVersion>>>,
}

impl ReadVersions {
    fn of(&mut self, hold: HoldId, arms: usize) -> &mut [Vec<ReadVersion>] {
        self.of.entry(hold).or_insert_with(|| self.spare.pop().unwrap_or_else(|| vec![Vec::new(); arms]))
    }

    fn closed(&mut self, hold: HoldId) {
        if let Some(mut lists) = self.of.remove(&hold) {
            lists.iter_mut().for_each(Vec::clear);
            self.spare.push(lists);
        }
    }
}

/// Witnesses that are listed.
const LISTED: usize = 20;

/// Judges the data.
pub(crate) struct Data {
    order: Order,
    told: ReadVersions,
    arms: Vec<DataArm>,
}

/// The request of a decision.
struct Request<'a> {
    entry: &'a Entry,
    number: u64,
    kind: RequestKind,
    key: usize,
    /// The hold of the request; final reads have none.
    id: Option<HoldId>,
    /// The same hold, if the record knows it.
    hold: Option<HoldId>,
    /// The keys of that hold and of the hold above it, each with its grant.
    locks: [Option<(usize, &'a Grant)>; 2],
    /// True if the clients' record contradicts the request: nothing shows whose request it was.
    is_contradicted: bool,
}

impl Request<'_> {
    /// Returns whether the request counts among the requests of its hold on an arm that decided so.
    fn counts(&self, decision: &ArmDecision) -> bool {
        self.hold.is_some() && !self.is_contradicted && (self.kind == RequestKind::Read || decision.admitted)
    }
}

impl DataArm {
    /// Takes in a decision. `told` are the versions that the requests of its hold have read on this arm.
    fn see(&mut self, request: &Request, decision: &ArmDecision, told: Option<&mut Vec<ReadVersion>>, on: OnArms) {
        let mut is_wrong = false;
        let mut place = self.keys.of(request.key);
        match (request.kind, decision.admitted) {
            (RequestKind::Write, true) => {
                let told = told.as_ref().map_or(&[][..], |told| told.as_slice());
                is_wrong = self.write(request, decision, &mut place, told);
                self.keys.set(request.key, place);
            }
            (RequestKind::Write, false) => {
                self.found.refused += 1;
                if self.must_admit(request, decision, place) == Some(true) {
                    is_wrong = true;
                    self.found.unjustified += 1;
                }
            }
            (RequestKind::Read, _) if self.arm == Arm::Claim => {
                let claim = self.claims.of(request.key);
                *claim = request.id.or(*claim);
            }
            (RequestKind::Read, _) => {}
        }
        if request.kind == RequestKind::Write && request.counts(decision) {
            self.standing(request, on.on(self.arm));
        }
        if decision.version != place.version || decision.value != place.depth {
            self.found.disagreements += 1;
            is_wrong = true;
        }
        if let Some(told) = told
            && told.last().is_none_or(|last| last.version != place.version)
        {
            told.push(ReadVersion { version: place.version, depth: place.depth });
        }
        if is_wrong && self.found.witness.len() < LISTED {
            self.found.witness.push(request.entry.seq);
        }
    }

    /// Returns whether the arm's own rule admits a write. `None` for an arm that decides by tokens or admits every
    /// write.
    fn must_admit(&self, request: &Request, decision: &ArmDecision, place: KeyState) -> Option<bool> {
        match self.arm {
            // Compare-and-set refuses exactly the writes that are based on an old version.
            Arm::Cas => Some(decision.base == Some(place.version)),
            // `claim` admits a write only if no other hold has read since the write's hold did.
            Arm::Claim => Some(request.id.is_some() && request.id == self.claims.get(request.key).copied().flatten()),
            // `deadline` compares what the request carries with the clock of the resource; the log has both.
            Arm::Deadline => match &request.entry.event {
                Event::Admission { deadline, .. } => Some(deadline.is_some_and(Deadline::is_kept)),
                _ => None,
            },
            // The log does not show which lock keys exist.
            Arm::Off | Arm::Writes | Arm::Reads | Arm::Guard => None,
        }
    }

    /// Adds an admitted write to the state of its key; returns whether the arm should have refused it.
    fn write(&mut self, request: &Request, decision: &ArmDecision, place: &mut KeyState, told: &[ReadVersion]) -> bool {
        let is_against_rule = self.must_admit(request, decision, *place) == Some(false);
        let is_over = decision.base != Some(place.version);
        self.found.updates += 1;
        self.found.overwrites += u64::from(is_over);
        let base = match decision.base {
            Some(0) => Some(0),
            Some(base) if base == place.version => Some(place.depth),
            Some(base) => told.iter().find(|t| t.version == base).map(|t| t.depth),
            None => None,
        };
        let is_baseless = base.is_none() && !request.is_contradicted;
        let is_wrong = is_baseless || is_against_rule;
        self.found.unjustified += u64::from(is_wrong);
        if is_baseless && self.found.reasons.len() < LISTED {
            let (number, hold) = (request.number, request.hold.map_or(0, |hold| hold.0));
            let reason = match decision.base {
                Some(base) => format!("write #{number} was made from #{base}, of which hold {hold} was never told"),
                None => format!("write #{number} does not say which version it was made from"),
            };
            self.found.reasons.push(reason);
        }
        // If the base is not known, only the counter is left.
        place.depth = base.map_or(decision.value, |depth| depth.saturating_add(1));
        place.version = request.number;
        place.updates += 1;
        is_wrong
    }

    /// Counts a write by its standing among the later holds of its key, or of the key above if that is worse.
    fn standing(&mut self, request: &Request, standing: Standing) {
        let count = |n: &mut Option<u64>, is: bool| *n = n.map(|n| n + u64::from(is));
        count(&mut self.found.stale_accepted, standing == Standing::Stale);
        count(&mut self.found.late, standing == Standing::Late);
        self.found.standings.add(request.entry.seq, standing);
    }
}

impl Data {
    fn decided(&mut self, request: &Request, decisions: &[ArmDecision]) {
        let on_arm = |arm: Arm| decisions.iter().find(|decision| decision.arm == arm);
        let counted = self.arms.iter().map(|arm| arm.arm);
        let counted = counted.filter(|arm| on_arm(*arm).is_some_and(|decision| request.counts(decision)));
        let counted: Arms = counted.fold(0, |all, arm| all | bit(arm));
        let mut on = OnArms::default();
        if counted != 0 {
            for (key, grant) in request.locks.iter().flatten() {
                on = on.or_worse(self.order.admitted(*key, request.kind, request.entry.at, grant, counted));
            }
        }
        let arms = self.arms.len();
        let mut told = request.hold.map(|hold| self.told.of(hold, arms));
        for (i, arm) in self.arms.iter_mut().enumerate() {
            if let Some(decision) = on_arm(arm.arm) {
                arm.see(request, decision, told.as_deref_mut().map(|told| &mut told[i]), on);
            }
        }
    }
}

impl Judge for Data {
    const NAME: &str = "data";
    const ABOUT: &str = "No admitted update is lost: the final value contains every update that the arm admitted.";
    type Verdict = DataVerdict;

    fn new(plan: &Plan) -> Data {
        let arms = Arm::ALL.into_iter().filter(|arm| plan.arms.contains(arm)).map(|arm| {
            let unfenced = (!arm.fences()).then_some(0);
            DataArm {
                arm,
                keys: KeyStates::default(),
                claims: PerKey::default(),
                found: DataVerdict {
                    verdict: Verdict::Measured,
                    updates: 0,
                    lost_updates: 0,
                    overwrites: 0,
                    refused: 0,
                    stale_accepted: unfenced,
                    late: unfenced,
                    unjustified: 0,
                    disagreements: 0,
                    witness: Vec::new(),
                    reasons: Vec::new(),
                    standings: Standings::default(),
                    is_binding: arm.keeps_data(),
                },
            }
        });
        Data { order: Order::default(), told: ReadVersions::default(), arms: arms.collect() }
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                if let Some((hold, grant)) = run.attempt(*attempt).and_then(|h| Some((h, h.grant.as_ref()?))) {
                    self.order.acquired(hold.key, grant);
                }
            }
            // Nobody knows the versions of the arms.
            Event::Admission { .. } if run.is_log_broken => {}
            Event::Admission { number, key, kind, hold, arms, repeat: false, .. } => {
                let Some(key) = run.key_of(key) else { return };
                let attempt = hold.and_then(|id| run.attempt(id));
                // What an attempt reads before its grant is told to it all the same.
                let known = attempt.map(|hold| hold.id);
                let above = attempt.and_then(|hold| run.attempt(hold.above?));
                let locks = [attempt, above].map(|hold| hold.and_then(|hold| Some((hold.key, hold.grant.as_ref()?))));
                // Of a hold that its client has used up, and another one since, nothing is known any more.
                let is_forgotten = hold.is_some() && attempt.is_none();
                let (number, kind, id, is_contradicted) =
                    (*number, *kind, *hold, run.is_contradicted() || is_forgotten);
                let request = Request { entry, number, kind, key, id, hold: known, locks, is_contradicted };
                self.decided(&request, arms);
            }
            _ => {}
        }
    }

    fn on_attempt_closed(&mut self, _run: &Run, attempt: &Attempt) {
        self.told.closed(attempt.id);
    }

    fn on_key_quiet(&mut self, _run: &Run, key: usize) {
        self.order.quiet(key);
    }

    fn finish(self, _run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let verdict = |arm: DataArm| {
            let mut found = arm.found;
            found.lost_updates = arm.keys.lost_updates();
            let is_contradiction = found.unjustified + found.disagreements > 0;
            found.verdict = if found.is_binding {
                Verdict::judged(found.lost_updates > 0 || is_contradiction, !ending.is_whole)
            } else if is_contradiction {
                Verdict::Violated
            } else {
                Verdict::Measured
            };
            (Some(arm.arm), found)
        };
        self.arms.into_iter().map(verdict).collect()
    }
}

impl Report for DataVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn figures(&self) -> String {
        let lost = plural(self.lost_updates, "lost update", "lost updates");
        let mut parts = vec![format!("{lost} of {}", self.updates)];
        if let Some(stale) = self.stale_accepted.filter(|n| *n > 0) {
            parts.push(plural(stale, "stale write admitted", "stale writes admitted"));
        }
        if let Some(late) = self.late.filter(|n| *n > 0) {
            parts.push(plural(late, "late write admitted", "late writes admitted"));
        }
        let wrong = [(self.unjustified, "unjustified"), (self.disagreements, "where the counter disagrees")];
        parts.extend(nonzero(&wrong));
        if self.verdict == Verdict::Measured {
            parts.push("not required of this arm".into());
        }
        parts.join("; ")
    }

    fn violations(&self) -> Vec<Violation> {
        // Of another arm they are only measured, also if its decisions contradict each other.
        let lost_updates = if self.is_binding { self.lost_updates } else { 0 };
        counted(&[
            (lost_updates, "lost-update"),
            (self.unjustified, "unjustified"),
            (self.disagreements, "disagreement"),
        ])
    }
}

#[cfg(test)]
mod tests;
