//! Builds an image from Debian packages, as a stream from `mmdebstrap` into the engine, without a file in between.

use std::{
    collections::{BTreeSet, VecDeque},
    process::Stdio,
    time::Duration,
};

use bollard::{
    body_try_stream,
    errors::Error as EngineError,
    models::{CreateImageInfo, ImageInspect},
    query_parameters::{CreateImageOptions, RemoveImageOptions, TagImageOptions},
};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use nix::unistd::geteuid;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStderr, ChildStdout, Command},
};

use super::workdir::{AS_ROOT, Build, remove_dead_builds};
use crate::{
    Engine, Progress,
    error::{Error, explain},
};

/// The Debian release of built images. The version of its Redis is the version that the built-in Compose files pin.
const SUITE: &str = "bookworm";
/// Label of a built image: the packages from which it was built.
const PACKAGES_LABEL: &str = "harness.packages";
/// Label of a built image: the Python packages that were installed in it. An image without any may lack the label.
const PYTHON_LABEL: &str = "harness.python";
/// Label of a built image: the published image in whose place it was built.
const REPLACES_LABEL: &str = "harness.replaces";
/// Time limit of a whole build. The engine answers an import only at its end.
const BUILD_LIMIT: Duration = Duration::from_secs(900);
/// Number of the builder's last lines that an error quotes.
const TAIL_LINES: usize = 15;
/// Settings of `apt`. A connection to a mirror may stay silent for ever.
const APT_OPTIONS: [&str; 3] = [
    "--aptopt=Acquire::Retries \"3\"",
    "--aptopt=Acquire::http::Timeout \"30\"",
    "--aptopt=Acquire::https::Timeout \"30\"",
];
/// Arguments of `unshare` that give a build its own processes and mounts. All of them end with `unshare` itself.
const OWN_NAMESPACES: [&str; 5] = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// The variable with the Python packages, separated by spaces. Their names have no character that a shell knows.
const PYTHON_ENV: &str = "HARNESS_PYTHON_PACKAGES";
/// Installs Python packages in the image at `$1`, by the image's own `pip`. The certificates that this machine trusts
/// are used, because a proxy may have its own. Other settings of `pip` come from the environment.
const INSTALL_PYTHON: &str = "set -eu; mine=/etc/ssl/certs/ca-certificates.crt; trust=; \
    if [ -r $mine ]; then cp $mine \"$1\"/tmp/ca.crt; trust='--cert /tmp/ca.crt'; fi; \
    env -u PIP_CERT -u REQUESTS_CA_BUNDLE -u CURL_CA_BUNDLE -u SSL_CERT_FILE -u SSL_CERT_DIR chroot \"$1\" \
    python3 -m pip install --quiet --no-cache-dir --break-system-packages --root-user-action=ignore $trust \
    $HARNESS_PYTHON_PACKAGES >&2; rm -f \"$1\"/tmp/ca.crt";

/// The recipe of an image that is built from Debian packages.
#[derive(Debug)]
pub(super) struct Recipe {
    repository: String,
    /// The published image; empty if nobody publishes it.
    replaces: String,
    packages: Vec<String>,
    python: Vec<String>,
}

impl Recipe {
    /// The recipe of the image that is called `name`, in place of a published image. Python packages need `pip`.
    pub(super) fn new(name: &str, published: Option<&str>, packages: &[String], python: &[String]) -> Self {
        let pip = (!python.is_empty()).then(|| "python3-pip".to_owned());
        let packages: BTreeSet<_> = packages.iter().cloned().chain(pip).collect();
        let python: BTreeSet<_> = python.iter().cloned().collect();
        Self {
            repository: format!("harness-debian/{name}"),
            replaces: published.unwrap_or_default().to_owned(),
            packages: packages.into_iter().collect(),
            python: python.into_iter().collect(),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{}:{SUITE}", self.repository)
    }

    /// Returns whether `image` was built by this recipe. In another Compose file a role can have other packages.
    pub(super) fn built(&self, image: &ImageInspect) -> bool {
        label(image, PACKAGES_LABEL) == Some(&self.packages.join(","))
            && label(image, PYTHON_LABEL).map_or("", String::as_str) == self.python.join(" ")
    }

    /// Returns whether `image` was built in place of the same published image.
    pub(super) fn replaces(&self, image: &ImageInspect) -> bool {
        label(image, REPLACES_LABEL).map_or("", String::as_str) == self.replaces
    }

    pub(super) fn failed(&self, why: &str, tail: &str) -> Error {
        Error::Build { image: self.name(), why: why.to_owned(), tail: tail.to_owned() }
    }

    /// Builds the image and returns its id. The image has no name until [`Recipe::name_it`].
    pub(super) async fn build(&self, engine: &Engine, no_pull: &str, progress: Progress<'_>) -> Result<String, Error> {
        let all: Vec<_> = self.packages.iter().chain(&self.python).map(String::as_str).collect();
        let what = if all.is_empty() { "alone".to_owned() } else { all.join(", ") };
        progress(&format!("building image {} from Debian packages ({what}); takes half a minute", self.name()));
        if let Err(error) = remove_dead_builds().await {
            progress(&error.to_string());
        }
        let (mut builder, mut build) = self.start_builder(no_pull).await?;
        let (Some(stdout), Some(stderr)) = (builder.stdout.take(), builder.stderr.take()) else {
            return Err(self.failed("mmdebstrap has no output", ""));
        };
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            changes: vec![
                format!("LABEL {PACKAGES_LABEL}=\"{}\"", self.packages.join(",")),
                format!("LABEL {PYTHON_LABEL}=\"{}\"", self.python.join(" ")),
                format!("LABEL {REPLACES_LABEL}=\"{}\"", self.replaces),
                "WORKDIR /data".to_owned(),
            ],
            ..Default::default()
        };
        let docker = engine.docker().clone().with_timeout(BUILD_LIMIT);
        let body = body_try_stream(archive(builder, stdout));
        let import = async move {
            let answers = docker.create_image(Some(options), Some(body), None).collect::<Vec<_>>().await;
            let answers = answers.into_iter().collect::<Result<Vec<CreateImageInfo>, EngineError>>();
            if answers.is_ok() {
                build.ended();
            }
            // If the engine gave up, this ends the builder, and so its messages.
            drop(build);
            answers
        };
        let (answers, tail) = tokio::join!(import, follow(stderr, progress));
        let answers = answers.map_err(|error| self.failed(&explain_import(&error), &tail))?;
        let id = answers.into_iter().filter_map(|answer| answer.status).find(|text| text.starts_with("sha256:"));
        id.ok_or_else(|| self.failed("the engine does not say what it made of the import", &tail))
    }

    /// Gives the name to the built image. If another run has done so meanwhile, its image serves as well, and our image
    /// is removed.
    pub(super) async fn name_it(&self, engine: &Engine, id: String) -> Result<String, Error> {
        let docker = engine.docker();
        if let Ok(other) = docker.inspect_image(&self.name()).await
            && self.built(&other)
            && let Some(other) = other.id
        {
            if let Err(error) = docker.remove_image(&id, None::<RemoveImageOptions>, None).await {
                tracing::debug!(%error, "an image of the same packages stays without a name");
            }
            return Ok(other);
        }
        let name = TagImageOptions { repo: Some(self.repository.clone()), tag: Some(SUITE.to_owned()) };
        docker.tag_image(&id, Some(name)).await.map_err(|error| self.failed(&explain(&error), ""))?;
        Ok(id)
    }

    async fn start_builder(&self, no_pull: &str) -> Result<(Child, Build), Error> {
        let failed = |what: &str, error: std::io::Error| self.failed(&format!("{what}: {error}"), "");
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join("mmdebstrap").is_file()) {
            return Err(Error::NoBuilder { image: self.name(), why: no_pull.to_owned() });
        }
        let mut command = self.isolated(no_pull).await?;
        command.args(["mmdebstrap", "--variant=minbase"]).args(APT_OPTIONS);
        if !self.packages.is_empty() {
            command.arg(format!("--include={}", self.packages.join(",")));
        }
        if !self.python.is_empty() {
            command.arg(format!("--customize-hook={INSTALL_PYTHON}")).env(PYTHON_ENV, self.python.join(" "));
        }
        let mut build =
            Build::new(&std::env::temp_dir()).map_err(|error| failed("cannot make a temporary directory", error))?;
        let input = build.input().map_err(|error| failed("cannot use the lock of the build", error))?;
        command.args([SUITE, "-"]).env("TMPDIR", build.dir()).process_group(0);
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let builder = start(command, &mut build);
        Ok((builder.map_err(|error| failed("cannot run setpriv and mmdebstrap", error))?, build))
    }

    /// Returns a command, still without its program, whose processes and mounts end with the harness, even if the
    /// harness is killed. A user who is not root needs subordinate ids, because an image has files of several users.
    async fn isolated(&self, no_pull: &str) -> Result<Command, Error> {
        let as_root: &[&str] = if geteuid().is_root() { &[] } else { &AS_ROOT };
        let unshare = [&["unshare"][..], as_root, &OWN_NAMESPACES].concat();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        match works(&unshare).await {
            Ok(()) => drop(command.args(&unshare)),
            Err(why) if as_root.is_empty() => {
                // Root in a container without CAP_SYS_ADMIN. mmdebstrap cannot mount anything either.
                tracing::debug!(why, "the image is built without namespaces of its own");
            }
            Err(why) => {
                let (image, no_pull) = (self.name(), no_pull.to_owned());
                return Err(Error::CannotBuild { image, why: no_pull, cannot: why });
            }
        }
        Ok(command)
    }
}

/// Starts the builder. The command has the lock of the build open, so it ends here, also if it cannot be started:
/// otherwise the end of the build would wait for it.
fn start(mut command: Command, build: &mut Build) -> std::io::Result<Child> {
    let builder = command.spawn()?;
    build.started(builder.id());
    Ok(builder)
}

/// Explains the error of an import, which has a time limit of its own.
fn explain_import(error: &EngineError) -> String {
    match error {
        EngineError::RequestTimeoutError => format!("not done within {} s", BUILD_LIMIT.as_secs()),
        error => explain(error),
    }
}

fn label<'a>(image: &'a ImageInspect, name: &str) -> Option<&'a String> {
    image.config.as_ref()?.labels.as_ref()?.get(name)
}

/// Tries a command that runs another. The error is what it printed.
async fn works(command: &[&str]) -> Result<(), String> {
    let tried = Command::new(command[0]).args(&command[1..]).arg("true").stdin(Stdio::null()).output().await;
    match tried {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
        Err(error) => Err(format!("{}: {error}", command[0])),
    }
}

/// The builder's archive as a stream. If the builder fails, the stream ends with an error, so that the engine does not
/// make an image of an incomplete archive.
fn archive(builder: Child, stdout: ChildStdout) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    futures::stream::unfold(Some((builder, stdout)), |state| async move {
        let (mut builder, mut stdout) = state?;
        let mut chunk = BytesMut::with_capacity(256 << 10);
        match stdout.read_buf(&mut chunk).await {
            Ok(0) => match builder.wait().await {
                Ok(exit) if exit.success() => None,
                Ok(exit) => Some((Err(std::io::Error::other(format!("mmdebstrap ended with {exit}"))), None)),
                Err(error) => Some((Err(error), None)),
            },
            Ok(_) => Some((Ok(chunk.freeze()), Some((builder, stdout)))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Forwards the builder's progress, and returns its last lines.
async fn follow(stderr: ChildStderr, progress: Progress<'_>) -> String {
    let mut lines = BufReader::new(stderr).lines();
    let mut tail = VecDeque::with_capacity(TAIL_LINES);
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(step) = line.strip_prefix("I: ") {
            progress(&format!("  {step}"));
        }
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    Vec::from(tail).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_build_is_told_with_its_own_limit() {
        assert_eq!(explain_import(&EngineError::RequestTimeoutError), "not done within 900 s");
        assert_eq!(
            explain_import(&EngineError::DockerStreamError { error: "full".into() }),
            "Docker stream error: full"
        );
    }

    #[tokio::test]
    async fn a_builder_that_cannot_be_started_leaves_nothing() {
        let temporary = tempfile::tempdir().unwrap();
        let mut build = Build::new(temporary.path()).unwrap();
        let mut command = Command::new("/nonexistent/setpriv");
        command.stdin(build.input().unwrap());
        start(command, &mut build).unwrap_err();
        drop(build);
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn an_archive_whose_builder_fails_ends_with_an_error() {
        let chunks = |script: &str| {
            let mut command = Command::new("/bin/sh");
            let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
            let stdout = child.stdout.take().unwrap();
            archive(child, stdout).collect::<Vec<_>>()
        };
        let good: Vec<_> = chunks("printf tar").await.into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(good.concat(), b"tar");
        let bad = chunks("printf ta; exit 3").await;
        assert_eq!(bad.first().unwrap().as_ref().unwrap(), "ta");
        assert!(bad.last().unwrap().as_ref().unwrap_err().to_string().contains("exit status: 3"));
    }
}
