//! The server that keeps the state of a resource, from its own small Compose file.

use history::ResourceKind;
use serde_saphyr::Location;

use super::{FileError, STORE_ROLE, Service, parsed, refused, written::Wrong};

/// The Compose file of a resource's store; none if the resource keeps its state itself.
fn store_file(kind: ResourceKind) -> Option<&'static str> {
    match kind {
        ResourceKind::Service | ResourceKind::Etcd => None,
        ResourceKind::Postgres => Some(include_str!("../../resource/postgres.yaml")),
        ResourceKind::S3 => Some(include_str!("../../resource/s3.yaml")),
    }
}

/// The server that keeps the state of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceStore {
    /// The server.
    pub service: Service,
    /// The port on which the server answers.
    pub port: u16,
}

impl ResourceStore {
    /// Returns the store of a kind of resource; none if the resource keeps its state itself.
    ///
    /// # Errors
    /// The built-in file is wrong.
    pub fn of(kind: ResourceKind) -> Result<Option<Self>, FileError> {
        let Some(text) = store_file(kind) else { return Ok(None) };
        let origin = format!("built-in resource/{}.yaml", kind.name());
        let (services, raw) = parsed(text, &[]).map_err(|wrong| refused(wrong, &origin))?;
        let wrong = |what| refused(Wrong::new(Location::UNKNOWN, what), &origin);
        let service = services.into_iter().next().filter(|service| service.name.as_str() == STORE_ROLE);
        let service = service.ok_or_else(|| wrong("expected the service `resource-store`"))?;
        let facts = raw.map(|raw| raw.value.known()).transpose().map_err(|wrong| refused(wrong, &origin))?;
        let port = facts.and_then(|facts| facts.port).ok_or_else(|| wrong("x-harness has no `port`"))?;
        Ok(Some(Self { service, port }))
    }

    /// Returns the address of the server on the run's network.
    pub fn address(&self) -> String {
        format!("{}:{}", self.service.name, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_has_a_file_with_one_server_that_can_be_built() {
        for kind in ResourceKind::ALL {
            let store = ResourceStore::of(kind).unwrap();
            assert_eq!(store.is_some(), kind.has_own_server());
            let Some(ResourceStore { service, port }) = store else { continue };
            assert_eq!((service.name.as_str(), service.role.as_str()), (STORE_ROLE, STORE_ROLE));
            assert!(port > 0 && !service.packages.is_empty() && !service.health_test.is_empty(), "{kind:?}");
        }
    }
}
