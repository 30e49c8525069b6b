//! Answers: JSON bodies and their HTTP status.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use history::{Arm, RequestKind};
use serde_json::{Map, Value, json};

use crate::admission::{Admission, ArmOutcome};
use crate::decide::Refusal;
use crate::policy::Policy;

/// The admission number of a decided request.
pub(crate) const X_ADMISSION: HeaderName = HeaderName::from_static("x-admission");
/// `true` on a repeated answer.
pub(crate) const X_REPEAT: HeaderName = HeaderName::from_static("x-repeat");

/// The error of a write that the fence refused; part of the interface.
pub(crate) const STALE: &str = "stale fencing token";

/// The answer to a request that was not decided: `{"error": …}` and explaining fields.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    body: Map<String, Value>,
    close: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Problem {
        let body = Map::from_iter([("error".to_owned(), Value::String(error.into()))]);
        Problem { status, body, close: false }
    }

    /// Adds a field to the body.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Problem {
        self.body.insert(field.to_owned(), value.into());
        self
    }

    /// Closes the connection after the answer, because the rest of the request has not been read.
    pub(crate) fn closing(mut self) -> Problem {
        self.close = true;
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = respond(self.status, &Value::Object(self.body));
        if self.close {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let problem = |status| Problem::new(status, refusal.to_string());
        match refusal {
            Refusal::MissingToken { arm } => problem(StatusCode::PRECONDITION_REQUIRED).with("arm", arm.name()),
            Refusal::MissingBase => problem(StatusCode::PRECONDITION_REQUIRED).with("arm", Arm::Cas.name()),
            Refusal::MissingDeadline => problem(StatusCode::PRECONDITION_REQUIRED).with("arm", Arm::Deadline.name()),
            Refusal::MissingArm { arm } | Refusal::UnknownArm { arm } => {
                problem(StatusCode::UNPROCESSABLE_ENTITY).with("arm", arm.name())
            }
            Refusal::OpWithoutHold => problem(StatusCode::BAD_REQUEST),
            Refusal::OpReused { .. } => problem(StatusCode::UNPROCESSABLE_ENTITY),
        }
    }
}

/// Returns the answer to a decided request. With one arm the body does not mention arms. With several arms the status
/// is that of the leading arm, and the body lists all arms.
pub(crate) fn decided(policy: &Policy, admission: &Admission) -> Response {
    let (status, body) = match admission.arms.as_slice() {
        [only] => plain(admission, only),
        arms => several(policy, admission, arms),
    };
    let mut response = respond(status, &body);
    response.headers_mut().insert(X_ADMISSION, HeaderValue::from(admission.number.0));
    if admission.repeat {
        response.headers_mut().insert(X_REPEAT, HeaderValue::from_static("true"));
    }
    response
}

fn plain(admission: &Admission, arm: &ArmOutcome) -> (StatusCode, Value) {
    if admission.kind == RequestKind::Read {
        let mut body = shown(admission, arm);
        body["arm"] = arm.arm.name().into();
        (StatusCode::OK, body)
    } else if arm.admitted {
        (StatusCode::OK, json!({"version": arm.version.0, "seen": arm.seen}))
    } else {
        (StatusCode::CONFLICT, Value::Object(conflict(admission, arm)))
    }
}

fn several(policy: &Policy, admission: &Admission, arms: &[ArmOutcome]) -> (StatusCode, Value) {
    let each = |of: fn(&Admission, &ArmOutcome) -> Value| -> Value {
        arms.iter().map(|arm| (arm.arm.name().to_owned(), of(admission, arm))).collect::<Map<_, _>>().into()
    };
    if admission.kind == RequestKind::Read {
        return (StatusCode::OK, json!({"arms": each(shown)}));
    }
    let arms = each(|_, arm| json!({"admitted": arm.admitted, "seen": arm.seen, "version": arm.version.0}));
    match admission.arm(policy.leading_arm()) {
        Some(leading) if !leading.admitted => {
            let mut body = conflict(admission, leading);
            body.insert("arms".to_owned(), arms);
            (StatusCode::CONFLICT, body.into())
        }
        _ => (StatusCode::OK, json!({"arms": arms})),
    }
}

/// Returns the state of one arm for a read.
fn shown(admission: &Admission, arm: &ArmOutcome) -> Value {
    json!({"value": arm.value, "version": arm.version.0, "max_fence": arm.highest(admission.token)})
}

/// Explains the refusal of `arm`.
fn conflict(admission: &Admission, arm: &ArmOutcome) -> Map<String, Value> {
    let body = match arm.arm {
        Arm::Cas => json!({"error": "version mismatch", "version": arm.version.0, "base": arm.base}),
        Arm::Deadline => json!({"error": "the deadline has passed", "deadline": admission.deadline}),
        Arm::Guard => json!({"error": "the lock key of the hold is gone", "got": admission.token}),
        _ => json!({"error": STALE, "seen": arm.seen, "got": admission.token}),
    };
    match body {
        Value::Object(body) => body,
        _ => Map::new(),
    }
}

/// Makes a JSON answer.
pub(crate) fn respond(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(format!("{body}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
