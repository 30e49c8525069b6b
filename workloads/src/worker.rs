//! The worker: the clients of one process, controlled by commands.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::{Either, join_all, select};
use history::{ClientId, Event, Plan, Stamp, drift};
use locks::{Clock, Lock, Reply};

use crate::{
    attempt::Recording,
    backend::Backend,
    client::{AttemptIds, Client, Ended},
    client_program,
    generate::Sections,
    points::Points,
    ports::{Journal, Resource},
    protocol::Configuration,
    stop_signal::StopSignal,
    stream::{Redraw, Stream, Timed},
};

/// The timeout of a request to the resource, which is then indeterminate.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The time for which a dead holder can block a key, and one second more.
fn blocked_at_most(plan: &Plan) -> Duration {
    let lease = plan.longest_lease();
    lease + drift(lease) + Duration::from_secs(1)
}

/// A connected worker that waits for its start.
pub struct Worker {
    configuration: Configuration,
    recording: Recording,
    /// One lock for all clients, or one for each.
    locks: Vec<Arc<dyn Lock>>,
    resource: Arc<dyn Resource>,
    stop: Arc<StopSignal>,
    redraw: Option<Redraw>,
}

/// The count of the sections that were due.
#[derive(Debug, Default)]
struct Tally {
    offered: AtomicU64,
    done: AtomicU64,
    dropped: AtomicU64,
}

impl Worker {
    /// Connects to the lock nodes and the resource, starts the client programs of a plan that has one, and reports the
    /// servers' versions in the event `ready`.
    ///
    /// # Errors
    /// The configuration names an unknown lock, a server gives no answer, or a client program cannot be started.
    pub async fn connect(
        configuration: Configuration,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
    ) -> Result<Worker, Box<dyn std::error::Error + Send + Sync>> {
        let Configuration { backend, process, plan, .. } = &configuration;
        let is_late = *process >= plan.workload.workers;
        let client = Backend::named(backend)?;
        let (locks, servers) = match &plan.program {
            Some(program) => client_program::start(program, client, &configuration, is_late, &clock).await?,
            None => {
                let (locked_on, servers) = client.connect(&configuration, is_late).await?;
                (vec![client.build(locked_on, plan.tokens, clock.clone())?], servers)
            }
        };
        let resource = Arc::new(resource::Client::new(&configuration.resource, ACCESS_TIMEOUT)?);
        let recording = Recording { journal, clock, points: Arc::new(Points::default()) };
        recording.journal.record(Event::Ready { servers });
        Ok(Worker { configuration, recording, locks, resource, stop: Arc::default(), redraw: None })
    }

    /// Makes a worker over a connected lock and resource.
    pub fn over(
        configuration: Configuration,
        recording: Recording,
        lock: Arc<dyn Lock>,
        resource: Arc<dyn Resource>,
    ) -> Worker {
        Worker { configuration, recording, locks: vec![lock], resource, stop: Arc::default(), redraw: None }
    }

    /// Returns the worker with clients that draw other random numbers from an instant on.
    pub fn redrawn(self, redraw: Option<Redraw>) -> Worker {
        Worker { redraw, ..self }
    }

    /// Returns the worker's protocol points.
    pub fn points(&self) -> &Points {
        &self.recording.points
    }

    /// Stops new critical sections.
    pub fn stop(&self) {
        // No later command can release a client that waits at its point.
        self.points().go_all();
        self.stop.set(self.recording.journal.now());
    }

    /// Runs all clients until [`Worker::stop`], lets them finish their current sections, and reports `sections`.
    pub async fn run(&self) {
        let workload = &self.configuration.plan.workload;
        let tally = Tally::default();
        let attempts = Arc::new(AttemptIds::new(self.configuration.process));
        let namespace = Arc::<str>::from(self.configuration.namespace.as_str());
        let start = self.recording.journal.now();
        let clients = (0..workload.clients_per_worker).map(|index| {
            let lock = self.locks[index as usize % self.locks.len()].clone();
            let client = Client {
                id: ClientId(self.configuration.first_client.0 + index),
                // A plan is refused if its lock has no sessions.
                lock: lock.session().filter(|_| workload.session).unwrap_or(lock),
                resource: self.resource.clone(),
                recording: self.recording.clone(),
                workload: workload.clone(),
                lease: self.configuration.plan.lease,
                namespace: namespace.clone(),
                attempts: attempts.clone(),
            };
            self.client(client, start, &tally)
        });
        join_all(clients).await;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (offered, done, dropped) = (count(&tally.offered), count(&tally.done), count(&tally.dropped));
        self.recording.journal.record(Event::Sections { offered, done, dropped });
    }

    /// Runs one client: each section begins at its time, or as soon as the client is free.
    async fn client(&self, client: Client, start: Stamp, tally: &Tally) {
        let plan = &self.configuration.plan;
        let backend = Backend::named(&self.configuration.backend).ok().filter(|_| plan.workload.reenter > 0);
        let client = match backend {
            Some(backend) => client.reentrant(&backend),
            None => client,
        };
        // Two streams for each client of each process: draws under contention must not change the offered sections.
        let stream = |of: u64| {
            let number = (u64::from(self.configuration.process) << 40) | (u64::from(client.id.0) << 8) | of;
            let now = || self.recording.journal.now();
            Timed { stream: Stream::new(plan.seed, number, self.redraw), now }
        };
        let sections = Sections::new(&plan.workload, &self.configuration.node(), client.id, stream(1));
        let mut rng = stream(2);
        for section in sections {
            let due = start.plus(section.due);
            let stopped = match self.stop.at() {
                Some(at) => Some(at),
                None => match select(pin!(self.until(due)), pin!(self.stop.wait())).await {
                    Either::Left(_) => None,
                    Either::Right((at, _)) => Some(at),
                },
            };
            if let Some(stopped) = stopped {
                // A section that was due and has not begun is dropped; a later one was never offered.
                if due > stopped {
                    break;
                }
                tally.offered.fetch_add(1, Ordering::Relaxed);
                tally.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            tally.offered.fetch_add(1, Ordering::Relaxed);
            let (give_up, end) = (self.give_up(&client), self.end(&client));
            let count = match client.section(&section, due, &mut rng, &give_up, &end).await {
                Ended::Done => &tally.done,
                Ended::Dropped => &tally.dropped,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        // A script may end before the run.
        self.stop.wait().await;
    }

    /// Waits until the run's clock shows `at`. The client sleeps by its own clock, which a fault may let jump or run
    /// fast, so it looks at the run's clock after each sleep. A slow clock makes the sleep too long.
    async fn until(&self, at: Stamp) {
        let Recording { journal, clock, .. } = &self.recording;
        let shown = || (journal.now(), clock.now());
        let mut now = shown();
        while now.0 < at {
            clock.sleep_until(now.1 + at.since(now.0)).await;
            let former = std::mem::replace(&mut now, shown());
            if now == former {
                // The client's clock shows its largest reading, so no sleep by it lasts. The section begins early.
                return;
            }
        }
    }

    /// Returns when a client gives up. After the stop a client keeps trying as long as a dead holder could block the
    /// key.
    fn give_up(&self, client: &Client) -> impl Fn() -> bool + Send + Sync + use<> {
        let stop = self.stop.clone();
        let clock = client.recording.clock.clone();
        let longest = blocked_at_most(&self.configuration.plan);
        let (seen, until_ns) = (AtomicBool::new(false), AtomicU64::new(0));
        move || {
            if stop.at().is_none() {
                return false;
            }
            let now = clock.now();
            if !seen.swap(true, Ordering::Relaxed) {
                until_ns.store((now + longest).as_nanos() as u64, Ordering::Relaxed);
            }
            now.as_nanos() as u64 >= until_ns.load(Ordering::Relaxed)
        }
    }

    /// Returns when an attempt that waits in a queue gives up: at the same time as [`Worker::give_up`].
    fn end(&self, client: &Client) -> impl Fn() -> Reply<()> + Send + Sync + use<> {
        let stop = self.stop.clone();
        let clock = client.recording.clock.clone();
        let longest = blocked_at_most(&self.configuration.plan);
        move || {
            let (stop, clock) = (stop.clone(), clock.clone());
            Box::pin(async move {
                stop.wait().await;
                clock.sleep_until(clock.now() + longest).await;
            })
        }
    }

    /// Reads `keys` at the end of the run, without a hold and without a token, so that no token is registered.
    ///
    /// # Errors
    /// The resource gave no answer.
    pub async fn final_reads(&self, keys: &[history::Key]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for key in keys {
            self.resource.final_read(key).await?;
        }
        Ok(())
    }
}
