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

/// The planted bug: the same without the condition.
const OVERWRITE: &str = "\
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.call('INCR', KEYS[2])";

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

/// Error codes by which a server says that it has not even started on a command: it is loading its data, a slow
/// script is in its way, it has no memory, it may not write, this user may not.
const NEVER_STARTED: &[&str] =
    &["LOADING", "BUSY", "OOM", "READONLY", "MISCONF", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM"];

/// The command for `step`.
pub(crate) fn command(step: &Step) -> Cmd {
    match step {
        Step::Acquire(key, owner, lease) => eval_lease(ACQUIRE, key, owner, *lease),
        Step::Overwrite(key, owner, lease) => eval_lease(OVERWRITE, key, owner, *lease),
        Step::AcquireUncounted(key, owner, lease) => {
            let mut command = redis::cmd("SET");
            command.arg(lock_name(key)).arg(owner.as_str()).arg("NX").arg("PX").arg(whole_ms(*lease));
            command
        }
        Step::Extend(key, owner, lease) => eval_lease(EXTEND, key, owner, *lease),
        Step::Release(key, owner) => eval(RELEASE, key, owner),
        Step::RaiseFence(key, owner, Token(token)) => {
            let mut command = eval(RAISE_FENCE, key, owner);
            command.arg(*token);
            command
        }
    }
}

fn eval(script: &str, key: &Key, owner: &Owner) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(2).arg(lock_name(key)).arg(fence_name(key)).arg(owner.as_str());
    command
}

fn eval_lease(script: &str, key: &Key, owner: &Owner, lease: Duration) -> Cmd {
    let mut command = eval(script, key, owner);
    command.arg(whole_ms(lease));
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
        (Step::Acquire(..) | Step::Overwrite(..), Value::Int(counter)) if counter > 0 => {
            Ok(Answer::Granted(Token(counter.unsigned_abs())))
        }
        (Step::Extend(..) | Step::Release(..) | Step::RaiseFence(..), Value::Int(1)) => Ok(Answer::Done),
        (_, other) => Err(NodeError::Indeterminate(format!("an answer that makes no sense: {other:?}"))),
    }
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
