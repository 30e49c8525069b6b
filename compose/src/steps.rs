//! The time that the engine needs for its own steps, so that a slow engine is not taken for a slow server.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Time from which a step of the engine is slow. On an idle machine a step takes 25 to 330 ms.
pub(crate) const SLOW: Duration = Duration::from_secs(5);

/// The steps of the engine for one node. A step that is cancelled counts, too.
#[derive(Debug, Default)]
pub(crate) struct Steps(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    current: Option<Step>,
    slowest: Option<(&'static str, Duration)>,
    total: Duration,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    began: Instant,
}

impl Steps {
    /// Does one step: `starting its container`. Steps follow each other.
    pub(crate) async fn time<T>(&self, name: &'static str, step: impl Future<Output = T>) -> T {
        self.begin(name);
        let done = step.await;
        self.end();
        done
    }

    /// Begins a step that lasts until [`Steps::end`].
    pub(crate) fn begin(&self, name: &'static str) {
        self.state().current = Some(Step { name, began: Instant::now() });
    }

    /// Ends the present step.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        let Some(Step { name, began }) = state.current.take() else { return };
        let took = began.elapsed();
        tracing::debug!(step = name, ?took, "the engine");
        state.total += took;
        if state.slowest.is_none_or(|(_, longest)| took > longest) {
            state.slowest = Some((name, took));
        }
    }

    /// Forgets a step that was not the engine's.
    pub(crate) fn forget(&self) {
        self.state().current = None;
    }

    /// Returns the duration of all steps, also of the present step.
    pub(crate) fn total(&self) -> Duration {
        let state = self.state();
        state.total + state.current.as_ref().map_or(Duration::ZERO, |step| step.began.elapsed())
    }

    /// Returns the slowest step, if a step was slow.
    pub(crate) fn slow(&self) -> Option<(&'static str, Duration)> {
        self.slower_than(SLOW)
    }

    /// Returns the slowest step, if it took at least `limit`.
    pub(crate) fn slower_than(&self, limit: Duration) -> Option<(&'static str, Duration)> {
        let state = self.state();
        let current = state.current.as_ref().map(|step| (step.name, step.began.elapsed()));
        let slowest = [state.slowest, current].into_iter().flatten().max_by_key(|(_, took)| *took);
        slowest.filter(|(_, took)| *took >= limit)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_slowest_step_and_all_together_include_the_present_one() {
        let steps = Steps::default();
        for (name, seconds) in [("creating", 1), ("uploading", 6), ("starting", 2)] {
            steps.time(name, advance(SECOND * seconds)).await;
        }
        let done = (Some(("uploading", SECOND * 6)), SECOND * 9);
        assert_eq!((steps.slow(), steps.total()), done);
        steps.begin("looking");
        advance(SECOND * 10).await;
        assert_eq!((steps.slow(), steps.total()), (Some(("looking", SECOND * 10)), SECOND * 19));
        // The time was the server's.
        steps.forget();
        steps.end();
        assert_eq!((steps.slow(), steps.total()), done);
        assert_eq!(steps.slower_than(SECOND * 6), done.0);
        assert_eq!(steps.slower_than(SECOND * 6 + Duration::from_nanos(1)), None);
    }
}
