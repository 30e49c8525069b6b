//! Property 3: the fence, on the arms that decide by token. Everything is judged in the order of the admission log.

use history::{Arm, Comparison, Event, HoldId, Plan, RequestKind, Stamp, Token};

use crate::{
    holds::{Attempt, Grant},
    judge::{Ending, Judge},
    merge::Entry,
    order::{Order, Standing},
    property::{FenceVerdict, Property},
    rules::{self, Refusal},
    run::Run,
    verdict::{Facts, Verdict},
};

/// The largest token registered, and the hold that first brought it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    token: Token,
    hold: HoldId,
    grant: Grant,
}

struct FencedArm {
    arm: Arm,
    order: Order,
    seen: Vec<Option<Seen>>,
    found: FenceVerdict,
}

/// Witnesses that are listed.
const LISTED: usize = 20;

/// Judges the fence.
pub(crate) struct Fence {
    is_strict: bool,
    arms: Vec<FencedArm>,
}

impl Fence {
    pub fn new(plan: &Plan) -> Self {
        let arms = Arm::ALL.into_iter().filter(|arm| arm.fences() && plan.arms.contains(arm));
        let arms = arms.map(|arm| FencedArm { arm, order: Order::new(arm), seen: Vec::new(), found: nothing() });
        Fence { is_strict: plan.fence == Comparison::Strict, arms: arms.collect() }
    }
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
    }
}

/// One request on one arm.
struct Request<'a> {
    seq: u64,
    at: Stamp,
    kind: RequestKind,
    token: Option<Token>,
    hold: &'a Attempt,
    grant: Grant,
    is_strict: bool,
}

impl FencedArm {
    fn see(&mut self, request: &Request, is_admitted: bool) {
        let key = request.hold.key;
        if self.seen.len() <= key {
            self.seen.resize(key + 1, None);
        }
        let seen = self.seen[key];
        let refusal = match request.token {
            Some(token) => {
                rules::must_refuse(token, request.hold.id, seen.map(|s| (s.token, s.hold)), request.is_strict)
            }
            // Without a token nothing shows that the write is not stale.
            None => Refusal::Justified,
        };
        match (request.kind, is_admitted) {
            (RequestKind::Read, _) => {
                let standing = self.order.admitted(key, request.kind, request.at, &request.grant);
                self.found.stale_reads += u64::from(standing == Standing::Stale);
                if self.arm == Arm::Reads {
                    self.register(request);
                }
            }
            (RequestKind::Write, true) => {
                self.admitted(request, refusal);
                self.register(request);
            }
            (RequestKind::Write, false) => self.refused(request, refusal, seen),
        }
    }

    fn admitted(&mut self, request: &Request, refusal: Refusal) {
        let standing = self.order.admitted(request.hold.key, request.kind, request.at, &request.grant);
        self.found.late += u64::from(standing == Standing::Late);
        let is_stale = standing == Standing::Stale;
        let is_unjustified = refusal != Refusal::Unjustified;
        self.found.stale_accepted += u64::from(is_stale);
        self.found.unjustified += u64::from(is_unjustified);
        self.witness(request, is_stale || is_unjustified);
    }

    fn refused(&mut self, request: &Request, refusal: Refusal, seen: Option<Seen>) {
        let is_wrong = match (refusal, seen) {
            (Refusal::Repeat, _) => {
                self.found.repeats += 1;
                false
            }
            (Refusal::Justified, Some(by)) if by.grant.is_later(&request.grant) => {
                self.found.stale_rejected += 1;
                false
            }
            (Refusal::Justified, Some(by)) if request.grant.is_later(&by.grant) => {
                self.found.false_rejections += 1;
                true
            }
            (Refusal::Justified, Some(_)) => {
                self.found.undecided += 1;
                false
            }
            // A write that carries no token may be refused at any time.
            (Refusal::Justified, None) => false,
            (Refusal::Unjustified, _) => {
                self.found.unjustified += 1;
                true
            }
        };
        self.witness(request, is_wrong);
    }

    /// An equal token of another hold registers nothing.
    fn register(&mut self, request: &Request) {
        let seen = &mut self.seen[request.hold.key];
        if let Some(token) = request.token
            && seen.is_none_or(|largest| token > largest.token)
        {
            *seen = Some(Seen { token, hold: request.hold.id, grant: request.grant });
        }
    }

    fn witness(&mut self, request: &Request, is_wrong: bool) {
        if is_wrong && self.found.witness.len() < LISTED {
            self.found.witness.push(request.seq);
        }
    }
}

impl Judge for Fence {
    fn see(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                if let Some((hold, grant)) = run.attempt(*attempt).and_then(|h| Some((h, h.grant?))) {
                    self.arms.iter_mut().for_each(|arm| arm.order.acquired(hold.key, &grant));
                }
            }
            Event::Admission { kind, hold: Some(id), token, arms, repeat: false, .. } => {
                let Some((hold, grant)) = run.attempt(*id).and_then(|h| Some((h, h.grant?))) else { return };
                let (kind, token, is_strict) = (*kind, *token, self.is_strict);
                let request = Request { seq: entry.seq, at: entry.at, kind, token, hold, grant, is_strict };
                for arm in &mut self.arms {
                    if let Some(decision) = arms.iter().find(|d| d.arm == arm.arm) {
                        arm.see(&request, decision.admitted);
                    }
                }
            }
            _ => {}
        }
    }

    fn verdicts(self: Box<Self>, _run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(String, Property)> {
        let verdict = |arm: FencedArm| {
            let mut found = arm.found;
            let is_violated = found.stale_accepted + found.unjustified + found.false_rejections > 0;
            found.verdict = Verdict::judged(is_violated, !ending.is_whole);
            if found.false_rejections > 0 {
                let n = found.false_rejections;
                found
                    .reasons
                    .push(format!("the tokens went wrong: {n} writes were refused for the token of an earlier hold"));
            }
            (format!("{}.fence", arm.arm), Property::Fence(found))
        };
        self.arms.into_iter().map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use history::ArmDecision;

    use super::*;
    use crate::scene::{Scene, plan};

    fn fence(scene: &Scene, arm: &str) -> FenceVerdict {
        match scene.verdicts().properties.get(&format!("{arm}.fence")) {
            Some(Property::Fence(fence)) => fence.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Hold 1 (token 41) and the later hold 2 (token 42), whose write is admission 1.
    fn two_holds() -> Scene {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).write(2, 1, 50, 60).release(2, 100);
        scene
    }

    fn admit(arms: &mut [ArmDecision], arm: Arm, admitted: bool) {
        arms.iter_mut().filter(|d| d.arm == arm).for_each(|d| d.admitted = admitted);
    }

    #[test]
    fn a_refused_write_of_an_earlier_hold_is_a_stale_one_rejected() {
        let mut scene = two_holds();
        scene.write(1, 1, 15, 70);
        let found = fence(&scene, "writes");
        assert_eq!((found.verdict, found.stale_rejected, found.stale_accepted), (Verdict::Upheld, 1, 0));
    }

    #[test]
    fn a_refusal_between_holds_that_only_the_queue_orders_is_decided_by_it() {
        let refused = |places: Option<[u64; 2]>| {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41);
            places.map(|places| scene.placed(places[0]).plan.seed);
            scene.release(1, 20).acquire(2, 2, 5, 40, 42);
            places.map(|places| scene.placed(places[1]).plan.seed);
            scene.write(2, 1, 50, 60).release(2, 100).write(1, 1, 15, 70);
            let found = fence(&scene, "writes");
            (found.stale_rejected, found.false_rejections, found.undecided)
        };
        assert_eq!(refused(None), (0, 0, 1));
        assert_eq!(refused(Some([7, 8])), (1, 0, 0));
        assert_eq!(refused(Some([8, 7])), (0, 1, 0));
    }

    #[test]
    fn an_admitted_write_is_stale_if_only_the_queue_says_so() {
        // The other way round the second one came before, and late.
        for (places, expected) in [([7, 8], (1, 0)), ([8, 7], (0, 1))] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).placed(places[0]).release(1, 20).acquire(2, 2, 5, 40, 42).placed(places[1]);
            scene.write(2, 1, 50, 60).release(2, 100).write(1, 1, 15, 70);
            scene.bend(|number, arms| admit(arms, Arm::Writes, number > 0));
            let found = fence(&scene, "writes");
            assert_eq!((found.stale_accepted, found.late), expected, "{places:?}");
        }
        // Acquired, and nothing done yet.
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).placed(7).release(1, 20).acquire(2, 2, 5, 40, 42).placed(8);
        scene.write(1, 1, 15, 70).release(2, 100);
        assert_eq!(fence(&scene, "writes").late, 1);
    }

    #[test]
    fn a_stale_write_that_is_admitted_violates_the_fence() {
        let mut scene = two_holds();
        scene.write(1, 1, 15, 70).bend(|number, arms| admit(arms, Arm::Writes, number > 0));
        let found = fence(&scene, "writes");
        assert_eq!((found.verdict, found.stale_accepted, found.unjustified), (Verdict::Violated, 1, 1));
        assert_eq!(found.witness.len(), 1);
        assert_eq!(fence(&scene, "reads").verdict, Verdict::Upheld);
    }

    #[test]
    fn a_write_before_the_later_holds_first_operation_is_late_and_nobodys_fault() {
        let mut scene = two_holds();
        scene.write(1, 1, 15, 45);
        let found = fence(&scene, "writes");
        assert_eq!((found.verdict, found.late, found.stale_accepted), (Verdict::Upheld, 1, 0));
        // At the later hold's ok it is not even late.
        let mut scene = two_holds();
        scene.write(1, 1, 15, 40);
        assert_eq!(fence(&scene, "writes").late, 0);
    }

    #[test]
    fn a_read_registers_on_reads_and_not_on_writes() {
        let mut scene = two_holds();
        scene.read(2, 2, 41, 42).write(1, 1, 15, 45);
        assert_eq!(fence(&scene, "writes").late, 1);
        let reads = fence(&scene, "reads");
        assert_eq!((reads.late, reads.stale_rejected, reads.verdict), (0, 1, Verdict::Upheld));
    }

    #[test]
    fn stale_reads_are_counted_only() {
        let mut scene = two_holds();
        scene.read(1, 1, 15, 70);
        for arm in ["writes", "reads"] {
            let found = fence(&scene, arm);
            assert_eq!((found.stale_reads, found.verdict), (1, Verdict::Upheld), "{arm}");
        }
    }

    #[test]
    fn a_refusal_that_nothing_registered_justifies_is_unjustified() {
        let mut scene = two_holds();
        scene.bend(|number, arms| admit(arms, Arm::Writes, number != 1));
        let found = fence(&scene, "writes");
        assert_eq!((found.verdict, found.unjustified), (Verdict::Violated, 1));
    }

    #[test]
    fn a_refused_write_registers_nothing() {
        let mut scene = two_holds();
        // The write of hold 2 is refused, so that of hold 1 must be admitted.
        scene.write(1, 1, 15, 70).bend(|number, arms| admit(arms, Arm::Writes, number == 2));
        let found = fence(&scene, "writes");
        assert_eq!((found.unjustified, found.late, found.stale_accepted), (1, 1, 0));
    }

    #[test]
    fn a_later_hold_refused_for_an_earlier_ones_token_is_a_false_rejection() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 43).write(1, 1, 12, 14).release(1, 20);
        scene.acquire(2, 2, 30, 40, 42).write(2, 1, 50, 60).release(2, 100);
        let found = fence(&scene, "writes");
        assert_eq!((found.verdict, found.false_rejections), (Verdict::Violated, 1));
        assert!(found.reasons[0].contains("tokens"), "{:?}", found.reasons);
    }

    #[test]
    fn a_refusal_between_unordered_holds_is_undecided() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 43).write(1, 1, 12, 14).release(1, 20);
        scene.acquire_knowing(2, 2, 5, 10, 40, 42).write(2, 1, 50, 60).release(2, 100);
        let found = fence(&scene, "writes");
        assert_eq!((found.verdict, found.undecided, found.false_rejections), (Verdict::Upheld, 1, 0));
    }

    #[test]
    fn an_equal_token_belongs_to_the_hold_that_brought_it_first() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 42).release(1, 20).acquire(2, 2, 30, 40, 42);
        scene.write(1, 1, 12, 14).write(2, 1, 50, 60).write(1, 2, 15, 70).release(2, 100);
        let found = fence(&scene, "writes");
        // Hold 2 is refused for hold 1's token; hold 1 may go on.
        assert_eq!((found.false_rejections, found.late, found.unjustified), (1, 1, 0));
    }

    #[test]
    fn in_strict_mode_a_second_write_of_a_hold_is_a_repeat() {
        let mut plan = plan();
        plan.fence = Comparison::Strict;
        plan.arms = vec![Arm::Off, Arm::Writes];
        let mut scene = Scene::with(plan);
        scene.acquire(1, 1, 0, 10, 42).write(1, 1, 12, 14).write(1, 2, 15, 16).release(1, 20);
        let found = fence(&scene, "writes");
        assert_eq!((found.verdict, found.repeats, found.unjustified), (Verdict::Upheld, 1, 0));
        scene.bend(|_, arms| admit(arms, Arm::Writes, true));
        assert_eq!(fence(&scene, "writes").unjustified, 1, "strict refuses it");
    }

    #[test]
    fn the_log_decides_between_requests_of_one_stamp() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 100);
        scene.write(2, 1, 50, 60).write(1, 1, 15, 60);
        assert_eq!(fence(&scene, "writes").stale_rejected, 1);
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 100);
        scene.write(1, 1, 15, 60).write(2, 1, 50, 60);
        assert_eq!(fence(&scene, "writes").late, 1);
    }
}
