//! Lock modes: which holds of a key exclude each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The mode of an attempt, and of the hold that comes from it. The modes and their compatibility are those of Gray,
/// Lorie, Putzolu and Traiger (1976): IS, IX, S, SIX, X.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// IS: the client reads a key below this one.
    IntentRead,
    /// IX: the client writes a key below this one.
    IntentWrite,
    /// S: the client is a reader. Readers share the key.
    Read,
    /// SIX: the client reads the key, and writes a key below it.
    ReadIntentWrite,
    /// X: the client is a writer, and excludes all others. Every hold of a lock without modes.
    #[default]
    Write,
}

/// The modes that conflict with a mode, as bits in the order of [`Mode::ALL`].
const AGAINST: [u8; 5] = [0b10000, 0b11100, 0b11010, 0b11110, 0b11111];

impl Mode {
    /// All modes, the weakest first.
    pub const ALL: [Mode; 5] = [Mode::IntentRead, Mode::IntentWrite, Mode::Read, Mode::ReadIntentWrite, Mode::Write];

    /// Returns whether two holds of one key in these modes exclude each other.
    pub fn conflicts(self, other: Mode) -> bool {
        AGAINST[self as usize] & (1 << other as usize) != 0
    }

    /// Returns the mode in which a hold of a key also holds every key below it; none for an intention.
    pub fn below(self) -> Option<Mode> {
        match self {
            Mode::IntentRead | Mode::IntentWrite => None,
            Mode::Read | Mode::ReadIntentWrite => Some(Mode::Read),
            Mode::Write => Some(Mode::Write),
        }
    }

    /// Returns whether a client that holds a key in this mode may take a key below it in the other mode.
    pub fn allows_below(self, other: Mode) -> bool {
        match other {
            Mode::IntentRead | Mode::Read => true,
            Mode::IntentWrite | Mode::ReadIntentWrite | Mode::Write => {
                matches!(self, Mode::IntentWrite | Mode::ReadIntentWrite | Mode::Write)
            }
        }
    }

    /// Returns whether this is the mode of a writer, which is left out of a record.
    pub fn is_write(&self) -> bool {
        *self == Mode::Write
    }

    /// Returns the mode's name in plans, histories and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::IntentRead => "intent-read",
            Mode::IntentWrite => "intent-write",
            Mode::Read => "read",
            Mode::ReadIntentWrite => "read-intent-write",
            Mode::Write => "write",
        }
    }

    /// Returns the client's part in a story: `reader`, `writer`.
    pub fn who(self) -> &'static str {
        match self {
            Mode::IntentRead => "reader of a key below",
            Mode::IntentWrite => "writer of a key below",
            Mode::Read => "reader",
            Mode::ReadIntentWrite => "reader, and writer of a key below",
            Mode::Write => "writer",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{self, IntentRead, IntentWrite, Read, ReadIntentWrite, Write};

    #[test]
    fn the_matrix_is_that_of_the_textbook() {
        let compatible = |a, b| {
            let pairs = [
                (IntentRead, IntentRead),
                (IntentRead, IntentWrite),
                (IntentRead, Read),
                (IntentRead, ReadIntentWrite),
                (IntentWrite, IntentWrite),
                (Read, Read),
            ];
            pairs.contains(&(a, b)) || pairs.contains(&(b, a))
        };
        for a in Mode::ALL {
            for b in Mode::ALL {
                assert_eq!(a.conflicts(b), !compatible(a, b), "{a} and {b}");
            }
        }
        assert!(Write.conflicts(Write) && Read.conflicts(ReadIntentWrite));
    }

    #[test]
    fn only_a_reader_and_a_writer_hold_the_keys_below() {
        assert_eq!(Mode::ALL.map(Mode::below), [None, None, Some(Read), Some(Read), Some(Write)]);
    }

    #[test]
    fn readers_are_allowed_below_any_mode_and_writers_below_those_of_writers() {
        for above in Mode::ALL {
            let is_of_writers = matches!(above, IntentWrite | ReadIntentWrite | Write);
            for below in Mode::ALL {
                let is_reader = matches!(below, IntentRead | Read);
                assert_eq!(above.allows_below(below), is_reader || is_of_writers, "{below} below {above}");
            }
        }
    }

    /// If every client takes the key above in a mode that allows its own, the modes of the key above exclude each other
    /// wherever a hold of it and a hold of a key below would give access to the same data.
    #[test]
    fn the_key_above_excludes_conflicts_with_keys_below() {
        for (above, below) in Mode::ALL.into_iter().flat_map(|a| Mode::ALL.map(|b| (a, b))) {
            for whole in Mode::ALL.into_iter().filter(|_| above.allows_below(below)) {
                let is_conflict = whole.below().is_some_and(|implied| implied.conflicts(below));
                assert!(!is_conflict || whole.conflicts(above), "{whole} against {above}, {below} below");
            }
        }
    }
}
