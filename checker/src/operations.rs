//! The operations of clients on the resource: invoked, decided, answered. Each admission is compared with the operation
//! that it belongs to, and each answer with the admission.
//!
//! An invocation is stamped before its request leaves and a completion after its answer was received, so an admission
//! lies between the two. The log and the record of the clients contradict each other if it does not. Equal stamps are
//! concurrent: an admission at the stamp of its invocation or of its answer contradicts nothing.

mod told;

use history::{ArmDecision, ArmReadAnswer, ArmWriteAnswer, HoldId, Key, OpId, RequestKind, Token};
use rustc_hash::FxHashMap;

use told::{Decision, Told, differing, digest, shown, told};

/// A rule about the resource that an event breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breach {
    /// Log and record contradict each other: at least one of the two is wrong.
    Contradiction,
    /// The order of two numbers contradicts real time.
    Misordered,
    /// An answer to a decision that was gone after a restart.
    AcknowledgedLost,
    /// An answer that is not the one that the log shows, or a failure of what the log shows.
    WrongAnswer,
    /// An operation was decided again, and not answered as before.
    AppliedTwice,
    /// A repeat that differs from the first answer.
    WrongRepeat,
}

/// One breach, and the event that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub breach: Breach,
    pub seq: u64,
    pub why: String,
}

/// The meaning of an admission for its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Arrival {
    /// The first arrival of a request: the act.
    Act,
    /// The operation has been decided before, or the request belongs to no hold.
    #[default]
    Other,
    /// The record of the clients contradicts the admission, or does not know its operation.
    Contradicted,
}

/// An admission, as the log has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission<'a> {
    pub seq: u64,
    pub number: u64,
    pub key: &'a Key,
    pub kind: RequestKind,
    pub hold: Option<HoldId>,
    pub op: Option<OpId>,
    pub token: Option<Token>,
    pub is_repeat: bool,
    pub arms: &'a [ArmDecision],
}

/// The record's knowledge of the hold that an admission names.
#[derive(Clone, Copy)]
pub(crate) struct HoldKnown<'a> {
    /// True if the attempt is open: all of its operations are known here.
    pub is_open: bool,
    /// The key, and the token that the service granted, if the attempt acquired.
    pub granted: Option<(&'a Key, Option<Token>)>,
    /// Returns whether the last events of the hold's process may be lost.
    pub is_cut: &'a dyn Fn() -> bool,
    /// Returns whether the log may lack the admission of this number.
    pub is_unlogged: &'a dyn Fn() -> bool,
}

/// An answer, as the client received it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer<'a> {
    Read(&'a [ArmReadAnswer]),
    Write(&'a [ArmWriteAnswer]),
    /// The record does not have it.
    Unrecorded,
}

/// One operation of a hold whose attempt is not closed.
#[derive(Debug)]
struct Operation {
    id: OpId,
    /// Absent if the log has the operation, and no client has invoked it yet.
    kind: Option<RequestKind>,
    /// Operations with these numbers had been answered when it was sent.
    floor: u64,
    has_failed: bool,
    /// True if it was answered at an earlier stamp.
    is_answered: bool,
    decided: Option<u64>,
    /// The number of a decision that did not reach the disk.
    undone: Option<u64>,
    /// A digest of the decision.
    digest: u64,
    /// The answers that the log shows.
    told: Decision,
}

/// An answer that came at the stamp of its decision, or without one.
#[derive(Debug)]
struct Early {
    hold: HoldId,
    op: OpId,
    number: u64,
    seq: u64,
    told: Option<Vec<Told>>,
}

/// All operations of open attempts.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    /// The operations of each attempt, by their numbers.
    of: FxHashMap<HoldId, Vec<Operation>>,
    /// Emptied lists, for the next hold.
    spare: Vec<Vec<Operation>>,
    /// The largest number that had been answered before this stamp, and at this stamp. Requests that are sent at the
    /// stamp are concurrent with the answers.
    answered: u64,
    answered_now: u64,
    early: Vec<Early>,
    /// Answers whose decisions the log may have lost with the end of a killed resource: number, and answer. The next
    /// process of the resource has not told yet what it found on disk.
    unlogged: Vec<(u64, u64)>,
    /// Operations that failed at this stamp.
    failures: Vec<(HoldId, OpId, u64)>,
    arrival: Arrival,
    findings: Vec<Finding>,
    doubts: Vec<String>,
}

impl Operations {
    /// The meaning of the last admission for its operation.
    pub fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// The breaches that the last event, or the completion of the last stamp, showed.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Reasons for which the last event cannot be judged.
    pub fn doubts(&self) -> &[String] {
        &self.doubts
    }

    /// The number of operations that are kept.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.of.values().map(Vec::len).sum()
    }

    /// Forgets what the last event showed.
    pub fn next_event(&mut self) {
        if self.has_shown() {
            self.findings.clear();
            self.doubts.clear();
        }
    }

    /// Returns whether the last event, or the completion of the last stamp, showed anything.
    pub fn has_shown(&self) -> bool {
        !self.findings.is_empty() || !self.doubts.is_empty()
    }

    fn op(&mut self, hold: HoldId, op: OpId) -> Option<&mut Operation> {
        let ops = self.of.get_mut(&hold)?;
        let place = place(ops, op);
        ops.get_mut(place).filter(|o| o.id == op)
    }

    /// The kind of an operation that a client has invoked.
    pub fn invoked_as(&self, hold: HoldId, op: OpId) -> Option<RequestKind> {
        let ops = self.of.get(&hold)?;
        ops.get(place(ops, op)).filter(|o| o.id == op)?.kind
    }

    fn add(&mut self, hold: HoldId, op: OpId, kind: Option<RequestKind>) -> &mut Operation {
        let Operations { of, spare, answered, .. } = self;
        let new = Operation {
            id: op,
            kind,
            floor: *answered,
            has_failed: false,
            is_answered: false,
            decided: None,
            undone: None,
            digest: 0,
            told: Decision::new(),
        };
        let ops = of.entry(hold).or_insert_with(|| spare.pop().unwrap_or_default());
        let place = place(ops, op);
        ops.insert(place, new);
        &mut ops[place]
    }

    fn found(&mut self, breach: Breach, seq: u64, why: String) {
        self.findings.push(Finding { breach, seq, why });
    }

    fn contradicted(&mut self, seq: u64, why: &str) {
        self.arrival = Arrival::Contradicted;
        self.found(Breach::Contradiction, seq, format!("log and record contradict each other: {why}"));
    }

    /// Returns whether the log has an operation.
    pub fn is_decided(&self, hold: HoldId, op: OpId) -> bool {
        let ops = self.of.get(&hold).map_or(&[][..], Vec::as_slice);
        ops.get(place(ops, op)).is_some_and(|o| o.id == op && o.decided.is_some())
    }

    /// A client invokes an operation.
    pub fn invoked(&mut self, hold: HoldId, op: OpId, kind: RequestKind) {
        match self.op(hold, op) {
            Some(known) if known.kind.is_none() => known.kind = Some(kind),
            _ => _ = self.add(hold, op, Some(kind)),
        }
    }

    /// A client learns that an operation certainly did not happen.
    pub fn failed(&mut self, hold: HoldId, op: OpId, seq: u64) {
        self.failures.push((hold, op, seq));
    }

    /// An admission that a restart of the resource undid.
    pub fn undone(&mut self, hold: HoldId, op: OpId, number: u64) {
        if let Some(op) = self.op(hold, op) {
            op.undone = Some(number);
        }
    }

    /// A restart of the resource found the decisions up to this number on disk. The former process had answered all
    /// that it answered by then, also what the record has lost.
    pub fn recovered(&mut self, durable: u64) {
        for (number, seq) in std::mem::take(&mut self.unlogged) {
            if number > durable {
                self.found(Breach::AcknowledgedLost, seq, gone(number));
            }
        }
    }

    /// An admission.
    pub fn arrived(&mut self, admission: &Admission, hold: HoldKnown) {
        let Admission { seq, number, .. } = *admission;
        self.arrival = Arrival::Other;
        let Some((id, op)) = admission.hold.zip(admission.op) else {
            // Only the final reads belong to no hold, and they have no token.
            let is_final = admission.kind == RequestKind::Read && admission.token.is_none();
            if !is_final || admission.hold.is_some() || admission.op.is_some() {
                self.contradicted(seq, &format!("#{number} belongs to no operation of a client"));
            }
            return;
        };
        let known = self.op(id, op).map(|known| (known.kind, known.has_failed && known.decided.is_none()));
        let why = match known {
            // Another copy of a request may arrive at any time, even if no other request of its hold can.
            None if admission.is_repeat && !hold.is_open => None,
            None if (hold.is_cut)() => {
                self.arrival = Arrival::Contradicted;
                self.doubts
                    .push(format!("the resource decided an operation of hold {id}, which the record does not know"));
                None
            }
            None => Some(format!("#{number} is operation {op} of hold {id}, which no client had invoked by then")),
            Some((_, true)) => Some(format!("#{number} is operation {op} of hold {id}, which had failed")),
            Some((Some(sent), _)) if sent != admission.kind => {
                Some(format!("#{number} is a {}, and operation {op} of hold {id} is not", name(admission.kind)))
            }
            Some(_) => hold.differs_from(admission, id),
        };
        if let Some(why) = why {
            self.contradicted(seq, &why);
        }
        match admission.is_repeat {
            true => self.repeated(admission, id, op, hold),
            false => self.decided(admission, id, op),
        }
    }

    fn repeated(&mut self, admission: &Admission, hold: HoldId, op: OpId, known: HoldKnown) {
        let (number, digest) = (admission.number, digest(admission.arms));
        let former = self.op(hold, op).map(|op| (op.decided, op.digest));
        if former.is_some_and(|(decided, _)| decided.is_none()) && (known.is_unlogged)() {
            // The record has lost the decision with the end of a process that was killed.
            return self.doubts.push(format!("#{number} was given again, and the log does not have its decision"));
        }
        if former.is_some_and(|former| former != (Some(number), digest)) {
            let why = format!("#{number} was given again, and is not what had been answered");
            self.found(Breach::WrongRepeat, admission.seq, why);
        }
    }

    fn decided(&mut self, admission: &Admission, hold: HoldId, op: OpId) {
        let Admission { seq, number, .. } = *admission;
        let known = match self.op(hold, op) {
            Some(known) => known,
            None => self.add(hold, op, None),
        };
        if let Some(first) = known.decided {
            let why = format!("#{number} is the operation that had been decided as #{first}");
            return self.found(Breach::AppliedTwice, seq, why);
        }
        (known.decided, known.digest) = (Some(number), digest(admission.arms));
        known.told = told(admission.kind, admission.token, admission.arms);
        let (floor, is_answered, is_invoked) = (known.floor, known.is_answered, known.kind.is_some());
        if is_answered {
            // The completion of the answer's stamp has found it.
            self.arrival = Arrival::Contradicted;
        } else if self.arrival != Arrival::Contradicted {
            self.arrival = Arrival::Act;
        }
        if is_invoked && number <= floor {
            self.found(Breach::Misordered, seq, format!("#{number} was sent when #{floor} had been answered"));
        }
    }

    /// An answer reaches its client.
    pub fn answered(&mut self, hold: HoldId, op: OpId, number: u64, answer: Answer, seq: u64) {
        self.answered_now = self.answered_now.max(number);
        let Some(known) = self.op(hold, op) else { return };
        if known.decided.is_none() && known.undone != Some(number) {
            let told = answer.received().map(Iterator::collect);
            return self.early.push(Early { hold, op, number, seq, told });
        }
        if let Some((breach, why)) = known.is_answered_wrongly(hold, number, answer.received()) {
            self.found(breach, seq, why);
        }
    }

    /// Completes a stamp: the log has every decision that was made by then. `is_unlogged` returns whether the log may
    /// lack the admission of a number.
    pub fn complete_stamp(&mut self, is_unlogged: impl Fn(u64) -> bool) {
        self.next_event();
        self.answered = self.answered.max(self.answered_now);
        while let Some((hold, op, seq)) = self.failures.pop() {
            let Some(known) = self.op(hold, op) else { continue };
            known.has_failed = true;
            if let Some(number) = known.decided {
                let why = format!("operation {op} of hold {hold} failed, and the log has it as #{number}");
                self.found(Breach::WrongAnswer, seq, why);
            }
        }
        if self.early.is_empty() {
            return;
        }
        let mut early = std::mem::take(&mut self.early);
        for Early { hold, op, number, seq, told } in early.drain(..) {
            let Some(known) = self.op(hold, op) else { continue };
            if known.decided.is_some() || known.undone == Some(number) {
                if let Some((breach, why)) = known.is_answered_wrongly(hold, number, told.map(Vec::into_iter)) {
                    self.found(breach, seq, why);
                }
                continue;
            }
            known.is_answered = true;
            let why =
                format!("operation {op} of hold {hold} was answered as #{number}, and the log did not have it by then");
            if is_unlogged(number) {
                self.doubts.push(why);
                self.unlogged.push((number, seq));
            } else {
                self.contradicted(seq, &why);
            }
        }
        self.early = early;
    }

    /// Forgets an operation of an attempt that is not open, if its client has invoked it: nothing compares its answer.
    pub fn forget(&mut self, hold: HoldId, op: OpId) {
        let Some(ops) = self.of.get_mut(&hold) else { return };
        // A client that goes on with a hold that is not known may have sent the operation twice.
        let alike = ops.partition_point(|o| o.id < op)..ops.partition_point(|o| o.id <= op);
        if ops[alike.clone()].iter().all(|o| o.kind.is_some()) {
            ops.drain(alike);
        }
        if ops.is_empty() {
            self.closed(hold);
        }
    }

    /// No later event concerns the operations of this attempt.
    pub fn closed(&mut self, attempt: HoldId) {
        if let Some(mut ops) = self.of.remove(&attempt) {
            ops.clear();
            self.spare.push(ops);
        }
    }
}

impl Operation {
    /// Returns how an answer differs from the decision of the operation, if it does.
    fn is_answered_wrongly(
        &self,
        hold: HoldId,
        number: u64,
        answer: Option<impl Iterator<Item = Told>>,
    ) -> Option<(Breach, String)> {
        let op = self.id;
        if self.undone == Some(number) {
            return Some((Breach::AcknowledgedLost, gone(number)));
        }
        if self.decided != Some(number) {
            let why = format!("operation {op} of hold {hold} was answered as #{number}, and is another in the log");
            return Some((Breach::WrongAnswer, why));
        }
        let wrong = differing(&self.told, answer?)?;
        let why = format!("#{number}, operation {op} of hold {hold}, was not answered as decided: {wrong}");
        Some((Breach::WrongAnswer, why))
    }
}

impl HoldKnown<'_> {
    /// Returns how a request differs from the requests of its hold, if it does.
    fn differs_from(&self, admission: &Admission, id: HoldId) -> Option<String> {
        let Admission { number, key, token, .. } = *admission;
        let (of_key, of_token) = self.granted?;
        if of_key != key {
            return Some(format!("#{number} is for the key {key}, and hold {id} is of {of_key}"));
        }
        (of_token != token)
            .then(|| format!("#{number} has the token {}, and hold {id} has {}", shown(token), shown(of_token)))
    }
}

impl<'a> Answer<'a> {
    /// The answers of the arms, unless they are not recorded.
    fn received(self) -> Option<impl Iterator<Item = Told> + 'a> {
        let (reads, writes): (&[ArmReadAnswer], &[ArmWriteAnswer]) = match self {
            Answer::Read(arms) => (arms, &[]),
            Answer::Write(arms) => (&[], arms),
            Answer::Unrecorded => return None,
        };
        let read = |a: &ArmReadAnswer| Told { arm: a.arm, admitted: None, version: Some(a.version), seen: a.seen };
        let write = |a: &ArmWriteAnswer| Told { arm: a.arm, admitted: Some(a.admitted), version: None, seen: a.seen };
        Some(reads.iter().map(read).chain(writes.iter().map(write)))
    }
}

fn gone(number: u64) -> String {
    format!("#{number} had been answered, and was gone after the restart")
}

/// The place of an operation among others, which are sorted. Most are asked for soon after they were added last.
fn place(ops: &[Operation], op: OpId) -> usize {
    match ops {
        [.., last] if last.id < op => ops.len(),
        [.., last] if last.id == op => ops.len() - 1,
        _ => ops.partition_point(|o| o.id < op),
    }
}

pub(crate) fn name(kind: RequestKind) -> &'static str {
    if kind == RequestKind::Read { "read" } else { "write" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_was_sent_twice_is_forgotten_as_a_whole() {
        let (id, sent, kind, key) = (HoldId(1), OpId(1), RequestKind::Write, Key::from("k0"));
        let mut operations = Operations::default();
        (0..2).for_each(|_| operations.invoked(id, sent, kind));
        let arrivals = [1, 2].map(|number| {
            let (seq, key, hold, op, is_repeat) = (number, &key, Some(id), Some(sent), false);
            let admission = Admission { seq, number, key, kind, hold, op, token: None, is_repeat, arms: &[] };
            let known = HoldKnown { is_open: false, granted: None, is_cut: &|| false, is_unlogged: &|| false };
            operations.arrived(&admission, known);
            operations.forget(id, sent);
            operations.arrival()
        });
        assert_eq!(arrivals, [Arrival::Act, Arrival::Contradicted]);
    }
}
