//! Property 7, as far as it is measured: for how long a killed holder blocks its key.

use std::time::Duration;

use history::{Event, FaultPhase, Stamp};
use rustc_hash::FxHashMap;

use crate::{
    holds::Ender,
    judge::{Ending, Judge},
    lock::millis,
    merge::Entry,
    property::{Blocked, LivenessVerdict, Property},
    rules,
    run::Run,
    verdict::{Facts, Verdict},
};

struct Block {
    killed: Stamp,
    lasted: Option<Duration>,
    blocked: Blocked,
}

/// Measures blocking.
#[derive(Default)]
pub(crate) struct Liveness {
    blocks: Vec<Block>,
    /// Blocks that nothing has ended yet, by key.
    waiting: FxHashMap<usize, Vec<usize>>,
}

impl Liveness {
    fn killed(&mut self, run: &Run, entry: &Entry) {
        let Event::Fault { fault, node, .. } = &entry.event else { return };
        for process in run.processes_on(node) {
            for hold in run.open_on(process) {
                let is_held = hold.grant.is_some_and(|grant| grant.ok.at < entry.at);
                if !is_held || hold.ended_by().is_none_or(|(_, ender)| ender != Ender::Kill(*fault)) {
                    continue;
                }
                self.waiting.entry(hold.key).or_default().push(self.blocks.len());
                self.blocks.push(Block {
                    killed: entry.at,
                    lasted: None,
                    blocked: Blocked {
                        key: run.key(hold.key).clone(),
                        hold: hold.id,
                        fault: *fault,
                        worker: run.process(process).name.clone(),
                        blocked_ms: None,
                    },
                });
            }
        }
    }

    fn acquired(&mut self, key: usize, at: Stamp) {
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        waiting.retain(|&i| {
            let block = &mut self.blocks[i];
            let is_over = rules::is_unblocked(at, block.killed);
            if is_over {
                block.lasted = Some(at.since(block.killed));
            }
            !is_over
        });
    }
}

impl Judge for Liveness {
    fn see(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Fault { kind, phase: FaultPhase::Requested { .. }, .. } if kind.kills() => self.killed(run, entry),
            Event::Acquired { attempt, .. } => {
                if let Some(hold) = run.attempt(*attempt) {
                    self.acquired(hold.key, entry.at);
                }
            }
            _ => {}
        }
    }

    fn verdicts(mut self: Box<Self>, _run: &Run, _ending: &Ending, _facts: &mut Facts) -> Vec<(String, Property)> {
        self.blocks.sort_by_key(|block| (block.killed, block.blocked.hold));
        let blocked: Vec<Blocked> = (self.blocks.into_iter())
            .map(|block| Blocked { blocked_ms: block.lasted.map(millis), ..block.blocked })
            .collect();
        let blocked_ms_max = blocked.iter().filter_map(|b| b.blocked_ms).fold(0.0, f64::max);
        let liveness = LivenessVerdict { verdict: Verdict::Measured, blocked_ms_max, blocked };
        vec![("liveness".into(), Property::Liveness(liveness))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::Scene;

    fn blocked(scene: &Scene) -> Vec<Option<f64>> {
        match scene.verdicts().properties.get("liveness") {
            Some(Property::Liveness(found)) => found.blocked.iter().map(|b| b.blocked_ms).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_key_is_blocked_from_the_kill_of_its_holder_to_the_next_acquisition() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
        assert_eq!(blocked(&scene), [Some(1_910.0)]);
    }

    #[test]
    fn a_key_that_nobody_acquires_again_stays_blocked() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
        assert_eq!(blocked(&scene), [None]);
    }

    #[test]
    fn a_kill_of_a_worker_without_a_hold_blocks_nothing() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 50).kill(1, "worker-1", 100).acquire(2, 2, 2_000, 2_010, 42);
        assert_eq!(blocked(&scene), []);
    }
}
