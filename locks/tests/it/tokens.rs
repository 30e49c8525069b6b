//! Random walks over everything that messages and clocks can do to tokens.
//!
//! Nothing here has time: a walk decides which message arrives next, and takes keys away whenever it likes, which is
//! what nodes with arbitrary clocks do. Clients never time out and never find that a promise has ended, so that
//! nothing but the tokens' own rules stands between an attempt and a hold.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use locks::{
    Clock, FailureReason, Hold, Key, Lock, Node, NodeError, Operation, Owner, Redlock, Reply, Round, Step, StepAnswer,
    Token, TokenSource, Unwatched,
};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot;

use crate::{
    cluster::{ClientClock, FakeNode, LEASE, MS, key, lock, owner, ports},
    store::Store,
    watches::FreezeAfterSend,
};

const FOREVER: Duration = Duration::from_secs(1_000_000);
const SLOW: TokenSource = TokenSource::TwoPhase;
const FAST: TokenSource = TokenSource::TwoPhaseFast;

struct NoTime;

impl Clock for NoTime {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep_until(&self, _at: Duration) -> Reply<()> {
        Box::pin(std::future::pending())
    }
}

type OnItsWay = (Step, oneshot::Sender<Result<StepAnswer, NodeError>>);

/// One client's connection to one node: what was sent and has not arrived.
struct Link {
    name: String,
    store: Arc<Mutex<Store>>,
    under_way: Mutex<VecDeque<OnItsWay>>,
}

impl Link {
    fn deliver(&self) {
        if let Some((step, answered)) = self.under_way.lock().unwrap().pop_front() {
            drop(answered.send(Ok(self.store.lock().unwrap().apply(&step, Duration::ZERO))));
        }
    }
}

impl Node for Link {
    fn name(&self) -> &str {
        &self.name
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        let (answered, answer) = oneshot::channel();
        self.under_way.lock().unwrap().push_back((step, answered));
        Box::pin(async move { answer.await.unwrap() })
    }
}

/// A hold with the walk's step at which its attempt began and at which it was claimed.
struct Claimed {
    began: usize,
    claimed: usize,
    token: Token,
}

struct Client {
    links: Vec<Arc<Link>>,
    lock: Arc<dyn Lock>,
}

/// Walks `steps` steps, with correct clients or with a planted bug, and returns every hold in the order of acquisition.
/// The clients take turns with the token sources.
fn walk(seed: u64, nodes: usize, steps: usize, sources: &[TokenSource], bug: Option<&str>) -> Vec<Claimed> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let stores: Vec<Arc<Mutex<Store>>> = (0..nodes).map(|_| Arc::default()).collect();
    let clients: Vec<Client> = (0..3).map(|n| client(&stores, sources[n % sources.len()], bug)).collect();
    let key = Key::new("k0");
    let mut attempts: Vec<Option<(usize, Operation<'_, Hold>)>> = clients.iter().map(|_| None).collect();
    let mut claims = Vec::new();
    for step in 0..steps {
        let (who, node) = (rng.random_range(0..clients.len()), rng.random_range(0..nodes));
        match rng.random_range(0..12) {
            0 => drop(stores[node].lock().unwrap().keys.remove(&key)),
            1 if attempts[who].is_none() => {
                let owner = Owner::random(&mut rng);
                attempts[who] = Some((step, clients[who].lock.acquire(&key, owner, FOREVER, &Unwatched)));
            }
            // A client may read several answers at once.
            _ => (0..rng.random_range(1..=3)).for_each(|_| clients[who].links[rng.random_range(0..nodes)].deliver()),
        }
        let Some((began, attempt)) = &mut attempts[who] else { continue };
        if let Poll::Ready(done) = attempt.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            if let Ok(Hold { token: Some(token), .. }) = done {
                claims.push(Claimed { began: *began, claimed: step, token });
            }
            attempts[who] = None;
        }
    }
    claims
}

fn client(stores: &[Arc<Mutex<Store>>], tokens: TokenSource, bug: Option<&str>) -> Client {
    let link = |(n, store): (usize, &Arc<Mutex<Store>>)| {
        Arc::new(Link { name: format!("redis-{}", n + 1), store: store.clone(), under_way: Mutex::default() })
    };
    let links: Vec<_> = stores.iter().enumerate().map(link).collect();
    let ports = links.iter().map(|link| link.clone() as Arc<dyn Node>).collect();
    Client { links, lock: lock(bug, ports, Arc::new(NoTime), tokens) }
}

/// Returns the error in the tokens of a walk, if there is one.
fn wrong(claims: &[Claimed]) -> Option<&'static str> {
    for (n, earlier) in claims.iter().enumerate() {
        for later in &claims[n + 1..] {
            if later.token == earlier.token {
                return Some("two holds share a token");
            }
            if later.began > earlier.claimed && later.token < earlier.token {
                return Some("a later hold has a smaller token");
            }
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]
    #[test]
    fn two_phase_tokens_grow_and_are_never_shared_under_any_clocks_and_delays(
        seed in any::<u64>(),
        nodes in 1_usize..=5,
        sources in prop::sample::select(vec![&[SLOW][..], &[FAST], &[FAST, SLOW]]),
    ) {
        prop_assert_eq!(wrong(&walk(seed, nodes, 3_000, sources, None)), None);
    }
}

/// How many of 300 walks over `nodes` nodes go wrong.
fn gone_wrong(nodes: usize, tokens: TokenSource, bug: Option<&str>) -> usize {
    (0..300).filter(|&seed| wrong(&walk(seed, nodes, 3_000, &[tokens], bug)).is_some()).count()
}

#[test]
fn the_walks_find_what_is_wrong_with_tokens_that_are_made_otherwise() {
    assert!(gone_wrong(5, TokenSource::MajorityMax, None) > 0, "the largest of a majority");
    #[cfg(feature = "planted")]
    for bug in ["write-back-any-owner", "write-back-lowers", "writes-back-with-one", "half-majority", "local-tokens"] {
        assert!(gone_wrong(3, SLOW, Some(bug)) > 0, "{bug}");
    }
    for tokens in [SLOW, FAST] {
        let holds: usize = (0..300).map(|seed| walk(seed, 5, 3_000, &[tokens], None).len()).sum();
        assert!(holds > 3_000, "{tokens:?}: only {holds} holds");
    }
}

/// An attempt over nodes with these counters, of which the last `silent` never answer. The client reads all answers at
/// once. Returns the token, whether the client writes back, and the number of nodes that have the token at the claim.
async fn fast_attempt(before: &[u64], silent: usize) -> (u64, bool, usize) {
    let nodes: Vec<_> = (1..=before.len()).map(|n| FakeNode::new(&format!("redis-{n}"), 5 * MS)).collect();
    nodes.iter().zip(before).for_each(|(node, counter)| node.set_counter(*counter));
    nodes[before.len() - silent..].iter().for_each(|node| node.freeze());
    let clock = ClientClock::new();
    let watch = FreezeAfterSend { round: Round::Acquire, clock: clock.clone(), time: 20 * MS };
    let lock = Redlock::new(ports(&nodes), clock, FAST).unwrap();
    let hold = lock.acquire(&key(), owner("a"), LEASE, &watch).await.unwrap();
    let raises = |node: &Arc<FakeNode>| {
        let done = node.done.lock().unwrap();
        done.iter().any(|(step, _)| matches!(step, Step::RaiseFence(..)))
    };
    let Token(token) = hold.token.unwrap();
    let have = nodes.iter().filter(|node| node.counter() == token).count();
    (token, nodes.iter().any(raises), have)
}

#[tokio::test(start_paused = true)]
async fn the_fast_path_needs_a_majority_that_gave_the_largest_counter() {
    for (before, silent, token, writes_back) in [
        (&[0; 5][..], 0, 1, false),
        (&[7; 1], 0, 8, false),
        (&[7, 7, 7, 2, 2], 2, 8, false),
        (&[7, 7, 2, 2, 2], 2, 8, true),
        (&[2, 7, 7, 2, 2], 2, 8, true),
        (&[7, 7, 2, 7, 7], 2, 8, true),
        // A majority agrees, but not on the largest.
        (&[7, 7, 7, 9, 9], 0, 10, true),
        (&[9, 7, 7, 7, 7], 0, 10, true),
        // Not all agree, but a majority does.
        (&[9, 9, 9, 7, 7], 0, 10, false),
        (&[9, 9, 7, 7], 0, 10, true),
        (&[9, 9, 9, 7], 0, 10, false),
        (&[9, 7], 0, 10, true),
        (&[9, 9], 0, 10, false),
    ] {
        let (given, wrote_back, have) = fast_attempt(before, silent).await;
        assert_eq!((given, wrote_back), (token, writes_back), "{before:?}, {silent} silent");
        assert!(have > before.len() / 2, "{before:?}: {have} nodes have what the client claims");
    }
}

/// A node that grants a key, and then refuses to write the token back, because it has no memory left.
struct Full(Arc<FakeNode>);

impl Node for Full {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        match step {
            Step::RaiseFence(..) => Box::pin(std::future::ready(Err(NodeError::Definite("OOM".into())))),
            step => self.0.send(step),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_back_that_the_only_node_refuses_leaves_no_key() {
    let node = FakeNode::new("redis-1", MS);
    let nodes = vec![Arc::new(Full(node.clone())) as Arc<dyn Node>];
    let redlock = Redlock::new(nodes, ClientClock::new(), SLOW).unwrap();
    let key = key();
    let failure = redlock.acquire(&key, owner("a"), LEASE, &Unwatched).await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Error("redis-1: OOM".into()));
    assert_eq!((node.owner(), node.releases_done()), (None, 1), "the key would block others for a lease");
    // A refusal in the first round leaves nothing to undo.
    node.give_to("b");
    let failure = redlock.acquire(&key, owner("c"), LEASE, &Unwatched).await.unwrap_err();
    assert_eq!((failure.reason, node.releases_done()), (FailureReason::Held, 1));
}
