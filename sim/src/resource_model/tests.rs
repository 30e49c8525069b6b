use history::{Arm, Comparison, Key};
use resource::Action;

use super::*;
use crate::clock::START;

const HOLD: HoldId = HoldId(1);
const SYNC: Duration = Duration::from_micros(300);

fn resource(is_fragile: bool) -> ResourceModel {
    ResourceModel::new(Policy::new(&[Arm::Off], Comparison::Default).unwrap(), None, is_fragile)
}

fn at(us: u64) -> Stamp {
    START.plus(Duration::from_micros(us))
}

/// Decides a read of the hold at a time. Returns its number, and whether it was a repeat.
fn read(resource: &mut ResourceModel, now: Stamp, op: OpId) -> (u64, bool) {
    let (key, hold, op) = (Key::numbered(0), Some(HOLD), Some(op));
    let request = Request { key, hold, op, token: None, deadline: None, action: Action::Read };
    let (decided, _) = resource.decide(now, now.plus(SYNC), &request);
    decided.map(|admission| (admission.number.0, admission.repeat)).unwrap()
}

#[test]
fn a_copy_under_way_is_answered_as_before_also_after_the_completion() {
    let mut resource = resource(false);
    let (first, late) = (resource.copies.sent(HOLD, OpId(1)), resource.copies.sent(HOLD, OpId(1)));
    assert_eq!(read(&mut resource, at(0), OpId(1)), (1, false));
    drop(first);
    resource.copies.completed(HOLD, OpId(1));
    assert_eq!(read(&mut resource, at(1), OpId(2)), (2, false));
    assert_eq!(read(&mut resource, at(2), OpId(1)), (1, true));
    drop(late);
    read(&mut resource, at(3), OpId(2));
    assert!(resource.state.former(HOLD, OpId(1)).is_none(), "no copy can arrive any more");
}

#[test]
fn the_disk_forgets_an_operation_after_its_decision_has_reached_it() {
    let mut resource = resource(true);
    let copy = resource.copies.sent(HOLD, OpId(1));
    read(&mut resource, at(0), OpId(1));
    drop(copy);
    resource.copies.completed(HOLD, OpId(1));
    read(&mut resource, at(1), OpId(2));
    read(&mut resource, at(1_000), OpId(3));
    let disk = resource.disk.as_ref().unwrap();
    assert!(disk.state.former(HOLD, OpId(1)).is_none() && disk.state.former(HOLD, OpId(2)).is_some());
}

#[test]
fn no_number_is_used_twice_although_kills_leave_no_decision_on_the_disk() {
    let mut resource = resource(true);
    let mut numbers = Vec::new();
    for n in 0..3 {
        numbers.push(read(&mut resource, at(1_000 * n), OpId(1)).0);
        resource.killed(at(1_000 * n + 1));
        assert_eq!(resource.restart(), Version(0));
    }
    assert_eq!(numbers[0], 1);
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
}

#[test]
fn a_kill_loses_pending_decisions_and_still_forgets() {
    let mut resource = resource(true);
    let copy = resource.copies.sent(HOLD, OpId(1));
    read(&mut resource, at(0), OpId(1));
    read(&mut resource, at(1_000), OpId(2));
    drop(copy);
    resource.copies.completed(HOLD, OpId(1));
    read(&mut resource, at(1_001), OpId(3));
    resource.killed(at(1_002));
    assert_eq!(resource.restart(), Version(1));
    assert!((1..=3).all(|op| resource.state.former(HOLD, OpId(op)).is_none()));
}

#[test]
fn a_decision_is_on_the_disk_after_all_earlier_ones() {
    let mut resource = resource(true);
    let mut decide = |op, synced| {
        let (key, hold, op) = (Key::numbered(0), Some(HOLD), Some(OpId(op)));
        let request = Request { key, hold, op, token: None, deadline: None, action: Action::Read };
        resource.decide(at(0), at(synced), &request).1
    };
    assert_eq!((decide(1, 600), decide(2, 150), decide(3, 700)), (at(600), at(600), at(700)));
}
