//! Pairs: every two kinds of faults that the servers can have, together in one run, compared with the truth.
//!
//! A run has the flags of `harness run` and draws its targets in the same way, so one short command line repeats it. If
//! the servers have a leader, each fault of a pair also hits the leader, beside the usual targets of the other fault.

use anyhow::{Context, anyhow};
use clap::Parser;
use history::{ClusterKind, FaultKind, Plan};

use super::{seeds::Seeds, soundness::WithFaults};
use crate::{
    cli::{Cli, Command},
    explore::swarm::CorrectLock,
    scenario::Scenario,
};

/// The runs of one pair of faults on one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The two faults, as `--nemesis` names them.
    pub nemesis: String,
    /// The runs, compared with the truth.
    pub found: WithFaults,
}

impl Pair {
    /// Returns the smallest seed whose run is wrong or ended with an error.
    pub fn first_wrong(&self) -> Option<u64> {
        let failed = self.found.failed.iter().map(|error| &error.seed);
        self.found.wrong.iter().chain(failed).min().copied()
    }

    /// Returns the command line that repeats the run of a seed.
    pub fn command(&self, seed: u64) -> String {
        format!("{} --seed {seed}", command(self.found.sound, &self.nemesis))
    }

    /// Makes the plan of a seed.
    ///
    /// # Errors
    /// The plan cannot be run.
    pub fn plan(&self, seed: u64) -> Result<Plan, String> {
        scenario(self.found.sound, &self.nemesis).and_then(|of| of.plan(seed)).map_err(|e| format!("{e:#}"))
    }
}

/// The pairs of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairs {
    /// The lock.
    pub sound: CorrectLock,
    /// The pairs.
    pub pairs: Vec<Pair>,
    /// Kinds of faults that the servers cannot have, and the reason. No pair has such a fault.
    pub refused: Vec<(FaultKind, String)>,
}

impl Pairs {
    /// Runs `seeds` plans for each pair.
    ///
    /// # Errors
    /// Faults that are possible alone are refused as a pair.
    pub fn of(sound: CorrectLock, seeds: Seeds) -> anyhow::Result<Pairs> {
        let refusal = |nemesis: &str| scenario(sound, nemesis).and_then(|of| of.plan(0)).err();
        let (mut kinds, mut refused) = (Vec::new(), Vec::new());
        for kind in FaultKind::ALL {
            match refusal(kind.name()) {
                None => kinds.push(kind),
                Some(why) => refused.push((kind, format!("{why:#}"))),
            }
        }
        let may_hit_leader = |kind: FaultKind| refusal(&format!("{kind}:leader")).is_none();
        let pair = |nemesis: String| {
            let of = scenario(sound, &nemesis).with_context(|| format!("{sound}, --nemesis {nemesis}"))?;
            let plan = |seed| of.plan(seed).map_err(|e| format!("{e:#}"));
            let found = WithFaults::compared(sound, seeds, &plan);
            Ok(Pair { nemesis, found })
        };
        let pairs = words(&kinds, may_hit_leader).into_iter().map(pair).collect::<anyhow::Result<_>>()?;
        Ok(Pairs { sound, pairs, refused })
    }

    /// Adds up a figure of all pairs.
    pub fn sum(&self, figure: impl Fn(&WithFaults) -> u64) -> u64 {
        self.pairs.iter().map(|pair| figure(&pair.found)).sum()
    }

    /// Returns whether every alarm is true, and every overlap is reported or undecided.
    pub fn is_right(&self) -> bool {
        self.sum(|f| f.compared.overlaps) > 0 && self.pairs.iter().all(|pair| pair.found.compared.agrees())
    }
}

/// Lists the pairs, as `--nemesis` names them: with the usual targets, and with each fault that may hit the leader.
fn words(kinds: &[FaultKind], may_hit_leader: impl Fn(FaultKind) -> bool) -> Vec<String> {
    let mut all = Vec::new();
    for (n, one) in kinds.iter().enumerate() {
        for other in &kinds[n + 1..] {
            all.push(format!("{one},{other}"));
            if may_hit_leader(*one) {
                all.push(format!("{one}:leader,{other}"));
            }
            if may_hit_leader(*other) {
                all.push(format!("{one},{other}:leader"));
            }
        }
    }
    all
}

fn command(CorrectLock { backend, tokens }: CorrectLock, nemesis: &str) -> String {
    format!("harness run --cluster sim --backend {backend} --tokens {tokens} --nemesis {nemesis}")
}

/// Resolves the command line without its seed.
fn scenario(sound: CorrectLock, nemesis: &str) -> anyhow::Result<Scenario> {
    let line = command(sound, nemesis);
    match Cli::try_parse_from(line.split(' ')).with_context(|| line.clone())?.command {
        Command::Run(args) => Scenario::from_flags(&args.scenario, &args.program, ClusterKind::Sim, None),
        _ => Err(anyhow!("{line}: expected the command `run`")),
    }
}

#[cfg(test)]
mod tests {
    use history::Tokens;

    use super::*;
    use crate::{explore::sweep::SeedError, scenario::resolve, selftest::oracle::Comparison};

    const ETCD: CorrectLock = CorrectLock { backend: "etcd", tokens: Tokens::None };

    fn pair(nemesis: &str) -> Pair {
        let (compared, wrong, failed) = (Comparison::default(), Vec::new(), Vec::new());
        let found = WithFaults { sound: ETCD, runs: 10, compared, wrong, failed };
        Pair { nemesis: nemesis.to_owned(), found }
    }

    #[test]
    fn every_pair_of_kinds_is_listed_once_and_with_the_leader_where_it_may_be_hit() {
        let all = FaultKind::ALL;
        assert_eq!(words(&all, |_| false).len(), all.len() * (all.len() - 1) / 2);
        let some = [FaultKind::Pause, FaultKind::Kill, FaultKind::Loss];
        let expected = ["pause,kill", "pause,kill:leader", "pause,loss", "kill,loss", "kill:leader,loss"];
        assert_eq!(words(&some, |kind| kind == FaultKind::Kill), expected);
    }

    #[test]
    fn the_command_line_repeats_the_plan() {
        let pair = pair("loss,kill:leader");
        let line = pair.command(7);
        let Command::Run(args) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!("{line}") };
        let plan = pair.plan(7).unwrap();
        assert_eq!(resolve(&args, ClusterKind::Sim).unwrap().plan, plan);
        assert!(plan.schedule.iter().any(|step| step.target == history::Target::Leader), "{plan:?}");
        assert_ne!(pair.plan(8).unwrap().schedule, plan.schedule);
    }

    #[test]
    fn each_kind_of_fault_is_in_a_pair_or_refused_with_a_reason() {
        let seeds = Seeds { first: 0, count: 0, jobs: 1 };
        for sound in CorrectLock::all().unwrap() {
            let Pairs { pairs, refused, .. } = Pairs::of(sound, seeds).unwrap();
            let is_refused = |kind: &FaultKind| refused.iter().any(|(of, why)| of == kind && !why.is_empty());
            let is_in = |kind: &FaultKind| pairs.iter().any(|pair| pair.nemesis.contains(kind.name()));
            assert!(FaultKind::ALL.iter().all(|kind| is_refused(kind) != is_in(kind)), "{sound}: {refused:?}");
            let of_leader = pairs.iter().filter(|pair| pair.nemesis.contains(":leader")).count();
            assert_eq!(of_leader > 0, sound.backend.starts_with("etcd"), "{sound}");
        }
    }

    #[test]
    fn a_missed_overlap_or_an_unconfirmed_alarm_makes_the_row_wrong() {
        let row = |change: &dyn Fn(&mut Comparison)| {
            let mut pair = pair("pause,kill");
            pair.found.compared.overlaps = 3;
            change(&mut pair.found.compared);
            Pairs { sound: ETCD, pairs: vec![pair], refused: Vec::new() }.is_right()
        };
        assert!(row(&|_| ()));
        assert!(row(&|c| c.unexplained.push("seed 1: a window".into())));
        assert!(!row(&|c| c.missed.push("seed 1: an overlap".into())));
        assert!(!row(&|c| c.unconfirmed.push("seed 1: a window".into())));
        assert!(!row(&|c| c.overlaps = 0));
    }

    #[test]
    fn the_command_line_has_the_smallest_wrong_seed() {
        let mut pair = pair("pause,kill");
        assert_eq!(pair.first_wrong(), None);
        pair.found.wrong = vec![5, 9];
        pair.found.failed = vec![SeedError { seed: 3, why: "no event is left".into() }];
        assert_eq!(pair.first_wrong(), Some(3));
    }
}
