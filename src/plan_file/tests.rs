use std::time::Duration;

use history::{
    Event, Fault, FaultId, Point, Reader, Record, ResourceKind, Stamp, Step, Target, Until, Wait, WaitId, When, Writer,
    fault,
};

use super::*;
use crate::{exit::Exit, recorded_run::RecordedRun, scenario::Scenario};

/// Parses the plan file of a simulated run of `backend`, after a change.
fn parsed(backend: &str, change: impl Fn(&mut PlanFile)) -> Result<PlanFile, String> {
    let scenario = Scenario::of(backend).unwrap();
    let mut file = scenario.file("run".into(), scenario.base.clone());
    change(&mut file);
    PlanFile::parse(&file.to_toml().unwrap(), "plan.toml", None).map_err(|error| {
        assert_eq!(Exit::of(&error), Exit::Usage, "{error}");
        error.to_string()
    })
}

#[test]
fn the_plan_names_the_correct_client_of_its_backend() {
    for backend in ["redis", "buggy:forgets-nx", "buggy:forgets-nx@redlock", "etcd"] {
        assert_eq!(parsed(backend, |_| ()).map(|file| file.backend), Ok(backend.to_owned()));
    }
    for (backend, other) in [("redis", "etcd"), ("etcd", "redis"), ("buggy:forgets-nx", "redlock")] {
        let refused = parsed(backend, |file| file.plan.backend = other.into()).unwrap_err();
        assert!(refused.contains(&format!("and plan.backend is `{other}`")), "{refused}");
    }
    let refused = parsed("redis", |file| file.backend = "etcd".into()).unwrap_err();
    assert!(refused.contains("`etcd` tests etcd, and plan.backend is `redis`"), "{refused}");
}

#[test]
fn any_text_of_the_nemesis_gives_an_id_for_labels() {
    let scenario = Scenario::of("redis-replicated-wait").unwrap();
    let id = |nemesis: &str| {
        let plan = Plan { nemesis: vec![nemesis.into()], ..scenario.base.clone() };
        scenario.file(String::new(), plan).new_id()
    };
    for (text, part) in [
        ("pause:worker-1@1s", "-wait-pause-"),
        ("Pause (holder)", "-wait-pauseholder-"),
        ("../a/b", "-wait-ab-"),
        ("a-word-that-is-too-long-for-an-id", "-wait-a-word-that-is-t-"),
    ] {
        let id = id(text);
        assert!(id.contains(part) && id.len() <= 64, "{id}");
        assert!(id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{id}");
    }
}

#[test]
fn a_suite_in_place_of_a_plan_is_named_as_such() {
    let refused = PlanFile::parse("schema = 1\n[[row]]\nid = \"A\"\n", "s.toml", None).unwrap_err();
    assert_eq!(Exit::of(&refused), Exit::Usage);
    assert!(refused.to_string().contains("this is a suite; `harness suite s.toml` runs it"), "{refused}");
}

#[test]
fn an_error_names_the_line_of_a_plan_without_its_servers() {
    let k1 = std::fs::read_to_string("suites/kleppmann/k1.toml").unwrap();
    assert_eq!(PlanFile::parse(&k1, "k1.toml", None).unwrap().plan.lock_nodes.len(), 5);
    let refused = PlanFile::parse(&k1.replace("lease = \"2s\"", "lease = 2"), "k1.toml", None).unwrap_err();
    assert!(refused.to_string().contains("line 14,"), "{refused}");
}

#[test]
fn a_plan_without_servers_has_those_of_its_compose_file() {
    let k1 = std::fs::read_to_string("suites/kleppmann/k1.toml").unwrap();
    let parsed = |compose: &Path| {
        let text = format!("compose = \"{}\"\n{k1}", compose.display());
        PlanFile::parse(&text, "k1.toml", None)
    };
    let (_dir, compose) = changed_compose("redlock", |text| text.replace("port: 6379", "port: 6380"));
    assert_eq!(parsed(&compose).unwrap().plan.servers.port, 6380);
    let refused = parsed(&compose.with_file_name("nowhere.yaml")).unwrap_err();
    assert_eq!(Exit::of(&refused), Exit::Usage);
    assert!(refused.to_string().contains("nowhere.yaml"), "{refused}");
}

#[test]
fn a_plan_of_too_many_values_is_refused_before_it_is_parsed() {
    let refused = PlanFile::parse(&"[".repeat(8_000_001), "plan.toml", None).unwrap_err();
    assert!(refused.to_string().starts_with("plan plan.toml: more than 8000000 values"), "{refused}");
}

#[test]
fn a_plan_without_an_end_is_refused() {
    let refused = PlanFile::read(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(Exit::of(&refused), Exit::Usage);
    assert!(refused.to_string().starts_with("plan /dev/zero: larger than 64 MiB"), "{refused}");
}

#[test]
fn each_plan_that_is_accepted_can_be_read_again() {
    let scenario = Scenario::of("redlock").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan.toml");
    // Longer than any other line of a history, and longer than the readers accept.
    for (bytes, is_accepted) in [(17 << 20, true), (63 << 20, false), (65 << 20, false)] {
        let plan = Plan { nemesis: vec!["x".repeat(bytes)], ..scenario.base.clone() };
        let file = match scenario.file(String::new(), plan).ready() {
            Ok(file) => file,
            Err(refused) => {
                assert!(!is_accepted && Exit::of(&refused) == Exit::Usage, "{bytes}");
                let words = "too large to be read again: expected at most 64 MiB; make --time shorter";
                assert!(refused.to_string().contains(words), "{refused}");
                continue;
            }
        };
        assert!(is_accepted, "{bytes}");
        std::fs::write(&path, file.to_toml().unwrap()).unwrap();
        assert!(PlanFile::read(&path).unwrap().plan == file.plan, "{bytes}");
        let history = dir.path().join(format!("{bytes}.jsonl"));
        let mut writer = Writer::create(&history).unwrap();
        let event = Event::Plan { run: file.run, plan: Box::new(file.plan), made_by: None };
        let record = Record { seq: 0, process: "controller".into(), n: 0, at: Stamp(0), event };
        writer.append(&record).unwrap();
        writer.flush().unwrap();
        assert!(Reader::open(&history).unwrap().next().unwrap().unwrap() == record, "{bytes}");
    }
}

#[test]
fn a_lock_on_one_server_takes_no_second_lock_node() {
    let refused = parsed("redis", |file| file.plan.lock_nodes.push("redis-2".into())).unwrap_err();
    assert!(refused.contains("lock_nodes: backend redis needs one, found 2"), "{refused}");
    assert!(parsed("redlock", |file| file.plan.lock_nodes.push("redis-6".into())).is_ok());
}

#[test]
fn the_lease_of_renewals_is_refused_without_renewals() {
    let renewing = |every: Option<Duration>| {
        parsed("redis", |file| {
            let workload = &mut file.plan.workload;
            (workload.renew, workload.renew_for) = (every, Some(Duration::from_secs(60)));
        })
    };
    assert!(renewing(Some(Duration::from_millis(500))).is_ok());
    let refused = renewing(None).unwrap_err();
    assert!(refused.contains("renew_for: clients without `renew` never renew"), "{refused}");
}

#[test]
fn a_bug_that_the_resource_cannot_have_is_refused() {
    let with_bug = |bug: &str, resource| {
        parsed("redis", |file| {
            file.resource_bug = Some(bug.to_owned());
            (file.plan.resource, file.plan.cluster) = (resource, ClusterKind::Docker);
        })
    };
    assert!(with_bug("forgets-tokens", ResourceKind::Service).is_ok());
    for (bug, resource, words) in [
        (
            "forgets-tokn",
            ResourceKind::Service,
            "resource_bug: no planted bug of the resource is called `forgets-tokn`",
        ),
        ("forgets-tokens", ResourceKind::Postgres, "resource_bug: `postgres` decides in place of the service"),
    ] {
        let refused = with_bug(bug, resource).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn a_plan_that_waits_where_no_client_comes_is_refused() {
    let with_wait = |backend: &str| {
        parsed(backend, |file| {
            let (worker, point, until) = ("worker-1".into(), Point::AfterWriteBack, Until::Time);
            let (at_most, after) = (Duration::from_secs(1), Duration::ZERO);
            file.plan.waits = vec![Wait { id: WaitId(1), worker, point, until, at_most, after }];
        })
    };
    assert!(with_wait("redlock").is_ok());
    let refused = with_wait("redis").unwrap_err();
    assert!(refused.contains("waits: wait 1: only with tokens `two-phase`"), "{refused}");
}

#[test]
fn the_plan_of_a_run_is_read_although_it_is_refused_now() {
    let runs = tempfile::tempdir().unwrap();
    let scenario = Scenario::of("buggy:forgets-nx").unwrap();
    let file = scenario.file("run".into(), scenario.base.clone());
    let (mut lease, mut wait) = (file.clone(), file);
    lease.plan.workload.renew_for = Some(Duration::from_secs(60));
    let (worker, point, until) = ("worker-1".into(), Point::AfterWriteBack, Until::Time);
    let (at_most, after) = (Duration::from_secs(1), Duration::ZERO);
    wait.plan.waits = vec![Wait { id: WaitId(1), worker, point, until, at_most, after }];
    for (run, file) in [("lease", lease), ("wait", wait)] {
        let dir = runs.path().join(run);
        std::fs::create_dir(&dir).unwrap();
        let path = RunDir::at(&dir).plan();
        std::fs::write(&path, file.to_toml().unwrap()).unwrap();
        assert!(PlanFile::read(&path).is_err(), "{run}");
        let recorded = RecordedRun::read(runs.path(), run);
        assert_eq!(recorded.backend.as_deref(), Some("buggy:forgets-nx"), "{run}");
        // `compare` takes the plan beside the history only if it is that of the history.
        assert!(PlanFile::recorded(&path).unwrap().plan == file.plan, "{run}");
    }
}

#[test]
fn faults_are_checked_again_when_the_servers_are_known() {
    let scenario = Scenario::of("redlock").unwrap();
    let ready = |target: &str| {
        let (fault, when) = (Fault::new(fault::Pause {}, Duration::from_secs(1)), When::At(Duration::from_secs(1)));
        let schedule = vec![Step { id: FaultId(1), fault, target: Target::Node(target.into()), when }];
        let plan = Plan { cluster: ClusterKind::Docker, schedule, ..scenario.base.clone() };
        plan.validate().unwrap();
        let file = PlanFile { compose: Some("compose/redis.yaml".into()), ..scenario.file(String::new(), plan) };
        file.ready()
    };
    assert_eq!(ready("redis-1").unwrap().plan.lock_nodes, [NodeName::new("redis-1")]);
    let refused = ready("redis-5").unwrap_err();
    assert_eq!(Exit::of(&refused), Exit::Usage);
    assert!(refused.to_string().contains("`redis-5` is no node"), "{refused}");
}

/// A Compose file for tests: a built-in one after a change.
fn changed_compose(backend: &str, change: impl Fn(&str) -> String) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.yaml");
    std::fs::write(&path, change(&std::fs::read_to_string(format!("compose/{backend}.yaml")).unwrap())).unwrap();
    (dir, path)
}

/// A plan for real servers, with one fault of this target and with a Compose file of the user's own.
fn on_docker(backend: &str, fault: Fault, target: Target, compose: PathBuf) -> PlanFile {
    let scenario = Scenario::of(backend).unwrap();
    let schedule = vec![Step { id: FaultId(1), fault, target, when: When::At(Duration::from_secs(1)) }];
    let plan = Plan { cluster: ClusterKind::Docker, schedule, ..scenario.base.clone() };
    PlanFile { compose: Some(compose), ..scenario.file(String::new(), plan) }
}

#[test]
fn a_fault_of_the_leader_needs_servers_that_tell_their_leader() {
    let ready = |change: fn(&str) -> String| {
        let (_dir, compose) = changed_compose("etcd", change);
        let fault = Fault::new(fault::Pause {}, Duration::from_secs(1));
        on_docker("etcd", fault, Target::Leader, compose).ready()
    };
    assert!(ready(str::to_owned).is_ok());
    let without = |text: &str| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("leader_status:"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let refused = ready(without).unwrap_err();
    assert_eq!(Exit::of(&refused), Exit::Usage);
    assert!(refused.to_string().contains("mine.yaml: x-harness has no `leader`"), "{refused}");
}

#[test]
fn servers_that_make_other_tokens_than_the_plan_are_refused() {
    // As `harness run PLAN --compose mine.yaml` does.
    let ready = |change: fn(&str) -> String| {
        let (_dir, compose) = changed_compose("redlock", change);
        let fault = Fault::new(fault::Pause {}, Duration::from_secs(1));
        let mut file = on_docker("redlock", fault, Target::Node("redis-1".into()), compose.clone());
        file.plan.servers = ComposeFile::read(&compose).unwrap().facts;
        file.ready()
    };
    let same = ready(str::to_owned).unwrap();
    assert!(PlanFile::parse(&same.to_toml().unwrap(), "plan.toml", None).is_ok(), "it can be run again");
    let refused = ready(|text| text.replace("[two-phase, ", "[")).unwrap_err();
    assert_eq!(Exit::of(&refused), Exit::Usage);
    let words = "mine.yaml: on these servers redlock does not make the plan's `two-phase`";
    assert!(refused.to_string().contains(words), "{refused}");
}

#[test]
fn facts_that_contradict_the_client_are_refused() {
    let ready = |backend: &str, (from, to): (&str, &str), is_program: bool| {
        let (_dir, compose) = changed_compose(backend, |text| text.replace(from, to));
        let fault = Fault::new(fault::Pause {}, Duration::from_secs(1));
        let mut file = on_docker(backend, fault, Target::Node("worker-1".into()), compose.clone());
        file.plan.servers = ComposeFile::read(&compose).unwrap().facts;
        if is_program {
            file.plan.program = Some(history::Program { command: vec!["./lock".into()], files: Vec::new() });
            (file.plan.tokens, file.plan.arms) = (history::Tokens::None, vec![history::Arm::Off]);
        }
        file.ready().map_err(|refused| refused.to_string())
    };
    for (backend, from, to) in [
        ("etcd", "topology: one-store", "topology: independent"),
        ("postgres-advisory", "promise: session", "promise: lease"),
        ("redis", "lease_clock: wall", "lease_clock: waiter"),
        ("etcd-server-lock", "shows_waiting: false", "shows_waiting: true"),
    ] {
        let refused = ready(backend, (from, to), false).unwrap_err();
        for word in ["mine.yaml: ", from.split(':').next().unwrap(), &format!("the client of `{backend}` needs")] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
        ready(backend, (from, to), true).unwrap();
    }
    ready("etcd", ("lease_clock: both", "lease_clock: monotonic"), false).unwrap();
}

#[test]
fn before_a_loss_of_power_each_server_names_its_data() {
    // The second service is a copy of the first one, without the directory.
    let second = |text: &str| {
        let (before, service) = text.split_once("  redis-1: &redis\n").unwrap();
        let (service, _) = service.split_once("  redis-2:").unwrap();
        let other = service.replace("      data: /data\n", "");
        assert_ne!(service, other);
        format!("{before}  redis-1:\n{service}  redis-2:\n{other}")
    };
    let (_dir, compose) = changed_compose("redlock", second);
    let fault = Fault::new(fault::Powerloss {}, Duration::from_secs(1));
    let refused = on_docker("redlock", fault, Target::Node("redis-1".into()), compose).servers().unwrap_err();
    assert_eq!(Exit::of(&refused), Exit::Usage);
    for word in ["mine.yaml", "powerloss", "`data`", "redis-2"] {
        assert!(refused.to_string().contains(word), "{word}: {refused}");
    }
}

#[test]
fn real_redis_has_the_persistence_of_the_plan() {
    let scenario = Scenario::of("redlock").unwrap();
    for (persistence, words) in [
        (Persistence::No, &["--save", "", "--appendonly", "no"][..]),
        (Persistence::Snapshot, &["--save", "5 1", "--appendonly", "no"]),
        (Persistence::Everysec, &["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]),
        (Persistence::Always, &["--save", "", "--appendonly", "yes", "--appendfsync", "always"]),
    ] {
        let models = Some(history::Models { persistence, ..Default::default() });
        let plan = Plan { cluster: ClusterKind::Docker, models, ..scenario.base.clone() };
        for server in scenario.file(String::new(), plan).servers().unwrap().services {
            let has = |pair: &[&str]| server.command.windows(2).any(|found| found == pair);
            assert!(words.chunks(2).all(has), "{persistence:?}: {:?}", server.command);
            assert_eq!(server.command.contains(&"--appendfsync".to_owned()), words.contains(&"--appendfsync"));
        }
    }
}
