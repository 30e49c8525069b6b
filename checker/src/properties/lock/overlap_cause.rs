//! The cause of a lease-overlap: the event that removed the key of a hold whose lease had not expired.
//!
//! A node removes a key in three cases: the lease has expired by the node's clock, the node has forgotten the key, or a
//! request removes it. A server of sessions also removes it with the connection of the session. The node cannot have
//! granted the key before the request was sent. So by true time the lease lasts until `sent + lease` at least. Changes
//! of the node's clock since the grant are taken into account.
//!
//! Only faults that their target showed explain an overlap, each by the stamps around it. If these stamps leave open
//! whether the fault explains the overlap, it does.

use history::{FaultKind, Harm, HoldId, NodeName, Promise, Stamp};

use crate::{
    cause::{Cause, CauseSet},
    failover,
    faults::FaultRecord,
    holds::{NodeLease, Nodes, Span},
    judge::Ending,
    key_lease::{KeyLease, NodeClocks, ending_clock, looks_from},
    rules,
    run::Run,
};

use super::evidence::{Entitled, Overlap};

/// Returns the cause of a lease-overlap: on **every** node that had granted both holds when the overlap began, the
/// first event that removed the first hold's key between its attempt and the second hold's success. If the order of
/// the grants is unknown, either hold may have been the first on a node.
pub(crate) fn of_overlap(run: &Run, overlap: &Overlap, ending: &Ending) -> CauseSet {
    let [first, second] = &overlap.holds;
    let both = first.nodes & second.nodes;
    let orders = [(first, second), (second, first)];
    let orders = if overlap.is_ordered { &orders[..1] } else { &orders[..] };
    let mut causes: Vec<Cause> = Vec::new();
    // Of independent servers, those that need an event and have none.
    let mut unexplained: Nodes = 0;
    if run.plan.has_one_store() {
        causes.extend(orders.iter().find_map(|(first, second)| in_store(run, first, second, ending)));
    } else if run.plan.is_replicated() {
        causes.extend(orders.iter().find_map(|(first, second)| in_replicas(run, first, second, ending)));
    } else if run.plan.program.is_some() {
        causes.extend(orders.iter().find_map(|(first, second)| on_any_node(run, first, second, ending)));
    } else {
        for node in (0..run.plan.lock_nodes.len().min(64)).filter(|i| both & (1 << i) != 0) {
            // A node that did not execute a renewal may have removed the key when its lease expired.
            if orders.iter().any(|(first, second)| rules::is_lease_over(second.hold.ok.at, first.lease(node).until)) {
                continue;
            }
            match orders.iter().find_map(|(first, second)| on_node(run, first, second, ending, node)) {
                Some(cause) if !causes.contains(&cause) => causes.push(cause),
                Some(_) => {}
                None => unexplained |= 1 << node,
            }
        }
    }
    let in_question = if unexplained == 0 { both } else { unexplained };
    if unexplained == 0 && !causes.is_empty() {
        causes.into_iter().collect()
    } else if orders.iter().any(|(first, second)| is_stepped(run, first, second, in_question)) {
        Cause::HostClock.into()
    } else {
        Cause::Unexplained.into()
    }
}

/// Returns whether a step of the host's clock may have ended the first hold's lease before the second hold was granted,
/// or the lease of a second hold that was granted without its own key. A step before a renewal that a node in question
/// did has not ended the lease there, and a clock that was set back ends no lease early. Clocks that were set forward
/// end a lease at most that much too early, unless a fault set a clock too. But a replica that did not receive the key
/// may be promoted some time after a step, and a session, the lock of a client program and a key that was gone before
/// the grant may have had less time left than the record shows.
fn is_stepped(run: &Run, first: &Entitled, second: &Entitled, in_question: Nodes) -> bool {
    let own = second.hold.is_without_key.then(|| second.hold.relies_since());
    let had_since = match run.plan.is_replicated() {
        true => first.hold.relies_since(),
        false => first.had_since(in_question),
    };
    let met = (own.into_iter().fold(had_since, Stamp::min), second.hold.ok.at);
    let left = first.promised_until(in_question).since(met.1);
    let is_lease = run.plan.servers.promise == Promise::Lease && run.plan.program.is_none();
    let is_set = run.faults.iter().any(|(_, line)| line.kind == FaultKind::Clock);
    let is_known = is_lease && !run.plan.is_replicated() && own.is_none() && !is_set;
    run.clock_steps.may_have_ended_leases(&run.plan, met)
        && (!is_known || left <= run.clock_steps.set_forward_within(met))
}

/// Proved faults of a node.
fn proved<'a>(run: &'a Run, node: &'a NodeName) -> impl Iterator<Item = &'a FaultRecord> {
    run.faults.iter().map(|(_, line)| line).filter(move |l| l.proved.is_some() && l.node == *node)
}

/// Returns the event that removed the key on one of several independent servers.
fn on_node(run: &Run, first: &Entitled, second: &Entitled, ending: &Ending, node: usize) -> Option<Cause> {
    let name = &run.plan.lock_nodes[node];
    let (sent, gone_by) = (first.hold.relies_since(), second.hold.ok.at);
    let between = |at: Stamp| rules::is_between(at, sent, gone_by);
    let key_lease = KeyLease { sent, lease: first.lease(node), gone_by };
    let restarts =
        proved(run, name).filter_map(|line| Some((key_lease.forgotten(run, line)?, Cause::Fault(line.kind))));
    let worker = &run.process(first.hold.process).node;
    let cuts = run.faults.iter().filter_map(|(id, line)| {
        Some((key_lease.lost_session(run, id, line, [worker, name])?, Cause::Fault(line.kind)))
    });
    let removed = ending.taken_from(first.hold.id).filter(|u| u.node == node);
    let removed = removed.map(|u| (u.invoked.at, Cause::UnsafeRelease)).filter(|(at, _)| between(*at));
    // If waiting clients measure leases, the second holder's own clock ended the first lease.
    let is_of_servers = run.plan.servers.lease_clock.of_servers().is_some();
    let clock_of = if is_of_servers { name } else { &run.process(second.hold.process).node };
    let moved = NodeClocks::of(run, clock_of).first_to_reach(&key_lease, looks_from(run, sent), ending_clock(run));
    let moved = moved.map(|at| (at, Cause::Fault(FaultKind::Clock)));
    restarts.chain(cuts).chain(removed).chain(moved).min().map(|(_, cause)| cause)
}

/// Returns the event that removed the first hold's key on any of several independent servers. A client program does not
/// tell which servers granted its holds, so an event of any server may explain the overlap.
fn on_any_node(run: &Run, first: &Entitled, second: &Entitled, ending: &Ending) -> Option<Cause> {
    (0..run.plan.lock_nodes.len().min(64)).find_map(|node| on_node(run, first, second, ending, node))
}

/// Returns the event by which a primary with replicas lost the first hold's key: an event of the node that granted it,
/// or the fault that made the sentinels promote another node, which had not received the key.
///
/// A client program does not tell which server granted its holds. Then it may have been any of them.
fn in_replicas(run: &Run, first: &Entitled, second: &Entitled, ending: &Ending) -> Option<Cause> {
    let granted = |hold: &Entitled| if run.plan.program.is_some() { Nodes::MAX } else { hold.nodes };
    let is_in = |nodes: Nodes, node: usize| nodes & (1 << node) != 0;
    let (by_first, by_second) = (granted(first), granted(second));
    let nodes = || 0..run.plan.lock_nodes.len().min(64);
    let mut own = nodes().filter(|node| is_in(by_first, *node));
    if let Some(cause) = own.find_map(|node| on_node(run, first, second, ending, node)) {
        return Some(cause);
    }
    let within = (first.hold.relies_since(), second.hold.ok.at);
    if by_first == by_second && by_first.count_ones() == 1 && !is_there_and_back(run, by_first, within) {
        return None;
    }
    let mut found = Vec::new();
    for (id, line) in run.faults.iter() {
        let replaces = |node: usize| {
            let span = failover::promotion(run, id, line, &run.plan.lock_nodes[node])?;
            rules::overlap(span, within).is_some().then_some(span.0)
        };
        let of_first = nodes().filter(|node| is_in(by_first, *node)).find_map(replaces);
        // If the fault came before the first hold, that hold may be of the new primary, and the second of the old one.
        let of_second = nodes().filter(|node| is_in(by_second, *node)).find_map(replaces);
        let of_second = of_second.filter(|at| rules::is_between(*at, Stamp(0), first.hold.ok.at));
        // A cut between two nodes alone promotes nothing, so a fault of the process comes first.
        found.extend(of_first.or(of_second).map(|at| (is_of_links(line.kind), at, Cause::Fault(line.kind))));
    }
    if let Some((_, _, cause)) = found.into_iter().min() {
        return Some(cause);
    }
    // The new primary may have removed the key by its own clock.
    let (from, clock) = (looks_from(run, within.0), ending_clock(run));
    let mut others = nodes().filter(|node| is_in(by_second, *node));
    let is_ahead = |node: usize| {
        let key_lease = KeyLease { sent: within.0, lease: first.lease(node), gone_by: within.1 };
        NodeClocks::of(run, &run.plan.lock_nodes[node]).first_to_reach(&key_lease, from, clock).is_some()
    };
    others.any(is_ahead).then_some(Cause::Fault(FaultKind::Clock))
}

/// Returns whether one fault may have made the sentinels promote another node in the place of the node in `own`, and a
/// later fault may have made them promote this node again.
fn is_there_and_back(run: &Run, own: Nodes, within: Span) -> bool {
    let promotions = |is_own: bool| {
        let nodes = (0..run.plan.lock_nodes.len().min(64)).filter(move |node| (own & (1 << node) != 0) == is_own);
        nodes.flat_map(move |node| {
            let spans =
                run.faults.iter().map(move |(id, line)| failover::promotion(run, id, line, &run.plan.lock_nodes[node]));
            spans.flatten().filter(move |span| rules::overlap(*span, within).is_some())
        })
    };
    promotions(true).any(|there| promotions(false).any(|back| there.0 < back.0))
}

fn is_of_links(kind: FaultKind) -> bool {
    matches!(kind.harm(), Harm::DropsPackets | Harm::DelaysPackets)
}

/// Returns the event that removed the first hold's key in a store whose replicas are the lock nodes: a fault on any
/// replica. The service may have granted the second hold although that hold's own key was gone. Then the event that
/// removed the second hold's key explains the overlap.
fn in_store(run: &Run, first: &Entitled, second: &Entitled, ending: &Ending) -> Option<Cause> {
    let (longest, gone_by) = (first.lease(first.longest()), second.hold.ok.at);
    let (first, second) = (&first.hold, &second.hold);
    let of_first = KeyLease { sent: first.relies_since(), lease: longest, gone_by };
    let own = NodeLease { told: second.granted, until: second.lease_until, is_renewed: false };
    let of_second = KeyLease { sent: second.relies_since(), lease: own, gone_by };
    let of_second = second.is_without_key.then(|| taken_from_store(run, &of_second, second.id, ending)).flatten();
    // A store that did not execute a renewal may have removed the key when its lease expired.
    let has_expired = rules::is_lease_over(gone_by, longest.until);
    let of_first = || (!has_expired).then(|| taken_from_store(run, &of_first, first.id, ending)).flatten();
    of_second.or_else(of_first)
}

/// Returns the first event that removed the key of `hold` in a store.
fn taken_from_store(run: &Run, key_lease: &KeyLease, hold: HoldId, ending: &Ending) -> Option<Cause> {
    let between = |at: Stamp| rules::is_between(at, key_lease.sent, key_lease.gone_by);
    let removed = ending.taken_from(hold).filter(|u| between(u.invoked.at));
    let mut found: Vec<(Stamp, Cause)> = removed.map(|u| (u.invoked.at, Cause::UnsafeRelease)).collect();
    for name in &run.plan.lock_nodes {
        found.extend(
            proved(run, name).filter_map(|line| Some((key_lease.left_store(run, line)?, Cause::Fault(line.kind)))),
        );
        let (from, clock) = (looks_from(run, key_lease.sent), ending_clock(run));
        let moved = NodeClocks::of(run, name).first_to_reach(key_lease, from, clock);
        found.extend(moved.map(|at| (at, Cause::Fault(FaultKind::Clock))));
    }
    found.into_iter().min().map(|(_, cause)| cause)
}

#[cfg(test)]
mod tests;
