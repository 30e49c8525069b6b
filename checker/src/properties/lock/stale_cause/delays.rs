//! The spans in which a step of an act may have waited: for a process that did not run, or for packets.

use std::time::Duration;

use history::{ClockChange, FaultKind, Harm, NodeName, ResourceKind, Stamp, fault};

use crate::{
    faults::FaultRecord,
    holds::{Nodes, Span},
    intervals::Intervals,
    rules,
    run::Run,
};

use super::suspect::{FrozenSpan, Suspect, SuspectSet, clip};

/// The spans in which processes of a node did not run: those inside its proved faults, and the rest.
///
/// A slowed node ran in between. Only its recorded late ticks count as time in which it did not run, as for unplanned
/// stalls. So a fault never explains more than the record shows.
///
/// Only what meets the path of an act is returned: a long run has many pauses, and each may have a window.
pub(super) fn frozen(run: &Run, node: &NodeName, stalls: &[Span], path: Span) -> Vec<(Span, Suspect)> {
    let meets = |span: &Span| clip(*span, path).is_some();
    let faults = || run.faults.iter().filter(|(_, l)| l.kind.takes_processor_time() && l.node == *node);
    let pauses: Vec<(Suspect, Span)> = faults()
        .filter(|(_, l)| l.proved.is_some())
        .filter_map(|(id, l)| Some((Suspect::Fault(id, l.kind), l.bracket().filter(meets)?)))
        .collect();
    // A process that is killed before it goes on records no stall, but the proof of the freeze shows one.
    let shown = faults().filter(|(_, l)| l.kind.freezes()).filter_map(|(_, l)| l.proved);
    let mut found = Vec::new();
    for stall in stalls.iter().copied().chain(shown) {
        if !meets(&stall) {
            continue;
        }
        let mut rest = vec![stall];
        for &(suspect, pause) in &pauses {
            if let Some(span) = clip(stall, pause) {
                found.push((span, suspect));
                rest = rest.into_iter().flat_map(|part| outside(part, pause)).collect();
            }
        }
        found.extend(rest.into_iter().map(|span| (span, Suspect::Stalls)));
    }
    found
}

/// The spans in which a node was down: a request waited until it was sent again to the next process.
pub(super) fn down(run: &Run, node: &NodeName) -> impl Iterator<Item = (Span, Suspect)> {
    let kills = run.faults.iter().filter(move |(_, l)| l.kind.kills() && l.proved.is_some() && l.node == *node);
    kills.filter_map(|(id, l)| Some((l.bracket()?, Suspect::Fault(id, l.kind))))
}

/// The spans in which packets from one node to another were delayed. A loss records no packet that was lost, so with
/// `may_be_lost` the whole time counts in which the connection may have been silent.
pub(super) fn delayed(run: &Run, from: &NodeName, to: &NodeName, may_be_lost: bool) -> Vec<(Span, Suspect)> {
    let mut found: Vec<(Span, Suspect)> = run
        .faults
        .delayed(from, to)
        .map(|(delayed, kind)| (delayed.span, Suspect::Fault(delayed.fault, kind)))
        .collect();
    let losses = run.faults.iter().filter(|(_, l)| l.proved.is_some() && l.kind.harm() == Harm::DropsPackets);
    for (id, line) in losses.filter(|_| may_be_lost) {
        let is_hit = line.hits(&run.plan, id, from, to);
        found.extend(line.silence().filter(|_| is_hit).map(|span| (span, Suspect::Fault(id, line.kind))));
    }
    found
}

/// The spans in which each lock node, or its links, kept a client waiting for an answer: a worker during its attempt,
/// or a resource that keeps its data in the lock nodes.
pub(super) fn of_lock_nodes(run: &Run, worker: &NodeName, attempt: Span, may_be_lost: bool) -> Vec<LockDelay> {
    let nodes = &run.plan.lock_nodes;
    let mut found = Vec::new();
    for (node, name) in nodes.iter().enumerate() {
        let mut add = |(span, suspect)| found.extend(clip(span, attempt).map(|span| LockDelay { node, span, suspect }));
        for (id, line) in run.faults.iter().filter(|(_, l)| l.proved.is_some() && l.node == *name) {
            let Some(bracket) = line.bracket().filter(|_| stops(line)) else { continue };
            // Replicas elect a leader, and a client connects again, only after the fault.
            let is_longer = run.plan.has_replicas() || line.kind.kills();
            let until = if is_longer && clip(bracket, attempt).is_some() { attempt.1 } else { bracket.1 };
            add(((bracket.0, until), Suspect::Fault(id, line.kind)));
        }
        // Replicas answer together, so the links between them count too.
        let members = nodes.iter().filter(|peer| run.plan.has_replicas() && *peer != name);
        for peer in members.chain([worker]) {
            delayed(run, peer, name, may_be_lost).into_iter().for_each(&mut add);
            delayed(run, name, peer, may_be_lost).into_iter().for_each(&mut add);
        }
    }
    found
}

/// The server in which a resource with a server of its own keeps its data.
const STORE: &str = "resource-store";

/// The spans in which the store behind the resource, or the links to it, kept a request waiting. The resource sends one
/// request after the other to its store, so a request waits for those before it too.
pub(super) fn of_store(run: &Run, request: Span, may_be_lost: bool) -> Vec<(Span, Suspect)> {
    let [resource, store] = ["resource", STORE].map(NodeName::new);
    let found = match run.plan.resource {
        ResourceKind::Service => Vec::new(),
        ResourceKind::Postgres | ResourceKind::S3 => {
            let links = [(&resource, &store), (&store, &resource)];
            let mut found: Vec<_> =
                links.into_iter().flat_map(|(from, to)| delayed(run, from, to, may_be_lost)).collect();
            // No fault of a plan hits the store itself, but somebody may.
            let faults = run.faults.iter().filter(|(_, l)| l.proved.is_some() && l.node == store && stops(l));
            found.extend(faults.filter_map(|(id, l)| Some((l.bracket()?, Suspect::Fault(id, l.kind)))));
            found
        }
        ResourceKind::Etcd => {
            let of_members = of_lock_nodes(run, &resource, request, may_be_lost);
            of_members.into_iter().map(|delay| (delay.span, delay.suspect)).collect()
        }
    };
    found.into_iter().filter_map(|(span, suspect)| Some((clip(span, request)?, suspect))).collect()
}

fn stops(line: &FaultRecord) -> bool {
    match line.kind.harm() {
        Harm::Freezes | Harm::Starves | Harm::Kills(_) => true,
        Harm::SetsClock | Harm::DropsPackets | Harm::DelaysPackets => false,
    }
}

/// A span in which a lock node kept an attempt waiting.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockDelay<S = Suspect> {
    pub node: usize,
    pub span: Span,
    pub suspect: S,
}

/// The nodes that grant an attempt together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quorum {
    /// The number of nodes without which the others are no majority.
    pub enough: usize,
    /// The nodes that refused the attempt. The attempt waits for the others.
    pub refused_on: Nodes,
}

/// The spans in which so many nodes kept an attempt waiting, because of suspects of `set`, that the other nodes were no
/// majority.
pub(super) fn without_majority(delays: &[LockDelay<SuspectSet>], set: SuspectSet, quorum: Quorum) -> Vec<Span> {
    let delays: Vec<_> = delays.iter().filter(|delay| delay.suspect & set != 0).collect();
    let mut edges: Vec<Stamp> = delays.iter().flat_map(|delay| [delay.span.0, delay.span.1]).collect();
    edges.sort_unstable();
    edges.dedup();
    let is_covered = |span: &Span| {
        let covering = delays.iter().filter(|delay| delay.span.0 <= span.0 && span.1 <= delay.span.1);
        let mut nodes: Vec<usize> = covering.map(|delay| delay.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| *node >= 64 || quorum.refused_on & (1 << node) == 0);
        !nodes.is_empty() && nodes.len() + quorum.refused_on.count_ones() as usize >= quorum.enough
    };
    edges.windows(2).map(|edge| (edge[0], edge[1])).filter(is_covered).collect()
}

/// The length of frozen time before an instant, each instant counted once.
pub(super) fn length(frozen: &[FrozenSpan], others: Vec<Span>, set: SuspectSet, until: Stamp) -> Duration {
    let frozen = frozen.iter().filter(|f| f.suspect & set != 0).map(|f| f.span).chain(others);
    frozen.filter_map(|span| clip(span, (Stamp(0), until))).collect::<Intervals>().length()
}

/// Returns the proved faults of the clock that clients of a worker use, if the faults overlap the span `within`.
pub(super) fn clocks_of<'a>(
    run: &'a Run,
    worker: &'a NodeName,
    within: Span,
) -> impl Iterator<Item = (Span, Suspect)> + 'a {
    let clocks =
        run.faults.iter().filter(move |(_, l)| l.kind == FaultKind::Clock && l.proved.is_some() && l.node == *worker);
    clocks.filter_map(move |(id, l)| {
        let step = run.plan.step(id)?;
        let is_own = step.fault.clock().is_some_and(|fault| fault.clock.is_monotonic());
        let (from, to) = l.bracket()?;
        // A clock keeps the time that it gained or lost, so the span has no end.
        (is_own && from < within.1 && within.0 < to).then_some(((from, Stamp(u64::MAX)), Suspect::Fault(id, l.kind)))
    })
}

/// The most steps in which the end of a work by a slow clock is found. Each step leaves at most half of the rest.
const STEPS_MAX: usize = 64;

/// The spans by which slow clocks of a worker made a client's work longer. The work began at `begun`, and the client
/// waits by its own clock. `overdue` is the time from the planned end of the work to its end.
pub(super) fn slowed(run: &Run, worker: &NodeName, begun: Stamp, overdue: Span) -> Vec<(Span, Suspect)> {
    let faults = run.faults.iter().filter(|(_, l)| l.proved.is_some() && l.node == *worker);
    let slow = faults.filter_map(|(id, l)| {
        let step = run.plan.step(id)?;
        let fault::Clock { clock, change: ClockChange::DriftPpm(ppm) } = step.fault.clock()? else { return None };
        let is_slow = *ppm < 0 && clock.is_monotonic();
        is_slow.then_some((l.bracket()?, f64::from(ppm.unsigned_abs()) / 1e6, Suspect::Fault(id, l.kind)))
    });
    let slow: Vec<(Span, f64, Suspect)> = slow.collect();
    let lost = |bracket: Span, by: f64, until: Stamp| {
        rules::overlap(bracket, (begun, until)).map_or(Duration::ZERO, |lasted| lasted.mul_f64(by))
    };
    // A client works until its clock shows the planned end. A later loss of the clock makes no work longer.
    let longer = |until: Stamp| slow.iter().map(|(bracket, by, _)| lost(*bracket, *by, until)).sum::<Duration>();
    let shown = (0..STEPS_MAX).fold(overdue.0, |until, _| overdue.0.plus(longer(until)).min(overdue.1));
    let mut from = overdue.0;
    let mut found = Vec::new();
    for (bracket, by, suspect) in slow {
        let to = from.plus(lost(bracket, by, shown));
        found.push(((from, to), suspect));
        from = to;
    }
    found
}

/// Returns the parts of a span that lie outside another span.
fn outside(span: Span, hole: Span) -> impl Iterator<Item = Span> {
    [clip(span, (Stamp(0), hole.0)), clip(span, (hole.1, Stamp(u64::MAX)))].into_iter().flatten()
}
