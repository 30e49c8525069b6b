//! The clocks of a process, and waiting by them.
//!
//! A clock runs at a rate from a base; a jump and a new rate make a new base. What is left out: timers of a real kernel are not moved by a
//! clock that is rewritten in user space, so that a real process notices a jump when it next looks; here it looks at once.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use history::Stamp;
use locks::{Clock, Reply};

use crate::{
    executor::{Process, Timer},
    local::lock,
    world::World,
};

/// One clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticking {
    since: Stamp,
    base_ns: i128,
    ppm: i32,
}

impl Ticking {
    /// A clock that shows `base_ns` at `since`, and runs right.
    pub fn new(since: Stamp, base_ns: i128) -> Self {
        Ticking { since, base_ns, ppm: 0 }
    }

    /// What it shows at `now`.
    pub fn shows_ns(&self, now: Stamp) -> i128 {
        let passed = i128::from(now.0.saturating_sub(self.since.0));
        if self.ppm == 0 {
            return self.base_ns + passed;
        }
        self.base_ns + passed + (passed * i128::from(self.ppm)).div_euclid(1_000_000)
    }

    /// When it will show `shown_ns`, or a moment later.
    pub fn when(&self, shown_ns: i128) -> Stamp {
        let missing = (shown_ns - self.base_ns).max(0);
        let passed = if self.ppm == 0 {
            missing
        } else {
            let rate = 1_000_000 + i128::from(self.ppm);
            (missing * 1_000_000 + rate - 1) / rate
        };
        Stamp(self.since.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    /// Jumps by so many milliseconds at `now`.
    pub fn jump(&mut self, now: Stamp, by_ms: i64) {
        *self = Ticking { since: now, base_ns: self.shows_ns(now) + i128::from(by_ms) * 1_000_000, ppm: self.ppm };
    }

    /// Goes on at another rate at `now`.
    pub fn drift(&mut self, now: Stamp, ppm: i32) {
        *self = Ticking { since: now, base_ns: self.shows_ns(now), ppm };
    }
}

/// Both clocks of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    pub monotonic: Ticking,
    pub wall: Ticking,
}

/// At the start of a run the kernel has been up for so long, and it is so late.
const UPTIME_NS: i128 = 1_000 * 1_000_000_000;
const EPOCH_NS: i128 = 1_700_000_000 * 1_000_000_000;

impl Clocks {
    /// Clocks of a process that nobody has touched.
    pub fn right(start: Stamp) -> Clocks {
        Clocks { monotonic: Ticking::new(start, UPTIME_NS), wall: Ticking::new(start, EPOCH_NS) }
    }
}

pub(crate) fn duration(ns: i128) -> Duration {
    Duration::from_nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
}

/// The clock of one process, as its code reads it.
pub(crate) struct ProcessClock {
    pub world: Arc<World>,
    pub process: Process,
}

impl Clock for ProcessClock {
    fn now(&self) -> Duration {
        let now = self.world.executor.now();
        duration(lock(&self.world.clocks[self.process]).monotonic.shows_ns(now))
    }

    fn wall(&self) -> Duration {
        self.world.wall(self.process)
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        let (world, process) = (self.world.clone(), self.process);
        let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        Box::pin(Sleep { world, process: Some(process), at_ns, armed: None })
    }
}

/// Waits until a process's monotonic clock shows a time; by the run's own clock where no process is named.
pub(crate) struct Sleep {
    world: Arc<World>,
    process: Option<Process>,
    /// No wider: an i128 would give every box of these an alignment that the allocator is slow with.
    at_ns: u64,
    armed: Option<(Stamp, Arc<Timer>)>,
}

impl Sleep {
    /// Waits so long by the run's own clock.
    pub fn lasting(world: &Arc<World>, lasting: Duration) -> Sleep {
        let at = world.executor.now().plus(lasting);
        Sleep { world: world.clone(), process: None, at_ns: at.0, armed: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.world.executor.now();
        let due = match self.process {
            None => Stamp(self.at_ns),
            Some(process) => {
                let (clock, at_ns) = (lock(&self.world.clocks[process]).monotonic, i128::from(self.at_ns));
                if clock.shows_ns(now) >= at_ns { now } else { clock.when(at_ns) }
            }
        };
        if due <= now {
            return Poll::Ready(());
        }
        match &self.armed {
            Some((armed, timer)) if *armed == due => timer.register(cx.waker()),
            _ => {
                if let Some((_, former)) = self.armed.take() {
                    former.call_off();
                }
                let timer = Arc::new(Timer::default());
                timer.register(cx.waker());
                self.world.executor.arm(due, timer.clone());
                self.armed = Some((due, timer));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((_, timer)) = &self.armed {
            timer.call_off();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_clock_shows_its_jumps_and_its_drift() {
        let mut clock = Ticking::new(Stamp(S), 0);
        assert_eq!(clock.shows_ns(Stamp(3 * S)), 2 * i128::from(S));
        clock.jump(Stamp(3 * S), -500);
        assert_eq!(clock.shows_ns(Stamp(3 * S)), 1_500_000_000);
        clock.drift(Stamp(3 * S), 100_000);
        assert_eq!(clock.shows_ns(Stamp(13 * S)), 12_500_000_000);
        clock.drift(Stamp(13 * S), 0);
        assert_eq!(clock.shows_ns(Stamp(14 * S)), 13_500_000_000);
    }

    #[test]
    fn when_a_clock_will_show_a_time_it_shows_it() {
        for ppm in [0, 1, -1, 333_333, -333_333] {
            let mut clock = Ticking::new(Stamp(7), 1_000);
            clock.drift(Stamp(10), ppm);
            for shown in [1_003, 1_004, 123_456_789, 9_999_999_999] {
                let when = clock.when(shown);
                assert!(clock.shows_ns(when) >= shown, "{ppm} {shown}");
                assert!(clock.shows_ns(Stamp(when.0 - 1)) < shown || when.0 == 10, "{ppm} {shown}");
            }
        }
    }
}
