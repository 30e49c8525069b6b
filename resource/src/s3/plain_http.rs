//! HTTP without TLS for the crate `object_store`, whose own client always has TLS.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::StatusCode;

/// The longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_000);

/// A status that says that the request was refused, and that it would be refused again.
#[derive(Debug, thiserror::Error)]
#[error("status {status}: {text}")]
pub(super) struct Refused {
    status: StatusCode,
    text: String,
}

/// Makes [`PlainHttp`].
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let built = reqwest::Client::builder()
            .timeout(ANSWER_TIMEOUT)
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .build();
        let http = built.map_err(|error| object_store::Error::Generic { store: "S3", source: error.into() })?;
        Ok(HttpClient::new(PlainHttp(http)))
    }
}

/// The client. It sends each request once.
#[derive(Debug)]
struct PlainHttp(reqwest::Client);

impl HttpService for PlainHttp {
    fn call<'a, 'call>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'a: 'call,
    {
        Box::pin(exchange(&self.0, request))
    }
}

async fn exchange(http: &reqwest::Client, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    // The crate decides by this kind about a repetition, which is switched off.
    let lost = |error: reqwest::Error| HttpError::new(HttpErrorKind::Unknown, error);
    let (head, body) = request.into_parts();
    let request = http.request(head.method, head.uri.to_string()).headers(head.headers);
    let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
    let answer = request.body(body).send().await.map_err(lost)?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let body = answer.bytes().await.map_err(lost)?;
    if is_refusal(status) {
        let text = String::from_utf8_lossy(&body).into_owned();
        return Err(HttpError::new(HttpErrorKind::Unknown, Refused { status, text }));
    }
    let mut response = HttpResponse::new(body.into());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Returns whether a status is a definite error for which `object_store` has no error of its own.
fn is_refusal(status: StatusCode) -> bool {
    let known = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
        // These two ask for a later try.
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    (status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED) && !known.contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_status_that_would_come_again_and_that_nothing_else_names() {
        let refusals = [400, 405, 411, 413, 422, 501];
        // Some of these have an error of their own, and the others ask for a later try.
        let others = [200, 204, 304, 401, 403, 404, 408, 409, 412, 429, 500, 502, 503];
        for code in refusals.into_iter().chain(others) {
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(is_refusal(status), refusals.contains(&code), "{status}");
        }
    }
}
