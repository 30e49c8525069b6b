use history::{FaultKind, FaultPhase};

use crate::history_builder::HistoryBuilder;

fn told(builder: &HistoryBuilder) -> String {
    let window = builder.window();
    let lines = window.story.iter().map(|l| format!("{:>8.3} s  {:<11}  {}\n", l.at_ms / 1e3, l.who, l.what));
    format!("{}\n{}", window.headline, lines.collect::<String>())
}

#[test]
fn where_a_worker_has_several_clients_they_are_named() {
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.clients_per_worker = 10;
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 22).stall("worker-1", 100, 2_500);
    builder.acquire(2, 2, 2_000, 2_010, 42).read(2, 1, 2_020, 2_022).write(2, 2, 2_100, 2_110).release(2, 2_120);
    builder.write(1, 2, 2_501, 2_502).release_refused(1, 2_510);
    let expected = "\
k0: worker-1/c0 acted 0.49 s after worker-2/c1 took over
   0.010 s  worker-1/c0  acquired, token 41, entitled until 1.978 s
   0.100 s  worker-1/c0  stalled for 2.40 s: no fault did it
   2.010 s  worker-2/c1  acquired, token 42
   2.110 s  worker-2/c1  wrote version 3 (based on the empty key) with token 42: admitted
   2.502 s  worker-1/c0  tried to write (based on the empty key) with token 41: writes: rejected (409), \
                        token 41 < newest seen 42 · reads: rejected, token 41 < newest seen 42 · cas: rejected, \
                        version 3 is current · claim: rejected, its claim is not the newest · off: admitted as \
                        version 4, overwrote 1 newer update
";
    assert_eq!(told(&builder), expected);
}

#[test]
fn a_renewed_hold_is_told_with_its_last_promise() {
    let mut builder = HistoryBuilder::renewing(600);
    builder.acquire(1, 1, 0, 10, 41).renew(1, 600, 605).pause(1, "worker-1", 700, 5_700);
    builder.acquire(2, 2, 3_000, 3_010, 42).release(2, 3_100).read(1, 1, 5_701, 5_702).release_refused(1, 5_710);
    let expected = "\
k0: worker-1 acted 2.69 s after worker-2 took over
   0.010 s  worker-1     acquired, token 41, entitled until 1.978 s
   0.605 s  worker-1     renewed for the last time, entitled until 2.578 s
   0.700 s  nemesis      paused worker-1 (frozen 5.0 s)
   3.010 s  worker-2     acquired, token 42
   5.702 s  worker-1     read the empty key with token 41
";
    assert_eq!(told(&builder), expected);
}

#[test]
fn two_holds_at_once_are_told_with_their_promises() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 100, 110, 42).release(1, 600).release(2, 700);
    let expected = "\
k0: worker-1 and worker-2 were both entitled for 0.49 s
   0.010 s  worker-1     acquired, token 41, entitled until 1.978 s
   0.110 s  worker-2     acquired, token 42, entitled until 2.078 s
";
    assert_eq!(told(&builder), expected);
}

#[test]
fn every_fault_is_told_in_one_line() {
    use std::time::Duration;

    use history::{ClockChange, Direction, Fault, Range, WhichClock, fault};

    let (lasting, back_after, by) = (Duration::from_secs(1), Duration::from_secs(1), Duration::from_millis(800));
    let clock = |clock, change| Fault::new(fault::Clock { clock, change }, lasting);
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_010, 42).release(2, 1_020).release_refused(1, 1_030);
    builder.inject(1, clock(WhichClock::Wall, ClockChange::JumpMs(20_000)), "redis-1", 100, 900);
    builder.inject(2, clock(WhichClock::Both, ClockChange::DriftPpm(-50_000)), "redis-1", 200, 1_200);
    builder.inject(3, Fault::new(fault::Amnesia { counters_of: Vec::new() }, back_after), "redis-2", 300, 1_300);
    builder.inject(4, Fault::new(fault::Powerloss {}, back_after), "redis-2", 400, 1_400);
    let (direction, cut) = (Direction::Both, history::CutMode::Drop);
    builder.inject(5, Fault::new(fault::Partition { cut }, lasting).on_links(direction, vec![]), "redis-3", 500, 3_500);
    builder.inject(
        6,
        Fault::new(fault::Delay { by: by.into() }, lasting).on_links(Direction::In, vec![]),
        "redis-3",
        600,
        1_600,
    );
    builder.inject(7, Fault::new(fault::Kill {}, back_after), "redis-3", 700, 1_700);
    let (direction, by) = (Direction::Both, Range { from: Duration::ZERO, to: Duration::from_millis(80) });
    builder.inject(
        8,
        Fault::new(fault::Loss { percent: 30 }, lasting).on_links(direction, vec![]),
        "redis-2",
        750,
        1_750,
    );
    builder.inject(9, Fault::new(fault::Reorder { by }, lasting).on_links(direction, vec![]), "redis-1", 800, 1_800);
    let expected = "\
k0: worker-1 and worker-2 were both entitled for 0.01 s
   0.010 s  worker-1     acquired, token 41, entitled until 1.978 s
   0.100 s  nemesis      moved the wall clock of redis-1 by +20.0 s
   0.200 s  nemesis      made the clocks of redis-1 run 5.0 % slow (1.0 s)
   0.300 s  nemesis      restarted redis-2 without its data
   0.400 s  nemesis      cut the power of redis-2
   0.500 s  nemesis      cut redis-3 off (3.0 s)
   0.600 s  nemesis      slowed the links of redis-3 by 0.8 s (1.0 s)
   0.700 s  nemesis      killed redis-3
   0.750 s  nemesis      lost 30 % of the packets of redis-2 (1.0 s)
   0.800 s  nemesis      disordered the packets of redis-1 by 0.00 to 0.08 s (1.0 s)
   0.895 s  nemesis      set the wall clock of redis-1 back
   1.010 s  worker-2     acquired, token 42, entitled until 2.978 s
";
    assert_eq!(told(&builder), expected);
}

#[test]
fn a_fault_that_was_never_on_is_not_told() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 22).kill_refused(2, "worker-1", 30, 60);
    builder.fault(3, FaultKind::Pause, "worker-1", 70, FaultPhase::Requested { asked_ns: 1, hold: None });
    builder.fault(3, FaultKind::Pause, "worker-1", 71, FaultPhase::Unproved { why: "there was no process".into() });
    builder.pause(1, "worker-1", 100, 2_500).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
    builder.write(1, 2, 2_501, 2_502).release_refused(1, 2_510);
    let window = builder.window();
    let told = window.story.iter().filter(|line| line.who == "nemesis").map(|line| line.what.as_str());
    assert_eq!(told.collect::<Vec<_>>(), ["paused worker-1 (frozen 2.4 s)"]);
}

#[test]
fn the_last_stale_act_need_not_be_the_last_line_of_its_story() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 22).pause(1, "worker-1", 100, 2_500);
    builder.acquire(2, 2, 2_000, 2_010, 42).read(2, 1, 2_020, 2_022);
    builder.write(1, 2, 2_501, 2_502).release_refused(1, 2_510).write(2, 2, 2_600, 2_610).release(2, 2_620);
    let window = builder.window();
    assert_eq!((window.at_ms, window.last_act_ms, window.staleness_ms), (2_502.0, Some(2_502.0), Some(492.0)));
    assert_eq!(window.story.last().map(|line| line.at_ms), Some(2_610.0));
}
