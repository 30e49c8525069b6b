//! The effects of faults on simulated nodes, as the nemesis and the record see them.

use std::{collections::BTreeMap, time::Duration};

use history::{
    Answers, ClockChange, CutMode, Direction, Event, Fault, FaultId, FaultPhase, NodeAnswer, Plan, ProcessName, Range,
    Record, Scripted, Stamp, Step, Target, When, WhichClock, fault,
};

use sim::{Setup, simulate};

use crate::plans::{history, plan};

const SECOND: Duration = Duration::from_secs(1);

fn with(backend: &str, fault: Fault, node: &str) -> Plan {
    let mut plan = plan(backend, "none", 7);
    plan.nemesis = vec![fault.kind().to_string()];
    let (id, when) = (FaultId(1), When::At(2 * SECOND));
    plan.schedule = vec![Step { id, fault, target: Target::Node(node.into()), when }];
    plan.validate().expect("a valid plan");
    plan
}

/// When the fault was injected and told to heal; fails unless it was proved, and proved healed.
fn span(records: &[Record]) -> (Stamp, Stamp) {
    let at = |wanted: &dyn Fn(&FaultPhase) -> bool| {
        let found = records.iter().find(|r| matches!(&r.event, Event::Fault { phase, .. } if wanted(phase)));
        found.unwrap_or_else(|| panic!("no such phase")).at
    };
    at(&|phase| matches!(phase, FaultPhase::Proved { .. }));
    at(&|phase| matches!(phase, FaultPhase::HealProved));
    (at(&|phase| *phase == FaultPhase::Injected), at(&|phase| *phase == FaultPhase::HealRequested))
}

fn of<'r>(records: &'r [Record], process: &str) -> impl Iterator<Item = &'r Record> {
    let process = ProcessName::new(process);
    records.iter().filter(move |r| r.process == process)
}

#[test]
fn a_stopped_worker_says_nothing_until_it_goes_on() {
    let records = history(&with("redlock", Fault::new(fault::Stop {}, 2 * SECOND), "worker-1"), "redlock");
    let (from, to) = span(&records);
    assert!(of(&records, "worker-1").all(|r| r.at <= from || r.at >= to));
    assert!(of(&records, "worker-2").any(|r| r.at > from && r.at < to), "nobody else is stopped");
    let is_gap = |e: &Event| matches!(e, Event::Stall { from, to, .. } if to.since(*from) >= 2 * SECOND);
    assert!(of(&records, "worker-1").any(|r| is_gap(&r.event)));
}

#[test]
fn a_member_of_the_store_that_restarts_answers_again() {
    let kill = Fault::new(fault::Kill {}, SECOND / 2);
    let records = history(&with("etcd", kill, "etcd-2"), "etcd");
    let (_, restarted) = span(&records);
    let is_lost = |why: &Option<String>| why.as_ref().is_some_and(|why| why.contains("connection lost"));
    let lost = records.iter().filter(|r| matches!(&r.event, Event::AcquireFailed { detail, .. } if is_lost(detail)));
    let later = restarted.plus(SECOND);
    assert_eq!(lost.filter(|r| r.at > later).count(), 0);
    assert!(records.iter().any(|r| r.at > later && matches!(r.event, Event::Acquired { .. })));
}

#[test]
fn a_leader_that_restarts_leads_only_after_an_election() {
    let kill = Fault::new(fault::Kill {}, SECOND / 2);
    let records = history(&with("etcd", kill, "etcd-1"), "etcd");
    let (killed, restarted) = span(&records);
    let acquired: Vec<Stamp> =
        records.iter().filter(|r| matches!(r.event, Event::Acquired { .. })).map(|r| r.at).collect();
    // The election timeout is 1 s; a member's last answer may be under way when the leader is killed.
    let elected = killed.plus(Duration::from_millis(900));
    assert!(acquired.iter().all(|at| *at < restarted || *at > elected), "{restarted:?} to {elected:?}: {acquired:?}");
    assert!(acquired.iter().any(|at| *at > restarted.plus(SECOND)));
}

#[test]
fn a_member_that_is_cut_off_from_the_leader_renews_no_lease() {
    let mut plan = plan("etcd", "none", 1);
    (plan.time, plan.lease, plan.nemesis) = (20 * SECOND, 3 * SECOND, vec!["partition".to_owned()]);
    let script = |worker: &str, from| {
        let (writes, reads, attempts) = (None, None, None);
        Scripted { worker: worker.into(), from, sections: 1, every: SECOND, writes, reads, attempts }
    };
    plan.workload.workers = 2;
    plan.workload.work = Range { from: 9 * SECOND, to: 9 * SECOND };
    plan.workload.renew = Some(SECOND / 2);
    plan.workload.script = vec![script("worker-1", SECOND), script("worker-2", SECOND * 3 / 2)];
    // Of the members, worker 1 reaches only etcd-1, which reaches none of the others.
    let cut = |id, node: &str, from: &[&str], at| {
        let from = from.iter().map(|node| (*node).into()).collect();
        let fault = Fault::new(fault::Partition { cut: CutMode::Reject }, 10 * SECOND).on_links(Direction::Both, from);
        Step { id: FaultId(id), fault, target: Target::Node(node.into()), when: When::At(at) }
    };
    let (earlier, later) = (Duration::from_millis(1_900), 2 * SECOND);
    plan.schedule = vec![
        cut(1, "etcd-1", &["etcd-2", "etcd-3"], later),
        cut(2, "etcd-2", &["worker-1"], earlier),
        cut(3, "etcd-3", &["worker-1"], earlier),
    ];
    plan.validate().expect("a valid plan");
    let records = history(&plan, "etcd");
    let is_cut = |r: &&Record| matches!(&r.event, Event::Fault { fault: FaultId(1), phase: FaultPhase::Injected, .. });
    let is_acquired = |r: &&Record| matches!(r.event, Event::Acquired { .. });
    let cut = records.iter().find(is_cut).expect("a partition").at;
    let acquired = of(&records, "worker-2").find(is_acquired).expect("a second hold").at;
    // An election takes 1 s and gives the lease its 3 s again; the leader looks at its leases every 0.5 s.
    let waited = acquired.since(cut);
    assert!(waited > 3 * SECOND && waited < 5 * SECOND, "{waited:?}");
}

#[test]
fn a_node_that_rejoins_with_counters_has_lost_everything_else() {
    let others = (2..=5).map(|n| format!("redis-{n}").as_str().into()).collect();
    let amnesia = Fault::new(fault::Amnesia { counters_of: others }, SECOND / 2);
    // The fault is proved only if the marker in the data is gone.
    span(&history(&with("redlock", amnesia, "redis-1"), "redlock"));
}

#[test]
fn no_two_processes_of_workers_name_their_attempts_alike() {
    let kill = || Fault::new(fault::Kill {}, SECOND / 2);
    let mut plan = with("redis", kill(), "worker-1");
    let (target, when) = (Target::Node("worker-2".into()), When::At(4 * SECOND));
    plan.schedule.push(Step { id: FaultId(2), fault: kill(), target, when });
    let records = history(&plan, "redis");
    let mut begun = BTreeMap::new();
    for record in &records {
        if let Event::Acquire { attempt, .. } = &record.event {
            assert_eq!(begun.insert(*attempt, &record.process), None, "{attempt}");
        }
    }
    for process in ["worker-1#2", "worker-2#2"] {
        assert!(begun.values().any(|of| **of == ProcessName::new(process)), "{process}");
    }
}

#[test]
fn a_stopped_server_answers_nobody() {
    let records = history(&with("redis", Fault::new(fault::Stop {}, 2 * SECOND), "redis-1"), "redis");
    let (from, to) = span(&records);
    let any_granted = |answers: &Answers| answers.iter().any(|a| matches!(a.1, NodeAnswer::Granted));
    let granted = |r: &&Record| matches!(&r.event, Event::Acquired { answers, .. } if any_granted(answers));
    // Answers that were sent before may still arrive.
    let later = from.plus(Duration::from_millis(50));
    assert_eq!(records.iter().filter(granted).filter(|r| r.at > later && r.at < to).count(), 0);
    assert!(records.iter().filter(granted).any(|r| r.at > to));
}

#[test]
fn a_slow_worker_runs_for_its_share_of_each_period_and_as_before_when_it_is_healed() {
    for percent in [2, 20, 50] {
        let fault = Fault::new(fault::Slow { percent }, 3 * SECOND);
        let records = history(&with("redlock", fault, "worker-1"), "redlock");
        let (from, to) = span(&records);
        let gaps = |records: &[Record]| -> Duration {
            let inside = of(records, "worker-1").filter_map(|r| match r.event {
                Event::Stall { from: since, to: until, .. } => Some(until.min(to).since(since.max(from))),
                _ => None,
            });
            inside.sum()
        };
        let (stood, all) = (gaps(&records), to.since(from));
        let share = stood.as_secs_f64() / all.as_secs_f64();
        let expected = 1.0 - f64::from(percent) / 100.0;
        assert!((share - expected).abs() < 0.04, "{percent} %: it stood for {share} of the time");
        let after = to.plus(Duration::from_millis(50));
        assert!(!of(&records, "worker-1").any(|r| r.at > after && matches!(r.event, Event::Stall { .. })));
    }
}

#[test]
fn a_slow_server_is_seen_to_answer_later_and_a_slow_resource_to_tick_late() {
    for (backend, node) in [("redis", "redis-1"), ("etcd", "etcd-2"), ("redlock", "resource")] {
        span(&history(&with(backend, Fault::new(fault::Slow { percent: 2 }, 2 * SECOND), node), backend));
    }
}

#[test]
fn a_strobe_ends_leases_of_a_redis_node_early_and_is_gone_when_it_is_healed() {
    let strobe = |by_ms| {
        Fault::new(
            fault::Clock { clock: WhichClock::Wall, change: ClockChange::Strobe { by_ms, every_ms: 50 } },
            3 * SECOND,
        )
    };
    // Whoever asks a second time while another holds is refused, unless the key has gone too early.
    let overlaps = |by_ms| {
        let plan = with("redis", strobe(by_ms), "redis-1");
        let records = history(&plan, "redis");
        let (from, to) = span(&records);
        let mut held: Option<(history::HoldId, Stamp)> = None;
        let (mut during, mut after) = (0, 0);
        for record in &records {
            match &record.event {
                Event::Acquired { attempt, .. } => {
                    let is_early = held.is_some_and(|(_, since)| record.at.since(since) < plan.lease);
                    during += u32::from(is_early && record.at >= from && record.at <= to);
                    after += u32::from(is_early && record.at > to.plus(plan.lease));
                    held = Some((*attempt, record.at));
                }
                Event::Release { hold } if held.is_some_and(|(id, _)| id == *hold) => held = None,
                _ => {}
            }
        }
        (during, after)
    };
    let (during, after) = overlaps(5_000);
    assert!(during > 0 && after == 0, "{during} while it was on, {after} afterwards");
    assert_eq!(overlaps(100), (0, 0), "less than a lease by far");
}

/// Cuts a worker that is alone off from its peer, and returns the record and the time of the reset.
fn with_a_reset(target: &str, peer: &str) -> (Vec<Record>, Stamp) {
    let cut = Fault::new(fault::Partition { cut: CutMode::Drop }, 4 * SECOND);
    let mut plan = with("redis", cut.on_links(Direction::Both, vec![peer.into()]), target);
    // No other worker keeps worker 1 from its peer, so its first lost packet is retransmitted about 6 s later.
    plan.workload.workers = 1;
    let records = history(&plan, "redis");
    let (_, to) = span(&records);
    let is_reset =
        |r: &&Record| matches!(r.event, Event::Fault { phase: FaultPhase::ConnectionsReset { count: 1 }, .. });
    let reset = records.iter().find(is_reset).expect("a reset").at;
    assert!(reset.since(to) >= 2 * SECOND && reset.since(to) < 3 * SECOND, "{:?}", reset.since(to));
    (records, reset)
}

#[test]
fn a_connection_that_stays_silent_is_reset_whichever_end_is_the_target() {
    for (target, peer) in [("redis-1", "worker-1"), ("resource", "worker-1")] {
        let (records, reset) = with_a_reset(target, peer);
        assert!(records.iter().any(|r| matches!(r.event, Event::Admission { .. }) && r.at > reset), "{target}");
    }
}

#[test]
fn a_connection_that_stays_silent_after_the_heal_is_reset() {
    let (records, reset) = with_a_reset("worker-1", "resource");
    let (from, _) = span(&records);
    let is_delayed = |r: &Record| matches!(r.event, Event::PacketsDelayed { .. });
    assert!(!records.iter().any(is_delayed), "the lost packet never arrives");
    let failed = |r: &Record| matches!(r.event, Event::AccessFailed { .. }) && r.at >= reset;
    let admitted = |r: &Record| matches!(r.event, Event::Admission { .. });
    assert!(records.iter().any(failed), "the client learns of the reset");
    assert!(!records.iter().any(|r| admitted(r) && r.at > from.plus(SECOND) && r.at < reset));
    assert!(records.iter().any(|r| admitted(r) && r.at > reset), "and connects again");
}

#[test]
fn a_flapping_link_drops_packets_in_turns_and_is_whole_when_it_is_healed() {
    let flap = |every| Fault::new(fault::Flap { every }, 3 * SECOND);
    let records = history(&with("redlock", flap(SECOND / 2), "worker-1"), "redlock");
    let (from, to) = span(&records);
    assert!(to.since(from) >= 3 * SECOND && to.since(from) < 4 * SECOND, "{:?}", to.since(from));
    let asked = |r: &&Record| matches!(r.event, Event::Acquire { .. });
    let got = |r: &&Record| matches!(r.event, Event::Acquired { .. });
    let inside = |r: &&Record| r.at > from && r.at < to;
    let count = |wanted: &dyn Fn(&&Record) -> bool| of(&records, "worker-1").filter(inside).filter(wanted).count();
    // Between two cuts the worker acquires; during a cut its attempts end without a hold.
    assert!(count(&got) >= 1 && count(&got) < count(&asked), "{} of {}", count(&got), count(&asked));
}

#[test]
fn a_fault_that_fails_ends_the_run_when_the_active_faults_are_healed() {
    let pause = || Fault::new(fault::Pause {}, 2 * SECOND);
    let mut plan = with("redis", pause(), "redis-1");
    // The cluster has no such worker, so the restart fails.
    let kill = Fault::new(fault::Kill {}, SECOND / 2);
    for (id, fault, node, at) in [(2, kill, "worker-9", 3), (3, pause(), "worker-1", 5)] {
        let (target, when) = (Target::Node(node.into()), When::At(at * SECOND));
        plan.schedule.push(Step { id: FaultId(id), fault, target, when });
    }
    let mut records = Vec::new();
    let setup =
        Setup { run: "test", plan: &plan, backend: "redis", resource_bug: None, redraw: None, with_truth: false };
    let error = simulate(&setup, &mut |record| records.push(record)).expect_err("a fault fails").to_string();
    assert!(error.starts_with("fault 2 of the schedule: worker-9"), "{error}");
    // The first fault lasts from 2 s to 4 s of the 10 s.
    let (injected, _) = span(&records);
    let last = records.iter().map(|record| record.at).max().expect("records");
    assert!(last.since(injected) < 4 * SECOND, "{:?}", last.since(injected));
    assert!(!records.iter().any(|r| matches!(r.event, Event::Fault { fault: FaultId(3), .. })));
}

#[test]
fn the_heal_of_a_delay_delivers_every_late_packet_at_once() {
    let delay = Fault::new(fault::Delay { by: (3 * SECOND).into() }, 2 * SECOND);
    let records = history(&with("redis", delay, "redis-1"), "redis");
    let (injected, heal_requested) = span(&records);
    // A probe takes as long as the delay, and the fault stays on until the probe has come back.
    assert!(heal_requested.since(injected) >= 3 * SECOND);
    let delays = records.iter().filter_map(|r| match r.event {
        Event::PacketsDelayed { since, until, .. } => Some((since, until)),
        _ => None,
    });
    let delays: Vec<(Stamp, Stamp)> = delays.collect();
    let last = delays.iter().map(|(_, until)| *until).max().expect("late packets");
    assert!(last < heal_requested.plus(Duration::from_millis(20)), "{:?}", last.since(heal_requested));
    assert!(delays.iter().any(|(since, until)| until.since(*since) < 3 * SECOND), "early: {delays:?}");
}

#[test]
fn a_fault_of_the_holder_misses_a_hold_that_ended_before() {
    for kind in ["partition", "flap", "delay", "loss", "clock"] {
        let mut missed = 0;
        for seed in 1..=6 {
            let mut plan = plan("redis", &format!("{kind}:holder+300ms"), seed);
            plan.workload.rate_per_s = 20.0;
            plan.workload.work = Range { from: Duration::from_millis(5), to: Duration::from_millis(10) };
            let records = history(&plan, "redis");
            missed += missed_targets(&records).len();
            assert_eq!(missed_targets(&records), ended_before(&records), "{kind}, seed {seed}");
        }
        assert!(missed > 0, "{kind}");
    }
}

fn missed_targets(records: &[Record]) -> Vec<FaultId> {
    let missed = records.iter().filter_map(|r| match &r.event {
        Event::Fault { fault, phase: FaultPhase::MissedTarget, .. } => Some(*fault),
        _ => None,
    });
    missed.collect()
}

/// The proved faults whose hold had ended when they were on.
fn ended_before(records: &[Record]) -> Vec<FaultId> {
    let (mut holds, mut ended, mut injected, mut found) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), Vec::new());
    for record in records {
        match &record.event {
            Event::Release { hold } | Event::GaveUp { hold } | Event::LossNoticed { hold } => {
                ended.entry(*hold).or_insert(record.at);
            }
            Event::Fault { fault, phase, .. } => match phase {
                FaultPhase::Requested { hold: Some(hold), .. } => drop(holds.insert(*fault, *hold)),
                FaultPhase::Injected => drop(injected.insert(*fault, record.at)),
                FaultPhase::Proved { .. } => {
                    let end = holds.get(fault).and_then(|hold| ended.get(hold));
                    found.extend(end.filter(|end| **end <= injected[fault]).map(|_| *fault));
                }
                _ => {}
            },
            _ => {}
        }
    }
    found
}
