//! Tests: the proof of a clock that jumps forth and back.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::executor::block_on;
use history::{Fault, FaultId, Step, Target, Until, When};

use super::*;
use crate::{
    LiveView,
    double::{Answers, Double},
    waits::tests,
};

/// A clock that a process and its server show with these offsets in turn, in milliseconds. A server without offsets
/// reports no time.
struct Turns {
    read_ms: &'static [i64],
    told_ms: &'static [i64],
    readings: AtomicUsize,
}

impl Answers for Turns {
    fn clock_ahead_ns(&self) -> i64 {
        let reading = self.readings.fetch_add(1, Ordering::Relaxed);
        self.read_ms[reading % self.read_ms.len()] * 1_000_000
    }

    fn told_ahead_ns(&self) -> Option<(i64, i64)> {
        let reading = self.readings.load(Ordering::Relaxed);
        let told_ns = self.told_ms.iter().cycle().nth(reading)? * 1_000_000;
        Some((told_ns, told_ns))
    }

    fn sleep(&self, _: Duration) {}
}

/// The missing proof of a clock that was ahead by 7 ms, and jumps forth by 500 ms.
fn missing(read_ms: &'static [i64], told_ms: &'static [i64]) -> Option<String> {
    let (every_ms, lasting) = (100, Duration::from_secs(2));
    let change = ClockChange::Strobe { by_ms: 500, every_ms };
    let (target, when) = (Target::Node("redis-1".into()), When::At(Duration::ZERO));
    let fault = Fault::new(Clock { clock: WhichClock::Wall, change }, lasting);
    let step = Step { id: FaultId(1), fault, target, when };
    let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
    let (double, live_view) = (Double(Turns { read_ms, told_ms, readings: AtomicUsize::new(0) }), LiveView::new());
    let injection = double.injection(&live_view, &plan, &step, "redis-1".into());
    block_on(strobe(&injection, [507_000_000, 7_000_000], Duration::from_millis(every_ms), lasting)).unwrap()
}

#[test]
fn a_strobe_is_seen_at_both_places_by_the_process_and_by_the_server() {
    let both: &[i64] = &[7, 507];
    let cases: [(&'static [i64], &'static [i64], Option<&str>); 8] = [
        (both, &[], None),
        (&[12, 502], &[], None),
        (&[7, 501], &[], Some("jump forth repeatedly; its process")),
        (&[507], &[], Some("jump back repeatedly; its process")),
        (both, both, None),
        (both, &[7], Some("jump forth repeatedly; its server")),
        (both, &[507], Some("jump back repeatedly; its server")),
        (&[507], both, Some("jump back repeatedly; its process")),
    ];
    for (read_ms, told_ms, expected) in cases {
        match (missing(read_ms, told_ms), expected) {
            (None, None) => {}
            (Some(why), Some(words)) => assert!(why.contains(words), "{why}"),
            (missing, _) => panic!("{read_ms:?} {told_ms:?}: {missing:?}"),
        }
    }
}
