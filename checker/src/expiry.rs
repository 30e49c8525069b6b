//! What took a key away from a hold whose lease was not over: the cause of a lease-overlap.
//!
//! A node lets a key go when its clock says that the lease is over, when it has forgotten the key, or when it was told to.
//! It cannot have granted the key before the request was sent, so by true time the lease lasts until `sent + lease` at
//! least; whatever moved the node's clock since the grant counts towards that. Only faults that their target showed explain
//! anything, each by the stamps around it: where these leave open whether it explains, it does.

use std::time::Duration;

use history::{ClockChange, Fault, FaultKind, LeaseClock, NodeName, Persistence, Stamp, WhichClock};

use crate::{
    cause::{HOST_CLOCK, UNEXPLAINED},
    faults::Line,
    holds::{Attempt, Grant, Span},
    judge::Ending,
    lock::Overlap,
    rules,
    run::Run,
};

/// How far a store with `appendfsync everysec` may be behind.
const SYNCED_EVERY: Duration = Duration::from_secs(1);

/// The cause of a lease-overlap: on **every** node that granted both, the first thing that took the first hold's key away
/// between its attempt and the other's success.
pub(crate) fn of_overlap(run: &Run, overlap: &Overlap, ending: &Ending) -> String {
    let [first, second] = &overlap.holds;
    let both = first.nodes & second.nodes;
    let mut names: Vec<&str> = Vec::new();
    if is_one_store(run) {
        names.extend(in_store(run, overlap, ending));
    } else {
        for node in (0..run.plan.lock_nodes.len().min(64)).filter(|i| both & (1 << i) != 0) {
            // One that did not do a renewal may have let the key go when its lease was over.
            if rules::is_lease_over(second.ok.at, overlap.lease_until(node)) {
                continue;
            }
            match on_node(run, overlap, ending, node) {
                Some(name) if !names.contains(&name) => names.push(name),
                Some(_) => {}
                None => {
                    names.clear();
                    break;
                }
            }
        }
    }
    if !names.is_empty() {
        names.join("+")
    } else if run.stalls.stepped_within((first.sent.at, second.ok.at)) {
        HOST_CLOCK.into()
    } else {
        UNEXPLAINED.into()
    }
}

/// Whether the lock nodes are replicas of one store, and not servers of their own.
pub(crate) fn is_one_store(run: &Run) -> bool {
    run.plan.has_one_store()
}

/// Whether a restart of this kind may lose what the node was told.
pub(crate) fn forgets(run: &Run, kind: FaultKind) -> bool {
    let persistence = run.plan.models.unwrap_or_default().persistence;
    match kind {
        FaultKind::Amnesia => true,
        FaultKind::Powerloss => is_one_store(run) || persistence != Persistence::Always,
        // A kill loses what the kernel was not given: everything, without an append-only file.
        FaultKind::Kill => !is_one_store(run) && persistence == Persistence::No,
        FaultKind::Pause | FaultKind::Stop | FaultKind::Slow | FaultKind::Clock => false,
        FaultKind::Partition | FaultKind::Delay | FaultKind::Loss | FaultKind::Reorder => false,
    }
}

/// A hold's key on a node: what may have taken it away, and by when.
pub(crate) struct Kept {
    /// When its attempt was sent.
    pub sent: Stamp,
    /// Between which stamps the node was told of the lease, and until when that lasts by true time at least.
    pub told: Span,
    pub until: Stamp,
    /// The key was gone by then.
    pub gone_by: Stamp,
}

impl Kept {
    /// The key of a hold on a node that refused to renew it, which it had done by `gone_by`.
    pub fn of(hold: &Attempt, grant: &Grant, node: usize, gone_by: Stamp) -> Kept {
        let first = (grant.promised_from, grant.promised_from.plus(grant.lease));
        let (told, until) = match hold.leases.get(node) {
            Some((sent, until)) if *sent > first.0 => ((*sent, *sent), *until),
            _ => ((first.0, grant.ok.at), first.1),
        };
        Kept { sent: hold.sent.at, told, until, gone_by }
    }

    /// Whether a proved fault may have taken the key away: of the node, or of any member of the store.
    pub fn is_taken_by(&self, run: &Run, line: &Line) -> bool {
        let found = if is_one_store(run) { self.left_store(run, line) } else { self.forgotten(run, line) };
        let last_move = || Clocks::of(run, &line.node).first_to_reach(self.until, self.told, self.gone_by, clock(run));
        let is_before = |last: Stamp| line.requested.is_some_and(|requested| requested.at <= last);
        found.is_some() || (line.kind == FaultKind::Clock && last_move().is_some_and(is_before))
    }

    /// When a server of its own was about to restart without it.
    fn forgotten(&self, run: &Run, line: &Line) -> Option<Stamp> {
        let persistence = run.plan.models.unwrap_or_default().persistence;
        // It went at some instant between these two.
        let (at, gone) = (line.requested?.at, line.injected.or(line.healed).unwrap_or(Stamp(u64::MAX)));
        // What had been synced when the power went is still there.
        let is_synced = line.kind == FaultKind::Powerloss
            && persistence == Persistence::Everysec
            && rules::is_lease_over(at, self.told.1.plus(SYNCED_EVERY));
        let is_between = rules::is_between(gone, self.sent, Stamp(u64::MAX)) && at < self.gone_by;
        (forgets(run, line.kind) && is_between && !is_synced).then_some(at)
    }

    /// When a fault began of a member of a store by which the store forgot it, or revoked its lease.
    fn left_store(&self, run: &Run, line: &Line) -> Option<Stamp> {
        let (from, to) = line.bracket()?;
        // A leader that goes on does so somewhere between these two stamps, and revokes at once.
        let resumes = line.heal_requested.unwrap_or(to);
        let is_revoked = line.kind.freezes()
            && run.plan.models.unwrap_or_default().revokes_on_resume
            && rules::overlap((from, to), (self.sent, self.gone_by)).is_some()
            && resumes < self.gone_by;
        let is_forgotten = forgets(run, line.kind) && rules::is_between(from, self.sent, self.gone_by);
        (is_revoked || is_forgotten).then_some(from)
    }
}

/// The clock by which the servers let a key go.
fn clock(run: &Run) -> WhichClock {
    match run.plan.models.unwrap_or_default().lease_clock {
        _ if !is_one_store(run) => WhichClock::Wall,
        LeaseClock::Both => WhichClock::Both,
        LeaseClock::Monotonic => WhichClock::Monotonic,
    }
}

/// Proved faults of a node.
fn proved<'a>(run: &'a Run, node: &'a NodeName) -> impl Iterator<Item = &'a Line> {
    run.faults.iter().map(|(_, line)| line).filter(move |l| l.proved.is_some() && l.node == *node)
}

/// What took the key away on one of several servers.
fn on_node(run: &Run, overlap: &Overlap, ending: &Ending, node: usize) -> Option<&'static str> {
    let [first, second] = &overlap.holds;
    let name = &run.plan.lock_nodes[node];
    let between = |at: Stamp| rules::is_between(at, first.sent.at, second.ok.at);
    let (until, told) = (overlap.lease_until(node), overlap.told(node));
    let kept = Kept { sent: first.sent.at, told, until, gone_by: second.ok.at };
    let restarts = proved(run, name).filter_map(|line| Some((kept.forgotten(run, line)?, line.kind.name())));
    let removed = ending.unsafe_releases.iter().filter(|u| u.owner == first.id && u.node == node);
    let removed = removed.map(|u| (u.invoked.at, "unsafe-release")).filter(|(at, _)| between(*at));
    let moved = Clocks::of(run, name).first_to_reach(until, told, second.ok.at, clock(run));
    restarts.chain(removed).chain(moved.map(|at| (at, FaultKind::Clock.name()))).min().map(|(_, name)| name)
}

/// What took the key away in a store of which all lock nodes are replicas: a fault on any of them.
fn in_store(run: &Run, overlap: &Overlap, ending: &Ending) -> Option<&'static str> {
    let [first, second] = &overlap.holds;
    let between = |at: Stamp| rules::is_between(at, first.sent.at, second.ok.at);
    let longest = overlap.longest();
    let (until, told) = (overlap.lease_until(longest), overlap.told(longest));
    let kept = Kept { sent: first.sent.at, told, until, gone_by: second.ok.at };
    let removed = ending.unsafe_releases.iter().filter(|u| u.owner == first.id && between(u.invoked.at));
    let mut found: Vec<(Stamp, &'static str)> = removed.map(|u| (u.invoked.at, "unsafe-release")).collect();
    for name in &run.plan.lock_nodes {
        found.extend(proved(run, name).filter_map(|line| Some((kept.left_store(run, line)?, line.kind.name()))));
        let moved = Clocks::of(run, name).first_to_reach(until, told, second.ok.at, clock(run));
        found.extend(moved.map(|at| (at, FaultKind::Clock.name())));
    }
    found.into_iter().min().map(|(_, name)| name)
}

/// How one fault moves a clock. Offsets are in nanoseconds.
struct Shift {
    clock: WhichClock,
    change: ClockChange,
    /// It began between these stamps.
    begun: Span,
    /// And ended between these.
    ended: Span,
}

impl Shift {
    fn of(run: &Run, id: history::FaultId, line: &Line) -> Option<Shift> {
        let step = run.plan.schedule.iter().find(|step| step.id == id)?;
        let Fault::Clock { clock, change, .. } = step.fault else { return None };
        let never = Stamp(u64::MAX);
        let requested = line.requested?.at;
        let (heal, healed) = (line.heal_requested.unwrap_or(never), line.healed.unwrap_or(never));
        Some(Shift { clock, change, begun: (requested, line.injected.unwrap_or(healed)), ended: (heal, healed) })
    }

    fn moves(&self, wall: bool) -> bool {
        if wall { self.clock.is_wall() } else { self.clock.is_monotonic() }
    }

    /// The most (or least) by which it may have moved the clock at some instant of `within`.
    fn bound(&self, within: Span, wall: bool, most: bool) -> i128 {
        if !self.moves(wall) {
            return 0;
        }
        // The jump of a monotonic clock stays.
        let never = (Stamp(u64::MAX), Stamp(u64::MAX));
        match self.change {
            ClockChange::JumpMs(by) => {
                let ended = if wall { self.ended } else { never };
                let may_be_on = within.0 < ended.1 && self.begun.0 <= within.1;
                let is_on = self.begun.1 <= within.0 && within.1 <= ended.0;
                let is_counted = if (by > 0) == most { may_be_on } else { is_on };
                if is_counted { i128::from(by) * 1_000_000 } else { 0 }
            }
            ClockChange::DriftPpm(ppm) => {
                let (latest, earliest) = (within.1.min(self.ended.1), within.0.min(self.ended.0));
                let lasted = if (ppm > 0) == most { latest.since(self.begun.0) } else { earliest.since(self.begun.1) };
                lasted.as_nanos() as i128 * i128::from(ppm) / 1_000_000
            }
            // While it may be on it may be there or back at any instant, whatever it was at the one before; healed, it is back.
            ClockChange::Strobe { by_ms, .. } => {
                let may_be_on = within.0 < self.ended.1 && self.begun.0 <= within.1;
                let is_counted = may_be_on && (by_ms > 0) == most;
                if is_counted { i128::from(by_ms) * 1_000_000 } else { 0 }
            }
        }
    }
}

/// Everything that was done to the clocks of one node, in the order of time.
struct Clocks(Vec<Shift>);

impl Clocks {
    fn of(run: &Run, node: &NodeName) -> Clocks {
        let clocks =
            run.faults.iter().filter(|(_, l)| l.kind == FaultKind::Clock && l.proved.is_some() && l.node == *node);
        let mut shifts: Vec<Shift> = clocks.filter_map(|(id, line)| Shift::of(run, id, line)).collect();
        shifts.sort_by_key(|shift| shift.begun);
        Clocks(shifts)
    }

    /// When the first fault was requested with which, at some instant before `last`, true time and all that had moved the
    /// clock since the node was `told` reached `until`.
    fn first_to_reach(&self, until: Stamp, told: Span, last: Stamp, clock: WhichClock) -> Option<Stamp> {
        (1..=self.0.len()).find_map(|n| {
            let shifts = &self.0[..n];
            let moved = |at: Stamp, wall: bool| -> i128 {
                let since = |shift: &Shift| shift.bound((at, at), wall, true) - shift.bound(told, wall, false);
                shifts.iter().map(since).sum()
            };
            let reaches = |at: Stamp| {
                let ahead = match clock {
                    WhichClock::Wall => moved(at, true),
                    WhichClock::Monotonic => moved(at, false),
                    WhichClock::Both => moved(at, true).min(moved(at, false)),
                };
                rules::is_lease_over_by(at, ahead, until)
            };
            // The clock is furthest ahead just before it is set back, or at the end.
            let before_back = shifts.iter().flat_map(|shift| [shift.begun.1, Stamp(shift.ended.1.0.saturating_sub(1))]);
            let mut instants = before_back.filter(|at| *at < last && *at > told.0).chain([last]);
            instants.any(reaches).then(|| shifts[n - 1].begun.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use history::{Event, FaultPhase, HoldId, Models, NodeAnswer, Outcome, Why};

    use super::*;
    use crate::scene::Scene;

    const SECOND: Duration = Duration::from_secs(1);

    fn wall(by_ms: i64) -> Fault {
        Fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(by_ms), lasting: SECOND }
    }

    fn clock(clock: WhichClock, change: ClockChange) -> Fault {
        Fault::Clock { clock, change, lasting: SECOND }
    }

    fn amnesia() -> Fault {
        Fault::Amnesia { back_after: SECOND }
    }

    /// Hold 1 is granted between 0 and 10 and lasts until 2,000; hold 2 is acquired at 1,010. Both by nodes 1, 2 and 3 unless
    /// there are fewer.
    fn overlap(nodes: usize) -> Scene {
        let mut s = Scene::new();
        s.plan.lock_nodes.truncate(nodes);
        s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_010, 42).release(2, 1_100).release_refused(1, 1_200);
        s
    }

    fn cause(s: &mut Scene) -> String {
        s.window().causes.concat()
    }

    #[test]
    fn a_node_that_forgot_explains_an_overlap_if_every_common_node_is_explained() {
        assert_eq!(cause(overlap(1).blow(1, amnesia(), "redis-1", 500, 600)), "amnesia");
        assert_eq!(cause(overlap(3).blow(1, amnesia(), "redis-1", 500, 600)), "unexplained");
        let mut s = overlap(3);
        s.blow(1, amnesia(), "redis-1", 500, 600).blow(2, wall(20_000), "redis-2", 300, 1_300);
        s.blow(3, amnesia(), "redis-3", 500, 600);
        assert_eq!(cause(&mut s), "amnesia+clock");
    }

    #[test]
    fn a_fault_before_the_attempt_or_after_the_other_success_explains_nothing() {
        // It takes effect until 10 ms later.
        for (requested, is_cause) in [(90, false), (91, true), (101, true), (1_109, true), (1_110, false)] {
            let mut s = Scene::new();
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
            s.blow(1, amnesia(), "redis-1", requested + 5, 1_400);
            assert_eq!(cause(&mut s) == "amnesia", is_cause, "requested at {requested}");
        }
    }

    #[test]
    fn a_fault_that_was_not_proved_explains_nothing() {
        let mut s = overlap(1);
        s.fault(1, FaultKind::Amnesia, "redis-1", 500, FaultPhase::Requested { asked_ns: 1, hold: None });
        s.fault(1, FaultKind::Amnesia, "redis-1", 600, FaultPhase::Healed);
        assert_eq!(cause(&mut s), "unexplained");
    }

    #[test]
    fn what_a_restart_forgets_depends_on_what_was_on_disk() {
        use Persistence::*;
        let (kill, power) = (Fault::Kill { back_after: SECOND }, Fault::Powerloss { back_after: SECOND });
        for (fault, persistence, requested, expected) in [
            (kill.clone(), No, 500, "kill"),
            (kill.clone(), Everysec, 500, "unexplained"),
            (kill, Always, 500, "unexplained"),
            (power.clone(), No, 500, "powerloss"),
            (power.clone(), Everysec, 500, "powerloss"),
            (power.clone(), Everysec, 1_008, "powerloss"),
            (power, Always, 500, "unexplained"),
            (amnesia(), Always, 500, "amnesia"),
        ] {
            let mut s = overlap(1);
            s.plan.models = Some(Models { persistence, ..Models::default() });
            let kind = fault.kind();
            s.blow(1, fault, "redis-1", requested, 1_050);
            assert_eq!(cause(&mut s), expected, "{kind} with {persistence:?} at {requested}");
        }
        // What had been told a second before was on disk.
        for (requested, expected) in [(1_009, "powerloss"), (1_010, "unexplained")] {
            let mut s = Scene::new();
            s.plan.models = Some(Models { persistence: Everysec, ..Models::default() });
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
            s.blow(1, Fault::Powerloss { back_after: SECOND }, "redis-1", requested + 5, 1_100);
            assert_eq!(cause(&mut s), expected, "the power went at {requested}");
        }
    }

    #[test]
    fn a_jump_explains_an_overlap_if_it_is_long_enough() {
        // At 1,010 by true time 990 of the lease were left.
        for (by, expected) in [(990, "clock"), (989, "unexplained"), (-5_000, "unexplained"), (20_000, "clock")] {
            assert_eq!(cause(overlap(1).blow(1, wall(by), "redis-1", 500, 1_500)), expected, "{by} ms");
        }
        let drift = |ppm| clock(WhichClock::Wall, ClockChange::DriftPpm(ppm));
        let mono = clock(WhichClock::Monotonic, ClockChange::JumpMs(20_000));
        assert_eq!(cause(overlap(1).blow(1, mono, "redis-1", 500, 1_500)), "unexplained");
        // It ran on between 0 (requested) and 1,010 at most.
        for (ppm, expected) in [(500_000, "unexplained"), (-500_000, "unexplained"), (999_000, "clock")] {
            assert_eq!(cause(overlap(1).blow(1, drift(ppm), "redis-1", 5, 1_500)), expected, "{ppm} ppm");
        }
    }

    #[test]
    fn a_jump_counts_while_it_is_on_and_only_from_the_grant_on() {
        // Set back before the end: by then true time and jump had not reached the lease.
        assert_eq!(cause(overlap(1).blow(1, wall(1_200), "redis-1", 300, 700)), "unexplained");
        assert_eq!(cause(overlap(1).blow(1, wall(1_300), "redis-1", 300, 700)), "clock");
        // The node granted with a clock that was ahead already, and it went back: the lease lasts longer.
        let mut s = Scene::new();
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
        s.blow(1, wall(20_000), "redis-1", 50, 700);
        assert_eq!(cause(&mut s), "unexplained");
        // It was behind, and healing it was a jump ahead.
        let mut s = Scene::new();
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
        s.blow(1, wall(-20_000), "redis-1", 50, 700);
        assert_eq!(cause(&mut s), "clock");
    }

    #[test]
    fn a_strobe_explains_an_overlap_by_its_amplitude_wherever_it_may_have_been() {
        let strobe = |by_ms| clock(WhichClock::Wall, ClockChange::Strobe { by_ms, every_ms: 100 });
        // At 1,010 by true time 990 of the lease were left; granted while it was back, and looked at while it was there.
        for (by, expected) in [(990, "clock"), (989, "unexplained"), (-20_000, "unexplained")] {
            assert_eq!(
                cause(overlap(1).blow(1, strobe(by), "redis-1", 500, 1_500)),
                expected,
                "{by} ms, from after the grant"
            );
        }
        let granted_while_on = |by| {
            let mut s = Scene::new();
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 100, 110, 41).acquire(2, 2, 1_000, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
            cause(s.blow(1, strobe(by), "redis-1", 50, 700))
        };
        // It may have been there or back at the grant. By 700 true time and amplitude must have reached 2,100.
        for (by, expected) in [(1_396, "clock"), (1_300, "unexplained"), (-989, "unexplained"), (-990, "clock")] {
            assert_eq!(granted_while_on(by), expected, "{by} ms");
        }
        assert_eq!(
            cause(overlap(1).blow(1, strobe(20_000), "redis-1", 1_020, 1_500)),
            "unexplained",
            "it came too late"
        );
    }

    #[test]
    fn the_first_fault_after_which_the_key_was_gone_is_the_cause() {
        let mut s = overlap(1);
        s.blow(1, wall(500), "redis-1", 200, 1_500).blow(2, amnesia(), "redis-1", 300, 400);
        assert_eq!(cause(&mut s), "amnesia", "the jump was too small to matter");
        let mut s = overlap(1);
        s.blow(1, wall(20_000), "redis-1", 200, 1_500).blow(2, amnesia(), "redis-1", 300, 400);
        assert_eq!(cause(&mut s), "clock");
        let mut s = overlap(1);
        s.blow(1, wall(600), "redis-1", 200, 1_500).blow(2, wall(600), "redis-1", 300, 1_500);
        assert_eq!(cause(&mut s), "clock", "both together");
    }

    #[test]
    fn of_a_renewed_hold_the_nodes_count_that_did_the_renewal() {
        let on = |nodes: &[u64]| Scene::answers(&nodes.iter().map(|n| (*n, NodeAnswer::Done)).collect::<Vec<_>>());
        let granted = Scene::answers(&[(2, NodeAnswer::Granted), (3, NodeAnswer::Granted)]);
        let renewed = |done: &[u64], jump: i64| {
            let (hold, lease_ns) = (HoldId(1), 2_000_000_000);
            let mut s = Scene::new();
            s.acquire(1, 1, 0, 10, 41).event("worker-1", 1_000, Event::Renew { hold });
            s.event("worker-1", 1_010, Event::Renewed { hold, lease_ns, answers: on(done) });
            // Another renewal, after the other was acquired, changes nothing of what was owed then.
            s.event("worker-1", 2_600, Event::Renew { hold });
            s.event("worker-1", 2_610, Event::Renewed { hold, lease_ns, answers: on(done) });
            s.acquire_on(2, 2, 2_490, 2_490, 2_500, Some(42), granted.clone()).release(2, 2_700).give_up(1, 2_800);
            s.blow(1, wall(jump), "redis-2", 2_300, 3_500);
            s
        };
        // Node 3 did not renew: its lease of 2,000 was over. That of node 2 lasts until 3,000: 500 are left.
        for (done, jump, expected) in [
            (&[1, 2][..], 500, "clock"),
            (&[1, 2], 499, "unexplained"),
            (&[1, 2, 3], 20_000, "unexplained"),
            (&[1], 500, "unexplained"),
        ] {
            assert_eq!(cause(&mut renewed(done, jump)), expected, "renewed on {done:?}, moved by {jump} ms");
        }
        // One that failed may have been done by some.
        let mut s = Scene::new();
        let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, Why::NoMajority);
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 0, 10, 41).event("worker-1", 500, Event::Renew { hold });
        s.event("worker-1", 510, Event::RenewFailed { hold, outcome, why, answers: on(&[1]) });
        s.acquire(2, 2, 1_400, 1_410, 42).release(2, 1_500).give_up(1, 1_600).blow(
            1,
            wall(1_000),
            "redis-1",
            600,
            3_500,
        );
        assert_eq!(cause(&mut s), "unexplained", "until 2,500 by its clock");
    }

    #[test]
    fn replicas_of_one_store_explain_it_alone() {
        let etcd = |models: Models, fault: Fault, from, to| {
            let mut s = overlap(3);
            (s.plan.backend, s.plan.models) = ("etcd".into(), Some(models));
            s.blow(1, fault, "redis-2", from, to);
            cause(&mut s)
        };
        let jump = |which| clock(which, ClockChange::JumpMs(5_000));
        let models = Models::default();
        let mono = Models { lease_clock: LeaseClock::Monotonic, ..models };
        assert_eq!(etcd(models, jump(WhichClock::Both), 500, 2_000), "clock");
        assert_eq!(etcd(models, clock(WhichClock::Both, ClockChange::JumpMs(500)), 500, 2_000), "unexplained");
        assert_eq!(etcd(models, jump(WhichClock::Wall), 500, 2_000), "unexplained");
        assert_eq!(etcd(models, jump(WhichClock::Monotonic), 500, 2_000), "unexplained");
        assert_eq!(etcd(mono, jump(WhichClock::Monotonic), 500, 2_000), "clock");
        assert_eq!(etcd(mono, jump(WhichClock::Wall), 500, 2_000), "unexplained");
        assert_eq!(etcd(models, amnesia(), 500, 600), "amnesia");
        assert_eq!(etcd(models, Fault::Kill { back_after: SECOND }, 500, 600), "unexplained");
        let revokes = Models { revokes_on_resume: true, ..models };
        let pause = Fault::Pause { lasting: SECOND };
        assert_eq!(etcd(revokes, pause.clone(), 500, 900), "pause");
        // It is told to go on 5 ms before that; the other was acquired at 1,010.
        assert_eq!(etcd(revokes, pause.clone(), 500, 1_014), "pause", "it may have gone on just before");
        assert_eq!(etcd(revokes, pause.clone(), 500, 1_015), "unexplained", "it was told to go on no earlier");
        assert_eq!(etcd(revokes, pause.clone(), 500, 1_100), "unexplained", "it had not gone on yet");
        assert_eq!(etcd(models, pause, 500, 900), "unexplained");
    }
}
