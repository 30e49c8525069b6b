//! The harness's binary in the containers of a run: one volume, which the first container fills and the others read.
//!
//! An upload to each container would write 50 MB a time, and each container would have pages of its own in memory.

use bollard::models::{Mount, MountType, VolumeCreateRequest};
use bytes::Bytes;

use crate::{Engine, error::Error, names, sweep};

/// Directory of the binary in containers.
pub(crate) const DIR: &str = "/opt/harness";
/// Name of the binary in its directory.
const NAME: &str = "harness";
/// Path of the harness's binary in the containers of our own processes, of servers that can lose power, and of
/// servers whose Compose file asks for it (`harness_binary`).
pub const BINARY: &str = "/opt/harness/harness";

/// The volume of one run, empty at first.
#[derive(Debug)]
pub(crate) struct BinaryVolume {
    name: String,
}

impl BinaryVolume {
    /// Creates the volume. `keep`: kept servers will need it.
    pub(crate) async fn create(engine: &Engine, run: &str, keep: bool) -> Result<Self, Error> {
        let name = names::of_run(run);
        let labels = Some(sweep::labels(run, keep));
        let request = VolumeCreateRequest { name: Some(name.clone()), labels, ..Default::default() };
        let created = engine.create_volume(request).await;
        created.map_err(|e| Error::engine(format!("creating the volume {name}"), &e))?;
        Ok(Self { name })
    }

    /// Returns the mount of the volume. Only the container that fills the volume may write to it.
    pub(crate) fn mount(&self, fills: bool) -> Mount {
        Mount {
            target: Some(DIR.to_owned()),
            source: Some(self.name.clone()),
            typ: Some(MountType::VOLUME),
            read_only: Some(!fills),
            ..Default::default()
        }
    }
}

/// Packs the executable binary into an archive for [`DIR`].
pub(crate) fn packed(binary: &[u8]) -> std::io::Result<Bytes> {
    crate::archive::of_file(NAME, 0o755, binary)
}
