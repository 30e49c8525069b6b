//! Claims that the promise does not cover.

use std::time::Duration;

use history::{
    ClockChange, Event, Fault, FaultId, FaultKind, FaultPhase, HoldId, NodeAnswer, NodeName, Role, Step, Target, When,
    WhichClock, fault,
};

use super::{A, B, Holder, Tale, stamp};

/// The answer took 30 ms, and the client counts its lease from then on. It is frozen until its promise has ended.
pub fn deadline_from_answer() -> Tale {
    let mut t = Tale::new(Some(2_500));
    t.acquired(1_000, 1_030, A);
    if let Some((.., Event::Acquired { valid_ns, .. })) = t.told.last_mut() {
        *valid_ns = 1_978_000_000;
    }
    t.pause(1_100, 3_600, "worker-1")
        .acquired(3_100, 3_101, B)
        .release(3_200, 3_201, B, NodeAnswer::Done)
        .access(A, 1, [3_601, 3_602, 3_603], None, Some(42), [(true, 0, 0), (true, 0, 0)])
        .release(3_604, 3_605, A, NodeAnswer::Refused);
    t
}

/// A client checks its deadline when it writes. The first check is the last that may pass, at the promise end.
pub fn checked_too_late() -> Tale {
    let mut t = Tale::new(None);
    let check = || Event::Check { hold: HoldId(A.id), passed: true };
    t.acquired(100, 102, A)
        .access(A, 1, [103, 104, 105], None, None, [(true, 0, 0), (true, 0, 0)])
        .work(105, A, 1_970)
        .at(2_078, A.worker, check())
        .access(A, 2, [2_079, 2_080, 2_081], Some(0), None, [(true, 2, 1), (true, 2, 1)])
        .at(2_098, A.worker, check())
        .access(A, 3, [2_099, 2_100, 2_101], Some(2), None, [(true, 3, 2), (true, 3, 2)])
        .release(2_102, 2_103, A, NodeAnswer::Done);
    t
}

/// The same, and the worker's clock ran slow by a fault: it lost 50 ms before the second check.
pub fn checked_by_slow_clock() -> Tale {
    let mut t = checked_too_late();
    let drift = fault::Clock { clock: WhichClock::Monotonic, change: ClockChange::DriftPpm(-100_000) };
    t.plan.schedule = vec![Step {
        id: FaultId(1),
        fault: Fault::new(drift, Duration::from_millis(500)),
        target: Target::Node("worker-1".into()),
        when: When::AfterHeal(Duration::from_millis(100)),
    }];
    let phase =
        |phase| Event::Fault { fault: FaultId(1), kind: FaultKind::Clock, node: NodeName::from("worker-1"), phase };
    t.at(200, "agent", phase(FaultPhase::Requested { asked_ns: 500_000_000, hold: None }))
        .at(201, "agent", phase(FaultPhase::Injected))
        .at(699, "agent", phase(FaultPhase::HealRequested))
        .at(700, "agent", phase(FaultPhase::Healed))
        .at(701, "agent", phase(FaultPhase::Proved { from: stamp(201), to: stamp(699) }))
        .at(702, "agent", phase(FaultPhase::HealProved));
    t
}

/// The holder is killed, and the key is granted to another client 500 ms before the end of the promise. If the dying
/// process still released, the service broke no promise.
pub fn cut_short(released: Option<u64>) -> Tale {
    let mut t = Tale::new(None);
    let kill = Fault::new(fault::Kill {}, Duration::from_millis(1_000));
    let (target, when) = (Target::Node("worker-1".into()), When::AfterHeal(Duration::from_millis(100)));
    t.plan.schedule = vec![Step { id: FaultId(1), fault: kill, target, when }];
    let node = || NodeName::from("worker-1");
    let phase = |phase| Event::Fault { fault: FaultId(1), kind: FaultKind::Kill, node: node(), phase };
    t.acquired(2_000, 2_002, A)
        .access(A, 1, [2_003, 2_004, 2_005], None, None, [(true, 0, 0), (true, 0, 0)])
        .work(2_005, A, 1_000)
        .at(2_500, "agent", phase(FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None }));
    if let Some(at) = released {
        t.at(at, A.worker, Event::Release { hold: HoldId(A.id) });
    }
    t.at(2_520, "agent", phase(FaultPhase::Injected))
        .acquired(3_470, 3_478, B)
        .release(3_480, 3_481, B, NodeAnswer::Done)
        .at(3_520, "agent", phase(FaultPhase::HealRequested))
        .at(3_540, "agent", phase(FaultPhase::Healed));
    t.killed.push("worker-1");
    t.started("worker-1#2", Role::Worker);
    if let Some((at, ..)) = t.told.last_mut() {
        *at = 3_535;
    }
    t.at(3_560, "agent", phase(FaultPhase::Proved { from: stamp(2_505), to: stamp(3_535) })).at(
        3_561,
        "agent",
        phase(FaultPhase::HealProved),
    );
    t
}

/// The key is granted to another client inside the promise to the holder, and the other client is killed at the stamp
/// of its success: it is entitled at no instant, and nobody was killed whose promise was cut short.
pub fn killed_at_once() -> Tale {
    let mut t = Tale::new(None);
    let kill = Fault::new(fault::Kill {}, Duration::from_millis(1_000));
    let (target, when) = (Target::Node("worker-2".into()), When::AfterHeal(Duration::from_millis(100)));
    t.plan.schedule = vec![Step { id: FaultId(1), fault: kill, target, when }];
    let node = || NodeName::from("worker-2");
    let phase = |phase| Event::Fault { fault: FaultId(1), kind: FaultKind::Kill, node: node(), phase };
    t.acquired(2_000, 2_002, A)
        .access(A, 1, [2_003, 2_004, 2_005], None, None, [(true, 0, 0), (true, 0, 0)])
        .work(2_005, A, 1_000)
        .acquired(2_490, 2_500, B)
        .at(2_500, "agent", phase(FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None }))
        .at(2_520, "agent", phase(FaultPhase::Injected))
        .release(3_100, 3_101, A, NodeAnswer::Refused)
        .at(3_520, "agent", phase(FaultPhase::HealRequested))
        .at(3_540, "agent", phase(FaultPhase::Healed));
    t.killed.push("worker-2");
    t.started("worker-2#2", Role::Worker);
    if let Some((at, ..)) = t.told.last_mut() {
        *at = 3_535;
    }
    t.at(3_560, "agent", phase(FaultPhase::Proved { from: stamp(2_505), to: stamp(3_535) })).at(
        3_561,
        "agent",
        phase(FaultPhase::HealProved),
    );
    t
}

/// Two of five nodes granted the lock, and its client took it.
pub fn minority_claim() -> Tale {
    let mut t = Tale::new(None);
    let node = |n: u32| NodeName::new(format!("redis-{n}"));
    (t.plan.backend, t.plan.lock_nodes) = ("redlock".into(), (1..=5).map(node).collect());
    let answer = |n| if n < 3 { NodeAnswer::Granted } else { NodeAnswer::None };
    t.acquired(100, 102, A);
    if let Some((.., Event::Acquired { answers, .. })) = t.told.last_mut() {
        *answers = (1..=5).map(|n| (node(n), answer(n))).collect();
    }
    t.access(A, 1, [103, 104, 105], None, None, [(true, 0, 0), (true, 0, 0)]).release(106, 107, A, NodeAnswer::Done);
    t
}

/// A client releases, and then writes and releases again, when the next client has acquired and read.
pub fn used_after_release() -> Tale {
    let mut t = Tale::new(None);
    t.acquired(100, 102, A)
        .access(A, 1, [103, 104, 105], None, None, [(true, 0, 0), (true, 0, 0)])
        .release(300, 301, A, NodeAnswer::Done)
        .acquired(400, 402, B)
        .access(B, 1, [403, 404, 405], None, Some(41), [(true, 0, 0), (true, 0, 0)])
        .access(A, 2, [500, 501, 502], Some(0), Some(42), [(true, 3, 1), (false, 0, 0)])
        .release(503, 504, A, NodeAnswer::Refused)
        .release(600, 601, B, NodeAnswer::Done);
    t
}

/// A client writes and releases under a released hold: while its next attempt is refused, under its next hold, and
/// after the release of that hold.
pub fn used_after_next_attempt() -> Tale {
    let (refused, next) = (Holder { id: 2, ..A }, Holder { id: 3, token: 43, ..A });
    let mut t = Tale::new(None);
    t.acquired(100, 102, A)
        .access(A, 1, [103, 104, 105], Some(0), None, [(true, 1, 1), (true, 1, 1)])
        .release(300, 301, A, NodeAnswer::Done)
        .acquired(400, 402, B)
        .access(B, 1, [403, 404, 405], Some(1), Some(41), [(true, 2, 2), (true, 2, 2)])
        .held(450, 452, refused)
        .access(A, 2, [500, 501, 502], Some(1), Some(42), [(true, 3, 2), (false, 2, 2)])
        .release(503, 504, A, NodeAnswer::Refused)
        .release(600, 601, B, NodeAnswer::Done)
        .acquired(700, 702, next)
        .access(A, 3, [710, 711, 712], Some(1), Some(42), [(true, 4, 2), (false, 2, 2)])
        .release(720, 721, next, NodeAnswer::Done)
        .access(A, 4, [800, 801, 802], Some(1), Some(42), [(true, 5, 2), (false, 2, 2)]);
    t
}
