//! The work of the clients.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    human,
    names::{Key, NodeName},
    range::Range,
};

/// Treatment of the deadline by clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// The client acquires, reads, works, writes and releases, as most code does.
    #[default]
    Unchecked,
    /// The client also verifies its deadline just before each write.
    Checking,
}

/// The work of the clients, and its rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Number of workers. Each is a process in its own container.
    pub workers: u32,
    /// Number of clients in each worker.
    pub clients_per_worker: u32,
    /// Number of keys. Clients choose among them at random; with 1, all clients contend for one key.
    pub keys: u32,
    /// Critical sections that all clients together begin per second. The rate does not depend on how fast the lock is
    /// (open model).
    pub rate_per_s: f64,
    /// Time between the read and the write.
    pub work: Range,
    /// Time between two attempts at a lock that is held.
    pub retry_delay: Range,
    /// Treatment of the deadline.
    pub client: ClientKind,
    /// Time between renewals of a hold. Clients never renew if absent.
    #[serde(with = "human::OptionalText", default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<Duration>,
    /// Lease that renewals request; the plan's lease if absent.
    #[serde(with = "human::OptionalText", default, skip_serializing_if = "Option::is_none")]
    pub renew_for: Option<Duration>,
    /// Number of writes under one hold, each with work before it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub writes: u32,
    /// Time after which a client sends an unanswered write again, as the same operation. Clients never resend if
    /// absent.
    #[serde(with = "human::OptionalText", default, skip_serializing_if = "Option::is_none")]
    pub resend: Option<Duration>,
    /// Time after which a client abandons and undoes an unanswered attempt. Clients never do so if absent.
    #[serde(with = "human::OptionalText", default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Duration>,
    /// Longest time, from the sending of an attempt, for which a client believes in its hold. The drift allowance is
    /// subtracted. The rest of the lease is a lock-delay (Chubby). The whole lease if absent.
    #[serde(with = "human::OptionalText", default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// Number of times that a client acquires the key again while it works under its hold.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reenter: u32,
    /// Number of keys that a critical section takes one after the other. It releases them in reverse order.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub locks_per_section: u32,
    /// True if every second client takes its keys in the opposite order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub opposite: bool,
    /// Time after which a client that holds a lock gives up the wait for its next one. Until its end if absent.
    #[serde(with = "human::OptionalText", default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<Duration>,
    /// True if all holds of a client share one session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub session: bool,
    /// Share of the critical sections that only read, in the mode of a reader.
    #[serde(default, skip_serializing_if = "is_none")]
    pub readers: f64,
    /// Share of the critical sections that take the parent, `k0`, and so all other keys, its children. The other
    /// sections take one child, under an intention on the parent. Without it no key is above another.
    #[serde(default, skip_serializing_if = "is_none")]
    pub hierarchy: f64,
    /// Critical sections at fixed times. A worker that is named here has no other critical sections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub script: Vec<Scripted>,
}

impl Default for Workload {
    /// The workload of `harness run` without flags: five workers with one client each contend for one key.
    fn default() -> Workload {
        Workload {
            workers: 5,
            clients_per_worker: 1,
            keys: 1,
            rate_per_s: 3.0,
            work: Range { from: Duration::from_millis(100), to: Duration::from_millis(200) },
            retry_delay: Range { from: Duration::from_millis(50), to: Duration::from_millis(150) },
            client: ClientKind::Unchecked,
            renew: None,
            renew_for: None,
            writes: 1,
            resend: None,
            cancel: None,
            deadline: None,
            reenter: 0,
            locks_per_section: 1,
            opposite: false,
            patience: None,
            session: false,
            readers: 0.0,
            hierarchy: 0.0,
            script: Vec::new(),
        }
    }
}

impl Workload {
    /// Returns whether some critical sections are those of readers.
    pub fn has_readers(&self) -> bool {
        self.readers > 0.0 || self.script.iter().any(|part| part.reads == Some(true))
    }

    /// Returns the names of the keys.
    pub fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        (0..self.keys).map(Key::numbered)
    }

    /// Returns the parent of all other keys, if the keys form a hierarchy.
    pub fn parent(&self) -> Option<Key> {
        (self.hierarchy > 0.0).then(|| Key::numbered(0))
    }

    /// Returns the names of the workers.
    pub fn workers(&self) -> impl Iterator<Item = NodeName> + use<> {
        (1..=self.workers).map(|n| NodeName::new(format!("worker-{n}")))
    }

    /// Returns whether a node is a worker. Their names need not be made for that: a plan may have many workers and many
    /// faults.
    pub fn has_worker(&self, node: &NodeName) -> bool {
        let number = node.as_str().strip_prefix("worker-").filter(|number| !number.starts_with(['0', '+']));
        number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| (1..=self.workers).contains(&number))
    }
}

/// Critical sections of one worker at fixed times. A client that is busy at such a time begins as soon as it is free.
/// A worker that restarts begins its script again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    /// The worker, whose clients all follow this script.
    pub worker: NodeName,
    /// Time of the first section, from the start of the client.
    #[serde(with = "human::Text")]
    pub from: Duration,
    /// Number of sections.
    #[serde(default = "one")]
    pub sections: u32,
    /// Time from one section to the next.
    #[serde(with = "human::Text", default = "soon")]
    pub every: Duration,
    /// Writes under each hold, instead of the workload's. With 0 the client acquires and releases, and sends nothing to
    /// the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<u32>,
    /// True if the sections only read, in the mode of a reader; drawn from the workload's share if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<bool>,
    /// Number of failed attempts after which the client gives the section up. If absent, the client never gives up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

fn one() -> u32 {
    1
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

fn is_none(share: &f64) -> bool {
    *share == 0.0
}

fn soon() -> Duration {
    Duration::from_millis(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_are_those_of_the_names() {
        let workload = Workload { workers: 12, ..Workload::default() };
        assert!(workload.workers().all(|worker| workload.has_worker(&worker)));
        for other in ["worker-0", "worker-13", "worker-01", "worker-+1", "worker-", "worker-1#2", "worker", "redis-1"] {
            assert!(!workload.has_worker(&other.into()), "{other}");
        }
        let workload = Workload { workers: u32::MAX, ..Workload::default() };
        let last = NodeName::from("worker-4294967295");
        assert!((0..100_000).all(|_| workload.has_worker(&last)));
    }

    #[test]
    fn a_script_has_readers_only_if_a_part_of_it_reads() {
        let part = |reads| Scripted {
            worker: "worker-1".into(),
            from: Duration::ZERO,
            sections: 1,
            every: soon(),
            writes: None,
            reads,
            attempts: None,
        };
        let table: [(f64, &[Option<bool>], bool); 6] = [
            (0.0, &[], false),
            (0.0, &[None, Some(false)], false),
            (0.0, &[Some(true), Some(false)], true),
            (0.0, &[Some(false), Some(true)], true),
            (0.1, &[], true),
            (0.1, &[None, Some(false)], true),
        ];
        for (readers, reads, expected) in table {
            let script = reads.iter().copied().map(part).collect();
            let workload = Workload { readers, script, ..Workload::default() };
            assert_eq!(workload.has_readers(), expected, "{readers}, {reads:?}");
        }
    }
}
