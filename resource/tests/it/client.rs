//! The client: what it understands, and what it says of failures.

use std::collections::BTreeMap;
use std::time::Duration;

use history::{Arm, HoldId, Key, OpId, Token, Version};
use resource::{Client, ClientError, WriteArm};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::served::{config, serve};

const LONG: Duration = Duration::from_secs(30);

fn key() -> Key {
    Key::new("a/b?c%#1")
}

fn arms(arms: &[Arm], base: u64, value: &str) -> BTreeMap<Arm, (Version, String)> {
    arms.iter().map(|arm| (*arm, (Version(base), value.to_owned()))).collect()
}

#[tokio::test]
async fn it_speaks_both_contracts() {
    for all in [&[Arm::Writes][..], &[Arm::Reads], &Arm::ALL] {
        let dir = tempfile::tempdir().unwrap();
        let served = serve(config(dir.path(), all)).await;
        let client = Client::new(&served.url(), LONG).unwrap();
        let write = async |hold: u64, op: u64, token: u64, value: &str| {
            let ids = (Some(HoldId(hold)), Some(OpId(op)));
            // The clock of these resources shows 100 s.
            let deadline = Some(if token == 5 { 100_000_000 } else { 99_999_999 });
            client.write(&key(), Some(Token(token)), ids.0, ids.1, deadline, &arms(all, 0, value)).await.unwrap()
        };
        let first = write(1, 1, 5, "é").await;
        assert_eq!(first.arms.keys().copied().collect::<Vec<_>>(), all);
        // Nobody has claimed it yet, and this resource sees no lock.
        let is_admitted = |arm: &Arm| !matches!(arm, Arm::Claim | Arm::Guard);
        assert!(first.arms.iter().all(|(arm, was)| *was == WriteArm { admitted: is_admitted(arm), seen: None }));
        let stale = write(2, 1, 4, "2").await;
        for (arm, outcome) in &stale.arms {
            let seen = arm.fences().then_some(Token(5));
            assert_eq!(*outcome, WriteArm { admitted: *arm == Arm::Off, seen }, "{arm}");
        }
        let again = write(1, 1, 5, "é").await;
        assert_eq!((again.number, again.arms, again.repeat), (first.number, first.arms, true));
        let read = client.read(&key(), Some(Token(9)), Some(HoldId(3)), Some(OpId(1))).await.unwrap();
        assert_eq!((read.number, read.repeat), (Version(3), false));
        for (arm, now) in &read.arms {
            let expected = match arm {
                Arm::Off => (Version(2), Some("2")),
                Arm::Claim | Arm::Guard => (Version(0), None),
                _ => (Version(1), Some("é")),
            };
            assert_eq!((now.version, now.value.as_deref()), expected, "{arm}");
            let seen = [(Arm::Writes, Token(5)), (Arm::Reads, Token(9))].into_iter().find(|(fenced, _)| fenced == arm);
            assert_eq!(now.seen, seen.map(|(_, token)| token), "{arm}");
        }
        assert!(served.log.lock().unwrap().iter().all(|admission| admission.key == key()));
        served.stop().await;
    }
}

#[tokio::test]
async fn what_was_turned_away_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(config(dir.path(), &[Arm::Writes])).await;
    let client = Client::new(&served.url(), LONG).unwrap();
    let missing = client.write(&key(), None, None, None, None, &arms(&[Arm::Writes], 0, "1")).await;
    assert!(matches!(&missing, Err(ClientError::Failed(why)) if why.contains("missing X-Fence-Token")), "{missing:?}");
    let token = Some(Token(1));
    let huge = client.write(&key(), token, None, None, None, &arms(&[Arm::Writes], 0, &"x".repeat(70_000))).await;
    assert!(matches!(huge, Err(ClientError::Failed(_))), "{huge:?}");
    assert_eq!(served.decided(), 0);
    served.stop().await;
}

#[tokio::test]
async fn a_refused_connection_has_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::new(&format!("http://{address}"), LONG).unwrap();
    let read = client.read(&key(), None, None, None).await;
    assert!(matches!(read, Err(ClientError::Failed(_))), "{read:?}");
}

/// A server that takes one request, counts the connections, and answers with `reply`.
async fn replying(reply: &'static [u8], stay: bool) -> (String, tokio::task::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap() == 0 {
                    // The test connects once more, silently, when it is done.
                    return taken.len();
                }
            }
            stream.write_all(reply).await.unwrap();
            taken.push(stay.then_some(stream));
        }
        taken.len()
    });
    (url, task)
}

#[tokio::test]
async fn what_may_have_been_applied_is_indeterminate_and_not_tried_again() {
    let table: [(&[u8], bool, Duration); 7] = [
        (b"", false, LONG),
        (b"", true, Duration::from_millis(200)),
        (b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n", true, LONG),
        (b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", true, LONG),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", false, LONG),
        // Without a number, the answer is not one of the resource.
        (b"HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\n{\"version\":1,\"seen\":null}", true, LONG),
        (b"HTTP/1.1 409 Conflict\r\nx-admission: 7\r\ncontent-length: 99\r\n\r\n{", false, LONG),
    ];
    for (reply, stay, timeout) in table {
        let (url, requests) = replying(reply, stay).await;
        let client = Client::new(&url, timeout).unwrap();
        let write = client.write(&key(), Some(Token(1)), None, None, None, &arms(&[Arm::Writes], 0, "1")).await;
        assert!(matches!(write, Err(ClientError::Indeterminate(_))), "{}: {write:?}", String::from_utf8_lossy(reply));
        drop(tokio::net::TcpStream::connect(url.trim_start_matches("http://")).await.unwrap());
        assert_eq!(requests.await.unwrap(), 1, "{}", String::from_utf8_lossy(reply));
    }
}

#[tokio::test]
async fn a_status_that_contradicts_the_body_is_told() {
    for (status, admitted, expected) in
        [("409 Conflict", true, Some(Arm::Writes)), ("200 OK", true, None), ("409 Conflict", false, None)]
    {
        let body = format!(
            r#"{{"arms":{{"off":{{"admitted":true,"seen":null}},"writes":{{"admitted":{admitted},"seen":3}}}}}}"#
        );
        let head = format!("HTTP/1.1 {status}\r\nx-admission: 7\r\ncontent-length: {}\r\n\r\n", body.len());
        let reply = [head.as_bytes(), body.as_bytes()].concat().leak();
        let (url, _) = replying(reply, true).await;
        let client = Client::new(&url, LONG).unwrap();
        let both = arms(&[Arm::Off, Arm::Writes], 0, "1");
        let write = client.write(&key(), Some(Token(1)), None, None, None, &both).await.unwrap();
        assert_eq!(write.contrary, expected, "{body}");
    }
}

#[tokio::test]
async fn a_prepared_write_leaves_only_when_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(config(dir.path(), &[Arm::Writes])).await;
    let client = Client::new(&served.url(), LONG).unwrap();
    let write = client.prepare_write(&key(), Some(Token(1)), None, None, None, &arms(&[Arm::Writes], 0, "1")).unwrap();
    client.read(&key(), None, None, None).await.unwrap();
    assert_eq!(served.decided(), 1);
    assert_eq!(write.send().await.unwrap().number, Version(2));
    served.stop().await;
}

#[test]
fn an_address_must_be_http() {
    for bad in ["", "resource:8080", "https://resource", "http://"] {
        assert!(matches!(Client::new(bad, LONG), Err(ClientError::Failed(_))), "{bad}");
    }
}
