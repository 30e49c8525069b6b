//! Properties 3 and 4 on one arm: every entry of the log against every other.

use std::collections::BTreeMap;

use history::{Arm, ArmDecision, Comparison};

use super::facts::{Entry, Facts, Hold};
use crate::expected::{Data, Fence, judged};

/// Entries that decided something under a hold, with the decision of `arm`. Nothing shows whose the others are.
fn operations(f: &Facts, arm: Arm) -> Vec<(&Entry, &ArmDecision, &Hold)> {
    let entries = f.log.iter().filter(|e| !e.repeat && !f.is_contradicted(e));
    entries
        .filter_map(|e| {
            let hold = f.holds.get(&e.hold?).filter(|h| h.acquired.is_some())?;
            Some((e, e.arms.iter().find(|d| d.arm == arm)?, hold))
        })
        .collect()
}

/// The number of the first operation of `hold` on `arm` that counts as one.
fn first(ops: &[(&Entry, &ArmDecision, &Hold)], arm: Arm, hold: &Hold) -> Option<u64> {
    let counts =
        |o: &&(&Entry, &ArmDecision, &Hold)| o.2.id == hold.id && o.1.admitted && (o.0.write || arm != Arm::Writes);
    ops.iter().find(counts).map(|o| o.0.number)
}

/// Stale accepted, late, stale reads.
fn stale(f: &Facts, arm: Arm) -> (u64, u64, u64) {
    let ops = operations(f, arm);
    let (mut accepted, mut late, mut reads) = (0, 0, 0);
    for (e, d, h) in &ops {
        let later: Vec<_> = f.holds.values().filter(|g| g.acquired.is_some() && g.later_than(h)).collect();
        let after_first = later.iter().any(|g| first(&ops, arm, g).is_some_and(|n| n < e.number));
        let after_grant = later.iter().any(|g| g.acquired.is_some_and(|a| a < e.at));
        match (e.write, d.admitted) {
            (true, true) if after_first => accepted += 1,
            (true, true) if after_grant => late += 1,
            (false, _) if after_first => reads += 1,
            _ => {}
        }
    }
    (accepted, late, reads)
}

/// The registered token before entry `number`: the largest, the hold that registered it first, and whether that was by
/// an entry that the clients contradict.
fn registered(f: &Facts, arm: Arm, key: &str, number: u64) -> Option<(u64, u64, bool)> {
    let mut state: Option<(u64, u64, bool)> = None;
    for e in f.log.iter().filter(|e| !e.repeat && e.number < number && e.key == key) {
        let Some(d) = e.arms.iter().find(|d| d.arm == arm) else { continue };
        let registers = if e.write { d.admitted } else { arm == Arm::Reads };
        if registers
            && let (Some(token), Some(hold)) = (e.token, e.hold)
            && state.is_none_or(|(largest, ..)| token > largest)
        {
            state = Some((token, hold, f.is_contradicted(e)));
        }
    }
    state
}

pub fn fence(f: &Facts, arm: Arm) -> Fence {
    let ops = operations(f, arm);
    let strict = f.plan.fence == Comparison::Strict;
    let mut fence = Fence::default();
    (fence.stale_accepted, fence.late, fence.stale_reads) = stale(f, arm);
    for (e, d, h) in ops.iter().filter(|o| o.0.write) {
        let state = registered(f, arm, &e.key, e.number);
        let foreign = match (state, e.token) {
            (Some((largest, by, _)), Some(token)) => largest > token || (largest == token && by != h.id),
            _ => false,
        };
        let own = strict && matches!((state, e.token), (Some((largest, by, _)), Some(t)) if largest == t && by == h.id);
        match (d.admitted, foreign, own) {
            (true, false, false) => {}
            (true, _, _) | (false, false, false) => fence.unjustified += 1,
            (false, false, true) => fence.repeats += 1,
            (false, true, _) => {
                let by = state.filter(|by| !by.2).and_then(|(_, by, _)| f.holds.get(&by));
                if by.is_some_and(|g| g.later_than(h)) {
                    fence.stale_rejected += 1;
                } else if by.is_some_and(|g| h.later_than(g)) {
                    fence.false_rejections += 1;
                } else {
                    fence.undecided += 1;
                }
            }
        }
    }
    fence.verdict = judged(fence.stale_accepted + fence.unjustified + fence.false_rejections > 0, false);
    fence
}

pub fn data(f: &Facts, arm: Arm) -> Data {
    let mut data = Data::default();
    if !arm.fences() {
        let (accepted, late, _) = stale(f, arm);
        (data.stale_accepted, data.late) = (Some(accepted), Some(late));
    }
    let mut keys: BTreeMap<&str, (u64, u64, BTreeMap<u64, u64>)> = BTreeMap::new();
    for e in f.log.iter().filter(|e| !e.repeat) {
        let Some(d) = e.arms.iter().find(|d| d.arm == arm) else { continue };
        let (version, updates, depths) = keys.entry(&e.key).or_insert_with(|| (0, 0, BTreeMap::from([(0, 0)])));
        if e.write && d.admitted {
            *updates += 1;
            data.updates += 1;
            data.overwrites += u64::from(d.base != Some(*version));
            let depth = d.base.and_then(|b| depths.get(&b)).map_or(1, |d| d + 1);
            depths.insert(e.number, depth);
            *version = e.number;
        } else if e.write {
            data.refused += 1;
        }
        if e.write && arm == Arm::Cas {
            // The version before the write gives the correct decision of `cas`.
            let before = previous(f, arm, e);
            data.unjustified += u64::from(d.admitted != (d.base == Some(before)));
        }
        if e.write && arm == Arm::Claim {
            // The newest claim is that of the last read under a hold.
            let reads = f.log.iter().filter(|o| o.number < e.number && o.key == e.key && !o.write && !o.repeat);
            let newest = reads.filter_map(|o| o.hold).next_back();
            data.unjustified += u64::from(d.admitted != (newest.is_some() && newest == e.hold));
        }
        let depth = depths.get(version).copied();
        data.disagreements += u64::from(d.version != *version || depth != Some(d.value));
    }
    for (version, updates, depths) in keys.values() {
        data.lost_updates += updates - depths.get(version).copied().unwrap_or(0).min(*updates);
    }
    let wrong = data.unjustified + data.disagreements > 0;
    data.verdict = if arm.keeps_data() {
        judged(wrong || data.lost_updates > 0, false)
    } else if wrong {
        "violated".to_owned()
    } else {
        "measured".to_owned()
    };
    data
}

/// The version on `arm` before entry `e`.
fn previous(f: &Facts, arm: Arm, e: &Entry) -> u64 {
    let writes = f.log.iter().filter(|o| o.number < e.number && o.key == e.key && o.write && !o.repeat);
    let admitted = writes.filter(|o| o.arms.iter().any(|d| d.arm == arm && d.admitted));
    admitted.map(|o| o.number).max().unwrap_or(0)
}
