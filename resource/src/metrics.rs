//! Counters since the start of the service, as Prometheus text.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use history::{Arm, RequestKind};

use crate::admission::Admission;
use crate::policy::Policy;

/// One counter for each arm.
type PerArm = [AtomicU64; Arm::ALL.len()];

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    reads: AtomicU64,
    writes: AtomicU64,
    repeats: AtomicU64,
    turned_away: AtomicU64,
    admitted: PerArm,
    stale: PerArm,
    mismatched: PerArm,
    registered: PerArm,
    pub(crate) connections: AtomicU64,
}

impl Metrics {
    /// Counts a decision.
    pub(crate) fn decided(&self, admission: &Admission) {
        if admission.repeat {
            self.repeats.fetch_add(1, Relaxed);
            return;
        }
        let kind = if admission.kind == RequestKind::Read { &self.reads } else { &self.writes };
        kind.fetch_add(1, Relaxed);
        for outcome in &admission.arms {
            let arm = outcome.arm as usize;
            self.registered[arm].fetch_add(u64::from(outcome.registered), Relaxed);
            if admission.kind == RequestKind::Write {
                let per_arm = match (outcome.admitted, outcome.arm) {
                    (true, _) => &self.admitted,
                    (false, Arm::Cas) => &self.mismatched,
                    (false, _) => &self.stale,
                };
                per_arm[arm].fetch_add(1, Relaxed);
            }
        }
    }

    /// Counts a request that was answered without a decision.
    pub(crate) fn turned_away(&self) {
        self.turned_away.fetch_add(1, Relaxed);
    }

    /// Formats all counters as Prometheus text, for the arms of `policy`.
    pub(crate) fn text(&self, policy: &Policy) -> String {
        let mut text = String::new();
        let per_arm = |text: &mut String, name: &str, help: &str, counters: &PerArm, arms: fn(Arm) -> bool| {
            head(text, name, help, "counter");
            for arm in policy.arms().iter().filter(|arm| arms(**arm)) {
                let _ = writeln!(text, "{name}{{arm=\"{arm}\"}} {}", counters[*arm as usize].load(Relaxed));
            }
        };
        let stale = "Writes refused because their fencing token was stale.";
        per_arm(&mut text, "resource_stale_token_rejections_total", stale, &self.stale, Arm::fences);
        let mismatched = "Writes refused because their base was no longer the current version.";
        per_arm(&mut text, "resource_version_mismatches_total", mismatched, &self.mismatched, |arm| arm == Arm::Cas);
        per_arm(&mut text, "resource_admitted_writes_total", "Writes applied.", &self.admitted, |_| true);
        let registered = "Requests whose token became the largest of its key.";
        per_arm(&mut text, "resource_registered_tokens_total", registered, &self.registered, Arm::fences);

        let name = "resource_requests_total";
        head(
            &mut text,
            name,
            "Requests for a key: decided reads and writes, repeats, and invalid ones (turned_away).",
            "counter",
        );
        let kinds = [&self.reads, &self.writes, &self.repeats, &self.turned_away];
        for (kind, counter) in ["read", "write", "repeat", "turned_away"].into_iter().zip(kinds) {
            let _ = writeln!(text, "{name}{{kind=\"{kind}\"}} {}", counter.load(Relaxed));
        }
        head(&mut text, "resource_connections", "Open connections.", "gauge");
        let _ = writeln!(text, "resource_connections {}", self.connections.load(Relaxed));
        text
    }
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
