//! Which faults of packets are on, where; putting them on and taking them off.

use std::{
    collections::BTreeMap,
    io,
    os::unix::net::UnixStream,
    sync::Arc,
    thread::{self, JoinHandle},
};

use super::{
    Namespace, NetError,
    hold::{Hold, Order, Treatment},
    programs,
    queue::{self, Queue},
    release::Release,
    rules,
};
use crate::protocol::{
    DelayRange, FaultNumber, HeldPacket, HeldPart, Links, PacketFault, PacketRequest, PacketTally, Way,
};

/// Told of each packet that a fault held or lost, some at a time, by the thread that releases them: it must not wait.
pub type Report = Arc<dyn Fn(FaultNumber, &[HeldPacket]) + Send + Sync>;

/// A network namespace, by device and inode.
type Place = (u64, u64);

/// The first number given to a queue; small ones are what other programs use.
const FIRST_QUEUE: u16 = 20_000;

/// All faults of packets that are on. Dropping it undoes nothing but the queues; heal them.
pub struct PacketFaults {
    report: Report,
    on: BTreeMap<(FaultNumber, Place), On>,
    queues: u16,
}

/// A fault that is on at one target.
struct On {
    namespace: Namespace,
    effect: Effect,
}

enum Effect {
    Partition,
    Queue { way: Way, number: u16, stop: UnixStream, releasing: JoinHandle<io::Result<PacketTally>> },
}

impl PacketFaults {
    /// None is on.
    pub fn new(report: Report) -> PacketFaults {
        PacketFaults { report, on: BTreeMap::new(), queues: 0 }
    }

    /// Does what is asked. An injection counts nothing yet.
    pub fn obey(&mut self, request: &PacketRequest) -> Result<PacketTally, NetError> {
        match request {
            PacketRequest::Inject { fault, pid, what } => {
                self.inject(*fault, *pid, what).map(|()| PacketTally::default())
            }
            PacketRequest::Heal { fault } => self.heal(*fault),
            PacketRequest::HealAll => self.heal_all().map(|()| PacketTally::default()),
        }
    }

    /// Puts `fault` on in the network namespace of process `pid`, which is any process of the target. When this returns, each packet from
    /// now on meets it. A fault may be put on at several targets, and again at one that was restarted; at one where it is on it is
    /// refused. Where two faults hold the same packet, only the newer one does.
    pub fn inject(&mut self, number: FaultNumber, pid: i32, fault: &PacketFault) -> Result<(), NetError> {
        let namespace = Namespace::of(pid)?;
        let senseless = |why| NetError::Senseless { fault: number, pid, why };
        sensible(fault).map_err(senseless)?;
        let place = namespace.id();
        if self.on.contains_key(&(number, place)) {
            return Err(senseless("it is on there already; heal it first"));
        }
        let effect = match fault {
            PacketFault::Partition { links, cut } => {
                programs::nft(&namespace, &rules::partition(number, links, *cut))?;
                Effect::Partition
            }
            PacketFault::Delay { links, by, held, seed } => {
                let treatment = Treatment { by: *by, loss: 0.0, order: Order::Link, held: *held, seed: *seed };
                self.queue(&namespace, number, links, treatment)?
            }
            PacketFault::Loss { links, probability, seed } => {
                let by = DelayRange { from_us: 0, to_us: 0 };
                let (order, held) = (Order::Link, HeldPart::All);
                let treatment = Treatment { by, loss: *probability, order, held, seed: *seed };
                self.queue(&namespace, number, links, treatment)?
            }
            PacketFault::Reorder { links, by, within_connections, seed } => {
                let order = if *within_connections { Order::Free } else { Order::Connection };
                let treatment = Treatment { by: *by, loss: 0.0, order, held: HeldPart::All, seed: *seed };
                self.queue(&namespace, number, links, treatment)?
            }
        };
        self.on.insert((number, place), On { namespace, effect });
        Ok(())
    }

    /// The queue first, then the rules that lead to it.
    fn queue(
        &mut self,
        namespace: &Namespace,
        fault: FaultNumber,
        links: &Links,
        treatment: Treatment,
    ) -> Result<Effect, NetError> {
        let number = FIRST_QUEUE + self.queues;
        self.queues = (self.queues + 1) % (u16::MAX - FIRST_QUEUE);
        let pid = namespace.pid();
        let netlink = |source| NetError::Netlink { doing: "binding a queue of packets", pid, source, needs: "NFQUEUE" };
        let queue = namespace.enter(|| Queue::open(number))?.map_err(netlink)?;
        let (stop, stopped) = UnixStream::pair().map_err(netlink)?;
        let release = Release {
            queue,
            hold: Hold::new(treatment),
            stop: stopped,
            fault,
            report: self.report.clone(),
            tally: PacketTally::default(),
            ended: Vec::new(),
        };
        let named = thread::Builder::new().name(format!("queue-{fault}"));
        let releasing = named.spawn(move || release.run()).map_err(netlink)?;
        programs::iptables(namespace, &rules::queue(fault, links, treatment.held, number))?;
        Ok(Effect::Queue { way: links.way, number, stop, releasing })
    }

    /// Takes a fault off wherever it is on, with exactly its rules; what it holds is released at once. One that is not on is healed.
    /// So is one at a target that is gone.
    ///
    /// Everything is tried; the first error is given. What could not be taken off is still on, and may be healed again.
    pub fn heal(&mut self, fault: FaultNumber) -> Result<PacketTally, NetError> {
        let places: Vec<Place> =
            self.on.keys().filter(|(number, _)| *number == fault).map(|(_, place)| *place).collect();
        let (mut tally, mut failed) = (PacketTally::default(), None);
        for place in places {
            let Some(on) = self.on.remove(&(fault, place)) else { continue };
            let (healed, left) = on.heal(fault);
            left.map(|on| self.on.insert((fault, place), on));
            match healed {
                Ok(more) => add(&mut tally, more),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(tally), Err)
    }

    /// Takes all faults off. Everything is tried; the first error is given.
    pub fn heal_all(&mut self) -> Result<(), NetError> {
        let faults: Vec<FaultNumber> = self.on().collect();
        let healed: Vec<_> = faults.into_iter().map(|fault| self.heal(fault)).collect();
        healed.into_iter().try_for_each(|healed| healed.map(drop))
    }

    /// The faults that are on, each once.
    pub fn on(&self) -> impl Iterator<Item = FaultNumber> {
        let mut last = None;
        self.on.keys().map(|(fault, _)| *fault).filter(move |fault| last.replace(*fault) != Some(*fault))
    }
}

impl On {
    /// What the fault did, or why it could not be taken off; and what is still on.
    fn heal(self, fault: FaultNumber) -> (Result<PacketTally, NetError>, Option<On>) {
        let removed = match &self.effect {
            Effect::Partition => programs::nft(&self.namespace, &rules::no_partition(fault)),
            Effect::Queue { way, .. } => programs::iptables(&self.namespace, &rules::no_queue(fault, *way)),
        };
        match (removed, self.effect) {
            (Err(error), effect) => (Err(error), Some(On { effect, ..self })),
            (Ok(()), Effect::Partition) => (Ok(PacketTally::default()), None),
            (Ok(()), Effect::Queue { number, stop, releasing, .. }) => {
                (finish(&self.namespace, fault, number, stop, releasing), None)
            }
        }
    }
}

/// Ends a queue to which no rule leads any more.
fn finish(
    namespace: &Namespace,
    fault: FaultNumber,
    number: u16,
    stop: UnixStream,
    releasing: JoinHandle<io::Result<PacketTally>>,
) -> Result<PacketTally, NetError> {
    let broke = |source| NetError::QueueBroke { fault, pid: namespace.pid(), source };
    // The kernel forgets the count with the queue.
    let overrun = namespace.enter(|| queue::overrun(number));
    drop(stop);
    let tally = releasing.join().map_err(|_| broke(io::Error::other("its thread panicked")))?;
    Ok(PacketTally { overrun: overrun?.map_err(broke)?, ..tally.map_err(broke)? })
}

fn sensible(fault: &PacketFault) -> Result<(), &'static str> {
    match fault {
        PacketFault::Delay { by, .. } | PacketFault::Reorder { by, .. } if by.from_us > by.to_us => {
            Err("its shortest delay is longer than its longest")
        }
        PacketFault::Delay { by, .. } | PacketFault::Reorder { by, .. } if by.to_us > LONGEST_US => {
            Err("its longest delay is more than an hour")
        }
        PacketFault::Loss { probability, .. } if !(0.0..=1.0).contains(probability) => {
            Err("its probability is not between 0 and 1")
        }
        _ => Ok(()),
    }
}

/// An hour. Nothing here waits longer, and no stamp overflows.
const LONGEST_US: u64 = 3_600_000_000;

fn add(sum: &mut PacketTally, more: PacketTally) {
    sum.held += more.held;
    sum.passed += more.passed;
    sum.lost += more.lost;
    sum.overrun += more.overrun;
}
