use super::*;

const MS: u64 = 1_000_000;

fn treatment(from_ms: u64, to_ms: u64, order: Order) -> Treatment {
    let by = DelayRange { from_us: from_ms * 1000, to_us: to_ms * 1000 };
    Treatment { by, loss: 0.0, order, held: HeldPart::All, seed: 42 }
}

fn packet(port: u16, payload_bytes: u32) -> Headers {
    let from = SocketAddrV4::new([10, 0, 0, 1].into(), port);
    Headers { from, to: "10.0.0.2:6379".parse().unwrap(), payload_bytes, ends: false }
}

/// Packets 0, 1, … arrive a millisecond apart, from these ports; in what order, and how late, do they leave?
fn through(treatment: Treatment, ports: &[u16]) -> Vec<(u32, u64)> {
    let mut hold = Hold::new(treatment);
    for (id, port) in ports.iter().enumerate() {
        assert_eq!(hold.arrived(id as u32, packet(*port, 10), id as u64 * MS), Decision::Keep);
    }
    let mut left = Vec::new();
    while let Some(due) = hold.next_due() {
        assert_eq!(hold.due(due - 1), None, "nothing leaves early");
        let held = hold.due(due).expect("one is due");
        left.push((held.id, due - held.held_ns));
    }
    left
}

fn disorder(left: &[(u32, u64)]) -> usize {
    left.windows(2).filter(|pair| pair[0].0 > pair[1].0).count()
}

#[test]
fn a_fixed_delay_makes_each_packet_late_by_exactly_that() {
    let left = through(treatment(30, 30, Order::Link), &[1, 2, 1, 3]);
    assert_eq!(left, [(0, 30 * MS), (1, 30 * MS), (2, 30 * MS), (3, 30 * MS)]);
}

#[test]
fn a_delay_keeps_the_order_of_a_link_and_a_reordering_only_that_of_a_connection() {
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
fn delays_of_lonely_packets_fill_the_range_and_never_leave_it() {
    let mut hold = Hold::new(treatment(10, 20, Order::Link));
    let mut late: Vec<u64> = (0..1000)
        .map(|n| {
            hold.arrived(n, packet(1, 1), u64::from(n) * 1000 * MS);
            let due = hold.next_due().unwrap();
            hold.due(due).map(|held| due - held.held_ns).unwrap()
        })
        .collect();
    late.sort_unstable();
    assert!(late[0] >= 10 * MS && late[999] <= 20 * MS);
    assert!(late[100] < 12 * MS && late[900] > 18 * MS, "{} {}", late[100], late[900]);
}

#[test]
fn equal_seeds_draw_equal_fates_and_others_do_not() {
    let with = |seed| through(Treatment { seed, ..treatment(0, 50, Order::Connection) }, &[1, 2, 3, 4, 5]);
    assert_eq!(with(7), with(7));
    assert_ne!(with(7), with(8));
}

#[test]
fn a_loss_drops_its_share_and_lets_the_rest_pass_at_once() {
    let mut hold = Hold::new(Treatment { loss: 0.3, ..treatment(0, 0, Order::Link) });
    let fates: Vec<Decision> = (0..10_000).map(|n| hold.arrived(n, packet(1, 1), 0)).collect();
    let lost = fates.iter().filter(|fate| **fate == Decision::Drop).count();
    assert!((2_800..3_200).contains(&lost), "{lost}");
    assert!(!fates.contains(&Decision::Keep));
}

#[test]
fn held_to_its_payload_a_connection_opens_and_acknowledges_freely_and_ends_behind_its_writes() {
    let mut hold = Hold::new(Treatment { held: HeldPart::Payload, ..treatment(30, 30, Order::Link) });
    let end = Headers { ends: true, ..packet(1, 0) };
    assert_eq!(hold.arrived(0, packet(1, 0), 0), Decision::Pass, "opens");
    assert_eq!(hold.arrived(1, packet(1, 500), MS), Decision::Keep, "a write");
    assert_eq!(hold.arrived(2, packet(1, 0), 2 * MS), Decision::Pass, "an acknowledgement");
    assert_eq!(hold.arrived(3, end, 3 * MS), Decision::Keep, "the end");
    let left: Vec<u32> = std::iter::from_fn(|| hold.due(31 * MS)).map(|held| held.id).collect();
    assert_eq!(left, [1, 3]);
    assert_eq!(hold.arrived(4, end, 40 * MS), Decision::Pass, "the end of a connection of which nothing is held");
}

#[test]
fn letting_go_gives_everything_back_in_order() {
    let mut hold = Hold::new(treatment(0, 50, Order::Link));
    (0..50).for_each(|n| assert_eq!(hold.arrived(n, packet(1, 1), 0), Decision::Keep));
    let ids: Vec<u32> = hold.let_go().iter().map(|held| held.id).collect();
    assert!(ids.is_sorted() && hold.next_due().is_none());
}

#[test]
fn ways_that_have_run_empty_are_forgotten() {
    let mut hold = Hold::new(treatment(10, 10, Order::Connection));
    for n in 0..60_000u32 {
        let at = u64::from(n) * MS;
        hold.arrived(n, packet(n as u16, 1), at);
        while hold.due(at).is_some() {}
    }
    assert!(hold.last_due.len() <= WAYS_MAX && hold.held.len() < 20);
}
