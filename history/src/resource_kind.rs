//! The kinds of the resource: the store that decides about requests.

use serde::{Deserialize, Serialize};

/// The store that keeps the protected state and decides about each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResourceKind {
    /// The harness's own service: its rule decides, over an embedded store.
    #[default]
    Service,
    /// A Postgres server: conditional updates of rows decide, in one transaction for each request.
    Postgres,
}

impl ResourceKind {
    /// All kinds, the default first.
    pub const ALL: [ResourceKind; 2] = [ResourceKind::Service, ResourceKind::Postgres];

    /// Returns the name in flags, plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            ResourceKind::Service => "service",
            ResourceKind::Postgres => "postgres",
        }
    }

    /// Returns whether this is the default, which plans and reports leave out.
    pub fn is_service(&self) -> bool {
        *self == ResourceKind::Service
    }
}
