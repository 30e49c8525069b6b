//! Causes of windows, and sets of causes.

use std::{fmt, str::FromStr};

use history::FaultKind;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One explanation of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// An injected fault that its target showed.
    Fault(FaultKind),
    /// A process did not run for a while, and no fault of the plan stopped it.
    Stall,
    /// The client believed in its hold after the promise had ended.
    Overclaim,
    /// The planned waits alone outlast the lease.
    Overrun,
    /// A clock of the kernel stepped, and no fault of the plan set it.
    HostClock,
    /// A release, a renewal or an undo took effect on a node that another attempt owned.
    UnsafeRelease,
    /// Nothing in the record explains the window.
    Unexplained,
}

impl Cause {
    /// The name in `verdict.json`, in suites and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Fault(kind) => kind.name(),
            Cause::Stall => "stall",
            Cause::Overclaim => "overclaim",
            Cause::Overrun => "overrun",
            Cause::HostClock => "host-clock",
            Cause::UnsafeRelease => "unsafe-release",
            Cause::Unexplained => "unexplained",
        }
    }

    fn all() -> impl Iterator<Item = Cause> {
        use Cause::{HostClock, Overclaim, Overrun, Stall, Unexplained, UnsafeRelease};
        let others = [Stall, Overclaim, Overrun, HostClock, UnsafeRelease, Unexplained];
        FaultKind::ALL.into_iter().map(Cause::Fault).chain(others)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Cause {
    type Err = String;

    fn from_str(text: &str) -> Result<Cause, String> {
        Cause::all().find(|cause| cause.name() == text).ok_or_else(|| {
            let known: Vec<_> = Cause::all().map(Cause::name).collect();
            format!("`{text}` is no cause; expected one of {}, or several joined by `+`", known.join(", "))
        })
    }
}

/// Causes are ordered by name.
impl Ord for Cause {
    fn cmp(&self, other: &Cause) -> std::cmp::Ordering {
        self.name().cmp(other.name())
    }
}

impl PartialOrd for Cause {
    fn partial_cmp(&self, other: &Cause) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Causes that explain a window only together; usually one. Printed as `a+b`.
///
/// The causes are in the order in which the checker found them. A cause occurs twice if two faults of its kind are
/// needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CauseSet(Vec<Cause>);

impl CauseSet {
    /// The causes of the set.
    pub fn causes(&self) -> &[Cause] {
        &self.0
    }

    /// Returns whether the set consists of this cause alone.
    pub fn is(&self, cause: Cause) -> bool {
        self.0 == [cause]
    }

    /// The same causes in the order of their names.
    pub fn sorted(&self) -> CauseSet {
        let mut causes = self.0.clone();
        causes.sort_unstable();
        CauseSet(causes)
    }
}

impl From<Cause> for CauseSet {
    fn from(cause: Cause) -> CauseSet {
        CauseSet(vec![cause])
    }
}

impl FromIterator<Cause> for CauseSet {
    fn from_iter<I: IntoIterator<Item = Cause>>(causes: I) -> CauseSet {
        CauseSet(causes.into_iter().collect())
    }
}

impl fmt::Display for CauseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|cause| cause.name()).collect();
        f.pad(&names.join("+"))
    }
}

impl FromStr for CauseSet {
    type Err = String;

    fn from_str(text: &str) -> Result<CauseSet, String> {
        text.split('+').map(str::parse).collect()
    }
}

impl Serialize for CauseSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CauseSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CauseSet, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The sets in a canonical order, each once, so that two windows can be compared.
pub fn canonical<'a>(causes: impl IntoIterator<Item = &'a CauseSet>) -> Vec<CauseSet> {
    let mut sets: Vec<CauseSet> = causes.into_iter().map(CauseSet::sorted).collect();
    sets.sort();
    sets.dedup();
    sets
}

/// The sets as text, separated.
pub fn joined<'a>(causes: impl IntoIterator<Item = &'a CauseSet>, separator: &str) -> String {
    causes.into_iter().map(CauseSet::to_string).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_read_back_from_its_name() {
        for cause in Cause::all() {
            assert_eq!(cause.name().parse(), Ok(cause));
        }
        assert!("pauze".parse::<Cause>().is_err());
    }

    #[test]
    fn a_set_is_joined_by_plus_and_compared_without_regard_to_order() {
        let set = |text: &str| text.parse::<CauseSet>().unwrap();
        assert_eq!(set("clock+amnesia").to_string(), "clock+amnesia");
        let found = [set("clock+amnesia"), set("amnesia"), set("amnesia+clock")];
        assert_eq!(canonical(&found), [set("amnesia"), set("amnesia+clock")]);
    }
}
