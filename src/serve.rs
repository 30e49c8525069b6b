//! `harness serve`: the recorded runs of a directory in a browser.

mod index;

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::SystemTime,
};

use anyhow::Context;
use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_http::services::ServeFile;

use crate::{
    cli::ServeArgs,
    exit::{Exit, Unusable},
    recorded_run::{RecordedRun, recorded_runs},
    report::print,
    run_dir::RunDir,
    runner::runtime,
};

/// The files of a run that can be read, with their types. Logs of servers are not among them.
const FILES: [(&str, &str); 8] = [
    ("report.html", "text/html; charset=utf-8"),
    ("report.md", "text/plain; charset=utf-8"),
    ("verdict.json", "application/json"),
    ("run.json", "application/json"),
    ("plan.toml", "text/plain; charset=utf-8"),
    ("junit.xml", "text/xml; charset=utf-8"),
    ("history.jsonl", "text/plain; charset=utf-8"),
    ("history.jsonl.zst", "application/zstd"),
];

/// A page may use what is in it, and load nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `harness serve`
pub fn serve(args: &ServeArgs) -> anyhow::Result<Exit> {
    let runs = args.runs.canonicalize().map_err(|e| Unusable(format!("--runs {}: {e}", args.runs.display())))?;
    recorded_runs(&runs)?;
    runtime()?.block_on(async {
        let listener = TcpListener::bind(args.listen).await.with_context(|| format!("listening on {}", args.listen))?;
        let address = listener.local_addr().context("asking for the address")?;
        // A page of another site can make a browser send requests to this address, but not with this name.
        let hosts = address.ip().is_loopback().then(|| own_hosts(address));
        print(&format!("http://{address}/ shows the runs in {}; Ctrl-C ends it\n", args.runs.display()))?;
        let site = Arc::new(Site { runs, hosts, known: Mutex::default() });
        // Nothing is written, so a request that is cut off loses nothing.
        tokio::select! {
            served = axum::serve(listener, router(site)).into_future() => served.context("serving the runs")?,
            stopped = tokio::signal::ctrl_c() => stopped.context("waiting for Ctrl-C")?,
        }
        Ok(Exit::Interrupted)
    })
}

/// The port that a browser leaves out of the header `Host`.
const HTTP_PORT: u16 = 80;

/// Returns the values of `Host` that name an address of this machine.
fn own_hosts(address: SocketAddr) -> BTreeSet<String> {
    let ip = match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    };
    let names = [ip, "localhost".to_owned()];
    let with_port = names.iter().map(|name| format!("{name}:{}", address.port()));
    let without = names.iter().filter(|_| address.port() == HTTP_PORT).cloned();
    with_port.chain(without).collect()
}

/// The directory that is shown.
struct Site {
    /// The real path of the directory.
    runs: PathBuf,
    /// The values of `Host` that are answered, in lower case; all, if others than this machine may ask.
    hosts: Option<BTreeSet<String>>,
    /// Runs that were read, with the time when their verdicts were written.
    known: Mutex<HashMap<String, (Option<SystemTime>, RecordedRun)>>,
}

impl Site {
    /// Reads the runs, the newest first. A run is read again when its verdicts have changed.
    fn recorded(&self) -> Result<Vec<RecordedRun>, Unusable> {
        let names = recorded_runs(&self.runs)?;
        let read = |name: &String| {
            let verdict = RunDir::at(&self.runs.join(name)).verdict();
            let written = verdict.metadata().and_then(|data| data.modified()).ok();
            let known = self.known.lock().get(name).filter(|(then, _)| *then == written && written.is_some()).cloned();
            known.unwrap_or_else(|| (written, RecordedRun::read(&self.runs, name)))
        };
        let read: Vec<_> = names.iter().map(|name| (name.clone(), read(name))).collect();
        // Removed runs are forgotten.
        *self.known.lock() = read.iter().cloned().collect();
        Ok(read.into_iter().map(|(_, (_, run))| run).collect())
    }

    /// Finds a file of a run. A link that leads out of the directory finds nothing.
    fn file(&self, run: &str, name: &str) -> Option<(PathBuf, &'static str)> {
        let (name, media) = FILES.into_iter().find(|(known, _)| *known == name)?;
        let is_name = !run.is_empty() && !run.starts_with('.') && !run.contains(['/', '\\', '\0']);
        let path = is_name.then(|| self.runs.join(run).join(name))?.canonicalize().ok()?;
        (path.starts_with(&self.runs) && path.is_file()).then_some((path, media))
    }
}

fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/runs/{run}/{file}", get(file))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page; / has the runs\n") })
        .layer(middleware::from_fn_with_state(site.clone(), guard))
        .with_state(site)
}

/// Answers only requests that are meant for this server, and forbids pages to load anything.
async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let is_own = |hosts: &BTreeSet<String>| host.is_some_and(|host| hosts.contains(&host.to_ascii_lowercase()));
    let is_meant = site.hosts.as_ref().is_none_or(is_own);
    let mut response = if !is_meant {
        (StatusCode::MISDIRECTED_REQUEST, "the header Host has another address than this server's\n").into_response()
    } else if request.method() != Method::GET && request.method() != Method::HEAD {
        (StatusCode::METHOD_NOT_ALLOWED, "runs can only be read\n").into_response()
    } else {
        next.run(request).await
    };
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn index(State(site): State<Arc<Site>>) -> Response {
    let shown = site.clone();
    let page = tokio::task::spawn_blocking(move || anyhow::Ok(index::page(&shown.runs, &shown.recorded()?)?)).await;
    match page.map_err(anyhow::Error::from).and_then(|page| page) {
        Ok(page) => Html(page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")).into_response(),
    }
}

async fn file(State(site): State<Arc<Site>>, Path((run, name)): Path<(String, String)>, request: Request) -> Response {
    let Some((path, media)) = site.file(&run, &name) else {
        return (StatusCode::NOT_FOUND, "no such file of a run; / has the runs\n").into_response();
    };
    let served = ServeFile::new(path).oneshot(request).await;
    let mut response = served.unwrap_or_else(|never| match never {}).map(Body::new);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory with one run, and a file beside it that must not be read.
    fn site(dir: &std::path::Path, hosts: &[&str]) -> Router {
        let runs = dir.join("runs");
        let run = runs.join("20261124t000000-redis-pause-0a");
        fs::create_dir_all(&run).unwrap();
        for (name, text) in [
            ("plan.toml", "broken"),
            ("verdict.json", r#"{"verdict":"violated<b>","as_expected":true}"#),
            ("report.html", "<p>report"),
            ("secret.txt", "secret"),
        ] {
            fs::write(run.join(name), text).unwrap();
        }
        fs::write(dir.join("report.md"), "secret").unwrap();
        std::os::unix::fs::symlink(dir.join("report.md"), run.join("report.md")).unwrap();
        std::os::unix::fs::symlink(dir, runs.join("out")).unwrap();
        let hosts = (!hosts.is_empty()).then(|| hosts.iter().map(|host| (*host).to_owned()).collect());
        router(Arc::new(Site { runs: runs.canonicalize().unwrap(), hosts, known: Mutex::default() }))
    }

    async fn asked(site: &Router, method: &str, path: &str, host: &str) -> (StatusCode, Response<()>, String) {
        let request = Request::builder().method(method).uri(path).header("host", host).body(Body::empty()).unwrap();
        let response = site.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        (parts.status, Response::from_parts(parts, ()), String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn runs_and_their_files_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path(), &[]);
        let (status, response, body) = asked(&site, "GET", "/", "any").await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert!(body.contains("/runs/20261124t000000-redis-pause-0a/report.html"), "{body}");
        assert!(body.contains("violated&lt;b&gt;") && !body.contains("violated<b>"), "{body}");
        assert_eq!(response.headers()["content-security-policy"], POLICY);
        let (status, response, body) =
            asked(&site, "GET", "/runs/20261124t000000-redis-pause-0a/report.html", "x").await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "<p>report"));
        assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    }

    #[tokio::test]
    async fn nothing_outside_the_runs_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path(), &[]);
        for path in [
            "/runs/../report.md",
            "/runs/%2e%2e/report.md",
            "/runs/..%2f/report.md",
            "/runs/out/report.md",
            "/runs/20261124t000000-redis-pause-0a/report.md",
            "/runs/20261124t000000-redis-pause-0a/secret.txt",
            "/runs/20261124t000000-redis-pause-0a/..%2f..%2freport.md",
            "/runs/%00/report.md",
            "/etc/passwd",
        ] {
            let (status, _, body) = asked(&site, "GET", path, "any").await;
            assert!(status.is_client_error() && !body.contains("secret"), "{path}: {status} {body}");
        }
    }

    #[tokio::test]
    async fn other_names_and_other_methods_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path(), &["127.0.0.1:8300", "localhost:8300"]);
        assert_eq!(asked(&site, "GET", "/", "127.0.0.1:8300").await.0, StatusCode::OK);
        assert_eq!(asked(&site, "HEAD", "/", "127.0.0.1:8300").await.0, StatusCode::OK);
        assert_eq!(asked(&site, "GET", "/", "evil.example:8300").await.0, StatusCode::MISDIRECTED_REQUEST);
        assert_eq!(asked(&site, "GET", "/", "LocalHost:8300").await.0, StatusCode::OK);
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(asked(&site, method, "/", "127.0.0.1:8300").await.0, StatusCode::METHOD_NOT_ALLOWED);
        }
    }

    #[test]
    fn a_browser_may_leave_out_the_usual_port() {
        let hosts = |address: &str| own_hosts(address.parse().unwrap()).into_iter().collect::<Vec<_>>();
        assert_eq!(hosts("127.0.0.1:8300"), ["127.0.0.1:8300", "localhost:8300"]);
        assert_eq!(hosts("127.0.0.1:80"), ["127.0.0.1", "127.0.0.1:80", "localhost", "localhost:80"]);
        assert_eq!(hosts("[::1]:80"), ["[::1]", "[::1]:80", "localhost", "localhost:80"]);
    }

    #[tokio::test]
    async fn a_run_is_read_again_when_its_verdict_changes() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path(), &[]);
        asked(&site, "GET", "/", "any").await;
        let run = dir.path().join("runs/20261124t000000-redis-pause-0a");
        let verdict = fs::File::create(run.join("verdict.json")).unwrap();
        std::io::Write::write_all(&mut &verdict, br#"{"verdict":"upheld"}"#).unwrap();
        verdict.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(asked(&site, "GET", "/", "any").await.2.contains("<td class=\"upheld\">upheld"));
        fs::remove_dir_all(&run).unwrap();
        assert!(!asked(&site, "GET", "/", "any").await.2.contains("redis-pause"));
    }
}
