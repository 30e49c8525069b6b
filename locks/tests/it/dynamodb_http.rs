//! The connection to DynamoDB, against a server that gives the answers of a list.

use std::{sync::Arc, time::Duration};

use locks::{
    BootClock, Client, Connecting, FailureReason, Key, Lock, NodeAnswer, Outcome, Owner, ServerAddress, Token,
    TokenSource, Unwatched,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const LEASE: Duration = Duration::from_secs(2);
/// The answers of the service: no record, a counter, a refusal, an error of its own.
const NONE: (u16, &str) = (200, "{}");
const COUNTED: (u16, &str) = (200, r#"{"Attributes": {"counter": {"N": "7"}}}"#);
const REFUSED: (u16, &str) = (400, r#"{"__type": "x#ConditionalCheckFailedException", "message": "no"}"#);
const THROTTLED: (u16, &str) = (400, r#"{"__type": "x#ProvisionedThroughputExceededException", "message": "later"}"#);
const BROKEN: (u16, &str) = (500, r#"{"__type": "x#InternalServerError", "message": "who knows"}"#);
/// The server closes the connection without an answer.
const CLOSED: (u16, &str) = (0, "");

/// Reads one request with its body.
async fn request(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= length.parse().unwrap() {
                return text;
            }
        }
        let mut part = [0; 4096];
        let n = stream.read(&mut part).await.unwrap();
        assert!(n > 0, "the request is cut short: {text}");
        read.extend_from_slice(&part[..n]);
    }
}

/// A lock over a server that first says its version, then creates the table, and then gives these answers. Later
/// connections are refused.
async fn lock(answers: &'static [(u16, &str)]) -> Arc<dyn Lock> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = ServerAddress::new("dynamodb-1", listener.local_addr().unwrap().to_string());
    tokio::spawn(async move {
        for (status, body) in [NONE, NONE].iter().chain(answers) {
            let mut stream = listener.accept().await.unwrap().0;
            request(&mut stream).await;
            if *status > 0 {
                let head =
                    format!("HTTP/1.1 {status} Some\r\nserver: test/1\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + body).as_bytes()).await.unwrap();
            }
        }
    });
    let client = Client::named("dynamodb").unwrap();
    let connected = (client.connect)(client.name, vec![address], Connecting::default()).await.unwrap();
    assert_eq!(connected.versions, [Ok("test/1".to_owned())]);
    (client.build)(connected.servers, TokenSource::Counter, Arc::new(BootClock)).unwrap()
}

/// The token of an attempt, or how it failed and what the server said.
async fn attempt(answers: &'static [(u16, &str)]) -> Result<Option<Token>, (FailureReason, Outcome, NodeAnswer)> {
    let lock = lock(answers).await;
    let attempt = lock.acquire(&Key::new("k0"), Owner::new("a"), LEASE, &Unwatched).await;
    attempt.map(|hold| hold.token).map_err(|failure| (failure.reason, failure.outcome, failure.answers[0].1))
}

#[tokio::test]
async fn an_answer_of_the_service_decides_an_attempt_and_nothing_is_asked_twice() {
    assert_eq!(attempt(&[NONE, COUNTED]).await, Ok(Some(Token(7))));
    assert_eq!(attempt(&[NONE, REFUSED]).await, Err((FailureReason::Held, Outcome::Failed, NodeAnswer::Refused)));
}

#[tokio::test]
async fn only_an_error_that_may_come_after_the_write_is_indeterminate() {
    for (answers, outcome, words) in [
        (&[NONE, THROTTLED][..], Outcome::Failed, "ProvisionedThroughputExceededException: later"),
        (&[NONE, BROKEN, NONE], Outcome::Indeterminate, "InternalServerError: who knows"),
        (&[NONE, CLOSED, NONE], Outcome::Indeterminate, "it may have been done"),
        // Nothing listens any more.
        (&[NONE], Outcome::Failed, "refused"),
        // A read changes nothing.
        (&[BROKEN], Outcome::Failed, "InternalServerError"),
    ] {
        let (reason, found, answer) = attempt(answers).await.unwrap_err();
        assert_eq!((found, answer), (outcome, NodeAnswer::None), "{reason}");
        assert!(reason.to_string().contains(words), "{words}: {reason}");
    }
}
