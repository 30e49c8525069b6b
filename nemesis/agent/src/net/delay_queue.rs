//! Decides which packets are delayed, and until when. Pure: stamps in, decisions out.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::SocketAddrV4,
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::packet::Headers;
use crate::protocol::{DelayRange, DelayedPart};

/// The effect of a fault on each packet of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Treatment {
    pub by: DelayRange,
    pub loss: f64,
    pub order: Order,
    pub part: DelayedPart,
    pub seed: u64,
}

/// The packets that keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Packets from one address to another.
    Link,
    /// Packets of one connection in one direction.
    Connection,
    /// No packets: each may overtake any other.
    Free,
}

/// The decision about a packet on its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Pass,
    Drop,
    /// The packet was queued; [`DelayQueue::due`] returns it.
    Delay,
}

/// A delayed packet: the kernel's number for it, and the time at which it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DelayedPacket {
    pub id: u32,
    pub headers: Headers,
    pub queued_ns: u64,
}

/// The delayed packets of one kernel queue.
pub(super) struct DelayQueue {
    treatment: Treatment,
    rng: ChaCha8Rng,
    /// By (due, arrival).
    due: BinaryHeap<Reverse<(u64, u64)>>,
    packets: BTreeMap<u64, DelayedPacket>,
    arrivals: u64,
    /// When the last packet of each ordered flow is due. Idle flows are forgotten now and then.
    last_due: BTreeMap<Flow, u64>,
}

/// Sender and receiver; the ports are 0 where the order is that of a link.
type Flow = (SocketAddrV4, SocketAddrV4);

/// The number of flows from which on idle ones are forgotten.
const FLOWS_MAX: usize = 4096;

impl DelayQueue {
    pub fn new(treatment: Treatment) -> DelayQueue {
        DelayQueue {
            treatment,
            rng: ChaCha8Rng::seed_from_u64(treatment.seed),
            due: BinaryHeap::new(),
            packets: BTreeMap::new(),
            arrivals: 0,
            last_due: BTreeMap::new(),
        }
    }

    /// Decides about the packet that the kernel calls `id`, which was read at `now`.
    pub fn arrived(&mut self, id: u32, headers: Headers, now: u64) -> Decision {
        let flow = self.flow(&headers);
        let predecessor = self.last_due.get(&flow).copied().filter(|due| *due > now);
        if self.treatment.part == DelayedPart::Payload && headers.payload_bytes == 0 {
            // An acknowledgement that overtakes does no harm. The end of a connection would make the peer discard the
            // data that is still delayed.
            return match predecessor {
                Some(due) if headers.ends => self.delay(id, headers, now, due),
                _ => Decision::Pass,
            };
        }
        if self.treatment.loss > 0.0 && self.rng.random_bool(self.treatment.loss) {
            return Decision::Drop;
        }
        let by_us = self.rng.random_range(self.treatment.by.from_us..=self.treatment.by.to_us);
        if by_us == 0 && predecessor.is_none() {
            return Decision::Pass;
        }
        let due = (now + by_us * 1000).max(predecessor.unwrap_or_default());
        if self.treatment.order != Order::Free {
            self.last_due.insert(flow, due);
            self.forget_idle_flows(now);
        }
        self.delay(id, headers, now, due)
    }

    /// Removes the next packet that is due at `now`: by due time, then by arrival.
    pub fn due(&mut self, now: u64) -> Option<DelayedPacket> {
        let Reverse((due, arrival)) = *self.due.peek()?;
        (due <= now).then(|| self.due.pop())?;
        self.packets.remove(&arrival)
    }

    /// Returns when the next packet is due.
    pub fn next_due(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Removes all packets, in the order in which they are due.
    pub fn drain(&mut self) -> Vec<DelayedPacket> {
        std::iter::from_fn(|| self.due(u64::MAX)).collect()
    }

    fn delay(&mut self, id: u32, headers: Headers, now: u64, due: u64) -> Decision {
        self.arrivals += 1;
        self.due.push(Reverse((due, self.arrivals)));
        self.packets.insert(self.arrivals, DelayedPacket { id, headers, queued_ns: now });
        Decision::Delay
    }

    fn flow(&self, headers: &Headers) -> Flow {
        let host = |address: SocketAddrV4| SocketAddrV4::new(*address.ip(), 0);
        match self.treatment.order {
            Order::Link => (host(headers.from), host(headers.to)),
            Order::Connection | Order::Free => (headers.from, headers.to),
        }
    }

    fn forget_idle_flows(&mut self, now: u64) {
        if self.last_due.len() > FLOWS_MAX {
            self.last_due.retain(|_, due| *due > now);
        }
    }
}

#[cfg(test)]
mod tests;
