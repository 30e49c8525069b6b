//! Property 4: the data. An update is lost if the final value does not contain it.
//!
//! A write contains what its base contains, and itself: depth(w) = depth(base of w) + 1. Updates that are not in the
//! depth of the last one are lost. Depths are kept of the current version and of those that a hold was told whose
//! requests may still arrive: no other version can become a base.

use history::{Arm, ArmDecision, Event, HoldId, Plan, RequestKind};
use rustc_hash::FxHashMap;

use crate::{
    holds::{Attempt, Grant},
    judge::{Ending, Judge},
    merge::Entry,
    order::{Order, Standing},
    property::{DataVerdict, Property},
    run::Run,
    verdict::{Facts, Verdict},
};

/// One key on one arm.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    version: u64,
    depth: u64,
    updates: u64,
    /// The hold that read last: what the arm `claim` goes by.
    claim: Option<HoldId>,
}

/// A version that a hold was told, on one arm.
#[derive(Debug, Clone, Copy)]
struct Told {
    version: u64,
    depth: u64,
}

struct DataArm {
    arm: Arm,
    order: Order,
    keys: Vec<Place>,
    told: FxHashMap<HoldId, Vec<Told>>,
    found: DataVerdict,
}

/// Witnesses that are listed.
const LISTED: usize = 20;

/// Judges the data.
pub(crate) struct Data {
    arms: Vec<DataArm>,
}

impl Data {
    pub fn new(plan: &Plan) -> Self {
        let arms = Arm::ALL.into_iter().filter(|arm| plan.arms.contains(arm)).map(|arm| {
            let unfenced = (!arm.fences()).then_some(0);
            DataArm {
                arm,
                order: Order::new(arm),
                keys: Vec::new(),
                told: FxHashMap::default(),
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
                },
            }
        });
        Data { arms: arms.collect() }
    }
}

/// What a decision is about.
struct Request<'a> {
    entry: &'a Entry,
    number: u64,
    kind: RequestKind,
    key: usize,
    /// Final reads have none.
    id: Option<HoldId>,
    /// The same, if the record knows it.
    hold: Option<(HoldId, Grant)>,
}

impl DataArm {
    fn see(&mut self, request: &Request, decision: &ArmDecision) {
        if self.keys.len() <= request.key {
            self.keys.resize(request.key + 1, Place::default());
        }
        let mut is_wrong = false;
        match (request.kind, decision.admitted) {
            (RequestKind::Write, true) => is_wrong = self.write(request, decision),
            (RequestKind::Write, false) => {
                self.found.refused += 1;
                if self.must_admit(request, decision) == Some(true) {
                    is_wrong = true;
                    self.found.unjustified += 1;
                }
            }
            (RequestKind::Read, _) => {
                let claim = &mut self.keys[request.key].claim;
                *claim = request.id.or(*claim);
            }
        }
        if let Some((_, grant)) = &request.hold
            && (request.kind == RequestKind::Read || decision.admitted)
        {
            self.standing(request, grant);
        }
        let place = self.keys[request.key];
        if decision.version != place.version || decision.value != place.depth {
            self.found.disagreements += 1;
            is_wrong = true;
        }
        if let Some((hold, _)) = request.hold {
            let told = self.told.entry(hold).or_default();
            if told.last().is_none_or(|last| last.version != place.version) {
                told.push(Told { version: place.version, depth: place.depth });
            }
        }
        if is_wrong && self.found.witness.len() < LISTED {
            self.found.witness.push(request.entry.seq);
        }
    }

    /// Whether the arm's own rule admits a write; none if it goes by tokens, or by nothing.
    fn must_admit(&self, request: &Request, decision: &ArmDecision) -> Option<bool> {
        let place = &self.keys[request.key];
        match self.arm {
            // Compare and set refuses what was made from an old version, and nothing else.
            Arm::Cas => Some(decision.base == Some(place.version)),
            // A claim is refused if another hold has read since, or if there was none.
            Arm::Claim => Some(request.id.is_some() && request.id == place.claim),
            Arm::Off | Arm::Writes | Arm::Reads => None,
        }
    }

    /// An admitted write; says whether it should not have been.
    fn write(&mut self, request: &Request, decision: &ArmDecision) -> bool {
        let is_against_rule = self.must_admit(request, decision) == Some(false);
        let place = &mut self.keys[request.key];
        let is_over = decision.base != Some(place.version);
        self.found.updates += 1;
        self.found.overwrites += u64::from(is_over);
        let told = request.hold.and_then(|(hold, _)| self.told.get(&hold));
        let base = match decision.base {
            Some(0) => Some(0),
            Some(base) if base == place.version => Some(place.depth),
            Some(base) => told.and_then(|told| told.iter().find(|t| t.version == base)).map(|t| t.depth),
            None => None,
        };
        let is_wrong = base.is_none() || is_against_rule;
        self.found.unjustified += u64::from(is_wrong);
        if base.is_none() && self.found.reasons.len() < LISTED {
            let (number, hold) = (request.number, request.hold.map_or(0, |(hold, _)| hold.0));
            let reason = match decision.base {
                Some(base) => format!("write #{number} was made from #{base}, of which hold {hold} was never told"),
                None => format!("write #{number} does not say which version it was made from"),
            };
            self.found.reasons.push(reason);
        }
        // Where the base is not known, the counter is all there is to go by.
        place.depth = base.map_or(decision.value, |depth| depth + 1);
        place.version = request.number;
        place.updates += 1;
        is_wrong
    }

    fn standing(&mut self, request: &Request, grant: &Grant) {
        let standing = self.order.admitted(request.key, request.kind, request.entry.at, grant);
        if request.kind == RequestKind::Write {
            let count = |n: &mut Option<u64>, is: bool| *n = n.map(|n| n + u64::from(is));
            count(&mut self.found.stale_accepted, standing == Standing::Stale);
            count(&mut self.found.late, standing == Standing::Late);
        }
    }
}

impl Judge for Data {
    fn see(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                if let Some((hold, grant)) = run.attempt(*attempt).and_then(|h| Some((h, h.grant?))) {
                    self.arms.iter_mut().for_each(|arm| arm.order.acquired(hold.key, &grant));
                }
            }
            Event::Admission { number, key, kind, hold, arms, repeat: false, .. } => {
                let Some(key) = run.key_of(key) else { return };
                let known = hold.and_then(|id| Some((id, run.attempt(id)?.grant?)));
                let request = Request { entry, number: *number, kind: *kind, key, id: *hold, hold: known };
                for arm in &mut self.arms {
                    if let Some(decision) = arms.iter().find(|d| d.arm == arm.arm) {
                        arm.see(&request, decision);
                    }
                }
            }
            _ => {}
        }
    }

    fn closed(&mut self, _run: &Run, attempt: &Attempt) {
        for arm in &mut self.arms {
            arm.told.remove(&attempt.id);
        }
    }

    fn verdicts(self: Box<Self>, _run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(String, Property)> {
        let verdict = |arm: DataArm| {
            let mut found = arm.found;
            found.lost_updates = arm.keys.iter().map(|place| place.updates.saturating_sub(place.depth)).sum();
            let is_contradiction = found.unjustified + found.disagreements > 0;
            found.verdict = if arm.arm.keeps_data() {
                Verdict::judged(found.lost_updates > 0 || is_contradiction, !ending.is_whole)
            } else if is_contradiction {
                Verdict::Violated
            } else {
                Verdict::Measured
            };
            (format!("{}.data", arm.arm), Property::Data(found))
        };
        self.arms.into_iter().map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::Scene;

    fn data(scene: &Scene, arm: &str) -> DataVerdict {
        match scene.verdicts().properties.get(&format!("{arm}.data")) {
            Some(Property::Data(data)) => data.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Hold 1 reads, a later hold writes, and the write of hold 1 arrives after that.
    fn lost_update() -> Scene {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).release(1, 20);
        scene.acquire(2, 2, 30, 40, 42).read(2, 1, 41, 42).write(2, 2, 50, 60).release(2, 100);
        scene.write(1, 2, 15, 70);
        scene
    }

    #[test]
    fn an_update_that_the_final_value_does_not_contain_is_lost() {
        let scene = lost_update();
        let off = data(&scene, "off");
        assert_eq!((off.verdict, off.updates, off.lost_updates, off.overwrites), (Verdict::Measured, 2, 1, 1));
        assert_eq!((off.stale_accepted, off.late), (Some(1), Some(0)));
        for arm in ["writes", "reads", "cas"] {
            let found = data(&scene, arm);
            assert_eq!((found.updates, found.lost_updates, found.refused), (1, 0, 1), "{arm}");
        }
        assert_eq!(data(&scene, "reads").verdict, Verdict::Upheld);
        assert_eq!(data(&scene, "writes").verdict, Verdict::Measured);
    }

    #[test]
    fn fencing_writes_alone_loses_a_late_update() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).release(1, 20);
        scene.acquire(2, 2, 30, 40, 42).read(2, 1, 41, 42).write(2, 2, 50, 60).release(2, 100);
        scene.write(1, 2, 15, 45);
        assert_eq!(data(&scene, "writes").lost_updates, 1);
        let reads = data(&scene, "reads");
        assert_eq!((reads.lost_updates, reads.refused, reads.verdict), (0, 1, Verdict::Upheld));
    }

    #[test]
    fn a_chain_of_overwrites_loses_every_update_that_it_leaves_behind() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).release(1, 20).acquire(2, 2, 30, 40, 42);
        // 2 over 0, 3 over 2, 4 over 3; then 5 over what hold 1 had read: 0.
        scene.write(2, 1, 50, 60).write(2, 2, 61, 62).write(2, 3, 63, 64).release(2, 100).write(1, 2, 15, 70);
        let off = data(&scene, "off");
        assert_eq!((off.updates, off.lost_updates, off.overwrites), (4, 3, 1));
    }

    #[test]
    fn a_binding_arm_that_loses_an_update_is_violated() {
        let mut scene = lost_update();
        scene.bend(|number, arms| {
            if number == 4 {
                let off = arms[0].clone();
                arms.iter_mut().for_each(|d| {
                    *d = ArmDecision { arm: d.arm, seen: d.seen, ..off.clone() };
                });
            }
        });
        for (arm, verdict) in [
            ("off", Verdict::Measured),
            ("writes", Verdict::Measured),
            ("reads", Verdict::Violated),
            ("cas", Verdict::Violated),
        ] {
            let found = data(&scene, arm);
            assert_eq!((found.lost_updates, found.verdict), (1, verdict), "{arm}");
        }
        assert_eq!(data(&scene, "cas").unjustified, 1, "the base was not current");
    }

    #[test]
    fn cas_refuses_nothing_that_was_made_from_the_current_version() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).release(1, 20);
        scene.bend(|_, arms| {
            arms.iter_mut().filter(|d| d.arm == Arm::Cas).for_each(|d| {
                (d.admitted, d.version, d.value) = (false, 0, 0);
            });
        });
        let cas = data(&scene, "cas");
        assert_eq!((cas.verdict, cas.unjustified, cas.refused), (Verdict::Violated, 1, 1));
    }

    #[test]
    fn a_counter_that_disagrees_with_the_depth_violates_every_arm() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).release(1, 20);
        scene.bend(|_, arms| arms.iter_mut().for_each(|d| d.value += 1));
        for arm in ["off", "reads"] {
            let found = data(&scene, arm);
            assert_eq!((found.verdict, found.disagreements), (Verdict::Violated, 1), "{arm}");
        }
    }

    #[test]
    fn claim_admits_the_writes_of_the_hold_that_read_last_and_no_other() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).acquire(2, 2, 30, 40, 42);
        // Whoever writes without having read claims nothing; the first one still may, until the second one reads.
        scene.write(2, 1, 41, 42).write(1, 2, 43, 44).read(2, 2, 45, 46).write(1, 3, 47, 48).write(2, 3, 49, 50);
        let claim = data(&scene, "claim");
        assert_eq!((claim.verdict, claim.updates, claim.refused), (Verdict::Upheld, 2, 2));
        assert_eq!((claim.lost_updates, claim.unjustified, claim.stale_accepted), (0, 0, Some(0)));
        for (number, is_unjustified) in [(2, true), (3, true), (5, true), (6, true), (4, false)] {
            scene.bend(move |n, arms| {
                arms.iter_mut().filter(|d| n == number && d.arm == Arm::Claim).for_each(|d| d.admitted = !d.admitted);
            });
            let found = data(&scene, "claim").unjustified;
            assert_eq!(found > 0, is_unjustified, "#{number} was decided the other way round: {found}");
        }
    }

    #[test]
    fn a_base_that_the_hold_was_never_told_is_unjustified() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).write_over(1, 1, 12, 77).release(1, 20);
        let off = data(&scene, "off");
        assert_eq!((off.verdict, off.unjustified), (Verdict::Violated, 1));
        assert!(off.reasons[0].contains("#77"), "{:?}", off.reasons);
    }
}
