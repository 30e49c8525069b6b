//! Links: byte streams between two nodes, one in each direction, as TCP makes them.
//!
//! What is sent arrives in the order in which it was sent. A packet that is lost (all are, while the link is cut) is sent again after 200 ms,
//! then after twice as long each time, and what was sent after it waits for it: loss is delay. It brings along what waits, lost or not: a sender that
//! has to wait for its timer sends all again that was not acknowledged. Left out: windows, acknowledgements on the way back (a link that is cut in
//! one direction delivers in the other), retransmissions before their time because of what came after the lost packet, and connections that are
//! given up after minutes.
//!
//! A link is one connection. So a fault that lets packets of different connections overtake each other is, here, a delay that is drawn packet by
//! packet: disorder shows between links.

use std::{collections::VecDeque, time::Duration};

use history::{Cut, FaultId, Late, Stamp};
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

/// One direction between two nodes. Small where nothing is wrong with it: every packet looks at one, and there are many.
#[derive(Default)]
pub(crate) struct Link {
    last_arrival: Stamp,
    /// Faults, and what they hold up; none most of the time.
    trouble: Option<Box<Trouble>>,
}

/// What is wrong with a link.
#[derive(Default)]
struct Trouble {
    /// Partitions that cut it.
    cuts: Vec<FaultId>,
    /// Partitions that cut it and tell the sender.
    rejects: Vec<FaultId>,
    /// Faults that lose some of its packets, and how many of a hundred.
    losses: Vec<(FaultId, u8)>,
    /// Faults that make its packets late, and by how much.
    delays: Vec<(FaultId, Late)>,
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
    /// It is rejected: its connection is over, for both sides.
    Rejected(Packet<World>),
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

impl Trouble {
    fn is_cut(&self) -> bool {
        !self.cuts.is_empty() || !self.rejects.is_empty()
    }

    /// Nothing is wrong, and nothing waits.
    fn is_over(&self) -> bool {
        !self.is_cut() && self.losses.is_empty() && self.delays.is_empty() && self.held.is_empty()
    }

    /// The fault that loses the packet that is sent now, if one does.
    fn loser(&self, rng: &mut impl Rng) -> Option<FaultId> {
        let mut by_chance = self.losses.iter().filter(|(_, percent)| rng.random_ratio(u32::from(*percent), 100));
        self.cuts.first().or(self.rejects.first()).copied().or_else(|| by_chance.next().map(|(fault, _)| *fault))
    }

    /// Nothing is drawn for delays that are fixed: plans without others have the runs that they always had.
    fn late_by(&self, rng: &mut impl Rng) -> Duration {
        let draw = |late: &Late| match late {
            Late::Fixed(by) => *by,
            Late::Drawn(by) => rng.random_range(by.from..=by.to),
        };
        self.delays.iter().map(|(_, late)| late).map(draw).sum()
    }

    /// Drops what was not delivered.
    fn reset(&mut self) {
        self.held.clear();
        self.held_by = None;
    }
}

impl Link {
    /// Whether all packets are lost now.
    pub fn is_cut(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_cut())
    }

    fn trouble(&mut self) -> &mut Trouble {
        self.trouble.get_or_insert_default()
    }

    pub fn cut(&mut self, fault: FaultId, cut: Cut) {
        match cut {
            Cut::Drop => self.trouble().cuts.push(fault),
            Cut::Reject => self.trouble().rejects.push(fault),
        }
    }

    pub fn lose(&mut self, fault: FaultId, percent: u8) {
        self.trouble().losses.push((fault, percent));
    }

    pub fn slow(&mut self, fault: FaultId, by: Late) {
        self.trouble().delays.push((fault, by));
    }

    pub fn mend(&mut self, fault: FaultId) {
        self.trouble.iter_mut().for_each(|trouble| {
            trouble.cuts.retain(|f| *f != fault);
            trouble.rejects.retain(|f| *f != fault);
            trouble.losses.retain(|(f, _)| *f != fault);
            trouble.delays.retain(|(f, _)| *f != fault);
        });
        self.forget();
    }

    /// What is over is forgotten.
    fn forget(&mut self) {
        self.trouble.take_if(|trouble| trouble.is_over());
    }

    /// How long a packet of a connection of its own takes now; none, if it is lost.
    pub fn probe(&self, rng: &mut impl Rng) -> Option<Duration> {
        let base = Duration::from_micros(*LATENCY_US.start());
        let Some(trouble) = &self.trouble else { return Some(base) };
        trouble.loser(rng).is_none().then(|| base + trouble.late_by(rng))
    }

    fn arrival(&mut self, now: Stamp, rng: &mut impl Rng) -> Stamp {
        let mut at = Stamp(now.0.saturating_add(rng.random_range(LATENCY_US) * 1_000));
        if let Some(trouble) = &self.trouble {
            at = at.plus(trouble.late_by(rng));
        }
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }

    /// A packet is sent.
    pub fn send(&mut self, now: Stamp, packet: Packet<World>, rng: &mut impl Rng) -> Sent {
        let Some(trouble) = &mut self.trouble else { return Sent::Arrives(self.arrival(now, rng), packet) };
        if trouble.cuts.is_empty() && !trouble.rejects.is_empty() {
            // What waited to be sent again belongs to the connection that ends.
            trouble.reset();
            return Sent::Rejected(packet);
        }
        if !trouble.held.is_empty() {
            trouble.held.push_back(HeldPacket { sent: now, packet });
            return Sent::Waits;
        }
        if let Some(fault) = trouble.loser(rng) {
            trouble.held_by = Some(fault);
            trouble.held.push_back(HeldPacket { sent: now, packet });
            trouble.retransmit_after = RETRANSMIT_AFTER;
            return Sent::RetransmittedAt(now.plus(trouble.retransmit_after));
        }
        let late = trouble.delays.first().map(|(fault, _)| *fault);
        let at = self.arrival(now, rng);
        match late {
            Some(fault) => Sent::ArrivesLate(at, fault, packet),
            None => Sent::Arrives(at, packet),
        }
    }

    /// The first packet that was lost is sent again.
    pub fn retransmit(&mut self, now: Stamp, rng: &mut impl Rng) -> Retransmitted {
        let Some(trouble) = &mut self.trouble else { return Retransmitted::Nothing };
        let Some(first) = trouble.held.front().map(|held| held.sent) else { return Retransmitted::Nothing };
        if trouble.loser(rng).is_some() {
            trouble.retransmit_after *= 2;
            return Retransmitted::Again(now.plus(trouble.retransmit_after));
        }
        let packets = trouble.held.drain(..).map(|held| held.packet).collect();
        let held = trouble.held_by.take().map(|fault| (fault, first));
        let at = self.arrival(now, rng);
        self.forget();
        Retransmitted::Delivered(Delivered { at, held, packets })
    }

    /// Drops what was not delivered: the process that sent it is gone, and its kernel with it.
    pub fn reset(&mut self) {
        self.trouble.iter_mut().for_each(|trouble| trouble.reset());
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::executor::Load;

    fn packet() -> Packet<World> {
        Packet { from: 0, to: 1, incarnation: 1, load: Load::Call(Box::new(|_| {})) }
    }

    #[test]
    fn packets_arrive_in_the_order_in_which_they_were_sent() {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
        link.slow(FaultId(1), Duration::from_millis(5).into());
        let Sent::ArrivesLate(late, ..) = link.send(Stamp(0), packet(), &mut rng) else { panic!("late") };
        link.mend(FaultId(1));
        for n in 1..100 {
            let Sent::Arrives(at, _) = link.send(Stamp(n), packet(), &mut rng) else { panic!("in time") };
            assert!(at >= late, "it cannot overtake the one before it");
        }
    }

    /// Sends a packet and has it sent again until it arrives: when it does, and how often it was sent again.
    fn delivered(link: &mut Link, now: Stamp, rng: &mut ChaCha8Rng) -> (Stamp, u32) {
        let mut due = match link.send(now, packet(), rng) {
            Sent::Arrives(at, _) | Sent::ArrivesLate(at, ..) => return (at, 0),
            Sent::RetransmittedAt(due) => due,
            Sent::Waits => panic!("nothing was sent before it that has not arrived"),
            Sent::Rejected(_) => panic!("nothing rejects it"),
        };
        for times in 1.. {
            match link.retransmit(due, rng) {
                Retransmitted::Again(next) => due = next,
                Retransmitted::Delivered(delivered) => return (delivered.at, times),
                Retransmitted::Nothing => panic!("it was lost"),
            }
        }
        unreachable!("it is sent again for ever")
    }

    #[test]
    fn of_a_link_with_loss_the_share_is_lost_again_and_again_with_back_off() {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
        link.lose(FaultId(1), 30);
        let mut sent_again = [0_u32; 12];
        let mut now = Stamp(0);
        for _ in 0..10_000 {
            let (at, times) = delivered(&mut link, now, &mut rng);
            let waited = RETRANSMIT_AFTER * (2_u32.pow(times) - 1);
            assert!((waited..waited + Duration::from_millis(1)).contains(&at.since(now)), "{times} times");
            sent_again[times as usize] += 1;
            now = at;
        }
        let [none, once, twice, ..] = sent_again;
        assert!((6_800..7_200).contains(&none), "{sent_again:?}");
        assert!((1_950..2_250).contains(&once) && (550..710).contains(&twice), "{sent_again:?}");
        let lost = (0..10_000).filter(|_| link.probe(&mut rng).is_none()).count();
        assert!((2_800..3_200).contains(&lost), "of probes as many: {lost}");
        link.mend(FaultId(1));
        assert!((0..1_000).all(|_| link.probe(&mut rng).is_some() && delivered(&mut link, now, &mut rng).1 == 0));
    }

    #[test]
    fn what_is_sent_after_a_packet_that_was_lost_by_chance_waits_for_it_and_is_told_as_held() {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
        link.lose(FaultId(7), 100);
        let Sent::RetransmittedAt(due) = link.send(Stamp(5), packet(), &mut rng) else { panic!("lost") };
        link.mend(FaultId(7));
        assert!(matches!(link.send(Stamp(6), packet(), &mut rng), Sent::Waits));
        let Retransmitted::Delivered(delivered) = link.retransmit(due, &mut rng) else { panic!("open") };
        assert_eq!((delivered.packets.len(), delivered.held), (2, Some((FaultId(7), Stamp(5)))));
    }

    #[test]
    fn delays_that_are_drawn_differ_and_let_nothing_overtake_inside_a_connection() {
        let (mut links, mut rng) = ([Link::default(), Link::default()], ChaCha8Rng::seed_from_u64(1));
        let (from, to) = (Duration::from_millis(10), Duration::from_millis(80));
        let (mut last, mut overtaken, mut late) = ([Stamp(0); 2], 0, Vec::new());
        links.iter_mut().for_each(|link| link.slow(FaultId(1), Late::Drawn(history::Range { from, to })));
        for n in 0..1_000 {
            let now = Stamp(n * 1_000_000);
            let arrivals = links.each_mut().map(|link| match link.send(now, packet(), &mut rng) {
                Sent::ArrivesLate(at, FaultId(1), _) => at,
                _ => panic!("late"),
            });
            assert!(arrivals.iter().zip(last).all(|(at, last)| *at >= last), "in order inside each");
            // The one of the first connection was sent before that of the second, and after the last one of it.
            overtaken += u32::from(arrivals[1] < arrivals[0]);
            late.extend(links[0].probe(&mut rng));
            last = arrivals;
        }
        assert!((300..700).contains(&overtaken), "{overtaken} times");
        let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
        assert!(*least >= from && *least < from + Duration::from_millis(1), "{least:?}");
        assert!(*most <= to + Duration::from_millis(1) && *most > to - Duration::from_millis(1), "{most:?}");
    }

    #[test]
    fn a_lost_packet_comes_with_a_retransmission_and_holds_up_those_behind_it() {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
        let ms = |n: u64| Stamp(n * 1_000_000);
        link.cut(FaultId(7), Cut::Drop);
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

    #[test]
    fn a_packet_that_is_rejected_ends_its_connection_and_a_cable_that_is_broken_as_well_tells_nobody() {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
        link.cut(FaultId(7), Cut::Reject);
        assert!(matches!(link.send(Stamp(0), packet(), &mut rng), Sent::Rejected(_)));
        assert!(link.is_cut() && link.probe(&mut rng).is_none());
        link.cut(FaultId(8), Cut::Drop);
        let Sent::RetransmittedAt(due) = link.send(Stamp(1), packet(), &mut rng) else { panic!("lost") };
        assert!(matches!(link.retransmit(due, &mut rng), Retransmitted::Again(_)));
        link.mend(FaultId(7));
        link.mend(FaultId(8));
        assert!(!link.is_cut());
    }
}
