//! `harness dose`: how probable, how long and how stale double-holder windows are, against the length of a fault.
//!
//! Each run has one fault at a moment that is drawn: a pause of whoever holds the key, or a jump of the wall clock of the only lock node. Holds are
//! busy for a tenth to nine tenths of their lease, so that the fault meets them at every age.

mod plot;
mod points;

use std::time::Duration;

use anyhow::Context;
use history::{
    Activity, Arm, ClockChange, ClusterKind, Comparison, Fault, FaultId, NodeName, Plan, Range, Step, Target, Tokens,
    When, WhichClock, Workload,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    cli::{ClusterArg, DoseArgs, DoseOf, Format},
    exit::{Exit, Unusable},
    explore::trial::trial,
    record::{Recorder, runtime},
    report::print,
    scenario::{PlanFile, named, usage},
};

pub use points::{Dose, Point};

/// The fault comes this long after the start: the key is contended by then, and the moment is no round number of anything.
const AT_MS: std::ops::RangeInclusive<u64> = 1_500..=4_500;

/// `harness dose`
pub fn dose(args: &DoseArgs) -> anyhow::Result<Exit> {
    let cluster = match args.cluster {
        ClusterArg::Docker => ClusterKind::Docker,
        ClusterArg::Sim => ClusterKind::Sim,
        ClusterArg::Auto => {
            return Err(usage("cluster", "a measurement says where it comes from: expected docker or sim"));
        }
    };
    if let Some(wrong) = args.ratios.iter().find(|r| !r.is_finite() || **r < 0.05 || **r > 100.0) {
        return Err(usage("ratios", format!("{wrong} is outside 0.05 to 100 leases")));
    }
    let runtime = runtime()?;
    let recorder = Recorder { runs: args.runs.clone(), keep: false, is_shown: false, is_instead: false };
    let mut dose = Dose::new(args, cluster);
    for &ratio in &args.ratios {
        let mut point = Point::new(ratio);
        for seed in args.seed..args.seed + args.seeds.get() {
            let plan = plan(args, cluster, ratio, seed);
            plan.validate().map_err(|e| Unusable(format!("{ratio} leases, seed {seed}: {e}")))?;
            let backend = plan.backend.clone();
            let verdicts = match cluster {
                ClusterKind::Sim => trial(&plan, &backend, None)?.verdicts,
                ClusterKind::Docker => {
                    let (run, images) = (String::new(), Default::default());
                    let file = named(PlanFile { run, backend, resource_bug: None, compose: None, images, plan })?;
                    recorder.once(&file, &runtime).with_context(|| format!("{ratio} leases, seed {seed}"))?.1.verdicts
                }
            };
            point.add(&verdicts);
        }
        if args.format == Format::Text {
            print(&dose.line(&point));
        }
        dose.points.push(point);
    }
    if args.format == Format::Json {
        print(&(serde_json::to_string_pretty(&dose)? + "\n"));
    }
    if let Some(path) = &args.svg {
        plot::draw(&dose, path).with_context(|| format!("drawing {}", path.display()))?;
    }
    Ok(Exit::Ok)
}

fn plan(args: &DoseArgs, cluster: ClusterKind, ratio: f64, seed: u64) -> Plan {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let length = args.lease.mul_f64(ratio);
    let at = Duration::from_millis(rng.random_range(AT_MS));
    let (backend, tokens, fault, target, kind) = match args.of {
        DoseOf::Pause => ("redlock", Tokens::TwoPhase, Fault::Pause { lasting: length }, Target::Holder, "pause"),
        DoseOf::Clock => {
            let change = ClockChange::JumpMs(length.as_millis() as i64);
            let fault = Fault::Clock { clock: WhichClock::Wall, change, lasting: length + args.lease };
            ("redis", Tokens::Counter, fault, Target::Node("redis-1".into()), "clock")
        }
    };
    let nodes = if args.of == DoseOf::Pause { 5 } else { 1 };
    Plan {
        schema: 1,
        seed,
        cluster,
        backend: backend.into(),
        tokens,
        time: at + length + 2 * args.lease,
        lease: args.lease,
        arms: vec![Arm::Off, Arm::Writes, Arm::Reads],
        fence: Comparison::Default,
        lock_nodes: (1..=nodes).map(|n| NodeName::new(format!("redis-{n}"))).collect(),
        workload: Workload {
            workers: 3,
            // Somebody always waits: a window is missed by nobody's absence.
            rate_per_s: 4.0 / args.lease.as_secs_f64(),
            work: Range { from: args.lease.mul_f64(0.1), to: args.lease.mul_f64(0.9) },
            ..Workload::default()
        },
        activity: Activity { holds: 1, clients: 1, refused: 0 },
        nemesis: vec![kind.into()],
        models: None,
        waits: Vec::new(),
        schedule: vec![Step { id: FaultId(1), fault, target, when: When::At(at) }],
    }
}
