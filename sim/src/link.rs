//! Links: byte streams between two nodes, one in each direction, as TCP makes them.
//!
//! What is sent arrives in the order in which it was sent. A packet that is lost (all are, while the link is cut) is sent again after 200 ms,
//! then after twice as long each time, and what was sent after it waits for it: loss is delay. Left out: windows, acknowledgements on the way back
//! (a link that is cut in one direction delivers in the other), and connections that are given up after minutes.

use std::{collections::VecDeque, time::Duration};

use history::{FaultId, Stamp};
use rand::Rng;

use crate::{executor::Packet, world::World};

/// The first retransmission of a packet: Linux's least retransmission timeout.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(200);
/// How long a packet takes between two containers of one machine. Microseconds.
const LATENCY_US: std::ops::RangeInclusive<u64> = 60..=250;

/// A packet that has not been delivered for want of a link.
struct HeldPacket {
    sent: Stamp,
    packet: Packet<World>,
}

/// One direction between two nodes.
#[derive(Default)]
pub(crate) struct Link {
    /// Partitions that cut it.
    cuts: Vec<FaultId>,
    /// Faults that make its packets late, and by how much.
    delays: Vec<(FaultId, Duration)>,
    last_arrival: Stamp,
    held: VecDeque<HeldPacket>,
    held_by: Option<FaultId>,
    retransmit_after: Duration,
}

/// What becomes of a packet.
pub(crate) enum Sent {
    /// It arrives then.
    Arrives(Stamp, Packet<World>),
    /// The same, and that late because of a fault.
    ArrivesLate(Stamp, FaultId, Packet<World>),
    /// It is lost, and will be sent again by itself then.
    RetransmittedAt(Stamp),
    /// It waits behind one that was lost.
    Waits,
}

/// Packets that arrive together when a lost one is sent again at last.
pub(crate) struct Delivered {
    pub at: Stamp,
    /// What had held them, and since when.
    pub held: Option<(FaultId, Stamp)>,
    pub packets: Vec<Packet<World>>,
}

/// What a retransmission comes to.
pub(crate) enum Retransmitted {
    /// The link is open.
    Delivered(Delivered),
    /// Still lost: again then.
    Again(Stamp),
    /// There is nothing left to send.
    Nothing,
}

impl Link {
    /// Whether packets are lost now.
    pub fn is_cut(&self) -> bool {
        !self.cuts.is_empty()
    }

    pub fn cut(&mut self, fault: FaultId) {
        self.cuts.push(fault);
    }

    pub fn slow(&mut self, fault: FaultId, by: Duration) {
        self.delays.push((fault, by));
    }

    pub fn mend(&mut self, fault: FaultId) {
        self.cuts.retain(|f| *f != fault);
        self.delays.retain(|(f, _)| *f != fault);
    }

    /// How long a packet takes now; none, if it would be lost.
    pub fn latency(&self) -> Option<Duration> {
        let base = Duration::from_micros(*LATENCY_US.start());
        (!self.is_cut()).then(|| base + self.late_by())
    }

    fn late_by(&self) -> Duration {
        self.delays.iter().map(|(_, by)| *by).sum()
    }

    fn arrival(&mut self, now: Stamp, rng: &mut impl Rng) -> Stamp {
        let latency = Duration::from_micros(rng.random_range(LATENCY_US)) + self.late_by();
        self.last_arrival = self.last_arrival.max(now.plus(latency));
        self.last_arrival
    }

    /// A packet is sent.
    pub fn send(&mut self, now: Stamp, packet: Packet<World>, rng: &mut impl Rng) -> Sent {
        if !self.held.is_empty() {
            self.held.push_back(HeldPacket { sent: now, packet });
            return Sent::Waits;
        }
        if let Some(fault) = self.cuts.first() {
            self.held_by = Some(*fault);
            self.held.push_back(HeldPacket { sent: now, packet });
            self.retransmit_after = RETRANSMIT_AFTER;
            return Sent::RetransmittedAt(now.plus(self.retransmit_after));
        }
        let at = self.arrival(now, rng);
        match self.delays.first() {
            Some((fault, _)) => Sent::ArrivesLate(at, *fault, packet),
            None => Sent::Arrives(at, packet),
        }
    }

    /// The first packet that was lost is sent again.
    pub fn retransmit(&mut self, now: Stamp, rng: &mut impl Rng) -> Retransmitted {
        let Some(first) = self.held.front().map(|held| held.sent) else { return Retransmitted::Nothing };
        if self.is_cut() {
            self.retransmit_after *= 2;
            return Retransmitted::Again(now.plus(self.retransmit_after));
        }
        let at = self.arrival(now, rng);
        let packets = self.held.drain(..).map(|held| held.packet).collect();
        Retransmitted::Delivered(Delivered { at, held: self.held_by.take().map(|fault| (fault, first)), packets })
    }

    /// Drops what was not delivered: the process that sent it is gone, and its kernel with it.
    pub fn reset(&mut self) {
        self.held.clear();
        self.held_by = None;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn packet() -> Packet<World> {
        Packet { from: 0, to: 1, incarnation: 1, call: Box::new(|_| {}) }
    }

    #[test]
    fn packets_arrive_in_the_order_in_which_they_were_sent() {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
        link.slow(FaultId(1), Duration::from_millis(5));
        let Sent::ArrivesLate(late, ..) = link.send(Stamp(0), packet(), &mut rng) else { panic!("late") };
        link.mend(FaultId(1));
        for n in 1..100 {
            let Sent::Arrives(at, _) = link.send(Stamp(n), packet(), &mut rng) else { panic!("in time") };
            assert!(at >= late, "it cannot overtake the one before it");
        }
    }

    #[test]
    fn a_lost_packet_comes_with_a_retransmission_and_holds_up_those_behind_it() {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
        let ms = |n: u64| Stamp(n * 1_000_000);
        link.cut(FaultId(7));
        let Sent::RetransmittedAt(first) = link.send(ms(0), packet(), &mut rng) else { panic!("lost") };
        assert_eq!(first, ms(200));
        let Retransmitted::Again(second) = link.retransmit(first, &mut rng) else { panic!("still cut") };
        assert_eq!(second, ms(600));
        link.mend(FaultId(7));
        assert!(matches!(link.send(ms(500), packet(), &mut rng), Sent::Waits), "open, but one is missing");
        let Retransmitted::Delivered(delivered) = link.retransmit(second, &mut rng) else { panic!("open") };
        assert_eq!((delivered.packets.len(), delivered.held), (2, Some((FaultId(7), ms(0)))));
        assert!(delivered.at > second && matches!(link.retransmit(delivered.at, &mut rng), Retransmitted::Nothing));
    }
}
