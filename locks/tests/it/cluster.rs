//! Nodes in memory under paused Tokio time: a lag each way, a clock each, and they can be frozen or cut off.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use locks::{Client, Clock, Key, Lock, Node, NodeError, Owner, Redis, Reply, Servers, Step, StepAnswer, TokenSource};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use crate::store::Store;

pub const MS: Duration = Duration::from_millis(1);
pub const LEASE: Duration = Duration::from_secs(2);

pub fn key() -> Key {
    Key::new("k0")
}

pub fn owner(name: &str) -> Owner {
    Owner::new(name)
}

/// One client's clock: virtual time, and what a test adds to it.
pub struct ClientClock {
    start: Instant,
    jumped: Mutex<Duration>,
    set_back: Mutex<Duration>,
}

/// The time of the wall clock at the start.
const WALL: Duration = Duration::from_secs(1_700_000_000);

impl ClientClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), jumped: Mutex::default(), set_back: Mutex::default() })
    }

    /// Advances the clock: a frozen client sees its freeze as such a jump.
    pub fn jump(&self, by: Duration) {
        *self.jumped.lock().unwrap() += by;
    }

    /// Sets only the wall clock back.
    pub fn set_wall_back(&self, by: Duration) {
        *self.set_back.lock().unwrap() += by;
    }
}

impl Clock for ClientClock {
    fn now(&self) -> Duration {
        self.start.elapsed() + *self.jumped.lock().unwrap()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        let until = Instant::now() + at.saturating_sub(self.now());
        Box::pin(sleep_until(until))
    }

    #[cfg(feature = "planted")]
    fn wall(&self) -> Duration {
        WALL + self.now() - *self.set_back.lock().unwrap()
    }
}

/// A step, when it arrives, and how long its answer takes.
type OnItsWay = (Instant, Duration, Step, oneshot::Sender<Result<StepAnswer, NodeError>>);

/// One node, and one client's connection to it.
pub struct FakeNode {
    name: String,
    start: Instant,
    pub store: Arc<Mutex<Store>>,
    /// Each step that was done, in order, and its answer.
    pub done: Arc<Mutex<Vec<(Step, StepAnswer)>>>,
    frozen: watch::Sender<bool>,
    cut: AtomicBool,
    breaks: AtomicBool,
    lag: Mutex<Duration>,
    queue: mpsc::UnboundedSender<OnItsWay>,
}

impl FakeNode {
    /// A node that is `lag` away, each way.
    pub fn new(name: &str, lag: Duration) -> Arc<Self> {
        let (queue, mut steps) = mpsc::unbounded_channel::<OnItsWay>();
        let (store, done) = (Arc::<Mutex<Store>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (frozen, mut is_frozen) = watch::channel(false);
        let start = Instant::now();
        let (kept, log) = (store.clone(), done.clone());
        tokio::spawn(async move {
            while let Some((arrives, lag, step, answered)) = steps.recv().await {
                sleep_until(arrives).await;
                is_frozen.wait_for(|frozen| !frozen).await.unwrap();
                let answer = kept.lock().unwrap().apply(&step, start.elapsed());
                log.lock().unwrap().push((step, answer));
                tokio::spawn(async move {
                    tokio::time::sleep(lag).await;
                    drop(answered.send(Ok(answer)));
                });
            }
        });
        Arc::new(Self {
            name: name.to_owned(),
            start,
            store,
            done,
            frozen,
            cut: AtomicBool::new(false),
            breaks: AtomicBool::new(false),
            lag: Mutex::new(lag),
            queue,
        })
    }

    pub fn freeze(&self) {
        self.frozen.send(true).unwrap();
    }

    pub fn thaw(&self) {
        self.frozen.send(false).unwrap();
    }

    /// From now on steps fail without leaving.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// From now on the connection breaks when a step has left. The node does the step, and its answer is lost.
    pub fn break_connections(&self) {
        self.breaks.store(true, Ordering::Relaxed);
    }

    pub fn set_lag(&self, lag: Duration) {
        *self.lag.lock().unwrap() = lag;
    }

    /// Gives the key to `owner`, as if another client had acquired it.
    pub fn give_to(&self, name: &str) {
        let expires = self.start.elapsed() + 1000 * LEASE;
        self.store.lock().unwrap().keys.insert(key(), (owner(name), expires));
    }

    pub fn set_counter(&self, counter: u64) {
        self.store.lock().unwrap().counters.insert(key(), counter);
    }

    pub fn counter(&self) -> u64 {
        self.store.lock().unwrap().counters.get(&key()).copied().unwrap_or_default()
    }

    /// Returns the owner of the key, if the key has not expired.
    pub fn owner(&self) -> Option<Owner> {
        let now = self.start.elapsed();
        self.store
            .lock()
            .unwrap()
            .keys
            .get(&key())
            .filter(|(_, expires)| now < *expires)
            .map(|(owner, _)| owner.clone())
    }

    /// When the key runs out, in virtual time since the start.
    pub fn expires(&self) -> Option<Duration> {
        self.store.lock().unwrap().keys.get(&key()).map(|(_, expires)| *expires)
    }

    pub fn releases_done(&self) -> usize {
        self.done.lock().unwrap().iter().filter(|(step, _)| matches!(step, Step::Release(..))).count()
    }
}

impl Node for FakeNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        if self.cut.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(NodeError::Definite("not connected".into()))));
        }
        let (answered, answer) = oneshot::channel();
        let lag = *self.lag.lock().unwrap();
        self.queue.send((Instant::now() + lag, lag, step, answered)).unwrap();
        if self.breaks.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(NodeError::Indeterminate("connection lost".into()))));
        }
        Box::pin(async move { answer.await.unwrap() })
    }
}

/// Redlock on `nodes`, or on one node the lock on one server; with a planted bug if one is named.
pub fn lock(bug: Option<&str>, nodes: Vec<Arc<dyn Node>>, clock: Arc<dyn Clock>, tokens: TokenSource) -> Arc<dyn Lock> {
    let on_one = nodes.len() == 1 && Redis::TOKENS.contains(&tokens);
    let client = Client::named(if on_one { "redis" } else { "redlock" }).unwrap();
    match bug {
        None => (client.build)(Servers::Nodes(nodes), tokens, clock).unwrap(),
        #[cfg(feature = "planted")]
        Some(bug) => {
            let bug = locks::planted::PlantedBug::named(bug).unwrap();
            bug.build(client, Servers::Nodes(nodes), tokens, clock).unwrap()
        }
        #[cfg(not(feature = "planted"))]
        Some(bug) => panic!("`{bug}` needs the feature `planted`"),
    }
}

/// `N` nodes that are all `lag` away, named `redis-1` and so on.
pub fn nodes<const N: usize>(lag: Duration) -> [Arc<FakeNode>; N] {
    std::array::from_fn(|n| FakeNode::new(&format!("redis-{}", n + 1), lag))
}

/// The same nodes as ports.
pub fn ports(nodes: &[Arc<FakeNode>]) -> Vec<Arc<dyn Node>> {
    nodes.iter().map(|node| node.clone() as Arc<dyn Node>).collect()
}
