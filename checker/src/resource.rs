//! Property 5: the resource itself. Its log agrees with real time and with its answers, forgets nothing that it has answered,
//! and decides an operation once.
//!
//! It answers when a decision, and so everything before it, is on disk. What it had reported and not put on disk when it was
//! killed is undone: the merge marks those admissions, and no other judge sees them. An answer to one of them is an answer that
//! came before the disk. So no read can have shown what was not durable either: a version is the number of an earlier write.

use history::{Arm, ArmDecision, Event, HoldId, OpId, RequestKind, Token};
use rustc_hash::FxHashMap;

use crate::{
    holds::Attempt,
    judge::{Ending, Judge},
    merge::Entry,
    property::{Property, ResourceVerdict},
    rules,
    run::Run,
    verdict::{Facts, Verdict},
};

/// One operation of a hold whose attempt is not closed.
#[derive(Debug, Clone, Copy)]
struct Op {
    id: OpId,
    /// Operations with these numbers had been answered when it was sent.
    floor: u64,
    decided: Option<u64>,
    /// The number of a decision that did not reach the disk.
    undone: Option<u64>,
    /// What was decided, in short.
    digest: u64,
}

/// An answer that a client received.
#[derive(Debug, Clone, Copy)]
struct Answer {
    hold: HoldId,
    op: OpId,
    number: u64,
    seq: u64,
}

/// Tokens of one key on one arm.
#[derive(Debug, Clone, Copy, Default)]
struct Tokens {
    /// The largest that it has shown, or that an admitted write registered.
    known: Option<Token>,
    /// The largest that a read registered. Whether reads do is the fence's business; what they did is on disk.
    by_reads: Option<Token>,
}

/// Arms that remember tokens.
const FENCED: [Arm; 2] = [Arm::Writes, Arm::Reads];
/// Witnesses and reasons that are listed.
const LISTED: usize = 20;

/// Judges the resource.
#[derive(Default)]
pub(crate) struct Resource {
    ops: FxHashMap<HoldId, Vec<Op>>,
    /// Emptied lists of operations, for the next hold.
    spare: Vec<Vec<Op>>,
    /// The largest number that had been answered before this stamp.
    answered: u64,
    /// Answers of this stamp: the log may have their decisions at the same one, and what is sent at it is concurrent with them.
    answers: Vec<Answer>,
    last: u64,
    keys: Vec<[Tokens; 2]>,
    found: ResourceVerdict,
}

impl Resource {
    fn op(&mut self, hold: HoldId, op: OpId) -> Option<&mut Op> {
        self.ops.get_mut(&hold)?.iter_mut().find(|o| o.id == op)
    }

    fn sent(&mut self, hold: HoldId, op: OpId) {
        let floor = self.answered;
        let spare = &mut self.spare;
        let ops = self.ops.entry(hold).or_insert_with(|| spare.pop().unwrap_or_default());
        ops.push(Op { id: op, floor, decided: None, undone: None, digest: 0 });
    }

    /// Something that should not be: told once for each of the first.
    fn wrong(&mut self, seq: u64, why: impl FnOnce() -> String) {
        if self.found.witness.len() < LISTED {
            self.found.witness.push(seq);
            self.found.reasons.push(why());
        }
    }

    fn decided(&mut self, run: &Run, entry: &Entry) {
        let Event::Admission { number, key, kind, hold, op, token, repeat, arms } = &entry.event else { return };
        let (number, seq) = (*number, entry.seq);
        let id = hold.zip(*op);
        if *repeat {
            let digest = digest(arms);
            let former = id.and_then(|(hold, op)| self.op(hold, op)).map(|op| (op.decided, op.digest));
            if former.is_some_and(|former| former != (Some(number), digest)) {
                self.found.wrong_repeats += 1;
                self.wrong(seq, || format!("#{number} was given again, and is not what had been answered"));
            }
            return;
        }
        if number <= self.last {
            self.found.misordered += 1;
            let last = self.last;
            self.wrong(seq, || format!("#{number} was decided after #{last}"));
        }
        self.last = self.last.max(number);
        let known = id.and_then(|(hold, op)| self.op(hold, op));
        let former = known.map(|op| {
            let was = (op.decided, op.floor);
            (op.decided, op.digest) = (Some(number), digest(arms));
            was
        });
        if let Some((Some(first), _)) = former {
            self.found.applied_twice += 1;
            self.wrong(seq, || format!("#{number} is the operation that had been decided as #{first}"));
        }
        if let Some((_, floor)) = former
            && number <= floor
        {
            self.found.misordered += 1;
            self.wrong(seq, || format!("#{number} was sent when #{floor} had been answered"));
        }
        if let Some(key) = run.key_of(key) {
            self.tokens(seq, key, *kind, *token, arms);
        }
    }

    fn tokens(&mut self, seq: u64, key: usize, kind: RequestKind, token: Option<Token>, arms: &[ArmDecision]) {
        if self.keys.len() <= key {
            self.keys.resize(key + 1, Default::default());
        }
        for decision in arms {
            let Some(i) = FENCED.iter().position(|arm| *arm == decision.arm) else { continue };
            let known = &mut self.keys[key][i];
            let forgotten =
                known.known.filter(|largest| decision.seen.is_none_or(|seen| rules::is_smaller(seen, *largest)));
            // What it has forgotten is counted once.
            known.known = if forgotten.is_some() { decision.seen } else { known.known.max(decision.seen) };
            match kind {
                RequestKind::Write if decision.admitted => known.known = known.known.max(token),
                RequestKind::Read if decision.arm == Arm::Reads => known.by_reads = known.by_reads.max(token),
                _ => {}
            }
            if let Some(largest) = forgotten {
                self.found.tokens_forgotten += 1;
                let (arm, seen) = (decision.arm, decision.seen);
                self.wrong(seq, || {
                    let seen = seen.map_or_else(|| "none".into(), |seen| seen.to_string());
                    format!("the highest token of {arm} was {largest} and went back to {seen}")
                });
            }
        }
    }
}

/// The decisions in short: equal ones are equal in it, others hardly ever.
fn digest(arms: &[ArmDecision]) -> u64 {
    let mix = |sum: u64, part: u64| (sum.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
    arms.iter().fold(arms.len() as u64, |sum, d| {
        let optional = |n: Option<u64>| n.map_or(0, |n| n.wrapping_add(1));
        let parts =
            [d.arm as u64, u64::from(d.admitted), optional(d.seen.map(|t| t.0)), optional(d.base), d.version, d.value];
        parts.into_iter().fold(sum, mix)
    })
}

impl Judge for Resource {
    fn see(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Read { hold, op } | Event::Write { hold, op } => self.sent(*hold, *op),
            Event::ReadOk { hold, op, number } | Event::WriteOk { hold, op, number } => {
                self.answers.push(Answer { hold: *hold, op: *op, number: *number, seq: entry.seq });
            }
            Event::Admission { .. } => {
                self.found.admissions += 1;
                self.decided(run, entry);
            }
            Event::Recovered { .. } => {
                // A new store is opened as well.
                self.found.restarts += u64::from(run.process(entry.process).name.as_str() != "resource");
                for tokens in self.keys.iter_mut().flatten() {
                    tokens.known = tokens.known.max(tokens.by_reads);
                }
            }
            _ => {}
        }
    }

    fn see_undone(&mut self, _run: &Run, entry: &Entry) {
        let Event::Admission { number, hold, op, repeat: false, .. } = &entry.event else { return };
        self.found.undone += 1;
        self.last = self.last.max(*number);
        if let Some(op) = hold.zip(*op).and_then(|(hold, op)| self.op(hold, op)) {
            op.undone = Some(*number);
        }
    }

    fn settle(&mut self, _run: &Run) {
        let mut answers = std::mem::take(&mut self.answers);
        for Answer { hold, op, number, seq } in answers.drain(..) {
            self.answered = self.answered.max(number);
            let Some((decided, undone)) = self.op(hold, op).map(|op| (op.decided, op.undone)) else { continue };
            if undone == Some(number) {
                self.found.acknowledged_lost += 1;
                self.wrong(seq, || format!("#{number} had been answered, and was gone after the restart"));
            } else if decided.is_some_and(|decided| decided != number) {
                self.found.wrong_answers += 1;
                self.wrong(seq, || {
                    format!("operation {op} of hold {hold} was answered as #{number}, and is another in the log")
                });
            }
        }
        self.answers = answers;
    }

    fn closed(&mut self, _run: &Run, attempt: &Attempt) {
        if let Some(mut ops) = self.ops.remove(&attempt.id) {
            ops.clear();
            self.spare.push(ops);
        }
    }

    fn verdicts(self: Box<Self>, _run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(String, Property)> {
        let mut found = self.found;
        let wrong = [
            found.misordered,
            found.acknowledged_lost,
            found.wrong_answers,
            found.applied_twice,
            found.wrong_repeats,
            found.tokens_forgotten,
        ];
        found.verdict = Verdict::judged(wrong.iter().any(|n| *n > 0), !ending.is_whole);
        vec![("resource".into(), Property::Resource(found))]
    }
}

#[cfg(test)]
mod tests {
    use history::Fault;

    use super::*;
    use crate::scene::{Scene, count, verdict};

    fn judged(scene: &Scene) -> ResourceVerdict {
        match scene.verdicts().properties.get("resource") {
            Some(Property::Resource(found)) => {
                assert_eq!(found.verdict == Verdict::Violated, !found.witness.is_empty());
                found.clone()
            }
            other => panic!("{other:?}"),
        }
    }

    fn ok(hold: u64, op: u32, number: u64) -> Event {
        Event::WriteOk { hold: HoldId(hold), op: OpId(op), number }
    }

    /// Hold 1 reads, writes, and is answered; so is hold 2.
    fn quiet() -> Scene {
        let mut s = Scene::new();
        s.acquire(1, 1, 0, 10, 41).read(1, 1, 11, 12).event("worker-1", 13, ok(1, 1, 1));
        s.write(1, 2, 14, 15).event("worker-1", 16, ok(1, 2, 2)).release(1, 20);
        s.acquire(2, 2, 30, 40, 42).read(2, 1, 41, 42).event("worker-2", 43, ok(2, 1, 3));
        s
    }

    /// The resource is killed at 100; what it had decided beyond `durable` is undone.
    fn restarted(s: &mut Scene, durable: u64) -> &mut Scene {
        let fault = Fault::Kill { back_after: std::time::Duration::from_secs(1) };
        s.plan_fault(1, fault, "resource").kill(1, "resource", 100);
        s.event("resource#2", 1_301, Event::Recovered { durable })
    }

    #[test]
    fn a_resource_that_decides_in_order_and_answers_so_is_upheld() {
        let found = judged(quiet().arrives_again(2, 1, 50).release(2, 60));
        assert_eq!((found.verdict, found.admissions, found.restarts), (Verdict::Upheld, 4, 0));
    }

    #[test]
    fn an_order_that_contradicts_real_time_is_found() {
        // The write of hold 2 is sent after that of hold 1 was answered, and decided before it, by the numbers.
        for (answered, expected) in [(49, 1), (50, 0), (51, 0)] {
            let mut s = Scene::new();
            s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 30, 40, 42).write(1, 1, 41, 42).write(2, 1, 50, 52);
            s.event("worker-1", answered, ok(1, 1, 1)).renumber(&[(1, 2), (2, 1)]);
            let found = judged(&s);
            assert!(found.misordered >= expected, "answered at {answered}: {found:?}");
            // That the log itself goes back is one of them in any case.
            assert_eq!(found.misordered, 1 + expected, "answered at {answered}");
        }
    }

    #[test]
    fn an_answer_that_the_log_does_not_have_is_found() {
        let found = judged(quiet().write(2, 2, 44, 45).event("worker-2", 46, ok(2, 2, 7)));
        assert_eq!((found.wrong_answers, found.verdict), (1, Verdict::Violated));
    }

    #[test]
    fn an_answer_may_have_the_stamp_of_its_decision() {
        let found = judged(quiet().write(2, 2, 44, 45).event("worker-2", 45, ok(2, 2, 4)));
        assert_eq!(found.verdict, Verdict::Upheld);
    }

    #[test]
    fn an_operation_that_is_decided_twice_is_found() {
        let mut s = quiet();
        s.write(2, 2, 44, 45).decided_again(2, 2, 50);
        assert_eq!(judged(&s).applied_twice, 1);
    }

    #[test]
    fn a_repeat_that_is_not_the_former_answer_is_found() {
        let mut s = quiet();
        s.write(2, 2, 44, 45).arrives_again(2, 2, 50);
        assert_eq!(judged(&s).wrong_repeats, 0);
        s.bend_repeats(|_, arms| arms[0].value += 1);
        assert_eq!(judged(&s).wrong_repeats, 1);
    }

    #[test]
    fn a_token_that_was_registered_is_never_forgotten() {
        for (number, arm, token, expected) in [
            (3, Arm::Writes, None, 1),            // what the write of hold 1 registered
            (3, Arm::Writes, Some(Token(40)), 1), // went back
            (3, Arm::Writes, Some(Token(41)), 0),
            (3, Arm::Reads, None, 1),
            (2, Arm::Reads, None, 0), // what a read registered in the same life is the fence's business
        ] {
            let mut s = quiet();
            s.bend(move |n, arms| {
                arms.iter_mut().filter(|d| n == number && d.arm == arm).for_each(|d| d.seen = token);
            });
            assert_eq!(judged(&s).tokens_forgotten, expected, "#{number} on {arm} saw {token:?}");
        }
    }

    #[test]
    fn what_was_not_on_disk_is_undone_for_everybody_and_may_be_decided_again() {
        let mut s = quiet();
        s.write(2, 2, 98, 99).event("worker-2", 1_305, Event::Resend { hold: HoldId(2), op: OpId(2) });
        restarted(&mut s, 3)
            .forget(4, 3)
            .decided_again(2, 2, 1_310)
            .event("worker-2", 1_320, ok(2, 2, 5))
            .release(2, 1_330);
        let v = s.verdicts();
        assert_eq!(v.reasons, Vec::<String>::new());
        let found = judged(&s);
        assert_eq!((found.verdict, found.undone, found.restarts), (Verdict::Upheld, 1, 1), "{found:?}");
        for arm in ["off", "writes", "reads", "cas", "claim"] {
            assert_eq!(count(&v, &format!("{arm}.data.updates")), 2, "{arm}");
            assert_eq!(count(&v, &format!("{arm}.data.lost_updates")), 0, "{arm}");
            assert_eq!(count(&v, &format!("{arm}.data.disagreements")), 0, "{arm}");
        }
        assert_eq!(verdict(&v, "writes.fence"), Verdict::Upheld);
    }

    #[test]
    fn what_was_answered_before_it_was_on_disk_is_found() {
        for (durable, expected) in [(3, 0), (2, 1), (0, 3)] {
            let mut s = quiet();
            restarted(&mut s, durable).release(2, 1_330);
            let found = judged(&s);
            assert_eq!(
                (found.acknowledged_lost, found.undone),
                (expected, 3 - durable),
                "{durable} were on disk: {found:?}"
            );
        }
    }

    #[test]
    fn a_resource_that_forgets_its_tokens_when_it_is_restarted_is_found() {
        for (seen, expected) in [(None, 2), (Some(Token(41)), 1), (Some(Token(42)), 0)] {
            let mut s = quiet();
            // The read of hold 2 had registered 42 on `reads`, the write of hold 1 had registered 41 on `writes`.
            restarted(&mut s, 3).read(2, 2, 1_300, 1_310).release(2, 1_330).bend(move |number, arms| {
                arms.iter_mut().filter(|d| number == 4 && d.arm.fences()).for_each(|d| d.seen = seen);
            });
            let found = judged(&s);
            assert_eq!(found.tokens_forgotten, expected, "{seen:?}: {:?}", found.reasons);
        }
    }

    #[test]
    fn admissions_are_held_back_until_their_fate_is_known() {
        let mut s = quiet();
        restarted(&mut s, 3).release(2, 1_330);
        let mut records = s.records();
        records.retain(|r| !matches!(r.event, Event::End | Event::Finished | Event::ProcessEnded { .. }));
        records.retain(|r| r.process.as_str() != "resource#2");
        let v = crate::check(records, history::Tail::Cut);
        assert_eq!(count(&v, "resource.admissions"), 0);
        assert_eq!(v.facts.judged_until_ms, 12.0, "the first of them");
    }
}
