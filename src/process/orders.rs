//! Commands on standard input, one JSON object a line. End of file means that the controller is gone.

use anyhow::Context;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

/// The commands that come in.
pub struct Orders {
    lines: Lines<BufReader<Stdin>>,
}

impl Orders {
    /// Standard input.
    pub fn new() -> Orders {
        Orders { lines: BufReader::new(tokio::io::stdin()).lines() }
    }

    /// The next command. When there is none any more this process ends at once: whatever it was doing, nobody would record it.
    pub async fn next<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        match self.lines.next_line().await.context("reading a command from standard input")? {
            None => std::process::exit(0),
            Some(line) => serde_json::from_str(&line).with_context(|| format!("command `{line}`")),
        }
    }
}
