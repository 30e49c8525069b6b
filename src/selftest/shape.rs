//! Plans by their building blocks: what each table of the self-test runs.

use std::time::Duration;

use history::{
    Activity, Arm, ClientKind, ClockChange, ClusterKind, Comparison, Direction, Fault, FaultId, Models, NodeName,
    Persistence, Plan, Point, Range, Step, Target, Tokens, When, WhichClock, Workload,
};
use nemesis::Draw;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use workloads::backend;

/// Milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A plan that is being put together.
#[derive(Debug, Clone)]
pub struct Shape {
    plan: Plan,
    faults: String,
}

/// Three workers that want one key all the time, in the simulation. `backend` is the name of a correct lock.
pub fn busy(backend: &str, seed: u64) -> Shape {
    let known = backend::BACKENDS.iter().find(|b| b.name == backend);
    let (tokens, lock_nodes) = known.map_or((Tokens::None, Vec::new()), |b| (b.tokens[0], b.lock_nodes()));
    let plan = Plan {
        schema: 1,
        seed,
        cluster: ClusterKind::Sim,
        backend: backend.to_owned(),
        tokens,
        time: Duration::from_secs(8),
        // The shortest that etcd grants.
        lease: if tokens == Tokens::Revision { Duration::from_secs(2) } else { Duration::from_secs(1) },
        arms: arms(tokens),
        fence: Comparison::Default,
        lock_nodes,
        workload: Workload {
            workers: 3,
            rate_per_s: 12.0,
            work: Range { from: ms(20), to: ms(60) },
            retry_delay: Range { from: ms(20), to: ms(60) },
            ..Workload::default()
        },
        activity: Activity::default(),
        nemesis: Vec::new(),
        models: None,
        waits: Vec::new(),
        schedule: Vec::new(),
    };
    Shape { plan, faults: String::new() }
}

/// All that go with these tokens.
fn arms(tokens: Tokens) -> Vec<Arm> {
    Arm::ALL.into_iter().filter(|arm| tokens != Tokens::None || !arm.fences()).collect()
}

impl Shape {
    /// Changes anything.
    pub fn with(mut self, change: impl FnOnce(&mut Plan)) -> Shape {
        change(&mut self.plan);
        self
    }

    pub fn tokens(self, tokens: Tokens) -> Shape {
        self.with(|p| (p.tokens, p.arms) = (tokens, arms(tokens)))
    }

    pub fn lease(self, lease: Duration) -> Shape {
        self.with(|p| p.lease = lease)
    }

    pub fn time(self, time: Duration) -> Shape {
        self.with(|p| p.time = time)
    }

    pub fn workers(self, workers: u32) -> Shape {
        self.with(|p| p.workload.workers = workers)
    }

    pub fn clients(self, clients_per_worker: u32) -> Shape {
        self.with(|p| p.workload.clients_per_worker = clients_per_worker)
    }

    pub fn keys(self, keys: u32) -> Shape {
        self.with(|p| p.workload.keys = keys)
    }

    pub fn rate(self, rate_per_s: f64) -> Shape {
        self.with(|p| p.workload.rate_per_s = rate_per_s)
    }

    pub fn work(self, from: Duration, to: Duration) -> Shape {
        self.with(|p| p.workload.work = Range { from, to })
    }

    pub fn retry(self, from: Duration, to: Duration) -> Shape {
        self.with(|p| p.workload.retry_delay = Range { from, to })
    }

    pub fn checking(self) -> Shape {
        self.with(|p| p.workload.client = ClientKind::Checking)
    }

    pub fn writes(self, writes: u32) -> Shape {
        self.with(|p| p.workload.writes = writes)
    }

    pub fn renew(self, every: Duration) -> Shape {
        self.with(|p| p.workload.renew = Some(every))
    }

    pub fn renew_for(self, lease: Duration) -> Shape {
        self.with(|p| p.workload.renew_for = Some(lease))
    }

    pub fn resend(self, every: Duration) -> Shape {
        self.with(|p| p.workload.resend = Some(every))
    }

    pub fn cancel(self, after: Duration) -> Shape {
        self.with(|p| p.workload.cancel = Some(after))
    }

    pub fn models(self, models: Models) -> Shape {
        self.with(|p| p.models = Some(models))
    }

    pub fn persistence(self, persistence: Persistence) -> Shape {
        self.models(Models { persistence, ..Models::default() })
    }

    /// One write a hold, by a resource that refuses an equal token.
    pub fn strict(self) -> Shape {
        self.with(|p| {
            p.fence = Comparison::Strict;
            p.arms.retain(|arm| *arm != Arm::Reads);
        })
    }

    /// Whether every hold writes once.
    pub fn is_for_one_write(&self) -> bool {
        self.plan.workload.writes == 1
    }

    /// Faults that are drawn, as `--nemesis` names them.
    pub fn faults(self, wishes: &str) -> Shape {
        Shape { faults: wishes.to_owned(), ..self }
    }

    /// A fault at its own time, or at a protocol point.
    pub fn step(self, node: &str, when: When, fault: Fault) -> Shape {
        self.with(|p| {
            let id = FaultId(p.schedule.len() as u32 + 1);
            p.schedule.push(Step { id, fault, target: Target::Node(node.into()), when });
        })
    }

    /// The same fault of a node again and again, from the first second on.
    pub fn every(self, node: &str, gap: Duration, fault: &Fault) -> Shape {
        let (mut shape, mut at) = (self, gap);
        while at < shape.plan.time {
            shape = shape.step(node, When::At(at), fault.clone());
            at += gap;
        }
        shape
    }

    /// The plan, its faults drawn.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn plan(self) -> Result<Plan, String> {
        let Shape { mut plan, faults } = self;
        if !faults.is_empty() {
            let wishes = nemesis::parse(&faults).map_err(|e| e.to_string())?;
            let workers: Vec<NodeName> = plan.workers().collect();
            let (time, lease, lock_nodes) = (plan.time, plan.lease, &plan.lock_nodes);
            let of = Draw { wishes: &wishes, time, lease, workers: &workers, lock_nodes };
            let drawn = nemesis::draw(&mut ChaCha8Rng::seed_from_u64(plan.seed), &of).map_err(|e| e.to_string())?;
            let first = plan.schedule.len() as u32;
            plan.schedule.extend(drawn.into_iter().map(|s| Step { id: FaultId(first + s.id.0), ..s }));
        }
        plan.nemesis = plan.kinds().iter().map(|kind| kind.name().to_owned()).collect();
        plan.validate().map_err(|e| format!("{}: {}", e.field, e.problem))?;
        Ok(plan)
    }
}

/// So long after the start.
pub fn at(time_ms: u64) -> When {
    When::At(ms(time_ms))
}

/// When the first client of the target comes there.
pub fn at_point(point: Point) -> When {
    When::AtPoint(point)
}

pub fn pause(lasting: Duration) -> Fault {
    Fault::Pause { lasting }
}

pub fn kill(back_after: Duration) -> Fault {
    Fault::Kill { back_after }
}

/// A clock of the target jumps, and back again if it is the wall clock.
pub fn jump(clock: WhichClock, by_ms: i64, lasting: Duration) -> Fault {
    Fault::Clock { clock, change: ClockChange::JumpMs(by_ms), lasting }
}

pub fn drift(clock: WhichClock, ppm: i32, lasting: Duration) -> Fault {
    Fault::Clock { clock, change: ClockChange::DriftPpm(ppm), lasting }
}

/// Cuts the target off from these; from everybody, if there are none.
pub fn cut(from: &[&str], lasting: Duration) -> Fault {
    let from = from.iter().map(|n| (*n).into()).collect();
    Fault::Partition { lasting, direction: Direction::Both, from, cut: history::Cut::Drop }
}

/// Makes packets between the target and these late.
pub fn slow(from: &[&str], by: Duration, lasting: Duration) -> Fault {
    let from = from.iter().map(|n| (*n).into()).collect();
    Fault::Delay { lasting, by: by.into(), direction: Direction::Both, from }
}
