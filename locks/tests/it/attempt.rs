//! Attempts, their undo and releases.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use locks::{
    CannotBuild, Client, Clock, Failure, FailureReason, Hold, Lock, Node, NodeAnswer, NodeError, Outcome, Owner, Redis,
    Redlock, Reply, Retry, RetryDelay, Round, Servers, Step, StepAnswer, Token, TokenSource, Unwatched, Watch,
    validity,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use crate::{
    cluster::{ClientClock, FakeNode, LEASE, MS, key, nodes, owner, ports},
    watches::{FreezeAfterSend, Log, Noting, NotingClock, NotingNode},
};

fn redlock(nodes: &[Arc<FakeNode>], tokens: TokenSource) -> Redlock {
    Redlock::new(ports(nodes), ClientClock::new(), tokens).unwrap()
}

async fn acquire(lock: &dyn Lock, name: &str) -> Result<Hold, Failure> {
    lock.acquire(&key(), owner(name), LEASE, &Unwatched).await
}

fn answers(answers: &[(locks::NodeName, NodeAnswer)]) -> Vec<NodeAnswer> {
    answers.iter().map(|(_, answer)| *answer).collect()
}

#[tokio::test(start_paused = true)]
async fn an_uncontended_attempt_takes_one_round_trip_and_two_with_two_phase_tokens() {
    let one_round = [TokenSource::None, TokenSource::MajorityMax, TokenSource::TwoPhaseFast].map(|tokens| (tokens, 1));
    for (tokens, round_trips) in one_round.into_iter().chain([(TokenSource::TwoPhase, 2)]) {
        let nodes = nodes::<5>(5 * MS);
        let lock = redlock(&nodes, tokens);
        let start = Instant::now();
        let hold = acquire(&lock, "a").await.unwrap();
        assert_eq!(start.elapsed(), round_trips * 10 * MS, "{tokens:?}");
        assert_eq!(hold.token, (tokens != TokenSource::None).then_some(Token(1)));
        assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
        assert_eq!(start.elapsed(), (round_trips + 1) * 10 * MS, "{tokens:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn frozen_nodes_cost_nothing_while_a_majority_answers() {
    let nodes = nodes::<5>(5 * MS);
    let lock = redlock(&nodes, TokenSource::TwoPhase);
    nodes[0].freeze();
    nodes[3].freeze();
    let start = Instant::now();
    let mut hold = acquire(&lock, "a").await.unwrap();
    lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
    assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
    assert_eq!(start.elapsed(), 40 * MS);
}

#[tokio::test(start_paused = true)]
async fn returning_at_the_majority_leaves_no_key_behind() {
    let nodes = nodes::<5>(Duration::ZERO);
    let clock = ClientClock::new();
    let lock = Redlock::new(ports(&nodes), clock, TokenSource::TwoPhase).unwrap().with_node_timeout(50 * MS);
    // So long a lease that a key which is left behind is still there at the end.
    let lease = Duration::from_secs(1_000_000);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    nodes[4].set_lag(70 * MS);
    let mut held = 0;
    for cycle in 0..2_000 {
        for node in &nodes[..4] {
            node.set_lag(rand::Rng::random_range(&mut rng, 0..20) * MS);
        }
        match cycle % 50 {
            20 => nodes[0].freeze(),
            30 => nodes[1].freeze(),
            40 => nodes[2].freeze(),
            49 => nodes[..3].iter().for_each(|node| node.thaw()),
            _ => {}
        }
        if let Ok(hold) = lock.acquire(&key(), Owner::random(&mut rng), lease, &Unwatched).await {
            held += 1;
            drop(lock.release(&hold, &Unwatched).await);
        }
    }
    nodes[..3].iter().for_each(|node| node.thaw());
    tokio::time::sleep(LEASE).await;
    assert!(held > 500, "{held} holds");
    assert_eq!(nodes.each_ref().map(|node| node.owner()), [const { None }; 5]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_undone_on_all_nodes_also_on_those_that_refused_or_never_answered() {
    let nodes = nodes::<5>(5 * MS);
    nodes[..3].iter().for_each(|node| node.give_to("b"));
    nodes[4].freeze();
    let watch = Noting::default();
    let failure = redlock(&nodes, TokenSource::TwoPhase).acquire(&key(), owner("a"), LEASE, &watch).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Held, Outcome::Failed));
    use NodeAnswer::{Granted, None, Refused};
    assert_eq!(answers(&failure.answers), [Refused, Refused, Refused, Granted, None]);
    let log = watch.0.lock().unwrap().clone();
    let undo = "undoing,sending Undo,sent Undo,answered Undo,undone [Refused, Refused, Refused, Done, None]";
    assert_eq!(log[3..].join(","), undo);

    nodes[4].thaw();
    tokio::time::sleep(20 * MS).await;
    assert_eq!(nodes.each_ref().map(|node| node.releases_done()), [1; 5]);
    assert_eq!(nodes[3..].iter().filter_map(|node| node.owner()).count(), 0);
    assert!(nodes[..3].iter().all(|node| node.owner() == Some(owner("b"))), "only what is its own is undone");
}

#[tokio::test(start_paused = true)]
async fn held_is_definite_and_a_timeout_is_indeterminate() {
    let nodes = nodes::<5>(5 * MS);
    let lock = redlock(&nodes, TokenSource::None);
    nodes[..2].iter().for_each(|node| node.give_to("b"));
    nodes[2..].iter().for_each(|node| node.freeze());
    let start = Instant::now();
    let failure = acquire(&lock, "a").await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::NoMajority, Outcome::Indeterminate));
    // One timeout for the attempt and one for its undo, each with its second look.
    assert_eq!(start.elapsed(), 2 * (validity::node_timeout(LEASE) + 2 * MS));

    nodes[2..].iter().for_each(|node| node.thaw());
    nodes[2].give_to("b");
    tokio::time::sleep(LEASE).await;
    let failure = acquire(&lock, "c").await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Held, Outcome::Failed));
}

#[tokio::test(start_paused = true)]
async fn steps_that_never_left_make_a_failure_definite_but_not_held() {
    let nodes = nodes::<5>(5 * MS);
    nodes[..2].iter().for_each(|node| node.give_to("b"));
    nodes[2].cut();
    let failure = acquire(&redlock(&nodes, TokenSource::TwoPhase), "a").await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::NoMajority, Outcome::Failed));
    assert_eq!(answers(&failure.answers)[..3], [NodeAnswer::Refused, NodeAnswer::Refused, NodeAnswer::None]);

    nodes[3].cut();
    let only = Redis::new(nodes[3].clone(), ClientClock::new());
    let failure = acquire(&only, "a").await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.outcome),
        (FailureReason::Error("redis-4: not connected".into()), Outcome::Failed)
    );
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_connection_broke_may_have_been_done() {
    let nodes = nodes::<5>(5 * MS);
    let lock = redlock(&nodes, TokenSource::TwoPhase);
    let mut hold = acquire(&lock, "a").await.unwrap();
    nodes[..3].iter().for_each(|node| node.break_connections());
    let renewed = lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    let released = lock.release(&hold, &Unwatched).await.unwrap_err();
    let acquired = acquire(&lock, "b").await.unwrap_err();
    for failure in [renewed, released, acquired] {
        assert_eq!(answers(&failure.answers)[..3], [NodeAnswer::None; 3]);
        assert_eq!((failure.reason, failure.outcome), (FailureReason::NoMajority, Outcome::Indeterminate));
    }
}

#[tokio::test(start_paused = true)]
async fn half_of_an_even_number_of_nodes_refuses_for_all() {
    let all = nodes::<6>(5 * MS);
    for count in [2, 4, 6] {
        let nodes = &all[..count];
        let lock = redlock(nodes, TokenSource::None);
        let hold = acquire(&lock, "a").await.unwrap();
        nodes[..count / 2].iter().for_each(|node| node.give_to("b"));
        assert!(!lock.release(&hold, &Unwatched).await.unwrap().removed);
        let failure = acquire(&lock, "c").await.unwrap_err();
        assert_eq!((failure.reason, failure.outcome), (FailureReason::Held, Outcome::Failed));
        tokio::time::sleep(20 * MS).await;
        nodes.iter().for_each(|node| node.store.lock().unwrap().keys.clear());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_waits_for_as_long_as_its_user_says() {
    let [node] = nodes(5 * MS);
    node.freeze();
    let timeout = 700 * MS;
    let on_one = Redis::new(node.clone(), ClientClock::new()).with_node_timeout(timeout);
    let on_several = redlock(&[node], TokenSource::None).with_node_timeout(timeout);
    for lock in [&on_one as &dyn Lock, &on_several] {
        let start = Instant::now();
        assert_eq!(acquire(lock, "a").await.unwrap_err().outcome, Outcome::Indeterminate);
        // One timeout for the attempt and one for its undo, each with its second look.
        assert_eq!(start.elapsed(), 2 * (timeout + 2 * MS));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_on_one_server_refuses_several() {
    for name in ["redis", "postgres", "memory"] {
        let client = Client::named(name).unwrap();
        let build = |nodes| (client.build)(Servers::Nodes(nodes), client.tokens[0], ClientClock::new()).err();
        let [one, other] = nodes(5 * MS);
        assert_eq!(build(ports(std::slice::from_ref(&one))), None);
        assert_eq!(build(ports(&[one, other])), Some(CannotBuild::Servers { lock: name, needs: "one node" }));
    }
}

#[tokio::test(start_paused = true)]
async fn one_node_that_refuses_is_not_undone_and_one_that_is_silent_is() {
    let [node] = nodes(5 * MS);
    let lock = Redis::new(node.clone(), ClientClock::new());
    let hold = acquire(&lock, "a").await.unwrap();
    assert_eq!((hold.token, answers(&hold.answers)), (Some(Token(1)), vec![NodeAnswer::Granted]));
    assert_eq!(acquire(&lock, "b").await.unwrap_err().reason, FailureReason::Held);
    assert_eq!(node.releases_done(), 0);
    lock.release(&hold, &Unwatched).await.unwrap();

    node.freeze();
    let failure = acquire(&lock, "c").await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Error("redis-1: no answer in time".into()));
    assert_eq!(failure.outcome, Outcome::Indeterminate);
    node.thaw();
    tokio::time::sleep(20 * MS).await;
    assert_eq!((node.owner(), node.releases_done()), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn answers_read_after_the_promise_end_are_refused_by_validity_and_undone() {
    for (tokens, round) in [
        (TokenSource::None, Round::Acquire),
        (TokenSource::MajorityMax, Round::Acquire),
        (TokenSource::TwoPhaseFast, Round::Acquire),
        (TokenSource::TwoPhase, Round::Acquire),
        (TokenSource::TwoPhase, Round::WriteBack),
    ] {
        let nodes = nodes::<5>(5 * MS);
        let clock = ClientClock::new();
        let lock = Redlock::new(ports(&nodes), clock.clone(), tokens).unwrap();
        let watch = FreezeAfterSend { round, clock, time: 2 * LEASE };
        let failure = lock.acquire(&key(), owner("a"), LEASE, &watch).await.unwrap_err();
        assert_eq!(
            (failure.reason, failure.outcome),
            (FailureReason::Validity, Outcome::Failed),
            "{tokens:?} {round:?}"
        );
        assert_eq!(answers(&failure.answers), [NodeAnswer::Late; 5], "{tokens:?} {round:?}");
        assert_eq!(nodes.each_ref().map(|node| node.owner()), [const { None }; 5], "undone well before it expires");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_claimed_one_nanosecond_before_its_promise_ends_and_not_at_its_end() {
    let promised = LEASE - validity::drift(LEASE);
    for (frozen, claimed) in [(promised - 10 * MS - Duration::from_nanos(1), true), (promised - 10 * MS, false)] {
        let [node] = nodes(5 * MS);
        let clock = ClientClock::new();
        let watch = FreezeAfterSend { round: Round::Acquire, clock: clock.clone(), time: frozen };
        let lock = Redis::new(node.clone(), clock.clone());
        let attempt = lock.acquire(&key(), owner("a"), LEASE, &watch).await;
        assert_eq!(attempt.is_ok(), claimed);
        assert_eq!(node.owner(), claimed.then(|| owner("a")), "a grant that is not claimed is undone");
        assert!(attempt.is_err() || attempt.is_ok_and(|hold| hold.is_valid(clock.now())));
    }
}

/// A node whose answer is there, and a clock whose every timer is due: what a client finds when it was frozen.
struct Thawed(Mutex<Duration>);

impl Node for Thawed {
    fn name(&self) -> &str {
        "redis-1"
    }

    fn send(&self, _step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        Box::pin(std::future::ready(Ok(StepAnswer::Granted(Token(1)))))
    }
}

impl Clock for Thawed {
    fn now(&self) -> Duration {
        let mut now = self.0.lock().unwrap();
        *now += LEASE;
        *now
    }

    fn sleep_until(&self, _at: Duration) -> Reply<()> {
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn what_has_arrived_is_read_before_the_timer_is_looked_at() {
    let (node, clock) = (Arc::new(Thawed(Mutex::default())), Arc::new(Thawed(Mutex::default())));
    let lock = Redis::new(node, clock);
    let key = key();
    let mut attempt = lock.acquire(&key, owner("a"), LEASE, &Unwatched);
    let Poll::Ready(Err(failure)) = attempt.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("everything was there");
    };
    assert_eq!(failure.reason, FailureReason::Validity);
}

#[tokio::test(start_paused = true)]
async fn each_round_reads_the_clock_then_calls_sending_then_queues_everything_then_waits() {
    let log = Log::default();
    let nodes: Vec<Arc<dyn Node>> = nodes::<3>(5 * MS).map(|node| Arc::new(NotingNode(log.clone(), node)) as _).into();
    let clock = Arc::new(NotingClock(log.clone(), ClientClock::new()));
    let lock = Redlock::new(nodes, clock, TokenSource::TwoPhase).unwrap();
    let mut hold = lock.acquire(&key(), owner("a"), LEASE, &Noting(log.clone())).await.unwrap();
    lock.renew(&mut hold, LEASE, &Noting(log.clone())).await.unwrap();
    let queued = "queued on redis-1,queued on redis-2,queued on redis-3";
    // The reading after `sent` is for the timeout, the one after `answered` for the validity.
    let round = |name| format!("clock,sending {name},{queued},sent {name},clock,answered {name},clock");
    let expected = [round("Acquire"), round("WriteBack"), "clock".into(), round("Renew")].join(",");
    assert_eq!(log.lock().unwrap().join(","), expected);
}

/// Knows that the deciding answers of `round` were told.
#[derive(Default)]
struct Told(Mutex<Vec<Round>>);

impl Watch for Told {
    fn answered(&self, round: Round) {
        self.0.lock().unwrap().push(round);
    }
}

/// Polls `operation` to its end and gives what `watch` had been told before the last poll.
async fn told_before_the_last_poll<T>(watch: &Told, operation: impl Future<Output = T>) -> (T, Vec<Round>) {
    let mut operation = std::pin::pin!(operation);
    let mut before = Vec::new();
    poll_fn(|cx| {
        before = watch.0.lock().unwrap().clone();
        operation.as_mut().poll(cx).map(|done| (done, before.clone()))
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn nothing_is_awaited_between_the_last_answered_and_ok() {
    let nodes = nodes::<5>(5 * MS);
    let (lock, key) = (redlock(&nodes, TokenSource::TwoPhase), key());
    let watch = Told::default();
    let attempt = lock.acquire(&key, owner("a"), LEASE, &watch);
    let (hold, told) = told_before_the_last_poll(&watch, attempt).await;
    assert_eq!(told, [Round::Acquire]);
    let mut hold = hold.unwrap();
    let (renewed, told) = told_before_the_last_poll(&watch, lock.renew(&mut hold, LEASE, &watch)).await;
    assert!(renewed.is_ok());
    assert_eq!(told, [Round::Acquire, Round::WriteBack]);
    let (released, told) = told_before_the_last_poll(&watch, lock.release(&hold, &watch)).await;
    assert!(released.is_ok());
    assert_eq!(told, [Round::Acquire, Round::WriteBack, Round::Renew]);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_read_after_the_decision_does_not_change_the_token_and_can_be_written_back() {
    let nodes = nodes::<3>(5 * MS);
    nodes[0].set_counter(4);
    // It answers when the write-back is on its way, grants, and does the write-back as well.
    nodes[2].set_lag(6 * MS);
    let hold = acquire(&redlock(&nodes, TokenSource::TwoPhase), "a").await.unwrap();
    assert_eq!(hold.token, Some(Token(5)));
    tokio::time::sleep(20 * MS).await;
    assert_eq!(nodes.each_ref().map(|node| node.counter()), [5; 3]);

    // The same with a larger counter: this node refuses, and the majority stands without it.
    nodes.iter().for_each(|node| node.store.lock().unwrap().keys.clear());
    nodes[2].set_counter(100);
    let hold = acquire(&redlock(&nodes, TokenSource::TwoPhase), "b").await.unwrap();
    assert_eq!(hold.token, Some(Token(6)));
    tokio::time::sleep(20 * MS).await;
    assert_eq!(nodes.each_ref().map(|node| node.counter()), [6, 6, 101]);
}

#[tokio::test(start_paused = true)]
async fn a_write_back_that_no_majority_accepts_is_a_failure_and_undone() {
    /// Takes the key away when the write-back is about to leave.
    struct Robber<'a>(&'a [Arc<FakeNode>]);
    impl Watch for Robber<'_> {
        fn sending(&self, round: Round) {
            if round == Round::WriteBack {
                self.0[..2].iter().for_each(|node| node.give_to("b"));
            }
        }
    }
    for count in [3, 4] {
        let all = nodes::<4>(5 * MS);
        let nodes = &all[..count];
        let lock = redlock(nodes, TokenSource::TwoPhase);
        let failure = lock.acquire(&key(), owner("a"), LEASE, &Robber(nodes)).await.unwrap_err();
        assert_eq!((failure.reason, failure.outcome), (FailureReason::NoMajority, Outcome::Failed));
        assert_eq!(answers(&failure.answers)[..2], [NodeAnswer::Refused; 2]);
        let owners = all.each_ref().map(|node| node.owner());
        assert_eq!(owners, [Some(owner("b")), Some(owner("b")), None, None], "{count} nodes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_removes_only_what_is_still_owned_and_says_so() {
    let nodes = nodes::<5>(5 * MS);
    let lock = redlock(&nodes, TokenSource::MajorityMax);
    let hold = acquire(&lock, "a").await.unwrap();
    nodes[..3].iter().for_each(|node| node.give_to("b"));
    let released = lock.release(&hold, &Unwatched).await.unwrap();
    assert!(!released.removed);
    assert!(nodes[..3].iter().all(|node| node.owner() == Some(owner("b"))));
    assert!(nodes[3..].iter().all(|node| node.owner().is_none()));

    nodes[..3].iter().for_each(|node| node.freeze());
    let failure = lock.release(&hold, &Unwatched).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::NoMajority, Outcome::Indeterminate));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_attempt_leaves_its_keys_to_their_leases_and_nothing_else() {
    let nodes = nodes::<3>(5 * MS);
    let lock = redlock(&nodes, TokenSource::TwoPhase);
    drop(tokio::time::timeout(MS, acquire(&lock, "a")).await);
    tokio::time::sleep(20 * MS).await;
    assert!(nodes.iter().all(|node| node.owner() == Some(owner("a"))), "what was queued is done");
    tokio::time::sleep(LEASE).await;
    assert!(acquire(&lock, "b").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_attempt_is_undone_on_all_nodes() {
    let nodes = nodes::<5>(5 * MS);
    let lock = redlock(&nodes, TokenSource::TwoPhase);
    drop(tokio::time::timeout(MS, acquire(&lock, "a")).await);
    lock.cancel(&key(), &owner("a"), LEASE, &Unwatched).await;
    tokio::time::sleep(20 * MS).await;
    assert_eq!(nodes.each_ref().map(|node| node.releases_done()), [1; 5]);
    assert!(nodes.iter().all(|node| node.owner().is_none()));
}

/// Freezes the client once, when a request has left.
struct FreezeOnce(Arc<ClientClock>, Mutex<Duration>);

impl Watch for FreezeOnce {
    fn sent(&self, _round: Round) -> Reply<()> {
        self.0.jump(std::mem::take(&mut *self.1.lock().unwrap()));
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test(start_paused = true)]
async fn retry_goes_on_after_an_answer_that_came_too_late() {
    let [node] = nodes(5 * MS);
    let clock = ClientClock::new();
    let lock = Redis::new(node, clock.clone());
    let retry = Retry { lock: &lock, clock: &*clock, delay: RetryDelay::default() };
    let (watch, mut rng) = (FreezeOnce(clock.clone(), Mutex::new(LEASE)), ChaCha8Rng::seed_from_u64(1));
    let hold = retry.acquire(&key(), LEASE, clock.now() + 3 * LEASE, &mut rng, &watch).await.unwrap();
    assert_eq!(hold.token, Some(Token(2)), "the first grant was undone");
}

#[tokio::test(start_paused = true)]
async fn retry_waits_within_its_range_with_a_fresh_owner_each_time_and_gives_up() {
    let [node] = nodes(5 * MS);
    node.give_to("b");
    let clock = ClientClock::new();
    let lock = Redis::new(node.clone(), clock.clone());
    let delay = RetryDelay::default();
    let retry = Retry { lock: &lock, clock: &*clock, delay };
    let give_up = clock.now() + 3000 * MS;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let failure = retry.acquire(&key(), LEASE, give_up, &mut rng, &Unwatched).await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Held);
    // The last attempt of 10 ms began before `give_up`, and one more would have been too late.
    assert!((give_up - delay.max..give_up + 10 * MS).contains(&clock.now()), "{:?}", clock.now());

    let owners: Vec<_> = node.done.lock().unwrap().iter().map(|(step, _)| format!("{step:?}")).collect();
    let distinct: std::collections::HashSet<_> = owners.iter().collect();
    assert_eq!(distinct.len(), owners.len());
    // 3 s of attempts of 10 ms, 50 to 150 ms apart.
    assert!((18..=51).contains(&owners.len()), "{} attempts", owners.len());

    let delays = |seed| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        std::array::from_fn::<_, 100, _>(|_| delay.draw(&mut rng))
    };
    assert_eq!(delays(1), delays(1));
    assert!(delays(2).iter().all(|drawn| (delay.min..=delay.max).contains(drawn)));
}
