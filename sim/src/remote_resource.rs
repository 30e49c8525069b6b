//! The resource as the port for a worker, over links.

use std::{collections::BTreeMap, sync::Arc};

use history::{Arm, Deadline, Event, RequestKind, Version};
use resource::{Action, Admission, ClientError, Proposal, ReadAnswer, ReadArm, Request, WriteAnswer, WriteArm};
use workloads::ports::{Operation, Pending};

use crate::{
    executor::{Network, Packet, Payload, Process},
    reply::{ReplySender, reply_channel},
    resource_model::ResourceModel,
    thread_bound::lock,
    world::World,
};

/// The resource, as the port for a worker.
pub(crate) struct RemoteResource {
    pub world: Arc<World>,
    pub worker: Process,
}

impl RemoteResource {
    fn ask(&self, request: Request) -> Pending<'_, Admission> {
        Box::pin(async move {
            let (worker, resource) = (self.worker, self.world.resource());
            if !self.world.is_connected(worker, resource) {
                return Err(ClientError::Failed("connection refused".into()));
            }
            if let (Some(hold), Some(op)) = (request.hold, request.op) {
                self.world.leaves(
                    worker,
                    |open| open.is_invoked(hold, op),
                    || format!("operation {op} of hold {hold}"),
                );
            }
            let (sender, answer) = reply_channel();
            let copy = request.hold.zip(request.op).map(|(hold, op)| self.world.copies.sent(hold, op));
            let serve = move |world: &Arc<World>| {
                serve(world, worker, request, sender);
                drop(copy);
            };
            self.world.send(worker, resource, Box::new(serve));
            match answer.await {
                Ok(Ok(admission)) => Ok(admission),
                Ok(Err(refusal)) => Err(ClientError::Failed(refusal)),
                Err(_) => Err(ClientError::Indeterminate("connection lost".into())),
            }
        })
    }
}

/// Decides one request, and answers once the decision is on disk.
fn serve(world: &Arc<World>, worker: Process, mut request: Request, sender: ReplySender<Result<Admission, String>>) {
    let (node, now) = (world.resource(), world.executor.now());
    let sync = world.draw(ResourceModel::SYNC);
    if let Some(deadline) = &mut request.deadline {
        deadline.read_us = u64::try_from(world.wall(node).as_micros()).unwrap_or(u64::MAX);
    }
    let (decided, durable) = lock(&world.servers.resource).decide(now, now.plus(sync), &request);
    let mut is_early = false;
    let answer = match decided {
        Ok(admission) => {
            is_early = lock(&world.servers.resource).answers_early(&admission);
            // A repeated request is answered again and has no effect.
            if let Some(hold) = admission.hold.filter(|_| !admission.repeat) {
                let is_write = admission.kind == RequestKind::Write;
                world.acts(hold, admission.number.0, is_write);
            }
            world.record(node, workloads::admission::event(&admission));
            Ok(lock(&world.servers.resource).told(admission))
        }
        Err(refusal) => Err(refusal.to_string()),
    };
    let reply = move |world: &Arc<World>| {
        world.send(node, worker, Box::new(move |_| sender.say(answer)));
    };
    if is_early {
        return reply(world);
    }
    let incarnation = world.node(node, |n| n.incarnation);
    let synced = move |world: &Arc<World>| {
        world.arrive(Packet { from: node, to: node, incarnation, payload: Payload::Call(Box::new(reply)) })
    };
    world.executor.at(durable, Box::new(synced));
}

fn asked(operation: &Operation, action: Action) -> Request {
    let Operation { key, hold, op, token, deadline_us } = operation.clone();
    // The clock is read when the request is decided.
    let deadline = deadline_us.map(|until_us| Deadline { until_us, read_us: 0 });
    Request { key, hold: Some(hold), op: Some(op), token, deadline, action }
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
    fn read<'a>(&'a self, operation: &Operation) -> Pending<'a, ReadAnswer> {
        let asking = self.ask(asked(operation, Action::Read));
        Box::pin(async move { asking.await.map(read) })
    }

    fn final_read<'a>(&'a self, key: &history::Key) -> Pending<'a, ReadAnswer> {
        let (key, action) = (key.clone(), Action::Read);
        let asking = self.ask(Request { key, hold: None, op: None, token: None, deadline: None, action });
        Box::pin(async move { asking.await.map(read) })
    }

    fn write<'a>(
        &'a self,
        operation: &Operation,
        values: &BTreeMap<Arm, (Version, String)>,
    ) -> Pending<'a, WriteAnswer> {
        let proposed = |(arm, (base, value)): (&Arm, &(Version, String))| {
            (*arm, Proposal { base: Some(*base), value: value.clone() })
        };
        let asking = self.ask(asked(operation, Action::Write(values.iter().map(proposed).collect())));
        Box::pin(async move {
            let admission = asking.await?;
            let arms =
                admission.arms.iter().map(|a| (a.arm, WriteArm { admitted: a.admitted, seen: a.seen })).collect();
            Ok(WriteAnswer { number: admission.number, repeat: admission.repeat, arms, contrary: None })
        })
    }
}

/// Restarts the resource over its store.
pub(crate) fn recovered(world: &Arc<World>) {
    let durable = lock(&world.servers.resource).restart();
    world.acts_undone(durable.0);
    world.record(world.resource(), Event::Recovered { durable: durable.0 });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use history::{ClientId, ClockChange, Comparison, HoldId, Key, Mode, OpId, WhichClock};
    use resource::Policy;
    use workloads::ports::Resource;

    use super::*;
    use crate::{
        clock::START,
        reply::{NoReply, ReplyReceiver},
        world::tests::{REDIS, run_for, world},
    };

    const HOLD: HoldId = HoldId(1);

    /// Lets a read of the hold arrive at the resource.
    fn arrives(world: &Arc<World>, op: u64) -> ReplyReceiver<Result<Admission, String>> {
        let (key, hold, op) = (Key::numbered(0), Some(HOLD), Some(OpId(op)));
        let request = Request { key, hold, op, token: None, deadline: None, action: Action::Read };
        let (sender, answer) = reply_channel();
        serve(world, world.worker(0), request, sender);
        answer
    }

    #[test]
    fn nothing_is_answered_that_a_kill_could_still_lose() {
        let world = world(1, REDIS);
        let answer = arrives(&world, 1);
        world.kill(world.resource());
        run_for(&world, Duration::from_millis(10));
        assert!(matches!(answer.now_or_never(), Some(Err(NoReply))));
    }

    #[test]
    fn the_truth_has_each_act_on_the_disk_once() {
        let world = world(1, REDIS);
        let (client, key, mode) = (ClientId(0), Key::numbered(0), Mode::Write);
        let acquire = Event::Acquire { client, attempt: HOLD, key, intended: START, mode, above: None };
        world.record(world.worker(0), acquire);
        let answers = [1, 1].map(|op| arrives(&world, op));
        run_for(&world, Duration::from_millis(10));
        let repeats = answers.map(|answer| answer.now_or_never().unwrap().unwrap().unwrap().repeat);
        assert_eq!(repeats, [false, true]);
        // This act is not on the disk yet.
        drop(arrives(&world, 2));
        let numbers = || world.truth().unwrap().acts.iter().map(|act| act.number).collect::<Vec<_>>();
        assert_eq!(numbers().len(), 2);
        world.kill(world.resource());
        recovered(&world);
        assert_eq!(numbers(), [1]);
    }

    #[test]
    fn a_deadline_is_compared_with_the_clock_of_the_resource() {
        for (of_worker, of_resource, admitted) in [(0, 0, true), (5_000, 0, true), (0, 5_000, false)] {
            let world = world(1, REDIS);
            let policy = Policy::new(&[Arm::Deadline], Comparison::Default).unwrap();
            *lock(&world.servers.resource) = ResourceModel::new(policy, None, true);
            let until = world.wall(world.resource()) + Duration::from_secs(1);
            for (node, ahead_ms) in [(world.worker(0), of_worker), (world.resource(), of_resource)] {
                world.move_clock(node, WhichClock::Wall, ClockChange::JumpMs(ahead_ms));
            }
            let deadline = Some(Deadline { until_us: u64::try_from(until.as_micros()).unwrap(), read_us: 0 });
            let action = Action::Write([(Arm::Deadline, Proposal { base: None, value: "1".into() })].into());
            let (key, hold, op) = (Key::numbered(0), Some(HOLD), Some(OpId(1)));
            let (sender, answer) = reply_channel();
            serve(&world, world.worker(0), Request { key, hold, op, token: None, deadline, action }, sender);
            run_for(&world, Duration::from_millis(10));
            let admission = answer.now_or_never().unwrap().unwrap().unwrap();
            assert_eq!(admission.arms[0].admitted, admitted, "ahead by {of_worker} and {of_resource} ms");
        }
    }

    #[test]
    fn a_request_without_an_answer_may_have_been_applied_but_not_one_that_never_left() {
        let world = world(1, REDIS);
        let remote = RemoteResource { world: world.clone(), worker: world.worker(0) };
        let operation = Operation { key: Key::numbered(0), hold: HOLD, op: OpId(1), token: None, deadline_us: None };
        let mut lost = remote.read(&operation);
        assert!(lost.as_mut().now_or_never().is_none());
        world.kill(world.resource());
        run_for(&world, Duration::from_millis(10));
        assert!(matches!(lost.now_or_never(), Some(Err(ClientError::Indeterminate(_)))));
        assert!(matches!(remote.read(&operation).now_or_never(), Some(Err(ClientError::Failed(_)))));
    }
}
