use history::{Mode, OpId, Role, StallCause};

use super::*;

/// The client acquires the lock under this hold.
fn acquires(view: &mut View, hold: HoldId) {
    let (client, key, mode) = (ClientId(0), Key::numbered(0), Mode::Write);
    let acquire = Event::Acquire { client, attempt: hold, key, intended: Stamp(1), mode, above: None };
    let acquired = Event::Acquired {
        attempt: hold,
        token: None,
        lease_ns: 1,
        granted_after: Stamp(1),
        promised_from: None,
        place: None,
        valid_ns: 1,
        answers: Vec::new(),
    };
    for event in [acquire, acquired] {
        see(view, Stamp(1), event);
    }
}

fn see(view: &mut View, at: Stamp, event: Event) {
    see_of(view, "worker-1", at, event);
}

fn see_of(view: &mut View, process: &str, at: Stamp, event: Event) {
    view.see(&Record { seq: 0, process: ProcessName::new(process), n: 0, at, event });
}

fn starts(view: &mut View, process: &str, at: Stamp) {
    see_of(view, process, at, Event::Started { role: Role::Worker, boot_id: "b".into(), time_namespace: 1 });
}

#[test]
fn the_end_of_a_targeted_hold_outlasts_thousands_of_later_holds() {
    let mut view = View::default();
    let (first, second) = (HoldId(1), HoldId(2));
    acquires(&mut view, first);
    see(&mut view, Stamp(10), Event::Release { hold: first });
    acquires(&mut view, second);
    // The first hold ended before its fault was requested, the second hold ends later.
    view.watch(FaultId(1), first);
    view.watch(FaultId(2), second);
    assert_eq!([1, 2].map(|fault| view.end_of_target(FaultId(fault))), [Some(Stamp(10)), None]);
    see(&mut view, Stamp(20), Event::LossNoticed { hold: second });
    for other in (3..).take(2 * REMEMBERED).map(HoldId) {
        acquires(&mut view, other);
        see(&mut view, Stamp(30), Event::Release { hold: other });
    }
    assert_eq!([1, 2].map(|fault| view.end_of_target(FaultId(fault))), [Some(Stamp(10)), Some(Stamp(20))]);
}

#[test]
fn a_full_queue_forgets_its_oldest_item_and_no_other() {
    let mut queue = VecDeque::new();
    (0..=REMEMBERED).for_each(|item| remember(&mut queue, item));
    assert!(queue.into_iter().eq(1..=REMEMBERED));
}

#[test]
fn a_process_that_has_ended_holds_nothing_and_waits_nowhere() {
    let mut view = View::default();
    let (client, hold, point) = (ClientId(0), HoldId(1), Point::BeforeWrite);
    let (node, ended) = (NodeName::new("worker-1"), ProcessName::new("worker-1"));
    starts(&mut view, "worker-1", Stamp(1));
    acquires(&mut view, hold);
    see(&mut view, Stamp(5), Event::AtPoint { client, hold, point });
    assert_eq!(view.holder().map(|holder| holder.hold), Some(hold));
    assert_eq!(view.arrived_at(client, point), Some((hold, Stamp(5))));
    let event = Event::ProcessEnded { ended: ended.clone(), code: Some(137) };
    see_of(&mut view, "controller", Stamp(9), event);
    assert_eq!((view.process(&node), view.end_of(&ended)), (None, Some(Stamp(5))));
    assert_eq!(view.progress(&node), None);
    assert_eq!((view.holder(), view.arrived_at(client, point)), (None, None));
}

#[test]
fn the_holder_is_the_newest_hold_that_has_not_ended() {
    let mut view = View::default();
    let [first, second] = [1, 2].map(HoldId);
    acquires(&mut view, first);
    acquires(&mut view, second);
    assert_eq!(view.holder().map(|holder| holder.hold), Some(second));
    see(&mut view, Stamp(5), Event::Release { hold: second });
    assert_eq!(view.holder().map(|holder| holder.hold), Some(first));
}

#[test]
fn a_client_that_stops_using_its_hold_holds_nothing() {
    let hold = HoldId(1);
    for event in [Event::Release { hold }, Event::GaveUp { hold }, Event::LossNoticed { hold }] {
        let mut view = View::default();
        acquires(&mut view, hold);
        view.watch(FaultId(1), hold);
        see(&mut view, Stamp(5), event.clone());
        assert_eq!((view.holder(), view.end_of_target(FaultId(1))), (None, Some(Stamp(5))), "{event:?}");
    }
}

#[test]
fn only_a_later_write_of_another_hold_ends_a_wait() {
    let (client, waiting, other) = (ClientId(0), HoldId(1), HoldId(2));
    let workers = ["worker-1", "worker-2", "worker-3"].map(NodeName::new);
    let writers = [None, Some(&workers[0]), Some(&workers[1]), Some(&workers[2])];
    // The other client is one of the same worker, or of another one.
    for (process, ends) in [("worker-1", [true, true, false, false]), ("worker-2", [true, false, true, false])] {
        let mut view = View::default();
        see_of(&mut view, process, Stamp(4), Event::WriteOk { hold: other, op: OpId(1), number: 1, arms: None });
        see(&mut view, Stamp(5), Event::AtPoint { client, hold: waiting, point: Point::BeforeWrite });
        let mut wrote = |process: &str, at, hold| {
            see_of(&mut view, process, at, Event::WriteOk { hold, op: OpId(1), number: 1, arms: None });
            writers.map(|writer| view.another_wrote(client, writer))
        };
        assert_eq!(wrote(process, Stamp(5), other), [false; 4], "the write is not later");
        assert_eq!(wrote("worker-1", Stamp(6), waiting), [false; 4], "the write is that of the waiting client");
        assert_eq!(wrote(process, Stamp(7), other), ends, "{process}");
    }
}

#[test]
fn a_late_event_of_a_former_process_shows_no_life() {
    let mut view = View::default();
    starts(&mut view, "worker-1", Stamp(1));
    starts(&mut view, "worker-1#2", Stamp(10));
    see(&mut view, Stamp(20), Event::Watermark);
    let second = ProcessName::new("worker-1#2");
    assert_eq!(view.life(&NodeName::new("worker-1")), Some((&second, Stamp(10), Stamp(10))));
}

#[test]
fn the_targeted_hold_of_an_ended_step_is_forgotten() {
    let live_view = LiveView::new();
    live_view.watch(FaultId(1), HoldId(1));
    live_view.end_step(FaultId(1));
    assert!(live_view.look(|view| view.watched.is_empty()));
}

#[test]
fn a_fault_that_was_not_healed_is_off_when_its_step_has_ended() {
    let (live_view, fault) = (LiveView::new(), FaultId(1));
    let phase = FaultPhase::Requested { asked_ns: 1, hold: None };
    let event = Event::Fault { fault, kind: history::FaultKind::Partition, node: "redis-1".into(), phase };
    live_view.see(&Record { seq: 0, process: "agent".into(), n: 0, at: Stamp(1), event });
    let on = || live_view.look(|view| view.faults_on().count());
    assert_eq!(on(), 1);
    live_view.end_step(fault);
    assert_eq!(on(), 0);
}

#[test]
fn the_time_before_a_span_is_no_stall_within_it() {
    let (mut view, process) = (View::default(), ProcessName::new("worker-1"));
    for (from, to) in [(0, 1_010), (1_100, 1_150), (1_980, 2_040), (2_100, 2_900)] {
        let event = Event::Stall { from: Stamp(from), to: Stamp(to), late: StallCause::Tick };
        see(&mut view, Stamp(to), event);
    }
    let within = |from, to| view.stall_within(&process, (Stamp(from), Stamp(to)));
    assert_eq!(within(1_000, 1_100), Some((Stamp(1_000), Stamp(1_010))), "somebody else froze it before");
    assert_eq!(within(1_000, 1_200), Some((Stamp(1_100), Stamp(1_150))));
    assert_eq!(within(1_000, 2_000), Some((Stamp(1_980), Stamp(2_040))));
    assert_eq!(within(1_200, 1_900), None);
}
