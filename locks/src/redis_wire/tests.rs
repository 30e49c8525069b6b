use std::{io, time::Duration};

use futures::FutureExt;
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::timeout,
};

use super::*;
use crate::connection::driven;

fn ping(text: &str) -> Cmd {
    let mut command = redis::cmd("PING");
    command.arg(text);
    command
}

#[test]
fn an_answer_is_read_as_soon_as_it_is_complete_and_never_before() {
    let texts: [&[u8]; 9] = [
        b"+OK\r\n",
        b"+PONG\r\n",
        b":42\r\n",
        b":-1\r\n",
        b"-ERR no\r\n",
        b"$-1\r\n",
        b"$4\r\n\r\n\r\n\r\n",
        b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n",
        b"*0\r\n",
    ];
    for text in texts {
        let more = [text, b":7\r\n"].concat();
        let whole = (redis::parse_redis_value(text).unwrap(), text.len());
        for end in 0..=more.len() {
            let expected = (end >= text.len()).then(|| Ok((whole.0.clone(), whole.1)));
            assert_eq!(first_answer(&more[..end]), expected, "{end} bytes of {:?}", String::from_utf8_lossy(text));
        }
    }
}

#[test]
fn garbage_is_refused() {
    let deep = [b"*1\r\n".repeat(DEPTH_MAX + 2), b":1\r\n".to_vec()].concat();
    let texts: [&[u8]; 8] = [
        b"\r\n",
        b"?\r\n",
        b"HTTP/1.1 400 Bad\r\n",
        b":x\r\n",
        b"$-2\r\n",
        b"$9999999999\r\n",
        b"*9999999999\r\n",
        &deep,
    ];
    for text in texts {
        assert_eq!(first_answer(text), Some(Err(Garbage)), "{:?}", String::from_utf8_lossy(text));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0usize..6) {
        let bytes = [&b"+-:$*?"[kind..=kind], &bytes[..], b"\r\n"].concat();
        if let Some(Ok((_, length))) = first_answer(&bytes) {
            prop_assert!(length <= bytes.len());
        }
    }
}

#[tokio::test]
async fn requests_leave_in_the_order_of_their_first_poll_and_answers_find_their_requests() {
    let (ours, mut theirs) = duplex(64);
    let wire = Wire::default();
    let server = tokio::spawn(async move {
        let mut asked = vec![0; 3 * ping("a").get_packed_command().len()];
        theirs.read_exact(&mut asked).await.unwrap();
        // The second answer comes in two parts, the last byte of the third with the end of the connection.
        for part in ["+1\r\n$3\r", "\nb\r\n\r\n", ":3\r\n"] {
            theirs.write_all(part.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        asked
    });
    let asking = async {
        let (first, second, third) = (wire.ask(ping("a")), wire.ask(ping("b")), wire.ask(ping("c")));
        let dropped = async {
            // The request has left all the same.
            let mut second = second;
            let polled = futures::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut second).poll(cx).is_ready())).await;
            assert!(!polled);
        };
        Ok(futures::join!(first, dropped, third))
    };
    let (first, (), third) = driven(wire.driver(Box::new(ours)), asking).await.unwrap();
    assert_eq!((first, third), (Value::SimpleString("1".into()), Value::Int(3)));
    let expected = ["a", "b", "c"].map(|text| ping(text).get_packed_command()).concat();
    assert_eq!(server.await.unwrap(), expected);
    assert!(wire.0.lock().slots.is_empty());
}

/// A stream that keeps the bytes which it has taken until it is flushed, as TLS does while the socket is full. The
/// first flush has to wait.
struct Keeping {
    inner: DuplexStream,
    kept: Vec<u8>,
    is_full: bool,
}

impl AsyncRead for Keeping {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, room)
    }
}

impl AsyncWrite for Keeping {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.kept.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if std::mem::take(&mut this.is_full) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let sent = ready!(Pin::new(&mut this.inner).poll_write(cx, &this.kept))?;
        assert_eq!(sent, this.kept.len(), "the duplex has room for one request");
        this.kept.clear();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_flush_that_had_to_wait_is_repeated() {
    let (inner, mut theirs) = duplex(64);
    let wire = Wire::default();
    let server = tokio::spawn(async move {
        let mut asked = vec![0; ping("a").get_packed_command().len()];
        theirs.read_exact(&mut asked).await.unwrap();
        theirs.write_all(b":1\r\n").await.unwrap();
        // Open until the answer was read.
        theirs
    });
    let stream = Keeping { inner, kept: Vec::new(), is_full: true };
    let asking = async { Ok(wire.ask(ping("a")).await) };
    let answered = timeout(Duration::from_secs(5), driven(wire.driver(Box::new(stream)), asking)).await;
    assert_eq!(answered, Ok(Ok(Value::Int(1))), "the request was not sent");
    drop(server.await.unwrap());
}

#[tokio::test]
async fn an_answer_counts_although_a_later_request_cannot_be_sent() {
    let room = vec![0_u8; ping("a").get_packed_command().len()].into_boxed_slice();
    let stream = tokio::io::join(&b":1\r\n"[..], io::Cursor::new(room));
    let wire = Wire::default();
    let (mut first, mut second) = (wire.ask(ping("a")), wire.ask(ping("b")));
    for asked in [&mut first, &mut second] {
        assert_eq!(asked.now_or_never(), None);
    }
    // The connection takes the first request only, and its answer is there already.
    wire.driver(Box::new(stream)).await;
    assert_eq!((first.now_or_never(), second.now_or_never()), (Some(Value::Int(1)), None));
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_ends_the_connection() {
    for said in [&b":1\r\n"[..], b"\r\n", b""] {
        let (ours, mut theirs) = duplex(64);
        theirs.write_all(said).await.unwrap();
        drop(theirs);
        Wire::default().driver(Box::new(ours)).await;
    }
    // An answer that never ends.
    let (ours, mut theirs) = duplex(64 * 1024);
    let wire = Wire::default();
    let flooding = tokio::spawn(async move {
        let endless = vec![b'x'; 64 * 1024];
        while theirs.write_all(&endless).await.is_ok() {}
    });
    let asking = async { Ok(wire.ask(ping("a")).await) };
    assert_eq!(driven(wire.driver(Box::new(ours)), asking).await, Err("connection lost".to_owned()));
    flooding.await.unwrap();
}
