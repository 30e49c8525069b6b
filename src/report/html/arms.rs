//! The arms of the resource side by side: each decided about the same requests.

use checker::{Property, Verdicts};
use history::{Arm, Comparison};
use serde::Serialize;

use crate::timeline::Timeline;

/// One arm in the table.
#[derive(Debug, Serialize)]
pub struct ArmRow {
    /// The name.
    name: &'static str,
    /// The arm's rule.
    rule: &'static str,
    /// The sum of all counters at the end.
    value: Option<u64>,
    /// Admitted writes.
    updates: u64,
    /// Updates that the final value does not contain.
    lost: u64,
    /// Writes that the arm refused.
    refused: u64,
    /// Admitted writes of a hold after a later hold had acted.
    stale: u64,
    /// Admitted writes of a hold after a later hold was acquired and before it acted.
    late: u64,
    /// The width of the bar of updates that are kept, lost and refused, in percent of the widest.
    bar: [f64; 3],
}

/// The updates of one arm that were lost, and all its updates.
pub fn lost_updates(verdicts: &Verdicts, arm: Arm) -> Option<(u64, u64)> {
    match verdicts.properties.get(&format!("{}.data", arm.name()))? {
        Property::Data(data) => Some((data.lost_updates, data.updates)),
        _ => None,
    }
}

/// Returns the arms of the run, in the order of every table. `fence` is the rule of the plan's fences.
pub fn arms(verdicts: &Verdicts, timeline: &Timeline, fence: Comparison) -> Vec<ArmRow> {
    let mut rows: Vec<ArmRow> = Arm::ALL.into_iter().filter_map(|arm| row(verdicts, timeline, arm, fence)).collect();
    let most = rows.iter().map(|row| row.updates + row.refused).max().unwrap_or_default().max(1);
    for row in &mut rows {
        let kept = row.updates.saturating_sub(row.lost);
        row.bar = [kept, row.lost, row.refused].map(|n| 100.0 * n as f64 / most as f64);
    }
    rows
}

fn row(verdicts: &Verdicts, timeline: &Timeline, arm: Arm, comparison: Comparison) -> Option<ArmRow> {
    let Property::Data(data) = verdicts.properties.get(&format!("{}.data", arm.name()))? else { return None };
    let fence = match verdicts.properties.get(&format!("{}.fence", arm.name())) {
        Some(Property::Fence(fence)) => Some(fence),
        _ => None,
    };
    Some(ArmRow {
        name: arm.name(),
        rule: match arm {
            Arm::Off => "No check: admits every write",
            Arm::Writes if comparison == Comparison::Strict => {
                "Fence: refuses a write whose token is not larger than that of an earlier write"
            }
            Arm::Writes => {
                "Fence: refuses a write if an earlier write had a larger token, or if a write of another hold had the \
                 same token"
            }
            Arm::Reads => {
                "Fence: refuses a write if an earlier write or read had a larger token, or if one of another hold had \
                 the same token"
            }
            Arm::Cas => "Compare and set: admits a write if the version that it read is still current",
            Arm::Guard => "Guard: admits a write if the lock key of its hold still exists, in one transaction",
            Arm::Deadline => "Deadline: admits a write if its deadline has not passed by the resource's own clock",
            Arm::Claim => "Claim: admits a write if no other hold has read since its own hold read",
        },
        value: timeline.values.iter().find(|(of, _)| *of == arm).map(|(_, value)| *value),
        updates: data.updates,
        lost: data.lost_updates,
        refused: data.refused,
        stale: fence.map(|fence| fence.stale_accepted).or(data.stale_accepted).unwrap_or_default(),
        late: fence.map(|fence| fence.late).or(data.late).unwrap_or_default(),
        bar: [0.0; 3],
    })
}
