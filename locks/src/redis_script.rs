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
    let nonsense = |other: Value| Err(NodeError::Indeterminate(format!("an answer that makes no sense: {other:?}")));
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
        // The other steps are scripts. This one is a `SET`, which answers with no number.
        (Step::AcquireUncounted(..), other) => nonsense(other),
        (_, Value::Int(0)) => Ok(StepAnswer::Refused),
        (step, Value::Int(counter)) if counter > 0 && step.counts() => {
            Ok(StepAnswer::Granted(Token(counter.unsigned_abs())))
        }
        (_, Value::Int(1)) => Ok(StepAnswer::Done),
        (_, other) => nonsense(other),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hold::{Key, Owner};

    #[test]
    fn an_answer_that_makes_no_sense_is_no_refusal() {
        let (key, owner, lease) = (Key::new("k0"), Owner::new("a"), Duration::from_secs(2));
        let acquire = Step::Acquire(key.clone(), owner.clone(), lease);
        let uncounted = Step::AcquireUncounted(key.clone(), owner.clone(), lease);
        let extend = Step::Extend(key.clone(), owner.clone(), lease);
        let raise = Step::RaiseFence(key.clone(), owner.clone(), Token(7));
        let release = Step::Release(key, owner);
        let other = ["$-1\r\n", ":-1\r\n", ":2\r\n", "+OK\r\n"];
        for (step, refused, nonsense) in [
            (&acquire, ":0\r\n", ["$-1\r\n", ":-1\r\n", "+OK\r\n", "*1\r\n:0\r\n"]),
            (&uncounted, "$-1\r\n", [":0\r\n", ":1\r\n", "+QUEUED\r\n", "*0\r\n"]),
            (&extend, ":0\r\n", other),
            (&raise, ":0\r\n", other),
            (&release, ":0\r\n", other),
        ] {
            let answered = |text: &str| answer(step, redis::parse_redis_value(text.as_bytes()).unwrap());
            assert_eq!(answered(refused), Ok(StepAnswer::Refused), "{step:?}");
            for text in nonsense {
                assert!(matches!(answered(text), Err(NodeError::Indeterminate(_))), "{step:?}: {text:?}");
            }
        }
    }
}
