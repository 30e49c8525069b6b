use super::*;
use crate::{
    ClockChange, Direction, Fault, FaultId, LeaseClock, LinkDelay, Persistence, Point, Promise, Range, ServerModel,
    Target, Topology, Until, WaitId, When, WhichClock, fault,
};

mod limits;

/// The facts about the servers of a backend.
pub(crate) fn servers(backend: &str) -> ServerFacts {
    let text = match backend {
        "etcd" => include_str!("../../../tests/shared/servers/etcd.json"),
        _ => include_str!("../../../tests/shared/servers/redlock.json"),
    };
    serde_json::from_str(text).unwrap()
}

pub(crate) fn plan() -> Plan {
    Plan {
        schema: 1,
        seed: 42,
        cluster: ClusterKind::Docker,
        backend: "redlock".into(),
        tokens: Tokens::TwoPhase,
        time: Duration::from_secs(30),
        lease: Duration::from_secs(2),
        arms: Arm::ALL.into_iter().filter(|arm| *arm != Arm::Guard).collect(),
        fence: Comparison::Default,
        resource: Default::default(),
        lock_nodes: vec!["redis-1".into()],
        servers: servers("redlock"),
        workload: Workload { workers: 2, renew: Some(Duration::from_millis(1500)), ..Workload::default() },
        activity: Activity::default(),
        nemesis: vec!["pause".into()],
        models: None,
        own_servers: Default::default(),
        program: None,
        waits: Vec::new(),
        schedule: vec![
            Step {
                id: FaultId(1),
                fault: Fault::new(fault::Pause {}, Duration::from_millis(3_250)),
                target: Target::Holder,
                when: When::AfterHeal(Duration::from_millis(731)),
            },
            Step {
                id: FaultId(2),
                fault: Fault::new(fault::Kill {}, Duration::from_secs(1)),
                target: Target::Node("worker-2".into()),
                when: When::AtPoint(Point::BeforeWrite),
            },
        ],
    }
}

#[test]
fn a_plan_survives_toml_and_json() {
    let (plan, some) = (plan(), |ms| Some(Duration::from_millis(ms)));
    let without = Plan { workload: Workload { renew: None, ..plan.workload.clone() }, ..plan.clone() };
    // No field has the value with which a file leaves it out.
    let workload = Workload {
        renew_for: some(1),
        writes: 2,
        resend: Some(Duration::from_nanos(3_000_001)),
        cancel: some(4),
        deadline: some(5),
        reenter: 6,
        locks_per_section: 7,
        opposite: true,
        patience: some(8),
        session: true,
        readers: 0.001,
        hierarchy: 0.002,
        ..plan.workload.clone()
    };
    let with_all = Plan { workload, ..plan.clone() };
    for plan in [plan, without, with_all] {
        assert_eq!(Plan::from_toml(&plan.to_toml().unwrap()).unwrap(), plan);
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
    }
}

#[test]
fn readers_in_a_shared_session_are_refused_whether_drawn_or_scripted() {
    let (from, every) = (Duration::from_secs(1), Duration::from_millis(100));
    let (worker, reads) = ("worker-1".into(), Some(true));
    let part = crate::Scripted { worker, from, sections: 1, every, writes: None, reads, attempts: None };
    let session = Workload { session: true, ..plan().workload };
    let drawn = Workload { readers: 0.5, ..session.clone() };
    let scripted = Workload { script: vec![part], ..session.clone() };
    assert_eq!(Plan { workload: session, ..plan() }.validate(), Ok(()));
    for workload in [drawn, scripted] {
        let refused = Plan { workload, ..plan() }.validate().unwrap_err();
        assert!(refused.field == "readers" && refused.problem.contains("shared session"), "{refused}");
    }
}

fn with_fault(fault: &str) -> String {
    let mut text = Plan { schedule: Vec::new(), cluster: ClusterKind::Sim, ..plan() }.to_toml().unwrap();
    text = text.replace("schedule = []\n", "");
    text + &format!("[[schedule]]\nid = 1\nfault = {{ {fault} }}\ntarget = \"holder\"\nwhen = {{ at = \"1s\" }}\n")
}

#[test]
fn faults_of_links_are_read_and_written_and_a_delay_is_a_duration_or_a_range() {
    let ms = Duration::from_millis;
    let (lasting, direction, from) = (ms(1_000), Direction::Both, Vec::new());
    let (fixed, range) = (LinkDelay::Fixed(ms(20)), Range { from: ms(10), to: ms(50) });
    let table = [
        (
            r#"kind = "delay", for = "1s", by = "20ms""#,
            Fault::new(fault::Delay { by: fixed }, lasting).on_links(direction, vec![]),
        ),
        (
            r#"kind = "delay", for = "1s", by = { from = "10ms", to = "50ms" }"#,
            Fault::new(fault::Delay { by: LinkDelay::Drawn(range) }, lasting).on_links(direction, vec![]),
        ),
        (
            r#"kind = "loss", for = "1s", percent = 30"#,
            Fault::new(fault::Loss { percent: 30 }, lasting).on_links(direction, vec![]),
        ),
        (
            r#"kind = "reorder", for = "1s", by = { from = "10ms", to = "50ms" }"#,
            Fault::new(fault::Reorder { by: range }, lasting).on_links(direction, from),
        ),
    ];
    for (written, fault) in table {
        let plan = Plan::from_toml(&with_fault(written)).unwrap();
        assert_eq!((&plan.schedule[0].fault, plan.validate()), (&fault, Ok(())));
        let again = plan.to_toml().unwrap();
        assert_eq!(Plan::from_toml(&again).unwrap(), plan);
        assert!(!written.contains("20ms") || again.contains("by = \"20ms\"\n"), "as it was written: {again}");
    }
    let message = Plan::from_toml(&with_fault(r#"kind = "delay", for = "1s", by = "20""#)).unwrap_err().to_string();
    assert!(message.contains("a duration such as `20ms`, or a range"), "{message}");
}

#[test]
fn a_fault_of_links_that_could_not_be_shown_is_refused() {
    for (fault, why) in [
        (r#"kind = "loss", for = "1s", percent = 0"#, "outside 1 to 100"),
        (r#"kind = "loss", for = "1s", percent = 101"#, "outside 1 to 100"),
        (r#"kind = "delay", for = "1s", by = "999us""#, "cannot be told"),
        (r#"kind = "delay", for = "1s", by = { from = "2ms", to = "1ms" }"#, "upside down"),
        (r#"kind = "reorder", for = "1s", by = { from = "2ms", to = "2ms" }"#, "overtake nothing"),
        (r#"kind = "reorder", for = "1s", by = { from = "2ms", to = "1ms" }"#, "upside down"),
        (r#"kind = "reorder", for = "1s", by = { from = "1us", to = "999us" }"#, "cannot be told"),
        (r#"kind = "reorder", for = "1s", by = { from = "1ms", to = "61m" }"#, "too long"),
    ] {
        let plan = Plan::from_toml(&with_fault(fault)).unwrap();
        let refused = plan.validate().unwrap_err();
        assert!(refused.field == "nemesis" && refused.problem.contains(why), "{refused}");
    }
}

#[test]
fn stops_slow_nodes_and_strobes_are_read_and_written() {
    let lasting = Duration::from_secs(1);
    let strobe = ClockChange::Strobe { by_ms: -4_000, every_ms: 100 };
    for (written, fault) in [
        (r#"kind = "stop", for = "1s""#, Fault::new(fault::Stop {}, lasting)),
        (r#"kind = "slow", for = "1s", percent = 10"#, Fault::new(fault::Slow { percent: 10 }, lasting)),
        (r#"kind = "slow", for = "1s""#, Fault::new(fault::Slow { percent: fault::Slow::PERCENT_MIN }, lasting)),
        (
            r#"kind = "clock", clock = "wall", for = "1s", change = { strobe = { by-ms = -4000, every-ms = 100 } }"#,
            Fault::new(fault::Clock { clock: WhichClock::Wall, change: strobe }, lasting),
        ),
    ] {
        let plan = Plan::from_toml(&with_fault(written)).unwrap();
        assert_eq!((&plan.schedule[0].fault, plan.validate()), (&fault, Ok(())));
        assert_eq!(Plan::from_toml(&plan.to_toml().unwrap()).unwrap(), plan);
    }
}

#[test]
fn counters_are_taken_over_from_other_lock_nodes_that_have_some() {
    let amnesia = |of: &str| {
        let text = with_fault(&format!(r#"kind = "amnesia", back_after = "1s", counters_of = [{of}]"#));
        let mut plan = Plan::from_toml(&text).unwrap();
        plan.schedule[0].target = Target::Node("redis-1".into());
        plan.lock_nodes.push("redis-2".into());
        plan
    };
    let plan = amnesia(r#""redis-2""#);
    assert_eq!((plan.validate(), Plan::from_toml(&plan.to_toml().unwrap()).unwrap()), (Ok(()), plan.clone()));
    let persistence = |persistence| Some(Models { persistence, ..Models::default() });
    let logged = Plan { models: persistence(Persistence::Always), ..plan.clone() };
    let on = |servers| Plan { servers, ..plan.clone() };
    let keeping = on(ServerFacts { kill_forgets: false, ..servers("redlock") });
    let of_another_kind = on(ServerFacts { lease_clock: LeaseClock::Monotonic, ..servers("redlock") });
    let saved = Plan { models: persistence(Persistence::Snapshot), ..plan };
    assert_eq!(saved.validate(), Ok(()));
    for (plan, why) in [
        (amnesia(r#""redis-1""#), "`redis-1` is no other lock node"),
        (amnesia(r#""redis-2", "worker-1""#), "`worker-1` is no other lock node"),
        (logged, "append-only"),
        (keeping, "only a Redis takes over counters"),
        (of_another_kind, "only a Redis takes over counters"),
    ] {
        let refused = plan.validate().unwrap_err();
        assert!(refused.field == "nemesis" && refused.problem.contains(why), "{refused}");
    }
}

#[test]
fn a_strobe_or_a_quota_that_cannot_be_done_is_refused() {
    let strobe = |clock: &str, by_ms: i64, every_ms: u64| {
        format!(
            "kind = \"clock\", clock = \"{clock}\", for = \"1s\", \
             change = {{ strobe = {{ by-ms = {by_ms}, every-ms = {every_ms} }} }}"
        )
    };
    for (fault, why) in [
        (strobe("wall", 0, 100), "only the wall clock"),
        (strobe("monotonic", 100, 100), "only the wall clock"),
        (strobe("both", 100, 100), "only the wall clock"),
        (strobe("wall", 100, 9), "expected at least 10"),
        (strobe("wall", 100, 501), "two jumps within"),
        (r#"kind = "slow", for = "1s", percent = 0"#.into(), "outside 1 to 50"),
        (r#"kind = "slow", for = "1s", percent = 51"#.into(), "outside 1 to 50"),
    ] {
        let refused = Plan::from_toml(&with_fault(&fault)).unwrap().validate().unwrap_err();
        assert!(refused.field == "nemesis" && refused.problem.contains(why), "{fault}: {refused}");
    }
    for every_ms in [10, 500] {
        assert_eq!(Plan::from_toml(&with_fault(&strobe("wall", 100, every_ms))).unwrap().validate(), Ok(()));
    }
}

#[test]
fn a_broken_plan_is_refused_where_it_is_broken() {
    let text = plan().to_toml().unwrap();
    let unknown = text.replace("lease = ", "leese = ");
    let message = Plan::from_toml(&unknown).unwrap_err().to_string();
    assert!(message.contains("leese") && message.contains("line"), "{message}");
    let duration = text.replace("\"2s\"", "\"two\"");
    let message = Plan::from_toml(&duration).unwrap_err().to_string();
    assert!(message.contains("`two` is not a duration"), "{message}");
}

fn wait() -> Wait {
    let (worker, until, at_most) = ("worker-1".into(), Until::Time, Duration::from_secs(1));
    Wait { id: WaitId(1), worker, point: Point::BeforeWrite, until, at_most, after: Duration::ZERO }
}

#[test]
fn what_types_cannot_refuse_is_refused() {
    type Change = fn(&mut Plan);
    let table: [(&str, Change); 33] = [
        ("workers", |p| p.workload.workers = 0),
        ("rate", |p| p.workload.rate_per_s = f64::NAN),
        ("rate", |p| p.workload.rate_per_s = -1.0),
        ("keys", |p| p.workload.keys = 0),
        ("keys", |p| p.workload.keys = 10_000_001),
        ("locks-per-section", |p| (p.workload.keys, p.workload.locks_per_section) = (2, 3)),
        ("locks-per-section", |p| (p.workload.keys, p.workload.locks_per_section) = (200, 101)),
        ("work", |p| p.workload.work.from = Duration::from_secs(9)),
        ("work", |p| p.workload.work.to = Duration::from_secs(24 * 3600 + 1)),
        ("retry-delay", |p| p.workload.retry_delay.to = Duration::from_secs(24 * 3600 + 1)),
        ("lock_nodes", |p| p.lock_nodes.push("worker-1".into())),
        ("lock_nodes", |p| p.lock_nodes.push("resource".into())),
        ("lock_nodes", |p| p.lock_nodes.push("agent".into())),
        ("lock_nodes", |p| p.lock_nodes.push("controller".into())),
        ("arms", |p| p.arms.push(p.arms[0])),
        ("lease", |p| p.lease = Duration::ZERO),
        ("renew", |p| p.workload.renew = Some(p.lease)),
        ("arms", |p| p.tokens = Tokens::None),
        ("fence", |p| p.fence = Comparison::Strict),
        ("seed", |p| p.seed = u64::MAX),
        ("nemesis", |p| p.schedule[1].target = Target::Node("agent".into())),
        ("nemesis", |p| p.schedule[0].target = Target::Node("redis-9".into())),
        ("nemesis", |p| p.schedule[1].target = Target::Holder),
        ("nemesis", |p| p.schedule[1].target = Target::Node("redis-1".into())),
        ("nemesis", |p| p.schedule[1].target = Target::Node("resource".into())),
        ("nemesis", |p| p.schedule[1].fault.lasting = Duration::from_millis(19)),
        ("nemesis", |p| p.schedule[0].fault.lasting = Duration::ZERO),
        ("nemesis", |p| p.schedule[0].fault.lasting = Duration::from_secs(24 * 3600 + 1)),
        ("waits", |p| p.waits = vec![wait(); 1_001]),
        ("nemesis", |p| p.schedule[1].when = When::AtPoint(Point::AfterCheck)),
        ("nemesis", |p| p.schedule[1].when = When::At(p.time)),
        ("nemesis", |p| p.schedule[1].id = p.schedule[0].id),
        ("nemesis", |p| p.schedule[0].when = When::Healed(FaultId(9))),
    ];
    assert_eq!(plan().validate(), Ok(()));
    for (field, change) in table {
        let mut plan = plan();
        change(&mut plan);
        assert_eq!(plan.validate().unwrap_err().field, field);
    }
}

#[test]
fn limits_are_possible_and_anything_beyond_is_refused() {
    type Change = fn(&mut Plan);
    const MS: Duration = Duration::from_millis(1);
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    fn take(plan: &mut Plan, locks: u32) {
        (plan.workload.keys, plan.workload.locks_per_section) = (200, locks);
    }
    let table: [(&str, Change, Change); 19] = [
        ("workers", |p| p.workload.workers = 64, |p| p.workload.workers = 65),
        ("clients-per-worker", |p| p.workload.clients_per_worker = 1, |p| p.workload.clients_per_worker = 0),
        ("clients-per-worker", |p| p.workload.clients_per_worker = 1_000, |p| p.workload.clients_per_worker = 1_001),
        ("rate", |p| p.workload.rate_per_s = 0.001, |p| p.workload.rate_per_s = 0.0),
        ("rate", |p| p.workload.rate_per_s = 100_000.0, |p| p.workload.rate_per_s = 100_000.1),
        ("work", |p| p.workload.work.to = DAY, |p| p.workload.work.to = DAY + MS),
        ("retry-delay", |p| p.workload.retry_delay.to = DAY, |p| p.workload.retry_delay.to = DAY + MS),
        ("lease", |p| (p.workload.renew, p.lease) = (None, MS * 50), |p| p.lease = MS * 49),
        ("lease", |p| p.lease = MS * 600_000, |p| p.lease = MS * 600_001),
        ("time", |p| p.time = MS * 1_000, |p| p.time = MS * 999),
        ("time", |p| p.time = DAY, |p| p.time = DAY + MS),
        ("renew", |p| p.workload.renew = Some(MS * 10), |p| p.workload.renew = Some(MS * 9)),
        ("renew", |p| p.workload.renew = Some(p.lease - MS), |p| p.workload.renew = Some(p.lease)),
        ("deadline", |p| p.workload.deadline = Some(MS * 10), |p| p.workload.deadline = Some(MS * 9)),
        ("deadline", |p| p.workload.deadline = Some(p.lease), |p| p.workload.deadline = Some(p.lease + MS)),
        ("writes", |p| p.workload.writes = 1, |p| p.workload.writes = 0),
        ("writes", |p| p.workload.writes = 100, |p| p.workload.writes = 101),
        ("locks-per-section", |p| take(p, 100), |p| take(p, 101)),
        ("locks-per-section", |p| take(p, 1), |p| take(p, 0)),
    ];
    for (field, possible, refused) in table {
        let (mut at, mut beyond) = (plan(), plan());
        possible(&mut at);
        refused(&mut beyond);
        assert_eq!(at.validate(), Ok(()), "{field}");
        assert_eq!(beyond.validate().unwrap_err().field, field);
    }
}

#[test]
fn only_independent_servers_have_no_replicas() {
    let on = |servers| Plan { servers, ..plan() };
    let replicated = on(ServerFacts { topology: Topology::Replicated, ..servers("redlock") });
    let all = [on(servers("redlock")), on(servers("etcd")), replicated];
    assert_eq!(all.each_ref().map(Plan::has_one_store), [false, true, false]);
    assert_eq!(all.each_ref().map(Plan::has_replicas), [false, true, true]);
    let keeping = on(ServerFacts { kill_forgets: false, ..servers("redlock") });
    assert_eq!([&all[0], &keeping].map(Plan::persistence), [Persistence::No, Persistence::Always]);
}

#[test]
fn faults_that_wait_for_the_heal_of_each_other_are_refused() {
    let kill = |id: u32, after: u32| {
        let (fault, target) = (Fault::new(fault::Kill {}, Duration::from_secs(1)), Target::Node("worker-1".into()));
        let when = if after == 0 { When::At(Duration::from_secs(1)) } else { When::Healed(FaultId(after)) };
        Step { id: FaultId(id), fault, target, when }
    };
    let with = |steps: &[(u32, u32)]| {
        let schedule = steps.iter().map(|(id, after)| kill(*id, *after)).collect();
        Plan { schedule, ..plan() }.validate().map_err(|e| e.to_string())
    };
    for possible in [&[(1, 0), (2, 1), (3, 2)][..], &[(1, 2), (2, 3), (3, 0)], &[(1, 0), (2, 1), (3, 1)]] {
        assert_eq!(with(possible), Ok(()));
    }
    for circle in [&[(1, 2), (2, 1)][..], &[(1, 0), (2, 4), (3, 2), (4, 3)], &[(1, 2), (2, 3), (3, 2)]] {
        let refused = with(circle).unwrap_err();
        assert!(refused.contains("`healed` leads in a circle"), "{refused}");
    }
}

#[test]
fn a_clock_jumps_no_farther_than_a_run_can_bear() {
    let jump = |clock: &str, change: &str| {
        let fault = format!(r#"kind = "clock", clock = "{clock}", for = "1s", change = {{ {change} }}"#);
        Plan::from_toml(&with_fault(&fault)).unwrap().validate().map_err(|e| e.to_string())
    };
    for (clock, possible) in [
        ("wall", "jump-ms = 3153600000000"),
        ("wall", "jump-ms = -1576800000000"),
        ("monotonic", "jump-ms = 86400000"),
        ("both", "jump-ms = 86400000"),
    ] {
        assert_eq!(jump(clock, possible), Ok(()), "{clock} {possible}");
    }
    for (clock, far) in [
        ("wall", "jump-ms = 3153600000001"),
        ("wall", "jump-ms = -1576800000001"),
        ("wall", "jump-ms = -9223372036854775808"),
        ("wall", "strobe = { by-ms = -1576800000001, every-ms = 100 }"),
        ("wall", "strobe = { by-ms = 3153600000001, every-ms = 100 }"),
        ("monotonic", "jump-ms = 86400001"),
        ("both", "jump-ms = 1000000000000"),
    ] {
        let refused = jump(clock, far).unwrap_err();
        assert!(refused.contains("is too far"), "{clock} {far}: {refused}");
    }
}

#[test]
fn the_leader_is_a_target_wherever_the_servers_elect_one() {
    let mut plan = plan();
    plan.schedule = vec![Step { target: Target::Leader, ..plan.schedule[0].clone() }];
    assert!(plan.validate().unwrap_err().problem.contains("the servers of backend redlock elect no leader"));
    // The name of the backend decides nothing.
    (plan.backend, plan.servers) = ("any-name".into(), servers("etcd"));
    assert_eq!(plan.validate(), Ok(()));
}

#[test]
fn a_restart_without_data_is_refused_on_both_clusters_where_it_ends_a_membership() {
    for cluster in [ClusterKind::Docker, ClusterKind::Sim] {
        let fault = Fault::new(fault::Amnesia { counters_of: Vec::new() }, Duration::from_secs(1));
        let target = Target::Node("redis-1".into());
        let step = Step { fault, target, ..plan().schedule[0].clone() };
        let mut plan = Plan { cluster, schedule: vec![step], ..plan() };
        assert_eq!(plan.validate(), Ok(()));
        plan.servers = servers("etcd");
        let problem = plan.validate().unwrap_err().problem;
        assert!(problem.contains("no longer a member of its store; use `kill`"), "{problem}");
    }
}

#[test]
fn a_program_is_refused_in_a_simulation_and_beside_a_stopped_worker() {
    let program = Program { command: vec!["./my client".into(), "-x".into()], files: Vec::new() };
    let own = Plan { program: Some(program), tokens: Tokens::Own, ..plan() };
    assert_eq!(own.validate(), Ok(()));
    assert_eq!(own.lock_name(), "'./my client' -x on redlock");
    assert_eq!(Plan::from_toml(&own.to_toml().unwrap()).unwrap(), own);
    let simulated = Plan { cluster: ClusterKind::Sim, ..own.clone() }.validate().unwrap_err();
    assert_eq!((simulated.field, simulated.problem.contains("use `--cluster docker`")), ("client", true));
    let stop = |target: Target| {
        let fault = Fault::new(fault::Stop {}, Duration::from_secs(1));
        let step = Step { fault, target, ..plan().schedule[0].clone() };
        (Plan { schedule: vec![step.clone()], ..own.clone() }, Plan { schedule: vec![step], ..plan() })
    };
    for target in [Target::Holder, Target::Node("worker-1".into())] {
        let (with, without) = stop(target);
        assert!(with.validate().unwrap_err().problem.contains("use `pause`"));
        assert_eq!(without.validate(), Ok(()));
    }
    assert_eq!(stop(Target::Node("redis-1".into())).0.validate(), Ok(()));
}

#[test]
fn the_first_of_many_processes_of_a_server_is_not_stopped_alone() {
    let lasting = Duration::from_secs(1);
    let (stop, pause) = (Fault::new(fault::Stop {}, lasting), Fault::new(fault::Pause {}, lasting));
    for (fault, is_refused) in [(stop, true), (pause, false)] {
        for (target, is_server) in [("redis-1", true), ("worker-1", false), ("resource", false)] {
            let step = Step { fault: fault.clone(), target: Target::Node(target.into()), ..plan().schedule[0].clone() };
            let mut plan = Plan { schedule: vec![step], ..plan() };
            assert_eq!(plan.validate(), Ok(()));
            plan.servers.many_processes = true;
            let problem = plan.validate().err().map(|error| error.problem);
            assert_eq!(problem.is_some(), is_refused && is_server, "{target}: {problem:?}");
            assert!(problem.is_none_or(|problem| problem.contains("use `pause`, which freezes all of them")));
        }
        let step = Step { fault, target: Target::Leader, ..plan().schedule[0].clone() };
        let many = ServerFacts { many_processes: true, ..servers("etcd") };
        let leader = Plan { schedule: vec![step], servers: many, ..plan() };
        assert_eq!(leader.validate().is_err(), is_refused);
    }
}

#[test]
fn the_facts_decide_which_model_a_simulation_uses_and_which_lease_is_granted() {
    let (redlock, etcd) = (servers("redlock"), servers("etcd"));
    assert_eq!(redlock.model(), Some(ServerModel::RedisNodes));
    assert_eq!(etcd.model(), Some(ServerModel::LeaseStore));
    assert_eq!(ServerFacts { promise: Promise::Session, ..etcd.clone() }.model(), None);
    let monotonic = ServerFacts { lease_clock: LeaseClock::Monotonic, ..redlock.clone() };
    assert_eq!(monotonic.model(), Some(ServerModel::LockServers));
    assert_eq!(ServerFacts { kill_forgets: false, ..monotonic }.model(), None);
    for servers in [&redlock, &etcd] {
        assert_eq!(ServerFacts { lease_clock: LeaseClock::Waiter, ..servers.clone() }.model(), None);
    }
    // A server that forgets nothing in a kill has no persistence to choose.
    let keeping = ServerFacts { kill_forgets: false, ..redlock.clone() };
    assert_eq!([&redlock, &keeping, &etcd].map(ServerFacts::has_persistence), [true, false, false]);
    let ms = Duration::from_millis;
    let at_least = ServerFacts { least_lease: ms(400), ..redlock.clone() };
    assert_eq!((at_least.granted(ms(1)), at_least.granted(ms(401))), (ms(400), ms(401)));
    assert_eq!((redlock.granted(ms(1)), redlock.granted(ms(2_500))), (ms(1), ms(2_500)));
    assert_eq!([1, 2_000, 2_001, 3_000].map(|asked| etcd.granted(ms(asked))), [2_000, 2_000, 3_000, 3_000].map(ms));
}

#[test]
fn the_arm_guard_needs_tokens() {
    let with = |tokens| {
        let (arms, resource) = (vec![Arm::Off, Arm::Guard], ResourceKind::Etcd);
        Plan { servers: servers("etcd"), tokens, arms, resource, ..plan() }.validate()
    };
    assert_eq!(with(Tokens::Revision), Ok(()));
    let refused = with(Tokens::None).unwrap_err();
    assert!(refused.field == "arms" && refused.problem.contains("`guard` needs"), "{refused}");
}

#[test]
fn clients_are_numbered_worker_by_worker() {
    let workload = Workload { workers: 2, clients_per_worker: 3, ..plan().workload };
    let plan = Plan { workload, ..plan() };
    let workers = [0, 1, 2, 3, 4, 5].map(|client| plan.worker_of(ClientId(client)).to_string());
    assert_eq!(workers, ["worker-1", "worker-1", "worker-1", "worker-2", "worker-2", "worker-2"]);
}
