//! The connection to the Docker engine.

use std::{pin::pin, sync::Arc, time::Duration};

use bollard::{
    Docker,
    errors::Error as EngineError,
    models::{ContainerCreateBody, NetworkCreateRequest, VolumeCreateRequest},
    query_parameters::CreateContainerOptions,
};
use history::EngineFacts;
use tokio::{net::TcpStream, sync::RwLock, time::timeout};

use crate::{
    error::{CALL_LIMIT, Error, explain, is_busy, is_forbidden, status, unconnected},
    socket,
};

/// Time within which an engine must take a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time within which an engine must report its version. On a busy machine an engine takes seconds.
const VERSION_LIMIT: Duration = Duration::from_secs(30);
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// A connection to a Docker engine that answers. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Engine {
    docker: Docker,
    host: String,
    /// Held for reading by each request that creates an object.
    creating: Arc<RwLock<()>>,
}

impl Engine {
    /// Connects to the engine that `DOCKER_HOST` names, or to the local engine, and negotiates the version of the API.
    ///
    /// # Errors
    /// As [`Engine::connect_to`].
    pub async fn connect() -> Result<Self, Error> {
        let host = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
        Self::connect_to(host.as_deref().unwrap_or(DEFAULT_HOST)).await
    }

    /// Connects to the engine at `host`: `unix:///path`, `tcp://name:port`.
    ///
    /// # Errors
    /// [`Error::NoEngine`] if nobody takes a connection within 5 s, [`Error::Forbidden`] if this user may not connect
    /// to it, [`Error::Engine`] if the engine answers with an error, or does not answer within 30 s.
    pub async fn connect_to(host: &str) -> Result<Self, Error> {
        let no_engine = |why: String| Error::NoEngine { host: host.to_owned(), why };
        let docker = match host.strip_prefix("unix://") {
            Some(path) => socket::client(path, CALL_LIMIT),
            None => Docker::connect_with_host(host),
        };
        let docker = docker.map_err(|e| no_engine(explain(&e)))?;
        let mut asking = pin!(docker.negotiate_version());
        let negotiated = match timeout(CONNECT_LIMIT, &mut asking).await {
            Ok(negotiated) => negotiated,
            Err(_) => {
                if !takes_connections(host).await {
                    return Err(no_engine(format!("no connection within {} s", CONNECT_LIMIT.as_secs())));
                }
                let negotiated = timeout(VERSION_LIMIT - CONNECT_LIMIT, asking).await;
                negotiated.map_err(|_| silent(host, format!("nothing within {} s", VERSION_LIMIT.as_secs())))?
            }
        };
        let docker = negotiated.map_err(|e| match status(&e) {
            Some(_) => Error::engine("asking for the engine's version", &e),
            None if is_forbidden(&e) => Error::Forbidden { host: host.to_owned() },
            None if is_busy(&e) => silent(host, unconnected(&e)),
            None => no_engine(unconnected(&e)),
        })?;
        let docker = with_version_in_path(docker).with_timeout(CALL_LIMIT);
        Ok(Self { docker, host: host.to_owned(), creating: Arc::default() })
    }

    /// Returns the address of the engine.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Asks the engine for its version: `20.10.24`.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn version(&self) -> Result<String, Error> {
        let version = self.docker.version().await.map_err(|e| Error::engine("asking for the engine's version", &e))?;
        Ok(version.version.unwrap_or_default())
    }

    /// Asks the engine for its facts.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn facts(&self) -> Result<EngineFacts, Error> {
        let version = self.version().await?;
        let info = self.docker.info().await.map_err(|e| Error::engine("asking for the engine's facts", &e))?;
        Ok(EngineFacts {
            version,
            api: self.docker.client_version().to_string(),
            cgroup: info.cgroup_version.map(|version| version.to_string()).unwrap_or_default(),
            storage: info.driver.unwrap_or_default(),
        })
    }

    pub(crate) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// Creates a container, and returns its id.
    pub(crate) async fn create_container(
        &self,
        name: String,
        body: ContainerCreateBody,
    ) -> Result<String, EngineError> {
        let docker = self.docker.clone();
        let options = CreateContainerOptions { name: Some(name), ..Default::default() };
        self.create(async move { docker.create_container(Some(options), body).await.map(|made| made.id) }).await
    }

    /// Creates a network, and returns its id.
    pub(crate) async fn create_network(&self, request: NetworkCreateRequest) -> Result<String, EngineError> {
        let docker = self.docker.clone();
        self.create(async move { docker.create_network(request).await.map(|made| made.id) }).await
    }

    /// Creates a volume.
    pub(crate) async fn create_volume(&self, request: VolumeCreateRequest) -> Result<(), EngineError> {
        let docker = self.docker.clone();
        self.create(async move { docker.create_volume(request).await.map(drop) }).await
    }

    /// Makes a request that creates an object. The request goes on if the caller is dropped, because the engine does
    /// not stop what it has begun.
    async fn create<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<T, EngineError> {
        let creating = Arc::clone(&self.creating).read_owned().await;
        let task = tokio::spawn(async move {
            let created = request.await;
            drop(creating);
            created
        });
        task.await.unwrap_or_else(|ended| Err(std::io::Error::other(ended).into()))
    }

    /// Waits until no request that creates an object is under way, also of callers that were dropped.
    pub(crate) async fn created(&self) {
        drop(self.creating.write().await);
    }

    /// Reads the engine's clock, in whole seconds since 1970. The ages of the engine's objects are measured with this
    /// clock, because the controller's clock may differ.
    pub(crate) async fn now_s(&self) -> Result<i64, Error> {
        let info = self.docker.info().await.map_err(|e| Error::engine("asking for the engine's time", &e))?;
        let text = info.system_time.unwrap_or_default();
        unix_seconds(&text).ok_or_else(|| Error::Engine {
            doing: "asking for the engine's time".to_owned(),
            why: format!("`{text}`, which is not a time"),
        })
    }
}

/// Puts the negotiated version in front of every path. bollard only stores the version, and its URLs drop it. An engine
/// reads a request without a version as a request for its newest API.
fn with_version_in_path(docker: Docker) -> Docker {
    let version = docker.client_version();
    docker.with_request_modifier(move |mut request| {
        let mut parts = request.uri().clone().into_parts();
        let path = parts.path_and_query.as_ref().map_or("/", |path| path.as_str());
        parts.path_and_query = format!("/v{version}{path}").parse().ok();
        if let Ok(uri) = parts.try_into() {
            *request.uri_mut() = uri;
        }
        request
    })
}

/// Returns whether somebody takes connections at `host`, who has not answered a request so far. A connection to a Unix
/// socket is made or refused at once, so somebody is there.
async fn takes_connections(host: &str) -> bool {
    let Some(address) = host.strip_prefix("tcp://").or_else(|| host.strip_prefix("http://")) else { return true };
    let connecting = TcpStream::connect(address.trim_end_matches('/'));
    timeout(CONNECT_LIMIT, connecting).await.is_ok_and(|connected| connected.is_ok())
}

/// The error about an engine that is there, and does not answer.
fn silent(host: &str, why: String) -> Error {
    let why = format!("{why}, although somebody listens there; wait until it is less busy, or restart it");
    Error::Engine { doing: format!("asking the engine at {host} for its version"), why }
}

/// Parses an RFC 3339 time (`2024-05-01T12:00:00.25+02:00`) into whole seconds since 1970.
///
/// The years begin in March, so that a leap day is the last day of its year.
pub(crate) fn unix_seconds(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let zone = text.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset_s = match zone.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), ..] => {
            let ahead_s = zone.get(1..3)?.parse::<i64>().ok()? * 3600 + zone.get(4..6)?.parse::<i64>().ok()? * 60;
            if *sign == b'+' { ahead_s } else { -ahead_s }
        }
        _ => return None,
    };
    let march_year = if month < 3 { year - 1 } else { year };
    let march_month = (month + 9) % 12;
    let leap_days = march_year / 4 - march_year / 100 + march_year / 400;
    // Day 0 is 1 March of the year 0; 1970 begins 719,468 days later.
    let days = march_year * 365 + leap_days + (march_month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second - offset_s)
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::OwnedFd, unix::net::UnixStream},
        path::Path,
    };

    use tokio::{net::UnixListener, time::pause};

    use super::*;
    use crate::fake_engine;

    #[test]
    fn times_of_the_engine_are_read_in_any_zone() {
        assert_eq!(unix_seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(unix_seconds("2000-02-29T23:59:59.999999999Z"), Some(951_868_799));
        assert_eq!(unix_seconds("2024-03-01T00:00:00Z"), Some(1_709_251_200));
        assert_eq!(unix_seconds("2024-03-01T01:30:00.5+01:30"), Some(1_709_251_200));
        assert_eq!(unix_seconds("2024-02-29T22:00:00-02:00"), Some(1_709_251_200));
        assert_eq!(unix_seconds("2024-02-29T20:30:00.5-03:30"), Some(1_709_251_200));
        assert_eq!(unix_seconds("2024-02-29T23:15:00-00:45"), Some(1_709_251_200));
        assert_eq!(unix_seconds("2025-12-31T00:00:00Z"), Some(1_767_139_200));
        for wrong in ["", "yesterday", "2024-13-01T00:00:00Z", "2024-01-01T00:00:00", "2024-01-01 00:00:00é"] {
            assert_eq!(unix_seconds(wrong), None, "{wrong}");
        }
    }

    /// A socket at `path` that listens and whose queue is full, and the first connection in the queue.
    fn full(path: &Path) -> (OwnedFd, UnixStream) {
        use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &UnixAddr::new(path).unwrap()).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        (listener, UnixStream::connect(path).unwrap())
    }

    #[tokio::test]
    async fn a_full_queue_of_the_socket_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.sock");
        let (listener, _first_in_the_queue) = full(&path);
        let refused = tokio::net::UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);

        let host = format!("unix://{}", path.display());
        let connecting = tokio::spawn(async move { Engine::connect_to(&host).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!connecting.is_finished());
        let listener = UnixListener::from_std(listener.into()).unwrap();
        let version = fake_engine::json(r#"{"ApiVersion":"1.41"}"#);
        fake_engine::serve(listener, move |_| (Duration::ZERO, version.clone()));
        connecting.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_engine_that_is_there_and_does_not_answer_is_no_missing_engine() {
        let dir = tempfile::tempdir().unwrap();
        let version = fake_engine::json(r#"{"ApiVersion":"1.41"}"#);
        pause();
        for (late, why) in [(VERSION_LIMIT - CONNECT_LIMIT, None), (2 * VERSION_LIMIT, Some("nothing within 30 s"))] {
            let path = dir.path().join(format!("{}.sock", late.as_secs()));
            let version = version.clone();
            fake_engine::serve(UnixListener::bind(&path).unwrap(), move |_| (late, version.clone()));
            does_not_answer(&path, why).await;
        }
        let path = dir.path().join("full.sock");
        let _full = full(&path);
        does_not_answer(&path, Some("Resource temporarily unavailable")).await;
    }

    /// Asserts that the engine behind a socket answers, or is there and does not answer for this reason.
    async fn does_not_answer(path: &Path, expected: Option<&str>) {
        match (Engine::connect_to(&format!("unix://{}", path.display())).await, expected) {
            (Ok(_), None) => {}
            (Err(Error::Engine { why, .. }), Some(expected)) => assert!(why.starts_with(expected), "{why}"),
            (other, _) => panic!("{expected:?}: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_takes_no_connections() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for scheme in ["tcp", "http"] {
            assert!(takes_connections(&format!("{scheme}://{address}/")).await);
            assert!(!takes_connections(&format!("{scheme}://127.0.0.1:1")).await);
        }
    }

    #[tokio::test]
    async fn a_dropped_request_that_creates_an_object_is_awaited() {
        const LATE: Duration = Duration::from_millis(300);
        let dir = tempfile::tempdir().unwrap();
        let reply = fake_engine::json(r#"{"Id":"n","Warning":""}"#);
        let engine = fake_engine::start(&dir, move |_| (LATE, reply.clone())).await;
        let began = tokio::time::Instant::now();
        let creating = engine.create_network(NetworkCreateRequest::default());
        assert!(tokio::time::timeout(LATE / 6, creating).await.is_err());
        engine.created().await;
        assert!(began.elapsed() >= LATE, "{:?}", began.elapsed());
        assert_eq!(engine.create_network(NetworkCreateRequest::default()).await.unwrap(), "n");
    }

    #[tokio::test]
    async fn without_an_engine_the_error_names_the_address_and_what_to_do() {
        let message = Engine::connect_to("unix:///nonexistent/docker.sock").await.unwrap_err().to_string();
        assert!(message.starts_with("no Docker engine answers at unix:///nonexistent/docker.sock: "), "{message}");
        assert!(message.contains("docker.sock: No such file or directory (os error 2); start it"), "{message}");
        assert!(message.contains("set DOCKER_HOST") && message.contains("--cluster sim"), "{message}");
        let message = Engine::connect_to("carrier-pigeon://coop").await.unwrap_err().to_string();
        assert!(message.starts_with("no Docker engine answers at carrier-pigeon://coop: "), "{message}");
    }
}
