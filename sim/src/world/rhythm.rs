//! Faults that go on by themselves until they are taken off: a wall clock that strobes, a quota of processor time that is used up again and again.
//!
//! A slowed process runs for as much of each period of 100 ms as its quota is, and not at all for the rest, as one that uses it up at once. What is
//! left out: here code takes no time, so that a process that hardly works is held up as much as a busy one, and more than by a real kernel.

use std::{sync::Arc, time::Duration};

use history::{ClockChange, WhichClock};

use super::World;
use crate::{executor::Process, local::lock};

/// How often a quota is given anew.
const PERIOD: Duration = Duration::from_millis(100);

/// What goes on at one node. Each fault has a number of its own, so that what was due for one that is off does nothing to the next.
#[derive(Debug, Default)]
pub(super) struct Rhythm {
    last: u64,
    strobe: Option<Strobe>,
    slow: Option<(u64, u8)>,
}

#[derive(Debug)]
struct Strobe {
    number: u64,
    by_ms: i64,
    every: Duration,
    is_there: bool,
}

impl Rhythm {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl World {
    /// Moves clocks of a node.
    pub fn move_clock(self: &Arc<Self>, node: Process, clock: WhichClock, change: ClockChange) {
        let now = self.executor.now();
        if let ClockChange::Strobe { by_ms, every_ms } = change {
            return self.strobe(node, by_ms, Duration::from_millis(every_ms));
        }
        self.servers.clock_moves(node, self.wall(node));
        {
            let mut clocks = lock(&self.clocks[node]);
            let clocks = &mut *clocks;
            let both = [(clock.is_wall(), &mut clocks.wall), (clock.is_monotonic(), &mut clocks.monotonic)];
            for (_, ticking) in both.into_iter().filter(|(is_meant, _)| *is_meant) {
                match change {
                    ClockChange::JumpMs(by) => ticking.jump(now, by),
                    ClockChange::DriftPpm(ppm) => ticking.drift(now, ppm),
                    ClockChange::Strobe { .. } => {}
                }
            }
        }
        self.executor.wake_all(node);
    }

    /// Lets the wall clock of a node jump there and back from now on; by 0, it is back and stays.
    fn strobe(self: &Arc<Self>, node: Process, by_ms: i64, every: Duration) {
        let former = lock(&self.rhythms[node]).strobe.take();
        if let Some(Strobe { by_ms, is_there: true, .. }) = former {
            self.move_clock(node, WhichClock::Wall, ClockChange::JumpMs(-by_ms));
        }
        if by_ms != 0 {
            let number = {
                let mut rhythm = lock(&self.rhythms[node]);
                let number = rhythm.next();
                rhythm.strobe = Some(Strobe { number, by_ms, every, is_there: false });
                number
            };
            self.flip(node, number);
        }
    }

    fn flip(self: &Arc<Self>, node: Process, number: u64) {
        let (by_ms, every) = {
            let mut rhythm = lock(&self.rhythms[node]);
            let Some(strobe) = rhythm.strobe.as_mut().filter(|strobe| strobe.number == number) else { return };
            strobe.is_there = !strobe.is_there;
            (if strobe.is_there { strobe.by_ms } else { -strobe.by_ms }, strobe.every)
        };
        self.move_clock(node, WhichClock::Wall, ClockChange::JumpMs(by_ms));
        self.executor.after(every, Box::new(move |world: &Arc<World>| world.flip(node, number)));
    }

    /// Leaves so many hundredths of its time to the node's process, the first of them when the first period is over.
    pub fn slow_down(self: &Arc<Self>, node: Process, percent: u8) {
        let number = {
            let mut rhythm = lock(&self.rhythms[node]);
            let number = rhythm.next();
            rhythm.slow = Some((number, percent));
            number
        };
        self.use_up(node, number);
    }

    /// The quota of this period is used up.
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
        lock(&self.rhythms[node]).slow.filter(|(of, _)| *of == number).map(|(_, percent)| percent)
    }

    /// Gives it all of its time back.
    pub fn speed_up(self: &Arc<Self>, node: Process) {
        if lock(&self.rhythms[node]).slow.take().is_some() {
            self.thaw(node);
        }
    }

    /// Its process is a new one, with clocks of its own: nothing goes on.
    pub(super) fn quiet(&self, node: Process) {
        let mut rhythm = lock(&self.rhythms[node]);
        (rhythm.strobe, rhythm.slow) = (None, None);
    }
}
