//! The resource over an S3 server in this process. The runs in the root package use a real one.

use std::time::Duration;

use axum::http::StatusCode;
use history::{Arm, Comparison, Version};
use proptest::test_runner::TestRunner;
use resource::{Limits, Policy, Resource, StoreError};

use crate::fake_s3::FakeS3;
use crate::random::{ARMS, decides_as_the_rule_does, policies};
use crate::served::{CLOCK, Served, observer, start};
use crate::treat::{Treat, failures};

async fn open(fake: &FakeS3, policy: &Policy) -> Result<Served, StoreError> {
    let (log, observer) = observer();
    let address = fake.address.clone();
    let resource = Resource::over_s3(policy.clone(), Limits::default(), CLOCK, address, observer).await?;
    Ok(start(resource, log).await)
}

fn off_and_writes() -> Policy {
    Policy::new(&[Arm::Off, Arm::Writes], Comparison::Default).unwrap()
}

const PUT: &str = "X-Hold: 1\r\nX-Op: 1\r\nX-Fence-Token: 7\r\n";
const BODY: &str = r#"{"arms": {"off": {"base": 0, "value": "1"}, "writes": {"base": 0, "value": "1"}}}"#;

#[tokio::test]
async fn the_object_decides_random_requests_as_the_rule_does_whatever_answers_are_lost() {
    let mut runner = TestRunner::deterministic();
    for policy in policies(&ARMS) {
        let fake = FakeS3::start().await;
        fake.treat(failures());
        let served = open(&fake, &policy).await.unwrap();
        decides_as_the_rule_does(&served, &policy, 200, &mut runner).await;
        let numbers = served.log.lock().unwrap().iter().filter(|admission| !admission.repeat).count() as u64;
        let (applied, refused) = fake.puts();
        // One put opened the object.
        assert_eq!(applied, numbers + 1, "each decision is one replacement of the object");
        assert!(refused > 5, "{refused} puts arrived when their condition was false");
        served.stop().await;
    }
}

#[tokio::test]
async fn a_new_process_goes_on_after_the_last_durable_number() {
    let fake = FakeS3::start().await;
    let first = open(&fake, &off_and_writes()).await.unwrap();
    assert_eq!(first.durable, None);
    assert_eq!(first.put("/r/k", PUT, BODY).await.header("x-admission"), Some("1"));
    first.stop().await;
    let second = open(&fake, &off_and_writes()).await.unwrap();
    assert_eq!(second.durable, Some(Version(1)));
    let repeated = second.put("/r/k", PUT, BODY).await;
    assert_eq!((repeated.header("x-repeat"), repeated.header("x-admission")), (Some("true"), Some("1")));
    let stale = "X-Hold: 2\r\nX-Op: 1\r\nX-Fence-Token: 6\r\n";
    let refused = second.put("/r/k", stale, BODY).await;
    assert_eq!((refused.status, &refused.json()["seen"]), (409, &7.into()));
    let number: u64 = refused.header("x-admission").unwrap().parse().unwrap();
    assert!(number > 1 << 20, "#{number} may have been given before");
    // The first operation has an object of its own by now.
    let repeated = second.put("/r/k", PUT, BODY).await;
    assert_eq!(repeated.header("x-admission"), Some("1"));
    second.stop().await;
    let other = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
    let error = open(&fake, &other).await.err().unwrap().to_string();
    assert!(error.contains("'off,writes default'") && error.contains("'off default'"), "{error}");
}

#[tokio::test]
async fn a_new_process_finds_every_operation_of_the_one_before() {
    let fake = FakeS3::start().await;
    // The next operation differs in the hold only, or in the number only.
    let operations = [(1, 1), (1, 2), (2, 2), (2, 1), (2, 3)];
    let put = |(hold, op): (u64, u64)| format!("X-Hold: {hold}\r\nX-Op: {op}\r\nX-Fence-Token: {hold}\r\n");
    let first = open(&fake, &off_and_writes()).await.unwrap();
    for operation in operations {
        assert_eq!(first.put("/r/k", &put(operation), BODY).await.status, 200);
    }
    first.stop().await;
    let second = open(&fake, &off_and_writes()).await.unwrap();
    for operation in operations {
        let again = second.put("/r/k", &put(operation), BODY).await;
        assert_eq!((again.status, again.header("x-repeat")), (200, Some("true")), "{operation:?}");
    }
    second.stop().await;
}

#[tokio::test]
async fn a_put_of_a_killed_process_cannot_arrive_after_the_next_process_has_opened_the_object() {
    let fake = FakeS3::start().await;
    let first = open(&fake, &off_and_writes()).await.unwrap();
    assert_eq!(first.put("/r/k", PUT, BODY).await.status, 200);
    fake.treat([Some(Treat::ApplyLater(Duration::from_millis(500)))]);
    let later = "X-Hold: 1\r\nX-Op: 2\r\nX-Fence-Token: 7\r\n";
    let killed = async {
        while first.decided() < 2 {
            tokio::task::yield_now().await;
        }
        open(&fake, &off_and_writes()).await.unwrap()
    };
    let second = tokio::select! {
        answer = first.put("/r/k", later, BODY) => panic!("{answer:?}"),
        second = killed => second,
    };
    assert_eq!(second.durable, Some(Version(1)), "the decision #2 was logged, and is not in the store");
    let (_, refused) = fake.puts();
    while fake.puts().1 == refused {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = second.put("/r/k", later, BODY).await;
    assert_eq!((answer.status, answer.header("x-repeat")), (200, None), "the operation is decided anew");
    // The first process finds that the object has another opening.
    let stopped = first.failure().await;
    assert!(stopped.contains("another process has opened the object"), "{stopped}");
    second.stop().await;
}

#[tokio::test]
async fn a_definite_error_ends_the_resource_and_names_the_reason() {
    for status in [StatusCode::BAD_REQUEST, StatusCode::FORBIDDEN, StatusCode::NOT_IMPLEMENTED] {
        let fake = FakeS3::start().await;
        let served = open(&fake, &off_and_writes()).await.unwrap();
        fake.treat([Some(Treat::Say(status))]);
        assert_eq!(served.put("/r/k", PUT, BODY).await.status, 500);
        let stopped = served.failure().await;
        assert!(stopped.contains(status.as_str()), "{stopped}");
    }
}

#[tokio::test]
async fn a_store_that_refuses_its_own_tag_ends_the_resource() {
    let fake = FakeS3::start().await;
    let served = open(&fake, &off_and_writes()).await.unwrap();
    fake.treat(vec![Some(Treat::Say(StatusCode::PRECONDITION_FAILED)); 200]);
    assert_eq!(served.put("/r/k", PUT, BODY).await.status, 500);
    let stopped = served.failure().await;
    assert!(stopped.contains("100 puts on condition were refused"), "{stopped}");
}
