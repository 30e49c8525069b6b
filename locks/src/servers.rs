//! The servers and the token source that a lock is built from.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time;

use crate::{
    access::Access,
    ports::{Node, NodeError, Store, Table},
    replication::Replication,
};

/// The time within which each server must say its version before a run begins. A busy machine can leave a server
/// without a processor for seconds, and no lock is timed yet.
const VERSION_WITHIN: Duration = Duration::from_secs(15);
/// The pause before a server is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// The server's name in answers and messages.
    pub name: String,
    /// Its `host:port`.
    pub address: String,
    /// The access that it needs; by default none.
    pub access: Access,
}

impl ServerAddress {
    /// A server that needs no credentials, over plain TCP.
    pub fn new(name: impl Into<String>, address: impl Into<String>) -> ServerAddress {
        ServerAddress { name: name.into(), address: address.into(), access: Access::default() }
    }
}

/// The process that connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connecting {
    /// The number of the process, which decides the member of a store that the process asks first.
    pub process: usize,
    /// True if the process starts in the middle of a run, when servers may be down. It asks each server for its version
    /// only once: its clients must not wait for servers that their lock does not need.
    pub is_late: bool,
}

/// Servers that a client can use, and the versions that they gave.
pub struct Connected {
    /// The servers.
    pub servers: Servers,
    /// The version of each server in the order of the addresses, or the reason why the server gave none.
    pub versions: Vec<Result<String, NodeError>>,
}

/// Asks each server for its version, again and again for at most 15 s. The last answer or error of each counts. A late
/// process asks once.
pub(crate) async fn ask_versions(
    servers: &[ServerAddress],
    Connecting { is_late, .. }: Connecting,
    ask: impl AsyncFn(&ServerAddress) -> Result<String, NodeError>,
) -> Vec<Result<String, NodeError>> {
    let until = time::Instant::now() + VERSION_WITHIN;
    let patiently = async |server: &ServerAddress| loop {
        let said = ask(server).await;
        if is_late || said.is_ok() || time::Instant::now() >= until {
            return said;
        }
        time::sleep(ASK_AGAIN).await;
    };
    join_all(servers.iter().map(patiently)).await
}

/// The servers that a lock is built over.
#[derive(Clone)]
pub enum Servers {
    /// Independent nodes.
    Nodes(Vec<Arc<dyn Node>>),
    /// One store with revisions and leases, however many members it has.
    Store(Arc<dyn Store>),
    /// A Redis primary and its replicas.
    Replicated(Arc<Replication>),
    /// One table with conditional writes.
    Table(Arc<dyn Table>),
    /// Servers to which the client connects anew for each attempt.
    Addresses(Vec<ServerAddress>),
}

/// The source of a hold's fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenSource {
    /// Holds carry no tokens, and nodes keep no counters.
    None,
    /// The counter of the only node.
    Counter,
    /// The largest counter of the nodes that granted the lock. It is **not monotonic** on several nodes.
    MajorityMax,
    /// The largest counter, written back to a majority before the client claims the hold: monotonic. See
    /// [`Redlock`](crate::Redlock).
    TwoPhase,
    /// As `two-phase`, but without the write-back if a majority has given the largest counter itself.
    TwoPhaseFast,
    /// The revision of the store at which the hold's key was created.
    Revision,
    /// The counter of the only node, incremented in a transaction that is committed when the hold is released. It is
    /// **not unique**: if the holder's session dies, the server undoes the increment.
    Uncommitted,
    /// Tokens that a client program makes by itself.
    Own,
}

/// The reason why a lock cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotBuild {
    /// The servers are of another kind, or too few or too many.
    #[error("the lock `{lock}` needs {needs}")]
    Servers {
        /// The lock's name.
        lock: &'static str,
        /// The servers that it needs.
        needs: &'static str,
    },
    /// The lock has no tokens of this source.
    #[error("the lock `{lock}` does not make tokens `{tokens}`; it makes: {}", listed(makes))]
    Tokens {
        /// The lock's name.
        lock: &'static str,
        /// The source that was asked for.
        tokens: TokenSource,
        /// The sources that the lock has.
        makes: &'static [TokenSource],
    },
}

impl Servers {
    /// The independent nodes, for the lock of this name.
    ///
    /// # Errors
    /// The servers are something else, or there are none.
    pub(crate) fn nodes(self, lock: &'static str) -> Result<Vec<Arc<dyn Node>>, CannotBuild> {
        match self {
            Servers::Nodes(nodes) if !nodes.is_empty() => Ok(nodes),
            _ => Err(CannotBuild::Servers { lock, needs: "independent nodes, one at least" }),
        }
    }

    /// The store, for the lock of this name.
    ///
    /// # Errors
    /// The servers are something else.
    pub(crate) fn store(self, lock: &'static str) -> Result<Arc<dyn Store>, CannotBuild> {
        match self {
            Servers::Store(store) => Ok(store),
            _ => Err(CannotBuild::Servers { lock, needs: "a store with revisions and leases" }),
        }
    }

    /// The table, for the lock of this name.
    ///
    /// # Errors
    /// The servers are something else.
    pub(crate) fn table(self, lock: &'static str) -> Result<Arc<dyn Table>, CannotBuild> {
        match self {
            Servers::Table(table) => Ok(table),
            _ => Err(CannotBuild::Servers { lock, needs: "a table with conditional writes" }),
        }
    }
}

impl TokenSource {
    /// The name in plans and messages.
    pub fn name(self) -> &'static str {
        match self {
            TokenSource::None => "none",
            TokenSource::Counter => "counter",
            TokenSource::MajorityMax => "majority-max",
            TokenSource::TwoPhase => "two-phase",
            TokenSource::TwoPhaseFast => "two-phase-fast",
            TokenSource::Revision => "revision",
            TokenSource::Uncommitted => "uncommitted",
            TokenSource::Own => "own",
        }
    }

    /// Checks that `makes`, the sources of the lock of this name, has this source.
    pub(crate) fn check(self, lock: &'static str, makes: &'static [TokenSource]) -> Result<(), CannotBuild> {
        if makes.contains(&self) { Ok(()) } else { Err(CannotBuild::Tokens { lock, tokens: self, makes }) }
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The names of `tokens`, for a message.
pub(crate) fn listed(tokens: &[TokenSource]) -> String {
    tokens.iter().map(|tokens| tokens.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The versions of two servers that answer from the question number `answered` on.
    async fn versions(answered: usize, is_late: bool) -> Vec<Result<String, NodeError>> {
        let servers = ["redis-1", "redis-2"].map(|name| ServerAddress::new(name, "127.0.0.1:1"));
        let asked = AtomicUsize::new(0);
        let ask = async |server: &ServerAddress| {
            if asked.fetch_add(1, Ordering::SeqCst) < answered {
                return Err(NodeError::Definite("starting".to_owned()));
            }
            Ok(format!("7.0.15 of {}", server.name))
        };
        ask_versions(&servers, Connecting { process: 0, is_late }, ask).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_starts_late_has_a_version() {
        let began = time::Instant::now();
        let expected = ["redis-1", "redis-2"].map(|name| Ok::<_, NodeError>(format!("7.0.15 of {name}")));
        assert_eq!(versions(7, false).await, expected);
        assert!(began.elapsed() < VERSION_WITHIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_starts_has_a_reason() {
        let began = time::Instant::now();
        let expected = [1, 2].map(|_| Err::<String, _>(NodeError::Definite("starting".to_owned())));
        assert_eq!(versions(usize::MAX, false).await, expected);
        assert!((VERSION_WITHIN..VERSION_WITHIN * 2).contains(&began.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_process_waits_for_no_server_that_is_down() {
        let began = time::Instant::now();
        let said = versions(1, true).await;
        assert_eq!(said.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
