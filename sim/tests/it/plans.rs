//! Plans for tests.

use std::time::Duration;

use history::{Activity, Arm, ClusterKind, Comparison, Plan, Range, Record, ServerFacts, Tokens, Workload};
use nemesis::Draw;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sim::{Setup, simulate};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A busy plan of this backend with these faults, drawn from the seed.
pub fn plan(backend: &str, nemesis: &str, seed: u64) -> Plan {
    let (facts, prefix, nodes) = match backend {
        "redis" => (include_str!("../../../tests/shared/servers/redis.json"), "redis", 1),
        "redlock" => (include_str!("../../../tests/shared/servers/redlock.json"), "redis", 5),
        "etcd" => (include_str!("../../../tests/shared/servers/etcd.json"), "etcd", 3),
        "etcd-server-lock" => (include_str!("../../../tests/shared/servers/etcd-server-lock.json"), "etcd", 3),
        other => panic!("no facts about {other}"),
    };
    let servers: ServerFacts = serde_json::from_str(facts).expect("facts");
    let tokens = servers.tokens[0];
    let mut plan = Plan {
        schema: 1,
        seed,
        cluster: ClusterKind::Sim,
        backend: backend.into(),
        tokens,
        time: Duration::from_secs(10),
        lease: Duration::from_secs(1),
        arms: simulated_arms(tokens),
        fence: Comparison::Default,
        resource: Default::default(),
        lock_nodes: (1..=nodes).map(|n| format!("{prefix}-{n}").as_str().into()).collect(),
        servers,
        workload: Workload {
            workers: 3,
            rate_per_s: 12.0,
            work: Range { from: ms(20), to: ms(80) },
            retry_delay: Range { from: ms(20), to: ms(60) },
            ..Workload::default()
        },
        activity: Activity::default(),
        nemesis: vec![nemesis.into()],
        models: None,
        own_servers: Default::default(),
        program: None,
        waits: Vec::new(),
        schedule: Vec::new(),
    };
    let wishes = nemesis::parse(nemesis).expect("wishes");
    let workers: Vec<_> = plan.workers().collect();
    let of = Draw {
        specs: &wishes,
        time: plan.time,
        lease: plan.lease,
        workers: &workers,
        lock_nodes: &plan.lock_nodes.clone(),
        resource: plan.resource,
    };
    plan.schedule = nemesis::draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).expect("a schedule");
    plan.validate().expect("a valid plan");
    plan
}

/// The whole history of a plan.
pub fn history(plan: &Plan, backend: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let setup = Setup { run: "test", plan, backend, resource_bug: None, redraw: None, with_truth: false };
    simulate(&setup, &mut |record| records.push(record)).expect("it runs to its end");
    records
}

/// All arms that the simulation has with these tokens.
fn simulated_arms(tokens: Tokens) -> Vec<Arm> {
    let is_possible = |arm: &Arm| *arm != Arm::Guard && (tokens != Tokens::None || !arm.fences());
    Arm::ALL.into_iter().filter(is_possible).collect()
}
