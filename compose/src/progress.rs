//! Progress for people who wait.

/// Receives progress, one line of text a call: the slow step, and the event that the step waits for.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);
