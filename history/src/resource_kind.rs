//! The kinds of the resource: the store that decides about requests.

use serde::{Deserialize, Serialize};

/// The store that keeps the protected state and decides about each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ResourceKind {
    /// The harness's own service: its rule decides, over an embedded store.
    #[default]
    Service,
    /// A Postgres server: conditional updates of rows decide, in one transaction for each request.
    Postgres,
    /// The etcd cluster that also keeps the lock: one transaction decides each request.
    Etcd,
    /// One object of an S3 server: a conditional put replaces the state from which the request was decided.
    S3,
}

impl ResourceKind {
    /// All kinds, the default first.
    pub const ALL: [ResourceKind; 4] =
        [ResourceKind::Service, ResourceKind::Postgres, ResourceKind::Etcd, ResourceKind::S3];

    /// Returns the name in flags, plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            ResourceKind::Service => "service",
            ResourceKind::Postgres => "postgres",
            ResourceKind::Etcd => "etcd",
            ResourceKind::S3 => "s3",
        }
    }

    /// Returns whether the resource has a server of its own, beside the lock nodes.
    pub fn has_own_server(self) -> bool {
        matches!(self, ResourceKind::Postgres | ResourceKind::S3)
    }

    /// Returns whether this is the default, which plans and reports leave out.
    pub fn is_service(&self) -> bool {
        *self == ResourceKind::Service
    }
}
