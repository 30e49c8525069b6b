use super::*;

const MS: u64 = 1_000_000;

fn treatment(from_ms: u64, to_ms: u64, order: Order) -> Treatment {
    let by = DelayRange { from_us: from_ms * 1000, to_us: to_ms * 1000 };
    Treatment { by, loss: 0.0, order, part: DelayedPart::All, seed: 42 }
}

fn packet(port: u16, payload_bytes: u32) -> Headers {
    let from = SocketAddrV4::new([10, 0, 0, 1].into(), port);
    Headers { from, to: "10.0.0.2:6379".parse().unwrap(), payload_bytes, ends: false }
}

/// Sends packets 0, 1, … a millisecond apart from these ports. Returns their order and delays.
fn through(treatment: Treatment, ports: &[u16]) -> Vec<(u32, u64)> {
    let mut queue = DelayQueue::new(treatment);
    for (id, port) in ports.iter().enumerate() {
        assert_eq!(queue.arrived(id as u32, packet(*port, 10), id as u64 * MS), Decision::Delay);
    }
    let mut left = Vec::new();
    while let Some(due) = queue.next_due() {
        assert_eq!(queue.due(due - 1), None, "nothing leaves early");
        let packet = queue.due(due).expect("one is due");
        left.push((packet.id, due - packet.queued_ns));
    }
    left
}

fn disorder(left: &[(u32, u64)]) -> usize {
    left.windows(2).filter(|pair| pair[0].0 > pair[1].0).count()
}

#[test]
fn a_fixed_delay_delays_each_packet_by_exactly_its_length() {
    let left = through(treatment(30, 30, Order::Link), &[1, 2, 1, 3]);
    assert_eq!(left, [(0, 30 * MS), (1, 30 * MS), (2, 30 * MS), (3, 30 * MS)]);
}

#[test]
fn a_delay_keeps_the_order_of_a_link_and_reorder_only_of_a_connection() {
    let ports: Vec<u16> = (0..200).map(|n| n % 7).collect();
    assert_eq!(disorder(&through(treatment(0, 50, Order::Link), &ports)), 0);
    let left = through(treatment(0, 50, Order::Connection), &ports);
    assert!(disorder(&left) > 20, "{left:?}");
    for port in 0..7 {
        let one: Vec<_> = left.iter().copied().filter(|(id, _)| id % 7 == port).collect();
        assert_eq!(disorder(&one), 0, "connection {port}");
    }
    let free = through(treatment(0, 50, Order::Free), &[1; 200]);
    assert!(disorder(&free) > 20, "{free:?}");
}

#[test]
fn delays_of_single_packets_fill_the_range_and_never_leave_it() {
    let mut queue = DelayQueue::new(treatment(10, 20, Order::Link));
    let mut late: Vec<u64> = (0..1000)
        .map(|n| {
            queue.arrived(n, packet(1, 1), u64::from(n) * 1000 * MS);
            let due = queue.next_due().unwrap();
            queue.due(due).map(|packet| due - packet.queued_ns).unwrap()
        })
        .collect();
    late.sort_unstable();
    assert!(late[0] >= 10 * MS && late[999] <= 20 * MS);
    assert!(late[100] < 12 * MS && late[900] > 18 * MS, "{} {}", late[100], late[900]);
}

#[test]
fn equal_seeds_draw_equal_delays_and_other_seeds_do_not() {
    let with = |seed| through(Treatment { seed, ..treatment(0, 50, Order::Connection) }, &[1, 2, 3, 4, 5]);
    assert_eq!(with(7), with(7));
    assert_ne!(with(7), with(8));
}

#[test]
fn a_loss_drops_its_share_and_does_not_delay_the_rest() {
    let mut queue = DelayQueue::new(Treatment { loss: 0.3, ..treatment(0, 0, Order::Link) });
    let fates: Vec<Decision> = (0..10_000).map(|n| queue.arrived(n, packet(1, 1), 0)).collect();
    let lost = fates.iter().filter(|fate| **fate == Decision::Drop).count();
    assert!((2_800..3_200).contains(&lost), "{lost}");
    assert!(!fates.contains(&Decision::Delay));
}

#[test]
fn a_delay_of_payload_lets_handshakes_and_acknowledgements_pass() {
    let mut queue = DelayQueue::new(Treatment { part: DelayedPart::Payload, ..treatment(30, 30, Order::Link) });
    let end = Headers { ends: true, ..packet(1, 0) };
    assert_eq!(queue.arrived(0, packet(1, 0), 0), Decision::Pass, "opens");
    assert_eq!(queue.arrived(1, packet(1, 500), MS), Decision::Delay, "a write");
    assert_eq!(queue.arrived(2, packet(1, 0), 2 * MS), Decision::Pass, "an acknowledgement");
    assert_eq!(queue.arrived(3, end, 3 * MS), Decision::Delay, "the end");
    let left: Vec<u32> = std::iter::from_fn(|| queue.due(31 * MS)).map(|packet| packet.id).collect();
    assert_eq!(left, [1, 3]);
    assert_eq!(queue.arrived(4, end, 40 * MS), Decision::Pass, "the end of a connection without delayed packets");
}

#[test]
fn drain_returns_all_packets_in_order() {
    let mut queue = DelayQueue::new(treatment(0, 50, Order::Link));
    (0..50).for_each(|n| assert_eq!(queue.arrived(n, packet(1, 1), 0), Decision::Delay));
    let ids: Vec<u32> = queue.drain().iter().map(|packet| packet.id).collect();
    assert!(ids.is_sorted() && queue.next_due().is_none());
}

#[test]
fn idle_flows_are_forgotten() {
    let mut queue = DelayQueue::new(treatment(10, 10, Order::Connection));
    for n in 0..60_000u32 {
        let at = u64::from(n) * MS;
        queue.arrived(n, packet(n as u16, 1), at);
        while queue.due(at).is_some() {}
    }
    assert!(queue.last_due.len() <= FLOWS_MAX && queue.packets.len() < 20);
}

#[test]
fn packets_of_many_flows_keep_their_order() {
    let mut queue = DelayQueue::new(treatment(1, 50, Order::Connection));
    let flows = FLOWS_MAX as u16 + 1;
    let again = 0..50;
    for (id, port) in (0..).zip((0..flows).chain(again.clone())) {
        assert_eq!(queue.arrived(id, packet(port, 1), 0), Decision::Delay);
    }
    let ids: Vec<u32> = queue.drain().iter().map(|packet| packet.id).collect();
    let place = |id: u32| ids.iter().position(|other| *other == id);
    assert!(again.map(u32::from).all(|first| place(first) < place(u32::from(flows) + first)));
}
