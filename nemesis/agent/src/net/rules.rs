//! The rules of each fault, as text for `nft` and `iptables-nft-restore`. Each fault has a table, or chains, of its
//! own: faults coexist, and healing one removes exactly what it brought.

use std::net::Ipv4Addr;

use history::{CutMode, Direction, FaultId};

use crate::protocol::{DelayedPart, Links};

/// The beginnings of the names of our tables and chains.
const TABLE: &str = "harness_";
const CHAIN: &str = "HARNESS-";

/// Returns whether the bytes have a name of ours in them.
pub(super) fn is_ours(bytes: &[u8]) -> bool {
    let has = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
    has(TABLE) || has(CHAIN)
}

/// Returns the table of a partition. Its hooks come after those of the queues (priority 0 after -150): a packet that
/// was delayed until the partition was on is cut off like one on its way.
pub(super) fn partition(fault: FaultId, links: &Links, cut: CutMode) -> String {
    let mut text = format!("table inet {TABLE}{fault} {{\n");
    if !links.peers.is_empty() {
        text += &format!("set peers {{ type ipv4_addr; elements = {{ {} }}; }}\n", list(&links.peers));
    }
    if links.direction != Direction::Out {
        text += &hook("input", "iifname", "saddr", "sport", links, cut);
    }
    if links.direction != Direction::In {
        text += &hook("output", "oifname", "daddr", "dport", links, cut);
    }
    text + "}\n"
}

fn hook(name: &str, interface: &str, address: &str, port: &str, links: &Links, cut: CutMode) -> String {
    let mut packets = String::new();
    if !links.peers.is_empty() {
        packets += &format!("ip {address} @peers ");
    }
    if let Some(number) = links.port {
        packets += &format!("tcp {port} {number} ");
    }
    let verdict = match cut {
        CutMode::Drop => format!("{packets}counter drop\n"),
        CutMode::Reject => format!(
            "tcp flags & rst == rst accept\nicmp type destination-unreachable accept\n\
             {packets}meta l4proto tcp counter reject with tcp reset\n\
             {packets}counter reject with icmpx type admin-prohibited\n"
        ),
    };
    format!(
        "chain {name} {{ type filter hook {name} priority 0; policy accept;\n{interface} \"lo\" accept\n{verdict}}}\n"
    )
}

/// Takes the table of a partition away.
pub(super) fn no_partition(fault: FaultId) -> String {
    format!("delete table inet {TABLE}{fault}\n")
}

/// The chains that send packets to queue `number`. They are called first: where two faults queue the same packet, the
/// newer one does.
pub(super) fn queue(fault: FaultId, links: &Links, part: DelayedPart, number: u16) -> String {
    let mut text = String::from("*mangle\n");
    for hook in hooks(links.direction) {
        text += &format!(":{} - [0:0]\n", chain(fault, hook));
    }
    for hook in hooks(links.direction) {
        let (address, port) = if *hook == "INPUT" { ("-s", "--sport") } else { ("-d", "--dport") };
        let packets = match (links.port, part) {
            (Some(number), _) => format!("-p tcp {port} {number} "),
            (None, DelayedPart::Payload) => "-p tcp ".into(),
            (None, DelayedPart::All) => String::new(),
        };
        let to_queue = format!("{packets}-j NFQUEUE --queue-num {number} --queue-bypass\n");
        if links.peers.is_empty() {
            text += &format!("-A {} {to_queue}", chain(fault, hook));
        }
        for peer in &links.peers {
            text += &format!("-A {} {address} {peer} {to_queue}", chain(fault, hook));
        }
        text += &format!("-I {hook} {}", jump(fault, hook));
    }
    text + "COMMIT\n"
}

/// Takes the chains of a queue away.
pub(super) fn no_queue(fault: FaultId, direction: Direction) -> String {
    let mut text = String::from("*mangle\n");
    for hook in hooks(direction) {
        text += &format!("-D {hook} {}", jump(fault, hook));
        text += &format!("-F {0}\n-X {0}\n", chain(fault, hook));
    }
    text + "COMMIT\n"
}

fn hooks(direction: Direction) -> &'static [&'static str] {
    match direction {
        Direction::In => &["INPUT"],
        Direction::Out => &["OUTPUT"],
        Direction::Both => &["INPUT", "OUTPUT"],
    }
}

fn chain(fault: FaultId, hook: &str) -> String {
    format!("{CHAIN}{fault}-{hook}")
}

fn jump(fault: FaultId, hook: &str) -> String {
    let interface = if hook == "INPUT" { "-i" } else { "-o" };
    format!("! {interface} lo -j {}\n", chain(fault, hook))
}

fn list(peers: &[Ipv4Addr]) -> String {
    peers.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT: FaultId = FaultId(3);

    fn links(direction: Direction) -> Links {
        Links { peers: vec![[10, 0, 0, 2].into(), [10, 0, 0, 3].into()], port: Some(6379), direction }
    }

    #[test]
    fn a_queue_takes_what_comes_from_its_peers_or_goes_to_them_and_nothing_of_loopback() {
        let way = |hook: &str, address: &str, port: &str, interface: &str| {
            format!(
                "*mangle\n:HARNESS-3-{hook} - [0:0]\n\
                 -A HARNESS-3-{hook} {address} 10.0.0.2 -p tcp {port} 6379 -j NFQUEUE --queue-num 9 --queue-bypass\n\
                 -A HARNESS-3-{hook} {address} 10.0.0.3 -p tcp {port} 6379 -j NFQUEUE --queue-num 9 --queue-bypass\n\
                 -I {hook} ! {interface} lo -j HARNESS-3-{hook}\nCOMMIT\n"
            )
        };
        for part in [DelayedPart::All, DelayedPart::Payload] {
            let rules = |direction| queue(FAULT, &links(direction), part, 9);
            assert_eq!(rules(Direction::In), way("INPUT", "-s", "--sport", "-i"));
            assert_eq!(rules(Direction::Out), way("OUTPUT", "-d", "--dport", "-o"));
        }
        let all = |part| queue(FAULT, &Links::default(), part, 9);
        assert!(all(DelayedPart::All).contains("-A HARNESS-3-INPUT -j NFQUEUE"));
        assert!(all(DelayedPart::Payload).contains("-A HARNESS-3-OUTPUT -p tcp -j NFQUEUE"));
        let none = "*mangle\n-D INPUT ! -i lo -j HARNESS-3-INPUT\n-F HARNESS-3-INPUT\n-X HARNESS-3-INPUT\nCOMMIT\n";
        assert_eq!(no_queue(FAULT, Direction::In), none);
    }

    #[test]
    fn a_partition_of_one_way_has_the_hook_of_that_way_only() {
        let rules = |direction| partition(FAULT, &links(direction), CutMode::Drop);
        let (inward, outward) = (rules(Direction::In), rules(Direction::Out));
        let dropped = "iifname \"lo\" accept\nip saddr @peers tcp sport 6379 counter drop\n";
        assert!(inward.contains(dropped) && !inward.contains("hook output"), "{inward}");
        let dropped = "oifname \"lo\" accept\nip daddr @peers tcp dport 6379 counter drop\n";
        assert!(outward.contains(dropped) && !outward.contains("hook input"), "{outward}");
    }
}
