//! A window, told so that a person can follow it.

use std::time::Duration;

use history::{
    Arm, ArmDecision, ClockChange, Event, Fault, FaultKind, Late, Range, RequestKind, Stamp, Token, WhichClock,
};

use crate::{
    expiry,
    faults::Line,
    holds::{Attempt, Ender, Mark, Nodes},
    judge::Ending,
    lock::{Act, Brief, Overlap, Watch},
    property::StoryLine,
    run::Run,
};

/// What one arm made of a request.
#[derive(Debug, Clone)]
struct ArmNote {
    decision: ArmDecision,
    /// The version that the arm had before.
    before: u64,
    /// Updates that the write cost.
    overwritten: u64,
}

/// One request, as stories need it.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    number: u64,
    kind: RequestKind,
    token: Option<Token>,
    arms: Vec<ArmNote>,
}

/// Remembers the last state of a key, so that a note can say what a request changed.
#[derive(Debug, Default)]
pub(crate) struct Scribe {
    /// Version and counter of each arm, in the order of the resource's answers.
    arms: Vec<(Arm, u64, u64)>,
}

impl Scribe {
    /// Notes an admission; comes before [`Scribe::remember`].
    pub fn note(&self, event: &Event) -> Note {
        let Event::Admission { number, kind, token, arms, .. } = event else {
            return Note { number: 0, kind: RequestKind::Read, token: None, arms: Vec::new() };
        };
        let arms = arms.iter().map(|decision| {
            let last = self.arms.iter().find(|(arm, ..)| *arm == decision.arm);
            let (before, value) = last.map_or((0, 0), |(_, version, value)| (*version, *value));
            let is_update = *kind == RequestKind::Write && decision.admitted;
            // The counter counts what the value contains: an update that contains no more than before cost one.
            let overwritten = if is_update { (value + 1).saturating_sub(decision.value) } else { 0 };
            ArmNote { decision: decision.clone(), before, overwritten }
        });
        Note { number: *number, kind: *kind, token: *token, arms: arms.collect() }
    }

    /// Takes in the state that an admission left.
    pub fn remember(&mut self, event: &Event) {
        let Event::Admission { arms, .. } = event else { return };
        self.arms.clear();
        self.arms.extend(arms.iter().map(|d| (d.arm, d.version, d.value)));
    }
}

impl Note {
    fn what(&self) -> String {
        let token = self.token.map(|t| format!(" with token {t}")).unwrap_or_default();
        if self.kind == RequestKind::Read {
            let version = self.arms.first().map_or(0, |a| a.decision.version);
            return format!("read #{version}{token}");
        }
        let base = self.arms.iter().find_map(|a| a.decision.base);
        let over = match base {
            Some(0) => " over nothing".into(),
            Some(base) => format!(" over #{base}"),
            None => String::new(),
        };
        let verdicts = self.grouped();
        match verdicts.as_slice() {
            [(_, all, true)] => {
                format!("wrote #{}{over}{token}: {}", self.number, all.replacen("accepted", "admitted", 1))
            }
            [(_, all, false)] => format!("wrote{over}{token}: {all}"),
            several => {
                let told = several.iter().map(|(arms, what, is_admitted)| {
                    let number = if *is_admitted { format!("accepted as #{}", self.number) } else { String::new() };
                    format!("{}: {}", arms.join(", "), what.replacen("accepted", &number, 1))
                });
                format!("wrote{over}{token}: {}", told.collect::<Vec<_>>().join(" · "))
            }
        }
    }

    /// Arms that decided alike, refusals first.
    fn grouped(&self) -> Vec<(Vec<&'static str>, String, bool)> {
        let mut groups: Vec<(Vec<&'static str>, String, bool)> = Vec::new();
        for is_admitted in [false, true] {
            for arm in self.arms.iter().filter(|a| a.decision.admitted == is_admitted) {
                let what = arm.what();
                match groups.iter_mut().find(|(_, w, _)| *w == what) {
                    Some((arms, ..)) => arms.push(arm.decision.arm.name()),
                    None => groups.push((vec![arm.decision.arm.name()], what, is_admitted)),
                }
            }
        }
        groups
    }
}

impl ArmNote {
    fn what(&self) -> String {
        let d = &self.decision;
        match (d.admitted, self.overwritten) {
            (true, 0) => "accepted".into(),
            (true, 1) => "accepted, one update overwritten".into(),
            (true, n) => format!("accepted, {n} updates overwritten"),
            (false, _) if d.arm == Arm::Claim => "rejected, its claim is not the newest".into(),
            (false, _) if d.arm == Arm::Cas => format!("rejected, #{} is current", self.before),
            (false, _) => {
                // The status of an answer that speaks for several arms is that of `writes`.
                let status = if d.arm == Arm::Writes { " (409)" } else { "" };
                let seen = d.seen.map_or_else(String::new, |seen| format!(", {seen} seen"));
                format!("rejected{status}{seen}")
            }
        }
    }
}

fn seconds(d: Duration) -> String {
    format!("{:.2} s", d.as_secs_f64())
}

/// "k0: worker-1 acted 3.05 s after worker-2 took over".
pub(crate) fn stale_headline(run: &Run, key: usize, own: &Brief, later: &Brief, staleness: Duration) -> String {
    let (key, who, after) = (run.key(key), run.who(own.process, own.client), seconds(staleness));
    if own.client == later.client {
        return format!("{key}: {who} acted under an old hold {after} after it had acquired a new one");
    }
    format!("{key}: {who} acted {after} after {} took over", run.who(later.process, later.client))
}

/// "k0: worker-1 and worker-2 were both entitled for 0.52 s".
pub(crate) fn overlap_headline(run: &Run, overlap: &Overlap) -> String {
    let [a, b] = overlap.holds.each_ref().map(|h| run.who(h.process, h.client));
    format!("{}: {a} and {b} were both entitled for {}", run.key(overlap.key), seconds(overlap.length))
}

/// What a fault did to its target, in one line.
fn what_was_done(line: &Line, fault: Option<&Fault>) -> String {
    let (node, did) = (&line.node, line.kind.did());
    let lasted = line.proved.map(|(from, to)| to.since(from).as_secs_f64());
    let lasted = lasted.map_or_else(|| "not proved".into(), |s| format!("{s:.1} s"));
    let span = |by: &Range| format!("{:.2} to {:.2} s", by.from.as_secs_f64(), by.to.as_secs_f64());
    match (line.kind, fault) {
        (FaultKind::Pause, _) if line.proved.is_some() => format!("{did} {node} (frozen {lasted})"),
        (FaultKind::Pause | FaultKind::Stop, _) => format!("{did} {node} ({lasted})"),
        (FaultKind::Slow, Some(Fault::Slow { percent, .. })) => {
            format!("{did} {node} down to {percent} % of a processor ({lasted})")
        }
        (FaultKind::Amnesia, _) => format!("restarted {node} without its data"),
        (FaultKind::Partition, _) => format!("cut {node} off ({lasted})"),
        (FaultKind::Delay, Some(Fault::Delay { by, .. })) => {
            let by = match by {
                Late::Fixed(by) => format!("{:.1} s", by.as_secs_f64()),
                Late::Drawn(by) => span(by),
            };
            format!("{did} {node} by {by} ({lasted})")
        }
        (FaultKind::Reorder, Some(Fault::Reorder { by, .. })) => format!("{did} {node} by {} ({lasted})", span(by)),
        (FaultKind::Loss, Some(Fault::Loss { percent, .. })) => {
            format!("lost {percent} % of the packets of {node} ({lasted})")
        }
        (FaultKind::Clock, Some(Fault::Clock { clock, change, .. })) => {
            let clock = match clock {
                WhichClock::Wall => "the wall clock",
                WhichClock::Monotonic => "the monotonic clock",
                WhichClock::Both => "the clocks",
            };
            match change {
                ClockChange::JumpMs(by) => format!("moved {clock} of {node} by {:+.1} s", *by as f64 / 1e3),
                ClockChange::DriftPpm(ppm) => {
                    let pace = if *ppm < 0 { "slow" } else { "fast" };
                    let percent = f64::from(ppm.unsigned_abs()) / 1e4;
                    format!("made {clock} of {node} run {percent:.1} % {pace} ({lasted})")
                }
                ClockChange::Strobe { by_ms, every_ms } => {
                    let (by, every) = (*by_ms as f64 / 1e3, *every_ms as f64 / 1e3);
                    format!("made {clock} of {node} jump by {by:+.1} s and back, every {every:.2} s ({lasted})")
                }
            }
        }
        _ => format!("{did} {node}"),
    }
}

/// Lines of a story, to be put in order.
struct Lines<'a> {
    run: &'a Run,
    lines: Vec<(Stamp, String, String)>,
}

impl<'a> Lines<'a> {
    fn new(run: &'a Run) -> Self {
        Lines { run, lines: Vec::new() }
    }

    fn say(&mut self, at: Stamp, who: impl Into<String>, what: impl Into<String>) {
        self.lines.push((at, who.into(), what.into()));
    }

    fn at(&self, stamp: Stamp) -> String {
        format!("{:.3} s", self.run.ms(stamp) / 1e3)
    }

    fn acquired(&mut self, hold: &Brief, promise: Option<Stamp>) {
        let token = hold.token.map(|t| format!(", token {t}")).unwrap_or_default();
        let until = promise.map(|end| format!(", entitled until {}", self.at(end))).unwrap_or_default();
        self.say(hold.ok.at, self.run.who(hold.process, hold.client), format!("acquired{token}{until}"));
    }

    /// Faults that hit a node between two instants.
    fn faults(&mut self, node: &history::NodeName, from: Stamp, to: Stamp) {
        let run = self.run;
        for (id, line) in run.faults.iter().filter(|(_, line)| line.node == *node) {
            let Some((requested, healed)) = line.bracket() else { continue };
            if healed < from || requested > to {
                continue;
            }
            // Where the target shows when it stopped, that is when; the request came some milliseconds before.
            let at = line.proved.map_or(requested, |(from, _)| from.max(requested));
            let step = run.plan.schedule.iter().find(|step| step.id == id);
            self.say(at, "nemesis", what_was_done(line, step.map(|step| &step.fault)));
            let is_set_back = matches!(
                step.map(|step| &step.fault),
                Some(Fault::Clock { clock, change: ClockChange::JumpMs(_), .. }) if clock.is_wall()
            );
            if let Some(at) = line.heal_requested.filter(|at| is_set_back && *at <= to) {
                self.say(at, "nemesis", format!("set the wall clock of {node} back"));
            }
        }
    }

    /// Stalls that no pause explains: those that matter, so that a story stays one.
    fn stalls(&mut self, who: &str, node: &history::NodeName, stalls: &[(Stamp, Stamp)], from: Stamp, to: Stamp) {
        let pauses = self.run.faults.pauses_on(node);
        let is_short = |d: Duration| d < self.run.plan.lease / 10;
        let told: Vec<_> = (stalls.iter())
            .filter(|s| s.1 > from && s.0 < to && !is_short(s.1.since(s.0)))
            .filter(|s| !pauses.iter().any(|p| crate::rules::overlap(**s, *p).is_some()))
            .take(5)
            .collect();
        for stall in told {
            self.say(stall.0, who, format!("stalled for {}: no fault did it", seconds(stall.1.since(stall.0))));
        }
    }

    fn ended(&mut self, hold: &Attempt, who: &str) {
        let Some((mark, ender)) = hold.ended_by() else { return };
        let what = match ender {
            Ender::Release => "began to release",
            Ender::GaveUp => "gave the hold up",
            Ender::Loss => "noticed that the hold was lost",
            Ender::Kill(_) => return,
        };
        self.say(mark.at, who, what);
    }

    fn acts(&mut self, who: &str, acts: &[Act]) {
        for act in acts {
            self.say(act.mark.at, who, act.note.what());
        }
    }

    fn told(mut self) -> Vec<StoryLine> {
        self.lines.sort_by_key(|line| line.0);
        let run = self.run;
        self.lines.into_iter().map(|(at, who, what)| StoryLine { at_ms: run.ms(at), who, what }).collect()
    }
}

/// The story of a stale hold: what it was promised, what happened to it, who came after it, what it did then.
pub(crate) fn of_stale(run: &Run, hold: &Attempt, own: &Brief, watch: &Watch) -> Vec<StoryLine> {
    let (Some(stale), Some(later), Some(grant)) = (&watch.stale, &watch.first_later, hold.grant) else {
        return Vec::new();
    };
    let mut lines = Lines::new(run);
    let (who, node) = (run.who(hold.process, hold.client), &run.process(hold.process).node);
    lines.acquired(own, Some(grant.first_promise));
    if let Some(ok) = hold.renewed {
        let until = lines.at(hold.promise);
        lines.say(ok.at, &who, format!("renewed for the last time, entitled until {until}"));
    }
    lines.faults(node, hold.sent.at, stale.last.at);
    lines.stalls(&who, node, &hold.stalls, hold.sent.at, stale.last.at);
    let resource = history::NodeName::from("resource");
    lines.faults(&resource, hold.sent.at, stale.last.at);
    if run.plan.workload.renew.is_some() {
        // They may have kept it from renewing.
        run.plan.lock_nodes.iter().for_each(|node| lines.faults(node, hold.sent.at, stale.last.at));
    }
    lines.stalls("resource", &resource, &hold.resource_stalls, hold.sent.at, stale.last.at);
    lines.ended(hold, &who);
    lines.acquired(later, None);
    if let Some((Mark { at, .. }, note)) = &watch.later_write {
        lines.say(*at, run.who(later.process, later.client), note.what());
    }
    lines.acts(&who, &stale.acts);
    lines.told()
}

/// The story of two holds at once.
pub(crate) fn of_overlap(run: &Run, overlap: &Overlap, ending: &Ending) -> Vec<StoryLine> {
    let [first, second] = &overlap.holds;
    let mut lines = Lines::new(run);
    lines.acquired(first, Some(first.promise));
    lines.acquired(second, Some(second.promise));
    let is_one_store = expiry::is_one_store(run);
    for node in run.lock_nodes(if is_one_store { Nodes::MAX } else { first.nodes & second.nodes }) {
        lines.faults(node, first.sent.at, second.ok.at);
    }
    let removed = ending.unsafe_releases.iter().filter(|u| u.owner == first.id && u.answered.at <= second.ok.at);
    for found in removed.take(5) {
        let node = &run.plan.lock_nodes[found.node];
        let what = format!("did what attempt {} asked, though hold {} owned the key", found.attempt, found.owner);
        lines.say(found.answered.at, node.as_str(), what);
    }
    lines.told()
}

#[cfg(test)]
mod tests {
    use crate::scene::Scene;

    fn told(scene: &Scene) -> String {
        let window = scene.window();
        let lines = window.story.iter().map(|l| format!("{:>8.3} s  {:<11}  {}\n", l.at_ms / 1e3, l.who, l.what));
        format!("{}\n{}", window.headline, lines.collect::<String>())
    }

    #[test]
    fn where_a_worker_has_several_clients_they_are_named() {
        let mut scene = Scene::new();
        scene.plan.workload.clients_per_worker = 10;
        scene.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 22).stall("worker-1", 100, 2_500);
        scene.acquire(2, 2, 2_000, 2_010, 42).read(2, 1, 2_020, 2_022).write(2, 2, 2_100, 2_110).release(2, 2_120);
        scene.write(1, 2, 2_501, 2_502).release_refused(1, 2_510);
        let expected = "\
k0: worker-1/c0 acted 0.49 s after worker-2/c1 took over
   0.010 s  worker-1/c0  acquired, token 41, entitled until 1.978 s
   0.100 s  worker-1/c0  stalled for 2.40 s: no fault did it
   2.010 s  worker-2/c1  acquired, token 42
   2.110 s  worker-2/c1  wrote #3 over nothing with token 42: admitted
   2.502 s  worker-1/c0  wrote over nothing with token 41: writes: rejected (409), 42 seen · reads: rejected, 42 seen · cas: rejected, #3 is \
                        current · claim: rejected, its claim is not the newest · off: accepted as #4, one update overwritten
";
        assert_eq!(told(&scene), expected);
    }

    #[test]
    fn a_renewed_hold_is_told_with_its_last_promise() {
        let mut scene = Scene::renewing(600);
        scene.acquire(1, 1, 0, 10, 41).renew(1, 600, 605).pause(1, "worker-1", 700, 5_700);
        scene.acquire(2, 2, 3_000, 3_010, 42).release(2, 3_100).read(1, 1, 5_701, 5_702).release_refused(1, 5_710);
        let expected = "\
k0: worker-1 acted 2.69 s after worker-2 took over
   0.010 s  worker-1     acquired, token 41, entitled until 1.978 s
   0.605 s  worker-1     renewed for the last time, entitled until 2.578 s
   0.700 s  nemesis      paused worker-1 (frozen 5.0 s)
   3.010 s  worker-2     acquired, token 42
   5.702 s  worker-1     read #0 with token 41
";
        assert_eq!(told(&scene), expected);
    }

    #[test]
    fn two_holds_at_once_are_told_with_their_promises() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 100, 110, 42).release(1, 600).release(2, 700);
        let expected = "\
k0: worker-1 and worker-2 were both entitled for 0.49 s
   0.010 s  worker-1     acquired, token 41, entitled until 1.978 s
   0.110 s  worker-2     acquired, token 42, entitled until 2.078 s
";
        assert_eq!(told(&scene), expected);
    }

    #[test]
    fn every_fault_is_told_in_one_line() {
        use std::time::Duration;

        use history::{ClockChange, Direction, Fault, Range, WhichClock};

        let (lasting, back_after, by) = (Duration::from_secs(1), Duration::from_secs(1), Duration::from_millis(800));
        let clock = |clock, change| Fault::Clock { clock, change, lasting };
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_010, 42).release(2, 1_020).release_refused(1, 1_030);
        scene.blow(1, clock(WhichClock::Wall, ClockChange::JumpMs(20_000)), "redis-1", 100, 900);
        scene.blow(2, clock(WhichClock::Both, ClockChange::DriftPpm(-50_000)), "redis-1", 200, 1_200);
        scene.blow(3, Fault::Amnesia { back_after, counters_of: Vec::new() }, "redis-2", 300, 1_300);
        scene.blow(4, Fault::Powerloss { back_after }, "redis-2", 400, 1_400);
        let (direction, cut) = (Direction::Both, history::Cut::Drop);
        scene.blow(5, Fault::Partition { lasting, direction, from: vec![], cut }, "redis-3", 500, 3_500);
        scene.blow(
            6,
            Fault::Delay { lasting, by: by.into(), direction: Direction::In, from: vec![] },
            "redis-3",
            600,
            1_600,
        );
        scene.blow(7, Fault::Kill { back_after }, "redis-3", 700, 1_700);
        let (direction, by) = (Direction::Both, Range { from: Duration::ZERO, to: Duration::from_millis(80) });
        scene.blow(8, Fault::Loss { lasting, percent: 30, direction, from: vec![] }, "redis-2", 750, 1_750);
        scene.blow(9, Fault::Reorder { lasting, by, direction, from: vec![] }, "redis-1", 800, 1_800);
        let expected = "\
k0: worker-1 and worker-2 were both entitled for 0.01 s
   0.010 s  worker-1     acquired, token 41, entitled until 1.978 s
   0.100 s  nemesis      moved the wall clock of redis-1 by +20.0 s
   0.200 s  nemesis      made the clocks of redis-1 run 5.0 % slow (1.0 s)
   0.300 s  nemesis      restarted redis-2 without its data
   0.400 s  nemesis      cut the power of redis-2
   0.500 s  nemesis      cut redis-3 off (3.0 s)
   0.600 s  nemesis      slowed the links of redis-3 by 0.8 s (1.0 s)
   0.700 s  nemesis      killed redis-3
   0.750 s  nemesis      lost 30 % of the packets of redis-2 (1.0 s)
   0.800 s  nemesis      disordered the packets of redis-1 by 0.00 to 0.08 s (1.0 s)
   0.895 s  nemesis      set the wall clock of redis-1 back
   1.010 s  worker-2     acquired, token 42, entitled until 2.978 s
";
        assert_eq!(told(&scene), expected);
    }
}
