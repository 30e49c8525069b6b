//! The ends of cycles by the end of a hold.

use history::{ClientId, Stamp};

use super::{DeadlockEnd, Deadlocks};
use crate::{
    holds::{Attempt, EarlyEnd},
    rules,
    run::Run,
};

impl Deadlocks {
    /// Ends the cycle of a client if a hold in it was over before now. The end of an entitlement is reported with the
    /// next event of its key, which may be later.
    pub(super) fn expire(&mut self, run: &Run, client: ClientId) {
        if let Some(id) = self.of.get(&client).copied() {
            self.expire_cycle(run, id, None);
        }
    }

    /// A client has acquired a key, and so waits no longer. In a session, this shows that a former hold of the key was
    /// over, if its promise had ended.
    pub(super) fn gets(&mut self, run: &Run, attempt: &Attempt) {
        self.waits.remove(&attempt.client);
        self.expire(run, attempt.client);
        let is_former = |hold: &&Attempt| run.plan.workload.session && rules::conflict(hold.mode, attempt.mode);
        let former = run.live(attempt.key).filter(is_former).map(|hold| hold.client);
        let cycles = former.chain([attempt.client]).filter_map(|client| self.of.get(&client).copied());
        for id in cycles.collect::<Vec<u64>>() {
            self.expire_cycle(run, id, Some(attempt.key));
        }
        if let Some(id) = self.of.get(&attempt.client).copied() {
            self.forget(id);
        }
    }

    /// Ends a cycle if a hold in it was over before now. `taken`: the key that another client has acquired now.
    pub(super) fn expire_cycle(&mut self, run: &Run, id: u64, taken: Option<usize>) {
        let Some(cycle) = self.cycles.get(&id) else { return };
        let holds = cycle.holds.iter().filter_map(|hold| run.attempt(*hold));
        let ends = holds.map(|hold| (over(run, hold, taken == Some(hold.key)), hold));
        let first = ends.min_by_key(|(at, hold)| (*at, hold.id)).filter(|(at, _)| *at < run.now);
        if let Some((at, hold)) = first {
            self.end(run, id, end_of(run, hold), at, Some(run.process(hold.process).name.clone()));
        }
    }

    /// The entitlement of a hold has ended, or the judged record ends there.
    pub fn on_entitlement_end(&mut self, run: &Run, hold: &Attempt, end: Stamp) {
        // Another hold of the cycle may have ended earlier, with no event of its key since.
        self.expire(run, hold.client);
        let Some(id) = self.of.get(&hold.client).copied() else { return };
        if !self.cycles.get(&id).is_some_and(|cycle| cycle.holds.contains(&hold.id)) {
            return;
        }
        // At the end of a whole record, the ends of all promises are reported, also those that lie after it.
        let is_cut = end < hold.end() || end > run.now;
        let (ended, by) = match is_cut {
            true => (DeadlockEnd::Unended, None),
            false if over(run, hold, false) > end => return,
            false => (end_of(run, hold), Some(run.process(hold.process).name.clone())),
        };
        self.end(run, id, ended, end.min(run.now), by);
    }

    /// No later event concerns an attempt. A hold of a cycle closes only if its process has ended after the promise.
    pub fn on_attempt_closed(&mut self, run: &Run, attempt: &Attempt) {
        let Some(id) = self.of.get(&attempt.client).copied() else { return };
        if self.cycles.get(&id).is_some_and(|cycle| cycle.holds.contains(&attempt.id)) {
            self.end(run, id, DeadlockEnd::Killed, run.now, Some(run.process(attempt.process).name.clone()));
        }
    }
}

/// Returns when a hold of a cycle was over. Its client waits, and so keeps the session that its holds share. Such a
/// hold may outlast its promise, unless another client has acquired its key.
pub(super) fn over(run: &Run, hold: &Attempt, is_taken: bool) -> Stamp {
    match hold.early_end {
        _ if !run.plan.workload.session => hold.end(),
        Some((mark, _)) => mark.at,
        None if is_taken => hold.end(),
        None => Stamp(u64::MAX),
    }
}

/// The end of a cycle by the end of a hold.
fn end_of(run: &Run, hold: &Attempt) -> DeadlockEnd {
    let early_end = if run.plan.workload.session { hold.early_end } else { hold.ended_by() };
    match early_end {
        Some((_, EarlyEnd::Release)) => DeadlockEnd::TimedOut,
        Some((_, EarlyEnd::Kill(_))) => DeadlockEnd::Killed,
        Some((_, EarlyEnd::Loss)) | None => DeadlockEnd::LeaseEnded,
    }
}
