//! Entry points for the fuzz targets in `fuzz/`: inputs that only the program reads.

use std::{path::Path, time::Duration};

use checker::Checker;
use history::{ClusterKind, Plan};

use crate::{plan_file::PlanFile, suite};

/// Parses a plan, writes it and parses it again. A small plan that the simulation takes is run there and judged.
pub fn plan(text: &str) {
    let Ok(file) = PlanFile::parse(text, "fuzz", Some(ClusterKind::Sim)) else { return };
    let written = file.to_toml().expect("a plan that was read can be written");
    let again = PlanFile::parse(&written, "fuzz", None).expect("a plan that was written can be read");
    assert_eq!(again, file);
    if !is_small(&file.plan) {
        return;
    }
    let Ok(file) = file.ready() else { return };
    let mut checker = Checker::new();
    // A plan that cannot be run ends with an error.
    if sim::simulate(&file.setup(), &mut |record| checker.feed(record)).is_ok() {
        drop(checker.finish(history::Tail::Whole));
    }
}

/// Returns whether a plan is run within milliseconds.
fn is_small(plan: &Plan) -> bool {
    let of = &plan.workload;
    let clients = of.workers.saturating_mul(of.clients_per_worker);
    let is_short = |time: Duration| time <= Duration::from_secs(4);
    let is_rare = |time: Option<Duration>| time.is_none_or(|time| time >= Duration::from_millis(10));
    is_short(plan.time)
        && clients <= 4
        && of.rate_per_s <= 20.0
        && of.keys <= 10
        && of.writes <= 5
        && plan.lock_nodes.len() <= 5
        && is_rare(of.renew)
        && is_rare(of.resend)
        && of.retry_delay.from >= Duration::from_millis(1)
        && plan.schedule.len() <= 20
        && plan.schedule.iter().all(|step| is_short(step.fault.lasting))
}

/// Parses a suite with its expectations, witnesses and plans.
pub fn suite(text: &str) {
    for cluster in [ClusterKind::Sim, ClusterKind::Docker] {
        drop(suite::parse(text, Path::new("suites/fuzz.toml"), cluster));
    }
}
