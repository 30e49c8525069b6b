//! Turns HTTP into a [`Request`]. An invalid request is answered here and never decided.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::{Bytes, BytesMut};
use history::{Arm, Deadline, HoldId, OpId, Token, Version};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::Deserialize;

use crate::answer::{Problem, decided};
use crate::limits::DISCARD_BYTES_MAX;
use crate::moment::Undecided;
use crate::policy::Policy;
use crate::request::{Action, Proposal, Request, parse_key};
use crate::service::Shared;

/// The fencing token.
pub(crate) const X_FENCE_TOKEN: HeaderName = HeaderName::from_static("x-fence-token");
/// The hold.
pub(crate) const X_HOLD: HeaderName = HeaderName::from_static("x-hold");
/// The operation of the hold.
pub(crate) const X_OP: HeaderName = HeaderName::from_static("x-op");
/// The deadline of a write, in microseconds since 1970.
pub(crate) const X_DEADLINE: HeaderName = HeaderName::from_static("x-deadline");
/// The version from which the value of a PUT was computed, where the body is the value itself.
pub(crate) const X_BASE: HeaderName = HeaderName::from_static("x-base");

/// Routes every path of the service.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/r/{key}", get(read).put(write))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), refuse_wrong_escapes))
        .with_state(shared)
}

/// Refuses a path or query with a wrong percent escape. The decoder would take the escape as text, so `%ZZ` would be
/// another key than the key that the client meant.
async fn refuse_wrong_escapes(State(shared): State<Arc<Shared>>, request: HttpRequest, next: Next) -> Response {
    let Some(wrong) = wrong_escape(request.uri()) else { return next.run(request).await };
    let error =
        "a percent sign in path or query is not followed by two hexadecimal digits: write the sign itself as %25";
    let wrong = Problem::new(StatusCode::BAD_REQUEST, error).with("got", wrong);
    let (head, body) = request.into_parts();
    // Read the body, so that the connection can be used again.
    let problem = take_body(&shared, &head.headers, body).await.err().unwrap_or(wrong);
    shared.metrics.turned_away();
    problem.into_response()
}

/// Returns the first percent escape of path or query that is not `%` with two hexadecimal digits.
fn wrong_escape(uri: &Uri) -> Option<&str> {
    [uri.path(), uri.query().unwrap_or_default()].into_iter().find_map(|part| {
        let escapes = part.match_indices('%').map(|(at, _)| &part[at..]);
        let mut wrong = escapes
            .filter(|rest| !rest.as_bytes().get(1..3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
        wrong.next().map(|rest| rest.get(..3).unwrap_or(rest))
    })
}

async fn unknown_path(uri: Uri) -> Problem {
    let error = "no such path: the paths are /r/{key}, /metrics and /healthz (write a slash in a key as %2F)";
    Problem::new(StatusCode::NOT_FOUND, error).with("path", uri.path())
}

async fn wrong_method(method: Method) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not support this method")
        .with("method", method.as_str())
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.metrics.text(&shared.policy);
    ([(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"))], text).into_response()
}

async fn read(
    State(shared): State<Arc<Shared>>,
    key: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Response {
    let request = request(key, &headers, |_| Ok(Action::Read));
    decide(&shared, request).await
}

async fn write(
    State(shared): State<Arc<Shared>>,
    key: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    // Read the body even if the head is invalid, so that the connection can be used again.
    let body = take_body(&shared, &headers, body).await;
    let policy = &shared.policy;
    let request =
        body.and_then(|body| request(key, &headers, |headers| Ok(Action::Write(arms(policy, headers, &body)?))));
    decide(&shared, request).await
}

async fn decide(shared: &Shared, request: Result<Request, Problem>) -> Response {
    let undecided = match request {
        Ok(request) => match shared.admit(request).await {
            Ok(admission) => return decided(&shared.policy, &admission),
            Err(undecided) => problem(&shared.policy, undecided),
        },
        Err(problem) => problem,
    };
    shared.metrics.turned_away();
    undecided.into_response()
}

fn problem(policy: &Policy, undecided: Undecided) -> Problem {
    let text = undecided.to_string();
    match undecided {
        Undecided::Refused(refusal) => {
            let arms: Vec<&str> = policy.arms().iter().map(|arm| arm.name()).collect();
            Problem::from(refusal).with("arms", arms)
        }
        Undecided::Overloaded => Problem::new(StatusCode::SERVICE_UNAVAILABLE, text),
        Undecided::Broken => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, text),
        Undecided::Unstorable => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text),
    }
}

/// Assembles a request from its parts. `action` is checked last.
fn request(
    key: Result<Path<String>, PathRejection>,
    headers: &HeaderMap,
    action: impl FnOnce(&HeaderMap) -> Result<Action, Problem>,
) -> Result<Request, Problem> {
    let bad = |error: String| Problem::new(StatusCode::BAD_REQUEST, error);
    let Path(key) = key.map_err(|error| bad(format!("the key cannot be read: {}", error.body_text())))?;
    let key = parse_key(&key).map_err(|error| bad(error.to_string()).with("key", key))?;
    Ok(Request {
        key,
        hold: number(headers, &X_HOLD, "X-Hold")?.map(HoldId),
        op: number(headers, &X_OP, "X-Op")?.map(OpId),
        token: number(headers, &X_FENCE_TOKEN, "X-Fence-Token")?.map(Token),
        // The clock is read when the request is decided.
        deadline: number(headers, &X_DEADLINE, "X-Deadline")?.map(|until_us| Deadline { until_us, read_us: 0 }),
        action: action(headers)?,
    })
}

/// Parses a numeric header: only decimal digits, and at most once.
fn number(headers: &HeaderMap, header: &HeaderName, name: &str) -> Result<Option<u64>, Problem> {
    let mut values = headers.get_all(header).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let bad = |error: String| {
        let got = String::from_utf8_lossy(value.as_bytes()).into_owned();
        Err(Problem::new(StatusCode::BAD_REQUEST, error).with("got", got))
    };
    if values.next().is_some() {
        return bad(format!("{name} is given twice"));
    }
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => bad(format!("{name} is not a whole number from 0 to {}", u64::MAX)),
    }
}

/// Reads the body within the limits of size and time.
async fn take_body(shared: &Shared, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let max = shared.limits.body_bytes_max;
    let too_large = || {
        let error = format!("the body is larger than {max} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error).with("max", max).closing()
    };
    let announced = body.size_hint().lower();
    if announced > max as u64 && headers.contains_key(header::EXPECT) {
        // The client waits for `100 Continue`, and gets the error instead.
        return Err(too_large());
    }
    match tokio::time::timeout(shared.limits.body_timeout, collect(body, max)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => Err(too_large()),
        Ok(Err(error)) => {
            let error = format!("the body cannot be read: {error}");
            Err(Problem::new(StatusCode::BAD_REQUEST, error).closing())
        }
        Err(_) => {
            let error = "the body of the request did not arrive in time";
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, error).closing())
        }
    }
}

/// Reads the whole body; none if it has more than `max` bytes.
async fn collect(mut body: Body, max: usize) -> Result<Option<Bytes>, axum::Error> {
    let mut bytes = BytesMut::new();
    let mut total = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        total += data.len();
        if total <= max {
            bytes.extend_from_slice(&data);
        } else if total > DISCARD_BYTES_MAX {
            break;
        }
    }
    Ok((total <= max).then(|| bytes.freeze()))
}

/// The body of a write on several arms. A struct instead of a map, so that a repeated arm and an unknown arm are
/// refused by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArmsBody {
    arms: PerArm,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PerArm {
    off: Option<BaseAndValue>,
    writes: Option<BaseAndValue>,
    reads: Option<BaseAndValue>,
    cas: Option<BaseAndValue>,
    claim: Option<BaseAndValue>,
    deadline: Option<BaseAndValue>,
    guard: Option<BaseAndValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseAndValue {
    base: u64,
    value: String,
}

/// Parses the proposals of a PUT.
fn arms(policy: &Policy, headers: &HeaderMap, body: &[u8]) -> Result<BTreeMap<Arm, Proposal>, Problem> {
    let bad = |error: String| Problem::new(StatusCode::BAD_REQUEST, error);
    if let [only] = policy.arms() {
        let base = number(headers, &X_BASE, "X-Base")?.map(Version);
        let value = std::str::from_utf8(body).map_err(|error| bad(format!("the value is not UTF-8: {error}")))?;
        return Ok(BTreeMap::from([(*only, Proposal { base, value: value.to_owned() })]));
    }
    let expected = r#"the body is not {"arms": {"<arm>": {"base": <version>, "value": "<text>"}, …}}"#;
    let ArmsBody { arms } = serde_json::from_slice(body).map_err(|error| bad(format!("{expected}: {error}")))?;
    let PerArm { off, writes, reads, cas, claim, deadline, guard } = arms;
    let given = [
        (Arm::Off, off),
        (Arm::Writes, writes),
        (Arm::Reads, reads),
        (Arm::Cas, cas),
        (Arm::Claim, claim),
        (Arm::Deadline, deadline),
        (Arm::Guard, guard),
    ];
    let proposal = |given: BaseAndValue| Proposal { base: Some(Version(given.base)), value: given.value };
    Ok(given.into_iter().filter_map(|(arm, given)| Some((arm, proposal(given?)))).collect())
}
