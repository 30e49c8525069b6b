use std::path::Path;

use history::{NodeName, Token};

use super::*;
use crate::{
    judge::{Judged, judge},
    timeline::read,
};

fn pause() -> (Judged, Timeline) {
    let history = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl"));
    let judged = judge(history).unwrap();
    let timeline = read(history, &judged.verdicts).unwrap();
    (judged, timeline)
}

#[test]
fn all_causes_that_explain_a_window_together_are_named() {
    let (_, mut timeline) = pause();
    let pause = timeline.faults[0].clone();
    let more = [(FaultKind::Amnesia, "redis-2"), (FaultKind::Amnesia, "redis-1"), (FaultKind::Clock, "redis-3")];
    let more = more.map(|(kind, node)| FaultSpan { kind, node: NodeName::from(node), ..pause.clone() });
    timeline.faults.extend(more);
    let both = "The cause: the run restarted redis-1 and redis-2 without their data and moved the clock of redis-3.";
    for (causes, told) in [
        ("clock+amnesia", both),
        ("amnesia+clock+amnesia, pause", both),
        ("pause, amnesia+clock", "The cause: the run paused worker-1."),
        // No kill is near the window, and a stall is no fault of the run.
        ("kill+clock", "The cause: kill+clock."),
        ("pause+stall, clock", "The cause: pause+stall, clock."),
        ("overrun", "The cause: the work took longer than the lease."),
    ] {
        timeline.windows[0].causes = causes.to_owned();
        assert_eq!(cause(&timeline, 0), told);
    }
    // A pause of a worker without a hold of the window explains nothing.
    timeline.faults.push(FaultSpan { node: NodeName::from("worker-3"), ..pause });
    timeline.windows[0].causes = "pause".to_owned();
    assert_eq!(cause(&timeline, 0), "The cause: the run paused worker-1.");
    timeline.faults.retain(|fault| fault.node.as_str() != "redis-2");
    timeline.windows[0].causes = "amnesia".to_owned();
    assert_eq!(cause(&timeline, 0), "The cause: the run restarted redis-1 without its data.");
}

#[test]
fn a_refusal_is_explained_by_a_newer_token_only_if_there_was_one() {
    let (_, mut timeline) = pause();
    let mut told = |seen: Option<u64>| {
        let write = timeline.holds[0].acts.iter_mut().find(|act| act.kind == RequestKind::Write).unwrap();
        let writes = write.decisions.iter_mut().find(|decision| decision.arm == Arm::Writes).unwrap();
        writes.seen = seen.map(Token);
        fence(&timeline, &timeline.holds[0], 0).unwrap()
    };
    assert_eq!(told(Some(42)), "The fence refused this write, because it had seen a newer token.");
    assert_eq!(told(Some(41)), "The fence refused this write.");
    assert_eq!(told(None), "The fence refused this write.");
}

#[test]
fn a_write_before_the_window_is_not_the_stale_write() {
    let (_, mut timeline) = pause();
    let acts = &mut timeline.holds[0].acts;
    let stale = acts.iter().find(|act| act.kind == RequestKind::Write).unwrap();
    let mut early = Act { at: acts[0].at, ..stale.clone() };
    early.decisions.iter_mut().for_each(|decision| decision.admitted = true);
    acts.insert(0, early);
    assert!(fence(&timeline, &timeline.holds[0], 0).unwrap().starts_with("The fence refused this write"));
}

#[test]
fn a_write_inside_the_own_promise_is_not_the_stale_write() {
    let (_, mut timeline) = pause();
    let hold = &mut timeline.holds[0];
    // The lock service gave the key away inside the promise, and the holder wrote before the promise ended.
    hold.promise_end = Stamp(16_000_000_000);
    let stale = hold.acts.iter().find(|act| act.kind == RequestKind::Write).unwrap();
    let mut early = Act { at: Stamp(15_000_000_000), ..stale.clone() };
    early.decisions.iter_mut().for_each(|decision| decision.admitted = true);
    hold.acts.insert(1, early);
    assert!(fence(&timeline, &timeline.holds[0], 0).unwrap().starts_with("The fence refused this write"));
}

#[test]
fn only_a_freeze_at_the_end_of_the_lease_hides_the_end() {
    let (_, mut timeline) = pause();
    let hold = timeline.holds[0].clone();
    assert_eq!(frozen(&timeline, &hold, |_| true), Some(("was frozen", "5.00 s".to_owned())));
    timeline.stalls.clear();
    let end = hold.entitled_until();
    timeline.faults[0].proved = Some((end.plus(Duration::from_millis(1)), end.plus(Duration::from_secs(3))));
    assert_eq!(frozen(&timeline, &hold, |_| true), None, "the client could notice the end before");
}

#[test]
fn a_freeze_that_is_no_cause_is_not_told_as_one() {
    let (judged, timeline) = pause();
    let stale = &judged.verdicts.lock().unwrap().windows[0];
    for (cause, told) in [
        ("pause", "worker-1 was frozen for 5.00 s until its lease had ended, and it wrote "),
        ("stall", "worker-1 did not run for 5.00 s until its lease had ended, and it wrote "),
        ("delay", "worker-1 wrote "),
        ("unexplained", "worker-1 wrote "),
        ("pause+delay", "worker-1 wrote "),
    ] {
        let window = Window { causes: vec![cause.parse().unwrap()], ..stale.clone() };
        let claim = of_window(&judged.verdicts, &timeline, &window, 0);
        assert!(claim.starts_with(told), "{cause}: {claim}");
        assert_eq!(claim.contains(" The cause: "), told == "worker-1 wrote ", "{cause}: {claim}");
    }
}

#[test]
fn a_freeze_at_the_release_outlasts_no_lease() {
    let (_, mut timeline) = pause();
    timeline.holds[0].release = Some(timeline.holds[0].acquired.plus(Duration::from_millis(100)));
    assert_eq!(frozen(&timeline, &timeline.holds[0], |_| true), None);
}

#[test]
fn a_freeze_that_was_not_proved_is_not_told() {
    let (_, mut timeline) = pause();
    let hold = timeline.holds[0].clone();
    timeline.stalls.clear();
    let found_none = FaultSpan {
        proved: None,
        unproved: Some("expected a running process; there was none".to_owned()),
        injected: None,
        heal_requested: None,
        healed: None,
        ..timeline.faults[0].clone()
    };
    timeline.faults = vec![found_none];
    assert_eq!(frozen(&timeline, &hold, |_| true), None, "the fault was never on");
    timeline.faults[0].injected = timeline.faults[0].requested;
    assert_eq!(frozen(&timeline, &hold, |_| true), None);
}

#[test]
fn of_several_freezes_the_one_that_outlasts_the_lease_is_told() {
    let (_, mut timeline) = pause();
    let hold = timeline.holds[0].clone();
    let early = FaultSpan { proved: Some((hold.sent, hold.acquired)), ..timeline.faults[0].clone() };
    timeline.faults.insert(0, early);
    assert_eq!(frozen(&timeline, &hold, |_| true), Some(("was frozen", "5.00 s".to_owned())));
}

#[test]
fn the_claim_of_a_lease_overlap_tells_of_no_write() {
    let (judged, mut timeline) = pause();
    let stale = &judged.verdicts.lock().unwrap().windows[0];
    let told = |timeline: &Timeline, overlap_ms: f64| {
        let (kind, writes) = (WindowKind::LeaseOverlap, 0);
        let window = Window { kind, writes, staleness_ms: None, overlap_ms, ..stale.clone() };
        let claim = of_window(&judged.verdicts, timeline, &window, 0);
        assert!(!claim.contains("this write"), "{claim}");
        claim.split(" The cause").next().unwrap().to_owned()
    };
    let got = "worker-2 got the lock while worker-1 had a valid lease of it.";
    assert_eq!(told(&timeline, 500.0), "worker-1 and worker-2 both had a valid lease of the lock for 500 ms.");
    let short = "worker-1 and worker-2 both had a valid lease of the lock for less than 1 ms.";
    assert_eq!(told(&timeline, 0.2), short);
    assert_eq!(told(&timeline, 0.0), format!("{got} The hold of worker-2 ended at once."));
    let second = &mut timeline.holds[1];
    second.killed = Some(second.acquired.plus(Duration::from_micros(200)));
    assert_eq!(told(&timeline, 0.2), format!("{got} worker-2 was killed at once."));
}

#[test]
fn a_window_of_reads_and_writes_is_not_told_as_a_late_write() {
    let (judged, timeline) = pause();
    let stale = &judged.verdicts.lock().unwrap().windows[0];
    for (reads, writes, acted) in [(0, 1, " wrote 3.05 s "), (2, 0, " read 3.05 s "), (1, 1, " acted 3.05 s ")] {
        let window = Window { reads, writes, ..stale.clone() };
        let claim = of_window(&judged.verdicts, &timeline, &window, 0);
        assert!(claim.contains(acted), "{claim}");
    }
}

#[test]
fn a_lock_whose_loss_the_client_noticed_is_no_kept_promise() {
    let (judged, mut timeline) = pause();
    let told = |timeline: &Timeline| lesson(&judged.verdicts, timeline, ClientKind::Unchecked, Some(0)).unwrap();
    assert!(told(&timeline).starts_with(KEPT));
    timeline.holds[0].lost = Some(timeline.holds[0].acquired.plus(Duration::from_millis(100)));
    let lesson = told(&timeline);
    assert!(lesson.starts_with("The client had noticed that it had lost the lock, and still acted."), "{lesson}");
    assert!(!lesson.contains("kept its promise") && !lesson.contains("does not notice"), "{lesson}");
}

#[test]
fn a_lock_that_was_given_away_inside_a_lease_is_no_kept_promise() {
    let (judged, mut timeline) = pause();
    timeline.holds[0].promise_end = timeline.holds[1].acquired.plus(Duration::from_millis(1));
    for client in [ClientKind::Unchecked, ClientKind::Checking] {
        let lesson = lesson(&judged.verdicts, &timeline, client, Some(0)).unwrap();
        assert!(lesson.starts_with(BROKEN) && !lesson.contains("kept its promise"), "{lesson}");
    }
}

#[test]
fn a_lock_whose_client_was_killed_is_no_kept_promise() {
    let (judged, mut timeline) = pause();
    timeline.holds[0].killed = Some(timeline.holds[0].acquired.plus(Duration::from_millis(100)));
    let told = |client| lesson(&judged.verdicts, &timeline, client, Some(0)).unwrap();
    for lesson in [ClientKind::Unchecked, ClientKind::Checking].map(told) {
        assert!(lesson.starts_with("The old holder was killed, and a request that it had sent"), "{lesson}");
        assert!(!lesson.contains("kept its promise") && !lesson.contains("stopped or cut off"), "{lesson}");
    }
}

#[test]
fn a_fault_without_proof_is_not_called_no_fault() {
    let (mut judged, timeline) = pause();
    judged.verdicts.verdict = Verdict::Inconclusive;
    judged.verdicts.facts.faults_proved = 0;
    assert!(claim(&judged.verdicts, &timeline, None).contains("holds, no proved fault."));
    judged.verdicts.facts.faults_requested = 0;
    assert!(claim(&judged.verdicts, &timeline, None).contains("holds, no fault."));
}

#[test]
fn a_run_with_an_unplanned_fault_is_not_called_one_without_a_fault() {
    assert_eq!(faults(0, 0, 1), "1 unplanned fault");
    assert_eq!(faults(1, 0, 2), "no proved fault and 2 unplanned faults");
    assert_eq!(faults(2, 1, 1), "1 proved fault and 1 unplanned fault");
    assert_eq!([faults(0, 0, 0), faults(2, 2, 0)], ["no fault", "2 proved faults"]);
}
