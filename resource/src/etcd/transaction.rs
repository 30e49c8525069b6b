//! The transactions: names of keys, conditions, and the state that a reading has found.
//!
//! etcd compares values as bytes, so numbers are written with twenty digits.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use history::{Arm, Comparison, Key, Token, Version};

use crate::policy::Policy;
use crate::request::{Action, Proposal, Request};

/// The number of the last decision.
const LAST: &str = "harness-resource/last";

/// The parts of an arm's state, each a key of its own.
#[derive(Clone, Copy)]
enum Part {
    Value,
    Version,
    Fence,
    Owner,
    Claim,
}

impl Part {
    const ALL: [Part; 5] = [Part::Value, Part::Version, Part::Fence, Part::Owner, Part::Claim];

    /// The name of the key of this part. The key of the resource comes last, because it may contain a slash.
    fn of(self, arm: Arm, key: &Key) -> String {
        let part = match self {
            Part::Value => "value",
            Part::Version => "version",
            Part::Fence => "fence",
            Part::Owner => "owner",
            Part::Claim => "claim",
        };
        format!("harness-resource/{arm}/{part}/{key}")
    }
}

/// Writes a number so that the order of the bytes is the order of the numbers.
fn digits(number: u64) -> String {
    format!("{number:020}")
}

/// Writes a hold. No hold is a text that no hold has.
fn hold_text(request: &Request) -> String {
    request.hold.map_or("none".to_owned(), |hold| digits(hold.0))
}

/// The state of one arm of a key.
#[derive(Debug, Clone, Default)]
pub(super) struct FoundArm {
    pub value: Option<String>,
    pub version: Version,
    pub fence: Option<Token>,
}

/// The state of a key at one revision of the store.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub last: Version,
    /// False before the first use of the key.
    pub knows_key: bool,
    pub arms: BTreeMap<Arm, FoundArm>,
    /// The name of the lock key whose create revision is the request's token; none if the key is gone.
    lock_key: Option<Vec<u8>>,
}

impl Snapshot {
    /// Reads the answer to [`reading`].
    pub(super) fn new(policy: &Policy, request: &Request, answer: &TxnResponse) -> Result<Snapshot, String> {
        let mut found = answer.op_responses().into_iter();
        let mut next = || match found.next() {
            Some(TxnOpResponse::Get(got)) => Ok(got.kvs().to_vec()),
            other => Err(format!("a reading was answered by {other:?}")),
        };
        let last = number(text(&next()?)?.as_deref())?.unwrap_or_default();
        let token = request.token.and_then(|token| i64::try_from(token.0).ok());
        let lock_keys = next()?;
        let lock_key = lock_keys.iter().find(|kv| Some(kv.create_revision()) == token).map(|kv| kv.key().to_vec());
        let (mut arms, mut knows_key) = (BTreeMap::new(), true);
        for &arm in policy.arms() {
            let (value, version, fence) = (text(&next()?)?, text(&next()?)?, text(&next()?)?);
            knows_key &= version.is_some();
            let version = Version(number(version.as_deref())?.unwrap_or_default());
            let value = value.filter(|_| version > Version(0));
            arms.insert(arm, FoundArm { value, version, fence: number(fence.as_deref())?.map(Token) });
        }
        Ok(Snapshot { last: Version(last), knows_key, arms, lock_key })
    }
}

/// Returns the value of the first key that was found.
fn text(found: &[KeyValue]) -> Result<Option<String>, String> {
    found.first().map(|kv| kv.value_str().map(str::to_owned)).transpose().map_err(|error| error.to_string())
}

fn number(text: Option<&str>) -> Result<Option<u64>, String> {
    let text = text.filter(|text| !text.is_empty());
    text.map(|text| text.parse().map_err(|_| format!("`{text}` is no number"))).transpose()
}

/// Sets the number of the last decision in a new store.
pub(super) fn first() -> Txn {
    let is_new = Compare::create_revision(LAST, CompareOp::Equal, 0);
    Txn::new().when([is_new]).and_then([TxnOp::put(LAST, digits(0), None)])
}

/// Sets all parts of a key at its first use, because etcd compares no value with an absent one.
pub(super) fn first_use(policy: &Policy, request: &Request) -> Txn {
    let mut puts = Vec::new();
    for &arm in policy.arms() {
        for part in Part::ALL {
            let first = if matches!(part, Part::Version) { digits(0) } else { String::new() };
            puts.push(TxnOp::put(part.of(arm, &request.key), first, None));
        }
    }
    let version = Part::Version.of(policy.arms()[0], &request.key);
    Txn::new().when([Compare::create_revision(version, CompareOp::Equal, 0)]).and_then(puts)
}

/// Reads the number, the lock keys below `lock_keys`, and the state of the request's key, at one revision.
pub(super) fn reading(policy: &Policy, request: &Request, lock_keys: Vec<u8>) -> Txn {
    let names = GetOptions::new().with_prefix().with_keys_only();
    let mut gets = vec![TxnOp::get(LAST, None), TxnOp::get(lock_keys, Some(names))];
    for &arm in policy.arms() {
        let parts = [Part::Value, Part::Version, Part::Fence];
        gets.extend(parts.map(|part| TxnOp::get(part.of(arm, &request.key), None)));
    }
    Txn::new().and_then(gets)
}

/// Decides `request` as the number after `before`: on every arm a nested transaction with the arm's condition.
pub(super) fn writing(policy: &Policy, request: &Request, before: &Snapshot, number: Version) -> Txn {
    let is_next = Compare::value(LAST, CompareOp::Equal, digits(before.last.0));
    let mut operations = vec![TxnOp::put(LAST, digits(number.0), None)];
    for &arm in policy.arms() {
        let decided = match &request.action {
            Action::Read => read(arm, request),
            Action::Write(arms) => write(policy, arm, request, &arms[&arm], before, number),
        };
        operations.extend(decided.map(TxnOp::txn));
    }
    Txn::new().when([is_next]).and_then(operations)
}

/// Registers a read on the arms that register reads.
fn read(arm: Arm, request: &Request) -> Option<Txn> {
    let part = |part: Part| part.of(arm, &request.key);
    match arm {
        Arm::Reads => {
            let token = digits(request.token?.0);
            let is_larger = Compare::value(part(Part::Fence), CompareOp::Less, token.as_str());
            let owner = TxnOp::put(part(Part::Owner), hold_text(request), None);
            Some(Txn::new().when([is_larger]).and_then([TxnOp::put(part(Part::Fence), token, None), owner]))
        }
        Arm::Claim if request.hold.is_some() => {
            Some(Txn::new().and_then([TxnOp::put(part(Part::Claim), hold_text(request), None)]))
        }
        _ => None,
    }
}

/// Writes on `arm` under the arm's condition; none if the arm refuses without asking the store.
fn write(
    policy: &Policy,
    arm: Arm,
    request: &Request,
    proposal: &Proposal,
    before: &Snapshot,
    number: Version,
) -> Option<Txn> {
    let part = |part: Part| part.of(arm, &request.key);
    let mut puts = vec![
        TxnOp::put(part(Part::Value), proposal.value.as_str(), None),
        TxnOp::put(part(Part::Version), digits(number.0), None),
    ];
    match arm {
        Arm::Off => Some(Txn::new().and_then(puts)),
        Arm::Writes | Arm::Reads => {
            let token = digits(request.token?.0);
            let is_fence = |op| Compare::value(part(Part::Fence), op, token.as_str());
            puts.push(TxnOp::put(part(Part::Fence), token.as_str(), None));
            puts.push(TxnOp::put(part(Part::Owner), hold_text(request), None));
            let larger = Txn::new().when([is_fence(CompareOp::Less)]).and_then(puts.clone());
            let is_owner = Compare::value(part(Part::Owner), CompareOp::Equal, hold_text(request));
            let equal = Txn::new().when([is_fence(CompareOp::Equal), is_owner]).and_then(puts);
            match policy.comparison() {
                Comparison::Default => Some(larger.or_else([TxnOp::txn(equal)])),
                Comparison::Strict => Some(larger),
            }
        }
        Arm::Cas => {
            let base = digits(proposal.base?.0);
            Some(Txn::new().when([Compare::value(part(Part::Version), CompareOp::Equal, base)]).and_then(puts))
        }
        Arm::Claim => {
            request.hold?;
            let is_own = Compare::value(part(Part::Claim), CompareOp::Equal, hold_text(request));
            Some(Txn::new().when([is_own]).and_then(puts))
        }
        // No value of the store is a clock, so the process compares.
        Arm::Deadline => request.deadline.filter(|deadline| deadline.is_kept()).map(|_| Txn::new().and_then(puts)),
        Arm::Guard => {
            // A key that is gone never comes back at its revision, so the arm refuses without asking again.
            let lock_key = before.lock_key.as_deref()?;
            let revision = i64::try_from(request.token?.0).ok()?;
            let exists = Compare::create_revision(lock_key, CompareOp::Equal, revision);
            Some(Txn::new().when([exists]).and_then(puts))
        }
    }
}
