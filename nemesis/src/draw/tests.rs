use history::fault;
use history::fault::{CutMode, Loss, Parameters, Partition, Reorder};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::{delay::REORDERED_WITHIN, loss::LOST_PERCENT, parse};

fn drawn(seed: u64, specs: &str) -> Result<Vec<Step>, FaultSpecError> {
    drawn_with(ResourceKind::Service, seed, specs)
}

fn drawn_with(resource: ResourceKind, seed: u64, specs: &str) -> Result<Vec<Step>, FaultSpecError> {
    drawn_within(Duration::from_secs(30), resource, seed, specs)
}

fn drawn_within(time: Duration, resource: ResourceKind, seed: u64, specs: &str) -> Result<Vec<Step>, FaultSpecError> {
    let workers: Vec<NodeName> = (1..=5).map(|n| NodeName::new(format!("worker-{n}"))).collect();
    let of = Draw {
        specs: &parse(specs).unwrap(),
        time,
        lease: Duration::from_secs(2),
        workers: &workers,
        lock_nodes: &["redis-1".into(), "redis-2".into(), "redis-3".into()],
        resource,
    };
    draw(&mut ChaCha8Rng::seed_from_u64(seed), &of)
}

/// Returns the time of a step that has a time of its own.
fn at(step: &Step) -> Duration {
    let When::At(at) = step.when else { panic!("{step:?}") };
    at
}

#[test]
fn a_seed_promises_its_schedule() {
    assert_eq!(drawn(7, "pause,kill"), drawn(7, "pause,kill"));
    assert_ne!(drawn(7, "pause"), drawn(8, "pause"));
}

#[test]
fn random_pauses_fill_the_time_and_outlast_the_lease() {
    for seed in 0..200 {
        let steps = drawn(seed, "pause").unwrap();
        let mut filled = Duration::ZERO;
        for step in &steps {
            let When::AfterHeal(gap) = step.when else { panic!("{step:?}") };
            assert!((Duration::from_millis(500)..=Duration::from_secs(2)).contains(&gap));
            assert!((Duration::from_secs(3)..=Duration::from_secs(5)).contains(&step.fault.lasting));
            assert_eq!(step.target, Target::Holder);
            filled += gap + step.fault.lasting;
        }
        assert!(filled >= Duration::from_secs(30) && filled < Duration::from_secs(37));
    }
}

#[test]
fn a_placed_fault_is_one_step_at_a_drawn_worker() {
    let steps = drawn(1, "pause@before-write+5s").unwrap();
    let [step] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(step.fault, Fault::new(fault::Pause {}, Duration::from_secs(5)));
    assert!(matches!(&step.target, Target::Node(n) if n.as_str().starts_with("worker-")));
    let drawn_workers: std::collections::BTreeSet<_> =
        (0..50).map(|seed| format!("{:?}", drawn(seed, "pause@before-write").unwrap()[0].target)).collect();
    assert_eq!(drawn_workers.len(), 5, "every worker is drawn by some seed");
}

#[test]
fn faults_of_lock_nodes_come_at_times_of_their_own() {
    for seed in 0..200 {
        let steps = drawn(seed, "clock,partition,amnesia").unwrap();
        assert!(steps.len() >= 8, "{}", steps.len());
        let mut busy: BTreeMap<&NodeName, Duration> = BTreeMap::new();
        for step in &steps {
            let (Target::Node(node), When::At(at)) = (&step.target, step.when) else { panic!("{step:?}") };
            assert!(node.as_str().starts_with("redis-") && at < Duration::from_secs(30));
            let free = busy.insert(node, at + step.fault.lasting);
            assert!(free.is_none_or(|free| free + HEALED_WITHIN <= at), "the fault before it is proved healed");
        }
    }
}

#[test]
fn faults_of_the_resource_come_at_times_of_their_own_and_those_of_a_worker_do_not() {
    for seed in 0..20 {
        let steps = drawn(seed, "delay:resource+800ms,pause:worker-2,delay:redis-2+800ms").unwrap();
        for step in &steps {
            let is_of_a_server = step.target != Target::Node("worker-2".into());
            assert_eq!(matches!(step.when, When::At(_)), is_of_a_server, "{step:?}");
        }
        let of = |node: &str| steps.iter().filter(|step| step.target == Target::Node(node.into())).count();
        // A delay comes after 2 s at most, and every 2.8 s at least. A pause takes 3.5 to 7 s.
        let fills = of("resource") >= 10 && of("redis-2") >= 10 && (5..=9).contains(&of("worker-2"));
        assert!(fills, "{steps:?}");
    }
}

#[test]
fn a_random_fault_of_a_server_begins_before_the_end() {
    for seed in 0..20 {
        let last = |time| {
            let steps = drawn_within(time, ResourceKind::Service, seed, "pause:redis-1").unwrap();
            steps.iter().map(at).max()
        };
        let end = last(Duration::from_secs(30)).unwrap();
        assert!(last(end) < Some(end));
        assert_eq!(last(end + Duration::from_millis(1)), Some(end));
    }
}

#[test]
fn a_rolling_fault_is_drawn_if_all_nodes_are_up_in_time() {
    for seed in 0..20 {
        let steps = |time| drawn_within(time, ResourceKind::Service, seed, "kill:rolling+1s").unwrap();
        let begins = at(&steps(Duration::from_secs(30))[0]);
        // Three downtimes of 1 s, two heals of 0.5 s in between, and 2 s for each start.
        let end = begins + Duration::from_secs(3 + 1 + 6);
        assert_eq!([end - Duration::from_millis(1), end].map(|time| steps(time).len()), [0, 3]);
    }
}

#[test]
fn only_a_shared_fault_of_a_drawn_lock_node_hits_a_majority() {
    let all = ["redis-1", "redis-2", "redis-3"].map(NodeName::new);
    let (begins, end) = (Duration::from_secs(5), Duration::from_millis(5_010));
    let alone = vec![(begins, Target::Node("redis-1".into()))];
    let hit = |words: &str, lock_nodes: &[NodeName], seed| {
        let (specs, lease) = (parse(words).unwrap(), Duration::from_secs(2));
        let of = Draw { specs: &specs, time: end, lease, workers: &[], lock_nodes, resource: ResourceKind::Service };
        struck(&mut ChaCha8Rng::seed_from_u64(seed), &specs[0], &of, begins, Target::Node("redis-1".into()))
    };
    for (words, count) in [("kill:any-lock-node", 3), ("clock:redis-1", 3), ("clock", 2)] {
        for seed in 0..400 {
            assert_eq!(hit(words, &all[..count], seed), alone, "{words} of {count}");
        }
    }
    for words in ["clock", "amnesia", "powerloss"] {
        let mut together = 0;
        for seed in 0..400 {
            let nodes = hit(words, &all, seed);
            assert!(nodes.len() <= 2 && nodes.iter().all(|(at, _)| (begins..end).contains(at)), "{nodes:?}");
            together += usize::from(nodes != alone);
        }
        assert!((60..140).contains(&together), "{words}: {together} of 400");
    }
}

#[test]
fn one_clock_jump_in_five_goes_back() {
    let by = |step: Step| match step.fault.parameters {
        Parameters::Clock(fault::Clock { change: history::ClockChange::JumpMs(by), .. }) => by,
        other => panic!("{other:?}"),
    };
    let jumps: Vec<i64> = (0..100).flat_map(|seed| drawn(seed, "clock:redis-1").unwrap()).map(by).collect();
    let (all, back) = (jumps.len(), jumps.iter().filter(|by| **by < 0).count());
    assert!((all / 10..all * 3 / 10).contains(&back), "{back} of {all}");
}

#[test]
fn loss_and_disorder_of_lock_nodes_are_drawn_from_their_defaults_and_can_be_aimed() {
    let mut percents = std::collections::BTreeSet::new();
    for step in (0..100).flat_map(|seed| drawn(seed, "loss,reorder").unwrap()) {
        assert!(matches!(&step.target, Target::Node(n) if n.as_str().starts_with("redis-")), "{step:?}");
        assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&step.fault.lasting));
        match step.fault.parameters {
            Parameters::Loss(Loss { percent }) => drop(percents.insert(percent)),
            Parameters::Reorder(Reorder { by }) => assert_eq!((by.from, by.to), (Duration::ZERO, REORDERED_WITHIN)),
            other => panic!("{other:?}"),
        }
    }
    assert!(percents.into_iter().eq(LOST_PERCENT), "each of them by some seed");
    let steps = drawn(1, "loss:worker-2@3s+700ms").unwrap();
    let [Step { fault, target, when, .. }] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((target, *when), (&Target::Node("worker-2".into()), When::At(Duration::from_secs(3))));
    assert_eq!((fault.lasting, fault.links.clone()), (Duration::from_millis(700), Some(Links::default())));
}

#[test]
fn what_is_placed_is_drawn_as_it_is_written() {
    let of_links = |specs: &str| {
        let [step] = &drawn(3, specs).unwrap()[..] else { panic!("one step") };
        let Links { direction, from } = step.fault.links.clone().unwrap();
        (direction, from, step.fault.link_delay())
    };
    let (workers, both) = ((1..=5).map(|n| NodeName::new(format!("worker-{n}"))).collect::<Vec<_>>(), Direction::Both);
    for seed in 0..20 {
        let all = Links { direction: both, from: Vec::new() };
        assert_eq!(drawn(seed, "partition:redis-3@5s").unwrap()[0].fault.links, Some(all));
    }
    assert_eq!(of_links("partition:redis-3:workers:in@5s"), (Direction::In, workers, None));
    assert_eq!(of_links("partition:redis-3:lock-nodes@5s").1, ["redis-1".into(), "redis-2".into()]);
    assert_eq!(of_links("loss:worker-1:resource:out@5s"), (Direction::Out, vec!["resource".into()], None));
    // The delay of the packets that the client sends is as long as the fault.
    let late = Some(history::LinkDelay::Fixed(Duration::from_secs(4)));
    assert_eq!(of_links("delay:worker-1@before-write+4s"), (Direction::Out, Vec::new(), late));
    assert_eq!(["delay:worker-1@5s", "partition:worker-1@before-write"].map(|specs| of_links(specs).0), [both; 2]);
    assert_eq!(drawn(1, "partition:worker-1:workers@5s").unwrap_err().word, "worker-1");
    let reject = drawn(1, "partition:redis-3:reject@5s").unwrap();
    assert_eq!(reject[0].fault.parameters, Partition { cut: CutMode::Reject }.into());
}

#[test]
fn a_resource_in_etcd_is_cut_off_from_the_lock_nodes() {
    let all = &["redis-1", "redis-2", "redis-3"][..];
    for (word, peers) in [("resource:lock-nodes", all), ("redis-1:resource", &["resource"])] {
        let spec = format!("partition:{word}@5s");
        let refused = drawn(1, &spec).unwrap_err();
        assert!(refused.spec == spec && refused.problem.contains("exchanges nothing with `"), "{refused}");
        let steps = drawn_with(ResourceKind::Etcd, 1, &spec).unwrap();
        let from = steps[0].fault.links.clone().unwrap().from;
        assert!(from.iter().map(NodeName::as_str).eq(peers.iter().copied()), "{from:?}");
    }
}

#[test]
fn a_delay_with_a_given_length_can_be_proved_within_that_length() {
    let by = |specs: &str, seed| match drawn(seed, specs).unwrap()[0].fault.link_delay() {
        Some(history::LinkDelay::Fixed(by)) => by,
        other => panic!("{specs}: {other:?}"),
    };
    let second = Duration::from_secs(1);
    assert!((0..50).all(|seed| by("delay:redis-3@5s+1s", seed) <= second / 2));
    assert!((0..50).any(|seed| by("delay:redis-3@5s", seed) > second), "a drawn length limits nothing");
}

#[test]
fn a_drawn_delay_is_not_longer_than_a_probe_waits() {
    // The kernel waits two minutes for the answer to a probe, which is late twice.
    let (longest, lease) = (Duration::from_secs(60), Duration::from_secs(600));
    let (time, lock_nodes, resource) = (Duration::from_secs(30), [NodeName::new("redis-1")], ResourceKind::Service);
    for specs in ["delay:redis-1@5s", "delay:redis-1@5s+1h"].map(|text| parse(text).unwrap()) {
        let of = Draw { specs: &specs, time, lease, workers: &[], lock_nodes: &lock_nodes, resource };
        for seed in 0..20 {
            let steps = draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).unwrap();
            let by = steps[0].fault.link_delay().unwrap().longest();
            assert!(by <= longest, "{specs:?}: {by:?}");
        }
    }
}

#[test]
fn a_given_length_changes_no_later_draw() {
    for kind in FaultKind::ALL {
        let last = |length: &str| drawn(7, &format!("{kind}@1s{length},clock:redis-2@9s")).unwrap().pop();
        assert_eq!(last("+2s"), last(""), "{kind}");
    }
}

#[test]
fn a_random_partition_rejects_if_asked_to() {
    let steps = drawn(1, "partition:redis-3:reject").unwrap();
    let reject = Parameters::from(Partition { cut: CutMode::Reject });
    assert!(!steps.is_empty() && steps.iter().all(|step| step.fault.parameters == reject), "{steps:?}");
}

#[test]
fn the_sides_of_a_one_way_split_see_opposite_directions() {
    for (word, here, there) in [("in", Direction::In, Direction::Out), ("out", Direction::Out, Direction::In)] {
        let steps = drawn(1, &format!("partition:majority:{word}@5s")).unwrap();
        let seen: Vec<Direction> = steps.iter().map(|step| step.fault.links.clone().unwrap().direction).collect();
        assert_eq!(seen, [here, here, there], "two lock nodes of the majority, and the third");
    }
}

#[test]
fn a_group_is_drawn_into_steps_of_one_moment_and_a_rolling_one_into_a_chain() {
    let at = When::At(Duration::from_secs(5));
    let majority = drawn(1, "kill:majority@5s+1s").unwrap();
    assert_eq!(majority.len(), 2);
    assert!(majority.iter().all(|step| step.when == at && step.fault == majority[0].fault));
    let rolling = drawn(1, "kill:rolling@5s+1s").unwrap();
    let whens: Vec<When> = rolling.iter().map(|step| step.when).collect();
    assert_eq!(whens, [at, When::Healed(FaultId(1)), When::Healed(FaultId(2))]);
    let halves = drawn(1, "partition:halves@5s+3s").unwrap();
    assert!(halves.len() >= 3 && halves.iter().all(|step| step.when == at));
    assert_eq!(drawn(1, "pause:minority@1s").unwrap().len(), 1);
    assert_eq!(drawn(1, "partition:ring@1s").unwrap_err().word, "ring");
    // The schedule has all nodes of a random round or none, and no round overlaps with a placed fault.
    for seed in 0..50 {
        let steps = drawn(seed, "kill:majority,pause:redis-1@8s+6s").unwrap();
        let (_, random) = steps.split_first().unwrap();
        assert!(random.len() >= 4 && random.len().is_multiple_of(2), "{}", random.len());
        assert!(steps.iter().enumerate().all(|(n, one)| steps[..n].iter().all(|two| one.excludes(two).is_none())));
    }
}

#[test]
fn the_nodes_of_a_group_get_one_fault_and_their_own_peers() {
    let pauses = drawn(1, "pause:majority@5s").unwrap();
    assert!(pauses.iter().all(|pause| pause.fault == pauses[0].fault), "{pauses:?}");
    for Step { fault, target, .. } in drawn(1, "partition:rolling:lock-nodes@5s").unwrap() {
        let (Target::Node(node), Some(links)) = (target, fault.links) else { panic!("a fault of links of a node") };
        assert!(links.from.len() == 2 && !links.from.contains(&node), "{node}: {links:?}");
    }
}

#[test]
fn each_fault_that_is_drawn_for_a_short_lease_is_possible() {
    let workers = [NodeName::new("worker-1"), NodeName::new("worker-2")];
    let lock_nodes = [NodeName::new("redis-1")];
    let (time, resource) = (Duration::from_secs(10), ResourceKind::Service);
    for kind in FaultKind::ALL {
        let specs = parse(kind.name()).unwrap();
        for lease in [50, 100, 199].map(Duration::from_millis) {
            let of = Draw { specs: &specs, time, lease, workers: &workers, lock_nodes: &lock_nodes, resource };
            for seed in 0..20 {
                let steps = draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).unwrap();
                let refused = steps.iter().find_map(|step| step.fault.check().err());
                assert_eq!(refused, None, "{kind} with a lease of {lease:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn no_seed_draws_a_plan_that_is_refused() {
    let workers = [1, 2, 3].map(|n| NodeName::new(format!("worker-{n}")));
    let all = [1, 2, 3].map(|n| NodeName::new(format!("redis-{n}")));
    let (time, lease, resource) = (Duration::from_secs(2), Duration::from_secs(1), ResourceKind::Service);
    for (words, nodes) in [
        ("kill:redis-1@1s,clock:redis-1", 1),
        ("clock:redis-1@1s,kill:redis-1", 1),
        ("amnesia@1s,clock@1s,clock:redis-2@1s", 3),
        ("kill:any-worker@1s,clock:any-worker@1s", 3),
    ] {
        let specs = parse(words).unwrap();
        let lock_nodes = &all[..nodes];
        let of = Draw { specs: &specs, time, lease, workers: &workers, lock_nodes, resource };
        // The first random fault of seed 659 begins with the placed one.
        for seed in 0..1_000 {
            let steps = draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).unwrap();
            let meet = |(n, one): (usize, &Step)| steps[n + 1..].iter().any(|other| one.excludes(other).is_some());
            assert!(!steps.iter().enumerate().any(meet), "{words}, seed {seed}: {steps:?}");
        }
    }
}

#[test]
fn more_faults_than_memory_holds_are_refused() {
    let lock_nodes: Vec<NodeName> = (1..=1_000).map(|n| NodeName::new(format!("redis-{n}"))).collect();
    let workers = [1, 2].map(|n| NodeName::new(format!("worker-{n}")));
    let (time, lease, resource) = (Duration::from_secs(24 * 3_600), Duration::from_secs(2), ResourceKind::Service);
    for words in [vec!["amnesia"; 500].join(","), "partition:halves".into(), "partition:holder:lock-nodes".into()] {
        let specs = parse(&words).unwrap();
        let of = Draw { specs: &specs, time, lease, workers: &workers, lock_nodes: &lock_nodes, resource };
        let refused = draw(&mut ChaCha8Rng::seed_from_u64(1), &of).unwrap_err();
        assert!(refused.problem.contains("too large for a plan; make --time shorter"), "{refused}");
    }
}

#[test]
fn a_target_that_does_not_exist_is_refused() {
    let refused = drawn(1, "clock:worker-9@5s").unwrap_err();
    assert_eq!((refused.word.as_str(), refused.spec.as_str()), ("worker-9", "clock:worker-9@5s"));
    assert!(refused.problem.contains("worker-1 to worker-5, redis-1 to redis-3, resource"), "{refused}");
    assert_eq!(drawn(1, "none").unwrap(), []);
}

#[test]
fn only_a_worker_is_hit_at_a_protocol_point() {
    for target in ["redis-1", "resource"] {
        let refused = drawn(1, &format!("pause:{target}@before-write")).unwrap_err();
        assert_eq!(refused.word, target);
        let problem = "at a protocol point only a worker can be the target; expected worker-1 to worker-5";
        assert_eq!(refused.problem, problem);
    }
    let refused = drawn(1, "pause:redis-9@before-write").unwrap_err();
    assert!(refused.problem.starts_with("no such node; expected worker-1 to worker-5, redis-1"), "{refused}");
}
