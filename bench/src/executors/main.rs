//! Measures the executor and the links of the simulation beside Tokio with a paused clock and beside turmoil, on one
//! workload in one run: pairs of processes that play ping-pong.
//!
//! Each pair has one message under way at a time, and each message has a random latency. The links draw whole
//! microseconds, 60 to 250. Tokio's timers and the latencies of turmoil have whole milliseconds, so that workload has a
//! second form with a millisecond in the place of each microsecond: as many messages, in as many steps of time.

mod instructions;
mod paused_tokio;
mod turmoil_net;

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use harness_bench::{pinned::Pins, series::Series};
use nix::time::{ClockId, clock_gettime};
use sim::traffic::Traffic;

use crate::turmoil_net::Protocol;

// As the harness itself allocates.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the simulation's executor beside paused Tokio and turmoil
#[derive(Debug, Parser)]
#[command(name = "executors")]
struct Args {
    /// Rounds; in each round every contestant has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Pairs of processes
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=200))]
    pairs: u32,
    /// Messages of each pair
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    messages: u64,
    /// Seed of the latencies
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// The ticks of turmoil, in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 250],
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    ticks_ms: Vec<u64>,
    /// Count the instructions of a message too, by callgrind, which takes minutes
    #[arg(long)]
    instructions: bool,
    /// Play once: what the program starts itself with under callgrind
    #[arg(long, hide = true)]
    play: Option<String>,
}

/// The work of a contestant.
#[derive(Debug, Clone, Copy)]
struct Game {
    pairs: u32,
    /// Of each pair.
    messages: u64,
    seed: u64,
}

impl Game {
    /// The number of messages of all pairs.
    fn total(&self) -> u64 {
        u64::from(self.pairs) * self.messages
    }
}

/// One way to play.
#[derive(Debug, Clone, Copy)]
enum Contestant {
    /// The executor and the links of the simulation.
    Simulation,
    /// Tokio's current-thread runtime with a paused clock: the unit of its latencies.
    Tokio(Duration),
    /// Hosts of turmoil: the protocol, and the tick.
    Turmoil(Protocol, Duration),
}

impl Contestant {
    fn all(ticks_ms: &[u64]) -> Vec<Contestant> {
        let (us, ms) = (Duration::from_micros(1), Duration::from_millis(1));
        let mut all = vec![Contestant::Simulation, Contestant::Tokio(us), Contestant::Tokio(ms)];
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            all.extend(ticks_ms.iter().map(|tick| Contestant::Turmoil(protocol, ms * *tick as u32)));
        }
        all
    }

    fn title(self) -> String {
        match self {
            Contestant::Simulation => "simulation, latencies in µs".to_owned(),
            Contestant::Tokio(unit) => format!("paused Tokio, latencies in {}", &format!("{unit:?}")[1..]),
            Contestant::Turmoil(protocol, tick) => {
                let (protocol, tick) = (format!("{protocol:?}").to_uppercase(), tick.as_millis());
                format!("turmoil, {protocol}, latencies in ms, tick {tick} ms")
            }
        }
    }

    /// Plays, and makes sure that all messages have arrived.
    fn play(self, game: &Game) -> anyhow::Result<Traffic> {
        let traffic = match self {
            Contestant::Simulation => {
                sim::traffic::ping_pong(game.pairs, game.messages, game.seed).map_err(anyhow::Error::msg)
            }
            Contestant::Tokio(unit) => paused_tokio::ping_pong(game, unit),
            Contestant::Turmoil(protocol, tick) => turmoil_net::ping_pong(game, protocol, tick),
        };
        let traffic = traffic.with_context(|| self.title())?;
        ensure!(traffic.arrived == game.total(), "{}: {} of {} arrived", self.title(), traffic.arrived, game.total());
        Ok(traffic)
    }
}

/// CPU time of this process.
fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The least CPU time of a turn: short games are repeated, each with the next seed.
const TURN_MIN: Duration = Duration::from_millis(50);

/// Plays one turn. Returns the CPU time of a message, in nanoseconds, and the virtual time of the first game.
fn turn(contestant: Contestant, game: &Game) -> anyhow::Result<(f64, Duration)> {
    let (started, mut arrived, mut lasted) = (cpu(), 0, None);
    for seed in game.seed.. {
        let traffic = contestant.play(&Game { seed, ..*game })?;
        arrived += traffic.arrived;
        lasted.get_or_insert(traffic.lasted);
        if cpu() - started >= TURN_MIN {
            break;
        }
    }
    let spent = cpu() - started;
    Ok((spent.as_nanos() as f64 / arrived as f64, lasted.unwrap_or_default()))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let game = Game { pairs: args.pairs, messages: args.messages, seed: args.seed };
    let contestants = Contestant::all(&args.ticks_ms);
    if let Some(title) = &args.play {
        let contestant = contestants.into_iter().find(|contestant| contestant.title() == *title);
        return contestant.context("no contestant has this title")?.play(&game).map(|_| ());
    }
    Pins::new(false)?;
    let mut rows = vec![(Series::default(), Duration::ZERO); contestants.len()];
    for _ in 0..args.rounds {
        for (contestant, (costs, lasted)) in contestants.iter().zip(&mut rows) {
            let (cost, virtual_time) = turn(*contestant, &game)?;
            costs.push(cost);
            *lasted = virtual_time;
        }
    }
    println!(
        "{} pairs, {} messages each, seed {}, {} rounds: median (least to most) of the rounds",
        args.pairs, args.messages, args.seed, args.rounds
    );
    println!("| contestant | CPU ns a message | times ours | virtual time | messages |");
    println!("| --- | --- | --- | --- | --- |");
    let ours = rows[0].0.clone();
    for (contestant, (costs, lasted)) in contestants.iter().zip(&rows) {
        let (title, ratio, total) = (contestant.title(), costs.over(&ours), game.total());
        println!("| {title} | {costs} | {ratio} | {:.3} s | {total} |", lasted.as_secs_f64());
    }
    if args.instructions {
        instructions::print(&contestants, args.pairs, args.seed, &args.ticks_ms)?;
    }
    Ok(())
}
