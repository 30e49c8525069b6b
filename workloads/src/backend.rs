//! The locks by name. A backend is one line here, its file in `locks`, and its Compose file.

use std::sync::Arc;

use futures::future::join_all;
use history::{NodeName, Tokens};
use locks::{Clock, Etcd, EtcdServerLock, Lock, Node, Redis, Redlock, Store};

/// A lock that `--backend` knows.
#[derive(Debug, Clone, Copy)]
pub struct Backend {
    /// Its name, and that of its Compose file.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// How it can make tokens; the first is the default.
    pub tokens: &'static [Tokens],
    /// Its lock nodes: what their names begin with, and how many there are.
    pub nodes: (&'static str, u32),
    /// The port on which each of them answers.
    pub port: u16,
}

impl Backend {
    /// Whether it stands on one store with revisions, however many servers that has, and not on nodes that know nothing of each other.
    fn is_on_store(&self) -> bool {
        self.tokens.contains(&Tokens::Revision)
    }

    /// Whether its clients see that they have to wait, or are refused. Those of etcd's own Lock service see no more than that no answer comes.
    pub fn shows_waiting(&self) -> bool {
        self.name != ETCD_SERVER_LOCK
    }

    /// Names of its lock nodes: `redis-1`, `redis-2`, ….
    pub fn lock_nodes(&self) -> Vec<NodeName> {
        let (prefix, count) = self.nodes;
        (1..=count).map(|n| NodeName::new(format!("{prefix}-{n}"))).collect()
    }
}

/// What a lock is built over.
#[derive(Clone)]
pub enum Servers {
    /// Nodes that know nothing of each other.
    Nodes(Vec<Arc<dyn Node>>),
    /// One store, however many servers it has.
    Store(Arc<dyn Store>),
}

impl Servers {
    /// Connects to the real servers of what `--backend` names, and asks each for its version. `process` is the number of whoever connects: one in
    /// three asks the same member of a store of three first. Who `is_late` comes in the middle of a run: servers may be down or cut off from it,
    /// and those that do not answer have no version here.
    ///
    /// # Errors
    /// No lock of this name; or, at the beginning of a run, a server that gives no answer.
    pub async fn connect(
        text: &str,
        nodes: &[(NodeName, String)],
        process: u32,
        is_late: bool,
    ) -> Result<(Servers, Vec<(NodeName, String)>), Box<dyn std::error::Error + Send + Sync>> {
        let (backend, _) = named(text)?;
        let is_store = backend.is_on_store();
        let asked = nodes.iter().map(|(node, address)| async move {
            let version = match is_store {
                true => locks::store::member_version(address).await,
                false => locks::server_version(address).await,
            };
            version.map(|version| (node.clone(), version))
        });
        let asked = join_all(asked).await.into_iter();
        let versions = asked.filter(|asked| asked.is_ok() || !is_late).collect::<Result<Vec<_>, _>>()?;
        let servers = if is_store {
            let members: Vec<_> = nodes.iter().map(|(node, address)| (node.to_string(), address.clone())).collect();
            Servers::Store(locks::store::connect(backend.name, &members, process as usize).await?)
        } else {
            Servers::Nodes(nodes.iter().map(|(node, address)| locks::connect(node.as_str(), address)).collect())
        };
        Ok((servers, versions))
    }
}

/// All of them.
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "redis",
        about: "one Redis node: SET NX PX and a counter in one script",
        tokens: &[Tokens::Counter, Tokens::None],
        nodes: ("redis", 1),
        port: 6379,
    },
    Backend {
        name: "redlock",
        about: "a majority of five independent Redis nodes",
        tokens: &[Tokens::TwoPhase, Tokens::MajorityMax, Tokens::None],
        nodes: ("redis", 5),
        port: 6379,
    },
    Backend {
        name: ETCD,
        about: "a queue of keys in etcd, each under a lease of its own; the oldest holds",
        tokens: &[Tokens::Revision, Tokens::None],
        nodes: ("etcd", 3),
        port: 2379,
    },
    Backend {
        name: ETCD_SERVER_LOCK,
        about: "etcd's own Lock service: the same queue, kept by the server",
        tokens: &[Tokens::Revision, Tokens::None],
        nodes: ("etcd", 3),
        port: 2379,
    },
];

/// The backend of the planted bugs of queue locks.
const ETCD: &str = "etcd";
/// The lock that etcd offers itself.
const ETCD_SERVER_LOCK: &str = "etcd-server-lock";

/// No lock of this name, or not with these tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownBackend(pub String);

impl From<locks::NotBuggy> for UnknownBackend {
    fn from(error: locks::NotBuggy) -> UnknownBackend {
        UnknownBackend(error.to_string())
    }
}

/// What `--backend` names: the backend, and the planted bug if it is `buggy:<bug>` or `buggy:<bug>@<backend>`. A bug without a backend is
/// on its own one; on one where it would change nothing it is refused.
pub fn named(text: &str) -> Result<(&'static Backend, Option<&'static str>), UnknownBackend> {
    let find = |name: &str| {
        BACKENDS.iter().find(|b| b.name == name).ok_or_else(|| {
            let known: Vec<_> = BACKENDS.iter().map(|b| b.name).collect();
            UnknownBackend(format!("`{name}` is no backend; there are: {}", known.join(", ")))
        })
    };
    let Some(bug) = text.strip_prefix("buggy:") else { return Ok((find(text)?, None)) };
    let (bug, name) = bug.split_once('@').map_or((bug, None), |(bug, name)| (bug, Some(name)));
    if let Some(name) = name {
        find(name)?;
    }
    if let Some((bug, _)) = locks::etcd::BUGGY.iter().find(|(known, _)| *known == bug) {
        return match name {
            None | Some(ETCD) => Ok((find(ETCD)?, Some(bug))),
            Some(name) => Err(UnknownBackend(format!("`{bug}` changes nothing on `{name}`; it is one of: {ETCD}"))),
        };
    }
    let bug = locks::Bug::named(bug).map_err(|error| {
        let of_queues: Vec<_> = locks::etcd::BUGGY.iter().map(|(name, _)| *name).collect();
        UnknownBackend(format!("{error}, {}", of_queues.join(", ")))
    })?;
    Ok((find(bug.backend(name)?)?, Some(bug.name)))
}

/// Builds the lock over its servers.
pub fn lock(
    text: &str,
    tokens: Tokens,
    servers: Servers,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, UnknownBackend> {
    let (backend, bug) = named(text)?;
    let mut nodes = match servers {
        Servers::Store(store) if backend.is_on_store() => return queue(backend, bug, tokens, store, clock),
        Servers::Nodes(nodes) if !backend.is_on_store() => nodes,
        Servers::Store(_) => {
            return Err(UnknownBackend(format!("`{}` needs nodes that know nothing of each other", backend.name)));
        }
        Servers::Nodes(_) => return Err(UnknownBackend(format!("`{}` needs a store with leases", backend.name))),
    };
    if let Some(bug) = bug {
        let made = made(tokens)
            .ok_or_else(|| UnknownBackend(format!("`{}` does not make tokens `{tokens}`", backend.name)))?;
        return Ok(locks::buggy(bug, nodes, clock, made)?);
    }
    let redlock = |tokens| Ok(Arc::new(Redlock::new(nodes.clone(), clock.clone(), tokens)) as Arc<dyn Lock>);
    match (backend.name, tokens) {
        ("redlock", Tokens::None) => redlock(locks::Tokens::None),
        ("redlock", Tokens::MajorityMax) => redlock(locks::Tokens::MajorityMax),
        ("redlock", Tokens::TwoPhase) => redlock(locks::Tokens::TwoPhase),
        ("redis", Tokens::Counter | Tokens::None) if nodes.len() == 1 => {
            let node = nodes.remove(0);
            Ok(match tokens {
                Tokens::None => Arc::new(Redis::without_tokens(node, clock)),
                _ => Arc::new(Redis::new(node, clock)),
            })
        }
        (name, _) => {
            let known: Vec<_> = backend.tokens.iter().map(Tokens::to_string).collect();
            Err(UnknownBackend(format!(
                "`{name}` on {} nodes does not make tokens `{tokens}`; it makes: {}",
                nodes.len(),
                known.join(", ")
            )))
        }
    }
}

/// A lock over a store. The bugs are planted in `etcd` with tokens.
fn queue(
    backend: &Backend,
    bug: Option<&str>,
    tokens: Tokens,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, UnknownBackend> {
    let unmade = |what: &str| UnknownBackend(format!("`{what}` does not make tokens `{tokens}`"));
    match (bug, tokens) {
        (None, Tokens::Revision) if backend.name == ETCD_SERVER_LOCK => Ok(Arc::new(EtcdServerLock::new(store, clock))),
        (None, Tokens::None) if backend.name == ETCD_SERVER_LOCK => {
            Ok(Arc::new(EtcdServerLock::without_tokens(store, clock)))
        }
        (None, Tokens::Revision) => Ok(Arc::new(Etcd::new(store, clock))),
        (None, Tokens::None) => Ok(Arc::new(Etcd::without_tokens(store, clock))),
        (Some(bug), Tokens::Revision) => locks::etcd::buggy(bug, store, clock).ok_or_else(|| unmade(bug)),
        (bug, _) => Err(unmade(bug.unwrap_or(backend.name))),
    }
}

/// The same word of `locks`, if nodes make such tokens: on one of them the counter is its largest.
fn made(tokens: Tokens) -> Option<locks::Tokens> {
    match tokens {
        Tokens::None => Some(locks::Tokens::None),
        Tokens::Counter | Tokens::MajorityMax => Some(locks::Tokens::MajorityMax),
        Tokens::TwoPhase => Some(locks::Tokens::TwoPhase),
        Tokens::Revision => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_bug_is_on_the_backend_on_which_it_shows_and_others_are_refused_where_it_cannot() {
        let backend = |text: &str| named(text).map(|(backend, bug)| (backend.name, bug));
        assert_eq!(backend("buggy:forgets-nx"), Ok(("redis", Some("forgets-nx"))));
        assert_eq!(backend("buggy:forgets-nx@redlock"), Ok(("redlock", Some("forgets-nx"))));
        assert_eq!(backend("buggy:half-majority"), Ok(("redlock", Some("half-majority"))));
        assert_eq!(backend("redlock"), Ok(("redlock", None)));
        assert_eq!(backend("buggy:no-second-look"), Ok(("etcd", Some("no-second-look"))));
        assert_eq!(backend("buggy:no-second-look@etcd"), Ok(("etcd", Some("no-second-look"))));
        for (text, said) in [
            ("buggy:half-majority@redis", "`half-majority` changes nothing on `redis`; it is one of: redlock"),
            ("buggy:half-majority@nothing", "`nothing` is no backend"),
            ("buggy:half-majority@etcd", "`half-majority` changes nothing on `etcd`; it is one of: redlock"),
            ("buggy:no-second-look@redis", "`no-second-look` changes nothing on `redis`; it is one of: etcd"),
            ("buggy:nothing", "keep-alive-zero"),
            ("buggy:nothing", "`nothing` is no planted bug; there are: forgets-nx"),
        ] {
            let error = backend(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn every_bug_names_a_backend_that_there_is_and_fits_the_tokens_that_this_makes_by_default() {
        for bug in locks::BUGGY {
            let (backend, _) = named(&format!("buggy:{}", bug.name)).unwrap();
            assert!(made(backend.tokens[0]).is_some_and(|made| bug.tokens.contains(&made)), "{}", bug.name);
            for name in bug.backends {
                assert!(named(&format!("buggy:{}@{name}", bug.name)).is_ok(), "{}@{name}", bug.name);
            }
        }
    }
    #[test]
    fn no_two_planted_bugs_share_a_name() {
        let mut names: Vec<_> = locks::BUGGY.iter().map(|bug| bug.name).collect();
        names.extend(locks::etcd::BUGGY.iter().map(|(name, _)| *name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_queue_lock_is_built_over_a_store_with_each_of_its_tokens_and_bugs_and_over_nothing_else() {
        struct Unasked;
        impl Store for Unasked {
            fn name(&self) -> &str {
                "etcd"
            }

            fn send(&self, _op: locks::Op) -> locks::Reply<Result<locks::Seen, locks::NodeError>> {
                unreachable!("a lock asks nothing before it is used")
            }
        }
        let build = |text: &str, tokens, servers| lock(text, tokens, servers, Arc::new(locks::BootClock)).map(|_| ());
        let store = || Servers::Store(Arc::new(Unasked));
        assert_eq!(build("etcd", Tokens::Revision, store()), Ok(()));
        assert_eq!(build("etcd", Tokens::None, store()), Ok(()));
        assert_eq!(build("etcd-server-lock", Tokens::Revision, store()), Ok(()));
        assert_eq!(build("etcd-server-lock", Tokens::None, store()), Ok(()));
        assert!(build("etcd-server-lock", Tokens::Counter, store()).is_err());
        assert!(build("buggy:no-confirm@etcd-server-lock", Tokens::Revision, store()).is_err());
        for (bug, _) in locks::etcd::BUGGY {
            assert_eq!(build(&format!("buggy:{bug}"), Tokens::Revision, store()), Ok(()));
        }
        assert!(build("etcd", Tokens::TwoPhase, store()).is_err());
        assert!(build("buggy:no-confirm", Tokens::None, store()).is_err());
        assert!(build("etcd", Tokens::Revision, Servers::Nodes(vec![])).is_err());
        assert!(build("redis", Tokens::Counter, store()).is_err());
    }
}
