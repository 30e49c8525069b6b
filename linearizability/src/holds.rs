//! Locks without leases whose releases belong to an acquisition: a decision in the time of one sort.
//!
//! If each client acquires and releases in turn, one call after the answer to the other, each release has its
//! acquisition. Then
//!
//! - an answered acquisition is held for certain from its answer to the call of its release;
//! - an acquisition without an answer whose release was answered was held at one instant between the call of the
//!   release and its answer;
//! - any other acquisition without an answer need not have taken place.
//!
//! The history is linearizable exactly if the holds that are certain do not overlap and each such instant exists
//! outside of them.

use rustc_hash::FxHashMap;

use crate::{
    operation::{Action, Client, Operation},
    reason::Reason,
};

/// An acquisition and its release, by their indices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold {
    acquire: usize,
    release: Option<usize>,
}

/// Finds what no order can have, in a history of one lock.
pub(crate) fn check(operations: &[Operation], holds: &[Hold]) -> Result<(), Reason> {
    let mut sure: Vec<(u64, u64, usize)> = Vec::new();
    let mut instants: Vec<(u64, u64, usize)> = Vec::new();
    for hold in holds {
        let release = hold.release.map(|release| &operations[release]);
        match (operations[hold.acquire].answer, release) {
            (Some(from), Some(release)) => sure.push((from, release.call, hold.acquire)),
            (Some(from), None) => sure.push((from, u64::MAX, hold.acquire)),
            (None, Some(Operation { call, answer: Some(answer), .. })) => {
                instants.push((*call, *answer, hold.release.unwrap_or_default()));
            }
            (None, _) => {}
        }
    }
    sure.sort_unstable();
    for pair in sure.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(Reason::TwoHolders(pair[0].2, pair[1].2));
        }
    }
    // An instant is free unless one certain hold covers the whole of the release: the holds do not touch one another,
    // because no two positions are equal.
    for (call, answer, release) in instants {
        let before = sure.partition_point(|(from, ..)| *from < call);
        if let Some((_, to, acquire)) = before.checked_sub(1).map(|last| sure[last])
            && answer < to
        {
            return Err(Reason::NeverHeld { release, acquire });
        }
    }
    Ok(())
}

/// Gives each release its acquisition. `None` if a client does not acquire and release in turn, calls before its last
/// call was answered, or goes on after a release without an answer, which can take effect at any later time. A client
/// may release after an acquisition without an answer. The operations are sorted by their calls.
pub(crate) fn pair(operations: &[Operation]) -> Option<Vec<Hold>> {
    let mut holds: Vec<Hold> = Vec::new();
    let mut latest: FxHashMap<Client, usize> = FxHashMap::default();
    for (index, operation) in operations.iter().enumerate() {
        let earlier = latest.get(&operation.client).copied();
        match (operation.action, earlier.map(|earlier| &mut holds[earlier])) {
            (Action::Acquire(_), None) => {}
            (Action::Acquire(_), Some(hold)) => {
                if operations[hold.release?].answer? > operation.call {
                    return None;
                }
            }
            (Action::Release, Some(hold)) if hold.release.is_none() => {
                if operations[hold.acquire].answer.is_some_and(|answer| answer > operation.call) {
                    return None;
                }
                hold.release = Some(index);
            }
            _ => return None,
        }
        if matches!(operation.action, Action::Acquire(_)) {
            latest.insert(operation.client, holds.len());
            holds.push(Hold { acquire: index, release: None });
        }
    }
    Some(holds)
}
