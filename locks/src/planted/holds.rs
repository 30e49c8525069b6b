//! Bugs in the owner or the token of a hold: changes around a correct lock.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    redlock::{AcquiresAgain, AsIntended, TakesNoToken, deciding},
    steps::PlantedStep,
};
use crate::{
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, NodeName, Owner, Released, Renewed, Token},
    ports::{Cleanup, Clock, Lock, Node, Operation, Round, Unwatched, Watch},
    round::{RoundInFlight, RoundOutcome, Until},
    servers::{CannotBuild, Servers, TokenSource},
    validity,
};

/// A change of a hold's owner and token. Each default changes nothing.
pub(super) trait HoldChange: Send + Sync {
    /// The owner of an attempt that was given the fresh value `owner`.
    fn owner(&self, owner: Owner) -> Owner {
        owner
    }

    /// The token of a hold that has the token `token`.
    fn token(&self, token: Token, _clock: &dyn Clock) -> Token {
        token
    }

    /// Returns whether an attempt is announced only when its answers have been read.
    fn is_announced_late(&self) -> bool {
        false
    }

    /// Returns whether a hold is released when its renewal fails.
    fn is_released_without_renewal(&self) -> bool {
        false
    }
}

/// Builds the correct lock, whose holds go through the change `C`.
pub(super) fn with_holds<C: HoldChange + Default + 'static>(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    let lock = deciding::<AsIntended>(servers, tokens, clock.clone())?;
    Ok(Arc::new(WithHolds { lock, change: C::default(), clock, counter: None }))
}

/// Builds the lock of a textbook server: a process has one name, and the server takes an acquire by the name that has
/// the key for a renewal, and answers it as a grant.
pub(super) fn reenters(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    let lock = deciding::<AcquiresAgain>(servers, tokens, clock.clone())?;
    Ok(Arc::new(WithHolds { lock, change: OneOwner::default(), clock, counter: None }))
}

/// Builds the lock that takes its token from the only node before it asks for the key.
pub(super) fn token_before_nx(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    let counter = servers.clone().nodes("redis")?.into_iter().next();
    let lock = deciding::<TakesNoToken>(servers, tokens, clock.clone())?;
    Ok(Arc::new(WithHolds { lock, change: Unchanged, clock, counter }))
}

#[derive(Default)]
struct Unchanged;

impl HoldChange for Unchanged {}

/// Gives all attempts the owner of the first.
#[derive(Default)]
pub(super) struct OneOwner(OnceLock<Owner>);

impl HoldChange for OneOwner {
    fn owner(&self, owner: Owner) -> Owner {
        self.0.get_or_init(|| owner).clone()
    }
}

/// Counts the holds of this process.
#[derive(Default)]
pub(super) struct LocalTokens(AtomicU64);

impl HoldChange for LocalTokens {
    fn token(&self, _token: Token, _clock: &dyn Clock) -> Token {
        Token(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Reads tokens from the wall clock.
#[derive(Default)]
pub(super) struct WallTokens;

impl HoldChange for WallTokens {
    fn token(&self, _token: Token, clock: &dyn Clock) -> Token {
        Token(u64::try_from(clock.wall().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Keeps 32 bits of a token.
#[derive(Default)]
pub(super) struct NarrowTokens;

/// The tokens that were given out before: the twenty-first token from now on needs a thirty-third bit.
const USED_TOKENS: u64 = u32::MAX as u64 - 20;

impl HoldChange for NarrowTokens {
    fn token(&self, Token(token): Token, _clock: &dyn Clock) -> Token {
        Token(u64::from(token.wrapping_add(USED_TOKENS) as u32))
    }
}

/// Releases a hold whose renewal failed, and does not tell its user.
#[derive(Default)]
pub(super) struct ReleasesUnrenewed;

impl HoldChange for ReleasesUnrenewed {
    fn is_released_without_renewal(&self) -> bool {
        true
    }
}

/// Announces attempts when their answers have been read.
#[derive(Default)]
pub(super) struct StampsLate;

impl HoldChange for StampsLate {
    fn is_announced_late(&self) -> bool {
        true
    }
}

/// Announces the attempt when its answers have been read, or when it ends.
struct Late<'a> {
    watch: &'a dyn Watch,
    is_announced: AtomicBool,
}

impl Late<'_> {
    fn announce(&self) {
        if !self.is_announced.swap(true, Ordering::Relaxed) {
            self.watch.sending(Round::Acquire);
        }
    }
}

impl Watch for Late<'_> {
    fn sending(&self, round: Round) {
        if round != Round::Acquire {
            self.announce();
            self.watch.sending(round);
        }
    }

    fn answered(&self, round: Round) {
        self.announce();
        self.watch.answered(round);
    }

    fn undoing(&self) {
        self.watch.undoing();
    }

    fn undone(&self, answers: &[(NodeName, NodeAnswer)]) {
        self.watch.undone(answers);
    }
}

struct WithHolds<C> {
    lock: Arc<dyn Lock>,
    change: C,
    clock: Arc<dyn Clock>,
    /// The only node, if tokens are taken before keys.
    counter: Option<Arc<dyn Node>>,
}

impl<C> WithHolds<C> {
    /// Takes the token of an attempt that begins after this. No request that could set the key has left yet, so the
    /// client knows that it does not hold the lock, and the stamp of the attempt is right. `watch` is not told of this
    /// round.
    async fn count(&self, key: &Key, lease: Duration, watch: &dyn Watch) -> Result<Option<Token>, Failure> {
        let Some(counter) = &self.counter else { return Ok(None) };
        let (nodes, step) = ([counter.clone()], PlantedStep::CountOnly(key.clone()).into());
        let mut counting = RoundInFlight::send(&nodes, self.clock.now(), &Unwatched, Round::Acquire, &step, 1).await;
        let outcome = counting.read(&*self.clock, validity::node_timeout(lease), Until::Decided).await;
        if outcome != RoundOutcome::Majority {
            // A record cannot have the failure of an attempt that did not begin.
            watch.sending(Round::Acquire);
            return Err(counting.failure(&[counter.name().into()], FailureReason::Held));
        }
        Ok(counting.largest_token())
    }
}

impl<C: HoldChange> Lock for WithHolds<C> {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        Box::pin(async move {
            let counted = self.count(key, lease, watch).await?;
            let late = Late { watch, is_announced: AtomicBool::new(false) };
            let told: &dyn Watch = if self.change.is_announced_late() { &late } else { watch };
            let hold = self.lock.acquire(key, self.change.owner(owner), lease, told).await;
            if self.change.is_announced_late() {
                late.announce();
            }
            let hold = hold?;
            let token = counted.or(hold.token).map(|token| self.change.token(token, &*self.clock));
            Ok(Hold { token, ..hold })
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(async move {
            let renewed = self.lock.renew(hold, lease, watch).await;
            if renewed.is_err() && self.change.is_released_without_renewal() {
                // The caller hears of the renewal only.
                let _ = self.lock.release(hold, watch).await;
            }
            renewed
        })
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        self.lock.release(hold, watch)
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        let owner = self.change.owner(owner.clone());
        Box::pin(async move { self.lock.cancel(key, &owner, lease, watch).await })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use parking_lot::Mutex;

    use super::{Late, NodeAnswer, NodeName, Round, Watch};

    /// Notes what is announced.
    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Watch for Told {
        fn sending(&self, round: Round) {
            self.0.lock().push(format!("{round:?}"));
        }

        fn undone(&self, answers: &[(NodeName, NodeAnswer)]) {
            self.0.lock().push(format!("undone by {}", answers.len()));
        }
    }

    #[test]
    fn only_the_announcement_of_the_attempt_is_late() {
        let told = Told::default();
        let late = Late { watch: &told, is_announced: AtomicBool::new(false) };
        late.sending(Round::Acquire);
        assert!(told.0.lock().is_empty());
        late.answered(Round::Acquire);
        late.undoing();
        late.sending(Round::Undo);
        late.undone(&[("redis-1".into(), NodeAnswer::Done)]);
        assert_eq!(*told.0.lock(), ["Acquire", "Undo", "undone by 1"]);
    }
}
