//! The messages between the harness and a client program, one JSON object on each line. `docs/client-protocol.md` is
//! the reference. Pure.

use serde::{Deserialize, Serialize};

/// A lock server, as `init` names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProgramServer {
    /// The name of the node: `redis-1`.
    pub name: String,
    /// Its host, which the program resolves.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A request to the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// The first request: the servers and the lease that every `acquire` will ask for.
    Init {
        /// The lock servers.
        servers: Vec<ProgramServer>,
        /// The lease.
        lease_ms: u64,
    },
    /// One attempt, which does not wait for another holder.
    Acquire {
        /// The name of the lock.
        key: String,
        /// A value that no other attempt has.
        owner: String,
        /// The lease.
        lease_ms: u64,
    },
    /// Lets the hold of this owner last for the lease from now on.
    Renew {
        /// The name of the lock.
        key: String,
        /// The owner of `acquire`.
        owner: String,
        /// The lease.
        lease_ms: u64,
    },
    /// Gives the lock back, if this owner still has it.
    Release {
        /// The name of the lock.
        key: String,
        /// The owner of `acquire`.
        owner: String,
    },
    /// Gives up the attempt of this owner, whether it was answered or not.
    Cancel {
        /// The name of the lock.
        key: String,
        /// The owner of `acquire`.
        owner: String,
    },
    /// No request that a program knows, for conformance tests.
    Unknown,
}

impl Request {
    /// The name of the request in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Init { .. } => "init",
            Request::Acquire { .. } => "acquire",
            Request::Renew { .. } => "renew",
            Request::Release { .. } => "release",
            Request::Cancel { .. } => "cancel",
            Request::Unknown => "unknown",
        }
    }

    /// Returns the line for the program, without its end.
    pub(super) fn line(&self, id: u64) -> String {
        #[derive(Serialize)]
        struct Numbered<'a> {
            id: u64,
            #[serde(flatten)]
            request: &'a Request,
        }
        // Strings and numbers always have a form in JSON.
        serde_json::to_string(&Numbered { id, request: self }).unwrap_or_default()
    }
}

/// The reason for which a program refuses a request, or does not know its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// Definite: another client holds the lock.
    Held,
    /// Definite: this owner does not have the lock, or no longer has it.
    Lost,
    /// Definite: the request certainly did nothing, for another reason.
    Refused,
    /// Definite: the program does not know this request.
    Unsupported,
    /// Indefinite: no server answered in time, so the request may have been done.
    Timeout,
    /// Indefinite: any other error after which the request may have been done.
    Error,
}

impl ErrorCode {
    /// Returns whether the request certainly did nothing.
    pub fn is_definite(self) -> bool {
        !matches!(self, ErrorCode::Timeout | ErrorCode::Error)
    }

    /// The code as programs write it.
    pub fn name(self) -> &'static str {
        match self {
            ErrorCode::Held => "held",
            ErrorCode::Lost => "lost",
            ErrorCode::Refused => "refused",
            ErrorCode::Unsupported => "unsupported",
            ErrorCode::Timeout => "timeout",
            ErrorCode::Error => "error",
        }
    }
}

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The request was done.
    Done(Done),
    /// It was not, or nobody knows.
    Failed {
        /// The reason.
        error: ErrorCode,
        /// The program's own words.
        detail: String,
    },
}

/// The facts of a request that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// `acquire`: the fencing token.
    pub token: Option<u64>,
    /// `acquire` and `renew`: for how long the program relies on the lock, counted from the request.
    pub valid_ms: Option<u64>,
    /// `acquire` and `renew`: the lease that the servers granted, if they granted another one.
    pub lease_ms: Option<u64>,
}

/// The longest number that every reader of JSON keeps.
const NUMBER_MAX: u64 = 1 << 53;
/// The longest time in an answer, in milliseconds: some months.
const TIME_MS_MAX: u64 = 10_000_000_000;
/// The part of a program's own words that is kept.
const DETAIL_MAX: usize = 500;

/// Parses a line of the program into the number of its request and the answer.
///
/// # Errors
/// What was expected instead.
pub(super) fn parse(line: &str) -> Result<(u64, Answer), String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Written {
        id: u64,
        ok: bool,
        error: Option<ErrorCode>,
        detail: Option<String>,
        token: Option<u64>,
        valid_ms: Option<u64>,
        lease_ms: Option<u64>,
    }
    let example = r#"expected one JSON object such as {"id":2,"ok":true} on the line"#;
    let written: Written = serde_json::from_str(line).map_err(|e| format!("{example}: {e}"))?;
    let Written { id, ok, error, detail, token, valid_ms, lease_ms } = written;
    if token.is_some_and(|token| token > NUMBER_MAX) {
        return Err("expected a token of at most 2^53".into());
    }
    if [valid_ms, lease_ms].into_iter().flatten().any(|ms| ms > TIME_MS_MAX) {
        return Err("expected times of at most 10^10 ms".into());
    }
    match (ok, error) {
        (true, None) => Ok((id, Answer::Done(Done { token, valid_ms, lease_ms }))),
        (false, Some(error)) => {
            let detail = shortened(detail.unwrap_or_default(), DETAIL_MAX);
            Ok((id, Answer::Failed { error, detail }))
        }
        (true, Some(_)) => Err(r#"`"ok":true` and `error` exclude each other"#.into()),
        (false, None) => Err(r#"expected an error code beside `"ok":false`, such as "error":"held""#.into()),
    }
}

/// Returns the text, or its first `max` characters and an ellipsis if the text is longer.
pub fn shortened(mut text: String, max: usize) -> String {
    let end = text.char_indices().nth(max).map(|(at, _)| at);
    if let Some(end) = end {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_with_its_number_and_name() {
        let acquire = Request::Acquire { key: "k0".into(), owner: "a\"b".into(), lease_ms: 2000 };
        let expected = r#"{"id":7,"op":"acquire","key":"k0","owner":"a\"b","lease_ms":2000}"#;
        assert_eq!(acquire.line(7), expected);
        assert_eq!(Request::Unknown.line(1), r#"{"id":1,"op":"unknown"}"#);
    }

    #[test]
    fn a_text_is_cut_between_characters_and_only_if_it_is_longer() {
        for (text, expected) in [("", ""), ("äöü", "äöü"), ("äöü!", "äöü…")] {
            assert_eq!(shortened(text.to_owned(), 3), expected);
        }
    }

    #[test]
    fn answers_are_read_and_mistakes_are_named() {
        let done = |done| Ok((2, Answer::Done(done)));
        assert_eq!(parse(r#"{"id":2,"ok":true}"#), done(Done::default()));
        let told = r#"{"id":2,"ok":true,"token":7,"valid_ms":5,"lease_ms":9}"#;
        assert_eq!(parse(told), done(Done { token: Some(7), valid_ms: Some(5), lease_ms: Some(9) }));
        let held = Answer::Failed { error: ErrorCode::Held, detail: String::new() };
        assert_eq!(parse(r#"{"id":2,"ok":false,"error":"held"}"#), Ok((2, held)));
        for (line, words) in [
            ("hello", "expected one JSON object"),
            (r#"{"id":2}"#, "missing field `ok`"),
            (r#"{"id":2,"ok":true,"vaild_ms":5}"#, "unknown field `vaild_ms`"),
            (r#"{"id":2,"ok":false}"#, "expected an error code"),
            (r#"{"id":2,"ok":true,"error":"held"}"#, "exclude each other"),
            (r#"{"id":2,"ok":false,"error":"busy"}"#, "unknown variant `busy`"),
            (r#"{"id":2,"ok":true,"token":-1}"#, "invalid value"),
            (r#"{"id":2,"ok":true,"token":9007199254740993}"#, "2^53"),
            (r#"{"id":2,"ok":true,"lease_ms":18446744073710}"#, "10^10 ms"),
            (r#"{"id":2,"ok":true,"valid_ms":18446744073710}"#, "10^10 ms"),
        ] {
            let problem = parse(line).unwrap_err();
            assert!(problem.contains(words), "{line}: {problem}");
        }
    }
}
