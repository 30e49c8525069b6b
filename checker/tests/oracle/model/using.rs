//! The actions of a client of the model under its hold: it renews, reads, works, writes and releases.

use history::{Arm, ArmReadAnswer, ArmWriteAnswer, Event, FailureReason, HoldId, Mode, OpId, Outcome, Point, Token};
use rand::Rng;

use super::{
    arms::{Access, Decided},
    client::{Attempt, Client, Next, Round, TIMEOUT, What},
    knobs::{ArmBug, Spot},
    lock::{Ask, DRIFT, LEASE},
    truth::Delays,
    world::{Happens, RESOURCE, Sent, UNIT_NS, World},
};

impl World {
    /// Does something within an attempt: the client's last one, or the one whose hold it has released last.
    pub(super) fn under(&mut self, client: usize, attempt: u64, act: impl FnOnce(&mut World)) {
        let is_it = |a: &Option<Attempt>| a.as_ref().is_some_and(|a| a.id == attempt);
        let swap = |c: &mut Client| std::mem::swap(&mut c.attempt, &mut c.former);
        if is_it(&self.clients[client].attempt) {
            act(self);
        } else if is_it(&self.clients[client].former) {
            swap(&mut self.clients[client]);
            act(self);
            swap(&mut self.clients[client]);
        }
    }

    pub(super) fn renew(&mut self, client: usize, hold: u64) {
        let live = |a: &&Attempt| a.id == hold && !a.over && !a.lost && a.renewal.is_none();
        if self.clients[client].attempt.as_ref().filter(live).is_none() {
            return;
        }
        self.say(client, Event::Renew { hold: HoldId(hold) });
        let round = self.ask(client, Ask::Extend);
        self.attempt(client).renewal = Some(round);
    }

    pub(super) fn renewed(&mut self, client: usize, r: &Round, good: bool, timeout: bool, valid: bool) {
        let a = self.attempt(client);
        let id = a.id;
        let hold = HoldId(id);
        let valid = valid && (self.k.revives || self.now < self.attempt(client).deadline);
        let answers = self.answers(r, good && !valid);
        if good && valid {
            let from = if self.k.counts_from_answer { self.now } else { r.sent };
            let deadline = from + LEASE - DRIFT;
            let a = self.attempt(client);
            a.deadline = a.deadline.max(deadline);
            self.say(client, Event::Renewed { hold, lease_ns: LEASE * UNIT_NS, answers });
            let now = self.now;
            if let Some(h) = self.truth.holds.get_mut(&id) {
                h.renewals.push((r.sent, now));
            }
        } else {
            let (outcome, why) = match (good, timeout) {
                (true, _) => (Outcome::Failed, FailureReason::Validity),
                (false, true) => (Outcome::Indeterminate, FailureReason::Error),
                (false, false) => (Outcome::Failed, FailureReason::Lost),
            };
            self.say(client, Event::RenewFailed { hold, outcome, why, answers });
            if why == FailureReason::Lost && !self.k.ignores_loss {
                self.say(client, Event::LossNoticed { hold });
                let now = self.now;
                self.truth.over(id, now);
                self.attempt(client).lost = true;
                return;
            }
        }
        if let Some(every) = self.k.renew {
            let now = self.now;
            let a = self.attempt(client);
            a.due = (a.due + every).max(now);
            let after = a.due - now;
            self.later(client, after, What::RenewDue { hold: id });
        }
    }

    pub(super) fn at_point(&mut self, client: usize, point: Point, next: Next) {
        match self.k.point {
            Some((here, wait)) if here == point && client == 0 && !self.clients[0].pointed => {
                self.clients[0].pointed = true;
                let (who, hold) = (self.who(client), HoldId(self.attempt(client).id));
                self.say(client, Event::AtPoint { client: who, hold, point });
                let released = self.rng.random_bool(0.8);
                if released {
                    self.release_point(client, point, wait);
                }
                let extra = self.dither();
                let (process, id) = (self.process_of(client), hold.0);
                // If no controller releases the client, the checker takes the whole wait as planned.
                let (from, length) = if released { (wait, extra) } else { (0, wait + extra + 1) };
                self.attempt(client).planned += if released { wait } else { wait + extra };
                self.blur(process, id, from, length);
                self.later(client, wait + extra, What::LeavesPoint { point, next, released });
            }
            _ => self.soon(client, What::Go(next)),
        }
    }

    pub(super) fn go(&mut self, client: usize, next: Next) {
        let (id, over, deadline) = match &self.clients[client].attempt {
            Some(a) => (a.id, a.over, a.deadline),
            None => return,
        };
        if over {
            return;
        }
        let hold = HoldId(id);
        match next {
            Next::Read => self.access(client, false),
            Next::Work => {
                let units = self.between(self.k.work);
                self.attempt(client).planned += units;
                self.say(client, Event::Work { hold, planned_ns: units * UNIT_NS });
                let extra = self.dither();
                self.blur(self.process_of(client), id, units, extra);
                self.later(client, units + extra, What::Worked);
                self.spot(client, Spot::Working);
            }
            Next::Decide => {
                if !self.k.checking {
                    return self.at_point(client, Point::BeforeWrite, Next::Write);
                }
                let lax = if self.k.lax_check { LEASE } else { 0 };
                let passed = self.now < deadline + lax;
                self.say(client, Event::Check { hold, passed });
                if passed {
                    self.truth.checked(id, self.now);
                    self.at_point(client, Point::AfterCheck, Next::Write);
                } else {
                    let now = self.now;
                    self.say(client, Event::LossNoticed { hold });
                    self.truth.over(id, now);
                    self.release(client);
                }
            }
            Next::Write => {
                self.access(client, true);
                if self.chance(self.k.hurried) {
                    self.release(client);
                }
            }
            Next::Leave => self.release(client),
        }
    }

    /// Sends a request to the resource: the read at the beginning, or the `last` one, which writes unless the mode is
    /// that of a reader or an intention.
    fn access(&mut self, client: usize, last: bool) {
        let id = self.attempt(client).id;
        let write = last && matches!(self.k.mode_of(id), Mode::ReadIntentWrite | Mode::Write);
        let late = last && self.chance(self.k.late_write);
        let out = if late { self.between(self.k.late_by) } else { self.delay() };
        let (back, lost) = (self.delay(), self.chance(self.k.lost_answer));
        let duplicate = self.chance(self.k.duplicate);
        let epoch = self.clients[client].epoch;
        let a = self.attempt(client);
        a.op += 1;
        a.writes += u32::from(last);
        a.waiting = Some(a.op);
        a.writing = write;
        let op = a.op;
        let access = Access { key: a.key, write, hold: Some(id), op, token: a.token, base: a.base.clone() };
        let (delays, planned) = (a.delays.clone(), a.planned);
        let after_next = self.clients[client].former.as_ref().is_some_and(|other| other.id > id);
        let sent = Sent { client, epoch, access, at: self.now, after_next, delays, planned, back, lost };
        let (hold, number) = (HoldId(id), OpId(op.into()));
        self.say(client, if write { Event::Write { hold, op: number } } else { Event::Read { hold, op: number } });
        if duplicate {
            let after = out + self.rng.random_range(0..=3);
            // Whichever copy the resource takes up first when it runs again is the act.
            self.blur(RESOURCE, id, out, after - out);
            let again = Sent { lost: true, ..sent.clone() };
            self.push(after, Happens::Resource(again));
        }
        self.push(out, Happens::Resource(sent));
        for process in [self.process_of(client), RESOURCE] {
            self.blur(process, id, 0, out);
        }
        self.later(client, TIMEOUT, What::Unanswered { hold: id, op });
        self.spot(client, if last { Spot::WriteSent } else { Spot::ReadSent });
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn answered(
        &mut self,
        client: usize,
        due: u64,
        hold: u64,
        op: u32,
        number: u64,
        decided: Vec<Decided>,
        delays: Delays,
    ) {
        let process = self.process_of(client);
        let waits = |a: &&mut Attempt| a.id == hold && a.waiting == Some(op);
        let Some(a) = self.clients[client].attempt.as_mut().filter(waits) else { return };
        a.waiting = None;
        a.base = decided.iter().map(|d| (d.version, d.value)).collect();
        let (writing, writes, token, over) = (a.writing, a.writes, a.token, a.over);
        let mut delays = delays;
        self.charge(process, due, &mut delays);
        self.attempt(client).delays = delays;
        let (hold, op) = (HoldId(hold), OpId(op.into()));
        if !writing {
            let arms = Some(self.read_answers(&decided, token));
            self.say(client, Event::ReadOk { hold, op, number, arms });
            if over {
                return;
            }
            if writes == 0 {
                return self.at_point(client, Point::AfterRead, Next::Work);
            }
            return self.used(client, writes);
        }
        let written = |(&arm, d): (&_, &Decided)| ArmWriteAnswer { arm, admitted: d.admitted, seen: d.seen.map(Token) };
        let arms = Some(self.k.arms.iter().zip(&decided).map(written).collect());
        self.say(client, Event::WriteOk { hold, op, number, arms });
        if !over {
            self.used(client, writes);
        }
    }

    /// The last request was answered: works on, or leaves.
    fn used(&mut self, client: usize, writes: u32) {
        if writes == 1 && self.chance(self.k.two_writes) {
            self.soon(client, What::Go(Next::Work));
        } else {
            self.at_point(client, Point::BeforeRelease, Next::Leave);
        }
    }

    /// The arms' answer to a read: the state after it.
    fn read_answers(&self, decided: &[Decided], token: Option<u64>) -> Vec<ArmReadAnswer> {
        let read = |(&arm, d): (&Arm, &Decided)| {
            let registers = arm == Arm::Reads && !self.k.arm_bugs.contains(&(arm, ArmBug::Forgets));
            let own = token.filter(|_| registers);
            ArmReadAnswer { arm, version: d.version, seen: d.seen.max(own).map(Token) }
        };
        self.k.arms.iter().zip(decided).map(read).collect()
    }

    pub(super) fn unanswered(&mut self, client: usize, hold: u64, op: u32, outcome: Outcome) {
        let waits = |a: &&mut Attempt| a.id == hold && a.waiting == Some(op);
        let Some(a) = self.clients[client].attempt.as_mut().filter(waits) else { return };
        a.waiting = None;
        let over = a.over;
        let event = Event::AccessFailed {
            hold: HoldId(hold),
            op: OpId(op.into()),
            outcome,
            detail: "no answer, or none that helps".into(),
        };
        self.say(client, event);
        if over {
            return;
        }
        if outcome == Outcome::Failed || self.chance(self.k.releases_anyway) {
            self.release(client)
        } else {
            self.give_up(client)
        }
    }

    fn give_up(&mut self, client: usize) {
        let id = self.attempt(client).id;
        // Of two holds that it has used up, the checker knows the last.
        self.clients[client].former = None;
        self.attempt(client).over = true;
        // The watchdog ends with the work, so the record does not show the end of a renewal that is under way.
        self.attempt(client).renewal = None;
        // The hold is not over: its write may be on the way, and relies on the promise.
        self.say(client, Event::GaveUp { hold: HoldId(id) });
        self.leave(client);
    }

    fn release(&mut self, client: usize) {
        let (id, now) = (self.attempt(client).id, self.now);
        self.clients[client].former = None;
        let a = self.attempt(client);
        (a.over, a.released, a.waiting) = (true, true, None);
        // The watchdog ends with the work, so the record does not show the end of a renewal that is under way.
        self.attempt(client).renewal = None;
        self.say(client, Event::Release { hold: HoldId(id) });
        let delays = self.attempt(client).delays.clone();
        self.truth.used(id, now, &delays);
        let round = self.ask(client, Ask::Release);
        self.attempt(client).main = Some(round);
        if self.chance(self.k.after_release) {
            for _ in 0..self.rng.random_range(1..=3) {
                let after = self.rng.random_range(0..=24);
                self.later(client, after, What::AfterRelease { hold: id });
            }
        }
    }

    /// Reads, writes or releases once more under a hold that has been released.
    pub(super) fn uses_after_release(&mut self, client: usize) {
        let hold = HoldId(self.attempt(client).id);
        match self.rng.random_range(0..4) {
            0 => {
                self.say(client, Event::Release { hold });
                let round = self.ask(client, Ask::Release);
                self.attempt(client).main = Some(round);
            }
            kind => self.access(client, kind > 1),
        }
    }
}
