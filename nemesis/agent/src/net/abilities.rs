//! Tries the kernel features that faults of packets need, in a target's network namespace.

use super::{
    connections::{can_reset, connections},
    error::NetError,
    namespace::Namespace,
    programs,
    queue::Queue,
    rules,
};
use history::{CutMode, FaultId};

use crate::protocol::{Ability, DelayedPart, Links, PacketAbilities};

/// The fault number of the test rules. No fault has this number, and no packet matches the rules.
const TRIED: FaultId = FaultId(u32::MAX);
const TRIED_QUEUE: u16 = u16::MAX;

/// Tries each feature in the network namespace of process `pid`, on links that do not exist. A run that needs a failing
/// feature is refused with the reason. Returns an error only if the namespace cannot be entered.
pub fn probe_abilities(pid: i32) -> Result<PacketAbilities, NetError> {
    let namespace = Namespace::of(pid)?;
    // An address that is reserved for documentation.
    let nowhere = Links { peers: vec![[192, 0, 2, 1].into()], ..Links::default() };
    let nft = || {
        programs::nft(&namespace, &rules::partition(TRIED, &nowhere, CutMode::Reject))?;
        programs::nft(&namespace, &rules::no_partition(TRIED))
    };
    let iptables = || {
        programs::iptables(&namespace, &rules::queue(TRIED, &nowhere, DelayedPart::Payload, TRIED_QUEUE))?;
        programs::iptables(&namespace, &rules::no_queue(TRIED, nowhere.direction))
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
