//! Renewals that failed, or did not leave, because of a fault.

use history::{FailureReason, FaultId, Harm, LeaseClock, LinkDelay, NodeName, Stamp, Step, fault::LinkEffect};

use crate::{
    disturbance::{ELECTED_AFTER, replaced_within},
    failover,
    faults::FaultRecord,
    holds::{Attempt, Grant, RenewalFailure, Span},
    key_lease::KeyLease,
    rules,
    run::Run,
};

use super::{
    delays::clocks_of,
    suspect::{Suspect, SuspectSet, clip},
};

/// A renewal that failed.
pub(super) struct FailedRenewal<B> {
    /// The span in which no renewal succeeded.
    pub span: Span,
    /// For each node that did not execute the renewal: the suspects, each of which suffices. Empty without suspects.
    pub missing: Vec<B>,
    /// The number of missing nodes that makes the renewal fail.
    pub enough: usize,
    /// True if the client noticed by this renewal that the hold was lost.
    pub is_loss: bool,
}

impl<B> FailedRenewal<B> {
    pub fn with<C>(&self, missing: Vec<C>) -> FailedRenewal<C> {
        FailedRenewal { span: self.span, missing, enough: self.enough, is_loss: self.is_loss }
    }
}

impl FailedRenewal<SuspectSet> {
    /// Returns whether suspects of `set` make the renewal fail. At least one node must be missing because of the set. A
    /// node that is missing without a suspect fails with every set.
    pub fn is_by(&self, set: SuspectSet) -> bool {
        let fails = |missing: &&SuspectSet| **missing == 0 || **missing & set != 0;
        self.missing.iter().any(|missing| missing & set != 0)
            && self.missing.iter().filter(fails).count() >= self.enough
    }
}

/// Returns the renewals that failed or did not leave because of a fault. The fault hit a lock node that did not execute
/// a renewal sent inside the promise, the links to that node, or the worker's own clock.
pub(super) fn broken(run: &Run, hold: &Attempt, worker: &NodeName, arrival: Stamp) -> Vec<FailedRenewal<Vec<Suspect>>> {
    let Some(grant) = hold.grant.filter(|_| run.plan.workload.renew.is_some()) else { return Vec::new() };
    let unanswered = hold.renewing.or(hold.unanswered).filter(|sent| rules::is_renewed_in_time(sent.at, hold.promise));
    let unanswered =
        unanswered.map(|sent| RenewalFailure { span: (sent.at, arrival), done_on: 0, refused_on: 0, loss: None });
    let failures = || hold.failures.iter().copied().chain(unanswered).filter(|failure| failure.span.0 < arrival);
    // If a client noticed the loss although no node had refused, it used its own clock.
    let is_loss = !failures().any(|failure| failure.loss == Some(FailureReason::Lost));
    // A client counts the time to its next renewal from the last one. A clock that was moved before stops none.
    let since = hold.renewed.map_or(hold.relies_since(), |_| hold.promised_by.at);
    let clocks = clocks_of(run, worker, (since, arrival));
    let clocks = clocks.map(|(span, suspect)| FailedRenewal { span, missing: vec![vec![suspect]], enough: 1, is_loss });
    let mut found: Vec<FailedRenewal<Vec<Suspect>>> = clocks.collect();
    for failure in failures() {
        let nodes = 0..run.plan.lock_nodes.len();
        let missing = nodes.filter(|i| *i >= 64 || failure.done_on & (1 << i) == 0);
        let by_node = missing.map(|node| kept_from(run, hold, &grant, worker, &failure, node));
        let nodes = run.plan.lock_nodes.len();
        // Replicas execute a renewal together, so a fault of one may stop all.
        let (missing, enough) = match run.plan.has_replicas() {
            true => (vec![by_node.flatten().collect::<Vec<Suspect>>()], 1),
            false => (by_node.collect(), nodes - nodes / 2),
        };
        let until = if failure.loss.is_some() { Stamp(u64::MAX) } else { failure.span.1 };
        let (span, is_loss) = ((failure.span.0, until), failure.loss.is_some());
        found.push(FailedRenewal { span, missing, enough, is_loss });
    }
    found
}

/// Returns the suspects that may have kept a node from executing a renewal.
fn kept_from(
    run: &Run,
    hold: &Attempt,
    grant: &Grant,
    worker: &NodeName,
    failure: &RenewalFailure,
    node: usize,
) -> Vec<Suspect> {
    let name = &run.plan.lock_nodes[node];
    let has_refused = node < 64 && failure.refused_on & (1 << node) != 0;
    let key_lease = KeyLease::of(hold, grant, node, failure.span.1);
    // The node may have refused because the renewal reached it when the lease was over.
    let is_ready = has_refused && !rules::is_after_end(failure.span.1, hold.promise);
    let since_sent = (hold.relies_since(), failure.span.1);
    // A node that did an earlier renewal was connected then. In a store, another member may have done that renewal. A
    // client program does not tell which nodes did it.
    let had_since = key_lease.had_since();
    let is_shown = !run.plan.has_replicas() && run.plan.program.is_none() && had_since < failure.span.0;
    let connected_since = if is_shown { had_since } else { hold.relies_since() };
    // A client program does not tell which node has granted its hold.
    let granted = hold.granted_on | hold.renewed_on_before(failure.span.1);
    // An independent server ends a session with its connection. The client may notice that by its next renewal only,
    // when no connection is silent any more.
    let has_lost_session = |id: FaultId, line: &FaultRecord| {
        !run.plan.has_replicas() && key_lease.lost_session(run, id, line, [worker, name]).is_some()
    };
    let was_primary = granted == 0 || run.plan.program.is_some() || (node < 64 && granted & (1 << node) != 0);
    let may_elect = run.plan.has_replicas() && run.plan.lock_nodes.len() > 1;
    let is_to_blame = |id: FaultId, line: &FaultRecord| {
        let Some(bracket) = line.bracket() else { return false };
        let is_on = clip(bracket, failure.span).is_some();
        // The new primary may never have received the key.
        let is_promoted = || {
            was_primary && failover::promotion(run, id, line, name).and_then(|span| clip(span, since_sent)).is_some()
        };
        if run.plan.is_replicated() && failure.refused_on != 0 && is_promoted() {
            return true;
        }
        // The primary has answered by itself: a fault of a replica refuses nothing.
        if run.plan.is_replicated() && failure.refused_on != 0 && !has_refused {
            return false;
        }
        match line.kind.harm() {
            // A node that refuses in time is running and reachable, and the hold no longer owns the key there.
            Harm::DropsPackets | Harm::DelaysPackets => {
                let hits = |from, to| line.hits(&run.plan, id, from, to);
                // Of the faults of links, only a partition comes without a plan.
                let is_planned_cut = |step: &Step| matches!(step.fault.link_effect(), Some(LinkEffect::Cut(_)));
                let is_cut = || run.plan.step(id).is_none_or(is_planned_cut);
                let (sent, failed) = failure.span;
                // A renewal that failed at the stamp of its request waited for no packet: its connection was refused.
                // Only a partition refuses one, and only between its ends: at equal stamps the two are concurrent.
                let is_silent = match sent == failed {
                    true => is_cut() && bracket.0 < sent && failed < bracket.1,
                    false => line.silence().is_some_and(|silence| clip(silence, failure.span).is_some()),
                };
                // Replicas execute a renewal together, over the links between them.
                let members = run.plan.lock_nodes.iter().filter(|_| run.plan.has_replicas());
                let mut peers = members.chain([worker]).filter(|peer| *peer != name);
                let is_kept = is_silent && !is_ready && peers.any(|peer| hits(peer, name) || hits(name, peer));
                is_kept || !is_ready && elects(run, id, line, name, failure.span) || has_lost_session(id, line)
            }
            // The key may be with a waiting client whose clock jumped.
            Harm::SetsClock if run.plan.servers.lease_clock == LeaseClock::Waiter => {
                has_refused && !run.plan.lock_nodes.contains(&line.node) && key_lease.is_taken_by(run, line)
            }
            _ if line.node != *name => false,
            _ if has_refused && key_lease.is_refused_by(run, line) => true,
            _ if is_ready => false,
            // Replicas may elect a leader when the fault is over, and do no renewal meanwhile. Sentinels replace only a
            // primary.
            Harm::Freezes | Harm::Starves if may_elect && (was_primary || !run.plan.is_replicated()) => {
                clip((bracket.0, bracket.1.plus(replaced_within(&run.plan))), failure.span).is_some()
            }
            Harm::Freezes | Harm::Starves => is_on,
            // A client notices a broken connection only when it uses the connection.
            Harm::Kills(_) => connected_since < bracket.1 && bracket.0 < failure.span.1,
            // In runs, a leader of etcd 3.4 whose monotonic clock had jumped left renewals unanswered until the lease
            // had expired. Such a jump stays after the end of the fault.
            Harm::SetsClock if run.plan.has_one_store() => is_on || key_lease.is_refused_by(run, line),
            Harm::SetsClock => key_lease.is_taken_by(run, line),
        }
    };
    let faults = run.faults.iter().filter(|(id, line)| line.proved.is_some() && is_to_blame(*id, line));
    faults.map(|(id, line)| Suspect::Fault(id, line.kind)).collect()
}

/// Returns whether the members of a store may have elected a leader within a span, because of a fault of the links
/// between a member and others. A member that did not hear the leader for long asks for an election, and the others
/// hear that when their connections are no longer silent.
fn elects(run: &Run, id: FaultId, line: &FaultRecord, name: &NodeName, within: Span) -> bool {
    let Some((from, until)) = line.silence().filter(|_| run.plan.has_one_store()) else { return false };
    let delay = run.plan.step(id).and_then(|step| step.fault.link_delay()).map(LinkDelay::longest);
    let is_long = until.since(from) >= ELECTED_AFTER && delay.is_none_or(|delay| delay >= ELECTED_AFTER);
    let hits = |sender, receiver| line.hits(&run.plan, id, sender, receiver);
    let mut members = run.plan.lock_nodes.iter().filter(|peer| *peer != name);
    is_long
        && clip((from, until.plus(replaced_within(&run.plan))), within).is_some()
        && members.any(|peer| hits(peer, name) || hits(name, peer))
}
