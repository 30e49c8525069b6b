//! Servers that can lose power: a file system of ours over their data, which forgets what was not synced.
//!
//! The harness's binary is the first process of such a container, puts the file system over the data, and becomes the
//! server.

use bollard::{
    errors::Error as EngineError,
    models::{ContainerCreateBody, DeviceMapping, HostConfig},
};
use history::{FaultKind, NodeName};

use crate::{
    binary::BINARY,
    error::{Error, explain},
    file::Service,
    image::Image,
};

/// Directory of the file system's state, beside the data.
pub(crate) const STATE: &str = "/harness-power";
const DEVICE: &str = "/dev/fuse";

/// Returns the container of a server with the file system over its data.
pub(crate) fn over(body: ContainerCreateBody, service: &Service, image: &Image) -> ContainerCreateBody {
    let data = service.data.clone().unwrap_or_default();
    let ours = [BINARY, "power", "--data", &data, "--state", STATE, "--"].map(str::to_owned);
    let device = DeviceMapping {
        path_on_host: Some(DEVICE.to_owned()),
        path_in_container: Some(DEVICE.to_owned()),
        cgroup_permissions: Some("rwm".to_owned()),
    };
    let host = HostConfig {
        cap_add: Some(vec!["SYS_ADMIN".to_owned()]),
        // The engine's own profile forbids mounts, even with the capability.
        security_opt: Some(vec!["apparmor=unconfined".to_owned()]),
        devices: Some(vec![device]),
        ..body.host_config.unwrap_or_default()
    };
    // An engine drops the image's own arguments if the entrypoint is replaced.
    let arguments = body.entrypoint.is_none().then(|| image.arguments.clone());
    let entrypoint = body.entrypoint.unwrap_or_else(|| image.entrypoint.clone());
    ContainerCreateBody {
        entrypoint: Some(ours.into_iter().chain(entrypoint).collect()),
        cmd: body.cmd.or(arguments),
        host_config: Some(host),
        ..body
    }
}

/// Returns the missing ability if the engine could not start a server because of its file system.
pub(crate) fn refused(node: &NodeName, error: &EngineError) -> Option<Error> {
    let why = explain(error);
    why.contains(DEVICE).then(|| Error::Unable {
        node: node.clone(),
        kind: FaultKind::Powerloss,
        ability: "the device /dev/fuse (`sudo modprobe fuse`)",
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::ComposeFile;

    #[test]
    fn the_images_own_command_follows_ours_and_its_arguments_stay_unless_the_file_has_a_command() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let image = Image {
            id: "sha256:1".into(),
            volumes: Vec::new(),
            entrypoint: words(&["docker-entrypoint.sh"]),
            arguments: words(&["redis-server"]),
        };
        let service = ComposeFile::builtin("redis").unwrap().services.remove(0);
        let made = over(ContainerCreateBody::default(), &service, &image);
        let entrypoint = made.entrypoint.unwrap();
        assert_eq!(entrypoint[..4], words(&[BINARY, "power", "--data", "/data"]));
        assert_eq!(entrypoint[6..], words(&["--", "docker-entrypoint.sh"]));
        assert_eq!(made.cmd, Some(words(&["redis-server"])));
        let written = ContainerCreateBody { cmd: Some(words(&["redis-server", "--save"])), ..Default::default() };
        assert_eq!(over(written, &service, &image).cmd, Some(words(&["redis-server", "--save"])));
        let written = ContainerCreateBody { entrypoint: Some(words(&["sh", "-c"])), ..Default::default() };
        let made = over(written, &service, &image);
        assert_eq!((made.entrypoint.unwrap()[6..].to_vec(), made.cmd), (words(&["--", "sh", "-c"]), None));
    }
}
