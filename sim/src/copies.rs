//! The copies of requests to the resource that may still arrive.
//!
//! A client resends a write without an answer as the same operation, and earlier copies may arrive after later ones: a
//! frozen resource and a lost packet delay them. The resource must repeat its answer as long as a copy may arrive. A
//! client sends no copy after the completion of the operation was recorded.

use std::sync::Arc;

use history::{HoldId, OpId};
use rustc_hash::FxHashMap;

use crate::thread_bound::{ThreadBound, lock};

/// The operation of a hold.
type Id = (HoldId, OpId);

/// The operations that are under way.
#[derive(Clone, Default)]
pub(crate) struct Copies(Arc<ThreadBound<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    operations: FxHashMap<Id, Operation>,
    /// Operations of which no copy can arrive any more.
    over: Vec<Id>,
}

#[derive(Default)]
struct Operation {
    /// The copies that were sent and have neither arrived nor been dropped.
    copies: u32,
    /// True if the client sends no copy any more.
    is_completed: bool,
}

/// A copy of a request. Dropped when the resource has decided the request, or when the packet is lost for ever.
pub(crate) struct Sent {
    copies: Copies,
    id: Id,
}

impl Copies {
    /// Notes that a copy of an operation's request is sent.
    pub fn sent(&self, hold: HoldId, op: OpId) -> Sent {
        lock(&self.0).operations.entry((hold, op)).or_default().copies += 1;
        Sent { copies: self.clone(), id: (hold, op) }
    }

    /// Notes that the client has completed an operation, or was killed: it sends no copy any more.
    pub fn completed(&self, hold: HoldId, op: OpId) {
        let mut under_way = lock(&self.0);
        let Some(operation) = under_way.operations.get_mut(&(hold, op)) else { return };
        operation.is_completed = true;
        under_way.remove_if_over((hold, op));
    }

    /// Takes an operation of which no copy can arrive any more; none, if there is no further one.
    pub fn take_over(&self) -> Option<Id> {
        lock(&self.0).over.pop()
    }
}

impl UnderWay {
    fn remove_if_over(&mut self, id: Id) {
        if self.operations.get(&id).is_some_and(|operation| operation.is_completed && operation.copies == 0) {
            self.operations.remove(&id);
            self.over.push(id);
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let mut under_way = lock(&self.copies.0);
        if let Some(operation) = under_way.operations.get_mut(&self.id) {
            operation.copies -= 1;
        }
        under_way.remove_if_over(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = (HoldId(1), OpId(2));

    #[test]
    fn an_operation_is_over_with_its_completion_and_its_last_copy() {
        let copies = Copies::default();
        let (first, second) = (copies.sent(ID.0, ID.1), copies.sent(ID.0, ID.1));
        drop(first);
        copies.completed(ID.0, ID.1);
        assert_eq!(copies.take_over(), None);
        drop(second);
        assert_eq!((copies.take_over(), copies.take_over()), (Some(ID), None));
    }

    #[test]
    fn a_client_without_an_answer_may_send_another_copy() {
        let copies = Copies::default();
        drop(copies.sent(ID.0, ID.1));
        assert_eq!(copies.take_over(), None);
        drop(copies.sent(ID.0, ID.1));
        copies.completed(ID.0, ID.1);
        assert_eq!(copies.take_over(), Some(ID));
    }

    #[test]
    fn an_operation_that_was_never_sent_leaves_nothing() {
        let copies = Copies::default();
        copies.completed(ID.0, ID.1);
        assert!(copies.take_over().is_none() && lock(&copies.0).operations.is_empty());
    }
}
