use proptest::prelude::*;

use super::*;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn at(time: Duration) -> StoreClocks {
    StoreClocks { wall: time, monotonic: time }
}

fn key() -> Key {
    Key::new("k0")
}

/// The facts about the servers of `etcd`.
fn etcd() -> ServerFacts {
    serde_json::from_str(include_str!("../../../../tests/shared/servers/etcd.json")).unwrap()
}

fn store(lease_clock: WhichClock) -> StoreModel {
    StoreModel::new(&ServerFacts { lease_clock: lease_clock.into(), ..etcd() }, Models::default())
}

fn granted(store: &mut StoreModel, lease: Duration, now: StoreClocks) -> (LeaseId, Duration) {
    let Some(StoreAnswer::Leased(id, granted)) = store.apply(&Op::Grant(lease), now) else { panic!("no lease") };
    (id, granted)
}

/// A key in the queue, under a lease of its own.
fn joined(store: &mut StoreModel, owner: &str, lease: Duration, now: StoreClocks) -> (LeaseId, Revision) {
    let (id, _) = granted(store, lease, now);
    match store.apply(&Op::Create(key(), Owner::new(owner), id, Mode::Write), now) {
        Some(StoreAnswer::At(revision) | StoreAnswer::First(revision)) => (id, revision),
        other => panic!("no key: {other:?}"),
    }
}

fn holder(store: &StoreModel) -> Option<(Revision, &Owner)> {
    store.holders(&key()).next().map(|(revision, owner, _)| (revision, owner))
}

fn left(store: &mut StoreModel, op: Op, now: StoreClocks) -> Duration {
    let Some(StoreAnswer::Leased(_, left)) = store.apply(&op, now) else { panic!("no answer of a lease") };
    left
}

#[test]
fn leases_are_of_whole_seconds_and_at_least_two() {
    let mut store = store(WhichClock::Both);
    for (asked, expected) in
        [(Duration::ZERO, 2 * S), (500 * MS, 2 * S), (2 * S, 2 * S), (2001 * MS, 3 * S), (60 * S, 60 * S)]
    {
        assert_eq!(granted(&mut store, asked, at(S)).1, expected, "{asked:?}");
    }
}

#[test]
fn a_lease_that_runs_out_takes_its_keys_and_only_those() {
    let mut store = store(WhichClock::Both);
    let (_, short) = joined(&mut store, "a", 2 * S, at(S));
    let (_, long) = joined(&mut store, "b", 5 * S, at(S));
    assert!(!store.expire(at(3 * S - MS)));
    assert_eq!(holder(&store), Some((short, &Owner::new("a"))));
    assert!(store.expire(at(3 * S)));
    assert_eq!(holder(&store), Some((long, &Owner::new("b"))));
    assert_eq!(store.leases(), 1);
    assert_eq!(store.apply(&Op::AwaitGone(key(), short), at(3 * S)), Some(StoreAnswer::Gone));
}

#[test]
fn a_keep_alive_gives_the_granted_time_again_and_none_once_that_has_passed() {
    let mut store = store(WhichClock::Both);
    let (id, revision) = joined(&mut store, "a", 2 * S, at(S));
    assert_eq!(left(&mut store, Op::KeepAlive(id), at(2 * S)), 2 * S);
    assert!(!store.expire(at(4 * S - MS)));
    // The lease is not revoked yet, but it is not renewed either.
    assert_eq!(left(&mut store, Op::KeepAlive(id), at(4 * S)), Duration::ZERO);
    assert_eq!(store.apply(&Op::Confirm(key(), revision, Mode::Write), at(4 * S)), Some(StoreAnswer::Done));
    assert!(store.expire(at(4 * S)));
    assert_eq!(store.apply(&Op::Confirm(key(), revision, Mode::Write), at(4 * S)), Some(StoreAnswer::Refused));
    assert_eq!(left(&mut store, Op::KeepAlive(id), at(4 * S)), Duration::ZERO);
}

/// Returns whether a lease of 2 s is renewed, and whether it is revoked, after a jump of the clocks.
fn jumped(lease_clock: WhichClock, wall: Duration, monotonic: Duration) -> (bool, bool) {
    let mut store = store(lease_clock);
    let (id, _) = joined(&mut store, "a", 2 * S, at(S));
    let now = StoreClocks { wall: S + wall, monotonic: S + monotonic };
    let revoked = store.clone().expire(now);
    (left(&mut store, Op::KeepAlive(id), now) > Duration::ZERO, revoked)
}

#[test]
fn a_lease_of_3_4_needs_both_clocks_to_run_out_and_the_monotonic_one_alone_to_be_renewed_no_more() {
    assert_eq!(jumped(WhichClock::Both, 60 * S, MS), (true, false));
    assert_eq!(jumped(WhichClock::Both, MS, 60 * S), (false, false));
    assert_eq!(jumped(WhichClock::Both, 60 * S, 60 * S), (false, true));
}

#[test]
fn a_lease_of_3_5_runs_by_the_monotonic_clock() {
    assert_eq!(jumped(WhichClock::Monotonic, 60 * S, MS), (true, false));
    assert_eq!(jumped(WhichClock::Monotonic, MS, 60 * S), (false, true));
}

#[test]
fn a_new_leader_gives_every_lease_its_whole_time_again_by_its_own_clocks() {
    for lease_clock in [WhichClock::Wall, WhichClock::Monotonic, WhichClock::Both] {
        // A clock of the former leader showed about the same, or far more.
        for (wall, monotonic) in [(S, S), (3600 * S, S), (S, 3600 * S), (3600 * S, 3600 * S)] {
            let mut store = store(lease_clock);
            let (id, _) = joined(&mut store, "a", 2 * S, StoreClocks { wall, monotonic });
            store.leader_changed(at(2900 * MS));
            let case = format!("{lease_clock:?}, former clocks {wall:?} and {monotonic:?}");
            assert_eq!(left(&mut store, Op::TimeToLive(id), at(4800 * MS)), 100 * MS, "{case}");
            assert!(!store.expire(at(4899 * MS)), "{case}");
            assert!(store.expire(at(4900 * MS)), "{case}");
        }
    }
}

#[test]
fn a_leader_that_goes_on_revokes_what_was_renewed_without_it_and_nothing_else_and_only_if_it_is_so_modelled() {
    for revokes_on_resume in [false, true] {
        let mut store = StoreModel::new(&etcd(), Models { revokes_on_resume, ..Models::default() });
        let (renewed, revision) = joined(&mut store, "a", 2 * S, at(S));
        joined(&mut store, "b", 60 * S, at(S));
        let view = store.leader_view();
        store.leader_changed(at(2 * S));
        let (_, newer) = joined(&mut store, "c", 2 * S, at(2 * S));
        assert_eq!(left(&mut store, Op::KeepAlive(renewed), at(2500 * MS)), 2 * S);
        // Until its own time for the lease is over, it does no harm.
        assert!(!store.resumed(&view, at(2900 * MS)));
        assert_eq!(store.resumed(&view, at(3100 * MS)), revokes_on_resume);
        let stands = store.apply(&Op::AwaitGone(key(), revision), at(3100 * MS)).is_none();
        assert_eq!(stands, !revokes_on_resume);
        assert_eq!(store.apply(&Op::AwaitGone(key(), newer), at(3100 * MS)), None);
        assert_eq!(store.leases(), if revokes_on_resume { 2 } else { 3 });
    }
}

#[test]
fn a_key_waits_for_the_newest_key_before_it() {
    let mut store = store(WhichClock::Both);
    let [first, second, third] = ["a", "b", "c"].map(|owner| joined(&mut store, owner, 2 * S, at(S)).1);
    for (revision, expected) in
        [(first, StoreAnswer::Gone), (second, StoreAnswer::At(first)), (third, StoreAnswer::At(second))]
    {
        assert_eq!(store.apply(&Op::Before(key(), revision, Mode::Write), at(S)), Some(expected), "{revision:?}");
    }
}

#[test]
fn an_owner_that_is_in_the_queue_already_gets_no_second_key() {
    let mut store = store(WhichClock::Both);
    let (id, revision) = joined(&mut store, "a", 2 * S, at(S));
    assert_eq!(
        store.apply(&Op::Create(key(), Owner::new("a"), id, Mode::Write), at(S)),
        Some(StoreAnswer::First(revision))
    );
    assert_eq!(store.waiting(&key()).count(), 1);
}

#[test]
fn a_create_that_a_revoke_has_overtaken_makes_no_key() {
    let mut store = store(WhichClock::Both);
    let (id, _) = granted(&mut store, 2 * S, at(S));
    assert_eq!(store.apply(&Op::Revoke(id), at(S)), Some(StoreAnswer::Done));
    assert_eq!(store.apply(&Op::Create(key(), Owner::new("a"), id, Mode::Write), at(S)), Some(StoreAnswer::Gone));
    assert_eq!(store.apply(&Op::Revoke(id), at(S)), Some(StoreAnswer::Gone));
    assert_eq!(holder(&store), None);
}

/// Lets B's lease expire in the queue. A holds by the Lock service and keeps its lease alive, B and C wait behind A,
/// and then A unlocks. Returns the store, the answers to B and C, and the revision at which B's key was created.
fn lapsed_in_the_queue(lock_checks_key: bool) -> (StoreModel, Option<StoreAnswer>, Option<StoreAnswer>, Revision) {
    let mut store = StoreModel::new(&etcd(), Models { lock_checks_key, ..Models::default() });
    let [a, b, c] = [2 * S, 2 * S, 60 * S].map(|lease| granted(&mut store, lease, at(S)).0);
    let lock = |lease| Op::Lock(key(), lease);
    assert_eq!(store.apply(&lock(a), at(S)), Some(StoreAnswer::Locked(Revision(2))));
    assert_eq!((store.apply(&lock(b), at(S)), store.apply(&lock(c), at(S))), (None, None));
    let Some(StoreAnswer::At(second)) = store.apply(&Op::OfLease(key(), b), at(S)) else { panic!("no key") };
    left(&mut store, Op::KeepAlive(a), at(2 * S));
    assert!(store.expire(at(3 * S)));
    assert_eq!(store.apply(&Op::OfLease(key(), b), at(3 * S)), Some(StoreAnswer::Gone));
    assert_eq!((store.apply(&lock(b), at(3 * S)), store.apply(&lock(c), at(3 * S))), (None, None));
    assert_eq!(store.apply(&Op::Unlock(key(), a), at(3 * S)), Some(StoreAnswer::Done));
    let (b, c) = (store.apply(&lock(b), at(3 * S)), store.apply(&lock(c), at(3 * S)));
    (store, b, c, second)
}

#[test]
fn the_lock_service_of_3_4_grants_to_a_lease_that_ended_in_the_queue_and_that_of_3_5_does_not() {
    for (checks, is_granted) in [(false, true), (true, false)] {
        let (store, b, c, _) = lapsed_in_the_queue(checks);
        let granted = Some(StoreAnswer::Locked(store.revision()));
        assert_eq!((b, c), (if is_granted { granted } else { Some(StoreAnswer::Gone) }, granted), "checks: {checks}");
    }
}

#[test]
fn a_request_that_waits_makes_no_second_key_and_a_grant_without_a_key_changes_nothing() {
    let (mut store, _, _, second) = lapsed_in_the_queue(false);
    let third = Revision(second.0 + 1);
    assert_eq!(store.waiting(&key()).map(|(revision, _)| revision).collect::<Vec<_>>(), [third]);
    let before = store.revision();
    assert_eq!(store.apply(&Op::Unlock(key(), LeaseId(2)), at(3 * S)), Some(StoreAnswer::Done));
    assert_eq!(store.revision(), before);
}

#[test]
fn the_lock_service_knows_no_lease_that_is_not_there_and_gives_one_lease_one_key() {
    let mut store = store(WhichClock::Both);
    assert_eq!(store.apply(&Op::Lock(key(), LeaseId(9)), at(S)), Some(StoreAnswer::Gone));
    let (id, _) = granted(&mut store, 2 * S, at(S));
    for _ in 0..2 {
        assert_eq!(store.apply(&Op::Lock(key(), id), at(S)), Some(StoreAnswer::Locked(Revision(2))));
    }
    assert_eq!(store.waiting(&key()).count(), 1);
    // The key is in the same queue as the keys of other clients.
    let (_, other) = joined(&mut store, "a", 2 * S, at(S));
    assert_eq!(store.apply(&Op::Before(key(), other, Mode::Write), at(S)), Some(StoreAnswer::At(Revision(2))));
}

#[derive(Debug, Clone)]
enum Step {
    Ask(Op),
    Pass(Duration),
}

/// Steps over two queues, four owners, and the first few leases and revisions.
fn step() -> impl Strategy<Value = Step> {
    let key = || (0..2).prop_map(|n| Key::new(format!("k{n}")));
    let queued = move || (key(), (1..30_i64).prop_map(Revision));
    let lease = || (1..12_i64).prop_map(LeaseId);
    let mode = || prop::sample::select(&Mode::ALL[..]);
    prop_oneof![
        2 => (0..5000_u64).prop_map(|ms| Step::Ask(Op::Grant(Duration::from_millis(ms)))),
        4 => (key(), 0..4_u8, lease(), mode()).prop_map(|(key, owner, lease, mode)| {
            Step::Ask(Op::Create(key, Owner::new(format!("o{owner}")), lease, mode))
        }),
        2 => lease().prop_map(|lease| Step::Ask(Op::KeepAlive(lease))),
        1 => lease().prop_map(|lease| Step::Ask(Op::Revoke(lease))),
        2 => queued().prop_map(|(key, revision)| Step::Ask(Op::Delete(key, revision))),
        3 => (queued(), mode()).prop_map(|((key, revision), mode)| Step::Ask(Op::Before(key, revision, mode))),
        3 => (queued(), mode()).prop_map(|((key, revision), mode)| Step::Ask(Op::Confirm(key, revision, mode))),
        3 => queued().prop_map(|(key, revision)| Step::Ask(Op::AwaitGone(key, revision))),
        1 => key().prop_map(|key| Step::Ask(PlantedOp::DeleteAll(key).into())),
        2 => (1..3000_u64).prop_map(|ms| Step::Pass(Duration::from_millis(ms))),
    ]
}

/// The simplest model of the store: a list of keys and a list of leases. It learns revisions and leases from the
/// answers.
#[derive(Debug, Default)]
struct Plain {
    keys: Vec<(Key, Owner, LeaseId, Mode, Revision)>,
    leases: Vec<(LeaseId, Duration, Duration)>,
}

impl Plain {
    fn queue(&self, key: &Key) -> Vec<Revision> {
        let mut queue: Vec<_> = self.keys.iter().filter(|(k, ..)| k == key).map(|(.., revision)| *revision).collect();
        queue.sort();
        queue
    }

    fn older(&self, key: &Key, than: Revision, mode: Mode) -> Option<Revision> {
        let against =
            |(k, _, _, m, at): &&(Key, Owner, LeaseId, Mode, Revision)| k == key && *at < than && m.conflicts(mode);
        self.keys.iter().filter(against).map(|(.., revision)| *revision).max()
    }

    fn created(&self, key: &Key, revision: Revision, mode: Mode) -> StoreAnswer {
        match mode == Mode::Write && self.older(key, revision, mode).is_none() {
            true => StoreAnswer::First(revision),
            false => StoreAnswer::At(revision),
        }
    }

    fn expire(&mut self, now: Duration) {
        self.leases.retain(|(.., deadline)| now < *deadline);
        self.keys.retain(|(_, _, lease, ..)| self.leases.iter().any(|(id, ..)| id == lease));
    }

    /// Returns the answer that `op` must get, if the answer does not depend on numbers that the store chooses.
    fn apply(&mut self, op: &Op, seen: Option<StoreAnswer>, now: Duration) -> Option<Option<StoreAnswer>> {
        let done_or_gone = |is_done| Some(Some(if is_done { StoreAnswer::Done } else { StoreAnswer::Gone }));
        match op {
            Op::Grant(_) => {
                let Some(StoreAnswer::Leased(id, granted)) = seen else { panic!("no lease: {seen:?}") };
                self.leases.push((id, granted, now + granted));
                None
            }
            Op::KeepAlive(id) => {
                let lease = self.leases.iter_mut().find(|(lease, ..)| lease == id);
                let left = lease.map_or(Duration::ZERO, |(_, granted, deadline)| {
                    *deadline = now + *granted;
                    *granted
                });
                Some(Some(StoreAnswer::Leased(*id, left)))
            }
            Op::TimeToLive(_) => None,
            Op::Revoke(id) => {
                let before = self.leases.len();
                self.leases.retain(|(lease, ..)| lease != id);
                self.keys.retain(|(_, _, lease, ..)| lease != id);
                done_or_gone(self.leases.len() < before)
            }
            Op::Create(key, owner, id, mode) => {
                if let Some((.., revision)) = self.keys.iter().find(|(k, o, ..)| (k, o) == (key, owner)) {
                    return Some(Some(self.created(key, *revision, *mode)));
                }
                if !self.leases.iter().any(|(lease, ..)| lease == id) {
                    return Some(Some(StoreAnswer::Gone));
                }
                let Some(StoreAnswer::At(revision) | StoreAnswer::First(revision)) = seen else {
                    panic!("no key: {seen:?}")
                };
                self.keys.push((key.clone(), owner.clone(), *id, *mode, revision));
                Some(Some(self.created(key, revision, *mode)))
            }
            Op::Before(key, revision, mode) => {
                let before = self.older(key, *revision, *mode);
                Some(Some(before.map_or(StoreAnswer::Gone, StoreAnswer::At)))
            }
            Op::AwaitGone(key, revision) => Some((!self.queue(key).contains(revision)).then_some(StoreAnswer::Gone)),
            Op::Confirm(key, revision, mode) => {
                let is_free = self.queue(key).contains(revision) && self.older(key, *revision, *mode).is_none();
                Some(Some(if is_free { StoreAnswer::Done } else { StoreAnswer::Refused }))
            }
            Op::Delete(key, revision) => {
                let before = self.keys.len();
                self.keys.retain(|(k, .., r)| (k, r) != (key, revision));
                done_or_gone(self.keys.len() < before)
            }
            Op::Lock(..) | Op::OfLease(..) | Op::Unlock(..) => unreachable!("tables of their own; no step draws it"),
            Op::Planted(PlantedOp::DeleteAll(key)) => {
                self.keys.retain(|(k, ..)| k != key);
                Some(Some(StoreAnswer::Done))
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn it_answers_as_a_plain_list_would_and_every_change_makes_a_new_revision(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let (mut store, mut plain, mut now) = (store(WhichClock::Both), Plain::default(), S);
        for step in steps {
            let (revision, keys) = (store.revision(), plain.keys.clone());
            match &step {
                Step::Pass(time) => {
                    now += *time;
                    let went = store.expire(at(now));
                    plain.expire(now);
                    prop_assert_eq!(went, plain.keys != keys);
                }
                Step::Ask(op) => {
                    let seen = store.apply(op, at(now));
                    if let Some(expected) = plain.apply(op, seen, now) {
                        prop_assert_eq!(seen, expected, "{:?}", op);
                    }
                }
            }
            prop_assert_eq!(store.revision() > revision, plain.keys != keys, "{:?}", step);
            let created = plain.keys.iter().filter(|entry| !keys.contains(entry)).map(|(.., at)| *at);
            prop_assert!(created.into_iter().all(|at| at == store.revision()));
            for key in [Key::new("k0"), Key::new("k1")] {
                let queue: Vec<_> = store.waiting(&key).map(|(revision, _)| revision).collect();
                prop_assert_eq!(&queue, &plain.queue(&key));
                let of_key = plain.keys.iter().filter(|(k, ..)| *k == key);
                let holding = of_key.filter(|(.., mode, at)| plain.older(&key, *at, *mode).is_none());
                let holding: BTreeSet<_> = holding.map(|(.., revision)| *revision).collect();
                prop_assert_eq!(store.holders(&key).map(|(revision, ..)| revision).collect::<BTreeSet<_>>(), holding);
            }
            prop_assert_eq!(store.leases(), plain.leases.len());
        }
    }
}
