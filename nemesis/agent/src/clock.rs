//! Clocks: the vDSO of a running process, rewritten in place.
//!
//! Programs read clocks through three functions of the vDSO. The agent stops all threads of the target, writes its own
//! code behind the text of the target's vDSO and a jump to the code over the first bytes of each function, and
//! continues the threads. The code makes the real system call and computes the shown time from the kernel's time
//! (`clock/slot.rs`), so that a drift needs no further activity of the agent. Only this process is affected: its pages
//! are copied on write.
//!
//! - A forked child inherits the changed clocks. A new program (`exec`) and a restarted process have true clocks.
//! - Timers belong to the kernel: sleeps, timeouts and waits until an absolute time run on true clocks.
//! - A program that makes the system call itself sees the true time. So do the stamps of a run.

mod code;
mod container;
mod error;
mod kernel;
mod memory;
mod slot;
mod stopped;
mod vdso;

use std::{collections::BTreeSet, fs, ops::Range, thread, time::Duration};

use history::{ClockChange, WhichClock};

pub use container::processes_of;
pub use error::ClockError;

use self::{
    code::Inside,
    memory::Memory,
    slot::Slot,
    stopped::{Thread, while_stopped},
    vdso::{Found, Image},
};
use crate::protocol::{ClockAnswer, ClockRequest, ClocksAhead};

/// The most attempts to stop a process while a thread is inside an original function.
const TRIES: usize = 100;

/// The most attempts while a signal seems to have interrupted a thread inside the agent's code. The agent cannot be
/// sure: the stack looks the same after the handler has returned.
const TRIES_FOR_SIGNALS: usize = 10;

/// The time between two looks at a process that seems to load a program.
const LOADS_FOR: Duration = Duration::from_millis(1);

/// The part of a thread's stack that is searched for the registers of interrupted code.
const STACK_LEN: usize = 32 * 1024;

/// Carries out an order, on all processes of a container.
///
/// # Errors
///
/// Nothing is undone: clocks that were changed before the error stay changed until they are healed.
pub fn obey(request: ClockRequest) -> Result<ClockAnswer, ClockError> {
    let pids = match request {
        ClockRequest::Ahead { pid } => return Clocks::of(pid)?.ahead().map(ClockAnswer::Ahead),
        ClockRequest::Change { pid, clock, change } => {
            let made_by = kernel::monotonic_ns() as u64;
            let undoes = Clocks::of(pid)?.is_undone_by(clock, change)?;
            each(pid, |clocks| clocks.move_once(made_by, clock, change, undoes))
        }
        ClockRequest::Heal { pid } => each(pid, Clocks::heal),
        ClockRequest::Restore { pid } => each(pid, Clocks::restore),
    }?;
    Ok(ClockAnswer::Done { pids })
}

/// Acts on all processes of a container, including those that are forked meanwhile. Leaves out processes that have
/// ended.
fn each(pid: i32, act: impl Fn(&mut Clocks) -> Result<(), ClockError>) -> Result<Vec<i32>, ClockError> {
    let (mut seen, mut done) = (BTreeSet::new(), Vec::new());
    loop {
        let new: Vec<i32> = processes_of(pid)?.into_iter().filter(|pid| seen.insert(*pid)).collect();
        if new.is_empty() {
            return Ok(done);
        }
        for one in new {
            match on_process(one, &act) {
                Ok(()) => done.push(one),
                Err(ClockError::Gone { .. }) if one != pid => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Acts on one process. A process that loads a program meanwhile has new memory, and true clocks: the action is for
/// them too.
fn on_process(pid: i32, act: impl Fn(&mut Clocks) -> Result<(), ClockError>) -> Result<(), ClockError> {
    for _ in 1..TRIES {
        match Clocks::of(pid).and_then(|mut clocks| act(&mut clocks)) {
            Err(ClockError::Gone { .. }) if memory::is_there(pid) => thread::sleep(LOADS_FOR),
            ended => return ended,
        }
    }
    Clocks::of(pid).and_then(|mut clocks| act(&mut clocks))
}

/// The clocks of one running process.
#[derive(Debug)]
pub struct Clocks {
    pid: i32,
    memory: Memory,
    /// The address range of the vDSO.
    mapped: Range<u64>,
    image: Image,
}

impl Clocks {
    /// Opens the clocks of a process, by its pid in the agent's namespace.
    ///
    /// # Errors
    ///
    /// The process has ended, may not be written to, or has no vDSO that the agent knows.
    pub fn of(pid: i32) -> Result<Clocks, ClockError> {
        for _ in 1..TRIES {
            match Clocks::open(pid) {
                // A process that loads a program gets its vDSO last, and its former memory is gone.
                Err(ClockError::Impossible { .. } | ClockError::Io { .. }) => thread::sleep(LOADS_FOR),
                opened => return opened,
            }
        }
        Clocks::open(pid)
    }

    fn open(pid: i32) -> Result<Clocks, ClockError> {
        let (own, own_mapped) = Memory::of_vdso(std::process::id() as i32)?;
        let (memory, mapped) = Memory::of_vdso(pid)?;
        let impossible = |why: String| ClockError::Impossible { pid, why };
        // Parse it first: a vDSO of another machine has another length.
        Image::new(memory.read(mapped.clone())?).map_err(impossible)?;
        let image = Image::new(own.read(own_mapped)?).map_err(impossible)?;
        if !same_time_namespace(pid) {
            return Err(impossible("it lives in another time namespace: start it in that of the agent".into()));
        }
        let clocks = Clocks { pid, memory, mapped, image };
        clocks.found()?;
        Ok(clocks)
    }

    /// Changes clocks from their current readings. Stops all threads briefly. Each reading sees a jump completely or
    /// not at all. A reading that a signal handler interrupts for the whole change may see a drift or a strobe half
    /// made, once.
    ///
    /// # Errors
    ///
    /// The change is impossible, the process has ended, or the process could not be stopped at a safe place.
    pub fn change(&mut self, which: WhichClock, change: ClockChange) -> Result<(), ClockError> {
        self.move_once(kernel::monotonic_ns() as u64, which, change, false)
    }

    /// Sets the wall clock to the true time, which is a jump. A monotonic clock continues at the true rate from its
    /// current reading, so that it never goes back. If all clocks are then true, restores the original code byte for
    /// byte; the agent's code stays behind it if a signal handler might return to it.
    ///
    /// # Errors
    ///
    /// The process has ended, or could not be stopped at a safe place.
    pub fn heal(&mut self) -> Result<(), ClockError> {
        self.rewrite(|slot| Ok(slot.map(|slot| slot.healed(kernel::now())).filter(|slot| !slot.is_true())))
    }

    /// Restores the original code, byte for byte. A monotonic clock that is ahead **goes back**.
    ///
    /// # Errors
    ///
    /// The process has ended, or could not be stopped at a safe place.
    pub fn restore(&mut self) -> Result<(), ClockError> {
        self.rewrite(|_| Ok(None))
    }

    /// Reads from the process's memory how far its clocks are ahead.
    ///
    /// # Errors
    ///
    /// The process has ended, or another program has changed its vDSO.
    pub fn ahead(&self) -> Result<ClocksAhead, ClockError> {
        let Found::Ours(slot) = self.found()? else { return Ok(ClocksAhead::default()) };
        let now = kernel::now();
        Ok(ClocksAhead {
            wall_ns: slot.wall.shows_ns(now.wall_ns) - now.wall_ns,
            monotonic_ns: slot.monotonic.shows_ns(now.monotonic_ns) - now.monotonic_ns,
            boottime_ns: slot.boottime.shows_ns(now.boottime_ns) - now.boottime_ns,
        })
    }

    /// Returns whether this agent or an earlier one has rewritten the vDSO.
    ///
    /// # Errors
    ///
    /// The process has ended, or another program has rewritten its vDSO.
    pub fn is_installed(&self) -> Result<bool, ClockError> {
        Ok(matches!(self.found()?, Found::Ours(_)))
    }

    /// Returns whether the change undoes an earlier change of this process.
    fn is_undone_by(&self, which: WhichClock, change: ClockChange) -> Result<bool, ClockError> {
        Ok(matches!(self.found()?, Found::Ours(slot) if slot.is_undone_by(which, change)))
    }

    /// With `undoes`, changes the clocks only if the change undoes an earlier change of this process.
    fn move_once(
        &mut self,
        made_by: u64,
        which: WhichClock,
        change: ClockChange,
        undoes: bool,
    ) -> Result<(), ClockError> {
        self.rewrite(|slot| {
            // Forked from a process that was already changed.
            if slot.is_some_and(|slot| slot.made_by == made_by) {
                return Ok(slot);
            }
            // A program that started after the earlier change has right clocks.
            if undoes && slot.is_none_or(|slot| !slot.is_undone_by(which, change)) {
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

    /// Replaces or removes the slot while all threads are stopped outside of the changed code.
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
                let Some((done, slot)) = next(before, after, &places) else { return Ok(false) };
                clocks.write(before, slot, interrupted)?;
                Ok(done)
            })?;
            if done {
                return Ok(());
            }
            // A running thread leaves such a place after a few instructions.
            std::thread::sleep(Duration::from_millis(1));
        }
        let why = format!("in {TRIES} tries a thread was inside a function that reads clocks");
        Err(ClockError::Busy { pid: self.pid, why: why + "; if the process is stopped or frozen, let it go on first" })
    }

    /// Never removes code to which a thread might return, only retires it: the next change or heal removes it.
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

    /// Moves a thread inside the agent's code back to the beginning of its call.
    fn put_outside(&self, thread: &mut Thread) -> Place {
        let Some(mut registers) = thread.registers() else { return Place::Outside };
        if self.image.is_torn(self.mapped.start, registers.rip) {
            return Place::Torn;
        }
        let libc::user_regs_struct { rip, rdi, rsi, r9, r10, .. } = registers;
        if let Some(back) = self.rewound(Inside { rip, rdi, rsi, r9, r10 }) {
            (registers.rip, registers.rdi, registers.rsi) = (back.rip, back.rdi, back.rsi);
            // The thread is no longer in a system call that could be restarted.
            registers.orig_rax = u64::MAX;
            thread.set_registers(&registers);
        }
        let is_original =
            self.mapped.contains(&registers.rip) && !self.image.entries_at(self.mapped.start).contains(&registers.rip);
        self.interrupted(registers.rsp).max(if is_original { Place::Original } else { Place::Outside })
    }

    /// Finds where signals have interrupted a thread. The registers of the interrupted code (`struct sigcontext`) are
    /// on the stack: the instruction pointer, and two words later the code segment of 64-bit programs. They are found
    /// if the handler uses less than [`STACK_LEN`]. They are never written to, because a match may be a leftover.
    fn interrupted(&self, stack: u64) -> Place {
        const USER_CODE: u64 = 0x33;
        let bytes = self.memory.read_mapped(stack, STACK_LEN);
        let words: Vec<u64> = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes).collect();
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

/// The place of a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Outside of the changed code.
    Outside,
    /// Inside an original function.
    Original,
    /// Perhaps inside the agent's code, in a call to which a signal handler returns.
    Interrupted,
    /// In the middle of the bytes of a jump.
    Torn,
}

/// Returns whether the slot to write is the last one, and the slot; none, if the threads must go on first.
fn next(before: Found, after: Option<Slot>, places: &[Place]) -> Option<(bool, Option<Slot>)> {
    match (before, after) {
        (Found::Ours(_), Some(_)) if places.contains(&Place::Original) => None,
        // First install code that shows the true time: a thread in an original function would read the true time after
        // the change, and would then see a slow clock go back.
        (Found::Original | Found::Retired, Some(_)) => Some((false, Some(Slot::default()))),
        _ => Some((true, after)),
    }
}

/// Returns whether the process shares the agent's time namespace. A kernel without time namespaces has one for all.
fn same_time_namespace(pid: i32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/time"));
    match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn a_process_that_loads_a_program_under_the_action_is_acted_on_again() {
        let program = "read line; exec sleep 100";
        let mut child = Command::new("sh").args(["-c", program]).stdin(Stdio::piped()).spawn().unwrap();
        let (pid, input, actions) = (child.id() as i32, Cell::new(child.stdin.take()), Cell::new(0));
        let acted = on_process(pid, |clocks| {
            actions.set(actions.get() + 1);
            if let Some(mut input) = input.take() {
                input.write_all(b"go\n").unwrap();
                while fs::read(format!("/proc/{pid}/cmdline")).unwrap() != b"sleep\x00100\x00" {
                    thread::sleep(LOADS_FOR);
                }
            }
            clocks.is_installed().map(|_| ())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(acted.is_ok() && actions.get() > 1, "{acted:?} after {} actions", actions.get());
        assert!(matches!(on_process(pid, |_| Ok(())), Err(ClockError::Gone { .. })), "it has ended");
    }

    #[test]
    fn no_clock_changes_under_a_thread_in_an_original_function() {
        let (before, after) = (Slot { made_by: 1, ..Slot::default() }, Some(Slot { made_by: 2, ..Slot::default() }));
        let (free, inside) = ([Place::Outside; 2], [Place::Outside, Place::Original]);
        for places in [&free, &inside] {
            let step = next(Found::Original, after, places);
            assert_eq!(step, Some((false, Some(Slot::default()))), "code that shows the true time comes first");
            assert_eq!(next(Found::Ours(before), None, places), Some((true, None)));
        }
        assert_eq!(next(Found::Ours(before), after, &free), Some((true, after)));
        assert_eq!(next(Found::Ours(before), after, &inside), None);
    }
}
