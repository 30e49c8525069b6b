//! The timeline of a run: holds, acts, faults, stalls and clocks as plain data, for pictures.
//!
//! A timeline is built in a second pass over the history, when the verdicts are known: so it keeps the windows and what
//! is near them. Of a long run it keeps the rest as counts. It judges nothing. Windows, stale and late writes are those
//! of the verdicts, and the end of a promise is computed by the checker's own rules.

mod disturbances;
mod focus;
mod holds;
mod model;
mod series;
mod tokens;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use checker::{Property, Verdicts};
use history::{
    Arm, ClientId, Event, FailureReason, Key, NodeName, Plan, ProcessName, Reader, Record, RequestKind, Stamp,
};

use self::{disturbances::Disturbances, focus::Focus, holds::Holds, model::Lane, series::SeriesBuilder};

pub use self::{
    focus::worst_first,
    model::{Act, Decision, FaultSpan, Hold, Standing, Timeline, WindowSpan},
    series::Bucket,
};

/// Reads a history for its timeline. The verdicts are those on the same history.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read(history: &Path, verdicts: &Verdicts) -> anyhow::Result<Timeline> {
    let mut builder = Builder::new(verdicts);
    if matches!(verdicts.properties.get("resource"), Some(Property::Resource(found)) if found.undone > 0) {
        builder.know_recoveries(recoveries(history)?);
    }
    for record in Reader::open(history)? {
        builder.add(&record?);
    }
    Ok(builder.finish())
}

/// Returns what the restarted processes of the resource found on disk, also if the history has no end.
fn recoveries(history: &Path) -> anyhow::Result<Vec<(ProcessName, u64)>> {
    let mut found = Vec::new();
    for record in Reader::open(history)? {
        let record = record?;
        if let Event::Recovered { durable } = record.event {
            found.push((record.process, durable));
        }
    }
    Ok(found)
}

/// Builds a [`Timeline`] from the records of a history, in the order of the file.
pub struct Builder {
    focus: Focus,
    zero: Option<Stamp>,
    until: Stamp,
    plan: Option<Plan>,
    clients: BTreeMap<ClientId, NodeName>,
    holds: Holds,
    disturbances: Disturbances,
    series: SeriesBuilder,
    /// By the number of each start of the resource: the least number that this process or a later one found on disk.
    durable: BTreeMap<u32, u64>,
    /// The last counter of each key on each arm, with the admission's number.
    values: HashMap<Key, (u64, Vec<(Arm, u64)>)>,
    failed: Vec<(FailureReason, u64)>,
}

impl Builder {
    /// Begins a timeline of the run with these verdicts.
    pub fn new(verdicts: &Verdicts) -> Builder {
        Builder {
            focus: Focus::of(verdicts),
            zero: None,
            until: Stamp(0),
            plan: None,
            clients: BTreeMap::new(),
            holds: Holds::new(std::time::Duration::ZERO),
            disturbances: Disturbances::default(),
            series: SeriesBuilder::default(),
            durable: BTreeMap::new(),
            values: HashMap::new(),
            failed: Vec::new(),
        }
    }

    /// Takes in what the restarted processes of the resource found on disk ([`Event::Recovered`]). Comes before the
    /// first record. Requests that a kill undid are left out: they changed nothing.
    pub fn know_recoveries(&mut self, recoveries: Vec<(ProcessName, u64)>) {
        self.durable = recoveries.into_iter().map(|(process, durable)| (process.incarnation(), durable)).collect();
        let mut least = u64::MAX;
        for durable in self.durable.values_mut().rev() {
            least = least.min(*durable);
            *durable = least;
        }
    }

    fn is_undone(&self, record: &Record) -> bool {
        let Event::Admission { number, .. } = &record.event else { return false };
        let mut later = self.durable.range(record.process.incarnation().saturating_add(1)..);
        later.next().is_some_and(|(_, durable)| number > durable)
    }

    /// Adds the next record.
    pub fn add(&mut self, record: &Record) {
        let at = record.at;
        self.until = self.until.max(at);
        if self.is_undone(record) {
            return;
        }
        match &record.event {
            Event::Plan { plan, .. } => {
                self.holds = Holds::new(plan.lease);
                self.plan = Some(Plan::clone(plan));
            }
            Event::Started { .. } => {
                self.zero = Some(self.zero.map_or(at, |zero| zero.min(at)));
            }
            Event::Acquire { client, .. } => {
                self.clients.entry(*client).or_insert_with(|| record.process.node());
            }
            Event::AcquireFailed { why, .. } => match self.failed.iter_mut().find(|(reason, _)| reason == why) {
                Some((_, count)) => *count += 1,
                None => self.failed.push((*why, 1)),
            },
            // A read of a client is no news.
            Event::Admission { number, key, kind, arms, repeat: false, hold, .. }
                if *kind == RequestKind::Write || hold.is_none() =>
            {
                self.value(*number, key, arms.iter().map(|decision| (decision.arm, decision.value)).collect());
            }
            _ => {}
        }
        self.series.add(record);
        self.disturbances.add(record);
        self.holds.add(record, &self.focus, self.zero.unwrap_or_default());
        for (client, at) in self.holds.left_out.drain(..) {
            self.series.left_out(client, at);
        }
    }

    fn value(&mut self, number: u64, key: &Key, values: Vec<(Arm, u64)>) {
        match self.values.get_mut(key) {
            Some(last) if last.0 <= number => *last = (number, values),
            Some(_) => {}
            None => drop(self.values.insert(key.clone(), (number, values))),
        }
    }

    /// Ends the timeline.
    pub fn finish(mut self) -> Timeline {
        let zero = self.zero.unwrap_or_default();
        let mut holds = self.holds.finish(&self.focus, zero);
        for (client, at) in self.holds.left_out.drain(..) {
            self.series.left_out(client, at);
        }
        for hold in holds.iter_mut().filter(|hold| hold.release.is_none()) {
            // The promise of a hold that its client gave up lasts on.
            let is_cut = |killed: &Stamp| hold.gave_up.is_none() || *killed < hold.promise_end;
            let killed = self.disturbances.killed(&hold.process).filter(is_cut);
            // A client may acquire between the request of the kill and its death; its hold ends as it begins.
            hold.killed = killed.map(|killed| killed.max(hold.acquired));
        }
        let (faults, stalls, clocks, mut left_out) = self.disturbances.finish();
        let (series, mut by_client) = self.series.finish();
        let is_crowded = self.plan.as_ref().is_some_and(|plan| plan.workload.clients_per_worker > 1);
        let lane = |(client, worker): (ClientId, NodeName)| {
            let name = if is_crowded { format!("{worker}/c{client}") } else { worker.to_string() };
            Lane { client, worker, name, left_out: by_client.remove(&client).unwrap_or_default() }
        };
        let lanes: Vec<Lane> = self.clients.into_iter().map(lane).collect();
        let mut values: BTreeMap<usize, (Arm, u64)> = BTreeMap::new();
        for (arm, value) in self.values.into_values().flat_map(|(_, values)| values) {
            let place = Arm::ALL.iter().position(|a| *a == arm).unwrap_or_default();
            values.entry(place).or_insert((arm, 0)).1 += value;
        }
        self.failed.sort_by_key(|(why, count)| (std::cmp::Reverse(*count), format!("{why:?}")));
        left_out.holds_of_run = self.holds.count;
        left_out.holds = self.holds.count - holds.len() as u64;
        left_out.wrong_holds = self.holds.wrong_left_out;
        left_out.near_holds = self.holds.near_left_out;
        left_out.acts_of_run = self.holds.acts;
        left_out.attempts = self.failed.iter().map(|(_, count)| count).sum();
        left_out.failed = self.failed;
        Timeline {
            zero,
            until: self.until,
            lanes,
            holds,
            windows: self.focus.windows,
            faults,
            stalls,
            clocks,
            series,
            values: values.into_values().collect(),
            left_out,
        }
    }
}

#[cfg(test)]
pub mod tests;
