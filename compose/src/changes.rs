//! Changes of a node as the engine reports them, and those of them that our own operations cause.

use history::NodeName;

/// A change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A server's container has ended.
    Died,
    /// A server's container has been started.
    Started,
    /// All processes of the container are frozen.
    Froze,
    /// The container runs again.
    Thawed,
    /// The container has left the run's network.
    CutOff,
    /// The container is in the run's network again.
    Reconnected,
    /// A signal has stopped the first process of the container.
    Stopped,
    /// The first process of the container goes on.
    Continued,
    /// Somebody has set packet rules in the container's network, or another queueing discipline, or an interface is
    /// down.
    Filtered,
    /// The container's network is as it was at first.
    Unfiltered,
}

/// A change of a node that no operation of ours caused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplanned {
    /// The node.
    pub node: NodeName,
    /// The change.
    pub change: Change,
    /// The wall clock of the engine's host when the engine reported the change, or at the last look before the change,
    /// in nanoseconds since 1970.
    pub at_wall_ns: i64,
}

/// The reports that our own operations on a node will still cause.
#[derive(Debug, Default)]
pub(crate) struct OwnChanges {
    pub died: u32,
    pub started: u32,
    pub froze: u32,
    pub thawed: u32,
    /// True while the node is down, and no operation of ours has killed it.
    is_down_by_others: bool,
    /// True while the node is frozen, and no operation of ours has frozen it.
    is_frozen_by_others: bool,
}

impl OwnChanges {
    /// The number of freezes, or of thaws.
    pub fn toggles(&mut self, freeze: bool) -> &mut u32 {
        if freeze { &mut self.froze } else { &mut self.thawed }
    }

    /// Returns whether a report is about one of our operations alone, and counts the report. A start or a thaw of ours
    /// that ends a death or a freeze of others is not ours alone: the fault that nobody planned is over.
    pub fn explain(&mut self, change: Change) -> bool {
        let due = match change {
            Change::Died => &mut self.died,
            Change::Started => &mut self.started,
            Change::Froze => &mut self.froze,
            Change::Thawed => &mut self.thawed,
            Change::CutOff | Change::Reconnected | Change::Stopped | Change::Continued => return false,
            Change::Filtered | Change::Unfiltered => return false,
        };
        let is_due = *due > 0;
        *due -= u32::from(is_due);
        match change {
            Change::Died => self.is_down_by_others |= !is_due,
            Change::Froze => self.is_frozen_by_others |= !is_due,
            Change::Started => return !std::mem::take(&mut self.is_down_by_others) && is_due,
            Change::Thawed => return !std::mem::take(&mut self.is_frozen_by_others) && is_due,
            _ => {}
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_of_ours_explains_one_report() {
        let mut own = OwnChanges { froze: 1, ..OwnChanges::default() };
        assert!(own.explain(Change::Froze) && !own.explain(Change::Froze));
        assert!(!own.explain(Change::Thawed) && !own.explain(Change::CutOff));
    }

    #[test]
    fn an_operation_of_ours_that_ends_a_fault_of_others_is_told() {
        for (begins, ends) in [(Change::Died, Change::Started), (Change::Froze, Change::Thawed)] {
            let mut own = OwnChanges { started: 2, thawed: 2, ..OwnChanges::default() };
            assert!(!own.explain(begins), "others did that");
            assert!(!own.explain(ends), "our step ends the fault of others");
            assert!(own.explain(ends), "the next one is ours alone");
            assert!(!own.explain(ends), "each operation of ours explains one report");
            (own.died, own.froze, own.started, own.thawed) = (1, 1, 1, 1);
            assert!(own.explain(begins) && own.explain(ends), "a whole fault of ours");
        }
    }
}
