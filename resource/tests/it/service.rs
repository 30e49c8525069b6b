//! The service over real sockets: both contracts, and everything that a client can get wrong. The
//! runtime of these tests has one thread.

use std::time::Duration;

use history::{Arm, Comparison};
use resource::{Limits, Policy};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::served::{Served, answer, config, serve};

struct Fixture {
    served: Served,
    _dir: tempfile::TempDir,
}

async fn with(arms: &[Arm], limits: Limits) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(resource::Config { limits, ..config(dir.path(), arms) }).await;
    Fixture { served, _dir: dir }
}

async fn start(arms: &[Arm]) -> Fixture {
    with(arms, Limits::default()).await
}

#[tokio::test]
async fn one_arm_keeps_the_plain_contract() {
    let Fixture { served, .. } = &start(&[Arm::Writes]).await;
    let empty = served.get("/r/k", "").await;
    assert_eq!(
        (empty.status, empty.json()),
        (200, json!({"arm": "writes", "value": null, "version": 0, "max_fence": null}))
    );
    let put = served.put("/r/k", "X-Fence-Token: 42\r\n", "17").await;
    assert_eq!((put.status, put.json()), (200, json!({"version": 2, "seen": null})));
    assert_eq!(put.header("x-admission"), Some("2"));
    let stale = served.put("/r/k", "X-Fence-Token: 41\r\n", "18").await;
    assert_eq!((stale.status, stale.json()), (409, json!({"error": "stale fencing token", "seen": 42, "got": 41})));
    let get = served.get("/r/k", "").await;
    assert_eq!(get.json(), json!({"arm": "writes", "value": "17", "version": 2, "max_fence": 42}));
    let metrics = served.get("/metrics", "").await.text;
    assert!(metrics.contains("resource_stale_token_rejections_total{arm=\"writes\"} 1\n"), "{metrics}");
    assert!(metrics.contains("resource_admitted_writes_total{arm=\"writes\"} 1\n"), "{metrics}");
    assert!(metrics.contains("resource_requests_total{kind=\"read\"} 2\n"), "{metrics}");
    assert_eq!(served.get("/healthz", "").await.status, 200);
}

#[tokio::test]
async fn strict_refuses_a_second_write_with_one_token() {
    let dir = tempfile::tempdir().unwrap();
    let policy = Policy::new(&[Arm::Writes], Comparison::Strict).unwrap();
    let served = serve(resource::Config { policy, ..config(dir.path(), &[Arm::Writes]) }).await;
    assert_eq!(served.put("/r/k", "X-Fence-Token: 7\r\n", "1").await.status, 200);
    let again = served.put("/r/k", "X-Fence-Token: 7\r\n", "2").await;
    assert_eq!((again.status, again.json()), (409, json!({"error": "stale fencing token", "seen": 7, "got": 7})));
}

#[tokio::test]
async fn cas_alone_compares_the_base() {
    let Fixture { served, .. } = &start(&[Arm::Cas]).await;
    assert_eq!(served.put("/r/k", "", "1").await.status, 428);
    assert_eq!(served.put("/r/k", "X-Base: 0\r\n", "1").await.status, 200);
    let refused = served.put("/r/k", "X-Base: 0\r\n", "2").await;
    assert_eq!((refused.status, refused.json()), (409, json!({"error": "version mismatch", "version": 1, "base": 0})));
}

#[tokio::test]
async fn deadline_alone_compares_the_clock() {
    let Fixture { served, .. } = &start(&[Arm::Deadline]).await;
    assert_eq!(served.put("/r/k", "", "1").await.status, 428);
    assert_eq!(served.put("/r/k", "X-Deadline: 100000000\r\n", "1").await.status, 200);
    let refused = served.put("/r/k", "X-Deadline: 99999999\r\n", "2").await;
    let deadline = json!({"until_us": 99_999_999, "read_us": 100_000_000});
    assert_eq!((refused.status, &refused.json()["deadline"]), (409, &deadline));
    assert_eq!(served.get("/r/k", "").await.json()["value"], "1");
}

#[tokio::test]
async fn several_arms_are_read_in_one_request_and_decided_in_one_record() {
    let Fixture { served, .. } = &start(&[Arm::Off, Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim]).await;
    let body = |value: &str, base: u64| {
        let one = json!({"base": base, "value": value});
        json!({"arms": {"off": one, "writes": one, "reads": one, "cas": one, "claim": one}}).to_string()
    };
    let first = served.put("/r/k", "X-Fence-Token: 1\r\nX-Hold: 1\r\n", &body("1", 0)).await;
    assert_eq!(first.status, 200);
    // A read of the next hold fences the first on `reads`, and there only.
    let read = served.get("/r/k", "X-Fence-Token: 2\r\nX-Hold: 2\r\n").await;
    assert_eq!(read.json()["arms"]["reads"], json!({"value": "1", "version": 1, "max_fence": 2}));
    assert_eq!(read.json()["arms"]["writes"]["max_fence"], json!(1));
    assert_eq!(read.json()["arms"]["off"]["max_fence"], json!(null));
    let late = served.put("/r/k", "X-Fence-Token: 1\r\nX-Hold: 1\r\n", &body("2", 1)).await;
    assert_eq!(late.status, 200, "the status is that of `writes`");
    let expected = json!({"arms": {
        "off": {"admitted": true, "seen": null, "version": 3},
        "writes": {"admitted": true, "seen": 1, "version": 3},
        "reads": {"admitted": false, "seen": 2, "version": 1},
        "cas": {"admitted": true, "seen": null, "version": 3},
        "claim": {"admitted": false, "seen": null, "version": 0},
    }});
    assert_eq!(late.json(), expected);
    let rightful = served.put("/r/k", "X-Fence-Token: 2\r\nX-Hold: 2\r\n", &body("2", 1)).await;
    assert_eq!(rightful.json()["arms"]["cas"], json!({"admitted": false, "seen": null, "version": 3}));
    assert_eq!(rightful.json()["arms"]["claim"], json!({"admitted": true, "seen": null, "version": 4}));
    let stale = served.put("/r/k", "X-Fence-Token: 1\r\nX-Hold: 1\r\n", &body("9", 4)).await;
    assert_eq!(stale.status, 409);
    assert_eq!(stale.json()["error"], "stale fencing token");
    assert_eq!((&stale.json()["seen"], &stale.json()["got"]), (&json!(2), &json!(1)));
    assert_eq!(stale.json()["arms"]["off"]["admitted"], json!(true));
    let numbers: Vec<u64> = served.log.lock().unwrap().iter().map(|admission| admission.number.0).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert!(served.log.lock().unwrap().iter().all(|admission| admission.arms.len() == 5));
}

#[tokio::test]
async fn without_the_arm_writes_the_status_is_that_of_the_next_arm() {
    let Fixture { served, .. } = &start(&[Arm::Off, Arm::Reads, Arm::Cas]).await;
    let put = async |token: u64, base: u64| {
        let one = json!({"base": base, "value": "v"});
        let body = json!({"arms": {"off": one, "reads": one, "cas": one}}).to_string();
        let answer = served.put("/r/k", &format!("X-Fence-Token: {token}\r\n"), &body).await;
        let admitted = ["off", "reads", "cas"].map(|arm| answer.json()["arms"][arm]["admitted"] == json!(true));
        (answer.status, answer.error(), admitted)
    };
    assert_eq!(put(2, 0).await, (200, String::new(), [true; 3]));
    assert_eq!(put(1, 1).await, (409, "stale fencing token".to_owned(), [true, false, true]));
    assert_eq!(put(3, 1).await, (200, String::new(), [true, true, false]), "`cas` is at version 2");
    let Fixture { served, .. } = &start(&[Arm::Off, Arm::Cas]).await;
    let body = r#"{"arms":{"off":{"base":7,"value":"v"},"cas":{"base":7,"value":"v"}}}"#;
    let refused = served.put("/r/k", "", body).await;
    assert_eq!((refused.status, refused.error()), (409, "version mismatch".to_owned()));
    assert_eq!((&refused.json()["version"], &refused.json()["base"]), (&json!(0), &json!(7)));
}

#[tokio::test]
async fn an_operation_that_comes_again_gets_its_former_answer() {
    let Fixture { served, .. } = &start(&[Arm::Writes]).await;
    let headers = "X-Fence-Token: 5\r\nX-Hold: 1\r\nX-Op: 1\r\n";
    let first = served.put("/r/k", headers, "a").await;
    assert_eq!(served.put("/r/k", "X-Fence-Token: 6\r\nX-Hold: 2\r\nX-Op: 1\r\n", "b").await.status, 200);
    let again = served.put("/r/k", headers, "a").await;
    assert_eq!((again.status, again.json()), (200, first.json()));
    assert_eq!(again.header("x-admission"), first.header("x-admission"));
    assert_eq!((first.header("x-repeat"), again.header("x-repeat")), (None, Some("true")));
    assert_eq!(served.put("/r/k", headers, "other").await.status, 422);
    assert_eq!(served.get("/r/k", "").await.json()["value"], "b");
    let repeats: Vec<bool> = served.log.lock().unwrap().iter().map(|admission| admission.repeat).collect();
    assert_eq!(repeats, [false, false, true, false]);
    let metrics = served.get("/metrics", "").await.text;
    for line in [
        "resource_requests_total{kind=\"write\"} 2\n",
        "resource_requests_total{kind=\"repeat\"} 1\n",
        "resource_admitted_writes_total{arm=\"writes\"} 2\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
}

#[tokio::test]
async fn whatever_is_wrong_in_a_head_is_a_4xx_and_no_write() {
    let Fixture { served, .. } = &start(&[Arm::Writes]).await;
    let put =
        |path: &str, headers: &str| format!("PUT {path} HTTP/1.1\r\nhost: r\r\n{headers}content-length: 1\r\n\r\n1");
    let long = "k".repeat(129);
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    let token = "X-Fence-Token: 1\r\n";
    let table = [
        (400, "X-Fence-Token", put("/r/k", "X-Fence-Token: abc\r\n")),
        (400, "X-Fence-Token", put("/r/k", "X-Fence-Token: -1\r\n")),
        (400, "X-Fence-Token", put("/r/k", "X-Fence-Token: +1\r\n")),
        (400, "X-Fence-Token", put("/r/k", "X-Fence-Token: 1.0\r\n")),
        (400, "X-Fence-Token", put("/r/k", "X-Fence-Token:\r\n")),
        (400, "X-Fence-Token", put("/r/k", "X-Fence-Token: 18446744073709551616\r\n")),
        (400, "X-Fence-Token", put("/r/k", "X-Fence-Token: \u{fc}\r\n")),
        (400, "twice", put("/r/k", "X-Fence-Token: 1\r\nX-Fence-Token: 2\r\n")),
        (428, "missing X-Fence-Token", put("/r/k", "")),
        (400, "X-Hold", put("/r/k", "X-Fence-Token: 1\r\nX-Hold: worker\r\n")),
        (400, "X-Op", put("/r/k", "X-Fence-Token: 1\r\nX-Hold: 1\r\nX-Op: x\r\n")),
        (400, "X-Op without X-Hold", put("/r/k", "X-Fence-Token: 1\r\nX-Op: 1\r\n")),
        (400, "X-Base", put("/r/k", "X-Fence-Token: 1\r\nX-Base: x\r\n")),
        (400, "key", put(&format!("/r/{long}"), token)),
        (400, "key", put("/r/a%20b", token)),
        (400, "key", put("/r/%FF", token)),
        (400, "percent sign", put("/r/%ZZ", token)),
        (400, "percent sign", put("/r/a%4", token)),
        (400, "percent sign", put("/r/a%", token)),
        (400, "percent sign", put("/r/%%41", token)),
        (400, "percent sign", put("/r/k?x=%4\u{fc}", token)),
        (400, "percent sign", put("/r/k?x=%GG", token)),
        (400, "percent sign", "GET /metrics?%1 HTTP/1.1\r\nhost: r\r\n\r\n".to_owned()),
        (404, "no such path", put("/r/", token)),
        (404, "no such path", put("/r/a/b", token)),
        (404, "no such path", put("/x", token)),
        (405, "method", "POST /r/k HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n".to_owned()),
        (405, "method", "DELETE /r/k HTTP/1.1\r\nhost: r\r\n\r\n".to_owned()),
        (405, "method", "PUT /metrics HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n".to_owned()),
        (431, "", put("/r/k", &many)),
        (400, "", "NONSENSE\r\n\r\n".to_owned()),
        (400, "", "PUT /r/k HTTP/1.1\r\nhost: r\r\nX-Fence-Token: 1\r\ncontent-length: x\r\n\r\n".to_owned()),
    ];
    for (status, error, raw) in table {
        let answer = served.send(&raw).await;
        assert_eq!(answer.status, status, "{raw}{answer:?}");
        assert!(error.is_empty() || answer.error().contains(error), "{raw}{answer:?}");
        if status == 405 {
            assert!(answer.header("allow").is_some_and(|allow| allow.contains("GET")), "{answer:?}");
        }
    }
    assert_eq!(served.decided(), 0);
    assert_eq!(served.put("/r/a%2Fb", "X-Fence-Token: 1\r\n", "1").await.status, 200);
    assert_eq!(served.log.lock().unwrap()[0].key.as_str(), "a/b");
}

#[tokio::test]
async fn after_a_wrong_escape_the_connection_is_used_again() {
    let Fixture { served, .. } = &start(&[Arm::Off]).await;
    let mut stream = served.connect().await;
    for (path, status) in [("/r/%ZZ", 400), ("/r/%5A", 200), ("/r/%ZZ", 400), ("/r/k?x=%41", 200)] {
        let put = format!("PUT {path} HTTP/1.1\r\nhost: r\r\ncontent-length: 1\r\n\r\n1");
        stream.write_all(put.as_bytes()).await.unwrap();
        let answer = answer(&mut stream).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
        assert!(status == 200 || answer.json()["got"] == "%ZZ", "{answer:?}");
    }
    assert_eq!(served.decided(), 2);
}

#[tokio::test]
async fn a_head_over_16_kb_is_a_431_and_the_largest_allowed_one_is_not() {
    let Fixture { served, .. } = &start(&[Arm::Off]).await;
    let head = |bytes: usize| {
        let (first, last) = ("GET /r/k HTTP/1.1\r\nhost: r\r\nx: ", "\r\n\r\n");
        format!("{first}{}{last}", "x".repeat(bytes - first.len() - last.len()))
    };
    let max = Limits::default().head_bytes_max;
    for bytes in [max + 1, 4 * max, 8 << 20] {
        let answer = served.send(head(bytes)).await;
        assert_eq!((answer.status, answer.header("connection")), (431, Some("close")), "{answer:?}");
        assert_eq!(answer.json()["max"], json!(max));
        assert!(answer.error().contains("head of the request is larger than 16384 bytes"), "{answer:?}");
    }
    assert_eq!(served.decided(), 0);
    // On one connection, and in small pieces: each head is counted by itself.
    let mut stream = served.connect().await;
    for _ in 0..3 {
        for piece in head(max).as_bytes().chunks(5000) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(answer(&mut stream).await.status, 200);
    }
    assert_eq!(served.decided(), 3);
}

#[tokio::test]
async fn a_head_without_end_is_discarded_up_to_a_limit() {
    let Fixture { served, .. } = &start(&[Arm::Off]).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /r/k HTTP/1.1\r\nx: ").await.unwrap();
    let mut sent = 0;
    let piece = vec![b'x'; 1 << 20];
    while sent < 100 && stream.write_all(&piece).await.is_ok() {
        sent += 1;
    }
    assert!(sent < 50, "the service reads on after {sent} MB");
    assert_eq!(served.get("/r/k", "").await.status, 200);
}

#[tokio::test]
async fn whatever_is_wrong_in_a_body_is_a_4xx_and_no_write() {
    let Fixture { served, .. } = &start(&[Arm::Off, Arm::Writes]).await;
    let one = r#"{"base":0,"value":"1"}"#;
    let table = [
        (400, "the body is not", "17".to_owned()),
        (400, "the body is not", String::new()),
        (400, "the body is not", "{".to_owned()),
        (400, "the body is not", format!(r#"{{"arms":{{"off":{one},"writes":{{"base":-1,"value":"1"}}}}}}"#)),
        (400, "the body is not", format!(r#"{{"arms":{{"off":{one},"writes":{{"base":0,"value":1}}}}}}"#)),
        (400, "value", format!(r#"{{"arms":{{"off":{one},"writes":{{"base":0}}}}}}"#)),
        (400, "duplicate field `off`", format!(r#"{{"arms":{{"off":{one},"off":{one},"writes":{one}}}}}"#)),
        (400, "unknown field `claims`", format!(r#"{{"arms":{{"off":{one},"writes":{one},"claims":{one}}}}}"#)),
        (422, "nothing for the arm 'writes'", format!(r#"{{"arms":{{"off":{one}}}}}"#)),
        (422, "no arm 'cas'", format!(r#"{{"arms":{{"off":{one},"writes":{one},"cas":{one}}}}}"#)),
    ];
    for (status, error, body) in table {
        let answer = served.put("/r/k", "X-Fence-Token: 1\r\n", &body).await;
        assert_eq!(answer.status, status, "{body}{answer:?}");
        assert!(answer.error().contains(error), "{body}{answer:?}");
    }
    assert_eq!(served.decided(), 0);
    let metrics = served.get("/metrics", "").await.text;
    assert!(metrics.contains("resource_requests_total{kind=\"turned_away\"} 10\n"), "{metrics}");
}

#[tokio::test]
async fn a_value_that_is_not_utf8_is_a_400() {
    let Fixture { served, .. } = &start(&[Arm::Off]).await;
    let raw = b"PUT /r/k HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\n\r\n\xff\xfe";
    let answer = served.send(raw).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(served.decided(), 0);
}

#[tokio::test]
async fn a_huge_body_is_a_413_and_the_largest_allowed_one_is_not() {
    let Fixture { served, .. } = &start(&[Arm::Off]).await;
    let max = Limits::default().body_bytes_max;
    for size in [max + 1, 4 * 1024 * 1024] {
        let answer = served.put("/r/k", "", &"x".repeat(size)).await;
        assert_eq!(answer.status, 413, "{answer:?}");
        assert_eq!(answer.json()["max"], json!(max));
    }
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let chunked = format!("PUT /r/k HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n");
    assert_eq!(served.send(chunked).await.status, 413);
    let expects = "PUT /r/k HTTP/1.1\r\nhost: r\r\nexpect: 100-continue\r\ncontent-length: 99999999\r\n\r\n";
    assert_eq!(served.send(expects).await.status, 413, "before the body is sent");
    assert_eq!(served.decided(), 0);
    assert_eq!(served.put("/r/k", "", &"x".repeat(max)).await.status, 200);
}

#[tokio::test]
async fn a_slow_body_is_a_408_and_no_write() {
    let limits = Limits { body_timeout: Duration::from_millis(100), ..Limits::default() };
    let Fixture { served, .. } = &with(&[Arm::Off], limits).await;
    let answer = served.send("PUT /r/k HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\n\r\n1").await;
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(answer.error().contains("in time"));
    assert_eq!(served.decided(), 0);
}

#[tokio::test]
async fn a_body_that_is_cut_off_is_no_write() {
    let Fixture { served, .. } = &start(&[Arm::Off]).await;
    let mut stream = served.connect().await;
    stream.write_all(b"PUT /r/k HTTP/1.1\r\nhost: r\r\ncontent-length: 9\r\n\r\n1").await.unwrap();
    stream.shutdown().await.unwrap();
    // Whatever it answers, it is done with the request when it closes.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert_eq!(served.decided(), 0);
}

#[tokio::test]
async fn a_slow_head_is_a_408_and_ends_the_connection() {
    let limits = Limits { head_timeout: Duration::from_millis(100), ..Limits::default() };
    let Fixture { served, .. } = &with(&[Arm::Off], limits).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /r/k HTTP/1.1\r\nhost:").await.unwrap();
    let slow = answer(&mut stream).await;
    assert_eq!(slow.status, 408, "{slow:?}");
    assert!(slow.error().contains("in time"));
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    // The same after a request that was in time.
    let mut stream = served.connect().await;
    for _ in 0..2 {
        stream.write_all(b"GET /r/k HTTP/1.1\r\nhost: r\r\n\r\n").await.unwrap();
        assert_eq!(answer(&mut stream).await.status, 200);
    }
    stream.write_all(b"GET").await.unwrap();
    assert_eq!(answer(&mut stream).await.status, 408);
}

#[tokio::test]
async fn an_idle_connection_outlives_the_time_for_a_head() {
    let limits = Limits { head_timeout: Duration::from_millis(20), ..Limits::default() };
    let Fixture { served, .. } = &with(&[Arm::Off], limits).await;
    let mut stream = served.connect().await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(b"GET /r/k HTTP/1.1\r\nhost: r\r\n\r\n").await.unwrap();
        assert_eq!(answer(&mut stream).await.status, 200);
    }
}

#[tokio::test]
async fn an_idle_connection_ends_at_last() {
    let limits = Limits { idle_timeout: Duration::from_millis(50), ..Limits::default() };
    let Fixture { served, .. } = &with(&[Arm::Off], limits).await;
    let mut stream = served.connect().await;
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answers_loses_its_connection() {
    let limits = Limits { write_timeout: Duration::from_millis(100), ..Limits::default() };
    let Fixture { served, .. } = &with(&[Arm::Off], limits).await;
    assert_eq!(served.put("/r/k", "", &"x".repeat(limits.body_bytes_max)).await.status, 200);
    let mut greedy = served.connect().await;
    // More answers than any socket buffers hold (64 MB), none of which is read.
    greedy.write_all("GET /r/k HTTP/1.1\r\nhost: r\r\n\r\n".repeat(1000).as_bytes()).await.unwrap();
    // Only the connection that asks is left in the end.
    while !served.get("/metrics", "connection: close\r\n").await.text.ends_with("resource_connections 1\n") {}
    assert!(served.decided() < 1001);
}

#[tokio::test]
async fn one_connection_too_many_is_a_503_until_another_ends() {
    let limits = Limits { connections_max: 1, ..Limits::default() };
    let Fixture { served, .. } = &with(&[Arm::Off], limits).await;
    let mut first = served.connect().await;
    first.write_all(b"GET /r/k HTTP/1.1\r\nhost: r\r\n\r\n").await.unwrap();
    assert_eq!(answer(&mut first).await.status, 200);
    let mut second = served.connect().await;
    assert_eq!(answer(&mut second).await.status, 503);
    drop(first);
    loop {
        let mut next = served.connect().await;
        // The service may answer 503 and close before this is written.
        let _ = next.write_all(b"GET /healthz HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n").await;
        let mut text = Vec::new();
        if next.read_to_end(&mut text).await.is_ok() && text.starts_with(b"HTTP/1.1 200") {
            break;
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let Fixture { served, .. } = &start(&[Arm::Off]).await;
    let mut stream = served.connect().await;
    let put = |value: u8| format!("PUT /r/k HTTP/1.1\r\nhost: r\r\ncontent-length: 1\r\n\r\n{value}");
    stream.write_all(format!("{}{}", put(1), put(2)).as_bytes()).await.unwrap();
    let mut both = String::new();
    while both.matches("x-admission").count() < 2 || !both.ends_with("}\n") {
        let mut buffer = [0; 1024];
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "{both}");
        both.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    assert!(both.find("x-admission: 1").unwrap() < both.find("x-admission: 2").unwrap());
}

#[tokio::test]
async fn concurrent_writers_get_numbers_in_the_order_of_the_log() {
    let Fixture { served, .. } = &start(&[Arm::Off, Arm::Cas]).await;
    let writers = (0..20).map(|hold| async move {
        let headers = format!("X-Hold: {hold}\r\nX-Op: 0\r\n");
        let body = r#"{"arms":{"off":{"base":0,"value":"1"},"cas":{"base":0,"value":"1"}}}"#;
        let answer = served.put("/r/k", &headers, body).await;
        answer.header("x-admission").unwrap().parse::<u64>().unwrap()
    });
    let mut numbers = futures::future::join_all(writers).await;
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    let log = served.log.lock().unwrap();
    assert!(log.is_sorted_by_key(|admission| admission.number));
    assert_eq!(log.iter().filter(|admission| admission.arm(Arm::Cas).unwrap().admitted).count(), 1);
}

#[tokio::test]
async fn a_shutdown_lets_a_request_finish() {
    let Fixture { served, _dir } = start(&[Arm::Off]).await;
    let address = served.address;
    let mut stream = served.connect().await;
    let head = "PUT /r/k HTTP/1.1\r\nhost: r\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The service is in the request as soon as it wants the body.
    let mut wants_body = [0; 25];
    stream.read_exact(&mut wants_body).await.unwrap();
    assert_eq!(wants_body, *b"HTTP/1.1 100 Continue\r\n\r\n");
    let finishing = async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {}
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.write_all(b"1").await.unwrap();
        answer(&mut stream).await
    };
    let ((), finished) = tokio::join!(served.stop(), finishing);
    assert_eq!(finished.status, 200, "{finished:?}");
}
