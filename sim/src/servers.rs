//! The servers of a world as its clients reach them: ports over links.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use history::{Event, HoldId, Plan, Tokens};
use locks::{Answer, Key, Node, NodeError, Owner, Reply, Step};
use nemesis::Data;
use resource::{
    Action, Admission, ClientError, Kind, Planted, Policy, Proposal, ReadAnswer, ReadArm, Request, WriteAnswer,
    WriteArm,
};
use workloads::ports::{Access, Caller};

use crate::{
    answer::{Answering, Slot, Unanswered, answer},
    clock::{Clocks, duration},
    exchange::{Exchange, Leg},
    executor::{Load, Packet, Process, Stage},
    local::{Local, lock},
    models::redis::RedisModel,
    resource_model::ResourceModel,
    store::StoreCluster,
    world::{START, World},
};

/// The planted bug that is one of the server, not of its client.
const DROPS_COUNTERS: &str = "buggy:drops-counters";

/// The models.
pub(crate) struct Servers {
    /// By lock node; empty if the backend is a store.
    pub redis: Vec<Local<RedisModel>>,
    /// The store, if the backend is one.
    pub store: Option<Local<StoreCluster>>,
    /// The resource.
    pub resource: Local<ResourceModel>,
}

impl Servers {
    /// The servers of `plan`, empty.
    pub fn new(plan: &Plan, backend: &str, policy: Policy, is_fragile: bool) -> Servers {
        let models = plan.models.unwrap_or_default();
        let is_store = plan.tokens == Tokens::Revision || plan.has_one_store();
        let redis = || {
            let wall = duration(Clocks::right(START).wall.shows_ns(START));
            let model = RedisModel::new(models.persistence).started(wall);
            if backend.starts_with(DROPS_COUNTERS) { model.dropping_counters() } else { model }
        };
        let nodes = plan.lock_nodes.iter().filter(|_| !is_store);
        Servers {
            redis: nodes.map(|_| Local::new(redis())).collect(),
            store: is_store.then(|| Local::new(StoreCluster::new(models, START))),
            resource: Local::new(ResourceModel::new(policy, is_fragile)),
        }
    }

    /// A server is about to start again over its data. Members of a store have theirs from each other.
    pub fn restart(&self, node: Process, data: Data, killed: Duration) {
        if let Some(redis) = self.redis.get(node) {
            lock(redis).restart(data, killed);
        }
    }

    /// A Redis node takes over the largest counters of others.
    pub fn take_over(&self, node: Process, of: &[Process]) {
        let Some(redis) = self.redis.get(node) else { return };
        let others = of.iter().filter(|other| **other != node).filter_map(|other| self.redis.get(*other));
        for other in others {
            let counters = lock(other).counters();
            counters.iter().for_each(|(key, counter)| lock(redis).raise_counter(key, *counter));
        }
    }

    /// Who owns `key` now: on a majority of the nodes, or the first in the queue of the store.
    pub fn owner(
        &self,
        key: &Key,
        wall: impl Fn(Process) -> Duration,
        whose: impl Fn(&Owner) -> Option<HoldId>,
    ) -> Option<HoldId> {
        if let Some(store) = &self.store {
            return lock(store).holder(key).and_then(|owner| whose(&owner));
        }
        let mut found: Vec<(HoldId, usize)> = Vec::new();
        for (node, redis) in self.redis.iter().enumerate() {
            let redis = lock(redis);
            let Some(hold) = redis.owner(key, wall(node)).and_then(&whose) else { continue };
            match found.iter_mut().find(|(of, _)| *of == hold) {
                Some((_, nodes)) => *nodes += 1,
                None => found.push((hold, 1)),
            }
        }
        found.into_iter().find(|(_, nodes)| *nodes > self.redis.len() / 2).map(|(hold, _)| hold)
    }

    /// The clock of a server is about to move, and shows `wall` now: what has run out by then is gone, and does not come back.
    pub fn clock_moves(&self, node: Process, wall: Duration) {
        if let Some(redis) = self.redis.get(node) {
            lock(redis).sweep(wall);
        }
    }
}

/// One Redis node, as a worker sees it: one connection, steps in the order in which they were sent.
pub(crate) struct RedisNode {
    pub world: Arc<World>,
    pub worker: Process,
    pub node: Process,
    pub name: String,
}

impl Node for RedisNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn send(&self, step: Step) -> Reply<Result<Answer, NodeError>> {
        let Self { worker, node, .. } = *self;
        if !self.world.is_connected(worker, node) {
            return Box::pin(std::future::ready(Err(NodeError::Definite("not connected".into()))));
        }
        self.world.asks(worker, acquires(&step));
        let asked = Arc::new(Asked { step, worker, node, slot: Local::default() });
        self.world.send_leg(worker, node, Leg::new(asked.clone()));
        Box::pin(Replied(asked))
    }
}

/// A step on its way to a Redis node, and its answer on the way back.
struct Asked {
    step: Step,
    worker: Process,
    node: Process,
    slot: Local<Slot<Answer>>,
}

impl Exchange<World> for Asked {
    fn arrive(self: Arc<Self>, world: &Arc<World>) {
        let Self { worker, node, .. } = *self;
        if lock(&self.slot).is_said() {
            return Slot::end(&self.slot);
        }
        let said = lock(&world.servers.redis[node]).apply(&self.step, world.wall(node));
        world.look_at_owners();
        lock(&self.slot).say(said);
        world.send_leg(node, worker, Leg::new(self));
    }

    fn lost(&self) {
        lock(&self.slot).forget();
        Slot::end(&self.slot);
    }
}

/// The answer to a step, for the client that waits for it.
struct Replied(Arc<Asked>);

impl Future for Replied {
    type Output = Result<Answer, NodeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = lock(&self.0.slot).poll(cx);
        answer.map_err(|Unanswered| NodeError::Indeterminate("connection lost".into()))
    }
}

impl Drop for Replied {
    fn drop(&mut self) {
        lock(&self.0.slot).leave();
    }
}

/// Whom a step may make the owner of its key.
fn acquires(step: &Step) -> Option<&Owner> {
    match step {
        Step::Acquire(_, owner, _) | Step::AcquireUncounted(_, owner, _) => Some(owner),
        _ => None,
    }
}

/// The resource, as a worker sees it.
pub(crate) struct RemoteResource {
    pub world: Arc<World>,
    pub worker: Process,
}

impl RemoteResource {
    fn ask(&self, request: Request) -> Access<'_, Admission> {
        Box::pin(async move {
            let (worker, resource) = (self.worker, self.world.resource());
            if !self.world.is_connected(worker, resource) {
                return Err(ClientError::Failed("connection refused".into()));
            }
            let (answering, answer) = answer();
            let serve = move |world: &Arc<World>| serve(world, worker, &request, answering);
            self.world.send(worker, resource, Box::new(serve));
            match answer.await {
                Ok(Ok(admission)) => Ok(admission),
                Ok(Err(refusal)) => Err(ClientError::Failed(refusal)),
                Err(_) => Err(ClientError::Indeterminate("connection lost".into())),
            }
        })
    }
}

/// Decides one request, and answers when the decision is on disk.
fn serve(world: &Arc<World>, worker: Process, request: &Request, answering: Answering<Result<Admission, String>>) {
    let (node, now) = (world.resource(), world.executor.now());
    let sync = world.draw(ResourceModel::SYNC);
    let (decided, durable) = lock(&world.servers.resource).decide(now, now.plus(sync), request);
    let mut is_early = false;
    let answer = match decided {
        Ok(admission) => {
            is_early = lock(&world.servers.resource).answers_early(&admission);
            // What comes again is answered again, and does nothing.
            if let Some(hold) = admission.hold.filter(|_| !admission.repeat) {
                let is_write = admission.kind == Kind::Write;
                world.acts(HoldId(hold.0), admission.key.as_str(), admission.number.0, is_write);
            }
            world.record(node, workloads::admission::event(&admission));
            Ok(admission)
        }
        Err(refusal) => Err(refusal.to_string()),
    };
    let reply = move |world: &Arc<World>| {
        world.send(node, worker, Box::new(move |_| answering.say(answer)));
    };
    if is_early {
        return reply(world);
    }
    let incarnation = world.node(node, |n| n.incarnation);
    let synced = move |world: &Arc<World>| {
        world.arrive(Packet { from: node, to: node, incarnation, load: Load::Call(Box::new(reply)) })
    };
    world.executor.at(durable, Box::new(synced));
}

fn asked(caller: &Caller, action: Action) -> Request {
    let Caller { key, hold, op, token } = caller.clone();
    Request { key, hold: Some(hold), op: Some(op), token, action }
}

fn read(admission: Admission) -> ReadAnswer {
    let Admission { number, token, arms, repeat, .. } = admission;
    let told = |arm: resource::ArmOutcome| {
        let seen = arm.highest(token);
        (arm.arm, ReadArm { value: arm.value, version: arm.version, seen })
    };
    ReadAnswer { number, repeat, arms: arms.into_iter().map(told).collect() }
}

impl workloads::ports::Resource for RemoteResource {
    fn read<'a>(&'a self, caller: &Caller) -> Access<'a, ReadAnswer> {
        let asking = self.ask(asked(caller, Action::Read));
        Box::pin(async move { asking.await.map(read) })
    }

    fn look<'a>(&'a self, key: &resource::Key) -> Access<'a, ReadAnswer> {
        let asking = self.ask(Request { key: key.clone(), hold: None, op: None, token: None, action: Action::Read });
        Box::pin(async move { asking.await.map(read) })
    }

    fn write<'a>(
        &'a self,
        caller: &Caller,
        values: &std::collections::BTreeMap<resource::Arm, (resource::Version, String)>,
    ) -> Access<'a, WriteAnswer> {
        let proposed = |(arm, (base, value)): (&resource::Arm, &(resource::Version, String))| {
            (*arm, Proposal { base: Some(*base), value: value.clone() })
        };
        let asking = self.ask(asked(caller, Action::Write(values.iter().map(proposed).collect())));
        Box::pin(async move {
            let admission = asking.await?;
            let arms =
                admission.arms.iter().map(|a| (a.arm, WriteArm { admitted: a.admitted, seen: a.seen })).collect();
            Ok(WriteAnswer { number: admission.number, repeat: admission.repeat, arms })
        })
    }
}

/// The policy of the resource that a plan asks for.
pub(crate) fn policy(plan: &Plan, bug: Option<&str>) -> Result<Policy, String> {
    let arms: Vec<resource::Arm> =
        plan.arms.iter().map(|a| a.name().parse()).collect::<Result<_, _>>().map_err(|e| format!("{e}"))?;
    let comparison = match plan.fence {
        history::Comparison::Default => resource::Comparison::Default,
        history::Comparison::Strict => resource::Comparison::Strict,
    };
    let planted = bug.map(|bug| Planted::from_name(bug, plan.seed)).transpose().map_err(|e| e.to_string())?;
    Ok(Policy::new(&arms, comparison).map_err(|e| e.to_string())?.with_planted(planted))
}

/// The resource has been started again over its store.
pub(crate) fn recovered(world: &Arc<World>) {
    let durable = lock(&world.servers.resource).restart();
    world.acts_undone(durable.0);
    world.record(world.resource(), Event::Recovered { durable: durable.0 });
}
