//! A table of DynamoDB, through the AWS SDK.
//!
//! Each request has a TCP connection of its own, so a connection that fails has certainly carried nothing, and no
//! request waits behind another one. This connector speaks plain HTTP/1 only: it has no TLS, no proxy, no pool of
//! connections. The SDK never repeats a request: a conditional write that is repeated can be refused because of its own
//! first copy.
//!
//! # Errors
//!
//! The service's error with a status below 500 is definite. After a status of 500 or more the write may have happened
//! (<https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html>).

use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    config::{
        BehaviorVersion, Credentials, IdentityCache, Region, SharedHttpClient, StalledStreamProtectionConfig,
        http::{HttpRequest, HttpResponse},
        retry::RetryConfig,
        timeout::TimeoutConfig,
    },
    error::{ProvideErrorMetadata, SdkError},
    operation::update_item::UpdateItemError,
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ReturnValue, ScalarAttributeType,
    },
};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
    result::ConnectorError,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, Uri,
    body::Incoming,
    client::conn::http1,
    header::{HOST, HeaderValue, SERVER},
};
use hyper_util::rt::TokioIo;
use tokio::time;

use crate::{
    answer::chain,
    connection::driven,
    hold::{Key, Token},
    ports::{Change, Condition, NodeError, Record, RecordVersion, Reply, Table},
    servers::{Connected, Connecting, ServerAddress, Servers, ask_versions},
    stream::tcp,
    validity::whole_ms,
};

/// The table's name. It is created when a client finds none.
const TABLE: &str = "harness_lock";

/// The attributes of a record; those of the Java client, but for the counter.
const KEY: &str = "key";
const OWNER: &str = "ownerName";
const LEASE_MS: &str = "leaseDuration";
const VERSION: &str = "recordVersionNumber";
const IS_RELEASED: &str = "isReleased";
const COUNTER: &str = "counter";

/// The time after which a request is given up, and its connection closed. The lock stops waiting much earlier.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a question about the server's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// A table of one service.
struct DynamodbTable {
    name: String,
    client: Client,
}

/// Prepares the client, and asks the server for its version. Each request connects by itself.
pub(crate) fn connect(
    _client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let versions = ask_versions(&servers, connecting, server_version).await;
        let [server] = <[_; 1]>::try_from(servers)
            .map_err(|servers| NodeError::Definite(format!("expected one server, found {}", servers.len())))?;
        let table = DynamodbTable { name: server.name, client: client(&server.address) };
        // A stand-in answers its first request slowly, so that request comes before the run. Reads create a table too.
        if versions.iter().all(Result::is_ok)
            && let Err(error) = DynamodbTable::create(&table.client).await
        {
            tracing::debug!("{error}");
        }
        Ok(Connected { servers: Servers::Table(Arc::new(table)), versions })
    })
}

/// The SDK's client of the server at `address`. Stand-ins of the service take any credentials and any region.
fn client(address: &str) -> Client {
    let settings = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(format!("http://{address}"))
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("harness", "harness", None, None, "harness"))
        .identity_cache(IdentityCache::no_cache())
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .http_client(plain_http());
    Client::from_conf(settings.build())
}

fn plain_http() -> SharedHttpClient {
    http_client_fn(|_, _| SharedHttpConnector::new(PlainHttp))
}

/// One TCP connection for each request.
#[derive(Debug)]
struct PlainHttp;

/// The failure of a request of which no byte has left.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotSent(String);

impl HttpConnector for PlainHttp {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(async move {
            let user = |error: Box<dyn Error + Send + Sync>| ConnectorError::user(error);
            let request = request.try_into_http1x().map_err(|error| user(error.into()))?;
            let request = request.map(|body| Full::new(Bytes::copy_from_slice(body.bytes().unwrap_or_default())));
            let exchange = async {
                let address = request.uri().authority().map(ToString::to_string).unwrap_or_default();
                let response = exchange(&address, request).await?;
                let (head, body) = response;
                let response = Response::from_parts(head, body.into());
                HttpResponse::try_from(response).map_err(|error| ConnectorError::other(error.into(), None))
            };
            let given_up = |_| Err(ConnectorError::timeout("no answer in time".into()));
            time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(given_up)
        })
    }
}

/// Sends a request on a connection of its own, and reads the whole response.
async fn exchange(
    address: &str,
    mut request: Request<Full<Bytes>>,
) -> Result<(hyper::http::response::Parts, Bytes), ConnectorError> {
    let not_sent = |error: String| ConnectorError::other(NotSent(error).into(), None);
    let stream = tcp(address).await.map_err(not_sent)?;
    let opened = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| not_sent(error.to_string()))?;
    let host = HeaderValue::from_str(address).map_err(|error| not_sent(error.to_string()))?;
    request.headers_mut().entry(HOST).or_insert(host);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse::<Uri>();
    *request.uri_mut() = path.map_err(|error| not_sent(error.to_string()))?;
    let driver = async {
        if let Err(error) = connection.await {
            tracing::debug!("{error}");
        }
        // The response may still be in the channel to the reader, which is asked first.
        std::future::pending::<()>().await;
    };
    let reading = async {
        let response: Response<Incoming> = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?;
        Ok((head, body.to_bytes()))
    };
    driven(driver, reading).await.map_err(|error: String| ConnectorError::io(error.into()))
}

/// Asks the server for its own name and version.
async fn server_version(server: &ServerAddress) -> Result<String, NodeError> {
    let address = &server.address;
    let asking = async {
        let request = Request::get("/").body(Full::default()).map_err(|error| error.to_string())?;
        let (head, _) = exchange(address, request).await.map_err(|error| said(&error))?;
        let name = head.headers.get(SERVER).and_then(|name| name.to_str().ok());
        Ok::<_, String>(name.unwrap_or("unnamed").to_owned())
    };
    match time::timeout(VERSION_TIMEOUT, asking).await {
        Ok(Ok(version)) => Ok(version),
        Ok(Err(error)) => Err(NodeError::Definite(format!("{address}: {error}"))),
        Err(_) => Err(NodeError::Definite(format!("{address}: no answer within {VERSION_TIMEOUT:?}"))),
    }
}

/// The innermost reason of an error. The outer ones say only where it happened.
fn said(error: &(dyn Error + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}

/// Returns whether an error says that no byte of the request has left.
fn is_not_sent(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|error| error.is::<NotSent>())
}

/// The failure of a request.
fn failure<E: Error + ProvideErrorMetadata + 'static>(error: &SdkError<E, HttpResponse>) -> NodeError {
    let is_definite = match error {
        SdkError::ConstructionFailure(_) => true,
        SdkError::ServiceError(refused) => refused.raw().status().as_u16() < 500,
        other => is_not_sent(other),
    };
    let text = match error.code() {
        Some(code) => format!("{code}: {}", error.message().unwrap_or_default()),
        None => said(error),
    };
    if is_definite { NodeError::Definite(text) } else { NodeError::Indeterminate(text) }
}

fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

impl DynamodbTable {
    /// Creates the table. A client that comes second finds it, which is as good.
    async fn create(client: &Client) -> Result<(), NodeError> {
        let wrong = |error| NodeError::Definite(format!("creating the table: {error}"));
        let attribute = AttributeDefinition::builder().attribute_name(KEY).attribute_type(ScalarAttributeType::S);
        let schema = KeySchemaElement::builder().attribute_name(KEY).key_type(KeyType::Hash);
        let created = client
            .create_table()
            .table_name(TABLE)
            .attribute_definitions(attribute.build().map_err(wrong)?)
            .key_schema(schema.build().map_err(wrong)?)
            .billing_mode(BillingMode::PayPerRequest)
            .send()
            .await;
        match created {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some("ResourceInUseException") => Ok(()),
            Err(error) => Err(failure(&error)),
        }
    }

    async fn found(client: Client, key: Key) -> Result<Option<Record>, NodeError> {
        let get = || client.get_item().table_name(TABLE).key(KEY, text(key.as_str())).consistent_read(true).send();
        let answer = match get().await {
            Err(error) if error.code() == Some("ResourceNotFoundException") => {
                Self::create(&client).await?;
                get().await
            }
            other => other,
        };
        let item = answer.map_err(|error| failure(&error))?.item;
        item.map(|item| record(&item)).transpose()
    }
}

/// Reads a record.
fn record(item: &HashMap<String, AttributeValue>) -> Result<Record, NodeError> {
    let lacks = |name: &str| NodeError::Definite(format!("a record of {TABLE} has no `{name}`"));
    let read = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).ok_or_else(|| lacks(name));
    let version = RecordVersion(read(VERSION)?.as_str().into());
    if item.contains_key(IS_RELEASED) {
        return Ok(Record { lease: None, version });
    }
    let lease = read(LEASE_MS)?.parse().map_err(|_| lacks(LEASE_MS))?;
    Ok(Record { lease: Some(Duration::from_millis(lease)), version })
}

impl Table for DynamodbTable {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, key: &Key) -> Reply<Result<Option<Record>, NodeError>> {
        Box::pin(Self::found(self.client.clone(), key.clone()))
    }

    fn write(
        &self,
        key: &Key,
        condition: Condition,
        change: Change,
        version: RecordVersion,
    ) -> Reply<Result<Option<Token>, NodeError>> {
        let mut update = self.client.update_item().table_name(TABLE).key(KEY, text(key.as_str()));
        update = update.expression_attribute_names("#version", VERSION);
        update = update.expression_attribute_values(":version", text(&*version.0));
        update = match condition {
            Condition::Missing => {
                update.expression_attribute_names("#key", KEY).condition_expression("attribute_not_exists(#key)")
            }
            Condition::Version(known) => {
                update.expression_attribute_values(":known", text(&*known.0)).condition_expression("#version = :known")
            }
            Condition::Owner(owner) => update
                .expression_attribute_names("#owner", OWNER)
                .expression_attribute_names("#released", IS_RELEASED)
                .expression_attribute_values(":owned", text(owner.as_str()))
                .condition_expression("#owner = :owned AND attribute_not_exists(#released)"),
        };
        let takes = matches!(change, Change::Take { .. });
        update = match change {
            Change::Take { owner, lease, counts } => update
                .expression_attribute_names("#owner", OWNER)
                .expression_attribute_names("#lease", LEASE_MS)
                .expression_attribute_names("#released", IS_RELEASED)
                .expression_attribute_names("#counter", COUNTER)
                .expression_attribute_values(":owner", text(owner.as_str()))
                .expression_attribute_values(":lease", text(whole_ms(lease).to_string()))
                .expression_attribute_values(":more", AttributeValue::N(u8::from(counts).to_string()))
                .update_expression(
                    "SET #owner = :owner, #lease = :lease, #version = :version REMOVE #released ADD #counter :more",
                )
                .return_values(ReturnValue::UpdatedNew),
            Change::Renew => update.update_expression("SET #version = :version"),
            Change::Free => update
                .expression_attribute_names("#released", IS_RELEASED)
                .expression_attribute_values(":released", text("1"))
                .update_expression("SET #version = :version, #released = :released"),
        };
        Box::pin(async move {
            let updated = match update.send().await {
                Ok(updated) => updated,
                Err(error) => return refusal(&error, takes),
            };
            if !takes {
                return Ok(Some(Token(0)));
            }
            // The write has happened.
            let counter = updated.attributes.as_ref().and_then(|new| new.get(COUNTER)?.as_n().ok()?.parse().ok());
            counter.map(|counter| Some(Token(counter))).ok_or_else(|| NodeError::Indeterminate("no counter".into()))
        })
    }
}

/// A write that did not happen because of its condition, or the failure of a write. Without its table, which a restart
/// without data removes, no record fulfils a condition; but nobody else owns the key either.
fn refusal(error: &SdkError<UpdateItemError, HttpResponse>, takes: bool) -> Result<Option<Token>, NodeError> {
    match error.code() {
        Some("ConditionalCheckFailedException") => Ok(None),
        Some("ResourceNotFoundException") if !takes => Ok(None),
        _ => Err(failure(error)),
    }
}
