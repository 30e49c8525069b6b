//! How long a connection waits for its client. hyper's own header timeout also ends idle connections,
//! and silently; here an idle connection outlives any planned pause of a client, and one that is slow
//! to say what it wants is told so.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::service::Limits;

/// Sent as it is when the head of a request does not come to its end.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n\
    content-length: 59\r\n\r\n{\"error\":\"the head of the request did not arrive in time\"}\n";

/// Where a connection is between two requests. Shared by the stream, which sees bytes, and the service,
/// which sees whole heads; both run in the connection's one task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase(Arc<AtomicU8>);

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const ANSWERING: u8 = 2;

impl Phase {
    /// A whole head has come; its handler has a time limit of its own for the body.
    pub(crate) fn answering(&self) {
        self.0.store(ANSWERING, Relaxed);
    }

    /// The answer is ready.
    pub(crate) fn answered(&self) {
        self.0.store(IDLE, Relaxed);
    }

    fn get(&self) -> u8 {
        self.0.load(Relaxed)
    }
}

/// A stream that gives up on a client that is too slow.
pub(crate) struct Patient {
    stream: TcpStream,
    limits: Limits,
    phase: Phase,
    /// The time left for what the client is at, and the phase that it was started in.
    reading: Option<(u8, Pin<Box<Sleep>>)>,
    /// The time left for the client to take its answer; set while it does not.
    writing: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(crate) fn new(stream: TcpStream, limits: Limits, phase: Phase) -> Patient {
        Patient { stream, limits, phase, reading: None, writing: None }
    }

    /// Whether the client has been waited for long enough; asked only when there is nothing to read.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let phase = self.phase.get();
        let limit = match phase {
            IDLE => self.limits.idle_timeout,
            HEAD => self.limits.head_timeout,
            _ => {
                self.reading = None;
                return Poll::Pending;
            }
        };
        match &mut self.reading {
            Some((started, left)) if *started == phase => match left.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(self.give_up(phase)),
                Poll::Pending => Poll::Pending,
            },
            reading => {
                let mut left = Box::pin(sleep(limit));
                // Polled once, so that it wakes this task.
                let state = left.as_mut().poll(cx);
                *reading = Some((phase, left));
                state.map(|()| self.give_up(phase))
            }
        }
    }

    fn give_up(&mut self, phase: u8) -> io::Result<()> {
        // An answer that is still on its way must not be cut in two.
        if phase == HEAD && self.writing.is_none() {
            // What does not fit into the socket's buffer at once is lost; the connection ends anyway.
            let _ = self.stream.try_write(TOO_SLOW);
        }
        Err(io::Error::from(io::ErrorKind::TimedOut))
    }

    /// Follows a write: `Pending` starts the time limit, anything else ends it.
    fn poll_taken<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.writing = None;
            return written;
        }
        let limit: Duration = self.limits.write_timeout;
        match self.writing.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Pending => this.poll_late(cx),
            ready => {
                if buf.filled().len() > before && this.phase.get() == IDLE {
                    this.phase.0.store(HEAD, Relaxed);
                    // The idle time is over, and would be stale when the connection is idle again.
                    this.reading = None;
                }
                ready
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.poll_taken(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.poll_taken(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
