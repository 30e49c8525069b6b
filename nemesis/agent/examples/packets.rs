//! Measures the cost of delaying packets: packets per second through a queue, and the delay in excess of the planned
//! delay.
//!
//! Needs root, and the programs of the tests: `cargo run --release -p agent --example packets [SECONDS]`. Datagrams
//! with a stamp of their own go from one network namespace to another at a steady rate, first with no fault, which is
//! the baseline, then through the queue of a fault. On a machine that is busy otherwise it measures that; `chrt -f 10`
//! before it puts the rest behind.

use std::{net::UdpSocket, sync::Arc, thread, time::Duration};

use agent::{
    net::PacketFaults,
    protocol::{DelayRange, DelayedPart, Links, PacketFault, PacketReport, PacketTally},
    stamp::monotonic_ns,
};
use history::{Direction, FaultId};
use nix::sys::socket::{
    setsockopt,
    sockopt::{RcvBufForce, SndBufForce},
};

#[allow(dead_code)]
#[path = "../tests/net/world.rs"]
mod world;

use world::World;

const BUFFER_BYTES: usize = 64 << 20;
const RATES_PER_S: [u64; 3] = [5_000, 20_000, 40_000];

fn main() {
    let seconds = std::env::args().nth(1).map_or(4, |given| given.parse().expect("seconds for each line"));
    let world = World::new(2);
    let links = Links { direction: Direction::Out, ..world.links() };
    let fixed = |us| DelayRange { from_us: us, to_us: us };
    let delay = |us| PacketFault::Delay { links: links.clone(), by: fixed(us), part: DelayedPart::All, seed: 1 };
    let cases: [(&str, u64, Option<PacketFault>); 5] = [
        ("no fault (baseline)", 0, None),
        ("queue, no delay", 0, Some(PacketFault::Loss { links: links.clone(), probability: 0.0, seed: 1 })),
        ("delay 1 ms", 1_000, Some(delay(1_000))),
        ("delay 100 ms", 100_000, Some(delay(100_000))),
        (
            "reorder 50 ms",
            50_000,
            Some(PacketFault::Reorder { links: links.clone(), by: fixed(50_000), within_connections: true, seed: 1 }),
        ),
    ];
    println!(
        "{:<22}{:>10}{:>10}{:>12}{:>12}{:>12}{:>10}",
        "", "sent/s", "lost", "p50 us", "p99 us", "max us", "overrun"
    );
    println!("(latency beyond the delay that was asked for, at a receiver of its own)");
    for rate in RATES_PER_S {
        for (name, delay_us, fault) in &cases {
            let (mut added_ns, sent, tally) = one(&world, fault.as_ref(), *delay_us * 1000, rate, seconds);
            added_ns.sort_unstable();
            let at = |share: f64| added_ns[((added_ns.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
            let lost = sent - added_ns.len();
            println!(
                "{name:<22}{:>10}{lost:>10}{:>12.1}{:>12.1}{:>12.1}{:>10}",
                sent as u64 / seconds,
                at(0.5),
                at(0.99),
                at(1.0),
                tally.overrun
            );
        }
    }
}

/// Returns the time that each packet took beyond the delay, the number of packets sent, and the counts of the fault.
fn one(
    world: &World,
    fault: Option<&PacketFault>,
    delay_ns: u64,
    rate: u64,
    seconds: u64,
) -> (Vec<i64>, usize, PacketTally) {
    let (from, to) = (world.target().udp(), world.peer().udp());
    // A delayed packet counts against the send buffer: the default buffer has room for 277 such datagrams.
    setsockopt(&from, SndBufForce, &BUFFER_BYTES).expect("room to send");
    setsockopt(&to, RcvBufForce, &BUFFER_BYTES).expect("room to receive");
    let address = to.local_addr().expect("its address");
    let report = |_, packets: &[PacketReport]| drop(std::hint::black_box(packets.to_vec()));
    let mut faults = PacketFaults::new(Arc::new(report));
    if let Some(fault) = fault {
        faults.inject(FaultId(1), world.target().pid(), fault).expect("a fault");
    }
    let receiving = thread::spawn(move || receive(&to, delay_ns));
    let mut sent = 0;
    let start = monotonic_ns();
    loop {
        let due = start + sent as u64 * 1_000_000_000 / rate;
        let now = monotonic_ns();
        if now > start + seconds * 1_000_000_000 {
            break;
        }
        match due.checked_sub(now) {
            // Sleeping is coarse; packets then leave in small bursts, as they do from a busy host.
            Some(early) if early > 0 => thread::sleep(Duration::from_nanos(early)),
            _ => {
                from.send_to(&monotonic_ns().to_ne_bytes(), address).expect("sent");
                sent += 1;
            }
        }
    }
    let added = receiving.join().expect("what arrived");
    (added, sent, faults.heal(FaultId(1)).expect("healed"))
}

fn receive(to: &UdpSocket, delay_ns: u64) -> Vec<i64> {
    let mut buffer = [0; 8];
    let arrivals = std::iter::from_fn(|| {
        to.recv(&mut buffer).ok().map(|_| (monotonic_ns() - u64::from_ne_bytes(buffer)) as i64 - delay_ns as i64)
    });
    arrivals.collect()
}
