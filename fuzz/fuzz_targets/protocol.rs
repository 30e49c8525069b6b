//! A line of the protocols between the controller and its processes: commands to a worker, orders to the agent, the
//! agent's answers, and events. A line that is understood is written and understood again.

#![no_main]

use agent::protocol::{Answer, Order};
use history::{Event, Record, Report, Reports};
use libfuzzer_sys::fuzz_target;
use workloads::protocol::Command;

macro_rules! twice {
    ($of:ty, $bytes:expr) => {
        if let Ok(read) = serde_json::from_slice::<$of>($bytes) {
            let written = serde_json::to_string(&read).expect("a message that was read can be written");
            let again = serde_json::from_str::<$of>(&written);
            assert_eq!(again.expect("a message that was written can be read"), read, "{written}");
        }
    };
}

fuzz_target!(|bytes: &[u8]| {
    twice!(Command, bytes);
    twice!(Order, bytes);
    twice!(Answer, bytes);
    twice!(Event, bytes);
    twice!(Record, bytes);
    twice!(Report, bytes);
    let by_serde = serde_json::from_slice::<Report>(bytes).ok();
    assert_eq!(Reports::default().read(bytes).ok(), by_serde, "a line is read as serde reads it");
});
