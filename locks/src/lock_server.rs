//! A lock server of ours: owners, leases and counters in the memory of one process.
//!
//! Textbooks build such a server to explain leases and fencing tokens. [`memory`](crate::memory) uses one of them,
//! [`lock_manager`](crate::lock_manager) several. The state and the effect of each request are pure ([`LockServer`]),
//! so the simulation has the same server. [`serve`] puts it on a TCP port.
//!
//! A lease runs on the clock of the server's process. Nothing is kept on disk: a restart forgets every lock **and**
//! every counter.
//!
//! # Protocol
//!
//! Each request is one line of JSON, of at most [`LINE_MAX`] bytes, and so is each answer. A connection is answered in
//! the order of its requests.
//!
//! A lease is in milliseconds.
//!
//! | request | answer |
//! | --- | --- |
//! | `{"step":{"acquire":["k0","OWNER",2000]}}` | `{"answer":{"granted":7}}`, `{"answer":"refused"}` |
//! | `{"step":{"acquire-uncounted":["k0","OWNER",2000]}}` | `{"answer":"done"}`, `{"answer":"refused"}` |
//! | `{"step":{"extend":["k0","OWNER",2000]}}` | the same |
//! | `{"step":{"release":["k0","OWNER"]}}` | the same |
//! | `{"step":{"raise-fence":["k0","OWNER",7]}}` | the same |
//! | `"version"` | `{"version":"0.1.0"}` |
//! | anything else | `{"error":"…"}`: the server has changed nothing |
//!
//! A build with the feature `planted`, such as the program `harness`, also does the steps of planted bugs
//! (`{"step":{"planted":…}}`).

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{
    hold::{Key, Owner},
    key_state::{KeyState, clock_ms},
    ports::{Clock, NodeError, Step, StepAnswer},
    program::shortened,
};

/// The port of a server in its container.
pub const PORT: u16 = 7100;
/// The longest line, in bytes, without its end.
pub const LINE_MAX: usize = 1_024;
/// The part of a complaint about a line that the answer keeps, in characters. In JSON a character may take six bytes.
const PROBLEM_MAX: usize = 100;
/// The largest number of keys that a server has had locked. A counter is never forgotten, so neither is its key.
const KEYS_MAX: usize = 65_536;
/// The largest counter that a client may set, as for a Redis.
const COUNTER_MAX: u64 = 1 << 53;
/// The largest number of connections at a time.
const CONNECTIONS_MAX: usize = 1_024;
/// The pause after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The keys of a server. Its caller gives it the time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockServer {
    keys: BTreeMap<Key, KeyState>,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// A step on one key.
    Step(Step),
    /// A question about the server's version, which changes nothing.
    Version,
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The answer to a step.
    Answer(StepAnswer),
    /// The server's version.
    Version(String),
    /// The request cannot be done. The server has changed nothing.
    Error(String),
}

impl LockServer {
    /// Does `step` at `now` by the server's clock.
    pub fn apply(&mut self, step: &Step, now: Duration) -> StepAnswer {
        let now_ms = clock_ms(now);
        if let Some(key) = self.keys.get_mut(step.key()) {
            key.expire(now_ms);
            return key.apply(step, now_ms);
        }
        let mut key = KeyState::default();
        let answer = key.apply(step, now_ms);
        // A refused step leaves nothing to remember: only a key that was locked takes a place.
        if answer != StepAnswer::Refused {
            self.keys.insert(step.key().clone(), key);
        }
        answer
    }

    /// The owner of `key` at `now`.
    pub fn owner(&self, key: &Key, now: Duration) -> Option<&Owner> {
        self.keys.get(key)?.owner(clock_ms(now))
    }

    /// The counter of `key`.
    pub fn counter(&self, key: &Key) -> u64 {
        self.keys.get(key).map_or(0, KeyState::counter)
    }

    /// The answer to one line of a client, at `now`.
    pub fn answer(&mut self, line: &[u8], now: Duration) -> Answer {
        match serde_json::from_slice(line) {
            Ok(Request::Version) => Answer::Version(env!("CARGO_PKG_VERSION").to_owned()),
            Ok(Request::Step(step)) => match self.refusal(&step) {
                Some(why) => Answer::Error(why),
                None => Answer::Answer(self.apply(&step, now)),
            },
            Err(error) => {
                let example = r#"{"step":{"acquire":["KEY","OWNER",2000]}}"#;
                // serde repeats an unknown word, however long it is.
                let error = shortened(error.to_string(), PROBLEM_MAX);
                Answer::Error(format!("{error}; expected a request such as {example}"))
            }
        }
    }

    /// The reason why the server does not do a step.
    fn refusal(&self, step: &Step) -> Option<String> {
        if let Step::RaiseFence(_, _, token) = step
            && token.0 > COUNTER_MAX
        {
            return Some(format!("the counter {token} is larger than {COUNTER_MAX}"));
        }
        let is_full = self.keys.len() >= KEYS_MAX && !self.keys.contains_key(step.key());
        is_full.then(|| format!("this server has {KEYS_MAX} keys already, and takes no other key until its restart"))
    }
}

impl Answer {
    /// The meaning of this answer to `step`.
    pub(crate) fn to(self, step: &Step) -> Result<StepAnswer, NodeError> {
        let is_sensible = |answer| match answer {
            StepAnswer::Granted(_) => step.counts(),
            StepAnswer::Done => !step.counts(),
            StepAnswer::Refused => true,
        };
        match self {
            Answer::Answer(answer) if is_sensible(answer) => Ok(answer),
            Answer::Error(why) => Err(NodeError::Definite(why)),
            other => Err(NodeError::Indeterminate(format!("an answer that makes no sense: {other:?}"))),
        }
    }
}

/// Serves clients, until the task is dropped. Leases run on `clock`.
pub async fn serve(listener: TcpListener, clock: Arc<dyn Clock>) {
    let server = Arc::new(Mutex::new(LockServer::default()));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let (server, clock, place) = (server.clone(), clock.clone(), places.clone().try_acquire_owned());
        tokio::spawn(async move {
            let answer = |line: &[u8]| match &place {
                Ok(_) => server.lock().answer(line, clock.now()),
                Err(_) => Answer::Error(format!("this server has {CONNECTIONS_MAX} connections already; close one")),
            };
            if let Err(error) = converse(stream, answer, place.is_ok()).await {
                tracing::debug!("a connection ended: {error}");
            }
        });
    }
}

/// Answers the lines of a client: all of them, or the first.
async fn converse(stream: TcpStream, answer: impl Fn(&[u8]) -> Answer, goes_on: bool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    let mut line = Vec::new();
    while let Some(is_whole) = next_line(&mut reading, &mut line).await? {
        let answer = match is_whole {
            true => answer(&line),
            false => Answer::Error(format!("the line is longer than {LINE_MAX} bytes")),
        };
        writing.write_all(&in_one_line(&answer)).await?;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// Reads the next line, without its end. None at the end of the connection; false if the line was too long, and was
/// skipped.
pub(crate) async fn next_line(
    reading: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> io::Result<Option<bool>> {
    line.clear();
    (&mut *reading).take(LINE_MAX as u64 + 1).read_until(b'\n', line).await?;
    if line.pop_if(|last| *last == b'\n').is_some() {
        return Ok(Some(true));
    }
    if line.len() <= LINE_MAX {
        return Ok(None);
    }
    loop {
        let (skipped, is_over) = match reading.fill_buf().await? {
            [] => return Ok(None),
            bytes => match bytes.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (bytes.len(), false),
            },
        };
        reading.consume(skipped);
        if is_over {
            return Ok(Some(false));
        }
    }
}

/// A message as one line.
pub(crate) fn in_one_line(message: &impl Serialize) -> Vec<u8> {
    // Requests and answers are plain data, which always can be written.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
