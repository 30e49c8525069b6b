//! A client program: the user's own lock, a process in any language beside each client.

use serde::{Deserialize, Serialize};

/// A client program, which takes the place of the backend's own client (`docs/client-protocol.md`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The command: the program and its arguments.
    pub command: Vec<String>,
    /// The files that every worker gets before the program starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ProgramFile>,
}

/// A file of a client program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramFile {
    /// The path, relative to [`Program::DIR`] and to the directory in which the plan was made.
    pub name: String,
    /// SHA-256 of the content, in hexadecimal digits.
    pub sha256: String,
}

impl Program {
    /// The directory in a worker's container that has the program's files, and in which the program runs.
    pub const DIR: &str = "/opt/harness-client";

    /// Returns the command as text. A word with blanks is quoted.
    pub fn text(&self) -> String {
        let has_blank = |word: &String| word.is_empty() || word.contains(char::is_whitespace);
        let shown = |word: &String| if has_blank(word) { format!("'{word}'") } else { word.clone() };
        self.command.iter().map(shown).collect::<Vec<_>>().join(" ")
    }
}
