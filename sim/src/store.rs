//! A cluster of a revisioned store: the state that its members share, and the requests that wait.
//!
//! Whatever the leader applies, every member has. The model leaves out raft's log,
//! reads of a former leader, snapshots, and watches that a member would have to replay.

use std::collections::BTreeMap;

use history::{Models, ServerFacts, Stamp};
use locks::{Key, LeaseId, Op, Owner, StoreAnswer};
use tokio::sync::oneshot;

use crate::{
    executor::Process,
    models::store::{LeaderView, StoreClocks, StoreModel},
};

pub(crate) mod members;
pub(crate) mod remote;

/// A request at the leader, and the way back to its sender.
struct PendingRequest {
    op: Op,
    worker: Process,
    member: Process,
    answered: oneshot::Sender<StoreAnswer>,
    /// The name of the sender in the truth, if the request is for a lease.
    grantee: Option<Owner>,
}

/// The members of the store.
pub(crate) struct StoreCluster {
    model: StoreModel,
    leader: Process,
    /// True from the leader's death to the next election: a member that restarts does not lead.
    is_leader_lost: bool,
    leader_seen: Stamp,
    /// The time of the last search for expired leases.
    expired: Stamp,
    /// Requests that wait until a key is deleted.
    waiting: Vec<PendingRequest>,
    /// Requests that wait until their member reaches a leader.
    stalled: Vec<PendingRequest>,
    /// The frozen leaders' knowledge of the leases.
    views: BTreeMap<Process, LeaderView>,
    /// The sender of the request for each lease that exists, for the truth.
    grantees: BTreeMap<LeaseId, Owner>,
    /// The number of requests for leases.
    grants: u64,
}

impl StoreCluster {
    /// An empty store, led by its first member.
    pub fn new(facts: &ServerFacts, models: Models, start: Stamp) -> StoreCluster {
        StoreCluster {
            model: StoreModel::new(facts, models),
            leader: 0,
            is_leader_lost: false,
            leader_seen: start,
            expired: start,
            waiting: Vec::new(),
            stalled: Vec::new(),
            views: BTreeMap::new(),
            grantees: BTreeMap::new(),
            grants: 0,
        }
    }

    /// The truth: the owners of the keys in the queue that no older key conflicts with, each with the name of its
    /// lease. This name is given with the lease and not with the key, because an attempt requests its lease as it
    /// begins, but its key only after other clients of its worker may have begun attempts. In a session, many owners
    /// share a lease.
    pub fn holders(&self, key: &Key) -> impl Iterator<Item = (&Owner, Option<&Owner>)> {
        self.model.holders(key).map(|(_, owner, lease)| (owner, self.grantees.get(&lease)))
    }

    /// Makes a name for the sender of a request for a lease. No attempt draws such an owner value.
    fn grantee(&mut self) -> Owner {
        self.grants += 1;
        Owner::new(format!("grantee {}", self.grants))
    }

    /// Expires leases. A lease that is gone has no key, so nobody asks for its sender any more.
    fn expire(&mut self, now: StoreClocks) {
        self.model.expire(now);
        self.grantees.retain(|lease, _| self.model.has_lease(*lease));
    }

    fn apply(&mut self, asked: &PendingRequest, now: StoreClocks) -> Option<StoreAnswer> {
        let seen = self.model.apply(&asked.op, now);
        if let (Some(grantee), Some(StoreAnswer::Leased(lease, _))) = (&asked.grantee, seen) {
            self.grantees.insert(lease, grantee.clone());
        }
        seen
    }
}
