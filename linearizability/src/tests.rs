//! The methods against each other, and against an oracle that tries every order.

use proptest::{prelude::*, test_runner::Config};

use crate::{
    check::{Method, Options, Verdict, check, check_object},
    holds,
    model::{Model, ModelKind},
    operation::{Action, Client, History, Operation, Value},
    reason::Reason,
    search::{Search, Searcher},
    zones,
};

/// The oracle's knowledge of an object: nothing is shared with `model.rs`.
#[derive(Debug, Clone, PartialEq)]
struct Truth {
    value: String,
    holder: Option<u32>,
    token: i64,
}

impl Truth {
    fn step(&self, history: &History, kind: ModelKind, operation: &Operation) -> Option<Truth> {
        let text = |value: Value| match value {
            Value::ABSENT => String::new(),
            value => history.values.text(value).to_owned(),
        };
        let mut next = self.clone();
        let is_possible = match operation.action {
            Action::Read(value) => self.value == text(value),
            Action::Write(value) => {
                next.value = text(value);
                true
            }
            Action::Cas(from, to) => {
                next.value = text(to);
                self.value == text(from)
            }
            Action::CasRefused(from) => self.value != text(from),
            Action::Append(value) => {
                next.value.push_str(&text(value));
                true
            }
            Action::Acquire(token) => {
                next.holder = Some(operation.client.0);
                let is_fenced = kind == ModelKind::FencedMutex;
                if is_fenced {
                    // Nobody knows the token, but it is larger than the last one.
                    next.token = token.unwrap_or(self.token + 1);
                }
                self.holder.is_none() && (!is_fenced || token.is_none_or(|token| token > self.token))
            }
            Action::Release => {
                next.holder = None;
                match kind {
                    ModelKind::Mutex => self.holder.is_some(),
                    _ => self.holder == Some(operation.client.0),
                }
            }
        };
        is_possible.then_some(next)
    }
}

/// Tries every order of every choice of the operations without an answer.
fn oracle(history: &History, kind: ModelKind, initial: Value, left: &[Operation], truth: Option<&Truth>) -> bool {
    let value = if initial == Value::ABSENT { String::new() } else { history.values.text(initial).to_owned() };
    let start = Truth { value, holder: None, token: i64::MIN };
    let truth = truth.unwrap_or(&start);
    let Some(end) = left.iter().filter_map(|operation| operation.answer).min() else { return true };
    (0..left.len()).filter(|n| left[*n].call < end).any(|n| {
        let mut rest = left.to_vec();
        let operation = rest.remove(n);
        truth.step(history, kind, &operation).is_some_and(|next| oracle(history, kind, initial, &rest, Some(&next)))
    })
}

/// An operation as it is drawn: client, action, how long it waits before its call and before its answer.
type Drawn = (u32, Action, u64, u64, bool);

/// Gives the operations their positions. Operations of one client do not overlap, but those of client 0 can.
fn placed(drawn: &[Drawn]) -> Vec<Operation> {
    let mut free: std::collections::BTreeMap<u32, u64> = Default::default();
    let mut operations = Vec::new();
    for (n, (client, action, wait, length, is_answered)) in drawn.iter().enumerate() {
        let start = free.get(client).copied().unwrap_or_default();
        // A time, then the number of the operation: no two positions are equal.
        let position = |time: u64, is_answer: u64| (time * 64 + n as u64) * 2 + is_answer;
        let (call, answer) = (start + wait, start + wait + length);
        free.insert(*client, if *client == 0 { call } else { answer + 1 });
        let answer = is_answered.then_some(position(answer, 1));
        operations.push(Operation { client: Client(*client), action: *action, call: position(call, 0), answer });
    }
    operations.sort_unstable_by_key(|operation| operation.call);
    operations
}

fn history() -> History {
    let mut history = History::default();
    for text in ["0", "1", "2", "3", "4", "5", "6", "7"] {
        history.values.value(text);
    }
    history.clients = (0..4).map(|n: u32| n.to_string().into()).collect();
    history
}

/// The n-th value; the first is none.
fn value(n: u32) -> Value {
    Value::of_index(n)
}

fn drawn(action: impl Strategy<Value = Action> + 'static, most: usize) -> impl Strategy<Value = Vec<Drawn>> {
    let one = (0..4_u32, action, 0..6_u64, 0..12_u64, prop::bool::weighted(0.8));
    prop::collection::vec(one, 1..=most)
}

fn register() -> impl Strategy<Value = Action> {
    let cas = (0..3_u32, 0..3_u32).prop_map(|(from, to)| Action::Cas(value(from), value(to)));
    let refused = (0..3_u32).prop_map(|from| Action::CasRefused(value(from)));
    let read = || (0..3_u32).prop_map(|n| Action::Read(value(n)));
    let write = || (1..3_u32).prop_map(|n| Action::Write(value(n)));
    prop_oneof![read(), read(), write(), write(), cas, refused]
}

fn kv() -> impl Strategy<Value = Action> {
    let append = || (1..3_u32).prop_map(|n| Action::Append(value(n)));
    let write = (0..3_u32).prop_map(|n| Action::Write(value(n)));
    prop_oneof![append(), (0..3_u32).prop_map(|n| Action::Read(value(n))), append(), write]
}

fn lock() -> impl Strategy<Value = Action> {
    let acquire = || prop::option::of(0..4_i64).prop_map(Action::Acquire);
    prop_oneof![acquire(), Just(Action::Release)]
}

fn options(model: ModelKind, initial: Value) -> Options {
    Options { model, initial, memory: 64 << 20, steps: u64::MAX }
}

fn is_linearizable(history: &History, operations: &[Operation], options: &Options, method: Method) -> bool {
    let mut left = options.steps;
    match check_object(history, Value::ABSENT, operations, options, &mut left, Some(method)) {
        Verdict::Linearizable => true,
        Verdict::NotLinearizable(_) => false,
        Verdict::Inconclusive(reason) => panic!("{reason}"),
    }
}

/// Tries every owner of each operation of client 3: one of the others, or another one.
fn some_owners_explain(history: &History, model: ModelKind, operations: &[Operation]) -> bool {
    let mut choices = vec![operations.to_vec()];
    for (n, _) in operations.iter().enumerate().filter(|(_, operation)| operation.client == Client(3)) {
        let mut owned = Vec::new();
        for choice in &choices {
            for owner in 0..4 {
                let mut choice = choice.clone();
                choice[n].client = Client(owner);
                owned.push(choice);
            }
        }
        choices = owned;
    }
    choices.iter().any(|choice| oracle(history, model, value(0), choice, None))
}

/// Compares the search with the oracle, and its reason with the truth.
fn compare(model: ModelKind, initial: Value, drawn: &[Drawn]) -> Result<(), TestCaseError> {
    let (history, operations) = (history(), placed(drawn));
    let expected = oracle(&history, model, initial, &operations, None);
    // One part for each answer.
    let mut ends: Vec<u64> = operations.iter().filter_map(|operation| operation.answer).chain([u64::MAX]).collect();
    ends.sort_unstable();
    let mut object = Model::new(model, initial, &history);
    let in_parts = Searcher::new(&mut object, &operations, 64 << 20, u64::MAX).search(&ends);
    prop_assert_eq!(in_parts == Search::Ordered, expected, "{:?}", operations);
    let (options, mut left) = (options(model, initial), u64::MAX);
    let found = check_object(&history, Value::ABSENT, &operations, &options, &mut left, Some(Method::Search));
    let Verdict::NotLinearizable(conflict) = found else {
        prop_assert_eq!((found, expected), (Verdict::Linearizable, true), "{:?}", operations);
        return Ok(());
    };
    prop_assert!(!expected, "{:?}", operations);
    let Reason::NoOrder { operation, .. } = conflict.reason else { panic!("the search gives no other reason") };
    // Up to the answer that it names, no order exists; without this operation, one does.
    let end = operations[operation].answer;
    let up_to = |is_within: fn(Option<u64>, Option<u64>) -> bool| -> Vec<Operation> {
        let called = operations.iter().filter(|operation| Some(operation.call) < end);
        let open = |operation: &Operation| Operation {
            answer: operation.answer.filter(|answer| is_within(Some(*answer), end)),
            ..*operation
        };
        called.map(open).collect()
    };
    prop_assert!(!oracle(&history, model, initial, &up_to(|answer, end| answer <= end), None), "{:?}", operations);
    prop_assert!(oracle(&history, model, initial, &up_to(|answer, end| answer < end), None), "{:?}", operations);
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 3_000, ..Config::default() })]

    #[test]
    fn the_search_finds_what_every_order_finds_of_a_register(drawn in drawn(register(), 7)) {
        compare(ModelKind::CasRegister, value(0), &drawn)?;
    }

    #[test]
    fn the_search_finds_what_every_order_finds_of_texts(drawn in drawn(kv(), 7)) {
        compare(ModelKind::Kv, value(0), &drawn)?;
    }

    #[test]
    fn the_search_finds_what_every_order_finds_of_a_lock(drawn in drawn(lock(), 7)) {
        for model in [ModelKind::Mutex, ModelKind::OwnerMutex, ModelKind::FencedMutex] {
            compare(model, value(0), &drawn)?;
        }
    }

    #[test]
    fn an_owner_that_nobody_names_is_any_owner(drawn in drawn(lock(), 5)) {
        let (mut history, operations) = (history(), placed(&drawn));
        history.unnamed.insert(Client(3));
        for model in [ModelKind::OwnerMutex, ModelKind::FencedMutex] {
            prop_assert_eq!(
                is_linearizable(&history, &operations, &options(model, value(0)), Method::Search),
                some_owners_explain(&history, model, &operations),
                "{:?}", operations
            );
        }
    }

    #[test]
    fn zones_find_what_the_search_finds(
        drawn in drawn((0..6_u32).prop_map(|n| Action::Read(value(n))), 12),
        writes in prop::collection::vec(0..12_usize, 0..5),
    ) {
        let mut drawn = drawn;
        for (n, place) in writes.iter().enumerate() {
            if let Some(one) = drawn.get_mut(*place) {
                one.1 = Action::Write(value(n as u32 + 1));
            }
        }
        let (history, operations) = (history(), placed(&drawn));
        let options = options(ModelKind::Register, value(0));
        prop_assert!(zones::fits(&operations, value(0)));
        prop_assert_eq!(
            is_linearizable(&history, &operations, &options, Method::Zones),
            is_linearizable(&history, &operations, &options, Method::Search),
            "{:?}", operations
        );
        if let Err(Reason::TwoValues { from, to, between: [first, last] }) = zones::check(&operations, value(0)) {
            // The operations that the message names, and the writes of their values, have no order either.
            let value_of = |index: usize| match operations[index].action {
                Action::Read(value) | Action::Write(value) => value,
                _ => panic!("a register has no other operation"),
            };
            let is_told = |index: usize, action: Action| {
                from == Some(index)
                    || [to, first, last].contains(&index)
                    || [to, first].iter().any(|told| action == Action::Write(value_of(*told)))
            };
            let all = operations.iter().enumerate();
            let told = all.filter(|(index, operation)| is_told(*index, operation.action));
            let told: Vec<Operation> = told.map(|(_, operation)| *operation).collect();
            prop_assert!(!is_linearizable(&history, &told, &options, Method::Search), "{:?} of {:?}", told, operations);
        }
    }

    #[test]
    fn holds_find_what_the_search_finds(
        turns in prop::collection::vec((0..4_u32, 0..6_u64, 0..12_u64, prop::bool::weighted(0.8)), 1..14),
    ) {
        let mut is_held = [false; 4];
        let mut drawn: Vec<Drawn> = Vec::new();
        for (client, wait, length, is_answered) in turns {
            let held = &mut is_held[client as usize];
            let action = if *held { Action::Release } else { Action::Acquire(None) };
            *held = !*held;
            drawn.push((client, action, wait, length, is_answered));
        }
        let (history, operations) = (history(), placed(&drawn));
        if holds::pair(&operations).is_none() {
            return Ok(());
        }
        let options = options(ModelKind::OwnerMutex, value(0));
        prop_assert_eq!(
            is_linearizable(&history, &operations, &options, Method::Holds),
            is_linearizable(&history, &operations, &options, Method::Search),
            "{:?}", operations
        );
    }
}

#[test]
fn operations_out_of_their_order_are_not_judged() {
    let write = |call: u64, answer: u64| {
        let (client, action) = (Client(0), Action::Write(value(1)));
        Operation { client, action, call, answer: Some(answer) }
    };
    for operations in [vec![write(4, 3)], vec![write(4, 4)], vec![write(4, 5), write(1, 2)]] {
        let objects = vec![(Value::ABSENT, operations)];
        let verdict = check(&History { objects, ..history() }, &options(ModelKind::Register, value(0)));
        assert!(matches!(verdict, Verdict::Inconclusive(_)), "{verdict:?}");
    }
}
