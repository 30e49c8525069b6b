//! The exit codes of every command, as README lists them.

use std::process::ExitCode;

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All properties are upheld, or the verdicts are as expected.
    Ok = 0,
    /// A property is violated, or the verdicts are not as expected.
    Violated = 1,
    /// A verdict is inconclusive.
    Inconclusive = 2,
    /// The harness failed.
    Failed = 3,
    /// Wrong flags, or a file of the user's that cannot be understood.
    Usage = 64,
    /// Ctrl-C, SIGTERM or SIGHUP.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// The user's input cannot be used: exit code 64.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// The user interrupted: exit code 130.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; everything that was started has ended")]
pub struct Interrupted;

impl Exit {
    /// Returns the worse of the ends of two runs: violated, then inconclusive.
    pub fn worse(self, other: Exit) -> Exit {
        let rank = |exit: Exit| match exit {
            Exit::Ok => 0,
            Exit::Inconclusive => 1,
            _ => 2,
        };
        if rank(other) > rank(self) { other } else { self }
    }

    /// The exit code for an error.
    pub fn of(error: &anyhow::Error) -> Exit {
        let unusable = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<Unusable>()
                || cause.is::<compose::FileError>()
                || cause.downcast_ref().is_some_and(history::HistoryError::is_in_the_file)
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

/// Makes the error for a flag whose value cannot be used.
pub fn usage(flag: &str, problem: impl std::fmt::Display) -> anyhow::Error {
    Unusable(format!("--{flag}: {problem}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_runs_a_violated_one_counts_before_an_inconclusive_one() {
        for (one, other, worse) in [
            (Exit::Ok, Exit::Ok, Exit::Ok),
            (Exit::Ok, Exit::Inconclusive, Exit::Inconclusive),
            (Exit::Ok, Exit::Violated, Exit::Violated),
            (Exit::Inconclusive, Exit::Violated, Exit::Violated),
        ] {
            assert_eq!((one.worse(other), other.worse(one)), (worse, worse), "{one:?} and {other:?}");
        }
    }
}
