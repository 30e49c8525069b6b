//! The locks by name. A backend is one line here, its file in `locks`, and its Compose file.

use std::sync::Arc;

use history::{NodeName, Tokens};
use locks::{Clock, Lock, Node, Redis, Redlock, Store};

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
}

impl Backend {
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

/// All of them.
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "redis",
        about: "one Redis node: SET NX PX and a counter in one script",
        tokens: &[Tokens::Counter, Tokens::None],
        nodes: ("redis", 1),
    },
    Backend {
        name: "redlock",
        about: "a majority of five independent Redis nodes",
        tokens: &[Tokens::TwoPhase, Tokens::MajorityMax, Tokens::None],
        nodes: ("redis", 5),
    },
];

/// No lock of this name, or not with these tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownBackend(pub String);

/// What `--backend` names: the backend, and the planted bug if it is `buggy:<bug>` or `buggy:<bug>@<backend>`.
pub fn named(text: &str) -> Result<(&'static Backend, Option<&str>), UnknownBackend> {
    let find = |name: &str| {
        BACKENDS.iter().find(|b| b.name == name).ok_or_else(|| {
            let known: Vec<_> = BACKENDS.iter().map(|b| b.name).collect();
            UnknownBackend(format!("`{name}` is no backend; there are: {}", known.join(", ")))
        })
    };
    let Some(bug) = text.strip_prefix("buggy:") else { return Ok((find(text)?, None)) };
    let (bug, name) = bug.split_once('@').unwrap_or((bug, "redis"));
    if !locks::BUGGY.iter().any(|(known, _)| *known == bug) {
        let known: Vec<_> = locks::BUGGY.iter().map(|(name, _)| *name).collect();
        return Err(UnknownBackend(format!("`{bug}` is no planted bug; there are: {}", known.join(", "))));
    }
    Ok((find(name)?, Some(bug)))
}

/// Builds the lock over its servers.
pub fn lock(
    text: &str,
    tokens: Tokens,
    servers: Servers,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, UnknownBackend> {
    let (backend, bug) = named(text)?;
    let Servers::Nodes(mut nodes) = servers else {
        return Err(UnknownBackend(format!("`{}` needs nodes that know nothing of each other", backend.name)));
    };
    if let Some(bug) = bug {
        return locks::buggy(bug, nodes, clock).ok_or_else(|| UnknownBackend(format!("`{bug}` is no planted bug")));
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
