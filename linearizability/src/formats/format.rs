//! The formats, and what is wrong in a file.

/// A format of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Operations in EDN, as Jepsen and Knossos write them.
    JepsenEdn,
    /// The test data of Porcupine: lines of Jepsen's log, or one operation in EDN a line.
    PorcupineLog,
}

/// A file that is no history of its format.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The fault of this line.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// In words.
        problem: String,
    },
    /// The caller's wish does not go with the file.
    #[error("{0}")]
    Asked(String),
    /// The file could not be read.
    #[error(transparent)]
    Read(std::io::Error),
}
