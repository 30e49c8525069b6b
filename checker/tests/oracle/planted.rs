//! Every planted bug is caught, and caught as what it is.

use std::collections::BTreeSet;

use history::{Arm, Mode, Tail};

use crate::{
    expected::Judged,
    model::{
        self, World,
        knobs::{ArmBug, Knobs, Tokens},
        lock::{DRIFT, LEASE},
        truth::{TrueAct, TrueHold},
    },
    number, reported,
};

/// Worlds that are searched for each bug.
const WORLDS: u64 = 6_000;

/// In how many worlds of `kind` the bug `bites`, by the truth; `caught` must hold in each of them.
fn each(
    kind: impl Fn(&Knobs) -> bool,
    bites: impl Fn(&World) -> bool,
    caught: impl Fn(&World, &Judged) -> bool,
) -> u64 {
    let mut bitten = 0;
    for seed in 0..number("ORACLE_HISTORIES").map_or(WORLDS, |n| n.min(WORLDS)) {
        if !kind(&Knobs::of(seed)) {
            continue;
        }
        let world = World::run(seed);
        if bites(&world) {
            let (judged, json) = reported::judge(model::records(&world, seed), Tail::Whole);
            assert!(caught(&world, &judged), "seed {seed} ({}): {json:#}", world.k.family);
            bitten += 1;
        }
    }
    bitten
}

/// Some write of a hold was decided wrongly on `arm`.
fn wrong(world: &World, arm: Arm) -> bool {
    let index = world.k.arms.iter().position(|a| *a == arm);
    index.is_some_and(|i| world.truth.acts.iter().any(|a| a.write && !a.decided[i].2))
}

fn has(arm: Arm, bug: ArmBug) -> impl Fn(&Knobs) -> bool {
    move |k| k.arm_bugs.contains(&(arm, bug))
}

fn fence_violated(arm: Arm) -> impl Fn(&World, &Judged) -> bool {
    move |_, j| {
        j.fence[arm.name()].verdict == "violated" && j.fence[arm.name()].unjustified > 0 && j.verdict == "violated"
    }
}

#[test]
fn an_arm_that_compares_wrongly_is_caught_by_its_fence() {
    for arm in [Arm::Writes, Arm::Reads] {
        for bug in [ArmBug::OneTooLow, ArmBug::AdmitsAll] {
            assert!(each(has(arm, bug), |w| wrong(w, arm), fence_violated(arm)) > 5, "{arm} {bug:?}");
        }
    }
    assert!(each(has(Arm::Writes, ArmBug::Inverted), |w| wrong(w, Arm::Writes), fence_violated(Arm::Writes)) > 5);
}

#[test]
fn an_arm_that_refuses_valid_writes_now_and_then_is_caught_by_its_fence() {
    for arm in [Arm::Writes, Arm::Reads] {
        assert!(each(has(arm, ArmBug::Refuses), |w| wrong(w, arm), fence_violated(arm)) > 5, "{arm}");
    }
}

#[test]
fn a_reads_arm_that_does_not_register_is_caught_by_its_fence() {
    assert!(each(has(Arm::Reads, ArmBug::Forgets), |w| wrong(w, Arm::Reads), fence_violated(Arm::Reads)) > 5);
}

#[test]
fn an_arm_that_admits_an_equal_token_of_another_hold_is_unjustified() {
    for arm in [Arm::Writes, Arm::Reads] {
        assert!(each(has(arm, ArmBug::AdmitsEqual), |w| wrong(w, arm), fence_violated(arm)) > 5, "{arm}");
    }
}

#[test]
fn a_cas_arm_that_does_not_compare_is_caught_by_its_data() {
    let caught = |_: &World, j: &Judged| j.data["cas"].verdict == "violated" && j.data["cas"].unjustified > 0;
    assert!(each(has(Arm::Cas, ArmBug::Blind), |w| wrong(w, Arm::Cas), caught) > 5);
}

#[test]
fn a_claim_arm_that_does_not_look_who_read_last_is_caught_by_its_data() {
    let caught = |_: &World, j: &Judged| j.data["claim"].verdict == "violated" && j.data["claim"].unjustified > 0;
    assert!(each(has(Arm::Claim, ArmBug::Blind), |w| wrong(w, Arm::Claim), caught) > 5);
}

#[test]
fn a_client_without_the_validity_check_makes_dead_claims() {
    let late =
        |w: &World| w.truth.holds.values().any(|h| h.claimed >= h.sent + model::lock::LEASE - model::lock::DRIFT);
    let caught = |_: &World, j: &Judged| !j.lock.dead_claims.is_empty() && j.lock.verdict == "violated";
    assert!(each(|k| k.no_validity, late, caught) > 20);
    // And nobody else does.
    assert_eq!(each(|k| !k.no_validity && !k.counts_from_answer, late, |_, _| false), 0);
}

#[test]
fn a_client_that_accepts_a_minority_makes_minority_claims() {
    let few = |w: &World| w.truth.holds.values().any(|h| h.granted * 2 <= w.k.nodes);
    let caught = |_: &World, j: &Judged| !j.lock.minority_claims.is_empty() && j.lock.verdict == "violated";
    assert!(each(|k| k.accepts_minority, few, caught) > 20);
    // And nobody else does.
    assert_eq!(each(|k| !k.accepts_minority, few, |_, _| false), 0);
}

/// The pairs of holds of one key that were promised at the same time, without their renewals.
fn both(w: &World) -> Vec<(u64, u64)> {
    let holds = || w.truth.holds.iter().map(|(id, h)| (*id, h));
    let live = |h: &TrueHold| (h.claimed, h.over.unwrap_or(u64::MAX).min(h.sent + LEASE - DRIFT));
    let at_once = |a: &TrueHold, b: &TrueHold| live(a).0.max(live(b).0) < live(a).1.min(live(b).1);
    let pairs = holds().flat_map(|a| holds().filter(move |b| a.0 < b.0).map(move |b| (a, b)));
    pairs.filter(|(a, b)| a.1.key == b.1.key && at_once(a.1, b.1)).map(|(a, b)| (a.0, b.0)).collect()
}

#[test]
fn a_lock_whose_writers_ignore_readers_is_caught_and_readers_who_share_a_key_are_not() {
    let kinds = |w: &World, (a, b): (u64, u64)| (w.truth.holds[&a].mode, w.truth.holds[&b].mode);
    let is_mixed = |w: &World, pair| matches!(kinds(w, pair), (Mode::Read, Mode::Write) | (Mode::Write, Mode::Read));
    let mixed = |w: &World| both(w).into_iter().any(|pair| is_mixed(w, pair));
    let caught = |w: &World, j: &Judged| {
        both(w).into_iter().filter(|pair| is_mixed(w, *pair)).all(|pair| j.lock.overlaps.contains_key(&pair))
    };
    assert!(each(|k| k.ignores_readers && k.family != "host clock", mixed, caught) > 20);
    let shared = |w: &World| both(w).into_iter().any(|pair| kinds(w, pair) == (Mode::Read, Mode::Read));
    let kept = |w: &World, j: &Judged| {
        both(w)
            .into_iter()
            .filter(|p| kinds(w, *p) == (Mode::Read, Mode::Read))
            .all(|p| !j.lock.overlaps.contains_key(&p))
    };
    assert!(each(|k| k.modes.len() > 1, shared, kept) > 50);
}

#[test]
fn a_lease_that_ends_before_its_promise_is_cut_short_when_its_holder_is_killed() {
    let promise = |h: &TrueHold| h.sent + model::lock::LEASE - model::lock::DRIFT;
    let cut = |w: &World| -> Vec<u64> {
        let holds = || w.truth.holds.iter().map(|(id, h)| (*id, h));
        let killed = holds().filter(|(_, h)| h.killed && h.used.is_none());
        let by = |h: &TrueHold, g: &TrueHold| {
            g.excludes(h) && h.over.is_some_and(|at| at < g.claimed) && h.claimed < g.claimed && g.claimed < promise(h)
        };
        let found = killed.filter(|(_, h)| holds().any(|(_, g)| by(h, g) && g.claimed < promise(g)));
        found.map(|(id, _)| id).collect()
    };
    let caught = |w: &World, j: &Judged| {
        let is_found = |id: u64| j.lock.cut_short.keys().any(|(killed, _)| *killed == id);
        cut(w).into_iter().all(is_found) && (j.lock.verdict == "violated" || w.k.clock_step.is_some())
    };
    assert!(each(|k| k.family == "cut short", |w| !cut(w).is_empty(), caught) > 20);
    // No lock that keeps its promises cuts one short.
    let honest = |k: &Knobs| k.ends_early == 0.0 && k.forgets_nx == 0.0 && !k.deletes_any && !k.ignores_readers;
    assert!(each(honest, |_| true, |_, j| j.lock.cut_short.is_empty()) > 1_000);
}

#[test]
fn a_client_that_counts_its_deadline_from_the_answer_overclaims_in_every_hold() {
    let waited = |w: &World| w.truth.holds.values().any(|h| h.claimed > h.sent);
    let caught = |w: &World, j: &Judged| {
        let waited = w.truth.holds.iter().filter(|(_, h)| h.claimed > h.sent);
        waited.map(|(id, _)| id).all(|id| j.lock.overclaims.contains_key(id)) && j.lock.verdict == "violated"
    };
    assert!(each(|k| k.counts_from_answer, waited, caught) > 20);
    // And nobody else does.
    let honest = |k: &Knobs| !k.counts_from_answer && !k.lax_check && !k.revives;
    assert!(each(honest, |_| true, |_, j| j.lock.overclaims.is_empty()) > 20);
}

#[test]
fn a_lock_that_forgets_nx_is_unexplained_and_no_pause_of_a_third_worker_is_to_blame() {
    let kind = |k: &Knobs| k.family == "forgets nx" && k.clock_step.is_none() && !k.deletes_any;
    let excludes = |w: &World, (a, b): (u64, u64)| w.truth.holds[&a].excludes(&w.truth.holds[&b]);
    let is_paused = |w: &World| w.k.timed.iter().any(|t| t.worker == Some(2));
    let granted_twice = |w: &World| is_paused(w) && both(w).into_iter().any(|pair| excludes(w, pair));
    let unexplained = |w: &World, j: &Judged| {
        let mut causes = j.lock.overlaps.values().flat_map(|window| &window.causes);
        let is_found = !j.lock.overlaps.is_empty();
        causes.all(|c| c == "unexplained") && (j.lock.unexplained > 0 || !is_found) && (is_found || !granted_twice(w))
    };
    assert!(each(kind, is_paused, unexplained) > 20);
    assert!(each(kind, granted_twice, unexplained) > 20);
}

#[test]
fn tokens_that_go_wrong_are_never_blamed_on_the_arm() {
    let kind = |k: &Knobs| k.arm_bugs.is_empty() && matches!(k.tokens, Tokens::PerWorker | Tokens::Repeats);
    let just = |_: &World, j: &Judged| j.fence.values().all(|f| f.unjustified == 0);
    assert!(each(kind, |_| true, just) > 20);
}

#[test]
fn a_client_that_acts_after_its_own_release_is_stale_before_and_after_its_next_attempt() {
    // Some hold of the key was surely granted later, and had been acquired by then.
    let is_stale = |w: &World, act: &TrueAct| {
        let h = &w.truth.holds[&act.hold];
        let is_later = |g: &TrueHold| g.excludes(h) && g.sent > h.claimed && g.claimed < act.at;
        h.used.as_ref().is_some_and(|used| act.sent > used.0) && w.truth.holds.values().any(is_later)
    };
    for after_next in [false, true] {
        let acts = |w: &World| -> BTreeSet<u64> {
            let acts = w.truth.acts.iter().filter(|act| act.after_next == after_next && is_stale(w, act));
            acts.map(|act| act.hold).collect()
        };
        let caught = |w: &World, j: &Judged| acts(w).iter().all(|hold| j.lock.stale.contains_key(hold));
        let bitten = each(|k| k.after_release > 0.0, |w| !acts(w).is_empty(), caught);
        assert!(bitten > 20, "after the next attempt: {after_next}, in {bitten} worlds");
        // And nobody else does.
        assert_eq!(each(|k| k.after_release == 0.0, |w| !acts(w).is_empty(), |_, _| false), 0);
    }
}
