use history::{Event, FaultKind, FaultPhase, HoldId, Mode};

use super::{FIRST, LAST, acquire_in, acquired, at, fault, granted, is_seen};

#[test]
fn holds_are_at_once_only_while_both_are_entitled_to_one_key() {
    use Mode::{Read, Write};
    for (key, mode, sent, expected, why) in [
        ("k0", Read, 2_000, true, "within the lease of 6 s"),
        ("k1", Read, 2_000, false, "another key"),
        ("k0", Write, 2_000, false, "another mode"),
        ("k0", Read, 5_000, false, "the first hold was released"),
    ] {
        let records = [
            acquire_in(1, 0, 1_000, "k0", Read),
            acquired(1, 1_010, 1, &FIRST),
            acquire_in(2, 1, sent, key, mode),
            acquired(2, sent + 10, 2, &LAST),
            at(4_000, Event::Release { hold: HoldId(1) }),
        ];
        assert_eq!(is_seen("at-once:read,read", &records), expected, "{why}");
    }
}

#[test]
fn no_hold_is_at_once_with_one_whose_client_was_killed_or_knows_its_loss() {
    for end in [
        fault(FaultKind::Kill, "worker-1", 1_500, FaultPhase::Requested { asked_ns: 1, hold: None }),
        at(1_500, Event::LossNoticed { hold: HoldId(1) }),
    ] {
        for (sent, expected) in [(1_200, true), (2_000, false)] {
            let records = [
                acquire_in(1, 0, 1_000, "k0", Mode::Read),
                acquired(1, 1_010, 1, &FIRST),
                acquire_in(2, 1, sent, "k0", Mode::Read),
                acquired(2, sent + 10, 2, &LAST),
                end.clone(),
            ];
            assert_eq!(is_seen("at-once:read,read", &records), expected, "sent at {sent}, {:?}", end.event);
        }
    }
}

#[test]
fn a_hold_is_entitled_until_the_end_of_its_promise_which_a_renewal_extends() {
    // Sent at 1 s with a lease of 6 s, of which the drift of clocks may take 62 ms.
    for (renewal, ok, expected, why) in [
        (None, 6_937, true, "before the promise end"),
        (None, 6_938, false, "the promise had ended"),
        (Some((3_000, 3_010)), 8_937, true, "the renewal was sent at 3 s"),
        (Some((3_000, 3_010)), 8_938, false, "the promise of the renewal had ended"),
        (Some((3_000, 6_938)), 7_000, false, "the renewal was answered too late"),
    ] {
        let mut records = vec![acquire_in(1, 0, 1_000, "k0", Mode::Read), acquired(1, 1_010, 1, &FIRST)];
        records.extend(renewal.into_iter().flat_map(|(sent, answered)| {
            let (hold, lease_ns, answers) = (HoldId(1), 6_000_000_000, granted(&FIRST));
            [at(sent, Event::Renew { hold }), at(answered, Event::Renewed { hold, lease_ns, answers })]
        }));
        records.extend([acquire_in(2, 1, ok - 5, "k0", Mode::Read), acquired(2, ok, 2, &LAST)]);
        assert_eq!(is_seen("at-once:read,read", &records), expected, "{why}");
    }
}
