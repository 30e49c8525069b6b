//! `harness dose`: measures how often and for how long two clients hold the lock, by the length of a fault.
//!
//! Each run has one fault at a random time: a pause of the holder, or a jump of the wall clock of the only lock node.
//! The work under a hold takes a tenth to nine tenths of the lease, so that the fault meets holds of every age.

mod plot;
mod series;

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use history::{
    Activity, ClockChange, ClusterKind, Fault, FaultId, MadeBy, Plan, Range, Step, Target, When, WhichClock, fault,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    cli::{DoseArgs, DoseOf, Format},
    exit::{Exit, usage},
    explore::trial::trial,
    made_by::Making,
    plan_file::PlanFile,
    report::print,
    runner::{Runner, runtime},
    scenario::Scenario,
    suite::can_be_seeds,
};

pub use plot::{legend, svg};
pub use series::{Measurement, Series};

/// The time of the fault after the start, in milliseconds. Clients contend for the key by then.
const AT_MS: std::ops::RangeInclusive<u64> = 1_500..=4_500;

/// `harness dose`. The command is inconclusive if no run counts.
pub fn dose(args: &DoseArgs) -> anyhow::Result<Exit> {
    let cluster = args.cluster;
    if let Some(wrong) = args.ratios.iter().find(|r| !r.is_finite() || **r < 0.05 || **r > 100.0) {
        return Err(usage("ratios", format!("{wrong} is outside 0.05 to 100 leases")));
    }
    can_be_seeds(args.seed, args.seeds.get())?;
    let end = args.seed + args.seeds.get();
    if let Some(path) = &args.svg {
        can_be_drawn(path).with_context(|| format!("--svg: writing {}", path.display()))?;
    }
    let runtime = runtime()?;
    let runner = Runner::new(args.runs.clone());
    let (mut series, mut printed) = (Series::new(args, cluster), Ok(()));
    for &ratio in &args.ratios {
        let mut measurement = Measurement::new(ratio);
        for seed in args.seed..end {
            let plan = plan(args, ratio, seed).with_context(|| format!("{ratio} leases, seed {seed}"))?;
            let backend = plan.backend.clone();
            let file = PlanFile::new(String::new(), backend, None, plan);
            let verdicts = match cluster {
                ClusterKind::Sim => {
                    if series.made_by.is_none() {
                        series.made_by = Some(Making::begin(&file, &file.to_toml()?).facts().origin());
                    }
                    trial(&file.plan, &file.backend, None)?.verdicts
                }
                ClusterKind::Docker => {
                    let run = runner.run(&file.ready()?, &runtime);
                    let (_, judged) = run.with_context(|| format!("{ratio} leases, seed {seed}"))?;
                    series.made_by = series.made_by.or_else(|| judged.made_by.as_ref().map(MadeBy::origin));
                    judged.verdicts
                }
            };
            measurement.add(&verdicts);
        }
        if args.format == Format::Text {
            printed = print(&series.line(&measurement));
        }
        series.points.push(measurement);
        if printed.is_err() {
            break;
        }
    }
    // The plot is drawn also if nothing can be printed: a full output must not take hours of runs with it.
    if args.format == Format::Json {
        printed = print(&(serde_json::to_string_pretty(&series)? + "\n"));
    }
    if let Some(path) = &args.svg {
        let drawn = svg(&series).and_then(|svg| Ok(std::fs::write(path, svg)?));
        drawn.with_context(|| format!("drawing {}", path.display()))?;
    }
    printed.map(|()| series.exit())
}

/// Checks that a file can be written, before hours of runs for it. A file that is there stays as it is.
fn can_be_drawn(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if found.is_file() => File::options().append(true).open(path).map(drop),
        // A pipe whose reader comes later cannot be opened yet.
        Ok(_) => Ok(()),
        // The plot makes the target of the link.
        Err(_) if path.is_symlink() => Ok(()),
        Err(_) => File::create_new(path).and_then(|_| fs::remove_file(path)),
    }
}

/// Makes the plan of one run: three clients contend for one key, and one fault of `ratio` leases comes at a random
/// time.
fn plan(args: &DoseArgs, ratio: f64, seed: u64) -> anyhow::Result<Plan> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let length = args.lease.mul_f64(ratio);
    let at = Duration::from_millis(rng.random_range(AT_MS));
    let (backend, fault, target) = match args.of {
        DoseOf::Pause => ("redlock", Fault::new(fault::Pause {}, length), Target::Holder),
        DoseOf::Clock => {
            let change = ClockChange::JumpMs(length.as_millis() as i64);
            let fault = Fault::new(fault::Clock { clock: WhichClock::Wall, change }, length + args.lease);
            ("redis", fault, Target::Node("redis-1".into()))
        }
    };
    let mut scenario = Scenario::of(backend)?;
    let plan = &mut scenario.base;
    plan.cluster = args.cluster;
    plan.time = at + length + 2 * args.lease;
    plan.lease = args.lease;
    plan.workload.workers = 3;
    // A client waits at every time, so that each lapse of the lock gives a window.
    plan.workload.rate_per_s = 4.0 / args.lease.as_secs_f64();
    plan.workload.work = Range { from: args.lease.mul_f64(0.1), to: args.lease.mul_f64(0.9) };
    plan.activity = Activity { holds: 1, clients: 1, refused: 0 };
    plan.schedule = vec![Step { id: FaultId(1), fault, target, when: When::At(at) }];
    scenario.plan(seed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(flags: &str) -> DoseArgs {
        let parsed = Cli::try_parse_from(format!("harness dose {flags}").split(' ')).unwrap();
        let Command::Dose(args) = parsed.command else { panic!("{flags}") };
        args
    }

    #[test]
    fn the_seed_of_each_run_decides_when_its_fault_comes() {
        for of in ["pause", "clock"] {
            let at = |first: u64, ratio: f64, seed: u64| {
                let plan = plan(&args(&format!("{of} --seed {first}")), ratio, seed).unwrap();
                assert_eq!(plan.seed, seed);
                let [Step { when: When::At(at), .. }] = plan.schedule[..] else { panic!("{:?}", plan.schedule) };
                u64::try_from(at.as_millis()).unwrap()
            };
            let times: BTreeSet<u64> = (1..=50).map(|seed| at(1, 1.0, seed)).collect();
            assert!(times.len() > 40 && times.iter().all(|at| AT_MS.contains(at)), "{of}: {times:?}");
            // Neither the first seed of the series nor the length of the fault changes the time.
            assert_eq!(at(7, 0.5, 20), at(1, 1.0, 20), "{of}");
        }
    }

    #[test]
    fn the_work_takes_a_tenth_to_nine_tenths_of_the_chosen_lease() {
        let ms = Duration::from_millis;
        for of in ["pause", "clock"] {
            for (lease, from, to) in [("500ms", 50, 450), ("2s", 200, 1_800), ("4s", 400, 3_600)] {
                let plan = plan(&args(&format!("{of} --lease {lease}")), 1.0, 1).unwrap();
                assert_eq!((plan.workload.work.from, plan.workload.work.to), (ms(from), ms(to)), "{of} {lease}");
            }
        }
    }

    #[test]
    fn a_lease_that_no_plan_can_have_is_refused_by_its_flag() {
        for flags in ["pause --lease 0s", "pause --lease 20us", "clock --lease 20us", "clock --lease 11m"] {
            let refused = plan(&args(flags), 1.0, 1).unwrap_err().to_string();
            assert!(refused.starts_with("--lease: ") && refused.contains("50ms to 10m"), "{flags}: {refused}");
        }
    }

    #[test]
    fn a_plot_that_cannot_be_written_is_refused_before_the_runs() {
        let dir = tempfile::tempdir().unwrap();
        let [new, old, missing] = ["new.svg", "old.svg", "missing/new.svg"].map(|name| dir.path().join(name));
        fs::write(&old, "<svg/>").unwrap();
        can_be_drawn(&new).and_then(|()| can_be_drawn(&old)).unwrap();
        assert!(!new.exists() && fs::read_to_string(&old).unwrap() == "<svg/>");
        for path in [missing.as_path(), dir.path()] {
            let refused = dose(&args(&format!("pause --svg {}", path.display()))).unwrap_err().to_string();
            assert_eq!(refused, format!("--svg: writing {}", path.display()));
        }
    }

    #[test]
    fn seeds_beyond_the_largest_seed_are_refused_before_the_runs() {
        for first in [u64::MAX, (1 << 53) - 1] {
            let refused = dose(&args(&format!("pause --seed {first} --seeds 3"))).unwrap_err();
            assert_eq!(Exit::of(&refused), Exit::Usage);
            let expected = format!("--seed: 3 seeds from {first} on pass 2^53");
            assert!(refused.to_string().starts_with(&expected), "{refused}");
        }
        assert!(can_be_seeds((1 << 53) - 2, 3).is_ok());
    }
}
