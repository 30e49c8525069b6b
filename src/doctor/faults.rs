//! Tries each fault on real servers, in one run: the proof of its effect and of its heal are those of every run.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Parser;
use history::{ClusterKind, Event, FaultKind, FaultPhase, Record};

use super::finding::Finding;
use crate::{
    cli::{Cli, Command, DoctorArgs},
    docker::SETS_CLOCKS,
    plan_file::PlanFile,
    runner::{Runner, Runtime},
    scenario,
};

/// A step for each kind. At most two lock nodes have a fault at the same time, so the others remain a majority, and the
/// clients send packets.
const STEPS: [(FaultKind, &str); 12] = [
    (FaultKind::Pause, "pause:redis-1@1s+1s"),
    (FaultKind::Stop, "stop:redis-2@1s+1s"),
    (FaultKind::Slow, "slow:worker-1@3s+4s"),
    (FaultKind::Kill, "kill:redis-3@4s+1s"),
    (FaultKind::Partition, "partition:redis-4@4s+1500ms"),
    (FaultKind::Delay, "delay:redis-5@7s+1500ms"),
    (FaultKind::Loss, "loss:redis-1@7s+1500ms"),
    (FaultKind::Reorder, "reorder:redis-2@10s+1500ms"),
    (FaultKind::Clock, "clock:redis-3@10s+1500ms"),
    (FaultKind::Flap, "flap:redis-4@13s+2s"),
    (FaultKind::Amnesia, "amnesia:redis-5@13s+500ms"),
    (FaultKind::Powerloss, "powerloss:redis-1@16s+500ms"),
];
const FLAGS: &str = "harness run --cluster docker --backend redlock --workers 2 --rate 6 --time 18s --seed 1";

/// Tries all faults. A fault that this machine cannot have is left out, and the others are tried again.
///
/// # Errors
/// The user interrupted.
pub fn tried(args: &DoctorArgs, runtime: &Runtime) -> anyhow::Result<Vec<Finding>> {
    let (mut unable, machine) = (BTreeMap::new(), std::env::consts::ARCH);
    let runner = Runner::new(args.runs.clone());
    loop {
        let is_possible = |kind| !unable.contains_key(&kind) && impossible(kind, machine).is_none();
        let steps: Vec<&str> = STEPS.iter().filter(|(kind, _)| is_possible(*kind)).map(|(_, step)| *step).collect();
        if steps.is_empty() {
            return Ok(findings("the run of all faults", &unable, &BTreeMap::new(), machine));
        }
        let (dir, _) = match runner.run(&plan(&steps)?, runtime) {
            Ok(ran) => ran,
            Err(error) if error.is::<crate::exit::Interrupted>() => return Err(error),
            Err(error) => match error.chain().find_map(|cause| cause.downcast_ref()) {
                Some(compose::Error::Unable { kind, ability, why, .. }) => {
                    unable.insert(*kind, format!("{ability}: {why}"));
                    continue;
                }
                _ => {
                    let mut all = vec![Finding::fails("real servers", format!("{error:#}"), "see the message")];
                    all.extend(not_tried("the servers did not run"));
                    return Ok(all);
                }
            },
        };
        let records = history::Reader::open(&dir.history())?.collect::<Result<Vec<Record>, _>>()?;
        return Ok(findings(&dir.path().display().to_string(), &unable, &proofs(&records), machine));
    }
}

/// Returns why no run on such a machine can have the fault; none if one can.
fn impossible(kind: FaultKind, machine: &str) -> Option<String> {
    let is_impossible = kind == FaultKind::Clock && machine != SETS_CLOCKS;
    is_impossible.then(|| format!("it needs an x86-64 machine, and this one is {machine}"))
}

/// Returns the findings without an engine.
pub fn not_tried(why: &str) -> Vec<Finding> {
    FaultKind::ALL.into_iter().map(|kind| Finding::not_tried(kind.name(), why)).collect()
}

fn plan(steps: &[&str]) -> anyhow::Result<PlanFile> {
    let nemesis = steps.join(",");
    let cli = Cli::try_parse_from(FLAGS.split(' ').chain(["--nemesis", &nemesis])).context("the doctor's own run")?;
    let Command::Run(args) = cli.command else { unreachable!("`run` is its first word") };
    scenario::resolve(&args, ClusterKind::Docker)
}

/// The proof of a fault, as far as it was recorded.
#[derive(Debug, Default)]
struct Proof {
    effect: bool,
    heal: bool,
    unproved: Option<String>,
}

fn proofs(records: &[Record]) -> BTreeMap<FaultKind, Proof> {
    let mut all = BTreeMap::<FaultKind, Proof>::new();
    for record in records {
        let Event::Fault { kind, phase, .. } = &record.event else { continue };
        match phase {
            FaultPhase::Proved { .. } => all.entry(*kind).or_default().effect = true,
            FaultPhase::HealProved => all.entry(*kind).or_default().heal = true,
            FaultPhase::Unproved { why } => all.entry(*kind).or_default().unproved = Some(why.clone()),
            _ => {}
        }
    }
    all
}

fn findings(
    run: &str,
    unable: &BTreeMap<FaultKind, String>,
    proofs: &BTreeMap<FaultKind, Proof>,
    machine: &str,
) -> Vec<Finding> {
    let mut all = vec![Finding::works("real servers", run)];
    all.extend(FaultKind::ALL.into_iter().map(|kind| {
        let (name, mend) = (kind.name(), mend(kind));
        if let Some(why) = impossible(kind, machine) {
            return Finding::not_tried(name, &why);
        }
        if let Some(why) = unable.get(&kind) {
            return Finding::fails(name, why, mend);
        }
        match proofs.get(&kind) {
            Some(Proof { unproved: Some(why), .. }) => Finding::fails(name, format!("not proved: {why}"), mend),
            Some(Proof { effect: true, heal: true, .. }) => Finding::works(name, "effect and heal are proved"),
            Some(Proof { effect: true, .. }) => Finding::fails(name, "its heal is not proved", mend),
            _ => Finding::fails(name, "its effect is not proved", mend),
        }
    }));
    all
}

/// Returns the command or the setting that usually helps.
fn mend(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Partition | FaultKind::Flap => "sudo modprobe nf_tables",
        FaultKind::Delay | FaultKind::Loss | FaultKind::Reorder => "sudo modprobe nfnetlink_queue xt_NFQUEUE nf_tables",
        FaultKind::Clock => "let containers have SYS_PTRACE and SYS_ADMIN (an engine without user namespaces)",
        FaultKind::Powerloss => "sudo modprobe fuse",
        FaultKind::Slow => "a kernel with CPU quotas for cgroups (CONFIG_CFS_BANDWIDTH)",
        _ => "try again on a machine without other load, then read the run's report",
    }
}

#[cfg(test)]
mod tests {
    use history::{FaultId, Stamp};

    use super::*;
    use crate::doctor::finding::Outcome;

    #[test]
    fn every_fault_of_docker_is_tried_once_and_the_plan_is_possible() {
        assert!(FaultKind::ALL.into_iter().all(|kind| STEPS.iter().any(|(tried, _)| *tried == kind)));
        let steps = STEPS.map(|(_, step)| step);
        let plan = plan(&steps).unwrap().plan;
        let mut kinds: Vec<_> = plan.schedule.iter().map(|step| step.fault.kind()).collect();
        kinds.sort();
        kinds.dedup();
        assert_eq!((kinds.len(), plan.schedule.len()), (STEPS.len(), STEPS.len()));
    }

    #[test]
    fn only_a_proved_effect_with_a_proved_heal_works() {
        let event = |kind, phase| Record {
            seq: 0,
            process: "agent".into(),
            n: 0,
            at: Stamp(1),
            event: Event::Fault { fault: FaultId(1), kind, node: "redis-1".into(), phase },
        };
        let proved = FaultPhase::Proved { from: Stamp(1), to: Stamp(2) };
        let records = [
            event(FaultKind::Pause, proved.clone()),
            event(FaultKind::Pause, FaultPhase::HealProved),
            event(FaultKind::Kill, proved),
            event(FaultKind::Slow, FaultPhase::Unproved { why: "as fast as before".into() }),
        ];
        let unable = BTreeMap::from([(FaultKind::Clock, "no access".to_owned())]);
        let found = findings("runs/x", &unable, &proofs(&records), SETS_CLOCKS);
        let of = |kind: FaultKind| found.iter().find(|finding| finding.name == kind.name()).unwrap().outcome.clone();
        assert!(matches!(of(FaultKind::Pause), Outcome::Works { .. }));
        for (kind, word) in [
            (FaultKind::Kill, "heal"),
            (FaultKind::Slow, "as fast"),
            (FaultKind::Clock, "no access"),
            (FaultKind::Loss, "effect"),
        ] {
            assert!(matches!(of(kind), Outcome::Fails { why, .. } if why.contains(word)), "{kind:?}");
        }
    }

    #[test]
    fn on_another_machine_only_the_clock_is_left_out() {
        let left_out = |machine| FaultKind::ALL.into_iter().filter(|kind| impossible(*kind, machine).is_some()).count();
        assert_eq!((left_out("x86_64"), left_out("aarch64")), (0, 1));
        let found = findings("runs/x", &BTreeMap::new(), &BTreeMap::new(), "aarch64");
        let clock = found.iter().find(|finding| finding.name == "clock").unwrap();
        assert!(matches!(&clock.outcome, Outcome::NotTried { why } if why.contains("aarch64")), "{clock:?}");
    }
}
