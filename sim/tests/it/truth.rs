//! The truth that the self-test compares the verdicts with.

use sim::{Setup, simulate};

use crate::plans::plan;

/// Without a fault, every hold owns its key when it is claimed, and acts as its owner.
#[test]
fn every_hold_of_a_session_owns_its_own_key() {
    for session in [false, true] {
        let mut plan = plan("etcd", "none", 7);
        (plan.workload.keys, plan.workload.locks_per_section, plan.workload.session) = (3, 2, session);
        (plan.workload.clients_per_worker, plan.workload.rate_per_s) = (2, 6.0);
        plan.validate().expect("a valid plan");
        let setup =
            Setup { run: "test", plan: &plan, backend: "etcd", resource_bug: None, redraw: None, with_truth: true };
        let outcome = simulate(&setup, &mut |_| {}).expect("it runs to its end");
        let truth = outcome.truth.expect("the truth was asked for");
        assert!(truth.claims.len() > 10, "{}", truth.claims.len());
        let strangers = truth.claims.iter().filter(|claim| !claim.owns).count();
        assert_eq!(strangers, 0, "session: {session}, of {} claims", truth.claims.len());
        assert!(truth.acts.iter().all(|act| act.owns), "session: {session}");
    }
}
