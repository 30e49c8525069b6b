//! Pulls an image from its registry. A registry that cannot be reached is asked only once in a run.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bollard::{errors::Error as EngineError, models::CreateImageInfo, query_parameters::CreateImageOptions};
use futures::StreamExt;
use tokio::time::{Instant, timeout};

use crate::{Engine, Progress, error::explain};

/// Time within which a registry must send its first message, and longest silence after it.
const FIRST: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(60);
/// Time between two messages about the size of a download.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Words of Go's network code in the engine's errors: a connection to the registry, or to the host of its layers, was
/// not made, was not trusted, or broke off. An error that has none of them costs one more try at most. A registry that
/// is given up wrongly costs all later images.
const UNREACHED: [&str; 8] =
    ["dial tcp", "read tcp", "write tcp", "net/http: ", "deadline exceeded", "Client.Timeout", "tls: ", "x509: "];
/// The engine's errors about a layer that is on its disk already. Such a layer may end too early, too.
const DOWNLOADED: [&str; 2] = ["failed to register layer", "failed to extract layer"];

/// The registries that could not be reached, with the reasons.
#[derive(Debug, Default)]
pub(super) struct Registries(BTreeMap<String, String>);

impl Registries {
    /// Pulls the image, or returns the reason why this is impossible. The reason names the registry.
    pub(super) async fn pull(&mut self, engine: &Engine, name: &str, progress: Progress<'_>) -> Result<(), String> {
        let registry = registry(name);
        if let Some(why) = self.0.get(registry) {
            return Err(why.clone());
        }
        progress(&format!("pulling image {name}"));
        let options = CreateImageOptions { from_image: Some(with_tag(name)), ..Default::default() };
        let mut answers = engine.docker().create_image(Some(options), None, None);
        let (mut patience, mut download) = (FIRST, Download::new());
        let (why, reached) = loop {
            match timeout(patience, answers.next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(Ok(answer))) => {
                    patience = SILENCE;
                    if let Some(news) = download.news(answer) {
                        progress(&format!("pulling image {name}: {news}"));
                    }
                }
                Ok(Some(Err(EngineError::DockerStreamError { error }))) => {
                    break (format!("the pull broke off: {}", error.trim()), is_reached(&error));
                }
                Ok(Some(Err(error))) => {
                    let why = explain(&error);
                    let reached = is_reached(&why);
                    break (why, reached);
                }
                Err(_) => break (format!("nothing came for {} s", patience.as_secs()), false),
            }
        };
        let why = format!("registry {registry}: {why}");
        if !reached {
            self.0.insert(registry.to_owned(), why.clone());
        }
        Err(why)
    }
}

/// Returns whether an error of the engine is about this image, or about the engine's disk: the registry can be reached,
/// and may have another image.
fn is_reached(error: &str) -> bool {
    let has = |words: &[&str]| words.iter().any(|words| error.contains(words));
    has(&DOWNLOADED) || !(has(&UNREACHED) || error.trim_end().ends_with("EOF"))
}

/// The state of a download, from the engine's messages.
struct Download {
    /// Bytes of each layer.
    layers: HashMap<String, i64>,
    told: Instant,
    retries: bool,
}

impl Download {
    fn new() -> Self {
        Self { layers: HashMap::new(), told: Instant::now(), retries: false }
    }

    /// Returns a message for the user: the first retry of the engine, or the size of the download every 10 s.
    fn news(&mut self, answer: CreateImageInfo) -> Option<String> {
        let status = answer.status.unwrap_or_default();
        if status.starts_with("Retrying") && !self.retries {
            self.retries = true;
            return Some("the download broke off, and the engine tries again".to_owned());
        }
        let bytes = answer.progress_detail.and_then(|detail| detail.current);
        if let (Some(layer), Some(bytes), "Downloading") = (answer.id, bytes, status.as_str()) {
            self.layers.insert(layer, bytes);
        }
        if self.told.elapsed() < TELL_EVERY {
            return None;
        }
        self.told = Instant::now();
        Some(format!("{} MB downloaded", self.layers.values().sum::<i64>() / 1_000_000))
    }
}

/// Returns the registry of an image's name: its first part, if this part looks like a host.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}

/// Adds the tag `latest` to a name without a tag. Otherwise the engine would pull every tag.
fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use serde_json::json;

    use super::*;
    use crate::fake_engine;

    #[tokio::test]
    async fn only_a_registry_that_was_not_reached_is_asked_once() {
        let errors = [
            (r#"Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host"#, 1),
            (r#"error pulling image configuration: Get "https://a.example/b": net/http: TLS handshake timeout"#, 1),
            ("read tcp 10.0.0.2:4711->10.0.0.1:443: read: connection reset by peer", 1),
            ("unexpected EOF", 1),
            ("no matching manifest for linux/arm64/v8 in the manifest list entries", 2),
            ("manifest for redis:7 not found: manifest unknown: manifest unknown", 2),
            ("toomanyrequests: You have reached your pull rate limit", 2),
            ("failed to register layer: Error processing tar file(exit status 1): no space left on device", 2),
            ("failed to register layer: Error processing tar file(exit status 1): unexpected EOF", 2),
        ];
        for (error, times) in errors {
            let message = json!({ "message": error });
            let in_stream = fake_engine::json(&json!({ "errorDetail": message, "error": error }).to_string());
            let body = message.to_string();
            let head = "HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length:";
            for reply in [in_stream, format!("{head} {}\r\n\r\n{body}", body.len())] {
                let (dir, asked) = (tempfile::tempdir().unwrap(), Arc::new(AtomicUsize::new(0)));
                let counted = Arc::clone(&asked);
                let answer = move |_: &str| {
                    counted.fetch_add(1, Relaxed);
                    (Duration::ZERO, reply.clone())
                };
                let engine = fake_engine::start(&dir, answer).await;
                let mut registries = Registries::default();
                for name in ["redis:7", "postgres:15"] {
                    registries.pull(&engine, name, &|_: &str| {}).await.unwrap_err();
                }
                assert_eq!(asked.load(Relaxed), times, "{error}");
            }
        }
    }

    #[test]
    fn the_registry_of_an_image_is_its_first_part_if_that_is_a_host() {
        assert_eq!(registry("redis:7.0.15"), "docker.io");
        assert_eq!(registry("valkey/valkey:8"), "docker.io");
        assert_eq!(registry("quay.io/coreos/etcd:v3"), "quay.io");
        assert_eq!(registry("localhost/redis"), "localhost");
        assert_eq!(registry("host:5000/redis"), "host:5000");
    }

    #[test]
    fn a_name_without_a_tag_means_the_latest_one_only() {
        assert_eq!(with_tag("redis"), "redis:latest");
        assert_eq!(with_tag("host:5000/redis"), "host:5000/redis:latest");
        assert_eq!(with_tag("redis:7"), "redis:7");
        assert_eq!(with_tag("redis@sha256:00"), "redis@sha256:00");
    }
}
