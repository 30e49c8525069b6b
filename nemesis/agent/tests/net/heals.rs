//! Heals that fail, and the connections and packets that a heal finds.

use std::net::{SocketAddr, SocketAddrV4, TcpListener};

use agent::{
    net::{connections, probe},
    protocol::ProbeAnswer,
};

use super::{
    ONE, TWO, connected, delay, faults,
    foreign::inside,
    partition,
    say::left_out,
    without::without,
    world::{NEVER, SOON, World},
};

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_fault_whose_heal_failed_is_on_until_it_is_healed() {
    /// Its number in capabilities(7).
    const NET_ADMIN: u32 = 12;
    let world = World::new(2);
    let before = world.rules();
    let (mut faults, _) = faults();
    faults.inject(ONE, world.target().pid(), &partition(world.links())).unwrap();
    let healed = without(NET_ADMIN, || faults.heal(ONE)).expect("root");
    assert!(healed.is_err(), "{healed:?}");
    assert_eq!(faults.on().collect::<Vec<_>>(), [ONE]);
    faults.heal(ONE).unwrap();
    assert_eq!(world.rules(), before);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_heal_of_all_faults_goes_on_after_an_error() {
    let world = World::new(3);
    let (third, peer) = (world.third().pid(), world.peer().echo());
    let (mut faults, _) = faults();
    for (fault, pid) in [(ONE, world.target().pid()), (TWO, third)] {
        faults.inject(fault, pid, &partition(world.links())).unwrap();
    }
    assert_eq!(probe(third, peer, NEVER).unwrap(), ProbeAnswer::Silent);
    // Somebody has removed the rules of the first fault.
    inside(&world, "nft flush ruleset");
    assert!(faults.heal_all().is_err());
    assert_eq!(faults.on().collect::<Vec<_>>(), [ONE]);
    connected(probe(third, peer, SOON).unwrap());
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_packet_that_is_late_when_a_partition_begins_is_dropped() {
    let world = World::new(2);
    let (pid, from, to) = (world.target().pid(), world.target().udp(), world.peer().udp());
    let (mut faults, _) = faults();
    let sent = || from.send_to(b"x", to.local_addr().unwrap()).unwrap();
    faults.inject(ONE, pid, &delay(world.links(), 60_000)).unwrap();
    sent();
    faults.inject(TWO, pid, &partition(world.links())).unwrap();
    faults.heal(ONE).unwrap();
    assert!(to.recv(&mut [0]).is_err(), "the heal of the delay has released the packet");
    faults.heal(TWO).unwrap();
    sent();
    to.set_read_timeout(Some(SOON)).unwrap();
    to.recv(&mut [0]).expect("a packet after both heals");
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn the_connections_of_a_server_that_listens_on_ipv6_are_listed() {
    let world = World::new(2);
    let target = world.target();
    let listener = target.namespace().enter(|| TcpListener::bind("[::]:0")).unwrap();
    let Ok(listener) = listener else {
        left_out("no IPv6 here");
        return;
    };
    let port = listener.local_addr().unwrap().port();
    let client = world.peer().connect(SocketAddrV4::new(target.address, port));
    let _accepted = listener.accept().unwrap();
    let found = connections(target.pid(), &world.links()).unwrap();
    let is_it = |peer| Some(SocketAddr::V4(peer)) == client.local_addr().ok();
    assert!(found.iter().any(|one| one.local.port() == port && is_it(one.peer)), "{found:?}");
}
