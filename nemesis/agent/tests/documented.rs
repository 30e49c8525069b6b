//! The examples of orders and answers in `docs/worker-protocol.md`.

use agent::protocol::{Answer, Order};

#[test]
fn each_documented_order_and_answer_is_one() {
    let page = include_str!("../../../docs/worker-protocol.md").replace("\n     ", "");
    let kinds = ["    {\"packets\":", "    {\"target\":", "    {\"clocks\":"];
    let examples: Vec<_> = page.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind))).collect();
    assert!(examples.len() > 25, "{}", examples.len());
    for example in examples {
        let order = serde_json::from_str::<Order>(example);
        let answer = serde_json::from_str::<Answer>(example);
        assert!(order.is_ok() != answer.is_ok(), "{example}: {order:?}, {answer:?}");
    }
}
