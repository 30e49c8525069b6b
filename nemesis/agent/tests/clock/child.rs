//! A program whose clocks are moved: it reads them in every way there is, and says what it saw.
//!
//! It is this test binary itself, started again with [`ROLE`] in its environment.

#![allow(unsafe_code, reason = "reads clocks as a program in C does")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// The variable that says what the program does.
pub const ROLE: &str = "CLOCK_TEST_ROLE";

/// Each way to read a clock. The first seven are ids for `clock_gettime`.
pub const WAYS: [(&str, i32); 10] = [
    ("REALTIME", libc::CLOCK_REALTIME),
    ("REALTIME_COARSE", libc::CLOCK_REALTIME_COARSE),
    ("MONOTONIC", libc::CLOCK_MONOTONIC),
    ("MONOTONIC_COARSE", libc::CLOCK_MONOTONIC_COARSE),
    ("BOOTTIME", libc::CLOCK_BOOTTIME),
    ("MONOTONIC_RAW", libc::CLOCK_MONOTONIC_RAW),
    ("TAI", libc::CLOCK_TAI),
    ("PROCESS_CPUTIME_ID", libc::CLOCK_PROCESS_CPUTIME_ID),
    ("gettimeofday", -1),
    ("time", -2),
];

/// One reading between two of the kernel's.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    pub before_ns: i64,
    pub shown_ns: i64,
    pub after_ns: i64,
}

impl Reading {
    /// Returns whether the shown time can be `by_ns` ahead, within an error of `exact_to_ns`.
    pub fn is_ahead_by(&self, by_ns: i64, exact_to_ns: i64) -> bool {
        let at = self.shown_ns - by_ns;
        self.before_ns - exact_to_ns <= at && at <= self.after_ns + exact_to_ns
    }
}

/// The kernel's clock by the system call.
pub fn kernel_ns(id: i32) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    assert_eq!(unsafe { libc::syscall(libc::SYS_clock_gettime, id, &raw mut time) }, 0);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The clock as programs read it, through libc.
fn libc_ns(way: i32) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut of_day = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: each of them writes one structure, or nothing.
    unsafe {
        match way {
            -1 => {
                assert_eq!(libc::gettimeofday(&raw mut of_day, ptr::null_mut()), 0);
                assert!((0..1_000_000).contains(&of_day.tv_usec), "{}", of_day.tv_usec);
                of_day.tv_sec * 1_000_000_000 + of_day.tv_usec * 1_000
            }
            -2 => {
                let mut stored = 0;
                let returned = libc::time(&raw mut stored);
                assert_eq!(returned, stored);
                returned * 1_000_000_000
            }
            id => {
                assert_eq!(libc::clock_gettime(id, &raw mut time), 0);
                assert!((0..1_000_000_000).contains(&time.tv_nsec), "{}", time.tv_nsec);
                time.tv_sec * 1_000_000_000 + time.tv_nsec
            }
        }
    }
}

/// Reads in one way, between two readings of the same clock of the kernel.
pub fn read(way: i32) -> Reading {
    let id = match way {
        -1 => libc::CLOCK_REALTIME,
        -2 => libc::CLOCK_REALTIME_COARSE,
        id => id,
    };
    Reading { before_ns: kernel_ns(id), shown_ns: libc_ns(way), after_ns: kernel_ns(id) }
}

/// Runs the role that the environment names, if the process is a child program.
pub fn live() {
    match std::env::var(ROLE).as_deref() {
        Ok("reads") => reads(),
        Ok("hammers") => hammers(),
        Ok("is interrupted") => is_interrupted(),
        _ => {}
    }
}

/// Answers each line on standard input. Four threads wait meanwhile, as those of a server do.
fn reads() {
    for _ in 0..4 {
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(3600)));
    }
    say("ready");
    let mut started = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.as_str() {
            "read" => {
                for (name, way) in WAYS {
                    let Reading { before_ns, shown_ns, after_ns } = read(way);
                    say(&format!("{name} {before_ns} {shown_ns} {after_ns}"));
                }
                say("done");
            }
            "odd" => say(&odd_calls()),
            // A child that lives until its input ends, and says what it sees when it is asked.
            "fork" => {
                // SAFETY: the child goes on with this one thread, and takes no lock that another may hold but that of
                // its output.
                let pid = unsafe { libc::fork() };
                if pid != 0 {
                    say(&pid.to_string());
                    let mut status = 0;
                    // SAFETY: writes one integer.
                    unsafe { libc::waitpid(pid, &raw mut status, 0) };
                    say("the child has ended");
                }
            }
            // The parent traces this process from now on, so nobody else can.
            "be traced" => {
                // SAFETY: the call takes no other argument.
                let failed = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) };
                say(&failed.to_string());
            }
            // A new program, which ends with this one. It is loaded when it has answered.
            "start" => {
                let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                cat.stdin.as_mut().unwrap().write_all(b"x").unwrap();
                cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
                say(&cat.id().to_string());
                started.push(cat);
            }
            "exit" => std::process::exit(0),
            other => panic!("unknown: {other}"),
        }
    }
    std::process::exit(0);
}

/// Calls that are rarely made: what they answer must not change.
fn odd_calls() -> String {
    let mut zone = [7_i32; 2];
    let mut of_day = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut time = libc::timespec { tv_sec: -1, tv_nsec: -1 };
    // SAFETY: null pointers are allowed where they are given; a zone is two integers.
    unsafe {
        let both = libc::gettimeofday(&raw mut of_day, (&raw mut zone).cast());
        let neither = libc::gettimeofday(ptr::null_mut(), ptr::null_mut());
        let zone_only = libc::gettimeofday(ptr::null_mut(), (&raw mut zone).cast());
        let seconds = libc::time(ptr::null_mut()) / 1_000_000_000;
        let invalid = libc::clock_gettime(77, &raw mut time);
        let why = std::io::Error::last_os_error().raw_os_error();
        let untouched = (time.tv_sec, time.tv_nsec);
        format!(
            "{both} {neither} {zone_only} {zone:?} {seconds} {} {invalid} {why:?} {untouched:?}",
            of_day.tv_sec > 1_000_000_000
        )
    }
}

static READ: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static PASSES: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
static STOP: AtomicBool = AtomicBool::new(false);

/// How far the wall clock is moved under the hammer, if it is.
pub const HAMMERED_BY_NS: i64 = 20_000_000_000;

extern "C" fn interrupted(_: i32) {
    SIGNALS.fetch_add(1, Relaxed);
    check_wall();
}

/// The wall clock is moved by exactly so much, or not at all: nothing of a change that is half made may be seen.
fn check_wall() {
    for (_, way) in [WAYS[0], WAYS[8]] {
        let reading = read(way);
        if ![0, HAMMERED_BY_NS].iter().any(|by| reading.is_ahead_by(*by, 1_000)) {
            WRONG.fetch_add(1, Relaxed);
        }
    }
    READ.fetch_add(2, Relaxed);
}

/// Four threads read clocks all the time, in signal handlers too, and a fifth starts threads that end at once.
fn hammers() {
    let every = libc::timeval { tv_sec: 0, tv_usec: 200 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the handler takes no lock and allocates nothing; the timer is a valid one.
    unsafe {
        libc::signal(libc::SIGALRM, interrupted as *const () as libc::sighandler_t);
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()), 0);
    }
    let readers = std::array::from_fn::<_, 4, _>(|reader| {
        std::thread::spawn(move || {
            let mut last = [0; 3];
            while !STOP.load(Relaxed) {
                check_wall();
                for (last, (_, way)) in last.iter_mut().zip([WAYS[2], WAYS[3], WAYS[4]]) {
                    let shown_ns = libc_ns(way);
                    WRONG.fetch_add(u64::from(shown_ns < *last), Relaxed);
                    *last = shown_ns;
                }
                READ.fetch_add(3, Relaxed);
                PASSES[reader].fetch_add(1, Relaxed);
            }
        })
    });
    let starter = std::thread::spawn(|| {
        while !STOP.load(Relaxed) {
            std::thread::spawn(|| libc_ns(0)).join().unwrap();
        }
    });
    say("ready");
    for line in std::io::stdin().lines() {
        if line.unwrap() == "quiet" {
            end_signals();
        } else {
            STOP.store(true, Relaxed);
        }
        say(&format!("{} {} {}", READ.load(Relaxed), WRONG.load(Relaxed), SIGNALS.load(Relaxed)));
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    starter.join().unwrap();
    std::process::exit(0);
}

/// Until none is in a handler, nor will be.
fn end_signals() {
    // SAFETY: a timer of no time is none; what is ignored from now on is not pending any more either.
    unsafe {
        libc::setitimer(libc::ITIMER_REAL, &std::mem::zeroed(), ptr::null_mut());
        libc::signal(libc::SIGALRM, libc::SIG_IGN);
    }
    for passes in &PASSES {
        let before = passes.load(Relaxed);
        while passes.load(Relaxed) < before + 2 {
            std::thread::yield_now();
        }
    }
}

static INSIDE: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted_for_long(_: i32) {
    INSIDE.store(true, Relaxed);
    while INSIDE.load(Relaxed) {
        std::thread::yield_now();
    }
}

/// One thread reads clocks all the time. When it is told so, a signal interrupts it, whose handler returns when that is
/// told.
fn is_interrupted() {
    // SAFETY: the handler takes no lock and allocates nothing.
    unsafe { libc::signal(libc::SIGUSR1, interrupted_for_long as *const () as libc::sighandler_t) };
    let reader = std::thread::spawn(|| {
        while !STOP.load(Relaxed) {
            check_wall()
        }
    });
    say("ready");
    for line in std::io::stdin().lines() {
        let interrupt = line.unwrap() == "interrupt";
        if interrupt {
            // SAFETY: the thread runs until it is told to stop.
            unsafe { libc::pthread_kill(std::os::unix::thread::JoinHandleExt::as_pthread_t(&reader), libc::SIGUSR1) };
            while !INSIDE.load(Relaxed) {
                std::thread::yield_now();
            }
        } else {
            INSIDE.store(false, Relaxed);
        }
        say(&WRONG.load(Relaxed).to_string());
    }
    STOP.store(true, Relaxed);
    reader.join().unwrap();
    std::process::exit(0);
}

/// Beside what the test harness prints.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    write!(output, "\n> {line}\n").unwrap();
    output.flush().unwrap();
}

/// The program, running.
pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub fn start(role: &str) -> Program {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "lives", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, input, output };
        assert_eq!(program.line(), "ready");
        program
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input.as_ref().unwrap(), "{line}").unwrap();
    }

    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the program has ended");
            if let Some(said) = line.strip_prefix("> ") {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Returns the program's readings, in the order of [`WAYS`].
    pub fn readings(&mut self) -> Vec<(String, Reading)> {
        self.tell("read");
        let mut readings = Vec::new();
        loop {
            let line = self.line();
            if line == "done" {
                return readings;
            }
            let (name, numbers) = line.split_once(' ').unwrap();
            let numbers: Vec<i64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
            let [before_ns, shown_ns, after_ns] = numbers[..] else { panic!("{line}") };
            readings.push((name.to_owned(), Reading { before_ns, shown_ns, after_ns }));
        }
    }

    /// Ends its input and waits for its end.
    pub fn end(&mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        // Nothing is left to wait for if who traces it, a thread of this same process here, has seen its end.
        drop(self.child.wait());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
