//! Property 1: mutual exclusion. Finds the windows; `cause` explains them and `story` tells them.

use std::time::Duration;

use history::{ClientId, Event, HoldId, OpId, RequestKind, Stamp, Token};
use rustc_hash::FxHashMap;

use crate::{
    cause,
    holds::{Attempt, Grant, Mark, Nodes, Span},
    intervals::Intervals,
    judge::{Ending, Judge},
    merge::Entry,
    order::Largest,
    property::{DeadClaim, LockVerdict, Property, Window, WindowKind},
    rules,
    run::Run,
    story::{Note, Scribe},
    verdict::{Facts, Verdict},
    window,
};

/// What must be remembered of a hold when it is gone.
#[derive(Debug, Clone)]
pub(crate) struct Brief {
    pub id: HoldId,
    pub client: ClientId,
    pub process: usize,
    pub sent: Mark,
    pub ok: Mark,
    pub token: Option<Token>,
    /// The promise end when this was noted, and the request that it counts from.
    pub promise: Stamp,
    pub promised_by: Mark,
    pub nodes: Nodes,
    /// Between which stamps the nodes granted the lease, and until when it lasts by true time at least, renewals apart.
    pub granted: Span,
    pub lease_until: Stamp,
}

impl Brief {
    pub fn of(hold: &Attempt, grant: &Grant) -> Self {
        Brief {
            id: hold.id,
            client: hold.client,
            process: hold.process,
            sent: hold.sent,
            ok: grant.ok,
            token: grant.token,
            promise: hold.promise,
            promised_by: hold.promised_by,
            nodes: hold.granted_on | hold.renewed_on,
            granted: (grant.promised_from, grant.ok.at),
            lease_until: grant.promised_from.plus(grant.lease),
        }
    }
}

/// One stale act.
#[derive(Debug)]
pub(crate) struct Act {
    pub mark: Mark,
    pub op: Option<OpId>,
    pub note: Note,
}

/// The stale acts of one hold.
#[derive(Debug)]
pub(crate) struct Stale {
    pub last: Mark,
    pub reads: u64,
    pub writes: u64,
    /// The first of them.
    pub acts: Vec<Act>,
    pub overlap: Duration,
}

/// Stale acts of a hold that are told and explained one by one: a critical section has a handful.
const ACTS_MAX: usize = 16;

/// What is watched of a hold until it can act no more.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The later hold that was acquired first.
    pub first_later: Option<Brief>,
    /// That one's first write.
    pub later_write: Option<(Mark, Note)>,
    /// When the first hold that is neither later nor earlier was acquired.
    first_unordered: Option<Stamp>,
    /// When later holds were entitled after this one's end.
    cover: Intervals,
    pub stale: Option<Stale>,
}

/// A stale hold that can act no more.
struct StaleHold {
    hold: Attempt,
    watch: Watch,
    closed: Stamp,
}

/// Two holds that were entitled at once.
pub(crate) struct Overlap {
    pub key: usize,
    /// In the order of acquisition.
    pub holds: [Brief; 2],
    pub from: Stamp,
    pub length: Duration,
    /// When each node had been told of the first one's lease, and until when it lasted there by true time at least, as it was
    /// when the second one was acquired; empty if it had not been renewed.
    pub leases: Vec<Span>,
}

impl Overlap {
    /// Until when the first one's lease lasted on a node by true time at least.
    pub fn lease_until(&self, node: usize) -> Stamp {
        self.leases.get(node).map_or(self.holds[0].lease_until, |lease| lease.1)
    }

    /// Between which stamps the node was told of that lease.
    pub fn told(&self, node: usize) -> Span {
        let first = &self.holds[0];
        match self.leases.get(node) {
            // A renewal is done in no time, compared with its lease.
            Some(lease) if lease.0 > first.granted.0 => (lease.0, lease.0),
            _ => first.granted,
        }
    }

    /// The node on which the first one's lease lasted longest.
    pub fn longest(&self) -> usize {
        (0..self.leases.len()).max_by_key(|node| self.leases[*node].1).unwrap_or(0)
    }
}

#[derive(Default)]
struct LockKey {
    /// Holds that may still act.
    open: Vec<HoldId>,
    /// The last `acquire` ok.
    latest: Largest,
    scribe: Scribe,
}

/// Judges mutual exclusion.
#[derive(Default)]
pub(crate) struct Lock {
    keys: Vec<LockKey>,
    watches: FxHashMap<HoldId, Watch>,
    stale: Vec<StaleHold>,
    overlaps: Vec<Overlap>,
    /// The nodes of holds that overlapped. Those that did the last renewal count, and it may be answered after the overlap.
    nodes: FxHashMap<HoldId, Nodes>,
    /// Leases of holds that had been renewed when another was acquired, by that other.
    leases: FxHashMap<HoldId, Vec<(HoldId, Vec<Span>)>>,
    /// From the stamp that the promise rests on to the claim.
    dead_claims: Vec<(Span, DeadClaim)>,
    undecided: u64,
    overclaims: u64,
    /// Whether a hold outlived its promise: whether the lock was put to the test at all.
    is_tested: bool,
    /// The stamp of the last event.
    now: Stamp,
}

impl Lock {
    fn key(&mut self, key: usize) -> &mut LockKey {
        if self.keys.len() <= key {
            self.keys.resize_with(key + 1, LockKey::default);
        }
        &mut self.keys[key]
    }

    fn acquired(&mut self, run: &Run, hold: &Attempt, grant: &Grant) {
        if rules::is_dead_claim(grant.ok.at, grant.first_promise) {
            let claim = DeadClaim {
                key: run.key(hold.key).clone(),
                hold: hold.id,
                client: hold.client,
                worker: run.process(hold.process).name.clone(),
                at_ms: run.ms(grant.ok.at),
                late_ms: millis(grant.ok.at.since(grant.first_promise)),
                witness: vec![hold.sent.seq, grant.ok.seq],
            };
            self.dead_claims.push(((grant.promised_from, grant.ok.at), claim));
        }
        for other in run.live(hold.key).filter(|other| other.id != hold.id && !other.leases.is_empty()) {
            self.leases.entry(hold.id).or_default().push((other.id, other.leases.clone()));
        }
        let key = self.key(hold.key);
        let open = std::mem::take(&mut key.open);
        // A hold that was acquired before this one is earlier, or not ordered with it.
        let known = [key.latest.before(grant.ok.at), key.latest.all()];
        let unordered = known.into_iter().flatten().find(|ok| !rules::is_later(grant.granted_after, *ok));
        key.latest.add(grant.ok.at, grant.ok.at);
        for id in &open {
            let (Some(other), Some(watch)) = (run.attempt(*id).and_then(|h| h.grant), self.watches.get_mut(id)) else {
                continue;
            };
            if rules::is_later(grant.granted_after, other.ok.at) {
                // Grants come by their stamps, so the first one seen is the first acquired.
                watch.first_later.get_or_insert_with(|| Brief::of(hold, grant));
            } else if !rules::is_later(other.granted_after, grant.ok.at) {
                watch.first_unordered.get_or_insert(grant.ok.at);
            }
        }
        self.watches.insert(hold.id, Watch { first_unordered: unordered, ..Watch::default() });
        let key = self.key(hold.key);
        key.open = open;
        key.open.push(hold.id);
    }

    /// A request of a hold was decided: the first copy of it.
    fn act(&mut self, run: &Run, entry: &Entry) {
        let Event::Admission { kind, hold: Some(id), op, .. } = &entry.event else { return };
        let Some((hold, grant)) = run.attempt(*id).and_then(|h| Some((h, h.grant?))) else { return };
        let mark = Mark { at: entry.at, seq: entry.seq };
        let is_write = *kind == RequestKind::Write;
        if is_write {
            self.tell_of_first_write(*id, hold.key, mark, entry);
        }
        if !rules::is_after_end(mark.at, hold.end()) {
            return;
        }
        self.is_tested |= rules::is_after_end(mark.at, hold.promise);
        let Some(watch) = self.watches.get_mut(id) else { return };
        let is_before = |acquired: Stamp| rules::is_acquired_before(acquired, mark.at);
        if !watch.first_later.as_ref().is_some_and(|later| is_before(later.ok.at)) {
            self.undecided += u64::from(watch.first_unordered.is_some_and(is_before));
            return;
        }
        let overlap = cover_until(run, hold, &grant, &watch.cover, mark.at);
        let stale = watch.stale.get_or_insert_with(|| Stale {
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
            let note = self.keys[hold.key].scribe.note(&entry.event);
            stale.acts.push(Act { mark, op: *op, note });
        }
    }

    /// Holds that may still act remember the first write of the first later hold.
    fn tell_of_first_write(&mut self, id: HoldId, key: usize, mark: Mark, entry: &Entry) {
        let Some(key) = self.keys.get(key) else { return };
        for other in &key.open {
            if let Some(watch) = self.watches.get_mut(other)
                && watch.later_write.is_none()
                && watch.first_later.as_ref().is_some_and(|later| later.id == id)
            {
                watch.later_write = Some((mark, key.scribe.note(&entry.event)));
            }
        }
    }

    /// A stall is noticed after it: holds that acted stale during it or right after may have closed since.
    fn stalled(&mut self, run: &Run, process: usize, span: (Stamp, Stamp)) {
        let is_resource = run.process(process).node.as_str() == "resource";
        for stale in self.stale.iter_mut().rev().take_while(|stale| stale.closed >= span.0) {
            if is_resource {
                stale.hold.resource_stalls.push(span);
            } else if stale.hold.process == process {
                stale.hold.stalls.push(span);
            }
        }
    }
}

/// For how long later holds were entitled between the end of a hold and an arrival.
fn cover_until(run: &Run, hold: &Attempt, grant: &Grant, cover: &Intervals, arrival: Stamp) -> Duration {
    let mut cover = cover.clone();
    for (other, theirs) in run.live(hold.key).filter_map(|h| Some((h, h.grant?))) {
        if rules::is_later(theirs.granted_after, grant.ok.at) {
            cover.add((theirs.ok.at.max(hold.end()), other.end().min(arrival)));
        }
    }
    cover.length()
}

pub(crate) fn millis(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e6
}

impl Judge for Lock {
    fn see(&mut self, run: &Run, entry: &Entry) {
        self.now = entry.at;
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                if let Some((hold, grant)) = run.attempt(*attempt).and_then(|h| Some((h, h.grant?))) {
                    self.acquired(run, hold, &grant);
                }
            }
            Event::Admission { key, repeat: false, .. } => {
                self.act(run, entry);
                if let Some(key) = run.key_of(key) {
                    self.key(key).scribe.remember(&entry.event);
                }
            }
            Event::Check { hold, passed: true } => {
                let promise = run.attempt(*hold).filter(|h| h.grant.is_some()).map(|h| h.promise);
                self.overclaims += u64::from(promise.is_some_and(|end| rules::is_overclaim(entry.at, end)));
            }
            Event::Stall { from, to, .. } => self.stalled(run, entry.process, (*from, *to)),
            _ => {}
        }
    }

    fn ended(&mut self, run: &Run, hold: &Attempt, end: Stamp) {
        let Some(grant) = hold.grant else { return };
        self.is_tested |= hold.ended_by().is_none() && !rules::is_dead_claim(grant.ok.at, hold.promise);
        for (other, theirs) in run.live(hold.key).filter_map(|h| Some((h, h.grant?))) {
            // The other one's entitlement ends no earlier, or `run` would have said so before.
            if let Some(length) = rules::overlap((grant.ok.at, end), (theirs.ok.at, other.end())) {
                let mut holds = [Brief::of(hold, &grant), Brief::of(other, &theirs)];
                holds.sort_by_key(|brief| (brief.ok.at, brief.id));
                for hold in [hold, other] {
                    self.nodes.insert(hold.id, hold.granted_on | hold.renewed_on);
                }
                let mut known = self.leases.get(&holds[1].id).into_iter().flatten();
                let leases = known.find(|(id, _)| *id == holds[0].id).map(|(_, leases)| leases.clone());
                let (key, from, leases) = (hold.key, holds[1].ok.at, leases.unwrap_or_default());
                self.overlaps.push(Overlap { key, from, holds, length, leases });
            }
        }
        let Some(key) = self.keys.get(hold.key) else { return };
        let earliest = run.live(hold.key).filter_map(|h| Some(h.grant?.ok.at)).min().unwrap_or(end);
        for id in key.open.iter().filter(|id| **id != hold.id) {
            let (Some(other), Some(watch)) = (run.attempt(*id), self.watches.get_mut(id)) else { continue };
            let is_later = other.grant.is_some_and(|theirs| rules::is_later(grant.granted_after, theirs.ok.at));
            // One that is not retired ends later: nothing of this hold's entitlement lies after its end.
            if is_later && other.is_retired {
                watch.cover.settle(earliest.min(grant.ok.at));
                watch.cover.add((grant.ok.at.max(other.end()), end));
            }
        }
    }

    fn closed(&mut self, _run: &Run, attempt: &Attempt) {
        if let Some(nodes) = self.nodes.get_mut(&attempt.id) {
            *nodes = attempt.granted_on | attempt.renewed_on;
        }
        self.leases.remove(&attempt.id);
        if let Some(watch) = self.watches.remove(&attempt.id) {
            self.keys[attempt.key].open.retain(|id| *id != attempt.id);
            if watch.stale.is_some() {
                self.stale.push(StaleHold { hold: attempt.clone(), watch, closed: self.now });
            }
        }
    }

    fn verdicts(mut self: Box<Self>, run: &Run, ending: &Ending, facts: &mut Facts) -> Vec<(String, Property)> {
        let mut windows = Vec::new();
        for stale in &self.stale {
            windows.extend(window::stale(run, &stale.hold, &stale.watch));
        }
        for hold in run.still_open() {
            if let Some(nodes) = self.nodes.get_mut(&hold.id) {
                *nodes = hold.granted_on | hold.renewed_on;
            }
            if let Some(watch) = self.watches.get(&hold.id) {
                windows.extend(window::stale(run, hold, watch));
            }
        }
        for brief in self.overlaps.iter_mut().flat_map(|overlap| &mut overlap.holds) {
            brief.nodes = self.nodes.get(&brief.id).copied().unwrap_or(brief.nodes);
        }
        windows.extend(self.overlaps.iter().map(|overlap| window::overlap(run, overlap, ending)));
        let is_unexplained = |w: &Window| w.causes.iter().any(|c| c == cause::UNEXPLAINED);
        windows.sort_by(|a, b| {
            let order = (!is_unexplained(a)).cmp(&!is_unexplained(b)).then(a.at_ms.total_cmp(&b.at_ms));
            order.then_with(|| (a.kind, &a.key, &a.holds).cmp(&(b.kind, &b.key, &b.holds)))
        });
        let (excused, mut dead_claims): (Vec<_>, Vec<_>) = self
            .dead_claims
            .iter()
            .cloned()
            .partition(|(span, claim)| cause::is_claimed_by_slow_clock(run, claim, *span));
        self.overclaims += excused.len() as u64;
        let mut dead_claims: Vec<DeadClaim> = dead_claims.drain(..).map(|(_, claim)| claim).collect();
        dead_claims.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms).then(a.hold.cmp(&b.hold)));
        // A step of the host's clock excuses the windows that it explains, and no other.
        let stands = windows.iter().any(|w| w.causes.iter().any(|c| c != cause::HOST_CLOCK));
        let is_violated = stands || !dead_claims.is_empty();
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
            undecided: self.undecided,
            overclaims: self.overclaims,
            overlap_ms_max: windows.iter().map(|w| w.overlap_ms).fold(0.0, f64::max),
            staleness_ms_max: windows.iter().filter_map(|w| w.staleness_ms).fold(0.0, f64::max),
            dead_claims,
            windows,
            reasons,
            notes,
        };
        vec![("lock".into(), Property::Lock(lock))]
    }
}

impl Lock {
    /// Why a lock without a violation is not upheld.
    fn reasons(&self, run: &Run) -> Vec<String> {
        let mut reasons: Vec<String> = run.faults.unproved().collect();
        if self.undecided > 0 {
            let n = self.undecided;
            reasons
                .push(format!("{n} acts came after their own end, and the order of grants does not say who held then"));
        }
        if let Some(step) = run.stalls.steps.iter().min_by_key(|step| (step.span, &step.process)) {
            let (ms, at, who) = (millis(step.moved), run.ms(step.span.1) / 1e3, &step.process);
            reasons.push(format!(
                "the host's clock stepped by {ms:.0} ms about {at:.3} s (seen by {who}): leases rest on it"
            ));
        }
        if let Some((stall, process)) = &run.stalls.longest
            && run.plan.schedule.is_empty()
            && rules::spoils_control(*stall, run.plan.lease)
        {
            let ms = millis(*stall);
            reasons.push(format!(
                "{process} stalled for {ms:.0} ms, more than a quarter of the lease: too long for a control run"
            ));
        }
        reasons
    }

    /// What to know about an upheld lock.
    fn notes(&self, run: &Run) -> Vec<String> {
        let mut proved = run.faults.iter().filter_map(|(_, line)| Some((line, line.proved?))).peekable();
        if self.is_tested || proved.peek().is_none() {
            return Vec::new();
        }
        let pauses = proved.filter(|(line, _)| line.kind == history::FaultKind::Pause);
        match pauses.map(|(_, (from, to))| to.since(from)).max() {
            Some(longest) if longest < run.plan.lease => {
                let (longest, lease) = (longest.as_secs_f64(), run.plan.lease.as_secs_f64());
                vec![format!("no pause outlasted the lease: the longest was {longest:.3} s, the lease is {lease:.3} s")]
            }
            _ => vec!["no hold outlived its lease: the faults did not put the lock to the test".into()],
        }
    }
}

#[cfg(test)]
mod tests {
    use history::{FaultKind, FaultPhase, NodeAnswer};

    use super::*;
    use crate::scene::{Scene, count, plan, verdict};

    /// Worker 1 holds from 10 to its promise end at 1,978; worker 2 holds from 2,010 on.
    fn two_holds() -> Scene {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42);
        scene
    }

    #[test]
    fn kleppmanns_pause_is_a_window_with_its_story() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 22).work(1, 24, 100).pause(1, "worker-1", 100, 5_100);
        scene.acquire(2, 2, 2_000, 2_051, 42).read(2, 1, 2_060, 2_062).write(2, 2, 2_200, 2_210).release(2, 2_220);
        scene.write(1, 2, 5_101, 5_102).release_refused(1, 5_110);
        let verdicts = scene.verdicts();
        insta::assert_snapshot!(serde_json::to_string_pretty(&verdicts).unwrap());
    }

    #[test]
    fn the_first_later_hold_and_the_last_act_give_the_lengths() {
        let mut scene = two_holds();
        scene.release(2, 2_100).acquire(3, 2, 2_200, 2_210, 43);
        scene.read(1, 1, 2_050, 2_060).write(1, 2, 2_300, 2_310).release_refused(1, 2_400).release(3, 2_500);
        let window = scene.window();
        assert_eq!((window.kind, window.reads, window.writes), (WindowKind::StaleHolder, 1, 1));
        assert_eq!(window.holds, [HoldId(1), HoldId(2)]);
        assert_eq!(window.staleness_ms, Some(300.0));
        // 2,010 to 2,100 and 2,210 to 2,310.
        assert_eq!((window.overlap_ms, window.at_ms), (190.0, 2_060.0));
    }

    #[test]
    fn an_act_is_stale_against_a_later_hold_that_has_been_released() {
        let mut scene = two_holds();
        scene.release(2, 2_050).write(1, 1, 1_900, 2_100).release_refused(1, 2_110);
        let window = scene.window();
        assert_eq!((window.overlap_ms, window.staleness_ms), (40.0, Some(90.0)));
    }

    #[test]
    fn a_window_may_have_no_overlap() {
        let mut scene = Scene::new();
        // The later hold is a dead claim: it was entitled at no instant.
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 100, 2_100, 42);
        scene.write(1, 1, 1_900, 2_200).release_refused(1, 2_210);
        let window = scene.window();
        assert_eq!((window.overlap_ms, window.staleness_ms), (0.0, Some(100.0)));
    }

    #[test]
    fn acts_at_the_boundaries_are_not_stale() {
        // (arrival, acquire ok of the later hold) and whether the act is stale.
        for (arrival, later, is_stale) in [
            (1_978, 1_977, false), // at the promise end
            (1_979, 1_978, true),
            (1_979, 1_979, false), // at the later ok
            (1_979, 1_980, false),
        ] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_900, later, 42).write(1, 1, 1_800, arrival);
            let lock = scene.lock();
            assert_eq!(lock.stale_holder == 1, is_stale, "arrival {arrival}, later hold at {later}");
        }
    }

    #[test]
    fn an_act_before_the_end_of_a_renewed_promise_is_not_stale() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).renew(1, 1_000, 1_010);
        scene.acquire(2, 2, 2_500, 2_510, 42).write(1, 1, 2_900, 2_978);
        let lock = scene.lock();
        assert_eq!((lock.stale_holder, lock.lease_overlap), (0, 1), "it is the lock that broke its promise");
        assert_eq!(lock.windows[0].overlap_ms, 468.0);
    }

    #[test]
    fn a_renewal_that_comes_too_late_ends_the_entitlement_for_good() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).renew(1, 1_900, 1_978).acquire(2, 2, 2_000, 2_010, 42).write(1, 1, 2_050, 2_060);
        let lock = scene.lock();
        assert_eq!((lock.stale_holder, lock.lease_overlap), (1, 0));
    }

    #[test]
    fn release_giving_up_and_loss_end_the_entitlement() {
        for end in [
            Event::Release { hold: HoldId(1) },
            Event::GaveUp { hold: HoldId(1) },
            Event::LossNoticed { hold: HoldId(1) },
        ] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).write(1, 1, 50, 250).event("worker-1", 100, end);
            scene.acquire(2, 2, 110, 120, 42);
            let window = scene.window();
            assert_eq!((window.kind, window.overlap_ms), (WindowKind::StaleHolder, 130.0));
        }
    }

    #[test]
    fn entitlements_that_only_touch_do_not_overlap() {
        for (ok, overlap) in [(99, Some(1.0)), (100, None), (101, None)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).release(1, 100).acquire(2, 2, 20, ok, 42).release(2, 200);
            let lock = scene.lock();
            assert_eq!(lock.windows.first().map(|w| w.overlap_ms), overlap, "acquired at {ok}");
        }
    }

    #[test]
    fn every_pair_that_overlaps_is_a_window_of_its_own() {
        let mut scene = Scene::new();
        scene.plan.workload.workers = 3;
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 15, 20, 42).acquire(3, 3, 25, 30, 43);
        scene.release(2, 50).release(1, 60).release(3, 80);
        let lock = scene.lock();
        let pairs: Vec<_> = lock.windows.iter().map(|w| (w.holds.clone(), w.overlap_ms)).collect();
        let hold = |a, b| vec![HoldId(a), HoldId(b)];
        assert_eq!(pairs, [(hold(1, 2), 30.0), (hold(1, 3), 30.0), (hold(2, 3), 20.0)]);
        assert_eq!((lock.verdict, lock.unexplained), (Verdict::Violated, 3));
    }

    #[test]
    fn an_act_of_unordered_holds_is_undecided() {
        let mut scene = Scene::new();
        // Worker 2's attempt was under way when worker 1 acquired: the stamps do not order the grants.
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 5, 1_990, 42).write(1, 1, 1_900, 2_000);
        let lock = scene.lock();
        assert_eq!((lock.undecided, lock.windows.len(), lock.dead_claims.len()), (1, 0, 1));
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire_knowing(2, 2, 5, 10, 1_900, 42).write(1, 1, 1_970, 2_000);
        scene.give_up(2, 1_970);
        let lock = scene.lock();
        assert_eq!((lock.undecided, lock.stale_holder), (1, 0), "granted_after at the other's ok orders nothing");
    }

    #[test]
    fn an_undecided_act_makes_the_lock_inconclusive() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 5, 60, 42).release(2, 80);
        scene.write(1, 1, 40, 70);
        let lock = scene.lock();
        assert_eq!((lock.undecided, lock.verdict), (1, Verdict::Inconclusive));
        assert!(lock.reasons[0].contains("order of grants"), "{:?}", lock.reasons);
    }

    #[test]
    fn granted_after_orders_attempts_that_waited() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 50).acquire_knowing(2, 2, 5, 52, 60, 42).release(2, 80);
        scene.write(1, 1, 40, 70);
        assert_eq!(scene.window().staleness_ms, Some(10.0));
    }

    #[test]
    fn a_claim_at_or_after_the_promise_end_is_dead() {
        for (ok, is_dead) in [(1_977, false), (1_978, true), (2_500, true)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, ok, 41).release(1, ok + 1);
            let lock = scene.lock();
            assert_eq!(lock.dead_claims.len() == 1, is_dead, "acquired at {ok}");
            assert_eq!(lock.verdict == Verdict::Violated, is_dead);
        }
    }

    #[test]
    fn a_dead_claim_by_a_clock_that_ran_slow_is_an_overclaim() {
        use history::{ClockChange, Fault, WhichClock};
        let slow =
            |clock, ppm| Fault::Clock { clock, change: ClockChange::DriftPpm(ppm), lasting: Duration::from_secs(1) };
        // Claimed 22 ms too late. The clock was off for 210 ms at most.
        for (fault, node, expected) in [
            (slow(WhichClock::Monotonic, -200_000), "worker-1", (0, 1)),
            (slow(WhichClock::Both, -200_000), "worker-1", (0, 1)),
            (slow(WhichClock::Monotonic, -100_000), "worker-1", (1, 0)),
            (slow(WhichClock::Monotonic, 200_000), "worker-1", (1, 0)),
            (slow(WhichClock::Wall, -200_000), "worker-1", (1, 0)),
            (slow(WhichClock::Monotonic, -200_000), "worker-2", (1, 0)),
        ] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 2_000, 41).release(1, 2_001).blow(1, fault.clone(), node, 100, 300);
            let lock = scene.lock();
            assert_eq!((lock.dead_claims.len(), lock.overclaims), expected, "{fault:?} of {node}");
            assert_eq!(lock.verdict == Verdict::Violated, expected.0 > 0);
        }
    }

    #[test]
    fn a_check_that_passes_after_the_promise_end_is_counted_and_violates_nothing() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).check(1, 1_978).check(1, 1_979).release(1, 1_980);
        let lock = scene.lock();
        assert_eq!((lock.overclaims, lock.verdict), (1, Verdict::Upheld));
    }

    #[test]
    fn a_window_between_attempts_of_one_client_is_its_own_fault() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).write(1, 1, 20, 300).release(1, 100).acquire(2, 1, 110, 120, 42);
        scene.release(2, 400);
        let window = scene.window();
        assert!(window.self_);
        assert!(window.headline.contains("old hold"), "{}", window.headline);
    }

    #[test]
    fn a_killed_holds_entitlement_ends_before_the_kill() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).write(1, 1, 90, 400).kill(1, "worker-1", 100).acquire(2, 2, 200, 210, 42);
        scene.release(2, 500);
        let window = scene.window();
        assert_eq!((window.kind, window.overlap_ms), (WindowKind::StaleHolder, 190.0));
        assert_eq!(window.causes, ["kill"]);
    }

    #[test]
    fn a_hold_acquired_after_the_kill_was_requested_is_entitled_at_no_instant() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 90, 110, 41).kill(1, "worker-1", 100).acquire(2, 2, 112, 115, 42).release(2, 200);
        let lock = scene.lock();
        assert_eq!((lock.windows.len(), lock.dead_claims.len()), (0, 0));
    }

    #[test]
    fn a_kill_does_not_end_holds_of_the_process_that_comes_after() {
        let mut scene = Scene::new();
        scene.kill(1, "worker-1", 100).acquire_in("worker-1#2", 1, 0, 1_400, 1_410, 41);
        scene.acquire(2, 2, 1_500, 1_510, 42).release(2, 1_600).release(1, 1_700);
        let window = scene.window();
        assert_eq!((window.overlap_ms, window.workers[0].as_str()), (90.0, "worker-1#2"));
    }

    #[test]
    fn a_repeat_is_not_an_act() {
        let mut scene = two_holds();
        scene.write(1, 1, 100, 200).arrives_again(1, 1, 2_080).release_refused(1, 2_090);
        let verdicts = scene.verdicts();
        assert_eq!(verdicts.reasons, Vec::<String>::new());
        assert_eq!((count(&verdicts, "lock.windows"), count(&verdicts, "off.data.updates")), (0, 1));
    }

    #[test]
    fn a_fault_that_was_not_proved_makes_an_unviolated_lock_inconclusive() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 50);
        let why = "worker-1 went on ticking".to_string();
        scene.fault(1, FaultKind::Pause, "worker-1", 20, FaultPhase::Requested { asked_ns: 1, hold: None });
        scene.fault(1, FaultKind::Pause, "worker-1", 40, FaultPhase::Unproved { why });
        let verdicts = scene.verdicts();
        assert_eq!(verdict(&verdicts, "lock"), Verdict::Inconclusive);
        let reasons = &verdicts.lock().unwrap().reasons;
        assert_eq!(reasons, &["the pause of worker-1 was not proved: worker-1 went on ticking"]);
        assert_eq!(verdict(&verdicts, "activity"), Verdict::Inconclusive);
    }

    #[test]
    fn a_pause_shorter_than_the_lease_leaves_a_note() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 20, 520).write(1, 1, 530, 540).release(1, 550);
        let lock = scene.lock();
        assert_eq!(lock.verdict, Verdict::Upheld);
        assert_eq!(lock.notes, ["no pause outlasted the lease: the longest was 0.500 s, the lease is 2.000 s"]);
    }

    #[test]
    fn a_control_run_with_a_long_stall_is_inconclusive() {
        for (to, expected) in [(600, Verdict::Upheld), (601, Verdict::Inconclusive)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).release(1, 50).stall("worker-2", 100, to);
            assert_eq!(scene.lock().verdict, expected, "stalled until {to}");
        }
    }

    #[test]
    fn a_step_of_the_hosts_clock_excuses_only_what_it_explains() {
        let clocks = |wall_ns| Event::Clocks { wall_ns, boot_ns: 0 };
        let mut scene = Scene::new();
        scene.event("worker-1", 5, clocks(0)).event("worker-1", 1_005, clocks(60_000_000_000));
        scene.acquire(1, 1, 10, 20, 41);
        assert_eq!(scene.lock().verdict, Verdict::Inconclusive);
        // The key expired early by the wall clock: an overlap that the step explains.
        scene.acquire(2, 2, 1_100, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
        let lock = scene.lock();
        assert_eq!(
            (lock.windows[0].causes.as_slice(), lock.verdict),
            (&["host-clock".to_string()][..], Verdict::Inconclusive)
        );
        // One that came before the step stands without it.
        let mut scene = Scene::new();
        scene.event("worker-1", 3_000, clocks(0)).event("worker-1", 4_000, clocks(60_000_000_000));
        scene.acquire(1, 1, 10, 20, 41).acquire(2, 2, 1_100, 1_110, 42).release(2, 1_200).release_refused(1, 1_300);
        let lock = scene.lock();
        assert_eq!((lock.unexplained, lock.verdict), (1, Verdict::Violated));
    }

    #[test]
    fn an_overlap_after_an_unsafe_release_is_explained_by_it() {
        let done = Scene::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::Done), (3, NodeAnswer::Done)]);
        let mut scene = Scene::with(plan());
        scene.plan.workload.workers = 3;
        // Worker 3's hold has run out; worker 1 holds; worker 3 releases without asking whose key it is; worker 2 gets it.
        scene.acquire(1, 3, 0, 10, 41).acquire(2, 1, 2_100, 2_110, 42).release_on(1, 2_200, 2_210, done);
        scene.acquire(3, 2, 2_300, 2_310, 43).release(3, 2_400).release_refused(2, 2_500);
        let verdicts = scene.verdicts();
        let window = &verdicts.lock().unwrap().windows[0];
        assert_eq!(
            (window.kind, window.causes.as_slice()),
            (WindowKind::LeaseOverlap, &["unsafe-release".to_string()][..])
        );
        assert_eq!(verdict(&verdicts, "release"), Verdict::Violated);
        assert!(window.story.iter().any(|line| line.who == "redis-1"), "{:#?}", window.story);
    }

    #[test]
    fn later_holds_that_overlap_each_other_count_once() {
        let mut scene = two_holds();
        scene.plan.workload.workers = 3;
        scene.acquire(3, 3, 2_020, 2_030, 43).release(2, 2_050).release(3, 2_070);
        scene.write(1, 1, 1_900, 2_060).write(1, 2, 2_061, 2_100).release_refused(1, 2_110);
        let lock = scene.lock();
        let stale = lock.windows.iter().find(|w| w.kind == WindowKind::StaleHolder).unwrap();
        assert_eq!((stale.overlap_ms, stale.writes), (60.0, 2));
    }
}
