//! From what each process reported to one history, in some order in which it could have been recorded.

use std::time::Duration;

use history::{
    Activity, ClientKind, ClusterKind, Comparison, Event, Fault, NodeName, Plan, ProcessName, Range, Record, Stamp,
    Step, Target, Tokens, When, Workload, fault,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    knobs::{self, Knobs},
    lock::LEASE,
    world::{UNIT_NS, World},
};

fn units(n: u64) -> Duration {
    Duration::from_nanos(n * UNIT_NS)
}

/// The plan of a world.
pub fn plan(k: &Knobs) -> Plan {
    let faults = k.faults();
    let schedule = faults.iter().map(|&(id, kill, len, _)| Step {
        id,
        fault: if kill { Fault::new(fault::Kill {}, units(len)) } else { Fault::new(fault::Pause {}, units(len)) },
        target: Target::Holder,
        when: match k.point {
            Some((point, _)) => When::AtPoint(point),
            None => When::AfterHeal(units(1)),
        },
    });
    let schedule: Vec<_> = schedule.collect();
    Plan {
        schema: 1,
        seed: k.seed,
        cluster: ClusterKind::Docker,
        backend: if k.nodes == 1 { "redis".into() } else { "redlock".into() },
        tokens: if k.tokens == knobs::Tokens::None { Tokens::None } else { Tokens::Counter },
        time: Duration::from_secs(2),
        lease: units(LEASE),
        arms: k.arms.clone(),
        fence: if k.strict { Comparison::Strict } else { Comparison::Default },
        resource: Default::default(),
        lock_nodes: (1..=k.nodes).map(|n| NodeName::new(format!("redis-{n}"))).collect(),
        servers: serde_json::from_str(include_str!("../../../../tests/shared/servers/redlock.json")).unwrap(),
        workload: Workload {
            workers: u32::try_from(k.workers).unwrap(),
            clients_per_worker: u32::try_from(k.per_worker).unwrap(),
            keys: u32::try_from(k.keys).unwrap(),
            rate_per_s: 10.0,
            work: Range { from: units(k.work.0), to: units(k.work.1) },
            retry_delay: Range { from: units(k.retry.0), to: units(k.retry.1) },
            client: if k.checking { ClientKind::Checking } else { ClientKind::Unchecked },
            renew: k.renew.map(units),
            ..Workload::default()
        },
        activity: Activity { holds: k.activity.0, clients: k.activity.1, refused: k.activity.2 },
        nemesis: schedule.iter().map(|s| s.fault.kind().name().to_owned()).collect(),
        models: None,
        own_servers: Default::default(),
        program: None,
        waits: Vec::new(),
        schedule,
    }
}

/// One history of `world`; another `seed` is another order of recording, and nothing else.
pub fn records(world: &World, seed: u64) -> Vec<Record> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let controller = ProcessName::new("controller");
    let mut all = vec![(
        controller.clone(),
        Stamp(0),
        Event::Plan { run: format!("seed-{}", world.k.seed), plan: Box::new(plan(&world.k)), made_by: None },
    )];
    let mut heads = vec![0; world.processes.len()];
    let mut open: Vec<usize> = (0..world.processes.len()).collect();
    while !open.is_empty() {
        let slot = rng.random_range(0..open.len());
        let p = open[slot];
        for _ in 0..rng.random_range(1..=6) {
            let process = &world.processes[p];
            let Some((at, event)) = process.reported.get(heads[p]) else {
                let code = if process.alive { Some(0) } else { Some(137) };
                let ended = Event::ProcessEnded { ended: process.name.clone(), code };
                all.push((controller.clone(), Stamp(0), ended));
                open.swap_remove(slot);
                break;
            };
            heads[p] += 1;
            all.push((process.name.clone(), super::stamp(*at), event.clone()));
        }
    }
    all.push((controller, Stamp(0), Event::End));
    number(all)
}

/// Numbers what was reported: in the history, and within each process.
pub fn number(all: Vec<(ProcessName, Stamp, Event)>) -> Vec<Record> {
    let mut own = std::collections::BTreeMap::new();
    let records = all.into_iter().enumerate().map(|(seq, (process, at, event))| {
        let n = own.entry(process.clone()).or_insert(0_u64);
        let record = Record { seq: seq as u64, process, n: *n, at, event };
        *n += 1;
        record
    });
    records.collect()
}
