//! What works in a target's network namespace, tried there, and taken away again.

use super::{
    Namespace, NetError,
    connections::{can_reset, connections},
    programs,
    queue::Queue,
    rules,
};
use crate::protocol::{Ability, Cut, FaultNumber, HeldPart, Links, PacketAbilities};

/// The number of the rules that are tried. No fault has it, and no packet meets them.
const TRIED: FaultNumber = FaultNumber(u32::MAX);
const TRIED_QUEUE: u16 = u16::MAX;

/// Tries everything that faults of packets need, in the network namespace of process `pid`, on links that do not exist. A run that
/// needs what fails is refused with the reason. An error says that there is no way into the namespace at all.
pub fn probe_abilities(pid: i32) -> Result<PacketAbilities, NetError> {
    let namespace = Namespace::of(pid)?;
    // Addresses that are reserved for documentation.
    let nowhere = Links { peers: vec![[192, 0, 2, 1].into()], ..Links::default() };
    let nft = || {
        programs::nft(&namespace, &rules::partition(TRIED, &nowhere, Cut::Reject))?;
        programs::nft(&namespace, &rules::no_partition(TRIED))
    };
    let iptables = || {
        programs::iptables(&namespace, &rules::queue(TRIED, &nowhere, HeldPart::Payload, TRIED_QUEUE))?;
        programs::iptables(&namespace, &rules::no_queue(TRIED, nowhere.way))
    };
    let queue = || {
        let (doing, needs) = ("binding a queue of packets", "NFQUEUE (nfnetlink_queue)");
        let opened = namespace.enter(|| Queue::open(TRIED_QUEUE))?;
        opened.map(drop).map_err(|source| NetError::Netlink { doing, pid, source, needs })
    };
    Ok(PacketAbilities {
        nft: ability(nft()),
        iptables_queue: ability(iptables()),
        queue: ability(queue()),
        connections: ability(connections(pid, &nowhere).map(drop)),
        reset: ability(can_reset(pid)),
    })
}

fn ability(tried: Result<(), NetError>) -> Ability {
    match tried {
        Ok(()) => Ability::Works,
        Err(error) => Ability::Fails { why: error.to_string() },
    }
}
