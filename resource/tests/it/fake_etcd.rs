//! One member of etcd in this process: transactions over keys with revisions, and failures on demand. It knows no
//! leases, no watches and no history.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbCompare, PbDeleteRequest, PbDeleteResponse, PbKeyValue, PbKvServer,
    PbKvService, PbPutRequest, PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbResponseOp,
    PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp, PbTxnResponse,
};
use futures::Stream;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

use crate::treat::Treat;

#[derive(Default)]
struct Inner {
    /// The value and the revision of creation of each key.
    keys: BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
    revision: i64,
    /// The treatments of the next transactions that decide.
    decisions: VecDeque<Option<Treat<Code>>>,
    /// The transactions that were applied, and those whose condition failed, among the ones that decide.
    applied: u64,
    refused: u64,
}

/// The member. It ends with the runtime of its test.
#[derive(Clone)]
pub struct FakeEtcd {
    pub address: String,
    inner: Arc<Mutex<Inner>>,
}

impl FakeEtcd {
    pub async fn start() -> FakeEtcd {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let fake = FakeEtcd { address, inner: Arc::default() };
        let server = tonic::transport::Server::builder().add_service(PbKvServer::new(fake.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        fake
    }

    /// Decides how the next transactions that decide are treated, in order.
    pub fn treat(&self, decisions: impl IntoIterator<Item = Option<Treat<Code>>>) {
        self.inner.lock().unwrap().decisions.extend(decisions);
    }

    /// The applied and the refused transactions that decide.
    pub fn decisions(&self) -> (u64, u64) {
        let inner = self.inner.lock().unwrap();
        (inner.applied, inner.refused)
    }

    /// Creates a key, and returns its revision.
    pub fn create(&self, key: &str) -> u64 {
        let mut inner = self.inner.lock().unwrap();
        inner.revision += 1;
        inner.put(key.as_bytes(), b"");
        inner.revision.unsigned_abs()
    }

    pub fn remove(&self, key: &str) {
        self.inner.lock().unwrap().keys.remove(key.as_bytes());
    }

    fn apply(&self, transaction: &PbTxnRequest) -> PbTxnResponse {
        let mut inner = self.inner.lock().unwrap();
        // All changes of one transaction have one revision.
        inner.revision += 1;
        let answer = inner.transaction(transaction);
        if decides(transaction) {
            *(if answer.succeeded { &mut inner.applied } else { &mut inner.refused }) += 1;
        }
        answer
    }
}

/// Returns whether a transaction is one that replaces the number of the last decision.
fn decides(transaction: &PbTxnRequest) -> bool {
    transaction.compare.iter().any(|compare| matches!(compare.target_union, Some(PbTargetUnion::Value(_))))
}

impl Inner {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        let revision = self.revision;
        let created = self.keys.get(key).map_or(revision, |(_, created)| *created);
        self.keys.insert(key.to_owned(), (value.to_owned(), created));
    }

    fn holds(&self, compare: &PbCompare) -> bool {
        let found = self.keys.get(&compare.key);
        let order = match compare.target_union.as_ref().unwrap() {
            PbTargetUnion::CreateRevision(wanted) => found.map_or(0, |(_, created)| *created).cmp(wanted),
            // A condition on the value of a key that is absent is false.
            PbTargetUnion::Value(wanted) => match found {
                Some((value, _)) => value.cmp(wanted),
                None => return false,
            },
            other => panic!("no transaction of the resource compares {other:?}"),
        };
        match compare.result {
            0 => order.is_eq(),
            1 => order.is_gt(),
            2 => order.is_lt(),
            other => panic!("no transaction of the resource compares by {other}"),
        }
    }

    fn transaction(&mut self, transaction: &PbTxnRequest) -> PbTxnResponse {
        let succeeded = transaction.compare.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &transaction.success } else { &transaction.failure };
        let responses = branch.iter().map(|operation| self.operation(operation)).collect();
        PbTxnResponse { header: None, succeeded, responses }
    }

    fn operation(&mut self, operation: &PbTxnRequestOp) -> PbResponseOp {
        let answer = match operation.request.as_ref().unwrap() {
            PbTxnOpRequest::RequestRange(range) => PbTxnOpResponse::ResponseRange(self.range(range)),
            PbTxnOpRequest::RequestPut(put) => {
                self.put(&put.key, &put.value);
                PbTxnOpResponse::ResponsePut(PbPutResponse::default())
            }
            PbTxnOpRequest::RequestTxn(nested) => PbTxnOpResponse::ResponseTxn(self.transaction(nested)),
            other => panic!("no transaction of the resource has {other:?}"),
        };
        PbResponseOp { response: Some(answer) }
    }

    fn range(&self, range: &PbRangeRequest) -> PbRangeResponse {
        let is_asked = |key: &Vec<u8>| {
            if range.range_end.is_empty() { *key == range.key } else { *key >= range.key && *key < range.range_end }
        };
        let found = self.keys.iter().filter(|(key, _)| is_asked(key));
        let kvs: Vec<PbKeyValue> = found
            .map(|(key, (value, created))| PbKeyValue {
                key: key.clone(),
                value: if range.keys_only { Vec::new() } else { value.clone() },
                create_revision: *created,
                ..PbKeyValue::default()
            })
            .collect();
        PbRangeResponse { count: kvs.len() as i64, kvs, ..PbRangeResponse::default() }
    }
}

#[tonic::async_trait]
impl PbKvService for FakeEtcd {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<PbRangeStreamResponse, Status>> + Send>>;

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        let transaction = request.into_inner();
        let next = if decides(&transaction) { self.inner.lock().unwrap().decisions.pop_front() } else { None };
        let failed = || Err(Status::unavailable("lost on purpose"));
        match next.flatten() {
            None => Ok(Response::new(self.apply(&transaction))),
            Some(Treat::LoseAnswer) => {
                self.apply(&transaction);
                failed()
            }
            Some(Treat::Fail) => failed(),
            Some(Treat::ApplyLater(after)) => {
                let fake = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    fake.apply(&transaction);
                });
                failed()
            }
            Some(Treat::Say(code)) => Err(Status::new(code, "refused on purpose")),
        }
    }

    async fn range(&self, _: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        Err(Status::unimplemented("the resource sends transactions only"))
    }

    async fn range_stream(&self, _: Request<PbRangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("the resource sends transactions only"))
    }

    async fn put(&self, _: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        Err(Status::unimplemented("the resource sends transactions only"))
    }

    async fn delete_range(&self, _: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        Err(Status::unimplemented("the resource sends transactions only"))
    }

    async fn compact(&self, _: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        Err(Status::unimplemented("the resource sends transactions only"))
    }
}
