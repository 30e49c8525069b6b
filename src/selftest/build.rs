//! Building blocks of the self-test's scenarios.

use std::time::Duration;

use history::{
    Arm, ClientKind, ClockChange, Comparison, Direction, Fault, FaultId, Models, Persistence, Plan, Point, Range, Step,
    Target, Tokens, When, WhichClock, fault,
};

use crate::scenario::Scenario;

/// Milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Describes three workers that all want one key all the time. `backend` is the name of a correct lock.
pub fn busy(backend: &str) -> Scenario {
    let mut scenario = Scenario::of(backend).expect("the tables of the self-test name existing backends");
    let plan = &mut scenario.base;
    plan.time = Duration::from_secs(8);
    plan.lease = plan.servers.granted(Duration::from_secs(1));
    plan.arms = arms(plan.tokens);
    plan.workload.workers = 3;
    plan.workload.rate_per_s = 12.0;
    plan.workload.work = Range { from: ms(20), to: ms(60) };
    plan.workload.retry_delay = Range { from: ms(20), to: ms(60) };
    scenario
}

/// Returns all arms that work with these tokens.
fn arms(tokens: Tokens) -> Vec<Arm> {
    let is_possible = |arm: &Arm| *arm != Arm::Guard && (tokens != Tokens::None || !arm.fences());
    Arm::ALL.into_iter().filter(is_possible).collect()
}

impl Scenario {
    /// Changes anything.
    pub fn with(mut self, change: impl FnOnce(&mut Plan)) -> Scenario {
        change(&mut self.base);
        self
    }

    pub fn tokens(self, tokens: Tokens) -> Scenario {
        self.with(|p| (p.tokens, p.arms) = (tokens, arms(tokens)))
    }

    pub fn lease(self, lease: Duration) -> Scenario {
        self.with(|p| p.lease = lease)
    }

    pub fn time(self, time: Duration) -> Scenario {
        self.with(|p| p.time = time)
    }

    pub fn workers(self, workers: u32) -> Scenario {
        self.with(|p| p.workload.workers = workers)
    }

    pub fn clients(self, clients_per_worker: u32) -> Scenario {
        self.with(|p| p.workload.clients_per_worker = clients_per_worker)
    }

    pub fn keys(self, keys: u32) -> Scenario {
        self.with(|p| p.workload.keys = keys)
    }

    pub fn rate(self, rate_per_s: f64) -> Scenario {
        self.with(|p| p.workload.rate_per_s = rate_per_s)
    }

    pub fn readers(self, share: f64) -> Scenario {
        self.with(|p| p.workload.readers = share)
    }

    /// Lets this share of the sections take the parent of all other keys, without arms that compare tokens.
    pub fn hierarchy(self, share: f64) -> Scenario {
        self.with(|p| {
            p.workload.hierarchy = share;
            p.arms.retain(|arm| !arm.fences());
        })
    }

    pub fn work(self, from: Duration, to: Duration) -> Scenario {
        self.with(|p| p.workload.work = Range { from, to })
    }

    pub fn retry(self, from: Duration, to: Duration) -> Scenario {
        self.with(|p| p.workload.retry_delay = Range { from, to })
    }

    pub fn checking(self) -> Scenario {
        self.with(|p| p.workload.client = ClientKind::Checking)
    }

    pub fn writes(self, writes: u32) -> Scenario {
        self.with(|p| p.workload.writes = writes)
    }

    pub fn renew(self, every: Duration) -> Scenario {
        self.with(|p| p.workload.renew = Some(every))
    }

    pub fn renew_for(self, lease: Duration) -> Scenario {
        self.with(|p| p.workload.renew_for = Some(lease))
    }

    pub fn resend(self, every: Duration) -> Scenario {
        self.with(|p| p.workload.resend = Some(every))
    }

    pub fn cancel(self, after: Duration) -> Scenario {
        self.with(|p| p.workload.cancel = Some(after))
    }

    pub fn models(self, models: Models) -> Scenario {
        self.with(|p| p.models = Some(models))
    }

    pub fn persistence(self, persistence: Persistence) -> Scenario {
        self.models(Models { persistence, ..Models::default() })
    }

    /// One write a hold, by a resource that refuses an equal token.
    pub fn strict(self) -> Scenario {
        self.with(|p| {
            p.fence = Comparison::Strict;
            p.arms.retain(|arm| *arm != Arm::Reads);
        })
    }

    /// Adds random faults, as `--nemesis` names them.
    pub fn faults(self, names: &str) -> Scenario {
        let faults = nemesis::parse(names).expect("the tables of the self-test name existing faults");
        Scenario { faults, ..self }
    }

    /// A fault at its own time, or at a protocol point.
    pub fn step(self, node: &str, when: When, fault: Fault) -> Scenario {
        self.with(|p| {
            let id = FaultId(p.schedule.len() as u32 + 1);
            p.schedule.push(Step { id, fault, target: Target::Node(node.into()), when });
        })
    }

    /// Adds the same fault of a node every `gap`, until the end of the run.
    pub fn every(self, node: &str, gap: Duration, fault: &Fault) -> Scenario {
        let (mut scenario, mut at) = (self, gap);
        while at < scenario.base.time {
            scenario = scenario.step(node, When::At(at), fault.clone());
            at += gap;
        }
        scenario
    }
}

/// So long after the start.
pub fn at(time_ms: u64) -> When {
    When::At(ms(time_ms))
}

/// The moment at which the first client of the target reaches the point.
pub fn at_point(point: Point) -> When {
    When::AtPoint(point)
}

pub fn pause(lasting: Duration) -> Fault {
    Fault::new(fault::Pause {}, lasting)
}

pub fn kill(back_after: Duration) -> Fault {
    Fault::new(fault::Kill {}, back_after)
}

/// A clock of the target jumps, and back again if it is the wall clock.
pub fn jump(clock: WhichClock, by_ms: i64, lasting: Duration) -> Fault {
    Fault::new(fault::Clock { clock, change: ClockChange::JumpMs(by_ms) }, lasting)
}

pub fn drift(clock: WhichClock, ppm: i32, lasting: Duration) -> Fault {
    Fault::new(fault::Clock { clock, change: ClockChange::DriftPpm(ppm) }, lasting)
}

/// Cuts the target off from these; from everybody, if there are none.
pub fn cut(from: &[&str], lasting: Duration) -> Fault {
    let from = from.iter().map(|n| (*n).into()).collect();
    Fault::new(fault::Partition { cut: history::CutMode::Drop }, lasting).on_links(Direction::Both, from)
}

/// Makes packets between the target and these late.
pub fn slow(from: &[&str], by: Duration, lasting: Duration) -> Fault {
    let from = from.iter().map(|n| (*n).into()).collect();
    Fault::new(fault::Delay { by: by.into() }, lasting).on_links(Direction::Both, from)
}
