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
