//! Links: one TCP byte stream in each direction between two nodes.
//!
//! Packets arrive in the order in which they were sent. A lost packet is retransmitted after 200 ms, then after twice
//! as long each time. Later packets wait behind the lost one, so loss shows as delay. A retransmission also delivers
//! the packets that wait, lost or not, because a sender whose timer expires sends every unacknowledged packet again.
//! While a link is cut, every packet is lost. A partition that rejects ends the connection with the first packet, also
//! if that packet is retransmitted.
//!
//! The model leaves out windows, acknowledgements (a link that is cut in one direction delivers in the other), fast
//! retransmissions, and connections that are given up. The clients of independent nodes give up a connection whose
//! packets no kernel has acknowledged for 15 s (`locks/src/stream.rs`), other kernels after minutes. So after a longer
//! cut a request may arrive here that a real kernel has dropped.
//!
//! Packets that a fault delays wait in the link, so that the heal of the fault delivers them at once. If several faults
//! delay a packet, or lose it one after the other, each has its own part of the delay. A packet that is due before the
//! packet ahead waits for the faults that delay the packet ahead.
//!
//! A link is one connection. Reordering between connections is therefore a delay that is drawn for each packet: packets
//! of different links overtake each other.

use std::{collections::VecDeque, mem, time::Duration};

use history::{FaultId, LinkDelay, Stamp, fault::CutMode};
use rand::Rng;

/// The first retransmission of a packet: Linux's least retransmission timeout.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(200);
/// The longest time between two retransmissions: Linux's `TCP_RTO_MAX`.
const RETRANSMIT_MAX: Duration = Duration::from_secs(120);
/// The latencies that a link without faults draws, in microseconds: those between two containers of one machine.
pub const LATENCY_US: std::ops::RangeInclusive<u64> = 60..=250;

/// The parts of a delay, in order: a fault, and the time from which on it delayed the packets. A part ends when the
/// next one begins, and the last one with the arrival.
type DelayParts = Vec<(FaultId, Stamp)>;

/// Packets that faults delay.
struct LatePackets<P> {
    /// The time at which the packets were sent, for the last time if they had been lost.
    sent: Stamp,
    /// The arrival without any delay.
    undelayed: Stamp,
    /// The delay by each fault that is still on.
    delays: Vec<(FaultId, Duration)>,
    /// The arrival, unless a heal delivers the packets earlier.
    delivered: Delivered<P>,
}

/// One direction between two nodes, for packets `P`. A link without faults is small, because every packet reads one and
/// there are many.
pub(crate) struct Link<P> {
    last_arrival: Stamp,
    /// The faults of the link and the packets that wait; none most of the time.
    faults: Option<Box<LinkFaults<P>>>,
}

impl<P> Default for Link<P> {
    fn default() -> Link<P> {
        Link { last_arrival: Stamp::default(), faults: None }
    }
}

/// The faults of one link.
struct LinkFaults<P> {
    /// Partitions that drop the packets.
    cuts: Vec<FaultId>,
    /// Partitions that reject the packets, so that the sender notices.
    rejects: Vec<FaultId>,
    /// Faults that lose some packets, each with its percentage.
    losses: Vec<(FaultId, u8)>,
    /// Faults that delay packets, each with its delay.
    delays: Vec<(FaultId, LinkDelay)>,
    /// Packets that wait for the end of their delay, in the order of their arrivals.
    late: VecDeque<LatePackets<P>>,
    /// Packets that wait for a retransmission.
    waiting: VecDeque<P>,
    /// The faults that have lost the first of them.
    lost_by: DelayParts,
    retransmit_after: Duration,
    /// The time of the next retransmission. One that comes at another time is of a connection that was reset.
    due: Stamp,
}

/// The fate of a packet that was sent.
pub(crate) enum Sent<P> {
    /// The packet arrives at that time.
    Arrives(Stamp, P),
    /// The packet is delayed by a fault until that time. Then [`Link::arrived`] has the packet.
    Late(Stamp),
    /// The packet is lost, and is retransmitted at that time.
    RetransmittedAt(Stamp),
    /// The packet waits behind a lost one.
    Waits,
    /// The packet is rejected, which ends its connection for both sides.
    Rejected(P),
}

/// Packets that arrive together.
pub(crate) struct Delivered<P> {
    pub at: Stamp,
    /// The faults that delayed the packets, from the sending of the first packet on.
    pub delayed: DelayParts,
    pub packets: Vec<P>,
}

/// The result of a retransmission.
pub(crate) enum Retransmitted<P> {
    /// The packets arrive.
    Delivered(Delivered<P>),
    /// The packets are delayed by a fault until that time. Then [`Link::arrived`] has the packets.
    Late(Stamp),
    /// The packet is lost again, and is retransmitted at that time.
    Again(Stamp),
    /// The packet is rejected, which ends its connection for both sides. The packets that waited are dropped.
    Rejected,
    /// No packet waits.
    Nothing,
}

impl<P> Default for LinkFaults<P> {
    fn default() -> LinkFaults<P> {
        let (cuts, rejects, losses, delays, late, waiting, lost_by, retransmit_after, due) = Default::default();
        LinkFaults { cuts, rejects, losses, delays, late, waiting, lost_by, retransmit_after, due }
    }
}

impl<P> LinkFaults<P> {
    fn is_cut(&self) -> bool {
        !self.cuts.is_empty() || !self.rejects.is_empty()
    }

    /// Returns whether a packet that is sent now is rejected. A partition that drops packets as well tells nobody.
    fn is_rejecting(&self) -> bool {
        self.cuts.is_empty() && !self.rejects.is_empty()
    }

    /// Returns whether the link has no fault and no waiting packet.
    fn is_over(&self) -> bool {
        let has_packets = !self.late.is_empty() || !self.waiting.is_empty();
        !self.is_cut() && self.losses.is_empty() && self.delays.is_empty() && !has_packets
    }

    /// Draws the fault that loses the packet that is sent now; none, if the packet gets through.
    fn loser(&self, rng: &mut impl Rng) -> Option<FaultId> {
        let mut by_chance = self.losses.iter().filter(|(_, percent)| rng.random_ratio(u32::from(*percent), 100));
        self.cuts.first().or(self.rejects.first()).copied().or_else(|| by_chance.next().map(|(fault, _)| *fault))
    }

    /// Draws the delay of a packet by each fault. A fixed delay draws nothing, so it changes no other draw.
    fn draw_delays(&self, rng: &mut impl Rng) -> Vec<(FaultId, Duration)> {
        let draw = |(fault, late): &(FaultId, LinkDelay)| match late {
            LinkDelay::Fixed(by) => (*fault, *by),
            LinkDelay::Drawn(by) => (*fault, rng.random_range(by.from..=by.to)),
        };
        self.delays.iter().map(draw).collect()
    }

    /// Drops the packets that wait.
    fn reset(&mut self) {
        self.waiting.clear();
        self.lost_by.clear();
    }
}

fn sum(delays: &[(FaultId, Duration)]) -> Duration {
    delays.iter().map(|(_, by)| *by).sum()
}

/// The parts of the delays of a packet that was sent at `sent`, one after the other.
fn in_turn(sent: Stamp, delays: &[(FaultId, Duration)]) -> impl Iterator<Item = (FaultId, Stamp)> {
    delays.iter().scan(sent, |since, (fault, by)| {
        let part = (*fault, *since);
        *since = since.plus(*by);
        Some(part)
    })
}

/// Adds the wait for a packet that is ahead, from `since` on, to the parts of a delay. `ahead` has the parts of the
/// delay of the packet ahead.
fn wait_behind(parts: &mut DelayParts, since: Stamp, ahead: &[(FaultId, Stamp)]) {
    for (n, (fault, from)) in ahead.iter().enumerate() {
        let is_over = ahead.get(n + 1).is_some_and(|(_, next)| *next <= since);
        if !is_over && parts.last().is_some_and(|(last, _)| last != fault) {
            parts.push((*fault, since.max(*from)));
        }
    }
}

/// The arrival of a packet on a link without faults.
fn latency(now: Stamp, rng: &mut impl Rng) -> Stamp {
    Stamp(now.0.saturating_add(rng.random_range(LATENCY_US) * 1_000))
}

impl<P> Link<P> {
    /// Returns whether all packets are lost now.
    pub fn is_cut(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.is_cut())
    }

    fn faults(&mut self) -> &mut LinkFaults<P> {
        self.faults.get_or_insert_default()
    }

    pub fn cut(&mut self, fault: FaultId, cut: CutMode) {
        match cut {
            CutMode::Drop => self.faults().cuts.push(fault),
            CutMode::Reject => self.faults().rejects.push(fault),
        }
    }

    pub fn lose(&mut self, fault: FaultId, percent: u8) {
        self.faults().losses.push((fault, percent));
    }

    pub fn slow(&mut self, fault: FaultId, by: LinkDelay) {
        self.faults().delays.push((fault, by));
    }

    /// Heals a fault. Packets that only this fault delays arrive now, in order. Returns the new arrivals of all late
    /// packets; none, if they stay as they are.
    pub fn heal(&mut self, now: Stamp, fault: FaultId) -> Vec<Stamp> {
        let Some(faults) = &mut self.faults else { return Vec::new() };
        faults.cuts.retain(|f| *f != fault);
        faults.rejects.retain(|f| *f != fault);
        faults.losses.retain(|(f, _)| *f != fault);
        let mut arrivals = Vec::new();
        if faults.delays.iter().any(|(f, _)| *f == fault) {
            faults.delays.retain(|(f, _)| *f != fault);
            let (mut last, mut ahead) = (now, DelayParts::new());
            for late in &mut faults.late {
                late.delays.retain(|(f, _)| *f != fault);
                let due = late.undelayed.plus(sum(&late.delays));
                let parts = &mut late.delivered.delayed;
                if due > now {
                    // The other faults alone explain this arrival.
                    parts.retain(|(_, since)| *since < late.sent);
                    parts.extend(in_turn(late.sent, &late.delays));
                } else {
                    parts.retain(|(_, since)| *since < now);
                }
                let due = due.max(now);
                if last > due {
                    wait_behind(parts, due, &ahead);
                }
                last = last.max(due);
                ahead.clone_from(parts);
                late.delivered.at = last;
                arrivals.push(last);
            }
            // While a delay is on, every packet that gets through is late. So no other packet is ahead of the next one.
            if !arrivals.is_empty() {
                self.last_arrival = last;
            }
            arrivals.dedup();
        }
        self.forget();
        arrivals
    }

    /// Takes the late packets whose delay is over at `now`.
    pub fn arrived(&mut self, now: Stamp) -> Vec<Delivered<P>> {
        let Some(faults) = &mut self.faults else { return Vec::new() };
        let count = faults.late.partition_point(|late| late.delivered.at <= now);
        let arrived = faults.late.drain(..count).map(|late| late.delivered).collect();
        self.forget();
        arrived
    }

    /// Frees the memory of faults that are over.
    fn forget(&mut self) {
        self.faults.take_if(|faults| faults.is_over());
    }

    /// Draws the time that a packet of a new connection takes now; none, if the packet is lost.
    pub fn probe(&self, rng: &mut impl Rng) -> Option<Duration> {
        let base = Duration::from_micros(*LATENCY_US.start());
        let Some(faults) = &self.faults else { return Some(base) };
        faults.loser(rng).is_none().then(|| base + sum(&faults.draw_delays(rng)))
    }

    /// Delays packets by the faults of the link, and returns the time of their arrival. `delayed` has the faults that
    /// have delayed the packets before.
    fn delay(&mut self, now: Stamp, mut delayed: DelayParts, packets: Vec<P>, rng: &mut impl Rng) -> Stamp {
        let undelayed = latency(now, rng);
        let delays = self.faults().draw_delays(rng);
        delayed.extend(in_turn(now, &delays));
        let due = undelayed.plus(sum(&delays));
        let at = self.in_order(due);
        let late = &mut self.faults().late;
        if let Some(ahead) = late.back().filter(|_| at > due) {
            wait_behind(&mut delayed, due, &ahead.delivered.delayed);
        }
        let delivered = Delivered { at, delayed, packets };
        late.push_back(LatePackets { sent: now, undelayed, delays, delivered });
        at
    }

    /// The arrival of a packet that no other packet delays before `at`.
    fn in_order(&mut self, at: Stamp) -> Stamp {
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }

    /// Sends a packet. Inline, because a copy of a packet costs as much as the rest of this function.
    #[inline]
    pub fn send(&mut self, now: Stamp, packet: P, rng: &mut impl Rng) -> Sent<P> {
        match self.faults {
            None => Sent::Arrives(self.in_order(latency(now, rng)), packet),
            Some(_) => self.send_with_faults(now, packet, rng),
        }
    }

    #[inline(never)]
    fn send_with_faults(&mut self, now: Stamp, packet: P, rng: &mut impl Rng) -> Sent<P> {
        let Some(faults) = &mut self.faults else { return Sent::Arrives(self.in_order(latency(now, rng)), packet) };
        if faults.is_rejecting() {
            // The waiting packets belong to the connection that ends.
            faults.reset();
            return Sent::Rejected(packet);
        }
        if !faults.waiting.is_empty() {
            faults.waiting.push_back(packet);
            return Sent::Waits;
        }
        if let Some(fault) = faults.loser(rng) {
            faults.lost_by = vec![(fault, now)];
            faults.waiting.push_back(packet);
            faults.retransmit_after = RETRANSMIT_AFTER;
            faults.due = now.plus(faults.retransmit_after);
            return Sent::RetransmittedAt(faults.due);
        }
        if !faults.delays.is_empty() {
            return Sent::Late(self.delay(now, Vec::new(), vec![packet], rng));
        }
        Sent::Arrives(self.in_order(latency(now, rng)), packet)
    }

    /// Retransmits the first lost packet, and with it all that wait.
    pub fn retransmit(&mut self, now: Stamp, rng: &mut impl Rng) -> Retransmitted<P> {
        let Some(faults) = &mut self.faults else { return Retransmitted::Nothing };
        if faults.waiting.is_empty() || now != faults.due {
            return Retransmitted::Nothing;
        }
        if faults.is_rejecting() {
            faults.reset();
            return Retransmitted::Rejected;
        }
        if let Some(fault) = faults.loser(rng) {
            if faults.lost_by.last().is_none_or(|(last, _)| *last != fault) {
                faults.lost_by.push((fault, now));
            }
            faults.retransmit_after = (faults.retransmit_after * 2).min(RETRANSMIT_MAX);
            faults.due = now.plus(faults.retransmit_after);
            return Retransmitted::Again(faults.due);
        }
        let packets = faults.waiting.drain(..).collect();
        let delayed = mem::take(&mut faults.lost_by);
        if !faults.delays.is_empty() {
            return Retransmitted::Late(self.delay(now, delayed, packets, rng));
        }
        let at = self.in_order(latency(now, rng));
        self.forget();
        Retransmitted::Delivered(Delivered { at, delayed, packets })
    }

    /// Returns whether a packet waits that was retransmitted and lost again.
    pub fn is_stale(&self) -> bool {
        let is_stale =
            |faults: &LinkFaults<P>| !faults.waiting.is_empty() && faults.retransmit_after > RETRANSMIT_AFTER;
        self.faults.as_deref().is_some_and(is_stale)
    }

    /// Drops the packets that wait, because their connection was reset.
    pub fn reset(&mut self) {
        self.faults.iter_mut().for_each(|faults| faults.reset());
        self.forget();
    }
}

#[cfg(test)]
mod tests;
