//! Finds images in the engine, otherwise pulls them, otherwise builds them from Debian packages.

use std::{collections::BTreeMap, time::Duration};

use bollard::{models::ImageInspect, query_parameters::CreateImageOptions};
use futures::StreamExt;
use tokio::time::timeout;

use crate::{
    Engine, Progress,
    error::{Error, explain, status},
};

mod build;
mod workdir;

use build::Recipe;
pub use workdir::remove_dead_builds;

/// The image of our own processes.
pub(crate) const OWN_IMAGE: &str = "debian:bookworm-slim";
/// Time within which a registry must send its first message, and longest silence after it.
const PULL_FIRST: Duration = Duration::from_secs(10);
const PULL_SILENCE: Duration = Duration::from_secs(60);

/// The image that a role needs.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub role: &'a str,
    /// The published name; none if the image is always built.
    pub image: Option<&'a str>,
    pub packages: &'a [String],
    /// True if the image is a plain Debian system without added packages.
    pub bare: bool,
}

/// An image in the engine.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// The id of the content. A name may refer to another image while we run.
    pub id: String,
    /// Paths at which the image declares volumes.
    pub volumes: Vec<String>,
}

impl From<ImageInspect> for Image {
    fn from(image: ImageInspect) -> Self {
        let volumes = image.config.and_then(|config| config.volumes).unwrap_or_default();
        Self { id: image.id.unwrap_or_default(), volumes }
    }
}

/// Finds the images of one run. A registry that cannot be reached is tried only once.
pub(crate) struct Images<'a> {
    engine: &'a Engine,
    named: &'a BTreeMap<String, String>,
    progress: Progress<'a>,
    unreachable: BTreeMap<String, String>,
    found: BTreeMap<(String, Vec<String>), Image>,
}

impl<'a> Images<'a> {
    /// `named` holds the user's images by role.
    pub(crate) fn new(engine: &'a Engine, named: &'a BTreeMap<String, String>, progress: Progress<'a>) -> Self {
        Self { engine, named, progress, unreachable: BTreeMap::new(), found: BTreeMap::new() }
    }

    /// Returns the image for a role. If the user named an image, only this image is used. Otherwise the default image
    /// is used, and pulled or built if it is missing.
    pub(crate) async fn get(&mut self, wanted: &Wanted<'_>) -> Result<Image, Error> {
        if let Some(name) = self.named.get(wanted.role) {
            return self.get_named(wanted.role, name).await;
        }
        let key = (wanted.image.unwrap_or(wanted.role).to_owned(), wanted.packages.to_vec());
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
        self.pull(name).await.map_err(not_found)?;
        match self.inspect(name).await? {
            Some(image) => Ok(image.into()),
            None => Err(not_found("the engine does not have it after pulling it".to_owned())),
        }
    }

    async fn find_pull_or_build(&mut self, wanted: &Wanted<'_>) -> Result<Image, Error> {
        if let Some(published) = wanted.image
            && let Some(image) = self.inspect(published).await?
        {
            return Ok(image.into());
        }
        let local = Recipe::new(if wanted.bare { "own" } else { wanted.role }, wanted.packages);
        if let Some(image) = self.inspect(&local.name()).await?
            && local.built(&image)
        {
            return Ok(image.into());
        }
        let why = match wanted.image {
            None => "nobody publishes it".to_owned(),
            Some(published) => {
                let why = match self.pull(published).await {
                    Ok(()) => match self.inspect(published).await? {
                        Some(image) => return Ok(image.into()),
                        None => "the engine does not have it after pulling it".to_owned(),
                    },
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
        let id = local.build(self.engine, &why, self.progress).await?;
        let id = local.name_it(self.engine, id).await?;
        (self.progress)(&format!("built image {}", local.name()));
        let image = self.inspect(&id).await?;
        image.map(Image::from).ok_or_else(|| local.failed("the engine does not have it after importing it", ""))
    }

    async fn inspect(&self, name: &str) -> Result<Option<ImageInspect>, Error> {
        match self.engine.docker().inspect_image(name).await {
            Ok(image) => Ok(Some(image)),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(Error::engine(format!("looking for image {name}"), &error)),
        }
    }

    /// Pulls the image, or returns the reason why this is impossible.
    async fn pull(&mut self, name: &str) -> Result<(), String> {
        let registry = registry(name).to_owned();
        if let Some(why) = self.unreachable.get(&registry) {
            return Err(why.clone());
        }
        (self.progress)(&format!("pulling image {name}"));
        let options = CreateImageOptions { from_image: Some(with_tag(name)), ..Default::default() };
        let mut answers = self.engine.docker().create_image(Some(options), None, None);
        let mut patience = PULL_FIRST;
        loop {
            match timeout(patience, answers.next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(Ok(_))) => patience = PULL_SILENCE,
                Ok(Some(Err(error))) => {
                    let why = explain(&error);
                    // A registry that answers "no such image" can be reached, and may have another image.
                    if status(&error) != Some(404) {
                        self.unreachable.insert(registry, why.clone());
                    }
                    return Err(why);
                }
                Err(_) => {
                    let why = format!("registry {registry} said nothing for {} s", patience.as_secs());
                    self.unreachable.insert(registry, why.clone());
                    return Err(why);
                }
            }
        }
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
    use super::*;

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
