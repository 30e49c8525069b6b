//! The steps as Redis commands, one command a step, and what the answers mean.
//!
//! The key `k` is kept as `lock:{k}`, its counter as `fence:{k}`: one hash tag, so that a Redis Cluster puts both on
//! one shard and a script may touch both. A counter is never removed; it is what makes tokens grow.
//!
//! Scripts are sent whole (`EVAL`), not by their hash. A server that was restarted empty knows no hashes, and asking
//! again with the whole script would be a second command for one step, which later steps could overtake. The price is
//! about a hundred bytes a step.

use std::time::Duration;

use redis::{Cmd, Value};

use crate::{
    hold::{Key, Owner, Token},
    ports::{Answer, NodeError, Step},
};

/// KEYS: lock, fence. ARGV: owner, lease in ms. Answers the counter, or 0: a counter that was just raised is not 0.
const ACQUIRE: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
return 0";

/// KEYS: lock. ARGV: owner, lease in ms.
const EXTEND: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1";

/// KEYS: lock. ARGV: owner.
const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])";

/// KEYS: lock, fence. ARGV: owner, token. Lua compares counters as doubles: exact up to 2^53 grants.
const RAISE_FENCE: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1";

/// What only planted bugs send: the scripts above with something left out.
mod planted {
    /// KEYS: lock, fence. ARGV: owner, lease in ms. No condition that the key is free.
    pub(super) const OVERWRITE: &str = "\
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.call('INCR', KEYS[2])";

    /// KEYS: lock, fence. ARGV: owner. No lease.
    pub(super) const ACQUIRE_FOREVER: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then return redis.call('INCR', KEYS[2]) end
return 0";

    /// KEYS: lock. ARGV: owner. Only the look of a release.
    pub(super) const IS_OWNER: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return 1 end
return 0";

    /// KEYS: lock. ARGV: lease in ms. No condition on the owner. The time left of a key that is not there is -2.
    pub(super) const EXTEND_ANY: &str = "\
local left = redis.call('PTTL', KEYS[1])
if left == -2 then return 0 end
if left < tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return 1";

    /// KEYS: lock. ARGV: owner, lease in ms. Sets the key where it is free.
    pub(super) const EXTEND_OR_SET: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1";

    /// KEYS: lock. ARGV: owner, lease in ms. No look at the time that is left.
    pub(super) const SET_EXPIRY: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

    /// KEYS: lock, fence. ARGV: token. No condition on the owner.
    pub(super) const RAISE_ANY: &str = "\
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
return 1";

    /// KEYS: lock, fence. ARGV: owner, token. No condition on the counter.
    pub(super) const SET_FENCE: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1";
}

/// Error codes by which a server says that it has not even started on a command: it is loading its data, a slow
/// script is in its way, it has no memory, it may not write, this user may not.
const NEVER_STARTED: &[&str] =
    &["LOADING", "BUSY", "OOM", "READONLY", "MISCONF", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM"];

/// The command for `step`.
pub(crate) fn command(step: &Step) -> Cmd {
    match step {
        Step::Acquire(key, owner, lease) => with_lease(eval(ACQUIRE, key, owner), *lease),
        Step::AcquireUncounted(key, owner, lease) => {
            let mut command = redis::cmd("SET");
            command.arg(lock_name(key)).arg(owner.as_str()).arg("NX").arg("PX").arg(whole_ms(*lease));
            command
        }
        Step::Extend(key, owner, lease) => with_lease(eval(EXTEND, key, owner), *lease),
        Step::Release(key, owner) => eval(RELEASE, key, owner),
        Step::RaiseFence(key, owner, token) => with_token(eval(RAISE_FENCE, key, owner), *token),
        Step::Overwrite(key, owner, lease) => with_lease(eval(planted::OVERWRITE, key, owner), *lease),
        Step::AcquireForever(key, owner) => eval(planted::ACQUIRE_FOREVER, key, owner),
        Step::CountOnly(key) => plain("INCR", &fence_name(key)),
        Step::IsOwner(key, owner) => eval(planted::IS_OWNER, key, owner),
        Step::RemoveAny(key) => plain("DEL", &lock_name(key)),
        Step::ExtendAny(key, lease) => with_lease(eval_any(planted::EXTEND_ANY, key), *lease),
        Step::ExtendOrSet(key, owner, lease) => with_lease(eval(planted::EXTEND_OR_SET, key, owner), *lease),
        Step::SetExpiry(key, owner, lease) => with_lease(eval(planted::SET_EXPIRY, key, owner), *lease),
        Step::RaiseAny(key, token) => with_token(eval_any(planted::RAISE_ANY, key), *token),
        Step::SetFence(key, owner, token) => with_token(eval(planted::SET_FENCE, key, owner), *token),
    }
}

fn plain(name: &str, of: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(of);
    command
}

fn eval_any(script: &str, key: &Key) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(2).arg(lock_name(key)).arg(fence_name(key));
    command
}

fn eval(script: &str, key: &Key, owner: &Owner) -> Cmd {
    let mut command = eval_any(script, key);
    command.arg(owner.as_str());
    command
}

fn with_lease(mut command: Cmd, lease: Duration) -> Cmd {
    command.arg(whole_ms(lease));
    command
}

fn with_token(mut command: Cmd, Token(token): Token) -> Cmd {
    command.arg(token);
    command
}

fn lock_name(key: &Key) -> String {
    format!("lock:{{{key}}}")
}

fn fence_name(key: &Key) -> String {
    format!("fence:{{{key}}}")
}

/// Rounded up: the node must not let a key go before the client does.
fn whole_ms(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

/// What the server's answer to `step` means.
pub(crate) fn answer(step: &Step, value: Value) -> Result<Answer, NodeError> {
    match (step, value) {
        (_, Value::ServerError(error)) => {
            let said = format!("{} {}", error.code(), error.details().unwrap_or_default());
            // When in doubt it may have been done: a script can fail after its first write.
            let never_started = NEVER_STARTED.contains(&error.code());
            Err(if never_started { NodeError::Definite(said) } else { NodeError::Indeterminate(said) })
        }
        (Step::AcquireUncounted(..), Value::Okay) => Ok(Answer::Done),
        (Step::AcquireUncounted(..), Value::Nil) => Ok(Answer::Refused),
        (_, Value::Int(0)) => Ok(Answer::Refused),
        (step, Value::Int(counter)) if counter > 0 && counts(step) => {
            Ok(Answer::Granted(Token(counter.unsigned_abs())))
        }
        (_, Value::Int(1)) => Ok(Answer::Done),
        (_, other) => Err(NodeError::Indeterminate(format!("an answer that makes no sense: {other:?}"))),
    }
}

/// Whether the step counts, and is answered with the counter.
fn counts(step: &Step) -> bool {
    matches!(step, Step::Acquire(..) | Step::Overwrite(..) | Step::AcquireForever(..) | Step::CountOnly(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_what_a_server_can_keep() {
        let leases = [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(2001), Duration::from_secs(2)];
        assert_eq!(leases.map(whole_ms), [1, 1, 3, 2000]);
    }

    #[test]
    fn key_and_counter_share_a_hash_tag() {
        let key = Key::new("k0");
        assert_eq!((lock_name(&key), fence_name(&key)), ("lock:{k0}".into(), "fence:{k0}".into()));
    }
}
