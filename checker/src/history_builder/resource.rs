//! The resource of a builder: it decides by its own rule, written down a second time for the tests, unless a test bends
//! what it decided.

use std::collections::BTreeMap;

use history::{
    Arm, ArmDecision, ArmReadAnswer, ArmWriteAnswer, Comparison, Deadline, Event, HoldId, Key, OpId, ProcessName,
    RequestKind, Stamp, Token,
};

use super::{Arrival, HistoryBuilder, ms};

/// Version, counter, and the largest token with the hold that brought it first.
type ArmState = (u64, u64, Option<(Token, u64)>);

impl HistoryBuilder {
    /// Changes the answers to copies of a request.
    pub fn alter_repeats(&mut self, alter: impl Fn(u64, &mut Vec<ArmDecision>) + 'static) -> &mut Self {
        self.alter_repeats = Some(Box::new(alter));
        self
    }

    /// Changes answers and admissions, after everything has been decided and answered.
    pub fn alter_requests(&mut self, alter: impl Fn(&mut Event) + 'static) -> &mut Self {
        self.alter_requests = Some(Box::new(alter));
        self
    }

    /// The record lacks the invocation of a write.
    pub fn drop_invocation(&mut self, hold: u64, op: u32) -> &mut Self {
        let (hold, op) = (HoldId(hold), OpId(op.into()));
        self.events.retain(|(.., event)| *event != Event::Write { hold, op });
        self
    }

    /// The record lacks an admission.
    pub fn drop_admission(&mut self, number: u64) -> &mut Self {
        self.dropped = Some(number);
        self
    }

    /// Admissions are reported with other numbers than they were decided with.
    pub fn renumber(&mut self, numbers: &[(u64, u64)]) -> &mut Self {
        self.renumbered = numbers.to_vec();
        self
    }

    /// Admission `number` is undone: what comes after it is decided from the state after `durable`.
    pub fn forget(&mut self, number: u64, durable: u64) -> &mut Self {
        self.forgotten.push((number, durable));
        self
    }

    /// Answers the clients as their requests were decided.
    pub(super) fn answer(all: &mut [(ProcessName, Stamp, Event)]) {
        let mut decided: BTreeMap<(HoldId, OpId), (Option<Token>, Vec<ArmDecision>)> = BTreeMap::new();
        for (.., event) in all.iter() {
            if let Event::Admission { hold: Some(hold), op: Some(op), token, arms, repeat: false, .. } = event {
                decided.entry((*hold, *op)).or_insert_with(|| (*token, arms.clone()));
            }
        }
        for (.., event) in all {
            match event {
                Event::ReadOk { hold, op, arms, .. } => {
                    let (token, decisions) = decided.get(&(*hold, *op)).cloned().unwrap_or_default();
                    let read = |d: &ArmDecision| {
                        let own = token.filter(|_| d.arm == Arm::Reads);
                        ArmReadAnswer { arm: d.arm, version: d.version, seen: d.seen.max(own) }
                    };
                    *arms = Some(decisions.iter().map(read).collect());
                }
                Event::WriteOk { hold, op, arms, .. } => {
                    let (_, decisions) = decided.get(&(*hold, *op)).cloned().unwrap_or_default();
                    let written = |d: &ArmDecision| ArmWriteAnswer { arm: d.arm, admitted: d.admitted, seen: d.seen };
                    *arms = Some(decisions.iter().map(written).collect());
                }
                _ => {}
            }
        }
    }

    /// The decisions of the resource, by its own rule.
    pub(super) fn admissions(&self) -> Vec<(ProcessName, Stamp, Event)> {
        let mut arrivals = self.arrivals.clone();
        arrivals.sort_by_key(|a| a.at);
        let mut states: BTreeMap<Arm, ArmState> = BTreeMap::new();
        let mut depths: BTreeMap<(Arm, u64), u64> = BTreeMap::new();
        let mut told: BTreeMap<(Arm, u64), u64> = BTreeMap::new();
        // The hold whose read was decided last.
        let mut claim: Option<u64> = None;
        let mut snapshots = Vec::new();
        let mut number = 0;
        let mut former: BTreeMap<(u64, u32), Event> = BTreeMap::new();
        let mut decide = |a: &Arrival| {
            let restarts =
                self.events.iter().filter(|(_, at, e)| matches!(e, Event::Recovered { .. }) && *at <= ms(a.at));
            let incarnation = u32::try_from(restarts.count()).unwrap() + 1;
            let resource = ProcessName::of(&"resource".into(), incarnation);
            if let Some(mut event) = former.get(&(a.hold, a.op)).filter(|_| a.repeat).cloned() {
                if let Event::Admission { repeat, arms, .. } = &mut event {
                    *repeat = true;
                    if let Some(alter) = &self.alter_repeats {
                        alter(number, arms);
                    }
                }
                return (resource, ms(a.at), event);
            }
            number += 1;
            // KeyLease as it was before each decision.
            snapshots.push((states.clone(), told.clone()));
            if let Some((_, durable)) = self.forgotten.iter().find(|(forgotten, _)| forgotten + 1 == number) {
                (states, told) = snapshots[usize::try_from(*durable).unwrap()].clone();
            }
            let token = self.workers[&a.hold].1;
            let mut arms: Vec<ArmDecision> = Vec::new();
            if a.kind == RequestKind::Read {
                claim = Some(a.hold);
            }
            for arm in self.plan.arms.iter().copied() {
                let (version, value, seen) = states.entry(arm).or_default();
                let before = seen.map(|(token, _)| token);
                let base = (a.kind == RequestKind::Write)
                    .then(|| a.base.or(told.get(&(arm, a.hold)).copied()).unwrap_or(*version));
                let is_stale = match (token, *seen) {
                    (Some(t), Some((largest, first))) => {
                        let is_strict = self.plan.fence == Comparison::Strict;
                        t < largest || (t == largest && (first != a.hold || is_strict))
                    }
                    _ => false,
                };
                let admitted = match (base, arm) {
                    (None, _) | (_, Arm::Off) => true,
                    (_, Arm::Writes | Arm::Reads) => !is_stale,
                    (base, Arm::Cas) => base == Some(*version),
                    (_, Arm::Claim) => claim == Some(a.hold),
                    (_, Arm::Deadline | Arm::Guard) => true,
                };
                if let Some(base) = base
                    && admitted
                {
                    *value = depths.get(&(arm, base)).copied().unwrap_or(0) + 1;
                    *version = number;
                    depths.insert((arm, number), *value);
                }
                let registers = admitted && (base.is_some() || arm == Arm::Reads);
                if let Some(t) = token
                    && registers
                    && seen.is_none_or(|(largest, _)| t > largest)
                {
                    *seen = Some((t, a.hold));
                }
                told.insert((arm, a.hold), *version);
                arms.push(ArmDecision { arm, admitted, seen: before, base, version: *version, value: *value });
            }
            if let Some(alter) = &self.alter_decisions {
                alter(number, &mut arms);
            }
            let (hold, op) = (Some(HoldId(a.hold)), Some(OpId(a.op.into())));
            let kind = a.kind;
            let deadline = (kind == RequestKind::Write).then_some(Deadline { until_us: 1, read_us: 1 });
            let shown = self.renumbered.iter().find(|(from, _)| *from == number).map_or(number, |(_, to)| *to);
            let event = Event::Admission {
                number: shown,
                key: Key::numbered(u32::from(self.plan.workload.parent().is_some())),
                kind,
                hold,
                op,
                token,
                deadline,
                repeat: false,
                arms,
            };
            former.insert((a.hold, a.op), event.clone());
            (resource, ms(a.at), event)
        };
        arrivals.iter().map(&mut decide).collect()
    }
}
