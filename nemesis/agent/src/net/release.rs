//! The thread of one queue: takes packets in, holds them, lets each go when it is due.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
};

use nix::errno::Errno;

use super::{
    faults::Report,
    hold::{Decision, Held, Hold},
    queue::{Queue, Queued},
};
use crate::{
    protocol::{FaultNumber, HeldEnd, HeldPacket, PacketTally},
    stamp::monotonic_ns,
};

/// So many packets are read before those that are due are looked at again.
const READ_AT_ONCE: usize = 64;
/// When the rules are gone, packets that had met them before may still come for so long.
const STRAGGLERS_NS: u64 = 5_000_000;

/// Releases packets until the other end of `stop` is closed; then it releases all that are left, and ends.
pub(super) struct Release {
    pub queue: Queue,
    pub hold: Hold,
    pub stop: UnixStream,
    pub fault: FaultNumber,
    pub report: Report,
    pub tally: PacketTally,
    /// What is reported when the kernel has been told.
    pub ended: Vec<HeldPacket>,
}

impl Release {
    pub fn run(mut self) -> io::Result<PacketTally> {
        // The kernel may be late by 50 µs with a timer, to save wake-ups. Not here.
        nix::sys::prctl::set_timerslack(1)?;
        loop {
            let more = self.take_in()?;
            let now = monotonic_ns();
            while let Some(held) = self.hold.due(now) {
                self.release(held, HeldEnd::Due)?;
            }
            self.tell()?;
            if !more && self.wait()? {
                return self.end();
            }
        }
    }

    /// Reads what there is; whether there may be more.
    fn take_in(&mut self) -> io::Result<bool> {
        for _ in 0..READ_AT_ONCE {
            match self.queue.next() {
                Ok(Some(queued)) => self.decide(queued)?,
                Ok(None) => return Ok(false),
                // Counted by the kernel, and read when the fault is healed.
                Err(Errno::ENOBUFS | Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    fn decide(&mut self, Queued { id, headers }: Queued) -> io::Result<()> {
        let now = monotonic_ns();
        let Some(headers) = headers else {
            self.tally.passed += 1;
            return self.queue.accept(id);
        };
        match self.hold.arrived(id, headers, now) {
            Decision::Keep => Ok(()),
            Decision::Pass => {
                self.tally.passed += 1;
                self.queue.accept(id)
            }
            Decision::Drop => {
                self.tally.lost += 1;
                self.ended.push(ended(Held { id, headers, held_ns: now }, now, HeldEnd::Lost));
                self.queue.drop(id)
            }
        }
    }

    fn release(&mut self, held: Held, end: HeldEnd) -> io::Result<()> {
        self.tally.held += 1;
        self.ended.push(ended(held, monotonic_ns(), end));
        self.queue.accept(held.id)
    }

    /// Tells the kernel first, and then whoever listens: reporting delays no packet that is due already.
    fn tell(&mut self) -> io::Result<()> {
        self.queue.flush()?;
        if !self.ended.is_empty() {
            (self.report)(self.fault, &self.ended);
            self.ended.clear();
        }
        Ok(())
    }

    /// Until there is a packet to read, or one is due, or it is over. Whether it is.
    fn wait(&self) -> io::Result<bool> {
        let left = self.hold.next_due().map(|due| due.saturating_sub(monotonic_ns()));
        let [_, stopped] = wait([self.queue.as_fd().as_raw_fd(), self.stop.as_raw_fd()], left)?;
        Ok(stopped)
    }

    fn end(mut self) -> io::Result<PacketTally> {
        let until = monotonic_ns() + STRAGGLERS_NS;
        loop {
            for held in self.hold.let_go() {
                self.release(held, HeldEnd::Healed)?;
            }
            self.tell()?;
            let left = until.saturating_sub(monotonic_ns());
            let [readable] = wait([self.queue.as_fd().as_raw_fd()], Some(left))?;
            if !readable {
                return Ok(self.tally);
            }
            // Those in a row, so that the last of them is not the last of all.
            while self.take_in()? {}
        }
    }
}

fn ended(held: Held, released_ns: u64, end: HeldEnd) -> HeldPacket {
    let Held { headers, held_ns, .. } = held;
    let (from, to, payload_bytes) = (headers.from, headers.to, headers.payload_bytes);
    HeldPacket { held_ns, released_ns, from, to, payload_bytes, end }
}

/// Waits until one of these can be read or is closed, at most so many nanoseconds. Which of them is it?
#[allow(unsafe_code)]
fn wait<const N: usize>(fds: [i32; N], at_most_ns: Option<u64>) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = at_most_ns
        .map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polled` is an array of N, and lives as long as the timeout until the call returns. No signal mask is given.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), N as libc::nfds_t, timeout, std::ptr::null()) };
    match Errno::result(ready) {
        Ok(_) => Ok(polled.map(|polled| polled.revents != 0)),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(errno) => Err(errno.into()),
    }
}
