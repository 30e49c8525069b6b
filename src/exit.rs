//! Exit codes: a public table (README), the same for every command.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All upheld, or exactly as expected.
    Ok = 0,
    /// Violated, or not as expected.
    Violated = 1,
    /// Inconclusive.
    Inconclusive = 2,
    /// The harness could not do its job.
    Failed = 3,
    /// Wrong flags, or a file of the user's that cannot be understood.
    Usage = 64,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// What the user gave cannot be used: exit code 64.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// The user interrupted: exit code 130.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; everything that was started has been removed")]
pub struct Interrupted;

impl Exit {
    /// The code for an error: the harness could not do its job, unless the error says otherwise.
    pub fn of(error: &anyhow::Error) -> Exit {
        let unusable = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<Unusable>()
                || cause.is::<compose::FileError>()
                || matches!(cause.downcast_ref(), Some(history::HistoryError::Line { .. }))
        };
        if error.chain().any(unusable) {
            Exit::Usage
        } else if error.is::<Interrupted>() {
            Exit::Interrupted
        } else {
            Exit::Failed
        }
    }
}
