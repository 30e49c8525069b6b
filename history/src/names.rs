//! Names: nodes, processes, keys.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(SmolStr);

        impl $name {
            /// Names it.
            pub fn new(name: impl AsRef<str>) -> Self {
                Self(SmolStr::new(name))
            }
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
        impl From<SmolStr> for $name {
            fn from(name: SmolStr) -> Self {
                Self(name)
            }
        }
        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self::new(name)
            }
        }
    };
}

name! {
    /// A server or worker with an address of its own: `redis-3`, `worker-2`, `resource`.
    NodeName
}
name! {
    /// What is locked, and the name of what it guards at the resource: `k0`.
    Key
}
name! {
    /// One process of ours: the node's name, and from its second start on the number of the start: `worker-2#2`.
    ProcessName
}

impl ProcessName {
    /// The process that `node` runs at its `incarnation`-th start, counted from 1.
    pub fn of(node: &NodeName, incarnation: u32) -> Self {
        if incarnation <= 1 { Self::new(node.as_str()) } else { Self::new(format!("{node}#{incarnation}")) }
    }

    /// The node that runs it.
    pub fn node(&self) -> NodeName {
        NodeName::new(self.as_str().split('#').next().unwrap_or_default())
    }
}
