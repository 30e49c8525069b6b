//! The resource over a real Postgres server against the rule, which is its model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use history::{Arm, Comparison, Deadline, HoldId, Key, OpId, Token, Version};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use resource::{Action, Admission, Client, Limits, Policy, Proposal, Request, Resource, State};
use tokio_postgres::{Config, NoTls};

use crate::postgres_server::Server;
use crate::real::PATIENCE;
use crate::served::{CLOCK, Served, observer, start};

async fn serve(server: &Server, policy: &Policy) -> Served {
    let (log, observer) = observer();
    let resource = Resource::over_postgres(policy.clone(), Limits::default(), CLOCK, server.address(), observer).await;
    start(resource.unwrap(), log).await
}

/// Requests of a few holds on two keys, with tokens that collide and go back, operations that arrive again, and
/// operations whose number is used for another content.
fn requests(policy: &Policy, length: usize) -> impl Strategy<Value = Vec<Request>> {
    let ids = (0..2_u8, proptest::option::of(0..6_u64), proptest::option::of(0..40_u64));
    let content = (0..8_u64, proptest::option::weighted(0.7, (0..3_u64, "[0-9é'\\\\]{0,3}")));
    let arms = policy.arms().to_vec();
    let request = (ids, content, any::<u64>()).prop_map(move |((key, hold, op), (token, write), large)| {
        let proposal = |(base, value): (u64, String)| Proposal { base: Some(Version(base)), value };
        let action = write.map_or(Action::Read, |write| {
            Action::Write(arms.iter().map(|arm| (*arm, proposal(write.clone()))).collect())
        });
        // Also numbers beyond 63 bits, which Postgres's own integers do not have.
        let far = |number: u64| if large % 16 == 0 { u64::MAX - number } else { number };
        let hold = hold.map(|hold| HoldId(far(hold)));
        let op = op.filter(|_| hold.is_some()).map(OpId);
        // The clock shows 100 s.
        let deadline = Deadline { until_us: 99_999_999 + large % 3, read_us: 100_000_000 };
        let deadline = matches!(action, Action::Write(_)).then_some(deadline);
        Request { key: Key::new(format!("k{key}")), hold, op, token: Some(Token(far(token))), deadline, action }
    });
    proptest::collection::vec(request, length)
}

/// Sends `request`, whose answer nobody compares: the log has the decision.
async fn send(client: &Client, request: &Request) -> bool {
    let Request { key, hold, op, token, deadline, action } = request;
    match action {
        Action::Read => client.read(key, *token, *hold, *op).await.is_ok(),
        Action::Write(arms) => {
            let value = |(arm, proposal): (&Arm, &Proposal)| (*arm, (proposal.base.unwrap(), proposal.value.clone()));
            let values: BTreeMap<_, _> = arms.iter().map(value).collect();
            client.write(key, *token, *hold, *op, deadline.map(|d| d.until_us), &values).await.is_ok()
        }
    }
}

#[tokio::test]
async fn postgres_decides_random_requests_as_the_rule_does() {
    let strict =
        Policy::new(&[Arm::Off, Arm::Writes, Arm::Cas, Arm::Claim, Arm::Deadline], Comparison::Strict).unwrap();
    let mut runner = TestRunner::deterministic();
    for policy in [Policy::new(&Arm::ALL, Comparison::Default).unwrap(), strict] {
        let Some(server) = Server::start().await else { return };
        let served = serve(&server, &policy).await;
        let client = Client::new(&served.url(), PATIENCE).unwrap();
        let mut model = State::default();
        let (mut refused, mut repeats) = (0, 0);
        let mut sent: Vec<Request> = Vec::new();
        for mut request in requests(&policy, 600).new_tree(&mut runner).unwrap().current() {
            // The base is how many versions ago it was current on `cas`.
            let current = model.key(&request.key).and_then(|key| key.get(&Arm::Cas)).map_or(0, |arm| arm.version.0);
            if let Action::Write(arms) = &mut request.action {
                let back = |base: Version| Version(current.saturating_sub(base.0));
                arms.values_mut().for_each(|proposal| proposal.base = proposal.base.map(back));
            }
            // One request in five arrives again.
            if sent.len() % 5 == 4 {
                request = sent[sent.len() / 2].clone();
            }
            sent.push(request.clone());
            let decided = served.decided();
            let is_answered = send(&client, &request).await;
            let expected = model.decide(&policy, &request).ok();
            assert_eq!(is_answered, expected.is_some(), "{request:?}");
            let log = served.log.lock().unwrap();
            let logged: &[Admission] = &log[decided..];
            assert_eq!(logged, expected.as_slice(), "{request:?}");
            repeats += logged.iter().filter(|admission| admission.repeat).count();
            refused += logged.iter().flat_map(|admission| &admission.arms).filter(|arm| !arm.admitted).count();
        }
        assert!(refused > 200 && repeats > 8, "{refused} refusals, {repeats} repeats");
        served.stop().await;
    }
}

/// Ends the session of the resource after each entry of the log: the entry is written just before its commit.
async fn end_sessions(server: &Server, served: &Served, until: &AtomicBool) -> u64 {
    let stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let mut settings = Config::new();
    settings.user("postgres").dbname("postgres");
    let (client, connection) = settings.connect_raw(stream, NoTls).await.unwrap();
    tokio::spawn(connection);
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'harness-resource'";
    let (mut ended, mut decided) = (0, 0);
    while !until.load(SeqCst) {
        if served.decided() > decided {
            decided = served.decided();
            ended += client.query(end, &[]).await.unwrap().len() as u64;
        }
        tokio::task::yield_now().await;
    }
    ended
}

#[tokio::test]
async fn a_lost_connection_neither_loses_nor_repeats_a_decision() {
    let Some(server) = Server::start().await else { return };
    let policy = Policy::new(&Arm::ALL, Comparison::Default).unwrap();
    let served = serve(&server, &policy).await;
    let client = Client::new(&served.url(), PATIENCE).unwrap();
    let requests = requests(&policy, 150).new_tree(&mut TestRunner::deterministic()).unwrap().current();
    let is_over = AtomicBool::new(false);
    let sending = async {
        let mut model = State::default();
        for request in &requests {
            send(&client, request).await;
            let _ = model.decide(&policy, request);
        }
        is_over.store(true, SeqCst);
        model
    };
    let (mut model, ended) = tokio::join!(sending, end_sessions(&server, &served, &is_over));
    assert!(ended > 20, "{ended} sessions were ended");
    let read = Request { key: Key::new("k0"), hold: None, op: None, token: None, deadline: None, action: Action::Read };
    assert!(send(&client, &read).await);
    let expected = model.decide(&policy, &read).unwrap();
    assert_eq!(served.log.lock().unwrap().last(), Some(&expected));
    served.stop().await;
}

#[tokio::test]
async fn a_sigkill_of_the_server_loses_no_decision() {
    let Some(mut server) = Server::start().await else { return };
    let policy = Policy::new(&Arm::ALL, Comparison::Default).unwrap();
    let served = serve(&server, &policy).await;
    let client = Client::new(&served.url(), PATIENCE).unwrap();
    let requests = requests(&policy, 200).new_tree(&mut TestRunner::deterministic()).unwrap().current();
    let mut model = State::default();
    let expected: Vec<_> = requests.iter().filter_map(|request| model.decide(&policy, request).ok()).collect();
    let sending = async {
        for request in &requests {
            send(&client, request).await;
        }
    };
    tokio::join!(sending, async {
        while served.decided() < 50 {
            tokio::task::yield_now().await;
        }
        server.restart().await;
    });
    assert_eq!(*served.log.lock().unwrap(), expected);
    served.stop().await;
}

#[tokio::test]
async fn a_new_process_goes_on_after_the_last_committed_number() {
    let Some(server) = Server::start().await else { return };
    let policy = Policy::new(&[Arm::Off, Arm::Writes], Comparison::Default).unwrap();
    let put = "X-Hold: 1\r\nX-Op: 1\r\nX-Fence-Token: 7\r\n";
    let body = r#"{"arms": {"off": {"base": 0, "value": "1"}, "writes": {"base": 0, "value": "1"}}}"#;
    let first = serve(&server, &policy).await;
    assert_eq!(first.durable, None);
    assert_eq!(first.put("/r/k", put, body).await.header("x-admission"), Some("1"));
    first.stop().await;
    let second = serve(&server, &policy).await;
    assert_eq!(second.durable, Some(Version(1)));
    let repeated = second.put("/r/k", put, body).await;
    assert_eq!((repeated.header("x-repeat"), repeated.header("x-admission")), (Some("true"), Some("1")));
    let stale = "X-Hold: 2\r\nX-Op: 1\r\nX-Fence-Token: 6\r\n";
    let refused = second.put("/r/k", stale, body).await;
    assert_eq!((refused.status, &refused.json()["seen"]), (409, &7.into()));
    let number: u64 = refused.header("x-admission").unwrap().parse().unwrap();
    assert!(number > 1 << 20, "#{number} may have been given before");
    second.stop().await;
    let other = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
    let refused = Resource::over_postgres(other, Limits::default(), CLOCK, server.address(), observer().1).await;
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("'off,writes default'") && error.contains("'off default'"), "{error}");
}

#[tokio::test]
async fn a_value_that_postgres_cannot_store_is_refused_undecided() {
    let Some(server) = Server::start().await else { return };
    let served = serve(&server, &Policy::new(&[Arm::Off], Comparison::Default).unwrap()).await;
    let refused = served.put("/r/k", "", "a\0b").await;
    assert_eq!((refused.status, served.decided()), (422, 0));
    assert_eq!(served.put("/r/k", "", "ab").await.status, 200);
    served.stop().await;
}
