//! `harness selftest`: tests the checker in the simulation.
//!
//! The result has five tables. The checker catches every planted bug, and raises no alarm on the correct twin with the
//! same plans. It raises no alarm on correct locks without faults. With faults every alarm is true, and every true
//! overlap is reported; an oracle knows the truth from the simulation. The same holds for each pair of faults. A swarm,
//! which knows nothing of the planted bugs, finds them too.

mod bugs;
mod build;
mod hunt;
mod oracle;
mod pairs;
mod report;
mod seeds;
mod soundness;
mod swarm_hunt;
mod trial;

use std::{collections::BTreeSet, thread};

use anyhow::anyhow;

use self::{
    bugs::HUNTS,
    hunt::{Hunt, HuntResult},
    pairs::Pairs,
    report::{Report, SCHEDULES},
    seeds::{Seeds, across},
    soundness::{WithFaults, WithoutFaults},
    swarm_hunt::SwarmResult,
};
use crate::{
    cli::{Format, SelftestArgs, SelftestTable},
    exit::{Exit, usage},
    explore::swarm::CorrectLock,
    report::{Terminal, print},
    run_dir::can_be_written,
    similar::similar,
    suite::can_be_seeds,
};

/// Default seeds of each lock, without and with `--short`.
const SEEDS: u64 = 10_000;
const SEEDS_SHORT: u64 = 200;
/// Default seeds of the twins of planted bugs.
const TWINS: u64 = 200;
const TWINS_SHORT: u64 = 10;
/// Default seeds of each pair of faults.
const PAIRS: u64 = 200;
const PAIRS_SHORT: u64 = 1;
/// Default schedules of a swarm search with `--short`, and default searches for each planted bug.
const SCHEDULES_SHORT: u64 = 100;
const SEARCHES: u64 = 5;

/// `harness selftest`
pub fn selftest(args: &SelftestArgs) -> anyhow::Result<Exit> {
    let jobs = args.jobs.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let count = args.seeds.unwrap_or(if args.short { SEEDS_SHORT } else { SEEDS });
    counts_something(args)?;
    can_be_seeds(args.seed, count)?;
    args.save.iter().try_for_each(|dir| can_be_written(dir))?;
    let seeds = Seeds { first: args.seed, count, jobs };
    let twins = Seeds { first: 0, count: (if args.short { TWINS_SHORT } else { TWINS }).min(count), jobs };
    let terminal = Terminal::new(|_| String::new(), false);
    let has = |table: SelftestTable| args.table.is_none_or(|only| only == table);
    let is_meant = |name: &str| args.only.as_ref().is_none_or(|word| name.contains(word));
    let mut report = Report::default();
    let hunts: Vec<&Hunt> = HUNTS.iter().filter(|hunt| is_meant(&hunt.name())).collect();
    let locks = CorrectLock::all()?;
    let uses_locks = has(SelftestTable::Locks) || has(SelftestTable::Pairs);
    let uses_hunts = has(SelftestTable::Planted) || has(SelftestTable::Swarm);
    let bugs = HUNTS.iter().map(Hunt::name).filter(|_| uses_hunts);
    let names: Vec<String> = bugs.chain(locks.iter().map(ToString::to_string).filter(|_| uses_locks)).collect();
    if let Some(word) = args.only.as_ref().filter(|_| !names.iter().any(|name| is_meant(name))) {
        let words = names.iter().flat_map(|name| name.split([',', ' ', '/'])).filter(|word| !word.is_empty());
        let words: BTreeSet<&str> = words.collect();
        return Err(usage("only", format!("no row's name contains `{word}`{}", similar(word, words))));
    }
    if has(SelftestTable::Planted) {
        terminal.progress(&format!("{} planted bugs", hunts.len()));
        report.bugs = hunted(&hunts, twins)?;
    }
    let locks: Vec<CorrectLock> = locks.into_iter().filter(|sound| is_meant(&sound.to_string())).collect();
    for sound in locks.iter().copied().filter(|_| has(SelftestTable::Locks)) {
        let name = format!("{sound}, no faults");
        terminal.progress(&format!("{name}: {count} seeds"));
        report.quiet.push(WithoutFaults::of(sound, seeds));
        let name = format!("{sound}, all faults");
        terminal.progress(&format!("{name}: {count} seeds"));
        report.faulty.push(WithFaults::of(sound, seeds));
    }
    let usual = if args.short { PAIRS_SHORT } else { PAIRS };
    // In a self-test of all tables, many seeds are for the locks: there are more than a hundred pairs.
    let of_pairs = if args.table == Some(SelftestTable::Pairs) { args.seeds } else { None };
    let seeds = Seeds { count: of_pairs.unwrap_or(usual.min(count)), ..seeds };
    for sound in locks.into_iter().filter(|_| has(SelftestTable::Pairs)) {
        terminal.progress(&format!("{sound}, pairs of faults: {} seeds each", seeds.count));
        report.pairs.push(Pairs::of(sound, seeds)?);
    }
    if has(SelftestTable::Swarm) {
        let most = args.schedules.unwrap_or(if args.short { SCHEDULES_SHORT } else { SCHEDULES });
        let count = args.searches.unwrap_or(if args.short { 1 } else { SEARCHES });
        terminal.progress(&format!("swarms: {} planted bugs, {count} searches of {most} schedules", hunts.len()));
        report.swarm =
            SwarmResult::all(&hunts, most, Seeds { first: 0, count, jobs }, &|found| terminal.progress(found))
                .map_err(|e| anyhow!("swarms: {e}"))?;
    }
    // Printed first: a full disk must not hide the tables. Saved also if nothing can be printed.
    let printed = match args.format {
        Format::Text => print(&report.text()),
        Format::Json => print(&format!("{:#}\n", report.json())),
    };
    if let Some(dir) = &args.save {
        report.save(dir)?;
    }
    printed?;
    Ok(report.exit())
}

/// Refuses a number of nothing, and a number that the only table does not have.
fn counts_something(args: &SelftestArgs) -> anyhow::Result<()> {
    use SelftestTable::{Locks, Pairs, Planted, Swarm};
    // A first seed of 0 is the default.
    let first = Some(args.seed).filter(|seed| *seed > 0);
    let flags = [
        ("seed", first, &[Locks, Pairs][..]),
        ("seeds", args.seeds, &[Planted, Locks, Pairs][..]),
        ("schedules", args.schedules, &[Swarm][..]),
        ("searches", args.searches, &[Swarm][..]),
    ];
    for (flag, given, tables) in flags {
        if given == Some(0) {
            return Err(usage(flag, "there must be at least one"));
        }
        if given.is_some() && args.table.is_some_and(|only| !tables.contains(&only)) {
            return Err(usage(flag, "has no effect on this table; leave the flag out"));
        }
    }
    Ok(())
}

/// Runs each hunt on its own thread.
fn hunted(hunts: &[&Hunt], Seeds { count, jobs, .. }: Seeds) -> anyhow::Result<Vec<HuntResult>> {
    let run = |n: u64| {
        let hunt = hunts[n as usize];
        Ok(HuntResult::of(hunt, Seeds { first: 0, count, jobs: 1 })
            .map_err(|e| anyhow!("planted bug {}: {e}", hunt.name())))
    };
    let rows =
        across(Seeds { first: 0, count: hunts.len() as u64, jobs }, &run).map_err(|e| anyhow!("planted bugs: {e}"))?;
    rows.into_iter().map(|(_, row)| row).collect()
}
