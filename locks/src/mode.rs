//! Lock modes: readers share a key, a writer excludes everybody, and an intention mode marks a key above the one that
//! its owner locks.
//!
//! The five modes and their compatibility are those of Gray, Lorie, Putzolu and Traiger, "Granularity of Locks and
//! Degrees of Consistency in a Shared Data Base" (1976), who call them IS, IX, S, SIX and X.

use std::fmt;

/// The mode of an attempt, and of the hold that comes from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// IS: the owner reads some keys below this one.
    IntentRead,
    /// IX: the owner writes some keys below this one.
    IntentWrite,
    /// S: the owner reads the key, and everything below it.
    Read,
    /// SIX: the owner reads everything below the key, and writes some of it.
    ReadIntentWrite,
    /// X: the owner alone has the key. A lock without modes has only this one.
    #[default]
    Write,
}

impl Mode {
    /// All modes, the weakest first.
    pub const ALL: [Mode; 5] = [Mode::IntentRead, Mode::IntentWrite, Mode::Read, Mode::ReadIntentWrite, Mode::Write];

    /// Returns whether two holds in these modes exclude each other.
    pub fn conflicts(self, other: Mode) -> bool {
        use Mode::{IntentRead, IntentWrite, Read, ReadIntentWrite};
        !matches!(
            (self, other),
            (IntentRead, IntentRead | IntentWrite | Read | ReadIntentWrite)
                | (IntentWrite, IntentRead | IntentWrite)
                | (Read, IntentRead | Read)
                | (ReadIntentWrite, IntentRead)
        )
    }

    /// The mode in which a client holds the key above before it acquires a key in this mode.
    pub fn intention(self) -> Mode {
        match self {
            Mode::IntentRead | Mode::Read => Mode::IntentRead,
            Mode::IntentWrite | Mode::ReadIntentWrite | Mode::Write => Mode::IntentWrite,
        }
    }

    /// The mode's name, such as `intent-read`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::IntentRead => "intent-read",
            Mode::IntentWrite => "intent-write",
            Mode::Read => "read",
            Mode::ReadIntentWrite => "read-intent-write",
            Mode::Write => "write",
        }
    }

    /// The text after the owner in the name of a key in a queue. A writer has none, so its keys look like those of a
    /// lock without modes.
    pub(crate) fn mark(self) -> String {
        if self == Mode::Write { String::new() } else { format!("~{}", self.name()) }
    }

    /// The mode of a key in a queue, by its name without a sequence.
    pub(crate) fn marked(name: &str) -> Mode {
        let mark = name.rsplit_once('~').map(|(_, mark)| mark);
        Mode::ALL.into_iter().find(|mode| Some(mode.name()) == mark).unwrap_or_default()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_conflict_as_in_the_table_of_gray() {
        // Rows and columns: IS, IX, S, SIX, X.
        let expected = [
            [false, false, false, false, true],
            [false, false, true, true, true],
            [false, true, false, true, true],
            [false, true, true, true, true],
            [true, true, true, true, true],
        ];
        assert_eq!(Mode::ALL.map(|one| Mode::ALL.map(|other| one.conflicts(other))), expected);
    }

    #[test]
    fn an_intention_is_to_write_if_anything_below_is_written() {
        use Mode::{IntentRead, IntentWrite};
        let expected = [IntentRead, IntentWrite, IntentRead, IntentWrite, IntentWrite];
        assert_eq!(Mode::ALL.map(Mode::intention), expected);
    }

    #[test]
    fn a_name_in_a_queue_tells_its_mode() {
        for mode in Mode::ALL {
            assert_eq!(Mode::marked(&format!("0af3{}", mode.mark())), mode);
        }
        assert_eq!(Mode::marked("0af3~unknown"), Mode::Write);
    }
}
