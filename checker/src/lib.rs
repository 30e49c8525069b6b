//! History in, verdicts out: pure, streaming.
//!
//! A record goes through `merge.rs`, which puts the streams of all processes into one sweep in the order of their
//! stamps, then into the state that all judges share, then past each judge: one file a property. Every comparison that a
//! verdict rests on is a function of `rules.rs`. Nothing here reads a clock, draws a number or iterates over a hash map
//! in a way that reaches the output: the same history gives the same verdicts, however its streams were interleaved.
//!
//! ```
//! let verdicts = checker::check(std::iter::empty(), history::Tail::Whole);
//! assert_eq!(verdicts.verdict, checker::Verdict::Inconclusive);
//! ```

mod activity;
mod cause;
mod data;
mod expiry;
mod faults;
mod fence;
mod holds;
mod intake;
mod intervals;
mod judge;
mod leftover;
mod liveness;
mod lock;
mod merge;
mod order;
mod property;
mod queue;
mod quiet;
mod release;
mod resource;
mod rules;
mod run;
#[cfg(test)]
mod scene;
mod story;
mod stuck;
mod tokens;
mod verdict;
mod window;

use history::{Event, Plan, Record, Stamp, Tail};

pub use property::{
    ActivityVerdict, Blocked, DataVerdict, DeadClaim, FenceVerdict, Leftover, LivenessVerdict, LockVerdict, Property,
    ReleaseVerdict, ResourceVerdict, StoryLine, Stuck, StuckKind, TokenFault, TokensVerdict, UnsafeRelease, Window,
    WindowKind,
};
pub use verdict::{Facts, Figure, LongestStall, Properties, Verdict, Verdicts};

use judge::{Ending, Judge};
use merge::{Entry, Merge, Next};
use run::Run;

/// Judges a history as it is read.
///
/// Its memory grows with keys, clients and requests that have not been seen to arrive, and with the violations found; not
/// with the history. A process that is frozen stops the horizon: what the others do meanwhile is kept until it runs again.
#[derive(Default)]
pub struct Checker {
    name: String,
    merge: Merge,
    /// From the plan on, which is the first record.
    sweep: Option<Sweep>,
}

/// The part that needs to know the plan.
struct Sweep {
    run: Run,
    judges: Vec<Box<dyn Judge>>,
    now: Stamp,
    /// Empty between two stamps: kept for its memory.
    closed: run::Closed,
}

impl Sweep {
    fn new(plan: Plan) -> Self {
        let run = Run::new(plan);
        Sweep { judges: judge::all(&run), run, now: Stamp(0), closed: Vec::new() }
    }

    fn step(&mut self, entry: &Entry) {
        if entry.at != self.now {
            self.settle();
            self.now = entry.at;
        }
        if entry.is_undone {
            self.run.undone(entry);
            for judge in &mut self.judges {
                judge.see_undone(&self.run, entry);
            }
            return;
        }
        self.run.take(entry);
        for judge in &mut self.judges {
            judge.see(&self.run, entry);
        }
        if let Some(key) = self.run.key_touched(&entry.event) {
            self.retire(key, entry.at, None);
        }
    }

    /// Tells the judges which entitlements have ended by `now`.
    fn retire(&mut self, key: usize, now: Stamp, until: Option<Stamp>) {
        while let Some(id) = self.run.next_ended(key, now) {
            let Some(hold) = self.run.attempt(id) else { continue };
            let end = until.map_or(hold.end(), |until| hold.end().min(until));
            for judge in &mut self.judges {
                judge.ended(&self.run, hold, end);
            }
        }
    }

    /// All events of a stamp have been seen.
    fn settle(&mut self) {
        for judge in &mut self.judges {
            judge.settle(&self.run);
        }
        self.run.settle(&mut self.closed);
        for attempt in self.closed.drain(..) {
            for judge in &mut self.judges {
                judge.closed(&self.run, &attempt);
            }
        }
    }
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the next record of the history.
    pub fn feed(&mut self, record: Record) {
        if let (None, Event::Plan { run, plan }) = (&self.sweep, &record.event) {
            self.name.clone_from(run);
            self.merge.expect(plan);
            self.sweep = Some(Sweep::new(Plan::clone(plan)));
        }
        self.merge.feed(record);
        if let Some(sweep) = &mut self.sweep {
            advance(&mut self.merge, sweep);
        }
    }

    /// The verdicts. `tail` says how the history ended: one that was cut short is judged as far as it goes.
    pub fn finish(mut self, tail: Tail) -> Verdicts {
        let Some(mut sweep) = self.sweep else { return unplanned() };
        advance(&mut self.merge, &mut sweep);
        sweep.settle();
        let (unjudgeable, until) = (self.merge.unjudgeable(), self.merge.judged_until());
        let (is_ended, mut reasons) = self.merge.into_reasons();
        if tail == Tail::Cut {
            reasons.insert("the history was cut short in the middle of a line".into());
        }
        if !is_ended {
            reasons.insert("the history has no end record: the run was not recorded to its end".into());
        }
        reasons.extend(sweep.run.reasons().iter().cloned());
        if let Some(why) = unjudgeable {
            // Stamps of two clocks say nothing about each other: nothing that the sweep found stands.
            let start = sweep.run.start;
            sweep = Sweep::new(sweep.run.plan);
            sweep.run.start = start;
            reasons.insert(why);
        }
        for key in sweep.run.keys() {
            sweep.retire(key, Stamp(u64::MAX), until);
        }
        sweep.verdicts(self.name, reasons.into_iter().collect(), until)
    }
}

/// Sweeps over everything that is final.
fn advance(merge: &mut Merge, sweep: &mut Sweep) {
    while let Some(next) = merge.pop() {
        match next {
            Next::Entry(entry) => {
                sweep.run.know(entry.process, |i| merge.name(i).clone());
                sweep.step(&entry);
            }
            Next::Gone(process) => {
                sweep.run.know(process, |i| merge.name(i).clone());
                sweep.run.gone(process);
            }
        }
    }
}

impl Sweep {
    fn verdicts(self, name: String, reasons: Vec<String>, until: Option<Stamp>) -> Verdicts {
        let Sweep { run, judges, now, .. } = self;
        let unsafe_releases = judges.iter().flat_map(|judge| judge.unsafe_releases(&run)).collect();
        let ending = Ending { is_whole: reasons.is_empty(), unsafe_releases };
        let mut facts = Facts { judged_until_ms: run.ms(until.unwrap_or(now)).max(0.0), ..Facts::default() };
        let mut properties = Properties::default();
        for judge in judges {
            properties.0.extend(judge.verdicts(&run, &ending, &mut facts));
        }
        properties.sort(&run.plan);
        Verdicts {
            schema: 1,
            run: name,
            cluster: cluster(&run.plan),
            verdict: properties.worst(!ending.is_whole),
            as_expected: None,
            reasons,
            properties,
            facts,
        }
    }
}

fn cluster(plan: &Plan) -> String {
    plan.cluster.name().into()
}

/// A history that does not begin with a plan says nothing that could be judged.
fn unplanned() -> Verdicts {
    Verdicts {
        schema: 1,
        run: String::new(),
        cluster: String::new(),
        verdict: Verdict::Inconclusive,
        as_expected: None,
        reasons: vec!["the history does not begin with a plan".into()],
        properties: Properties::default(),
        facts: Facts::default(),
    }
}

/// Judges a whole history. `tail` says how it ended; see [`history::Reader::tail`].
pub fn check<I: IntoIterator<Item = Record>>(records: I, tail: Tail) -> Verdicts {
    let mut checker = Checker::new();
    for record in records {
        checker.feed(record);
    }
    checker.finish(tail)
}

#[cfg(test)]
mod tests {
    use history::ProcessName;
    use proptest::prelude::*;

    use super::*;
    use crate::scene::{Scene, count};

    /// What one hold of a random history does. All times are coarse, so that equal stamps are common.
    #[derive(Debug, Clone)]
    struct Doing {
        worker: u32,
        sent: u64,
        knew: u64,
        took: u64,
        token: u64,
        read: Option<(u64, u64)>,
        write: Option<(u64, u64)>,
        release: Option<u64>,
    }

    fn doing() -> impl Strategy<Value = Doing> {
        let request = || prop::option::of((0u64..8, 0u64..12));
        let release = prop::option::of(0u64..12);
        (1u32..=3, 0u64..40, 0u64..4, 0u64..6, 1u64..9, request(), request(), release).prop_map(
            |(worker, sent, knew, took, token, read, write, release)| Doing {
                worker,
                sent,
                knew: knew.min(took),
                took,
                token,
                read,
                write,
                release,
            },
        )
    }

    /// `mirrored` swaps the names of the first and the last worker.
    fn scene(doings: &[Doing], pause: Option<(u32, u64, u64)>, mirrored: bool) -> Scene {
        let mut scene = Scene::new();
        scene.plan.workload.workers = 3;
        let name = |worker: u32| if mirrored { 4 - worker } else { worker };
        for (i, d) in doings.iter().enumerate() {
            let (hold, worker, unit) = (i as u64 + 1, name(d.worker), 100);
            let ok = d.sent + d.took;
            scene.acquire_knowing(hold, worker, d.sent * unit, (d.sent + d.knew) * unit, ok * unit, d.token);
            if let Some((sent, takes)) = d.read {
                scene.read(hold, 1, (ok + sent) * unit, (ok + sent + takes) * unit);
            }
            if let Some((sent, takes)) = d.write {
                scene.write(hold, 2, (ok + sent) * unit, (ok + sent + takes) * unit);
            }
            if let Some(after) = d.release {
                scene.release_refused(hold, (ok + after) * unit);
            }
        }
        if let Some((worker, from, length)) = pause {
            let node = format!("worker-{}", name(worker));
            scene.pause(1, &node, (from + 1) * 100, (from + 1 + length) * 100);
        }
        scene
    }

    fn doings() -> impl Strategy<Value = Vec<Doing>> {
        prop::collection::vec(doing(), 1..7)
    }

    fn pauses() -> impl Strategy<Value = Option<(u32, u64, u64)>> {
        prop::option::of((1u32..=3, 0u64..20, 1u64..30))
    }

    /// Puts the streams of the processes together as `picks` says; the plan stays first and the end last.
    fn interleaved(records: &[Record], picks: &[usize]) -> Vec<Record> {
        let mut streams: Vec<(ProcessName, Vec<Record>)> = Vec::new();
        for record in &records[1..records.len() - 1] {
            match streams.iter_mut().find(|(name, _)| *name == record.process) {
                Some((_, stream)) => stream.push(record.clone()),
                None => streams.push((record.process.clone(), vec![record.clone()])),
            }
        }
        let mut streams: Vec<_> = streams.into_iter().map(|(_, stream)| stream.into_iter().peekable()).collect();
        let mut all = vec![records[0].clone()];
        let mut picks = picks.iter().cycle();
        while streams.iter_mut().any(|s| s.peek().is_some()) {
            streams.retain_mut(|s| s.peek().is_some());
            let i = picks.next().copied().unwrap_or(0) % streams.len();
            all.extend(streams[i].next());
        }
        all.push(records[records.len() - 1].clone());
        all
    }

    const COUNTS: &[&str] = &[
        "lock.stale_holder",
        "lock.lease_overlap",
        "lock.undecided",
        "lock.unexplained",
        "lock.dead_claims",
        "tokens.backwards",
        "tokens.shared",
        "release.unsafe_releases",
        "release.left_behind",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn verdicts_do_not_depend_on_how_the_streams_interleave(
            doings in doings(),
            pause in pauses(),
            picks in prop::collection::vec(0usize..64, 1..200),
        ) {
            let records = scene(&doings, pause, false).records();
            let expected = check(records.clone(), Tail::Whole);
            prop_assert_eq!(check(interleaved(&records, &picks), Tail::Whole), expected);
        }

        #[test]
        fn names_of_workers_decide_nothing_between_equal_stamps(doings in doings(), pause in pauses()) {
            let (one, other) = (scene(&doings, pause, false).verdicts(), scene(&doings, pause, true).verdicts());
            for path in COUNTS {
                prop_assert_eq!(one.lookup(path), other.lookup(path), "{}", path);
            }
            let lengths = |v: &Verdicts| {
                let windows = v.lock().map(|lock| lock.windows.clone()).unwrap_or_default();
                let mut lengths: Vec<_> = windows
                    .into_iter()
                    .map(|w| (w.kind, w.holds[0].min(w.holds[1]), w.causes, w.overlap_ms.to_bits(), w.staleness_ms.map(f64::to_bits)))
                    .collect();
                lengths.sort();
                lengths
            };
            // The first of two later holds that were acquired at one instant is the same by length, not by name.
            let only_overlaps = |v: &Verdicts| lengths(v).into_iter().filter(|w| w.0 == WindowKind::LeaseOverlap).collect::<Vec<_>>();
            let only_stale = |v: &Verdicts| lengths(v).into_iter().filter(|w| w.0 == WindowKind::StaleHolder).map(|w| (w.3, w.4, w.2)).collect::<Vec<_>>();
            prop_assert_eq!(only_overlaps(&one), only_overlaps(&other));
            let (mut a, mut b) = (only_stale(&one), only_stale(&other));
            a.sort();
            b.sort();
            prop_assert_eq!(a, b);
        }

        #[test]
        fn a_violation_is_never_withdrawn_by_more_events(doings in doings(), pause in pauses(), at in 0usize..200) {
            let records = scene(&doings, pause, false).records();
            let whole = check(records.clone(), Tail::Whole);
            let mut part = check(records.into_iter().take(at + 1), Tail::Cut);
            part.properties.0.retain(|(_, property)| property.verdict() == Verdict::Violated);
            for (name, _) in part.properties.iter() {
                let verdict = whole.properties.get(name).map(Property::verdict);
                prop_assert_eq!(verdict, Some(Verdict::Violated), "{}", name);
            }
            for window in part.lock().map(|lock| lock.windows.as_slice()).unwrap_or_default() {
                let windows = &whole.lock().unwrap().windows;
                let same = windows.iter().find(|w| w.kind == window.kind && w.holds == window.holds);
                prop_assert!(same.is_some_and(|w| w.overlap_ms >= window.overlap_ms), "{:?}", window);
            }
        }
    }

    #[test]
    fn every_count_and_list_can_be_looked_up() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).read(1, 2, 11, 12).acquire(2, 2, 2_000, 2_010, 42);
        scene.write(2, 1, 2_020, 2_030).release(2, 2_040).write(1, 1, 1_900, 2_100).release_refused(1, 2_110);
        let v = scene.verdicts();
        assert_eq!(v.lookup("lock"), Some(Figure::Verdict(Verdict::Violated)));
        assert_eq!(v.lookup("verdict"), Some(Figure::Verdict(Verdict::Violated)));
        assert_eq!(v.lookup("off.data"), Some(Figure::Verdict(Verdict::Measured)));
        for (path, n) in [
            ("lock.windows", 1),
            ("lock.stale_holder", 1),
            ("lock.unexplained", 0),
            ("lock.dead_claims", 0),
            ("off.data.lost_updates", 1),
            ("writes.fence.stale_rejected", 1),
            ("liveness.blocked", 0),
            ("facts.holds", 2),
        ] {
            assert_eq!(count(&v, path), n, "{path}");
        }
        assert_eq!(v.lookup("lock.nothing"), None);
        assert_eq!(v.lookup("nothing.data"), None);
    }

    #[test]
    fn a_lost_request_does_not_make_memory_grow_with_the_history() {
        let mut scene = Scene::new();
        // A killed worker's write never arrives, and the other worker goes on and on.
        scene.acquire(1, 1, 0, 10, 1).event(
            "worker-1",
            50,
            Event::Write { hold: history::HoldId(1), op: history::OpId(1) },
        );
        scene.kill(1, "worker-1", 100);
        for i in 0..2_000 {
            let at = 3_000 + i * 10;
            scene.acquire(i + 10, 2, at, at + 1, i + 10).write(i + 10, 1, at + 2, at + 3).release(i + 10, at + 4);
        }
        let mut records = scene.records();
        records.pop();
        let ended = records.iter().position(|r| matches!(r.event, Event::ProcessEnded { .. })).unwrap();
        let ended = records.remove(ended);
        records.insert(10, ended);
        let mut checker = Checker::new();
        let mut most = 0;
        for record in records {
            checker.feed(record);
            most = most.max(checker.sweep.as_ref().unwrap().run.still_open().len());
        }
        assert!(most < 5, "{most} attempts were open at once");
        let open = checker.sweep.as_ref().unwrap().run.still_open();
        assert_eq!(open[0].id.0, 1, "the write that never arrived is waited for");
    }
}
