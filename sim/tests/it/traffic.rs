//! Ping-pong between pairs of processes.

use std::time::Duration;

use sim::traffic::{LATENCY_US, ping_pong};

#[test]
fn all_messages_arrive_after_times_that_only_the_seed_decides() {
    let [one, same, other] = [7, 7, 8].map(|seed| ping_pong(3, 100, seed).expect("all messages arrive"));
    assert_eq!((one.arrived, other.arrived), (300, 300));
    assert_eq!(one, same);
    assert_ne!(one.lasted, other.lasted);
    let range = [LATENCY_US.start(), LATENCY_US.end()].map(|us| Duration::from_micros(*us) * 100);
    assert!(range[0] < one.lasted && one.lasted < range[1], "{:?}", one.lasted);
}
