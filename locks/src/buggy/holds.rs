//! Bugs in what a client makes of an attempt: its owner, its token, its clock.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::Flaw;
use crate::{
    hold::{Failure, Hold, Key, Owner, Released, Renewed, Token, Why},
    ports::{Clock, Doing, Lock, Node, Reply, Round, Step, Undoing, Unwatched, Watch},
    redlock::{Redlock, Tokens},
    round::{Asked, Decision, Until},
    validity,
};

/// As many tokens as have been given out before: the twenty-first from here on needs a thirty-third bit.
const WORN: u64 = u32::MAX as u64 - 20;

/// A lock of which owners and tokens go through the flaw.
pub(super) struct Bent {
    lock: Redlock,
    flaw: Flaw,
    clock: Arc<dyn Clock>,
    tokens: Tokens,
    /// The only node, where tokens are taken before keys.
    counter: Option<Arc<dyn Node>>,
    claimed: AtomicU64,
    owner: OnceLock<Owner>,
}

impl Bent {
    pub(super) fn new(
        lock: Redlock,
        flaw: Flaw,
        clock: Arc<dyn Clock>,
        tokens: Tokens,
        counter: Option<Arc<dyn Node>>,
    ) -> Self {
        Self { lock, flaw, clock, tokens, counter, claimed: AtomicU64::new(0), owner: OnceLock::new() }
    }

    /// Takes the token of an attempt that begins when this has been answered. No request that could set the key has left before, so the
    /// client knows until then that it does not hold, and the stamp of the attempt says so; the watch is not told of this round.
    async fn counted(&self, key: &Key, lease: Duration, watch: &dyn Watch) -> Result<Option<Token>, Failure> {
        let Some(counter) = &self.counter else { return Ok(None) };
        let (nodes, step) = ([counter.clone()], Step::CountOnly(key.clone()));
        let mut counting = Asked::ask(&nodes, &*self.clock, &Unwatched, Round::Acquire, &step, 1).await;
        let decision = counting.read(&*self.clock, validity::node_timeout(lease), Until::Decided).await;
        if decision != Decision::Majority {
            // A record knows no failure of what did not begin.
            watch.sending(Round::Acquire);
            return Err(counting.failure(&[counter.name().into()], Why::Held));
        }
        Ok(counting.largest_token())
    }

    fn owner(&self, fresh: Owner) -> Owner {
        if self.flaw == Flaw::OneOwner { self.owner.get_or_init(|| fresh).clone() } else { fresh }
    }

    fn token(&self, Token(token): Token) -> Option<Token> {
        let token = match self.flaw {
            // Steps of planted bugs count where nothing should be counted.
            _ if self.tokens == Tokens::None => return None,
            Flaw::LocalTokens => self.claimed.fetch_add(1, Ordering::Relaxed) + 1,
            Flaw::WallTokens => u64::try_from(self.clock.wall().as_millis()).unwrap_or(u64::MAX),
            Flaw::NarrowTokens => u64::from(token.wrapping_add(WORN) as u32),
            _ => token,
        };
        Some(Token(token))
    }
}

impl Lock for Bent {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Hold> {
        Box::pin(async move {
            let counted = self.counted(key, lease, watch).await?;
            let hold = self.lock.acquire(key, self.owner(owner), lease, watch).await?;
            let token = counted.or(hold.token).and_then(|token| self.token(token));
            Ok(Hold { token, ..hold })
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Renewed> {
        self.lock.renew(hold, lease, watch)
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Doing<'a, Released> {
        self.lock.release(hold, watch)
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Undoing<'a> {
        Box::pin(async move { self.lock.cancel(key, &self.owner(owner.clone()), lease, watch).await })
    }
}

/// The wall clock in place of the process's own.
pub(crate) struct WallClock<'a>(pub(crate) &'a dyn Clock);

impl Clock for WallClock<'_> {
    fn now(&self) -> Duration {
        self.0.wall()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        self.0.sleep_until(self.0.now() + at.saturating_sub(self.0.wall()))
    }
}
