use locks::{Token, planted::PlantedStep};

use super::*;

const LONG: Duration = Duration::from_secs(10_000);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn k() -> Key {
    Key::new("k")
}

fn owner(name: &str) -> Owner {
    Owner::new(name)
}

fn acquire(name: &str, lease: Duration) -> Step {
    Step::Acquire(k(), owner(name), lease)
}

#[test]
fn a_key_is_there_in_its_last_millisecond_and_gone_in_the_next() {
    let mut node = RedisModel::new(Persistence::No);
    // Set at 7 ms and a bit for 1 ms and a bit: the bit of the clock is dropped, that of the lease rounded up.
    node.apply(&acquire("a", Duration::from_micros(1_001)), Duration::from_micros(7_999));
    assert_eq!(node.owner(&k(), Duration::from_micros(9_999)), Some(&owner("a")));
    assert_eq!(node.owner(&k(), ms(10)), None);
    assert_eq!(node.apply(&acquire("b", ms(1)), Duration::from_micros(9_999)), StepAnswer::Refused);
    assert_eq!(node.apply(&acquire("b", ms(1)), ms(10)), StepAnswer::Granted(Token(2)));
}

#[test]
fn an_extension_never_shortens_but_a_set_expiry_does() {
    let mut node = RedisModel::new(Persistence::No);
    node.apply(&acquire("a", ms(100)), ms(0));
    assert_eq!(node.apply(&Step::Extend(k(), owner("a"), ms(10)), ms(1)), StepAnswer::Done);
    assert!(node.owner(&k(), ms(100)).is_some());
    assert_eq!(node.apply(&Step::Extend(k(), owner("a"), ms(100)), ms(2)), StepAnswer::Done);
    assert!(node.owner(&k(), ms(102)).is_some() && node.owner(&k(), ms(103)).is_none());
    assert_eq!(node.apply(&PlantedStep::SetExpiry(k(), owner("a"), ms(10)).into(), ms(3)), StepAnswer::Done);
    assert!(node.owner(&k(), ms(13)).is_some() && node.owner(&k(), ms(14)).is_none());
}

#[test]
fn a_key_that_never_runs_out_gets_an_end_by_an_extension() {
    let mut node = RedisModel::new(Persistence::No);
    node.apply(&PlantedStep::AcquireForever(k(), owner("a")).into(), ms(0));
    assert!(node.owner(&k(), Duration::MAX).is_some());
    node.apply(&Step::Extend(k(), owner("a"), ms(5)), ms(0));
    assert!(node.owner(&k(), ms(6)).is_none());
}

#[test]
fn a_clock_that_goes_back_brings_a_key_back_unless_it_was_swept() {
    let mut node = RedisModel::new(Persistence::No);
    node.apply(&acquire("a", ms(10)), ms(0));
    assert_eq!(node.owner(&k(), ms(1_000)), None);
    assert_eq!(node.owner(&k(), ms(5)), Some(&owner("a")));
    node.sweep(ms(10));
    assert_eq!(node.owner(&k(), ms(5)), Some(&owner("a")));
    node.sweep(ms(11));
    assert_eq!(node.owner(&k(), ms(5)), None);
}

#[test]
fn an_expired_lock_that_is_kept_comes_back_with_the_clock_unless_another_took_its_place() {
    for is_taken in [false, true] {
        let mut node = RedisModel::new(Persistence::Always).keeping_expired(true);
        node.apply(&acquire("a", ms(100)), ms(0));
        // The clock jumps forwards. No step of the former owner finds the lock.
        for step in [Step::Extend(k(), owner("a"), LONG), Step::Release(k(), owner("a"))] {
            assert_eq!(node.apply(&step, ms(1_000)), StepAnswer::Refused);
        }
        if is_taken {
            assert_eq!(node.apply(&acquire("b", ms(100)), ms(1_000)), StepAnswer::Granted(Token(2)));
            node.apply(&Step::Release(k(), owner("b")), ms(1_000));
        }
        node.sweep(ms(1_000));
        assert_eq!(node.owner(&k(), ms(1_000)), None);
        // The clock is set right.
        assert_eq!(node.owner(&k(), ms(50)), (!is_taken).then_some(&owner("a")));
        let answer = node.apply(&acquire("c", ms(100)), ms(50));
        assert_eq!(answer, if is_taken { StepAnswer::Granted(Token(3)) } else { StepAnswer::Refused });
    }
}

/// One lock and one count in each of the seconds 1, 2 and 3; what is left of them after a restart at 3.9 s.
fn left(persistence: Persistence, data: Data) -> (Option<Owner>, u64) {
    let mut node = RedisModel::new(persistence);
    for (second, name) in [(1, "a"), (2, "b"), (3, "c")] {
        node.apply(&PlantedStep::Overwrite(k(), owner(name), LONG).into(), ms(second * 1_000));
        node.apply(&PlantedStep::CountOnly(k()).into(), ms(second * 1_000 + 500));
    }
    node.restart(data, ms(3_900));
    (node.owner(&k(), ms(4_000)).cloned(), node.counter(&k()))
}

#[test]
fn what_a_restart_leaves_depends_on_what_was_written_and_what_was_synced() {
    let all = (Some(owner("c")), 6);
    let table = [
        (Persistence::No, [(None, 0), (None, 0)]),
        (Persistence::Snapshot, [(None, 0), (None, 0)]),
        (Persistence::Everysec, [all.clone(), (Some(owner("b")), 4)]),
        (Persistence::Always, [all.clone(), all]),
    ];
    for (persistence, [kept, synced]) in table {
        assert_eq!(left(persistence, Data::Kept), kept, "{persistence:?}");
        assert_eq!(left(persistence, Data::Synced), synced, "{persistence:?}");
        assert_eq!(left(persistence, Data::Lost), (None, 0), "{persistence:?}");
    }
}

#[test]
fn a_snapshot_is_made_so_long_after_the_last_one_if_anything_has_changed() {
    let counter_after = |steps_ms: &[u64], killed_ms| {
        let mut node = RedisModel::new(Persistence::Snapshot);
        for at in steps_ms {
            node.apply(&PlantedStep::CountOnly(k()).into(), ms(*at));
        }
        node.restart(Data::Kept, ms(killed_ms));
        node.counter(&k())
    };
    assert_eq!(counter_after(&[1_000, 5_000], 7_100), 0, "it is not due");
    assert_eq!(counter_after(&[1_000, 5_000], 7_101), 2);
    assert_eq!(counter_after(&[1_000, 5_000, 7_200], 13_100), 2, "the next one is not due");
    assert_eq!(counter_after(&[1_000, 5_000, 7_200], 13_101), 3);
    for (begun_ms, due_ms) in [(1_000, 7_100), (1_999, 7_100), (2_000, 8_100)] {
        let left = [due_ms, due_ms + 1].map(|killed_ms| counter_after(&[begun_ms], killed_ms));
        assert_eq!(left, [0, 1], "whole seconds count, begun at {begun_ms} ms");
    }
    assert_eq!(counter_after(&[1_000, 20_000], 20_000), 1, "made before the step that comes late");
}

#[test]
fn a_server_that_was_started_long_ago_makes_one_as_soon_as_anything_changes() {
    let mut node = RedisModel::new(Persistence::Snapshot).started(ms(0));
    node.apply(&acquire("a", LONG), ms(7_010));
    node.apply(&Step::Release(k(), owner("a")), ms(7_013));
    node.apply(&PlantedStep::CountOnly(k()).into(), ms(7_200));
    node.restart(Data::Kept, ms(7_300));
    assert_eq!((node.owner(&k(), ms(7_300)), node.counter(&k())), (None, 1));
}

#[test]
fn what_was_taken_over_is_on_the_disk() {
    for persistence in [Persistence::No, Persistence::Snapshot] {
        let mut node = RedisModel::new(persistence);
        node.raise_counter(&k(), 7);
        node.apply(&acquire("a", LONG), ms(0));
        assert_eq!(node.counter(&k()), 8);
        node.restart(Data::Kept, ms(100));
        assert_eq!((node.owner(&k(), ms(100)), node.counter(&k())), (None, 7), "{persistence:?}");
    }
}

#[test]
fn what_was_restored_is_on_the_disk() {
    let mut node = RedisModel::new(Persistence::Snapshot);
    node.apply(&PlantedStep::CountOnly(k()).into(), ms(0));
    node.restart(Data::Kept, ms(6_200));
    node.restart(Data::Kept, ms(6_700));
    assert_eq!(node.counter(&k()), 1);
}

#[test]
fn a_second_without_steps_syncs_too_but_not_while_the_wall_clock_has_gone_back() {
    let mut node = RedisModel::new(Persistence::Everysec);
    node.apply(&acquire("a", LONG), ms(5_500));
    node.restart(Data::Synced, ms(6_000));
    assert_eq!(node.owner(&k(), ms(6_000)), Some(&owner("a")));
    node.apply(&PlantedStep::CountOnly(k()).into(), ms(6_100));
    node.apply(&PlantedStep::CountOnly(k()).into(), ms(2_000));
    node.restart(Data::Synced, ms(5_999));
    assert_eq!(node.counter(&k()), 1, "its clock has not yet shown 7 s");
}

#[test]
fn a_clock_that_goes_back_takes_nothing_from_the_disk() {
    // Between two steps, second 12 begins, and a snapshot is due at 12,100 ms. Then the clock is set back.
    for persistence in [Persistence::Everysec, Persistence::Snapshot] {
        for (set_back_ms, counter) in [(11_900, 0), (12_700, 1)] {
            let mut node = RedisModel::new(persistence).started(ms(6_000));
            node.apply(&PlantedStep::CountOnly(k()).into(), ms(11_500));
            node.sweep(ms(set_back_ms));
            node.apply(&PlantedStep::CountOnly(k()).into(), ms(3_000));
            node.restart(Data::Synced, ms(5_000));
            assert_eq!(node.counter(&k()), counter, "{persistence:?}, set back at {set_back_ms} ms");
        }
    }
}

#[test]
fn a_restarted_server_does_not_know_how_far_its_clock_was_ahead() {
    for (killed_ms, counter) in [(8_900, 2), (9_000, 3)] {
        let mut node = RedisModel::new(Persistence::Everysec);
        node.apply(&PlantedStep::CountOnly(k()).into(), ms(65_000));
        node.restart(Data::Kept, ms(6_000));
        for at in [7_500, 8_100] {
            node.apply(&PlantedStep::CountOnly(k()).into(), ms(at));
        }
        node.restart(Data::Synced, ms(killed_ms));
        assert_eq!(node.counter(&k()), counter, "killed at {killed_ms} ms");
    }
}

#[test]
fn a_restart_begins_the_schedule_of_snapshots_anew() {
    for (killed_ms, counter) in [(14_100, 1), (14_101, 2)] {
        let mut node = RedisModel::new(Persistence::Snapshot);
        node.apply(&PlantedStep::CountOnly(k()).into(), ms(1_000));
        node.restart(Data::Kept, ms(7_101));
        node.apply(&PlantedStep::CountOnly(k()).into(), ms(8_000));
        node.restart(Data::Kept, ms(killed_ms));
        assert_eq!(node.counter(&k()), counter, "killed at {killed_ms} ms");
    }
}

#[test]
fn what_a_restart_left_is_on_the_disk() {
    let mut node = RedisModel::new(Persistence::Everysec);
    node.apply(&acquire("a", LONG), ms(1_100));
    node.restart(Data::Kept, ms(1_200));
    node.apply(&PlantedStep::CountOnly(k()).into(), ms(1_300));
    node.restart(Data::Synced, ms(1_400));
    assert_eq!((node.owner(&k(), ms(1_500)), node.counter(&k())), (Some(&owner("a")), 1));
}

#[test]
fn a_restart_prolongs_no_lease() {
    let mut node = RedisModel::new(Persistence::Always);
    node.apply(&acquire("a", ms(100)), ms(0));
    node.restart(Data::Kept, ms(50));
    assert!(node.owner(&k(), ms(100)).is_some() && node.owner(&k(), ms(101)).is_none());
}

#[test]
fn a_server_that_drops_its_counters_keeps_its_keys() {
    let mut node = RedisModel::new(Persistence::Always).dropping_counters();
    node.apply(&acquire("a", LONG), ms(0));
    node.restart(Data::Kept, ms(50));
    assert_eq!((node.owner(&k(), ms(60)), node.counter(&k())), (Some(&owner("a")), 0));
}

#[test]
fn a_refused_step_is_no_change_that_a_snapshot_lacks() {
    let mut node = RedisModel::new(Persistence::Snapshot).started(ms(0));
    node.apply(&acquire("a", LONG), ms(100));
    for refused_ms in [6_200, 12_300] {
        assert_eq!(node.apply(&acquire("b", LONG), ms(refused_ms)), StepAnswer::Refused);
    }
    node.apply(&Step::Release(k(), owner("a")), ms(12_900));
    node.apply(&acquire("b", LONG), ms(12_950));
    node.restart(Data::Kept, ms(13_300));
    assert_eq!(node.owner(&k(), ms(13_300)), Some(&owner("b")), "the last snapshot was made at 6,100 ms");
}
