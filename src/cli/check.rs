//! The flags of `harness check`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use linearizability::ModelKind;

use super::values::model;

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// A run directory, or a history (.jsonl, .jsonl.zst); with `--format jepsen-edn` or `porcupine-log`, a file of
    /// another program, or `-` for standard input
    #[arg(value_name = "RUN|FILE")]
    pub run: PathBuf,
    /// Verdicts and counts that the run must give [default: the --expect of the run itself, if it had one]
    #[arg(long)]
    pub expect: Option<String>,
    /// Output format of a run (text, json), or the format of a file of another program, whose history is judged for
    /// linearizability (docs/checker.md)
    #[arg(long, value_enum, default_value = "text")]
    pub format: CheckFormat,
    /// Object that a history of another program is about: register, cas-register, mutex (anybody can release it),
    /// owner-mutex, fenced-mutex, kv [default: by the operations of the file]
    #[arg(long, value_name = "MODEL", value_parser = model())]
    pub model: Option<ModelKind>,
    /// Value of the object at the start, as the file writes values [default: nil]
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    pub initial: Option<String>,
    /// MiB that the search for an order of the operations may need, for each object [default: 512]
    #[arg(long, value_name = "MIB")]
    pub memory: Option<usize>,
}

/// The output of `harness check`, or its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// For people
    Text,
    /// For programs: the content of `verdict.json`
    Json,
    /// FILE has operations in EDN, as Jepsen and Knossos write them
    JepsenEdn,
    /// FILE has lines of Jepsen's log, or an operation in EDN a line, as Porcupine's test data
    PorcupineLog,
}
