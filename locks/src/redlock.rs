//! Redlock: one lock on several independent nodes, held by whoever has a majority of them.
//!
//! The algorithm is the one of the Redlock page (redis.io, "Distributed locks with Redis"): set the key on all nodes
//! at once; with a majority, and time left of the lease since the sending, the lock is held; otherwise undo on all
//! nodes, also on those that refused or never answered. What is added is a token that can be relied on.
//!
//! # Two-phase tokens
//!
//! Each node counts its grants. The largest counter of a majority, m, is not monotonic by itself: another majority may
//! share only nodes that are behind. So m is written back to all nodes, done only where this attempt still owns the
//! key *and* the counter is not larger than m, and the lock is held only with a majority of done, with the validity
//! looked at after it.
//!
//! Why it is sound, under any clocks, pauses and delays, as long as no node loses its counter: let hold H have had its
//! token m done by a majority.
//!
//! - An attempt that starts after that is granted by a node that was raised to m before, so that it counts up from at
//!   least m there: a later hold has a larger token.
//! - Two holds cannot share m. A node did it for both, and at each of the two times the attempt that it did it for owned
//!   the key; so the second of them was granted in between, and counting it took the counter past m. (Without the
//!   condition on the owner that grant may have come before both.)
//! - Without the condition on the counter a slow write-back would take a counter back, and the first point with it.

use std::{sync::Arc, time::Duration};

use crate::{
    buggy::{Flaw, WallClock},
    hold::{Failure, Hold, Key, NodeAnswer, NodeAnswers, NodeName, Outcome, Owner, Released, Renewed, Token, Why},
    ports::{Clock, Doing, Lock, Node, Round, Step, Undoing, Watch},
    round::{Asked, Decision, Until},
    validity,
};

/// Where the token of a hold comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tokens {
    /// Nowhere: holds carry none, and nodes keep no counters.
    None,
    /// The largest counter of the nodes that granted. **Not monotonic** on several nodes; on one it is the counter.
    MajorityMax,
    /// The same, written back to a majority before the hold is claimed: monotonic. See [the module](self).
    #[default]
    TwoPhase,
}

/// The lock on several independent nodes.
pub struct Redlock {
    nodes: Vec<Arc<dyn Node>>,
    names: Vec<NodeName>,
    clock: Arc<dyn Clock>,
    tokens: Tokens,
    node_timeout: Option<Duration>,
    flaw: Option<Flaw>,
}

impl Redlock {
    /// The lock on `nodes`.
    ///
    /// # Panics
    /// If there are no nodes.
    pub fn new(nodes: Vec<Arc<dyn Node>>, clock: Arc<dyn Clock>, tokens: Tokens) -> Self {
        assert!(!nodes.is_empty(), "a lock needs at least one node");
        let names = nodes.iter().map(|node| node.name().into()).collect();
        Self { nodes, names, clock, tokens, node_timeout: None, flaw: None }
    }

    /// Waits for nodes for `timeout` a round, instead of the time that follows from the lease
    /// ([`validity::node_timeout`]).
    pub fn with_node_timeout(self, timeout: Duration) -> Self {
        Self { node_timeout: Some(timeout), ..self }
    }

    /// The same with a planted bug.
    pub(crate) fn with_flaw(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    async fn ask(&self, round: Round, step: Step, watch: &dyn Watch) -> Asked {
        self.ask_nodes(&self.nodes, round, step, watch).await
    }

    async fn ask_nodes(&self, nodes: &[Arc<dyn Node>], round: Round, step: Step, watch: &dyn Watch) -> Asked {
        let Some(flaw) = self.flaw else {
            return Asked::ask(nodes, &*self.clock, watch, round, &step, validity::majority(nodes.len())).await;
        };
        let (wall, step, majority) =
            (WallClock(&*self.clock), flaw.step(round, step), flaw.majority(round, nodes.len()));
        let clock = if flaw == Flaw::WallClock { &wall } else { &*self.clock };
        Asked::ask(nodes, clock, watch, round, &step, majority).await
    }

    /// Reads `asked` until it is decided, and tells the watch. Nothing is awaited after that.
    async fn decide(&self, asked: &mut Asked, round: Round, lease: Duration, watch: &dyn Watch) -> Decision {
        let decision = asked.read(&*self.clock, self.timeout(lease), Until::Decided).await;
        let decision = self.flaw.map_or(decision, |flaw| flaw.decision(round, decision));
        if decision != Decision::TimedOut {
            watch.answered(round);
        }
        decision
    }

    fn timeout(&self, lease: Duration) -> Duration {
        self.node_timeout.unwrap_or_else(|| validity::node_timeout(lease))
    }

    /// From when on the lease of a round is counted: its sending, in the client's own clock.
    fn counted_from(&self, asked: &Asked) -> Duration {
        self.flaw.map_or(asked.sent, |flaw| flaw.counted_from(asked, &*self.clock))
    }

    /// Whether a promise that ends at `end` still stands, by the client's own clock, now that `round` is to be judged.
    fn is_before(&self, end: Duration, round: Round) -> bool {
        self.clock.now() < end || self.flaw.is_some_and(|flaw| flaw.skips_validity(round))
    }

    /// A renewal counts only if a majority extended the key, and only while the hold is still valid: who was told that
    /// a hold has lapsed is not told that it is back. It is capped by what the lease gives from its own sending, and
    /// never shortens.
    async fn extend(&self, hold: &mut Hold, lease: Duration, watch: &dyn Watch) -> Result<Renewed, Failure> {
        // Where a planted bug does not ask whether the hold has lapsed, it never does.
        let lapses = if self.flaw == Some(Flaw::RenewsExpired) { Duration::MAX } else { hold.valid_until };
        if !self.is_before(lapses, Round::Renew) {
            let answers = self.names.iter().map(|name| (name.clone(), NodeAnswer::None)).collect();
            return Err(Failure { why: Why::Validity, outcome: Outcome::Failed, answers });
        }
        let step = Step::Extend(hold.key.clone(), hold.owner.clone(), lease);
        let mut extending = self.ask(Round::Renew, step, watch).await;
        if self.decide(&mut extending, Round::Renew, lease, watch).await != Decision::Majority {
            return Err(extending.failure(&self.names, Why::Lost));
        }
        let sent = self.counted_from(&extending);
        let valid_until = validity::promise_end(sent, lease);
        if !self.is_before(valid_until.min(lapses), Round::Renew) {
            return Err(extending.refused_by_validity(&self.names));
        }
        if valid_until > hold.valid_until {
            (hold.sent, hold.lease, hold.valid_until) = (sent, lease, valid_until);
        }
        Ok(Renewed { valid_until: hold.valid_until, answers: extending.answers(&self.names) })
    }

    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let mut removing = self.ask(Round::Release, Step::Release(hold.key.clone(), hold.owner.clone()), watch).await;
        let removed = self.decide(&mut removing, Round::Release, hold.lease, watch).await == Decision::Majority;
        if removed || removing.is_refused() {
            return Ok(Released { removed, answers: removing.answers(&self.names) });
        }
        Err(removing.failure(&self.names, Why::Lost))
    }
}

/// One attempt.
struct Attempt<'a> {
    lock: &'a Redlock,
    key: &'a Key,
    owner: Owner,
    lease: Duration,
    watch: &'a dyn Watch,
}

impl Attempt<'_> {
    /// The attempt without its undo.
    async fn run(&self) -> Result<Hold, Failure> {
        let Self { lock, lease, watch, .. } = *self;
        let mut granting = lock.ask(Round::Acquire, self.acquiring(), watch).await;
        if lock.decide(&mut granting, Round::Acquire, lease, watch).await != Decision::Majority {
            return Err(granting.failure(&lock.names, Why::Held));
        }
        // The promise rests on the first round, also where a second follows: that one sets no lease.
        let sent = lock.counted_from(&granting);
        let valid_until = validity::promise_end(sent, lease);
        if !lock.is_before(valid_until, Round::Acquire) {
            return Err(granting.refused_by_validity(&lock.names));
        }
        let mut answers = granting.answers(&lock.names);
        // Answers that come from here on do not change the token.
        let token = granting.largest_token();
        if let (Tokens::TwoPhase, Some(token)) = (lock.tokens, token) {
            self.write_back(token, valid_until, &mut answers).await?;
        }
        Ok(Hold { key: self.key.clone(), owner: self.owner.clone(), token, lease, sent, valid_until, answers })
    }

    fn acquiring(&self) -> Step {
        let (key, owner, lease) = (self.key.clone(), self.owner.clone(), self.lease);
        match self.lock.tokens {
            Tokens::None => Step::AcquireUncounted(key, owner, lease),
            Tokens::MajorityMax | Tokens::TwoPhase => Step::Acquire(key, owner, lease),
        }
    }

    /// The second round of two-phase tokens. It goes to all nodes: one whose grant has not been read may do it too,
    /// which proves the grant, so that `answers` gets it.
    async fn write_back(&self, token: Token, valid_until: Duration, answers: &mut NodeAnswers) -> Result<(), Failure> {
        let Self { lock, lease, watch, .. } = *self;
        let step = Step::RaiseFence(self.key.clone(), self.owner.clone(), token);
        let mut raising = lock.ask(Round::WriteBack, step, watch).await;
        if lock.decide(&mut raising, Round::WriteBack, lease, watch).await != Decision::Majority {
            // A refusal does not say who holds the lock, only that this attempt does not get it.
            return Err(raising.failure(&lock.names, Why::NoMajority));
        }
        if !lock.is_before(valid_until, Round::WriteBack) {
            return Err(raising.refused_by_validity(&lock.names));
        }
        for ((_, granted), (_, raised)) in answers.iter_mut().zip(raising.answers(&lock.names)) {
            if raised == NodeAnswer::Done {
                *granted = NodeAnswer::Granted;
            }
        }
        Ok(())
    }

    /// Whether `failure` may have left a key. With one node its definite answer says that it did not, and an undo
    /// would only double the load of a contended lock; with several, nodes are undone whatever they said.
    fn needs_undo(&self, failure: &Failure) -> bool {
        let several = self.lock.nodes.len() > 1;
        several || failure.outcome == Outcome::Indeterminate || failure.why == Why::Validity
    }

    /// Removes what a failed attempt may have left, on all nodes: one that never answered may have set the key, or may
    /// do so when it wakes up, and then finds this behind it in its queue.
    async fn undo(&self, failure: Option<&Failure>) {
        let Self { lock, lease, watch, .. } = *self;
        watch.undoing();
        let step = Step::Release(self.key.clone(), self.owner.clone());
        let nodes = (lock.flaw.zip(failure))
            .map_or_else(|| lock.nodes.as_slice().into(), |(flaw, failure)| flaw.undoes_on(&lock.nodes, failure));
        let mut undoing = lock.ask_nodes(&nodes, Round::Undo, step, watch).await;
        if undoing.read(&*lock.clock, lock.timeout(lease), Until::Heard).await != Decision::TimedOut {
            watch.answered(Round::Undo);
        }
        watch.undone(&undoing.answers(&lock.names));
    }
}

impl Lock for Redlock {
    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Undoing<'a> {
        let attempt = Attempt { lock: self, key, owner: owner.clone(), lease, watch };
        Box::pin(async move { attempt.undo(None).await })
    }

    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Hold> {
        let attempt = Attempt { lock: self, key, owner, lease, watch };
        Box::pin(async move {
            let result = attempt.run().await;
            if let Err(failure) = &result
                && attempt.needs_undo(failure)
            {
                attempt.undo(Some(failure)).await;
            }
            result
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Renewed> {
        Box::pin(self.extend(hold, lease, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Doing<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }
}
