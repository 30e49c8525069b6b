//! Faults of packets, in network namespaces that the tests make themselves.
//!
//! They need root, and the programs `nft` (nftables), `iptables-nft-restore` (iptables) and `ip` (iproute2):
//! `cargo test -p agent --test net -- --ignored`.

mod foreign;
mod heals;
mod probes;
#[path = "../../../../tests/shared/say.rs"]
mod say;
#[path = "../../../../tests/shared/without.rs"]
mod without;
mod world;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, SocketAddrV4, UdpSocket},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use agent::{
    net::{NetError, PacketFaults, connections, probe, probe_abilities, reset},
    protocol::{
        Ability, DelayRange, DelayedPart, Links, PacketFate, PacketFault, PacketReport, PacketRequest, ProbeAnswer,
        TargetAnswer,
    },
};
use history::{CutMode, Direction, FaultId};
use without::without;
use world::{NEVER, SOON, World, round_trip, shortest_round_trip, within};

const ONE: FaultId = FaultId(1);
const TWO: FaultId = FaultId(2);
/// Longer than a packet without a fault takes on a busy machine.
const DELAY: Duration = Duration::from_millis(400);
const DELAY_MS: u64 = 400;

type Reported = Arc<Mutex<Vec<(FaultId, PacketReport)>>>;

/// None is on, and what is reported is kept.
fn faults() -> (PacketFaults, Reported) {
    let all = Reported::default();
    let kept = all.clone();
    let report =
        move |fault, some: &[PacketReport]| kept.lock().unwrap().extend(some.iter().map(|packet| (fault, *packet)));
    (PacketFaults::new(Arc::new(report)), all)
}

fn of(fault: FaultId, reported: &Reported) -> Vec<PacketReport> {
    reported.lock().unwrap().iter().filter(|(number, _)| *number == fault).map(|(_, packet)| *packet).collect()
}

fn fixed(by_ms: u64) -> DelayRange {
    DelayRange { from_us: by_ms * 1000, to_us: by_ms * 1000 }
}

fn partition(links: Links) -> PacketFault {
    PacketFault::Partition { links, cut: CutMode::Drop }
}

fn delay(links: Links, by_ms: u64) -> PacketFault {
    PacketFault::Delay { links, by: fixed(by_ms), part: DelayedPart::All, seed: 1 }
}

fn connected(answer: ProbeAnswer) -> Duration {
    match answer {
        ProbeAnswer::Connected { latency_ns } => Duration::from_nanos(latency_ns),
        other => panic!("{other:?}"),
    }
}

/// Returns the shortest of several probes, as [`shortest_round_trip`].
fn shortest_probe(pid: i32, to: SocketAddrV4) -> Duration {
    (0..5).map(|_| connected(probe(pid, to, SOON).unwrap())).min().unwrap()
}

/// Sends `count` numbers and gives those that arrive, in the order in which they do.
fn numbers(from: &[UdpSocket], to: &UdpSocket, count: u16) -> Vec<u16> {
    let address = to.local_addr().unwrap();
    for n in 0..count {
        let _ = from[usize::from(n) % from.len()].send_to(&n.to_be_bytes(), address);
    }
    let mut buffer = [0; 2];
    std::iter::from_fn(|| to.recv(&mut buffer).ok().map(|_| u16::from_be_bytes(buffer))).collect()
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_partition_cuts_new_and_established_connections_with_its_peer_only_and_a_heal_opens_both() {
    let world = World::new(3);
    let (target, peer, third) = (world.target(), world.peer().echo(), world.third().echo());
    let itself = target.echo();
    let [mut to_peer, mut to_third, mut to_itself] = [peer, third, itself].map(|to| target.connect(to));
    let before = world.rules();
    let (mut faults, _) = faults();
    faults.inject(ONE, target.pid(), &partition(world.links())).unwrap();

    assert_eq!(probe(target.pid(), peer, NEVER).unwrap(), ProbeAnswer::Silent);
    assert_eq!(probe(world.peer().pid(), itself, NEVER).unwrap(), ProbeAnswer::Silent, "the other way round");
    assert_eq!(round_trip(&mut to_peer, NEVER), None);
    let stale = connections(target.pid(), &world.links()).unwrap();
    assert!(stale.iter().any(|c| c.peer == peer && c.retransmits > 0 && c.unacknowledged_bytes == 1), "{stale:?}");
    for (name, stream, address) in [("third", &mut to_third, third), ("itself", &mut to_itself, itself)] {
        assert!(round_trip(stream, SOON).is_some(), "{name}: established");
        connected(probe(target.pid(), address, SOON).unwrap());
    }

    faults.heal(ONE).unwrap();
    connected(probe(target.pid(), peer, SOON).unwrap());
    to_peer.set_read_timeout(Some(SOON)).unwrap();
    to_peer.read_exact(&mut [0]).expect("the echo of what was written during the partition");
    let open = connections(target.pid(), &world.links()).unwrap();
    assert!(open.iter().all(|c| c.retransmits == 0), "{open:?}");
    assert_eq!(world.rules(), before);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_one_way_partition_cuts_that_way_and_leaves_the_other_open() {
    let world = World::new(2);
    let (target, peer) = (world.target().udp(), world.peer().udp());
    for (direction, out, back) in [(Direction::Out, 0, 10), (Direction::In, 10, 0)] {
        let (mut faults, _) = faults();
        let links = Links { direction, ..world.links() };
        faults.inject(ONE, world.target().pid(), &partition(links)).unwrap();
        assert_eq!(numbers(std::slice::from_ref(&target), &peer, 10).len(), out, "{direction:?}: from the target");
        assert_eq!(numbers(std::slice::from_ref(&peer), &target, 10).len(), back, "{direction:?}: to the target");
        faults.heal(ONE).unwrap();
    }
    assert_eq!(numbers(&[target], &peer, 10).len(), 10);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_rejecting_partition_resets_connections_and_refuses_new_ones_at_once_at_both_ends() {
    let world = World::new(2);
    let (target, peer) = (world.target().echo(), world.peer().echo());
    let mut out = world.target().connect(peer);
    let mut back = world.peer().connect(target);
    let (mut faults, _) = faults();
    let fault = PacketFault::Partition { links: world.links(), cut: CutMode::Reject };
    faults.inject(ONE, world.target().pid(), &fault).unwrap();

    for (from, to, stream) in [(world.target(), peer, &mut out), (world.peer(), target, &mut back)] {
        assert!(matches!(probe(from.pid(), to, NEVER).unwrap(), ProbeAnswer::Refused { .. }));
        stream.write_all(b"x").unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        let error = stream.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    faults.heal(ONE).unwrap();
    connected(probe(world.target().pid(), peer, SOON).unwrap());
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_delay_reports_each_packet_and_a_heal_releases_delayed_packets() {
    let world = World::new(3);
    let (peer, third) = (world.peer().echo(), world.third().echo());
    let target = world.target();
    let (mut to_peer, mut to_third) = (target.connect(peer), target.connect(third));
    round_trip(&mut to_peer, SOON).unwrap();
    let (mut faults, reported) = faults();
    faults.inject(ONE, target.pid(), &delay(world.links(), DELAY_MS)).unwrap();

    let latency = connected(probe(target.pid(), peer, SOON).unwrap());
    assert!(latency >= 2 * DELAY, "delayed on the way out, and on the way back: {latency:?}");
    assert!(round_trip(&mut to_peer, SOON).unwrap() >= 2 * DELAY);
    let other = shortest_round_trip(&mut to_third);
    assert!(other < DELAY, "{other:?}");
    {
        let packets = of(ONE, &reported);
        let wrote = packets.iter().find(|p| p.to == peer && p.payload_bytes == 1).expect("the write");
        assert_eq!((wrote.from.ip(), wrote.fate), (&target.address, PacketFate::Due));
        let late = packets.iter().map(|p| Duration::from_nanos(p.released_ns - p.queued_ns));
        let (shortest, longest) = (late.clone().min().unwrap(), late.max().unwrap());
        // A stall of the machine makes some packets later, but not all.
        assert!(shortest >= DELAY && shortest < 2 * DELAY, "{shortest:?} to {longest:?}");
        assert!(packets.iter().any(|p| p.from == peer && p.payload_bytes == 1), "and its answer");
    }
    let tally = faults.heal(ONE).unwrap();
    assert_eq!((tally.lost, tally.overrun), (0, 0));
    let healed = shortest_round_trip(&mut to_peer);
    assert!(healed < DELAY, "{healed:?}");

    faults.inject(TWO, target.pid(), &delay(world.links(), 60_000)).unwrap();
    // Nobody sends a datagram again: it arrives only if the heal releases it.
    let (from, to) = (target.udp(), world.peer().udp());
    from.send_to(b"x", to.local_addr().unwrap()).unwrap();
    assert_eq!(round_trip(&mut to_peer, NEVER), None);
    let tally = faults.heal(TWO).unwrap();
    to.set_read_timeout(Some(SOON)).unwrap();
    to.recv(&mut [0]).expect("a packet was delayed for a minute");
    to_peer.set_read_timeout(Some(SOON)).unwrap();
    to_peer.read_exact(&mut [0]).expect("and a write");
    assert!(of(TWO, &reported).iter().any(|p| p.fate == PacketFate::Healed));
    assert_eq!(tally.delayed, of(TWO, &reported).len() as u64);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_delay_of_payload_delays_a_write_and_no_handshake() {
    let world = World::new(2);
    let (target, peer, elsewhere) = (world.target(), world.peer().echo(), world.peer().echo());
    let (mut stream, mut other) = (target.connect(peer), target.connect(elsewhere));
    let (mut faults, reported) = faults();
    let links = Links { port: Some(peer.port()), direction: Direction::Out, ..world.links() };
    let fault = PacketFault::Delay { links, by: fixed(DELAY_MS), part: DelayedPart::Payload, seed: 1 };
    faults.inject(ONE, target.pid(), &fault).unwrap();

    assert!(shortest_probe(target.pid(), peer) < DELAY, "it opens as before");
    assert!(shortest_round_trip(&mut other) < DELAY, "another port");
    let own_address = stream.local_addr().unwrap();
    let before = agent::stamp::monotonic_ns();
    stream.write_all(b"wr").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut echoed = Vec::new();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.read_to_end(&mut echoed).expect("the end came after the write");
    let late = Duration::from_nanos(agent::stamp::monotonic_ns() - before);
    assert_eq!(echoed, b"wr");
    assert!(late > Duration::from_millis(390), "{late:?}");
    faults.heal(ONE).unwrap();
    let packets = of(ONE, &reported);
    let is_own = |p: &&PacketReport| SocketAddr::V4(p.from) == own_address;
    let (own, others): (Vec<&PacketReport>, Vec<&PacketReport>) = packets.iter().partition(is_own);
    // The kernel may send the end again while it waits: nobody has acknowledged it.
    let payloads = own.iter().map(|p| p.payload_bytes).collect::<Vec<_>>();
    let write_then_ends = payloads.len() > 1 && payloads[0] == 2 && payloads[1..].iter().all(|bytes| *bytes == 0);
    assert!(write_then_ends, "the write, and the end behind it: {packets:?}");
    // The end of a probe may come after the write. Packets of a link keep their order.
    let are_ends_of_probes = others.iter().all(|p| p.payload_bytes == 0 && p.to == packets[0].to);
    assert!(are_ends_of_probes, "no packet of another port: {packets:?}");
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_loss_drops_its_share_of_one_way_and_counts_it() {
    let world = World::new(2);
    let (target, peer) = (world.target().udp(), world.peer().udp());
    let (mut faults, reported) = faults();
    let links = Links { direction: Direction::Out, ..world.links() };
    let fault = PacketFault::Loss { links, probability: 0.3, seed: 7 };
    faults.inject(ONE, world.target().pid(), &fault).unwrap();
    let through = numbers(std::slice::from_ref(&target), &peer, 200).len();
    let tally = faults.heal(ONE).unwrap();
    assert!((120..160).contains(&through), "{through} of 200");
    assert_eq!((tally.passed, tally.lost), (through as u64, 200 - through as u64));
    assert_eq!(of(ONE, &reported).iter().filter(|p| p.fate == PacketFate::Lost).count() as u64, tally.lost);
    assert_eq!(numbers(&[target], &peer, 200).len(), 200);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_reordering_mixes_connections_and_keeps_the_order_inside_each_unless_asked() {
    let world = World::new(2);
    let (one, many) = (vec![world.target().udp()], (0..5).map(|_| world.target().udp()).collect::<Vec<_>>());
    let peer = world.peer().udp();
    let disorder = |numbers: &[u16]| numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    let (mut faults, _) = faults();
    for within_connections in [false, true] {
        let by = DelayRange { from_us: 0, to_us: 50_000 };
        let fault = PacketFault::Reorder { links: world.links(), by, within_connections, seed: 3 };
        faults.inject(ONE, world.target().pid(), &fault).unwrap();
        let mixed = numbers(&many, &peer, 100);
        assert!(mixed.len() == 100 && disorder(&mixed) > 10, "{mixed:?}");
        let alone = numbers(&one, &peer, 100);
        assert_eq!(alone.len(), 100);
        assert_eq!(disorder(&alone) > 10, within_connections, "{alone:?}");
        faults.heal(ONE).unwrap();
    }
    assert_eq!(disorder(&numbers(&many, &peer, 100)), 0);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn faults_coexist_and_each_heal_takes_its_own_rules_only() {
    let world = World::new(3);
    let pid = world.target().pid();
    let (peer, third) = (world.peer().echo(), world.third().echo());
    // iptables leaves its empty chains behind, once.
    probe_abilities(pid).unwrap();
    let before = world.rules();
    let (mut faults, _) = faults();
    let to_third = Links { peers: vec![world.third().address], ..Links::default() };
    faults.inject(ONE, pid, &partition(world.links())).unwrap();
    faults.inject(TWO, pid, &partition(to_third.clone())).unwrap();
    faults.inject(FaultId(3), pid, &delay(to_third, DELAY_MS)).unwrap();
    faults.inject(FaultId(4), pid, &delay(world.links(), DELAY_MS)).unwrap();
    let refused = faults.inject(ONE, pid, &partition(world.links()));
    assert!(matches!(refused, Err(NetError::Senseless { fault: ONE, .. })), "{refused:?}");

    faults.heal(TWO).unwrap();
    assert_eq!(probe(pid, peer, NEVER).unwrap(), ProbeAnswer::Silent);
    assert!(connected(probe(pid, third, SOON).unwrap()) >= 2 * DELAY);
    faults.heal(FaultId(3)).unwrap();
    assert_eq!(probe(pid, peer, NEVER).unwrap(), ProbeAnswer::Silent);
    assert!(shortest_probe(pid, third) < DELAY);
    assert_eq!(faults.on().collect::<Vec<_>>(), [ONE, FaultId(4)]);
    faults.heal_all().unwrap();
    assert_eq!(faults.on().count(), 0);
    assert_eq!(world.rules(), before);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_heal_is_idempotent_and_ok_for_a_target_that_is_gone() {
    let mut world = World::new(2);
    let pid = world.target().pid();
    let (mut faults, _) = faults();
    faults.inject(ONE, pid, &partition(world.links())).unwrap();
    faults.inject(TWO, pid, &delay(world.links(), 1000)).unwrap();
    world.nodes[0].stop();
    faults.heal(ONE).unwrap();
    faults.heal(ONE).unwrap();
    faults.heal(TWO).unwrap();
    assert!(matches!(faults.inject(ONE, pid, &partition(world.links())), Err(NetError::Namespace { .. })));
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn a_fault_is_put_on_again_at_a_target_that_was_restarted_and_at_others_and_one_heal_takes_it_off_everywhere() {
    let mut world = World::new(3);
    let peer = world.peer().echo();
    let links = world.links();
    let (mut faults, _) = faults();
    let mut on = |pid| faults.obey(&PacketRequest::Inject { fault: ONE, pid, what: partition(links.clone()) }).unwrap();
    on(world.target().pid());
    on(world.third().pid());
    world.restart_target();
    connected(probe(world.target().pid(), peer, SOON).unwrap());
    on(world.target().pid());
    for node in [world.target(), world.third()] {
        assert_eq!(probe(node.pid(), peer, NEVER).unwrap(), ProbeAnswer::Silent);
    }
    faults.obey(&PacketRequest::Heal { fault: ONE }).unwrap();
    for node in [world.target(), world.third()] {
        connected(probe(node.pid(), peer, SOON).unwrap());
    }
}

/// The controller's JSON, and the request or answer that it must mean.
#[test]
fn requests_and_answers_have_one_form_as_json() {
    let request = concat!(
        r#"{"inject":{"fault":3,"pid":77,"what":"#,
        r#"{"delay":{"links":{"peers":["10.0.0.2"],"port":8080,"direction":"out"},"#,
        r#""by":{"from_us":1000,"to_us":1000},"part":"payload","seed":9}}}}"#
    );
    let links = Links { peers: vec![[10, 0, 0, 2].into()], port: Some(8080), direction: Direction::Out };
    let what = PacketFault::Delay { links, by: fixed(1), part: DelayedPart::Payload, seed: 9 };
    let meant = PacketRequest::Inject { fault: FaultId(3), pid: 77, what };
    assert_eq!(serde_json::from_str::<PacketRequest>(request).unwrap(), meant);
    assert_eq!(serde_json::to_string(&meant).unwrap(), request);
    let short = r#"{"inject":{"fault":1,"pid":7,"what":{"partition":{"links":{}}}}}"#;
    let meant = PacketRequest::Inject { fault: ONE, pid: 7, what: partition(Links::default()) };
    assert_eq!(serde_json::from_str::<PacketRequest>(short).unwrap(), meant);
    let unknown = short.replace("links", "link");
    assert!(serde_json::from_str::<PacketRequest>(&unknown).is_err());
    let answer = TargetAnswer::Probed(ProbeAnswer::Connected { latency_ns: 5 });
    assert_eq!(serde_json::to_string(&answer).unwrap(), r#"{"probed":{"connected":{"latency_ns":5}}}"#);
}

#[test]
fn a_fault_that_makes_no_sense_is_refused_before_anything_is_done() {
    let (mut faults, _) = faults();
    let itself = std::process::id() as i32;
    let by = DelayRange { from_us: 2, to_us: 1 };
    let backwards = PacketFault::Delay { links: Links::default(), by, part: DelayedPart::All, seed: 1 };
    let too_likely = PacketFault::Loss { links: Links::default(), probability: f64::NAN, seed: 1 };
    for fault in [backwards, too_likely] {
        let refused = faults.inject(ONE, itself, &fault);
        assert!(matches!(refused, Err(NetError::Senseless { .. })), "{refused:?}");
    }
    assert_eq!(faults.on().count(), 0);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn no_fault_is_injected_in_the_network_of_the_host() {
    let (mut faults, _) = faults();
    let nowhere = Links { peers: vec![[192, 0, 2, 1].into()], ..Links::default() };
    let refused = faults.inject(ONE, 1, &partition(nowhere));
    // Some kernels let nobody look at the first process.
    let is_refused = matches!(refused, Err(NetError::Senseless { pid: 1, .. } | NetError::Namespace { pid: 1, .. }));
    assert!(is_refused, "{refused:?}");
    assert_eq!(faults.on().count(), 0);
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn resetting_stale_connections_ends_them_at_both_ends_and_spares_the_rest() {
    let world = World::new(3);
    let target = world.target();
    let (peer, third) = (world.peer().echo(), world.third().echo());
    let (mut stale, mut other) = (target.connect(peer), target.connect(third));
    let (mut faults, _) = faults();
    faults.inject(ONE, target.pid(), &partition(world.links())).unwrap();
    stale.write_all(b"x").unwrap();
    assert_eq!(probe(target.pid(), peer, NEVER).unwrap(), ProbeAnswer::Silent);
    // A retransmission after the heal would reach the peer. The time between two of them doubles each time.
    let at_target = || connections(target.pid(), &world.links()).unwrap();
    let rests = || at_target().iter().any(|c| c.is_stale() && c.next_retransmit_ms > Some(3_000));
    assert!(within(4 * SOON, rests), "{:?}", at_target());
    faults.heal(ONE).unwrap();
    // To the same peer, and healthy.
    let mut healthy = target.connect(peer);

    let (from_target, from_peer) = (stale.local_addr().unwrap(), world.peer().pid());
    let ended = reset(target.pid(), &Links { port: Some(peer.port()), ..world.links() }).unwrap();
    assert!(ended.len() == 1 && ended[0].peer == peer && from_target == ended[0].local.into(), "{ended:?}");
    assert!(stale.read(&mut [0]).is_err());
    let at_peer = || connections(from_peer, &Links::default()).unwrap();
    assert!(within(SOON, || at_peer().len() == 1), "{:?}", at_peer());
    assert!(round_trip(&mut other, SOON).is_some() && round_trip(&mut healthy, SOON).is_some());
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn everything_works_in_a_namespace_of_this_machine_and_trying_leaves_nothing_that_matches() {
    let world = World::new(2);
    let found = probe_abilities(world.target().pid()).unwrap();
    for ability in [&found.nft, &found.iptables_queue, &found.queue, &found.connections, &found.reset] {
        assert_eq!(ability, &Ability::Works, "{found:?}");
    }
    let rules = world.rules();
    assert!(!rules.to_lowercase().contains("harness") && !rules.contains("queue"), "{rules}");
    assert!(matches!(probe_abilities(i32::MAX), Err(NetError::Namespace { .. })));
}

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn what_an_agent_lacks_without_a_capability_is_said_and_nothing_is_left() {
    /// Numbers of capabilities(7).
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    let world = World::new(2);
    let pid = world.target().pid();
    let found = without(NET_ADMIN, || probe_abilities(pid)).expect("root").unwrap();
    for (ability, is_needed) in
        [(&found.nft, true), (&found.iptables_queue, true), (&found.queue, true), (&found.connections, false)]
    {
        let Ability::Fails { why } = ability else {
            assert!(!is_needed, "{found:?}");
            continue;
        };
        assert!(why.to_lowercase().contains("permi"), "{found:?}");
    }
    let refused = without(SYS_ADMIN, || probe_abilities(pid)).expect("root").unwrap();
    for ability in [&refused.nft, &refused.iptables_queue, &refused.queue, &refused.connections, &refused.reset] {
        assert!(matches!(ability, Ability::Fails { why } if why.contains("SYS_ADMIN")), "{refused:?}");
    }
    let rules = world.rules();
    assert!(!rules.to_lowercase().contains("harness") && !rules.contains("queue"), "{rules}");
    assert_eq!(probe_abilities(pid).unwrap().nft, Ability::Works, "for the others nothing is lost");
}

/// Set for the process that opens a queue and is killed.
const HOLD: &str = "HARNESS_TEST_HOLD";

#[test]
#[ignore = "needs root, nftables, iptables and iproute2"]
fn traffic_flows_again_when_the_delaying_agent_is_killed() {
    if let Ok(pid) = std::env::var(HOLD) {
        let (mut faults, _) = faults();
        faults.inject(ONE, pid.parse().unwrap(), &delay(Links::default(), 60_000)).unwrap();
        println!("\ndelaying");
        loop {
            std::thread::park();
        }
    }
    let world = World::new(2);
    let peer = world.peer().echo();
    let mut stream = world.target().connect(peer);
    let name = "traffic_flows_again_when_the_delaying_agent_is_killed";
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(HOLD, world.target().pid().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let delays = lines.any(|line| line.is_ok_and(|line| line == "delaying"));
    let probed = delays.then(|| probe(world.target().pid(), peer, NEVER).unwrap());
    let established = round_trip(&mut stream, NEVER);
    // SIGKILL: nothing of its own can run any more.
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!((probed, established), (Some(ProbeAnswer::Silent), None), "while the agent delayed them");
    connected(probe(world.target().pid(), peer, SOON).unwrap());
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.read_exact(&mut [0]).expect("the sender retransmits the delayed packets");
    assert!(world.rules().contains("queue"), "the rules are still there, and pass by");
}
