//! Changes of a target's network that are not ours.

use std::{collections::BTreeSet, process::Command};

use agent::net::{PacketFaults, foreign};
use history::CutMode;

use super::{ONE, TWO, World, delay, faults};
use agent::protocol::PacketFault;

/// Runs a command in the target's network.
pub fn inside(world: &World, words: &str) {
    let pid = world.target().pid().to_string();
    let output = Command::new("nsenter").args(["-t", &pid, "-n"]).args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

fn found(world: &World) -> BTreeSet<String> {
    foreign(world.target().pid()).unwrap()
}

fn all_of_ours(faults: &mut PacketFaults, world: &World) {
    let cut = PacketFault::Partition { links: world.links(), cut: CutMode::Reject };
    faults.inject(ONE, world.target().pid(), &cut).unwrap();
    faults.inject(TWO, world.target().pid(), &delay(world.links(), 1)).unwrap();
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn rules_that_are_not_ours_are_found_also_among_ours() {
    let world = World::new(2);
    let before = found(&world);
    let (mut ours, _) = faults();
    all_of_ours(&mut ours, &world);
    assert_eq!(found(&world), before, "our own rules");

    inside(&world, "iptables-nft -A INPUT -p tcp --dport 6379 -j DROP");
    inside(&world, "iptables-nft -t mangle -I OUTPUT -p udp -j DROP");
    let said: Vec<String> = found(&world).difference(&before).cloned().collect();
    let [filter, mangle] = said.as_slice() else { panic!("{said:?}") };
    assert!(filter.contains("of chain INPUT in table filter") && mangle.contains("of chain OUTPUT in table mangle"));
    inside(&world, "iptables-nft -F INPUT");
    inside(&world, "iptables-nft -t mangle -D OUTPUT -p udp -j DROP");
    assert_eq!(found(&world), before);

    inside(&world, "iptables-nft -P INPUT DROP");
    let said: Vec<String> = found(&world).difference(&before).cloned().collect();
    assert_eq!(said, ["chain INPUT in table filter drops packets"]);
    inside(&world, "iptables-nft -P INPUT ACCEPT");
    inside(&world, "iptables-nft -t nat -A OUTPUT -d 127.0.0.11 -j ACCEPT");
    assert_eq!(found(&world), before, "the engine's name server");
    ours.heal_all().unwrap();
    assert_eq!(found(&world), before);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn an_interface_that_is_down_and_a_queueing_discipline_are_found() {
    let world = World::new(2);
    let before = found(&world);
    // As when somebody connects a network again.
    inside(&world, "ip link add late0 type veth peer name late1");
    inside(&world, "ip link set late0 up");
    inside(&world, "ip link set late1 up");
    assert_eq!(found(&world), before, "an interface without a queue");
    inside(&world, "ip link set eth0 down");
    assert!(found(&world).contains("interface eth0 is down"), "{:?}", found(&world));
    inside(&world, "ip link set eth0 up");
    assert_eq!(found(&world), before);
    inside(&world, "tc qdisc add dev eth0 root tbf rate 8kbit burst 1kb latency 1s");
    let said: Vec<String> = found(&world).difference(&before).cloned().collect();
    let [queueing] = said.as_slice() else { panic!("{said:?}") };
    assert!(queueing.starts_with("queueing discipline tbf on interface"), "{queueing}");
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_process_that_has_ended_is_said() {
    let mut world = World::new(1);
    let pid = world.target().pid();
    world.nodes[0].stop();
    assert!(foreign(pid).unwrap_err().to_string().contains("network namespace of process"));
}
