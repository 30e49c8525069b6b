use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;

struct TestPacket;

fn packet() -> TestPacket {
    TestPacket
}

#[test]
fn a_heal_delivers_late_packets_in_the_order_in_which_they_were_sent() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    let ms = |n: u64| Stamp(n * 1_000_000);
    link.slow(FaultId(1), Duration::from_secs(30).into());
    link.slow(FaultId(2), Duration::from_millis(20).into());
    for sent in [1, 2, 50].map(ms) {
        assert!(matches!(link.send(sent, packet(), &mut rng), Sent::Late(at) if at >= ms(30_020)));
    }
    assert!(link.arrived(ms(30_000)).is_empty() && link.heal(ms(60), FaultId(3)).is_empty());
    // The second fault still delays the third packet.
    let arrivals = link.heal(ms(60), FaultId(1));
    let [first, second] = arrivals[..] else { panic!("{arrivals:?}") };
    assert!(first == ms(60) && (ms(70)..ms(71)).contains(&second), "{arrivals:?}");
    let arrived = |link: &mut Link<TestPacket>, now| {
        let delivered = link.arrived(now).into_iter();
        delivered.map(|delivered| delivered.delayed).collect::<Vec<_>>()
    };
    assert_eq!(arrived(&mut link, first), [1, 2].map(|sent| vec![(FaultId(1), ms(sent))]));
    assert_eq!(link.heal(ms(65), FaultId(2)), [ms(65)]);
    let Sent::Arrives(next, _) = link.send(ms(65), packet(), &mut rng) else { panic!("in time") };
    assert!(next > ms(65) && next < ms(66), "no packet waits for a delay that is over");
    assert_eq!(arrived(&mut link, ms(65)), [vec![(FaultId(2), ms(50))]]);
    assert!(link.faults.is_none());
}

/// Sends a packet and has it sent again until it arrives: when it does, and how often it was sent again.
fn delivered(link: &mut Link<TestPacket>, now: Stamp, rng: &mut ChaCha8Rng) -> (Stamp, u32) {
    let mut due = match link.send(now, packet(), rng) {
        Sent::Arrives(at, _) | Sent::Late(at) => return (at, 0),
        Sent::RetransmittedAt(due) => due,
        Sent::Waits => panic!("nothing was sent before it that has not arrived"),
        Sent::Rejected(_) => panic!("nothing rejects it"),
    };
    for times in 1.. {
        match link.retransmit(due, rng) {
            Retransmitted::Again(next) => due = next,
            Retransmitted::Delivered(Delivered { at, .. }) | Retransmitted::Late(at) => return (at, times),
            Retransmitted::Rejected => panic!("nothing rejects it"),
            Retransmitted::Nothing => panic!("it was lost"),
        }
    }
    unreachable!("it is sent again for ever")
}

#[test]
fn of_a_link_with_loss_the_share_is_lost_again_and_again_with_back_off() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    link.lose(FaultId(1), 30);
    let mut sent_again = [0_u32; 12];
    let mut now = Stamp(0);
    for _ in 0..10_000 {
        let (at, times) = delivered(&mut link, now, &mut rng);
        let waited = RETRANSMIT_AFTER * (2_u32.pow(times) - 1);
        assert!((waited..waited + Duration::from_millis(1)).contains(&at.since(now)), "{times} times");
        sent_again[times as usize] += 1;
        now = at;
    }
    let [none, once, twice, ..] = sent_again;
    assert!((6_800..7_200).contains(&none), "{sent_again:?}");
    assert!((1_950..2_250).contains(&once) && (550..710).contains(&twice), "{sent_again:?}");
    let lost = (0..10_000).filter(|_| link.probe(&mut rng).is_none()).count();
    assert!((2_800..3_200).contains(&lost), "of probes as many: {lost}");
    link.heal(now, FaultId(1));
    assert!((0..1_000).all(|_| link.probe(&mut rng).is_some() && delivered(&mut link, now, &mut rng).1 == 0));
}

#[test]
fn what_is_sent_after_a_packet_that_was_lost_by_chance_waits_for_it_and_is_told_as_held() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    link.lose(FaultId(7), 100);
    let Sent::RetransmittedAt(due) = link.send(Stamp(5), packet(), &mut rng) else { panic!("lost") };
    link.heal(Stamp(6), FaultId(7));
    assert!(matches!(link.send(Stamp(6), packet(), &mut rng), Sent::Waits));
    let Retransmitted::Delivered(delivered) = link.retransmit(due, &mut rng) else { panic!("open") };
    assert_eq!((delivered.packets.len(), delivered.delayed), (2, vec![(FaultId(7), Stamp(5))]));
}

#[test]
fn delays_that_are_drawn_differ_and_let_nothing_overtake_inside_a_connection() {
    let (mut links, mut rng) = ([Link::default(), Link::default()], ChaCha8Rng::seed_from_u64(1));
    let (from, to) = (Duration::from_millis(10), Duration::from_millis(80));
    let (mut last, mut overtaken, mut late) = ([Stamp(0); 2], 0, Vec::new());
    links.iter_mut().for_each(|link| link.slow(FaultId(1), LinkDelay::Drawn(history::Range { from, to })));
    for n in 0..1_000 {
        let now = Stamp(n * 1_000_000);
        let arrivals = links.each_mut().map(|link| match link.send(now, packet(), &mut rng) {
            Sent::Late(at) => at,
            _ => panic!("late"),
        });
        assert!(arrivals.iter().zip(last).all(|(at, last)| *at >= last), "in order inside each");
        // The one of the first connection was sent before that of the second, and after the last one of it.
        overtaken += u32::from(arrivals[1] < arrivals[0]);
        late.extend(links[0].probe(&mut rng));
        last = arrivals;
    }
    assert!((300..700).contains(&overtaken), "{overtaken} times");
    let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
    assert!(*least >= from && *least < from + Duration::from_millis(1), "{least:?}");
    assert!(*most <= to + Duration::from_millis(1) && *most > to - Duration::from_millis(1), "{most:?}");
}

#[test]
fn a_lost_packet_comes_with_a_retransmission_and_holds_up_those_behind_it() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    let ms = |n: u64| Stamp(n * 1_000_000);
    link.cut(FaultId(7), CutMode::Drop);
    let Sent::RetransmittedAt(first) = link.send(ms(0), packet(), &mut rng) else { panic!("lost") };
    assert_eq!(first, ms(200));
    assert!(!link.is_stale());
    let Retransmitted::Again(second) = link.retransmit(first, &mut rng) else { panic!("still cut") };
    assert!(second == ms(600) && link.is_stale());
    link.heal(ms(500), FaultId(7));
    assert!(matches!(link.send(ms(500), packet(), &mut rng), Sent::Waits), "open, but one is missing");
    let Retransmitted::Delivered(delivered) = link.retransmit(second, &mut rng) else { panic!("open") };
    assert_eq!((delivered.packets.len(), delivered.delayed), (2, vec![(FaultId(7), ms(0))]));
    assert!(delivered.at > second && matches!(link.retransmit(delivered.at, &mut rng), Retransmitted::Nothing));
    assert!(!link.is_stale());
}

#[test]
fn each_fault_that_loses_or_delays_a_packet_has_its_own_part_of_the_delay() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    let ms = |n: u64| Stamp(n * 1_000_000);
    link.lose(FaultId(1), 100);
    let Sent::RetransmittedAt(first) = link.send(ms(0), packet(), &mut rng) else { panic!("lost") };
    link.heal(ms(50), FaultId(1));
    link.cut(FaultId(2), CutMode::Drop);
    let Retransmitted::Again(second) = link.retransmit(first, &mut rng) else { panic!("cut") };
    let Retransmitted::Again(third) = link.retransmit(second, &mut rng) else { panic!("still cut") };
    assert_eq!([first, second, third], [200, 600, 1_400].map(ms));
    link.heal(ms(1_000), FaultId(2));
    link.slow(FaultId(3), Duration::from_millis(20).into());
    link.slow(FaultId(4), Duration::from_secs(3).into());
    let Retransmitted::Late(at) = link.retransmit(third, &mut rng) else { panic!("late") };
    let arrived = link.arrived(at);
    let [delivered] = &arrived[..] else { panic!("{} arrivals", arrived.len()) };
    let parts = [(1, 0), (2, 200), (3, 1_400), (4, 1_420)].map(|(fault, since)| (FaultId(fault), ms(since)));
    assert_eq!(delivered.delayed, parts);
}

#[test]
fn a_wait_for_the_packet_ahead_is_due_to_its_faults() {
    let (ms, mut waits) = (Duration::from_millis, 0);
    for seed in 0..20 {
        let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(seed));
        link.slow(FaultId(1), LinkDelay::Drawn(history::Range { from: Duration::ZERO, to: ms(1_000) }));
        link.slow(FaultId(2), ms(20).into());
        for sent in [0, 1] {
            assert!(matches!(link.send(Stamp::default().plus(ms(sent)), packet(), &mut rng), Sent::Late(_)));
        }
        let arrived = link.arrived(Stamp(u64::MAX));
        let [ahead, Delivered { at, delayed, .. }] = &arrived[..] else { panic!("{} arrivals", arrived.len()) };
        waits += u32::from(*at == ahead.at);
        assert!(delayed.is_sorted_by_key(|(_, since)| *since), "{delayed:?}");
        let ends = delayed.iter().skip(1).map(|(_, since)| *since).chain([*at]);
        let of_second = delayed.iter().zip(ends).filter(|((fault, _), _)| *fault == FaultId(2));
        let length: Duration = of_second.map(|((_, since), until)| until.since(*since)).sum();
        // The second fault delays each of the two packets by 20 ms.
        assert!((ms(20)..ms(41)).contains(&length), "{delayed:?} until {at:?}");
    }
    assert!((3..18).contains(&waits), "{waits} times");
}

#[test]
fn a_packet_that_is_rejected_ends_its_connection_and_a_cable_that_is_broken_as_well_tells_nobody() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    link.cut(FaultId(7), CutMode::Reject);
    assert!(matches!(link.send(Stamp(0), packet(), &mut rng), Sent::Rejected(_)));
    assert!(link.is_cut() && link.probe(&mut rng).is_none());
    link.cut(FaultId(8), CutMode::Drop);
    let Sent::RetransmittedAt(due) = link.send(Stamp(1), packet(), &mut rng) else { panic!("lost") };
    assert!(matches!(link.retransmit(due, &mut rng), Retransmitted::Again(_)));
    link.heal(due, FaultId(7));
    link.heal(due, FaultId(8));
    assert!(!link.is_cut());
}

#[test]
fn a_packet_that_waits_is_rejected_when_it_is_retransmitted() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    link.cut(FaultId(7), CutMode::Drop);
    let Sent::RetransmittedAt(due) = link.send(Stamp(0), packet(), &mut rng) else { panic!("lost") };
    assert!(matches!(link.send(Stamp(1), packet(), &mut rng), Sent::Waits));
    link.cut(FaultId(8), CutMode::Reject);
    link.heal(Stamp(2), FaultId(7));
    assert!(matches!(link.retransmit(due, &mut rng), Retransmitted::Rejected));
    link.heal(due, FaultId(8));
    assert!(matches!(link.retransmit(due, &mut rng), Retransmitted::Nothing), "none waits");
    assert!(matches!(link.send(due, packet(), &mut rng), Sent::Arrives(..)));
}

#[test]
fn a_connection_that_was_reset_retransmits_nothing() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    let ms = |n: u64| Stamp(n * 1_000_000);
    link.cut(FaultId(7), CutMode::Drop);
    let Sent::RetransmittedAt(first) = link.send(ms(0), packet(), &mut rng) else { panic!("lost") };
    link.reset();
    let Sent::RetransmittedAt(second) = link.send(ms(100), packet(), &mut rng) else { panic!("lost") };
    link.heal(ms(100), FaultId(7));
    assert!(matches!(link.retransmit(first, &mut rng), Retransmitted::Nothing));
    assert!(matches!(link.retransmit(second, &mut rng), Retransmitted::Delivered(_)));
}

#[test]
fn a_packet_is_sent_again_at_least_every_two_minutes() {
    let (mut link, mut rng) = (Link::default(), ChaCha8Rng::seed_from_u64(1));
    link.lose(FaultId(1), 100);
    let Sent::RetransmittedAt(mut due) = link.send(Stamp(0), packet(), &mut rng) else { panic!("it is lost") };
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let Retransmitted::Again(next) = link.retransmit(due, &mut rng) else { panic!("it is lost again") };
        longest = longest.max(next.since(due));
        due = next;
    }
    assert_eq!(longest, RETRANSMIT_MAX);
}
