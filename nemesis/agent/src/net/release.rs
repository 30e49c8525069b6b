//! The thread of one queue: reads packets, delays them, and releases each when it is due.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use history::FaultId;
use nix::errno::Errno;

use super::{
    delay_queue::{Decision, DelayQueue, DelayedPacket},
    queue::{Queue, Queued},
};
use crate::{
    protocol::{PacketFate, PacketReport, PacketTally},
    stamp::monotonic_ns,
};

/// The number of packets that are read before the due packets are checked again.
const READ_AT_ONCE: usize = 64;
/// After the rules are gone, packets that met the rules before may still arrive for this long.
const STRAGGLERS_NS: u64 = 5_000_000;

/// Receives a report about each packet that a fault delayed or lost, in batches. The releasing thread calls it, so it
/// must not block.
pub type Report = Arc<dyn Fn(FaultId, &[PacketReport]) + Send + Sync>;

/// Releases packets until the other end of `stop` is closed; then releases all remaining packets, and ends.
pub(super) struct Release {
    pub queue: Queue,
    pub delayed: DelayQueue,
    pub stop: UnixStream,
    pub fault: FaultId,
    pub report: Report,
    pub tally: PacketTally,
    /// Reported after the kernel has been told.
    pub reports: Vec<PacketReport>,
}

impl Release {
    pub fn run(mut self) -> io::Result<PacketTally> {
        // By default the kernel may fire a timer 50 µs late, to save wake-ups.
        nix::sys::prctl::set_timerslack(1)?;
        loop {
            let more = self.read()?;
            let now = monotonic_ns();
            while let Some(packet) = self.delayed.due(now) {
                self.release(packet, PacketFate::Due)?;
            }
            self.flush()?;
            if !more && self.wait()? {
                return self.end();
            }
        }
    }

    /// Reads the packets that are there. Returns whether there may be more.
    fn read(&mut self) -> io::Result<bool> {
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
        match self.delayed.arrived(id, headers, now) {
            Decision::Delay => Ok(()),
            Decision::Pass => {
                self.tally.passed += 1;
                self.queue.accept(id)
            }
            Decision::Drop => {
                self.tally.lost += 1;
                let packet = DelayedPacket { id, headers, queued_ns: now };
                self.reports.push(report(packet, now, PacketFate::Lost));
                self.queue.drop(id)
            }
        }
    }

    fn release(&mut self, packet: DelayedPacket, fate: PacketFate) -> io::Result<()> {
        self.tally.delayed += 1;
        self.reports.push(report(packet, monotonic_ns(), fate));
        self.queue.accept(packet.id)
    }

    /// Tells the kernel first and the listener second, so that reports delay no packet that is already due.
    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()?;
        if !self.reports.is_empty() {
            (self.report)(self.fault, &self.reports);
            self.reports.clear();
        }
        Ok(())
    }

    /// Waits until there is a packet to read, or a packet is due, or the fault is healed. Returns whether it is healed.
    fn wait(&self) -> io::Result<bool> {
        let left = self.delayed.next_due().map(|due| due.saturating_sub(monotonic_ns()));
        let [_, stopped] = wait([self.queue.as_fd().as_raw_fd(), self.stop.as_raw_fd()], left)?;
        Ok(stopped)
    }

    fn end(mut self) -> io::Result<PacketTally> {
        let until = monotonic_ns() + STRAGGLERS_NS;
        loop {
            for packet in self.delayed.drain() {
                self.release(packet, PacketFate::Healed)?;
            }
            self.flush()?;
            let left = until.saturating_sub(monotonic_ns());
            let [readable] = wait([self.queue.as_fd().as_raw_fd()], Some(left))?;
            if !readable {
                return Ok(self.tally);
            }
            // All packets in a row, since the first batch may not be the last.
            while self.read()? {}
        }
    }
}

fn report(packet: DelayedPacket, released_ns: u64, fate: PacketFate) -> PacketReport {
    let DelayedPacket { headers, queued_ns, .. } = packet;
    let (from, to, payload_bytes) = (headers.from, headers.to, headers.payload_bytes);
    PacketReport { queued_ns, released_ns, from, to, payload_bytes, fate }
}

/// Waits until a descriptor is readable or closed, or the time is over. Returns which descriptors are.
#[allow(unsafe_code)]
fn wait<const N: usize>(fds: [i32; N], at_most_ns: Option<u64>) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = at_most_ns
        .map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polled` is an array of N, and lives as long as the timeout until the call returns. No signal mask is
    // given.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), N as libc::nfds_t, timeout, std::ptr::null()) };
    match Errno::result(ready) {
        Ok(_) => Ok(polled.map(|polled| polled.revents != 0)),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(errno) => Err(errno.into()),
    }
}
