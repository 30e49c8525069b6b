//! The backends by name: `NAME`, or `buggy:BUG[@NAME]` for a planted bug.

use std::sync::Arc;

use history::{NodeName, Plan, Tokens};
use locks::{
    CannotBuild, Capability, Client, Clock, Connecting, Lock, NodeError, Reentrant, ServerAddress, Servers,
    TokenSource,
    planted::{CannotPlant, PlantedBug},
};

use crate::protocol::Configuration;

/// The lock client that a user names, correct or with a planted bug.
#[derive(Debug, Clone, Copy)]
pub struct Backend {
    /// The correct client.
    pub client: &'static Client,
    /// The bug that is planted in it.
    pub bug: Option<&'static PlantedBug>,
}

/// The reason why a client cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownBackend {
    /// No backend has this name.
    #[error("`{name}` is no backend; there are: {}", names().join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The bug cannot be planted.
    #[error(transparent)]
    Bug(#[from] CannotPlant),
    /// The client does not fit these servers or tokens.
    #[error(transparent)]
    Client(#[from] CannotBuild),
}

/// A plan asks for a capability that the lock lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{lock}` lacks the capability `{capability}`; {}", of_others(*.capability))]
pub struct Lacking {
    /// The flag, or the field of a plan file, that asks for it.
    pub field: &'static str,
    /// The lock.
    pub lock: String,
    /// The capability.
    pub capability: Capability,
}

fn of_others(capability: Capability) -> String {
    let with: Vec<&str> = locks::CLIENTS.iter().filter(|client| client.has(capability)).map(|c| c.name).collect();
    if with.is_empty() { "no backend has it".to_owned() } else { format!("these have it: {}", with.join(", ")) }
}

/// The capabilities that a plan needs, each with the flag or the field of a plan file that asks for it.
pub fn needs(plan: &Plan) -> Vec<(&'static str, Capability)> {
    let asked = [
        ("reenter", plan.workload.reenter > 0, Capability::Reentrant),
        ("session", plan.workload.session, Capability::Sessions),
        ("readers", plan.workload.has_readers(), Capability::ReadWrite),
        ("hierarchy", plan.workload.hierarchy > 0.0, Capability::Hierarchical),
    ];
    asked.into_iter().filter(|(_, is_asked, _)| *is_asked).map(|(field, _, needed)| (field, needed)).collect()
}

fn names() -> Vec<&'static str> {
    locks::CLIENTS.iter().map(|client| client.name).collect()
}

impl Backend {
    /// Finds the client of `text`: `NAME`, or `buggy:BUG[@NAME]`. A bug without a name is planted in its default
    /// client.
    ///
    /// # Errors
    /// There is no such client or bug, or the bug makes no difference in this client.
    pub fn named(text: &str) -> Result<Backend, UnknownBackend> {
        let find = |name: &str| Client::named(name).ok_or_else(|| UnknownBackend::Unknown { name: name.to_owned() });
        let Some(bug) = text.strip_prefix("buggy:") else { return Ok(Backend { client: find(text)?, bug: None }) };
        let (bug, name) = bug.split_once('@').map_or((bug, None), |(bug, name)| (bug, Some(name)));
        name.map(find).transpose()?;
        let bug = PlantedBug::named(bug)?;
        Ok(Backend { client: find(bug.backend(name)?)?, bug: Some(bug) })
    }

    /// The name of the correct client.
    pub fn name(&self) -> &'static str {
        self.client.name
    }

    /// Returns the cargo feature without which this build cannot connect to the servers; none if nothing is missing.
    pub fn missing_feature(&self) -> Option<&'static str> {
        self.client.missing_feature()
    }

    /// Checks that the lock has every capability that a plan needs. A program in place of the client has none, and the
    /// sessions of a lock do not have its planted bug.
    ///
    /// # Errors
    /// The lock lacks one.
    pub fn check(&self, plan: &Plan) -> Result<(), Lacking> {
        let is_lost = |capability: Capability| capability == Capability::Sessions && self.bug.is_some();
        let lacks = |capability| plan.program.is_some() || !self.client.has(capability) || is_lost(capability);
        let lock = || self.bug.map_or_else(|| plan.lock_name(), |bug| format!("buggy:{}", bug.name));
        match needs(plan).into_iter().find(|(_, capability)| lacks(*capability)) {
            Some((field, capability)) => Err(Lacking { field, lock: lock(), capability }),
            None => Ok(()),
        }
    }

    /// Checks that the bug makes a difference with these tokens. A correct client fits all tokens.
    ///
    /// # Errors
    /// The bug changes nothing with these tokens.
    pub fn check_tokens(&self, tokens: Tokens) -> Result<(), CannotPlant> {
        let tokens = source(tokens);
        match self.bug.filter(|bug| !bug.tokens.contains(&tokens)) {
            Some(bug) => Err(CannotPlant::Tokens { bug: bug.name, tokens, fits: bug.tokens }),
            None => Ok(()),
        }
    }

    /// Returns whether the bug makes a difference with these tokens.
    pub fn fits(&self, tokens: Tokens) -> bool {
        self.check_tokens(tokens).is_ok()
    }

    /// Builds the lock over its servers.
    ///
    /// # Errors
    /// The lock does not fit these servers or tokens.
    pub fn build(
        &self,
        servers: Servers,
        tokens: Tokens,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Lock>, UnknownBackend> {
        let tokens = source(tokens);
        match self.bug {
            Some(bug) => Ok(bug.build(self.client, servers, tokens, clock)?),
            None => Ok((self.client.build)(servers, tokens, clock)?),
        }
    }

    /// Makes a lock reentrant for one client.
    pub fn reentrant(&self, lock: Arc<dyn Lock>, clock: Arc<dyn Clock>) -> Arc<dyn Lock> {
        match self.bug {
            Some(bug) => bug.reentrant(lock, clock),
            None => Arc::new(Reentrant::new(lock, clock)),
        }
    }

    /// Connects to the real servers of a configuration, and asks each for its version. A process that
    /// `is_late` starts in the middle of a run, when servers may be down or cut off: it asks each server once, and a
    /// server that gives no answer then has no version.
    ///
    /// # Errors
    /// At the beginning of a run, a server gives no answer.
    pub async fn connect(
        &self,
        configuration: &Configuration,
        is_late: bool,
    ) -> Result<(Servers, Vec<(NodeName, String)>), NodeError> {
        let connecting = Connecting { process: configuration.process as usize, is_late };
        let connected = (self.client.connect)(self.client.name, addresses(configuration), connecting).await?;
        let versions = configuration.lock_nodes.iter().zip(connected.versions);
        let versions = versions.filter(|(_, version)| version.is_ok() || !is_late);
        let versions = versions.map(|((name, _), version)| Ok((name.clone(), version?)));
        Ok((connected.servers, versions.collect::<Result<_, NodeError>>()?))
    }
}

/// The addresses of lock nodes, as `locks` takes them.
pub(crate) fn addresses(configuration: &Configuration) -> Vec<ServerAddress> {
    let server = |(name, address): &(NodeName, String)| ServerAddress {
        name: name.to_string(),
        address: address.clone(),
        access: configuration.access.get(name).cloned().unwrap_or_default(),
    };
    configuration.lock_nodes.iter().map(server).collect()
}

/// The token source of `locks` for the plan's token source.
pub(crate) fn source(tokens: Tokens) -> TokenSource {
    match tokens {
        Tokens::None => TokenSource::None,
        Tokens::Counter => TokenSource::Counter,
        Tokens::MajorityMax => TokenSource::MajorityMax,
        Tokens::TwoPhase => TokenSource::TwoPhase,
        Tokens::TwoPhaseFast => TokenSource::TwoPhaseFast,
        Tokens::Revision => TokenSource::Revision,
        Tokens::Uncommitted => TokenSource::Uncommitted,
        Tokens::Own => TokenSource::Own,
    }
}

#[cfg(test)]
mod tests {
    use locks::planted::PLANTED_BUGS;

    use super::*;

    #[test]
    fn a_bug_without_a_backend_is_planted_in_its_default_and_refused_where_it_changes_nothing() {
        let backend = |text: &str| Backend::named(text).map(|named| (named.client.name, named.bug.map(|bug| bug.name)));
        assert_eq!(backend("buggy:forgets-nx"), Ok(("redis", Some("forgets-nx"))));
        assert_eq!(backend("buggy:forgets-nx@redlock"), Ok(("redlock", Some("forgets-nx"))));
        assert_eq!(backend("buggy:half-majority"), Ok(("redlock", Some("half-majority"))));
        assert_eq!(backend("redlock"), Ok(("redlock", None)));
        assert_eq!(backend("buggy:no-second-look"), Ok(("etcd", Some("no-second-look"))));
        assert_eq!(backend("buggy:no-second-look@etcd"), Ok(("etcd", Some("no-second-look"))));
        for (text, said) in [
            ("buggy:half-majority@redis", "`half-majority` changes nothing on `redis`; it is one of: redlock"),
            ("buggy:half-majority@nothing", "`nothing` is no backend; there are: redis, redis-replicated"),
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
    fn every_bug_fits_a_backend_and_its_default_tokens() {
        for bug in PLANTED_BUGS {
            let backend = Backend::named(&format!("buggy:{}", bug.name)).unwrap();
            assert!(bug.tokens.contains(&backend.client.tokens[0]), "{}", bug.name);
            for name in bug.backends {
                assert!(Backend::named(&format!("buggy:{}@{name}", bug.name)).is_ok(), "{}@{name}", bug.name);
            }
        }
    }

    #[test]
    fn no_two_planted_bugs_share_a_name() {
        let mut names: Vec<_> = PLANTED_BUGS.iter().map(|bug| bug.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PLANTED_BUGS.len());
    }

    #[test]
    fn a_queue_lock_is_built_over_a_store_with_each_of_its_tokens_and_bugs_and_over_nothing_else() {
        struct Unasked;
        impl locks::Store for Unasked {
            fn name(&self) -> &str {
                "etcd"
            }

            fn send(&self, _op: locks::Op) -> locks::Reply<Result<locks::StoreAnswer, locks::NodeError>> {
                unreachable!("a lock asks nothing before it is used")
            }
        }
        let build = |text: &str, tokens, servers| {
            let built = Backend::named(text).and_then(|named| named.build(servers, tokens, Arc::new(locks::BootClock)));
            built.map(|_| ())
        };
        let store = || Servers::Store(Arc::new(Unasked));
        assert_eq!(build("etcd", Tokens::Revision, store()), Ok(()));
        assert_eq!(build("etcd", Tokens::None, store()), Ok(()));
        assert_eq!(build("etcd-server-lock", Tokens::Revision, store()), Ok(()));
        assert_eq!(build("etcd-server-lock", Tokens::None, store()), Ok(()));
        assert!(build("etcd-server-lock", Tokens::Counter, store()).is_err());
        assert!(build("buggy:no-confirm@etcd-server-lock", Tokens::Revision, store()).is_err());
        for bug in PLANTED_BUGS.iter().filter(|bug| bug.backends == ["etcd"]) {
            assert_eq!(build(&format!("buggy:{}", bug.name), Tokens::Revision, store()), Ok(()));
            let named = Backend::named(&format!("buggy:{}", bug.name)).unwrap();
            let lock = named.build(store(), Tokens::Revision, Arc::new(locks::BootClock)).unwrap();
            let is_wrong = lock.intention(locks::Mode::Write) != Some(locks::Mode::IntentWrite);
            assert_eq!(is_wrong, ["skips-intention", "weak-intention"].contains(&bug.name), "{}", bug.name);
        }
        assert!(build("etcd", Tokens::TwoPhase, store()).is_err());
        assert!(build("buggy:no-confirm", Tokens::None, store()).is_err());
        assert!(build("etcd", Tokens::Revision, Servers::Nodes(vec![])).is_err());
        assert!(build("redis", Tokens::Counter, store()).is_err());
    }
}
