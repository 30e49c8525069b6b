//! The signals that end the process: Ctrl-C, SIGTERM, and SIGHUP at the end of the terminal.
//!
//! One task listens from the start of a command to its end. Tokio's handlers stay installed after their last listener,
//! so a signal without a listener would be lost: a later listener does not see it.

use anyhow::Context;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

use crate::exit::{Exit, Interrupted};

/// The signals since the start of the command.
#[derive(Debug, Clone, Default)]
pub struct Signals(watch::Sender<State>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// The number of signals so far.
    seen: u32,
    /// True while the command has something to remove before a signal may end the process.
    is_awaited: bool,
}

impl Signals {
    /// Listens from now on. The runtime of the caller must be multi-threaded: a signal then ends the process also
    /// while the thread of the command simulates or judges.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub fn listen() -> anyhow::Result<Signals> {
        let signals = Signals::default();
        tokio::spawn(obey(listeners()?, signals.clone()));
        Ok(signals)
    }

    /// Runs `doing`. Meanwhile no signal ends the process: `doing` awaits the signal and removes what it has started.
    ///
    /// # Errors
    /// `doing` failed, or a signal came before it, or a signal came at its end that it did not await.
    pub async fn awaited_by<T, F>(&self, doing: impl FnOnce(Stop) -> F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<T>>,
    {
        if self.set_awaited(true) {
            return Err(Interrupted.into());
        }
        let done = doing(Stop { state: self.0.subscribe(), handled: 0 }).await;
        let is_interrupted = self.set_awaited(false);
        done.and_then(|done| if is_interrupted { Err(Interrupted.into()) } else { Ok(done) })
    }

    /// Returns whether a signal has come so far.
    pub fn has_come(&self) -> bool {
        self.0.borrow().seen > 0
    }

    /// Counts one more signal. Returns whether the signal ends the process at once.
    fn add(&self) -> bool {
        let mut is_awaited = false;
        self.0.send_modify(|state| {
            state.seen += 1;
            is_awaited = state.is_awaited;
        });
        !is_awaited
    }

    /// Sets whether signals are awaited. Returns whether a signal has come so far.
    fn set_awaited(&self, is_awaited: bool) -> bool {
        let mut seen = 0;
        self.0.send_modify(|state| {
            state.is_awaited = is_awaited;
            seen = state.seen;
        });
        seen > 0
    }
}

/// The signals for a run that awaits them.
#[derive(Debug)]
pub struct Stop {
    state: watch::Receiver<State>,
    /// The number of signals that were awaited.
    handled: u32,
}

impl Stop {
    /// Waits for the next signal.
    pub async fn signalled(&mut self) {
        let handled = self.handled;
        // The sender lives as long as `Signals`, so there is no error.
        let _ = self.state.wait_for(|state| state.seen > handled).await;
        self.handled += 1;
    }

    /// Waits until two signals were awaited since the start of the run. Calls `first` if the first of them comes now.
    pub async fn signalled_twice(&mut self, first: impl FnOnce()) {
        if self.handled == 0 {
            self.signalled().await;
            first();
        }
        while self.handled < 2 {
            self.signalled().await;
        }
    }
}

/// Lets a signal end the process, in a command that has nothing to remove. Without a handler a signal gives no exit
/// code, and the first process of a container does not end at all.
///
/// # Errors
/// A handler cannot be installed, or the system gives no thread.
pub fn end_the_process() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let mut listeners = runtime.block_on(async { listeners() })?;
    let ended = move || {
        runtime.block_on(any(&mut listeners));
        std::process::exit(Exit::Interrupted as i32)
    };
    std::thread::Builder::new().name("signals".into()).spawn(ended).context("starting the thread for signals")?;
    Ok(())
}

/// Waits for a signal. For a command without [`Signals`]: its end removes what it has started.
///
/// # Errors
/// A handler cannot be installed.
pub async fn signalled() -> anyhow::Result<()> {
    let mut listeners = listeners()?;
    any(&mut listeners).await;
    Ok(())
}

async fn any(listeners: &mut [Signal]) {
    futures::future::select_all(listeners.iter_mut().map(|listener| Box::pin(listener.recv()))).await;
}

/// Counts signals until one of them ends the process.
async fn obey(mut listeners: Vec<Signal>, signals: Signals) {
    loop {
        any(&mut listeners).await;
        if signals.add() {
            std::process::exit(Exit::Interrupted as i32);
        }
    }
}

fn listeners() -> anyhow::Result<Vec<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = (!ignores_hangup(&status)).then(SignalKind::hangup);
    let kinds = [SignalKind::interrupt(), SignalKind::terminate()].into_iter().chain(hangup);
    kinds.map(signal).collect::<Result<_, _>>().context("listening for signals")
}

/// Returns whether a process with this `/proc/PID/status` ignores SIGHUP from its start, as under `nohup`. A handler
/// would end a long suite at the end of its terminal.
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::{FutureExt, executor::block_on};

    use super::*;

    #[test]
    fn no_run_begins_after_a_signal() {
        let signals = Signals::default();
        assert!(signals.add(), "nothing has to be removed");
        let mut has_begun = false;
        let ran = block_on(signals.awaited_by(|_| {
            has_begun = true;
            ready(Ok(()))
        }));
        assert!(ran.unwrap_err().is::<Interrupted>() && !has_begun);
    }

    #[test]
    fn a_run_awaits_each_signal_once() {
        let signals = Signals::default();
        let all = &signals;
        let ran = block_on(signals.awaited_by(|mut stop| async move {
            assert!(stop.signalled().now_or_never().is_none());
            assert!(!all.add(), "the run has to remove its cluster");
            stop.signalled().await;
            assert!(stop.signalled().now_or_never().is_none());
            assert!(!all.add());
            stop.signalled().await;
            Err::<(), _>(anyhow::anyhow!("interrupted again"))
        }));
        assert_eq!(ran.unwrap_err().to_string(), "interrupted again");
        assert!(signals.add(), "after the run a signal ends the process at once");
    }

    #[test]
    fn only_the_second_signal_gives_up_a_removal() {
        // The signals before the removal that ended the run: none, if it failed by itself.
        for before in 0..2 {
            let signals = Signals::default();
            let all = &signals;
            let told = std::cell::Cell::new(0);
            let ran = block_on(signals.awaited_by(|mut stop| async move {
                for _ in 0..before {
                    all.add();
                    stop.signalled().await;
                }
                let mut given_up = Box::pin(stop.signalled_twice(|| told.set(told.get() + 1)));
                assert!((&mut given_up).now_or_never().is_none());
                for n in before + 1..=2 {
                    all.add();
                    assert_eq!((&mut given_up).now_or_never().is_some(), n == 2, "{before} before, signal {n}");
                }
                assert_eq!(told.get(), 1 - before, "the first signal is told if it comes during the removal");
                Ok(())
            }));
            assert!(ran.unwrap_err().is::<Interrupted>());
        }
    }

    #[test]
    fn a_signal_at_the_end_of_a_run_is_not_lost() {
        let signals = Signals::default();
        let ran = block_on(signals.awaited_by(|_| ready(Ok(signals.add()))));
        assert!(ran.unwrap_err().is::<Interrupted>() && signals.has_come());
    }

    #[test]
    fn under_nohup_the_end_of_the_terminal_ends_nothing() {
        assert!(ignores_hangup("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }
}
