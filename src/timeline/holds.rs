//! Collects holds and their acts, and forgets the ones that are too many to be drawn.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use history::{ClientId, Event, HoldId, Key, OpId, ProcessName, Record, Stamp};

use super::{
    focus::{Focus, Rank},
    model::{Act, Decision, Hold, Standing},
};

/// Holds that have ended and still wait for requests that arrive late, or are recorded late.
const RECENT: usize = 2_048;
/// The most holds that are kept because something is wrong with them, or near them. If there are more, the worst ones.
pub const WRONG: usize = 6_000;
/// The most other holds. If there are more, only the first ones are kept.
const OTHERS: usize = 4_000;
/// The number of other holds that are kept of a run that has too many.
const FIRST: usize = 500;
/// The most requests of one hold.
const ACTS: usize = 64;
/// The most holds without an attempt whose requests are kept: the resource's stream may come first.
const UNKNOWN: usize = 1_024;

/// An attempt that has not become a hold yet.
#[derive(Debug)]
struct Attempt {
    client: ClientId,
    key: Key,
    intended: Stamp,
    sent: Stamp,
}

/// A hold, and the renewal that is under way.
#[derive(Debug)]
struct Open {
    hold: Hold,
    renewing: Option<Stamp>,
    is_closed: bool,
}

/// Collects holds.
#[derive(Debug)]
pub struct Holds {
    lease: Duration,
    attempts: HashMap<HoldId, Attempt>,
    open: HashMap<HoldId, Open>,
    /// The last hold of each client: a new attempt of the client closes it.
    last: HashMap<ClientId, HoldId>,
    /// Closed holds, in the order in which they closed.
    closed: VecDeque<HoldId>,
    unknown: HashMap<HoldId, Vec<Act>>,
    kept: HashMap<HoldId, Hold>,
    /// The holds of `kept` that are wrong or near a window, the worst first.
    wrong: BTreeSet<(Rank, HoldId)>,
    /// The other holds of `kept`, in order.
    others: Vec<HoldId>,
    is_full: bool,
    /// Holds of the run.
    pub count: u64,
    /// Requests under holds of the run.
    pub acts: u64,
    /// Holds in a window, or with a wrong write, that are left out.
    pub wrong_left_out: u64,
    /// Other holds near a window, on its key, that are left out.
    pub near_left_out: u64,
    /// Holds that are left out: client and acquisition.
    pub left_out: Vec<(ClientId, Stamp)>,
}

impl Holds {
    /// Nothing yet, of a run with this lease.
    pub fn new(lease: Duration) -> Holds {
        Holds {
            lease,
            attempts: HashMap::new(),
            open: HashMap::new(),
            last: HashMap::new(),
            closed: VecDeque::new(),
            unknown: HashMap::new(),
            kept: HashMap::new(),
            wrong: BTreeSet::new(),
            others: Vec::new(),
            is_full: false,
            count: 0,
            acts: 0,
            wrong_left_out: 0,
            near_left_out: 0,
            left_out: Vec::new(),
        }
    }

    /// Adds a record. `zero` is the zero of reports, as far as it is known.
    pub fn add(&mut self, record: &Record, focus: &Focus, zero: Stamp) {
        let at = record.at;
        match &record.event {
            Event::Acquire { client, attempt, key, intended, above, .. } => {
                // The client goes on using a hold of the key above.
                if let Some(before) = self.last.remove(client).filter(|before| Some(*before) != *above) {
                    self.close(before, focus, zero);
                }
                let begun = Attempt { client: *client, key: key.clone(), intended: *intended, sent: at };
                self.attempts.insert(*attempt, begun);
            }
            Event::AcquireFailed { attempt, .. } => drop(self.attempts.remove(attempt)),
            Event::Acquired { attempt, .. } => self.acquired(*attempt, record, focus),
            Event::Renew { hold } => self.change(*hold, |open| open.renewing = Some(at)),
            Event::RenewFailed { hold, .. } => self.change(*hold, |open| open.renewing = None),
            Event::Renewed { hold, lease_ns, .. } => self.change(*hold, |open| {
                let Some(sent) = open.renewing.take() else { return };
                // The rules are the checker's: a renewal counts from its send stamp, if it was answered in time.
                if checker::is_renewed_in_time(at, open.hold.promise_end) {
                    let end = checker::promise_end(sent, Duration::from_nanos(*lease_ns));
                    open.hold.promise_end = open.hold.promise_end.max(end);
                    open.hold.renewed += 1;
                }
            }),
            Event::LossNoticed { hold } => self.change(*hold, |open| open.hold.lost = open.hold.lost.or(Some(at))),
            Event::Release { hold } => self.change(*hold, |open| open.hold.release = open.hold.release.or(Some(at))),
            Event::Released { hold, removed, .. } => {
                self.change(*hold, |open| open.hold.released = Some((at, *removed)));
                self.close(*hold, focus, zero);
            }
            Event::ReleaseFailed { hold, .. } => self.close(*hold, focus, zero),
            Event::GaveUp { hold } => {
                self.change(*hold, |open| open.hold.gave_up = open.hold.gave_up.or(Some(at)));
                self.close(*hold, focus, zero);
            }
            Event::Admission { hold: Some(hold), op, repeat: false, .. } => self.act(*hold, *op, record, focus),
            _ => {}
        }
    }

    fn change(&mut self, id: HoldId, change: impl FnOnce(&mut Open)) {
        if let Some(open) = self.open.get_mut(&id) {
            change(open);
        }
    }

    fn acquired(&mut self, id: HoldId, record: &Record, focus: &Focus) {
        let Event::Acquired { token, lease_ns, promised_from, valid_ns, .. } = &record.event else { return };
        let Some(Attempt { client, key, intended, sent }) = self.attempts.remove(&id) else { return };
        let lease = Duration::from_nanos(*lease_ns);
        let acts = self.unknown.remove(&id).unwrap_or_default();
        let process: ProcessName = record.process.clone();
        let hold = Hold {
            id,
            client,
            process,
            key,
            intended,
            sent,
            acquired: record.at,
            seq: record.seq,
            token: *token,
            lease,
            promise_end: checker::promise_end(promised_from.unwrap_or(sent), lease),
            believed_until: record.at.plus(Duration::from_nanos(*valid_ns)),
            renewed: 0,
            release: None,
            released: None,
            lost: None,
            gave_up: None,
            killed: None,
            is_wrong: focus.has(id) || acts.iter().any(is_wrong),
            acts,
        };
        self.count += 1;
        self.last.insert(client, id);
        self.open.insert(id, Open { hold, renewing: None, is_closed: false });
    }

    fn act(&mut self, id: HoldId, op: Option<OpId>, record: &Record, focus: &Focus) {
        let Event::Admission { kind, token, arms, .. } = &record.event else { return };
        self.acts += 1;
        let decision = |d: &history::ArmDecision| {
            let standing = if d.admitted { focus.standing(record.seq, d.arm) } else { Standing::Current };
            Decision { arm: d.arm, admitted: d.admitted, seen: d.seen, standing }
        };
        let decisions = arms.iter().map(decision).collect();
        let act = Act { seq: record.seq, at: record.at, kind: *kind, op, token: *token, decisions };
        let kept = self.open.get_mut(&id).map(|open| &mut open.hold);
        match kept.or_else(|| self.kept.get_mut(&id)) {
            Some(hold) => {
                hold.is_wrong |= is_wrong(&act);
                if hold.acts.len() < ACTS || is_wrong(&act) {
                    hold.acts.push(act);
                }
            }
            None if self.unknown.len() < UNKNOWN || self.unknown.contains_key(&id) => {
                let acts = self.unknown.entry(id).or_default();
                if acts.len() < ACTS || is_wrong(&act) {
                    acts.push(act);
                }
            }
            None => self.wrong_left_out += u64::from(is_wrong(&act)),
        }
    }

    fn close(&mut self, id: HoldId, focus: &Focus, zero: Stamp) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if open.is_closed {
            return;
        }
        open.is_closed = true;
        self.closed.push_back(id);
        if self.closed.len() > RECENT
            && let Some(oldest) = self.closed.pop_front()
        {
            self.decide(oldest, focus, zero);
        }
    }

    fn decide(&mut self, id: HoldId, focus: &Focus, zero: Stamp) {
        let Some(Open { hold, .. }) = self.open.remove(&id) else { return };
        let ms = |at: Stamp| (at.0 as f64 - zero.0 as f64) / 1e6;
        let span = (ms(hold.sent), ms(hold.used_until().max(hold.entitled_until())));
        let mut rank = focus.rank(id, &hold.key, span, self.lease);
        if hold.is_wrong {
            rank = rank.min(Rank::Wrong);
        }
        if rank < Rank::Ordinary {
            self.wrong.insert((rank, id));
            self.kept.insert(id, hold);
            if self.wrong.len() > WRONG
                && let Some((rank, id)) = self.wrong.pop_last()
            {
                match rank {
                    Rank::Near(_) => self.near_left_out += 1,
                    _ => self.wrong_left_out += 1,
                }
                self.leave_out(id);
            }
        } else if self.is_full {
            self.left_out.push((hold.client, hold.acquired));
        } else {
            self.others.push(id);
            self.kept.insert(id, hold);
            if self.others.len() > OTHERS {
                self.is_full = true;
                self.others.split_off(FIRST).into_iter().for_each(|id| self.leave_out(id));
            }
        }
    }

    fn leave_out(&mut self, id: HoldId) {
        if let Some(hold) = self.kept.remove(&id) {
            self.left_out.push((hold.client, hold.acquired));
        }
    }

    /// Decides on the holds that are still open, and returns all that are kept, by the time of their acquisition.
    pub fn finish(&mut self, focus: &Focus, zero: Stamp) -> Vec<Hold> {
        let mut rest: Vec<HoldId> = self.open.keys().copied().collect();
        rest.sort_unstable();
        rest.into_iter().for_each(|id| self.decide(id, focus, zero));
        // The requests of holds that were forgotten before: their holds are among those that are left out.
        self.wrong_left_out += self.unknown.values().filter(|acts| acts.iter().any(is_wrong)).count() as u64;
        let mut holds: Vec<Hold> = self.kept.drain().map(|(_, hold)| hold).collect();
        holds.sort_by_key(|hold| (hold.acquired, hold.id));
        holds
    }
}

fn is_wrong(act: &Act) -> bool {
    act.decisions.iter().any(|decision| decision.standing != Standing::Current)
}
