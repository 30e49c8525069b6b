//! The executor: one heap of what is due, ordered by time and number, and tasks tagged by the process that runs them.
//!
//! A task of a frozen process is not polled: that it was woken is remembered until the process goes on. The tasks of a
//! killed process are dropped. Time stands still while tasks run, and jumps to the next thing that is due.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use history::Stamp;

use crate::{
    exchange::Leg,
    local::{Local, lock},
};

/// One task.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that happens by itself at its time; it gets the world that it happens in.
pub(crate) type Call<W> = Box<dyn FnOnce(&Arc<W>) + Send>;

/// Which process a task belongs to: the place of its node.
pub(crate) type Process = usize;

/// Something that one process sends to another.
pub(crate) struct Packet<W> {
    pub from: Process,
    pub to: Process,
    /// The start of the other process that it is meant for.
    pub incarnation: u32,
    /// What it does where it arrives.
    pub load: Load<W>,
}

/// What a packet does where it arrives.
pub(crate) enum Load<W> {
    /// Something, once.
    Call(Call<W>),
    /// It is a request to which an answer goes back, or that answer.
    Leg(Leg<W>),
}

impl<W> Load<W> {
    /// It is there.
    pub fn arrive(self, world: &Arc<W>) {
        match self {
            Load::Call(call) => call(world),
            Load::Leg(leg) => leg.arrive(world),
        }
    }
}

/// Where packets arrive.
pub(crate) trait Stage: Sized {
    /// One has come to its node.
    fn arrive(self: &Arc<Self>, packet: Packet<Self>);
}

/// A timer that can be called off: what is called off wakes nobody.
#[derive(Default)]
pub(crate) struct Timer {
    waker: Local<Option<Waker>>,
    is_off: AtomicBool,
}

impl Timer {
    /// Who is to be woken.
    pub fn register(&self, waker: &Waker) {
        let mut known = lock(&self.waker);
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Nobody waits for it any more.
    pub fn call_off(&self) {
        self.is_off.store(true, Relaxed);
    }
}

enum Due<W> {
    Timer(Arc<Timer>),
    Packet(Packet<W>),
    Call(Call<W>),
}

/// When, above its number, above where it is kept: small, since a heap moves its entries about, and one number, since it compares them.
type Entry = Reverse<u128>;

/// So many bits of an entry say where it is kept; those above them number 2^40 entries, more than any run makes.
const PLACE_BITS: u32 = 24;

/// Tasks that were woken, in that order.
#[derive(Default)]
struct Ready {
    tasks: Local<VecDeque<usize>>,
    /// There are some: most packets arrive at a server and wake none, which costs a look at this.
    is_any: AtomicBool,
}

impl Ready {
    fn push(&self, task: usize) {
        self.extend([task]);
    }

    fn extend(&self, woken: impl IntoIterator<Item = usize>) {
        lock(&self.tasks).extend(woken);
        self.is_any.store(true, Relaxed);
    }

    fn pop(&self) -> Option<usize> {
        if !self.is_any.load(Relaxed) {
            return None;
        }
        let mut tasks = lock(&self.tasks);
        let next = tasks.pop_front();
        self.is_any.store(!tasks.is_empty(), Relaxed);
        next
    }

    fn clear(&self) {
        lock(&self.tasks).clear();
        self.is_any.store(false, Relaxed);
    }
}

struct TaskWaker {
    task: usize,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.load(Relaxed) {
            self.is_queued.store(true, Relaxed);
            self.ready.push(self.task);
        }
    }
}

struct Slot {
    process: Process,
    /// With the waker that it is given; none while it is polled, and after its end.
    task: Option<(Task, Waker)>,
    waker: Arc<TaskWaker>,
    is_dead: bool,
}

struct State<W> {
    heap: BinaryHeap<Entry>,
    dues: Vec<Option<Due<W>>>,
    /// Places in `dues` that are free.
    free: Vec<usize>,
    number: u64,
    /// Numbers of tasks are never used again: a waker that is left of a dead one wakes nobody else.
    slots: Vec<Slot>,
    /// By process: whether it is frozen, and which of its tasks were woken meanwhile.
    frozen: Vec<Option<Vec<usize>>>,
}

/// Time, and what happens in it.
pub(crate) struct Executor<W> {
    now: AtomicU64,
    ready: Arc<Ready>,
    state: Local<State<W>>,
}

impl<W> Executor<W> {
    /// An executor for so many processes, at the time `start`.
    pub fn new(processes: usize, start: Stamp) -> Self {
        let frozen = (0..processes).map(|_| None).collect();
        let state =
            State { heap: BinaryHeap::new(), dues: Vec::new(), free: Vec::new(), number: 0, slots: Vec::new(), frozen };
        Executor { now: AtomicU64::new(start.0), ready: Arc::default(), state: Local::new(state) }
    }

    /// The time.
    pub fn now(&self) -> Stamp {
        Stamp(self.now.load(Relaxed))
    }

    /// Has `call` happen at `at`, after all that was put there before it.
    pub fn at(&self, at: Stamp, call: Call<W>) {
        self.put(at, Due::Call(call));
    }

    /// Has `packet` arrive at `at`.
    pub fn arrives(&self, at: Stamp, packet: Packet<W>) {
        self.put(at, Due::Packet(packet));
    }

    /// The same, `after` from now.
    pub fn after(&self, after: Duration, call: Call<W>) {
        self.put(self.now().plus(after), Due::Call(call));
    }

    /// Fires `timer` at `at`.
    pub fn arm(&self, at: Stamp, timer: Arc<Timer>) {
        self.put(at, Due::Timer(timer));
    }

    fn put(&self, at: Stamp, due: Due<W>) {
        let mut state = lock(&self.state);
        state.number += 1;
        let number = state.number;
        let place = match state.free.pop() {
            Some(place) => {
                state.dues[place] = Some(due);
                place
            }
            None => {
                state.dues.push(Some(due));
                state.dues.len() - 1
            }
        };
        assert!(place >> PLACE_BITS == 0, "more is due at once than an entry can tell apart");
        let at = at.0.max(self.now.load(Relaxed));
        let numbered = (number << PLACE_BITS) | place as u64;
        state.heap.push(Reverse((u128::from(at) << u64::BITS) | u128::from(numbered)));
    }

    /// Runs `task` as one of `process`.
    pub fn spawn(&self, process: Process, task: Task) {
        let mut state = lock(&self.state);
        let number = state.slots.len();
        let waker = TaskWaker { task: number, is_queued: AtomicBool::new(true), ready: self.ready.clone() };
        let waker = Arc::new(waker);
        let task = Some((task, Waker::from(waker.clone())));
        state.slots.push(Slot { process, task, waker, is_dead: false });
        self.ready.push(number);
    }

    /// Stops polling the tasks of `process`.
    pub fn freeze(&self, process: Process) {
        lock(&self.state).frozen[process].get_or_insert_default();
    }

    /// Goes on with them: those that were woken meanwhile come next, in that order.
    pub fn thaw(&self, process: Process) {
        if let Some(woken) = lock(&self.state).frozen[process].take() {
            self.ready.extend(woken);
        }
    }

    /// Wakes all tasks of `process`: its clock has moved, and their timers may be due.
    pub fn wake_all(&self, process: Process) {
        let wakers: Vec<_> = (lock(&self.state).slots.iter())
            .filter(|slot| slot.process == process && !slot.is_dead)
            .map(|slot| slot.waker.clone())
            .collect();
        wakers.iter().for_each(Wake::wake_by_ref);
    }

    /// Drops the tasks of `process`.
    pub fn kill(&self, process: Process) {
        let mut dropped = Vec::new();
        {
            let mut state = lock(&self.state);
            state.frozen[process] = None;
            for slot in state.slots.iter_mut().filter(|slot| slot.process == process) {
                slot.is_dead = true;
                dropped.extend(slot.task.take());
            }
        }
        // Outside of the lock: a future that is dropped may call timers off and close channels, which wakes others.
        drop(dropped);
    }

    /// Polls every task that was woken, until none is. `after_each` runs after each poll.
    pub fn settle(&self, mut after_each: impl FnMut()) {
        loop {
            let Some(number) = self.ready.pop() else { return };
            let (mut task, waker) = {
                let mut state = lock(&self.state);
                let State { slots, frozen, .. } = &mut *state;
                let slot = &mut slots[number];
                if let Some(woken) = &mut frozen[slot.process]
                    && slot.task.is_some()
                {
                    // It stays queued: whoever wakes it meanwhile need not.
                    woken.push(number);
                    continue;
                }
                slot.waker.is_queued.store(false, Relaxed);
                let Some(task) = slot.task.take() else { continue };
                task
            };
            let poll = task.as_mut().poll(&mut Context::from_waker(&waker));
            if poll == Poll::Pending {
                let mut state = lock(&self.state);
                let slot = &mut state.slots[number];
                if !slot.is_dead {
                    slot.task = Some((task, waker));
                }
            }
            after_each();
        }
    }

    /// Goes on to the next thing that is due, and lets it happen; false if nothing is.
    pub fn step(&self, world: &Arc<W>) -> bool
    where
        W: Stage,
    {
        loop {
            let (at, due) = {
                let mut state = lock(&self.state);
                let Some(Reverse(entry)) = state.heap.pop() else { return false };
                let place = (entry & ((1 << PLACE_BITS) - 1)) as usize;
                state.free.push(place);
                ((entry >> u64::BITS) as u64, state.dues[place].take())
            };
            // Every entry has its place.
            let Some(due) = due else { continue };
            match due {
                // A timer that was called off is not worth a stop.
                Due::Timer(timer) if timer.is_off.load(Relaxed) => {}
                Due::Timer(timer) => {
                    self.now.store(at, Relaxed);
                    let waker = lock(&timer.waker).take();
                    waker.inspect(Waker::wake_by_ref);
                    return true;
                }
                Due::Packet(packet) => {
                    self.now.store(at, Relaxed);
                    world.arrive(packet);
                    return true;
                }
                Due::Call(call) => {
                    self.now.store(at, Relaxed);
                    call(world);
                    return true;
                }
            }
        }
    }

    /// Drops all tasks and all that is due: they hold the world, which holds them.
    pub fn clear(&self) {
        let (slots, dues) = {
            let mut state = lock(&self.state);
            state.heap.clear();
            (std::mem::take(&mut state.slots), std::mem::take(&mut state.dues))
        };
        drop((slots, dues));
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        executor: Executor<World>,
        seen: Local<Vec<(u64, &'static str)>>,
    }

    impl Stage for World {
        fn arrive(self: &Arc<Self>, packet: Packet<Self>) {
            packet.load.arrive(self);
        }
    }

    impl World {
        fn new() -> Arc<World> {
            Arc::new(World { executor: Executor::new(2, Stamp(0)), seen: Local::default() })
        }

        fn note(&self, what: &'static str) {
            lock(&self.seen).push((self.executor.now().0, what));
        }

        fn run(self: &Arc<Self>) -> Vec<(u64, &'static str)> {
            loop {
                self.executor.settle(|| {});
                if !self.executor.step(self) {
                    return lock(&self.seen).clone();
                }
            }
        }
    }

    /// Notes `what` after `after` nanoseconds.
    fn late(world: &Arc<World>, after: u64, what: &'static str) -> Task {
        let world = world.clone();
        let timer = Arc::new(Timer::default());
        world.executor.arm(Stamp(after), timer.clone());
        let mut polled = false;
        Box::pin(std::future::poll_fn(move |cx| {
            timer.register(cx.waker());
            if !std::mem::replace(&mut polled, true) {
                return Poll::Pending;
            }
            world.note(what);
            Poll::Ready(())
        }))
    }

    #[test]
    fn what_is_due_at_one_time_happens_in_the_order_in_which_it_was_put_there() {
        let world = World::new();
        for what in ["a", "b", "c"] {
            world.executor.at(Stamp(5), Box::new(move |world: &Arc<World>| world.note(what)));
        }
        world.executor.at(Stamp(3), Box::new(|world: &Arc<World>| world.note("first")));
        assert_eq!(world.run(), [(3, "first"), (5, "a"), (5, "b"), (5, "c")]);
    }

    #[test]
    fn a_frozen_process_is_woken_when_it_goes_on_and_not_before() {
        let world = World::new();
        world.executor.spawn(0, late(&world, 10, "frozen"));
        world.executor.spawn(1, late(&world, 10, "other"));
        world.executor.at(Stamp(5), Box::new(|world: &Arc<World>| world.executor.freeze(0)));
        world.executor.at(Stamp(20), Box::new(|world: &Arc<World>| world.executor.thaw(0)));
        assert_eq!(world.run(), [(10, "other"), (20, "frozen")]);
    }

    #[test]
    fn the_tasks_of_a_killed_process_are_gone() {
        let world = World::new();
        world.executor.spawn(0, late(&world, 10, "killed"));
        world.executor.at(Stamp(5), Box::new(|world: &Arc<World>| world.executor.kill(0)));
        assert_eq!(world.run(), []);
    }

    #[test]
    fn a_timer_that_was_called_off_is_no_stop_in_time() {
        let world = World::new();
        let timer = Arc::new(Timer::default());
        world.executor.arm(Stamp(10), timer.clone());
        timer.call_off();
        world.run();
        assert_eq!(world.executor.now(), Stamp(0));
    }
}
