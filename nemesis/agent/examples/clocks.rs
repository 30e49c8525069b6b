//! Moves the clocks of one process, whatever it runs, and puts them back: to see whether it goes by the clocks that can
//! be moved.
//!
//! Needs root: `cargo run -p agent --example clocks -- PID wall|monotonic|both MILLISECONDS [SECONDS]`. The clocks
//! jump, are left so for some seconds (5), and are healed. A monotonic clock stays ahead until the process ends.

use std::{error::Error, thread, time::Duration};

use agent::clock::Clocks;
use history::{ClockChange, WhichClock};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [pid, clock, by_ms, rest @ ..] = args.as_slice() else {
        return Err("expected PID wall|monotonic|both MILLISECONDS [SECONDS]".into());
    };
    let clock = match clock.as_str() {
        "wall" => WhichClock::Wall,
        "monotonic" => WhichClock::Monotonic,
        "both" => WhichClock::Both,
        other => return Err(format!("`{other}`: expected wall, monotonic or both").into()),
    };
    let lasting = Duration::from_secs(rest.first().map_or(Ok(5), |seconds| seconds.parse())?);
    let mut clocks = Clocks::of(pid.parse()?)?;
    clocks.change(clock, ClockChange::JumpMs(by_ms.parse()?))?;
    let moved = clocks.ahead();
    thread::sleep(lasting);
    // Whatever else goes wrong, they are put back first.
    clocks.heal()?;
    println!("moved:  {:?}\nhealed: {:?}", moved?, clocks.ahead()?);
    Ok(())
}
