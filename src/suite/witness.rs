//! Activation witnesses: the evidence that a history must contain before its run says anything about a claim.
//!
//! A witness is a clause over the verdicts (`writes.fence.late>=1`, as for `--expect`), or a word of [`Witness`].

use std::{str::FromStr, time::Duration};

use history::{ClientKind, FaultKind, Mode, NodeName, Plan};

use crate::{exit::Unusable, expect::Expectation, similar::similar};

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq)]
pub enum Witness {
    /// A clause over the verdicts.
    Figure(Expectation, String),
    /// `write-before-stale-arrival`: a write under a hold arrived after a write under a later hold that conflicts.
    WriteBeforeStaleArrival,
    /// `stale-write-tried`: a write under a hold arrived after another client had acquired the lock's key, in a mode
    /// that conflicts.
    StaleWriteTried,
    /// `granted-again:redis-3`: the node granted a second hold, which conflicts with the first, less than a lease after
    /// the first attempt was sent. The first hold was not released, and a fault of the node is proved in between.
    GrantedAgain(NodeName),
    /// `granted-and-struck:redis-3`: the node granted a hold, then a fault of the node is proved, then the attempt of
    /// another client ended.
    Struck(NodeName),
    /// `tokens-behind`: a hold has a smaller token than an earlier hold that conflicts, because its counters are
    /// behind.
    TokensBehind,
    /// `quorums:1,2,3/3,4,5`: exactly these lock nodes granted a hold, for each quorum; nodes by their place in the
    /// plan.
    Quorums(Vec<Vec<usize>>),
    /// `refused-by-validity:after-send`: a majority granted an attempt whose client was frozen at this point, and the
    /// client refused the grant because its validity had ended.
    RefusedByValidity(history::Point),
    /// `frozen-in-queue`: a waiting client was frozen, from one lease and one second before the release of the hold
    /// ahead of it (servers check leases twice a second) until after that release.
    FrozenInQueue,
    /// `flushed:redis-3`: the node granted a hold, and said before each kill that no fsync was pending.
    Flushed(NodeName),
    /// `restored:redis-3`: after its restart the node granted a hold whose token is too large for counters that
    /// restarted at zero.
    Restored(NodeName),
    /// `write-after-deadline`: a write arrived after the deadline of its client.
    WriteAfterDeadline,
    /// `check-to-write<=1800ms` or `check-to-write>=2700ms`: the longest time from a client's last check of its
    /// deadline before a write to the arrival of that write.
    CheckToWrite(Bound),
    /// `write-after-restart`: after a restart of the resource a write as in `stale-write-tried` arrived whose token is
    /// smaller than a token that an arm had registered for the key before the restart.
    WriteAfterRestart,
    /// `at-once:read,read`: two holds of a key were entitled at once, in these modes.
    AtOnce(Mode, Mode),
    /// `renewal-failed`: a renewal failed; in a plan with faults, after a fault was on.
    RenewalFailed,
    /// `healed:clock`: the run had faults of this kind, and the heal of each is proved.
    Healed(FaultKind),
    /// `proved:clock`: the run had faults of this kind, and each is proved.
    Proved(FaultKind),
}

/// A bound of a measured time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// `<=`
    AtMost(Duration),
    /// `>=`
    AtLeast(Duration),
}

impl Bound {
    /// Returns whether a time keeps to the bound.
    pub fn is_kept(self, time: Duration) -> bool {
        match self {
            Bound::AtMost(most) => time <= most,
            Bound::AtLeast(least) => time >= least,
        }
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        let (bound, length): (fn(Duration) -> Bound, _) = match (text.strip_prefix("<="), text.strip_prefix(">=")) {
            (Some(length), _) => (Bound::AtMost, length),
            (_, Some(length)) => (Bound::AtLeast, length),
            _ => return Err("expected `<=` or `>=`, and a duration, such as `check-to-write<=1800ms`".into()),
        };
        let length = humantime::parse_duration(length.trim());
        length.map(bound).map_err(|e| format!("expected a duration such as `1800ms`: {e}"))
    }
}

const CHECK_TO_WRITE: &str = "check-to-write";

const WORDS: &str = "write-before-stale-arrival, stale-write-tried, granted-again:NODE, granted-and-struck:NODE, \
    tokens-behind, quorums:1,2,3/3,4,5, refused-by-validity:POINT, frozen-in-queue, flushed:NODE, restored:NODE, \
    write-after-deadline, check-to-write<=TIME, check-to-write>=TIME, write-after-restart, renewal-failed, \
    at-once:MODE,MODE, proved:KIND, healed:KIND, or a clause such as `lock.windows>=1`";

impl FromStr for Witness {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Witness, Unusable> {
        let wrong = || {
            let near = similar(text, WORDS.split(", ").map(|word| word.split(':').next().unwrap_or(word)));
            Unusable(format!("witness `{text}`: expected one of: {WORDS}{near}"))
        };
        if let Some(bound) = text.strip_prefix(CHECK_TO_WRITE) {
            let bound = bound.trim().parse().map_err(|problem| Unusable(format!("witness `{text}`: {problem}")))?;
            return Ok(Witness::CheckToWrite(bound));
        }
        if text.contains(['=', '<', '>']) {
            return Ok(Witness::Figure(text.parse()?, text.to_owned()));
        }
        let (word, of) = text.split_once(':').map_or((text, None), |(word, of)| (word, Some(of)));
        Ok(match (word, of) {
            ("write-before-stale-arrival", None) => Witness::WriteBeforeStaleArrival,
            ("stale-write-tried", None) => Witness::StaleWriteTried,
            ("granted-again", Some(node)) => Witness::GrantedAgain(node.into()),
            ("granted-and-struck", Some(node)) => Witness::Struck(node.into()),
            ("tokens-behind", None) => Witness::TokensBehind,
            ("quorums", Some(of)) => {
                let quorum = |text: &str| text.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>();
                Witness::Quorums(of.split('/').map(quorum).collect::<Result<_, _>>().map_err(|_| wrong())?)
            }
            ("refused-by-validity", Some(at)) => {
                let point = history::Point::ALL.into_iter().find(|p| p.name() == at).ok_or_else(wrong)?;
                Witness::RefusedByValidity(point)
            }
            ("frozen-in-queue", None) => Witness::FrozenInQueue,
            ("flushed", Some(node)) => Witness::Flushed(node.into()),
            ("restored", Some(node)) => Witness::Restored(node.into()),
            ("write-after-deadline", None) => Witness::WriteAfterDeadline,
            ("write-after-restart", None) => Witness::WriteAfterRestart,
            ("renewal-failed", None) => Witness::RenewalFailed,
            ("at-once", Some(modes)) => {
                let named = |name: &str| Mode::ALL.into_iter().find(|mode| mode.name() == name.trim());
                let (one, other) = modes.split_once(',').ok_or_else(wrong)?;
                Witness::AtOnce(named(one).ok_or_else(wrong)?, named(other).ok_or_else(wrong)?)
            }
            ("proved" | "healed", Some(kind)) => {
                let kind = FaultKind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(wrong)?;
                if word == "proved" { Witness::Proved(kind) } else { Witness::Healed(kind) }
            }
            _ => return Err(wrong()),
        })
    }
}

impl Witness {
    /// Checks that a run of `plan` can contain the evidence.
    ///
    /// # Errors
    /// The plan has no such node, fault or figure.
    pub fn check(&self, plan: &Plan) -> Result<(), Unusable> {
        let wrong = |problem: String| Err(Unusable(format!("witness `{self}`: {problem}")));
        match self {
            Witness::Figure(expectation, _) => expectation.check_clauses(plan),
            Witness::GrantedAgain(node) | Witness::Struck(node) | Witness::Flushed(node) | Witness::Restored(node)
                if !plan.planned_cluster().may_be_lock_node(node) =>
            {
                wrong(format!("`{node}` is no lock node of the plan"))
            }
            Witness::Quorums(quorums) if quorums.iter().flatten().any(|n| *n < 1 || *n > plan.lock_nodes.len()) => {
                wrong(format!("expected numbers from 1 to {}, the number of lock nodes", plan.lock_nodes.len()))
            }
            Witness::CheckToWrite(_) if plan.workload.client != ClientKind::Checking => {
                wrong("the clients of the plan do not check; set `client = \"checking\"` in `plan.workload`".into())
            }
            Witness::WriteAfterRestart if !plan.arms.iter().any(|arm| arm.fences()) => {
                wrong("no arm of the plan registers tokens; add `writes` or `reads` to `plan.arms`".into())
            }
            Witness::Proved(kind) | Witness::Healed(kind) if !plan.kinds().contains(kind) => {
                wrong(format!("the plan has no fault `{kind}`"))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Witness::Figure(_, text) => f.write_str(text),
            Witness::WriteBeforeStaleArrival => f.write_str("a write of a later hold before the stale write"),
            Witness::StaleWriteTried => f.write_str("a stale write tried"),
            Witness::GrantedAgain(node) => write!(f, "{node} granted twice within a lease"),
            Witness::Struck(node) => write!(f, "{node} granted, had a fault, was asked again"),
            Witness::TokensBehind => f.write_str("counters behind"),
            Witness::Quorums(all) => write!(f, "{} quorums", all.len()),
            Witness::RefusedByValidity(point) => write!(f, "granted, frozen {point}, refused by validity"),
            Witness::FrozenInQueue => f.write_str("a client frozen in the queue for a lease when its turn came"),
            Witness::Flushed(node) => write!(f, "{node} had synced everything before each kill"),
            Witness::Restored(node) => write!(f, "{node} restarted with its counters"),
            Witness::WriteAfterDeadline => f.write_str("a write after its client's deadline"),
            Witness::CheckToWrite(Bound::AtMost(most)) => {
                write!(f, "each write at most {} after its check", humantime::format_duration(*most))
            }
            Witness::CheckToWrite(Bound::AtLeast(least)) => {
                write!(f, "a write at least {} after its check", humantime::format_duration(*least))
            }
            Witness::WriteAfterRestart => f.write_str("a stale write after the restart"),
            Witness::RenewalFailed => f.write_str("a renewal that failed"),
            Witness::AtOnce(one, other) => write!(f, "two holds of a key at once: {one} and {other}"),
            Witness::Healed(kind) => write!(f, "every {kind} proved healed"),
            Witness::Proved(kind) => write!(f, "every {kind} proved"),
        }
    }
}

#[cfg(test)]
mod tests {
    use history::Arm;

    use super::*;

    #[test]
    fn a_witness_may_ask_for_a_violated_run() {
        let plan = crate::scenario::Scenario::of("redlock").unwrap().base;
        let checked = |text: &str| text.parse::<Witness>().and_then(|witness| witness.check(&plan));
        assert!(checked("verdict=violated").is_ok());
        for (text, words) in [("lokc=violated", "has no figure"), ("off.data=upheld", "can only be measured")] {
            let refused = checked(text).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_witness_about_a_node_needs_a_lock_node_of_the_plan() {
        let plan = crate::scenario::Scenario::of("redlock").unwrap().base;
        for word in ["granted-again", "granted-and-struck", "flushed", "restored"] {
            let checked = |node: &str| format!("{word}:{node}").parse::<Witness>().unwrap().check(&plan);
            assert!(checked("redis-1").is_ok(), "{word}");
            let refused = checked("redis-9").unwrap_err().to_string();
            assert!(refused.contains("`redis-9` is no lock node"), "{refused}");
        }
    }

    #[test]
    fn a_write_after_a_restart_needs_an_arm_that_registers_tokens() {
        let mut plan = crate::scenario::Scenario::of("redlock").unwrap().base;
        plan.arms = vec![Arm::Off, Arm::Reads];
        assert!(Witness::WriteAfterRestart.check(&plan).is_ok());
        plan.arms.pop();
        let refused = Witness::WriteAfterRestart.check(&plan).unwrap_err().to_string();
        assert!(refused.contains("`plan.arms`"), "{refused}");
    }
}
