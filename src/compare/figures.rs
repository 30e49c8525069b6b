//! The figures of one run that are compared.

use checker::{Figure, Verdict, WindowKind};
use history::{ClusterKind, Plan};

use crate::judge::Judged;

/// A number that is compared.
pub struct Number {
    /// Its name in the table.
    pub name: &'static str,
    /// Its unit, after a space.
    pub unit: &'static str,
    of: fn(&Judged) -> Option<f64>,
}

/// The numbers that are compared.
pub const NUMBERS: [Number; 7] = [
    Number { name: "windows", unit: "", of: |run| of_windows(run, "lock.windows") },
    Number { name: "longest overlap", unit: " ms", of: |run| longest(run, "lock.overlap_ms_max", has_two_holders) },
    Number { name: "longest staleness", unit: " ms", of: |run| longest(run, "lock.staleness_ms_max", is_stale) },
    Number { name: "lost updates on off", unit: "", of: |run| number(run, "off.data.lost_updates") },
    Number { name: "holds", unit: "", of: |run| number(run, "facts.holds") },
    Number { name: "time to acquire, p50", unit: " ms", of: |run| run.measures.acquire_ms(0.5) },
    Number { name: "time to acquire, p99", unit: " ms", of: |run| run.measures.acquire_ms(0.99) },
];

/// The figures of one run.
#[derive(Debug)]
pub struct Figures {
    /// The plan of a simulated run. None on real servers, where a second run of a plan is another run.
    pub simulated: Option<Plan>,
    /// The verdict on mutual exclusion.
    pub lock: Option<Verdict>,
    /// The numbers, in the order of [`NUMBERS`]; none if the run does not have one. A run that was not judged to its
    /// end has none: a part of a run has fewer windows, and fewer holds.
    pub numbers: [Option<f64>; NUMBERS.len()],
}

impl Figures {
    /// The figures of a run.
    pub fn of(run: &Judged) -> Figures {
        let is_whole = run.verdicts.reasons.is_empty();
        Figures {
            simulated: (run.plan.cluster == ClusterKind::Sim).then(|| run.plan.clone()),
            lock: run.verdicts.lock().map(|lock| lock.verdict),
            numbers: NUMBERS.map(|number| (number.of)(run).filter(|_| is_whole)),
        }
    }
}

fn number(run: &Judged, path: &str) -> Option<f64> {
    match run.verdicts.lookup(path)? {
        Figure::Count(number) => Some(number),
        Figure::Verdict(_) => None,
    }
}

/// A number about the windows of a run. A lock that was not decided has neither windows nor none: a step of the host's
/// clock excuses its windows, or the record does not order the grants.
fn of_windows(run: &Judged, path: &str) -> Option<f64> {
    run.verdicts.lock().filter(|lock| lock.verdict != Verdict::Inconclusive)?;
    number(run, path)
}

/// The length of a run's longest window of some kinds; none without such a window. A window may be 0 ms long.
fn longest(run: &Judged, path: &str, is_of: fn(WindowKind) -> bool) -> Option<f64> {
    let has_one = run.verdicts.lock()?.windows.iter().any(|window| is_of(window.kind));
    of_windows(run, path).filter(|_| has_one)
}

fn has_two_holders(kind: WindowKind) -> bool {
    kind != WindowKind::CutShort
}

fn is_stale(kind: WindowKind) -> bool {
    kind == WindowKind::StaleHolder
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge;

    fn run(name: &str) -> Judged {
        let history = format!("{}/checker/tests/corpus/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        judge(history.as_ref()).unwrap()
    }

    #[test]
    fn a_run_without_windows_of_a_kind_has_no_longest_one() {
        let of = |name: &str| {
            let mut run = run(name);
            run.verdicts.reasons.clear();
            let [windows, overlap, staleness, ..] = Figures::of(&run).numbers;
            (windows, overlap.is_some(), staleness)
        };
        assert_eq!(of("none"), (Some(0.0), false, None));
        assert_eq!(of("forgets-nx"), (Some(1.0), true, None), "two leases overlap, and no holder is stale");
        assert_eq!(of("kleppmann-pause"), (Some(1.0), true, Some(3_051.0)));
        assert!(of("killed-at-once").1, "a window of 0 ms is a window");
        assert!(!of("cut-short").1, "a hold that was cut short has no second holder");
    }

    #[test]
    fn a_run_whose_lock_is_inconclusive_has_no_number_of_windows() {
        let mut run = run("truncated-early");
        // Such a lock may have a whole record: the order of two grants is not known, or the host's clock has stepped.
        run.verdicts.reasons.clear();
        assert_eq!(run.verdicts.lock().unwrap().verdict, Verdict::Inconclusive);
        let [windows, overlap, staleness, _, holds, ..] = Figures::of(&run).numbers;
        assert_eq!((windows, overlap, staleness), (None, None, None));
        assert!(holds.is_some());
    }

    #[test]
    fn a_run_that_was_not_judged_to_its_end_has_no_numbers() {
        let (whole, cut) = (run("kleppmann-pause"), run("event-lost"));
        assert!(whole.verdicts.reasons.is_empty() && !cut.verdicts.reasons.is_empty());
        assert!(Figures::of(&whole).numbers.iter().flatten().count() > 3);
        assert!(number(&cut, "lock.windows").is_some() && cut.measures.acquire_ms(0.5).is_some());
        assert_eq!(Figures::of(&cut).numbers, [None; NUMBERS.len()]);
    }
}
