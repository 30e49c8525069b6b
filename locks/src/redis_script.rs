//! The steps as Redis commands, one command for each step, and the meaning of the answers.
//!
//! The client sends whole scripts (`EVAL`) instead of their hashes. A server that was restarted empty knows no hashes,
//! and sending the script after that would be a second command for one step, which later steps could overtake. The
//! price is about a hundred bytes for each step.

use redis::{Cmd, Value};

#[cfg(feature = "planted")]
use crate::planted::scripts;
use crate::{
    hold::Token,
    ports::{NodeError, Step, StepAnswer},
    redis_command::{eval, lock_name, with_lease, with_token},
    validity::whole_ms,
};

/// KEYS: lock, fence. ARGV: owner, lease in ms. The answer is the counter, or 0: a counter that was just incremented is
/// not 0.
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

/// The error codes of a server that has not started the command: the server loads its data, runs a slow script, has no
/// memory, may not write, or refuses this user.
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
        #[cfg(feature = "planted")]
        Step::Planted(step) => scripts::command(step),
    }
}

/// The meaning of the server's answer to `step`.
pub(crate) fn answer(step: &Step, value: Value) -> Result<StepAnswer, NodeError> {
    match (step, value) {
        (_, Value::ServerError(error)) => {
            let said = format!("{} {}", error.code(), error.details().unwrap_or_default());
            // In doubt the failure is indeterminate: a script can fail after its first write.
            // Every command of a script is checked for the user's rights, and an earlier one may have been done.
            let in_script = error.code() == "NOPERM" && said.contains("script");
            let never_started = NEVER_STARTED.contains(&error.code()) && !in_script;
            Err(if never_started { NodeError::Definite(said) } else { NodeError::Indeterminate(said) })
        }
        (Step::AcquireUncounted(..), Value::Okay) => Ok(StepAnswer::Done),
        (Step::AcquireUncounted(..), Value::Nil) => Ok(StepAnswer::Refused),
        (_, Value::Int(0)) => Ok(StepAnswer::Refused),
        (step, Value::Int(counter)) if counter > 0 && step.counts() => {
            Ok(StepAnswer::Granted(Token(counter.unsigned_abs())))
        }
        (_, Value::Int(1)) => Ok(StepAnswer::Done),
        (_, other) => Err(NodeError::Indeterminate(format!("an answer that makes no sense: {other:?}"))),
    }
}
