//! What took a key away from a hold whose lease was not over: the cause of a lease-overlap.
//!
//! A node lets a key go when its clock says that the lease is over, when it has forgotten the key, or when it was told to.
//! It cannot have granted the key before the request was sent, so by true time the lease lasts until `sent + lease` at
//! least; whatever moved the node's clock since the grant counts towards that. Only faults that their target showed explain
//! anything, each by the stamps around it: where these leave open whether it explains, it does.

use std::time::Duration;

use history::{ClockChange, Fault, FaultKind, HoldId, LeaseClock, NodeName, Persistence, Stamp, WhichClock};

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
        // A kill loses what the kernel was not given: everything since the last snapshot, if there is one, without an append-only file.
        FaultKind::Kill => !is_one_store(run) && !persistence.has_log(),
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
        // What had been synced when the power went is still there, and so is what a snapshot has.
        let synced_after = match (line.kind, persistence) {
            (FaultKind::Powerloss, Persistence::Everysec) => Some(SYNCED_EVERY),
            // One was due by then, and made: two were.
            (FaultKind::Kill | FaultKind::Powerloss, Persistence::Snapshot) => Some(Persistence::SNAPSHOT_EVERY * 2),
            _ => None,
        };
        let is_synced = synced_after.is_some_and(|after| rules::is_lease_over(at, self.told.1.plus(after)));
        // While a background fsync runs `everysec` puts off its writes: what was answered then may be lost by a SIGKILL.
        let is_put_off = line.kind == FaultKind::Kill
            && persistence == Persistence::Everysec
            && line.unsynced.is_some_and(|fsyncs| fsyncs > 0 || self.told.1 >= at);
        let is_between = rules::is_between(gone, self.sent, Stamp(u64::MAX)) && at < self.gone_by;
        ((forgets(run, line.kind) && !is_synced || is_put_off) && is_between).then_some(at)
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

/// What took the first one's key away in a store of which all lock nodes are replicas: a fault on any of them. To the second the service may
/// have granted the lock though that one's own key was gone: then whatever took this explains the overlap, and the first may still have its.
fn in_store(run: &Run, overlap: &Overlap, ending: &Ending) -> Option<&'static str> {
    let [first, second] = &overlap.holds;
    let (longest, gone_by) = (overlap.longest(), second.ok.at);
    let (until, told) = (overlap.lease_until(longest), overlap.told(longest));
    let of_first = Kept { sent: first.sent.at, told, until, gone_by };
    let of_second = Kept { sent: second.sent.at, told: second.granted, until: second.lease_until, gone_by };
    let of_second = second.is_without_key.then(|| taken_from_store(run, &of_second, second.id, ending)).flatten();
    of_second.or_else(|| taken_from_store(run, &of_first, first.id, ending))
}

/// The first thing that took the key of `hold` away in a store.
fn taken_from_store(run: &Run, kept: &Kept, hold: HoldId, ending: &Ending) -> Option<&'static str> {
    let between = |at: Stamp| rules::is_between(at, kept.sent, kept.gone_by);
    let removed = ending.unsafe_releases.iter().filter(|u| u.owner == hold && between(u.invoked.at));
    let mut found: Vec<(Stamp, &'static str)> = removed.map(|u| (u.invoked.at, "unsafe-release")).collect();
    for name in &run.plan.lock_nodes {
        found.extend(proved(run, name).filter_map(|line| Some((kept.left_store(run, line)?, line.kind.name()))));
        let moved = Clocks::of(run, name).first_to_reach(kept.until, kept.told, kept.gone_by, clock(run));
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
mod tests;
