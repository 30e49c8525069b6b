//! Names of nodes, processes and keys.

use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(#[cfg_attr(test, schemars(with = "String"))] SmolStr);

        impl $name {
            /// Makes a name.
            pub fn new(name: impl AsRef<str>) -> Self {
                Self(SmolStr::new(name))
            }
            /// Returns the name as text.
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
    /// The name of a server or worker with its own address: `redis-3`, `worker-2`, `resource`.
    NodeName
}
name! {
    /// The name of a lock and of the state that the lock protects at the resource: `k0`.
    Key
}
name! {
    /// The name of a process of the harness: the node's name, and from the second start on its number: `worker-2#2`.
    ProcessName
}

impl Key {
    /// Returns the key with this number, counted from 0.
    pub fn numbered(number: u32) -> Self {
        Self(format_smolstr!("k{number}"))
    }
}

impl ProcessName {
    /// Returns the name of the process after the `incarnation`-th start of `node`, counted from 1.
    pub fn of(node: &NodeName, incarnation: u32) -> Self {
        if incarnation <= 1 { Self::new(node.as_str()) } else { Self::new(format!("{node}#{incarnation}")) }
    }

    /// Returns the node that runs the process.
    pub fn node(&self) -> NodeName {
        NodeName::new(self.as_str().split('#').next().unwrap_or_default())
    }

    /// Returns the number of the start of its node that the process came from, counted from 1.
    pub fn incarnation(&self) -> u32 {
        self.as_str().split_once('#').and_then(|(_, n)| n.parse().ok()).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_its_node_and_its_start() {
        let node = NodeName::new("worker-1");
        for start in [1, 2, 9, 10, 123] {
            let process = ProcessName::of(&node, start);
            assert_eq!((process.node(), process.incarnation()), (node.clone(), start), "{process}");
        }
    }
}
