//! Clocks of processes that run, moved from outside.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod child;
mod redis;
#[path = "../../../../tests/shared/redis_binary.rs"]
mod redis_binary;
#[path = "../../../../tests/shared/say.rs"]
mod say;
#[path = "../../../../tests/shared/vdso.rs"]
mod vdso;
#[path = "../../../../tests/shared/without.rs"]
mod without;

use std::process::Command;

use agent::{
    clock::{ClockError, Clocks, obey, processes_of},
    protocol::{ClockAnswer, ClockRequest},
};
use history::{
    ClockChange::{self, DriftPpm, JumpMs},
    WhichClock,
};

use self::{
    child::{HAMMERED_BY_NS, Program, Reading, kernel_ns, read},
    say::left_out,
    vdso::vdso,
    without::without,
};

const SECOND: i64 = 1_000_000_000;

/// No test: the program whose clocks are moved.
#[test]
fn lives() {
    child::live();
}

fn is_wall(name: &str) -> bool {
    ["REALTIME", "REALTIME_COARSE", "TAI", "gettimeofday", "time"].contains(&name)
}

fn is_monotonic(name: &str) -> bool {
    ["MONOTONIC", "MONOTONIC_COARSE", "BOOTTIME"].contains(&name)
}

fn exact_to_ns(name: &str) -> i64 {
    match name {
        "gettimeofday" => 1_000,
        "time" => SECOND,
        // It drifts with the monotonic clock, from a reading that was made a moment later.
        "BOOTTIME" => 1_000,
        _ => 0,
    }
}

/// Each clock of the program is so far ahead, and those that never move are true.
fn assert_ahead(program: &mut Program, wall_ns: i64, monotonic_ns: i64) {
    for (name, reading) in program.readings() {
        let by_ns = match () {
            () if is_wall(&name) => wall_ns,
            () if is_monotonic(&name) => monotonic_ns,
            () => 0,
        };
        assert!(reading.is_ahead_by(by_ns, exact_to_ns(&name)), "{name} should be {by_ns} ns ahead: {reading:?}");
    }
}

#[test]
fn each_clock_jumps_by_what_was_asked_and_no_other_moves() {
    let mut program = Program::start("reads");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    assert_ahead(&mut program, 0, 0);
    let (mut wall, mut monotonic) = (0, 0);
    for (which, by_ms) in [
        (WhichClock::Wall, 20_000),
        (WhichClock::Wall, -40_000),
        (WhichClock::Monotonic, 5_000),
        (WhichClock::Both, 60_123),
    ] {
        clocks.change(which, JumpMs(by_ms)).unwrap();
        let by = by_ms * 1_000_000;
        wall += if which.is_wall() { by } else { 0 };
        monotonic += if which.is_monotonic() { by } else { 0 };
        assert_ahead(&mut program, wall, monotonic);
        let ahead = clocks.ahead().unwrap();
        assert_eq!((ahead.wall_ns, ahead.monotonic_ns, ahead.boottime_ns), (wall, monotonic, monotonic));
        assert!(read(libc::CLOCK_REALTIME).is_ahead_by(0, 0), "the clocks of who moves them are true");
    }
    program.end();
}

#[test]
fn an_agent_that_may_not_trace_is_refused_and_nothing_moves() {
    /// Its number in capabilities(7).
    const SYS_PTRACE: u32 = 19;
    let mut program = Program::start("reads");
    let pid = program.pid();
    let Some(tried) = without(SYS_PTRACE, || Clocks::of(pid).map(drop)) else {
        left_out("only a process that has the capability SYS_PTRACE can give it up");
        return;
    };
    let refused = tried.unwrap_err().to_string();
    assert!(refused.to_lowercase().contains("permi"), "{refused}");
    assert_ahead(&mut program, 0, 0);
}

#[test]
fn what_is_healed_has_the_original_bytes_and_true_clocks() {
    let mut program = Program::start("reads");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    let original = vdso(program.pid());
    clocks.change(WhichClock::Wall, JumpMs(-20_000)).unwrap();
    clocks.change(WhichClock::Wall, DriftPpm(1_000)).unwrap();
    assert_ne!(vdso(program.pid()), original);
    clocks.heal().unwrap();
    assert_eq!(vdso(program.pid()), original);
    assert!(!clocks.is_installed().unwrap());
    assert_ahead(&mut program, 0, 0);
}

#[test]
fn a_monotonic_jump_stays_when_it_is_healed_and_goes_only_when_the_code_is_restored() {
    let mut program = Program::start("reads");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    let original = vdso(program.pid());
    clocks.change(WhichClock::Both, JumpMs(5_000)).unwrap();
    clocks.heal().unwrap();
    assert_ahead(&mut program, 0, 5 * SECOND);
    clocks.restore().unwrap();
    assert_eq!(vdso(program.pid()), original);
    assert_ahead(&mut program, 0, 0);
}

#[test]
fn another_agent_finds_what_was_done_and_heals_it() {
    let mut program = Program::start("reads");
    let original = vdso(program.pid());
    Clocks::of(program.pid()).unwrap().change(WhichClock::Wall, JumpMs(20_000)).unwrap();
    let mut clocks = Clocks::of(program.pid()).unwrap();
    assert!(clocks.is_installed().unwrap());
    assert_eq!(clocks.ahead().unwrap().wall_ns, 20 * SECOND);
    clocks.heal().unwrap();
    assert_eq!(vdso(program.pid()), original);
    assert_ahead(&mut program, 0, 0);
}

/// How much a clock has gained between two readings of it, and in which time.
fn gained(first: Reading, second: Reading) -> (i64, i64) {
    let lasted = second.after_ns - first.before_ns;
    (second.shown_ns - second.before_ns - (first.shown_ns - first.before_ns), lasted)
}

#[test]
fn a_drift_gains_by_itself_and_its_end_takes_the_gain_from_the_wall_clock_only() {
    let mut program = Program::start("reads");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    for ppm in [200_000, -200_000] {
        let before = kernel_ns(libc::CLOCK_MONOTONIC);
        clocks.change(WhichClock::Both, DriftPpm(ppm)).unwrap();
        // The two readings from which the monotonic clocks drift are both made in this time.
        let apart = (kernel_ns(libc::CLOCK_MONOTONIC) - before) * i64::from(ppm.abs()) / 1_000_000;
        let first = program.readings();
        let until = kernel_ns(libc::CLOCK_MONOTONIC) + SECOND / 4;
        while kernel_ns(libc::CLOCK_MONOTONIC) < until {
            std::thread::yield_now();
        }
        let second = program.readings();
        for ((name, first), (_, second)) in first.into_iter().zip(second) {
            let (gained, lasted) = gained(first, second);
            let expected = if is_wall(&name) || is_monotonic(&name) { lasted * i64::from(ppm) / 1_000_000 } else { 0 };
            // The gain is rounded to whole nanoseconds, in both readings and here.
            let exact_to = 3
                + 2 * exact_to_ns(&name)
                + (second.after_ns - second.before_ns)
                + (first.after_ns - first.before_ns)
                + if name == "BOOTTIME" { apart } else { 0 };
            assert!(gained.abs_diff(expected) <= exact_to as u64, "{name} at {ppm} ppm: {gained} ns, not {expected}");
        }
        clocks.change(WhichClock::Both, DriftPpm(0)).unwrap();
        let ahead = clocks.ahead().unwrap();
        assert_eq!(ahead.wall_ns, 0);
        assert_ne!(ahead.monotonic_ns, 0);
        assert_ahead(&mut program, 0, ahead.monotonic_ns);
    }
}

#[test]
fn a_strobe_goes_there_and_back_by_itself() {
    let mut program = Program::start("reads");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    clocks.change(WhichClock::Wall, ClockChange::Strobe { by_ms: 3_000, every_ms: 5 }).unwrap();
    let mut seen = [0, 0];
    while seen.iter().any(|times| *times < 10) {
        let readings = program.readings();
        for (times, by_ns) in seen.iter_mut().zip([0, 3 * SECOND]) {
            *times += usize::from(readings[0].1.is_ahead_by(by_ns, 0));
        }
        let monotonic = readings.iter().filter(|(name, _)| !is_wall(name));
        monotonic.for_each(|(name, reading)| assert!(reading.is_ahead_by(0, 0), "{name}: {reading:?}"));
    }
}

#[test]
fn calls_that_are_rarely_made_answer_as_before() {
    let mut program = Program::start("reads");
    let odd = |program: &mut Program| {
        program.tell("odd");
        program.line()
    };
    let before = odd(&mut program);
    Clocks::of(program.pid()).unwrap().change(WhichClock::Both, JumpMs(1_000)).unwrap();
    assert_eq!(odd(&mut program), before);
}

#[test]
fn a_process_that_reads_clocks_all_the_time_survives_change_after_change_and_sees_none_half_made() {
    let mut program = Program::start("hammers");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    let until = kernel_ns(libc::CLOCK_MONOTONIC) + 2 * SECOND;
    let mut changes = 0;
    while kernel_ns(libc::CLOCK_MONOTONIC) < until {
        clocks.change(WhichClock::Wall, JumpMs(HAMMERED_BY_NS / 1_000_000)).unwrap();
        clocks.heal().unwrap();
        changes += 2;
    }
    assert!(!clocks.is_installed().unwrap());
    // Without signals: a reading that one interrupts may show a mixture of two rates.
    program.tell("quiet");
    program.line();
    // A clock that is ahead from now on, and slow at times, must never be seen to go back.
    for ppm in [-500_000, 0, 500_000, 0].repeat(10) {
        clocks.change(WhichClock::Monotonic, DriftPpm(ppm)).unwrap();
        clocks.change(WhichClock::Monotonic, JumpMs(1)).unwrap();
    }
    program.tell("tell");
    let told = program.line();
    let numbers: Vec<u64> = told.split(' ').map(|number| number.parse().unwrap()).collect();
    let [readings, wrong, signals] = numbers[..] else { panic!("{told}") };
    eprintln!("{changes} changes under {readings} readings and {signals} signals");
    assert_eq!(wrong, 0, "of {readings} readings");
    assert!(changes >= 10 && readings > 10_000 && signals > 100, "{changes} changes, {told}");
    program.end();
}

#[test]
fn a_signal_handler_that_lasts_returns_to_code_that_is_there() {
    let mut program = Program::start("is interrupted");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    let tell = |program: &mut Program, what| {
        program.tell(what);
        assert_eq!(program.line(), "0", "readings were wrong");
    };
    for _ in 0..30 {
        clocks.change(WhichClock::Wall, JumpMs(HAMMERED_BY_NS / 1_000_000)).unwrap();
        // Most often in the middle of a call, whose code is taken away while the handler runs.
        tell(&mut program, "interrupt");
        clocks.heal().unwrap();
        tell(&mut program, "return");
    }
    program.end();
}

#[test]
fn a_process_that_is_killed_at_any_moment_is_said_to_have_ended() {
    for after_us in (0..20).map(|step| step * 700) {
        let mut program = Program::start("hammers");
        let pid = program.pid();
        let mut clocks = Clocks::of(pid).unwrap();
        let moving = std::thread::spawn(move || {
            loop {
                if let Err(error) = clocks.change(WhichClock::Wall, JumpMs(1)) {
                    return (error, clocks.heal());
                }
            }
        });
        let until = kernel_ns(libc::CLOCK_MONOTONIC) + after_us * 1_000;
        while kernel_ns(libc::CLOCK_MONOTONIC) < until {
            std::hint::spin_loop();
        }
        program.kill();
        let (error, healed) = moving.join().unwrap();
        assert!(matches!(error, ClockError::Gone { pid: gone } if gone == pid), "{error:?}");
        assert!(matches!(healed, Err(ClockError::Gone { .. })), "{healed:?}");
        assert!(matches!(Clocks::of(pid), Err(ClockError::Gone { .. })));
        assert!(error.to_string().contains("has ended"));
    }
}

#[test]
fn a_stopped_process_is_moved_and_stays_stopped() {
    let mut program = Program::start("reads");
    let state = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(program.pid()), signal).unwrap();
    signal(nix::sys::signal::SIGSTOP);
    let until_stopped = || {
        while state(program.pid()) != 'T' {
            std::thread::yield_now();
        }
    };
    until_stopped();
    Clocks::of(program.pid()).unwrap().change(WhichClock::Wall, JumpMs(20_000)).unwrap();
    // From the stop of a tracer back into the one it was in; it would answer otherwise.
    until_stopped();
    signal(nix::sys::signal::SIGCONT);
    assert_ahead(&mut program, 20 * SECOND, 0);
}

#[test]
fn children_have_the_clocks_of_their_parent_and_a_request_moves_each_process_once() {
    let mut program = Program::start("reads");
    let pid = program.pid();
    let moved = |change| obey(ClockRequest::Change { pid, clock: WhichClock::Wall, change }).unwrap();
    assert_eq!(moved(JumpMs(20_000)), ClockAnswer::Done { pids: vec![pid] });
    program.tell("fork");
    let child: i32 = program.line().parse().unwrap();
    assert_eq!(processes_of(pid).unwrap(), [pid, child]);
    assert_eq!(moved(JumpMs(5_000)), ClockAnswer::Done { pids: vec![pid, child] });
    let ahead = |pid| match obey(ClockRequest::Ahead { pid }).unwrap() {
        ClockAnswer::Ahead(ahead) => ahead.wall_ns,
        other => panic!("{other:?}"),
    };
    assert_eq!([pid, child].map(ahead), [25 * SECOND; 2]);
    // The parent waits: it is the child that answers.
    assert_ahead(&mut program, 25 * SECOND, 0);
    obey(ClockRequest::Heal { pid }).unwrap();
    assert_ahead(&mut program, 0, 0);
    assert_eq!(vdso(pid), vdso(child));
    program.tell("exit");
    assert_eq!(program.line(), "the child has ended");
    assert_ahead(&mut program, 0, 0);
}

#[test]
fn a_child_that_cannot_be_changed_is_an_error_until_it_has_ended() {
    let mut program = Program::start("reads");
    let pid = program.pid();
    program.tell("fork");
    let child: i32 = program.line().parse().unwrap();
    program.tell("be traced");
    assert_eq!(program.line(), "0", "it has another tracer");
    let change = ClockRequest::Change { pid, clock: WhichClock::Wall, change: JumpMs(20_000) };
    for request in [change, ClockRequest::Heal { pid }, change, ClockRequest::Restore { pid }] {
        let error = obey(request).unwrap_err();
        assert!(matches!(error, ClockError::NotPermitted { pid, .. } if pid == child), "{error}");
    }
    // The child answers: its clocks are right.
    assert_ahead(&mut program, 0, 0);
    program.tell("exit");
    assert_eq!(program.line(), "the child has ended");
    assert_eq!(obey(change).unwrap(), ClockAnswer::Done { pids: vec![pid] });
    assert_ahead(&mut program, 20 * SECOND, 0);
}

#[test]
fn a_heal_leaves_a_program_alone_that_started_during_the_fault() {
    let mut program = Program::start("reads");
    let pid = program.pid();
    let original = vdso(pid);
    let jump = |clock, by_ms| obey(ClockRequest::Change { pid, clock, change: JumpMs(by_ms) }).unwrap();
    jump(WhichClock::Both, 5_000);
    program.tell("start");
    let started: i32 = program.line().parse().unwrap();
    jump(WhichClock::Wall, -5_000);
    assert_ahead(&mut program, 0, 5 * SECOND);
    assert_eq!(vdso(started), original);
    // The next fault hits both programs, and so does its heal.
    jump(WhichClock::Wall, -3_000);
    jump(WhichClock::Wall, 3_000);
    let ahead = [pid, started].map(|pid| Clocks::of(pid).unwrap().ahead().unwrap().wall_ns);
    assert_eq!(ahead, [0, 0]);
    program.end();
}

#[test]
fn what_cannot_be_done_is_refused_and_nothing_is_changed() {
    let program = Program::start("reads");
    let mut clocks = Clocks::of(program.pid()).unwrap();
    let original = vdso(program.pid());
    let refused = clocks.change(WhichClock::Monotonic, JumpMs(-1)).unwrap_err();
    assert!(refused.to_string().contains("a monotonic clock never goes back"), "{refused}");
    assert!(matches!(refused, ClockError::Refused { .. }));
    assert_eq!(vdso(program.pid()), original);
    assert!(matches!(Clocks::of(i32::MAX), Err(ClockError::Gone { .. })));
    // The first thread of the kernel: it has no memory of its own.
    assert!(Clocks::of(2).is_err());
}

#[test]
fn a_program_that_starts_others_all_the_time_is_moved() {
    // A program that is being loaded has no vDSO for a moment.
    let mut child = Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().unwrap();
    let pid = child.id() as i32;
    let wall_ns = || Clocks::of(pid)?.ahead().map(|ahead| ahead.wall_ns);
    let move_and_heal = |_| -> Result<(i64, i64), ClockError> {
        obey(ClockRequest::Change { pid, clock: WhichClock::Wall, change: JumpMs(20_000) })?;
        let moved = wall_ns()?;
        obey(ClockRequest::Heal { pid })?;
        Ok((moved, wall_ns()?))
    };
    let ahead: Result<Vec<_>, _> = (0..30).map(move_and_heal).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ahead.unwrap(), [(20 * SECOND, 0); 30]);
}
