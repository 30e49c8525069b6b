//! The verdicts that a property can have in the runs of a plan.

use checker::Verdict::{self, Inconclusive, Measured, NotApplicable, Upheld, Violated};
use history::{Arm, Plan, Tokens};
use locks::{Capability, Client};

use crate::scenario::Scenario;

/// The verdicts of a property that is judged in every run.
const JUDGED: &[Verdict] = &[Upheld, Violated, Inconclusive];
/// The verdicts of a property that is judged in the runs that have something to judge.
const JUDGED_IF_ANY: &[Verdict] = &[Upheld, Violated, Inconclusive, Measured];

/// Returns the verdicts that a property can have in a run of `plan`, and the reason. None if any verdict is possible,
/// as far as the plan says. A record may be broken, or come from another program.
pub fn possible_verdicts(path: &str, plan: &Plan) -> Option<(&'static [Verdict], &'static str)> {
    let of_arm = path.split_once('.').and_then(|(arm, kind)| Some((arm.parse::<Arm>().ok()?, kind)));
    Some(match (path, of_arm) {
        ("lock" | "resource", _) => (JUDGED, "it is judged in every run"),
        ("tokens", _) => match plan.tokens {
            Tokens::None => (&[NotApplicable], "the plan has no tokens"),
            _ => (JUDGED, "the plan has tokens, so they are judged"),
        },
        (_, Some((_, "fence"))) => (JUDGED, "the fence of this arm is judged in every run"),
        (_, Some((arm, "data"))) => match arm.keeps_data() {
            true => (JUDGED, "lost updates are judged on this arm"),
            // Violated, if the resource breaks the arm's own rule.
            false => (&[Measured, Violated], "lost updates are only measured on this arm"),
        },
        ("release", _) => match plan.program {
            Some(_) => (&[NotApplicable], "a client program does not tell the answers of the servers"),
            None => (&[Upheld, Violated, Inconclusive, NotApplicable], "it is judged by the answers of the servers"),
        },
        ("liveness", _) => (JUDGED_IF_ANY, "it is measured if a run has nothing to judge"),
        ("reentry", _) => (JUDGED_IF_ANY, "it is measured if no client acquired its own hold again"),
        ("fairness", _) => match may_wait_in_a_queue(plan) {
            true => (JUDGED_IF_ANY, "it is measured if no attempt waited in a queue"),
            false => (&[Measured], "no attempt of this lock says that it waits in a queue"),
        },
        ("activity", _) => (&[Upheld, Inconclusive], "a run that did too little is inconclusive"),
        ("recovery", _) => (&[Measured, NotApplicable], "it is only measured, if a fault was healed"),
        _ => return None,
    })
}

/// Returns whether an attempt may report that it waits in a queue. The record of another program may give any name to a
/// lock with a queue. So a lock without a queue is known by its name and by the facts about its servers.
fn may_wait_in_a_queue(plan: &Plan) -> bool {
    let is_known = || Scenario::of(&plan.backend).is_ok_and(|known| known.base.servers == plan.servers);
    let client = Client::named(&plan.backend).filter(|_| is_known());
    // Holds that share a session wait in the queue of their server.
    let queues = |client: &Client| client.has(Capability::FairQueue) || client.has(Capability::Sessions);
    plan.program.is_none() && client.is_none_or(|client| plan.servers.shows_waiting && queues(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The usual plan of a backend.
    fn plan(backend: &str) -> Plan {
        Scenario::of(backend).unwrap().base
    }

    fn fairness(plan: &Plan) -> &'static [Verdict] {
        possible_verdicts("fairness", plan).unwrap().0
    }

    #[test]
    fn only_a_lock_without_a_queue_is_never_judged_for_fairness() {
        for backend in ["redis", "redlock", "redis-replicated", "postgres", "postgres-row", "memory"] {
            assert_eq!(fairness(&plan(backend)), [Measured], "{backend}");
        }
        // Its server does not answer until the client holds the lock.
        assert_eq!(fairness(&plan("etcd-server-lock")), [Measured]);
        for backend in ["etcd", "zookeeper", "postgres-advisory"] {
            assert_eq!(fairness(&plan(backend)), JUDGED_IF_ANY, "{backend}");
        }
        // Records of other programs: of a lock with a name of its own, and of one with the name of ours.
        let own = Plan { backend: "my-lock".into(), ..plan("redis") };
        assert_eq!(fairness(&own), JUDGED_IF_ANY);
        let mut namesake = plan("redis");
        namesake.servers.port = 1;
        assert_eq!(fairness(&namesake), JUDGED_IF_ANY);
    }

    #[test]
    fn every_property_names_the_verdicts_that_it_can_have() {
        for (name, _) in checker::PROPERTIES {
            let path = if ["fence", "data"].contains(name) { format!("reads.{name}") } else { (*name).to_owned() };
            assert!(possible_verdicts(&path, &plan("etcd")).is_some(), "{path}");
        }
        assert!(possible_verdicts("verdict", &plan("etcd")).is_none());
    }
}
