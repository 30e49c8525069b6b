//! Probes: their answers, and connections that are reset or rejected.

use std::{net::SocketAddrV4, time::Duration};

use agent::{
    net::{knock, probe, reset},
    protocol::{Links, PacketFault, ProbeAnswer},
};
use history::CutMode;

use super::{
    ONE, connected, delay, faults,
    world::{NEVER, SOON, World},
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
    // The kernel sends the first packet again after 1 s, before its answer is back: the connection looks stale.
    faults.inject(ONE, pid, &delay(world.links(), 700)).unwrap();
    std::thread::scope(|scope| {
        let probed = scope.spawn(|| probe(pid, peer, Duration::from_secs(5)).unwrap());
        std::thread::sleep(Duration::from_millis(1_200));
        assert_eq!(reset(pid, &Links::default()).unwrap().len(), 1, "the connection of the probe");
        assert!(connected(probed.join().unwrap()) >= Duration::from_millis(1_400));
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
    for (cut, is_refused) in [(CutMode::Reject, true), (CutMode::Drop, false)] {
        faults.inject(ONE, target.pid(), &PacketFault::Partition { links: world.links(), cut }).unwrap();
        match knocks(NEVER) {
            ProbeAnswer::Refused { .. } => assert!(is_refused),
            ProbeAnswer::Silent => assert!(!is_refused),
            other => panic!("{other:?}"),
        }
        faults.heal(ONE).unwrap();
        connected(knocks(SOON));
    }
}
