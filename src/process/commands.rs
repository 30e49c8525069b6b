//! Commands on standard input, one JSON object a line. The end of standard input means that the controller has ended.

use std::{collections::VecDeque, pin::pin};

use anyhow::Context;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

/// Reads commands.
pub struct Commands {
    lines: Lines<BufReader<Stdin>>,
    /// Lines that came while this process awaited something else.
    waiting: VecDeque<String>,
}

impl Commands {
    /// Reads commands from standard input.
    pub fn new() -> Commands {
        Commands { lines: BufReader::new(tokio::io::stdin()).lines(), waiting: VecDeque::new() }
    }

    /// Reads the next command. At the end of standard input this process exits at once, because nobody would record its
    /// work.
    pub async fn next<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let line = match self.waiting.pop_front() {
            Some(line) => line,
            None => self.line().await?,
        };
        // The message must not show the line, which may have credentials.
        serde_json::from_str(&line).with_context(|| format!("a command of {} bytes", line.len()))
    }

    /// Awaits `doing`. Commands that come meanwhile wait for [`Commands::next`]. At the end of standard input this
    /// process exits at once, as there.
    pub async fn beside<T>(&mut self, doing: impl Future<Output = T>) -> anyhow::Result<T> {
        let mut doing = pin!(doing);
        loop {
            let line = tokio::select! {
                biased;
                done = &mut doing => return Ok(done),
                line = self.line() => line?,
            };
            self.waiting.push_back(line);
        }
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        match self.lines.next_line().await.context("reading a command from standard input")? {
            None => std::process::exit(0),
            Some(line) => Ok(line),
        }
    }
}
