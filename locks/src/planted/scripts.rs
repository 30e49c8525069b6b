//! The steps that only planted bugs send, as Redis commands.

use redis::Cmd;

use super::steps::PlantedStep;
use crate::redis_command::{eval, eval_any, fence_name, lock_name, plain, with_lease, with_token};

/// KEYS: lock, fence. ARGV: owner, lease in ms. No condition that the key is free.
const OVERWRITE: &str = "\
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.call('INCR', KEYS[2])";

/// KEYS: lock, fence. ARGV: owner, lease in ms. A key of this owner is granted to it again.
const ACQUIRE_AGAIN: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
local counter = tonumber(redis.call('GET', KEYS[2]) or '0')
if counter == 0 or redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return counter";

/// KEYS: lock, fence. ARGV: owner. No lease.
const ACQUIRE_FOREVER: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then return redis.call('INCR', KEYS[2]) end
return 0";

/// KEYS: lock. ARGV: owner. Only the check of a release.
const IS_OWNER: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return 1 end
return 0";

/// KEYS: lock. ARGV: lease in ms. No condition on the owner. The remaining time of a missing key is -2.
const EXTEND_ANY: &str = "\
local left = redis.call('PTTL', KEYS[1])
if left == -2 then return 0 end
if left < tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return 1";

/// KEYS: lock. ARGV: owner, lease in ms. Sets a key that is free.
const EXTEND_OR_SET: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1";

/// KEYS: lock. ARGV: owner, lease in ms. No check of the remaining time.
const SET_EXPIRY: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

/// KEYS: lock, fence. ARGV: token. No condition on the owner.
const RAISE_ANY: &str = "\
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
return 1";

/// KEYS: lock, fence. ARGV: owner, token. No condition on the counter.
const SET_FENCE: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1";

/// The command for `step`.
pub(crate) fn command(step: &PlantedStep) -> Cmd {
    match step {
        PlantedStep::Overwrite(key, owner, lease) => with_lease(eval(OVERWRITE, key, owner), *lease),
        PlantedStep::AcquireAgain(key, owner, lease) => with_lease(eval(ACQUIRE_AGAIN, key, owner), *lease),
        PlantedStep::AcquireForever(key, owner) => eval(ACQUIRE_FOREVER, key, owner),
        PlantedStep::CountOnly(key) => plain("INCR", &fence_name(key)),
        PlantedStep::IsOwner(key, owner) => eval(IS_OWNER, key, owner),
        PlantedStep::RemoveAny(key) => plain("DEL", &lock_name(key)),
        PlantedStep::ExtendAny(key, lease) => with_lease(eval_any(EXTEND_ANY, key), *lease),
        PlantedStep::ExtendOrSet(key, owner, lease) => with_lease(eval(EXTEND_OR_SET, key, owner), *lease),
        PlantedStep::SetExpiry(key, owner, lease) => with_lease(eval(SET_EXPIRY, key, owner), *lease),
        PlantedStep::RaiseAny(key, token) => with_token(eval_any(RAISE_ANY, key), *token),
        PlantedStep::SetFence(key, owner, token) => with_token(eval(SET_FENCE, key, owner), *token),
    }
}
