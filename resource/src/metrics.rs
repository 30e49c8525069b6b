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

#[cfg(test)]
mod tests {
    use history::{Comparison, HoldId, Key, OpId, Token, Version};

    use super::*;
    use crate::{Action, Proposal, Request, State};

    #[test]
    fn a_repeat_is_counted_as_a_repeat_and_as_nothing_else() {
        let policy = Policy::new(&[Arm::Writes, Arm::Cas], Comparison::Default).unwrap();
        let (mut state, metrics) = (State::default(), Metrics::default());
        // The second operation has a stale token and an old base.
        for (op, token) in [(1, 7), (2, 6), (1, 7), (2, 6), (2, 6)] {
            let proposal = Proposal { base: Some(Version(0)), value: "v".to_owned() };
            let action = Action::Write(policy.arms().iter().map(|arm| (*arm, proposal.clone())).collect());
            let (key, hold, op, token) = (Key::new("k"), Some(HoldId(1)), Some(OpId(op)), Some(Token(token)));
            let request = Request { key, hold, op, token, deadline: None, action };
            metrics.decided(&state.decide(&policy, &request).unwrap());
        }
        let text = metrics.text(&policy);
        for line in [
            "resource_stale_token_rejections_total{arm=\"writes\"} 1\n",
            "resource_version_mismatches_total{arm=\"cas\"} 1\n",
            "resource_admitted_writes_total{arm=\"writes\"} 1\n",
            "resource_admitted_writes_total{arm=\"cas\"} 1\n",
            "resource_registered_tokens_total{arm=\"writes\"} 1\n",
            "resource_requests_total{kind=\"read\"} 0\n",
            "resource_requests_total{kind=\"write\"} 2\n",
            "resource_requests_total{kind=\"repeat\"} 3\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
