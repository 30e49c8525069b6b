//! Commands on standard input, one JSON object a line. The end of standard input means that the controller has ended.

use anyhow::Context;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

/// Reads commands.
pub struct Commands {
    lines: Lines<BufReader<Stdin>>,
}

impl Commands {
    /// Reads commands from standard input.
    pub fn new() -> Commands {
        Commands { lines: BufReader::new(tokio::io::stdin()).lines() }
    }

    /// Reads the next command. At the end of standard input this process exits at once, because nobody would record its
    /// work.
    pub async fn next<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        match self.lines.next_line().await.context("reading a command from standard input")? {
            None => std::process::exit(0),
            // The message must not show the line, which may have credentials.
            Some(line) => serde_json::from_str(&line).with_context(|| format!("a command of {} bytes", line.len())),
        }
    }
}
