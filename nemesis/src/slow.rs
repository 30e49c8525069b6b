//! `slow`: the target gets very little processor time.
//!
//! Possible on workers, lock nodes and the resource. The kernel gives a container a new quota in each period of 100 ms.
//! After the container has used its quota, none of its processes runs until the next period. So a target that needs
//! less than its quota is not delayed, and the proof must show a delay.
//!
//! One of the run's own processes proves the fault by a late tick: the delay is at least half of the idle part of a
//! period. The time before the fault does not count.
//!
//! A server reports no ticks. Its healthcheck runs in its container and uses the same quota. Either the kernel has held
//! the container back for at least as long during the fault, by its own count, or the healthcheck takes at least twice
//! as long as before the fault, and 20 ms longer. (On a busy machine it takes long before the fault, too.) If nobody
//! counts, and there was no answer before the fault, the fault is not proved. Without such an answer any answer after
//! the heal proves the heal.

use std::time::Duration;

use futures::future::join;
use history::{FaultPhase, fault::Slow};

use crate::{
    AnswerTime, ClusterError,
    drawing::Drawing,
    driver::Driver,
    injection::{Injection, PROOF},
    spec::TargetSpec,
};

/// The period after which the kernel renews a quota.
const PERIOD: Duration = Duration::from_millis(100);
/// The proof needs a request that takes `SLOWER` times as long as before the fault, and longer by at least `SLOWER_BY`.
const SLOWER: u32 = 2;
const SLOWER_BY: Duration = Duration::from_millis(20);
/// The time between two checks whether a server is as fast as before the fault.
const LOOK: Duration = Duration::from_millis(100);
/// The number of these checks.
const LOOKS: u32 = 30;

impl Driver for Slow {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::Holder;

    fn draw(drawing: &mut Drawing<'_>) -> (Slow, Duration) {
        (Slow { percent: Slow::PERCENT_MIN }, drawing.lasting(1.5..=2.5))
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        let lasting = injection.step.fault.lasting;
        if injection.is_server {
            return server(injection, lasting, self.percent).await;
        }
        process(injection, lasting, self.percent).await
    }
}

async fn process(injection: &Injection<'_>, lasting: Duration, percent: u8) -> Result<(), ClusterError> {
    let Some(process) = injection.live_view.look(|view| view.process(&injection.node)) else {
        injection.requested().await?;
        let why = "expected a running process to slow down; there was none".into();
        return injection.stamp(FaultPhase::Unproved { why }).await.map(drop);
    };
    injection.requested().await?;
    injection.cluster.slow_down(&injection.node, percent).await?;
    let from = injection.stamp(FaultPhase::Injected).await?;
    injection.let_go().await?;
    injection.control.sleep(lasting).await?;
    let to = injection.stamp(FaultPhase::HealRequested).await?;
    injection.cluster.speed_up(&injection.node).await?;
    let healed = injection.stamp(FaultPhase::Healed).await?;

    let least = least(percent);
    let longest = |view: &crate::View| view.stall_within(&process, (from, to)).map(|(f, t)| t.since(f));
    let late = |view: &crate::View| longest(view).filter(|gap| *gap >= least);
    if injection.live_view.within(injection.control, PROOF, late).await.is_some() {
        injection.stamp(FaultPhase::Proved { from, to }).await?;
        injection.missed(from).await?;
    } else {
        let seen = injection.live_view.look(longest).map_or(0, |gap| gap.as_millis());
        let why = format!(
            "expected a gap of ≥ {} ms between ticks, longest seen: {seen} ms; the target may \
             need no more than {percent} % of a processor",
            least.as_millis()
        );
        injection.stamp(FaultPhase::Unproved { why }).await?;
    }
    injection.prove_alive(healed).await
}

/// The shortest delay that proves the fault: half of the idle part of a period.
fn least(percent: u8) -> Duration {
    PERIOD * (100 - u32::from(percent)) / 200
}

async fn server(injection: &Injection<'_>, lasting: Duration, percent: u8) -> Result<(), ClusterError> {
    let usual = usual(injection).await?;
    let held_back_before = injection.cluster.held_back(&injection.node).await?;
    injection.requested().await?;
    injection.cluster.slow_down(&injection.node, percent).await?;
    let from = injection.stamp(FaultPhase::Injected).await?;
    let (took, slept) = join(injection.cluster.answer_time(&injection.node), injection.control.sleep(lasting)).await;
    let took = took?;
    slept?;
    let to = injection.stamp(FaultPhase::HealRequested).await?;
    injection.cluster.speed_up(&injection.node).await?;
    injection.stamp(FaultPhase::Healed).await?;
    // The kernel counts a delay when the delay ends. A container that has started again counts from zero.
    let held_back = injection.cluster.held_back(&injection.node).await?;
    let held_back = held_back.zip(held_back_before).map(|(after, before)| after.saturating_sub(before));
    let is_slower = |answer: AnswerTime, usual: Duration| match answer {
        AnswerTime::Well(took) | AnswerTime::Failed(took) => took >= usual * SLOWER && took >= usual + SLOWER_BY,
        AnswerTime::Silent => true,
    };
    let is_proved =
        held_back.is_some_and(|time| time >= least(percent)) || usual.is_some_and(|usual| is_slower(took, usual));
    let phase = if is_proved {
        FaultPhase::Proved { from, to }
    } else {
        FaultPhase::Unproved { why: why(held_back, usual, took) }
    };
    injection.stamp(phase).await?;
    let Some(usual) = usual else { return injection.prove_answers().await };
    for _ in 0..LOOKS {
        // A request that fails at once shows neither the fault nor the heal.
        let answer = injection.cluster.answer_time(&injection.node).await?;
        if matches!(answer, AnswerTime::Well(_)) && !is_slower(answer, usual) {
            return injection.stamp(FaultPhase::HealProved).await.map(drop);
        }
        injection.control.sleep(LOOK).await?;
    }
    Ok(())
}

/// Says why a fault of a server was not proved.
fn why(held_back: Option<Duration>, usual: Option<Duration>, took: AnswerTime) -> String {
    let counted =
        held_back.map_or_else(String::new, |time| format!("; the kernel held its processes back for {time:?}"));
    let Some(usual) = usual else {
        return format!("expected an answer of the server before the fault, as a reference; there was none{counted}");
    };
    let seen = match took {
        AnswerTime::Failed(took) => format!("the request failed after {took:?}"),
        AnswerTime::Well(took) => format!("it took {took:?}"),
        AnswerTime::Silent => "there was none".to_owned(),
    };
    let least = (usual * SLOWER).max(usual + SLOWER_BY);
    format!("expected an answer that takes {least:?} or more ({usual:?} before the fault); {seen}{counted}")
}

/// Measures the time of a request without the fault: the slower of two requests.
async fn usual(injection: &Injection<'_>) -> Result<Option<Duration>, ClusterError> {
    let first = injection.cluster.answer_time(&injection.node).await?;
    let second = injection.cluster.answer_time(&injection.node).await?;
    Ok(match (first, second) {
        (AnswerTime::Well(first), AnswerTime::Well(second)) => Some(first.max(second)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use futures::executor::block_on;
    use history::{Event, Fault, FaultId, Stamp, Step, Target, Until, When};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        LiveView,
        double::{Answers, Double, phase_of},
        driver,
        waits::tests,
    };

    const USUAL: AnswerTime = AnswerTime::Well(Duration::from_millis(100));
    const LATE: AnswerTime = AnswerTime::Well(Duration::from_millis(1_400));
    const FAILED: AnswerTime = AnswerTime::Failed(Duration::from_millis(1));

    /// A server that gets two requests before the fault and one during the fault. Notes the phases of the fault.
    struct Server {
        /// The answers to these requests.
        first: [AnswerTime; 3],
        /// The answer to every request after the heal.
        later: AnswerTime,
        /// The counts of the kernel that are still to be reported, the last one first.
        held_back: Mutex<Vec<Duration>>,
        requests: AtomicU32,
        is_slow: AtomicBool,
        phases: Mutex<Vec<FaultPhase>>,
    }

    impl Answers for Server {
        fn set_slow(&self, is_slow: bool) {
            self.is_slow.store(is_slow, Ordering::Relaxed);
        }

        fn answer_time(&self) -> AnswerTime {
            let request = self.requests.fetch_add(1, Ordering::Relaxed);
            self.first.get(request as usize).copied().unwrap_or(self.later)
        }

        fn held_back(&self) -> Option<Duration> {
            self.held_back.lock().pop()
        }

        fn answers(&self) -> bool {
            !self.is_slow.load(Ordering::Relaxed)
        }

        fn stamp(&self, event: Event) -> Stamp {
            self.phases.lock().push(phase_of(event));
            Stamp(1)
        }

        fn sleep(&self, _: Duration) {}
    }

    /// Slows the server down, and returns the phases of the fault.
    fn slowed(first: [AnswerTime; 3], later: AnswerTime) -> Vec<FaultPhase> {
        counted(first, later, &[])
    }

    /// As [`slowed`], with a kernel that has counted these times in milliseconds: before the fault, and after it.
    fn counted(first: [AnswerTime; 3], later: AnswerTime, held_back_ms: &[u64]) -> Vec<FaultPhase> {
        let fault = Fault::new(Slow { percent: 1 }, Duration::from_secs(2));
        let (target, when) = (Target::Node("redis-1".into()), When::At(Duration::ZERO));
        let step = Step { id: FaultId(1), fault, target, when };
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let (requests, is_slow, phases) = Default::default();
        let held_back = Mutex::new(held_back_ms.iter().rev().copied().map(Duration::from_millis).collect());
        let (double, live_view) =
            (Double(Server { first, later, held_back, requests, is_slow, phases }), LiveView::new());
        block_on(driver::inject(&double.injection(&live_view, &plan, &step, "redis-1".into()))).unwrap();
        double.0.phases.into_inner()
    }

    #[test]
    fn a_slow_server_without_a_reference_is_proved_healed() {
        let phases = slowed([FAILED, USUAL, LATE], USUAL);
        assert!(matches!(&phases[4], FaultPhase::Unproved { why } if why.contains("as a reference")), "{phases:?}");
        assert_eq!(phases[5..], [FaultPhase::HealProved]);
    }

    #[test]
    fn the_count_of_the_kernel_proves_the_fault_if_the_machine_was_slow_before_it_too() {
        // 1 %: half of the idle part of a period is 49.5 ms.
        for (held_back_ms, is_proved) in
            [(&[3_000, 3_050][..], true), (&[3_000, 3_049], false), (&[3_000, 900], false), (&[3_000], false)]
        {
            let phases = counted([LATE, LATE, LATE], USUAL, held_back_ms);
            assert_eq!(matches!(phases[4], FaultPhase::Proved { .. }), is_proved, "{held_back_ms:?}");
            assert_eq!(phases[5..], [FaultPhase::HealProved], "{held_back_ms:?}");
            let phases = counted([FAILED, USUAL, LATE], USUAL, held_back_ms);
            assert_eq!(matches!(phases[4], FaultPhase::Proved { .. }), is_proved, "no reference, {held_back_ms:?}");
        }
        let phases = counted([LATE, LATE, LATE], USUAL, &[3_000, 3_049]);
        assert!(
            matches!(&phases[4], FaultPhase::Unproved { why } if why.ends_with("held its processes back for 49ms"))
        );
    }

    #[test]
    fn a_server_that_fails_after_its_heal_is_not_proved_healed() {
        let proved = FaultPhase::Proved { from: Stamp(1), to: Stamp(1) };
        assert_eq!(slowed([USUAL, USUAL, LATE], FAILED)[4..], *std::slice::from_ref(&proved));
        assert_eq!(slowed([USUAL, USUAL, LATE], USUAL)[4..], [proved, FaultPhase::HealProved]);
    }

    #[test]
    fn a_slow_answer_takes_twice_as_long_as_the_slower_one_before_and_20_ms_more() {
        let well = |ms| AnswerTime::Well(Duration::from_millis(ms));
        // Two answers before the fault and one during the fault, in milliseconds.
        for (first, is_proved) in [
            ([5, 5, 24], false),
            ([5, 5, 25], true),
            ([100, 60, 199], false),
            ([60, 100, 199], false),
            ([60, 100, 200], true),
        ] {
            let phases = slowed(first.map(well), well(5));
            assert_eq!(matches!(phases[4], FaultPhase::Proved { .. }), is_proved, "{first:?}");
        }
    }

    #[test]
    fn a_slow_server_without_proof_is_told_with_the_time_that_would_prove_it() {
        let well = |ms| AnswerTime::Well(Duration::from_millis(ms));
        // 24 ms are more than twice 5 ms, and not 20 ms more.
        for (first, told) in [
            ([5, 5, 24], "takes 25ms or more (5ms before the fault); it took 24ms"),
            ([60, 100, 199], "takes 200ms or more (100ms before the fault); it took 199ms"),
        ] {
            let phases = slowed(first.map(well), well(5));
            assert!(matches!(&phases[4], FaultPhase::Unproved { why } if why.ends_with(told)), "{phases:?}");
        }
    }
}
