//! Failures of the stores in this process.

use std::time::Duration;

/// The treatment of one request that decides.
#[derive(Clone, Copy, Debug)]
pub enum Treat<S> {
    /// The request is applied, and its answer is lost.
    LoseAnswer,
    /// The request is not applied, and the server says that it failed.
    Fail,
    /// The server says that the request failed, and applies it after this time.
    ApplyLater(Duration),
    /// The request is not applied, and the server answers this.
    Say(S),
}

/// The treatments of many requests: every failure after which the request may have been applied, with requests between
/// that are treated well. A late copy may arrive while the store answers again, or after later decisions.
pub fn failures<S: Clone>() -> Vec<Option<Treat<S>>> {
    let late = |ms| Some(Treat::ApplyLater(Duration::from_millis(ms)));
    let turn = [None, Some(Treat::LoseAnswer), None, late(1), Some(Treat::Fail), None, None, late(120), None, None];
    turn.iter().cloned().cycle().take(200).collect()
}
