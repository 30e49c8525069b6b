//! Redlock: one lock on several independent nodes; a client that has a majority of them holds the lock.
//!
//! The algorithm is that of the Redlock page (redis.io, "Distributed locks with Redis"). The client sets the key on all
//! nodes at once. With a majority, and with time left of the lease since the sending, the client holds the lock.
//! Otherwise the client undoes the attempt on all nodes, including those that refused or never answered. This crate
//! adds a reliable fencing token.
//!
//! # Two-phase tokens
//!
//! Each node counts its grants. The largest counter of a majority, m, is not monotonic by itself: another majority may
//! share only nodes that are behind. So the client writes m back to all nodes. A node accepts m only if the attempt
//! still owns the key *and* the node's counter is not larger than m. The client holds the lock only if a majority
//! accepted, and if the lease is still valid after that.
//!
//! This is sound under any clocks, pauses and delays, as long as no node loses its counter. Let a majority have
//! accepted the token m of hold H.
//!
//! - A later hold, whose attempt starts after H is claimed, needs a majority too, so at least one node of its majority
//!   had accepted m before. This node counts up from at least m: the later hold has a larger token.
//! - Two holds cannot share m. One node accepted m for both, and each time the attempt owned the key. So the node
//!   granted the second attempt between the two, and that grant took the counter past m. (Without the condition on the
//!   owner, the grant could have come before both.)
//! - Without the condition on the counter, a slow write-back would lower a counter, and the first point would fail.
//!
//! # The fast path
//!
//! With the token source `two-phase-fast`, the client leaves the second round out if a majority of nodes has answered
//! the first one with m itself. Each of these nodes has set its counter to m when it granted this attempt, so no
//! counter needs to be raised. Let F be such a hold.
//!
//! - A hold whose attempt starts after F is claimed needs a majority too, so at least one node of its majority gave m
//!   to F before. This node counts up from at least m: the later hold has a larger token.
//! - No other hold has the token m. It would have a majority that gave m, or one that accepted m, and some node of it
//!   gave m to F. This node did not give m twice: its counter grows with each grant. Nor did it accept m from another
//!   attempt. Before its grant to F it did not, because that grant would have counted past m. After its grant to F it
//!   did not, because the other attempt must own the key by then: the node granted it after F, and counted past m.
//!
//! Both rules are about holds of `two-phase` and `two-phase-fast`, which may be mixed. They need an owner value of its
//! own for each attempt, and the same nodes for all clients. A client with `majority-max` does not break the order of
//! the others' tokens, but its own tokens have no order.
//!
//! The second round of `two-phase` also notices a majority that has lost its keys since the first round. The fast path
//! does not; tokens do not rely on that.
//!
//! A hold costs one round as long as the nodes whose answers are read have equal counters. An attempt that only some
//! nodes grant makes counters differ, until a write-back makes them equal.
//!
//! # Decisions
//!
//! The trait `Decisions` names the points at which the algorithm decides. Its provided methods are the algorithm.

use std::{borrow::Cow, sync::Arc, time::Duration};

use crate::{
    hold::{
        Failure, FailureReason, Hold, Key, NodeAnswer, NodeAnswers, NodeName, Outcome, Owner, Released, Renewed, Token,
    },
    ports::{Cleanup, Clock, Lock, Node, Operation, Round, Step, Watch},
    round::{RoundInFlight, RoundOutcome, Until},
    servers::{CannotBuild, Servers, TokenSource},
    validity,
};

/// The decisions of the algorithm. Each provided method is the correct decision.
pub(crate) trait Decisions: Send + Sync {
    /// The step that leaves in `round`.
    fn step(&self, _round: Round, step: Step) -> Step {
        step
    }

    /// The number of nodes, out of `nodes`, that is enough in `round`.
    fn majority(&self, _round: Round, nodes: usize) -> usize {
        validity::majority(nodes)
    }

    /// The result of `round`, which its answers decided as `outcome`.
    fn outcome(&self, _round: Round, outcome: RoundOutcome) -> RoundOutcome {
        outcome
    }

    /// Reads the clock just before a round leaves.
    fn sent_at(&self, clock: &dyn Clock) -> Duration {
        clock.now()
    }

    /// The instant from which the lease counts, by the client's clock: the sending of the round that asked for the
    /// lease.
    fn counted_from(&self, sent: Duration, _clock: &dyn Clock) -> Duration {
        sent
    }

    /// Returns whether a promise until `end` is still valid at `now`, when the client judges `round`.
    fn is_valid(&self, _round: Round, now: Duration, end: Duration) -> bool {
        now < end
    }

    /// Returns whether the client may renew at `now` a hold that is valid until `end`.
    fn may_renew(&self, now: Duration, end: Duration) -> bool {
        self.is_valid(Round::Renew, now, end)
    }

    /// The nodes to which the undo goes after `failure`: all.
    fn undone_on<'a>(&self, nodes: &'a [Arc<dyn Node>], _failure: &Failure) -> Cow<'a, [Arc<dyn Node>]> {
        nodes.into()
    }
}

/// The decisions of the correct algorithm.
struct Correct;

impl Decisions for Correct {}

/// The lock on several independent nodes. See [the module](self).
pub struct Redlock {
    nodes: Vec<Arc<dyn Node>>,
    names: Vec<NodeName>,
    clock: Arc<dyn Clock>,
    tokens: TokenSource,
    node_timeout: Option<Duration>,
    decisions: Box<dyn Decisions>,
}

/// Builds the lock over independent nodes.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    build_on_several("redlock", Redlock::TOKENS, servers, tokens, clock)
}

/// Builds the lock of this name over independent nodes.
pub(crate) fn build_on_several(
    lock: &'static str,
    makes: &'static [TokenSource],
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check(lock, makes)?;
    Ok(Arc::new(Redlock::deciding(servers.nodes(lock)?, clock, tokens, Box::new(Correct))))
}

/// Builds the lock of this name over one independent node, of which that node is the majority.
pub(crate) fn build_on_one(
    lock: &'static str,
    makes: &'static [TokenSource],
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check(lock, makes)?;
    let [node] =
        <[_; 1]>::try_from(servers.nodes(lock)?).map_err(|_| CannotBuild::Servers { lock, needs: "one node" })?;
    Ok(Arc::new(Redlock::on_one(node, clock, tokens)))
}

impl Redlock {
    /// The token sources of this lock; the first is the one to prefer.
    pub const TOKENS: &[TokenSource] =
        &[TokenSource::TwoPhase, TokenSource::TwoPhaseFast, TokenSource::MajorityMax, TokenSource::None];

    /// The lock on `nodes`.
    ///
    /// # Errors
    /// There are no nodes, or the lock has no tokens of this source.
    pub fn new(nodes: Vec<Arc<dyn Node>>, clock: Arc<dyn Clock>, tokens: TokenSource) -> Result<Self, CannotBuild> {
        tokens.check("redlock", Self::TOKENS)?;
        let nodes = Servers::Nodes(nodes).nodes("redlock")?;
        Ok(Self::deciding(nodes, clock, tokens, Box::new(Correct)))
    }

    /// The lock on one node, of which that node is the majority.
    pub(crate) fn on_one(node: Arc<dyn Node>, clock: Arc<dyn Clock>, tokens: TokenSource) -> Self {
        Self::deciding(vec![node], clock, tokens, Box::new(Correct))
    }

    /// The lock with decisions of its own.
    pub(crate) fn deciding(
        nodes: Vec<Arc<dyn Node>>,
        clock: Arc<dyn Clock>,
        tokens: TokenSource,
        decisions: Box<dyn Decisions>,
    ) -> Self {
        let names = nodes.iter().map(|node| node.name().into()).collect();
        Self { nodes, names, clock, tokens, node_timeout: None, decisions }
    }

    /// Waits in each round for `timeout`, instead of the timeout that follows from the lease
    /// ([`validity::node_timeout`]).
    pub fn with_node_timeout(self, timeout: Duration) -> Self {
        Self { node_timeout: Some(timeout), ..self }
    }

    async fn ask(&self, round: Round, step: Step, watch: &dyn Watch) -> RoundInFlight {
        self.ask_nodes(&self.nodes, round, step, watch).await
    }

    async fn ask_nodes(&self, nodes: &[Arc<dyn Node>], round: Round, step: Step, watch: &dyn Watch) -> RoundInFlight {
        let (step, majority) = (self.decisions.step(round, step), self.decisions.majority(round, nodes.len()));
        let sent = self.decisions.sent_at(&*self.clock);
        RoundInFlight::send(nodes, sent, watch, round, &step, majority).await
    }

    /// Reads the answers until `round` is decided, and tells `watch`. Nothing is awaited after that.
    async fn read(&self, asked: &mut RoundInFlight, round: Round, lease: Duration, watch: &dyn Watch) -> RoundOutcome {
        let outcome = asked.read(&*self.clock, self.timeout(lease), Until::Decided).await;
        let outcome = self.decisions.outcome(round, outcome);
        if outcome != RoundOutcome::TimedOut {
            watch.answered(round);
        }
        outcome
    }

    fn timeout(&self, lease: Duration) -> Duration {
        self.node_timeout.unwrap_or_else(|| validity::node_timeout(lease))
    }

    /// The instant from which the lease of a round counts, in the client's own clock.
    fn counted_from(&self, asked: &RoundInFlight) -> Duration {
        self.decisions.counted_from(asked.sent, &*self.clock)
    }

    /// Returns whether a promise until `end` is still valid by the client's own clock, when the client judges `round`.
    fn is_valid(&self, round: Round, end: Duration) -> bool {
        self.decisions.is_valid(round, self.clock.now(), end)
    }

    /// Renews a hold. A renewal counts only if a majority extended the key, and only while the hold is still valid: a
    /// client that knows that its hold has lapsed must not get the hold back. The new end follows from the renewal's
    /// own sending, and is never earlier than the old end.
    async fn extend(&self, hold: &mut Hold, lease: Duration, watch: &dyn Watch) -> Result<Renewed, Failure> {
        if !self.decisions.may_renew(self.clock.now(), hold.valid_until) {
            let answers = self.names.iter().map(|name| (name.clone(), NodeAnswer::None)).collect();
            return Err(Failure { reason: FailureReason::Validity, outcome: Outcome::Failed, answers });
        }
        let step = Step::Extend(hold.key.clone(), hold.owner.clone(), lease);
        let mut extending = self.ask(Round::Renew, step, watch).await;
        if self.read(&mut extending, Round::Renew, lease, watch).await != RoundOutcome::Majority {
            return Err(extending.failure(&self.names, FailureReason::Lost));
        }
        let sent = self.counted_from(&extending);
        let valid_until = validity::promise_end(sent, lease);
        let now = self.clock.now();
        if !self.decisions.is_valid(Round::Renew, now, valid_until) || !self.decisions.may_renew(now, hold.valid_until)
        {
            return Err(extending.refused_by_validity(&self.names));
        }
        if valid_until > hold.valid_until {
            (hold.sent, hold.lease, hold.valid_until) = (sent, lease, valid_until);
        }
        Ok(Renewed { valid_until: hold.valid_until, answers: extending.answers(&self.names) })
    }

    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let mut removing = self.ask(Round::Release, Step::Release(hold.key.clone(), hold.owner.clone()), watch).await;
        let removed = self.read(&mut removing, Round::Release, hold.lease, watch).await == RoundOutcome::Majority;
        if removed || removing.is_refused() {
            return Ok(Released { removed, answers: removing.answers(&self.names) });
        }
        Err(removing.failure(&self.names, FailureReason::Lost))
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
    /// Runs the attempt without its undo.
    async fn run(&self) -> Result<Hold, Failure> {
        let Self { lock, lease, watch, .. } = *self;
        let mut granting = lock.ask(Round::Acquire, self.acquiring(), watch).await;
        if lock.read(&mut granting, Round::Acquire, lease, watch).await != RoundOutcome::Majority {
            return Err(granting.failure(&lock.names, FailureReason::Held));
        }
        // The promise counts from the first round, also if there is a second: the second round sets no lease.
        let sent = lock.counted_from(&granting);
        let valid_until = validity::promise_end(sent, lease);
        if !lock.is_valid(Round::Acquire, valid_until) {
            return Err(granting.refused_by_validity(&lock.names));
        }
        let mut answers = granting.answers(&lock.names);
        // Later answers do not change the token.
        let token = granting.largest_token().filter(|_| lock.tokens != TokenSource::None);
        let written_back = token.filter(|token| match lock.tokens {
            TokenSource::TwoPhase => true,
            TokenSource::TwoPhaseFast => !granting.is_agreed(*token),
            _ => false,
        });
        if let Some(token) = written_back {
            self.write_back(token, valid_until, &mut answers).await?;
        }
        Ok(Hold { key: self.key.clone(), owner: self.owner.clone(), token, lease, sent, valid_until, answers })
    }

    fn acquiring(&self) -> Step {
        let (key, owner, lease) = (self.key.clone(), self.owner.clone(), self.lease);
        match self.lock.tokens {
            TokenSource::None => Step::AcquireUncounted(key, owner, lease),
            _ => Step::Acquire(key, owner, lease),
        }
    }

    /// Runs the second round of two-phase tokens on all nodes. A node may accept the token before its grant was read;
    /// that proves the grant, so `answers` gets it.
    async fn write_back(&self, token: Token, valid_until: Duration, answers: &mut NodeAnswers) -> Result<(), Failure> {
        let Self { lock, lease, watch, .. } = *self;
        let step = Step::RaiseFence(self.key.clone(), self.owner.clone(), token);
        let mut raising = lock.ask(Round::WriteBack, step, watch).await;
        if lock.read(&mut raising, Round::WriteBack, lease, watch).await != RoundOutcome::Majority {
            // A refusal does not say that another client holds the lock, only that this attempt does not get the lock.
            return Err(raising.failure(&lock.names, FailureReason::NoMajority));
        }
        if !lock.is_valid(Round::WriteBack, valid_until) {
            return Err(raising.refused_by_validity(&lock.names));
        }
        for ((_, granted), (_, raised)) in answers.iter_mut().zip(raising.answers(&lock.names)) {
            if raised == NodeAnswer::Done {
                *granted = NodeAnswer::Granted;
            }
        }
        Ok(())
    }

    /// Returns whether the attempt needs an undo because it may have left a key behind. With one node, a definite
    /// answer to the first round says that no key is left, and an undo would double the load of a contended lock. The
    /// second round fails after the grant, so nothing that it says means that the key is gone. With several nodes, the
    /// attempt is always undone.
    fn needs_undo(&self, failure: &Failure) -> bool {
        let several = self.lock.nodes.len() > 1;
        let has_second_round = matches!(self.lock.tokens, TokenSource::TwoPhase | TokenSource::TwoPhaseFast);
        let may_be_granted = has_second_round && failure.reason != FailureReason::Held;
        several
            || may_be_granted
            || failure.outcome == Outcome::Indeterminate
            || failure.reason == FailureReason::Validity
    }

    /// Removes the keys that the attempt may have left behind, on all nodes. A node that never answered may have set
    /// the key; or it sets the key when it wakes up, and then finds this request next in its queue.
    async fn undo(&self, failure: Option<&Failure>) {
        let Self { lock, lease, watch, .. } = *self;
        watch.undoing();
        let step = Step::Release(self.key.clone(), self.owner.clone());
        let all = lock.nodes.as_slice();
        let nodes = failure.map_or(all.into(), |failure| lock.decisions.undone_on(all, failure));
        let mut undoing = lock.ask_nodes(&nodes, Round::Undo, step, watch).await;
        if undoing.read(&*lock.clock, lock.timeout(lease), Until::Heard).await != RoundOutcome::TimedOut {
            watch.answered(Round::Undo);
        }
        watch.undone(&undoing.answers(&lock.names));
    }
}

impl Lock for Redlock {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
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

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(self.extend(hold, lease, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        let attempt = Attempt { lock: self, key, owner: owner.clone(), lease, watch };
        Box::pin(async move { attempt.undo(None).await })
    }
}
