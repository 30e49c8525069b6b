//! A process with all threads stopped.
//!
//! Each operation runs in its own thread: only the tracing thread may make requests, and when the tracing thread ends,
//! the kernel releases all its tracees. So no thread stays stopped after an error or a panic, not even a thread that
//! could not be stopped in time.

use std::{fs, io, time::Duration};

use super::{error::ClockError, kernel};

/// The timeout for a thread to stop. A thread stops at once unless it is frozen or waits for a disk.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// The time between two checks.
const NAP: Duration = Duration::from_micros(20);

/// One stopped thread.
#[derive(Debug)]
pub(super) struct Thread {
    tid: i32,
    /// The signal at whose delivery the thread was stopped: delivered when the thread continues.
    signal: i32,
    gone: bool,
}

/// Stops all threads of a process, runs a function, and continues the threads.
pub(super) fn while_stopped<T: Send>(
    pid: i32,
    act: impl FnOnce(&mut [Thread]) -> Result<T, ClockError> + Send,
) -> Result<T, ClockError> {
    let tracing = || {
        let mut threads = Vec::new();
        let result = stop_all(pid, &mut threads).and_then(|()| act(&mut threads));
        threads.iter_mut().for_each(Thread::let_go);
        result
    };
    let traced = std::thread::scope(|scope| scope.spawn(tracing).join());
    traced.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Stops threads until no running thread could start another.
fn stop_all(pid: i32, threads: &mut Vec<Thread>) -> Result<(), ClockError> {
    loop {
        let known = threads.len();
        for tid in tids(pid)? {
            if threads.iter().all(|thread| thread.tid != tid) && seize(pid, tid)? {
                threads.push(Thread { tid, signal: 0, gone: false });
            }
        }
        if threads.len() == known {
            return if threads.iter().all(|thread| thread.gone) { Err(ClockError::Gone { pid }) } else { Ok(()) };
        }
        let deadline_ns = kernel::monotonic_ns() + STOP_WITHIN.as_nanos() as i64;
        for thread in &mut threads[known..] {
            thread.wait(pid, deadline_ns)?;
        }
    }
}

fn tids(pid: i32) -> Result<Vec<i32>, ClockError> {
    let failed = |source| ClockError::from_io(pid, "list the threads", source);
    let mut tids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
        tids.extend(entry.map_err(failed)?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(tids)
}

/// Begins to trace a thread and stops it. Returns none if the thread has ended.
fn seize(pid: i32, tid: i32) -> Result<bool, ClockError> {
    let asked = ptrace(libc::PTRACE_SEIZE, tid, 0).and_then(|()| ptrace(libc::PTRACE_INTERRUPT, tid, 0));
    match asked {
        Ok(()) => Ok(true),
        Err(_) if has_ended(pid, tid) => Ok(false),
        Err(source) => Err(ClockError::from_io(pid, "trace", source)),
    }
}

fn has_ended(pid: i32, tid: i32) -> bool {
    // The state follows the name, which may contain blanks and brackets.
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    matches!(stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()), None | Some('Z' | 'X'))
}

impl Thread {
    /// Waits until the thread has stopped or ended.
    fn wait(&mut self, pid: i32, deadline_ns: i64) -> Result<(), ClockError> {
        loop {
            match waitpid(self.tid) {
                Ok(Some(status)) if libc::WIFSTOPPED(status) => {
                    let is_event = status >> 16 != 0;
                    self.signal = if is_event { 0 } else { libc::WSTOPSIG(status) };
                    return Ok(());
                }
                Ok(Some(_)) | Err(_) => {
                    self.gone = true;
                    return Ok(());
                }
                // The kernel reports the first thread only after all others have been waited for.
                Ok(None) if has_ended(pid, self.tid) => {
                    self.gone = true;
                    return Ok(());
                }
                Ok(None) if kernel::monotonic_ns() < deadline_ns => std::thread::sleep(NAP),
                Ok(None) => {
                    let why = format!(
                        "thread {} did not stop within {STOP_WITHIN:?}: it is frozen, waits for a disk or \
                         for a child that has not \
                         started its program yet; thaw it or try again",
                        self.tid
                    );
                    return Err(ClockError::Busy { pid, why });
                }
            }
        }
    }

    /// Reads the registers; none if the thread was killed.
    #[allow(unsafe_code)]
    pub fn registers(&mut self) -> Option<libc::user_regs_struct> {
        if self.gone {
            return None;
        }
        // SAFETY: all zeros are a valid value, and the kernel writes no more than this structure.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let read = ptrace(libc::PTRACE_GETREGS, self.tid, (&raw mut registers).addr());
        read.ok().map(|()| registers)
    }

    /// Sets the registers with which the thread continues.
    pub fn set_registers(&mut self, registers: &libc::user_regs_struct) {
        // Fails for a killed thread, which will not continue.
        drop(ptrace(libc::PTRACE_SETREGS, self.tid, (&raw const *registers).addr()));
    }

    fn let_go(&mut self) {
        // Fails for a thread that was killed or has not stopped yet. The kernel releases those when this tracer ends.
        drop(ptrace(libc::PTRACE_DETACH, self.tid, self.signal as usize));
    }
}

/// Returns the report of the thread, if any.
#[allow(unsafe_code)]
fn waitpid(tid: i32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: the kernel writes one integer.
    match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ => Ok(Some(status)),
    }
}

/// Makes one ptrace request with its data argument; no request here uses the address argument.
#[allow(unsafe_code)]
fn ptrace(request: libc::c_uint, tid: i32, data: usize) -> io::Result<()> {
    // SAFETY: the requests made here write at most a `user_regs_struct`, to the address of one.
    match unsafe { libc::ptrace(request, tid, 0usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    use super::*;

    #[test]
    fn a_signal_that_stops_a_thread_is_delivered_later() {
        let mut child = Command::new("sleep").arg("10").spawn().unwrap();
        let pid = child.id() as i32;
        ptrace(libc::PTRACE_SEIZE, pid, 0).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let mut thread = Thread { tid: pid, signal: 0, gone: false };
        thread.wait(pid, kernel::monotonic_ns() + STOP_WITHIN.as_nanos() as i64).unwrap();
        thread.let_go();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGTERM as i32));
    }
}
