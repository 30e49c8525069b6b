//! One exchange with all nodes: queue everything, then read until it is decided.

use std::{future::poll_fn, sync::Arc, task::Context, task::Poll, time::Duration};

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
        poll_fn(|cx| {
            loop {
                // What has arrived comes before the timer: after a freeze both are due, and the answers were in time.
                self.listen(cx);
                if let Some(decision) = self.decision(until) {
                    return Poll::Ready(decision);
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

    fn decision(&self, until: Until) -> Option<Decision> {
        let majority = self.majority;
        let silent = self.count(|said| matches!(said, Said::Nothing));
        let yes = self.count(|said| matches!(said, Said::Yes(_)));
        match until {
            Until::Heard if self.said.len() - silent >= majority => Some(Decision::Majority),
            Until::Heard => None,
            Until::Decided if yes >= majority => Some(Decision::Majority),
            Until::Decided if yes + silent < majority => Some(Decision::Impossible),
            Until::Decided => None,
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
