//! The end of the record: which processes have not started, have not ended, or have stamps that cannot be.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use history::{NodeName, ProcessName, Stamp};

use super::{Merge, stream::Life};

/// The most processes without a plan that a reason names.
const UNPLANNED_MAX: usize = 5;

/// How much later than the agent's last stamp a stamp may be. The processes end within seconds.
const FUTURE: Duration = Duration::from_secs(60);

impl Merge {
    /// Takes the end record, `seq`: every process must have started and ended, and every ended process must have
    /// finished or been killed.
    pub(super) fn end_of_record(&mut self, seq: u64) {
        self.compare_with_agent(seq);
        let mut cut: BTreeMap<NodeName, Vec<(u32, Stamp, ProcessName)>> = BTreeMap::new();
        let mut running: Option<Stamp> = None;
        for stream in &self.streams {
            if stream.life == Life::Expected {
                self.reasons.insert(format!("{} never started{}", stream.name, self.unplanned()));
            }
            if stream.life == Life::Running && !stream.broken {
                self.reasons.insert(format!("{}: the record ends, and the process has not", stream.name));
                running = Some(running.map_or(stream.last, |first: Stamp| first.min(stream.last)));
            }
            if stream.cut {
                let entry = (stream.incarnation, stream.last, stream.name.clone());
                cut.entry(stream.node.clone()).or_default().push(entry);
            }
        }
        if let Some(last) = running {
            self.stop_at(last);
        }
        for (node, mut ended) in cut {
            ended.sort();
            let killed = self.kills.get(&node).copied().unwrap_or(0);
            for (_, last, name) in ended.into_iter().skip(killed) {
                self.reasons.insert(format!("{name} ended before it had finished, and no fault killed it"));
                self.stop_at(last);
            }
        }
    }

    /// The names that a process of the plan may have by mistake: those of the first processes that the plan lacks.
    fn unplanned(&self) -> String {
        let planned: BTreeSet<&NodeName> = self.streams.iter().filter(|s| s.is_planned).map(|s| &s.node).collect();
        let others = self.streams.iter().filter(|s| !planned.contains(&s.node) && !s.is_controller);
        let others: Vec<&str> = others.map(|s| s.name.as_str()).take(UNPLANNED_MAX).collect();
        if others.is_empty() {
            return String::new();
        }
        format!("; there are events of {}, which the plan does not have", others.join(", "))
    }

    /// The agent finishes last, so no other process can have a stamp much later than the agent's last one.
    fn compare_with_agent(&mut self, seq: u64) {
        let agents = self.streams.iter().filter(|s| s.name.as_str() == "agent" && s.is_settled);
        let Some(finished) = agents.map(|s| s.last).next() else { return };
        let late = self.streams.iter().find(|s| s.last > finished.plus(FUTURE));
        if let Some((name, by)) = late.map(|s| (&s.name, s.last.since(finished).as_secs())) {
            let why = format!("{name}: its last stamp is {by} s later than that of the agent, which ends last");
            self.contradicts(seq, why);
        }
    }
}
