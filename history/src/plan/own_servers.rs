//! Servers that exist already: the harness drives clients against them, and leaves the servers themselves alone.

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::{
    Plan,
    possible::{PlanError, named},
};
use crate::{cluster::ClusterKind, names::NodeName, resource_kind::ResourceKind, step::Step, target::Target};

/// The faults that remain, for messages.
const POSSIBLE: &str = "possible are faults of workers, of the resource and of their links, such as \
                        `pause:any-worker` or `partition:any-worker:lock-nodes`";

impl Plan {
    /// Returns whether the servers exist already. The run then starts no server, and no fault hits one.
    pub fn has_own_servers(&self) -> bool {
        !self.own_servers.is_empty()
    }

    /// Checks that a run against servers that exist already has all of them, and asks for nothing else that only
    /// servers of its own can do.
    pub(super) fn check_own_servers(&self) -> Result<(), PlanError> {
        let err = |field, problem: String| Err(PlanError { field, problem });
        if !self.has_own_servers() {
            return Ok(());
        }
        if self.cluster == ClusterKind::Sim {
            return err("servers", "the simulation has models in the place of servers; add `--cluster docker`".into());
        }
        let names = || self.lock_nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ");
        if let Some(unknown) = self.own_servers.keys().find(|name| !self.lock_nodes.contains(name)) {
            let how_many = if self.has_one_store() { "one or more" } else { "all" };
            let problem = format!("`{unknown}` is no server of this backend; expected {how_many} of: {}", names());
            return err("servers", problem);
        }
        if let Some(missing) = self.lock_nodes.iter().find(|node| !self.own_servers.contains_key(*node)) {
            return err("servers", format!("`{missing}` is missing; expected all of: {}", names()));
        }
        // One server under two names refuses each attempt that it has granted, and counts twice in a majority.
        let mut known = BTreeMap::new();
        for (name, url) in self.own_servers.iter().filter(|_| !self.has_one_store()) {
            // Redis uses database 0 unless a URL names one.
            if let Some(other) = known.insert(url.strip_suffix("/0").unwrap_or(url), name) {
                let problem = "have one address; independent servers need addresses, or databases, of their own";
                return err("servers", format!("`{other}` and `{name}` {problem}"));
            }
        }
        if self.resource == ResourceKind::Etcd {
            let problem = "the resource would keep its data on servers of your own, without the run's prefix; leave \
                           --resource or --servers out";
            return err("resource", format!("`etcd`: {problem}"));
        }
        if self.program.is_some() {
            let problem = "the harness cannot know which keys a client program leaves on servers of your own; leave \
                           --client or --servers out";
            return err("client", problem.into());
        }
        Ok(())
    }

    /// Refuses a fault that needs the process, the data or the network of a server that exists already.
    pub(super) fn spares_own_servers(&self, step: &Step) -> Result<(), String> {
        if !self.has_own_servers() {
            return Ok(());
        }
        let refused = |target: &str| Err(format!("`{target}`: {}", no_access(target)));
        match &step.target {
            Target::Leader => refused("leader"),
            Target::Node(node) if self.lock_nodes.contains(node) => refused(node.as_str()),
            _ => cuts_whole_hosts(step, self.own_servers.iter().map(|(node, url)| (node, host(url)))),
        }
    }

    /// Checks the faults of links again, with the addresses of the servers that exist already. Different names can have
    /// one address.
    ///
    /// # Errors
    /// The first fault that names some servers of an address and not all.
    pub fn check_addresses(&self, addresses: &BTreeMap<NodeName, Ipv4Addr>) -> Result<(), PlanError> {
        for step in &self.schedule {
            if let Err(problem) = cuts_whole_hosts(step, addresses.iter()) {
                return Err(PlanError { field: "nemesis", problem: format!("{}: {problem}", named(step)) });
            }
        }
        Ok(())
    }
}

/// Refuses a fault of links that names some servers of a host and not all. Packets are told apart by addresses, so the
/// fault would hit the others too.
fn cuts_whole_hosts<'a, H: Ord>(step: &Step, hosts: impl Iterator<Item = (&'a NodeName, H)>) -> Result<(), String> {
    let Some(links) = step.fault.links.as_ref().filter(|links| !links.from.is_empty()) else { return Ok(()) };
    let (named, spared): (Vec<_>, Vec<_>) = hosts.partition(|(node, _)| links.from.contains(*node));
    let spared: BTreeMap<H, &NodeName> = spared.into_iter().map(|(node, host)| (host, node)).collect();
    match named.into_iter().find_map(|(node, host)| Some((node, spared.get(&host)?))) {
        Some((node, other)) => Err(format!(
            "`{node}` and `{other}` have one address, so a fault of links hits both; name both, or neither"
        )),
        None => Ok(()),
    }
}

/// The reason why no fault hits a server that exists already. `target` is a word of `--nemesis`.
pub fn no_access(target: &str) -> String {
    let whom = if target == "leader" { "the leader of servers" } else { "servers" };
    format!(
        "the harness reaches {whom} of your own only as a client does, and has no access to their machines; {POSSIBLE}"
    )
}

/// The host of a URL without credentials. Names of hosts have no upper case.
fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let address = rest.split(['/', '?']).next().unwrap_or(rest);
    address.rsplit_once(':').map_or(address, |(host, _)| host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::tests::plan, *};
    use crate::{Direction, Fault, FaultId, Topology, When, fault};

    /// A plan against two servers of one host and one of another.
    fn own() -> Plan {
        let urls =
            [("redis-1", "redis://10.0.0.1:6379"), ("redis-2", "redis://10.0.0.1:6380"), ("redis-3", "rediss://b:1")];
        let own_servers = urls.map(|(name, url)| (name.into(), url.to_owned())).into();
        let lock_nodes = urls.map(|(name, _)| name.into()).to_vec();
        Plan { own_servers, lock_nodes, schedule: Vec::new(), ..plan() }
    }

    fn with(fault: Fault, target: Target) -> Result<(), String> {
        let when = When::At(Duration::from_secs(1));
        let step = Step { id: FaultId(1), fault, target, when };
        Plan { schedule: vec![step], ..own() }.validate().map_err(|e| e.to_string())
    }

    #[test]
    fn faults_of_own_servers_are_refused_by_name_and_faults_of_workers_are_not() {
        let second = Duration::from_secs(1);
        let faults = || [Fault::new(fault::Pause {}, second), Fault::new(fault::Kill {}, second)];
        for fault in faults() {
            let refused = with(fault, Target::Node("redis-2".into())).unwrap_err();
            assert!(refused.contains("`redis-2`") && refused.contains("no access to their machines"), "{refused}");
        }
        for fault in faults() {
            for possible in [Target::Holder, Target::Node("worker-1".into()), Target::Node("resource".into())] {
                assert_eq!(with(fault.clone(), possible), Ok(()));
            }
        }
        let leader = with(Fault::new(fault::Pause {}, second), Target::Leader).unwrap_err();
        assert!(leader.contains("`leader`: the harness reaches the leader of servers of your own only"), "{leader}");
    }

    #[test]
    fn a_fault_of_links_names_all_servers_of_a_host_or_none() {
        let cut = |from: &[&str]| {
            let from = from.iter().map(|name| (*name).into()).collect();
            let fault = Fault::new(fault::Partition::default(), Duration::from_secs(1));
            with(fault.on_links(Direction::Both, from), Target::Node("worker-1".into()))
        };
        for possible in [&["redis-1", "redis-2"][..], &["redis-3"], &["redis-3", "resource"], &[]] {
            assert_eq!(cut(possible), Ok(()));
        }
        let refused = cut(&["redis-1", "redis-3"]).unwrap_err();
        assert!(refused.contains("`redis-1` and `redis-2` have one address"), "{refused}");
    }

    #[test]
    fn servers_with_different_names_can_have_one_address() {
        let fault = Fault::new(fault::Partition::default(), Duration::from_secs(1));
        let fault = fault.on_links(Direction::Both, vec!["redis-3".into()]);
        let (target, when) = (Target::Node("worker-1".into()), When::At(Duration::from_secs(1)));
        let mut plan = Plan { schedule: vec![Step { id: FaultId(1), fault, target, when }], ..own() };
        assert_eq!(plan.validate(), Ok(()));
        let at = |last: [u8; 3]| -> BTreeMap<NodeName, Ipv4Addr> {
            let address = |n: usize| (NodeName::new(format!("redis-{}", n + 1)), Ipv4Addr::new(10, 0, 0, last[n]));
            (0..3).map(address).collect()
        };
        assert_eq!(plan.check_addresses(&at([1, 1, 2])), Ok(()));
        let refused = plan.check_addresses(&at([1, 1, 1])).unwrap_err().to_string();
        assert!(refused.starts_with("nemesis: fault 1 (partition): `redis-3` and `redis-2` have one"), "{refused}");
        plan.own_servers.insert("redis-2".into(), "redis://B:6380".into());
        let refused = plan.validate().unwrap_err().to_string();
        assert!(refused.contains("`redis-3` and `redis-2` have one address"), "{refused}");
    }

    #[test]
    fn each_fault_of_links_is_checked_with_the_addresses() {
        let cut = |id: u32, from: &str| {
            let fault = Fault::new(fault::Partition::default(), Duration::from_secs(1));
            let fault = fault.on_links(Direction::Both, vec![from.into()]);
            let when = When::At(Duration::from_secs(3) * id);
            Step { id: FaultId(id), fault, target: Target::Node("worker-1".into()), when }
        };
        let nodes = [("redis-1", 1), ("redis-2", 2), ("redis-3", 2)];
        let addresses: BTreeMap<NodeName, Ipv4Addr> =
            nodes.into_iter().map(|(name, last)| (NodeName::new(name), Ipv4Addr::new(10, 0, 0, last))).collect();
        for (first, second, refused) in [
            ("redis-1", "resource", None),
            ("redis-1", "redis-3", Some("fault 2 (partition): `redis-3` and `redis-2` have one address")),
            ("redis-2", "redis-1", Some("fault 1 (partition): `redis-2` and `redis-3` have one address")),
        ] {
            let plan = Plan { schedule: vec![cut(1, first), cut(2, second)], ..own() };
            let problem = plan.check_addresses(&addresses).err().map(|error| error.problem);
            assert_eq!(problem.is_some(), refused.is_some(), "{first} and {second}: {problem:?}");
            assert!(problem.zip(refused).is_none_or(|(problem, words)| problem.starts_with(words)), "{first}");
        }
    }

    #[test]
    fn independent_servers_have_addresses_of_their_own() {
        let mut plan = own();
        for same in ["redis://10.0.0.1:6379", "redis://10.0.0.1:6379/0"] {
            plan.own_servers.insert("redis-2".into(), same.into());
            let refused = plan.validate().unwrap_err().to_string();
            assert!(refused.starts_with("servers: `redis-1` and `redis-2` have one address"), "{refused}");
        }
        // Two databases of one server share no keys.
        for other in ["redis://10.0.0.1:6379/1", "redis://10.0.0.1:6379/10"] {
            plan.own_servers.insert("redis-2".into(), other.into());
            assert_eq!(plan.validate(), Ok(()));
        }
        // The members of one store may be behind one address.
        plan.own_servers.insert("redis-2".into(), "redis://10.0.0.1:6379".into());
        plan.servers.topology = Topology::OneStore;
        assert_eq!(plan.check_own_servers(), Ok(()));
    }

    #[test]
    fn all_servers_are_named_and_the_simulation_has_none() {
        let refused = |plan: Plan| plan.validate().unwrap_err().to_string();
        let mut plan = own();
        assert_eq!(plan.validate(), Ok(()));
        assert!(refused(Plan { cluster: ClusterKind::Sim, ..plan.clone() }).starts_with("servers: the simulation"));
        plan.own_servers.remove(&NodeName::new("redis-2"));
        assert!(refused(plan.clone()).contains("`redis-2` is missing; expected all of: redis-1, redis-2, redis-3"));
        plan.own_servers.insert("redis-4".into(), "redis://c:1".into());
        assert!(refused(plan).contains("`redis-4` is no server"));
    }
}
