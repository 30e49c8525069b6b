//! Property 1: mutual exclusion. This file finds the windows, `stale_cause` and `overlap_cause` explain them, and
//! `story` writes their stories.

mod claims;
mod cut_short;
mod doubts;
mod ended;
mod evidence;
mod hierarchy;
mod note;
mod overlap_cause;
mod queue;
mod stale_cause;
mod story;
mod verdict;
mod window;

use std::time::Duration;

use history::{Arm, Event, HoldId, Plan, RequestKind, Stamp};
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use crate::{
    by_mode::ByMode,
    cause::Cause,
    entry::Entry,
    facts::Facts,
    hold_summary::HoldSummary,
    holds::{Attempt, EventRef, Grant, Span},
    intervals::Intervals,
    judge::{Ending, Judge},
    order::Largest,
    rules,
    run::Run,
    verdict::Verdict,
};

pub use verdict::LockVerdict;
pub use window::{Window, WindowKind};

use claims::Claims;
use cut_short::KilledHolds;
use ended::Ended;
use evidence::{ACTS_MAX, Entitled, HoldWatch, Overlap, Renewed, StaleAct, StaleActs};
use note::{LastDecisions, RequestSummary};
use queue::Queue;

/// A stale hold that can act no more.
struct StaleHold {
    hold: Attempt,
    watch: HoldWatch,
    closed: Stamp,
}

/// The fewest entitlements of a key that have ended and are kept, and how many for each hold that may still act. Most
/// holds are closed before so many others have ended.
const ENDED_MIN: usize = 128;
const ENDED_FOR_EACH: usize = 4;

#[derive(Default)]
struct LockKey {
    /// Holds that may still act, and those among them of which no later hold is known.
    open: IndexSet<HoldId, FxBuildHasher>,
    unfollowed: Vec<HoldId>,
    ended: Ended,
    /// The last `acquire` ok, and that of holds without a place.
    latest: ByMode<Largest>,
    latest_unplaced: ByMode<Largest>,
    queue: Queue,
}

impl LockKey {
    /// Adds an acquired hold. Compares it with the holds that were acquired before and are not earlier: finds its known
    /// later holds, and the first acquisition of a hold that is neither later nor earlier.
    fn known(&self, hold: &Attempt, grant: &Grant) -> HoldWatch {
        // A hold with a place is ordered with every hold with a place that conflicts with it.
        let others = if grant.place.is_some() { &self.latest_unplaced } else { &self.latest };
        let others = others.against(grant.mode).flat_map(|others| [others.before(grant.ok.at), others.all()]).flatten();
        let first_unordered = others.filter(|ok| !rules::is_later(grant.granted_after, *ok)).min();
        let mut watch = HoldWatch { first_unordered, ..HoldWatch::default() };
        for later in self.queue.later_than(grant) {
            watch.first_later.get_or_insert_with(|| later.summary.clone());
            watch.cover.add((later.grant.ok.at.max(hold.end()), later.ended.unwrap_or_default()));
        }
        watch
    }

    fn add(&mut self, run: &Run, hold: &Attempt, grant: &Grant, is_unfollowed: bool) {
        self.open.insert(hold.id);
        if is_unfollowed {
            self.unfollowed.push(hold.id);
        }
        self.latest.of(grant.mode).add(grant.ok.at, grant.ok.at);
        if grant.place.is_none() {
            return self.latest_unplaced.of(grant.mode).add(grant.ok.at, grant.ok.at);
        }
        self.queue.add(run, hold, grant);
    }
}

/// Judges mutual exclusion.
#[derive(Default)]
pub(crate) struct Lock {
    /// The keys that have an open attempt.
    keys: FxHashMap<usize, LockKey>,
    decisions: LastDecisions,
    watches: FxHashMap<HoldId, HoldWatch>,
    /// The holds whose first later hold is this one and has not written.
    unwritten: FxHashMap<HoldId, SmallVec<[HoldId; 2]>>,
    stale: Vec<StaleHold>,
    overlaps: Vec<Overlap>,
    /// Holds whose entitlement was over as it began, inside that of a hold that is still entitled.
    instants: Vec<Overlap>,
    /// The holds that had been renewed when another hold was acquired, by that other hold.
    renewed: FxHashMap<HoldId, Vec<(HoldId, Renewed)>>,
    claims: Claims,
    killed: KilledHolds,
    undecided: u64,
    /// Pairs of holds that overlap, unless a killed client released its hold and the record lost that.
    unproved: u64,
    without_key: u64,
    /// True if a hold outlived its promise: only then does the run test the lock.
    is_tested: bool,
}

impl Lock {
    fn key(&mut self, key: usize) -> &mut LockKey {
        self.keys.entry(key).or_default()
    }

    fn acquired(&mut self, run: &Run, hold: &Attempt, grant: &Grant, valid: Duration) {
        self.claims.acquired(run, hold, grant, valid);
        self.killed.acquired(run, hold, grant);
        let others = run.live(hold.key).filter(|other| other.id != hold.id && rules::conflict(other.mode, hold.mode));
        let others = others.chain(hierarchy::across_levels(run, hold));
        for other in others.filter(|other| !other.leases.is_empty()) {
            let renewed = Renewed { last: other.renewal_before(grant.ok.at), leases: other.leases.clone() };
            self.renewed.entry(hold.id).or_default().push((other.id, renewed));
        }
        let key = self.key(hold.key);
        let (watch, mut unfollowed) = (key.known(hold, grant), std::mem::take(&mut key.unfollowed));
        unfollowed.retain(|id| {
            let (Some(other), Some(watch)) = (run.attempt(*id).and_then(|h| h.grant), self.watches.get_mut(id)) else {
                return false;
            };
            let is_later = grant.is_later(&other);
            if is_later {
                // Grants come by their stamps, so the first one seen is the first acquired.
                watch.first_later = Some(HoldSummary::of(hold, grant));
                self.unwritten.entry(hold.id).or_default().push(*id);
            } else if grant.conflicts(&other) && !other.is_later(grant) {
                watch.first_unordered.get_or_insert(grant.ok.at);
            }
            !is_later
        });
        if let Some(later) = &watch.first_later {
            self.unwritten.entry(later.id).or_default().push(hold.id);
        }
        let is_unfollowed = watch.first_later.is_none();
        self.watches.insert(hold.id, watch);
        let key = self.key(hold.key);
        key.unfollowed = unfollowed;
        key.add(run, hold, grant, is_unfollowed);
    }

    /// Returns what the renewals of a hold had done when another hold was acquired.
    fn renewed_at(&self, hold: HoldId, other: HoldId) -> Renewed {
        let mut known = self.renewed.get(&other).into_iter().flatten();
        known.find(|(id, _)| *id == hold).map(|(_, renewed)| renewed.clone()).unwrap_or_default()
    }

    /// A request of a hold was decided: the first copy of it. It is an act under the hold of the key above, too.
    fn act(&mut self, run: &Run, entry: &Entry) {
        let Event::Admission { key, hold: Some(id), .. } = &entry.event else { return };
        let note = |lock: &Lock| lock.decisions.note(run.key_of(key).unwrap_or_default(), &entry.event);
        for (hold, grant) in run.with_above(*id).map_while(|hold| Some((hold, hold.grant?))) {
            self.act_under(run, entry, hold, &grant, &note);
        }
    }

    fn act_under(
        &mut self,
        run: &Run,
        entry: &Entry,
        hold: &Attempt,
        grant: &Grant,
        note: &dyn Fn(&Lock) -> RequestSummary,
    ) {
        let Event::Admission { kind, op, .. } = &entry.event else { return };
        let mark = EventRef { at: entry.at, seq: entry.seq };
        let is_write = *kind == RequestKind::Write;
        if is_write {
            self.tell_of_first_write(hold.id, mark, note);
        }
        if !rules::is_after_end(mark.at, hold.end()) {
            return;
        }
        self.is_tested |= rules::is_after_end(mark.at, hold.promise);
        let Some(watch) = self.watches.get_mut(&hold.id) else { return };
        let is_before = |acquired: Stamp| rules::is_acquired_before(acquired, mark.at);
        if !watch.first_later.as_ref().is_some_and(|later| is_before(later.ok.at)) {
            self.undecided += u64::from(watch.first_unordered.is_some_and(is_before));
            return;
        }
        let noted = note(self);
        self.take_in(run, hold, grant);
        let Some(watch) = self.watches.get_mut(&hold.id) else { return };
        let overlap = cover_until(run, hold, grant, &watch.cover, mark.at);
        let stale = watch.stale.get_or_insert_with(|| StaleActs {
            last: mark,
            reads: 0,
            writes: 0,
            acts: Vec::new(),
            overlap: Duration::ZERO,
        });
        (stale.last, stale.overlap) = (mark, overlap);
        stale.writes += u64::from(is_write);
        stale.reads += u64::from(!is_write);
        if stale.acts.len() < ACTS_MAX {
            let had_since = stale_cause::had_since(run, hold, mark.at);
            stale.acts.push(StaleAct { mark, op: *op, had_since, note: noted });
        }
    }

    /// Holds that may still act remember the first write of the first later hold.
    fn tell_of_first_write(&mut self, id: HoldId, mark: EventRef, note: &dyn Fn(&Lock) -> RequestSummary) {
        let Some(waiting) = self.unwritten.remove(&id) else { return };
        let note = note(self);
        for other in waiting {
            if let Some(watch) = self.watches.get_mut(&other) {
                watch.later_write = Some((mark, note.clone()));
            }
        }
    }

    /// Adds the entitlements that have ended since a hold has to its watch. A hold that is not retired ends later: no
    /// part of any of them lies after its end.
    fn take_in(&mut self, run: &Run, hold: &Attempt, grant: &Grant) {
        let (Some(key), Some(watch)) = (self.keys.get(&hold.key), self.watches.get_mut(&hold.id)) else { return };
        if hold.is_retired {
            let earliest = earliest(run, hold.key);
            key.ended.cover(watch.taken, grant, hold.end(), earliest, &mut watch.cover);
            watch.taken = key.ended.next();
        }
    }

    /// Keeps an entitlement that has ended. The watches of holds that have been open for long take in what is dropped.
    fn keep_ended(&mut self, run: &Run, hold: &Attempt, grant: Grant, end: Stamp) {
        let Some(key) = self.keys.get_mut(&hold.key) else { return };
        key.ended.push(grant, end, || earliest(run, hold.key));
        if let Some(watch) = self.watches.get_mut(&hold.id) {
            watch.taken = key.ended.next();
        }
        if key.ended.len() < ENDED_MIN.max(ENDED_FOR_EACH * key.open.len()) {
            return;
        }
        let (kept, earliest) = (key.ended.half(), earliest(run, hold.key));
        for id in &key.open {
            let (Some(other), Some(watch)) = (run.attempt(*id), self.watches.get_mut(id)) else { continue };
            let Some(theirs) = other.grant.filter(|_| other.is_retired && watch.taken < kept) else { continue };
            key.ended.cover(watch.taken, &theirs, other.end(), earliest, &mut watch.cover);
            watch.taken = key.ended.next();
        }
        key.ended.halve();
    }

    /// Adds a stall. A process notices a stall only afterwards, so holds that acted stale meanwhile may have closed.
    fn stalled(&mut self, run: &Run, process: usize, span: (Stamp, Stamp)) {
        let is_resource = run.process(process).node.as_str() == "resource";
        for stale in self.stale.iter_mut().rev().take_while(|stale| stale.closed >= span.0) {
            if is_resource {
                stale.hold.resource_stalls.get_or_insert_default().push(span);
            } else if stale.hold.process == process {
                stale.hold.stalls.push(span);
            }
        }
    }
}

/// Returns a stamp before which no entitlement of the key begins that has not ended yet.
fn earliest(run: &Run, key: usize) -> Stamp {
    run.live(key).filter_map(|hold| Some(hold.grant?.ok.at)).min().unwrap_or(run.now)
}

/// Returns how long later holds were entitled between the end of a hold and an arrival.
fn cover_until(run: &Run, hold: &Attempt, grant: &Grant, cover: &Intervals, arrival: Stamp) -> Duration {
    let mut cover = cover.clone();
    for (other, theirs) in run.live(hold.key).filter_map(|h| Some((h, h.grant?))) {
        if theirs.is_later(grant) {
            cover.add((theirs.ok.at.max(hold.end()), other.end().min(arrival)));
        }
    }
    cover.length()
}

impl Judge for Lock {
    const NAME: &str = "lock";
    const ABOUT: &str = "Mutual exclusion: no two holds of a key that conflict are entitled at the same time, and no \
        client acts under a hold that has ended after another client has acquired the lock in a mode that conflicts.";
    type Verdict = LockVerdict;

    fn new(plan: &Plan) -> Lock {
        Lock { decisions: LastDecisions::new(&plan.arms), ..Lock::default() }
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquired { attempt, valid_ns, answers, .. } => {
                if let Some((hold, grant)) = run.attempt(*attempt).and_then(|h| Some((h, h.grant?))) {
                    self.claims.counted(run, hold, grant.ok, answers);
                    self.acquired(run, hold, &grant, Duration::from_nanos(*valid_ns));
                }
            }
            Event::Admission { key, repeat: false, .. } => {
                if run.is_act() {
                    self.act(run, entry);
                }
                if let Some(key) = run.key_of(key) {
                    self.decisions.remember(key, &entry.event);
                }
            }
            Event::Check { hold, passed: true } => {
                // A client believes in a hold no longer than in the hold of the key above.
                for hold in run.with_above(*hold).take_while(|h| h.grant.is_some()) {
                    self.claims.checked(run, hold, EventRef { at: entry.at, seq: entry.seq });
                }
            }
            Event::Reentered { hold, valid_ns, .. } => {
                if let Some(hold) = run.attempt(*hold).filter(|h| h.grant.is_some()) {
                    let mark = EventRef { at: entry.at, seq: entry.seq };
                    self.claims.reentered(run, hold, mark, Duration::from_nanos(*valid_ns));
                }
            }
            Event::Renewed { hold, .. } => {
                if let Some(hold) = run.attempt(*hold).filter(|h| h.grant.is_some()) {
                    self.claims.renewed(hold, entry.at);
                }
            }
            Event::WithoutKey { .. } => self.without_key += 1,
            Event::Stall { from, to, .. } => self.stalled(run, entry.process, (*from, *to)),
            _ => {}
        }
    }

    fn on_entitlement_end(&mut self, run: &Run, hold: &Attempt, end: Stamp) {
        let Some(grant) = hold.grant else { return };
        self.killed.ended(run, hold);
        let of_hold = |found: &mut Overlap| found.holds.iter().any(|entitled| entitled.hold.id == hold.id);
        self.overlaps.extend(self.instants.extract_if(.., of_hold).filter(|found| found.from < end));
        self.is_tested |= hold.ended_by().is_none() && !rules::is_dead_claim(grant.ok.at, hold.promise);
        let others = run.live(hold.key).filter(|other| rules::conflict(other.mode, hold.mode));
        let others = others.chain(hierarchy::across_levels(run, hold)).filter_map(|h| Some((h, h.grant?)));
        for (other, theirs) in others {
            // The places of two queues cannot be compared.
            let unplaced = |grant: Grant| if other.key == hold.key { grant } else { Grant { place: None, ..grant } };
            let (grant, theirs) = (unplaced(grant), unplaced(theirs));
            // The other hold of the key ends no earlier: `run` returns the ends of a key in their order.
            let spans = ((grant.ok.at, end), (theirs.ok.at, other.end()));
            let surely = |hold, (from, to): Span| (from, to.min(run.known_until(hold)));
            let known = (surely(hold, spans.0), surely(other, spans.1));
            let length = rules::overlap(known.0, known.1);
            let is_alive = |grant: &Grant| !rules::is_dead_claim(grant.ok.at, grant.first_promise);
            let is_instant = |(own, other): (Span, Span)| {
                rules::is_instant_inside(own, other) && is_alive(&grant)
                    || rules::is_instant_inside(other, own) && is_alive(&theirs)
            };
            let is_inside = is_instant(known);
            let may_overlap = rules::overlap(spans.0, spans.1).is_some() || is_instant(spans);
            self.unproved += u64::from(length.is_none() && !is_inside && may_overlap);
            if length.is_some() || is_inside {
                let mut holds = [(hold, &grant, other.id), (other, &theirs, hold.id)];
                holds.sort_by_key(|(hold, grant, _)| (grant.ok.at, hold.id));
                if holds[0].1.is_later(holds[1].1) {
                    holds.reverse();
                }
                let is_ordered = holds[1].1.is_later(holds[0].1);
                let holds = holds.map(|(hold, grant, other)| {
                    let renewed = self.renewed_at(hold.id, other);
                    Entitled::new(HoldSummary::of(hold, grant), hold.granted_on, renewed)
                });
                let (key, from) = (hold.key.max(other.key), grant.ok.at.max(theirs.ok.at));
                let overlap = Overlap { key, holds, is_ordered, from, length: length.unwrap_or_default() };
                // The other hold may still end at this very stamp, by an event that comes next.
                let list = if length.is_some() { &mut self.overlaps } else { &mut self.instants };
                list.push(overlap);
            }
        }
        let Some(key) = self.keys.get_mut(&hold.key) else { return };
        key.queue.ended(hold.id, end);
        self.keep_ended(run, hold, grant, end);
    }

    fn on_attempt_closed(&mut self, run: &Run, attempt: &Attempt) {
        self.renewed.remove(&attempt.id);
        self.claims.closed(attempt.id);
        self.killed.closed(run, attempt);
        self.unwritten.remove(&attempt.id);
        if let Some(watch) = self.watches.remove(&attempt.id) {
            let key = self.key(attempt.key);
            key.open.swap_remove(&attempt.id);
            key.unfollowed.retain(|id| *id != attempt.id);
            if watch.stale.is_some() {
                let mut hold = attempt.clone();
                hold.resource_stalls = Some(run.resource_stalls(attempt));
                self.stale.push(StaleHold { hold, watch, closed: run.now });
            }
        }
    }

    fn on_key_quiet(&mut self, _run: &Run, key: usize) {
        self.keys.remove(&key);
    }

    fn finish(mut self, run: &Run, ending: &Ending, facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let claims = self.claims.judge(run);
        let stale = |hold: &Attempt, watch| window::stale(run, hold, watch, claims.since.get(&hold.id).copied());
        let mut windows = Vec::new();
        for found in &self.stale {
            windows.extend(stale(&found.hold, &found.watch));
        }
        for hold in run.still_open() {
            self.killed.settle(run, hold);
            if let Some(watch) = self.watches.get(&hold.id) {
                windows.extend(stale(hold, watch));
            }
        }
        windows.extend(self.overlaps.iter().map(|overlap| window::overlap(run, overlap, ending)));
        windows.extend(self.killed.proved(run).map(|cut| window::cut_short(run, cut, ending)));
        let is_unexplained = |w: &Window| w.causes.iter().any(|c| c.is(Cause::Unexplained));
        windows.sort_by(|a, b| {
            let order = (!is_unexplained(a)).cmp(&!is_unexplained(b)).then(a.at_ms.total_cmp(&b.at_ms));
            order.then_with(|| (a.kind, &a.key, &a.holds).cmp(&(b.kind, &b.key, &b.holds)))
        });
        // A step of the host's clock excuses the windows that it explains, and no other.
        let stands = windows.iter().any(|w| w.causes.iter().any(|c| !c.is(Cause::HostClock)));
        let is_violated = stands || claims.violate();
        let reasons = if is_violated { Vec::new() } else { self.reasons(run) };
        let count = |kind| windows.iter().filter(|w| w.kind == kind).count() as u64;
        let verdict = Verdict::judged(is_violated, !ending.is_whole || !reasons.is_empty());
        let notes = if verdict == Verdict::Upheld { self.notes(run) } else { Vec::new() };
        let first = windows.iter().map(|w| w.at_ms).min_by(f64::total_cmp);
        facts.first_window_after_ms = first.zip(run.first_operation).map(|(at, first)| at - run.ms(first));
        let lock = LockVerdict {
            verdict,
            unexplained: windows.iter().filter(|w| is_unexplained(w)).count() as u64,
            stale_holder: count(WindowKind::StaleHolder),
            lease_overlap: count(WindowKind::LeaseOverlap),
            cut_short: count(WindowKind::CutShort),
            undecided: self.undecided + self.unproved(run),
            explained_claims: claims.explained,
            without_key: self.without_key,
            overlap_ms_max: windows.iter().map(|w| w.overlap_ms).fold(0.0, f64::max),
            staleness_ms_max: windows.iter().filter_map(|w| w.staleness_ms).fold(0.0, f64::max),
            dead_claims: claims.dead,
            overclaims: claims.overclaims,
            minority_claims: claims.minority,
            windows,
            reasons,
            notes,
        };
        vec![(None, lock)]
    }
}

#[cfg(test)]
mod tests;
