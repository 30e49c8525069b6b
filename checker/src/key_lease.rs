//! One hold's key on one lock node: the proved faults that may have removed the key before its lease expired.

use std::time::Duration;

use history::{
    ClockChange, FaultId, FaultKind, Harm, NodeName, Persistence, Promise, Stamp, WhichClock,
    fault::{self, Data},
};

use crate::{
    faults::FaultRecord,
    holds::{Attempt, Grant, NodeLease, Span},
    rules,
    run::Run,
};

/// The most that a store with `appendfsync everysec` may be behind its disk.
const SYNCED_EVERY: Duration = Duration::from_secs(1);

/// Returns whether a restart of this kind may lose a lease that the node had granted.
pub(crate) fn forgets(run: &Run, kind: FaultKind) -> bool {
    let persistence = run.plan.persistence();
    match kind.harm() {
        Harm::Kills(Data::Lost) => true,
        Harm::Kills(Data::Synced) => run.plan.has_one_store() || persistence != Persistence::Always,
        // A SIGKILL keeps only the data that the kernel had. Without an append-only file the server loses everything
        // since its last snapshot.
        Harm::Kills(Data::Kept) => run.plan.servers.kill_forgets && !persistence.has_log(),
        Harm::Freezes | Harm::Starves | Harm::SetsClock | Harm::DropsPackets | Harm::DelaysPackets => false,
    }
}

/// The stamp from which servers look at the lease clock, for an attempt that was sent at `sent`.
///
/// A server that only looks when its timer fires sets the timer for the lease, from the session's first request on. The
/// timer of an earlier request stays when a later request starts the lease anew. So a clock that has jumped forwards
/// can end a session early, but not before the timer of the first request fires.
pub(crate) fn looks_from(run: &Run, sent: Stamp) -> Stamp {
    let servers = &run.plan.servers;
    sent.plus(servers.blind_for(servers.granted(run.plan.lease)))
}

/// A hold's key on a node: the time of its lease, and the time by which the key was gone.
pub(crate) struct KeyLease {
    /// The send stamp of the attempt, or of the earlier request on which its promise rests.
    pub sent: Stamp,
    pub lease: NodeLease,
    /// The key was gone by then.
    pub gone_by: Stamp,
}

impl KeyLease {
    /// The key of a hold on a node that refused to renew it, which it had done by `gone_by`.
    pub fn of(hold: &Attempt, grant: &Grant, node: usize, gone_by: Stamp) -> KeyLease {
        let (told, until) = ((grant.promised_from, grant.ok.at), grant.promised_from.plus(grant.lease));
        let first = NodeLease { told, until, is_renewed: false };
        let lease = hold.leases.get(node).copied().unwrap_or(first);
        KeyLease { sent: hold.relies_since(), lease, gone_by }
    }

    /// The stamp after which the key was lost: a node that did a renewal had the key when the renewal was sent.
    pub fn had_since(&self) -> Stamp {
        if self.lease.is_renewed { self.lease.told.0.max(self.sent) } else { self.sent }
    }

    /// Returns whether a proved fault may have removed the key: a fault of the node, or of any member of the store. If
    /// waiting clients measure leases, it may also be a fault of the clock of a worker.
    pub fn is_taken_by(&self, run: &Run, line: &FaultRecord) -> bool {
        self.is_over_by(run, line, ending_clock(run))
    }

    /// Returns whether a proved fault may have made the node refuse to renew the lease. etcd 3.4 ends a lease by both
    /// clocks, and refuses to renew it as soon as the monotonic clock has passed its end.
    pub fn is_refused_by(&self, run: &Run, line: &FaultRecord) -> bool {
        let clock = match ending_clock(run) {
            WhichClock::Both => WhichClock::Monotonic,
            clock => clock,
        };
        self.is_over_by(run, line, clock)
    }

    fn is_over_by(&self, run: &Run, line: &FaultRecord, clock: WhichClock) -> bool {
        let found = if run.plan.has_one_store() { self.left_store(run, line) } else { self.forgotten(run, line) };
        let last_move = || NodeClocks::of(run, &line.node).first_to_reach(self, looks_from(run, self.sent), clock);
        let is_before = |last: Stamp| line.requested.is_some_and(|requested| requested.at <= last);
        found.is_some() || (line.kind == FaultKind::Clock && last_move().is_some_and(is_before))
    }

    /// The stamp at which an independent server was about to restart without the key.
    pub fn forgotten(&self, run: &Run, line: &FaultRecord) -> Option<Stamp> {
        let persistence = run.plan.persistence();
        // The process ended at some instant between these two.
        let (at, gone) = (line.requested?.at, line.injected.or(line.healed).unwrap_or(Stamp(u64::MAX)));
        // A server keeps the data that it had synced before a power loss, and the data of its snapshot.
        let synced_after = match (line.kind.harm(), persistence) {
            (Harm::Kills(Data::Synced), Persistence::Everysec) => Some(SYNCED_EVERY),
            // Two intervals: a snapshot that was due after the first one is complete after the second.
            (Harm::Kills(Data::Kept | Data::Synced), Persistence::Snapshot) => Some(Persistence::SNAPSHOT_EVERY * 2),
            _ => None,
        };
        let clocks = || NodeClocks::of(run, &line.node);
        // A server that saves by its wall clock waits longer if the host's clock was set back.
        let is_synced = synced_after.is_some_and(|after| {
            clocks().has_shown(after, self.lease.told.1, at) && !run.clock_steps.may_have_put_off((at.minus(after), at))
        });
        // With `everysec`, Redis postpones its writes while a background fsync runs. A SIGKILL may then lose a key that
        // the server had already confirmed.
        let is_put_off = line.kind.harm() == Harm::Kills(Data::Kept)
            && persistence == Persistence::Everysec
            && line.unsynced.is_some_and(|fsyncs| fsyncs > 0 || self.lease.told.1 >= at);
        let is_between = rules::is_between(gone, self.had_since(), Stamp(u64::MAX)) && at < self.gone_by;
        ((forgets(run, line.kind) && !is_synced || is_put_off) && is_between).then_some(at)
    }

    /// The start of a fault of links that may have reset the connection between these two nodes. An independent server
    /// ends the session with it, although the client may not know of that yet.
    pub fn lost_session(&self, run: &Run, id: FaultId, line: &FaultRecord, ends: [&NodeName; 2]) -> Option<Stamp> {
        let is_session = run.plan.servers.promise == Promise::Session;
        let (begun, ended) = line.resets(&run.plan, id).filter(|_| is_session && line.proved.is_some())?;
        let is_hit = [ends, [ends[1], ends[0]]].iter().any(|[from, to]| line.hits(&run.plan, id, from, to));
        (is_hit && self.had_since() < ended && begun < self.gone_by).then_some(begun)
    }

    /// The start of a fault of a store's member by which the store forgot the key, or revoked its lease.
    pub fn left_store(&self, run: &Run, line: &FaultRecord) -> Option<Stamp> {
        let ((from, to), since) = (line.bracket()?, self.had_since());
        // The process ended at some instant between its request and this stamp.
        let gone = line.injected.or(line.healed).unwrap_or(Stamp(u64::MAX));
        // A leader resumes at some instant between these two stamps, and revokes leases at once.
        let resumes = line.heal_requested.unwrap_or(to);
        let is_revoked = line.kind.freezes()
            && run.plan.models.unwrap_or_default().revokes_on_resume
            && rules::overlap((from, to), (since, self.gone_by)).is_some()
            && resumes < self.gone_by;
        // Other members can do a renewal while this one is down. It comes back empty after that, and votes.
        let had_since = if run.plan.lock_nodes.len() > 1 { self.sent } else { since };
        let is_between = rules::is_between(gone, had_since, Stamp(u64::MAX)) && from < self.gone_by;
        let is_forgotten = forgets(run, line.kind) && is_between;
        (is_revoked || is_forgotten).then_some(from)
    }
}

/// The clock that ends leases: that of the servers, or the monotonic clock of a waiting client.
pub(crate) fn ending_clock(run: &Run) -> WhichClock {
    run.plan.servers.lease_clock.of_servers().unwrap_or(WhichClock::Monotonic)
}

/// The effect of one fault on a clock. Offsets are in nanoseconds.
struct Shift {
    clock: WhichClock,
    change: ClockChange,
    /// The stamps between which the effect began.
    begun: Span,
    /// The stamps between which the effect ended.
    ended: Span,
}

impl Shift {
    fn of(run: &Run, id: history::FaultId, line: &FaultRecord) -> Option<Shift> {
        let step = run.plan.step(id)?;
        let fault::Clock { clock, change } = *step.fault.clock()?;
        let never = Stamp(u64::MAX);
        let requested = line.requested?.at;
        let (heal, healed) = (line.heal_requested.unwrap_or(never), line.healed.unwrap_or(never));
        Some(Shift { clock, change, begun: (requested, line.injected.unwrap_or(healed)), ended: (heal, healed) })
    }

    fn moves(&self, wall: bool) -> bool {
        if wall { self.clock.is_wall() } else { self.clock.is_monotonic() }
    }

    /// The largest (or smallest) offset that the fault may have given the clock at some instant of `within`.
    fn bound(&self, within: Span, wall: bool, most: bool) -> i128 {
        if !self.moves(wall) {
            return 0;
        }
        // The jump of a monotonic clock stays.
        let never = (Stamp(u64::MAX), Stamp(u64::MAX));
        match self.change {
            ClockChange::JumpMs(by) => {
                let ended = if wall { self.ended } else { never };
                let may_be_on = within.0 < ended.1 && self.begun.0 <= within.1;
                let is_on = self.begun.1 <= within.0 && within.1 <= ended.0;
                let is_counted = if (by > 0) == most { may_be_on } else { is_on };
                if is_counted { i128::from(by) * 1_000_000 } else { 0 }
            }
            ClockChange::DriftPpm(ppm) => {
                let (latest, earliest) = (within.1.min(self.ended.1), within.0.min(self.ended.0));
                // The heal takes the gain from a wall clock.
                let (is_back, may_be_back) = (wall && within.0 >= self.ended.1, wall && within.1 > self.ended.0);
                let lasted = match (ppm > 0) == most {
                    true if is_back => Duration::ZERO,
                    true => latest.since(self.begun.0),
                    false if may_be_back => Duration::ZERO,
                    false => earliest.since(self.begun.1),
                };
                lasted.as_nanos() as i128 * i128::from(ppm) / 1_000_000
            }
            // While the strobe is on, the clock may be there or back at any instant; after the heal it is back.
            ClockChange::Strobe { by_ms, .. } => {
                let may_be_on = within.0 < self.ended.1 && self.begun.0 <= within.1;
                let is_counted = may_be_on && (by_ms > 0) == most;
                if is_counted { i128::from(by_ms) * 1_000_000 } else { 0 }
            }
        }
    }
}

/// All faults of the clocks of one node, in the order of time.
pub(crate) struct NodeClocks(Vec<Shift>);

impl NodeClocks {
    pub fn of(run: &Run, node: &NodeName) -> NodeClocks {
        let clocks =
            run.faults.iter().filter(|(_, l)| l.kind == FaultKind::Clock && l.proved.is_some() && l.node == *node);
        let mut shifts: Vec<Shift> = clocks.filter_map(|(id, line)| Shift::of(run, id, line)).collect();
        shifts.sort_by_key(|shift| shift.begun);
        NodeClocks(shifts)
    }

    /// Returns whether a server that does something each time its wall clock has shown `every` more has surely done it
    /// between `since` and `at`. A server whose clock was set back waits until the clock shows the last time again.
    fn has_shown(&self, every: Duration, since: Stamp, at: Stamp) -> bool {
        let offset = |at: Stamp, most: bool| self.0.iter().map(|s| s.bound((at, at), true, most)).sum::<i128>();
        let behind = offset(at, false);
        // The server did it last at `since` or before, and its clock was furthest ahead just before it was set back.
        let before = |at: Stamp| Stamp(at.0.saturating_sub(1));
        let back = self.0.iter().flat_map(|s| [before(s.begun.1), before(s.ended.1)]);
        let mut last = back.filter(|last| *last < since).chain([since]);
        last.all(|last| rules::is_lease_over_by(at, behind - offset(last, true), last.plus(every)))
    }

    /// Returns the request of the first clock fault that may have ended the lease: the clock reached the lease's end
    /// before the key was gone, and not before `from`, when the servers first look at the clock. The clock's time is
    /// true time plus all changes of the clock since the grant.
    pub fn first_to_reach(&self, lease: &KeyLease, from: Stamp, clock: WhichClock) -> Option<Stamp> {
        let KeyLease { lease: NodeLease { until, told, .. }, gone_by: last, .. } = *lease;
        // A fault that was over before the grant has left an offset that is not known, and that both have. A fault that
        // began when the key was gone has not moved the clock before.
        let shifts: Vec<&Shift> =
            self.0.iter().filter(|shift| shift.ended.1 > told.0 && shift.begun.0 < last).collect();
        let reaches = |shifts: &[&Shift]| {
            let moved = |at: Stamp, wall: bool| -> i128 {
                let since = |shift: &&Shift| shift.bound((at, at), wall, true) - shift.bound(told, wall, false);
                shifts.iter().map(since).sum()
            };
            let is_over = |at: Stamp| {
                let ahead = match clock {
                    WhichClock::Wall => moved(at, true),
                    WhichClock::Monotonic => moved(at, false),
                    WhichClock::Both => moved(at, true).min(moved(at, false)),
                };
                rules::is_lease_over_by(at, ahead, until)
            };
            // The clock is furthest ahead just before it is set back or slowed down, or at the end.
            let before = |at: Stamp| Stamp(at.0.saturating_sub(1));
            let back = shifts.iter().flat_map(|s| [before(s.begun.1), s.begun.1, before(s.ended.1)]);
            let mut instants = back.filter(|at| *at < last && *at > told.0).chain([last]).filter(|at| *at >= from);
            instants.any(is_over)
        };
        // Later faults may have held the clock back.
        if !reaches(&shifts) {
            return None;
        }
        (1..=shifts.len()).find(|n| reaches(&shifts[..*n])).map(|n| shifts[n - 1].begun.0)
    }
}

#[cfg(test)]
mod tests {
    use history::{CutMode, Direction, Event, Fault, FaultPhase, Models};

    use super::*;
    use crate::history_builder::{HistoryBuilder, etcd};

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    fn granted() -> NodeLease {
        NodeLease { told: (ms(20_000), ms(20_010)), until: ms(22_000), is_renewed: false }
    }

    /// A drift by a fifth that began and ended within 1 ms of these.
    fn drift(from: u64, to: u64) -> Shift {
        let change = ClockChange::DriftPpm(200_000);
        let (begun, ended) = ((ms(from), ms(from + 1)), (ms(to - 1), ms(to)));
        Shift { clock: WhichClock::Monotonic, change, begun, ended }
    }

    #[test]
    fn drifts_that_were_over_before_the_grant_end_no_lease() {
        let lease = KeyLease { sent: ms(20_000), lease: granted(), gone_by: ms(21_900) };
        let past = || (0..100).map(|i| drift(10 * i, 10 * i + 5)).collect::<Vec<_>>();
        let first = |shifts| NodeClocks(shifts).first_to_reach(&lease, Stamp(0), WhichClock::Monotonic);
        assert_eq!(first(past()), None);
        let with_one = |one| first(past().into_iter().chain([one]).collect());
        assert_eq!(with_one(drift(20_100, 20_200)), None, "20 ms are too little");
        assert_eq!(with_one(drift(20_100, 21_900)), Some(ms(20_100)));
    }

    /// The lease of hold 1 is granted between 1,000 and 1,010 and lasts until 3,000. Hold 2 is acquired at 2,010.
    fn overlap() -> HistoryBuilder {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 1_000, 1_010, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_100).release_refused(1, 2_200);
        s
    }

    #[test]
    fn a_renewal_is_on_disk_a_second_after_its_answer() {
        // The node did the renewal at some instant between 500 and 600.
        for (requested, expected) in [(1_599, "powerloss"), (1_600, "unexplained")] {
            let mut s = HistoryBuilder::new();
            s.plan.models = Some(Models { persistence: Persistence::Everysec, ..Models::default() });
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 0, 10, 41).renew(1, 500, 600);
            s.acquire(2, 2, 1_700, 1_710, 42).release(2, 1_800).release_refused(1, 1_900);
            s.inject(1, Fault::new(fault::Powerloss {}, SECOND), "redis-1", requested + 5, 1_690);
            assert_eq!(s.causes(), [expected], "the power went at {requested}");
        }
    }

    #[test]
    fn a_server_whose_clock_was_set_back_syncs_later() {
        // The node granted hold 1 by 1,010, so its key is on disk by 2,010. It comes there 300 later if the clock goes
        // back by 300. If the clock was 700 ahead until 900, the server may have synced then, and again at 2,600.
        let clock = |change| Fault::new(fault::Clock { clock: WhichClock::Wall, change }, SECOND);
        for (by_ms, (from, to), requested, expected) in [
            (-300, (1_505, 2_695), 2_309, "powerloss"),
            (-300, (1_505, 2_695), 2_310, "unexplained"),
            (700, (505, 895), 2_599, "powerloss"),
            (700, (505, 895), 2_600, "unexplained"),
        ] {
            let mut s = HistoryBuilder::new();
            s.plan.models = Some(Models { persistence: Persistence::Everysec, ..Models::default() });
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 1_000, 1_010, 41).acquire(2, 2, 2_700, 2_710, 42).release(2, 2_800);
            s.release_refused(1, 2_900).inject(1, clock(ClockChange::JumpMs(by_ms)), "redis-1", from, to);
            s.inject(2, Fault::new(fault::Powerloss {}, SECOND), "redis-1", requested + 5, 2_690);
            assert_eq!(s.causes(), [expected], "set by {by_ms} ms, the power went at {requested}");
        }
    }

    #[test]
    fn a_host_whose_clock_was_set_back_syncs_later() {
        // The node granted hold 1 by 1,010, so its key is on disk by 2,010. The host's clock steps by 1,200. If it goes
        // back by 300, the server may have synced just before, and does so again by 2,500.
        for (wall_ms, requested, expected) in [
            (-300, 2_500, "powerloss"),
            (-300, 2_501, "unexplained"),
            (300, 2_009, "powerloss"),
            (300, 2_010, "host-clock"),
        ] {
            let mut s = HistoryBuilder::new();
            s.plan.models = Some(Models { persistence: Persistence::Everysec, ..Models::default() });
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 1_000, 1_010, 41).acquire(2, 2, 2_700, 2_710, 42).release(2, 2_800);
            s.release_refused(1, 2_900);
            for (at, wall_ms) in [(1_100, 0), (1_200, wall_ms)] {
                s.event("worker-2", at, Event::Clocks { wall_ns: wall_ms * 1_000_000, boot_ns: 0 });
            }
            s.inject(1, Fault::new(fault::Powerloss {}, SECOND), "redis-1", requested + 5, 2_690);
            assert_eq!(s.causes(), [expected], "set by {wall_ms} ms, the power went at {requested}");
        }
    }

    #[test]
    fn a_clock_set_back_during_the_grant_may_have_been_right() {
        // The heal of the drift comes between 1,000 and 1,010. After it, only the whole jump ends the lease by 2,010.
        let clock = |change| Fault::new(fault::Clock { clock: WhichClock::Wall, change }, SECOND);
        for (by_ms, expected) in [(989, "unexplained"), (990, "clock")] {
            let mut s = overlap();
            s.plan.lock_nodes.truncate(1);
            s.inject(1, clock(ClockChange::DriftPpm(500_000)), "redis-1", 500, 1_005);
            s.inject(2, clock(ClockChange::JumpMs(by_ms)), "redis-1", 1_500, 2_500);
            assert_eq!(s.causes(), [expected], "by {by_ms} ms");
        }
    }

    #[test]
    fn a_reset_connection_ends_the_session_of_a_hold() {
        let (drops, rejects) = (CutMode::Drop, CutMode::Reject);
        // The cut is healed at 1,800. Its heal resets connections at 1,900.
        for (promise, cut, worker, is_reset, expected) in [
            (Promise::Session, drops, "worker-1", true, "partition"),
            (Promise::Session, drops, "worker-1", false, "unexplained"),
            (Promise::Session, drops, "worker-2", true, "unexplained"),
            (Promise::Session, rejects, "worker-1", false, "partition"),
            (Promise::Lease, drops, "worker-1", true, "unexplained"),
            (Promise::Lease, rejects, "worker-1", false, "unexplained"),
        ] {
            let mut s = overlap();
            s.plan.lock_nodes.truncate(1);
            s.plan.servers.promise = promise;
            let fault = Fault::new(fault::Partition { cut }, SECOND).on_links(Direction::Both, vec![worker.into()]);
            s.inject(1, fault, "redis-1", 1_200, 1_800);
            if is_reset {
                s.fault(1, FaultKind::Partition, "redis-1", 1_900, FaultPhase::ConnectionsReset { count: 1 });
            }
            assert_eq!(s.causes(), [expected], "{promise:?}, {cut:?}, {worker}, reset: {is_reset}");
        }
    }

    #[test]
    fn the_heal_of_a_delay_may_reset_a_connection_that_another_fault_has_silenced() {
        // Both faults are of the same link. The partition ends at 1,800 and the delay at 1,850; the heal of the delay
        // resets the connection at 1,950.
        for (is_reset, expected) in [(true, "delay"), (false, "unexplained")] {
            let mut s = overlap();
            s.plan.lock_nodes.truncate(1);
            s.plan.servers.promise = Promise::Session;
            let delay = fault::Delay { by: Duration::from_millis(100).into() };
            s.inject(1, Fault::new(fault::Partition { cut: CutMode::Drop }, SECOND), "redis-1", 1_200, 1_800);
            s.inject(2, Fault::new(delay, SECOND), "worker-1", 1_150, 1_850);
            if is_reset {
                s.fault(2, FaultKind::Delay, "worker-1", 1_950, FaultPhase::ConnectionsReset { count: 1 });
            }
            assert_eq!(s.causes(), [expected], "reset: {is_reset}");
        }
    }

    #[test]
    fn a_pause_that_was_over_before_the_attempt_revoked_nothing() {
        for (from, to, expected) in [(300, 600, "unexplained"), (1_300, 1_600, "pause")] {
            let mut s = overlap();
            let models = Models { revokes_on_resume: true, ..Models::default() };
            (s.plan.servers, s.plan.models) = (etcd(), Some(models));
            s.inject(1, Fault::new(fault::Pause {}, SECOND), "redis-2", from, to);
            assert_eq!(s.causes(), [expected], "paused from {from} to {to}");
        }
    }

    #[test]
    fn a_clock_that_was_slowed_before_the_end_of_the_lease_ends_none() {
        let lease = KeyLease { sent: ms(20_000), lease: granted(), gone_by: ms(21_900) };
        let of = |change, from, to| {
            let (begun, ended) = ((ms(from), ms(from + 1)), (ms(to - 1), ms(to)));
            Shift { clock: WhichClock::Monotonic, change, begun, ended }
        };
        for (slow_from, expected) in [(20_200, None), (21_899, Some(ms(20_100)))] {
            let jump = of(ClockChange::JumpMs(150), 20_100, 20_110);
            let slow = of(ClockChange::DriftPpm(-500_000), slow_from, 23_000);
            let found = NodeClocks(vec![jump, slow]).first_to_reach(&lease, Stamp(0), WhichClock::Monotonic);
            assert_eq!(found, expected, "slow from {slow_from}");
        }
    }

    #[test]
    fn a_clock_that_is_set_at_the_other_success_explains_nothing() {
        // Hold 2 is acquired at 2,010. A fault is requested 5 ms before it is on.
        let jump = || fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(20_000) };
        for (from, expected) in [(2_014, "clock"), (2_015, "unexplained")] {
            let mut s = overlap();
            s.plan.lock_nodes.truncate(1);
            s.inject(1, Fault::new(jump(), SECOND), "redis-1", from, 2_500);
            assert_eq!(s.causes(), [expected], "from {from}");
        }
    }

    #[test]
    fn what_came_before_a_renewal_that_was_done_removed_no_key() {
        let renewed = |s: &mut HistoryBuilder, fault: Fault, node: &str, from, to| {
            s.acquire(1, 1, 0, 10, 41).renew(1, 1_000, 1_010).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_100);
            s.release_refused(1, 2_200).inject(1, fault, node, from, to).causes()
        };
        // The fault takes effect at most 5 ms after `from`.
        for (from, expected) in [(500, "unexplained"), (995, "unexplained"), (996, "amnesia"), (1_500, "amnesia")] {
            let mut s = HistoryBuilder::new();
            s.plan.lock_nodes.truncate(1);
            let amnesia = Fault::new(fault::Amnesia::default(), SECOND);
            assert_eq!(renewed(&mut s, amnesia, "redis-1", from, from + 100), [expected], "from {from}");
        }
        for (from, to, expected) in [(300, 600, "unexplained"), (900, 1_100, "pause")] {
            let mut s = HistoryBuilder::new();
            let models = Models { revokes_on_resume: true, ..Models::default() };
            (s.plan.servers, s.plan.models) = (etcd(), Some(models));
            let pause = Fault::new(fault::Pause {}, SECOND);
            assert_eq!(renewed(&mut s, pause, "redis-2", from, to), [expected], "paused from {from} to {to}");
        }
        // The other members of a store do the renewal while this one is down.
        for (members, expected) in [(3, "amnesia"), (1, "unexplained")] {
            let mut s = HistoryBuilder::new();
            s.plan.servers = etcd();
            s.plan.lock_nodes.truncate(members);
            let amnesia = Fault::new(fault::Amnesia::default(), SECOND);
            assert_eq!(renewed(&mut s, amnesia, "redis-1", 500, 1_500), [expected], "{members} members");
        }
    }
}
