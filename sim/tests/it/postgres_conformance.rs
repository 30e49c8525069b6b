//! The model of a node against a real Postgres server. The clients of `postgres` use the model of Redis nodes.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{collections::HashSet, mem::discriminant, sync::Arc, time::Duration};

use futures::future::join_all;
use history::{Persistence, fault::Data};
use locks::{
    BootClock, Client, Key, Lock, Node, NodeError, Owner, Servers, Step, StepAnswer, Token, TokenSource,
    connect_postgres,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sim::models::redis::RedisModel;

use crate::{
    conformance::{LONG, Timed, UNPLANTED, answer, compare, compare_expiry, wall},
    contenders::contend,
    postgres_server::Server,
    say::say,
};

fn connect(server: &Server) -> Arc<dyn Node> {
    connect_postgres("postgres-1", &server.address())
}

fn lock(server: &Server) -> Arc<dyn Lock> {
    let client = Client::named("postgres").unwrap();
    let servers = Servers::Nodes(vec![connect(server)]);
    (client.build)(servers, TokenSource::Counter, Arc::new(BootClock)).unwrap()
}

#[tokio::test]
async fn a_postgres_server_gives_to_two_thousand_sequences_the_answers_of_the_model() {
    let Some(server) = Server::start().await else { return };
    let (node, mut model) = (connect(&server), RedisModel::new(Persistence::Always));
    let (mut rng, mut seen) = (ChaCha8Rng::seed_from_u64(1), HashSet::new());
    let mut compared = 0;
    for batch in 0..20 {
        // A hundred sequences at once, each on its own new key.
        let keys: Vec<Key> = (0..100).map(|number| Key::new(format!("k{batch}-{number}"))).collect();
        for (step, said) in compare(&*node, &mut model, &mut rng, UNPLANTED, &keys, 1_600).await {
            seen.insert((discriminant(&step), discriminant(&said)));
            compared += 1;
        }
    }
    say(&format!("2000 sequences on Postgres, {compared} answers compared"));
    assert_eq!(seen.len(), 10, "each step was done and refused");
}

#[tokio::test]
async fn expiry_on_a_postgres_server_is_possible_in_the_model() {
    let Some(server) = Server::start().await else { return };
    // Postgres counts microseconds, so a key may be gone one millisecond before the model's key.
    compare_expiry::<RedisModel>(Timed { node: &*connect(&server), kinds: UNPLANTED, at_once: 10, early_ms: 1 }, 60)
        .await;
}

#[tokio::test]
async fn a_sigkill_of_a_postgres_server_loses_nothing() {
    let Some(mut server) = Server::start().await else { return };
    let (mut model, mut rng) = (RedisModel::new(Persistence::Always), ChaCha8Rng::seed_from_u64(3));
    let keys: Vec<Key> = (0..40).map(|number| Key::new(format!("k{number}"))).collect();
    let node = connect(&server);
    compare(&*node, &mut model, &mut rng, UNPLANTED, &keys, 400).await;
    // One key expires before the server is back, the other does not.
    let (brief, lasting) = (Key::new("brief"), Key::new("lasting"));
    for (key, lease) in [(&brief, Duration::from_millis(1)), (&lasting, LONG)] {
        let step = Step::Acquire(key.clone(), Owner::new("a"), lease);
        let expected = model.apply(&step, wall());
        assert_eq!(answer(node.send(step)).await, expected);
    }
    model.restart(Data::Kept, wall());
    server.restart().await;

    let node = connect(&server);
    let release = Step::Release(lasting.clone(), Owner::new("b"));
    assert_eq!(answer(node.send(release)).await, StepAnswer::Refused, "the key still has its owner");
    let step = |key: &Key| Step::Acquire(key.clone(), Owner::new("b"), LONG);
    assert_eq!(answer(node.send(step(&lasting))).await, StepAnswer::Refused);
    assert_eq!(answer(node.send(step(&brief))).await, StepAnswer::Granted(Token(2)));
    model.apply(&step(&brief), wall());
    compare(&*node, &mut model, &mut rng, UNPLANTED, &keys, 400).await;
}

#[tokio::test]
async fn a_lost_connection_is_indeterminate_and_a_refused_statement_is_definite() {
    let Some(mut server) = Server::start().await else { return };
    let node = connect(&server);
    let (key, owner) = (Key::new("k0"), Owner::new("a"));
    answer(node.send(Step::Acquire(key.clone(), owner.clone(), LONG))).await;
    // A lease that no timestamp can hold: the server aborts the statement.
    let too_long = Duration::from_secs(1 << 53);
    let refused = node.send(Step::Extend(key.clone(), owner.clone(), too_long)).await;
    assert!(matches!(&refused, Err(NodeError::Definite(why)) if why.contains("ERROR")), "{refused:?}");
    assert_eq!(answer(node.send(Step::Extend(key.clone(), owner.clone(), LONG))).await, StepAnswer::Done);
    let asked: Vec<_> = (0..500).map(|_| node.send(Step::Extend(key.clone(), owner.clone(), LONG))).collect();
    server.restart().await;
    let lost = |answer: &Result<StepAnswer, NodeError>| matches!(answer, Err(NodeError::Indeterminate(_)));
    let said = join_all(asked).await;
    assert!(said.iter().all(|said| lost(said) || *said == Ok(StepAnswer::Done)), "{said:?}");
    assert!(said.iter().any(lost), "the server was killed after the last answer");
}

#[tokio::test]
async fn twenty_contenders_on_postgres_exclude_each_other_and_tokens_grow() {
    let Some(server) = Server::start().await else { return };
    let locks = (0..20).map(|_| lock(&server)).collect();
    let tokens = contend(locks, 10, LONG, Duration::from_millis(10)).await;
    assert_eq!(tokens, (1..=200).map(Token).collect::<Vec<_>>());
}
