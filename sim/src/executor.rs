//! The executor: packets, timers and calls in the order of their times, and tasks that belong to processes.
//!
//! A task of a frozen process is not polled; the executor remembers that the task was woken until the process is
//! thawed. The tasks of a killed process are dropped. Virtual time stands still while tasks run, then jumps to the next
//! entry of the queues.

mod queue;

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use history::Stamp;

use self::queue::Queue;
use crate::{
    exchange::Message,
    thread_bound::{ThreadBound, lock},
};

/// One task.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A function that the executor calls at a given time, with the world.
pub(crate) type Call<W> = Box<dyn FnOnce(&Arc<W>) + Send>;

/// The process that a task belongs to: the index of its node.
pub(crate) type Process = usize;

/// A packet from one process to another.
pub(crate) struct Packet<W> {
    pub from: Process,
    pub to: Process,
    /// The incarnation of the receiving node that the packet is for.
    pub incarnation: u32,
    /// The effect of the packet on arrival.
    pub payload: Payload<W>,
}

/// The content of a packet.
pub(crate) enum Payload<W> {
    /// A call.
    Call(Call<W>),
    /// A request or a response.
    Message(Message<W>),
}

impl<W> Payload<W> {
    /// Handles the arrival.
    pub fn arrive(self, world: &Arc<W>) {
        match self {
            Payload::Call(call) => call(world),
            Payload::Message(leg) => leg.arrive(world),
        }
    }
}

/// The network that delivers packets.
pub(crate) trait Network: Sized {
    /// Delivers a packet to its node.
    fn arrive(self: &Arc<Self>, packet: Packet<Self>);
}

/// A timer, by its place and its sequence number: the place of a timer that has fired belongs to another entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    place: usize,
    number: u64,
}

enum Due<W> {
    /// The number of a timer, the process whose clock it follows, if any, and the waker of the future that waits.
    Timer(u64, Option<Process>, Waker),
    Call(Call<W>),
}

/// The woken tasks, in the order of their wake-ups.
#[derive(Default)]
struct Ready {
    tasks: ThreadBound<VecDeque<usize>>,
    /// True if the queue has tasks. Most packets arrive at a server and wake no task, so this flag saves a look at the
    /// queue.
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

struct TaskEntry {
    process: Process,
    /// The future and its waker; none while the task is polled, and after its end.
    task: Option<(Task, Waker)>,
    waker: Arc<TaskWaker>,
    is_dead: bool,
}

struct State<W> {
    /// The packets on their way. They are few and due soon, so a queue of their own is short: the timers of requests
    /// that were answered stay among the dues until their time.
    packets: Queue<Packet<W>>,
    /// Timers and calls.
    dues: Queue<Due<W>>,
    /// The sequence number of the last item of either queue.
    number: u64,
    /// By number. Numbers are never reused, so that a waker of a dead task wakes no other task.
    tasks: Vec<TaskEntry>,
    /// By process: the tasks that were woken while the process is frozen; none, if the process runs.
    frozen: Vec<Option<Vec<usize>>>,
}

/// The most polls and queue entries at one virtual time. Correct runs need a few thousand: every answer takes time.
pub(crate) const STEPS_MAX: u64 = 1_000_000;

/// Runs tasks and delivers packets under virtual time.
pub(crate) struct Executor<W> {
    now: AtomicU64,
    /// Polls and queue entries since the time moved.
    steps: AtomicU64,
    ready: Arc<Ready>,
    state: ThreadBound<State<W>>,
}

impl<W> Executor<W> {
    /// An executor for `processes` processes, at the time `start`.
    pub fn new(processes: usize, start: Stamp) -> Self {
        let frozen = (0..processes).map(|_| None).collect();
        let state = State { packets: Queue::new(), dues: Queue::new(), number: 0, tasks: Vec::new(), frozen };
        Executor {
            now: AtomicU64::new(start.0),
            steps: AtomicU64::new(0),
            ready: Arc::default(),
            state: ThreadBound::new(state),
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Stamp {
        Stamp(self.now.load(Relaxed))
    }

    /// Calls `call` at `at`, after all earlier entries of that time.
    pub fn at(&self, at: Stamp, call: Call<W>) {
        self.put(at, |_| Due::Call(call));
    }

    /// Delivers `packet` at `at`.
    pub fn arrives(&self, at: Stamp, packet: Packet<W>) {
        let mut state = lock(&self.state);
        state.number += 1;
        let (at, number) = (at.0.max(self.now.load(Relaxed)), state.number);
        state.packets.put(at, number, packet);
    }

    /// Calls `call` after a delay.
    pub fn after(&self, after: Duration, call: Call<W>) {
        self.at(self.now().plus(after), call);
    }

    /// Arms a timer that wakes a task at `at`. A timer of a process follows the clock of that process.
    pub fn arm(&self, process: Option<Process>, at: Stamp, waker: Waker) -> Timer {
        self.put(at, |number| Due::Timer(number, process, waker))
    }

    /// Lets a timer that has not fired wake `waker`.
    pub fn register(&self, timer: Timer, waker: &Waker) {
        if let Some(Some(Due::Timer(number, _, known))) = lock(&self.state).dues.at(timer.place)
            && *number == timer.number
        {
            known.clone_from(waker);
        }
    }

    /// Cancels a timer. A cancelled timer wakes no task, and a timer that has fired stays as it is.
    pub fn cancel(&self, timer: Timer) {
        let is_own = |due: &mut Due<W>| matches!(due, Due::Timer(number, ..) if *number == timer.number);
        let cancelled = lock(&self.state).dues.at(timer.place).and_then(|due| due.take_if(is_own));
        // Not during the borrow: the last waker of a task may own more than itself.
        drop(cancelled);
    }

    fn put(&self, at: Stamp, due: impl FnOnce(u64) -> Due<W>) -> Timer {
        let mut state = lock(&self.state);
        state.number += 1;
        let (at, number) = (at.0.max(self.now.load(Relaxed)), state.number);
        let place = state.dues.put(at, number, due(number));
        Timer { place, number }
    }

    /// Spawns a task of `process`.
    pub fn spawn(&self, process: Process, task: Task) {
        let mut state = lock(&self.state);
        let number = state.tasks.len();
        let waker = TaskWaker { task: number, is_queued: AtomicBool::new(true), ready: self.ready.clone() };
        let waker = Arc::new(waker);
        let task = Some((task, Waker::from(waker.clone())));
        state.tasks.push(TaskEntry { process, task, waker, is_dead: false });
        self.ready.push(number);
    }

    /// Stops polling the tasks of `process`.
    pub fn freeze(&self, process: Process) {
        lock(&self.state).frozen[process].get_or_insert_default();
    }

    /// Polls the tasks of `process` again. Tasks that were woken meanwhile come next, in the order of their wake-ups.
    pub fn thaw(&self, process: Process) {
        if let Some(woken) = lock(&self.state).frozen[process].take() {
            self.ready.extend(woken);
        }
    }

    /// Wakes all tasks of `process`, and all futures that wait for its timers, because its clock was changed and the
    /// timers may be due. (A task of many futures, as `join_all` makes it, polls only those that were woken.)
    pub fn wake_all(&self, process: Process) {
        let (tasks, timers) = {
            let state = lock(&self.state);
            let tasks = state.tasks.iter().filter(|slot| slot.process == process && !slot.is_dead);
            let tasks: Vec<_> = tasks.map(|slot| slot.waker.clone()).collect();
            let timers = state.dues.iter().filter_map(|due| match due {
                Due::Timer(number, Some(of), waker) if *of == process => Some((*number, waker.clone())),
                _ => None,
            });
            let mut timers: Vec<_> = timers.collect();
            timers.sort_unstable_by_key(|(number, _)| *number);
            (tasks, timers)
        };
        tasks.iter().for_each(Wake::wake_by_ref);
        timers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Drops the tasks of `process`.
    pub fn kill(&self, process: Process) {
        let mut dropped = Vec::new();
        {
            let mut state = lock(&self.state);
            state.frozen[process] = None;
            for slot in state.tasks.iter_mut().filter(|slot| slot.process == process) {
                slot.is_dead = true;
                dropped.extend(slot.task.take());
            }
        }
        // Not during the borrow: a future that is dropped may cancel timers and close channels, which wakes other
        // tasks.
        drop(dropped);
    }

    /// Returns whether the time stands still for ever, because tasks wake each other without end.
    pub fn is_stuck(&self) -> bool {
        self.steps.load(Relaxed) >= STEPS_MAX
    }

    /// Moves the time to that of the next entry.
    fn move_to(&self, at: u64) {
        let steps = if at == self.now.swap(at, Relaxed) { self.steps.load(Relaxed) + 1 } else { 0 };
        self.steps.store(steps, Relaxed);
    }

    /// Polls the woken tasks until none is left, and calls `after_each` after each poll. Ends early if the executor
    /// [is stuck](Executor::is_stuck).
    pub fn settle(&self, mut after_each: impl FnMut()) {
        while !self.is_stuck() {
            let Some(number) = self.ready.pop() else { return };
            let (mut task, waker) = {
                let mut state = lock(&self.state);
                let State { tasks, frozen, .. } = &mut *state;
                let slot = &mut tasks[number];
                if let Some(woken) = &mut frozen[slot.process]
                    && slot.task.is_some()
                {
                    // The task stays marked as queued, so a second wake-up adds nothing.
                    woken.push(number);
                    continue;
                }
                slot.waker.is_queued.store(false, Relaxed);
                let Some(task) = slot.task.take() else { continue };
                task
            };
            self.steps.store(self.steps.load(Relaxed) + 1, Relaxed);
            let poll = task.as_mut().poll(&mut Context::from_waker(&waker));
            if poll == Poll::Pending {
                let mut state = lock(&self.state);
                let slot = &mut state.tasks[number];
                if !slot.is_dead {
                    slot.task = Some((task, waker));
                }
            }
            after_each();
        }
    }

    /// Goes on to the next entry of either queue; false if both are empty.
    pub fn step(&self, world: &Arc<W>) -> bool
    where
        W: Network,
    {
        loop {
            let mut state = lock(&self.state);
            let State { packets, dues, .. } = &mut *state;
            let (first, next) = (packets.first(), dues.first());
            if let Some(entry) = first
                && next.is_none_or(|next| entry < next)
                && let Some((at, place)) = packets.pop()
            {
                self.move_to(at);
                let Some(packet) = packets.take(place) else { continue };
                drop(state);
                world.arrive(packet);
                return true;
            }
            let Some((at, place)) = dues.pop() else { return false };
            // Time does not stop at a cancelled timer.
            let Some(due) = dues.take(place) else { continue };
            drop(state);
            self.move_to(at);
            match due {
                Due::Timer(.., waker) => waker.wake(),
                Due::Call(call) => call(world),
            }
            return true;
        }
    }

    /// Drops all tasks and queue entries, which own the world that owns them.
    pub fn clear(&self) {
        let (tasks, packets, dues) = {
            let mut state = lock(&self.state);
            let State { tasks, packets, dues, .. } = &mut *state;
            (mem::take(tasks), mem::replace(packets, Queue::new()), mem::replace(dues, Queue::new()))
        };
        drop((tasks, packets, dues));
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests;
