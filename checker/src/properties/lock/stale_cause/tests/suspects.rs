//! The stalls and faults that may be causes: those that are told late, and very many of them.

use history::{Event, StallCause};

use super::{HistoryBuilder, builder, ms};

#[test]
fn a_stall_of_the_resource_that_is_told_when_the_hold_has_closed_explains_it() {
    // The client has released another hold when the stall is told.
    for (process, expected) in [("resource", "stall"), ("worker-3", "unexplained")] {
        let mut s = builder();
        s.plan.workload.workers = 3;
        s.write(1, 1, 100, 2_502).release_refused(1, 2_503).acquire(3, 1, 2_510, 2_520, 43).release(3, 2_530);
        s.event(process, 2_600, Event::Stall { from: ms(90), to: ms(2_500), late: StallCause::Write });
        assert_eq!(s.causes(), [expected], "{process} stalled");
    }
}

#[test]
fn a_stall_of_a_restarted_resource_explains_an_act_that_waited() {
    // The write leaves at 2,100. Nobody planned the stall, which the second process of the resource tells.
    let mut s = HistoryBuilder::new();
    s.kill(1, "resource", 50).event("resource#2", 1_251, Event::Recovered { durable: 0 });
    s.acquire(1, 1, 2_000, 2_010, 41).acquire(2, 2, 4_000, 4_010, 42).release(2, 4_020);
    s.write(1, 1, 2_100, 4_502).stall("resource#2", 2_090, 4_500);
    assert_eq!(s.causes(), ["stall"]);
}

#[test]
fn very_many_suspects_are_tried_all_together() {
    // Without the pauses of 170 ms each, the write would arrive at 210, and with any ten of them at 1,910.
    let mut s = builder();
    for id in 1..=11 {
        let from = 180 * u64::from(id) - 80;
        s.pause(id, "worker-1", from, from + 170);
    }
    s.write(1, 1, 2_071, 2_080);
    assert_eq!(s.causes(), [["pause"; 11].join("+")]);
}

#[test]
fn the_last_of_very_many_suspects_is_tried_too() {
    for pauses in [32, 200] {
        let mut s = HistoryBuilder::renewing(600);
        s.acquire(1, 1, 0, 10, 41).work(1, 20, 5_000);
        for sent in (600..=3_600).step_by(600) {
            s.renew(1, sent, sent + 5);
        }
        for id in 1..=pauses {
            let from = 15 * u64::from(id) + 20;
            s.pause(id, "worker-1", from, from + 12);
        }
        s.pause(pauses + 1, "worker-1", 4_000, 8_000);
        s.acquire(2, 2, 5_600, 5_610, 42).release(2, 5_620).write(1, 1, 8_001, 8_002);
        let causes = s.causes();
        assert!(
            causes.iter().all(|cause| cause.split('+').all(|one| one == "pause")) && causes.len() == 1,
            "{causes:?}"
        );
    }
}

#[test]
fn a_kill_that_the_engine_refused_explains_nothing() {
    // If worker 1 reads before the heal, at 106, the checker has the end of the entitlement by then.
    for (told, is_seen) in [(150, false), (5_300, false), (5_300, true)] {
        let mut s = builder();
        if is_seen {
            s.read(1, 2, 104, 106);
        }
        s.kill_refused(1, "worker-1", 100, told).pause(2, "worker-1", 200, 5_200).write(1, 1, 5_201, 5_202);
        assert_eq!(s.causes(), ["pause"], "told at {told}, seen: {is_seen}");
    }
}
