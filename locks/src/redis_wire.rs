//! Redis requests on one connection, without a queue and a task of their own.
//!
//! A request is written into one buffer when it is polled for the first time. The driver, a future that somebody polls
//! in the same task, sends the buffer and reads the answers, which come in the order of the requests.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::stream::Stream;

/// The longest answer. A longer one ends the connection: no question of this crate has such an answer.
const ANSWER_MAX: usize = 1024 * 1024;
/// The number of bytes that are read at once: the room for them is cleared each time, and most answers are short.
const READ_AT_ONCE: usize = 2 * 1024;
/// The deepest array in an answer.
const DEPTH_MAX: usize = 8;

/// The client's end of a connection. Its clones ask on the same connection.
#[derive(Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// The bytes of requests that the driver has not taken yet.
    out: Vec<u8>,
    /// The number of requests so far.
    asked: u64,
    /// The number of the first slot.
    first: u64,
    /// The slots of the requests that are on their way, and of answers that nobody has taken.
    slots: VecDeque<Slot>,
    /// The number of answers so far.
    answered: u64,
}

/// The place of one answer.
enum Slot {
    /// Somebody may wait for the answer: the waker, if it is in another task than the driver, or polled before it.
    Awaited(Option<Waker>),
    Answered(Value),
    /// The answer was taken, or nobody wants it.
    Over,
}

impl Shared {
    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Puts the next answer in its place. Returns false if nobody has asked.
    fn answer(&mut self, value: Value) -> bool {
        let number = self.answered;
        self.answered += 1;
        let Some(slot) = self.slot(number) else { return false };
        match std::mem::replace(slot, Slot::Answered(value)) {
            Slot::Awaited(Some(waker)) => waker.wake(),
            Slot::Over => {
                *slot = Slot::Over;
                self.forget();
            }
            _ => {}
        }
        true
    }

    /// Drops the first slots that are answered and over.
    fn forget(&mut self) {
        while self.first < self.answered && matches!(self.slots.front(), Some(Slot::Over)) {
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

impl Wire {
    /// Asks. Whoever polls the answer must poll it again after the driver: nothing wakes the task.
    pub fn request(&self, command: Cmd) -> Asked {
        Asked { wire: self.clone(), command, number: None, wakes: false }
    }

    /// Asks. The first poll wakes the driver's task, if it is the same, and the driver wakes the task of the answer.
    pub fn ask(&self, command: Cmd) -> Asked {
        Asked { wire: self.clone(), command, number: None, wakes: true }
    }

    /// The driver of this connection. It ends when the connection is over, or is not understood.
    pub fn driver(&self, stream: Stream) -> Driving {
        let wire = self.clone();
        Driving { wire, stream, writing: Vec::new(), written: 0, is_unflushed: false, read: Vec::new() }
    }
}

/// The answer to one request. Dropping it takes the request not back.
pub(crate) struct Asked {
    wire: Wire,
    command: Cmd,
    /// The number of the request, if it was polled.
    number: Option<u64>,
    wakes: bool,
}

impl Future for Asked {
    type Output = Value;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Value> {
        let this = &mut *self;
        let mut shared = this.wire.0.lock();
        let number = *this.number.get_or_insert_with(|| {
            this.command.write_packed_command(&mut shared.out);
            shared.slots.push_back(Slot::Awaited(None));
            shared.asked += 1;
            if this.wakes {
                cx.waker().wake_by_ref();
            }
            shared.asked - 1
        });
        let Some(slot) = shared.slot(number) else { return Poll::Pending };
        match slot {
            Slot::Awaited(waker) if this.wakes => {
                if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Slot::Awaited(_) | Slot::Over => Poll::Pending,
            Slot::Answered(_) => {
                let Slot::Answered(value) = std::mem::replace(slot, Slot::Over) else { unreachable!() };
                shared.forget();
                Poll::Ready(value)
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut shared = self.wire.0.lock();
        if let Some(slot) = shared.slot(number) {
            *slot = Slot::Over;
            shared.forget();
        }
    }
}

/// See [`Wire::driver`].
pub(crate) struct Driving {
    wire: Wire,
    stream: Stream,
    writing: Vec<u8>,
    written: usize,
    /// The stream may still have bytes that it has taken: TLS takes them also while the socket is full.
    is_unflushed: bool,
    read: Vec<u8>,
}

impl Driving {
    /// Sends what was asked. Ready when the connection cannot be used any more.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                std::mem::swap(&mut self.writing, &mut self.wire.0.lock().out);
                if self.writing.is_empty() {
                    break;
                }
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.writing[self.written..]) {
                Poll::Ready(Ok(sent)) if sent > 0 => self.written += sent,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => break,
            }
            self.is_unflushed = true;
        }
        if self.is_unflushed {
            match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.is_unflushed = false,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }

    /// Reads answers. Ready when the connection is over, or has brought anything but answers.
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let before = self.read.len();
            self.read.resize(before + READ_AT_ONCE, 0);
            let mut room = ReadBuf::new(&mut self.read[before..]);
            let received = Pin::new(&mut self.stream).poll_read(cx, &mut room);
            let count = room.filled().len();
            self.read.truncate(before + count);
            if ready!(received).is_err() || count == 0 {
                return Poll::Ready(());
            }
            let mut taken = 0;
            while let Some(answer) = first_answer(&self.read[taken..]) {
                let Ok((value, length)) = answer else { return Poll::Ready(()) };
                if !self.wire.0.lock().answer(value) {
                    return Poll::Ready(());
                }
                taken += length;
            }
            self.read.drain(..taken);
            if self.read.len() > ANSWER_MAX {
                return Poll::Ready(());
            }
        }
    }
}

impl Future for Driving {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.send(cx).is_ready() {
            // The last answers may be there already.
            let _ = self.receive(cx);
            return Poll::Ready(());
        }
        self.receive(cx)
    }
}

/// The bytes are no answer of a Redis server.
#[derive(Debug, PartialEq)]
struct Garbage;

/// Reads the first answer. Returns the answer and its length; none if it is not complete.
fn first_answer(bytes: &[u8]) -> Option<Result<(Value, usize), Garbage>> {
    let length = match length(bytes, 0)? {
        Ok(length) => length,
        Err(garbage) => return Some(Err(garbage)),
    };
    let answer = &bytes[..length];
    // Nearly all answers are one of these.
    let value = match answer {
        b"+OK\r\n" => Some(Value::Okay),
        [b':', number @ .., b'\r', b'\n'] => parsed(number).map(Value::Int),
        _ => redis::parse_redis_value(answer).ok(),
    };
    Some(value.map(|value| (value, length)).ok_or(Garbage))
}

/// The length of the first answer; none if it is not complete.
fn length(bytes: &[u8], depth: usize) -> Option<Result<usize, Garbage>> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")?;
    let after = line + 2;
    let count = || parsed(bytes.get(1..line)?);
    let is_known = depth <= DEPTH_MAX;
    Some(match (bytes[0], count()) {
        (b'+' | b'-' | b':', _) => Ok(after),
        // Nil, as a text or as an array.
        (b'$' | b'*', Some(-1)) => Ok(after),
        (b'$', Some(size)) if (0..=ANSWER_MAX as i64).contains(&size) => {
            let end = after + usize::try_from(size).ok()? + 2;
            if bytes.len() < end {
                return None;
            }
            Ok(end)
        }
        (b'*', Some(items)) if is_known && (0..=ANSWER_MAX as i64).contains(&items) => {
            let mut end = after;
            for _ in 0..items {
                match length(&bytes[end..], depth + 1)? {
                    Ok(item) => end += item,
                    garbage => return Some(garbage),
                }
            }
            Ok(end)
        }
        _ => Err(Garbage),
    })
}

fn parsed(number: &[u8]) -> Option<i64> {
    std::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
