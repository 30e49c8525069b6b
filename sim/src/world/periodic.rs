//! Faults that repeat until they are healed: a strobing wall clock, and a quota of processor time in each period.
//!
//! A slowed process runs for its quota of each period of 100 ms, and is frozen for the rest. Code takes no time in this
//! model, so an idle process loses as much time as a busy one, and more than under a real kernel.

use std::{sync::Arc, time::Duration};

use history::{ClockChange, WhichClock};

use super::World;
use crate::{executor::Process, thread_bound::lock};

/// The period of a quota.
const PERIOD: Duration = Duration::from_millis(100);

impl World {
    /// Changes clocks of a node.
    pub fn move_clock(self: &Arc<Self>, node: Process, clock: WhichClock, change: ClockChange) {
        let now = self.executor.now();
        if let ClockChange::Strobe { by_ms, every_ms } = change {
            return self.strobe(node, by_ms, Duration::from_millis(every_ms));
        }
        self.servers.clock_moves(node, self.wall(node));
        {
            let mut clocks = lock(&self.clocks[node]);
            let clocks = &mut *clocks;
            let both =
                [(clock.is_wall(), true, &mut clocks.wall), (clock.is_monotonic(), false, &mut clocks.monotonic)];
            for (_, is_wall, ticking) in both.into_iter().filter(|(is_meant, ..)| *is_meant) {
                match change {
                    ClockChange::JumpMs(by) => ticking.jump(now, by),
                    ClockChange::DriftPpm(0) if is_wall => ticking.take_drift_back(now),
                    ClockChange::DriftPpm(ppm) => ticking.drift(now, ppm),
                    ClockChange::Strobe { .. } => {}
                }
            }
        }
        self.executor.wake_all(node);
    }

    /// Lets the wall clock of a node jump forth and back from now on. A jump of 0 ends the strobe.
    fn strobe(self: &Arc<Self>, node: Process, by_ms: i64, every: Duration) {
        let back = lock(&self.periodic[node]).end_strobe();
        if let Some(back) = back {
            self.move_clock(node, WhichClock::Wall, ClockChange::JumpMs(back));
        }
        if by_ms != 0 {
            let number = lock(&self.periodic[node]).strobe(by_ms, every);
            self.flip(node, number);
        }
    }

    fn flip(self: &Arc<Self>, node: Process, number: u64) {
        let jump = lock(&self.periodic[node]).flip(number);
        let Some((by_ms, every)) = jump else { return };
        self.move_clock(node, WhichClock::Wall, ClockChange::JumpMs(by_ms));
        self.executor.after(every, Box::new(move |world: &Arc<World>| world.flip(node, number)));
    }

    /// Gives the node's process `percent` of each period. The first period begins with the frozen part.
    pub fn slow_down(self: &Arc<Self>, node: Process, percent: u8) {
        let number = lock(&self.periodic[node]).slow_down(percent);
        self.use_up(node, number);
    }

    /// Freezes the process, which has used up its quota, until the next period.
    fn use_up(self: &Arc<Self>, node: Process, number: u64) {
        let Some(percent) = self.quota(node, number) else { return };
        self.freeze(node);
        let runs = PERIOD * u32::from(percent) / 100;
        let give_anew = move |world: &Arc<World>| {
            if world.quota(node, number).is_some() {
                world.thaw(node);
                world.executor.after(runs, Box::new(move |world: &Arc<World>| world.use_up(node, number)));
            }
        };
        self.executor.after(PERIOD - runs, Box::new(give_anew));
    }

    fn quota(&self, node: Process, number: u64) -> Option<u8> {
        lock(&self.periodic[node]).quota(number)
    }

    /// Gives the process all of its time again.
    pub fn speed_up(self: &Arc<Self>, node: Process) {
        let was_slow = lock(&self.periodic[node]).speed_up();
        if was_slow {
            self.thaw(node);
        }
    }

    /// Ends the repeating faults of a node whose process is a new one.
    pub(super) fn end_periodic_faults(&self, node: Process) {
        lock(&self.periodic[node]).end();
    }
}

#[cfg(test)]
mod tests {
    use locks::{Key, Owner, Step};

    use super::*;
    use crate::world::tests::{REDIS, run_for, world};

    #[test]
    fn a_clock_that_goes_back_brings_no_expired_key_back() {
        let (world, key, lease) = (world(1, REDIS), Key::new("k0"), Duration::from_millis(10));
        let apply = |step| lock(&world.servers.nodes[0]).apply(&step, world.wall(0));
        apply(Step::Acquire(key.clone(), Owner::new("a"), lease));
        run_for(&world, lease * 10);
        world.move_clock(0, WhichClock::Wall, ClockChange::JumpMs(-95));
        let answer = apply(Step::Extend(key, Owner::new("a"), lease));
        assert_eq!(answer, locks::StepAnswer::Refused);
    }

    #[test]
    fn a_strobe_ends_with_its_process() {
        let world = world(1, REDIS);
        world.move_clock(0, WhichClock::Wall, ClockChange::Strobe { by_ms: 500, every_ms: 50 });
        assert_ne!(world.wall(0), world.wall(1));
        world.kill(0);
        world.start(0);
        // With the strobe, the clock would be set back after 50 ms.
        run_for(&world, Duration::from_millis(75));
        assert_eq!(world.wall(0), world.wall(1));
    }

    #[test]
    fn a_quota_ends_with_its_process() {
        let world = world(1, REDIS);
        world.slow_down(0, 10);
        world.kill(0);
        world.start(0);
        // With the quota, the process is frozen for the first 90 ms of each period.
        run_for(&world, PERIOD * 5 / 2);
        assert!(world.is_up(0));
    }
}
