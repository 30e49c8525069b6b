//! The service around the rule: fixes the order of decisions, and when an answer may leave.
//!
//! One lock covers a whole decision: the rule, the observer, and the place in the queue to the disk. So the observer
//! sees the admission order, and no answer leaves before all earlier decisions are on disk.

use std::sync::Mutex;

use tokio::sync::{mpsc, oneshot};

use crate::admission::Admission;
use crate::asked::Asker;
use crate::decide::State;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::moment::{Moment, Observer, Undecided, WallClock, read_clock};
use crate::policy::Policy;
use crate::request::Request;
use crate::store::{Change, Entry};

/// The state that all connections share.
pub(crate) struct Shared {
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    decider: Decider,
}

/// The place in which requests are decided.
enum Decider {
    /// This process.
    Rule(Mutex<Rule>),
    /// A store outside this process.
    Store(Asker),
}

/// The parts of a decision of this process, under one lock.
struct Rule {
    state: State,
    observer: Observer,
    clock: WallClock,
    queue: mpsc::Sender<Entry>,
}

impl Shared {
    /// Decides from `state` on. Each decision goes to `observer`, and to `queue`, from which the store writes it.
    pub(crate) fn new(
        policy: Policy,
        limits: Limits,
        state: State,
        observer: Observer,
        clock: WallClock,
        queue: mpsc::Sender<Entry>,
    ) -> Shared {
        let decider = Decider::Rule(Mutex::new(Rule { state, observer, clock, queue }));
        Shared { policy, limits, metrics: Metrics::default(), decider }
    }

    /// Lets a store outside this process decide.
    pub(crate) fn over_store(policy: Policy, limits: Limits, store: Asker) -> Shared {
        Shared { policy, limits, metrics: Metrics::default(), decider: Decider::Store(store) }
    }

    /// Decides `request` and waits until all that its answer shows is on disk.
    pub(crate) async fn admit(&self, request: Request) -> Result<Admission, Undecided> {
        let rule = match &self.decider {
            Decider::Rule(rule) => rule,
            Decider::Store(store) => {
                let admission = store.admit(request).await?;
                self.metrics.decided(&admission);
                return Ok(admission);
            }
        };
        let (admission, durable) = self.decide(rule, request)?;
        if !self.policy.bug().is_some_and(|bug| bug.answers_before_durable(&admission)) {
            durable.await.map_err(|_| Undecided::Broken)?;
        }
        Ok(self.policy.told(admission))
    }

    fn decide(
        &self,
        rule: &Mutex<Rule>,
        mut request: Request,
    ) -> Result<(Admission, oneshot::Receiver<()>), Undecided> {
        // Poisoned: the observer panicked after a decision that was not written.
        let mut rule = rule.lock().map_err(|_| Undecided::Broken)?;
        let Rule { state, observer, clock, queue } = &mut *rule;
        // Reserve the place in the queue first: every decision must be written.
        let place = queue.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => Undecided::Overloaded,
            mpsc::error::TrySendError::Closed(()) => Undecided::Broken,
        })?;
        read_clock(*clock, &mut request);
        let admission = state.decide(&self.policy, &request)?;
        observer(Moment::Decided(&admission));
        self.metrics.decided(&admission);
        let (durable, written) = oneshot::channel();
        place.send(Entry { change: Change::of(state, &admission), durable });
        Ok((admission, written))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use futures::FutureExt;
    use history::{Arm, Comparison, HoldId, Key, OpId, Token};

    use super::*;
    use crate::{Action, PlantedBug, Proposal};

    #[test]
    fn only_the_planted_bug_answers_before_the_disk_has_the_decision() {
        let proposals = BTreeMap::from([(Arm::Reads, Proposal { base: None, value: "v".to_owned() })]);
        let request = |token, op, action| Request {
            key: Key::new("k"),
            hold: Some(HoldId(1)),
            op,
            token: Some(Token(token)),
            deadline: None,
            action,
        };
        // The last one arrives again.
        let write = request(2, Some(OpId(1)), Action::Write(proposals));
        let requests = [request(1, None, Action::Read), request(1, None, Action::Read), write.clone(), write];
        for (planted, answered) in
            [(None, [false; 4]), (Some(PlantedBug::AnswersBeforeDurable), [true, false, false, false])]
        {
            // A disk that never writes.
            let (queue, _never_read) = mpsc::channel(8);
            let policy = Policy::new(&[Arm::Reads], Comparison::Default).unwrap().with_bug(planted);
            let shared =
                Shared::new(policy, Limits::default(), State::default(), Box::new(|_| {}), || Duration::ZERO, queue);
            let answers = requests.clone().map(|request| shared.admit(request).now_or_never().is_some());
            assert_eq!(answers, answered, "{planted:?}");
        }
    }

    #[test]
    fn a_decision_is_observed_before_it_goes_to_the_disk() {
        let (queue, mut entries) = mpsc::channel::<Entry>(8);
        let is_queued = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&is_queued);
        let observer = Box::new(move |_: Moment<'_>| noted.lock().unwrap().push(entries.try_recv().is_ok()));
        let policy = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
        let shared = Shared::new(policy, Limits::default(), State::default(), observer, || Duration::ZERO, queue);
        let (key, action) = (Key::new("k"), Action::Read);
        let read = Request { key, hold: None, op: None, token: None, deadline: None, action };
        for _ in 0..2 {
            assert!(shared.admit(read.clone()).now_or_never().is_none(), "the disk never writes");
        }
        assert_eq!(*is_queued.lock().unwrap(), [false, true], "the second decision finds the first one in the queue");
    }

    #[test]
    fn a_request_without_a_place_in_the_queue_is_not_decided() {
        let (queue, mut entries) = mpsc::channel::<Entry>(1);
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&numbers);
        let observer = Box::new(move |moment: Moment<'_>| {
            if let Moment::Decided(admission) = moment {
                noted.lock().unwrap().push(admission.number.0);
            }
        });
        let policy = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
        let shared = Shared::new(policy, Limits::default(), State::default(), observer, || Duration::ZERO, queue);
        let (key, action) = (Key::new("k"), Action::Read);
        let read = Request { key, hold: None, op: None, token: None, deadline: None, action };
        let admit = || shared.admit(read.clone()).now_or_never();
        assert!(admit().is_none(), "the disk never writes");
        assert!(matches!(admit(), Some(Err(Undecided::Overloaded))));
        entries.try_recv().unwrap();
        assert!(admit().is_none());
        entries.close();
        assert!(matches!(admit(), Some(Err(Undecided::Broken))));
        assert_eq!(*numbers.lock().unwrap(), [1, 2]);
    }
}
