//! The worker: the clients of one process, driven by commands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::{Either, join_all, select};
use history::{ClientId, Event, Stamp, drift};
use locks::{Clock, Lock, Reply};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{
    attempt::Recording,
    backend,
    client::{AttemptIds, Client, Ended},
    generate::Sections,
    over::Over,
    points::Points,
    ports::{Journal, Resource},
    protocol::Configuration,
};

/// How long a request to the resource may take before it counts as indeterminate.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// For so long a holder that died could block a key, and a little longer.
fn patience(lease: Duration) -> Duration {
    lease + drift(lease) + Duration::from_secs(1)
}

/// A worker that is connected and waits for the start.
pub struct Worker {
    configuration: Configuration,
    recording: Recording,
    lock: Arc<dyn Lock>,
    resource: Arc<dyn Resource>,
    over: Arc<Over>,
}

/// What a worker has done with the sections that were due.
#[derive(Debug, Default)]
struct Tally {
    offered: AtomicU64,
    done: AtomicU64,
    dropped: AtomicU64,
}

impl Worker {
    /// Connects to the lock nodes and the resource, and tells the servers' versions by a `ready` event.
    ///
    /// # Errors
    /// The configuration names a lock that does not exist, or a server that gives no answer.
    pub async fn connect(
        configuration: Configuration,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
    ) -> Result<Worker, Box<dyn std::error::Error + Send + Sync>> {
        let Configuration { backend, lock_nodes, process, plan, .. } = &configuration;
        let is_late = *process >= plan.workload.workers;
        let (locked_on, servers) = backend::Servers::connect(backend, lock_nodes, *process, is_late).await?;
        let lock = backend::lock(&configuration.backend, configuration.plan.tokens, locked_on, clock.clone())?;
        let resource = Arc::new(resource::Client::new(&configuration.resource, ACCESS_TIMEOUT)?);
        let recording = Recording { journal, clock, points: Arc::new(Points::default()) };
        recording.journal.record(Event::Ready { servers });
        Ok(Worker::over(configuration, recording, lock, resource))
    }

    /// The worker over a lock and a resource that somebody else has connected.
    pub fn over(
        configuration: Configuration,
        recording: Recording,
        lock: Arc<dyn Lock>,
        resource: Arc<dyn Resource>,
    ) -> Worker {
        Worker { configuration, recording, lock, resource, over: Arc::default() }
    }

    /// Its protocol points.
    pub fn points(&self) -> &Points {
        &self.recording.points
    }

    /// No critical section begins after this.
    pub fn stop(&self) {
        // Whoever would have met a client at its point is gone too.
        self.points().go_all();
        self.over.set();
    }

    /// Runs all clients until [`Worker::stop`], lets them end what they have begun, and says `sections`.
    pub async fn run(&self) {
        let workload = &self.configuration.plan.workload;
        let tally = Tally::default();
        let attempts = Arc::new(AttemptIds::new(self.configuration.process));
        let (start, epoch) = (self.recording.journal.now(), self.recording.clock.now());
        let clients = (0..workload.clients_per_worker).map(|index| {
            let client = Client {
                id: ClientId(self.configuration.first_client.0 + index),
                lock: self.lock.clone(),
                resource: self.resource.clone(),
                recording: self.recording.clone(),
                workload: workload.clone(),
                lease: self.configuration.plan.lease,
                attempts: attempts.clone(),
            };
            self.client(client, start, epoch, &tally)
        });
        join_all(clients).await;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (offered, done, dropped) = (count(&tally.offered), count(&tally.done), count(&tally.dropped));
        self.recording.journal.record(Event::Sections { offered, done, dropped });
    }

    /// One client: its sections one after the other, each at its time or as soon after it as the client is free.
    async fn client(&self, client: Client, start: Stamp, epoch: Duration, tally: &Tally) {
        let plan = &self.configuration.plan;
        // Two streams for each client of each process: what is drawn under contention must not change what is offered.
        let stream = |of: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
            rng.set_stream((u64::from(self.configuration.process) << 40) | (u64::from(client.id.0) << 8) | of);
            rng
        };
        let sections = Sections::new(&plan.workload, &self.configuration.node(), stream(1));
        let mut rng = stream(2);
        let clock = &*self.recording.clock;
        let mut ended = None;
        for section in sections {
            let due = epoch + section.due;
            if ended.is_none() {
                let ends = std::pin::pin!(self.over.wait());
                if let Either::Right(_) = select(clock.sleep_until(due), ends).await {
                    ended = Some(clock.now());
                }
            }
            if let Some(ended) = ended {
                // What was due by now and has not begun is dropped; what comes later was never offered.
                if due > ended {
                    break;
                }
                tally.offered.fetch_add(1, Ordering::Relaxed);
                tally.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            tally.offered.fetch_add(1, Ordering::Relaxed);
            let (give_up, end) = (self.give_up(&client), self.end(&client));
            let count = match client.section(&section, start.plus(section.due), &mut rng, &give_up, &end).await {
                Ended::Done => &tally.done,
                Ended::Dropped => &tally.dropped,
            };
            count.fetch_add(1, Ordering::Relaxed);
            if self.over.is_set() && ended.is_none() {
                ended = Some(clock.now());
            }
        }
        // A script may be over before the run is.
        self.over.wait().await;
    }

    /// After the end a client goes on trying for as long as a holder that died could block it, and then gives up.
    fn give_up(&self, client: &Client) -> impl Fn() -> bool + Send + Sync + use<> {
        let over = self.over.clone();
        let clock = client.recording.clock.clone();
        let patience = patience(client.lease);
        let (seen, until_ns) = (AtomicBool::new(false), AtomicU64::new(0));
        move || {
            if !over.is_set() {
                return false;
            }
            let now = clock.now();
            if !seen.swap(true, Ordering::Relaxed) {
                until_ns.store((now + patience).as_nanos() as u64, Ordering::Relaxed);
            }
            now.as_nanos() as u64 >= until_ns.load(Ordering::Relaxed)
        }
    }

    /// The same for an attempt that waits in a queue: it ends when the patience is over.
    fn end(&self, client: &Client) -> impl Fn() -> Reply<()> + Send + Sync + use<> {
        let over = self.over.clone();
        let clock = client.recording.clock.clone();
        let patience = patience(client.lease);
        move || {
            let (over, clock) = (over.clone(), clock.clone());
            Box::pin(async move {
                over.wait().await;
                clock.sleep_until(clock.now() + patience).await;
            })
        }
    }

    /// Reads what is left of `keys`: without a hold and without a token, so that it registers nothing.
    ///
    /// # Errors
    /// The resource gave no answer.
    pub async fn look_at(&self, keys: &[history::Key]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for key in keys {
            self.resource.look(&resource::Key::new(key.as_str())?).await?;
        }
        Ok(())
    }
}
