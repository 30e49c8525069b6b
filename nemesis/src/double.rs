//! A cluster and its clients for tests of faults.

use std::{future::ready, time::Duration};

use history::{
    ClientId, ClockChange, Event, Fault, FaultId, FaultPhase, HoldId, Key, Mode, NodeName, Plan, Point, ProcessName,
    Record, Role, Stamp, Step, WhichClock, fault::Data,
};

use crate::{AnswerTime, Cluster, ClusterError, Control, LiveView, cluster::Doing, injection::Injection};

/// The phase of an event about a fault. Any other event fails the test.
pub fn phase_of(event: Event) -> FaultPhase {
    match event {
        Event::Fault { phase, .. } => phase,
        other => unreachable!("{other:?}"),
    }
}

/// The answers of a test. A call without an answer fails the test.
pub trait Answers: Send + Sync {
    fn freeze(&self) -> Result<(), ClusterError> {
        unexpected("freezing")
    }

    fn thaw(&self) {
        unexpected("thawing")
    }

    fn kill(&self) {
        unexpected("killing")
    }

    /// Returns the reason why the engine refuses a kill; none, if it carries the kill out.
    fn refuses_kill(&self) -> Option<&'static str> {
        None
    }

    fn start(&self) {
        unexpected("starting")
    }

    fn is_running(&self) -> bool {
        unexpected("looking for a running node")
    }

    fn pending_fsyncs(&self) -> Option<u32> {
        unexpected("asking for pending fsyncs")
    }

    fn leave_marker(&self) -> Result<bool, ClusterError> {
        Ok(false)
    }

    fn take_marker(&self) -> bool {
        unexpected("looking for a marker")
    }

    fn leader(&self) -> Option<NodeName> {
        unexpected("looking for a leader")
    }

    fn set_slow(&self, _is_slow: bool) {
        unexpected("setting a quota")
    }

    fn answer_time(&self) -> AnswerTime {
        unexpected("measuring an answer")
    }

    fn held_back(&self) -> Option<Duration> {
        None
    }

    fn answers(&self) -> bool {
        unexpected("asking a server")
    }

    fn inject_links(&self, _node: &NodeName) -> Result<(), ClusterError> {
        unexpected("injecting a fault of links")
    }

    fn heal_links(&self) -> Result<(), ClusterError> {
        unexpected("healing a fault of links")
    }

    fn probe(&self, to: &NodeName) -> Result<Option<Duration>, ClusterError> {
        Ok(self.latency(to))
    }

    fn latency(&self, _to: &NodeName) -> Option<Duration> {
        unexpected("probing a link")
    }

    fn stale_connections(&self, _node: &NodeName, _peers: &[NodeName]) -> u32 {
        unexpected("counting silent connections")
    }

    fn reset_connections(&self) -> u32 {
        unexpected("resetting silent connections")
    }

    fn set_clock(&self, _change: ClockChange) {
        unexpected("setting a clock")
    }

    fn remove_clock_patch(&self) {
        unexpected("restoring the code of the clocks")
    }

    fn clock_ahead_ns(&self) -> i64 {
        unexpected("reading a clock")
    }

    fn told_ahead_ns(&self) -> Option<(i64, i64)> {
        None
    }

    fn stamp(&self, _event: Event) -> Stamp {
        unexpected("recording an event")
    }

    fn arm(&self) {
        unexpected("arming a client")
    }

    fn let_go(&self) {
        unexpected("letting a client go")
    }

    /// Returns the reason why the order to let a client go does not reach the client; none, if it does.
    fn refuses_to_let_go(&self) -> Option<&'static str> {
        None
    }

    fn sleep(&self, _lasting: Duration) {
        unexpected("waiting")
    }
}

/// The answers of a test that expects no call.
impl Answers for () {}

fn unexpected<T>(doing: &str) -> T {
    unreachable!("this test does not expect {doing}")
}

fn done<'a, T: Send + 'a>(done: T) -> Doing<'a, T> {
    Box::pin(ready(Ok(done)))
}

/// The two ports, with the answers of a test.
#[derive(Default)]
pub struct Double<A>(pub A);

impl<A> Double<A> {
    /// Injects the step through the ports at its target, which has this name.
    pub fn injection<'a>(
        &'a self,
        live_view: &'a LiveView,
        plan: &'a Plan,
        step: &'a Step,
        node: NodeName,
    ) -> Injection<'a>
    where
        A: Answers,
    {
        let is_server = plan.lock_nodes.contains(&node);
        let (hold, waiting, gate) = (None, None, None);
        Injection { cluster: self, control: self, live_view, plan, step, node, is_server, hold, waiting, gate }
    }
}

impl<A: Answers> Cluster for Double<A> {
    fn freeze<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(ready(self.0.freeze()))
    }

    fn thaw<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        self.0.thaw();
        done(())
    }

    fn is_frozen<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(false)
    }

    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        if let Some(why) = self.0.refuses_kill() {
            let error = ClusterError { node: node.clone(), doing: "killing", why: why.into() };
            return Box::pin(ready(Err(error)));
        }
        self.0.kill();
        done(())
    }

    fn start<'a>(&'a self, _: &'a NodeName, _: Data) -> Doing<'a, ()> {
        self.0.start();
        done(())
    }

    fn is_running<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(self.0.is_running())
    }

    fn pending_fsyncs<'a>(&'a self, _: &'a NodeName) -> Doing<'a, Option<u32>> {
        done(self.0.pending_fsyncs())
    }

    fn leave_marker<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(ready(self.0.leave_marker()))
    }

    fn take_marker<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(self.0.take_marker())
    }

    fn leader(&self) -> Doing<'_, Option<NodeName>> {
        done(self.0.leader())
    }

    fn slow_down<'a>(&'a self, _: &'a NodeName, _: u8) -> Doing<'a, ()> {
        self.0.set_slow(true);
        done(())
    }

    fn speed_up<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        self.0.set_slow(false);
        done(())
    }

    fn answer_time<'a>(&'a self, _: &'a NodeName) -> Doing<'a, AnswerTime> {
        done(self.0.answer_time())
    }

    fn held_back<'a>(&'a self, _: &'a NodeName) -> Doing<'a, Option<Duration>> {
        done(self.0.held_back())
    }

    fn answers<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(self.0.answers())
    }

    fn inject_links<'a>(&'a self, node: &'a NodeName, _: FaultId, _: &'a Fault) -> Doing<'a, ()> {
        Box::pin(ready(self.0.inject_links(node)))
    }

    fn heal_links<'a>(&'a self, _: &'a NodeName, _: FaultId) -> Doing<'a, ()> {
        Box::pin(ready(self.0.heal_links()))
    }

    fn latency<'a>(&'a self, _: &'a NodeName, to: &'a NodeName) -> Doing<'a, Option<Duration>> {
        Box::pin(ready(self.0.probe(to)))
    }

    fn stale_connections<'a>(&'a self, node: &'a NodeName, peers: &'a [NodeName], reset: bool) -> Doing<'a, u32> {
        done(if reset { self.0.reset_connections() } else { self.0.stale_connections(node, peers) })
    }

    fn set_clock<'a>(&'a self, _: &'a NodeName, _: WhichClock, change: ClockChange) -> Doing<'a, ()> {
        self.0.set_clock(change);
        done(())
    }

    fn remove_clock_patch<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        self.0.remove_clock_patch();
        done(())
    }

    fn clock_ahead_ns<'a>(&'a self, _: &'a NodeName, _: WhichClock) -> Doing<'a, i64> {
        done(self.0.clock_ahead_ns())
    }

    fn told_ahead_ns<'a>(&'a self, _: &'a NodeName) -> Doing<'a, Option<(i64, i64)>> {
        done(self.0.told_ahead_ns())
    }
}

impl<A: Answers> Control for Double<A> {
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp> {
        done(self.0.stamp(event))
    }

    fn arm<'a>(&'a self, _: ClientId, _: Point, _: Duration) -> Doing<'a, ()> {
        self.0.arm();
        done(())
    }

    fn let_go<'a>(&'a self, _: ClientId) -> Doing<'a, ()> {
        self.0.let_go();
        if let Some(why) = self.0.refuses_to_let_go() {
            let error = ClusterError { node: "worker-1".into(), doing: "letting a client go", why: why.into() };
            return Box::pin(ready(Err(error)));
        }
        done(())
    }

    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
        self.0.sleep(lasting);
        done(())
    }
}

/// Shows an event to the live view.
pub fn sees(live_view: &LiveView, process: &str, at: Stamp, event: Event) {
    live_view.see(&Record { seq: 0, process: ProcessName::new(process), n: 0, at, event });
}

/// Shows the live view that a process starts.
pub fn starts(live_view: &LiveView, process: &str, at: Stamp) {
    let event = Event::Started { role: Role::Worker, boot_id: "b".into(), time_namespace: 1 };
    sees(live_view, process, at, event);
}

/// Shows the live view that a client of `process` acquires the lock under this hold.
pub fn acquires(live_view: &LiveView, process: &str, at: Stamp, hold: HoldId) {
    let (client, key, mode) = (ClientId(0), Key::numbered(0), Mode::Write);
    let acquire = Event::Acquire { client, attempt: hold, key, intended: at, mode, above: None };
    let acquired = Event::Acquired {
        attempt: hold,
        token: None,
        lease_ns: 1,
        granted_after: at,
        promised_from: None,
        place: None,
        valid_ns: 1,
        answers: Vec::new(),
    };
    for event in [acquire, acquired] {
        sees(live_view, process, at, event);
    }
}
