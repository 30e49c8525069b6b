//! The resource over a real Postgres server against the rule, which is its model.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use history::{Arm, Comparison, Key, Version};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use resource::{Action, Client, Limits, Moment, Policy, Request, Resource, State, WallClock};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_postgres::{Config, NoTls};

use crate::postgres_server::Server;
use crate::random::{decides_as_the_rule_does, policies, requests, send};
use crate::real::PATIENCE;
use crate::served::{CLOCK, Served, observer, start};

async fn serve(server: &Server, policy: &Policy) -> Served {
    let (log, observer) = observer();
    let resource = Resource::over_postgres(policy.clone(), Limits::default(), CLOCK, server.address(), observer).await;
    start(resource.unwrap(), log).await
}

#[tokio::test]
async fn postgres_decides_random_requests_as_the_rule_does() {
    let mut runner = TestRunner::deterministic();
    for policy in policies(&Arm::ALL) {
        let Some(server) = Server::start().await else { return };
        let served = serve(&server, &policy).await;
        decides_as_the_rule_does(&served, &policy, 600, &mut runner).await;
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

/// The address of the server over a link, and a switch that closes the client's end of the first connection. The server
/// is not told.
async fn over_link(server: &Server) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, server) = (listener.local_addr().unwrap().to_string(), server.address());
    let (cut, is_cut) = watch::channel(false);
    tokio::spawn(async move {
        let mut is_first = true;
        while let Ok((mut from, _)) = listener.accept().await {
            let (server, mut is_cut) = (server.clone(), is_cut.clone());
            let can_be_cut = std::mem::take(&mut is_first);
            tokio::spawn(async move {
                let mut to = TcpStream::connect(server).await.unwrap();
                let cut = async {
                    if !can_be_cut {
                        pending::<()>().await;
                    }
                    is_cut.wait_for(|cut| *cut).await.map(drop)
                };
                tokio::select! {
                    biased;
                    _ = cut => {}
                    _ = copy_bidirectional(&mut from, &mut to) => return,
                }
                drop(from);
                pending::<()>().await;
            });
        }
    });
    (address, cut)
}

#[tokio::test]
async fn a_decision_whose_commit_is_cut_off_is_made_again_by_its_first_time() {
    static NOW_US: AtomicU64 = AtomicU64::new(100_000_000);
    let Some(server) = Server::start().await else { return };
    let (address, cut) = over_link(&server).await;
    let (log, mut observer) = observer();
    let observer = Box::new(move |moment: Moment<'_>| {
        observer(moment);
        if matches!(moment, Moment::Decided(_)) {
            cut.send_replace(true);
        }
    });
    // A second passes between two readings.
    let clock: WallClock = || Duration::from_micros(NOW_US.fetch_add(1_000_000, SeqCst));
    let policy = Policy::new(&[Arm::Deadline], Comparison::Default).unwrap();
    let resource = Resource::over_postgres(policy, Limits::default(), clock, address, observer).await.unwrap();
    let served = start(resource, log).await;
    let put = served.put("/r/k", "X-Deadline: 100500000\r\n", "a");
    // The former session keeps its locks until the next one ends it.
    let answer = tokio::time::timeout(PATIENCE, put).await.expect("an answer");
    assert_eq!((answer.status, served.decided()), (200, 1));
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
    let silent = serve(&server, &policy).await;
    silent.stop().await;
    let second = serve(&server, &policy).await;
    assert_eq!(second.durable, Some(Version(1)), "the process between decided nothing");
    let repeated = second.put("/r/k", put, body).await;
    assert_eq!((repeated.header("x-repeat"), repeated.header("x-admission")), (Some("true"), Some("1")));
    let stale = "X-Hold: 2\r\nX-Op: 1\r\nX-Fence-Token: 6\r\n";
    let refused = second.put("/r/k", stale, body).await;
    assert_eq!((refused.status, &refused.json()["seen"]), (409, &7.into()));
    let number: u64 = refused.header("x-admission").unwrap().parse().unwrap();
    assert!(number > 2 << 20, "#{number} may have been given before");
    second.stop().await;
    let other = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
    let refused = Resource::over_postgres(other, Limits::default(), CLOCK, server.address(), observer().1).await;
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("'off,writes default'") && error.contains("'off default'"), "{error}");
}

#[tokio::test]
async fn a_process_over_unused_tables_begins_after_the_first_numbers() {
    let Some(server) = Server::start().await else { return };
    let policy = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
    serve(&server, &policy).await.stop().await;
    let second = serve(&server, &policy).await;
    assert_eq!(second.durable, Some(Version(0)));
    let number: u64 = second.get("/r/k", "").await.header("x-admission").unwrap().parse().unwrap();
    assert!(number > 1 << 20, "#{number} may have been logged before the kill of the first process");
    second.stop().await;
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
