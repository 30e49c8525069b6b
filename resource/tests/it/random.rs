//! Random requests to a resource over a real store, whose model is the rule.

use std::collections::BTreeMap;

use history::{Arm, Comparison, Deadline, HoldId, Key, OpId, Token, Version};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use resource::{Action, Admission, Client, Policy, Proposal, Request, State};

use crate::real::PATIENCE;
use crate::served::Served;

/// The arms that every store has.
pub const ARMS: [Arm; 6] = [Arm::Off, Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim, Arm::Deadline];

/// The two policies that together have every arm of `arms` and both comparisons.
pub fn policies(arms: &[Arm]) -> [Policy; 2] {
    let strict = [Arm::Off, Arm::Writes, Arm::Cas, Arm::Claim, Arm::Deadline];
    [Policy::new(arms, Comparison::Default).unwrap(), Policy::new(&strict, Comparison::Strict).unwrap()]
}

/// Requests of a few holds on two keys, with tokens that collide and go back, operations that arrive again, and
/// operations whose number is used for another content.
pub fn requests(policy: &Policy, length: usize) -> impl Strategy<Value = Vec<Request>> {
    let ids = (0..2_u8, proptest::option::of(0..6_u64), proptest::option::of(0..40_u64));
    let content = (0..8_u64, proptest::option::weighted(0.7, (0..3_u64, "[0-9é'\\\\]{0,3}")));
    let arms = policy.arms().to_vec();
    let request = (ids, content, any::<u64>()).prop_map(move |((key, hold, op), (token, write), large)| {
        let proposal = |(base, value): (u64, String)| Proposal { base: Some(Version(base)), value };
        let action = write.map_or(Action::Read, |write| {
            Action::Write(arms.iter().map(|arm| (*arm, proposal(write.clone()))).collect())
        });
        // Also numbers beyond 63 bits, which Postgres's own integers do not have.
        let far = |number: u64| if large % 16 == 0 { u64::MAX - number } else { number };
        let hold = hold.map(|hold| HoldId(far(hold)));
        let op = op.filter(|_| hold.is_some()).map(OpId);
        // The clock shows 100 s.
        let deadline = Deadline { until_us: 99_999_999 + large % 3, read_us: 100_000_000 };
        let deadline = matches!(action, Action::Write(_)).then_some(deadline);
        Request { key: Key::new(format!("k{key}")), hold, op, token: Some(Token(far(token))), deadline, action }
    });
    proptest::collection::vec(request, length)
}

/// Sends `request`, whose answer nobody compares: the log has the decision.
pub async fn send(client: &Client, request: &Request) -> bool {
    let Request { key, hold, op, token, deadline, action } = request;
    match action {
        Action::Read => client.read(key, *token, *hold, *op).await.is_ok(),
        Action::Write(arms) => {
            let value = |(arm, proposal): (&Arm, &Proposal)| (*arm, (proposal.base.unwrap(), proposal.value.clone()));
            let values: BTreeMap<_, _> = arms.iter().map(value).collect();
            client.write(key, *token, *hold, *op, deadline.map(|d| d.until_us), &values).await.is_ok()
        }
    }
}

/// Sends `length` random requests, and compares each entry of the log with the decision of the rule.
pub async fn decides_as_the_rule_does(served: &Served, policy: &Policy, length: usize, runner: &mut TestRunner) {
    let client = Client::new(&served.url(), PATIENCE).unwrap();
    let mut model = State::default();
    let (mut refused, mut repeats) = (0, 0);
    let mut sent: Vec<Request> = Vec::new();
    for mut request in requests(policy, length).new_tree(runner).unwrap().current() {
        // The base is how many versions ago it was current on `cas`.
        let current = model.key(&request.key).and_then(|key| key.get(&Arm::Cas)).map_or(0, |arm| arm.version.0);
        if let Action::Write(arms) = &mut request.action {
            let back = |base: Version| Version(current.saturating_sub(base.0));
            arms.values_mut().for_each(|proposal| proposal.base = proposal.base.map(back));
        }
        // One request in five arrives again.
        if sent.len() % 5 == 4 {
            request = sent[sent.len() / 2].clone();
        }
        sent.push(request.clone());
        let decided = served.decided();
        let is_answered = send(&client, &request).await;
        let expected = model.decide(policy, &request).ok();
        assert_eq!(is_answered, expected.is_some(), "{request:?}");
        let log = served.log.lock().unwrap();
        let logged: &[Admission] = &log[decided..];
        assert_eq!(logged, expected.as_slice(), "{request:?}");
        repeats += logged.iter().filter(|admission| admission.repeat).count();
        refused += logged.iter().flat_map(|admission| &admission.arms).filter(|arm| !arm.admitted).count();
    }
    assert!(refused * 3 > length && repeats * 75 > length, "{refused} refusals, {repeats} repeats");
}
