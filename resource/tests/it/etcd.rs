//! The resource over a member of etcd in this process. The runs in the root package use a real cluster.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use history::{Arm, Comparison};
use proptest::test_runner::TestRunner;
use resource::{Limits, Moment, Observer, Policy, Resource, WallClock};
use tonic::Code;

use crate::fake_etcd::FakeEtcd;
use crate::random::{ARMS, decides_as_the_rule_does, policies};
use crate::served::{CLOCK, Served, observer, start};
use crate::treat::{Treat, failures};

async fn open(fake: &FakeEtcd, policy: &Policy, clock: WallClock, observer: Observer) -> Resource {
    let lock_keys: resource::LockKeys = |key| format!("locks/{key}/").into_bytes();
    let members = (vec![fake.address.clone()], lock_keys);
    Resource::over_etcd(policy.clone(), Limits::default(), clock, members, observer).await.unwrap()
}

async fn serve(fake: &FakeEtcd, policy: &Policy) -> Served {
    let (log, observer) = observer();
    start(open(fake, policy, CLOCK, observer).await, log).await
}

#[tokio::test]
async fn etcd_decides_random_requests_as_the_rule_does_whatever_answers_are_lost() {
    let mut runner = TestRunner::deterministic();
    for policy in policies(&ARMS) {
        let fake = FakeEtcd::start().await;
        fake.treat(failures());
        let served = serve(&fake, &policy).await;
        decides_as_the_rule_does(&served, &policy, 60, &mut runner).await;
        let numbers = served.log.lock().unwrap().iter().filter(|admission| !admission.repeat).count() as u64;
        let (applied, refused) = fake.decisions();
        assert_eq!(applied, numbers, "each decision is one transaction that was applied");
        assert!(refused > 1, "{refused} copies came too late");
        served.stop().await;
    }
}

#[tokio::test]
async fn the_guard_admits_only_while_the_lock_key_of_the_token_is_there() {
    let fake = FakeEtcd::start().await;
    let served = serve(&fake, &Policy::new(&[Arm::Guard], Comparison::Default).unwrap()).await;
    let token = fake.create("locks/k/1");
    let headers = |op, token| format!("X-Hold: 1\r\nX-Op: {op}\r\nX-Fence-Token: {token}\r\n");
    assert_eq!(served.put("/r/k", &headers(1, token + 1), "a").await.status, 409);
    assert_eq!(served.put("/r/other", &headers(2, token), "a").await.status, 409);
    assert_eq!(served.put("/r/k", &headers(3, token), "a").await.status, 200);
    fake.remove("locks/k/1");
    assert_eq!(served.put("/r/k", &headers(4, token), "b").await.status, 409);
    served.stop().await;
}

#[tokio::test]
async fn the_guard_refuses_a_hold_whose_lock_key_goes_before_the_transaction() {
    let fake = FakeEtcd::start().await;
    let token = fake.create("locks/k/1");
    let member = fake.clone();
    let observer = Box::new(move |moment: Moment<'_>| {
        if matches!(moment, Moment::Asked) {
            member.remove("locks/k/1");
        }
    });
    let policy = Policy::new(&[Arm::Guard], Comparison::Default).unwrap();
    let served = start(open(&fake, &policy, CLOCK, observer).await, Default::default()).await;
    let headers = format!("X-Hold: 1\r\nX-Op: 1\r\nX-Fence-Token: {token}\r\n");
    assert_eq!(served.put("/r/k", &headers, "a").await.status, 409);
    served.stop().await;
}

#[tokio::test]
async fn the_clock_of_a_deadline_is_read_after_the_state() {
    static NOW_US: AtomicU64 = AtomicU64::new(100_000_000);
    let fake = FakeEtcd::start().await;
    let observer = Box::new(|moment: Moment<'_>| {
        if matches!(moment, Moment::Asked) {
            NOW_US.fetch_add(1_000_000, SeqCst);
        }
    });
    let policy = Policy::new(&[Arm::Deadline], Comparison::Default).unwrap();
    let resource = open(&fake, &policy, || Duration::from_micros(NOW_US.load(SeqCst)), observer).await;
    let served = start(resource, Default::default()).await;
    assert_eq!(served.put("/r/k", "X-Deadline: 100500000\r\n", "a").await.status, 409);
    assert_eq!(served.put("/r/k", "X-Deadline: 102000000\r\n", "a").await.status, 200);
    served.stop().await;
}

#[tokio::test]
async fn a_refused_operation_that_arrives_again_stays_refused() {
    let fake = FakeEtcd::start().await;
    let served = serve(&fake, &Policy::new(&[Arm::Claim], Comparison::Default).unwrap()).await;
    let put = "X-Hold: 1\r\nX-Op: 1\r\n";
    let refused = served.put("/r/k", put, "a").await;
    assert_eq!((refused.status, refused.header("x-admission"), refused.header("x-repeat")), (409, Some("1"), None));
    // The hold has the claim from now on, so a new operation would be admitted.
    assert_eq!(served.get("/r/k", "X-Hold: 1\r\n").await.status, 200);
    let again = served.put("/r/k", put, "a").await;
    assert_eq!((again.status, again.header("x-admission"), again.header("x-repeat")), (409, Some("1"), Some("true")));
    assert_eq!(served.put("/r/k", "X-Hold: 1\r\nX-Op: 2\r\n", "a").await.status, 200);
    served.stop().await;
}

#[tokio::test]
async fn a_definite_error_of_etcd_ends_the_resource_and_names_the_reason() {
    let policy = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
    for code in [Code::InvalidArgument, Code::PermissionDenied, Code::Unimplemented] {
        let fake = FakeEtcd::start().await;
        let served = serve(&fake, &policy).await;
        fake.treat([Some(Treat::Say(Code::Unavailable)), Some(Treat::Say(Code::ResourceExhausted))]);
        assert_eq!(served.put("/r/k", "", "a").await.status, 200, "an error that may pass ends nothing");
        fake.treat([Some(Treat::Say(code))]);
        assert_eq!(served.put("/r/k", "", "a").await.status, 500);
        let stopped = served.failure().await;
        assert!(stopped.contains("refused on purpose"), "{stopped}");
    }
}
