//! A ZooKeeper ensemble as a [`Store`]: the queue lock [`Etcd`] over ephemeral sequential znodes.
//!
//! | request of the store | ZooKeeper |
//! | --- | --- |
//! | a lease | a session of its own, of the time that the servers negotiated |
//! | a key of the queue | an ephemeral sequential znode `/locks/KEY/OWNER-SEQUENCE` of that session |
//! | the mode of a key | `OWNER~MODE-SEQUENCE`, unless the mode is that of a writer |
//! | a revision | the znode's `czxid`, the number of the transaction that created it: the fencing token |
//! | is the new key the first? | a list sent behind the creation has the znode, and no smaller sequence |
//! | wait for a key to go | one watch on that znode; [`connect_herd`]: a watch on all children of the queue |
//! | keep a lease alive | the creation of a znode, or a transaction that checks that the session's znode exists |
//! | confirm | the same transaction, and a list of the children: no sequence is smaller |
//! | revoke a lease | close the session |
//!
//! # Order
//!
//! Sequences and `czxid`s of a queue grow together, because both come from the order of the ensemble's transactions. No
//! znode ever gets a smaller one before it, so the check and the list of a confirmation may be two requests: at the
//! time of the check the znode existed, and no smaller one could come any more. A list may come from a follower that is
//! behind. It is never older than the session's own znode, because a session never sees time go backwards; and all
//! smaller znodes are older than that one. So a list that has the session's own znode and no smaller one confirms the
//! hold by itself, as long as the session lasts, which is what the promise says.
//!
//! # The promise
//!
//! A hold rests on the session's creation, on the creation of its znode or on a check that was answered, counted from
//! the sending. All three are transactions that the leader orders, so they prove the same of the session. The client
//! library's own pings keep a session alive too, but they cannot be observed, so they promise nothing. A session whose
//! last such request is older than its timeout is closed here: the library would keep it alive for ever. The close
//! frees the lock at once, so it must not come while the promise lasts. So the timeout is measured by the kernel's raw
//! clock, which no clock fault of this process changes. (A client that leaves the session to the servers would have to
//! decide so when it connects, and would then need a second connection for each release.)
//!
//! A session's creation starts the timeout on the leader, after the request was sent: the promise is exact. A check or
//! a creation that goes through the leader does too. One that goes through a follower proves that the session had not
//! ended when the leader ordered it, but it is the **follower** that notes the sign of life; the follower reports it
//! with its next answer to the leader's ping, which comes every half tick (the servers of the built-in Compose file:
//! 100 ms). One case is not covered: the follower is cut off, or dies, in this half tick, and the client does not reach
//! another server before the leader ends the session. The leader may then end it up to half a tick and one ping of the
//! library early. (A leader rounds every timeout up to its next tick, which makes up for some of this.)
//!
//! # What is left behind
//!
//! If the answer to the creation of a znode is lost, the attempt fails, and its undo closes the session; the znode goes
//! with it, even if it was created afterwards: a closed session creates nothing. A creation is never repeated, so no
//! owner has two znodes. Checks and looks change nothing, and a deletion can be done only once: they are repeated on
//! another server.
//!
//! [`Etcd`]: crate::Etcd

mod version;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time;
use zookeeper_client::{Acls, Client, CreateMode, Error, EventType, MultiWriteError};

use crate::{
    answer::spawned,
    clock::RawClock,
    hold::{Key, Owner, path_part},
    mode::Mode,
    ports::{Clock, LeaseId, NodeError, Op, Reply, Revision, Store, StoreAnswer},
    servers::{Connected, Connecting, ServerAddress, Servers, ask_versions},
};

/// The parent of all queues.
const ROOT: &str = "/locks";
/// A server that is silent for this part of the session timeout is left for another one.
const SILENT: u32 = 8;

/// The znodes that a waiting client watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// The predecessor only: a znode that goes wakes one client.
    Predecessor,
    /// All children of the queue: every change wakes every client.
    Children,
}

/// An ensemble and the sessions that this process has there.
struct Ensemble {
    name: String,
    /// The servers as the client library takes them: `host:port,host:port`.
    servers: String,
    watched: Watched,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<LeaseId, Session>,
    /// The znodes that sessions of this process created.
    created: Znodes,
    /// The predecessors that they have seen, each with the last session that saw it.
    predecessors: Znodes,
    /// The beginnings of the paths of znodes whose creation was not answered, each with its session.
    unanswered: BTreeMap<String, LeaseId>,
}

struct Session {
    client: Client,
    /// The time that was negotiated.
    timeout: Duration,
    /// The session is given up then, by the raw clock, unless a check or a creation is answered before.
    ends: Duration,
    /// The session's own znodes that no release has begun to delete, the oldest first.
    paths: Vec<String>,
}

/// Requests name znodes by their revisions.
type Znodes = BTreeMap<(Key, Revision), Znode>;

/// A znode, and the session that created it or saw it.
#[derive(Debug, Clone)]
struct Znode {
    lease: LeaseId,
    name: String,
}

/// The ensemble as a store.
struct EnsembleStore(Arc<Ensemble>);

/// Prepares the lock `zookeeper`, and asks each server for its version. The sessions connect when they are needed, each
/// to a server of the library's choice.
pub(crate) fn connect(
    client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    connect_watching(client, servers, connecting, Watched::Predecessor)
}

/// Prepares the lock `zookeeper-herd`, whose waiting clients watch all children of the queue.
pub(crate) fn connect_herd(
    client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    connect_watching(client, servers, connecting, Watched::Children)
}

fn connect_watching(
    client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
    watched: Watched,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let asking = ask_versions(&servers, connecting, async |server: &ServerAddress| {
            version::server_version(&server.address).await
        });
        let versions = asking.await;
        let servers = servers.into_iter().map(|server| server.address).collect::<Vec<_>>().join(",");
        let ensemble = Ensemble { name: client.to_owned(), servers, watched, state: Mutex::default() };
        Ok(Connected { servers: Servers::Store(Arc::new(EnsembleStore(Arc::new(ensemble)))), versions })
    })
}

impl Store for EnsembleStore {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn keeps_alive_by_creating(&self) -> bool {
        true
    }

    fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>> {
        let ensemble = self.0.clone();
        spawned(async move { ensemble.ask(op).await })
    }
}

impl Ensemble {
    async fn ask(self: Arc<Self>, op: Op) -> Result<StoreAnswer, NodeError> {
        let answer = match op {
            Op::Grant(lease) => self.open(lease).await,
            Op::KeepAlive(lease) => self.keep_alive(lease).await,
            Op::Revoke(lease) => Ok(self.close(lease).await),
            Op::Create(key, owner, lease, mode) => self.create(key, &owner, lease, mode).await,
            Op::Before(key, revision, mode) => self.before(&key, revision, mode).await,
            Op::AwaitGone(key, revision) => self.await_gone(&key, revision).await,
            Op::Confirm(key, revision, mode) => self.confirm(&key, revision, mode).await,
            Op::Delete(key, revision) => self.delete(&key, revision).await,
            op => return Err(NodeError::Definite(format!("ZooKeeper has no request for {op:?}"))),
        };
        answer.or_else(|error| match error {
            // The znodes end with their session. The confirmation then refuses a client that waited in the queue.
            Error::SessionExpired | Error::ClientClosed => Ok(StoreAnswer::Gone),
            error => Err(NodeError::Indeterminate(error.to_string())),
        })
    }

    /// Creates a session.
    async fn open(self: Arc<Self>, lease: Duration) -> Result<StoreAnswer, Error> {
        let connector = Client::connector().with_session_timeout(lease).with_connection_timeout(lease / SILENT);
        // If no caller waits for the answer any more, the answer makes a session without a znode, which is given up.
        let client = connector.connect(&self.servers).await?;
        let (lease, timeout) = (LeaseId(client.session_id().0), client.session_timeout());
        let session = Session { client, timeout, ends: raw_clock() + timeout, paths: Vec::new() };
        self.state().sessions.insert(lease, session);
        tokio::spawn(self.give_up_at_end(lease));
        Ok(StoreAnswer::Leased(lease, timeout))
    }

    /// Closes the session when its timeout has passed since the last check or creation that was answered.
    async fn give_up_at_end(self: Arc<Self>, lease: LeaseId) {
        loop {
            let Some(ends) = self.state().sessions.get(&lease).map(|session| session.ends) else { return };
            let left = ends.saturating_sub(raw_clock());
            if left.is_zero() {
                self.close(lease).await;
                return;
            }
            // After a clock fault the timer may be early.
            time::sleep(left).await;
        }
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<StoreAnswer, Error> {
        let sent = raw_clock();
        loop {
            let Some((client, path)) = self.session(lease) else {
                return Ok(StoreAnswer::Leased(lease, Duration::ZERO));
            };
            if exists(&client, path.as_deref().unwrap_or("/")).await? {
                return Ok(self.checked(lease, sent));
            }
            // The client may have released this one of several holds meanwhile.
            if self.session(lease).is_some_and(|(_, now)| now == path) {
                return Ok(StoreAnswer::Gone);
            }
        }
    }

    /// The answer to a keep-alive whose check was sent at `sent` and has found the session. A session that was given up
    /// meanwhile is being closed.
    fn checked(&self, lease: LeaseId, sent: Duration) -> StoreAnswer {
        let mut state = self.state();
        let Some(session) = state.sessions.get_mut(&lease) else { return StoreAnswer::Leased(lease, Duration::ZERO) };
        session.ends = session.ends.max(sent + session.timeout);
        StoreAnswer::Leased(lease, session.timeout)
    }

    /// Closes the session, and returns when the servers have said so. The library tries for as long as the session may
    /// live, also on other servers.
    async fn close(&self, lease: LeaseId) -> StoreAnswer {
        let session = {
            let mut state = self.state();
            state.created.retain(|_, znode| znode.lease != lease);
            state.predecessors.retain(|_, znode| znode.lease != lease);
            state.unanswered.retain(|_, of| *of != lease);
            state.sessions.remove(&lease)
        };
        let Some(Session { client, .. }) = session else { return StoreAnswer::Gone };
        let mut watcher = client.state_watcher();
        // The library closes a session whose client is dropped.
        drop(client);
        let mut state = watcher.peek_state();
        while !state.is_terminated() {
            state = watcher.changed().await;
        }
        if state == zookeeper_client::SessionState::Closed { StoreAnswer::Done } else { StoreAnswer::Gone }
    }

    async fn create(&self, key: Key, owner: &Owner, lease: LeaseId, mode: Mode) -> Result<StoreAnswer, Error> {
        let Some((client, ..)) = self.session(lease) else { return Ok(StoreAnswer::Gone) };
        let queue = queue(&key);
        let named = format!("{owner}{}-", mode.mark());
        let prefix = format!("{queue}/{named}");
        if self.state().unanswered.contains_key(&prefix) {
            return self.find(client, (key, named), lease).await;
        }
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        // The list is sent behind the creation on the same connection, so it costs no second way.
        let sent = raw_clock();
        let create = async || tokio::join!(client.create(&prefix, b"", &options), client.list_children(&queue));
        let (created, listed) = match create().await {
            // The first znode of a queue. Nothing was created, so the request may be sent again.
            (Err(Error::NoNode), _) => {
                client.mkdir(&queue, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
                create().await
            }
            other => other,
        };
        let (stat, sequence) = match created {
            Ok(created) => created,
            Err(error) => {
                self.state().unanswered.insert(prefix, lease);
                return Err(error);
            }
        };
        let (name, revision) = (format!("{named}{sequence}"), Revision(stat.czxid));
        let mut state = self.state();
        // A session that was closed meanwhile has no znode any more.
        let Some(session) = state.sessions.get_mut(&lease) else { return Ok(StoreAnswer::Gone) };
        session.paths.push(format!("{queue}/{name}"));
        session.ends = session.ends.max(sent + session.timeout);
        let is_first = listed.is_ok_and(|all| all.contains(&name) && predecessor(&name, mode, &all).is_none());
        state.created.insert((key, revision), Znode { lease, name });
        Ok(if is_first { StoreAnswer::First(revision) } else { StoreAnswer::At(revision) })
    }

    /// Finds the znode of a creation that was not answered, by the beginning of its name. Such a creation is not sent
    /// again, because it would make a second znode.
    async fn find(&self, client: Client, (key, named): (Key, String), lease: LeaseId) -> Result<StoreAnswer, Error> {
        let queue = queue(&key);
        let children = repeated(|| client.list_children(&queue)).await?;
        // The name of another owner may begin with the name of this one.
        let is_sequence = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
        let is_own = |name: &String| name.strip_prefix(&named).is_some_and(is_sequence);
        let Some(name) = children.into_iter().find(is_own) else {
            // The request may still be under way.
            return Err(Error::ConnectionLoss);
        };
        let path = format!("{queue}/{name}");
        let Some(stat) = repeated(|| client.check_stat(&path)).await? else { return Ok(StoreAnswer::Gone) };
        let revision = Revision(stat.czxid);
        let mut state = self.state();
        let Some(session) = state.sessions.get_mut(&lease) else { return Ok(StoreAnswer::Gone) };
        session.paths.push(path);
        state.created.insert((key, revision), Znode { lease, name });
        Ok(StoreAnswer::At(revision))
    }

    async fn before(&self, key: &Key, revision: Revision, mode: Mode) -> Result<StoreAnswer, Error> {
        let Some((client, own)) = self.created(key, revision) else { return Ok(StoreAnswer::Gone) };
        let queue = queue(key);
        loop {
            let children = repeated(|| client.list_children(&queue)).await?;
            let Some(name) = predecessor(&own.name, mode, &children) else { return Ok(StoreAnswer::Gone) };
            let path = format!("{queue}/{name}");
            // The predecessor may have vanished since the list was made: then another znode is the predecessor.
            if let Some(stat) = repeated(|| client.check_stat(&path)).await? {
                let (revision, name) = (Revision(stat.czxid), name.to_owned());
                self.state().predecessors.insert((key.clone(), revision), Znode { lease: own.lease, name });
                return Ok(StoreAnswer::At(revision));
            }
        }
    }

    async fn await_gone(&self, key: &Key, revision: Revision) -> Result<StoreAnswer, Error> {
        let queue = queue(key);
        loop {
            let Some((client, name)) = self.predecessor(key, revision) else { return Ok(StoreAnswer::Gone) };
            let watcher = match self.watched {
                Watched::Predecessor => {
                    let path = format!("{queue}/{name}");
                    let (stat, watcher) = repeated(|| client.check_and_watch_stat(&path)).await?;
                    stat.map(|_| watcher)
                }
                Watched::Children => {
                    let (children, watcher) = repeated(|| client.list_and_watch_children(&queue)).await?;
                    children.contains(&name).then_some(watcher)
                }
            };
            // The library closes a session when the last client of it is dropped, so no client waits here.
            drop(client);
            let Some(watcher) = watcher else { return Ok(StoreAnswer::Gone) };
            if watcher.changed().await.event_type == EventType::Session {
                return Err(Error::SessionExpired);
            }
        }
    }

    async fn confirm(&self, key: &Key, revision: Revision, mode: Mode) -> Result<StoreAnswer, Error> {
        let Some((client, own)) = self.created(key, revision) else { return Ok(StoreAnswer::Refused) };
        let (queue, path) = (queue(key), format!("{}/{}", queue(key), own.name));
        let (exists, children) = tokio::join!(exists(&client, &path), repeated(|| client.list_children(&queue)));
        let is_first = match (exists, children) {
            (Err(Error::SessionExpired), _) => false,
            (exists, children) => exists? && predecessor(&own.name, mode, &children?).is_none(),
        };
        Ok(if is_first { StoreAnswer::Done } else { StoreAnswer::Refused })
    }

    async fn delete(&self, key: &Key, revision: Revision) -> Result<StoreAnswer, Error> {
        let Some((client, own)) = self.created(key, revision) else { return Ok(StoreAnswer::Gone) };
        let path = format!("{}/{}", queue(key), own.name);
        if let Some(session) = self.state().sessions.get_mut(&own.lease) {
            session.paths.retain(|other| *other != path);
        }
        // The name has a sequence, so nobody creates it again, and the request may be repeated.
        let mut is_lost = false;
        loop {
            match deleted(client.delete(&path, None).await, is_lost) {
                Some(answer) => return answer,
                None => is_lost = true,
            }
        }
    }

    fn session(&self, lease: LeaseId) -> Option<(Client, Option<String>)> {
        let state = self.state();
        let session = state.sessions.get(&lease)?;
        Some((session.client.clone(), session.paths.first().cloned()))
    }

    /// A znode that was created here, and the client of its session.
    fn created(&self, key: &Key, revision: Revision) -> Option<(Client, Znode)> {
        let state = self.state();
        let znode = state.created.get(&(key.clone(), revision))?;
        Some((state.sessions.get(&znode.lease)?.client.clone(), znode.clone()))
    }

    /// The name of a predecessor that was seen, and the client of the session that saw it.
    fn predecessor(&self, key: &Key, revision: Revision) -> Option<(Client, String)> {
        let state = self.state();
        let znode = state.predecessors.get(&(key.clone(), revision))?;
        Some((state.sessions.get(&znode.lease)?.client.clone(), znode.name.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Reads the clock that no clock fault changes.
fn raw_clock() -> Duration {
    RawClock.now()
}

/// Orders a transaction that changes nothing, and tells whether the znode existed then. A mere read would be answered
/// by a follower that no longer hears from its leader.
async fn exists(client: &Client, path: &str) -> Result<bool, Error> {
    loop {
        let mut transaction = client.new_multi_writer();
        transaction.add_check_version(path, -1)?;
        match transaction.commit().await {
            Ok(_) => return Ok(true),
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => return Ok(false),
            Err(MultiWriteError::RequestFailed { source }) if is_connection_lost(&source) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether a request was lost with its connection, which was closed, reset, or left because the server was
/// silent. Only the first is a `ConnectionLoss` of the library. Requests after that wait until it is connected again,
/// or until the session is over.
fn is_connection_lost(error: &Error) -> bool {
    matches!(error, Error::ConnectionLoss | Error::Custom(_))
}

/// Returns the result of a deletion; none, if the request was lost and is sent again. `is_lost`: a request before this
/// one was lost.
fn deleted(answer: Result<(), Error>, is_lost: bool) -> Option<Result<StoreAnswer, Error>> {
    Some(match answer {
        Ok(()) => Ok(StoreAnswer::Done),
        Err(error) if is_connection_lost(&error) => return None,
        // The request before this one has deleted it.
        Err(Error::NoNode) if is_lost => Ok(StoreAnswer::Done),
        Err(Error::NoNode) => Ok(StoreAnswer::Gone),
        // The znode went with the session, or by the request before this one: nobody knows.
        Err(Error::SessionExpired | Error::ClientClosed) if is_lost => Err(Error::ConnectionLoss),
        Err(error) => Err(error),
    })
}

/// Asks again after the loss of a connection: the library sends the next request when it has found another server.
async fn repeated<T, F>(ask: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match ask().await {
            Err(error) if is_connection_lost(&error) => {}
            other => return other,
        }
    }
}

/// The path of a key's queue.
fn queue(key: &Key) -> String {
    format!("{ROOT}/{}", path_part(key.as_str()))
}

/// The name with the largest sequence before that of `own` whose mode conflicts with `mode`. Names of another form have
/// no place in the queue.
fn predecessor<'a>(own: &str, mode: Mode, children: &'a [String]) -> Option<&'a str> {
    let (own, _) = place(own)?;
    let placed = children.iter().filter_map(|name| Some((place(name)?, name)));
    let smaller = placed.filter(|((other, of_other), _)| *other < own && of_other.conflicts(mode));
    smaller.max().map(|(_, name)| name.as_str())
}

/// The sequence and the mode of a znode.
fn place(name: &str) -> Option<(u64, Mode)> {
    let (name, sequence) = name.rsplit_once('-')?;
    Some((sequence.parse().ok()?, Mode::marked(name)))
}

#[cfg(test)]
mod tests;
