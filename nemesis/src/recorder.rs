//! Numbers the events of a run and shows them to the nemesis.

use history::{Event, MadeBy, NodeName, Plan, ProcessName, Record, Stamp};

use crate::LiveView;

/// Numbers the events of a run in the order of the history. New records wait in a batch for the history's writer.
#[derive(Debug)]
pub struct Recorder {
    next: u64,
    next_of_controller: u64,
    batch: Vec<Record>,
    /// Number of records of the batch that the live view has.
    shown: usize,
}

impl Recorder {
    /// Begins a history, whose first event is the plan. The recorder makes room for `batch` records at a time.
    pub fn new(run: &str, plan: &Plan, made_by: Option<MadeBy>, batch: usize) -> Recorder {
        let mut recorder = Recorder { next: 0, next_of_controller: 0, batch: Vec::with_capacity(batch), shown: 0 };
        let (plan, made_by) = (Box::new(plan.clone()), made_by.map(Box::new));
        recorder.record_own(Event::Plan { run: run.to_owned(), plan, made_by });
        recorder
    }

    /// Records an event of `process`: the event's number in that process, and the stamp by that process.
    pub fn record(&mut self, process: ProcessName, n: u64, at: Stamp, event: Event) -> &Record {
        self.batch.push(Record { seq: self.next, process, n, at, event });
        self.next += 1;
        &self.batch[self.batch.len() - 1]
    }

    /// Records an event of the controller. The stamp is 0, because stamps of the controller order nothing.
    pub fn record_own(&mut self, event: Event) {
        let n = self.next_of_controller;
        self.next_of_controller += 1;
        self.record("controller".into(), n, Stamp(0), event);
    }

    /// Completes the history: `processes` have reported everything. Nobody waits for their exit.
    pub fn end(&mut self, live_view: &LiveView, processes: impl IntoIterator<Item = NodeName>) {
        for node in processes {
            if let Some(ended) = live_view.look(|view| view.process(&node)) {
                self.record_own(Event::ProcessEnded { ended, code: None });
            }
        }
        self.record_own(Event::End);
    }

    /// Shows the live view every record that it has not seen, and wakes the waiting faults.
    pub fn show(&mut self, live_view: &LiveView) {
        self.batch[self.shown..].iter().for_each(|record| live_view.see(record));
        self.shown = self.batch.len();
    }

    /// The number of records in the batch.
    pub fn batched(&self) -> usize {
        self.batch.len()
    }

    /// Takes the batch, whose records the live view must have seen.
    pub fn drain(&mut self) -> impl Iterator<Item = Record> + '_ {
        debug_assert_eq!(self.shown, self.batch.len(), "the nemesis would miss records");
        self.shown = 0;
        self.batch.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{Role, Until};

    use super::*;
    use crate::waits::tests;

    #[test]
    fn a_history_is_whole_when_all_its_processes_have_ended() {
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let (mut recorder, live_view) = (Recorder::new("run", &plan, None, 8), LiveView::new());
        let processes = ["worker-1", "resource", "agent"];
        for process in processes {
            let event = Event::Started { role: Role::Worker, boot_id: "b".into(), time_namespace: 1 };
            recorder.record(process.into(), 0, Stamp(1), event);
        }
        recorder.show(&live_view);
        recorder.end(&live_view, processes.map(NodeName::new));
        recorder.show(&live_view);
        let events: Vec<Event> = recorder.drain().skip(4).map(|record| record.event).collect();
        let ended = processes.map(|process| Event::ProcessEnded { ended: process.into(), code: None });
        assert_eq!(events, [&ended[..], &[Event::End]].concat());
    }
}
