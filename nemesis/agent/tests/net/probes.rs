//! Probes: their answers, and connections that are reset or rejected.

use std::{cell::Cell, net::SocketAddrV4, time::Duration};

use agent::{
    net::{knock, probe, reset},
    protocol::{Links, PacketFault, ProbeAnswer},
};
use history::CutMode;

use super::{
    ONE, connected, delay, faults,
    world::{NEVER, SOON, World, within},
};

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_probe_of_an_absent_address_is_silent() {
    let world = World::new(2);
    // The kernel gives up its search for the address before the timeout.
    let absent = SocketAddrV4::new([10, 77, 0, 99].into(), 1);
    assert_eq!(probe(world.target().pid(), absent, SOON).unwrap(), ProbeAnswer::Silent);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_probe_whose_connection_is_reset_connects_again() {
    let world = World::new(2);
    let (pid, peer) = (world.target().pid(), world.peer().echo());
    let (mut faults, _) = faults();
    // The kernel sends the first packet again after 1 s, and its answer is back after 2.8 s. In between, the connection
    // looks stale.
    faults.inject(ONE, pid, &delay(world.links(), 1_400)).unwrap();
    std::thread::scope(|scope| {
        let probed = scope.spawn(|| probe(pid, peer, 4 * SOON).unwrap());
        let count = Cell::new(0);
        let is_reset = || {
            count.set(reset(pid, &Links::default()).unwrap().len());
            count.get() > 0 || probed.is_finished()
        };
        assert!(within(4 * SOON, is_reset) && count.get() == 1, "{} connections of the probe", count.get());
        // The time of the second connection.
        assert!(connected(probed.join().unwrap()) >= Duration::from_millis(2_800));
    });
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_knock_tells_whoever_rejects_on_the_way_from_the_other_end() {
    let world = World::new(2);
    let (target, peer) = (world.target(), world.peer());
    let knocks = |within| knock(target.pid(), peer.pid(), peer.address, within).unwrap();
    connected(knocks(SOON));
    let (mut faults, _) = faults();
    for (cut, is_refused, limit) in [(CutMode::Reject, true, SOON), (CutMode::Drop, false, NEVER)] {
        faults.inject(ONE, target.pid(), &PacketFault::Partition { links: world.links(), cut }).unwrap();
        match knocks(limit) {
            ProbeAnswer::Refused { .. } => assert!(is_refused),
            ProbeAnswer::Silent => assert!(!is_refused),
            other => panic!("{other:?}"),
        }
        faults.heal(ONE).unwrap();
        connected(knocks(SOON));
    }
}
