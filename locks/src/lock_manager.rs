//! The lock on several servers of ours: a client that has a majority of them holds the lock, and its token is the
//! largest counter of that majority.
//!
//! Textbooks call this a replicated lock manager. The servers know nothing of each other, so this is
//! [`Redlock`](crate::Redlock) over other servers, with the token source `majority-max`. Such tokens are **not
//! monotonic**: a later majority may share only servers whose counters are behind. The token sources `two-phase` and
//! `two-phase-fast` repair that ([`redlock`]), as long as no server restarts: a restart forgets locks and counters.

use std::sync::Arc;

use crate::{
    ports::{Clock, Lock},
    redlock,
    servers::{CannotBuild, Servers, TokenSource},
};

/// The token sources of this lock; the first is that of the textbook.
pub(crate) const TOKENS: &[TokenSource] =
    &[TokenSource::MajorityMax, TokenSource::TwoPhase, TokenSource::TwoPhaseFast, TokenSource::None];

/// Builds the lock over independent nodes.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    redlock::build_on_several("lock-manager", TOKENS, servers, tokens, clock)
}

#[cfg(test)]
mod tests {
    use std::{future::ready, time::Duration};

    use parking_lot::Mutex;

    use super::*;
    use crate::{
        clock::BootClock,
        hold::{Key, Owner, Token},
        ports::{Node, NodeError, Reply, Step, StepAnswer, Unwatched},
    };

    /// A server that grants every request, and notes the tokens that clients write back.
    #[derive(Default)]
    struct Granting(Mutex<Vec<Token>>);

    impl Node for Granting {
        fn name(&self) -> &str {
            "manager"
        }

        fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
            let answer = match step {
                Step::Acquire(..) => StepAnswer::Granted(Token(7)),
                Step::RaiseFence(_, _, token) => {
                    self.0.lock().push(token);
                    StepAnswer::Done
                }
                _ => StepAnswer::Done,
            };
            Box::pin(ready(Ok(answer)))
        }
    }

    #[tokio::test]
    async fn only_two_phase_tokens_are_written_back() {
        let fast = (TokenSource::TwoPhaseFast, vec![]);
        for (tokens, written) in [(TokenSource::MajorityMax, vec![]), (TokenSource::TwoPhase, vec![Token(7)]), fast] {
            let nodes: [Arc<Granting>; 3] = Default::default();
            let servers = nodes.iter().map(|node| node.clone() as Arc<dyn Node>).collect();
            let lock = build(Servers::Nodes(servers), tokens, Arc::new(BootClock)).unwrap();
            let (key, lease) = (Key::new("k0"), Duration::from_secs(60));
            let hold = lock.acquire(&key, Owner::new("a"), lease, &Unwatched).await.unwrap();
            assert_eq!(hold.token, Some(Token(7)), "{tokens:?}");
            assert!(nodes.iter().all(|node| *node.0.lock() == written), "{tokens:?}");
        }
    }
}
