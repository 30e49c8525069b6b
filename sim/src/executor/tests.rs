use futures::FutureExt;

use super::*;

struct World {
    executor: Executor<World>,
    seen: ThreadBound<Vec<(u64, &'static str)>>,
}

impl Network for World {
    fn arrive(self: &Arc<Self>, packet: Packet<Self>) {
        packet.payload.arrive(self);
    }
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World { executor: Executor::new(2, Stamp(0)), seen: ThreadBound::default() })
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

/// A task of `process` that notes `what` after `after` nanoseconds, or when it is woken before.
fn late(world: &Arc<World>, process: Process, after: u64, what: &'static str) -> Task {
    let world = world.clone();
    let mut is_armed = false;
    Box::pin(std::future::poll_fn(move |cx| {
        if !std::mem::replace(&mut is_armed, true) {
            world.executor.arm(Some(process), Stamp(after), cx.waker().clone());
            return Poll::Pending;
        }
        world.note(what);
        Poll::Ready(())
    }))
}

#[test]
fn entries_of_one_time_run_in_the_order_of_insertion() {
    let world = World::new();
    for what in ["a", "b", "c"] {
        world.executor.at(Stamp(5), Box::new(move |world: &Arc<World>| world.note(what)));
    }
    world.executor.at(Stamp(3), Box::new(|world: &Arc<World>| world.note("first")));
    assert_eq!(world.run(), [(3, "first"), (5, "a"), (5, "b"), (5, "c")]);
}

#[test]
fn packets_and_calls_of_one_time_run_in_the_order_of_insertion() {
    let world = World::new();
    let noting = |what| -> Call<World> { Box::new(move |world: &Arc<World>| world.note(what)) };
    let packet = |what| Packet { from: 0, to: 1, incarnation: 1, payload: Payload::Call(noting(what)) };
    world.executor.arrives(Stamp(5), packet("a"));
    world.executor.at(Stamp(5), noting("b"));
    world.executor.arrives(Stamp(5), packet("c"));
    world.executor.at(Stamp(4), noting("first"));
    world.executor.arrives(Stamp(6), packet("last"));
    assert_eq!(world.run(), [(4, "first"), (5, "a"), (5, "b"), (5, "c"), (6, "last")]);
}

#[test]
fn a_frozen_process_runs_only_after_the_thaw() {
    let world = World::new();
    world.executor.spawn(0, late(&world, 0, 10, "frozen"));
    world.executor.spawn(1, late(&world, 1, 10, "other"));
    world.executor.at(Stamp(5), Box::new(|world: &Arc<World>| world.executor.freeze(0)));
    world.executor.at(Stamp(20), Box::new(|world: &Arc<World>| world.executor.thaw(0)));
    assert_eq!(world.run(), [(10, "other"), (20, "frozen")]);
}

#[test]
fn the_tasks_of_a_killed_process_never_run() {
    let world = World::new();
    world.executor.spawn(0, late(&world, 0, 10, "killed"));
    world.executor.at(Stamp(5), Box::new(|world: &Arc<World>| world.executor.kill(0)));
    assert_eq!(world.run(), []);
}

#[test]
fn a_process_that_was_killed_while_it_was_frozen_is_not_frozen_when_it_is_started_again() {
    let world = World::new();
    world.executor.freeze(0);
    world.executor.spawn(0, late(&world, 0, 10, "killed"));
    let restart = |world: &Arc<World>| {
        world.executor.kill(0);
        world.executor.spawn(0, late(world, 0, 20, "next"));
    };
    world.executor.at(Stamp(5), Box::new(restart));
    assert_eq!(world.run(), [(20, "next")]);
}

#[test]
fn a_changed_clock_wakes_every_sleeper_of_its_process() {
    let world = World::new();
    for (process, what) in [(0, "woken"), (1, "other")] {
        // From 31 futures on, `join_all` polls only those that were woken.
        let sleepers = futures::future::join_all((0..31).map(|_| late(&world, process, 10, what)));
        world.executor.spawn(process, Box::pin(sleepers.map(drop)));
    }
    world.executor.at(Stamp(5), Box::new(|world: &Arc<World>| world.executor.wake_all(0)));
    assert_eq!(world.run(), [[(5, "woken"); 31], [(10, "other"); 31]].concat());
}

#[test]
fn time_does_not_stop_at_a_cancelled_timer() {
    let world = World::new();
    let timer = world.executor.arm(None, Stamp(10), Waker::noop().clone());
    world.executor.cancel(timer);
    world.run();
    assert_eq!(world.executor.now(), Stamp(0));
}

#[test]
fn a_timer_that_has_fired_cancels_no_later_entry() {
    let world = World::new();
    let fired = world.executor.arm(None, Stamp(5), Waker::noop().clone());
    world.run();
    let next = world.executor.arm(None, Stamp(10), Waker::noop().clone());
    assert_eq!(next.place, fired.place);
    world.executor.cancel(fired);
    world.run();
    assert_eq!(world.executor.now(), Stamp(10));
}

#[test]
fn a_task_that_wakes_itself_for_ever_is_noticed() {
    let world = World::new();
    let spin = std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    world.executor.spawn(0, Box::pin(spin));
    world.executor.settle(|| ());
    assert!(world.executor.is_stuck());
}

#[test]
fn calls_of_one_time_that_make_each_other_for_ever_are_noticed() {
    fn again(world: &Arc<World>) {
        world.executor.at(Stamp(5), Box::new(again));
    }
    let world = World::new();
    world.executor.at(Stamp(5), Box::new(again));
    while !world.executor.is_stuck() && world.executor.step(&world) {}
    assert!(world.executor.is_stuck());
}

#[test]
fn only_the_steps_at_one_time_count() {
    let call = || -> Call<World> { Box::new(|_: &Arc<World>| ()) };
    for is_packet in [false, true] {
        for (at, is_stuck) in [(0, true), (1, false)] {
            let world = World::new();
            // At the time 0, one more step is too much.
            world.executor.steps.store(STEPS_MAX - 1, Relaxed);
            assert!(!world.executor.is_stuck());
            match is_packet {
                true => {
                    let packet = Packet { from: 0, to: 1, incarnation: 1, payload: Payload::Call(call()) };
                    world.executor.arrives(Stamp(at), packet);
                }
                false => world.executor.at(Stamp(at), call()),
            }
            assert!(world.executor.step(&world));
            assert_eq!(world.executor.is_stuck(), is_stuck, "packet: {is_packet}, at {at}");
        }
    }
}
