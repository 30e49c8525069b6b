//! Finds images in the engine, otherwise pulls them, otherwise builds them from Debian packages.

use std::collections::BTreeMap;

use bollard::models::ImageInspect;

use crate::{
    Engine, Progress,
    error::{Error, status},
    file::{BUILTIN, ComposeFile, STORE_ROLE},
    sweep::AGENT_ROLE,
};

mod build;
mod pull;
mod turn;
mod workdir;

use build::Recipe;
use pull::Registries;
use turn::Turn;
pub use workdir::remove_dead_builds;

/// The image of our own processes.
pub(crate) const OWN_IMAGE: &str = "debian:bookworm-slim";

/// The longest list of packages in the name of an image, in characters: a name of an image may have 255.
const NAME_MAX: usize = 100;

/// The image that a role needs.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub role: &'a str,
    /// The published name; none if the image is always built.
    pub image: Option<&'a str>,
    pub packages: &'a [String],
    /// Python packages of the image that is built.
    pub python: &'a [String],
    /// True if the image is a plain Debian system without added packages.
    pub bare: bool,
}

impl Wanted<'_> {
    /// The name of the image that is built. The image of a client program, and of a server with packages of its own, is
    /// named by its packages too, so that two programs or servers do not take turns in building one image.
    fn name(&self) -> String {
        match self.role {
            _ if self.bare => "own".to_owned(),
            "worker" => self.name_with_packages("client"),
            // A lock may have the same server: one image is built for both.
            STORE_ROLE => self.image.and_then(|image| image.split(':').next()).unwrap_or(STORE_ROLE).replace('/', "-"),
            role if role == AGENT_ROLE || self.is_builtin() => role.to_owned(),
            role => self.name_with_packages(role),
        }
    }

    fn name_with_packages(&self, first: &str) -> String {
        let packages: Vec<&str> = self.packages.iter().chain(self.python).map(String::as_str).collect();
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        // Lists that begin alike take turns in building one image, which its recipe tells apart.
        let packages = packages.join("-").replace('+', "p").to_lowercase();
        let short: String = packages.chars().map(plain).take(NAME_MAX).collect();
        format!("{first}-{short}").trim_end_matches(['-', '.']).to_owned()
    }

    /// Returns whether a built-in Compose file has a server with this role and these packages.
    fn is_builtin(&self) -> bool {
        BUILTIN.iter().filter_map(|(name, _)| ComposeFile::builtin(name).ok()).any(|file| {
            let mut services = file.services.iter().filter(|service| service.role == self.role);
            services.any(|service| service.packages == self.packages && service.python == self.python)
        })
    }
}

/// An image in the engine.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// The id of the content. A name may refer to another image while we run.
    pub id: String,
    /// Paths at which the image declares volumes.
    pub volumes: Vec<String>,
    /// The image's own command: its entrypoint, and the arguments that a command of a container replaces.
    pub entrypoint: Vec<String>,
    pub arguments: Vec<String>,
}

impl From<ImageInspect> for Image {
    fn from(image: ImageInspect) -> Self {
        let config = image.config.unwrap_or_default();
        Self {
            id: image.id.unwrap_or_default(),
            volumes: config.volumes.unwrap_or_default(),
            entrypoint: config.entrypoint.unwrap_or_default(),
            arguments: config.cmd.unwrap_or_default(),
        }
    }
}

/// Finds the images of one run.
pub(crate) struct Images<'a> {
    engine: &'a Engine,
    named: &'a BTreeMap<String, String>,
    progress: Progress<'a>,
    registries: Registries,
    found: BTreeMap<(String, Vec<String>, Vec<String>), Image>,
}

impl<'a> Images<'a> {
    /// `named` holds the user's images by role.
    pub(crate) fn new(engine: &'a Engine, named: &'a BTreeMap<String, String>, progress: Progress<'a>) -> Self {
        Self { engine, named, progress, registries: Registries::default(), found: BTreeMap::new() }
    }

    /// Returns the image for a role. If the user named an image, only this image is used. Otherwise the default image
    /// is used, and pulled or built if it is missing.
    pub(crate) async fn get(&mut self, wanted: &Wanted<'_>) -> Result<Image, Error> {
        if let Some(name) = self.named.get(wanted.role) {
            return self.get_named(wanted.role, name).await;
        }
        let name = wanted.image.unwrap_or(wanted.role).to_owned();
        let key = (name, wanted.packages.to_vec(), wanted.python.to_vec());
        if let Some(image) = self.found.get(&key) {
            return Ok(image.clone());
        }
        let image = self.find_pull_or_build(wanted).await?;
        self.found.insert(key, image.clone());
        Ok(image)
    }

    async fn get_named(&mut self, role: &str, name: &str) -> Result<Image, Error> {
        if let Some(image) = self.inspect(name).await? {
            return Ok(image.into());
        }
        let not_found = |why| Error::ImageNotFound { role: role.to_owned(), image: name.to_owned(), why };
        self.pull(name).await?.map_err(not_found)
    }

    async fn find_pull_or_build(&mut self, wanted: &Wanted<'_>) -> Result<Image, Error> {
        if let Some(published) = wanted.image
            && let Some(image) = self.inspect(published).await?
        {
            return Ok(image.into());
        }
        let local = Recipe::new(&wanted.name(), wanted.image, wanted.packages, wanted.python);
        let built = self.inspect(&local.name()).await?.filter(|image| local.built(image));
        // An image that was built in place of another one, perhaps of another version, is only the second choice.
        if let Some(image) = &built
            && local.replaces(image)
        {
            return Ok(image.clone().into());
        }
        let why = match wanted.image {
            None => "nobody publishes it".to_owned(),
            Some(published) => {
                let why = match self.pull(published).await? {
                    Ok(image) => return Ok(image),
                    Err(why) => why,
                };
                if wanted.packages.is_empty() && !wanted.bare {
                    let (role, image) = (wanted.role.to_owned(), published.to_owned());
                    return Err(Error::NotBuildable { role, image, why });
                }
                (self.progress)(&format!("no image {published}: {why}"));
                why
            }
        };
        if let Some(image) = built {
            (self.progress)(&format!("using image {}, which was built from Debian packages", local.name()));
            return Ok(image.into());
        }
        let waits = || (self.progress)(&format!("another run builds image {}: waiting for it", local.name()));
        let turn = Turn::wait(&std::env::temp_dir(), &local.name(), waits).await;
        let turn = turn.inspect_err(|error| tracing::debug!(%error, "two runs may build the same image"));
        if let Some(image) = self.inspect(&local.name()).await?.filter(|image| local.built(image)) {
            // Another run has built it since.
            return Ok(image.into());
        }
        let id = local.build(self.engine, &why, self.progress).await?;
        let id = local.name_it(self.engine, id).await?;
        drop(turn);
        (self.progress)(&format!("built image {}", local.name()));
        let image = self.inspect(&id).await?;
        image.map(Image::from).ok_or_else(|| local.failed("the engine does not have it after importing it", ""))
    }

    /// Pulls the image. The inner error is the reason why this is impossible.
    async fn pull(&mut self, name: &str) -> Result<Result<Image, String>, Error> {
        if let Err(why) = self.registries.pull(self.engine, name, self.progress).await {
            return Ok(Err(why));
        }
        let image = self.inspect(name).await?;
        Ok(image.map(Image::from).ok_or_else(|| "the engine does not have it after pulling it".to_owned()))
    }

    async fn inspect(&self, name: &str) -> Result<Option<ImageInspect>, Error> {
        match self.engine.docker().inspect_image(name).await {
            Ok(image) => Ok(Some(image)),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(Error::engine(format!("looking for image {name}"), &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, Ordering},
        },
        time::Duration,
    };

    use super::*;
    use crate::fake_engine::{self, GONE, json};

    const NAME: &str = "host:5000/redis:8";
    const LOCAL: &str = "GET /v1.41/images/harness-debian/redis:bookworm/json";
    const BROKEN: &str = r#"{"status":"Downloading","id":"a","progressDetail":{"current":1000000}}
        {"status":"Retrying in 5 seconds","id":"a"}
        {"errorDetail":{"message":"unexpected EOF"},"error":"unexpected EOF"}"#;

    /// The engine's answer about an image with these labels.
    fn labelled(id: &str, labels: &str) -> String {
        json(&format!(r#"{{"Id":"sha256:{id}","Config":{{"Labels":{{{labels}}}}}}}"#))
    }

    /// An engine with the image that was built from the packages of Redis in place of `replaces`. A pull of any
    /// image has the answer `pull`; the image is there if the answer is empty.
    async fn engine(dir: &tempfile::TempDir, replaces: &str, pull: &'static str) -> Engine {
        engine_with("redis-server,redis-tools", dir, replaces, pull).await
    }

    /// As [`engine`], with an image that was built from these packages.
    async fn engine_with(packages: &str, dir: &tempfile::TempDir, replaces: &str, pull: &'static str) -> Engine {
        let labels = format!(r#""harness.packages":"{packages}","harness.replaces":"{replaces}""#);
        let local = labelled("local", &labels);
        let pulled = AtomicBool::new(false);
        let answer = move |request: &str| match request {
            LOCAL => local.clone(),
            _ if request.starts_with("POST /v1.41/images/create?") => {
                pulled.store(pull.is_empty(), Ordering::Relaxed);
                json(pull)
            }
            _ if pulled.load(Ordering::Relaxed) => json(r#"{"Id":"sha256:pulled"}"#),
            _ => GONE.to_owned(),
        };
        fake_engine::start(dir, move |request| (Duration::ZERO, answer(request))).await
    }

    /// Gets the image `NAME` of the role `redis`. Returns its id or the error, and the progress.
    async fn get(engine: &Engine, named: &BTreeMap<String, String>) -> (Result<String, String>, String) {
        let said = Mutex::new(String::new());
        let progress = |text: &str| {
            let mut said = said.lock().unwrap();
            said.push_str(text);
            said.push('\n');
        };
        let packages = ["redis-server".to_owned(), "redis-tools".to_owned()];
        let wanted = Wanted { role: "redis", image: Some(NAME), packages: &packages, python: &[], bare: false };
        let got = Images::new(engine, named, &progress).get(&wanted).await;
        let said = said.lock().unwrap().clone();
        (got.map(|image| image.id).map_err(|error| error.to_string()), said)
    }

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn servers_with_other_packages_get_images_of_their_own() {
        let named = |role: &str, packages: &[&str], python: &[&str]| {
            let (packages, python) = (owned(packages), owned(python));
            Wanted { role, image: Some(NAME), packages: &packages, python: &python, bare: false }.name()
        };
        assert_eq!(named("redis", &["redis-server", "redis-tools"], &[]), "redis");
        assert_eq!(named("redis", &["redis-server", "tini"], &[]), "redis-redis-server-tini");
        assert_eq!(named("moto", &["g++"], &["Flask[a]==3.1.3"]), "moto-gpp-flask-a---3.1.3");
        assert_eq!(named("mine", &[], &[]), "mine");
        assert_eq!(named("agent", &["iptables", "nftables"], &[]), "agent");
        assert_eq!(named("worker", &["python3", "g++"], &[]), "client-python3-gpp");
    }

    #[tokio::test]
    async fn an_image_built_in_place_of_another_one_is_only_the_second_choice() {
        let dir = || tempfile::tempdir().unwrap();
        let (same, reachable, broken) = (dir(), dir(), dir());
        let none = BTreeMap::new();
        let (image, said) = get(&engine(&same, NAME, "").await, &none).await;
        assert_eq!((image.unwrap().as_str(), said.as_str()), ("sha256:local", ""));
        let (image, said) = get(&engine(&reachable, "redis:7", "").await, &none).await;
        assert_eq!(image.unwrap(), "sha256:pulled", "{said}");
        let (image, said) = get(&engine(&broken, "redis:7", BROKEN).await, &none).await;
        assert_eq!(image.unwrap(), "sha256:local");
        assert!(said.contains("using image harness-debian/redis:bookworm, which was built from Debian"), "{said}");
    }

    #[tokio::test]
    async fn an_image_built_from_other_packages_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine_with("redis-server", &dir, NAME, "").await;
        let (image, said) = get(&engine, &BTreeMap::new()).await;
        assert_eq!(image.unwrap(), "sha256:pulled", "{said}");
    }

    #[tokio::test]
    async fn an_image_is_looked_for_once_for_each_list_of_packages() {
        // The images that were built in place of one published image, and their packages.
        let built = [
            ("redis", "redis-server,redis-tools", ""),
            ("redis-redis-server-tini", "redis-server,tini", ""),
            ("redis-redis-server-tini-flask", "python3-pip,redis-server,tini", "flask"),
        ];
        let (dir, asked) = (tempfile::tempdir().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&asked);
        let answer = move |request: &str| {
            let path = request.strip_prefix("GET /v1.41/images/harness-debian/");
            let name = path.and_then(|path| path.strip_suffix(":bookworm/json"));
            let found = built.iter().find(|(built, ..)| Some(*built) == name);
            let Some((name, packages, python)) = found else { return GONE.to_owned() };
            seen.lock().unwrap().push(*name);
            let labels = format!(r#""harness.packages":"{packages}","harness.python":"{python}""#);
            labelled(name, &format!(r#"{labels},"harness.replaces":"{NAME}""#))
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let (named, progress) = (BTreeMap::new(), |text: &str| assert_eq!(text, "", "nothing is pulled or built"));
        let mut images = Images::new(&engine, &named, &progress);
        let lists: [(&[&str], &[&str]); 3] = [
            (&["redis-server", "redis-tools"], &[]),
            (&["redis-server", "tini"], &[]),
            (&["redis-server", "tini"], &["flask"]),
        ];
        for (packages, python) in lists.into_iter().chain(lists) {
            let (packages, python) = (owned(packages), owned(python));
            let wanted = Wanted { role: "redis", image: Some(NAME), packages: &packages, python: &python, bare: false };
            let id = images.get(&wanted).await.unwrap().id;
            assert_eq!(id, format!("sha256:{}", wanted.name()));
        }
        assert_eq!(*asked.lock().unwrap(), built.map(|(name, ..)| name), "each is remembered");
    }

    #[tokio::test]
    async fn a_pull_that_breaks_off_names_image_registry_reason_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let named = BTreeMap::from([("redis".to_owned(), NAME.to_owned())]);
        let (error, said) = get(&engine(&dir, NAME, BROKEN).await, &named).await;
        let error = error.unwrap_err();
        assert!(error.starts_with("image host:5000/redis:8, named for role redis: "), "{error}");
        assert!(error.contains("(registry host:5000: the pull broke off: unexpected EOF)"), "{error}");
        assert!(error.contains("check the name (--image redis=NAME)"), "{error}");
        assert!(error.contains("`docker pull host:5000/redis:8`"), "{error}");
        let told = "pulling image host:5000/redis:8: the download broke off, and the engine tries again";
        assert!(said.contains(told), "{said}");
    }
}
