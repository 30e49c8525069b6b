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
//! Packets that a fault delays wait in the link, so that the heal of the fault delivers them at once.
//!
//! A link is one connection. Reordering between connections is therefore a delay that is drawn for each packet: packets
//! of different links overtake each other.

use std::{collections::VecDeque, time::Duration};

use history::{FaultId, LinkDelay, Stamp, fault::CutMode};
use rand::Rng;

/// The first retransmission of a packet: Linux's least retransmission timeout.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(200);
/// The longest time between two retransmissions: Linux's `TCP_RTO_MAX`.
const RETRANSMIT_MAX: Duration = Duration::from_secs(120);
/// The latencies that a link without faults draws, in microseconds: those between two containers of one machine.
pub const LATENCY_US: std::ops::RangeInclusive<u64> = 60..=250;

/// A packet that waits for a retransmission.
struct WaitingPacket<P> {
    sent: Stamp,
    packet: P,
}

/// Packets that faults delay.
struct LatePackets<P> {
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
    waiting: VecDeque<WaitingPacket<P>>,
    delayed_by: Option<FaultId>,
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
    /// The fault that delayed the packets, and the time at which the first one was sent.
    pub delayed: Option<(FaultId, Stamp)>,
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
        let (cuts, rejects, losses, delays, late, waiting, delayed_by, retransmit_after, due) = Default::default();
        LinkFaults { cuts, rejects, losses, delays, late, waiting, delayed_by, retransmit_after, due }
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
        self.delayed_by = None;
    }
}

fn sum(delays: &[(FaultId, Duration)]) -> Duration {
    delays.iter().map(|(_, by)| *by).sum()
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
            let mut last = now;
            for late in &mut faults.late {
                late.delays.retain(|(f, _)| *f != fault);
                last = last.max(late.undelayed.plus(sum(&late.delays)));
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

    /// Delays packets by the faults of the link, and returns the time of their arrival. `delayed` is the fault to
    /// record, and the time at which the first packet was sent.
    fn delay(&mut self, now: Stamp, delayed: Option<(FaultId, Stamp)>, packets: Vec<P>, rng: &mut impl Rng) -> Stamp {
        let undelayed = latency(now, rng);
        let delays = self.faults().draw_delays(rng);
        let at = self.in_order(undelayed.plus(sum(&delays)));
        let delivered = Delivered { at, delayed, packets };
        self.faults().late.push_back(LatePackets { undelayed, delays, delivered });
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
            faults.waiting.push_back(WaitingPacket { sent: now, packet });
            return Sent::Waits;
        }
        if let Some(fault) = faults.loser(rng) {
            faults.delayed_by = Some(fault);
            faults.waiting.push_back(WaitingPacket { sent: now, packet });
            faults.retransmit_after = RETRANSMIT_AFTER;
            faults.due = now.plus(faults.retransmit_after);
            return Sent::RetransmittedAt(faults.due);
        }
        match faults.delays.first().map(|(fault, _)| *fault) {
            Some(fault) => Sent::Late(self.delay(now, Some((fault, now)), vec![packet], rng)),
            None => Sent::Arrives(self.in_order(latency(now, rng)), packet),
        }
    }

    /// Retransmits the first lost packet, and with it all that wait.
    pub fn retransmit(&mut self, now: Stamp, rng: &mut impl Rng) -> Retransmitted<P> {
        let Some(faults) = &mut self.faults else { return Retransmitted::Nothing };
        let first = faults.waiting.front().filter(|_| now == faults.due).map(|waiting| waiting.sent);
        let Some(first) = first else { return Retransmitted::Nothing };
        if faults.is_rejecting() {
            faults.reset();
            return Retransmitted::Rejected;
        }
        if faults.loser(rng).is_some() {
            faults.retransmit_after = (faults.retransmit_after * 2).min(RETRANSMIT_MAX);
            faults.due = now.plus(faults.retransmit_after);
            return Retransmitted::Again(faults.due);
        }
        let packets = faults.waiting.drain(..).map(|waiting| waiting.packet).collect();
        let delayed = faults.delayed_by.take().map(|fault| (fault, first));
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
