//! The witness of the truth: the world tells it who owns each key, and when a request arrives at the resource.

use history::HoldId;
use locks::Owner;

use super::World;
use crate::{
    executor::Process,
    thread_bound::{ThreadBound, lock},
    truth::{Act, Truth, TruthRecorder},
};

impl World {
    pub(super) fn owners(&self, witness: &TruthRecorder, key: &history::Key) -> Vec<HoldId> {
        let key = locks::Key::new(key.as_str());
        self.servers.owners(&key, |node| self.lease_clock(node), |owner| witness.whose(owner))
    }

    /// Returns whether the run gathers the truth.
    pub fn is_witnessed(&self) -> bool {
        self.witness.is_some()
    }

    /// Notes that `process` requests a lock for `owner`, under the lease of `grantee` if it has one. Inline, as is
    /// [`World::look_at_owners`]: most runs gather no truth, and a call would cost more than the check.
    #[inline]
    pub fn asks(&self, process: Process, owner: Option<&Owner>, grantee: Option<&Owner>) {
        if let (Some(witness), Some(owner)) = (&self.witness, owner) {
            lock(witness).asks(process, owner, grantee);
        }
    }

    /// Notes the arrival of a request at the resource.
    pub fn acts(&self, hold: HoldId, number: u64, is_write: bool) {
        let Some(witness) = &self.witness else { return };
        let (mut witness, at, mut next) = (lock(witness), self.executor.now(), Some(hold));
        while let Some((hold, (key, above))) = next.and_then(|hold| Some((hold, witness.lock_of(hold)?))) {
            let owns = self.owners(&witness, &key).contains(&hold);
            witness.truth.acts.push(Act { hold, key, number, at, is_write, owns });
            next = above;
        }
    }

    /// Removes the acts that a restart of the resource lost: those above the largest number on its disk.
    pub fn acts_undone(&self, durable: u64) {
        if let Some(witness) = &self.witness {
            lock(witness).truth.acts.retain(|act| act.number <= durable);
        }
    }

    /// Notes who owns each key now, after a server has changed its state.
    #[inline]
    pub fn look_at_owners(&self) {
        if let Some(witness) = &self.witness {
            self.note_owners(witness);
        }
    }

    fn note_owners(&self, witness: &ThreadBound<TruthRecorder>) {
        let now = self.executor.now();
        for key in self.plan.workload.keys() {
            let mut witness = lock(witness);
            let owners = self.owners(&witness, &key);
            witness.owned(&key, now, owners);
        }
    }

    /// The truth so far, if gathered.
    pub fn truth(&self) -> Option<Truth> {
        self.witness.as_ref().map(|witness| lock(witness).truth.clone())
    }
}
