//! One exchange with all nodes: queue everything, then read until it is decided.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use crate::{
    hold::{Failure, NodeAnswer, NodeAnswers, NodeName, Outcome, Token, Why},
    ports::{Answer, Clock, Node, NodeError, Reply, Round, Step, Watch},
};

/// How much longer a round reads after its timer has fired.
///
/// A process that was frozen wakes up with its answers *and* its timer due. What has arrived is read first, but it has
/// to pass through the connection's task to be read; this is the time for that.
const SECOND_LOOK: Duration = Duration::from_millis(2);

/// How a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Enough nodes did it.
    Majority,
    /// So many did not that a majority cannot be counted any more.
    Impossible,
    /// Neither, in time.
    TimedOut,
}

/// What a round waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Until a majority did it, or none can be counted any more.
    Decided,
    /// Until a majority answered whatever it was.
    Heard,
}

#[derive(Debug)]
enum Said {
    Nothing,
    Yes(Option<Token>),
    No,
    Error(NodeError),
}

/// Wakes whoever reads a round when so many answers have come that they may decide it, and not at each of them: what is above a lock is
/// deep, and is gone through at every wake.
#[derive(Default)]
struct Nudge {
    /// So many answers more; at 0 each of them wakes.
    missing: AtomicUsize,
    reader: Mutex<Option<Waker>>,
}

impl Nudge {
    /// From now on every answer wakes `reader`, until it has said how many it waits for. So none can be missed between a look and that.
    fn listens(&self, reader: &Waker) {
        self.missing.store(0, Ordering::SeqCst);
        let mut known = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.as_ref().is_some_and(|known| known.will_wake(reader)) {
            *known = Some(reader.clone());
        }
    }

    fn waits_for(&self, answers: usize) {
        self.missing.store(answers, Ordering::SeqCst);
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before = self.missing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |missing| missing.checked_sub(1));
        if before.is_ok_and(|missing| missing > 1) {
            return;
        }
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).clone();
        reader.inspect(Waker::wake_by_ref);
    }
}

/// A round whose requests are queued.
pub(crate) struct Asked {
    /// When they were sent, in the client's own clock: read before the first of them was queued.
    pub(crate) sent: Duration,
    round: Round,
    /// How many nodes are enough.
    majority: usize,
    replies: Vec<Option<Reply<Result<Answer, NodeError>>>>,
    said: Vec<Said>,
}

impl Asked {
    /// Queues `step` on every node before anything is awaited, then lets the watch wait.
    ///
    /// So a frozen node costs nothing, no node hears of the round much later than another, and each node has the
    /// steps of this client in the order of the client's rounds.
    pub(crate) async fn ask(
        nodes: &[Arc<dyn Node>],
        clock: &dyn Clock,
        watch: &dyn Watch,
        round: Round,
        step: &Step,
        majority: usize,
    ) -> Self {
        let sent = clock.now();
        watch.sending(round);
        let replies = nodes.iter().map(|node| Some(node.send(step.clone()))).collect();
        watch.sent(round).await;
        Self { sent, round, majority, replies, said: nodes.iter().map(|_| Said::Nothing).collect() }
    }

    /// Reads answers until the round is over, at most for `timeout` from now on.
    ///
    /// From now on and not from the sending, because a watch may have waited in between; it changes no promise,
    /// which does count from the sending.
    pub(crate) async fn read(&mut self, clock: &dyn Clock, timeout: Duration, until: Until) -> Decision {
        let mut timer = clock.sleep_until(clock.now().saturating_add(timeout));
        let mut looked_again = false;
        let nudge = Arc::<Nudge>::default();
        let waker = Waker::from(nudge.clone());
        poll_fn(|cx| {
            loop {
                nudge.listens(cx.waker());
                // What has arrived comes before the timer: after a freeze both are due, and the answers were in time.
                self.listen(&mut Context::from_waker(&waker));
                match self.decision(until) {
                    Ok(decision) => {
                        // Nobody reads what still comes.
                        nudge.waits_for(usize::MAX);
                        return Poll::Ready(decision);
                    }
                    Err(missing) => nudge.waits_for(missing),
                }
                match timer.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) if looked_again => return Poll::Ready(Decision::TimedOut),
                    Poll::Ready(()) => {
                        looked_again = true;
                        timer = clock.sleep_until(clock.now().saturating_add(SECOND_LOOK));
                    }
                }
            }
        })
        .await
    }

    /// Reads all that has arrived, in the order of the nodes.
    fn listen(&mut self, cx: &mut Context<'_>) {
        for (reply, said) in self.replies.iter_mut().zip(&mut self.said) {
            let Some(waiting) = reply else { continue };
            if let Poll::Ready(answer) = waiting.as_mut().poll(cx) {
                *reply = None;
                *said = match answer {
                    Ok(Answer::Granted(token)) => Said::Yes(Some(token)),
                    Ok(Answer::Done) => Said::Yes(None),
                    Ok(Answer::Refused) => Said::No,
                    Err(error) => Said::Error(error),
                };
            }
        }
    }

    /// The decision, or how many answers more it takes at least.
    fn decision(&self, until: Until) -> Result<Decision, usize> {
        let majority = self.majority;
        let silent = self.count(|said| matches!(said, Said::Nothing));
        let yes = self.count(|said| matches!(said, Said::Yes(_)));
        let heard = self.said.len() - silent;
        match until {
            Until::Heard if heard >= majority => Ok(Decision::Majority),
            Until::Heard => Err(majority - heard),
            Until::Decided if yes >= majority => Ok(Decision::Majority),
            Until::Decided if yes + silent < majority => Ok(Decision::Impossible),
            Until::Decided => Err((majority - yes).min(yes + silent - majority + 1)),
        }
    }

    fn count(&self, which: impl Fn(&Said) -> bool) -> usize {
        self.said.iter().filter(|said| which(said)).count()
    }

    /// Whether refusals alone make a majority impossible: it surely was not and will not be.
    pub(crate) fn is_refused(&self) -> bool {
        self.forbids(self.count(|said| matches!(said, Said::No)))
    }

    /// The failure of a round that found no majority; `refused` says what refusals by themselves mean.
    ///
    /// It is definite only where a majority surely did not do it: by refusals, and by steps that never left. A silent
    /// node and one whose connection broke may have done it.
    pub(crate) fn failure(&self, names: &[NodeName], refused: Why) -> Failure {
        let surely_not = self.count(|said| matches!(said, Said::No | Said::Error(NodeError::Definite(_))));
        let outcome = if self.forbids(surely_not) { Outcome::Failed } else { Outcome::Indeterminate };
        let why = match self.said.as_slice() {
            _ if self.is_refused() => refused,
            [Said::Error(error)] => Why::Error(format!("{}: {error}", names[0])),
            [Said::Nothing] => Why::Error(format!("{}: no answer in time", names[0])),
            _ => Why::NoMajority,
        };
        Failure { why, outcome, answers: self.answers(names) }
    }

    /// The failure of a round whose majority was judged after its promise had ended. It is definite: what was granted
    /// is over, and nobody was told of it.
    pub(crate) fn refused_by_validity(&self, names: &[NodeName]) -> Failure {
        let answers = self.named(names, |said| match said {
            Said::Yes(_) => NodeAnswer::Late,
            other => answer(self.round, other),
        });
        Failure { why: Why::Validity, outcome: Outcome::Failed, answers }
    }

    fn forbids(&self, against: usize) -> bool {
        against > self.said.len() - self.majority
    }

    /// The largest counter among the nodes that did it.
    pub(crate) fn largest_token(&self) -> Option<Token> {
        self.said.iter().filter_map(|said| if let Said::Yes(token) = said { *token } else { None }).max()
    }

    /// What each node said.
    pub(crate) fn answers(&self, names: &[NodeName]) -> NodeAnswers {
        self.named(names, |said| answer(self.round, said))
    }

    fn named(&self, names: &[NodeName], answer: impl Fn(&Said) -> NodeAnswer) -> NodeAnswers {
        names.iter().cloned().zip(self.said.iter().map(answer)).collect()
    }
}

fn answer(round: Round, said: &Said) -> NodeAnswer {
    match said {
        Said::Yes(_) if round == Round::Acquire => NodeAnswer::Granted,
        Said::Yes(_) => NodeAnswer::Done,
        Said::No => NodeAnswer::Refused,
        Said::Nothing | Said::Error(_) => NodeAnswer::None,
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, sync::atomic::AtomicU32};

    use tokio::sync::oneshot;

    use super::*;
    use crate::ports::Unwatched;

    /// A clock at which no time passes: nothing but answers ends a round.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep_until(&self, _at: Duration) -> Reply<()> {
            Box::pin(std::future::pending())
        }
    }

    type Answering = oneshot::Sender<Answer>;

    /// A node that answers when it is told to.
    #[derive(Default)]
    struct Told(Mutex<Option<Answering>>);

    impl Node for Told {
        fn name(&self) -> &str {
            "told"
        }

        fn send(&self, _step: Step) -> Reply<Result<Answer, NodeError>> {
            let (answering, answer) = oneshot::channel();
            *self.0.lock().unwrap() = Some(answering);
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

    async fn asked() -> (Asked, Vec<Answering>) {
        let told: Vec<Arc<Told>> = (0..5).map(|_| Arc::default()).collect();
        let nodes: Vec<Arc<dyn Node>> = told.iter().map(|node| node.clone() as Arc<dyn Node>).collect();
        let step = Step::CountOnly(crate::Key::new("k0"));
        let asked = Asked::ask(&nodes, &Still, &Unwatched, Round::Acquire, &step, 3).await;
        (asked, told.iter().map(|node| node.0.lock().unwrap().take().unwrap()).collect())
    }

    /// How often whoever reads was woken after each of the answers, and what came of it after the last.
    async fn wakes(until: Until, answers: &[Answer]) -> (Vec<u32>, Poll<Decision>) {
        let (mut asked, nodes) = asked().await;
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(woken.clone());
        let mut reading = pin!(asked.read(&Still, Duration::from_secs(1), until));
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
    async fn who_reads_a_round_is_woken_when_it_can_be_decided_and_not_before() {
        use Answer::{Done, Refused};
        let majority = Poll::Ready(Decision::Majority);
        assert_eq!(wakes(Until::Decided, &[Done, Done, Done]).await, (vec![0, 0, 1], majority));
        let impossible = Poll::Ready(Decision::Impossible);
        assert_eq!(wakes(Until::Decided, &[Refused, Refused, Refused]).await, (vec![0, 0, 1], impossible));
        // Three might have decided it, and then one more does either way.
        assert_eq!(wakes(Until::Decided, &[Done, Refused, Refused]).await, (vec![0, 0, 1], Poll::Pending));
        assert_eq!(wakes(Until::Decided, &[Done, Refused, Refused, Refused]).await, (vec![0, 0, 1, 2], impossible));
        assert_eq!(wakes(Until::Decided, &[Refused, Done, Done, Refused, Done]).await, (vec![0, 0, 1, 2, 3], majority));
        assert_eq!(wakes(Until::Heard, &[Refused, Done, Refused]).await, (vec![0, 0, 1], majority));
    }

    #[tokio::test]
    async fn answers_that_come_after_the_decision_wake_nobody() {
        let (mut asked, mut nodes) = asked().await;
        let woken = Arc::<Woken>::default();
        let late = nodes.split_off(3);
        nodes.into_iter().for_each(|node| node.send(Answer::Done).unwrap());
        let waker = Waker::from(woken.clone());
        let poll =
            pin!(asked.read(&Still, Duration::from_secs(1), Until::Decided)).poll(&mut Context::from_waker(&waker));
        assert_eq!(poll, Poll::Ready(Decision::Majority));
        late.into_iter().for_each(|node| node.send(Answer::Done).unwrap());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    }

    /// No answer is missed that comes while the others are looked at.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answers_from_other_threads_always_end_a_round() {
        for i in 0..2_000 {
            let (mut asked, nodes) = asked().await;
            let answering = tokio::task::spawn_blocking(move || {
                for (n, node) in nodes.into_iter().enumerate() {
                    let answer = if (i + n) % 2 == 0 { Answer::Done } else { Answer::Refused };
                    node.send(answer).ok();
                }
            });
            let read = asked.read(&Still, Duration::from_secs(1), Until::Decided);
            let decision = tokio::time::timeout(Duration::from_secs(10), read).await;
            let expected = if i % 2 == 0 { Decision::Majority } else { Decision::Impossible };
            assert_eq!(decision, Ok(expected), "round {i}");
            answering.await.unwrap();
        }
    }
}
