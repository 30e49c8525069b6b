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

#[test]
fn a_deletion_that_was_lost_with_its_session_may_have_been_done() {
    use StoreAnswer::{Done, Gone};
    for (answer, first, after_a_loss) in [
        (Ok(()), Some(Ok(Done)), Some(Ok(Done))),
        (Err(Error::ConnectionLoss), None, None),
        (Err(Error::NoNode), Some(Ok(Gone)), Some(Ok(Done))),
        // The session had ended before the request left, so the znode was gone.
        (Err(Error::SessionExpired), Some(Err(Error::SessionExpired)), Some(Err(Error::ConnectionLoss))),
        (Err(Error::ClientClosed), Some(Err(Error::ClientClosed)), Some(Err(Error::ConnectionLoss))),
        (Err(Error::NoAuth), Some(Err(Error::NoAuth)), Some(Err(Error::NoAuth))),
    ] {
        assert_eq!(deleted(answer.clone(), false), first, "{answer:?}");
        assert_eq!(deleted(answer.clone(), true), after_a_loss, "{answer:?} after a loss");
    }
}

#[test]
fn a_session_that_was_given_up_during_its_check_is_not_kept_alive() {
    let (name, servers, watched) = (String::new(), String::new(), Watched::Predecessor);
    let ensemble = Ensemble { name, servers, watched, state: Mutex::default() };
    assert_eq!(ensemble.checked(LeaseId(7), raw_clock()), StoreAnswer::Leased(LeaseId(7), Duration::ZERO));
}
