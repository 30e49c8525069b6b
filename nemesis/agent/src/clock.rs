//! Clocks: the vDSO of a running process, rewritten in place.
//!
//! Programs read clocks through three functions of the vDSO. The agent stops all threads of the target, writes code of its own behind the text of the
//! target's vDSO and a jump to it over the first bytes of each function, and lets the threads go on. The code makes the real system
//! call and shows a function of what the kernel says (`clock/slot.rs`), so that nothing is to be done while a clock drifts. Only this
//! process is moved: the pages are copied when they are written to.
//!
//! - What the process forks later has its clocks; what it executes has true ones again, and so has the process when it is started anew.
//! - Timers are the kernel's: a sleep, a timeout, a wait until an absolute time run on true clocks, whatever the process is shown.
//! - A program that makes the system call itself sees the truth. So do the stamps of a run.

mod code;
mod container;
mod error;
mod kernel;
mod memory;
mod slot;
mod stopped;
mod vdso;

use std::{collections::BTreeSet, fs, ops::Range, time::Duration};

pub use container::processes_of;
pub use error::ClockError;

use self::{
    code::Inside,
    memory::Memory,
    slot::Slot,
    stopped::{Thread, while_stopped},
    vdso::{Found, Image},
};
use crate::protocol::{ClockAnswer, ClockChange, ClockRequest, ClocksAhead, WhichClock};

/// How often a process is stopped anew, with a thread inside an original function each time.
const TRIES: usize = 100;

/// How often it is stopped anew while a signal seems to have interrupted a thread inside our code. Whether one really has cannot be told: what a
/// handler leaves on the stack looks the same after it has returned.
const TRIES_FOR_SIGNALS: usize = 10;

/// How much of a thread's stack is searched for the registers of code that a signal has interrupted.
const STACK_LEN: usize = 32 * 1024;

/// Does what is asked, to all processes of a container.
///
/// # Errors
///
/// Nothing is undone: what had been moved before the error stays moved until it is healed.
pub fn obey(request: ClockRequest) -> Result<ClockAnswer, ClockError> {
    let pids = match request {
        ClockRequest::Ahead { pid } => return Clocks::of(pid)?.ahead().map(ClockAnswer::Ahead),
        ClockRequest::Move { pid, clock, change } => {
            let made_by = kernel::monotonic_ns() as u64;
            each(pid, |clocks| clocks.move_once(made_by, clock, change))
        }
        ClockRequest::Heal { pid } => each(pid, Clocks::heal),
        ClockRequest::Restore { pid } => each(pid, Clocks::restore),
    }?;
    Ok(ClockAnswer::Done { pids })
}

/// To all processes of a container, also to those that are forked meanwhile. Who has ended meanwhile is left out.
fn each(pid: i32, act: impl Fn(&mut Clocks) -> Result<(), ClockError>) -> Result<Vec<i32>, ClockError> {
    let (mut seen, mut done) = (BTreeSet::new(), Vec::new());
    loop {
        let new: Vec<i32> = processes_of(pid)?.into_iter().filter(|pid| seen.insert(*pid)).collect();
        if new.is_empty() {
            return Ok(done);
        }
        for one in new {
            match Clocks::of(one).and_then(|mut clocks| act(&mut clocks)) {
                Ok(()) => done.push(one),
                Err(ClockError::Gone { .. }) if one != pid => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The clocks of one running process.
#[derive(Debug)]
pub struct Clocks {
    pid: i32,
    memory: Memory,
    /// Where its vDSO is.
    mapped: Range<u64>,
    image: Image,
}

impl Clocks {
    /// The clocks of a process, by its pid here.
    ///
    /// # Errors
    ///
    /// The process has ended; may not be written to; has no vDSO, or one of another machine or one that somebody else has rewritten.
    pub fn of(pid: i32) -> Result<Clocks, ClockError> {
        let (own, own_mapped) = Memory::of_vdso(std::process::id() as i32)?;
        let (memory, mapped) = Memory::of_vdso(pid)?;
        let impossible = |why: String| ClockError::Impossible { pid, why };
        // Read for what it is first: a vDSO of another machine has another length.
        Image::new(memory.read(mapped.clone())?).map_err(impossible)?;
        let image = Image::new(own.read(own_mapped)?).map_err(impossible)?;
        if !same_time_namespace(pid) {
            return Err(impossible("it lives in another time namespace: start it in that of the agent".into()));
        }
        let clocks = Clocks { pid, memory, mapped, image };
        clocks.found()?;
        Ok(clocks)
    }

    /// Moves clocks from what they show now. All threads are stopped for that, and go on at once. A jump is seen by each reading or is not; only a
    /// drift or a strobe may be seen half made, once, by a reading that a signal's handler interrupts for all that time.
    ///
    /// # Errors
    ///
    /// No clock can be moved like this; the process has ended, or could not be stopped at a place where that is safe.
    pub fn change(&mut self, which: WhichClock, change: ClockChange) -> Result<(), ClockError> {
        self.move_once(kernel::monotonic_ns() as u64, which, change)
    }

    /// Makes the wall clock true again, which is a jump of its own. A monotonic clock runs right again from what it shows now: that never goes
    /// back. If then no clock is moved, the original code is put back, byte for byte; but for the unused bytes behind it if the handler of a signal
    /// might return to code of ours there.
    ///
    /// # Errors
    ///
    /// The process has ended, or could not be stopped at a place where that is safe.
    pub fn heal(&mut self) -> Result<(), ClockError> {
        self.rewrite(|slot| Ok(slot.map(|slot| slot.healed(kernel::now())).filter(|slot| !slot.is_true())))
    }

    /// Puts the original code back, byte for byte. A monotonic clock that is ahead **goes back** by that.
    ///
    /// # Errors
    ///
    /// The process has ended, or could not be stopped at a place where that is safe.
    pub fn restore(&mut self) -> Result<(), ClockError> {
        self.rewrite(|_| Ok(None))
    }

    /// How far its clocks are ahead, as its memory says.
    ///
    /// # Errors
    ///
    /// The process has ended, or its vDSO is not as it was left.
    pub fn ahead(&self) -> Result<ClocksAhead, ClockError> {
        let Found::Ours(slot) = self.found()? else { return Ok(ClocksAhead::default()) };
        let now = kernel::now();
        Ok(ClocksAhead {
            wall_ns: slot.wall.shows_ns(now.wall_ns) - now.wall_ns,
            monotonic_ns: slot.monotonic.shows_ns(now.monotonic_ns) - now.monotonic_ns,
            boottime_ns: slot.boottime.shows_ns(now.boottime_ns) - now.boottime_ns,
        })
    }

    /// Whether its vDSO is rewritten, by this agent or by one before it.
    ///
    /// # Errors
    ///
    /// The process has ended, or its vDSO was rewritten by somebody else.
    pub fn is_installed(&self) -> Result<bool, ClockError> {
        Ok(matches!(self.found()?, Found::Ours(_)))
    }

    fn move_once(&mut self, made_by: u64, which: WhichClock, change: ClockChange) -> Result<(), ClockError> {
        self.rewrite(|slot| {
            // Forked from one that was moved already.
            if slot.is_some_and(|slot| slot.made_by == made_by) {
                return Ok(slot);
            }
            let (slot, now) = (slot.unwrap_or_default(), kernel::now());
            let moved = slot.after(now, which, change).map_err(|why| ClockError::Refused { why })?;
            Ok(Some(Slot { made_by, ..moved }))
        })
    }

    fn found(&self) -> Result<Found, ClockError> {
        let found = self.image.find(&self.memory.read(self.mapped.clone())?);
        found.ok_or_else(|| {
            let why = "its vDSO is neither the kernel's nor what this agent makes of it: start the process anew";
            ClockError::Impossible { pid: self.pid, why: why.into() }
        })
    }

    /// Makes of the slot that is there another, or none, while all threads are stopped outside of all code that is changed.
    fn rewrite(
        &mut self,
        make: impl Fn(Option<Slot>) -> Result<Option<Slot>, ClockError> + Sync,
    ) -> Result<(), ClockError> {
        let clocks = &*self;
        for tried in 0..TRIES {
            let done = while_stopped(clocks.pid, |threads| {
                let before = clocks.found()?;
                let places: Vec<Place> = threads.iter_mut().map(|thread| clocks.put_outside(thread)).collect();
                let interrupted = places.contains(&Place::Interrupted);
                let after = make(match before {
                    Found::Ours(slot) => Some(slot),
                    Found::Original | Found::Retired => None,
                })?;
                if places.contains(&Place::Torn) || interrupted && tried < TRIES_FOR_SIGNALS {
                    return Ok(false);
                }
                let (done, slot) = match (before, after) {
                    (Found::Ours(_), Some(_)) if places.contains(&Place::Original) => return Ok(false),
                    // Code that shows the truth comes first: who is in an original function now would still read the truth a while after the
                    // change, and then see a clock that runs slow go back.
                    (Found::Original | Found::Retired, Some(_)) => (false, Some(Slot::default())),
                    _ => (true, after),
                };
                clocks.write(before, slot, interrupted)?;
                Ok(done)
            })?;
            if done {
                return Ok(());
            }
            // Let run, a thread leaves such a place after a few instructions.
            std::thread::sleep(Duration::from_millis(1));
        }
        let why = format!("in {TRIES} tries a thread was inside a function that reads clocks");
        Err(ClockError::Busy { pid: self.pid, why: why + "; if the process is stopped or frozen, let it go on first" })
    }

    /// Code that somebody might return to is never taken away, only retired: the next change, or heal, takes it.
    fn write(&self, before: Found, after: Option<Slot>, interrupted: bool) -> Result<(), ClockError> {
        let rate_before = match before {
            Found::Ours(slot) => slot.monotonic.rate,
            Found::Original | Found::Retired => 0,
        };
        let monotonic = after.unwrap_or_default().monotonic;
        if rate_before != monotonic.rate {
            kernel::until_coarse(monotonic.since_ns);
        }
        let parts = match after {
            Some(slot) => self.image.parts(&slot),
            None if before == Found::Original => return Ok(()),
            None if interrupted => self.image.retired_parts(),
            None => self.image.original_parts(),
        };
        parts.iter().try_for_each(|(at, bytes)| self.memory.write(self.mapped.start + *at as u64, bytes))
    }

    /// Puts a thread that is inside our code back to the beginning of its call.
    fn put_outside(&self, thread: &mut Thread) -> Place {
        let Some(mut registers) = thread.registers() else { return Place::Outside };
        if self.image.is_torn(self.mapped.start, registers.rip) {
            return Place::Torn;
        }
        let libc::user_regs_struct { rip, rdi, rsi, r9, r10, .. } = registers;
        if let Some(back) = self.rewound(Inside { rip, rdi, rsi, r9, r10 }) {
            (registers.rip, registers.rdi, registers.rsi) = (back.rip, back.rdi, back.rsi);
            // It is in no system call any more that could be made again.
            registers.orig_rax = u64::MAX;
            thread.set_registers(&registers);
        }
        let is_original =
            self.mapped.contains(&registers.rip) && !self.image.entries_at(self.mapped.start).contains(&registers.rip);
        self.interrupted(registers.rsp).max(if is_original { Place::Original } else { Place::Outside })
    }

    /// Where signals have interrupted a thread. A handler runs above the registers of what it has interrupted (`struct sigcontext`): the
    /// instruction pointer, and two words on the segment of its code, which is that of 64-bit programs. Found where the handler uses
    /// less than [`STACK_LEN`]. They are never written to: what looks like them may be left over, with other things between.
    fn interrupted(&self, stack: u64) -> Place {
        const USER_CODE: u64 = 0x33;
        let bytes = self.memory.read_mapped(stack, STACK_LEN);
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|i| word[i]))).collect();
        let contexts = words.windows(3).filter(|context| context[2] & 0xffff == USER_CODE);
        let places = contexts.map(|context| {
            let inside = Inside { rip: context[0], rdi: 0, rsi: 0, r9: 0, r10: 0 };
            match () {
                () if self.image.is_torn(self.mapped.start, inside.rip) => Place::Torn,
                () if self.rewound(inside).is_some() => Place::Interrupted,
                () => Place::Outside,
            }
        });
        places.max().unwrap_or(Place::Outside)
    }

    fn rewound(&self, inside: Inside) -> Option<Inside> {
        let base = self.mapped.start;
        self.image.code().rewound(inside, self.image.code_at(base), &self.image.entries_at(base))
    }
}

/// Where a stopped thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Nowhere in what is changed, now.
    Outside,
    /// Inside a function as it was.
    Original,
    /// Inside our code, in a call to which the handler of a signal returns; perhaps.
    Interrupted,
    /// In the middle of what will be a jump.
    Torn,
}

/// Whether what the kernel says here is what it says there. A kernel without such namespaces has one time for all.
fn same_time_namespace(pid: i32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/time"));
    match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => true,
    }
}
