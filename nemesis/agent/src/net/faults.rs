//! Injects and heals faults of packets, and knows which faults are on at which target.

use std::{
    collections::BTreeMap,
    io,
    os::unix::net::UnixStream,
    thread::{self, JoinHandle},
};

use super::{
    delay_queue::{DelayQueue, Order, Treatment},
    error::NetError,
    namespace::Namespace,
    programs,
    queue::{self, Queue},
    release::{Release, Report},
    rules,
};
use history::{Direction, FaultId};

use crate::protocol::{DelayRange, DelayedPart, Links, PacketFault, PacketRequest, PacketTally};

/// A network namespace, by device and inode.
type Place = (u64, u64);

/// The first number given to a queue; small ones are what other programs use.
const FIRST_QUEUE: u16 = 20_000;

/// All faults of packets that are on. A drop closes only the queues and leaves the rules: heal the faults first.
pub struct PacketFaults {
    report: Report,
    on: BTreeMap<(FaultId, Place), On>,
    queues: u16,
}

/// A fault that is on at one target.
struct On {
    namespace: Namespace,
    effect: Effect,
}

enum Effect {
    Partition,
    Queue { direction: Direction, number: u16, stop: UnixStream, releasing: JoinHandle<io::Result<PacketTally>> },
}

impl PacketFaults {
    /// Starts without faults.
    pub fn new(report: Report) -> PacketFaults {
        PacketFaults { report, on: BTreeMap::new(), queues: 0 }
    }

    /// Carries out an order. The tally of an injection is zero.
    pub fn obey(&mut self, request: &PacketRequest) -> Result<PacketTally, NetError> {
        match request {
            PacketRequest::Inject { fault, pid, what } => {
                self.inject(*fault, *pid, what).map(|()| PacketTally::default())
            }
            PacketRequest::Heal { fault } => self.heal(*fault),
            PacketRequest::HealAll => self.heal_all().map(|()| PacketTally::default()),
        }
    }

    /// Injects `fault` in the network namespace of process `pid`, which is any process of the target. Affects every
    /// packet after the return. A fault may be on at several targets, and may be injected again at a restarted target.
    /// Fails if the fault is already on there, or if the process is in the host's network. If two faults could delay
    /// the same packet, only the newer fault does.
    pub fn inject(&mut self, number: FaultId, pid: i32, fault: &PacketFault) -> Result<(), NetError> {
        let namespace = Namespace::of(pid)?;
        let senseless = |why| NetError::Senseless { fault: number, pid, why };
        sensible(fault).map_err(senseless)?;
        // Every target has its own network. A process in the host's network has the pid of a target that has ended.
        if namespace.is_of_host() {
            return Err(senseless("it is in the host's network, not in that of a container: the target has ended"));
        }
        let place = namespace.id();
        if self.on.contains_key(&(number, place)) {
            return Err(senseless("it is on there already; heal it first"));
        }
        let effect = match fault {
            PacketFault::Partition { links, cut } => {
                programs::nft(&namespace, &rules::partition(number, links, *cut))?;
                Effect::Partition
            }
            PacketFault::Delay { links, by, part, seed } => {
                let treatment = Treatment { by: *by, loss: 0.0, order: Order::Link, part: *part, seed: *seed };
                self.queue(&namespace, number, links, treatment)?
            }
            PacketFault::Loss { links, probability, seed } => {
                let by = DelayRange { from_us: 0, to_us: 0 };
                let (order, part) = (Order::Link, DelayedPart::All);
                let treatment = Treatment { by, loss: *probability, order, part, seed: *seed };
                self.queue(&namespace, number, links, treatment)?
            }
            PacketFault::Reorder { links, by, within_connections, seed } => {
                let order = if *within_connections { Order::Free } else { Order::Connection };
                let treatment = Treatment { by: *by, loss: 0.0, order, part: DelayedPart::All, seed: *seed };
                self.queue(&namespace, number, links, treatment)?
            }
        };
        self.on.insert((number, place), On { namespace, effect });
        Ok(())
    }

    /// Opens the queue first, and then adds the rules that lead to the queue.
    fn queue(
        &mut self,
        namespace: &Namespace,
        fault: FaultId,
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
            delayed: DelayQueue::new(treatment),
            stop: stopped,
            fault,
            report: self.report.clone(),
            tally: PacketTally::default(),
            reports: Vec::new(),
        };
        let named = thread::Builder::new().name(format!("queue-{fault}"));
        let releasing = named.spawn(move || release.run()).map_err(netlink)?;
        programs::iptables(namespace, &rules::queue(fault, links, treatment.part, number))?;
        Ok(Effect::Queue { direction: links.direction, number, stop, releasing })
    }

    /// Heals a fault at each target: removes exactly its rules, and releases its delayed packets at once. A fault that
    /// is not on, or whose target is gone, counts as healed.
    ///
    /// Tries every target and returns the first error. A fault that could not be healed is still on; heal it again.
    pub fn heal(&mut self, fault: FaultId) -> Result<PacketTally, NetError> {
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

    /// Heals all faults. Tries every fault and returns the first error.
    pub fn heal_all(&mut self) -> Result<(), NetError> {
        let faults: Vec<FaultId> = self.on().collect();
        let healed: Vec<_> = faults.into_iter().map(|fault| self.heal(fault)).collect();
        healed.into_iter().try_for_each(|healed| healed.map(drop))
    }

    /// Returns the faults that are on, each once.
    pub fn on(&self) -> impl Iterator<Item = FaultId> {
        let mut last = None;
        self.on.keys().map(|(fault, _)| *fault).filter(move |fault| last.replace(*fault) != Some(*fault))
    }
}

impl On {
    /// Returns the counters of the fault or the error, and the fault if it is still on.
    fn heal(self, fault: FaultId) -> (Result<PacketTally, NetError>, Option<On>) {
        let removed = match &self.effect {
            Effect::Partition => programs::nft(&self.namespace, &rules::no_partition(fault)),
            Effect::Queue { direction, .. } => programs::iptables(&self.namespace, &rules::no_queue(fault, *direction)),
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

/// Closes a queue to which no rule leads any more.
fn finish(
    namespace: &Namespace,
    fault: FaultId,
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

/// One hour: the longest delay, so that no stamp overflows.
const LONGEST_US: u64 = 3_600_000_000;

fn add(sum: &mut PacketTally, more: PacketTally) {
    sum.delayed += more.delayed;
    sum.passed += more.passed;
    sum.lost += more.lost;
    sum.overrun += more.overrun;
}
