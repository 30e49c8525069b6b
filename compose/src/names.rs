//! The names of a run's objects in the engine.
//!
//! Names of containers and networks are labels in the engine's DNS, which also answers for addresses. A label has at
//! most 63 characters (RFC 1035, 2.3.4). The engine gives a longer name all the same, but then does not answer at all
//! when somebody asks for the name of the container's address, and a client that asks waits: Java's ZooKeeper client
//! asks before it connects, and waits for more than ten seconds.

/// The most characters of a label.
const LABEL_MAX: usize = 63;
const PREFIX: &str = "harness-";

/// The name of the run's network, and of its volume.
pub(crate) fn of_run(run: &str) -> String {
    format!("{PREFIX}{}", end(run, LABEL_MAX - PREFIX.len()))
}

/// The name of the container of a node. Names of nodes have at most 40 characters.
pub(crate) fn of_node(run: &str, node: &str) -> String {
    let left = LABEL_MAX.saturating_sub(PREFIX.len() + node.len() + 1);
    format!("{PREFIX}{}-{node}", end(run, left))
}

/// The end of a run's id (ASCII). The last part of an id is drawn at random, and separates the run from others.
fn end(run: &str, length: usize) -> &str {
    run.get(run.len().saturating_sub(length)..).unwrap_or(run).trim_start_matches('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_label_of_dns_and_keeps_what_tells_runs_apart() {
        let run = "20261127t150245-zookeeper-partition-2b836390";
        assert_eq!(of_run(run), format!("harness-{run}"));
        assert_eq!(of_node(run, "worker-1"), format!("harness-{run}-worker-1"));
        assert_eq!(of_node(run, "zookeeper-1"), "harness-0261127t150245-zookeeper-partition-2b836390-zookeeper-1");
        let long = "20261127t150245-redis-replicated-wait-write-latency-2b836390";
        assert_eq!(of_run(long), "harness-127t150245-redis-replicated-wait-write-latency-2b836390");
        for node in ["a", "resource", &"n".repeat(40)] {
            let name = of_node(long, node);
            assert!(name.len() <= LABEL_MAX && name.contains("-2b836390-"), "{name}");
        }
    }
}
