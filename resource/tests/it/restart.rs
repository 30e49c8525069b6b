//! The data that survives a restart: an orderly restart, or a restart after SIGKILL.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use history::{Arm, HoldId, Key, OpId, Token, Version};
use resource::{Client, Moment, PlantedBug, Resource};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::served::{config, serve};

const TOKEN: &str = "X-Fence-Token: 42\r\nX-Hold: 1\r\nX-Op: 1\r\n";

#[tokio::test]
async fn values_versions_tokens_and_answers_survive_and_numbers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let first = serve(config(dir.path(), &[Arm::Reads])).await;
    assert_eq!(first.durable, None);
    let put = first.put("/r/k", TOKEN, "17").await;
    // A read alone registers the largest token; nothing else is written after it.
    assert_eq!(first.get("/r/k", "X-Fence-Token: 43\r\nX-Hold: 2\r\n").await.status, 200);
    first.stop().await;

    let second = serve(config(dir.path(), &[Arm::Reads])).await;
    assert_eq!(second.durable, Some(Version(2)));
    let repeat = second.put("/r/k", TOKEN, "17").await;
    assert_eq!((repeat.json(), repeat.header("x-repeat")), (put.json(), Some("true")));
    let stale = second.put("/r/k", "X-Fence-Token: 42\r\nX-Hold: 1\r\n", "18").await;
    assert_eq!((stale.status, stale.json()), (409, json!({"error": "stale fencing token", "seen": 43, "got": 42})));
    // The hold that registered the token is known still.
    assert_eq!(second.put("/r/k", "X-Fence-Token: 43\r\nX-Hold: 3\r\n", "18").await.status, 409);
    let read = second.get("/r/k", "").await;
    assert_eq!(read.json(), json!({"arm": "reads", "value": "17", "version": 1, "max_fence": 43}));
    let number: u64 = read.header("x-admission").unwrap().parse().unwrap();
    assert!(number > 2, "{number}");
    assert_eq!(second.put("/r/k", "X-Fence-Token: 43\r\nX-Hold: 2\r\n", "18").await.status, 200);
    second.stop().await;
}

#[tokio::test]
async fn an_answer_that_was_repeated_does_not_take_back_the_last_number_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let first = serve(config(dir.path(), &[Arm::Off])).await;
    for (op, number) in [(1, "1"), (2, "2"), (3, "3"), (1, "1"), (2, "2")] {
        let put = first.put("/r/k", &format!("X-Hold: 1\r\nX-Op: {op}\r\n"), "17").await;
        assert_eq!((put.status, put.header("x-admission")), (200, Some(number)));
    }
    first.stop().await;
    let second = serve(config(dir.path(), &[Arm::Off])).await;
    assert_eq!(second.durable, Some(Version(3)));
    second.stop().await;
}

#[tokio::test]
async fn a_claim_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = serve(config(dir.path(), &[Arm::Claim])).await;
    assert_eq!(first.get("/r/k", "X-Hold: 1\r\n").await.status, 200);
    first.stop().await;
    let second = serve(config(dir.path(), &[Arm::Claim])).await;
    assert_eq!(second.put("/r/k", "X-Hold: 2\r\n", "17").await.status, 409);
    assert_eq!(second.put("/r/k", "X-Hold: 1\r\n", "17").await.status, 200);
    second.stop().await;
}

#[tokio::test]
async fn an_operation_that_changed_nothing_is_known_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = serve(config(dir.path(), &[Arm::Writes])).await;
    assert_eq!(first.put("/r/k", TOKEN, "17").await.status, 200);
    let (stale, read) = ("X-Fence-Token: 41\r\nX-Hold: 2\r\nX-Op: 1\r\n", "X-Hold: 2\r\nX-Op: 2\r\n");
    let refused = first.put("/r/k", stale, "18").await;
    assert_eq!((refused.status, refused.header("x-admission")), (409, Some("2")));
    // This arm registers no reads, and the other key stays unknown.
    let (known, unknown) = (first.get("/r/k", read).await, first.get("/r/other", "X-Hold: 3\r\nX-Op: 1\r\n").await);
    assert_eq!((known.header("x-admission"), unknown.header("x-admission")), (Some("3"), Some("4")));
    first.stop().await;

    let second = serve(config(dir.path(), &[Arm::Writes])).await;
    // A later write does not show in the answers to the operations.
    assert_eq!(second.put("/r/k", "X-Fence-Token: 43\r\nX-Hold: 4\r\n", "19").await.status, 200);
    for (again, before) in [
        (second.put("/r/k", stale, "18").await, refused),
        (second.get("/r/k", read).await, known),
        (second.get("/r/other", "X-Hold: 3\r\nX-Op: 1\r\n").await, unknown),
    ] {
        assert_eq!((again.status, again.json()), (before.status, before.json()));
        assert_eq!(again.header("x-admission"), before.header("x-admission"));
        assert_eq!(again.header("x-repeat"), Some("true"));
    }
    assert_eq!(second.put("/r/k", stale, "20").await.status, 422, "an operation number that is used twice");
    second.stop().await;
}

#[tokio::test]
async fn a_resource_that_forgets_its_tokens_admits_a_stale_write_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &[Arm::Writes]);
    let first = serve(config.clone()).await;
    assert_eq!(first.put("/r/k", TOKEN, "17").await.status, 200);
    first.stop().await;
    let policy = config.policy.clone().with_bug(Some(PlantedBug::ForgetsTokens));
    let second = serve(resource::Config { policy, ..config }).await;
    assert_eq!(second.put("/r/k", "X-Fence-Token: 41\r\n", "stale").await.status, 200);
    second.stop().await;
}

#[tokio::test]
async fn a_resource_that_forgets_its_operations_applies_one_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &[Arm::Off]);
    let put = "X-Hold: 1\r\nX-Op: 1\r\n";
    let first = serve(config.clone()).await;
    let number = first.put("/r/k", put, "17").await.json()["version"].clone();
    first.stop().await;
    let policy = config.policy.clone().with_bug(Some(PlantedBug::ForgetsOperations));
    let second = serve(resource::Config { policy, ..config }).await;
    let again = second.put("/r/k", put, "17").await;
    assert_eq!((again.status, again.header("x-repeat")), (200, None));
    assert_ne!(again.json()["version"], number);
    second.stop().await;
}

/// Not a test by itself: the process that the next test kills. It prints its address, and then the
/// number of every admission at the moment of the decision.
#[tokio::test]
#[ignore = "run by the test that kills it"]
async fn serves_until_it_is_killed() {
    let Ok(dir) = std::env::var("RESOURCE_TEST_STORE") else { return };
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
    };
    let observer = Box::new(move |moment: Moment<'_>| {
        if let Moment::Decided(admission) = moment {
            say(format!("decided {}", admission.number));
        }
    });
    let resource = Resource::open(config(dir.as_ref(), &[Arm::Off, Arm::Reads]), observer).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    say(format!("listening {}", listener.local_addr().unwrap()));
    resource.serve(listener, std::future::pending()).await.unwrap();
}

/// The last answers that one writer got about its key.
#[derive(Default)]
struct Acknowledged {
    number: Version,
    value: Option<String>,
    token: Token,
}

/// Writes, and reads with a larger token before each write, until the resource is gone; says so after
/// each acknowledged write.
async fn write_until_it_is_gone(client: Client, writer: u64, key: Key, say: mpsc::UnboundedSender<()>) -> Acknowledged {
    let mut told = Acknowledged::default();
    for turn in 1.. {
        let (hold, token) = (Some(HoldId(writer << 32 | turn)), Token(turn));
        if client.read(&key, Some(token), hold, None).await.is_err() {
            break;
        }
        told.token = token;
        let value = turn.to_string();
        let proposal = (told.number, value.clone());
        let arms = BTreeMap::from([(Arm::Off, proposal.clone()), (Arm::Reads, proposal)]);
        let Ok(answer) = client.write(&key, Some(token), hold, Some(OpId(1)), None, &arms).await else { break };
        assert!(answer.arms[&Arm::Reads].admitted);
        told = Acknowledged { number: answer.number, value: Some(value), token };
        let _ = say.send(());
    }
    told
}

/// A process that does not outlive the test, whichever way that ends.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // It has been killed already, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As often as `RESOURCE_KILLS` says; once, if it says nothing.
#[tokio::test]
async fn what_was_acknowledged_before_a_sigkill_is_there_after_it() {
    let kills = std::env::var("RESOURCE_KILLS").map_or(1, |kills| kills.parse().unwrap());
    let mut writes = 0;
    for _ in 0..kills {
        writes += killed_once().await;
    }
    println!("{kills} of {kills} kills lost none of {writes} acknowledged writes");
}

/// Kills a resource under load and opens its store again. Returns the number of acknowledged writes.
async fn killed_once() -> usize {
    let dir = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["restart::serves_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
        .env("RESOURCE_TEST_STORE", dir.path())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Child(child.unwrap());
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended before it listened");
        if let Some((_, address)) = line.split_once("listening ") {
            break address.trim().to_owned();
        }
    };
    // Its lines must be read, or it would block.
    let lines = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let client = Client::new(&format!("http://{address}"), Duration::from_secs(30)).unwrap();
    let keys: Vec<Key> = (0..8).map(|number| Key::new(format!("k{number}"))).collect();
    let (say, mut acknowledged) = mpsc::unbounded_channel();
    let writers: Vec<_> = (1..)
        .zip(&keys)
        .map(|(writer, key)| write_until_it_is_gone(client.clone(), writer, key.clone(), say.clone()))
        .map(tokio::spawn)
        .collect();
    drop(say);
    let mut writes = 0;
    while writes < 200 {
        acknowledged.recv().await.expect("every writer gave up while the resource was there");
        writes += 1;
    }
    drop(child);
    let decided: Vec<u64> = (lines.join().unwrap().unwrap().lines())
        .filter_map(|line| line.strip_prefix("decided ")?.parse().ok())
        .collect();

    let served = serve(config(dir.path(), &[Arm::Off, Arm::Reads])).await;
    let client = Client::new(&served.url(), Duration::from_secs(30)).unwrap();
    for (key, writer) in keys.iter().zip(writers) {
        let told = writer.await.unwrap();
        let read = client.read(key, None, None, None).await.unwrap();
        assert!(told.number > Version(0), "{key} was never written");
        assert!(Some(told.number) <= served.durable, "acknowledged and not on disk");
        assert!(read.number.0 > decided.iter().copied().max().unwrap(), "a number was given out twice");
        for arm in [Arm::Off, Arm::Reads] {
            let now = &read.arms[&arm];
            // A write without an answer may have been applied as well, so that more may be there.
            assert!(now.version > told.number || (now.version, &now.value) == (told.number, &told.value));
        }
        assert!(read.arms[&Arm::Reads].seen >= Some(told.token), "the highest token went back");
    }
    served.stop().await;
    while acknowledged.recv().await.is_some() {
        writes += 1;
    }
    writes
}
