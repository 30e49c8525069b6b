//! The clock of a process as the port for its code, and waiting by it.
//!
//! On a real machine, a clock that is rewritten in user space does not change the kernel's timers, so a process notices
//! a jump at its next reading. Here it notices at once.

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
    clock::duration,
    executor::{Process, Timer},
    thread_bound::lock,
    world::World,
};

/// The clock of one process, as the port for its code.
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

/// Waits until the monotonic clock of a process, or of the run, shows a time.
pub(crate) struct Sleep {
    world: Arc<World>,
    process: Option<Process>,
    /// No wider, because the alignment of an i128 slows the allocator down.
    at_ns: u64,
    armed: Option<(Stamp, Timer)>,
}

impl Sleep {
    /// Waits for a time by the run's own clock.
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
        match self.armed {
            Some((armed, timer)) if armed == due => self.world.executor.register(timer, cx.waker()),
            former => {
                if let Some((_, former)) = former {
                    self.world.executor.cancel(former);
                }
                self.armed = Some((due, self.world.executor.arm(self.process, due, cx.waker().clone())));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((_, timer)) = self.armed {
            self.world.executor.cancel(timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use history::{ClockChange, WhichClock};

    use super::*;
    use crate::{
        thread_bound::ThreadBound,
        world::tests::{REDIS, run_for, world},
    };

    #[test]
    fn a_sleep_follows_the_jumps_of_its_clock() {
        let ms = Duration::from_millis;
        for (by_ms, expected_ms) in [(300, 700), (-300, 1_300), (2_000, 500)] {
            let (world, ended) = (world(1, REDIS), Arc::new(ThreadBound::new(None)));
            let (process, start, end) = (world.worker(0), world.executor.now(), ended.clone());
            let clock = ProcessClock { world: world.clone(), process };
            let sleeper = async move {
                clock.sleep_until(clock.now() + ms(1_000)).await;
                *lock(&end) = Some(clock.world.executor.now().since(start));
            };
            world.executor.spawn(process, Box::pin(sleeper));
            run_for(&world, ms(500));
            world.move_clock(process, WhichClock::Monotonic, ClockChange::JumpMs(by_ms));
            run_for(&world, ms(1_000));
            assert_eq!(*lock(&ended), Some(ms(expected_ms)), "{by_ms} ms");
        }
    }
}
