//! Decisions that a restart of the resource undid.

use history::{Event, HoldId, OpId};

use super::{judged, ok, quiet, restarted};

#[test]
fn an_answer_to_an_undone_decision_is_lost_though_another_one_followed() {
    // The write is #4, which is not on disk at the kill. Another copy of it is decided as #5.
    for (answered, lost) in [(4, 1), (5, 0)] {
        let mut s = quiet();
        s.write(2, 2, 98, 99).event("worker-2", 1_305, Event::Resend { hold: HoldId(2), op: OpId(2) });
        restarted(&mut s, 3)
            .forget(4, 3)
            .decided_again(2, 2, 1_310)
            .event("worker-2", 1_320, ok(2, 2, answered))
            .release(2, 1_330);
        let found = judged(&s);
        assert_eq!((found.acknowledged_lost, found.wrong_answers), (lost, 0), "answered as #{answered}: {found:?}");
    }
}

#[test]
fn an_undone_decision_counts_once_however_many_copies_had_its_answer() {
    for copies in 0..3 {
        let mut s = quiet();
        s.write(2, 2, 44, 45);
        (0..copies).for_each(|n| _ = s.arrives_again(2, 2, 50 + n));
        let found = judged(restarted(&mut s, 3).release(2, 1_330));
        assert_eq!((found.undone, found.restarts), (1, 1), "{copies} copies: {found:?}");
    }
}
