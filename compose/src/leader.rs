//! Finds the leader of the servers: runs a command in the container of each server, as a healthcheck does.

use futures::future::join_all;
use history::NodeName;
use serde::Deserialize;
use tokio::time::timeout;

use crate::{file::LeaderTest, health::run_in, running::Running};

/// One entry of the output of `etcdctl endpoint status -w json`. Ids need `u64`, because they exceed 2^53.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "Status")]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Status {
    header: Header,
    /// The id of the member's leader; left out if the member knows no leader.
    #[serde(default)]
    leader: u64,
    #[serde(default, rename = "raftTerm")]
    term: u64,
}

#[derive(Debug, Deserialize)]
struct Header {
    member_id: u64,
}

/// Returns the term in which the member that printed `status` leads; none, if the member does not lead, or if the
/// output has another form.
fn leads_in(status: &str) -> Option<u64> {
    let entries: Vec<Entry> = serde_json::from_str(status.trim()).ok()?;
    let [Entry { status }] = entries.as_slice() else { return None };
    (status.leader != 0 && status.leader == status.header.member_id).then_some(status.term)
}

/// Returns the current leader; none, if no server leads. A server that does not answer is no leader. If two servers
/// report that they lead, as after a partition, the result is the server with the newer term.
pub(crate) async fn ask(running: &Running) -> Option<NodeName> {
    let servers: Vec<&NodeName> = running.server_nodes().map(|(node, _)| node).collect();
    let terms = join_all(servers.iter().map(|node| term(running, node))).await;
    newest(terms.into_iter().zip(servers)).cloned()
}

/// Returns the server that leads in the newest term.
fn newest<'a>(terms: impl Iterator<Item = (Option<u64>, &'a NodeName)>) -> Option<&'a NodeName> {
    let leading = terms.filter_map(|(term, node)| Some((term?, node)));
    leading.max_by_key(|(term, _)| *term).map(|(_, node)| node)
}

async fn term(running: &Running, node: &NodeName) -> Option<u64> {
    let member = running.member(node).ok()?;
    let service = member.server()?;
    let leader = service.leader.as_ref()?;
    let command: Vec<&str> = leader.command().iter().map(String::as_str).collect();
    // The engine refuses to run a command in a container that is frozen or down.
    let done = timeout(service.health_timeout, run_in(running.engine(), &member.container(), &command)).await.ok()?;
    let done = done.inspect_err(|error| tracing::debug!(%node, %error, "not asked whether it leads")).ok()?;
    if done.code != 0 {
        tracing::debug!(%node, done.code, done.stderr, "does not say whether it leads");
        return None;
    }
    match leader {
        LeaderTest::Succeeds(_) => Some(0),
        LeaderTest::PrintsStatus(_) => leads_in(&done.stdout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(member: &str, leader: &str) -> String {
        format!(
            r#"[{{"Endpoint":"127.0.0.1:2379","Status":{{"header":{{"cluster_id":48416390689651,"member_id":{member},
            "revision":9,"raft_term":7}},"version":"3.4.23","dbSize":20480{leader},"raftIndex":37,"raftTerm":7,
            "raftAppliedIndex":37,"dbSizeInUse":16384}}}}]"#
        )
    }

    #[test]
    fn of_two_servers_that_lead_the_one_with_the_newer_term_counts() {
        let nodes = ["etcd-1", "etcd-2", "etcd-3"].map(NodeName::new);
        let newest_of = |terms: [Option<u64>; 3]| newest(terms.into_iter().zip(&nodes));
        assert_eq!(newest_of([Some(7), Some(8), None]), Some(&nodes[1]));
        assert_eq!(newest_of([Some(8), None, Some(7)]), Some(&nodes[0]));
        assert_eq!(newest_of([None; 3]), None);
    }

    #[test]
    fn a_member_leads_if_it_follows_itself_to_the_last_digit_of_its_id() {
        let own = "10501334649042878790";
        assert_eq!(leads_in(&status(own, &format!(",\"leader\":{own}"))), Some(7));
        assert_eq!(leads_in(&status(own, ",\"leader\":10501334649042878791")), None, "the same as a double");
        assert_eq!(leads_in(&status(own, "")), None, "during an election nobody is followed");
        for strange in ["", "[]", "{}", "pong"] {
            assert_eq!(leads_in(strange), None);
        }
    }
}
