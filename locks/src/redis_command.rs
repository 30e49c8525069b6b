//! The parts of a Redis command: scripts, names of keys, arguments.
//!
//! A server keeps the key `k` as `lock:{k}` and its counter as `fence:{k}`. Both have one hash tag, so a Redis Cluster
//! puts both on one shard, and a script may access both. A counter is never removed, so tokens grow. The namespace of a
//! key comes before these names.

use std::time::Duration;

use redis::Cmd;

use crate::{
    hold::{Key, Owner, Token},
    validity::whole_ms,
};

/// A command with one argument.
#[cfg(feature = "planted")]
pub(crate) fn plain(name: &str, of: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(of);
    command
}

/// A script about a key and its counter.
pub(crate) fn eval_any(script: &str, key: &Key) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(2).arg(lock_name(key)).arg(fence_name(key));
    command
}

/// A script about a key of this owner, and its counter.
pub(crate) fn eval(script: &str, key: &Key, owner: &Owner) -> Cmd {
    let mut command = eval_any(script, key);
    command.arg(owner.as_str());
    command
}

pub(crate) fn with_lease(mut command: Cmd, lease: Duration) -> Cmd {
    command.arg(whole_ms(lease));
    command
}

pub(crate) fn with_token(mut command: Cmd, Token(token): Token) -> Cmd {
    command.arg(token);
    command
}

pub(crate) fn lock_name(key: &Key) -> String {
    named("lock", key)
}

pub(crate) fn fence_name(key: &Key) -> String {
    named("fence", key)
}

fn named(kind: &str, key: &Key) -> String {
    let (namespace, name) = key.parts();
    format!("{namespace}{kind}:{{{name}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_counter_share_a_hash_tag() {
        let key = Key::new("k0");
        assert_eq!((lock_name(&key), fence_name(&key)), ("lock:{k0}".into(), "fence:{k0}".into()));
        let key = Key::within("run-1:", "k0");
        assert_eq!((lock_name(&key), fence_name(&key)), ("run-1:lock:{k0}".into(), "run-1:fence:{k0}".into()));
    }
}
