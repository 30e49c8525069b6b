//! A real store: an etcd cluster, of which any member can serve a request.
//!
//! A request goes to the member that answered last. If that member fails or does not answer soon, the request goes to
//! the next member too, and the first answer counts: a member may be frozen, cut off, or without a leader, while the
//! others work. So the store may do a request twice, and every request allows that. A second creation of an owner's
//! key finds the key, or creates a key that the client deletes as soon as it knows. A second removal finds the key
//! gone, and the client does not know which of the two has removed it. A second lease expires unused.
//!
//! The requests of the server's Lock service are the exception: each goes to one member.
//!
//! Once a request has left, every failure is indeterminate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions, KeyValue, LockOptions,
    PutOptions, SortOrder, SortTarget, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchFilterType, WatchOptions,
};
use parking_lot::Mutex;
use tokio::{sync::OnceCell, time};

#[cfg(feature = "planted")]
use crate::planted::steps::PlantedOp;
use crate::{
    access::Tls,
    answer::{chain, spawned},
    etcd_keepers::Keepers,
    hold::{Key, Owner, path_part},
    mode::Mode,
    ports::{LeaseId, NodeError, Op, Reply, Revision, Store, StoreAnswer},
    servers::{Connected, Connecting, ServerAddress, Servers, ask_versions},
};

mod created;
mod hedge;

use created::Created;

/// The time without an answer after which the next member is asked too. An answer takes one or two milliseconds, with
/// an fsync.
const HEDGE_AFTER: Duration = Duration::from_millis(200);
/// The timeout of one request to all members. The client has given up long before.
const GIVE_UP_AFTER: Duration = Duration::from_secs(15);
/// The interval at which the client looks for a key by itself, while it waits for a member to report the key's end:
/// that member may be frozen.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of connecting with credentials. A member takes a tenth of a second to compare a password.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The idle time after which the client pings a connection, and the timeout of the ping. etcd closes connections that
/// are pinged more often than every 5 s.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(3));

/// An etcd cluster, connected or not.
struct Cluster {
    name: Arc<str>,
    members: Vec<Member>,
    /// The member that answered last.
    preferred: AtomicUsize,
    created: Mutex<Created>,
    keepers: Keepers,
}

/// A member of the cluster. Without credentials, it is connected from the beginning. The first request of a client with
/// credentials is for a token, so such a client connects when it needs the member: the member may be cut off now.
struct Member {
    server: ServerAddress,
    client: OnceCell<Client>,
}

impl Member {
    async fn client(&self) -> Result<Client, Error> {
        let connecting = || async { client(&self.server).await.map_err(|error| Error::Internal(error.to_string())) };
        self.client.get_or_try_init(connecting).await.cloned()
    }
}

/// Connects to the etcd cluster of these members. The client connects to a member when it needs the member. The first
/// request goes to the member number `first` (modulo their count).
///
/// # Errors
/// [`NodeError::Definite`] if an address is invalid, or there are no members.
///
/// # Panics
/// Outside of a Tokio runtime.
pub async fn connect(name: &str, members: &[ServerAddress], first: usize) -> Result<Arc<dyn Store>, NodeError> {
    let mut connected = Vec::new();
    for server in members {
        let has_credentials = server.access.user.is_some();
        let client = if has_credentials { OnceCell::new() } else { OnceCell::new_with(Some(client(server).await?)) };
        connected.push(Member { server: server.clone(), client });
    }
    if connected.is_empty() {
        return Err(NodeError::Definite(format!("{name}: no members")));
    }
    let preferred = AtomicUsize::new(first % connected.len());
    let cluster = Cluster {
        name: name.into(),
        members: connected,
        preferred,
        created: Mutex::default(),
        keepers: Keepers::default(),
    };
    Ok(Arc::new(ClusterStore(Arc::new(cluster))))
}

/// Connects to the members of one cluster, and asks each for its version. The first request goes to the member number
/// `process` of `connecting` (modulo their count).
pub(crate) fn connect_members(
    client: &'static str,
    members: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let versions = ask_versions(&members, connecting, member_version).await;
        Ok(Connected { servers: Servers::Store(connect(client, &members, connecting.process).await?), versions })
    })
}

/// Asks a member for its version, such as `3.4.23`.
///
/// # Errors
/// The member gave no answer. The error is always definite: asking changes nothing.
async fn member_version(member: &ServerAddress) -> Result<String, NodeError> {
    let mut client = client(member).await?;
    let asked = time::timeout(CONNECT_TIMEOUT, client.status()).await;
    let failed = |why: String| member.access.hide(NodeError::Definite(format!("{}: {why}", member.address)));
    match asked {
        Ok(Ok(status)) => Ok(status.version().to_owned()),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("no answer within {CONNECT_TIMEOUT:?}"))),
    }
}

/// Connects to a member, and asks for a token if there are credentials.
pub(crate) async fn client(member: &ServerAddress) -> Result<Client, NodeError> {
    let ServerAddress { address, access, .. } = member;
    let (interval, timeout) = KEEP_ALIVE;
    let mut options = ConnectOptions::new().with_connect_timeout(CONNECT_TIMEOUT).with_keep_alive(interval, timeout);
    if let Some(tls) = &access.tls {
        options = options.with_tls(tls_options(tls));
    }
    if let Some((user, password)) = access.credentials() {
        options = options.with_user(user, password).with_auto_token_refresh(true);
    }
    let scheme = if access.tls.is_some() { "https" } else { "http" };
    let failed = |why: String| access.hide(NodeError::Definite(format!("{address}: {why}")));
    let connecting = Client::connect([format!("{scheme}://{address}")], Some(options));
    match time::timeout(LOGIN_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(|error| failed(described(&error))),
        Err(_) => Err(failed(format!("no session within {LOGIN_TIMEOUT:?}"))),
    }
}

/// The error, and its cause. The library's own text of a failed connection is only `transport error`.
fn described(error: &Error) -> String {
    chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn tls_options(tls: &Tls) -> TlsOptions {
    let options = match &tls.roots {
        Some(pem) => TlsOptions::new().ca_certificate(Certificate::from_pem(pem)),
        None => TlsOptions::new().trust_anchors(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    };
    match &tls.identity {
        Some(own) => options.identity(etcd_client::Identity::from_pem(&own.certificates, own.key.reveal())),
        None => options,
    }
}

struct ClusterStore(Arc<Cluster>);

impl Store for ClusterStore {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>> {
        let cluster = self.0.clone();
        spawned(async move {
            let answer = match op {
                Op::AwaitGone(key, revision) => cluster.await_gone(key, revision).await,
                Op::Lock(key, lease) => cluster.lock(&key, lease).await,
                op => cluster.ask(op).await,
            };
            let secrets = || cluster.members.iter().map(|member| &member.server.access);
            answer.map_err(|error| secrets().fold(error, |error, access| access.hide(error)))
        })
    }
}

impl Cluster {
    async fn ask_member(&self, member: usize, op: &Op) -> Result<StoreAnswer, Error> {
        let mut client = self.members[member].client().await?;
        match op {
            Op::Grant(lease) => {
                let granted = client.lease_grant(whole_seconds(*lease), None).await?;
                Ok(StoreAnswer::Leased(LeaseId(granted.id()), seconds(granted.ttl())))
            }
            Op::KeepAlive(lease) => {
                let left = self.keepers.keep_alive((*lease, member), &mut client).await?;
                Ok(StoreAnswer::Leased(*lease, seconds(left)))
            }
            Op::Revoke(lease) => {
                self.keepers.close(*lease);
                let answer = match client.lease_revoke(lease.0).await {
                    Err(error) if is_not_found(&error) => StoreAnswer::Gone,
                    other => other.map(|_| StoreAnswer::Done)?,
                };
                self.created.lock().forget_lease(*lease);
                Ok(answer)
            }
            Op::TimeToLive(lease) => {
                let left = client.lease_time_to_live(lease.0, None).await?;
                Ok(StoreAnswer::Leased(*lease, seconds(left.ttl())))
            }
            Op::Create(key, owner, lease, mode) => self.create(&mut client, (key, owner, *mode), *lease).await,
            Op::Before(key, revision, mode) => {
                let found = client.get(queue(key), Some(older(*revision, *mode))).await?;
                let newest = found.kvs().iter().find(|kv| is_against(kv, *mode));
                Ok(newest.map_or(StoreAnswer::Gone, |kv| StoreAnswer::At(Revision(kv.create_revision()))))
            }
            Op::AwaitGone(key, revision) => {
                let found = self.find(&mut client, key, *revision).await?;
                Ok(if found.is_some() { StoreAnswer::At(*revision) } else { StoreAnswer::Gone })
            }
            Op::Confirm(key, revision, mode) => {
                let Some(own) = self.name_of(&mut client, key, *revision).await? else {
                    return Ok(StoreAnswer::Refused);
                };
                let stands = Compare::create_revision(own, CompareOp::Equal, revision.0);
                // A transaction cannot compare the modes of keys. It reads the older keys at the revision at which it
                // finds the own key, and the client compares them.
                let read = TxnOp::get(queue(key), Some(older(*revision, *mode)));
                let confirmed = client.txn(Txn::new().when([stands]).and_then([read])).await?;
                let is_against = |said: &TxnOpResponse| match said {
                    TxnOpResponse::Get(found) => found.kvs().iter().any(|kv| is_against(kv, *mode)),
                    _ => true,
                };
                let is_free = confirmed.succeeded() && !confirmed.op_responses().iter().any(is_against);
                Ok(if is_free { StoreAnswer::Done } else { StoreAnswer::Refused })
            }
            Op::Delete(key, revision) => {
                let Some(own) = self.name_of(&mut client, key, *revision).await? else { return Ok(StoreAnswer::Gone) };
                let stands = Compare::create_revision(own.clone(), CompareOp::Equal, revision.0);
                let removed = client.txn(Txn::new().when([stands]).and_then([TxnOp::delete(own, None)])).await?;
                self.created.lock().forget(key, *revision);
                Ok(if removed.succeeded() { StoreAnswer::Done } else { StoreAnswer::Gone })
            }
            // `send` does not come here: it asks one member only.
            Op::Lock(key, lease) => lock(&mut client, key, *lease).await,
            Op::OfLease(key, lease) => {
                let found = client.get(name_of_lease(key, *lease), None).await?;
                Ok(found.kvs().first().map_or(StoreAnswer::Gone, |kv| StoreAnswer::At(Revision(kv.create_revision()))))
            }
            Op::Unlock(key, lease) => {
                client.unlock(name_of_lease(key, *lease)).await?;
                Ok(StoreAnswer::Done)
            }
            #[cfg(feature = "planted")]
            Op::Planted(PlantedOp::DeleteAll(key)) => {
                let all = etcd_client::DeleteOptions::new().with_prefix();
                client.delete(queue(key), Some(all)).await?;
                Ok(StoreAnswer::Done)
            }
        }
    }

    /// Creates the key `own`, and reads the oldest key of the queue in the same transaction.
    async fn create(
        &self,
        client: &mut Client,
        (key, owner, mode): (&Key, &Owner, Mode),
        lease: LeaseId,
    ) -> Result<StoreAnswer, Error> {
        let own = name(key, owner, mode);
        let is_new = Compare::create_revision(own.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(own.clone(), "", Some(PutOptions::new().with_lease(lease.0)));
        let oldest = TxnOp::get(queue(key), Some(oldest()));
        let found = TxnOp::get(own.clone(), None);
        let txn = Txn::new().when([is_new]).and_then([put, oldest.clone()]).or_else([found, oldest]);
        let done = match client.txn(txn).await {
            Err(error) if is_not_found(&error) => return Ok(StoreAnswer::Gone),
            other => other?,
        };
        let created_at = |said: &TxnOpResponse| match said {
            TxnOpResponse::Get(found) => found.kvs().first().map(KeyValue::create_revision),
            _ => done.header().map(etcd_client::ResponseHeader::revision),
        };
        let mut said = done.op_responses().into_iter();
        let (there, oldest) = (said.next(), said.next());
        let Some(revision) = there.as_ref().and_then(created_at) else {
            return Err(Error::Internal("a transaction was answered without its revision".to_owned()));
        };
        self.created.lock().insert(key, Revision(revision), lease, own);
        // Older keys need not conflict with other modes.
        let is_first = mode == Mode::Write && oldest.as_ref().and_then(created_at) == Some(revision);
        let answer = if is_first { StoreAnswer::First } else { StoreAnswer::At };
        Ok(answer(Revision(revision)))
    }

    /// Finds the name of the key that was created at `revision`.
    async fn name_of(&self, client: &mut Client, key: &Key, revision: Revision) -> Result<Option<Vec<u8>>, Error> {
        let known = self.created.lock().name(key, revision);
        match known {
            Some(known) => Ok(Some(known)),
            None => Ok(self.find(client, key, revision).await?.map(|(name, _)| name)),
        }
    }

    /// Finds the key that was created at `revision`, and the revision of the store at that look.
    async fn find(&self, client: &mut Client, key: &Key, revision: Revision) -> Result<Option<(Vec<u8>, i64)>, Error> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let options = options.with_min_create_revision(revision.0).with_max_create_revision(revision.0);
        let found = client.get(queue(key), Some(options)).await?;
        let seen = found.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(found.kvs().first().map(|kv| (kv.key().to_vec(), seen)))
    }

    /// Asks the member that answered last, and waits for as long as the connection to it lasts. It asks no other
    /// member: two requests with one lease share one key, and the service deletes that key when the first request
    /// breaks off, although the service may have granted the lock to the second.
    async fn lock(&self, key: &Key, lease: LeaseId) -> Result<StoreAnswer, NodeError> {
        let member = &self.members[self.preferred.load(Ordering::Relaxed)];
        let said = async { lock(&mut member.client().await?, key, lease).await }.await;
        said.map_err(|error| NodeError::Indeterminate(format!("{}: {error}", member.server.name)))
    }

    /// Waits until a member says that the key is gone. If the client has stopped waiting, this ends with the key, or
    /// with the key's lease.
    async fn await_gone(self: &Arc<Self>, key: Key, revision: Revision) -> Result<StoreAnswer, NodeError> {
        loop {
            match self.ask(Op::AwaitGone(key.clone(), revision)).await? {
                StoreAnswer::At(_) => {}
                gone => return Ok(gone),
            }
            let member = self.preferred.load(Ordering::Relaxed);
            watched(self.watch(member, &key, revision)).await;
        }
    }

    /// Returns when a member reports the key's end, or at once if the key is not there.
    async fn watch(&self, member: usize, key: &Key, revision: Revision) -> Result<(), Error> {
        let mut client = self.members[member].client().await?;
        let Some((name, seen)) = self.find(&mut client, key, revision).await? else { return Ok(()) };
        let options = WatchOptions::new().with_start_revision(seen + 1).with_filters([WatchFilterType::NoPut]);
        let mut stream = client.watch(name, Some(options)).await?;
        while let Some(told) = stream.message().await? {
            if told.canceled() {
                return Err(Error::WatchError(told.cancel_reason().to_owned()));
            }
            if told.events().iter().any(|event| event.event_type() == EventType::Delete) {
                return Ok(());
            }
        }
        Err(Error::WatchError("the stream has ended".to_owned()))
    }
}

/// Awaits a watch, for at most [`LOOK_AGAIN`]. After a failure it pauses: otherwise a member that fails at once would
/// be asked in a busy loop. A member that reports nothing has not failed: a pause would leave the key unwatched, and
/// the next client would learn too late of its turn.
async fn watched(watching: impl Future<Output = Result<(), Error>>) {
    if let Ok(Err(_)) = time::timeout(LOOK_AGAIN, watching).await {
        time::sleep(HEDGE_AFTER).await;
    }
}

/// Sends one request to the server's Lock service, which answers when it grants the lock.
async fn lock(client: &mut Client, key: &Key, lease: LeaseId) -> Result<StoreAnswer, Error> {
    let options = LockOptions::new().with_lease(lease.0);
    match client.lock(prefix(key), Some(options)).await {
        Ok(granted) => {
            Ok(StoreAnswer::Locked(Revision(granted.header().map_or(0, etcd_client::ResponseHeader::revision))))
        }
        Err(error) if is_not_found(&error) || is_lease_gone(&error) => Ok(StoreAnswer::Gone),
        Err(error) => Err(error),
    }
}

/// Returns the name of a key in etcd. A namespace stays as it is, because a user may have rights to this prefix only.
fn prefix(key: &Key) -> String {
    let (namespace, name) = key.parts();
    format!("{namespace}{}", path_part(name))
}

/// Returns the queue of `key` in etcd: the prefix of the names of its lock keys, and of no other names.
pub fn queue(key: &Key) -> Vec<u8> {
    format!("{}/", prefix(key)).into_bytes()
}

fn name(key: &Key, owner: &Owner, mode: Mode) -> Vec<u8> {
    format!("{}/{}{}", prefix(key), owner.as_str(), mode.mark()).into_bytes()
}

/// Reads the keys of a queue that were created before `revision`, the newest first: all of them, because the names
/// contain the modes; or the newest only, if all keys conflict with `mode`.
fn older(revision: Revision, mode: Mode) -> GetOptions {
    let newest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend);
    let options = newest.with_max_create_revision(revision.0 - 1).with_keys_only();
    if mode == Mode::Write { options.with_limit(1) } else { options }
}

/// Reads the oldest key of a queue.
fn oldest() -> GetOptions {
    let oldest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    oldest.with_keys_only().with_limit(1)
}

/// Returns whether a key of a queue has a mode that conflicts with `mode`.
fn is_against(kv: &KeyValue, mode: Mode) -> bool {
    Mode::marked(&String::from_utf8_lossy(kv.key())).conflicts(mode)
}

/// The Lock service's name for the key of a lease, in every version from 3.1 on: the queue's prefix, and the lease in
/// hexadecimal digits.
fn name_of_lease(key: &Key, lease: LeaseId) -> Vec<u8> {
    format!("{}/{:x}", prefix(key), lease.0).into_bytes()
}

/// The time left of a lease. For a lease that is gone, etcd answers a negative time.
fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(ttl.max(0).unsigned_abs())
}

fn whole_seconds(lease: Duration) -> i64 {
    let seconds = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// Returns whether the Lock service reports that the lease is gone, or (from 3.5 on) that the key vanished while the
/// service waited. The service forwards the message of its own client, as text without a status.
fn is_lease_gone(error: &Error) -> bool {
    let said = |status: &str| status.contains("lease not found") || status.contains("session is expired");
    matches!(error, Error::GRpcStatus(status) if said(status.message()))
}

/// Returns whether the store says that there is no such lease.
fn is_not_found(error: &Error) -> bool {
    // 5 is `NOT_FOUND` of gRPC.
    matches!(error, Error::GRpcStatus(status) if status.code() as i32 == 5)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    async fn time_of(watching: impl Future<Output = Result<(), Error>>) -> Duration {
        let began = time::Instant::now();
        watched(watching).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_left_unwatched_only_after_a_failure() {
        assert_eq!(time_of(ready(Ok(()))).await, Duration::ZERO);
        let failed = time_of(ready(Err(Error::WatchError("canceled".to_owned())))).await;
        assert!((HEDGE_AFTER..LOOK_AGAIN).contains(&failed), "{failed:?}");
        let silent = time_of(pending()).await;
        assert!((LOOK_AGAIN..LOOK_AGAIN + HEDGE_AFTER / 2).contains(&silent), "{silent:?}");
    }
}
