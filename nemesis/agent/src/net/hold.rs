//! Which packets are held, and until when. Pure: stamps come in, decisions go out.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::SocketAddrV4,
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::packet::Headers;
use crate::protocol::{DelayRange, HeldPart};

/// What is done to each packet of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Treatment {
    pub by: DelayRange,
    pub loss: f64,
    pub order: Order,
    pub held: HeldPart,
    pub seed: u64,
}

/// Which packets do not overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Those from one address to another.
    Link,
    /// Those of one connection, one way.
    Connection,
    /// All may.
    Free,
}

/// What becomes of a packet when it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Pass,
    Drop,
    /// It was kept; [`Hold::due`] gives it back.
    Keep,
}

/// A packet that is held: the kernel's number for it, and when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub id: u32,
    pub headers: Headers,
    pub held_ns: u64,
}

/// The packets of one queue that are held.
pub(super) struct Hold {
    treatment: Treatment,
    rng: ChaCha8Rng,
    /// By (due, arrival).
    due: BinaryHeap<Reverse<(u64, u64)>>,
    held: BTreeMap<u64, Held>,
    arrivals: u64,
    /// When the last packet of what keeps its order is due. Ways that have run empty are forgotten now and then.
    last_due: BTreeMap<(SocketAddrV4, SocketAddrV4), u64>,
}

/// So many ways may be remembered before those that have run empty are forgotten.
const WAYS_MAX: usize = 4096;

impl Hold {
    pub fn new(treatment: Treatment) -> Hold {
        let rng = ChaCha8Rng::seed_from_u64(treatment.seed);
        Hold { treatment, rng, due: BinaryHeap::new(), held: BTreeMap::new(), arrivals: 0, last_due: BTreeMap::new() }
    }

    /// Decides about the packet that the kernel calls `id`, which was read at `now`.
    pub fn arrived(&mut self, id: u32, headers: Headers, now: u64) -> Decision {
        let way = self.way(&headers);
        let behind = self.last_due.get(&way).copied().filter(|due| *due > now);
        if self.treatment.held == HeldPart::Payload && headers.payload_bytes == 0 {
            // An acknowledgement that overtakes does no harm. An end that does would make the peer throw away what is still held.
            return match behind {
                Some(due) if headers.ends => self.keep(id, headers, now, due),
                _ => Decision::Pass,
            };
        }
        if self.treatment.loss > 0.0 && self.rng.random_bool(self.treatment.loss) {
            return Decision::Drop;
        }
        let by_us = self.rng.random_range(self.treatment.by.from_us..=self.treatment.by.to_us);
        if by_us == 0 && behind.is_none() {
            return Decision::Pass;
        }
        let due = (now + by_us * 1000).max(behind.unwrap_or_default());
        if self.treatment.order != Order::Free {
            self.last_due.insert(way, due);
            self.forget_ways(now);
        }
        self.keep(id, headers, now, due)
    }

    /// The next packet that is due at `now`, in the order of due times, equal ones as they arrived.
    pub fn due(&mut self, now: u64) -> Option<Held> {
        let Reverse((due, arrival)) = *self.due.peek()?;
        (due <= now).then(|| self.due.pop())?;
        self.held.remove(&arrival)
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Gives back everything that is held: packets that keep their order in that order, the rest as they are due.
    pub fn let_go(&mut self) -> Vec<Held> {
        std::iter::from_fn(|| self.due(u64::MAX)).collect()
    }

    fn keep(&mut self, id: u32, headers: Headers, now: u64, due: u64) -> Decision {
        self.arrivals += 1;
        self.due.push(Reverse((due, self.arrivals)));
        self.held.insert(self.arrivals, Held { id, headers, held_ns: now });
        Decision::Keep
    }

    fn way(&self, headers: &Headers) -> (SocketAddrV4, SocketAddrV4) {
        let host = |address: SocketAddrV4| SocketAddrV4::new(*address.ip(), 0);
        match self.treatment.order {
            Order::Link => (host(headers.from), host(headers.to)),
            Order::Connection | Order::Free => (headers.from, headers.to),
        }
    }

    fn forget_ways(&mut self, now: u64) {
        if self.last_due.len() > WAYS_MAX {
            self.last_due.retain(|_, due| *due > now);
        }
    }
}

#[cfg(test)]
mod tests;
