//! The client of the resource. The client never retries. Each of its errors says whether the request may have been
//! applied, because the checker needs to know.

use std::collections::BTreeMap;
use std::time::Duration;

use history::{Arm, HoldId, Key, OpId, Token, Version};
use reqwest::{Method, RequestBuilder, StatusCode, Url, header};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{X_ADMISSION, X_REPEAT};
use crate::http::{X_BASE, X_DEADLINE, X_FENCE_TOKEN, X_HOLD, X_OP};
use crate::policy::leading_arm;
use crate::request::parse_key;

/// The reason why an operation on the resource did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The request was certainly not applied: it never left, or got a 4xx status.
    #[error("the resource did not apply the request: {0}")]
    Failed(String),
    /// The request may have been applied, now or later: no answer came in time, the connection was lost, or the answer
    /// does not tell.
    #[error("the resource may have applied the request: {0}")]
    Indeterminate(String),
}

/// The state of one arm in the answer to a read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ReadArm {
    /// The value; none before the first write.
    pub value: Option<String>,
    /// Its version.
    pub version: Version,
    /// The largest registered token, including that of this read.
    #[serde(rename = "max_fence")]
    pub seen: Option<Token>,
}

/// The answer to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAnswer {
    /// The admission number.
    pub number: Version,
    /// True if the former answer was repeated.
    pub repeat: bool,
    /// Each arm of the resource.
    pub arms: BTreeMap<Arm, ReadArm>,
}

/// The decision of one arm about a write.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WriteArm {
    /// True if the write was applied.
    pub admitted: bool,
    /// The largest token that was registered before the write.
    pub seen: Option<Token>,
}

/// The answer to a write. A refusal is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteAnswer {
    /// The admission number, and the version of the written value.
    pub number: Version,
    /// True if the former answer was repeated.
    pub repeat: bool,
    /// Each arm of the resource, as the body answers.
    pub arms: BTreeMap<Arm, WriteArm>,
    /// The arm about which the status says the opposite of the body. A correct resource never answers so.
    pub contrary: Option<Arm>,
}

/// A client of one resource. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
}

/// A complete write that has not been sent yet.
#[derive(Debug)]
#[must_use = "a prepared write has not left yet"]
pub struct PreparedWrite {
    request: RequestBuilder,
    /// The arm, if there is only one.
    only: Option<Arm>,
}

impl Client {
    /// Makes a client of the resource at `base_url` (`http://resource:8080`). `timeout` is for a whole operation, which
    /// is indeterminate after a timeout. The client keeps idle connections as long as the resource does, so that a
    /// paused client continues on its old connection.
    ///
    /// # Errors
    /// `base_url` is not a URL that starts with `http://`.
    pub fn new(base_url: &str, timeout: Duration) -> Result<Client, ClientError> {
        let bad = |why: String| ClientError::Failed(format!("'{base_url}' is not the address of a resource: {why}"));
        let base = Url::parse(base_url).map_err(|error| bad(error.to_string()))?;
        if base.scheme() != "http" {
            return Err(bad("it does not start with http://".to_owned()));
        }
        let http = reqwest::Client::builder()
            .timeout(timeout)
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .pool_idle_timeout(None)
            .build()
            .map_err(|error| bad(chain(&error)))?;
        Ok(Client { http, base })
    }

    /// Reads all arms of `key`. The arm `reads` registers the token of a read.
    ///
    /// # Errors
    /// See [`ClientError`]; a read that registers a token can be indeterminate like a write.
    pub async fn read(
        &self,
        key: &Key,
        token: Option<Token>,
        hold: Option<HoldId>,
        op: Option<OpId>,
    ) -> Result<ReadAnswer, ClientError> {
        let request = self.request(Method::GET, key, token, hold, op)?;
        let Answer { status, number, repeat, body } = exchange(request).await?;
        if status != StatusCode::OK {
            return Err(turned_away(status, &body));
        }
        let arms = match body.get("arms") {
            Some(arms) => parse(arms)?,
            None => BTreeMap::from([(parse(&body["arm"])?, parse(&body)?)]),
        };
        Ok(ReadAnswer { number: decided(number)?, repeat, arms })
    }

    /// Writes all arms of `key`: for each arm the version from which the value was computed, and the value. For
    /// `deadline_us` see [`Client::prepare_write`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn write(
        &self,
        key: &Key,
        token: Option<Token>,
        hold: Option<HoldId>,
        op: Option<OpId>,
        deadline_us: Option<u64>,
        arms: &BTreeMap<Arm, (Version, String)>,
    ) -> Result<WriteAnswer, ClientError> {
        self.prepare_write(key, token, hold, op, deadline_us, arms)?.send().await
    }

    /// Prepares a write; [`PreparedWrite::send`] sends it. `deadline_us` is the end of the client's belief in its hold,
    /// by the wall clock, in microseconds since 1970; the arm `deadline` needs it.
    ///
    /// # Errors
    /// The write was not applied, because no request left.
    pub fn prepare_write(
        &self,
        key: &Key,
        token: Option<Token>,
        hold: Option<HoldId>,
        op: Option<OpId>,
        deadline_us: Option<u64>,
        arms: &BTreeMap<Arm, (Version, String)>,
    ) -> Result<PreparedWrite, ClientError> {
        let mut request = self.request(Method::PUT, key, token, hold, op)?;
        if let Some(deadline) = deadline_us {
            request = request.header(X_DEADLINE, deadline);
        }
        let mut several = arms.iter();
        // A resource with one arm takes the bare value. The arm named here must be the resource's.
        if let (Some((arm, (base, value))), None) = (several.next(), several.next()) {
            let request = request.header(X_BASE, base.0).body(value.clone());
            return Ok(PreparedWrite { request, only: Some(*arm) });
        }
        let each =
            arms.iter().map(|(arm, (base, value))| (arm.name().to_owned(), json!({"base": base, "value": value})));
        let body = json!({"arms": each.collect::<serde_json::Map<_, _>>()});
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body.to_string());
        Ok(PreparedWrite { request, only: None })
    }

    fn request(
        &self,
        method: Method,
        key: &Key,
        token: Option<Token>,
        hold: Option<HoldId>,
        op: Option<OpId>,
    ) -> Result<RequestBuilder, ClientError> {
        let key = parse_key(key.as_str()).map_err(|error| ClientError::Failed(error.to_string()))?;
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| ClientError::Failed(format!("'{}' cannot have a path", self.base)))?
            .pop_if_empty()
            .extend(["r", key.as_str()]);
        let mut request = self.http.request(method, url);
        for (header, number) in
            [(X_FENCE_TOKEN, token.map(|t| t.0)), (X_HOLD, hold.map(|h| h.0)), (X_OP, op.map(|o| o.0))]
        {
            if let Some(number) = number {
                request = request.header(header, number);
            }
        }
        Ok(request)
    }
}

impl PreparedWrite {
    /// Sends the write first of all, and waits for the answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send(self) -> Result<WriteAnswer, ClientError> {
        let Answer { status, number, repeat, body } = exchange(self.request).await?;
        if status != StatusCode::OK && status != StatusCode::CONFLICT {
            return Err(turned_away(status, &body));
        }
        let arms: BTreeMap<Arm, WriteArm> = match self.only {
            None => parse(&body["arms"])?,
            Some(arm) => {
                let seen = body.get("seen").map_or(Ok(None), parse)?;
                BTreeMap::from([(arm, WriteArm { admitted: status == StatusCode::OK, seen })])
            }
        };
        let leading = leading_arm(|arm| arms.contains_key(arm));
        let is_contrary = arms.get(&leading).is_some_and(|arm| arm.admitted != (status == StatusCode::OK));
        Ok(WriteAnswer { number: decided(number)?, repeat, arms, contrary: is_contrary.then_some(leading) })
    }
}

/// An answer before its status is checked.
struct Answer {
    status: StatusCode,
    number: Option<u64>,
    repeat: bool,
    body: Value,
}

/// Sends `request` and reads the whole answer.
async fn exchange(request: RequestBuilder) -> Result<Answer, ClientError> {
    let response = request.send().await.map_err(|error| {
        if error.is_connect() || error.is_builder() {
            ClientError::Failed(chain(&error))
        } else {
            ClientError::Indeterminate(chain(&error))
        }
    })?;
    let status = response.status();
    let number = response.headers().get(X_ADMISSION).and_then(|number| number.to_str().ok()?.parse().ok());
    let repeat = response.headers().contains_key(X_REPEAT);
    // For an error status the body is optional: the status alone says that nothing was applied.
    let bytes = match response.bytes().await {
        Ok(bytes) => bytes,
        Err(error) if status.is_success() || status == StatusCode::CONFLICT => {
            return Err(ClientError::Indeterminate(chain(&error)));
        }
        Err(_) => bytes::Bytes::new(),
    };
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    Ok(Answer { status, number, repeat, body })
}

/// Turns a status without a decision into an error. The resource gives 4xx only to requests that it did not apply.
fn turned_away(status: StatusCode, body: &Value) -> ClientError {
    let why = format!("{status}: {}", body["error"].as_str().unwrap_or("no reason given"));
    if status.is_client_error() { ClientError::Failed(why) } else { ClientError::Indeterminate(why) }
}

/// Requires an admission number: an answer without one does not come from the resource.
fn decided(number: Option<u64>) -> Result<Version, ClientError> {
    number.map(Version).ok_or_else(|| ClientError::Indeterminate("the answer has no X-Admission".to_owned()))
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, ClientError> {
    T::deserialize(value).map_err(|error| ClientError::Indeterminate(format!("the answer cannot be read: {error}")))
}

/// Formats an error with its causes: the outermost error says only that sending failed.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
