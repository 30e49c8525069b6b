//! Registers whose writes all have different values: a decision in the time of one sort.
//!
//! A write and the reads of its value form a cluster. The register has this value from some instant before the first
//! answer of the cluster to some instant after its last call. If the first answer is before the last call, the register
//! *must* have it between the two (a forward zone); otherwise one instant between the last call and the first answer is
//! enough (a backward zone). The history is linearizable exactly if no two forward zones overlap and no backward zone
//! lies inside a forward one. Gibbons and Korach, *Testing shared memories* (1997), §4.
//!
//! A write without an answer has no answer of its own in its cluster: it ends when a read saw it. If no read did, it is
//! left out.

use rustc_hash::FxHashMap;

use crate::{
    operation::{Action, Operation, Value},
    reason::Reason,
};

#[derive(Debug, Clone, Copy)]
struct Cluster {
    /// The first answer, and its operation. `u64::MIN` for the value at the start.
    first_answer: (u64, Option<usize>),
    /// The last call, and its operation.
    last_call: (u64, Option<usize>),
    has_write: bool,
    is_read: bool,
    is_answered: bool,
    write_call: u64,
}

/// Returns whether this is a history of reads and writes in which no two writes have the same value, and none has the
/// first one.
pub(crate) fn fits(operations: &[Operation], initial: Value) -> bool {
    let mut written: rustc_hash::FxHashSet<Value> = [initial].into_iter().collect();
    operations.iter().all(|operation| match operation.action {
        Action::Read(_) => true,
        Action::Write(value) => written.insert(value),
        _ => false,
    })
}

/// Finds what no order can have. Only for histories that fit.
pub(crate) fn check(operations: &[Operation], initial: Value) -> Result<(), Reason> {
    let clusters = clusters(operations, initial)?;
    let (mut forward, mut backward): (Vec<Cluster>, Vec<Cluster>) =
        clusters.into_iter().partition(|cluster| cluster.first_answer.0 < cluster.last_call.0);
    forward.sort_unstable_by_key(|cluster| cluster.first_answer.0);
    for pair in forward.windows(2) {
        if pair[1].first_answer.0 < pair[0].last_call.0 {
            return Err(two_values(&pair[0], &pair[1]));
        }
    }
    // Forward zones are disjoint here, so the last one that begins before an instant is the only one around it.
    backward.sort_unstable_by_key(|cluster| cluster.last_call.0);
    for cluster in &backward {
        let before = forward.partition_point(|zone| zone.first_answer.0 < cluster.last_call.0);
        let Some(zone) = before.checked_sub(1).map(|last| &forward[last]) else { continue };
        if cluster.first_answer.0 < zone.last_call.0 {
            return Err(two_values(zone, cluster));
        }
    }
    Ok(())
}

fn two_values(zone: &Cluster, other: &Cluster) -> Reason {
    let known = |operation: Option<usize>| operation.expect("a zone with two ends has an operation at its end");
    let first = known(other.first_answer.1.or(other.last_call.1));
    // Nothing writes the value at the start again, so an answer before its last read is enough.
    let last = if zone.first_answer.1.is_none() { first } else { known(other.last_call.1) };
    Reason::TwoValues { from: zone.first_answer.1, to: known(zone.last_call.1), between: [first, last] }
}

fn clusters(operations: &[Operation], initial: Value) -> Result<Vec<Cluster>, Reason> {
    let nothing = Cluster {
        first_answer: (u64::MAX, None),
        last_call: (u64::MIN, None),
        has_write: false,
        is_read: false,
        is_answered: false,
        write_call: u64::MIN,
    };
    let mut by_value: FxHashMap<Value, Cluster> = FxHashMap::default();
    let start = Cluster { first_answer: (u64::MIN, None), has_write: true, is_answered: true, ..nothing };
    by_value.insert(initial, start);
    for (index, operation) in operations.iter().enumerate() {
        let (value, is_write) = match operation.action {
            Action::Write(value) => (value, true),
            Action::Read(value) => (value, false),
            _ => continue,
        };
        // The value at the start has the instant 0 for itself.
        let call = operation.call.saturating_add(1);
        let answer = operation.answer.map(|answer| answer.saturating_add(1));
        let Some(answer) = answer.or(is_write.then_some(u64::MAX)) else { continue };
        let cluster = by_value.entry(value).or_insert(nothing);
        if answer < cluster.first_answer.0 {
            cluster.first_answer = (answer, Some(index));
        }
        if call >= cluster.last_call.0 {
            cluster.last_call = (call, Some(index));
        }
        if is_write {
            (cluster.has_write, cluster.write_call) = (true, call);
            cluster.is_answered = operation.answer.is_some();
        } else {
            cluster.is_read = true;
        }
    }
    // A read that nobody's write can have preceded: the first one in the history, whatever the order of the map.
    let is_lost = |operation: &Operation| match (operation.action, operation.answer) {
        (Action::Read(value), Some(answer)) => {
            let cluster = &by_value[&value];
            !cluster.has_write || answer.saturating_add(1) < cluster.write_call
        }
        _ => false,
    };
    if let Some(index) = operations.iter().position(is_lost) {
        return Err(Reason::FromNowhere(index));
    }
    let counts = |cluster: &Cluster| cluster.is_read || cluster.is_answered;
    let mut clusters: Vec<Cluster> = by_value.into_values().filter(counts).collect();
    clusters.sort_unstable_by_key(|cluster| (cluster.first_answer, cluster.last_call));
    Ok(clusters)
}
