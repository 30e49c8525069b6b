//! A member of etcd in memory: keys with their revisions, and streams that keep leases alive. It reports the end of no
//! key, knows no leases, and fails on demand.

use std::{
    collections::BTreeMap,
    future::pending,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbCompare, PbDeleteRequest, PbDeleteResponse, PbKeyValue, PbKvServer,
    PbKvService, PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseServer,
    PbLeaseService, PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbRangeStreamResponse, PbResponseHeader, PbResponseOp, PbTargetUnion, PbTxnOpRequest,
    PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp, PbTxnResponse, PbWatchRequest, PbWatchResponse, PbWatchServer,
    PbWatchService,
};
use futures::{Stream, stream::unfold};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};

/// The seconds for which a keep-alive lets a lease run.
pub const TTL_S: u8 = 2;
/// The number of the sort order `DESCEND`.
const DESCENDING: i32 = 2;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Inner {
    /// The revision at which each key was created.
    keys: BTreeMap<Vec<u8>, i64>,
    revision: i64,
    /// True if transactions are applied, and their answers are lost.
    loses_answers: bool,
    /// How often all streams were ended.
    ends: u32,
}

/// The member. It ends with the runtime of its test.
#[derive(Clone)]
pub struct Member {
    pub address: String,
    /// The time after which the member applies a transaction.
    late: Duration,
    inner: Arc<Mutex<Inner>>,
}

impl Member {
    pub async fn start() -> Member {
        // As in etcd, an empty store has the revision 1.
        let inner = Inner { keys: BTreeMap::new(), revision: 1, loses_answers: false, ends: 0 };
        Member::serve(Arc::new(Mutex::new(inner)), Duration::ZERO).await
    }

    /// Another member of the same cluster, which applies transactions late.
    pub async fn beside(other: &Member, late: Duration) -> Member {
        Member::serve(other.inner.clone(), late).await
    }

    async fn serve(inner: Arc<Mutex<Inner>>, late: Duration) -> Member {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let member = Member { address, late, inner };
        let server = tonic::transport::Server::builder()
            .add_service(PbKvServer::new(member.clone()))
            .add_service(PbLeaseServer::new(member.clone()))
            .add_service(PbWatchServer::new(member.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        member
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Returns whether there is such a key.
    pub fn has(&self, key: &str) -> bool {
        self.inner().keys.contains_key(key.as_bytes())
    }

    /// Removes a key, as the end of its lease does.
    pub fn remove(&self, key: &str) {
        self.inner().keys.remove(key.as_bytes());
    }

    pub fn lose_answers(&self) {
        self.inner().loses_answers = true;
    }

    /// Ends the streams that keep leases alive, as a restart does.
    pub fn end_streams(&self) {
        self.inner().ends += 1;
    }
}

impl Inner {
    fn header(&self) -> Option<PbResponseHeader> {
        Some(PbResponseHeader { revision: self.revision, ..PbResponseHeader::default() })
    }

    fn holds(&self, compare: &PbCompare) -> bool {
        let created = self.keys.get(&compare.key).copied().unwrap_or_default();
        match &compare.target_union {
            Some(PbTargetUnion::CreateRevision(wanted)) => created == *wanted,
            other => panic!("no transaction of a lock compares {other:?}"),
        }
    }

    fn transaction(&mut self, transaction: &PbTxnRequest) -> PbTxnResponse {
        let succeeded = transaction.compare.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &transaction.success } else { &transaction.failure };
        let changes = |operation: &PbTxnRequestOp| !matches!(operation.request, Some(PbTxnOpRequest::RequestRange(_)));
        self.revision += i64::from(branch.iter().any(changes));
        let responses = branch.iter().map(|operation| self.operation(operation)).collect();
        PbTxnResponse { header: self.header(), succeeded, responses }
    }

    fn operation(&mut self, operation: &PbTxnRequestOp) -> PbResponseOp {
        let answer = match operation.request.as_ref().unwrap() {
            PbTxnOpRequest::RequestRange(range) => PbTxnOpResponse::ResponseRange(self.range(range)),
            PbTxnOpRequest::RequestPut(put) => {
                self.keys.insert(put.key.clone(), self.revision);
                PbTxnOpResponse::ResponsePut(PbPutResponse::default())
            }
            PbTxnOpRequest::RequestDeleteRange(delete) => {
                self.keys.remove(&delete.key);
                PbTxnOpResponse::ResponseDeleteRange(PbDeleteResponse::default())
            }
            other => panic!("no transaction of a lock has {other:?}"),
        };
        PbResponseOp { response: Some(answer) }
    }

    fn range(&self, range: &PbRangeRequest) -> PbRangeResponse {
        let is_named = |key: &Vec<u8>| {
            if range.range_end.is_empty() { *key == range.key } else { *key >= range.key && *key < range.range_end }
        };
        let max = if range.max_create_revision == 0 { i64::MAX } else { range.max_create_revision };
        let is_asked = |created: &i64| (range.min_create_revision..=max).contains(created);
        let found = self.keys.iter().filter(|(key, created)| is_named(key) && is_asked(created));
        let mut found: Vec<(&Vec<u8>, &i64)> = found.collect();
        found.sort_by_key(|(_, created)| **created);
        if range.sort_order == DESCENDING {
            found.reverse();
        }
        if let Ok(limit @ 1..) = usize::try_from(range.limit) {
            found.truncate(limit);
        }
        let kv = |(key, created): (&Vec<u8>, &i64)| PbKeyValue {
            key: key.clone(),
            create_revision: *created,
            ..PbKeyValue::default()
        };
        PbRangeResponse {
            header: self.header(),
            kvs: found.into_iter().map(kv).collect(),
            ..PbRangeResponse::default()
        }
    }
}

fn unused<T>() -> Result<T, Status> {
    Err(Status::unimplemented("no test needs this request"))
}

#[tonic::async_trait]
impl PbKvService for Member {
    type RangeStreamStream = Answers<PbRangeStreamResponse>;

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        // As in etcd, a transaction goes on when its client waits no more.
        let member = self.clone();
        let applying = tokio::spawn(async move {
            tokio::time::sleep(member.late).await;
            let mut inner = member.inner();
            let answer = inner.transaction(&request.into_inner());
            if inner.loses_answers { Err(Status::unavailable("lost on purpose")) } else { Ok(Response::new(answer)) }
        });
        applying.await.unwrap()
    }

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        Ok(Response::new(self.inner().range(&request.into_inner())))
    }

    async fn range_stream(&self, _: Request<PbRangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        unused()
    }

    async fn put(&self, _: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        unused()
    }

    async fn delete_range(&self, _: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        unused()
    }

    async fn compact(&self, _: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        unused()
    }
}

#[tonic::async_trait]
impl PbLeaseService for Member {
    type LeaseKeepAliveStream = Answers<PbLeaseKeepAliveResponse>;

    /// Answers each keep-alive, until the streams are ended.
    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (member, ends) = (self.clone(), self.inner().ends);
        let answers = unfold(request.into_inner(), move |mut requests| {
            let member = member.clone();
            async move {
                let asked = requests.message().await.ok()??;
                let answer = PbLeaseKeepAliveResponse { header: None, id: asked.id, ttl: TTL_S.into() };
                (member.inner().ends == ends).then_some((Ok::<_, Status>(answer), requests))
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_grant(&self, _: Request<PbLeaseGrantRequest>) -> Result<Response<PbLeaseGrantResponse>, Status> {
        unused()
    }

    async fn lease_revoke(&self, _: Request<PbLeaseRevokeRequest>) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        unused()
    }

    async fn lease_time_to_live(
        &self,
        _: Request<PbLeaseTimeToLiveRequest>,
    ) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        unused()
    }

    async fn lease_leases(&self, _: Request<PbLeaseLeasesRequest>) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        unused()
    }
}

#[tonic::async_trait]
impl PbWatchService for Member {
    type WatchStream = Answers<PbWatchResponse>;

    /// As a frozen member, it never answers.
    async fn watch(&self, _: Request<Streaming<PbWatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        pending().await
    }
}
