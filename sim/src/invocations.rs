//! Checks that no request leaves a process before the process has recorded the request's invocation.
//!
//! All verdicts rest on this order: an invocation is stamped and recorded before the first byte of its request leaves.
//! A record with a late invocation looks whole. Its promises are too long, so it would show overlaps that never were.

use history::{Event, HoldId, OpId};
use locks::{Op, Round, Step};

/// The invocations of one process that have no completion yet.
#[derive(Debug, Default)]
pub(crate) struct Invocations {
    /// The number of open rounds of each kind. An attempt that was abandoned stays open.
    acquire: u32,
    write_back: u32,
    renew: u32,
    release: u32,
    undo: u32,
    /// One for each client at most.
    ops: Vec<(HoldId, OpId)>,
}

impl Invocations {
    /// Takes an event that the process records. Returns the operation that the event completes.
    pub fn note(&mut self, event: &Event) -> Option<(HoldId, OpId)> {
        match event {
            Event::Acquire { .. } => self.acquire += 1,
            Event::Acquired { .. } | Event::AcquireFailed { .. } => {
                self.acquire = self.acquire.saturating_sub(1);
                self.write_back = 0;
            }
            Event::WriteBack { .. } => self.write_back += 1,
            Event::Renew { .. } => self.renew += 1,
            Event::Renewed { .. } | Event::RenewFailed { .. } => self.renew = self.renew.saturating_sub(1),
            Event::Release { .. } => self.release += 1,
            Event::Released { .. } | Event::ReleaseFailed { .. } => self.release = self.release.saturating_sub(1),
            Event::Undo { .. } => self.undo += 1,
            Event::Undone { .. } => self.undo = self.undo.saturating_sub(1),
            Event::Read { hold, op } | Event::Write { hold, op } => self.ops.push((*hold, *op)),
            Event::ReadOk { hold, op, .. } | Event::WriteOk { hold, op, .. } | Event::AccessFailed { hold, op, .. } => {
                let completed = (*hold, *op);
                self.ops.retain(|invoked| *invoked != completed);
                return Some(completed);
            }
            _ => {}
        }
        None
    }

    /// The operations that the process has invoked and not completed.
    pub fn ops(&self) -> &[(HoldId, OpId)] {
        &self.ops
    }

    /// Returns whether the process has recorded an invocation of one of these rounds, without its completion.
    pub fn is_open(&self, rounds: &[Round]) -> bool {
        let open = |round: &Round| match round {
            Round::Acquire => self.acquire,
            Round::WriteBack => self.write_back,
            Round::Renew => self.renew,
            Round::Release => self.release,
            Round::Undo => self.undo,
        };
        rounds.iter().any(|round| open(round) > 0)
    }

    /// Returns whether the process has recorded the invocation of this operation, without its completion.
    pub fn is_invoked(&self, hold: HoldId, op: OpId) -> bool {
        self.ops.contains(&(hold, op))
    }
}

/// The rounds that a step for a Redis node may belong to. A step of a planted bug may belong to any.
pub(crate) fn rounds_of_step(step: &Step) -> &'static [Round] {
    match step {
        Step::Acquire(..) | Step::AcquireUncounted(..) => &[Round::Acquire],
        Step::Extend(..) => &[Round::Renew],
        Step::Release(..) => &[Round::Release, Round::Undo],
        Step::RaiseFence(..) => &[Round::WriteBack],
        Step::Planted(_) => &[],
    }
}

/// The rounds that a request to a store may belong to. Requests that only read, and those of planted bugs, may belong
/// to any.
pub(crate) fn rounds_of_op(op: &Op) -> &'static [Round] {
    match op {
        Op::Grant(_) | Op::Create(..) | Op::Lock(..) => &[Round::Acquire],
        Op::KeepAlive(_) => &[Round::Acquire, Round::Renew],
        // A client may leave the queue, and stand in the queue anew, within one attempt.
        Op::Revoke(_) | Op::Delete(..) | Op::Unlock(..) => &[Round::Acquire, Round::Release, Round::Undo],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{ClientId, Key, Outcome};

    use super::*;

    #[test]
    fn an_attempt_is_open_from_its_invocation_to_its_completion() {
        let (attempt, key) = (HoldId(1), Key::from("k0"));
        let step = Step::Acquire(locks::Key::new("k0"), locks::Owner::new("a"), Duration::from_secs(1));
        let (mut open, rounds) = (Invocations::default(), rounds_of_step(&step));
        assert!(!open.is_open(rounds));
        open.note(&Event::Acquire {
            client: ClientId(0),
            attempt,
            key,
            intended: history::Stamp(0),
            mode: history::Mode::Write,
            above: None,
        });
        assert!(open.is_open(rounds) && !open.is_open(&[Round::Renew, Round::Release]));
        let why = history::FailureReason::Held;
        let answers = Vec::new();
        open.note(&Event::AcquireFailed { attempt, outcome: Outcome::Failed, why, detail: None, answers });
        assert!(!open.is_open(rounds));
    }

    #[test]
    fn a_renewal_needs_an_invocation_of_its_own() {
        let hold = HoldId(1);
        let step = Step::Extend(locks::Key::new("k0"), locks::Owner::new("a"), Duration::from_secs(1));
        let (mut open, rounds) = (Invocations::default(), rounds_of_step(&step));
        // A step of no round may be sent at any time.
        assert!(!rounds.is_empty() && !open.is_open(rounds));
        open.note(&Event::Release { hold });
        assert!(!open.is_open(rounds));
        open.note(&Event::Renew { hold });
        assert!(open.is_open(rounds));
    }

    #[test]
    fn an_operation_is_invoked_under_its_own_hold_only() {
        let mut open = Invocations::default();
        open.note(&Event::Write { hold: HoldId(1), op: OpId(2) });
        assert!(open.is_invoked(HoldId(1), OpId(2)));
        assert!(!open.is_invoked(HoldId(1), OpId(1)) && !open.is_invoked(HoldId(2), OpId(2)));
    }
}
