//! The model behind the port, a client's clock, and what a test does with them.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use history::Models;
use locks::{
    Clock, Failure, Hold, Key, Lock, Mark, NodeAnswer, NodeError, Op, Operation, Owner, Reply, Revision, Round, Store,
    StoreAnswer, Unwatched, Watch, planted::PlantedBug,
};
use sim::models::store::{StoreClocks, StoreModel};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};

pub const MS: Duration = Duration::from_millis(1);
pub const LEASE: Duration = Duration::from_secs(2);
/// The way to the store, and the way back.
pub const LAG: Duration = Duration::from_millis(5);

pub fn key() -> Key {
    Key::new("k0")
}

pub fn owner(name: &str) -> Owner {
    Owner::new(name)
}

type Said = Result<StoreAnswer, NodeError>;
type Answered = oneshot::Sender<Said>;

struct State {
    model: StoreModel,
    waiting: Vec<(Op, Answered)>,
    asked: Vec<Op>,
    jumped: Duration,
    /// How many answers still arrive; what is asked is done all the same.
    answers: usize,
    /// Nothing leaves.
    is_cut: bool,
}

/// The store, one link to it for all clients.
pub struct Servers {
    state: Arc<Mutex<State>>,
    start: Instant,
    link: mpsc::UnboundedSender<(Instant, Op, Answered)>,
}

impl State {
    fn now(&self, start: Instant) -> StoreClocks {
        let time = start.elapsed() + self.jumped;
        StoreClocks { wall: time, monotonic: time }
    }

    fn answer(&mut self, seen: StoreAnswer, answered: Answered) {
        if let Some(left) = self.answers.checked_sub(1) {
            self.answers = left;
            tokio::spawn(async move {
                sleep(LAG).await;
                drop(answered.send(Ok(seen)));
            });
        }
    }

    fn apply(&mut self, op: Op, answered: Answered, now: StoreClocks) {
        match self.model.apply(&op, now) {
            Some(seen) => self.answer(seen, answered),
            None => self.waiting.push((op, answered)),
        }
    }

    fn ask_again(&mut self, now: StoreClocks) {
        for (op, answered) in std::mem::take(&mut self.waiting) {
            self.apply(op, answered, now);
        }
    }
}

/// The facts about the servers of `etcd`.
fn facts() -> history::ServerFacts {
    serde_json::from_str(include_str!("../../../tests/shared/servers/etcd.json")).unwrap()
}

impl Servers {
    fn new() -> Arc<Self> {
        let state = State {
            model: StoreModel::new(&facts(), Models::default()),
            waiting: Vec::new(),
            asked: Vec::new(),
            jumped: Duration::ZERO,
            answers: usize::MAX,
            is_cut: false,
        };
        let (state, start) = (Arc::new(Mutex::new(state)), Instant::now());
        let (link, mut arriving) = mpsc::unbounded_channel::<(Instant, Op, Answered)>();
        let kept = state.clone();
        tokio::spawn(async move {
            while let Some((arrives, op, answered)) = arriving.recv().await {
                sleep_until(arrives).await;
                let mut state = kept.lock().unwrap();
                let now = state.now(start);
                state.asked.push(op.clone());
                state.apply(op, answered, now);
                state.ask_again(now);
            }
        });
        let servers = Arc::new(Self { state, start, link });
        let expiring = Arc::downgrade(&servers);
        tokio::spawn(async move {
            while let Some(servers) = expiring.upgrade() {
                servers.expire();
                drop(servers);
                sleep(10 * MS).await;
            }
        });
        servers
    }

    fn expire(&self) {
        let mut state = self.state.lock().unwrap();
        let now = state.now(self.start);
        if state.model.expire(now) {
            state.ask_again(now);
        }
    }

    /// Both clocks of the leader.
    pub fn jump(&self, by: Duration) {
        self.state.lock().unwrap().jumped += by;
        self.expire();
    }

    /// Does `op` at once, behind everybody's back.
    pub fn meddle(&self, op: &Op) {
        let mut state = self.state.lock().unwrap();
        let now = state.now(self.start);
        state.model.apply(op, now);
        state.ask_again(now);
    }

    /// Those who wait for a key to go hear that their connection is gone instead.
    pub fn break_waits(&self) {
        for (_, answered) in std::mem::take(&mut self.state.lock().unwrap().waiting) {
            drop(answered.send(Err(NodeError::Indeterminate("connection lost".into()))));
        }
    }

    pub fn answers_only(&self, answers: usize) {
        self.state.lock().unwrap().answers = answers;
    }

    pub fn cut(&self) {
        self.state.lock().unwrap().is_cut = true;
    }

    pub fn queue(&self) -> Vec<(Revision, Owner)> {
        let state = self.state.lock().unwrap();
        state.model.waiting(&key()).map(|(revision, owner)| (revision, owner.clone())).collect()
    }

    pub fn owners(&self) -> Vec<Owner> {
        self.queue().into_iter().map(|(_, owner)| owner).collect()
    }

    pub fn leases(&self) -> usize {
        self.state.lock().unwrap().model.leases()
    }

    /// Returns the requests that have arrived, in order.
    pub fn asked(&self) -> Vec<Op> {
        self.state.lock().unwrap().asked.clone()
    }
}

impl Store for Servers {
    fn name(&self) -> &str {
        "etcd"
    }

    fn send(&self, op: Op) -> Reply<Said> {
        if self.state.lock().unwrap().is_cut {
            return Box::pin(std::future::ready(Err(NodeError::Definite("not connected".into()))));
        }
        let (answered, answer) = oneshot::channel();
        self.link.send((Instant::now() + LAG, op, answered)).unwrap();
        Box::pin(async move {
            match answer.await {
                Ok(said) => said,
                Err(_) => pending().await,
            }
        })
    }
}

/// The clients' clock: virtual time, and what a test adds to it.
pub struct ClientClock {
    start: Instant,
    jumped: Mutex<Duration>,
}

impl ClientClock {
    pub fn jump(&self, by: Duration) {
        *self.jumped.lock().unwrap() += by;
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
}

/// A lock over the store, for all clients of a test.
pub struct Scene {
    pub servers: Arc<Servers>,
    pub clock: Arc<ClientClock>,
    pub lock: Arc<dyn Lock>,
}

impl Scene {
    pub fn new() -> Self {
        Self::with(|store, clock| Arc::new(locks::Etcd::new(store, clock)))
    }

    pub fn buggy(bug: &str) -> Self {
        Self::with(|store, clock| {
            let (bug, client) = (PlantedBug::named(bug).unwrap(), locks::Client::named("etcd").unwrap());
            bug.build(client, locks::Servers::Store(store), locks::TokenSource::Revision, clock).unwrap()
        })
    }

    /// The server's Lock service of this version.
    pub fn server_lock(models: Models) -> Self {
        let scene = Self::with(|store, clock| Arc::new(locks::EtcdServerLock::new(store, clock)));
        scene.servers.state.lock().unwrap().model = StoreModel::new(&facts(), models);
        scene
    }

    fn with(lock: impl FnOnce(Arc<dyn Store>, Arc<dyn Clock>) -> Arc<dyn Lock>) -> Self {
        let clock = Arc::new(ClientClock { start: Instant::now(), jumped: Mutex::default() });
        let servers = Servers::new();
        Self { lock: lock(servers.clone(), clock.clone()), servers, clock }
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    pub fn holder(&self) -> Option<Owner> {
        self.servers.owners().into_iter().next()
    }

    pub async fn acquire(&self, name: &str) -> Result<Hold, Failure> {
        self.lock.acquire(&key(), owner(name), LEASE, &Unwatched).await
    }

    /// An attempt that goes on only while it is polled.
    pub fn begin(&self, name: &str) -> Operation<'_, Hold> {
        let (lock, owner) = (self.lock.clone(), owner(name));
        Box::pin(async move { lock.acquire(&key(), owner, LEASE, &Unwatched).await })
    }
}

/// Lets `doing` go on for `time`, in which it must not end.
pub async fn stays_pending<T: std::fmt::Debug>(
    doing: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>,
    time: Duration,
) {
    if let Ok(ended) = timeout(time, doing).await {
        panic!("ended: {ended:?}");
    }
}

/// Writes down what a watch is told, and when.
pub struct Noting {
    clock: Arc<ClientClock>,
    seen: Mutex<Vec<(String, Duration)>>,
}

impl Noting {
    pub fn of(clock: &Arc<ClientClock>) -> Self {
        Self { clock: clock.clone(), seen: Mutex::default() }
    }

    pub fn seen(&self) -> Vec<(String, Duration)> {
        self.seen.lock().unwrap().clone()
    }

    pub fn words(&self) -> Vec<String> {
        self.seen().into_iter().map(|(what, _)| what).collect()
    }

    fn note(&self, what: String) {
        self.seen.lock().unwrap().push((what, self.clock.now()));
    }
}

impl Watch for Noting {
    fn sending(&self, round: Round) {
        self.note(format!("sending {round:?}"));
    }

    fn sent(&self, round: Round) -> Reply<()> {
        self.note(format!("sent {round:?}"));
        Box::pin(std::future::ready(()))
    }

    fn answered(&self, round: Round) {
        self.note(format!("answered {round:?}"));
    }

    fn promising(&self) {
        self.note("promising".into());
    }

    fn promised_since(&self, mark: Mark) {
        self.note(format!("promised since {}", mark.0));
    }

    fn looking(&self) {
        self.note("looking".into());
    }

    fn behind(&self) {
        self.note("behind".into());
    }

    fn promised(&self) {
        self.note("promised".into());
    }

    fn without_key(&self) {
        self.note("without key".into());
    }

    fn confirmed(&self, place: Revision) {
        self.note(format!("confirmed {}", place.0));
    }

    fn undoing(&self) {
        self.note("undoing".into());
    }

    fn undone(&self, answers: &[(locks::NodeName, NodeAnswer)]) {
        self.note(format!("undone {:?}", answers.iter().map(|(_, answer)| *answer).collect::<Vec<_>>()));
    }
}
