//! One exchange with all nodes: the client queues all requests, then reads answers until they decide the round.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    hold::{Failure, FailureReason, NodeAnswer, NodeAnswers, NodeName, Outcome, Token},
    ports::{Clock, Node, NodeError, Reply, Round, Step, StepAnswer, Watch},
};

/// The time for which a round still reads after its timer has fired.
///
/// A process that was frozen wakes up with its answers *and* its timer due. The answers come first, but they must pass
/// through the connection's task before the client can read them.
const GRACE: Duration = Duration::from_millis(2);

/// The outcome of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundOutcome {
    /// Enough nodes did the step.
    Majority,
    /// So many nodes did not do the step that a majority has become impossible.
    Impossible,
    /// The round was not decided in time.
    TimedOut,
}

/// The end of a round's reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// A majority did the step, or has become impossible.
    Decided,
    /// A majority answered anything.
    Heard,
}

#[derive(Debug)]
enum Heard {
    Nothing,
    Yes(Option<Token>),
    No,
    Error(NodeError),
}

/// Wakes the reader of a round when enough answers have come that they may decide the round. Each wake polls a deep
/// stack of futures, so waking at every answer would cost too much.
#[derive(Default)]
struct ReadWaker {
    /// The number of answers until the next wake. At 0 each answer wakes the reader.
    missing: AtomicUsize,
    reader: Mutex<Option<Waker>>,
}

impl ReadWaker {
    /// Lets every answer wake `reader`, until the reader calls [`ReadWaker::waits_for`]. So the reader misses no answer
    /// that comes in between.
    fn listens(&self, reader: &Waker) {
        self.missing.store(0, Ordering::SeqCst);
        let mut known = self.reader.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(reader)) {
            *known = Some(reader.clone());
        }
    }

    /// Wakes the reader only after so many answers more.
    fn waits_for(&self, answers: usize) {
        self.missing.store(answers, Ordering::SeqCst);
    }
}

impl Wake for ReadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut missing = self.missing.load(Ordering::SeqCst);
        while missing > 0 {
            match self.missing.compare_exchange(missing, missing - 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => missing = now,
            }
        }
        if missing > 1 {
            return;
        }
        let reader = self.reader.lock().clone();
        reader.inspect(Waker::wake_by_ref);
    }
}

/// A round whose requests are queued.
pub(crate) struct RoundInFlight {
    /// The sending, in the client's own clock, which was read before the first request was queued.
    pub(crate) sent: Duration,
    round: Round,
    /// The number of nodes that is enough.
    majority: usize,
    asked: Vec<Asked>,
}

/// One node of a round.
struct Asked {
    /// None once the answer was read.
    reply: Option<Reply<Result<StepAnswer, NodeError>>>,
    heard: Heard,
}

impl RoundInFlight {
    /// Queues `step` on every node before it awaits anything, then lets `watch` wait. `sent` is the clock's reading
    /// just before this call.
    ///
    /// So a frozen node costs no time, all nodes get the request at about the same time, and each node gets the steps
    /// of this client in the order of the client's rounds.
    pub(crate) async fn send(
        nodes: &[Arc<dyn Node>],
        sent: Duration,
        watch: &dyn Watch,
        round: Round,
        step: &Step,
        majority: usize,
    ) -> Self {
        watch.sending(round);
        let ask = |node: &Arc<dyn Node>| Asked { reply: Some(node.send(step.clone())), heard: Heard::Nothing };
        let asked = nodes.iter().map(ask).collect();
        watch.sent(round).await;
        Self { sent, round, majority, asked }
    }

    /// Reads answers until the round is over, at most for `timeout` from now on.
    ///
    /// The timeout does not count from the sending, because a watch may have waited in between. The promise does.
    pub(crate) async fn read(&mut self, clock: &dyn Clock, timeout: Duration, until: Until) -> RoundOutcome {
        let mut timer = clock.sleep_until(clock.now().saturating_add(timeout));
        let mut has_grace = false;
        let waking = Arc::<ReadWaker>::default();
        let waker = Waker::from(waking.clone());
        poll_fn(|cx| {
            loop {
                waking.listens(cx.waker());
                // Answers come before the timer: after a freeze both are due, and the answers were in time.
                self.listen(&mut Context::from_waker(&waker));
                match self.outcome(until) {
                    Ok(outcome) => {
                        // Later answers are not read.
                        waking.waits_for(usize::MAX);
                        return Poll::Ready(outcome);
                    }
                    Err(missing) => waking.waits_for(missing),
                }
                match timer.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) if has_grace => return Poll::Ready(RoundOutcome::TimedOut),
                    Poll::Ready(()) => {
                        has_grace = true;
                        timer = clock.sleep_until(clock.now().saturating_add(GRACE));
                    }
                }
            }
        })
        .await
    }

    /// Reads all answers that have arrived, in the order of the nodes.
    fn listen(&mut self, cx: &mut Context<'_>) {
        for asked in &mut self.asked {
            let Some(waiting) = &mut asked.reply else { continue };
            if let Poll::Ready(answer) = waiting.as_mut().poll(cx) {
                asked.reply = None;
                asked.heard = match answer {
                    Ok(StepAnswer::Granted(token)) => Heard::Yes(Some(token)),
                    Ok(StepAnswer::Done) => Heard::Yes(None),
                    Ok(StepAnswer::Refused) => Heard::No,
                    Err(error) => Heard::Error(error),
                };
            }
        }
    }

    /// The outcome, or the least number of answers that is still needed for one.
    fn outcome(&self, until: Until) -> Result<RoundOutcome, usize> {
        let majority = self.majority;
        let silent = self.count(|heard| matches!(heard, Heard::Nothing));
        let yes = self.count(|heard| matches!(heard, Heard::Yes(_)));
        let answered = self.asked.len() - silent;
        match until {
            Until::Heard if answered >= majority => Ok(RoundOutcome::Majority),
            Until::Heard => Err(majority - answered),
            Until::Decided if yes >= majority => Ok(RoundOutcome::Majority),
            Until::Decided if yes + silent < majority => Ok(RoundOutcome::Impossible),
            Until::Decided => Err((majority - yes).min(yes + silent - majority + 1)),
        }
    }

    fn count(&self, which: impl Fn(&Heard) -> bool) -> usize {
        self.heard().filter(|heard| which(heard)).count()
    }

    fn heard(&self) -> impl Iterator<Item = &Heard> {
        self.asked.iter().map(|asked| &asked.heard)
    }

    /// Returns whether refusals alone make a majority impossible.
    pub(crate) fn is_refused(&self) -> bool {
        self.forbids(self.count(|heard| matches!(heard, Heard::No)))
    }

    /// The failure of a round without a majority. Its reason is `refused` if refusals alone explain it.
    ///
    /// The failure is definite only if a majority certainly did not do the step, because of refusals and of steps that
    /// never left. A silent node, or a node whose connection broke, may have done the step.
    pub(crate) fn failure(&self, names: &[NodeName], refused: FailureReason) -> Failure {
        let certainly_not = self.count(|heard| matches!(heard, Heard::No | Heard::Error(NodeError::Definite(_))));
        let outcome = if self.forbids(certainly_not) { Outcome::Failed } else { Outcome::Indeterminate };
        let reason = match self.asked.as_slice() {
            _ if self.is_refused() => refused,
            [Asked { heard: Heard::Error(error), .. }] => FailureReason::Error(format!("{}: {error}", names[0])),
            [Asked { heard: Heard::Nothing, .. }] => FailureReason::Error(format!("{}: no answer in time", names[0])),
            _ => FailureReason::NoMajority,
        };
        Failure { reason, outcome, answers: self.answers(names) }
    }

    /// The failure of a round whose promise had ended when the client judged its majority. The failure is definite: the
    /// grant is over, and the client has told no caller of it.
    pub(crate) fn refused_by_validity(&self, names: &[NodeName]) -> Failure {
        let answers = self.named(names, |heard| match heard {
            Heard::Yes(_) => NodeAnswer::Late,
            other => answer(self.round, other),
        });
        Failure { reason: FailureReason::Validity, outcome: Outcome::Failed, answers }
    }

    fn forbids(&self, against: usize) -> bool {
        against > self.asked.len() - self.majority
    }

    /// The largest counter of the nodes that did the step.
    pub(crate) fn largest_token(&self) -> Option<Token> {
        self.heard().filter_map(|heard| if let Heard::Yes(token) = heard { *token } else { None }).max()
    }

    /// Returns whether enough nodes have given this very counter.
    pub(crate) fn is_agreed(&self, token: Token) -> bool {
        self.count(|heard| matches!(heard, Heard::Yes(Some(given)) if *given == token)) >= self.majority
    }

    /// The answer of each node.
    pub(crate) fn answers(&self, names: &[NodeName]) -> NodeAnswers {
        self.named(names, |heard| answer(self.round, heard))
    }

    fn named(&self, names: &[NodeName], answer: impl Fn(&Heard) -> NodeAnswer) -> NodeAnswers {
        names.iter().cloned().zip(self.heard().map(answer)).collect()
    }
}

fn answer(round: Round, heard: &Heard) -> NodeAnswer {
    match heard {
        Heard::Yes(_) if round == Round::Acquire => NodeAnswer::Granted,
        Heard::Yes(_) => NodeAnswer::Done,
        Heard::No => NodeAnswer::Refused,
        Heard::Nothing | Heard::Error(_) => NodeAnswer::None,
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, sync::atomic::AtomicU32};

    use tokio::sync::oneshot;

    use super::*;
    use crate::{clock::BootClock, ports::Unwatched};

    /// Longer than any test: nothing but answers ends a round.
    const FOREVER: Duration = Duration::from_secs(3_600);

    type Answering = oneshot::Sender<StepAnswer>;

    /// A node that answers when a test tells it to.
    #[derive(Default)]
    struct Told(Mutex<Option<Answering>>);

    impl Node for Told {
        fn name(&self) -> &str {
            "told"
        }

        fn send(&self, _step: Step) -> Reply<Result<StepAnswer, NodeError>> {
            let (answering, answer) = oneshot::channel();
            *self.0.lock() = Some(answering);
            Box::pin(async move { answer.await.map_err(|_| NodeError::Indeterminate("gone".into())) })
        }
    }

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn asked() -> (RoundInFlight, Vec<Answering>) {
        let told: Vec<Arc<Told>> = (0..5).map(|_| Arc::default()).collect();
        let nodes: Vec<Arc<dyn Node>> = told.iter().map(|node| node.clone() as Arc<dyn Node>).collect();
        let step = Step::Release(crate::Key::new("k0"), crate::Owner::new("a"));
        let asked = RoundInFlight::send(&nodes, BootClock.now(), &Unwatched, Round::Acquire, &step, 3).await;
        (asked, told.iter().map(|node| node.0.lock().take().unwrap()).collect())
    }

    /// The number of wakes after each answer, and the reader's state after the last.
    async fn wakes(until: Until, answers: &[StepAnswer]) -> (Vec<u32>, Poll<RoundOutcome>) {
        let (mut asked, nodes) = asked().await;
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(woken.clone());
        let mut reading = pin!(asked.read(&BootClock, FOREVER, until));
        let mut poll = reading.as_mut().poll(&mut Context::from_waker(&waker));
        let mut wakes = Vec::new();
        for (node, answer) in nodes.into_iter().zip(answers) {
            let before = woken.0.load(Ordering::SeqCst);
            node.send(*answer).unwrap();
            wakes.push(woken.0.load(Ordering::SeqCst));
            if wakes.last() != Some(&before) {
                poll = reading.as_mut().poll(&mut Context::from_waker(&waker));
            }
        }
        (wakes, poll)
    }

    #[tokio::test]
    async fn a_reader_is_woken_only_when_answers_may_decide_the_round() {
        use StepAnswer::{Done, Refused};
        let majority = Poll::Ready(RoundOutcome::Majority);
        assert_eq!(wakes(Until::Decided, &[Done, Done, Done]).await, (vec![0, 0, 1], majority));
        let impossible = Poll::Ready(RoundOutcome::Impossible);
        assert_eq!(wakes(Until::Decided, &[Refused, Refused, Refused]).await, (vec![0, 0, 1], impossible));
        // Three answers might have decided the round; one more does.
        assert_eq!(wakes(Until::Decided, &[Done, Refused, Refused]).await, (vec![0, 0, 1], Poll::Pending));
        assert_eq!(wakes(Until::Decided, &[Done, Refused, Refused, Refused]).await, (vec![0, 0, 1, 2], impossible));
        assert_eq!(wakes(Until::Decided, &[Refused, Done, Done, Refused, Done]).await, (vec![0, 0, 1, 2, 3], majority));
        assert_eq!(wakes(Until::Heard, &[Refused, Done, Refused]).await, (vec![0, 0, 1], majority));
    }

    #[tokio::test]
    async fn answers_after_the_decision_wake_no_reader() {
        let (mut asked, mut nodes) = asked().await;
        let woken = Arc::<Woken>::default();
        let late = nodes.split_off(3);
        nodes.into_iter().for_each(|node| node.send(StepAnswer::Done).unwrap());
        let waker = Waker::from(woken.clone());
        let poll = pin!(asked.read(&BootClock, FOREVER, Until::Decided)).poll(&mut Context::from_waker(&waker));
        assert_eq!(poll, Poll::Ready(RoundOutcome::Majority));
        late.into_iter().for_each(|node| node.send(StepAnswer::Done).unwrap());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    }

    /// The reader misses no answer that comes while it reads.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answers_from_other_threads_always_end_a_round() {
        for i in 0..2_000 {
            let (mut asked, nodes) = asked().await;
            let answering = tokio::task::spawn_blocking(move || {
                for (n, node) in nodes.into_iter().enumerate() {
                    let answer = if (i + n) % 2 == 0 { StepAnswer::Done } else { StepAnswer::Refused };
                    node.send(answer).ok();
                }
            });
            let read = asked.read(&BootClock, FOREVER, Until::Decided);
            let decision = tokio::time::timeout(Duration::from_secs(10), read).await;
            let expected = if i % 2 == 0 { RoundOutcome::Majority } else { RoundOutcome::Impossible };
            assert_eq!(decision, Ok(expected), "round {i}");
            answering.await.unwrap();
        }
    }
}
