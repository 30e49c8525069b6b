//! Tests that the reports are true. They are compared with the truth about the run, which the checker never saw.

use std::collections::{BTreeMap, BTreeSet};

use history::Arm;

use crate::{
    expected::{Judged, Resource, Window},
    model::{
        UNIT_NS, World,
        knobs::{ArmBug, Tokens},
        lock::{DRIFT, LEASE},
        truth::{Delays, Froze, Grant, TrueAct, TrueHold, Truth},
    },
};

/// Everything that was reported and is not true.
pub fn lies(world: &World, j: &Judged) -> Vec<String> {
    let mut lies = Vec::new();
    let judge = Judge { world, truth: &world.truth };
    judge.overlaps(j, &mut lies);
    judge.cut_short(j, &mut lies);
    judge.stale(j, &mut lies);
    judge.dead_claims(j, &mut lies);
    judge.overclaims(j, &mut lies);
    judge.minority_claims(j, &mut lies);
    judge.tokens(j, &mut lies);
    judge.arms(j, &mut lies);
    if j.release.unsafe_releases > world.truth.robberies.len() as u64 {
        lies.push(format!("{} unsafe releases, {} robberies", j.release.unsafe_releases, world.truth.robberies.len()));
    }
    judge.resource(j, &mut lies);
    if world.k.clean() {
        judge.alarms(j, &mut lies);
    }
    lies
}

struct Judge<'a> {
    world: &'a World,
    truth: &'a Truth,
}

impl Judge<'_> {
    fn hold(&self, id: u64) -> &TrueHold {
        &self.truth.holds[&id]
    }

    /// When the promise of a hold really was over, as far as `instant` decides it.
    fn promised(&self, h: &TrueHold, instant: u64) -> u64 {
        let mut end = h.sent + LEASE - DRIFT;
        for (sent, answered) in h.renewals.iter().filter(|renewal| renewal.1 < instant) {
            if *answered < end {
                end = end.max(sent + LEASE - DRIFT);
            }
        }
        end
    }

    /// When the entitlement of a hold really was over.
    fn over(&self, h: &TrueHold) -> u64 {
        let end = self.promised(h, u64::MAX);
        h.over.map_or(end, |o| o.min(end))
    }

    /// `a` was really granted before `b`.
    fn granted_before(&self, a: u64, b: u64) -> bool {
        let at = |attempt| self.truth.granted_by(attempt, self.world.k.enough());
        matches!((at(a), at(b)), (Some(a), Some(b)) if a < b)
    }

    /// Some node really owed the key to both, for at least as long as was reported.
    fn overlaps(&self, j: &Judged, lies: &mut Vec<String>) {
        for ((a, b), window) in &j.lock.overlaps {
            let of = |id: u64| self.truth.grants.iter().filter(move |g| g.attempt == id);
            let both = |x: u64, y: u64| {
                of(x).any(|g| {
                    of(y).any(|h| {
                        let length = g.end().min(h.end()).saturating_sub(g.at.max(h.at));
                        // A key that came back at once was granted all the same.
                        let inside = |x: &Grant, y: &Grant| y.at < x.at && x.at < y.end();
                        let at_once = length > 0 || inside(g, h) || inside(h, g);
                        g.node == h.node && g.key == h.key && at_once && length * UNIT_NS >= window.overlap
                    })
                })
            };
            // Two holds of different nodes need no node that owes the key to both.
            let is_split = [a, b].iter().any(|id| self.is_of_minority(self.hold(**id)));
            if !is_split && !both(*a, *b) {
                lies.push(format!(
                    "lease-overlap of {a} and {b}: no node owed the key to both for {} ns",
                    window.overlap
                ));
            }
            if !self.hold(*a).excludes(self.hold(*b)) {
                lies.push(format!("lease-overlap of {a} and {b}: the two holds do not exclude each other"));
            }
            let own = self.hold(*a).client == self.hold(*b).client;
            if window.own != Some(own) {
                lies.push(format!(
                    "lease-overlap of {a} and {b}: whether both are of one client is not {:?}",
                    window.own
                ));
            }
            let robbed = self.truth.robberies.iter().any(|(_, robber, _)| robber != a && robber != b);
            if window.causes.contains("unsafe-release") && !robbed {
                lies.push(format!("lease-overlap of {a} and {b}: nobody robbed them"));
            }
        }
    }

    /// Some node really granted the key to another while it owed it to the killed hold, and for so long.
    fn cut_short(&self, j: &Judged, lies: &mut Vec<String>) {
        for ((a, b), window) in &j.lock.cut_short {
            let of = |id: u64| self.truth.grants.iter().filter(move |g| g.attempt == id);
            let claimed = self.hold(*b).claimed;
            let owed = |g: &Grant, h: &Grant| {
                let left = g.end().saturating_sub(claimed) * UNIT_NS;
                g.node == h.node && g.key == h.key && h.at < g.end() && g.at < h.end() && left >= window.overlap
            };
            let apart = self.hold(*a).excludes(self.hold(*b));
            if !apart || !self.hold(*a).killed || !of(*a).any(|g| of(*b).any(|h| owed(g, h))) {
                lies.push(format!("cut-short {a} by {b}: no node owed the key to {a} for {} ns more", window.overlap));
            }
        }
    }

    /// Each of so many acts really came after the end, and after a hold that was really granted later had been claimed.
    fn stale(&self, j: &Judged, lies: &mut Vec<String>) {
        for (id, window) in &j.lock.stale {
            let h = self.hold(*id);
            let over = self.over(h);
            let claimed_between = |at: u64| {
                self.truth
                    .holds
                    .iter()
                    .any(|(g, hold)| hold.excludes(h) && g != id && hold.claimed < at && self.granted_before(*id, *g))
            };
            let acts: Vec<_> =
                self.truth.acts.iter().filter(|a| a.hold == *id && a.at > over && claimed_between(a.at)).collect();
            let writes = acts.iter().filter(|a| a.write).count() as u64;
            let reads = acts.len() as u64 - writes;
            if window.reads > reads || window.writes > writes || window.reads + window.writes == 0 {
                lies.push(format!("stale-holder {id}: really {reads} reads and {writes} writes, reported {window:?}"));
            }
            if self.world.is_sharp(*id) {
                self.cause(*id, window, &acts, lies);
            }
        }
    }

    /// Checks the causes of a window whose delays are all planned waits or freezes: the test repeats the hold's script
    /// with only some of the causes.
    fn cause(&self, id: u64, window: &Window, acts: &[&TrueAct], lies: &mut Vec<String>) {
        let h = self.hold(id);
        if self.world.k.renew.is_some() || h.killed || self.world.k.clock_step.is_some() {
            return;
        }
        let overclaimed = |act: &TrueAct| {
            h.deadline > h.sent + LEASE - DRIFT
                || h.checks.iter().any(|at| *at <= act.at && *at > h.sent + LEASE - DRIFT)
        };
        let promise = h.sent + LEASE - DRIFT;
        let mut causes = BTreeSet::new();
        for act in acts {
            if overclaimed(act) {
                causes.insert("overclaim".to_owned());
                continue;
            }
            if h.used.as_ref().is_some_and(|(released, _)| act.sent > *released) {
                // No freeze makes a client use a hold that it has released.
                causes.insert("unexplained".to_owned());
                continue;
            }
            let rerun = |with: &dyn Fn(&Froze) -> bool| {
                let gone = |all: &Delays| -> u64 { all.iter().filter(|(c, _)| !with(c)).map(|(_, n)| n).sum() };
                let used = h.used.as_ref().map_or(u64::MAX, |(at, delays)| at - gone(delays));
                act.at - gone(&act.delays) > promise.min(used)
            };
            let name = |c: &Froze| if matches!(c, Froze::Pause(_)) { "pause" } else { "stall" };
            if rerun(&|_| false) {
                let gone: u64 = act.delays.values().sum();
                causes.extend(self.unmoved(h, act, act.at - gone, window));
                continue;
            }
            let alone: Vec<_> = act.delays.keys().filter(|c| rerun(&|o| o == *c)).collect();
            if alone.is_empty() {
                let mut sets: Vec<Vec<&Froze>> = vec![Vec::new()];
                for c in act.delays.keys() {
                    let more: Vec<_> = sets.iter().map(|s| [s.as_slice(), &[c]].concat()).collect();
                    sets.extend(more);
                }
                let enough = sets.into_iter().filter(|s| rerun(&|o| s.contains(&o))).min_by_key(Vec::len);
                let names: Vec<_> = enough.unwrap_or_default().into_iter().map(name).collect();
                causes.insert(if names.is_empty() { "unexplained".to_owned() } else { names.join("+") });
            }
            causes.extend(alone.into_iter().map(|c| name(c).to_owned()));
        }
        // Of acts that the record does not show to be stale it cannot tell the cause.
        let all = window.reads + window.writes == acts.len() as u64;
        if !window.causes.is_subset(&causes) || (all && causes != window.causes) {
            lies.push(format!("stale-holder {id}: really because of {causes:?}, reported {:?}", window.causes));
        }
    }

    /// The causes of an act that came too late at `arrival`, though nothing delayed it. Steps of up to 30 ms are
    /// ordinary; if one was longer, either may be said: the literal judge says which.
    fn unmoved(&self, h: &TrueHold, act: &TrueAct, arrival: u64, window: &Window) -> Vec<String> {
        const ORDINARY: u64 = 30_000_000 / UNIT_NS;
        let took = arrival - h.sent;
        let is_ordinary = took - act.planned <= ORDINARY;
        let said = |cause: &&str| window.causes.contains(*cause);
        let causes: Vec<&str> = match () {
            () if took <= LEASE - DRIFT => vec!["unexplained"],
            () if act.planned > LEASE - DRIFT || is_ordinary => vec!["overrun"],
            () => ["overrun", "unexplained"].into_iter().filter(said).collect(),
        };
        causes.into_iter().map(str::to_owned).collect()
    }

    fn dead_claims(&self, j: &Judged, lies: &mut Vec<String>) {
        for id in j.lock.dead_claims.keys() {
            let h = self.hold(*id);
            if h.claimed < h.sent + LEASE - DRIFT {
                lies.push(format!("dead claim {id}: it was claimed in time"));
            }
        }
    }

    /// A hold that no majority had granted.
    fn is_of_minority(&self, h: &TrueHold) -> bool {
        h.granted * 2 <= self.world.k.nodes
    }

    /// Exactly those holds that no majority had granted are reported.
    fn minority_claims(&self, j: &Judged, lies: &mut Vec<String>) {
        let really = self.truth.holds.iter().filter(|(_, h)| self.is_of_minority(h));
        let really: BTreeMap<u64, u64> = really.map(|(id, h)| (*id, h.granted as u64)).collect();
        if j.lock.minority_claims != really {
            lies.push(format!("minority claims: really {really:?}, reported {:?}", j.lock.minority_claims));
        }
    }

    /// Exactly those clients overclaimed that believed in their holds for too long.
    fn overclaims(&self, j: &Judged, lies: &mut Vec<String>) {
        for (id, h) in &self.truth.holds {
            let first = h.sent + LEASE - DRIFT;
            let deadline = (h.deadline > h.claimed && h.deadline > first).then(|| h.deadline - first);
            let checks: Vec<u64> =
                h.checks.iter().map(|at| at.saturating_sub(self.promised(h, *at))).filter(|late| *late > 0).collect();
            let really = deadline.or(checks.first().copied()).map(|past| (past * UNIT_NS, checks.len() as u64));
            let reported = j.lock.overclaims.get(id).copied();
            if reported != really {
                lies.push(format!("overclaim {id}: really {really:?}, reported {reported:?}"));
            }
        }
    }

    fn tokens(&self, j: &Judged, lies: &mut Vec<String>) {
        let holds = || self.truth.holds.iter();
        let same = |a: &TrueHold, b: &TrueHold| a.excludes(b);
        let back = holds().filter(|(id, g)| {
            holds().any(|(o, h)| {
                same(g, h)
                    && self.granted_before(*o, **id)
                    && h.token.is_some()
                    && g.token.is_some()
                    && h.token >= g.token
            })
        });
        let back = back.count() as u64;
        let twins =
            |(id, g)| holds().filter(move |(o, h)| *o < id && same(g, h) && g.token.is_some() && h.token == g.token);
        let shared = holds().map(|hold| twins(hold).count() as u64).sum::<u64>();
        if j.tokens.backwards > back || (self.world.k.tokens != Tokens::None && j.tokens.shared != shared) {
            lies.push(format!("tokens: really {back} backwards, {shared} shared, reported {:?}", j.tokens));
        }
    }

    /// By the true order of grants, and what each arm should have decided.
    fn arms(&self, j: &Judged, lies: &mut Vec<String>) {
        for (index, arm) in self.world.k.arms.iter().enumerate() {
            let wrong = self.truth.acts.iter().filter(|a| a.write && !a.decided[index].2).count() as u64;
            let stale = self.stale_accepted(index, *arm);
            let (data, name) = (&j.data[arm.name()], arm.name());
            if let Some(fence) = j.fence.get(name) {
                if fence.stale_accepted > stale {
                    lies.push(format!("{name}: really {stale} stale accepted, reported {}", fence.stale_accepted));
                }
                if fence.unjustified != wrong {
                    lies.push(format!("{name}: really {wrong} wrong decisions, reported {}", fence.unjustified));
                }
            } else if data.stale_accepted.unwrap_or(0) > stale || (arm.keeps_data() && data.unjustified != wrong) {
                lies.push(format!("{name}: really {stale} stale accepted, {wrong} wrong, reported {data:?}"));
            }
            self.lost(j, index, *arm, lies);
        }
    }

    /// The resource does nothing wrong but decide, unless a bug is planted.
    fn resource(&self, j: &Judged, lies: &mut Vec<String>) {
        let has = |bug| self.world.k.arm_bugs.contains(&bug);
        let off = self.world.k.arms.iter().position(|arm| *arm == Arm::Off);
        let refused = |act: &&TrueAct| act.write && off.is_some_and(|off| !act.decided[off].1);
        let refused = self.truth.acts.iter().filter(refused).count() as u64;
        let forgets = has((Arm::Reads, ArmBug::Forgets));
        let right = Resource {
            verdict: j.resource.verdict.clone(),
            wrong_refusals: refused,
            wrong_tokens: if forgets { j.resource.wrong_tokens } else { 0 },
            wrong_answers: if forgets { j.resource.wrong_answers } else { 0 },
            ..Resource::default()
        };
        let is_right = (j.resource.verdict == "upheld") != (forgets || refused > 0)
            || (forgets && j.resource.verdict == "upheld" && right.wrong_tokens + right.wrong_answers == 0);
        if j.resource != right || !is_right {
            lies.push(format!("the resource: {:?}, {refused} refused by off, reads forgets: {forgets}", j.resource));
        }
    }

    fn stale_accepted(&self, index: usize, arm: Arm) -> u64 {
        let mut first: BTreeMap<u64, u64> = BTreeMap::new();
        let mut stale = 0;
        for act in &self.truth.acts {
            let admitted = act.decided[index].1;
            let overtaken = first.iter().any(|(g, _)| {
                let excludes = |h: &TrueHold| self.truth.holds.get(&act.hold).is_some_and(|own| own.excludes(h));
                self.truth.holds.get(g).is_some_and(excludes) && self.granted_before(act.hold, *g)
            });
            stale += u64::from(act.write && admitted && overtaken);
            if admitted && (act.write || arm != Arm::Writes) {
                first.entry(act.hold).or_insert(act.number);
            }
        }
        stale
    }

    /// The counter counts what was not lost, where nothing makes it jump.
    fn lost(&self, j: &Judged, index: usize, arm: Arm, lies: &mut Vec<String>) {
        let data = &j.data[arm.name()];
        if data.disagreements > 0 {
            if !self.world.k.arm_bugs.iter().any(|b| b.0 == arm) {
                lies.push(format!("{arm}: the counter was right, reported {data:?}"));
            }
            return;
        }
        let updates = self.truth.acts.iter().filter(|a| a.write && a.decided[index].1).count() as u64;
        let counted: u64 = self.truth.counters.iter().filter(|(k, _)| k.1 == arm).map(|(_, v)| v).sum();
        let jumps = self.world.k.arm_bugs.contains(&(arm, ArmBug::Miscounts));
        if data.updates != updates || (!jumps && data.lost_updates != updates - counted) {
            lies.push(format!("{arm}: really {updates} updates, {counted} counted, reported {data:?}"));
        }
    }

    /// No alarm where everything is right and nothing happens.
    fn alarms(&self, j: &Judged, lies: &mut Vec<String>) {
        let property = [("lock", &j.lock.verdict), ("tokens", &j.tokens.verdict), ("release", &j.release.verdict)];
        let fences = j.fence.iter().map(|(n, f)| (n.as_str(), &f.verdict));
        let data = j.data.iter().map(|(n, d)| (n.as_str(), &d.verdict));
        for (name, verdict) in property.into_iter().chain(fences).chain(data) {
            if verdict == "violated" || verdict == "inconclusive" {
                lies.push(format!("{name} is {verdict} in a world without faults"));
            }
        }
        if j.data.values().any(|d| d.lost_updates > 0) || j.fence.values().any(|f| f.stale_rejected + f.late > 0) {
            lies.push(format!("a world without faults lost something: {:?} {:?}", j.data, j.fence));
        }
    }
}
