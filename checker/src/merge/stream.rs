//! The stream of one process, as far as the merge has it.

use std::collections::VecDeque;

use history::{Event, NodeName, ProcessName, Stamp};

use crate::entry::Entry;

/// The state of a process with regard to the horizon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// In the plan, and not started: the horizon waits at 0.
    Expected,
    /// The process may report more: the horizon waits at its last stamp.
    Running,
    /// The stream has ended without a finish. The successor's first stamps may still be on their way, so the process
    /// holds the horizon until the successor has started.
    Cut,
    /// The process reports nothing more.
    Over,
}

/// The process whose stamps are all 0.
const CONTROLLER: &str = "controller";

pub(super) struct Stream {
    pub name: ProcessName,
    pub node: NodeName,
    pub incarnation: u32,
    /// Of events with one stamp, those of smaller ranks come first.
    pub rank: u8,
    pub is_controller: bool,
    /// True if the plan has the process.
    pub is_planned: bool,
    pub queue: VecDeque<Entry>,
    pub next_n: u64,
    pub last: Stamp,
    pub life: Life,
    pub cut: bool,
    /// The largest number of an admission that the process has reported.
    pub admitted: u64,
    /// The process's admissions with larger numbers are known to be undone.
    pub durable: u64,
    /// True if an event of the stream was lost. Later events are not used.
    pub broken: bool,
    pub gone: bool,
    /// True if the undone admissions are known: the process has finished, or a later process has opened the store.
    pub is_settled: bool,
}

impl Stream {
    /// A stream of which nothing was seen.
    pub fn new(name: ProcessName, node: NodeName) -> Stream {
        Stream {
            incarnation: name.incarnation(),
            rank: rank(&name),
            is_controller: name.as_str() == CONTROLLER,
            name,
            node,
            is_planned: false,
            queue: VecDeque::new(),
            next_n: 0,
            last: Stamp(0),
            life: Life::Over,
            cut: false,
            admitted: 0,
            durable: u64::MAX,
            broken: false,
            gone: false,
            is_settled: false,
        }
    }

    /// Takes in what all restarted processes of its node found on disk.
    pub fn knows(&mut self, recoveries: &Recoveries) {
        self.durable = self.durable.min(recoveries.after(self.incarnation));
    }

    /// Returns whether an event is an admission that is known to be undone.
    pub fn is_undone(&self, event: &Event) -> bool {
        is_larger(event, self.durable)
    }

    /// The stamp at which the process holds the horizon.
    pub fn holds_at(&self) -> Option<Stamp> {
        match self.life {
            Life::Expected => Some(Stamp(0)),
            Life::Running | Life::Cut => Some(self.last),
            Life::Over => None,
        }
    }
}

/// The numbers that the restarted processes of a node found on disk: the number of each start, in order, and the least
/// number that was found by it or by a later one.
pub(super) struct Recoveries(Vec<(u32, u64)>);

impl Recoveries {
    /// Sorts the numbers of starts and what they found.
    pub fn of(mut found: Vec<(u32, u64)>) -> Recoveries {
        found.sort_unstable();
        let mut least = u64::MAX;
        for (_, durable) in found.iter_mut().rev() {
            least = least.min(*durable);
            *durable = least;
        }
        Recoveries(found)
    }

    /// The least number that a process found which was started after another one.
    fn after(&self, incarnation: u32) -> u64 {
        let later = self.0.partition_point(|(start, _)| *start <= incarnation);
        self.0.get(later).map_or(u64::MAX, |(_, least)| *least)
    }
}

/// Returns whether an event is an admission with a larger number.
pub(super) fn is_larger(event: &Event, durable: u64) -> bool {
    matches!(event, Event::Admission { number, .. } if *number > durable)
}

/// Workers first, then the agent, then the resource.
fn rank(name: &ProcessName) -> u8 {
    match name.as_str().split('#').next() {
        Some("resource") => 3,
        Some("agent") => 2,
        _ => 0,
    }
}

/// The rank of the end of a process, at its last stamp. More of its events at this stamp may be lost, so the end comes
/// before a decision about them.
pub(super) const GONE: u8 = 1;
