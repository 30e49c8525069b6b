//! An S3 server in this process: objects with tags and conditions, and failures on demand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::any};
use tokio::net::TcpListener;

use crate::treat::Treat;

#[derive(Default)]
struct Inner {
    objects: BTreeMap<String, (String, Bytes)>,
    versions: u64,
    /// The treatments of the next puts of the object `state`.
    puts: VecDeque<Option<Treat<StatusCode>>>,
    /// The puts of `state` that were applied, and those whose condition failed.
    applied: u64,
    refused: u64,
}

/// The server. It ends with the runtime of its test.
#[derive(Clone)]
pub struct FakeS3 {
    pub address: String,
    inner: Arc<Mutex<Inner>>,
}

impl FakeS3 {
    pub async fn start() -> FakeS3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let fake = FakeS3 { address, inner: Arc::default() };
        let app = Router::new().fallback(any(answer)).with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        fake
    }

    /// Decides how the next puts of the state are treated, in order.
    pub fn treat(&self, puts: impl IntoIterator<Item = Option<Treat<StatusCode>>>) {
        self.inner.lock().unwrap().puts.extend(puts);
    }

    /// The applied and the refused puts of the state.
    pub fn puts(&self) -> (u64, u64) {
        let inner = self.inner.lock().unwrap();
        (inner.applied, inner.refused)
    }

    fn apply(&self, method: &Method, path: &str, headers: &HeaderMap, body: Bytes) -> Response {
        let mut inner = self.inner.lock().unwrap();
        let has_bucket = inner.objects.contains_key("/harness-resource");
        if *method == Method::GET {
            return match inner.objects.get(path) {
                Some((tag, body)) => {
                    let modified = ("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT".to_owned());
                    ([("etag", tag.clone()), modified], body.clone()).into_response()
                }
                None => StatusCode::NOT_FOUND.into_response(),
            };
        }
        assert!(has_bucket || path == "/harness-resource", "{path} was put before its bucket");
        assert!(headers.contains_key("authorization"), "{path} was put without a signature");
        let is = |name| headers.get(name).map(|value| value.to_str().unwrap());
        let tag = inner.objects.get(path).map(|(tag, _)| tag.as_str());
        let holds = match (is("if-match"), is("if-none-match")) {
            (Some(wanted), _) => tag == Some(wanted),
            (None, Some(_)) => tag.is_none(),
            (None, None) => true,
        };
        if path.ends_with("/state") {
            *(if holds { &mut inner.applied } else { &mut inner.refused }) += 1;
        }
        if !holds {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        inner.versions += 1;
        let tag = format!("\"{}\"", inner.versions);
        inner.objects.insert(path.to_owned(), (tag.clone(), body));
        ([("etag", tag)], "").into_response()
    }
}

async fn answer(State(fake): State<FakeS3>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let path = uri.path().to_owned();
    let is_put_of_state = method == Method::PUT && path.ends_with("/state");
    let treat = if is_put_of_state { fake.inner.lock().unwrap().puts.pop_front().flatten() } else { None };
    let failed = || StatusCode::INTERNAL_SERVER_ERROR.into_response();
    match treat {
        None => fake.apply(&method, &path, &headers, body),
        Some(Treat::LoseAnswer) => {
            fake.apply(&method, &path, &headers, body);
            failed()
        }
        Some(Treat::Fail) => failed(),
        Some(Treat::ApplyLater(after)) => {
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                fake.apply(&method, &path, &headers, body);
            });
            failed()
        }
        Some(Treat::Say(status)) => status.into_response(),
    }
}
