//! The bucket: one conditional put or one read for each call. Nothing is repeated here, because a conditional put that
//! is repeated can be refused because of its own first copy.

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer};
use object_store::client::{HttpClient, HttpConnector as _, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, ObjectStore as _, PutMode, PutOptions, RetryConfig, UpdateVersion,
};
use reqwest::{Method, StatusCode};

use super::plain_http::{Connector, Refused};
use crate::asked::Failure;

/// The bucket.
const BUCKET: &str = "harness-resource";
/// The credentials of every run. The server exists for one run, inside the network of that run.
const KEY_ID: &str = "harness";
const SECRET: &str = "harness-secret";
const REGION: &str = "us-east-1";

/// The tag of one version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ETag(String);

/// The condition of a put.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// None.
    Always,
    /// There is no such object: `If-None-Match: *`.
    Missing,
    /// The object has this version: `If-Match`.
    Is(ETag),
}

/// The outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    Done,
    /// The condition did not hold, or the store asks to try again: another put was under way.
    Refused,
}

/// The bucket of one store.
pub(super) struct Bucket {
    store: AmazonS3,
    http: HttpClient,
    url: String,
}

impl Bucket {
    /// Prepares requests to the server at `address` (`host:port`). Nothing is sent.
    pub(super) fn at(address: &str) -> Result<Bucket, Error> {
        let endpoint = format!("http://{address}");
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let store = AmazonS3Builder::new()
            .with_endpoint(&endpoint)
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region(REGION)
            .with_access_key_id(KEY_ID)
            .with_secret_access_key(SECRET)
            .with_retry(once)
            .with_http_connector(Connector)
            .build()?;
        let http = Connector.connect(&ClientOptions::new())?;
        Ok(Bucket { store, http, url: format!("{endpoint}/{BUCKET}") })
    }

    /// Creates the bucket, if it is not there. The crate `object_store` signs requests, and creates no buckets.
    pub(super) async fn create(&self) -> Result<(), Failure> {
        let credential = self.store.credentials().get_credential().await.map_err(failure)?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = self.url.parse().map_err(|_| Failure::Wrong(format!("`{}` is no URL", self.url)))?;
        AwsAuthorizer::new(&credential, "s3", REGION).try_authorize(&mut request, None).map_err(failure)?;
        let answer = self.http.execute(request).await.map_err(|error| said(&error))?;
        match answer.status() {
            // The bucket is there already.
            StatusCode::OK | StatusCode::CONFLICT => Ok(()),
            status if status.is_server_error() => Err(Failure::Lost(format!("creating the bucket: {status}"))),
            status => Err(Failure::Wrong(format!("creating the bucket: {status}"))),
        }
    }

    /// Reads an object with its tag; none if there is no such object or no bucket.
    pub(super) async fn get(&self, name: &str) -> Result<Option<(Bytes, ETag)>, Failure> {
        let found = match self.store.get_opts(&Path::from(name), GetOptions::default()).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(failure)?,
        };
        let tag = found.meta.e_tag.clone();
        let tag = tag.ok_or_else(|| Failure::Wrong(format!("the answer to a read of {name} has no ETag")))?;
        Ok(Some((found.bytes().await.map_err(failure)?, ETag(tag))))
    }

    /// Puts an object under `condition`.
    pub(super) async fn put(&self, name: &str, content: Vec<u8>, condition: &Condition) -> Result<Put, Failure> {
        let mode = match condition {
            Condition::Always => PutMode::Overwrite,
            Condition::Missing => PutMode::Create,
            Condition::Is(ETag(tag)) => PutMode::Update(UpdateVersion { e_tag: Some(tag.clone()), version: None }),
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.store.put_opts(&Path::from(name), content.into(), options).await {
            Ok(_) => Ok(Put::Done),
            // S3 answers 409 while another conditional put is under way.
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => Ok(Put::Refused),
            Err(error) => Err(failure(error)),
        }
    }
}

/// Tells a definite error from one after which the request may have been applied, or may succeed later.
fn failure(error: Error) -> Failure {
    match &error {
        Error::Generic { source, .. } => said(source.as_ref()),
        _ => Failure::Wrong(error.to_string()),
    }
}

/// Looks for a definite status among the sources of an error.
fn said(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut found = Some(error);
    while let Some(source) = found {
        if let Some(refused) = source.downcast_ref::<Refused>() {
            return Failure::Wrong(refused.to_string());
        }
        found = source.source();
    }
    Failure::Lost(error.to_string())
}
