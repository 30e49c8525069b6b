//! `harness selftest`: the harness against itself, in the simulation.
//!
//! Three tables. Every planted bug is caught, and on the same plans its correct twin is not. Correct locks without faults raise no alarm. With
//! all faults every alarm is true, and what is true is alarmed, by an oracle that knows what really happened.

mod bugs;
mod hunt;
mod oracle;
mod report;
mod seeds;
mod shape;
mod soundness;
mod trial;

use std::thread;

use anyhow::anyhow;

use self::{
    hunt::{Hunt, Hunted},
    report::Report,
    seeds::{Seeds, across},
    soundness::{Faulty, Quiet, SOUND},
};
use crate::{
    cli::{Format, SelftestArgs},
    exit::{Exit, Unusable},
    report::{Terminal, print},
};

/// Seeds of each lock, unless told otherwise: all of them, and a few.
const SEEDS: u64 = 10_000;
const SEEDS_SHORT: u64 = 200;
/// The same for the twins of planted bugs.
const TWINS: u64 = 200;
const TWINS_SHORT: u64 = 10;

/// `harness selftest`
pub fn selftest(args: &SelftestArgs) -> anyhow::Result<Exit> {
    let jobs = args.jobs.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let count = args.seeds.unwrap_or(if args.short { SEEDS_SHORT } else { SEEDS });
    if count == 0 {
        return Err(Unusable("--seeds: there must be at least one".into()).into());
    }
    let seeds = Seeds { count, jobs };
    let twins = Seeds { count: (if args.short { TWINS_SHORT } else { TWINS }).min(count), jobs };
    let terminal = Terminal::new(|_| String::new(), false);
    let is_meant = |name: &str| args.only.as_ref().is_none_or(|word| name.contains(word));
    let mut report = Report::default();
    let hunts: Vec<&Hunt> = Hunt::all().iter().filter(|hunt| is_meant(&hunt.name())).collect();
    terminal.progress(&format!("{} planted bugs", hunts.len()));
    report.bugs = hunted(&hunts, twins)?;
    for sound in SOUND.into_iter().filter(|sound| is_meant(&sound.to_string())) {
        let name = format!("{sound}, no faults");
        terminal.progress(&format!("{name}: {count} seeds"));
        report.quiet.push(Quiet::of(sound, seeds).map_err(|e| anyhow!("{name}: {e}"))?);
        let name = format!("{sound}, all faults");
        terminal.progress(&format!("{name}: {count} seeds"));
        report.faulty.push(Faulty::of(sound, seeds).map_err(|e| anyhow!("{name}: {e}"))?);
    }
    if let Some(dir) = &args.save {
        report.save(dir)?;
    }
    match args.format {
        Format::Text => print(&report.text()),
        Format::Json => print(&format!("{:#}\n", report.json())),
    }
    Ok(if report.is_right() { Exit::Ok } else { Exit::Violated })
}

/// Each hunt on a thread of its own.
fn hunted(hunts: &[&Hunt], Seeds { count, jobs }: Seeds) -> anyhow::Result<Vec<Hunted>> {
    let run = |n: u64| {
        let hunt = hunts[n as usize];
        Ok(Hunted::of(hunt, Seeds { count, jobs: 1 }).map_err(|e| anyhow!("planted bug {}: {e}", hunt.name())))
    };
    let rows = across(Seeds { count: hunts.len() as u64, jobs }, &run).map_err(|e| anyhow!("planted bugs: {e}"))?;
    rows.into_iter().map(|(_, row)| row).collect()
}
