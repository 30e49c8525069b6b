//! The requests of a client to the resource, and the checks of its deadline.

use std::collections::BTreeMap;

use futures::future::{Either, select};
use history::{Arm, ClientKind, Event, HoldId, OpId, Outcome, Point, Version};
use resource::{ClientError, ReadAnswer, WriteAnswer};

use super::Client;
use crate::{
    admission::{read_answer, write_answer},
    attempt::Attempt,
    belief::Belief,
    ports::{Operation, Pending},
};

/// The most resends of a write without an answer.
const RESENDS_MAX: u32 = 100;

impl Client {
    /// Writes the next value of what was read; a client that is no writer reads again. If the section is over, returns
    /// whether the write may still be under way.
    pub(super) async fn update(
        &self,
        attempt: &Attempt,
        belief: &Belief<'_>,
        operation: Operation,
        read: &ReadAnswer,
    ) -> Option<bool> {
        let (id, op, values) = (attempt.id, operation.op, incremented(read));
        let deadline_us = values.contains_key(&Arm::Deadline).then(|| self.deadline_us(belief));
        let operation = Operation { deadline_us, ..operation };
        let write = attempt.mode.is_write().then(|| self.resource.write(&operation, &values));
        if self.workload.client == ClientKind::Checking {
            if !self.check(id, belief) {
                return Some(false);
            }
            self.point(id, Point::AfterCheck).await;
        }
        self.point(id, Point::BeforeWrite).await;
        let Some(write) = write else {
            return self.read(id, &operation).await.is_none().then_some(false);
        };
        self.record(Event::Write { hold: id, op });
        match self.answered(write, id, op, || self.resource.write(&operation, &values)).await {
            Ok(written) => {
                let (number, arms) = (written.number.0, Some(write_answer(&written)));
                self.record(Event::WriteOk { hold: id, op, number, arms });
                None
            }
            Err(error) => Some(self.access_failed(id, op, &error, true)),
        }
    }

    /// Reads. Returns none if the read failed: the section is over. A read changes no value, so a release is safe even
    /// if the read arrives later.
    pub(super) async fn read(&self, hold: HoldId, operation: &Operation) -> Option<ReadAnswer> {
        let op = operation.op;
        self.record(Event::Read { hold, op });
        match self.resource.read(operation).await {
            Ok(read) => {
                self.record(Event::ReadOk { hold, op, number: read.number.0, arms: Some(read_answer(&read)) });
                Some(read)
            }
            Err(error) => {
                self.access_failed(hold, op, &error, false);
                None
            }
        }
    }

    /// Waits for the answer to a write. Resends the write until the answer comes, if the plan says so. Once a copy was
    /// not answered, the failure of a later copy says nothing about the write: the earlier copy may still be applied.
    async fn answered<'a>(
        &self,
        mut write: Pending<'a, WriteAnswer>,
        hold: HoldId,
        op: OpId,
        again: impl Fn() -> Pending<'a, WriteAnswer>,
    ) -> Result<WriteAnswer, ClientError> {
        let Some(every) = self.workload.resend else { return write.await };
        for resent in 0..RESENDS_MAX {
            let mut timer = self.clock().sleep_until(self.clock().now() + every);
            match select(write, &mut timer).await {
                Either::Left((Err(ClientError::Indeterminate(_)), _)) => timer.await,
                Either::Left((Err(ClientError::Failed(_)), _)) if resent > 0 => timer.await,
                Either::Left((answered, _)) => return answered,
                Either::Right(_) => {}
            }
            self.record(Event::Resend { hold, op });
            write = again();
        }
        match write.await {
            Err(ClientError::Failed(why)) => Err(ClientError::Indeterminate(why)),
            answered => answered,
        }
    }

    /// Checks whether the client still believes in its hold. Takes the stamp before it reads the clock, so that a
    /// freeze between the two never looks like a check that passed too late.
    pub(super) fn check(&self, hold: HoldId, belief: &Belief<'_>) -> bool {
        let at = self.recording.journal.now();
        let passed = !belief.is_lost() && self.clock().now() < belief.valid_until();
        self.recording.journal.record_at(at, Event::Check { hold, passed });
        if !passed && !belief.is_noticed() {
            self.record(Event::LossNoticed { hold });
        }
        passed
    }

    fn access_failed(&self, hold: HoldId, op: OpId, error: &ClientError, write: bool) -> bool {
        let outcome = match error {
            ClientError::Failed(_) => Outcome::Failed,
            ClientError::Indeterminate(_) => Outcome::Indeterminate,
        };
        self.record(Event::AccessFailed { hold, op, outcome, detail: error.to_string() });
        write && outcome == Outcome::Indeterminate
    }
}

/// Returns the next value for each arm: the read value plus one, from the version that was read.
fn incremented(read: &ReadAnswer) -> BTreeMap<Arm, (Version, String)> {
    let next = |value: Option<&String>| value.and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) + 1;
    read.arms.iter().map(|(arm, state)| (*arm, (state.version, next(state.value.as_ref()).to_string()))).collect()
}
