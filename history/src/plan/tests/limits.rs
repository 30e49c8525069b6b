//! Limits of seeds, and of the times for which clients wait.

use super::*;

#[test]
fn a_client_waits_ten_milliseconds_or_more() {
    type Change = fn(&mut Workload, Option<Duration>);
    let table: [(&str, Change); 4] = [
        ("resend", |w, time| w.resend = time),
        ("cancel", |w, time| w.cancel = time),
        ("renew-for", |w, time| w.renew_for = time),
        ("patience", |w, time| (w.keys, w.locks_per_section, w.patience) = (2, 2, time)),
    ];
    for (field, change) in table {
        let with = |nanos| {
            let mut plan = plan();
            change(&mut plan.workload, Some(Duration::from_nanos(nanos)));
            plan.validate().map_err(|error| error.field)
        };
        assert_eq!(with(10_000_000), Ok(()), "{field}");
        for short in [0, 9_999_999] {
            assert_eq!(with(short), Err(field), "{short} ns");
        }
    }
}

#[test]
fn a_seed_is_a_number_that_every_reader_of_json_keeps() {
    let with = |seed| Plan { seed, ..plan() }.validate().map_err(|error| error.field);
    assert_eq!(with(1 << 53), Ok(()));
    assert_eq!(with((1 << 53) + 1), Err("seed"));
}
