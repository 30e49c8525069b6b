//! Looks at each node once a second: the engine does not report that a signal stopped its first process, or that
//! somebody set packet rules in its network.
//!
//! The looks need a harness that sees the containers' processes: on the engine's host, outside of containers. Packet
//! rules are seen by root only. Elsewhere the looks find nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use history::NodeName;
use tokio::{
    task::spawn_blocking,
    time::{Interval, MissedTickBehavior, interval},
};

use crate::{
    changes::{Change, Unplanned},
    running::{Member, Running},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The state of a stopped process in `/proc/PID/stat` (proc_pid_stat(5)). A process that a debugger stops has another.
const STOPPED: char = 'T';

/// A property of a node at the last look at it.
#[derive(Debug)]
struct Seen {
    is_so: bool,
    /// The wall clock before that look, in nanoseconds since 1970.
    at_wall_ns: i64,
}

impl Seen {
    /// Takes the result of a look that began at `now_wall_ns`. If the property has changed, returns the time of the
    /// look before: the change came later.
    fn see(&mut self, is_so: bool, now_wall_ns: i64) -> Option<i64> {
        let since = std::mem::replace(&mut self.at_wall_ns, now_wall_ns);
        (std::mem::replace(&mut self.is_so, is_so) != is_so).then_some(since)
    }
}

/// The state of one node at the last look.
#[derive(Debug)]
struct Node {
    pid: Option<i32>,
    is_stopped: Seen,
    is_filtered: Seen,
    /// The packet rules that were there at the first look at this process: they are its own. None before that look.
    first_rules: Option<BTreeSet<String>>,
}

/// The nodes as they were at the last look.
pub(crate) struct Looks {
    due: Interval,
    nodes: BTreeMap<NodeName, Node>,
    /// The wall clock before the first look, in nanoseconds since 1970.
    began_wall_ns: i64,
}

impl Looks {
    pub fn new() -> Looks {
        let mut due = interval(LOOK_EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Looks { due, nodes: BTreeMap::new(), began_wall_ns: wall_ns() }
    }

    /// Waits until the next look is due.
    pub async fn due(&mut self) {
        self.due.tick().await;
    }

    /// Looks at all nodes. Returns the changes of processes and packet rules that are not ours.
    pub async fn look(&mut self, running: &Running) -> Vec<Unplanned> {
        let began = self.began_wall_ns;
        let new = || Seen { is_so: false, at_wall_ns: began };
        let mut found = Vec::new();
        for (name, member) in running.members() {
            let now = wall_ns();
            let node = self.nodes.entry(name.clone()).or_insert_with(|| Node {
                pid: None,
                is_stopped: new(),
                is_filtered: new(),
                first_rules: None,
            });
            // While a fault of ours changes the node, this look is left out.
            let Ok(control) = member.control.try_lock() else { continue };
            let Some(pid) = pid(running, member, node).await else { continue };
            let mut report = |change, at_wall_ns| found.push(Unplanned { node: name.clone(), change, at_wall_ns });
            let is_stopped = pid.and_then(state) == Some(STOPPED) && !control.is_stopped;
            if let Some(since) = node.is_stopped.see(is_stopped, now) {
                report(if is_stopped { Change::Stopped } else { Change::Continued }, since);
            }
            let rules = match pid {
                Some(pid) => spawn_blocking(move || agent::net::foreign(pid)).await.ok().and_then(Result::ok),
                None => Some(BTreeSet::new()),
            };
            let Some(rules) = rules else { continue };
            let added: Vec<&String> = node.first_rules.iter().flat_map(|first| rules.difference(first)).collect();
            if let Some(since) = node.is_filtered.see(!added.is_empty(), now) {
                tracing::debug!(node = %name, ?added, "packet rules that are not ours");
                report(if added.is_empty() { Change::Unfiltered } else { Change::Filtered }, since);
            }
            node.first_rules.get_or_insert(rules);
        }
        found
    }
}

/// Returns the first process of a node, if the node has one; none, if that process cannot be seen from here.
async fn pid(running: &Running, member: &Member, node: &mut Node) -> Option<Option<i32>> {
    let container = member.container();
    if let Some(known) = node.pid
        && is_of(known, &container)
    {
        return Some(node.pid);
    }
    // Another process has another network.
    node.first_rules = None;
    node.pid = running.pid(member).await.ok()?;
    node.pid.is_none_or(|pid| is_of(pid, &container)).then_some(node.pid)
}

/// Returns whether a process on this host is of the container: the container's id is in the names of its cgroups.
fn is_of(pid: i32, container: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(container))
}

fn state(pid: i32) -> Option<char> {
    state_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the state from `/proc/PID/stat`. The name before the state may contain spaces and parentheses.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn wall_ns() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "compared with the engine's times, which are wall clock times")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    use super::*;

    #[test]
    fn a_change_came_after_the_last_look_at_that_node() {
        let mut seen = Seen { is_so: false, at_wall_ns: 10 };
        assert_eq!(seen.see(false, 20), None);
        // The looks at 30 and 40 left this node out.
        assert_eq!(seen.see(true, 50), Some(20));
        assert_eq!(seen.see(true, 60), None);
        assert_eq!(seen.see(false, 70), Some(60));
    }

    #[test]
    fn the_state_comes_after_the_last_parenthesis() {
        assert_eq!(state_in("17 (a) T (b)) S 1 17"), Some('S'));
        assert_eq!(state_in("17 (redis-server) T 1 17"), Some('T'));
        assert_eq!(state_in(""), None);
    }

    #[test]
    fn a_stopped_process_has_the_state_of_one() {
        let mut child = Command::new("sleep").arg("20").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        let stopped = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            state(pid) == Some(STOPPED)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stopped);
    }
}
