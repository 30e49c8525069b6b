//! Plans and trials for tests.

use std::time::Duration;

use history::{
    Activity, Arm, ClusterKind, Comparison, Direction, Fault, FaultId, Plan, Range, Step, Tail, Target, Tokens, When,
    Workload, fault,
};

use super::{
    finding::Class,
    trial::{Fired, Trial},
};

/// Makes a plan with three workers, five nodes, and no faults.
pub fn plan() -> Plan {
    Plan {
        schema: 1,
        seed: 7,
        cluster: ClusterKind::Sim,
        backend: "redlock".into(),
        tokens: Tokens::TwoPhase,
        time: Duration::from_secs(10),
        lease: Duration::from_secs(1),
        arms: vec![Arm::Off, Arm::Writes],
        fence: Comparison::Default,
        resource: Default::default(),
        lock_nodes: (1..=5).map(|n| format!("redis-{n}").as_str().into()).collect(),
        servers: compose::ComposeFile::builtin("redlock").unwrap().facts,
        workload: Workload {
            workers: 3,
            rate_per_s: 12.0,
            work: Range { from: Duration::from_millis(20), to: Duration::from_millis(60) },
            ..Workload::default()
        },
        activity: Activity::default(),
        nemesis: Vec::new(),
        models: None,
        own_servers: Default::default(),
        program: None,
        waits: Vec::new(),
        schedule: Vec::new(),
    }
}

/// Makes a pause of worker-1.
pub fn paused_at(id: u32, when: When, lasting_ms: u64) -> Step {
    let fault = Fault::new(fault::Pause {}, Duration::from_millis(lasting_ms));
    Step { id: FaultId(id), fault, target: Target::Node("worker-1".into()), when }
}

/// Makes a partition that cuts a node off from other nodes after one second.
pub fn cut(id: u32, node: &str, from: &[&str], lasting_ms: u64) -> Step {
    let from = from.iter().map(|n| (*n).into()).collect();
    let (lasting, direction, cut) = (Duration::from_millis(lasting_ms), Direction::Out, history::CutMode::Drop);
    let fault = Fault::new(fault::Partition { cut }, lasting).on_links(direction, from);
    Step { id: FaultId(id), fault, target: Target::Node(node.into()), when: When::At(Duration::from_secs(1)) }
}

/// Makes a class of stale holders.
pub fn class(cause: &str) -> Class {
    Class { property: "lock".into(), kind: "stale-holder", causes: vec![cause.parse().unwrap()] }
}

/// Makes a trial with these violations.
pub fn trial(classes: impl IntoIterator<Item = Class>) -> Trial {
    Trial {
        classes: classes.into_iter().collect(),
        fired: Vec::new(),
        holds: 0,
        attempts: 0,
        messages: 0,
        lasted: Duration::ZERO,
        verdicts: checker::check(std::iter::empty(), Tail::Whole),
    }
}

/// Fires every step of a schedule at its time; random steps one after the other.
pub fn fired(plan: &Plan) -> Vec<Fired> {
    let mut after = Duration::ZERO;
    let fire = |step: &Step| {
        let at = match step.when {
            When::At(at) => at,
            When::AtPoint(_) | When::WhileWaits(_) | When::Healed(_) => Duration::from_secs(1),
            When::AfterHeal(gap) => {
                let at = after + gap;
                after = at + step.fault.lasting;
                at
            }
        };
        let node = match &step.target {
            Target::Node(node) => node.clone(),
            Target::Holder => "worker-2".into(),
            Target::Leader => plan.lock_nodes.first().cloned().unwrap_or_else(|| "etcd-1".into()),
        };
        Fired { id: step.id, node, at }
    };
    plan.schedule.iter().map(fire).filter(|f| f.at < plan.time).collect()
}
