//! Lines of workers into a history, with the parts of the harness's own recorder.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use harness_bench::record;
use history::{ProcessName, Reports, Writer};
use nemesis::{LiveView, Recorder};

/// As many records as the harness's recorder writes at a time.
const BATCH: usize = 512;

/// The recorder of one round, with its history in a directory of its own.
pub struct Sink {
    recorder: Recorder,
    writer: Writer,
    live_view: LiveView,
    reports: Reports,
    numbers: BTreeMap<ProcessName, u64>,
    events: u64,
    _dir: tempfile::TempDir,
}

impl Sink {
    pub fn new() -> anyhow::Result<Sink> {
        let dir = tempfile::tempdir()?;
        let mut sink = Sink {
            recorder: Recorder::new("bench", &record::plan_of(1, 4)?, None, BATCH),
            writer: Writer::create(&dir.path().join("history.jsonl"))?,
            live_view: LiveView::new(),
            reports: Reports::default(),
            numbers: BTreeMap::new(),
            events: 0,
            _dir: dir,
        };
        sink.flush()?;
        Ok(sink)
    }

    /// Records a line of a process.
    pub fn take(&mut self, process: &str, line: &[u8]) -> anyhow::Result<()> {
        let process = ProcessName::from(process);
        let report = self.reports.read(line).with_context(|| format!("{process} wrote a line that is no event"))?;
        let expected = self.numbers.entry(process.clone()).or_default();
        ensure!(report.n == *expected, "{process} reported event {} instead of {expected}", report.n);
        *expected += 1;
        self.events += 1;
        self.recorder.record(process, report.n, report.at, report.event);
        self.recorder.show(&self.live_view);
        if self.recorder.batched() >= BATCH {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes what is recorded so far.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.recorder.show(&self.live_view);
        for record in self.recorder.drain() {
            self.writer.append(&record)?;
        }
        Ok(self.writer.flush()?)
    }

    /// The number of events of workers.
    pub fn events(&self) -> u64 {
        self.events
    }
}
