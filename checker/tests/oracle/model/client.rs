//! A client of the model: acquires, reads, works, writes, releases, and renews beside it.

use history::{ClientId, Event, FailureReason, HoldId, Key, NodeAnswer, NodeName, Outcome, Point, Token};

use super::{
    arms::Decided,
    knobs::{Places, Spot, Tokens},
    lock::{Ask, DRIFT, LEASE, Said},
    truth::{Delays, TrueHold},
    world::{Asked, Happens, UNIT_NS, World, stamp},
};
use rand::Rng;

/// Patience with an answer.
pub(super) const TIMEOUT: u64 = 16;

/// The next step of a client that nothing stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Read,
    Work,
    Decide,
    Write,
    Leave,
}

#[derive(Debug, Clone)]
pub enum What {
    Begin,
    Go(Next),
    LeavesPoint {
        point: Point,
        next: Next,
        released: bool,
    },
    Worked,
    Said {
        attempt: u64,
        ask: Ask,
        round: u32,
        node: usize,
        said: Said,
    },
    Waited {
        attempt: u64,
        round: u32,
    },
    Answered {
        hold: u64,
        op: u32,
        number: u64,
        decided: Vec<Decided>,
        delays: Delays,
    },
    Unanswered {
        hold: u64,
        op: u32,
    },
    /// Turned away before it was decided.
    TurnedAway {
        hold: u64,
        op: u32,
    },
    RenewDue {
        hold: u64,
    },
    /// Uses a hold that it has released.
    AfterRelease {
        hold: u64,
    },
}

impl What {
    pub fn is_timer(&self) -> bool {
        matches!(self, What::Waited { .. } | What::Unanswered { .. } | What::RenewDue { .. })
    }
}

/// Requests to all nodes that belong together.
#[derive(Debug, Clone)]
pub struct Round {
    pub(super) id: u32,
    pub(super) ask: Ask,
    pub(super) sent: u64,
    pub(super) said: Vec<Option<Said>>,
}

/// One attempt, and the hold that comes of it.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub id: u64,
    pub key: usize,
    pub claimed: bool,
    pub(super) sent: u64,
    /// Belief: until when it is ours.
    pub(super) deadline: u64,
    pub(super) token: Option<u64>,
    pub(super) base: Vec<(u64, u64)>,
    pub(super) op: u32,
    pub(super) waiting: Option<u32>,
    /// The request that it waits for is a write.
    pub(super) writing: bool,
    pub(super) writes: u32,
    pub(super) over: bool,
    pub(super) released: bool,
    /// Its client has gone on after the release.
    pub(super) left: bool,
    pub(super) lost: bool,
    /// The next renewal.
    pub(super) due: u64,
    pub(super) delays: Delays,
    /// How long it was to wait under the hold, until now.
    pub(super) planned: u64,
    pub(super) main: Option<Round>,
    pub(super) renewal: Option<Round>,
}

#[derive(Debug, Clone)]
pub struct Client {
    id: usize,
    pub worker: usize,
    pub epoch: u32,
    pub section: usize,
    /// Its worker is about to be killed.
    pub doomed: Option<u64>,
    pub tries: u32,
    intended: u64,
    key: usize,
    tokens: u64,
    pub attempt: Option<Attempt>,
    /// The attempt whose hold it has released last, if it has made another attempt since.
    pub(super) former: Option<Attempt>,
    rounds: u32,
    pub(super) pointed: bool,
}

impl Client {
    pub fn new(id: usize, worker: usize) -> Client {
        Client {
            id,
            worker,
            epoch: 0,
            section: 0,
            doomed: None,
            tries: 0,
            intended: 0,
            key: 0,
            tokens: 0,
            attempt: None,
            former: None,
            rounds: 0,
            pointed: false,
        }
    }
}

impl World {
    pub(super) fn say(&mut self, client: usize, event: Event) {
        let p = self.process_of(client);
        self.emit(p, event);
    }

    pub(super) fn soon(&mut self, client: usize, what: What) {
        let (after, epoch) = (self.dither(), self.clients[client].epoch);
        let (process, hold) = (self.process_of(client), self.clients[client].attempt.as_ref().map_or(0, |a| a.id));
        self.blur(process, hold, 0, after);
        self.push(after, Happens::Client { client, epoch, what });
    }

    pub(super) fn later(&mut self, client: usize, after: u64, what: What) {
        let epoch = self.clients[client].epoch;
        self.push(after, Happens::Client { client, epoch, what });
    }

    /// One step of a client that was due at `due`.
    pub fn step(&mut self, client: usize, due: u64, what: What) {
        let process = self.process_of(client);
        // Only what lies on the client's own path delays its acts.
        let on_path = match &what {
            What::Go(_) | What::LeavesPoint { .. } | What::Worked => true,
            What::Said { attempt, ask, round, .. } => self.clients[client].attempt.as_ref().is_some_and(|a| {
                a.id == *attempt && *ask == Ask::Acquire && a.main.as_ref().is_some_and(|m| m.id == *round)
            }),
            _ => false,
        };
        if on_path && let Some(mut a) = self.clients[client].attempt.take() {
            self.charge(process, due, &mut a.delays);
            self.clients[client].attempt = Some(a);
        }
        match what {
            What::Begin => self.begin(client),
            What::Go(next) => self.go(client, next),
            What::LeavesPoint { point, next, released } => {
                if let Some(a) = &self.clients[client].attempt {
                    let (who, hold) = (self.who(client), HoldId(a.id));
                    self.say(client, Event::LeftPoint { client: who, hold, point, released });
                    self.soon(client, What::Go(next));
                }
            }
            What::Worked => {
                self.soon(client, What::Go(Next::Decide));
            }
            What::Said { attempt, round, node, said, .. } => {
                self.under(client, attempt, |world| world.said(client, attempt, round, node, said))
            }
            What::Waited { attempt, round } => {
                self.under(client, attempt, |world| world.waited(client, attempt, round))
            }
            What::Answered { hold, op, number, decided, delays } => {
                self.under(client, hold, |world| world.answered(client, due, hold, op, number, decided, delays))
            }
            What::Unanswered { hold, op } => {
                self.under(client, hold, |world| world.unanswered(client, hold, op, Outcome::Indeterminate))
            }
            What::TurnedAway { hold, op } => {
                self.under(client, hold, |world| world.unanswered(client, hold, op, Outcome::Failed))
            }
            What::RenewDue { hold } => self.renew(client, hold),
            What::AfterRelease { hold } => self.under(client, hold, |world| world.uses_after_release(client)),
        }
    }

    pub(super) fn who(&self, client: usize) -> ClientId {
        ClientId(u32::try_from(self.clients[client].id).unwrap())
    }

    fn begin(&mut self, client: usize) {
        if self.clients[client].section >= self.k.sections {
            return;
        }
        if self.clients[client].tries == 0 {
            self.clients[client].intended = self.now;
            self.clients[client].key = self.rng.random_range(0..self.k.keys);
        }
        self.clients[client].tries += 1;
        let (id, key, intended) = (self.new_attempt(client), self.clients[client].key, self.clients[client].intended);
        let event = Event::Acquire {
            client: self.who(client),
            attempt: HoldId(id),
            key: Key::new(format!("k{key}")),
            intended: stamp(intended),
            mode: self.k.mode_of(id),
            above: None,
        };
        self.say(client, event);
        if let Some(released) = self.clients[client].attempt.take_if(|a| a.released) {
            self.clients[client].former = Some(released);
        }
        self.clients[client].attempt = Some(Attempt {
            id,
            key,
            claimed: false,
            sent: self.now,
            deadline: 0,
            token: None,
            base: vec![(0, 0); self.k.arms.len()],
            op: 0,
            waiting: None,
            writing: false,
            writes: 0,
            over: false,
            released: false,
            left: false,
            lost: false,
            due: 0,
            delays: Delays::new(),
            planned: 0,
            main: None,
            renewal: None,
        });
        let round = self.ask(client, Ask::Acquire);
        self.attempt(client).main = Some(round);
        self.spot(client, Spot::AcquireSent);
    }

    pub(super) fn attempt(&mut self, client: usize) -> &mut Attempt {
        self.clients[client].attempt.as_mut().expect("a client acts within an attempt")
    }

    /// Sends one round to all nodes.
    pub(super) fn ask(&mut self, client: usize, ask: Ask) -> Round {
        self.clients[client].rounds += 1;
        let (round, epoch) = (self.clients[client].rounds, self.clients[client].epoch);
        let (attempt, key) = (self.attempt(client).id, self.attempt(client).key);
        let lost = self.chance(self.k.lost_answer);
        let slow = ask == Ask::Acquire && self.chance(self.k.slow_acquire);
        for node in 0..self.k.nodes {
            let out = if slow { self.rng.random_range(4..=14) } else { self.delay() };
            let back = self.delay();
            if ask == Ask::Acquire {
                self.blur(self.process_of(client), attempt, 0, out);
            }
            let asked = Asked { client, epoch, attempt, key, ask, round, back, lost };
            self.push(out, Happens::Node { node, asked });
        }
        self.later(client, TIMEOUT, What::Waited { attempt, round });
        Round { id: round, ask, sent: self.now, said: vec![None; self.k.nodes] }
    }

    fn said(&mut self, client: usize, attempt: u64, round: u32, node: usize, said: Said) {
        let Some(a) = self.clients[client].attempt.as_mut().filter(|a| a.id == attempt) else { return };
        let (majority, enough) = (self.k.nodes / 2 + 1, self.k.enough());
        for renewal in [false, true] {
            let slot = if renewal { &mut a.renewal } else { &mut a.main };
            let Some(r) = slot.as_mut().filter(|r| r.id == round) else { continue };
            r.said[node] = Some(said);
            let good = r.said.iter().flatten().filter(|s| !matches!(s, Said::Refused)).count();
            let open = r.said.iter().filter(|s| s.is_none()).count();
            let majority = if r.ask == Ask::Acquire { enough } else { majority };
            let over = match r.ask {
                Ask::Acquire | Ask::Extend => good >= majority || good + open < majority,
                Ask::Release | Ask::Undo => open == 0,
            };
            if over && let Some(r) = slot.take() {
                return self.completed(client, r, good >= majority, false);
            }
        }
    }

    fn waited(&mut self, client: usize, attempt: u64, round: u32) {
        let Some(a) = self.clients[client].attempt.as_mut().filter(|a| a.id == attempt) else { return };
        for renewal in [false, true] {
            let slot = if renewal { &mut a.renewal } else { &mut a.main };
            if slot.as_ref().is_some_and(|r| r.id == round)
                && let Some(r) = slot.take()
            {
                return self.completed(client, r, false, true);
            }
        }
    }

    pub(super) fn answers(&self, round: &Round, late: bool) -> Vec<(NodeName, NodeAnswer)> {
        let answer = |said: &Option<Said>| match said {
            Some(Said::Granted(_) | Said::Done) if late => NodeAnswer::Late,
            Some(Said::Granted(_)) => NodeAnswer::Granted,
            Some(Said::Done) => NodeAnswer::Done,
            Some(Said::Refused) => NodeAnswer::Refused,
            None => NodeAnswer::None,
        };
        round.said.iter().enumerate().map(|(i, s)| (NodeName::new(format!("redis-{}", i + 1)), answer(s))).collect()
    }

    fn completed(&mut self, client: usize, r: Round, good: bool, timeout: bool) {
        let from = if self.k.counts_from_answer { self.now } else { r.sent };
        let valid = self.now < from + LEASE - DRIFT;
        let id = self.attempt(client).id;
        let attempt = HoldId(id);
        match r.ask {
            Ask::Acquire if good && (valid || self.k.no_validity) => self.claim(client, &r),
            Ask::Acquire => {
                let some = r.said.iter().any(|s| matches!(s, Some(Said::Granted(_)) | None));
                let (outcome, why) = match (good, timeout) {
                    (true, _) => (Outcome::Failed, FailureReason::Validity),
                    (false, true) => (Outcome::Indeterminate, FailureReason::Error),
                    (false, false) => (Outcome::Failed, FailureReason::Held),
                };
                let answers = self.answers(&r, !valid);
                self.say(client, Event::AcquireFailed { attempt, outcome, why, detail: None, answers });
                if !some {
                    return self.again(client);
                }
                self.say(client, Event::Undo { attempt });
                let round = self.ask(client, Ask::Undo);
                self.attempt(client).main = Some(round);
            }
            Ask::Undo => {
                let answers = self.answers(&r, false);
                self.say(client, Event::Undone { attempt, answers });
                self.again(client);
            }
            Ask::Extend => self.renewed(client, &r, good, timeout, valid),
            Ask::Release => {
                let answers = self.answers(&r, false);
                let hold = attempt;
                self.say(
                    client,
                    if timeout {
                        Event::ReleaseFailed {
                            hold,
                            outcome: Outcome::Indeterminate,
                            why: FailureReason::Error,
                            answers,
                        }
                    } else {
                        Event::Released { hold, removed: good, answers }
                    },
                );
                if !std::mem::replace(&mut self.attempt(client).left, true) {
                    self.leave(client);
                }
            }
        }
    }

    /// Tries once more, or gives the section up.
    fn again(&mut self, client: usize) {
        if self.clients[client].tries > self.k.retries {
            return self.leave(client);
        }
        let after = self.between(self.k.retry);
        self.later(client, after, What::Begin);
    }

    pub(super) fn leave(&mut self, client: usize) {
        let c = &mut self.clients[client];
        c.section += 1;
        c.tries = 0;
        let after = self.between(self.k.gap);
        self.later(client, after, What::Begin);
    }

    /// Returns the number of the grant among the key's grants, which the node counts in the step that grants the lock.
    fn place(&self, attempt: u64, r: &Round) -> Option<u64> {
        let has_one = match self.k.places {
            Places::None => false,
            Places::Some => attempt.is_multiple_of(2),
            Places::All => true,
        };
        let counted = r.said.iter().flatten().find_map(|s| if let Said::Granted(n) = s { Some(*n) } else { None });
        counted.filter(|_| has_one)
    }

    fn token(&mut self, client: usize, r: &Round) -> Option<u64> {
        let counter =
            r.said.iter().flatten().filter_map(|s| if let Said::Granted(t) = s { Some(*t) } else { None }).max();
        let repeat = self.rng.random_bool(0.4);
        let process = self.process_of(client);
        let worker = self.worker_of(client) as u64;
        let counter = counter.unwrap_or(0);
        match self.k.tokens {
            Tokens::None => None,
            Tokens::Counter => Some(counter),
            Tokens::PerWorker => {
                let c = &mut self.clients[client];
                c.tokens += 1;
                Some(c.tokens * 2 + (worker + process as u64) % 2)
            }
            Tokens::Repeats => Some(if repeat { counter.saturating_sub(1) } else { counter }),
            Tokens::Forgotten => (!repeat).then_some(counter),
        }
    }

    fn claim(&mut self, client: usize, r: &Round) {
        let token = self.token(client, r);
        let id = self.attempt(client).id;
        let place = self.place(id, r);
        let now = self.now;
        let from = if self.k.counts_from_answer { now } else { r.sent };
        let deadline = from + LEASE - DRIFT;
        let answers = self.answers(r, false);
        let a = self.attempt(client);
        (a.token, a.deadline, a.claimed) = (token, deadline, true);
        let (id, key, sent) = (a.id, a.key, a.sent);
        let doomed = self.clients[client].doomed;
        let hold = TrueHold {
            client,
            key,
            mode: self.k.mode_of(id),
            sent,
            claimed: now,
            deadline,
            granted: r.said.iter().flatten().filter(|said| matches!(said, Said::Granted(_))).count(),
            checks: Vec::new(),
            token,
            over: doomed,
            killed: doomed.is_some(),
            used: None,
            renewals: Vec::new(),
        };
        self.truth.holds.insert(id, hold);
        self.say(
            client,
            Event::Acquired {
                attempt: HoldId(id),
                token: token.map(Token),
                lease_ns: LEASE * UNIT_NS,
                granted_after: stamp(sent),
                promised_from: None,
                place,
                valid_ns: deadline.saturating_sub(now) * UNIT_NS,
                answers,
            },
        );
        if let Some(every) = self.k.renew {
            let after = (sent + every).saturating_sub(now);
            self.attempt(client).due = (sent + every).max(now);
            self.later(client, after, What::RenewDue { hold: id });
        }
        if self.k.aims.iter().any(|a| a.spot == Spot::Ending) {
            self.push(deadline.saturating_sub(now), Happens::Ends { client });
        }
        self.spot(client, Spot::Claimed);
        self.at_point(client, Point::AfterAcquire, Next::Read);
    }
}
