use super::*;

#[test]
fn the_predecessor_is_the_newest_older_znode_whose_mode_conflicts() {
    let children = [
        "d-0000000002",
        "c~read-0000000010",
        "lock",
        "a~read-0000000009",
        "b~read-0000000011",
        "e-0000000012",
        "f~read-0000000013",
        "g~intent-read-0000000014",
    ]
    .map(str::to_owned);
    for (own, mode, expected) in [
        // The znodes between do not conflict.
        ("b~read-0000000011", Mode::Read, Some("d-0000000002")),
        ("g~intent-read-0000000014", Mode::IntentRead, Some("e-0000000012")),
        // Names sort otherwise than sequences.
        ("e-0000000012", Mode::Write, Some("b~read-0000000011")),
        ("d-0000000002", Mode::Write, None),
        ("lock", Mode::Write, None),
    ] {
        assert_eq!(predecessor(own, mode, &children), expected, "{own}");
    }
}
