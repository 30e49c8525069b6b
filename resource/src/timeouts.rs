//! Timeouts of a connection, and the limit of a head. hyper's own header timeout also closes idle connections, without
//! an answer. Here an idle connection outlives every planned pause of a client, and a client with a slow request or a
//! large head gets an answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::limits::{DISCARD_BYTES_MAX, Limits};

/// The raw answer to a request whose head is incomplete at the timeout.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n\
    content-length: 59\r\n\r\n{\"error\":\"the head of the request did not arrive in time\"}\n";

/// Returns the raw answer to a request whose head is larger than `max` bytes.
fn too_large(max: usize) -> String {
    let body = format!("{{\"error\":\"the head of the request is larger than {max} bytes\",\"max\":{max}}}\n");
    let head = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// The phase of a connection. Shared by the stream, which sees bytes, and the service, which sees whole heads. Both run
/// in the connection's task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase(Arc<AtomicU8>);

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const ANSWERING: u8 = 2;
/// The head was too large and was answered; the rest is discarded.
const DISCARDING: u8 = 3;

impl Phase {
    /// A complete head has arrived. The handler has its own timeout for the body.
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

/// A stream with timeouts for a slow client.
pub(crate) struct TimedStream {
    stream: TcpStream,
    limits: Limits,
    phase: Phase,
    /// Bytes that were read of the present head, or discarded.
    bytes: usize,
    /// The read timer, and the phase in which it was started.
    reading: Option<(u8, Pin<Box<Sleep>>)>,
    /// The write timer; set while the client does not read its answer.
    writing: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub(crate) fn new(stream: TcpStream, limits: Limits, phase: Phase) -> TimedStream {
        TimedStream { stream, limits, phase, bytes: 0, reading: None, writing: None }
    }

    /// Polls the read timer; called only if there is nothing to read.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let phase = self.phase.get();
        let limit = match phase {
            IDLE => self.limits.idle_timeout,
            HEAD | DISCARDING => self.limits.head_timeout,
            _ => {
                self.reading = None;
                return Poll::Pending;
            }
        };
        match &mut self.reading {
            Some((started, left)) if *started == phase => match left.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(self.time_out(phase)),
                Poll::Pending => Poll::Pending,
            },
            reading => {
                let mut left = Box::pin(sleep(limit));
                // Poll the timer once, so that it wakes this task.
                let state = left.as_mut().poll(cx);
                *reading = Some((phase, left));
                state.map(|()| self.time_out(phase))
            }
        }
    }

    /// Reads what is there, and returns the number of bytes. During a head, at most the bytes up to its limit are read,
    /// so that hyper holds no more.
    fn poll_read_some(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let left = match self.phase.get() {
            IDLE | HEAD => self.limits.head_bytes_max - self.bytes,
            _ => usize::MAX,
        };
        if left >= buf.remaining() {
            let before = buf.filled().len();
            return Pin::new(&mut self.stream).poll_read(cx, buf).map_ok(|()| buf.filled().len() - before);
        }
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(left));
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part)).map(|()| part.filled().len());
        buf.advance(*read.as_ref().unwrap_or(&0));
        Poll::Ready(read)
    }

    /// Answers a head that is too large.
    fn refuse_head(&mut self) {
        self.phase.0.store(DISCARDING, Relaxed);
        (self.bytes, self.reading) = (0, None);
        // Do not write into an answer that is still being sent.
        if self.writing.is_none() {
            // Best effort: the connection is closed in any case.
            let _ = self.stream.try_write(too_large(self.limits.head_bytes_max).as_bytes());
        }
    }

    /// Reads and discards the rest of a refused request until the client ends it. hyper gets nothing, and an error at
    /// the end.
    fn poll_discard(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        while self.bytes < DISCARD_BYTES_MAX {
            let Poll::Ready(read) = self.poll_read_some(cx, buf) else { return self.poll_timeout(cx) };
            buf.set_filled(before);
            match read? {
                0 => break,
                read => self.bytes += read,
            }
        }
        Poll::Ready(Err(io::Error::from(io::ErrorKind::InvalidData)))
    }

    fn time_out(&mut self, phase: u8) -> io::Result<()> {
        // Do not write into an answer that is still being sent.
        if phase == HEAD && self.writing.is_none() {
            // Best effort: the connection is closed in any case.
            let _ = self.stream.try_write(TOO_SLOW);
        }
        Err(io::Error::from(io::ErrorKind::TimedOut))
    }

    /// Follows a write: `Pending` starts the write timer, any other result stops it.
    fn poll_write_timeout<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
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

impl AsyncRead for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.phase.get() {
            IDLE => this.bytes = 0,
            // hyper asks for more, so the head is not complete.
            HEAD if this.bytes >= this.limits.head_bytes_max => this.refuse_head(),
            _ => {}
        }
        if this.phase.get() == DISCARDING {
            return this.poll_discard(cx, buf);
        }
        match this.poll_read_some(cx, buf) {
            Poll::Pending => this.poll_timeout(cx),
            Poll::Ready(Ok(read)) => {
                this.bytes += read;
                if read > 0 && this.phase.get() == IDLE {
                    this.phase.0.store(HEAD, Relaxed);
                    // The idle timer would be stale when the connection is idle again.
                    this.reading = None;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.poll_write_timeout(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.poll_write_timeout(cx, written)
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// A stream, and its client.
    async fn connected() -> (TimedStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        stream.writable().await.unwrap();
        (TimedStream::new(stream, Limits::default(), Phase::default()), client)
    }

    /// Ends a request in its head.
    type End = fn(&mut TimedStream);

    #[tokio::test]
    async fn only_an_answer_that_is_still_being_sent_keeps_a_later_error_back() {
        let slow: End = |stream| assert_eq!(stream.time_out(HEAD).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let large: End = TimedStream::refuse_head;
        let (too_slow, too_large) = (String::from_utf8_lossy(TOO_SLOW), too_large(Limits::default().head_bytes_max));
        let mut cx = Context::from_waker(Waker::noop());
        for (end, error) in [(slow, &*too_slow), (large, too_large.as_str())] {
            let broken = Err(io::Error::from(io::ErrorKind::ConnectionReset));
            for (written, said) in [(None, ""), (Some(Ok(1)), error), (Some(broken), error)] {
                let (mut stream, mut client) = connected().await;
                // The client does not read.
                assert!(stream.poll_write_timeout(&mut cx, Poll::<io::Result<usize>>::Pending).is_pending());
                if let Some(written) = written {
                    assert!(stream.poll_write_timeout(&mut cx, Poll::Ready(written)).is_ready());
                }
                end(&mut stream);
                drop(stream);
                let mut text = String::new();
                client.read_to_string(&mut text).await.unwrap();
                assert_eq!(text, said);
            }
        }
    }
}
