//! Limits of seeds, and of the times for which clients wait.

use super::*;

#[test]
fn a_client_waits_ten_milliseconds_to_a_day_and_renews_for_ten_minutes_at_most() {
    type Change = fn(&mut Workload, Option<Duration>);
    const MINUTE: u64 = 60_000_000_000;
    let table: [(&str, u64, Change); 4] = [
        ("resend", 1_440 * MINUTE, |w, time| w.resend = time),
        ("cancel", 1_440 * MINUTE, |w, time| w.cancel = time),
        ("renew-for", 10 * MINUTE, |w, time| w.renew_for = time),
        ("patience", 1_440 * MINUTE, |w, time| (w.keys, w.locks_per_section, w.patience) = (2, 2, time)),
    ];
    for (field, longest, change) in table {
        let with = |nanos| {
            let mut plan = plan();
            change(&mut plan.workload, Some(Duration::from_nanos(nanos)));
            plan.validate().map_err(|error| error.field)
        };
        for possible in [10_000_000, longest] {
            assert_eq!(with(possible), Ok(()), "{field}: {possible} ns");
        }
        for refused in [0, 9_999_999, longest + 1, u64::MAX] {
            assert_eq!(with(refused), Err(field), "{refused} ns");
        }
    }
}

#[test]
fn a_seed_is_a_number_that_every_reader_of_json_keeps() {
    let with = |seed| Plan { seed, ..plan() }.validate().map_err(|error| error.field);
    assert_eq!(with(1 << 53), Ok(()));
    assert_eq!(with((1 << 53) + 1), Err("seed"));
}
