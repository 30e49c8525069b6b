//! One request to the resource, as stories tell it.

use std::cmp::Ordering;

use history::{Arm, ArmDecision, Event, RequestKind, Token};

use crate::per_key::CountsPerKey;

/// The decision of one arm on a request.
#[derive(Debug, Clone)]
struct ArmSummary {
    decision: ArmDecision,
    /// Updates that the write cost.
    overwritten: u64,
}

/// One request, as stories need it.
#[derive(Debug, Clone)]
pub(crate) struct RequestSummary {
    number: u64,
    kind: RequestKind,
    token: Option<Token>,
    arms: Vec<ArmSummary>,
}

/// Remembers the counter of every key, so that a note can say what a request changed.
#[derive(Debug, Default)]
pub(crate) struct LastDecisions {
    arms: Vec<Arm>,
    /// The counter of each key on each arm: of the first key on all arms, then of the second key.
    counters: CountsPerKey<1>,
}

impl LastDecisions {
    pub fn new(arms: &[Arm]) -> Self {
        LastDecisions { arms: arms.to_vec(), counters: CountsPerKey::default() }
    }

    fn place(&self, key: usize, arm: Arm) -> Option<usize> {
        Some(key * self.arms.len() + self.arms.iter().position(|of| *of == arm)?)
    }

    /// Notes an admission; comes before [`LastDecisions::remember`].
    pub fn note(&self, key: usize, event: &Event) -> RequestSummary {
        let Event::Admission { number, kind, token, arms, .. } = event else {
            return RequestSummary { number: 0, kind: RequestKind::Read, token: None, arms: Vec::new() };
        };
        let arms = arms.iter().map(|decision| {
            let [value] = self.place(key, decision.arm).map_or([0], |place| self.counters.get(place));
            let is_update = *kind == RequestKind::Write && decision.admitted;
            // The counter counts what the value contains: an update that contains no more than before cost one.
            let overwritten = if is_update { value.saturating_add(1).saturating_sub(decision.value) } else { 0 };
            ArmSummary { decision: decision.clone(), overwritten }
        });
        RequestSummary { number: *number, kind: *kind, token: *token, arms: arms.collect() }
    }

    /// Takes in the counters that an admission left.
    pub fn remember(&mut self, key: usize, event: &Event) {
        let Event::Admission { arms, .. } = event else { return };
        for decision in arms {
            if let Some(place) = self.place(key, decision.arm) {
                self.counters.set(place, [decision.value]);
            }
        }
    }
}

impl RequestSummary {
    pub fn what(&self) -> String {
        let token = self.token.map(|t| format!(" with token {t}")).unwrap_or_default();
        if self.kind == RequestKind::Read {
            return match self.versions(|decision| Some(decision.version)).as_slice() {
                [] => format!("read the empty key{token}"),
                [(version, _)] => format!("read {version}{token}"),
                several => format!("read{token}: {}", by_arm(several)),
            };
        }
        let base = match self.versions(|decision| decision.base).as_slice() {
            [] => String::new(),
            [(base, _)] => format!(" (based on {base})"),
            several => format!(" (based on {})", by_arm(several)),
        };
        let verdicts = self.grouped();
        match verdicts.as_slice() {
            [(_, all, true)] => {
                format!("wrote version {}{base}{token}: {all}", self.number)
            }
            [(_, all, false)] => format!("tried to write{base}{token}: {all}"),
            several => {
                let told = several.iter().map(|(arms, what, is_admitted)| {
                    let number = if *is_admitted { format!(" as version {}", self.number) } else { String::new() };
                    format!("{}: {}", arms.join(", "), what.replacen("admitted", &format!("admitted{number}"), 1))
                });
                format!("tried to write{base}{token}: {}", told.collect::<Vec<_>>().join(" · "))
            }
        }
    }

    /// The versions of the arms in words, each with the names of its arms: a refusal makes the arms differ.
    fn versions(&self, of: impl Fn(&ArmDecision) -> Option<u64>) -> Vec<(String, Vec<&'static str>)> {
        let mut groups: Vec<(String, Vec<&'static str>)> = Vec::new();
        let found = self.arms.iter().filter_map(|arm| Some((arm.decision.arm.name(), of(&arm.decision)?)));
        for (arm, version) in found {
            let version = if version == 0 { "the empty key".to_owned() } else { format!("version {version}") };
            match groups.iter_mut().find(|(other, _)| *other == version) {
                Some((_, arms)) => arms.push(arm),
                None => groups.push((version, vec![arm])),
            }
        }
        groups
    }

    /// Arms that decided alike, refusals first.
    fn grouped(&self) -> Vec<(Vec<&'static str>, String, bool)> {
        let mut groups: Vec<(Vec<&'static str>, String, bool)> = Vec::new();
        for is_admitted in [false, true] {
            for arm in self.arms.iter().filter(|a| a.decision.admitted == is_admitted) {
                let what = arm.what(self.token);
                match groups.iter_mut().find(|(_, w, _)| *w == what) {
                    Some((arms, ..)) => arms.push(arm.decision.arm.name()),
                    None => groups.push((vec![arm.decision.arm.name()], what, is_admitted)),
                }
            }
        }
        groups
    }
}

/// Names the arms of each version: `off: version 4 · writes, reads: version 3`.
fn by_arm(versions: &[(String, Vec<&'static str>)]) -> String {
    let told = versions.iter().map(|(version, arms)| format!("{}: {version}", arms.join(", ")));
    told.collect::<Vec<_>>().join(" · ")
}

impl ArmSummary {
    fn what(&self, token: Option<Token>) -> String {
        let d = &self.decision;
        match (d.admitted, self.overwritten) {
            (true, 0) => "admitted".into(),
            (true, 1) => "admitted, overwrote 1 newer update".into(),
            (true, n) => format!("admitted, overwrote {n} newer updates"),
            (false, _) if d.arm == Arm::Claim => "rejected, its claim is not the newest".into(),
            (false, _) if d.arm == Arm::Guard => "rejected, its lock key is gone".into(),
            (false, _) if d.arm == Arm::Deadline => "rejected, its deadline has passed".into(),
            // A refused write changes nothing: the version after it is the one before it.
            (false, _) if d.arm == Arm::Cas => format!("rejected, version {} is current", d.version),
            (false, _) => {
                // The status of an answer that speaks for several arms is that of `writes`.
                let status = if d.arm == Arm::Writes { " (409)" } else { "" };
                let why = token.zip(d.seen).map(|(own, seen)| {
                    let sign = match own.cmp(&seen) {
                        Ordering::Less => "<",
                        Ordering::Equal => "=",
                        // Only a resource that decides wrongly refuses such a write.
                        Ordering::Greater => ">",
                    };
                    format!(", token {own} {sign} newest seen {seen}")
                });
                format!("rejected{status}{}", why.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write after which the counter is `value`.
    fn write(number: u64, value: u64) -> Event {
        let decision = ArmDecision { arm: Arm::Off, admitted: true, seen: None, base: Some(0), version: number, value };
        Event::Admission {
            number,
            key: "k".into(),
            kind: RequestKind::Write,
            hold: None,
            op: None,
            token: None,
            deadline: None,
            repeat: false,
            arms: vec![decision],
        }
    }

    #[test]
    fn an_update_overwrites_only_updates_of_its_own_key() {
        let mut decisions = LastDecisions::new(&[Arm::Off]);
        (1..=3).for_each(|n| decisions.remember(0, &write(n, n)));
        let told = decisions.note(1, &write(4, 1)).what();
        assert_eq!(told, "wrote version 4 (based on the empty key): admitted");
        decisions.remember(1, &write(4, 1));
        let told = decisions.note(0, &write(5, 1)).what();
        assert_eq!(told, "wrote version 5 (based on the empty key): admitted, overwrote 3 newer updates");
    }

    #[test]
    fn the_versions_of_arms_that_differ_are_told_for_each_arm() {
        let told = |kind: RequestKind, versions: [u64; 3]| {
            let arms = [Arm::Off, Arm::Writes, Arm::Reads].into_iter().zip(versions).map(|(arm, version)| {
                let base = (kind == RequestKind::Write).then_some(version);
                let decision = ArmDecision { arm, admitted: true, seen: None, base, version, value: 1 };
                ArmSummary { decision, overwritten: 0 }
            });
            RequestSummary { number: 9, kind, token: Some(Token(42)), arms: arms.collect() }.what()
        };
        for (versions, read, base) in [
            ([3, 3, 3], "read version 3 with token 42", "version 3"),
            ([0, 0, 0], "read the empty key with token 42", "the empty key"),
            (
                [4, 3, 3],
                "read with token 42: off: version 4 · writes, reads: version 3",
                "off: version 4 · writes, reads: version 3",
            ),
            (
                [4, 0, 4],
                "read with token 42: off, reads: version 4 · writes: the empty key",
                "off, reads: version 4 · writes: the empty key",
            ),
        ] {
            assert_eq!(told(RequestKind::Read, versions), read);
            let wrote = format!("wrote version 9 (based on {base}) with token 42: admitted");
            assert_eq!(told(RequestKind::Write, versions), wrote);
        }
    }

    #[test]
    fn a_refusal_tells_how_its_token_compares_with_the_newest() {
        for (seen, sign) in [(43, '<'), (42, '='), (41, '>')] {
            let (arm, seen) = (Arm::Writes, Token(seen));
            let decision = ArmDecision { arm, admitted: false, seen: Some(seen), base: None, version: 0, value: 0 };
            let told = ArmSummary { decision, overwritten: 0 }.what(Some(Token(42)));
            assert_eq!(told, format!("rejected (409), token 42 {sign} newest seen {seen}"));
        }
    }
}
