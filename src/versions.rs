//! The versions of the servers, as the workers report them.

use std::collections::BTreeMap;

use history::{NodeName, Plan};

/// The versions of the servers that some worker has reported.
#[derive(Debug, Default)]
pub struct Versions(BTreeMap<NodeName, String>);

impl Versions {
    /// Adds the versions of the event `ready`. A worker that is started again in the run leaves out the servers that
    /// give no answer then. Such a server keeps the version that another worker has reported.
    pub fn add(&mut self, ready: &[(NodeName, String)]) {
        self.0.extend(ready.iter().cloned());
    }

    /// Returns the versions in the order of the plan's lock nodes.
    pub fn of(&self, plan: &Plan) -> Vec<(NodeName, String)> {
        let mut left = self.0.clone();
        let mut versions: Vec<_> = plan.lock_nodes.iter().filter_map(|node| left.remove_entry(node)).collect();
        // A record of another program may name its servers otherwise.
        versions.extend(left);
        versions
    }
}

#[cfg(test)]
mod tests {
    use super::Versions;
    use crate::scenario::Scenario;

    #[test]
    fn a_worker_that_cannot_reach_a_server_takes_no_version_away() {
        let plan = Scenario::of("redlock").unwrap().base;
        let all: Vec<_> = plan.lock_nodes.iter().map(|node| (node.clone(), "7.0.15".to_owned())).collect();
        let mut versions = Versions::default();
        for ready in [&all[..], &all[1..2], &[]] {
            versions.add(ready);
            assert_eq!(versions.of(&plan), all);
        }
    }
}
